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

    # The default is one for all keys, or one for each: then there is nothing to sum.
    missed = tf.where(tf.reshape(found, tf.concat([tf.shape(found), tf.ones_like(item)], 0)), tf.zeros_like(grad), grad)
    return [slices, None, tf.reduce_sum(missed, tf.range(tf.rank(grad) - tf.rank(default)))]
