"""A table's calls as ops, for PyTorch's compilers: what Dynamo traces, and the methods of ``TableModule``.

A *table* here is whatever has ``_torch_state``, ``_torch_default`` and the dtypes and shapes, under the names that
tables have them under. All that is checked here is checked while a function is compiled, and costs nothing when it
runs; what only the tensors tell, such as the lengths of a batch, the ops check.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gpuhash.arguments import action_of

_ops: Any = torch.ops.gpuhash
_LARGEST_INT = (1 << 63) - 1


def _under_derivatives() -> bool:
    """Is a transform of torch.func with derivatives, or forward mode, around the call?"""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    if any(each.key() != torch._C._functorch.TransformType.Vmap for each in stack):
        return True
    level: int = torch.autograd.forward_ad._current_level
    return level >= 0


# Dynamo asks while it traces, when the transforms are there as they are without it, and guards those outside of it.
_under_derivatives._dynamo_marked_constant = True  # type: ignore[attr-defined]


def constant(tensor: Any, what: str) -> Any:
    """The tensor, which nothing may be derived from.

    Raises
    ------
    TypeError
        Where it requires grad or has a tangent. While Dynamo traces a transform, tensors do not tell; the op does.
    """
    if tensor.requires_grad:
        raise TypeError(f"the {what} require grad, and a table does not pass gradients on: call .detach()")
    if (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and _under_derivatives():
        return _ops.constant(tensor, what)
    return tensor


def _text(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _key_dims(table: Any, keys: Any) -> int:
    """The dimensions of one key: 0 or 1.

    Raises
    ------
    TypeError, ValueError
        For keys of another dtype or shape than the table's.
    """
    expected = table._key_dtype
    if keys.dtype != getattr(torch, expected):
        raise TypeError(
            f"the keys are {_text(keys.dtype)}, and the table has keys of {expected}: convert them with "
            f".to(torch.{expected})"
        )
    dims = len(table._key_shape)
    if dims and (keys.dim() == 0 or keys.shape[-1] != table._key_shape[0]):
        raise ValueError(
            f"the keys have shape {tuple(keys.shape)}, expected one that ends with the key shape {table._key_shape}"
        )
    return dims


def _values(table: Any, keys: Any, values: Any, what: str) -> Any:
    """Values or defaults as a tensor: one for each key, or one for all.

    Raises
    ------
    TypeError, ValueError, OverflowError
        For values of another dtype or shape than the table's.
    """
    name, shape = table._value_dtype, table._value_shape
    dtype = getattr(torch, name)
    if isinstance(values, (bool, int, float)):
        return _number(values, name, shape, what, keys.device)
    if values.dtype != dtype:
        raise TypeError(
            f"the {what} are {_text(values.dtype)}, and the table has values of {name}: convert them with "
            f".to(torch.{name})"
        )
    if values.dim() == 0 and shape:
        return values.expand(shape)
    batch_dims = keys.dim() - len(table._key_shape)
    item = tuple(values.shape[values.dim() - len(shape) :]) if values.dim() >= len(shape) else None
    if item != tuple(shape) or values.dim() not in (len(shape), batch_dims + len(shape)):
        batch = tuple(keys.shape[:batch_dims])
        raise ValueError(
            f"the {what} have shape {tuple(values.shape)}, expected {batch + tuple(shape)}, or {tuple(shape)} for all "
            "keys alike"
        )
    return values


def _number(number: Any, name: str, shape: Any, what: str, device: Any) -> Any:
    dtype = getattr(torch, name)
    real = dtype.is_floating_point or dtype.is_complex
    if isinstance(number, bool) != (name == "bool") or (isinstance(number, float) and not real):
        raise TypeError(f"the {what} are {name}, and {type(number).__name__} cannot be converted to that without loss")
    has_64_bits = not isinstance(number, int) or -_LARGEST_INT - 1 <= number <= 2 * _LARGEST_INT + 1
    if real and not has_64_bits and not _is_held(number, dtype):
        raise OverflowError(f"the {what} are {name}, which does not hold the integer {number} exactly: give a float")
    if not (isinstance(number, bool) or real):
        bounds = torch.iinfo(dtype)
        if number < bounds.min or number > bounds.max:
            # Without the number, which Dynamo may know by a symbol alone.
            raise OverflowError(f"a number is out of range for {what} of {name} ({bounds.min} to {bounds.max})")
    if real:
        return _rounded(number, dtype, shape, device)
    return torch.full(shape, number, dtype=dtype, device=device)


def _is_held(number: int, dtype: Any) -> bool:
    """Does a dtype of floats hold an integer exactly?"""
    info = torch.finfo(dtype)
    digits = number.bit_length() - (number & -number).bit_length() + 1
    return digits <= 1 - math.log2(info.eps) and abs(number) <= info.max


def _rounded(number: Any, dtype: Any, shape: Any, device: Any) -> Any:
    """Numbers beyond the largest of the dtype are infinite, as they are without the compiler."""
    if isinstance(number, int):
        if abs(number) <= min(torch.finfo(dtype).max, _LARGEST_INT):
            return torch.full(shape, number, dtype=dtype, device=device)
        number = float(number)
    wide = torch.complex128 if dtype.is_complex else torch.float64  # torch.full refuses what is out of range
    return torch.full(shape, number, dtype=wide, device=device).to(dtype)


def _new_values(table: Any, keys: Any, values: Any) -> tuple[Any, int]:
    """Values to be stored, and the dimensions of one of them.

    Complex ones go as pairs of their parts: Inductor cannot compile ops that write to an argument and take complex
    numbers.
    """
    values = constant(_values(table, keys, values, "values"), "values")
    dims = len(table._value_shape)
    if values.dtype.is_complex:
        return torch.view_as_real(values.resolve_conj()), dims + 1
    return values, dims


def find(table: Any, keys: Any, default: Any = None) -> tuple[Any, Any]:
    key_dims = _key_dims(table, keys)
    given = table._torch_default if default is None else _values(table, keys, default, "default")
    derived = isinstance(default, torch.Tensor) and (default.requires_grad or _under_derivatives())
    fallback = given.detach() if derived else given
    values, found = _ops.find(table._torch_state, keys, fallback, table._value_dtype, table._value_shape, key_dims)
    if derived:  # the derivative of absent keys' values
        mask = found.reshape(*found.shape, *[1] * len(table._value_shape))
        values = torch.where(mask, values, given)
    return values, found


def getitem(table: Any, keys: Any) -> Any:
    if table._torch_default is not None:
        return find(table, keys)[0]
    key_dims = _key_dims(table, keys)
    return _ops.find_present(table._torch_state, keys, table._value_dtype, table._value_shape, key_dims)


def get(table: Any, keys: Any, default: Any = None) -> Any:
    if default is None and table._torch_default is None:
        raise ValueError("get(keys) of a batch needs a default for absent keys: give one here or to the table")
    return find(table, keys, default)[0]


def contains(table: Any, keys: Any) -> Any:
    return _ops.contains(table._torch_state, keys, _key_dims(table, keys))


def _need_rows(table: Any) -> None:
    if not table._value_shape and table._value_dtype != "complex128":
        raise ValueError(
            f"the table has no row storage: its values, scalars of {table._value_dtype}, lie beside their keys; only "
            "values of a value_shape, or of more than 8 bytes, have rows"
        )


def rows(table: Any, keys: Any) -> Any:
    _need_rows(table)
    return _ops.rows(table._torch_state, keys, _key_dims(table, keys))


def setitem(table: Any, keys: Any, values: Any) -> None:
    key_dims = _key_dims(table, keys)
    values, value_dims = _new_values(table, keys, values)
    _ops.assign(table._torch_state, keys, values, key_dims, value_dims)


def insert(table: Any, keys: Any, values: Any) -> Any:
    key_dims = _key_dims(table, keys)
    values, value_dims = _new_values(table, keys, values)
    return _ops.insert(table._torch_state, keys, values, key_dims, value_dims)


def insert_or_assign(table: Any, keys: Any, values: Any) -> Any:
    key_dims = _key_dims(table, keys)
    values, value_dims = _new_values(table, keys, values)
    return _ops.insert_or_assign(table._torch_state, keys, values, key_dims, value_dims)


def find_or_insert(table: Any, keys: Any, values: Any = None) -> tuple[Any, Any]:
    _need_rows(table)
    key_dims = _key_dims(table, keys)
    if values is None and table._initializer is None:
        values = table._torch_default
    given, value_dims = (None, 0) if values is None else _new_values(table, keys, values)
    rows, is_new = _ops.find_or_insert(table._torch_state, keys, given, key_dims, value_dims)
    return rows, is_new


def insert_or_apply(table: Any, keys: Any, values: Any, op: str) -> Any:
    name = action_of(op, table._value_dtype, f"the table has values of {table._value_dtype}")
    if name == "keep":
        return insert(table, keys, values)
    if name == "assign":
        return insert_or_assign(table, keys, values)
    key_dims = _key_dims(table, keys)
    values, value_dims = _new_values(table, keys, values)
    return _ops.insert_or_apply(table._torch_state, keys, values, name, key_dims, value_dims)


def add(table: Any, keys: Any) -> Any:
    return _ops.insert(table._torch_state, keys, None, _key_dims(table, keys), 0)


def erase(table: Any, keys: Any) -> Any:
    return _ops.erase(table._torch_state, keys, _key_dims(table, keys))


# Without a table -----------------------------------------------------------------------------------------------------


def unique(
    keys: Any, rows: bool, ascending: bool, return_index: bool, return_inverse: bool, return_counts: bool
) -> Any:
    keys = constant(keys, "keys")
    return _ops.unique(keys, rows, ascending, return_index, return_inverse, return_counts)


def isin(elements: Any, test_elements: Any, rows: bool, invert: bool) -> Any:
    elements, test_elements = constant(elements, "elements"), constant(test_elements, "test elements")
    return _ops.isin(torch.empty(0, device="cpu"), elements, test_elements, rows, invert)
