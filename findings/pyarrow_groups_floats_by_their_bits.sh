#!/usr/bin/env bash
# pyarrow 26.0.1 beside polars 2.1.0, duckdb 2.0.1 and pandas 3.1.1: Arrow groups floats by their bits. -0.0 and 0.0 are
# two groups, and NaNs of other bits are, too; the three others have one group each.
# Seen: pyarrow group_by 5, unique 5; polars 3, duckdb 3, pandas 3 groups of [0.0, -0.0, nan, another nan, 1.0]
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1 pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

keys = np.array([0.0, -0.0, np.nan, np.nan, 1.0])
keys.view(np.uint64)[3] = 0x7FF8000000000001
arrow_table = pa.table({"key": keys, "value": [1] * 5})
seen = {
    "pyarrow group_by": arrow_table.group_by("key").aggregate([("value", "sum")]).num_rows,
    "pyarrow unique": len(arrow_table["key"].unique()),
    "polars": pl.DataFrame({"key": keys}).group_by("key").len().height,
    "duckdb": duckdb.sql("select count(distinct key) from arrow_table").fetchall()[0][0],
    "pandas": len(pd.Series(keys).groupby(keys, dropna=False).size()),
}
print(", ".join(f"{name} {count}" for name, count in seen.items()))
assert list(seen.values()) == [5, 5, 3, 3, 3]
PY
