"""Tables in PyTorch's checkpoints: ``torch.load`` takes them, whichever of both packages was imported first.

Since version 2.6, ``torch.load`` unpickles nothing but tensors and what it was told to be safe, by
``torch.serialization.add_safe_globals``. Tables are safe: their bytes are read and checked as those of a file are. But
gpuhash does not import PyTorch, and a program that loads a checkpoint calls nothing of gpuhash between both imports; so
an import hook tells PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .import_hook import when_imported


def allow_in_checkpoints(*names: Callable[..., Any]) -> None:
    """Tells PyTorch, now or when it is imported, that pickles may call these."""

    def add(serialization: ModuleType) -> None:
        if hasattr(serialization, "add_safe_globals"):  # before 2.4, torch.load unpickled everything by default
            serialization.add_safe_globals(list(names))

    when_imported("torch.serialization", add)
