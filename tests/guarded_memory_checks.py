"""Calls whose arrays end where readable memory ends, or begin where it begins; for tests/test_guarded_memory.py.

What reads or writes one byte beyond them ends this process. So it is one of its own:
``python -P tests/guarded_memory_checks.py DTYPE end|begin [TURN]``, and answers are compared with NumPy's. With DTYPE
"pairs" keys are vectors of two int64, and with "odd" vectors of as many bytes as no word has, in tables alone. TURN,
a number: of the largest batches a third, which is another one with the next number.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from collections.abc import Callable, Iterator

import numpy as np

import gpuhash

LIBC = ctypes.CDLL(None, use_errno=True)
NO_ACCESS = 0  # PROT_NONE
PAGE = mmap.PAGESIZE

#: Around the sizes from which on batches are sampled, partitioned and dealt out to threads, and none that is even.
SIZES = (1, 77, (1 << 14) - 1, (1 << 14) + 1, (1 << 16) + 333, (1 << 17) + 5, 464_353, (1 << 20) - 1, (1 << 20) + 1031)


class Guarded:
    """Arrays whose memory no byte can be read or written behind, or before."""

    def __init__(self, at_end: bool) -> None:
        self.at_end = at_end

    def empty(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Keeps its map, which is unmapped with it."""
        size = count * dtype.itemsize
        inside = -(-size // PAGE) * PAGE
        memory = mmap.mmap(-1, inside + 2 * PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (address, address + PAGE + inside):
            if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), NO_ACCESS) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        offset = PAGE + (inside - size if self.at_end else 0)
        return np.frombuffer(memory, dtype, count, offset)

    def copy(self, array: np.ndarray) -> np.ndarray:
        guarded = self.empty(len(array), array.dtype)
        guarded[:] = array
        return guarded


def words_of_text(rng: np.random.Generator, count: int) -> np.ndarray:
    """Numbers of which few come very often and most seldom, as in text."""
    often = rng.zipf(1.5, count) % 50_000
    return np.where(rng.random(count) < 0.2, 7, often * 1_000_003 + rng.integers(0, 30, count))


KINDS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "any": lambda rng, n: rng.integers(-(2**62), 2**62, n),
    "a quarter distinct": lambda rng, n: rng.integers(-(2**62), 2**62, n)[rng.integers(0, -(-n // 4), n)],
    "few distinct": lambda rng, n: rng.integers(0, 1000, n) * 7919,
    "text": words_of_text,
    "ascending": lambda rng, n: np.arange(n),
}


def batches(dtype: np.dtype, turn: int | None) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(dtype.itemsize)
    for number, (count, (kind, draw)) in enumerate(itertools.product(SIZES, KINDS.items())):
        if turn is None or count < 1 << 18 or number % 3 == turn % 3:
            numbers = draw(rng, count)
            yield f"{kind}, {count}", numbers.astype(dtype) if dtype.kind == "f" else numbers.astype("i8").astype(dtype)


class Keys:
    """A batch in guarded memory, and what NumPy says of it. Keys of `width` bytes begin with their number's."""

    def __init__(self, numbers: np.ndarray, are_pairs: bool, guard: Guarded, width: int = 0) -> None:
        self.are_pairs = are_pairs
        self.width = width
        self.guard = guard
        self.count = len(numbers)
        self.distinct, self.firsts, self.inverse, self.counts = np.unique(
            numbers, return_index=True, return_inverse=True, return_counts=True
        )
        self.array = self.of(numbers)

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """Guarded keys: the numbers, or pairs or bytes that are made of them."""
        if self.width:
            parts = np.ascontiguousarray(numbers).view("u1").reshape(-1, numbers.itemsize)
            return self.guard.copy(np.tile(parts, (1, 8))[:, : self.width].ravel()).reshape(-1, self.width)
        if not self.are_pairs:
            return self.guard.copy(numbers)
        return self.guard.copy(np.stack([numbers, ~numbers], 1).ravel()).reshape(-1, 2)

    def numbers(self, keys: np.ndarray) -> np.ndarray:
        return keys[:, 0] if self.are_pairs else keys


def check_factorizations(keys: Keys) -> None:
    axis = 0 if keys.are_pairs else None
    in_order = np.argsort(keys.firsts)
    inverse = np.argsort(in_order)[keys.inverse]
    got = gpuhash.unique(keys.array, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    np.testing.assert_array_equal(keys.numbers(got[0]), keys.distinct[in_order])
    for mine, theirs in zip(got[1:], (keys.firsts[in_order], inverse, keys.counts[in_order]), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    values, counts = gpuhash.unique(keys.array, return_counts=True, axis=axis)
    np.testing.assert_array_equal(keys.numbers(values), keys.distinct[in_order])
    np.testing.assert_array_equal(counts, keys.counts[in_order])
    np.testing.assert_array_equal(keys.numbers(gpuhash.unique(keys.array, sorted=True, axis=axis)), keys.distinct)
    codes, uniques = gpuhash.factorize(keys.array, axis=axis)
    np.testing.assert_array_equal(codes, inverse)
    np.testing.assert_array_equal(keys.numbers(uniques), keys.distinct[in_order])
    np.testing.assert_array_equal(gpuhash.hash(keys.array, axis=axis), gpuhash.hash(np.array(keys.array), axis=axis))
    is_in = gpuhash.isin(keys.array, keys.of(keys.distinct[::3]), axis=axis)
    np.testing.assert_array_equal(is_in, keys.inverse % 3 == 0)


def check_tables(keys: Keys) -> None:
    count, guard = keys.count, keys.guard
    is_first = np.zeros(count, bool)
    is_first[keys.firsts] = True
    mask, values = guard.empty(count, np.dtype(bool)), guard.empty(count, np.dtype("i8"))
    table = gpuhash.HashTable(keys.array.dtype, "int64", key_shape=keys.array.shape[1:])
    for times in (1, 2):  # into a table that grows, and of keys that it has
        table.insert_or_apply(keys.array, 1, "add", out=mask)
        np.testing.assert_array_equal(mask, is_first if times == 1 else np.zeros(count, bool))
        table.find(keys.array, out=(values, mask))
        assert mask.all()
        np.testing.assert_array_equal(values, times * keys.counts[keys.inverse])
    ones = guard.copy(np.ones(count, "i8"))
    table.insert_or_apply(keys.array, ones, "add", out=mask)
    table[keys.array] = guard.copy(np.arange(count))
    last = np.zeros(len(keys.distinct), "i8")
    last[keys.inverse] = np.arange(count)
    np.testing.assert_array_equal(table.get(keys.array, -1, out=values), last[keys.inverse])
    table.erase(keys.of(keys.distinct[1::2]), out=guard.empty(len(keys.distinct) // 2, np.dtype(bool)))
    is_left = keys.inverse % 2 == 0
    np.testing.assert_array_equal(table.contains(keys.array, out=mask), is_left)
    table.insert(keys.array, ones, out=mask)
    np.testing.assert_array_equal(mask, is_first & ~is_left)
    assert len(table) == len(keys.distinct)


#: Of keys: those that are read by two moves which overlap, and the dtype of the number that they begin with.
ODD_WIDTHS = {3: "u2", 5: "u4", 6: "u4", 7: "u4", 9: "u8", 12: "u8", 13: "u8", 15: "u8", 17: "u8", 24: "u8", 33: "u8"}


def check_odd_widths(side: str) -> None:
    rng = np.random.default_rng(7)
    for width, dtype in ODD_WIDTHS.items():
        for count in SIZES[:5]:
            print(f"{width} bytes, {count}", flush=True)
            keys = Keys(rng.integers(0, 1 << 15, count).astype(dtype), False, Guarded(side == "end"), width)
            check_tables(keys)
            for bits in (64, 128):
                hashes = gpuhash.hash(keys.array, bits=bits, axis=0)
                np.testing.assert_array_equal(hashes, gpuhash.hash(np.array(keys.array), bits=bits, axis=0))


def main(dtype: str, side: str, turn: str | None = None) -> None:
    if dtype == "odd":
        check_odd_widths(side)
        return
    are_pairs = dtype == "pairs"
    for name, numbers in batches(np.dtype("int64" if are_pairs else dtype), None if turn is None else int(turn)):
        print(name, flush=True)  # the last line says which batch it was
        keys = Keys(numbers, are_pairs, Guarded(side == "end"))
        check_factorizations(keys)
        if numbers.dtype.kind != "f":
            check_tables(keys)


if __name__ == "__main__":
    main(*sys.argv[1:])
