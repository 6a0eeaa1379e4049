"""The keys of a call on whole arrays: what equal keys are, whatever they consist of, and their dense numbers."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from gpuhash import _core
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.dtypes import is_integer
from gpuhash.arrays.export import to_host
from gpuhash.arrays.frameworks import ColumnFramework, framework_of, settle
from gpuhash.arrays.nulls import split_nulls


class Numbering(NamedTuple):
    """Dense numbers of keys, from 0 in order of first occurrence. In the memory of the keys' batch."""

    count: int  # distinct keys, m
    codes: _core.Array  # int64 [n], the number of each key; -1: a null that is no key
    firsts: _core.Array  # int64 [m], where each distinct key occurs first
    counts: _core.Array | None  # int64 [m], how often


class Keys:
    """The keys of a call, ``[n]``: the entries of an array, or its rows."""

    def __init__(self, batch: Batch, mask: np.ndarray[Any, Any] | None = None, *, nulls_are_keys: bool = False) -> None:
        self.batch = batch  # context, stream and framework of the call; without nulls
        self.mask = mask  # bool [n], which keys are null; None: none is
        self.nulls_are_keys = nulls_are_keys
        self.count = math.prod(batch.shape) if mask is None else len(mask)

    @classmethod
    def of(cls, keys: Any, what: str = "keys", nulls: Literal["key", "none"] = "key") -> Self:
        """The entries of an array of one dimension, or the rows of one of several, where they lie.

        ``nulls``: of columns they are one key ("key"), or none.
        """
        mask = None
        if isinstance(framework_of(keys), ColumnFramework):
            keys, mask, _ = split_nulls(keys)
        else:
            keys, _ = settle(keys)
        return cls(Batch.of_array(keys, 0, what), mask, nulls_are_keys=nulls == "key")

    def number(self, *, counts: bool = False) -> Numbering:
        """Finds the distinct keys. Waits."""
        batch = self.batch
        elements = math.prod(batch.key_shape)
        work = _core.Factorization(batch.context, batch.array, elements, True, counts, batch.stream)
        codes, firsts = (_array(batch, length) for length in (math.prod(batch.shape), work.count))
        counted = _array(batch, work.count) if counts else None
        work.write(None, codes, counted, firsts, False)
        if self.mask is None:
            return Numbering(work.count, codes, firsts, counted)
        return self._with_nulls(*(to_host(batch.context, array, batch.stream) for array in (codes, firsts)))

    def _with_nulls(self, codes: np.ndarray[Any, Any], firsts: np.ndarray[Any, Any]) -> Numbering:
        mask = self.mask
        assert mask is not None
        count = len(firsts) + self.nulls_are_keys
        all_codes = np.full(len(mask), len(firsts) if self.nulls_are_keys else -1)
        all_codes[~mask] = codes
        all_firsts = np.flatnonzero(~mask)[firsts]
        if self.nulls_are_keys:
            all_firsts = np.append(all_firsts, np.argmax(mask))
            order = np.argsort(all_firsts)  # of first occurrence
            all_codes, all_firsts = np.argsort(order)[all_codes], all_firsts[order]
        return Numbering(count, self.batch.lend(all_codes, "int64"), self.batch.lend(all_firsts, "int64"), None)

    def distinct(self, numbering: Numbering) -> Any:
        """The distinct keys ``[m]`` of a numbering of these keys, in the form in which keys were given."""
        batch = self.batch
        work = _core.Factorization(batch.context, batch.array, math.prod(batch.key_shape), False, False, batch.stream)
        uniques = Output(batch, batch.array.dtype, (numbering.count, *batch.key_shape))
        work.write(uniques.array, None, None, None, False)
        return uniques.result(batch)


def number_together(left: Keys, right: Keys) -> tuple[_core.Array, Numbering]:
    """The numbers of the left keys among those of the right ones, int64 ``[n_left]``, -1 where absent. Waits.

    Raises
    ------
    TypeError, ValueError
        For keys of other dtypes or shapes, or on another device.
    """
    ours, theirs = left.batch, right.batch
    if (ours.array.dtype, ours.key_shape) != (theirs.array.dtype, theirs.key_shape):
        raise TypeError(
            f"the left keys are {ours.array.dtype} of shape {ours.key_shape} and the right ones "
            f"{theirs.array.dtype} of shape {theirs.key_shape}: convert one to the other's dtype"
        )
    if ours.context.device != theirs.context.device:
        raise ValueError(f"the left keys are on {ours.context.device} and the right ones on {theirs.context.device}")
    numbers = right.number()
    null = -1
    if right.mask is not None and right.nulls_are_keys:
        null = int(to_host(theirs.context, numbers.codes, theirs.stream)[np.argmax(right.mask)])
    if is_integer(ours.array.dtype) and right.mask is None:
        table = _core.Table(
            [ours.context],
            ours.array.dtype,
            math.prod(ours.key_shape),
            "int64",
            (),
            0,
            None,
            0.8,
            False,
            None,
            None,
            False,
        )
        writes = [(0, numbers.codes, False, "assign")]
        table.change([(table, theirs.array, writes, [], None, None, ours.stream)])
        codes = _array(ours, math.prod(ours.shape))
        none = ours.lend(np.full((), -1), "int64")
        table.look_up([(table, ours.array, [(0, codes, none)], None, None, ours.stream)])
    else:
        codes = _number_on_host(left, right, null)
    if left.mask is None:
        return codes, numbers
    all_codes = np.full(len(left.mask), null)
    all_codes[~left.mask] = to_host(ours.context, codes, ours.stream)
    return ours.lend(all_codes, "int64"), numbers


def _number_on_host(left: Keys, right: Keys, null: int) -> _core.Array:
    """Of keys without nulls: the right ones first, and then the left ones, so that those have the same numbers.

    ``null``: the number of the right nulls, or -1.
    """
    ours, theirs = (to_host(side.batch.context, side.batch.array, side.batch.stream) for side in (left, right))
    both = Batch.of_array(np.concatenate([theirs, ours]), 0, "keys")
    elements = math.prod(both.key_shape)
    work = _core.Factorization(both.context, both.array, elements, True, False, both.stream)
    codes, firsts = np.empty(len(ours) + len(theirs), np.int64), np.empty(work.count, np.int64)
    work.write(None, _core.borrow(codes), None, _core.borrow(firsts), False)
    codes = codes[len(theirs) :]
    codes[codes >= np.searchsorted(firsts, len(theirs))] = -1
    if null >= 0:
        codes += codes >= null
    return left.batch.lend(codes, "int64")


def _array(batch: Batch, length: int) -> _core.Array:
    return _core.Buffer(batch.context, "int64", (length,), batch.stream).array()
