"""Floats are computed as IEEE 754 says, whatever mode the calling thread is in, and its mode stays what it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.float_modes import MODES, current, float_mode

import gpuhash
from gpuhash import Column, HashTable, initializers

FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
#: A few of the smallest subnormal numbers, and what comes to more digits than the dtype has.
TINY = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}


def tiny_of(dtype: str) -> float:
    return TINY[{"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)]


def bits(table: HashTable, keys: np.ndarray) -> bytes:
    found, there = table.find(keys)
    assert np.all(there)
    return np.asarray(found).tobytes()


def reduced(dtype: str, op: str, keys: np.ndarray, numbers: np.ndarray, shape: Any, device: Any) -> bytes:
    table = HashTable("int64", dtype, value_shape=shape, device=device)
    wide = numbers.reshape(-1, *([1] * bool(shape)))
    values = np.broadcast_to(wide, (len(keys), *([shape] if shape else []))).copy()
    table.insert_or_apply(keys, values, op)
    return bits(table, np.unique(keys))


CASES = [
    (dtype, op)
    for dtype in ("float16", "float32", "float64", "complex64", "complex128")
    for op in ("add", "multiply", "max", "min")
    if op in ("add", "multiply") or not dtype.startswith("complex")  # which have no order
]


@pytest.mark.pairwise
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "op"), CASES)
@pytest.mark.parametrize(
    ("count", "shape", "device"),
    [(64, (), "cpu"), (1 << 17, (), "cpu"), (64, 3, "cpu"), (1 << 10, (), ["cpu", "cpu"])],
    ids=["small", "large", "rows", "sharded"],
)
def test_reductions_do_not_depend_on_the_mode(count, shape, device, dtype, op, mode):
    rng = np.random.default_rng(0)
    keys = rng.permutation(np.arange(count) // 2)
    numbers = np.where(rng.random(count) < 0.5, tiny_of(dtype) * rng.integers(1, 9, count), 1 + rng.random(count) / 3)
    numbers = numbers.astype(dtype)
    expected = reduced(dtype, op, keys, numbers, shape, device)
    with float_mode(mode):
        before = current()
        got = reduced(dtype, op, keys, numbers, shape, device)
        after = current()
    assert got == expected
    assert after == before != 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_right_maximum_of_subnormal_numbers(dtype):
    numbers = (tiny_of(dtype) * np.array([1, 2, 0])).astype(dtype)
    table = HashTable("int64", dtype)
    with float_mode("flush"):
        table.insert_or_apply(np.zeros(3, np.int64), numbers, "max")
    assert np.asarray(table.values()).tobytes() == numbers[1:2].tobytes()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_python_numbers(dtype, mode):
    number = tiny_of(dtype) * 3

    def stored() -> list[bytes]:
        key = np.zeros(1, np.int64)
        tables = [HashTable("int64", dtype) for _ in range(3)]
        tables[0].insert_or_apply(key, number, "add")
        tables[1][key] = [number]
        tables[2][0] = number
        default = HashTable("int64", dtype, default=number)
        texts = [np.asarray(table.values()).tobytes() for table in tables]
        return [*texts, np.asarray(default[key]).tobytes(), np.asarray(tables[0].get(key + 1, number)).tobytes()]

    expected = stored()
    assert any(expected[0])
    with float_mode(mode):
        got = stored()
    assert got == expected


def test_tables_of_different_subnormal_numbers_differ():
    one, two = HashTable("int64", "float32"), HashTable("int64", "float32")
    one[0], two[0] = 1e-40, 2e-40
    with float_mode("flush"):
        assert one != two
        assert one != {0: 0.0}


def test_keys_that_are_floats():
    numbers = np.array([1e-40, 0.0, 2e-40, -0.0, -1e-40], np.float32)
    many = np.resize(numbers, 1 << 17)
    with float_mode("flush"):
        few, order = gpuhash.unique(numbers), gpuhash.unique(numbers, sorted=True)
        codes = gpuhash.factorize(many)[0]
        member = gpuhash.isin(many, numbers[1:2])
    assert few.tolist() == [np.float32(1e-40), 0, np.float32(2e-40), np.float32(-1e-40)]
    assert order.tolist() == sorted(few.tolist())
    assert codes[:5].tolist() == [0, 1, 2, 1, 3]
    assert member[:5].tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_drawn(mode):
    def drawn() -> bytes:
        table = HashTable("int64", "float32", value_shape=5, initializer=initializers.Normal(1e-39, seed=3))
        keys = np.arange(1000)
        table.find_or_insert(keys)
        return np.asarray(table[keys]).tobytes()

    expected = drawn()
    with float_mode(mode):
        assert drawn() == expected


@pytest.mark.parametrize("mode", MODES)
def test_columns(mode):
    keys = np.repeat(np.arange(50), 2)
    numbers = (1e-40 * (1 + np.arange(100))).astype(np.float32)

    def summed() -> bytes:
        table = HashTable("int64", {"a": Column("float32"), "b": Column("float32")})
        table.insert_or_apply(keys, {"a": numbers, "b": numbers}, {"a": "add", "b": "max"})
        found = table[np.arange(50)]
        return np.asarray(found["a"]).tobytes() + np.asarray(found["b"]).tobytes()

    expected = summed()
    assert any(expected)
    with float_mode(mode):
        got = summed()
    assert got == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RowWiseAdagrad", "Adam", "LAMB"])
def test_training(name, mode):
    torch = pytest.importorskip("torch")
    hash_torch = pytest.importorskip("gpuhash.torch")

    gradients = torch.full((10, 4), 0.7)  # PyTorch rounds as its thread does

    def trained() -> bytes:
        optimizer = getattr(hash_torch, name)(lr=1e-38)
        module = hash_torch.HashEmbedding(4, optimizer=optimizer, initializer=initializers.Constant(1e-39))
        ids = torch.arange(10) % 5
        module(ids).backward(gradients)
        return module.table[np.arange(5)]["weight"].tobytes()

    torch.manual_seed(0)
    expected = trained()
    torch.manual_seed(0)
    with float_mode(mode):
        got = trained()
    assert got == expected


THREADS = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from support.float_modes import float_mode
from gpuhash import HashTable, set_num_threads

set_num_threads(4)
n = 1 << 20
keys = np.arange(n) // 2
numbers = np.where(np.arange(n) % 2, np.float32(0), np.float32(1e-40))
with float_mode("flush"):
    HashTable("int64", "float32").insert_or_apply(keys, numbers, "max")  # starts the pool's threads
table = HashTable("int64", "float32")
table.insert_or_apply(keys, numbers, "max")
values = np.asarray(table.values())
assert (values == np.float32(1e-40)).all(), (values != np.float32(1e-40)).sum()
"""


def test_threads_of_the_pool_have_the_default_mode():
    done = subprocess.run(
        [sys.executable, "-P", "-c", THREADS, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
