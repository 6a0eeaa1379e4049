"""What makes a table like a dict beside its calls: items, update, comparison and union."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Mapping, Sized
from typing import Any, Self, cast

import numpy as np

from gpuhash import _core
from gpuhash.arrays import consumers
from gpuhash.arrays.batch import Batch, Read
from gpuhash.arrays.dtypes import comparable
from gpuhash.arrays.float_mode import in_default_float_mode
from gpuhash.arrays.frameworks import Shape, framework_of
from gpuhash.call import Call

from . import named_columns
from .keyed_table import KeyedTable


class _NoDefault:
    def __repr__(self) -> str:
        return "<none>"


NO_DEFAULT = _NoDefault()


class DictMethods(KeyedTable):
    """A table with values, used like a dict; ``HashTable`` adds its calls."""

    _value_dtype: str  # None for a table with columns, which comes here by _columns alone

    def values(self, like: Any = None) -> Any:
        """All values, ``[len(table), *value_shape]``, in the order of ``keys()``; ``like`` as there. Waits.

        A mapping of names to arrays where there are columns.
        """
        if like is None and self._columns is not None and consumers.wants_pairs(self):
            return list(dict(self._pairs()).values())
        return self._named(self._export(like, keys=False))

    def items(self, like: Any = None) -> tuple[Any, Any]:
        """All keys and values, in the same order; ``like`` as for ``keys()``. Waits.

        These are two arrays and no pairs, unlike a dict's: ``zip(table, table.values().tolist())`` gives pairs. Where
        ``collections``, pandas or polars call it, which read any mapping's items as pairs, they get pairs.
        """
        if like is None and consumers.wants_pairs(self):
            return cast(tuple[Any, Any], self._pairs())
        keys, *values = self._export(like)
        return keys, self._named(values)

    def _pairs(self) -> ItemsView[Any, Any]:
        """The items as a dict has them, with Python's numbers, and NumPy's arrays for values that are no scalars."""
        keys, *values = self._host_items()
        dtypes = [self._value_dtype] if self._columns is None else [each.dtype for each in self._columns.values()]
        numbers = [comparable(array, dtype) for array, dtype in zip(values, dtypes, strict=True)]
        lists = [array.tolist() if array.ndim == 1 else list(array) for array in numbers]
        if self._columns is None:
            rows: Iterable[Any] = lists[0]
        else:
            rows = (dict(zip(self._columns, row, strict=True)) for row in zip(*lists, strict=True))
        return dict(zip(self._as_keys(keys), rows, strict=True)).items()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """TypeError: a table is two arrays, of which NumPy would take the keys."""
        raise cast(TypeError, consumers.refuse_array(type(self)))

    def _named(self, values: list[Any]) -> Any:
        """The arrays of ``_export`` without the keys, as callers get them."""
        return values[0] if self._columns is None else dict(zip(self._columns, values, strict=True))

    def update(self, other: Any, values: Any = NO_DEFAULT, /) -> None:
        """Assigns all items of another.

        Parameters
        ----------
        other
            A mapping; a table of the same dtypes and shapes, on any device; an iterable of pairs, tuples or lists, of
            which the last of a key wins; or an array of keys and one of values, as two arguments or as a tuple or list
            of both, such as what ``items()`` gives. With columns each value is a mapping of names, the same for all
            keys, and so are values as arrays.

        Notes
        -----
        Waits where ``other`` is a table; else it waits, and in any case raises, as ``table[keys] = values``.

        Raises
        ------
        TypeError
            Where ``other`` is a single array: its rows might be pairs as well as keys and values.
        """
        if values is not NO_DEFAULT:
            self._assign(other, values)
        elif isinstance(other, DictMethods):
            self._merge(other)
        else:
            self._assign(*items_of(other, self._columns, self._key_shape))

    def _assign(self, keys: Any, values: Any) -> None:
        call = Call.begin(self, keys)
        call.write(values, "assign")
        call.change()

    @in_default_float_mode
    def __eq__(self, other: object) -> bool:
        """Has the other, a table on any device or a mapping, the same items? Waits.

        Tables of different dtypes or shapes are different. A table is equal to itself; otherwise NaN equals nothing.
        """
        if self is other:
            return True
        if isinstance(other, DictMethods):
            return self._equals_table(other)
        if not isinstance(other, Mapping):
            return NotImplemented
        if len(self) != len(other):
            return False
        if self._columns is not None:
            keys, *columns = self._host_items()
            return all(
                key in other and self._same_columns([column[row] for column in columns], other[key])
                for row, key in enumerate(self._as_keys(keys))
            )
        keys, values = self._host_items()
        values = comparable(values, self._value_dtype)
        mine = zip(self._as_keys(keys), values if self._value_shape else values.tolist(), strict=True)
        if not self._value_shape:
            return dict(mine) == other
        return all(key in other and np.array_equal(value, other[key]) for key, value in mine)

    def _same_columns(self, values: list[Any], other: Any) -> bool:
        """Has a mapping these values of each column, as their dtypes' storage?"""
        assert self._columns is not None
        if not isinstance(other, Mapping) or other.keys() != self._columns.keys():
            return False
        return all(
            np.array_equal(comparable(value, column.dtype), other[name])
            for value, (name, column) in zip(values, self._columns.items(), strict=True)
        )

    def _equals_table(self, other: DictMethods) -> bool:
        if self._kind_of_items() != other._kind_of_items() or len(self) != len(other):
            return False
        keys, *mine = self._host_items()
        if self._string_keys is not None and other._string_keys is not None:
            batch: Batch = other._take_strings(other._string_keys, self._string_keys.strings_of(keys), False)
        else:
            batch = other._take(keys)
        theirs = [
            _core.Buffer(batch.context, field.dtype, batch.shape + field.shape, batch.stream).array()
            for field in self._fields.values()
        ]
        reads: list[Read] = [(number, array, None) for number, array in enumerate(theirs)]
        if batch.core.look_up([batch.lookup(reads)], True):
            return False
        others = [batch.to_host(array) for array in theirs]
        return all(
            np.array_equal(comparable(ours, field.dtype), comparable(host, field.dtype))
            for ours, host, field in zip(mine, others, self._fields.values(), strict=True)
        )

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __or__(self, other: Any) -> Self:
        if not isinstance(other, (DictMethods, Mapping)):
            return NotImplemented
        union = self.copy()
        union.update(other)
        return union

    def __ror__(self, other: Any) -> Self:
        if not isinstance(other, Mapping):
            return NotImplemented
        union = self.copy()
        union.update(other)
        union.update(self)  # of a key that both have the right one's value stays
        return union

    def __repr__(self) -> str:
        size = len(self)
        load = size / self.capacity if self.capacity else 0.0
        shapes = f", key_shape={self._key_shape}" if self._key_shape and self._key_columns is None else ""
        shapes += f", value_shape={self._value_shape}" if self._value_shape else ""
        initializer = f", initializer={self._initializer}" if self._initializer is not None else ""
        name = f", name={name!r}" if (name := self.name) is not None else ""
        values = self._value_dtype
        if self._columns is not None:
            values = "{" + ", ".join(f"{each}: {column}" for each, column in self._columns.items()) + "}"
        return (
            f"<{type(self).__name__} {self._key_columns or self.key_dtype} -> {values}{shapes}, size={size}, "
            f"capacity={self.capacity}, load={load:.3f}, device={self.device}{initializer}{name}>"
        )


consumers.no_arrays[DictMethods] = (
    "give its keys() or its values(), ask it with contains(keys), or, where any mapping will do, give dict(table)"
)


def _is_array(part: object) -> bool:
    """Is it an array of any framework? Python numbers and sequences, and what they may hold, are none."""
    try:
        framework = framework_of(part)
    except TypeError:
        return False
    return not framework.python


def items_of(other: Any, columns: named_columns.Columns | None, key_shape: Shape) -> tuple[Any, Any]:
    """Keys and values out of what ``update`` takes as one argument, beside tables. Raises as ``update``."""
    if isinstance(other, KeyedTable):
        raise TypeError(f"a {type(other).__name__} has no values: give a table, a mapping, pairs or arrays")
    if isinstance(other, Mapping) or hasattr(other, "keys"):
        keys = list(other.keys())
        values: Any = [other[key] for key in keys]
    else:
        parts = _parts_of(other)
        is_named = len(parts) == 2 and (
            isinstance(parts[0], Mapping) or (columns is not None and isinstance(parts[1], Mapping))
        )
        if is_named or (len(parts) == 2 and all(map(_is_array, parts))):
            return parts[0], parts[1]
        keys, values = _columns_of_pairs(parts)
    if columns is not None:
        values = named_columns.transposed(values, columns) if keys else {name: [] for name in columns}
    return [tuple(key) for key in keys] if key_shape else keys, values


def _parts_of(other: Any) -> list[Any]:
    """What is in an iterable of pairs, or of an array of keys and one of values."""
    if _is_array(other):
        raise TypeError(
            f"update got a single {type(other).__name__}, whose rows might be pairs as well as keys and values: give "
            "update(keys, values)"
        )
    if isinstance(other, (str, bytes)) or not isinstance(other, Iterable):
        raise TypeError(f"a {type(other).__name__} has no items: give a table, a mapping, pairs or arrays")
    return list(other)


def _columns_of_pairs(pairs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Keys and values of pairs, the last one of a key."""
    items: dict[Any, Any] = {}
    for pair in pairs:
        # Not an array: where there are two of length 2, they may be keys and values as well.
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            length = f" of {len(pair)}" if isinstance(pair, Sized) else ""
            raise ValueError(
                f"update takes pairs, tuples or lists of a key and its value, and met a {type(pair).__name__}{length}: "
                "give keys and values apart, as in update(keys, values)"
            )
        items[_hashable(pair[0])] = pair[1]
    return list(items.keys()), list(items.values())


def _hashable(key: Any) -> Any:
    """A key as Python's own numbers: of arrays' hashes and equality every framework has another notion."""
    if isinstance(key, int):
        return key
    if _is_array(key) or isinstance(key, np.generic):
        key = key.tolist() if hasattr(key, "tolist") else np.asarray(key).tolist()
    return tuple(map(_hashable, key)) if isinstance(key, (list, tuple)) else key
