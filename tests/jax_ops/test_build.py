"""The handlers are compiled once, kept, and found again; all else of the builder is in tests/tensorflow_ops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.compiler import StandIn
from support.jit import need_jax

from gpuhash import _core

PROGRAM = """
import gpuhash, gpuhash.jax as ours
table = gpuhash.HashTable("int32", "int32", default=-1)
state, _ = ours.insert(ours.from_table(table), [1], [2])
print(ours.library.path, ours.find(state, [1, 2])[1][0].tolist())
"""


def start(cache, compiler):
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "GPUHASH_CACHE": str(cache), "JAX_PLATFORMS": "cpu", "CXX": str(compiler.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_that_start_at_once_compile_once(tmp_path):
    programs = need_jax()
    ops = programs.ours.build.op_library
    if (Path(_core.__file__).parent / "jax" / ops.prebuilt_name).exists():
        pytest.skip("the library was compiled ahead")
    compiler = StandIn(tmp_path, ops.find_or_compile(Path(_core.__file__).resolve().parent))
    processes = [start(tmp_path, compiler), start(tmp_path, compiler)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len({out.split()[0] for out, _ in outputs}) == 1
    assert all(out.split(maxsplit=1)[1].strip() == "[2, -1]" for out, _ in outputs)
    assert sum("compiling its ops for JAX" in err for _, err in outputs) == 1
    assert compiler.times_linked() == 1
    again = start(tmp_path, compiler)
    _, err = again.communicate()
    assert again.returncode == 0
    assert "compil" not in err


def test_a_library_made_ahead_is_used(tmp_path):
    ops = need_jax().ours.build.op_library
    ahead = tmp_path / "jax" / ops.prebuilt_name
    ahead.parent.mkdir()
    ahead.touch()
    assert ops.find_or_compile(tmp_path) == ahead
