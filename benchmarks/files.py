"""A report's files: Markdown, JSON and CSV, of which the JSON can be read again."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, fields
from pathlib import Path

from .markdown import markdown
from .report import Failure, Quantity, Record, Report


def write(report: Report, folder: Path, name: str) -> list[Path]:
    """Write ``name``.md, .json and .csv into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in ("md", "json", "csv")]
    paths[0].write_text(markdown(report))
    paths[1].write_text(json.dumps(asdict(report), indent=1) + "\n")
    with paths[2].open("w", newline="") as file:
        rows = csv.DictWriter(file, [f.name for f in fields(Record)], lineterminator="\n")
        rows.writeheader()
        rows.writerows(asdict(record) for record in report.records)
    return paths


def read(path: Path) -> Report:
    """The report that ``write`` left in a JSON file. ValueError where it holds none."""
    try:
        contents = json.loads(path.read_text())
        for name, kind in (("records", Record), ("quantities", Quantity), ("failures", Failure)):
            contents[name] = [kind(**entry) for entry in contents[name]]
        return Report(**contents)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is no report of these benchmarks: {error}") from error
