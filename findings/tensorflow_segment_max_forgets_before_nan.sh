#!/usr/bin/env bash
# tensorflow-cpu 2.21.0: segment_max and unsorted_segment_max on a CPU begin anew at a NaN, so that the maximum of a
# segment depends on where in it the NaN stands; reduce_max gives NaN each time.
# Seen: [nan, 1, 0.5] -> 1.0, [1, nan, 0.5] -> 0.5, [1, 0.5, nan] -> nan
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorflow-cpu==2.21.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

nan, ids = float("nan"), tf.constant([0, 0, 0])
seen = []
for values in ([nan, 1.0, 0.5], [1.0, nan, 0.5], [1.0, 0.5, nan]):
    x = tf.constant(values)
    sorted_, unsorted = tf.math.segment_max(x, ids).numpy()[0], tf.math.unsorted_segment_max(x, ids, 1).numpy()[0]
    assert str(sorted_) == str(unsorted)
    assert tf.math.is_nan(tf.reduce_max(x))
    seen.append(str(float(sorted_)))
    print(values, "->", seen[-1])
assert seen == ["1.0", "0.5", "nan"]
PY
