"""unique, factorize and isin in compiled programs: shapes are static, so the caller says how many there may be."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np

from gpuhash.arrays.arguments import axis_of, count_of, flag_of
from gpuhash.arrays.dtypes import ITEMSIZES, MAX_ROW_BYTES, encode
from gpuhash.arrays.frameworks import Shape, framework_of
from gpuhash.frames.factorization import RESULT_TYPES, Factorized

from .arrays import not_differentiable, read_wide, struct, wide_struct
from .library import target


def unique(
    keys: Any,
    *,
    size: int | None = None,
    fill_value: Any = None,
    return_inverse: bool = False,
    return_counts: bool = False,
    return_index: bool = False,
    sorted: bool = False,
    axis: int | None = None,
) -> Any:
    """The distinct keys of an array, in order of their first occurrence: ``jnp.unique`` by hashing.

    Keys are compared as by ``gpuhash.unique``: as numbers, all NaNs are one key.

    Parameters
    ----------
    keys
        An array of any dtype that tables take. Not differentiable.
    size
        How many distinct keys to give: those beyond it are left out, of fewer the rest is filled. None: as many as
        there are keys.
    fill_value
        What the rest of the values is filled with; None: with the first distinct key.
    return_inverse, return_counts, return_index, sorted, axis
        As for ``gpuhash.unique``.

    Returns
    -------
    values
        ``[size]``, or ``[size, *keys.shape[1:]]`` with ``axis=0``. Where more is asked for, a named tuple of ``values``
        and, in this order and as far as asked for,

        * ``indices`` ``[size]``, the rest filled with the first one,
        * ``inverse``, of the shape of ``keys``, ``[len(keys)]`` with ``axis=0``: numbers of distinct keys; from
          ``size`` on they are of keys that were left out,
        * ``counts`` ``[size]``, the rest filled with 0,

        which are int64, or int32 without 64-bit mode. Does not depend on timing. The program waits for the GPU, for the
        number of distinct keys. Temporary memory, as much as ``gpuhash.unique`` takes, is XLA's on a GPU.

    Raises
    ------
    TypeError, ValueError
        When it is traced: for dtypes and shapes that do not fit; for no keys, where ``size`` is not 0 and there is no
        ``fill_value``.
    jax.errors.JaxRuntimeError
        When the program runs, where there is no memory (RESOURCE_EXHAUSTED).
    """
    array, row, count = _keys_of(keys, axis, "keys")
    room = count if size is None else count_of(size, "size")
    if count == 0 and room != 0 and fill_value is None:
        raise ValueError(f"there are no keys to fill {room} values with: give fill_value=")
    asked = {"indices": return_index, "inverse": return_inverse, "counts": return_counts}
    found, values, outputs = _factorize(array, row, room, sorted, tuple(name for name in asked if asked[name]))
    results = {"values": _filled(values, found, fill_value)}
    if return_index:
        results["indices"] = _filled(outputs["indices"], found, None)
    if return_inverse:
        results["inverse"] = outputs["inverse"].reshape(array.shape if axis is None else array.shape[:1])
    if return_counts:
        results["counts"] = _filled(outputs["counts"], found, 0)
    return results["values"] if len(results) == 1 else RESULT_TYPES[tuple(results)[1:]](**results)


def factorize(keys: Any, *, size: int | None = None, fill_value: Any = None, axis: int | None = None) -> Factorized:
    """Dense ids for keys: equal keys get equal ids, numbered from 0 in order of first occurrence.

    Parameters
    ----------
    keys, size, fill_value, axis
        As for ``unique``.

    Returns
    -------
    codes, uniques
        Ids of the shape of ``keys`` (``[len(keys)]`` with ``axis=0``), int64, or int32 without 64-bit mode; and the
        distinct keys, as ``unique`` gives them. Ids from ``size`` on are of keys that were left out.

    Raises
    ------
    TypeError, ValueError, jax.errors.JaxRuntimeError
        As ``unique``.
    """
    result = unique(keys, size=size, fill_value=fill_value, return_inverse=True, axis=axis)
    return Factorized(result.inverse, result.values)


def isin(elements: Any, test_elements: Any, *, invert: bool = False, axis: int | None = None) -> Any:
    """Which elements are among the test elements: bool of the shape of ``elements``.

    Parameters
    ----------
    elements, test_elements
        Arrays of one dtype, compared as ``unique`` compares them.
    invert
        Tell which are not.
    axis
        None: each number is an element. 0: each entry along the first axis is one, and the mask is ``[len(elements)]``.

    Raises
    ------
    TypeError, ValueError, jax.errors.JaxRuntimeError
        As ``unique``, and for arrays of two dtypes or rows of two shapes.
    """
    array, row, _ = _keys_of(elements, axis, "elements")
    tests, tests_row, _ = _keys_of(test_elements, axis, "test_elements", like=array.dtype)
    if tests.dtype != array.dtype:
        raise TypeError(
            f"the elements are {array.dtype} and the test_elements {tests.dtype}: convert one to the other's dtype"
        )
    if row != tests_row:
        raise ValueError(f"the elements are rows of shape {row} and the test_elements of {tests_row}: make them alike")
    shape = array.shape if axis is None else array.shape[:1]
    return _isin(array, tests, elements=math.prod(row), invert=flag_of(invert, "invert")).reshape(shape)


def _keys_of(data: Any, axis: int | None, what: str, like: Any = None) -> tuple[Any, Shape, int]:
    """An array of keys, the shape of one, and how many there are."""
    if isinstance(data, (jax.Array, np.ndarray)) or (like is None and framework_of(data).python):
        array = jnp.asarray(data)
    elif framework_of(data).python:
        array = jnp.asarray(encode(data, like.name, what).view(like))
    else:
        raise TypeError(f"the {what} are a {type(data).__name__}, expected an array of JAX or NumPy, or Python numbers")
    if isinstance(data, np.ndarray) and array.dtype != data.dtype:
        raise TypeError(
            f"the {what} are {data.dtype}, and JAX narrows these to {array.dtype} unless it is in 64-bit mode: "
            "jax.config.update('jax_enable_x64', True) at the start of the program sets it"
        )
    if array.dtype.name not in ITEMSIZES:
        raise TypeError(f"the {what} are {array.dtype}, expected one of the dtypes {', '.join(ITEMSIZES)}")
    if axis_of(axis) is None:
        return array, (), array.size
    if array.ndim == 0:
        raise ValueError(f"the {what} are a single number, and axis=0 takes an array of rows")
    row = array.shape[1:]
    width = math.prod(row) * array.dtype.itemsize
    if not 1 <= width <= MAX_ROW_BYTES:
        raise ValueError(f"rows of {width} bytes were given as {what}, expected 1 to {MAX_ROW_BYTES}")
    return array, row, len(array)


_not_differentiated = not_differentiable(
    "keys of gpuhash.jax.unique or factorize were to be differentiated: give jax.lax.stop_gradient(keys), and gather "
    "from the keys themselves by the indices that return_index=True gives"
)


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4), inline=True)
def _factorize(keys: Any, row: Shape, room: int, sorted: bool, asked: tuple[str, ...]) -> Any:
    """The number of distinct keys, the first ``room`` of them, and what else is asked for; the rest is undefined."""
    keys = _not_differentiated(keys)
    elements = math.prod(row)
    count = keys.size // elements
    shapes = {"inverse": (count,), "counts": (room,), "indices": (room,)}
    call = jax.ffi.ffi_call(
        target("factorize"),
        (
            wide_struct((1,), keys),
            struct((room, *row), keys.dtype.name, keys),
            *(wide_struct(shape if name in asked else (0,), keys) for name, shape in shapes.items()),
        ),
        vmap_method="sequential",
    )
    found, values, *outputs = call(keys, elements=np.int64(elements), sorted=flag_of(sorted, "sorted"))
    wide = dict(zip(shapes, map(read_wide, outputs), strict=True))
    return read_wide(found)[0], values, {name: wide[name] for name in asked}


@functools.partial(jax.jit, static_argnames=("elements", "invert"), inline=True)
def _isin(keys: Any, tests: Any, *, elements: int, invert: bool) -> Any:
    count = keys.size // elements
    call = jax.ffi.ffi_call(target("isin"), struct((count,), "bool", keys), vmap_method="sequential")
    arrays = [jax.lax.stop_gradient(array) for array in (keys, tests)]
    return call(*arrays, elements=np.int64(elements), invert=invert)


def _filled(values: Any, found: Any, fill: Any) -> Any:
    """The entries up to the number found, and the fill value, or the first entry, in the rest."""
    if len(values) == 0:
        return values
    known = (jnp.arange(len(values)) < found).reshape(-1, *(1,) * (values.ndim - 1))
    rest = values[:1] if fill is None else jnp.asarray(fill, dtype=values.dtype)
    return jnp.where(known, values, rest)
