"""Cases that need a GPU: where there is none they are left out and counted, which takes less than to skip them."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from support.frameworks import GPU, Framework, missing_gpu

_FIXTURES = {"cuda", "torch_cuda"}


def needs_gpu(value: object) -> bool:
    """Is it a parameter with which a case needs a GPU?"""
    if isinstance(value, Framework):
        return needs_gpu(value.device) or needs_gpu(value.table_device)
    if isinstance(value, tuple | list):
        return any(map(needs_gpu, value))
    return isinstance(value, str) and (value == GPU or value.startswith("cuda"))


def is_gpu_case(item: pytest.Item) -> bool:
    """By its parameters, its fixtures, or the mark ``gpu``."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return (
        any(map(needs_gpu, parameters))
        or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or item.get_closest_marker("gpu") is not None
    )


def left_out(config: pytest.Config, items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those that need a GPU that is not here. A run that requires one, or that is recorded, has them all."""
    if missing_gpu() is None or os.environ.get("GPUHASH_REQUIRE_CUDA") == "1" or config.getoption("--gpu-record"):
        return set()
    return {item for item in items if is_gpu_case(item)}
