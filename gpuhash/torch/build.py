"""What is compiled for the PyTorch that is installed."""

from __future__ import annotations

from pathlib import Path

import torch

from gpuhash.building.compiled_ops import OpLibrary

_PYTORCH = Path(torch.__file__).resolve().parent

op_library = OpLibrary(
    module="gpuhash.torch",
    framework="PyTorch",
    version=torch.__version__,
    folder=Path(__file__).resolve().parent,
    units=(("native/ops.cc",),),
    headers=(),
    # Nothing but the stable interface of PyTorch 2.10, whose headers are small.
    compile_flags=("-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000", "-isystem", str(_PYTORCH / "include")),
    link_flags=(f"-L{_PYTORCH / 'lib'}", "-l:libtorch_cpu.so"),
    seconds=6,
)
