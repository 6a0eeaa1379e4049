"""HashTable over the processes of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash import HashTable as LocalTable
from gpuhash import consumers, named_columns, serialization
from gpuhash.arguments import action_of, as_keys, one_value
from gpuhash.dict_methods import NO_DEFAULT, columns_of_pairs, is_array, parts_of
from gpuhash.dtypes import dtype_name, storage_dtype
from gpuhash.initializers import Initializer

from .batch import Batch, Kind, Values, take_values
from .call import BOOL, INT64, Call, Prepared, attempt
from .duplicates import choose, combine
from .keyed import Keyed
from .words import from_words, host_tensor, row_bytes, take_rows, to_numpy, to_words, where

_SHOWN_KEYS = 5


class HashTable(Keyed):
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
    and numbers are converted as ``gpuhash.HashTable`` converts them, and answered by NumPy arrays and numbers.

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
        self._make(group, device, lambda: _checked(options))

    def _adopt(self, shard: Any, steps: Any, seed: int) -> None:
        super()._adopt(shard, steps, seed)
        self._value = Kind(shard.value_dtype, shard.value_shape)
        self._row_bytes += row_bytes(self._value.dtype, self._value.shape)

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
        self._insert("table[keys] = values", lambda: (keys, values), "assign", mask=False)

    def __getitem__(self, keys: Any) -> Any:
        """The values of this rank's keys, ``[*batch, *value_shape]``. Collective; waits.

        Raises
        ------
        KeyError
            On all ranks, with the number of absent keys of each, unless the table has a ``default=``.
        """
        with self._steps.call("table[keys]"):
            call = self._ask(lambda: self._lookup(self._look_for(keys)))
            values, found = self._serve_find(call)
            if self._shard.default is None:
                self._check_present(call, found)
        return call.batch.answer(self._filled(call, values, found, []), self._value)

    def __delitem__(self, keys: Any) -> None:
        """Erases keys. Collective; waits. KeyError on all ranks if any key is absent: then nothing is erased."""
        with self._steps.call("del table[keys]"):
            call = self._ask(lambda: self._lookup(self._look_for(keys)))
            (found,) = call.look_up(lambda keys, out: self._shard.contains(keys, out=out[0]), [BOOL])
            self._check_present(call, found)
            call.serve(lambda: self._shard.erase(call.keys))

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

    def gather(self, rank: int | None = None) -> tuple[Tensor, Tensor] | None:
        """All keys and values of all ranks, shard after shard. Collective: the same ``rank`` everywhere. Waits.

        Parameters
        ----------
        rank
            The one that gets them; the others get None. None: all ranks get them.
        """
        items = self._gather(rank, (self._key, self._value))
        return None if items is None else (items[0], items[1])

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
        needed = default is None and self._shard.default is None

        def prepare() -> Prepared:
            prepared = self._lookup(self._look_for(keys))
            if needed and not prepared[0].scalar:
                raise ValueError("get(keys) of a batch needs a default for absent keys: give one here or to the table")
            return prepared

        with self._steps.call("get"):
            fallback: list[Tensor] = []
            call = self._ask(lambda: self._with_default(prepare(), default, fallback))
            values, found = self._serve_find(call)
            if needed and not bool(found.any()):
                return None
        return call.batch.answer(self._filled(call, values, found, fallback), self._value)

    def setdefault(self, keys: Any, default: Any = None) -> Any:
        """Inserts ``default`` for the keys that are absent, and gives the values of all. Collective; waits.

        ``default`` is as the values of an insertion; None, on all ranks, takes what the table's initializer says, or
        else its default. Raises as ``insert``; ValueError where there is neither.
        """
        initialised = default is None and self._shard.initializer is not None

        def prepare() -> Prepared:
            batch = self._take(keys)
            if initialised:
                return self._chosen(batch, None, last=False, inverse=True)
            values = default
            if values is None:
                if self._shard._default is None:
                    raise ValueError("setdefault needs a default for absent keys: give one here or to the table")
                values = host_tensor(self._shard._default, self._value.dtype)
            given = take_values(values, batch, self._value, self._steps.device, "default")
            return self._chosen(batch, given, last=False, inverse=True)

        kinds = [] if initialised else [self._value]
        with self._steps.call("setdefault of the initializer" if initialised else "setdefault"):
            call = self._call(prepare, *kinds)
            self._agree(lambda: self._make_room(call.keys))

            def work() -> list[Tensor]:
                if initialised:
                    return [self._shard.setdefault(call.keys)]
                self._shard.insert(call.keys, call.values)
                return [self._shard.find(call.keys)[0]]

            (values,) = call.serve(work, [self._value])
        return call.batch.answer(call.for_all(values), self._value)

    def pop(self, keys: Any, default: Any = NO_DEFAULT) -> Any:
        """Erases keys, and gives their values. Collective; waits.

        Absent keys get ``default``, as for ``get``; where a rank gives none they are a KeyError on all ranks, and
        nothing is erased. All of a key's duplicates, on all ranks, get its value.
        """
        needed = default is NO_DEFAULT

        def prepare() -> Prepared:
            prepared = self._lookup(self._look_for(keys))
            if default is None and self._shard.default is None and not prepared[0].scalar:
                raise ValueError("pop(keys, None) of a batch: give a value as the default of absent keys")
            return prepared

        with self._steps.call("pop"):
            fallback: list[Tensor] = []
            given = None if needed else default
            call = self._ask(lambda: self._with_default(prepare(), given, fallback))
            values, found = self._serve_find(call)
            self._check_present(call, found, needed=needed)
            call.serve(lambda: self._shard.erase(call.keys))
            if default is None and self._shard.default is None and not bool(found.any()):
                return None
        return call.batch.answer(self._filled(call, values, found, fallback), self._value)

    def update(self, other: Any, values: Any = NO_DEFAULT, /) -> None:
        """Assigns all items of this rank's other. Collective; waits; raises as ``table[keys] = values``.

        Parameters
        ----------
        other
            A mapping; a ``gpuhash.HashTable`` on any device; a distributed table, of which each rank brings its shard;
            an iterable of pairs, of which the last of a key wins; or keys and values, as two arguments or as a tuple of
            two arrays.
        """
        self._insert("update", lambda: self._items_of(other, values), "assign", mask=False)

    def _items_of(self, other: Any, values: Any) -> tuple[Any, Any]:
        """Keys and values out of what ``update`` takes."""
        if values is not NO_DEFAULT:
            return other, values
        if isinstance(other, HashTable):
            other = other.shard
        if isinstance(other, LocalTable):
            named_columns.refuse(other._columns, "gpuhash.distributed")
            keys, theirs = other.items("torch")
            return keys.to(self._steps.device), theirs.to(self._steps.device)
        if isinstance(other, Mapping) or hasattr(other, "keys"):
            listed = list(other.keys())
            columns: tuple[list[Any], list[Any]] = listed, [other[key] for key in listed]
        else:
            parts = parts_of(other)
            if len(parts) == 2 and all(map(is_array, parts)):
                return parts[0], parts[1]
            columns = columns_of_pairs(parts)
        return [tuple(key) for key in columns[0]] if self._key.shape else columns[0], columns[1]

    # The field's words -----------------------------------------------------------------------------------------------

    def find(self, keys: Any, default: Any = None) -> tuple[Any, Any]:
        """The values of this rank's keys, and which of them were found. Collective; waits.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        default
            The value of this rank's absent keys, a scalar or of shape ``value_shape``, or one for each key; None takes
            the table's, or else zero.

        Returns
        -------
        values, found
            ``[*batch, *value_shape]`` of the value dtype, and bool ``[*batch]``, on the device of the keys.
        """
        with self._steps.call("find"):
            fallback: list[Tensor] = []
            call = self._ask(lambda: self._with_default(self._lookup(self._look_for(keys)), default, fallback))
            values, found = self._serve_find(call, settle=False)
            filled = self._filled(call, values, found, fallback)
            answers = call.batch.answer(filled, self._value), call.batch.answer(call.for_all(found), BOOL)
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
        return self._insert("insert", lambda: (keys, values), "keep", mask=True)

    def insert_or_assign(self, keys: Any, values: Any) -> Any:
        """Assigns values to keys, new or not, and tells which were new. Collective; waits.

        Returns
        -------
        bool tensor of shape ``batch``: was the key new; true for exactly one of a new key's duplicates over all ranks.
        Otherwise as ``table[keys] = values``, which does without the mask, and is faster.
        """
        return self._insert("insert_or_assign", lambda: (keys, values), "assign", mask=True)

    def insert_or_apply(self, keys: Any, values: Any, op: str) -> Any:
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
            value) or "replace" (by the new one); the same on all ranks.

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
        name, problem = attempt(
            lambda: action_of(op, self._value.dtype, f"the table has values of {self._value.dtype}")
        )
        if name in ("keep", "assign"):
            return self._insert(f"insert_or_apply({name})", lambda: (keys, values), name, mask=True)

        def prepare() -> Prepared:
            if problem is not None:
                raise problem
            batch = self._take(keys)
            given = take_values(values, batch, self._value, self._steps.device)
            if self._merges:
                given.op = name
                batch = self._merged(batch)
            elif self._are_many(batch):
                return batch, combine(batch.keys, given, name, self._key, self._value), given
            return batch, None, given

        with self._steps.call(f"insert_or_apply({name or op})"):
            call = self._call(prepare, self._value)
            self._agree(lambda: self._make_room(call.keys))
            (inserted,) = call.serve(lambda: [self._shard.insert_or_apply(call.keys, call.values, name)], [BOOL])
        return call.batch.answer(call.for_one(inserted), BOOL)

    @property
    def _merges(self) -> bool:
        """Are the values of hot keys combined while a batch is sorted by owner?"""
        value = row_bytes(self._value.dtype, self._value.shape)
        scalar = not self._value.shape and value in (4, 8)
        return scalar and self._can_merge() and not self.deterministic

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

        with self._steps.call("rows"):
            call = self._ask(prepare)
            (rows,) = call.look_up(lambda keys, out: self._shard.rows(keys, out=out[0]), [INT64])
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

        def prepare() -> Prepared:
            self._shard._need_rows()
            batch = self._take(keys)
            given = None if values is None else take_values(values, batch, self._value, self._steps.device)
            return self._chosen(batch, given, last=False, inverse=True)

        kinds = [] if values is None else [self._value]
        with self._steps.call("find_or_insert" if kinds else "find_or_insert without values"):
            call = self._call(prepare, *kinds)
            self._agree(lambda: self._make_room(call.keys))
            rows, is_new = call.serve(
                lambda: self._shard.find_or_insert(call.keys, call.values if kinds else None), [INT64, BOOL]
            )
        answer = call.batch.answer
        return answer(call.owners, INT64), answer(call.for_all(rows), INT64), answer(call.for_one(is_new), BOOL)

    # Parts -----------------------------------------------------------------------------------------------------------

    def _insert(self, operation: str, items: Callable[[], tuple[Any, Any]], mode: str, *, mask: bool) -> Any:
        def prepare() -> Prepared:
            keys, values = items()
            batch = self._take(keys)
            given = take_values(values, batch, self._value, self._steps.device)
            return self._chosen(batch, given, last=mode == "assign")

        with self._steps.call(operation):
            call = self._call(prepare, self._value)
            self._agree(lambda: self._make_room(call.keys))
            if not mask:
                call.serve(lambda: self._shard.__setitem__(call.keys, call.values))
                return None

            def work() -> list[Tensor]:
                insert = self._shard.insert_or_assign if mode == "assign" else self._shard.insert
                return [insert(call.keys, call.values)]

            (inserted,) = call.serve(work, [BOOL])
        return call.batch.answer(call.for_one(inserted), BOOL)

    def _assign_chunk(self, chunk: Callable[[], tuple[Any, Any]]) -> None:
        self._insert("load", chunk, "assign", mask=False)

    def _chosen(self, batch: Batch, values: Values | None, *, last: bool, inverse: bool = False) -> Prepared:
        """A batch of an insertion: where duplicates are many, each key with one of its values."""
        if not self._are_many(batch):
            return batch, None, values
        distinct = choose(batch.keys, last=last, inverse=inverse)
        assert distinct.positions is not None
        distinct.values = None if values is None else values.at(distinct.positions)
        return batch, distinct, values

    def _serve_find(self, call: Call, *, settle: bool = True) -> list[Tensor]:
        def find(keys: Tensor, out: list[Tensor]) -> None:
            self._shard.find(keys, out=(out[0], out[1]))

        return call.look_up(find, [self._value, BOOL], settle=settle)

    def _with_default(self, prepared: Prepared, default: Any, fallback: list[Tensor]) -> Prepared:
        """Puts the default of a lookup, checked, into ``fallback``: one value, or one for each key."""
        if default is not None:
            batch, (dtype, shape) = prepared[0], (self._value.dtype, self._value.shape)
            given = default.shape if hasattr(default, "shape") else np.shape(default)
            if len(given) > len(shape) and batch.shape:
                fallback.append(take_values(default, batch, self._value, self._steps.device, "default").rows)
            else:
                one = host_tensor(one_value(default, dtype, shape, "default"), dtype)
                fallback.append(one.unsqueeze(0).to(self._steps.device))
        return prepared

    def _filled(self, call: Call, values: Tensor, found: Tensor, fallback: list[Tensor]) -> Tensor:
        """Values for each key of the batch, with the call's own default, if it has one, for those not found."""
        if call.batch.outside is not None:  # which no shard was asked for
            if fallback:
                return fallback[0]
            storage = self._shard._default
            if storage is None:
                storage = np.zeros(self._value.shape, storage_dtype(self._value.dtype))
            return host_tensor(storage, self._value.dtype).unsqueeze(0)
        values = call.for_all(values)
        if not fallback:
            return values
        size = row_bytes(self._value.dtype, self._value.shape)
        mine, others = to_words(values, len(values), size), to_words(fallback[0], len(fallback[0]), size)
        return from_words(where(call.for_all(found), mine, others), self._value.dtype, self._value.shape)

    def _check_present(self, call: Call, found: Tensor, *, needed: bool = True) -> None:
        """KeyError on all ranks where one of them has absent keys, and needs them."""
        _, problem = attempt(lambda: self._raise_absent(call, found) if needed else None)
        self._steps.agree(problem)

    def _raise_absent(self, call: Call, found: Tensor) -> None:
        if call.batch.outside is not None:
            raise KeyError(f"1 of 1 keys are absent: {call.batch.outside}")
        present = call.for_all(found)
        missing = len(present) - int(present.sum())
        if not missing:
            return
        some = take_rows(call.batch.keys, torch.nonzero(~present).view(-1)[:_SHOWN_KEYS])
        shown = ", ".join(map(str, as_keys(to_numpy(some, self._key.dtype), self._key.shape)))
        more = ", ..." if missing > len(some) else ""
        raise KeyError(f"{missing} of {len(present)} keys are absent: {shown}{more}")

    # Properties and files --------------------------------------------------------------------------------------------

    @property
    def value_dtype(self) -> str:
        """The name of the values' dtype."""
        return self._value.dtype

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._value.shape

    @property
    def default(self) -> Any:
        """The value of absent keys: a number, a NumPy array where values have a shape, or None."""
        return self._shard.default

    @property
    def initializer(self) -> Initializer | None:
        """What ``find_or_insert`` puts into the rows of new keys that are given no values; None: the default."""
        initializer: Initializer | None = self._shard.initializer
        return initializer

    def _whole(self) -> serialization.Contents:
        contents = super()._whole()
        contents.initializer = self._shard.initializer
        contents.default = None if self._shard._default is None else self._shard._default.tobytes()
        return contents

    @staticmethod
    def _options_of(contents: serialization.Contents) -> dict[str, Any]:
        dtype, shape = contents.value_dtype, contents.value_shape
        default = None
        if contents.default is not None and dtype is not None:
            storage = np.frombuffer(contents.default, storage_dtype(dtype)).reshape(shape)
            default = host_tensor(storage, dtype)
        more = {
            "value_dtype": dtype_name(dtype),
            "value_shape": shape,
            "default": default,
            "initializer": contents.initializer,
        }
        return {**Keyed._options_of(contents), **more}


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options. TypeError for named columns, of which the exchange knows nothing."""
    if isinstance(options["value_dtype"], Mapping):
        named_columns.refuse(named_columns.checked(options["value_dtype"]), "gpuhash.distributed")
    return options
