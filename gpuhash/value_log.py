"""The values of a multimap, in the order in which they came, and which of them belong to one key."""

from __future__ import annotations

from typing import Self

from . import _core
from .arrays.frameworks import Shape


class ValueLog:
    """Values in *runs*: those that came in one batch for one key, side by side. A key's runs are a chain.

    All lies in one context's memory, and is used in the order of one stream at a time.
    """

    def __init__(self, context: _core.Context, dtype: str, shape: Shape, stream: int) -> None:
        self.context = context
        self.length = 0  # values
        self.runs = 0
        self._values = self._array(dtype, (0, *shape), stream)
        self._begins = self._array("int64", (1,), stream)  # [runs + 1], positions in the log
        self._nexts = self._array("int64", (0,), stream)  # [runs], the next run of the same key, or -1

    def reserve(self, values: int, runs: int, stream: int) -> None:
        """Makes room for so many more. MemoryError where there is none."""
        self._values = self._grown(self._values, self.length, values, stream)
        self._begins = self._grown(self._begins, self.runs + 1, runs, stream)
        self._nexts = self._grown(self._nexts, self.runs, runs, stream)

    def append(
        self,
        values: _core.Array,
        order: _core.Array | None,
        offsets: _core.Array | None,
        tails: _core.Array | None,
        runs: int,
        stream: int,
    ) -> _core.Array:
        """A run for each of a batch's keys, for which there is room; returns their numbers, int64 ``[runs]``.

        Run j is of the values ``order[offsets[j] : offsets[j + 1]]``; without these value j alone. It follows the run
        ``tails[j]``; without these, and for -1, it is its key's first one.
        """
        count = runs if order is None else order.shape[0]
        if order is None:
            _core.copy_rows(self.context, values, count, self._values, self.length, stream)
        else:
            _core.gather_rows(self.context, values, order, self._values, self.length, stream)
        ids = self._array("int64", (runs,), stream)
        _core.append_runs(self.context, self._begins, self._nexts, self.runs, self.length, offsets, tails, ids, stream)
        self.length += count
        self.runs += runs
        return ids

    def find(self, heads: _core.Array, runs: _core.Array | None, stream: int) -> _core.Pairs:
        """The values of keys whose first runs are ``heads``, -1 for none, as pairs with positions in the log.

        ``runs``: how many each key has; None where none has more than one, and then each pair's left side is the key.
        """
        if runs is not None:
            offsets = self._array("int64", (heads.shape[0] + 1,), stream)
            listed = self._array("int64", (_core.sum_up(self.context, runs, offsets, stream),), stream)
            _core.list_runs(self.context, self._nexts, heads, offsets, listed, stream)
            heads = listed
        return _core.Pairs(self.context, heads, self._begins, None, "inner", stream)

    def read(self, positions: _core.Array, out: _core.Array, stream: int) -> None:
        """The values at ``positions``, to ``out``."""
        _core.gather_rows(self.context, self._values, positions, out, 0, stream)

    def compacted(self, positions: _core.Array, offsets: _core.Array, stream: int) -> tuple[Self, _core.Array]:
        """A new log of the values at ``positions``, a run for each part that offsets tell, and the runs' numbers."""
        runs = offsets.shape[0] - 1
        log = self._empty(stream)
        log.reserve(positions.shape[0], runs, stream)
        return log, log.append(self._values, positions, offsets, None, runs, stream)

    def copy(self, stream: int) -> Self:
        log = self._empty(stream)
        log.reserve(self.length, self.runs, stream)
        _core.copy_rows(self.context, self._values, self.length, log._values, 0, stream)
        _core.copy_rows(self.context, self._begins, self.runs + 1, log._begins, 0, stream)
        _core.copy_rows(self.context, self._nexts, self.runs, log._nexts, 0, stream)
        log.length, log.runs = self.length, self.runs
        return log

    def clear(self) -> None:
        """Without values; the memory stays."""
        self.length = self.runs = 0

    def _empty(self, stream: int) -> Self:
        return type(self)(self.context, self._values.dtype, self._values.shape[1:], stream)

    def _grown(self, array: _core.Array, used: int, more: int, stream: int) -> _core.Array:
        room = array.shape[0]
        if used + more <= room:
            return array
        grown = self._array(array.dtype, (max(used + more, 2 * room), *array.shape[1:]), stream)
        _core.copy_rows(self.context, array, used, grown, 0, stream)
        self.context.synchronize(stream)  # the old memory goes back in the order of the stream that it was made on
        return grown

    def _array(self, dtype: str, shape: Shape, stream: int) -> _core.Array:
        return _core.Buffer(self.context, dtype, shape, stream).array()
