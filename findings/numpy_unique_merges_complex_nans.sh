#!/usr/bin/env bash
# numpy 2.4.6 and pandas 3.1.1: numpy.unique of complex numbers with a NaN in either part merges all of them to one,
# whatever the other part is; pandas.unique keeps them apart, and pandas.factorize takes each for missing (-1).
# Seen: numpy.unique 1, pandas.unique 3, pandas.factorize [-1, -1, -1]
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 pandas==3.1.1
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import pandas as pd

nan = float("nan")
values = np.array([complex(nan, 1), complex(nan, 2), complex(1, nan)])
codes, uniques = pd.factorize(values)
print("numpy.unique", len(np.unique(values)), end=", ")
print("pandas.unique", len(pd.unique(values)), end=", ")
print("pandas.factorize", codes.tolist())
assert len(np.unique(values)) == 1
assert len(pd.unique(values)) == 3
assert codes.tolist() == [-1, -1, -1]
assert len(uniques) == 0
PY
