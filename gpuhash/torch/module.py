"""TableModule: a table as a part of a model that is exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from gpuhash import HashSet, HashTable
from gpuhash.torch_state import named_state_of

from . import calls
from .library import ops


class TableModule(torch.nn.Module):  # type: ignore[misc]
    """A table as a module, for models that ``torch.export`` takes.

    The exported program has the handle of the table's name as a buffer, and not its items: in the process that loads it
    there has to be a table of that name, with keys and values of the same dtypes and shapes, when it runs. In functions
    that ``torch.compile`` takes, a table needs no module.

    Parameters
    ----------
    table
        A HashTable or HashSet, kept as the attribute ``table``. One without a name is found in this process alone.

    The methods are those of the table, for tensors where the table is; numbers may be values and defaults. A default
    that is a tensor gets the derivatives of absent keys' values, by ``backward()`` and under ``torch.func``; keys have
    none, and values that are stored may not require any. ``.to()`` moves neither the table nor its state, and copies of
    the module share the table.
    """

    table: HashTable | HashSet
    _torch_state: torch.Tensor
    _torch_default: torch.Tensor | None

    def __init__(self, table: HashTable | HashSet) -> None:
        super().__init__()
        if not isinstance(table, (HashTable, HashSet)):
            raise TypeError(f"a {type(table).__name__} was given, expected a HashTable or HashSet")
        self.table = table
        self._key_dtype, self._key_shape = table._key_dtype, table._key_shape
        self._value_dtype, self._value_shape = table._value_dtype, table._value_shape
        self.register_buffer("_torch_state", named_state_of(table), persistent=False)
        default = table._torch_default if isinstance(table, HashTable) else None
        self.register_buffer("_torch_default", default, persistent=False)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self.table)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table,)

    def extra_repr(self) -> str:
        return repr(self.table)

    def _need_values(self) -> None:
        if self._value_dtype is None:
            raise TypeError("a HashSet has no values: call contains, add or erase")

    def size(self) -> int:
        """The number of keys. Waits."""
        size: int = ops.size(self._torch_state)
        return size

    def find(self, keys: Any, default: Any = None) -> tuple[Any, Any]:
        """``(values, found)``, as ``HashTable.find``."""
        self._need_values()
        return calls.find(self, keys, default)

    def get(self, keys: Any, default: Any = None) -> Any:
        """As ``HashTable.get``."""
        self._need_values()
        return calls.get(self, keys, default)

    def __getitem__(self, keys: Any) -> Any:
        """The values of keys; an IndexError where some are absent, unless the table has a default."""
        self._need_values()
        return calls.getitem(self, keys)

    def __setitem__(self, keys: Any, values: Any) -> None:
        self._need_values()
        calls.setitem(self, keys, values)

    def contains(self, keys: Any) -> Any:
        """As ``HashTable.contains``."""
        return calls.contains(self, keys)

    def rows(self, keys: Any) -> Any:
        """As ``HashTable.rows``."""
        self._need_values()
        return calls.rows(self, keys)

    def insert(self, keys: Any, values: Any) -> Any:
        """As ``HashTable.insert``."""
        self._need_values()
        return calls.insert(self, keys, values)

    def insert_or_assign(self, keys: Any, values: Any) -> Any:
        """As ``HashTable.insert_or_assign``."""
        self._need_values()
        return calls.insert_or_assign(self, keys, values)

    def insert_or_apply(self, keys: Any, values: Any, op: str) -> Any:
        """As ``HashTable.insert_or_apply``."""
        self._need_values()
        return calls.insert_or_apply(self, keys, values, op)

    def add(self, keys: Any) -> Any:
        """As ``HashSet.add``."""
        if self._value_dtype is not None:
            raise TypeError("a HashTable has values, too: call insert or insert_or_assign")
        return calls.add(self, keys)

    def erase(self, keys: Any) -> Any:
        """As ``HashTable.erase``."""
        return calls.erase(self, keys)
