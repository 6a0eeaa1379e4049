"""The values of a multimap, in the order in which they came, and which of them belong to one key."""

from __future__ import annotations

import itertools
from typing import NamedTuple, Self

import numpy as np

from gpuhash import _core
from gpuhash.arrays.frameworks import Shape


class Place(NamedTuple):
    """The memory and the stream that work is done in."""

    context: _core.Context
    stream: int

    def at(self, context: _core.Context) -> Place:
        """Where a call from here works in the memory of another context."""
        return Place(context, self.stream if context.device == self.context.device else 0)

    def wait(self) -> None:
        """Waits for the work that is enqueued."""
        self.context.synchronize(self.stream)

    def array(self, dtype: str, shape: Shape) -> _core.Array:
        """Memory here."""
        return _core.Buffer(self.context, dtype, shape, self.stream).array()

    def numbers(self, count: int) -> _core.Array:
        """Memory here for int64 ``[count]``."""
        return self.array("int64", (count,))

    def count_up(self, count: int) -> _core.Array:
        """The numbers from 0 here, int64 ``[count]``."""
        numbers = self.numbers(count)
        _core.count_up(self.context, numbers, self.stream)
        return numbers

    def number(self, value: int) -> _core.Array:
        """One int64 here."""
        host = _core.borrow(np.full((), value))
        if self.context.platform == "cpu":
            return host
        array = self.array("int64", ())
        self.context.copy(array, host, self.stream)
        return array

    def gather(self, rows: _core.Array, positions: _core.Array) -> _core.Array:
        """``rows[positions]``"""
        out = self.array(rows.dtype, (positions.shape[0], *rows.shape[1:]))
        _core.gather_rows(self.context, rows, positions, out, 0, self.stream)
        return out

    def fetch(self, array: _core.Array, source: Place, out: _core.Array | None = None) -> _core.Array:
        """An array of the source's, in memory that work here can read, or in ``out``. Waits where it is copied."""
        if self.context.device == source.context.device:
            if out is None:
                return array
            _core.copy_rows(self.context, array, array.shape[0], out, 0, self.stream)
            return out
        source.wait()
        out = self.array(array.dtype, array.shape) if out is None else out
        self.context.copy_from(out, source.context, array, self.stream)
        return out


class ValueLog:
    """Values in *runs*: those that came in one batch for one key, side by side. A key's runs are a chain.

    All lies in one context's memory, and is used in the order of one stream at a time.
    """

    def __init__(self, place: Place, dtype: str, shape: Shape) -> None:
        self.context = place.context
        self.dtype = dtype
        self.shape = shape
        self.length = 0  # values
        self.runs = 0
        self._values = place.array(dtype, (0, *shape))
        self._begins = place.numbers(1)  # [runs + 1], positions in the log
        self._nexts = place.numbers(0)  # [runs], the next run of the same key, or -1

    def reserve(self, values: int, runs: int, stream: int) -> None:
        """Makes room for so many more. MemoryError where there is none."""
        self._values = self._grown(self._values, self.length, values, stream)
        begins = self.runs and self.runs + 1  # the first run writes where it begins, and each where it ends
        self._begins = self._grown(self._begins, begins, self.runs + 1 + runs - begins, stream)
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

        The values are ``values[order]``, or as they lie. Those ``[offsets[j], offsets[j + 1])`` are run j; without
        offsets value j alone. It follows the run ``tails[j]``; without these, and for -1, it is its key's first one.
        """
        count = values.shape[0] if order is None else order.shape[0]
        if order is None:
            _core.copy_rows(self.context, values, count, self._values, self.length, stream)
        else:
            _core.gather_rows(self.context, values, order, self._values, self.length, stream)
        ids = Place(self.context, stream).numbers(runs)
        _core.append_runs(self.context, self._begins, self._nexts, self.runs, self.length, offsets, tails, ids, stream)
        self.length += count
        self.runs += runs
        return ids

    def find(self, heads: _core.Array, runs: _core.Array | None, stream: int) -> _core.Pairs:
        """The values of keys whose first runs are ``heads``, -1 for none, as pairs with positions in the log.

        ``runs``: how many each key has; None where none has more than one, and then each pair's left side is the key.
        """
        if runs is not None:
            place = Place(self.context, stream)
            offsets = place.numbers(heads.shape[0] + 1)
            listed = place.numbers(_core.sum_up(self.context, runs, offsets, stream))
            _core.list_runs(self.context, self._nexts, heads, offsets, listed, stream)
            heads = listed
        return _core.Pairs(self.context, heads, self._begins, None, "inner", stream)

    def positions(self, heads: _core.Array, runs: _core.Array | None, stream: int) -> _core.Array:
        """Where the values of these keys are in the log, int64 ``[values]``; as ``find``."""
        return positions_of(self.find(heads, runs, stream), Place(self.context, stream))

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
        return type(self)(Place(self.context, stream), self.dtype, self.shape)

    def _grown(self, array: _core.Array, used: int, more: int, stream: int) -> _core.Array:
        room = array.shape[0]
        if used + more <= room:
            return array
        grown = Place(self.context, stream).array(array.dtype, (max(used + more, 2 * room), *array.shape[1:]))
        _core.copy_rows(self.context, array, used, grown, 0, stream)
        self.context.synchronize(stream)  # the old memory goes back in the order of the stream that it was made on
        return grown


class ValueLogs:
    """A log for each shard of a table, with the values of that shard's keys; of a single table one."""

    def __init__(self, logs: list[ValueLog], owner_seed: int) -> None:
        self.logs = logs
        self._owner_seed = owner_seed
        self._splitters: dict[str, _core.Splitter] = {}  # by devices

    @property
    def length(self) -> int:
        """Values."""
        return sum(log.length for log in self.logs)

    @property
    def runs(self) -> int:
        return sum(log.runs for log in self.logs)

    def clear(self) -> None:
        """Without values; the memory stays."""
        for log in self.logs:
            log.clear()

    def of(self, logs: list[ValueLog]) -> Self:
        """Other logs of the same shards."""
        return type(self)(logs, self._owner_seed)

    def copy(self, here: Place) -> Self:
        """Waits."""
        made = [log.copy(here.at(log.context).stream) for log in self.logs]
        for log in made:
            here.at(log.context).wait()
        return self.of(made)

    def append(
        self,
        here: Place,
        keys: _core.Array,
        values: _core.Array,
        counts: _core.Array,
        order: _core.Array | None,
        offsets: _core.Array | None,
        tails: _core.Array,
    ) -> _core.Array:
        """A run for each of distinct keys ``[runs, ...]``, in its shard's log, as ``ValueLog.append``, but makes room.

        ``counts``: how many values each key has.

        Raises
        ------
        MemoryError
            Where there is none: no run counts that the table does not know of.
        """
        runs = keys.shape[0]
        if len(self.logs) == 1:
            count = values.shape[0] if order is None else order.shape[0]
            self.logs[0].reserve(count, runs, here.stream)
            return self.logs[0].append(values, order, offsets, tails, runs, here.stream)
        split = _Split(self._splitter(here), keys, len(self.logs), self._owner_seed, here)
        numbers = split.sort(here.count_up(runs))
        parts = []
        for log, (begin, end) in zip(self.logs, split.spans, strict=True):
            there, mine, begins = here.at(log.context), numbers.part(begin, end), None
            chosen = mine  # values by their places in the order
            if offsets is not None:
                begins = here.numbers(end - begin + 1)
                _core.sum_up(here.context, here.gather(counts, mine), begins, here.stream)
                begins = there.fetch(begins, here)
                chosen = positions_of(_core.Pairs(here.context, mine, offsets, None, "inner", here.stream), here)
            if order is not None:
                chosen = here.gather(order, chosen)
            log.reserve(chosen.shape[0], end - begin, there.stream)
            rows, ends = here.gather(values, chosen), here.gather(tails, mine)
            parts.append((there.fetch(rows, here), begins, there.fetch(ends, here)))
        ids = here.numbers(runs)
        for log, (begin, end), (rows, begins, ends) in zip(self.logs, split.spans, parts, strict=True):
            there = here.at(log.context)
            made = log.append(rows, None, begins, ends, end - begin, there.stream)
            here.fetch(made, there, ids.part(begin, end))
        return split.gather(ids)

    def read(
        self,
        here: Place,
        keys: _core.Array,
        heads: _core.Array,
        counts: _core.Array,
        runs: _core.Array | None,
        out: _core.Array,
    ) -> None:
        """The values of keys ``[n, ...]``, one key's behind the other's. ``heads`` and ``runs`` are as for
        ``ValueLog.find``; ``counts``: how many values each has.
        """
        if len(self.logs) == 1:
            return self.logs[0].read(self.logs[0].positions(heads, runs, here.stream), out, here.stream)
        if keys.shape[0] == 0:
            return None
        split = _Split(self._splitter(here), keys, len(self.logs), self._owner_seed, here)
        heads, runs = split.sort(heads), None if runs is None else split.sort(runs)
        begins = here.numbers(keys.shape[0] + 1)
        total = _core.sum_up(here.context, split.sort(counts), begins, here.stream)
        values, at = here.array(out.dtype, (total, *out.shape[1:])), 0  # in the order of the owners
        for log, span in zip(self.logs, split.spans, strict=True):
            there = here.at(log.context)
            chains = None if runs is None else there.fetch(runs.part(*span), here)
            positions = log.positions(there.fetch(heads.part(*span), here), chains, there.stream)
            end = at + positions.shape[0]
            self.read_at(here, log, positions, values.part(at, end))
            at = end
        places = split.gather(here.count_up(keys.shape[0]))
        pairs = _core.Pairs(here.context, places, begins, None, "inner", here.stream)
        _core.gather_rows(here.context, values, positions_of(pairs, here), out, 0, here.stream)
        return None

    @staticmethod
    def read_at(here: Place, log: ValueLog, positions: _core.Array, out: _core.Array) -> None:
        """The values at positions of one log, to an array that is here."""
        there = here.at(log.context)
        if there.context.device == here.context.device:
            log.read(positions, out, there.stream)
            return
        rows = there.array(out.dtype, out.shape)
        log.read(positions, rows, there.stream)
        here.fetch(rows, there, out)

    def _splitter(self, here: Place) -> _core.Splitter:
        device = here.context.device
        if device not in self._splitters:
            self._splitters[device] = _core.Splitter(here.context)
        return self._splitters[device]


class _Split:
    """Keys ``[n, ...]`` by shards, in whose order they come in arrays that are sorted. n is 1 or more."""

    def __init__(self, splitter: _core.Splitter, keys: _core.Array, parts: int, seed: int, here: Place) -> None:
        self._here = here
        self._core = _core.Split(splitter, keys, parts, parts - 1, 1, 0, seed, here.stream)
        self._core.sort_keys(here.array(keys.dtype, keys.shape))
        ends = list(itertools.accumulate(self._core.counts(), initial=0))
        #: Of each shard, where its keys begin and end.
        self.spans = list(itertools.pairwise(ends))

    def sort(self, rows: _core.Array) -> _core.Array:
        """Rows ``[n, ...]`` of the keys in the order of their shards."""
        out = self._here.array(rows.dtype, rows.shape)
        self._core.sort(rows, out)
        return out

    def gather(self, rows: _core.Array) -> _core.Array:
        """The reverse."""
        out = self._here.array(rows.dtype, rows.shape)
        self._core.gather(rows, out)
        return out


def positions_of(pairs: _core.Pairs, place: Place) -> _core.Array:
    """The right sides of all pairs."""
    positions = place.numbers(pairs.count)
    pairs.write(0, pairs.count, None, positions, 0)
    return positions
