"""Batches that are partitioned by region before they are worked off, as GPU tables do with large ones: against dict."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from frameworks import to_numpy
from hashing import keys_of_first_bucket
from samples import as_bytes, as_dict, check_new_mask, distinct, items_of, random_keys, random_values, same_bytes

import gpuhash
from gpuhash import HashSet, HashTable, _core


@pytest.fixture(autouse=True)
def partition_all() -> Iterator[None]:
    """Every batch is partitioned, whatever its size."""
    _core.set_partition_threshold(1)
    yield
    _core.set_partition_threshold(-1)


def with_duplicates(keys: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """All of the keys and then some of them again, shuffled: [count]."""
    rng = np.random.default_rng(seed)
    again = keys[rng.integers(0, len(keys), max(count - len(keys), 0))]
    return rng.permutation(np.concatenate([keys, again]))


def one_value_per_key(keys: np.ndarray, dtype: str, seed: int = 0) -> np.ndarray:
    """Values that are equal where the keys are, so that any of a key's duplicates may win."""
    _, inverse = np.unique(keys, return_inverse=True)
    return random_values(dtype, (len(keys),), seed)[inverse]


@pytest.mark.parametrize("count", [1, 33, 4096, 4097, 100_000])
@pytest.mark.parametrize("value_dtype", ["int16", "float32", "int64"])
@pytest.mark.parametrize("key_dtype", ["int8", "int32", "int64"])
def test_insert_assign_and_erase(device, key_dtype, value_dtype, count):
    pool = random_keys(key_dtype, (), max(count // 2, 1))
    keys = with_duplicates(pool, count)
    values = one_value_per_key(keys, value_dtype)
    table = HashTable(key_dtype, value_dtype, device=device)
    check_new_mask(table.insert_or_assign(keys, values), keys, {}, in_order=device == "cpu")
    model = as_dict(keys, values)
    assert items_of(table) == model

    changed = one_value_per_key(keys, value_dtype, seed=1)
    table[keys] = changed
    assert items_of(table) == as_dict(keys, changed)
    same_bytes(table.insert(keys, values), np.zeros(len(keys), bool))
    assert items_of(table) == as_dict(keys, changed)

    gone = with_duplicates(pool[::2], len(pool))
    mask = table.erase(gone)
    erased = as_bytes(gone[mask]).tolist()
    assert sorted(erased) == sorted(set(as_bytes(gone).tolist()))
    same_bytes(table.erase(gone), np.zeros(len(gone), bool))
    same_bytes(table.contains(pool), np.arange(len(pool)) % 2 == 1)
    check_new_mask(table.insert(keys, values), keys, set(as_bytes(pool[1::2]).tolist()), in_order=device == "cpu")
    assert len(table) == len(pool)


@pytest.mark.parametrize("key_dtype", ["uint8", "uint32", "uint64"])
def test_sets(device, key_dtype):
    pool = random_keys(key_dtype, (), 50_000)
    keys = with_duplicates(pool, 100_000)
    table = HashSet(key_dtype, device=device)
    check_new_mask(table.insert(keys), keys, {}, in_order=device == "cpu")
    same_bytes(np.sort(to_numpy(table.keys())), np.sort(pool))
    assert int(to_numpy(table.erase(keys[:1000])).sum()) == len(distinct(keys[:1000]))
    assert len(table) == len(pool) - len(distinct(keys[:1000]))


def test_one_value_for_all_keys(device):
    keys = random_keys("int64", (), 10_000)
    table = HashTable("int64", "int64", device=device)
    table[keys] = 7
    assert set(to_numpy(table.values()).tolist()) == {7}
    assert len(table) == len(keys)


@pytest.mark.parametrize("distinct_keys", [1, 3, 1000])
def test_few_keys_many_times(device, distinct_keys):
    """The lists overflow, and the batch is worked off the direct way."""
    pool = random_keys("int64", (), distinct_keys)
    keys = with_duplicates(pool, 300_000)
    values = one_value_per_key(keys, "int64")
    table = HashTable("int64", "int64", capacity=1 << 22, device=device)
    check_new_mask(table.insert_or_assign(keys, values), keys, {}, in_order=device == "cpu")
    assert items_of(table) == as_dict(keys, values)
    assert int(to_numpy(table.erase(keys)).sum()) == len(pool)
    assert len(table) == 0


def test_hot_keys_beside_many_others(device):
    """One list overflows, the others do not."""
    rng = np.random.default_rng(5)
    keys = rng.permutation(np.concatenate([random_keys("int64", (), 200_000), np.full(10_000, 42)]))
    values = one_value_per_key(keys, "int64")
    table = HashTable("int64", "int64", capacity=1 << 22, device=device)
    check_new_mask(table.insert_or_assign(keys, values), keys, {}, in_order=device == "cpu")
    assert items_of(table) == as_dict(keys, values)


def test_two_passes(device):
    """More regions than one pass has bins."""
    keys = random_keys("int64", (), 400_000)
    values = random_values("int64", keys.shape)
    table = HashTable("int64", "int64", capacity=1 << 22, device=device)
    assert table.insert(keys, values).all()
    assert items_of(table) == as_dict(keys, values)
    assert table.erase(keys[1::2]).all()
    assert items_of(table) == as_dict(keys[::2], values[::2])
    table.clear()
    table[keys] = values
    assert items_of(table) == as_dict(keys, values)


def test_all_keys_in_one_bucket(device):
    """Nearly all leave their region."""
    keys = keys_of_first_bucket(2000)
    values = random_values("int64", keys.shape)
    table = HashTable("int64", "int64", capacity=1 << 16, device=device)
    assert table.insert(keys, values).all()
    assert items_of(table) == as_dict(keys, values)
    assert table.erase(keys[::3]).all()
    same_bytes(table.contains(keys), np.arange(len(keys)) % 3 != 0)


@pytest.mark.parametrize("size", [8, 4096, 30_000])
def test_exactly_full(device, size):
    keys = random_keys("int64", (), size)
    table = HashTable("int64", "int32", capacity=size, growth=False, device=device)
    keys = np.concatenate([keys, random_keys("int64", (), 2 * table.capacity, seed=9)])
    keys = distinct(keys)[: table.capacity + 1]
    values = random_values("int32", keys.shape)
    assert table.insert(keys[:-1], values[:-1]).all()
    assert items_of(table) == as_dict(keys[:-1], values[:-1])
    with pytest.raises(gpuhash.TableFullError):
        table.insert(keys, values)
    same_bytes(table.insert_or_assign(keys[:-1], values[1:]), np.zeros(len(keys) - 1, bool))
    assert items_of(table) == as_dict(keys[:-1], values[1:])
    assert table.erase(keys[:-1]).all()
    assert len(table) == 0


def test_growth_counts_distinct_keys(device):
    keys = random_keys("int64", (), 20_000)
    table = HashTable("int64", "int64", capacity=1 << 16, device=device)
    table[keys] = keys
    capacity = table.capacity
    for _ in range(4):
        again = with_duplicates(keys, 60_000)
        table[again] = again
        assert table.capacity == capacity
    more = random_keys("int64", (), 200_000, seed=3)
    table[more] = more
    assert table.capacity > capacity
    assert items_of(table) == as_dict(np.concatenate([keys, more]), np.concatenate([keys, more]))


@pytest.mark.parametrize("value_dtype", [None, "int32", "int64"])
def test_rehash_keeps_all_items(device, value_dtype):
    """From few regions to many and back, over loads up to 0.97, stray and displaced keys among them."""
    keys = np.concatenate([random_keys("int64", (), 500_000), keys_of_first_bucket(500)])
    keys = distinct(keys)
    table: HashSet | HashTable
    if value_dtype is None:
        table = HashSet("int64", device=device)
        table.insert(keys)
    else:
        values = random_values(value_dtype, keys.shape)
        table = HashTable("int64", value_dtype, device=device)
        table[keys] = values
    table.max_load_factor = 1.0
    for slots in (int(len(keys) / 0.97), 1 << 21, (1 << 20) + 12345, int(len(keys) / 0.8), 3 << 20):
        table.rehash(slots)
        assert len(table) == len(keys)
        if isinstance(table, HashSet):
            same_bytes(np.sort(to_numpy(table.keys())), np.sort(keys))
        else:
            assert items_of(table) == as_dict(keys, values)
        others = np.setdiff1d(random_keys("int64", (), 50_000, seed=11), keys)
        assert not to_numpy(table.contains(others)).any()
