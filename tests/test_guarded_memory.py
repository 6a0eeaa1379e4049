"""Keys, values and results are read and written where they are and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).resolve().parent / "guarded_memory_checks.py"
DTYPES = ["int64", "uint32", "int8", "float64", "pairs", "odd"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="guards pages by mprotect")
@pytest.mark.parametrize(("side", "threads"), [("end", "3"), ("begin", "1")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_call_leaves_its_arrays(slow: bool, dtype: str, side: str, threads: str) -> None:
    """Of batches of sizes around those from which on they are taken in another way.

    Each of the largest batches comes with some dtypes, and with --slow with all of them.
    """
    turn = [] if slow else [str(DTYPES.index(dtype) + (side == "end"))]
    done = subprocess.run(
        [sys.executable, "-P", CHECKS, dtype, side, *turn], capture_output=True, text=True, timeout=300,
        env={**os.environ, "GPUHASH_NUM_THREADS": threads},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr}"
