"""Insertions for which nobody knows beforehand whether they fit: into tables most of whose keys come again and again.

On a GPU such a batch is tried: it is inserted under a bound for the table's size, and what found no room is inserted
once there is some. On the host the same calls go another way, to the same end.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.frameworks import Framework, to_numpy
from support.memory_resources import counting_memory
from support.samples import as_bytes, as_dict, items_of, random_keys, random_values, same_bytes
from support.tuning import tuned

from gpuhash import HashSet, HashTable, _core

KINDS = {
    "int64": (("int64", ()), "int64"),
    "int32": (("int32", ()), "float32"),
    "int64-float32": (("int64", ()), "float32"),
    "int32x3": (("int32", (3,)), "int64"),
}
CALLS = ["insert_or_assign", "insert", "insert_or_apply"]


@pytest.fixture(params=[None, 700], ids=["whole", "in-parts"])
def batch_limit(request):
    """Batches of more than 2^31 keys are taken in parts."""
    with tuned(most_batch_keys=request.param or 1 << 31):
        yield request.param


def used_to_updates(place: Framework, kind: str, keys: np.ndarray, values: np.ndarray, **options) -> HashTable:
    """A table that has seen its keys so often that it takes batches for updates."""
    (key_dtype, key_shape), value_dtype = KINDS[kind]
    table = HashTable(key_dtype, value_dtype, key_shape=key_shape, device=place.table_device, **options)
    for _ in range(4):
        table[place.array(keys)] = place.array(values)
    return table


def model_of(call: str, before: dict, keys: np.ndarray, values: np.ndarray) -> dict:
    """What a dict holds after the call; of the values of one key in the batch, all are alike but in sums."""
    after = dict(before)
    for key, value in zip(as_bytes(keys).tolist(), values, strict=True):
        if call == "insert_or_apply":
            with np.errstate(over="ignore"):
                after[key] = (np.frombuffer(after[key], values.dtype)[0] + value if key in after else value).tobytes()
        elif call == "insert_or_assign" or key not in after:
            after[key] = value.tobytes()
    return after


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("new", [0, 1, 700, 2900, 3000])
def test_against_a_dict(on_device, batch_limit, kind, call, new):
    """A batch of 3000 keys, of which so many are new, and some come twice, in a table of 3000; the mask says which."""
    (key_dtype, key_shape), value_dtype = KINDS[kind]
    keys = random_keys(key_dtype, key_shape, 6000)
    values = (np.arange(6000) % 97).astype(value_dtype)  # whose sums are exact
    table = used_to_updates(on_device, kind, keys[:3000], values[:3000])
    batch = np.random.default_rng(new).permutation(np.arange(new, 3000 + new))
    batch = np.concatenate([batch, batch[::7]])
    given = values[batch][::-1].copy() if call == "insert_or_apply" else values[batch] + values.dtype.type(1)
    before = as_dict(keys[:3000], values[:3000])
    mask = on_device.array(np.zeros(len(batch), bool))
    arguments = ("add",) if call == "insert_or_apply" else ()
    getattr(table, call)(on_device.array(keys[batch]), on_device.array(given), *arguments, out=mask)
    assert items_of(table) == model_of(call, before, keys[batch], given)
    assert len(table) == 3000 + new
    inserted = to_numpy(mask)
    assert inserted.sum() == new
    assert set(as_bytes(keys[batch][inserted]).tolist()) == set(as_bytes(keys[3000 : 3000 + new]).tolist())
    assert table.load_factor <= table.max_load_factor


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize("call", CALLS)
def test_a_batch_of_known_keys_is_tried(on_device, kind, call):
    """By one kernel on a GPU, and one that reads the counters. A table that may not grow has to know beforehand whether
    the batch fits: it looks first.
    """
    (key_dtype, key_shape), value_dtype = KINDS[kind]
    keys = random_keys(key_dtype, key_shape, 3000)
    values = (np.arange(3000) % 97).astype(value_dtype)
    launched = []
    for options in ({}, {"growth": False, "capacity": 3300, "max_load_factor": 1.0}):
        table = used_to_updates(on_device, kind, keys, values, **options)
        arrays = [on_device.array(keys), on_device.array(values)]
        arguments = ("add",) if call == "insert_or_apply" else ()
        before = _core.launched_kernels()
        getattr(table, call)(*arrays, *arguments)
        launched.append(_core.launched_kernels() - before)
        after = model_of(call, as_dict(keys, values), keys, values)
        assert items_of(table) == after
    if on_device.table_device.startswith("cuda"):
        tried, looked_first = launched
        assert tried == 2 < looked_first
    else:
        assert launched == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_sets(on_device, kind):
    (key_dtype, key_shape), _ = KINDS[kind]
    keys = random_keys(key_dtype, key_shape, 9000)
    table = HashSet(key_dtype, key_shape=key_shape, device=on_device.table_device)
    for _ in range(4):
        table.add(on_device.array(keys[:3000]))
    for begin in range(0, 6001, 1000):  # more and more that are new, with no reason to expect them
        for _ in range(3):
            table.add(on_device.array(keys[begin : begin + 3000]))
        assert len(table) == begin + 3000
    assert set(as_bytes(to_numpy(table.keys())).tolist()) == set(as_bytes(keys).tolist())


@pytest.mark.parametrize("load_factor", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("exponent", [10, 17])
def test_updates_change_nothing_else(on_device, exponent, load_factor):
    """Whole tables are updated again and again, at any load: no slot more, and the last values stay."""
    keys = random_keys("int64", (), 1 << exponent)
    capacity = int(len(keys) / min(load_factor, 0.98)) + 8
    table = HashTable("int64", "int64", capacity=capacity, max_load_factor=1.0, device=on_device.table_device)
    slots = table.capacity
    for step in range(8):
        table[on_device.array(keys)] = on_device.array(np.full(len(keys), step))
    assert (table.capacity, len(table)) == (slots, len(keys))
    same_bytes(table[on_device.array(keys)], np.full(len(keys), 7))


def test_many_batches_that_go_on_without_a_wait(on_device):
    """Small batches of known keys, then of new ones, while nobody asks for the size."""
    keys = random_keys("int64", (), 40_000)
    table = HashTable("int64", "int64", device=on_device.table_device)
    table[on_device.array(keys[:20_000])] = 0
    rng = np.random.default_rng(0)
    counts = np.zeros(len(keys), np.int64)
    for step in range(300):
        reach = 20_000 if step < 150 else 20_000 + (step - 150) * 130
        batch = rng.integers(0, reach, 2000)
        table.insert_or_apply(on_device.array(keys[batch]), 1, "add")
        np.add.at(counts, batch, 1)
    present = (counts != 0) | (np.arange(len(keys)) < 20_000)
    assert items_of(table) == as_dict(keys[present], counts[present])
    assert table.load_factor <= table.max_load_factor


def test_erasing_and_clearing_between(on_device):
    """What was known of the size is forgotten with the keys."""
    keys = random_keys("int64", (), 8000)
    values = random_values("int64", (8000,))
    table = used_to_updates(on_device, "int64", keys[:4000], values[:4000])
    table.erase(on_device.array(keys[:2000]))
    table[on_device.array(keys)] = on_device.array(values)
    assert items_of(table) == as_dict(keys, values)
    table.clear()
    table[on_device.array(keys)] = on_device.array(values)
    assert items_of(table) == as_dict(keys, values)


class Limited:
    """Refuses blocks of more than `most` bytes while it has given out `blocks` of them since it was told so."""

    def __init__(self, device: str) -> None:
        self.counting = counting_memory(device)
        self.allow(1 << 60, 0)

    def allow(self, most: int, blocks: int) -> None:
        self.most, self.blocks, self.large = most, blocks, set()

    def allocate(self, nbytes, stream=None):
        if nbytes > self.most and len(self.large) >= self.blocks:
            raise MemoryError(f"{nbytes} bytes")
        ptr = self.counting.allocate(nbytes, stream)
        if nbytes > self.most:
            self.large.add(ptr)
        return ptr

    def deallocate(self, ptr, nbytes, stream=None):
        self.large.discard(ptr)
        self.counting.deallocate(ptr, nbytes, stream)


def test_no_memory_to_grow(on_device):
    """Where the memory of a larger table cannot be had, a batch that fits is inserted, and others change nothing."""
    keys = random_keys("int64", (), 20_000)
    values = random_values("int64", (20_000,))
    memory = Limited(on_device.table_device)
    table = used_to_updates(on_device, "int64", keys[:6000], values[:6000], capacity=10_000, memory=memory)
    memory.allow(table.nbytes // 2, 0)
    table[on_device.array(keys[:6000])] = on_device.array(values[:6000] + 1)
    before = as_dict(keys[:6000], values[:6000] + 1)
    assert items_of(table) == before
    with pytest.raises(MemoryError):
        table[on_device.array(keys[:20_000])] = on_device.array(values)
    assert items_of(table) == before
    with pytest.raises(MemoryError):
        table.insert_or_apply(on_device.array(keys[3000:13_000]), 1, "add")
    assert items_of(table) == before
    memory.allow(1 << 60, 0)
    table[on_device.array(keys)] = on_device.array(values)
    assert items_of(table) == as_dict(keys, values)


@pytest.mark.parametrize("call", CALLS)
def test_memory_for_one_larger_table(on_device, call):
    """A trial has set aside what it takes to grow, should nothing else be had when it turns out that it must."""
    keys = random_keys("int64", (), 16_000)
    values = random_values("int64", (16_000,))
    memory = Limited(on_device.table_device)
    table = used_to_updates(on_device, "int64", keys[:6000], values[:6000], capacity=10_000, memory=memory)
    memory.allow(table.nbytes // 2, 1)
    before = as_dict(keys[:6000], values[:6000])
    chosen, given = keys[5000:15_000], values[1000:11_000]
    arguments = ("add",) if call == "insert_or_apply" else ()
    getattr(table, call)(on_device.array(chosen), on_device.array(given), *arguments)
    assert items_of(table) == model_of(call, before, chosen, given)
    memory.allow(1 << 60, 0)
    assert table.load_factor <= table.max_load_factor


def test_threads(on_device):
    """Several threads update and add to one table; each key gets a value that some thread gave it."""
    keys = random_keys("int64", (), 12_000)
    table = HashTable("int64", "int64", device=on_device.table_device)
    table[on_device.array(keys[:4000])] = 0

    def work(number: int) -> None:
        for step in range(20):
            begin = 400 * step * (number % 2)
            chosen = keys[begin : begin + 4000]
            table[on_device.array(chosen)] = on_device.array(np.full(len(chosen), number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table) == 400 * 19 + 4000
    assert set(np.unique(to_numpy(table.values())).tolist()) <= {1, 2, 3, 4}
    assert set(as_bytes(to_numpy(table.keys())).tolist()) == set(as_bytes(keys[: 400 * 19 + 4000]).tolist())
