"""Tables that move between devices, and pickles."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from frameworks import to_numpy
from samples import as_dict, items_of, random_keys, random_values

from gpuhash import HashSet, HashTable

KINDS = {
    "scalar": ("int64", (), "float32", ()),
    "rows": ("int64", (), "float32", (3,)),
    "vector-keys": ("int32", (3,), "int8", ()),
    "bfloat16-rows": ("uint16", (), "bfloat16", (2, 2)),
    "complex128": ("int64", (2,), "complex128", ()),
}


def table_of(kind, device):
    key_dtype, key_shape, value_dtype, value_shape = KINDS[kind]
    keys = random_keys(key_dtype, key_shape, 3000)
    values = random_values(value_dtype, (len(keys), *value_shape))
    table = HashTable(
        key_dtype, value_dtype, key_shape=key_shape, value_shape=value_shape, device=device, max_load_factor=0.7
    )
    table[keys] = values
    table.erase(keys[::3])
    rest = np.arange(len(keys)) % 3 != 0
    return table, as_dict(keys[rest], values[rest])


@pytest.mark.parametrize("kind", KINDS)
def test_to_and_back(cuda, kind):
    table, expected = table_of(kind, "cpu")
    moved = table.to(cuda)
    assert moved.device == cuda
    assert items_of(moved) == expected
    assert moved == table
    assert table == moved
    back = moved.to("cpu")
    assert back.device == "cpu"
    assert items_of(back) == expected
    assert moved.capacity == table.capacity == back.capacity
    if table.value_shape:
        keys = to_numpy(table.keys())
        assert np.array_equal(table.rows(keys), moved.rows(keys)), "row numbers stay"
    moved.clear()
    assert items_of(back) == expected
    assert items_of(table) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_to_the_same_device(device, kind):
    table, expected = table_of(kind, device)
    same = table.to(device)
    assert items_of(same) == expected
    assert same.max_load_factor == 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_pickle(device, kind):
    table, expected = table_of(kind, device)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(table, protocol))
        assert items_of(back) == expected
        assert back == table
        assert back.device == table.device
        assert back.max_load_factor == 0.7


def test_pickle_keeps_options(device):
    table = HashTable(
        "int64",
        "float32",
        device=device,
        capacity=100,
        growth=False,
        deterministic=True,
        default=2.5,
        max_load_factor=0.9,
    )
    table[1] = 4.0
    back = pickle.loads(pickle.dumps(table))
    assert back.max_capacity == table.max_capacity
    assert back.deterministic
    assert back.default == 2.5
    assert back[2] == 2.5
    assert back[1] == 4.0
    assert back.max_load_factor == 0.9


def test_pickle_of_sets(device):
    made = HashSet("int32", key_shape=(3,), device=device)
    made.add([[1, 2, 3], [4, 5, 6]])
    back = pickle.loads(pickle.dumps(made))
    assert isinstance(back, HashSet)
    assert back == made


def test_updated_copies_of_moved_tables_grow(cuda):
    table, _ = table_of("rows", "cpu")
    moved = table.to(cuda)
    keys = np.random.default_rng(0).integers(-(1 << 60), 1 << 60, 50_000)
    moved[keys] = 1
    table[keys] = 1
    assert moved == table


@pytest.mark.parametrize("buckets", [1, 2047, 2048, 4095, 4097, 8191, 16383, 65535])
def test_copies_of_odd_sizes_find_every_key(on_device, buckets):
    """The number of buckets is rounded to whole regions; a copy has to come out with the same ones."""
    table = HashTable("int64", "int64", capacity=4 * buckets, growth=False, device=on_device.table_device)
    keys = random_keys("int64", (), int(0.97 * table.capacity))
    table[on_device.array(keys)] = on_device.array(np.arange(len(keys)))
    for twin in (table.copy(), table.to("cpu"), pickle.loads(pickle.dumps(table))):
        values, found = twin.find(keys)
        assert to_numpy(found).all()
        assert np.array_equal(to_numpy(values), np.arange(len(keys)))
