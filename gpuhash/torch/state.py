"""What stands for a table in a graph: its state, a tensor that holds its handle."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gpuhash import _core

_lock = threading.Lock()
#: By the tables' own handles. All faces of a table have one tensor: two would let a compiler change the order of calls.
_states: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Tensors that outlive the call are made and written in here: outside of all modes and transforms around it.

    The first use of a table may be traced, or be inside of ``torch.func.grad``, whose tensors are of no use after it.
    """
    with (
        torch.inference_mode(False),
        _disable_current_modes(),
        torch._C._DisableFuncTorch(),
        torch.no_grad(),
        torch.autograd.forward_ad._set_fwd_grad_enabled(False),
    ):
        yield


def load_ops() -> bool:
    """Are the ops there, compiled now if need be? Where not, a warning says why."""
    try:
        from . import library  # noqa: F401
    except ImportError as error:
        warnings.warn(f"torch.compile has to break its graphs at calls of gpuhash: {error}", stacklevel=2)
        return False
    return True


def state_of(table: Any) -> Any:
    """The state of a table, an int64 tensor [1] on the CPU; None where there are no ops."""
    if not load_ops():
        return None
    with _lock:
        own = _core.own_handle_of(table._core)
        state = _states.get(own)
        if state is None:
            with plainly():
                state = torch.tensor([_core.handle_of(table._core)], dtype=torch.int64, device="cpu")
            torch._dynamo.mark_static_address(state, guard=False)
            _states[own] = state
    return state


def named_state_of(table: Any) -> Any:
    """The state of a table, with the handle of its name if it has got one since the state was made."""
    from . import library  # noqa: F401, ImportError where there are no ops

    state = table._torch_state
    if state is None:
        raise ImportError("the ops of gpuhash.torch could not be loaded when the table was first used in a graph")
    _write(state, _core.handle_of(table._core))
    return state


def _write(state: Any, handle: int) -> None:
    with plainly():
        state.fill_(handle)


def renew(table: Any, state: Any) -> None:
    """Something else is written in the state: another table has got the name that it stood for, or none has.

    Or a program has written into the tensor, as DistributedDataParallel does into the buffers of modules.
    """
    _write(state, _core.handle_of(table._core))


def default_of(table: Any) -> Any:
    """The value of absent keys as a tensor of its shape, where the table is; of each column by its name."""
    if table._columns is None:
        return _on_device(table, table._default, table._value_dtype, table._value_shape)
    storages = table._column_defaults
    return {
        name: _on_device(table, storages[name], column.dtype, column.shape) for name, column in table._columns.items()
    }


def _on_device(table: Any, storage: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    with plainly():
        host = torch.from_numpy(storage.copy()).view(getattr(torch, dtype))
        return host.reshape(shape).to(table._context.device)
