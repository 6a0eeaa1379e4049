"""How much freed memory of the host is kept on this machine, as cpp/host/memory/kept_blocks.hpp has it."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_of_container() -> int:
    limits = [file.read_text().strip() for file in map(Path, GROUP_LIMITS) if file.is_file()]
    return min([machine_memory(), *(int(limit) for limit in limits if limit != "max")])


def most_kept(memory: int) -> int:
    """Of all blocks, in bytes, where processes have so much memory; one block may have half of it."""
    return min(max(memory // 512, 96 * MIB), 192 * MIB)
