#!/usr/bin/env bash
# jax 0.10.2 on a CPU: compiled programs take subnormal float32 for zero, so that jnp.unique merges keys that differ.
# jnp.unique of [1e-40, 2e-40, 0] gives one value, where numpy.unique gives three; 1e-40 == 0 is True; jnp.sort leaves
# 2e-40 before 1e-40; jnp.max of [1e-40, 2e-40] is 0.
# Seen: unique 1 of 3, equal to zero True, sorted [142725, 71362, 0] as bits, max bits 0
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import jax.numpy as jnp
import numpy as np

keys = np.array([2e-40, 1e-40, 0.0], np.float32)
assert len(np.unique(keys)) == 3
unique = np.asarray(jnp.unique(jnp.asarray(keys)))
equal = bool((jnp.asarray(keys)[1] == 0).item())
ordered = np.asarray(jnp.sort(jnp.asarray(keys))).view(np.int32).tolist()
largest = np.asarray(jnp.max(jnp.asarray(keys[:2]))).view(np.int32).item()
print(f"unique {len(unique)} of 3, equal to zero {equal}, sorted {ordered} as bits, max bits {largest}")
assert (len(unique), equal, ordered, largest) == (1, True, [142725, 71362, 0], 0)
PY
