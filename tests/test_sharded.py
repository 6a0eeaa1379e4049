"""Tables of several shards: the answers of a single table, whatever the shards' devices and the keys' own."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.frameworks import (
    GPU,
    Framework,
    address_of,
    capture,
    gpu_count,
    module,
    nearest_framework,
    need_cuda,
    need_place,
    sees_gpu,
    to_numpy,
)
from support.hashing import hash_key, keys_of_one_hash
from support.memory_resources import NumPyMemory, counting_memory
from support.samples import as_dict, check_new_mask, items_of, random_keys, random_values, same_bytes
from support.tuning import tuned

import gpuhash
from gpuhash import HashSet, HashTable, PlatformError, TableFullError
from gpuhash.files import serialization
from gpuhash.initializers import Normal

SHARD_SHIFT = 40
KINDS = {
    "scalar": ("int64", (), "float32", ()),
    "narrow": ("uint8", (), "int64", ()),
    "wide": ("int64", (2,), "int32", ()),
    "odd": ("int8", (3,), "int16", ()),
    "rows": ("int32", (), "float32", (5,)),
    "wide-rows": ("int64", (), "float64", (16,)),
    "bfloat16-rows": ("uint16", (), "bfloat16", (3, 3)),
    "wide-keys": ("int32", (6,), "float32", ()),
}
OUTLINES = {  # the shards' devices
    "host-1": ["cpu"],
    "host-4": ["cpu"] * 4,
    "gpu-1": [GPU],
    "gpu-3": [GPU] * 3,
    "two-gpus": ["cuda:0", "cuda:1"],
    "two-gpus-five-shards": ["cuda:1", "cuda:0", "cuda:1", "cuda:1", "cuda:0"],
}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.gpu] * ("gpu" in name)) for name in OUTLINES])
def devices(request):
    devices = OUTLINES[request.param]
    if devices[0] != "cpu":
        need_cuda()
        if "two" in request.param and gpu_count() < 2:
            pytest.skip("needs two GPUs")
    return devices


def arrays_on(devices):
    """The nearest framework on each of the shards' devices."""
    return [
        need_place(Framework("numpy" if device == "cpu" else "torch", device, device))
        for device in dict.fromkeys(devices)
    ]


def make(kind, device, **options):
    key_dtype, key_shape, value_dtype, value_shape = KINDS[kind]
    return HashTable(key_dtype, value_dtype, key_shape=key_shape, value_shape=value_shape, device=device, **options)


def samples(kind, count=3000, seed=0):
    key_dtype, key_shape, value_dtype, value_shape = KINDS[kind]
    keys = random_keys(key_dtype, key_shape, count, seed)
    return keys, random_values(value_dtype, (len(keys), *value_shape), seed)


def shuffled(rng, *arrays):
    order = rng.permutation(len(arrays[0]))
    return [array[order] for array in arrays]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_single_table(devices, kind):
    rng = np.random.default_rng(1)
    one, many = make(kind, "cpu", deterministic=True), make(kind, devices, deterministic=True)
    keys, values = samples(kind)
    keys, values = shuffled(
        rng, np.concatenate([keys, keys[: len(keys) // 3]]), np.concatenate([values, values[: len(keys) // 3][::-1]])
    )
    stored = len(keys) * 2 // 3
    for place in arrays_on(devices):
        given, numbers = place.array(keys[:stored]), place.array(values[:stored])
        same_bytes(many.insert(given, numbers), one.insert(keys[:stored], values[:stored]))
        same_bytes(many.contains(place.array(keys)), one.contains(keys))
        expected, expected_found = one.find(keys)
        got, found = many.find(place.array(keys))
        assert place.owns(got)
        assert place.owns(found)
        same_bytes(found, expected_found)
        same_bytes(got, expected)
        default = values[0]
        same_bytes(many.get(place.array(keys), default), one.get(keys, default))
        same_bytes(many.find(place.array(keys), place.array(values))[0], one.find(keys, values)[0])
        many[place.array(keys[::2])] = place.array(values[::2])
        one[keys[::2]] = values[::2]
        same_bytes(many[place.array(keys[::2])], one[keys[::2]])
        same_bytes(many.insert_or_assign(given, numbers), one.insert_or_assign(keys[:stored], values[:stored]))
        many[place.array(keys[:7])] = place.array(np.array(values[5]))
        one[keys[:7]] = values[5]
        erased = to_numpy(many.erase(place.array(keys[::3])))
        expected = one.erase(keys[::3])
        assert erased.sum() == expected.sum(), "one of each key's duplicates"
        assert as_dict(keys[::3][erased], erased[erased]) == as_dict(keys[::3][expected], expected[expected])
        assert len(many) == len(one)
        assert items_of(many) == items_of(one)
        with pytest.raises(KeyError, match="are absent"):
            many[place.array(keys)]
        assert many == one
        assert one == many
        empty = many.find(place.array(keys[:0]))
        assert to_numpy(empty[0]).shape == values[:0].shape
        assert to_numpy(empty[1]).shape == (0,)
        many.clear()
        one.clear()
        assert len(many) == 0


@pytest.mark.pairwise
@pytest.mark.parametrize("op", ["add", "multiply", "min", "max", "bit_xor"])
@pytest.mark.parametrize("kind", ["narrow", "wide", "odd"])
def test_insert_or_apply(devices, kind, op):
    rng = np.random.default_rng(2)
    keys, values = samples(kind)
    picked = rng.integers(0, len(keys), 9000)
    one, many = make(kind, "cpu"), make(kind, devices)
    for place in arrays_on(devices):
        for part in np.split(picked, 3):
            given, numbers = keys[part], values[rng.integers(0, len(values), len(part))]
            known = as_dict(*one.items())
            one.insert_or_apply(given, numbers, op)
            new = many.insert_or_apply(place.array(given), place.array(numbers), op)
            check_new_mask(new, given, known, in_order=False)
            assert items_of(many) == items_of(one)
    with pytest.raises(ValueError, match="is not known"):
        many.insert_or_apply(keys[:1], values[:1], "divide")


@pytest.mark.parametrize("kind", ["scalar", "rows", "wide"])
def test_arrays_of_every_framework(place, kind):
    devices = [place.table_device] * 3
    table = make(kind, devices, default=1)
    keys, values = samples(kind)
    table[place.array(keys[::2])] = place.array(values[::2])
    got, found = table.find(place.array(keys))
    assert place.owns(got)
    expected = np.where(
        (np.arange(len(keys)) % 2 == 0).reshape(-1, *(1,) * len(KINDS[kind][3])), values, np.ones((), values.dtype)
    )
    same_bytes(got, expected)
    assert to_numpy(found).tolist() == (np.arange(len(keys)) % 2 == 0).tolist()
    assert table[int(keys[0]) if not KINDS[kind][1] else tuple(keys[0].tolist())] is not None
    new, *others = table.insert(place.array(keys), place.array(values)), len(table)
    assert to_numpy(new).sum() == len(keys) // 2
    assert others == [len(keys)]


@pytest.mark.parametrize("pattern", ["sequential", "strided", "high", "reversed", "owner-strided"])
def test_keys_of_any_pattern_spread_evenly(pattern):
    """Over the shards, and over each shard's slots: neither has more than chance would give it."""
    count, shards = 1 << 16, 4
    numbers = np.arange(count, dtype=np.uint64)
    keys = {
        "sequential": numbers,
        "strided": numbers * np.uint64(1 << 20),
        "high": numbers << np.uint64(48),
        "reversed": numbers * np.uint64(0x8000000000000001),
        "owner-strided": numbers * np.uint64(shards),
    }[pattern]
    table = HashSet("uint64", device=["cpu"] * shards)
    table.add(keys)
    sizes = np.array([len(shard) for shard in table.shards])
    mean = len(np.unique(keys)) / shards
    assert abs(sizes - mean).max() < 6 * np.sqrt(mean)
    parts = 16  # of a shard's buckets, which the high half of the hash picks from
    for shard in table.shards:
        homes = np.bincount((hash_key(to_numpy(shard.keys())) >> np.uint64(60)).astype(np.int64), minlength=parts)
        assert abs(homes - len(shard) / parts).max() < 6 * np.sqrt(len(shard) / parts)


def test_the_owner_is_the_same_wherever_keys_come_from(devices):
    table = make("scalar", devices)
    keys, values = samples("scalar")
    for place, part in zip(arrays_on(devices) * 2, np.array_split(np.arange(len(keys)), 2), strict=False):
        table[place.array(keys[part])] = place.array(values[part])
    table[keys] = values  # from the host
    assert len(table) == len(keys)
    assert sum(map(len, table.shards)) == len(keys)
    assert items_of(table) == as_dict(keys, values)
    same_bytes(table[keys], values)


@pytest.mark.parametrize("one_is_empty", [False, True])
@pytest.mark.parametrize("kind", ["scalar", "rows", "wide-keys"])
def test_several_batches_in_one_call(devices, kind, one_is_empty):
    rng = np.random.default_rng(5)
    keys, values = samples(kind)
    places = (arrays_on(devices) * 4)[:4]
    parts = np.array_split(rng.permutation(len(keys)), 4)
    if one_is_empty:
        parts[2] = parts[2][:0]
    one, many = make(kind, "cpu", default=3), make(kind, devices, default=3)
    batches = [place.array(keys[part]) for place, part in zip(places, parts, strict=True)]
    numbers = [place.array(values[part]) for place, part in zip(places, parts, strict=True)]
    for name in ("insert", "insert_or_assign"):
        new = getattr(many, name)(batches[:3], numbers[:3])
        for part, mask in zip(parts[:3], new, strict=True):
            same_bytes(mask, getattr(one, name)(keys[part], values[part]))
    many[batches[3:]] = 2
    one[keys[parts[3]]] = 2
    assert items_of(many) == items_of(one)
    found, (got, also) = many.contains(batches), many.find(batches)
    for part, place, mask, value, again, fetched in zip(
        parts, places, found, got, also, many.get(batches, 1), strict=True
    ):
        assert place.owns(mask)
        assert place.owns(value)
        expected = one.find(keys[part])
        same_bytes(mask, expected[1])
        same_bytes(again, expected[1])
        same_bytes(value, expected[0])
        same_bytes(fetched, one.get(keys[part], 1))
    many.insert_or_apply(batches, numbers, "add")
    for part in parts:
        one.insert_or_apply(keys[part], values[part], "add")
    assert items_of(many) == items_of(one)
    for part, mask in zip(parts[1:], many.erase(batches[1:]), strict=True):
        same_bytes(mask, one.erase(keys[part]))
    assert items_of(many) == items_of(one)
    before = items_of(many)
    with pytest.raises(TypeError, match="uint32"):
        many.insert([batches[1], places[0].array(keys.astype(np.uint32))], 1)
    with pytest.raises(ValueError, match="3 arrays of values"):
        many.insert(batches, numbers[:3])
    with pytest.raises(TypeError, match="out="):
        many.contains(batches, out=places[0].array(np.zeros(4, bool)))
    assert items_of(many) == before


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_key_in_several_batches(devices, deterministic):
    """One whole value stays, and one of the duplicates is told that it is new; which, if the table is deterministic."""
    table = HashTable("int64", "int64", device=devices, deterministic=deterministic)
    places = (arrays_on(devices) * 3)[:3]
    keys = [np.arange(200), np.arange(100, 300), np.arange(0, 300, 3)]
    for name, first in (("insert", True), ("insert_or_assign", False)):
        batches = [place.array(part) for place, part in zip(places, keys, strict=True)]
        numbers = [place.array(part + 1000 * i) for i, (place, part) in enumerate(zip(places, keys, strict=True))]
        masks = [to_numpy(mask) for mask in getattr(table, name)(batches, numbers)]
        found, values = table.contains(np.arange(300)), table[np.arange(300)]
        assert found.all()
        assert len(table) == 300
        new = np.concatenate([part[mask] for part, mask in zip(keys, masks, strict=True)])
        assert sorted(new) == list(range(300))
        for key, value in enumerate(values):
            given = [key + 1000 * i for i, part in enumerate(keys) if key in part]
            assert value == (given[0] if first else given[-1]) if deterministic else value in given
        table.clear()


def test_a_set_of_several_batches(devices):
    keys, _ = samples("scalar")
    table = HashSet("int64", device=devices)
    places = arrays_on(devices)
    new = table.add([place.array(keys) for place in places])
    assert [int(to_numpy(mask).sum()) for mask in new] == [len(keys), *[0] * (len(places) - 1)]
    assert len(table) == len(keys)
    assert table == set(keys.tolist())
    assert (table & HashSet.from_keys(keys[:5])) == set(keys[:5].tolist())
    assert (table ^ set(keys[:5].tolist())) == set(keys[5:].tolist())


@pytest.mark.parametrize("kind", ["rows", "wide-rows"])
def test_rows_name_shard_and_row(devices, kind):
    table = make(kind, devices)
    keys, values = samples(kind)
    table[keys[:-5]] = values[:-5]
    for place in arrays_on(devices):
        numbers = to_numpy(table.rows(place.array(keys)))
        assert (numbers[-5:] == -1).all()
        storages = [to_numpy(shard.row_storage) for shard in table.shards]
        for number, value in zip(numbers[:-5], values[:-5], strict=True):
            same_bytes(storages[number >> SHARD_SHIFT][number & ((1 << SHARD_SHIFT) - 1)], value)
        (again,) = table.rows([place.array(keys)])
        same_bytes(again, numbers)
    with pytest.raises(ValueError, match=r"shards\[i\]\.row_storage"):
        _ = table.row_storage
    with pytest.raises(ValueError, match="no row storage"):
        make("scalar", devices).rows(keys)


def test_large_rows_of_shards_stay_where_they_are(devices):
    """While each shard grows; keys come from each device, and answers go there."""
    count = 6000 * len(devices)
    keys = random_keys("int64", (), 4 * count)
    values = random_values("float32", (len(keys), 256))
    table = HashTable("int64", "float32", value_shape=(256,), device=devices, capacity=2 * count)
    places = arrays_on(devices)
    table[places[0].array(keys[:count])] = places[0].array(values[:count])
    views = [shard.row_storage_as(nearest_framework(shard.device).name) for shard in table.shards]
    before = [to_numpy(view).copy() for view in views]
    capacity = table.capacity
    for part in range(1, 4):
        place = places[part % len(places)]
        end = (part + 1) * count
        table[place.array(keys[:end])] = place.array(values[:end])
        same_bytes(table[place.array(keys[:end])], values[:end])
    assert table.capacity > capacity
    for shard, view, rows in zip(table.shards, views, before, strict=True):
        assert address_of(shard.row_storage_as(nearest_framework(shard.device).name)) == address_of(view)
        same_bytes(view, rows)
    assert items_of(table) == as_dict(keys, values)
    table[places[-1].array(keys)] = 1
    assert len(table) == len(
        keys
    )  # which waits: a view is read in an order that a call from another GPU knows nothing of
    assert all((to_numpy(view) == 1).all() for view in views)


def test_shards_are_the_table_itself(devices):
    table = make("scalar", devices, default=-1)
    keys, values = samples("scalar")
    table[keys] = values
    assert [shard.device for shard in table.shards] == devices
    assert table.device == ",".join(devices)
    merged = {}
    for shard in table.shards:
        mine = items_of(shard)
        assert not merged.keys() & mine.keys()
        merged |= mine
        assert shard.default == -1
        assert shard.shards[0] is shard
    assert merged == items_of(table) == as_dict(keys, values)
    first = table.shards[0]
    own = to_numpy(first.keys())
    first.erase(own)
    assert len(table) == len(keys) - len(own)
    assert not to_numpy(table.contains(own)).any()


@pytest.mark.parametrize("kind", ["scalar", "rows", "bfloat16-rows", "wide-keys"])
def test_moves_copies_and_files(devices, kind, tmp_path):
    keys, values = samples(kind)
    table = make(kind, devices, max_load_factor=0.6, deterministic=True, default=2)
    table[keys] = values
    expected = as_dict(keys, values)
    path = tmp_path / "table.safetensors"
    table.save(path)
    host = ["cpu"] * 3
    for other in (
        HashTable.load(path, device=host),
        gpuhash.load(path, device=devices),
        gpuhash.load(path),
        table.to(host),
        table.to("cpu"),
        table.to("cpu").to(devices),
        pickle.loads(pickle.dumps(table)),
        table.copy(),
        copy.deepcopy(table),
    ):
        assert items_of(other) == expected
        assert other == table
        assert other.deterministic
        assert other.max_load_factor == 0.6
        same_bytes(np.asarray(other.default), np.asarray(table.default))
        other.clear()
        assert len(table) == len(keys)
    assert HashTable.load(path, device=devices).device == table.device == table.copy().device
    assert table.to(devices) is table
    table.update(make(kind, "cpu"))
    other = make(kind, host)
    other.update(table)
    assert items_of(other) == expected


@pytest.mark.parametrize(
    ("shards", "slots", "count"),
    [(4, 64, 20), (4, 64, 40), (4, 128, 90), (4, 512, 384), (4, 1024, 410), (4, 1024, 760), (64, 4096, 2000)],
)
def test_bounded_shards_are_filled_again_as_they_were(device, tmp_path, shards, slots, count):
    """What fits into shards of a fixed size fits into those of a file, a pickle and a copy."""
    where = [device] * shards
    table = HashTable("int64", "float32", device=where, growth=False, capacity=slots)
    keys = np.arange(count)
    table[keys] = keys.astype(np.float32)
    expected = items_of(table)
    path = tmp_path / "table.safetensors"
    table.save(path)
    for other in (pickle.loads(pickle.dumps(table)), HashTable.load(path, device=where), table.to(where[:-1])):
        assert items_of(other) == expected
        assert other.max_capacity == table.max_capacity
    growing = HashTable("int64", "float32", device=where, max_capacity=slots)
    growing[keys] = keys.astype(np.float32)
    assert items_of(pickle.loads(pickle.dumps(growing))) == expected


def test_a_file_that_does_not_fit_into_its_shards(tmp_path):
    """More keys of one shard than that may hold, though fewer than all of them may."""
    table = HashTable("int64", "int64", device=["cpu"] * 4)
    table[np.arange(400)] = 1
    few = table.shards[0].to("cpu")
    path = tmp_path / "table.safetensors"
    serialization.write_file(path, dataclasses.replace(few._contents(), max_capacity=4 * 64))
    assert 64 < len(few) < 4 * 64
    assert HashTable.load(path) == few
    with pytest.raises(ValueError, match="do not fit into its max_capacity"):
        HashTable.load(path, device=["cpu"] * 4)


def test_a_named_table_is_opened_with_its_shards(devices):
    table = HashTable("int64", "int64", device=devices, name="sharded for a test")
    try:
        table[np.arange(100)] = 5
        other = gpuhash.open("sharded for a test")
        assert other.device == table.device
        assert len(other.shards) == len(devices)
        other[np.arange(50, 150)] = 6
        assert len(table) == 150
        assert table[149] == 6
    finally:
        table.close()


def test_keys_of_shape_one(devices):
    table = HashTable("int64", "int64", key_shape=(1,), device=devices)
    keys = np.arange(100).reshape(-1, 1)
    table[keys] = np.arange(100)
    for other in (table.to(["cpu"] * 2), *table.shards):
        assert other.key_shape == (1,)
        assert to_numpy(other.keys()).shape == (len(other), 1)
    same_bytes(table.to(["cpu"] * 2)[keys], np.arange(100))


@pytest.mark.parametrize(("width", "bits"), [(1, 63), (4, 63), (4, 3)], ids=["word", "wide", "wide-3"])
def test_each_shard_is_full_alone_and_nothing_is_half_done(devices, width, bits):
    """Also of wide keys, most of which share their fingerprints."""
    options = {"key_shape": width, "capacity": 64 * len(devices), "growth": False, "deterministic": True}
    with tuned(fingerprint_bits=bits):
        table = HashTable("int64", "int64", device=devices, **options)
    keys = np.arange(10_000 if bits == 63 else 400).reshape(-1, 1).repeat(width, 1)
    table[keys[:40]] = np.arange(40)
    before = items_of(table)
    for place in arrays_on(devices):
        many, values = place.array(keys), place.array(np.arange(len(keys)))
        for call in (
            lambda many=many, values=values: table.insert(many, values),
            lambda many=many, values=values: table.insert_or_apply(many, values, "add"),
            lambda many=many: table.insert_or_assign([many], 1),
        ):
            with pytest.raises(TableFullError):
                call()
            assert items_of(table) == before
        present = np.tile(np.arange(40), 100)
        table[place.array(keys[present])] = place.array(present)  # needs no room
        assert items_of(table) == before
    table.clear()
    table[keys[:30]] = 1
    assert len(table) == 30


@pytest.mark.parametrize("initializer", [None, Normal(seed=3)], ids=["values", "drawn"])
def test_insertions_of_wide_keys_without_memory_change_nothing(initializer):
    """Each allocation of a growing call fails once: all shards take the memory beside their tables first."""
    keys = random_keys("int32", (6,), 600)
    options = {"key_shape": 6, "value_shape": 2, "initializer": initializer}
    values = random_values("float32", (len(keys), 2))
    whole = HashTable("int32", "float32", **options)
    whole[keys[:100]] = values[:100]
    if initializer is None:
        whole[keys] = values
    else:
        whole.setdefault(keys)
    for failing in range(200):
        memory = counting_memory("cpu")
        table = HashTable("int32", "float32", **options, device=["cpu"] * 3, memory=[memory] * 3)
        table[keys[:100]] = values[:100]
        before = items_of(table)
        memory.fail_after(failing)
        try:
            if initializer is None:
                table[keys] = values
            else:
                table.setdefault(keys)
        except MemoryError:
            memory.fail_after(None)
            if len(table) != len(keys):  # else the values that were inserted could not be read
                assert items_of(table) == before
        else:
            memory.fail_after(None)
            assert items_of(table) == items_of(whole)
            break
    assert 20 < failing < 199


def changes_of(batches):
    """Calls with lists of batches."""
    return {
        "insert": lambda table: table.insert(batches, batches),
        "insert_or_assign": lambda table: table.insert_or_assign(batches, batches),
        "assignment": lambda table: table.__setitem__(batches, batches),
        "insert_or_apply": lambda table: table.insert_or_apply(batches, batches, "add"),
        "one value": lambda table: table.insert_or_apply(batches, 1, "add"),
    }


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_list_of_batches_that_does_not_fit_changes_nothing(devices, deterministic):
    """Also where the first ones would have found room; and what fits but for its duplicates goes in."""
    places = (arrays_on(devices) * 3)[:3]
    table = HashTable(
        "int64", "int64", device=devices, capacity=256 * len(devices), growth=False, deterministic=deterministic
    )
    table[np.arange(20)] = np.arange(20)
    before = items_of(table)
    few, many = np.arange(10, 40), np.arange(1000, 6000)
    for order in ([few, many, few], [many, few, few], [few, few, many]):
        batches = [place.array(part) for place, part in zip(places, order, strict=True)]
        for change in changes_of(batches).values():
            with pytest.raises(TableFullError):
                change(table)
            assert items_of(table) == before
    again = [place.array(np.tile(few, 200)) for place in places]
    for name, change in changes_of(again).items():
        change(table)
        values = to_numpy(table[few])
        expected = np.where(few < 20, few, 0)
        if name in ("insert_or_apply", "one value"):
            expected = expected + 600 * (few if name == "insert_or_apply" else 1)
        elif name in ("insert_or_assign", "assignment", "insert"):
            expected = few
        np.testing.assert_array_equal(values, expected)
        assert len(table) == 40
        table.erase(np.arange(20, 40))
        table[np.arange(20)] = np.arange(20)


@pytest.mark.parametrize("name", changes_of([]))
def test_a_list_of_batches_without_memory_changes_nothing(devices, name):
    """Each allocation of a growing call fails once."""
    places = (arrays_on(devices) * 3)[:3]
    parts = [np.arange(100, 700), np.arange(600, 1600), np.arange(1500, 4000)]
    change = changes_of([place.array(part) for place, part in zip(places, parts, strict=True)])[name]
    whole = HashTable("int64", "int64", device=devices)
    whole[np.arange(200)] = np.arange(200)
    change(whole)
    for failing in range(40):
        resources = [counting_memory(device) for device in devices]
        table = HashTable("int64", "int64", device=devices, memory=resources)
        table[np.arange(200)] = np.arange(200)
        before = items_of(table)
        shard = failing % len(devices)
        resources[shard].fail_after(failing // len(devices))
        try:
            change(table)
        except MemoryError:
            resources[shard].fail_after(None)
            if devices[0] == "cpu":  # where no shard's insertion takes memory of the resource for its scratch
                assert items_of(table) == before
        else:
            resources[shard].fail_after(None)
            assert items_of(table) == items_of(whole)


@pytest.mark.parametrize("kind", ["short floats", "another seed", "counted"])
def test_a_list_without_memory_for_what_comes_between(kind):
    """Sums of 16-bit floats, a seed that changes after the first batch, keys that are counted first: no shard fails
    after another one has changed."""
    rng = np.random.default_rng(0)
    others = rng.integers(-(1 << 60), 1 << 60, (3000, 2))
    if kind == "short floats":
        dtype, options, batches = "float16", {"key_shape": 2}, [others[:50], others[:50]]
    elif kind == "another seed":
        dtype, options = "float32", {"key_shape": 2}
        batches = [keys_of_one_hash(3000), others, np.tile(others, (2, 1))]
    else:
        dtype, options, batches = "int64", {}, [rng.integers(0, 5000, 20_000) for _ in range(3)]
    for failing in range(60):
        memory = counting_memory("cpu")
        table = HashTable("int64", dtype, device=["cpu"] * 2, memory=[memory, memory], seed=0, **options)
        memory.fail_after(failing)
        try:
            table.insert_or_apply(batches, 1, "add")
        except MemoryError:
            memory.fail_after(None)
            assert len(table) == 0
        else:
            memory.fail_after(None)
            assert len(table) == len(np.unique(np.concatenate(batches), axis=0))


def test_a_resource_of_a_shard_that_uses_the_whole_table():
    """It is told so: the process ended."""
    said = []

    class Curious(NumPyMemory):
        table = None

        def allocate(self, nbytes, stream=None):
            table, self.table = self.table, None
            if table is not None:
                for use in (lambda: table.erase(np.arange(10)), lambda: table.insert(np.arange(10), 1)):
                    with pytest.raises(RuntimeError):
                        use()
                said.append(True)
            return super().allocate(nbytes, stream)

    memory = Curious()
    table = HashTable("int64", "int64", device=["cpu"] * 2, memory=[memory, memory])
    table[np.arange(100)] = 1
    memory.table = table
    table.shards[0].insert(np.arange(100_000), 2)
    assert said == [True]
    assert len(table.shards[0]) >= 100_000


def test_items_while_others_work_on_the_shards(devices):
    """Keys that somebody has inserted, each with its own value, or word that they have changed meanwhile."""
    table = HashTable("int64", "int64", device=devices)
    keys = np.arange(1, 20_001)
    table[keys] = keys
    stop = threading.Event()
    errors = []

    def work():
        try:
            while not stop.is_set():
                for shard in table.shards:  # as many keys as before, others, and sometimes fewer
                    mine = to_numpy(shard.keys())[:2000]
                    shard.erase(mine)
                    shard[mine + 1_000_000] = mine + 1_000_000
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(60):
            try:
                got, values = map(to_numpy, table.items())
            except ValueError as error:
                if "another thread works on it" not in str(error):
                    raise
                continue
            np.testing.assert_array_equal(got, values)
            assert ((got % 1_000_000 >= 1) & (got % 1_000_000 <= 20_000)).all()
    finally:
        stop.set()
        thread.join()
    assert not errors


def test_room_is_shared_out(devices):
    table = HashTable("int64", "int64", device=devices)
    table.reserve(10000)
    capacity = table.capacity
    table[np.arange(10000)] = 1
    assert table.capacity == capacity
    table.rehash(100000)
    assert table.capacity >= 100000
    table.shrink_to_fit()
    assert 10000 <= table.capacity < 20000
    table.max_load_factor = 0.5
    assert [shard.max_load_factor for shard in table.shards] == [0.5] * len(devices)
    assert table.nbytes == sum(shard.nbytes for shard in table.shards)
    for bad in (-1, 2.0):
        with pytest.raises((ValueError, TypeError)):
            table.reserve(bad)


def test_memory_that_cannot_be_had_loses_nothing(devices):
    """Each allocation of a growing insertion fails once."""
    keys, values = samples("rows", 4000)
    for failing in range(60):
        resources = [counting_memory(device) for device in devices]
        table = make("rows", devices, memory=resources)
        table[keys[:300]] = values[:300]
        before = items_of(table)
        calls = [resource.calls for resource in resources]
        shard = failing % len(devices)
        resources[shard].fail_after(failing // len(devices))
        try:
            table[keys] = values
        except MemoryError:
            resources[shard].fail_after(None)
            expected = as_dict(keys, values)
            now = items_of(table)
            assert before.items() <= now.items() <= expected.items()
            if devices[0] == "cpu":  # where no shard's insertion takes memory of the resource for its scratch
                assert now == before
            whole = make("rows", devices)
            whole[keys] = values
            for part, full in zip(table.shards, whole.shards, strict=True):  # all or nothing
                mine = items_of(part)
                assert mine.keys() <= before.keys() or mine == items_of(full)
            table[keys] = values
        resources[shard].fail_after(None)
        assert items_of(table) == as_dict(keys, values)
        assert [resource.calls for resource in resources] != calls
        del table
        for resource in resources:
            assert not resource.mistakes


def test_threads_share_a_table(devices):
    table = HashTable("int64", "int64", device=devices)
    places = arrays_on(devices)
    errors = []

    def work(number):
        try:
            place = places[number % len(places)]
            keys = np.arange(number * 5000, (number + 1) * 5000)
            for part in np.split(keys, 10):
                table[place.array(part)] = place.array(part * 2)
                same_bytes(table[place.array(part)], part * 2)
            table.insert_or_apply(place.array(np.arange(-500, 0)), place.array(np.ones(500, np.int64)), "add")
            erased = table.erase(place.array(keys[:1000]))
            assert to_numpy(erased).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(table) == 6 * 4000 + 500
    same_bytes(table[np.arange(-500, 0)], np.full(500, 6))


def test_streams_and_late_keys(devices):
    """Keys that a busy stream has still to make, and answers that another one reads."""
    if devices[0] == "cpu":
        pytest.skip("streams are of GPUs")
    torch = module("torch")
    table = HashTable("int64", "int64", device=devices, default=-1)
    for device in dict.fromkeys(devices):
        with torch.cuda.device(device):
            first, second = torch.cuda.Stream(), torch.cuda.Stream()
            keys = torch.zeros(10000, dtype=torch.int64, device=device)
            torch.cuda.synchronize()
            with torch.cuda.stream(first):
                torch.cuda._sleep(50_000_000)
                keys.copy_(torch.arange(10000, device=device))
                table[keys] = keys * 7
            with torch.cuda.stream(second):
                second.wait_stream(first)
                values = table[keys + 1]
                assert (values[:-1] == (keys[1:] * 7)).all()
                assert values[-1] == -1


def test_a_capture_is_refused(devices):
    if devices[0] == "cpu":
        pytest.skip("graphs are of GPUs")
    torch = module("torch")
    table = HashTable("int64", "int64", device=devices, default=-1)
    with torch.cuda.device(devices[0]):
        keys = torch.arange(100, device=devices[0])
        table[keys] = keys
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(ValueError, match="captured"), capture(graph, devices[0]):
            table.find(keys)
        torch.cuda.synchronize()
        assert (table[keys] == keys).all()


def test_the_default_lies_where_the_keys_are(devices):
    table = HashTable("int64", "float64", value_shape=(3,), device=devices, default=[1.0, 2.0, 3.0])
    for place in arrays_on(devices) * 2:
        same_bytes(table[place.array(np.arange(4))], np.tile([1.0, 2.0, 3.0], (4, 1)))
        same_bytes(table.get(place.array(np.arange(4)), 5), np.full((4, 3), 5.0))


def test_out_and_the_keys_own_memory(devices):
    table = HashTable("int64", "int64", device=devices, default=-1)
    table[np.arange(1000)] = np.arange(1000) + 1
    for place in arrays_on(devices):
        keys = place.array(np.arange(2000))
        found = place.array(np.zeros(2000, bool))
        values, mask = table.find(keys, out=(keys, found))
        assert values is keys
        expected = np.where(np.arange(2000) < 1000, np.arange(2000) + 1, -1)
        same_bytes(values, expected)
        assert to_numpy(mask).sum() == 1000


CANNOT_BE = {
    "none": ([], ValueError, "one or more devices"),
    "two platforms": (["cpu", "cuda:0"], ValueError, "one platform"),
    "a platform that is not known": (["cpu", "tpu"], ValueError, "not known"),
    "a number too large": (["cuda:0", "cuda:99"], PlatformError, "cuda"),
    "65": (["cpu"] * 65, ValueError, "1 to 64 shards"),
    "a comma at the end": ("cpu,", ValueError, "not known"),
}


@pytest.mark.parametrize("devices", CANNOT_BE)
def test_devices_that_cannot_be(devices):
    device, error, match = CANNOT_BE[devices]
    with pytest.raises(error, match=match):
        HashTable("int64", "int64", device=device)


def test_all_gpus():
    if gpu_count() == 0:
        with pytest.raises(PlatformError):
            HashTable("int64", "int64", device="cuda:all")
    else:
        table = HashTable("int64", "int64", device="cuda:all")
        assert table.device.split(",") == [f"cuda:{index}" for index in range(gpu_count())]


def test_memory_of_shards():
    with pytest.raises(ValueError, match="a resource for each"):
        HashTable("int64", "int64", device=["cpu"] * 2, memory=counting_memory("cpu"))
    with pytest.raises(ValueError, match="a resource for each"):
        HashTable("int64", "int64", device=["cpu"] * 2, memory=[counting_memory("cpu")])


def test_keys_on_a_gpu_without_a_shard():
    if gpu_count() < 2 or not sees_gpu("torch"):
        pytest.skip("needs two GPUs")
    torch = module("torch")
    table = HashTable("int64", "int64", device=["cuda:0"])
    with pytest.raises(ValueError, match="cuda:1"):
        table.contains(torch.arange(3, device="cuda:1"))
    with pytest.raises(ValueError, match="cuda:0"):
        HashTable("int64", "int64", device=["cpu"] * 2).contains(torch.arange(3, device="cuda:0"))


def test_inside_compiled_functions(devices):
    torch = module("torch")
    table = HashTable("int64", "int64", device=devices, default=-1)
    place = need_place(Framework("torch", devices[0], devices[0]))
    keys = place.array(np.arange(100))

    def step(keys):
        table[keys] = keys + 1
        return table[keys * 2]

    expected = np.where(np.arange(100) < 50, np.arange(100) * 2 + 1, -1)
    same_bytes(torch.compile(step, fullgraph=True)(keys), expected)


def test_inside_jax_programs():
    jax = module("jax")
    if jax is None:
        pytest.skip("jax is not installed")
    table = HashTable("int32", "int32", device=["cpu"] * 3)
    import gpuhash.jax as ours

    state = ours.from_table(table)
    keys = jax.device_put(np.arange(100, dtype=np.int32), jax.devices("cpu")[0])

    @jax.jit
    def program(state, keys):
        state, new = ours.insert(state, keys, keys * 2)
        state, (values, found) = ours.find(state, keys[::-1])
        return state, new, values, found

    state, new, values, found = program(state, keys)
    assert np.asarray(new).all()
    assert np.asarray(found).all()
    same_bytes(np.asarray(values), np.arange(100, dtype=np.int32)[::-1] * 2)
    assert state.table is not None
    assert len(table) == 100


@pytest.mark.long(150)
@pytest.mark.skipif("GPUHASH_PEER_ACCESS" in os.environ, reason="runs in the other process")
def test_without_access_to_each_others_memory():
    """The tests of this file, with copies instead of stores into another shard's memory."""
    environment = {**os.environ, "GPUHASH_PEER_ACCESS": "0"}
    chosen = (
        test_answers_are_those_of_a_single_table,
        test_insert_or_apply,
        test_several_batches_in_one_call,
        test_a_key_in_several_batches,
        test_a_set_of_several_batches,
        test_rows_name_shard_and_row,
        test_moves_copies_and_files,
        test_each_shard_is_full_alone_and_nothing_is_half_done,
        test_a_list_of_batches_that_does_not_fit_changes_nothing,
        test_a_list_of_batches_without_memory_changes_nothing,
        test_items_while_others_work_on_the_shards,
        test_memory_that_cannot_be_had_loses_nothing,
        test_threads_share_a_table,
        test_streams_and_late_keys,
    )
    # By name and not by -k, which would choose by parameters, too, and import every framework for "rows".
    tests = [f"{__file__}::{test.__name__}" for test in chosen]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize(
    ("key_type", "value_dtype", "value"),
    [
        (("int64", ()), "int64", "each"),
        (("int64", ()), "int64", "one"),
        (("int32", (2,)), "float32", "each"),
        (("uint16", ()), "float64", "one"),
        (("int64", ()), "uint8", "each"),
        (("int32", (6,)), "int64", "one"),
    ],
    ids=["int64-int64", "int64-one", "int32x2-float32", "uint16-float64-one", "int64-uint8", "int32x6-one"],
)
def test_hot_keys_of_large_batches(devices, key_type, value_dtype, value):
    """Their values are combined before they go to their shards; whole numbers, so that float sums are exact."""
    rng = np.random.default_rng(3)
    count = (1 << 20) + 777
    pool = random_keys(*key_type, 2000)
    pool = np.unique(pool, axis=0 if pool.ndim > 1 else None)
    many = HashTable(key_type[0], value_dtype, key_shape=key_type[1], device=devices)
    stored = pool[::3]
    many[arrays_on(devices)[0].array(stored)] = 1
    expected = np.zeros(len(pool), np.int64)
    expected[::3] = 1
    present = np.arange(len(pool)) % 3 == 0
    for place in arrays_on(devices):
        for spread in (1.1, 1.5):
            codes = (rng.zipf(spread, count) - 1) % len(pool)
            numbers = rng.integers(0, 4, count).astype(value_dtype) if value == "each" else np.ones(count, value_dtype)
            given = place.array(numbers) if value == "each" else 1
            is_new = to_numpy(many.insert_or_apply(place.array(pool[codes]), given, "add"))
            np.add.at(expected, codes, numbers.astype(np.int64))
            comes = np.bincount(codes, minlength=len(pool)) > 0
            told = np.bincount(codes[is_new], minlength=len(pool))
            np.testing.assert_array_equal(told, comes & ~present, "one of a new key's duplicates is told")
            present |= comes
            values, found = many.find(place.array(pool))
            np.testing.assert_array_equal(to_numpy(found), present)
            wrapped = expected.astype(value_dtype) if value_dtype != "uint8" else (expected % 256).astype(np.uint8)
            np.testing.assert_array_equal(to_numpy(values), np.where(present, wrapped, 0).astype(value_dtype))
        assert len(many) == present.sum()


@pytest.mark.parametrize("value_type", [("int64", ()), ("float32", (3,))], ids=["int64", "float32x3"])
def test_lookups_of_hot_keys_in_large_batches(devices, value_type):
    """A hot key is looked up once for many; each of them gets its answer, and all that are absent are counted."""
    rng = np.random.default_rng(4)
    count = (1 << 22) + 555
    dtype, shape = value_type
    pool = np.unique(random_keys("int64", (), 2000))
    values = rng.integers(0, 99, (len(pool), *shape)).astype(dtype)
    absent = np.arange(len(pool)) % 5 == 1
    many = HashTable("int64", dtype, value_shape=shape, device=devices)
    places = arrays_on(devices)
    many[places[0].array(pool[~absent])] = places[0].array(values[~absent])
    for place in places:
        codes = (rng.zipf(1.3, count) - 1) % len(pool)
        keys, found = place.array(pool[codes]), ~absent[codes]
        expected = np.where(found.reshape(-1, *[1] * len(shape)), values[codes], 0)
        ours, mask = many.find(keys)
        np.testing.assert_array_equal(to_numpy(ours), expected)
        np.testing.assert_array_equal(to_numpy(mask), found)
        np.testing.assert_array_equal(to_numpy(many.contains(keys)), found)
        with pytest.raises(KeyError, match=f"{np.sum(~found)} of {count} keys are absent"):
            many[keys]
        if shape:
            rows = to_numpy(many.rows(keys))
            np.testing.assert_array_equal(rows >= 0, found)
            first = dict(zip(codes[found].tolist(), rows[found].tolist(), strict=True))
            assert len(set(first.values())) == len(first), "each key has a row"
            np.testing.assert_array_equal([first[code] for code in codes[found][:5000].tolist()], rows[found][:5000])
        defaults = rng.integers(100, 999, (count, *shape)).astype(dtype)
        ours = to_numpy(many.get(keys, place.array(defaults)))
        np.testing.assert_array_equal(ours, np.where(found.reshape(-1, *[1] * len(shape)), expected, defaults))
    if len(places) > 1:
        batches = [place.array(pool[(rng.zipf(1.3, count) - 1) % len(pool)]) for place in places]
        for batch, ours, mask in zip(batches, *many.find(batches), strict=True):
            codes = np.searchsorted(pool, to_numpy(batch))
            np.testing.assert_array_equal(to_numpy(mask), ~absent[codes])
            expected = np.where(to_numpy(mask).reshape(-1, *[1] * len(shape)), values[codes], 0)
            np.testing.assert_array_equal(to_numpy(ours), expected)
