"""Calls in JAX's compiled programs beside the bare calls, and beside jnp.unique:
``python -m benchmarks.jax_programs --device cuda``.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

import gpuhash
import gpuhash.jax as ours
from benchmarks.timing import expect, milliseconds, milliseconds_in_turns
from gpuhash import _core
from gpuhash.jax.build import op_library

SMALL = 16  # keys of a call whose cost is measured
LARGE = 1 << 20  # keys of a call beside the bare one
IN_A_ROW = 10  # calls in one program
FEWER_ROUNDS = 20  # of such programs: enough for the time before the first kernel and behind the last not to count
EMPTY = "gpuhash_benchmark_nothing"

Call = Callable[[], Any]


class Threaded:
    """A compiled call that goes on with the state that it got from the call before."""

    def __init__(self, function: Any, state: Any, *arrays: Any) -> None:
        self.function, self.state, self.arrays, self.result = function, state, arrays, None

    def __call__(self) -> Any:
        self.state, self.result = self.function(self.state, *self.arrays)
        return self.result

    def synchronize(self) -> None:
        jax.block_until_ready((self.state, self.result))


def bare_arrays(device: str, *hosts: np.ndarray) -> tuple[list[Any], Call]:
    """The arrays of the framework that is nearest to the device, and what waits for it."""
    if device == "cpu":
        return [host.copy() for host in hosts], int
    torch = importlib.import_module("torch")
    synchronize = functools.partial(torch.cuda.synchronize, device)
    return [torch.from_numpy(host.copy()).to(device) for host in hosts], synchronize


def in_a_row(call: Any) -> Any:
    """A function that makes a call for each of several batches of arrays."""

    def run(state: Any, batches: Any) -> Any:
        results = []
        for arrays in batches:
            state, result = call(state, *arrays)
            results.append(result)
        return state, results

    return run


def compare_calls(device: str, place: Any, keys: int, rounds: int, repetitions: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of the bare call and of the compiled one, by call; of one in a program, and of each of IN_A_ROW."""
    rng = np.random.default_rng(1)
    stored = rng.permutation(4 * keys)
    batches = [rng.permutation(stored[: 2 * keys])[:keys] for _ in range(IN_A_ROW)]
    table = gpuhash.HashTable("int64", "int64", device=device, default=-1)
    table[stored[: 2 * keys]] = stored[: 2 * keys] * 3
    table.reserve((FEWER_ROUNDS * IN_A_ROW + 24) * keys)
    len(table)
    (bare_values, *bare_keys), synchronize = bare_arrays(device, batches[0] * 5, *batches)
    # As many as a program has: writing the same ones again and again would be work for the cache alone.
    outputs, _ = bare_arrays(device, *(np.zeros(keys, dtype) for dtype in (np.int64, bool) for _ in batches))
    values, found = outputs[:IN_A_ROW], outputs[IN_A_ROW:]
    jax_keys, jax_values = [jax.device_put(batch, place) for batch in batches], jax.device_put(batches[0] * 5, place)
    results = {}
    finds = Threaded(jax.jit(in_a_row(ours.find)), ours.from_table(table), [(batch,) for batch in jax_keys])
    for (got, _), batch in zip(finds(), batches, strict=True):
        expect(np.array_equal(np.asarray(got), batch * 3), "values found by a program")
    find = Threaded(jax.jit(ours.find), ours.from_table(table), jax_keys[0])
    pairs = [(batch, jax_values) for batch in jax_keys]
    inserts = Threaded(jax.jit(in_a_row(ours.insert_or_assign)), ours.from_table(table), pairs)
    insert = Threaded(jax.jit(ours.insert_or_assign), ours.from_table(table), *pairs[0])
    expect(not np.asarray(insert()).any(), "present keys are not new to a program")

    def bare_find(i: int) -> None:
        table.find(bare_keys[i], out=(values[i], found[i]))

    def bare_insert(i: int) -> None:
        table.insert_or_assign(bare_keys[i], bare_values, out=found[i])

    for name, bare, one, several in (
        ("find", bare_find, find, finds),
        ("insert_or_assign", bare_insert, insert, inserts),
    ):

        def bare_in_a_row(bare: Any = bare) -> None:
            for i in range(IN_A_ROW):
                bare(i)

        for count, bare_calls, program in (
            (1, functools.partial(bare, 0), one),
            (IN_A_ROW, bare_in_a_row, several),
        ):

            def wait(program: Threaded = program) -> None:
                synchronize()
                program.synchronize()

            ways: dict[str, Call] = {"bare": bare_calls, "program": program}
            # Before each the table is asked for its size, so that no insertion has to.
            times = milliseconds_in_turns(
                ways, lambda: len(table), wait, rounds if count == 1 else FEWER_ROUNDS, repetitions
            )
            label = name if count == 1 else f"{name}, each of {count} in a row"
            results[label] = (times["bare"] / count, times["program"] / count)
    return results


def empty_call(folder: Path) -> Any:
    """A compiled program of a custom call that does nothing, with the arguments of a lookup."""
    library = replace(
        op_library,
        module="benchmarks.empty",
        folder=Path(__file__).resolve().parent,
        units=(("empty_call.cc",),),
        headers=(),
    )
    package = Path(_core.__file__).resolve().parent
    made = folder / "empty_call.so"
    library.compile(made, package / "include", package, str(package))
    handler = jax.ffi.pycapsule(ctypes.CDLL(str(made)).gpuhash_benchmark_nothing)
    for platform in ("cpu", "CUDA"):
        jax.ffi.register_ffi_target(EMPTY, handler, platform=platform)

    def call(token: Any, keys: Any) -> Any:
        shapes = (jax.ShapeDtypeStruct(token.shape, token.dtype), jax.ShapeDtypeStruct(keys.shape, bool))
        return jax.ffi.ffi_call(EMPTY, shapes, input_output_aliases={0: 0}, vmap_method="sequential")(token, keys)

    return jax.jit(call)


def small_calls(device: str, place: Any, rounds: int, repetitions: int) -> dict[str, float]:
    """Microseconds of calls on 16 keys."""
    host = np.arange(SMALL)
    table = gpuhash.HashTable("int64", "int64", device=device, default=-1)
    table[host] = host
    table.reserve(1 << 20)
    keys = jax.device_put(host, place)
    (bare_keys, found), synchronize = bare_arrays(device, host, np.zeros(SMALL, bool))
    token = jax.device_put(np.zeros(6, np.uint32), place)
    with tempfile.TemporaryDirectory() as folder:
        empty = Threaded(empty_call(Path(folder)), token, keys)
        contains = Threaded(jax.jit(ours.contains), ours.from_table(table), keys)
        expect(np.asarray(contains()).all(), "present keys are found by a program")
        eager = Threaded(ours.contains, ours.from_table(table), keys)
        ten = Threaded(jax.jit(_ten_times), ours.from_table(table), keys)
        fixed = gpuhash.HashTable("int64", "int64", device=device, default=-1)
        fixed[host] = host
        recorded = Threaded(jax.jit(_ten_times, donate_argnums=0), ours.from_table(fixed, fixed=True), keys)
        return {
            "table.contains(keys, out=)": 1e3
            * milliseconds(lambda: table.contains(bare_keys, out=found), synchronize, rounds, repetitions),
            "program of an empty custom call": 1e3 * milliseconds(empty, empty.synchronize, rounds, repetitions),
            "program of one contains": 1e3 * milliseconds(contains, contains.synchronize, rounds, repetitions),
            "contains, eager": 1e3 * milliseconds(eager, eager.synchronize, rounds, repetitions),
            "each of ten in one program": 1e2 * milliseconds(ten, ten.synchronize, rounds, repetitions),
            "likewise, on a fixed table": 1e2 * milliseconds(recorded, recorded.synchronize, rounds, repetitions),
        }


def _ten_times(state: Any, keys: Any) -> Any:
    found = []
    for step in range(10):
        state, mask = ours.contains(state, keys + step)
        found.append(mask)
    return state, found


def compare_unique(place: Any, keys: int, distinct: int, repetitions: int) -> tuple[float, float]:
    """Milliseconds of jnp.unique and of gpuhash.jax.unique, with the inverse, of draws of a number of keys."""
    host = np.random.default_rng(2).integers(0, distinct, keys) * 0x9E3779B97F4A7C1
    array = jax.device_put(host, place)
    times, firsts = [], []
    for unique in (jnp.unique, ours.unique):
        program = jax.jit(lambda keys, unique=unique: unique(keys, size=distinct, return_inverse=True))
        values, inverse = program(array)
        expect(bool((values[inverse.reshape(-1)] == array).all()), "values[inverse] are the keys")
        firsts.append(np.sort(np.unique(np.asarray(values))))
        run = lambda program=program: jax.block_until_ready(program(array))  # noqa: E731
        times.append(milliseconds(run, int, 1, repetitions))
    expect(np.array_equal(*firsts), "both find the same keys")
    return times[0], times[1]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print tables; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jax_programs", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where table and arrays are")
    parser.add_argument("--quick", action="store_true", help="few keys and runs, to see that it works")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    try:
        place = jax.devices(options.device)[0]
    except RuntimeError as error:
        print(f"--device {options.device} needs JAX there: {error}", file=sys.stderr)
        return 2
    device = "cuda:0" if options.device == "cuda" else "cpu"  # JAX may make another GPU the current one
    large, many, exponents = (1 << 14, 3, (16,)) if options.quick else (LARGE, 15, (20, 25))
    print(f"| call on {large} keys | bare, ms | program, ms | ratio |\n|---|---|---|---|")
    for name, (bare, program) in compare_calls(device, place, large, 10, many).items():
        print(f"| {name} | {bare:.3f} | {program:.3f} | {program / bare:.3f} |")
    print(f"\n| call on {SMALL} keys | us |\n|---|---|")
    for name, time_us in small_calls(device, place, 20 if options.quick else 200, many).items():
        print(f"| {name} | {time_us:.2f} |")
    print("\n| unique, with inverse | distinct | jnp.unique, ms | gpuhash, ms | times faster |\n|---|---|---|---|---|")
    for exponent in exponents:
        for share in (64, 1):
            distinct = (1 << exponent) // share
            theirs, mine = compare_unique(place, 1 << exponent, distinct, 1 if exponent > 22 else 3)
            print(f"| 2^{exponent} keys | {distinct} | {theirs:.1f} | {mine:.1f} | {theirs / mine:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
