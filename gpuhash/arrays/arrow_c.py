"""Arrow's columns as NumPy arrays, by the Arrow C data interface, which needs no library.

https://arrow.apache.org/docs/format/CDataInterface.html and CStreamInterface.html say what the structures mean. Numbers
that are read are copied, and given back to their producer at once. Strings are lent where they lie in one chunk.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gpuhash import _core

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

PRIMITIVE = {
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


#: Strings by their format: whether they are text, and the dtype of their offsets; None of views.
_STRINGS: dict[str, tuple[bool, str | None]] = {
    "u": (True, "int32"),
    "U": (True, "int64"),
    "vu": (True, None),
    "z": (False, "int32"),
    "Z": (False, "int64"),
    "vz": (False, None),
}


class StringChunk(NamedTuple):
    """Strings one after the other."""

    offsets: _Array  # int64 [n + 1], from 0
    data: _Array  # uint8 [offsets[n]]
    valid: _Array | None  # bool [n], false for nulls; None where there are none


def empty(count: int, dtype: str) -> _Array:
    """As ``numpy.empty``, of memory that is kept for the next call."""
    return _core.empty_array((count,), np.dtype(dtype))


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


class OpenedStream:
    """A column whose stream has been opened. What it holds can be asked, and then its entries be read, though some
    columns give their stream only once.
    """

    def __init__(self, column: Any) -> None:
        self.column = column
        self._capsule = column.__arrow_c_stream__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._capsule


def opened(column: Any) -> Any:
    """The column, opened where it may give its stream only once; anything else as it is."""
    kind = type(column)
    once = hasattr(kind, "__arrow_c_stream__") and not hasattr(kind, "__array__") and kind is not OpenedStream
    if not once:
        return column
    try:
        return OpenedStream(column)
    except (TypeError, ValueError, MemoryError):
        raise
    except Exception as error:  # each library has errors of its own
        name = f"a {type(column).__module__.partition('.')[0]} {type(column).__name__}"
        raise TypeError(f"{name} cannot be had by Arrow's C interface: {error}") from error


def string_kind(column: Any, what: str) -> bool | None:
    """Holds a column text (true), bytes (false), or something else (None)? Reads no entry.

    Of what has Arrow's C interface. A column that gives its stream once has to be ``opened`` before.
    """
    if hasattr(column, "__arrow_c_schema__"):
        capsule = column.__arrow_c_schema__()
        return _text_of(_Schema.from_address(_capsule_pointer(capsule, b"arrow_schema")), what)
    if not hasattr(column, "__arrow_c_stream__"):
        capsules = column.__arrow_c_array__()
        return _text_of(_Schema.from_address(_capsule_pointer(capsules[0], b"arrow_schema")), what)
    capsule = column.__arrow_c_stream__()
    stream = _Stream.from_address(_capsule_pointer(capsule, b"arrow_array_stream"))
    schema = _Schema()
    _check(stream, stream.get_schema(stream, schema), what)
    with _released(schema):
        return _text_of(schema, what)


def read_strings(column: Any, what: str) -> list[StringChunk]:
    """The strings of a column of which ``string_kind`` says that it holds some, by chunk. Those with offsets are lent,
    and stay until nobody has an array of them any more; others are copied.
    """
    if not hasattr(column, "__arrow_c_stream__"):
        schema_capsule, capsule = column.__arrow_c_array__()
        schema = _Schema.from_address(_capsule_pointer(schema_capsule, b"arrow_schema"))
        data = _Data.from_address(_capsule_pointer(capsule, b"arrow_array"))
        return [_strings(schema, data, data.offset, data.length, None, capsule, what)]
    capsule = column.__arrow_c_stream__()
    stream = _Stream.from_address(_capsule_pointer(capsule, b"arrow_array_stream"))
    schema = _Schema()
    _check(stream, stream.get_schema(stream, schema), what)
    chunks: list[StringChunk] = []
    with _released(schema):
        while True:
            owner = _OwnedData()
            _check(stream, stream.get_next(stream, owner.data), what)
            if not owner.data.release:
                return chunks
            chunks.append(_strings(schema, owner.data, owner.data.offset, owner.data.length, None, owner, what))


class _OwnedData:
    """An ArrowArray that is released with the last array that was made of its memory."""

    def __init__(self) -> None:
        self.data = _Data()

    def __del__(self) -> None:
        if self.data.release:
            self.data.release(self.data)


class Lender:
    """Lends memory to NumPy, and keeps its owner alive."""

    def __init__(self, address: int, dtype: str, count: int, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(dtype).str,
            "shape": (count,),
            "data": (address, True),
        }


def _lend(address: int | None, begin: int, dtype: str, count: int, owner: object) -> _Array:
    """Items ``begin`` to ``begin + count`` of memory, not copied."""
    if count == 0 or not address:
        return np.zeros(count, dtype)  # of no strings there may be no offsets
    return np.asarray(Lender(address + begin * np.dtype(dtype).itemsize, dtype, count, owner))


def _text_of(schema: Any, what: str) -> bool | None:
    if schema.dictionary:
        return _text_of(schema.dictionary.contents, what)
    code = schema.format.decode()
    if code != "+s":
        return _STRINGS[code][0] if code in _STRINGS else None
    kinds = [_text_of(schema.children[number].contents, what) for number in range(schema.n_children)]
    if len(kinds) > 1 and any(kind is not None for kind in kinds):
        raise TypeError(f"{what} has {len(kinds)} columns, and strings in one of them: give them as a list of columns")
    return kinds[0] if kinds else None


def _strings(
    schema: Any, data: Any, begin: int, count: int, outer: _Array | None, owner: object, what: str
) -> StringChunk:
    """Entries ``begin`` to ``begin + count`` of memory; ``outer``: those of a struct that are null."""
    nulls = _nulls(data, begin, count)
    if outer is not None:
        nulls = outer if nulls is None else nulls | outer
    if schema.dictionary:
        return _strings_of_dictionary(schema, data, begin, count, nulls, owner, what)
    code = schema.format.decode()
    if code == "+s":
        field = data.children[0].contents
        return _strings(schema.children[0].contents, field, field.offset + begin, count, nulls, owner, what)
    valid = None if nulls is None else ~nulls
    dtype = _STRINGS[code][1]
    if dtype is None:
        return _strings_of_views(data, begin, count, valid, owner, what)
    offsets = _lend(data.buffers[1], begin, dtype, count + 1, owner)
    first = int(offsets[0])
    offsets = offsets if dtype == "int64" and first == 0 else offsets.astype(np.int64) - first
    return StringChunk(offsets, _lend(data.buffers[2], first, "uint8", int(offsets[-1]), owner), valid)


def _strings_of_views(data: Any, begin: int, count: int, valid: _Array | None, owner: object, what: str) -> StringChunk:
    views = _lend(data.buffers[1], 16 * begin, "uint8", 16 * count, owner)
    many = data.n_buffers - 3  # the last one holds the bytes of each of those that hold data
    lengths = _lend(data.buffers[data.n_buffers - 1], 0, "int64", many, owner).tolist()
    buffers = [(data.buffers[2 + number] or 0, length) for number, length in enumerate(lengths)]
    offsets = empty(count + 1, "int64")
    mask = None if valid is None else _core.borrow(valid)
    places = _core.borrow(offsets)
    refused = _core.measure_views(_core.borrow(views), mask, places)
    packed = empty(int(offsets[-1]), "uint8")
    if refused >= 0 or not _core.pack_views(_core.borrow(views), buffers, places, _core.borrow(packed)):
        raise ValueError(f"{what} has a string view that leads out of its buffers")
    return StringChunk(offsets, packed, valid)


def _strings_of_dictionary(
    schema: Any, data: Any, begin: int, count: int, nulls: _Array | None, owner: object, what: str
) -> StringChunk:
    words = data.dictionary.contents
    values = _strings(schema.dictionary.contents, words, words.offset, words.length, None, owner, what)
    codes = _lend(data.buffers[1], begin, PRIMITIVE[schema.format.decode()], count, owner).astype(np.int64)
    if nulls is not None:
        codes[nulls] = -1
    return take_strings(values, codes)


def take_strings(strings: StringChunk, positions: _Array) -> StringChunk:
    """The strings at positions, int64 ``[m]``, from 0; nulls at negative ones.

    Raises
    ------
    IndexError
        For a position beyond the last string.
    """
    offsets = empty(len(positions) + 1, "int64")
    begins, wanted, places = (_core.borrow(array) for array in (strings.offsets, positions, offsets))
    refused = _core.measure_taken(begins, wanted, places)
    if refused >= 0:
        raise IndexError(f"position {positions[refused]} was given, of {len(strings.offsets) - 1} strings")
    data = empty(int(offsets[-1]), "uint8")
    _core.take_strings(begins, _core.borrow(strings.data), wanted, places, _core.borrow(data))
    valid = positions >= 0
    if strings.valid is not None:
        valid[valid] = strings.valid[positions[valid]]
    return StringChunk(offsets, data, None if valid.all() else valid)


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
    if code in PRIMITIVE:
        return np.dtype(PRIMITIVE[code]), ()
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
    dtype = np.dtype(PRIMITIVE[schema.format.decode()])
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
    if data.null_count == 0 or data.n_buffers == 0 or not data.buffers[0] or _all_set(data.buffers[0], begin, count):
        return None
    nulls = ~_bits(data.buffers[0], begin, count)
    return nulls if nulls.any() else None


def _all_set(address: int, begin: int, count: int) -> bool:
    """Are these bits set, as those of a column whose producer has not counted its nulls may be?"""
    first, last = -(-begin // 8), (begin + count) // 8  # whole bytes
    if first >= last:
        return False
    memory = (ctypes.c_uint8 * (last - first)).from_address(address + first)
    if not (np.frombuffer(memoryview(memory), np.uint8) == 0xFF).all():
        return False
    return bool(
        _bits(address, begin, 8 * first - begin).all() and _bits(address, 8 * last, begin + count - 8 * last).all()
    )


def _bits(address: int | None, begin: int, count: int) -> _Array:
    if count == 0:
        return np.empty(0, bool)
    first = begin // 8
    packed = _bytes_at(address, first, (begin + count + 7) // 8 - first)
    return np.unpackbits(packed, bitorder="little")[begin - 8 * first :][:count].astype(bool)


def _bytes_at(address: int | None, begin: int, count: int) -> _Array:
    """A copy of memory, which nobody but the producer keeps."""
    memory = (ctypes.c_uint8 * count).from_address((address or 0) + begin)
    return np.frombuffer(memoryview(memory), np.uint8).copy()
