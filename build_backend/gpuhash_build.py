"""scikit-build-core, and where no CUDA compiler is found, NVIDIA's compiler wheels as one more build requirement."""

import cuda_compiler
from scikit_build_core import build as _base
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
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


def get_requires_for_build_wheel(config_settings: type_of_settings = None) -> list[str]:
    return [*_base.get_requires_for_build_wheel(config_settings), *cuda_compiler.requirements(config_settings)]


def get_requires_for_build_editable(config_settings: type_of_settings = None) -> list[str]:
    return [*_base.get_requires_for_build_editable(config_settings), *cuda_compiler.requirements(config_settings)]
