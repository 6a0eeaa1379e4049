"""The dtypes that tables take, by NumPy's and ml_dtypes' names, and Python numbers as arrays of them."""

from __future__ import annotations

import math
from collections.abc import KeysView, ValuesView
from typing import Any

import numpy as np

from .float_mode import in_default_float_mode

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
MAX_KEY_BYTES = 1 << 20  # of tables
MAX_ROW_BYTES = 16  # of the rows of `unique` and its like
MAX_VALUE_BYTES = 1 << 28  # times the largest number of slots, 2^34, this still fits an int64

# What to do with strings where numbers are expected.
NUMBER_STRINGS = (
    "make the table with the key dtype 'str' or 'bytes' if strings are its keys, or number strings first, as by "
    "gpuhash.factorize, or hash them to 64-bit integers, as by gpuhash.hash"
)

_PYTHON_TYPES: dict[object, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_known: dict[tuple[type, object], str] = {}
_MOST_KNOWN = 256


def dtype_name(dtype: object) -> str:
    """The name of a dtype given as a string, a Python type or a dtype of any framework.

    Raises
    ------
    TypeError
        Where it is not a dtype, or not one that tables take.
    """
    try:
        return _known[type(dtype), dtype]  # with its type, because 1, 1.0, True and TensorFlow's float32 are equal
    except (KeyError, TypeError):  # TypeError: not hashable
        name = _find_name(dtype)
    # Other objects may change what they say, and would be kept alive.
    if len(_known) < _MOST_KNOWN and (isinstance(dtype, (str, type, np.dtype)) or _library_of(dtype) in _LIBRARIES):
        _known[type(dtype), dtype] = name
    return name


_LIBRARIES = ("torch", "tensorflow")  # whose dtypes NumPy does not understand


def _library_of(dtype: object) -> str:
    return type(dtype).__module__.partition(".")[0]


def _find_name(dtype: Any) -> str:
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
    elif isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        name = _PYTHON_TYPES[dtype]
    elif _library_of(dtype) == "torch":
        name = str(dtype).removeprefix("torch.")
    elif _library_of(dtype) == "tensorflow":
        name = dtype.name
    else:
        name = ""
    if name in ITEMSIZES:
        return name
    if isinstance(dtype, (tuple, list, dict)):  # NumPy reads structures out of these
        raise TypeError(
            f"dtype {dtype!r} was given, expected one dtype of those that tables take: {', '.join(ITEMSIZES)}; keys "
            "that are vectors of one dtype have a key_shape, as in key_dtype='int32', key_shape=(2,)"
        )
    try:
        # NumPy takes a number of its own for the number's dtype.
        numpy_dtype = None if isinstance(dtype, np.generic) else np.dtype(name or dtype)
    except TypeError:
        numpy_dtype = None
    if numpy_dtype is not None and numpy_dtype.name in ITEMSIZES and numpy_dtype.isnative and dtype is not None:
        return numpy_dtype.name
    advice = f"; {NUMBER_STRINGS}" if numpy_dtype is not None and numpy_dtype.kind in "UST" else ""
    raise TypeError(f"dtype {dtype!r} is not supported: give one of {', '.join(ITEMSIZES)}{advice}")


def is_integer(name: str) -> bool:
    return "int" in name


def has_nan(name: str) -> bool:
    """Is one of the dtype's numbers NaN?"""
    return "float" in name or "complex" in name


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


def read_numbers(data: Any, what: str) -> np.ndarray[Any, Any]:
    """Python numbers, or nested sequences of them, as NumPy reads them: integers that share no dtype become floats."""
    try:
        return np.asarray(list(data) if isinstance(data, (KeysView, ValuesView)) else data)
    except ValueError as error:
        raise ValueError(f"the {what} are nested sequences of unequal lengths: {error}") from None
    except RuntimeError as error:  # of a PyTorch tensor among them that requires grad
        raise TypeError(f"the {what} hold an object that NumPy reads no number from: {error}") from error


def read_objects(data: Any) -> np.ndarray[Any, Any]:
    """The same numbers as Python objects, of which none is converted."""
    return np.asarray(list(data) if isinstance(data, (KeysView, ValuesView)) else data, dtype=object)


def infer_numbers(data: Any, what: str) -> np.ndarray[Any, Any]:
    """Python numbers, or nested sequences of them, as an array of their NumPy dtype, or uint64 where that holds them.

    Raises
    ------
    TypeError
        Where they are no numbers.
    OverflowError
        Where no dtype holds all of them: integers of more than 64 bits, negative ones beside some of 2^63 or more, and
        those that a float beside them would round.
    """
    array = read_numbers(data, what)
    if array.dtype.kind in "fcO" and array.size:
        objects = read_objects(data)
        if all(map(is_python_integer, objects.flat)):  # NumPy has made floats of those from 2^63, or left them objects
            low, high = min(objects.flat), max(objects.flat)
            if low >= 0 and high < 1 << 64:
                return objects.astype("uint64")
            raise _no_dtype_for(high if high >= 1 << 63 else low, what)
        # NumPy would compare in the array's dtype; Python compares exactly.
        if array.dtype.kind != "O" and objects.shape == array.shape:
            for item, number in zip(objects.flat, array.reshape(-1).tolist(), strict=True):
                if is_python_integer(item) and number != int(item):
                    raise _no_dtype_for(item, what)
    if array.dtype.name not in ITEMSIZES:
        raise TypeError(
            f"the {what} are a {type(data).__name__} of {array.dtype}, expected numbers of one of the dtypes "
            f"{', '.join(ITEMSIZES)}" + (f"; {NUMBER_STRINGS}" if array.dtype.kind in "US" else "")
        )
    return array


def _no_dtype_for(integer: int, what: str) -> OverflowError:
    return OverflowError(
        f"the {what} hold the integer {integer}, and no dtype of 64 bits holds it and all others: give an array of the "
        "dtype that you mean"
    )


def is_python_integer(item: object) -> bool:
    return isinstance(item, (int, np.integer))


def encode(data: Any, name: str, what: str) -> np.ndarray[Any, Any]:
    """Python numbers, or nested sequences of them, as a dense array of ``storage_dtype(name)``.

    Raises
    ------
    TypeError
        Where a number is of a kind that ``name`` cannot hold: floats for integers, complex for floats, strings.
    OverflowError
        Where an integer is out of range, or of more than 64 bits that a float would round.
    """
    array = read_numbers(data, what)
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
        return _rounded(array, name)
    elif kind == "O" and any(map(is_python_integer, (objects := read_objects(data)).flat)):  # of more than 64 bits
        rounded, held = _round_integers(objects, name, what)
        if not held.all():
            raise OverflowError(
                f"the {what} are {name}, which does not hold the integer {objects[~held].flat[0]} exactly: give a float"
            )
        return rounded
    given = type(data).__name__ if array.ndim == 0 else f"a {type(data).__name__} of {array.dtype.name}"
    if kind in "US":
        raise TypeError(f"the {what} are {name}, and {given} was given: {NUMBER_STRINGS}")
    raise TypeError(f"the {what} are {name}, and {given} cannot be converted to that without loss")


@in_default_float_mode
def _rounded(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Numbers as the storage of a dtype of floats or complex numbers."""
    with np.errstate(over="ignore"):
        if name == "bfloat16":
            return round_to_bfloat16(array.astype(np.float32))
        return array.astype(storage_dtype(name), order="C")


def encode_held(data: Any, name: str, what: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """As ``encode``, and which of the numbers the dtype holds; the others are zeros."""
    array = read_numbers(data, what)
    if array.size == 0 or name == "bool" or array.dtype.kind == "b" or array.dtype.kind not in "iufcO":
        array = encode(data, name, what)
        return array, np.ones(array.shape, bool)
    objects = read_objects(data)
    if is_integer(name):
        bounds = np.iinfo(name)
        kept = [not is_python_integer(item) or bounds.min <= item <= bounds.max for item in objects.flat]
        held = np.array(kept, bool).reshape(objects.shape)
        return encode(np.where(held, objects, 0), name, what), held
    rounded, held = _round_integers(objects, name, what)
    return np.where(held, rounded, np.zeros_like(rounded)), held


def _round_integers(
    objects: np.ndarray[Any, Any], name: str, what: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Python numbers as a dtype of floats, and which of them are not integers that it rounds. Raises as ``encode``."""
    floats = [_to_float(item) if is_python_integer(item) else item for item in objects.flat]
    rounded = encode(floats, name, what)
    pairs = zip(objects.flat, comparable(rounded, name).tolist(), strict=True)
    held = [not is_python_integer(item) or number == int(item) for item, number in pairs]
    return rounded.reshape(objects.shape), np.array(held, bool).reshape(objects.shape)


def _to_float(integer: int) -> float:
    try:
        return float(integer)
    except OverflowError:
        return math.inf


def _encode_integers(data: Any, target: np.dtype[Any], name: str, what: str) -> np.ndarray[Any, Any]:
    objects = read_objects(data)
    bounds = np.iinfo(target)
    for item in objects.flat:
        if not is_python_integer(item):
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


def plain_bools(storage: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The storage; of bools with 0 and 1 alone, where arrays may hold any byte, all of which but 0 are True."""
    return storage.view(np.uint8).astype(bool) if name == "bool" else storage


def to_python(storage: np.ndarray[Any, Any], name: str) -> Any:
    """The Python number that a 0-d array of ``storage_dtype(name)`` stands for."""
    return comparable(storage, name).item()


def comparable(storage: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """The storage as numbers that NumPy computes with: bfloat16 widened to float32."""
    if name != "bfloat16":
        return storage
    return (storage.astype(np.uint32) << np.uint32(16)).view(np.float32)
