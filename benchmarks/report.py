"""What a run measured, where, and its files: Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import json
import math
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TextIO

PAIR_BYTES = 16  # of the pairs measured: 8-byte keys and values
_TABLE_BYTES_PER_SLOT = PAIR_BYTES * 65 / 64  # with the filter byte of a bucket of four


def slots_at(load: float, pairs: int) -> int:
    """Slots of a table whose memory, filters and all, has room for ``pairs / load`` pairs."""
    return max(pairs, math.floor(pairs * PAIR_BYTES / load / _TABLE_BYTES_PER_SLOT))


@dataclass(frozen=True)
class Record:
    """One figure."""

    operation: str
    who: str  # "gpuhash", a peer, or "limit"
    pairs: int  # in the table
    batch: int  # keys per call
    load: float | None  # pairs * 16 bytes / bytes of slots and metadata
    seconds: float  # median per call
    keys_per_second: float
    limit: str | None = None  # name of the limit that ``ratio`` refers to
    ratio: float | None = None  # of the limit's rate in the same run


@dataclass
class Report:
    """All figures of one run, with what is needed to judge them."""

    device: str
    commit: str
    settings: dict[str, object]
    versions: dict[str, str]
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))
    limits: dict[str, float] = field(default_factory=dict)  # per second: accesses, or bytes for copies
    records: list[Record] = field(default_factory=list)

    def add(
        self,
        operation: str,
        who: str,
        *,
        pairs: int,
        batch: int,
        seconds: float,
        load: float | None = None,
        limit: str | None = None,
    ) -> None:
        rate = batch / seconds
        ratio = rate / self.limits[limit] if limit is not None and limit in self.limits else None
        self.records.append(Record(operation, who, pairs, batch, load, seconds, rate, limit, ratio))

    def markdown(self) -> str:
        unit, scale = ("G/s", 1e9) if self.settings["device"] == "cuda" else ("M/s", 1e6)
        lines = [f"# {self.device}, {self.date}", "", f"commit {self.commit}; {_listed(self.versions)}", ""]
        lines += [f"settings: {_listed(self.settings)}", ""]
        lines += ["| limit of this run | per second |", "|---|---|"]
        lines += [
            f"| {name} | {rate / 1e12:.2f} TB |"
            if name.startswith("copy")
            else f"| {name} | {rate / scale:.4g} {unit[0]} |"
            for name, rate in self.limits.items()
        ]
        lines += [
            "",
            f"| operation | who | pairs | batch | load | {unit} | ratio to limit |",
            "|---|---|---|---|---|---|---|",
        ]
        for r in self.records:
            load = "" if r.load is None else f"{r.load:.2f}"
            ratio = "" if r.ratio is None else f"{r.ratio:.2f} ({r.limit})"
            rate = f"{r.keys_per_second / scale:.3g}"
            lines.append(
                f"| {r.operation} | {r.who} | {_count(r.pairs)} | {_count(r.batch)} | {load} | {rate} | {ratio} |"
            )
        return "\n".join(lines) + "\n"

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write ``name``.md, .json and .csv into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.{suffix}" for suffix in ("md", "json", "csv")]
        paths[0].write_text(self.markdown())
        paths[1].write_text(json.dumps(asdict(self), indent=1) + "\n")
        with paths[2].open("w", newline="") as file:
            rows = csv.DictWriter(file, [f.name for f in fields(Record)], lineterminator="\n")
            rows.writeheader()
            rows.writerows(asdict(record) for record in self.records)
        return paths


def _listed(pairs: dict[str, object] | dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in pairs.items())


def _count(n: int) -> str:
    return f"2^{n.bit_length() - 1}" if n > 0 and n & (n - 1) == 0 else str(n)


def slug(name: str) -> str:
    """A file name: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def cpu_name() -> str:
    """The processor's model, without the machine's own name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit measured; "+" where tracked files (but for results) differ from it; "unknown" without git."""
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
        return git("rev-parse", "--short=12", "HEAD").strip() + ("+" if changes.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class Progress:
    """A bar on standard error; a line per step where that is no terminal."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._stream = stream
        self._start = time.monotonic()

    def step(self, label: str) -> None:
        """The step named ``label`` begins; the one before is done."""
        self._draw(label)
        self._done += 1

    def finish(self) -> None:
        self._done = self._total
        self._draw("done")
        self._stream.write("\n")

    def _draw(self, label: str) -> None:
        width = 24
        filled = width * min(self._done, self._total) // self._total
        bar = "#" * filled + "." * (width - filled)
        text = f"[{bar}] {self._done}/{self._total} {time.monotonic() - self._start:5.1f} s  {label}"
        end, start = ("", "\r\x1b[K") if self._stream.isatty() else ("\n", "")
        self._stream.write(f"{start}{text}{end}")
        self._stream.flush()
