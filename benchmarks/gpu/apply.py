"""insert_or_apply with keys that repeat: uniformly, by Zipf's law, and all the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.markdown import count
from benchmarks.report import DISTINCT, Record
from benchmarks.suite import Group, Session
from benchmarks.timing import Timing, expect

from .data import PAIRS_8_8, counter, permutation, timed, zipf

LOAD = 0.5  # where all keys are distinct; the table has the same room in all cases
APPLY = "insert_or_apply add"
OPERATIONS = ("insert", APPLY)


def _uniform(n: int) -> torch.Tensor:
    return torch.randint(0, n // 16, (n,), device="cuda")


# By name, the numbers that the keys are made of; the first is what the others are compared with.
DISTRIBUTIONS: dict[str, Callable[[int], torch.Tensor]] = {
    DISTINCT: permutation,
    "1/16 distinct": _uniform,
    "Zipf 1.05": partial(zipf, 1.05),
    "Zipf 1.5": partial(zipf, 1.5),
    "one key": lambda n: torch.full((n,), 7, dtype=torch.int64, device="cuda"),
}


class ApplyBench:
    """Sums of values by key, in a table with room for as many keys as the batch has."""

    def __init__(self, distribution: str, n: int) -> None:
        torch.manual_seed(1)
        self.n = n
        self.keys = PAIRS_8_8.keys(DISTRIBUTIONS[distribution](n))
        self.values = counter(0, n).bitwise_and_(1023)
        self.table = PAIRS_8_8.table(capacity=PAIRS_8_8.slots_at(LOAD, n), max_load_factor=1.0)
        self.mask = torch.empty(n, dtype=torch.bool, device="cuda")
        self.apply()
        self._check()
        self.load = len(self.table) * PAIRS_8_8.pair_bytes / self.table.nbytes

    def apply(self) -> None:
        self.table.insert_or_apply(self.keys, self.values, "add", out=self.mask)

    def _check(self) -> None:
        unique, sums = self.by_sorting()
        expect(len(self.table) == len(unique), "the number of distinct keys")
        expect(int(self.mask.sum()) == len(unique), "one of each new key's duplicates is marked new")
        found_sums, found = self.table.find(unique)
        expect(found.all() and torch.equal(found_sums, sums), "sums by key")

    def by_sorting(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What one does in PyTorch."""
        unique, inverse = torch.unique(self.keys, return_inverse=True)
        return unique, torch.zeros_like(unique).index_add_(0, inverse, self.values)

    def cleared(self) -> None:
        self.table.clear()
        len(self.table)

    def measure(self, operation: str) -> Timing:
        if operation == "insert":
            return timed(lambda: self.table.update(self.keys, self.values), before=self.cleared, runs=5)
        return timed(self.apply, before=self.cleared, runs=5)


def apply(session: Session) -> list[Group]:
    """Time by distribution of the keys, beside that of inserting distinct ones."""
    n = 1 << (20 if session.quick else 27)
    report = session.report
    first: list[Record] = []  # insert_or_apply of distinct keys

    def compare(record: Record) -> None:
        if record.keys == DISTINCT:
            first.append(record)
        elif first:
            name = f"{record.operation}, {record.keys}: time / time with distinct keys"
            report.quantity("apply", name, record.seconds / first[0].seconds, "times")

    def case(distribution: str, operation: str, bench: ApplyBench) -> None:
        record = report.add(
            "apply",
            operation,
            "gpuhash",
            bench.measure(operation),
            pairs=len(bench.table),
            batch=n,
            keys=distribution,
            load=bench.load,
            limit=report.limit("C64"),
        )
        if operation == APPLY:
            compare(record)

    def by_torch(distribution: str, bench: ApplyBench) -> None:
        timing = timed(bench.by_sorting, runs=3, warm_up=1)
        report.add(
            "apply", APPLY, "torch unique, index_add", timing, pairs=len(bench.table), batch=n, keys=distribution
        )

    groups = []
    for distribution in DISTRIBUTIONS:
        operations = OPERATIONS if distribution == DISTINCT else (APPLY,)
        cases: dict[str, Callable[[ApplyBench], None]] = {
            operation: partial(case, distribution, operation) for operation in session.wanted(operations)
        }
        if session.wants(APPLY):
            cases["torch"] = partial(by_torch, distribution)
        make = partial(_make, distribution, n)
        groups.append(Group(f"{count(n)} keys, {distribution}", make, cases))
    return groups


def _make(distribution: str, n: int) -> nullcontext[ApplyBench]:
    return nullcontext(ApplyBench(distribution, n))
