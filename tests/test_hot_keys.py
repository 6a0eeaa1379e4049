"""insert_or_apply of batches in which some keys come very often: the host merges or counts them. Against NumPy."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.applied import applied
from support.first_seen import is_first
from support.frameworks import Framework, to_numpy
from support.hashing import hash_of
from support.memory_resources import NumPyMemory
from support.samples import UFUNCS, has_operation, random_keys, same_bytes, special_keys, type_name
from support.tuning import partitioned

import gpuhash
from gpuhash import HashTable, TableFullError, _core

COUNT = (1 << 17) + 777  # batches of fewer than 2^16 are taken as they come
POOL = 100_000
HOT = 40

#: Which of POOL keys a batch draws; those below HOT come often.
DRAWS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "two-in-three": lambda rng: mixed(rng, rng.random(COUNT) < 2 / 3),
    "in-the-middle": lambda rng: mixed(rng, np.abs(np.arange(COUNT) - COUNT // 2) < COUNT // 5),
    "at-the-end": lambda rng: mixed(rng, np.arange(COUNT) > COUNT // 2),
    "one-key": lambda rng: np.zeros(COUNT, np.int64),
    "one-in-eight": lambda rng: mixed(rng, rng.random(COUNT) < 1 / 8),
    "zipf": lambda rng: (rng.zipf(1.3, COUNT) - 1) % POOL,
}


def mixed(rng: np.random.Generator, is_hot: np.ndarray) -> np.ndarray:
    return np.where(is_hot, rng.integers(0, HOT, COUNT), rng.integers(0, POOL, COUNT))


@functools.cache
def pool_of(dtype: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    """POOL distinct keys, or as many as there are; the first ones are those that look like marks, and others."""
    first = special_keys(dtype, shape)[: HOT // 2]
    others = random_keys(dtype, shape, POOL)
    is_one_of_them = (others[:, None] == first[None]).reshape(len(others), len(first), -1).all(2).any(1)
    pool = np.concatenate([first, others[~is_one_of_them]])[:POOL]
    pool.flags.writeable = False  # all tests share it
    return pool


def any_values(dtype: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Any bits for integers; floats whose sums depend on the order, and zeros of both signs."""
    if dtype == "bool":
        return rng.random(count) < 0.5
    if dtype.startswith("float"):
        return np.where(rng.random(count) < 0.5, rng.standard_normal(count), rng.choice([0.0, -0.0], count)).astype(
            dtype
        )
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, count, dtype, endpoint=True)


@pytest.fixture(params=[1, 2, 5], ids=lambda n: f"{n}-threads")
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = gpuhash.get_num_threads()
    gpuhash.set_num_threads(request.param)
    yield request.param
    gpuhash.set_num_threads(before)


@pytest.fixture(params=[False, True], ids=["in-caches", "past-caches"])
def written(request: pytest.FixtureRequest) -> Iterator[None]:
    """How parts are written, as large batches' are past the caches."""
    with partitioned(request.param):
        yield


def check_two_batches(
    place: Framework, pool: np.ndarray, draws: list[np.ndarray], dtype: str, op: str, per_key: bool, **options: Any
) -> Any:
    """The first one's keys are new, the second one's are so in part. Returns the table."""
    rng = np.random.default_rng(7)
    table = HashTable(str(pool.dtype), dtype, key_shape=pool.shape[1:], device=place.table_device, **options)
    expected, present = np.zeros(len(pool), dtype), np.zeros(len(pool), np.bool_)
    in_order = place.table_device == "cpu"
    for batch in draws:
        values = any_values(dtype, len(batch) if per_key else 1, rng)
        operand = place.array(values) if per_key else values[0].item()
        mask = to_numpy(table.insert_or_apply(place.array(pool[batch]), operand, op))
        expected, new = applied(expected, present, batch, np.broadcast_to(values, batch.shape), op)
        if in_order:
            np.testing.assert_array_equal(mask, new)
        else:
            np.testing.assert_array_equal(np.sort(batch[mask]), np.sort(batch[new]))
        present[batch] = True
        assert len(table) == present.sum()
        found, is_there = map(to_numpy, table.find(place.array(pool)))
        np.testing.assert_array_equal(is_there, present)
        if in_order or not dtype.startswith("float") or op in {"min", "max"}:  # sums depend on the order
            same_bytes(found[present], expected[present])
    return table


DTYPES = ["bool", "int8", "int32", "uint64", "float32"]
DEFINED = [(op, dtype) for dtype in DTYPES for op in UFUNCS if has_operation(op, dtype)]


@pytest.mark.pairwise
@pytest.mark.parametrize("per_key", [False, True], ids=["one-value", "value-per-key"])
@pytest.mark.parametrize(("op", "dtype"), DEFINED, ids=lambda p: p)
def test_every_operation(on_device, threads, op, dtype, per_key):
    """Sums of floats are those of a loop on the host, to the last bit."""
    if on_device.table_device != "cpu" and threads > 1:
        pytest.skip("the host's threads")
    rng = np.random.default_rng(1)
    some = DRAWS["two-in-three"](rng) % 5000  # few keys, so that NumPy is fast
    draws = [some, some[::-1] + np.where(rng.random(COUNT) < 0.1, 1000, 0)]
    check_two_batches(on_device, pool_of("int64")[:6000], draws, dtype, op, per_key, capacity=2 * COUNT)


@pytest.mark.pairwise
@pytest.mark.parametrize("per_key", [False, True], ids=["one-value", "value-per-key"])
@pytest.mark.parametrize("kind", DRAWS)
def test_batches(on_device, threads, kind, per_key):
    """Into a table that grows; the two keys that look like marks are hot, and keys that are new later, too."""
    if on_device.table_device != "cpu" and threads > 1:
        pytest.skip("the host's threads")
    rng = np.random.default_rng(2)
    draws = [DRAWS[kind](rng), (DRAWS[kind](rng) + HOT // 2) % POOL]
    check_two_batches(on_device, pool_of("int64"), draws, "int64", "add", per_key)


KEY_TYPES = [("int8", ()), ("uint16", ()), ("int32", ()), ("uint64", ()), ("int8", (3,)), ("int64", (2,))]


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_keys(on_device, key_type):
    pool = pool_of(*key_type)
    rng = np.random.default_rng(3)
    draws = [DRAWS["two-in-three"](rng) % len(pool) for _ in range(2)]
    check_two_batches(on_device, pool, draws, "int32", "add", True)
    check_two_batches(on_device, pool, draws, "int64", "add", True)
    check_two_batches(on_device, pool, draws, "int64", "multiply", False)
    check_two_batches(on_device, pool, draws, "float64", "add", True)


@pytest.mark.pairwise
@pytest.mark.parametrize("count", [16_383, 16_384, 70_001, 300_007])
@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op, dtype in DEFINED if dtype != "float32"], ids=lambda p: p)
def test_few_keys_and_one_value(threads, op, dtype, count):
    """The host counts such a batch before its keys come to the table: new ones, known ones, and both."""
    rng = np.random.default_rng(9)
    draws = [rng.integers(0, 700, count), rng.integers(0, 700, count), rng.integers(300, 1000, count)]
    check_two_batches(Framework("numpy", "cpu", "cpu"), pool_of("int64")[:1000], draws, dtype, op, False)


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_few_keys_of_every_width(key_type):
    pool = pool_of(*key_type)[:900]
    rng = np.random.default_rng(10)
    draws = [rng.integers(0, len(pool), 30_000) for _ in range(2)]
    check_two_batches(Framework("numpy", "cpu", "cpu"), pool, draws, "int16", "multiply", False)


@pytest.mark.parametrize("distinct", [20_000, 33_000, 50_000, 66_000])
def test_as_many_keys_as_are_just_counted_first(threads, distinct):
    """And those that are taken as they come after all, when they have been counted."""
    rng = np.random.default_rng(11)
    draws = [rng.integers(0, distinct, 65_536), rng.integers(0, distinct, 65_536) + 5000]
    check_two_batches(Framework("numpy", "cpu", "cpu"), pool_of("int64"), draws, "int64", "add", False)


MANY = 200_003
KINDS = 20_000

#: Which of KINDS keys a batch draws that is counted in parts, by what comes often in it.
PARTS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "nothing": lambda rng: rng.integers(0, KINDS, MANY),
    "one key": lambda rng: often(rng, 1, rng.random(MANY) < 0.3),
    "some keys": lambda rng: often(rng, 7, rng.random(MANY) < 0.25),
    "more keys than have parts of their own": lambda rng: often(rng, 12, rng.random(MANY) < 0.35),
    "many keys": lambda rng: often(rng, 600, rng.random(MANY) < 0.6),
    "a key, at first": lambda rng: often(rng, 1, np.arange(MANY) < MANY // 4),
    "a key, in the end": lambda rng: often(rng, 1, (np.arange(MANY) > MANY // 2) | (np.arange(MANY) % 50 == 0)),
    "keys, in the beginning alone": lambda rng: often(rng, 2000, np.arange(MANY) < 16_384),
}


def often(rng: np.random.Generator, keys: int, is_one_of_them: np.ndarray) -> np.ndarray:
    return np.where(is_one_of_them, rng.integers(0, keys, MANY), rng.integers(0, KINDS, MANY))


@pytest.mark.pairwise
@pytest.mark.parametrize("key_type", [("int64", ()), ("int32", ()), ("uint8", (5,))], ids=type_name)
@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.usefixtures("written")
def test_batches_that_are_counted_in_parts(threads, kind, key_type):
    """New keys, known ones, and both; the mask is true where a new key comes first."""
    rng = np.random.default_rng(13)
    first, second = PARTS[kind](rng), (PARTS[kind](rng) + KINDS // 2) % KINDS
    place = Framework("numpy", "cpu", "cpu")
    check_two_batches(place, pool_of(*key_type)[:KINDS], [first, first[::-1], second], "int64", "add", False)


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize(("op", "dtype"), [("multiply", "int32"), ("bit_xor", "uint64"), ("min", "int8")])
def test_other_operations_on_counts(kind, op, dtype):
    rng = np.random.default_rng(14)
    draws = [PARTS[kind](rng) for _ in range(2)]
    check_two_batches(Framework("numpy", "cpu", "cpu"), pool_of("int64")[:KINDS], draws, dtype, op, False)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint64"])
def test_values_narrower_than_their_counts(threads, dtype):
    """Each value takes the place of a count, and of many keys: several threads would write over what others read."""
    rng = np.random.default_rng(17)
    draws = [rng.integers(0, 60_000, 300_000) for _ in range(6)]
    check_two_batches(Framework("numpy", "cpu", "cpu"), pool_of("int64"), draws, dtype, "add", False)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.usefixtures("written")
def test_counted_keys_whose_hashes_agree(threads, dtype):
    """All lie in one part, which is larger than others and has more distinct keys than a small table."""
    numbers = np.arange(64 * KINDS + 200_000).astype(dtype)
    pool = numbers[hash_of(numbers) >> np.uint64(58) == 5][:KINDS]
    assert len(pool) == KINDS
    rng = np.random.default_rng(15)
    draws = [rng.integers(0, KINDS, MANY), rng.integers(0, KINDS, MANY)[: MANY // 2]]
    check_two_batches(Framework("numpy", "cpu", "cpu"), pool, draws, "int64", "add", False)


@pytest.mark.pairwise
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.usefixtures("written")
def test_order_of_keys_that_are_counted_in_parts(threads, kind, deterministic):
    """Equal programs get their keys in equal orders."""
    keys = pool_of("int64")[PARTS[kind](np.random.default_rng(16))]
    tables = [HashTable("int64", "int64", deterministic=deterministic, seed=5) for _ in range(2)]
    for table in tables:
        table.insert_or_apply(keys, 1, "add")
        table.insert_or_apply(keys[::2], 1, "add")
    for one, other in zip(*(table.items() for table in tables), strict=True):
        same_bytes(one, other)


@pytest.mark.parametrize(("kinds", "more"), [(1500, 35_000), (20_000, 150_000)], ids=["at once", "in parts"])
def test_each_allocation_for_counting_fails_once(kinds, more):
    """The batch is then taken as it is, or not at all if the table cannot grow; a large one has more ways to grow."""
    rng = np.random.default_rng(12)
    pool = pool_of("int64")[:kinds]
    draws = rng.permutation(np.append(np.arange(len(pool)), rng.integers(0, len(pool), more)))
    times = np.bincount(draws, minlength=len(pool))
    refused = taken = 0
    for allowed in range(60):
        memory = NumPyMemory()
        table = HashTable("int64", "int64", memory=memory)
        table.insert(pool[:100], 7)
        memory.fail_after(allowed)
        try:
            mask = table.insert_or_apply(pool[draws], 1, "add")
        except MemoryError:
            refused += 1
            assert len(table) == 100
            same_bytes(table[pool[:100]], np.full(100, 7))
            continue
        is_past_the_last = memory.calls < memory.fail_at
        memory.fail_after(None)
        taken += 1
        same_bytes(table[pool], times + np.where(np.arange(len(pool)) < 100, 7, 0))
        same_bytes(mask, is_first(draws, len(pool)) & (draws >= 100))
        if is_past_the_last:
            break
    assert is_past_the_last
    assert (refused > 0) == (kinds == 1500)
    assert taken > 2
    assert not memory.mistakes


def test_without_room(on_device):
    """A table that may not grow as far is left as it is; one that just holds all keys takes them."""
    place = on_device
    pool = pool_of("int64")
    draws = DRAWS["two-in-three"](np.random.default_rng(4))
    distinct = len(np.unique(draws))
    table = HashTable("int64", "int64", device=place.table_device, max_capacity=distinct // 2)
    table.insert(place.array(pool[:100]), 5)
    with pytest.raises(TableFullError):
        table.insert_or_apply(place.array(pool[draws]), 1, "add")
    assert len(table) == 100
    same_bytes(table[place.array(pool[:100])], np.full(100, 5))
    check_two_batches(place, pool, [draws, draws], "int64", "add", False, max_capacity=2 * distinct)


def test_order_of_slots():
    """Equal programs get their keys in equal orders."""
    keys = pool_of("int64")[DRAWS["zipf"](np.random.default_rng(5))]
    tables = [HashTable("int64", "int64") for _ in range(2)]
    for table in tables:
        table.insert_or_apply(keys, 1, "add")
    for one, other in zip(*(table.items() for table in tables), strict=True):
        same_bytes(one, other)


def scratch_places(draws: np.ndarray, values: Any, op: str) -> int:
    """Lets each piece of scratch memory fail once that counting on one thread asks for; how many there are."""
    pool = pool_of("int64")
    batch = pool[draws]
    values_of_all = np.broadcast_to(np.asarray(values), batch.shape)
    expected, new = applied(np.zeros(POOL, values_of_all.dtype), np.zeros(POOL, bool), draws, values_of_all, op)
    for place in range(20):
        table = HashTable("int64", str(values_of_all.dtype), capacity=2 * COUNT)
        _core.inject_failure("scratch", place)
        try:
            mask = table.insert_or_apply(batch, values, op)
        finally:
            is_past_the_last = _core.inject_failure("scratch", -1)
        np.testing.assert_array_equal(mask, new)
        same_bytes(table[pool[np.unique(draws)]], expected[np.unique(draws)])
        if is_past_the_last:
            return place
    pytest.fail("20 places were not enough")


def test_scratch_memory_fails():
    """Hot keys are then taken as others are. Nothing but merging asks for memory on one thread."""
    before = gpuhash.get_num_threads()
    gpuhash.set_num_threads(1)
    try:
        rng = np.random.default_rng(6)
        hot, even = DRAWS["two-in-three"](rng), rng.integers(0, POOL, COUNT)
        while_chosen = scratch_places(even, 1, "add")
        assert scratch_places(hot, 1, "add") >= while_chosen + 3
        assert scratch_places(hot, rng.integers(0, 9, COUNT), "max") >= while_chosen + 3
        assert scratch_places(hot, rng.standard_normal(COUNT), "add") == 0
        assert scratch_places(hot[: (1 << 16) - 1], 1, "add") == 0
        assert scratch_places(rng.integers(0, 1000, COUNT), rng.integers(0, 9, COUNT), "add") == while_chosen
    finally:
        gpuhash.set_num_threads(before)


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from gpuhash import HashTable

signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(8)
few = np.where(rng.random(1 << 22) < 0.4, rng.integers(0, 30, 1 << 22), rng.integers(0, 1 << 20, 1 << 22))
keys = np.tile(few.astype(np.int32), 8)
ones, mask = np.ones(len(keys), np.int32), np.empty(len(keys), bool)
table = HashTable("int32", "int32", capacity=1 << 26)  # has room for all of them, so that nobody counts them first
thread = threading.Thread(target=lambda: (time.sleep(0.05), os.kill(os.getpid(), signal.SIGINT)))
thread.start()
try:
    table.insert_or_apply(keys, ones, "add", out=mask)
    sys.exit("it was not interrupted")
except KeyboardInterrupt:
    pass
thread.join()
got, counts = table.items()
done = counts.sum()
assert 0 < done < len(keys), done
expected, times = np.unique(keys[:done], return_counts=True)
order = np.argsort(got)
assert np.array_equal(got[order], expected)
assert np.array_equal(counts[order], times)
"""


def test_interrupted():
    """What is done by then is a first part of the batch."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "GPUHASH_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
