"""A table over the processes of a group beside one table in each:
``python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.distributed --device cuda``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import gpuhash
import gpuhash.distributed
from benchmarks.random_keys import keys_of, numbers
from benchmarks.timing import Action, expect, milliseconds, milliseconds_in_turns, nothing
from gpuhash.distributed.duplicates import Sample
from gpuhash.distributed.split import ALIGNMENT, GAP, spans_of

EXPONENTS = {"uniform": None, "Zipf 1.05": 1.05, "Zipf 1.5": 1.5}


@dataclass
class Place:
    """The ranks, and where this one's arrays are."""

    rank: int
    size: int
    device: torch.device

    def synchronize(self) -> None:
        """Waits for this rank's device, and for all ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        dist.barrier()

    def slowest(self, milliseconds: float) -> float:
        """The largest of all ranks' times."""
        times = torch.tensor([milliseconds], device=self.device)
        dist.all_reduce(times, dist.ReduceOp.MAX)
        return float(times)

    def total(self, number: Any) -> int:
        sums = torch.as_tensor(number, dtype=torch.int64).reshape(1).to(self.device)
        dist.all_reduce(sums)
        return int(sums)


@dataclass
class Job:
    """One table, on this rank alone or on all, with ``universe`` keys below which numbers are present."""

    table: Any
    universe: int
    place: Place
    together: bool

    def all_ranks(self, number: Any) -> int:
        return self.place.total(number) if self.together else int(number)

    def shard(self) -> Any:
        return self.table.shard if self.together else self.table


def filled(place: Place, pairs: int, *, together: bool) -> Job:
    """A table of ``pairs`` keys on this rank, or on each, with three times themselves as values, half full."""
    if together:
        universe = pairs * place.size
        table: Any = gpuhash.distributed.HashTable("int64", "int64", device=place.device, capacity=2 * universe)
        mine = torch.arange(place.rank, universe, place.size, device=place.device)
    else:
        universe = pairs
        table = gpuhash.HashTable("int64", "int64", device=place.device, capacity=2 * universe)
        mine = torch.arange(universe, device=place.device)
    for part in mine.split(1 << 24):
        table[keys_of(part)] = keys_of(part) * 3
    expect(len(table) == universe, "the number of keys")
    return Job(table, universe, place, together)


def cases(job: Job, spread: float | None, count: int) -> Iterator[tuple[str, Action, Action]]:
    """Name, preparation and call of what is measured; each was checked."""
    table, place = job.table, job.place
    seed = 1000 + place.rank
    drawn = keys_of(numbers(spread, count, job.universe, place.device, seed))
    values, found = table.find(drawn)
    expect(found.all() and torch.equal(values, drawn * 3), "values of present keys")
    yield "find", nothing, lambda: table.find(drawn)

    if spread is None:  # new keys, each once
        step, first = (place.size, place.rank) if job.together else (1, 0)
        fresh = keys_of(job.universe + first + step * torch.arange(count, device=place.device))
    else:
        fresh = keys_of(job.universe + numbers(spread, count, job.universe, place.device, seed))
    distinct = gpuhash.unique(fresh)
    size = len(table)
    inserted = table.insert(fresh, fresh * 3)
    expect(job.all_ranks(inserted.sum()) == len(table) - size, "one of each new key's duplicates is told to be new")
    expect(torch.equal(table.find(distinct)[0], distinct * 3), "values of keys that were inserted")
    table.erase(distinct)
    expect(len(table) == size, "all keys that were inserted are erased")
    fresh_values = fresh * 3
    yield "insert", lambda: table.erase(distinct), lambda: table.insert(fresh, fresh_values)

    table.erase(distinct)
    ones = torch.ones_like(drawn)
    before = job.all_ranks(job.shard().values("torch").sum())
    table.insert_or_apply(drawn, ones, "add")
    added = job.all_ranks(job.shard().values("torch").sum()) - before
    expect(added % (1 << 64) == count * (place.size if job.together else 1), "the sum of all values")
    yield "insert_or_apply", nothing, lambda: table.insert_or_apply(drawn, ones, "add")
    table.insert_or_assign(drawn, drawn * 3)


def measure(
    place: Place, pairs: int, count: int, rounds: int, repetitions: int
) -> tuple[dict[tuple[str, str], dict[str, float]], dict[str, float]]:
    """Keys per second of all ranks by operation and kind of keys: "alone", a table in each, and "together", one; and
    milliseconds of a lookup's phases.
    """
    rates: dict[tuple[str, str], dict[str, float]] = {}
    for together in (False, True):
        job = filled(place, pairs, together=together)
        for kind, spread in EXPONENTS.items():
            for name, prepare, call in cases(job, spread, count):
                if prepare is nothing:
                    time = milliseconds(call, place.synchronize, rounds, repetitions)
                else:
                    calls: dict[str, Callable[[], object]] = {name: call}
                    time = milliseconds_in_turns(calls, prepare, place.synchronize, 1, repetitions)[name]
                rate = place.size * count / place.slowest(time) * 1e3
                rates.setdefault((name, kind), {})["together" if together else "alone"] = rate
        if together:
            times = phases(job, count, rounds, repetitions)
        del job
    return rates, times


def phases(job: Job, count: int, rounds: int, repetitions: int) -> dict[str, float]:
    """Milliseconds of the slowest rank for each phase of a lookup of uniform keys, one after the other."""
    place, table = job.place, job.table
    keys = keys_of(numbers(None, count, job.universe, place.device, 1000 + place.rank))
    steps, shard = table._steps, table.shard
    split = steps.split(keys, 0)
    counts = split.counts
    opened = steps.open(counts, None)
    send, arrive = spans_of(opened.send), spans_of(opened.receive)
    send[place.rank] = arrive[place.rank] = 0
    others = sum(send)
    sorted_keys = split.keys[:others]
    received = steps.finish(steps.exchange([sorted_keys], send, arrive))[0]
    answers = shard.find(received)
    gaps = place.size * (GAP + ALIGNMENT - 1)  # at most
    expect(int(answers[1].sum()) >= len(answers[1]) - gaps, "each shard has the keys that are sent to it")
    back = [answers[0], answers[1].view(torch.uint8)]
    own = split.keys[others : others + counts[place.rank]]
    returned = [torch.cat([each.new_empty(others), each]) for each in shard.find(own)]
    into = [each[:others] for each in (returned[0], returned[1].view(torch.uint8))]
    steps.finish(steps.exchange(back, arrive, send, into))
    expect(torch.equal(split.gather(returned[0])[0], keys * 3), "the answers in the order of the keys")

    def tell() -> None:
        begun = steps.split(keys, 0)
        steps.finish_open(steps.start_open(begun, None))

    steps.call("phases")
    calls: dict[str, Action] = {
        "look for hot keys": lambda: Sample(keys, place.size, 0, steps.splitter, are_sent_fast=True).has_many(),
        "count, tell each other, sort meanwhile": tell,
        "count, sort": lambda: steps.split(keys, 0).counts,
        "sort values": lambda: split.scatter(keys),
        "exchange of keys": lambda: steps.finish(steps.exchange([sorted_keys], send, arrive)),
        "find, own": lambda: shard.find(own),
        "find, others'": lambda: shard.find(received),
        "exchange of answers": lambda: steps.finish(steps.exchange(back, arrive, send, into)),
        "gather": lambda: split.gather(*returned),
        "find, whole": lambda: table.find(keys),
    }
    times = milliseconds_in_turns(calls, nothing, place.synchronize, rounds, repetitions)
    return {name: place.slowest(time) for name, time in times.items()}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table on the first rank; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where tables and arrays are")
    parser.add_argument("--pairs", type=int, help="keys in the table of each rank (default: 2^27 on GPUs, else 2^20)")
    parser.add_argument("--keys", type=int, help="keys of each rank's batch (default: 2^24 on GPUs, else 2^18)")
    parser.add_argument("--quick", action="store_true", help="few keys and runs, to see that it works")
    options = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        print(
            "start it by python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.distributed", file=sys.stderr
        )
        return 2
    on_gpu = options.device == "cuda"
    local = int(os.environ["LOCAL_RANK"])
    if on_gpu and torch.cuda.device_count() <= local:
        print(f"--device cuda needs a GPU for each process, and there are {torch.cuda.device_count()}", file=sys.stderr)
        return 2
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=datetime.timedelta(minutes=5),
        device_id=device if on_gpu else None,
    )
    place = Place(dist.get_rank(), dist.get_world_size(), device)
    pairs = options.pairs or (1 << 14 if options.quick else 1 << 27 if on_gpu else 1 << 20)
    count = options.keys or (1 << 13 if options.quick else 1 << 24 if on_gpu else 1 << 18)
    rates, times = measure(place, pairs, count, 5, 3 if options.quick else 11)
    if place.rank == 0:
        print(f"{place.size} processes on {options.device}, {pairs} pairs and {count} keys a batch in each\n")
        columns = ("operation", "keys", "a table in each, M keys/s", "one table, M keys/s")
        print(f"| {' | '.join(columns)} | part of a table in each on uniform keys |")
        print("|---|---|---|---|---|")
        for (name, kind), rate in rates.items():
            part = rate["together"] / rates[name, "uniform"]["alone"]
            print(f"| {name} | {kind} | {rate['alone'] / 1e6:.1f} | {rate['together'] / 1e6:.1f} | {part:.2f} |")
        print("\n| phase of find, uniform keys | ms |\n|---|---|")
        for name, time in times.items():
            print(f"| {name} | {time:.3f} |")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
