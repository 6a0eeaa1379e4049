"""Batches put into the order of the processes that their keys belong to, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash import _core
from gpuhash.arrays import framework_of
from gpuhash.memory import make_context

from .words import put_rows, take_rows

#: Rows at whose multiples parts begin. NCCL took twice as long for what did not begin at a multiple of 16 bytes (67 MB
#: from each of two H200s to the other: 0.6 ms instead of 0.3), and rows may be of one byte.
ALIGNMENT = 16


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


def spans_of(counts: Sequence[int]) -> list[int]:
    """Rows from where each part begins to where the next one may: ``ALIGNMENT`` divides them, if there are several."""
    return list(counts) if len(counts) == 1 else [-(-count // ALIGNMENT) * ALIGNMENT for count in counts]


def compact(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """The rows of parts that lie as far apart as ``spans_of`` says, without gaps."""
    spans = spans_of(counts)
    if list(counts) == spans:
        return rows
    parts = rows.split(spans)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def spread(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """The reverse; what lies between parts is of no matter."""
    spans = spans_of(counts)
    if list(counts) == spans:
        return rows
    pieces: list[Tensor] = []
    for part, count, span in zip(rows.split(list(counts)), counts, spans, strict=True):
        pieces += [part, rows.new_empty((span - count, *rows.shape[1:]))]
    return torch.cat(pieces)


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

    In the order of the owners come the parts, each in the order of the batch, and apart as ``spans_of(counts)`` says.
    All work is enqueued on the stream that is PyTorch's current one at first. Nothing waits for a GPU but ``counts``,
    and the constructor where there are more than 64 parts.
    """

    def __init__(self, keys: Tensor, parts: int, seed: int = 0, splitter: _core.Splitter | None = None) -> None:
        self._keys, self._parts, self._seed = keys, parts, seed
        self._stream = _stream(keys)
        self._core: _core.Split | None = None
        self._positions: Tensor | None = None  # int64 [n]: of each key in the order of the owners
        self._counts: list[int] | None = None
        #: Rows that the order of the owners has at most: what follows the last part is of no matter.
        self.rows = len(keys)
        #: The keys in the order of their owners, ``[rows, ...]``.
        self.keys = keys
        if parts == 1 or not len(keys):
            self._counts = [len(keys)] + [0] * (parts - 1)
            return
        self.rows += parts * (ALIGNMENT - 1)
        if parts <= _core.MAX_PARTS:
            splitter = _core.Splitter(make_context(keys.device)) if splitter is None else splitter
            self.keys = keys.new_empty((self.rows, *keys.shape[1:]))
            self._core = _core.Split(
                splitter,
                self._borrow(keys),
                parts,
                seed,
                ALIGNMENT,
                self._borrow(self.keys),
                self._stream or 0,
            )
            return
        owners = self.owners
        if keys.device.type == "cpu":
            # Stable sorts of integers of up to 16 bits are radix sorts in NumPy.
            narrow = owners.numpy().astype(np.uint16 if parts <= 1 << 16 else np.int32)
            order = torch.from_numpy(np.argsort(narrow, kind="stable"))
        else:
            order = torch.sort(owners, stable=True).indices
        counts = torch.bincount(owners, minlength=parts).cpu()
        self._counts = counts.tolist()
        gaps = torch.tensor(spans_of(self._counts)) - counts
        before = (gaps.cumsum(0) - gaps).to(keys.device)
        sorted_positions = torch.arange(len(keys), device=keys.device) + before[owners[order].long()]
        self._positions = torch.empty_like(order).index_copy_(0, order, sorted_positions)
        self.keys = self.scatter(keys)

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
        """Rows ``[n, ...]`` of the batch in the order of the owners, ``[self.rows, ...]``."""
        if self._positions is not None:
            return put_rows(rows, self._positions, self.rows)
        if self._core is None:
            return rows
        rows = rows.contiguous()
        out = rows.new_empty((self.rows, *rows.shape[1:]))
        self._core.sort(self._borrow(rows), self._borrow(out))
        return out

    def gather(self, rows: Tensor) -> Tensor:
        """Rows in the order of the owners, to the end of the last part or more, in the order of the batch."""
        if self._positions is not None:
            return take_rows(rows, self._positions)
        if self._core is None:
            return rows
        rows = rows.contiguous()
        out = rows.new_empty((len(self._keys), *rows.shape[1:]))
        _ = self.counts  # without which nobody knows how many rows there have to be
        self._core.gather(self._borrow(rows), self._borrow(out))
        return out

    def _borrow(self, tensor: Tensor) -> Any:
        return _core.borrow(tensor, self._stream)
