"""The table on the host, beside boost, pandas, TensorFlow, NumPy and dict.

Every contender has a process of its own, forked from this one, which therefore never imports gpuhash: how many threads
it uses is chosen when it is imported.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from functools import partial

from benchmarks.native import BuildError, host_library
from benchmarks.suite import CALLS, Group, NotHereError, Session, Suite

from . import graph, plans, sets
from .contenders import COUNT


def suites() -> dict[str, Suite]:
    """All of them by name, in the order in which they are run."""
    return {
        "table": Suite("one batch of all keys, beside boost", plans.OPERATIONS, plans.table),
        "peers": Suite("beside Python packages", (*plans.OPERATIONS, COUNT), plans.peers),
        "graph": Suite("inside tf.function, beside TensorFlow's tables", graph.OPERATIONS, plans.in_graphs),
        "unique": Suite("unique, isin and factorize", sets.OPERATIONS, plans.unique),
        "unique-large": Suite("the same of 2^26 keys", sets.COMPARED, plans.unique_of_most),
        "calls": Suite("time for calls on few keys", (CALLS,), plans.calls),
        "sweep-load": Suite("rate against load", plans.SWEPT, plans.sweep_load),
        "sweep-batch": Suite("rate against batch size", plans.SWEPT, plans.sweep_batch),
        "sweep-size": Suite("rate against table size", plans.SWEPT, plans.sweep_size),
    }


def limits(session: Session, chosen: Collection[str]) -> list[Group]:
    """Builds what measures them and boost; they are measured by turns with the tables."""

    def build(name: str, _: None) -> None:
        try:
            host_library(name)
        except BuildError as error:
            raise NotHereError(str(error)) from error

    cases = {name: partial(build, name) for name in ("limits", "peers")}
    return [Group("programs of the limits and of boost", nullcontext, cases)]


def free_memory() -> None:
    """Nothing is kept here: every contender's memory goes with its process."""
