"""TableModule: a table as a part of a model that is exported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import torch

from gpuhash import Column, CudaError, HashSet, HashTable, TableFullError
from gpuhash.keys.strings import no_strings
from gpuhash.signatures import SIGNATURES
from gpuhash.tables.dict_methods import NO_DEFAULT

from . import calls
from .state import default_of, named_state_of

#: What calls ask of a table, under its names there.
_OF_TABLE = ("_key_dtype", "_key_shape", "_value_dtype", "_value_shape", "_columns", "_initializer")


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
    The methods are those of the table, for tensors where the table is; numbers may be values and defaults. With named
    columns values are mappings of names to such. A default of ``find`` and ``get`` that is a tensor gets the
    derivatives of absent keys' values, by ``backward()`` and under ``torch.func``; keys have none, and values that are
    stored, and other defaults, may not require any. Outside of graphs the errors are those of tables. ``.to()`` moves
    neither the table nor its state, and copies of the module share the table.

    Raises
    ------
    TypeError
        For what is no table.
    ImportError
        Where the ops can be neither loaded nor compiled.
    """

    table: HashTable | HashSet
    _torch_state: torch.Tensor
    _columns: dict[str, Column] | None

    def __init__(self, table: HashTable | HashSet) -> None:
        super().__init__()
        if not isinstance(table, (HashTable, HashSet)):
            raise TypeError(f"a {type(table).__name__} was given, expected a HashTable or HashSet")
        if table._string_keys is not None:
            raise TypeError(no_strings(table.key_dtype, "graphs of PyTorch have"))
        self.table = table
        self._register_table()

    def _register_table(self) -> None:
        table = self.table
        for name in _OF_TABLE:
            setattr(self, name, getattr(table, name))
        self._columns_of_ops = calls.columns_of(table)
        self.register_buffer("_torch_state", named_state_of(table), persistent=False)
        default = default_of(table) if isinstance(table, HashTable) and table._torch_default is not None else {}
        named = default if isinstance(default, dict) else {"": default}
        #: The buffers of the columns' defaults, by the columns' names.
        self._default_names = {name: f"_torch_default_{number}" for number, name in enumerate(named)}
        for name, buffer in self._default_names.items():
            self.register_buffer(buffer, named[name], persistent=False)

    def _face(self) -> Any:
        """What calls ask for state and default: the buffers are for programs that are exported.

        Elsewhere the table is asked, whose state never stands for another table that has got its name; and others, such
        as DistributedDataParallel, write into buffers.
        """
        return self if torch.compiler.is_exporting() else self.table

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        own = ("_torch_state", *self._default_names.values())
        buffers = {name: buffer for name, buffer in self._buffers.items() if name not in own}
        made = (*_OF_TABLE, "_columns_of_ops", "_default_names")  # of the table, as the buffers
        state = {name: value for name, value in self.__dict__.items() if name not in made}
        return {**state, "_buffers": buffers}

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

    @property
    def _torch_default(self) -> Any:
        """The table's default, as tables have it."""
        if not self._default_names:
            return None
        defaults = {name: getattr(self, buffer) for name, buffer in self._default_names.items()}
        return defaults if self._columns is not None else defaults[""]

    def _check_kind(self, name: str) -> None:
        """TypeError for a call that needs values of a set, or the other way round."""
        needs, method = SIGNATURES[name].needs, SIGNATURES[name].method
        is_set = isinstance(self.table, HashSet)
        if is_set and needs in ("values", "rows"):
            raise TypeError(f"a HashSet has no values, and no {method}: call contains, add, erase or remove")
        if not is_set and needs == "set":
            raise TypeError(f"a HashTable has values, and no {method}: call insert or insert_or_assign")

    def _run(self, name: str, keys: Any, columns: Any = None, **given: Any) -> Any:
        """The call of the manifest of that name."""
        self._check_kind(name)
        return _with_errors_of_tables(
            calls.run, SIGNATURES[name], self._face(), keys, given, columns, self._columns_of_ops
        )

    def size(self) -> int:
        """The number of keys. Waits."""
        size: int = _with_errors_of_tables(torch.ops.gpuhash.size, self._face()._torch_state)
        return size

    def find(self, keys: Any, default: Any = None, *, columns: Any = None) -> tuple[Any, Any]:
        """``(values, found)``, as ``HashTable.find``."""
        answers: tuple[Any, Any] = self._run("find", keys, columns, default=default)
        return answers

    def get(self, keys: Any, default: Any = None) -> Any:
        """As ``HashTable.get``."""
        return self._run("get", keys, default=default)

    def __getitem__(self, keys: Any) -> Any:
        """The values of keys; a KeyError where some are absent, unless the table has a default. Waits."""
        return self._run("getitem", keys)

    def __setitem__(self, keys: Any, values: Any) -> None:
        """Assigns values to keys, new or not."""
        self._run("setitem", keys, values=values)

    def __delitem__(self, keys: Any) -> None:
        """Erases keys. Waits. A KeyError if any is absent: then none is erased."""
        self._run("delete", keys)

    def __contains__(self, key: object) -> bool:
        """Is this one key there? Waits. In a compiled function it breaks the graph; ``contains`` does not."""
        return key in self.table

    def contains(self, keys: Any) -> Any:
        """As ``HashTable.contains``."""
        return self._run("contains", keys)

    def rows(self, keys: Any) -> Any:
        """As ``HashTable.rows``."""
        return self._run("rows", keys)

    def insert(self, keys: Any, values: Any) -> Any:
        """As ``HashTable.insert``."""
        return self._run("insert", keys, values=values)

    def insert_or_assign(self, keys: Any, values: Any) -> Any:
        """As ``HashTable.insert_or_assign``."""
        return self._run("insert_or_assign", keys, values=values)

    def insert_or_apply(self, keys: Any, values: Any, op: Any) -> Any:
        """As ``HashTable.insert_or_apply``."""
        return self._run("insert_or_apply", keys, values=values, op=op)

    def apply_and_find(self, keys: Any, values: Any, op: Any) -> tuple[Any, Any]:
        """``(values, is_new)``, as ``HashTable.apply_and_find``."""
        answers: tuple[Any, Any] = self._run("apply_and_find", keys, values=values, op=op)
        return answers

    def find_or_insert(self, keys: Any, values: Any = None) -> tuple[Any, Any]:
        """``(rows, is_new)``, as ``HashTable.find_or_insert``."""
        answers: tuple[Any, Any] = self._run("find_or_insert", keys, values=values)
        return answers

    def setdefault(self, keys: Any, default: Any = None) -> Any:
        """As ``HashTable.setdefault``."""
        return self._run("setdefault", keys, default=default)

    def add(self, keys: Any) -> Any:
        """As ``HashSet.add``."""
        return self._run("add", keys)

    def erase(self, keys: Any) -> Any:
        """As ``HashTable.erase``."""
        return self._run("erase", keys)

    def remove(self, keys: Any) -> None:
        """As ``HashSet.remove``, and ``del table[keys]``."""
        self._run("delete", keys)

    def pop(self, keys: Any, default: Any = NO_DEFAULT) -> Any:
        """As ``HashTable.pop``."""
        if default is NO_DEFAULT:
            return self._run("pop", keys)
        return self._run("pop", keys, default=default)

    def popitem(self) -> tuple[Any, Any]:
        """As ``HashTable.popitem``, by the table itself: in a compiled function it breaks the graph."""
        self._check_kind("popitem")
        return self.table.popitem()  # type: ignore[union-attr]


def _with_errors_of_tables(function: Callable[..., Any], *args: Any) -> Any:
    """The call; outside of graphs it raises what tables raise, for which PyTorch has no exception of C++'s."""
    if torch.compiler.is_compiling():
        return function(*args)
    try:
        return function(*args)
    except (IndexError, RuntimeError) as error:
        raise _error_of_tables(error) from None


def _error_of_tables(error: Exception) -> Exception:
    if isinstance(error, IndexError):
        return KeyError(str(error))
    name, _, text = str(error).partition(": ")
    kinds = {"TableFullError": TableFullError, "CudaError": CudaError, "MemoryError": MemoryError}
    return kinds[name](text) if name in kinds else error
