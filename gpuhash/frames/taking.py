"""take: entries of many columns by one index."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import encode_values
from gpuhash.arrays.batch import Batch, Output, join, to_device
from gpuhash.arrays.frameworks import framework_of
from gpuhash.arrays.nulls import library_of

from .columns import Column, check_columns, read_column, split_frame, take_foreign
from .values import is_column

_Array = np.ndarray[Any, Any]


def take(columns: Any, indices: Any, *, fill: Any = None) -> Any:
    """Entries of columns at given positions, in one call for all of them.

    Parameters
    ----------
    columns
        An array ``[n, *shape]`` of any framework, on the host or on a GPU, a column of pandas, polars or pyarrow, an
        array or list of strings; or a list, tuple or dict of such, or a frame. All have ``n`` entries.
    indices
        int64 ``[m]`` on the arrays' device or on the host, such as ``join`` gives them, or Python integers. Negative
        ones stand for no entry.
    fill
        What negative indices give in arrays: one number, which each array's dtype has to hold. None: an error. Columns
        of pandas, polars and pyarrow, strings, times and masked arrays have nulls there, and take no ``fill``.

    Returns
    -------
    Arrays ``[m, *shape]``, columns or a frame, in the form in which the columns were given. Waits for the GPU, to see
    that no index is too large.

    Raises
    ------
    IndexError
        For an index of ``n`` or more, and for negative ones where there is no ``fill``.
    TypeError, ValueError, OverflowError
        For what is no column, other indices, columns of different lengths or devices, and a ``fill`` that does not fit.
    MemoryError
        Where there is no room for the result.

    Examples
    --------
    >>> pairs = gpuhash.join(np.array([7, 5, 6]), np.array([5, 7]), "left")
    >>> gpuhash.take(np.array([1.5, 2.5]), pairs.right, fill=np.nan)
    array([2.5, 1.5, nan])
    """
    if library_of(columns) is not None:
        split_frame(columns)  # which says what is no frame yet
        return _take_foreign(columns, _host_indices(indices), fill)
    if isinstance(columns, dict):
        return dict(zip(columns, _take_all(list(columns.values()), [*columns], indices, fill), strict=True))
    if is_column(columns):
        return _take_all([columns], [""], indices, fill)[0]
    taken = _take_all(list(columns), [*range(len(columns))], indices, fill)
    return tuple(taken) if isinstance(columns, tuple) else taken


def _take_all(columns: list[Any], names: list[Any], indices: Any, fill: Any) -> list[Any]:
    """The taken columns, in order."""
    foreign = [library_of(column) is not None for column in columns]
    taken: list[Any] = [None] * len(columns)
    if any(foreign):
        positions = _host_indices(indices)
        for number, column in enumerate(columns):
            if foreign[number]:
                taken[number] = _take_foreign(column, positions, fill)
    ours = [number for number, is_foreign in enumerate(foreign) if not is_foreign]
    if ours:
        read = [read_column(columns[number], f"column {names[number]!r}") for number in ours]
        check_columns(read, [names[number] for number in ours], "columns")
        for number, answer in zip(ours, _take_arrays(read, indices, fill), strict=True):
            taken[number] = answer()
    return taken


def _take_arrays(columns: list[Column], indices: Any, fill: Any) -> list[Callable[[], Any]]:
    first = columns[0]
    index = _indices_for(first.batch, indices)
    arrays: list[tuple[_core.Array, _core.Array | None, _core.Array]] = []
    answers: list[Callable[[], Any]] = []
    for column in columns:
        if column.offsets is not None or column.valid is not None or column.kind != column.dtype:
            answers.append(_of_host(column, index, fill))
            continue
        out = Output(column.batch, column.dtype, (index.shape[0], *column.shape))
        arrays.append((column.array, _fill_for(column, fill), out.array))
        answers.append(partial(out.result, column.batch))
    if arrays:
        context, stream = first.batch.context, first.batch.stream
        if fill is None:
            _need_no_negative(first.batch, index)
        _core.take(context, arrays, first.length, index, stream)
        for column in columns:
            column.batch.finish()
    return answers


def _of_host(column: Column, index: _core.Array, fill: Any) -> Callable[[], Any]:
    """Of strings, times and masked entries, which are on the host."""
    _need_nulls(fill, f"columns of {column.kind}")
    _need_small(column.batch.to_host(index), column.length)
    return partial(column.form, column.batch, column, index)


def _need_nulls(fill: Any, what: str) -> None:
    if fill is not None:
        raise TypeError(f"fill={fill!r} was given, and {what} have nulls where an index is negative: fill these after")


def _need_small(positions: _Array, count: int) -> None:
    if len(positions) and positions.max() >= count:
        raise IndexError(f"an index is {positions.max()}, and the columns have {count} entries")


def _need_no_negative(batch: Batch, index: _core.Array) -> None:
    context, stream = batch.context, batch.stream
    if context.platform == "cpu" and _core.Pairs(context, index, None, None, "semi", stream).count == index.shape[0]:
        return  # counted in less time than it takes to write a mask
    mask = batch.new("bool", index.shape)
    _core.mark_found(context, index, False, mask, stream)
    at = _core.find_invalid(context, mask, stream)
    if at != index.shape[0]:
        raise IndexError(f"index {at} is negative, which stands for no entry: give fill=, or leave such out")


def _fill_for(column: Column, fill: Any) -> _core.Array | None:
    if fill is None:
        return None
    value = np.broadcast_to(encode_values(fill, column.dtype, (), "fill"), column.shape).copy()
    return column.batch.lend(value, column.dtype)


def _indices_for(batch: Batch, indices: Any) -> _core.Array:
    """int64 ``[m]`` in the batch's memory."""
    framework = framework_of(indices)
    if framework.python:
        indices, framework = _host_indices(indices), framework_of(np.empty(0))
    array = batch.borrow(indices, framework)
    if array.dtype != "int64" or len(array.shape) != 1:
        raise TypeError(f"the indices are {array.dtype} of shape {array.shape}, expected int64 of one dimension")
    array, staged = to_device(array, batch.context, batch.stream, "indices")
    if not staged and framework is not batch.framework:
        join(batch, framework, indices)
    return array


def _host_indices(indices: Any) -> _Array:
    """The same as a NumPy array."""
    framework = framework_of(indices)
    if framework.python:
        host = np.asarray(indices)
        if host.dtype.kind == "u" and host.size:  # integers beyond int64
            raise IndexError(f"an index is {host.max()}, which is beyond all columns")
        host = host.astype(np.int64) if host.dtype.kind == "i" or not host.size else host
    else:
        borrowed = Batch.of_array(indices, None, "indices")
        host = borrowed.to_host(borrowed.array)
    if host.dtype != np.int64 or host.ndim != 1:
        raise TypeError(f"the indices are {host.dtype} of shape {host.shape}, expected int64 of one dimension")
    return host


def _take_foreign(column: Any, positions: _Array, fill: Any) -> Any:
    """Entries of a column or frame of pandas, polars or pyarrow, by that library; null at negative positions."""
    count = len(column)
    library = library_of(column)
    assert library is not None
    _need_nulls(fill, f"the columns of {library}")
    _need_small(positions, count)
    negative = positions < 0
    if not negative.any():
        return take_foreign(column, positions)
    if library == "pandas":
        known = np.where(negative, -1, positions)
        if not hasattr(column, "reset_index"):
            return _take_index(column, known)
        return column.reset_index(drop=True).reindex(known).reset_index(drop=True)
    module: Any = importlib.import_module(library)
    if library == "pyarrow":
        return column.take(module.array(positions, mask=negative))
    index = module.Series(positions).set(module.Series(negative), None)
    return column.gather(index) if isinstance(column, module.Series) else column.select(module.all().gather(index))


def _take_index(index: Any, positions: _Array) -> Any:
    """Entries of an Index of pandas, as another one; null at -1."""
    if hasattr(index, "levels"):
        return index.take(positions, allow_fill=True, fill_value=np.nan)
    entries = index.to_series(index=range(len(index))).reindex(positions)
    return importlib.import_module("pandas").Index(entries, name=index.name)
