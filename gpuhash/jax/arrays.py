"""What calls are given, checked when a program is traced, and the shapes and dtypes of what they give."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.custom_derivatives
import jax.numpy as jnp
import numpy as np

from gpuhash.arrays import Shape, framework_of
from gpuhash.dtypes import ITEMSIZES, encode, numpy_dtype

_ENABLE = "jax.config.update('jax_enable_x64', True) at the start of the program sets 64-bit mode"

# Not in JAX 0.6, where shard_map takes check_rep=False.
_TELLS_VARYING = "vma" in inspect.signature(jax.ShapeDtypeStruct).parameters


def is_wide() -> bool:
    """Is JAX in 64-bit mode?"""
    return bool(jax.dtypes.canonicalize_dtype(np.int64) == np.int64)


def need_dtype(dtype: str, what: str) -> None:
    """TypeError where JAX has the dtype only in 64-bit mode, and is not in it."""
    if ITEMSIZES[dtype] // (2 if dtype.startswith("complex") else 1) == 8 and not is_wide():
        raise TypeError(
            f"the {what} of the table are {dtype}, and JAX narrows these to 32 bits unless it is in 64-bit mode: "
            f"{_ENABLE}, or make a table of {what} of 32 bits"
        )


def to_array(data: Any, dtype: str, what: str) -> Any:
    """An array of JAX of exactly this dtype."""
    need_dtype(dtype, what)
    if isinstance(data, (np.ndarray, np.generic, jax.Array)):
        if getattr(data, "weak_type", False) and _takes_number(dtype, data.dtype):
            return jnp.asarray(data, dtype=numpy_dtype(dtype))
        if data.dtype != numpy_dtype(dtype):
            raise TypeError(
                f"the {what} are {data.dtype}, and the table has {what} of {dtype}: convert them with "
                f".astype('{dtype}')"
            )
        return data if isinstance(data, jax.Array) else jnp.asarray(data)
    if not framework_of(data).python:
        raise TypeError(f"the {what} are a {type(data).__name__}, expected an array of JAX or NumPy, or Python numbers")
    return jnp.asarray(encode(data, dtype, what).view(numpy_dtype(dtype)))


def _takes_number(dtype: str, given: Any) -> bool:
    """Does a dtype take a Python number that became an argument of a program? Not integers that it might cut off."""
    target = numpy_dtype(dtype)
    if jnp.issubdtype(given, jnp.complexfloating):
        return bool(jnp.issubdtype(target, jnp.complexfloating))
    return bool(jnp.issubdtype(target, jnp.inexact))


def batch_shape(keys: Any, key_shape: Shape) -> Shape:
    """The shape of a batch of keys, ``[*batch, *key_shape]``."""
    shape: Shape = keys.shape
    if not key_shape:
        return shape
    if shape[-1:] != key_shape:
        raise ValueError(f"the keys have shape {shape}, expected {('...', *key_shape)}: keys are vectors")
    return shape[:-1]


def struct(shape: Shape, dtype: str, like: Any) -> Any:
    """What a call gives; where its argument ``like`` differs between the devices of a shard_map, so does it."""
    if _TELLS_VARYING and (varying := jax.typeof(like).vma):
        return jax.ShapeDtypeStruct(shape, numpy_dtype(dtype), vma=varying)
    return jax.ShapeDtypeStruct(shape, numpy_dtype(dtype))


def wide_struct(shape: Shape, like: Any) -> Any:
    """An output of 64-bit integers; without 64-bit mode one of pairs of 32-bit ones."""
    return struct(shape, "int64", like) if is_wide() else struct((*shape, 2), "uint32", like)


def read_wide(output: Any) -> Any:
    """The integers of an output as ``wide_struct`` describes it: int64, or int32 without 64-bit mode."""
    return output if output.dtype == np.int64 else jax.lax.bitcast_convert_type(output[..., 0], np.int32)


def not_differentiable(error: str) -> Any:
    """The identity; a TypeError for whoever differentiates through it, as zeros would be wrong in silence."""

    def refuse(primals: Any, tangents: Any) -> Any:
        (tangent,) = tangents
        if not isinstance(tangent, jax.custom_derivatives.SymbolicZero):
            raise TypeError(error)
        return primals[0], tangent

    identity = jax.custom_jvp(lambda array: array)
    identity.defjvp(refuse, symbolic_zeros=True)
    return identity
