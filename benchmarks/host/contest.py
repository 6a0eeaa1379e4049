"""Contenders take turns, each in a process of its own, so that a noisy machine disturbs all alike."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import gpuhash
from benchmarks.machine import cores
from benchmarks.suite import NotHereError
from benchmarks.timing import Action, Timing, nothing

_FORK = multiprocessing.get_context("fork")  # so that all see the keys without copying them
_CORES = cores()


@dataclass(frozen=True)
class Job:
    """What is timed, and what has to be done before each time."""

    action: Action
    before: Action = nothing
    seconds: Callable[[], float] | None = None  # for actions that measure themselves
    threads: int | None = None  # where they are not the entry's


@dataclass(frozen=True)
class Ready:
    """A contender whose results were checked."""

    jobs: Mapping[str, Job]
    load: float | None = None  # of its table


@dataclass(frozen=True)
class Entry:
    """Who takes part, how many threads it has, and what makes it ready, in its own process."""

    who: str
    threads: int
    make: Callable[[], Ready]


@dataclass(frozen=True)
class Effort:
    """How often to measure. Of each turn's runs the median counts, and of the turns the median of these."""

    turns: int
    runs: int = 1
    warm_up: int = 0  # runs of each turn that do not count: they fill the caches


class ContenderError(RuntimeError):
    """A contender failed; the message has its traceback."""


class ContenderLostError(ContenderError):
    """A contender's process ended before it was told to."""


class Contender:
    """An entry at work in its process."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._connection, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(entry, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.load: float | None = None
        self.jobs: tuple[str, ...] = ()

    def wait_until_ready(self) -> None:
        """ContenderError where it failed; NotHereError where it cannot take part here."""
        self.load, self.jobs = self._receive()

    def seconds(self, job: str, effort: Effort) -> float:
        """One turn."""
        self._connection.send((job, effort))
        return float(self._receive())

    def _receive(self) -> Any:
        try:
            kind, content = self._connection.recv()
        except EOFError:
            self._process.join()
            raise ContenderLostError(
                f"{self.entry.who}: its process ended with exit code {self._process.exitcode}"
            ) from None
        if kind == "not here":
            raise NotHereError(content)
        if kind == "failed":
            raise ContenderError(f"{self.entry.who}: {content}")
        return content

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()


def _serve(entry: Entry, connection: Connection) -> None:
    """What a contender's process does: makes the entry ready, then takes turns until it is told to end."""
    gpuhash.set_num_threads(entry.threads)
    try:
        ready = entry.make()
    except NotHereError as error:
        connection.send(("not here", str(error)))
        return
    except Exception as error:
        connection.send(("failed", f"{error}\n{traceback.format_exc()}"))
        return
    connection.send(("ready", (ready.load, tuple(ready.jobs))))
    while True:
        try:
            name, effort = connection.recv()
        except EOFError:
            return
        try:
            job = ready.jobs[name]
            _take_cores(entry.threads if job.threads is None else job.threads)
            connection.send(("seconds", _turn(job, effort)))
        except Exception as error:
            connection.send(("failed", f"{error}\n{traceback.format_exc()}"))


def _take_cores(threads: int) -> None:
    """All that has one thread runs on the same core: two cores of a virtual machine are not equally fast at a time, as
    each may share its own with other machines' work.
    """
    if _CORES:
        os.sched_setaffinity(0, {min(_CORES)} if threads == 1 else _CORES)


def _turn(job: Job, effort: Effort) -> float:
    seconds = []
    for run in range(effort.warm_up + effort.runs):
        job.before()
        if job.seconds is not None:
            elapsed = job.seconds()
        else:
            start = time.perf_counter()
            job.action()
            elapsed = time.perf_counter() - start
        if run >= effort.warm_up:
            seconds.append(elapsed)
    return Timing.of(seconds).median


Turn = tuple[Contender, str]  # a contender and one of its jobs
Trouble = Callable[[Exception], None]


class Contest:
    """Contenders that are ready, to be closed in the end. What keeps one from taking part is told to ``trouble``."""

    def __init__(self, entries: Sequence[Entry], trouble: Trouble) -> None:
        self.contenders: list[Contender] = []
        self._trouble = trouble
        try:
            for entry in entries:
                contender = Contender(entry)
                self.contenders.append(contender)
                try:
                    contender.wait_until_ready()  # one after the other: they would slow each other down
                except (NotHereError, ContenderError) as error:
                    trouble(error)
        except BaseException:
            self.close()
            raise

    def measure(self, jobs: Sequence[str], effort: Effort) -> dict[Turn, Timing]:
        """Times of everyone who has any of the jobs."""
        turns = [(contender, job) for contender in self.contenders for job in jobs if job in contender.jobs]
        seconds: dict[Turn, list[float]] = {turn: [] for turn in turns}
        for round_ in range(effort.turns):
            for turn in turns if round_ % 2 == 0 else reversed(turns):
                if turn not in seconds:
                    continue
                contender, job = turn
                try:
                    seconds[turn].append(contender.seconds(job, effort))
                except ContenderError as error:
                    del seconds[turn]
                    if isinstance(error, ContenderLostError):
                        self._drop(contender, seconds)
                    self._trouble(error)
        return {turn: Timing.of(taken) for turn, taken in seconds.items()}

    def _drop(self, contender: Contender, seconds: dict[Turn, list[float]]) -> None:
        """It takes no further part, in nothing."""
        contender.close()
        self.contenders.remove(contender)
        for turn in [turn for turn in seconds if turn[0] is contender]:
            del seconds[turn]

    def close(self) -> None:
        for contender in self.contenders:
            contender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
