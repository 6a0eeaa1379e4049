"""How many threads the host's algorithms use."""

from __future__ import annotations

from . import _core
from .arrays.arguments import count_of


def set_num_threads(threads: int) -> None:
    """Sets the number of threads that operations on host tables may use, in the whole process, from the next one on.

    What tables hold does not depend on it; the order of ``keys()`` and ``items()`` may.

    Parameters
    ----------
    threads
        1 or more; the calling thread is one of them.

    Raises
    ------
    TypeError, ValueError
        Where ``threads`` is no positive number.
    """
    _core.set_num_threads(min(count_of(threads, "threads"), 1 << 20))


def get_num_threads() -> int:
    """The number of threads that operations on host tables may use.

    The last one that was set; else that in the environment variable GPUHASH_NUM_THREADS when gpuhash was imported; else
    the number of cores that the process may run on.

    Raises
    ------
    ValueError
        Where the environment variable was no positive number.
    """
    return _core.get_num_threads()
