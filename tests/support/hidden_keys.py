"""Batches whose new keys a sample does not show, so that a host table has to grow while they are being inserted."""

from __future__ import annotations

import numpy as np

# Of cpp/table/hash_table.cpp: runs in which the new keys of a batch of at least 2^17 are looked for.
RUNS, RUN = 64, 256

FACTOR = np.int64(-7046029254386353131)  # odd: different numbers make different keys


def key_of(numbers: np.ndarray) -> np.ndarray:
    """Keys that lie anywhere in a table, int64 [n]."""
    with np.errstate(over="ignore"):
        return numbers * FACTOR


def number_of(keys: np.ndarray) -> np.ndarray:
    """The numbers that ``key_of`` made the keys of."""
    inverse = pow(int(FACTOR) % (1 << 64), -1, 1 << 64)
    with np.errstate(over="ignore"):
        return (keys.view(np.uint64) * np.uint64(inverse)).view(np.int64)


def hidden_numbers(known: int, new: int, count: int) -> np.ndarray:
    """``count`` numbers, int64: each of [known, known + new) at least once, others from [0, known + new).

    Where a sample looks there are only numbers below ``known``.
    """
    rng = np.random.default_rng(count)
    numbers = rng.integers(0, known + new, count)
    seen = (count // RUNS * np.arange(RUNS)[:, None] + np.arange(RUN)).ravel()
    elsewhere = np.setdiff1d(np.arange(count), seen)
    numbers[rng.choice(elsewhere, new, replace=False)] = np.arange(known, known + new)
    numbers[seen] = rng.integers(0, known, len(seen))
    return numbers
