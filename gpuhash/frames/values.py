"""Columns of values beside keys: what they are, with their nulls, in the memory of a call's keys."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays import nulls
from gpuhash.arrays.batch import Batch, Output, join, to_device
from gpuhash.arrays.dtypes import ITEMSIZES, infer_numbers
from gpuhash.arrays.frameworks import ColumnFramework, framework_of


class Column(NamedTuple):
    """Values, ``[n]``, and which of them there are."""

    values: _core.Array | None  # None: of no column, rows are counted
    valid: _core.Array | None  # bool [n]; None: all


NO_COLUMN = Column(None, None)


def is_column(given: Any) -> bool:
    """Is it one column, or a collection of some? A sequence of numbers is one."""
    if isinstance(given, dict):
        return False
    if not isinstance(given, (list, tuple)):
        return True
    return bool(given) and isinstance(given[0], (int, float, complex, np.generic))


def take_column(given: Any, batch: Batch, count: int, what: str) -> Column:
    """A column of ``count`` values where the batch works, brought there from the host if need be.

    Raises
    ------
    TypeError
        For what is no array of a dtype that tables take.
    ValueError
        For another length or shape, and for memory of another device.
    """
    values, valid = _borrow(given, batch, what)
    for array in (values, valid):
        if array is not None and array.shape != (count,):
            raise ValueError(f"the {what} have shape {array.shape}, expected {(count,)}, one value for each key")
    return Column(values, valid)


def _borrow(given: Any, batch: Batch, what: str) -> tuple[_core.Array, _core.Array | None]:
    if isinstance(given, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(given)
        return _lend(np.ascontiguousarray(given.data), batch), _lend(~masked, batch) if masked.any() else None
    framework = framework_of(given)
    if framework.python:
        return _lend(infer_numbers(given, what), batch), None
    if isinstance(framework, ColumnFramework):
        numbers, mask, whole = nulls.split_nulls(given)
        if whole:
            raise TypeError(f"the {what} are {nulls.describe(given)}, whose entries are no numbers: give numbers")
        if mask is None or numbers.ndim != 1:
            return _lend(np.ascontiguousarray(numbers), batch), None
        filled = np.zeros(len(mask), numbers.dtype)
        filled[~mask] = numbers
        return _lend(filled, batch), _lend(~mask, batch)
    on_host = batch.context.platform == "cpu"
    if framework.private_streams and not on_host:
        framework.wait_until_ready(given)
    try:
        array = framework.borrow(given, None if on_host else batch.stream)
    except TypeError as error:
        raise TypeError(f"the {what}: {error}") from None
    if array.platform == "cpu":
        return to_device(array, batch.context, batch.stream, what)[0], None
    if on_host or array.device_index != batch.context.device_index:
        raise ValueError(
            f"the keys are on {batch.context.device} and the {what} on {array.platform}:{array.device_index}: move one "
            "to the other"
        )
    if framework is not batch.framework:
        join(batch, framework, given)
    return array, None


def _lend(host: np.ndarray[Any, Any], batch: Batch) -> _core.Array:
    return to_device(_core.borrow(host), batch.context, batch.stream, "values")[0]


def concatenate(parts: list[Any], what: str) -> Any:
    """Columns, or lists of such, one behind the other, in the form in which they were given.

    Raises
    ------
    TypeError
        Where they are of different libraries or dtypes.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, (list, tuple)):
        if any(not isinstance(part, (list, tuple)) or len(part) != len(first) for part in parts):
            raise TypeError(f"the {what} are {len(first)} columns here and another number there: give the same ones")
        return [concatenate(list(columns), what) for columns in zip(*parts, strict=True)]
    frameworks = [framework_of(part) for part in parts]
    if any(framework is not frameworks[0] for framework in frameworks):
        names = dict.fromkeys(framework.name for framework in frameworks)
        raise TypeError(f"the {what} come from {' and '.join(names)}: give them in one form")
    dtypes = dict.fromkeys(str(getattr(part, "dtype", getattr(part, "type", ""))) for part in parts)
    if len(dtypes) > 1 and getattr(getattr(first, "dtype", None), "kind", "") not in "US":
        raise TypeError(f"the {what} are {' and '.join(dtypes)}: convert them to one dtype")
    name = frameworks[0].name
    if name == "numpy":
        return (np.ma.concatenate if any(map(np.ma.isMA, parts)) else np.concatenate)(parts)
    if name == "pandas":
        pandas: Any = importlib.import_module(name)
        return pandas.concat([pandas.Series(part) for part in parts], ignore_index=True)
    if name == "polars":
        return importlib.import_module(name).concat(parts)
    if name == "pyarrow":
        chunks = [chunk for part in parts for chunk in getattr(part, "chunks", [part])]
        return importlib.import_module(name).chunked_array(chunks, type=first.type).combine_chunks()
    return _concatenate_numbers(parts, what)


def _concatenate_numbers(parts: list[Any], what: str) -> Any:
    batches = [Batch.of_array(part, None, what) for part in parts]
    whole = batches[0]
    for batch in batches:
        if batch.context.device != whole.context.device:
            raise ValueError(f"the {what} are on {whole.context.device} and {batch.context.device}: move them to one")
    shape = (sum(batch.shape[0] for batch in batches), *whole.shape[1:])
    out = Output(whole, whole.array.dtype, shape)
    _core.concatenate(whole.context, [batch.array for batch in batches], out.array, whole.stream)
    whole.finish()
    return out.result(whole)


def new_array(batch: Batch, dtype: str, length: int) -> _core.Array:
    """Memory of the call's own."""
    return _core.Buffer(batch.context, dtype, (length,), batch.stream).array()


def to_host(array: _core.Array, batch: Batch) -> np.ndarray[Any, Any]:
    """A copy as a NumPy array of the dtype's storage, ``[n]``. Waits."""
    host = np.empty(array.shape, f"V{ITEMSIZES[array.dtype]}" if array.dtype == "bfloat16" else array.dtype)
    batch.context.copy(_core.borrow(host), array, batch.stream)
    return host
