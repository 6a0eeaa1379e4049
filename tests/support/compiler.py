"""A C++ compiler that compiles nothing: what it links is a library that was compiled before."""

from __future__ import annotations

from pathlib import Path

_SCRIPT = """#!/bin/sh
made=
for word in "$@"; do
  [ "$before" = -o ] && made=$word
  before=$word
done
case "$*" in
  *--version*) exec c++ --version ;;
  *-shared*) echo linked >> {log}; sleep 1; cp {library} "$made" ;;
  *) : > "$made" ;;
esac
"""


class StandIn:
    """Compiling for real takes minutes of a core; the tests of who compiles, and when, need a library that loads."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._log = folder / "linked"
        self.path = folder / "stand-in"
        self.path.write_text(_SCRIPT.format(log=self._log, library=library))
        self.path.chmod(0o755)

    def times_linked(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0
