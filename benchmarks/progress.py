"""The bar that shows how far a run has come."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24


class Progress:
    """A bar on standard error; a line per step where that is no terminal."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._stream = sys.stderr if stream is None else stream
        self._start = time.monotonic()

    def step(self, label: str) -> None:
        """The step named ``label`` begins; the one before is done."""
        self._draw(label)
        self._done += 1

    def skip(self, steps: int) -> None:
        """So many steps will not be made."""
        self._done += steps

    def clear(self) -> None:
        """Makes room for other output on a terminal."""
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def finish(self) -> None:
        self._done = self._total
        self._draw("done")
        if self._stream.isatty():
            self._stream.write("\n")

    def _draw(self, label: str) -> None:
        filled = _WIDTH * min(self._done, self._total) // self._total
        bar = "#" * filled + "." * (_WIDTH - filled)
        text = f"[{bar}] {self._done}/{self._total} {time.monotonic() - self._start:5.1f} s  {label}"
        end, start = ("", "\r\x1b[K") if self._stream.isatty() else ("\n", "")
        self._stream.write(f"{start}{text}{end}")
        self._stream.flush()
