"""Eager mode, as what makes objects of Python out of ops needs it."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.eager import context

__all__ = ["need_eager", "wait_for_ops"]


def need_eager(what: str) -> None:
    """RuntimeError in graphs of TensorFlow 1, which run nothing while they are built. Inside of a tf.function, ops in a
    tf.init_scope run at once.
    """
    with tf.init_scope():
        is_eager = tf.executing_eagerly()
    if not is_eager:
        raise RuntimeError(
            f"{what} was to be made in a graph of TensorFlow 1, where nothing runs until there is a session: make it "
            "in eager mode, without tf.compat.v1.disable_eager_execution() and outside of tf.Graph().as_default()"
        )


def wait_for_ops() -> None:
    """Waits until the ops that were called have run, where TensorFlow runs them asynchronously. Not for a GPU."""
    if context.is_async():
        context.async_wait()
