"""Scratch memory of the host that is kept between calls: a small C++ program beside a list in Python."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.kept_memory import MIB, machine_memory, memory_of_container, most_kept
from support.programs import compile_kept_blocks, made_once, shared_folder

GIB = 1 << 30
LEAST = 1 << 16  # bytes of a block that is kept
MOST = 100 * MIB  # bytes of all of them
LARGEST = MOST // 2


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """ask(lines) -> what it takes, see tests/answers/kept_blocks.cpp: (number, capacity) of each."""
    program = made_once(shared_folder(tmp_path_factory) / "kept_blocks", compile_kept_blocks)

    def answers(lines: list[str]) -> list[tuple[int, int]]:
        done = subprocess.run(
            [program, str(MOST)], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60,
            env={"ASAN_OPTIONS": "detect_leaks=0"},
        )  # fmt: skip
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    return answers


def capacity(size: int) -> int:
    if not LEAST <= size <= LARGEST:
        return size
    step = 1 << (size.bit_length() - 3)
    return min(-(-size // step) * step, LARGEST)


class Model:
    """What is kept, as a list."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []  # number and capacity; the last one freed comes last
        self.taken: list[tuple[int, int]] = []  # number and bytes
        self.lines: list[str] = []
        self.wanted: list[tuple[int, int]] = []

    def take(self, size: int) -> int:
        wanted = capacity(size)
        number = len(self.taken)
        for i in reversed(range(len(self.kept))):
            if self.kept[i][1] == wanted:
                number = self.kept.pop(i)[0]
                break
        self.lines.append(f"take {size}")
        self.wanted.append((number, wanted))
        self.taken.append((number, size))
        return len(self.taken) - 1

    def keep(self, which: int) -> None:
        number, size = self.taken[which]
        self.lines.append(f"keep {which}")
        if not LEAST <= capacity(size) <= LARGEST:
            return
        self.kept.append((number, capacity(size)))
        while sum(held for _, held in self.kept) > MOST:
            self.kept.pop(0)


def test_every_size_has_a_capacity_that_holds_it(ask):
    sizes = [
        1,
        LEAST - 1,
        LEAST,
        LEAST + 1,
        LARGEST - 1,
        LARGEST,
        LARGEST + 1,
        LARGEST + 4097,
        *(1000 * n * n for n in range(1, 180)),
    ]
    answers = ask([f"take {size}" for size in sizes])
    for size, (_, got) in zip(sizes, answers, strict=True):
        assert got == capacity(size)
        assert size <= got <= max(size, size * 5 / 4)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_handed_out_again(ask, seed):
    """Which one, against a list; the oldest go first, and none is used by two."""
    rng = np.random.default_rng(seed)
    model = Model()
    in_use: list[int] = []
    for _ in range(600):
        if in_use and (len(in_use) > 12 or rng.random() < 0.45):
            model.keep(in_use.pop(int(rng.integers(len(in_use)))))
        else:
            in_use.append(model.take(int(2 ** rng.uniform(10, 25.7))))
    answers = ask(model.lines)
    assert answers == model.wanted
    assert len({number for number, _ in answers}) < len(answers)  # some came again


def test_more_is_kept_where_there_is_more_memory(ask):
    sizes = [0, GIB, 24 * GIB, 48 * GIB, 64 * GIB, 96 * GIB, 128 * GIB, 1024 * GIB]
    answers = ask([f"most {size}" for size in sizes])
    assert [most for most, _ in answers] == list(map(most_kept, sizes))
    assert {most for most, _ in answers} == {96 * MIB, 128 * MIB, 192 * MIB}


def test_a_container_has_what_its_control_group_says(ask):
    assert ask(["memory 0"]) == [(memory_of_container(), machine_memory())]


OUT_OF_ADDRESSES = """
import resource
from pathlib import Path

import numpy as np

from gpuhash import _core

MIB = 1 << 20
kept = _core.empty_array((40 * MIB,), np.dtype("uint8"))
kept[:] = 1
del kept
used = next(int(line.split()[1]) << 10 for line in Path("/proc/self/status").open() if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + 4 * MIB, used + 4 * MIB))
try:
    _core.empty_array((100 * MIB,), np.dtype("uint8"))
except MemoryError:
    pass
else:
    raise AssertionError("the limit is none")
array = _core.empty_array((25 * MIB,), np.dtype("uint8"))
array[:] = 2
assert array.sum(dtype="int64") == 2 * array.size
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_what_is_kept_goes_before_memory_runs_out():
    done = subprocess.run([sys.executable, "-P", "-c", OUT_OF_ADDRESSES], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
