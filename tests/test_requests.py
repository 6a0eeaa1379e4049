"""Calls with requests of several batches, and changes that read the table's own rows, of tables on one device.

tests/answers/requests.cpp makes the calls: no face of the package gives a single table several batches.
"""

from __future__ import annotations

import subprocess

import numpy as np
import pytest


@pytest.fixture
def lines(answers, device) -> list[str]:
    done = subprocess.run([answers, "requests", device], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines()


def test_a_call_of_several_requests_is_one_after_the_other(lines):
    assert lines[:2] == [
        "1 1 1 0 1 of 4",  # 3 comes twice
        "33 -5 0 0 10 3 missing of 4",
    ]


def test_without_room_for_all_requests_none_is_inserted(lines):
    assert lines[2] == "full of 4"


def test_a_change_reads_what_is_there_afterwards(lines):
    assert lines[3] == "15 5 of 5"


def test_an_erasure_of_all_or_none_looks_at_all_requests(lines):
    assert lines[4:6] == ["1 missing of 5", "1 0 0 1 of 3"]


def test_a_change_may_read_the_tables_own_rows(lines):
    rows = np.array(lines[6].split(), "int64")
    values = np.arange(128).reshape(64, 2)
    storage = np.empty_like(values)
    storage[rows] = values
    assert (np.array(lines[7].split(), "int64").reshape(64, 2) == storage).all()
