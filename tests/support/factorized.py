"""Batches for every way in which keys are factorized and members found, and what NumPy says of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import gpuhash
from support.first_seen import first_seen, is_member, numbered
from support.frameworks import Framework
from support.hashing import hash_key, multiply_high
from support.samples import same_bytes

#: Of more than 2^16 keys the host reads 2^14 and then chooses: a small table, or a partition, with or without hot keys.
BATCHES = {
    "few": lambda rng, n: rng.integers(0, 300, n),
    "few-at-first": lambda rng, n: np.where(np.arange(n) < n // 2, rng.integers(0, 300, n), np.arange(n)),
    "new-ones-later": lambda rng, n: rng.integers(0, 300, n) + np.arange(n) // (n // 8 + 1) * 100,
    "hot-and-others": lambda rng, n: np.where(rng.random(n) < 0.6, rng.integers(0, 50, n), rng.permutation(n)),
    "distinct": lambda rng, n: rng.permutation(n),
    "distinct-but-one": lambda rng, n: np.append(rng.permutation(n)[1:], [n // 2]),
    "half-distinct": lambda rng, n: rng.integers(0, n // 2 + 1, n),
    "one-in-8": lambda rng, n: rng.integers(0, n // 8 + 1, n),
    "one-large-part": lambda rng, n: np.where(np.arange(n) < n // 2, rng.permutation(n), 77),
    "two-that-come-often": lambda rng, n: np.where(rng.random(n) < 0.2, rng.integers(0, 2, n), rng.permutation(n)),
    "often-but-not-at-first": lambda rng, n: np.where(
        (np.arange(n) >= n // 4) & (rng.random(n) < 0.5), 5, rng.permutation(n)
    ),
    "often-at-first-and-seldom": lambda rng, n: np.where(np.arange(n) < n // 4, 5, rng.integers(0, n // 2 + 1, n)),
}

#: The host takes such batches by their runs.
ASCENDING = {
    "sequential": lambda rng, n: np.arange(n) - n // 2,
    "gaps": lambda rng, n: np.cumsum(rng.integers(1, 5, n)) - n,
    "some-repeated": lambda rng, n: np.sort(rng.integers(-n, n, n)),
    "runs": lambda rng, n: np.arange(n) // 700 - n // 1400,
    "one-key": lambda rng, n: np.full(n, -3),
    "one-key-but-the-first": lambda rng, n: np.arange(n) > 0,
    "one-key-but-the-last": lambda rng, n: np.arange(n) == n - 1,
}


def make_batch(kind: str, dtype: str, count: int) -> np.ndarray:
    keys = BATCHES[kind](np.random.default_rng(count), count)
    if np.dtype(dtype).itemsize == 8 and dtype != "float64":
        keys = keys.astype(np.uint64) << np.uint64(44)  # differ in their high bits alone
    return keys.astype(dtype)


def spread(keys: np.ndarray) -> np.ndarray:
    """Others in place of these integers, equal where they are: 0 for 0, and far apart where they lie side by side."""
    bits = keys.itemsize * 8
    unsigned = keys.view(f"u{keys.itemsize}")
    return (unsigned * unsigned.dtype.type(0x9E3779B97F4A7C15 >> (64 - bits) | 1)).view(keys.dtype)


def check_factorized(keys: np.ndarray, place: Framework | None = None) -> None:
    """Every combination that is computed in a way of its own; None: NumPy on the host."""
    array = keys if place is None else place.array(keys)
    numbers = numbered(keys)
    firsts, codes, counts = first_seen(numbers)
    uniques = keys[firsts]
    got = gpuhash.factorize(array)
    same_bytes(got.codes, codes)
    same_bytes(got.uniques, uniques)
    same_bytes(gpuhash.unique(array), uniques)
    counted = gpuhash.unique(array, return_counts=True)
    same_bytes(counted.values, uniques)
    same_bytes(counted.counts, counts)
    every = gpuhash.unique(array, return_index=True, return_inverse=True, return_counts=True)
    for part, wanted in zip(every, (uniques, firsts, codes, counts), strict=True):
        same_bytes(part, wanted)
    ordered = gpuhash.unique(array, return_index=True, return_inverse=True, return_counts=True, sorted=True)
    order = np.argsort(numbers[firsts])
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    for part, wanted in zip(ordered, (uniques[order], firsts[order], ranks[codes], counts[order]), strict=True):
        same_bytes(part, wanted)


def check_members(elements: np.ndarray, tests: np.ndarray) -> None:
    """isin, and its opposite."""
    wanted = is_member(elements, tests)
    same_bytes(gpuhash.isin(elements, tests), wanted)
    same_bytes(gpuhash.isin(elements, tests, invert=True), ~wanted)


def check_every_way_to_members(make: Callable[[str, int], np.ndarray]) -> None:
    """`make(kind, count)` gives the keys. Of test elements there are few, many, or many more than elements.

    The host takes integers that lie close together in a way of its own.
    """
    for kind in BATCHES:
        for count, tests in ((50_003, 700), (50_003, 40_009), (3001, 50_003), (1 << 17, 1 << 17)):
            elements, members = make(kind, count), make(kind, 2 * tests)[::2].copy()
            check_members(elements, members)
            zero, one = np.zeros(1, elements.dtype), np.ones(1, elements.dtype)
            check_members(np.concatenate([elements, zero]), members[members != zero])
            check_members(np.concatenate([elements, zero]), np.concatenate([members, zero]))
            check_members(np.concatenate([zero, one]), members)


def sampled_positions(count: int) -> np.ndarray:
    """Those of cpp/shared/first_occurrence.hpp, from which the table's size is estimated."""
    samples = min(1 << (count // 16).bit_length() - 1, 1 << 18)
    j = np.arange(samples)
    parts = j * (samples // 8 * 5 - samples // 128 | 1) & samples - 1
    length = count // samples
    return parts * length + multiply_high(hash_key(j.astype(np.uint64)), np.uint64(length)).astype(np.int64)
