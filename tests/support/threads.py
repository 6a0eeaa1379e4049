"""How many threads host tables work with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import gpuhash


@contextlib.contextmanager
def at_most_threads(most: int) -> Iterator[None]:
    """No more threads than that, on whatever machine."""
    before = gpuhash.get_num_threads()
    gpuhash.set_num_threads(min(before, most))
    try:
        yield
    finally:
        gpuhash.set_num_threads(before)
