"""The values of a table over processes: as callers give and get them, and as rows that are sent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash.arrays.arguments import encode_values, one_value, wrong_value_shape
from gpuhash.arrays.frameworks import framework_of
from gpuhash.tables import named_columns
from gpuhash.tables.named_columns import Column

from .batch import Batch, bring, tensor_of
from .rows import Layout, RowFormat
from .words import host_tensor, take_rows

_WORD_BYTES = 8


@dataclass
class Values:
    """Values of one rank's batch, where the table is."""

    layout: Layout
    rows: Tensor  # [n, *layout.row.shape], dense; [1, ...] where all keys get one
    bits: int | None = None  # of the one row, as an int64, where it came from the host and has up to 8 bytes
    op: str | None = None  # by which those of one key are combined, if they may be

    def at(self, positions: Tensor) -> Values:
        """Those at positions of the batch."""
        return self if self.bits is not None else Values(self.layout, take_rows(self.rows, positions))


class TableValues:
    """The columns of a table: a single value per key is one whose name is empty.

    Parameters
    ----------
    shard
        This rank's, a ``gpuhash.HashTable``.
    device
        Where its tensors are.
    """

    def __init__(self, shard: Any, device: torch.device) -> None:
        self._shard, self._device = shard, device
        #: Those that are named; None for a table with a single value per key.
        self.columns: dict[str, Column] | None = None if shard.columns is None else dict(shard.columns)
        fields = {"": RowFormat(shard.value_dtype, shard.value_shape)}
        if self.columns is not None:
            fields = {name: RowFormat(column.dtype, column.shape) for name, column in self.columns.items()}
        #: Rows of all columns.
        self.all = Layout(fields)
        self._layouts: dict[tuple[str, ...], Layout] = {}  # of some columns, by their names

    def layout(self, names: Iterable[str]) -> Layout:
        """Rows of these columns, in the order of the table."""
        wanted = set(names)
        if len(wanted) == len(self.all.fields):
            return self.all
        key = tuple(name for name in self.all.fields if name in wanted)
        if key not in self._layouts:
            self._layouts[key] = Layout({name: self.all.fields[name] for name in key})
        return self._layouts[key]

    def some_of(self, layout: Layout) -> Sequence[str]:
        """The columns of a row by name, where these are not all."""
        return () if layout is self.all else tuple(layout.fields)

    def chosen(self, names: Any) -> list[str]:
        """Those of the columns that a caller asks for; None: all. Raises as ``HashTable.find``."""
        if names is None:
            return list(self.all.fields)
        if self.columns is None:
            raise named_columns.no_names(names)
        return named_columns.chosen(self.columns, names)

    def by_name(self, values: Any) -> dict[str, Any]:
        """What a shard gives."""
        return {"": values} if self.columns is None else dict(values)

    def plain(self, named: dict[str, Any]) -> Any:
        """As a caller or a shard has them."""
        return named[""] if self.columns is None else named

    # What a caller gives ---------------------------------------------------------------------------------------------

    def take(self, values: Any, batch: Batch, what: str = "values") -> Values:
        """The values of a call, of each column one for each key or one for all. Raises as ``take_keys``."""
        given = self._checked(values, what)
        return self._take(given, batch, self.layout(given), what)

    def _checked(self, values: Any, what: str) -> dict[str, Any]:
        return {"": values} if self.columns is None else named_columns.by_name(self.columns, values, what)

    def _take(self, given: Mapping[str, Any], batch: Batch, layout: Layout, what: str) -> Values:
        tensors, are_alike = {}, True
        for name, field in layout.fields.items():
            label = _label(name, what)
            tensors[name] = tensor = _tensor_of(given[name], field, label)
            if tensor.shape not in ((), field.shape):
                are_alike = False
                if tensor.shape != batch.shape + field.shape:
                    raise wrong_value_shape(label, tuple(tensor.shape), batch.shape, field.shape)
        if (
            are_alike
            and layout.row.bytes <= _WORD_BYTES
            and all(each.device.type == "cpu" for each in tensors.values())
        ):
            ones = {name: each.expand(1, *layout.fields[name].shape).contiguous() for name, each in tensors.items()}
            one = layout.pack(ones)
            return Values(layout, bring(one, self._device, what), _bits_of(one, layout.row))
        rows = {}
        for name, field in layout.fields.items():
            each = bring(tensors[name], self._device, _label(name, what)).expand(batch.shape + field.shape)
            rows[name] = each.reshape(len(batch.keys), *field.shape).contiguous()
        return Values(layout, layout.pack(rows))

    def fallback(self, default: Any, batch: Batch, layout: Layout) -> Tensor:
        """The default of a lookup, as rows: one, or one for each key. Columns that it leaves out are zeros."""
        given = self._checked(default, "defaults")
        rows, count = {}, 1
        for name, field in layout.fields.items():
            each: Any = given.get(name)
            shape = each.shape if hasattr(each, "shape") else np.shape(each)
            if name not in given:
                rows[name] = self._one(None, field)
            elif len(shape) > len(field.shape) and batch.shape:
                rows[name] = self._take(given, batch, self.layout([name]), "default").rows
                count = len(batch.keys)
            else:
                rows[name] = self._one(one_value(each, field.dtype, field.shape, _label(name, "default")), field)
        return layout.pack({name: each.expand(count, *each.shape[1:]).contiguous() for name, each in rows.items()})

    def own_default(self, layout: Layout) -> Tensor:
        """The table's default, or else zeros, as one row."""
        own = self._shard._own_defaults() or {}
        return layout.pack({name: self._one(own.get(name), field) for name, field in layout.fields.items()})

    def _one(self, storage: np.ndarray[Any, Any] | None, field: RowFormat) -> Tensor:
        """One value, ``[1, *shape]``; None: zeros."""
        if storage is None:
            return field.empty(1, self._device).zero_()
        return host_tensor(storage, field.dtype).unsqueeze(0).to(self._device)

    # What it gets ----------------------------------------------------------------------------------------------------

    def answer(self, batch: Batch, layout: Layout, rows: Tensor) -> Any:
        """Values for the keys of a batch, of its rows ``[n, *layout.row.shape]``."""
        named = layout.unpack(rows)
        return self.plain({name: batch.answer(each, layout.fields[name]) for name, each in named.items()})


def _label(name: str, what: str) -> str:
    return f"{what} of {name!r}" if name else what


def _tensor_of(values: Any, field: RowFormat, what: str) -> Tensor:
    if framework_of(values).python:
        return host_tensor(encode_values(values, field.dtype, field.shape, what), field.dtype)
    return tensor_of(values, field.dtype, what)


def _bits_of(one: Tensor, row: RowFormat) -> int:
    raw = row.words(one).reshape(-1).view(torch.uint8).numpy().tobytes()
    return int.from_bytes(raw.ljust(_WORD_BYTES, b"\0"), sys.byteorder, signed=True)
