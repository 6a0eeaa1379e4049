"""HashMultiMap: keys with any number of values each, in batches."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from . import _core
from .arrays import consumers
from .arrays.arguments import KeyOutOfRangeError, shape_of
from .arrays.batch import Batch, Output, take_values
from .arrays.dtypes import ITEMSIZES, MAX_ROW_BYTES, MAX_VALUE_BYTES, dtype_name
from .arrays.export import to_host
from .arrays.frameworks import NUMPY, Shape, framework_like
from .arrays.memory import make_context
from .call import Call
from .files import serialization
from .files.saved import Saved
from .frames.keys import Keys
from .keys.strings import string_dtype
from .table import HashTable
from .tables.keyed_table import LEAST_LOAD_FACTOR
from .tables.value_log import Place, ValueLog, ValueLogs

#: What the table has for each key: its first and its last run in the log, how many values it has, and how many runs.
_COLUMNS = {"head": "int64", "tail": "int64", "values": "int64", "runs": "int64"}
_HEAD, _TAIL, _VALUES, _RUNS = range(4)


class HashMultiMap(Saved):
    """Keys with any number of values each, in GPU or host memory, in batches.

    A key's values come back in the order in which they were inserted, those of one batch in the order of the batch.

    Parameters
    ----------
    key_dtype, key_shape
        As for ``HashTable``.
    value_dtype, value_shape
        Dtype and shape of one value.
    device
        As for ``HashTable``: of a list of devices each has a shard, with some of the keys and all of their values.
    capacity, max_load_factor, seed, memory
        As for ``HashTable``. ``capacity`` counts slots, of which a key takes one, whatever the number of its values.

    Notes
    -----
    The values lie in a log that grows by doubling, and 64 bytes per key beside them. To insert, to find and to erase
    cost time by the size of the batch and of the answer; now and then the log is written anew, which costs a constant
    time per value, amortized. All calls wait for the GPU but ``count``, ``contains`` and ``clear``. Threads may share a
    multimap: calls take turns.

    Raises
    ------
    TypeError, ValueError, MemoryError, PlatformError
        As ``HashTable``.
    """

    def __init__(
        self,
        key_dtype: object,
        value_dtype: object,
        value_shape: int | Sequence[int] = (),
        *,
        device: object = "cpu",
        key_shape: int | Sequence[int] = (),
        capacity: int = 0,
        max_load_factor: float = 0.8,
        seed: int | str | None = None,
        memory: object = None,
    ) -> None:
        if (strings := string_dtype(key_dtype)) is not None:
            raise TypeError(
                f"key_dtype={strings!r} was given, and keys of a HashMultiMap are integers: number the strings by "
                "gpuhash.factorize, or keep a HashTable of strings whose values are the keys here"
            )
        dtype, shape = dtype_name(value_dtype), shape_of(value_shape, "value_shape")
        if not 1 <= math.prod(shape) * ITEMSIZES[dtype] <= MAX_VALUE_BYTES:
            raise ValueError(f"value_shape={shape} of {dtype} was given; a value has 1 to {MAX_VALUE_BYTES} bytes")
        table = HashTable(
            key_dtype,
            _COLUMNS,
            key_shape=key_shape,
            device=device,
            capacity=capacity,
            max_load_factor=max_load_factor,
            seed=seed,
            memory=memory,
        )
        self._attach(table, dtype, shape)

    def _attach(self, table: HashTable, value_dtype: str, value_shape: Shape) -> None:
        """All attributes are set here."""
        self._lock = threading.RLock()
        self._table = table
        self._value_dtype = value_dtype
        self._value_shape = value_shape
        self._place = home = Place(table._context, table._stream())  # where the last call worked
        logs = [ValueLog(home.at(core.context), value_dtype, value_shape) for core in self._cores(table)]
        self._logs = ValueLogs(logs, table._core.owner_seed if table._shards else 0)
        self._size: int | None = 0  # values; None: to be counted
        self._compacted = 0  # values, when the log was written anew
        self._chained = False  # may a key have several runs?

    # Changes ---------------------------------------------------------------------------------------------------------

    def insert(self, keys: Any, values: Any) -> None:
        """Adds a value to each key, new or not, after those that it has.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``, as for ``HashTable``; a key may come several times.
        values
            Values of shape ``[*batch, *value_shape]``; a scalar, or an array of shape ``value_shape``, goes to all.

        Raises
        ------
        TypeError, ValueError
            For arrays of other dtypes, or of shapes or devices that do not fit.
        OverflowError
            For Python integers that the key dtype cannot hold.
        MemoryError
            Where there is no room; the multimap is as it was.
        """
        with self._lock:
            batch = self._table._take(keys)
            array, broadcast = take_values(values, batch, self._value_dtype, self._value_shape)
            self._insert(batch, array, broadcast)
            batch.finish()

    def _insert(self, batch: Batch, values: _core.Array, broadcast: bool) -> None:
        here = Place(batch.context, batch.stream)
        context, stream = here
        count = math.prod(batch.shape)
        if count == 0:
            return
        self._follow(here)
        distinct, codes, counts = self._number(batch, count)
        found = counts.shape[0]
        order = offsets = None
        if found < count:
            order, offsets = here.numbers(count), here.numbers(found + 1)
            _core.group_positions(context, codes, offsets, order, stream)
        if broadcast:  # the one value, again and again
            order = batch.lend(np.zeros(count, np.int64), "int64")
        tails, none = here.numbers(found), batch.lend(np.full((), -1), "int64")
        core = batch.core
        core.look_up([(core, distinct, [(_TAIL, tails, none)], None, None, stream)])
        num_keys, size, chained = core.size(stream), len(self), self._chained
        # From here on the log has the values, of which those count that the table knows of, should it be interrupted.
        self._size, self._chained = None, True
        rows = values.reshape((1 if broadcast else count, *self._value_shape))
        ids = self._logs.append(here, distinct, rows, counts, order, offsets, tails)
        one = here.number(1)
        writes = [
            (_HEAD, ids, False, "keep"),
            (_TAIL, ids, False, "assign"),
            (_VALUES, counts, False, "add"),
            (_RUNS, one, True, "add"),
        ]
        try:
            core.change([(core, distinct, writes, [], None, None, stream)])
        except MemoryError:
            if len(self._logs.logs) > 1:
                self._take_back(batch, distinct, counts, tails, ids)
            raise
        self._size = size + count
        self._chained = chained or core.size(stream) - num_keys < found

    def _take_back(
        self, batch: Batch, distinct: _core.Array, counts: _core.Array, tails: _core.Array, ids: _core.Array
    ) -> None:
        """Leaves the table as it was before an insertion that some shards have, when others had no memory for it.

        ``tails``: each key's last run of before, -1 for none; ``ids``: its new one.
        """
        here, core = Place(batch.context, batch.stream), batch.core
        now, none = here.numbers(distinct.shape[0]), batch.lend(np.full((), -1), "int64")
        core.look_up([(core, distinct, [(_TAIL, now, none)], None, None, here.stream)])
        before = batch.to_host(tails)
        changed = batch.to_host(now) == batch.to_host(ids)
        new, old = (batch.lend(np.flatnonzero(changed & mask), "int64") for mask in (before < 0, before >= 0))
        core.erase([(core, here.gather(distinct, new), [], None, here.stream)])
        fewer = batch.lend(-batch.to_host(here.gather(counts, old)), "int64")
        writes = [
            (_TAIL, here.gather(tails, old), False, "assign"),
            (_VALUES, fewer, False, "add"),
            (_RUNS, here.number(-1), True, "add"),
        ]
        core.change([(core, here.gather(distinct, old), writes, [], None, None, here.stream)])

    def _number(self, batch: Batch, count: int) -> tuple[_core.Array, _core.Array, _core.Array]:
        """The distinct keys of a batch, the number of each key's, and how often each occurs. Waits."""
        here = Place(batch.context, batch.stream)
        context, stream = here
        elements = math.prod(batch.key_shape)
        if elements * ITEMSIZES[batch.array.dtype] > MAX_ROW_BYTES:
            rows = batch.array.reshape((count, *batch.key_shape))
            numbering = Keys.of_rows(batch, rows).number(counts=True)
            assert numbering.counts is not None
            return here.gather(rows, numbering.firsts), numbering.codes, numbering.counts
        work = _core.Factorization(context, batch.array, elements, True, True, stream)
        distinct = here.array(batch.array.dtype, (work.count, *batch.key_shape))
        codes, counts = here.numbers(count), here.numbers(work.count)
        work.write(distinct, codes, counts, None, False)
        return distinct, codes, counts

    def erase(self, keys: Any) -> int:
        """Erases keys with all of their values; absent ones are passed over.

        Returns
        -------
        How many values went.

        Raises
        ------
        TypeError, ValueError
            As ``insert``.
        """
        with self._lock:
            try:
                batch = self._table._take(keys)
            except KeyOutOfRangeError:
                return 0
            here = Place(batch.context, batch.stream)
            self._follow(here)
            counts, erased = here.numbers(math.prod(batch.shape)), here.array("bool", batch.shape)
            size, self._size = len(self), None
            batch.core.erase([batch.erasure([(_VALUES, counts, None)], erased)])
            batch.finish()
            once = batch.to_host(erased).reshape(-1)
            gone = int(batch.to_host(counts)[once].sum())
            self._size = size - gone
            if 2 * self._size < self._logs.length:
                self._compact(here)
            return gone

    def clear(self) -> None:
        """Erases all keys; the memory stays."""
        with self._lock:
            self._table.clear()
            self._logs.clear()
            self._size, self._compacted, self._chained = 0, 0, False

    # Lookups ---------------------------------------------------------------------------------------------------------

    def find_all(self, keys: Any) -> tuple[Any, Any]:
        """All values of each key.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``, of which there are n.

        Returns
        -------
        offsets, values
            int64 ``[n + 1]`` and ``[total, *value_shape]``: the values of key i, in the order in which they were
            inserted, are ``values[offsets[i]:offsets[i + 1]]``, none for an absent one. Of the keys' framework.

        Raises
        ------
        TypeError, ValueError, OverflowError
            For keys as ``HashTable.find``.
        MemoryError
            Where there is no room for the values.
        """
        with self._lock:
            try:
                batch = self._table._take(keys)
            except KeyOutOfRangeError:
                return self._no_values()
            here, count = Place(batch.context, batch.stream), math.prod(batch.shape)
            self._follow(here)
            if self._chained and self._logs.length >= 2 * self._compacted and self._logs.runs > 2 * self.num_keys:
                self._compact(here)
                views = self._table._views
                batch.core = self._table._core if views is None else views[batch.context.device_index]
            heads, counts, runs = (here.numbers(count) for _ in range(3))
            none = batch.lend(np.full((), -1), "int64")
            reads = [(_HEAD, heads, none), (_VALUES, counts, None), (_RUNS, runs, None)]
            batch.core.look_up([batch.lookup(reads)])
            offsets = Output(batch, "int64", (count + 1,))
            total = _core.sum_up(here.context, counts, offsets.array, here.stream)
            values = Output(batch, self._value_dtype, (total, *self._value_shape))
            keys = batch.array.reshape((count, *batch.key_shape))
            self._logs.read(here, keys, heads, counts, runs if self._chained else None, values.array)
            batch.finish()
            return offsets.result(batch), values.result(batch)

    def count(self, keys: Any) -> Any:
        """How many values each key has.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.

        Returns
        -------
        int64 array of shape ``batch``, 0 for absent keys, of the keys' framework; an integer for a single key. Raises
        as ``find_all``.
        """
        with self._lock:
            call = Call.of_lookup(self._table, keys)
            if call is None:
                return 0
            call.answer_values(["values"])
            call.look_up()
            return call.values()["values"]

    def contains(self, keys: Any, out: Any = None) -> Any:
        """Which of the keys have values; as ``HashTable.contains``."""
        with self._lock:
            return self._table.contains(keys, out)

    def __contains__(self, key: object) -> bool:
        """Has this one key values? Waits. TypeError for a batch of keys: that is ``contains(keys)``."""
        with self._lock:
            return key in self._table

    def __len__(self) -> int:
        """The number of values."""
        with self._lock:
            if self._size is None:  # a change was interrupted
                self._place.wait()
                home = Place(self._table._context, self._table._stream())
                counts, offsets = (home.numbers(self.num_keys + more) for more in (0, 1))
                self._table._core.export_items(None, [(_VALUES, counts, None)], None, home.stream)
                self._size = _core.sum_up(home.context, counts, offsets, home.stream)
            return self._size

    def __bool__(self) -> bool:
        return len(self) != 0

    @property
    def num_keys(self) -> int:
        """The number of keys. Waits."""
        with self._lock:
            return len(self._table)

    def keys(self, like: Any = None) -> Any:
        """All keys, each once. Waits.

        Parameters
        ----------
        like
            The framework of the result, as for ``HashTable.keys``.

        Returns
        -------
        Array of shape ``[num_keys, *key_shape]``, in no particular order.
        """
        with self._lock:
            return self._table.keys(like)

    def items(self, like: Any = None) -> tuple[Any, Any]:
        """All values with their keys. Waits.

        Parameters
        ----------
        like
            As for ``keys``.

        Returns
        -------
        keys, values
            ``[len(map), *key_shape]``, each key as often as it has values, in the order of ``keys()``, and ``[len(map),
            *value_shape]``, a key's values in the order in which they were inserted. Of several key columns a mapping
            of their names to arrays ``[len(map)]``.
        """
        with self._lock:
            batch = self._answering(like)
            outputs = [
                Output(batch, self.key_dtype, (len(self), *self.key_shape)),
                Output(batch, self._value_dtype, (len(self), *self._value_shape)),
            ]
            self._write_items(Place(batch.context, batch.stream), *(output.array for output in outputs))
            given = self._columns_of(outputs[0], batch)
            batch.finish()
            values = outputs[1].result(batch)
            if isinstance(given, Output):
                return given.result(batch), values
            return {name: column.result(batch) for name, column in given.items()}, values

    def _columns_of(self, keys: Output, batch: Batch) -> Output | dict[str, Output]:
        """The keys themselves, or of keys of several columns each of these."""
        columns = self._table._key_columns
        if columns is None:
            return keys
        parts = {name: Output(batch, dtype, keys.array.shape[:1]) for name, dtype in columns.dtypes}
        columns.unpack(batch.context, keys.array, [part.array for part in parts.values()], batch.stream)
        return parts

    def _write_items(self, here: Place, keys: _core.Array, values: _core.Array) -> None:
        """Fills arrays with all values and their keys, as ``items``."""
        self._follow(here)
        if self._chained:
            self._compact(here)
        at = 0
        for core, log in zip(self._cores(self._table), self._logs.logs, strict=True):
            there = here.at(core.context)
            each, (heads,) = self._export(core, [_HEAD], there)
            pairs = log.find(heads, None, there.stream)
            owners, positions = there.numbers(pairs.count), there.numbers(pairs.count)
            pairs.write(0, pairs.count, owners, positions, 0)
            end = at + pairs.count
            here.fetch(there.gather(each, owners), there, keys.part(at, end))
            self._logs.read_at(here, log, positions, values.part(at, end))
            at = end

    def _export(self, core: _core.Table, columns: list[int], there: Place) -> tuple[_core.Array, list[_core.Array]]:
        """All keys of a shard, and these columns of theirs."""
        size = core.size(there.stream)
        keys = there.array(core.key_dtype, (size, *core.key_shape))
        arrays = [there.numbers(size) for _ in columns]
        reads = [(column, array, None) for column, array in zip(columns, arrays, strict=True)]
        core.export_items(keys, reads, None, there.stream)
        return keys, arrays

    def _compact(self, here: Place) -> None:
        """Writes the logs anew, each key's values in one run. A new table and new logs take the old ones' place."""
        table = self._table.copy()
        made = []
        for core, log in zip(self._cores(table), self._logs.logs, strict=True):
            there = here.at(core.context)
            keys, (heads, counts, runs) = self._export(core, [_HEAD, _VALUES, _RUNS], there)
            offsets = there.numbers(keys.shape[0] + 1)
            _core.sum_up(there.context, counts, offsets, there.stream)
            positions = log.positions(heads, runs, there.stream)
            compacted, ids = log.compacted(positions, offsets, there.stream)
            writes = [
                (_HEAD, ids, False, "assign"),
                (_TAIL, ids, False, "assign"),
                (_RUNS, there.number(1), True, "assign"),
            ]
            core.change([(core, keys, writes, [], None, None, there.stream)])
            there.wait()  # what goes back now may be of another stream
            made.append(compacted)
        self._table, self._logs = table, self._logs.of(made)
        self._size = self._compacted = self._logs.length
        self._chained = False

    # Small things ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _cores(table: HashTable) -> list[_core.Table]:
        """The tables of the shards; of a single table itself."""
        return table._shards or [table._core]

    def _follow(self, here: Place) -> None:
        """Work here comes after that of the calls before."""
        if here != self._place:
            self._place.wait()
            self._place = here

    def _answering(self, like: Any) -> Batch:
        """What outputs are made for that no keys are given for."""
        batch = Batch()
        context = batch.context = self._table._context
        host = context.platform == "cpu"
        batch.framework, batch.tensor = framework_like(like, host), None
        batch.stream = 0 if host else batch.framework.stream(None, context.device_index)
        batch.scalar = False
        batch.staged = batch.framework is NUMPY and not host
        batch.must_wait = batch.framework.private_streams and not host
        batch.outputs = ()
        return batch

    def _no_values(self) -> tuple[Any, Any]:
        """What ``find_all`` says of a single key that the dtype cannot hold."""
        context = make_context("cpu")
        values, _ = NUMPY.empty(None, self._value_dtype, (0, *self._value_shape), context, 0)
        return np.zeros(2, np.int64), values

    @property
    def device(self) -> str:
        """The name of the device: "cpu", or "cuda:" and a number; of several shards, theirs with commas between."""
        return self._table.device

    @property
    def key_dtype(self) -> str:
        """The name of the keys' dtype."""
        return self._table.key_dtype

    @property
    def key_columns(self) -> Mapping[str, str] | None:
        """Names and dtypes of the columns of a key; None for keys of one dtype."""
        return self._table.key_columns

    @property
    def key_shape(self) -> Shape:
        """The shape of one key: ``()``, or ``(k,)`` for vectors."""
        return self._table.key_shape

    @property
    def value_dtype(self) -> str:
        """The name of the values' dtype."""
        return self._value_dtype

    @property
    def value_shape(self) -> Shape:
        """The shape of one value."""
        return self._value_shape

    def copy(self) -> Self:
        """An independent copy on the same device, from the same memory resource. Waits."""
        with self._lock:
            made = object.__new__(type(self))
            made._attach(self._table.copy(), self._value_dtype, self._value_shape)
            made._place = self._place
            made._logs = self._logs.copy(self._place)
            made._size, made._compacted, made._chained = self._size, self._compacted, self._chained
            return made

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __repr__(self) -> str:
        key_columns = self._table._key_columns
        shapes = f", key_shape={self.key_shape}" if self.key_shape and key_columns is None else ""
        shapes += f", value_shape={self._value_shape}" if self._value_shape else ""
        return (
            f"<{type(self).__name__} {key_columns or self.key_dtype} -> {self._value_dtype}{shapes}, size={len(self)}, "
            f"num_keys={self.num_keys}, device={self.device}>"
        )

    # Files -----------------------------------------------------------------------------------------------------------

    def _contents(self) -> serialization.Contents:
        with self._lock:
            home = Place(self._table._context, self._table._stream())
            kinds = (self.key_dtype, self.key_shape), (self._value_dtype, self._value_shape)
            arrays = [home.array(dtype, (len(self), *shape)) for dtype, shape in kinds]
            self._write_items(home, *arrays)
            hosts = [to_host(home.context, array, home.stream) for array in arrays]
        return serialization.Contents(
            key_dtype=self.key_dtype,
            key_shape=self.key_shape,
            key_columns=self._table._key_columns,
            value_dtype=self._value_dtype,
            value_shape=self._value_shape,
            max_load_factor=self._table.max_load_factor,
            max_capacity=None,
            deterministic=False,
            seed=self._table.seed or None,
            initializer=None,
            default=None,
            keys=hosts[0],
            values=hosts[1],
            is_multimap=True,
        )

    @classmethod
    def _restore(cls, contents: serialization.Contents, device: object, memory: object, name: str | None) -> Self:
        contents.need_kind("multimap")
        if name is not None:
            raise ValueError(f"name={name!r} was given, and a HashMultiMap has no name")
        assert contents.value_dtype is not None
        assert contents.values is not None
        template = HashMultiMap(
            contents.key_columns or contents.key_dtype,
            contents.value_dtype,
            contents.value_shape,
            device=device,
            key_shape=() if contents.key_columns else contents.key_shape,
            max_load_factor=max(contents.max_load_factor, LEAST_LOAD_FACTOR),
            seed=contents.seed,
            memory=memory,
        )
        made = object.__new__(cls)
        made._attach(template._table, contents.value_dtype, contents.value_shape)
        batch = made._table._take(contents.keys)
        made._insert(batch, batch.lend(contents.values, contents.value_dtype), False)
        made._table.max_load_factor = contents.max_load_factor
        return made


consumers.no_arrays[HashMultiMap] = "give its keys(), or one of its items(), or ask it with contains(keys)"
