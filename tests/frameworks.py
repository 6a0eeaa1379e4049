"""Array frameworks as the tests see them: NumPy arrays in, NumPy arrays out, whatever lies between."""

from __future__ import annotations

import functools
import importlib
import os
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuhash


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
        return bool(module("torch").cuda.is_available())
    if name == "cupy":
        try:
            return bool(module("cupy").cuda.runtime.getDeviceCount() > 0)
        except Exception:  # no driver: CuPy raises its own runtime error
            return False
    if name == "jax":
        try:
            return bool(module("jax").devices("gpu"))
        except RuntimeError:
            return False
    return name == "tensorflow" and bool(module("tensorflow").config.list_physical_devices("GPU"))


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
    """One framework on one device ("cpu" or "cuda"); `table_device` is where its arrays are used."""

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
            return module("cupy").asarray(host)
        if self.name == "jax":
            jax = module("jax")
            return jax.device_put(host, jax.devices("gpu" if self.device == "cuda" else "cpu")[0])
        tensorflow = module("tensorflow")
        with tensorflow.device("/GPU:0" if self.device == "cuda" else "/CPU:0"):
            # identity: a constant may stay on the host
            return tensorflow.identity(tensorflow.constant(host))

    def owns(self, array: Any) -> bool:
        """Is it an array of this framework, on this device?"""
        origin = type(array).__module__.partition(".")[0]
        if origin.replace("jaxlib", "jax") != self.name:
            return False
        if self.name == "torch":
            return bool(array.device.type == self.device)
        if self.name == "jax":
            return next(iter(array.devices())).platform == ("gpu" if self.device == "cuda" else "cpu")
        if self.name == "tensorflow":
            return ("GPU" in array.device) == (self.device == "cuda")
        return True

    def takes(self, dtype: str) -> bool:
        """Does the framework have this dtype?"""
        return not (self.name == "cupy" and dtype == "bfloat16")

    def synchronize(self) -> None:
        if self.device == "cuda" and module("torch") is not None and module("torch").cuda.is_available():
            module("torch").cuda.synchronize()


PLACES = [
    Framework("numpy", "cpu", "cpu"),
    Framework("torch", "cpu", "cpu"),
    Framework("jax", "cpu", "cpu"),
    Framework("tensorflow", "cpu", "cpu"),
    Framework("torch", "cuda", "cuda"),
    Framework("cupy", "cuda", "cuda"),
    Framework("jax", "cuda", "cuda"),
    Framework("tensorflow", "cuda", "cuda"),
    Framework("numpy", "cpu", "cuda"),
]


def place_name(place: Framework) -> str:
    return f"{place.name}-{place.table_device}"


def need_cuda() -> None:
    """Skip where there is no GPU, unless one is required."""
    if "cuda" not in gpuhash._core.platform_names():
        reason = "gpuhash was built without CUDA"
    elif gpuhash._core.platform_devices("cuda"):
        return
    else:
        reason = gpuhash._core.platform_unavailable_reason("cuda")
    if os.environ.get("GPUHASH_REQUIRE_CUDA") == "1":
        pytest.fail(f"GPUHASH_REQUIRE_CUDA=1, but: {reason}")
    pytest.skip(reason)


def need_place(place: Framework) -> Framework:
    if place.table_device == "cuda":
        need_cuda()
    if module(place.name) is None:
        pytest.skip(f"{place.name} is not installed")
    if place.device == "cuda" and not sees_gpu(place.name):
        pytest.skip(f"{place.name} sees no GPU")
    return place
