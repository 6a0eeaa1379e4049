"""How long one call took, of several runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
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
