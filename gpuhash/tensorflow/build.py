"""Compiles the op library against the TensorFlow that is installed.

At the first ``import gpuhash.tensorflow`` the library is compiled and kept in a cache, by a key made of everything that
goes into it. ``GPUHASH_TENSORFLOW=ON`` makes it ahead, while gpuhash itself is built; then this file runs as a script,
before there is a package to import.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCES = ("ops.cc", "kernels.cc")
HEADERS = ("context.h", "table_resource.h")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = Path(__file__).resolve().parent


def find_compiler() -> list[str] | None:
    """The command of the C++ compiler: that of the environment variable CXX, or else c++ or g++; None without one."""
    given = os.environ.get("CXX")
    for command in [shlex.split(given)] if given else [["c++"], ["g++"]]:
        path = shutil.which(command[0])
        if path is not None:
            return [path, *command[1:]]
    return None


def need_compiler() -> list[str]:
    """As ``find_compiler``; ImportError without one."""
    compiler = find_compiler()
    if compiler is not None:
        return compiler
    given = os.environ.get("CXX")
    raise ImportError(
        (f"CXX={given!r} names no compiler" if given else "no C++ compiler is installed, neither c++ nor g++")
        + "; gpuhash.tensorflow compiles its ops against your TensorFlow at the first import: install g++ (on Debian "
        "and Ubuntu: apt install g++) or name a compiler in the environment variable CXX"
    )


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def prebuilt_name() -> str:
    """The file name of a library that was made ahead, for this version of TensorFlow."""
    import tensorflow as tf

    return f"libgpuhash_tensorflow-{tf.__version__}.so"


def compile_library(output: Path, include: Path, library: Path, runtime_path: str) -> None:
    """Compiles the sources side by side and links them.

    Parameters
    ----------
    output
        The library; it appears whole or not at all.
    include
        The folder of libgpuhash's headers.
    library
        The folder of libgpuhash.so.
    runtime_path
        Where the library looks for it when it is loaded.

    Raises
    ------
    ImportError
        With the compiler's words, where it fails.
    """
    import tensorflow as tf

    compiler = need_compiler()
    flags = [*tf.sysconfig.get_compile_flags(), "-O2", "-fPIC", "-DNDEBUG", f"-I{include}", f"-I{_FOLDER}"]
    print(
        f"gpuhash: compiling its ops for TensorFlow {tf.__version__} with {compiler[0]} (once, about 20 seconds) ...",
        file=sys.stderr,
        flush=True,
    )
    start = time.monotonic()
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".compiling-") as folder:
        objects = [Path(folder, source).with_suffix(".o") for source in SOURCES]
        compilations = [
            [*compiler, *flags, "-c", str(_FOLDER / source), "-o", str(made)]
            for source, made in zip(SOURCES, objects, strict=True)
        ]
        _run(compilations)
        linked = Path(folder, output.name)
        _run(
            [
                [
                    *compiler,
                    "-shared",
                    *map(str, objects),
                    *tf.sysconfig.get_link_flags(),
                    f"-L{library}",
                    "-l:libgpuhash.so",
                    f"-Wl,-rpath,{runtime_path}",
                    "-o",
                    str(linked),
                ]
            ]
        )
        linked.chmod(stat.S_IMODE(linked.stat().st_mode) & ~_WRITABLE_BY_OTHERS)
        linked.replace(output)
    print(f"gpuhash: compiled in {time.monotonic() - start:.0f} seconds: {output}", file=sys.stderr, flush=True)


def _run(commands: list[list[str]]) -> None:
    """Runs the commands at the same time."""
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for command in commands
    ]
    outputs = [process.communicate()[0] for process in running]
    for command, process, output in zip(commands, running, outputs, strict=True):
        if process.returncode != 0:
            raise ImportError(
                f"the compiler ended with {process.returncode} on gpuhash's ops for TensorFlow: {shlex.join(command)}\n"
                f"{output}"
            )


def cache_folder() -> Path:
    """Where compiled libraries are kept: GPUHASH_CACHE, or gpuhash in the user's cache."""
    given = os.environ.get("GPUHASH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gpuhash")


def check_trusted(path: Path, kind: int) -> None:
    """ImportError unless nobody but this user and root can have written what lies there.

    A library that is loaded runs with all of the user's rights. Whoever else may write into the cache could put one
    there under the name that is looked for.

    Parameters
    ----------
    path
        Without symbolic links in it.
    kind
        ``stat.S_IFREG`` or ``stat.S_IFDIR``, what it has to be.
    """
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_IFMT(found.st_mode) != kind:
        fault = "is not a regular file" if kind == stat.S_IFREG else "is not a folder"
    elif found.st_uid not in (0, os.geteuid()):
        fault = f"belongs to user {found.st_uid}, neither to user {os.geteuid()}, who runs this, nor to root"
    elif mode & _WRITABLE_BY_OTHERS:
        fault = f"can be written by other users (its mode is {mode:04o})"
    else:
        return
    advice = "remove it" if kind == stat.S_IFREG else "take their right to write and empty it (chmod go-w)"
    raise ImportError(
        f"gpuhash.tensorflow loads no compiled ops that others may have made: {path} {fault}; {advice}, or name a "
        "folder of your own in the environment variable GPUHASH_CACHE"
    )


def check_folder(folder: Path) -> None:
    """As ``check_trusted`` of a cache; nor may just anybody be able to put another folder in its place."""
    check_trusted(folder, stat.S_IFDIR)
    for parent in folder.parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ImportError(
                f"gpuhash.tensorflow loads no compiled ops from {folder}: every user can rename what lies in {parent} "
                f"(its mode is {mode:04o}), and put another folder there; set its sticky bit (chmod +t), or name a "
                "folder of your own in the environment variable GPUHASH_CACHE"
            )


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part + b"\0")
    return digest.hexdigest()[:16]


def _name(include: Path, library: Path, compiler: list[str] | None) -> str:
    """Of everything that the library depends on; with a ``*`` for the compiler where there is none."""
    import tensorflow as tf

    texts = [
        tf.__version__,
        tf.version.GIT_VERSION,
        *tf.sysconfig.get_compile_flags(),
        *tf.sysconfig.get_link_flags(),
        str(library),
    ]
    files = [*(_FOLDER / name for name in SOURCES + HEADERS), *sorted(include.glob("gpuhash/*.hpp"))]
    sources = _digest(
        [*map(str.encode, texts), *(part for file in files for part in (os.fsencode(file.name), file.read_bytes()))]
    )
    made_by = _digest(map(str.encode, [*compiler, _output([*compiler, "--version"])])) if compiler else "*"
    return f"libgpuhash_tensorflow-{sources}-{made_by}.so"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given up when the file is closed, also by the end of the process
        yield


def find_or_compile(package: Path) -> Path:
    """The op library for this TensorFlow; compiled if need be, by one process while others wait for it.

    Parameters
    ----------
    package
        The folder of libgpuhash.so, with its headers in the folder ``include``. A library that was made ahead lies
        there, and is trusted as the rest of the package is.

    Raises
    ------
    ImportError
        Where there is no compiler or it fails, and where the cache cannot be written or others can write into it.
    """
    ahead = package / "tensorflow" / prebuilt_name()
    if ahead.exists():
        return ahead
    include = package / "include"
    name = _name(include, package, find_compiler())
    folder = Path(os.path.realpath(cache_folder()))  # what is checked is what is loaded
    try:
        if folder.exists():
            check_folder(folder)
            for known in folder.glob(name):
                check_trusted(known, stat.S_IFREG)
                return known
        need_compiler()
        output = folder / name
        folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        check_folder(folder)
        with _locked(output.with_suffix(".lock")):
            if not output.exists():
                compile_library(output, include, package, str(package))
        check_trusted(output, stat.S_IFREG)
    except OSError as error:
        raise ImportError(
            f"gpuhash.tensorflow cannot keep its compiled ops in {folder}: {error}; name another folder in the "
            "environment variable GPUHASH_CACHE"
        ) from error
    return output


def main() -> None:
    """Makes the library ahead."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--include", type=Path, required=True, help="the folder of libgpuhash's headers")
    parser.add_argument("--library", type=Path, required=True, help="the folder of libgpuhash.so")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write into")
    arguments = parser.parse_args()
    # Installed, it lies in gpuhash/tensorflow/, and libgpuhash.so in gpuhash/.
    compile_library(arguments.output / prebuilt_name(), arguments.include, arguments.library, "$ORIGIN/..")


if __name__ == "__main__":
    main()
