"""``python -m benchmarks``: measure the limits of the memory, then the table and its peers; write the figures.

``plot``, ``merge`` and ``page`` as the first word do something with figures that were written.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import files, markdown, page, results_file
from .machine import ROOT, commit, cores, cpu_name, huge_pages, slug, versions
from .report import Report
from .suite import Group, Session, Suite, run

PACKAGES = (
    "gpuhash",
    "numpy",
    "pandas",
    "tensorflow",
    "tensorflow-cpu",
    "torch",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
)
LIMITS = "limits"
RUNS = ROOT / "build" / "benchmarks"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure the limits of the memory, then the table and its peers; write the figures.",
        epilog="The first word may be plot, merge or page: draw a run, keep its figures, update the page of figures.",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the table lives (default: cpu)")
    parser.add_argument("--quick", action="store_true", help="small tables and few runs, to see that it works")
    parser.add_argument("--suites", nargs="+", metavar="SUITE", help="only these; --list names them")
    parser.add_argument("--ops", nargs="+", metavar="OP", help='only these operations, such as "find present" erase')
    parser.add_argument(
        "--groups", nargs="+", metavar="TEXT", help='only what has this in its label, such as "2^20 int64"'
    )
    parser.add_argument("--list", action="store_true", help="name the suites and their operations, and measure nothing")
    parser.add_argument(
        "--threads",
        nargs="+",
        type=int,
        default=[1, 2],
        help="of the host table and limit, each in turn (default: 1 2)",
    )
    parser.add_argument(
        "--step-limit", type=float, default=300, metavar="SECONDS", help="a step that takes longer has failed"
    )
    parser.add_argument("--commit", help="what was measured, where git cannot tell")
    parser.add_argument(
        "--output", type=Path, help="folder of the files (default: build/benchmarks; with --quick: none are written)"
    )
    options = parser.parse_args(arguments)
    if min(options.threads) < 1:
        parser.error("--threads takes positive numbers")
    if not 0 < options.step_limit < 1e6:
        parser.error("--step-limit takes a positive number of seconds")
    return options


def _unknown(asked: list[str] | None, known: list[str], what: str) -> bool:
    unknown = sorted(set(asked or ()) - set(known))
    if unknown:
        print(f"unknown {what} {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
    return bool(unknown)


def _part(suite: Suite, texts: list[str]) -> Suite:
    """The groups whose label contains any of these."""

    def groups(session: Session) -> list[Group]:
        return [group for group in suite.groups(session) if any(text in group.label for text in texts)]

    return replace(suite, groups=groups)


def measure(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit status."""
    options = _parse(arguments)
    threads = tuple(dict.fromkeys(options.threads))
    settings: dict[str, object] = {"device": options.device, "quick": options.quick}
    if options.device == "cuda":
        try:
            import torch

            from . import gpu
        except ImportError as error:
            print(f"--device cuda needs gpuhash and PyTorch: {error}", file=sys.stderr)
            return 2
        if not torch.cuda.is_available():
            print("--device cuda needs a GPU that PyTorch can use", file=sys.stderr)
            return 2
        place: Any = gpu
        device = torch.cuda.get_device_name()
    else:
        from . import host

        place = host
        device = f"{cpu_name()}, {len(cores()) or os.cpu_count()} cores"
        settings |= {"threads": list(threads), "transparent huge pages": huge_pages()}
    suites: dict[str, Suite] = place.suites()

    if options.list:
        for name, suite in suites.items():
            print(f"{name}: {suite.summary} ({', '.join(suite.operations)})")
        return 0
    operations = list(dict.fromkeys(operation for suite in suites.values() for operation in suite.operations))
    if _unknown(options.suites, list(suites), "suites") | _unknown(options.ops, operations, "operations"):
        return 2
    chosen = {name: suite for name, suite in suites.items() if options.suites is None or name in options.suites}
    if options.groups is not None:
        chosen = {name: _part(suite, options.groups) for name, suite in chosen.items()}

    report = Report(device, options.commit or commit(), settings, versions(PACKAGES))
    if options.device == "cuda":
        report.versions["cuda of torch"] = str(torch.version.cuda)
    session = Session(report, options.quick, options.ops, threads, place.free_memory, options.step_limit)
    if options.groups is not None and not any(suite.groups(session) for suite in chosen.values()):
        print(f"no group of {', '.join(chosen)} has {' or '.join(options.groups)} in its label", file=sys.stderr)
        return 2
    limits = Suite("what the memory allows", (), lambda session: place.limits(session, chosen))
    folder = options.output or (None if options.quick else RUNS)
    partly = [*([] if options.suites is None else chosen), *map(slug, options.groups or ())]
    name = "-".join([options.device, slug(device), *partly, *(["quick"] if options.quick else [])])

    def keep() -> list[Path]:
        return [] if folder is None else files.write(report, folder, name)

    def finished(suite: str) -> None:
        """Prints the part of the report that is finished."""
        print(markdown.head(report) if suite == LIMITS else markdown.section(report, suite), flush=True)

    run(session, {LIMITS: limits, **chosen}, finished, keep)
    print(markdown.limits(report), markdown.tail(report), sep="\n")
    for path in [*keep(), *([] if folder is None else _plots(report, folder, name))]:
        print(f"wrote {path}", file=sys.stderr)
    return 1 if report.failures else 0


def _plots(report: Report, folder: Path, name: str) -> list[Path]:
    from . import plots

    try:
        return plots.draw(report, folder, name)
    except plots.NoMatplotlibError as error:
        print(f"no plots: {error}; draw them elsewhere with `python -m benchmarks plot {name}.json`", file=sys.stderr)
        return []


def plot(arguments: list[str]) -> int:
    """Draw what ``measure`` wrote; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks plot", description=plot.__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="what a run wrote")
    parser.add_argument("--output", type=Path, help="folder of the plots (default: that of each file)")
    options = parser.parse_args(arguments)
    from . import plots

    for file in options.files:
        try:
            paths = plots.draw(files.read(file), options.output or file.parent, file.stem)
        except (OSError, ValueError, plots.NoMatplotlibError) as error:
            print(error, file=sys.stderr)
            return 2
        for path in paths:
            print(f"wrote {path}", file=sys.stderr)
    return 0


def merge(arguments: list[str]) -> int:
    """Take the figures of runs into the file of their kind of machine, in place of older ones of the same cases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks merge", description=merge.__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="RUN.json", help="what runs wrote, the oldest first")
    parser.add_argument("--into", type=Path, required=True, metavar="KIND.json", help="a file of benchmarks/results")
    parser.add_argument(
        "--machine", help="what to call the kind of machine (default: as it is called there, or as the run does)"
    )
    options = parser.parse_args(arguments)
    try:
        reports = [files.read(file) for file in options.files]
        known = results_file.read(options.into) if options.into.exists() else None
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    device = str(reports[0].settings.get("device", "cpu"))
    results = known or results_file.Results(reports[0].device, device)
    results.machine = options.machine or results.machine
    for report in reports:
        results.merge(report)
    results_file.write(results, options.into)
    print(f"wrote {options.into}; `python -m benchmarks page` brings docs/performance.md up to date", file=sys.stderr)
    return 0


def update_page(arguments: list[str]) -> int:
    """Make the tables of docs/performance.md anew, of benchmarks/results."""
    argparse.ArgumentParser(prog="python -m benchmarks page", description=update_page.__doc__).parse_args(arguments)
    page.PAGE.write_text(page.updated(page.PAGE.read_text(), page.machines()))
    return 0


COMMANDS = {"plot": plot, "merge": merge, "page": update_page}


def main(arguments: list[str] | None = None) -> int:
    """One of the commands or, without such a word, ``measure``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = COMMANDS.get(arguments[0]) if arguments else None
    return measure(arguments) if command is None else command(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
