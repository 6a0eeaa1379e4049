"""A hash table for batches, in GPU or host memory, used like a dict whose keys and values are whole tensors."""

from importlib.metadata import version

from ._core import CudaError, PlatformError, TableFullError
from .hash_set import HashSet
from .set_routines import factorize, isin, unique
from .store import TensorStore, store
from .table import HashTable
from .tables import load, open

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
