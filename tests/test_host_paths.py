"""Every instruction set and thread count of the host gives the same results. Against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.factorized import (
    ASCENDING,
    BATCHES,
    check_every_way_to_members,
    check_factorized,
    check_members,
    make_batch,
    spread,
)
from support.first_seen import is_first, numbered
from support.hashing import keys_of_first_bucket
from support.samples import same_bytes
from support.tuning import partitioned

from gpuhash import HashSet, HashTable

KEYS = {
    "int32": ("int32", ()),
    "int64": ("int64", ()),
    "16 bytes": ("int64", (2,)),
    "3 bytes": ("int8", (3,)),
    "12 bytes": ("int32", (3,)),
}
VALUES = {"set": None, "int16": ("int16", ()), "int32": ("int32", ()), "int64": ("int64", ()), "rows": ("int32", (5,))}


def unlike_others(count: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Distinct keys of that dtype and shape, [count, *shape]."""
    element = np.dtype(dtype)
    numbers = np.random.default_rng(count).permutation(np.arange(count, dtype=np.uint64))
    keys = np.zeros((count, max(1, element.itemsize * int(np.prod(shape, dtype=int)))), np.uint8)
    width = min(8, keys.shape[1])
    with np.errstate(over="ignore"):
        spread = numbers * np.uint64(0x9E3779B97F4A7C15 | 1)  # odd: the low bytes stay distinct
    keys[:, :width] = spread[:, None].view(np.uint8)[:, :width]
    return keys.view(element).reshape(count, *shape)


def first_of_each(draws: np.ndarray) -> np.ndarray:
    """Is this the first time that the number is drawn? bool [n]"""
    numbers = numbered(draws)
    return is_first(numbers, int(numbers.max(initial=-1)) + 1)


def last_value(draws: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """values[i] of the last i at which each number was drawn, zeros where it was not."""
    result = np.zeros((count, *values.shape[1:]), values.dtype)
    result[draws] = values  # the last one that is written stays
    return result


def close_together(numbers: np.ndarray, times: int, rng: np.random.Generator) -> np.ndarray:
    """Each of the numbers several times, its places not far apart: while one is under way, others come."""
    draws = np.repeat(rng.permutation(numbers), times)
    return draws[np.argsort(np.arange(len(draws)) + rng.uniform(0, 70, len(draws)))]


def every_operation(keys: np.ndarray, value: tuple[str, tuple[int, ...]] | None, capacity: int) -> None:
    """Batches with duplicates, in order, with every mask and value checked. Half of the keys are never inserted."""
    rng = np.random.default_rng(1)
    count = len(keys) // 2
    is_set = value is None
    dtype, shape = value or ("int8", ())

    def some_values(length: int) -> np.ndarray:
        return rng.integers(-100, 100, (length, *shape)).astype(dtype)

    if is_set:
        table = HashSet(keys.dtype.name, key_shape=keys.shape[1:], capacity=capacity, max_load_factor=1.0)
    else:
        table = HashTable(
            keys.dtype.name, dtype, key_shape=keys.shape[1:], value_shape=shape, capacity=capacity, max_load_factor=1.0
        )

    def insert(draws: np.ndarray, values: np.ndarray) -> np.ndarray:
        return table.add(keys[draws]) if is_set else table.insert(keys[draws], values)

    def assign(draws: np.ndarray, values: np.ndarray) -> np.ndarray:
        return table.add(keys[draws]) if is_set else table.insert_or_assign(keys[draws], values)

    order = rng.permutation(len(keys))
    asked = keys[order]

    def check(present: np.ndarray, expected: np.ndarray) -> None:
        assert len(table) == present.sum()
        there = present[order]
        same_bytes(table.contains(asked), there)
        if not is_set:
            values, found = table.find(asked, default=7)
            same_bytes(found, there)
            want = expected[order]
            want[~there] = 7
            same_bytes(values, want)

    present = np.zeros(len(keys), np.bool_)
    draws = rng.integers(0, count, count)
    values = some_values(count)
    same_bytes(insert(draws, values), first_of_each(draws))
    present[draws] = True
    expected = last_value(draws[::-1], values[::-1], len(keys))
    check(present, expected)

    draws = rng.integers(0, count, count)
    values = some_values(count)
    same_bytes(assign(draws, values), first_of_each(draws) & ~present[draws])
    present[draws] = True
    changed = last_value(draws, values, len(keys))
    expected[draws] = changed[draws]
    check(present, expected)

    rest = np.flatnonzero(~present[:count])
    values = some_values(len(rest))
    assert insert(rest, values).all()
    present[rest] = True
    expected[rest] = values
    check(present, expected)

    for times in (1, 2, 5):  # erased slots of full buckets take new keys
        draws = rng.integers(0, len(keys), count)
        same_bytes(table.erase(keys[draws]), first_of_each(draws) & present[draws])
        present[draws] = False
        check(present, expected)
        draws = close_together(np.flatnonzero(~present[:count]), times, rng)
        values = some_values(len(draws))
        same_bytes(assign(draws, values), first_of_each(draws))
        present[draws] = True
        expected[draws] = last_value(draws, values, len(keys))[draws]
        check(present, expected)

    table.clear()
    present[:] = False
    expected[:] = 0
    for part, operation in ((slice(0, count // 2), insert), (slice(count // 2, count), assign)):
        draws = close_together(np.arange(count)[part], 4, rng)  # new keys displace others
        values = some_values(len(draws))
        same_bytes(operation(draws, values), first_of_each(draws))
        present[draws] = True
        first_first = -1 if operation is insert else 1
        expected[draws] = last_value(draws[::first_first], values[::first_first], len(keys))[draws]
        check(present, expected)

    if not is_set:
        draws = close_together(np.arange(count), 2, rng)
        same_bytes(table.insert_or_apply(keys[draws], 3, "add"), np.zeros(len(draws), np.bool_))
        np.add.at(expected, draws, np.array(3, dtype))
        check(present, expected)
    table.max_load_factor = 0.9
    table.shrink_to_fit()
    check(present, expected)


def batches_of_every_length(dtype: str, capacity: int) -> None:
    """Blocks of keys are taken together, and those in groups. The keys whose patterns mark slots come anywhere."""
    rng = np.random.default_rng(5)
    bits = np.dtype(dtype).itemsize * 8
    marks = [int.from_bytes(b"\xb7" * (bits // 8), "little") ^ low for low in (0, 1, 2)]  # empty, erased, neither
    pool = np.concatenate([np.array(marks, f"uint{bits}"), rng.integers(0, 2**bits, 61, f"uint{bits}")]).view(dtype)
    for length in range(200):
        keys = rng.choice(pool, length)
        present = dict.fromkeys(rng.choice(pool, 40).tolist(), 5)
        table = HashTable(dtype, dtype, capacity=capacity)
        table[np.array(list(present), dtype)] = np.full(len(present), 5, dtype)
        values, found = table.find(keys, default=-1)
        same_bytes(values, np.array([present.get(key, -1) for key in keys.tolist()], dtype))
        same_bytes(found, np.isin(keys, np.array(list(present), dtype)))
        same_bytes(table.contains(keys), found)
        new_values = rng.integers(0, 100, length, dtype)
        inserted = table.insert_or_assign(keys, new_values)
        same_bytes(inserted, first_of_each(keys) & ~found)
        present |= dict(zip(keys.tolist(), new_values.tolist(), strict=True))
        assert dict(table) == present
        members = HashSet(dtype, capacity=capacity)
        same_bytes(members.add(keys), first_of_each(keys))
        same_bytes(members.contains(pool), np.isin(pool, keys))


def everything(large: int) -> None:
    """`large`: keys of the tables that several threads share, of which a batch takes half."""
    for dtype in ("int32", "int64"):
        batches_of_every_length(dtype, 64)  # in cache
        batches_of_every_length(dtype, 1 << 18)  # tables of more than 1 MiB
    for dtype, shape in KEYS.values():
        for value in VALUES.values():
            every_operation(unlike_others(6000, dtype, shape), value, capacity=3000)  # to the last slot
    # The host walks in another way through tables of more than 1 MiB, and from 2^17 keys on in parallel.
    for key, value in {"int32": "int32", "int64": "int64", "16 bytes": "rows", "3 bytes": "int16"}.items():
        dtype, shape = KEYS[key]
        every_operation(unlike_others(large, dtype, shape), VALUES[value], capacity=large * 3 // 5)
    every_operation(unlike_others(large, "int64", (2,)), None, capacity=large * 3 // 5)
    # All of one region, whose later keys leave it; and of one bucket.
    every_operation(keys_of_first_bucket(280_000), ("int64", ()), capacity=840_000)
    every_operation(keys_of_first_bucket(600), ("int64", ()), capacity=100_000)
    every_operation(keys_of_first_bucket(600), ("int64", ()), capacity=40_000)
    for kind in BATCHES:
        check_factorized(make_batch(kind, "int64", 250_003))
        check_factorized(make_batch(kind, "int32", 250_003))
    with partitioned():  # and their parts are written past the caches
        for kind in BATCHES:
            check_factorized(make_batch(kind, "int64", 250_003))
        check_factorized(make_batch("half-distinct", "int32", 70_001))
        check_factorized(make_batch("half-distinct", "int32", 250_003))
        check_members(make_batch("half-distinct", "int64", 1 << 17), make_batch("distinct", "int64", 1 << 17))
    for make in ASCENDING.values():
        for dtype in ("int64", "int32", "float64"):
            keys = np.sort(make(np.random.default_rng(9), 250_003).astype(dtype))
            check_factorized(keys)
            keys[-1] = keys[0] - 1
            check_factorized(keys)
    check_every_way_to_members(lambda kind, count: make_batch(kind, "int64", count))
    check_every_way_to_members(lambda kind, count: make_batch(kind, "int32", count))
    check_every_way_to_members(lambda kind, count: spread(make_batch(kind, "int32", count)))


PATHS = [("portable", "1"), ("portable", "2"), ("avx2", "3"), ("avx512", "1"), ("avx512", "2")]
OTHER_PATHS = [("portable", "3"), ("avx2", "1"), ("avx2", "2"), ("avx512", "3")]


@pytest.mark.parametrize(
    ("simd", "threads"), [*PATHS, *(pytest.param(*path, marks=pytest.mark.slow) for path in OTHER_PATHS)]
)
def test_every_path(slow, simd, threads):
    """Instructions that this processor lacks are replaced by the best it has."""
    environment = {**os.environ, "GPUHASH_SIMD": simd, "GPUHASH_NUM_THREADS": threads}
    here = str(Path(__file__).parent)
    large = 400_000 if slow else 280_000  # half of them is more than 2^17
    program = f"import sys; sys.path.insert(0, {here!r}); from test_host_paths import everything; everything({large})"
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NEEDS_INSTRUCTIONS = {
    "an assignment": "gpuhash.HashTable('int64', 'int64')[1] = 1",
    "a lookup": "gpuhash.HashTable('int64', 'int64').find(np.arange(10))",
    "rows": "gpuhash.HashTable('int64', 'int64', value_shape=(3,)).insert(np.arange(10), np.ones((10, 3), np.int64))",
    "a set": "gpuhash.HashSet('int32').add(np.arange(10, dtype=np.int32))",
    "an inference": "gpuhash.HashTable.from_items(np.arange(3), np.arange(3))",
}
NEEDS_THREADS = {
    "an insertion": "gpuhash.HashTable('int64', 'int64').insert(np.arange(10**6), np.arange(10**6))",
    "room": "gpuhash.HashTable('int64', 'int64').reserve(10**7)",
    "unique": "gpuhash.unique(np.arange(10**6))",
    "factorize": "gpuhash.factorize(np.arange(10**6))",
    "isin": "gpuhash.isin(np.arange(10**6), np.arange(10**6))",
}
BAD_SETTINGS = [
    *(("GPUHASH_SIMD", "avx9", "expected portable, avx2 or avx512", call) for call in NEEDS_INSTRUCTIONS.values()),
    *(("GPUHASH_NUM_THREADS", "abc", "expected a positive number", call) for call in NEEDS_THREADS.values()),
    *(("GPUHASH_NUM_THREADS", bad, "expected a positive number", NEEDS_THREADS["unique"]) for bad in ("0", "-3", "2x")),
    ("GPUHASH_NUM_THREADS", "9" * 30, "expected a positive number", NEEDS_THREADS["unique"]),
]


@pytest.mark.parametrize(("variable", "setting", "expected", "call"), BAD_SETTINGS)
def test_settings_that_cannot_be_are_refused(variable, setting, expected, call):
    """A ValueError of the call that needs them, which can be caught; the same call raises it again."""
    program = f"""
import numpy as np, gpuhash
for _ in range(2):
    try:
        {call}
    except ValueError as error:
        print(error)
"""
    command = [sys.executable, "-P", "-c", program]
    environment = {**os.environ, variable: setting}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"{variable} is '{setting}'; {expected}")
