"""erase, del, pop, popitem, and tables that erase and insert for ever: against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.samples import BATCH_SIZES, as_dict, items_of, random_keys, random_values, same_bytes

from gpuhash import HashTable


@pytest.mark.parametrize("count", BATCH_SIZES)
def test_erase_batches_of_any_size(native, count):
    keys = random_keys("int64", (), max(count, 1))[:count]
    values = random_values("int32", (count,))
    table = HashTable("int64", "int32", device=native.table_device)
    table[native.array(keys)] = native.array(values)
    mask = table.erase(native.array(keys[::2]))
    assert native.owns(mask)
    same_bytes(mask, np.ones(len(keys[::2]), bool))
    assert items_of(table) == as_dict(keys[1::2], values[1::2])
    same_bytes(table.erase(native.array(keys)), np.arange(count) % 2 == 1)
    assert len(table) == 0


def test_erase_in_every_framework(place):
    table = HashTable("int64", "float32", device=place.table_device)
    table[place.array(np.arange(100))] = 1
    mask = table.erase(place.array(np.arange(50, 150)))
    assert place.owns(mask)
    same_bytes(mask, np.arange(50, 150) < 100)
    assert sorted(to_numpy(table.keys()).tolist()) == list(range(50))


def test_duplicates_are_erased_once(native):
    table = HashTable("int64", "float32", value_shape=(3,), device=native.table_device)
    table[native.array(np.arange(100))] = 1
    keys = np.random.default_rng(0).integers(50, 150, 5000)
    mask = to_numpy(table.erase(native.array(keys)))
    assert sorted(keys[mask].tolist()) == sorted(set(keys[keys < 100].tolist()))
    assert len(table) == 100 - mask.sum()


def test_erase_into_out_and_python_keys(native):
    table = HashTable("int64", "int64", device=native.table_device)
    table[native.array(np.arange(5))] = 1
    mask = native.array(np.zeros(3, bool))
    assert table.erase(native.array(np.array([1, 9, 3])), out=mask) is mask
    same_bytes(mask, np.array([True, False, True]))
    assert table.erase(0) is True
    assert table.erase(0) is False


def test_del(place):
    table = HashTable("int64", "int64", device=place.table_device)
    table[place.array(np.arange(10))] = place.array(np.arange(10))
    del table[place.array(np.array([1, 3, 5]))]
    del table[7]
    assert sorted(to_numpy(table.keys()).tolist()) == [0, 2, 4, 6, 8, 9]
    before = items_of(table)
    with pytest.raises(KeyError, match="77"):
        del table[place.array(np.array([2, 77, 4]))]
    assert items_of(table) == before, "del erased some keys although one was absent"
    with pytest.raises(KeyError, match="78"):
        del table[78]


def test_pop(native):
    table = HashTable("int64", "int64", device=native.table_device)
    table[native.array(np.arange(10))] = native.array(np.arange(10) * 10)
    assert table.pop(3) == 30
    assert table.pop(3, None) is None
    assert table.pop(3, "gone") == "gone"
    with pytest.raises(KeyError, match="3"):
        table.pop(3)
    got = table.pop(native.array(np.array([1, 2])))
    assert native.owns(got)
    same_bytes(got, np.array([10, 20]))
    before = items_of(table)
    with pytest.raises(KeyError):
        table.pop(native.array(np.array([4, 1])))
    assert items_of(table) == before
    same_bytes(table.pop(native.array(np.array([4, 1])), -1), np.array([40, -1]))
    assert sorted(to_numpy(table.keys()).tolist()) == [0, 5, 6, 7, 8, 9]


def test_popitem_empties_the_table(device):
    table = HashTable("int32", "float64", device=device)
    model = {7: 1.5, -8: 2.5, 0: 0.0}
    table.update(model)
    popped = [table.popitem() for _ in range(3)]
    assert dict(popped) == model
    with pytest.raises(KeyError):
        table.popitem()


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_sliding_window_for_ever(native, value_shape):
    """Always new keys: 2000 at a time, the oldest leave. The capacity may not grow."""
    table = HashTable("int64", "int64", value_shape=value_shape, device=native.table_device, capacity=4096)
    window, step, rounds = 2000, 500, 400
    next_key = 0
    capacities = set()
    for round_number in range(rounds):
        fresh = np.arange(next_key, next_key + step) * 7919
        values = np.empty((step, *value_shape), np.int64)
        values[:] = (fresh + 1).reshape(-1, *(1,) * len(value_shape))
        table[native.array(fresh)] = native.array(values)
        next_key += step
        if next_key > window:
            gone = np.arange(next_key - window - step, next_key - window) * 7919
            gone = gone[gone >= 0]
            assert to_numpy(table.erase(native.array(gone))).all()
        if round_number >= 20:
            capacities.add(table.capacity)
    live = np.arange(next_key - window, next_key) * 7919
    assert sorted(to_numpy(table.keys()).tolist()) == live.tolist()
    got = to_numpy(table[native.array(live)]).reshape(window, -1)
    assert (got == live[:, None] + 1).all()
    assert not to_numpy(table.contains(native.array(np.arange(0, 1000) * 7919))).any()
    assert max(capacities) <= 8192
    assert len(capacities) == 1


def test_erase_and_insert_the_same_keys_for_ever(native):
    """The known bug of other tables: an insert that reuses a tombstone before looking further stores a key twice."""
    rng = np.random.default_rng(2)
    table = HashTable("int32", "int32", device=native.table_device, capacity=1024, growth=False, deterministic=True)
    model: dict[int, int] = {}
    for round_number in range(300):
        keys = rng.integers(0, 1200, 150).astype(np.int32)
        if round_number % 2:
            table.erase(native.array(keys))
            for key in keys.tolist():
                model.pop(key, None)
        elif len(set(model) | set(keys.tolist())) <= 1000:
            values = rng.integers(0, 99, 150).astype(np.int32)
            table[native.array(keys)] = native.array(values)
            model.update(zip(keys.tolist(), values.tolist(), strict=True))
        assert len(table) == len(model)
    assert dict(zip(*(column.tolist() for column in map(to_numpy, table.items())), strict=True)) == model


@pytest.mark.pairwise
@pytest.mark.parametrize("asks", [False, True], ids=["", "asks for the size"])
@pytest.mark.parametrize("load", [0.3, 0.6, 0.7, 0.8, 1.0])
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("count", [3, 20, 5000])
def test_all_keys_leave_and_others_come_for_ever(native, count, value_shape, load, asks):
    """What keys have left in the table's filters goes with the last of them, so that it is like a new one."""
    rng = np.random.default_rng(count)
    pool = random_keys("int64", (), 3 * count)
    table = HashTable(
        "int64",
        "int32",
        value_shape=value_shape,
        device=native.table_device,
        capacity=int(count / load),
        max_load_factor=1.0,
    )
    capacity = table.capacity
    for _ in range(6):
        chosen = rng.choice(3 * count, count, replace=False)
        keys = pool[chosen]
        values = random_values("int32", (count, *value_shape))
        assert to_numpy(table.insert_or_assign(native.array(keys), native.array(values))).all()
        order = rng.permutation(count)
        found, mask = map(to_numpy, table.find(native.array(keys[order])))
        assert mask.all()
        same_bytes(found, values[order])
        others = np.delete(pool, chosen)
        assert not to_numpy(table.contains(native.array(others))).any()
        assert to_numpy(table.erase(native.array(keys[order]))).all()
        if asks:
            assert len(table) == 0
        assert not to_numpy(table.contains(native.array(pool))).any()
    assert table.capacity == capacity
    assert list(table) == []
    if native.table_device == "cpu" and count == 5000 and load in ((0.7, 0.8) if value_shape else (0.6, 0.7, 0.8)):
        new = HashTable("int64", "int32", value_shape=value_shape, capacity=capacity, max_load_factor=1.0)
        table.clear()
        table[keys] = values
        table.erase(keys)
        for each in (table, new):
            each[keys[order]] = values
        same_bytes(to_numpy(table.keys()), to_numpy(new.keys()))  # in the same slots


def test_clear(native):
    table = HashTable("int64", "float32", value_shape=(3,), device=native.table_device)
    table[native.array(np.arange(1000))] = 1
    capacity = table.capacity
    table.clear()
    assert len(table) == 0
    assert table.capacity == capacity
    assert not to_numpy(table.contains(native.array(np.arange(1000)))).any()
    table[native.array(np.arange(10))] = 2
    same_bytes(table[native.array(np.arange(10))], np.full((10, 3), 2, np.float32))
