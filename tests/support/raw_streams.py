"""CUDA streams by their handles, made and destroyed as no framework does: PyTorch keeps all of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from support.frameworks import GPU, GPU_INDEX, module, on_stream, sees_gpu

#: The handle of cudaStreamPerThread: one number, and another stream in each thread.
PER_THREAD = 2


def external_stream(handle: int) -> Any:
    """PyTorch's view of a stream by its handle, on the tests' GPU."""
    return module("torch").cuda.ExternalStream(handle, device=GPU)


def need_runtime() -> Any:
    """The CUDA runtime's functions, by way of CuPy."""
    if module("cupy") is None or not sees_gpu("cupy"):
        pytest.skip("the test calls the CUDA runtime by way of CuPy")
    return module("cupy").cuda.runtime


class RawStreams:
    """Makes streams on the tests' GPU and destroys them; the driver gives their handles out again."""

    NON_BLOCKING = 1  # such a stream does not wait for the legacy default stream of itself

    def __init__(self) -> None:
        self.runtime = need_runtime()
        self.seen: set[int] = set()
        self.again = 0  # handles that came again

    def make(self) -> int:
        with module("cupy").cuda.Device(GPU_INDEX):
            handle = int(self.runtime.streamCreateWithFlags(self.NON_BLOCKING))
        self.again += handle in self.seen
        self.seen.add(handle)
        return handle

    def destroy(self, handle: int) -> None:
        """The work that is enqueued on it goes on."""
        with module("cupy").cuda.Device(GPU_INDEX):
            self.runtime.streamDestroy(handle)


@contextlib.contextmanager
def on_handle(handle: int) -> Iterator[None]:
    """PyTorch's current stream of the tests' GPU is the one of that handle."""
    with on_stream(external_stream(handle)):
        yield
