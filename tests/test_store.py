"""Named tensors: one memory for all who know the name."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.frameworks import (
    GPU,
    PLACES,
    Framework,
    address_of,
    capture,
    current_stream,
    delay,
    event_now,
    module,
    need_place,
    new_stream,
    on_cupy_stream,
    on_stream,
    place_name,
    platform_of,
    to_numpy,
)
from support.samples import VALUE_DTYPES, random_values, same_bytes, shape_name

from gpuhash import HashTable, TensorStore, _core, store

HOLDERS = [place for place in PLACES if place.device == place.table_device]
PAIRS = [(writer, reader) for writer in HOLDERS for reader in HOLDERS if writer.device == reader.device]
SHAPES = [(), (1,), (7,), (5, 3), (2, 1, 3), (0,), (3, 0, 2)]
THREADS = 6


def pair_name(pair):
    writer, reader = pair
    return f"{writer.name}-to-{reader.name}-{platform_of(writer.device)}"


@pytest.fixture
def name(request):
    """A name of this test's own, free before and after."""
    yield request.node.name
    _core.remove_tensor(request.node.name)


@pytest.fixture(params=PAIRS, ids=pair_name)
def pair(request):
    return tuple(need_place(place) for place in request.param)


@pytest.fixture(params=HOLDERS, ids=place_name)
def holder(request):
    return need_place(request.param)


def at_offset(host, offset):
    """A copy of a NumPy array whose address is `offset` beyond a multiple of 64."""
    room = np.empty(host.nbytes + 64 + offset, np.uint8)
    start = -room.ctypes.data % 64 + offset
    copied = room[start : start + host.nbytes].view(host.dtype).reshape(host.shape)
    copied[...] = host
    return copied


def tensor_of(place, host):
    """An array of the framework, at an address that every framework takes."""
    if place.name == "numpy":
        return at_offset(host, 0)
    tensor = place.array(host)
    return tensor.clone() if place.name == "torch" else tensor  # on the host it was NumPy's memory


def is_gone(reference, patience=5):
    """Has the object been freed? Some frameworks give GPU memory back from threads of their own."""
    end = time.monotonic() + patience  # seconds
    gc.collect()
    while reference() is not None and time.monotonic() < end:
        time.sleep(0.01)
    return reference() is None


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_every_framework_reads_what_another_saved(pair, name, shape):
    writer, reader = pair
    host = np.asarray(random_values("float32", shape))
    tensor = tensor_of(writer, host)
    store[name] = tensor
    assert store[name] is tensor
    assert store.tensor(name) is tensor
    for like in (reader.name, tensor_of(reader, host)):
        got = store.tensor(name, like=like)
        assert reader.owns(got)
        same_bytes(got, host)
        if host.size:
            assert address_of(got) == address_of(tensor)
        if reader is writer:
            assert got is tensor


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_every_dtype(holder, name, dtype):
    if not holder.takes(dtype):
        pytest.skip(f"{holder.name} has no {dtype}")
    host = random_values(dtype, (4, 3))
    tensor = tensor_of(holder, host)
    store[name] = tensor
    assert store[name] is tensor
    buffer = store.tensor(name, like="buffer")
    assert (buffer.dtype, buffer.shape) == (dtype, (4, 3))
    assert buffer.data == address_of(tensor)
    got = store.tensor(name, like="numpy" if holder.device == "cpu" else "torch")
    assert address_of(got) == address_of(tensor)
    same_bytes(got, host)


def test_writes_are_seen_by_all(native, name):
    other = module("numpy" if native == Framework("torch", "cpu", "cpu") else "torch")
    tensor = tensor_of(native, np.zeros(4, np.float32))
    store[name] = tensor
    view = other.from_dlpack(store.tensor(name, like="buffer"))
    assert view is not tensor
    view[1] = 5
    assert to_numpy(tensor).tolist() == [0, 5, 0, 0]
    tensor[2] = 7
    assert to_numpy(view).tolist() == [0, 5, 7, 0]


def test_memory_lives_as_long_as_its_views(pair, name):
    writer, reader = pair
    host = random_values("float32", (1000,))
    tensor = tensor_of(writer, host)
    saved = weakref.ref(tensor)
    store[name] = tensor
    view = store.tensor(name, like=reader.name)
    del tensor, store[name]
    assert not is_gone(saved, patience=0.1), "the view keeps its memory"
    others = [tensor_of(writer, np.zeros(1000, np.float32)) for _ in range(20)]  # would take its place
    same_bytes(view, host)
    del view, others
    assert is_gone(saved)


def test_overwriting_and_deleting_let_go(holder, name):
    first, second = (tensor_of(holder, np.full(10, number, np.int64)) for number in (1, 2))
    references = [weakref.ref(first), weakref.ref(second)]
    store[name] = first
    del first
    assert not is_gone(references[0], patience=0.1), "the store holds it"
    store[name] = second
    assert is_gone(references[0])
    assert store[name] is second
    del second, store[name]
    assert is_gone(references[1])


def test_references_are_counted(name):
    array = np.zeros(10)
    before = sys.getrefcount(array)
    for _ in range(10):
        store[name] = array
        assert store[name] is array
        views = [store.tensor(name, like="buffer") for _ in range(3)]
        assert np.asarray(views[0]).ctypes.data == array.ctypes.data
        del views
    del store[name]
    assert sys.getrefcount(array) == before


def test_memory_that_no_python_object_stands_for(device, on_device, name):
    """As another library saves it: read through NumPy on the host, through PyTorch on a GPU."""
    host = random_values("int32", (6, 2))
    tensor = on_device.array(host)
    saved = weakref.ref(tensor)
    stream = 0 if device == "cpu" else current_stream().cuda_stream
    _core.put_tensor(name, _core.borrow(tensor), None, stream, False)
    got = store[name]
    assert got is not tensor
    assert on_device.owns(got)
    assert address_of(got) == address_of(tensor)
    same_bytes(got, host)
    del tensor, got, store[name]
    assert is_gone(saved)


def test_results_are_read_only_where_their_owner_counts_on_it(name):
    table = HashTable("int64", "int64")
    jax = need_place(HOLDERS[2])
    assert jax.name == "jax"
    frozen = np.arange(5)
    frozen.flags.writeable = False
    for tensor in (jax.array(np.arange(5)), frozen):
        store[name] = tensor
        buffer = store.tensor(name, like="buffer")
        views = [np.asarray(buffer), np.from_dlpack(buffer), store.tensor(name, like="numpy")]
        for view in views:
            assert not view.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 1
        with pytest.raises(ValueError, match="read-only"):
            table.get(np.arange(5), 0, out=buffer)
    store[name] = np.arange(5)
    buffer = store.tensor(name, like="buffer")
    table.get(np.arange(5), 9, out=buffer)
    assert store[name].tolist() == [9] * 5


@pytest.mark.parametrize("reader", ["jax", "tensorflow"])
def test_memory_that_a_framework_would_copy(name, reader):
    if module(reader) is None:
        pytest.skip(f"{reader} is not installed")
    array = at_offset(np.arange(8, dtype=np.int32), 4)
    store[name] = array
    with pytest.raises(ValueError, match="multiples of 64"):
        store.tensor(name, like=reader)
    assert store.tensor(name, like="buffer").data == array.ctypes.data


def test_jax_without_64_bit_types_is_not_narrowed(name):
    jax = module("jax")
    if jax is None:
        pytest.skip("jax is not installed")
    store[name] = at_offset(np.arange(3) + (1 << 40), 0)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(TypeError, match="x64"):
            store.tensor(name, like="jax")
    finally:
        jax.config.update("jax_enable_x64", True)
    assert store.tensor(name, like="jax").tolist() == [1 << 40, (1 << 40) + 1, (1 << 40) + 2]


def test_host_memory_is_none_of_cupy(name):
    store[name] = np.arange(3)
    if module("cupy") is None:
        pytest.skip("cupy is not installed")
    with pytest.raises(ValueError, match="CuPy"):
        store.tensor(name, like="cupy")


def test_gpu_memory_is_none_of_numpy(torch_cuda, name):
    store[name] = torch_cuda.arange(3, device=GPU)
    with pytest.raises(TypeError, match="copy it to the host"):
        store.tensor(name, like="numpy")


# Input ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, np.array(5)),
        (2.5, np.array(2.5)),
        (True, np.array(True)),
        (1j, np.array(1j)),
        ([[1.5, 2], [3, 4]], np.array([[1.5, 2], [3, 4]])),
        (range(4), np.arange(4)),
        ([], np.array([])),
        (np.float16(3), np.array(3, np.float16)),
        ([2**63 + 1, 1], np.array([2**63 + 1, 1], np.uint64)),
        (2**64 - 1, np.array(2**64 - 1, np.uint64)),
        ([[2**53 + 1, -1]], np.array([[2**53 + 1, -1]])),
        ([2**53, 0.5], np.array([2.0**53, 0.5])),
    ],
    ids=str,
)
def test_numbers_become_numpy_arrays(name, given, expected):
    store[name] = given
    assert isinstance(store[name], np.ndarray)
    same_bytes(store[name], expected)


def test_pandas_series_become_numpy_arrays(name):
    pd = pytest.importorskip("pandas")
    store[name] = pd.Series([1.0, 2.0])
    same_bytes(store[name], np.array([1.0, 2.0]))
    store[name] = pd.Series([2**53 + 1, 2], dtype="Int64")
    same_bytes(store[name], np.array([2**53 + 1, 2]))
    store[name] = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    same_bytes(store[name], np.array([[1, 3], [2, 4]]))


COLUMNS_WITH_NULLS = {
    "pandas": lambda pandas: pandas.Series([2**53 + 1, None], dtype="Int64"),
    "polars": lambda polars: polars.Series([2**53 + 1, None]),
    "pyarrow": lambda pyarrow: pyarrow.chunked_array([[2**53 + 1, None]]),
}


@pytest.mark.parametrize("library", COLUMNS_WITH_NULLS)
def test_columns_with_nulls_are_not_taken(name, library):
    column = COLUMNS_WITH_NULLS[library](pytest.importorskip(library))
    with pytest.raises(ValueError, match="nulls"):
        store[name] = column
    assert name not in store


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("text", TypeError),
        (b"bytes", TypeError),
        (None, TypeError),
        (object(), TypeError),
        ({1: 2}, TypeError),
        (["a", "b"], TypeError),
        ([2**63, -1], OverflowError),
        ([2**64], OverflowError),
        ([2**53 + 1, 0.5], OverflowError),
        ([[1], [2, 3]], ValueError),
        (np.array(["a"]), TypeError),
        (np.array([1], "datetime64[s]"), TypeError),
        (np.array([1], ">i4"), TypeError),
        (np.ma.masked_array([1, 2], [True, False]), TypeError),
        (np.zeros((4, 4))[:, ::2], ValueError),
        (np.zeros((4, 4)).T[:2], ValueError),
        (np.zeros(9, np.uint8)[1:].view(np.int64), ValueError),
        (np.broadcast_to(np.zeros(3), (2, 3)), ValueError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_what_is_not_taken_changes_nothing(name, given, error):
    before = np.arange(3)
    store[name] = before
    with pytest.raises(error):
        store[name] = given
    assert store[name] is before


def test_tensors_of_pytorch_that_are_not_taken(name):
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed")
    for given, error, advice in [
        (torch.zeros(3, requires_grad=True), TypeError, "detach"),
        (torch.zeros(3, dtype=torch.complex64).conj(), TypeError, "resolve_conj"),
        (torch.zeros(4, 3).T, ValueError, "contiguous"),
        (torch.zeros(3).to_sparse(), TypeError, "storage"),
    ]:
        with pytest.raises(error, match=advice):
            store[name] = given
        assert name not in store


def test_values_that_jax_is_tracing(name):
    jax = module("jax")
    if jax is None:
        pytest.skip("jax is not installed")

    def save(tensor):
        store[name] = tensor
        return tensor

    with pytest.raises(TypeError, match="jit"):
        jax.jit(save)(np.arange(3))
    assert name not in store


@pytest.fixture
def tensorflow(monkeypatch):
    """TensorFlow, without its ops of gpuhash."""
    monkeypatch.delitem(sys.modules, "gpuhash.tensorflow", raising=False)
    if module("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    return module("tensorflow")


def test_tensors_of_tensorflow_that_are_not_taken(tensorflow, name):
    with pytest.raises(TypeError, match="read_value"):
        store[name] = tensorflow.Variable([1.0])
    with pytest.raises(TypeError, match="string"):
        store[name] = tensorflow.constant(["a"])

    @tensorflow.function
    def save(tensor):
        store[name] = tensor
        return tensor

    with pytest.raises(TypeError, match="save_tensor"):
        save(tensorflow.constant([1.0]))
    assert name not in store


def test_dtypes_of_tensorflow_alone_go_to_its_op(tensorflow, monkeypatch, name):
    calls = []
    ops = types.SimpleNamespace(save_tensor=lambda *arguments: calls.append(arguments))
    monkeypatch.setitem(sys.modules, "gpuhash.tensorflow", ops)
    strings, numbers = tensorflow.constant(["a", "b"]), tensorflow.constant([1, 2])
    store[name] = strings
    assert calls == [(name, strings)]
    store[name] = numbers
    assert store[name] is numbers
    assert len(calls) == 1


# Names ---------------------------------------------------------------------------------------------------------------


def test_it_is_a_mapping(name):
    assert isinstance(store, TensorStore)
    before = list(store)
    assert name not in store
    names = [f"{name} {suffix}" for suffix in ("c", "a", "ä", "")]
    arrays = {key: np.full(2, number) for number, key in enumerate(names)}
    store.update(arrays)
    assert len(store) == len(before) + 4
    assert list(store) == sorted([*before, *names])
    assert [key for key, _ in store.items()] == list(store)
    assert all(any(array is value for value in store.values()) for array in arrays.values())
    for key, array in arrays.items():
        assert key in store
        assert store.get(key) is array
        assert store.setdefault(key, np.zeros(1)) is array
    assert store.get(name) is None
    assert store.pop(names[0]) is arrays[names[0]]
    assert names[0] not in store
    for key in names[1:]:
        del store[key]
    assert list(store) == before


def test_missing_names(name):
    store[name] = 1
    for action in (store.__getitem__, store.__delitem__, store.tensor, store.pop):
        with pytest.raises(KeyError, match=r"nobody.*there are") as raised:
            action("nobody")
        assert name in str(raised.value)


@pytest.mark.parametrize("key", [5, None, b"bytes", ("a",)], ids=repr)
def test_names_are_strings(key):
    with pytest.raises(TypeError, match="names of tensors are strings"):
        store[key] = 1
    with pytest.raises(TypeError, match="names of tensors are strings"):
        store[key]
    with pytest.raises(TypeError, match="names of tensors are strings"):
        del store[key]
    assert key not in store


def test_half_of_a_surrogate_pair_is_no_name():
    with pytest.raises(ValueError, match="surrogate"):
        store["\ud800"] = 1
    assert "\ud800" not in store
    assert store.get("\ud800", 5) == 5
    for action in (store.__getitem__, store.__delitem__, store.tensor):
        with pytest.raises(KeyError, match="no tensor is named"):
            action("\ud800")


def test_any_string_is_a_name():
    for key in ("", "with\0zero", "a/b:c", "名"):
        store[key] = [1, 2]
        assert key in store
        assert key in list(store)
        assert store[key].tolist() == [1, 2]
        del store[key]
        assert key not in store


def test_clear(name):
    array = np.arange(3)
    reference = weakref.ref(array)
    store[name] = array
    del array
    store.clear()
    assert len(store) == 0
    assert is_gone(reference)


def test_it_says_what_it_holds(name):
    store[name] = np.zeros((2, 3), np.float32)
    assert f"{name!r} (float32 [2, 3] on cpu)" in repr(store)
    assert store == store  # and no comparison of tensors
    assert store != {}
    assert len({store, store}) == 1


def test_unknown_frameworks(name):
    store[name] = 1
    with pytest.raises(ValueError, match="keras"):
        store.tensor(name, like="keras")


# Threads, streams, exit ----------------------------------------------------------------------------------------------


def test_threads(holder, name):
    """Each read gives an array that was saved under that name, whole; in the end nothing is left."""
    names = [f"{name} {number}" for number in range(3)]
    start = threading.Barrier(THREADS)
    references = []

    def work(number):
        rng = np.random.default_rng(number)
        start.wait()
        for round_number in range(100):
            which = int(rng.integers(3))
            match rng.integers(3):
                case 0:
                    tensor = tensor_of(holder, np.array([which, number, round_number] * 20))
                    references.append(weakref.ref(tensor))
                    store[names[which]] = tensor
                case 1:
                    try:
                        got = to_numpy(store.tensor(names[which], like="torch")).reshape(20, 3)
                    except KeyError:
                        continue
                    assert (got == got[0]).all()
                    assert got[0, 0] == which
                case _:
                    _core.remove_tensor(names[which])

    if module("torch") is None:
        pytest.skip("torch is not installed")
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    for key in names:
        _core.remove_tensor(key)
    assert len(references) > 0
    assert is_gone(lambda: next((reference() for reference in references if reference() is not None), None))


def test_what_is_saved_at_exit_is_left_alone():
    program = """
import numpy as np
from gpuhash import store

class Loud(np.ndarray):
    def __del__(self):
        print("deleted")

store["plain"] = np.zeros(1000)
store["replaced"] = np.zeros(3).view(Loud)
store["replaced"] = np.zeros(3).view(Loud)
store["view"] = np.ones(1000)
view = store.tensor("view", like="buffer")
print(sorted(store))
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout == "deleted\n['plain', 'replaced', 'view']\n"


@pytest.mark.parametrize("reader", ["torch", "cupy", None], ids=str)
def test_readers_wait_for_the_stream_that_saved(torch_cuda, name, reader):
    """A tensor saved while the work that fills it is still to come; the host waits for neither."""
    torch = torch_cuda
    if reader is not None:
        need_place(next(place for place in HOLDERS if (place.name, place.device) == (reader, GPU)))
    first, second = new_stream(), new_stream()
    tensor = torch.zeros(1 << 20, device=GPU)
    reading = on_cupy_stream if reader == "cupy" else on_stream
    for warm in (True, False):  # loads kernels, which waits for the device
        torch.cuda.synchronize(GPU)
        with on_stream(first):
            delay(1000 if warm else 1_000_000_000)
            tensor.fill_(7)
            store[name] = tensor
            filled = event_now()
        with reading(second):
            got = store.tensor(name, like=reader)
            total = got.sum()
        if not warm:
            assert not filled.query(), "the host waited"
        second.synchronize()
        assert float(total) == 7 * (1 << 20)
        tensor.zero_()


def test_the_stream_that_saved_waits_for_readers(torch_cuda, name):
    """Memory goes back to PyTorch's first stream while the second still reads it."""
    torch = torch_cuda
    first, second = new_stream(), new_stream()
    for warm in (True, False):
        torch.cuda.synchronize(GPU)
        with on_stream(first):
            tensor = torch.full((1 << 20,), 3.0, device=GPU)
            address = tensor.data_ptr()
            _core.put_tensor(name, _core.borrow(tensor), None, first.cuda_stream, False)
        del tensor
        with on_stream(second):
            view = store.tensor(name, like="torch")
            assert view.data_ptr() == address
            delay(1000 if warm else 1_000_000_000)
            read = view.clone()
            done = event_now()
        del store[name], view
        with on_stream(first):
            again = torch.full((1 << 20,), -1.0, device=GPU)
        assert again.data_ptr() == address, "the allocator gave another block, which proves nothing"
        if not warm:
            assert not done.query(), "the host waited"
        torch.cuda.synchronize(GPU)
        assert bool((read == 3).all())


def test_captured_streams_neither_wait_nor_are_waited_for(torch_cuda, name):
    torch = torch_cuda
    source = torch.arange(100, device=GPU)
    store[name] = source
    torch.cuda.synchronize(GPU)
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        captured = store.tensor(name) * 2
        store[name] = captured
        assert store.tensor(name, like="buffer").data == captured.data_ptr()
    assert store[name] is captured
    for factor in (3, 4):
        source.copy_(torch.arange(100, device=GPU) * factor)
        graph.replay()
        same_bytes(store.tensor(name, like=torch.empty(0)), np.arange(100) * 2 * factor)
