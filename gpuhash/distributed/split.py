"""Batches put into the order of the processes that their keys belong to, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash import _core
from gpuhash.arrays import framework_of
from gpuhash.memory import make_context

from .words import take_rows


class Splitter:
    """Splits batches on one device, one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.core = _core.Splitter(make_context(device))


def owners_of(keys: Tensor, parts: int, seed: int = 0) -> Tensor:
    """The owner of each key, int32 ``[n]``, from 0 to ``parts - 1``, in the order of PyTorch's current stream.

    Of 2^29 parts it is a hash of 29 bits.
    """
    owners = torch.zeros(len(keys), dtype=torch.int32, device=keys.device)
    if parts > 1 and len(keys):
        stream = _stream(keys)
        context = make_context(keys.device)
        _core.find_owners(context, _core.borrow(keys, stream), parts, seed, _core.borrow(owners, stream), stream or 0)
    return owners


def _stream(tensor: Tensor) -> int | None:
    if tensor.device.type == "cpu":
        return None
    return framework_of(tensor).stream(tensor, tensor.device.index)


class Split:
    """A batch of keys by owner.

    Parameters
    ----------
    keys
        Integers of any dtype, ``[n]``, or vectors of up to 16 bytes, ``[n, k]``; dense, on any device.
    parts
        The number of owners.
    seed
        Of the hash that chooses them, from 0 to 2^64 - 1.
    splitter
        Of the keys' device; by default one of the split's own.

    Within a part the keys keep the order of the batch. All work is enqueued on the stream that is PyTorch's current one
    at first. Nothing waits for a GPU but ``counts``.
    """

    def __init__(self, keys: Tensor, parts: int, seed: int = 0, splitter: Splitter | None = None) -> None:
        self._keys, self._parts, self._seed = keys, parts, seed
        self._stream = _stream(keys)
        #: The keys in the order of their owners.
        self.keys = keys
        self._core: _core.Split | None = None
        self._order: Tensor | None = None  # int64 [n]: the batch's positions in the order of the owners
        self._counts: list[int] | None = None
        if parts == 1 or not len(keys):
            self._counts = [len(keys)] + [0] * (parts - 1)
        elif parts <= _core.MAX_PARTS:
            splitter = Splitter(keys.device) if splitter is None else splitter
            self.keys = torch.empty_like(keys)
            self._core = _core.Split(
                splitter.core, self._borrow(keys), parts, seed, self._borrow(self.keys), self._stream or 0
            )
        else:
            owners = self.owners
            if keys.device.type == "cpu":
                # Stable sorts of integers of up to 16 bits are radix sorts in NumPy.
                narrow = owners.numpy().astype(np.uint16 if parts <= 1 << 16 else np.int32)
                self._order = torch.from_numpy(np.argsort(narrow, kind="stable"))
            else:
                self._order = torch.sort(owners, stable=True).indices
            self.keys = self.scatter(keys)
            self._counts = torch.bincount(owners, minlength=parts).tolist()

    @property
    def counts(self) -> list[int]:
        """Keys of each part. Waits for a GPU until they are known."""
        if self._counts is None:
            assert self._core is not None
            self._counts = self._core.counts()
        return self._counts

    @property
    def owners(self) -> Tensor:
        """The owner of each key, int32 ``[n]``."""
        return owners_of(self._keys, self._parts, self._seed)

    def scatter(self, rows: Tensor) -> Tensor:
        """Rows ``[n, ...]`` of the batch in the order of the owners."""
        if self._order is not None:
            return take_rows(rows, self._order)
        if self._core is None:
            return rows
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        self._core.sort(self._borrow(rows), self._borrow(out))
        return out

    def gather(self, rows: Tensor) -> Tensor:
        """Rows ``[n, ...]`` in the order of the owners back in the order of the batch."""
        if self._order is not None:
            return torch.empty_like(rows).index_copy_(0, self._order, rows)
        if self._core is None:
            return rows
        rows = rows.contiguous()
        out = torch.empty_like(rows)
        self._core.gather(self._borrow(rows), self._borrow(out))
        return out

    def _borrow(self, tensor: Tensor) -> Any:
        return _core.borrow(tensor, self._stream)
