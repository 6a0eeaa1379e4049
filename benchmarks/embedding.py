"""Embeddings of any ids in training and evaluation: ``python -m benchmarks.embedding --device cuda``.

The shapes are those of dynamicemb: ids of ten features, Zipf 1.05, rows of 128 float32. Times are of the
device between two events, on the host of the clock: of the call, of its backward(), and of both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch

import gpuhash.torch
from benchmarks.random_keys import keys_of, numbers
from benchmarks.timing import expect, nothing

Tensor = torch.Tensor

FEATURES, IDS_OF_FEATURE, UNIVERSE = 10, 104_857, 1_600_000
REPETITIONS = 15


def milliseconds(call: Callable[[], object], prepare: Callable[[], object], device: torch.device) -> float:
    """The median of single calls, with the caches as the call before has left them."""
    times = []
    for repetition in range(REPETITIONS + 3):
        prepare()
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            torch.cuda._sleep(1_000_000)  # so that the host is ahead, as in a model of several layers
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize(device)
            taken = begin.elapsed_time(end)
        else:
            start = time.perf_counter()
            call()
            taken = (time.perf_counter() - start) * 1e3
        if repetition >= 3:
            times.append(taken)
    return statistics.median(times)


def copy_rate(device: torch.device, size: int) -> float:
    """Bytes per second, read and written, of a copy."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / milliseconds(lambda: target.copy_(source), nothing, device) * 1e3


def times_of(embedding: gpuhash.torch.HashEmbedding, ids: Tensor, distinct: int) -> dict[str, float]:
    """Milliseconds of the parts of a step, once all ids have a row."""
    device, held = ids.device, list[Tensor]()
    gradients = torch.randn(len(ids), embedding.embedding_dim, device=device)
    before = embedding(ids).detach()
    expect(len(embedding) == distinct, "a row for each id")
    embedding(ids).backward(gradients)
    if isinstance(embedding.optimizer, gpuhash.torch.SGD):
        codes, which = torch.unique(ids, return_inverse=True)
        sums = torch.zeros(len(codes), embedding.embedding_dim, dtype=torch.float64, device=device)
        expected = before.double() - embedding.optimizer.lr * sums.index_add_(0, which, gradients.double())[which]
        expect(torch.allclose(embedding(ids).double(), expected, atol=1e-3), "weights after a step")
        del sums, expected

    def forward() -> None:
        held[:] = [embedding(ids)]

    def backward() -> None:
        held.pop().backward(gradients)

    def both() -> None:
        forward()
        backward()

    times = {
        "forward": milliseconds(forward, held.clear, device),
        "backward": milliseconds(backward, forward, device),
        "both": milliseconds(both, held.clear, device),
    }
    embedding.eval()
    times["evaluation"] = milliseconds(lambda: embedding(ids), nothing, device)
    return times


class Numbered:
    """What one does without: ``nn.Embedding(sparse=True)``, and a dict that numbers the ids, each of them or, with
    ``torch.unique``, each distinct one. Has rows for all ids beforehand.
    """

    def __init__(self, dim: int, rows: int, optimizer: str, *, unique: bool) -> None:
        self.numbers: dict[int, int] = {}
        self.embedding = torch.nn.Embedding(rows, dim, sparse=True)
        make = {"SGD": torch.optim.SGD, "Adam": torch.optim.SparseAdam}[optimizer]
        self.optimizer = make(self.embedding.parameters(), lr=0.01)
        self.unique = unique

    def _number(self, ids: Tensor) -> Tensor:
        numbers = self.numbers
        return torch.tensor([numbers.setdefault(each, len(numbers)) for each in ids.tolist()])

    def forward(self, ids: Tensor) -> Tensor:
        if self.unique:
            distinct, which = torch.unique(ids, return_inverse=True)
            rows = self._number(distinct)[which]
        else:
            rows = self._number(ids)
        weights: Tensor = self.embedding(rows)
        return weights

    def train(self, ids: Tensor, gradients: Tensor) -> None:
        self.forward(ids).backward(gradients)
        self.optimizer.step()
        self.optimizer.zero_grad()


def show_peers(ids: Tensor, distinct: int, dim: int) -> None:
    """On the host."""
    print("\n| nn.Embedding and torch.optim | step, ms | forward, ms |\n|---|---|---|")
    gradients = torch.randn(len(ids), dim)
    for optimizer in ("SGD", "Adam"):
        for unique in (False, True):
            peer = Numbered(dim, distinct, optimizer, unique=unique)
            expect(len(peer.forward(ids)) == len(ids) and len(peer.numbers) == distinct, "a row for each id")
            step = milliseconds(lambda peer=peer: peer.train(ids, gradients), nothing, ids.device)
            forward = milliseconds(lambda peer=peer: peer.forward(ids), nothing, ids.device)
            name = f"{optimizer}, {'torch.unique and a dict' if unique else 'a dict'}"
            print(f"| {name} | {step:.1f} | {forward:.1f} |", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedding", description=__doc__)
    parser.add_argument("--device", default="cpu", help="where the rows are")
    parser.add_argument("--dim", type=int, default=128, help="weights of a row")
    parser.add_argument("--ids", type=int, default=IDS_OF_FEATURE, help="of each of the ten features")
    parser.add_argument("--quick", action="store_true", help="few ids, to see that it works")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("--device cuda needs a GPU, and PyTorch sees none", file=sys.stderr)
        return 2
    if device.index is not None:  # "cuda" alone is the current GPU, which set_device() does not take
        torch.cuda.set_device(device)  # events are those of the current GPU
    count, universe, dim = options.ids, UNIVERSE, options.dim
    if options.quick:
        count, universe = 1000, 5000
    drawn = [numbers(1.05, count, universe, device, seed) + universe * seed for seed in range(FEATURES)]
    ids = keys_of(torch.cat(drawn))
    distinct = len(ids.unique())
    n, row = len(ids), 4 * dim
    rate = copy_rate(device, 1 << (20 if options.quick else 30))
    print(f"{n} ids, {distinct} of them distinct, rows of {dim} float32; a copy moves {rate / 1e9:.0f} GB/s\n")
    print("| what | ms | GB that have to move | ms at the copy's rate | of that rate |\n|---|---|---|---|---|")

    for name, optimizer in (
        ("SGD", gpuhash.torch.SGD(0.01)),
        ("row-wise Adagrad", gpuhash.torch.RowWiseAdagrad(0.01)),
        ("Adam", gpuhash.torch.Adam(0.001)),
    ):
        capacity = 4 * distinct if device.type == "cpu" else 2 * FEATURES * universe  # which takes 40 GB
        embedding = gpuhash.torch.HashEmbedding(dim, optimizer=optimizer, device=device, capacity=capacity)
        states = sum(column.bytes for column in optimizer.columns(dim).values())
        looked_up, trained = (n + distinct) * row, n * row + 2 * distinct * (row + states)
        moved = {"forward": looked_up, "backward": trained, "both": looked_up + trained, "evaluation": looked_up}
        for what, taken in times_of(embedding, ids, distinct).items():
            floor = moved[what] / rate * 1e3
            figures = f"{taken:.3f} | {moved[what] / 1e9:.3f} | {floor:.3f} | {floor / taken:.2f}"
            print(f"| {name}: {what} | {figures} |", flush=True)
        del embedding
    if device.type == "cpu":
        show_peers(ids, distinct, dim)
    return 0


if __name__ == "__main__":
    sys.exit(main())
