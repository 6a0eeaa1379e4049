"""Small C++ programs that answer for a part of the library by itself, which no call of the package can ask alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuhash.compiled_ops import find_compiler

TESTS = Path(__file__).resolve().parent.parent
CPP = TESTS.parent / "cpp"


def compile_program(folder: Path, *sources: Path, options: tuple[str, ...] = ()) -> Path:
    """The program made of the sources, in the folder. Skips the test without a compiler, or without the library's."""
    compiler = find_compiler()
    if compiler is None or not CPP.is_dir():
        pytest.skip("needs a C++ compiler and the sources")
    program = folder / sources[0].stem
    command = [*compiler, "-std=c++20", *options, f"-I{CPP}", f"-I{CPP / 'include'}", *map(str, sources), "-pthread"]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=300)
    return program
