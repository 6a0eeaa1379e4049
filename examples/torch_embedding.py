"""Train a PyTorch model whose embedding grows with the words that it meets, beside a static one.

    python examples/torch_embedding.py [--device cpu|cuda] [--steps N] [--plot FILE]

The stream is real and skewed: the words and signs of the source of Python's own standard library. From three of them in
a row the model tells the next one, out of the 255 most frequent. Words come as 64-bit hashes. The growing model knows
no vocabulary: a HashEmbedding makes a row when a word comes for the first time, and trains the rows of a batch inside
of ``backward()``. The static one, ``nn.Embedding(sparse=True)`` with ``torch.optim.SparseAdam``, has to be told all
words before. Both begin alike, and so their losses fall alike.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import gpuhash.torch
from gpuhash.initializers import Normal

CONTEXT = 3  # words from which the next one is told
CLASSES = 256  # the most frequent words, and one class for all others
WIDTH = 32
BATCH = 1024
LEARNING_RATE = 0.01
WORD = re.compile(rb"\w+|[^\w\s]")


def read_words(count: int) -> list[bytes]:
    """The first words and signs of the source of Python's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    words: list[bytes] = []
    for path in sorted(folder.rglob("*.py")):
        if not {"site-packages", "dist-packages", "test"}.intersection(path.relative_to(folder).parts):
            words += WORD.findall(path.read_bytes())
        if len(words) >= count:
            return words[:count]
    raise RuntimeError(f"{folder} has {len(words)} words, expected {count}: ask for fewer --steps")


def hash_of(word: bytes) -> int:
    """64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little", signed=True)


def make_samples(words: list[bytes]) -> tuple[Tensor, Tensor]:
    """Hashes of the words before, int64 ``[samples, CONTEXT]``, and the classes of the words to tell, ``[samples]``."""
    counts = Counter(words)
    classes = {word: number for number, (word, _) in enumerate(counts.most_common(CLASSES - 1))}
    hashes = {word: hash_of(word) for word in counts}
    ids = torch.tensor([hashes[word] for word in words])
    windows = ids[:-1].unfold(0, CONTEXT, 1)
    return windows, torch.tensor([classes.get(word, CLASSES - 1) for word in words[CONTEXT:]])


def make_head() -> nn.Module:
    """From ``[batch, CONTEXT, WIDTH]`` to the classes; every one begins alike."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(CONTEXT * WIDTH, 128), nn.Tanh(), nn.Linear(128, CLASSES))


class Progress:
    """A bar on standard error."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.begin = name, steps, time.perf_counter()

    def show(self, step: int, loss: float, more: str = "") -> None:
        full = 30 * step // self.steps
        seconds = time.perf_counter() - self.begin
        end = "\n" if step == self.steps else ""
        bar = f"{'#' * full}{'.' * (30 - full)}"
        print(
            f"\r{self.name:8} {bar} {step}/{self.steps} loss {loss:.3f}{more} {seconds:.1f} s",
            end=end,
            file=sys.stderr,
            flush=True,
        )


def train(
    name: str,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    samples: Tensor,
    classes: Tensor,
    more: Callable[[], str] = str,
) -> list[float]:
    """One pass over the samples; the loss of each batch."""
    losses: list[Tensor] = []
    batches = list(zip(samples.split(BATCH), classes.split(BATCH), strict=True))
    progress = Progress(name, len(batches))
    for step, (ids, expected) in enumerate(batches, 1):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids), expected)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.detach())
        if step % 25 == 0 or step == len(batches):
            progress.show(step, losses[-1].item(), more())
    return torch.stack(losses).tolist()


def plot(path: str, growing: list[float], static: list[float]) -> None:
    """Both losses, each batch's and smoothed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    window = max(1, len(growing) // 30)
    for name, losses, style in (("growing, HashEmbedding", growing, "-"), ("static, nn.Embedding", static, "--")):
        smooth = np.convolve(losses, np.ones(window) / window, "valid")
        axes.plot(np.arange(window - 1, len(losses)), smooth, style, label=name)
    axes.set(xlabel=f"batch of {BATCH} words", ylabel=f"loss, mean of {window} batches")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train an embedding that grows, beside a static one.")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU if PyTorch has one")
    parser.add_argument("--steps", type=int, default=300, help=f"batches of {BATCH} words (default: 300)")
    parser.add_argument("--plot", metavar="FILE", help="draw both losses, with matplotlib")
    options = parser.parse_args(arguments)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    samples, classes = (each.to(device) for each in make_samples(read_words(options.steps * BATCH + CONTEXT)))

    embedding = gpuhash.torch.HashEmbedding(
        WIDTH, optimizer=gpuhash.torch.Adam(LEARNING_RATE), initializer=Normal(std=0.1), device=device
    )
    first = copy.deepcopy(embedding)  # draws the rows that the growing one will
    growing = nn.Sequential(embedding, make_head()).to(device)
    dense = torch.optim.Adam(growing.parameters(), lr=LEARNING_RATE)  # the head's: rows are no parameters
    sizes: list[int] = []

    def count_rows() -> str:
        sizes.append(len(embedding))
        return f", {sizes[-1]:,} rows"

    mine = train("growing", growing, [dense], samples, classes, count_rows)

    # The static one: all words must be known, and numbered, before.
    vocabulary, numbers = samples.unique(return_inverse=True)
    with torch.no_grad():
        rows = nn.Embedding.from_pretrained(first(vocabulary), freeze=False, sparse=True)
    static = nn.Sequential(rows, make_head()).to(device)
    optimizers = [
        torch.optim.SparseAdam(rows.parameters(), lr=LEARNING_RATE),
        torch.optim.Adam(static[1].parameters(), lr=LEARNING_RATE),
    ]
    theirs = train("static", static, optimizers, numbers, classes)

    print(f"{len(classes):,} words to tell, {len(vocabulary):,} distinct, on {device}")
    for name, losses in (("growing", mine), ("static", theirs)):
        print(f"{name:8} loss of the first batch {losses[0]:.4f}, mean of the last ten {np.mean(losses[-10:]):.4f}")
    print(f"rows in the table after 25 batches {sizes[0]:,}, after the last {sizes[-1]:,}")
    if options.plot:
        plot(options.plot, mine, theirs)
        print(f"drew {options.plot}")
    # Alike but for the order in which floats are summed, which training makes grow.
    np.testing.assert_allclose(mine[:20], theirs[:20], rtol=1e-3)
    np.testing.assert_allclose(np.mean(mine), np.mean(theirs), rtol=0.02)
    assert np.mean(mine[-10:]) < 0.8 * mine[0], "the loss did not fall"
    assert sizes[-1] == len(vocabulary) > sizes[0], "the table did not grow with the words"


if __name__ == "__main__":
    main()
