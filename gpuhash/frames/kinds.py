"""What values are: numbers, dates and times, or strings; which aggregates they have, and what these come back as.

Dates and times are folded as their integers, and strings as numbers that stand for them in a call.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any, Literal, Self

import numpy as np

from gpuhash import _core
from gpuhash.arrays.nulls import library_of
from gpuhash.arrays.strings import Strings

from .answers import PICKS, column_of
from .columns import column_of_strings
from .keys import Keys

_Array = np.ndarray[Any, Any]

#: What the numbers that stand for strings tell: where each string is, which strings are equal, or their order as well.
#: Each costs more than the one before.
StandIn = Literal["position", "identity", "order"]


def stand_in_for(operations: Iterable[str]) -> StandIn:
    """What operations have to know of strings."""
    asked = set(operations)
    if asked & {"min", "max"}:
        return "order"
    return "identity" if "nunique" in asked else "position"


class Kind:
    """Numbers."""

    def __init__(self, label: str, dtype: str) -> None:
        self.label = label  # what batches have to agree in, and messages say
        self.dtype = dtype  # of what is folded

    def result_dtype(self, op: str, what: str, *, wide: bool = False) -> str:
        """Of what the core gives for an operation, or TypeError. ``wide``: for sums of parts, of 64 bits a number."""
        dtype = "int64" if op == "nunique" else _core.aggregate_dtype(op, self.dtype, wide)
        if dtype is None:
            raise TypeError(
                f"the values for {what} are {self.label}, and complex numbers have no {op}: give their parts"
            )
        return dtype

    def gives(self, op: str) -> bool:
        """Are an operation's results what ``give`` makes of them, and no numbers?"""
        return False

    def give(self, results: _Array, missing: _Array | None, library: str | None) -> Any:
        """Results of the core ``[m]`` as what they stand for, null where missing.

        A column of the keys' library where there is one, and otherwise in the form in which the values were given.
        """
        raise NotImplementedError(self.label)

    def without_values(self) -> Self:
        """The kind alone, which keeps nothing of a call alive."""
        return self

    def with_room_for(self, other: Self) -> Self:
        """The kind of these values and others of the same label."""
        return self


class _Foreign(Kind):
    """Other things than numbers, of which integers stand in for each."""

    def __init__(self, label: str, *more: str) -> None:
        super().__init__(label, "int64")
        self.operations = (*PICKS, "count", "nunique", *more)

    def result_dtype(self, op: str, what: str, *, wide: bool = False) -> str:
        if op not in self.operations:
            raise TypeError(
                f"the values for {what} are {self.label}, which have no {op}, but {', '.join(self.operations)}: "
                "give numbers for it"
            )
        return "int64"

    def gives(self, op: str) -> bool:
        return op not in ("count", "nunique")


class Times(_Foreign):
    """Dates, times and durations, as NumPy's."""

    def __init__(self, label: str, times: np.dtype[Any], column: Any) -> None:
        super().__init__(label, *(("sum",) if label.startswith("timedelta64") else ()))
        self.times = times
        self.library = library_of(column)
        #: Of the library's columns; None for NumPy's.
        self.of_library: Any = None if self.library is None else getattr(column, "dtype", getattr(column, "type", None))

    def give(self, results: _Array, missing: _Array | None, library: str | None) -> Any:
        library = library or self.library
        if library is not None and library == self.library:
            stored = getattr(self.of_library, "pyarrow_dtype", None)
            if stored is not None:
                column = _as_dtype(column_of(results, missing, "pyarrow"), stored)
                return importlib.import_module(library).Series(self.of_library.__from_arrow__(column))
            if library != "pandas":
                return _as_dtype(column_of(results, missing, library), self.of_library)
        times = results.view(self.times)
        if missing is not None:
            times[missing] = np.array("NaT", self.times)
        return times if library is None else self._convert(times, library)

    def _convert(self, times: _Array, library: str) -> Any:
        """NumPy's times as a column of a library, in their zone."""
        module: Any = importlib.import_module(library)
        times = times.astype(_nearest(self.times, library))
        zone = self.label.partition(" ")[2]
        if library == "pyarrow":
            column = module.array(times)
            return column.cast(module.timestamp(column.type.unit, zone)) if zone else column
        column = module.Series(times)
        if not zone:
            return column
        if library == "polars":
            return column.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
        return column.dt.tz_localize("UTC").dt.tz_convert(getattr(self.of_library, "tz", zone))


def _as_dtype(integers: Any, dtype: Any) -> Any:
    """The times that integers of a column of polars or pyarrow stand for."""
    return (integers.cast("int32") if getattr(dtype, "bit_width", None) == 32 else integers).cast(dtype)


def _nearest(dtype: np.dtype[Any], library: str) -> np.dtype[Any]:
    """The dtype of the same times with a unit that the library has. TypeError for units that are finer."""
    unit, _ = np.datetime_data(dtype)
    if unit in ("ps", "fs", "as"):
        raise TypeError(f"the values are {dtype}, and {library} has nothing finer than ns: convert them to that")
    if unit in ("s", "ms", "us", "ns") and (unit != "s" or library != "polars"):
        return np.dtype(f"{dtype.kind}8[{unit}]")
    if unit == "D" and dtype.kind == "M":
        return np.dtype("M8[D]")
    return np.dtype(f"{dtype.kind}8[{'ms' if library == 'polars' else 's'}]")


class Texts(_Foreign):
    """Text or bytes."""

    def __init__(self, strings: Strings, firsts: _Array, categories: bool) -> None:
        super().__init__("text" if strings.text else "bytes")
        self._strings = strings
        self._firsts = firsts  # int64 [m], where the string of each number is
        self._categories = categories  # of an order that is not that of their bytes

    def result_dtype(self, op: str, what: str, *, wide: bool = False) -> str:
        if self._categories and op in ("min", "max"):
            raise TypeError(
                f"the values for {what} are categories with an order of their own, and those of strings are compared "
                "by their bytes: give the categories' numbers, or plain strings"
            )
        return super().result_dtype(op, what, wide=wide)

    @classmethod
    def number(cls, strings: Strings, stand_in: StandIn, what: str, column: Any = None) -> tuple[Self, _core.Array]:
        """The kind of strings, and a number for each, int64 ``[n]`` on the host; of nulls any, which stands for null.

        The order is that of the strings' bytes, which is that of text by code points. ``column``: what they were read
        from.
        """
        if stand_in == "position":
            positions = np.arange(strings.count)
            return cls(strings, positions, _has_own_order(column)), _core.borrow(positions)
        keys = Keys([column_of_strings(strings, what)], None, "none")
        numbering = keys.number(sorted=stand_in == "order")
        return cls(strings, keys.batch.to_host(numbering.firsts), _has_own_order(column)), numbering.codes

    def take(self, numbers: _Array, missing: _Array | None) -> Strings:
        """The strings of numbers; nulls where missing, and of -1."""
        positions = np.append(self._firsts, -1)[numbers if missing is None else np.where(missing, -1, numbers)]
        return self._strings.take(positions).without_form()

    def give(self, results: _Array, missing: _Array | None, library: str | None) -> Any:
        return self.give_strings(self.take(results, missing), library)

    def give_strings(self, strings: Strings, library: str | None) -> Any:
        """Strings in the form of these, or as a column of the keys' library."""
        if library is None or library == self._strings.source:
            return self._strings.give_back(strings)
        return strings.to_form(library)

    def without_values(self) -> Self:
        return type(self)(self._strings.form_alone(), np.empty(0, np.int64), self._categories)

    def with_room_for(self, other: Self) -> Self:
        return type(self)(self._strings.with_room_for(other._strings), self._firsts, self._categories)


def _has_own_order(column: Any) -> bool:
    """Is it a column of categories that say themselves in which order they are?"""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    return type(dtype).__name__ == "Enum" or getattr(dtype, "ordered", None) is True
