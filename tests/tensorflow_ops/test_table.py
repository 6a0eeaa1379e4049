"""gpuhash.tensorflow.MutableHashTable beside TensorFlow's own table, and beside dict where that has no such table."""

from __future__ import annotations

import copy
import functools
import gc
import os
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest
from support.graphs import need_tensorflow
from support.memory_resources import counting_memory
from support.samples import UFUNCS, random_keys, random_values, same_bytes

import gpuhash

KEY_DTYPES = ["int32", "int64"]
VALUE_DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"]


@pytest.fixture
def tools(device):
    """TensorFlow, our package, and the device."""
    return need_tensorflow(device)


def as_dict(keys, values):
    return dict(zip(keys.numpy().tolist(), [np.asarray(value).tobytes() for value in values.numpy()], strict=True))


@pytest.mark.parametrize("value_shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
@pytest.mark.parametrize("key_dtype", KEY_DTYPES)
def test_every_pair_of_dtypes(tools, key_dtype, value_dtype, value_shape):
    tf, ours, device = tools
    keys = random_keys(key_dtype, (), 500)
    values = random_values(value_dtype, (500, *value_shape))
    default = random_values(value_dtype, value_shape)
    table = ours.MutableHashTable(key_dtype, value_dtype, default, device=device, total_buckets=16)
    assert table.value_shape == value_shape
    table.insert(keys, values)
    assert table.size().numpy() == 500
    asked = np.concatenate([keys[::-1], np.array([7, -7], key_dtype)])
    expected = np.concatenate([values[::-1], np.stack([default, default]).astype(values.dtype)])
    got = table.lookup(asked)
    assert got.shape == (502, *value_shape)
    assert device in got.device
    same_bytes(got, expected)
    same_bytes(tf.raw_ops.LookupTableFindV2(table_handle=table.resource_handle, keys=asked, default_value=default), got)
    assert table.contains(asked).numpy().tolist() == [True] * 500 + [False] * 2
    table.remove(tf.constant(keys[::2]))
    exported = as_dict(*table.export())
    assert exported == {
        int(key): value.tobytes() for key, value in zip(keys[1::2], values[1::2].astype(values.dtype), strict=True)
    }


def test_a_missing_pair_is_a_clear_error(tools):
    _, ours, device = tools
    with pytest.raises(Exception, match="string"):
        ours.MutableHashTable("string", "int64", -1, device=device)
    with pytest.raises(Exception, match="float"):
        ours.MutableHashTable("float32", "int64", -1, device=device)
    with pytest.raises(Exception, match="string"):
        ours.MutableHashTable("int64", "string", "", device=device)


def pair(tools, default, value_dtype="int64", **options):
    """TensorFlow's table and ours, of int64 keys."""
    tf, ours, device = tools
    with tf.device("CPU:0"):
        stock = tf.lookup.experimental.MutableHashTable("int64", value_dtype, default)
    return stock, ours.MutableHashTable("int64", value_dtype, default, device=device, **options)


def same_contents(first, second):
    assert as_dict(*first.export()) == as_dict(*second.export())
    assert first.size().numpy() == second.size().numpy()


@pytest.mark.parametrize("default", [-1, [-1, -2, -3]], ids=["scalars", "vectors"])
def test_the_same_story_as_tensorflows_table(tools, default):
    """Long random work on few keys: inserting, overwriting, removing, finding, with keys of any shape."""
    tf, _, _ = tools
    stock, table = pair(tools, default, total_buckets=0)
    rng = np.random.default_rng(5)
    item = np.shape(default)
    for step in range(60):
        shape = [(), (7,), (3, 4), (0,), (2, 1, 5)][step % 5]
        keys = np.asarray(rng.integers(-40, 40, shape))
        if step % 3 == 2:
            stock.remove(tf.constant(keys))
            table.remove(tf.constant(keys))
        else:
            # A key's duplicates get one value: which of them stays is another test's matter.
            values = np.broadcast_to(np.reshape(keys * 1000 + step, (*shape, *(1,) * len(item))), (*shape, *item))
            stock.insert(keys, values)
            table.insert(keys, values)
        asked = rng.integers(-50, 50, (5, 4))
        same_bytes(table.lookup(asked), stock.lookup(asked).numpy())
        same_bytes(table[tf.constant(asked)], stock[tf.constant(asked)].numpy())
        same_contents(stock, table)


def test_of_duplicates_in_a_batch_the_last_stays(tools):
    stock, table = pair(tools, -1)
    rng = np.random.default_rng(1)
    keys, values = rng.integers(0, 50, 5000), rng.integers(0, 2**60, 5000)
    stock.insert(keys, values)
    table.insert(keys, values)
    same_contents(stock, table)


@pytest.mark.parametrize("default", [-1, [-1, -2]], ids=["scalars", "vectors"])
def test_dynamic_defaults(tools, default):
    stock, table = pair(tools, default)
    item = np.shape(default)
    keys = np.arange(0, 30, 2)
    values = np.arange(15 * max(1, 2 * len(item))).reshape(15, *item)
    stock.insert(keys, values)
    table.insert(keys, values)
    asked = np.arange(30).reshape(5, 6)
    one = np.full(item, 77)
    each = np.arange(asked.size * max(1, 2 * len(item))).reshape(*asked.shape, *item) + 10**6
    for dynamic in (one, each):
        same_bytes(table.lookup(asked, dynamic), stock.lookup(asked, dynamic).numpy())


def test_invalid_calls_are_refused_as_by_tensorflows_table(tools):
    tf, _, _ = tools
    stock, table = pair(tools, [-1.0, -2.0], "float32")
    for each in (stock, table):
        each.insert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    calls = [
        lambda t: t.insert([1, 2], [1.0, 2.0, 3.0]),  # of two numbers they were one value for all keys
        lambda t: t.insert([1, 2, 3], [[1.0, 2.0], [3.0, 4.0]]),
        lambda t: t.insert([1], [[1.0, 2.0, 3.0]]),
        lambda t: t.insert([[1]], [[1.0, 2.0]]),
        lambda t: t.lookup([1, 2], tf.constant([1.0])),
        lambda t: t.lookup([1, 2], tf.constant([[1.0, 2.0]])),
        lambda t: t.lookup(tf.constant([1], tf.int32)),
        lambda t: t.remove(tf.constant([1.0])),
        lambda t: t.insert(tf.constant([1.0]), [[1.0, 2.0]]),
        lambda t: t.insert([1], tf.constant([[1, 2]])),
    ]
    for number, call in enumerate(calls):
        kinds = []
        for each in (stock, table):
            with pytest.raises(Exception) as caught:
                call(each)
            kinds.append(
                {kind for kind in type(caught.value).__mro__ if kind.__module__ != "builtins"} or type(caught.value)
            )
        assert kinds[0] == kinds[1], f"call {number}"
        same_contents(stock, table)


def test_lookup_or_insert_is_setdefault(tools):
    _, ours, device = tools
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(4,), device=device)
    model = {}
    rng = np.random.default_rng(2)
    for _ in range(20):
        keys = rng.integers(0, 300, 64)
        given = rng.random((64, 4), np.float32)
        values, inserted = table.lookup_or_insert(keys, given)
        new = set(keys.tolist()) - set(model)
        assert inserted.numpy().sum() == len(new)
        assert set(keys[inserted.numpy()].tolist()) == new
        expected = [model.setdefault(int(key), value) for key, value in zip(keys, given, strict=True)]
        same_bytes(values, np.stack(expected))
    assert table.size().numpy() == len(model)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_find_or_insert_gives_rows(tools, device, traced):
    """Of new keys without values the initializer's, as the table itself draws them, or else the default."""
    tf, ours, _ = tools
    normal = gpuhash.initializers.Normal(std=0.5, seed=3)
    options = {"value_shape": (4,), "device": device}
    drawn, own = (gpuhash.HashTable("int64", "float32", initializer=normal, **options) for _ in range(2))
    with_default = gpuhash.HashTable("int64", "float32", default=2.5, **options)
    keys, more = np.array([[3, 1, 3], [2, 1, 4]]), np.array([4, 5])
    for table in (drawn, with_default):
        face = ours.wrap(table)
        call = tf.function(face.find_or_insert) if traced else face.find_or_insert
        rows, is_new = call(tf.constant(keys))
        assert rows.shape == is_new.shape == (2, 3)
        assert rows.numpy().tolist() == table.rows(keys).tolist()
        assert sorted(keys[is_new.numpy()].tolist()) == [1, 2, 3, 4]
        _, is_new = call(tf.constant(more), tf.constant([1.0, 2.0, 3.0, 4.0]))
        assert is_new.numpy().tolist() == [False, True]
        same_bytes(table[5], np.arange(1, 5, dtype=np.float32))
    own.find_or_insert(keys)
    same_bytes(drawn[keys], own[keys])
    assert (with_default[keys] == 2.5).all()
    same_bytes(ours.wrap(drawn).setdefault(more + 9), drawn[more + 9])


def test_erase_tells_which_keys_were_there(tools):
    tf, ours, device = tools
    for value_dtype in ("int64", {"x": "int64", "y": ("float32", (2,))}):
        table = ours.MutableHashTable("int64", value_dtype, None if isinstance(value_dtype, dict) else 0, device=device)
        keys = tf.constant([[1, 2], [3, 4]], tf.int64)
        values = keys if value_dtype == "int64" else {"x": keys}
        assert table.insert_or_assign(keys, values).numpy().tolist() == [[True, True], [True, True]]
        assert table.erase([9, 3, 1]).numpy().tolist() == [False, True, True]
        assert table.size().numpy() == 2


@pytest.mark.parametrize("op", UFUNCS)
def test_insert_or_apply(tools, op):
    _, ours, device = tools
    combine = UFUNCS[op]
    table = ours.MutableHashTable("int32", "int64", 0, device=device, total_buckets=0)
    model: dict[int, np.int64] = {}
    rng = np.random.default_rng(3)
    for _ in range(5):
        keys = rng.integers(0, 100, (40, 5)).astype(np.int32)
        values = rng.integers(-(2**62), 2**62, (40, 5))
        new = set(keys.ravel().tolist()) - set(model)
        inserted = table.insert_or_apply(keys, values, op)
        assert inserted.shape == (40, 5)
        assert inserted.numpy().sum() == len(new)
        with np.errstate(over="ignore"):
            for key, value in zip(keys.ravel().tolist(), values.ravel(), strict=True):
                model[key] = combine(model[key], value) if key in model else value
    asked = np.array(list(model), np.int32)
    same_bytes(table.lookup(asked), np.array([model[int(key)] for key in asked]))


def test_insert_or_apply_refuses_bits_of_floats(tools):
    tf, ours, device = tools
    table = ours.MutableHashTable("int64", "float32", 0.0, device=device)
    with pytest.raises(TypeError, match="float32"):
        table.insert_or_apply([1], [1.0], "bit_and")
    keys, values = tf.constant([1], tf.int64), tf.constant([1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="float32"):
        ours.ops.gpuhash_change(
            table.resource_handle, keys, [values], actions=["bit_and"], names=[""], shapes=[table.value_shape]
        )
    assert table.size().numpy() == 0


def test_rows(tools):
    tf, ours, device = tools
    name = f"with rows on {device}"
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(8,), device=device, shared_name=name)
    keys = random_keys("int64", (), 100)
    values = random_values("float32", (100, 8))
    table.insert(keys, values)
    rows = table.rows(np.append(keys, 12345)).numpy()
    assert rows[-1] == -1
    assert sorted(rows[:-1].tolist()) == list(range(100))
    python = gpuhash.open(name)
    same_bytes(python.rows(keys), rows[:-1])
    scalars = ours.MutableHashTable("int64", "float32", 0.0, device=device)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no row storage"):
        scalars.rows([1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no row storage"):
        scalars.find_or_insert([1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="with_rows is more than 1"):
        ours.ops.gpuhash_lookup(table.resource_handle, tf.constant([1], tf.int64), [], with_rows=2)


def small(tools, named):
    """A table of two keys, and what their values are."""
    tf, ours, device = tools
    keys = tf.constant([1, 2], tf.int64)
    if not named:
        table = ours.MutableHashTable("int64", "float32", -1.0, value_shape=(2,), device=device)
        table.insert(keys, [[1.0, 2.0], [3.0, 4.0]])
        return table, lambda answer: answer.numpy().tolist()
    table = ours.MutableHashTable("int64", {"x": "float32", "y": ("int32", (2,))}, {"x": -1.0}, device=device)
    table.insert(keys, {"y": [[1, 2], [3, 4]]})
    return table, lambda answer: answer["y"].numpy().tolist()


@pytest.mark.parametrize("named", [False, True], ids=["single", "columns"])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_pop_and_del(tools, named, traced):
    tf, _, _ = tools
    table, plain = small(tools, named)
    absent = tf.errors.NotFoundError if traced else KeyError

    def run(call, *arguments):
        return (tf.function(call) if traced else call)(*arguments)

    keys = tf.constant([[2, 9], [2, 7]], tf.int64)
    for call in (table.pop, table.__delitem__):
        with pytest.raises(absent, match="2 of 4 keys are absent; none was erased"):
            run(call, keys)
    assert table.size().numpy() == 2
    default = {"y": 5} if named else 5.0
    assert plain(run(lambda keys: table.pop(keys, default), keys)) == [[[3, 4], [5, 5]], [[3, 4], [5, 5]]]
    assert table.contains([1, 2]).numpy().tolist() == [True, False]
    assert plain(run(table.pop, tf.constant(1, tf.int64))) == [1, 2]
    assert plain(table.pop([1], None)) == ([[0, 0]] if named else [[-1, -1]])
    table.insert_or_assign([4, 5], {"x": 1.0} if named else 1.0)
    run(table.__delitem__, tf.constant([4, 4], tf.int64))
    assert table.keys().numpy().tolist() == [5]


@pytest.mark.parametrize("named", [False, True], ids=["single", "columns"])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_the_whole_table(tools, named, traced):
    tf, _, _ = tools
    table, plain = small(tools, named)

    def run(call, *arguments):
        return (tf.function(call) if traced else call)(*arguments)

    def change(call):
        """An operation, which a tf.function cannot return, in a graph."""
        assert (call() is None) is not traced

    keys, values = run(table.items)
    assert keys.numpy().tolist() == run(table.keys).numpy().tolist()
    assert plain(values) == plain(run(table.values))
    assert dict(zip(keys.numpy().tolist(), plain(values), strict=True)) == {1: [1, 2], 2: [3, 4]}
    run(lambda: change(lambda: table.reserve(tf.constant(10**5) if traced else 10**5)))
    assert table.size().numpy() == 2
    run(lambda: change(table.clear))
    assert table.size().numpy() == 0
    table.insert([3], {"y": 6} if named else 6.0)
    assert plain(table.lookup([3])) == [[6, 6]]
    with pytest.raises(TypeError, match=r"size=1\.5"):
        table.reserve(1.5)
    with pytest.raises(TypeError, match="tensor of float32, expected one of an integer dtype"):
        run(lambda: table.reserve(tf.constant(1.5)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a number from 0 on"):
        run(lambda: change(lambda: table.reserve(tf.constant(-1))))


def test_single_keys_in_eager_mode(tools):
    tf, ours, device = tools
    table, plain = small(tools, False)
    assert 1 in table
    assert tf.constant(2, tf.int64) in table
    assert 3 not in table
    assert 2**63 not in table
    with pytest.raises(TypeError, match=r"batch of shape \(2,\): call contains"):
        assert [1, 2] in table
    with pytest.raises(TypeError, match="not iterable"):
        iter(table)
    popped = dict(table.popitem() for _ in range(2))
    assert {key: plain(value) for key, value in popped.items()} == {1: [1, 2], 2: [3, 4]}
    with pytest.raises(KeyError, match="empty"):
        table.popitem()
    vectors = ours.MutableHashTable("int32", "int64", 0, key_shape=(2,), device=device)
    vectors.insert([[1, 2], [3, 4]], 5)
    assert (1, 2) in vectors
    assert (1, 3) not in vectors
    assert (1, 2**31) not in vectors
    assert {key for key, _ in (vectors.popitem(), vectors.popitem())} == {(1, 2), (3, 4)}
    for call in (table.popitem, lambda: 1 in table):
        with pytest.raises(NotImplementedError, match="a graph is being built"):
            tf.function(call)()


def test_vector_keys(tools):
    tf, ours, device = tools
    table = ours.MutableHashTable("int32", "int64", -1, key_shape=(3,), device=device)
    keys = np.array([[0, 0, 0], [1, -1, 2], [1, 2, -1], [-1, -1, -1]], np.int32)
    table.insert(keys, [10, 11, 12, 13])
    asked = np.stack([keys[::-1], keys + 5])
    assert table.lookup(asked).numpy().tolist() == [[13, 12, 11, 10], [-1] * 4]
    assert table.contains(asked).numpy().tolist() == [[True] * 4, [False] * 4]
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        table.lookup(np.zeros((2, 4), np.int32))


@pytest.mark.parametrize("key", [0, -1, 2**63 - 1, -(2**63), -2])
def test_every_key_is_legal(tools, key):
    _, ours, device = tools
    table = ours.MutableHashTable("int64", "int64", 5, device=device, total_buckets=0)
    assert table.lookup([key]).numpy().tolist() == [5]
    table.insert([key], [key])
    assert table.lookup([key, 3]).numpy().tolist() == [key, 5]
    table.remove(np.array([key]))
    assert table.size().numpy() == 0


def test_it_grows(tools):
    _, ours, device = tools
    table = ours.MutableHashTable("int64", "int64", -1, device=device, total_buckets=0)
    keys = random_keys("int64", (), 200_000)
    for part in np.split(keys, 20):
        table.insert(part, part ^ 21)
    assert table.size().numpy() == 200_000
    same_bytes(table.lookup(keys[::-1]), keys[::-1] ^ 21)


def test_import_replaces_everything(tools):
    tf, ours, device = tools
    table = ours.MutableHashTable("int64", "int64", -1, device=device)
    table.insert([1, 2, 3], [1, 2, 3])
    tf.raw_ops.LookupTableImportV2(table_handle=table.resource_handle, keys=np.array([3, 4]), values=np.array([30, 40]))
    assert dict(zip(*(array.numpy().tolist() for array in table.export()), strict=True)) == {3: 30, 4: 40}


# Names and handles ---------------------------------------------------------------------------------------------------


def test_a_table_made_in_tensorflow_is_found_in_python(tools, device):
    _, ours, place = tools
    table = ours.MutableHashTable("int64", "float32", 0.0, shared_name=f"made in a graph on {device}", device=place)
    table.insert([1, 2], [1.5, 2.5])
    python = gpuhash.open(f"made in a graph on {device}")
    assert python.device == device
    assert dict(zip(*lists(python), strict=True)) == {1: 1.5, 2: 2.5}
    python[3] = 3.5
    python.erase([1])
    assert table.lookup([1, 2, 3]).numpy().tolist() == [0.0, 2.5, 3.5]


def lists(table):
    """Keys and values of a table as lists."""
    keys = list(table)
    return keys, [table[key] for key in keys]


def test_a_table_made_in_python_is_found_in_tensorflow(tools, device):
    _, ours, place = tools
    python = gpuhash.HashTable("int64", "float32", device=device, name=f"made in Python for {device}")
    python[[1, 2]] = [1.5, 2.5]
    table = ours.MutableHashTable("int64", "float32", -1.0, shared_name=f"made in Python for {device}", device=place)
    assert table.lookup([1, 2, 3]).numpy().tolist() == [1.5, 2.5, -1.0]
    table.insert([3], [3.5])
    assert python[3] == 3.5
    python.close()


def test_a_name_that_was_given_up(tools, device):
    """TensorFlow still holds the table; it has the name again, or another one that took it."""
    _, ours, place = tools
    name = f"given up on {device}"
    old = gpuhash.HashTable("int64", "int64", device=device, name=name)
    old[[1]] = [10]
    first = ours.MutableHashTable("int64", "int64", -1, shared_name=name, device=place)
    old.close()
    assert first.lookup([1]).numpy().tolist() == [10]
    again = ours.MutableHashTable("int64", "int64", -1, shared_name=name, device=place)
    assert again.lookup([1]).numpy().tolist() == [10]
    found = gpuhash.open(name)
    assert found[1] == 10
    found.close()
    new = gpuhash.HashTable("int64", "int64", device=device, name=name)
    new[[1]] = [20]
    assert ours.MutableHashTable("int64", "int64", -1, shared_name=name, device=place)[[1]].numpy().tolist() == [20]
    assert gpuhash.open(name)[1] == 20
    assert old[1] == 10
    new.close()


def test_another_kind_of_table_of_the_name_is_refused(tools, device):
    tf, ours, place = tools
    python = gpuhash.HashTable("int64", "float32", device=device, name=f"of floats on {device}")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"values of float32.*values of int64"):
        ours.MutableHashTable("int64", "int64", 0, shared_name=f"of floats on {device}", device=place)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"int64.*int32"):
        ours.MutableHashTable("int32", "float32", 0, shared_name=f"of floats on {device}", device=place)
    python.close()


def test_a_name_that_was_given_up_is_not_taken_by_an_op_that_fails(tools, device):
    """Neither does it come back, nor does TensorFlow keep a table of another kind under it."""
    tf, ours, place = tools
    name = f"closed and of floats on {device}"
    python = gpuhash.HashTable("int64", "float32", device=device, name=name)
    table = ours.MutableHashTable("int64", "float32", 0.0, shared_name=name, device=place)
    python.close()
    for key_dtype, value_dtype in (("int64", "int64"), ("int32", "float32")):
        with pytest.raises(tf.errors.InvalidArgumentError, match="the op asks for"):
            ours.MutableHashTable(key_dtype, value_dtype, 0, shared_name=name, device=place)
        assert name not in gpuhash._core.table_names()
    # An op that fits gives it the name back, and an op that does not leaves that as it is.
    table.insert([1], [1.5])
    assert ours.MutableHashTable("int64", "float32", 0.0, shared_name=name, device=place)[[1]].numpy() == [1.5]
    assert gpuhash.open(name)[1] == 1.5
    with pytest.raises(tf.errors.InvalidArgumentError, match="the op asks for"):
        ours.MutableHashTable("int64", "int64", 0, shared_name=name, device=place)
    assert gpuhash.open(name)[1] == 1.5
    gpuhash.open(name).close()


def test_an_op_that_fails_keeps_no_table(tools, device):
    """Nor does it take the place of the table that TensorFlow has under the name."""
    tf, ours, place = tools
    name = f"of shorts on {device}"
    python = gpuhash.HashTable("int64", "int16", device=device, name=name)
    core = weakref.ref(python._core)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the op asks for"):
        ours.MutableHashTable("int64", "float64", 0, shared_name=name, device=place)
    python.close()
    del python
    gc.collect()
    assert core() is None
    table = ours.MutableHashTable("int64", "float64", -1.0, shared_name=name, device=place)  # the name is free
    table.insert([1], [2.0])
    gpuhash.open(name).close()
    other = gpuhash.HashTable("int64", "int16", device=device, name=name)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the op asks for"):
        ours.MutableHashTable("int64", "float64", -1.0, shared_name=name, device=place)
    assert table.lookup([1]).numpy() == [2.0]
    assert gpuhash.open(name) == other
    other.close()


@pytest.mark.parametrize("setting", ["GPUHASH_SIMD=avx9", "GPUHASH_NUM_THREADS=abc"])
def test_settings_that_cannot_be_are_errors_of_the_ops(setting):
    """In eager mode and in a graph; the process goes on."""
    need_tensorflow()
    program = """
        import tensorflow as tf
        import gpuhash.tensorflow as ours
        def work():
            table = ours.MutableHashTable("int64", "int64", -1, device="CPU:0", experimental_is_anonymous=True)
            keys = tf.range(10**6, dtype=tf.int64)
            table.insert(keys, keys)
            return table.size()
        for run in (work, tf.function(work)):
            try:
                print(run())
            except tf.errors.InvalidArgumentError as error:
                print("InvalidArgumentError", str(error).replace("\\n", " "))
    """
    variable, value = setting.split("=")
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("InvalidArgumentError")
        assert f"{variable} is '{value}'; expected" in line


# Attributes and inputs that no table has -----------------------------------------------------------------------------

BAD_ATTRIBUTES = {
    "keys of 2^64 bytes": {"key_shape": [2**61]},
    "keys of 2^64 + 8 bytes": {"key_shape": [2**61 + 1]},
    "keys of 2^63 numbers": {"key_shape": [2**63 - 1]},
    "keys of 2^80 numbers": {"key_shape": [2**40, 2**40]},
    "keys of 2 MiB": {"key_shape": [2**18]},
    "keys of none": {"key_shape": [0]},
    "keys of rank 2": {"key_shape": [1, 1]},
    "keys of a negative number": {"key_shape": [-1]},
    "keys of an unknown shape": {"key_shape": "unknown"},
    "values of 2^64 bytes": {"value_shape": [2**61]},
    "values of 2^80 numbers": {"value_shape": [2**40, 2**40]},
    "values of none and 2^80 numbers": {"value_shape": [0, 2**40, 2**40]},
    "values of 2^31 bytes": {"value_shape": [2**14, 2**14]},
    "values of none": {"value_shape": [3, 0]},
    "values of a negative number": {"value_shape": [-1]},
    "a negative size": {"total_buckets": -1},
    "a size of 2^62": {"total_buckets": 2**62},
    "a size of 2^63 - 1": {"total_buckets": 2**63 - 1},
}


@pytest.mark.parametrize("bad", BAD_ATTRIBUTES)
def test_attributes_that_no_table_has_are_refused(tools, bad):
    tf, ours, device = tools
    attributes = {"key_dtype": "int64", "value_dtype": "int64", **BAD_ATTRIBUTES[bad]}
    if attributes.get("key_shape") == "unknown":
        attributes["key_shape"] = tf.TensorShape(None)
    with tf.device(device):
        for make in (
            ours.ops.cuda_anonymous_mutable_hash_table,
            lambda **given: ours.ops.cuda_mutable_hash_table_v2(shared_name="never made", **given),
        ):
            with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
                make(**attributes)
    assert "never made" not in gpuhash._core.table_names()


def test_python_arguments_that_no_table_has_are_refused(tools):
    tf, ours, device = tools
    for size in (-1, 2**63, 2**64, 2**64 + 5):  # TensorFlow takes what is beyond 64 bits for -1
        with pytest.raises(ValueError, match=f"total_buckets={size} "):
            ours.MutableHashTable("int64", "int64", -1, total_buckets=size, device=device)
    with pytest.raises(TypeError, match="total_buckets"):
        ours.MutableHashTable("int64", "int64", -1, total_buckets=1.5, device=device)
    with pytest.raises(tf.errors.InvalidArgumentError, match="key_shape is <unknown>"):
        ours.MutableHashTable("int64", "int64", -1, key_shape=None, device=device)
    for shape in ([2**40, 2**40], [-1], [0]):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
            ours.MutableHashTable("int64", "int64", -1, value_shape=shape, device=device)
    # TensorFlow gives all ops without a name one table.
    with pytest.raises(ValueError, match="shared_name=''"):
        ours.MutableHashTable("int64", "int64", -1, shared_name="", device=device)


def calls_of(tf, ours, table, handle, keys):
    """Every op of ours, of a handle and keys that need not be the table's. TensorFlow's own ops check nothing here."""
    shape = [*keys.shape[: keys.shape.rank - table.key_shape.rank], *table.value_shape]
    values = tf.zeros(shape[:8], tf.float32)
    default = tf.zeros(table.value_shape)
    ops = ours.ops
    column = {"names": [""], "shapes": [table.value_shape]}
    read = {"read_names": [""], "read_dtypes": [tf.float32], "read_shapes": [table.value_shape]}
    return {
        "lookup": lambda: ops.gpuhash_lookup(handle, keys, [default], **column),
        "contains": lambda: ops.gpuhash_lookup(handle, keys, []),
        "rows": lambda: ops.gpuhash_lookup(handle, keys, [], with_rows=1),
        "lookup_or_insert": lambda: ops.gpuhash_change(handle, keys, [values], actions=["keep"], **column, **read),
        "insert_or_apply": lambda: ops.gpuhash_change(handle, keys, [values], actions=["add"], **column),
        "erase": lambda: ops.gpuhash_erasure(handle, keys, []),
        "pop": lambda: ops.gpuhash_erasure(handle, keys, [default], **column),
    }


@pytest.mark.parametrize("op", ["lookup", "contains", "rows", "lookup_or_insert", "insert_or_apply", "erase", "pop"])
@pytest.mark.parametrize("handles", [0, 1, 2], ids=str)
def test_tensors_of_handles_are_refused(tools, op, handles):
    tf, ours, device = tools
    if "GPU" in device:
        pytest.skip("TensorFlow packs no handles of a GPU's resources")
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(3,), device=device)
    with tf.device("CPU:0"):
        handle = tf.stack([table.resource_handle] * max(1, handles))[:handles]
    with (
        tf.device(device),
        pytest.raises(tf.errors.InvalidArgumentError, match=r"expected one handle|Empty resource handle"),
    ):
        calls_of(tf, ours, table, handle, tf.constant([1], tf.int64))[op]()
    assert table.size().numpy() == 0


@pytest.mark.parametrize("op", ["lookup", "lookup_or_insert", "insert_or_apply", "pop", "insert", "import"])
def test_keys_of_too_many_dimensions_are_refused(tools, op):
    """TensorFlow has up to 254, of which values take some."""
    tf, ours, device = tools
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(1, 1, 7), device=device)
    keys = tf.reshape(tf.constant([1], tf.int64), [1] * 253)
    others = {
        "insert": lambda: tf.raw_ops.LookupTableInsertV2(
            table_handle=table.resource_handle, keys=keys, values=tf.zeros([1, 7])
        ),
        "import": lambda: tf.raw_ops.LookupTableImportV2(
            table_handle=table.resource_handle, keys=keys, values=tf.zeros([1, 7])
        ),
    }
    calls = {**calls_of(tf, ours, table, table.resource_handle, keys), **others}
    with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError, match=r"253 dimensions|have 256"):
        calls[op]()
    fits = tf.reshape(tf.constant([1], tf.int64), [1] * 200)
    assert table.lookup(fits).shape.rank == 203


@pytest.mark.parametrize("op", ["lookup", "contains", "rows", "lookup_or_insert", "insert_or_apply", "erase", "pop"])
@pytest.mark.parametrize("shape", [(), (2,), (3, 4), (0,), (3, 0), (2, 3, 1)], ids=str)
def test_keys_of_another_shape_are_refused(tools, op, shape):
    tf, ours, device = tools
    table = ours.MutableHashTable("int32", "float32", 0.0, key_shape=(3,), value_shape=(2,), device=device)
    with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError, match="key shape"):
        calls_of(tf, ours, table, table.resource_handle, tf.zeros(shape, tf.int32))[op]()
    assert table.size().numpy() == 0


@pytest.mark.parametrize("batch", [(0,), (2**62, 0), (0, 2**40, 2**22), (0, 0)], ids=str)
def test_batches_without_keys(tools, batch):
    tf, ours, device = tools
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(4,), device=device)
    keys = tf.zeros(batch, tf.int64)
    table.insert(keys, tf.zeros([*batch, 4]))
    assert table.contains(keys).shape == batch
    assert table.insert_or_apply(keys, tf.zeros([*batch, 4])).shape == batch
    assert table.rows(keys).shape == batch
    assert table.size().numpy() == 0


@pytest.mark.parametrize("value_shape", [(), (5,)], ids=str)
def test_wrap(tools, device, value_shape):
    _, ours, _ = tools
    python = gpuhash.HashTable("int64", "float32", value_shape=value_shape, device=device, default=7)
    names = set(gpuhash._core.table_names())
    table = ours.wrap(python)
    assert set(gpuhash._core.table_names()) == names
    table.insert([1], np.full((1, *value_shape), 1.5, np.float32))
    assert np.asarray(python[[1]].tolist() if device == "cpu" else python[[1]]).ravel().tolist() == [1.5] * max(
        1, 5 * len(value_shape)
    )
    assert set(table.lookup([2]).numpy().ravel().tolist()) == {7.0}
    del python
    assert table.size().numpy() == 1
    with pytest.raises(TypeError, match="HashSet"):
        ours.wrap(gpuhash.HashSet("int64"))


@pytest.mark.parametrize(("dtype", "default"), [("bfloat16", 1.5), ("float64", 0.1), ("uint64", 2**64 - 3)])
def test_wrap_takes_the_tables_default(tools, device, dtype, default):
    _, ours, _ = tools
    table = gpuhash.HashTable("int64", dtype, device=device, default=default)
    assert ours.wrap(table).lookup([2]).numpy().tolist() == [default]


@pytest.mark.parametrize("value_dtype", ["int64", {"v": "int64"}], ids=["plain", "columns"])
def test_memory_goes_with_the_last_handle(tools, device, value_dtype):
    """Of a table that was made in Python: neither it nor TensorFlow's resource manager keeps it."""
    _, ours, _ = tools
    memory = counting_memory(device)
    names = gpuhash._core.table_names()
    table = ours.wrap(gpuhash.HashTable("int64", value_dtype, device=device, memory=memory))
    gc.collect()
    assert table.size().numpy() == 0
    assert memory.nbytes > 0
    handle = table.resource_handle
    del table
    gc.collect()
    assert memory.nbytes > 0
    del handle
    gc.collect()
    assert memory.nbytes == 0
    assert gpuhash._core.table_names() == names


CHANGES = {
    "insert": lambda tf, table, keys, values: table.insert(keys, values),
    "add": lambda tf, table, keys, values: table.insert_or_apply(keys, values, "add"),
    "lookup_or_insert": lambda tf, table, keys, values: table.lookup_or_insert(keys, values),
    "import": lambda tf, table, keys, values: tf.raw_ops.LookupTableImportV2(
        table_handle=table.resource_handle, keys=keys, values=values
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_values_that_are_the_tables_own_rows(tools, device, change):
    """They are read as they were before the call, which writes them."""
    tf, ours, place = tools
    count = 1000
    table = gpuhash.HashTable("int64", "float32", value_shape=(16,), capacity=4 * count, device=device)
    keys = np.arange(count)
    table[keys] = np.repeat(keys.astype(np.float32)[:, None], 16, 1)
    rows = np.empty(count, np.int64)
    rows[table.rows(keys)] = keys  # the key of each row
    before = table[keys]
    gpuhash.store["own rows"] = table.row_storage
    with tf.device(place):
        given = ours.get_tensor("own rows", tf.float32)
    asked = np.concatenate([rows[count // 2 :], rows[: count // 2]])  # each gets the value of another one
    expected = before[rows]
    if change == "add":
        expected = expected + before[asked]
    elif change == "lookup_or_insert":
        expected = before[asked]
    result = CHANGES[change](tf, ours.wrap(table), tf.constant(asked), given)
    same_bytes(table[asked], expected)
    if change == "lookup_or_insert":
        same_bytes(result[0].numpy(), expected)
    assert len(table) == count
    del gpuhash.store["own rows"]


def test_a_table_lives_as_long_as_its_handles(tools, device):
    """As TensorFlow's does: in functions that were traced, in copies, and by the handle alone."""
    tf, ours, place = tools

    def make(wrapped):
        if wrapped:
            table = ours.wrap(gpuhash.HashTable("int64", "int64", device=device), -1)
        else:
            table = ours.MutableHashTable("int64", "int64", -1, device=place)
        table.insert(tf.constant([1, 2], tf.int64), tf.constant([10, 20], tf.int64))
        return table

    def traced(table):
        signature = tf.TensorSpec([None], tf.int64)
        return tf.function(lambda keys: table.lookup(keys)).get_concrete_function(signature)

    uses = {
        "function": traced,
        "copy": lambda table: copy.copy(table).lookup,
        "handle": lambda table: functools.partial(find_by_handle, tf, table.resource_handle),
    }
    for wrapped in (False, True):
        for use in uses.values():
            look_up = use(make(wrapped))
            gc.collect()
            assert look_up(tf.constant([2, 3], tf.int64)).numpy().tolist() == [20, -1]


def find_by_handle(tf, handle, keys):
    return tf.raw_ops.LookupTableFindV2(table_handle=handle, keys=keys, default_value=tf.constant(-1, tf.int64))


def test_gradients_through_insertions_are_refused(tools):
    tf, ours, device = tools
    table = ours.MutableHashTable("int64", "float32", 0, device=device)
    values = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(values)
        found, _ = table.lookup_or_insert(tf.constant([1, 2], tf.int64), values)
    with pytest.raises(NotImplementedError, match=r"stop_gradient\(values\)"):
        tape.gradient(found, values)


def test_anonymous_tables_are_apart(tools):
    _, ours, device = tools
    first, second = (
        ours.MutableHashTable("int64", "int64", -1, experimental_is_anonymous=True, device=device) for _ in range(2)
    )
    first.insert([1], [1])
    assert (first.size().numpy(), second.size().numpy()) == (1, 0)
    with pytest.raises(ValueError, match="anonymous"):
        ours.MutableHashTable("int64", "int64", -1, experimental_is_anonymous=True, shared_name="x")


def test_tensorflows_tables_are_refused_by_our_ops(tools):
    tf, ours, _ = tools
    with tf.device("CPU:0"):
        stock = tf.lookup.experimental.MutableHashTable("int64", "int64", -1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="TensorFlow's own tables"):
            ours.ops.gpuhash_lookup(stock.resource_handle, tf.constant([1], tf.int64), [])


@pytest.mark.parametrize("placed", [False, True], ids=["anywhere", "on the device"])
@pytest.mark.parametrize("keys", [["a", "b"], [1, 2]], ids=["strings", "integers"])
def test_tensorflows_own_tables_still_work(tools, keys, placed):
    """Kernels for its ops on GPUs must not draw its tables there."""
    tf, _, device = tools
    keys = tf.constant(keys) if isinstance(keys[0], str) else tf.constant(keys, tf.int64)
    with tf.device(device if placed else None):
        static = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, [1.5, 2.5]), -1.0)
        mutable = tf.lookup.experimental.MutableHashTable(keys.dtype, "float32", 0.0)
        mutable.insert(keys, [3.5, 4.5])

        def all_of_it():
            mutable.remove(keys[:1])
            return static.lookup(keys), mutable.lookup(keys), static.size(), mutable.size(), mutable.export()[1]

        for run in (all_of_it, tf.function(all_of_it)):
            results = [result.numpy().tolist() for result in run()]
            assert results == [[1.5, 2.5], [0.0, 4.5], 2, 1, [4.5]]
