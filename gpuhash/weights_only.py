"""Tables in PyTorch's checkpoints: ``torch.load`` takes them, whichever of both packages was imported first.

Since version 2.6, ``torch.load`` unpickles nothing but tensors and what it was told to be safe, by
``torch.serialization.add_safe_globals``. Tables are safe: their bytes are read and checked as those of a file are. But
gpuhash does not import PyTorch, and a program that loads a checkpoint calls nothing of gpuhash between both imports. So
where PyTorch is not there yet, an import hook waits for it: it finds nothing itself, looks on as others find
``torch.serialization``, and is gone once that is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "torch.serialization"


def allow(*names: Callable[..., Any]) -> None:
    """Tells PyTorch, now or when it is imported, that pickles may call these."""
    if _MODULE in sys.modules:
        _add(importlib.import_module(_MODULE), names)  # waits for another thread that is just importing it
    else:
        sys.meta_path.insert(0, _Hook(names))


def _add(serialization: ModuleType, names: Sequence[Callable[..., Any]]) -> None:
    if hasattr(serialization, "add_safe_globals"):  # before version 2.4, torch.load unpickled everything by default
        serialization.add_safe_globals(list(names))


class _Hook(MetaPathFinder):
    """Adds the names as soon as the module has run."""

    def __init__(self, names: Sequence[Callable[..., Any]]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        # Only those that come later: another hook of this kind before this one is asking it just now.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._look_on(spec.loader)
                return spec
        return None

    def _look_on(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = run
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _add(module, self._names)

        loader.exec_module = exec_module
