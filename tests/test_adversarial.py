"""Keys with a structure, keys that meet on purpose, and churn without end: against dict and NumPy.

What they cost beside other keys and young tables is measured by ``python -m benchmarks.gates``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.churn import Churn
from support.families import FAMILIES, fixed_table, keys_of_family
from support.frameworks import GPU, nearest_framework, need_cuda, to_numpy
from support.hashing import (
    FINISH,
    FOLD,
    WHITEN,
    fold,
    hash_key,
    hash_of,
    hash_rows,
    keys_of_first_part,
    keys_of_one_hash,
)
from support.memory_resources import counting_memory
from support.samples import as_dict, items_of, same_bytes, type_name
from support.tuning import partitioned

from gpuhash import HashSet, HashTable, TableFullError

SLOTS = 10_000  # of several regions for every key type
KEY_TYPES: list[tuple[str, tuple[int, ...]]] = [("int32", ()), ("int64", ()), ("int64", (2,))]


@pytest.fixture(params=["cpu", "cuda", "cuda-partitioned"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the table is; on the GPU also with every batch partitioned by region, whatever its size."""
    kind, _, when = request.param.partition("-")
    if kind != "cpu":
        need_cuda()
    with partitioned(when == "partitioned"):
        yield GPU if kind == "cuda" else kind


def fill_and_empty(table: HashTable, keys: np.ndarray, absent: np.ndarray) -> None:
    """Every operation on keys that fill the table as far as asked, against dict and NumPy."""
    count = len(keys)
    values = (np.arange(count) * 3).astype(table.value_dtype)
    assert to_numpy(table.insert(keys, values)).all()
    assert items_of(table) == as_dict(keys, values)
    assert not to_numpy(table.insert(keys, values + 1)).any()

    mixed = np.random.default_rng(1).permutation(count + len(absent))
    found_values, found = table.find(np.concatenate([keys, absent])[mixed], default=-1)
    same_bytes(found_values, np.concatenate([values, np.full(len(absent), -1, values.dtype)])[mixed])
    same_bytes(found, mixed < count)

    order = np.random.default_rng(2).permutation(count)
    assert not to_numpy(table.insert_or_assign(keys[order], values[order] + 7)).any()
    same_bytes(table[keys], values + 7)

    gone = order[: count // 2]
    assert not to_numpy(table.erase(absent)).any()
    assert to_numpy(table.erase(keys[gone])).all()
    assert not to_numpy(table.erase(keys[gone])).any()
    left = np.ones(count, bool)
    left[gone] = False
    same_bytes(table.contains(keys), left)
    assert items_of(table) == as_dict(keys[left], values[left] + 7)

    # New keys in the erased slots, and then the old ones again in theirs.
    guests = absent[: count // 2]
    assert to_numpy(table.insert(guests, np.full(len(guests), 5, values.dtype))).all()
    assert to_numpy(table.erase(guests)).all()
    same_bytes(table.insert(keys, values), ~left)
    expected = np.where(left, values + 7, values)
    assert items_of(table) == as_dict(keys, expected)
    assert not to_numpy(table.contains(absent)).any()


@pytest.mark.parametrize("full", [False, True], ids=["0.95", "full"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_structured_keys(device, key_type, family, full):
    table = fixed_table(key_type, SLOTS, device)
    count = table.capacity if full else int(0.95 * table.capacity)
    # In a full table the walk of an absent key may see every bucket.
    keys = keys_of_family(family, key_type, count + (200 if full else count))
    fill_and_empty(table, keys[:count], keys[count:])
    if full:
        assert len(table) == table.capacity
        with pytest.raises(TableFullError):
            table.insert(keys[count:], np.zeros(len(keys) - count, table.value_dtype))
        assert len(table) == table.capacity


@pytest.mark.parametrize("full", [False, True], ids=["0.95", "full"])
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_all_keys_in_one_bucket(device, key_type, full):
    """All have one home, and nearly all lie elsewhere."""
    table = fixed_table(key_type, 1500, device)
    count = table.capacity if full else int(0.95 * table.capacity)
    everyone = np.arange(1 << 20)
    candidates = np.stack([everyone, everyone[::-1]], axis=1) if key_type[1] else everyone.astype(key_type[0])
    keys = keys_of_first_part(candidates, count + 500)
    buckets = table.capacity // 4  # or fewer
    assert not (hash_of(keys) >> np.uint64(32) >= (1 << 32) // buckets).any()
    fill_and_empty(table, keys[:count], keys[count:])


@pytest.mark.parametrize("full", [False, True], ids=["0.95", "full"])
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_all_keys_in_one_region(device, key_type, full):
    """A region of 64 KiB is home to all, and holds a part of them."""
    table = fixed_table(key_type, SLOTS, device)
    count = table.capacity if full else int(0.95 * table.capacity)
    slot_bytes = {"int32": 8, "int64": 16, "int64x2": 32}[type_name(key_type)]
    regions = -(-table.capacity * slot_bytes // (1 << 16))
    assert regions > 1
    everyone = np.arange(regions * 2 * (count + 200))
    candidates = np.stack([everyone, everyone[::-1]], axis=1) if key_type[1] else everyone.astype(key_type[0])
    keys = keys_of_first_part(candidates, count + 200)
    assert not (hash_of(keys) >> np.uint64(32) >= (1 << 32) // regions).any()
    fill_and_empty(table, keys[:count], keys[count:])


@pytest.mark.parametrize("full", [False, True], ids=["0.95", "full"])
def test_keys_of_one_hash(device, full):
    """One probe sequence for all, over all its hops and then bucket after bucket."""
    table = fixed_table(("int64", (2,)), SLOTS, device)
    count = table.capacity if full else int(0.95 * table.capacity)
    keys = keys_of_one_hash(count + 200)
    assert len(set(hash_rows(keys).tolist())) == 1
    fill_and_empty(table, keys[:count], keys[count:])


def test_the_hash_of_rows_here_is_that_of_the_table():
    """Twin of cpp/shared/hash.hpp for keys of 16 bytes, by plain integers."""

    def plain(low, high):
        a, b = low ^ int(FINISH), int(FOLD)
        folded = (a * b >> 64) ^ (a * b & (1 << 64) - 1)
        return (folded + high * int(WHITEN)) & (1 << 64) - 1

    rows = np.random.default_rng(0).integers(0, 1 << 64, (1000, 2), np.uint64)
    inner = np.array([plain(int(low), int(high)) for low, high in rows], np.uint64)
    assert hash_rows(rows).tolist() == hash_key(inner).tolist()
    assert fold(rows[:1, 0], FOLD)[0] == (int(rows[0, 0]) * int(FOLD) >> 64) ^ (int(rows[0, 0]) * int(FOLD) & 2**64 - 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_structured_keys_spread_like_random_ones(key_type, family):
    """Home bucket, later hops and filter bits, by the index of dispersion: variance by mean, 1 for random keys."""
    for count in (1 << 12, 1 << 15):
        hashes = hash_of(keys_of_family(family, key_type, count))
        high, low = hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)
        hop = (low * np.uint64(0x9E3779B9)) & np.uint64(0xFFFFFFFF)
        for buckets in (count // 4, 1000, 64):
            for word in (high, hop):
                home = (word * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)
                per_bucket = np.bincount(home, minlength=buckets)
                assert per_bucket.var() / per_bucket.mean() < 1 + 6 * (2 / buckets) ** 0.5
        per_bit = np.bincount((hashes >> np.uint64(29) & np.uint64(7)).astype(np.int64), minlength=8)
        assert per_bit.var() / per_bit.mean() < 6


CHURNS = [
    ("random", ("int64", ()), 0.95, False),
    ("random", ("int64", ()), 0.8, True),
    ("window", ("int64", ()), 0.95, True),
    ("window", ("int32", ()), 0.8, False),
    ("random", ("int32", ()), 0.95, True),
    ("returning", ("int32", ()), 0.95, False),
    ("returning", ("int64", (2,)), 0.9, True),
    ("random", ("int64", (2,)), 0.95, False),
]


@pytest.mark.long(5)
@pytest.mark.parametrize(("pattern", "key_type", "load", "asks"), CHURNS)
def test_ten_thousand_rounds_of_churn(request, device, pattern, key_type, load, asks):
    """`asks` for the size after every round: then the table knows it, and need not look before it inserts."""
    churn = Churn(device, key_type, pattern, 3000, load, 32, asks)
    churn.run(2500 if "partitioned" in request.node.callspec.id else 10_000)  # by region, to the same rebuilds
    churn.check()


def test_churn_of_a_larger_table(device):
    churn = Churn(device, ("int64", ()), "random", 1 << 17, 0.95, 1 << 13)
    churn.run(200)
    churn.check()


@pytest.mark.parametrize("asks", [False, True], ids=["silent", "asks-for-the-size"])
@pytest.mark.parametrize("load", [0.8, 0.95])
def test_worn_tables_are_rebuilt(device, load, asks):
    """Counted by the allocations of rebuilding: often enough, but not before half as many erasures as slots."""
    memory = counting_memory(device)
    churn = Churn(device, ("int64", ()), "random", 4096, load, 64, asks, memory=memory)
    blocks = len(memory.blocks)
    before = memory.calls
    rounds = 1000
    nbytes = churn.table.nbytes
    for _ in range(rounds):
        churn.round()
    rebuilds = (memory.calls - before) / blocks
    most = rounds * 64 / (churn.table.capacity / 2)
    assert most / 4 < rebuilds
    if device == "cpu":  # on a GPU, scratch memory is taken from the resource, too
        assert rebuilds <= most
    assert churn.table.nbytes == nbytes
    assert churn.table.capacity == 4096
    churn.check()


def test_churn_of_a_set_that_may_grow(device):
    """Half full at first; it never needs to grow."""
    place = nearest_framework(device)
    made = HashSet("int64", capacity=4096, device=device)
    capacity = made.capacity
    size, batch = capacity // 2, 64
    made.insert(place.array(np.arange(size)))
    for i in range(2000):
        first = i * batch
        assert to_numpy(made.erase(place.array(np.arange(first, first + batch)))).all()
        assert to_numpy(made.insert(place.array(np.arange(size + first, size + first + batch)))).all()
    assert made.capacity == capacity
    keys = np.sort(to_numpy(made.keys()))
    np.testing.assert_array_equal(keys, np.arange(size) + 2000 * batch)
