"""The calls of tables with named columns, whose values come and go as mappings of names to arrays.

Everything that a caller gives is checked before anything is changed. A list of batches, for a table of several shards,
goes the same way as one batch: each has its arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _core, batches
from .arguments import action_of
from .batch import Batch, Output, Read, Write, take_values
from .named_columns import Column, Columns, by_name, chosen
from .torch import dispatch as traced

if TYPE_CHECKING:
    from .operations import Operations

_Outputs = dict[str, Output]


class Places:
    """The columns that a lookup writes, of a table."""

    def __init__(self, table: Operations, names: list[str]) -> None:
        assert table._columns is not None
        numbers = {name: number for number, name in enumerate(table._columns)}
        self.columns: dict[str, tuple[int, Column]] = {name: (numbers[name], table._columns[name]) for name in names}

    def outputs(self, batch: Batch, out: Any, what: str) -> _Outputs:
        """New arrays, or the caller's own."""
        made = {}
        for name, (_, column) in self.columns.items():
            given = None if out is None else out[name]
            made[name] = Output(batch, column.dtype, batch.shape + column.shape, given, f"{what}[{name!r}]")
        return made

    def parts(self, outputs: _Outputs, fallbacks: dict[str, _core.Array] | None) -> list[Read]:
        """What the core is given; None: zeros."""
        return [
            (number, outputs[name].array, None if fallbacks is None else fallbacks[name])
            for name, (number, _) in self.columns.items()
        ]


def places_of(table: Operations, columns: Any, out: Any, what: str = "out") -> Places:
    """The columns of a lookup: those asked for, or those that ``out`` has arrays for. Errors as ``chosen``."""
    assert table._columns is not None
    if out is None:
        return Places(table, chosen(table._columns, columns))
    named = by_name(table._columns, out, what)
    names = chosen(table._columns, list(named) if columns is None else columns)
    if set(names) != set(named):
        raise ValueError(f"{what} has arrays for {', '.join(named)}, and {', '.join(names)} were asked for")
    return Places(table, names)


def results(outputs: _Outputs, batch: Batch) -> dict[str, Any]:
    return {name: output.result(batch) for name, output in outputs.items()}


def look_up(
    batch: Batch,
    places: Places,
    outputs: _Outputs,
    found: Output | None,
    fallbacks: dict[str, _core.Array] | None,
    *,
    count_missing: bool,
) -> int:
    """Fills the outputs, and gives the number of absent keys where that is to be counted: then it waits."""
    mask = _array_of(found)
    return batch.core.look_up([batch.lookup(places.parts(outputs, fallbacks), mask)], count_missing)


def find_batches(
    table: Operations, keys: list[Any], default: Any, columns: Any, *, needs_default: bool = False
) -> tuple[list[Any], list[Any]]:
    """Values and masks of several batches."""
    places = places_of(table, columns, None)
    taken = [table._take(each) for each in keys]
    outputs = [places.outputs(batch, None, "out") for batch in taken]
    found = [table._mask(batch, None) for batch in taken]
    defaults = default if isinstance(default, list) else [default] * len(taken)
    if len(defaults) != len(taken):
        raise ValueError(f"{len(defaults)} defaults were given for {len(taken)} batches of keys: give one each")
    requests = []
    for batch, values, mask, given in zip(taken, outputs, found, defaults, strict=True):
        fallbacks = table._column_fallbacks(given, batch, places)
        if fallbacks is None and needs_default:
            raise ValueError("get(keys) of batches needs a default for absent keys: give one here or to the table")
        requests.append(batch.lookup(places.parts(values, fallbacks), mask.array))
    table._core.look_up(requests)
    for batch in taken:
        batch.finish()
    answers = [results(values, batch) for values, batch in zip(outputs, taken, strict=True)]
    return answers, [mask.result(batch) for mask, batch in zip(found, taken, strict=True)]


def take_columns(
    table: Operations, batch: Batch, values: Any, actions: str | Mapping[str, str], what: str = "values"
) -> list[Write]:
    """The values of a change, in the table's memory, as the core is given them. TypeError and ValueError."""
    assert table._columns is not None
    named = by_name(table._columns, values, what)
    numbers = {name: number for number, name in enumerate(table._columns)}
    taken: list[Write] = []
    for name, given in named.items():
        column = table._columns[name]
        array, broadcast = take_values(given, batch, column.dtype, column.shape, f"{what} of {name!r}")
        taken.append((numbers[name], array, broadcast, actions if isinstance(actions, str) else actions[name]))
    return taken


def _array_of(output: Output | None) -> _core.Array | None:
    return None if output is None else output.array


def change(
    table: Operations,
    keys: Any,
    values: Any,
    actions: str | Mapping[str, str],
    out: Any = None,
    *,
    mask: bool = True,
    rows: bool = False,
    what: str = "values",
) -> Any:
    """Inserts keys and changes columns: the mask of new keys, or with ``rows`` a pair of row numbers and mask.

    values
        A mapping; with ``rows`` also None: new rows have their initial values.
    actions
        "keep", "assign" or an operation, for all columns given or for each.
    """
    if table._shards and batches.are_batches(keys, out):
        return _change_batches(table, keys, values, actions, mask=mask, rows=rows, what=what)
    out_rows, out_new = out if rows and out is not None else (None, out)
    batch = table._take(keys)
    numbers = Output(batch, "int64", batch.shape, out_rows, "out[0]") if rows else None
    inserted = Output(batch, "bool", batch.shape, out_new, "out[1]" if rows else "out") if mask else None
    parts = [] if rows and values is None else take_columns(table, batch, values, actions, what)
    table._changes += 1
    batch.core.change([batch.change(parts, inserted=_array_of(inserted), rows=_array_of(numbers))])
    batch.finish()
    is_new = inserted and inserted.result(batch)
    return (numbers.result(batch), is_new) if numbers is not None else is_new


def _change_batches(
    table: Operations,
    keys: list[Any],
    values: Any,
    actions: str | Mapping[str, str],
    *,
    mask: bool,
    rows: bool,
    what: str,
) -> Any:
    taken = [table._take(each) for each in keys]
    given = values if isinstance(values, list) else [values] * len(taken)
    if len(given) != len(taken):
        raise ValueError(f"{len(given)} mappings of {what} were given for {len(taken)} batches of keys: give one each")
    names = [list(each) if isinstance(each, Mapping) else each for each in given]
    if any(each != names[0] for each in names):
        raise ValueError("batches of one call were given different columns: give all the same ones, in one order")
    numbers = [Output(batch, "int64", batch.shape) if rows else None for batch in taken]
    masks = [table._mask(batch, None) if mask else None for batch in taken]
    requests = []
    for batch, each, row, is_new in zip(taken, given, numbers, masks, strict=True):
        columns = [] if rows and each is None else take_columns(table, batch, each, actions, what)
        requests.append(batch.change(columns, inserted=_array_of(is_new), rows=_array_of(row)))
    table._changes += 1
    table._core.change(requests)
    for batch in taken:
        batch.finish()
    told = [is_new and is_new.result(batch) for is_new, batch in zip(masks, taken, strict=True)]
    if not rows:
        return told
    return [row and row.result(batch) for row, batch in zip(numbers, taken, strict=True)], told


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
