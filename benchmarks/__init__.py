"""Measures gpuhash against the limits of the memory and against what people use instead: ``python -m benchmarks``."""

import sys
from pathlib import Path

# `python -m` puts the repository first in the path, and its folder gpuhash/ lacks the extension: measure what is
# installed.
_root = Path(__file__).resolve().parent.parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _root]
