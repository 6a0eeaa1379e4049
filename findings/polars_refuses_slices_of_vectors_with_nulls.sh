#!/usr/bin/env bash
# polars 2.1.0 with pyarrow 26.0.1: a slice of a fixed_size_list array that has a null is refused, at its beginning and
# at its end, through every way in. The whole array is taken, and so are slices without a null or within a struct;
# duckdb 2.0.1 takes all of them. take() in place of slice() makes an array that polars takes.
# Seen: whole [[1, 2], None, [3, 4]]; slice(1) ComputeError, slice(0, 2) ComputeError; duckdb [None, (3, 4)]
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1
"$folder/venv/bin/python" - <<'PY'
import duckdb
import polars as pl
import pyarrow as pa

vectors = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))


def read(array):
    array.validate(full=True)
    seen = set()
    for way_in in (pl.from_arrow, pl.Series, lambda array: pl.DataFrame(pa.table({"key": array}))["key"]):
        try:
            seen.add(str(way_in(array).to_list()))
        except pl.exceptions.ComputeError as error:
            assert "validity mask length" in str(error)
            seen.add("ComputeError")
    (result,) = seen  # the same in each way
    return result


sliced = pa.table({"key": vectors.slice(1)})
seen = read(vectors), read(vectors.slice(1)), read(vectors.slice(0, 2))
others = [row[0] for row in duckdb.sql("select key from sliced").fetchall()]
print("whole {}; slice(1) {}, slice(0, 2) {}; duckdb {}".format(*seen, others))
assert seen == ("[[1, 2], None, [3, 4]]", "ComputeError", "ComputeError")
assert others == [None, (3, 4)]
assert read(vectors.slice(2)) == "[[3, 4]]"
assert read(vectors.take(pa.array([1, 2]))) == "[None, [3, 4]]"
assert read(pa.array([[1, 2], [3, 4]], vectors.type).slice(1)) == "[[3, 4]]"
PY
