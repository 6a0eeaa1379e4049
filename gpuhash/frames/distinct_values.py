"""The distinct values of each group: of the pairs of a group and a value, the distinct ones."""

from __future__ import annotations

from typing import NamedTuple

from gpuhash import _core
from gpuhash.arrays.batch import Batch


class Pairs(NamedTuple):
    """Distinct pairs of a group and a value."""

    groups: _core.Array  # int64 [p], the group's number; one may be -1, which stands for what is in none
    firsts: _core.Array  # int64 [p], where each pair occurs first


def find_pairs(batch: Batch, codes: _core.Array, values: _core.Array, valid: _core.Array | None) -> Pairs:
    """Of rows with the groups' numbers ``codes``, int64 ``[n]``, and their values ``[n]``. Waits.

    Values are compared as by ``unique``. ``valid``: bool ``[n]``, False for no value; None: all are some.
    """
    context, stream = batch.context, batch.stream
    kinds = _core.Factorization(context, values, 1, True, False, stream)
    both = batch.new("int64", codes.shape)
    kinds.write(None, both, None, None, False)
    _core.pair_codes(context, codes, both, kinds.count, valid, both, stream)
    work = _core.Factorization(context, both, 1, False, False, stream)
    groups, firsts = (batch.new("int64", (work.count,)) for _ in range(2))
    work.write(groups, None, None, firsts, False)
    _core.split_pairs(context, groups, max(1, kinds.count), groups, stream)
    return Pairs(groups, firsts)


def count_pairs(batch: Batch, groups: _core.Array, count: int, out: _core.Array) -> None:
    """How many pairs each of ``count`` groups has, to ``out``, int64 ``[count]``."""
    _core.aggregate(batch.context, groups, count, [("count", None, None, out, 1.0, None, None)], batch.stream)
