"""Where the CUDA compiler is: one answer for the build backend and for CMake, which runs this file.

Environment: ``GPUHASH_CUDA`` (AUTO, ON, OFF); ``GPUHASH_NVCC_WHEELS=1`` passes over every installed toolkit and takes
the compiler from NVIDIA's wheels.
"""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# nvidia-cuda-nvcc by itself would pull newer parts that do not fit together.
WHEELS = "cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==13.0.2"
# A copy of them in the source folder: the next build unpacks no wheels, and finds the compiler where it was, so that it
# compiles what has changed.
KEPT = Path(__file__).resolve().parent.parent / "build" / f"cuda-{WHEELS.rpartition('=')[2]}"
OLDEST = (12, 0)  # the first nvcc that compiles C++20


def requirements(config_settings: Mapping[str, str | Sequence[str]] | None = None) -> list[str]:
    """What the build needs besides: the wheels, where CUDA is wanted and no compiler is there."""
    mode = os.environ.get("GPUHASH_CUDA", "AUTO")
    for key in ("cmake.define.GPUHASH_CUDA", "skbuild.cmake.define.GPUHASH_CUDA"):
        given = (config_settings or {}).get(key)
        if given:
            mode = given if isinstance(given, str) else given[-1]
    if mode.upper() in ("OFF", "0", "FALSE", "NO") or not wheels_exist() or toolkit_nvcc() or kept_nvcc():
        return []
    return [WHEELS]


def wheels_exist() -> bool:
    """Is there a compiler wheel for this machine?"""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and platform.libc_ver()[0] == "glibc"


def toolkit_nvcc() -> Path | None:
    """The nvcc of an installed toolkit."""
    if os.environ.get("GPUHASH_NVCC_WHEELS") == "1":
        return None
    return next((nvcc for nvcc in _toolkit_candidates() if nvcc.is_file() and _version(nvcc) >= OLDEST), None)


def kept_nvcc() -> Path | None:
    """The nvcc of wheels of an earlier build."""
    nvcc = KEPT / "bin" / "nvcc"
    return nvcc if nvcc.is_file() else None


def keep(nvcc: Path) -> Path:
    """Copies the wheels that an nvcc belongs to; returns the copy's nvcc, or this one where nothing can be written."""
    begun = KEPT.with_name(f"{KEPT.name}.{os.getpid()}")
    try:
        shutil.copytree(nvcc.parent.parent, begun)
        begun.rename(KEPT)  # whole or not at all
    except OSError:
        shutil.rmtree(begun, ignore_errors=True)
    return kept_nvcc() or nvcc


def wheel_nvcc() -> Path | None:
    """The nvcc of the wheels in this Python's environment."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    candidates = (Path(root) / "cu13" / "bin" / "nvcc" for root in roots or ())
    return next((nvcc for nvcc in candidates if nvcc.is_file()), None)


def _toolkit_candidates() -> Iterator[Path]:
    if named := os.environ.get("CUDACXX"):
        found = shutil.which(named)
        if found:
            yield Path(found)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin" / "nvcc"
    if found := shutil.which("nvcc"):
        yield Path(found)
    yield Path("/usr/local/cuda/bin/nvcc")


def _version(nvcc: Path) -> tuple[int, int]:
    try:
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    release = re.search(r"release (\d+)\.(\d+)", told)
    return (int(release[1]), int(release[2])) if release else (0, 0)


if __name__ == "__main__":
    # For CMake: "toolkit;<nvcc>", "wheels;<nvcc>" or nothing.
    if nvcc := toolkit_nvcc():
        print(f"toolkit;{nvcc}", end="")
    elif nvcc := kept_nvcc():
        print(f"wheels;{nvcc}", end="")
    elif nvcc := wheel_nvcc():
        print(f"wheels;{keep(nvcc)}", end="")
