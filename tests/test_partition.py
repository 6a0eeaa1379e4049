"""Batches that are partitioned by region before they are worked off, as GPU tables do with large ones: against dict."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.first_seen import is_member
from support.frameworks import to_numpy
from support.hashing import keys_of_first_bucket
from support.items import Items
from support.samples import (
    FLOATS,
    UFUNCS,
    as_bytes,
    check_new_mask,
    distinct,
    has_operation,
    numpy_dtype,
    random_keys,
    random_values,
    same_bytes,
    special_keys,
)
from support.tuning import partitioned

import gpuhash
from gpuhash import HashSet, HashTable


@pytest.fixture(autouse=True)
def partition_all() -> Iterator[None]:
    """Every batch is partitioned, whatever its size."""
    with partitioned():
        yield


def without(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    return keys[~is_member(keys, others)]


def with_duplicates(keys: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """All of the keys and then some of them again, shuffled: [count]."""
    rng = np.random.default_rng(seed)
    again = keys[rng.integers(0, len(keys), max(count - len(keys), 0))]
    return rng.permutation(np.concatenate([keys, again]))


def one_value_per_key(keys: np.ndarray, dtype: str, seed: int = 0) -> np.ndarray:
    """Values that are equal where the keys are, so that any of a key's duplicates may win."""
    _, inverse = np.unique(keys, return_inverse=True)
    return random_values(dtype, (len(keys),), seed)[inverse]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
def test_subnormal_numbers_are_added(device, key_dtype, known):
    """In regions, and of the keys that do not fit into theirs."""
    keys = np.arange(100_000, dtype=key_dtype)
    counts = np.random.default_rng(3).integers(1, 1 << 20, len(keys))
    values = (counts * 2.0**-149).astype(np.float32)
    table = HashTable(key_dtype, "float32", device=device)
    if known:
        table[keys] = values
    table.insert_or_apply(keys, values, "add")
    same_bytes(table[keys], values * (1 + known))


@pytest.mark.parametrize("count", [1, 33, 4096, 4097, 100_000])
@pytest.mark.parametrize("value_dtype", ["int16", "float32", "int64"])
@pytest.mark.parametrize("key_dtype", ["int8", "int32", "int64"])
def test_insert_assign_and_erase(device, key_dtype, value_dtype, count):
    pool = random_keys(key_dtype, (), max(count // 2, 1))
    keys = with_duplicates(pool, count)
    values = one_value_per_key(keys, value_dtype)
    table = HashTable(key_dtype, value_dtype, device=device)
    check_new_mask(table.insert_or_assign(keys, values), keys, {}, in_order=device == "cpu")
    model = Items.last_of(keys, values)
    assert Items.held_by(table) == model

    changed = one_value_per_key(keys, value_dtype, seed=1)
    table[keys] = changed
    assert Items.held_by(table) == Items.last_of(keys, changed)
    same_bytes(table.insert(keys, values), np.zeros(len(keys), bool))
    assert Items.held_by(table) == Items.last_of(keys, changed)

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
    assert Items.held_by(table) == Items.last_of(keys, values)
    assert int(to_numpy(table.erase(keys)).sum()) == len(pool)
    assert len(table) == 0


def test_hot_keys_beside_many_others(device):
    """One list overflows, the others do not."""
    rng = np.random.default_rng(5)
    keys = rng.permutation(np.concatenate([random_keys("int64", (), 200_000), np.full(10_000, 42)]))
    values = one_value_per_key(keys, "int64")
    table = HashTable("int64", "int64", capacity=1 << 22, device=device)
    check_new_mask(table.insert_or_assign(keys, values), keys, {}, in_order=device == "cpu")
    assert Items.held_by(table) == Items.last_of(keys, values)


@pytest.mark.pairwise
@pytest.mark.parametrize("op", ["assign", "add"])
@pytest.mark.parametrize("load", [0.8, 0.95, 1.0])
@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
def test_duplicates_in_a_full_table(device, key_dtype, load, op):
    """Where keys are displaced for others, none of them is lost or stored twice."""
    slots = 1 << 17
    table = HashTable(key_dtype, key_dtype, capacity=slots, max_load_factor=1.0, growth=False, device=device)
    pool = random_keys(key_dtype, (), int(slots * load))
    order = np.argsort(pool)
    expected, present = np.zeros(len(pool), key_dtype), np.zeros(len(pool), bool)
    for part in (pool[: len(pool) // 3], pool, pool):
        keys = with_duplicates(part, 3 * len(part))
        values = one_value_per_key(keys, key_dtype)
        numbers = order[np.searchsorted(pool, keys, sorter=order)]
        size = int(present.sum())
        if op == "assign":
            mask = table.insert_or_assign(keys, values)
            expected[numbers] = values
        else:
            mask = table.insert_or_apply(keys, values, "add")
            np.add.at(expected, numbers, values)
        present[numbers] = True
        assert int(to_numpy(mask).sum()) == present.sum() - size
        assert Items.held_by(table) == Items(pool[present], expected[present])
    assert table.contains(pool).all()
    assert table.erase(pool[::2]).all()
    same_bytes(table.contains(pool), np.arange(len(pool)) % 2 == 1)
    table[pool] = pool
    assert Items.held_by(table) == Items.last_of(pool, pool)


def test_two_passes(device):
    """More regions than one pass has bins."""
    keys = random_keys("int64", (), 400_000)
    values = random_values("int64", keys.shape)
    table = HashTable("int64", "int64", capacity=1 << 22, device=device)
    assert table.insert(keys, values).all()
    assert Items.held_by(table) == Items.last_of(keys, values)
    assert table.erase(keys[1::2]).all()
    assert Items.held_by(table) == Items.last_of(keys[::2], values[::2])
    table.clear()
    table[keys] = values
    assert Items.held_by(table) == Items.last_of(keys, values)


def test_all_keys_in_one_bucket(device):
    """Nearly all leave their region."""
    keys = keys_of_first_bucket(2000)
    values = random_values("int64", keys.shape)
    table = HashTable("int64", "int64", capacity=1 << 16, device=device)
    assert table.insert(keys, values).all()
    assert Items.held_by(table) == Items.last_of(keys, values)
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
    assert Items.held_by(table) == Items.last_of(keys[:-1], values[:-1])
    with pytest.raises(gpuhash.TableFullError):
        table.insert(keys, values)
    same_bytes(table.insert_or_assign(keys[:-1], values[1:]), np.zeros(len(keys) - 1, bool))
    assert Items.held_by(table) == Items.last_of(keys[:-1], values[1:])
    assert table.erase(keys[:-1]).all()
    assert len(table) == 0


@pytest.mark.parametrize("load", [0.9, 0.97, 1.0])
@pytest.mark.parametrize(
    ("key_dtype", "key_shape", "value_shape"),
    [("int32", (), ()), ("int64", (), ()), ("int64", (2,), ()), ("int64", (), (48,))],
    ids=["4 bytes", "8 bytes", "16 bytes", "rows"],
)
def test_lookups_that_go_far(device, key_dtype, key_shape, value_shape, load):
    """In a table that is full, or nearly so, the last keys lie behind many full buckets, and absent ones nowhere."""
    slots = 1 << 15
    table = HashTable(
        key_dtype,
        "float32",
        key_shape=key_shape,
        value_shape=value_shape,
        capacity=slots,
        max_load_factor=1.0,
        growth=False,
        device=device,
    )
    count = int(table.capacity * load)
    keys = distinct(random_keys(key_dtype, key_shape, 2 * count))[: count + 5000]
    values = random_values("float32", (count, *value_shape))
    for part in np.array_split(np.arange(count), 5):
        table.insert(keys[part], values[part])
    assert len(table) == count
    order = np.random.default_rng(1).permutation(len(keys))
    there = order < count
    found, mask = table.find(keys[order])
    same_bytes(mask, there)
    same_bytes(to_numpy(found)[there], values[order[there]])
    same_bytes(table.contains(keys[order]), there)
    fallback = np.float32(-3)
    same_bytes(to_numpy(table.get(keys[order], fallback))[~there], np.full((5000, *value_shape), fallback))


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
    assert Items.held_by(table) == Items.last_of(np.concatenate([keys, more]), np.concatenate([keys, more]))


APPLY_DTYPES = ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", *FLOATS, "complex64"]
APPLY_CASES = [(op, dtype) for op in UFUNCS for dtype in APPLY_DTYPES if has_operation(op, dtype)]


def exact_operands(op: str, dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Any integers, which wrap; of floats, few whose sums are exact in any order, and factors of +-1."""
    if dtype not in (*FLOATS, "complex64"):
        return random_values(dtype, (count,), seed)
    rng = np.random.default_rng([seed, 78])
    if op == "multiply":
        return rng.choice([-1, 1], count).astype(numpy_dtype(dtype))
    if op in ("min", "max"):
        return random_values(dtype, (count,), seed)
    numbers = rng.integers(-2, 3, count) / 4
    if dtype in ("float16", "bfloat16"):
        numbers[rng.random(count) < 0.95] = 0
    return numbers.astype(numpy_dtype(dtype))


def applied(keys: np.ndarray, values: np.ndarray, op: str) -> tuple[np.ndarray, np.ndarray]:
    """Distinct keys in order, and what a loop over the batch makes of their values."""
    some, inverse = np.unique(keys, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.searchsorted(inverse[order], np.arange(len(some)))
    wide = values[order].astype(np.float32) if values.dtype.itemsize == 2 else values[order]
    with np.errstate(over="ignore"):
        return some, UFUNCS[op].reduceat(wide, starts, dtype=wide.dtype).astype(values.dtype)


def same_values(got: object, expected: np.ndarray) -> None:
    """Bits of integers; 0 and -0 are one."""
    got = to_numpy(got)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.pairwise
@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
@pytest.mark.parametrize(("op", "dtype"), APPLY_CASES, ids=lambda p: p)
def test_apply_combines_duplicates(device, op, dtype, key_dtype):
    """Into an empty table, and into one that has half of the keys: keys that come once, some 16 times, one 3000 times,
    and stray keys among them."""
    once = random_keys(key_dtype, (), 6000)
    often = random_keys(key_dtype, (), 1000, seed=1)
    hot = random_keys(key_dtype, (), 9, seed=2)[-1:]
    rng = np.random.default_rng(6)
    first = rng.permutation(np.concatenate([once[::2], often, often]))
    second = rng.permutation(np.concatenate([once, np.repeat(often, 16), np.repeat(hot, 3000)]))
    first_values = exact_operands(op, dtype, len(first), 1)
    second_values = exact_operands(op, dtype, len(second), 2)
    table = HashTable(key_dtype, dtype, device=device)
    mask = table.insert_or_apply(first, first_values, op)
    check_new_mask(mask, first, {}, in_order=device == "cpu")
    some, expected = applied(first, first_values, op)
    assert len(table) == len(some)
    same_values(table[some], expected)

    known = set(as_bytes(some).tolist())
    mask = table.insert_or_apply(second, second_values, op)
    check_new_mask(mask, second, known, in_order=device == "cpu")
    some, expected = applied(np.concatenate([first, second]), np.concatenate([first_values, second_values]), op)
    assert len(table) == len(some)
    same_values(table[some], expected)


@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
@pytest.mark.parametrize("distinct_keys", [1, 3, 1000, 30_000])
def test_apply_counts(device, key_dtype, distinct_keys):
    """Skewed batches with one value for all keys, in a table of many regions."""
    pool = random_keys(key_dtype, (), distinct_keys)
    rng = np.random.default_rng(distinct_keys)
    skewed = (len(pool) * rng.random(300_000) ** 4).astype(np.int64)
    keys = np.concatenate([pool, pool[skewed]])
    table = HashTable(key_dtype, "int64", capacity=1 << 22, device=device)
    some, counts = np.unique(keys, return_counts=True)
    for times in (1, 2):
        mask = table.insert_or_apply(keys, 1, "add")
        check_new_mask(mask, keys, {} if times == 1 else set(as_bytes(some).tolist()), in_order=device == "cpu")
        assert len(table) == len(some)
        same_bytes(table[some], times * counts)


@pytest.mark.parametrize(("dtype", "op"), [("int64", "add"), ("float64", "add"), ("int32", "multiply")])
def test_apply_to_keys_that_leave_their_region(device, dtype, op):
    """First one list overflows so that the batch is worked off the direct way, then so that it has a long rest."""
    pool = keys_of_first_bucket(5000)
    keys = with_duplicates(pool, 100_000)
    values = exact_operands(op, dtype, len(keys))
    table = HashTable("int64", dtype, capacity=1 << 20, device=device)
    check_new_mask(table.insert_or_apply(keys, values, op), keys, {}, in_order=device == "cpu")
    some, expected = applied(keys, values, op)
    assert len(table) == len(some)
    same_values(table[some], expected)
    more = np.concatenate([pool, keys[:1000], random_keys("int64", (), 100_000, seed=4)])
    more_values = exact_operands(op, dtype, len(more), 5)
    mask = table.insert_or_apply(more, more_values, op)
    check_new_mask(mask, more, set(as_bytes(some).tolist()), in_order=device == "cpu")
    some, expected = applied(np.concatenate([keys, more]), np.concatenate([values, more_values]), op)
    same_values(table[some], expected)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float64"])
def test_apply_fills_a_table(device, dtype):
    """To its last slot, and after erasures, whose slots are taken again."""
    table = HashTable("int64", dtype, capacity=20_000, growth=False, device=device)
    keys = random_keys("int64", (), table.capacity + 1)
    values = exact_operands("add", dtype, len(keys))
    assert table.insert_or_apply(keys[:-1], values[:-1], "add").all()
    assert Items.held_by(table) == Items.last_of(keys[:-1], values[:-1])
    with pytest.raises(gpuhash.TableFullError):
        table.insert_or_apply(keys, values, "add")
    assert Items.held_by(table) == Items.last_of(keys[:-1], values[:-1])
    gone = len(keys) // 3
    assert table.erase(keys[:gone]).all()
    again = np.concatenate([keys[: gone - 10], keys[:gone], keys[gone:-1]])
    added = exact_operands("add", dtype, len(again), 2)
    known = set(as_bytes(keys[gone:-1]).tolist())
    check_new_mask(table.insert_or_apply(again, added, "add"), again, known, in_order=device == "cpu")
    some, expected = applied(np.concatenate([keys[gone:-1], again]), np.concatenate([values[gone:-1], added]), "add")
    assert len(table) == len(some) == table.capacity
    same_values(table[some], expected)


def test_apply_grows_by_distinct_keys(device):
    keys = random_keys("int64", (), 20_000)
    table = HashTable("int64", "int64", capacity=1 << 16, device=device)
    table[keys] = keys
    capacity = table.capacity
    for _ in range(4):
        again = with_duplicates(keys, 60_000)
        assert not to_numpy(table.insert_or_apply(again, 1, "add")).any()
        assert table.capacity == capacity
    _, counts = np.unique(with_duplicates(keys, 60_000), return_counts=True)
    with np.errstate(over="ignore"):
        same_bytes(table[np.sort(keys)], np.sort(keys) + 4 * counts)
    more = without(random_keys("int64", (), 200_000, seed=3), keys)
    assert to_numpy(table.insert_or_apply(more, more, "add")).all()
    assert table.capacity > capacity
    same_bytes(table[more], more)
    with np.errstate(over="ignore"):
        same_bytes(table[np.sort(keys)], np.sort(keys) + 4 * counts)


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
            assert Items.held_by(table) == Items.last_of(keys, values)
        others = without(random_keys("int64", (), 50_000, seed=11), keys)
        assert not to_numpy(table.contains(others)).any()


@pytest.mark.pairwise
@pytest.mark.parametrize("distinct_keys", [1, 50_000, 300_000])
@pytest.mark.parametrize("method", ["from_items", "update", "insert", "insert_or_apply"])
@pytest.mark.parametrize("key_dtype", ["uint32", "int64"])
def test_first_batch_of_an_empty_table(device, key_dtype, method, distinct_keys):
    """What it writes is all that is in the table's new memory, whether lists overflow or have no keys at all."""
    pool = random_keys(key_dtype, (), distinct_keys)
    keys = with_duplicates(pool, 300_000)
    values = one_value_per_key(keys, "int64")
    for _ in range(2):  # the second time in memory that the first table has left
        table = HashTable(key_dtype, "int64", device=device)
        if method == "from_items":
            table = HashTable.from_items(keys, values, device=device)
        elif method == "insert_or_apply":
            table.insert_or_apply(keys, values, "max")
        else:
            getattr(table, method)(keys, values)
        assert Items.held_by(table) == Items.last_of(keys, values)
        same_bytes(table.contains(pool), np.ones(len(pool), bool))
        others = without(random_keys(key_dtype, (), 20_000, seed=9), pool)
        same_bytes(table.contains(others), np.zeros(len(others), bool))
        special = without(special_keys(key_dtype, ()), pool)
        same_bytes(table.contains(special), np.zeros(len(special), bool))
        table[others] = 5
        assert len(table) == len(pool) + len(others)
