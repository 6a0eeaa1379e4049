"""unique, isin and factorize of gpuhash, pandas and NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.suite import NotHereError, need_module
from benchmarks.timing import expect

from .contest import Entry, Job, Ready
from .data import SetData

OPERATIONS = ("unique", "unique with inverse", "isin", "factorize")


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
        jobs["unique with inverse"] = Job(lambda: gpuhash.unique(data.keys, return_inverse=True))
    if hasattr(gpuhash, "isin"):
        expect(np.array_equal(gpuhash.isin(data.keys, data.tests), data.isin), "isin")
        jobs["isin"] = Job(lambda: gpuhash.isin(data.keys, data.tests))
    if hasattr(gpuhash, "factorize"):
        codes, unique = gpuhash.factorize(data.keys)
        expect(np.array_equal(unique, data.unique) and np.array_equal(codes, data.codes), "factorize")
        jobs["factorize"] = Job(lambda: gpuhash.factorize(data.keys))
    if not jobs:
        raise NotHereError(f"gpuhash {gpuhash.__version__} has no unique, isin and factorize")
    return Ready(jobs)


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
            "isin": Job(lambda: np.isin(data.keys, data.tests)),
        }
    )
