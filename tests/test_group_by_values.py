"""Aggregates of what is no number: dates, times, durations, strings; and of bools. Against pandas, polars, pyarrow."""

from __future__ import annotations

import datetime
import itertools
import pickle
import re
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.frameworks import to_numpy
from support.peers import peer

import gpuhash

pl = peer("polars")

PICKS = ("min", "max", "first", "last")
OPS = (*PICKS, "count", "nunique")
COUNT = 600
HOURS = np.random.default_rng(0).integers(-50_000, 50_000, COUNT) // 24 * 24
NULL = np.random.default_rng(1).random(COUNT) < 0.3
KEYS = np.random.default_rng(2).integers(0, 60, COUNT)
NULL[KEYS == 7] = True


def numpy_times(dtype: str) -> np.ndarray:
    times = HOURS.astype(dtype.replace(dtype[dtype.index("[") :], "[h]")).astype(dtype)
    times[NULL] = "NaT"
    return times


def arrow_times(kind: pa.DataType, dtype: str) -> pa.Array:
    return pa.array(numpy_times(dtype)).cast(kind)


def pandas_times(kind: pa.DataType, dtype: str) -> pd.Series:
    return pd.Series(arrow_times(kind, dtype), dtype=pd.ArrowDtype(kind))


def times_of_day() -> list[datetime.time | None]:
    return [
        None if null else datetime.time(hour % 24, hour % 60, hour % 59)
        for hour, null in zip((HOURS // 24).tolist(), NULL.tolist(), strict=True)
    ]


TIMES = {
    "numpy days": lambda: numpy_times("datetime64[D]"),
    "numpy hours": lambda: numpy_times("datetime64[h]"),
    "numpy ns": lambda: numpy_times("datetime64[ns]"),
    "numpy big-endian": lambda: numpy_times("datetime64[s]").astype(">M8[s]"),
    "numpy durations": lambda: numpy_times("timedelta64[us]"),
    "masked": lambda: np.ma.MaskedArray(HOURS.astype("datetime64[h]").astype("datetime64[ms]"), NULL),
    "pandas": lambda: pd.Series(numpy_times("datetime64[ns]"), name="t"),
    "pandas zone": lambda: pd.Series(numpy_times("datetime64[us]")).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
    "pandas durations": lambda: pd.Series(numpy_times("timedelta64[s]")),
    "pandas index": lambda: pd.DatetimeIndex(numpy_times("datetime64[s]")),
    "pandas arrow": lambda: pandas_times(pa.timestamp("ms", "UTC"), "datetime64[ms]"),
    "pandas arrow dates": lambda: pandas_times(pa.date32(), "datetime64[D]"),
    "polars": lambda: pl.Series("t", numpy_times("datetime64[us]")),
    "polars zone": lambda: pl.Series(numpy_times("datetime64[ms]")).dt.replace_time_zone("Asia/Tokyo"),
    "polars dates": lambda: pl.Series(numpy_times("datetime64[D]")),
    "polars durations": lambda: pl.Series(numpy_times("timedelta64[ns]")),
    "polars times of day": lambda: pl.Series(times_of_day()),
    "pyarrow": lambda: arrow_times(pa.timestamp("s", "Europe/Rome"), "datetime64[s]"),
    "pyarrow chunks": lambda: pa.chunked_array([arrow_times(pa.timestamp("us"), "datetime64[us]")]),
    "pyarrow date32": lambda: arrow_times(pa.date32(), "datetime64[D]"),
    "pyarrow date64": lambda: arrow_times(pa.date64(), "datetime64[D]"),
    "pyarrow durations": lambda: arrow_times(pa.duration("ms"), "timedelta64[ms]"),
    "pyarrow time32": lambda: pa.array(times_of_day(), pa.time32("s")),
    "pyarrow time64": lambda: pa.array(times_of_day(), pa.time64("ns")),
}  # fmt: skip


def words(empty: str = "") -> list[str | None]:
    """Of several lengths, with prefixes of others, and with characters of one to four bytes."""
    some = [empty, "a", "ab", "abcdefgh", "abcdefghi", "é", "z", "鳥", "😀", "abcdefgh\N{EURO SIGN}", "Z"]
    return [None if null else some[hour % len(some)] for hour, null in zip(HOURS.tolist(), NULL.tolist(), strict=True)]


def blobs() -> list[bytes | None]:
    return [None if word is None else word.encode("utf-16-le") for word in words()]


TEXTS = {
    "masked": lambda: np.ma.MaskedArray([word or "" for word in words()], NULL),
    "pandas": lambda: pd.Series(words(), dtype="str"),
    "pandas objects": lambda: pd.Series(words(), dtype=object),
    "pandas arrow": lambda: pd.Series(words(), dtype=pd.ArrowDtype(pa.string())),
    "polars": lambda: pl.Series(words()),
    "polars categories": lambda: pl.Series(words(), dtype=pl.Categorical),
    "polars bytes": lambda: pl.Series(blobs()),
    "pyarrow": lambda: pa.array(words()),
    "pyarrow views": lambda: pa.array(words(), pa.string_view()),
    "pyarrow bytes": lambda: pa.array(blobs(), pa.large_binary()),
    "pyarrow dictionary": lambda: pa.array(words()).dictionary_encode(),
}


def objects(column: Any) -> list[Any]:
    """Entries as Python has them, and None for nulls."""
    if isinstance(column, pa.ChunkedArray | pa.Array):
        return column.to_pylist()
    if isinstance(column, np.ndarray) and column.dtype.kind in "mM":
        column = pd.Series(np.ma.getdata(column).astype(f"{column.dtype.kind}8[us]"), copy=True).mask(
            np.ma.getmaskarray(column)
        )
    listed = column.to_list() if isinstance(column, pl.Series) else column.tolist()
    return [None if item is None or item is pd.NaT or item is pd.NA or item != item else item for item in listed]


def loops(keys: np.ndarray, entries: list[Any], op: str) -> list[Any]:
    groups: dict[Any, list[Any]] = {}
    for key, entry in zip(keys.tolist(), entries, strict=True):
        groups.setdefault(key, []).extend([] if entry is None else [entry])
    if op in ("count", "nunique"):
        return [len(set(group) if op == "nunique" else group) for group in groups.values()]
    if op == "sum":
        return [sum(group, datetime.timedelta(0)) for group in groups.values()]
    pick = {"min": min, "max": max, "first": lambda group: group[0], "last": lambda group: group[-1]}[op]
    return [pick(group) if group else None for group in groups.values()]


def keys_like(column: Any) -> Any:
    """The keys, in the library of a column."""
    library = type(column).__module__.partition(".")[0]
    return {"pandas": pd.Series, "polars": pl.Series, "pyarrow": pa.array}.get(library, np.array)(KEYS)


def part_of(column: Any, begin: int, end: int) -> Any:
    return column.slice(begin, end - begin) if hasattr(column, "type") else column[begin:end]


def streamed(keys: Any, column: Any, ops: tuple[str, ...]) -> dict[str, Any]:
    """By batches of two, which are merged; one of them was pickled."""
    streams = [gpuhash.GroupBy(**dict.fromkeys(ops, "v")) for _ in range(2)]
    empty = [] if str(dtype_of(column)) == "object" else [0]  # which would say nothing of what it holds
    for begin, end in itertools.pairwise((0, *empty, 100, 100, 290, 310, 310, COUNT)):
        streams[begin >= 290].update(part_of(keys, begin, end), v=part_of(column, begin, end))
    whole = pickle.loads(pickle.dumps(streams[0]))
    whole.merge(pickle.loads(pickle.dumps(streams[1])))
    in_order = np.argsort(gpuhash.unique(KEYS))
    for op, ordered in whole.result(sorted=True).aggregates.items():
        listed = objects(whole.result().aggregates[op])
        assert objects(ordered) == [listed[number] for number in in_order]
    return whole.result().aggregates


def dtype_of(column: Any) -> Any:
    return getattr(column, "dtype", getattr(column, "type", type(column)))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("form", TIMES)
def test_times(form, streaming):
    column = TIMES[form]()
    keys = keys_like(column)
    ops = ("count", *PICKS, "nunique", *(("sum",) if "durations" in form else ()))
    got = streamed(keys, column, ops) if streaming else gpuhash.group_by(keys).agg(**dict.fromkeys(ops, column))
    entries = objects(column)
    for op in ops:
        assert objects(got[op]) == loops(KEYS, entries, op), op
        if op in (*PICKS, "sum"):
            assert str(dtype_of(got[op])).replace("<", "") == str(dtype_of(column)).replace(">M8[s]", "datetime64[s]")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("form", TEXTS)
def test_texts(form, streaming):
    column = TEXTS[form]()
    keys = keys_like(column)
    got = streamed(keys, column, OPS) if streaming else gpuhash.group_by(keys).agg(**dict.fromkeys(OPS, column))
    entries = objects(column)
    for op in OPS:
        assert objects(got[op]) == loops(KEYS, entries, op), op
        if op in PICKS:
            assert dtype_of(got[op]) == dtype_of(column)
            assert type(got[op]) is type(column)


@pytest.mark.parametrize("form", ["pandas", "pandas zone", "pandas durations"])
def test_times_as_pandas(form):
    column = TIMES[form]().rename("v")
    ops = [*OPS, *(["sum"] if "durations" in form else [])]
    got = gpuhash.group_by(pd.Series(KEYS)).agg(**dict.fromkeys(ops, column))
    wanted = pd.DataFrame({"k": KEYS, "v": column}).groupby("k", sort=False)["v"].agg(ops)
    for op in ops:
        pd.testing.assert_series_equal(got[op], wanted[op].reset_index(drop=True), check_names=False)


@pytest.mark.parametrize("form", ["polars", "polars zone", "polars dates", "polars durations", "polars times of day"])
def test_times_as_polars(form):
    same_as_polars(TIMES[form](), ["sum"] if "durations" in form else [])


@pytest.mark.parametrize("form", ["polars", "polars bytes"])
def test_texts_as_polars(form):
    same_as_polars(TEXTS[form](), [])


def same_as_polars(column: Any, more: list[str]) -> None:
    keys, values = pl.Series("k", KEYS), pl.col("v").drop_nulls()
    got = gpuhash.group_by(keys).agg(**dict.fromkeys([*OPS, *more], column))
    named = {op: getattr(values, {"nunique": "n_unique"}.get(op, op))() for op in [*OPS, *more]}
    wanted = pl.DataFrame([keys, column.alias("v")]).group_by("k", maintain_order=True).agg(**named)
    for op in named:
        assert got[op].to_list() == wanted[op].to_list()
        assert op in ("count", "nunique") or got[op].dtype == wanted[op].dtype


def test_texts_as_pandas():
    column = TEXTS["pandas"]()
    got = gpuhash.group_by(pd.Series(KEYS)).agg(**dict.fromkeys(OPS, column))
    wanted = pd.DataFrame({"k": KEYS, "v": column}).groupby("k", sort=False)["v"].agg(list(OPS))
    for op in OPS:
        pd.testing.assert_series_equal(got[op], wanted[op].reset_index(drop=True), check_names=False)


@pytest.mark.parametrize("form", ["pyarrow", "pyarrow date32", "pyarrow durations"])
def test_times_as_pyarrow(form):
    column = TIMES[form]()
    ops = (
        ("count", "count_distinct")
        if "durations" in form
        else ("min", "max", "first", "last", "count", "count_distinct")
    )
    table = pa.table({"k": KEYS, "v": column}).group_by("k", use_threads=False)
    options = [None if op in PICKS else pa.compute.CountOptions("only_valid") for op in ops]
    wanted = table.aggregate([("v", op, option) for op, option in zip(ops, options, strict=True)])
    names = {op: "nunique" if op == "count_distinct" else op for op in ops}
    got = gpuhash.group_by(pa.array(KEYS)).agg(**dict.fromkeys(names.values(), column))
    for op, name in names.items():
        assert got[name].to_pylist() == wanted[f"v_{op}"].to_pylist()


def test_of_every_device(native):
    """Keys are where they are; values that are no numbers come from the host, and go back there."""
    keys = native.array(KEYS)
    times, durations = numpy_times("datetime64[ms]"), numpy_times("timedelta64[s]")
    texts = pl.Series(words())
    got = gpuhash.group_by(keys).agg(
        max=[times, texts], first=texts, sum=durations, count=[times, texts], nunique=[times, texts]
    )
    stream = gpuhash.GroupBy(max=["times", "texts"], first="texts", sum="durations", nunique=["times", "texts"])
    for begin in range(0, COUNT, 200):
        part = slice(begin, begin + 200)
        stream.update(native.array(KEYS[part]), times=times[part], texts=texts[part], durations=durations[part])
    for answers in (got, stream.result().aggregates):
        assert objects(answers["max"][0]) == loops(KEYS, objects(times), "max")
        assert objects(answers["max"][1]) == loops(KEYS, objects(texts), "max")
        assert objects(answers["first"]) == loops(KEYS, objects(texts), "first")
        assert objects(answers["sum"]) == loops(KEYS, objects(durations), "sum")
        for column, distinct in zip((times, texts), answers["nunique"], strict=True):
            assert to_numpy(distinct).tolist() == loops(KEYS, objects(column), "nunique")
            assert native.owns(distinct)


@pytest.mark.parametrize("keys", [np.array, pd.Series, pl.Series, pa.array])
def test_values_of_another_library_than_the_keys(keys):
    """They come as columns of the keys' library; where that has none, as they were given."""
    made = keys([5, 6, 5])
    days = ["2024-02-29", "NaT", "2023-01-01"]
    wanted = [datetime.datetime(2023, 1, 1), None]
    for unit in ("D", "h", "s", "ms", "ns"):
        got = gpuhash.group_by(made).agg(min=np.array(days, f"datetime64[{unit}]"))["min"]
        assert [item and datetime.datetime(*item.timetuple()[:3]) for item in objects(got)] == wanted
        assert keys is np.array or type(got).__module__.partition(".")[0] == type(made).__module__.partition(".")[0]
    for unit in ("D", "s", "us"):
        got = gpuhash.group_by(made).agg(sum=np.array([1, "NaT", 2], f"timedelta64[{unit}]"))["sum"]
        factor = {"D": 86400.0, "s": 1.0, "us": 1e-6}[unit]
        assert [item.total_seconds() for item in objects(got)] == [3 * factor, 0]
    for form in ("pandas zone", "pandas arrow", "polars zone", "pyarrow"):
        times = part_of(TIMES[form](), 0, 3)
        got = gpuhash.group_by(made).agg(last=times)["last"]
        assert objects(got) == [objects(times)[2] or objects(times)[0], objects(times)[1]]
        zones = [re.search(r"[A-Z]\w+/\w+|UTC", str(dtype_of(column)))[0] for column in (got, times)]
        assert zones[0] == zones[1]
    if keys is not np.array:
        with pytest.raises(TypeError, match="nothing finer than ns"):
            gpuhash.group_by(made).agg(min=np.array([1, 2, 3], "datetime64[ps]"))
    for texts in (pd.Series(["b", None, "a"]), pl.Series(["b", None, "a"]), pa.array(["b", None, "a"])):
        got = gpuhash.group_by(made).agg(max=texts)["max"]
        assert objects(got) == ["b", None]
        assert (
            type(got).__module__.partition(".")[0]
            == type(texts if keys is np.array else made).__module__.partition(".")[0]
        )


@pytest.mark.parametrize("dtype", [None, "U", "S", object, np.dtypes.StringDType()])
def test_texts_without_nulls(dtype):
    """A list, or an array of NumPy."""
    texts: Any = ["b", "a", "ab"] if dtype is None else np.array(["b", "a", "ab"], dtype)
    got = gpuhash.group_by([1, 2, 1]).agg(min=texts, max={"t": texts}, last=[texts], nunique=texts)
    listed = list(texts)
    assert list(got["min"]) == [listed[2], listed[1]]
    assert list(got["max"]["t"]) == [listed[0], listed[1]]
    assert list(got["last"][0]) == [listed[2], listed[1]]
    assert got["nunique"].tolist() == [2, 1]
    assert type(got["min"]) is type(texts)
    assert dtype_of(got["min"]) == dtype_of(texts)


def test_batches_of_several_widths_and_masks():
    stream = gpuhash.GroupBy(min="t", last="t", nunique="t")
    stream.update([1, 2], t=np.array(["b", "c"]))
    stream.update([3, 1], t=np.ma.MaskedArray(["long", "longer"], [True, False]))
    stream.update([2, 3], t=np.ma.MaskedArray(["a", "z"], [False, True]))
    keys, got = stream.result()
    assert keys.tolist() == [1, 2, 3]
    assert got["min"].tolist() == ["b", "a", None]
    assert got["last"].tolist() == ["longer", "a", None]
    assert got["last"].dtype == "<U6"
    assert got["nunique"].tolist() == [2, 2, 0]


@pytest.mark.parametrize("none", [pd.Series([None, None], dtype=object), pl.Series([None, None]), pa.nulls(2)])
def test_batches_of_no_dtype(none):
    """Of nulls alone, after others."""
    stream = gpuhash.GroupBy(max=["t", "d", "n"], nunique=["t", "d"], sum="n")
    texts = np.ma.MaskedArray(["a", "b"], [False, False])
    stream.update(np.array([1, 2]), t=texts, d=np.array([1, 2], "datetime64[s]"), n=[1, 2])
    stream.update(np.array([2, 3]), t=none, d=none, n=none)
    got = stream.result().aggregates
    assert got["sum"].tolist() == [1, 2, 0]
    assert got["max"][0].tolist() == ["a", "b", None]
    assert [objects(column) for column in got["max"][1:]] == [
        [datetime.datetime(1970, 1, 1, 0, 0, 1), datetime.datetime(1970, 1, 1, 0, 0, 2), None],
        [1, 2, None],
    ]
    assert [column.tolist() for column in got["nunique"]] == [[1, 1, 0], [1, 1, 0]]


def test_a_stream_keeps_no_batch_alive():
    texts = pl.Series(["x" * 1000] * 1000)
    stream = gpuhash.GroupBy(first="t", nunique="t")
    stream.update(np.zeros(1000, int), t=texts)
    assert len(pickle.dumps(stream)) < 10_000


@pytest.mark.parametrize(
    ("op", "values", "message"),
    [
        ("sum", np.array(["2020-01-01"], "datetime64[D]"), r"are datetime64\[D\], which have no sum, but min, max"),
        ("mean", np.array([1], "timedelta64[s]"), r"are timedelta64\[s\], which have no mean"),
        ("std", pd.Series(pd.to_datetime(["2020-01-01"])), "which have no std"),
        ("any", pl.Series([datetime.timedelta(1)]), "which have no any"),
        ("sum", pl.Series([datetime.time(1)]), r"are time\[ns\], which have no sum"),
        ("sum", ["a"], "are text, which have no sum"),
        ("all", np.array([b"a"]), "are bytes, which have no all"),
        ("min", pd.Series(pd.Categorical(["a"], ordered=True)), "an order of their own"),
        ("max", pl.Series(["a"], dtype=pl.Enum(["b", "a"])), "an order of their own"),
    ],
)
def test_what_cannot_be(op, values, message):
    groups = gpuhash.group_by([1])
    with pytest.raises(TypeError, match=message):
        groups.agg(**{op: values})
    stream = gpuhash.GroupBy(**{op: "v"}, count=True)
    with pytest.raises(TypeError, match=message):
        stream.update([1], v=values)
    with pytest.raises(ValueError, match="there has been no batch"):
        stream.result()
    assert groups.agg(count=values)["count"].tolist() == [1]


def test_batches_of_other_kinds():
    stream = gpuhash.GroupBy(min="v", sum="w")
    stream.update([1], v=np.array([5], "datetime64[s]"), w=[1])
    with pytest.raises(TypeError, match=r"v is datetime64\[ms\], and was datetime64\[s\] before"):
        stream.update([1], v=np.array([5], "datetime64[ms]"), w=[1])
    with pytest.raises(TypeError, match=r"v is text, and was datetime64\[s\] before"):
        stream.update([1], v=["a"], w=[1])
    other = gpuhash.GroupBy(min="v", sum="w")
    other.update([1], v=["a"], w=[1])
    with pytest.raises(TypeError, match=r"v is text there and datetime64\[s\] here"):
        stream.merge(other)
    assert objects(stream.result().aggregates["min"]) == [datetime.datetime(1970, 1, 1, 0, 0, 5)]
    with pytest.raises(ValueError, match=r"values for min have shape \(2,\), expected \(1,\)"):
        gpuhash.group_by([1]).agg(min=["a", "b"])
    with pytest.raises(ValueError, match=r"values for min have shape \(1, 2\), expected \(1,\)"):
        gpuhash.group_by([1]).agg(min=np.array([["a", "b"]]))
    with pytest.raises(ValueError, match=r"values for min have shape \(1, 1\), expected \(1,\)"):
        gpuhash.group_by([1]).agg(min=np.array([[1]], "datetime64[s]"))


@pytest.mark.parametrize("op", [*PICKS, "sum", "any", "all", "count", "nunique"])
def test_bools(native, op):
    values = HOURS % 5 == 0
    got = gpuhash.group_by(native.array(KEYS)).agg(**{op: native.array(values)})[op]
    wanted = pd.DataFrame({"k": KEYS, "v": values}).groupby("k", sort=False)["v"].agg(op).to_numpy()
    assert to_numpy(got).dtype == (bool if op in (*PICKS, "any", "all") else np.int64)
    assert to_numpy(got).tolist() == wanted.tolist()


@pytest.mark.parametrize("library", [pd.Series, pl.Series])
def test_bools_with_nulls(library):
    rows = [True, None, False, None, True, True]
    values = pd.Series(rows, dtype="boolean") if library is pd.Series else library(rows)
    got = gpuhash.group_by(library([1, 1, 1, 2, 3, 3])).agg(
        sum=values, min=values, any=values, all=values, count=values
    )
    assert objects(got["sum"]) == [1, 0, 2]
    assert objects(got["min"]) == [False, None, True]
    assert list(got["any"]) == [True, False, True]
    assert list(got["all"]) == [False, True, True]
    assert list(got["count"]) == [2, 0, 2]


@pytest.mark.parametrize("make", [pl.Series, lambda times: pa.array(times, pa.time32("s")), pa.array])
def test_times_of_day_as_keys(make):
    noon, night = datetime.time(12), datetime.time(0, 0, 1)
    column = make([noon, None, night, noon])
    groups = gpuhash.group_by(column, sorted=True)
    assert objects(groups.keys) == [night, noon, None]
    assert objects(groups.counts) == [1, 2, 1]
    codes, uniques = gpuhash.factorize(column)
    assert codes.tolist() == [0, -1, 1, 0]
    assert type(uniques) is type(column)
    pairs = gpuhash.join(column, make([noon]))
    assert pairs.left.tolist() == [0, 3]
    with pytest.raises(TypeError, match=r"keys of time\[.*\] meet keys of timedelta64"):
        gpuhash.join(column, np.array([1], "timedelta64[ns]"))


@pytest.mark.parametrize("form", ["pandas zone", "pandas arrow", "polars zone", "pyarrow"])
def test_zones_do_not_meet(form):
    """Times with a zone and times without are two kinds, in joins as in batches."""
    with_zone = TIMES[form]()
    without = np.array([1], str(gpuhash.frames.columns.numpy_times(with_zone)[0].dtype))
    with pytest.raises(TypeError, match="convert one to the other's dtype"):
        gpuhash.join(with_zone, without)
    stream = gpuhash.GroupBy(max="v")
    stream.update(KEYS, v=with_zone)
    with pytest.raises(TypeError, match=r"v is datetime64\[\w+\], and was datetime64\[\w+\] [A-Z]"):
        stream.update([1], v=without)
