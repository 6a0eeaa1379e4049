"""take: entries of columns by one index, against NumPy and the libraries of columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.frameworks import to_numpy
from support.peers import peer
from support.samples import same_bytes

import gpuhash

pl = peer("polars")

DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays(native, dtype, shape):
    rng = np.random.default_rng(1)
    column = rng.integers(0, 2 if dtype == "bool" else 100, (50, *shape)).astype(dtype)
    index = rng.integers(0, 50, 33)
    same_bytes(to_numpy(gpuhash.take(native.array(column), native.array(index))), column[index])
    index[::3] = -rng.integers(1, 60, 11)
    expected = np.where((index < 0).reshape(-1, *(1,) * len(shape)), np.ones(1, dtype), column[index * (index >= 0)])
    same_bytes(
        to_numpy(gpuhash.take(native.array(column), native.array(index), fill=True if dtype == "bool" else 1)), expected
    )


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "int32", "int64", "complex128"])
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_runs_of_indices(native, dtype, shape):
    """Neighbours that stay neighbours, with a break or a hole at any place of a block."""
    column = np.random.default_rng(2).integers(0, 2 if dtype == "bool" else 99, (400, *shape)).astype(dtype)
    index = np.arange(100, 355)
    for at in (None, 0, 1, 63, 64, 127, 254):
        for other in (399, -1):
            given = index.copy()
            if at is not None:
                given[at] = other
            expected = column[given]
            expected[given < 0] = 1
            taken = gpuhash.take(native.array(column), native.array(given), fill=1 if dtype != "bool" else True)
            same_bytes(to_numpy(taken), expected)


def test_forms(native):
    columns = [np.arange(5), np.arange(5.0)[:, None] * [1, 2]]
    given = [native.array(column) for column in columns]
    index = native.array(np.array([4, 0, 4]))
    for form in (list, tuple):
        taken = gpuhash.take(form(given), index)
        assert type(taken) is form
        assert all(np.array_equal(to_numpy(one), other[[4, 0, 4]]) for one, other in zip(taken, columns, strict=True))
    taken = gpuhash.take({"a": given[0], "b": given[1]}, [1, 2])
    assert to_numpy(taken["a"]).tolist() == [1, 2]
    assert to_numpy(taken["b"]).tolist() == [[1, 2], [2, 4]]
    assert gpuhash.take([], [0]) == []
    assert to_numpy(gpuhash.take(given[0], native.array(np.empty(0, np.int64)))).tolist() == []
    assert to_numpy(gpuhash.take(given[0][::2], index[:1] // 2)).tolist() == [4]


def test_columns_of_libraries():
    values, index = [5, None, 7], np.array([2, -1, 1, 0])
    taken = gpuhash.take(pl.Series(values), index)
    assert taken.to_list() == [7, None, None, 5]
    assert taken.dtype == pl.Int64
    assert gpuhash.take(pa.array(values), index).to_pylist() == [7, None, None, 5]
    assert gpuhash.take(pa.chunked_array([[5], [None, 7]]), index).to_pylist() == [7, None, None, 5]
    assert gpuhash.take(pd.Series(values, dtype="Int64"), index).tolist() == [7, pd.NA, pd.NA, 5]
    assert gpuhash.take(pd.Series([5, 6, 7], index=[9, 8, 9]), [2, 0]).to_dict() == {0: 7, 1: 5}
    frame = pl.DataFrame({"a": [1, 2, 3], "b": ["x", "y", None]})
    assert gpuhash.take(frame, index).rows() == [(3, None), (None, None), (2, "y"), (1, "x")]
    assert gpuhash.take(frame.to_arrow(), index).to_pylist() == gpuhash.take(frame, index).to_dicts()
    assert gpuhash.take(frame.to_pandas(), np.array([2, 0]))["a"].tolist() == [3, 1]
    mixed = gpuhash.take({"n": np.array([1.5, 2.5, 3.5]), "s": frame["b"]}, np.array([1, 0]))
    assert (mixed["n"].tolist(), mixed["s"].to_list()) == ([2.5, 1.5], ["y", "x"])


def test_strings_times_and_masks():
    assert gpuhash.take(np.array(["ab", "c"]), [1, 1, 0]).tolist() == ["c", "c", "ab"]
    assert gpuhash.take(["ab", "c"], [1, 0]) == ["c", "ab"]
    times = np.array(["2020-01-01", "NaT", "2021-01-01"], "datetime64[D]")
    assert gpuhash.take(times, [2, -1, 1]).astype(str).tolist() == ["2021-01-01", "NaT", "NaT"]
    masked = np.ma.MaskedArray([1, 2, 3], [False, True, False])
    assert gpuhash.take(masked, [2, -1, 1, 0]).tolist() == [3, None, None, 1]


def test_what_is_refused(native):
    column = native.array(np.arange(5))
    before = to_numpy(column).copy()
    for index in ([5], [0, 9]):
        with pytest.raises(IndexError):
            gpuhash.take(column, native.array(np.array(index)))
    with pytest.raises(IndexError, match="index 1 is negative"):
        gpuhash.take(column, native.array(np.array([0, -1])))
    with pytest.raises(TypeError, match="the indices are int32"):
        gpuhash.take(column, native.array(np.array([0], np.int32)))
    with pytest.raises(TypeError, match="the indices are"):
        gpuhash.take(column, [0.5])
    with pytest.raises(ValueError, match="different lengths"):
        gpuhash.take([column, column[:3]], [0])
    with pytest.raises(OverflowError):
        gpuhash.take(native.array(np.arange(5, dtype=np.int32)), [0], fill=2**40)
    with pytest.raises(IndexError, match="an index is 3, and the columns have 3 entries"):
        gpuhash.take(pl.Series([1, 2, 3]), [3])
    with pytest.raises(TypeError, match="have nulls where an index is negative"):
        gpuhash.take(pl.Series([1, 2, 3]), [-1], fill=0)
    assert np.array_equal(to_numpy(column), before)


@pytest.mark.parametrize(
    "index",
    [
        pd.Index([4, 5]),
        pd.Index(["a", "b"], name="n"),
        pd.RangeIndex(2, name="r"),
        pd.date_range("2020", periods=2),
        pd.CategoricalIndex(["a", "b"]),
        pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]),
    ],
    ids=lambda index: type(index).__name__,
)
def test_indexes_of_pandas(index):
    assert gpuhash.take(index, [1, 0, 1]).equals(index.take([1, 0, 1]))
    taken = gpuhash.take(index, [1, -1])
    assert isinstance(taken, pd.Index)
    assert taken[0] == index[1]
    assert taken.name == index.name
    missing = taken[1] if isinstance(index, pd.MultiIndex) else (taken[1],)
    assert all(map(pd.isna, missing))


def test_masked_strings():
    for dtype in ("U2", "S2", object):
        masked = np.ma.MaskedArray(np.array(["a", "bc", "a"], dtype), [True, False, False])
        taken = gpuhash.take({"k": masked}, [1, 0, -1, 2])["k"]
        assert taken.dtype == masked.dtype
        assert np.ma.getmaskarray(taken).tolist() == [False, True, True, False]
        assert taken.compressed().tolist() == masked.data[[1, 2]].tolist()


def test_indices_beyond_int64():
    with pytest.raises(IndexError, match="an index is 9223372036854775808"):
        gpuhash.take(np.zeros(3), [2**63], fill=1)
