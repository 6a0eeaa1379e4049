"""Keys of several columns: integers of several dtypes that are one key together.

The core has them as rows of bytes, in which the columns lie side by side; so does whatever works with keys as they are,
such as files. Callers give and get a column each.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import need_unicode
from gpuhash.arrays.dtypes import (
    INTEGER_BOUNDS,
    ITEMSIZES,
    MAX_KEY_BYTES,
    is_integer,
    is_python_integer,
    key_dtype_name,
)


class KeyColumns(NamedTuple):
    """Names and dtypes of the columns, in order."""

    dtypes: tuple[tuple[str, str], ...]

    @classmethod
    def checked(cls, given: Mapping[Any, Any]) -> Self:
        """Those of a new table, by their names. TypeError and ValueError for what cannot be."""
        dtypes = []
        for name, dtype in given.items():
            if not isinstance(name, str) or not name:
                raise TypeError(f"a key column is named {name!r}; names are strings of one character or more")
            need_unicode(name, "the name of a key column")
            dtypes.append((name, key_dtype_name(dtype)))
        if not dtypes:
            raise ValueError("a table was to have no key columns: give one or more, or the dtype of its keys")
        made = cls(tuple(dtypes))
        if made.bytes > MAX_KEY_BYTES:
            raise ValueError(f"the key columns have {made.bytes} bytes; a key has up to {MAX_KEY_BYTES}")
        return made

    @classmethod
    def of_core(cls, given: Sequence[tuple[str, str]]) -> Self | None:
        return cls(tuple(given)) if given else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.dtypes)

    @property
    def bytes(self) -> int:
        """Of one key."""
        return sum(ITEMSIZES[dtype] for _, dtype in self.dtypes)

    def parts(self, keys: Any) -> list[Any] | None:
        """What a caller gives for each column; None for rows of bytes, which are packed already.

        Raises
        ------
        TypeError, ValueError
            For what is neither a mapping of the columns, nor a tuple of them, nor a list of keys.
        """
        if isinstance(keys, Mapping):
            if keys.keys() != set(self.names):
                raise ValueError(
                    f"keys of the columns {', '.join(map(str, keys))} were given, expected {', '.join(self.names)}"
                )
            return [keys[name] for name in self.names]
        if isinstance(keys, np.ndarray) and keys.dtype.names is not None:
            if keys.dtype.names != self.names:
                raise ValueError(f"keys have the fields {keys.dtype.names}, expected {self.names}")
            return [np.ascontiguousarray(keys[name]) for name in self.names]
        if isinstance(keys, tuple):
            return list(self._whole(keys))
        if isinstance(keys, list):
            columns = [list(column) for column in zip(*map(self._whole, keys), strict=True)]
            return columns or [[] for _ in self.dtypes]
        if hasattr(keys, "shape") or hasattr(keys, "array"):  # an array or a gpuhash buffer
            return None
        raise TypeError(
            f"keys are a {type(keys).__name__}, expected a mapping of the key columns {', '.join(self.names)} to "
            "arrays, a tuple of these, or a list of tuples"
        )

    def _whole(self, key: Any) -> Sequence[Any]:
        if not isinstance(key, (tuple, list)):
            raise TypeError(
                f"a key is a {type(key).__name__}, expected a tuple of the key columns {', '.join(self.names)}"
            )
        if len(key) != len(self.dtypes):
            raise ValueError(
                f"a key has {len(key)} columns, expected {len(self.dtypes)}: one each of {', '.join(self.names)}"
            )
        return key

    def structure(self) -> np.dtype[Any]:
        """Of rows as NumPy's structured arrays."""
        return np.dtype(list(self.dtypes))

    def to_python(self, rows: np.ndarray[Any, Any]) -> list[tuple[int, ...]]:
        """The keys of rows of bytes ``[n, bytes]``, as tuples."""
        return np.ascontiguousarray(rows).view(self.structure()).reshape(len(rows)).tolist()

    def held(self, keys: Iterable[Any]) -> list[Any]:
        """Those of Python's keys whose integers the dtypes hold; whoever takes them says what else is wrong."""
        bounds = [INTEGER_BOUNDS[dtype] for _, dtype in self.dtypes]

        def holds(key: Any) -> bool:
            pairs = zip(self._whole(key), bounds, strict=True)
            return all(not is_python_integer(part) or low <= part <= high for part, (low, high) in pairs)

        return [key for key in keys if holds(key)]

    def unpack(self, context: _core.Context, rows: _core.Array, columns: list[_core.Array], stream: int) -> None:
        """Fills the columns, ``[n]`` each."""
        _core.unpack_columns(context, columns, rows, stream)

    def to_text(self) -> str:
        return json.dumps(self.dtypes)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """What ``to_text`` gave. ValueError for anything else."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("key_columns is not valid JSON") from None
        pairs = isinstance(given, list) and all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in given
        )
        if not pairs or len({name for name, _ in given}) != len(given):
            raise ValueError("key_columns is not a list of different names with dtypes")
        for _, dtype in given:
            if dtype not in ITEMSIZES or not is_integer(dtype):
                raise ValueError(f"the key dtype {dtype!r} is not supported")
        try:
            return cls.checked(dict(given))
        except TypeError as error:
            raise ValueError(str(error)) from None

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name}: {dtype}" for name, dtype in self.dtypes) + "}"
