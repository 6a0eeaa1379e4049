"""The op library, loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from gpuhash import _core

from .build import op_library

path = op_library.find_or_compile(Path(_core.__file__).resolve().parent)
ops: Any = tf.load_op_library(str(path))
