"""The handlers, loaded and made known to XLA."""

from __future__ import annotations

import ctypes
from pathlib import Path

import jax.ffi

from gpuhash import _core

from .build import op_library

CALLS = ("find", "contains", "rows", "erase", "insert", "size", "factorize", "isin")
TOKEN_WORDS = 6  # of 32 bits; Token in state.h

path = op_library.find_or_compile(Path(_core.__file__).resolve().parent)
_library = ctypes.CDLL(str(path))
_library.gpuhash_jax_begin.argtypes = (ctypes.c_int64, ctypes.c_void_p)
_library.gpuhash_jax_begin.restype = None


def target(call: str) -> str:
    """XLA's name for a handler."""
    return f"gpuhash_jax_{call}"


def begin(handle: int, address: int) -> None:
    """Writes the first state of a new chain to ``TOKEN_WORDS`` words of memory."""
    _library.gpuhash_jax_begin(handle, address)


for _call in CALLS:
    for _suffix, _platform in (("cpu", "cpu"), ("cuda", "CUDA")):
        _handler = getattr(_library, f"{target(_call)}_{_suffix}")
        jax.ffi.register_ffi_target(target(_call), jax.ffi.pycapsule(_handler), platform=_platform)
