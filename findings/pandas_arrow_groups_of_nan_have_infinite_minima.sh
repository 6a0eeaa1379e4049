#!/usr/bin/env bash
# pandas 3.1.1 with pyarrow 26.0.1: a group whose float64[pyarrow] values are all NaN has the minimum inf and the
# maximum -inf, and a group with one NaN, or with inf and -inf, has the sum <NA>, which is no NaN. Series.min and sum
# of the same values give NaN; float64 of NumPy leaves NaN out. (https://github.com/pandas-dev/pandas/issues/59106)
# Seen: groups min [inf], max [-inf], sum [<NA>], sum of inf and -inf [<NA>]; Series min nan, max nan, sum nan
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import pandas as pd
import pyarrow as pa

nan, inf = float("nan"), float("inf")


def column(*values):
    return pd.Series(pa.array(values), dtype=pd.ArrowDtype(pa.float64()))


missing = column(nan, nan)
groups = missing.groupby([1, 1])
seen = [groups.min(), groups.max(), groups.sum(), column(inf, -inf).groupby([1, 1]).sum()]
whole = [missing.min(), missing.max(), missing.sum()]
print("groups min {}, max {}, sum {}, sum of inf and -inf {};".format(*(s.tolist() for s in seen)), end=" ")
print("Series min {}, max {}, sum {}".format(*whole))
assert [s.iloc[0] for s in seen[:2]] == [inf, -inf]
assert all(s.iloc[0] is pd.NA for s in seen[2:])
assert column(1.0, nan).groupby([1, 1]).sum().iloc[0] is pd.NA
assert all(x != x for x in whole)
PY
