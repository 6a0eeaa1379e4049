"""What embeddings do, as ops for graphs of PyTorch's compilers. They run the modules' own Python code.

The first argument of each is a module's *state*, an int64 tensor [1] on the CPU with a number that stands for the
module and its table. The op that inserts says that it writes to it, which it does not do: that alone keeps the order
and the number of calls. Nothing else of a module is in a graph, so it need not be compiled anew where the module gets
another table. PyTorch's compilers do not see that rows change, and need not, as no tensor of a graph is memory of rows.

What a backward graph is given is saved by autograd, which raises where it has been written to by then, as the state is
by each later call. So the op that trains is given the *handle*, another tensor with the same number, to which no op
writes. It is kept by what it returns, which stands for the gradient of the module's anchor.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_numbers = itertools.count(1)
_lock = threading.Lock()


class Binding:
    """What stands for a module and the table that it has now. The module lets it go when it gets another table."""

    def __init__(self, module: Any) -> None:
        self.module, self.table = weakref.ref(module), weakref.ref(module.table)
        number = next(_numbers)
        with torch.inference_mode(False):  # autograd saves the handle
            self.state, self.handle = (torch.tensor([number], dtype=torch.int64, device="cpu") for _ in range(2))
        with _lock:
            _bindings[number] = self


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
    "embedding_step(Tensor? after, Tensor handle, Tensor rows, Tensor gradients, Tensor? bags, Tensor? factors, "
    "Tensor used) -> Tensor": lambda after, handle, *rest: _step(_module_of(handle), *rest),
}


def _apart(rows: Tensor, trained: Tensor) -> tuple[Tensor, Tensor]:
    """An op's results are tensors of their own."""
    return rows, trained.clone() if trained is rows else trained


def _step(
    module: Any, rows: Tensor, gradients: Tensor, bags: Tensor | None, factors: Tensor | None, used: Tensor
) -> Tensor:
    """Zero, the gradient of the anchor."""
    if is_asked_for(module._anchor) and (used.device.type != "cpu" or bool(used)):
        module._train(module._binding, rows, gradients, bags, factors)
    return gradients.new_zeros(())


def is_asked_for(leaf: Tensor) -> bool:
    """Is the gradient of the leaf among those that the running backward() computes?

    A node with several inputs runs for any of them, and a compiled graph is one node.
    """
    if torch._C._current_graph_task_id() == -1 or not leaf.requires_grad:
        return True
    with torch.enable_grad():
        view = leaf.view_as(leaf).grad_fn
    if view is None:  # compiled autograd has made a graph of the whole pass, with what is asked for alone
        return True
    asked: bool = torch._C._will_engine_execute_node(view.next_functions[0][0])
    return asked


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
    "embedding_step": lambda after, handle, rows, gradients, *_: gradients.new_empty(()),
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


def _train(*arguments: Any) -> Tensor:
    """``embedding_step``. In a graph it takes what the one before gives, which keeps their order: Inductor moves ops
    that need nothing of each other to where they save memory.
    """
    mode = get_proxy_mode()
    tracer = None if mode is None else mode.tracer  # of one graph
    token: Tensor = _ops.embedding_step(getattr(tracer, _LAST_STEP, None), *arguments)
    if tracer is not None:
        setattr(tracer, _LAST_STEP, token)
    return token


_LAST_STEP = "_gpuhash_last_step"
# Composite, so that it runs while graphs of PyTorch's ops are made, and is none of these.
_library.define(
    "embedding_train(Tensor handle, Tensor rows, Tensor gradients, Tensor? bags, Tensor? factors, Tensor used)"
    " -> Tensor"
)
_library.impl("embedding_train", _train, "CompositeImplicitAutograd")


# Functions with derivatives, as those of plain calls ------------------------------------------------------------------


class _Lookup(torch.autograd.Function):  # type: ignore[misc]
    """Weights of rows, in parts; backward trains them."""

    @staticmethod
    def forward(
        ctx: Any, leaf: Tensor, state: Tensor, handle: Tensor, dim: int, dtype: Any, rows: Tensor, *trained: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(handle, *trained)
        return in_parts(_ops.embedding_read(state, rows, dim, dtype), [part.shape[0] for part in trained])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        handle, *trained = ctx.saved_tensors
        pairs = [_used(part, gradient) for part, gradient in zip(trained, gradients, strict=True)]
        rows, used = torch.cat([rows for rows, _ in pairs]), torch.stack([used for _, used in pairs]).any()
        of_leaf = _ops.embedding_train(handle, rows, torch.cat(gradients), None, None, used)
        return of_leaf, *(None,) * (5 + len(trained))


class _Pooled(torch.autograd.Function):  # type: ignore[misc]
    """Sums of weights by bags; backward trains the rows, and gives the derivatives of the samples' weights."""

    @staticmethod
    def forward(
        ctx: Any,
        leaf: Tensor,
        state: Tensor,
        handle: Tensor,
        rows: Tensor,
        trained: Tensor,
        offsets: Tensor,
        factors: Tensor | None,
        dim: int,
        dtype: Any,
    ) -> Tensor:
        # By one op: of two, what backward() alone uses would be read when other calls have trained the rows.
        held: Tensor
        pooled, held = _ops.embedding_pool(state, rows, offsets, factors, dim, dtype, ctx.needs_input_grad[6])
        ctx.save_for_backward(handle, trained, offsets, factors, held)
        return pooled

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
        handle, trained, offsets, factors, held = ctx.saved_tensors
        bags = bags_of(offsets, trained.shape[0])
        of_factors = factors_gradient(gradients, bags, held) if ctx.needs_input_grad[6] else None
        of_leaf = None
        if ctx.needs_input_grad[0]:
            rows, used = _used(trained, gradients)
            of_leaf = _ops.embedding_train(handle, rows, gradients, bags, factors, used)
        return of_leaf, None, None, None, None, None, of_factors, None, None


def _used(rows: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The rows, or -1 for all of them where a loss does not use what they gave; and whether it does.

    A graph gets zeros then, where functions of autograd that are not compiled get None.
    """
    used = (gradients != 0).any()
    return torch.where(used, rows, -1), used


def in_parts(weights: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
    """So many rows each; not by split(), whose pieces nothing may be written into while autograd records."""
    return (weights,) if len(counts) == 1 else tuple(weights.unsafe_split_with_sizes(counts))


def bags_of(offsets: Tensor, count: int) -> Tensor:
    """The bag of each position, int64 ``[count]``. ``offsets`` begin with 0 and end with ``count``."""
    # Not a search in offsets[1:]: Inductor of 2.11 fails at it on a GPU, or searches from where the base begins.
    found = torch.searchsorted(offsets, torch.arange(count, device=offsets.device), right=True)
    return (found - 1).clamp(min=0)  # on a GPU nobody has looked at the offsets


def factors_gradient(gradients: Tensor, bags: Tensor, weights: Tensor) -> Tensor:
    """Of what rows ``weights [n, embedding_dim]`` were multiplied by: float32 ``[n]``."""
    return (gradients[bags].float() * weights.float()).sum(-1)


def look_up(module: Any, keys: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
    """Weights ``[n, embedding_dim]`` of keys, so many in each part."""
    rows, trained = _find(module, keys)
    binding, kind = module._binding, (module.embedding_dim, module._dtype)
    if module._learns:
        parts: tuple[Tensor, ...] = _Lookup.apply(
            module._anchor, binding.state, binding.handle, *kind, rows, *in_parts(trained, counts)
        )
        return parts
    return in_parts(_ops.embedding_read(binding.state, rows, *kind), counts)


def pool(module: Any, keys: Tensor, offsets: Tensor, factors: Tensor | None) -> Tensor:
    """Sums ``[bags, embedding_dim]`` of weights of keys."""
    rows, trained = _find(module, keys)
    binding, kind = module._binding, (module.embedding_dim, module._dtype)
    tensors = (binding.state, binding.handle, rows, trained, offsets, factors)
    pooled: Tensor
    if module._learns:
        pooled = _Pooled.apply(module._anchor, *tensors, *kind)
    elif factors is not None and factors.requires_grad and torch.is_grad_enabled():
        pooled = _Pooled.apply(module._anchor.detach(), *tensors, *kind)
    else:
        pooled, _ = _ops.embedding_pool(binding.state, rows, offsets, factors, *kind, False)
    return pooled


def _find(module: Any, keys: Tensor) -> tuple[Tensor, Tensor]:
    state = module._binding.state
    if not module._inserts:
        rows = _ops.embedding_rows(state, keys)
        return rows, rows
    rows, trained = _ops.embedding_find(state, keys)
    return rows, trained
