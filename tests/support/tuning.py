"""Other thresholds (cpp/core/tuning.hpp), with which small batches take the ways of large ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from gpuhash import _core

_ANY = 1 << 40


@contextmanager
def tuned(**values: int) -> Iterator[None]:
    """Calls of any thread go by these numbers meanwhile."""
    with ExitStack() as stack:
        for name, value in values.items():
            stack.callback(_core.set_threshold, name, _core.set_threshold(name, value))
        yield


#: No table lies in L2, all batches pay for a partition, and what is partitioned is written past the host's caches.
PARTITIONED = {
    "l2_bytes": 0,
    "least_partitioned_keys": 1,
    "partition_table_bytes": _ANY,
    "one_block_keys": 0,
    "partitioned_repeats": _ANY,
    "partitioned_linked_repeats": _ANY,
    "partitioned_elements_per_test": _ANY,
    "streamed_bytes": 0,
    "intel_streamed_bytes": 0,
}


def partitioned(when: bool = True) -> AbstractContextManager[None]:
    """On a GPU every batch is partitioned, whatever its size; ``when`` is False: as usual."""
    return tuned(**PARTITIONED) if when else nullcontext()


#: Of `unique` and its like: positions have 64 bits, though 32 would do.
WIDE_POSITIONS = {"most_ascending_keys": 0, "word_list_keys": 0, "narrow_position_keys": 0}
