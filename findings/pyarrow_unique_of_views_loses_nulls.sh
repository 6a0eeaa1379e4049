#!/usr/bin/env bash
# pyarrow 26.0.1 with polars 2.1.0: unique and value_counts of string_view and binary_view arrays turn the null into an
# empty value, of which there may be two then; dictionary_encode and group_by keep it, and so do all of string's.
# polars hands its strings to pa.chunked_array as string_view. (https://github.com/apache/arrow/issues/39635)
# Seen: unique ['', 'a', ''], value_counts ['', 'a', ''], group_by ['', 'a', None], unique of string ['', 'a', None]
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 polars==2.1.0
"$folder/venv/bin/python" - <<'PY'
import polars as pl
import pyarrow as pa

strings = pa.chunked_array(pl.Series(["", "a", None, "a"]))
assert strings.type == pa.string_view()
assert strings.null_count == 1
seen = {
    "unique": strings.unique(),
    "value_counts": strings.value_counts().field("values"),
    "group_by": pa.table({"key": strings}).group_by("key").aggregate([])["key"],
    "unique of string": strings.cast(pa.string()).unique(),
}
print(", ".join(f"{name} {keys.to_pylist()}" for name, keys in seen.items()))
assert [keys.to_pylist()[2] for keys in seen.values()] == ["", "", None, None]
assert pa.array([b"a", None], pa.binary_view()).unique().to_pylist() == [b"a", b""]
assert strings.combine_chunks().dictionary_encode().null_count == 1
PY
