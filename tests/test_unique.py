"""unique and factorize: against NumPy, pandas and PyTorch."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from support.factorized import ASCENDING, BATCHES, check_factorized, make_batch, sampled_positions
from support.first_seen import first_seen, is_first, numbered
from support.frameworks import GPU, capture, delay, module, new_stream, on_stream, to_numpy
from support.hashing import keys_of_one_hash
from support.memory_resources import counting_memory, fail_each_allocation
from support.samples import (
    COMPLEX,
    FLOATS,
    KEY_VECTORS,
    as_bytes,
    numpy_dtype,
    random_keys,
    random_values,
    same_bytes,
    type_name,
)
from support.tuning import WIDE_POSITIONS, tuned

import gpuhash
from gpuhash import _core
from gpuhash.arrays.memory import make_context

SIZES = [0, 1, 2, 31, 32, 33, 1000, 4097, 100_001]
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def draws(dtype: str, shape: tuple[int, ...], count: int, distinct: int, seed: int = 0) -> np.ndarray:
    """`count` draws of up to `distinct` keys, special patterns among them: [count, *shape]."""
    rng = np.random.default_rng([seed, count, distinct])
    if dtype == "bool":
        return rng.random((count, *shape)) < 0.3
    keys = random_keys(dtype, shape, max(1, min(distinct, count)), seed)
    return keys[rng.integers(0, len(keys), count)]


def expected(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First positions, codes and counts, in order of first occurrence; equal bytes are equal keys."""
    words = as_bytes(keys)
    width = words.dtype.itemsize
    return first_seen(numbered(words.view(f"u{width}" if width in (1, 2, 4, 8) else f"S{width}")))


def check(place, keys: np.ndarray, axis: int | None = None) -> None:
    """Everything that unique and factorize say of keys that are equal where their bytes are."""
    firsts, codes, counts = expected(keys)
    array = place.array(keys)
    codes_got, uniques = gpuhash.factorize(array, axis=axis)
    assert place.owns(codes_got)
    assert place.owns(uniques)
    same_bytes(codes_got, codes)
    same_bytes(uniques, keys[firsts])
    result = gpuhash.unique(array, return_inverse=True, return_counts=True, return_index=True, axis=axis)
    same_bytes(result.values, keys[firsts])
    same_bytes(result.indices, firsts)
    same_bytes(result.inverse, codes)
    same_bytes(result.counts, counts)
    same_bytes(gpuhash.unique(array, axis=axis), keys[firsts])


@pytest.mark.pairwise
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers(native, dtype, count):
    for distinct in (1, 7, max(1, count // 16), max(1, count)):
        check(native, draws(dtype, (), count, distinct))


@pytest.mark.pairwise
@pytest.mark.parametrize("count", [0, 1, 33, 4096, 4097])
@pytest.mark.parametrize("key_type", KEY_VECTORS, ids=type_name)
def test_rows(native, key_type, count):
    dtype, shape = key_type
    for distinct in (1, max(1, count // 16), max(1, count)):
        check(native, draws(dtype, shape, count, distinct), axis=0)


def test_every_framework(place):
    keys = draws("int64", (), 5000, 300)
    check(place, keys)
    check(place, draws("int64", (2,), 5000, 300), axis=0)  # TensorFlow keeps int32 on the host, also on a GPU
    check(place, keys[:0])


def test_against_pandas(native):
    rng = np.random.default_rng(3)
    for keys in (rng.integers(-50, 50, 10_000), rng.zipf(1.3, 10_000), rng.integers(0, 9, 10_000).astype(np.float64)):
        codes, uniques = gpuhash.factorize(native.array(keys))
        pandas_codes, pandas_uniques = pd.factorize(keys)
        np.testing.assert_array_equal(to_numpy(codes), pandas_codes)
        np.testing.assert_array_equal(to_numpy(uniques), pandas_uniques)
        np.testing.assert_array_equal(to_numpy(gpuhash.unique(native.array(keys))), pd.unique(keys))


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=3)), ids=str)
def test_sorted_against_numpy(native, flags):
    index, inverse, counts = flags
    keys = draws("int32", (), 5000, 400)
    theirs = np.unique(keys, return_index=index, return_inverse=inverse, return_counts=counts)
    ours = gpuhash.unique(
        native.array(keys), return_index=index, return_inverse=inverse, return_counts=counts, sorted=True
    )
    if not any(flags):
        theirs, ours = (theirs,), (ours,)
    assert len(theirs) == len(ours)
    for got, wanted in zip(ours, theirs, strict=True):
        same_bytes(got, wanted)


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "float32", "float64", "complex64"])
def test_sorted_order_of_every_dtype(native, dtype):
    keys = draws(dtype, (), 3000, 300) if dtype in DTYPES else random_values(dtype, (3000,))
    theirs = np.unique(keys, return_index=True, return_inverse=True)
    ours = gpuhash.unique(native.array(keys), return_index=True, return_inverse=True, sorted=True)
    np.testing.assert_array_equal(to_numpy(ours.values), theirs[0])
    same_bytes(ours.indices, theirs[1])
    same_bytes(ours.inverse, theirs[2])


def spread(kind: str, dtype: str, count: int) -> np.ndarray:
    """Numbers that a sort by digits finds easy or hard, in any order."""
    rng = np.random.default_rng(count)
    info = np.iinfo(dtype)
    bits = info.bits - (info.min < 0)
    random = rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    numbers = {
        "random": random,
        "dense": np.arange(count) - count // 2 if info.min < 0 else np.arange(count),
        "few-high-bits": random >> rng.integers(0, info.bits, count).astype(dtype),
        "both-ends": (random & dtype_of(dtype, 15)) + ((random >> dtype_of(dtype, 5)) << dtype_of(dtype, bits - 4)),
        "one-large-bucket": np.where(rng.random(count) < 0.9, random & dtype_of(dtype, 0xFFFF), random),
    }[kind]
    return rng.permutation(numbers.astype(dtype))


def dtype_of(dtype: str, number: int) -> np.generic:
    return np.array(number, dtype)[()]


@pytest.mark.pairwise
@pytest.mark.parametrize("count", [4000, 150_001])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint64", "int64"])
@pytest.mark.parametrize("kind", ["random", "dense", "few-high-bits", "both-ends", "one-large-bucket"])
def test_sorted_numbers_of_every_spread(kind, dtype, count):
    keys = spread(kind, dtype, count)
    values, firsts, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    same_bytes(gpuhash.unique(keys, sorted=True), values)
    got = gpuhash.unique(keys, return_index=True, return_inverse=True, return_counts=True, sorted=True)
    for array, wanted in zip(got, (values, firsts, inverse, counts), strict=True):
        same_bytes(array, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_sorted_floats_keep_the_form_of_the_first_occurrence(dtype):
    """-0.0 or 0.0, and which NaN, is what stands first; also where nothing but the keys is asked for."""
    numbers = np.random.default_rng(7).standard_normal(40_000).astype(dtype)
    width = numbers.dtype.itemsize
    odd_nan = (np.array([-np.nan], dtype).view(f"u{width}") ^ 1).view(dtype)
    for zero, nan in ((np.array([-0.0], dtype), odd_nan), (np.array([0.0], dtype), np.array([np.nan], dtype))):
        keys = np.concatenate([numbers, zero, nan, -zero, np.array([np.nan, np.inf, -np.inf], dtype), numbers[:99]])
        wanted = np.unique(keys)
        wanted[wanted == 0] = keys[keys == 0][:1]
        wanted[-1:] = nan
        same_bytes(gpuhash.unique(keys, sorted=True), wanted)
        got = gpuhash.unique(keys, return_index=True, sorted=True)
        same_bytes(got.values, wanted)
        same_bytes(keys[got.indices], wanted)


@pytest.mark.parametrize("key_type", [*KEY_VECTORS, ("float32", (3,)), ("float64", (2,))], ids=type_name)
def test_sorted_rows_against_numpy(native, key_type):
    dtype, shape = key_type
    rng = np.random.default_rng(5)
    keys = rng.integers(0 if dtype.startswith("u") else -3, 3, (4000, *shape)).astype(dtype)
    theirs = np.unique(keys, return_index=True, return_inverse=True, return_counts=True, axis=0)
    ours = gpuhash.unique(
        native.array(keys), return_index=True, return_inverse=True, return_counts=True, sorted=True, axis=0
    )
    same_bytes(ours.values, theirs[0])
    same_bytes(ours.indices, theirs[1])
    same_bytes(ours.inverse, theirs[2].reshape(-1))
    same_bytes(ours.counts, theirs[3])


def test_against_torch(native):
    if native.name != "torch":
        pytest.skip("of PyTorch")
    torch = module("torch")
    keys = native.array(draws("int64", (), 20_000, 1500))
    theirs = torch.unique(keys, return_inverse=True, return_counts=True)
    ours = gpuhash.unique(keys, return_inverse=True, return_counts=True, sorted=True)
    for got, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(got, wanted)
    rows = native.array(draws("int32", (3,), 5000, 400))
    theirs = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    ours = gpuhash.unique(rows, return_inverse=True, return_counts=True, sorted=True, axis=0)
    for got, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_compare_as_numbers(native, dtype):
    """-0.0 equals 0.0, all NaNs are one key, and the first occurrence is given back as it stands."""
    width = np.dtype(numpy_dtype(dtype)).itemsize
    nans = np.array([np.nan, -np.nan], numpy_dtype(dtype))
    odd_nan = nans[:1].copy().view(f"u{width}")
    odd_nan ^= 1  # other payload
    keys = np.concatenate(
        [
            np.array([-0.0, 1.5, 0.0, np.inf, -1.5], numpy_dtype(dtype)),
            nans,
            odd_nan.view(numpy_dtype(dtype)),
            np.array([-np.inf, 1.5, -0.0, np.inf], numpy_dtype(dtype)),
        ]
    )
    codes, uniques = gpuhash.factorize(native.array(keys))
    assert to_numpy(codes).tolist() == [0, 1, 0, 2, 3, 4, 4, 4, 5, 1, 0, 2]
    same_bytes(uniques, keys[[0, 1, 3, 4, 5, 8]])
    ordered = gpuhash.unique(native.array(keys), return_index=True, sorted=True)
    assert to_numpy(ordered.indices).tolist() == [8, 4, 0, 1, 3, 5]


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_numbers(native, dtype):
    keys = random_values(dtype, (3000,))
    keys[::7] = complex(-0.0, 0.0)
    keys[3::7] = complex(0.0, -0.0)
    codes, uniques = map(to_numpy, gpuhash.factorize(native.array(keys)))
    np.testing.assert_array_equal(uniques[codes], keys)
    assert len(uniques) == len(np.unique(keys))
    np.testing.assert_array_equal(to_numpy(gpuhash.unique(native.array(keys), sorted=True)), np.unique(keys))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_numbers_with_nan_in_numpys_order(native, dtype):
    parts = [np.nan, -np.inf, -1.5, 0.0, 1.0, 2.0, np.inf]
    keys = np.array([complex(real, imag) for real in parts for imag in parts], dtype)
    keys = np.random.default_rng(1).permutation(keys)
    ordered = to_numpy(gpuhash.unique(native.array(keys), sorted=True))
    np.testing.assert_array_equal(ordered.view(ordered.real.dtype), np.sort(keys).view(ordered.real.dtype))


def test_rows_of_complex_numbers_with_nan_in_numpys_order(native):
    parts = [np.nan, -1.0, 2.0]
    numbers = [complex(real, imag) for real in parts for imag in parts]
    keys = np.array(list(itertools.product(numbers, numbers)), np.complex64)
    keys = np.random.default_rng(2).permutation(keys)
    wanted = np.sort(keys.view([("first", np.complex64), ("second", np.complex64)]).reshape(-1))
    ordered = to_numpy(gpuhash.unique(native.array(keys), sorted=True, axis=0))
    np.testing.assert_array_equal(ordered.view(np.float32).reshape(-1), wanted.view(np.float32))


@pytest.mark.parametrize("length", [None, 1, 2, 3, 4, 5, 8, 11, 16], ids=str)
def test_all_bytes_but_0_are_true(native, length):
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (2000, length or 1), np.uint8) * (rng.random((2000, length or 1)) < 0.6)
    raw[:256, 0] = np.arange(256)
    raw = np.ascontiguousarray(raw.reshape(-1) if length is None else raw, np.uint8)
    keys, axis = raw.view(bool), None if length is None else 0
    truth = raw != 0  # as bytes 0 and 1
    firsts, codes, counts = expected(truth)
    for order in (False, True):
        got = gpuhash.unique(native.array(keys), return_inverse=True, return_counts=True, sorted=order, axis=axis)
        if order:
            values, inverse, wanted_counts = np.unique(truth, return_inverse=True, return_counts=True, axis=axis)
        else:
            values, inverse, wanted_counts = truth[firsts], codes, counts
        same_bytes(got.values, values)  # ones and zeros come out
        same_bytes(got.inverse, inverse.reshape(-1))
        same_bytes(got.counts, wanted_counts)
    same_bytes(gpuhash.factorize(native.array(keys), axis=axis).codes, codes)
    some = truth[:3]
    mask = gpuhash.isin(native.array(keys), native.array(some), axis=axis)
    same_bytes(mask, np.isin(codes, codes[:3]))


def test_float_rows(native):
    keys = np.array([[0.0, np.nan, 1], [-0.0, np.nan, 1], [np.nan, 0.0, 1], [-0.0, -np.nan, 1]], np.float32)
    codes, _ = gpuhash.factorize(native.array(keys), axis=0)
    assert to_numpy(codes).tolist() == [0, 0, 1, 0]


def test_flattened_and_rows(native):
    keys = draws("int16", (2, 3), 500, 40).reshape(500, 2, 3)
    flat = gpuhash.unique(native.array(keys), return_inverse=True)
    assert flat.inverse.shape == (500, 2, 3)
    same_bytes(flat.values, pd.unique(keys.reshape(-1)))
    same_bytes(to_numpy(flat.values)[to_numpy(flat.inverse)], keys)
    rows = gpuhash.unique(native.array(keys), return_inverse=True, axis=0)
    assert rows.inverse.shape == (500,)
    assert rows.values.shape[1:] == (2, 3)
    same_bytes(to_numpy(rows.values)[to_numpy(rows.inverse)], keys)
    single = gpuhash.unique(native.array(np.array(5)), return_inverse=True)
    assert to_numpy(single.values).tolist() == [5]
    assert single.inverse.shape == ()


def test_views(native):
    wide = draws("int64", (3,), 3000, 50)
    array = native.array(wide)
    for view, host in ((array[:, 1], wide[:, 1]), (array[::3, 0], wide[::3, 0]), (array[1:, 2], wide[1:, 2])):
        codes, uniques = map(to_numpy, gpuhash.factorize(view))
        same_bytes(uniques[codes], np.ascontiguousarray(host))
    codes, uniques = map(to_numpy, gpuhash.factorize(array[:, 1:], axis=0))
    same_bytes(uniques[codes], np.ascontiguousarray(wide[:, 1:]))


def test_odd_addresses_and_read_only_arrays():
    memory = np.zeros(8001, np.uint8)
    keys = memory[1:].view(np.int64)
    keys[...] = draws("int64", (), 1000, 30)
    keys.flags.writeable = False
    codes, uniques = gpuhash.factorize(keys)
    np.testing.assert_array_equal(uniques[codes], keys)


def test_python_numbers():
    assert gpuhash.unique([3, 1, 3]).tolist() == [3, 1]
    codes, uniques = gpuhash.factorize([[3, 1], [3, 2]])
    assert codes.tolist() == [[0, 1], [0, 2]]
    assert uniques.tolist() == [3, 1, 2]
    assert gpuhash.unique([]).shape == (0,)
    assert gpuhash.unique([(1, 2), (3, 4), (1, 2)], axis=0).tolist() == [[1, 2], [3, 4]]


def test_empty_rows_of_any_shape(native):
    result = gpuhash.unique(native.array(np.empty((0, 3), np.int32)), return_inverse=True, axis=0, sorted=True)
    assert result.values.shape == (0, 3)
    assert result.inverse.shape == (0,)


LARGE = {
    "all-distinct": lambda rng, n: rng.permutation(n) * 7919,
    "one-in-16": lambda rng, n: rng.integers(0, n // 16, n) * 7919,
    "few": lambda rng, n: rng.integers(0, 100, n),
    "all-equal": lambda rng, n: np.full(n, -1),
    "zipf": lambda rng, n: rng.zipf(1.2, n),
    "runs": lambda rng, n: np.repeat(np.arange(n // 64 + 1), 64)[:n],
    "periodic": lambda rng, n: np.arange(n) % 1024,
    "few-then-distinct": lambda rng, n: np.concatenate([np.zeros(n - n // 8, np.int64), np.arange(n // 8)]),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("rows", [False, True], ids=["numbers", "rows"])
@pytest.mark.parametrize("count", [16, 33, 5000, 70_003])
@pytest.mark.parametrize("kind", [*LARGE, "one-repeated", "half-equal"])
def test_counts_alone(native, kind, count, rows):
    """A GPU counts repeated keys only, and nothing where there are none."""
    rng = np.random.default_rng(12)
    others = {
        "one-repeated": lambda rng, n: np.where(np.arange(n) == n - 1, 0, np.arange(n)),
        "half-equal": lambda rng, n: rng.permutation(np.maximum(np.arange(n), n // 2)),
    }
    keys = (LARGE | others)[kind](rng, count).astype(np.int64)
    if rows:
        keys = np.stack([keys, ~keys], axis=1)
    values, firsts, counts = np.unique(keys, return_index=True, return_counts=True, axis=0)
    order = np.argsort(firsts)
    got = gpuhash.unique(native.array(keys), return_counts=True, axis=0)
    same_bytes(got.values, values[order])
    same_bytes(got.counts, counts[order])
    ordered = gpuhash.unique(native.array(keys), return_counts=True, sorted=True, axis=0)
    same_bytes(ordered.values, values)
    same_bytes(ordered.counts, counts)


@pytest.mark.parametrize("distinct", [1, 12_287, 12_288, 12_289])
def test_counts_of_few_that_come_often(on_device, distinct):
    """A GPU's blocks have 12288 counters."""
    n = 70 * 8 * distinct + 5
    keys = np.arange(n) % distinct * 7919
    keys[: n // 2] = keys[0]  # which comes most often
    got = gpuhash.unique(on_device.array(keys), return_counts=True)
    values, firsts, counts = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(firsts)
    same_bytes(got.values, values[order])
    same_bytes(got.counts, counts[order])


@pytest.mark.pairwise
@pytest.mark.parametrize("codes", [False, True], ids=["counts", "codes"])
@pytest.mark.parametrize("count", [(1 << 16) + 1, 1 << 17, (1 << 19) - 3])
@pytest.mark.parametrize("distinct", [900, 5000, 14_000, 15_300, 16_384, 20_000])
def test_few_on_several_threads(threads, distinct, count, codes):
    """Small tables of some 2^14 keys, which are merged or get full; or partitions, where these are faster."""
    keys = np.random.default_rng(distinct + count).integers(0, distinct, count) * 7919
    got = gpuhash.unique(keys, return_counts=True, return_inverse=codes)
    firsts, inverse, counts = first_seen(keys // 7919)
    same_bytes(got.values, keys[firsts])
    same_bytes(got.counts, counts)
    if codes:
        same_bytes(got.inverse, inverse)


def narrow_keys(count, distinct, zeros, dtype):
    """The keys, and small numbers that are equal where they are."""
    rng = np.random.default_rng(distinct)
    words = rng.integers(1, distinct, count)
    words[: count // 2] = words[: count // 2] % (distinct // 2) + 1  # the second thread has keys of its own, too
    where = {"none": [], "first": [0], "in the middle": [count // 2 - 1], "in the end": [-2, -1]}
    words[where.get(zeros, slice(None, None, 2))] = 0
    if dtype != "float32":
        narrow = np.dtype(dtype).itemsize < 4
        return (words * (1 if narrow else 0x9E3779)).astype(dtype), words % (1 << 8 * np.dtype(dtype).itemsize)
    keys = words.astype(dtype) - 0.5 * (words % 2)
    keys[words == 2] = np.nan
    keys[(words == 0) & (np.arange(count) % 3 == 0)] = -0.0
    return keys, words


def check_counts(keys, numbers):
    """Of ``unique``, and of ``insert_or_apply`` where tables have such keys; the numbers stand for them."""
    got = gpuhash.unique(keys, return_counts=True, return_index=True)
    firsts, _, counts = first_seen(numbers)
    same_bytes(got.values, keys[firsts])
    same_bytes(got.indices, firsts)
    same_bytes(got.counts, counts)
    if keys.dtype.kind == "f":
        return
    table = gpuhash.HashTable(keys.dtype, "int64", device="cpu")
    for times in (3, 6):
        new = table.insert_or_apply(keys, 3, "add")
        same_bytes(np.flatnonzero(new), firsts if times == 3 else firsts[:0])
        assert len(table) == len(firsts)
        same_bytes(table[keys[firsts]], times * counts)


NARROW = ["uint8", "int16", "int32", "uint32", "float32"]
ZEROS = ["none", "first", "in the middle", "in the end", "most"]


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("distinct", [200, 5000, 17_000, 60_000])
def test_counts_of_narrow_keys(threads, distinct, zeros, dtype):
    """Of up to 32 bits, in small tables that grow, on several threads; 0 has no place among the others there."""
    check_counts(*narrow_keys(1 << 18, distinct, zeros, dtype))


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("part", [1, 2, 5, 8, 10, 12, 40])
def test_counts_of_a_small_batch_of_narrow_keys(part, zeros, dtype):
    """Where few are distinct, in a small table; where that is seen to get full, in another way from the beginning."""
    for count in (2, 3, 1025, 8191, 8192, 8193, 16_384, 16_385, 65_536):
        check_counts(*narrow_keys(count, max(2, count // part), zeros, dtype))


@pytest.mark.parametrize("few", [1, 700, 1200])
@pytest.mark.parametrize("many_from", [1023, 1024, 5000, 16_000, 16_383])
def test_small_batches_that_get_many_distinct_keys(few, many_from):
    keys = np.random.default_rng(few).permutation(1 << 14).astype(np.int32)
    keys[:many_from] %= few
    check_counts(keys, keys)


@pytest.mark.pairwise
@pytest.mark.parametrize("key_type", ["int32", "int64"])
@pytest.mark.parametrize("part", [1, 2, 3, 4, 6, 8, 16, 1000])
@pytest.mark.parametrize("count", [1 << 14, 3 << 13, 1 << 15, (1 << 16) - 1])
def test_a_small_batch_leaves_a_table_of_its_distinct_keys(count, part, key_type):
    """Whatever a sample made of them; and a table with a limit takes as many as that."""
    keys = (np.random.default_rng(part).integers(0, max(1, count // part), count) * 7919).astype(key_type)
    values, counts = np.unique(keys, return_counts=True)
    growing = gpuhash.HashTable(key_type, "int64", device="cpu")
    full = gpuhash.HashTable(key_type, "int64", device="cpu", capacity=len(values), growth=False)
    for table in (growing, full):
        table.insert_or_apply(keys, 1, "add")
        assert len(table) == len(values)
        same_bytes(table[values], counts)
    assert growing.capacity <= max(6 * len(values), 1024)


@pytest.mark.parametrize("begin", [1000, 20_000])
def test_narrow_keys_that_get_many(threads, begin):
    """Few are distinct at first, and far more than a small table holds in the end."""
    count = 1 << 19
    keys = np.random.default_rng(begin).permutation(count).astype(np.int32)
    keys[: count // 3] %= begin
    got = gpuhash.unique(keys, return_counts=True)
    firsts, _, counts = first_seen(keys)
    same_bytes(got.values, keys[firsts])
    same_bytes(got.counts, counts)


@pytest.mark.parametrize("distinct", [1 << 18, 300_000, 800_000, 1_200_000])
def test_counts_of_many_narrow_keys(threads, distinct):
    """Of a large batch up to some 800,000 are few, and lists of them lie beyond a cache nearby."""
    check_counts(*narrow_keys(1 << 22, distinct, "in the end", "int32"))


@pytest.mark.parametrize("later", [1, 5000, 1 << 17, 1 << 30])
def test_narrow_keys_whose_beginning_deceives(threads, later):
    """Nearly half of the first keys are of the same hundred, and the others are new: many seem to be distinct, as a
    sample of the whole batch confirms or not. All keys after them are of `later` ones."""
    count, first = 1 << 19, 1 << 14
    rng = np.random.default_rng(later)
    keys = rng.integers(1 << 20, (1 << 20) + later, count).astype(np.int32)
    keys[:first] = np.where(rng.random(first) < 0.45, rng.integers(0, 100, first), -np.arange(first))
    check_counts(keys, numbered(keys))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("kind", BATCHES)
def test_every_choice_of_the_host(kind, dtype):
    for count in (1, 2, 3, 1025, 16_385, 65_535, 65_536, 65_537, 66_561, 300_007):
        check_factorized(make_batch(kind, dtype, count))


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("kind", BATCHES)
def test_batches_that_fit_a_cache(threads, kind, dtype):
    """Of up to 2^16 keys they are one part; up to 2^17 for one thread, and for two where all keys get codes."""
    for count in (65_536, 65_537, 131_071, 131_072, 131_073):
        check_factorized(make_batch(kind, dtype, count))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_one_block(on_device, kind, dtype):
    """One block of a GPU numbers up to 4096 keys, and ranks up to 2^16 of them."""
    for count in (1, 2, 31, 33, 1023, 1025, 4095, 4096, 4097, 65_536, 65_537):
        keys = make_batch(kind, dtype, count)
        check_factorized(keys, on_device)
        check_factorized(np.full_like(keys, keys[-1]), on_device)


def test_parts_of_more_than_2_to_16_keys():
    """Which is so from 2^26 keys on; two of them are equal."""
    count = (1 << 26) + (1 << 13)
    keys = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)  # distinct: the factor is odd
    keys[-1] = keys[5]
    codes, uniques = gpuhash.factorize(keys)
    same_bytes(uniques, keys[:-1])
    assert codes[-1] == 5
    same_bytes(codes[:-1], np.arange(count - 1))
    del codes, uniques
    values, counts = gpuhash.unique(keys, return_counts=True)
    same_bytes(values, keys[:-1])
    assert counts[5] == 2
    assert counts.sum() == count


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "int64", "float32", "float64"])
@pytest.mark.parametrize("kind", ASCENDING)
def test_batches_in_ascending_order(kind, dtype):
    """The host takes them as they come; one key that is less than the one before, anywhere, and it must not."""
    for count in (1, 2, 31, 32, 33, 1023, 1024, 1025, 1026, 70_001, 600_011):
        keys = np.sort(ASCENDING[kind](np.random.default_rng(count), count).astype(dtype))
        check_factorized(keys)
        for position in {count - 1, count // 2, min(1, count - 1)}:
            falling = keys.copy()
            falling[position] = np.array(-7, np.int64).astype(dtype) if dtype != "uint64" else 2**63
            check_factorized(falling)
    check_factorized(np.sort(make_batch("half-distinct", dtype, 40_003))[::-1].copy())


@pytest.mark.parametrize("dtype", FLOATS)
def test_ascending_floats_with_zeros_and_nans(native, dtype):
    """Zeros of both signs are one key, and so are all NaNs, in the form that comes first."""
    zeros = np.array([0.0, -0.0] * 20)
    nans = np.full(50, np.nan)
    nans[::2] = -np.nan
    for parts in ([zeros, nans], [[-np.inf, -2.5], zeros, [1.0, 1.0, np.inf], nans], [nans], [-zeros]):
        keys = np.concatenate(parts).astype(numpy_dtype(dtype))
        codes, uniques = gpuhash.factorize(native.array(keys))
        starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]) & ~(np.isnan(keys[1:]) & np.isnan(keys[:-1]))])
        same_bytes(to_numpy(uniques), keys[starts])
        same_bytes(to_numpy(codes), np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(keys)])))
        counted = gpuhash.unique(native.array(keys), return_index=True, return_counts=True, sorted=True)
        same_bytes(to_numpy(counted.values), keys[starts])
        same_bytes(to_numpy(counted.indices), starts)
        same_bytes(to_numpy(counted.counts), np.diff(np.r_[starts, len(keys)]))


@pytest.mark.parametrize(
    "key_type", [*KEY_VECTORS, ("float32", (3,)), ("float64", (2,)), ("int16", (2,))], ids=type_name
)
def test_ascending_rows(native, key_type):
    """Rows in the order of their first number, then of the next, as np.unique(axis=0) gives them."""
    dtype, (length,) = key_type
    rng = np.random.default_rng(7)
    for count in (1, 40, 5000):
        rows = np.unique(rng.integers(-20, 20, (count, length)).astype(numpy_dtype(dtype)), axis=0)
        counts = rng.integers(1, 9, len(rows))
        batch = np.repeat(rows, counts, axis=0)
        for order in (False, True):
            got = gpuhash.unique(
                native.array(batch),
                return_index=True,
                return_inverse=True,
                return_counts=True,
                sorted=order,
                axis=0,
            )
            same_bytes(to_numpy(got.values), rows)
            same_bytes(to_numpy(got.counts), counts)
            same_bytes(to_numpy(got.inverse), np.repeat(np.arange(len(rows)), counts))
            same_bytes(to_numpy(got.indices), np.cumsum(counts) - counts)


def test_results_can_be_written_again():
    """The results can be asked for more than once, and in parts."""
    keys = make_batch("half-distinct", "int64", 100_003)
    context = make_context("cpu")
    work = _core.Factorization(context, _core.borrow(keys), 1, True, True, 0)
    wanted = gpuhash.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    for chosen in ((0, 1, 2, 3), (1,), (0, 2), (3,), (1, 2)):
        outputs = [
            np.full(array.shape, 9, array.dtype)
            for array in (wanted.values, wanted.inverse, wanted.counts, wanted.indices)
        ]
        work.write(*(_core.borrow(array) if i in chosen else None for i, array in enumerate(outputs)), False)
        for i in chosen:
            same_bytes(outputs[i], (wanted.values, wanted.inverse, wanted.counts, wanted.indices)[i])


def least_sampled(place, key_bytes: int) -> int:
    """A batch of more keys is sampled: on a GPU where a batch table of all keys would lie beyond L2."""
    return {4: 1 << 23, 8: 1 << 22, 16: 1 << 22}[key_bytes] if place.table_device != "cpu" else 1 << 20


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit-positions", "64-bit-positions"])
@pytest.mark.parametrize("kind", LARGE)
def test_large_batches(on_device, kind, wide):
    """Large enough that the table is sized by a sample, and for every thread to meet every other's keys."""
    n = least_sampled(on_device, 8) + 77
    keys = LARGE[kind](np.random.default_rng(8), n).astype(np.int64)
    codes, uniques = pd.factorize(keys)
    check_raw(on_device, keys, 1, codes, uniques, wide)


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit-positions", "64-bit-positions"])
@pytest.mark.parametrize("kind", ["all-distinct", "one-in-16", "all-equal", "zipf"])
def test_large_batches_of_rows(on_device, kind, wide):
    n = least_sampled(on_device, 16) + 77
    numbers = LARGE[kind](np.random.default_rng(8), n).astype(np.int64)
    codes, uniques = pd.factorize(numbers)
    check_raw(on_device, np.stack([numbers, ~numbers], axis=1), 2, codes, np.stack([uniques, ~uniques], axis=1), wide)


@pytest.mark.parametrize("dtype", ["int32", "uint16"])
@pytest.mark.parametrize("wide", [False, True], ids=["32-bit-positions", "64-bit-positions"])
def test_large_batches_of_narrow_keys(on_device, dtype, wide):
    keys = np.random.default_rng(8).integers(0, 60_000, least_sampled(on_device, 4) + 77).astype(dtype)
    codes, uniques = pd.factorize(keys)
    check_raw(on_device, keys, 1, codes, uniques, wide)


def check_raw(place, keys: np.ndarray, elements: int, codes: np.ndarray, uniques: np.ndarray, wide: bool) -> None:
    """The core's own interface, which can be told to use 64-bit positions."""
    context = make_context(place.table_device)
    array = place.array(keys)
    with tuned(**WIDE_POSITIONS if wide else {}):
        work = _core.Factorization(context, _core.borrow(array), elements, True, True, 0)
    assert work.count == len(uniques)
    outputs = [
        place.array(np.full(shape, 99, dtype))
        for shape, dtype in [
            (uniques.shape, keys.dtype),
            (len(keys), np.int64),
            (len(uniques), np.int64),
            (len(uniques), np.int64),
        ]
    ]
    place.synchronize()
    work.write(*map(_core.borrow, outputs), False)
    context.synchronize(0)
    same_bytes(outputs[0], uniques.astype(keys.dtype))
    same_bytes(outputs[1], codes.astype(np.int64))
    same_bytes(outputs[2], np.bincount(codes))
    same_bytes(outputs[3], np.flatnonzero(is_first(codes, len(uniques))))


def test_keys_of_one_hash(native):
    """However many keys meet in one probe sequence, each is found."""
    rng = np.random.default_rng(2)
    keys = keys_of_one_hash(2000)[rng.integers(0, 2000, 20_000)]
    check(native, keys, axis=0)


def test_many_keys_of_one_hash_in_a_large_batch(on_device):
    """Their probe sequence is longer than that of a table that is too full: the search for a larger one must end."""
    rng = np.random.default_rng(2)
    few = np.stack([np.arange(1000)] * 2, axis=1)
    keys = np.concatenate([few[rng.integers(0, 1000, least_sampled(on_device, 16))], keys_of_one_hash(600)])
    keys = keys[rng.permutation(len(keys))]
    codes, uniques = map(to_numpy, gpuhash.factorize(on_device.array(keys), axis=0))
    assert len(uniques) == len(np.unique(keys, axis=0))
    same_bytes(uniques[codes], keys)


@pytest.mark.parametrize("rows", [False, True], ids=["numbers", "rows"])
@pytest.mark.parametrize("others", [0.02, 1.0], ids=["some-distinct", "most-distinct"])
def test_a_sample_that_deceives(on_device, others, rows):
    """All sampled keys are equal and the others are not: the table gets full, and the call starts again."""
    n = least_sampled(on_device, 16 if rows else 8) + 99
    keys = np.random.default_rng(6).integers(0, int(others * n), n)
    keys[sampled_positions(n)] = 7
    codes, uniques = pd.factorize(keys)
    if rows:
        keys, uniques = np.stack([keys, -keys], axis=1), np.stack([uniques, -uniques], axis=1)
    got = gpuhash.factorize(on_device.array(keys), axis=0)
    same_bytes(got.codes, codes.astype(np.int64))
    same_bytes(got.uniques, uniques)
    mask = gpuhash.isin(on_device.array(keys[::-1].copy()), on_device.array(keys), axis=0)
    assert to_numpy(mask).all()


def test_answers_do_not_depend_on_timing(on_device):
    keys = np.random.default_rng(4).zipf(1.1, 1 << 18)
    array = on_device.array(keys)
    codes, uniques = pd.factorize(keys)
    for _ in range(20):
        got = gpuhash.factorize(array)
        same_bytes(got.codes, codes.astype(np.int64))
        same_bytes(got.uniques, uniques)


BAD = {
    "axis-1": (lambda: (np.zeros((2, 2), int), 1), ValueError, "axis"),
    "axis-false": (lambda: (np.zeros((2, 2), int), False), TypeError, "axis=False"),
    "axis-numpy-false": (lambda: (np.zeros((2, 2), int), np.False_), TypeError, "axis"),
    "axis-float": (lambda: (np.zeros((2, 2), int), 0.0), TypeError, "axis=0.0"),
    "axis-text": (lambda: (np.zeros((2, 2), int), "0"), TypeError, "axis='0'"),
    "integers-of-no-dtype": (lambda: ([2**63 + 1, -1], None), OverflowError, "9223372036854775809"),
    "integers-beyond-64-bits": (lambda: ([2**64], None), OverflowError, "18446744073709551616"),
    "integers-rounded-by-floats": (lambda: ([2**53 + 1, 0.5], None), OverflowError, "9007199254740993"),
    "rows-of-nothing": (lambda: (np.zeros((4, 0)), 0), ValueError, "rows without numbers"),
    "scalar-rows": (lambda: (np.array(5), 0), ValueError, "axis 0"),
    "objects": (lambda: (np.array([{}, []], object), None), TypeError, None),
    "text": (lambda: ("abc", None), TypeError, None),
    "text-beside-numbers": (lambda: (["a", 1], None), TypeError, None),
    "ragged": (lambda: ([[1, 2], [3]], None), ValueError, "unequal"),
    "none": (lambda: (None, None), TypeError, None),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("function", [gpuhash.unique, gpuhash.factorize])
def test_bad_input(function, kind):
    make, error, hint = BAD[kind]
    keys, axis = make()
    with pytest.raises(error, match=hint):
        function(keys, axis=axis)


def test_an_axis_may_be_an_integer_of_numpy():
    assert gpuhash.unique(np.zeros((3, 2), np.int32), axis=np.int64(0)).tolist() == [[0, 0]]


def test_python_numbers_have_the_dtype_of_numpy():
    for numbers in ([1, 0.5, 1], [True, False], [3, -4], [1j, 2]):
        values = gpuhash.unique(numbers)
        assert values.dtype == np.asarray(numbers).dtype
        assert values.tolist() == list(dict.fromkeys(numbers))
    for numbers in ([2**63 + 1, 5, 5, 2**63], [2**64 - 1], [5, 2**63]):  # of which NumPy makes floats
        values = gpuhash.unique(numbers)
        assert values.dtype == np.uint64
        assert values.tolist() == list(dict.fromkeys(numbers))


@pytest.mark.parametrize("kind", ["few", "few-at-first", "hot-and-others", "one-large-part"])
@pytest.mark.parametrize("length", [100_000, 150_000])
def test_memory_runs_out(on_device, kind, length):
    """Each allocation is made to fail once; everything is given back."""
    memory = counting_memory(on_device.table_device)
    context = make_context(on_device.table_device, memory)
    keys = on_device.array(make_batch(kind, "int64", length))
    count = len(np.unique(to_numpy(keys)))
    outputs = [on_device.array(np.zeros(each, np.int64)) for each in (count, length, count, count)]

    def run() -> None:
        work = _core.Factorization(context, _core.borrow(keys), 1, True, True, 0)
        work.write(*map(_core.borrow, outputs), True)
        context.synchronize(0)

    fail_each_allocation(memory, run)
    same_bytes(outputs[0], np.unique(to_numpy(keys)))
    assert memory.nbytes == 0
    assert memory.mistakes == []


@pytest.mark.parametrize("distinct", [100, 9000])
def test_memory_of_counted_words_runs_out(threads, distinct):
    """Likewise of keys of 32 bits that are counted on the host, also where small tables of theirs grow."""
    memory = counting_memory("cpu")
    context = make_context("cpu", memory)
    keys = np.random.default_rng(0).integers(0, distinct, 150_000).astype(np.int32)
    values, firsts, counts = np.unique(keys, return_index=True, return_counts=True)
    outputs = np.zeros(len(values), np.int32), np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)

    def run() -> None:
        work = _core.Factorization(context, _core.borrow(keys), 1, False, True, 0)
        work.write(_core.borrow(outputs[0]), None, *map(_core.borrow, outputs[1:]), False)

    fail_each_allocation(memory, run)
    order = np.argsort(firsts)
    for got, expected in zip(outputs, (values, counts, firsts), strict=True):
        same_bytes(got, expected[order])
    assert memory.nbytes == 0
    assert memory.mistakes == []


def test_on_the_current_stream(torch_cuda):
    """Keys that a slow stream is still computing, and answers that it goes on with."""
    torch = torch_cuda
    stream = new_stream()
    base = torch.arange(1 << 20, device=GPU)
    torch.cuda.synchronize(GPU)
    with on_stream(stream):
        delay(50_000_000)
        keys = base % 1000
        codes, uniques = gpuhash.factorize(keys)
        back = uniques[codes]
        assert torch.equal(back, keys)
    assert len(uniques) == 1000


def test_not_within_a_capture(torch_cuda):
    torch = torch_cuda
    keys = torch.arange(100, device=GPU)
    gpuhash.unique(keys)
    graph = torch.cuda.CUDAGraph()
    with capture(graph), pytest.raises(ValueError, match="captur"):
        gpuhash.unique(keys)


def test_what_was_not_announced_is_refused(on_device):
    keys = on_device.array(np.arange(10))
    work = _core.Factorization(make_context(on_device.table_device), _core.borrow(keys), 1, False, False, 0)
    with pytest.raises(ValueError, match="announced"):
        work.write(None, _core.borrow(on_device.array(np.zeros(10, np.int64))), None, None, False)
    with pytest.raises(ValueError, match="expected 10"):
        work.write(_core.borrow(on_device.array(np.zeros(9, np.int64))), None, None, None, False)


CHANGED = """
import sys, threading
import numpy as np
import gpuhash

rng = np.random.default_rng(0)
dtype, most, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
keys = rng.integers(0, 5000 if dtype == "int32" else 1 << 40, 1 << 18).astype(dtype)
stop = threading.Event()

def change():
    while not stop.is_set():
        if most:
            keys[rng.integers(0, len(keys), 5000)] = rng.integers(0, most, 5000)
        else:  # ascending, but for moments: with one distinct key, with a few, and with distinct ones
            for distinct in (1, 7, len(keys)):
                keys[:] = np.arange(len(keys)) * distinct // len(keys)

threads = [threading.Thread(target=change) for _ in range(2)]
for thread in threads:
    thread.start()
for i in range(rounds):
    gpuhash.unique(keys, return_counts=True, return_inverse=i % 2 == 0, return_index=i % 3 == 0)
    codes, uniques = gpuhash.factorize(keys[: len(keys) >> i % 4])
    gpuhash.isin(keys, keys[::2])
    gpuhash.HashTable(dtype, "int64").insert_or_apply(keys, 1, "add")
stop.set()
for thread in threads:
    thread.join()
assert len(gpuhash.unique(keys)) == len(np.unique(keys))
"""


@pytest.mark.parametrize(
    ("dtype", "most"),
    [("int64", 5000), ("int64", 10**6), ("int64", 10**12), ("int64", 0), ("int32", 2), ("int32", 10**4), ("int32", 0)],
)
def test_keys_that_another_thread_changes(slow, dtype, most):
    """What comes of it is anybody's guess; the process goes on, and its memory is as it was."""
    command = [sys.executable, "-P", "-c", CHANGED, dtype, str(most), "300" if slow else "48"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


RESIZED = """
import sys, threading
import numpy as np
import gpuhash

stop = threading.Event()

def change():
    while not stop.is_set():
        gpuhash.set_num_threads(1)
        gpuhash.set_num_threads(8)

thread = threading.Thread(target=change)
thread.start()
try:
    n = 1 << 18
    for keys in (np.repeat(np.arange(n // 8), 8), np.arange(n) % 1000, np.arange(n) * 0x9E3779B97F4A7):
        distinct, counts = np.unique(keys, return_counts=True)
        for i in range(40):
            found = gpuhash.unique(keys, return_index=True, return_inverse=True, return_counts=True)
            assert len(found.values) == len(distinct)
            assert (found.values[found.inverse] == keys).all() and (keys[found.indices] == found.values).all()
            assert (found.counts == np.bincount(found.inverse)).all()
            table = gpuhash.HashTable("int64", "int64")
            table.insert_or_apply(keys, 1, "add")
            assert len(table) == len(distinct) and (table[distinct] == counts).all()
finally:
    stop.set()
    thread.join()
"""


def test_a_number_of_threads_that_another_thread_changes():
    command = [sys.executable, "-P", "-c", RESIZED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("flag", ["return_index", "return_inverse", "return_counts", "sorted"])
def test_flags_say_whether_they_are_true(flag):
    with pytest.raises(TypeError, match=f"{flag}='no' was given, expected True or False"):
        gpuhash.unique(np.arange(3), **{flag: "no"})
    asked = gpuhash.unique(np.arange(3), **{flag: np.bool_(True)})
    assert type(asked) is type(gpuhash.unique(np.arange(3), **{flag: True}))


def test_complex_numbers_with_nan_are_equal_where_both_parts_are():
    """As for pandas; to NumPy they are all one."""
    nan = float("nan")
    keys = np.array([complex(nan, 1), complex(nan, 2), complex(1, nan), complex(nan, nan), complex(nan, 1)])
    codes, uniques = gpuhash.factorize(keys)
    wanted, _ = pd.factorize(keys, use_na_sentinel=False)
    assert codes.tolist() == wanted.tolist() == [0, 1, 2, 3, 0]
    same_bytes(uniques, keys[:4])
