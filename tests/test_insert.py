"""insert, insert_or_assign, table[keys] = values, setdefault and update: against a dict."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from support.frameworks import to_numpy
from support.samples import (
    BATCH_SIZES,
    as_bytes,
    as_dict,
    check_new_mask,
    items_of,
    new_in_order,
    random_keys,
    random_values,
    same_bytes,
)

from gpuhash import HashTable


@pytest.mark.parametrize("count", BATCH_SIZES)
def test_insert_or_assign_batches_of_any_size(native, count):
    keys = random_keys("int64", (), max(count, 1))[:count]
    values = random_values("int32", (count,))
    table = HashTable("int64", "int32", device=native.table_device)
    mask = table.insert_or_assign(native.array(keys), native.array(values))
    assert native.owns(mask)
    same_bytes(mask, np.ones(count, bool))
    assert items_of(table) == as_dict(keys, values)
    same_bytes(table.insert_or_assign(native.array(keys), native.array(values[::-1])), np.zeros(count, bool))
    assert items_of(table) == as_dict(keys, values[::-1])


def test_setitem_against_dict(place):
    table = HashTable("int64", "float32", device=place.table_device)
    model: dict[bytes, bytes] = {}
    for seed in range(8):
        keys = random_keys("int64", (), 3000, seed=seed // 2)[: 500 * (seed + 1)]
        values = random_values("float32", keys.shape, seed)
        table[place.array(keys)] = place.array(values)
        model.update(as_dict(keys, values))
        assert len(table) == len(model)
    assert items_of(table) == model


def test_insert_keeps_and_insert_or_assign_assigns(place):
    # int64: TensorFlow keeps int32 on the host, also on a GPU.
    table = HashTable("int64", "int64", device=place.table_device)
    first = np.arange(0, 1000, dtype=np.int64)
    second = np.arange(500, 1500, dtype=np.int64)
    same_bytes(table.insert(place.array(first), place.array(np.full(1000, 1))), np.ones(1000, bool))
    mask = table.insert(place.array(second), place.array(np.full(1000, 2)))
    assert place.owns(mask)
    same_bytes(mask, second >= 1000)
    expected = dict.fromkeys(range(1000), 1) | dict.fromkeys(range(1000, 1500), 2)
    assert dict(zip(*map(np.ndarray.tolist, map(to_numpy, table.items())), strict=True)) == expected
    mask = table.insert_or_assign(place.array(second + 100), place.array(np.full(1000, 3)))
    same_bytes(mask, second + 100 >= 1500)
    expected |= dict.fromkeys(range(600, 1600), 3)
    assert dict(zip(*map(np.ndarray.tolist, map(to_numpy, table.items())), strict=True)) == expected


@pytest.mark.pairwise
@pytest.mark.parametrize("value_shape", [(), (5,), (64,)], ids=["scalar", "row5", "row64"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["any", "deterministic"])
@pytest.mark.parametrize("method", ["insert", "insert_or_assign"])
@pytest.mark.parametrize("distinct", [1, 10, 3000])
def test_duplicates_in_one_batch(native, method, deterministic, distinct, value_shape):
    rng = np.random.default_rng(distinct)
    keys = rng.integers(-distinct, distinct, 20_000)
    values = np.empty((len(keys), *value_shape), np.int32)
    values[:] = np.arange(len(keys)).reshape(-1, *(1,) * len(value_shape))
    in_order = native.table_device == "cpu" or deterministic
    table = HashTable(
        "int64", "int32", value_shape=value_shape, device=native.table_device, deterministic=deterministic
    )
    known = np.arange(-distinct, 0)  # half the keys are there before
    before = np.full((distinct, *value_shape), -7, np.int32)
    table[native.array(known)] = native.array(before)
    mask = getattr(table, method)(native.array(keys), native.array(values))
    check_new_mask(mask, keys, as_dict(known, before), in_order=in_order)

    got_keys, got = map(to_numpy, table.items())
    got = got.reshape(len(got), -1)
    assert (got == got[:, :1]).all(), "a row is a mix of two"
    got = pd.Series(got[:, 0], got_keys).sort_index()
    column = pd.Series(np.arange(len(keys), dtype=np.int32), keys)
    last = column.groupby(level=0).last()
    first = column.groupby(level=0).first()
    expected = pd.Series(np.int32(-7), known)
    if method == "insert":
        expected = expected.combine_first(first).astype(np.int32)
    else:
        expected = last.combine_first(expected).astype(np.int32)
    if in_order:
        pd.testing.assert_series_equal(got, expected.sort_index(), check_names=False)
    else:
        assert got.index.tolist() == expected.sort_index().index.tolist()
        kept = got[got != -7]
        assert (keys[kept.to_numpy()] == kept.index).all()
        if method == "insert":
            assert (got[got.index < 0] == -7).all()
        else:
            assert set(kept.index) == set(keys.tolist())


@pytest.mark.parametrize("reserved", [False, True], ids=["full", "half-full"])  # on a GPU, tried or known to fit
@pytest.mark.parametrize("erased", [False, True], ids=["none-erased", "some-erased"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("spread", [0.0, 1.1, 1.5, 9.0], ids=str)
def test_known_keys_that_come_often_get_a_value_of_theirs(device, spread, dtype, erased, reserved):
    """Uniform draws, Zipf's, and one key that is nearly all of the batch; twice, so that the second values replace."""
    rng = np.random.default_rng(int(10 * spread))
    known = random_keys(dtype, (), 20_000)
    table = HashTable(dtype, dtype, capacity=40_000 if reserved else 20_000, max_load_factor=1.0, device=device)
    table[known] = -7
    if erased:
        assert table.erase(known[::3]).all()
        known = np.delete(known, slice(None, None, 3))
    untouched, drawn = known[:5000], known[5000:]
    for first in (0, 1 << 20):
        picks = (rng.zipf(spread, 50_000) - 1) % len(drawn) if spread else rng.integers(0, len(drawn), 50_000)
        values = np.arange(first, first + len(picks), dtype=dtype)
        mask = table.insert_or_assign(drawn[picks], values)
        assert not to_numpy(mask).any()
        got = to_numpy(table[drawn]).astype(np.int64) - first
        came = np.bincount(picks, minlength=len(drawn)) > 0
        assert (picks[got[came]] == np.flatnonzero(came)).all()
        if device == "cpu":
            assert (got[came] == pd.Series(np.arange(len(picks))).groupby(picks).last()).all()
        assert (to_numpy(table[untouched]) == -7).all()
        assert len(table) == len(known)


def test_scalar_value_broadcasts(place):
    keys = random_keys("int64", (), 1000)
    table = HashTable("int64", "float32", device=place.table_device)
    table[place.array(keys)] = 2.5
    same_bytes(table[place.array(keys)], np.full(len(keys), 2.5, np.float32))
    same_bytes(table.insert_or_assign(place.array(keys), 3), np.zeros(len(keys), bool))
    same_bytes(table[place.array(keys)], np.full(len(keys), 3, np.float32))


def test_one_row_broadcasts(native):
    keys = random_keys("int64", (), 1000)
    row = np.arange(6, dtype=np.float32).reshape(2, 3)
    table = HashTable("int64", "float32", value_shape=(2, 3), device=native.table_device)
    table[native.array(keys)] = native.array(row)
    same_bytes(table[native.array(keys)], np.broadcast_to(row, (len(keys), 2, 3)))
    table[native.array(keys[:10])] = 1
    same_bytes(table[native.array(keys[:10])], np.ones((10, 2, 3), np.float32))


def test_masks_into_out(native):
    keys = np.array([1, 2, 3, 4])
    values = np.array([1, 2, 3, 4], np.float32)
    table = HashTable("int64", "float32", device=native.table_device)
    mask = native.array(np.zeros(4, bool))
    assert table.insert(native.array(keys), native.array(values), out=mask) is mask
    same_bytes(mask, np.ones(4, bool))
    assert table.insert_or_assign(native.array(keys + 1), native.array(values), out=mask) is mask
    same_bytes(mask, np.array([False, False, False, True]))
    assert table.insert_or_apply(native.array(keys + 2), native.array(values), "add", out=mask) is mask
    same_bytes(mask, np.array([False, False, False, True]))


def test_python_scalars_give_python_masks(device):
    table = HashTable("int64", "int64", device=device)
    assert table.insert(5, 1) is True
    assert table.insert(5, 2) is False
    assert table[5] == 1
    assert table.insert_or_assign(5, 3) is False
    assert table.insert_or_assign(6, 3) is True
    assert table[5] == 3
    assert table.insert_or_apply(5, 10, "add") is False
    assert table[5] == 13


def test_setdefault(native):
    table = HashTable("int64", "int64", device=native.table_device)
    assert table.setdefault(1, 10) == 10
    assert table.setdefault(1, 20) == 10
    keys = np.array([1, 2, 3, 2])
    got = table.setdefault(native.array(keys), native.array(np.array([5, 6, 7, 6])))
    assert native.owns(got)
    same_bytes(got, np.array([10, 6, 7, 6]))
    same_bytes(table.setdefault(native.array(np.array([3, 9])), 0), np.array([7, 0]))
    same_bytes(table.setdefault([1, 11], 4), np.array([10, 4]))
    assert len(table) == 5


def test_update_from_everything(native):
    device = native.table_device
    table = HashTable("int64", "float64", device=device)
    model = {}
    table.update({1: 1.0, 2: 2.0})
    model.update({1: 1.0, 2: 2.0})
    table.update([(2, 3.0), (4, 4.0)])
    model.update([(2, 3.0), (4, 4.0)])
    table.update(iter([(6, 1.0), (6, 6.5)]))
    model.update([(6, 1.0), (6, 6.5)])
    table.update(native.array(np.array([7, 8])), native.array(np.array([7.0, 8.0])))
    model.update({7: 7.0, 8: 8.0})
    other = HashTable("int64", "float64", device="cpu")
    other.update({8: -8.0, 9: -9.0})
    table.update(other)
    model.update({8: -8.0, 9: -9.0})
    table.update({})
    table.update([])
    assert dict(zip(*map(np.ndarray.tolist, map(to_numpy, table.items())), strict=True)) == model
    table.update(table)
    assert len(table) == len(model)


def test_update_between_devices(cuda):
    host, gpu = (
        HashTable("int64", "float32", value_shape=(3,)),
        HashTable("int64", "float32", value_shape=(3,), device=cuda),
    )
    keys = random_keys("int64", (), 5000)
    values = random_values("float32", (5000, 3))
    host[keys[:3000]] = values[:3000]
    gpu[keys[2000:]] = values[2000:]
    gpu.update(host)
    assert items_of(gpu) == as_dict(keys, values)
    host.update(gpu)
    assert items_of(host) == as_dict(keys, values)


def test_many_batches_with_duplicates_follow_the_dict(native):
    rng = np.random.default_rng(11)
    table = HashTable("uint16", "int64", device=native.table_device, deterministic=True)
    model: dict[bytes, bytes] = {}
    for _ in range(60):
        keys = rng.integers(0, 3000, rng.integers(0, 400)).astype(np.uint16)
        values = rng.integers(-9, 9, len(keys))
        mask = table.insert_or_assign(native.array(keys), native.array(values))
        same_bytes(mask, new_in_order(keys, model))
        model.update(zip(as_bytes(keys).tolist(), as_bytes(values).tolist(), strict=True))
    assert items_of(table) == model


@pytest.mark.parametrize("threads", [2, 3, 5, 7], indirect=True)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_hardly_any_key_of_a_batch_is_another_threads(dtype, threads):
    """A thread that owns nearly all keys of a batch leaves the others theirs."""
    count = 1 << 18
    keys = random_keys(dtype, (), 5)
    values = np.arange(count)
    # Where the parts of the batch begin that each thread deals out: in multiples of 64 keys.
    begins = np.arange(threads) * (count // 64) // threads * 64
    others = (begins[:, None] + np.arange(10)).ravel()
    for one, other in itertools.permutations(keys, 2):
        batch = np.full(count, one, dtype)
        batch[others] = other
        table = HashTable(dtype, "int64", device="cpu", capacity=1 << 20)
        is_first = np.zeros(count, bool)
        is_first[np.unique(batch, return_index=True)[1]] = True
        same_bytes(table.insert_or_assign(batch, values), is_first)
        assert items_of(table) == as_dict(batch[[*others, -1]], values[[*others, -1]])
