"""What the build backend adds to scikit-build-core; a whole build takes too long to be a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BACKEND = Path(__file__).resolve().parent.parent / "build_backend"


def run(program: str, *arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-I",
            "-c",
            f"import sys; sys.path.insert(0, {str(BACKEND)!r})\n{program}",
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=60,
    )


NEED = "from cxx_compiler import need_compiler; need_compiler({settings!r}); print('there')"
NOT_TOLD = {
    "CXX": "",
    "CMAKE_ARGS": "",
    "SKBUILD_CMAKE_ARGS": "",
    "SKBUILD_CMAKE_DEFINE": "",
    "CMAKE_TOOLCHAIN_FILE": "",
}


@pytest.mark.parametrize("compiler", ["", "/nonexistent/g++ -m64"])
def test_without_a_compiler_one_sentence_says_what_to_install(tmp_path, compiler):
    done = run(NEED.format(settings=None), **{**NOT_TOLD, "PATH": str(tmp_path), "CXX": compiler})
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert "apt install g++" in done.stderr
    assert ("CXX='/nonexistent/g++ -m64' names no program" in done.stderr) is bool(compiler)


@pytest.mark.parametrize(
    ("settings", "environment"),
    [
        (None, {"CXX": "my-c++ -m64"}),
        (None, {}),
        ({"cmake.define.CMAKE_CXX_COMPILER": "/opt/c++"}, {"PATH": ""}),
        (None, {"PATH": "", "CMAKE_ARGS": "-DCMAKE_TOOLCHAIN_FILE=arm.cmake"}),
        (None, {"PATH": "", "CMAKE_TOOLCHAIN_FILE": "arm.cmake"}),
    ],
    ids=["CXX", "in PATH", "setting", "arguments", "toolchain"],
)
def test_a_compiler_that_cmake_would_find_is_enough(tmp_path, settings, environment):
    for name in ("my-c++", "clang++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    done = run(NEED.format(settings=settings), **{**NOT_TOLD, "PATH": str(tmp_path), **environment})
    assert done.stdout == "there\n", done.stderr


def built(source: Path, **state: Any) -> Path:
    """A build folder as scikit-build-core leaves it."""
    folder = source / "build" / "wheel-cp311"
    for name in ("CMakeFiles/3.31.1/CMakeCXXCompiler.cmake", "CMakeFiles/_core.dir/table.cpp.o", "CMakeCache.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / ".skbuild-info.json").write_text(json.dumps(state))
    return folder


KEEP = "from pathlib import Path; from kept_objects import keep_objects; keep_objects(*map(Path, sys.argv[1:]))"


def test_objects_of_an_earlier_environment_stay(tmp_path):
    """scikit-build-core compares its path with the one of the last build."""
    folder = built(tmp_path, source_dir=str(tmp_path), skbuild_path="/tmp/pip-build-env-1/scikit_build_core", more=1)
    assert run(KEEP, tmp_path, "/tmp/pip-build-env-2/scikit_build_core").returncode == 0
    assert (folder / "CMakeFiles/_core.dir/table.cpp.o").exists()
    assert not (folder / "CMakeCache.txt").exists()  # it names what lay in the environment
    assert not (folder / "CMakeFiles/3.31.1").exists()
    state = json.loads((folder / ".skbuild-info.json").read_text())
    assert state == {"source_dir": str(tmp_path), "skbuild_path": "/tmp/pip-build-env-2/scikit_build_core", "more": 1}


@pytest.mark.parametrize(
    "state",
    [
        {"source_dir": "/elsewhere", "skbuild_path": "/tmp/1"},
        {"source_dir": "the source", "skbuild_path": "/tmp/2"},
        {"source_dir": "the source"},
    ],
    ids=["of other sources", "of the same environment", "of another form"],
)
def test_other_build_folders_are_left_alone(tmp_path, state):
    state = {key: str(tmp_path) if text == "the source" else text for key, text in state.items()}
    folder = built(tmp_path, **state)
    assert run(KEEP, tmp_path, "/tmp/2").returncode == 0
    assert (folder / "CMakeCache.txt").exists()
    assert json.loads((folder / ".skbuild-info.json").read_text()) == state


def test_a_build_that_was_broken_off_is_left_alone(tmp_path):
    folder = built(tmp_path)
    (folder / ".skbuild-info.json").write_text("{")
    assert run(KEEP, tmp_path, "/tmp/2").returncode == 0
    assert (folder / ".skbuild-info.json").read_text() == "{"


def test_compiler_wheels_are_unpacked_once(tmp_path):
    """Their copy is found where it was, and the next build asks for no wheels."""
    nvcc = tmp_path / "environment" / "cu13" / "bin" / "nvcc"
    (nvcc.parent.parent / "include").mkdir(parents=True)
    (nvcc.parent.parent / "include" / "cuda.h").write_text("header")
    nvcc.parent.mkdir()
    nvcc.write_text("compiler")
    program = (
        "import cuda_compiler, pathlib\n"
        "cuda_compiler.KEPT = pathlib.Path(sys.argv[1])\n"
        "cuda_compiler.toolkit_nvcc = lambda: None\n"
        "cuda_compiler.wheels_exist = lambda: True\n"
        "nvcc = pathlib.Path(sys.argv[2])\n"
        "print(cuda_compiler.requirements() == [cuda_compiler.WHEELS], end=' ')\n"
        "print(cuda_compiler.keep(nvcc), cuda_compiler.keep(nvcc), end=' ')\n"
        "print(cuda_compiler.requirements(), cuda_compiler.kept_nvcc())"
    )
    kept = tmp_path / "build" / "cuda"
    done = run(program, kept, nvcc, GPUHASH_CUDA="AUTO")
    copy = kept / "bin" / "nvcc"
    assert done.stdout == f"True {copy} {copy} [] {copy}\n", done.stderr
    assert (kept / "include" / "cuda.h").read_text() == "header"
    assert [path.name for path in kept.parent.iterdir()] == ["cuda"]
    unwritable = tmp_path / "a file" / "cuda"
    unwritable.parent.write_text("")
    assert str(nvcc) in run(program, unwritable, nvcc, GPUHASH_CUDA="AUTO").stdout


def test_a_source_folder_that_cannot_be_written_says_what_to_do(tmp_path):
    program = (
        "import os, pathlib, kept_objects\n"
        "os.access = lambda path, mode: False\n"  # root may write everywhere
        "kept_objects.need_build_folder(pathlib.Path(sys.argv[1]), {'build-dir': '/tmp/other'})\n"
        "print('named')\n"
        "kept_objects.need_build_folder(pathlib.Path(sys.argv[1]))"
    )
    done = run(program, tmp_path)
    assert done.stdout == "named\n"
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert "--config-settings=build-dir=" in done.stderr
