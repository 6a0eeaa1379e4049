#!/usr/bin/env bash
# polars 2.1.0: to_numpy() of a Struct series is a float64 matrix, also where all fields are Int64: 2^62 and 2^62 + 1
# become one key, and a null, of a field or of the whole struct, becomes NaN.
# Seen: rows [4.611686018427388e+18, 1.0], [4.611686018427388e+18, nan], [nan, nan]; first two keys equal True
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import polars as pl

series = pl.Series([{"a": 2**62, "b": 1}, {"a": 2**62 + 1, "b": None}, None])
assert series.dtype == pl.Struct({"a": pl.Int64, "b": pl.Int64})
rows = series.to_numpy()
print("rows", ", ".join(map(str, rows.tolist())) + "; first two keys equal", rows[0, 0] == rows[1, 0])
assert rows.dtype == np.float64
assert rows[0, 0] == rows[1, 0]
assert np.isnan(rows[1, 1])
assert np.isnan(rows[2]).all()
PY
