"""One call on a table: its batches, what each of them reads and writes, and its answers.

A call has one batch, or, on a table of several shards, a list of them, which the devices then work on side by side. A
table has values by name; a single value per key is the one whose name is empty. So each method of a table is a few
lines here: what it reads, what it writes, and which of the core's calls it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from . import _core
from .arrays.arguments import KeyOutOfRangeError, action_of
from .arrays.batch import Batch, Output, Read, Write, take_values
from .named_columns import Columns, by_name, chosen
from .torch import dispatch as traced

if TYPE_CHECKING:
    from .keyed_table import KeyedTable
    from .table import HashTable


class Request:
    """What one batch of a call reads and writes."""

    __slots__ = ("batch", "fallbacks", "mask", "rows", "values", "writes")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.values: dict[str, Output] = {}  # that are read, by name
        self.fallbacks: dict[str, _core.Array] | None = None  # of absent keys, by name; None: zeros
        self.mask: Output | None = None
        self.rows: Output | None = None
        self.writes: list[Write] = []

    def reads(self, numbers: Mapping[str, int]) -> list[Read]:
        fallbacks = self.fallbacks or {}
        return [(numbers[name], output.array, fallbacks.get(name)) for name, output in self.values.items()]

    @property
    def mask_array(self) -> _core.Array | None:
        return None if self.mask is None else self.mask.array

    @property
    def rows_array(self) -> _core.Array | None:
        return None if self.rows is None else self.rows.array


class Call:
    """One call, to be made in this order: its keys, then its outputs, then the values and defaults that it is given.

    Values and defaults keep apart from the outputs. All that a caller gives is checked before anything is changed.

    Parameters
    ----------
    lists
        Whether a table of several shards takes a list of batches here.
    """

    __slots__ = ("_table", "is_list", "requests")

    def __init__(self, table: KeyedTable, keys: Any, out: Any = None, *, lists: bool = True) -> None:
        self._table = table
        self.is_list = lists and bool(table._shards) and are_batches(keys, out)
        self.requests = [Request(table._take(each)) for each in (keys if self.is_list else (keys,))]

    @classmethod
    def of_lookup(cls, table: KeyedTable, keys: Any, out: Any = None, *, lists: bool = True) -> Self | None:
        """None for a single key that the dtype cannot hold: no table has it."""
        try:
            return cls(table, keys, out, lists=lists)
        except KeyOutOfRangeError:
            if out is None:
                return None
            raise

    @property
    def batch(self) -> Batch:
        """The one batch of a call that takes no lists."""
        return self.requests[0].batch

    # What it answers -------------------------------------------------------------------------------------------------

    def answer_mask(self, out: Any = None, what: str = "out") -> None:
        for request in self.requests:
            request.mask = Output(request.batch, "bool", request.batch.shape, out, what)

    def answer_rows(self, out: Any = None, what: str = "out") -> None:
        for request in self.requests:
            request.rows = Output(request.batch, "int64", request.batch.shape, out, what)

    def answer_values(self, columns: Any = None, out: Any = None, what: str = "out") -> None:
        """Those of the columns that are asked for, or of those that ``out`` has arrays for. Errors as ``chosen``."""
        fields, named = self._table._fields, self._table._columns
        given: Mapping[str, Any] = {}
        if named is None:
            names = list(fields)
            if out is not None:
                given = {"": out}
        elif out is None:
            names = chosen(named, columns)
        else:
            given = by_name(named, out, what)
            names = chosen(named, list(given) if columns is None else columns)
            if set(names) != set(given):
                raise ValueError(f"{what} has arrays for {', '.join(given)}, and {', '.join(names)} were asked for")
        for request in self.requests:
            batch = request.batch
            for name in names:
                field, label = fields[name], f"{what}[{name!r}]" if name else what
                shape = batch.shape + field.shape
                request.values[name] = Output(batch, field.dtype, shape, given.get(name), label)

    def hold_back(self) -> None:
        """Nothing reaches the caller's arrays of values before they are asked for."""
        for request in self.requests:
            for output in request.values.values():
                output.hold_back(request.batch)

    # What it is given ------------------------------------------------------------------------------------------------

    def fall_back(self, default: Any) -> bool:
        """Gives absent keys the values of ``default``, or else the table's. False where there is neither."""
        table, found = cast("HashTable", self._table), True  # a set has none
        for request, each in zip(self.requests, self._each(default, "defaults"), strict=True):
            request.fallbacks = table._fallbacks_of(each, request.batch, request.values)
            found = found and request.fallbacks is not None
        return found

    def write(self, values: Any, actions: str | Mapping[str, str], what: str = "values") -> None:
        """Takes values of all keys. ``actions``: what becomes of those that are there, in all columns or by name."""
        first: list[int] | None = None
        for request, each in zip(self.requests, self._each(values, what), strict=True):
            request.writes = self._writes_of(request.batch, each, actions, what)
            numbers = [number for number, *_ in request.writes]
            if first is not None and numbers != first:
                raise _different_columns()
            first = numbers

    def _writes_of(self, batch: Batch, values: Any, actions: str | Mapping[str, str], what: str) -> list[Write]:
        table = self._table
        named = {"": values} if table._columns is None else by_name(table._columns, values, what)
        writes: list[Write] = []
        for name, given in named.items():
            field, label = table._fields[name], f"{what} of {name!r}" if name else what
            action = actions if isinstance(actions, str) else actions.get(name)
            if action is None:  # there are those of the first batch's columns
                raise _different_columns()
            array, broadcast = take_values(given, batch, field.dtype, field.shape, label)
            writes.append((table._numbers[name], array, broadcast, action))
        return writes

    def fall_back_on_writes(self) -> None:
        """Keys whose rows could not be made, as in a graph that finds no room, read what was to be written."""
        for request in self.requests:
            written = {number: array for number, array, *_ in request.writes}
            numbers = self._table._numbers
            request.fallbacks = {name: written[numbers[name]] for name in request.values if numbers[name] in written}

    def _each(self, given: Any, what: str) -> list[Any]:
        """One for each batch: those of a list, or the same for all."""
        count = len(self.requests)
        if not (self.is_list and type(given) is list and any(_is_batch(each) for each in given)):
            return [given] * count
        if len(given) != count:
            kind = "arrays" if self._table._columns is None else "mappings"
            raise ValueError(f"{len(given)} {kind} of {what} were given for {count} batches of keys: give one each")
        return given

    # What the core does ----------------------------------------------------------------------------------------------

    @property
    def _core(self) -> _core.Table:
        return self._table._core if self.is_list else self.batch.core

    def look_up(self, *, count_missing: bool = False) -> int:
        """The number of absent keys, where they are to be counted: then it waits."""
        numbers = self._table._numbers
        missing = self._core.look_up(
            [
                request.batch.lookup(request.reads(numbers), request.mask_array, request.rows_array)
                for request in self.requests
            ],
            count_missing,
        )
        self.finish()
        return missing

    def change(self) -> None:
        """Inserts the keys, and writes; new rows have their initial values where nothing is written."""
        numbers = self._table._numbers
        requests = [
            request.batch.change(request.writes, request.reads(numbers), request.mask_array, request.rows_array)
            for request in self.requests
        ]
        self._table._changes += 1
        self._core.change(requests)
        self.finish()

    def erase(self, *, all_or_none: bool = False) -> int:
        """The number of absent keys with ``all_or_none``, which erases nothing where there are any: then it waits."""
        numbers = self._table._numbers
        requests = [request.batch.erasure(request.reads(numbers), request.mask_array) for request in self.requests]
        missing = 0
        try:
            missing = self._core.erase(requests, all_or_none)
        finally:
            self._table._changes += not missing
        self.finish()
        return missing

    def finish(self) -> None:
        for request in self.requests:
            request.batch.finish()

    # What the caller gets --------------------------------------------------------------------------------------------

    def mask(self) -> Any:
        return self._told(lambda request: request.mask and request.mask.result(request.batch))

    def rows(self) -> Any:
        return self._told(lambda request: request.rows and request.rows.result(request.batch))

    def values(self) -> Any:
        """By name, where the table has columns."""
        return self._told(self._values_of)

    def _values_of(self, request: Request) -> Any:
        named = {name: output.result(request.batch) for name, output in request.values.items()}
        return named[""] if self._table._columns is None else named

    def _told(self, answer: Callable[[Request], Any]) -> Any:
        return list(map(answer, self.requests)) if self.is_list else answer(self.requests[0])


def are_batches(keys: Any, out: Any = None) -> bool:
    """Is it a list of arrays of keys? Lists of numbers are keys themselves. TypeError for those with an ``out=``."""
    if type(keys) is not list or not keys or not all(len(getattr(each, "shape", ())) > 0 for each in keys):
        return False
    if out is not None:
        raise TypeError("out= was given with a list of batches, whose answers are new arrays: leave it out")
    return True


def _is_batch(given: Any) -> bool:
    """Is it what one batch may be given: an array, or a mapping of columns?"""
    return isinstance(given, Mapping) or len(getattr(given, "shape", ())) > 0


def _different_columns() -> ValueError:
    return ValueError("batches of one call were given different columns: give all the same ones, in one order")


@traced.itself
def actions_of(columns: Columns, values: Any, op: Any) -> dict[str, str]:
    """What becomes of each column that is given, by its name: of one operation for all, or a mapping of them.

    Raises
    ------
    TypeError
        For an operation that a column's dtype does not have.
    ValueError
        For an unknown operation, or column, and where a column has no operation, or an operation no values.
    """
    named = by_name(columns, values[0] if isinstance(values, list) and values else values, "values")
    if isinstance(op, Mapping):
        by_name(columns, op, "operations")
        if set(op) != set(named):
            raise ValueError(f"values of {', '.join(named)} were given, and operations for {', '.join(op)}: give both")
    actions = {}
    for name in named:
        dtype = columns[name].dtype
        given = op[name] if isinstance(op, Mapping) else op
        actions[name] = action_of(given, dtype, f"the column {name!r} has values of {dtype}")
    return actions
