"""Keys, values and the dicts that tables are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from support.frameworks import to_numpy

KEY_DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
KEY_VECTORS = [
    ("int8", (2,)),
    ("int8", (3,)),
    ("int16", (3,)),
    ("int32", (2,)),
    ("int32", (3,)),
    ("int32", (4,)),
    ("int64", (2,)),
    ("uint16", (5,)),
    ("uint8", (16,)),
]
KEY_TYPES: list[tuple[str, tuple[int, ...]]] = [*((dtype, ()) for dtype in KEY_DTYPES), *KEY_VECTORS]
INTEGERS = KEY_DTYPES
FLOATS = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
VALUE_DTYPES = ["bool", *INTEGERS, *FLOATS, *COMPLEX]
VALUE_SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (64,), (2, 3)]
UFUNCS = {  # of insert_or_apply's operations
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
}
BATCH_SIZES = [0, 1, 31, 32, 33, 4095, 4096, 4097, 100_000]


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def has_operation(op: str, dtype: str) -> bool:
    """Bit operations are of integers and bool, and complex numbers have no order."""
    return not (op.startswith("bit_") and dtype in FLOATS + COMPLEX) and not (op in ("min", "max") and dtype in COMPLEX)


def type_name(key_type: tuple[str, tuple[int, ...]]) -> str:
    dtype, shape = key_type
    return dtype + "".join(f"x{length}" for length in shape)


def shape_name(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def key_bytes(dtype: str, shape: Sequence[int] = ()) -> int:
    return int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))


def special_keys(dtype: str, shape: Sequence[int] = ()) -> np.ndarray:
    """0, 1, -1, the smallest, the largest, and the patterns that mark slots inside: [m, *shape]."""
    from gpuhash import _core

    info = np.iinfo(dtype)
    plain = [np.full(shape, number, dtype) for number in {0, 1, info.min, info.max, -1 if info.min else info.max - 1}]
    width = key_bytes(dtype, shape)
    stray = [np.frombuffer(pattern, dtype).reshape(shape) for pattern in _core.stray_keys(width)]
    bytes_of_marks = [np.frombuffer(bytes([byte]) * width, dtype).reshape(shape) for byte in (0xB7, 0x80, 0x7F)]
    return distinct(np.stack([*plain, *stray, *bytes_of_marks]))


def distinct(keys: np.ndarray) -> np.ndarray:
    """The keys without duplicates, in the order of their first appearance."""
    opaque = as_bytes(keys)
    if opaque.dtype.itemsize in (1, 2, 4, 8):
        opaque = opaque.view(f"u{opaque.dtype.itemsize}")  # sorts much faster
    _, first = np.unique(opaque, return_index=True)
    return keys[np.sort(first)]


def random_keys(dtype: str, shape: Sequence[int], count: int, seed: int = 0) -> np.ndarray:
    """Up to `count` distinct keys (as many as the dtype has), special ones among them: [m, *shape]."""
    rng = np.random.default_rng([seed, count, key_bytes(dtype, shape)])
    raw = rng.integers(0, 256, (count, key_bytes(dtype, shape)), np.uint8)
    keys = raw.view(dtype).reshape(count, *shape)
    keys = distinct(np.concatenate([special_keys(dtype, shape), keys]))[:count]
    return keys[rng.permutation(len(keys))]


def random_values(dtype: str, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    """Any bits for integers, multiples of 1/4 from -30 to 30 for floats (exact in all of them)."""
    rng = np.random.default_rng([seed, 77])
    if dtype == "bool":
        return rng.random(tuple(shape)) < 0.5
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, tuple(shape), dtype, endpoint=True)
    numbers = rng.integers(-120, 120, tuple(shape)) / 4
    if dtype in COMPLEX:
        return (numbers + 1j * (rng.integers(-120, 120, tuple(shape)) / 4)).astype(dtype)
    return numbers.astype(numpy_dtype(dtype))


def as_bytes(array: np.ndarray) -> np.ndarray:
    """One opaque item per row: [n], bytes."""
    if array.size == 0:
        return np.empty(0, "V1")
    flat = np.ascontiguousarray(array).reshape(len(array), -1)
    return flat.view(np.uint8).reshape(len(array), -1).view(f"V{flat.dtype.itemsize * flat.shape[1]}").reshape(-1)


def as_dict(keys: Any, values: Any) -> dict[bytes, bytes]:
    """Keys and values by their bytes; a later duplicate wins."""
    keys, values = as_bytes(to_numpy(keys)).tolist(), as_bytes(to_numpy(values)).tolist()
    return dict(zip(keys, values, strict=True))


def items_of(table: Any) -> dict[bytes, bytes]:
    """What the table holds, by items(); its keys are distinct and as many as len(table)."""
    keys, values = map(to_numpy, table.items())
    assert keys.shape == (len(table), *table.key_shape)
    assert values.shape == (len(table), *table.value_shape)
    assert str(keys.dtype) == table.key_dtype
    assert str(values.dtype) == table.value_dtype
    contents = as_dict(keys, values)
    assert len(contents) == len(table)
    return contents


def same_bytes(got: Any, expected: np.ndarray) -> None:
    """Same dtype, shape and bits."""
    got = to_numpy(got)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(expected).tobytes()


def new_in_order(keys: np.ndarray, known: set[bytes] | dict[bytes, Any]) -> np.ndarray:
    """The mask that a loop over a dict gives: True where a key appears for the first time."""
    seen = set(known)
    mask = np.zeros(len(keys), bool)
    for i, key in enumerate(as_bytes(keys).tolist()):
        mask[i] = key not in seen
        seen.add(key)
    return mask


def check_new_mask(mask: Any, keys: np.ndarray, known: set[bytes] | dict[bytes, Any], *, in_order: bool) -> None:
    """True for exactly one of a new key's duplicates; for the first of them where results are those of a loop."""
    mask = to_numpy(mask)
    assert mask.dtype == bool
    assert mask.shape == (len(keys),)
    if in_order:
        np.testing.assert_array_equal(mask, new_in_order(keys, known))
        return
    marked = as_bytes(keys[mask]).tolist()
    assert len(marked) == len(set(marked))
    assert set(marked) == set(as_bytes(keys).tolist()) - set(known)
