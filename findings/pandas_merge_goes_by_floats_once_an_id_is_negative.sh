#!/usr/bin/env bash
# pandas 3.1.1: merge compares int64 with uint64 exactly, as long as no id is negative. With one negative id, and with
# any second key, it compares all of them by float64, where 2^53 + 1 is 2^53: an unrelated row decides what others
# match. isin is exact each time. (https://github.com/pandas-dev/pandas/issues/61688)
# Seen: one key [], with -1 in another row [9007199254740993], with a second key [9007199254740993]; isin False
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import pandas as pd


def merged(signed, unsigned, **more):
    left, right = (pd.DataFrame({"id": ids, **more}) for ids in (np.array(signed), np.array(unsigned, np.uint64)))
    assert not left["id"].isin(right["id"]).any()
    return left.merge(right, on=["id", *more])["id"].tolist()


seen = merged([2**53 + 1], [2**53]), merged([2**53 + 1, -1], [2**53]), merged([2**53 + 1], [2**53], other=1)
print(f"one key {seen[0]}, with -1 in another row {seen[1]}, with a second key {seen[2]}; isin False")
assert seen == ([], [2**53 + 1], [2**53 + 1])
PY
