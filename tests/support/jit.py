"""JAX's compiled programs as the tests use them: its devices, and the package gpuhash.jax."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from support.frameworks import Framework, current_gpu_kept, module, need_cuda, sees_gpu


@functools.cache
def gpuhash_jax() -> Any:
    """The package, compiled if need be; None without JAX."""
    return None if module("jax") is None else importlib.import_module("gpuhash.jax")


@dataclass(frozen=True)
class Programs:
    """JAX and gpuhash.jax on one device, where tables and arrays are."""

    device: str

    @property
    def jax(self) -> Any:
        return module("jax")

    @property
    def ours(self) -> Any:
        return gpuhash_jax()

    @property
    def on_host(self) -> bool:
        return self.device == "cpu"

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What a program raises when it runs; a ValueError before JAX 0.7, for some of XLA's codes."""
        return (self.jax.errors.JaxRuntimeError, ValueError)

    def put(self, host: Any) -> Any:
        """The array on the device."""
        return Framework("jax", self.device, self.device).array(np.asarray(host))

    def compiled(self, function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        """The function as it is, or compiled."""
        return self.jax.jit(function) if mode == "jit" else function

    def fails(self, work: Callable[[], Any], message: str) -> None:
        """The work fails, at once or when its program runs, and says so."""
        with pytest.raises(self.failures, match=message), current_gpu_kept():
            self.jax.block_until_ready(work())


def need_jax(device: str = "cpu") -> Programs:
    """Skips where JAX is missing, or does not see the device."""
    if device != "cpu":
        need_cuda()
    if gpuhash_jax() is None:
        pytest.skip("jax is not installed")
    if device != "cpu" and not sees_gpu("jax"):
        pytest.skip("jax sees no GPU")
    return Programs(device)


def check_calls(lowered: Any, expected: dict[str, int]) -> None:
    """The program calls each handler as often as this, also when XLA has compiled it, and gives it no slices.

    Parameters
    ----------
    lowered
        What ``jax.jit(function).lower(...)`` gives.
    expected
        By the names of handlers, without their prefix.
    """
    text = lowered.as_text()
    assert Counter(re.findall(r"@gpuhash_jax_(\w+)", text)) == expected
    behind = set(re.findall(r"(%\w+) = stablehlo.optimization_barrier", text))
    for operands in re.findall(r"@gpuhash_jax_\w+\(([^)]*)\)", text):
        assert set(operands.split(", ")[1:]) <= behind, (
            f"{operands}: the first is the state, and the others are behind barriers"
        )
    compiled = lowered.compile().as_text()
    assert Counter(re.findall(r'custom_call_target="gpuhash_jax_(\w+)"', compiled)) == expected


def in_new_process(program: str, *arguments: str) -> str:
    """Runs a program with `jax` on the CPU, and returns what it prints."""
    need_jax()
    script = "import os\nos.environ['JAX_PLATFORMS'] = 'cpu'\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-P", "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
