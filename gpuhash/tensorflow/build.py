"""What is compiled for the TensorFlow that is installed."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from gpuhash.building.compiled_ops import OpLibrary

_KERNELS = ("table", "call", "stock", "tensor", "embedding")
_HEADERS = ("context", "embedding_rows", "kernel_registration", "op_attributes", "table_resource")

op_library = OpLibrary(
    module="gpuhash.tensorflow",
    framework="TensorFlow",
    version=tf.__version__,
    folder=Path(__file__).resolve().parent,
    units=(
        ("native/ops.cc", "native/embedding_ops.cc"),
        tuple(f"native/{name}_kernels.cc" for name in _KERNELS),
    ),
    headers=tuple(f"native/{name}.h" for name in _HEADERS),
    compile_flags=tuple(tf.sysconfig.get_compile_flags()),
    link_flags=tuple(tf.sysconfig.get_link_flags()),
    seconds=16,
    identity=(tf.version.GIT_VERSION,),
)
