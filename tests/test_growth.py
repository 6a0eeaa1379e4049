"""Growth, fixed capacity, reserve, rehash, shrink_to_fit."""

from __future__ import annotations

import argparse
import ast
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from support.frameworks import to_numpy
from support.hidden_keys import hidden_numbers, key_of
from support.items import Items
from support.memory_resources import NumPyMemory
from support.samples import random_keys, random_values, same_bytes
from support.tuning import partitioned

import gpuhash
from gpuhash import HashSet, HashTable, TableFullError


@pytest.mark.parametrize(
    ("key_type", "value_type"),
    [
        (("int64", ()), ("int64", ())),
        (("int32", ()), ("float32", ())),
        (("int32", (3,)), ("float32", ())),
        (("int64", ()), ("float32", (3,))),
    ],
    ids=["int64-int64", "int32-float32", "int32x3-float32", "int64-row3"],
)
def test_grows_from_empty(native, key_type, value_type):
    """2^20 keys in odd batches; nothing is lost on the way."""
    (key_dtype, key_shape), (value_dtype, value_shape) = key_type, value_type
    keys = random_keys(key_dtype, key_shape, 1 << 20)
    values = random_values(value_dtype, (len(keys), *value_shape))
    table = HashTable(key_dtype, value_dtype, key_shape=key_shape, value_shape=value_shape, device=native.table_device)
    start, size = 0, 1
    while start < len(keys):
        stop = min(start + size, len(keys))
        table[native.array(keys[start:stop])] = native.array(values[start:stop])
        assert len(table) == stop
        assert table.load_factor <= table.max_load_factor + 1e-9
        start, size = stop, size * 3 + 1
    assert table.capacity < 4 * len(keys) / table.max_load_factor
    same_bytes(table[native.array(keys)], values)
    assert Items.held_by(table) == Items.last_of(keys, values)


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
def test_capacity_follows_distinct_keys(on_device, method, value_shape):
    draws = 100_000_000 if on_device.table_device != "cpu" else 1_000_000
    keys = np.random.default_rng(0).integers(0, 1000, draws)
    table = HashTable("int64", "int64", value_shape=value_shape, device=on_device.table_device)
    arguments = ("add",) if method == "insert_or_apply" else ()
    getattr(table, method)(on_device.array(keys), 1, *arguments)
    assert len(table) == 1000
    assert table.capacity < 8192
    if method == "insert_or_apply":
        counts = np.bincount(keys).reshape(1000, *(1,) * len(value_shape))
        expected = np.broadcast_to(counts, (1000, *value_shape))
        same_bytes(table[on_device.array(np.arange(1000))], expected.astype(np.int64))


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_known_keys_never_grow(native, value_shape):
    keys = random_keys("int64", (), 3000)
    table = HashTable("int64", "int64", value_shape=value_shape, device=native.table_device)
    table[native.array(keys)] = 1
    capacity = table.capacity
    for _ in range(10):
        table[native.array(keys)] = 2
        table.insert_or_apply(native.array(np.repeat(keys, 5)), 1, "add")
        table.insert(native.array(keys), 3)
        table.setdefault(native.array(keys), 3)
    assert table.capacity == capacity
    assert len(table) == len(keys)


@pytest.mark.parametrize("capacity", [1, 8, 100, 1000, 40_000])
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("key_shape", [(), (2,)], ids=["scalar-keys", "vector-keys"])
def test_fixed_capacity_fills_to_the_last_slot(native, capacity, key_shape, value_shape):
    table = HashTable(
        "int64",
        "int64",
        key_shape=key_shape,
        value_shape=value_shape,
        device=native.table_device,
        capacity=capacity,
        growth=False,
    )
    slots = table.capacity
    assert slots >= capacity
    assert table.max_capacity == slots
    keys = np.random.default_rng(1).integers(-(1 << 62), 1 << 62, (slots + 1, *key_shape))
    values = random_values("int64", (slots + 1, *value_shape))
    table[native.array(keys[:slots])] = native.array(values[:slots])
    assert len(table) == slots
    assert table.load_factor == 1.0
    before = Items.last_of(keys[:slots], values[:slots])
    assert Items.held_by(table) == before
    same_bytes(table.find(native.array(keys))[1], np.arange(slots + 1) < slots)
    for call in (
        lambda: table.__setitem__(native.array(keys), 0),
        lambda: table.insert(native.array(keys[::-1]), 0),
        lambda: table.insert_or_apply(native.array(keys), 1, "add"),
        lambda: table.setdefault(native.array(keys), 0),
    ):
        with pytest.raises(TableFullError, match="capacity"):
            call()
        assert Items.held_by(table) == before
        assert table.capacity == slots
    table[native.array(keys[:slots])] = native.array(values[:slots])  # known keys still have room
    table.insert_or_apply(native.array(np.repeat(keys[:slots], 2, axis=0)), 0, "add")
    assert Items.held_by(table) == before
    assert to_numpy(table.erase(native.array(keys[:1]))).all()
    table[native.array(keys[slots:])] = native.array(values[slots:])
    assert Items.held_by(table) == Items.last_of(keys[1:], values[1:])
    assert to_numpy(table.erase(native.array(keys))).sum() == slots
    assert len(table) == 0


def test_max_capacity_grows_up_to_it(native):
    table = HashTable("int64", "int64", device=native.table_device, capacity=64, max_capacity=5000)
    assert table.capacity < 5000
    limit = table.max_capacity
    assert limit >= 5000
    keys = random_keys("int64", (), limit)
    for batch in np.array_split(keys, 17):
        table[native.array(batch)] = 1
    assert len(table) == limit
    assert table.capacity == limit
    with pytest.raises(TableFullError):
        table[native.array(np.array([123456789]))] = 1
    assert len(table) == limit


def test_duplicates_of_the_last_room(native):
    """A batch of many duplicates whose distinct keys just fit is no full table."""
    table = HashTable("int64", "int64", device=native.table_device, capacity=100, growth=False)
    slots = table.capacity
    keys = np.random.default_rng(0).permutation(np.repeat(np.arange(slots), 50))
    table.insert_or_apply(native.array(keys), 1, "add")
    assert len(table) == slots
    same_bytes(table[native.array(np.arange(slots))], np.full(slots, 50))
    with pytest.raises(TableFullError):
        table.insert_or_apply(native.array(np.append(keys, slots)), 1, "add")
    same_bytes(table[native.array(np.arange(slots))], np.full(slots, 50))


def with_method(table, method, keys):
    getattr(table, method)(keys, 1, *(["add"] if method == "insert_or_apply" else []))


@pytest.mark.parametrize("capacity", [800, 980, 996, 1000])
@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
def test_copies_of_a_new_key_fill_no_table_that_has_room(native, method, capacity):
    """A table nearly as large as it may become; the copies alone would be too many."""
    table = HashTable(
        "int64", "int64", device=native.table_device, capacity=capacity, max_capacity=1000, max_load_factor=0.95
    )
    size = int(0.95 * table.capacity) - 1
    table[native.array(np.arange(size))] = 1
    with_method(table, method, native.array(np.full(100, -5)))
    assert len(table) == size + 1
    assert Items.held_by(table) == Items.last_of(
        np.append(np.arange(size), -5), np.append(np.ones(size, np.int64), 100 if method == "insert_or_apply" else 1)
    )
    rest = np.arange(size, table.max_capacity - 1)
    with_method(table, method, native.array(np.repeat(rest, 3)))  # now it is full
    assert len(table) == table.max_capacity
    with pytest.raises(TableFullError):
        with_method(table, method, native.array(np.full(2, -6)))
    assert len(table) == table.max_capacity


@pytest.mark.parametrize("planned", [False, True], ids=["as-usual", "partitioned"])
@pytest.mark.parametrize("capacity", [0, 600_000, 1_048_576, 1_050_616])
@pytest.mark.parametrize("method", ["insert_or_assign", "insert_or_apply"])
def test_copies_in_a_large_batch_fill_no_table_that_has_room(on_device, method, capacity, planned):
    """1,040,000 distinct keys fit, and 60,000 copies of one of them take no room."""
    if planned and on_device.table_device == "cpu":
        pytest.skip("only GPU tables choose by the size of the batch")
    distinct, copies = 1_040_000, 60_000
    keys = np.random.default_rng(0).permutation(np.concatenate([np.arange(distinct), np.full(copies, 77)]))
    table = HashTable("int64", "int64", device=on_device.table_device, capacity=capacity, max_capacity=1_050_616)
    with partitioned(planned):
        with_method(table, method, on_device.array(keys))
        assert len(table) == distinct
        more = np.arange(distinct, distinct + 20_000)
        with pytest.raises(TableFullError):
            with_method(table, method, on_device.array(more))
    expected = np.ones(distinct, np.int64)
    expected[77] = copies + 1 if method == "insert_or_apply" else 1
    same_bytes(table[on_device.array(np.arange(distinct))], expected)
    assert not to_numpy(table.contains(on_device.array(more))).any()


WITHIN = {
    "int64": {},
    "int32": {"key_dtype": "int32", "value_dtype": "int32"},
    "deterministic": {"deterministic": True},
    "max-capacity": {"max_capacity": 1 << 23},
    "half-full": {"max_load_factor": 0.5, "capacity": 1_210_000},
    "full": {"max_load_factor": 1.0, "capacity": 800_000},
    "rows": {"value_shape": (2,)},
}


@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
@pytest.mark.parametrize("kind", WITHIN)
def test_grows_within_a_batch(threads, kind, method):
    """Of which a sample shows no new key; its duplicates lie on both sides of the place where the table grows."""
    if threads != 2 and kind != "int64":
        pytest.skip("every number of threads with one kind of table")
    known, new, count = 600_000, 250_000, 1 << 19
    options = {"key_dtype": "int64", "value_dtype": "int64", "capacity": 800_000, **WITHIN[kind]}
    table = HashTable(**options)
    shape = (count, *options.get("value_shape", ()))
    numbers = hidden_numbers(known, new, count)
    keys = key_of(np.arange(known + new)).astype(options["key_dtype"])
    table.insert(keys[:known], 5)
    capacity = table.capacity
    values = np.random.default_rng(1).integers(-9, 9, shape).astype(options["value_dtype"])

    inserted = getattr(table, method)(keys[numbers], values, *(["add"] if method == "insert_or_apply" else []))

    first, last = (np.zeros(known + new, np.int64) for _ in range(2))
    first[numbers[::-1]] = np.arange(count)[::-1]
    last[numbers] = np.arange(count)
    drawn = np.bincount(numbers, minlength=known + new) > 0
    same_bytes(inserted, (numbers >= known) & (np.arange(count) == first[numbers]))
    expected = np.full((known + new, *shape[1:]), 5, values.dtype)
    if method == "insert":
        expected[known:] = values[first[known:]]
    elif method == "insert_or_assign":
        expected[drawn] = values[last[drawn]]
    else:
        expected[known:] = 0
        np.add.at(expected, numbers, values)
    assert len(table) == known + new
    same_bytes(table[keys], expected)
    assert table.capacity > capacity
    assert table.load_factor <= table.max_load_factor + 1e-9
    assert not table.contains(key_of(np.arange(-1000, 0)).astype(keys.dtype)).any()


AHEAD = {
    "int64": {},
    "int32": {"key_dtype": "int32", "value_dtype": "int32"},
    "16 bytes": {"key_shape": (2,)},
    "half-full": {"max_load_factor": 0.5},
}


@pytest.mark.parametrize("kind", AHEAD)
def test_grows_ahead_of_the_next_batches(threads, kind):
    """Where a large batch is new, and the table not much larger; never emptier than doubling might leave it."""
    if threads != 2 and kind != "int64":
        pytest.skip("every number of threads with one kind of table")
    options = {"key_dtype": "int64", "value_dtype": "int64", **AHEAD[kind]}
    count, batches = 1 << 17, 8
    keys = key_of(np.arange(batches * count)).astype(options["key_dtype"])
    if "key_shape" in options:
        keys = np.stack([keys, keys[::-1]], axis=1)
    values = np.arange(len(keys)).astype(options["value_dtype"])
    table = HashTable(**options)
    capacities = []
    for first in range(0, len(keys), count):
        part = slice(first, first + count)
        assert table.insert_or_apply(keys[part], values[part], "add").all()
        capacities.append(table.capacity)
        assert 0.49 * table.max_load_factor < table.load_factor <= table.max_load_factor or first == 0
    same_bytes(table[keys], values)
    assert len(table) == len(keys)
    # Room for the first batch, after the second one for four, and then for twice as many.
    changes = [n for n in range(batches) if n == 0 or capacities[n] != capacities[n - 1]]
    assert changes == [0, 1, 4]
    assert capacities[1] < 1.01 * 4 * count / table.max_load_factor


@pytest.mark.parametrize("most", [300_000, 500_000, 660_000])
def test_does_not_grow_ahead_beyond_max_capacity(most):
    table = HashTable("int64", "int64", max_capacity=most)
    keys = key_of(np.arange(1 << 20))
    count = 1 << 17
    batches = table.max_capacity // count
    for n in range(batches):
        table.insert(keys[n * count : (n + 1) * count], n)
        assert table.capacity <= table.max_capacity
    same_bytes(table[keys[: batches * count]], np.repeat(np.arange(batches), count))
    with pytest.raises(TableFullError):
        table.insert(keys[batches * count : (batches + 1) * count], -1)
    assert len(table) == batches * count
    assert not table.contains(keys[batches * count :]).any()


def test_sets_grow_within_a_batch(threads):
    known, new, count = 600_000, 250_000, 1 << 19
    made = HashSet("int64", capacity=800_000)
    made.add(key_of(np.arange(known)))
    numbers = hidden_numbers(known, new, count)
    assert made.add(key_of(numbers)).sum() == new
    assert len(made) == known + new
    assert made.contains(key_of(np.arange(known + new))).all()


@pytest.mark.parametrize("new", [0, 1, 300])
def test_known_keys_of_a_large_batch_do_not_grow(threads, new):
    """However full the table is, within its limit."""
    known, count = 900_000, 1 << 20
    table = HashTable("int64", "int64", capacity=1_126_500)
    table.insert(key_of(np.arange(known)), 0)
    capacity = table.capacity
    assert known + 300 < 0.8 * capacity < known + 2000
    numbers = hidden_numbers(known, new, count)
    for _ in range(2):
        table.insert_or_apply(key_of(numbers), 1, "add")
        assert table.capacity == capacity
    same_bytes(table[key_of(np.arange(known + new))], 2 * np.bincount(numbers, minlength=known + new))


def after_known_batches(count: int, load: float, **options) -> HashTable:
    """A table whose last two batches were all of its keys, key_of(0) to key_of(count - 1)."""
    table = HashTable("int64", "int64", capacity=int(count / load), **options)
    known = key_of(np.arange(count))
    for n in range(3):
        assert table.insert_or_assign(known, n).sum() == (0 if n else count)
    return table


@pytest.mark.pairwise
@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
@pytest.mark.parametrize("load", [0.45, 0.5, 0.78])
@pytest.mark.parametrize("count", [1000, 1024, 5000, 70_000, 140_000])
def test_a_batch_after_known_ones(threads, count, load, method):
    """Its keys are thought to be there, so nobody looks; some are not, at its begin, at its end, or all over it."""
    rng = np.random.default_rng(count)
    where = np.arange(count)
    for is_new in (where < 0, where == 0, where >= count // 8, where < count // 2, rng.random(count) < 0.3, where >= 0):
        table = after_known_batches(count, load)
        capacity = table.capacity
        numbers = rng.permutation(count)
        numbers[is_new] = count + rng.integers(0, 1 + count * 3 // 4, is_new.sum())  # copies among them
        values = rng.integers(-9, 9, count)
        inserted = getattr(table, method)(key_of(numbers), values, *(["add"] if method == "insert_or_apply" else []))

        expected, present = np.full(2 * count, 2), np.arange(2 * count) < count
        drawn, first = np.unique(numbers, return_index=True)
        last = count - 1 - np.unique(numbers[::-1], return_index=True)[1]
        is_first = np.zeros(count, bool)
        is_first[first] = True
        same_bytes(inserted, (numbers >= count) & is_first)
        if method == "insert":
            expected[drawn[drawn >= count]] = values[first[drawn >= count]]
        elif method == "insert_or_assign":
            expected[drawn] = values[last]
        else:
            expected[count:] = 0
            np.add.at(expected, numbers, values)
        present[drawn] = True
        found, is_there = table.find(key_of(np.arange(2 * count)))
        same_bytes(is_there, present)
        same_bytes(found[present], expected[present])
        assert len(table) == present.sum()
        assert table.load_factor <= table.max_load_factor + 1e-9
        assert table.capacity == capacity or present.sum() > 0.8 * capacity


@pytest.mark.parametrize("load", [0.5, 0.78])
def test_each_allocation_after_known_batches_fails_once(load):
    count = 5000
    numbers = np.random.default_rng(1).permutation(2 * count)  # half of them new, twice as many as there is room for
    for place in range(10):
        memory = NumPyMemory()
        table = after_known_batches(count, load, memory=memory)
        memory.fail_after(place)
        try:
            table.insert_or_apply(key_of(numbers), np.ones(2 * count, np.int64), "add")
            failed = False
        except MemoryError:
            failed = True
        assert not failed or load == 0.78  # where there is room for parts the batch gets in without more memory
        memory.fail_after(None)
        sizes = np.arange(2 * count)
        expected = np.where(sizes < count, 2, 0) + (0 if failed else 1)
        same_bytes(table.find(key_of(sizes))[0], expected)
        assert len(table) == (count if failed else 2 * count)
        table.insert_or_apply(key_of(numbers), np.ones(2 * count, np.int64), "add")
        same_bytes(table[key_of(sizes)], expected + 1)
        del table
        assert (memory.blocks, memory.mistakes) == ({}, [])


def test_special_keys_do_not_take_room_of_others(native):
    from support.samples import special_keys

    table = HashTable("int64", "int64", device=native.table_device, capacity=64, growth=False)
    slots = table.capacity
    special = special_keys("int64")
    keys = np.concatenate([special, np.arange(1000, 1000 + slots)])[:slots]
    table[native.array(keys[::-1])] = native.array(np.arange(slots))
    same_bytes(table[native.array(keys[::-1])], np.arange(slots))


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_reserve_makes_room(native, value_shape):
    table = HashTable("int64", "int64", value_shape=value_shape, device=native.table_device)
    table[native.array(np.arange(10))] = 1
    table.reserve(50_000)
    capacity = table.capacity
    assert capacity * table.max_load_factor >= 50_000
    assert len(table) == 10
    for batch in np.array_split(np.arange(10, 50_000), 13):
        table[native.array(batch)] = 1
    assert table.capacity == capacity
    assert len(table) == 50_000
    table.reserve(5)  # never shrinks
    assert table.capacity == capacity


def test_reserve_beyond_max_capacity(device):
    table = HashTable("int64", "int64", device=device, capacity=100, growth=False)
    with pytest.raises((TableFullError, ValueError)):
        table.reserve(100_000)
    with pytest.raises((TableFullError, ValueError)):
        table.rehash(100_000)


@pytest.mark.parametrize("value_shape", [(), (5,)], ids=["scalar", "rows"])
def test_rehash_and_shrink(native, value_shape):
    keys = random_keys("int64", (), 20_000)
    values = random_values("float32", (20_000, *value_shape))
    table = HashTable("int64", "float32", value_shape=value_shape, device=native.table_device)
    table[native.array(keys)] = native.array(values)
    table.rehash(200_000)
    assert table.capacity >= 200_000
    assert Items.held_by(table) == Items.last_of(keys, values)
    table.erase(native.array(keys[100:]))
    large = table.nbytes
    table.shrink_to_fit()
    assert table.capacity < 1000
    assert table.nbytes < large / 10
    assert Items.held_by(table) == Items.last_of(keys[:100], values[:100])
    table.rehash()
    assert Items.held_by(table) == Items.last_of(keys[:100], values[:100])
    table[native.array(keys)] = native.array(values)
    assert Items.held_by(table) == Items.last_of(keys, values)


def test_max_load_factor_can_be_set(native):
    table = HashTable("int64", "int64", device=native.table_device, max_load_factor=0.5)
    table[native.array(np.arange(10_000))] = 1
    assert table.load_factor <= 0.5
    table.max_load_factor = 0.9
    assert table.max_load_factor == 0.9
    table[native.array(np.arange(100_000))] = 1
    assert table.load_factor <= 0.9
    assert table.load_factor == len(table) / table.capacity
    for factor in (0, -1, 1.01, float("nan")):
        with pytest.raises(ValueError, match="load"):
            table.max_load_factor = factor
    assert table.max_load_factor == 0.9


def test_load_factor_of_one_still_finds(native):
    table = HashTable("int64", "int64", device=native.table_device, max_load_factor=1.0)
    for batch in np.array_split(np.arange(30_000), 30):
        table[native.array(batch)] = native.array(batch)
    same_bytes(table[native.array(np.arange(30_000))], np.arange(30_000))
    assert not to_numpy(table.contains(native.array(np.arange(30_000, 60_000)))).any()


def test_load_factor_of_one_leaves_slots_free(native, tmp_path):
    """Where the table picks its slots: the last keys of a full one would look through most of it."""
    numbers = random_keys("int64", (), 2000)
    keys = native.array(numbers)
    options = {"device": native.table_device, "max_load_factor": 1.0}
    filled, reserved = (HashTable("int64", "int64", **options) for _ in range(2))
    filled[keys] = keys
    reserved.reserve(len(keys))
    wide = HashTable("int64", "int64", capacity=20_000, **options)
    wide[keys] = keys
    wide.save(tmp_path / "wide")
    wide.shrink_to_fit()
    loaded = HashTable.load(tmp_path / "wide", device=native.table_device)
    for table in (filled, reserved, wide, loaded):
        assert len(keys) / 0.95 <= table.capacity < len(keys) / 0.95 + 8
        assert table.max_load_factor == 1.0
        table[keys] = keys
        assert Items.held_by(table) == Items.last_of(numbers, numbers)
    # What the caller picks stays, to the last slot.
    exact = HashTable("int64", "int64", capacity=2000, **options)
    bounded = HashTable("int64", "int64", max_capacity=2000, **options)
    for table in (exact, bounded):
        table[keys] = keys
        table.reserve(len(keys))
        assert table.load_factor == 1.0
        assert Items.held_by(table) == Items.last_of(numbers, numbers)


def test_sets_grow_and_fill_up(native):
    made = HashSet("int32", device=native.table_device)
    keys = random_keys("int32", (), 100_000)
    for batch in np.array_split(keys, 11):
        made.add(native.array(batch))
    assert len(made) == len(keys)
    fixed = HashSet("int32", device=native.table_device, capacity=100, growth=False)
    fixed.add(native.array(keys[: fixed.capacity]))
    with pytest.raises(TableFullError):
        fixed.add(native.array(keys[: fixed.capacity + 1]))
    assert len(fixed) == fixed.capacity


ENDLESS = {
    "load-factor": "gpuhash.HashTable('int64', 'int64', max_load_factor=1e-30)[[1, 2, 3]] = 1",
    "load-factor-of-a-set": "gpuhash.HashSet('int64', max_load_factor=5e-324).add([1, 2, 3])",
    "load-factor-is-set": "table.max_load_factor = 1e-30; table[list(range(1000))] = 1",
    "load-factor-and-reserve": "table.max_load_factor = 1e-30; table.reserve(1000)",
    "reserve": "gpuhash.HashTable('int64', 'int64', max_load_factor=0.4).reserve((1 << 62) - 1)",
    "reserve-rows": "gpuhash.HashTable('int64', 'int64', value_shape=(3,), max_load_factor=0.4).reserve((1 << 62) - 1)",
    "reserve-a-set": "gpuhash.HashSet('int64', max_capacity=(1 << 62) - 1).reserve((1 << 62) - 1)",
    "reserve-all": "table.reserve((1 << 63) - 1)",
    "rehash": "table.rehash((1 << 63) - 1)",
    "capacity": "gpuhash.HashTable('int64', 'int64', capacity=(1 << 63) - 1, max_load_factor=0.4)",
}


@pytest.mark.parametrize("statement", ENDLESS.values(), ids=ENDLESS)
def test_no_number_hangs_the_process(statement):
    program = f"""
import gpuhash
table = gpuhash.HashTable("int64", "int64", max_load_factor=0.4)
table[[1, 2, 3]] = 5
before = table.max_load_factor
try:
    {statement}
except (ValueError, MemoryError) as error:
    print("refused:", error)
table.max_load_factor = before
assert sorted(table) == [1, 2, 3], list(table)
table[list(range(100))] = 6
assert len(table) == 100
print("whole")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, *rest = done.stdout.splitlines()
    assert refused.startswith("refused: ")
    assert len(refused) > len("refused: ")
    assert rest == ["whole"]


def batch_of(kind: str, n: int) -> np.ndarray:
    """Numbers of n keys. Of the last kind there are more than their beginning lets expect."""
    rng = np.random.default_rng(n)
    if kind == "n-grams":
        text = b"".join(Path(inspect.getfile(module)).read_bytes() for module in (argparse, ast, inspect))
        letters = np.resize(np.frombuffer(text, np.uint8), n + 7)
        return np.ascontiguousarray(sliding_window_view(letters, 8)).view(np.int64).ravel()
    if kind == "distinct":
        return rng.permutation(n)
    if kind == "zipf":
        return np.minimum(rng.zipf(1.2, n), 1 << 40)
    few = rng.integers(0, 50, n)
    return np.concatenate([few[: n // 4], rng.permutation(n - n // 4)] if kind == "few, then distinct" else [few])


@pytest.mark.parametrize("kind", ["distinct", "zipf", "n-grams", "few", "few, then distinct"])
@pytest.mark.parametrize("n", [(1 << 14) - 1, 1 << 14, (1 << 16) + 3, 1 << 17, (1 << 18) + 5])
def test_new_keys_of_middle_batches_are_guessed(native, n, kind):
    """Empty tables and such that have some of the keys get more room, less, or twice: nothing is lost."""
    numbers = batch_of(kind, n)
    expected, counts = np.unique(numbers, return_counts=True)
    keys = key_of(numbers)
    order = np.argsort(key_of(expected))
    for known in (0, 1000, len(expected)):
        first = key_of(expected[:known])
        table = HashTable("int64", "int64", device=native.table_device)
        table.insert(native.array(first), 0)
        was_new = to_numpy(table.insert_or_apply(native.array(keys), 1, "add"))
        assert was_new.sum() == len(expected) - len(first)
        found, sums = (to_numpy(part) for part in table.items())
        if known == 0 and native.table_device == "cpu":  # a guess that was far too large was mended
            assert table.capacity <= 6 * len(expected) + 64
        places = np.argsort(found)
        np.testing.assert_array_equal(found[places], key_of(expected)[order])
        np.testing.assert_array_equal(sums[places], counts[order])
        last = HashTable("int64", "int64", device=native.table_device)
        last[native.array(first)] = -1
        last[native.array(keys)] = native.array(np.zeros(n, np.int64))
        assert len(last) == len(expected)
        assert (to_numpy(last[native.array(keys)]) == 0).all()


@pytest.mark.parametrize("part", [2.5, 3, 8])
def test_a_guess_does_not_make_a_table_grow_that_has_room(part):
    """Uniform keys, of which a sample hardly has any twice: they look as if all were distinct, or nearly so."""
    n = 1 << 20
    for seed in range(4):
        keys = np.random.default_rng(seed).integers(0, int(n / part), n)
        table = HashTable("int64", "int64", capacity=int(2 * n / part))
        capacity = table.capacity
        table.insert(keys, keys)
        assert len(table) == len(np.unique(keys))
        assert table.capacity == capacity, seed
        same_bytes(table[keys], keys)


@pytest.mark.parametrize("method", ["insert", "insert_or_apply", "assign"])
@pytest.mark.parametrize("distinct", ["an eighth", 20])
@pytest.mark.parametrize("count", [2047, 2048, 3000, 8191, 8192, 16_383])
def test_copies_in_small_batches_do_not_make_a_table_grow_that_has_room(count, distinct, method):
    kinds = count // 8 if distinct == "an eighth" else distinct
    table = HashTable("int64", "int64", device="cpu", capacity=2 * kinds)
    capacity = table.capacity
    keys = key_of(np.random.default_rng(count).integers(0, kinds, count))
    for _ in range(3):
        if method == "assign":
            table[keys] = 1
        else:
            getattr(table, method)(keys, 1, *(("add",) if method == "insert_or_apply" else ()))
    values, counts = np.unique(keys, return_counts=True)
    assert len(table) == len(values)
    assert table.capacity == capacity
    same_bytes(table[values], 3 * counts if method == "insert_or_apply" else np.ones_like(counts))


def test_table_full_error_is_public():
    assert issubclass(gpuhash.TableFullError, RuntimeError)


@pytest.mark.parametrize("method", ["insert", "insert_or_apply", "assign"])
@pytest.mark.parametrize("distinct", [1, 1000])
@pytest.mark.parametrize("count", [(1 << 16) + 1, (1 << 19) + 3])
def test_few_keys_of_a_large_batch_leave_a_small_table(threads, count, distinct, method):
    """An empty table gets room for an eighth of the batch meanwhile."""
    numbers = np.random.default_rng(count).integers(0, distinct, count)
    numbers[:distinct] = np.arange(distinct)
    keys, values = key_of(numbers), np.arange(count) % 7
    table = HashTable("int64", "int64", device="cpu")
    if method == "assign":
        table[keys] = values
    else:
        getattr(table, method)(keys, values, *(("add",) if method == "insert_or_apply" else ()))
    assert len(table) == distinct
    assert table.capacity <= 2 * distinct + 64
    if method == "insert_or_apply":
        same_bytes(table[key_of(np.arange(distinct))], np.bincount(numbers, values).astype(np.int64))
    else:
        got = table[keys]
        assert np.isin(numbers * 7 + got, np.unique(numbers * 7 + values)).all()
        assert (table[key_of(np.arange(distinct))][numbers] == got).all()


@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
@pytest.mark.parametrize("count", [1 << 14, 1 << 17, 1_000_000])
def test_batches_of_the_same_few_keys_leave_a_small_table(threads, count, method):
    """Each such batch doubled the table, up to a sixth of the batch: 160,000 slots for 1000 keys."""
    table = HashTable("int64", "int64", device="cpu")
    rng = np.random.default_rng(0)
    expected = np.zeros(1000, np.int64)
    for _ in range(8):
        numbers = rng.integers(0, 1000, count)
        numbers[:1000] = np.arange(1000)
        getattr(table, method)(key_of(numbers), numbers, *(("add",) if method == "insert_or_apply" else ()))
        expected += np.bincount(numbers, numbers).astype(np.int64)
    assert len(table) == 1000
    assert table.capacity <= 4096
    same_bytes(table[key_of(np.arange(1000))], expected if method == "insert_or_apply" else np.arange(1000))
