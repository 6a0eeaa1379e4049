"""A report as Markdown: one table for each suite, of gpuhash's figures beside limits and peers."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import Record, Report, limit_family

OURS = "gpuhash"
_REFERENCES = {"H200": Path(__file__).parent / "peers_h200.csv"}  # by a word in the name of the device


@dataclass(frozen=True)
class Reference:
    """A peer's figure from another day, which the run could not measure."""

    who: str
    keys_per_second: float


def references(device: str) -> dict[tuple[object, ...], Reference]:
    """By suite, operation, layout, pairs, batch and load; empty for devices that none are known of."""
    for word, path in _REFERENCES.items():
        if word in device:
            lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
            return {
                (
                    row["suite"],
                    row["operation"],
                    row["layout"],
                    int(row["pairs"]),
                    int(row["batch"]),
                    float(row["load"]) if row["load"] else None,
                ): Reference(row["who"], float(row["giga_per_second"]) * 1e9)
                for row in csv.DictReader(lines)
            }
    return {}


def _reference(known: dict[tuple[object, ...], Reference], record: Record) -> Reference | None:
    """That of the record's load, or else the one for which no load is known."""
    case = record.suite, record.operation, record.layout, record.pairs, record.batch
    load = None if record.load is None else round(record.load, 2)
    return known.get((*case, load)) or known.get((*case, None))


def markdown(report: Report) -> str:
    """The whole report."""
    sections = [head(report), limits(report), *(section(report, suite) for suite in report.suites()), tail(report)]
    return "\n".join(part for part in sections if part)


def head(report: Report) -> str:
    """The machine and the versions."""
    lines = [f"# {report.device}, {report.date}", "", f"commit {report.commit}; {_listed(report.versions)}", ""]
    return "\n".join([*lines, f"settings: {_listed(report.settings)}", ""])


def limits(report: Report) -> str:
    """What the memory allows, as measured in this run."""
    if not report.limits:
        return ""
    unit = _Unit(report)
    lines = ["| limit of this run | per second |", "|---|---|"]
    lines += [
        f"| {name} | {rate / 1e12:.2f} TB |" if name.startswith("copy") else f"| {name} | {unit.limit(rate)} |"
        for name, rate in report.limits.items()
    ]
    return "\n".join([*lines, ""])


def section(report: Report, suite: str) -> str:
    """The figures of one suite."""
    records = [record for record in report.records if record.suite == suite]
    lines = [f"## {suite}", ""]
    if suite in SWEPT_COLUMNS and records:
        lines += _sweep(records, SWEPT_COLUMNS[suite], _Unit(report))
    elif records:
        lines += _table(records, _Unit(report), references(report.device))
    for quantity in report.quantities:
        if quantity.suite == suite:
            lines.append(f"* {quantity.name}: {quantity.value:.3g} {quantity.unit}")
    return "\n".join(lines) + "\n"


def tail(report: Report) -> str:
    """What is missing, and what went wrong."""
    lines = []
    if report.notes:
        lines += ["## Not measured", "", *(f"* {note}" for note in report.notes), ""]
    if report.failures:
        lines += ["## Failed", ""]
        lines += [f"* {f.suite}, {f.step}: {_first_line(f.error)}" for f in report.failures]
        lines.append("")
    return "\n".join(lines)


class _Unit:
    """10^9 keys per second on GPUs, 10^6 on hosts."""

    def __init__(self, report: Report) -> None:
        self.scale, self.name = (1e9, "G/s") if report.settings.get("device") == "cuda" else (1e6, "M/s")

    def rate(self, keys_per_second: float) -> str:
        return f"{keys_per_second / self.scale:.3g}"

    def limit(self, per_second: float) -> str:
        return f"{per_second / self.scale:.4g} {self.name[0]}"


Cell = Callable[[Record], str]
_DIMENSIONS: dict[str, Cell] = {
    "key + value": lambda record: record.layout,
    "keys": lambda record: record.keys,
    "pairs": lambda record: count(record.pairs),
    "batch": lambda record: count(record.batch),
    "load": lambda record: "" if record.load is None else f"{record.load:.2f}",
    "threads": lambda record: "" if record.threads is None else str(record.threads),
}


SWEPT_COLUMNS = {"sweep-load": "load", "sweep-batch": "batch", "sweep-size": "pairs"}


def _sweep(records: list[Record], swept: str, unit: _Unit) -> list[str]:
    """A row for each point, a column for each operation, and for each limit."""
    operations = list(dict.fromkeys(record.operation for record in records))
    names = list(dict.fromkeys(_short(record.limit) for record in records if record.limit is not None))
    varying = [swept, *(["threads"] if len({record.threads for record in records}) > 1 else [])]
    points: dict[tuple[str, ...], dict[str, str]] = {}
    for record in records:
        cells = points.setdefault(tuple(_DIMENSIONS[name](record) for name in varying), {})
        cells[record.operation] = unit.rate(record.keys_per_second)
        if record.limit_keys_per_second is not None:
            cells[f"limit {_short(record.limit)}"] = unit.rate(record.limit_keys_per_second)
    columns = [*operations, *(f"limit {name}" for name in names)]
    header = [*varying, *columns]
    rows = [table_row([*point, *(cells.get(column, "") for column in columns)]) for point, cells in points.items()]
    return [f"{unit.name}:", "", table_row(header), table_row("---" for _ in header), *rows, ""]


def _table(records: list[Record], unit: _Unit, known: dict[tuple[object, ...], Reference]) -> list[str]:
    """Rows are gpuhash's figures (a peer's, where gpuhash has none); what is the same in all rows is said once."""
    peers = list(dict.fromkeys(_peer(record) for record in records if record.who != OURS))
    ours = [record for record in records if record.who == OURS]
    measured = {record.case for record in ours}
    alone = {record.case: record for record in records if record.case not in measured}
    rows = [*ours, *alone.values()]
    varying = {name: cell for name, cell in _DIMENSIONS.items() if len({cell(row) for row in rows}) > 1}
    fixed = [f"{name} {cell(rows[0])}" for name, cell in _DIMENSIONS.items() if name not in varying and cell(rows[0])]
    with_limits = any(row.ratio is not None for row in rows)
    with_references = any(_reference(known, row) is not None for row in ours)

    header = ["operation", *varying, f"{OURS}, {unit.name}"]
    header += ["of the limit"] if with_limits else []
    header += [f"{peer} (times)" for peer in peers]
    header += ["best native peer, another day (times)"] if with_references else []
    lines = [table_row(header), table_row("---" for _ in header)]
    for row in rows:
        mine = row.keys_per_second if row.who == OURS else None
        cells = [row.operation, *(cell(row) for cell in varying.values()), "" if mine is None else unit.rate(mine)]
        if with_limits:
            cells.append("" if row.ratio is None or mine is None else f"{row.ratio:.2f} {_short(row.limit)}")
        for peer in peers:
            other = _nearest(records, row, peer)
            cells.append("" if other is None else unit.rate(other.keys_per_second) + _times(mine, other))
        if with_references:
            reference = _reference(known, row)
            cells.append(
                ""
                if reference is None
                else f"{reference.who} {unit.rate(reference.keys_per_second)}{_times(mine, reference)}"
            )
        lines.append(table_row(cells))
    return [*([", ".join(fixed), ""] if fixed else []), *lines, ""]


def _nearest(records: list[Record], row: Record, peer: str) -> Record | None:
    """The peer's figure for the same case; of several the one of the same contest, which comes soon after."""
    here = records.index(row)
    found = [i for i, record in enumerate(records) if record.case == row.case and _peer(record) == peer]
    return records[min(found, key=lambda i: (abs(i - here), -i))] if found else None


def _peer(record: Record) -> str:
    if record.threads is None:
        return record.who
    return f"{record.who}, {record.threads} thread{'' if record.threads == 1 else 's'}"


def _short(limit: str | None) -> str:
    """The limit's name without threads and array, which the row tells."""
    return "" if limit is None else limit_family(limit).partition(",")[0]


def _times(mine: float | None, other: Record | Reference) -> str:
    return "" if mine is None else f" ({mine / other.keys_per_second:.2f})"


def table_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _listed(pairs: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in pairs.items())


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"


def count(n: int) -> str:
    """Powers of two as such."""
    return f"2^{n.bit_length() - 1}" if n > 0 and n & (n - 1) == 0 else str(n)
