"""scikit-build-core, and what it leaves to us: NVIDIA's compiler wheels as one more build requirement where no CUDA
compiler is found, one sentence where there is no C++ compiler, and a second build that compiles what has changed.
"""

from pathlib import Path

import cuda_compiler
import scikit_build_core
from cxx_compiler import need_compiler
from kept_objects import keep_objects, need_build_folder
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

_SCIKIT_BUILD = Path(scikit_build_core.__file__).resolve().parent


def get_requires_for_build_wheel(config_settings: type_of_settings = None) -> list[str]:
    need_build_folder(Path.cwd(), config_settings)
    need_compiler(config_settings)  # before hundreds of megabytes are fetched
    return [*_base.get_requires_for_build_wheel(config_settings), *cuda_compiler.requirements(config_settings)]


def get_requires_for_build_editable(config_settings: type_of_settings = None) -> list[str]:
    need_build_folder(Path.cwd(), config_settings)
    need_compiler(config_settings)
    return [*_base.get_requires_for_build_editable(config_settings), *cuda_compiler.requirements(config_settings)]


def build_wheel(
    wheel_directory: str, config_settings: type_of_settings = None, metadata_directory: str | None = None
) -> str:
    need_compiler(config_settings)
    keep_objects(Path.cwd(), _SCIKIT_BUILD)
    return _base.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: type_of_settings = None, metadata_directory: str | None = None
) -> str:
    need_compiler(config_settings)
    keep_objects(Path.cwd(), _SCIKIT_BUILD)
    return _base.build_editable(wheel_directory, config_settings, metadata_directory)
