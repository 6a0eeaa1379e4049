"""A limit to the time of a step, so that a run ends whatever a step does."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class TooLongError(Exception):
    """A step has taken longer than it may."""


@contextmanager
def time_limit(seconds: float, grace: float, give_up: Callable[[], None]) -> Iterator[None]:
    """Raises TooLongError in the body, which runs on the main thread, after so many seconds.

    Python does so between two of its own steps. Where the body is inside of a call that does not return, ``grace``
    seconds later all threads' stacks are printed, and ``give_up()`` is called on a thread of its own.
    """

    def end(*_: Any) -> None:
        raise TooLongError(f"it took longer than {seconds:.0f} s")

    def abandon() -> None:
        faulthandler.dump_traceback(sys.stderr)
        give_up()

    watchdog = threading.Timer(seconds + grace, abandon)
    watchdog.daemon = True
    before = signal.signal(signal.SIGALRM, end)
    start = time.monotonic()
    others, _ = signal.setitimer(signal.ITIMER_REAL, seconds)  # a timer that somebody else has set, as tests do
    watchdog.start()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        watchdog.cancel()
        signal.signal(signal.SIGALRM, before)
        if others > 0:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, others - (time.monotonic() - start)))
