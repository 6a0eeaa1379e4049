"""Memory resources: every byte from them, every byte back to them, and what happens when they give none."""

from __future__ import annotations

import copy
import ctypes
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import GPU, GPU_INDEX, Framework, sees_gpu, to_numpy
from support.memory_resources import NumPyMemory, TorchCudaMemory, counting_memory
from support.samples import as_dict, items_of, random_keys, random_values

import gpuhash
from gpuhash import HashSet, HashTable


@pytest.fixture
def memory(on_device):
    """A resource that must balance in the end."""
    made = counting_memory(on_device.table_device)
    yield made
    if made.blocks:
        gc.collect()
    assert not made.mistakes
    assert not made.blocks


def test_every_byte_comes_from_the_resource(on_device, memory):
    table = HashTable("int64", "float32", value_shape=(3,), device=on_device.table_device, memory=memory)
    keys = random_keys("int64", (), 10_000)
    table[on_device.array(keys)] = 1
    assert memory.calls > 0
    assert memory.nbytes >= table.nbytes >= 10_000 * (8 + 8 + 12)
    assert memory.nbytes <= 2 * table.nbytes
    table.shrink_to_fit()
    table.clear()
    table.update({1: [1, 2, 3]})
    twin = table.copy()
    assert twin == table
    del table, twin


def test_default_tables_do_not_touch_it(on_device, memory):
    table = HashTable("int64", "float32", device=on_device.table_device)
    table[[1, 2]] = 1
    assert memory.calls == 0


def test_to_moves_into_another_resource(on_device, memory):
    table = HashTable("int64", "float32", value_shape=(3,), device=on_device.table_device)
    table[on_device.array(np.arange(1000))] = 1
    moved = table.to(on_device.table_device, memory=memory)
    assert memory.nbytes >= moved.nbytes > 0
    assert items_of(moved) == items_of(table)


def test_row_storage_keeps_its_memory(on_device, memory):
    table = HashTable("int64", "float32", value_shape=(3,), device=on_device.table_device, memory=memory)
    table[on_device.array(np.arange(100))] = 2
    rows = table.row_storage
    del table
    gc.collect()
    assert memory.blocks, "the view keeps its memory"
    assert float(rows[0][0]) == 2
    del rows


OPERATIONS = {
    "setitem": lambda t, k, v: t.__setitem__(k, v),
    "insert": lambda t, k, v: t.insert(k, v),
    "insert_or_assign": lambda t, k, v: t.insert_or_assign(k, v),
    "insert_or_apply": lambda t, k, v: t.insert_or_apply(k, v, "add"),
    "setdefault": lambda t, k, v: t.setdefault(k, v),
    "find": lambda t, k, v: t.find(k),
    "contains": lambda t, k, v: t.contains(k),
    "erase": lambda t, k, v: t.erase(k),
    "pop": lambda t, k, v: t.pop(k, 0),
    "reserve": lambda t, k, v: t.reserve(100_000),
    "rehash": lambda t, k, v: t.rehash(50_000),
    "shrink_to_fit": lambda t, k, v: t.shrink_to_fit(),
    "clear": lambda t, k, v: t.clear(),
    "items": lambda t, k, v: t.items(),
    "copy": lambda t, k, v: t.copy(),
    "deepcopy": lambda t, k, v: copy.deepcopy(t),
    "equal": lambda t, k, v: t == t.copy(),
    "update": lambda t, k, v: t.update(k, v),
}


@pytest.mark.parametrize("kind", ["scalar", "rows", "vector-keys", "deterministic"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_allocation_fails_once(on_device, memory, operation, kind):
    """Fail allocation 1, 2, 3, ... of the call until it succeeds; a failure leaves the table as it was."""
    value_shape = (5,) if kind == "rows" else ()
    key_shape = (2,) if kind == "vector-keys" else ()
    keys = random_keys("int64", key_shape, 6000)
    values = random_values("float32", (6000, *value_shape))
    batch, batch_values = on_device.array(keys[500:]), on_device.array(values[500:])
    expected = None
    for allowed in range(60):
        table = HashTable(
            "int64",
            "float32",
            key_shape=key_shape,
            value_shape=value_shape,
            device=on_device.table_device,
            memory=memory,
            deterministic=kind == "deterministic",
        )
        table[on_device.array(keys[:1000])] = on_device.array(values[:1000])
        expected = as_dict(keys[:1000], values[:1000])
        memory.fail_after(allowed)
        try:
            OPERATIONS[operation](table, batch, batch_values)
        except MemoryError:
            memory.fail_after(None)
            assert items_of(table) == expected
            table[on_device.array(keys)] = on_device.array(values)  # and it still works
            assert items_of(table) == as_dict(keys, values)
        else:
            memory.fail_after(None)
            items_of(table)
            break
    else:
        pytest.fail("60 allocations were not enough")


# Operations that grow the table: before the insertion, or after it where the batch was let in uncounted.
GROWING = {name: OPERATIONS[name] for name in ("insert", "insert_or_assign", "insert_or_apply", "setdefault", "update")}
FILLINGS = {"before": (3000, 6000), "after": (3000, 3600)}  # keys before and in the end, of a table of 4096 slots


@pytest.mark.parametrize("failure", [MemoryError, RuntimeError, ValueError, KeyError, KeyboardInterrupt])
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("operation", GROWING)
def test_whatever_the_resource_raises(on_device, memory, operation, filling, failure):
    """At allocation 1, 2, 3, ...: the call raises it and the table is as before, or it returns and all keys are in."""
    first, last = FILLINGS[filling]
    keys = random_keys("int64", (), last)
    values = random_values("float32", (last,))
    batch, batch_values = on_device.array(keys[first:]), on_device.array(values[first:])
    memory.failure = failure
    for allowed in range(60):
        table = HashTable("int64", "float32", capacity=4096, device=on_device.table_device, memory=memory)
        table[on_device.array(keys[:first])] = on_device.array(values[:first])
        calls = memory.calls
        memory.fail_after(allowed)
        raised = False
        try:
            GROWING[operation](table, batch, batch_values)
        except failure:
            raised = True
        fired = memory.calls > calls + allowed
        memory.fail_after(None)
        assert fired or not raised
        assert items_of(table) == as_dict(*((keys[:first], values[:first]) if raised else (keys, values)))
        table[on_device.array(keys)] = on_device.array(values)  # and it still works, and grows
        assert items_of(table) == as_dict(keys, values)
        assert table.load_factor <= table.max_load_factor
        if not fired:
            break
    else:
        pytest.fail("60 allocations were not enough")


@pytest.mark.parametrize("failure", [MemoryError, ValueError])
def test_whatever_the_resource_raises_of_a_batch_that_makes_room_for_all(on_device, memory, failure):
    """A batch of 2^22 keys, half of them duplicates: the table grows before the insertion and shrinks after it."""
    keys = np.random.default_rng(0).permutation(np.repeat(np.arange(1 << 21), 2))
    batch = on_device.array(keys)
    memory.failure = failure
    for allowed in range(60):
        table = HashTable("int64", "int64", device=on_device.table_device, memory=memory)
        table[on_device.array(np.arange(10))] = 1
        calls = memory.calls
        memory.fail_after(allowed)
        raised = False
        try:
            table.insert_or_assign(batch, batch)
        except failure:
            raised = True
        fired = memory.calls > calls + allowed
        memory.fail_after(None)
        assert len(table) == (10 if raised else 1 << 21)
        got = to_numpy(table[on_device.array(np.arange(len(table)))])
        np.testing.assert_array_equal(got, 1 if raised else np.arange(1 << 21))
        if not fired:
            break
    else:
        pytest.fail("60 allocations were not enough")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("threads", [2, 32])
@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
def test_copies_of_one_key_take_little_memory(method, threads, dtype):
    """On the host, however many come in one batch; and so do copies of a few keys."""
    before = gpuhash.get_num_threads()
    gpuhash.set_num_threads(threads)
    try:
        for distinct in (1, 1000):
            keys = (np.arange(1 << 23) % distinct).astype(dtype)
            memory = counting_memory("cpu")
            table = HashTable(dtype, "int64", memory=memory)
            getattr(table, method)(keys, 1, *(["add"] if method == "insert_or_apply" else []))
            assert memory.peak < 64 << 20
            assert len(table) == distinct
    finally:
        gpuhash.set_num_threads(before)


def test_allocation_fails_while_a_table_is_made(on_device, memory):
    for allowed in range(20):
        memory.fail_after(allowed)
        try:
            table = HashTable(
                "int64", "float32", value_shape=(5,), capacity=1000, device=on_device.table_device, memory=memory
            )
            table[on_device.array(np.arange(10))] = 1
        except MemoryError:
            continue
        assert allowed > 0
        break
    else:
        pytest.fail("20 allocations were not enough")
    memory.fail_after(None)
    del table


def test_other_errors_of_the_resource_are_told(on_device):
    class Broken:
        def allocate(self, nbytes, stream=None):
            raise RuntimeError("the resource is broken")

        def deallocate(self, ptr, nbytes, stream=None):
            raise AssertionError

    with pytest.raises((RuntimeError, MemoryError), match="broken"):
        HashTable("int64", "float32", capacity=1000, device=on_device.table_device, memory=Broken())


USES: dict[str, Callable[[Any], Any]] = {
    "len": len,
    "nbytes": lambda table: table.nbytes,
    "lookup": lambda table: table.contains(np.arange(3)),
    "assignment": lambda table: table.__setitem__([7], 8),
}


@pytest.mark.parametrize("is_sharded", [False, True], ids=["single", "sharded"])
@pytest.mark.parametrize("use", USES)
def test_a_resource_that_uses_its_table(on_device, use, is_sharded):
    """It would wait for the call that asks it for memory: it is told so, and the table is as it was."""
    place = on_device.table_device

    class Curious(NumPyMemory if place == "cpu" else TorchCudaMemory):  # type: ignore[misc]
        table: HashTable | None = None

        def take(self, nbytes: int, stream: Any) -> tuple[int, Any]:
            table, self.table = self.table, None  # what the call itself asks for is not asked again
            if table is not None:
                USES[use](table)
            return super().take(nbytes, stream)

    memory = Curious()
    options = {"device": [place], "memory": [memory]} if is_sharded else {"device": place, "memory": memory}
    table = HashTable("int64", "int64", **options)
    table[[1, 2]] = [3, 4]
    memory.table = table
    with pytest.raises((RuntimeError, MemoryError), match="in the middle of a call on it"):
        table.reserve(100_000)
    assert memory.table is None
    assert items_of(table) == as_dict(np.array([1, 2]), np.array([3, 4]))
    table.reserve(100_000)
    assert table.capacity > 100_000
    del table
    gc.collect()
    assert memory.nbytes == 0


def test_a_resource_that_uses_the_table_of_its_shard(on_device):
    """Beside another thread's call on the table, which waits for that on the shard: neither waits for the other."""
    place = on_device.table_device
    asked, others = threading.Event(), []

    class Curious(NumPyMemory if place == "cpu" else TorchCudaMemory):  # type: ignore[misc]
        table: HashTable | None = None

        def take(self, nbytes: int, stream: Any) -> tuple[int, Any]:
            table, self.table = self.table, None
            if table is not None:
                others.append(threading.Thread(target=table.__setitem__, args=([5], 6)))
                others[0].start()
                others[0].join(0.2)  # it comes as far as the shard, whose call this is
                asked.set()
                table.erase([1])
            return super().take(nbytes, stream)

    memory = Curious()
    table = HashTable("int64", "int64", device=[place], memory=[memory])
    table[[1, 2]] = [3, 4]
    memory.table = table
    with pytest.raises((RuntimeError, MemoryError), match="in the middle of a call on it"):
        table.shards[0].reserve(100_000)
    assert asked.is_set()
    others[0].join()
    assert items_of(table) == as_dict(np.array([1, 2, 5]), np.array([3, 4, 6]))


def test_too_large_a_table_is_a_memory_error(device):
    table = HashTable("int64", "float32", value_shape=(1 << 20,), device=device)
    table[[1, 2]] = 4
    with pytest.raises(MemoryError):
        table.reserve(1 << 26)  # 2^48 bytes of rows
    assert sorted(table) == [1, 2]
    assert (to_numpy(table.values()) == 4).all()


def test_sets_use_the_resource(on_device, memory):
    made = HashSet("int64", device=on_device.table_device, memory=memory)
    made.add(on_device.array(np.arange(10_000)))
    assert memory.nbytes >= made.nbytes > 80_000
    del made


def test_memory_torch(device):
    place = Framework("torch", device, device)
    if device != "cpu" and not sees_gpu("torch"):
        pytest.skip("torch sees no GPU")
    if device == "cpu":
        with pytest.raises(ValueError, match="cuda"):  # PyTorch has no caching allocator for the host
            HashTable("int64", "float32", memory="torch")
        return
    import torch

    gc.collect()
    before = torch.cuda.memory_allocated(GPU)
    table = HashTable("int64", "float32", device=device, memory="torch")
    table.reserve(1_000_000)
    assert torch.cuda.memory_allocated(GPU) - before >= table.nbytes
    keys = random_keys("int64", (), 10_000)
    table[place.array(keys)] = place.array(np.arange(10_000, dtype=np.float32))
    assert items_of(table) == as_dict(keys, np.arange(10_000, dtype=np.float32))
    del table
    gc.collect()
    assert torch.cuda.memory_allocated(GPU) - before < 1_000_000


def test_memory_torch_of_a_stream_that_is_gone(torch_cuda):
    """The table ends after the stream that its memory was taken on."""
    torch = torch_cuda
    keys = torch.arange(1 << 20, device=GPU)
    mapped = Path("/proc/self/maps").read_text().splitlines()
    runtime = ctypes.CDLL(next(line.split()[-1] for line in mapped if "libcudart.so" in line))
    gc.collect()
    torch.cuda.synchronize(GPU)
    before = torch.cuda.memory_allocated(GPU)
    for _ in range(3):
        handle = ctypes.c_void_p()
        with torch.cuda.device(GPU):
            assert runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1) == 0
        stream = torch.cuda.ExternalStream(handle.value, device=GPU)
        table = HashTable("int64", "int64", device=GPU, memory="torch")
        with torch.cuda.stream(stream):
            table[keys] = keys
        stream.synchronize()
        assert torch.equal(table[keys], keys)
        torch.cuda.synchronize(GPU)
        assert runtime.cudaStreamDestroy(handle) == 0
        del table
        gc.collect()
    torch.cuda.synchronize(GPU)
    assert torch.cuda.memory_allocated(GPU) - before < 1 << 20


@pytest.mark.parametrize("memory", [None, "torch"])
def test_a_table_ends_while_the_stream_of_its_memory_is_captured(torch_cuda, memory):
    torch = torch_cuda
    stream = torch.cuda.Stream(GPU)
    keys = torch.arange(20_000, device=GPU)
    got, found = torch.zeros_like(keys), torch.zeros(len(keys), dtype=torch.bool, device=GPU)
    torch.cuda.synchronize(GPU)
    with torch.cuda.stream(stream):
        table, other = (HashTable("int64", "int64", device=GPU, memory=memory) for _ in range(2))
        for each in (table, other):
            each[keys] = keys * 2
            each.find(keys, out=(got, found))
            len(each)
    torch.cuda.synchronize(GPU)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        table.find(keys, out=(got, found))
        del other, each
        gc.collect()
    got.zero_()
    graph.replay()
    torch.cuda.synchronize(GPU)
    assert torch.equal(got, keys * 2)


def test_tables_do_not_leak_objects(on_device):
    """Handed-in arrays are let go."""
    import sys

    keys, values = np.arange(1000), np.arange(1000, dtype=np.float32)
    table = HashTable("int64", "float32", device=on_device.table_device)
    counts = sys.getrefcount(keys), sys.getrefcount(values)
    for _ in range(50):
        table[keys] = values
        table.find(keys)
        table.erase(keys)
    gc.collect()
    assert (sys.getrefcount(keys), sys.getrefcount(values)) == counts


def test_memory_of_cuda_core(torch_cuda):
    """A resource of cuda.core, whose own counter tells that it was used."""
    core = pytest.importorskip("cuda.core")
    core.Device(GPU_INDEX).set_current()
    resource = core.DeviceMemoryResource(core.Device(GPU_INDEX))
    core.Device(0).set_current()
    table = HashTable("int64", "float32", value_shape=(3,), device=GPU, memory=resource)
    keys = torch_cuda.arange(10_000, device=GPU)
    values = torch_cuda.rand(10_000, 3, device=GPU)
    table[keys] = values
    assert resource.attributes.used_mem_current >= table.nbytes
    assert bool((table[keys] == values).all())
    del table
    gc.collect()
    torch_cuda.cuda.synchronize(GPU)
    assert resource.attributes.used_mem_current == 0
