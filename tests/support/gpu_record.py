"""The record of a test run on a GPU machine: what ran, on what, with which result."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests" / "gpu_record.json"
FOLDERS = ("cpp", "cuda", "gpuhash", "tests")
SUFFIXES = {".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".py", ".pyi"}
PACKAGES = {
    "torch": ["torch"],
    "cupy": ["cupy-cuda13x", "cupy-cuda12x", "cupy"],
    "jax": ["jax"],
    "tensorflow": ["tensorflow", "tensorflow-cpu"],
    "numpy": ["numpy"],
}
#: Of the whole record, and of each of its other runs.
FIELDS = {"date", "gpu", "driver", "cuda_runtime", "versions", "passed", "failed", "skipped", "sources_sha256"}
#: Those that older records lack.
NEW_FIELDS = {"gpus", "device", "runs"}
RUN_FIELDS = {"date", "device", "passed", "failed", "skipped", "sources_sha256"}


def sources_digest() -> str:
    """SHA-256 over paths and contents of all sources that the record speaks for."""
    digest = hashlib.sha256()
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    for path in sorted(path for path in files if "__pycache__" not in path.parts):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def version_of(distributions: list[str]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def describe_gpu() -> tuple[str | None, str | None]:
    """Name and driver version of the first GPU; two GPUs of one machine are taken to be alike."""
    if shutil.which("nvidia-smi") is None:
        return None, None
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    name, _, driver = lines[0].partition(",") if lines else ("", "", "")
    return name.strip() or None, driver.strip() or None


def is_whole(exit_status: int) -> bool:
    """Did all tests run? What was interrupted is no record."""
    return exit_status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def requested_device() -> str:
    """The GPU that the tables of this run are on, as it was asked for."""
    return os.environ.get("GPUHASH_TEST_DEVICE", "cuda")


def part_of(text: str) -> tuple[int, int]:
    """Which part of how many: "1/2"."""
    number, _, count = text.partition("/")
    part = int(number), int(count)
    if not 1 <= part[0] <= part[1]:
        raise ValueError(f"--part {text} was given, expected K/N, such as 1/2")
    return part


def with_earlier_parts(record: dict[str, Any] | None, run: dict[str, Any]) -> dict[str, Any]:
    """A part of a run, with those of the same sources before it. What is whole has no "parts"."""
    here, before = run.get("parts"), (record or {}).get("parts")
    if here is None:
        return run
    counts, done = {}, here["done"]
    is_same = record is not None and before is not None and record["sources_sha256"] == run["sources_sha256"]
    if record is not None and is_same and before["of"] == here["of"] and not {*before["done"]} & {*done}:
        counts = {name: record[name] + run[name] for name in ("passed", "failed", "skipped")}
        done = sorted([*before["done"], *done])
    whole = {**run, **counts, "parts": {"of": here["of"], "done": done}}
    if len(done) == here["of"]:
        del whole["parts"]
    return whole


def updated(record: dict[str, Any] | None, run: dict[str, Any]) -> dict[str, Any]:
    """The record after another run. The one on "cuda" is the record, and those on other devices stand in its "runs", of
    which the last on each device stays. They go with the machine and the sources that they were made with."""
    others = [] if record is None else record.get("runs", [])
    if run["device"] == "cuda":
        run = with_earlier_parts(record, run)
        return {**run, "runs": [other for other in others if other["sources_sha256"] == run["sources_sha256"]]}
    if record is None:
        raise ValueError(f"there is no run on 'cuda' yet that one on {run['device']!r} could be added to")
    mine = {name: value for name, value in run.items() if name in RUN_FIELDS}
    others = [other for other in others if other["device"] != run["device"]]
    return {**record, "runs": sorted([*others, mine], key=lambda other: str(other["device"]))}


def missing_runs(record: dict[str, Any]) -> list[str]:
    """The devices that a record has to have runs on besides "cuda", and has none: where there are several GPUs, the
    second one."""
    if record.get("gpus", 1) < 2:
        return []
    return sorted({"cuda:1"} - {run["device"] for run in record["runs"]})


def write_record(counts: dict[str, int], part: tuple[int, int] | None) -> dict[str, Any]:
    """Returns what has been written."""
    from gpuhash import _core

    gpu, driver = describe_gpu()
    build = _core.build_info()
    run: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": gpu,
        "gpus": len(_core.platform_devices("cuda")),
        "device": requested_device(),
        "driver": driver,
        "cuda_runtime": build["cuda_version"],
        "build": build,
        "versions": {"python": platform.python_version(), **{name: version_of(d) for name, d in PACKAGES.items()}},
        **counts,
        "sources_sha256": sources_digest(),
    }
    if part is not None:
        run["parts"] = {"of": part[1], "done": [part[0]]}
    record = json.loads(RECORD.read_text()) if RECORD.exists() else None
    record = updated(record, run)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    return record
