"""Families of keys with a structure, and tables that do not grow for them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gpuhash import HashTable
from support.hashing import FOLD, WHITEN
from support.samples import as_bytes


def reversed_bits(numbers: np.ndarray) -> np.ndarray:
    """The bits of unsigned numbers in the opposite order."""
    width = 8 * numbers.dtype.itemsize
    bits = np.unpackbits(numbers[:, None].view(np.uint8), axis=1, bitorder="little")[:, ::-1]
    assert bits.shape == (len(numbers), width)
    return np.packbits(bits, axis=1, bitorder="little").view(numbers.dtype)[:, 0]


def few_bits(count: int, width: int) -> np.ndarray:
    """The numbers with no bit set, then those with one, two, three and so on."""
    chosen = itertools.chain.from_iterable(itertools.combinations(range(width), k) for k in range(width))
    numbers = [sum(1 << bit for bit in bits) for bits in itertools.islice(chosen, count)]
    return np.array(numbers, np.uint64)


def numbers_of(family: str, count: int, width: int) -> np.ndarray:
    """The first `count` distinct numbers of a family, as unsigned integers of `width` bits."""
    i = np.arange(count, dtype=np.uint64)
    half, unused = np.uint64(width // 2), np.uint64(width - count.bit_length())
    with np.errstate(over="ignore"):
        if family == "sequential":
            numbers = i
        elif family == "negative":
            numbers = np.uint64(0) - i
        elif family == "equal-low-halves":
            numbers = i << half | np.uint64(0xABCD)
        elif family == "equal-high-halves":
            numbers = np.uint64(0x1234) << half | i
        elif family == "strided-1024":
            numbers = i << np.uint64(10)
        elif family == "strided-to-the-top":
            numbers = i << unused
        elif family == "bit-reversed":
            return reversed_bits(i.astype(f"u{width // 8}"))
        elif family == "multiples-of-an-odd-number":
            numbers = i * np.uint64(0x9E3779B97F4A7C15)
        elif family == "multiples-of-the-inverse":  # the hash function's own constant undone
            numbers = i * np.uint64(pow(int(FOLD), -1, 1 << 64)) ^ WHITEN
        elif family == "gray":
            numbers = i ^ (i >> np.uint64(1))
        elif family == "few-bits":
            numbers = few_bits(count, width)
        elif family == "floats":
            return (np.arange(count) + 1).astype(f"f{width // 8}").view(f"u{width // 8}")
        elif family == "fractions":
            return ((np.arange(count) + 1) / count).astype(f"f{width // 8}").view(f"u{width // 8}")
        else:
            assert family == "grid"  # two coordinates side by side, as in ids of cells
            side = np.uint64(int(count**0.5) + 1)
            numbers = i // side << half | i % side
    return numbers.astype(f"u{width // 8}")


FAMILIES = [
    "sequential",
    "negative",
    "equal-low-halves",
    "equal-high-halves",
    "strided-1024",
    "strided-to-the-top",
    "bit-reversed",
    "multiples-of-an-odd-number",
    "multiples-of-the-inverse",
    "gray",
    "few-bits",
    "floats",
    "fractions",
    "grid",
]
ROWS_OF = {  # how the numbers become rows of two words
    "sequential": lambda n: np.stack([n, np.zeros_like(n)], axis=1),
    "negative": lambda n: np.stack([n, np.uint64(0) - n], axis=1),
    "equal-low-halves": lambda n: np.stack([np.full_like(n, 7), n], axis=1),
    "grid": lambda n: np.stack([n >> np.uint64(32), n & np.uint64(0xFFFFFFFF)], axis=1),
}


def keys_of_family(family: str, key_type: tuple[str, tuple[int, ...]], count: int) -> np.ndarray:
    """Distinct keys in the family's order: [count, *shape]."""
    dtype, shape = key_type
    numbers = numbers_of(family, count, 8 * np.dtype(dtype).itemsize)
    if shape:
        numbers = ROWS_OF.get(family, lambda n: np.stack([n, n], axis=1))(numbers)
    keys = np.ascontiguousarray(numbers).view(dtype)
    assert len(set(as_bytes(keys).tolist())) == count
    return keys


def random_keys_of(key_type: tuple[str, tuple[int, ...]], count: int, seed: int = 0) -> np.ndarray:
    dtype, shape = key_type
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(info.min, info.max, (2 * count, *shape), dtype, endpoint=True), axis=0)
    return rng.permutation(keys)[:count]


def fixed_table(key_type: tuple[str, tuple[int, ...]], slots: int, device: str, **options: Any) -> HashTable:
    value_dtype = "int32" if key_type[0] == "int32" else "int64"
    return HashTable(
        key_type[0],
        value_dtype,
        key_shape=key_type[1],
        capacity=slots,
        growth=False,
        device=device,
        **options,
    )
