"""The gradient of a lookup."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


@tf.RegisterGradient("GpuhashLookup")  # type: ignore[untyped-decorator]
def lookup_gradient(op: Any, grad: Any, _: Any) -> list[Any]:
    """What a change of the values looked up is of the table's rows, and of the default value.

    Of the table it is a tf.IndexedSlices, one slice per key found: its indices are keys, and a key that was looked up
    twice is there twice. ``insert_or_apply(slices.indices, slices.values, "add")`` sums them up.
    """
    _, keys, default = op.inputs
    found = op.outputs[1]
    item = tf.shape(grad)[tf.rank(found) :]
    rows = tf.reshape(grad, tf.concat([[-1], item], 0))
    hit = tf.reshape(found, [-1])
    flat_keys = tf.reshape(keys, tf.concat([[-1], tf.shape(keys)[tf.rank(found) :]], 0))
    slices = tf.IndexedSlices(tf.boolean_mask(rows, hit), tf.boolean_mask(flat_keys, hit))

    return [slices, None, _gradient_of_default(grad, found, default)]


@tf.RegisterGradient("GpuhashLookupOrInsert")  # type: ignore[untyped-decorator]
@tf.RegisterGradient("GpuhashChangeColumns")  # type: ignore[untyped-decorator]
def _refuse_gradient_of_insertion(*_: Any) -> list[Any]:
    raise NotImplementedError(
        "a gradient was asked for through an insertion (lookup_or_insert), which has none: insert "
        "tf.stop_gradient(values), and look the keys up by lookup() or find(), which have gradients"
    )


@tf.RegisterGradient("GpuhashFindColumns")  # type: ignore[untyped-decorator]
def find_columns_gradient(op: Any, _: Any, *grads: Any) -> list[Any]:
    """What a change of the values looked up is of the defaults. The table has none: one tensor cannot say which column
    a gradient is of. To train rows, watch the values found.
    """
    defaults = op.inputs[2:]
    return [None, None, *map(_gradient_of_default, grads, [op.outputs[0]] * len(defaults), defaults)]


def _gradient_of_default(grad: Any, found: Any, default: Any) -> Any:
    """None for integers, which have none."""
    if grad is None or not (default.dtype.is_floating or default.dtype.is_complex):
        return None
    ones = tf.ones(tf.rank(grad) - tf.rank(found), tf.int32)
    missed = tf.where(tf.reshape(found, tf.concat([tf.shape(found), ones], 0)), tf.zeros_like(grad), grad)
    # The default is one for all keys, or one for each: then there is nothing to sum.
    return tf.reduce_sum(missed, tf.range(tf.rank(grad) - tf.rank(default)))
