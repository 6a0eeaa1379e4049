"""Parts of a table by themselves: C++ compares each with a model, and ends with the first difference."""

from __future__ import annotations

import subprocess

import pytest


@pytest.mark.parametrize("part", ["size_ledger", "forecasts", "counted_batches"])
def test_part(answers, part):
    done = subprocess.run([answers, part], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
