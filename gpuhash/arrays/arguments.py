"""Small arguments, checked, and keys as Python objects."""

from __future__ import annotations

import math
import operator
import secrets
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from gpuhash import _core
from gpuhash.torch import dispatch as traced

from .dtypes import INTEGER_BOUNDS, ITEMSIZES, encode, plain_bools, storage_dtype
from .frameworks import Framework, Shape, framework_of, gpu_of
from .memory import make_context

#: Of those that a KeyError is about.
SHOWN_KEYS = 5
MAX_AXES = 63  # of one value or key: NumPy has up to 64, and one is that of the keys
APPLY_OPS = ("add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor")


class KeyOutOfRangeError(OverflowError):
    """A single key that the key dtype cannot hold: it cannot be inserted, and no table has it."""


def as_keys(keys: np.ndarray[Any, Any], key_shape: Shape) -> list[Any]:
    """The keys as Python objects: integers, or tuples of them, of tuples where the key shape has several axes."""
    return [_as_tuple(key, len(key_shape)) for key in keys.tolist()] if key_shape else keys.tolist()


def _as_tuple(key: list[Any], axes: int) -> tuple[Any, ...]:
    return tuple(key) if axes == 1 else tuple(_as_tuple(part, axes - 1) for part in key)


def encode_keys(keys: Any, dtype: str, key_shape: Shape, what: str = "keys") -> tuple[np.ndarray[Any, Any], bool]:
    """Python numbers as an array of keys, and whether they are a single key. Raises as ``encode``, and
    KeyOutOfRangeError for a single key that the dtype cannot hold.
    """
    if type(keys) is int and not key_shape:
        low, high = INTEGER_BOUNDS[dtype]
        if low <= keys <= high:
            return np.array(keys, dtype), True
    try:
        array = encode(keys, dtype, what)
    except OverflowError as error:
        if np.shape(keys) == key_shape and (isinstance(keys, tuple) or not key_shape):
            raise KeyOutOfRangeError(str(error)) from None
        raise
    if not key_shape:
        return array, array.ndim == 0
    if array.shape == (0,):
        array = array.reshape(0, *key_shape)
    return array, array.ndim == len(key_shape) and isinstance(keys, tuple)


def encode_values(values: Any, dtype: str, value_shape: Shape, what: str) -> np.ndarray[Any, Any]:
    """Python numbers as an array of values, or one of shape ``()`` for all keys. Raises as ``encode``."""
    array = encode(values, dtype, what)
    return array.reshape(0, *value_shape) if array.shape == (0,) else array


def shape_of(shape: int | Sequence[int], what: str) -> Shape:
    """A shape given as integers."""
    try:
        lengths = _lengths_of(shape)
    except TypeError:
        raise TypeError(f"{what}={shape!r} was given; a shape is a tuple of integers") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"{what}={lengths} was given; lengths are not negative")
    if len(lengths) > MAX_AXES:
        raise ValueError(
            f"{what}={lengths} was given, of {len(lengths)} axes, expected up to {MAX_AXES}: NumPy's arrays have up to "
            "64, one of which is that of the keys; give as many elements along fewer axes"
        )
    return lengths


def _lengths_of(shape: Any) -> Shape:
    try:
        return (int(operator.index(shape)),)  # any integer, NumPy's as well; int() makes a number of True
    except TypeError:
        return tuple(int(operator.index(length)) for length in shape)


def axis_of(axis: Any) -> int | None:
    """The axis of ``unique``, ``factorize`` and ``isin``: 0 or None."""
    expected = "expected None (each number is a key) or 0 (each row is one)"
    if axis is None:
        return None
    try:
        number = operator.index(axis)
    except TypeError:
        number = None
    if number is None or isinstance(axis, bool):
        raise TypeError(f"axis={axis!r} was given, {expected}")
    if number != 0:
        raise ValueError(f"axis={axis!r} was given, {expected}")
    return 0


def flag_of(flag: object, what: str) -> bool:
    """A flag, which may be any object that says whether it is true; text and lists only say whether they are empty."""
    if not hasattr(flag, "__bool__"):
        raise TypeError(f"{what}={flag!r} was given, expected True or False")
    return bool(flag)


def count_of(count: Any, what: str) -> int:
    """A number of keys or slots."""
    try:
        number = operator.index(count)
    except TypeError:
        raise TypeError(f"{what}={count!r} was given, expected an integer") from None
    if not 0 <= number < 1 << 62:
        raise ValueError(f"{what}={number} was given, expected a number from 0 to 2^62")
    return number


def checked_load_factor(value: object) -> float:
    """A table's ``max_load_factor``. TypeError for what is no real number, ValueError for one outside of (0, 1]."""
    if not isinstance(value, Real):
        raise TypeError(f"max_load_factor={value!r} was given, expected a number in (0, 1]")
    try:
        factor = float(value)
    except OverflowError:  # of an integer that no double comes near
        factor = math.inf
    if not 0 < factor <= 1:
        raise ValueError(f"max_load_factor={value!r} was given, expected a number in (0, 1]")
    return factor


def checked_name(name: object) -> str | None:
    """A table's name, or None. TypeError for what is no name, ValueError for text that is no Unicode."""
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise TypeError(f"name={name!r} was given; a table's name is a string of one character or more, or None")
    need_unicode(name, "a table's name")
    return name


def is_unicode(text: str) -> bool:
    """Can the text be encoded, as the core has it? Not with half of a surrogate pair in it."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def need_unicode(name: str, what: str) -> None:
    """ValueError for a name that ``is_unicode`` refuses."""
    if not is_unicode(name):
        raise ValueError(
            f"{name!r} was given as {what}, and has half of a surrogate pair, which UTF-8 cannot encode: take it out, "
            "as by name.encode(errors='replace').decode()"
        )


def seed_of(seed: Any) -> int | None:
    """The seed of a hash function; None for that of all tables which are given none."""
    if seed is None:
        return None
    if isinstance(seed, str) and seed == "random":
        return secrets.randbits(64)
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed={seed!r} was given, expected an integer, 'random' or None") from None
    if not 0 <= number < 1 << 64:
        raise ValueError(f"seed={number} was given, expected a number from 0 to 2^64 - 1")
    return number


@traced.itself
def action_of(op: Any, dtype: str, why: str) -> str:
    """The core's name of an operation: "keep", "assign" or one of APPLY_OPS. All faces ask here, and nowhere else.

    Raises
    ------
    TypeError
        For an operation that the dtype does not have; ``why`` says of what.
    ValueError
        For an unknown operation.
    """
    name = op.replace("-", "_") if isinstance(op, str) else op
    if name == "keep":
        return "keep"
    if name == "replace":
        return "assign"
    if not isinstance(name, str) or name not in APPLY_OPS:  # an array of one name would equal it
        raise ValueError(f"op={op!r} is not known: give one of {', '.join(APPLY_OPS)}, keep, replace")
    if name.startswith("bit_") and not ("int" in dtype or dtype == "bool"):
        raise TypeError(f"{op} combines bits of integers, and {why}")
    if name in ("min", "max") and dtype.startswith("complex"):
        raise TypeError(f"{op} needs an order, and complex numbers have none: {why}")
    return str(name)


def one_value(value: Any, dtype: str, shape: Shape, what: str) -> np.ndarray[Any, Any]:
    """One value on the host, of the shape, as its dtype's storage."""
    framework = framework_of(value)
    if framework.python:
        host = encode(value, dtype, what)
    else:
        index = gpu_of(value, framework)
        if index is not None and framework.private_streams:
            framework.wait_until_ready(value)
        stream = None if index is None else framework.stream(value, index)
        array = framework.borrow(value, stream)
        if array.dtype != dtype:
            raise wrong_dtype(what, framework, array.dtype, dtype)
        host = np.empty(array.shape, storage_dtype(array.dtype))
        context = make_context("cpu" if index is None else f"cuda:{index}")
        context.copy(_core.borrow(host), array, stream or 0)
    if host.shape not in ((), shape):
        wanted = f"() or {shape}" if shape else "a single value, of shape ()"
        raise ValueError(f"the {what} has shape {host.shape}, expected {wanted}")
    return plain_bools(np.array(np.broadcast_to(host, shape), order="C"), dtype)


def wrong_dtype(what: str, framework: Framework, given: str, expected: str) -> TypeError:
    """The error for an array of another dtype than the table's."""
    call = {
        "torch": f".to(torch.{expected})",
        "tensorflow": f"tf.cast(..., tf.{expected})",
        "polars": f".to_numpy().astype('{expected}')",
        "pyarrow": f".to_numpy().astype('{expected}')",
    }.get(framework.name, f".astype('{expected}')")
    text = f"the {what} are {given}, and the table has {what} of {expected}: convert them with {call}"
    if framework.name == "jax" and ITEMSIZES[given] < ITEMSIZES[expected]:
        text += "; JAX has 64-bit types only after jax.config.update('jax_enable_x64', True)"
    if what == "keys" and "int" not in given:
        text += "; or view them as integers of the same width, and make the table for these"
    return TypeError(text)


def absent_keys(some: list[Any], missing: int, count: int) -> str:
    """How many of ``count`` keys are absent, for a KeyError, and some of these; up to SHOWN_KEYS are wanted."""
    shown = ", ".join(map(str, some)) + (", ..." if missing > len(some) else "")
    return f"{missing} of {count} keys are absent: {shown}"


@traced.itself
def no_default(call: str, hint: str = "") -> ValueError:
    """The error for a call that has to have a default for absent keys, and that neither it nor the table has."""
    return ValueError(f"{call} needs a default for absent keys: give one here or to the table{hint}")


def not_one_key(batch: Shape) -> TypeError:
    """The error for ``in`` with a batch of keys."""
    return TypeError(
        f"`in` takes one key, and this is a batch of shape {batch}: call contains(keys), which gives a mask"
    )


def batch_shape(shape: Shape, key_shape: Shape) -> Shape:
    """The shape of the batch, of keys ``[*batch, *key_shape]``. ValueError for keys of another shape."""
    axes = len(shape) - len(key_shape)
    if axes < 0 or shape[axes:] != key_shape:
        raise ValueError(f"the keys have shape {shape}, expected one that ends with the key shape {key_shape}")
    return shape[:axes]


def wrong_value_shape(what: str, given: Shape, batch: Shape, value_shape: Shape) -> ValueError:
    """The error for values that are neither one for each key nor one for all."""
    return ValueError(
        f"the {what} have shape {given}, expected {batch + value_shape}, or {value_shape} for all keys alike"
    )


def wrong_device(what: str, given: str, table: str) -> ValueError:
    """The error for an array on a GPU that is not the table's device."""
    if table == "cpu":
        return ValueError(
            f"the {what} are on {given} and the table is on the host: move them, as with .cpu() in PyTorch, or move "
            f"the table, with table.to('{given}')"
        )
    return ValueError(f"the {what} are on {given} and the table is on {table}: move one to the other")
