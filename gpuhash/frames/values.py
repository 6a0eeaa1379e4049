"""Columns of values beside keys: what they are, with their nulls, in the memory of a call's keys."""

from __future__ import annotations

import importlib
import itertools
from typing import Any, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays import nulls
from gpuhash.arrays.arrow_c import opened
from gpuhash.arrays.batch import Batch, Output, join, to_device
from gpuhash.arrays.dtypes import has_nan, infer_numbers, storage_dtype
from gpuhash.arrays.frameworks import ColumnFramework, framework_of
from gpuhash.arrays.strings import Strings

from .columns import numpy_times, split_frame
from .kinds import Kind, StandIn, Texts, Times


class Column(NamedTuple):
    """Values, ``[n]``, and which of them there are."""

    values: _core.Array | None  # None: of no column, rows are counted
    valid: _core.Array | None  # bool [n]; None: all
    kind: Kind


NO_COLUMN = Column(None, None, Kind("rows", "int64"))


def is_column(given: Any) -> bool:
    """Is it one column, or a collection of some? A sequence of numbers is one, and a list of strings."""
    if isinstance(given, dict):
        return False
    if not isinstance(given, (list, tuple)):
        return True
    return bool(given) and (isinstance(given[0], (int, float, complex, np.generic)) or is_text(given))


def take_column(
    given: Any, batch: Batch, count: int, what: str, *, skipna: bool, stand_in: StandIn, before: Kind | None = None
) -> Column:
    """A column of ``count`` values where the batch works, brought there from the host if need be.

    ``skipna``: NaN is a null. ``stand_in``: what stands for strings. ``before``: the kind of values that came before,
    which that of a column of no dtype is, too; it has no entries, or nulls alone.

    Raises
    ------
    TypeError
        For what is no array of a dtype that tables take, no strings and no times.
    ValueError
        For another length or shape, and for memory of another device.
    """
    given = opened(given)
    if before is not None and nulls.library_of(given) is not None and nulls.is_untyped(given):
        _check_shape((len(given),), count, what)
        zeros = np.zeros(count, storage_dtype(before.dtype))
        return Column(batch.lend(zeros, before.dtype), _lend(np.zeros(count, bool), batch), before)
    if (strings := Strings.read(given, what)) is not None:
        _check_shape(strings.shape, count, what)
        kind, codes = Texts.number(strings, stand_in, what, given)
        return Column(_bring(codes, batch), None if strings.valid is None else _lend(strings.valid, batch), kind)
    if (found := numpy_times(given)) is not None:
        times, label = found
        nat = np.isnat(times)
        _check_shape(times.shape, count, what)
        integers = _lend(np.ascontiguousarray(times).view(np.int64), batch)
        return Column(integers, _lend(~nat, batch) if nat.any() else None, Times(label, times.dtype, given))
    values, valid = _borrow(given, batch, what)
    for array in (values, valid):
        if array is not None:
            _check_shape(array.shape, count, what)
    if skipna:
        valid = _without_nan(values, valid, batch)
    return Column(values, valid, Kind(values.dtype, values.dtype))


def _check_shape(shape: tuple[int, ...], count: int, what: str) -> None:
    if shape != (count,):
        raise ValueError(f"the {what} have shape {shape}, expected {(count,)}, one value for each key")


def _without_nan(values: _core.Array, valid: _core.Array | None, batch: Batch) -> _core.Array | None:
    """Which values there are, if NaN is none."""
    if not has_nan(values.dtype):
        return valid
    numbers = batch.new("bool", values.shape)
    _core.mark_numbers(batch.context, values, valid, numbers, batch.stream)
    if batch.context.platform == "cpu" and _core.find_invalid(batch.context, numbers, batch.stream) == values.shape[0]:
        return None  # folds without a mask are faster; to see it on a GPU would take a wait
    return numbers


def _borrow(given: Any, batch: Batch, what: str) -> tuple[_core.Array, _core.Array | None]:
    if isinstance(given, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(given)
        return _lend(np.ascontiguousarray(given.data), batch), _lend(~masked, batch) if masked.any() else None
    framework = framework_of(given)
    if framework.python:
        return _lend(infer_numbers(given, what), batch), None
    if isinstance(framework, ColumnFramework):
        numbers, mask, whole = nulls.with_nulls(given)
        if whole:
            raise TypeError(f"the {what} are {nulls.describe(given)}, whose entries are no numbers: give numbers")
        return _lend(np.ascontiguousarray(numbers), batch), None if mask is None else _lend(~mask, batch)
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
    return _bring(_core.borrow(host), batch)


def _bring(array: _core.Array, batch: Batch) -> _core.Array:
    return to_device(array, batch.context, batch.stream, "values")[0]


def need_alike(first: Any, other: Any, what: str) -> None:
    """Can columns, frames or collections of columns lie one behind the other?

    Raises
    ------
    TypeError
        Where they are of different libraries, names or dtypes.
    ValueError
        Where their rows have different shapes, or they lie on different devices.
    """
    frames = split_frame(first), split_frame(other)
    ours, theirs = (given if frame is None else frame for given, frame in zip((first, other), frames, strict=True))
    if isinstance(ours, (dict, list, tuple)) or isinstance(theirs, (dict, list, tuple)):
        if type(first) is not type(other) or is_text(ours) != is_text(theirs):
            raise TypeError(f"the {what} are a {_form(first)} here and a {_form(other)} there: give them in one form")
        if is_text(ours):
            return
        if isinstance(ours, dict):
            if ours.keys() != theirs.keys():
                raise TypeError(f"the {what} have the columns {[*ours]} here and {[*theirs]} there: give the same ones")
            pairs = [(ours[name], theirs[name], f"{what} {name!r}") for name in ours]
        else:
            if len(ours) != len(theirs):
                raise TypeError(f"the {what} are {len(ours)} columns here and {len(theirs)} there: give the same ones")
            pairs = [(*pair, f"{what} {number}") for number, pair in enumerate(zip(ours, theirs, strict=True))]
        for pair in pairs:
            need_alike(*pair)
        return
    names = [framework_of(part).name for part in (first, other)]
    if names[0] != names[1]:
        raise TypeError(f"the {what} come from {names[0]} and {names[1]}: give them in one form")
    dtypes = [str(getattr(part, "dtype", getattr(part, "type", ""))) for part in (first, other)]
    if dtypes[0] != dtypes[1] and getattr(getattr(first, "dtype", None), "kind", "") not in "US":
        raise TypeError(f"the {what} are {dtypes[0]} and {dtypes[1]}: convert them to one dtype")
    shapes = [tuple(getattr(part, "shape", ()))[1:] for part in (first, other)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"the {what} have rows of shape {shapes[0]} here and {shapes[1]} there: give the same ones")
    devices = [str(getattr(part, "device", "")) for part in (first, other)]
    if devices[0] != devices[1]:
        raise ValueError(f"the {what} are on {devices[0]} and {devices[1]}: move them to one")


def _form(given: Any) -> str:
    if is_text(given):
        return "list of strings"
    library = type(given).__module__.partition(".")[0]
    return type(given).__name__ if library == "builtins" else f"{type(given).__name__} of {library}"


def is_text(given: Any) -> bool:
    """Is it a list of strings?"""
    return isinstance(given, list) and bool(given) and isinstance(given[0], (str, bytes))


def concatenate(parts: list[Any], what: str) -> Any:
    """Columns, frames or collections of columns that are alike, one behind the other, in the form of the first one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if (frame := split_frame(first)) is not None:
        return _concatenate_frames(parts, list(frame))
    if isinstance(first, dict):
        return {name: concatenate([part[name] for part in parts], what) for name in first}
    if is_text(first):
        return list(itertools.chain(*parts))
    if isinstance(first, (list, tuple)):
        return type(first)(concatenate(list(columns), what) for columns in zip(*parts, strict=True))
    name = framework_of(first).name
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


def _concatenate_frames(frames: list[Any], names: list[Any]) -> Any:
    first = frames[0]
    library = type(first).__module__.partition(".")[0]
    module: Any = importlib.import_module(library)
    if library == "pandas":
        return module.concat(frames, ignore_index=True)
    ordered = [frame.select(names) for frame in frames]
    if library == "polars":
        return module.concat(ordered)
    if isinstance(first, module.Table):
        return module.concat_tables(ordered)
    batches = module.Table.from_batches(ordered).combine_chunks().to_batches()
    return batches[0] if batches else first


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
