"""scikit-build-core, and what it leaves to us: NVIDIA's compiler wheels as one more build requirement where no CUDA
compiler is found, one sentence where there is no C++ compiler, and a second build that compiles what has changed.
"""

import json
import os
import shlex
import shutil
from pathlib import Path

import cuda_compiler
import scikit_build_core
from scikit_build_core import build as _base
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

type_of_settings = dict[str, str | list[str]] | None

# The names that CMake looks for, where it is told none.
_COMPILERS = ("c++", "CC", "g++", "aCC", "xlC", "icpx", "icx", "clang++")


def get_requires_for_build_wheel(config_settings: type_of_settings = None) -> list[str]:
    need_compiler(config_settings)  # before hundreds of megabytes are fetched
    return [*_base.get_requires_for_build_wheel(config_settings), *cuda_compiler.requirements(config_settings)]


def get_requires_for_build_editable(config_settings: type_of_settings = None) -> list[str]:
    need_compiler(config_settings)
    return [*_base.get_requires_for_build_editable(config_settings), *cuda_compiler.requirements(config_settings)]


def build_wheel(
    wheel_directory: str, config_settings: type_of_settings = None, metadata_directory: str | None = None
) -> str:
    need_compiler(config_settings)
    keep_objects(Path.cwd())
    return _base.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: type_of_settings = None, metadata_directory: str | None = None
) -> str:
    need_compiler(config_settings)
    keep_objects(Path.cwd())
    return _base.build_editable(wheel_directory, config_settings, metadata_directory)


def need_compiler(config_settings: type_of_settings = None) -> None:
    """Ends with what to install, where CMake would find no C++ compiler."""
    told = [os.environ.get(name, "") for name in ("CMAKE_ARGS", "SKBUILD_CMAKE_ARGS", "SKBUILD_CMAKE_DEFINE")]
    told += [f"{key}={value}" for key, value in (config_settings or {}).items()]
    if os.environ.get("CMAKE_TOOLCHAIN_FILE") or any(
        name in text for name in ("CMAKE_CXX_COMPILER", "TOOLCHAIN", "toolchain") for text in told
    ):
        return  # CMake says what is wrong with it
    given = shlex.split(os.environ.get("CXX", ""))
    if any(shutil.which(name) for name in (given[:1] or _COMPILERS)):
        return
    missing = f"CXX={os.environ['CXX']!r} names no program" if given else "no C++ compiler is installed"
    raise SystemExit(
        f"gpuhash is compiled when it is installed, and {missing}: install GCC 11 or Clang 16, or newer (on Debian and "
        "Ubuntu: apt install g++; on Fedora and RHEL: dnf install gcc-c++), or name one in the environment variable CXX"
    )


def keep_objects(source: Path) -> None:
    """Makes scikit-build-core keep what it compiled before.

    It deletes CMake's cache with all objects when it lies in another folder than the last time; and pip unpacks it into
    a new one for each build. What has to go is what knows that folder: the cache, and what CMake found out about the
    compilers. Which objects are old is known to Ninja, by their commands and sources.
    """
    now = str(Path(scikit_build_core.__file__).resolve().parent)
    for state in source.glob("build/*/.skbuild-info.json"):
        try:
            known = json.loads(state.read_text(encoding="utf-8"))
            if known["source_dir"] != str(source.resolve()) or known["skbuild_path"] == now:
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of a build that was broken off: scikit-build-core begins anew
        (state.parent / "CMakeCache.txt").unlink(missing_ok=True)
        for found_out in (state.parent / "CMakeFiles").glob("[0-9]*.[0-9]*"):  # by CMake's version
            shutil.rmtree(found_out, ignore_errors=True)
        state.write_text(json.dumps({**known, "skbuild_path": now}), encoding="utf-8")
