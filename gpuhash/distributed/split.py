"""Which process a key belongs to, and batches put into the order of their owners and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .words import to_words

# Odd constants of Steele and Vigna, "Computationally easy, spectrally good multipliers for congruential pseudorandom
# number generators" (2022). The tables' own hash folds 128-bit products with others: where a key lies in its shard has
# nothing to do with whose it is.
_FIRST = 0xF1357AEA2E62A9C5 - (1 << 64)
_NEXT = 0xAEF17502108EF2D9 - (1 << 64)

_HOST_BLOCK = 1 << 16  # keys whose hashes stay in the host's cache on their way to owners


def hash_keys(keys: Tensor, seed: int = 0) -> Tensor:
    """Hashes of keys, int64 ``[n]``, whose high bits are good.

    Parameters
    ----------
    keys
        Integers of any dtype, ``[n]``, or vectors of up to 16 bytes, ``[n, k]``; dense.
    seed
        From 0 to 2^64 - 1.
    """
    rows = keys.shape[0]
    words = to_words(keys, rows, keys.element_size() * (keys.shape[1] if keys.dim() > 1 else 1))
    columns = [words] if words.dim() == 1 else list(words.unbind(1))
    # Products wrap. The shift brings the sign along, so that two hashes become one: that is of no matter here.
    hashes = (columns[0].to(torch.int64) ^ (seed - (1 << 64) if seed >> 63 else seed)) * _FIRST
    for column in columns[1:]:
        hashes ^= hashes >> 32
        hashes += column
        hashes *= _FIRST
    hashes ^= hashes >> 32
    hashes *= _NEXT
    return hashes


def owners_of(hashes: Tensor, parts: int) -> Tensor:
    """The owner of each hash, 0 to ``parts - 1``, of the narrowest dtype that holds them."""
    dtype = torch.uint8 if parts <= 1 << 8 else torch.int16 if parts <= 1 << 15 else torch.int32
    top = hashes >> 33  # 31 bits, from -2^30
    return ((top + (1 << 30)) * parts >> 31).to(dtype)


class Split:
    """A batch of keys by owner.

    Parameters
    ----------
    keys
        Integers of any dtype, ``[n]``, or vectors of them, ``[n, k]``, dense, on any device.
    parts
        The number of owners.
    seed
        Of the hash that chooses them, from 0 to 2^64 - 1.

    Within a part the keys keep the order of the batch. Nothing waits for a GPU but ``counts``.
    """

    def __init__(self, keys: Tensor, parts: int, seed: int = 0) -> None:
        count = keys.shape[0]
        on_host = keys.device.type == "cpu"
        self.parts = parts
        blocks = keys.split(_HOST_BLOCK) if on_host and count else (keys,)
        #: The owner of each key, ``[n]``, of some integer dtype.
        self.owners = torch.cat([owners_of(hash_keys(block, seed), parts) for block in blocks])
        #: Keys of each part, int64 ``[parts]``, where the keys are.
        self.sizes: Tensor
        self._order: Tensor | None = None  # int64 [n]: the batch's positions in the order of the owners
        if parts == 1:
            self.sizes = torch.full((1,), count, dtype=torch.int64, device=keys.device)
        elif on_host:
            # Stable sorts of integers of up to 16 bits are radix sorts in NumPy.
            self._order = torch.from_numpy(np.argsort(self.owners.numpy(), kind="stable"))
            self.sizes = torch.bincount(self.owners, minlength=parts)
        else:
            owners, self._order = torch.sort(self.owners, stable=True)
            starts = torch.searchsorted(owners, torch.arange(parts, device=keys.device, dtype=owners.dtype))
            self.sizes = torch.diff(starts, append=starts.new_full((1,), count))

    @property
    def counts(self) -> list[int]:
        """Keys of each part. Waits for a GPU."""
        counts: list[int] = self.sizes.tolist()
        return counts

    def scatter(self, rows: Tensor) -> Tensor:
        """Rows ``[n, ...]`` of the batch in the order of the owners."""
        return rows if self._order is None else rows.index_select(0, self._order)

    def gather(self, rows: Tensor) -> Tensor:
        """Rows ``[n, ...]`` in the order of the owners back in the order of the batch."""
        return rows if self._order is None else torch.empty_like(rows).index_copy_(0, self._order, rows)
