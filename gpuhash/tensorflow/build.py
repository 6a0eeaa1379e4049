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
        ("ops.cc", "column_ops.cc", "embedding_ops.cc"),
        ("kernels.cc", "column_kernels.cc", "embedding_kernels.cc"),
    ),
    headers=("context.h", "embedding_rows.h", "kernel_registration.h", "op_dtypes.h", "table_resource.h"),
    compile_flags=tuple(tf.sysconfig.get_compile_flags()),
    link_flags=tuple(tf.sysconfig.get_link_flags()),
    seconds=16,
    identity=(tf.version.GIT_VERSION,),
)
