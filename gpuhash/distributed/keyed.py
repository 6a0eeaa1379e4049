"""What distributed tables and sets do with keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gpuhash import _core
from gpuhash._core import TableFullError
from gpuhash.arrays.arguments import SHOWN_KEYS, absent_keys, not_one_key
from gpuhash.arrays.dtypes import MAX_ROW_BYTES
from gpuhash.frames.factorization import unique

from .batch import Batch, look_for_keys, take_keys, unpack_keys
from .call import Call, Prepared, attempt
from .duplicates import FAST_ROW, Sample, choose, find_distinct
from .rows import BOOL, RowFormat
from .shards import Shards
from .words import take_rows, to_numpy


class Keyed(Shards):
    """Calls with keys; HashTable and HashSet derive from it."""

    # The parts of a call ---------------------------------------------------------------------------------------------

    def _ask(self, prepare: Callable[[], Prepared]) -> Call:
        """A call whose keys are on their way; ``look_up`` is what follows, or ``receive``."""
        return Call(self._steps, self._seed, prepare, self._key)

    def _change(
        self,
        operation: str,
        prepare: Callable[[], Prepared],
        work: Callable[[Call], Any],
        formats: Sequence[RowFormat] = (),
        *,
        inserts: bool = True,
    ) -> tuple[Call, list[Tensor]]:
        """One call that changes the table: what owners do with keys when all have theirs, and the answers to it.

        ``inserts``: there has to be room for the keys before any is put in.
        """
        with self._steps.call(operation):
            call = self._ask(prepare)
            call.receive()
            self._agree(lambda: self._make_room(call.keys) if inserts else None)
            return call, call.serve(lambda: work(call), formats)

    def _look_up(
        self,
        operation: str,
        prepare: Callable[[], Prepared],
        work: Callable[[Tensor, list[Tensor]], Any],
        formats: Sequence[RowFormat],
    ) -> tuple[Call, list[Tensor]]:
        """One call that changes nothing: ``work`` is as for ``Call.look_up``."""
        with self._steps.call(operation):
            call = self._ask(prepare)
            return call, call.look_up(work, formats)

    def _take(self, keys: Any) -> Batch:
        return take_keys(keys, self._key, self._key_columns, self._steps.device)

    def _look_for(self, keys: Any) -> Batch:
        return look_for_keys(keys, self._key, self._key_columns, self._steps.device)

    def _sample(self, batch: Batch) -> Sample:
        steps = self._steps
        return Sample(batch.keys, steps.size, self._seed, steps.splitter, are_sent_fast=self._are_sent_fast())

    def _are_sent_fast(self) -> bool:
        return self._steps.wire.type == "cuda" and self._row_bytes <= FAST_ROW

    def _are_many(self, batch: Batch) -> bool:
        """Are duplicates to be taken together before the exchange?"""
        sample = self._sample(batch)
        batch.split = self._steps.split(batch.keys, self._seed)  # while that is on its way
        return sample.has_many()

    def _can_merge(self) -> bool:
        """Do hot keys become one while a batch is sorted by owner, where an operation allows it?"""
        return self._are_sent_fast() and self._key.bytes <= MAX_ROW_BYTES and 1 < self._steps.size <= _core.MAX_PARTS

    def _merged(self, batch: Batch) -> Batch:
        """Begins to sort the batch so."""
        batch.split = self._steps.split(batch.keys, self._seed, self._sample(batch).core)
        return batch

    def _lookup(self, batch: Batch) -> Prepared:
        """The keys of a call that changes nothing, and whose answers are the same for all duplicates."""
        if self._can_merge():
            return Prepared(self._merged(batch))
        return Prepared(batch, find_distinct(batch.keys) if self._are_many(batch) else None)

    def _each_once(self, batch: Batch) -> Prepared:
        """The keys of a call whose answer goes to one of a key's duplicates."""
        return Prepared(batch, choose(batch.keys, last=False) if self._are_many(batch) else None)

    def _make_room(self, keys: Tensor) -> None:
        """Makes room in the shard for the keys received, of which it knows only those that it has to.

        Raises
        ------
        TableFullError, MemoryError
            Where there is none; all items are there as before.
        """
        shard, count = self._shard, len(keys)
        self._size_bound += count
        limit = int(shard.capacity * shard.max_load_factor)
        if self._size_bound <= limit:
            return
        size = len(shard)
        if size + count > limit:
            absent = torch.nonzero(~shard.contains(keys)).view(-1)
            count = len(unique(take_rows(keys, absent), axis=0 if self._key.shape else None))
            if size + count > limit:
                try:
                    shard.reserve(max(size + count, 2 * limit))  # twice, so that growing costs a constant per key
                except (TableFullError, MemoryError):
                    shard.reserve(size + count)
        self._size_bound = size + count

    def _erase(self, operation: str, keys: Any) -> Any:
        call, (erased,) = self._change(
            operation,
            lambda: self._each_once(self._look_for(keys)),
            lambda call: [self._shard.erase(call.keys)],
            [BOOL],
            inserts=False,
        )
        return call.batch.answer(call.for_one(erased), BOOL)

    def _erase_present(self, operation: str, keys: Any) -> None:
        """Erases keys, or none if any is absent: a KeyError on all ranks."""
        with self._steps.call(operation):
            call = self._ask(lambda: self._lookup(self._look_for(keys)))
            (found,) = call.look_up(self._contained, [BOOL])
            self._check_present(call, found)
            call.serve(lambda: self._shard.erase(call.keys))

    def _contained(self, keys: Tensor, out: list[Tensor]) -> None:
        self._shard.contains(keys, out=out[0])

    def _check_present(self, call: Call, found: Tensor, *, needed: bool = True) -> None:
        """KeyError on all ranks where one of them has absent keys, and needs them."""
        self._agree(lambda: self._raise_absent(call, found) if needed else None)

    def _raise_absent(self, call: Call, found: Tensor) -> None:
        if call.batch.outside is not None:
            raise KeyError(f"1 of 1 keys are absent: {call.batch.outside}")
        present = call.for_all(found)
        missing = len(present) - int(present.sum())
        if not missing:
            return
        some = to_numpy(take_rows(call.batch.keys, torch.nonzero(~present).view(-1)[:SHOWN_KEYS]), self._key.dtype)
        raise KeyError(absent_keys(self._shard._as_keys(some), missing, len(present)))

    def _pop_item(self, operation: str, pop: Callable[[Any], Any], empty: str) -> Any:
        """What ``pop`` takes out of one shard, on all ranks. KeyError on all where all shards are empty."""
        with self._steps.call(operation):
            size, problem = attempt(lambda: len(self._shard))
            sizes = self._steps.open([size or 0] * self.world_size, problem).receive
            owner = next((rank for rank, size in enumerate(sizes) if size), None)
            if owner is None:
                raise self._steps.on_all(KeyError(empty))
            item, problem = attempt(lambda: pop(self._shard) if self.rank == owner else None)
            return self._steps.tell_all(item, problem)[owner]

    def _brought(self, keys: Any) -> Any:
        """The keys of a local table, as PyTorch's tensors, where this one is."""
        if isinstance(keys, Mapping):
            return {name: part.to(self._steps.device) for name, part in keys.items()}
        return keys.to(self._steps.device)

    def _columns_of(self, rows: Tensor) -> Any:
        """Keys as they are given: with key columns each of these by its name."""
        return rows if self._key_columns is None else unpack_keys(rows, self._key_columns)

    # Keys ------------------------------------------------------------------------------------------------------------

    def contains(self, keys: Any) -> Any:
        """Which of this rank's keys are in the table. Collective; waits.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``, as for all operations.

        Returns
        -------
        bool tensor of shape ``batch``, on the device of the keys.

        Raises
        ------
        TypeError, ValueError, OverflowError
            On all ranks, where one rank's keys are of another dtype, or of a shape or device that does not fit.
        """
        return self._contains(lambda: self._look_for(keys))

    def __contains__(self, key: object) -> bool:
        """Is this rank's one key in the table? Collective; waits. TypeError on all ranks for a batch of one of them."""

        def one_key() -> Batch:
            batch = self._look_for(key)
            if batch.shape:
                raise not_one_key(batch.shape)
            return batch

        return bool(self._contains(one_key))

    def _contains(self, take: Callable[[], Batch]) -> Any:
        call, (found,) = self._look_up("contains", lambda: self._lookup(take()), self._contained, [BOOL])
        return call.batch.answer(call.for_all(found), BOOL)

    def erase(self, keys: Any) -> Any:
        """Erases all ranks' keys; absent ones are passed over. Collective; waits.

        Returns
        -------
        bool tensor of shape ``batch``: true for exactly one of an erased key's duplicates over all ranks.
        """
        return self._erase("erase", keys)

    def keys(self, like: Any = "torch") -> Any:
        """The keys of this rank's shard alone, ``[len(shard), *key_shape]``; ``like`` as for ``gpuhash.HashTable``.

        Not collective; ``gather`` gives those of all ranks. Waits.
        """
        return self._shard.keys(like)

    def _gather(
        self, rank: int | None, formats: Sequence[RowFormat], rows: Callable[[], list[Tensor]]
    ) -> list[Tensor] | None:
        """The rows of all ranks, such as keys: on one rank, or on all."""
        steps = self._steps

        def own() -> list[Tensor]:
            if rank is not None and not 0 <= rank < steps.size:
                raise ValueError(f"rank={rank} was given, expected a rank from 0 to {steps.size - 1}, or None for all")
            return [row.words(each) for each, row in zip(rows(), formats, strict=True)]

        with steps.call(f"gather(rank={rank})"):
            words, problem = attempt(own)
            size = 0 if problem else len(words[0])
            sizes = [size if rank in (None, other) else 0 for other in range(steps.size)]
            send, receive, _ = steps.open(sizes, problem)
            copies = [torch.cat([each] * steps.size) for each in words] if rank is None else words
            arrived = steps.finish(steps.exchange(copies, send, receive))
        if rank is not None and rank != steps.rank:
            return None
        return [row.of_words(each) for each, row in zip(arrived, formats, strict=True)]
