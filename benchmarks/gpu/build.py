"""Whole tables at once: built from arrays, rehashed, copied, loaded from a file; and grown batch by batch."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

import gpuhash
from benchmarks.markdown import count
from benchmarks.suite import Group, NotHereError, Session
from benchmarks.timing import Timing, expect

from .data import PAIRS_8_8, Data, DataCache, timed, timed_by_clock

OPERATIONS = ("from_items", "rehash", "copy", "load")
GROWTH_OPERATIONS = ("grow", "reserved")
_GROWTH_BATCH = 1 << 20


class BuildBench:
    """A table, and what makes another of it."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.pairs = len(data.keys)
        self.table: gpuhash.HashTable | None = None
        self.made: gpuhash.HashTable | None = None

    def from_items(self) -> None:
        self.made = gpuhash.HashTable.from_items(self.data.keys, self.data.values)

    def dropped(self) -> None:
        self.made = None

    def check(self, table: gpuhash.HashTable | None) -> gpuhash.HashTable:
        if table is None:
            raise RuntimeError("nothing was built")
        expect(len(table) == self.pairs, "len of what was built")
        values, found = table.find(self.data.lookups)
        expect(found.all() and torch.equal(values, PAIRS_8_8.values(self.data.lookups)), "items of what was built")
        return table

    def filled(self) -> gpuhash.HashTable:
        """A table at load 0.8, made once."""
        if self.table is None:
            self.table = PAIRS_8_8.table(capacity=PAIRS_8_8.slots_at(0.8, self.pairs), max_load_factor=1.0)
            self.table[self.data.keys] = self.data.values
        return self.check(self.table)


def build(session: Session, cache: DataCache) -> list[Group]:
    """On the device's clock, and on the host's where the call waits anyway."""
    pairs = 1 << (20 if session.quick else 27)
    report = session.report

    def add(operation: str, timing: Timing, table: gpuhash.HashTable | None) -> None:
        load = None if table is None else pairs * PAIRS_8_8.pair_bytes / table.nbytes
        report.add(
            "build", operation, "gpuhash", timing, pairs=pairs, batch=pairs, load=load, limit=report.limit("C64")
        )

    def from_items(bench: BuildBench) -> None:
        bench.from_items()
        bench.check(bench.made)
        add("from_items", timed(bench.from_items, before=bench.dropped, runs=5), bench.made)
        add("from_items, host's clock", timed_by_clock(bench.from_items, before=bench.dropped, runs=5), bench.made)
        bench.dropped()

    def rehash(bench: BuildBench) -> None:
        table = bench.filled()
        slots = table.capacity
        table.rehash(2 * slots)
        expect(table.capacity >= 2 * slots, "slots after rehashing")
        bench.check(table)
        timing = timed(lambda: table.rehash(2 * slots), before=lambda: table.rehash(slots), runs=5)
        add("rehash to twice the slots", timing, table)
        table.rehash(slots)

    def copy(bench: BuildBench) -> None:
        table = bench.filled()

        def make() -> None:
            bench.made = table.copy()

        make()
        bench.check(bench.made)
        add("copy", timed(make, before=bench.dropped, runs=5), bench.made)
        bench.dropped()

    def load(bench: BuildBench) -> None:
        folder = _folder_in_memory(pairs * PAIRS_8_8.pair_bytes * 5 // 4)
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            path = Path(inside) / "table.safetensors"
            bench.filled().save(path)

            def make() -> None:
                bench.made = gpuhash.HashTable.load(path, device="cuda")

            make()
            bench.check(bench.made)
            timing = timed_by_clock(make, before=bench.dropped, runs=1, warm_up=0)
            add("load from a file in memory, host's clock", timing, bench.made)
        bench.dropped()

    cases = {"from_items": from_items, "rehash": rehash, "copy": copy, "load": load}
    make = partial(_make, cache, pairs)
    return [Group(f"{count(pairs)} pairs", make, {name: cases[name] for name in session.wanted(OPERATIONS)})]


def _make(cache: DataCache, pairs: int) -> nullcontext[BuildBench]:
    return nullcontext(BuildBench(cache.get(PAIRS_8_8, pairs)))


def _folder_in_memory(needed: int) -> Path:
    """Where a file costs no disk."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise NotHereError(f"{folder} is not there, and files elsewhere would measure the disk")
    if shutil.disk_usage(folder).free < needed:
        raise NotHereError(f"{folder} has less than {needed >> 20} MiB free")
    return folder


class GrowthBench:
    """One table that grows as batches come, and one with all the room from the start."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.pairs = len(data.keys)
        batches = range(0, self.pairs, _GROWTH_BATCH)
        self.batches = [slice(start, start + _GROWTH_BATCH) for start in batches]
        self.table: gpuhash.HashTable | None = None

    def begin(self, reserved: bool, memory: object = None) -> None:
        self.table = None
        self.table = PAIRS_8_8.table(memory=memory)
        if reserved:
            self.table.reserve(self.pairs)

    def insert_all(self) -> None:
        if self.table is None:
            raise RuntimeError("begin() makes the table")
        for batch in self.batches:
            self.table[self.data.keys[batch]] = self.data.values[batch]

    def check(self) -> None:
        if self.table is None:
            raise RuntimeError("begin() makes the table")
        expect(len(self.table) == self.pairs, "len after growing")
        values, found = self.table.find(self.data.lookups)
        expect(found.all() and torch.equal(values, PAIRS_8_8.values(self.data.lookups)), "items after growing")

    def peak_bytes(self) -> tuple[int, int]:
        """The most memory that the table had while it grew, as PyTorch's allocator counts it, and in the end."""
        self.table = None
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.begin(reserved=False, memory="torch")
        self.insert_all()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        if self.table is None:
            raise RuntimeError("begin() makes the table")
        return peak, self.table.nbytes


def growth(session: Session, cache: DataCache) -> list[Group]:
    """All keys in batches of 2^20 into a table that begins empty, and into one with room."""
    pairs = 1 << (22 if session.quick else 27)
    report = session.report
    seconds: dict[str, float] = {}

    def case(name: str, bench: GrowthBench) -> None:
        reserved = name == "reserved"
        bench.begin(reserved)
        bench.insert_all()
        bench.check()
        for clock, measure in (("", timed), (", host's clock", timed_by_clock)):
            timing = measure(bench.insert_all, before=lambda: bench.begin(reserved), runs=5)
            bench.check()
            if bench.table is None:
                raise RuntimeError("begin() makes the table")
            seconds[name + clock] = timing.median
            report.add(
                "growth",
                f"insert, {'reserved' if reserved else 'growing'}{clock}",
                "gpuhash",
                timing,
                pairs=pairs,
                batch=pairs,
                load=pairs * PAIRS_8_8.pair_bytes / bench.table.nbytes,
                limit=report.limit("C64"),
            )
            grown, given = seconds.get(f"grow{clock}"), seconds.get(f"reserved{clock}")
            if grown is not None and given is not None:
                report.quantity("growth", f"time growing / time reserved{clock}", grown / given, "times")

    def memory(bench: GrowthBench) -> None:
        peak, final = bench.peak_bytes()
        report.quantity("growth", "peak memory / memory of the grown table", peak / final, "times")

    cases: dict[str, Callable[[GrowthBench], None]] = {
        name: partial(case, name) for name in session.wanted(GROWTH_OPERATIONS)
    }
    if session.wants("grow"):
        cases["memory"] = memory
    label = f"{count(pairs)} pairs in batches of {count(_GROWTH_BATCH)}"
    return [Group(label, lambda: nullcontext(GrowthBench(cache.get(PAIRS_8_8, pairs))), cases)]
