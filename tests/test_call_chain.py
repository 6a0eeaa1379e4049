"""Chains of calls, counted on the device: a small C++ program takes the steps, and a dict is the oracle."""

from __future__ import annotations

import subprocess

import numpy as np

COUNTERS = 8
WAYS = 8  # to make a step; tests/answers/chain_steps.cpp lists them


def expected(steps: list[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """What is written for each step: chains with one counter are looked after until a later one comes."""
    last: dict[int, tuple[int, int]] = {}
    lines = []
    for chain, version in steps:
        known, calls = last.get(chain % COUNTERS, (0, 0))
        if chain > known:
            known, calls = chain, 0
        misused = known == chain and calls != version
        if known == chain and not misused:
            calls += 1
        last[chain % COUNTERS] = (known, calls)
        lines.append((1000 + chain, chain, version + 1, 1000 + chain if misused else 0))
    return lines


def some_steps() -> list[tuple[int, int]]:
    by_hand = [(1, 0), (1, 1), (2, 0), (1, 1), (1, 2), (2, 1), (1, 3), (3, 5), (9, 0), (1, 4), (1, 7), (9, 1), (9, 1)]
    generator = np.random.default_rng(3)
    versions: dict[int, int] = {}
    for chain in generator.integers(1, 40, 600).tolist():
        version = versions.get(chain, 0)
        if generator.random() < 0.1:
            version = int(generator.integers(0, 5))
        by_hand.append((chain, version))
        versions[chain] = version + 1
    return by_hand


def test_every_second_use_of_a_state_is_found(answers, device):
    steps = some_steps()
    lines = expected(steps)
    assert {bool(misused) for *_, misused in lines} == {True, False}
    text = "".join(f"{chain} {version} {i % WAYS}\n" for i, (chain, version) in enumerate(steps))
    done = subprocess.run(
        [answers, "chain_steps", device, str(COUNTERS)],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert [tuple(map(int, line.split())) for line in done.stdout.splitlines()] == lines
