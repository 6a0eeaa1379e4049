"""Tables by their names in this process, and tables from files, whatever their class."""

from __future__ import annotations

import os

from . import _core, serialization
from .hash_set import HashSet
from .table import HashTable


def open(name: str) -> HashTable | HashSet:
    """The table that was made with this name: another object, the same memory.

    What a table does with absent keys (``default=``) belongs to the object that it was given to, and is not shared.

    Raises
    ------
    KeyError
        Where no table of this process has the name.
    """
    core = _core.find_table(name)
    if core is None:
        raise KeyError(f"no table is named {name!r}; there are: {', '.join(_core.table_names()) or 'none'}")
    return HashSet._open(core, name) if core.value_dtype is None and not core.columns else HashTable._open(core, name)


def load(
    path: str | os.PathLike[str], *, device: object = "cpu", memory: object = None, name: str | None = None
) -> HashTable | HashSet:
    """The table or set that ``save`` wrote, on any device.

    Raises
    ------
    ValueError
        Where the file is damaged, or none of gpuhash's.
    """
    contents = serialization.read_file(path)
    kind = HashSet if contents.is_set else HashTable
    return kind._restore(contents, device, memory, name)
