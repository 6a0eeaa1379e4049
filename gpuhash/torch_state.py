"""What stands for a table in a graph: its state, a tensor that holds its handle."""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import _core

_lock = threading.Lock()
#: By the tables' own handles. All faces of a table have one tensor: two would let a compiler change the order of calls.
_states: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def load_ops() -> bool:
    """Are the ops there, compiled now if need be? Where not, a warning says why."""
    try:
        from .torch import library  # noqa: F401
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
            with torch.inference_mode(False), _disable_current_modes():
                state = torch.tensor([_core.handle_of(table._core)], dtype=torch.int64, device="cpu")
            torch._dynamo.mark_static_address(state, guard=False)
            _states[own] = state
    return state


def named_state_of(table: Any) -> Any:
    """The state of a table, with the handle of its name if it has got one since the state was made."""
    state = table._torch_state
    if state is None:
        raise ImportError("the ops of gpuhash.torch could not be loaded")
    _write(state, _core.handle_of(table._core))
    return state


def _write(state: Any, handle: int) -> None:
    with torch.inference_mode(False), _disable_current_modes(), torch.no_grad():
        state.fill_(handle)


def renew(table: Any, state: Any) -> None:
    """Another table has got the name that the state stands for, or none: from now on it stands for this table alone."""
    _write(state, _core.own_handle_of(table._core))


def default_of(table: Any) -> Any:
    """The value of absent keys as a tensor of shape ``value_shape``, where the table is."""
    with torch.inference_mode(False), _disable_current_modes():
        host = torch.from_numpy(table._default.copy()).view(getattr(torch, table._value_dtype))
        return host.reshape(table._value_shape).to(table.device)
