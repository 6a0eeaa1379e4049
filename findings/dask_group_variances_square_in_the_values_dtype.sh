#!/usr/bin/env bash
# dask 2026.8.0 with pandas 3.1.1: var and std of groups square the values in their own dtype and subtract sums: squares
# of narrow integers wrap, and floats far from 0 cancel out. Series.var of dask and group-by of pandas do neither.
# Seen: uint8 [100, 200] 0.0 for 5000.0, int32 [100000, 200000] 2852516352.0 for 5000000000.0, float64 [1e9+1, 1e9+3]
# 0.0 for 2.0; dask without groups 5000.0, 5000000000.0, 2.0
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'dask[dataframe]==2026.8.0' pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import dask.dataframe as dd
import numpy as np
import pandas as pd

seen, whole = [], []
for dtype, values in {"uint8": [100, 200], "int32": [100_000, 200_000], "float64": [1e9 + 1, 1e9 + 3]}.items():
    frame = pd.DataFrame({"key": [1, 1], "value": np.array(values, dtype)})
    lazy = dd.from_pandas(frame, npartitions=1)
    variance = lazy.groupby("key")["value"].var().compute().item()
    expected = frame.groupby("key")["value"].var().item()
    print(f"{dtype} {values} {variance} for {expected}", end=", " if dtype != "float64" else "; ")
    seen.append((variance, expected))
    whole.append(float(lazy["value"].var().compute()))
print("dask without groups", *whole)
assert seen == [(0.0, 5000.0), (2852516352.0, 5e9), (0.0, 2.0)]
assert whole == [5000.0, 5e9, 2.0]
PY
