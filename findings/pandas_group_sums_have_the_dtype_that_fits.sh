#!/usr/bin/env bash
# pandas 3.1.1: the dtype of a group-by's sum depends on the sums. int8 values have int8 sums where all of them fit,
# and int64 sums where one does not; so a sum of these sums wraps, or not. Series.sum of the same values is int64 each
# time. NumPy's, masked (Int8) and Arrow's (int8[pyarrow]) columns all do so.
# Seen: [50, 50] int8, doubled -56; [100, 100] int64, doubled 400; Int8 and Int64; int8[pyarrow] and int64[pyarrow]
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import pandas as pd


def group_sum(values, dtype):
    return pd.Series(values, dtype=dtype).groupby(np.zeros(2, np.int64)).sum()


seen = {}
for values in ([50, 50], [100, 100]):
    total = group_sum(values, "int8")
    seen[total.dtype.name] = int((total + total).iloc[0])
    print(values, f"{total.dtype}, doubled {seen[total.dtype.name]}", end="; ")
    assert pd.Series(values, dtype="int8").sum().dtype == np.int64
others = [[str(group_sum([n, n], dtype).dtype) for n in (50, 100)] for dtype in ("Int8", "int8[pyarrow]")]
print("; ".join(" and ".join(pair) for pair in others))
assert seen == {"int8": -56, "int64": 400}
assert others == [["Int8", "Int64"], ["int8[pyarrow]", "int64[pyarrow]"]]
PY
