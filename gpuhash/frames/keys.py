"""The keys of a call on whole arrays: what equal keys are, whatever they consist of, and their dense numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np

from gpuhash import _core
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.dtypes import ITEMSIZES
from gpuhash.arrays.frameworks import settle


class Numbering(NamedTuple):
    """Dense numbers of keys, from 0 in order of first occurrence. In the memory of the keys' batch."""

    count: int  # type: ignore[assignment]  # distinct keys, m
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

    def fold_words(self) -> tuple[_core.Array, int] | None:
        """The keys as rows of up to 8 bytes, and how many numbers a row has; None where they are others."""
        batch = self.batch
        elements = math.prod(batch.key_shape)
        return (batch.array, elements) if elements * ITEMSIZES[batch.array.dtype] <= 8 else None

    def distinct(self, numbering: Numbering) -> Any:
        """The distinct keys ``[m]`` of a numbering of these keys, in the form in which keys were given."""
        batch = self.batch
        uniques = Output(batch, batch.array.dtype, (numbering.count, *batch.key_shape))
        if batch.context.platform == "cpu":
            rows, firsts = (_view(array) for array in (batch.array, numbering.firsts))
            np.take(rows, firsts.view(np.int64).ravel(), axis=0, out=_view(uniques.array))
        else:
            elements = math.prod(batch.key_shape)
            work = _core.Factorization(batch.context, batch.array, elements, False, False, batch.stream)
            work.write(uniques.array, None, None, None, self.sorted)
        return uniques.result(batch)


class _Lender:
    def __init__(self, array: _core.Array) -> None:
        self.array = array
        shape = (array.shape[0], math.prod(array.shape[1:]) * ITEMSIZES[array.dtype])
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": shape,
            "data": (array.data, array.readonly),
        }


def _view(array: _core.Array) -> np.ndarray[Any, Any]:
    """The bytes of an array on the host, [n, row], without a copy."""
    lent = np.asarray(_Lender(array))
    return lent.view(f"V{lent.shape[1]}") if lent.size else lent


def _array(batch: Batch, length: int) -> _core.Array:
    return _core.Buffer(batch.context, "int64", (length,), batch.stream).array()
