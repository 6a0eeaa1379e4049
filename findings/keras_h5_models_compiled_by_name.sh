#!/usr/bin/env bash
# keras 3.15.1 with tensorflow-cpu 2.21.0: a model that was compiled with loss="mse" and saved as .h5 cannot be loaded.
# Seen: ValueError, Could not deserialize 'keras.metrics.mse' because it is not a KerasSaveable subclass; with
# compile=False it loads
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

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "model.h5"
    model.save(path)
    try:
        keras.models.load_model(path)
        seen = "no error"
    except (TypeError, ValueError) as error:
        seen = f"{type(error).__name__}, {str(error).splitlines()[0]}"
    keras.models.load_model(path, compile=False)
print(seen)
assert "KerasSaveable" in seen
PY
