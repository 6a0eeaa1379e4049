"""Tables by their names in this process, and tables from files, whatever their class."""

from __future__ import annotations

import os

from gpuhash import _core
from gpuhash.arrays.arguments import checked_name, is_unicode
from gpuhash.files import serialization
from gpuhash.hash_multi_map import HashMultiMap
from gpuhash.hash_set import HashSet
from gpuhash.table import HashTable


def open(name: str) -> HashTable | HashSet:
    """The table that was made with this name: another object, the same memory.

    What a table does with absent keys (``default=``) belongs to the object that it was given to, and is not shared.

    Raises
    ------
    KeyError
        Where no table of this process has the name.
    TypeError
        For a name that is no string.
    """
    if not isinstance(name, str):
        raise TypeError(f"open({name!r}) was called, expected a table's name, a string")
    core = _core.find_table(name) if is_unicode(name) else None
    if core is None:
        raise KeyError(f"no table is named {name!r}; there are: {', '.join(_core.table_names()) or 'none'}")
    return HashSet._open(core, name) if core.value_dtype is None and not core.columns else HashTable._open(core, name)


def load(
    path: str | os.PathLike[str], *, device: object = "cpu", memory: object = None, name: str | None = None
) -> HashTable | HashSet | HashMultiMap:
    """The table, set or multimap that ``save`` wrote, on any device.

    Raises
    ------
    TypeError
        For a name that is no string, or an empty one.
    ValueError
        Where the file is damaged, or none of gpuhash's, and for a name that is taken, or that a multimap is to have.
    """
    checked_name(name)
    contents = serialization.read_file(path)
    kinds: dict[str, type[HashTable | HashSet | HashMultiMap]] = {
        "table": HashTable,
        "set": HashSet,
        "multimap": HashMultiMap,
    }
    return kinds[contents.kind]._restore(contents, device, memory, name)
