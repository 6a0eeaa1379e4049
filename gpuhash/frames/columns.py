"""The columns of keys: what each is in memory, and in which form its entries are given back."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays import nulls
from gpuhash.arrays.arrow_c import opened
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.dtypes import ITEMSIZES, storage_dtype
from gpuhash.arrays.frameworks import ColumnFramework, Shape, framework_of
from gpuhash.arrays.strings import Strings

_Array = np.ndarray[Any, Any]

#: Data, numbers per entry, validity and offsets of a column of `_core.KeyRows`.
Part = tuple[_core.Array, int, _core.Array | None, _core.Array | None]
#: What a column's entries are given back as, by the positions of these: an index of the keys' batch, int64 ``[m]``.
#: Negative ones give nulls, where the form has any.
Form = Callable[[Batch, "Column", _core.Array], Any]


#: What the libraries call them.
_TIMES_OF_DAY = ("Time", "time32", "time64")

#: The kind of a column that has no entries but nulls, if any, and no dtype.
NO_DTYPE = "nulls"


class Column(NamedTuple):
    """A column of keys, dense, in the memory of its batch."""

    batch: Batch
    array: _core.Array  # [n, *shape], or uint8 bytes of strings
    shape: Shape  # of an entry
    valid: _core.Array | None  # bool [n], False for nulls
    offsets: _core.Array | None  # int64 [n + 1], of strings
    form: Form
    kind: str  # what dtypes must agree: "int64", "datetime64[us]", ...

    @property
    def dtype(self) -> str:
        return self.array.dtype

    @property
    def elements(self) -> int:
        """Numbers per entry."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of an entry."""
        return self.elements * ITEMSIZES[self.dtype]

    @property
    def is_plain(self) -> bool:
        """Numbers without nulls?"""
        return self.valid is None and self.offsets is None

    @property
    def length(self) -> int:
        """Entries, n."""
        return self.array.shape[0] if self.offsets is None else self.offsets.shape[0] - 1

    @property
    def has_dtype(self) -> bool:
        return self.kind != NO_DTYPE

    def like(self, other: Column) -> Column:
        """As many nulls as a column of no dtype, which is on the host, has; in the form of another one."""
        numbers = np.zeros((self.length, *other.shape), storage_dtype(other.dtype))
        array = self.batch.lend(numbers if other.offsets is None else np.empty(0, np.uint8), other.dtype)
        offsets = None if other.offsets is None else _core.borrow(np.zeros(self.length + 1, np.int64))
        valid = _core.borrow(np.zeros(self.length, bool)) if self.length else None
        return self._replace(array=array, shape=other.shape, valid=valid, offsets=offsets, kind=other.kind)

    def part(self) -> Part:
        """The column as `_core.KeyRows` takes it."""
        return self.array, self.elements, self.valid, self.offsets


def read_column(column: Any, what: str) -> Column:
    """An array, or a column of a library, where it lies; numbers that have to be converted are copied.

    Raises
    ------
    TypeError, ValueError, OverflowError
        For what holds no numbers, has no axis 0, or entries of no bytes.
    """
    column = opened(column)
    if nulls.library_of(column) == "pandas" and hasattr(column, "levels"):
        raise TypeError(f"the {what} are a pandas MultiIndex, which is no column: call .to_frame(index=False)")
    if not isinstance(column, (str, bytes)) and (strings := Strings.read(column, what)) is not None:
        if len(strings.shape) != 1:
            raise ValueError(f"the {what} are strings of shape {strings.shape}: give them in one dimension")
        return column_of_strings(strings, what)
    framework = framework_of(column)
    if (times := read_times(column, what)) is not None:
        return times
    if isinstance(framework, ColumnFramework):
        return _read_foreign(column, framework, what)
    if isinstance(column, np.ma.MaskedArray):
        return _read_masked(column, what)
    batch = Batch.of_array(column, 0, what)
    kind = NO_DTYPE if framework.python and batch.array.shape[0] == 0 else batch.array.dtype
    return Column(batch, batch.array, batch.key_shape, None, None, give_array, kind)


def read_times(column: Any, what: str) -> Column | None:
    """Dates, times and durations of NumPy, pandas, polars and pyarrow as their integers; None for anything else."""
    if isinstance(column, np.ma.MaskedArray):
        return None
    if isinstance(column, np.ndarray):
        return _read_times(column, what) if column.dtype.kind in "mM" else None
    framework = _framework_of_column(column)
    if framework is not None and _times_of(column, framework) is not None:
        return _read_foreign(column, framework, what)
    return None


def numpy_times(column: Any) -> tuple[_Array, str] | None:
    """The same as NumPy's dates, times and durations, with NaT for nulls, and their kind; also of masked arrays."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "mM":
            return None
        times = np.ma.getdata(column).astype(column.dtype.newbyteorder("="), copy=np.ma.isMA(column))
        if np.ma.isMA(column):
            times[np.ma.getmaskarray(column)] = np.array("NaT", times.dtype)
        return times, str(times.dtype)
    framework = _framework_of_column(column)
    found = None if framework is None else _times_of(column, framework)
    return None if found is None else (found, _time_kind(column, found))


def _framework_of_column(column: Any) -> ColumnFramework | None:
    try:
        framework = framework_of(column)
    except TypeError:
        return None
    return framework if isinstance(framework, ColumnFramework) else None


def split_frame(frame: Any) -> dict[str, Any] | None:
    """The columns of a frame or table of pandas, polars or pyarrow by their names; None for anything else.

    ValueError where two have one name, TypeError for a query that has not been run.
    """
    library = type(frame).__module__.partition(".")[0]
    if library == "polars" and hasattr(frame, "collect"):
        raise TypeError("a polars LazyFrame was given, which has no columns yet: call .collect()")
    if library not in nulls.LIBRARIES or not hasattr(frame, "columns"):
        return None
    if library == "pandas":
        columns = [(name, frame.iloc[:, number]) for number, name in enumerate(frame.columns)]
    elif library == "polars":
        columns = [(column.name, column) for column in frame.get_columns()]
    else:
        columns = list(zip(frame.schema.names, frame.columns, strict=True))
    names = dict(columns)
    if len(names) != len(columns):
        raise ValueError(
            f"{nulls.describe(frame)} has {len(columns)} columns and {len(names)} names: give each its own"
        )
    return names


def take_foreign(column: Any, positions: _Array) -> Any:
    """Entries of a column or a frame of pandas, polars or pyarrow, as one of the same kind."""
    library = type(column).__module__.partition(".")[0]
    if library == "polars":
        return column[positions]
    taken = column.take(positions)
    return taken.reset_index(drop=True) if hasattr(taken, "reset_index") else taken


def give_array(batch: Batch, column: Column, index: _core.Array) -> Any:
    """The entries as an array of the column's framework."""
    column.batch.resume()
    taken = take_rows(batch, column, index)
    column.batch.finish()
    return taken.result(column.batch)


def take_rows(batch: Batch, column: Column, index: _core.Array) -> Output:
    """The same, while the work may still be under way."""
    taken = Output(column.batch, column.dtype, (index.shape[0], *column.shape))
    _core.take(batch.context, [(column.array, None, taken.array)], column.length, index, batch.stream, trusted=True)
    return taken


def _without_negative(entries: _Array, positions: _Array) -> _Array:
    """Entries at positions, masked at negative ones."""
    taken: _Array = (entries if len(entries) else np.zeros((1, *entries.shape[1:]), entries.dtype))[positions]
    negative = positions < 0
    if not negative.any():
        return taken
    masked = np.ma.MaskedArray(taken)
    masked[negative] = np.ma.masked
    return masked


def check_columns(columns: Sequence[Column], names: Sequence[Any], what: str) -> None:
    """ValueError unless all have one length and lie on one device; makes all work on the stream of the first one."""
    first = columns[0]
    for name, column in zip(names, columns, strict=True):
        if column.length != first.length:
            raise ValueError(
                f"the columns of the {what} have different lengths: {_label(names[0])} has {first.length} entries and "
                f"{_label(name)} {column.length}"
            )
        if column.batch.context.device != first.batch.context.device:
            raise ValueError(
                f"the columns of the {what} are on different devices: {_label(names[0])} on "
                f"{first.batch.context.device} and {_label(name)} on {column.batch.context.device}; move one to the "
                "other"
            )
        first.batch.share_stream(column.batch)


def _label(name: Any) -> str:
    return f"column {name!r}"


def _host_column(array: _Array, valid: _Array | None, form: Form, kind: str, what: str) -> Column:
    batch = Batch.of_array(array, 0, what)
    mask = None if valid is None else _core.borrow(np.ascontiguousarray(valid))
    return Column(batch, batch.array, batch.key_shape, mask, None, form, kind)


def column_of_strings(strings: Strings, what: str) -> Column:
    """Text or bytes, in the host's memory."""

    def give(batch: Batch, column: Column, index: _core.Array) -> Any:
        return strings.give_back(strings.take(batch.to_host(index)))

    batch = Batch.of_array(strings.offsets, None, what)
    valid = None if strings.valid is None else _core.borrow(strings.valid)
    kind = "text" if strings.text else "bytes"
    return Column(batch, _core.borrow(strings.data), (), valid, batch.array, give, kind)


def _read_masked(column: np.ma.MaskedArray[Any, Any], what: str) -> Column:
    if column.ndim != 1:
        raise ValueError(f"the {what} are a masked array of shape {column.shape}: give one dimension, or no mask")
    mask = np.ma.getmaskarray(column)
    data = np.asarray(column.data)
    kind = str(data.dtype)
    if data.dtype.kind in "mM":
        mask = mask | np.isnat(data)
        data = data.view(np.int64)

    def give(batch: Batch, column: Column, index: _core.Array) -> Any:
        return _without_negative(original, batch.to_host(index))

    original = column
    return _host_column(data, ~mask if mask.any() else None, give, kind, what)


def _read_times(column: _Array, what: str) -> Column:
    """Dates and times as their integers; NaT is a null."""
    if not column.dtype.isnative:
        column = column.astype(column.dtype.newbyteorder("="))
    nat = np.isnat(column)
    if nat.ndim > 1 and nat.any():
        raise ValueError(
            f"the {what} have NaT within rows of shape {column.shape[1:]}: give times as columns of their own"
        )

    def give(batch: Batch, column: Column, index: _core.Array) -> Any:
        numbers: _Array = give_array(batch, column, index)
        times = numbers.view(dtype)
        times[batch.to_host(index) < 0] = np.array("NaT", dtype)
        return times

    dtype = column.dtype
    return _host_column(column.view(np.int64), ~nat if nat.any() else None, give, str(dtype), what)


def _read_foreign(column: Any, framework: ColumnFramework, what: str) -> Column:
    """A column of pandas, polars or Arrow; null entries are zeros that are not valid."""
    numbers, mask, kind = _numbers_and_nulls(column, framework)
    taken_by_library = framework.name in nulls.LIBRARIES

    def give(batch: Batch, read: Column, index: _core.Array) -> Any:
        positions = batch.to_host(index)
        if taken_by_library:
            return take_foreign(column, positions)
        given = numbers if mask is None else np.ma.MaskedArray(numbers, mask)
        return _without_negative(given, positions)

    return _host_column(numbers, None if mask is None else ~mask, give, kind, what)


def _numbers_and_nulls(column: Any, framework: ColumnFramework) -> tuple[_Array, _Array | None, str]:
    """The numbers of a column, which of them stand for nulls, and the kind of what they are."""
    if (times := _times_of(column, framework)) is not None:
        nat = np.isnat(times)
        return times.view(np.int64), nat if nat.any() else None, _time_kind(column, times)
    if nulls.is_untyped(column):
        return np.zeros(len(column), np.int8), np.ones(len(column), bool) if len(column) else None, NO_DTYPE
    numbers, mask, _ = nulls.with_nulls(column)
    scale = nulls.scale_of(column)
    if scale is None:
        return numbers, mask, str(numbers.dtype)
    return _in_order(numbers), mask, f"decimals of {scale} places"


def _in_order(decimals: _Array) -> _Array:
    """Unscaled integers whose words compare as they do: those of 128 bits the upper half first, from its least on."""
    if decimals.ndim == 1:
        return decimals
    return decimals[:, ::-1] ^ np.array([1 << 63, 0], np.uint64)


def _time_kind(column: Any, times: _Array) -> str:
    """The dtype of times, with the zone where they have one: times of different zones do not meet."""
    given = getattr(column, "dtype", getattr(column, "type", None))
    dtype = getattr(given, "pyarrow_dtype", given)
    if str(dtype).startswith(_TIMES_OF_DAY):
        return str(times.dtype).replace("timedelta64", "time")
    zone = getattr(dtype, "time_zone", getattr(dtype, "tz", None))
    return f"{times.dtype}" + ("" if zone is None else f" {zone}")


def _times_of(column: Any, framework: ColumnFramework) -> _Array | None:
    """Dates, times and durations as NumPy's, with NaT for nulls; None where the column holds something else."""
    dtype = getattr(column, "dtype", None)
    if framework.name == "pandas":
        if hasattr(dtype, "pyarrow_dtype"):  # of whose dates pandas makes Python's
            return _times_of_arrow(getattr(column, "array", column).__arrow_array__())
        if getattr(dtype, "kind", None) not in ("m", "M"):
            return None
        zone = getattr(dtype, "tz", None)
        if zone is not None:
            column = column.dt.tz_convert(None) if hasattr(column, "dt") else column.tz_convert(None)
        return np.asarray(column.to_numpy())
    if framework.name == "polars":
        if type(dtype).__name__ == "Time":
            column = column.cast(importlib.import_module("polars").Duration("ns"))
        elif type(dtype).__name__ not in ("Date", "Datetime", "Duration"):
            return None
        return np.asarray(column.to_numpy())
    return _times_of_arrow(column) if framework.name == "pyarrow" else None


def _times_of_arrow(column: Any) -> _Array | None:
    """The same of an array or a chunked one of pyarrow. Times of day are durations."""
    kind: Any = getattr(column, "type", None)
    if str(kind).startswith(_TIMES_OF_DAY):
        column = column.cast(f"int{kind.bit_width}").cast("int64").cast(f"duration[{kind.unit}]")
    elif not str(kind).startswith(("timestamp", "date", "duration")):
        return None
    return np.asarray(column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False))
