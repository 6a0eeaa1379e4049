"""The handlers, loaded and made known to XLA."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import jax.ffi

from gpuhash import _core

from .build import op_library

# What handlers are made for: requests of a table, which may be recorded where it stays in place, and its size.
REQUESTS = ("look_up", "change", "erase")
TABLE_CALLS = (*REQUESTS, "size")
TOKEN_WORDS = 6  # of 32 bits; Token in state.h

path = op_library.find_or_compile(Path(_core.__file__).resolve().parent)
_library = ctypes.CDLL(str(path))
_library.gpuhash_jax_begin.argtypes = (ctypes.c_int64, ctypes.c_void_p)
_library.gpuhash_jax_begin.restype = ctypes.c_void_p
_library.gpuhash_jax_check.argtypes = (ctypes.c_int64,)
_library.gpuhash_jax_check.restype = ctypes.c_void_p
_free = ctypes.CDLL(None).free  # of messages
_free.argtypes = (ctypes.c_void_p,)


def target(call: str, fixed: bool = False) -> str:
    """XLA's name for a handler; ``fixed``: of calls on tables that stay where they are, which may be recorded."""
    return f"gpuhash_jax_{call}_fixed" if fixed else f"gpuhash_jax_{call}"


def _checked(function: Any, *arguments: int) -> None:
    message = function(*arguments)
    if message is not None:
        text = ctypes.string_at(message).decode()
        _free(message)
        raise RuntimeError(text)


def begin(handle: int, address: int) -> None:
    """Writes the first state of a new chain to ``TOKEN_WORDS`` words of memory."""
    _checked(_library.gpuhash_jax_begin, handle, address)


def check(handle: int) -> None:
    """RuntimeError, once, where a GPU has found that two calls used one state of the table."""
    _checked(_library.gpuhash_jax_check, handle)


def _register(name: str) -> None:
    for suffix, platform in (("cpu", "cpu"), ("cuda", "CUDA")):
        handler = getattr(_library, f"{name}_{suffix}")
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform=platform)


for _call in (*TABLE_CALLS, *(f"{call}_part" for call in TABLE_CALLS), "settle", "factorize", "isin"):
    _register(target(_call))
for _call in REQUESTS:
    _register(target(_call, fixed=True))
