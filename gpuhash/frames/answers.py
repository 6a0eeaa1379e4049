"""Aggregates as those who asked get them: arrays, or columns of the library that the keys came from."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gpuhash.arrays.batch import Batch
from gpuhash.arrays.dtypes import is_integer

_Array = np.ndarray[Any, Any]

#: What gives one of the values.
PICKS = ("min", "max", "first", "last")
#: These divide by the number of values less ddof.
SPREADS = ("var", "std")
#: A group without values has none of these. The others say how many values there were.
OF_VALUES = (*PICKS, "mean", *SPREADS)
#: What the libraries have columns of; other dtypes come as arrays.
_COLUMNS = "bifu"


def may_be_missing(op: str, dtype: str, library: str | None) -> bool:
    """Has it to be told which groups have no value? Of floats an array says NaN."""
    return op in OF_VALUES and (library is not None or is_integer(dtype) or dtype == "bool")


def missing_of(op: str, counts: _Array, ddof: float) -> _Array:
    """Which groups of so many values have no result: bool ``[m]``."""
    return counts <= (max(ddof, 0) if op in SPREADS else 0)


def answer(result: Any, missing: _Array | None, library: str | None, batch: Batch, what: str) -> Any:
    """The results ``[m]`` of a call, without those of groups that have no value.

    A column where the keys came from pandas, polars or pyarrow, with nulls; a masked array in NumPy.

    Raises
    ------
    ValueError
        For missing integers of other frameworks.
    """
    if missing is not None and not missing.any():
        missing = None
    if library is not None and isinstance(result, np.ndarray) and result.dtype.kind in _COLUMNS:
        return column_of(result, missing, library)
    if missing is None:
        return result
    if not isinstance(result, np.ndarray):
        raise ValueError(
            f"the values for {what} are integers, and {int(missing.sum())} of {len(missing)} groups have nulls alone, "
            f"for which {batch.framework.name} has no integer: give floats, or keys of NumPy, pandas, polars or Arrow"
        )
    return np.ma.MaskedArray(result, missing)


def column_of(result: _Array, missing: _Array | None, library: str) -> Any:
    """Numbers as a column of a library, with nulls where they are missing."""
    module: Any = importlib.import_module(library)
    if library == "pyarrow":
        return module.array(result, mask=missing)
    if library == "polars":
        column = module.Series(result)
        return column if missing is None else column.set(module.Series(missing), None)
    if missing is None or result.dtype.kind == "f":
        if missing is not None:
            result[missing] = np.nan
        return module.Series(result)
    kind = module.arrays.BooleanArray if result.dtype.kind == "b" else module.arrays.IntegerArray
    return module.Series(kind(result, missing))
