"""Is there a C++ compiler?"""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence

# The names that CMake looks for, where it is told none.
_COMPILERS = ("c++", "CC", "g++", "aCC", "xlC", "icpx", "icx", "clang++")


def need_compiler(config_settings: Mapping[str, str | Sequence[str]] | None = None) -> None:
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
