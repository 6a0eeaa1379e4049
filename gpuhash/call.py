"""One call on a table: its batches, what each of them reads and writes, and its answers.

A ``Call`` has one batch; ``Calls`` are those of a list of batches, on a table of several shards, whose devices then
work side by side. A table has values by name; a single value per key is the one whose name is empty. So each method of
a table is a few lines here: what it reads, what it writes, and which of the core's calls it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from . import _core
from .arrays.arguments import KeyOutOfRangeError, action_of
from .arrays.batch import Change, Erasure, Lookup, Output, Read, Write, take_values
from .tables.named_columns import Columns, by_name, chosen
from .torch import dispatch as traced

if TYPE_CHECKING:
    from .table import HashTable
    from .tables.keyed_table import KeyedTable


class Call:
    """One call with one batch, to be made in this order: keys, outputs, and then values and defaults.

    Values and defaults keep apart from the outputs. All that a caller gives is checked before anything is changed.
    """

    __slots__ = ("_fallbacks", "_mask", "_reads", "_rows", "_table", "_writes", "batch")

    def __init__(self, table: KeyedTable, keys: Any, *, inserts: bool = False) -> None:
        self._table = table
        self.batch = table._take(keys, inserts=inserts)
        self._reads: dict[str, Output] = {}  # values that are read, by name
        self._fallbacks: dict[str, _core.Array] | None = None  # of absent keys, by name; None: zeros
        self._mask: Output | None = None
        self._rows: Output | None = None
        self._writes: list[Write] = []

    @staticmethod
    def begin(table: KeyedTable, keys: Any, out: Any = None) -> Call | Calls:
        """Of one batch, or of each of a list, whose keys are to be inserted."""
        made = Calls if table._shards and are_batches(keys, out) else Call
        return made(table, keys, inserts=True)

    @staticmethod
    def begin_lookup(table: KeyedTable, keys: Any, out: Any = None) -> Call | Calls | None:
        """None for a single key that the dtype cannot hold: no table has it."""
        try:
            return Calls(table, keys) if table._shards and are_batches(keys, out) else Call(table, keys)
        except KeyOutOfRangeError:
            if out is None:
                return None
            raise

    @classmethod
    def of_lookup(cls, table: KeyedTable, keys: Any, out: Any = None) -> Self | None:
        """Likewise, of a call that takes no lists of batches."""
        try:
            return cls(table, keys)
        except KeyOutOfRangeError:
            if out is None:
                return None
            raise

    # What it answers -------------------------------------------------------------------------------------------------

    def answer_mask(self, out: Any = None, what: str = "out") -> None:
        self._mask = Output(self.batch, "bool", self.batch.shape, out, what)

    def answer_rows(self, out: Any = None, what: str = "out") -> None:
        self._rows = Output(self.batch, "int64", self.batch.shape, out, what)

    def answer_values(self, columns: Any = None, out: Any = None, what: str = "out") -> None:
        """Those of the columns that are asked for, or of those that ``out`` has arrays for. Errors as ``chosen``."""
        batch, named = self.batch, self._table._columns
        if named is None:
            field = self._table._fields[""]
            self._reads[""] = Output(batch, field.dtype, batch.shape + field.shape, out, what)
            return
        given: Mapping[str, Any] = {}
        if out is not None:
            given = by_name(named, out, what)
            columns = list(given) if columns is None else columns
        names = chosen(named, columns)
        if out is not None and set(names) != set(given):
            raise ValueError(f"{what} has arrays for {', '.join(given)}, and {', '.join(names)} were asked for")
        for name in names:
            shape = batch.shape + named[name].shape
            self._reads[name] = Output(batch, named[name].dtype, shape, given.get(name), f"{what}[{name!r}]")

    def hold_back(self) -> None:
        """Nothing reaches the caller's arrays of values before they are asked for."""
        for output in self._reads.values():
            output.hold_back(self.batch)

    # What it is given ------------------------------------------------------------------------------------------------

    def fall_back(self, default: Any) -> bool:
        """Gives absent keys the values of ``default``, or else the table's. False where there is neither."""
        table: HashTable = self._table  # type: ignore[assignment]  # a set has no defaults
        self._fallbacks = table._fallbacks_of(default, self.batch, self._reads)
        return self._fallbacks is not None

    def write(self, values: Any, actions: str | Mapping[str, str], what: str = "values") -> None:
        """Takes values of all keys. ``actions``: what becomes of those that are there, in all columns or by name."""
        table = self._table
        named = {"": values} if table._columns is None else by_name(table._columns, values, what)
        for name, given in named.items():
            field, label = table._fields[name], f"{what} of {name!r}" if name else what
            action = actions if isinstance(actions, str) else actions.get(name)
            if action is None:  # there are those of the first batch's columns
                raise _different_columns()
            array, broadcast = take_values(given, self.batch, field.dtype, field.shape, label)
            self._writes.append((table._numbers[name], array, broadcast, action))

    def fall_back_on_writes(self) -> None:
        """Keys whose rows could not be made, as in a graph that finds no room, read what was to be written."""
        written = {number: array for number, array, *_ in self._writes}
        numbers = self._table._numbers
        self._fallbacks = {name: written[numbers[name]] for name in self._reads if numbers[name] in written}

    # What the core does ----------------------------------------------------------------------------------------------

    def _wanted(self) -> list[Read]:
        fallbacks = self._fallbacks or {}
        if self._table._columns is None:
            return [(0, self._reads[""].array, fallbacks.get(""))]
        numbers = self._table._numbers
        return [(numbers[name], output.array, fallbacks.get(name)) for name, output in self._reads.items()]

    def _lookup(self) -> Lookup:
        mask, rows = self._mask, self._rows
        reads = self._wanted() if self._reads else ()
        return self.batch.lookup(reads, mask and mask.array, rows and rows.array)  # type: ignore[arg-type]

    def _change(self) -> Change:
        mask, rows = self._mask, self._rows
        reads = self._wanted() if self._reads else ()
        return self.batch.change(self._writes, reads, mask and mask.array, rows and rows.array)  # type: ignore[arg-type]

    def _erasure(self) -> Erasure:
        mask = self._mask
        return self.batch.erasure(self._wanted() if self._reads else (), mask and mask.array)  # type: ignore[arg-type]

    def look_up(self, *, count_missing: bool = False) -> int:
        """The number of absent keys, where they are to be counted: then it waits."""
        missing = self.batch.core.look_up([self._lookup()], count_missing)
        self.batch.finish()
        return missing

    def change(self) -> None:
        """Inserts the keys, and writes; new rows have their initial values where nothing is written."""
        asked = [self._change()]
        self._table._changes += 1
        self.batch.core.change(asked)
        self.batch.finish()

    def erase(self, *, all_or_none: bool = False) -> int:
        """The number of absent keys with ``all_or_none``, which erases nothing where there are any: then it waits."""
        asked, missing = [self._erasure()], 0
        try:
            missing = self.batch.core.erase(asked, all_or_none)
        finally:
            self._table._changes += not missing
        self.batch.finish()
        self._table._release(self.batch)
        return missing

    # What the caller gets --------------------------------------------------------------------------------------------

    def mask(self) -> Any:
        return self._mask and self._mask.result(self.batch)

    def rows(self) -> Any:
        return self._rows and self._rows.result(self.batch)

    def values(self) -> Any:
        """By name, where the table has columns."""
        if self._table._columns is None:
            return self._reads[""].result(self.batch)
        return {name: output.result(self.batch) for name, output in self._reads.items()}


class Calls:
    """The calls of a list of batches, as one: what ``Call`` has for one batch, with lists of answers."""

    def __init__(self, table: KeyedTable, keys: list[Any], *, inserts: bool = False) -> None:
        self._table = table
        self._calls = [Call(table, each, inserts=inserts) for each in keys]

    def answer_mask(self, out: None = None, what: str = "out") -> None:
        for call in self._calls:
            call.answer_mask()

    def answer_rows(self, out: None = None, what: str = "out") -> None:
        for call in self._calls:
            call.answer_rows()

    def answer_values(self, columns: Any = None, out: None = None, what: str = "out") -> None:
        for call in self._calls:
            call.answer_values(columns)

    def fall_back(self, default: Any) -> bool:
        given = self._each(default, "defaults")
        have = [call.fall_back(each) for call, each in zip(self._calls, given, strict=True)]
        return all(have)

    def write(self, values: Any, actions: str | Mapping[str, str], what: str = "values") -> None:
        for call, each in zip(self._calls, self._each(values, what), strict=True):
            call.write(each, actions, what)
            if [number for number, *_ in call._writes] != [number for number, *_ in self._calls[0]._writes]:
                raise _different_columns()

    def fall_back_on_writes(self) -> None:
        for call in self._calls:
            call.fall_back_on_writes()

    def _each(self, given: Any, what: str) -> list[Any]:
        """One for each batch: those of a list, or the same for all."""
        count = len(self._calls)
        if not (type(given) is list and any(_is_batch(each) for each in given)):
            return [given] * count
        if len(given) != count:
            kind = "arrays" if self._table._columns is None else "mappings"
            raise ValueError(f"{len(given)} {kind} of {what} were given for {count} batches of keys: give one each")
        return given

    def look_up(self) -> None:
        self._table._core.look_up([call._lookup() for call in self._calls])
        self._finish()

    def change(self) -> None:
        asked = [call._change() for call in self._calls]
        self._table._changes += 1
        self._table._core.change(asked)
        self._finish()

    def erase(self) -> None:
        asked = [call._erasure() for call in self._calls]
        self._table._changes += 1
        self._table._core.erase(asked)
        self._finish()
        for call in self._calls:
            self._table._release(call.batch)

    def _finish(self) -> None:
        for call in self._calls:
            call.batch.finish()

    def mask(self) -> list[Any]:
        return [call.mask() for call in self._calls]

    def rows(self) -> list[Any]:
        return [call.rows() for call in self._calls]

    def values(self) -> list[Any]:
        return [call.values() for call in self._calls]


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
