"""unique, factorize and isin of rows of any width, against NumPy and dicts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.first_seen import first_seen
from support.frameworks import to_numpy
from support.samples import same_bytes
from support.tuning import tuned

import gpuhash

WIDTHS = [1, 2, 3, 5, 9, 12, 15, 16, 17, 23, 24, 31, 32, 33, 40, 63, 64, 65, 100]
#: Rows whose numbers no word holds.
RANDOM = 1 << 17


def distinct_rows(dtype: str, row: tuple[int, ...], count: int) -> np.ndarray:
    """Random bits, of floats without NaN and -0.0: different rows are different bits."""
    rng = np.random.default_rng([count, *row])
    size = (count, *row)
    if dtype == "bool":
        rows = rng.integers(0, 2, size).astype(bool)
    elif np.dtype(dtype).kind == "f":
        rows = rng.standard_normal(size).astype(dtype)
    elif np.dtype(dtype).kind == "c":
        rows = (rng.standard_normal(size) + 1j * rng.standard_normal(size)).astype(dtype)
    else:
        info = np.iinfo(dtype)
        rows = rng.integers(info.min, info.max, size, dtype, endpoint=True)
    return rows[np.sort(np.unique(as_voids(rows), return_index=True)[1])]


def as_voids(rows: np.ndarray) -> np.ndarray:
    """Each row's bytes as one item."""
    dense = np.ascontiguousarray(rows).reshape(len(rows), -1)
    return dense.view([("bytes", f"V{dense.shape[1] * dense.itemsize}")])["bytes"].reshape(-1)


def numbers_of(distinct: int, count: int) -> np.ndarray:
    return np.random.default_rng([distinct, count]).integers(0, max(1, distinct), count)


def check(native, rows: np.ndarray, numbers: np.ndarray) -> None:
    """Everything that is said of rows that are equal where their numbers are."""
    firsts, codes, counts = first_seen(numbers)
    array = native.array(rows)
    got = gpuhash.factorize(array, axis=0)
    assert native.owns(got.codes)
    assert native.owns(got.uniques)
    same_bytes(got.codes, codes)
    same_bytes(got.uniques, rows[firsts])
    result = gpuhash.unique(array, return_index=True, return_inverse=True, return_counts=True, axis=0)
    same_bytes(result.values, rows[firsts])
    same_bytes(result.indices, firsts)
    same_bytes(result.inverse, codes)
    same_bytes(result.counts, counts)
    same_bytes(gpuhash.unique(array, axis=0), rows[firsts])
    tests = rows[firsts[::2]]
    is_test = np.isin(numbers, numbers[firsts[::2]])
    for invert in (False, True):
        mask = gpuhash.isin(array, native.array(tests), axis=0, invert=invert)
        assert native.owns(mask)
        same_bytes(mask, is_test != invert)


@pytest.mark.parametrize("count", [0, 1, 2, 700])
@pytest.mark.parametrize("width", WIDTHS)
def test_bytes(native, width, count):
    kinds = distinct_rows("uint8", (width,), 90)
    numbers = numbers_of(len(kinds), count)
    check(native, kinds[numbers], numbers)


@pytest.mark.pairwise
@pytest.mark.parametrize("distinct", [1, 50, 20_000, 2_000_000])
@pytest.mark.parametrize("row", [(3,), (6,), (2, 2, 2), (33,)])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64"]
)
def test_dtypes(native, dtype, row, distinct):
    kinds = distinct_rows(dtype, row, min(distinct, 80_000))
    count = 70_000
    numbers = numbers_of(len(kinds), count) if distinct < count else np.arange(min(count, len(kinds)))
    check(native, kinds[numbers], numbers)


@pytest.mark.parametrize("row", [(2,), (3,), (5,)], ids=str)
def test_numbers_that_fit_a_word(native, row):
    kinds = np.array(list(itertools.product(range(-3, 3), repeat=row[0])), np.int64)
    numbers = numbers_of(len(kinds), 100_000)
    check(native, kinds[numbers], numbers)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_floats_compare_as_numbers(native, dtype):
    """-0.0 equals 0.0, all NaNs are one key, and subnormals are numbers of their own; the first one is given back."""
    real = np.dtype(dtype).type(0).real.dtype
    word = np.dtype(f"u{real.itemsize}")
    infinity = np.array([np.inf], real).view(word)[0]
    nans = (
        (np.array([infinity + 1, infinity + 5, (infinity << word.type(1)) // word.type(2) + 9])).astype(word).view(real)
    )
    negative_nan = -nans[:1]
    special = np.concatenate([np.array([0.0, -0.0, 1.5, np.finfo(real).smallest_subnormal], real), nans, negative_nan])
    meaning = np.array([0, 0, 1, 2, 3, 3, 3, 3])
    rng = np.random.default_rng(5)
    picks = rng.integers(0, len(special), (3000, 6))
    rows = special[picks]
    rows[:, :3] = 7.25  # so that rows meet
    if dtype == "complex64":
        rows = np.ascontiguousarray(rows).view(dtype)
    known: dict[bytes, int] = {}
    numbers = np.array([known.setdefault(item.tobytes(), len(known)) for item in meaning[picks[:, 3:]]])
    check(native, rows, numbers)


def test_true_is_any_byte_but_zero(native):
    storage = np.random.default_rng(0).choice(
        np.array([0, 1, 2, 255], np.uint8), (4000, 40), p=[0.97, 0.01, 0.01, 0.01]
    )
    rows = storage.view(bool)
    result = gpuhash.unique(native.array(rows), axis=0, return_inverse=True)
    plain = (storage != 0).astype(np.uint8)
    known: dict[bytes, int] = {}
    codes = [known.setdefault(row.tobytes(), len(known)) for row in plain]
    assert to_numpy(result.inverse).tolist() == codes
    values = np.ascontiguousarray(to_numpy(result.values)).view(np.uint8)
    assert [value.tobytes() for value in values] == list(known)


@pytest.mark.parametrize("tries", [1, 3])
def test_rows_whose_fingerprints_meet(native, tries):
    """Different rows get one fingerprint: they are told apart all the same, with another seed."""
    kinds = distinct_rows("int64", (5,), 5000)
    numbers = numbers_of(len(kinds), 20_000)
    with tuned(narrow_fingerprints=tries):
        check(native, kinds[numbers], numbers)


@pytest.mark.parametrize("row", [(3,), (2, 3), (9,)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "uint64", "int64", "float64"])
@pytest.mark.parametrize("distinct", [1, 40, 3000])
def test_sorted(native, dtype, row, distinct):
    """Rows that differ in their last numbers alone, or in the first."""
    kinds = distinct_rows(dtype, row, distinct)
    kinds[::2, ..., :-1] = kinds[0, ..., :-1]
    rows = kinds[numbers_of(len(kinds), 8000)]
    got = gpuhash.unique(
        native.array(rows), axis=0, sorted=True, return_index=True, return_inverse=True, return_counts=True
    )
    values, indices, inverse, counts = np.unique(
        rows, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    same_bytes(got.values, values)
    same_bytes(got.indices, indices)
    same_bytes(got.inverse, inverse.reshape(-1))
    same_bytes(got.counts, counts)


def test_sorted_puts_nan_last(native):
    rows = np.array([[np.nan, 1, 2], [1, np.nan, 0], [1, 5, 0], [-np.inf, 0, 0], [1, np.nan, -0.0]])
    got = gpuhash.unique(native.array(rows), axis=0, sorted=True, return_inverse=True)
    assert to_numpy(got.inverse).tolist() == [3, 2, 1, 0, 2]


def test_strided_and_read_only(native):
    whole = distinct_rows("int32", (2, 14), 3000)
    rows = whole[::3, 1, ::2]
    numbers = np.arange(len(rows))
    got = gpuhash.factorize(native.array(whole)[::3, 1, ::2], axis=0)
    same_bytes(got.codes, numbers)
    same_bytes(got.uniques, rows)
    locked = np.ascontiguousarray(rows)
    locked.flags.writeable = False
    same_bytes(gpuhash.factorize(locked, axis=0).uniques, rows)


def test_isin_of_other_integers_and_of_lists(native):
    rows = np.array([[1, 2, 3], [-1, 0, 5], [1, 2, 4]], np.int64)
    tests = np.array([[1, 2, 4], [2**64 - 1, 0, 5]], np.uint64)
    assert to_numpy(gpuhash.isin(native.array(rows), native.array(tests), axis=0)).tolist() == [False, False, True]
    assert to_numpy(gpuhash.isin(native.array(rows), [[-1, 0, 5]], axis=0)).tolist() == [False, True, False]
    assert to_numpy(gpuhash.isin(native.array(rows), np.empty((0, 3), np.int64), axis=0)).tolist() == [False] * 3


@pytest.mark.parametrize("counts", [(0, 9), (9, 0), (100_000, 10), (10, 100_000), (70_000, 70_000)], ids=str)
def test_isin(native, counts):
    kinds = distinct_rows("int64", (4,), sum(counts) // 2 + 2)
    numbers, tests = numbers_of(len(kinds), counts[0]), numbers_of(len(kinds), counts[1])
    mask = gpuhash.isin(native.array(kinds[numbers]), native.array(kinds[tests]), axis=0)
    same_bytes(mask, np.isin(numbers, tests))


def test_rows_without_numbers(native):
    with pytest.raises(ValueError, match="rows without numbers"):
        gpuhash.unique(native.array(np.empty((4, 0), np.int64)), axis=0)
