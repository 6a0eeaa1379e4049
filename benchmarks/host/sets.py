"""unique, isin and factorize of gpuhash, pandas and NumPy, and counting into a table beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.suite import need_module
from benchmarks.timing import expect

from .contest import Entry, Job, Ready
from .data import SetData

COUNTING = "count in batches"  # into a table that begins empty
OPERATIONS = (
    "unique",
    "unique with inverse",
    "unique with counts",
    "unique, sorted",
    "isin",
    "factorize",
    COUNTING,
)
_BATCHES = 8


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
    del table
    jobs[COUNTING] = Job(lambda: _counted(data))
    return Ready(jobs)


def _counted(data: SetData) -> Any:
    import gpuhash

    table = gpuhash.HashTable("int64", "int64", device="cpu")
    for batch in np.array_split(data.keys, _BATCHES):
        table.insert_or_apply(batch, 1, "add")
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
    return Ready(
        {
            "unique": Job(lambda: np.unique(data.keys)),
            "unique with inverse": Job(lambda: np.unique(data.keys, return_inverse=True)),
            "unique with counts": Job(lambda: np.unique(data.keys, return_counts=True)),
            "unique, sorted": Job(lambda: np.unique(data.keys)),
            "isin": Job(lambda: np.isin(data.keys, data.tests)),
        }
    )
