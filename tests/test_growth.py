"""Growth, fixed capacity, reserve, rehash, shrink_to_fit."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import to_numpy
from samples import as_dict, items_of, random_keys, random_values, same_bytes

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
    assert items_of(table) == as_dict(keys, values)


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
    before = as_dict(keys[:slots], values[:slots])
    assert items_of(table) == before
    same_bytes(table.find(native.array(keys))[1], np.arange(slots + 1) < slots)
    for call in (
        lambda: table.__setitem__(native.array(keys), 0),
        lambda: table.insert(native.array(keys[::-1]), 0),
        lambda: table.insert_or_apply(native.array(keys), 1, "add"),
        lambda: table.setdefault(native.array(keys), 0),
    ):
        with pytest.raises(TableFullError, match="capacity"):
            call()
        assert items_of(table) == before
        assert table.capacity == slots
    table[native.array(keys[:slots])] = native.array(values[:slots])  # known keys still have room
    table.insert_or_apply(native.array(np.repeat(keys[:slots], 2, axis=0)), 0, "add")
    assert items_of(table) == before
    assert to_numpy(table.erase(native.array(keys[:1]))).all()
    table[native.array(keys[slots:])] = native.array(values[slots:])
    assert items_of(table) == as_dict(keys[1:], values[1:])
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


def test_special_keys_do_not_take_room_of_others(native):
    from samples import special_keys

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
    assert items_of(table) == as_dict(keys, values)
    table.erase(native.array(keys[100:]))
    large = table.nbytes
    table.shrink_to_fit()
    assert table.capacity < 1000
    assert table.nbytes < large / 10
    assert items_of(table) == as_dict(keys[:100], values[:100])
    table.rehash()
    assert items_of(table) == as_dict(keys[:100], values[:100])
    table[native.array(keys)] = native.array(values)
    assert items_of(table) == as_dict(keys, values)


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


def test_table_full_error_is_public():
    assert issubclass(gpuhash.TableFullError, RuntimeError)
