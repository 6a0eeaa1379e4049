"""``python -m benchmarks``: measure, print a table, write it as Markdown, JSON and CSV."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .report import Report, commit, cpu_name, slug, versions

PACKAGES = ("gpuhash", "numpy", "pandas", "torch")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the table lives (default: cpu)")
    parser.add_argument("--quick", action="store_true", help="small tables and few runs, to see that it works")
    parser.add_argument("--ops", nargs="+", metavar="OP", help='only these, for example "find present" erase')
    parser.add_argument("--threads", type=int, default=2, help="threads of the host table and limit (default: 2)")
    parser.add_argument("--commit", help="what was measured, where git cannot tell")
    parser.add_argument(
        "--output", type=Path, help="folder of the files (default: benchmarks/results; with --quick: none are written)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit status."""
    options = _parse(arguments)
    os.environ["GPUHASH_NUM_THREADS"] = str(options.threads)  # before gpuhash starts its threads
    settings: dict[str, object] = {"device": options.device, "quick": options.quick}
    known: tuple[str, ...]

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
        device, known = torch.cuda.get_device_name(), gpu.OPERATIONS
    else:
        from . import host

        device, known = f"{cpu_name()}, {options.threads} threads", host.OPERATIONS
        settings["threads"] = options.threads

    operations = options.ops or known
    if unknown := set(operations) - set(known):
        print(f"unknown operations {sorted(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    report = Report(device, options.commit or commit(), settings, versions(PACKAGES))
    if options.device == "cuda":
        report.versions["cuda of torch"] = str(torch.version.cuda)
        gpu.run(report, quick=options.quick, operations=operations)
    else:
        host.run(report, quick=options.quick, operations=operations, threads=options.threads)

    print(report.markdown())
    folder = options.output or (None if options.quick else Path(__file__).parent / "results")
    if folder is not None:
        name = "-".join([options.device, slug(device), *(["quick"] if options.quick else [])])
        for path in report.write(folder, name):
            print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
