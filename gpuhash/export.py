"""All items of a table at once: as arrays of a framework, in the table's memory, or on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .arrays import NUMPY, Framework, Shape, default_stream, framework_like
from .dtypes import storage_dtype


def export(core: _core.Table, key_shape: Shape, like: Any, *, keys: bool = True, values: bool = True) -> list[Any]:
    """Arrays of all keys, or of all values where there are any, or of both, in the same order. Waits.

    Parameters
    ----------
    core, key_shape
        The table, and the shape of one of its keys.
    like
        The framework of the arrays: its name, one of its arrays, or None as for ``HashTable.keys``.
    keys, values
        What is asked for.
    """
    context = core.context
    host = context.platform == "cpu"
    framework = framework_like(like, host)
    arrays = [(core.key_dtype, key_shape)] if keys else []
    if values and core.value_dtype is not None:
        arrays.append((core.value_dtype, core.value_shape))
    stream = 0 if host else framework.stream(None, context.device_index)
    staged = framework is NUMPY and not host
    while True:
        size = core.size(stream)
        made = [
            Framework.empty(framework, None, dtype, (size, *shape), context, stream)
            if staged
            else framework.empty(None, dtype, (size, *shape), context, stream)
            for dtype, shape in arrays
        ]
        borrowed = [array for _, array in made]
        try:
            core.export_items(borrowed[0] if keys else None, borrowed[-1] if len(arrays) > keys else None, None, stream)
            break
        except ValueError:  # the table has another size since it was asked
            if core.size(stream) == size:
                raise
    if staged:
        results = []
        for (dtype, shape), source in zip(arrays, borrowed, strict=True):
            native, target = NUMPY.empty(None, dtype, (size, *shape), context, stream)
            context.copy(target, source, stream)
            results.append(native)
        return results
    if framework.private_streams and not host:
        context.synchronize(stream)
    return [framework.hand_over(native, dtype) for (native, _), (dtype, _) in zip(made, arrays, strict=True)]


def raw_items(core: _core.Table, key_shape: Shape, *, values: bool = True) -> list[_core.Array]:
    """All keys, and values if there are any, in the table's memory."""
    return [buffer.array() for buffer in export(core, key_shape, "buffer", values=values)]


def host_items(core: _core.Table, key_shape: Shape, *, values: bool = True) -> list[np.ndarray[Any, Any]]:
    """All keys, and values if there are any, on the host, as their dtypes' storage. Waits."""
    context = core.context
    stream = 0 if context.platform == "cpu" else default_stream(context.device_index)
    return [to_host(context, array, stream) for array in raw_items(core, key_shape, values=values)]


def to_host(context: _core.Context, array: _core.Array, stream: int) -> np.ndarray[Any, Any]:
    """A copy of the context's array on the host, as its dtype's storage. Waits."""
    host = np.empty(array.shape, storage_dtype(array.dtype))
    context.copy(_core.borrow(host), array, stream)
    return host
