"""What is measured on the host, and with which contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from benchmarks.machine import available_bytes
from benchmarks.markdown import count
from benchmarks.native import BuildError, host_library
from benchmarks.report import DISTINCT, PAIR, Limit, limit_over
from benchmarks.suite import CALLS, Group, NotHereError, Session

from . import contenders, graph, sets
from .contenders import COUNT, PAIR_BYTES, limit_job
from .contest import Contest, Effort, Entry
from .data import REPEATS, Data, SetData

OPERATIONS = ("find present", "find absent", "insert", "insert with mask", "insert_or_assign", "erase", "insert again")
SWEPT = ("find present", "find absent", "insert", "insert_or_assign", "erase")
LOADS = (0.5, 0.8)
_OURS = "gpuhash"

Entries = Callable[[Data], Sequence[Entry]]


class DataCache:
    """The keys that contests share; holds those asked for last."""

    def __init__(self) -> None:
        self._data: Data | None = None

    def get(self, pairs: int) -> Data:
        if self._data is None or self._data.pairs != pairs:
            self._data = None
            self._data = Data(pairs)
        return self._data


def builds(name: str) -> bool:
    try:
        host_library(name)
    except BuildError:
        return False
    return True


def _effort(pairs: int, quick: bool) -> Effort:
    """Large tables take seconds; small ones have to be brought into the cache again in each turn."""
    if quick:
        return Effort(turns=2)
    if pairs >= 1 << 25:
        return Effort(turns=3)
    if pairs >= 1 << 19:
        return Effort(turns=5, warm_up=1)
    return Effort(turns=7, warm_up=3, runs=31)


def _contest(session: Session, suite: str, label: str, entries: Sequence[Entry]) -> Contest:
    return Contest(entries, lambda error: session.trouble(suite, label, error))


def _need(needed: int, label: str) -> None:
    available = available_bytes()
    if available is not None and available < needed:
        raise NotHereError(f"{label} needs {needed >> 20} MiB of memory, and {available >> 20} MiB are available")


def _beside_limits(
    session: Session,
    suite: str,
    cache: DataCache,
    pairs: int,
    load: float,
    operations: Iterable[str],
    *,
    batch: int | None = None,
    with_boost: bool = False,
) -> Group:
    """The table with each number of threads, the limits, and boost if asked for.

    The limits are measured again by turns with each operation, and these are what the operation is compared with.
    """
    report, threads = session.report, session.threads
    batch = pairs if batch is None else batch
    effort = _effort(pairs, session.quick)
    array_bytes = int(pairs * PAIR_BYTES / load)
    limit_jobs = [limit_job(number) for number in threads]
    label = f"{count(pairs)} pairs at load {load}" + (f", batch {count(batch)}" if batch != pairs else "")

    def make() -> Contest:
        per_table = int(PAIR_BYTES / load) + 9
        in_all = 48 + len(threads) * per_table + (42 if with_boost else 0) + int(PAIR_BYTES / load) + 16
        _need(pairs * in_all, label)
        data = cache.get(pairs)
        entries = [contenders.ours(data, load, number, batch) for number in threads]
        if with_boost and builds("peers"):
            entries.append(contenders.boost(data))
        if builds("limits"):
            entries.append(contenders.limit(array_bytes, pairs, threads))
        return _contest(session, suite, label, entries)

    def limits(contest: Contest) -> None:
        for (_, job), timing in contest.measure(limit_jobs, effort).items():
            report.limits[limit_over(job, array_bytes)] = pairs / timing.median

    def case(operation: str, contest: Contest) -> None:
        timings = contest.measure([operation, *limit_jobs], effort)
        rates = {job: pairs / timing.median for (_, job), timing in timings.items() if job in limit_jobs}
        for (contender, job), timing in timings.items():
            if job != operation:
                continue
            who, number = contender.entry.who, contender.entry.threads
            rate = rates.get(limit_job(number))
            report.add(
                suite,
                operation,
                who,
                timing,
                pairs=pairs,
                batch=batch,
                load=contender.load,
                threads=number,
                limit=None if rate is None else Limit(limit_over(limit_job(number), array_bytes), rate),
            )

    wanted = session.wanted(operations)
    cases = {operation: partial(case, operation) for operation in wanted}
    return Group(label, make, {"limits": limits, **cases} if cases else {})


def table(session: Session) -> list[Group]:
    """Out of cache, in a large cache, and in a small one."""
    sizes = (16, 12) if session.quick else (26, 22, 14)
    cache = DataCache()
    return [
        _beside_limits(session, "table", cache, 1 << size, load, OPERATIONS, with_boost=True)
        for size in sizes
        for load in LOADS
    ]


def sweep_load(session: Session) -> list[Group]:
    """Rate against load factor."""
    loads = (0.5, 0.9) if session.quick else (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
    pairs, cache = 1 << (12 if session.quick else 22), DataCache()
    return [_beside_limits(session, "sweep-load", cache, pairs, load, SWEPT) for load in loads]


def sweep_batch(session: Session) -> list[Group]:
    """Rate against batch size."""
    pairs, cache = 1 << (12 if session.quick else 22), DataCache()
    sizes = (8, 12) if session.quick else range(4, 23, 2)
    return [_beside_limits(session, "sweep-batch", cache, pairs, 0.8, SWEPT, batch=1 << size) for size in sizes]


def sweep_size(session: Session) -> list[Group]:
    """Rate against table size, one batch of all keys."""
    sizes = (8, 12) if session.quick else range(10, 27, 2)
    cache = DataCache()
    return [_beside_limits(session, "sweep-size", cache, 1 << size, 0.5, SWEPT) for size in sizes]


def _case(
    session: Session,
    suite: str,
    operation: str,
    effort: Effort,
    pairs: int,
    batch: int,
    keys: str,
    contest: Contest,
    *,
    layout: str = PAIR,
    job: str | None = None,
) -> None:
    """One operation, and the contenders' job of that name, or ``job``."""
    for (contender, _), timing in contest.measure([job or operation], effort).items():
        session.report.add(
            suite,
            operation,
            contender.entry.who,
            timing,
            pairs=pairs,
            batch=batch,
            layout=layout,
            keys=keys,
            load=contender.load,
            threads=contender.entry.threads,
        )


def peers(session: Session) -> list[Group]:
    """The table at two loads beside what Python offers. For counting, it has room for the distinct keys."""
    pairs = 1 << (12 if session.quick else 22)
    threads, label = session.threads, f"{count(pairs)} pairs"
    effort = _effort(pairs, session.quick)

    def make() -> Contest:
        data = Data(pairs)
        data.repeated  # noqa: B018  # made here once, and not in every process
        entries = [contenders.ours(data, load, number) for load in LOADS for number in threads]
        entries += [contenders.our_count(data, number) for number in threads]
        entries += [contenders.dictionary(data), contenders.numpy(data), contenders.pandas(data)]
        entries += [contenders.tensorflow(data, kind, max(threads)) for kind in ("MutableHashTable", "DenseHashTable")]
        return _contest(session, "peers", label, entries)

    cases = {
        operation: partial(_case, session, "peers", operation, effort, pairs, pairs, DISTINCT)
        for operation in session.wanted(OPERATIONS)
    }
    if session.wants(COUNT):
        keys = f"1/{REPEATS} distinct"
        cases[COUNT] = partial(_case, session, "peers", COUNT, effort, pairs // REPEATS, pairs, keys)
    return [Group(label, make, cases)]


def in_graphs(session: Session) -> list[Group]:
    """Integers and rows, in batches of which each turn of a contender has every one once, after one that warms up."""
    pairs, batch = (1 << 12, 1 << 8) if session.quick else (1 << 20, 1 << 16)
    threads, label = session.threads, f"{count(pairs)} pairs, batch {count(batch)}"
    effort = Effort(turns=2 if session.quick else 7, runs=pairs // batch, warm_up=1)

    def make() -> Contest:
        # keys, values and two tables that are less than half full; a third is made before the second one goes
        per_contender = sum(3 * 8 + 8 * values.pair_bytes for values in graph.LAYOUTS)
        _need(pairs * (4 * 8 + (len(threads) + len(graph.KINDS)) * per_contender), label)
        data = Data(pairs)
        entries = [graph.ours(data, batch, number) for number in threads]
        entries += [graph.tensorflow(data, batch, kind, max(threads)) for kind in graph.KINDS]
        return _contest(session, "graph", label, entries)

    cases = {
        graph.job_name(operation, values): partial(
            _case,
            session,
            "graph",
            operation,
            effort,
            pairs,
            batch,
            DISTINCT,
            layout=values.layout,
            job=graph.job_name(operation, values),
        )
        for values in graph.LAYOUTS
        for operation in session.wanted(graph.OPERATIONS)
    }
    return [Group(label, make, cases)]


def unique(session: Session) -> list[Group]:
    """Everything for two distributions of int64, and what users compare for all distributions, dtypes and sizes."""
    large, sizes = (12, (10,)) if session.quick else (25, (14, 20, 24))
    suite, two = "unique", SetData.DISTRIBUTIONS[:2]
    groups = [_sets(session, suite, 1 << large, "int64", keys, sets.OPERATIONS) for keys in two]
    return groups + [
        _sets(session, suite, 1 << size, dtype, keys, sets.COMPARED)
        for size in sizes
        for dtype in ("int64", "uint64", "int32")
        for keys in SetData.DISTRIBUTIONS
    ]


def unique_of_most(session: Session) -> list[Group]:
    """The largest size that is compared: it takes as long as all others together."""
    n = 1 << (12 if session.quick else 26)
    return [_sets(session, "unique-large", n, "int64", keys, sets.COMPARED) for keys in SetData.DISTRIBUTIONS]


def _sets(session: Session, suite: str, n: int, dtype: str, keys: str, operations: Iterable[str]) -> Group:
    label = f"{count(n)} {dtype} keys, {keys}"
    effort = Effort(turns=3) if n >= 1 << 22 else _effort(n, session.quick)
    distinct = 0

    def make() -> Contest:
        nonlocal distinct
        _need(n * 8 * 24, label)  # the keys, the results they are checked with, and what sorting them takes
        with suppress(ImportError):
            import pandas  # noqa: F401  # here once, and not in every process
        data = SetData(keys, n, dtype)
        distinct = len(data.unique)
        entries = [sets.ours(data, number) for number in session.threads]
        return _contest(session, suite, label, [*entries, sets.pandas(data), sets.numpy(data)])

    def case(operation: str, contest: Contest) -> None:
        batch = distinct if operation in sets.OF_DISTINCT else n
        layout = f"{np.dtype(dtype).itemsize} + 8 B"
        _case(session, suite, operation, effort, distinct, batch, f"{dtype}, {keys}", contest, layout=layout)

    return Group(label, make, {operation: partial(case, operation) for operation in session.wanted(operations)})


def calls(session: Session) -> list[Group]:
    """Which frameworks are there, and so which calls, is found out in the contender's process."""
    label = "small batches"

    def make() -> Contest:
        return _contest(session, "calls", label, [contenders.small_calls(20 if session.quick else None)])

    def case(contest: Contest) -> None:
        for contender in contest.contenders:
            for job in contender.jobs:
                for timing in contest.measure([job], Effort(turns=1)).values():
                    session.report.quantity("calls", job, timing.median * 1e6, "us")

    return [Group(label, make, {CALLS: case} if session.wants(CALLS) else {})]
