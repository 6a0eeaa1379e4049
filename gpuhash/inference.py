"""The constructors' arguments, as far as arrays of keys and values imply them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .arguments import shape_of
from .arrays import Shape, framework_of
from .dtypes import ITEMSIZES, MAX_KEY_BYTES, infer_numbers, key_dtype_name, read_numbers
from .named_columns import Column


def describe(data: Any, what: str, dtype_given: bool) -> tuple[str, Shape, str]:
    """Dtype, shape and device of an array or of Python numbers; where the dtype is given, theirs may be any."""
    framework = framework_of(data)
    if framework.python:
        array = read_numbers(data, what) if dtype_given else infer_numbers(data, what)
        return ("int64" if array.size == 0 else str(array.dtype.name)), array.shape, "cpu"
    borrowed = framework.borrow(data, 0)
    device = "cpu" if borrowed.platform == "cpu" else f"{borrowed.platform}:{borrowed.device_index}"
    return borrowed.dtype, borrowed.shape, device


def infer_set(keys: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments for a set of these keys; those in options stay."""
    dtype, shape, device = describe(keys, "keys", "key_dtype" in options)
    made = {"key_dtype": dtype, "device": device, **options}
    if "key_shape" not in options:
        made["key_shape"] = _key_shape(shape, made["key_dtype"]) if len(shape) == 2 else ()
    return made


def infer(keys: Any, values: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments for a table of these keys and values; those in options stay."""
    key_dtype, keys_shape, device = describe(keys, "keys", "key_dtype" in options)
    value_dtype, values_shape, value_device = describe(values, "values", "value_dtype" in options)
    made = {
        "key_dtype": key_dtype,
        "value_dtype": value_dtype,
        "device": value_device if device == "cpu" else device,
        **options,
    }
    if "key_shape" not in options:
        vectors = len(keys_shape) == 2 and values_shape[:1] == keys_shape[:1]
        made["key_shape"] = _key_shape(keys_shape, made["key_dtype"]) if vectors else ()
    if "value_shape" not in options:
        key_shape = shape_of(made["key_shape"], "key_shape")
        batch = keys_shape[: len(keys_shape) - len(key_shape)]
        if values_shape and values_shape[: len(batch)] != batch:
            raise ValueError(
                f"the keys have shape {keys_shape} and the values {values_shape}: give one value for each key, or "
                f"value_shape={values_shape} if all keys shall have this one"
            )
        made["value_shape"] = values_shape[len(batch) :]
    return made


def infer_columns(keys: Any, values: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments for a table of these keys and columns; those in options stay."""
    key_dtype, keys_shape, device = describe(keys, "keys", "key_dtype" in options)
    dtypes_given = "value_dtype" in options
    described = {name: describe(value, f"values of {name!r}", dtypes_given) for name, value in values.items()}
    for _, _, value_device in described.values():
        device = value_device if device == "cpu" else device
    made = {"key_dtype": key_dtype, "device": device, **options}
    if "key_shape" not in options:
        vectors = len(keys_shape) == 2 and any(shape[:1] == keys_shape[:1] for _, shape, _ in described.values())
        made["key_shape"] = _key_shape(keys_shape, made["key_dtype"]) if vectors else ()
    if not dtypes_given:
        key_shape = shape_of(made["key_shape"], "key_shape")
        batch = keys_shape[: len(keys_shape) - len(key_shape)]
        columns = {}
        for name, (dtype, shape, _) in described.items():
            if shape and shape[: len(batch)] != batch:
                raise ValueError(
                    f"the keys have shape {keys_shape} and the values of {name!r} {shape}: give one value for each "
                    "key, or say by value_dtype={...} what the columns are"
                )
            columns[name] = Column(dtype, shape[len(batch) :])
        made["value_dtype"] = columns
    return made


def _key_shape(shape: Shape, key_dtype: object) -> Shape:
    """The key shape of [n, k] integers."""
    name = key_dtype_name(key_dtype)
    if shape[1] * ITEMSIZES[name] > MAX_KEY_BYTES:
        raise ValueError(
            f"keys of shape {shape} are taken for vectors of {shape[1]} x {name}, which are more than {MAX_KEY_BYTES} "
            "bytes: give key_shape=() if each number is a key, or a narrower key_dtype"
        )
    return shape[1:]
