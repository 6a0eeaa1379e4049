"""What distributed tables and sets are made of: a shard for each rank, its size and place, copies and files."""

from __future__ import annotations

import copy
import itertools
import math
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from gpuhash.arrays import consumers
from gpuhash.arrays.arguments import count_of, seed_of
from gpuhash.arrays.frameworks import Shape
from gpuhash.files import serialization
from gpuhash.hash_set import HashSet
from gpuhash.keys.columns import KeyColumns
from gpuhash.keys.strings import no_strings
from gpuhash.tables.keyed_table import LEAST_LOAD_FACTOR

from . import files
from .call import attempt
from .group import Group, check_member, default_device, device_of, meeting_place
from .rows import RowFormat

_CHUNK = 1 << 24  # keys of a file that are on their way at once
_NO_ARRAY = (
    "its items lie with several processes: ask it with contains(keys), which is collective, or give its shard's keys()"
)
#: What ``_adopt`` sets: deep copies have their own, or share it as copies do.
_OWN_ATTRIBUTES = frozenset(
    {"_steps", "_seed", "_shard", "_key", "_key_columns", "_values", "_row_bytes", "_size_bound"}
)
_numbers = itertools.count(1)  # of the tables that this process has made


class Shards:
    """A shard for each rank; ``Keyed`` adds the calls with keys."""

    _local: type[Any]  # of the shards

    __iter__ = None  # each rank would go its own way: iterate over the shard, or over keys()

    def _make(self, group: Any, device: Any, options: Callable[[], dict[str, Any]], how: str = "") -> None:
        """Makes this rank's shard, together with all other ranks. ``how``: by what of the class, for messages."""
        check_member(group)
        call = f"{type(self).__name__}{how}()"
        where, misplaced = attempt(lambda: device_of(device, group))
        own = where or default_device(group)
        steps, place = Group(group, own), meeting_place(group, own)
        meeting = steps if place == own else Group(group, place)
        with meeting.call(call):
            meeting.open(None, None)  # as all operations begin: another rank may have called one
        with steps.call(call):
            given, problem = attempt(lambda: self._share(options(), steps.size))
            # All ranks take the number and the seed of the first: the seed may be a random one.
            told = steps.tell_all((next(_numbers), None if given is None else given["seed"]), misplaced or problem)
            steps.table, seed = told[0]
            shard, problem = attempt(lambda: self._local(**_options_of_shard(given, seed), device=str(where)))
            said = None if problem else {**_describe(shard), **_said(given), "device": steps.wire.type}
            kinds = steps.tell_all(said, problem)
            different = [name for name in kinds[0] if any(kind[name] != kinds[0][name] for kind in kinds)]
            if different:
                each = "; ".join(
                    f"rank {rank}: " + ", ".join(f"{name}={kind[name]!r}" for name in different)
                    for rank, kind in enumerate(kinds)
                )
                raise steps.on_all(ValueError(f"the ranks make different tables: {each}; give all ranks the same"))
        self._adopt(shard, steps, seed or 0)

    @staticmethod
    def _share(options: dict[str, Any], ranks: int) -> dict[str, Any]:
        """The options of the whole table as those of one shard."""
        slots = {
            name: math.ceil(count_of(options[name], name) / ranks)
            for name in ("capacity", "max_capacity")
            if options[name] is not None
        }
        is_random = isinstance(options["seed"], str)  # otherwise each rank says the same number
        return {**options, **slots, "seed": seed_of(options["seed"]), "is_random": is_random}

    def _adopt(self, shard: Any, steps: Group, seed: int) -> None:
        """All attributes are set here. ValueError, on all ranks alike, for keys that are strings."""
        if shard._string_keys is not None:
            raise ValueError(no_strings(shard.key_dtype, "distributed tables have"))
        self._steps = steps
        self._seed = seed  # of the owners' hash, and of the shards' at first
        self._shard = shard
        self._key = RowFormat(shard.key_dtype, shard.key_shape)
        self._key_columns: KeyColumns | None = shard._key_columns
        self._row_bytes = self._key.bytes  # of what is sent for a key: without values
        self._size_bound = len(shard)  # keys that the shard may have

    def _agree(self, work: Callable[[], Any]) -> None:
        """Does what may fail on one rank, and goes on where it has failed on none."""
        self._steps.agree(attempt(work)[1])

    # Sizes and places ------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Erases all keys of all ranks; the capacity stays. Collective; waits."""
        with self._steps.call("clear"):
            self._steps.open(None, None)
            self._agree(lambda: self._shard.clear())
            self._size_bound = 0

    def __len__(self) -> int:
        """The number of keys of all ranks together. Collective; waits.

        TypeError where pandas asks, which then would take the table for a value (``Series.map``).
        """
        if consumers.wants_pairs(self):
            raise self._no_mapping()
        return sum(self._tell_counts("len", lambda: len(self._shard)))

    def _tell_counts(self, operation: str, count: Callable[[], int]) -> list[int]:
        """A number of each rank, for all of them."""
        with self._steps.call(operation):
            number, problem = attempt(count)
            return self._steps.open([number or 0] * self._steps.size, problem).receive

    def reserve(self, size: int) -> None:
        """Makes room for ``size`` keys in all. Collective: all ranks give the same number. Waits.

        A shard gets room for its part and six standard deviations more, as the keys are spread by chance.

        Raises
        ------
        TableFullError, MemoryError
            On all ranks, where one shard has no room.
        """
        sizes = self._tell_counts("reserve", lambda: count_of(size, "size"))
        with self._steps.call("reserve"):
            if len(set(sizes)) > 1:
                raise self._steps.on_all(ValueError(f"the ranks reserve different sizes: {sizes}; give one"))
            self._agree(lambda: self._shard.reserve(self._part_of(sizes[0])))

    def _part_of(self, size: int) -> int:
        """The keys that a shard hardly ever has more of, where all have ``size``."""
        mean = size / self._steps.size
        return min(size, math.ceil(mean + 6 * math.sqrt(mean)))

    @property
    def shard(self) -> Any:
        """The part of this rank, a ``gpuhash.HashTable`` or ``HashSet``: to be read, saved, measured, and not changed.

        Which keys it has is decided by their hash and the number of ranks.
        """
        return self._shard

    @property
    def group(self) -> Any:
        """The process group."""
        return self._steps.process_group

    @property
    def rank(self) -> int:
        """The number of this process in the group."""
        return self._steps.rank

    @property
    def world_size(self) -> int:
        """The number of ranks, each of which has a shard."""
        return self._steps.size

    @property
    def device(self) -> str:
        """Where this rank's shard is."""
        name: str = self._shard.device
        return name

    @property
    def key_dtype(self) -> str:
        """The name of the keys' dtype. With key columns "uint8": rows of bytes."""
        return self._key.dtype

    @property
    def key_shape(self) -> Shape:
        """The shape of one key: ``()`` for integers; with key columns ``(bytes,)``."""
        return self._key.shape

    @property
    def key_columns(self) -> Mapping[str, str] | None:
        """The dtypes of the key columns by their names, in order; None where keys are one array."""
        columns: Mapping[str, str] | None = self._shard.key_columns
        return columns

    @property
    def max_load_factor(self) -> float:
        """Keys per slot that no shard passes: it grows before."""
        factor: float = self._shard.max_load_factor
        return factor

    @property
    def deterministic(self) -> bool:
        """Whether of a key's duplicates the last stays (with ``insert`` the first), by ranks, then by positions."""
        return bool(self._shard.deterministic)

    def to(self, device: Any, *, memory: Any = None) -> Self:
        """A table of the same items whose shards are on another device; this rank's on ``device``. Collective; waits.

        ``memory`` as for the constructor. Itself where all shards are there already.
        """
        return self._derive("to", device, lambda where: self._shard.to(where, memory=memory))

    def copy(self) -> Self:
        """An independent table of the same items. Collective; waits."""
        return self._derive("copy", self._steps.device, lambda _: self._shard.copy())

    def _derive(self, operation: str, device: Any, make: Callable[[str], Any]) -> Self:
        """A table of other shards, or this one where they are the same on all ranks."""

        def made() -> tuple[Any, Group]:
            where = device_of(device, self._steps.process_group)
            return make(str(where)), Group(self._steps.process_group, where)

        with self._steps.call(operation):
            self._steps.open(None, None)
            results, problem = attempt(made)
            shard, steps = results or (None, self._steps)
            told = self._steps.tell_all((next(_numbers), shard is self._shard, steps.wire.type), problem)
            wires = [wire for _, _, wire in told]
            if len(set(wires)) > 1:
                raise self._steps.on_all(ValueError(f"the ranks ask for devices that cannot be connected: {wires}"))
        if all(same for _, same, _ in told):
            return self
        steps.table = told[0][0]
        derived = object.__new__(type(self))
        derived._adopt(shard if shard is not self._shard else shard.copy(), steps, self._seed)
        for name, attribute in vars(self).items():  # those that a derived class has added
            if name not in vars(derived):
                setattr(derived, name, attribute)
        return derived

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """As ``copy``: collective, so that all ranks copy what holds the table, such as a module, at the same time."""
        made = self.copy()
        memo[id(self)] = made  # attributes may lead back to the table
        own = vars(self)
        for name, attribute in vars(made).items():
            if own.get(name) is attribute and name not in _OWN_ATTRIBUTES:
                setattr(made, name, copy.deepcopy(attribute, memo))
        return made

    def _no_mapping(self) -> TypeError:
        """For libraries that take any mapping, and would read one rank's part."""
        return TypeError(
            f"a distributed {type(self).__name__} is no mapping for others: its items lie with several processes; give "
            "its shard, or a gpuhash.HashTable of what gather() gives"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """TypeError: NumPy would take the table for one object, and find it nowhere."""
        raise TypeError(f"a distributed {type(self).__name__} is no array: {_NO_ARRAY}")

    #: No arithmetic of NumPy: ``array == table`` would be False for each number of the array.
    __array_ufunc__ = None

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a distributed {type(self).__name__} cannot be pickled, as no process has all of it: save it with save(), "
            "or pickle its shard"
        )

    def __repr__(self) -> str:
        return f"<gpuhash.distributed.{type(self).__name__}, rank {self.rank} of {self.world_size}: {self._shard!r}>"

    # Files -----------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table into a folder: a safetensors file for each rank, and ``index.json``. Collective; waits.

        All ranks give the same folder, on a file system that they share; it is made if need be. The files are such as
        ``gpuhash.HashTable.save`` writes, with the tensors "keys" and "values", and appear whole or not at all. The
        index, which names them, comes last: until then a table that was saved there before can be loaded, and its files
        go afterwards. So do files that ranks of a save have left that was killed before all had written theirs.

        Raises
        ------
        OSError
            On all ranks, where one cannot write, or their folders are not the same.
        """
        with self._steps.call("save"):
            self._steps.open(None, None)
            token = self._steps.tell_all(secrets.token_hex(4))[0]
            saved = files.Saved(path, self._steps.rank, self._steps.size, token)
            count, problem = attempt(lambda: saved.write_shard(self._shard._contents()))
            try:
                counts = self._steps.tell_all(count, problem)
                self._agree(lambda: saved.write_index(self._whole(), counts))
            except BaseException:
                saved.withdraw()
                raise
            self._agree(saved.remove_previous)

    def _whole(self) -> serialization.Contents:
        """What the index says: the options of the whole table, without items."""
        contents: serialization.Contents = self._shard._contents(items=False)
        if contents.max_capacity is not None:
            contents.max_capacity *= self._steps.size
        contents.seed = self._seed or None
        return contents

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: Any = None, memory: Any = None, group: Any = None) -> Self:
        """The table that ``save`` wrote, by any number of ranks. Collective; waits.

        Parameters
        ----------
        path
            The folder, the same on all ranks.
        device, memory, group
            As for the constructor.

        Raises
        ------
        ValueError, OSError
            On all ranks, where a file is damaged or missing, or is none of this class.
        TableFullError, MemoryError
            On all ranks, where a shard has no room.
        """
        indexes: list[files.Index] = []

        def options() -> dict[str, Any]:
            index = files.read_index(path)
            if index.kind != ("set" if cls._local is HashSet else "table"):
                raise ValueError(f"{os.fspath(path)!r} holds a {index.kind}, and not what {cls.__name__} is for")
            indexes.append(index)
            return {**cls._options_of(index.contents), "memory": memory}

        made = cls.__new__(cls)
        made._make(group, device, options, ".load")
        made._fill(indexes[0])
        return made

    @staticmethod
    def _options_of(contents: serialization.Contents) -> dict[str, Any]:
        """The constructor's options for what a file says."""
        return {
            "key_dtype": contents.key_dtype if contents.key_columns is None else dict(contents.key_columns.dtypes),
            "key_shape": contents.key_shape if contents.key_columns is None else (),
            "capacity": 0,
            "max_load_factor": contents.max_load_factor,
            "growth": True,
            "max_capacity": contents.max_capacity,
            "deterministic": contents.deterministic,
            "seed": contents.seed,
        }

    def _fill(self, index: files.Index) -> None:
        """Puts a file's items into this new table."""
        shard, rank, ranks = self._shard, self._steps.rank, self._steps.size
        factor = shard.max_load_factor
        room = self._part_of(index.size)
        with self._steps.call("load"):
            self._steps.open(None, None)
            shard.max_load_factor = max(factor, LEAST_LOAD_FACTOR)
            self._agree(lambda: shard.reserve(room if shard.max_capacity is None else min(room, shard.max_capacity)))
        parts = files.chunks(index, rank, ranks, _CHUNK)
        for _ in range(max(files.chunk_count(index, each, ranks, _CHUNK) for each in range(ranks))):
            self._assign_chunk(lambda: next(parts))
        shard.max_load_factor = factor
        if len(self) != index.size:
            raise ValueError(
                f"the files have {index.size} keys, of which only some are distinct: they are damaged, or not of one "
                "table"
            )

    def _assign_chunk(self, chunk: Callable[[], tuple[Any, Any]]) -> None:
        raise NotImplementedError


def _options_of_shard(given: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """The constructor's options for a shard, of what ``_share`` gives."""
    return {name: option for name, option in {**given, "seed": seed}.items() if name != "is_random"}


def _said(given: dict[str, Any]) -> dict[str, Any]:
    """The options that have to be the same on all ranks, and that a shard does not tell as they were given."""
    return {
        "capacity of a shard": given["capacity"],
        "growth": bool(given["growth"]),
        "seed": "random" if given["is_random"] else given["seed"],
    }


def _describe(shard: Any) -> dict[str, Any]:
    """What has to be the same on all ranks, by name."""
    described: dict[str, Any] = dict(serialization.metadata_of(shard._contents(items=False)))
    described["max_capacity of a shard"] = described.pop("max_capacity")
    return described


consumers.no_arrays[Shards] = _NO_ARRAY
