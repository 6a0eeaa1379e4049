"""Named columns: what a table has for each key, where that is more than one value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gpuhash import initializers
from gpuhash.arrays.arguments import need_unicode, one_value, shape_of
from gpuhash.arrays.dtypes import ITEMSIZES, MAX_VALUE_BYTES, dtype_name, plain_bools, storage_dtype
from gpuhash.arrays.frameworks import Shape
from gpuhash.initializers import CoreInitializer, Initializer
from gpuhash.torch import dispatch as traced

#: Name, dtype, shape and initializer; as the core has it.
CoreColumn: TypeAlias = tuple[str, str, Shape, CoreInitializer | None]

#: The columns of a table by their names, in their order.
Columns: TypeAlias = dict[str, "Column"]

_MAX_COLUMNS = 4096


@dataclass(frozen=True, init=False)
class Column:
    """One of several values that a table has for each key.

    Parameters
    ----------
    dtype
        bool, an integer, float16, bfloat16, float32, float64, complex64 or complex128.
    shape
        The shape of one value, ``()`` for a scalar.
    initial
        What the rows of new keys get that are given no value of this column: a number, for all elements; an object of
        ``gpuhash.initializers``; or None, zeros. Numbers that are drawn depend on the initializer, the key, the
        element's place in the column, and on which of the columns that draw with the same seed this one is: no two
        columns of a table draw the same. The first of them draws what a table of its values alone would.
    """

    dtype: str
    shape: Shape = ()
    initial: Initializer | None = None

    def __init__(self, dtype: object, shape: int | Sequence[int] = (), initial: Any = None) -> None:
        object.__setattr__(self, "dtype", dtype_name(dtype))
        object.__setattr__(self, "shape", shape_of(shape, "shape"))
        object.__setattr__(self, "initial", _initial(initial))
        if 0 in self.shape:
            raise ValueError(f"shape={self.shape} was given for a column; each length is 1 or more")
        if self.bytes > MAX_VALUE_BYTES:
            raise ValueError(
                f"shape={self.shape} of {self.dtype} was given for a column; the values of a key have up to "
                f"{MAX_VALUE_BYTES} bytes"
            )
        self.core_initial()  # which checks it

    @property
    def bytes(self) -> int:
        """Of one value."""
        return math.prod(self.shape) * ITEMSIZES[self.dtype]

    def core_initial(self) -> CoreInitializer | None:
        return initializers.checked(self.initial, self.dtype, True)

    def __str__(self) -> str:
        shape = f" {self.shape}" if self.shape else ""
        return self.dtype + shape + (f" = {self.initial}" if self.initial is not None else "")


def _initial(given: Any) -> Initializer | None:
    if given is None or isinstance(given, Initializer):
        return given
    if np.shape(given) != ():
        raise TypeError(
            f"initial={given!r} was given for a column, expected one number for all elements, an object of "
            "gpuhash.initializers or None; other rows can be given with the keys"
        )
    if not isinstance(given, (bool, int, float, complex, np.generic)):
        raise TypeError(f"initial={given!r} was given for a column, expected a number, an initializer or None")
    return initializers.Constant(given.item() if isinstance(given, np.generic) else given)


def checked(given: Mapping[Any, Any]) -> Columns:
    """The columns of a new table, each given as a Column, a dtype, or ``(dtype, shape)``. TypeError and ValueError."""
    columns: Columns = {}
    for name, column in given.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a column is named {name!r}; names are strings of one character or more")
        need_unicode(name, "the name of a column")
        if isinstance(column, Column):
            columns[name] = column
        elif isinstance(column, tuple):
            if len(column) != 2:
                raise TypeError(
                    f"the column {name!r} is a tuple of {len(column)}, expected (dtype, shape), a dtype or a Column"
                )
            columns[name] = Column(*column)
        else:
            columns[name] = Column(column)
    if not columns:
        raise ValueError("a table was to have no columns: give one or more, or the dtype of its values")
    if len(columns) > _MAX_COLUMNS:
        raise ValueError(f"{len(columns)} columns were given; a table has up to {_MAX_COLUMNS}")
    total = sum(column.bytes for column in columns.values())
    if total > MAX_VALUE_BYTES:
        raise ValueError(f"the columns have {total} bytes per key; a key has up to {MAX_VALUE_BYTES}")
    return columns


def to_core(columns: Columns) -> list[CoreColumn]:
    return [(name, column.dtype, column.shape, column.core_initial()) for name, column in columns.items()]


def of_core(given: Sequence[CoreColumn]) -> Columns | None:
    """None where there are none."""
    if not given:
        return None
    return {name: Column(dtype, shape, initializers.of_core(initial, dtype)) for name, dtype, shape, initial in given}


@traced.itself
def chosen(columns: Columns, names: Any) -> list[str]:
    """The names of columns that a caller asks for; None: all.

    Raises
    ------
    TypeError, ValueError
        Where these are no names, for a column that the table does not have, and for one that is asked for twice, or for
        none.
    """
    if names is None:
        return list(columns)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"columns={names!r} was given, expected a list of names, such as {list(columns)[:1]}")
    wanted = list(names)
    for name in wanted:
        need(columns, name)
    if len(set(wanted)) != len(wanted):
        raise ValueError(f"columns={wanted} was given, in which one comes twice")
    if not wanted:
        raise ValueError("columns=[] was given: ask for one or more, or, for the keys alone, contains(keys)")
    return wanted


def no_names(names: Any) -> TypeError:
    """The error for columns that are asked for of a table without them."""
    return TypeError(f"columns={names!r} was given, and the table has a single value per key, without a name")


@traced.itself
def need(columns: Columns, name: Any) -> Column:
    """The column of that name; ValueError where there is none."""
    if isinstance(name, str) and name in columns:
        return columns[name]
    raise ValueError(f"the table has no column {name!r}; it has {', '.join(columns)}")


def refuse(columns: Columns | None, what: str) -> None:
    """TypeError where there are columns, of which ``what`` knows nothing."""
    if columns is not None:
        raise TypeError(
            f"{what} takes tables with a single value per key, and this one has named columns ({', '.join(columns)}): "
            "use the table's own methods, or make one table for each column"
        )


@traced.itself
def by_name(columns: Columns, given: Any, what: str) -> dict[str, Any]:
    """What a caller gives for some columns, by their names. TypeError for no mapping, ValueError for unknown names."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"the table has named columns, and the {what} are a {type(given).__name__}: give a mapping of names, such "
            f"as {{{next(iter(columns))!r}: ...}}"
        )
    named = dict(given)
    for name in named:
        need(columns, name)
    if not named:
        raise ValueError(f"the {what} are an empty mapping: give one or more columns")
    return named


def transposed(rows: Sequence[Any], columns: Columns | None = None) -> dict[str, list[Any]]:
    """Mappings of one key's columns each, as the lists of each column's values.

    ``columns``: where they are known, a number stands for a whole value.
    """
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(
                f"the table has named columns, and a {type(row).__name__} was given for a key: give a mapping of names"
            )
        if row.keys() != rows[0].keys():
            raise ValueError(
                f"one key was given the columns {sorted(map(str, rows[0]))}, another one {sorted(map(str, row))}: give "
                "all keys of a call the same"
            )
    lists = {}
    for name in rows[0]:
        shape = columns[name].shape if columns is not None and name in columns else ()
        values = [row[name] for row in rows]
        lists[name] = [np.full(shape, value) if shape and np.ndim(value) == 0 else value for value in values]
    return lists


def defaults_of(columns: Columns, given: Any) -> dict[str, np.ndarray[Any, Any]]:
    """One value of each column on the host, as its dtype's storage; zeros for those that are not given."""
    defaults = zeros(columns)
    for name, value in by_name(columns, given, "defaults").items():
        defaults[name] = one_value(value, columns[name].dtype, columns[name].shape, f"default of {name!r}")
    return defaults


def zeros(columns: Columns) -> dict[str, np.ndarray[Any, Any]]:
    """One value of each column on the host, as its dtype's storage."""
    return {name: np.zeros(column.shape, storage_dtype(column.dtype)) for name, column in columns.items()}


# Files ---------------------------------------------------------------------------------------------------------------


def to_text(columns: Columns) -> str:
    """What a file says of the columns."""
    said = []
    for name, column in columns.items():
        entry = {"name": name, "dtype": column.dtype, "shape": column.shape}
        if column.initial is not None:
            entry["initial"] = initializers.to_text(column.initial, column.dtype)
        said.append(entry)
    return json.dumps(said)


def of_text(text: str) -> Columns:
    """The columns that a file says, which may be anything. ValueError where it says something else."""
    try:
        said = json.loads(text)
        if not isinstance(said, list):
            raise ValueError("they are no JSON list")
        if len(said) > _MAX_COLUMNS:
            raise ValueError(f"there are {len(said)} of them")
        columns: Columns = {}
        for entry in said:
            if not isinstance(entry, dict) or entry.keys() - {"initial"} != {"name", "dtype", "shape"}:
                raise ValueError("one of them has other entries than name, dtype, shape and initial")
            name, dtype, shape = entry["name"], entry["dtype"], entry["shape"]
            if not isinstance(dtype, str) or dtype not in ITEMSIZES:
                raise ValueError(f"the dtype {dtype!r} is not supported")
            if not isinstance(shape, list) or any(type(length) is not int for length in shape):
                raise ValueError("a shape is not a list of integers")
            initial = initializers.of_text(entry["initial"], dtype, True) if "initial" in entry else None
            if name in columns:
                raise ValueError(f"the name {name!r} comes twice")
            columns[name] = Column(dtype, tuple(shape), initial)
        return checked(columns)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the columns are not such as a table has: {error}") from None


def defaults_to_text(columns: Columns, defaults: Mapping[str, bytes]) -> str:
    return json.dumps({name: defaults[name].hex() for name in columns})


def defaults_of_text(text: str, columns: Columns) -> dict[str, bytes]:
    """The defaults that a file says, one of each column. ValueError where it says something else."""
    try:
        said = json.loads(text)
        if not isinstance(said, dict) or said.keys() != columns.keys():
            raise ValueError("they are not one for each column")
        defaults = {name: bytes.fromhex(said[name]) for name in columns}
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the defaults are not such as a table has: {error}") from None
    for name, column in columns.items():
        if len(defaults[name]) != column.bytes:
            raise ValueError(f"the default of {name!r} is not a value of its dtype and shape")
        storage = np.frombuffer(defaults[name], storage_dtype(column.dtype))
        defaults[name] = plain_bools(storage, column.dtype).tobytes()
    return defaults
