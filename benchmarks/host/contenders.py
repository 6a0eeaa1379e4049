"""Who takes part: gpuhash and what is used instead of it. Each is made ready, and checked, in its own process."""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.limits import HostLoads
from benchmarks.native import BuildError, host_library
from benchmarks.suite import NotHereError, need_module
from benchmarks.timing import expect, nothing

from .contest import Entry, Job, Ready
from .data import Data, Integers, Mask, values_of

PAIR_BYTES = 16
COUNT = "count"

Find = Callable[[Integers], tuple[Integers, Mask]]


def limit_job(threads: int) -> str:
    return f"L64, {threads} thread{'' if threads == 1 else 's'}"


def limit(array_bytes: int, keys: int, threads: tuple[int, ...]) -> Entry:
    """Random 64-byte loads over as many bytes as a table has."""

    def make() -> Ready:
        try:
            loads = HostLoads(array_bytes, keys)
        except BuildError as error:
            raise NotHereError(f"limits: {error}") from error
        for n in threads:
            loads.seconds(n)  # finds out how many loads in flight pay
        return Ready({limit_job(n): Job(nothing, seconds=partial(loads.seconds, n), threads=n) for n in threads})

    return Entry("limit", max(threads), make)


def _check(find: Find, data: Data) -> None:
    values, found = find(data.lookups)
    expect(np.all(found), "present keys are found")
    expect(np.array_equal(values, values_of(data.lookups)), "values of present keys")
    expect(not np.any(find(data.absent)[1]), "absent keys are not found")


class _Chunks:
    """The next ``size`` keys each time, from the beginning again at the end."""

    def __init__(self, keys: Integers, size: int) -> None:
        self._keys, self._size, self._position = keys, size, 0

    def __call__(self) -> Integers:
        if self._position + self._size > len(self._keys):
            self._position = 0
        self._position += self._size
        return self._keys[self._position - self._size : self._position]


def _slots_at(load: float, pairs: int) -> int:
    """Slots of a table whose memory, filters and all, has room for ``pairs / load`` pairs of 8 + 8 bytes."""
    import gpuhash

    small, large = (gpuhash.HashTable("int64", "int64", capacity=1 << exponent) for exponent in (16, 20))
    per_slot = (large.nbytes - small.nbytes) / (large.capacity - small.capacity)
    fixed = large.nbytes - per_slot * large.capacity
    return max(pairs, int((pairs * PAIR_BYTES / load - fixed) / per_slot))


def ours(data: Data, load: float, threads: int, batch: int | None = None) -> Entry:
    """The table at one load, with batches of all keys or of ``batch``, other ones each time."""
    return Entry("gpuhash", threads, partial(_ours, data, load, data.pairs if batch is None else batch))


def _ours(data: Data, load: float, batch: int) -> Ready:
    import gpuhash

    table = gpuhash.HashTable("int64", "int64", capacity=_slots_at(load, data.pairs), max_load_factor=1.0)
    nbytes = table.nbytes
    values, mask = np.empty(data.pairs, np.int64), np.empty(data.pairs, np.bool_)

    def fill() -> None:
        table.clear()
        table[data.keys] = data.values

    table.insert(data.keys, data.values, out=mask)
    expect(mask.all() and len(table) == data.pairs, "every key is new in an empty table")
    _check(lambda keys: table.find(keys, out=(values, mask)), data)
    table.insert_or_assign(data.lookups, data.lookups, out=mask)
    expect(not mask.any(), "no key is new when assigning to present keys")
    table.find(data.lookups, out=(values, mask))
    expect(np.array_equal(values, data.lookups), "values after assigning")
    table.erase(data.lookups, out=mask)
    expect(mask.all() and len(table) == 0, "present keys are erased")
    table.insert(data.keys, data.values, out=mask)
    expect(mask.all() and len(table) == data.pairs, "keys that were erased are new when they come again")
    _check(lambda keys: table.find(keys, out=(values, mask)), data)
    fill()
    expect(table.nbytes == nbytes, "the table keeps its size as it has room")

    values, mask = values[:batch], mask[:batch]
    present, absent, assigned, erased = (_Chunks(k, batch) for k in (data.lookups, data.absent, *[data.lookups] * 2))
    rest = data.pairs - batch
    last_keys, last_values = data.keys[rest:], data.values[rest:]

    def full() -> None:
        if len(table) < data.pairs:
            fill()

    def without_last() -> None:
        table.clear()
        table[data.keys[:rest]] = data.values[:rest]
        len(table)

    gone, back = _Chunks(data.lookups, batch), _Chunks(data.lookups, batch)

    def without_some() -> None:
        full()
        table.erase(gone())

    return Ready(
        {
            "find present": Job(lambda: table.find(present(), out=(values, mask)), full),
            "find absent": Job(lambda: table.find(absent(), out=(values, mask)), full),
            "insert": Job(lambda: table.update(last_keys, last_values), without_last),
            "insert with mask": Job(lambda: table.insert(last_keys, last_values, out=mask), without_last),
            "insert_or_assign": Job(lambda: table.insert_or_assign(assigned(), last_values, out=mask), full),
            "erase": Job(lambda: table.erase(erased(), out=mask), full),
            "insert again": Job(lambda: table.update(back(), last_values), without_some),
        },
        data.pairs * PAIR_BYTES / nbytes,
    )


def our_count(data: Data, threads: int) -> Entry:
    """Occurrences of keys that repeat, counted in a table with room for the distinct ones."""

    def make() -> Ready:
        import gpuhash

        distinct, occurrences = np.unique(data.repeated, return_counts=True)
        table = gpuhash.HashTable("int64", "int64")
        table.reserve(len(distinct))
        mask = np.empty(data.pairs, np.bool_)
        job = Job(lambda: table.insert_or_apply(data.repeated, 1, "add", out=mask), table.clear)
        job.action()
        expect(len(table) == len(distinct) and np.array_equal(table[distinct], occurrences), "counts")
        return Ready({COUNT: job}, len(distinct) * PAIR_BYTES / table.nbytes)

    return Entry("gpuhash", threads, make)


def small_calls(rounds: int | None) -> Entry:
    """All calls of calls.py, each of which measures itself; ``rounds`` as there."""

    def make() -> Ready:
        from benchmarks.calls import prepared

        return Ready(
            {
                f"{framework}: `{name}`": Job(nothing, seconds=partial(_median_seconds, measure))
                for framework, name, measure in prepared("cpu", rounds)
            }
        )

    return Entry("gpuhash", 1, make)


def _median_seconds(measure: Callable[[], list[float]]) -> float:
    return statistics.median(measure()) * 1e-6


def boost(data: Data) -> Entry:
    """``boost::unordered_flat_map`` in a plain loop, with room reserved; by peers.cpp."""
    return Entry("boost", 1, partial(_boost, data))


def _boost(data: Data) -> Ready:
    try:
        library = host_library("peers")
    except BuildError as error:
        raise NotHereError(f"boost: {error}") from error
    library.create_map.restype = ctypes.c_void_p
    library.map_size.restype = library.map_capacity.restype = ctypes.c_int64
    handle = ctypes.c_void_p(library.create_map(ctypes.c_int64(data.pairs)))
    if not handle:
        raise MemoryError("no memory for boost's map")
    n = ctypes.c_int64(data.pairs)
    values, mask = np.empty(data.pairs, np.int64), np.empty(data.pairs, np.bool_)
    keys_, values_, lookups_, absent_, out_, mask_ = (
        array.ctypes.data_as(ctypes.c_void_p)  # which keeps the array alive
        for array in (data.keys, data.values, data.lookups, data.absent, values, mask)
    )

    def clear() -> None:
        library.clear_map(handle)

    def insert() -> None:
        library.insert_all(handle, keys_, values_, n)

    def assign() -> None:
        library.assign_all(handle, lookups_, values_, n, mask_)

    def erase() -> None:
        library.erase_all(handle, lookups_, n, mask_)

    def full() -> None:
        if library.map_size(handle) < data.pairs:
            clear()
            insert()

    def without_all() -> None:
        full()
        erase()

    def find(keys: Integers) -> tuple[Integers, Mask]:
        library.find_all(handle, keys.ctypes.data_as(ctypes.c_void_p), n, out_, mask_)
        return values, mask

    insert()
    _check(find, data)
    assign()
    expect(not mask.any(), "boost: no key is new when assigning to present keys")
    erase()
    expect(mask.all() and library.map_size(handle) == 0, "boost: present keys are erased")
    insert()
    _check(find, data)
    return Ready(
        {
            "find present": Job(lambda: library.find_all(handle, lookups_, n, out_, mask_), full),
            "find absent": Job(lambda: library.find_all(handle, absent_, n, out_, mask_), full),
            "insert": Job(insert, clear),
            "insert_or_assign": Job(assign, full),
            "erase": Job(erase, full),
            "insert again": Job(insert, without_all),
        },
        data.pairs / library.map_capacity(handle),
    )


def dictionary(data: Data) -> Entry:
    """A dict of Python integers; conversions from and to arrays are not in the time."""
    return Entry("dict", 1, partial(_dictionary, data))


def _dictionary(data: Data) -> Ready:
    keys, values, lookups, absent = (a.tolist() for a in (data.keys, data.values, data.lookups, data.absent))
    table = dict(zip(keys, values, strict=True))
    expect([table[key] for key in lookups] == values_of(data.lookups).tolist(), "dict")

    def erase() -> None:
        for key in lookups:
            del table[key]

    def full() -> None:
        if not table:
            table.update(zip(keys, values, strict=True))

    return Ready(
        {
            "find present": Job(lambda: [table[key] for key in lookups], full),
            "find absent": Job(lambda: [table.get(key) for key in absent], full),
            "insert": Job(lambda: dict(zip(keys, values, strict=True))),
            "insert_or_assign": Job(lambda: table.update(zip(lookups, values, strict=True)), full),
            "erase": Job(erase, full),
        }
    )


def numpy(data: Data) -> Entry:
    """Sorting instead of hashing: argsort builds, searchsorted looks up, unique counts."""
    return Entry("numpy, sorted", 1, partial(_numpy, data))


def _numpy(data: Data) -> Ready:
    order = np.argsort(data.keys)
    ordered, values = data.keys[order], data.values[order]

    def find(keys: Integers) -> tuple[Integers, Mask]:
        at = np.searchsorted(ordered, keys)
        at[at == len(ordered)] = 0
        return values[at], ordered[at] == keys

    _check(find, data)
    return Ready(
        {
            "find present": Job(lambda: find(data.lookups)),
            "find absent": Job(lambda: find(data.absent)),
            "insert": Job(lambda: data.keys[np.argsort(data.keys)]),
            COUNT: Job(lambda: np.unique(data.repeated, return_counts=True)),
        }
    )


def pandas(data: Data) -> Entry:
    """``Index.get_indexer`` finds (its own table is built before), ``factorize`` of distinct keys inserts."""
    return Entry("pandas", 1, partial(_pandas, data))


def _pandas(data: Data) -> Ready:
    pd = need_module("pandas")
    index = pd.Index(data.keys)

    def find(keys: Integers) -> tuple[Integers, Mask]:
        at = index.get_indexer(keys)
        return data.values[at], at >= 0

    _check(find, data)
    return Ready(
        {
            "find present": Job(lambda: find(data.lookups)),
            "find absent": Job(lambda: index.get_indexer(data.absent)),
            "insert": Job(lambda: pd.factorize(data.keys)),
            COUNT: Job(lambda: pd.Series(data.repeated).value_counts(sort=False)),
        }
    )


def import_tensorflow(threads: int) -> Any:
    """With so many threads for the work of an op, and for ops side by side. NotHereError where it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tf = need_module("tensorflow")
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return tf


def tensorflow(data: Data, kind: str, threads: int) -> Entry:
    """``tf.lookup.experimental``'s tables: MutableHashTable, or DenseHashTable with room from the start."""
    return Entry(f"tensorflow {kind}", threads, partial(_tensorflow, data, kind, threads))


def _tensorflow(data: Data, kind: str, threads: int) -> Ready:
    tf = import_tensorflow(threads)
    keys, values, lookups, absent = (tf.constant(a) for a in (data.keys, data.values, data.lookups, data.absent))

    def new() -> Any:
        if kind == "MutableHashTable":
            return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=-1)
        return tf.lookup.experimental.DenseHashTable(
            tf.int64,
            tf.int64,
            default_value=-1,
            empty_key=int(data.absent[0]),  # neither of the two may be a key, nor looked up
            deleted_key=int(data.absent[1]),
            initial_num_buckets=1 << (2 * data.pairs - 1).bit_length(),
        )

    table = new()
    fresh = new()
    absent = absent[2:]

    def fill() -> None:
        table.insert(keys, values)

    def full() -> None:
        if int(table.size()) < data.pairs:
            fill()

    def begin() -> None:
        nonlocal fresh
        fresh = new()

    fill()
    expect(np.array_equal(table.lookup(lookups).numpy(), values_of(data.lookups)), f"{kind}: values of present keys")
    expect(int(table.size()) == data.pairs, f"{kind}: size")
    expect(np.all(table.lookup(absent).numpy() == -1), f"{kind}: absent keys get the default")
    return Ready(
        {
            "find present": Job(lambda: table.lookup(lookups), full),
            "find absent": Job(lambda: table.lookup(absent), full),
            "insert": Job(lambda: fresh.insert(keys, values), begin),
            "insert_or_assign": Job(lambda: table.insert(lookups, values), full),
            "erase": Job(lambda: table.remove(lookups), full),
        }
    )
