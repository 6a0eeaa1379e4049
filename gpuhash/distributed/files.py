"""The files of a distributed table: one for each rank, and an index in JSON that names them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gpuhash.files import serialization
from gpuhash.files.serialization import Contents
from gpuhash.files.whole_file import write_whole

from .rows import RowFormat
from .words import host_tensor

INDEX = "index.json"
_MAX_FILES = 1 << 20
_NAME = re.compile(r"shard-[0-9]{5,7}-of-([0-9]{5,7})-([0-9a-f]{8})\.safetensors")  # ranks, and the save's token


@dataclass(frozen=True)
class Index:
    """What the index of a folder says."""

    folder: Path
    contents: Contents  # the options of the whole table, without items
    names: list[str]  # of the files
    counts: list[int]  # of their keys

    @property
    def size(self) -> int:
        return sum(self.counts)

    @property
    def kind(self) -> str:
        return self.contents.kind


class Saved:
    """What one rank writes of a table into a folder."""

    def __init__(self, path: str | os.PathLike[str], rank: int, ranks: int, token: str) -> None:
        self._folder = Path(path).absolute()
        self._rank = rank
        self._names = [f"shard-{each:05}-of-{ranks:05}-{token}.safetensors" for each in range(ranks)]
        self._previous: list[str] = []

    def write_shard(self, contents: Contents) -> int:
        """Writes this rank's file, and gives its number of keys."""
        self._folder.mkdir(parents=True, exist_ok=True)
        serialization.write_file(self._folder / self._names[self._rank], contents)
        return len(contents.keys)

    def write_index(self, contents: Contents, counts: list[int]) -> None:
        """Writes the index, if this is the first rank; from then on it is this table that the folder holds.

        OSError where a rank has written its file elsewhere.
        """
        if self._rank != 0:
            return
        for rank, name in enumerate(self._names):
            if not (self._folder / name).exists():
                raise OSError(
                    f"{name!r}, which rank {rank} has written, is not in {os.fspath(self._folder)!r}: the folder has "
                    "to be shared by all ranks; give the same one on each, on a file system that all see"
                )
        index = self._folder / INDEX
        if index.exists():
            self._previous = _names_in(index)
        files = [{"name": name, "keys": keys} for name, keys in zip(self._names, counts, strict=True)]
        text = json.dumps({"metadata": serialization.metadata_of(contents), "files": files}, indent=1)
        write_whole(index, lambda file: file.write(text.encode()))

    def remove_previous(self) -> None:
        """Removes the files of the table that was there before, and what saves that were killed have left."""
        if self._rank != 0:
            return
        for name in (*self._previous, *self._left_behind()):
            (self._folder / name).unlink(missing_ok=True)

    def _left_behind(self) -> list[str]:
        """Files of saves some of whose ranks wrote none: no index names them, and nobody can load them."""
        saves: dict[tuple[str, ...], list[str]] = {}
        for path in self._folder.iterdir():
            if (match := _NAME.fullmatch(path.name)) is not None and path.name not in self._names:
                saves.setdefault(match.groups(), []).append(path.name)
        return [name for (ranks, _), names in saves.items() if len(names) < int(ranks) for name in names]

    def withdraw(self) -> None:
        """Removes this rank's file, if it could be written: the save has failed, and says why."""
        with contextlib.suppress(OSError):
            (self._folder / self._names[self._rank]).unlink(missing_ok=True)


def _names_in(index: Path) -> list[str]:
    """The files that an index names, as far as they are named like ours: nothing else is removed."""
    try:
        entries = json.loads(index.read_text())["files"]
        return [entry["name"] for entry in entries if _NAME.fullmatch(entry["name"])]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []  # damaged, and about to be replaced


def read_index(path: str | os.PathLike[str]) -> Index:
    """The index of a folder. ValueError where it is damaged."""
    folder = Path(path).absolute()
    file = folder / INDEX
    if file.stat().st_size > serialization.MAX_HEADER_BYTES:
        raise ValueError(f"{os.fspath(file)!r} is no index: it has {file.stat().st_size} bytes")
    try:
        index = serialization.parse_header(file.read_bytes())
        contents = serialization.describe(index.get("metadata"))
        entries = index.get("files")
        if not isinstance(entries, list) or not 0 < len(entries) <= _MAX_FILES:
            raise ValueError("'files' is not a list of files")
        for entry in entries:
            if not isinstance(entry, dict) or entry.keys() != {"name", "keys"}:
                raise ValueError("an entry of 'files' has other fields than name and keys")
            if not isinstance(entry["name"], str) or not _NAME.fullmatch(entry["name"]):
                raise ValueError(f"{entry['name']!r} is not the name of a shard's file")
            if type(entry["keys"]) is not int or not 0 <= entry["keys"] < 1 << 48:
                raise ValueError(f"{entry['keys']!r} is not a number of keys")
    except ValueError as error:
        raise ValueError(f"{os.fspath(file)!r}: {error}") from None
    return Index(folder, contents, [entry["name"] for entry in entries], [entry["keys"] for entry in entries])


def chunk_count(index: Index, rank: int, ranks: int, size: int) -> int:
    """The number of chunks that ``chunks`` has something in."""
    return sum(-(-count // size) for count in index.counts[rank::ranks])


def chunks(index: Index, rank: int, ranks: int, size: int) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Keys, and values by name, of this rank's part of the files, up to ``size`` at once, on the host; in the end
    empty ones.

    Raises
    ------
    ValueError, OSError
        Where a file is damaged, missing, or of another table.
    """
    whole = index.contents
    key = RowFormat(whole.key_dtype, whole.key_shape)
    fields = {name: RowFormat(*kind) for name, kind in whole.fields.items()}
    for name, count in zip(index.names[rank::ranks], index.counts[rank::ranks], strict=True):
        contents = serialization.read_file(index.folder / name)
        theirs = (contents.key_dtype, contents.key_shape, contents.key_columns, contents.fields)
        if theirs != (whole.key_dtype, whole.key_shape, whole.key_columns, whole.fields):
            raise ValueError(f"{name!r} holds {theirs}, and is not of the table that the index describes")
        if len(contents.keys) != count:
            raise ValueError(f"{name!r} has {len(contents.keys)} keys, and {count} by the index")
        keys = host_tensor(contents.keys, key.dtype)
        arrays = contents.field_values
        values = {field: host_tensor(arrays[field], row.dtype) for field, row in fields.items()}
        for start in range(0, count, size):
            chunk = slice(start, start + size)
            yield keys[chunk], {name: rows[chunk] for name, rows in values.items()}
    while True:
        yield key.empty(0, "cpu"), {name: row.empty(0, "cpu") for name, row in fields.items()}
