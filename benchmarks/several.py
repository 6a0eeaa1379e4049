"""One table over several GPUs beside single tables: ``python -m benchmarks.several --devices cuda:0 cuda:1``.

All times are of the wall clock around one call with a batch per GPU, until all GPUs are done; the single table's are of
one GPU with its own batch. 1.0 would be as fast as a table on each GPU that has only keys of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gpuhash
from benchmarks.random_keys import keys_of, numbers
from benchmarks.timing import expect, milliseconds_in_turns, nothing

Tensor = torch.Tensor

REPETITIONS = 11


def synchronize(devices: list[str]) -> None:
    for device in devices:
        if device != "cpu":
            torch.cuda.synchronize(device)


@dataclass
class Row:
    """What was measured: milliseconds of one call on all devices, and of the single table's."""

    operation: str
    keys: int  # per device
    several: float
    single: float


class Comparison:
    """A single table of `pairs` pairs, and one over the devices with as many on each, all at a load of 0.5."""

    def __init__(self, devices: list[str], pairs: int, batch: int) -> None:
        self.devices, self.pairs = devices, pairs
        self.single = self._filled(devices[0], pairs, batch, [devices[0]])
        self.several = self._filled(devices, pairs * len(devices), batch, devices)
        expect(len(self.several) == pairs * len(devices), "all keys are in")
        sizes = [len(shard) for shard in self.several.shards]
        expect(max(sizes) - min(sizes) < 6 * (pairs * len(devices)) ** 0.5, "the shards have equal shares")

    @staticmethod
    def _filled(device: Any, pairs: int, batch: int, sources: list[str]) -> gpuhash.HashTable:
        table = gpuhash.HashTable("int64", "int64", device=device, default=-1, max_load_factor=0.9)
        table.rehash(2 * pairs)
        for begin in range(0, pairs, batch * len(sources)):
            for part, source in enumerate(sources):
                ranks = torch.arange(begin + part * batch, begin + (part + 1) * batch, device=source)
                table[keys_of(ranks)] = ranks
        return table

    def _run(self, operation: str, several: Callable[[], Any], single: Callable[[], Any], keys: int) -> Row:
        times = milliseconds_in_turns(
            {"several": several, "single": single}, nothing, lambda: synchronize(self.devices), 1, REPETITIONS
        )
        return Row(operation, keys, times["several"], times["single"])

    def find(self, name: str, exponent: float | None, count: int) -> Row:
        most = self.pairs * len(self.devices)
        ranks = [numbers(exponent, count, most, torch.device(device), seed) for seed, device in enumerate(self.devices)]
        batches = [keys_of(each) for each in ranks]
        alone = numbers(exponent, count, self.pairs, torch.device(self.devices[0]), 9)
        mine = keys_of(alone)
        values, found = self.several.find(batches)
        for rank, value, mask in zip(ranks, values, found, strict=True):
            expect((value == rank).all() and mask.all(), "values of all keys")
        expect((self.single.find(mine)[0] == alone).all(), "values of the single table's keys")
        return self._run(name, lambda: self.several.find(batches), lambda: self.single.find(mine), count)

    def insert(self, count: int) -> Row:
        """New keys, which are erased again after each run."""
        most = self.pairs * len(self.devices)
        ranks = [torch.arange(most + i * count, most + (i + 1) * count, device=d) for i, d in enumerate(self.devices)]
        batches = [keys_of(rank[torch.randperm(count, device=rank.device)]) for rank in ranks]
        times: dict[str, list[float]] = {"several": [], "single": []}
        for table, name, given in (
            (self.several, "several", (batches, ranks)),
            (self.single, "single", (batches[0], ranks[0])),
        ):
            for _ in range(REPETITIONS):
                len(table)
                once = milliseconds_in_turns(
                    {"call": lambda table=table, given=given: table.__setitem__(*given)},
                    lambda table=table, given=given: (table.erase(given[0]), len(table)),
                    lambda: synchronize(self.devices),
                    1,
                    1,
                )
                times[name].append(once["call"])
            expect(
                len(table)
                == (most if table is self.several else self.pairs)
                + count * (len(batches) if table is self.several else 1),
                "new keys are in",
            )
            table.erase(given[0])
        middle = {name: sorted(each)[len(each) // 2] for name, each in times.items()}
        return Row("insert", count, middle["several"], middle["single"])

    def apply(self, name: str, exponent: float | None, count: int) -> Row:
        most = self.pairs * len(self.devices)
        ranks = [numbers(exponent, count, most, torch.device(device), seed) for seed, device in enumerate(self.devices)]
        batches = [keys_of(each) for each in ranks]
        zeros = [torch.zeros_like(batch) for batch in batches]  # so that every run finds the same table
        mine = keys_of(numbers(exponent, count, self.pairs, torch.device(self.devices[0]), 9))
        self.several.insert_or_apply(batches, [torch.ones_like(batch) for batch in batches], "add")
        sums = torch.zeros(most, dtype=torch.int64, device=self.devices[0])
        for rank in ranks:
            sums += torch.bincount(rank.to(self.devices[0]), minlength=most)
        for rank, batch in zip(ranks, batches, strict=True):
            expected = rank + sums.to(rank.device)[rank]
            expect((self.several[batch] == expected).all(), "sums of all keys")
        self.several.insert_or_apply(batches, [-torch.ones_like(batch) for batch in batches], "add")
        return self._run(
            name,
            lambda: self.several.insert_or_apply(batches, zeros, "add"),
            lambda: self.single.insert_or_apply(mine, zeros[0], "add"),
            count,
        )


def phases(table: gpuhash.HashTable, batches: list[Tensor], devices: list[str]) -> dict[str, float]:
    """Microseconds of each kernel of a lookup, the mean over the devices' own, by PyTorch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    runs = 5
    table.find(batches)
    synchronize(devices)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            table.find(batches)
            synchronize(devices)
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        name = next(
            (
                part
                for part in ("count_kernel", "sort_keys_kernel", "find_kernel", "gather_words_kernel", "Memcpy")
                if part in event.key
            ),
            "",
        )
        if name:
            times[name] = times.get(name, 0) + event.device_time_total / runs / len(devices)
    return times


def main(arguments: list[str] | None = None) -> int:
    """Measure and print tables; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.several", description=__doc__)
    parser.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:1"], help="of the shards")
    parser.add_argument("--quick", action="store_true", help="few keys, to see that it works")
    parser.add_argument("--log-pairs", type=int, default=27, help="of the pairs on each device (default: 27)")
    options = parser.parse_args(arguments)
    devices = options.devices
    try:
        gpuhash.HashTable("int64", "int64", device=devices)
    except gpuhash.PlatformError as error:
        print(f"--devices {' '.join(devices)}: {error}", file=sys.stderr)
        return 2
    pairs, large, small = 1 << options.log_pairs, 1 << 24, 1 << 20
    if options.quick:
        pairs, large, small = 1 << 14, 1 << 12, 1 << 10
    comparison = Comparison(devices, pairs, large)
    number = len(devices)
    print(f"{number} devices, {pairs} pairs on each, load 0.5\n")
    print(f"| operation | keys per device | several, ms | 10^9 keys/s | single, ms | of {number} x single |")
    print("|---|---|---|---|---|---|")

    def show(row: Row) -> None:
        rate = row.keys * len(devices) / row.several / 1e6
        times = f"{row.several:.3f} | {rate:.1f} | {row.single:.3f} | {row.single / row.several:.2f}"
        print(f"| {row.operation} | {row.keys} | {times} |", flush=True)

    for count in (large, small):
        show(comparison.find("find", None, count))
        for exponent in (1.05, 1.5):
            show(comparison.find(f"find, Zipf {exponent}", exponent, count))
            show(comparison.apply(f"insert_or_apply, Zipf {exponent}", exponent, count))
        show(comparison.insert(count))
    if devices[0] != "cpu":
        print("\n| lookup of uniform keys, per device | us |\n|---|---|")
        for count in (large, small):
            batches = [
                keys_of(numbers(None, count, pairs * number, torch.device(device), seed))
                for seed, device in enumerate(devices)
            ]
            for name, time_us in phases(comparison.several, batches, devices).items():
                print(f"| {count} keys: {name} | {time_us:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
