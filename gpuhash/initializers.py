"""What the rows of new keys are filled with: ``HashTable(..., initializer=)``, for ``find_or_insert``.

Numbers are drawn by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11) out of the
seed, the bytes of the key and the number of the element, and nothing else: a key gets the same row, to the last bit,
on the host and on GPUs, in any batch, at any position, in tables of any size and number of shards, and again when it
comes back after it was erased. Keys of other dtypes have other bytes. Numbers are computed as doubles, and rounded to
the table's dtype.

An initializer without a seed draws with seed 0 in a table, so that tables of all processes agree. Embedding modules
draw a seed for it instead, by the random numbers of their framework, as two of them in a model are not to begin alike.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from .arrays.dtypes import ITEMSIZES, encode, plain_bools, storage_dtype, to_python

__all__ = ["Constant", "Initializer", "Normal", "TruncatedNormal", "Uniform"]

# The largest finite number of each dtype that numbers are drawn for.
_LARGEST = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep+127"),
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}

#: Distribution, its two parameters, the seed, and the bytes of a constant element; as the core has it.
CoreInitializer: TypeAlias = tuple[str, float, float, int, bytes]


@dataclass(frozen=True)
class Constant:
    """Every element is this number. For values of every dtype.

    Unlike the table's ``default`` it is no answer for absent keys: these stay a KeyError.
    """

    value: complex


@dataclass(frozen=True)
class Uniform:
    """Numbers spread evenly between two bounds, either of which may occur where numbers are rounded to it."""

    low: float
    high: float
    seed: int | None = None

    def __post_init__(self) -> None:
        _set_numbers(self, "low", "high")
        if self.low > self.high:
            raise ValueError(f"Uniform got low={self.low!r} and high={self.high!r}: low is not to exceed high")
        if math.isinf(self.high - self.low):
            raise ValueError(f"Uniform got low={self.low!r} and high={self.high!r}, whose difference is no double")


@dataclass(frozen=True)
class Normal:
    """Normally distributed numbers of this mean and standard deviation."""

    mean: float = 0.0
    std: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _set_normal(self)


@dataclass(frozen=True)
class TruncatedNormal:
    """As ``Normal``, of the numbers within two standard deviations of the mean: as TensorFlow and Keras truncate.

    ``std`` is that of the whole distribution; what is left of it has 0.88 times as much.
    """

    mean: float = 0.0
    std: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _set_normal(self)


Initializer: TypeAlias = Constant | Uniform | Normal | TruncatedNormal

_DRAWN: dict[str, type[Uniform] | type[Normal] | type[TruncatedNormal]] = {
    "uniform": Uniform,
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
}


def _set_numbers(initializer: Uniform | Normal | TruncatedNormal, *names: str) -> None:
    """Makes the parameters of these names floats, and the seed an integer."""
    kind = type(initializer).__name__
    for name in names:
        given = getattr(initializer, name)
        if isinstance(given, (bool, np.bool_, str, bytes)) or not hasattr(given, "__float__"):
            raise TypeError(f"{kind} got {name}={given!r}, expected a number")
        try:
            number = float(given)
        except OverflowError:  # of an integer that no double comes near
            number = math.inf
        if not math.isfinite(number):
            raise ValueError(f"{kind} got {name}={given!r}, expected a finite number")
        object.__setattr__(initializer, name, number)
    if initializer.seed is None:
        return
    try:
        seed = operator.index(initializer.seed)
    except TypeError:
        raise TypeError(f"{kind} got seed={initializer.seed!r}, expected an integer, or None") from None
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"{kind} got seed={seed}, expected a number from 0 to 2^64 - 1")
    object.__setattr__(initializer, "seed", seed)


def _set_normal(initializer: Normal | TruncatedNormal) -> None:
    _set_numbers(initializer, "mean", "std")
    if initializer.std < 0:
        raise ValueError(f"{type(initializer).__name__} got std={initializer.std!r}: it is not negative")


def checked(initializer: Any, value_dtype: str, has_rows: bool) -> CoreInitializer | None:
    """The constructor's argument for the core. TypeError and ValueError where such a table cannot have it."""
    if initializer is None:
        return None
    if not isinstance(initializer, Initializer):
        raise TypeError(
            f"initializer={initializer!r} was given, expected an object of gpuhash.initializers, such as "
            "Normal(std=0.02), or None"
        )
    if not has_rows:
        raise ValueError(
            f"initializer={initializer!r} fills rows, and scalars of {value_dtype} lie beside their keys: give "
            "find_or_insert and setdefault their values, or the table a value_shape"
        )
    if isinstance(initializer, Constant):
        element = encode(initializer.value, value_dtype, "constants of an initializer")
        if element.shape != ():
            raise TypeError(f"initializer={initializer!r} was given; a Constant is one number")
        return "constant", 0.0, 0.0, 0, plain_bools(element, value_dtype).tobytes()
    if value_dtype not in _LARGEST:
        raise TypeError(
            f"initializer={initializer!r} was given for values of {value_dtype}; numbers are drawn for "
            f"{', '.join(_LARGEST)}"
        )
    kind = next(kind for kind, drawn in _DRAWN.items() if isinstance(initializer, drawn))
    low_or_mean, high_or_std = parameters_of(initializer)
    if max(abs(low_or_mean), abs(high_or_std)) > _LARGEST[value_dtype]:
        raise ValueError(f"initializer={initializer!r} was given for values of {value_dtype}, which end before that")
    return kind, low_or_mean, high_or_std, initializer.seed or 0, b""


def with_seed(initializer: Initializer, draw: Callable[[], int]) -> Initializer:
    """One that has a seed: this one, or, where it draws numbers and was given none, a copy with one that is drawn."""
    if isinstance(initializer, Constant) or initializer.seed is not None:
        return initializer
    return replace(initializer, seed=draw())


def parameters_of(initializer: Uniform | Normal | TruncatedNormal) -> tuple[float, float]:
    if isinstance(initializer, Uniform):
        return initializer.low, initializer.high
    return initializer.mean, initializer.std


def of_core(given: CoreInitializer | None, value_dtype: str | None) -> Initializer | None:
    """The object for what the core has."""
    if given is None or value_dtype is None:
        return None
    kind, first, second, seed, element = given
    if kind == "constant":
        return Constant(to_python(np.frombuffer(element, storage_dtype(value_dtype))[0], value_dtype))
    return _DRAWN[kind](first, second, seed)


def to_text(initializer: Initializer, value_dtype: str) -> str:
    """What a file says of it."""
    core = checked(initializer, value_dtype, True)
    assert core is not None
    kind, first, second, seed, element = core  # the seed that a table draws with, also of one without
    if kind == "constant":
        return json.dumps({"kind": kind, "value": element.hex()})
    return json.dumps({"kind": kind, "parameters": [first, second], "seed": seed})


def of_text(text: str, value_dtype: str, has_rows: bool) -> Initializer:
    """The object for what a file says, which may be anything. ValueError where it says something else."""
    try:
        said = json.loads(text)
        if not isinstance(said, dict):
            raise ValueError("it is no JSON object")
        if said.get("kind") == "constant":
            _need_names(said, {"kind", "value"})
            element = bytes.fromhex(said["value"])
            if len(element) != ITEMSIZES[value_dtype]:
                raise ValueError("its value is no element of the table's values")
            initializer = of_core(("constant", 0.0, 0.0, 0, element), value_dtype)
        else:
            _need_names(said, {"kind", "parameters", "seed"})
            first, second = said["parameters"]
            if said["seed"] is None:
                raise ValueError("its seed is null")
            initializer = _DRAWN[said["kind"]](first, second, said["seed"])
        checked(initializer, value_dtype, has_rows)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"the initializer is not one that such a table has: {error}") from None
    assert initializer is not None
    return initializer


def _need_names(said: dict[str, Any], names: set[str]) -> None:
    if said.keys() != names:
        raise ValueError(f"it has the entries {sorted(said)[:10]}, expected {sorted(names)}")
