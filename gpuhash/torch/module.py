"""TableModule: a table as a part of a model that is exported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import torch

from gpuhash import HashSet, HashTable, named_columns
from gpuhash.torch_state import default_of, named_state_of

from . import calls


class TableModule(torch.nn.Module):  # type: ignore[misc]
    """A table as a module, for models that ``torch.export`` takes.

    The exported program has the handle of the table's name as a buffer, and not its items: in the process that loads it
    there has to be a table of that name, with keys and values of the same dtypes and shapes, when it runs. In functions
    that ``torch.compile`` takes, a table needs no module.

    Parameters
    ----------
    table
        A HashTable or HashSet, kept as the attribute ``table``. One without a name is found in this process alone.

    Notes
    -----
    The methods are those of the table, for tensors where the table is; numbers may be values and defaults. A default
    that is a tensor gets the derivatives of absent keys' values, by ``backward()`` and under ``torch.func``; keys have
    none, and values that are stored may not require any. ``.to()`` moves neither the table nor its state, and copies of
    the module share the table.

    Raises
    ------
    TypeError
        For what is no table, and for one with columns.
    ImportError
        Where the ops can be neither loaded nor compiled.
    """

    table: HashTable | HashSet
    _torch_state: torch.Tensor
    _torch_default: torch.Tensor | None

    def __init__(self, table: HashTable | HashSet) -> None:
        super().__init__()
        if not isinstance(table, (HashTable, HashSet)):
            raise TypeError(f"a {type(table).__name__} was given, expected a HashTable or HashSet")
        named_columns.refuse(table._columns, "a TableModule")
        self.table = table
        self._key_dtype, self._key_shape = table._key_dtype, table._key_shape
        self._value_dtype, self._value_shape = table._value_dtype, table._value_shape
        self._initializer = table._initializer
        self._register_table()

    def _register_table(self) -> None:
        table = self.table
        self.register_buffer("_torch_state", named_state_of(table), persistent=False)
        has_default = isinstance(table, HashTable) and table._torch_default is not None
        self.register_buffer("_torch_default", default_of(table) if has_default else None, persistent=False)

    def _face(self) -> Any:
        """What calls ask for state and default: the buffers are for programs that are exported.

        Elsewhere the table is asked, whose state never stands for another table that has got its name; and others, such
        as DistributedDataParallel, write into buffers.
        """
        return self if torch.compiler.is_exporting() else self.table

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        own = ("_torch_state", "_torch_default")
        buffers = {name: buffer for name, buffer in self._buffers.items() if name not in own}
        return {**self.__dict__, "_buffers": buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._register_table()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self.table)] = self.table
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return made

    def extra_repr(self) -> str:
        return repr(self.table)

    def _need_values(self) -> None:
        if self._value_dtype is None:
            raise TypeError("a HashSet has no values: call contains, add or erase")

    def size(self) -> int:
        """The number of keys. Waits."""
        size: int = torch.ops.gpuhash.size(self._face()._torch_state)
        return size

    def find(self, keys: Any, default: Any = None) -> tuple[Any, Any]:
        """``(values, found)``, as ``HashTable.find``."""
        self._need_values()
        return calls.find(self._face(), keys, default)

    def get(self, keys: Any, default: Any = None) -> Any:
        """As ``HashTable.get``."""
        self._need_values()
        return calls.get(self._face(), keys, default)

    def __getitem__(self, keys: Any) -> Any:
        """The values of keys; an IndexError where some are absent, unless the table has a default."""
        self._need_values()
        return calls.getitem(self._face(), keys)

    def __setitem__(self, keys: Any, values: Any) -> None:
        self._need_values()
        calls.setitem(self._face(), keys, values)

    def contains(self, keys: Any) -> Any:
        """As ``HashTable.contains``."""
        return calls.contains(self._face(), keys)

    def rows(self, keys: Any) -> Any:
        """As ``HashTable.rows``."""
        self._need_values()
        return calls.rows(self._face(), keys)

    def insert(self, keys: Any, values: Any) -> Any:
        """As ``HashTable.insert``."""
        self._need_values()
        return calls.insert(self._face(), keys, values)

    def insert_or_assign(self, keys: Any, values: Any) -> Any:
        """As ``HashTable.insert_or_assign``."""
        self._need_values()
        return calls.insert_or_assign(self._face(), keys, values)

    def insert_or_apply(self, keys: Any, values: Any, op: str) -> Any:
        """As ``HashTable.insert_or_apply``."""
        self._need_values()
        return calls.insert_or_apply(self._face(), keys, values, op)

    def find_or_insert(self, keys: Any, values: Any = None) -> tuple[Any, Any]:
        """``(rows, is_new)``, as ``HashTable.find_or_insert``."""
        self._need_values()
        return calls.find_or_insert(self._face(), keys, values)

    def add(self, keys: Any) -> Any:
        """As ``HashSet.add``."""
        if self._value_dtype is not None:
            raise TypeError("a HashTable has values, too: call insert or insert_or_assign")
        return calls.add(self._face(), keys)

    def erase(self, keys: Any) -> Any:
        """As ``HashTable.erase``."""
        return calls.erase(self._face(), keys)
