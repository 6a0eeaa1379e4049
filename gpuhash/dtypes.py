"""The dtypes that tables take, by NumPy's and ml_dtypes' names, and Python numbers as arrays of them."""

from __future__ import annotations

from typing import Any

import numpy as np

ITEMSIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
INTEGER_BOUNDS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in ITEMSIZES if "int" in name}
MAX_KEY_BYTES = 16
MAX_VALUE_BYTES = 1 << 28  # times the largest number of slots, 2^34, this still fits an int64

_PYTHON_TYPES: dict[object, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_known: dict[object, str] = {}


def dtype_name(dtype: object) -> str:
    """The name of a dtype given as a string, a Python type or a dtype of any framework.

    Raises
    ------
    TypeError
        Where it is not a dtype, or not one that tables take.
    """
    try:
        return _known[dtype]
    except KeyError:
        name = _known[dtype] = _find_name(dtype)
        return name
    except TypeError:  # not hashable
        return _find_name(dtype)


def _find_name(dtype: Any) -> str:
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
    elif isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        name = _PYTHON_TYPES[dtype]
    elif type(dtype).__module__.partition(".")[0] == "torch":
        name = str(dtype).removeprefix("torch.")
    elif type(dtype).__module__.partition(".")[0] == "tensorflow":
        name = dtype.name
    else:
        name = ""
    if name in ITEMSIZES:
        return name
    try:
        numpy_dtype = np.dtype(name or dtype)
    except TypeError:
        numpy_dtype = None
    if numpy_dtype is not None and numpy_dtype.name in ITEMSIZES and numpy_dtype.isnative and dtype is not None:
        return numpy_dtype.name
    raise TypeError(f"dtype {dtype!r} is not supported: give one of {', '.join(ITEMSIZES)}")


def is_integer(name: str) -> bool:
    return "int" in name


def key_dtype_name(dtype: object) -> str:
    """``dtype_name`` of a key dtype, which must be an integer's."""
    name = dtype_name(dtype)
    if not is_integer(name):
        integer = f"int{8 * ITEMSIZES[name]}" if ITEMSIZES[name] <= 8 else "int64"
        raise TypeError(
            f"keys are integers, not {name}: a table compares them bit by bit. View the keys as integers, as in "
            f"keys.view('{integer}') or, in PyTorch, keys.view(torch.{integer}), and make the table with the key dtype "
            f"'{integer}'"
        )
    return name


def storage_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of the same size whose bytes stand for ``name``: itself, but uint16 for bfloat16."""
    return np.dtype("uint16" if name == "bfloat16" else name)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name; bfloat16 from ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            "NumPy has no bfloat16 of its own: install ml_dtypes, or ask with keys of a framework that has it, such as "
            "PyTorch"
        ) from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def encode(data: Any, name: str, what: str) -> np.ndarray[Any, Any]:
    """Python numbers, or nested sequences of them, as a dense array of ``storage_dtype(name)``.

    Raises
    ------
    TypeError
        Where a number is of a kind that ``name`` cannot hold: floats for integers, complex for floats, strings.
    OverflowError
        Where an integer is out of range.
    """
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ValueError(f"the {what} are nested sequences of unequal lengths: {error}") from None
    target = storage_dtype(name)
    kind = array.dtype.kind
    if array.size == 0:
        return np.empty(array.shape, target)
    if is_integer(name):
        if kind in "iub":
            bounds = np.iinfo(target)
            low, high = int(array.min()), int(array.max())
            if low < bounds.min or high > bounds.max:
                raise _out_of_range(low if low < bounds.min else high, name, what)
            return array.astype(target, order="C")
        if kind in "fO":  # also what NumPy makes of integers that share no 64-bit dtype
            return _encode_integers(data, target, name, what)
    elif name == "bool":
        if kind == "b":
            return array.astype(target, order="C")
    elif kind in ("biufc" if name.startswith("complex") else "biuf") or _is_bfloat16(array):
        with np.errstate(over="ignore"):
            if name == "bfloat16":
                return round_to_bfloat16(array.astype(np.float32))
            return array.astype(target, order="C")
    given = type(data).__name__ if array.ndim == 0 else f"a {type(data).__name__} of {array.dtype.name}"
    raise TypeError(f"the {what} are {name}, and {given} cannot be converted to that without loss")


def _encode_integers(data: Any, target: np.dtype[Any], name: str, what: str) -> np.ndarray[Any, Any]:
    objects = np.asarray(data, dtype=object)
    bounds = np.iinfo(target)
    for item in objects.flat:
        if not isinstance(item, (int, np.integer)):
            raise TypeError(f"the {what} are {name}, and {item!r} is not an integer")
        if not bounds.min <= item <= bounds.max:
            raise _out_of_range(int(item), name, what)
    return objects.astype(target, order="C")


def _out_of_range(number: int, name: str, what: str) -> OverflowError:
    bounds = np.iinfo(name)
    return OverflowError(f"{number} is out of range for {what} of {name} ({bounds.min} to {bounds.max})")


def _is_bfloat16(array: np.ndarray[Any, Any]) -> bool:
    return bool(array.dtype.kind == "V" and array.dtype.name == "bfloat16")


def round_to_bfloat16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 to the bits of bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)


def to_python(storage: np.ndarray[Any, Any], name: str) -> Any:
    """The Python number that a 0-d array of ``storage_dtype(name)`` stands for."""
    return comparable(storage, name).item()


def comparable(storage: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The storage as numbers that NumPy computes with: bfloat16 widened to float32."""
    if name != "bfloat16":
        return storage
    return (storage.astype(np.uint32) << np.uint32(16)).view(np.float32)
