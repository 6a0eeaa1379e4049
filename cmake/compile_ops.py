"""Makes a framework's op library ahead, while gpuhash is built: there is no package yet that could be imported."""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from pathlib import Path

_SOURCES = Path(__file__).resolve().parent.parent / "gpuhash"


def main() -> None:
    """Makes the library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", help="the folder in gpuhash/ that has the ops, such as tensorflow")
    parser.add_argument("--include", type=Path, required=True, help="the folder of libgpuhash's headers")
    parser.add_argument("--library", type=Path, required=True, help="the folder of libgpuhash.so")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write into")
    arguments = parser.parse_args()
    # What describes and compiles the ops needs nothing of gpuhash's; importing their packages would load the extension.
    for name, folder in [("gpuhash", _SOURCES), (f"gpuhash.{arguments.framework}", _SOURCES / arguments.framework)]:
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    ops = importlib.import_module(f"gpuhash.{arguments.framework}.build").op_library
    # Installed, it lies in gpuhash/tensorflow/, for instance, and libgpuhash.so in gpuhash/.
    output = arguments.output / ops.prebuilt_name
    made_of = ops.identity_of(arguments.include, arguments.library)
    note = output.with_suffix(".made-of")
    if output.exists() and note.exists() and note.read_text() == made_of:
        return  # each build comes here
    for old in arguments.output.glob(f"{ops.stem}-*"):  # of another version: all that lies here is installed
        old.unlink()
    ops.compile(output, arguments.include, arguments.library, "$ORIGIN/..")
    note.write_text(made_of)


if __name__ == "__main__":
    main()
