#!/usr/bin/env bash
# NumPy 2.4 imports numpy.ma when np.ma is first read, wherever that is: an isinstance(x, np.ma.MaskedArray) in a
# function imports a module in the function's first call, and takes the import's lock, which is nothing for processes
# that fork. This script looks which modules there are before and after np.ma is read.
#
# Fails where NumPy has the module from the beginning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np

print("NumPy", np.__version__)
before = "numpy.ma" in sys.modules
np.ma
after = "numpy.ma" in sys.modules
print("numpy.ma is imported before np.ma is read:", before, "- and after:", after)
assert (before, after) == (False, True)
PYTHON
