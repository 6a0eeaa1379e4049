"""C++ programs that answer for parts of the library, compiled once a run, whichever worker needs them first."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuhash import _core
from gpuhash.building.compiled_ops import find_compiler

SOURCES = Path(__file__).resolve().parent.parent / "answers"
CPP = SOURCES.parent.parent / "cpp"
PACKAGE = Path(_core.__file__).resolve().parent


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if own.name.startswith("popen-") else own


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """The file, made by the first process that asks, while others wait for it."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            make(unfinished)
            unfinished.replace(path)
    return path


def compile_program(output: Path, *sources: Path, options: tuple[str, ...] = ()) -> None:
    """Skips the test without a compiler, or without the library's sources."""
    compiler = find_compiler()
    if compiler is None or not CPP.is_dir():
        pytest.skip("needs a C++ compiler and the sources")
    command = [*compiler, "-std=c++20", *map(str, sources), f"-I{CPP}", f"-I{CPP / 'include'}", *options, "-pthread"]
    subprocess.run([*command, "-o", str(output)], check=True, timeout=300)


def compile_answers(output: Path) -> None:
    """tests/answers/, but for what has to be compiled in another way."""
    names = ("main", "chain_steps", "counted_batches", "forecasts", "growth_rule", "hashes", "requests", "size_ledger")
    # What the library does not show to others.
    hidden = ("counted_batch", "forecast", "growth_rule", "repeated_values", "size_ledger")
    sources = [*(SOURCES / f"{name}.cpp" for name in names), *(CPP / "table" / f"{name}.cpp" for name in hidden)]
    library = (f"-L{PACKAGE}", "-l:libgpuhash.so", f"-Wl,-rpath,{PACKAGE}")
    compile_program(output, *sources, options=library)


def compile_kept_blocks(output: Path) -> None:
    """Looks for freed memory in use; a build of the library that looks keeps nothing, and here the program keeps."""
    core = [CPP / "core" / name for name in ("fork_safe_mutex.cpp", "machine_memory.cpp")]
    sources = (SOURCES / "kept_blocks.cpp", *core)
    try:
        compile_program(output, *sources, options=("-g", "-fsanitize=address", "-U__SANITIZE_ADDRESS__"))
    except subprocess.CalledProcessError:  # not every compiler comes with what looks
        compile_program(output, *sources)
