"""Keys that all meet: the same first bucket, and the same whole hash. Against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.hashing import hash_key, keys_of_first_bucket, keys_of_one_hash
from support.samples import as_dict, items_of, random_values, same_bytes

from gpuhash import HashSet, HashTable


def colliding(kind: str) -> np.ndarray:
    if kind == "first-bucket":
        return keys_of_first_bucket(3000)
    return keys_of_one_hash(600)


@pytest.fixture(params=["first-bucket", "one-hash"])
def keys(request):
    return colliding(request.param)


def test_the_hash_here_is_that_of_the_table():
    """Twin of cpp/shared/hash.hpp, by plain integers."""

    def plain(key):
        def fold(a, b):
            return (a * b >> 64) ^ (a * b & (1 << 64) - 1)

        h = fold(key ^ 0x9E3779B97F4A7C15, 0xD1342543DE82EF95)
        h ^= h >> 32
        return h * 0xBF58476D1CE4E5B9 & (1 << 64) - 1

    samples = np.random.default_rng(0).integers(0, 1 << 64, 1000, np.uint64, endpoint=False)
    assert hash_key(samples).tolist() == [plain(int(key)) for key in samples]


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_every_operation_with_colliding_keys(native, keys, value_shape):
    values = random_values("int64", (len(keys), *value_shape))
    table = HashTable("int64", "int64", key_shape=keys.shape[1:], value_shape=value_shape, device=native.table_device)
    half = len(keys) // 2
    assert to_numpy(table.insert(native.array(keys[:half]), native.array(values[:half]))).all()
    same_bytes(table.contains(native.array(keys)), np.arange(len(keys)) < half)
    same_bytes(table.insert_or_assign(native.array(keys), native.array(values)), np.arange(len(keys)) >= half)
    assert items_of(table) == as_dict(keys, values)
    table.insert_or_apply(native.array(np.repeat(keys, 3, axis=0)), native.array(np.repeat(values, 3, axis=0)), "add")
    same_bytes(table[native.array(keys)], values * 4)
    assert to_numpy(table.erase(native.array(keys[::2]))).all()
    same_bytes(table.contains(native.array(keys)), np.arange(len(keys)) % 2 == 1)
    table[native.array(keys[::-1])] = native.array(values[::-1])
    assert items_of(table) == as_dict(keys, values)
    table.shrink_to_fit()
    assert items_of(table) == as_dict(keys, values)
    same_bytes(table[native.array(keys)], values)


def test_colliding_keys_fill_a_fixed_table(native, keys):
    table = HashTable(
        "int64", "int64", key_shape=keys.shape[1:], device=native.table_device, capacity=len(keys) // 2, growth=False
    )
    keys = keys[: table.capacity]
    if len(keys) < table.capacity:
        pytest.skip("the table rounded its capacity up beyond the keys")
    table[native.array(keys)] = native.array(np.arange(len(keys)))
    assert table.load_factor == 1
    same_bytes(table[native.array(keys)], np.arange(len(keys)))
    for round_number in range(5):
        part = keys[round_number::5]
        assert to_numpy(table.erase(native.array(part))).all()
        assert to_numpy(table.insert(native.array(part), native.array(np.arange(len(part))))).all()
    assert len(table) == len(keys)


def test_duplicates_of_colliding_keys(native, keys):
    draws = np.random.default_rng(0).integers(0, 100, 5000)
    table = HashTable("int64", "int64", key_shape=keys.shape[1:], device=native.table_device)
    table.insert_or_apply(native.array(keys[draws]), 1, "add")
    same_bytes(table[native.array(keys[:100])], np.bincount(draws, minlength=100))
    made = HashSet("int64", key_shape=keys.shape[1:], device=native.table_device)
    assert to_numpy(made.add(native.array(keys[draws]))).sum() == len(set(draws.tolist())) == len(made)


def test_regular_keys_spread(native):
    """Sequential, strided and shifted keys must not fill one place: the table stays fast and small."""
    for stride in (1, 2, 1024, 4096 * 4096, 1 << 40, (1 << 32) + 1):
        keys = np.arange(20_000) * stride
        table = HashTable("int64", "int32", device=native.table_device)
        table[native.array(keys)] = 1
        assert len(table) == len(keys)
        assert table.capacity < 8 * len(keys)
        assert to_numpy(table.contains(native.array(keys))).all()
        assert not to_numpy(table.contains(native.array(keys + stride // 2 + 20_000 * stride))).any()
