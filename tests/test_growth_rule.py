"""The rule of growth by itself: a small C++ program answers for it, and exact fractions are the oracle."""

from __future__ import annotations

import math
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np

MOST_SLOTS = 1 << 34
DENSEST = 0.95  # where the table picks its slots


def ask(program: Path, questions: list[tuple]) -> list[list[str]]:
    """What tests/answers/growth_rule.cpp says to each."""
    text = "".join(" ".join(map(repr, question)) + "\n" for question in questions)
    done = subprocess.run([program, "growth_rule"], input=text, capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == len(questions)
    return lines


def questions() -> list[tuple]:
    """(most_slots, max_capacity, max_load_factor, keys, slots, size); max_capacity 0: none."""
    generator = np.random.default_rng(8)
    drawn = [
        (MOST_SLOTS, int(most), float(factor), int(keys), int(slots), int(size))
        for most, factor, keys, slots, size in zip(
            generator.choice([0, 0, 16, 1000, 1 << 20, MOST_SLOTS], 3000),
            generator.choice([1.0, 0.97, 0.92, 0.8, 0.5, 0.1, 1 / 3, 1e-6], 3000),
            2 ** generator.uniform(0, 36, 3000),
            2 ** generator.uniform(0, 34, 3000),
            2 ** generator.uniform(0, 34, 3000),
            strict=True,
        )
    ]
    # A table may lie at its maximum, never beyond.
    drawn = [(most, top, f, k, min(s, top or s), min(z, top or z)) for most, top, f, k, s, z in drawn]
    edges = [
        (MOST_SLOTS, top, factor, keys, slots, 0)
        for top in (0, 8, 16)
        for factor in (1.0, 0.8, 1e-9)
        for keys in (0, 1, 7, 8, 9, 16, 17)
        for slots in (8, top or MOST_SLOTS)
    ]
    empty = [(*question[:5], 0) for question in drawn[:500]]
    return drawn + edges + empty


def test_answers(answers):
    """Limits, sizes and refusals; a table at its maximum fills to the last slot."""
    asked = questions()
    for question, answer in zip(asked, ask(answers, asked), strict=True):
        most_slots, max_capacity, factor, keys, slots, size = question
        limit, may_hold, slots_for, grown, may_grow, may_grow_afterwards, fits_beside, uncounted, ahead = answer
        most = max_capacity or most_slots
        at_maximum = max_capacity != 0 and slots >= max_capacity

        def taken(slots: int, factor: float = factor, max_capacity: int = max_capacity) -> int:
            return slots if slots == max_capacity else max(1, int(slots * factor))

        assert may_grow == str(int(not at_maximum)), question
        assert int(limit) == taken(slots), question
        assert int(grown) == (min(2 * slots, max_capacity) if max_capacity else 2 * slots), question

        def holds_so_many(
            keys: int, factor: float = factor, max_capacity: int = max_capacity, most_slots: int = most_slots
        ) -> bool:
            return keys <= max_capacity if max_capacity else math.ceil(keys / factor) <= most_slots

        holds = holds_so_many(keys)
        assert may_hold == str(int(holds)), question
        if not holds:
            assert slots_for == ("full" if max_capacity else "impossible"), question
        else:
            needed = int(slots_for)
            assert needed <= most, question
            assert taken(needed) >= keys or needed == most, question
            # No slot too many, but for what floating-point numbers round and for what keeps a table from being full.
            assert (needed - 2) * Fraction(min(factor, DENSEST)) < keys, question
            assert needed * Fraction(min(factor, DENSEST)) >= keys * Fraction(1 - 1e-12) or needed == most, question
        lightly = Fraction(keys) <= Fraction(0.92) * slots * (1 + Fraction(1, 1 << 52))
        if may_grow_afterwards == "1":
            assert (holds, at_maximum, lightly) == (True, False, True), question
        elif holds and not at_maximum:
            assert Fraction(keys) >= Fraction(0.92) * slots * (1 - Fraction(1, 1 << 52)), question
        lightest = 0 if at_maximum else int(Fraction(0.92) * slots)
        assert abs(int(uncounted) - max(int(limit), lightest)) <= 1, question
        assert fits_beside == str(int(not max_capacity or size + keys <= max_capacity)), question
        # Room for two more batches like this, or for twice the size, or in an empty table for half a batch more; for
        # this one alone where that is too much.
        expected = size + keys + (2 * min(size, keys) if size else keys // 2)
        if not holds_so_many(expected):
            expected = size + keys
        if not holds_so_many(expected):
            assert ahead == ("full" if max_capacity else "impossible"), question
        elif int(ahead) != int(grown):
            assert int(ahead) > int(grown), question
            assert taken(int(ahead)) >= expected or int(ahead) == most, question
            assert (int(ahead) - 2) * Fraction(min(factor, DENSEST)) < expected, question
        else:
            assert taken(int(ahead)) >= expected or int(ahead) >= most, question
