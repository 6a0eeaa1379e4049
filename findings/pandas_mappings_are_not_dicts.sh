#!/usr/bin/env bash
# pandas 3.1.1: DataFrame takes a mapping that is no dict for a list of its keys, and so loses the values; Series takes
# the same object for what it is.
# Seen: DataFrame [[1], [2]], Series {1: 100, 2: 200}
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import types

import pandas as pd

mapping = types.MappingProxyType({1: 100, 2: 200})
frame, series = pd.DataFrame(mapping).to_numpy().tolist(), pd.Series(mapping).to_dict()
print("DataFrame", frame, end=", ")
print("Series", series)
assert frame == [[1], [2]]
assert series == dict(mapping)
PY
