"""What is compiled for the TensorFlow that is installed."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from gpuhash.compiled_ops import OpLibrary

op_library = OpLibrary(
    module="gpuhash.tensorflow",
    framework="TensorFlow",
    version=tf.__version__,
    folder=Path(__file__).resolve().parent,
    units=(
        ("native/ops.cc", "native/column_ops.cc", "native/embedding_ops.cc"),
        ("native/kernels.cc", "native/column_kernels.cc", "native/embedding_kernels.cc"),
    ),
    headers=tuple(
        f"native/{name}.h"
        for name in ("context", "embedding_rows", "kernel_registration", "op_dtypes", "table_resource")
    ),
    compile_flags=tuple(tf.sysconfig.get_compile_flags()),
    link_flags=tuple(tf.sysconfig.get_link_flags()),
    seconds=16,
    identity=(tf.version.GIT_VERSION,),
)
