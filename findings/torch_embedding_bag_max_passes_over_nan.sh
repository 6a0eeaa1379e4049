#!/usr/bin/env bash
# torch 2.13.0 on a CPU: embedding_bag(mode="max") gives NaN only where the bag's first row has it, and otherwise passes
# over it. scatter_reduce("amax") and segment_reduce("max") give NaN wherever it stands.
# Seen: nan first -> nan, nan in the middle -> 2.0, nan last -> 2.0
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import math
import warnings

import torch

warnings.simplefilter("ignore")  # segment_reduce is a prototype
rows = torch.tensor([[1.0], [float("nan")], [2.0]])
seen = []
for name, order in {"first": [1, 0, 2], "in the middle": [0, 1, 2], "last": [0, 2, 1]}.items():
    seen.append(torch.nn.functional.embedding_bag(torch.tensor([order]), rows, mode="max").item())
    print(f"nan {name} -> {seen[-1]}", end=", " if name != "last" else "\n")
    values = rows[order, 0]
    assert torch.zeros(1).scatter_reduce(0, torch.zeros(3, dtype=torch.long), values, "amax", include_self=False).isnan()
    assert torch.segment_reduce(values, "max", lengths=torch.tensor([3])).isnan()
assert math.isnan(seen[0])
assert seen[1:] == [2.0, 2.0]
PY
