"""The keys of a call on whole arrays: what equal keys are, whatever they consist of, and their dense numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

from gpuhash import _core
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.frameworks import settle


class Numbering(NamedTuple):
    """Dense numbers of keys, from 0 in order of first occurrence. In the memory of the keys' batch."""

    count: int  # distinct keys, m
    codes: _core.Array  # int64 [n], the number of each key
    firsts: _core.Array  # int64 [m], where each distinct key occurs first
    counts: _core.Array | None  # int64 [m], how often


class Keys:
    """The keys of a call, ``[n]``: the entries of an array, or its rows."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch  # context, stream and framework of the call
        self.count = math.prod(batch.shape)
        self.sorted = False

    @classmethod
    def of(cls, keys: Any, what: str = "keys", *, nulls: str = "key") -> Self:
        """The entries of an array of one dimension, or the rows of one of several, where they lie."""
        keys, _ = settle(keys)
        batch = Batch.of_array(keys, 0, what)
        return cls(batch)

    def number(self, *, counts: bool = False, sorted: bool = False) -> Numbering:
        """Finds the distinct keys. Waits."""
        batch = self.batch
        self.sorted = sorted
        elements = math.prod(batch.key_shape)
        work = _core.Factorization(batch.context, batch.array, elements, True, counts, batch.stream)
        codes, firsts = (_array(batch, length) for length in (self.count, work.count))
        counted = _array(batch, work.count) if counts else None
        work.write(None, codes, counted, firsts, sorted)
        return Numbering(work.count, codes, firsts, counted)

    def distinct(self, numbering: Numbering) -> Any:
        """The distinct keys ``[m]`` of a numbering of these keys, in the form in which keys were given."""
        batch = self.batch
        work = _core.Factorization(batch.context, batch.array, math.prod(batch.key_shape), False, False, batch.stream)
        uniques = Output(batch, batch.array.dtype, (numbering.count, *batch.key_shape))
        work.write(uniques.array, None, None, None, self.sorted)
        return uniques.result(batch)


def _array(batch: Batch, length: int) -> _core.Array:
    return _core.Buffer(batch.context, "int64", (length,), batch.stream).array()
