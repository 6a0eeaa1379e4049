"""A hash table for batches, in GPU or host memory, used like a dict whose keys and values are whole tensors."""

import sys
from importlib.metadata import version

from . import _core, traced
from ._core import CudaError, PlatformError, TableFullError
from .hash_set import HashSet
from .set_routines import factorize, isin, unique
from .store import TensorStore, store
from .table import HashTable
from .tables import load, open
from .untraced import keep_dynamo_out

__all__ = [
    "CudaError",
    "HashSet",
    "HashTable",
    "PlatformError",
    "TableFullError",
    "TensorStore",
    "__version__",
    "factorize",
    "isin",
    "load",
    "open",
    "store",
    "unique",
]

__version__ = version("gpuhash")

_core.set_traced_get(traced.bind)
keep_dynamo_out(
    [module for name, module in sys.modules.items() if name.startswith(__name__ + ".") and module is not traced]
)
