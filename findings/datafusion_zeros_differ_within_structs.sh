#!/usr/bin/env bash
# datafusion 55.0.0 beside duckdb 2.0.1: GROUP BY, DISTINCT, = and joins of a DOUBLE take -0.0 for 0.0, and give back
# 0.0 where there was only -0.0. The same value within a struct or a list, and window functions, keep the two apart.
# Seen: datafusion group by x 1, struct 2, list 2, window partitions 2, ranks [1, 2]; duckdb 1, 1, 1, 1, [1, 1]; the
# group of [-0.0] is 0.0 in datafusion, -0.0 in duckdb
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0 duckdb==2.0.1 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PY'
import duckdb
import pyarrow as pa
from datafusion import SessionContext

tables = {"t": pa.table({"x": [0.0, -0.0]}), "negative": pa.table({"x": [-0.0]})}
context, connection = SessionContext(), duckdb.connect()
for name, table in tables.items():
    context.register_record_batches(name, [table.to_batches()])
    connection.register(name, table)


def datafusion_column(query):
    return pa.Table.from_batches(context.sql(query).collect()).column(0).to_pylist()


def duckdb_column(query):
    return [row[0] for row in connection.sql(query).fetchall()]


seen = {}
for name, column, struct in (("datafusion", datafusion_column, "struct(x)"), ("duckdb", duckdb_column, "row(x)")):
    groups = [len(column(f"select count(*) from t group by {key}")) for key in ("x", struct, "[x]")]
    partitions = column("select row_number() over (partition by x) from t").count(1)
    ranks = sorted(column("select rank() over (order by x) from t"))
    assert len(column("select distinct x from t")) == len(column("select x from t where x = 0.0")) - 1 == 1
    seen[name] = (*groups, partitions, ranks, str(column("select x from negative group by x")[0]))
    print(name, *seen[name])
assert seen["datafusion"] == (1, 2, 2, 2, [1, 2], "0.0")
assert seen["duckdb"] == (1, 1, 1, 1, [1, 1], "-0.0")
PY
