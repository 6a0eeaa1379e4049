"""The table on the host, beside boost, pandas, TensorFlow, NumPy and dict.

Every contender has a process of its own, forked from this one, which therefore never imports gpuhash: how many threads
it uses is settled when it is imported.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from functools import partial

from benchmarks.native import BuildError, host_library
from benchmarks.suite import CALLS, Group, NotHereError, Session, Suite

from . import sets
from . import suites as parts
from .contenders import COUNT


def suites() -> dict[str, Suite]:
    """All of them by name, in the order in which they are run."""
    return {
        "table": Suite("one batch of all keys, beside boost", parts.OPERATIONS, parts.table),
        "peers": Suite("beside Python packages", (*parts.OPERATIONS, COUNT), parts.peers),
        "unique": Suite("unique, isin and factorize", sets.OPERATIONS, parts.unique),
        "calls": Suite("time for calls on few keys", (CALLS,), parts.calls),
        "sweep-load": Suite("rate against load", parts.SWEPT, parts.sweep_load),
        "sweep-batch": Suite("rate against batch size", parts.SWEPT, parts.sweep_batch),
        "sweep-size": Suite("rate against table size", parts.SWEPT, parts.sweep_size),
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
