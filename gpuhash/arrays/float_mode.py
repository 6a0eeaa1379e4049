"""Python code that computes with floats as IEEE 754 says, whatever its thread has been set to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gpuhash import _core

_P = ParamSpec("_P")
_R = TypeVar("_R")


def in_default_float_mode(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, with subnormal numbers as what they are and rounding to nearest; the thread's mode comes back.

    NumPy takes 1e-40 for 0 where torch.set_flush_denormal(True) was called, and in TensorFlow's and XLA's threads.
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        before = _core.set_default_float_mode()
        try:
            return function(*args, **kwargs)
        finally:
            _core.restore_float_mode(before)

    return wrapped
