"""Rows that go between processes: what one has, and values of several columns side by side in one."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gpuhash.arrays.dtypes import ITEMSIZES
from gpuhash.arrays.frameworks import Shape

from .words import from_words, to_words, torch_dtype, word_dtype


@dataclass(frozen=True)
class RowFormat:
    """What a row has: a key, or what goes along with it."""

    dtype: str
    shape: Shape

    @functools.cached_property
    def bytes(self) -> int:
        """Of one row."""
        return math.prod(self.shape) * ITEMSIZES[self.dtype]

    def empty(self, count: int, device: torch.device | str) -> Tensor:
        """``[count, *shape]``, of anything."""
        return torch.empty(count, *self.shape, dtype=torch_dtype(self.dtype), device=device)

    def words(self, rows: Tensor) -> Tensor:
        """``[n, *shape]`` as words."""
        return to_words(rows, rows.shape[0], self.bytes)

    def of_words(self, words: Tensor) -> Tensor:
        """The rows ``[n, *shape]`` whose words these are; the same memory."""
        return from_words(words, self.dtype, self.shape)

    def of_bits(self, bits: int, device: torch.device) -> Tensor:
        """The one row ``[1, *shape]`` of these bits, without a copy from the host."""
        word = torch.full((1,), bits, dtype=torch.int64, device=device)
        return word.view(torch.uint8)[: self.bytes].view(torch_dtype(self.dtype)).view(1, *self.shape)


BOOL = RowFormat("bool", ())
INT64 = RowFormat("int64", ())


class Layout:
    """Where the values of a key lie in its row: those of one column alone, or of several side by side, as words.

    Parameters
    ----------
    fields
        The columns by name, in the order that they have in a row. A single value is one whose name is empty.
    """

    def __init__(self, fields: Mapping[str, RowFormat]) -> None:
        self.fields = dict(fields)
        sizes = [field.bytes for field in self.fields.values()]
        width = math.gcd(8, *sizes)
        ends = list(itertools.accumulate(size // width for size in sizes))
        #: Of one row.
        self.row = next(iter(self.fields.values())) if len(sizes) == 1 else RowFormat(word_dtype(width), (ends[-1],))
        self._width = width
        self._places = dict(zip(self.fields, itertools.pairwise([0, *ends]), strict=True))  # in words, of several

    def pack(self, values: Mapping[str, Tensor]) -> Tensor:
        """Rows ``[n, *row.shape]`` of the values ``[n, *shape]`` of each column; of one column the same memory."""
        if len(self.fields) == 1:
            return next(iter(values.values()))
        return torch.cat([self._words(name, values[name]) for name in self.fields], 1)

    def pack_into(self, rows: Tensor, values: Mapping[str, Tensor]) -> None:
        """Puts the values into rows that are there."""
        for name, (begin, end) in self._places.items():
            rows[:, begin:end].copy_(self._words(name, values[name]))

    def unpack(self, rows: Tensor) -> dict[str, Tensor]:
        """The values ``[n, *shape]`` of each column; of one column the same memory."""
        if len(self.fields) == 1:
            return dict.fromkeys(self.fields, rows)
        values = {}
        for name, (begin, end) in self._places.items():
            words = rows[:, begin:end].clone(memory_format=torch.contiguous_format)  # one row is dense as it is, and
            values[name] = self.fields[name].of_words(words)  # may lie at no multiple of the dtype's size
        return values

    def _words(self, name: str, values: Tensor) -> Tensor:
        """``[n, words]``"""
        field, count = self.fields[name], values.shape[0]
        return to_words(values, count, field.bytes, self._width).view(count, field.bytes // self._width)
