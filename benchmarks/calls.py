"""The host's time for one call on 16 keys, in microseconds: ``python -m benchmarks.calls --device cuda``."""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gpuhash

KEYS = 16
REPETITIONS = 101

Call = Callable[[], object]

# microseconds, by device, framework and call
GOALS = {
    ("cpu", "numpy", "table[keys]"): 0.5,
    ("cpu", "numpy", "table.find(keys)"): 0.5,
    ("cpu", "torch", "table[keys]"): 1.0,
    ("cpu", "torch", "table.find(keys)"): 1.0,
    ("cuda", "torch", "table[keys]"): 6.0,
    ("cuda", "torch", "table.find(keys)"): 6.0,
    ("cuda", "cupy", "table[keys]"): 12.0,
    ("cuda", "cupy", "table.find(keys)"): 12.0,
}


def frameworks(device: str) -> dict[str, Callable[[np.ndarray], Any]]:
    """How each framework that is there makes an array on the device."""
    made: dict[str, Callable[[np.ndarray], Any]] = {}
    if device == "cpu":
        made["numpy"] = np.copy
    try:
        torch = importlib.import_module("torch")
        if device == "cpu" or torch.cuda.is_available():
            made["torch"] = lambda host: torch.from_numpy(host.copy()).to(device)
    except ImportError:
        pass
    if device == "cuda":
        try:
            cupy = importlib.import_module("cupy")
            made["cupy"] = cupy.asarray
        except ImportError:
            pass
    return made


def calls(table: Any, make: Callable[[np.ndarray], Any]) -> dict[str, Call]:
    """The calls, each checked once: their answers are those of a dict."""
    host = np.arange(KEYS)
    keys, values, absent = make(host), make(host * 3), make(host + KEYS)
    out = (make(np.zeros(KEYS, np.int64)), make(np.zeros(KEYS, bool)))
    table[keys] = values

    def expect(got: Any, wanted: np.ndarray) -> None:
        if got.tolist() != wanted.tolist():
            raise AssertionError(f"{got.tolist()} instead of {wanted.tolist()}")

    expect(table[keys], host * 3)
    expect(table[absent], np.full(KEYS, -1))
    expect(table.find(keys)[0], host * 3)
    expect(table.find(absent)[1], host < 0)
    expect(table.find(keys, out=out)[1], host >= 0)
    expect(table.contains(keys), host >= 0)
    expect(table.erase(absent), host < 0)
    return {
        "table[keys]": lambda: table[keys],
        "table.find(keys)": lambda: table.find(keys),
        "table.find(keys, out=)": lambda: table.find(keys, out=out),
        "table.contains(keys)": lambda: table.contains(keys),
        "table[keys] = values": lambda: table.__setitem__(keys, values),
        "table.insert(keys, values)": lambda: table.insert(keys, values),
        "table.insert_or_assign(keys, values)": lambda: table.insert_or_assign(keys, values),
        "table.erase(absent)": lambda: table.erase(absent),
        "keys.copy(), for comparison": keys.clone if hasattr(keys, "clone") else keys.copy,
    }


def microseconds(call: Call, synchronize: Call, rounds: int) -> list[float]:
    """Host time per call of each repetition, without the time for which the device has to be awaited at its end."""
    times = []
    for repetition in range(REPETITIONS + 1):
        synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            call()
        if repetition:  # the first warms up
            times.append((time.perf_counter() - start) / rounds * 1e6)
    synchronize()
    return times


Measure = Callable[[], list[float]]


def prepared(device: str, rounds: int | None = None) -> Iterator[tuple[str, str, Measure]]:
    """Framework, call and what measures it, for all calls of all frameworks that are there; checked.

    ``rounds`` is the number of calls of one repetition.
    """
    if rounds is None:
        # Less than the scheduler's time slice; and a GPU's queue holds about a thousand kernels, then the host waits.
        rounds = 400 if device == "cpu" else 200
    for framework, make in frameworks(device).items():
        synchronize: Call = int
        if device == "cuda":
            module = importlib.import_module(framework)
            synchronize = module.cuda.synchronize if framework == "torch" else module.cuda.Device().synchronize
        table = gpuhash.HashTable("int64", "int64", device=device, default=-1)
        table.reserve(100_000)  # the bound of the size rises with every batch, and never gets there
        for name, call in calls(table, make).items():
            yield framework, name, functools.partial(_measure, table, call, synchronize, rounds)


def _measure(table: gpuhash.HashTable, call: Call, synchronize: Call, rounds: int) -> list[float]:
    len(table)
    return microseconds(call, synchronize, rounds)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where table and arrays are")
    device = parser.parse_args(arguments).device
    if not frameworks(device):
        print("--device cuda needs a GPU, and PyTorch or CuPy", file=sys.stderr)
        return 2
    print("| framework | call | median, us | fastest, us | goal, us |\n|---|---|---|---|---|")
    for framework, name, measure in prepared(device):
        times = measure()
        goal = GOALS.get((device, framework, name), "")
        print(f"| {framework} | `{name}` | {statistics.median(times):.2f} | {min(times):.2f} | {goal} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
