"""Count every 8-byte n-gram of real files in one hash table.

    python examples/count_ngrams.py [PATHS]

An n-gram of 8 bytes is an int64, so counting is one call per batch: ``table.insert_or_apply(ngrams, 1, "add")``.
Without PATHS the files are the source of Python's own standard library. The table is on the GPU if there is one (and
PyTorch to bring the n-grams there), else on the host. They are counted twice, into a new table each time, and the
second time is the one that is told. The counts are checked against ``numpy.unique`` and ``collections.Counter``, on a
part of the files where all of them would take too long.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gpuhash

NGRAM_BYTES = 8
BATCH_NGRAMS = 1 << 22
UNIQUE_LIMIT = 1 << 26  # n-grams that numpy.unique gets to sort
COUNTER_LIMIT = 1 << 22  # n-grams that Counter gets to count

Ngrams = npt.NDArray[np.int64]


def report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def find_files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files named and all files below the folders named, in a fixed order."""
    for path in paths:
        yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def standard_library() -> Iterator[Path]:
    """The source files of Python's standard library, without what was installed into it."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(folder.rglob("*.py")):
        if not {"site-packages", "dist-packages"}.intersection(path.relative_to(folder).parts):
            yield path


def read(files: Iterable[Path], limit_bytes: int | None) -> list[bytes]:
    """The contents of the files, at most ``limit_bytes`` in all."""
    texts: list[bytes] = []
    total = 0
    for file in files:
        text = file.read_bytes()
        if limit_bytes is not None:
            text = text[: limit_bytes - total]
        texts.append(text)
        total += len(text)
        if total == limit_bytes:
            break
    return texts


def ngram_count(text: bytes) -> int:
    return max(len(text) - NGRAM_BYTES + 1, 0)


def ngrams_of(text: bytes) -> Ngrams:
    """All windows of 8 bytes as little-endian int64: eight views of the text, one per alignment, interleaved."""
    ngrams = np.empty(ngram_count(text), "<i8")
    for offset in range(min(NGRAM_BYTES, len(ngrams))):
        ngrams[offset::NGRAM_BYTES] = np.frombuffer(text, "<i8", (len(text) - offset) // NGRAM_BYTES, offset)
    return ngrams


def pieces(texts: Iterable[bytes]) -> Iterator[Ngrams]:
    """The n-grams of each text, none across the border of two texts, at most BATCH_NGRAMS at once."""
    for text in texts:
        for start in range(0, ngram_count(text), BATCH_NGRAMS):
            yield ngrams_of(text[start : start + BATCH_NGRAMS + NGRAM_BYTES - 1])


def batches(texts: Iterable[bytes]) -> Iterator[Ngrams]:
    """The same n-grams in batches of some BATCH_NGRAMS, because many small batches keep no device busy."""
    waiting: list[Ngrams] = []
    size = 0
    for piece in pieces(texts):
        waiting.append(piece)
        size += len(piece)
        if size >= BATCH_NGRAMS:
            yield np.concatenate(waiting)
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)


def take_ngrams(texts: Sequence[bytes], limit: int) -> list[bytes]:
    """The first texts, the last one cut, that together have at most ``limit`` n-grams."""
    taken = []
    for text in texts:
        if limit <= 0:
            break
        taken.append(text[: limit + NGRAM_BYTES - 1])
        limit -= ngram_count(taken[-1])
    return taken


def choose_device() -> str:
    """Name the device: "cuda" if gpuhash and PyTorch both reach a GPU, else "cpu"."""
    try:
        import torch
    except ImportError:
        return "cpu"
    if not torch.cuda.is_available():
        return "cpu"
    try:
        gpuhash.HashTable("int64", "int64", device="cuda")
    except (gpuhash.PlatformError, gpuhash.CudaError) as error:
        report(f"a GPU is there, but not for gpuhash: {error}")
        return "cpu"
    return "cuda"


def count(texts: Sequence[bytes], device: str) -> tuple[Any, float, float]:
    """The table of counts, the seconds of counting, and those of cutting the texts into n-grams and moving them."""
    table = gpuhash.HashTable("int64", "int64", device=device)
    prepare = counting = 0.0
    total, done = sum(map(ngram_count, texts)), 0
    source = batches(texts)
    while True:
        start = time.perf_counter()
        ngrams: Any = next(source, None)
        if ngrams is None:
            break
        if device == "cuda":
            import torch

            ngrams = torch.from_numpy(ngrams).to("cuda")
            torch.cuda.synchronize()
        ready = time.perf_counter()
        table.insert_or_apply(ngrams, 1, "add")
        if device == "cuda":
            torch.cuda.synchronize()
        counting += time.perf_counter() - ready
        prepare += ready - start
        done += len(ngrams)
        report(f"counted {done:,} of {total:,} n-grams")
    return table, counting, prepare


def items(table: Any) -> tuple[Ngrams, Ngrams]:
    """The table's n-grams, ascending, and their counts, on the host."""
    keys, counts = table.to("cpu").items(like="numpy")
    order = np.argsort(keys)
    return keys[order], counts[order]


def most_frequent(ngrams: Ngrams, counts: Ngrams, k: int) -> list[tuple[bytes, int]]:
    order = np.lexsort((ngrams, -counts))[:k]
    return [(ngrams[i].tobytes(), int(counts[i])) for i in order]


def check(name: str, texts: Sequence[bytes], limit: int, whole: Any, device: str) -> None:
    """Count with a peer, at most ``limit`` n-grams, assert that the table says the same, and print the peer's rate."""
    part = take_ngrams(texts, limit)
    n = sum(map(ngram_count, part))
    all_of_it = n == sum(map(ngram_count, texts))
    table = whole if all_of_it else count(part, device)[0]
    ngrams = np.concatenate([np.empty(0, "<i8"), *pieces(part)])
    if name == "numpy.unique":
        start = time.perf_counter()
        expected, expected_counts = np.unique(ngrams, return_counts=True)
        seconds = time.perf_counter() - start
    else:
        listed = ngrams.tolist()
        start = time.perf_counter()
        counter = Counter(listed)
        seconds = time.perf_counter() - start
        expected = np.array(sorted(counter), "<i8")
        expected_counts = np.array([counter[ngram] for ngram in expected.tolist()], np.int64)
    keys, counts = items(table)
    assert np.array_equal(keys, expected), f"the table's n-grams are not those of {name}"
    assert np.array_equal(counts, expected_counts), f"the table's counts are not those of {name}"
    amount = "all" if all_of_it else f"the first {n:,}"
    print(f"{name:20} {n / seconds / 1e6:10.1f} M n-grams/s on one thread, the same counts for {amount} n-grams")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count every 8-byte n-gram of files in one hash table.")
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders (default: Python's standard library)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU if there is one")
    parser.add_argument("--limit-bytes", type=int, help="read at most so many bytes")
    options = parser.parse_args(arguments)
    if options.limit_bytes is not None and options.limit_bytes < 1:
        parser.error("--limit-bytes must be positive")

    device = options.device or choose_device()
    report("reading files")
    texts = read(find_files(options.paths) if options.paths else standard_library(), options.limit_bytes)
    total = sum(map(ngram_count, texts))
    if total == 0:
        parser.error(f"no file of at least {NGRAM_BYTES} bytes")
    # The first time also starts threads or loads kernels, and waits for the system to hand out memory, which
    # numpy.unique finds handed out afterwards.
    count(texts, device)
    table, counting, prepare = count(texts, device)

    print(f"{len(texts):,} files, {sum(map(len, texts)):,} bytes, {total:,} n-grams, {len(table):,} distinct")
    print("most frequent:")
    for text, times in most_frequent(*items(table), 10):
        print(f"{times:12,}  {text!r}")
    threads = gpuhash.get_num_threads()
    on = "" if device == "cuda" else " on one thread" if threads == 1 else f" on {threads} threads"
    print(f"{'gpuhash on ' + device:20} {total / counting / 1e6:10.1f} M n-grams/s{on}", end="")
    print(f" ({total / (counting + prepare) / 1e6:.1f} with cutting the files into n-grams)")
    check("numpy.unique", texts, UNIQUE_LIMIT, table, device)
    check("collections.Counter", texts, COUNTER_LIMIT, table, device)


if __name__ == "__main__":
    main()
