"""What a table says of its keys and values: a loop over a dict, with which every face is compared."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from support.samples import UFUNCS, numpy_dtype

Shape = tuple[int, ...]
#: The name of the value of a table without named columns.
SINGLE = ""


class Model:
    """The items of one table, in NumPy's numbers.

    Parameters
    ----------
    values
        The dtype of a single value; or a mapping of names to columns, each a dtype or a pair ``(dtype, shape)``.
    value_shape
        The shape of a single value.

    Of a key's duplicates in a batch the last one stays, and with ``insert`` the first one. Values come and go as
    arrays, and in a table with named columns as mappings of names to arrays.
    """

    def __init__(self, values: Any = "int64", value_shape: Shape = (), key_shape: Shape = ()) -> None:
        named = values if isinstance(values, Mapping) else {SINGLE: (values, value_shape)}
        pairs = {name: given if isinstance(given, tuple) else (given, ()) for name, given in named.items()}
        self.columns = {name: (numpy_dtype(dtype), tuple(shape)) for name, (dtype, shape) in pairs.items()}
        self.key_dims = len(key_shape)
        self.items: dict[Hashable, dict[str, np.ndarray]] = {}

    def insert(self, keys: Any, values: Any = None) -> np.ndarray:
        return self._change(keys, values, "keep")

    def insert_or_assign(self, keys: Any, values: Any) -> np.ndarray:
        return self._change(keys, values, "replace")

    def insert_or_apply(self, keys: Any, values: Any, op: str | Mapping[str, str]) -> np.ndarray:
        return self._change(keys, values, op)

    def _change(self, keys: Any, values: Any, ops: str | Mapping[str, str]) -> np.ndarray:
        """The mask of new keys, true for the first one of a key's duplicates."""
        batch = np.shape(keys)[: np.ndim(keys) - self.key_dims]
        given = {name: self._for_each_key(name, value, batch) for name, value in self._named(values).items()}
        names = self.names_of(keys)
        inserted = [self._change_one(key, {name: given[name][row] for name in given}, ops) for row, key in names]
        return np.array(inserted, bool).reshape(batch)

    def _change_one(self, key: Hashable, given: dict[str, np.ndarray], ops: str | Mapping[str, str]) -> bool:
        if key not in self.items:
            self.items[key] = {**self._zeros(), **given}
            return True
        row = self.items[key]
        for name, value in given.items():
            op = (ops if isinstance(ops, str) else ops[name]).replace("-", "_")
            if op == "replace":
                row[name] = value
            elif op != "keep":
                row[name] = UFUNCS[op](row[name], value).astype(value.dtype)
        return False

    def find(self, keys: Any, default: Any = None) -> tuple[Any, np.ndarray]:
        """The values of keys and which of them are there. ``default``: one value, or one for each key; None: zeros."""
        batch = np.shape(keys)[: np.ndim(keys) - self.key_dims]
        fallbacks = {**self._zeros(), **self._named(default)}
        each = {name: self._for_each_key(name, value, batch) for name, value in fallbacks.items()}
        names = self.names_of(keys)
        found = np.array([key in self.items for _, key in names], bool).reshape(batch)
        values = {}
        for name, (dtype, shape) in self.columns.items():
            rows = [self.items[key][name] if key in self.items else each[name][row] for row, key in names]
            values[name] = np.array(rows, dtype).reshape(batch + shape)
        return self._plain(values), found

    def erase(self, keys: Any) -> np.ndarray:
        """The mask of erased keys, true for the first one of a key's duplicates."""
        batch = np.shape(keys)[: np.ndim(keys) - self.key_dims]
        return np.array([self.items.pop(key, None) is not None for _, key in self.names_of(keys)], bool).reshape(batch)

    def names_of(self, keys: Any) -> list[tuple[int, Hashable]]:
        """The keys of a batch as the dict has them, with their positions."""
        array = np.asarray(keys)
        if self.key_dims:
            return list(enumerate(tuple(key) for key in array.reshape(-1, array.shape[-1]).tolist()))
        return list(enumerate(array.reshape(-1).tolist()))

    def _for_each_key(self, name: str, values: Any, batch: Shape) -> np.ndarray:
        dtype, shape = self.columns[name]
        array = np.asarray(values, dtype)
        return np.broadcast_to(array, batch + shape).reshape(-1, *shape)

    def _zeros(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(shape, dtype) for name, (dtype, shape) in self.columns.items()}

    def _named(self, values: Any) -> dict[str, Any]:
        if values is None:
            return {}
        return dict(values) if isinstance(values, Mapping) else {SINGLE: values}

    def _plain(self, values: dict[str, np.ndarray]) -> Any:
        return values[SINGLE] if set(values) == {SINGLE} else values


def check_mask(mask: np.ndarray, keys: np.ndarray, model: Model, known: Iterable[Hashable]) -> None:
    """The mask is true for exactly one of the duplicates of each key that is not among the known ones."""
    names = [key for _, key in model.names_of(keys)]
    assert mask.dtype == bool
    assert mask.shape == np.shape(keys)[: np.ndim(keys) - model.key_dims]
    marked = [key for key, is_new in zip(names, mask.ravel().tolist(), strict=True) if is_new]
    assert len(marked) == len(set(marked))
    assert set(marked) == set(names) - set(known)


def same(got: Any, expected: Any) -> None:
    """Arrays of one dtype and shape with the same bits; mappings of such."""
    if isinstance(expected, Mapping):
        assert list(got) == list(expected)
        for name in expected:
            same(got[name], expected[name])
        return
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes()


def same_items(table: Any, model: Model) -> None:
    """The table has the items of the model, by what it exports, counts and looks up."""
    assert table.size() == len(model.items)
    keys = table.keys()
    assert sorted(key for _, key in model.names_of(keys)) == sorted(model.items)
    if table.has_values:
        values, found = table.find(keys)
        assert found.all()
        same(values, model.find(keys)[0])


def rows_of(values: Any, positions: Sequence[int]) -> Any:
    """Some values of a batch."""
    if isinstance(values, Mapping):
        return {name: array[positions] for name, array in values.items()}
    return values[positions]
