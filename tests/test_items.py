"""What a table shares with a dict: len, in, iteration, keys, values, items, copy, ==, |, repr."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from support.frameworks import Framework, to_numpy
from support.samples import as_dict, items_of, random_keys, random_values, same_bytes

from gpuhash import HashTable

MODEL = {5: 1.5, -7: 2.5, 0: -1.0, 2**62: 8.0}


def table_of(model, device="cpu", **options):
    table = HashTable("int64", "float64", device=device, **options)
    table.update(model)
    return table


def test_len_in_iter(device):
    table = table_of(MODEL, device)
    assert len(table) == 4
    assert 5 in table
    assert 6 not in table
    assert np.int64(-7) in table
    assert sorted(table) == sorted(MODEL)
    assert all(type(key) is int for key in table)
    assert bool(table)
    assert not HashTable("int64", "float64", device=device)
    assert list(HashTable("int64", "float64", device=device)) == []


def test_vector_keys_iterate_as_tuples(device):
    table = HashTable("int32", "int64", key_shape=(3,), device=device)
    table[[[1, 2, 3], [4, 5, 6]]] = [1, 2]
    assert sorted(table) == [(1, 2, 3), (4, 5, 6)]
    assert (1, 2, 3) in table
    assert (1, 2, 4) not in table


def test_a_batch_in_table_is_a_type_error(place):
    table = HashTable("int64", "int64", device=place.table_device)
    with pytest.raises(TypeError, match="contains"):
        place.array(np.arange(3)) in table  # noqa: B015


def test_keys_that_cannot_be_are_not_in():
    table = table_of(MODEL)
    for key in ("5", None, 1.5, (1, 2)):
        with pytest.raises((TypeError, ValueError)):
            key in table  # noqa: B015


def test_size_changed_during_iteration(device):
    table = table_of(MODEL, device)
    keys = iter(table)
    table[next(keys) + 1] = 0
    with pytest.raises(RuntimeError, match="changed"):
        next(keys)


def test_keys_values_items_correspond(native):
    keys = random_keys("uint32", (), 5000)
    values = random_values("float32", (5000, 2))
    table = HashTable("uint32", "float32", value_shape=(2,), device=native.table_device)
    table[native.array(keys)] = native.array(values)
    got = as_dict(table.keys(), table.values())
    assert got == as_dict(keys, values)
    assert got == items_of(table)


def test_like_picks_the_framework(place):
    table = HashTable("int64", "float32", device=place.table_device)
    table[place.array(np.arange(10))] = 1
    if place.name == "numpy" and place.table_device != "cpu":
        pytest.skip("NumPy is no framework of the device")
    for like in (place.name, place.array(np.arange(1))):
        keys, values = table.items(like=like)
        assert place.owns(keys)
        assert place.owns(values)
        assert place.owns(table.keys(like=like))
        assert place.owns(table.values(like=like))
        assert sorted(to_numpy(keys).tolist()) == list(range(10))


def test_copies_are_independent(device):
    table = table_of(MODEL, device, max_load_factor=0.6)
    for made in (table.copy(), copy.copy(table), copy.deepcopy(table)):
        assert isinstance(made, HashTable)
        assert items_of(made) == items_of(table)
        assert made.max_load_factor == 0.6
        assert made.device == table.device
        made[1000] = 1
        del made[5]
        assert 1000 not in table
        assert 5 in table


def test_copy_of_rows_is_deep(native):
    table = HashTable("int64", "float32", value_shape=(4,), device=native.table_device)
    table[native.array(np.arange(100))] = 1
    made = table.copy()
    made[native.array(np.arange(100))] = 2
    same_bytes(table[native.array(np.arange(100))], np.ones((100, 4), np.float32))


def test_equality(device):
    table = table_of(MODEL, device)
    assert table == table_of(dict(reversed(MODEL.items())), device, capacity=10_000)
    assert table == table.copy()
    other = table.copy()
    other[5] = 9.0
    assert table != other
    other[5] = 1.5
    assert table == other
    other[6] = 0.0
    assert table != other
    assert table == MODEL
    assert table != {**MODEL, 5: 0.0}
    assert table != 5
    assert table_of({}, device) == table_of({}, device)
    with pytest.raises(TypeError):
        hash(table)


def test_equality_of_rows(device):
    values = random_values("float32", (200, 3))
    first, second = (HashTable("int64", "float32", value_shape=(3,), device=device) for _ in range(2))
    first[np.arange(200)] = values
    second[np.arange(200)[::-1].copy()] = values[::-1].copy()
    assert first == second
    second[7] = [0.125, 0, 0]
    assert first != second


def test_union(device):
    table = table_of(MODEL, device)
    other = table_of({5: -1.0, 77: 7.0}, device)
    both = table | other
    assert both == {**MODEL, 5: -1.0, 77: 7.0}
    assert table == MODEL
    same = table
    table |= other
    assert table is same
    assert table == both
    table |= {1: 1.0}
    assert table[1] == 1.0


def test_repr(device):
    table = HashTable("int32", "float16", key_shape=(3,), value_shape=(8,), device=device, capacity=1000)
    table[[[1, 2, 3]]] = 1
    text = repr(table)
    for part in ("HashTable", "1", str(table.capacity), "int32", "float16", "3", "8", device):
        assert part in text
    assert "load" in text


def test_properties(device):
    table = HashTable("int32", "float16", key_shape=(3,), value_shape=(8,), device=device, capacity=1000)
    assert (table.key_dtype, table.value_dtype) == ("int32", "float16")
    assert (table.key_shape, table.value_shape) == ((3,), (8,))
    assert table.device == device
    assert table.capacity >= 1000
    assert table.load_factor == 0
    assert table.nbytes > 1000 * 16
    assert table.max_load_factor == 0.8
    assert table.default is None
    assert table.name is None
    assert table.max_capacity is None
    assert table.deterministic is False


def test_from_items(place):
    keys = random_keys("int32", (3,), 1000)
    values = random_values("float32", (1000, 2))
    table = HashTable.from_items(place.array(keys), place.array(values))
    assert (table.key_dtype, table.key_shape, table.value_dtype, table.value_shape) == ("int32", (3,), "float32", (2,))
    assert table.device.startswith(place.device)
    assert items_of(table) == as_dict(keys, values)


def test_from_items_of_python_objects():
    table = HashTable.from_items({1: 1.5, 2: 2.5})
    assert (table.key_dtype, table.value_dtype) == ("int64", "float64")
    assert table == {1: 1.5, 2: 2.5}
    table = HashTable.from_items([1, 2], [3, 4], max_load_factor=0.5)
    assert (table.key_dtype, table.value_dtype) == ("int64", "int64")
    assert table.max_load_factor == 0.5
    assert table[[2, 1]].tolist() == [4, 3]


def test_tables_of_the_gpu_are_read_on_the_host(cuda):
    """Host arrays given to a device table are answered on the host."""
    numpy = Framework("numpy", "cpu", "cuda")
    table = HashTable("int64", "float32", device=cuda)
    table[np.arange(10)] = np.arange(10, dtype=np.float32)
    got = table[np.array([3, 1])]
    assert numpy.owns(got)
    same_bytes(got, np.array([3, 1], np.float32))


def test_tables_have_no_order_to_reverse(device):
    with pytest.raises(TypeError):
        reversed(table_of(MODEL, device))


def test_dict_of_a_table():
    assert dict(table_of(MODEL)) == MODEL
