"""Draws peers.png from benchmarks/results/cpu-amd-epyc-4th-generation.json: ``python docs/images/plot_peers.py``."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "cpu-amd-epyc-4th-generation.json"
#: Name in the file, threads, label.
CONTENDERS = [
    ("dict", 1, "dict"),
    ("numpy, sorted", 1, "NumPy, sorted arrays"),
    ("tensorflow MutableHashTable", 2, "TensorFlow, MutableHashTable, 2 threads"),
    ("pandas", 1, "pandas, Index"),
    ("gpuhash", 1, "gpuhash, 1 thread"),
    ("gpuhash", 2, "gpuhash, 2 threads"),
]
OPERATIONS = [("find present", "look up 4 million keys"), ("insert", "insert 4 million keys")]


def rates(operation: str) -> list[float]:
    """Million keys per second of each contender; gpuhash at load 0.5."""
    records = [
        record
        for record in json.loads(RESULTS.read_text())["records"]
        if record["suite"] == "peers" and record["operation"] == operation and record.get("load", 0.5) < 0.6
    ]
    found = []
    for who, threads, _ in CONTENDERS:
        matches = [record for record in records if (record["who"], record["threads"]) == (who, threads)]
        if len(matches) != 1:
            raise ValueError(f"{RESULTS} has {len(matches)} records of {operation} by {who}, expected one")
        found.append(matches[0]["batch"] / matches[0]["seconds"][0] / 1e6)  # the median
    return found


def main() -> None:
    """Draw the bars of all contenders, one panel for each operation."""
    figure, panels = plt.subplots(2, 1, figsize=(6.4, 4.3), sharex=True)
    for axes, (operation, title) in zip(panels, OPERATIONS, strict=True):
        colours = ["#009485" if who == "gpuhash" else "#b0bec5" for who, _, _ in CONTENDERS]
        bars = axes.barh([label for _, _, label in CONTENDERS], rates(operation), color=colours)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.set_title(title)
        axes.set_xscale("log")
        axes.set_xlim(0.8, 500)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("million keys per second, log scale")
    machine = "AMD EPYC of the fourth generation, two cores, 2026-11-24"
    figure.text(0.995, 0.01, machine, ha="right", fontsize=7, color="#607d8b")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(HERE / "peers.png", dpi=130)


if __name__ == "__main__":
    main()
