#!/usr/bin/env bash
# pyarrow 26.0.1 beside polars 2.1.0, duckdb 2.0.1 and datafusion 55.0.0: group_by, unique and value_counts of a
# dictionary array count its codes, join compares its values. A dictionary whose values became equal, or have a null,
# has two groups of one key. Lower-casing the dictionary in place of the column makes such arrays.
# Seen: group_by [('a', 5), ('a', 2)], unique ['a', 'a'], join 9 rows; polars, duckdb, datafusion [('a', 7)] each
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1 datafusion==55.0.0
"$folder/venv/bin/python" - <<'PY'
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionContext

encoded = pa.array(["A", "a", "A"]).dictionary_encode()
keys = pa.DictionaryArray.from_arrays(encoded.indices, pc.utf8_lower(encoded.dictionary))
t = pa.table({"key": keys, "value": [1, 2, 4]})
groups = t.group_by("key", use_threads=False).aggregate([("value", "sum")])
grouped = list(zip(groups["key"].to_pylist(), groups["value_sum"].to_pylist(), strict=True))
joined = t.join(t, "key", join_type="inner", right_suffix="_right").num_rows
query, context = "select key, sum(value) as total from t group by key", SessionContext()
context.register_record_batches("t", [t.to_batches()])
others = [
    pl.from_arrow(t).group_by("key").agg(pl.col("value").sum()).rows(),
    duckdb.sql(query).fetchall(),
    [tuple(row.values()) for batch in context.sql(query).collect() for row in batch.to_pylist()],
]
print(f"group_by {grouped}, unique {keys.unique().to_pylist()}, join {joined} rows;", end=" ")
print("polars {}, duckdb {}, datafusion {}".format(*others))
assert grouped == [("a", 5), ("a", 2)]
assert keys.unique().to_pylist() == ["a", "a"]
assert joined == 9
assert others == [[("a", 7)]] * 3
nulls = pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array([None, "b"]))
assert pa.table({"key": nulls}).group_by("key").aggregate([])["key"].to_pylist().count(None) == 2
PY
