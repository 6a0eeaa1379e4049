"""Strings as keys of unique, factorize, isin, groups and joins, against pandas and Python's own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.peers import peer
from support.tuning import tuned

import gpuhash

pl = peer("polars")

WORDS = ["", "a", "a\0", "\0", "b", "ab", "aé", "日本", "x" * 7, "x" * 8, "x" * 9, "x" * 40, "x" * 39 + "y"]
texts = st.lists(st.sampled_from(WORDS), max_size=60)


def arrow(words: list[str]) -> pa.Array:
    return pa.array(words, "string")


SOURCES = {
    "list": list,
    "numpy": lambda words: np.array(words, np.dtypes.StringDType()),
    "pandas": lambda words: pd.Series(words, dtype="str"),
    "objects": lambda words: pd.Series(words, dtype=object),
    "polars": pl.Series,
    "arrow": arrow,
    "large": lambda words: pa.array(words, "large_string"),
    "views": lambda words: pa.array(words, pa.string_view()),
    "chunks": lambda words: pa.chunked_array([words[:3], words[3:]], "string"),
    "dictionary": lambda words: arrow(words).dictionary_encode(),
}


def as_list(column: object) -> list:
    return column.to_pylist() if hasattr(column, "to_pylist") else [*column]


def first_seen(words: list[str]) -> tuple[list[str], list[int]]:
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    return [*numbers], [numbers[word] for word in words]


@pytest.mark.parametrize("source", SOURCES)
def test_of_every_source(source):
    words = [WORDS[i % len(WORDS)] for i in (5, 1, 0, 5, 2, 7, 7, 11, 12, 1, 3, 8, 9)]
    given = SOURCES[source](words)
    distinct, codes = first_seen(words)
    answer = gpuhash.unique(given, return_index=True, return_inverse=True, return_counts=True)
    assert as_list(answer.values) == distinct
    assert answer.inverse.tolist() == codes
    assert answer.indices.tolist() == [words.index(word) for word in distinct]
    assert answer.counts.tolist() == [words.count(word) for word in distinct]
    assert as_list(gpuhash.unique(given, sorted=True)) == sorted(distinct)
    assert source == "chunks" or type(answer.values) is type(given)
    factorized = gpuhash.factorize(given)
    assert (factorized.codes.tolist(), as_list(factorized.uniques)) == (codes, distinct)
    tests = SOURCES[source](["a", "日本", "absent", "x" * 40])
    expected = [word in ("a", "日本", "x" * 40) for word in words]
    assert gpuhash.isin(given, tests).tolist() == expected
    assert gpuhash.isin(given, tests, invert=True).tolist() == [not found for found in expected]
    groups = gpuhash.group_by(given)
    assert as_list(groups.keys) == distinct
    values = np.arange(len(words))
    sums = [sum(i for i, code in enumerate(codes) if code == group) for group in range(len(distinct))]
    assert as_list(groups.agg(sum=values)["sum"]) == sums


@settings(deadline=None)
@given(texts, texts)
def test_joins(left, right):
    expected = [(i, j) for i, one in enumerate(left) for j, other in enumerate(right) if one == other]
    pairs = gpuhash.join(pd.Series(left, dtype="str"), arrow(right))
    assert list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)) == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*WORDS, None]), st.integers(0, 2)), max_size=60), st.booleans())
def test_strings_beside_numbers(rows, drop):
    frame = pl.DataFrame(rows, schema={"word": pl.String, "number": pl.Int16}, orient="row")
    with tuned(narrow_fingerprints=2):
        groups = gpuhash.group_by(frame, nulls="drop" if drop else "key")
    expected = frame.drop_nulls() if drop else frame
    assert groups.keys.equals(expected.unique(maintain_order=True))
    lengths = expected.group_by("word", "number", maintain_order=True).len()["len"].to_list()
    assert groups.agg(count=True)["count"].to_list() == lengths


def test_bytes_and_rows_of_text():
    words = np.array([[b"a", b"b\0c"], [b"b\0c", b"a"]])
    distinct, inverse = gpuhash.unique(words, return_inverse=True)
    assert distinct.tolist() == [b"a", b"b\0c"]
    assert distinct.dtype == words.dtype
    assert inverse.tolist() == [[0, 1], [1, 0]]
    assert gpuhash.isin(words, [b"a"]).tolist() == [[True, False], [False, True]]
    assert gpuhash.unique(np.array([], "U3")).tolist() == []


def test_nulls():
    words = pa.array(["a", None, "", "a", None])
    codes, uniques = gpuhash.factorize(words)
    assert codes.tolist() == [0, -1, 1, 0, -1]
    assert uniques.to_pylist() == ["a", ""]
    for call in (lambda: gpuhash.unique(words), lambda: gpuhash.isin(words, ["a"]), lambda: gpuhash.isin(["a"], words)):
        with pytest.raises(ValueError, match="have nulls, in 2 of 5 entries"):
            call()
    assert gpuhash.group_by(words).keys.to_pylist() == ["a", None, ""]
    assert gpuhash.group_by(words, nulls="drop").keys.to_pylist() == ["a", ""]
    assert gpuhash.join(words, words, "semi").tolist() == [0, 2, 3]
    assert gpuhash.join(words, words, "semi", nulls="equal").tolist() == [0, 1, 2, 3, 4]


def test_what_is_refused():
    with pytest.raises(TypeError, match="the elements are text and the test_elements bytes"):
        gpuhash.isin(["a"], [b"a"])
    with pytest.raises(TypeError, match="the elements are text and the test_elements numbers"):
        gpuhash.isin(["a"], [1])
    with pytest.raises(TypeError, match="the elements are numbers and the test_elements text"):
        gpuhash.isin(np.arange(3), ["a"])
    with pytest.raises(TypeError):
        gpuhash.join(["a"], [1])
    with pytest.raises(TypeError):
        gpuhash.unique(["a", 1])
    with pytest.raises(ValueError, match=r"strings of shape \(1, 1\)"):
        gpuhash.group_by(np.array([["a"]]))


def test_many(native):
    rng = np.random.default_rng(5)
    numbers = rng.integers(0, 3000, 100_000)
    words = pd.Series(numbers).map(lambda number: f"{'w' * (number % 23)}{number}").astype("str")
    codes, uniques = gpuhash.factorize(words)
    expected, distinct = pd.factorize(words)
    assert np.array_equal(codes, expected)
    assert uniques.tolist() == distinct.tolist()
    assert gpuhash.unique(words, sorted=True).tolist() == sorted(distinct)


@pytest.mark.parametrize("dtype", ["datetime64[D]", "datetime64[ns]", "timedelta64[s]"])
def test_times(dtype):
    times = np.array([3, 1, -5, 3, 2**40, 1], np.int64).astype(dtype)
    times[4] = "NaT"
    distinct, inverse, counts = gpuhash.unique(times, return_inverse=True, return_counts=True)
    assert distinct.dtype == times.dtype
    assert distinct.astype(str).tolist() == [str(times[i]) for i in (0, 1, 2, 4)]
    assert (inverse.tolist(), counts.tolist()) == ([0, 1, 2, 0, 3, 1], [2, 2, 1, 1])
    assert gpuhash.unique(times, sorted=True).astype(str).tolist() == np.unique(times).astype(str).tolist()
    codes, uniques = gpuhash.factorize(times)
    assert (codes.tolist(), uniques.tolist()) == ([0, 1, 2, 0, -1, 1], times[:3].tolist())
    assert gpuhash.isin(times.reshape(2, 3), times[[1, 4]]).tolist() == [[False, True, False], [False, True, True]]
    with pytest.raises(TypeError, match="and the test_elements numbers"):
        gpuhash.isin(times, [3])
    with pytest.raises(TypeError, match="convert one to the other"):
        gpuhash.isin(times, times.astype("M8[us]" if dtype[0] == "d" else "m8[us]"))


@pytest.mark.parametrize("keys", [np.array([["a", "b"]]), np.array([["2020", "2021"]], "M8[Y]")], ids=["text", "times"])
def test_rows_of_what_is_no_number_are_refused(keys):
    for call in (gpuhash.unique, gpuhash.factorize, lambda keys, axis: gpuhash.isin(keys, keys, axis=axis)):
        with pytest.raises(ValueError, match=r"of shape \(1, 2\), and their rows are no keys: leave axis=0 out"):
            call(keys, axis=0)
    assert gpuhash.unique(keys[0], axis=0).tolist() == keys[0].tolist()


@pytest.mark.parametrize(
    "keys",
    [["a", "b"], np.array([["a"], ["b"]]), pd.Series(["a", "b"]), np.array([["2020", "NaT"]], "M8[Y]")],
    ids=["list", "numpy", "pandas", "times"],
)
def test_nothing_is_in_an_empty_list(keys):
    shape = np.shape(keys)
    assert gpuhash.isin(keys, []).tolist() == np.zeros(shape, bool).tolist()
    assert gpuhash.isin(keys, (), invert=True).tolist() == np.ones(shape, bool).tolist()
    assert gpuhash.isin([], keys).tolist() == []


def test_dates_of_arrow_in_pandas():
    days = pd.Series([18000, None, 18001, 18000], dtype=pd.ArrowDtype(pa.int32())).astype(pd.ArrowDtype(pa.date32()))
    codes, uniques = gpuhash.factorize(days)
    assert codes.tolist() == [0, -1, 1, 0]
    assert uniques.tolist() == days.iloc[[0, 2]].tolist()
    assert uniques.dtype == days.dtype
    assert gpuhash.isin(days[:1], np.array([18000], "M8[D]")).tolist() == [True]


def test_times_of_libraries():
    times = pd.Series(pd.to_datetime(["2020-01-02", None, "2020-01-01", "2020-01-02"]))
    for column in (times, pl.from_pandas(times), pa.array(times), times.dt.tz_localize("Asia/Tokyo")):
        codes, uniques = gpuhash.factorize(column)
        assert codes.tolist() == [0, -1, 1, 0]
        assert type(uniques) is type(column)
        assert as_list(uniques) == [as_list(column)[i] for i in (0, 2)]
        assert len(gpuhash.unique(column)) == 3
        assert as_list(gpuhash.group_by(column, nulls="drop").agg(count=True)["count"]) == [2, 1]
