"""Something to be done once another package is imported, by whoever imports it: gpuhash itself does not import it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Calls act(module), now where the module of that name is imported, or else as soon as it has run."""
    if name in sys.modules:
        act(importlib.import_module(name))  # waits for another thread that is just importing it
    else:
        sys.meta_path.insert(0, ImportHook(name, act))


class ImportHook(MetaPathFinder):
    """Finds nothing itself, looks on as others find and run one module, and is gone after that."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name = name
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
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
            self._act(module)

        loader.exec_module = exec_module
