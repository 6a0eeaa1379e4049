#!/usr/bin/env bash
# tensorflow-cpu 2.21.0: GradientTape.gradient(loss, sources) calls the gradient functions of all that the loss depends
# on, also where no path leads from there to a source. tf.gradients, in a graph, calls only those it needs.
# Seen: tape called for [a], tf.gradients called for []
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorflow-cpu==2.21.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

called = []


@tf.custom_gradient
def noted(x):
    def gradient(upstream):
        called.append("a")
        return upstream

    return tf.identity(x), gradient


a, b = tf.Variable(1.0), tf.Variable(2.0)
with tf.GradientTape() as tape:
    loss = noted(a.value()) * b
assert tape.gradient(loss, b).numpy() == 1.0  # which does not depend on how a's part is differentiated
by_tape, called = called, []
with tf.Graph().as_default():
    x, y = tf.constant(1.0), tf.constant(2.0)
    tf.gradients(noted(x) * y, y)
print(f"tape called for {by_tape}, tf.gradients called for {called}".replace("'", ""))
assert (by_tape, called) == (["a"], [])
PY
