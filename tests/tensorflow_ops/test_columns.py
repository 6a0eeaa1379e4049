"""Tables with named columns in gpuhash.tensorflow, beside the methods of HashTable."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from support.graphs import need_tensorflow
from support.memory_resources import counting_memory
from support.samples import numpy_dtype, same_bytes

import gpuhash
from gpuhash import Column, HashTable
from gpuhash.initializers import Constant, Normal, TruncatedNormal, Uniform

COLUMNS = {
    "weight": Column("float32", (4,), Normal(std=0.5, seed=0)),
    "step": Column("int32", (), 5),
    "half": ("float16", (3,)),
    "short": "bfloat16",
    "flag": "bool",
}
DEFAULT = {"weight": -1.0, "short": 2.0}


@pytest.fixture
def tools(device):
    return need_tensorflow(device)


@pytest.fixture(params=["eager", "function"])
def mode(request):
    return request.param


def with_twin(tools, **options):
    """A table that TensorFlow makes, and one whose methods are called in its place."""
    _, ours, place = tools
    table = ours.MutableHashTable("int64", COLUMNS, DEFAULT, device=place, total_buckets=16, **options)
    return table, HashTable("int64", COLUMNS, default=DEFAULT, deterministic=True)


def values_of(names, shape):
    """Small integers, of which every sum is exact."""
    columns = gpuhash.tables.named_columns.checked(COLUMNS)
    rng = np.random.default_rng(np.sum(shape, dtype=int))
    made = {}
    for name in names:
        numbers = rng.integers(-9, 9, (*np.atleast_1d(shape), *columns[name].shape))
        made[name] = numbers > 0 if name == "flag" else numbers.astype(numpy_dtype(columns[name].dtype))
    return made


def same_columns(got, expected):
    assert list(got) == list(expected)
    for name, value in expected.items():
        same_bytes(np.asarray(got[name]), np.asarray(value))


def same_tables(table, twin):
    keys, values = table.export()
    order = np.argsort(keys.numpy())
    assert keys.numpy()[order].tolist() == sorted(twin.keys().tolist())
    if len(order):
        same_columns({name: value.numpy()[order] for name, value in values.items()}, twin[keys.numpy()[order]])


def same_news(got, expected, keys):
    """Of a new key's duplicates another one may be marked."""
    assert sorted(keys[np.asarray(got)].tolist()) == sorted(keys[np.asarray(expected)].tolist())


# The calls -----------------------------------------------------------------------------------------------------------


def test_every_call_beside_the_methods(tools, mode):
    """Some columns, all of them, duplicates, absent keys and a table that grows on the way."""
    tf, ours, _ = tools
    table, twin = with_twin(tools)
    assert isinstance(table, ours.ColumnsHashTable)
    rng = np.random.default_rng(1)
    first, second, third, fourth = (rng.integers(0, 4000, count) for count in (300, 3000, 500, 400))
    some, everything = values_of(["weight", "flag"], 300), values_of(COLUMNS, 3000)
    steps, halves = values_of(["step", "half", "short", "flag"], 500), values_of(["half"], 400)
    ops = {"step": "add", "half": "max", "short": "keep", "flag": "replace"}

    def change(first, some, second, everything, third, steps, fourth, halves):
        table.insert(first, some)
        table.insert(second, everything)
        added = table.insert_or_apply(third, steps, ops)
        set_values, is_new = table.lookup_or_insert(fourth, halves)
        drawn, _ = table.lookup_or_insert(fourth + 5000)
        return added, set_values, is_new, drawn, table.size()

    def look(keys):
        values, found = table.find(keys)
        two = table.lookup(keys, {"weight": 7.0}, columns=["step", "weight"])
        return values, found, two, table[keys], table.contains(keys), table.rows(keys)

    work = (change, look) if mode == "eager" else (tf.function(change), tf.function(look))
    arguments = tf.nest.map_structure(tf.constant, (first, some, second, everything, third, steps, fourth, halves))
    added, set_values, is_new, drawn, size = work[0](*arguments)
    twin[first] = some
    twin[second] = everything
    same_news(added, twin.insert_or_apply(third, steps, ops), third)
    rows, expected_new = twin.find_or_insert(fourth, halves)
    same_news(is_new, expected_new, fourth)
    same_columns(set_values, twin[fourth])
    twin.find_or_insert(fourth + 5000)
    same_columns(drawn, twin[fourth + 5000])
    assert size.numpy() == len(twin)
    same_tables(table, twin)

    keys = np.arange(3500, 4500)
    values, found, two, item, there, rows = work[1](tf.constant(keys))
    expected, mask = twin.find(keys)
    same_columns(values, expected)
    same_columns(item, expected)
    same_columns(two, twin.find(keys, {"weight": 7.0}, columns=["step", "weight"])[0])
    for got in (found, there, rows.numpy() >= 0):
        same_bytes(np.asarray(got), mask)
    assert len(np.unique(rows.numpy()[mask])) == mask.sum()
    table.remove(tf.constant(keys[:100]))
    twin.erase(keys[:100])
    same_tables(table, twin)


def test_defaults_values_for_all_keys_and_shapes_of_batches(tools):
    tf, ours, place = tools
    table, twin = with_twin(tools)
    keys = np.arange(6).reshape(2, 3)
    values = values_of(["weight", "half"], (2, 3))
    table.insert(keys, values)
    twin[keys] = values
    asked = np.arange(4, 8).reshape(2, 1, 2)
    own = values_of(["half"], (2, 1, 2))["half"]
    for default in (None, {"step": 3}, {"half": own, "flag": True}, {"weight": [1.0, 2.0, 3.0, 4.0]}):
        got, found = table.find(asked, default)
        expected, mask = twin.find(asked, default)
        same_columns(got, expected)
        same_bytes(found, mask)
    for given in ({"weight": 2.5, "step": 7}, {"weight": [1.0, 2.0, 3.0, 4.0]}):
        table.insert([[10, 11]], given)
        twin[[[10, 11]]] = given
    same_tables(table, twin)
    same_bytes(table.lookup(3, columns=["weight"])["weight"].numpy(), values["weight"][1, 0])
    vectors = ours.MutableHashTable("int32", {"x": "int16"}, key_shape=(3,), device=place)
    assert vectors.insert_or_apply([[1, 2, 3], [4, 5, 6], [1, 2, 3]], {"x": 2}).shape == (3,)
    assert vectors.lookup([[[1, 2, 3], [4, 5, 7]]])["x"].numpy().tolist() == [[4, 0]]
    assert vectors.value_dtype == {"x": tf.int16}
    assert table.value_shape["half"] == (3,)


def test_empty_batches(tools):
    tf, _, _ = tools
    table, _ = with_twin(tools)
    keys = tf.zeros((2, 0), tf.int64)
    table.insert(keys, values_of(COLUMNS, (2, 0)))
    assert table.insert_or_apply(keys, {"step": 1}).shape == (2, 0)
    for values, mask in (table.find(keys), table.lookup_or_insert(keys)):
        assert mask.shape == (2, 0)
        assert {name: value.shape for name, value in values.items()} == {
            name: (2, 0, *shape) for name, shape in table.value_shape.items()
        }
    keys, values = table.export()
    assert keys.shape == (0,)
    assert values["half"].shape == (0, 3)


BAD_COLUMNS = {
    "unknown": ({"weight": 1.0, "other": 1}, "no column 'other'"),
    "no mapping": (1.0, "give a mapping"),
    "nothing": ({}, "empty mapping"),
    "none": (None, "give a mapping"),
}
BAD_TENSORS = {
    "dtype": {"step": np.arange(3.0)},
    "shape": {"step": np.int32(1), "weight": np.zeros((3, 5), np.float32)},
    "length": {"half": np.zeros((2, 3), np.float16)},
}
BAD_OPS = {
    "unknown": ({"step": 1}, "divide", "op='divide' is not known"),
    "bits of floats": ({"step": 1, "weight": 1.0}, "bit_or", "the column 'weight' has values of float32"),
    "other columns": ({"step": 1}, {"half": "add"}, "give both"),
}


def test_bad_input_is_refused(tools):
    """As by the methods, where names are at fault; tensors that do not fit as by TensorFlow. Nothing is changed."""
    tf, ours, place = tools
    table, twin = with_twin(tools)
    keys = np.arange(3)
    for values, message in BAD_COLUMNS.values():
        for call in ("insert", "insert_or_apply"):
            with pytest.raises((TypeError, ValueError)) as expected:
                getattr(twin, call)(keys, values, *(["add"] if call == "insert_or_apply" else []))
            with pytest.raises(expected.type, match=message):
                getattr(table, call)(keys, values)
    for values, op, message in BAD_OPS.values():
        with pytest.raises((TypeError, ValueError)) as expected:
            twin.insert_or_apply(keys, values, op)
        with pytest.raises(expected.type, match=message):
            table.insert_or_apply(keys, values, op)
    for values in BAD_TENSORS.values():
        values = {name: tf.constant(value) for name, value in values.items()}
        for work in (table.insert, tf.function(table.insert), table.lookup_or_insert, table.insert_or_apply):
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError, TypeError)):
                work(keys, values)
    for options in ({"columns": ["other"]}, {"columns": "step"}, {"dynamic_default_values": {"other": 1}}):
        with pytest.raises((TypeError, ValueError), match=r"no column 'other'|a list of names"):
            table.lookup(keys, **options)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"values of 'weight' have the shape \[3\]"):
        table.lookup(keys, {"weight": np.zeros(3, np.float32)})
    for bad in ({"step": "string"}, {}, {"x": ("float32", (0,))}):
        with pytest.raises((TypeError, ValueError)):
            ours.MutableHashTable("int64", bad, device=place)
    with pytest.raises(ValueError, match="no column 'other'"):
        ours.MutableHashTable("int64", COLUMNS, {"other": 1}, device=place)
    assert table.size().numpy() == 0


def test_ops_tell_single_values_and_columns_apart(tools):
    tf, ours, place = tools
    table, _ = with_twin(tools)
    single = ours.MutableHashTable("int64", "float32", 0.0, device=place)
    keys, value = tf.constant([1], tf.int64), tf.constant([1.0])
    find, change = ours.ops.gpuhash_lookup, functools.partial(ours.ops.gpuhash_change, actions=["add"])
    for op in (find, change):
        with pytest.raises(tf.errors.InvalidArgumentError, match="has named columns, such as 'weight'"):
            op(table.resource_handle, keys, [value], names=[""], shapes=[()])
        with pytest.raises(tf.errors.InvalidArgumentError, match="single value per key, and no column 'x'"):
            op(single.resource_handle, keys, [value], names=["x"], shapes=[()])
        with pytest.raises(tf.errors.InvalidArgumentError, match="no column 'x'; it has weight, step"):
            op(table.resource_handle, keys, [value], names=["x"], shapes=[()])
        with pytest.raises(tf.errors.InvalidArgumentError, match="'step' is float, and the table has it as int32"):
            op(table.resource_handle, keys, [value], names=["step"], shapes=[()])
    with pytest.raises(tf.errors.InvalidArgumentError, match="the value is double, and the table has it as float32"):
        find(single.resource_handle, keys, [tf.cast(value, tf.float64)], names=[""], shapes=[()])
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.raw_ops.LookupTableFindV2(table_handle=table.resource_handle, keys=keys, default_value=value[0])
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.raw_ops.LookupTableInsertV2(table_handle=table.resource_handle, keys=keys, values=value)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has named columns, such as 'weight'"):
        tf.raw_ops.LookupTableExportV2(table_handle=table.resource_handle, Tkeys=tf.int64, Tvalues=tf.float32)
    for shapes in ([], [(4,), (4,)]):  # which would otherwise end the process, when a function is traced
        with pytest.raises(ValueError, match=f"shapes are of {len(shapes)} columns, and there are 1 tensors"):
            tf.function(find).get_concrete_function(
                table.resource_handle, keys, [value], names=["weight"], shapes=shapes
            )
    assert table.size().numpy() == single.size().numpy() == 0


# Functions -----------------------------------------------------------------------------------------------------------


def test_static_shapes(tools):
    """All that can be known of shapes is, when a function is traced; what cannot fit is refused then."""
    tf, _, _ = tools
    table, _ = with_twin(tools)
    shapes = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 7], tf.int64)])
    def work(keys):
        values, found = table.find(keys, columns=["half", "step"])
        every, new = table.lookup_or_insert(keys)
        exported, columns = table.export()
        tensors = {**values, "found": found, "weight": every["weight"], "new": new, "rows": table.rows(keys)}
        tensors |= {"keys": exported, "all halves": columns["half"]}
        shapes.update({name: tensor.shape.as_list() for name, tensor in tensors.items()})
        return found

    work.get_concrete_function()
    assert shapes == {
        "half": [None, 7, 3],
        "step": [None, 7],
        "found": [None, 7],
        "weight": [None, 7, 4],
        "new": [None, 7],
        "rows": [None, 7],
        "keys": [None],
        "all halves": [None, 3],
    }

    @tf.function
    def wrong(keys, halves):
        table.insert(keys, {"half": halves})

    with pytest.raises(ValueError, match="Dimension"):
        wrong.get_concrete_function(tf.TensorSpec([5], tf.int64), tf.TensorSpec([5, 4], tf.float16))


def test_order_and_datasets():
    tools = need_tensorflow()
    tf, _, _ = tools
    table, twin = with_twin(tools)

    @tf.function
    def work(keys):
        for _ in tf.range(3):
            table.insert_or_apply(keys, {"step": 2})
        before = table.lookup(keys, columns=["step"])["step"]
        table.insert(keys, {"step": 0})
        return before, table.lookup(keys, columns=["step"])["step"]

    before, after = work(tf.range(4, dtype=tf.int64))
    assert before.numpy().tolist() == [6] * 4  # the first of them is what new rows get
    assert not after.numpy().any()
    dataset = tf.data.Dataset.range(2, 6).batch(2).map(lambda keys: table.lookup(keys, columns=["step", "short"]))
    assert [batch["short"].numpy().tolist() for batch in dataset] == [[0, 0], [2, 2]]
    assert len(twin) == 0


def test_scalars_whose_rank_is_known_late(tools):
    """A scalar is one value for all keys and elements; other shapes are what they are."""
    tf, ours, place = tools
    table = ours.MutableHashTable("int64", {"weight": ("float32", (4,))}, device=place)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec(None)])
    def insert(keys, values):
        table.insert(keys, {"weight": values})

    keys = tf.constant([1, 2], tf.int64)
    for given in (3.0, np.arange(4, dtype=np.float32), np.arange(8, dtype=np.float32).reshape(2, 4)):
        insert(keys, tf.constant(given))
        expected = np.broadcast_to(np.float32(given), (2, 4))
        same_bytes(table.lookup(keys)["weight"].numpy(), expected)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected"):
        insert(keys, tf.constant([1.0]))


def test_gradients_through_insertions_are_refused(tools):
    tf, ours, place = tools
    table = ours.MutableHashTable("int64", {"weight": ("float32", (4,))}, device=place)
    values = tf.ones((1, 4))
    with tf.GradientTape() as tape:
        tape.watch(values)
        found, _ = table.lookup_or_insert(tf.constant([1], tf.int64), {"weight": values})
    with pytest.raises(NotImplementedError, match="stop_gradient"):
        tape.gradient(found["weight"], values)


def test_gradients(tools):
    """Defaults have those of where(found, values, default). Rows are trained by what was looked up."""
    tf, _, _ = tools
    table, _ = with_twin(tools)
    table.insert([0, 1, 2], {"weight": 2.0, "half": 1.0, "step": 3})
    keys = tf.range(5, dtype=tf.int64)
    weights = tf.reshape(tf.range(20, dtype=tf.float32), (5, 4))
    halves = tf.constant([1, 2, 3], tf.float16)

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            tape.watch([weights, halves])
            found = table.lookup(keys, {"weight": weights, "half": halves, "step": 1})
            loss = tf.reduce_sum(found["weight"] ** 2) + 3 * tf.reduce_sum(tf.cast(found["half"], tf.float32))
        return tape.gradient(loss, [weights, halves])

    of_weights, of_halves = gradients()
    absent = np.arange(5)[:, None] >= 3
    same_bytes(of_weights, np.where(absent, 2 * weights.numpy(), 0).astype(np.float32))
    assert of_halves.numpy().tolist() == [6, 6, 6]

    with tf.GradientTape() as tape:
        rows = table.lookup(keys[:3], columns=["weight"])["weight"]
        tape.watch(rows)
        loss = tf.reduce_sum(rows**2) / 2
    table.insert_or_apply(keys[:3], {"weight": -0.5 * tape.gradient(loss, rows)})
    assert (table.lookup(keys[:3])["weight"].numpy() == 1).all()


# Tables and names ----------------------------------------------------------------------------------------------------


def test_initial_values_of_all_kinds(tools):
    """The ops make the rows that gpuhash.HashTable makes, bit for bit."""
    _, ours, place = tools
    columns = {
        "normal": Column("float64", (3,), Normal(mean=0.1, std=1 / 3, seed=2**63 + 1)),
        "truncated": Column("bfloat16", (2,), TruncatedNormal(std=2.5, seed=2**64 - 1)),
        "uniform": Column("float16", (), Uniform(-0.3, 0.7)),
        "complex": Column("complex128", (), Constant(1.5 - 2e-7j)),
        "large": Column("uint64", (), 2**64 - 3),
        "zeros": "int8",
    }
    keys = np.arange(-50, 50)
    twin = HashTable("int64", columns)
    twin.find_or_insert(keys)
    for anonymous in (False, True):
        table = ours.MutableHashTable("int64", columns, experimental_is_anonymous=anonymous, device=place)
        values, new = table.lookup_or_insert(keys)
        assert new.numpy().all()
        same_columns(values, twin[keys])
    assert table.columns == gpuhash.tables.named_columns.checked(columns)


def test_wrap(tools, device):
    _, ours, _ = tools
    python = HashTable("int64", COLUMNS, default=DEFAULT, device=device, deterministic=True)
    names = set(gpuhash._core.table_names())
    table = ours.wrap(python)
    assert set(gpuhash._core.table_names()) == names
    assert isinstance(table, ours.ColumnsHashTable)
    table.insert([1], {"step": 7, "half": [1.0, 2.0, 3.0]})
    assert python[1]["step"] == 7
    same_columns(table.lookup([1, 2]), python.to("cpu").find(np.arange(1, 3))[0])  # with the table's own defaults
    assert ours.wrap(python, {"step": 3}).lookup(9)["step"].numpy() == 3


def test_shared_names(tools, device):
    tf, ours, place = tools
    name = f"columns of {device}"
    table = ours.MutableHashTable("int64", COLUMNS, shared_name=name, device=place)
    table.insert([1], {"step": 7})
    opened = gpuhash.open(name)
    assert opened[1]["step"] == 7
    assert opened.columns["weight"] == COLUMNS["weight"]
    again = ours.MutableHashTable("int64", COLUMNS, shared_name=name, device=place)
    assert again.lookup(1)["step"].numpy() == 7
    for other in ({**COLUMNS, "step": "int64"}, {"weight": COLUMNS["weight"]}):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"'step' of int32 of shape \[\].*the op asks for"):
            ours.MutableHashTable("int64", other, shared_name=name, device=place)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the op asks for"):
        ours.MutableHashTable("int64", "float32", 0.0, shared_name=name, device=place)
    opened.close()


# Files ---------------------------------------------------------------------------------------------------------------


def test_checkpoints(tools, tmp_path):
    tf, ours, place = tools
    table, twin = with_twin(tools)
    keys, values = np.random.default_rng(2).permutation(1000), values_of(COLUMNS, 1000)
    table.insert(keys, values)
    twin[keys] = values
    path = tf.train.Checkpoint(table=table).save(str(tmp_path / "checkpoint"))
    names = {name.rpartition("/")[2]: shape for name, shape in tf.train.list_variables(path)}
    assert names["table-values-half"] == [1000, 3]
    restored, _ = with_twin(tools)
    restored.insert([1234567], {"step": 1})
    tf.train.Checkpoint(table=restored).restore(path).assert_consumed()
    same_tables(restored, twin)
    other = ours.MutableHashTable("int64", {"weight": ("float64", (4,))}, device=place)
    with pytest.raises(Exception, match=r"(?i)dtype|float"):
        tf.train.Checkpoint(table=other).restore(path)
    copies = {}
    table._copy_trackable_to_cpu(copies)
    same_tables(copies[table], twin)


def in_new_process(program, *arguments):
    """Runs a program, and returns what it prints."""
    script = textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-P", "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_saved_model_in_a_fresh_process(tools, tmp_path):
    tf, _, _ = tools

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.table, _ = with_twin(tools)
            self.table.insert(np.arange(10), {"step": np.arange(10, dtype=np.int32)})

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def __call__(self, keys):
            return self.table.lookup(keys, columns=["step", "weight"])

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def count(self, keys):
            return self.table.insert_or_apply(keys, {"step": 1})

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "model"))
    printed = in_new_process(
        """
        import os, sys
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        import tensorflow as tf
        import gpuhash.tensorflow
        model = tf.saved_model.load(sys.argv[1])
        print(model.count(tf.constant([3, 100, 3], tf.int64)).numpy().tolist())
        found = model(tf.constant([3, 9, 100, 200], tf.int64))
        print(found["step"].numpy().tolist())
        print(found["weight"].numpy().tobytes().hex())
        """,
        str(tmp_path / "model"),
    ).splitlines()
    model.table.insert([100], {"step": 1})
    expected = model.table.lookup([3, 9, 100, 200], columns=["weight"])["weight"].numpy()
    assert printed == ["[False, True, False]", "[5, 9, 1, 0]", expected.tobytes().hex()]


def test_a_session_and_its_saver(tmp_path):
    """Graphs of TensorFlow 1."""
    tools = need_tensorflow()
    tf, ours, _ = tools
    path = str(tmp_path / "saved")
    for restores in (False, True):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            table = ours.MutableHashTable("int64", COLUMNS, name="users")
            insert = table.insert(tf.constant([1, 2], tf.int64), {"step": tf.constant([3, 4])})
            found = table.lookup(tf.constant([1, 2, 3], tf.int64), columns=["step"])
            saver = tf.compat.v1.train.Saver()
            if restores:
                assert session.run(found)["step"].tolist() == [0, 0, 0]
                saver.restore(session, path)
            else:
                session.run(insert)
                saver.save(session, path)
            assert session.run(found)["step"].tolist() == [3, 4, 0]
    assert "users-values-weight" in {name for name, _ in tf.train.list_variables(path)}


@pytest.mark.parametrize("call", ["insert", "lookup_or_insert", "import"])
def test_each_allocation_fails_once(call):
    """Whatever memory is missing, the op says so and the table is as it was. On the host, where all of it is ours."""
    tf, ours, _ = need_tensorflow()
    memory = counting_memory("cpu")
    keys, more = np.arange(100), np.arange(50, 1500)
    values = values_of(COLUMNS, 1450)
    work = {
        "insert": lambda table: table.insert(more, values),
        "lookup_or_insert": lambda table: table.lookup_or_insert(more, {"step": 1}),
        "import": lambda table: table._restore_from_tensors(
            {"-keys": tf.constant(more), **{f"-values-{name}": tf.constant(value) for name, value in values.items()}}
        ),
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
        python = HashTable("int64", COLUMNS, memory=memory)
        python[keys] = {"weight": 3.0}
        before = python.copy()
        table = ours.wrap(python)
        memory.fail_after(failures)
        message = no_memory(table)
        memory.fail_after(None)
        if message is None:
            break
        assert "bytes in this test" in message
        same_tables(table, before)
        failures += 1
    assert failures >= 3
    assert table.size().numpy() == (1450 if call == "import" else 1500)
    assert not memory.mistakes
