"""Suites of measurements, and how they are run: whatever fails is taken down, and the rest goes on."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

from .progress import Progress
from .report import Failure, Report
from .time_limit import TooLongError, time_limit
from .timing import Action, nothing

CALLS = "calls"  # the operation of the suites that measure the host's part of a call


class NotHereError(Exception):
    """Cannot be measured here, for a reason that is no fault: what is not installed, or too large."""


def need_module(name: str) -> Any:
    """The module; NotHereError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise NotHereError(f"{name} is not installed") from None


@dataclass(frozen=True)
class Group:
    """Measurements that share what takes long to make: arrays, a filled table, whose results were checked."""

    label: str
    make: Callable[[], AbstractContextManager[Any]]
    cases: Mapping[str, Callable[[Any], None]]  # by label; each adds to the report


@dataclass
class Session:
    """What was asked for, and what is known so far."""

    report: Report
    quick: bool
    operations: Collection[str] | None = None  # None: all
    threads: tuple[int, ...] = (1, 2)  # of the host
    cleanup: Callable[[], None] = field(default=lambda: None)  # gives memory back between groups
    step_limit: float = 300  # seconds; no step of those that are there takes a third of it
    grace: float = 60  # seconds after which a step that does not end is left, and the run with it

    def wants(self, operation: str) -> bool:
        return self.operations is None or operation in self.operations

    def trouble(self, suite: str, step: str, error: BaseException) -> None:
        """Take down why something was not measured: as a note where that is no fault, otherwise as a failure."""
        if isinstance(error, NotHereError):
            self.report.note(f"{suite}: {error}")
            return
        text = "".join(traceback.format_exception(error))
        self.report.failures.append(Failure(suite, step, f"{type(error).__name__}: {error}\n{text}"))
        print(f"\nfailed: {suite}, {step}\n{text}", file=sys.stderr)

    def wanted(self, operations: Iterable[str]) -> list[str]:
        return [operation for operation in operations if self.wants(operation)]


@dataclass(frozen=True)
class Suite:
    """Part of the benchmark."""

    summary: str
    operations: tuple[str, ...]
    groups: Callable[[Session], list[Group]]


def run(
    session: Session,
    suites: Mapping[str, Suite],
    finished: Callable[[str], None],
    keep: Action = nothing,
) -> None:
    """Runs the suites one after the other, and calls ``finished(name)`` after each, also where parts of it failed.

    On the main thread. A step that takes longer than it may has failed; where it does not end at all, ``finished`` is
    called, and the process exits with 1. ``keep()`` is called after every group, and then, too, so that whatever ends
    the process takes little with it.
    """

    def abandon(name: str) -> None:
        finished(name)
        keep()

    planned = {name: _plan(session, name, suite) for name, suite in suites.items()}
    progress = Progress(sum(1 + len(group.cases) for groups in planned.values() for group in groups))
    for name, groups in planned.items():
        for group in groups:
            _run_group(session, name, group, progress, abandon)
            gc.collect()
            session.cleanup()
            keep()
        progress.clear()
        finished(name)
    progress.finish()


def _plan(session: Session, name: str, suite: Suite) -> list[Group]:
    try:
        return [group for group in suite.groups(session) if group.cases]
    except Exception as error:
        session.trouble(name, "planning", error)
        return []


def _run_group(session: Session, name: str, group: Group, progress: Progress, abandon: Callable[[str], None]) -> None:
    def limited(label: str) -> AbstractContextManager[None]:
        def give_up() -> None:
            """Of a step that does not end: what was measured is kept, and the process ends."""
            session.trouble(name, label, TooLongError("it did not end, and nothing was measured after it"))
            abandon(name)
            sys.stdout.flush()
            os._exit(1)

        return time_limit(session.step_limit, session.grace, give_up)

    progress.step(f"{name}: {group.label}")
    done = 0
    try:
        with ExitStack() as kept:
            with limited(group.label):
                made = kept.enter_context(group.make())
            for label, case in group.cases.items():
                progress.step(f"{name}: {group.label}: {label}")
                done += 1
                try:
                    with limited(f"{group.label}: {label}"):
                        case(made)
                except Exception as error:
                    session.trouble(name, f"{group.label}: {label}", error)
    except Exception as error:
        session.trouble(name, group.label, error)
    progress.skip(len(group.cases) - done)
