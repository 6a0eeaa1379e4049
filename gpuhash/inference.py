"""What table two arrays ask for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .arrays import Shape, framework_of
from .base import shape_of
from .dtypes import ITEMSIZES, MAX_KEY_BYTES


def describe(data: Any) -> tuple[str, Shape, str]:
    """Dtype, shape and device of an array or of Python numbers."""
    framework = framework_of(data)
    if framework.python:
        array = np.asarray(data)
        return ("int64" if array.size == 0 else str(array.dtype.name)), array.shape, "cpu"
    borrowed = framework.borrow(data, 0)
    device = "cpu" if borrowed.platform == "cpu" else f"{borrowed.platform}:{borrowed.device_index}"
    return borrowed.dtype, borrowed.shape, device


def infer_keys(keys: Any, options: dict[str, Any]) -> tuple[dict[str, Any], Shape]:
    """The options with key_dtype and device, and the keys' shape."""
    dtype, shape, device = describe(keys)
    return {"key_dtype": dtype, "device": device, **options}, shape


def infer(keys: Any, values: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments for a table of these keys and values; those in options stay."""
    made, keys_shape = infer_keys(keys, options)
    value_dtype, values_shape, value_device = describe(values)
    made.setdefault("value_dtype", value_dtype)
    if "device" not in options and made["device"] == "cpu":
        made["device"] = value_device
    if "key_shape" not in options:
        vectors = len(keys_shape) == 2 and values_shape[:1] == keys_shape[:1]
        made["key_shape"] = keys_shape[1:] if vectors else ()
        itemsize = ITEMSIZES.get(str(made["key_dtype"]), 1)
        if vectors and math.prod(made["key_shape"]) * itemsize > MAX_KEY_BYTES:
            raise ValueError(
                f"keys of shape {keys_shape} with as many values look like vectors of {made['key_shape'][0]} x "
                f"{made['key_dtype']}, which are more than {MAX_KEY_BYTES} bytes: give key_shape=() if each number is "
                "a key, or a narrower key_dtype"
            )
    if "value_shape" not in options:
        key_shape = shape_of(made["key_shape"], "key_shape")
        batch = keys_shape[: len(keys_shape) - len(key_shape)]
        fits = values_shape[: len(batch)] == batch
        made["value_shape"] = values_shape[len(batch) :] if fits else values_shape
    return made
