"""Keys and values on the host."""

from __future__ import annotations

import sysconfig
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.report import DISTINCT
from benchmarks.suite import need_module

Integers = npt.NDArray[np.int64]
Keys = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

REPEATS = 16  # of each key in a batch that is counted
ZIPF = 1.05
_PIECE = 1 << 22  # keys made at once, so that temporaries stay small


def mixed(first: int, count: int) -> Integers:
    """Unique keys that look random: the finisher of splitmix64, a bijection, of a counter."""
    keys = np.empty(count, np.uint64)
    for start in range(0, count, _PIECE):
        x = keys[start : start + _PIECE]
        x[:] = np.arange(first + start, first + start + len(x), dtype=np.uint64)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return keys.view(np.int64)


def values_of(keys: Integers) -> Integers:
    """The value that belongs to each key."""
    return keys ^ 0x5555


class Data:
    """Keys in the order of insertion and in that of the lookups, keys never inserted, and keys that repeat."""

    def __init__(self, pairs: int) -> None:
        self.pairs = pairs
        self.keys = mixed(0, pairs)
        self.values = values_of(self.keys)
        self.lookups = np.random.default_rng(1).permutation(self.keys)
        self.absent = mixed(pairs, pairs)

    @cached_property
    def repeated(self) -> Integers:
        """As many keys, each ``REPEATS`` times on average."""
        return self.keys[np.random.default_rng(2).integers(0, max(1, self.pairs // REPEATS), self.pairs)]


def known_keys(numbers: npt.NDArray[np.integer], dtype: str) -> Keys:
    """The key of each number, one to one, without a pattern."""
    if dtype == "int32":
        return (numbers.astype(np.uint32) * np.uint32(0x9E3779B1)).view(np.int32)
    return mixed(0, int(numbers.max()) + 1)[numbers].view(dtype)


def ngrams(count: int, dtype: str) -> Keys:
    """N-grams as wide as a key, of the source of Python's standard library, from its beginning again where it ends."""
    size, text = np.dtype(dtype).itemsize, bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if not {"site-packages", "dist-packages"}.intersection(path.parts):
            text += path.read_bytes()
        if len(text) >= count + size:
            break
    repeated = np.resize(np.frombuffer(text, np.uint8), count + size - 1)
    return np.ascontiguousarray(sliding_window_view(repeated, size)).view(dtype).ravel()


def zipf(count: int) -> npt.NDArray[np.int64]:
    torch = need_module("torch")
    from benchmarks.random_keys import numbers

    drawn: npt.NDArray[np.int64] = numbers(ZIPF, count, count, torch.device("cpu"), 3).numpy()
    return drawn


class SetData:
    """Keys, and as test elements as many keys as there are distinct ones, half of them among the keys."""

    DISTRIBUTIONS = ("1/16 distinct", DISTINCT, "1000 distinct", f"Zipf {ZIPF}", "sequential", "n-grams")

    def __init__(self, distribution: str, count: int, dtype: str) -> None:
        rng = np.random.default_rng(3)
        if distribution == "n-grams":
            self.keys = ngrams(count, dtype)
        elif distribution == "sequential":
            self.keys = np.arange(count, dtype=dtype)
        elif distribution == DISTINCT:
            self.keys = known_keys(rng.permutation(count), dtype)
        elif distribution == f"Zipf {ZIPF}":
            self.keys = known_keys(zipf(count), dtype)
        else:
            distinct = 1000 if distribution == "1000 distinct" else count // REPEATS
            self.keys = known_keys(rng.integers(0, distinct, count), dtype)
        self.sorted_unique, first, inverse, counts = np.unique(
            self.keys, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        self.unique, self.counts = self.sorted_unique[order], counts[order]  # in order of first occurrence
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.codes = rank[inverse]
        self.tests = rng.permutation(np.concatenate([self.unique[::2], ~self.unique[1::2]]))
        ascending = np.sort(self.tests)  # np.isin would take minutes for the largest batches
        place = np.searchsorted(ascending, self.sorted_unique)
        self.isin = (ascending[np.minimum(place, len(ascending) - 1)] == self.sorted_unique)[inverse]
