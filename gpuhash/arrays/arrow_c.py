"""Arrow's columns as NumPy arrays, by the Arrow C data interface, which needs no library.

https://arrow.apache.org/docs/format/CDataInterface.html and CStreamInterface.html say what the structures mean. What is
read is copied, and given back to its producer at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .dtypes import NUMBER_STRINGS

_Array = np.ndarray[Any, Any]


class _Schema(ctypes.Structure):
    pass


class _Data(ctypes.Structure):
    """ArrowArray."""


class _Stream(ctypes.Structure):
    """ArrowArrayStream."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))),
    ("private_data", ctypes.c_void_p),
]
_Data._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Data))),
    ("dictionary", ctypes.POINTER(_Data)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Data))),
    ("private_data", ctypes.c_void_p),
]
_Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema))),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Data))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))),
    ("private_data", ctypes.c_void_p),
]

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_PRIMITIVE = {
    "c": "int8",
    "C": "uint8",
    "s": "int16",
    "S": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "e": "float16",
    "f": "float32",
    "g": "float64",
}
#: Unscaled integers of decimals, by their bits; of 128 bits as the lower and the upper half.
_DECIMAL = {"32": ("int32", ()), "64": ("int64", ()), "128": ("uint64", (2,))}


def is_arrow(kind: type) -> bool:
    """Have objects of this class Arrow's C interface?"""
    return hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "__arrow_c_array__")


def read(column: Any, what: str) -> tuple[_Array, _Array | None, bool]:
    """The numbers of a column, ``[n]`` or ``[n, *shape]``, or of a table of columns of one dtype, ``[n, columns]``.

    Lists of a fixed size and structs are vectors, binaries of one vectors of bytes, and decimals their unscaled
    integers, of 128 bits as the lower and the upper half.

    Returns
    -------
    numbers, nulls, whole
        Nulls are zeros, or what lay there; the mask ``[n]`` says which they are; None where there are none. Whole: an
        entry is one thing, such as a UUID, and its numbers are parts that mean nothing alone.

    Raises
    ------
    TypeError
        Where it holds no numbers, or columns of different dtypes.
    ValueError
        For nulls within an entry.
    """
    parts = list(_chunks(column, what))
    numbers = np.concatenate([each for each, _, _ in parts])
    whole = parts[0][2]
    if all(nulls is None for _, nulls, _ in parts):
        return numbers, None, whole
    masks = [np.zeros(len(each), bool) if nulls is None else nulls for each, nulls, _ in parts]
    return numbers, np.concatenate(masks), whole


def _chunks(column: Any, what: str) -> Iterator[tuple[_Array, _Array | None, bool]]:
    """Numbers, nulls and whether entries are whole, of each chunk; one of no entries first, which has the dtype."""
    if not hasattr(column, "__arrow_c_stream__"):
        capsules = column.__arrow_c_array__()
        schema = _Schema.from_address(_capsule_pointer(capsules[0], b"arrow_schema"))
        data = _Data.from_address(_capsule_pointer(capsules[1], b"arrow_array"))
        yield *_entries(schema, data, 0, data.length, what), _is_whole(schema)
        return
    capsule = column.__arrow_c_stream__()
    stream = _Stream.from_address(_capsule_pointer(capsule, b"arrow_array_stream"))
    schema = _Schema()
    _check(stream, stream.get_schema(stream, schema), what)
    with _released(schema):
        whole = _is_whole(schema)
        dtype, shape = _kind_of(schema, what)
        yield np.empty((0, *shape), dtype), None, whole
        while True:
            data = _Data()
            _check(stream, stream.get_next(stream, data), what)
            if not data.release:
                return
            with _released(data):
                yield *_entries(schema, data, 0, data.length, what), whole


@contextmanager
def _released(structure: Any) -> Iterator[None]:
    try:
        yield
    finally:
        structure.release(structure)


def _check(stream: Any, code: int, what: str) -> None:
    if code != 0:
        said = stream.get_last_error(stream)
        raise RuntimeError(f"{what} could not be read: {(said or b'').decode(errors='replace') or f'error {code}'}")


def _is_whole(schema: Any) -> bool:
    """Is an entry one thing of several words or bytes?"""
    schema = schema.dictionary.contents if schema.dictionary else schema
    code, rest = _format_of(schema)
    return code == "w" or (code == "d" and _decimal_bits(rest) == "128")


def _format_of(schema: Any) -> tuple[str, str]:
    """The format's code, and what follows after a colon."""
    code, _, rest = bytes(schema.format).decode().partition(":")
    return code, rest


def _decimal_bits(rest: str) -> str:
    """Of the format ``d:precision,scale,bits``, where the bits may be left out."""
    return [*rest.split(","), "128"][2]


def _kind_of(schema: Any, what: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Dtype and shape of an entry. TypeError where it is no number, or several dtypes."""
    if schema.dictionary:
        return _kind_of(schema.dictionary.contents, what)
    code, rest = _format_of(schema)
    if code in _PRIMITIVE:
        return np.dtype(_PRIMITIVE[code]), ()
    if code == "b":
        return np.dtype(bool), ()
    if code == "w":
        return np.dtype(np.uint8), (int(rest),)
    if code == "d":
        bits = _decimal_bits(rest)
        if bits in _DECIMAL:
            return np.dtype(_DECIMAL[bits][0]), _DECIMAL[bits][1]
        raise TypeError(f"{what} holds decimals of {bits} bits, and keys have up to 128: cast them to fewer digits")
    if code == "+w":
        dtype, inner = _kind_of(schema.children[0].contents, what)
        return dtype, (int(rest), *inner)
    if code == "+s":
        kinds = [_kind_of(schema.children[number].contents, what) for number in range(schema.n_children)]
        dtypes = dict.fromkeys(str(dtype) for dtype, _ in kinds)
        if len(dtypes) != 1:
            raise TypeError(f"{what} has columns of {' and '.join(dtypes) or 'nothing'}: give them one dtype")
        if len({shape for _, shape in kinds}) != 1:
            raise TypeError(f"{what} has columns of numbers beside columns of vectors: give them apart")
        return kinds[0][0], (len(kinds), *kinds[0][1])
    if code in ("_pli128", "_plu128"):
        raise TypeError(
            f"{what} holds integers of 128 bits, which polars makes where UInt64 meets Int64: cast it to UInt64 or "
            "Int64, as with .cast(pl.UInt64), or the columns that it came from to one of them"
        )
    if code == "n":
        raise ValueError(f"{what} holds nulls alone, and a null is no number")
    raise TypeError(
        f"{what} holds no numbers that tables take (Arrow's format {schema.format.decode()!r}): {_advice(code)}"
    )


def _advice(code: str) -> str:
    if code.startswith("t"):
        return "cast times to int64, or to int32 where they have 32 bits"
    if code in ("+l", "+L", "+vl", "+vL"):
        return "its lists may have any lengths; cast them to lists of a fixed size"
    return NUMBER_STRINGS if code in ("u", "U", "z", "Z", "vu", "vz") else "convert it to integers or floats"


def _entries(schema: Any, data: Any, start: int, count: int, what: str) -> tuple[_Array, _Array | None]:
    """Copies of entries ``start`` to ``start + count`` of a column, and which of them are null."""
    dtype, shape = _kind_of(schema, what)
    begin = data.offset + start
    nulls = _nulls(data, begin, count)
    if schema.dictionary:
        return _of_dictionary(schema, data, begin, count, nulls, what)
    code = schema.format.decode().partition(":")[0]
    if code == "+s":
        fields = []
        for number in range(schema.n_children):
            field, holes = _entries(
                schema.children[number].contents, data.children[number].contents, begin, count, what
            )
            fields.append(_without_holes(field, holes, nulls, what))
        return np.stack(fields, axis=1), nulls
    if code == "+w":
        each = shape[0]
        inner, holes = _entries(
            schema.children[0].contents, data.children[0].contents, begin * each, count * each, what
        )
        inner = _without_holes(inner, holes, None if nulls is None else np.repeat(nulls, each), what)
        return inner.reshape(count, *shape), nulls
    if code == "b":
        return _bits(data.buffers[1], begin, count), nulls
    width = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if count == 0 or width == 0:
        return np.empty((count, *shape), dtype), nulls
    raw = _bytes_at(data.buffers[1], begin * width, count * width)
    return raw.view(dtype).reshape(count, *shape), nulls


def _without_holes(numbers: _Array, holes: _Array | None, nulls: _Array | None, what: str) -> _Array:
    """The numbers within entries, of which none is null, unless the entry is."""
    inside = holes if holes is None or nulls is None else holes & ~nulls
    if inside is not None and inside.any():
        raise ValueError(
            f"{what} has {int(inside.sum())} nulls within its entries or rows, and a null is no number: leave these "
            "out, or put numbers in their place"
        )
    return numbers


def _of_dictionary(
    schema: Any, data: Any, begin: int, count: int, nulls: _Array | None, what: str
) -> tuple[_Array, _Array | None]:
    words = data.dictionary.contents
    values, holes = _entries(schema.dictionary.contents, words, 0, words.length, what)
    dtype = np.dtype(_PRIMITIVE[schema.format.decode()])
    if count == 0:
        return values[:0], nulls
    codes = _bytes_at(data.buffers[1], begin * dtype.itemsize, count * dtype.itemsize).view(dtype)
    if nulls is not None:
        codes[nulls] = 0
        if len(values) == 0:
            return np.zeros((count, *values.shape[1:]), values.dtype), nulls
    if holes is not None and holes[codes].any():
        nulls = holes[codes] if nulls is None else nulls | holes[codes]
    return values[codes], nulls


def _nulls(data: Any, begin: int, count: int) -> _Array | None:
    if data.null_count == 0 or data.n_buffers == 0 or not data.buffers[0]:
        return None
    nulls = ~_bits(data.buffers[0], begin, count)
    return nulls if nulls.any() else None


def _bits(address: int | None, begin: int, count: int) -> _Array:
    if count == 0:
        return np.empty(0, bool)
    first = begin // 8
    packed = _bytes_at(address, first, (begin + count + 7) // 8 - first)
    return np.unpackbits(packed, bitorder="little")[begin - 8 * first :][:count].astype(bool)


def _bytes_at(address: int | None, begin: int, count: int) -> _Array:
    """A copy of memory, which nobody but the producer keeps."""
    memory = (ctypes.c_uint8 * count).from_address((address or 0) + begin)
    return np.ctypeslib.as_array(memory).copy()
