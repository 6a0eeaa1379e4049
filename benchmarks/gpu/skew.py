"""Small batches of known keys in which a few come very often, as ids do in a recommender."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.markdown import count
from benchmarks.suite import Group, Session
from benchmarks.timing import Action, expect

from .data import PAIRS_8_8, counter, timed, zipf

LOAD = 0.5
OPERATIONS = ("find", "insert_or_assign", "insert_or_apply add")

#: By name, which of ``pairs`` keys a batch of n has.
DRAWS: dict[str, Callable[[int, int], torch.Tensor]] = {
    "uniform": lambda n, pairs: torch.randint(0, pairs, (n,), device="cuda"),
    "of 1000": lambda n, pairs: torch.randint(0, 1000, (n,), device="cuda"),
    "Zipf 1.05": lambda n, pairs: zipf(1.05, n, pairs),
    "Zipf 1.5": lambda n, pairs: zipf(1.5, n, pairs),
    "one key": lambda n, pairs: torch.full((n,), 7, device="cuda"),
}


class SkewBench:
    """A table of some pairs, and a batch of its keys with a value for each."""

    def __init__(self, draws: str, n: int, pairs: int) -> None:
        torch.manual_seed(1)
        self.table = PAIRS_8_8.table(capacity=PAIRS_8_8.slots_at(LOAD, pairs), max_load_factor=1.0)
        known = PAIRS_8_8.keys(counter(0, pairs))
        self.table.update(known, torch.zeros_like(known))
        self.picks = DRAWS[draws](n, pairs)
        self.keys = known[self.picks]
        self.values = counter(0, n)
        self.mask = torch.empty(n, dtype=torch.bool, device="cuda")
        self.found = torch.empty_like(self.values)
        self.actions: dict[str, Action] = {
            "find": lambda: self.table.find(self.keys, out=(self.found, self.mask)),
            "insert_or_assign": lambda: self.table.insert_or_assign(self.keys, self.values, out=self.mask),
            "insert_or_apply add": lambda: self.table.insert_or_apply(self.keys, self.values, "add", out=self.mask),
        }
        self._check(pairs)

    def _check(self, pairs: int) -> None:
        self.actions["insert_or_apply add"]()
        expect(not self.mask.any(), "all keys are known")
        self.actions["find"]()
        sums = torch.zeros(pairs, dtype=torch.int64, device="cuda").index_add_(0, self.picks, self.values)
        expect(self.mask.all() and torch.equal(self.found, sums[self.picks]), "sums by key")
        self.actions["insert_or_assign"]()
        self.actions["find"]()
        expect(torch.equal(self.picks[self.found], self.picks), "each key has a value of its own")


def skew(session: Session) -> list[Group]:
    """Batches of 2^20 on 2^24 pairs."""
    n, pairs = (1 << 14, 1 << 16) if session.quick else (1 << 20, 1 << 24)
    report = session.report

    def case(draws: str, operation: str, bench: SkewBench) -> None:
        timing = timed(bench.actions[operation], runs=9)
        load = len(bench.table) * PAIRS_8_8.pair_bytes / bench.table.nbytes
        limit = report.limit("L64" if operation == "find" else "C64")
        report.add("skew", operation, "gpuhash", timing, pairs=pairs, batch=n, keys=draws, load=load, limit=limit)

    groups = []
    for draws in DRAWS:
        cases: dict[str, Callable[[SkewBench], None]] = {
            operation: partial(case, draws, operation) for operation in session.wanted(OPERATIONS)
        }
        groups.append(Group(f"{count(n)} keys, {draws}", partial(_make, draws, n, pairs), cases))
    return groups


def _make(draws: str, n: int, pairs: int) -> nullcontext[SkewBench]:
    return nullcontext(SkewBench(draws, n, pairs))
