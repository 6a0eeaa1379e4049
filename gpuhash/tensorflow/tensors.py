"""Named tensors, shared with Python and every framework in the process: ``gpuhash.store``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gpuhash import _core

from .library import ops


def save_tensor(name: Any, tensor: Any) -> Any:
    """Keeps a tensor under a name, in the place of what had it before; without a copy.

    Parameters
    ----------
    name
        A string, or a scalar string tensor.
    tensor
        A tensor of any dtype and shape, on any device. In a graph it is kept when the op runs.

    Returns
    -------
    None in eager mode, the operation in a graph. Does not wait for the device.
    """
    return ops.gpuhash_save_tensor(name, tensor)


def get_tensor(name: Any, dtype: Any = None, shape: Any = None) -> Any:
    """The tensor of that name, whoever saved it, without a copy; host memory that is not aligned to 64 bytes is copied.

    Parameters
    ----------
    name
        A string, or a scalar string tensor.
    dtype
        Its dtype. In eager mode it may be left out, for a tensor that lies where the op runs.
    shape
        Its static shape, as far as it is known.

    Returns
    -------
    A tensor. Does not wait for the device.

    Raises
    ------
    tf.errors.NotFoundError
        Where there is none; ``gpuhash.store[name]`` raises KeyError instead.
    tf.errors.InvalidArgumentError
        Where it is of another dtype or shape, or lies on another device than the op.
    """
    if dtype is None:
        if not tf.executing_eagerly() or not isinstance(name, str):
            raise TypeError("dtype is missing: in a graph, and for names in tensors, it cannot be known beforehand")
        found = _core.find_tensor(name)
        # Of dtypes that tables have not, strings are those that people keep. Where there is no tensor, the op says so.
        dtype = tf.string if found is None or found.dtype is None else found.dtype
    return ops.gpuhash_get_tensor(name, dtype=dtype, shape=tf.TensorShape(shape))


def delete_tensor(name: Any) -> Any:
    """Gives up the name; what others hold of the tensor lives on.

    Returns
    -------
    A scalar bool tensor: was there one?
    """
    return ops.gpuhash_delete_tensor(name)
