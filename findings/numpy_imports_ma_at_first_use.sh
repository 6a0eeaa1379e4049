#!/usr/bin/env bash
# NumPy 2.4 imports numpy.ma when it is first asked for, by np.ma. Where a thread does so while another one forks, the
# child finds the module's import lock taken, and waits for it for ever once it asks for np.ma itself. So a library that
# asks np.ma.MaskedArray in every call can lock up the children of a process whose threads have just made their first
# calls. This script shows the first half without a fork: no module before, and one after the attribute was read.
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
