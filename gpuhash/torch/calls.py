"""A table's calls as ops, for PyTorch's compilers: what Dynamo traces, and the methods of ``TableModule``.

``run`` makes each call of the manifest (gpuhash/signatures.py). A *table* here is whatever has ``_torch_state``,
``_torch_default``, the dtypes, shapes and columns, under the names that tables have them under. All that is checked
here is checked while a function is compiled, and costs nothing when it runs; what only the tensors tell, such as the
lengths of a batch, the ops check.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch

from gpuhash.arrays.arguments import action_of, no_default
from gpuhash.call import actions_of
from gpuhash.signatures import Signature
from gpuhash.tables import named_columns

_ops: Any = torch.ops.gpuhash
_LARGEST_INT = (1 << 63) - 1
_NO_TENSORS = [None]  # AOTInductor cannot hand on an empty list
#: What names of columns have in place of these characters. Inductor for GPUs copies an op's texts into comments of the
#: code that it generates, which a line break would end.
_ESCAPES = {"\\": "\\\\", ";": "\\s", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
#: The dtypes of the parts of complex numbers.
_PARTS = {"complex64": "float32", "complex128": "float64"}


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
    """The dimensions of one key.

    Raises
    ------
    TypeError, ValueError
        For keys of another dtype or shape than the table's.
    """
    expected = table._key_dtype
    if not isinstance(keys, torch.Tensor):
        raise TypeError(f"the keys are of type {type(keys).__name__}, expected a tensor of torch.{expected}")
    if keys.dtype != getattr(torch, expected):
        raise TypeError(
            f"the keys are {_text(keys.dtype)}, and the table has keys of {expected}: convert them with "
            f".to(torch.{expected})"
        )
    dims = len(table._key_shape)
    if keys.dim() < dims or tuple(keys.shape[keys.dim() - dims :]) != table._key_shape:
        raise ValueError(
            f"the keys have shape {tuple(keys.shape)}, expected one that ends with the key shape {table._key_shape}"
        )
    return dims


class _Column(NamedTuple):
    """The single value of a table without named columns has no name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    text: str  #: as the ops have it: "float32[2,3] weight"

    def what(self, what: str) -> str:
        return f"{what} of {self.name!r}" if self.name else what


def _column(name: str, dtype: str, shape: tuple[int, ...]) -> _Column:
    text = dtype
    if shape:  # lengths that have differed are symbols to Dynamo, of which index() makes constants
        text += "[" + ",".join([str(operator.index(length)) for length in shape]) + "]"
    if name:
        text += " " + "".join([_ESCAPES.get(each, each) for each in name])
    return _Column(name, dtype, shape, text)


def columns_of(table: Any) -> dict[str, _Column]:
    """The columns of a table by their names; none for a set."""
    if table._columns is not None:
        return {name: _column(name, column.dtype, column.shape) for name, column in table._columns.items()}
    if table._value_dtype is None:
        return {}
    return {"": _column("", table._value_dtype, table._value_shape)}


def _texts(columns: list[_Column]) -> str:
    return ";".join([column.text for column in columns])


def _by_name(table: Any, given: Any, what: str) -> dict[str, Any]:
    """What is given for some columns, by their names."""
    return {"": given} if table._columns is None else named_columns.by_name(table._columns, given, what)


def _value(table: Any, keys: Any, column: _Column, value: Any, what: str) -> Any:
    """Values or defaults of a column as a tensor: one for each key, or one for all.

    Raises
    ------
    TypeError, ValueError, OverflowError
        For values of another dtype or shape than the column's.
    """
    name, shape = column.dtype, column.shape
    dtype = getattr(torch, name)
    if isinstance(value, (bool, int, float)):
        return _number(value, name, shape, what, keys.device)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the {what} are a {type(value).__name__}, expected a tensor or a number")
    if value.dtype != dtype:
        raise TypeError(
            f"the {what} are {_text(value.dtype)}, and the table has values of {name}: convert them with "
            f".to(torch.{name})"
        )
    if value.dim() == 0 and shape:
        return value.expand(shape)
    batch_dims = keys.dim() - len(table._key_shape)
    item = tuple(value.shape[value.dim() - len(shape) :]) if value.dim() >= len(shape) else None
    if item != tuple(shape) or value.dim() not in (len(shape), batch_dims + len(shape)):
        batch = tuple(keys.shape[:batch_dims])
        raise ValueError(
            f"the {what} have shape {tuple(value.shape)}, expected {batch + tuple(shape)}, or {tuple(shape)} for all "
            "keys alike"
        )
    return value


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


def _stored(table: Any, keys: Any, column: _Column, value: Any, what: str) -> Any:
    """A value that goes into the table, or into an op that changes one.

    Complex ones go as pairs of their parts: Inductor cannot compile ops that write to an argument and take complex
    numbers.
    """
    what = column.what(what)
    value = constant(_value(table, keys, column, value, what), what)
    return torch.view_as_real(value.resolve_conj()) if value.dtype.is_complex else value


def _outputs(keys: Any, key_dims: int, columns: list[_Column]) -> list[Any]:
    """New tensors for one value of each key, which an op writes; complex ones are pairs of their parts."""
    batch = keys.shape[: keys.dim() - key_dims]
    outputs = []
    for column in columns:
        dtype = _PARTS.get(column.dtype, column.dtype)
        shape = column.shape if dtype == column.dtype else (*column.shape, 2)
        outputs.append(keys.new_empty((*batch, *shape), dtype=getattr(torch, dtype)))
    return outputs


def _read(columns: list[_Column], outputs: list[Any]) -> list[Any]:
    """What an op has written."""
    return [
        torch.view_as_complex(output) if column.dtype in _PARTS else output
        for column, output in zip(columns, outputs, strict=True)
    ]


def _need_rows(table: Any) -> None:
    if table._columns is None and not table._value_shape and table._value_dtype != "complex128":
        raise ValueError(
            f"the table has no row storage: its values, scalars of {table._value_dtype}, lie beside their keys; only "
            "values of a value_shape, or of more than 8 bytes, have rows"
        )


def run(
    call: Signature,
    table: Any,
    keys: Any,
    given: dict[str, Any],
    columns: Any = None,
    there: dict[str, _Column] | None = None,
) -> Any:
    """One call of the manifest, with what is given after the keys, by its name.

    ``columns``: of a lookup, the names of those that are wanted; None for all. ``there``: the table's columns, if the
    caller has them. The answer is a tensor, or a tuple of
    several; values are tensors, and in tables with columns mappings of names to such.
    """
    key_dims = _key_dims(table, keys)
    if call.needs == "rows":
        _need_rows(table)
    if there is None:
        there = columns_of(table)
    if call.request == "lookup":
        read = _chosen(table, there, columns) if "values" in call.answers else []
        answers = _look_up(call, table, keys, key_dims, given.get("default"), read)
    elif call.request == "change":
        answers = _change(call, table, keys, key_dims, given, there)
    else:
        read = [*there.values()] if "values" in call.answers else []
        answers = _erase(call, table, keys, key_dims, given, read)
    wanted = tuple([answers[name] for name in call.answers])
    return wanted if len(wanted) > 1 else wanted[0] if wanted else None


def _named(table: Any, columns: list[_Column], values: list[Any]) -> Any:
    """The values of a call as its caller gets them."""
    if table._columns is None:
        return values[0]
    return {column.name: value for column, value in zip(columns, values, strict=True)}


def _defaults(table: Any, default: Any) -> dict[str, Any] | None:
    """What absent keys get, of some columns, by their names: the call's or the table's; None where there is none."""
    own = table._torch_default if default is None else default
    return None if own is None else _by_name(table, own, "defaults")


def _given(table: Any, keys: Any, column: _Column, defaults: dict[str, Any] | None) -> Any:
    """What absent keys get of a column as a tensor; None: zeros."""
    if defaults is None or column.name not in defaults:
        return None
    return _value(table, keys, column, defaults[column.name], column.what("defaults"))


def _chosen(table: Any, there: dict[str, _Column], columns: Any) -> list[_Column]:
    """The columns of a lookup: those asked for, or all."""
    if columns is None:
        return [*there.values()]
    if table._columns is None:
        raise TypeError(f"columns={columns!r} was given, and the table has a single value per key, without a name")
    return [there[name] for name in named_columns.chosen(table._columns, columns)]


def _look_up(
    call: Signature, table: Any, keys: Any, key_dims: int, default: Any, read: list[_Column]
) -> dict[str, Any]:
    defaults = _defaults(table, default) if read else None
    if read and defaults is None and call.absent == "given":
        raise no_default(f"{call.name}(keys) of a batch")
    given = [_given(table, keys, column, defaults) for column in read]
    # Their derivatives are those of torch.where(), outside of the op.
    is_derived = [
        default is not None and value is not None and (value.requires_grad or _under_derivatives()) for value in given
    ]
    is_found_needed = "found" in call.answers or any(is_derived)
    is_rows_needed = "rows" in call.answers
    results = _ops.look_up(
        table._torch_state,
        keys,
        key_dims,
        _texts(read),
        [value.detach() if derived else value for value, derived in zip(given, is_derived, strict=True)] or _NO_TENSORS,
        is_found_needed,
        is_rows_needed,
        defaults is None and call.absent == "error",
    )
    found: Any = results[len(read)] if is_found_needed else None
    values = [
        torch.where(found.reshape(*found.shape, *[1] * len(read[i].shape)), results[i], given[i])
        if is_derived[i]
        else results[i]
        for i in range(len(read))
    ]
    return {
        "values": _named(table, read, values) if read else None,
        "found": found,
        "rows": results[-1] if is_rows_needed else None,
    }


def _change(
    call: Signature, table: Any, keys: Any, key_dims: int, given: dict[str, Any], there: dict[str, _Column]
) -> dict[str, Any]:
    named = _written(call, table, given)
    actions = call.action or _actions(table, given["values"], given["op"])
    stored = [_stored(table, keys, there[name], value, call.takes[0]) for name, value in named.items()]
    read = []
    if "values" in call.answers:
        read = [*there.values()] if call.reads_all else [there[name] for name in named]
    outputs = _outputs(keys, key_dims, read)
    is_new, rows = _ops.change(
        [table._torch_state, *outputs],
        keys,
        key_dims,
        _texts([there[name] for name in named]),
        stored or _NO_TENSORS,
        ",".join([actions if isinstance(actions, str) else actions[name] for name in named]),
        "is_new" in call.answers,
        "rows" in call.answers,
        _texts(read),
    )
    return {"is_new": is_new, "rows": rows, "values": _named(table, read, _read(read, outputs)) if read else None}


def _written(call: Signature, table: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The values of a change, by the names of columns; none for a set, and where new rows have initial values."""
    if not call.takes:
        return {}
    what = call.takes[0]
    values = given.get(what)
    if values is None and what in call.optional:
        if table._columns is not None or table._initializer is not None:
            return {}
        values = table._torch_default
        if values is None and call.absent == "given":
            raise no_default(call.name)
        if values is None:
            return {}
    return _by_name(table, values, what)


def _actions(table: Any, values: Any, op: Any) -> Any:
    """What becomes of each column that is given, or of all."""
    if table._columns is not None:
        return actions_of(table._columns, values, op)
    return action_of(op, table._value_dtype, f"the table has values of {table._value_dtype}")


def _erase(
    call: Signature, table: Any, keys: Any, key_dims: int, given: dict[str, Any], read: list[_Column]
) -> dict[str, Any]:
    required = call.absent == "error" and "default" not in given
    fallbacks: list[Any] = [None] * len(read)
    if read and not required:
        defaults = _defaults(table, given["default"])
        if defaults is None:
            raise no_default(f"{call.name}(keys, None) of a batch")
        fallbacks = [
            _stored(table, keys, column, defaults[column.name], "default") if column.name in defaults else None
            for column in read
        ]
    outputs = _outputs(keys, key_dims, read)
    mask_needed = "erased" in call.answers
    written = [table._torch_state, *outputs]
    erased = _ops.erase(written, keys, key_dims, _texts(read), fallbacks or _NO_TENSORS, mask_needed, required)
    return {"erased": erased, "values": _named(table, read, _read(read, outputs)) if read else None}


# Without a table -----------------------------------------------------------------------------------------------------


def unique(
    keys: Any, rows: bool, ascending: bool, return_index: bool, return_inverse: bool, return_counts: bool
) -> Any:
    keys = constant(keys, "keys")
    return _ops.unique(keys, rows, ascending, return_index, return_inverse, return_counts)


def isin(elements: Any, test_elements: Any, rows: bool, invert: bool) -> Any:
    elements, test_elements = constant(elements, "elements"), constant(test_elements, "test elements")
    return _ops.isin(torch.empty(0, device="cpu"), elements, test_elements, rows, invert)
