"""The gradient of a lookup."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


@tf.RegisterGradient("GpuhashLookup")  # type: ignore[untyped-decorator]
def lookup_gradient(op: Any, _: Any, *grads: Any) -> list[Any]:
    """What a change of the values looked up is of the table's rows, and of the default values.

    Of a table with a single value per key it is a tf.IndexedSlices, one slice per key found: its indices are keys, and
    a key that was looked up twice is there twice. ``insert_or_apply(slices.indices, slices.values, "add")`` sums them
    up. Of one with named columns there is none: one tensor cannot say which column a gradient is of.
    """
    _, keys, *defaults = op.inputs
    found = op.outputs[0]
    of_table = None
    if op.get_attr("names") == [b""] and grads[0] is not None:
        item = tf.shape(grads[0])[tf.rank(found) :]
        rows = tf.reshape(grads[0], tf.concat([[-1], item], 0))
        hit = tf.reshape(found, [-1])
        flat_keys = tf.reshape(keys, tf.concat([[-1], tf.shape(keys)[tf.rank(found) :]], 0))
        of_table = tf.IndexedSlices(tf.boolean_mask(rows, hit), tf.boolean_mask(flat_keys, hit))
    return [of_table, None, *map(_gradient_of_default, grads, [found] * len(defaults), defaults)]


@tf.RegisterGradient("GpuhashChange")  # type: ignore[untyped-decorator]
@tf.RegisterGradient("GpuhashErasure")  # type: ignore[untyped-decorator]
def _refuse_gradient_of_change(*_: Any) -> list[Any]:
    raise NotImplementedError(
        "a gradient was asked for through a change of a table (lookup_or_insert, pop), which has none: insert "
        "tf.stop_gradient(values), and look the keys up by lookup() or find(), which have gradients"
    )


def _gradient_of_default(grad: Any, found: Any, default: Any) -> Any:
    """None for integers, which have none."""
    if grad is None or not (default.dtype.is_floating or default.dtype.is_complex):
        return None
    ones = tf.ones(tf.rank(grad) - tf.rank(found), tf.int32)
    missed = tf.where(tf.reshape(found, tf.concat([tf.shape(found), ones], 0)), tf.zeros_like(grad), grad)
    # The default is one for all keys, or one for each: then there is nothing to sum.
    return tf.reduce_sum(missed, tf.range(tf.rank(grad) - tf.rank(default)))
