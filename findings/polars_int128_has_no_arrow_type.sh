#!/usr/bin/env bash
# polars 2.1.0 with pyarrow 26.0.1: UInt64 and Int64 in one expression, or in concat(how="vertical_relaxed"), have the
# common type Int128, which to_arrow() hands out under a format that pyarrow refuses, and to_numpy() refuses.
# Seen: Int128; to_arrow ArrowInvalid, to_numpy InvalidOperationError
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import polars as pl
import pyarrow as pa

unsigned, signed = pl.Series("id", [2**64 - 1], dtype=pl.UInt64), pl.Series("id", [-1], dtype=pl.Int64)
ids = pl.concat([unsigned.to_frame(), signed.to_frame()], how="vertical_relaxed")["id"]
assert (unsigned + signed).dtype == ids.dtype == pl.Int128


def error_of(call):
    try:
        call()
    except (pa.ArrowInvalid, pl.exceptions.InvalidOperationError) as error:
        return type(error).__name__
    return "no error"


seen = error_of(ids.to_arrow), error_of(ids.to_numpy)
print(f"{ids.dtype}; to_arrow {seen[0]}, to_numpy {seen[1]}")
assert seen == ("ArrowInvalid", "InvalidOperationError")
PY
