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


def _mask(keys: Any, key_dims: int) -> Any:
    return keys.new_empty(_batch(keys, key_dims), dtype=torch.bool)


def _rows(keys: Any, key_dims: int) -> Any:
    return keys.new_empty(_batch(keys, key_dims), dtype=torch.int64)


def _values(keys: Any, dtype: str, value_shape: Any, key_dims: int) -> Any:
    return keys.new_empty([*_batch(keys, key_dims), *value_shape], dtype=getattr(torch, dtype))


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
    "find": lambda state, keys, default, *kind: (_values(keys, *kind), _mask(keys, kind[-1])),
    "find_present": lambda state, keys, *kind: _values(keys, *kind),
    "contains": lambda state, keys, key_dims: _mask(keys, key_dims),
    "rows": lambda state, keys, key_dims: _rows(keys, key_dims),
    "size": lambda state: _new_size("size"),
    "insert": lambda state, keys, values, key_dims, value_dims: _mask(keys, key_dims),
    "insert_or_assign": lambda state, keys, values, key_dims, value_dims: _mask(keys, key_dims),
    "find_or_insert": lambda state, keys, values, key_dims, value_dims: (_rows(keys, key_dims), _mask(keys, key_dims)),
    "assign": lambda state, keys, values, key_dims, value_dims: None,
    "insert_or_apply": lambda state, keys, values, op, key_dims, value_dims: _mask(keys, key_dims),
    "erase": lambda state, keys, key_dims: _mask(keys, key_dims),
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
for _name in ("find", "find_present", "contains", "rows", "size"):
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


def _values_to_front(values: Any, batch_dim: int | None, keys: Any, key_dims: int, value_dims: int) -> Any:
    """Values for keys that have their batch in front: one for each key, or still one for all."""
    if values is None:
        return None
    dims = values.dim() - (batch_dim is not None)
    if dims == value_dims and batch_dim is None:
        return values
    batch = _batch(keys, key_dims)
    values = _to_front(values, batch_dim, batch[0])
    value_shape = values.shape[values.dim() - value_dims :]
    if dims == value_dims:  # one for each item
        values = values.reshape(batch[0], *[1] * (len(batch) - 1), *value_shape)
    return values.expand(*batch, *value_shape)


def _keys_to_front(info: Any, in_dims: Any, keys: Any) -> Any:
    if in_dims[0] is not None:
        raise ValueError("the state of a table is no batch: under vmap give one table for all items")
    return _to_front(keys, in_dims[1], info.batch_size)


def _batch_find(info: Any, in_dims: Any, state: Any, keys: Any, default: Any, *kind: Any) -> Any:
    keys = _keys_to_front(info, in_dims, keys)
    _, value_shape, key_dims = kind
    default = _values_to_front(default, in_dims[2], keys, key_dims, len(value_shape))
    return ops.find(state, keys, default, *kind), (0, 0)


def _batch_keys(op: Any) -> Any:
    """Of an op of a state and keys."""
    return lambda info, in_dims, state, keys, *kind: (op(state, _keys_to_front(info, in_dims, keys), *kind), 0)


def _batch_keys_and_values(op: Any) -> Any:
    """Of an op of a state, keys and values."""

    def rule(info: Any, in_dims: Any, state: Any, keys: Any, values: Any, *rest: Any) -> Any:
        keys = _keys_to_front(info, in_dims, keys)
        *_, key_dims, value_dims = rest
        result = op(state, keys, _values_to_front(values, in_dims[2], keys, key_dims, value_dims), *rest)
        if isinstance(result, tuple):
            return result, (0,) * len(result)
        return result, None if result is None else 0

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
    "find": _batch_find,
    **{name: _batch_keys(getattr(ops, name)) for name in ("find_present", "contains", "rows", "erase")},
    **{
        name: _batch_keys_and_values(getattr(ops, name))
        for name in ("insert", "insert_or_assign", "assign", "insert_or_apply", "find_or_insert")
    },
    "constant": lambda info, in_dims, tensor, what: (ops.constant(tensor, what), in_dims[0]),
    "unique": _refuse_to_batch,
    "isin": _batch_isin,
}
for _name, _rule in _BATCHING_RULES.items():
    torch.library.register_vmap(f"gpuhash::{_name}", _rule)
