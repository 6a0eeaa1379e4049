"""What Dynamo, the front of PyTorch's compiler, traces of tables, and what it leaves alone.

Calls whose arrays are PyTorch's and lie where the table does become ops of gpuhash.torch, and stay in the graph. Others
go where they go without the compiler, and break the graph: there is no tensor operation to compile. Properties are
traced. Outside of the compiler nothing here runs, and nothing here imports PyTorch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from gpuhash import _core
from gpuhash.signatures import SIGNATURES, Signature

from .import_hook import when_imported

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

    if not isinstance(keys, torch.Tensor) or table._string_keys is not None:
        return False
    device = keys.device  # compared by parts: Dynamo of 2.11 cannot make another one
    here = device.type == "cpu" if table._host else device.type == "cuda" and device.index == table._index
    return here and table._torch_state is not None


def _takes_given(keys: Any, name: str, given: Any) -> bool:
    """Is it an operation, or are it values that an op takes: numbers, and tensors where the keys are?"""
    import torch

    if isinstance(given, dict):
        return all(_takes_given(keys, name, each) for each in given.values())
    if name == "op":
        return isinstance(given, str)
    if isinstance(given, torch.Tensor):
        return bool(given.device == keys.device)
    return isinstance(given, (bool, int, float))


def nothing(method: Any, table: Any, *args: Any, **kwargs: Any) -> Any:
    """Of methods whose calls break the graph."""
    return call_untraced(method, table, *args, **kwargs)


def _of_manifest(name: str) -> Callable[..., Any]:
    """What Dynamo traces of a call of the manifest: the op, where it takes what is given, or else the call as it is."""
    call = SIGNATURES[name]
    parameters = ("keys", *call.takes, "out")
    known = (*parameters, "columns") if name == "find" else parameters

    def trace(method: Any, table: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        # What the call has to refuse goes there.
        is_known = len(given) == len(args) + len(kwargs) and all(each in known for each in given)
        if not is_known or not _is_taken(call, table, given):
            return call_untraced(method, table, *args, **kwargs)
        from . import calls

        options: dict[str, Any] = {each: given[each] for each in call.takes if each in given}
        return calls.run(call, table, given["keys"], options, given.get("columns"))

    return trace


def _is_taken(call: Signature, table: Any, given: dict[str, Any]) -> bool:
    """Is all given that the call needs, in a form that ops take?"""
    keys = given.get("keys")
    if given.get("out") is not None or not _takes(table, keys):
        return False
    return all(
        name in call.optional if given.get(name) is None else _takes_given(keys, name, given[name])
        for name in call.takes
    )


insert = _of_manifest("insert")
insert_or_assign = _of_manifest("insert_or_assign")
setitem = _of_manifest("setitem")
insert_or_apply = _of_manifest("insert_or_apply")
_apply_and_find = _of_manifest("apply_and_find")
find_or_insert = _of_manifest("find_or_insert")
setdefault = _of_manifest("setdefault")
add = _of_manifest("add")
find = _of_manifest("find")
get = _of_manifest("get")
getitem = _of_manifest("getitem")
contains = _of_manifest("contains")
rows = _of_manifest("rows")
erase = _of_manifest("erase")
delete = _of_manifest("delete")
pop = _of_manifest("pop")


def apply_and_find(table: Any, *args: Any) -> Any:
    """In place of a function, as this call has no fast path."""
    from gpuhash import table as module

    return _apply_and_find(module._apply_and_find, table, *args)


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
    from gpuhash.frames import factorization

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
    from . import calls

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
    from gpuhash.frames import factorization

    if not _takes_arrays(axis, keys):
        return call_untraced(factorization.factorize, keys, axis=axis)
    from . import calls

    values, _, inverse, _ = calls.unique(keys, axis == 0, False, False, True, False)
    return factorization.Factorized(inverse, values)


def isin(elements: Any, test_elements: Any, *, invert: bool = False, axis: int | None = None) -> Any:
    from gpuhash.frames import factorization

    if not _takes_arrays(axis, elements, test_elements) or elements.dtype != test_elements.dtype:
        return call_untraced(factorization.isin, elements, test_elements, invert=invert, axis=axis)
    from . import calls

    return calls.isin(elements, test_elements, axis == 0, invert)


# What is left alone --------------------------------------------------------------------------------------------------

_REASON = "gpuhash works outside of compiled graphs: without fullgraph=True the graph breaks here, and the call runs"


def call_untraced(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def keep_dynamo_out(modules: Sequence[ModuleType]) -> None:
    """Has Dynamo break graphs at calls of the modules' functions and methods, and leave their frames alone."""
    _keep_out([function for module in modules for function in _functions(module)])


def _keep_out(functions: Sequence[Any]) -> None:
    for function in functions:  # as torch.compiler.disable() marks them
        function._torchdynamo_disable = True
        function._torchdynamo_disable_msg = _REASON
    codes = [code for function in functions for code in _codes(function.__code__)]

    def skip(_dynamo: ModuleType) -> None:
        skip_code = sys.modules["torch._dynamo.eval_frame"].skip_code
        for code in codes:
            skip_code(code)

    when_imported("torch._dynamo", skip)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        for member in vars(value).values() if isinstance(value, type) else [value]:
            # Class methods, caches, methods with a fast path and what decorators give have another function inside.
            inner = getattr(member, "__wrapped__", None)
            for function in (member, inner):
                if (
                    isinstance(function, FunctionType)
                    and function.__module__ == module.__name__
                    and not _is_traced(function)
                ):
                    yield function


def _is_traced(function: FunctionType) -> bool:
    return hasattr(function, "_torchdynamo_inline") or getattr(function, "traced", None) is True


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code and that of the functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


_keep_out([call_untraced])
