"""unique, isin and factorize of gpuhash, pandas and NumPy, and counting into a table beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.suite import need_module
from benchmarks.timing import expect

from .contest import Entry, Job, Ready
from .data import Integers, Keys, SetData

COUNTING = "count in batches"  # into a table that begins empty
RESERVED = "count in batches, reserved"  # into one that has room for all keys
IN_ORDER = "insert in a table's order"  # what items() of one table gives, into another one
SHUFFLED = "insert shuffled"
OPERATIONS = (
    "unique",
    "unique with inverse",
    "unique with counts",
    "unique, sorted",
    "isin",
    "factorize",
    COUNTING,
    RESERVED,
    IN_ORDER,
    SHUFFLED,
)
COMPARED = ("unique with counts", "factorize", "isin", COUNTING)  # for every distribution
OF_DISTINCT = (IN_ORDER, SHUFFLED)  # these take each key once
_BATCH = 1 << 22
_MOST_ISIN = 1 << 25  # keys for NumPy's, which takes minutes for 2^26 distinct ones


def ours(data: SetData, threads: int) -> Entry:
    return Entry("gpuhash", threads, partial(_ours, data))


def _ours(data: SetData) -> Ready:
    import gpuhash

    jobs = {}
    if hasattr(gpuhash, "unique"):
        expect(np.array_equal(gpuhash.unique(data.keys), data.unique), "unique keys")
        unique, inverse = gpuhash.unique(data.keys, return_inverse=True)
        expect(np.array_equal(unique, data.unique) and np.array_equal(inverse, data.codes), "unique keys, inverse")
        jobs["unique"] = Job(lambda: gpuhash.unique(data.keys))
        _, counts = gpuhash.unique(data.keys, return_counts=True)
        expect(np.array_equal(counts, data.counts), "counts of unique keys")
        expect(np.array_equal(gpuhash.unique(data.keys, sorted=True), data.sorted_unique), "unique keys, sorted")
        jobs["unique with inverse"] = Job(lambda: gpuhash.unique(data.keys, return_inverse=True))
        jobs["unique with counts"] = Job(lambda: gpuhash.unique(data.keys, return_counts=True))
        jobs["unique, sorted"] = Job(lambda: gpuhash.unique(data.keys, sorted=True))
    if hasattr(gpuhash, "isin"):
        expect(np.array_equal(gpuhash.isin(data.keys, data.tests), data.isin), "isin")
        jobs["isin"] = Job(lambda: gpuhash.isin(data.keys, data.tests))
    if hasattr(gpuhash, "factorize"):
        codes, unique = gpuhash.factorize(data.keys)
        expect(np.array_equal(unique, data.unique) and np.array_equal(codes, data.codes), "factorize")
        jobs["factorize"] = Job(lambda: gpuhash.factorize(data.keys))
    table = _counted(data)
    expect(len(table) == len(data.unique) and np.array_equal(table[data.unique], data.counts), "counts in a table")
    jobs[COUNTING] = Job(lambda: _counted(data))
    jobs[RESERVED] = Job(lambda: _counted(data, len(data.unique)))
    in_order, counts = (np.from_dlpack(array) for array in table.items())
    shuffled = np.random.default_rng(4).permutation(in_order)
    expect(len(_loaded(in_order, counts)) == len(_loaded(shuffled, counts)) == len(table), "all keys of a table")
    del table
    jobs[IN_ORDER] = Job(lambda: _loaded(in_order, counts))
    jobs[SHUFFLED] = Job(lambda: _loaded(shuffled, counts))
    return Ready(jobs)


def _counted(data: SetData, capacity: int = 0) -> Any:
    import gpuhash

    table = gpuhash.HashTable(data.keys.dtype, "int64", device="cpu", capacity=capacity)
    for start in range(0, len(data.keys), _BATCH):
        table.insert_or_apply(data.keys[start : start + _BATCH], 1, "add")
    return table


def _loaded(keys: Keys, values: Integers) -> Any:
    import gpuhash

    table = gpuhash.HashTable(keys.dtype, "int64", device="cpu", capacity=len(keys))
    table.update(keys, values)
    return table


def pandas(data: SetData) -> Entry:
    return Entry("pandas", 1, partial(_pandas, data))


def _pandas(data: SetData) -> Ready:
    pd = need_module("pandas")
    codes, unique = pd.factorize(data.keys)
    expect(np.array_equal(unique, data.unique) and np.array_equal(codes, data.codes), "pandas.factorize")
    series = pd.Series(data.keys)
    expect(np.array_equal(series.isin(data.tests), data.isin), "pandas' isin")
    return Ready(
        {
            "unique": Job(lambda: pd.unique(data.keys)),
            "unique with inverse": Job(lambda: pd.factorize(data.keys)),
            "unique with counts": Job(lambda: series.value_counts(sort=False)),
            "isin": Job(lambda: series.isin(data.tests)),
            "factorize": Job(lambda: pd.factorize(data.keys)),
        }
    )


def numpy(data: SetData) -> Entry:
    return Entry("numpy", 1, partial(_numpy, data))


def _numpy(data: SetData) -> Ready:
    jobs = {
        "unique": Job(lambda: np.unique(data.keys)),
        "unique with inverse": Job(lambda: np.unique(data.keys, return_inverse=True)),
        "unique with counts": Job(lambda: np.unique(data.keys, return_counts=True)),
        "unique, sorted": Job(lambda: np.unique(data.keys)),
        COUNTING: Job(lambda: np.unique(data.keys, return_counts=True)),
    }
    if len(data.keys) <= _MOST_ISIN:
        jobs["isin"] = Job(lambda: np.isin(data.keys, data.tests))
    return Ready(jobs)
