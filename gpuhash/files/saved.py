"""What tables of all kinds do with files and pickles."""

from __future__ import annotations

import os
from typing import Any, Self

from gpuhash.arrays.arguments import checked_name

from . import serialization

# torch.save pickles bytes as text, in up to two bytes each, and takes no text of 4 GiB or more.
_PART_BYTES = 1 << 30


class Saved:
    """A table that knows its ``device`` and ``_contents()``, and is made of such by ``_restore``."""

    @property
    def device(self) -> str:
        raise NotImplementedError

    def _contents(self) -> serialization.Contents:
        """What a file says of the table."""
        raise NotImplementedError

    @classmethod
    def _restore(cls, contents: serialization.Contents, device: object, memory: object, name: str | None) -> Self:
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table to a file in safetensors format, with the tensors "keys" and "values". Waits.

        A table with columns has a tensor "values.NAME" for each; a ``HashMultiMap`` a key for each value. Strings as
        keys are the tensors "keys.offsets", int64 ``[n + 1]``, and "keys.data", uint8.

        The file appears whole or not at all: what is written takes its place at the end. A file that is replaced keeps
        its mode and owner, as far as the process may set them, and a symbolic link leads to the new file; new files
        have the mode of the umask. A process that is killed leaves nothing, or on file systems without nameless files
        (``O_TMPFILE``) a ``.gpuhash.*.tmp``, which the next save to the folder removes. Other threads' calls wait while
        the items are copied out, and not while the file is written. The name, the memory resource and attributes that
        a derived class has added are not saved, and the rows are numbered anew.

        Raises
        ------
        OSError
            With the path: FileNotFoundError for a missing folder, PermissionError for a file that may not be written.
        """
        serialization.write_file(path, self._contents())

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: object = "cpu", memory: object = None, name: str | None = None
    ) -> Self:
        """The table that ``save`` wrote, on any device. The constructor of a derived class is not called.

        Raises
        ------
        TypeError
            For a name that is no string, or an empty one.
        ValueError
            Where the file is damaged, or holds no table of this class, and for a name that is taken.
        """
        checked_name(name)
        return cls._restore(serialization.read_file(path), device, memory, name)

    def __reduce__(self) -> tuple[Any, ...]:
        data = serialization.to_bytes(self._contents())
        parts = [data[begin : begin + _PART_BYTES] for begin in range(0, len(data), _PART_BYTES)]
        return unpickle, (type(self), self.device, *parts)

    def __setstate__(self, state: object) -> None:
        # Pickles call unpickle(), which checks all that it is given; one that sets attributes was not made by a table.
        raise TypeError(f"the pickle sets the state of a {type(self).__name__}, which no pickle made by gpuhash does")


def unpickle(kind: type[Saved], device: str, *parts: bytes) -> Saved:
    """What the pickle of a table calls to make it again; it checks as much as ``load`` does. Waits.

    The name and the memory resource of the table are not in its pickle, nor are attributes that a derived class has
    added, whose constructor is not called; and the rows are numbered anew.

    Parameters
    ----------
    kind
        ``HashTable``, ``HashSet``, ``HashMultiMap`` or a class derived from them.
    device
        "cpu", or "cuda:" and a number.
    *parts
        The contents of a file that ``save`` would write, in pieces.

    Raises
    ------
    TypeError
        For another class, and for anything but text and bytes.
    ValueError
        Where the bytes are damaged, or hold no table of this class.
    """
    if not (isinstance(kind, type) and issubclass(kind, Saved)):
        raise TypeError(f"{kind!r} was given, expected HashTable, HashSet or HashMultiMap")
    if not isinstance(device, str):
        raise TypeError(f"a device of type {type(device).__name__} was given, expected its name")
    for part in parts:
        if not isinstance(part, bytes):
            raise TypeError(f"a {type(part).__name__} was given, expected bytes")
    return kind._restore(serialization.from_bytes(b"".join(parts)), device, None, None)
