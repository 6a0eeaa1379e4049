"""A C++ program that finds gpuhash by CMake, in the package as it is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuhash import _core

PACKAGE = Path(_core.__file__).parent
SOURCE = Path(__file__).parent / "consumer"
ANSWER = ["3 keys", "4: yes 2.5", "5: no 0", "3: yes 0.5"]


#: The programs of the environment that the tests run in come first, whether or not it is activated.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def run(*command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": PATH},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _tools() -> None:
    compiler = shlex.split(os.environ.get("CXX", "c++"))[0]
    if shutil.which(compiler, path=PATH) is None:
        pytest.skip(f"no C++ compiler is installed: {compiler}")
    if shutil.which("cmake", path=PATH) is None:
        pytest.skip("cmake is not installed: pip install cmake ninja")


def build_and_run(folder: Path, option: str) -> list[str]:
    """Lines that the program prints."""
    cmake = shutil.which("cmake", path=PATH)
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=PATH) else []
    run(cmake, *generator, "-S", SOURCE, "-B", folder, option, "-DCMAKE_BUILD_TYPE=Release")
    run(cmake, "--build", folder)
    return run(folder / "consumer").splitlines()


@pytest.mark.parametrize("by", ["gpuhash_DIR", "CMAKE_PREFIX_PATH"])
def test_a_program_that_finds_the_package(by, tmp_path):
    printed = run(sys.executable, "-P", "-m", "gpuhash", "--cmake-dir").strip()
    assert build_and_run(tmp_path, f"-D{by}={printed if by == 'gpuhash_DIR' else PACKAGE}") == ANSWER


def test_the_package_may_be_moved(tmp_path):
    """Nothing in what is installed names the folders in which it was built or installed."""
    moved = tmp_path / "elsewhere" / "gpuhash"
    moved.mkdir(parents=True)
    for folder in ("cmake", "include"):
        shutil.copytree(PACKAGE / folder, moved / folder)
    shutil.copy(PACKAGE / "libgpuhash.so", moved)
    for file in (moved / "cmake").iterdir():
        text = file.read_text()
        assert str(PACKAGE) not in text
        assert str(SOURCE.parents[1]) not in text
    assert build_and_run(tmp_path / "build", f"-DCMAKE_PREFIX_PATH={moved}") == ANSWER
    assert str(moved / "libgpuhash.so") in run("ldd", tmp_path / "build" / "consumer")
