"""The table inside tf.function, beside TensorFlow's own tables: each operation is one traced function.

Insertions begin with an empty table that has room, in memory that was touched before: one of gpuhash that has had all
keys, and was cleared, and a new DenseHashTable, which writes all of its buckets when it is made. TensorFlow's
MutableHashTable is cleared as well, and keeps what room its map keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.report import PAIR
from benchmarks.suite import NotHereError
from benchmarks.timing import expect

from .contenders import import_tensorflow
from .contest import Entry, Job, Ready
from .data import Data, Integers, mixed, values_of

OPERATIONS = ("find present", "find absent", "insert", "insert_or_assign", "erase")
KINDS = ("MutableHashTable", "DenseHashTable")
_DEFAULT = -1

Clear = Callable[[Any], None]


@dataclass(frozen=True)
class Values:
    """What the keys of a table have: integers, or rows of float32."""

    layout: str
    row: int | None = None  # elements

    @property
    def dtype(self) -> str:
        return "int64" if self.row is None else "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.row is None else (self.row,)

    @property
    def pair_bytes(self) -> int:
        return 8 + (8 if self.row is None else 4 * self.row)

    def of(self, keys: Integers) -> npt.NDArray[Any]:
        """The value that belongs to each key; rows in whole numbers, which float32 holds exactly."""
        if self.row is None:
            return values_of(keys)
        first = (keys & 0xFFFF).astype(np.float32)
        return first[:, np.newaxis] + np.arange(self.row, dtype=np.float32)


INTEGERS = Values(PAIR)
ROWS = Values("8 B + 64 float32", 64)


LAYOUTS = (INTEGERS, ROWS)


def job_name(operation: str, values: Values) -> str:
    return f"{operation}, {values.layout}"


def ours(data: Data, batch: int, threads: int) -> Entry:
    """``gpuhash.tensorflow.MutableHashTable`` with room from the start."""

    def make() -> Ready:
        tf = import_tensorflow(threads)
        try:
            import gpuhash.tensorflow
        except ImportError as error:  # no compiler, for instance
            raise NotHereError(str(error)) from error

        def new(*arguments: Any) -> Any:
            return gpuhash.tensorflow.MutableHashTable(
                *arguments, experimental_is_anonymous=True, total_buckets=_slots(data)
            )

        return _ready(tf, new, partial(_cleared, tf), data, batch)

    return Entry("gpuhash", threads, make)


def tensorflow(data: Data, batch: int, kind: str, threads: int) -> Entry:
    """``tf.lookup.experimental``'s tables: MutableHashTable, or DenseHashTable with room from the start."""

    def make() -> Ready:
        tf = import_tensorflow(threads)
        tables = tf.lookup.experimental
        empty, deleted = mixed(2 * data.pairs, 2).tolist()  # neither of the two may be a key, nor looked up

        def new(*arguments: Any) -> Any:
            if kind == "MutableHashTable":
                return tables.MutableHashTable(*arguments, experimental_is_anonymous=True)
            return tables.DenseHashTable(
                *arguments, empty, deleted, initial_num_buckets=_slots(data), experimental_is_anonymous=True
            )

        return _ready(tf, new, partial(_cleared, tf) if kind == "MutableHashTable" else None, data, batch)

    return Entry(f"tensorflow {kind}", threads, make)


def _slots(data: Data) -> int:
    """At least twice the pairs."""
    return 1 << (2 * data.pairs - 1).bit_length()


def _cleared(tf: Any, table: Any) -> None:
    """Leaves the table empty: nothing is put in the place of all that it has."""
    keys, values = tf.zeros([0], table.key_dtype), tf.zeros([0, *table._value_shape], table.value_dtype)
    tf.raw_ops.LookupTableImportV2(table_handle=table.resource_handle, keys=keys, values=values)


def _ready(tf: Any, new: Callable[..., Any], clear: Clear | None, data: Data, batch: int) -> Ready:
    """Jobs on tables of each layout, which ``new`` makes of two dtypes and a default. All is checked before."""
    jobs = {}
    for values in LAYOUTS:
        with tf.device("CPU:0"):
            default = tf.fill(values.shape, tf.constant(_DEFAULT, values.dtype))
            bench = _Bench(tf, partial(new, tf.int64, default.dtype, default), clear, data, values, batch)
        bench.check()
        jobs.update({job_name(operation, values): job for operation, job in bench.jobs().items()})
    return Ready(jobs)


class _Traced:
    """A table with one traced function for each operation."""

    def __init__(self, tf: Any, table: Any, dtype: str, batch: int) -> None:
        keys = tf.TensorSpec([batch], tf.int64)
        values = tf.TensorSpec([batch, *table._value_shape], dtype)

        def insert(keys: Any, values: Any) -> None:
            table.insert(keys, values)

        def remove(keys: Any) -> None:
            table.remove(keys)

        self.lookup = tf.function(table.lookup, [keys], autograph=False)
        self.insert = tf.function(insert, [keys, values], autograph=False)
        self.remove = tf.function(remove, [keys], autograph=False)
        self.table = table

    def size(self) -> int:
        return int(self.table.size())


class _Bench:
    """One of the kinds of tables. All have the same methods, and batches of keys go through them in turn."""

    def __init__(
        self, tf: Any, new: Callable[[], Any], clear: Clear | None, data: Data, values: Values, batch: int
    ) -> None:
        self._tf, self._new, self._clear = tf, new, clear
        self._data, self._values, self._batch = data, values, batch
        self._keys, self._lookups, self._absent = (
            [tf.constant(piece) for piece in self._pieces(keys)] for keys in (data.keys, data.lookups, data.absent)
        )
        self._new_values = [tf.constant(values.of(piece)) for piece in self._pieces(data.keys)]
        self._table, self._other = self._make(), self._make()  # the other is for insertions
        self._job, self._next = "", 0  # the job of the last call, and the batch of the next one

    def _pieces(self, keys: Integers) -> list[Integers]:
        return np.split(keys, len(keys) // self._batch)

    def _make(self) -> _Traced:
        with self._tf.device("CPU:0"):
            return _Traced(self._tf, self._new(), self._values.dtype, self._batch)

    def _fill(self) -> None:
        if self._table.size() < self._data.pairs:
            self._insert_all(self._table)

    def _insert_all(self, table: _Traced) -> None:
        for keys, values in zip(self._keys, self._new_values, strict=True):
            table.insert(keys, values)

    def check(self) -> None:
        """Every operation is right before any is timed, batch by batch as then."""
        pairs, table = self._data.pairs, self._other
        self._insert_all(table)
        expect(table.size() == pairs, "every key is new in an empty table")
        self._check_lookups(self._values.of)
        for keys, values in zip(self._lookups, self._new_values, strict=True):
            table.insert(keys, values)  # those of other keys
        expect(table.size() == pairs, "no key is new when assigning to present keys")
        order = np.argsort(self._data.lookups)
        known, others = self._data.lookups[order], self._data.keys[order]
        self._check_lookups(lambda keys: self._values.of(others[np.searchsorted(known, keys)]))
        for number, keys in enumerate(self._lookups, 1):
            table.remove(keys)
            expect(table.size() == pairs - number * self._batch, "present keys are erased")
        for keys in self._keys:
            expect(np.all(table.lookup(keys).numpy() == _DEFAULT), "erased keys get the default")

    def _check_lookups(self, values: Callable[[Integers], npt.NDArray[Any]]) -> None:
        for keys in self._lookups:
            expect(np.array_equal(self._other.lookup(keys).numpy(), values(keys.numpy())), "values of present keys")
        for keys in self._absent:
            expect(np.all(self._other.lookup(keys).numpy() == _DEFAULT), "absent keys get the default")

    def jobs(self) -> dict[str, Job]:
        """A call takes the next batch each time. After all of them, insertions begin again with an empty table."""
        return {
            "find present": self._job_of("find present", lambda at: self._table.lookup(self._lookups[at]), self._fill),
            "find absent": self._job_of("find absent", lambda at: self._table.lookup(self._absent[at]), self._fill),
            "insert": self._job_of("insert", self._insert_new, self._empty),
            "insert_or_assign": self._job_of("insert_or_assign", self._assign, self._fill),
            "erase": self._job_of("erase", lambda at: self._table.remove(self._lookups[at]), self._fill),
        }

    def _job_of(self, name: str, act: Callable[[int], object], begin: Callable[[], None]) -> Job:
        def before() -> None:
            if self._job != name or self._next == len(self._keys):
                begin()
                self._job, self._next = name, 0

        def action() -> None:
            self._next += 1
            act(self._next - 1)

        return Job(action, before)

    def _empty(self) -> None:
        if self._clear is None:
            self._other = self._make()
        else:
            self._clear(self._other.table)
        expect(self._other.size() == 0, "a table is empty before insertions")

    def _insert_new(self, at: int) -> None:
        self._other.insert(self._keys[at], self._new_values[at])

    def _assign(self, at: int) -> None:
        self._table.insert(self._lookups[at], self._new_values[at])
