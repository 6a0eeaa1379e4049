#!/usr/bin/env bash
# xarray 2026.9.0 with flox 0.11.2, which it uses where it is installed: means of groups of datetimes count NaT as the
# integer -2^63 that stands for it, and so lie a century off; max passes over NaT, and min does not. Without flox, and
# without groups, the mean leaves NaT out, and max and min are both NaT.
# Seen: mean of 2020-01-01, NaT, 2021-01-01: with flox 1906-03-30, without it 2020-07-02, no groups 2020-07-02; max
# with flox 2021-01-01, without it NaT
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xarray==2026.9.0 flox==0.11.2 pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import xarray as xr

times = np.array(["2020-01-01", "NaT", "2021-01-01"], "datetime64[ns]")
array = xr.DataArray(times, dims="row", coords={"key": ("row", [1, 1, 1])})


def aggregate(name, use_flox):
    with xr.set_options(use_flox=use_flox):
        return str(getattr(array.groupby("key"), name)().values[0])[:10]


seen = [aggregate("mean", True), aggregate("mean", False), str(array.mean().values)[:10]]
largest, smallest = ([aggregate(name, use_flox) for use_flox in (True, False)] for name in ("max", "min"))
print("mean of 2020-01-01, NaT, 2021-01-01: with flox {}, without it {}, no groups {};".format(*seen), end=" ")
print("max with flox {}, without it {}".format(*largest))
assert seen == ["1906-03-30", "2020-07-02", "2020-07-02"]
assert largest == ["2021-01-01", "NaT"]
assert smallest == ["NaT", "NaT"]
assert str(array.max().values) == "NaT"
PY
