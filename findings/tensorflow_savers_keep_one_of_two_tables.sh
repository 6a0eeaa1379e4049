#!/usr/bin/env bash
# tensorflow-cpu 2.21.0: a graph with two MutableHashTables that have no names of their own: tf.compat.v1.train.Saver
# writes one of them, and says nothing; two variables of one name are an error.
# Seen: tables 2, saved 1
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorflow-cpu==2.21.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import os
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

with tempfile.TemporaryDirectory() as folder, tf.Graph().as_default(), tf.compat.v1.Session() as session:
    tables = [tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0) for _ in range(2)]
    for number, table in enumerate(tables):
        session.run(table.insert(tf.constant([number], tf.int64), tf.constant([number], tf.int64)))
    path = tf.compat.v1.train.Saver().save(session, folder + "/model")
    keys = [name for name, _ in tf.train.list_variables(path) if name.endswith("-keys")]
print(f"tables {len(tables)}, saved {len(keys)}")
assert len(keys) == 1
PY
