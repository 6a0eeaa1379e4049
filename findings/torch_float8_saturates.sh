#!/usr/bin/env bash
# torch 2.13.0 on a CPU beside ml_dtypes 0.6.0: float32 beyond the range of float8_e4m3fn becomes 448 in one and NaN in
# the other, infinity too. A column of such values that goes by way of both libraries holds both.
# Seen: torch [448.0, 448.0, 448.0], ml_dtypes [nan, nan, nan] for [500, 1e6, inf]
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import ml_dtypes
import numpy as np
import torch

values = [500.0, 1e6, float("inf")]
clipped = torch.tensor(values).to(torch.float8_e4m3fn).float().tolist()
not_a_number = np.array(values, np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32).tolist()
print(f"torch {clipped}, ml_dtypes {not_a_number} for [500, 1e6, inf]")
assert clipped == [448.0] * 3
assert np.isnan(not_a_number).all()
PY
