"""The record of a test run on a GPU machine: what ran, on what, with which result."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).resolve().parent / "gpu_record.json"
FOLDERS = ("cpp", "cuda", "gpuhash", "tests")
SUFFIXES = {".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".py", ".pyi"}
PACKAGES = {
    "torch": ["torch"],
    "cupy": ["cupy-cuda13x", "cupy-cuda12x", "cupy"],
    "jax": ["jax"],
    "tensorflow": ["tensorflow", "tensorflow-cpu"],
    "numpy": ["numpy"],
}
FIELDS = {"date", "gpu", "driver", "cuda_runtime", "versions", "passed", "failed", "skipped", "sources_sha256"}


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
    """Name and driver version of the first GPU."""
    if shutil.which("nvidia-smi") is None:
        return None, None
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    name, _, driver = lines[0].partition(",") if lines else ("", "", "")
    return name.strip() or None, driver.strip() or None


def write_record(counts: dict[str, int]) -> None:
    from gpuhash import _core

    gpu, driver = describe_gpu()
    build = _core.build_info()
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": gpu,
        "driver": driver,
        "cuda_runtime": build["cuda_version"],
        "build": build,
        "versions": {"python": platform.python_version(), **{name: version_of(d) for name, d in PACKAGES.items()}},
        **counts,
        "sources_sha256": sources_digest(),
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
