"""The table on a GPU, through the Python API with PyTorch's CUDA tensors, timed by events on the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.calls import KEYS, prepared
from benchmarks.limits import cuda_limits
from benchmarks.native import BuildError
from benchmarks.suite import CALLS, Group, NotHereError, Session, Suite

from . import apply, build, frames, graph, rows, sets, skew, tables
from .data import DataCache

try:
    import cupy
except ImportError:
    cupy = None

_LARGE_ARRAY = 4 << 30
_CACHED_ARRAY = 64 << 20
_SWEPT_KEYS = 1 << 26


def suites() -> dict[str, Suite]:
    """All of them by name, in the order in which they are run."""
    cache = DataCache()
    table, swept = tables.OPERATIONS, tables.SWEPT
    return {
        "table": Suite("one batch of all keys", table, partial(tables.table, cache=cache)),
        "batches": Suite("batches of 2^20 on a large table", table, partial(tables.batches, cache=cache)),
        "cache": Suite("a table in the L2 cache", tables.OF_CACHED, partial(tables.cached, cache=cache)),
        "build": Suite("whole tables at once", build.OPERATIONS, partial(build.build, cache=cache)),
        "growth": Suite("a growing table", build.GROWTH_OPERATIONS, partial(build.growth, cache=cache)),
        "apply": Suite("insert_or_apply with repeated keys", apply.OPERATIONS, apply.apply),
        "skew": Suite("small batches of known keys of which few come often", skew.OPERATIONS, skew.skew),
        "rows": Suite("rows as values", rows.OPERATIONS, rows.rows),
        "unique": Suite("unique, isin and factorize", sets.OPERATIONS, sets.sets),
        "unique-small": Suite("unique and isin of few keys, by the host's clock", sets.OF_FEW, sets.small_sets),
        "frames": Suite("groups, joins and takes", frames.OPERATIONS, frames.frames),
        "calls": Suite(f"host's time for calls on {KEYS} keys", (CALLS,), _calls),
        "sweep-load": Suite("rate against load", swept, partial(tables.sweep_load, cache=cache)),
        "sweep-batch": Suite("rate against batch size", swept, partial(tables.sweep_batch, cache=cache)),
        "sweep-size": Suite("rate against table size", swept, partial(tables.sweep_size, cache=cache)),
        # The last, as TensorFlow keeps the memory that it has taken.
        "graph": Suite(
            "inside tf.function, beside the table's own", graph.OPERATIONS, partial(graph.in_graphs, cache=cache)
        ),
    }


def _calls(session: Session) -> list[Group]:
    """Which frameworks are there, and so which calls, is found out when they are made."""

    def case(_: None) -> None:
        for framework, name, measure in prepared("cuda", 20 if session.quick else None):
            session.report.quantity("calls", f"{framework}: `{name}`", statistics.median(measure()), "us")

    return [Group(f"{KEYS} keys", nullcontext, {CALLS: case} if session.wants(CALLS) else {})]


def limits(session: Session, chosen: Collection[str]) -> list[Group]:
    """The limits of the memory that the chosen suites are compared with; measured before all else."""
    report = session.report
    capability = torch.cuda.get_device_capability()

    def measure(array_bytes: int, keys: int, names: dict[str, str], _: None) -> None:
        try:
            found = cuda_limits(array_bytes, keys, capability)
        except BuildError as error:
            raise NotHereError(str(error)) from error
        rates = {"L64": found.loads, "L128": found.wide_loads, "C64": found.swaps, "copy": found.copied_bytes}
        report.limits.update({name: rates[kind] for kind, name in names.items()})

    keys = 1 << (22 if session.quick else 27)
    cases: dict[str, Callable[[None], None]] = {
        "large array": partial(measure, _LARGE_ARRAY, keys, {name: name for name in ("L64", "L128", "C64", "copy")})
    }
    if "cache" in chosen:
        names = {"L64": "L64 in L2", "C64": "C64 in L2"}
        cases["array in L2"] = partial(measure, _CACHED_ARRAY, keys, names)
    if "sweep-size" in chosen:
        for pairs in tables.swept_sizes(session.quick):
            names = tables.size_limit_names(pairs)
            cases[f"{pairs * 32} bytes"] = partial(measure, pairs * 32, min(keys, _SWEPT_KEYS), names)
    return [Group("of the memory", nullcontext, cases)]


def free_memory() -> None:
    """What the frameworks' allocators keep goes back to the device."""
    torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
