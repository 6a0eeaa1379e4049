"""The oracles of other tests that are written here, against dicts and NumPy; and which cases are chosen."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.applied import applied
from support.first_seen import first_seen, is_first, is_member, numbered
from support.frameworks import GPU, PLACES, missing_gpu
from support.gpu_cases import left_out, needs_gpu
from support.items import Items
from support.pairwise import covering, pairs_of

RNG = np.random.default_rng(0)
KEYS = {
    "none": np.empty(0, np.int64),
    "one": np.array([7]),
    "small": RNG.integers(-50, 50, 1000),
    "int8": RNG.integers(-128, 128, 1000).astype(np.int8),
    "bool": RNG.random(100) < 0.5,
    "high bits alone": RNG.integers(-50, 50, 1000) << 44,
    "uint64": RNG.integers(0, 50, 1000).astype(np.uint64) << np.uint64(44),
    "large uint64": RNG.integers(0, 1 << 64, 1000, np.uint64) | np.uint64(1 << 63),
    "far apart": RNG.choice(RNG.integers(-(1 << 63), 1 << 63, 100), 1000),
    "whole floats": RNG.integers(-50, 50, 1000).astype(np.float32),
    "floats": RNG.choice(RNG.standard_normal(100), 1000),
    "bytes": RNG.choice(RNG.integers(0, 256, (20, 5), np.uint8).view("S5").ravel(), 1000),
}


@pytest.mark.parametrize("kind", KEYS)
def test_first_occurrences(kind):
    keys = KEYS[kind]
    numbers = numbered(keys)
    values, firsts, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    assert (np.sign(np.diff(numbers[firsts])) > 0).all()  # in their order
    order = np.argsort(firsts)
    got_firsts, codes, got_counts = first_seen(numbers)
    np.testing.assert_array_equal(got_firsts, firsts[order])
    np.testing.assert_array_equal(values[order][codes] if len(keys) else keys, keys)
    np.testing.assert_array_equal(codes, np.argsort(order)[inverse])
    np.testing.assert_array_equal(got_counts, counts[order])
    np.testing.assert_array_equal(np.flatnonzero(is_first(numbers, int(numbers.max(initial=-1)) + 1)), np.sort(firsts))


@pytest.mark.parametrize("kind", [kind for kind in KEYS if kind != "bytes"])
def test_members(kind):
    keys = KEYS[kind]
    for tests in (keys[:0], keys[:1], keys[: len(keys) // 30]):
        np.testing.assert_array_equal(is_member(keys, tests), np.isin(keys, tests))


@pytest.mark.parametrize("op", ["add", "max", "bit_xor"])
def test_applied_values_are_those_of_a_loop(op):
    loop = {"add": lambda a, b: a + b, "max": max, "bit_xor": lambda a, b: a ^ b}[op]
    before, present = RNG.integers(-9, 9, 50), np.arange(50) < 20
    draws, values = RNG.integers(0, 40, 300), RNG.integers(-9, 9, 300)
    model = dict(enumerate(before[:20].tolist()))
    new = []
    for key, value in zip(draws.tolist(), values.tolist(), strict=True):
        new.append(key not in model)
        model[key] = loop(model[key], value) if key in model else value
    after, mask = applied(before, present, draws, values, op)
    assert mask.tolist() == new
    assert {key: after[key] for key in model} == model


@pytest.mark.parametrize("shape", [(), (2,), (3,)], ids=str)
def test_items_are_those_of_dicts(shape):
    """Also of keys whose last bytes are zeros."""
    keys = np.unique(RNG.integers(0, 9, (60, *shape)), axis=0) if shape else np.arange(60)
    values = RNG.integers(0, 99, (len(keys), 2))

    def both(which):
        pairs = zip(keys[which].reshape(len(which), -1).tolist(), values[which].tolist(), strict=True)
        return Items(keys[which], values[which]), {tuple(key): tuple(value) for key, value in pairs}

    def same(items, model):
        if not model:
            return len(items) == 0
        wanted = np.array(list(model)).reshape(-1, *shape)
        return items == Items(wanted, np.array(list(model.values())))

    order = RNG.permutation(len(keys))
    (one, first), (other, second) = both(order[:30]), both(order[20:50])
    values = values + 1  # other values of the same keys
    (changed, third) = both(order[20:50])
    assert same(one, first)
    assert one != other
    assert other != changed
    assert same(one | changed, first | third)
    assert same(one & changed, {key: value for key, value in first.items() if key in third})
    assert same(one - changed, {key: value for key, value in first.items() if key not in third})
    assert same(one[10:], dict(list(first.items())[10:]))
    np.testing.assert_array_equal(changed.values_of(one & changed), [third[key] for key in list(first)[20:]])
    twice = np.concatenate([order[:10], order[:5]])
    assert Items.last_of(keys[twice], np.arange(15)) == Items(keys[order[:10]], np.r_[10:15, 5:10])
    with pytest.raises(AssertionError, match="a key comes twice"):
        Items(keys[[1, 1]], values[:2])
    assert second.keys() == third.keys()


def test_every_two_values_meet_in_a_chosen_case():
    axes = {"a": "1234", "b": "xyz", "c": "tf", "d": "tf"}
    cases = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    pairs = [pairs_of(case) for case in cases]
    chosen = covering(pairs)
    assert chosen == sorted(set(chosen))
    assert set().union(*(pairs[position] for position in chosen)) == set().union(*pairs)
    assert 12 <= len(chosen) <= 16  # of 48; 4 times 3 at least
    alone = [pairs_of({"a": value}) for value in "1234"]
    assert covering(alone) == [0, 1, 2, 3]


# Cases that need a GPU ------------------------------------------------------------------------------------------------


def test_parameters_that_need_a_gpu():
    of_gpu = {place.name for place in PLACES if needs_gpu(place)}
    assert of_gpu == {"torch", "cupy", "jax", "tensorflow", "numpy"}
    assert sum(map(needs_gpu, PLACES)) == 5
    assert all(map(needs_gpu, (GPU, "cuda", "cuda-partitioned", ["cpu", GPU], ("x", (1, PLACES[-1])))))
    assert not any(map(needs_gpu, ("cpu", 1, None, ["cpu"], ("x", PLACES[0]), "of a cuda")))


@dataclass(frozen=True)
class Case:
    """Of an item what tells whether it needs a GPU."""

    parameter: str
    fixturenames: tuple[str, ...] = ()
    mark: str | None = None

    @property
    def callspec(self):
        return SimpleNamespace(params={"device": self.parameter})

    def get_closest_marker(self, name):
        return self.mark if self.mark == name else None


@pytest.mark.parametrize("why", ["required", "recorded", "neither"])
def test_cases_that_need_a_gpu_are_left_out_where_there_is_none(monkeypatch, why):
    of_host = {Case("cpu"), Case("cpu", ("device",)), Case("cpu", mark="long")}
    of_gpu = {Case(GPU), Case("cpu", ("torch_cuda",)), Case("cpu", mark="gpu")}
    monkeypatch.setenv("GPUHASH_REQUIRE_CUDA", "1" if why == "required" else "0")
    config = SimpleNamespace(getoption=lambda name: name == "--gpu-record" and why == "recorded")
    monkeypatch.setattr("support.gpu_cases.missing_gpu", lambda: "none is here")
    assert left_out(config, of_host | of_gpu) == (of_gpu if why == "neither" else set())
    monkeypatch.setattr("support.gpu_cases.missing_gpu", lambda: None)
    assert left_out(config, of_host | of_gpu) == set()


GOLDEN = Path(__file__).with_name("test_golden.py")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_says_how_many_cases_need_a_gpu(workers):
    """Also where the processes that collect them are others than the one that says so."""
    if workers:
        pytest.importorskip("xdist")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain"]
    done = subprocess.run(
        [*command, *(["-n", str(workers)] if workers else ["--collect-only"]), f"{GOLDEN}::test_probe_order"],
        env={**os.environ, "GPUHASH_REQUIRE_CUDA": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"(\d+) cases need a GPU and were left out: (.*)", done.stdout)
    reason = missing_gpu()
    assert told == ([] if reason is None else [("6", reason)]), done.stdout
