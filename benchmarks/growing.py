"""Growth of a table of long rows, in place and by a copy: ``python -m benchmarks.growing --device cuda``."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuhash
from gpuhash import _core

from .machine import available_bytes
from .timing import expect

WIDTH = 128  # float32
RUNS = 7
BATCH = 1 << 20
IN_PLACE, COPIED = -1, 0  # addresses that rows may reserve, in bytes; -1: for all memory

Seconds = list[float]


class Device:
    """Where the table is; the host's arrays are NumPy's, a GPU's PyTorch's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.torch: Any = None
        if name != "cpu":
            import torch

            self.torch = torch

    def synchronize(self) -> None:
        if self.torch is not None:
            self.torch.cuda.synchronize(self.name)

    def range(self, first: int, end: int) -> Any:
        return np.arange(first, end) if self.torch is None else self.torch.arange(first, end, device=self.name)

    def rows(self, count: int) -> Any:
        """Uninitialised, [count, WIDTH]."""
        if self.torch is None:
            return np.empty((count, WIDTH), np.float32)
        return self.torch.empty(count, WIDTH, dtype=self.torch.float32, device=self.name)

    def free_bytes(self) -> int | None:
        return available_bytes() if self.torch is None else self.torch.cuda.mem_get_info(self.name)[0]

    def seconds(self, call: Callable[[], object]) -> float:
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start


def filled(device: Device, count: int) -> gpuhash.HashTable:
    """A table of ``count`` keys that has room for no more; each row is its key, modulo 1021."""
    table = gpuhash.HashTable("int64", "float32", value_shape=(WIDTH,), device=device.name)
    table.reserve(count)
    for first in range(0, count, BATCH):
        keys = device.range(first, min(count, first + BATCH))
        rows = device.rows(len(keys))
        rows[:] = (keys % 1021)[:, None]
        table[keys] = rows
    return table


def check(device: Device, table: gpuhash.HashTable, count: int) -> None:
    for first in range(0, count, count // 4):
        keys = device.range(first, min(count, first + 1000))
        expect((table[keys] == (keys % 1021)[:, None]).all(), "rows after growth")


def growth(device: Device, count: int, reservation: int) -> Seconds:
    """Of a table of ``count`` keys, to room for twice as many. Each run has a table of its own."""
    times = []
    for run in range(RUNS + 1):
        _core.set_reservation_limit(reservation)
        table = filled(device, count)
        address = address_of(table.row_storage)
        seconds = device.seconds(lambda table=table: table.reserve(2 * count))  # type: ignore[misc]
        stayed = address_of(table.row_storage) == address
        expect(stayed == (reservation == IN_PLACE), "rows stay where they are reserved, and move where they are not")
        check(device, table, count)
        if run:  # the first loads kernels
            times.append(seconds)
    return times


def address_of(rows: Any) -> int:
    return int(rows.ctypes.data if isinstance(rows, np.ndarray) else rows.data_ptr())


def copy(device: Device, count: int) -> Seconds:
    """Of as many bytes as the table has rows, into memory that was written before."""
    source, target = device.rows(count), device.rows(count)
    source[:] = 1
    target[:] = 2
    copy_into: Callable[[], object] = (
        (lambda: np.copyto(target, source)) if device.torch is None else (lambda: target.copy_(source))
    )
    times = [device.seconds(copy_into) for _ in range(RUNS + 1)][1:]
    expect((target[:: count // 4] == 1).all(), "the copy")
    return times


def main(arguments: list[str] | None = None) -> int:
    """Print the milliseconds of each, and their ratio to the plain copy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growing", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--rows", type=int, default=1 << 24, help=f"of {WIDTH} float32 (default: 2^24)")
    options = parser.parse_args(arguments)
    device, count = Device(options.device), options.rows
    needed, free = 4 * count * (4 * WIDTH), device.free_bytes()  # what is copied, and a copy of twice the rows
    if free is not None and free < needed:
        print(f"{count} rows need {needed >> 20} MiB, and {free >> 20} are free: ask for fewer --rows", file=sys.stderr)
        return 2
    try:
        measured = {
            "plain copy of the rows": copy(device, count),
            "growth, rows stay": growth(device, count, IN_PLACE),
            "growth, rows are copied": growth(device, count, COPIED),
        }
    finally:
        _core.set_reservation_limit(-1)
    print(f"{count} rows of {WIDTH} float32 ({count * 4 * WIDTH >> 20} MiB) on {device.name}, median of {RUNS}\n")
    plain = statistics.median(measured["plain copy of the rows"])
    for name, times in measured.items():
        median = statistics.median(times)
        print(
            f"{name:26} {median * 1e3:9.3f} ms ({min(times) * 1e3:.3f} to {max(times) * 1e3:.3f}), "
            f"{median / plain:.3f} of the copy"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
