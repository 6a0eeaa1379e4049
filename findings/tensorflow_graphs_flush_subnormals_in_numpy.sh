#!/usr/bin/env bash
# tensorflow-cpu 2.21.0: the threads that run graphs flush subnormal floats to zero, and NumPy inherits it there. One
# function of NumPy alone gives other numbers in tf.data and inside tf.function than eagerly.
# Seen: eager [71362, 142725], tf.function [0, 0], tf.data [0, 0] (bits of 1 * [1e-40, 2e-40])
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorflow-cpu==2.21.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf

x = tf.constant(np.array([1e-40, 2e-40], np.float32))


@tf.autograph.experimental.do_not_convert  # or it would look for a source file
def times_one(values):
    return tf.numpy_function(lambda v: v * np.float32(1), [values], tf.float32)


def bits(values):
    return values.numpy().view(np.int32).tolist()


seen = bits(times_one(x)), bits(tf.function(times_one)(x)), bits(next(iter(tf.data.Dataset.from_tensors(x).map(times_one))))
print("eager {}, tf.function {}, tf.data {}".format(*seen))
assert seen == ([71362, 142725], [0, 0], [0, 0])
PY
