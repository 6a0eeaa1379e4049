"""Scratch memory of the host that is kept between calls: a small C++ program beside a list in Python."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from support.programs import CPP, TESTS, compile_program

LEAST = 1 << 16  # bytes of a block that is kept
LARGEST = 48 << 20  # likewise
MOST = 96 << 20  # bytes of all of them


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """ask(lines) -> what it takes, see tests/kept_blocks_answers.cpp: (number, capacity) of each."""
    folder = tmp_path_factory.mktemp("kept_blocks")
    sources = (TESTS / "kept_blocks_answers.cpp", CPP / "core" / "fork_safe_mutex.cpp")
    # Nothing is kept in a build that looks for freed memory in use: here the program looks, and keeps.
    looks = ("-g", "-fsanitize=address", "-U__SANITIZE_ADDRESS__")
    try:
        program = compile_program(folder, *sources, options=looks)
    except subprocess.CalledProcessError:  # not every compiler comes with what looks
        program = compile_program(folder, *sources)

    def answers(lines: list[str]) -> list[tuple[int, int]]:
        done = subprocess.run(
            [program], input="\n".join(lines), capture_output=True, text=True, check=True, timeout=60,
            env={"ASAN_OPTIONS": "detect_leaks=0"},
        )  # fmt: skip
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    return answers


def capacity(size: int) -> int:
    if not LEAST <= size <= LARGEST:
        return size
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step


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
