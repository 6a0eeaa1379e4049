"""Small arguments, checked, and keys as Python objects."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Framework, Shape
from .dtypes import ITEMSIZES


class KeyOutOfRangeError(OverflowError):
    """A single key that the key dtype cannot hold: it cannot be inserted, and no table has it."""


def as_keys(keys: np.ndarray[Any, Any], key_shape: Shape) -> list[Any]:
    """The keys as Python objects: integers, or tuples of them."""
    return [tuple(key) for key in keys.tolist()] if key_shape else keys.tolist()


def shape_of(shape: int | Sequence[int], what: str) -> Shape:
    """A shape given as integers."""
    try:
        lengths = tuple(int(length.__index__()) for length in ((shape,) if isinstance(shape, int) else shape))
    except (TypeError, AttributeError):
        raise TypeError(f"{what}={shape!r} was given; a shape is a tuple of integers") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"{what}={lengths} was given; lengths are not negative")
    return lengths


def count_of(count: Any, what: str) -> int:
    """A number of keys or slots."""
    try:
        number = operator.index(count)
    except TypeError:
        raise TypeError(f"{what}={count!r} was given, expected an integer") from None
    if not 0 <= number < 1 << 62:
        raise ValueError(f"{what}={number} was given, expected a number from 0 to 2^62")
    return number


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
