"""Calls with a list of batches, one for each device of a table of several shards, which then work side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from .batch import Batch, Output, take_values

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


def _change(
    table: KeyedTable,
    keys: list[Any],
    values: Any,
    mask: bool,
) -> tuple[list[Batch], list[Output | None], list[Any]]:
    """The batches of a change, their masks, and what the core is given; nothing has been changed yet."""
    batches = [table._take(each) for each in keys]
    masks = [table._mask(batch, None) if mask else None for batch in batches]
    dtype = table._value_dtype
    parts = []
    for batch, inserted, value in zip(batches, masks, _each(values, batches, "values"), strict=True):
        array, broadcast = (None, False)
        if values is not None and dtype is not None:
            array, broadcast = take_values(value, batch, dtype, table._value_shape)
        parts.append((batch.core, batch.array, array, broadcast, inserted and inserted.array, batch.stream))
    table._changes += 1
    return batches, masks, parts


def _results(batches: list[Batch], outputs: list[Output | None]) -> list[Any]:
    for batch in batches:
        batch.finish()
    return [output and output.result(batch) for batch, output in zip(batches, outputs, strict=True)]


def insert(table: KeyedTable, keys: list[Any], values: Any, mode: Literal["keep", "assign"], mask: bool) -> list[Any]:
    batches, masks, parts = _change(table, keys, values, mask)
    table._core.insert_parts(parts, mode)
    return _results(batches, masks)


def find_or_insert(table: Operations, keys: list[Any], values: Any) -> tuple[list[Any], list[Any]]:
    batches, masks, parts = _change(table, keys, values, True)
    rows = [Output(batch, "int64", batch.shape) for batch in batches]
    table._core.find_or_insert_parts(parts, [each.array for each in rows])
    return _results(batches, cast(Any, rows)), _results(batches, masks)


def apply(table: Operations, keys: list[Any], values: Any, op: str) -> list[Any]:
    batches, masks, parts = _change(table, keys, values, True)
    table._core.apply_parts(parts, op)
    return _results(batches, masks)


def erase(table: KeyedTable, keys: list[Any], mask: bool) -> list[Any]:
    batches, masks, parts = _change(table, keys, None, mask)
    table._core.erase_parts(parts)
    return _results(batches, masks)


def contains(table: KeyedTable, keys: list[Any]) -> list[Any]:
    batches = [table._take(each) for each in keys]
    found = [table._mask(batch, None) for batch in batches]
    table._core.find_parts(
        [
            (batch.core, batch.array, None, mask.array, None, None, batch.stream)
            for batch, mask in zip(batches, found, strict=True)
        ]
    )
    return _results(batches, cast(Any, found))


def find(
    table: Operations, keys: list[Any], default: Any, *, needs_default: bool = False
) -> tuple[list[Any], list[Any]]:
    """Values and masks; ValueError where a default is needed and there is none."""
    batches = [table._take(each) for each in keys]
    values = [table._values(batch) for batch in batches]
    found = [table._mask(batch, None) for batch in batches]
    parts = []
    for batch, value, mask, fallback in zip(batches, values, found, _each(default, batches, "defaults"), strict=True):
        constant = table._fallback_for(fallback, batch)
        if constant is None and needs_default:
            raise ValueError("get(keys) of batches needs a default for absent keys: give one here or to the table")
        parts.append((batch.core, batch.array, value.array, mask.array, None, constant, batch.stream))
    table._core.find_parts(parts)
    return _results(batches, cast(Any, values)), _results(batches, cast(Any, found))


def rows(table: Operations, keys: list[Any]) -> list[Any]:
    batches = [table._take(each) for each in keys]
    numbers = [Output(batch, "int64", batch.shape) for batch in batches]
    table._core.find_parts(
        [
            (batch.core, batch.array, None, None, number.array, None, batch.stream)
            for batch, number in zip(batches, numbers, strict=True)
        ]
    )
    return _results(batches, cast(Any, numbers))
