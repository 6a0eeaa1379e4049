"""Tables as files in safetensors format: own reader and writer, and what of a file is checked.

The format (https://github.com/huggingface/safetensors#format): 8 bytes of header length, little-endian; the header, a
JSON object of tensor names to dtype, shape and data_offsets, and "__metadata__" of strings; the tensors' bytes, without
gaps. A reader must expect any bytes at all: every number is checked before it is used.
"""

from __future__ import annotations

import io
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpuhash import initializers
from gpuhash.arrays.arguments import MAX_AXES
from gpuhash.arrays.arrow_c import StringChunk
from gpuhash.arrays.dtypes import ITEMSIZES, MAX_KEY_BYTES, MAX_VALUE_BYTES, is_integer, plain_bools, storage_dtype
from gpuhash.arrays.frameworks import Shape
from gpuhash.arrays.strings import Strings
from gpuhash.initializers import Initializer
from gpuhash.keys.columns import KeyColumns
from gpuhash.tables import named_columns
from gpuhash.tables.named_columns import Columns

from .whole_file import write_whole

FORMAT_VERSION = "1"
MAX_HEADER_BYTES = 100_000_000  # as in the safetensors package
_MAX_DIMENSIONS = MAX_AXES + 2  # one more for the items, and one for the parts of complex128
_LENGTH_BYTES = 8
_ALIGNMENT = 8

# The format has no complex128: a trailing axis of two F64 stands for it.
_FILE_DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "complex128": "F64",
}


#: Key dtypes beside those of integers.
STRING_DTYPES = ("str", "bytes")
#: Their tensors: where each begins and the last ends, and all bytes one after the other.
_OFFSETS, _DATA = "keys.offsets", "keys.data"

#: What files hold, and the classes that load them.
KINDS = {"table": "HashTable", "set": "HashSet", "multimap": "HashMultiMap"}


@dataclass
class Contents:
    """What a file holds of a table; the arrays are of their dtypes' storage, on the host."""

    key_dtype: str
    key_shape: Shape
    value_dtype: str | None
    value_shape: Shape
    max_load_factor: float
    max_capacity: int | None
    deterministic: bool
    seed: int | None  # of the hash function; None: that of all tables
    initializer: Initializer | None
    default: bytes | None  # one value
    keys: np.ndarray[Any, Any]  # [n, *key_shape]
    values: np.ndarray[Any, Any] | None  # [n, *value_shape]
    strings: Strings | None = None  # [n], of a table of strings, whose keys are said by nothing else
    key_columns: KeyColumns | None = None  # of which the keys are rows of bytes
    columns: Columns | None = None  # then there are no value dtype, default and values, but these of each column
    column_defaults: dict[str, bytes] | None = None
    column_values: dict[str, np.ndarray[Any, Any]] | None = None  # [n, *shape] each
    is_multimap: bool = False  # a key may come several times

    @property
    def has_strings(self) -> bool:
        """Are keys text or bytes?"""
        return self.key_dtype in STRING_DTYPES

    @property
    def is_set(self) -> bool:
        return self.value_dtype is None and self.columns is None

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        return "multimap" if self.is_multimap else "set" if self.is_set else "table"

    def need_kind(self, kind: str) -> None:
        """ValueError where the file holds another kind of table."""
        if self.kind != kind:
            raise ValueError(
                f"the file holds a {self.kind}, not a {kind}: load it with gpuhash.{KINDS[self.kind]}.load"
            )

    @property
    def fields(self) -> dict[str, tuple[str, Shape]]:
        """Dtype and shape of one value of each column by its name; of a single value the name is empty."""
        if self.columns is not None:
            return {name: (column.dtype, column.shape) for name, column in self.columns.items()}
        return {} if self.value_dtype is None else {"": (self.value_dtype, self.value_shape)}

    @property
    def field_values(self) -> dict[str, np.ndarray[Any, Any]]:
        """The values by the names of ``fields``; of a table without items none."""
        if self.column_values is not None:
            return self.column_values
        return {} if self.values is None else {"": self.values}

    def field_defaults(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """The values of absent keys by the names of ``fields``, as their dtypes' storage; None where there are none."""
        given = self.column_defaults if self.default is None else {"": self.default}
        if given is None:
            return None
        return {
            name: np.frombuffer(given[name], storage_dtype(dtype)).reshape(shape).copy()
            for name, (dtype, shape) in self.fields.items()
        }


def _tensor_name(field: str) -> str:
    """The name in files of the values of a column, or of the single value."""
    return f"values.{field}" if field else "values"


def write_file(path: str | os.PathLike[str], contents: Contents) -> None:
    """Writes a table's file, whole or not at all."""
    write_whole(path, lambda file: _write(file, contents))


def read_file(path: str | os.PathLike[str]) -> Contents:
    """The contents of a file. ValueError where it is damaged, or was not written by gpuhash."""
    with Path(path).open("rb") as file:
        try:
            return _read(file, os.fstat(file.fileno()).st_size)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)!r}: {error}") from None


def to_bytes(contents: Contents) -> bytes:
    file = io.BytesIO()
    _write(file, contents)
    return file.getvalue()


def from_bytes(data: bytes) -> Contents:
    return _read(io.BytesIO(data), len(data))


def _file_shape(dtype: str, shape: Shape) -> Shape:
    return (*shape, 2) if dtype == "complex128" else shape


def metadata_of(contents: Contents) -> dict[str, str]:
    """What a file says of a table besides its items."""
    metadata = {
        "format": "gpuhash",
        "format_version": FORMAT_VERSION,
        "kind": contents.kind,
        "key_dtype": contents.key_dtype,
        "key_shape": json.dumps(contents.key_shape),
        "max_load_factor": repr(contents.max_load_factor),
        "max_capacity": "" if contents.max_capacity is None else str(contents.max_capacity),
        "deterministic": json.dumps(contents.deterministic),
        "seed": "" if contents.seed is None else str(contents.seed),
    }
    if contents.key_columns is not None:
        metadata["key_columns"] = contents.key_columns.to_text()
    if contents.value_dtype is not None:
        metadata["value_dtype"] = contents.value_dtype
        metadata["value_shape"] = json.dumps(contents.value_shape)
        metadata["default"] = "" if contents.default is None else contents.default.hex()
        if contents.initializer is not None:
            metadata["initializer"] = initializers.to_text(contents.initializer, contents.value_dtype)
    if contents.columns is not None:
        metadata["columns"] = named_columns.to_text(contents.columns)
        defaults = contents.column_defaults
        metadata["default"] = "" if defaults is None else named_columns.defaults_to_text(contents.columns, defaults)
    return metadata


def _write(file: BinaryIO, contents: Contents) -> None:
    if contents.strings is not None:
        tensors = [(_OFFSETS, "int64", contents.strings.offsets), (_DATA, "uint8", contents.strings.data)]
    else:
        tensors = [("keys", contents.key_dtype, contents.keys)]
    values = contents.field_values
    tensors += [(_tensor_name(name), dtype, values[name]) for name, (dtype, _) in contents.fields.items()]
    # The safetensors package wants the wider dtypes first, so that each tensor is aligned.
    tensors.sort(key=lambda tensor: -ITEMSIZES[tensor[1]])
    header: dict[str, Any] = {"__metadata__": metadata_of(contents)}
    begin = 0
    for name, dtype, array in tensors:
        end = begin + array.nbytes
        header[name] = {
            "dtype": _FILE_DTYPES[dtype],
            "shape": _file_shape(dtype, array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
    file.write(text)
    for _, dtype, array in tensors:
        # As bytes: not every dtype has a memoryview, nor has an empty array.
        file.write(plain_bools(np.ascontiguousarray(array).reshape(-1), dtype).view(np.uint8).data)


def _read(file: BinaryIO, file_bytes: int) -> Contents:
    if file_bytes < _LENGTH_BYTES:
        raise ValueError(f"not a safetensors file: it has {file_bytes} bytes, and the header's length alone takes 8")
    header_bytes = int.from_bytes(_read_exactly(file, _LENGTH_BYTES), "little")
    if header_bytes > min(MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
        raise ValueError(
            f"not a safetensors file, or a truncated one: a header of {header_bytes} bytes in {file_bytes}"
        )
    header = parse_header(_read_exactly(file, header_bytes))
    contents = describe(header.pop("__metadata__", None))
    data_bytes = file_bytes - _LENGTH_BYTES - header_bytes
    tensors = _check_tensors(header, contents, data_bytes)
    start = _LENGTH_BYTES + header_bytes

    def read(name: str, dtype: str) -> np.ndarray[Any, Any]:
        begin, shape = tensors[name]
        return _read_tensor(file, start + begin, dtype, shape)

    if contents.has_strings:
        chunk = StringChunk(read(_OFFSETS, "int64"), read(_DATA, "uint8"), None)
        _check_strings(chunk, contents.key_dtype)
        contents.strings = Strings.of_chunk(chunk, contents.key_dtype == "str")
    else:
        contents.keys = read("keys", contents.key_dtype)
    values = {}
    for name, (dtype, _) in contents.fields.items():
        values[name] = read(_tensor_name(name), dtype)
    if contents.columns is not None:
        contents.column_values = values
    else:
        contents.values = values.get("")
    return contents


def _check_strings(chunk: StringChunk, dtype: str) -> None:
    """ValueError unless the offsets part the data, into text where they are such."""
    offsets, data = chunk.offsets, chunk.data
    if offsets[0] != 0 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(
            f"the offsets of the keys go from {offsets[0]} to {offsets[-1]}, expected from 0 to {len(data)}, ascending"
        )
    if dtype != "str":
        return
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the keys are no text: {error}") from None
    begins = offsets[offsets < len(data)]
    if (data[begins] & 0xC0 == 0x80).any():
        raise ValueError("a key begins within a character")


def _read_exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError("the file ends too early")
    return data


def describe(metadata: Any) -> Contents:
    """What the metadata say of a table, checked; its items are still to come."""
    return _describe(_metadata(metadata))


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name appears twice in the header")
    return dict(pairs)


def parse_header(text: bytes) -> dict[str, Any]:
    """The JSON object of a header, or of an index of files."""
    if not text.startswith(b"{"):
        raise ValueError("not a safetensors file: its header does not begin with '{'")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_pairs)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    return header


def _metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or metadata.get("format") != "gpuhash":
        raise ValueError("the file was not written by gpuhash: its metadata do not say so")
    for name, text in metadata.items():
        if not isinstance(text, str):
            raise ValueError(f"{name!r} in the metadata is not a string")
    if metadata.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"the file has format version {metadata.get('format_version')!r}, and this gpuhash reads {FORMAT_VERSION!r}"
        )
    return metadata


def _describe(metadata: dict[str, str]) -> Contents:
    """What the metadata say of the table, checked; the arrays are still to come."""
    kind = metadata.get("kind")
    if kind not in KINDS:
        raise ValueError(f"the file's kind is {kind!r}, expected one of {', '.join(map(repr, KINDS))}")
    key_dtype = metadata.get("key_dtype", "")
    is_string = key_dtype in STRING_DTYPES and kind != "multimap"
    if not is_string and (key_dtype not in ITEMSIZES or not is_integer(key_dtype)):
        raise ValueError(f"the key dtype {key_dtype!r} is not supported")
    key_shape = _shape_of_text(_entry(metadata, "key_shape"), "key_shape")
    if is_string:
        if key_shape or "key_columns" in metadata:
            raise ValueError(f"keys of {key_dtype} and shape {key_shape}, or with columns, are not supported")
    elif len(key_shape) > MAX_AXES or not 1 <= math.prod(key_shape) * ITEMSIZES[key_dtype] <= MAX_KEY_BYTES:
        raise ValueError(f"keys of {key_dtype} and shape {key_shape} are not supported")
    key_columns = KeyColumns.of_text(metadata["key_columns"]) if "key_columns" in metadata else None
    if key_columns is not None and (key_dtype, key_shape) != ("uint8", (key_columns.bytes,)):
        raise ValueError(
            f"key columns of {key_columns.bytes} bytes do not fit keys of {key_dtype} of shape {key_shape}"
        )
    value_dtype: str | None = None
    value_shape: Shape = ()
    default: bytes | None = None
    initializer: Initializer | None = None
    columns: Columns | None = None
    column_defaults: dict[str, bytes] | None = None
    if kind == "table" and "columns" in metadata:
        columns = named_columns.of_text(metadata["columns"])
        if text := _entry(metadata, "default"):
            column_defaults = named_columns.defaults_of_text(text, columns)
    elif kind != "set":
        value_dtype = metadata.get("value_dtype", "")
        if value_dtype not in ITEMSIZES:
            raise ValueError(f"the value dtype {value_dtype!r} is not supported")
        value_shape = _shape_of_text(_entry(metadata, "value_shape"), "value_shape")
        bytes_per_value = math.prod(value_shape) * ITEMSIZES[value_dtype]
        if len(value_shape) > MAX_AXES or not 1 <= bytes_per_value <= MAX_VALUE_BYTES:
            raise ValueError(f"values of {value_dtype} and shape {value_shape} are not supported")
        default = _default(_entry(metadata, "default"), value_dtype, value_shape)
        if "initializer" in metadata:  # optional: other tables, and files of before initializers, lack it
            has_rows = bool(value_shape) or ITEMSIZES[value_dtype] > 8
            initializer = initializers.of_text(metadata["initializer"], value_dtype, has_rows)
    empty = np.empty(0, np.uint8)
    return Contents(
        key_dtype=key_dtype,
        key_shape=key_shape,
        value_dtype=value_dtype,
        value_shape=value_shape,
        max_load_factor=_load_factor(_entry(metadata, "max_load_factor")),
        max_capacity=_max_capacity(_entry(metadata, "max_capacity")),
        deterministic=_flag(_entry(metadata, "deterministic"), "deterministic"),
        seed=_seed(metadata.get("seed", "")),  # optional: files of before seeds lack it
        initializer=initializer,
        default=default,
        keys=empty,
        values=None,
        key_columns=key_columns,
        columns=columns,
        column_defaults=column_defaults,
        is_multimap=kind == "multimap",
    )


def _entry(metadata: dict[str, str], name: str) -> str:
    """An entry that every file has: a table without it would not be the one that was saved."""
    if name not in metadata:
        raise ValueError(f"the metadata have no {name!r}")
    return metadata[name]


def _flag(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text[:40]!r}, expected 'true' or 'false'")
    return text == "true"


def _shape_of_text(text: str, name: str) -> Shape:
    """A shape from its list of integers in JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is not a list of integers") from None
    return _shape(value, name)


def _shape(value: Any, name: str) -> Shape:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        raise ValueError(f"{name} is not a list of up to {_MAX_DIMENSIONS} integers")
    if any(type(length) is not int or not 0 <= length < 1 << 62 for length in value):
        raise ValueError(f"{name} has a length that is not an integer from 0 to 2^62")
    return tuple(value)


def _load_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor <= 1:
        raise ValueError(f"max_load_factor is {text[:40]!r}, expected a number in (0, 1]")
    return factor


def _seed(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 1 << 64):
        raise ValueError(f"seed is {text!r}, expected a number from 0 to 2^64 - 1")
    return int(text)


def _max_capacity(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ValueError(f"max_capacity is {text[:40]!r}, expected a number of slots")
    return int(text)


def _default(text: str, dtype: str, shape: Shape) -> bytes | None:
    if not text:
        return None
    try:
        default = bytes.fromhex(text)
    except ValueError:
        raise ValueError("the default is not given as hexadecimal digits") from None
    if len(default) != math.prod(shape) * ITEMSIZES[dtype]:
        raise ValueError("the default is not a value of the table's dtype and shape")
    return plain_bools(np.frombuffer(default, storage_dtype(dtype)), dtype).tobytes()


def _check_tensors(header: dict[str, Any], contents: Contents, data_bytes: int) -> dict[str, tuple[int, Shape]]:
    """Where each tensor begins, and its shape, once all of it is known to fit together and into the file."""
    expected: dict[str, tuple[str, Shape]] = {"keys": (contents.key_dtype, contents.key_shape)}
    if contents.has_strings:
        expected = {_OFFSETS: ("int64", ()), _DATA: ("uint8", ())}
    expected |= {_tensor_name(name): kind for name, kind in contents.fields.items()}
    if header.keys() != expected.keys():
        raise ValueError(f"the file has the tensors {sorted(header)[:10]}, expected {sorted(expected)}")
    tensors = {}
    ranges = []
    for name, (dtype, item_shape) in expected.items():
        begin, end, shape = _check_entry(name, header[name], dtype, data_bytes)
        if shape[1:] != _file_shape(dtype, item_shape) or not shape:
            raise ValueError(f"the tensor {name!r} has shape {shape}, expected [n, *{_file_shape(dtype, item_shape)}]")
        tensors[name] = (begin, (shape[0], *item_shape))
        ranges.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(ranges):
        if begin != position:
            raise ValueError(f"the tensor {name!r} begins at byte {begin}, expected {position}: a gap or an overlap")
        position = end
    if position != data_bytes:
        raise ValueError(f"the tensors end at byte {position} of {data_bytes}: the file is truncated or too long")
    lengths = {shape[0] - (name == _OFFSETS) for name, (_, shape) in tensors.items() if name != _DATA}
    if len(lengths) != 1 or lengths == {-1}:
        raise ValueError(f"the tensors {', '.join(map(repr, tensors))} have different lengths")
    return tensors


def _check_entry(name: str, entry: Any, dtype: str, data_bytes: int) -> tuple[int, int, Shape]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the entry of {name!r} has other fields than dtype, shape and data_offsets")
    if entry["dtype"] != _FILE_DTYPES[dtype]:
        raise ValueError(f"the tensor {name!r} has dtype {entry['dtype']!r}, expected {_FILE_DTYPES[dtype]!r}")
    shape = _shape(entry["shape"], f"the shape of {name!r}")
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(offset) is not int for offset in offsets):
        raise ValueError(f"the data_offsets of {name!r} are not a pair of integers")
    begin, end = offsets
    if not 0 <= begin <= end <= data_bytes:
        raise ValueError(f"the tensor {name!r} lies at bytes {begin} to {end}, of {data_bytes} in the file")
    file_itemsize = 8 if dtype == "complex128" else ITEMSIZES[dtype]
    if end - begin != math.prod(shape) * file_itemsize:
        raise ValueError(f"the tensor {name!r} of shape {shape} has {end - begin} bytes, which does not fit")
    return begin, end, shape


def _read_tensor(file: BinaryIO, begin: int, dtype: str, shape: Shape) -> np.ndarray[Any, Any]:
    array = np.empty(shape, storage_dtype(dtype))
    file.seek(begin)
    target = array.reshape(-1).view(np.uint8)
    position = 0
    while position < target.size:
        count = file.readinto(target[position:].data)  # type: ignore[attr-defined]
        if not count:
            raise ValueError("the file ends too early")
        position += count
    return plain_bools(array, dtype)
