"""Compiles op libraries against the frameworks that are installed, and keeps them in a cache.

At the first import of ``gpuhash.tensorflow``, for instance, its library is compiled, and kept under a name made of
everything that goes into it. cmake/compile_ops.py makes one ahead, while gpuhash itself is built. So this module
imports nothing of gpuhash, whose extension is not there yet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
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

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclasses.dataclass(frozen=True)
class OpLibrary:
    """What is compiled for one framework.

    Parameters
    ----------
    module
        The package that loads it, "gpuhash.tensorflow".
    framework
        The framework's name in messages, "TensorFlow".
    version
        The framework's version. What was made ahead bears it, and serves no other.
    folder
        Of the sources and headers; installed, that of a library made ahead.
    units, headers
        File names. The sources of a unit are compiled as one, as each of them would read the framework's headers anew;
        their names may not meet.
    compile_flags, link_flags
        For the compiler: where the framework's headers and libraries are, and the C++ standard.
    seconds
        About how long it takes, for the message.
    identity
        What else tells one build of the framework from another.
    """

    module: str
    framework: str
    version: str
    folder: Path
    units: tuple[tuple[str, ...], ...]
    headers: tuple[str, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    seconds: int
    identity: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """What the file names of this library begin with."""
        return f"libgpuhash_{self.module.rpartition('.')[2]}"

    @property
    def prebuilt_name(self) -> str:
        """The file name of a library that was made ahead, for this version of the framework."""
        return f"{self.stem}-{self.version}.so"

    def need_compiler(self) -> list[str]:
        """As ``find_compiler``; ImportError without one."""
        compiler = find_compiler()
        if compiler is not None:
            return compiler
        given = os.environ.get("CXX")
        raise ImportError(
            (f"CXX={given!r} names no compiler" if given else "no C++ compiler is installed, neither c++ nor g++")
            + f"; {self.module} compiles its ops against your {self.framework} at the first import: install g++ (on "
            "Debian and Ubuntu: apt install g++) or name a compiler in the environment variable CXX"
        )

    def compile(self, output: Path, include: Path, library: Path, runtime_path: str) -> None:
        """Compiles the units side by side and links them.

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
        compiler = self.need_compiler()
        flags = [*self.compile_flags, "-O2", "-fPIC", "-DNDEBUG", f"-I{include}", f"-I{self.folder}"]
        print(
            f"gpuhash: compiling its ops for {self.framework} {self.version} with {compiler[0]} (once, about "
            f"{self.seconds} seconds) ...",
            file=sys.stderr,
            flush=True,
        )
        start = time.monotonic()
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".compiling-") as folder:
            units = [Path(folder, f"unit_{number}.cc") for number in range(len(self.units))]
            for unit, sources in zip(units, self.units, strict=True):
                unit.write_text("".join(f'#include "{self.folder / source}"\n' for source in sources))
            objects = [unit.with_suffix(".o") for unit in units]
            self._run(
                [
                    [*compiler, *flags, "-c", str(unit), "-o", str(made)]
                    for unit, made in zip(units, objects, strict=True)
                ]
            )
            linked = Path(folder, output.name)
            self._run(
                [
                    [
                        *compiler,
                        "-shared",
                        *map(str, objects),
                        *self.link_flags,
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

    def _run(self, commands: list[list[str]]) -> None:
        """Runs the commands at the same time."""
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command in commands
        ]
        outputs = [process.communicate()[0] for process in running]
        for command, process, output in zip(commands, running, outputs, strict=True):
            if process.returncode != 0:
                raise ImportError(
                    f"the compiler ended with {process.returncode} on gpuhash's ops for {self.framework}: "
                    f"{shlex.join(command)}\n{output}"
                )

    def check_trusted(self, path: Path, kind: int) -> None:
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
            f"{self.module} loads no compiled ops that others may have made: {path} {fault}; {advice}, or name a "
            "folder of your own in the environment variable GPUHASH_CACHE"
        )

    def check_folder(self, folder: Path) -> None:
        """As ``check_trusted`` of a cache; nor may just anybody be able to put another folder in its place."""
        self.check_trusted(folder, stat.S_IFDIR)
        for parent in folder.parents:
            mode = stat.S_IMODE(parent.stat().st_mode)
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise ImportError(
                    f"{self.module} loads no compiled ops from {folder}: every user can rename what lies in {parent} "
                    f"(its mode is {mode:04o}), and put another folder there; set its sticky bit (chmod +t), or name a "
                    "folder of your own in the environment variable GPUHASH_CACHE"
                )

    def _name(self, include: Path, library: Path, compiler: list[str] | None) -> str:
        """Of everything that the library depends on; with a ``*`` for the compiler where there is none."""
        texts = [self.version, *self.identity, *self.compile_flags, *self.link_flags, str(library)]
        files = [
            *(self.folder / name for name in (*itertools.chain(*self.units), *self.headers)),
            *sorted(include.glob("gpuhash/*.hpp")),
        ]
        sources = _digest(
            [*map(str.encode, texts), *(part for file in files for part in (os.fsencode(file.name), file.read_bytes()))]
        )
        made_by = _digest(map(str.encode, [*compiler, _output([*compiler, "--version"])])) if compiler else "*"
        return f"{self.stem}-{sources}-{made_by}.so"

    def identity_of(self, include: Path, library: Path) -> str:
        """Another text for each library that ``compile`` would make."""
        return self._name(include, library, self.need_compiler())

    def find_or_compile(self, package: Path) -> Path:
        """The library for this framework; compiled if need be, by one process while others wait for it.

        Parameters
        ----------
        package
            The folder of libgpuhash.so, with its headers in the folder ``include``. A library that was made ahead lies
            there, in a folder named as the sources' is, and is trusted as the rest of the package is.

        Raises
        ------
        ImportError
            Where there is no compiler or it fails, and where the cache cannot be written or others can write into it.
        """
        try:
            return self._found_or_compiled(package)
        except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
            raise ImportError(
                f"{self.module} cannot compile its ops for {self.framework}: {error}; name a C++ compiler in the "
                f"environment variable CXX, which is {os.environ.get('CXX')!r}, and a folder of your own for what it "
                f"makes in GPUHASH_CACHE, which is {os.environ.get('GPUHASH_CACHE')!r}"
            ) from error

    def _found_or_compiled(self, package: Path) -> Path:
        """As ``find_or_compile``; with whatever else goes wrong."""
        ahead = package / self.folder.name / self.prebuilt_name
        if ahead.exists():
            return ahead
        include = package / "include"
        name = self._name(include, package, find_compiler())
        folder = Path(os.path.realpath(cache_folder()))  # what is checked is what is loaded
        try:
            if folder.exists():
                self.check_folder(folder)
                for known in folder.glob(name):
                    self.check_trusted(known, stat.S_IFREG)
                    return known
            self.need_compiler()
            output = folder / name
            folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
            self.check_folder(folder)
            with _locked(output.with_suffix(".lock")):
                if not output.exists():
                    self.compile(output, include, package, str(package))
            self.check_trusted(output, stat.S_IFREG)
        except OSError as error:
            raise ImportError(
                f"{self.module} cannot keep its compiled ops in {folder}: {error}; name another folder in the "
                "environment variable GPUHASH_CACHE"
            ) from error
        return output


def find_compiler() -> list[str] | None:
    """The command of the C++ compiler: that of the environment variable CXX, or else c++ or g++; None without one."""
    given = os.environ.get("CXX")
    for command in [shlex.split(given)] if given else [["c++"], ["g++"]]:
        path = shutil.which(command[0]) if command else None
        if path is not None:
            return [path, *command[1:]]
    return None


def cache_folder() -> Path:
    """Where compiled libraries are kept: GPUHASH_CACHE, or gpuhash in the user's cache."""
    given = os.environ.get("GPUHASH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "gpuhash")


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given up when the file is closed, also by the end of the process
        yield
