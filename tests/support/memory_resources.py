"""Memory resources written in Python, with the protocol of rmm and cuda.core; they count and they can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpuhash.arrays.memory import TorchResource
from support.frameworks import GPU_INDEX


class CountingMemory:
    """Keeps book of every block; raises `failure` at allocation number `fail_at`, from 1."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, Any]] = {}
        self.calls = 0
        self.fail_at: int | None = None
        self.failure: type[BaseException] = MemoryError
        self.mistakes: list[str] = []
        self.nbytes = 0
        self.peak = 0  # the most bytes at once

    def fail_after(self, allocations: int | None) -> None:
        """Let the next `allocations` succeed and the one after them fail; None: never fail."""
        self.fail_at = None if allocations is None else self.calls + allocations + 1

    def allocate(self, nbytes: int, stream: Any = None) -> int:
        self.calls += 1
        if self.calls == self.fail_at:
            raise self.failure(f"no {nbytes} bytes in this test")
        address, owner = self.take(nbytes, stream)
        if address in self.blocks:
            self.mistakes.append(f"{address:#x} was given twice")
        self.blocks[address] = (nbytes, owner)
        self.nbytes += nbytes
        self.peak = max(self.peak, self.nbytes)
        return address

    def deallocate(self, ptr: int, nbytes: int, stream: Any = None) -> None:
        if ptr not in self.blocks or self.blocks[ptr][0] != nbytes:
            self.mistakes.append(f"deallocate({ptr:#x}, {nbytes}) of a block that was never given")
            return
        _, owner = self.blocks.pop(ptr)
        self.nbytes -= nbytes
        self.give(ptr, nbytes, stream, owner)

    def take(self, nbytes: int, stream: Any) -> tuple[int, Any]:
        raise NotImplementedError

    def give(self, ptr: int, nbytes: int, stream: Any, owner: Any) -> None:
        raise NotImplementedError


class NumPyMemory(CountingMemory):
    def take(self, nbytes: int, stream: Any) -> tuple[int, Any]:
        block = np.full(nbytes + 128, 0xA5, np.uint8)  # whoever reads before writing shall not find zeros
        return (block.ctypes.data + 127) // 128 * 128, block

    def give(self, ptr: int, nbytes: int, stream: Any, owner: Any) -> None:
        owner[:] = 0x5A  # nor find the old bytes after giving them back

    def block(self, nbytes: int) -> np.ndarray:
        """The one block of this many bytes that is out, uint8 [nbytes]: the memory itself."""
        ((address, owner),) = [(address, owner) for address, (size, owner) in self.blocks.items() if size == nbytes]
        first = address - owner.ctypes.data
        return owner[first : first + nbytes]

    def slots_and_filters(self, buckets: int, bucket_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """Those of the one table that is out: they lie in a block, in whole lines, before its counters."""
        line, counters = 128, 14 * 8
        slots, filters = buckets * bucket_bytes, (buckets + 3) // 4 * 4
        begin = -(-slots // line) * line
        block = self.block(begin + -(-filters // line) * line + counters)
        return block[:slots], block[begin : begin + filters]


class TorchCudaMemory(CountingMemory):
    """PyTorch's allocator, through what gpuhash itself takes it by: a block may go back on another stream."""

    def __init__(self, index: int = GPU_INDEX) -> None:
        super().__init__()
        self.torch = TorchResource(index)

    def take(self, nbytes: int, stream: Any) -> tuple[int, Any]:
        return self.torch.allocate(nbytes, int(stream or 0)), None

    def give(self, ptr: int, nbytes: int, stream: Any, owner: Any) -> None:
        self.torch.deallocate(ptr, nbytes, int(stream or 0))


def counting_memory(device: str) -> CountingMemory:
    return NumPyMemory() if device == "cpu" else TorchCudaMemory(int(device.partition(":")[2] or GPU_INDEX))


def fail_each_allocation(memory: CountingMemory, run: Callable[[], None]) -> None:
    """Makes each allocation of `run` fail once: it raises MemoryError, and all memory is given back.

    How many there are may differ between two runs, as hashes have secret factors. Ends with the run that has fewer.
    """
    for failing in range(1000):
        calls = memory.calls
        memory.fail_after(failing)
        try:
            run()
        except MemoryError as error:
            assert "in this test" in str(error)  # noqa: PT017
            assert memory.calls >= memory.fail_at
            memory.fail_after(None)
        else:
            assert memory.calls - calls <= failing
            memory.fail_after(None)
            assert failing > 0
            return
        assert memory.nbytes == 0
    pytest.fail("1000 allocations were not enough")
