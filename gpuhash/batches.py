"""Calls with a list of batches, one for each device of a table of several shards, which then work side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .batch import Batch, Output, Write, take_values

if TYPE_CHECKING:
    from .keyed_table import KeyedTable
    from .operations import Operations


def are_batches(keys: Any, out: Any = None) -> bool:
    """Is it a list of arrays of keys? Lists of numbers are keys themselves. TypeError for those with an ``out=``."""
    if type(keys) is not list or not keys or not all(_is_batch(each) for each in keys):
        return False
    if out is not None:
        raise TypeError("out= was given with a list of batches, whose answers are new arrays: leave it out")
    return True


def _is_batch(keys: Any) -> bool:
    return len(getattr(keys, "shape", ())) > 0


def _each(given: Any, batches: list[Batch], what: str) -> list[Any]:
    """One value or array for each batch: those of a list, or the same for all."""
    if type(given) is not list or not given or not any(_is_batch(each) for each in given):
        return [given] * len(batches)
    if len(given) != len(batches):
        raise ValueError(f"{len(given)} arrays of {what} were given for {len(batches)} batches of keys: give one each")
    return given


def _finish(batches: list[Batch]) -> None:
    for batch in batches:
        batch.finish()


def _results(batches: list[Batch], outputs: list[Output]) -> list[Any]:
    _finish(batches)
    return [output.result(batch) for batch, output in zip(batches, outputs, strict=True)]


def change(
    table: KeyedTable, keys: list[Any], values: Any, action: str, *, mask: bool = True, rows: bool = False
) -> Any:
    """The masks of new keys; with ``rows`` a pair of row numbers and masks, and values may be None: initial ones."""
    batches = [table._take(each) for each in keys]
    masks = [table._mask(batch, None) for batch in batches] if mask else []
    numbers = [Output(batch, "int64", batch.shape) for batch in batches] if rows else []
    requests = []
    for i, (batch, value) in enumerate(zip(batches, _each(values, batches, "values"), strict=True)):
        writes: list[Write] = []
        if table._value_dtype is not None and not (rows and values is None):
            writes.append((0, *take_values(value, batch, table._value_dtype, table._value_shape), action))
        inserted = masks[i].array if mask else None
        requests.append(batch.change(writes, inserted=inserted, rows=numbers[i].array if rows else None))
    table._changes += 1
    table._core.change(requests)
    _finish(batches)
    told = _results(batches, masks) if mask else []
    return (_results(batches, numbers), told) if rows else told


def erase(table: KeyedTable, keys: list[Any]) -> list[Any]:
    batches = [table._take(each) for each in keys]
    masks = [table._mask(batch, None) for batch in batches]
    table._changes += 1
    table._core.erase([batch.erasure(erased=mask.array) for batch, mask in zip(batches, masks, strict=True)])
    return _results(batches, masks)


def contains(table: KeyedTable, keys: list[Any]) -> list[Any]:
    batches = [table._take(each) for each in keys]
    found = [table._mask(batch, None) for batch in batches]
    table._core.look_up([batch.lookup(found=mask.array) for batch, mask in zip(batches, found, strict=True)])
    return _results(batches, found)


def find(
    table: Operations, keys: list[Any], default: Any, *, needs_default: bool = False
) -> tuple[list[Any], list[Any]]:
    """Values and masks; ValueError where a default is needed and there is none."""
    batches = [table._take(each) for each in keys]
    values = [table._values(batch) for batch in batches]
    found = [table._mask(batch, None) for batch in batches]
    requests = []
    for batch, value, mask, fallback in zip(batches, values, found, _each(default, batches, "defaults"), strict=True):
        constant = table._fallback_for(fallback, batch)
        if constant is None and needs_default:
            raise ValueError("get(keys) of batches needs a default for absent keys: give one here or to the table")
        requests.append(batch.lookup([(0, value.array, constant)], mask.array))
    table._core.look_up(requests)
    return _results(batches, values), _results(batches, found)


def rows(table: Operations, keys: list[Any]) -> list[Any]:
    batches = [table._take(each) for each in keys]
    numbers = [Output(batch, "int64", batch.shape) for batch in batches]
    table._core.look_up([batch.lookup(rows=number.array) for batch, number in zip(batches, numbers, strict=True)])
    return _results(batches, numbers)
