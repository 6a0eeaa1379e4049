"""Tables on two GPUs of one machine, where the current GPU is the other one."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.frameworks import capture, current_gpu_kept, gpu_count, module, to_numpy
from support.samples import as_dict, items_of, random_keys, random_values, same_bytes
from test_memory import OPERATIONS
from test_transfer import KINDS, table_of

import gpuhash
from gpuhash import HashMultiMap, HashTable, _core

pytestmark = pytest.mark.gpu

FIRST, SECOND = "cuda:0", "cuda:1"
PAIRS = [(FIRST, SECOND), (SECOND, FIRST)]  # where the table is, and the current GPU
ELEMENTS = 1 << 24  # 64 MiB of float32


@pytest.fixture
def torch():
    """PyTorch on a machine with two GPUs, the first of which is the current one.

    What other tests have left behind is freed before: when TensorFlow's arrays are, another GPU may be the current one.
    """
    if gpu_count() < 2:
        pytest.skip("needs two GPUs")
    if module("torch") is None or module("torch").cuda.device_count() < 2:
        pytest.skip("needs PyTorch with two GPUs")
    gc.collect()
    module("torch").cuda.set_device(0)
    yield module("torch")
    module("torch").cuda.set_device(0)


def busy(torch, device, cycles):
    """Keeps the current stream of that GPU busy; 1e9 cycles are about half a second."""
    with torch.cuda.device(device):
        torch.cuda._sleep(cycles)


def overwrite(torch, device):
    """Takes memory from gpuhash's pool in pieces of two sizes, on a stream that nothing else uses, and fills it."""
    stream = torch.cuda.Stream(device)
    context = _core.Context("cuda", torch.device(device).index)
    sizes = [ELEMENTS] * 4 + [ELEMENTS // 32] * 64
    buffers = [_core.Buffer(context, "float32", (size,), stream.cuda_stream) for size in sizes]
    with torch.cuda.stream(stream):
        for buffer in buffers:
            torch.from_dlpack(buffer).fill_(-1)
    stream.synchronize()


@pytest.mark.parametrize(("device", "current"), PAIRS, ids=["second-current", "first-current"])
def test_a_buffer_is_freed_in_the_order_of_its_own_gpu(torch, device, current):
    """The default stream has one handle on all GPUs; the one that reads the memory is meant."""
    index = torch.device(device).index
    for cycles in (1000, 1_000_000_000):  # the first round loads kernels, which waits for the device
        buffer = _core.Buffer(_core.Context("cuda", index), "float32", (ELEMENTS,), 0)
        view = torch.from_dlpack(buffer)
        view.fill_(3)
        torch.cuda.synchronize(device)
        with torch.cuda.device(current):
            busy(torch, device, cycles)
            least, most = view.min(), view.max()
            del buffer, view
            gc.collect()
            overwrite(torch, device)
            assert torch.cuda.current_device() == torch.device(current).index
        assert (float(least), float(most)) == (3, 3)


@pytest.mark.parametrize(("device", "current"), PAIRS, ids=["second-current", "first-current"])
@pytest.mark.parametrize("value_shape", [(), (16,)], ids=["scalar", "rows"])
def test_a_table_is_freed_in_the_order_of_its_own_gpu(torch, device, current, value_shape):
    count = 1 << 20
    keys = torch.arange(count, device=device)
    for cycles in (1000, 1_000_000_000):
        table = HashTable("int64", "float32", value_shape=value_shape, device=device)
        table[keys] = 3
        len(table)
        values = torch.zeros(count, *value_shape, device=device)
        found = torch.zeros(count, dtype=torch.bool, device=device)
        torch.cuda.synchronize(device)
        with torch.cuda.device(current):
            busy(torch, device, cycles)
            table.find(keys, out=(values, found))
            del table
            gc.collect()
            overwrite(torch, device)
        assert bool(found.all())
        assert bool((values == 3).all())


@pytest.mark.parametrize("kind", KINDS)
def test_to_the_other_gpu_and_back(torch, kind):
    table, expected = table_of(kind, FIRST)
    moved = table.to(SECOND)
    assert moved.device == SECOND
    assert items_of(moved) == expected
    assert moved == table
    assert table == moved
    back = moved.to(FIRST)
    assert back.device == FIRST
    assert items_of(back) == expected
    assert moved.capacity == table.capacity == back.capacity
    if table.value_shape:
        keys = to_numpy(table.keys())
        assert np.array_equal(table.rows(keys), moved.rows(keys)), "row numbers stay"
    moved.clear()
    assert items_of(back) == items_of(table) == expected
    assert torch.cuda.current_device() == 0


def test_large_rows_grow_on_both_gpus(torch):
    """And are copied from one to the other, before growth and after it, whatever part of them is how old."""
    count = 20_000
    keys = np.arange(8 * count)
    values = random_values("float32", (len(keys), 256))
    tables = {}
    for device, other in PAIRS:
        tables[device] = HashTable("int64", "float32", value_shape=(256,), device=device)
        tables[device][keys[:count]] = values[:count]
        assert items_of(tables[device].to(other)) == as_dict(keys[:count], values[:count])
    addresses = {device: table.row_storage.data_ptr() for device, table in tables.items()}
    for end in range(2 * count, len(keys) + 1, 2 * count):
        for device, other in PAIRS:
            table = tables[device]
            table[keys[:end]] = values[:end]
            assert table.row_storage.data_ptr() == addresses[device]
            moved = table.to(other)
            assert moved.device == other
            assert items_of(moved) == as_dict(keys[:end], values[:end])
            there = torch.from_numpy(keys[:end]).to(other)
            assert np.array_equal(moved.rows(keys[:end]), table.rows(keys[:end]))
            moved[there] = 0
            assert items_of(table) == as_dict(keys[:end], values[:end])
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_the_second_gpus_tables(torch, kind):
    table, expected = table_of(kind, SECOND)
    assert items_of(table.copy()) == expected
    assert table.copy().device == SECOND
    assert items_of(table.to("cpu")) == expected
    assert items_of(table_of(kind, "cpu")[0].to(SECOND)) == expected
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("value_shape", [(), (5,)], ids=["scalar", "rows"])
def test_update_between_two_gpus(torch, value_shape):
    keys, values = random_keys("int64", (), 6000), random_values("float32", (6000, *value_shape))
    tables = [HashTable("int64", "float32", value_shape=value_shape, device=device) for device in (FIRST, SECOND)]
    for table, part in zip(tables, (slice(0, 4000), slice(2000, 6000)), strict=True):
        table[torch.from_numpy(keys[part]).to(table.device)] = torch.from_numpy(values[part]).to(table.device)
    tables[1].update(tables[0])
    assert items_of(tables[1]) == as_dict(keys, values)
    tables[0].update(tables[1])
    assert items_of(tables[0]) == as_dict(keys, values)
    assert torch.cuda.current_device() == 0


CONTEXT_PROGRAM = """
import ctypes
import numpy as np
from gpuhash import HashTable

cuda = ctypes.CDLL("libcuda.so.1")
def is_active(index):
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    assert cuda.cuDeviceGet(ctypes.byref(device), index) == 0
    assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
    return bool(active.value)

table = HashTable("int64", "float32", value_shape=(3,), device="cuda:1")
keys = np.arange(5000)
table[keys] = 2
assert (table[keys] == 2).all()
table.insert_or_apply(keys, 1, "add")
table.erase(keys[::2])
assert len(table) == 2500
assert len(table.copy()) == 2500
table.reserve(100_000)
table.clear()
del table
print(is_active(0), is_active(1))
"""


def test_the_second_gpu_alone_makes_no_context_on_the_first(torch):
    """A context takes hundreds of megabytes, and on a shared machine GPU 0 may be full, or somebody else's."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CONTEXT_PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(("device", "current"), PAIRS, ids=["second-current", "first-current"])
@pytest.mark.parametrize("value_shape", [(), (5,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_current_gpu_stays(torch, operation, value_shape, device, current):
    index = torch.device(current).index
    keys, values = random_keys("int64", (), 6000), random_values("float32", (6000, *value_shape))
    for on_host in (False, True):
        place = "cpu" if on_host else device
        with torch.cuda.device(current):
            table = HashTable("int64", "float32", value_shape=value_shape, device=device)
            assert torch.cuda.current_device() == index
            table[torch.from_numpy(keys[:1000]).to(place)] = torch.from_numpy(values[:1000]).to(place)
            assert torch.cuda.current_device() == index
            OPERATIONS[operation](
                table, torch.from_numpy(keys[500:]).to(place), torch.from_numpy(values[500:]).to(place)
            )
            assert torch.cuda.current_device() == index
            del table
            gc.collect()
            assert torch.cuda.current_device() == index


def test_the_current_gpu_is_the_one_without_a_number(torch):
    for index in (0, 1):
        with torch.cuda.device(index):
            assert HashTable("int64", "int64", device="cuda").device == f"cuda:{index}"


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_arrays_of_the_other_gpu_are_refused(torch, name):
    table = HashTable("int64", "int64", device=SECOND)
    right = torch.arange(10, device=SECOND)
    table[right] = 1
    keys = torch.arange(5, device=FIRST)
    out = torch.zeros(10, dtype=torch.bool, device=FIRST)
    if name == "cupy":
        cupy = pytest.importorskip("cupy")
        keys, out = cupy.from_dlpack(keys), cupy.from_dlpack(out)
    for call in (
        lambda: table[keys],
        lambda: table.find(keys),
        lambda: table.contains(keys),
        lambda: table.insert(keys, 5),
        lambda: table.insert_or_assign(keys, 5),
        lambda: table.insert_or_apply(keys, 5, "add"),
        lambda: table.__setitem__(right[:5], keys),
        lambda: table.erase(keys),
        lambda: table.pop(keys, 0),
        lambda: table.setdefault(keys, 0),
        lambda: table.contains(right, out=out),
    ):
        with pytest.raises(ValueError, match=r"cuda:0.*cuda:1"):
            call()
        assert torch.cuda.current_device() == 0
    assert items_of(table) == as_dict(np.arange(10), np.ones(10, np.int64))


@pytest.mark.parametrize("value_shape", [(), (4,)], ids=["scalar", "rows"])
def test_threads_with_different_current_gpus(torch, value_shape):
    tables = [HashTable("int64", "int64", value_shape=value_shape, device=device) for device in (FIRST, SECOND)]
    start = threading.Barrier(4)

    def work(number):
        torch.cuda.set_device(number % 2)
        start.wait()
        for round_number in range(30):
            table = tables[(number // 2 + round_number) % 2]
            host = np.arange(2000) + (number * 30 + round_number) * 2000
            keys = torch.from_numpy(host).to(table.device)
            values = keys.reshape(-1, *[1] * len(value_shape)).expand(2000, *value_shape).contiguous()
            assert bool(table.insert(keys, values).all())
            same_bytes(table[keys], to_numpy(values))
            assert bool(table.erase(keys[::2]).all())
            assert torch.cuda.current_device() == number % 2

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    kept = np.sort(np.concatenate([to_numpy(table.keys()) for table in tables]))
    same_bytes(kept, np.arange(1, 4 * 30 * 2000, 2))


def test_memory_of_the_other_gpu_is_given_back_during_a_capture(torch):
    """Rows that were lent to PyTorch, for whose readers the host waits before they go."""
    keys = torch.arange(20_000, device=FIRST)
    table = HashTable("int64", "float32", value_shape=(256,), device=FIRST)
    table[keys] = 2
    out = torch.zeros(len(keys), 256, device=FIRST), torch.zeros(len(keys), dtype=torch.bool, device=FIRST)
    table.find(keys, out=out)
    for width in (2, 256):
        other = HashTable("int64", "float32", value_shape=(width,), device=SECOND)
        other[keys.to(SECOND)] = 3
        view = other.row_storage_as("torch")
        graph = torch.cuda.CUDAGraph()
        with capture(graph, FIRST):
            table.find(keys, out=out)
            del other, view
        for each in out:
            each.zero_()
        graph.replay()
        assert bool(out[1].all())
        assert bool((out[0] == 2).all())


SHARDS_BESIDE_A_CAPTURE = """
import threading

import torch
from gpuhash import HashTable

keys = torch.arange(20_000, device="cuda:0")
side = torch.cuda.Stream("cuda:0")  # PyTorch makes its streams, and takes memory, in the thread's own mode

def shards():
    return HashTable("int64", "float32", device=["cuda:0", "cuda:1"])

def filled():
    table = shards()
    table[keys] = 2
    len(table)
    return table

def capture(body):
    x, y = torch.ones(1000, device="cuda:0"), torch.zeros(1000, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    for each in range(2):
        torch.cuda.synchronize(each)
    with torch.cuda.graph(graph, capture_error_mode="global"):
        y.copy_(x * 2)
        body()
        y.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert float(y[0]) == 3

def by_another_thread(body):
    errors = []
    def run():
        try:
            with torch.cuda.stream(side):
                body()
        except BaseException as error:
            errors.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors, errors

capture(lambda: None)
kept = [filled()]
capture(kept.clear)
kept = [filled()]
capture(lambda: by_another_thread(kept.clear))
fresh = shards()
values = torch.full((20_000,), 5.0, device="cuda:0")
capture(lambda: by_another_thread(lambda: fresh.__setitem__(keys, values)))
assert bool((fresh[keys] == 5).all())
again = filled()
assert bool((again[keys] == 2).all())
print("whole")
"""


def test_tables_with_shards_begin_and_end_beside_a_capture(torch):
    """PyTorch's default, in a process in which no other library's threads end it."""
    command = [sys.executable, "-P", "-c", SHARDS_BESIDE_A_CAPTURE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "whole", done.stderr


RESOURCE_THAT_USES_ITS_TABLE = """
import faulthandler

import torch
from gpuhash import HashTable
from gpuhash.arrays.memory import TorchResource

faulthandler.dump_traceback_later(60, exit=True)

class Curious(TorchResource):
    table = None

    def __init__(self, index):
        super().__init__(index)
        self.said = []

    def allocate(self, nbytes, stream):
        table, self.table = self.table, None
        if table is not None:
            try:
                self.said.append(len(table))
            except RuntimeError as error:
                assert "in the middle of a call on it" in str(error)
                self.said.append("told")
        return super().allocate(nbytes, int(stream))

memory = [Curious(0), Curious(1)]
table = HashTable("int64", "int64", device=["cuda:0", "cuda:1"], memory=memory)
first, second = torch.arange(100_000, device="cuda:0"), torch.arange(100_000, 200_000, device="cuda:1")
table[[first, second]] = [first, second]
for _ in range(20):
    memory[0].table = memory[1].table = table
    table[[first, second]] = [first, second]
values, found = table.find([first, second])
assert all(bool(each.all()) for each in found) and torch.equal(values[1], second)
assert memory[0].said and memory[1].said and {*memory[0].said, *memory[1].said} == {"told"}, memory[0].said
print("whole")
"""


def test_a_resource_that_uses_its_table_in_a_call_on_both(torch):
    """The threads that work for the caller, who holds the locks, are told so as the caller is."""
    command = [sys.executable, "-P", "-c", RESOURCE_THAT_USES_ITS_TABLE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "whole", done.stderr


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_a_graph_of_the_other_gpu(torch, value_shape):
    table = HashTable("int64", "float32", value_shape=value_shape, device=SECOND)
    table.reserve(50_000)
    keys = torch.arange(1000, device=SECOND)
    values = torch.zeros(1000, *value_shape, device=SECOND)
    new = torch.zeros(1000, dtype=torch.bool, device=SECOND)
    got, found = torch.empty_like(values), torch.empty_like(new)

    def step():
        table.insert_or_assign(keys, values, out=new)
        table.find(keys, out=(got, found))

    step()
    table.clear()
    assert len(table) == 0
    graph = torch.cuda.CUDAGraph()
    with capture(graph, SECOND):
        step()
    assert torch.cuda.current_device() == 0
    assert len(table) == 0, "capturing must not run"
    for round_number in range(5):
        keys += 500
        values.fill_(round_number)
        graph.replay()
        assert int(new.sum()) == (1000 if round_number == 0 else 500)
        assert bool(found.all())
        assert bool((got == round_number).all())
    assert len(table) == 3000
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("device", [FIRST, SECOND])
@pytest.mark.parametrize("name", ["cupy", "jax", "tensorflow"])
def test_frameworks_are_answered_where_their_keys_are(torch, name, device):
    library = module(name)
    if library is None:
        pytest.skip(f"{name} is not installed")
    index = torch.device(device).index
    host = np.arange(1000)
    with current_gpu_kept():
        if name == "cupy":
            with library.cuda.Device(index):
                keys = library.asarray(host)
        elif name == "jax":
            if len(library.devices("gpu")) < 2:
                pytest.skip("JAX sees no two GPUs")
            keys = library.device_put(host, library.devices("gpu")[index])
        else:
            if len(library.config.list_physical_devices("GPU")) < 2:
                pytest.skip("TensorFlow sees no two GPUs")
            with library.device(f"GPU:{index}"):
                keys = library.identity(library.constant(host))
    table = HashTable("int64", "int64", device=device)
    with current_gpu_kept():
        table[keys] = keys
        got, found = table[keys], table.contains(keys)
    same_bytes(got, host)
    assert to_numpy(found).all()
    if name == "cupy":
        assert got.device.id == index
    elif name == "jax":
        assert got.devices() == keys.devices()
    else:
        assert got.device == keys.device


def test_a_multimap_over_both(torch):
    """Keys from either GPU, and from the host, in turns; answers are where the keys are."""
    rng = np.random.default_rng(1)
    table = HashMultiMap("int64", "float32", 2, device=[FIRST, SECOND, SECOND])
    model: dict[int, list[float]] = {}
    for turn in range(9):
        keys = rng.integers(0, 300, 500)
        values = np.repeat(np.arange(500 * turn, 500 * turn + 500, dtype=np.float32), 2).reshape(-1, 2)
        given, numbers = torch.from_numpy(keys), torch.from_numpy(values)
        if turn % 3 < 2:
            given, numbers = given.to((FIRST, SECOND)[turn % 3]), numbers.to((FIRST, SECOND)[turn % 3])
        table.insert(given, numbers)
        for key, value in zip(keys.tolist(), values[:, 0].tolist(), strict=True):
            model.setdefault(key, []).append(value)
        for device in (SECOND, FIRST, "cpu"):
            asked = torch.arange(310, device=device)
            offsets, found = table.find_all(asked)
            assert offsets.device == found.device == asked.device
            expected = [model.get(key, []) for key in range(310)]
            assert np.diff(to_numpy(offsets)).tolist() == [len(values) for values in expected]
            same_bytes(found, np.repeat(np.concatenate(expected).astype(np.float32), 2).reshape(-1, 2))
        if turn == 4:
            gone = torch.arange(100, device=SECOND)
            assert table.erase(gone) == sum(len(model.pop(key, [])) for key in range(100))
        assert len(table) == sum(map(len, model.values()))
    for one in (table.copy(), pickle.loads(pickle.dumps(table))):
        keys, values = (to_numpy(array) for array in one.items())
        told: dict[int, list[float]] = {}
        for key, value in zip(keys.tolist(), values[:, 0].tolist(), strict=True):
            told.setdefault(key, []).append(value)
        assert told == model


def test_factorization_on_the_other_gpu(torch):
    host = np.random.default_rng(0).integers(0, 3000, 100_000)
    keys = torch.from_numpy(host).to(SECOND)
    codes, uniques = gpuhash.factorize(keys)
    assert codes.device == uniques.device == keys.device
    assert torch.equal(uniques[codes], keys)
    same_bytes(gpuhash.unique(keys, sorted=True), np.unique(host))
    same_bytes(gpuhash.isin(keys, keys[:100]), np.isin(host, host[:100]))
    with pytest.raises(ValueError, match=r"cuda:"):
        gpuhash.isin(keys, torch.arange(10, device=FIRST))
    assert torch.cuda.current_device() == 0


def test_a_stored_tensor_of_the_other_gpu(torch, request):
    name = request.node.name
    gpuhash.store[name] = torch.arange(1000, device=SECOND)
    try:
        buffer = gpuhash.store.tensor(name, like="buffer")
        same_bytes(torch.from_dlpack(buffer), np.arange(1000))
        assert torch.from_dlpack(buffer).device == torch.device(SECOND)
        assert torch.cuda.current_device() == 0
    finally:
        del gpuhash.store[name]
