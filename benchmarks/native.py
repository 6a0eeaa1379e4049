"""Builds the C++ and CUDA sources beside this file into libraries, and loads them."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent


class BuildError(RuntimeError):
    """A source cannot be built here; the message says why."""


def _build(command: list[str], source: Path) -> ctypes.CDLL:
    """The folder may go once the library is loaded: the mapping keeps the file alive."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / f"lib{source.stem}.so"
        try:
            subprocess.run([*command, "-shared", "-o", library, source], check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise BuildError(f"no compiler {command[0]!r}") from error
        except subprocess.CalledProcessError as error:
            raise BuildError(f"{command[0]} failed on {source.name}:\n{error.stderr}") from error
        return ctypes.CDLL(str(library))


@functools.cache
def host_library(name: str) -> ctypes.CDLL:
    """The library of ``name``.cpp, tuned for this processor. BuildError without a compiler, or what it includes."""
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++17", "-O3", "-march=native", "-fPIC", "-pthread"]
    return _build([compiler, *flags], _HERE / f"{name}.cpp")


@functools.cache
def cuda_library(name: str, capability: tuple[int, int]) -> ctypes.CDLL:
    """The library of ``name``.cu for GPUs of this compute capability. BuildError without nvcc."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    compiler = os.environ.get("CUDACXX") or shutil.which("nvcc") or f"{home}/bin/nvcc"
    arch = f"-arch=sm_{capability[0]}{capability[1]}"
    return _build([compiler, "-std=c++17", "-O3", arch, "-Xcompiler", "-fPIC"], _HERE / f"{name}.cu")
