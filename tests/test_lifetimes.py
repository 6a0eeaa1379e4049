"""Memory that is given back while a kernel on some stream still reads it: nobody else may get it before."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from support.frameworks import (
    GPU,
    GPU_INDEX,
    Framework,
    current_gpu_kept,
    current_stream,
    delay,
    module,
    need_place,
    new_stream,
    on_cupy_stream,
    on_stream,
    to_numpy,
)
from support.samples import same_bytes

from gpuhash import HashTable, _core, store

ROWS, WIDTH = 1 << 18, 64  # 64 MiB
ROUNDS = [1000, 1_000_000_000]  # cycles of delay; the first round loads kernels, which waits for the device


def overwrite(torch):
    """Takes memory from gpuhash's pool on a stream that nothing else uses, and fills it."""
    stream = new_stream()
    context = _core.Context("cuda", GPU_INDEX)
    buffers = [_core.Buffer(context, "float32", (ROWS, WIDTH), stream.cuda_stream) for _ in range(4)]
    with on_stream(stream):
        for buffer in buffers:
            torch.from_dlpack(buffer).fill_(-1)
    stream.synchronize()


def table_of_threes(torch):
    table = HashTable("int64", "float32", value_shape=(WIDTH,), device=GPU, capacity=ROWS, growth=False)
    table[torch.arange(table.capacity, device=GPU)] = 3
    torch.cuda.synchronize(GPU)
    return table


@pytest.mark.parametrize("reader", ["torch", "cupy"])
@pytest.mark.parametrize("first", ["table", "view"])
@pytest.mark.parametrize("taken_on", ["the-reading-stream", "the-default-stream"])
def test_rows_are_read_on_another_stream(torch_cuda, reader, taken_on, first):
    """Than the table's; table and view go while that stream reads."""
    torch = torch_cuda
    need_place(Framework(reader, GPU, GPU))
    other = new_stream()
    reading = on_stream if reader == "torch" else on_cupy_stream
    for cycles in ROUNDS:
        table = table_of_threes(torch)
        with reading(other if taken_on == "the-reading-stream" else current_stream()):
            view = table.row_storage_as(reader)
        torch.cuda.synchronize(GPU)
        with on_stream(other):
            delay(cycles)
        with reading(other):
            least, most = view.min(), view.max()
        if first == "table":
            del table
            gc.collect()
            del view
        else:
            del view
            gc.collect()
            del table
        gc.collect()
        overwrite(torch)
        torch.cuda.synchronize(GPU)
        assert (float(least), float(most)) == (3, 3)


@pytest.mark.parametrize("reader", ["torch", "cupy"])
def test_rows_are_read_while_the_table_grows(torch_cuda, reader):
    torch = torch_cuda
    need_place(Framework(reader, GPU, GPU))
    other = new_stream()
    reading = on_stream if reader == "torch" else on_cupy_stream
    for cycles in ROUNDS:
        table = HashTable("int64", "float32", value_shape=(WIDTH,), device=GPU, capacity=ROWS)
        keys = torch.arange(ROWS // 2, device=GPU)
        table[keys] = 3
        rows = table.rows(keys)
        with reading(other):
            view = table.row_storage_as(reader)
        torch.cuda.synchronize(GPU)
        with on_stream(other):
            delay(cycles)
        with reading(other):
            read = view[rows if reader == "torch" else module("cupy").from_dlpack(rows)]
        del view
        table.reserve(4 * ROWS)
        overwrite(torch)
        torch.cuda.synchronize(GPU)
        same_bytes(read, np.full((len(keys), WIDTH), 3, np.float32))
        same_bytes(table[keys], np.full((len(keys), WIDTH), 3, np.float32))


@pytest.mark.parametrize("reader", ["torch", "cupy"])
def test_rows_are_read_while_the_table_shrinks(torch_cuda, reader):
    """The rows move, and the memory of before goes back: behind whoever reads it."""
    torch = torch_cuda
    need_place(Framework(reader, GPU, GPU))
    other = new_stream()
    reading = on_stream if reader == "torch" else on_cupy_stream
    for cycles in ROUNDS:
        table = table_of_threes(torch)
        left = torch.arange(ROWS // 2, table.capacity, device=GPU)
        with reading(other):
            view = table.row_storage_as(reader)
        torch.cuda.synchronize(GPU)
        with on_stream(other):
            delay(cycles)
        with reading(other):
            least, most = view.min(), view.max()
        del view
        table.erase(torch.arange(ROWS // 2, device=GPU))
        table.shrink_to_fit()
        overwrite(torch)
        torch.cuda.synchronize(GPU)
        assert (float(least), float(most)) == (3, 3)
        assert bool((table[left] == 3).all())


def long_work(name, place):
    """A function that keeps the framework's stream of the GPU busy for about half a second and gives a 0."""
    if name == "jax":
        jax = module("jax")
        matrix = place.array(np.zeros((8192, 8192), np.float32))
        product = jax.jit(lambda m: jax.lax.fori_loop(0, 60, lambda _, each: each @ m, m)[0, 0])
        return lambda: product(matrix)
    tensorflow = module("tensorflow")
    with tensorflow.device(place.tensorflow_device()):
        matrix = tensorflow.zeros((8192, 8192))

    def work():
        product = matrix
        for _ in range(60):
            product = tensorflow.linalg.matmul(product, matrix)
        return product[0, 0]

    return work


@pytest.mark.parametrize("source", ["values", "store"])
@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_arrays_of_frameworks_that_tell_no_stream(torch_cuda, name, source, request):
    """What JAX or TensorFlow was given is freed by them as soon as they have enqueued the work that reads it."""
    torch = torch_cuda
    place = need_place(Framework(name, GPU, GPU))
    table = table_of_threes(torch)
    keys = place.array(np.arange(ROWS))
    with current_gpu_kept():
        work = long_work(name, place)
        if name == "jax":
            add = module("jax").jit(lambda values, zero: values + zero)
        else:

            def add(values, zero):
                with module("tensorflow").device(place.tensorflow_device()):
                    return values + zero

        for _ in ROUNDS:
            if source == "values":
                given = table[keys]
            else:
                rows = _core.Buffer(table._context, "float32", (ROWS, WIDTH), current_stream().cuda_stream)
                torch.from_dlpack(rows).fill_(3)
                _core.put_tensor(request.node.name, rows.array(), None, current_stream().cuda_stream, False)
                del rows
                given = store.tensor(request.node.name, like=name)
                del store[request.node.name]
            torch.cuda.synchronize(GPU)
            read = add(given, work())  # enqueued behind the long work
            del given
            gc.collect()
            overwrite(torch)
            got = to_numpy(read)
            assert got.min() == got.max() == 3
            del read


@pytest.mark.parametrize("width", [None, WIDTH])
def test_a_table_ends_while_a_graph_replays_its_calls(torch_cuda, width):
    """On the stream of the table's last call, in whose order nothing is wrong; rows are unmapped where they grow."""
    torch = torch_cuda
    shape = () if width is None else (width,)
    stream = new_stream()
    for cycles in ROUNDS:
        table = HashTable("int64", "int64", value_shape=shape, device=GPU, capacity=ROWS)
        keys = torch.randperm(ROWS // 2, device=GPU)
        values = (keys * 3 + 1).reshape(-1, *[1] * len(shape)).expand(-1, *shape).contiguous()
        table[keys] = values
        got, found = torch.zeros_like(values), torch.zeros(len(keys), dtype=torch.bool, device=GPU)
        table.find(keys, out=(got, found))
        len(table)
        torch.cuda.synchronize(GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            torch.cuda._sleep(cycles)
            table.find(keys, out=(got, found))
        got.zero_()
        found.zero_()
        torch.cuda.synchronize(GPU)
        with on_stream(stream):
            table.contains(keys)
            graph.replay()
        del table
        gc.collect()
        overwrite(torch)
        torch.cuda.synchronize(GPU)
        assert bool(found.all())
        assert torch.equal(got, values)
        graph.reset()
