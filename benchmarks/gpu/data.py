"""Keys, values and times on the GPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

import gpuhash
from benchmarks.report import PAIR
from benchmarks.timing import Action, Timing, nothing

_DEVICE = "cuda"
_SALT = 0x5555
_BUSY_CYCLES = 2_000_000  # about a millisecond


def _i64(word: int) -> int:
    """The signed integer of the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def _xor_shift_(x: torch.Tensor, bits: int, width: int) -> None:
    """X ^= x >> bits, the shift being one of unsigned integers of ``width`` bits."""
    shifted = (x >> bits).bitwise_and_((1 << (width - bits)) - 1)
    x.bitwise_xor_(shifted)


def _mix64_(x: torch.Tensor) -> torch.Tensor:
    """The finisher of splitmix64 in place: a bijection, so that a counter gives unique keys that look random."""
    _xor_shift_(x, 30, 64)
    x.mul_(_i64(0xBF58476D1CE4E5B9))
    _xor_shift_(x, 27, 64)
    x.mul_(_i64(0x94D049BB133111EB))
    _xor_shift_(x, 31, 64)
    return x


def _mix32_(x: torch.Tensor) -> torch.Tensor:
    """The finisher of MurmurHash3 on the low 32 bits of int64, in place: likewise a bijection."""
    low = (1 << 32) - 1
    _xor_shift_(x, 16, 32)
    x.mul_(0x85EBCA6B).bitwise_and_(low)
    _xor_shift_(x, 13, 32)
    x.mul_(0xC2B2AE35).bitwise_and_(low)
    _xor_shift_(x, 16, 32)
    return x


def permutation(count: int) -> torch.Tensor:
    """The numbers below ``count``, a power of two, in an order that looks random; without the memory of a sort."""
    if count & (count - 1):
        raise ValueError(f"{count} was given, expected a power of two")
    bits = count.bit_length() - 1
    x = torch.arange(count, dtype=torch.int64, device=_DEVICE)
    if bits < 2:
        return x
    for odd in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7):
        x.mul_(_i64(odd)).add_(odd >> 40).bitwise_and_(count - 1)
        _xor_shift_(x, (bits + 1) // 2, bits)
    return x


def zipf(s: float, n: int, ranks: int | None = None) -> torch.Tensor:
    """Draws of ranks 0 to ``ranks`` - 1 (n - 1) with probability proportional to 1 / (rank + 1)^s, by their sums."""
    sums = torch.arange(1, (ranks or n) + 1, dtype=torch.float64, device=_DEVICE).pow_(-s).cumsum_(0)
    draws = torch.rand(n, dtype=torch.float64, device=_DEVICE).mul_(sums[-1])
    return torch.searchsorted(sums, draws).clamp_(max=len(sums) - 1)


@dataclass(frozen=True)
class Layout:
    """What a table's pairs look like."""

    name: str
    key_dtype: str
    key_shape: tuple[int, ...]
    value_dtype: str
    pair_bytes: int

    def keys(self, counter: torch.Tensor) -> torch.Tensor:
        """Unique keys that look random, one for each number; the counter is used up."""
        if self.key_dtype == "int32":
            return _mix32_(counter).to(torch.int32)
        if self.key_shape:
            first = _mix64_(counter)
            return torch.stack((first, first * _i64(0x9E3779B97F4A7C15) + 1), dim=1)
        return _mix64_(counter)

    def values(self, keys: torch.Tensor) -> torch.Tensor:
        """The value that belongs to each key."""
        return (keys[:, 0] if self.key_shape else keys) ^ _SALT

    def table(self, **options: Any) -> gpuhash.HashTable:
        return gpuhash.HashTable(self.key_dtype, self.value_dtype, key_shape=self.key_shape, device=_DEVICE, **options)

    def slots_at(self, load: float, pairs: int) -> int:
        """Slots of a table whose memory, filters and all, has room for ``pairs / load`` pairs."""
        small, large = (self.table(capacity=1 << exponent) for exponent in (16, 20))
        per_slot = (large.nbytes - small.nbytes) / (large.capacity - small.capacity)
        fixed = large.nbytes - per_slot * large.capacity
        return max(pairs, int((pairs * self.pair_bytes / load - fixed) / per_slot))


PAIRS_8_8 = Layout(PAIR, "int64", (), "int64", 16)
PAIRS_4_4 = Layout("4 + 4 B", "int32", (), "int32", 8)
PAIRS_16_8 = Layout("16 + 8 B", "int64", (2,), "int64", 24)


@dataclass
class Data:
    """Keys in the order of insertion and in that of the lookups, and keys that are never inserted."""

    layout: Layout
    keys: torch.Tensor  # [pairs, *key_shape], unique
    values: torch.Tensor  # [pairs]
    lookups: torch.Tensor  # [pairs, *key_shape], the keys in another order
    absent: torch.Tensor  # [pairs, *key_shape]

    @classmethod
    def make(cls, layout: Layout, pairs: int) -> Data:
        keys = layout.keys(counter(0, pairs))
        return cls(
            layout, keys, layout.values(keys), layout.keys(permutation(pairs)), layout.keys(counter(pairs, pairs))
        )


class DataCache:
    """The data that suites share; holds those asked for last."""

    def __init__(self) -> None:
        self._data: Data | None = None

    def get(self, layout: Layout, pairs: int) -> Data:
        if self._data is None or self._data.layout != layout or len(self._data.keys) != pairs:
            self.drop()
            self._data = Data.make(layout, pairs)
        return self._data

    def drop(self) -> None:
        self._data = None
        torch.cuda.empty_cache()


def counter(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.int64, device=_DEVICE)


def timed(action: Action, *, before: Action = nothing, runs: int, warm_up: int = 2) -> Timing:
    """Seconds on the device of one call. ``before`` runs before each, outside of the time.

    The device is kept busy while the host enqueues, so that the host's part of a call is not in the figure, unless the
    call waits for the device.
    """
    seconds = []
    for run in range(warm_up + runs):
        before()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(_BUSY_CYCLES)
        start.record()
        action()
        end.record()
        end.synchronize()
        if run >= warm_up:
            seconds.append(start.elapsed_time(end) * 1e-3)
    return Timing.of(seconds)


def timed_in_turn(action: Action, *, calls: int, runs: int, warm_up: int = 1) -> Timing:
    """Seconds of one of ``calls`` calls in turn, from the first one's beginning to the last one's end on the device.

    So what the host does between them is in the figure, where they wait for the device.
    """
    seconds = []
    for run in range(warm_up + runs):
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            action()
        end.record()
        end.synchronize()
        if run >= warm_up:
            seconds.append(start.elapsed_time(end) * 1e-3 / calls)
    return Timing.of(seconds)


def timed_by_clock(action: Action, *, before: Action = nothing, runs: int, warm_up: int = 1) -> Timing:
    """Seconds of one call on the host's clock, from an idle device to an idle device."""
    seconds = []
    for run in range(warm_up + runs):
        before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        if run >= warm_up:
            seconds.append(time.perf_counter() - start)
    return Timing.of(seconds)


def free_bytes() -> int:
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])
