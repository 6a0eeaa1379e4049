"""How long one call took, of several runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Action = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call."""

    median: float
    fastest: float
    slowest: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        return cls(statistics.median(seconds), min(seconds), max(seconds))


def nothing() -> None:
    """The preparation of runs that need none."""


class WrongResultError(AssertionError):
    """What is to be timed gives wrong results."""


def expect(holds: object, what: str) -> None:
    """Raises where a result is wrong: nothing is timed that does not work."""
    if not bool(holds):
        raise WrongResultError(f"wrong result: {what}")


def milliseconds_in_turns(
    calls: Mapping[str, Action], prepare: Action, synchronize: Action, rounds: int, repetitions: int
) -> dict[str, float]:
    """Of each call the median over repetitions of the mean of their rounds, with one wait for the device at the end."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repetition in range(repetitions + 1):
        for name, call in calls.items():
            prepare()
            synchronize()
            start = time.perf_counter()
            for _ in range(rounds):
                call()
            synchronize()
            if repetition:  # the first warms up
                times[name].append((time.perf_counter() - start) / rounds * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def milliseconds(call: Action, synchronize: Action, rounds: int, repetitions: int) -> float:
    """The same of one call."""
    return milliseconds_in_turns({"": call}, nothing, synchronize, rounds, repetitions)[""]
