"""Calls in functions that PyTorch compiles beside the bare ones:
``python -m benchmarks.torch_programs --device cuda``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch

import gpuhash
from benchmarks.timing import expect, milliseconds_in_turns

SMALL = 16  # keys of a call whose cost is measured
LARGE = 1 << 20  # keys of a call beside the bare one
IN_A_ROW = 10  # calls in one function
FEWER_ROUNDS = 20  # of such functions: enough for the time before the first kernel and behind the last not to count

Call = Callable[[], Any]


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, fullgraph=True, dynamic=False, **options)


def filled(device: str, keys: int, reserved: int) -> tuple[gpuhash.HashTable, torch.Tensor]:
    """A table of twice as many keys, with three times themselves as values, and a batch of them in random order."""
    torch.manual_seed(1)
    stored = torch.randperm(4 * keys, device=device)[: 2 * keys]
    table = gpuhash.HashTable("int64", "int64", device=device, default=-1)
    table.reserve(reserved)
    table[stored] = stored * 3
    return table, stored[torch.randperm(2 * keys, device=device)[:keys]].contiguous()


def compare_calls(
    device: str, keys: int, synchronize: Call, rounds: int, repetitions: int
) -> dict[str, dict[str, float]]:
    """Milliseconds of the bare and the compiled call, by call; of one in a function, and of each of IN_A_ROW."""
    # Insertions never have to ask for the size: they are counted from the last time that somebody has.
    table, batch = filled(device, keys, (rounds + FEWER_ROUNDS * IN_A_ROW + 4) * keys)
    batches = [batch[torch.randperm(keys, device=device)].contiguous() for _ in range(IN_A_ROW)]
    values = batch * 3

    def finds(table: Any, batches: Any) -> Any:
        return [table.find(keys) for keys in batches]

    def inserts(table: Any, batches: Any, values: Any) -> Any:
        return [table.insert_or_assign(keys, values) for keys in batches]

    find = compiled(lambda table, keys: table.find(keys))
    insert = compiled(lambda table, keys, values: table.insert_or_assign(keys, values))
    compiled_finds, compiled_inserts = compiled(finds), compiled(inserts)
    got, found = find(table, batch)
    expect(torch.equal(got, values) and found.all(), "values found by a compiled function")
    for (got, _), keys_of_it in zip(compiled_finds(table, batches), batches, strict=True):
        expect(torch.equal(got, keys_of_it * 3), "values found by a compiled function")
    expect(not insert(table, batch, values).any(), "present keys are not new to a compiled function")
    pairs: dict[str, dict[str, Call]] = {
        "find": {"bare": lambda: table.find(batch), "compiled": lambda: find(table, batch)},
        "insert_or_assign": {
            "bare": lambda: table.insert_or_assign(batch, values),
            "compiled": lambda: insert(table, batch, values),
        },
    }
    rows = {
        "find": {"bare": lambda: finds(table, batches), "compiled": lambda: compiled_finds(table, batches)},
        "insert_or_assign": {
            "bare": lambda: inserts(table, batches, values),
            "compiled": lambda: compiled_inserts(table, batches, values),
        },
    }
    results = {}
    for name in pairs:
        results[name] = milliseconds_in_turns(pairs[name], lambda: len(table), synchronize, rounds, repetitions)
        times = milliseconds_in_turns(rows[name], lambda: len(table), synchronize, FEWER_ROUNDS, repetitions)
        results[f"{name}, each of {IN_A_ROW} in a row"] = {way: time / IN_A_ROW for way, time in times.items()}
    return results


def small_calls(device: str, synchronize: Call, rounds: int, repetitions: int) -> dict[str, float]:
    """Microseconds of calls on 16 keys."""
    table, keys = filled(device, SMALL, 1 << 20)

    def ten(table: Any, keys: Any) -> Any:
        return [table.contains(keys + step) for step in range(10)]

    trivial = compiled(lambda keys: keys + 1)
    contains = compiled(lambda table, keys: table.contains(keys))
    assign = compiled(lambda table, keys: table.insert_or_assign(keys, keys))
    all_ten = compiled(ten)
    expect(contains(table, keys).all(), "present keys are found by a compiled function")
    expect(torch.equal(trivial(keys), keys + 1), "keys + 1")
    calls: dict[str, Call] = {
        "table.contains(keys)": lambda: table.contains(keys),
        "keys + 1, compiled": lambda: trivial(keys),
        "table.contains(keys), compiled": lambda: contains(table, keys),
        "table.insert_or_assign(keys, keys), compiled": lambda: assign(table, keys),
        "ten of contains, compiled": lambda: all_ten(table, keys),
    }
    times = milliseconds_in_turns(calls, lambda: len(table), synchronize, rounds, repetitions)
    return {name: each * 1e3 for name, each in times.items()}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print tables; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_programs", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where table and arrays are")
    parser.add_argument("--quick", action="store_true", help="few keys and runs, to see that it works")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda needs a GPU that PyTorch can use", file=sys.stderr)
        return 2
    synchronize: Call = torch.cuda.synchronize if options.device == "cuda" else int
    keys, repetitions = (1 << 14, 3) if options.quick else (LARGE, 31)
    print(f"| call on {keys} keys | bare, ms | compiled, ms | ratio |\n|---|---|---|---|")
    for name, times in compare_calls(options.device, keys, synchronize, 10, repetitions).items():
        bare, program = times["bare"], times["compiled"]
        print(f"| {name} | {bare:.3f} | {program:.3f} | {program / bare:.3f} |")
    print(f"\n| call on {SMALL} keys | us |\n|---|---|")
    for name, time_us in small_calls(options.device, synchronize, 20 if options.quick else 200, repetitions).items():
        print(f"| {name} | {time_us:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
