"""The operations of a table on pairs of scalars: at several loads, batch sizes and table sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from benchmarks.markdown import count
from benchmarks.report import Limit, Report, limit_over
from benchmarks.suite import Group, NotHereError, Session
from benchmarks.timing import Timing, expect
from gpuhash import HashTable

from .data import PAIRS_4_4, PAIRS_8_8, PAIRS_16_8, Data, DataCache, Layout, free_bytes, timed, timed_in_turn

OPERATIONS = ("find present", "find absent", "insert", "insert with mask", "insert_or_assign", "erase", "insert again")
IN_TURN = "insert_or_assign, call after call"  # all keys again and again, as a loop of training steps does
WAIT = "wait"  # calls that do nothing but wait
OF_CACHED = (*OPERATIONS, IN_TURN, WAIT)
SWEPT = ("find present", "find absent", "insert", "insert_or_assign", "erase")
LOADS = (0.5, 0.8, 0.9, 0.95)
LAST = 1 << 20  # keys of the batches that meet a large table

RUNS = 7
CALLS_IN_TURN = 32
RUNS_OF_SMALL = 21  # of batches of which one takes microseconds
_SMALL = 1 << 17
_PIECE = 1 << 27  # keys per call where a table is filled and checked
_LARGEST_BATCH = 1 << 28

Make = Callable[[], AbstractContextManager["TableBench"]]


def _pieces(count: int) -> Iterator[slice]:
    """All of them, piece by piece: what calls on whole large tables would need beside them, they need not have."""
    for start in range(0, count, _PIECE):
        yield slice(start, min(start + _PIECE, count))


def limit_name(operation: str) -> str:
    return "L64" if operation.startswith("find") else "C64"


class TableBench:
    """One table at one load, and the operations on it."""

    def __init__(self, data: Data, load: float, report: Report) -> None:
        self.data = data
        self.pairs = len(data.keys)
        slots = data.layout.slots_at(load, self.pairs)
        self.table = data.layout.table(capacity=slots, max_load_factor=1.0)
        self.nbytes = self.table.nbytes
        self.load = self.pairs * data.layout.pair_bytes / self.nbytes
        if abs(self.load - load) > 0.01:
            report.note(
                f"load {load} of {count(self.pairs)} pairs of {data.layout.name}: the table takes {self.nbytes} bytes, "
                f"which is load {self.load:.3f}"
            )
        self.check()
        self.fill()
        expect(self.table.nbytes == self.nbytes, "the table keeps its size as it has room")

    def fill(self, pairs: int | None = None) -> None:
        """Leaves the first ``pairs`` in the table, by default all. The table then knows its size."""
        self.table.clear()
        for piece in _pieces(self.pairs if pairs is None else pairs):
            self.table[self.data.keys[piece]] = self.data.values[piece]
        len(self.table)  # asked now, not in a timed call

    def check(self) -> None:
        """Every operation is right before any is timed."""
        table, data, layout = self.table, self.data, self.data.layout
        values, mask = self.outputs(min(_PIECE, self.pairs))
        for piece in _pieces(self.pairs):
            table.insert(data.keys[piece], data.values[piece], out=mask)
            expect(mask.all(), "every key is new in an empty table")
        expect(len(table) == self.pairs, "len after inserting")
        for piece in _pieces(self.pairs):
            table.find(data.lookups[piece], out=(values, mask))
            expect(mask.all(), "present keys are found")
            expect(torch.equal(values, layout.values(data.lookups[piece])), "values of present keys")
            table.find(data.absent[piece], out=(values, mask))
            expect(~mask.any(), "absent keys are not found")
        for piece in _pieces(self.pairs):
            assigned = layout.values(data.lookups[piece]) + 1
            table.insert_or_assign(data.lookups[piece], assigned, out=mask)
            expect(~mask.any(), "no key is new when assigning to present keys")
            table.find(data.lookups[piece], out=(values, mask))
            expect(torch.equal(values, assigned), "values after assigning")
        for piece in _pieces(self.pairs):
            table.erase(data.lookups[piece], out=mask)
            expect(mask.all(), "present keys are erased")
        expect(len(table) == 0, "len after erasing")
        for piece in _pieces(self.pairs):
            table.insert(data.keys[piece], data.values[piece], out=mask)
            expect(mask.all(), "keys that were erased are new when they come again")
        expect(len(table) == self.pairs, "len after inserting again")
        for piece in _pieces(self.pairs):
            table.find(data.lookups[piece], out=(values, mask))
            expect(mask.all(), "keys that came again are found")
            expect(torch.equal(values, layout.values(data.lookups[piece])), "values of keys that came again")

    def outputs(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (
            torch.empty(batch, dtype=self.data.values.dtype, device="cuda"),
            torch.empty(batch, dtype=torch.bool, device="cuda"),
        )

    def measure(self, operation: str, batch: int) -> Timing:
        """Calls with ``batch`` keys; those of small batches take other keys each time, so that they meet no warm cache.

        Insertions are of the last keys up to the load, or of keys that were erased just before; other operations meet a
        full table.
        """
        table, data = self.table, self.data
        values, mask = self.outputs(batch)
        runs = RUNS_OF_SMALL if batch <= _SMALL else RUNS
        self.fill()
        if operation in ("find present", "find absent"):
            keys = _chunks(data.lookups if operation == "find present" else data.absent, batch)
            return timed(lambda: table.find(keys(), out=(values, mask)), runs=runs)
        if operation in ("insert", "insert with mask"):
            rest = self.pairs - batch
            new_keys, new_values = data.keys[rest:], data.values[rest:]

            without_last = partial(self.fill, rest)
            if operation == "insert":
                return timed(lambda: table.update(new_keys, new_values), before=without_last, runs=runs)
            return timed(lambda: table.insert(new_keys, new_values, out=mask), before=without_last, runs=runs)
        lookups = _chunks(data.lookups, batch)
        if operation in ("insert_or_assign", IN_TURN):

            def assign() -> object:
                return table.insert_or_assign(lookups(), data.values[:batch], out=mask)

            return (
                timed_in_turn(assign, calls=CALLS_IN_TURN, runs=runs)
                if operation == IN_TURN
                else timed(assign, runs=runs)
            )
        if operation == "erase":
            before = self.fill if batch == self.pairs else self._restorer(batch)
            return timed(lambda: table.erase(lookups(), out=mask), before=before, runs=runs)
        if operation == "insert again":
            gone = _chunks(data.lookups, batch)

            def without_some() -> None:
                table.erase(gone())
                len(table)  # asked now, not in a timed call

            return timed(lambda: table.update(lookups(), data.values[:batch]), before=without_some, runs=runs)
        raise ValueError(f"unknown operation {operation!r}")

    def _restorer(self, batch: int) -> Callable[[], None]:
        """Refills after so many erasures of small batches that one part in 64 of the keys is gone."""
        allowed = max(1, self.pairs // 64 // batch)
        done = 0

        def before() -> None:
            nonlocal done
            if done % allowed == 0:
                self.fill()
            done += 1

        return before


def _chunks(tensor: torch.Tensor, batch: int) -> Callable[[], torch.Tensor]:
    """A function that gives the next ``batch`` keys each time, and begins again at the end."""
    position = 0

    def take() -> torch.Tensor:
        nonlocal position
        if position + batch > len(tensor):
            position = 0
        position += batch
        return tensor[position - batch : position]

    return take


class SortedBench:
    """What PyTorch has instead of a table: a sorted array, searched."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.ordered, order = torch.sort(data.keys)
        self.values = data.values[order]
        del order
        values, found = self._find(data.lookups)
        expect(found.all() and torch.equal(values, data.layout.values(data.lookups)), "torch: present keys")
        expect(~self._find(data.absent)[1].any(), "torch: absent keys")

    def _find(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.searchsorted(self.ordered, keys).clamp_(max=len(self.ordered) - 1)
        return self.values[at], self.ordered[at] == keys

    def measure(self, operation: str) -> Timing:
        if operation == "insert":
            return timed(lambda: torch.sort(self.data.keys), runs=3, warm_up=1)
        keys = self.data.lookups if operation == "find present" else self.data.absent
        return timed(lambda: self._find(keys), runs=3, warm_up=1)


def _ours(
    session: Session,
    suite: str,
    cache: DataCache,
    layout: Layout,
    pairs: int,
    load: float,
    operations: Iterable[str],
    batches: Iterable[int],
    limits: Callable[[str], Limit | None] | None = None,
) -> Group:
    """Operations on one table. ``limits`` gives what each is compared with, by default the report's."""
    report = session.report

    def make() -> nullcontext[TableBench]:
        return nullcontext(TableBench(cache.get(layout, pairs), load, report))

    def case(operation: str, batch: int, bench: TableBench) -> None:
        report.add(
            suite,
            operation,
            "gpuhash",
            bench.measure(operation, batch),
            pairs=pairs,
            batch=batch,
            layout=layout.name,
            load=bench.load,
            limit=limits(operation) if limits is not None else report.limit(limit_name(operation)),
        )

    cases = {
        f"{operation}, batch {count(batch)}": partial(case, operation, batch)
        for batch in batches
        for operation in session.wanted(operations)
    }
    return Group(f"{count(pairs)} pairs of {layout.name} at load {load}", make, cases)


def _by_sorting(session: Session, suite: str, cache: DataCache, pairs: int) -> Group:
    report = session.report

    def case(operation: str, bench: SortedBench) -> None:
        report.add(suite, operation, "torch, sorted", bench.measure(operation), pairs=pairs, batch=pairs)

    wanted = session.wanted(("find present", "find absent", "insert"))
    return Group(
        f"torch, {count(pairs)} keys sorted",
        lambda: nullcontext(SortedBench(cache.get(PAIRS_8_8, pairs))),
        {operation: partial(case, operation) for operation in wanted},
    )


def table(session: Session, cache: DataCache) -> list[Group]:
    """One batch of all keys: three layouts, each at several loads."""
    pairs = 1 << (22 if session.quick else 27)
    groups = [_ours(session, "table", cache, PAIRS_8_8, pairs, load, OPERATIONS, [pairs]) for load in LOADS]
    groups.append(_by_sorting(session, "table", cache, pairs))
    groups += [_ours(session, "table", cache, PAIRS_4_4, pairs, load, OPERATIONS, [pairs]) for load in (0.5, 0.8)]
    finds = ("find present", "find absent")

    def whole_lines(_: str) -> Limit | None:  # as such a pair's bucket is one
        return session.report.limit("L128")

    groups.append(_ours(session, "table", cache, PAIRS_16_8, pairs, 0.5, finds, [pairs], whole_lines))
    return groups


def batches(session: Session, cache: DataCache) -> list[Group]:
    """Batches of 2^20 on a large table."""
    pairs = 1 << (22 if session.quick else 27)
    return [_ours(session, "batches", cache, PAIRS_8_8, pairs, load, OPERATIONS, [LAST]) for load in LOADS]


def cached(session: Session, cache: DataCache) -> list[Group]:
    """A table that fits in the L2 cache."""
    report, pairs = session.report, 1 << 20

    def limit(operation: str) -> Limit | None:
        return report.limit(f"{limit_name(operation)} in L2")

    operations = (*OPERATIONS, IN_TURN)
    groups = [_ours(session, "cache", cache, PAIRS_8_8, pairs, load, operations, [pairs], limit) for load in (0.5, 0.8)]
    waits = {WAIT: partial(_wait, report)} if session.wants(WAIT) else {}
    return [*groups, Group("calls that wait", _things_to_ask, waits)]


def _things_to_ask() -> nullcontext[tuple[HashTable, torch.Tensor]]:
    return nullcontext((PAIRS_8_8.table(), torch.ones((), dtype=torch.int64, device="cuda")))


def _wait(report: Report, things: tuple[HashTable, torch.Tensor]) -> None:
    """What an insertion that has to wait cannot fall below: the device's part of it, and this."""
    table, tensor = things
    for name, action in {"len(table)": lambda: len(table), "tensor.item(), for comparison": tensor.item}.items():
        report.quantity("cache", name, timed(action, runs=RUNS_OF_SMALL).median * 1e6, "us")


def sweep_load(session: Session, cache: DataCache) -> list[Group]:
    """Rate against load factor."""
    pairs = 1 << (20 if session.quick else 26)
    loads = (0.5, 0.9) if session.quick else (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
    return [_ours(session, "sweep-load", cache, PAIRS_8_8, pairs, load, SWEPT, [pairs]) for load in loads]


def sweep_batch(session: Session, cache: DataCache) -> list[Group]:
    """Rate against batch size."""
    last = 20 if session.quick else 27
    sizes = [1 << exponent for exponent in range(10, last + 1, 5 if session.quick else 1)]
    return [_ours(session, "sweep-batch", cache, PAIRS_8_8, 1 << last, 0.8, SWEPT, sizes)]


def size_limit_names(pairs: int) -> dict[str, str]:
    """Names in the report of the limits over an array as large as the table of ``sweep_size``."""
    return {name: limit_over(name, pairs * 32) for name in ("L64", "C64")}


def swept_sizes(quick: bool) -> list[int]:
    return [1 << exponent for exponent in ((16, 20) if quick else range(16, 31))]


def sweep_size(session: Session, cache: DataCache) -> list[Group]:
    """Rate against table size at load 0.5, one batch of all keys or, beyond 2^28, of the last 2^28."""
    report, groups = session.report, []
    for pairs in swept_sizes(session.quick):

        def limit(operation: str, pairs: int = pairs) -> Limit | None:
            return report.limit(size_limit_names(pairs)[limit_name(operation)])

        group = _ours(session, "sweep-size", cache, PAIRS_8_8, pairs, 0.5, SWEPT, [min(pairs, _LARGEST_BATCH)], limit)
        groups.append(Group(group.label, partial(_if_it_fits, cache, pairs, group.make), group.cases))
    return groups


def _if_it_fits(cache: DataCache, pairs: int, make: Make) -> AbstractContextManager[TableBench]:
    """Makes nothing where the table and its batches are too large for the GPU."""
    cache.drop()
    needed = pairs * (32 + 4 * 8 + 16)  # the table; keys, values, lookups and absent keys; what making them takes
    needed += 4 * 8 * min(pairs, _LARGEST_BATCH)  # outputs, and what calls may need
    if needed > free_bytes():
        raise NotHereError(
            f"{count(pairs)} pairs need about {needed >> 30} GiB of GPU memory, and {free_bytes() >> 30} GiB are free"
        )
    return make()
