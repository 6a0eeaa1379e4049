"""unique, factorize and isin of gpuhash.jax, eager and compiled, beside loops over dict, NumPy and jnp.unique."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.frameworks import platform_of
from support.jit import need_jax
from support.samples import COMPLEX, FLOATS, as_bytes, random_keys, random_values, same_bytes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def programs(device):
    return need_jax(device)


@pytest.fixture(params=["eager", "jit"])
def mode(request):
    return request.param


def draws(dtype, shape, count, distinct):
    rng = np.random.default_rng([count, distinct])
    if dtype == "bool":
        return rng.random((count, *shape)) < 0.3
    keys = random_keys(dtype, shape, max(1, distinct))
    return keys[rng.integers(0, len(keys), count)]


def expected(keys, size, fill):
    """What unique gives, by a loop over a dict: values, indices, inverse and counts."""
    ids: dict[bytes, int] = {}
    inverse = np.array([ids.setdefault(item, len(ids)) for item in as_bytes(keys).tolist()], np.int64)
    firsts = np.array([np.flatnonzero(inverse == number)[0] for number in range(len(ids))], np.int64)
    counts = np.bincount(inverse, minlength=len(ids))[:size]
    values = keys[firsts][:size]
    rest = size - len(values)
    filler = keys[:1] if fill is None else np.broadcast_to(np.asarray(fill, keys.dtype), (1, *keys.shape[1:]))
    return (
        np.concatenate([values, np.repeat(filler, rest, axis=0)]),
        np.concatenate([firsts[:size], np.repeat(firsts[:1], rest)]),
        inverse,
        np.concatenate([counts, np.zeros(rest, np.int64)]),
    )


@functools.lru_cache(32)
def everything_of(programs, mode, size, fill, axis):
    """All that is compared; the same function for the same arguments, so that keys of one shape share a program."""

    def everything(keys):
        found = programs.ours.unique(
            keys,
            size=size,
            fill_value=fill,
            return_index=True,
            return_inverse=True,
            return_counts=True,
            axis=axis,
        )
        codes, uniques = programs.ours.factorize(keys, size=size, fill_value=fill, axis=axis)
        return found, codes, uniques, programs.ours.unique(keys, size=size, fill_value=fill, axis=axis)

    return programs.compiled(everything, mode)


def check(programs, mode, keys, size, fill=None, axis=None):
    array = programs.put(keys)
    found, codes, uniques, alone = everything_of(programs, mode, size, fill, axis)(array)
    room = len(keys) if size is None else size
    values, firsts, inverse, counts = expected(keys, room, fill)
    assert found._fields == ("values", "indices", "inverse", "counts")
    for each in (found.values, uniques, alone):
        assert each.devices() == array.devices()
        same_bytes(each, values)
    same_bytes(found.indices, firsts)
    same_bytes(found.inverse, inverse)
    same_bytes(codes, inverse)
    same_bytes(found.counts, counts)


@pytest.mark.pairwise
@pytest.mark.parametrize("count", [1, 33, 4097])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64"])
def test_numbers(programs, mode, dtype, count):
    for distinct in (1, max(1, count // 16), count):
        keys = draws(dtype, (), count, distinct)
        for size, fill in ((None, None), (max(1, distinct // 2), None), (count + 5, 1), (0, None)):
            check(programs, mode, keys, size, fill)


@pytest.mark.parametrize("key_type", [("int32", (2,)), ("uint8", (3,)), ("int64", (2,))], ids=str)
def test_rows(programs, mode, key_type):
    keys = draws(*key_type, 500, 60)
    for size in (None, 10, 600):
        check(programs, mode, keys, size, axis=0)


def test_a_large_batch(programs):
    keys = np.random.default_rng(4).integers(0, 1 << 19, 1 << 20)
    found = programs.jax.jit(
        lambda keys: programs.ours.unique(keys, size=1 << 19, return_inverse=True, return_counts=True)
    )(programs.put(keys))
    values, inverse, counts = map(np.asarray, found)
    distinct, wanted = np.unique(keys, return_counts=True)
    np.testing.assert_array_equal(values[inverse], keys)
    order = np.argsort(values[: len(distinct)])
    same_bytes(values[: len(distinct)][order], distinct)
    same_bytes(counts[: len(distinct)][order], wanted)
    assert not counts[len(distinct) :].any()


def test_as_jnp_unique(programs):
    """Sorted, and with its arguments, it is a drop-in; but for the inverse of keys that were left out."""
    keys = programs.put(np.random.default_rng(5).integers(0, 300, 1000))
    for size, fill in ((300, None), (400, None), (400, -1)):
        flags = {"return_index": True, "return_inverse": True, "return_counts": True, "size": size, "fill_value": fill}
        ours = programs.jax.jit(lambda keys, flags=flags: programs.ours.unique(keys, sorted=True, **flags))(keys)
        theirs = programs.jax.numpy.unique(keys, **flags)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, np.asarray(other).reshape(one.shape))


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_floats_compare_as_numbers(programs, dtype):
    values = random_values(dtype, (200,))
    values[10:30] = 0
    values[15] = -0.0
    values[40:44] = np.nan
    found = programs.jax.jit(lambda keys: programs.ours.unique(keys, return_inverse=True, return_counts=True))(
        programs.put(values)
    )
    wide = values.astype("complex128" if dtype in COMPLEX else "float64")
    distinct, counts = np.unique(wide, return_counts=True)
    assert np.asarray(found.counts).sum() == 200
    assert (np.asarray(found.counts) > 0).sum() == len(distinct)
    assert sorted(np.asarray(found.counts)[: len(distinct)]) == sorted(counts)
    same_bytes(np.asarray(found.values)[np.asarray(found.inverse)][:10], values[:10])


def test_no_keys(programs, mode):
    nothing = programs.put(np.zeros(0, np.int64))
    run = programs.compiled(
        lambda keys: programs.ours.unique(keys, size=3, fill_value=7, return_counts=True, return_inverse=True), mode
    )
    values, inverse, counts = run(nothing)
    assert values.tolist() == [7, 7, 7]
    assert inverse.shape == (0,)
    assert counts.tolist() == [0, 0, 0]
    assert programs.ours.unique(nothing).shape == (0,)
    with pytest.raises(ValueError, match="give fill_value="):
        programs.ours.unique(nothing, size=3)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float32", "bool"])
def test_isin(programs, mode, dtype, invert):
    values = random_values(dtype, (500,), 1)
    tests = random_values(dtype, (100,), 2)
    run = programs.compiled(lambda values, tests: programs.ours.isin(values, tests, invert=invert), mode)
    for shape in ((500,), (5, 100)):
        for some in (tests, tests[:0]):
            mask = run(programs.put(values.reshape(shape)), programs.put(some))
            same_bytes(mask, np.isin(values, some, invert=invert).reshape(shape))


def test_isin_of_rows_and_numbers(programs):
    ours = programs.ours
    rows = programs.put(np.arange(12).reshape(6, 2))
    assert ours.isin(rows, rows[1:3], axis=0).tolist() == [False, True, True, False, False, False]
    assert ours.isin(programs.put(np.int32([1, 2, 3])), [3, 4]).tolist() == [False, False, True]


def test_vmap(programs):
    """Each lane by itself."""
    keys = np.random.default_rng(6).integers(0, 5, (4, 20))
    found = programs.jax.vmap(lambda keys: programs.ours.unique(keys, size=6, fill_value=-1, return_inverse=True))(
        programs.put(keys)
    )
    for lane in range(4):
        values, _, inverse, _ = expected(keys[lane], 6, -1)
        same_bytes(found.values[lane], values)
        same_bytes(found.inverse[lane], inverse)
    mask = programs.jax.vmap(programs.ours.isin)(programs.put(keys), programs.put(keys[:, :2]))
    assert np.asarray(mask).tolist() == [np.isin(row, row[:2]).tolist() for row in keys]


def test_in_a_loop(programs):
    def step(total, keys):
        values, counts = programs.ours.unique(keys, size=8, fill_value=0, return_counts=True)
        return total + (values * counts).sum(), None

    keys = np.random.default_rng(7).integers(0, 8, (100, 50))
    total, _ = programs.jax.jit(lambda keys: programs.jax.lax.scan(step, programs.jax.numpy.int64(0), keys))(
        programs.put(keys)
    )
    assert int(total) == keys.sum()


def test_the_example(device):
    """A training step whose batch is deduplicated; the example compares itself with jnp.unique."""
    need_jax(device)
    example = ROOT / "examples" / "jax_dedup.py"
    done = subprocess.run(
        [sys.executable, "-P", str(example), "--device", platform_of(device), "--steps", "12"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"on {platform_of(device)}" in done.stdout
    assert "times faster: unique" in done.stdout
    assert "largest difference between their rows" in done.stdout


def test_the_benchmark(device):
    """It checks all results before it measures."""
    need_jax(device)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.jax_programs", "--device", platform_of(device), "--quick"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in ("| find |", "| insert_or_assign |", "| program of an empty custom call |", "| 2^16 keys |"):
        assert line in done.stdout


def test_bad_input(programs):
    ours = programs.ours
    keys = programs.put(np.arange(6))
    for call, error, message in (
        (lambda: ours.unique(keys, size=-1), ValueError, "size=-1"),
        (lambda: ours.unique(keys, size="a"), TypeError, "size='a'"),
        (lambda: ours.unique(keys, sorted="no"), TypeError, "sorted='no' was given, expected True or False"),
        (lambda: ours.isin(keys, keys, invert="no"), TypeError, "invert='no' was given, expected True or False"),
        (lambda: ours.unique(keys, axis=1), ValueError, "axis=1"),
        (lambda: ours.unique(keys.reshape(1, 6), axis=0), ValueError, "48 bytes"),
        (lambda: ours.unique(keys[0], axis=0), ValueError, "single number"),
        (lambda: ours.unique({1: 2}), TypeError, "dict"),
        (lambda: ours.isin(keys, keys.astype("int32")), TypeError, "int64 and the test_elements int32"),
        (lambda: ours.isin(keys.reshape(3, 2), keys[:, None], axis=0), ValueError, "rows of shape"),
        (lambda: programs.jax.jit(lambda n: ours.unique(keys, size=n))(3), TypeError, "expected an integer"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_lists_of_other_numbers_are_refused(programs):
    """Not cut down to the dtype of the other side."""
    jnp, ours = programs.jax.numpy, programs.ours
    keys = programs.put(np.array([1, 2, 3], np.int32))
    assert np.asarray(ours.isin(keys, [3, 1])).tolist() == [True, False, True]
    with pytest.raises(TypeError, match=r"1\.5 is not an integer"):
        ours.isin(keys, [1.5, 2.7])
    with pytest.raises(OverflowError):
        ours.isin(keys, [1, 1 << 40])
    with pytest.raises(TypeError, match="without loss"):
        ours.isin(jnp.array([True, False]), [2])


def test_distinct_keys_are_not_differentiated_in_silence(programs):
    jax, ours = programs.jax, programs.ours
    keys = programs.put(np.array([1, 2, 1], np.float32))
    for total in (
        lambda keys: ours.unique(keys, size=3).sum(),
        lambda keys: ours.factorize(keys, size=3).uniques.sum(),
    ):
        with pytest.raises(TypeError, match=r"to be differentiated.*stop_gradient"):
            jax.grad(total)(keys)

    def gathered(keys):
        result = ours.unique(jax.lax.stop_gradient(keys), size=2, return_index=True)
        return keys[result.indices].sum()

    same_bytes(jax.grad(gathered)(keys), np.array([1, 1, 0], np.float32))
    mask = jax.grad(lambda keys: (keys * ours.isin(keys, keys[:1])).sum())(keys)
    same_bytes(mask, np.array([1, 0, 1], np.float32))
