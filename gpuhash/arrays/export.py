"""All items of a table at once, as arrays of a framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuhash import _core

from .dtypes import storage_dtype
from .frameworks import NUMPY, Framework, Shape, framework_like

_PAGE_BYTES = 4096


def export(
    core: _core.Table,
    context: _core.Context,
    host: bool,
    like: Any,
    arrays: Sequence[tuple[str, Shape]],
    fill: Callable[[list[_core.Array], int], int],
) -> list[Any]:
    """Arrays of all keys, of all values, or of both, in the same order. Waits.

    Parameters
    ----------
    core, context, host
        The table, where it is, and whether that is the host.
    like
        The framework of the arrays: its name, one of its arrays, or None as for ``HashTable.keys``.
    arrays
        What is asked for, as dtype and shape of one item of each.
    fill
        Called with the arrays in the table's memory and a stream; returns the table's size.
    """
    framework = framework_like(like, host)
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
        if fill(borrowed, stream) == size:  # otherwise another thread has changed it since it was asked
            break
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


def export_apart(
    core: _core.Table, arrays: Sequence[tuple[str, Shape]], fill: Callable[[list[_core.Array], int], int]
) -> list[np.ndarray[Any, Any]]:
    """As ``export`` of a host table, into NumPy arrays whose memory is there before the table is asked.

    Other threads' calls on the table wait while it fills the arrays. The system gives memory when it is first written,
    which takes longer than to copy the items; so it is written before. None of the dtypes is bfloat16.
    """
    room, is_first = core.size(0), True
    while True:
        made = [NUMPY.empty(None, dtype, (room, *shape), core.context, 0) for dtype, shape in arrays]
        if is_first:
            for native, _ in made:
                native.reshape(-1).view(np.uint8)[::_PAGE_BYTES] = 0
        size = fill([array for _, array in made], 0)
        if size <= room:  # all were written
            return [native[:size] for native, _ in made]
        # Others insert meanwhile, perhaps all the time: with some room for these, and at once.
        room, is_first = size + size // 4, False


def to_host(context: _core.Context, array: _core.Array, stream: int) -> np.ndarray[Any, Any]:
    """A copy of the context's array on the host, as its dtype's storage. Waits."""
    host = np.empty(array.shape, storage_dtype(array.dtype))
    context.copy(_core.borrow(host), array, stream)
    return host
