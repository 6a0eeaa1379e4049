"""What calls are given, checked when a program is traced, and the shapes and dtypes of what they give."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.custom_derivatives
import jax.numpy as jnp
import numpy as np

from gpuhash.arrays.dtypes import ITEMSIZES, encode, numpy_dtype
from gpuhash.arrays.frameworks import Shape, framework_of

ENABLE_WIDE = "jax.config.update('jax_enable_x64', True) at the start of the program sets 64-bit mode"

# Under which name types say over which mesh axes an array differs, "vma" up to JAX 0.9. None in JAX 0.6, where
# shard_map takes check_rep=False.
_VARYING = next(
    (name for name in ("manual_axis_type", "vma") if name in inspect.signature(jax.ShapeDtypeStruct).parameters), None
)


def is_wide() -> bool:
    """Is JAX in 64-bit mode?"""
    return bool(jax.dtypes.canonicalize_dtype(np.int64) == np.int64)


def need_dtype(dtype: str, what: str) -> None:
    """TypeError where JAX has the dtype only in 64-bit mode, and is not in it."""
    if ITEMSIZES[dtype] // (2 if dtype.startswith("complex") else 1) == 8 and not is_wide():
        raise TypeError(
            f"the {what} of the table are {dtype}, and JAX narrows these to 32 bits unless it is in 64-bit mode: "
            f"{ENABLE_WIDE}, or make a table of {what} of 32 bits"
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
    axes = len(shape) - len(key_shape)
    if axes < 0 or shape[axes:] != key_shape:
        raise ValueError(f"the keys have shape {shape}, expected {('...', *key_shape)}: keys are vectors")
    return shape[:axes]


def struct(shape: Shape, dtype: str, like: Any) -> Any:
    """What a call gives; where its argument ``like`` differs between the devices of a shard_map, so does it."""
    if not varying_axes(like):
        return jax.ShapeDtypeStruct(shape, numpy_dtype(dtype))
    type_ = jax.typeof(like)
    told: dict[str, Any] = {str(_VARYING): getattr(type_, str(_VARYING))}
    if _VARYING == "manual_axis_type":  # which JAX takes together with the mesh alone
        told["sharding"] = jax.sharding.NamedSharding(type_.sharding.mesh, jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(shape, numpy_dtype(dtype), **told)


def varying_axes(array: Any) -> frozenset[Any]:
    """The mesh axes over which an array differs between devices, as far as types tell."""
    if _VARYING is None:
        return frozenset()
    told = getattr(jax.typeof(array), _VARYING)
    return frozenset(getattr(told, "varying", told))


def no_results(structs: Any, like: Any) -> tuple[Any, ...]:
    """What a call gives for no keys: arrays without elements, typed as those of ``struct``."""
    axes = varying_axes(like)
    return tuple(_cast(jnp.zeros(each.shape, each.dtype), tuple(axes)) for each in structs)


def vary(arrays: Any, axis_name: Any, like: Any = None) -> list[Any]:
    """The arrays, typed as some that differ over a mesh axis, and over all axes over which one of them differs."""
    if _VARYING is None:
        return list(arrays)
    axes = frozenset({axis_name}).union(*map(varying_axes, [*arrays, *([] if like is None else [like])]))
    return [_cast(array, tuple(axes - varying_axes(array))) for array in arrays]


def _cast(array: Any, axes: Any) -> Any:
    if not axes:
        return array
    return jax.lax.pcast(array, axes, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(array, axes)


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
