"""HashSet over the processes of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from gpuhash import HashSet as LocalSet

from .batch import Batch
from .keyed import Keyed
from .rows import BOOL


class HashSet(Keyed):
    """A set of keys over all processes of a group: each has a shard, a ``gpuhash.HashSet``, and every key one owner.

    Parameters
    ----------
    key_dtype, key_shape, device, capacity, max_load_factor, growth, max_capacity, deterministic, seed, memory, group
        As for ``gpuhash.distributed.HashTable``, whose words on collective calls, keys and errors hold here as well.
    """

    _local = LocalSet

    def __init__(
        self,
        key_dtype: object,
        *,
        key_shape: int | Sequence[int] = (),
        device: object = None,
        capacity: int = 0,
        max_load_factor: float = 0.8,
        growth: bool = True,
        max_capacity: int | None = None,
        deterministic: bool = False,
        seed: int | str | None = None,
        memory: object = None,
        group: Any = None,
    ) -> None:
        options = {
            "key_dtype": key_dtype,
            "key_shape": key_shape,
            "capacity": capacity,
            "max_load_factor": max_load_factor,
            "growth": growth,
            "max_capacity": max_capacity,
            "deterministic": deterministic,
            "seed": seed,
            "memory": memory,
        }
        self._make(group, device, lambda: options)

    def add(self, keys: Any) -> Any:
        """Adds all ranks' keys. Collective; waits.

        Returns
        -------
        bool tensor of shape ``batch``: was the key new; true for exactly one of a new key's duplicates over all ranks.

        Raises
        ------
        TypeError, ValueError, OverflowError
            On all ranks, for one rank's keys of another dtype, or of a shape or device that does not fit.
        TableFullError, MemoryError
            On all ranks, where one shard has no room; all shards are as they were.
        """
        return self._add("add", lambda: self._take(keys))

    insert = add

    def _add(self, operation: str, batch: Callable[[], Batch]) -> Any:
        call, (inserted,) = self._change(
            operation,
            lambda: self._each_once(batch()),
            lambda call: [self._shard.add(call.keys)],
            [BOOL],
        )
        return call.batch.answer(call.for_one(inserted), BOOL)

    def discard(self, keys: Any) -> None:
        """Removes all ranks' keys; absent ones are passed over. Collective; waits."""
        self._erase("discard", keys)

    def remove(self, keys: Any) -> None:
        """Removes all ranks' keys. Collective; waits. KeyError on all ranks if any is absent: nothing is removed."""
        self._erase_present("remove", keys)

    def pop(self) -> Any:
        """Removes some key, and gives it, which no other call gets, to all ranks. Collective; waits, and reads all
        keys of one shard. KeyError on all ranks where the set is empty.
        """
        return self._pop_item("pop", lambda shard: shard.pop(), "pop(): the set is empty")

    def update(self, *others: Any) -> None:
        """Adds the keys of this rank's others. Collective; waits; raises as ``add``.

        Each is an array, a list or a Python set; a ``gpuhash.HashSet`` on any device; or a distributed one, of which
        each rank brings its shard.
        """
        self._add("update", lambda: self._joined([self._keys_of(other) for other in others]))

    def _keys_of(self, other: Any) -> Any:
        if isinstance(other, HashSet):
            other = other.shard
        if isinstance(other, LocalSet):
            return self._brought(other.keys("torch"))
        return list(other) if isinstance(other, AbstractSet) else other

    def _joined(self, parts: list[Any]) -> Batch:
        """One batch of all their keys."""
        words = [self._key.words(self._take(part).keys) for part in parts]
        keys = self._key.of_words(torch.cat(words)) if words else self._key.empty(0, self._steps.device)
        return Batch(keys, (len(keys),), None, scalar=False)

    def gather(self, rank: int | None = None) -> Any:
        """All keys of all ranks, shard after shard; ``rank`` as for ``HashTable.gather``. Collective; waits."""
        rows = self._gather(rank, (self._key,), lambda: [self._take(self._shard.keys("torch")).keys])
        return None if rows is None else self._columns_of(rows[0])

    def _assign_chunk(self, chunk: Callable[[], tuple[Any, Any]]) -> None:
        self._add("load", lambda: self._take(chunk()[0]))
