"""Keeps Dynamo, the front of PyTorch's compiler, out of the face, where there is no tensor operation to compile.

Under ``torch.compile`` a call of a table breaks the graph, and runs as it does without. Properties alone are traced.
Nothing here imports PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .import_hook import when_imported

_REASON = "gpuhash works outside of compiled graphs: without fullgraph=True the graph breaks here, and the call runs"


def call_untraced(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def keep_dynamo_out(modules: Sequence[ModuleType]) -> None:
    """Has Dynamo break graphs at calls of the modules' functions and methods, and leave their frames alone."""
    functions = [function for module in modules for function in _functions(module)]
    for function in functions:  # as torch.compiler.disable() marks them
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = _REASON  # type: ignore[attr-defined]
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
