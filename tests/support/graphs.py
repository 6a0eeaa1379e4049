"""TensorFlow's graphs as the tests use them: its devices, and the package gpuhash.tensorflow."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest

from support.frameworks import module, need_cuda, sees_gpu, tensorflow_device


@functools.cache
def gpuhash_tensorflow() -> Any:
    """The package, compiled if need be; None without TensorFlow."""
    return None if module("tensorflow") is None else importlib.import_module("gpuhash.tensorflow")


def need_tensorflow(device: str = "cpu") -> tuple[Any, Any, str]:
    """TensorFlow, gpuhash.tensorflow and TensorFlow's name for the device; skips where one of them is missing."""
    if device != "cpu":
        need_cuda()
    if gpuhash_tensorflow() is None:
        pytest.skip("tensorflow is not installed")
    if device != "cpu" and not sees_gpu("tensorflow"):
        pytest.skip("tensorflow sees no GPU")
    return module("tensorflow"), gpuhash_tensorflow(), tensorflow_device(device)
