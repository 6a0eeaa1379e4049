"""First occurrences, codes, counts and members by NumPy; without a sort where the keys stand for small numbers."""

from __future__ import annotations

import numpy as np


def is_first(numbers: np.ndarray, kinds: int) -> np.ndarray:
    """Does the number, from 0 to `kinds` - 1, stand here for the first time? bool [n]"""
    positions = np.arange(len(numbers))
    first = np.zeros(kinds, np.int64)
    first[numbers[::-1]] = positions[::-1]  # the last one that is written stays
    return first[numbers] == positions


def first_seen(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First positions, codes and counts of numbers from 0 on, in the order of their first occurrence."""
    kinds = int(numbers.max(initial=-1)) + 1
    firsts = np.flatnonzero(is_first(numbers, kinds))
    codes_of = np.zeros(kinds, np.int64)
    codes_of[numbers[firsts]] = np.arange(len(firsts))
    codes = codes_of[numbers]
    return firsts, codes, np.bincount(codes, minlength=len(firsts))


def numbered(keys: np.ndarray) -> np.ndarray:
    """Numbers from 0 on in place of the keys [n]: equal where these are, and in their order."""
    small = _small_numbers(keys)
    return np.unique(keys, return_inverse=True)[1] if small is None else small


def _small_numbers(keys: np.ndarray) -> np.ndarray | None:
    """None where the keys are no whole numbers that lie close together, be it in their high bits alone."""
    if len(keys) == 0 or keys.dtype.kind not in "biuf":
        return None
    whole = keys if keys.dtype == np.uint64 else keys.astype(np.int64)
    if keys.dtype.kind == "f" and not (whole == keys).all():
        return None
    if keys.dtype.kind != "f" and keys.itemsize == 8 and not (whole << 20).any():
        whole = whole >> 44
    spread = int(whole.max()) - int(whole.min())
    return (whole - whole.min()).astype(np.int64) if spread < 8 * len(keys) + 1000 else None


def is_member(elements: np.ndarray, tests: np.ndarray) -> np.ndarray:
    """As np.isin, which takes several times as long, of keys [n] of one dtype and without NaN. bool [n]"""
    assert elements.dtype == tests.dtype
    if len(tests) == 0:
        return np.zeros(len(elements), bool)
    numbers = _small_numbers(np.concatenate([tests, elements]))
    if numbers is not None:
        known = np.zeros(numbers.max() + 1, bool)
        known[numbers[: len(tests)]] = True
        return known[numbers[len(tests) :]]
    ascending = np.sort(tests)
    places = np.searchsorted(ascending, elements)
    return ascending[np.minimum(places, len(tests) - 1)] == elements
