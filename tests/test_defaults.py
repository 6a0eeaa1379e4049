"""Defaults on the GPU: in the order of the stream that fills them, and in memory that stays where graphs read it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from support.frameworks import capture, module, sees_gpu
from support.samples import same_bytes

import gpuhash
from gpuhash import HashTable

CYCLES = 500_000_000  # of a GPU's clock: about a quarter of a second
BOUND = 256  # values that a table keeps in GPU memory


@pytest.fixture
def cupy_cuda(cuda: str) -> Any:
    """CuPy, where it computes on the GPU."""
    if not sees_gpu("cupy"):
        pytest.skip("cupy sees no GPU")
    return module("cupy")


def filled_late(torch: Any, stream: Any, shape: tuple[int, ...], cuda: str) -> Any:
    """Sevens, which the stream writes only after a while."""
    tensor = torch.zeros(shape, device=cuda)
    torch.cuda.synchronize(cuda)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        tensor.fill_(7)
    return tensor


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("given_shape", ["one", "value"])
def test_table_default_waits_for_the_stream_that_fills_it(torch_cuda, cuda, value_shape, given_shape):
    torch = torch_cuda
    stream = torch.cuda.Stream(cuda)
    default = filled_late(torch, stream, () if given_shape == "one" else value_shape, cuda)
    with torch.cuda.stream(stream):
        table = HashTable("int64", "float32", value_shape=value_shape, device=cuda, default=default)
        got = table[torch.arange(4, device=cuda)]
    stream.synchronize()
    same_bytes(got, np.full((4, *value_shape), 7, np.float32))
    np.testing.assert_array_equal(table.default, np.full(value_shape, 7, np.float32))


@pytest.mark.parametrize("given_shape", [(), (3,), (4, 3)], ids=["one", "value", "each-key"])
@pytest.mark.parametrize("method", ["find", "get", "setdefault", "pop"])
def test_default_of_a_call_waits_for_the_stream_that_fills_it(torch_cuda, cuda, method, given_shape):
    torch = torch_cuda
    table = HashTable("int64", "float32", value_shape=(3,), device=cuda)
    keys = torch.arange(4, device=cuda)
    stream = torch.cuda.Stream(cuda)
    default = filled_late(torch, stream, given_shape, cuda)
    with torch.cuda.stream(stream):
        got = getattr(table, method)(keys, default)
        got = got[0] if method == "find" else got
    stream.synchronize()
    same_bytes(got, np.full((4, 3), 7, np.float32))


def test_default_on_the_gpu_for_a_table_on_the_host(torch_cuda, cuda):
    torch = torch_cuda
    stream = torch.cuda.Stream(cuda)
    default = filled_late(torch, stream, (), cuda)
    with torch.cuda.stream(stream):
        table = HashTable("int64", "float32", default=default)
    assert table.default == 7


@pytest.mark.parametrize("given_shape", [(), (3,), (4, 3)], ids=["one", "value", "each-key"])
@pytest.mark.parametrize("method", ["find", "get", "pop"])
def test_default_of_another_framework(torch_cuda, cupy_cuda, cuda, method, given_shape):
    """CuPy's stream is not PyTorch's, on which the default is filled."""
    torch, cupy = torch_cuda, cupy_cuda
    index = torch.empty(0, device=cuda).get_device()
    table = HashTable("int64", "float32", value_shape=(3,), device=cuda)
    stream = torch.cuda.Stream(cuda)
    default = filled_late(torch, stream, given_shape, cuda)
    with cupy.cuda.Device(index), cupy.cuda.Stream(non_blocking=True), torch.cuda.stream(stream):
        got = getattr(table, method)(cupy.arange(4), default)
        got = got[0] if method == "find" else got
        same_bytes(got, np.full((4, 3), 7, np.float32))


def captured(torch: Any, call: Any, cuda: str) -> Any:
    """The call as a graph; made once before, as everyone should."""
    call()
    graph = torch.cuda.CUDAGraph()
    with capture(graph, cuda):
        call()
    return graph


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_captured_default_stays_where_it_is(torch_cuda, cuda, value_shape):
    """However many other defaults, scalars and rows, are used between the replays."""
    torch = torch_cuda
    table = HashTable("int64", "float32", value_shape=value_shape, device=cuda)
    keys = torch.arange(100, device=cuda)
    table[keys[::2]] = 1.0
    values = torch.zeros(100, *value_shape, device=cuda)
    found = torch.zeros(100, dtype=torch.bool, device=cuda)
    default = 5.0 if value_shape == () else [5.0, 6.0, 7.0]
    graph = captured(torch, lambda: table.find(keys, default, out=(values, found)), cuda)
    expected = np.empty((100, *value_shape), np.float32)
    expected[::2], expected[1::2] = 1, default
    for number in range(BOUND + 50):
        other = float(number + 100)
        same_bytes(table.get(keys[1:2], other), np.full((1, *value_shape), other, np.float32))
    gc.collect()
    taken = [torch.full((64,), -1.0, device=cuda) for _ in range(50)]  # what was given back is somebody else's now
    values.zero_()
    graph.replay()
    same_bytes(values, expected)
    assert len(taken) == 50


def test_captured_default_of_the_table_outlives_other_defaults(torch_cuda, cuda):
    torch = torch_cuda
    table = HashTable("int64", "float32", device=cuda, default=9.0)
    keys = torch.arange(10, device=cuda)
    values = torch.zeros(10, device=cuda)
    graph = captured(torch, lambda: table.get(keys, out=values), cuda)
    for number in range(BOUND + 10):
        table.get(keys, float(number))
    values.zero_()
    graph.replay()
    same_bytes(values, np.full(10, 9, np.float32))


@pytest.mark.parametrize("default", [4.0, [4.0, 5.0, 6.0]], ids=["number", "row"])
def test_new_default_under_capture_is_refused(torch_cuda, cuda, default):
    torch = torch_cuda
    table = HashTable("int64", "float32", value_shape=() if default == 4.0 else (3,), device=cuda)
    keys = torch.arange(10, device=cuda)
    values = torch.zeros(10, *table.value_shape, device=cuda)
    table.get(keys, 1.0, out=values)
    with pytest.raises(ValueError, match="once before the capture"), capture(torch.cuda.CUDAGraph(), cuda):
        table.get(keys, default, out=values)
    torch.cuda.synchronize(cuda)
    graph = captured(torch, lambda: table.get(keys, default, out=values), cuda)
    values.zero_()
    graph.replay()
    same_bytes(values, np.broadcast_to(np.array(default, np.float32), (10, *table.value_shape)))


def test_defaults_beyond_the_bound_are_read_in_time(torch_cuda, cuda):
    """Each lies in memory of its own call, on two streams in turn, while the GPU is behind."""
    torch = torch_cuda
    table = HashTable("int64", "float32", value_shape=(64,), device=cuda)
    keys = torch.arange(1000, device=cuda)
    for number in range(BOUND):
        table.get(keys[:1], float(number))
    streams = [torch.cuda.Stream(cuda), torch.cuda.Stream(cuda)]
    torch.cuda.synchronize(cuda)
    answers = []
    for number in range(40):
        with torch.cuda.stream(streams[number % 2]):
            torch.cuda._sleep(CYCLES // 100)
            answers.append(table.get(keys, 1000.0 + number))
    torch.cuda.synchronize(cuda)
    for number, answer in enumerate(answers):
        same_bytes(answer, np.full((1000, 64), 1000 + number, np.float32))


def test_memory_of_defaults_is_given_back_after_its_last_reader(torch_cuda, cuda):
    """The table dies while a stream, that is not the one it was made on, still reads a default."""
    torch = torch_cuda
    keys = torch.arange(100_000, device=cuda)
    stream = torch.cuda.Stream(cuda)
    torch.cuda.synchronize(cuda)
    for _ in range(5):
        table = HashTable("int64", "float32", device=cuda, memory="torch", default=3.0)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES // 10)
            got = table[keys]
        del table
        gc.collect()
        taken = [torch.full((128,), -1.0, device=cuda) for _ in range(50)]  # on the stream of the table's making
        stream.synchronize()
        same_bytes(got, np.full(100_000, 3, np.float32))
        del taken


def test_defaults_by_the_hundred(native):
    """More than a table keeps, twice, so that kept and temporary ones are both found again; rows and numbers."""
    for value_shape in ((), (5,)):
        table = HashTable("int64", "float64", value_shape=value_shape, device=native.table_device)
        keys = native.array(np.arange(3))
        for _ in range(2):
            for number in range(BOUND + 20):
                same_bytes(table.get(keys, number), np.full((3, *value_shape), number, np.float64))
                same_bytes(table.get(keys, number + 0.5), np.full((3, *value_shape), number + 0.5, np.float64))


def test_large_defaults(native):
    """Rows of 128 KiB, of which a table keeps 32."""
    table = HashTable("int64", "float32", value_shape=(1 << 15,), device=native.table_device)
    keys = native.array(np.arange(2))
    for number in range(40):
        same_bytes(table.get(keys, number), np.full((2, 1 << 15), number, np.float32))


def test_default_belongs_to_the_face(native):
    """Two faces of one table, with one owner of what lies in GPU memory, keep to their own default."""
    table = HashTable("int64", "float32", device=native.table_device, default=2.0, name="defaults")
    other = gpuhash.open("defaults")
    try:
        keys = native.array(np.arange(3))
        same_bytes(table[keys], np.full(3, 2, np.float32))
        with pytest.raises(KeyError):
            other[keys]
        same_bytes(other.get(keys, 8.0), np.full(3, 8, np.float32))
        same_bytes(table.copy()[keys], np.full(3, 2, np.float32))
        del table
        gc.collect()
        same_bytes(other.get(keys, 2.0), np.full(3, 2, np.float32))
    finally:
        other.close()
