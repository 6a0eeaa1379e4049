"""The table in tf.function, tf.data, Keras, checkpoints, SavedModels and strategies."""

from __future__ import annotations

import concurrent.futures
import gc
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from support.frameworks import GPU, GPU_INDEX, module, sees_gpu
from support.graphs import need_tensorflow
from support.memory_resources import counting_memory
from support.samples import random_keys, same_bytes

import gpuhash


@pytest.fixture
def tools(device):
    return need_tensorflow(device)


def squares(tools, **options):
    """A table of the squares of 0 to 99."""
    _, ours, device = tools
    table = ours.MutableHashTable("int64", "int64", -1, device=device, **options)
    table.insert(np.arange(100), np.arange(100) ** 2)
    return table


# Functions -----------------------------------------------------------------------------------------------------------


def test_functions_have_static_shapes_and_trace_once_per_shape(tools):
    tf, ours, device = tools
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(6,), device=device)
    traces = []

    @tf.function
    def work(keys, values):
        table.insert(keys, values)
        found = table.lookup(keys)
        mask = table.contains(keys)
        traces.append((found.shape, mask.shape))
        return found, mask, table.size()

    for count in (3, 3, 5, 3):
        keys, values = np.arange(count), np.random.default_rng(count).random((count, 6), np.float32)
        found, mask, _ = work(tf.constant(keys), tf.constant(values))
        same_bytes(found, values)
        assert mask.numpy().all()
    assert traces == [((3, 6), (3,)), ((5, 6), (5,))]


def test_ops_of_a_function_run_in_their_order(tools):
    tf, _, _ = tools
    table = squares(tools)

    @tf.function
    def work():
        before = table.lookup(tf.constant([5], tf.int64))
        table.insert(tf.constant([5], tf.int64), tf.constant([0], tf.int64))
        between = table.lookup(tf.constant([5], tf.int64))
        table.remove(tf.constant([5], tf.int64))
        return before, between, table.lookup(tf.constant([5], tf.int64)), table.size()

    assert [result.numpy().ravel().tolist()[0] for result in work()] == [25, 0, -1, 99]


def test_a_table_that_goes_while_a_function_is_traced(tools):
    tf, _, _ = tools
    table = squares(tools)
    garbage = [squares(tools)]

    @tf.function
    def work(keys):
        garbage.clear()
        gc.collect()
        return table.lookup(keys)

    assert work(tf.constant([4], tf.int64)).numpy().tolist() == [16]
    graph = work.get_concrete_function(tf.TensorSpec([1], tf.int64)).graph
    assert [tensor is table.resource_handle for tensor, _ in graph.captures if tensor.dtype == tf.resource] == [True]
    assert not [op.name for op in graph.get_operations() if op.type == "DestroyResourceOp"]


def test_dtypes_are_checked_while_a_function_is_traced(tools):
    tf, ours, _ = tools
    table = squares(tools)

    @tf.function
    def work(keys):
        return ours.ops.gpuhash_lookup(table.resource_handle, keys, []).found

    with pytest.raises((ValueError, TypeError), match="int32"):
        work.get_concrete_function(tf.TensorSpec([3], tf.int32))
    assert work(tf.constant([1], tf.int64)).numpy().tolist() == [True]


def test_jit_compile_says_what_to_do(tools):
    tf, _, _ = tools
    table = squares(tools)

    @tf.function(jit_compile=True)
    def work(keys):
        return table.lookup(keys) + 1

    with pytest.raises(NotImplementedError, match="take jit_compile=True off"):
        work(tf.constant([1], tf.int64))

    @tf.function(jit_compile=True)
    def insert(keys):
        table.insert(keys, keys)

    with pytest.raises(NotImplementedError, match="take jit_compile=True off"):
        insert(tf.constant([1], tf.int64))


def test_a_second_load_of_the_library_breaks_nothing(tools, tmp_path):
    import shutil
    from pathlib import Path

    tf, ours, _ = tools
    table = squares(tools)
    copy = tmp_path / "copy.so"
    shutil.copy(Path(ours.library.path), copy)
    tf.load_op_library(str(copy))
    assert table.lookup([3]).numpy().tolist() == [9]
    assert tf.raw_ops.LookupTableFindV2(
        table_handle=table.resource_handle, keys=tf.constant([3], tf.int64), default_value=tf.constant(-1, tf.int64)
    ).numpy().tolist() == [9]
    assert squares(tools).size().numpy() == 100


# tf.data and Keras ---------------------------------------------------------------------------------------------------


def test_map_of_a_dataset():
    """TensorFlow runs datasets on the CPU."""
    tools = need_tensorflow()
    tf, _, _ = tools
    table = squares(tools)
    dataset = tf.data.Dataset.range(95, 105).batch(4).map(table.lookup, num_parallel_calls=2)
    assert np.concatenate([batch.numpy() for batch in dataset]).tolist() == [
        n * n if n < 100 else -1 for n in range(95, 105)
    ]


def test_a_keras_layer(tools):
    tf, _, _ = tools
    table = squares(tools)

    class Relabel(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.supports_jit = False

        def call(self, keys):
            return table.lookup(keys)

    inputs = tf.keras.Input((3,), dtype="int64")
    model = tf.keras.Model(inputs, Relabel()(inputs))
    keys = np.array([[1, 2, 3], [99, 100, -1]])
    same_bytes(model(keys), np.array([[1, 4, 9], [9801, -1, -1]]))
    assert model.predict(keys, verbose=0).tolist() == [[1, 4, 9], [9801, -1, -1]]


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", [-1.0, [-1.0, -2.0]], ids=["scalars", "vectors"])
@pytest.mark.parametrize("direction", ["ours to TensorFlow's", "TensorFlow's to ours", "ours to ours"])
def test_checkpoints_are_those_of_tensorflows_table(tools, tmp_path, default, direction):
    tf, ours, device = tools

    def stock():
        with tf.device("CPU:0"):
            return tf.lookup.experimental.MutableHashTable("int64", "float32", default)

    def own():
        return ours.MutableHashTable("int64", "float32", default, device=device)

    source, target = {
        "ours to TensorFlow's": (own, stock),
        "TensorFlow's to ours": (stock, own),
        "ours to ours": (own, own),
    }[direction]
    keys = random_keys("int64", (), 1000)
    values = np.random.default_rng(1).random((1000, *np.shape(default)), np.float32)
    table = source()
    table.insert(keys, values)
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "checkpoint"))
    restored = target()
    restored.insert([1234567], np.zeros((1, *np.shape(default)), np.float32))
    tf.train.Checkpoint(table=restored).restore(path).assert_consumed()
    assert restored.size().numpy() == 1000
    same_bytes(restored.lookup(keys), values)


def in_new_process(program, *arguments):
    """Runs a program, and returns what it prints."""
    script = textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-P", "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("columns", [False, True], ids=["values", "columns"])
def test_savers_keep_every_table_of_a_graph(tools, tmp_path, columns):
    """Tables without a name, of one name, in scopes, and TensorFlow's own, in a graph of TensorFlow 1."""
    tf, ours, device = tools
    path = str(tmp_path / "saved")
    dtypes = {"c": "int64"} if columns else "int64"

    def values(number):
        return {"c": tf.constant([number], tf.int64)} if columns else tf.constant([number], tf.int64)

    for restores in (False, True):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tables = [ours.MutableHashTable("int64", dtypes, None if columns else 0, device=device) for _ in range(3)]
            with tf.name_scope("scope"):
                tables.append(ours.MutableHashTable("int64", dtypes, None if columns else 0, device=device))
            tables += [
                ours.MutableHashTable("int64", dtypes, None if columns else 0, "users", device=device) for _ in range(2)
            ]
            theirs = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0, name="theirs")
            keys = tf.constant([1], tf.int64)
            inserts = [table.insert(keys, values(10 + number)) for number, table in enumerate(tables)]
            inserts.append(theirs.insert(keys, tf.constant([9], tf.int64)))
            found = [tf.nest.flatten(table.lookup(keys))[0] for table in [*tables, theirs]]
            saver = tf.compat.v1.train.Saver()
            if restores:
                saver.restore(session, path)
            else:
                session.run(inserts)
                saver.save(session, path)
            assert [each.item() for each in session.run(found)] == [10, 11, 12, 13, 14, 15, 9]
    names = {name for name, _ in tf.train.list_variables(path)}
    assert {"users-keys", "users_1-keys", "theirs-keys"} < names
    assert len(names) == 14


def test_wrapped_tables_of_asynchronous_execution(tools):
    tf, ours, device = tools
    table = gpuhash.HashTable.from_items(
        np.array([1, 2, 3]), np.array([10.0, 20.0, 30.0]), device="cpu" if "CPU" in device.upper() else GPU
    )
    tf.config.experimental.set_synchronous_execution(False)
    try:
        for number in range(30):
            wrapped = ours.wrap(table, -1.0)
            assert wrapped.lookup(np.array([1, 3, 4 + number])).numpy().tolist() == [10.0, 30.0, -1.0]
    finally:
        tf.config.experimental.set_synchronous_execution(True)


def test_a_saved_model_in_a_fresh_process(tools, tmp_path):
    tf, _, _ = tools

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = squares(tools)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, keys):
            return self.table.lookup(keys)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64)])
        def insert(self, keys, values):
            self.table.insert(keys, values)

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    printed = in_new_process(
        """
        import os, sys
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        import tensorflow as tf
        import gpuhash.tensorflow
        model = tf.saved_model.load(sys.argv[1])
        print(model(tf.constant([3, 99, 100], tf.int64)).numpy().tolist())
        model.insert(tf.constant([100], tf.int64), tf.constant([7], tf.int64))
        print(model(tf.constant([100], tf.int64)).numpy().tolist())
        """,
        str(tmp_path / "model"),
    )
    assert printed.splitlines() == ["[9, 9801, -1]", "[7]"]


# Several devices -----------------------------------------------------------------------------------------------------


def test_a_strategy_over_two_cpu_devices():
    need_tensorflow()
    printed = in_new_process(
        """
        import os
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        import tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        tf.config.set_visible_devices([], "GPU")
        import gpuhash.tensorflow as ours
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            table = ours.MutableHashTable("int64", "int64", -1, device="CPU:0")
        dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(64).batch(16))

        @tf.function
        def step(keys):
            with tf.device("CPU:0"):
                table.insert_or_apply(keys, keys * 2)
                return tf.reduce_sum(table.lookup(keys))

        total = 0
        for keys in dataset:
            total += int(strategy.reduce("SUM", strategy.run(step, (keys,)), axis=None))
        print(int(table.size()), total)
        # A name is the process's: both devices see one table.
        tables = []
        for device in ("CPU:0", "CPU:1"):
            tables.append(ours.MutableHashTable("int64", "int64", -1, shared_name="of both", device=device))
        tables[0].insert([1], [2])
        print(tables[1].lookup([1]).numpy().tolist())
        """
    )
    assert printed.splitlines() == [f"64 {sum(2 * key for key in range(64))}", "[2]"]


# Streams and frameworks ----------------------------------------------------------------------------------------------


def test_filled_in_pytorch_read_in_a_graph_and_in_cupy(device):
    """One memory: the row storage has one address, whoever looks."""
    tools = need_tensorflow(device)
    tf, ours, place = tools
    torch, cupy = module("torch"), module("cupy")
    if torch is None or (device != "cpu" and not (sees_gpu("torch") and sees_gpu("cupy"))):
        pytest.skip("needs PyTorch there, and CuPy on a GPU")
    keys = random_keys("int64", (), 5000)
    values = np.random.default_rng(4).random((5000, 16), np.float32)
    python = gpuhash.HashTable("int64", "float32", value_shape=(16,), device=device, name=f"of three on {device}")
    python[torch.from_numpy(keys).to(device)] = torch.from_numpy(values).to(device)
    table = ours.MutableHashTable(
        "int64", "float32", 0.0, value_shape=(16,), device=place, shared_name=f"of three on {device}"
    )

    @tf.function
    def read(keys):
        return table.lookup(keys), table.rows(keys)

    found, rows = read(tf.constant(keys))
    same_bytes(found, values)
    address = python.row_storage_as("torch").data_ptr()
    if device != "cpu":
        storage = python.row_storage_as("cupy")
        assert storage.data.ptr == address
        with cupy.cuda.Device(GPU_INDEX):
            same_bytes(storage[cupy.asarray(rows.numpy())], values)
    else:
        storage = python.row_storage_as("numpy")
        assert storage.ctypes.data == address
        same_bytes(storage[rows.numpy()], values)
    # What the graph writes is there for the others, in that memory.
    with tf.device(place):
        table.insert(tf.constant(keys[:10]), tf.zeros((10, 16)))
    assert python.row_storage_as("torch").data_ptr() == address
    same_bytes(python[torch.from_numpy(keys[:10]).to(device)], np.zeros((10, 16), np.float32))
    python.close()


def test_work_of_both_is_in_order(device):
    """TensorFlow's stream and PyTorch's take turns on one table, without anyone waiting in between."""
    tools = need_tensorflow(device)
    tf, ours, place = tools
    torch = module("torch")
    if torch is None or (device != "cpu" and not sees_gpu("torch")):
        pytest.skip("needs PyTorch there")
    python = gpuhash.HashTable("int64", "int64", device=device, default=0)
    table = ours.wrap(python)
    keys = np.arange(20_000)
    theirs = torch.from_numpy(keys).to(device)
    with tf.device(place):
        mine = tf.identity(tf.constant(keys))
        one = tf.ones_like(mine)
        for _ in range(20):
            table.insert_or_apply(mine, one)
            python[theirs] = python[theirs] * 2
    expected = 0
    for _ in range(20):
        expected = (expected + 1) * 2
    assert set(table.lookup(keys).numpy().tolist()) == {expected}


@pytest.mark.parametrize("call", ["insert", "insert_or_apply", "lookup_or_insert", "import"])
def test_each_allocation_fails_once(device, call):
    """Whatever memory is missing, the op says so and the table is as it was."""
    tf, ours, place = need_tensorflow(device)
    if device != "cpu" and not sees_gpu("torch"):
        pytest.skip("the memory resource of this test is PyTorch's")
    memory = counting_memory(device)
    keys, more = np.arange(300), np.arange(200, 3000)
    rows, new = np.full((300, 3), 2, np.float32), np.ones((2800, 3), np.float32)
    work = {
        "insert": lambda table: table.insert(more, new),
        "insert_or_apply": lambda table: table.insert_or_apply(more, new),
        "lookup_or_insert": lambda table: table.lookup_or_insert(more, new),
        "import": lambda table: table._restore_from_tensors({"-keys": tf.constant(more), "-values": tf.constant(new)}),
    }[call]

    def no_memory(table):
        """What the op says of it, or None."""
        try:
            work(table)
        except tf.errors.ResourceExhaustedError as error:
            return str(error)
        return None

    failures = 0
    while True:
        python = gpuhash.HashTable("int64", "float32", value_shape=(3,), device=device, memory=memory)
        table = ours.wrap(python, 0.0, device=place)
        table.insert(keys, rows)
        memory.fail_after(failures)
        message = no_memory(table)
        memory.fail_after(None)
        if message is None:
            break
        assert "bytes in this test" in message
        assert table.size().numpy() == 300
        same_bytes(table.lookup(keys), rows)
        failures += 1
    assert failures >= 3
    assert table.size().numpy() == (2800 if call == "import" else 3000)
    assert not memory.mistakes


def test_graphs_and_python_in_many_threads(device):
    tf, ours, place = need_tensorflow(device)
    python = gpuhash.HashTable("int64", "int64", device=device, default=0)
    table = ours.wrap(python, device=place)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def count(keys):
        table.insert_or_apply(keys, tf.ones_like(keys))
        return tf.reduce_all(table.contains(keys))

    rng = np.random.default_rng(6)
    batches = rng.integers(0, 2000, (40, 700))

    def work(number):
        if number % 2:
            python.insert_or_apply(batches[number], 1, "add")
            return True
        with tf.device(place):
            return bool(count(tf.constant(batches[number])))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(len(batches))))
    keys, counts = np.unique(batches, return_counts=True)
    same_bytes(table.lookup(keys), counts)
    assert table.size().numpy() == len(keys)


def test_export_while_others_insert(device):
    """What comes out is the table of one moment: keys once each, with their values."""
    _, ours, place = need_tensorflow(device)
    python = gpuhash.HashTable("int64", "int64", device=device)
    table = ours.wrap(python, device=place)

    def insert():
        for start in range(0, 60_000, 20):
            python[np.arange(start, start + 20)] = np.arange(start, start + 20) * 3

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        inserting = pool.submit(insert)
        sizes = []
        while not inserting.done():
            keys, values = (array.numpy() for array in table.export())
            assert len(np.unique(keys)) == len(keys) == len(values)
            assert (values == keys * 3).all()
            sizes.append(len(keys))
        inserting.result()
    assert sizes == sorted(sizes)
    assert table.size().numpy() == 60_000


def test_no_memory_is_a_clear_error_and_leaves_no_name_behind(tools):
    tf, ours, device = tools
    name = f"too large for {device}"
    with pytest.raises(tf.errors.ResourceExhaustedError, match="bytes"):
        ours.MutableHashTable(
            "int64",
            "float32",
            0.0,
            value_shape=(1 << 26,),
            device=device,
            total_buckets=1 << 30,
            shared_name=name,
        )
    with pytest.raises(KeyError, match=name):
        gpuhash.open(name)
    table = ours.MutableHashTable("int64", "float32", 0.0, device=device, shared_name=name)
    assert table.size().numpy() == 0


# What only a GPU shows ------------------------------------------------------------------------------------------------


def test_memory_is_tensorflows(cuda):
    """TensorFlow took the GPU's memory: the table has its slots and rows from TensorFlow's allocator."""
    tf, ours, device = need_tensorflow(cuda)

    def used():
        return tf.config.experimental.get_memory_info(device)["current"]

    before = used()
    table = ours.MutableHashTable(
        "int64", "float32", 0.0, value_shape=(64,), device=device, shared_name="of TensorFlow"
    )
    table.insert(np.arange(500_000), np.zeros((500_000, 64), np.float32))
    python = gpuhash.open("of TensorFlow")
    assert table.size().numpy() == 500_000
    assert used() - before >= python.nbytes > 500_000 * 256
    # Used from another framework, it still is, and grows in it.
    keys = np.arange(500_000, 2_000_000)
    python[keys] = np.zeros((1_500_000, 64), np.float32)
    assert used() - before >= python.nbytes > 2_000_000 * 256
    python.close()


def test_nobody_waits_for_the_device(cuda):
    """Lookups, and insertions into reserved room, are enqueued behind long work and return before it ends."""
    tf, ours, device = need_tensorflow(cuda)
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(8,), device=device, total_buckets=1 << 16)
    with tf.device(device):
        matrix = tf.random.normal((8192, 8192))
        keys = tf.range(1000, dtype=tf.int64)
        values = tf.ones((1000, 8))

        def calls():
            table.insert(keys, values)
            table.insert_or_apply(keys, values)
            table.remove(keys[:10])
            return table.lookup(keys), table.contains(keys), table.rows(keys)

        def long_work():
            product = matrix
            for _ in range(100):
                product = tf.linalg.matmul(product, matrix) * 1e-4
            return product

        calls()  # what is set up at the first call
        long_work()
        tf.test.experimental.sync_devices()
        start = time.perf_counter()
        long_work()
        found, mask, rows = calls()
        returned = time.perf_counter() - start
        tf.test.experimental.sync_devices()
        done = time.perf_counter() - start
    assert returned < 0.5 * done, (returned, done)
    same_bytes(found[10:], np.full((990, 8), 2, np.float32))
    assert mask.numpy().tolist() == [False] * 10 + [True] * 990
    assert (rows.numpy() >= 0).sum() == 990


def test_the_other_devices_table_is_refused(cuda):
    tf, ours, device = need_tensorflow(cuda)
    ours.MutableHashTable("int64", "int64", -1, device=device, shared_name="on the GPU")
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"on {GPU}; the op asks for.*on cpu"):
        ours.MutableHashTable("int64", "int64", -1, device="CPU:0", shared_name="on the GPU")


def test_a_table_given_as_a_mapping_says_what_to_do(tools):
    """TensorFlow takes mappings apart, and would put them together by the constructor of their class."""
    tf, _, device = tools
    place = "cpu" if "CPU" in device.upper() else "cuda"
    table = gpuhash.HashTable.from_items([3, 1], [30, 10]).to(place)
    assert [int(each) for each in tf.nest.flatten(table)] == [10, 30]  # as of a dict, by sorted keys
    uses = [
        lambda: tf.function(lambda table, x: x)(table, 1),
        lambda: tf.function(lambda: table)(),
        lambda: tf.data.Dataset.from_tensors(table),
        lambda: tf.data.Dataset.from_tensor_slices(table),
        lambda: tf.nest.map_structure(lambda x: x, table),
    ]
    # Before it comes to that, datasets ask the values for NumPy's arrays, which another framework's on a GPU refuse.
    refused = "" if place == "cpu" else "|can't convert cuda"
    for use in uses:
        with pytest.raises(TypeError, match=r"value_dtype was not given.*gpuhash\.tensorflow\.wrap" + refused):
            use()
    with pytest.raises(TypeError, match=r"no array: give its keys\(\)"):
        tf.constant(table)
    keyset = gpuhash.HashSet.from_keys([3, 1]).to(place)
    assert sorted(tf.convert_to_tensor(keyset).numpy().tolist()) == [1, 3]
