"""Libraries that tests compare with or take columns of. Where one is not installed the cases that use it skip."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


class _Absent(type):
    """Of classes that stand for such a library and for all that it has."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Skips the test that is running; while tests are collected, gives what makes those skip that are given it."""
        if "PYTEST_CURRENT_TEST" in os.environ:
            _skip(cls)
        return cls


def _skip(absent: _Absent) -> None:
    pytest.skip(f"needs {absent.__name__}, which is not installed")


def peer(name: str) -> Any:
    """The library, or a class that stands for it: nothing is an instance of that, and whoever calls it skips."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return _Absent(name, (), {})


def need_given(item: pytest.Item) -> None:
    """Skips a test with a parameter made by a library that is not installed."""
    given = list(item.callspec.params.values()) if hasattr(item, "callspec") else []
    while given:
        value = given.pop()
        if isinstance(value, _Absent):
            _skip(value)
        elif isinstance(value, (tuple, list)):
            given.extend(value)
        elif isinstance(value, dict):
            given.extend(value.values())
