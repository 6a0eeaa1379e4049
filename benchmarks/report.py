"""What a run measured, and where."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

from .timing import Timing

PAIR = "8 + 8 B"
DISTINCT = "distinct"


@dataclass(frozen=True)
class Limit:
    """The rate that nothing can pass, per second."""

    name: str
    keys_per_second: float


@dataclass(frozen=True)
class Record:
    """One figure."""

    suite: str
    operation: str
    who: str  # "gpuhash" or a peer
    layout: str  # bytes of key and value
    keys: str  # how they are distributed in the batch
    pairs: int  # in the table
    batch: int  # keys per call
    load: float | None  # bytes of keys and values / all bytes of the table
    threads: int | None  # of the host
    seconds: float  # median per call
    seconds_fastest: float
    seconds_slowest: float
    keys_per_second: float
    limit: str | None = None
    limit_keys_per_second: float | None = None
    ratio: float | None = None  # of the limit, measured in the same run

    @property
    def case(self) -> tuple[object, ...]:
        """What peers have in common with the table: all but the load, which they do not choose, and threads."""
        return self.suite, self.operation, self.layout, self.keys, self.pairs, self.batch


@dataclass(frozen=True)
class Quantity:
    """A figure that is no rate."""

    suite: str
    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class Failure:
    """What could not be measured though it should have been."""

    suite: str
    step: str
    error: str


@dataclass
class Report:
    """All figures of one run, with what is needed to judge them."""

    device: str
    commit: str
    settings: dict[str, Any]
    versions: dict[str, str]
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))
    limits: dict[str, float] = field(default_factory=dict)  # per second: accesses, or bytes for copies
    records: list[Record] = field(default_factory=list)
    quantities: list[Quantity] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is missing, and why
    failures: list[Failure] = field(default_factory=list)

    def add(
        self,
        suite: str,
        operation: str,
        who: str,
        timing: Timing,
        *,
        pairs: int,
        batch: int,
        layout: str = PAIR,
        keys: str = DISTINCT,
        load: float | None = None,
        threads: int | None = None,
        limit: Limit | None = None,
    ) -> Record:
        """Take down one figure, and give it as it stands in the report."""
        rate = batch / timing.median
        record = Record(
            suite,
            operation,
            who,
            layout,
            keys,
            pairs,
            batch,
            load,
            threads,
            timing.median,
            timing.fastest,
            timing.slowest,
            rate,
            None if limit is None else limit.name,
            None if limit is None else limit.keys_per_second,
            None if limit is None else rate / limit.keys_per_second,
        )
        self.records.append(record)
        return record

    def quantity(self, suite: str, name: str, value: float, unit: str) -> None:
        self.quantities.append(Quantity(suite, name, value, unit))

    def note(self, text: str) -> None:
        """Take down what is missing, once."""
        if text not in self.notes:
            self.notes.append(text)

    def limit(self, name: str) -> Limit | None:
        """The limit of that name, None where it could not be measured."""
        rate = self.limits.get(name)
        return None if rate is None else Limit(name, rate)

    def suites(self) -> list[str]:
        """Those with figures, in the order of the run."""
        return list(dict.fromkeys(entry.suite for entry in [*self.records, *self.quantities]))


def limit_over(name: str, array_bytes: int) -> str:
    """The name of a limit that was measured over an array of so many bytes."""
    scale, unit = next(
        (scale, unit)
        for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))
        if array_bytes >= scale or scale == 1
    )
    return f"{name} over {array_bytes / scale:.4g} {unit}"


def limit_family(name: str) -> str:
    """The limit's name without the array."""
    return name.partition(" over ")[0]
