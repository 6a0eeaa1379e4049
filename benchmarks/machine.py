"""Where and with what a run was made: processor, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def slug(name: str) -> str:
    """A file name: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def cpu_name() -> str:
    """The processor's model, without the machine's own name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


def cores() -> set[int]:
    """Those of this process, which may have fewer than the machine; none where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def huge_pages() -> str:
    """How the system gives out transparent huge pages: "always", "madvise", "never", or "unknown"."""
    try:
        modes = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unknown"
    chosen = re.search(r"\[(\w+)\]", modes)
    return chosen[1] if chosen else "unknown"


def available_bytes() -> int | None:
    """Host memory that can be had without swapping; None where the system does not say."""
    try:
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def commit() -> str:
    """The commit measured; "+" where tracked files (but for results) differ from it; "unknown" without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
        return git("rev-parse", "--short=12", "HEAD").strip() + ("+" if changes.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions by package, Python's first; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
