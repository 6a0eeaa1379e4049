#!/usr/bin/env bash
# keras 3.15.1 with tensorflow-cpu 2.21.0: a subclassed model that has only ever seen int64 ids is built with float32
# ones when load_model() makes it from a .keras file. A layer inside of it that refuses floats is left unbuilt, and the
# file says nothing of dtypes: it holds shapes.
# Seen: made with int64, loaded with float32
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet keras==3.15.1 tensorflow-cpu==2.21.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import os
import pathlib
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

seen = []


class Ids(keras.layers.Layer):
    def call(self, ids):
        seen.append(keras.backend.standardize_dtype(ids.dtype))
        return keras.ops.cast(ids, "float32")


class Model(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.ids, self.dense = Ids(), keras.layers.Dense(1)

    def call(self, ids):
        return self.dense(self.ids(ids))


model = Model()
model(np.arange(6, dtype=np.int64).reshape(2, 3))
made, path = set(seen), pathlib.Path(tempfile.mkdtemp()) / "model.keras"
model.save(path)
seen.clear()
keras.models.load_model(path, custom_objects={"Model": Model, "Ids": Ids})
path.unlink()
path.parent.rmdir()
print("made with", *made, "loaded with", *set(seen))
assert (made, set(seen)) == ({"int64"}, {"float32"})
PY
