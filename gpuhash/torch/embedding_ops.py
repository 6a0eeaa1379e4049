"""What embeddings do, as ops for graphs of PyTorch's compilers. They run the modules' own Python code.

The first argument of each is a module's *state*, an int64 tensor [1] on the CPU with a number that stands for the
module and its table. Ops that insert or train say that they write to it, which none of them does: that alone keeps
their order and their number. Nothing else of a module is in a graph, so it need not be compiled anew where the module
gets another table. PyTorch's compilers do not see that rows change, and need not, as no tensor of a graph is memory of
rows.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

import torch
from torch import Tensor

_numbers = itertools.count(1)
_lock = threading.Lock()


class Binding:
    """What stands for a module and the table that it has now. The module lets it go when it gets another table."""

    def __init__(self, module: Any) -> None:
        self.module = weakref.ref(module)
        self.state = torch.tensor([next(_numbers)], dtype=torch.int64, device="cpu")
        with _lock:
            _bindings[int(self.state)] = self


_bindings: weakref.WeakValueDictionary[int, Binding] = weakref.WeakValueDictionary()


def _module_of(state: Tensor) -> Any:
    with _lock:
        binding = _bindings.get(int(state))
    module = None if binding is None else binding.module()
    if module is None:
        raise RuntimeError(
            "the module has been moved, has loaded a state, or was freed since a call in a compiled graph: call "
            "backward() before, and keep the module"
        )
    return module


# Ops -----------------------------------------------------------------------------------------------------------------

_OPS = {
    "embedding_find(Tensor(a!) state, Tensor keys) -> (Tensor rows, Tensor trained)": lambda state, keys: _apart(
        *_module_of(state)._find(keys)
    ),
    "embedding_rows(Tensor state, Tensor keys) -> Tensor": lambda state, keys: _module_of(state).table.rows(keys),
    "embedding_read(Tensor state, Tensor rows, int dim, ScalarType dtype) -> Tensor": lambda state, rows, *_: (
        _module_of(state)._read(rows)
    ),
    "embedding_pool(Tensor state, Tensor rows, Tensor offsets, Tensor? factors, int dim, ScalarType dtype, bool read)"
    " -> (Tensor pooled, Tensor weights)": lambda state, rows, offsets, factors, dim, dtype, read: (
        _module_of(state)._pool(rows, offsets, factors),
        _module_of(state)._read(rows) if read else rows.new_empty((0, dim), dtype=dtype),
    ),
    "embedding_train(Tensor(a!) state, Tensor rows, Tensor gradients, Tensor? bags, Tensor? factors) -> ()": (
        lambda state, rows, gradients, bags, factors: _train(_module_of(state), rows, gradients, bags, factors)
    ),
}


def _apart(rows: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
    """An op's results are tensors of their own."""
    return rows, trained.clone() if trained is rows else trained


def _train(module: Any, *arguments: Any) -> None:
    module._train(module.table, *arguments)


def _new_weights(rows: Tensor, count: Any, dim: int, dtype: Any) -> Tensor:
    return rows.new_empty((count, dim), dtype=dtype)


def _new_rows(keys: Tensor) -> Tensor:
    return keys.new_empty(keys.shape[:1])


_FAKE_KERNELS = {
    "embedding_find": lambda state, keys: (_new_rows(keys), _new_rows(keys)),
    "embedding_rows": lambda state, keys: _new_rows(keys),
    "embedding_read": lambda state, rows, dim, dtype: _new_weights(rows, rows.shape[0], dim, dtype),
    "embedding_pool": lambda state, rows, offsets, factors, dim, dtype, read: (
        _new_weights(rows, offsets.shape[0] - 1, dim, dtype),
        _new_weights(rows, rows.shape[0] if read else 0, dim, dtype),
    ),
    "embedding_train": lambda *_: None,
}

_library = torch.library.Library("gpuhash", "FRAGMENT")
for _schema, _kernel in _OPS.items():
    _name = _schema.partition("(")[0]
    # Of the same keys rows may be others each time: without that tag Inductor's freezing takes them for constants.
    _random = () if "Tensor(a!)" in _schema else (torch.Tag.nondeterministic_seeded,)
    _library.define(_schema, tags=(torch.Tag.cudagraph_unsafe, *_random))
    _library.impl(_name, torch.no_grad()(_kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(f"gpuhash::{_name}", _FAKE_KERNELS[_name], lib=_library)
_ops: Any = torch.ops.gpuhash


# Functions with derivatives, as those of plain calls ------------------------------------------------------------------


class _Lookup(torch.autograd.Function):  # type: ignore[misc]
    """Weights of rows; backward trains them."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, state: Tensor, rows: Tensor, trained: Tensor, dim: int, dtype: Any) -> Tensor:
        ctx.save_for_backward(state, trained)
        weights: Tensor = _ops.embedding_read(state, rows, dim, dtype)
        return weights

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[None, ...]:
        state, trained = ctx.saved_tensors
        _ops.embedding_train(state, trained, gradients, None, None)
        return (None,) * 6


class _Pooled(torch.autograd.Function):  # type: ignore[misc]
    """Sums of weights by bags; backward trains the rows, and gives the derivatives of the samples' weights."""

    @staticmethod
    def forward(
        ctx: Any,
        leaf: Tensor,
        state: Tensor,
        rows: Tensor,
        trained: Tensor,
        offsets: Tensor,
        factors: Tensor | None,
        dim: int,
        dtype: Any,
    ) -> Tensor:
        # By one op: of two, what backward() alone uses would be read when other calls have trained the rows.
        held: Tensor
        pooled, held = _ops.embedding_pool(state, rows, offsets, factors, dim, dtype, ctx.needs_input_grad[5])
        ctx.save_for_backward(state, trained, offsets, factors, held)
        return pooled

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        state, trained, offsets, factors, held = ctx.saved_tensors
        bags = bags_of(offsets, trained.shape[0])
        of_factors = factors_gradient(gradients, bags, held) if ctx.needs_input_grad[5] else None
        if ctx.needs_input_grad[0]:
            _ops.embedding_train(state, trained, gradients, bags, factors)
        return None, None, None, None, None, of_factors, None, None


def bags_of(offsets: Tensor, count: int) -> Tensor:
    """The bag of each position, int64 ``[count]``. ``offsets`` begin with 0 and end with ``count``."""
    # Not a search in offsets[1:]: Inductor of 2.11 fails at it on a GPU, or searches from where the base begins.
    found = torch.searchsorted(offsets, torch.arange(count, device=offsets.device), right=True)
    return (found - 1).clamp(min=0)  # on a GPU nobody has looked at the offsets


def factors_gradient(gradients: Tensor, bags: Tensor, weights: Tensor) -> Tensor:
    """Of what rows ``weights [n, embedding_dim]`` were multiplied by: float32 ``[n]``."""
    return (gradients[bags].float() * weights.float()).sum(-1)


def look_up(module: Any, keys: Tensor) -> Tensor:
    """Weights ``[n, embedding_dim]`` of keys."""
    rows, trained = _find(module, keys)
    state, kind = module._binding.state, (module.embedding_dim, module._dtype)
    weights: Tensor
    if module._learns:
        weights = _Lookup.apply(module._anchor, state, rows, trained, *kind)
    else:
        weights = _ops.embedding_read(state, rows, *kind)
    return weights


def pool(module: Any, keys: Tensor, offsets: Tensor, factors: Tensor | None) -> Tensor:
    """Sums ``[bags, embedding_dim]`` of weights of keys."""
    rows, trained = _find(module, keys)
    state, kind = module._binding.state, (module.embedding_dim, module._dtype)
    pooled: Tensor
    if module._learns:
        pooled = _Pooled.apply(module._anchor, state, rows, trained, offsets, factors, *kind)
    elif factors is not None and factors.requires_grad and torch.is_grad_enabled():
        pooled = _Pooled.apply(module._anchor.detach(), state, rows, trained, offsets, factors, *kind)
    else:
        pooled, _ = _ops.embedding_pool(state, rows, offsets, factors, *kind, False)
    return pooled


def _find(module: Any, keys: Tensor) -> tuple[Tensor, Tensor]:
    state = module._binding.state
    if not module._inserts:
        rows = _ops.embedding_rows(state, keys)
        return rows, rows
    rows, trained = _ops.embedding_find(state, keys)
    return rows, trained
