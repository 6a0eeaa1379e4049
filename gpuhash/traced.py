"""What Dynamo, PyTorch's compiler front, traces of the face; it does not look into the other modules.

Calls whose arrays are PyTorch's and lie where the table does become ops of gpuhash.torch, and stay in the graph. Others
go where they go without the compiler, and break the graph. Outside of the compiler nothing here runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from . import _core
from .untraced import call_untraced

_Function = TypeVar("_Function", bound=Callable[..., Any])


def by(trace: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorates a method with a fast path: Dynamo traces trace(method, table, ...) in its place."""

    def mark(method: _Function) -> _Function:
        method.traced = trace  # type: ignore[attr-defined]
        return method

    return mark


def in_place_by(trace: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorates a function: Dynamo traces trace(...) in its place."""

    def mark(function: _Function) -> _Function:
        function._torchdynamo_inline = trace  # type: ignore[attr-defined]
        return function

    return mark


def itself(function: _Function) -> _Function:
    """Decorates a function that Dynamo traces as it is."""
    function.traced = True  # type: ignore[attr-defined]
    return function


def bind(method: Any, table: Any, owner: type | None = None) -> Any:
    """``table.find`` as Dynamo sees it: the ``__get__`` of methods with a fast path."""
    return method if table is None else functools.partial(method.traced, method, table)


def call(method: Any, table: Any, *args: Any, **kwargs: Any) -> Any:
    """``HashTable.find(table, keys)``, and calls of a bound method that was taken before."""
    return method.traced(method, table, *args, **kwargs)


def _takes(table: Any, keys: Any) -> bool:
    """Are the keys a tensor where the table is, and are there ops?"""
    import torch

    if not isinstance(keys, torch.Tensor):
        return False
    device = keys.device  # compared by parts: Dynamo of 2.11 cannot make another one
    here = device.type == "cpu" if table._host else device.type == "cuda" and device.index == table._index
    return here and table._torch_state is not None


def _takes_values(table: Any, keys: Any, values: Any) -> bool:
    import torch

    if not isinstance(values, (bool, int, float)) and not (
        isinstance(values, torch.Tensor) and values.device == keys.device
    ):
        return False
    return _takes(table, keys)


def nothing(method: Any, table: Any, *args: Any, **kwargs: Any) -> Any:
    """Of methods whose calls break the graph."""
    return call_untraced(method, table, *args, **kwargs)


def getitem(method: Any, table: Any, keys: Any) -> Any:
    if not _takes(table, keys):
        return call_untraced(method, table, keys)
    from .torch import calls

    return calls.getitem(table, keys)


def get(method: Any, table: Any, keys: Any, default: Any = None, out: Any = None) -> Any:
    if out is not None or not (_takes(table, keys) if default is None else _takes_values(table, keys, default)):
        return call_untraced(method, table, keys, default, out)
    from .torch import calls

    return calls.get(table, keys, default)


def find(method: Any, table: Any, keys: Any, default: Any = None, out: Any = None, *, columns: Any = None) -> Any:
    is_plain = out is None and columns is None
    if not is_plain or not (_takes(table, keys) if default is None else _takes_values(table, keys, default)):
        if columns is None:
            return call_untraced(method, table, keys, default, out)
        return call_untraced(method, table, keys, default, out, columns=columns)
    from .torch import calls

    return calls.find(table, keys, default)


def contains(method: Any, table: Any, keys: Any, out: Any = None) -> Any:
    if out is not None or not _takes(table, keys):
        return call_untraced(method, table, keys, out)
    from .torch import calls

    return calls.contains(table, keys)


def rows(method: Any, table: Any, keys: Any, out: Any = None) -> Any:
    if out is not None or not _takes(table, keys):
        return call_untraced(method, table, keys, out)
    from .torch import calls

    return calls.rows(table, keys)


def setitem(method: Any, table: Any, keys: Any, values: Any) -> None:
    if not _takes_values(table, keys, values):
        call_untraced(method, table, keys, values)
        return
    from .torch import calls

    calls.setitem(table, keys, values)


def insert(method: Any, table: Any, keys: Any, values: Any, out: Any = None) -> Any:
    if out is not None or not _takes_values(table, keys, values):
        return call_untraced(method, table, keys, values, out)
    from .torch import calls

    return calls.insert(table, keys, values)


def insert_or_assign(method: Any, table: Any, keys: Any, values: Any, out: Any = None) -> Any:
    if out is not None or not _takes_values(table, keys, values):
        return call_untraced(method, table, keys, values, out)
    from .torch import calls

    return calls.insert_or_assign(table, keys, values)


def find_or_insert(method: Any, table: Any, keys: Any, values: Any = None, out: Any = None) -> Any:
    is_plain = out is None and (_takes(table, keys) if values is None else _takes_values(table, keys, values))
    if not is_plain:
        return call_untraced(method, table, keys, values, out)
    from .torch import calls

    return calls.find_or_insert(table, keys, values)


def insert_or_apply(method: Any, table: Any, keys: Any, values: Any, op: Any, out: Any = None) -> Any:
    if out is not None or not isinstance(op, str) or not _takes_values(table, keys, values):
        return call_untraced(method, table, keys, values, op, out)
    from .torch import calls

    return calls.insert_or_apply(table, keys, values, op)


def add(method: Any, table: Any, keys: Any, out: Any = None) -> Any:
    if out is not None or not _takes(table, keys):
        return call_untraced(method, table, keys, out)
    from .torch import calls

    return calls.add(table, keys)


def erase(method: Any, table: Any, keys: Any, out: Any = None) -> Any:
    if out is not None or not _takes(table, keys):
        return call_untraced(method, table, keys, out)
    from .torch import calls

    return calls.erase(table, keys)


# Without a table -----------------------------------------------------------------------------------------------------


class _Library:
    available = property(_core.torch_ops)


_library = _Library()


def _takes_arrays(axis: Any, *arrays: Any) -> bool:
    import torch

    for array in arrays:
        if not isinstance(array, torch.Tensor) or array.device != arrays[0].device:
            return False
        if array.requires_grad or array.device.type not in ("cpu", "cuda"):
            return False
    return (axis is None or (type(axis) is int and axis == 0)) and _library.available


def unique(
    keys: Any,
    *,
    return_inverse: bool = False,
    return_counts: bool = False,
    return_index: bool = False,
    sorted: bool = False,
    axis: int | None = None,
) -> Any:
    from . import factorization

    if not _takes_arrays(axis, keys):
        return call_untraced(
            factorization.unique,
            keys,
            return_inverse=return_inverse,
            return_counts=return_counts,
            return_index=return_index,
            sorted=sorted,
            axis=axis,
        )
    from .torch import calls

    values, *extras = calls.unique(keys, axis == 0, sorted, return_index, return_inverse, return_counts)
    names, results = [], []
    for name, wanted, extra in (
        ("indices", return_index, extras[0]),
        ("inverse", return_inverse, extras[1]),
        ("counts", return_counts, extras[2]),
    ):
        if wanted:
            names.append(name)
            results.append(extra)
    return factorization.RESULT_TYPES[tuple(names)](values, *results) if names else values


def factorize(keys: Any, *, axis: int | None = None) -> Any:
    from . import factorization

    if not _takes_arrays(axis, keys):
        return call_untraced(factorization.factorize, keys, axis=axis)
    from .torch import calls

    values, _, inverse, _ = calls.unique(keys, axis == 0, False, False, True, False)
    return factorization.Factorized(inverse, values)


def isin(elements: Any, test_elements: Any, *, invert: bool = False, axis: int | None = None) -> Any:
    from . import factorization

    if not _takes_arrays(axis, elements, test_elements) or elements.dtype != test_elements.dtype:
        return call_untraced(factorization.isin, elements, test_elements, invert=invert, axis=axis)
    from .torch import calls

    return calls.isin(elements, test_elements, axis == 0, invert)
