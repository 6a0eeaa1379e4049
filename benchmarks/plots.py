"""Plots of the sweeps in a report: rate against load, batch size and table size, with the limits as lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .markdown import OURS
from .report import Record, Report, limit_family

_PAIR_BYTES = 16
_COLOURS = {
    "find present": "tab:blue",
    "find absent": "tab:cyan",
    "insert": "tab:red",
    "insert_or_assign": "tab:orange",
    "erase": "tab:green",
}
_LIMIT_COLOURS = ("black", "dimgray", "darkgray", "silver")


class NoMatplotlibError(RuntimeError):
    """Plots need matplotlib, which is not installed."""


@dataclass(frozen=True)
class _Axis:
    label: str
    of: Callable[[Record], float]
    log: bool


_SWEEPS = {
    "sweep-load": _Axis("load: bytes of keys and values / bytes of the table", lambda r: r.load or 0, False),
    "sweep-batch": _Axis("keys per call", lambda r: r.batch, True),
    "sweep-size": _Axis("bytes of the table", lambda r: r.pairs * _PAIR_BYTES / (r.load or 1), True),
}


def draw(report: Report, folder: Path, name: str) -> list[Path]:
    """Writes ``name``-load.png and its kin for the sweeps that the report has. NoMatplotlibError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlibError("matplotlib is not installed") from error
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suite, axis in _SWEEPS.items():
        records = [record for record in report.records if record.suite == suite and record.who == OURS]
        if not records:
            continue
        figure = Figure(figsize=(8, 5), layout="constrained")
        FigureCanvasAgg(figure)
        _fill(figure.add_subplot(), records, axis, report)
        path = folder / f"{name}-{suite.removeprefix('sweep-')}.png"
        figure.savefig(path, dpi=120)
        paths.append(path)
    return paths


def _fill(axes: Any, records: list[Record], axis: _Axis, report: Report) -> None:
    """A line for each operation and number of threads, a dashed one for each limit."""
    scale, unit = (1e9, "10^9") if report.settings.get("device") == "cuda" else (1e6, "10^6")
    several_threads = len({record.threads for record in records}) > 1
    lines: dict[tuple[str, int | None], list[tuple[float, float]]] = {}
    limits: dict[str, dict[float, float]] = {}
    for record in records:
        lines.setdefault((record.operation, record.threads), []).append((axis.of(record), record.keys_per_second))
        if record.limit is not None and record.limit_keys_per_second is not None:
            limits.setdefault(limit_family(record.limit), {})[axis.of(record)] = record.limit_keys_per_second
    for (operation, threads), points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        few = several_threads and threads == 1
        axes.plot(
            x,
            [rate / scale for rate in y],
            color=_COLOURS.get(operation),
            linestyle=":" if few else "-",
            marker="o",
            markersize=3,
            label=operation if not several_threads else f"{operation}, {threads} thread{'' if threads == 1 else 's'}",
        )
    for (name, limit), colour in zip(limits.items(), _LIMIT_COLOURS * len(limits), strict=False):
        x, y = zip(*sorted(limit.items()), strict=True)
        axes.plot(x, [rate / scale for rate in y], color=colour, linestyle="--", linewidth=1, label=f"limit: {name}")
    if axis.log:
        axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(axis.label)
    axes.set_ylabel(f"{unit} keys per second")
    pairs = {record.pairs for record in records}
    of_size = f", {next(iter(pairs)):,} pairs" if len(pairs) == 1 else ""
    axes.set_title(f"{report.device}{of_size}, {records[0].layout}, {report.date}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
