"""Duplicates of one rank's batch, taken together before the exchange where some keys are hot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpuhash.factorization import factorize, unique
from gpuhash.table import HashTable

from .batch import Kind, Values
from .split import owners_of
from .words import reverse, take_rows

_SAMPLE = 1 << 12  # keys
_MANY = 0.5  # of the sample, which repeat others: on the host the rest then takes less time than is saved
_HASHES = 1 << 29  # of which no two keys of a sample have the same, but for one sample in 60
_HOT = 0.125  # of a rank's keys, by which the owner of a hot key may have more than the others


@dataclass
class Distinct:
    """The distinct keys of a batch, and what they have to do with it."""

    keys: Tensor  # [m, *key_shape]
    positions: Tensor | None = None  # int64 [m]: of each key, one position in the batch
    inverse: Tensor | None = None  # int64 [n]: of each position in the batch, the number of its key
    values: Values | None = None  # of each key: what all of its values come to


def are_many(keys: Tensor, ranks: int) -> bool:
    """Are duplicates so many that it pays to find them before the exchange, or one key so hot that its owner would have
    much more to do than the others?

    Tells by a sample. Keys of which each comes a few times over, and none often, are spread evenly as they are, and a
    sample sees few of their duplicates. Waits.
    """
    count = keys.shape[0]
    if ranks == 1 or count < _SAMPLE:
        return False
    sample = keys[:: count // _SAMPLE][:_SAMPLE].contiguous()
    hashes = owners_of(sample, _HASHES).sort().values
    repeats = (hashes[1:] == hashes[:-1]).sum()
    often = int(_HOT * _SAMPLE / (ranks - 1))  # of one key
    is_hot = (hashes[often:] == hashes[: _SAMPLE - often]).any() if often else repeats >= 0
    return bool((repeats > _MANY * _SAMPLE) | is_hot)


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


def combine(keys: Tensor, values: Values, op: Any, key: Kind, value: Kind) -> Distinct:
    """Each key once, with the position of one occurrence, and all its values combined into one. Waits.

    By a table of their own, whose arithmetic is that of the shards: integers come to the same bits as one by one.
    """
    rows = values.rows if values.bits is None else values.rows[0]
    table = HashTable(key.dtype, value.dtype, key_shape=key.shape, value_shape=value.shape, device=keys.device)
    positions = torch.nonzero(table.insert_or_apply(keys, rows, op)).view(-1)
    distinct = take_rows(keys, positions)
    return Distinct(distinct, positions=positions, values=Values(table[distinct]))


def _axis(keys: Tensor) -> int | None:
    return None if keys.dim() == 1 else 0
