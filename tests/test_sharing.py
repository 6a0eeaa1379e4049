"""One memory, many frameworks: filled through PyTorch, read through all, by pointer."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import PLACES, address_of, module, need_place, place_name, sees_gpu, to_numpy
from support.graphs import need_tensorflow
from support.jit import need_jax
from support.samples import random_keys, random_values, same_bytes

from gpuhash import HashTable

READERS = [place for place in PLACES if place_name(place) != "numpy-cuda"]


def adopt(name: str, buffer):
    """The buffer as an array of the framework, without a copy."""
    if name == "numpy":
        return np.from_dlpack(buffer)
    if name == "torch":
        return module("torch").from_dlpack(buffer)
    if name == "cupy":
        return module("cupy").from_dlpack(buffer)
    if name == "jax":
        return module("jax").dlpack.from_dlpack(buffer)
    return module("tensorflow").experimental.dlpack.from_dlpack(buffer.__dlpack__())


def filled_through_torch(device):
    torch = module("torch")
    if torch is None or (device != "cpu" and not sees_gpu("torch")):
        pytest.skip("needs torch there")
    keys, values = random_keys("int64", (), 2000), random_values("float32", (2000, 16))
    table = HashTable("int64", "float32", value_shape=(16,), device=device)
    table[torch.from_numpy(keys).to(device)] = torch.from_numpy(values).to(device)
    return table, keys, values


def test_every_framework_reads_the_table(place):
    table, keys, values = filled_through_torch(place.table_device)
    got = table[place.array(keys)]
    assert place.owns(got)
    same_bytes(got, values)


@pytest.mark.parametrize("reader", READERS, ids=place_name)
def test_row_storage_is_one_memory_for_all(reader):
    need_place(reader)
    table, keys, values = filled_through_torch(reader.table_device)
    mine = table.row_storage_as("torch")
    theirs = adopt(reader.name, table.row_storage_as("buffer"))
    assert address_of(theirs) == mine.data_ptr()
    assert mine.data_ptr() % 64 == 0
    rows = to_numpy(table.rows(keys))
    same_bytes(to_numpy(theirs)[rows], values)


@pytest.mark.parametrize("reader", [p for p in READERS if p.name in ("jax", "tensorflow")], ids=place_name)
def test_immutable_frameworks_are_told_that_rows_change(reader):
    need_place(reader)
    table, _, _ = filled_through_torch(reader.table_device)
    with pytest.raises(ValueError, match="never change"):
        table.row_storage_as(reader.name)


def test_outputs_are_of_the_keys_framework(place):
    table = HashTable("int64", "float32", device=place.table_device)
    keys = place.array(np.arange(10))
    for result in (
        table.insert(keys, 1),
        table.insert_or_assign(keys, 1),
        table.insert_or_apply(keys, 1, "add"),
        *table.find(keys),
        table.contains(keys),
        table[keys],
        table.get(keys, 0),
        table.setdefault(keys, 0),
        table.pop(keys),
        table.erase(keys),
    ):
        assert place.owns(result)


def test_mixed_frameworks_in_one_call(native):
    table = HashTable("int64", "float32", device=native.table_device)
    table[native.array(np.arange(5))] = np.arange(5, dtype=np.float32)
    same_bytes(table[np.arange(5)], np.arange(5, dtype=np.float32))
    table[np.arange(5)] = native.array(np.arange(5, 10, dtype=np.float32))
    same_bytes(table[native.array(np.arange(5))], np.arange(5, 10, dtype=np.float32))


def test_jax_without_64_bit_types_is_not_narrowed():
    """JAX would turn int64 results into int32 silently; the table says so instead."""
    jax = module("jax")
    if jax is None:
        pytest.skip("jax is not installed")
    keys = jax.device_put(np.arange(3, dtype=np.int32), jax.devices("cpu")[0])
    table = HashTable("int32", "int64")
    table[np.arange(3, dtype=np.int32)] = np.arange(3) + (1 << 40)
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(TypeError, match="x64"):
            table[keys]
    finally:
        jax.config.update("jax_enable_x64", True)


def test_one_table_in_programs_of_all_frameworks(device):
    """Compiled by PyTorch, jitted by JAX, traced by TensorFlow, and called from each as it is: all in turn."""
    programs = need_jax(device)
    tf, tensorflow_table, tf_device = need_tensorflow(device)
    torch = module("torch")
    if torch is None or (device != "cpu" and not sees_gpu("torch")):
        pytest.skip("needs torch there")
    table = HashTable("int64", "int64", default=0, device=device, name="everywhere")
    host = np.arange(0, 300, 3)
    keys = torch.from_numpy(host).to(device)
    model: dict[int, int] = {}

    def count(expected: object, got: object) -> None:
        for key in host.tolist():
            model[key] = model.get(key, 0) + 1
        assert to_numpy(got).tolist() == to_numpy(expected).tolist() == [model[key] for key in host.tolist()]

    with_torch = torch.compile(lambda keys: (table.insert_or_apply(keys, 1, "add"), table[keys])[1], fullgraph=True)
    state = programs.ours.from_table(table)

    def count_in_jax(state, keys):
        state, _ = programs.ours.insert_or_apply(state, keys, keys * 0 + 1, "add")
        return programs.ours.find(state, keys)

    with_jax = programs.jax.jit(count_in_jax)
    jax_keys = programs.put(host)
    with tf.device(tf_device):
        wrapped = tensorflow_table.wrap(table)
        tf_keys = tf.identity(tf.constant(host))

        @tf.function
        def with_tensorflow():
            with tf.control_dependencies([wrapped.insert_or_apply(tf_keys, tf.ones_like(tf_keys), "add")]):
                return wrapped.lookup(tf_keys)

    for _ in range(2):
        count(with_torch(keys), table[keys])
        state, (values, _) = with_jax(state, jax_keys)
        count(values, table[keys])
        with tf.device(tf_device):
            count(with_tensorflow(), table[keys])
        table.insert_or_apply(keys, 1, "add")
        count(table[jax_keys], table[keys])
    assert len(table) == len(model)
    table.close()


def test_pandas_series_are_arrays():
    pd = pytest.importorskip("pandas")
    table = HashTable("int64", "float64")
    table[pd.Series([1, 2, 3])] = pd.Series([1.0, 2.0, 3.0])
    assert isinstance(table[pd.Series([3, 1])], np.ndarray)
    assert table[pd.Series([3, 1])].tolist() == [3, 1]


def test_anything_with_dlpack():
    class Plain:
        """A tensor of a library that nobody knows."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    table = HashTable("int64", "float32")
    table[Plain(np.arange(4))] = Plain(np.arange(4, dtype=np.float32))
    got, found = table.find(Plain(np.array([3, 9])))
    assert np.from_dlpack(got).tolist() == [3, 0]
    assert np.from_dlpack(found).tolist() == [True, False]
