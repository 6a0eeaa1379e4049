"""The table inside JAX's compiled programs: custom calls of XLA, on CPU and GPU, under jit, scan, vmap and shard_map.

The handlers are compiled against the jaxlib that is installed when this package is imported for the first time, which
takes about 15 seconds and a C++ compiler, and then come from a cache. JAX 0.6 or newer.
"""

from gpuhash.frames.factorization import Factorized

from .calls import (
    apply_and_find,
    contains,
    erase,
    find,
    find_or_insert,
    get,
    insert,
    insert_or_apply,
    insert_or_assign,
    pop,
    rows,
    setdefault,
    size,
)
from .exchange import owners
from .factorization import factorize, isin, unique
from .state import State, from_table, from_tables, make_tables

__all__ = [
    "Factorized",
    "State",
    "apply_and_find",
    "contains",
    "erase",
    "factorize",
    "find",
    "find_or_insert",
    "from_table",
    "from_tables",
    "get",
    "insert",
    "insert_or_apply",
    "insert_or_assign",
    "isin",
    "make_tables",
    "owners",
    "pop",
    "rows",
    "setdefault",
    "size",
    "unique",
]
