#!/usr/bin/env bash
# polars 2.1.0: a join on one float key matches NaN with NaN, unless polars knows both columns for sorted: then rows
# with NaN are lost, although == takes NaN for equal. sort() makes a column known for sorted, and so does having one
# row. A second key beside it, or streaming, finds them again.
# Seen: [1.0, nan] joined with itself 2 rows, sorted 1, sorted left join [10, None]; one row 0, with a second key 1
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0
"$folder/venv/bin/python" - <<'PY'
import polars as pl

frame = pl.DataFrame({"key": [1.0, float("nan")], "one": [1, 1], "value": [10, 20]})
ordered = frame.sort("key")
assert ordered.equals(frame, null_equal=False)
row = frame[1:]


def rows(left, right, *keys):
    return left.join(right, on=keys).height


left_join = ordered.join(ordered, on="key", how="left")["value_right"].to_list()
seen = rows(frame, frame, "key"), rows(ordered, ordered, "key"), rows(row, row, "key"), rows(row, row, "key", "one")
streamed = ordered.lazy().join(ordered.lazy(), on="key").collect(engine="streaming").height
print(f"[1.0, nan] joined with itself {seen[0]} rows, sorted {seen[1]}, sorted left join {left_join};", end=" ")
print(f"one row {seen[2]}, with a second key {seen[3]}")
assert seen == (2, 1, 0, 1)
assert left_join == [10, None]
assert streamed == 2
PY
