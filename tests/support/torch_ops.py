"""gpuhash.torch for tests, which skip without PyTorch or a C++ compiler."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from gpuhash.building.compiled_ops import find_compiler

from .frameworks import module


def need_torch_ops() -> tuple[Any, Any]:
    """``torch`` and ``gpuhash.torch``; skips the whole module of tests without them."""
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed", allow_module_level=True)
    if find_compiler() is None:
        pytest.skip("no C++ compiler is installed", allow_module_level=True)
    return torch, importlib.import_module("gpuhash.torch")
