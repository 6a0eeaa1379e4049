"""Rows that train: the gradient of a lookup beside that of tf.gather on a tf.Variable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.frameworks import platform_of
from support.graphs import need_tensorflow


@pytest.fixture
def tools(device):
    return need_tensorflow(device)


def dense(slices, count, width):
    """The sum of an IndexedSlices over keys 0 to count - 1."""
    total = np.zeros((count, width), np.float32)
    np.add.at(total, slices.indices.numpy(), slices.values.numpy())
    return total


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_gradient_is_that_of_a_gather(tools, in_function):
    tf, ours, device = tools
    rng = np.random.default_rng(0)
    weights = rng.random((50, 8), np.float32)
    keys = rng.integers(0, 50, (16, 3))  # with duplicates
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(8,), device=device)
    table.insert(np.arange(50), weights)
    variable = tf.Variable(weights)

    def loss_of(rows):
        return tf.reduce_sum(tf.sin(rows) * tf.reduce_sum(rows, -1, keepdims=True))

    def both():
        with tf.GradientTape() as tape:
            tape.watch(table.resource_handle)
            loss = loss_of(table.lookup(keys))
        with tf.GradientTape() as reference:
            expected = loss_of(tf.gather(variable, keys))
        return loss, expected, tape.gradient(loss, table.resource_handle), reference.gradient(expected, variable)

    loss, expected, mine, theirs = (tf.function(both) if in_function else both)()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert isinstance(mine, tf.IndexedSlices)
    np.testing.assert_allclose(dense(mine, 50, 8), dense(theirs, 50, 8), rtol=1e-5)


def test_gradient_of_absent_keys_is_the_defaults(tools):
    tf, ours, device = tools
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(2,), device=device)
    table.insert([1], [[1.0, 2.0]])
    one = tf.Variable([5.0, 6.0])
    each = tf.Variable(tf.ones((3, 2)))
    factors = tf.constant([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(table.resource_handle)
        with_one = tf.reduce_sum(factors * table.lookup([1, 2, 3], one))
        with_each = tf.reduce_sum(factors * table.lookup([1, 2, 3], each))
    assert tape.gradient(with_one, one).numpy().tolist() == [6.0, 60.0]
    assert tape.gradient(with_each, each).numpy().tolist() == [[0.0, 0.0], [2.0, 20.0], [4.0, 40.0]]
    slices = tape.gradient(with_one, table.resource_handle)
    assert slices.indices.numpy().tolist() == [1]
    assert slices.values.numpy().tolist() == [[1.0, 10.0]]


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_second_derivatives(tools, in_function):
    """Of defaults, of columns' defaults and of rows: beside tf.where on a tf.Variable."""
    tf, ours, device = tools
    weights = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    rows, default = tf.Variable(weights), tf.Variable([5.0, 6.0])
    keys, found = np.array([1, 7, 0, 8, 1]), np.array([True, False, True, False, True])
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(2,), device=device)
    table.insert(np.arange(2), weights)
    columns = ours.MutableHashTable("int64", {"w": ("float32", (2,))}, device=device)
    columns.insert(np.arange(2), {"w": weights})

    def second(lookup, source):
        """Of the sum of cubes; the outer tape sees the first derivatives."""

        def twice():
            with tf.GradientTape() as outer:
                outer.watch(source)
                with tf.GradientTape() as inner:
                    inner.watch(source)
                    loss = tf.reduce_sum(lookup() ** 3)
                first = inner.gradient(loss, source)
                total = tf.reduce_sum((first.values if isinstance(first, tf.IndexedSlices) else first) ** 2)
            return total, outer.gradient(total, source)

        return (tf.function(twice, autograph=False) if in_function else twice)()

    def reference():
        return tf.where(found[:, None], tf.gather(rows, np.where(found, keys, 0)), default)

    for lookup in (lambda: table.lookup(keys, default), lambda: columns.lookup(keys, {"w": default})["w"]):
        for got, expected in zip(second(lookup, default), second(reference, default), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5)
    total, slices = second(lambda: table.lookup(keys, default), table.resource_handle)
    # Each position has a slice of its own, 3 w^2, before they are summed up.
    np.testing.assert_allclose(total, np.sum((3 * weights[keys[found]] ** 2) ** 2), rtol=1e-5)
    expected = np.zeros((2, 2))
    np.add.at(expected, keys[found], 36 * weights[keys[found]] ** 3)
    np.testing.assert_allclose(dense(slices, 2, 2), expected, rtol=1e-5)


def test_training_touches_the_rows_of_the_batch_alone(tools):
    """Some steps of gradient descent, beside the same steps on a tf.Variable."""
    tf, ours, device = tools
    rng = np.random.default_rng(3)
    weights = rng.random((200, 4), np.float32)
    table = ours.MutableHashTable("int64", "float32", 0.0, value_shape=(4,), device=device, total_buckets=0)
    table.insert(np.arange(200), weights)
    variable = tf.Variable(weights)

    @tf.function
    def step(keys, targets):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(table.resource_handle)
            mine = tf.reduce_mean((tf.reduce_sum(table.lookup(keys), -1) - targets) ** 2)
            theirs = tf.reduce_mean((tf.reduce_sum(tf.gather(variable, keys), -1) - targets) ** 2)
        slices = tape.gradient(mine, table.resource_handle)
        table.insert_or_apply(slices.indices, -0.1 * slices.values, "add")
        gradient = tape.gradient(theirs, variable)
        variable.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        return mine, theirs

    touched = set()
    for _ in range(25):
        keys = rng.integers(0, 100, 32)
        touched |= set(keys.tolist())
        mine, theirs = step(tf.constant(keys), tf.constant(rng.random(32, np.float32)))
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    trained = table.lookup(np.arange(200)).numpy()
    np.testing.assert_allclose(trained, variable.numpy(), rtol=1e-4, atol=1e-6)
    untouched = sorted(set(range(200)) - touched)
    assert (trained[untouched] == weights[untouched]).all()
    assert table.size().numpy() == 200


def test_the_example(device):
    """A Keras model on a real, skewed stream; the example compares itself with a static embedding."""
    need_tensorflow(device)
    example = Path(__file__).parents[2] / "examples" / "tensorflow_embedding.py"
    done = subprocess.run(
        [sys.executable, "-P", str(example), "--device", platform_of(device), "--steps", "60"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"on {platform_of(device)}" in done.stdout
    assert "largest difference between a growing and a static row" in done.stdout
