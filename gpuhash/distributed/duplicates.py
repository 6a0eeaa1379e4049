"""Duplicates of one rank's batch, taken together before the exchange where some keys are hot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpuhash import _core
from gpuhash.arrays.dtypes import MAX_ROW_BYTES
from gpuhash.arrays.memory import make_context
from gpuhash.frames.factorization import factorize, unique
from gpuhash.table import HashTable

from .rows import RowFormat
from .split import stream_of
from .values import Values
from .words import reverse, take_rows

_MANY = 0.5  # of the sample, which repeat others: on the host the rest then takes less time than is saved
FAST_ROW = 64  # bytes of key and value: up to these, NCCL between GPUs is faster than to find duplicates
_HOT = 0.125  # of a rank's keys, by which the owner of a hot key may have more than the others


@dataclass
class Distinct:
    """The distinct keys of a batch, and what they have to do with it."""

    keys: Tensor  # [m, *key_shape]
    positions: Tensor | None = None  # int64 [m]: of each key, one position in the batch
    inverse: Tensor | None = None  # int64 [n]: of each position in the batch, the number of its key
    values: Values | None = None  # of each key: what all of its values come to


class Sample:
    """Keys of a batch by which it is judged whether to take duplicates together before the exchange.

    That pays where one key is so hot that its owner would have much more to do than the others, and where duplicates
    are many and it takes long to send them. Keys of which each comes a few times over, and none often, are spread
    evenly as they are, and a sample sees few of their duplicates.
    """

    def __init__(self, keys: Tensor, ranks: int, seed: int, splitter: _core.Splitter, *, are_sent_fast: bool) -> None:
        """Does not wait. ``are_sent_fast``: keys, with what goes along with them, are sent sooner than compared."""
        self._most_repeats = _core.SAMPLE_KEYS if are_sent_fast else int(_MANY * _core.SAMPLE_KEYS)
        self._often = int(_HOT * _core.SAMPLE_KEYS / max(1, ranks - 1))  # how often one key may come
        #: For a split that merges hot keys, where they are short; None: there are too few keys.
        self.core: _core.Sample | None = None
        if ranks > 1 and len(keys) >= _core.SAMPLE_KEYS:
            stream = stream_of(keys)
            some = keys if is_short(keys) else _hashes_of_some(keys)
            self.core = _core.Sample(splitter, _core.borrow(some, stream), seed, stream or 0)

    def has_many(self) -> bool:
        """Are there many duplicates, or is there a hot key? Waits for the sample."""
        if self.core is None:
            return False
        repeats, most = self.core.repeats()
        return repeats > self._most_repeats or most > self._often


def is_short(keys: Tensor) -> bool:
    """Are keys compared as they are where a batch is sampled and split? Of longer ones hashes are."""
    width: int = math.prod(keys.shape[1:]) * keys.itemsize
    return width <= MAX_ROW_BYTES


def _hashes_of_some(keys: Tensor) -> Tensor:
    """As many as a sample has."""
    size = _core.SAMPLE_KEYS
    positions = torch.arange(size, device=keys.device) * (len(keys) // size)
    some, stream = take_rows(keys, positions), stream_of(keys)
    hashes = torch.empty(size, dtype=torch.uint64, device=keys.device)
    given, out = _core.borrow(some, stream), _core.borrow(hashes, stream)
    _core.hash_rows(make_context(keys.device), given, size, 64, 0, out, stream or 0)
    return hashes


def find_distinct(keys: Tensor) -> Distinct:
    """Keys to be looked up: each once, and which one's answer each position gets. Waits."""
    codes, distinct = factorize(keys, axis=_axis(keys))
    return Distinct(distinct, inverse=codes)


def choose(keys: Tensor, *, last: bool, inverse: bool = False) -> Distinct:
    """Each key once, with the position of its first or last occurrence. Waits."""
    found: Any = unique(reverse(keys) if last else keys, return_index=True, return_inverse=inverse, axis=_axis(keys))
    positions = keys.shape[0] - 1 - found.indices if last else found.indices
    codes = None
    if inverse:
        codes = found.inverse.flip(0) if last else found.inverse
    return Distinct(found.values, positions=positions, inverse=codes)


def combine(
    keys: Tensor, values: Values, op: str | Mapping[str, str], key: RowFormat, *, deterministic: bool
) -> Distinct:
    """Each key once, with the position of one occurrence, and all its values combined into one. Waits.

    By a table of their own, whose arithmetic is that of the shards: integers come to the same bits as one by one.
    ``op``: of the values, or of each column by its name.
    """
    layout = values.layout
    given: Any = layout.unpack(values.rows)
    if values.bits is not None:
        given = {name: one[0] for name, one in given.items()}
    kind: dict[str, Any]
    if "" in given:
        (given,), (field,) = given.values(), layout.fields.values()
        kind = {"value_dtype": field.dtype, "value_shape": field.shape}
    else:
        columns = {name: (field.dtype, field.shape) for name, field in layout.fields.items()}
        kind = {"value_dtype": columns, "deterministic": deterministic}
    table = HashTable(key.dtype, **kind, key_shape=key.shape, device=keys.device)
    if not table._core.has_rows:
        table.reserve(len(keys))  # to find out how many there are would take longer
    positions = torch.nonzero(table.insert_or_apply(keys, given, op)).view(-1)
    distinct = take_rows(keys, positions)
    combined = table[distinct]
    rows = combined if "" in layout.fields else layout.pack(combined)
    return Distinct(distinct, positions=positions, values=Values(layout, rows))


def _axis(keys: Tensor) -> int | None:
    return None if keys.dim() == 1 else 0
