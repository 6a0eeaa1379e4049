"""Batches put into the order of the processes that their keys belong to, and back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash import _core
from gpuhash.arrays.frameworks import framework_of
from gpuhash.arrays.memory import make_context

from .words import put_rows, take_rows

#: Rows at whose multiples parts begin. NCCL took twice as long for what did not begin at a multiple of 16 bytes (67 MB
#: from each of two H200s to the other: 0.6 ms instead of 0.3), and rows may be of one byte.
ALIGNMENT = 16
#: Rows that follow each part: in the answers to one, the owner says there whether it has a problem.
GAP = 1


def owners_of(keys: Tensor, parts: int, seed: int = 0) -> Tensor:
    """The owner of each key, int32 ``[n]``, from 0 to ``parts - 1``, in the order of PyTorch's current stream."""
    owners = torch.zeros(len(keys), dtype=torch.int32, device=keys.device)
    if parts > 1 and len(keys):
        stream = stream_of(keys)
        context = make_context(keys.device)
        _core.find_owners(context, _core.borrow(keys, stream), parts, seed, _core.borrow(owners, stream), stream or 0)
    return owners


def stream_of(tensor: Tensor) -> int | None:
    """PyTorch's current stream where the tensor is; None on the host."""
    if tensor.device.type == "cpu":
        return None
    return framework_of(tensor).stream(tensor, tensor.device.index)


def spans_of(counts: Sequence[int]) -> list[int]:
    """Rows from where each part begins to where the next one may: ``GAP`` more or some, so that ``ALIGNMENT`` divides
    them.
    """
    return [-(-(count + GAP) // ALIGNMENT) * ALIGNMENT for count in counts]


def join(parts: Sequence[Tensor], spans: Sequence[int]) -> Tensor:
    """Rows in which the parts begin so far apart. What lies between them is of no matter."""
    pieces: list[Tensor] = []
    for part, span in zip(parts, spans, strict=True):
        pieces += [part, part.new_empty((span - len(part), *part.shape[1:]))]
    return torch.cat(pieces)


class Split:
    """A batch of keys by owner.

    Parameters
    ----------
    keys
        Integers of any dtype, ``[n]``, or arrays of these of any width, ``[n, ...]``; dense, on any device.
    parts
        The number of owners.
    seed
        Of the hash that chooses them, from 0 to 2^64 - 1.
    splitter
        Of the keys' device; by default one of the split's own.
    last
        The owner whose part comes last in the order of the owners; by default that with the highest number.
    sample
        Of these keys, with this seed. Where it has hot keys they are merged: several of one such key share a row, and
        the parts have no order. Not with more than 64 parts, nor of keys of more than 16 bytes.

    Notes
    -----
    In the order of the owners come the other parts by number, then the last one, each in the order of the batch, and
    apart as ``spans_of(counts)`` says. The constructor counts the keys; they are sorted when ``keys`` or ``counts`` are
    asked for. All work is enqueued on the stream that is PyTorch's current one at first. Nothing waits for a GPU but
    ``counts``, and the constructor: for the sample, and where there are more than 64 parts.
    """

    def __init__(
        self,
        keys: Tensor,
        parts: int,
        seed: int = 0,
        splitter: _core.Splitter | None = None,
        last: int | None = None,
        sample: _core.Sample | None = None,
    ) -> None:
        self._batch, self._parts, self._seed = keys, parts, seed
        self._stream = stream_of(keys)
        self._core: _core.Split | None = None
        self._positions: Tensor | None = None  # int64 [n]: of each key in the order of the owners
        self._counts: list[int] | None = None
        #: The number of keys.
        self.size = len(keys)
        #: Do several keys share a row?
        self.merges = False
        #: Rows that the order of the owners has at most: what follows the last part is of no matter.
        self.rows = len(keys)
        self._room = keys  # for the keys in that order
        if parts == 1:
            self._counts = [len(keys)]
            return
        last = parts - 1 if last is None else last
        self.rows += parts * (GAP + ALIGNMENT - 1)
        self._room = self.room_for(keys)
        if not len(keys):
            self._counts = [0] * parts
            self._positions = torch.empty(0, dtype=torch.int64, device=keys.device)
            return
        if parts <= _core.MAX_PARTS:
            splitter = _core.Splitter(make_context(keys.device)) if splitter is None else splitter
            given = self._borrow(keys)
            self._core = _core.Split(splitter, given, parts, last, ALIGNMENT, GAP, seed, self._stream or 0, sample)
            self.merges = self._core.merges
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
        spans = torch.tensor(spans_of(self._counts), device="cpu")
        begins = spans.cumsum(0) - spans
        begins[last + 1 :] -= spans[last]
        begins[last] = spans.sum() - spans[last]
        moved = (begins - (counts.cumsum(0) - counts)).to(keys.device)  # from where a stable sort puts the part
        positions = torch.arange(len(keys), device=keys.device) + moved[owners[order].long()]
        self._positions = torch.empty_like(order).index_copy_(0, order, positions)

    @functools.cached_property
    def keys(self) -> Tensor:
        """The keys in the order of their owners, ``[rows, ...]``."""
        if self._core is not None:
            self._core.sort_keys(self._borrow(self._room))
            return self._room
        return self.scatter(self._batch, self._room)

    @property
    def counts(self) -> list[int]:
        """Keys of each part. Waits for a GPU until they are known."""
        if self._counts is None:
            assert self._core is not None
            _ = self.keys
            self._counts = self._core.counts()
        return self._counts

    def tell(self, notes: list[int], told: Tensor) -> None:
        """Puts the keys of each part, and beside them the notes, into int64 ``told [parts, 1 + notes]``. Waits where
        that is on another device.
        """
        if self._core is not None and told.device == self._batch.device:
            self._core.tell(notes, self._borrow(told))
        else:
            told.copy_(torch.tensor([[count, *notes] for count in self.counts], device="cpu"))

    @property
    def owners(self) -> Tensor:
        """The owner of each key, int32 ``[n]``."""
        return owners_of(self._batch, self._parts, self._seed)

    def room_for(self, rows: Tensor) -> Tensor:
        """Memory for such rows in the order of the owners."""
        return rows.new_empty((self.rows, *rows.shape[1:]))

    def scatter(self, rows: Tensor, room: Tensor | None = None) -> Tensor:
        """Rows ``[n, ...]`` of the batch in the order of the owners, ``[self.rows, ...]``; in ``room``, if given."""
        if self._core is None and self._positions is None:
            return rows
        out = self.room_for(rows) if room is None else room
        if self._core is None:
            assert self._positions is not None
            put_rows(rows, self._positions, out)
        else:
            _ = self.keys
            self._core.sort(self._borrow(rows.contiguous()), self._borrow(out))
        return out

    def combine(self, values: Tensor, op: str, room: Tensor) -> Tensor:
        """As ``scatter``, of values ``[n]``, or ``[1]`` for all, of 4 or 8 bytes each; those of a shared row by ``op``.

        Only where the split ``merges``.
        """
        assert self._core is not None
        _ = self.keys
        self._core.combine(self._borrow(values.contiguous()), op, self._borrow(room))
        return room

    def gather_mask(self, mask: Tensor) -> Tensor:
        """As ``gather``, of a mask: of keys that share a row, one gets what is there, and the others False."""
        if not self.merges:
            return self.gather(mask)[0]
        assert self._core is not None
        _ = self.counts
        out = mask.new_empty(self.size)
        self._core.gather_mask(self._borrow(mask.contiguous()), self._borrow(out))
        return out

    def gather(self, rows: Tensor, found: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Rows in the order of the owners, to the end of the last part or more, in the order of the batch; and so a
        mask of theirs, if it is given.
        """
        if self._core is None:
            if self._positions is None:
                return rows, found
            return take_rows(rows, self._positions), None if found is None else take_rows(found, self._positions)
        _ = self.counts  # without which nobody knows how many rows there have to be
        rows = rows.contiguous()
        out = rows.new_empty((self.size, *rows.shape[1:]))
        if found is None:
            self._core.gather(self._borrow(rows), self._borrow(out))
            return out, None
        mask = found.new_empty(self.size)
        self._core.gather(self._borrow(rows), self._borrow(out), self._borrow(found.contiguous()), self._borrow(mask))
        return out, mask

    def _borrow(self, tensor: Tensor) -> Any:
        return _core.borrow(tensor, self._stream)
