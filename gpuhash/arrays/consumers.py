"""What others make of tables and sets: those that take any mapping, and those that make arrays of any object."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import numpy as np

# Libraries that take any mapping and read its items() as pairs: Counter.update, pandas.Series.replace, and others.
# Not those that call functions of their users, such as TensorFlow, JAX and PyTorch, which may want the two arrays.
_READERS_OF_PAIRS = frozenset({"collections", "pandas", "polars"})

#: Why an object of one of our classes is no array, and what to give instead.
no_arrays: dict[type, str] = {}


def wants_pairs(table: object, depth: int = 2) -> bool:
    """Was the function that asks (``depth`` calls up: its caller) called by a library that reads items() as pairs?

    Two arrays cannot be told from two pairs by who gets them: of a table with two items, ``zip(*items)`` is right for
    the one and wrong for the other. So the only place where it can be told is the call. An ``items()`` of a derived
    class that calls ours stands for its own caller.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame.f_code.co_name == "items" and _is_method_of(table, frame):
        frame = frame.f_back
    name = None if frame is None else frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] in _READERS_OF_PAIRS


def refuse_array(kind: type) -> TypeError | None:
    """The error for an object of this class in the place of an array; None where it is none of ours."""
    for base in kind.__mro__:
        if base in no_arrays:
            return TypeError(f"a {kind.__name__} is no array: {no_arrays[base]}")
    return None


def as_array(keys: Iterable[Any], dtype: Any, copy: bool | None) -> np.ndarray[Any, Any]:
    """What ``__array__`` gives of new arrays of keys: of the dtype that NumPy asks for."""
    if copy is False:
        raise ValueError("an array of a set's keys is a copy, and copy=False was given: ask with np.asarray(keys)")
    array = np.asarray(keys)
    return array if dtype is None else array.astype(dtype, copy=False)


def _is_method_of(table: object, frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is table
