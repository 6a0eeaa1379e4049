"""A hash table for batches, in GPU or host memory, used like a dict whose keys and values are whole tensors."""

from importlib.metadata import version

from ._core import CudaError, PlatformError, TableFullError
from .hash_set import HashSet
from .set_routines import factorize, isin, unique
from .store import TensorStore, store
from .table import HashTable
from .tables import load, open
from .threads import get_num_threads, set_num_threads

__all__ = [
    "CudaError",
    "HashSet",
    "HashTable",
    "PlatformError",
    "TableFullError",
    "TensorStore",
    "__version__",
    "factorize",
    "get_num_threads",
    "isin",
    "load",
    "open",
    "set_num_threads",
    "store",
    "unique",
]

__version__ = version("gpuhash")
