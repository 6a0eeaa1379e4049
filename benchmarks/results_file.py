"""The newest figures of one kind of machine, in one file: what docs/performance.md is made of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .report import Quantity, Record, Report

RESULTS = Path(__file__).parent / "results"
_DIGITS = 5
_SAME_IN_BOTH = ("suite", "operation", "who", "layout", "keys", "pairs", "batch", "load", "threads")


@dataclass(frozen=True)
class Measurement:
    """One run: when, of what, and what its memory allowed."""

    date: str
    commit: str
    program: str = "python -m benchmarks"
    versions: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)  # per second: accesses, or bytes for copies
    note: str = ""


@dataclass
class Results:
    """Figures of one kind of machine, each beside the run that measured it."""

    machine: str
    device: str  # "cpu" or "cuda"
    records: list[tuple[Measurement, Record]] = field(default_factory=list)
    quantities: list[tuple[Measurement, Quantity]] = field(default_factory=list)

    def runs(self) -> list[Measurement]:
        """All runs that still have a figure here, the oldest first."""
        entries: list[tuple[Measurement, Any]] = [*self.records, *self.quantities]
        different: list[Measurement] = []
        for run, _ in entries:
            if run not in different:
                different.append(run)
        return sorted(different, key=lambda run: (run.date, run.commit))

    def merge(self, report: Report) -> None:
        """Take in a newer report. It replaces its cases as a whole, so that ratios stay within one run."""
        run = Measurement(report.date, report.commit, versions=report.versions, limits=report.limits)
        measured = {_case(record) for record in report.records}
        named = {(quantity.suite, quantity.name) for quantity in report.quantities}
        self.records = [entry for entry in self.records if _case(entry[1]) not in measured]
        self.quantities = [entry for entry in self.quantities if (entry[1].suite, entry[1].name) not in named]
        self.records += [(run, record) for record in report.records]
        self.quantities += [(run, quantity) for quantity in report.quantities]


def _case(record: Record) -> tuple[object, ...]:
    """What is measured together: all loads, threads and peers. How many keys are distinct is no choice in `unique`."""
    pairs = None if record.suite.startswith("unique") else record.pairs
    return record.suite, record.operation, record.layout, record.keys, pairs, record.batch


def read(path: Path) -> Results:
    """The file of one kind of machine. ValueError where it is none."""
    try:
        contents = json.loads(path.read_text())
        runs = [Measurement(**run) for run in contents["runs"]]
        records = [(runs[row.pop("run")], _record(row)) for row in contents["records"]]
        quantities = [(runs[row.pop("run")], Quantity(**row)) for row in contents["quantities"]]
        return Results(contents["machine"], contents["device"], records, quantities)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no results of one kind of machine: {error}") from error


def write(results: Results, path: Path) -> None:
    """One line for each figure, so that a new run is a short difference."""
    runs = results.runs()
    records = [{"run": runs.index(run), **_row(record)} for run, record in results.records]
    quantities = [{"run": runs.index(run), **asdict(quantity)} for run, quantity in results.quantities]
    lists = {"runs": [asdict(run) for run in runs], "records": records, "quantities": quantities}
    parts = [f'"machine": {json.dumps(results.machine)}', f'"device": {json.dumps(results.device)}']
    for name, rows in lists.items():
        lines = ",\n".join(json.dumps(row) for row in rows)
        parts.append(f'"{name}": [\n{lines}\n]' if rows else f'"{name}": []')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _row(record: Record) -> dict[str, Any]:
    """What cannot be computed, with as many digits as mean something."""
    row = {name: getattr(record, name) for name in _SAME_IN_BOTH}
    row["seconds"] = [_rounded(s) for s in (record.seconds, record.seconds_fastest, record.seconds_slowest)]
    row["limit"] = record.limit
    row["limit_keys_per_second"] = _rounded(record.limit_keys_per_second)
    row["load"] = _rounded(record.load)
    return {name: value for name, value in row.items() if value is not None}


def _record(row: dict[str, Any]) -> Record:
    median, fastest, slowest = row["seconds"]
    rate = row["batch"] / median
    limit = row.get("limit_keys_per_second")
    return Record(
        **{name: row.get(name) for name in _SAME_IN_BOTH},
        seconds=median,
        seconds_fastest=fastest,
        seconds_slowest=slowest,
        keys_per_second=rate,
        limit=row.get("limit"),
        limit_keys_per_second=limit,
        ratio=None if limit is None else rate / limit,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
