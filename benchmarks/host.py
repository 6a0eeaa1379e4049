"""The table on the host against dict, NumPy and pandas."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

import gpuhash

from .limits import LimitsUnavailableError, host_random_loads
from .report import PAIR_BYTES, Progress, Report, slots_at

try:
    import pandas as pd
except ImportError:
    pd = None

LOADS = (0.5, 0.8)
OPERATIONS = ("find present", "find absent", "insert", "insert with mask", "insert_or_assign", "erase", "count")
LIMIT = "L64"
REPEATS = 16  # of each key in a batch that is counted

Keys = npt.NDArray[np.int64]
Action = Callable[[], object]


def _nothing() -> None:
    pass


def make_keys(first: int, count: int) -> Keys:
    """Unique keys that look random: the finisher of splitmix64, a bijection, of a counter."""
    x = np.arange(first, first + count, dtype=np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def timed(action: Action, *, before: Action = _nothing, runs: int) -> float:
    """Median seconds of one call, after one that does not count. ``before`` runs before each, outside of the time."""
    seconds = []
    for _ in range(runs + 1):
        before()
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _expect(holds: bool | np.bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"wrong result: {what}")


class Data:
    """Keys, their values, the keys in another order, keys never inserted, and keys that come REPEATS times each."""

    def __init__(self, pairs: int) -> None:
        rng = np.random.default_rng(1)
        self.pairs = pairs
        self.keys = make_keys(0, pairs)
        self.values = self.keys ^ 0x5555
        self.lookups = rng.permutation(self.keys)
        self.absent = make_keys(pairs, pairs)
        self.repeated = self.keys[rng.integers(0, pairs // REPEATS, pairs)]


def gpuhash_seconds(data: Data, load: float, operations: Collection[str], runs: int) -> tuple[float, dict[str, float]]:
    """The load that the table's memory really has, and seconds per operation."""
    slots = slots_at(load, data.pairs)
    table = gpuhash.HashTable("int64", "int64", capacity=slots, max_load_factor=1.0)
    real_load = data.pairs * PAIR_BYTES / table.nbytes
    values = np.empty(data.pairs, np.int64)
    mask = np.empty(data.pairs, np.bool_)

    def fill() -> None:
        table.clear()
        table[data.keys] = data.values

    fill()
    table.find(data.lookups, out=(values, mask))
    _expect(mask.all() and np.array_equal(values, data.lookups ^ 0x5555), "present keys and their values")
    table.find(data.absent, out=(values, mask))
    _expect(not mask.any(), "absent keys")
    table.erase(data.lookups, out=mask)
    _expect(mask.all() and len(table) == 0, "erased keys")
    table.insert(data.keys, data.values, out=mask)
    _expect(mask.all() and len(table) == data.pairs, "new keys")

    counts = gpuhash.HashTable("int64", "int64", capacity=slots, max_load_factor=1.0)
    measures: dict[str, tuple[Action, Action]] = {
        "find present": (lambda: table.find(data.lookups, out=(values, mask)), _nothing),
        "find absent": (lambda: table.find(data.absent, out=(values, mask)), _nothing),
        "insert_or_assign": (lambda: table.insert_or_assign(data.lookups, data.values, out=mask), _nothing),
        "insert": (lambda: table.update(data.keys, data.values), table.clear),
        "insert with mask": (lambda: table.insert(data.keys, data.values, out=mask), table.clear),
        "erase": (lambda: table.erase(data.lookups, out=mask), fill),
        "count": (lambda: counts.insert_or_apply(data.repeated, 1, "add", out=mask), counts.clear),
    }
    return real_load, {
        operation: timed(action, before=before, runs=runs)
        for operation, (action, before) in measures.items()
        if operation in operations
    }


def dict_seconds(data: Data, operations: Collection[str]) -> dict[str, float]:
    """A Python dict of Python integers; conversions from and to arrays are not in the time."""
    keys, values, lookups, absent = (a.tolist() for a in (data.keys, data.values, data.lookups, data.absent))
    table = dict(zip(keys, values, strict=True))
    measures: dict[str, Action] = {
        "find present": lambda: [table[key] for key in lookups],
        "find absent": lambda: [table.get(key) for key in absent],
        "insert": lambda: dict(zip(keys, values, strict=True)),
        "insert_or_assign": lambda: table.update(zip(lookups, values, strict=True)),
    }
    return {name: timed(action, runs=3) for name, action in measures.items() if name in operations}


def numpy_seconds(data: Data, operations: Collection[str]) -> dict[str, float]:
    """Sorting instead of hashing: argsort builds, searchsorted looks up, unique counts."""
    order = np.argsort(data.keys)
    ordered, values = data.keys[order], data.values[order]

    def find(keys: Keys) -> tuple[Keys, npt.NDArray[np.bool_]]:
        at = np.searchsorted(ordered, keys)
        at[at == len(ordered)] = 0
        return values[at], ordered[at] == keys

    measures: dict[str, Action] = {
        "find present": lambda: find(data.lookups),
        "find absent": lambda: find(data.absent),
        "insert": lambda: data.keys[np.argsort(data.keys)],
        "count": lambda: np.unique(data.repeated, return_counts=True),
    }
    return {name: timed(action, runs=3) for name, action in measures.items() if name in operations}


def pandas_seconds(data: Data, operations: Collection[str]) -> dict[str, float]:
    """``Index.get_indexer`` looks up (its hash table is built before), ``factorize`` of distinct keys builds."""
    index = pd.Index(data.keys)
    index.get_indexer(data.lookups[:1])
    measures: dict[str, Action] = {
        "find present": lambda: data.values[index.get_indexer(data.lookups)],
        "find absent": lambda: index.get_indexer(data.absent),
        "insert": lambda: pd.factorize(data.keys),
        "count": lambda: pd.Series(data.repeated).value_counts(sort=False),
    }
    return {name: timed(action, runs=3) for name, action in measures.items() if name in operations}


def run(report: Report, *, quick: bool, operations: Collection[str], threads: int) -> None:
    """Add the limit and every operation, of the table and of its peers, to the report."""
    sizes = (1 << 18,) if quick else (1 << 20, 1 << 22)
    runs = 3 if quick else 7
    peers = {"dict": dict_seconds, "numpy": numpy_seconds}
    if pd is not None:
        peers["pandas"] = pandas_seconds
    progress = Progress(len(sizes) * (1 + len(LOADS) + len(peers)))
    for pairs in sizes:
        limit = f"{LIMIT} at {pairs} pairs"
        progress.step("limit of the memory")
        try:
            report.limits[limit] = host_random_loads(pairs * PAIR_BYTES * 2, pairs, threads)
        except LimitsUnavailableError as error:
            report.settings["limits"] = f"not measured ({error})"
        data = Data(pairs)
        for load in LOADS:
            progress.step(f"gpuhash, {pairs} pairs, load {load}")
            real_load, seconds = gpuhash_seconds(data, load, operations, runs)
            for operation, time_ in seconds.items():
                keys = pairs // REPEATS if operation == "count" else pairs
                load_ = real_load * keys / pairs
                report.add(operation, "gpuhash", pairs=keys, batch=pairs, load=load_, seconds=time_, limit=limit)
        for who, measure in peers.items():
            progress.step(f"{who}, {pairs} pairs")
            for operation, time_ in measure(data, operations).items():
                keys = pairs // REPEATS if operation == "count" else pairs
                report.add(operation, who, pairs=keys, batch=pairs, seconds=time_)
    progress.finish()
