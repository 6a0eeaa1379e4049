"""HashSet over the processes of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gpuhash import HashSet as LocalSet

from .call import BOOL, Prepared
from .duplicates import choose
from .keyed import Keyed


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
        return self._add("add", lambda: keys)

    insert = add

    def _add(self, operation: str, keys: Callable[[], Any]) -> Any:
        def prepare() -> Prepared:
            batch = self._take(keys())
            return batch, choose(batch.keys, last=False) if self._are_many(batch) else None, None

        with self._steps.call(operation):
            call = self._call(prepare)
            self._agree(lambda: self._make_room(call.keys))
            (inserted,) = call.serve(lambda: [self._shard.add(call.keys)], [BOOL])
        return call.batch.answer(call.for_one(inserted), BOOL)

    def discard(self, keys: Any) -> None:
        """Removes all ranks' keys; absent ones are passed over. Collective; waits."""
        self._erase("discard", keys)

    def gather(self, rank: int | None = None) -> Tensor | None:
        """All keys of all ranks, shard after shard; ``rank`` as for ``HashTable.gather``. Collective; waits."""
        keys = self._gather(rank, (self._key,))
        return None if keys is None else keys[0]

    def _assign_chunk(self, chunk: Callable[[], tuple[Any, Any]]) -> None:
        self._add("load", lambda: chunk()[0])
