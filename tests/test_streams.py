"""Threads on one table; streams and CUDA graphs on the GPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.frameworks import (
    GPU,
    address_of,
    capture,
    current_stream,
    delay,
    event_now,
    new_stream,
    on_stream,
    to_numpy,
)
from support.raw_streams import PER_THREAD, RawStreams, external_stream, on_handle
from support.samples import random_keys, same_bytes
from support.tuning import partitioned

from gpuhash import HashTable, TableFullError

THREADS = 6


def in_threads(work) -> list:
    """work(i) in threads that start together; their results, their first error."""
    start = threading.Barrier(THREADS)

    def run(number):
        start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


@pytest.mark.parametrize("value_shape", [(), (4,)], ids=["scalar", "rows"])
def test_threads_with_disjoint_keys(on_device, value_shape):
    table = HashTable("int64", "int64", value_shape=value_shape, device=on_device.table_device)
    keys = np.arange(THREADS * 30_000).reshape(THREADS, 30, 1000)

    def work(number):
        for batch in keys[number]:
            values = np.empty((1000, *value_shape), np.int64)
            values[:] = batch.reshape(-1, *(1,) * len(value_shape))
            assert to_numpy(table.insert(on_device.array(batch), on_device.array(values))).all()
            same_bytes(table[on_device.array(batch)], values)
            assert to_numpy(table.erase(on_device.array(batch[::2]))).all()

    in_threads(work)
    assert sorted(to_numpy(table.keys()).tolist()) == keys.reshape(-1)[1::2].tolist()


def test_threads_with_the_same_keys(on_device):
    table = HashTable("int64", "int64", device=on_device.table_device)
    rng = np.random.default_rng(0)
    batches = rng.integers(0, 5000, (THREADS, 40, 1000))

    def work(number):
        new = 0
        for batch in batches[number]:
            new += int(to_numpy(table.insert_or_apply(on_device.array(batch), 1, "add")).sum())
            assert to_numpy(table.contains(on_device.array(batch))).all()
        return new

    new = in_threads(work)
    expected = np.bincount(batches.reshape(-1), minlength=5000)
    assert sum(new) == len(table) == (expected > 0).sum()
    same_bytes(table.get(on_device.array(np.arange(5000)), 0), expected)


def test_threads_read_while_one_writes(on_device):
    """A reader sees a batch whole or not at all."""
    table = HashTable("int64", "int64", device=on_device.table_device)
    keys = on_device.array(np.arange(2000))
    table[keys] = 0

    def work(number):
        for round_number in range(100):
            if number == 0:
                table[keys] = round_number
            else:
                got = to_numpy(table[keys])
                assert (got == got[0]).all()

    in_threads(work)
    same_bytes(table[keys], np.full(2000, 99))


def test_threads_while_it_grows_is_copied_and_cleared(on_device):
    table = HashTable("int64", "int64", device=on_device.table_device)

    def work(number):
        for round_number in range(20):
            base = (number * 20 + round_number) * 1000
            table[on_device.array(np.arange(base, base + 1000))] = number
            if number == 1:
                table.rehash()
            if number == 2:
                copied = table.copy()
                assert len(copied) % 1000 == 0
            if number == 3:
                assert len(table) % 1000 == 0
            if number == 4:
                table.reserve(len(table) + 2000)

    in_threads(work)
    assert len(table) == THREADS * 20_000


def test_threads_read_large_rows_while_the_table_grows(on_device):
    """By one view, which none of the growth disturbs."""
    count = 6000
    table = HashTable("int64", "float32", value_shape=(256,), capacity=8000, device=on_device.table_device)
    table[on_device.array(np.arange(count))] = on_device.array(
        np.arange(count, dtype=np.float32)[:, None].repeat(256, 1)
    )
    view = table.row_storage_as(on_device.name)
    numbers = table.rows(on_device.array(np.arange(count)))
    expected = on_device.array(np.arange(count, dtype=np.float32))

    def work(number):
        if number == 0:
            for end in range(2 * count, 10 * count, count):
                table[on_device.array(np.arange(count, end))] = -1
            return table.capacity
        for round_number in range(30):
            assert (view[numbers][:, (number * 30 + round_number) % 256] == expected).all()
        return 0

    assert in_threads(work)[0] >= 9 * count
    assert address_of(table.row_storage_as(on_device.name)) == address_of(view)
    assert (to_numpy(table[on_device.array(np.arange(count, 9 * count))]) == -1).all()


def test_two_streams_wait_for_each_other(torch_cuda):
    torch = torch_cuda
    first, second = new_stream(), new_stream()
    table = HashTable("int64", "int64", device=GPU)
    table.reserve(2_000_000)
    keys = torch.randperm(1_000_000, device=GPU)
    busy = torch.randn(4096, 4096, device=GPU)
    torch.cuda.synchronize(GPU)
    for round_number in range(10):
        with on_stream(first):
            for _ in range(5):
                busy = busy @ busy * 1e-4  # the insertion starts late
            mine = keys + round_number * 1_000_000 % 2_000_000
            table[mine] = mine + round_number
        with on_stream(second):
            values, found = table.find(keys + round_number * 1_000_000 % 2_000_000)
            right = (found & (values == keys + round_number * 1_000_000 % 2_000_000 + round_number)).all()
            mask = table.erase(keys + round_number * 1_000_000 % 2_000_000)
            assert bool(right)
            assert bool(mask.all())
    assert len(table) == 0


def test_streams_on_threads(torch_cuda):
    torch = torch_cuda
    table = HashTable("int64", "int64", device=GPU)

    def work(number):
        with on_stream(new_stream()):
            for round_number in range(20):
                keys = torch.arange(10_000, device=GPU) + (number * 20 + round_number) * 10_000
                table[keys] = keys
                assert torch.equal(table[keys], keys)

    in_threads(work)
    assert len(table) == THREADS * 200_000


def test_work_is_not_awaited(torch_cuda):
    """An insertion into reserved room returns while the device is still busy with what came before."""
    torch = torch_cuda
    table = HashTable("int64", "int64", device=GPU)
    table.reserve(100_000)
    keys = torch.arange(1000, device=GPU)
    table[keys] = keys
    table.find(keys)
    torch.cuda.synchronize(GPU)
    delay(2_000_000_000)  # about a second
    table.insert_or_assign(keys, keys)
    table.find(keys)
    table.contains(keys)
    table.erase(keys[:10])
    done = event_now()
    assert not done.query(), "a call waited for the device"
    torch.cuda.synchronize(GPU)
    assert len(table) == 990


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_small_batches_do_not_wait_for_the_size(torch_cuda, kind):
    """What the size is, insertions mostly learn from those before, also where the bound of it is at the limit."""
    torch = torch_cuda
    value = {
        "rows": {"value_dtype": "float32", "value_shape": (16,)},
        "columns": {"value_dtype": {"w": ("float32", (16,))}},
    }
    table = HashTable("int64", capacity=1 << 16, device=GPU, **value[kind])
    keys = torch.arange(40_000, device=GPU)
    batch = keys[:4096].clone()
    table.find_or_insert(keys)
    len(table)
    waited = 0
    for _ in range(30):
        table.find_or_insert(batch)  # what it tells comes before the next one
        torch.cuda.synchronize(GPU)
        delay(20_000_000)  # about 10 ms
        delayed = event_now()
        table.find_or_insert(batch)
        waited += delayed.query()
        torch.cuda.synchronize(GPU)
    assert waited <= 2
    assert len(table) == 40_000


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_cuda_graph(torch_cuda, value_shape):
    """Capture find, contains and insert_or_assign once; replay with other contents."""
    torch = torch_cuda
    table = HashTable("int64", "float32", value_shape=value_shape, device=GPU)
    table.reserve(100_000)
    keys = torch.zeros(1000, dtype=torch.int64, device=GPU)
    values = torch.zeros(1000, *value_shape, device=GPU)
    new = torch.zeros(1000, dtype=torch.bool, device=GPU)
    got, found, there = torch.empty_like(values), torch.empty_like(new), torch.empty_like(new)

    def step():
        table.contains(keys, out=there)
        table.insert_or_assign(keys, values, out=new)
        table.find(keys, out=(got, found))

    side = new_stream()
    side.wait_stream(current_stream())
    with on_stream(side):
        step()
    current_stream().wait_stream(side)
    table.clear()
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        step()
    assert len(table) == 0, "capturing must not run"
    model = set()
    for seed in range(20):
        batch = random_keys("int64", (), 1000, seed=seed % 7)
        batch = batch[np.random.default_rng(seed).permutation(1000)]
        numbers = np.random.default_rng(seed).integers(0, 99, (1000, *value_shape)).astype(np.float32)
        keys.copy_(torch.from_numpy(batch))
        values.copy_(torch.from_numpy(numbers))
        graph.replay()
        known = np.array([key in model for key in batch.tolist()])
        same_bytes(there, known)
        same_bytes(new, ~known)
        assert bool(found.all())
        same_bytes(got, numbers)
        model |= set(batch.tolist())
    assert len(table) == len(model)
    table[keys] = 5  # and outside the graph it goes on
    same_bytes(table[keys], np.full((1000, *value_shape), 5, np.float32))


@pytest.mark.parametrize("value_shape", [(), (5,)], ids=["scalar", "rows"])
def test_cuda_graph_of_short_floats(torch_cuda, value_shape):
    """Each replay combines its batch in float."""
    torch = torch_cuda
    table = HashTable("int64", "bfloat16", value_shape=value_shape, device=GPU)
    table.reserve(10_000)
    keys = torch.zeros(4000, dtype=torch.int64, device=GPU)
    ones = torch.ones(4000, *value_shape, dtype=torch.bfloat16, device=GPU)
    table.insert_or_apply(keys, ones, "add")
    table.clear()
    torch.cuda.synchronize(GPU)
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.insert_or_apply(keys, ones, "add")
    expected = torch.zeros(100, *value_shape, dtype=torch.bfloat16)
    for round_number in range(3):
        batch = torch.arange(4000) % (4 << round_number)
        keys.copy_(batch)
        graph.replay()
        expected[: 4 << round_number] += 1000 >> round_number
    same_bytes(table[torch.arange(16, device=GPU)], to_numpy(expected[:16]))
    assert len(table) == 16


@pytest.mark.parametrize("method", ["insert", "insert_or_assign"])
def test_cuda_graph_of_rows_with_duplicates(torch_cuda, method):
    """Each replay elects its own writers: every row is one of the replayed batch's, whole."""
    torch = torch_cuda
    table = HashTable("int64", "int64", value_shape=(20,), device=GPU)
    table.reserve(10_000)
    keys = torch.zeros(4000, dtype=torch.int64, device=GPU)
    values = torch.zeros(4000, 20, dtype=torch.int64, device=GPU)
    new = torch.zeros(4000, dtype=torch.bool, device=GPU)
    getattr(table, method)(keys, values, out=new)
    table.clear()
    torch.cuda.synchronize(GPU)
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        getattr(table, method)(keys, values, out=new)
    assert len(table) == 0, "capturing must not run"
    rng = np.random.default_rng(0)
    held = np.full(900, -1)  # [key]: the number in its row
    for round_number in range(30):
        batch = rng.integers(0, 30 * (round_number + 1), 4000)
        numbers = np.arange(4000) + 4000 * round_number
        keys.copy_(torch.from_numpy(batch))
        values.copy_(torch.from_numpy(numbers)[:, None])
        graph.replay()
        mine = np.unique(batch)
        assert sorted(batch[to_numpy(new)].tolist()) == mine[held[mine] < 0].tolist()
        got = to_numpy(table[torch.from_numpy(mine).to(GPU)])
        assert (got == got[:, :1]).all(), "a row is a mix of two"
        written = (held[mine] < 0) | (method == "insert_or_assign")
        np.testing.assert_array_equal(got[~written, 0], held[mine[~written]])
        positions = got[written, 0] - numbers[0]
        assert (positions >= 0).all()
        np.testing.assert_array_equal(batch[positions], mine[written])
        held[mine] = got[:, 0]
    assert len(table) == (held >= 0).sum()


@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "in-order"])
@pytest.mark.parametrize("value_shape", [(), (5,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
def test_cuda_graph_that_overfills_the_table(torch_cuda, method, value_shape, deterministic):
    """Keys without room are lost, which the next call that waits says once, and all else is as it should be."""
    torch = torch_cuda
    table = HashTable("int64", "int64", value_shape=value_shape, device=GPU, capacity=512, deterministic=deterministic)
    room = int(table.capacity * table.max_load_factor) if value_shape else table.capacity
    rng = np.random.default_rng(0)
    pool = rng.permutation(2000)
    keys = torch.from_numpy(pool[:150]).to(GPU)
    values = torch.zeros(150, *value_shape, dtype=torch.int64, device=GPU)
    new = torch.zeros(150, dtype=torch.bool, device=GPU)

    def step():
        getattr(table, method)(keys, values, *(["add"] if method == "insert_or_apply" else []), out=new)

    step()
    model = dict.fromkeys(pool[:150].tolist(), 0)
    assert len(table) == len(model)
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        step()
    lost = 0
    for replay in range(1, 8):
        old = rng.choice(list(model), 50, replace=False)
        batch = rng.permutation(np.concatenate([old, pool[100 * replay + 50 : 100 * replay + 150]]))
        numbers = np.arange(150) + 1000 * replay
        keys.copy_(torch.from_numpy(batch))
        values.copy_(torch.from_numpy(numbers).reshape(150, *[1] * len(value_shape)).expand(values.shape))
        graph.replay()
        known = np.isin(batch, list(model))
        inserted = to_numpy(new)
        assert not (inserted & known).any()
        assert inserted.sum() == min(100, room - len(model))
        lost += 100 - int(inserted.sum())
        if method == "insert_or_apply":
            for key, number in zip(batch[known].tolist(), numbers[known].tolist(), strict=True):
                model[key] += number
        written = inserted | known if method == "insert_or_assign" else inserted
        model.update(zip(batch[written].tolist(), numbers[written].tolist(), strict=True))

    with pytest.raises(TableFullError, match=f"{lost} are lost"):
        len(table)
    assert len(table) == len(model) == room
    everything = torch.from_numpy(pool).to(GPU)
    got, found = table.find(everything)
    same_bytes(found, np.isin(pool, list(model)))
    expected = np.array([model.get(key, 0) for key in pool.tolist()]).reshape(-1, *[1] * len(value_shape))
    same_bytes(got, np.broadcast_to(expected, got.shape))
    table[everything] = 7  # outside the graph it grows
    assert len(table) == len(pool)
    same_bytes(table[everything], np.full(got.shape, 7))


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_cuda_graph_takes_erased_slots_again(torch_cuda, value_shape):
    """A full table, in which every key that is erased leaves a mark, and nothing had been erased before the capture."""
    torch = torch_cuda
    table = HashTable("int64", "int64", value_shape=value_shape, device=GPU, capacity=1024, growth=False)
    others = HashTable("int64", "int64", value_shape=value_shape, device=GPU)  # for CUDA to load the kernels
    kept = table.capacity - 64
    keys = torch.arange(kept, device=GPU)
    table[keys] = 5
    keys = torch.arange(64, device=GPU) - 64
    values = torch.zeros(64, *value_shape, dtype=torch.int64, device=GPU)
    new, gone = (torch.zeros(64, dtype=torch.bool, device=GPU) for _ in range(2))

    def step(table):
        table.insert_or_assign(keys, values, out=new)
        table.erase(keys, out=gone)

    step(others)
    assert len(table) == kept
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        step(table)
    for _ in range(20):
        keys += 10_000
        graph.replay()
        assert new.all()
        assert gone.all()
        assert len(table) == kept
    same_bytes(table[torch.arange(kept, device=GPU)], np.full((kept, *value_shape), 5))


def test_cuda_graph_on_large_rows_is_replayed_after_growth(torch_cuda):
    """It works on a view, and knows nothing of the table."""
    torch = torch_cuda
    count, width = 20_000, 256
    table = HashTable("int64", "float32", value_shape=(width,), device=GPU)
    keys = torch.arange(count, device=GPU)
    values = torch.rand(count, width, device=GPU)
    table[keys] = values
    view, numbers = table.row_storage_as("torch"), table.rows(keys)
    chosen = numbers[::3].clone()
    gathered = torch.zeros(len(chosen), width, device=GPU)
    steps = torch.full((len(chosen), width), 0.5, device=GPU)

    def step():
        torch.index_select(view, 0, chosen, out=gathered)
        view.index_add_(0, chosen, steps)

    step()
    expected = values.clone()
    expected[::3] += 0.5
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        step()
    for round_number in range(1, 4):
        table.reserve(count * 3**round_number)
        more = torch.arange(count * 3**round_number, device=GPU)[count:]
        table[more] = 7
        graph.replay()
        same_bytes(gathered, to_numpy(expected[::3]))
        expected[::3] += 0.5
        same_bytes(table[keys], to_numpy(expected))
        assert bool((table[more] == 7).all())
    assert address_of(table.row_storage_as("torch")) == address_of(view)


@pytest.mark.parametrize("lent", [False, True], ids=["its-own", "lent"])
def test_a_table_of_large_rows_ends_during_a_capture(torch_cuda, lent):
    torch = torch_cuda
    count = 20_000
    keys = torch.arange(count, device=GPU)
    table, other = (HashTable("int64", "float32", value_shape=(256,), device=GPU) for _ in range(2))
    for each in (table, other):
        each[keys] = 2
        each.find(keys)
    values, found = torch.zeros(count, 256, device=GPU), torch.zeros(count, dtype=torch.bool, device=GPU)
    table.find(keys, out=(values, found))
    view = other.row_storage_as("torch") if lent else None
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.find(keys, out=(values, found))
        del other, view
        gc.collect()
    values.zero_()
    graph.replay()
    assert bool(found.all())
    assert bool((values == 2).all())
    table.reserve(3 * count)  # and memory is to be had as ever
    assert bool((table[keys] == 2).all())


@pytest.mark.parametrize("width", [None, 256], ids=["scalars", "large rows"])
def test_a_table_whose_stream_is_no_more_ends_during_a_capture(torch_cuda, width):
    """Its memory was taken on that stream, and goes back on another one, beside the capture."""
    torch = torch_cuda
    streams = RawStreams()
    keys = torch.arange(20_000, device=GPU)
    shape = () if width is None else (width,)
    table, other = (HashTable("int64", "float32", value_shape=shape, device=GPU) for _ in range(2))
    table[keys] = 2
    values, found = torch.zeros(20_000, *shape, device=GPU), torch.zeros(20_000, dtype=torch.bool, device=GPU)
    table.find(keys, out=(values, found))
    handle = streams.make()
    with on_handle(handle):
        other[keys] = 3
        external_stream(handle).synchronize()
    streams.destroy(handle)
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.find(keys, out=(values, found))
        del other
        gc.collect()
    values.zero_()
    graph.replay()
    assert bool(found.all())
    assert bool((values == 2).all())
    again = HashTable("int64", "float32", value_shape=shape, device=GPU)
    again[keys] = 4
    assert bool((again[keys] == 4).all())


ENDS_BESIDE_A_CAPTURE = """
import sys
import threading

import torch
from gpuhash import HashTable

device = sys.argv[1]
torch.cuda.set_device(device)
keys = torch.arange(20_000, device=device)

def filled(width):
    table = HashTable("int64", "float32", value_shape=() if width is None else (width,), device=device)
    table[keys] = 2
    return table

table, here, elsewhere = (filled(256), *([filled(width) for width in (None, 4, 256)] for _ in range(2)))
lent = [each.row_storage_as("torch") for each in (here[-1], elsewhere[-1])]
values, found = torch.zeros(20_000, 256, device=device), torch.zeros(20_000, dtype=torch.bool, device=device)
table.find(keys, out=(values, found))
graph = torch.cuda.CUDAGraph()
torch.cuda.synchronize()
with torch.cuda.graph(graph, capture_error_mode="global"):
    table.find(keys, out=(values, found))
    here.clear()
    thread = threading.Thread(target=elsewhere.clear)
    thread.start()
    thread.join()
    lent.clear()
values.zero_()
graph.replay()
assert bool(found.all()) and bool((values == 2).all())
again = filled(256)
assert bool((again[keys] == 2).all())
print("whole")
"""


def test_tables_end_beside_a_capture_that_forbids_all_threads(torch_cuda):
    """PyTorch's default, in a process in which no other library's threads end it."""
    command = [sys.executable, "-P", "-c", ENDS_BESIDE_A_CAPTURE, str(torch_cuda.device(GPU))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "whole", done.stderr


def test_cuda_graph_that_would_have_to_grow_is_refused(torch_cuda):
    torch = torch_cuda
    table = HashTable("int64", "float32", device=GPU)
    keys = torch.arange(100_000, device=GPU)
    values = torch.zeros(100_000, device=GPU)
    new = torch.zeros(100_000, dtype=torch.bool, device=GPU)
    table[keys[:10]] = values[:10]
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(Exception, match=r"(?i)reserve|captur"), capture(graph):
        table.insert_or_assign(keys, values, out=new)
    torch.cuda.synchronize(GPU)
    assert len(table) == 10


def test_captured_clear_takes_effect_on_replay_only(torch_cuda):
    torch = torch_cuda
    table = HashTable("int64", "int64", device=GPU, capacity=1000, growth=False)
    keys = torch.arange(900, device=GPU)
    table[keys] = keys
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.clear()
    assert len(table) == 900
    with pytest.raises(TableFullError):
        table[keys + 900] = keys
    graph.replay()
    assert len(table) == 0


def test_no_maintenance_under_a_captured_graph(torch_cuda):
    """Erasing for long makes a table due for a rebuild, which a graph that reads its memory forbids."""
    torch = torch_cuda
    table = HashTable("int64", "int64", device=GPU, capacity=4096, growth=False)
    fixed = torch.arange(100, device=GPU)
    table[fixed] = fixed + 7
    values, found = torch.zeros_like(fixed), torch.zeros(100, dtype=torch.bool, device=GPU)
    table.find(fixed, out=(values, found))
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.find(fixed, out=(values, found))
    for round_ in range(40):
        keys = torch.arange(3900, device=GPU) + 10_000 * (round_ + 1)
        table[keys] = keys
        table.erase(keys)
    table[fixed] = fixed + round_
    values.zero_()
    graph.replay()
    assert found.all()
    assert torch.equal(values, fixed + round_)


@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
@pytest.mark.parametrize("count", [20_000, 1 << 22], ids=["partitioned", "large"])
def test_cleared_outside_of_a_graph_that_inserts(torch_cuda, method, count):
    """A table that was cleared is empty for certain only as long as no graph inserts: the next batch has to look."""
    torch = torch_cuda
    table = HashTable("int64", "int64", device=GPU)
    table.reserve(count * 3 // 2)
    keys = torch.arange(1000, device=GPU)
    new = torch.zeros(1000, dtype=torch.bool, device=GPU)
    others = torch.arange(count, device=GPU) + 1000
    table.insert_or_assign(keys, keys * 5, out=new)
    assert len(table) == 1000
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.insert_or_assign(keys, keys * 5, out=new)
    with partitioned(count < 1 << 22):
        for clears in range(3):
            if clears == 1:
                table.erase(table.keys(like="torch"))
            else:
                table.clear()
            graph.replay()
            getattr(table, method)(others, others * 7, *(["add"] if method == "insert_or_apply" else []))
            assert len(table) == 1000 + count
            values, found = table.find(keys)
            assert bool(found.all())
            assert torch.equal(values, keys * 5)
            assert torch.equal(table[others], others * 7)
            assert bool(new.all())


def test_readers_by_the_per_thread_default_stream(torch_cuda):
    """Its handle is the same in all threads, and the stream is another in each."""
    torch = torch_cuda
    table = HashTable("int64", "int64", device=GPU)
    table.reserve(100_000)
    keys = torch.arange(1000, device=GPU)
    new, found = (torch.zeros(1000, dtype=torch.bool, device=GPU) for _ in range(2))
    got = torch.zeros_like(keys)

    def write(cycles):
        with on_handle(PER_THREAD):
            delay(cycles)
            table.insert_or_assign(keys, keys, out=new)

    def read(cycles):
        with on_handle(PER_THREAD):
            table.find(keys, out=(got, found))
            external_stream(PER_THREAD).synchronize()

    with ThreadPoolExecutor(1) as writer, ThreadPoolExecutor(1) as reader:
        for cycles in (1000, 100_000_000, 100_000_000, 100_000_000):
            table.clear()
            found.zero_()
            torch.cuda.synchronize(GPU)
            writer.submit(write, cycles).result()
            reader.submit(read, cycles).result()
            torch.cuda.synchronize(GPU)
            assert bool(found.all())
            assert torch.equal(got, keys)


def test_readers_by_a_stream_that_has_the_handle_of_a_destroyed_one(torch_cuda):
    torch = torch_cuda
    streams = RawStreams()
    table = HashTable("int64", "int64", device=GPU)
    table.reserve(100_000)
    keys = torch.arange(1000, device=GPU)
    new, found = (torch.zeros(1000, dtype=torch.bool, device=GPU) for _ in range(2))
    got = torch.zeros_like(keys)
    came_again = 0
    for cycles in [1000] + [50_000_000] * 10:
        table.clear()
        found.zero_()
        torch.cuda.synchronize(GPU)
        first = streams.make()
        with on_handle(first):
            delay(cycles)
            table.insert_or_assign(keys, keys, out=new)
        streams.destroy(first)
        made = [streams.make()]
        while made[-1] != first and len(made) < 50:
            made.append(streams.make())
        came_again += made[-1] == first
        with on_handle(made[-1]):
            table.find(keys, out=(got, found))
            external_stream(made[-1]).synchronize()
        assert bool(found.all())
        assert torch.equal(got, keys)
        len(table)  # on a stream that stays
        for handle in made:
            streams.destroy(handle)
    if not came_again:
        pytest.skip("no handle came again, so nothing was shown")
