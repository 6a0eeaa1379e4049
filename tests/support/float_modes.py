"""The modes of a thread's floating-point unit, as TensorFlow's and XLA's threads have them."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Where in the C library's fenv_t the register lies, and what is set in it: subnormal numbers are zeros, as results and
# as operands; and results are rounded up.
_LAYOUTS = {"x86_64": (28, {"flush": 0x8040, "upward": 0x4000}), "aarch64": (0, {"flush": 1 << 24, "upward": 1 << 22})}

MODES = ["flush", "upward"]


def _read() -> ctypes.Array[ctypes.c_uint8]:
    environment = (ctypes.c_uint8 * 64)()
    assert _libm().fegetenv(environment) == 0
    return environment


def _libm() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("m"))


def _word(environment: ctypes.Array[ctypes.c_uint8]) -> ctypes.c_uint32:
    return ctypes.c_uint32.from_buffer(environment, _LAYOUTS[platform.machine()][0])


def current() -> int:
    """The bits of the calling thread that ``float_mode`` sets."""
    bits = _LAYOUTS[platform.machine()][1]
    return _word(_read()).value & (bits["flush"] | bits["upward"])


@contextmanager
def float_mode(mode: str) -> Iterator[None]:
    """The calling thread computes in one of ``MODES``."""
    if platform.machine() not in _LAYOUTS or platform.system() != "Linux":
        pytest.skip("knows the registers of Linux on x86-64 and AArch64")
    before, changed = _read(), _read()
    _word(changed).value |= _LAYOUTS[platform.machine()][1][mode]
    assert _libm().fesetenv(changed) == 0
    try:
        yield
    finally:
        assert _libm().fesetenv(before) == 0
