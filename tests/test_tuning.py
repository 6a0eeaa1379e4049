"""Thresholds: what a measurement chose can be changed, for tests and benchmarks, and be put back."""

from __future__ import annotations

import numpy as np
import pytest
from support.samples import same_bytes
from support.tuning import PARTITIONED, WIDE_POSITIONS, tuned

from gpuhash import HashTable, _core


def test_every_threshold_is_known_by_its_name():
    values = _core.thresholds()
    assert values.keys() >= PARTITIONED.keys() | WIDE_POSITIONS.keys()
    for name, value in values.items():
        assert _core.set_threshold(name, value) == value
    assert _core.thresholds() == values


def test_all_are_put_back_whatever_happens():
    before = _core.thresholds()
    with pytest.raises(ValueError, match="lies between 1 and"), tuned(sample_keys=64, listed_keys=0):
        pytest.fail("no list holds no keys")
    with pytest.raises(ValueError, match="there is no threshold 'size'"), tuned(sample_keys=64, size=1):
        pytest.fail("there is none of that name")
    with tuned(sample_keys=64, open_part=2):
        assert _core.thresholds() == before | {"sample_keys": 64, "open_part": 2}
    assert _core.thresholds() == before


@pytest.mark.parametrize("extreme", ["least", "largest"])
def test_answers_do_not_depend_on_them(extreme):
    """Whatever is chosen, a table holds what it was given, and counts what came how often."""
    values: dict[str, int] = {}
    for name, value in _core.thresholds().items():
        for trial in (0, 1, 16) if extreme == "least" else (1 << 40, 1 << 31, value):
            try:
                with tuned(**{name: trial}):
                    values[name] = trial
                break
            except ValueError:
                pass
    rng = np.random.default_rng(1)
    with tuned(**values):
        table = HashTable("int64", "int64")
        counts = np.zeros(40_000, np.int64)
        for top in (300, 40_000, 40_000):
            keys = rng.integers(0, top, 30_000)
            expected = np.zeros(len(keys), bool)
            expected[np.unique(keys, return_index=True)[1]] = True
            same_bytes(table.insert_or_apply(keys, 1, "add"), expected & (counts[keys] == 0))
            counts += np.bincount(keys, minlength=len(counts))
        present = np.flatnonzero(counts)
        assert len(table) == len(present)
        same_bytes(table[present], counts[present])
