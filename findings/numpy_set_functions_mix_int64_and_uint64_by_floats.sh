#!/usr/bin/env bash
# numpy 2.4.6: of int64 and uint64 arrays, numpy.isin compares exactly and numpy.intersect1d, union1d and unique of their
# concatenation by float64, where 2^53 + 1 is 2^53: the one finds no common id, the other one.
# Seen: isin False, intersect1d [9007199254740992.0], pandas.merge 0 rows
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 pandas==3.1.1
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import pandas as pd

signed, unsigned = np.array([2**53 + 1], np.int64), np.array([2**53], np.uint64)
common, found = np.intersect1d(signed, unsigned), np.isin(signed, unsigned)
joined = pd.DataFrame({"id": signed}).merge(pd.DataFrame({"id": unsigned}), on="id")
print("isin", *found, end=", ")
print("intersect1d", common.tolist(), end=", ")
print("pandas.merge", len(joined), "rows")
assert not found.any()
assert common.tolist() == [2.0**53]
assert len(np.union1d(signed, unsigned)) == 1
assert len(joined) == 0
PY
