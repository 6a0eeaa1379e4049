"""The table on a GPU, through the Python API with PyTorch's CUDA tensors, timed by events on the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

import gpuhash

from .limits import LimitsUnavailableError, cuda
from .report import PAIR_BYTES, Progress, Report, slots_at

LOADS = (0.5, 0.8)
OPERATIONS = ("find present", "find absent", "insert", "insert with mask", "insert_or_assign", "erase")
LIMIT_ARRAY_BYTES = 4 << 30

Action = Callable[[], object]


def _nothing() -> None:
    pass


def _i64(word: int) -> int:
    """The signed integer of the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def _mix_(x: torch.Tensor) -> torch.Tensor:
    """The finisher of splitmix64 in place: a bijection, so that a counter gives unique keys that look random."""

    def xor_shift(bits: int) -> None:
        shifted = (x >> bits) & ((1 << (64 - bits)) - 1)
        x.bitwise_xor_(shifted)

    xor_shift(30)
    x.mul_(_i64(0xBF58476D1CE4E5B9))
    xor_shift(27)
    x.mul_(_i64(0x94D049BB133111EB))
    xor_shift(31)
    return x


def make_keys(first: int, count: int) -> torch.Tensor:
    return _mix_(torch.arange(first, first + count, dtype=torch.int64, device="cuda"))


def values_of(keys: torch.Tensor) -> torch.Tensor:
    return keys ^ 0x5555


def timed(action: Action, *, before: Action = _nothing, runs: int, warm_up: int = 2) -> float:
    """Median seconds on the device of one call. ``before`` runs before each, outside of the time.

    The device is kept busy while the host enqueues, so that the host's part of a call is not in the figure, unless the
    call waits for the device.
    """
    seconds = []
    for run in range(warm_up + runs):
        before()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)  # cycles, about a millisecond
        start.record()
        action()
        end.record()
        end.synchronize()
        if run >= warm_up:
            seconds.append(start.elapsed_time(end) * 1e-3)
    return float(statistics.median(seconds))


@dataclass
class Data:
    """Keys in the order of insertion and in that of the lookups, and keys that are never inserted."""

    keys: torch.Tensor  # [pairs] int64, unique
    values: torch.Tensor  # [pairs] int64
    lookups: torch.Tensor  # [pairs], the keys in another order
    absent: torch.Tensor  # [pairs]

    @classmethod
    def make(cls, pairs: int) -> Data:
        keys = make_keys(0, pairs)
        lookups = keys[torch.randperm(pairs, device="cuda")]
        return cls(keys, values_of(keys), lookups, make_keys(pairs, pairs))


@dataclass
class Outputs:
    values: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def make(cls, batch: int) -> Outputs:
        values = torch.empty(batch, dtype=torch.int64, device="cuda")
        return cls(values, torch.empty(batch, dtype=torch.bool, device="cuda"))


def _expect(holds: bool | torch.Tensor, what: str) -> None:
    if not bool(holds):
        raise AssertionError(f"wrong result: {what}")


class Bench:
    """One table at one load, and the operations on it."""

    def __init__(self, data: Data, load: float, runs: int) -> None:
        self.data = data
        self.pairs = len(data.keys)
        self.runs = runs
        slots = slots_at(load, self.pairs)
        self.table = gpuhash.HashTable("int64", "int64", device="cuda", capacity=slots, max_load_factor=1.0)
        nbytes = self.table.nbytes
        self.fill()
        _expect(self.table.nbytes == nbytes, "the table grew although it had room")
        self.load = self.pairs * PAIR_BYTES / nbytes

    def fill(self, pairs: int | None = None) -> None:
        self.table.clear()
        self.table[self.data.keys[:pairs]] = self.data.values[:pairs]

    def chunks(self, tensor: torch.Tensor, batch: int) -> Callable[[], torch.Tensor]:
        """A function that gives another ``batch`` keys each time, so that small batches do not meet a warm cache."""
        position = 0

        def take() -> torch.Tensor:
            nonlocal position
            if position + batch > len(tensor):
                position = 0
            position += batch
            return tensor[position - batch : position]

        return take

    def check(self) -> None:
        """Every operation is right before any is timed."""
        table, data, out = self.table, self.data, Outputs.make(self.pairs)
        _expect(len(table) == self.pairs, "len after inserting")
        table.find(data.lookups, out=(out.values, out.mask))
        _expect(out.mask.all(), "present keys are found")
        _expect(torch.equal(out.values, values_of(data.lookups)), "values of present keys")
        table.contains(data.absent, out=out.mask)
        _expect(~out.mask.any(), "absent keys are not found")
        table.insert_or_assign(data.lookups, data.lookups, out=out.mask)
        _expect(~out.mask.any(), "no key is new when assigning to present keys")
        table.find(data.keys, out=(out.values, out.mask))
        _expect(torch.equal(out.values, data.keys), "values after assigning")
        table.erase(data.lookups, out=out.mask)
        _expect(out.mask.all(), "present keys are erased")
        _expect(len(table) == 0, "len after erasing")
        table.insert(data.keys, data.values, out=out.mask)
        _expect(out.mask.all() and len(table) == self.pairs, "every key is new in an empty table")

    def measure(self, operation: str, batch: int) -> float:
        """Seconds per call with ``batch`` keys."""
        table, data, out = self.table, self.data, Outputs.make(batch)
        whole = batch == self.pairs
        lookups = self.chunks(data.lookups, batch)
        if operation == "find present":
            return timed(lambda: table.find(lookups(), out=(out.values, out.mask)), runs=self.runs)
        if operation == "find absent":
            absent = self.chunks(data.absent, batch)
            return timed(lambda: table.find(absent(), out=(out.values, out.mask)), runs=self.runs)
        if operation in ("insert", "insert with mask"):
            rest = self.pairs - batch
            keys, values = data.keys[rest:], data.values[rest:]

            def without_last() -> None:
                table.clear()
                if not whole:
                    table[data.keys[:rest]] = data.values[:rest]
                len(table)  # the table learns its size now, not in the timed call

            if operation == "insert":
                return timed(lambda: table.update(keys, values), before=without_last, runs=self.runs)
            return timed(lambda: table.insert(keys, values, out=out.mask), before=without_last, runs=self.runs)
        if operation == "insert_or_assign":
            return timed(lambda: self._assign(lookups(), out), runs=self.runs)
        if operation == "erase":
            return timed(lambda: table.erase(lookups(), out=out.mask), before=self.fill, runs=self.runs)
        raise ValueError(f"unknown operation {operation!r}")

    def _assign(self, keys: torch.Tensor, out: Outputs) -> None:
        self.table.insert_or_assign(keys, keys, out=out.mask)


def limit_of(operation: str) -> str:
    return "L64" if operation.startswith("find") else "C64"


def run(report: Report, *, quick: bool, operations: Collection[str]) -> None:
    """Add the limits and every operation at every load and batch to the report."""
    pairs = 1 << (24 if quick else 27)
    batches = (pairs, 1 << 20)
    runs = 3 if quick else 7
    chosen = [operation for operation in OPERATIONS if operation in operations]
    progress = Progress(1 + len(LOADS) * (1 + len(batches) * len(chosen)))
    progress.step("limits of the memory")
    try:
        report.limits.update(cuda(LIMIT_ARRAY_BYTES, pairs, torch.cuda.get_device_capability()))
    except LimitsUnavailableError as error:
        report.settings["limits"] = f"not measured ({error})"
    data = Data.make(pairs)
    for load in LOADS:
        progress.step(f"load {load}: checks")
        bench = Bench(data, load, runs)
        bench.check()
        for batch in batches:
            for operation in chosen:
                progress.step(f"load {load}: {operation}, batch {batch}")
                bench.fill()
                seconds = bench.measure(operation, batch)
                report.add(
                    operation,
                    "gpuhash",
                    pairs=pairs,
                    batch=batch,
                    load=bench.load,
                    seconds=seconds,
                    limit=limit_of(operation),
                )
        del bench
    progress.finish()
