"""The op library, loaded, with what compilers and transforms ask of each op: fake kernels and batching rules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from gpuhash import _core

from .build import op_library

path = op_library.find_or_compile(Path(_core.__file__).resolve().parent)
torch.ops.load_library(str(path))
ops: Any = torch.ops.gpuhash


# Fake kernels: the outputs' shapes and dtypes ------------------------------------------------------------------------


def _batch(keys: Any, key_dims: int) -> list[Any]:
    return list(keys.shape[: keys.dim() - key_dims])


def _kinds(columns: str) -> list[tuple[Any, list[int]]]:
    """Dtypes and shapes of columns, from the text that the ops have of them: "float32[2,3] weight;int64 count"."""
    kinds = []
    for column in columns.split(";") if columns else []:
        dtype, _, lengths = column.partition(" ")[0].rstrip("]").partition("[")
        kinds.append((getattr(torch, dtype), [int(length) for length in lengths.split(",")] if lengths else []))
    return kinds


def _look_up(
    _: Any, keys: Any, key_dims: int, columns: str, fallbacks: Any, found: bool, rows: bool, required: bool
) -> list[Any]:
    kinds = _kinds(columns) + [(torch.bool, [])] * found + [(torch.int64, [])] * rows
    return [keys.new_empty([*_batch(keys, key_dims), *shape], dtype=dtype) for dtype, shape in kinds]


def _answer(keys: Any, key_dims: int, wanted: bool, dtype: Any) -> Any:
    """Of a call that changes a table: one for each key, or none."""
    return keys.new_empty(_batch(keys, key_dims) if wanted else [0], dtype=dtype)


def _change(
    _: Any, keys: Any, key_dims: int, columns: Any, values: Any, actions: Any, is_new: bool, rows: bool, *__: Any
) -> Any:
    return _answer(keys, key_dims, is_new, torch.bool), _answer(keys, key_dims, rows, torch.int64)


def _erase(_: Any, keys: Any, key_dims: int, columns: Any, fallbacks: Any, erased: bool, __: Any) -> Any:
    return _answer(keys, key_dims, erased, torch.bool)


def _new_size(op: str) -> Any:
    """A size that only the op's call tells. What depends on it stays out of CUDA graphs: PyTorch would record one for
    each size, and fail, as it would pass the tuple that the size came with into them.

    That is a setting of the thread that compiles, which is the one that traces. Its module is there by then.
    """
    config: Any = sys.modules.get("torch._inductor.config")
    name = f"gpuhash::{op}"
    if config is not None and name not in config.cudagraph_unsafe_unbacked_ops:
        config.cudagraph_unsafe_unbacked_ops = [*config.cudagraph_unsafe_unbacked_ops, name]
    return torch.library.get_ctx().new_dynamic_size()


def _unique(keys: Any, rows: bool, _: bool, return_index: bool, return_inverse: bool, return_counts: bool) -> Any:
    count = _new_size("unique")
    batch, item = (keys.shape[:1], keys.shape[1:]) if rows else (keys.shape, ())
    return (
        keys.new_empty([count, *item]),
        keys.new_empty([count if return_index else 0], dtype=torch.int64),
        keys.new_empty(batch if return_inverse else [0], dtype=torch.int64),
        keys.new_empty([count if return_counts else 0], dtype=torch.int64),
    )


_FAKE_KERNELS = {
    "look_up": _look_up,
    "size": lambda state: _new_size("size"),
    "change": _change,
    "erase": _erase,
    "unique": _unique,
    "isin": lambda host, elements, tests, rows, invert: elements.new_empty(
        elements.shape[:1] if rows else elements.shape, dtype=torch.bool
    ),
}
for _name, _kernel in _FAKE_KERNELS.items():
    torch.library.register_fake(f"gpuhash::{_name}", _kernel)
    # A state on the CPU keeps an op out of CUDA graphs, but not the nodes that take its several results apart.
    getattr(ops, _name).default.tags.append(torch.Tag.cudagraph_unsafe)

# They give something else when the table has changed: without that tag Inductor's freezing takes what they give for
# constant keys for constants.
for _name in ("look_up", "size"):
    getattr(ops, _name).default.tags.append(torch.Tag.nondeterministic_seeded)


# What must not have derivatives --------------------------------------------------------------------------------------

# In functions under torch.compile, the transforms of torch.func show what requires grad to ops alone. This one is
# called around values under such transforms only. It gives a copy, as an op has to.
_constants = torch.library.Library("gpuhash", "FRAGMENT")
_constants.define("constant(Tensor tensor, str what) -> Tensor")
_constants.impl("constant", lambda tensor, what: tensor.clone(), "CompositeExplicitAutograd")


def _refuse_derivatives(tensor: Any, what: str) -> Any:
    """Called once for each level of transforms, with the tensor as it is there."""
    if tensor.requires_grad or torch.autograd.forward_ad.unpack_dual(tensor, level=0).tangent is not None:
        raise TypeError(f"the {what} require grad, and a table does not pass gradients on: call .detach()")
    with torch._C._AutoDispatchBelowAutograd():
        return ops.constant(tensor, what)


_constants.impl("constant", _refuse_derivatives, "Autograd")


# Batching rules: a call for each item of the batch is one call with all keys -----------------------------------------


def _to_front(tensor: Any, batch_dim: int | None, size: int) -> Any:
    return tensor.expand(size, *tensor.shape) if batch_dim is None else tensor.movedim(batch_dim, 0)


def _values_to_front(values: Any, batch_dim: int | None, kind: tuple[Any, list[int]], batch: list[Any]) -> Any:
    """Values of a column for keys that have their batch in front: one for each key, or still one for all."""
    if values is None:
        return None
    dtype, shape = kind
    value_dims = len(shape) + (dtype.is_complex and not values.dtype.is_complex)  # which come as pairs, too
    dims = values.dim() - (batch_dim is not None)
    if dims == value_dims and batch_dim is None:
        return values
    values = _to_front(values, batch_dim, batch[0])
    value_shape = values.shape[values.dim() - value_dims :]
    if dims == value_dims:  # one for each item
        values = values.reshape(batch[0], *[1] * (len(batch) - 1), *value_shape)
    return values.expand(*batch, *value_shape)


def _written_to_front(written: list[Any], batch_dims: list[int | None]) -> list[Any]:
    """A state, and what the op writes besides, which has to have a part for each item."""
    state, *outputs = written
    if None in batch_dims[1:]:
        raise ValueError(
            "one batch of keys for all items has one answer: call it outside of vmap, or give each item keys"
        )
    return [state, *[output.movedim(dim, 0) for output, dim in zip(outputs, batch_dims[1:], strict=True)]]


def _batch_call(op: Any) -> Any:
    """The rule of an op of a state, keys and columns."""
    schema = op.default._schema
    names = [argument.name for argument in schema.arguments]
    flags = [answer.name for answer in schema.returns]  # each answer has the name of the flag that asks for it

    def rule(info: Any, in_dims: Any, *args: Any) -> Any:
        given, dims = dict(zip(names, args, strict=True)), dict(zip(names, in_dims, strict=True))
        if (dims["state"] if "state" in dims else dims["written"][0]) is not None:
            raise ValueError("the state of a table is no batch: under vmap give one table for all items")
        keys = given["keys"] = _to_front(given["keys"], dims["keys"], info.batch_size)
        batch = _batch(keys, given["key_dims"])
        for name in given.keys() & {"values", "fallbacks"}:
            each = zip(given[name], dims[name], _kinds(given["columns"]), strict=False)  # no columns: nothing of none
            given[name] = [_values_to_front(*value, batch) for value in each] or [None]
        if "written" in given:
            given["written"] = _written_to_front(given["written"], dims["written"])
        answers = op(*given.values())
        if isinstance(answers, list):
            return answers, [0] * len(answers)
        batch_dims = tuple([0 if given[flag] else None for flag in flags])
        return answers, batch_dims if isinstance(answers, tuple) else batch_dims[0]

    return rule


def _refuse_to_batch(*_: Any) -> Any:
    raise ValueError("unique gives each item another number of keys, which vmap cannot: call it outside of vmap")


def _batch_isin(info: Any, in_dims: Any, host: Any, elements: Any, tests: Any, rows: bool, invert: bool) -> Any:
    if in_dims[0] is not None or in_dims[2] is not None:
        raise ValueError("isin has one set of test elements for all items: call it outside of vmap")
    elements = elements.movedim(in_dims[1], 0)
    if not rows:
        return ops.isin(host, elements, tests, rows, invert), 0
    return ops.isin(host, elements.flatten(0, 1), tests, rows, invert).reshape(elements.shape[:2]), 0


_BATCHING_RULES = {
    **{name: _batch_call(getattr(ops, name)) for name in ("look_up", "change", "erase")},
    "constant": lambda info, in_dims, tensor, what: (ops.constant(tensor, what), in_dims[0]),
    "unique": _refuse_to_batch,
    "isin": _batch_isin,
}
for _name, _rule in _BATCHING_RULES.items():
    torch.library.register_vmap(f"gpuhash::{_name}", _rule)
