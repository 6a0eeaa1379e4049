"""The tables of docs/performance.md, made of benchmarks/results/: one file for each kind of machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .markdown import OURS, count, table_row
from .report import Record
from .results_file import RESULTS, Measurement, Results, read

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
_MARKED = re.compile(r"(?P<begin><!-- table (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL)

Machines = dict[str, Results]
Cells = dict[tuple[tuple[str, ...], str], str]
_OPERATIONS = ("find present", "find absent", "insert", "insert_or_assign", "erase")
_KEYS = ("distinct", "1/16 distinct", "1000 distinct", "Zipf 1.05", "sequential", "n-grams")


def machines() -> Machines:
    """All files of results, by their names without .json."""
    return {path.stem: read(path) for path in sorted(RESULTS.glob("*.json"), reverse=True)}


def updated(text: str, known: Machines) -> str:
    """The page with every table between its markers made anew. ValueError for a table that there is no recipe for."""

    def table(marked: re.Match[str]) -> str:
        if marked["name"] not in TABLES:
            raise ValueError(f"no table {marked['name']}; known: {', '.join(TABLES)}")
        return marked["begin"] + "\n".join(["", *TABLES[marked["name"]](known), ""]) + "\n" + marked["end"]

    return _MARKED.sub(table, text)


# Layout --------------------------------------------------------------------------------------------------------------


def _grid(corner: Sequence[str], cells: Cells, columns: Sequence[str] | None = None) -> list[str]:
    """Rows and columns in the order in which they first come, or these columns."""
    columns = list(dict.fromkeys(column for _, column in cells)) if columns is None else columns
    rows = list(dict.fromkeys(name for name, _ in cells))
    lines = [[*name, *(cells.get((name, column), "") for column in columns)] for name in rows]
    return [table_row([*corner, *columns]), table_row("---" for _ in [*corner, *columns]), *map(table_row, lines)]


def _giga(rate: float) -> str:
    return f"{rate / 1e9:.3g}"


def _mega(rate: float) -> str:
    return f"{rate / 1e6:.3g}"


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _load(record: Record) -> str:
    return "" if record.load is None else f"{record.load:.2f}"


def _limit(record: Record) -> str:
    if record.ratio is None or record.limit is None:
        return ""
    return f" ({record.ratio:.2f} {record.limit.partition(',')[0].removesuffix(' in L2')})"


def _quantities(results: Results, suite: str) -> dict[str, float]:
    return {quantity.name: quantity.value for _, quantity in results.quantities if quantity.suite == suite}


def _of(results: Results, *suites: str) -> list[tuple[Measurement, Record]]:
    return [(run, record) for run, record in results.records if record.suite in suites]


def _peer_times(entries: Sequence[tuple[Measurement, Record]], ours: Record, run: Measurement, who: str) -> str:
    """How many times as fast as the peer in the same run, which may have had one thread alone."""
    records = [record for other, record in entries if other == run]
    here = records.index(ours)
    found = [i for i, record in enumerate(records) if record.who == who and record.case == ours.case]
    if not found:
        return ""
    nearest = records[min(found, key=lambda i: (abs(i - here), -i))]  # of several that of the same contest
    times = ours.keys_per_second / nearest.keys_per_second
    return f"{times:.0f}" if times >= 99.5 else f"{times:.2g}"


# GPUs ----------------------------------------------------------------------------------------------------------------


def _runs(known: Machines) -> list[str]:
    lines = [
        table_row(["machine", "date", "commit", "measured by", "limits, 10^9 a second", "copy, TB/s"]),
        table_row(["---"] * 6),
    ]
    for results in known.values():
        for run in results.runs():
            limits = [f"{name} {rate / 1e9:.3g}" for name, rate in run.limits.items() if name in _TOLD_LIMITS]
            copy = f"{run.limits['copy'] / 1e12:.3g}" if "copy" in run.limits else ""
            by = f"`{run.program}`" if run.program.startswith("python") else run.program
            lines.append(table_row([results.machine, run.date, run.commit, by, ", ".join(limits), copy]))
    return list(dict.fromkeys(lines))


_TOLD_LIMITS = ("L64", "L128", "C64", "L64 in L2", "C64 in L2", "L64, 1 thread over 2 GiB", "L64, 2 threads over 2 GiB")
_SUITES = {"table": "2^27 keys", "batches": "2^20 keys", "cache": "2^20 keys, in L2"}
_PAIR = "8 + 8 B"


def _gpu_loads(known: Machines, *, machine: str) -> list[str]:
    cells: Cells = {}
    for _, record in _of(known[machine], *_SUITES):
        if record.who == OURS and record.layout == _PAIR and "call after call" not in record.operation:
            name = (_SUITES[record.suite], record.operation)
            cells[name, _load(record)] = _giga(record.keys_per_second) + _limit(record)
    return _grid(["a call on", "operation"], cells)


def _gpu_layouts(known: Machines, *, machine: str) -> list[str]:
    cells: Cells = {}
    for _, record in _of(known[machine], "table"):
        if record.who == OURS and record.layout != _PAIR:
            name = (record.layout, _load(record))
            cells[name, record.operation] = _giga(record.keys_per_second) + _limit(record)
    return _grid(["key + value", "load"], cells, [*_OPERATIONS])


def _gpu_peers(known: Machines) -> list[str]:
    """The best of each library, which counts slots alone as its load."""
    entries = _of(known["cuda-nvidia-h200"], *_SUITES)
    best: dict[tuple[str, str, str, str], float] = {}
    for _, record in entries:
        who = record.who.partition(" ")[0]
        if record.layout == _PAIR and who in (OURS, "cccl", "cuco") and record.operation in _OPERATIONS:
            key = (_SUITES[record.suite], record.operation, _load(record), who)
            best[key] = max(best.get(key, 0.0), record.keys_per_second)
    cells: Cells = {}
    for suite, operation, load, who in best:
        if who == OURS:
            rates = [best.get((suite, operation, load, other)) for other in (OURS, "cccl", "cuco")]
            cells[(suite, operation), load] = " / ".join("" if rate is None else _giga(rate) for rate in rates)
    return _grid(["a call on", "operation"], cells)


def _gpu_rows(known: Machines, *, machine: str) -> list[str]:
    entries = _of(known[machine], "rows")
    cells: Cells = {}
    for run, record in entries:
        if record.who == OURS:
            times = [_peer_times(entries, record, run, peer) for peer in ("torch.index_select", "torch.index_copy")]
            beside = "".join(f"; {text} times torch" for text in times if text)
            cells[(record.operation,), record.layout] = _giga(record.keys_per_second) + _limit(record) + beside
    return _grid(["operation"], cells)


def _gpu_skew(known: Machines, *, machine: str) -> list[str]:
    cells: Cells = {}
    for _, record in _of(known[machine], "skew"):
        cells[(record.operation,), record.keys] = _giga(record.keys_per_second)
    return _grid(["operation"], cells)


def _gpu_apply(known: Machines, *, machine: str) -> list[str]:
    entries = _of(known[machine], "apply")
    cells: Cells = {}
    for run, record in entries:
        if record.who == OURS and record.operation.startswith("insert_or_apply"):
            cells[("10^9 keys a second",), record.keys] = _giga(record.keys_per_second)
            cells[("times `torch.unique` and `index_add`",), record.keys] = _peer_times(
                entries, record, run, "torch unique, index_add"
            )
    return _grid([""], cells)


def _gpu_build(known: Machines) -> list[str]:
    cells: Cells = {}
    for machine in ("cuda-nvidia-h200", "cuda-nvidia-h100-80gb-hbm3"):
        results = known[machine]
        for _, record in _of(results, "build", "growth"):
            if record.who == OURS and not record.operation.endswith("host's clock"):
                cells[(record.operation,), results.machine] = _giga(record.keys_per_second)
        for name, value in _quantities(results, "growth").items():
            cells[(name,), results.machine] = f"{value:.3g}"
    return _grid([""], cells)


def _gpu_unique(known: Machines, *, machine: str) -> list[str]:
    entries = _of(known[machine], "unique")
    cells: Cells = {}
    for run, record in entries:
        if record.who == OURS:
            times = [f"{who} {_peer_times(entries, record, run, who)}" for who in ("torch", "cupy")]
            beside = ", ".join(text for text in times if not text.endswith(" "))
            cells[(record.operation,), record.keys] = f"{_giga(record.keys_per_second)} ({beside})"
    return _grid(["operation"], cells)


def _gpu_small(known: Machines) -> list[str]:
    entries = _of(known["cuda-nvidia-h200"], "unique-small")
    cells: Cells = {}
    for run, record in entries:
        if record.who == OURS:
            same = [r for other, r in entries if other == run and r.who == "torch" and r.case == record.case]
            beside = "".join(f" ({r.seconds * 1e6:.0f})" for r in same)
            cells[(record.operation,), count(record.batch)] = f"{record.seconds * 1e6:.0f}{beside}"
    return _grid(["operation"], cells)


def _gpu_batches(known: Machines) -> list[str]:
    cells: Cells = {}
    for _, record in _of(known["cuda-nvidia-h200"], "sweep-batch"):
        if record.who == OURS and (record.batch.bit_length() - 1) % 2 == 0:
            cells[(record.operation,), count(record.batch)] = _giga(record.keys_per_second)
    return _grid(["operation"], cells)


def _calls(known: Machines) -> list[str]:
    cells: Cells = {}
    for results in known.values():
        for name, value in _quantities(results, "calls").items():
            framework, _, call = name.partition(": ")
            cells[(call,), f"{results.machine}, {framework}"] = f"{value:.2g}"
    return _grid(["a call on 16 keys, us"], cells)


def _pairs(known: Machines, *, machine: str, suite: str, corner: str, ratio: tuple[str, str]) -> list[str]:
    """Quantities named "what: which", a column for each "which", and the first one of ``ratio`` by the second."""
    found = _quantities(known[machine], suite)
    cells: Cells = {}
    for name, value in found.items():
        what, _, which = name.rpartition(": ")
        cells[(what,), which] = _short(value)
    for (what, *_), _column in list(cells):
        over, under = (found.get(f"{what}: {which}") for which in ratio)
        if over is not None and under is not None:
            cells[(what,), " / ".join(ratio)] = f"{over / under:.2f}"
    columns = list(dict.fromkeys(column for _, column in cells))
    return _grid([corner], cells, columns)


def _list(known: Machines, *, machine: str, suite: str, corner: str) -> list[str]:
    return _grid(
        [corner], {((name,), ""): f"{value:.3g}" for name, value in _quantities(known[machine], suite).items()}
    )


def _graph(known: Machines, *, machine: str) -> list[str]:
    entries = _of(known[machine], "graph")
    peers = list(dict.fromkeys(record.who for _, record in entries if record.who != OURS))
    scale = _giga if known[machine].device == "cuda" else _mega
    cells: Cells = {}
    for run, record in entries:
        if record.who == OURS:
            threads = "" if record.threads is None else f", threads: {record.threads}"
            times = [f"{_peer_times(entries, record, run, who)} {who.removeprefix('tensorflow ')}" for who in peers]
            beside = ", ".join(text for text in times if not text.startswith(" "))
            cells[(record.operation,), record.layout + threads] = scale(record.keys_per_second) + (
                f" ({beside})" if beside else ""
            )
    return _grid(["operation"], cells)


# Hosts ---------------------------------------------------------------------------------------------------------------


def _host_table(known: Machines, *, machine: str) -> list[str]:
    entries = _of(known[machine], "table")
    cells: Cells = {}
    beside: Cells = {}
    for run, record in entries:
        if record.who != OURS or record.operation not in _OPERATIONS:
            continue
        place = (count(record.pairs), _load(record)), record.operation
        rate = _mega(record.keys_per_second)
        if record.threads == 1:
            times = _peer_times(entries, record, run, "boost")
            notes = [_limit(record).strip(" ()"), f"{times} boost" if times else ""]
            beside[place] = f" ({', '.join(note for note in notes if note)})"
            cells[place] = rate
        else:
            cells[place] = f"{cells[place]}, {rate}"
    return _grid(["pairs", "load"], {place: cell + beside[place] for place, cell in cells.items()}, [*_OPERATIONS])


_HOST_PEERS = {"unique with counts": "numpy", "count in batches": "numpy", "factorize": "pandas", "isin": "pandas"}


def _host_unique(known: Machines, *, machine: str) -> list[str]:
    """Nanoseconds a key on one thread and two, and how many times as fast as the peer."""
    entries = _of(known[machine], "unique", "unique-large")
    found: dict[tuple[str, str, int, str], dict[int | None, str]] = {}
    for run, record in entries:
        dtype, _, keys = record.keys.rpartition(", ")
        dtype = dtype.removesuffix(" keys") or "int64"
        if record.who == OURS and record.operation in _HOST_PEERS and dtype != "uint64" and keys in _KEYS:
            times = _peer_times(entries, record, run, _HOST_PEERS[record.operation])
            cell = f"{record.seconds / record.batch * 1e9:.2g}" + (f" ({times})" if times else "")
            found.setdefault((record.operation, dtype, record.batch, keys), {})[record.threads] = cell
    cells: Cells = {}
    for operation, dtype, batch, keys in sorted(found, key=lambda place: ([*_HOST_PEERS].index(place[0]), place[1:3])):
        by_threads = found[operation, dtype, batch, keys]
        name = (f"{operation} (times {_HOST_PEERS[operation]})", dtype, count(batch))
        cells[name, keys] = ", ".join(by_threads.values())
    return _grid(["operation", "keys", "batch"], cells, [*_KEYS])


def _host_peers(known: Machines) -> list[str]:
    entries = _of(known["cpu-amd-epyc-4th-generation"], "peers")
    peers = list(dict.fromkeys(record.who for _, record in entries if record.who != OURS))
    cells: Cells = {}
    for run, record in entries:
        for peer in peers if record.who == OURS else ():
            times = _peer_times(entries, record, run, peer)
            place = (record.operation, _load(record)), peer
            if times:
                cells[place] = times if place not in cells else f"{cells[place]}, {times}"
    return _grid(["operation", "load"], cells, peers)


_H200, _H100 = "cuda-nvidia-h200", "cuda-nvidia-h100-80gb-hbm3"
TABLES: dict[str, Callable[[Machines], list[str]]] = {
    "runs": _runs,
    "h200-loads": partial(_gpu_loads, machine=_H200),
    "h100-loads": partial(_gpu_loads, machine=_H100),
    "h200-layouts": partial(_gpu_layouts, machine=_H200),
    "h200-peers": _gpu_peers,
    "h200-rows": partial(_gpu_rows, machine=_H200),
    "h200-skew": partial(_gpu_skew, machine=_H200),
    "h200-apply": partial(_gpu_apply, machine=_H200),
    "h200-unique": partial(_gpu_unique, machine=_H200),
    "h100-unique": partial(_gpu_unique, machine=_H100),
    "h200-unique-small": _gpu_small,
    "h200-batches": _gpu_batches,
    "h200-graph": partial(_graph, machine=_H200),
    "h200-programs": partial(
        _pairs, machine=_H200, suite="programs", corner="ms, 2^20 keys", ratio=("compiled", "bare")
    ),
    "h200-jax-unique": partial(_pairs, machine=_H200, suite="jax-unique", corner="ms", ratio=("jnp.unique", "gpuhash")),
    "h200-find-or-insert": partial(
        _pairs, machine=_H200, suite="find_or_insert", corner="us, 2^20 keys", ratio=("find_or_insert", "rows")
    ),
    "h100-embedding": partial(_pairs, machine=_H100, suite="embedding", corner="ms", ratio=("floor", "measured")),
    "h100-growing": partial(_list, machine=_H100, suite="growing", corner="ms"),
    "gpu-build": _gpu_build,
    "several": partial(
        _pairs, machine="cuda-2-nvidia-h200", suite="several", corner="ms", ratio=("one table", "both GPUs")
    ),
    "distributed": partial(
        _pairs,
        machine="cuda-2-nvidia-h200",
        suite="distributed",
        corner="10^6 keys a second",
        ratio=("one table", "a table in each"),
    ),
    "calls": _calls,
    "epyc-5-table": partial(_host_table, machine="cpu-amd-epyc-5th-generation"),
    "epyc-4-table": partial(_host_table, machine="cpu-amd-epyc-4th-generation"),
    "xeon-5-table": partial(_host_table, machine="cpu-intel-xeon-5th-generation"),
    "epyc-5-unique": partial(_host_unique, machine="cpu-amd-epyc-5th-generation"),
    "epyc-4-unique": partial(_host_unique, machine="cpu-amd-epyc-4th-generation"),
    "epyc-3-unique": partial(_host_unique, machine="cpu-amd-epyc-3rd-generation"),
    "xeon-5-unique": partial(_host_unique, machine="cpu-intel-xeon-5th-generation"),
    "host-peers": _host_peers,
    "host-graph": partial(_graph, machine="cpu-amd-epyc"),
    "host-embedding": partial(_list, machine="cpu-amd-epyc", suite="embedding", corner="ms"),
    "single": partial(_list, machine="cpu-amd-epyc-4th-generation", suite="single", corner="us a call"),
    "odd-widths": partial(_list, machine="cpu-amd-epyc-4th-generation", suite="odd-widths", corner="ns a key"),
}
