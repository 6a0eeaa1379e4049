"""A hash table for batches, in GPU or host memory, used like a dict whose keys and values are whole tensors."""

import sys
from importlib.metadata import version

try:
    from . import _core
except ImportError as error:
    if error.name != __name__:  # it is there and does not load
        raise
    from .building.missing_extension import reason

    raise ImportError(reason(__path__[0], sys.path)) from None

from ._core import CudaError, PlatformError, TableFullError
from .arrays.arrow_out import RecordBatch
from .files.saved import unpickle
from .files.store import TensorStore, store
from .frames.array_api import unique_all, unique_counts, unique_inverse, unique_values
from .frames.factorization import factorize, isin, unique
from .frames.grouping import group_by
from .frames.hashing import hash
from .frames.joining import Join, JoinIndices, get_indexer, join
from .frames.streaming import GroupBy
from .frames.taking import take
from .hash_multi_map import HashMultiMap
from .hash_set import HashSet
from .table import HashTable
from .tables.by_name import load, open
from .tables.named_columns import Column
from .threads import get_num_threads, set_num_threads
from .torch import dispatch
from .torch.pickling import allow_in_checkpoints

__all__ = [
    "Column",
    "CudaError",
    "GroupBy",
    "HashMultiMap",
    "HashSet",
    "HashTable",
    "Join",
    "JoinIndices",
    "PlatformError",
    "RecordBatch",
    "TableFullError",
    "TensorStore",
    "__version__",
    "factorize",
    "get_indexer",
    "get_num_threads",
    "group_by",
    "hash",
    "isin",
    "join",
    "load",
    "open",
    "set_num_threads",
    "store",
    "take",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unpickle",
]

__version__ = version("gpuhash")

# Pickles name them so, wherever they are defined.
for _public in (Column, GroupBy, HashMultiMap, HashSet, HashTable, Join, JoinIndices, unpickle):
    _public.__module__ = __name__
allow_in_checkpoints(HashMultiMap, HashSet, HashTable, unpickle)
_core.set_traced(get=dispatch.bind, call=dispatch.call)
dispatch.keep_dynamo_out(
    [module for name, module in sys.modules.items() if name.startswith(__name__ + ".") and module is not dispatch]
)
