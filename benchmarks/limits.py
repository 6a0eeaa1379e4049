"""The limits of the memory, measured in the same run as the tables: builds limits.cpp or limits.cu and calls it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_HERE = Path(__file__).parent


class LimitsUnavailableError(RuntimeError):
    """The limits cannot be measured here; the message says why."""


@contextlib.contextmanager
def _built(command: list[str], source: Path) -> Iterator[ctypes.CDLL]:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "liblimits.so"
        try:
            subprocess.run([*command, "-shared", "-o", library, source], check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise LimitsUnavailableError(f"no compiler {command[0]!r}") from error
        except subprocess.CalledProcessError as error:
            raise LimitsUnavailableError(f"{command[0]} failed on {source.name}:\n{error.stderr}") from error
        yield ctypes.CDLL(str(library))


def host_random_loads(array_bytes: int, keys: int, threads: int) -> float:
    """Independent random aligned loads of 64 bytes, per second, of ``threads`` threads together."""
    compiler = os.environ.get("CXX", "c++")
    with _built([compiler, "-std=c++17", "-O3", "-march=native", "-fPIC", "-pthread"], _HERE / "limits.cpp") as library:
        measure = library.measure_random_loads
        measure.restype = ctypes.c_double
        measure.argtypes = [ctypes.c_uint64, ctypes.c_int64, ctypes.c_int]
        rate = float(measure(array_bytes, keys, threads))
    if rate == 0:
        raise LimitsUnavailableError(f"no memory for an array of {array_bytes} bytes")
    return rate


def cuda(array_bytes: int, keys: int, capability: tuple[int, int]) -> dict[str, float]:
    """Rates per second of the current GPU, each in its best configuration.

    "L64": random aligned loads of 64 bytes, "C64": random 64-bit compare-and-swaps, both with a key streamed in and
    over an array of ``array_bytes``; "copy": bytes read and written by a copy within the device.
    """
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    compiler = os.environ.get("CUDACXX") or shutil.which("nvcc") or f"{home}/bin/nvcc"
    arch = f"-arch=sm_{capability[0]}{capability[1]}"
    with _built([compiler, "-std=c++17", "-O3", arch, "-Xcompiler", "-fPIC"], _HERE / "limits.cu") as library:
        loads, swaps, copied = (ctypes.c_double() for _ in range(3))
        message = ctypes.create_string_buffer(512)
        library.measure_limits.argtypes = [
            ctypes.c_uint64,
            ctypes.c_int64,
            *[ctypes.POINTER(ctypes.c_double)] * 3,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        failed = library.measure_limits(array_bytes, keys, loads, swaps, copied, message, len(message))
    if failed:
        raise LimitsUnavailableError(message.value.decode())
    return {"L64": loads.value, "C64": swaps.value, "copy": copied.value}
