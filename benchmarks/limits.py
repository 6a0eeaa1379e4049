"""The limits of the memory, measured in the same run as the tables, by limits.cpp and limits.cu."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from .native import cuda_library, host_library


class HostLoads:
    """Independent random aligned loads of 64 bytes over one array, on any number of threads."""

    AHEAD = (8, 16, 24, 32, 48, 64, 96, 128)  # prefetches in flight, of which the best is taken

    def __init__(self, array_bytes: int, keys: int) -> None:
        library = host_library("limits")
        self._run = library.run_loads
        self._run.restype = ctypes.c_double
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
        self._destroy = library.destroy_loads
        self._destroy.argtypes = [ctypes.c_void_p]
        create = library.create_loads
        create.restype = ctypes.c_void_p
        create.argtypes = [ctypes.c_uint64, ctypes.c_int64]
        self._loads = create(array_bytes, keys)
        if not self._loads:
            raise MemoryError(f"no memory for random loads over {array_bytes} bytes")
        self._keys = keys
        self._best_ahead: dict[int, int] = {}

    def __del__(self) -> None:
        if getattr(self, "_loads", None):
            self._destroy(self._loads)
            self._loads = None

    def seconds(self, threads: int) -> float:
        """For all keys once, with as many loads in flight as pay."""

        def run(ahead: int) -> float:
            return float(self._run(self._loads, threads, ahead))

        if threads not in self._best_ahead:
            trial_runs = 3 if self._keys >= 1 << 22 else 50
            trials = {ahead: min(run(ahead) for _ in range(trial_runs)) for ahead in self.AHEAD}
            self._best_ahead[threads] = min(trials, key=trials.__getitem__)
        return run(self._best_ahead[threads])


class CudaLimitError(RuntimeError):
    """CUDA failed while a limit was measured."""


@dataclass(frozen=True)
class CudaLimits:
    """Rates per second of the current GPU, each in its best configuration."""

    loads: float  # random aligned loads of 64 bytes
    wide_loads: float  # of 128 bytes, the buckets of 16-byte keys with values
    swaps: float  # random 64-bit compare-and-swaps
    copied_bytes: float  # read and written by a copy within the device


def cuda_limits(array_bytes: int, keys: int, capability: tuple[int, int]) -> CudaLimits:
    """Measures over an array of ``array_bytes``, with ``keys`` keys streamed in.

    BuildError without nvcc; CudaLimitError where CUDA fails, as where there is no memory.
    """
    library = cuda_library("limits", capability)
    loads, wide_loads, swaps, copied = (ctypes.c_double() for _ in range(4))
    message = ctypes.create_string_buffer(512)
    library.measure_limits.argtypes = [
        ctypes.c_uint64,
        ctypes.c_int64,
        *[ctypes.POINTER(ctypes.c_double)] * 4,
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    if library.measure_limits(array_bytes, keys, loads, wide_loads, swaps, copied, message, len(message)):
        raise CudaLimitError(message.value.decode())
    return CudaLimits(loads.value, wide_loads.value, swaps.value, copied.value)
