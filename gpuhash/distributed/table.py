"""HashTable over the processes of a group."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import Tensor

from gpuhash import HashTable as LocalTable
from gpuhash.arrays import consumers
from gpuhash.arrays.arguments import no_default
from gpuhash.files import serialization
from gpuhash.initializers import Initializer
from gpuhash.tables.dict_methods import NO_DEFAULT, items_of
from gpuhash.tables.named_columns import Column

from .call import Prepared, attempt
from .rows import BOOL, INT64
from .valued import Valued
from .words import host_tensor


class HashTable(Valued):
    """A hash table over all processes of a group: each has a shard, a ``gpuhash.HashTable``, and every key one owner.

    Every operation is *collective*: all ranks call it, in the same order, each with keys and values of its own, of any
    number; and all wait for it. It works as that of ``gpuhash.HashTable``, as if all batches were one, rank after rank;
    each rank gets the answers to its own keys, in their order and on their device. Not collective are only ``keys``,
    ``values`` and ``items``, which are those of the rank's own shard, ``shard``, ``repr`` and the properties.

    Parameters
    ----------
    key_dtype, value_dtype, key_shape, value_shape, max_load_factor, growth, default, deterministic, memory
        As for ``gpuhash.HashTable``, the same on all ranks.
    initializer
        Likewise, of ``find_or_insert``: a key gets the same row on any number of ranks.
    device
        Where this rank's shard is. None: PyTorch's current GPU where the group has NCCL, otherwise the host.
    capacity, max_capacity
        Slots of all shards together, of which each has an equal part. As keys are spread by chance, one shard is full
        before all are.
    seed
        As for ``gpuhash.HashTable``; it decides as well which rank owns a key. With "random" all ranks take that of the
        first.
    group
        The process group of PyTorch; None for the default one.

    Notes
    -----
    Keys have the shape ``[*batch, *key_shape]``, and values and masks ``[*batch, *value_shape]`` and ``[*batch]``.
    PyTorch's tensors have exactly the table's dtypes, and lie where the shard does or on the host; NumPy arrays, lists
    and numbers are converted as ``gpuhash.HashTable`` converts them, and answered by NumPy arrays and numbers. In a
    table with columns values are mappings of names to such, in and out. All ranks give the same columns to a call.

    Errors of one rank's arguments are raised on all ranks, with the rank's number, before anything is changed; and so
    is a shard that has no room. Where a rank is lost, or fails in the middle for another reason, the others get the
    error of their backend, at the latest when the group's time-out is over; later calls are refused (RuntimeError). An
    operation that fails so before all ranks have what is sent to them has changed no shard; after that, some shards may
    have done their part.

    Raises
    ------
    TypeError, ValueError, MemoryError, PlatformError
        As for ``gpuhash.HashTable``, on all ranks; ValueError where they do not make the same table.
    """

    _local = LocalTable

    def __init__(
        self,
        key_dtype: object,
        value_dtype: object,
        *,
        key_shape: int | Sequence[int] = (),
        value_shape: int | Sequence[int] = (),
        device: object = None,
        capacity: int = 0,
        max_load_factor: float = 0.8,
        growth: bool = True,
        max_capacity: int | None = None,
        default: Any = None,
        deterministic: bool = False,
        seed: int | str | None = None,
        initializer: Initializer | None = None,
        memory: object = None,
        group: Any = None,
    ) -> None:
        options = {
            "key_dtype": key_dtype,
            "value_dtype": value_dtype,
            "key_shape": key_shape,
            "value_shape": value_shape,
            "capacity": capacity,
            "max_load_factor": max_load_factor,
            "growth": growth,
            "max_capacity": max_capacity,
            "default": default,
            "deterministic": deterministic,
            "seed": seed,
            "initializer": initializer,
            "memory": memory,
        }
        self._make(group, device, lambda: options)

    # Like a dict -----------------------------------------------------------------------------------------------------

    def __setitem__(self, keys: Any, values: Any) -> None:
        """Assigns values to keys, new or not. Collective; waits.

        ``values`` has the shape ``[*batch, *value_shape]``; a scalar, or one of shape ``value_shape``, goes to all of
        this rank's keys. Of a key's duplicates over all ranks one whole value stays; with ``deterministic=True`` that
        of the last rank, and of its last position.

        Raises
        ------
        TypeError, ValueError, OverflowError
            On all ranks, for one rank's arrays of other dtypes, or of shapes or devices that do not fit.
        TableFullError, MemoryError
            On all ranks, where one shard has no room; all shards are as they were.
        """
        self._assign("table[keys] = values", lambda: (keys, values))

    def __getitem__(self, keys: Any) -> Any:
        """The values of this rank's keys, ``[*batch, *value_shape]``. Collective; waits.

        Raises
        ------
        KeyError
            On all ranks, with the number of absent keys of each, unless the table has a ``default=``.
        """
        with self._steps.call("table[keys]"):
            found = self._find(keys)
            if self._shard.default is None:
                self._check_present(found.call, found.mask)
        return self._values_found(found)

    def __delitem__(self, keys: Any) -> None:
        """Erases keys. Collective; waits. KeyError on all ranks if any key is absent: then nothing is erased."""
        self._erase_present("del table[keys]", keys)

    def values(self, like: Any = "torch") -> Any:
        """The values of this rank's shard alone, in the order of ``keys()``. Not collective. Waits."""
        return self._shard.values(like)

    def items(self, like: Any = "torch") -> tuple[Any, Any]:
        """Keys and values of this rank's shard alone, in the same order. Not collective. Waits.

        These are two tensors and no pairs: TypeError where pandas or polars ask, which would read them as pairs.
        """
        if consumers.wants_pairs(self):
            raise self._no_mapping()
        keys, values = self._shard.items(like)
        return keys, values

    def gather(self, rank: int | None = None) -> tuple[Any, Any] | None:
        """All keys and values of all ranks, shard after shard. Collective: the same ``rank`` everywhere. Waits.

        Keys of several columns are a mapping of their names to tensors.

        Parameters
        ----------
        rank
            The one that gets them; the others get None. None: all ranks get them.
        """

        def rows() -> list[Tensor]:
            keys, values = self._shard.items("torch")
            return [self._take(keys).keys, self._values.all.pack(self._values.by_name(values))]

        items = self._gather(rank, (self._key, self._values.all.row), rows)
        if items is None:
            return None
        return self._columns_of(items[0]), self._values.plain(self._values.all.unpack(items[1]))

    def get(self, keys: Any, default: Any = None) -> Any:
        """The values of this rank's keys, and a default for absent ones. Collective; waits.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        default
            The value of this rank's absent keys, a scalar or of shape ``value_shape``, or one for each key; None takes
            the table's. A single key without either gives None.

        Raises
        ------
        ValueError
            On all ranks, where one has a batch and no default.
        """
        has_none = default is None and self._shard.default is None
        with self._steps.call("get"):
            found = self._find(keys, default, batches_need="get(keys)" if has_none else "")
            if has_none and not bool(found.mask.any()):
                return None
        return self._values_found(found)

    def setdefault(self, keys: Any, default: Any = None) -> Any:
        """Inserts ``default`` for the keys that are absent, and gives the values of all. Collective; waits.

        ``default`` is as the values of an insertion; None, on all ranks, takes what the table's initializer says, or
        else its default. Raises as ``insert``; ValueError where there is neither. Columns that it leaves out, or all
        for None, get their initial values.
        """
        is_initial = default is None and (self._values.columns is not None or self._shard.initializer is not None)

        def items() -> tuple[Any, Any]:
            if default is not None or is_initial:
                return keys, default
            if self._shard._default is None:
                raise no_default("setdefault")
            return keys, host_tensor(self._shard._default, self._shard.value_dtype)

        call, (rows,) = self._write(
            "setdefault of the initializer" if is_initial else "setdefault",
            items,
            lambda *given: [self._values.all.pack(self._values.by_name(self._shard.setdefault(*given)))],
            [self._values.all.row],
            reduce=functools.partial(self._choose, inverse=True),
            what="default",
        )
        return self._values.answer(call.batch, self._values.all, call.for_all(rows))

    def pop(self, keys: Any, default: Any = NO_DEFAULT) -> Any:
        """Erases keys, and gives their values. Collective; waits.

        Absent keys get ``default``, as for ``get``; where a rank gives none they are a KeyError on all ranks, and
        nothing is erased. All of a key's duplicates, on all ranks, get its value.
        """
        needed = default is NO_DEFAULT
        has_none = default is None and self._shard.default is None
        with self._steps.call("pop"):
            given = None if needed else default
            found = self._find(keys, given, batches_need="pop(keys, None)" if has_none else "")
            self._check_present(found.call, found.mask, needed=needed)
            found.call.serve(lambda: self._shard.erase(found.call.keys))
            if has_none and not bool(found.mask.any()):
                return None
        return self._values_found(found)

    def popitem(self) -> tuple[Any, Any]:
        """Erases some key, and gives it and its value, which no other call gets, to all ranks. Collective; waits, and
        reads all keys of one shard. KeyError on all ranks where the table is empty.
        """
        item: tuple[Any, Any] = self._pop_item(
            "popitem", lambda shard: shard.popitem(), "popitem(): the table is empty"
        )
        return item

    def update(self, other: Any, values: Any = NO_DEFAULT, /) -> None:
        """Assigns all items of this rank's other. Collective; waits; raises as ``table[keys] = values``.

        Parameters
        ----------
        other
            A mapping; a ``gpuhash.HashTable`` on any device; a distributed table, of which each rank brings its shard;
            an iterable of pairs, of which the last of a key wins; or keys and values, as two arguments or as a tuple of
            two arrays. What has no items counts as one of all columns, where these are named.
        """
        self._assign("update", lambda: self._items_of(other, values))

    def _items_of(self, other: Any, values: Any) -> tuple[Any, Any]:
        """Keys and values out of what ``update`` takes."""
        if values is not NO_DEFAULT:
            return other, values
        if isinstance(other, HashTable):
            other = other.shard
        if isinstance(other, LocalTable):
            self._shard._check_kind_of(other)
            keys, theirs = other.items("torch")
            moved = {name: each.to(self._steps.device) for name, each in self._values.by_name(theirs).items()}
            return self._brought(keys), self._values.plain(moved)
        return items_of(other, self._values.columns, self._key.shape)

    # The field's words -----------------------------------------------------------------------------------------------

    def find(self, keys: Any, default: Any = None, *, columns: Any = None) -> tuple[Any, Any]:
        """The values of this rank's keys, and which of them were found. Collective; waits.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        default
            The value of this rank's absent keys, a scalar or of shape ``value_shape``, or one for each key; None takes
            the table's, or else zero. Of columns a mapping of names to such; those that it leaves out are zeros.
        columns
            Of a table with columns: a list of the names of those that are wanted, the same on all ranks; None for all.

        Returns
        -------
        values, found
            ``[*batch, *value_shape]`` of the value dtype, and bool ``[*batch]``, on the device of the keys.
        """
        with self._steps.call("find"):
            found = self._find(keys, default, columns, settle=False)
            call = found.call
            answers = self._values_found(found), call.batch.answer(call.for_all(found.mask), BOOL)
            call.settle()
        return answers

    def insert(self, keys: Any, values: Any) -> Any:
        """Inserts the keys that are not there, and keeps the values of those that are. Collective; waits.

        Returns
        -------
        bool tensor of shape ``batch``: was the key new; true for exactly one of a new key's duplicates over all ranks.
        With ``deterministic=True`` the value of the first rank, and of its first position, stays. Raises as
        ``table[keys] = values``.
        """
        return self._insert("insert", keys, values, assigns=False)

    def insert_or_assign(self, keys: Any, values: Any) -> Any:
        """Assigns values to keys, new or not, and tells which were new. Collective; waits.

        Returns
        -------
        bool tensor of shape ``batch``: was the key new; true for exactly one of a new key's duplicates over all ranks.
        Otherwise as ``table[keys] = values``, which does without the mask, and is faster.
        """
        return self._insert("insert_or_assign", keys, values, assigns=True)

    def insert_or_apply(self, keys: Any, values: Any, op: Any) -> Any:
        """Inserts the keys that are not there, and combines the values of those that are with the new ones. Collective;
        waits.

        All of a key's duplicates on all ranks count. Where some keys are hot, each rank combines its own duplicates
        before they are sent; sums and products of floats depend on the order, which is not fixed.

        Parameters
        ----------
        keys, values
            As for ``table[keys] = values``.
        op
            "add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor" (with hyphens as well), "keep" (the old
            value) or "replace" (by the new one); of a table with columns also a mapping of columns to such, one for
            each that is given. The same on all ranks.

        Returns
        -------
        bool tensor of shape ``batch``: was the key new; true for exactly one of a new key's duplicates over all ranks.

        Raises
        ------
        TypeError
            For operations that the value dtype does not have: bits of floats, minima of complex numbers.
        ValueError
            For an unknown operation.
        """
        actions, problem = attempt(lambda: self._actions_of(values, op))
        if actions in ("keep", "assign"):
            return self._insert(f"insert_or_apply({actions})", keys, values, assigns=actions == "assign")

        def items() -> tuple[Any, Any]:
            if problem is not None:
                raise problem
            return keys, values

        call, (inserted,) = self._write(
            f"insert_or_apply({op if problem else actions})",
            items,
            lambda *given: [self._shard.insert_or_apply(*given, actions)],
            [BOOL],
            reduce=functools.partial(self._combine, actions),
        )
        return call.batch.answer(call.for_one(inserted), BOOL)

    def apply_and_find(self, keys: Any, values: Any, op: Any) -> tuple[Any, Any]:
        """As ``insert_or_apply``, and gives what the values come to. Collective; waits.

        Parameters, and what it raises, as for ``insert_or_apply``.

        Returns
        -------
        values, is_new
            ``[*batch, *value_shape]``: the value of each key once the batches of all ranks have been applied; with
            columns those that were given, by name. bool ``[*batch]``, as of ``insert_or_apply``.
        """
        actions, problem = attempt(lambda: self._actions_of(values, op))

        def items() -> tuple[Any, Any]:
            if problem is not None:
                raise problem
            return keys, values

        layout = self._values.all
        if problem is None and self._values.columns is not None:
            layout = self._values.layout(values)
        op = {"assign": "replace"}.get(actions, actions) if isinstance(actions, str) else actions

        def work(*given: Any) -> list[Any]:
            named, is_new = self._shard.apply_and_find(*given, op)
            return [layout.pack(self._values.by_name(named)), is_new]

        call, (rows, is_new) = self._write(
            f"apply_and_find({op})", items, work, [layout.row, BOOL], reduce=lambda batch, given: None
        )
        return self._values.answer(call.batch, layout, rows), call.batch.answer(is_new, BOOL)

    def rows(self, keys: Any) -> tuple[Any, Any]:
        """Where the rows of this rank's keys are. Collective; waits.

        Returns
        -------
        ranks, rows
            int64 ``[*batch]``: the rank whose shard owns the key, and the number of the key's row in the
            ``row_storage`` of that shard, -1 for absent keys. A single key that the key dtype cannot hold has rank 0.

        Raises
        ------
        ValueError
            Where the table has no row storage: its values are scalars of up to 8 bytes.
        """

        def prepare() -> Prepared:
            self._shard._need_rows()
            return self._lookup(self._look_for(keys))

        call, (rows,) = self._look_up("rows", prepare, lambda keys, out: self._shard.rows(keys, out=out[0]), [INT64])
        return call.batch.answer(call.owners, INT64), call.batch.answer(call.for_all(rows), INT64, absent=-1)

    def find_or_insert(self, keys: Any, values: Any = None) -> tuple[Any, Any, Any]:
        """Where the rows of this rank's keys are, after those that are not there have been inserted. Collective; waits.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        values
            What new keys get, as the values of ``insert``; None, on all ranks, takes what the table's ``initializer``
            says, or else its default, or else zeros.

        Returns
        -------
        ranks, rows, is_new
            As of ``rows``, and bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates over
            all ranks.

        Raises
        ------
        ValueError
            Where the table has no row storage: its values are scalars of up to 8 bytes. Otherwise as ``insert``.
        """

        def items() -> tuple[Any, Any]:
            self._shard._need_rows()
            return keys, values

        call, (rows, is_new) = self._write(
            "find_or_insert without values" if values is None else "find_or_insert",
            items,
            lambda *given: self._shard.find_or_insert(*given),
            [INT64, BOOL],
            reduce=functools.partial(self._choose, inverse=True),
        )
        answer = call.batch.answer
        return answer(call.owners, INT64), answer(call.for_all(rows), INT64), answer(call.for_one(is_new), BOOL)

    # Properties and files --------------------------------------------------------------------------------------------

    @property
    def columns(self) -> Mapping[str, Column] | None:
        """The named columns, in their order; None for a table with a single value per key."""
        return None if self._values.columns is None else MappingProxyType(self._values.columns)

    @property
    def value_dtype(self) -> str | None:
        """The name of the values' dtype; None for a table with columns."""
        dtype: str | None = self._shard.value_dtype
        return dtype

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        shape: tuple[int, ...] = self._shard.value_shape
        return shape

    @property
    def default(self) -> Any:
        """The value of absent keys: a number, a NumPy array where values have a shape, or None.

        Where there are columns, a mapping of their names to such, or None.
        """
        return self._shard.default

    @property
    def initializer(self) -> Initializer | None:
        """What ``find_or_insert`` puts into the rows of new keys that are given no values; None: the default."""
        initializer: Initializer | None = self._shard.initializer
        return initializer

    @staticmethod
    def _options_of(contents: serialization.Contents) -> dict[str, Any]:
        storages = contents.field_defaults()
        default: Any = None
        if storages is not None:
            default = {name: host_tensor(each, contents.fields[name][0]) for name, each in storages.items()}
        values = {
            "value_dtype": contents.value_dtype if contents.columns is None else contents.columns,
            "value_shape": contents.value_shape,
            "default": default if default is None or contents.columns is not None else default[""],
            "initializer": contents.initializer,
        }
        return {**Valued._options_of(contents), **values}
