"""Rows as values: copied in and out, beside what gathering and scattering by row number takes."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import torch

import gpuhash
from benchmarks.markdown import count
from benchmarks.report import Limit
from benchmarks.suite import Group, Session
from benchmarks.timing import Timing, expect

from .data import PAIRS_8_8, counter, permutation, timed

WIDTHS = (16, 64, 128)  # float32
OPERATIONS = ("find present", "insert", "insert_or_assign")


class RowBench:
    """Keys with rows of float32, and the same rows in a plain array."""

    def __init__(self, width: int, n: int) -> None:
        self.width, self.n = width, n
        self.keys = PAIRS_8_8.keys(counter(0, n))
        self.rows = torch.rand(n, width, dtype=torch.float32, device="cuda")
        self.order = permutation(n)
        self.lookups = PAIRS_8_8.keys(self.order.clone())
        self.out = torch.empty_like(self.rows)
        self.mask = torch.empty(n, dtype=torch.bool, device="cuda")
        self.table = gpuhash.HashTable("int64", "float32", value_shape=(width,), device="cuda")
        self.table.reserve(n)
        self._check()

    def _check(self) -> None:
        table = self.table
        table.insert_or_assign(self.keys, self.rows, out=self.mask)
        expect(self.mask.all(), "every key is new")
        self._expect_rows()
        self.rows.neg_()
        table.insert_or_assign(self.lookups, self.rows[self.order], out=self.mask)
        expect(~self.mask.any(), "no key is new when assigning")
        self._expect_rows()

    def _expect_rows(self) -> None:
        self.table.find(self.lookups, out=(self.out, self.mask))
        expect(self.mask.all(), "every key is found")
        for start in range(0, self.n, 1 << 20):
            piece = slice(start, start + (1 << 20))
            expect(torch.equal(self.out[piece], self.rows[self.order[piece]]), "rows of keys")

    def cleared(self) -> None:
        self.table.clear()
        len(self.table)

    def measure(self, operation: str) -> Timing:
        table = self.table
        if operation == "insert":
            timing = timed(lambda: table.update(self.keys, self.rows), before=self.cleared, runs=5)
            expect(len(table) == self.n, "len after inserting")
            return timing
        if operation == "insert_or_assign":
            return timed(lambda: table.insert_or_assign(self.lookups, self.rows, out=self.mask), runs=5)
        return timed(lambda: table.find(self.lookups, out=(self.out, self.mask)), runs=5)

    def by_number(self, operation: str) -> Timing:
        """The same rows moved in PyTorch, which is told the row numbers."""
        if operation == "find present":
            return timed(lambda: torch.index_select(self.rows, 0, self.order, out=self.out), runs=5)
        return timed(lambda: self.out.index_copy_(0, self.order, self.rows), runs=5)


def rows(session: Session) -> list[Group]:
    """The limit is a copy: each key's row is read once and written once."""
    n = 1 << (16 if session.quick else 24)
    report = session.report

    def limit(width: int) -> Limit | None:
        copied = report.limits.get("copy")
        return None if copied is None else Limit("copy", copied / (2 * 4 * width))

    def case(width: int, operation: str, bench: RowBench) -> None:
        timing = bench.measure(operation)
        layout = f"8 B + {width} float32"
        load = n * (8 + 4 * width) / bench.table.nbytes
        report.add("rows", operation, "gpuhash", timing, pairs=n, batch=n, layout=layout, load=load, limit=limit(width))

    def peer(width: int, operation: str, bench: RowBench) -> None:
        who = "torch.index_select" if operation == "find present" else "torch.index_copy"
        timing = bench.by_number(operation)
        report.add("rows", operation, who, timing, pairs=n, batch=n, layout=f"8 B + {width} float32")

    groups = []
    for width in WIDTHS:
        cases = {operation: partial(case, width, operation) for operation in session.wanted(OPERATIONS)}
        for operation in session.wanted(("find present", "insert_or_assign")):
            cases[f"{operation}, torch"] = partial(peer, width, operation)
        groups.append(Group(f"{count(n)} rows of {width} float32", partial(_make, width, n), cases))
    return groups


def _make(width: int, n: int) -> nullcontext[RowBench]:
    return nullcontext(RowBench(width, n))
