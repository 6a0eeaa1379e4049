"""TensorFlow's graphs as the tests use them: its devices, and the package gpuhash.tensorflow."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest
from frameworks import module, need_cuda, sees_gpu

#: By the device's name in gpuhash.
TENSORFLOW_DEVICES = {"cpu": "CPU:0", "cuda": "GPU:0"}


@functools.cache
def gpuhash_tensorflow() -> Any:
    """The package, compiled if need be; None without TensorFlow."""
    return None if module("tensorflow") is None else importlib.import_module("gpuhash.tensorflow")


def need_tensorflow(device: str = "cpu") -> tuple[Any, Any, str]:
    """TensorFlow, gpuhash.tensorflow and TensorFlow's name for the device; skips where one of them is missing."""
    if device == "cuda":
        need_cuda()
    if gpuhash_tensorflow() is None:
        pytest.skip("tensorflow is not installed")
    if device == "cuda" and not sees_gpu("tensorflow"):
        pytest.skip("tensorflow sees no GPU")
    return module("tensorflow"), gpuhash_tensorflow(), TENSORFLOW_DEVICES[device]
