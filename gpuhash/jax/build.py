"""What is compiled for the JAX that is installed."""

from __future__ import annotations

from pathlib import Path

import jax.ffi
import jaxlib

from gpuhash.building.compiled_ops import OpLibrary

op_library = OpLibrary(
    module="gpuhash.jax",
    framework="JAX",
    version=jaxlib.__version__,
    folder=Path(__file__).resolve().parent,
    units=(
        ("native/state.cc", "native/table_ops.cc"),
        ("native/exchange_ops.cc", "native/factorization_ops.cc"),
    ),
    headers=("native/call.h", "native/state.h", "native/table_ops.h"),
    compile_flags=("-std=c++17", f"-isystem{jax.ffi.include_dir()}"),
    link_flags=(),
    seconds=13,
)
