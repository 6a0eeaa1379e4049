"""Small tables, filled alike, and the changes that all faces make to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from contract.faces import Face
from contract.model import Model

KEYS = np.array([5, -3, 0, 7, 2**40, -1])
#: Known and new keys, some of them twice.
MIXED = np.array([5, 6, 6, -3, 8, 5, -(2**63), 2**63 - 1])
ABSENT = np.array([6, 8, -7])

CHANGES = ("insert", "insert_or_assign", "setitem", "insert_or_apply", "find_or_insert", "setdefault")
LOOKUPS = ("find", "get", "contains", "rows")
ERASURES = ("erase", "delete", "pop")
#: What is asked of row numbers, which scalars of up to 8 bytes do not have.
_OF_ROWS = ("find_or_insert", "rows")


def values_of(keys: Any, value_shape: tuple[int, ...] = (), start: int = 100, dtype: str = "int64") -> np.ndarray:
    """Another value for each key of a batch."""
    shape = np.shape(keys) + value_shape
    return (np.arange(np.prod(shape)) + start).reshape(shape).astype(dtype)


def options_for(*calls: str) -> dict[str, Any]:
    """The options of a table that has these calls."""
    return {"value_shape": (2,)} if any(call in _OF_ROWS for call in calls) else {}


def filled(face: Any, keys: np.ndarray = KEYS, **options: Any) -> tuple[Face, Model]:
    """A table and a model of the keys."""
    table = face(**options)
    model = Model("int64", table.value_shape)
    values = values_of(keys, table.value_shape, start=10)
    table.put(keys, values)
    model.insert(keys, values)
    return table, model


def change(table: Face, call: str, keys: Any, values: Any) -> np.ndarray | None:
    """Makes a change, and gives the mask of new keys where the call has one. ``insert_or_apply`` adds."""
    if call == "insert_or_apply":
        return table.insert_or_apply(keys, values, "add")
    answer = getattr(table, call)(keys, values)
    if call == "find_or_insert":
        return answer[1]
    return None if call in ("setdefault", "setitem") else answer


def change_model(model: Model, call: str, keys: Any, values: Any) -> None:
    how = {"insert_or_assign": "replace", "setitem": "replace", "insert_or_apply": "add"}
    model.insert_or_apply(keys, values, how.get(call, "keep"))


def look_up(table: Face, call: str, keys: Any) -> Any:
    return table.get(keys, np.asarray(-5)) if call == "get" else getattr(table, call)(keys)
