"""Keys and values on the host."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from benchmarks.report import DISTINCT

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

REPEATS = 16  # of each key in a batch that is counted
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


class SetData:
    """Keys, and as test elements as many keys as there are distinct ones, half of them among the keys."""

    DISTRIBUTIONS = ("1/16 distinct", DISTINCT)

    def __init__(self, distribution: str, count: int) -> None:
        rng = np.random.default_rng(3)
        distinct = count if distribution == DISTINCT else count // REPEATS
        known = mixed(0, distinct)
        self.keys = rng.permutation(known) if distribution == DISTINCT else known[rng.integers(0, distinct, count)]
        self.tests = rng.permutation(mixed(distinct // 2, distinct))
        self.sorted_unique, first, inverse, counts = np.unique(
            self.keys, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        self.unique, self.counts = self.sorted_unique[order], counts[order]  # in order of first occurrence
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.codes = rank[inverse]
        self.isin = np.isin(self.keys, self.tests)
