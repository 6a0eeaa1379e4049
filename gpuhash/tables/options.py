"""What a table is made with: the constructors' arguments, checked once, and what arrays of items imply of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from gpuhash import _core, initializers
from gpuhash.arrays.arguments import checked_load_factor, checked_name, count_of, flag_of, one_value, seed_of, shape_of
from gpuhash.arrays.arrow_c import opened
from gpuhash.arrays.dtypes import ITEMSIZES, MAX_KEY_BYTES, MAX_VALUE_BYTES, infer_numbers, key_dtype_name, read_numbers
from gpuhash.arrays.frameworks import Shape, framework_of, settle
from gpuhash.arrays.memory import is_sharded, make_contexts
from gpuhash.arrays.strings import Strings
from gpuhash.keys.columns import KeyColumns
from gpuhash.keys.strings import string_dtype

from . import named_columns
from .named_columns import Column, Columns


class Options(NamedTuple):
    """What HashTable and HashSet are made with; ``checked`` makes it of their constructors' arguments."""

    key_dtype: str
    key_shape: Shape
    key_columns: KeyColumns | None  # then the key dtype is uint8, and the key shape that of their bytes
    strings: str | None  # "str" or "bytes": then the keys of the core are int64 numbers of strings
    value_dtype: str | None  # None: a set, or a table with columns
    value_shape: Shape
    columns: Columns | None
    default: np.ndarray[Any, Any] | None  # of value_shape, as the value dtype's storage
    column_defaults: dict[str, np.ndarray[Any, Any]] | None  # likewise, of each column
    contexts: tuple[_core.Context, ...]  # of the shards; of a single table one
    sharded: bool
    capacity: int
    max_capacity: int | None
    max_load_factor: float
    deterministic: bool
    seed: int | None
    initializer: initializers.CoreInitializer | None
    name: str | None

    @classmethod
    def checked(
        cls,
        key_dtype: object,
        value_dtype: str | None,
        *,
        key_shape: int | Sequence[int],
        value_shape: int | Sequence[int] = (),
        **arguments: Any,
    ) -> Options:
        """The arguments of ``HashTable``, as ``_checked`` has them; TypeError and ValueError as there.

        What plain ones come to is remembered, because to check them takes as long as to make a small table.
        """
        if isinstance(key_dtype, (Mapping, KeyColumns)):
            if shape := shape_of(key_shape, "key_shape"):
                raise ValueError(f"key_shape={shape} was given for keys of several columns, each of which is a number")
            columns = key_dtype if isinstance(key_dtype, KeyColumns) else KeyColumns.checked(key_dtype)
            arguments["key_columns"] = columns
            return cls._checked("uint8", value_dtype, key_shape=columns.bytes, value_shape=value_shape, **arguments)
        if (strings := string_dtype(key_dtype)) is not None:
            if shape := shape_of(key_shape, "key_shape"):
                raise ValueError(f"key_shape={shape} was given for keys of {strings!r}, each of which is one string")
            arguments["strings"] = strings
            return cls._checked("int64", value_dtype, key_shape=(), value_shape=value_shape, **arguments)
        name = key_dtype_name(key_dtype)
        check = _remembered if _are_plain(key_shape, value_shape, arguments) else cls._checked
        return check(name, value_dtype, key_shape=key_shape, value_shape=value_shape, **arguments)

    @classmethod
    def _checked(
        cls,
        key_dtype: str,
        value_dtype: str | None,
        *,
        key_shape: int | Sequence[int],
        value_shape: int | Sequence[int],
        device: object,
        capacity: int,
        max_load_factor: float,
        growth: bool,
        max_capacity: int | None,
        default: Any = None,
        deterministic: bool,
        seed: int | str | None,
        initializer: initializers.Initializer | None = None,
        memory: object,
        name: str | None,
        columns: Columns | None = None,
        key_columns: KeyColumns | None = None,
        strings: str | None = None,
    ) -> Self:
        """``value_dtype=None`` is a set, or a table with ``columns``, of which ``default`` is a mapping."""
        values = shape_of(value_shape, "value_shape")
        storage = None
        if default is not None and value_dtype is not None:
            storage = one_value(default, value_dtype, values, "default")
        if columns is not None and (values or initializer is not None):
            what = f"value_shape={values}" if values else f"initializer={initializer!r}"
            raise ValueError(
                f"{what} was given for a table with named columns, each of which has its own: give "
                "gpuhash.Column(dtype, shape, initial) for a column"
            )
        keys = shape_of(key_shape, "key_shape")
        capacity = count_of(capacity, "capacity")
        max_capacity = None if max_capacity is None else count_of(max_capacity, "max_capacity")
        max_load_factor = checked_load_factor(max_load_factor)
        name = checked_name(name)
        if value_dtype is not None and math.prod(values) * ITEMSIZES[value_dtype] > MAX_VALUE_BYTES:
            raise ValueError(
                f"value_shape={values} of {value_dtype} was given; a value has up to {MAX_VALUE_BYTES} bytes"
            )
        if math.prod(keys) * ITEMSIZES[key_dtype] > MAX_KEY_BYTES or 0 in keys:
            raise ValueError(
                f"key_shape={keys} of {key_dtype} was given; a key is one integer, (), or several, of 1 to "
                f"{MAX_KEY_BYTES} bytes in all"
            )
        if not flag_of(growth, "growth"):
            if max_capacity is not None and max_capacity != capacity:
                raise ValueError(f"growth=False keeps capacity={capacity}, and max_capacity={max_capacity} differs")
            if capacity < 1:
                raise ValueError(f"growth=False keeps capacity={capacity}: give the number of slots that it shall have")
            max_capacity = capacity
        return cls(
            key_dtype=key_dtype,
            key_shape=keys,
            key_columns=key_columns,
            strings=strings,
            value_dtype=value_dtype,
            value_shape=values,
            columns=columns,
            default=storage,
            column_defaults=None if default is None or columns is None else named_columns.defaults_of(columns, default),
            contexts=make_contexts(device, memory),
            sharded=is_sharded(device),
            capacity=capacity,
            max_capacity=max_capacity,
            max_load_factor=max_load_factor,
            deterministic=flag_of(deterministic, "deterministic"),
            seed=seed_of(seed),
            initializer=None
            if value_dtype is None
            else initializers.checked(initializer, value_dtype, bool(values) or ITEMSIZES[value_dtype] > 8),
            name=name,
        )

    def make_core(self) -> _core.Table:
        """A new core table, without a name. ValueError, MemoryError and PlatformError as for ``HashTable``."""
        return _core.Table(
            self.contexts,
            self.key_dtype,
            self.key_shape,
            self.value_dtype,
            self.value_shape,
            self.capacity,
            self.max_capacity,
            self.max_load_factor,
            self.deterministic,
            self.seed,
            self.initializer,
            self.sharded,
            [] if self.columns is None else named_columns.to_core(self.columns),
            [] if self.key_columns is None else self.key_columns.dtypes,
        )


_PLAIN = {bool, int, float, str, type(None)}


def _are_plain(key_shape: object, value_shape: object, arguments: dict[str, Any]) -> bool:
    """Do they come to the same whenever they are given, and to nothing that a table could change or keep alive?

    Objects that stand for a number may stand for another one later, and (2,) equals (2.0,), which is no shape.
    """
    are_scalars = type(key_shape) is tuple and not key_shape and type(value_shape) is tuple and not value_shape
    return (
        are_scalars
        and _PLAIN.issuperset(map(type, arguments.values()))
        and arguments["device"] == "cpu"
        and type(arguments["seed"]) is not str
        and arguments.get("default") is None
    )


@functools.lru_cache(maxsize=64, typed=True)
def _remembered(key_dtype: str, value_dtype: str | None, **arguments: Any) -> Options:
    return Options._checked(key_dtype, value_dtype, **arguments)


# What arrays imply ----------------------------------------------------------------------------------------------------


def describe(data: Any, what: str, dtype_given: bool) -> tuple[str, Shape, str]:
    """Dtype, shape and device of an array or of Python numbers; where the dtype is given, theirs may be any."""
    framework = framework_of(data)
    if framework.python:
        array = read_numbers(data, what) if dtype_given else infer_numbers(data, what)
        return ("int64" if array.size == 0 else str(array.dtype.name)), array.shape, "cpu"
    borrowed = framework.borrow(data, 0)
    device = "cpu" if borrowed.platform == "cpu" else f"{borrowed.platform}:{borrowed.device_index}"
    return borrowed.dtype, borrowed.shape, device


def describe_keys(keys: Any, options: dict[str, Any]) -> tuple[Any, Shape, str]:
    """As ``describe``, of keys: of a mapping of key columns the dtype is one of their dtypes."""
    given = options.get("key_dtype")
    if not isinstance(keys, Mapping) and (strings := Strings.read(keys)) is not None:
        return "str" if strings.text else "bytes", strings.shape, "cpu"
    if given is not None and string_dtype(given) is not None:
        return given, np.shape(keys), "cpu"  # no strings, or whoever takes them says what is wrong
    if not isinstance(keys, Mapping) and not isinstance(given, Mapping):
        return describe(keys, "keys", given is not None)
    parts = keys if isinstance(keys, Mapping) else dict(zip(given or (), keys, strict=True))
    described = {name: describe(part, f"keys of {name!r}", given is not None) for name, part in parts.items()}
    if not described:
        raise ValueError("keys of no columns were given: give one column or more")
    _, shape, device = next(iter(described.values()))
    return {name: dtype for name, (dtype, _, _) in described.items()}, shape, device


def settled_keys(keys: Any) -> Any:
    """Keys as ``settle`` gives arrays; of a mapping each column."""
    if isinstance(keys, Mapping):
        return {name: settle(part)[0] for name, part in keys.items()}
    if isinstance(keys, tuple):
        return keys
    keys = opened(keys)
    return keys if Strings.read(keys) is not None else settle(keys)[0]


def infer_set(keys: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments for a set of these keys; those in options stay."""
    dtype, shape, device = describe_keys(keys, options)
    made = {"key_dtype": dtype, "device": device, **options}
    if "key_shape" not in options:
        made["key_shape"] = _key_shape(shape, made["key_dtype"]) if len(shape) == 2 else ()
    return made


def infer(keys: Any, values: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The constructor's arguments for a table of these keys and values; those in options stay."""
    key_dtype, keys_shape, device = describe_keys(keys, options)
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
    key_dtype, keys_shape, device = describe_keys(keys, options)
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
    """The key shape of [n, k] integers; of columns none."""
    if isinstance(key_dtype, Mapping) or string_dtype(key_dtype) is not None:
        return ()
    name = key_dtype_name(key_dtype)
    if shape[1] * ITEMSIZES[name] > MAX_KEY_BYTES:
        raise ValueError(
            f"keys of shape {shape} are taken for vectors of {shape[1]} x {name}, which are more than {MAX_KEY_BYTES} "
            "bytes: give key_shape=() if each number is a key"
        )
    return shape[1:]
