"""Columns of pandas, polars and Arrow as NumPy arrays: nulls do not become NaN on the way, nor integers floats.

Their own conversion to NumPy turns integers beside nulls into float64, which merges those beyond 2^53. What else has
Arrow's C interface is a column, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arrow_c

LIBRARIES = ("pandas", "polars", "pyarrow")

_Array = np.ndarray[Any, Any]


def to_numpy(column: Any) -> _Array:
    """The numbers of a column, ``[n]``; of a table of columns of one dtype, ``[n, columns]``.

    Raises
    ------
    ValueError
        Where it has nulls.
    TypeError
        Where it holds no numbers, or columns of different dtypes.
    """
    if (source := _arrow_source(column)) is not None:
        numbers, mask, _ = _read_arrow(source, column)
        _need_none(column, mask)
        return numbers
    if hasattr(column, "columns"):
        return _frame_to_numpy(column)
    _need_none(column, null_mask(column))
    return _numbers_of(column)


def _need_none(column: Any, mask: _Array | None) -> None:
    """ValueError where there are nulls."""
    if mask is not None:
        raise ValueError(
            f"{describe(column)} has nulls, in {int(mask.reshape(len(mask), -1).any(axis=1).sum())} of {len(mask)} "
            f"entries, and a null is no number: leave them out, as with {_leave_out(column)}, or put numbers in their "
            f"place, as with {_fill(column)}"
        )


def _arrow_source(column: Any) -> Any:
    """What to read a column from by Arrow's C interface; None where the library's own way to NumPy is right.

    That is for numbers, alone or in frames. pandas has no interface for its indexes, but Arrow's arrays in them.
    """
    library = type(column).__module__.partition(".")[0]
    if library not in LIBRARIES or not hasattr(type(column), "__array__"):
        return column if arrow_c.is_arrow(type(column)) else None
    if library == "polars":
        return column if type(getattr(column, "dtype", None)).__name__ == "Decimal" else None
    if library == "pyarrow":
        return column if _is_vector(getattr(column, "type", None)) else None
    if _is_vector(getattr(getattr(column, "dtype", None), "pyarrow_dtype", None)):
        return getattr(column, "array", column).__arrow_array__()
    return None


def _is_vector(kind: Any) -> bool:
    """Has an entry of this type of pyarrow several numbers, or an unscaled one, or one that may be null elsewhere?"""
    name = type(kind).__name__
    vectors = ("StructType", "FixedSizeListType", "FixedSizeBinaryType", "DictionaryType")
    return name in vectors or name.startswith("Decimal") or hasattr(kind, "storage_type")


def _read_arrow(source: Any, column: Any) -> tuple[_Array, _Array | None, bool]:
    try:
        return arrow_c.read(source, describe(column))
    except (TypeError, ValueError, MemoryError):
        raise
    except Exception as error:  # each library has errors of its own
        raise TypeError(f"{describe(column)} cannot be had by Arrow's C interface: {error}") from error


def split_nulls(column: Any) -> tuple[_Array, _Array | None, bool]:
    """The numbers of a column without its nulls, which of its entries are null, and whether entries are whole.

    None where no entry is null. Whole: an entry is one thing, such as a UUID, of several words or bytes.
    """
    if (source := _arrow_source(column)) is not None:
        numbers, mask, whole = _read_arrow(source, column)
        return (numbers if mask is None else numbers[~mask]), mask, whole
    if hasattr(column, "columns"):
        return _frame_to_numpy(column), None, False
    mask = null_mask(column)
    if mask is None:
        return _numbers_of(column), None, False
    if mask.ndim != 1:
        return to_numpy(column), None, False  # which raises: a row has nulls among its numbers
    if hasattr(column, "drop_nulls"):
        return _numbers_of(column.drop_nulls()), mask, False
    return _numbers_of(column.drop_null() if hasattr(column, "drop_null") else column[~mask]), mask, False


def with_nulls(column: Any) -> tuple[_Array, _Array | None, bool]:
    """As ``split_nulls``, with zeros in place of the nulls."""
    numbers, mask, whole = split_nulls(column)
    if mask is None or mask.ndim != 1:
        return numbers, mask, whole
    filled = np.zeros((len(mask), *numbers.shape[1:]), numbers.dtype)
    filled[~mask] = numbers
    return filled, mask, whole


def settle(column: Any) -> tuple[_Array, bool]:
    """The numbers of a column, as ``to_numpy``, and whether its entries are whole."""
    numbers, mask, whole = split_nulls(column)
    _need_none(column, mask)
    return numbers, whole


def null_mask(column: Any) -> _Array | None:
    """Which entries are null; None where none is. NaN is no null, unless pandas takes it for one."""
    if hasattr(column, "isna"):  # pandas
        if isinstance(column.dtype, np.dtype):
            return None  # no nulls but NaN, NaT and what objects are
        mask = np.asarray(column.isna())
    else:
        mask = np.asarray(column.is_null())
        while len(mask) and not mask.any() and type(getattr(column, "dtype", None)).__name__ == "Array":
            column = column.explode()  # polars: each entry is an array of one shape
            mask = np.asarray(column.is_null()).reshape(len(mask), -1)
    return mask if mask.any() else None


def library_of(column: Any) -> str | None:
    """Which of the libraries a column or frame is of; None for anything else."""
    library = type(column).__module__.partition(".")[0]
    return library if library in LIBRARIES else None


def is_untyped(column: Any) -> bool:
    """Is it a column of the libraries that has no entries, or nulls alone, and does not say what they would be?"""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    if dtype == np.dtype(object):
        return bool(column.isna().all())
    return str(dtype) in ("null", "Null", "null[pyarrow]")


def scale_of(column: Any) -> int | None:
    """How many decimal places a column of decimals of polars, pyarrow or pandas has; None for anything else."""
    given = getattr(column, "dtype", getattr(column, "type", None))
    dtype: Any = getattr(given, "pyarrow_dtype", given)
    return dtype.scale if type(dtype).__name__.startswith("Decimal") else None


def describe(column: Any) -> str:
    """What a column is, in words."""
    if isinstance(column, arrow_c.OpenedStream):
        column = column.column
    library = type(column).__module__.partition(".")[0]
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    return f"a {library} {type(column).__name__}" + ("" if dtype is None else f" of {dtype}")


def _numbers_of(column: Any) -> _Array:
    """The numbers of a column without nulls, but for those within its entries."""
    dtype: Any = getattr(column, "dtype", None)
    nested = type(dtype).__name__  # of polars
    if nested == "Struct":  # which polars' own conversion makes floats of, where fields have nulls or several dtypes
        return _frame_to_numpy(column.struct.unnest())
    if nested in ("Int128", "UInt128"):
        raise TypeError(
            f"{describe(column)} has 128 bits, and polars makes such where UInt64 meets Int64: cast it to one of them, "
            "as with .cast(pl.UInt64), or the columns that it came from"
        )
    if nested == "Array" and _innermost(dtype) == "Struct":
        inner = to_numpy(column.explode())
        return inner.reshape(len(column), dtype.size, *inner.shape[1:])
    exact = getattr(dtype, "numpy_dtype", None)  # pandas: of masked and Arrow columns
    try:
        array = np.asarray(column) if exact is None else column.to_numpy(dtype=exact)
    except Exception as error:  # each library has errors of its own
        raise TypeError(f"{describe(column)} cannot be had as a NumPy array: {error}") from error
    if array.dtype.kind in "biufc":
        return array
    advice = (
        "convert it to integers or floats, or number what it holds, as gpuhash.factorize does; strings are keys of "
        "tables with the key dtype 'str' or 'bytes'"
    )
    if array.dtype.kind in "mM" or getattr(dtype, "kind", None) in ("m", "M"):
        library = type(column).__module__.partition(".")[0]
        call = {"polars": ".to_physical()", "pyarrow": ".cast('int64')"}.get(library, ".astype('int64')")
        advice = f"give the times as integers, as with {call}"
    raise TypeError(f"{describe(column)} holds no numbers that tables take: {advice}")


def _innermost(dtype: Any) -> str:
    """The name of the class of what polars' arrays of arrays hold."""
    while type(dtype).__name__ == "Array":
        dtype = dtype.inner
    return type(dtype).__name__


def _frame_to_numpy(frame: Any) -> _Array:
    if hasattr(frame, "get_columns"):  # polars
        columns = frame.get_columns()
    elif hasattr(frame, "iloc"):  # pandas
        columns = [frame.iloc[:, i] for i in range(frame.shape[1])]
    else:
        columns = list(frame.columns)
    arrays = [to_numpy(column) for column in columns]
    dtypes = dict.fromkeys(str(array.dtype) for array in arrays)
    if len(dtypes) != 1:
        raise TypeError(f"{describe(frame)} has columns of {' and '.join(dtypes) or 'nothing'}: give them one dtype")
    if len({array.shape for array in arrays}) != 1:
        raise TypeError(f"{describe(frame)} has columns of numbers beside columns of vectors: give them apart")
    return np.stack(arrays, axis=1)


def _leave_out(column: Any) -> str:
    if type(column).__module__.partition(".")[0] not in LIBRARIES:
        return "IS NOT NULL or the like"
    if hasattr(column, "drop_nulls"):
        return ".drop_nulls()"
    return ".drop_null()" if hasattr(column, "drop_null") else ".dropna()"


def _fill(column: Any) -> str:
    if type(column).__module__.partition(".")[0] not in LIBRARIES:
        return "coalesce"
    return ".fill_null(0)" if hasattr(column, "fill_null") else ".fillna(0)"
