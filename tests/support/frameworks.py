"""Array frameworks as the tests see them: NumPy arrays in, NumPy arrays out, whatever lies between."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuhash

GPU_INDEX = int(os.environ.get("GPUHASH_TEST_DEVICE", "cuda").removeprefix("cuda").removeprefix(":") or 0)
#: The GPU of all tables and arrays. GPU 0 is the current one whichever that is, so that each call has to say where it
#: works, and with its number, because JAX and TensorFlow leave any GPU as the current one where there are several.
GPU = f"cuda:{GPU_INDEX}"


@functools.cache
def module(name: str) -> Any:
    """The framework's module, or None where it is not installed."""
    try:
        if name == "tensorflow":
            module("torch")  # first torch, then tensorflow: the other order clashes in some builds
            tensorflow = importlib.import_module("tensorflow")
            for gpu in tensorflow.config.list_physical_devices("GPU"):
                tensorflow.config.experimental.set_memory_growth(gpu, True)
            return tensorflow
        if name == "jax":
            jax = importlib.import_module("jax")
            jax.config.update("jax_enable_x64", True)
            return jax
        return importlib.import_module(name)
    except ImportError:
        return None


def sees_gpu(name: str) -> bool:
    """Can the framework make arrays on a GPU?"""
    if module(name) is None:
        return False
    if name == "torch":
        return bool(module("torch").cuda.device_count() > GPU_INDEX)
    if name == "cupy":
        try:
            return bool(module("cupy").cuda.runtime.getDeviceCount() > GPU_INDEX)
        except Exception:  # no driver: CuPy raises its own runtime error
            return False
    if name == "jax":
        try:
            with current_gpu_kept():
                return len(module("jax").devices("gpu")) > GPU_INDEX
        except RuntimeError:
            return False
    return name == "tensorflow" and len(module("tensorflow").config.list_physical_devices("GPU")) > GPU_INDEX


def make_first_gpu_current() -> None:
    """Undoes what other libraries leave behind."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.set_device(0)


@contextlib.contextmanager
def current_gpu_kept() -> Iterator[None]:
    """Around calls of JAX and TensorFlow, which leave the GPU that they used last as the current one."""
    torch = module("torch")
    if torch is None or not torch.cuda.is_available():
        yield
        return
    current = torch.cuda.current_device()
    try:
        yield
    finally:
        torch.cuda.set_device(current)


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """PyTorch's current stream of the stream's GPU; the current GPU stays, where torch.cuda.stream() changes it."""
    cuda = module("torch").cuda
    current = cuda.current_device()
    with cuda.stream(stream), cuda.device(current):
        yield


@contextlib.contextmanager
def on_cupy_stream(stream: Any) -> Iterator[None]:
    """The stream of PyTorch is CuPy's current one, and its GPU the current GPU: CuPy works nowhere else."""
    cuda = module("cupy").cuda
    with cuda.Device(stream.device_index), cuda.ExternalStream(stream.cuda_stream, stream.device_index):
        yield


@contextlib.contextmanager
def capture(graph: Any, device: str = GPU) -> Iterator[None]:
    """torch.cuda.graph() on a GPU, which waits for it before; the current GPU stays.

    What other tests have left behind is freed before: JAX asks its streams for it, which ends a capture, and if that
    happened in one, JAX's streams would be of no use from then on. Threads of JAX's own ask them at any time, which
    ends what PyTorch captures by default (``capture_error_mode="global"``); so other threads are left alone here.
    """
    cuda = module("torch").cuda
    current = cuda.current_device()
    gc.collect()
    cuda.synchronize(device)
    with (
        cuda.graph(graph, stream=cuda.Stream(device), capture_error_mode="thread_local"),
        cuda.device(current),
    ):
        yield


def new_stream() -> Any:
    """A stream of PyTorch on the tests' GPU."""
    return module("torch").cuda.Stream(GPU)


def current_stream() -> Any:
    """PyTorch's current stream of the tests' GPU."""
    return module("torch").cuda.current_stream(GPU)


def event_now() -> Any:
    """An event of PyTorch behind all that was enqueued on the current stream of the tests' GPU."""
    event = module("torch").cuda.Event()
    event.record(current_stream())
    return event


def delay(cycles: int) -> None:
    """Keeps the current stream of the tests' GPU busy; 2e9 cycles are about a second."""
    cuda = module("torch").cuda
    with cuda.device(GPU):
        cuda._sleep(cycles)


def to_numpy(array: Any) -> np.ndarray:
    """The bytes of any framework's array, on the host."""
    if isinstance(array, np.ndarray):
        return array
    origin = type(array).__module__.partition(".")[0]
    if origin == "torch":
        array = array.detach().cpu()
        if array.dtype == module("torch").bfloat16:
            return array.view(module("torch").int16).numpy().view(ml_dtypes.bfloat16)
        return array.numpy()
    if origin == "cupy":
        return array.get()
    if origin == "tensorflow":
        return array.numpy()
    if hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] == 2 and origin not in ("jax", "jaxlib"):
        return to_numpy(module("torch").from_dlpack(array))
    return np.asarray(array)


def address_of(array: Any) -> int:
    """Where an array of any framework begins."""
    origin = type(array).__module__.partition(".")[0]
    if origin == "numpy":
        return array.ctypes.data
    if origin == "torch":
        return array.data_ptr()
    if origin == "cupy":
        return array.data.ptr
    if origin in ("jax", "jaxlib"):
        return array.unsafe_buffer_pointer()
    capsule = module("tensorflow").experimental.dlpack.to_dlpack(array)
    return module("torch").utils.dlpack.from_dlpack(capsule).data_ptr()


@dataclass(frozen=True)
class Framework:
    """One framework on one device ("cpu" or GPU); `table_device` is where its arrays are used."""

    name: str
    device: str
    table_device: str

    def array(self, host: np.ndarray) -> Any:
        host = np.ascontiguousarray(host) if host.ndim else host
        if self.name == "numpy":
            return host.copy()
        if self.name == "torch":
            torch = module("torch")
            if host.dtype == ml_dtypes.bfloat16:
                tensor = torch.from_numpy(host.view(np.int16).copy()).view(torch.bfloat16)
            else:
                tensor = torch.from_numpy(host.copy())
            return tensor.to(self.device)
        if self.name == "cupy":
            with module("cupy").cuda.Device(GPU_INDEX):
                return module("cupy").asarray(host)
        if self.name == "jax":
            with current_gpu_kept():
                return module("jax").device_put(host, self.jax_device())
        tensorflow = module("tensorflow")
        with current_gpu_kept(), tensorflow.device(self.tensorflow_device()):
            # identity: a constant may stay on the host
            return tensorflow.identity(tensorflow.constant(host))

    def jax_device(self) -> Any:
        devices = module("jax").devices("cpu" if self.device == "cpu" else "gpu")
        return devices[0 if self.device == "cpu" else GPU_INDEX]

    def tensorflow_device(self) -> str:
        return tensorflow_device(self.device)

    def owns(self, array: Any) -> bool:
        """Is it an array of this framework, on this device?"""
        origin = type(array).__module__.partition(".")[0]
        if origin.replace("jaxlib", "jax") != self.name:
            return False
        if self.name == "torch":
            return str(array.device) == self.device
        if self.name == "cupy":
            return bool(array.device.id == GPU_INDEX)
        if self.name == "jax":
            return bool(array.devices() == {self.jax_device()})
        if self.name == "tensorflow":
            return str(array.device).endswith(self.tensorflow_device())
        return True

    def takes(self, dtype: str) -> bool:
        """Does the framework have this dtype?"""
        return not (self.name == "cupy" and dtype == "bfloat16")

    def synchronize(self) -> None:
        if self.device == GPU and module("torch") is not None and sees_gpu("torch"):
            module("torch").cuda.synchronize(GPU)


PLACES = [
    Framework("numpy", "cpu", "cpu"),
    Framework("torch", "cpu", "cpu"),
    Framework("jax", "cpu", "cpu"),
    Framework("tensorflow", "cpu", "cpu"),
    Framework("torch", GPU, GPU),
    Framework("cupy", GPU, GPU),
    Framework("jax", GPU, GPU),
    Framework("tensorflow", GPU, GPU),
    Framework("numpy", "cpu", GPU),
]


def spread(device: str, shards: int) -> Any:
    """What ``device=`` is given for so many shards there; 0: for a single table."""
    return [device] * shards if shards else device


def platform_of(device: str) -> str:
    """A device's name without its number, for the names of tests."""
    return device.partition(":")[0]


def place_name(place: Framework) -> str:
    return f"{place.name}-{platform_of(place.table_device)}"


def nearest_framework(device: str) -> Framework:
    """The nearest framework for a device: NumPy on the host, PyTorch on the GPU."""
    return Framework("numpy" if device == "cpu" else "torch", device, device)


def tensorflow_device(device: str) -> str:
    """TensorFlow's name for a device."""
    return "CPU:0" if device == "cpu" else f"GPU:{GPU_INDEX}"


def gpu_count() -> int:
    """The GPUs that tables can be on."""
    return len(gpuhash._core.platform_devices("cuda")) if "cuda" in gpuhash._core.platform_names() else 0


def missing_gpu() -> str | None:
    """Why tables cannot be on the tests' GPU; None where they can."""
    if "cuda" not in gpuhash._core.platform_names():
        return "gpuhash was built without CUDA"
    if gpu_count() == 0:
        return gpuhash._core.platform_unavailable_reason("cuda")
    if gpu_count() <= GPU_INDEX:
        return f"there is no {GPU} here, where GPUHASH_TEST_DEVICE puts the tables"
    return None


def need_cuda() -> None:
    """Skip where there is no GPU, unless one is required."""
    reason = missing_gpu()
    if reason is None:
        return
    if os.environ.get("GPUHASH_REQUIRE_CUDA") == "1":
        pytest.fail(f"GPUHASH_REQUIRE_CUDA=1, but: {reason}")
    pytest.skip(reason)


def need_place(place: Framework) -> Framework:
    if place.table_device != "cpu":
        need_cuda()
    if module(place.name) is None:
        pytest.skip(f"{place.name} is not installed")
    if place.device != "cpu" and not sees_gpu(place.name):
        pytest.skip(f"{place.name} sees no GPU")
    return place
