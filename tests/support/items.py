"""What tables hold, as arrays: dicts of a hundred thousand items take far longer than the calls that are tested."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from support.frameworks import to_numpy
from support.samples import as_bytes


class Items:
    """Distinct keys in some order, and the value of each; equal to others of the same dtypes and bits in any order.

    Parameters
    ----------
    keys
        [n, *shape]
    values
        [n, *shape]; None: of a set, which has none.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, keys: Any, values: Any = None) -> None:
        keys = to_numpy(keys)
        words = as_bytes(keys)
        width = words.dtype.itemsize
        self.keys = words.view(f"u{width}" if width in (1, 2, 4, 8) else f"S{width}")  # has an order
        self.values = np.empty((len(keys), 0), np.uint8) if values is None else to_numpy(values)
        assert len(self.values) == len(keys)
        ascending = self.keys[self.order]
        assert (ascending[1:] != ascending[:-1]).all(), "a key comes twice"

    @classmethod
    def last_of(cls, keys: np.ndarray, values: np.ndarray) -> Items:
        """Of keys that may come several times: the last one's value, as in a dict."""
        words = as_bytes(keys)
        words = words.view(f"u{words.itemsize}" if words.itemsize in (1, 2, 4, 8) else f"S{words.itemsize}")
        order = np.argsort(words, kind="stable")
        ascending = words[order]
        is_last = np.append(ascending[1:] != ascending[:-1], [True] * bool(len(words)))
        last = order[is_last.astype(bool)]
        return cls(keys[last], values[last])

    @classmethod
    def held_by(cls, table: Any) -> Items:
        """What the table gives; of its dtypes and shapes, and as many as it says."""
        keys, values = map(to_numpy, table.items())
        assert keys.shape == (len(table), *table.key_shape)
        assert values.shape == (len(table), *table.value_shape)
        assert str(keys.dtype) == table.key_dtype
        assert str(values.dtype) == table.value_dtype
        return cls(keys, values)

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Items)
        if self.values.dtype != other.values.dtype or self.values.shape != other.values.shape:
            return False
        mine, others = ((each.keys[each.order], each.values[each.order]) for each in (self, other))
        return all(a.tobytes() == b.tobytes() for a, b in zip(mine, others, strict=True))

    @functools.cached_property
    def order(self) -> np.ndarray:
        """Positions of the keys in ascending order."""
        return np.argsort(self.keys)

    def is_in(self, other: Items) -> np.ndarray:
        """Does `other` have the key? bool [n]. Both in order, which is several times as fast as np.isin."""
        mine, others = self.keys[self.order], other.keys[other.order]
        places = np.minimum(np.searchsorted(others, mine), max(len(others) - 1, 0))
        mask = np.zeros(len(mine), bool)
        if len(others):
            mask[self.order] = others[places] == mine
        return mask

    def __getitem__(self, which: Any) -> Items:
        """Those at a slice, or where a mask is true."""
        chosen = object.__new__(Items)
        chosen.keys, chosen.values = self.keys[which], self.values[which]
        return chosen

    def __and__(self, other: Items) -> Items:
        """Those whose keys `other` has, with the values of here."""
        return self[self.is_in(other)]

    def __sub__(self, other: Items) -> Items:
        """Those whose keys `other` lacks."""
        return self[~self.is_in(other)]

    def __or__(self, other: Items) -> Items:
        """All of both; the values of `other` where both have a key, as of dicts."""
        both, left = object.__new__(Items), self - other
        both.keys = np.concatenate([left.keys, other.keys])
        both.values = np.concatenate([left.values, other.values])
        return both

    def values_of(self, other: Items) -> np.ndarray:
        """The values of here of the keys of `other`, in its order."""
        found = self.order[np.searchsorted(self.keys, other.keys, sorter=self.order)]
        assert (self.keys[found] == other.keys).all()
        return self.values[found]
