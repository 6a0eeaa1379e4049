"""HashTable over the processes of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from gpuhash import HashTable as LocalTable
from gpuhash import consumers, named_columns, serialization
from gpuhash.arguments import action_of, one_value
from gpuhash.call import actions_of
from gpuhash.dict_methods import NO_DEFAULT, items_of
from gpuhash.initializers import Initializer
from gpuhash.named_columns import Column

from .batch import Batch, Values, take_values
from .call import Call, Prepared, attempt
from .duplicates import choose, combine
from .group import Group
from .keyed import Keyed
from .rows import BOOL, INT64, Layout, RowFormat
from .words import host_tensor, where

#: What becomes of the values of keys that are there: in all columns, or by name.
Actions = str | Mapping[str, str]


class Found(NamedTuple):
    """What a lookup of values has found, inside of its call."""

    call: Call
    names: list[str]  # of the columns that were asked for, in that order
    layout: Layout  # of their rows
    values: Tensor  # rows, of what this rank has sent
    mask: Tensor
    fallback: Tensor | None  # rows of absent keys, one or one for each key of the batch; None: as the shards gave them


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

    def _adopt(self, shard: Any, steps: Group, seed: int) -> None:
        super()._adopt(shard, steps, seed)
        self._columns = None if shard.columns is None else dict(shard.columns)
        kinds = self._columns or {"": Column(shard.value_dtype, shard.value_shape)}
        self._all = Layout({name: RowFormat(kind.dtype, kind.shape) for name, kind in kinds.items()})
        self._layouts = {tuple(kinds): self._all}  # by the names of the columns, in their order
        self._row_bytes += self._all.row.bytes

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

    def gather(self, rank: int | None = None) -> tuple[Tensor, Tensor] | None:
        """All keys and values of all ranks, shard after shard. Collective: the same ``rank`` everywhere. Waits.

        Parameters
        ----------
        rank
            The one that gets them; the others get None. None: all ranks get them.
        """

        def rows() -> list[Tensor]:
            keys, values = self._shard.items("torch")
            return [keys, self._all.pack(self._by_name(values))]

        items = self._gather(rank, (self._key, self._all.row), rows)
        return None if items is None else (items[0], self._plain(self._all.unpack(items[1])))

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

        def check(batch: Batch) -> None:
            if needed and not batch.scalar:
                raise ValueError("get(keys) of a batch needs a default for absent keys: give one here or to the table")

        with self._steps.call("get"):
            found = self._find(keys, default, check=check)
            if needed and not bool(found.mask.any()):
                return None
        return self._values_found(found)

    def setdefault(self, keys: Any, default: Any = None) -> Any:
        """Inserts ``default`` for the keys that are absent, and gives the values of all. Collective; waits.

        ``default`` is as the values of an insertion; None, on all ranks, takes what the table's initializer says, or
        else its default. Raises as ``insert``; ValueError where there is neither. Columns that it leaves out, or all
        for None, get their initial values.
        """
        is_initial = default is None and (self._columns is not None or self._shard.initializer is not None)

        def prepare() -> Prepared:
            batch, given = self._take(keys), default
            if is_initial:
                return self._chosen(batch, None, last=False, inverse=True)
            if given is None:
                if self._shard._default is None:
                    raise ValueError("setdefault needs a default for absent keys: give one here or to the table")
                given = host_tensor(self._shard._default, self._shard.value_dtype)
            return self._chosen(batch, self._take_values(given, batch, "default"), last=False, inverse=True)

        def work(call: Call) -> list[Tensor]:
            values = self._shard.setdefault(call.keys, None if is_initial else self._plain(call.values))
            return [self._all.pack(self._by_name(values))]

        operation = "setdefault of the initializer" if is_initial else "setdefault"
        call, (rows,) = self._change(operation, prepare, work, [self._all.row])
        return self._answer(call.batch, self._all, call.for_all(rows))

    def pop(self, keys: Any, default: Any = NO_DEFAULT) -> Any:
        """Erases keys, and gives their values. Collective; waits.

        Absent keys get ``default``, as for ``get``; where a rank gives none they are a KeyError on all ranks, and
        nothing is erased. All of a key's duplicates, on all ranks, get its value.
        """
        needed = default is NO_DEFAULT
        has_none = default is None and self._shard.default is None

        def check(batch: Batch) -> None:
            if has_none and not batch.scalar:
                raise ValueError("pop(keys, None) of a batch: give a value as the default of absent keys")

        with self._steps.call("pop"):
            found = self._find(keys, None if needed else default, check=check)
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
            moved = {name: each.to(self._steps.device) for name, each in self._by_name(theirs).items()}
            return keys.to(self._steps.device), self._plain(moved)
        return items_of(other, self._columns, self._key.shape)

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
        return self._insert("insert", keys, values, "keep")

    def insert_or_assign(self, keys: Any, values: Any) -> Any:
        """Assigns values to keys, new or not, and tells which were new. Collective; waits.

        Returns
        -------
        bool tensor of shape ``batch``: was the key new; true for exactly one of a new key's duplicates over all ranks.
        Otherwise as ``table[keys] = values``, which does without the mask, and is faster.
        """
        return self._insert("insert_or_assign", keys, values, "assign")

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
            return self._insert(f"insert_or_apply({actions})", keys, values, actions)

        def prepare() -> Prepared:
            if problem is not None:
                raise problem
            batch = self._take(keys)
            given = self._take_values(values, batch)
            prepared = Prepared(batch, None, given, self._note(given.layout))
            if self._merges(given.layout.row):
                given.op = actions
                self._merged(batch)
            elif self._are_many(batch):
                prepared.distinct = combine(batch.keys, given, actions, self._key, deterministic=self.deterministic)
            return prepared

        call, (inserted,) = self._change(
            f"insert_or_apply({op if problem else actions})",
            prepare,
            lambda call: [self._shard.insert_or_apply(call.keys, self._plain(call.values), actions)],
            [BOOL],
        )
        return call.batch.answer(call.for_one(inserted), BOOL)

    def _actions_of(self, values: Any, op: Any) -> Any:
        """ "keep", "assign", or the operation on all values; where columns differ, that of each by its name."""
        if self._columns is None:
            dtype = self._shard.value_dtype
            return action_of(op, dtype, f"the table has values of {dtype}")
        actions = actions_of(self._columns, values, op)
        if len(set(actions.values())) == 1:
            return next(iter(actions.values()))
        return {name: actions[name].replace("assign", "replace") for name in self._columns if name in actions}

    def _merges(self, row: RowFormat) -> bool:
        """Are such values of hot keys combined while a batch is sorted by owner?"""
        is_scalar = not row.shape and row.bytes in (4, 8)
        return is_scalar and self._can_merge() and not self.deterministic

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

        def prepare() -> Prepared:
            self._shard._need_rows()
            batch = self._take(keys)
            given = None if values is None else self._take_values(values, batch)
            return self._chosen(batch, given, last=False, inverse=True)

        def work(call: Call) -> tuple[Tensor, Tensor]:
            rows: tuple[Tensor, Tensor] = self._shard.find_or_insert(
                call.keys, None if values is None else self._plain(call.values)
            )
            return rows

        operation = "find_or_insert without values" if values is None else "find_or_insert"
        call, (rows, is_new) = self._change(operation, prepare, work, [INT64, BOOL])
        answer = call.batch.answer
        return answer(call.owners, INT64), answer(call.for_all(rows), INT64), answer(call.for_one(is_new), BOOL)

    # Parts -----------------------------------------------------------------------------------------------------------

    def _insert(self, operation: str, keys: Any, values: Any, action: str) -> Any:
        def work(call: Call) -> list[Tensor]:
            insert = self._shard.insert_or_assign if action == "assign" else self._shard.insert
            return [insert(call.keys, self._plain(call.values))]

        call, (inserted,) = self._change(
            operation, lambda: self._one_value_each(keys, values, last=action == "assign"), work, [BOOL]
        )
        return call.batch.answer(call.for_one(inserted), BOOL)

    def _assign(self, operation: str, items: Callable[[], tuple[Any, Any]]) -> None:
        self._change(
            operation,
            lambda: self._one_value_each(*items(), last=True),
            lambda call: self._shard.__setitem__(call.keys, self._plain(call.values)),
        )

    def _assign_chunk(self, chunk: Callable[[], tuple[Any, Any]]) -> None:
        def items() -> tuple[Any, Any]:
            keys, named = chunk()
            return keys, self._plain(named)

        self._assign("load", items)

    def _one_value_each(self, keys: Any, values: Any, *, last: bool) -> Prepared:
        batch = self._take(keys)
        return self._chosen(batch, self._take_values(values, batch), last=last)

    def _take_values(self, values: Any, batch: Batch, what: str = "values") -> Values:
        named = self._given(values, what)
        return take_values(named, batch, self._layout(named), self._steps.device, what)

    def _chosen(self, batch: Batch, values: Values | None, *, last: bool, inverse: bool = False) -> Prepared:
        """A batch of an insertion: where duplicates are many, each key with one of its values."""
        prepared = Prepared(batch, None, values, () if values is None else self._note(values.layout))
        if self._are_many(batch):
            distinct = prepared.distinct = choose(batch.keys, last=last, inverse=inverse)
            assert distinct.positions is not None
            distinct.values = None if values is None else values.at(distinct.positions)
        return prepared

    def _layout(self, names: Iterable[str]) -> Layout:
        """The rows of these columns, in the order of the table."""
        wanted = set(names)
        key = tuple(name for name in self._all.fields if name in wanted)
        if key not in self._layouts:
            self._layouts[key] = Layout({name: self._all.fields[name] for name in key})
        return self._layouts[key]

    def _note(self, layout: Layout) -> Sequence[str]:
        """The columns that a call is about, where these are not all."""
        return () if layout is self._all else tuple(layout.fields)

    def _given(self, values: Any, what: str) -> dict[str, Any]:
        """What a caller gives, by name. TypeError and ValueError where it does not fit the columns."""
        return {"": values} if self._columns is None else named_columns.by_name(self._columns, values, what)

    def _by_name(self, values: Any) -> dict[str, Any]:
        return {"": values} if self._columns is None else dict(values)

    def _plain(self, named: dict[str, Any]) -> Any:
        """As a caller, or a shard, gives and gets values."""
        return named[""] if self._columns is None else named

    def _find(
        self,
        keys: Any,
        default: Any = None,
        columns: Any = None,
        *,
        check: Callable[[Batch], None] | None = None,
        settle: bool = True,
    ) -> Found:
        """Looks values up, inside of a call. ``check``: raises what is wrong with the batch."""
        names, layout, fallback = list(self._all.fields), self._all, None

        def prepare() -> Prepared:
            nonlocal names, layout, fallback
            if columns is not None:
                if self._columns is None:
                    raise named_columns.no_names(columns)
                names = named_columns.chosen(self._columns, columns)
                layout = self._layout(names)
            batch = self._look_for(keys)
            if check is not None:
                check(batch)
            prepared = self._lookup(batch)
            prepared.columns = self._note(layout)
            if default is not None:
                fallback = self._fallback(default, batch, layout)
            return prepared

        def find(keys: Tensor, out: list[Tensor]) -> None:
            rows, found = out
            if len(names) == 1:
                self._shard.find(keys, out=(self._plain(layout.unpack(rows)), found))
            else:
                layout.pack_into(rows, self._shard.find(keys, out=(None, found), columns=names)[0])

        call = self._ask(prepare)
        values, mask = call.look_up(find, [layout.row, BOOL], settle=settle)
        return Found(call, names, layout, values, mask, fallback)

    def _fallback(self, default: Any, batch: Batch, layout: Layout) -> Tensor:
        """The default of a lookup, checked, as rows: one, or one for each key. Columns that it leaves out are zeros."""
        named = self._given(default, "defaults")
        rows, count = {}, 1
        for name, field in layout.fields.items():
            given: Any = named.get(name)
            shape = given.shape if hasattr(given, "shape") else np.shape(given)
            if given is None:
                rows[name] = self._one_row(None, field)
            elif len(shape) > len(field.shape) and batch.shape:
                rows[name] = take_values({name: given}, batch, self._layout([name]), self._steps.device, "default").rows
                count = len(batch.keys)
            else:
                what = f"default of {name!r}" if name else "default"
                rows[name] = self._one_row(one_value(given, field.dtype, field.shape, what), field)
        return layout.pack({name: each.expand(count, *each.shape[1:]).contiguous() for name, each in rows.items()})

    def _own_default(self, layout: Layout) -> Tensor:
        """The table's default, or else zeros, as one row."""
        own = self._shard._own_defaults() or {}
        return layout.pack({name: self._one_row(own.get(name), field) for name, field in layout.fields.items()})

    def _one_row(self, storage: np.ndarray[Any, Any] | None, field: RowFormat) -> Tensor:
        """One value, ``[1, *shape]``, where the table is; None: zeros."""
        if storage is None:
            return field.empty(1, self._steps.device).zero_()
        return host_tensor(storage, field.dtype).unsqueeze(0).to(self._steps.device)

    def _values_found(self, found: Found) -> Any:
        """The values for each key of the batch, with the default of the call, if it has one, for those not found."""
        call, layout = found.call, found.layout
        if call.batch.outside is not None:  # which no shard was asked for
            rows = self._own_default(layout) if found.fallback is None else found.fallback
        else:
            rows = call.for_all(found.values)
            if found.fallback is not None:
                mine, others = layout.row.words(rows), layout.row.words(found.fallback)
                rows = layout.row.of_words(where(call.for_all(found.mask), mine, others))
        answer = self._answer(call.batch, layout, rows)
        return answer if self._columns is None else {name: answer[name] for name in found.names}

    def _answer(self, batch: Batch, layout: Layout, rows: Tensor) -> Any:
        named = layout.unpack(rows)
        return self._plain({name: batch.answer(each, layout.fields[name]) for name, each in named.items()})

    # Properties and files --------------------------------------------------------------------------------------------

    @property
    def columns(self) -> Mapping[str, Column] | None:
        """The named columns, in their order; None for a table with a single value per key."""
        return None if self._columns is None else MappingProxyType(self._columns)

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
        return {**Keyed._options_of(contents), **values}
