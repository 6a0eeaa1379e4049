"""Several columns as one key (gpuhash/frames/keys.py), against pandas and dicts."""

from __future__ import annotations

import datetime
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.first_seen import first_seen
from support.frameworks import module, to_numpy
from support.memory_resources import counting_memory, fail_each_allocation
from support.samples import same_bytes
from support.tuning import tuned

from gpuhash import _core
from gpuhash.arrays.memory import make_context
from gpuhash.frames import keys as keys_module
from gpuhash.frames.keys import Keys, Numbering, number_together

DTYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]


def host(keys: Keys, array: _core.Array) -> np.ndarray:
    return keys.batch.to_host(array)


def first_codes(rows: list[Any]) -> list[int]:
    known: dict[Any, int] = {}
    return [known.setdefault(row, len(known)) for row in rows]


def check_numbering(keys: Keys, numbering: Numbering, codes: list[int]) -> None:
    """Codes, -1 for what is no key, and all that follows from them."""
    same_bytes(host(keys, numbering.codes), np.array(codes, np.int64))
    assert numbering.count == max(codes, default=-1) + 1
    firsts = [codes.index(code) for code in range(numbering.count)]
    same_bytes(host(keys, numbering.firsts), np.array(firsts, np.int64))
    if numbering.counts is not None:
        counts = np.bincount([code for code in codes if code >= 0], minlength=numbering.count)
        same_bytes(host(keys, numbering.counts), counts)


def column(dtype: str, count: int, seed: int, wide: bool = False) -> np.ndarray:
    """A few numbers, or of ``wide`` ones some that need all bits."""
    rng = np.random.default_rng([seed, count])
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if np.dtype(dtype).kind == "f":
        return rng.choice(np.array([-1.5, 0, 2, np.inf], dtype), count)
    info = np.iinfo(dtype)
    kinds = np.array([info.min, info.max, 1] if wide else [3, 4, 9], dtype)
    return rng.choice(kinds, count)


@pytest.mark.pairwise
@pytest.mark.parametrize("count", [0, 1, 2, 1000, 40_000])
@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
@pytest.mark.parametrize("wide", [False, True])
def test_two_columns(native, count, first, second, wide):
    columns = [column(first, count, 1, wide), column(second, count, 2, wide)]
    keys = Keys.of([native.array(each) for each in columns])
    codes = first_codes(list(zip(*(each.tolist() for each in columns), strict=True)))
    numbering = keys.number(counts=True)
    check_numbering(keys, numbering, codes)
    check_numbering(keys, keys.number(), codes)
    firsts = host(keys, numbering.firsts)
    for taken, each in zip(keys.distinct(numbering), columns, strict=True):
        assert native.owns(taken)
        same_bytes(taken, each[firsts])
    ordered = keys.number(counts=True, sorted=True)
    single = [each.astype("float32") if each.dtype == "float16" else each for each in columns]  # no index of pandas
    frame = pd.DataFrame({"a": single[0], "b": single[1]})
    wanted = frame.groupby(["a", "b"], sort=True, dropna=False).ngroup().to_numpy()
    same_bytes(host(keys, ordered.codes), wanted.astype(np.int64))
    without_counts = keys.number(sorted=True)
    same_bytes(host(keys, without_counts.codes), wanted.astype(np.int64))
    same_bytes(host(keys, without_counts.firsts), host(keys, ordered.firsts))


@pytest.mark.parametrize("many", [20, 40])
def test_many_columns(native, many):
    """More than one launch takes; constant ones, and rows, among them."""
    count = 3000
    columns = [column("int64", count, 7 * number, True) if number % 7 else np.full(count, 3) for number in range(many)]
    columns[5] = np.stack([column("int32", count, 3), column("int32", count, 4), column("int32", count, 5)], axis=1)
    columns[9] = np.stack([column("float64", count, 5), column("float64", count, 6)], axis=1).view("complex128")[:, 0]
    keys = Keys.of(tuple(map(native.array, columns)))
    codes = first_codes([tuple(map(str, row)) for row in zip(*(each.tolist() for each in columns), strict=True)])
    numbering = keys.number()
    check_numbering(keys, numbering, codes)
    assert isinstance(keys.distinct(numbering), tuple)


def test_forms(native):
    a, b = np.array([5, 5, 7]), np.array([[1, 2], [1, 2], [1, 2]])
    for keys, form in (
        (native.array(a), None),
        (native.array(b), None),
        ({"x": native.array(a), "y": native.array(b)}, dict),
        ([native.array(a), native.array(b)], list),
        ((native.array(a), native.array(np.full(3, 4))), tuple),
    ):
        held = Keys.of(keys)
        distinct = held.distinct(held.number())
        assert native.owns(distinct) if form is None else type(distinct) is form
        if form is dict:
            assert list(distinct) == ["x", "y"]
            assert to_numpy(distinct["y"]).tolist() == [[1, 2], [1, 2]]
    held = Keys.of((a, [4, 4, 4]))  # a list beside an array is a column
    assert type(held.distinct(held.number())) is tuple
    held = Keys.of([[1, 2], [1, 2], [3, 4]])  # rows, as Python writes them
    assert held.distinct(held.number()).tolist() == [[1, 2], [3, 4]]


@pytest.mark.pairwise
@pytest.mark.parametrize("dtypes", [("int32", "uint32"), ("int64", "uint64"), ("int64", "int16")], ids="-".join)
@pytest.mark.parametrize("kinds", [1, 9, 80, 30_000])
@pytest.mark.parametrize("late", [False, True])
def test_columns_of_integers(native, dtypes, kinds, late):
    """With few words and many, of which some come late; in order of first occurrence and of the keys."""
    rng = np.random.default_rng(kinds)
    whole = [rng.integers(0, kinds, 60_000) for _ in dtypes]
    if late:
        whole[0].sort()
        whole[0] = kinds - whole[0]
    numbers = np.unique(whole[0] * 2 * kinds + whole[1], return_inverse=True)[1]
    firsts, codes, _ = first_seen(numbers)
    keys = Keys.of([native.array((whole[0] - kinds // 2).astype(dtypes[0])), native.array(whole[1].astype(dtypes[1]))])
    unsorted, ascending = keys.number(), keys.number(sorted=True)
    assert unsorted.count == ascending.count == len(firsts)
    same_bytes(host(keys, unsorted.codes), codes)
    same_bytes(host(keys, unsorted.firsts), firsts)
    same_bytes(host(keys, ascending.codes), numbers)
    same_bytes(host(keys, ascending.firsts), firsts[np.argsort(numbers[firsts])])


def test_words_that_are_too_many_for_a_list(native):
    keys = Keys.of([native.array(np.array([0, 1 << 40])), native.array(np.array([0, 3]))])
    assert keys.packing is not None
    out = [keys.batch.new("int64", (2,)) for _ in range(2)]
    with pytest.raises(ValueError, match="expected fewer than 2\\^32"):
        keys.rows.number_listed(keys.packing, False, *out)


@pytest.mark.parametrize("tries", [1, 2])
def test_fingerprints_that_meet(native, tries):
    columns = [column("int64", 5000, seed, True) for seed in range(7)]
    codes = first_codes(list(zip(*(each.tolist() for each in columns), strict=True)))
    with tuned(narrow_fingerprints=tries):
        keys = Keys.of([native.array(each) for each in columns])
        check_numbering(keys, keys.number(counts=True), codes)
        right = Keys.of([native.array(each[::9]) for each in columns])
        found, numbering = number_together(keys, right)
        known = first_codes(list(zip(*(each[::9].tolist() for each in columns), strict=True)))
        check_numbering(right, numbering, known)
        rows = dict(zip(zip(*(each[::9].tolist() for each in columns), strict=True), known, strict=True))
        wanted = [rows.get(row, -1) for row in zip(*(each.tolist() for each in columns), strict=True)]
        assert host(keys, found).tolist() == wanted


@pytest.mark.pairwise
@pytest.mark.parametrize("left", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("right", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("way", ["one word", "listed", "table", "fingerprints"])
def test_two_sides(native, left, right, way):
    """Integers of two dtypes compare by value, whichever way they are looked up."""
    low, high = (np.iinfo(dtype) for dtype in (left, right))
    numbers = {-3, 0, 1, 5, 100, low.min, low.max, high.min, high.max}
    a = np.array([number for number in sorted(numbers) if low.min <= number <= low.max], left)
    b = np.array([number for number in sorted(numbers) if high.min <= number <= high.max], right)[::2].copy()
    more = {"one word": (), "listed": ("int8",), "table": ("int32",), "fingerprints": ("float64", "int64", "int64")}[
        way
    ]
    columns_a, columns_b = [a], [b]
    for dtype in more:
        columns_a.append(np.full(len(a), 3, dtype))
        columns_b.append(np.full(len(b), 3, dtype))
    if way == "fingerprints":
        columns_b[-1][0] = np.iinfo("int64").min
        columns_b[-2][-1] = np.iinfo("int64").max
    rows = list(zip(*(each.tolist() for each in columns_b), strict=True))
    wanted = [
        rows.index(row) if row in rows else -1 for row in zip(*(each.tolist() for each in columns_a), strict=True)
    ]
    listed = keys_module._LISTED
    try:
        keys_module._LISTED = 0 if way == "table" else listed
        ours, theirs = (Keys.of(list(map(native.array, columns))) for columns in (columns_a, columns_b))
        codes, numbering = number_together(ours, theirs)
    finally:
        keys_module._LISTED = listed
    assert host(ours, codes).tolist() == wanted
    assert numbering.count == len(rows)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (50_000, 10), (10, 50_000)], ids=str)
def test_sizes_of_two_sides(native, sizes):
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 5000, sizes[0]), rng.integers(0, 5000, sizes[1])
    left, right = Keys.of(native.array(a)), Keys.of(native.array(b))
    codes, numbering = number_together(left, right)
    known = dict(zip(b.tolist(), first_codes(b.tolist()), strict=True))
    assert host(left, codes).tolist() == [known.get(number, -1) for number in a.tolist()]
    check_numbering(right, numbering, first_codes(b.tolist()))


@pytest.mark.parametrize("extra", [0, 3], ids=["packed", "fingerprints"])
@pytest.mark.parametrize("nulls", ["key", "none"])
@pytest.mark.parametrize("kind", ["Int64", "boolean", "Float32", "datetime64[ns]", "timedelta64[s]"])
def test_nulls(kind, nulls, extra):
    rng = np.random.default_rng(2)
    numbers, missing = rng.integers(0, 2, 2000), rng.integers(0, 3, 2000) == 0
    series = pd.Series(numbers).astype("boolean" if kind == "boolean" else kind)
    series[missing] = None
    other = pd.Series(rng.integers(0, 3, 2000))
    more = [pd.Series(rng.choice([2**62, -(2**62)], 2000)) for _ in range(extra)]
    columns = [series, other, *more]
    keys = Keys.of(columns, nulls=nulls)
    grouped = pd.DataFrame(dict(enumerate(columns))).groupby(list(range(len(columns))), dropna=nulls == "none")
    groups = grouped.ngroup()
    groups = groups.astype(float).fillna(-1).astype(int).tolist()
    known: dict[int, int] = {-1: -1}
    codes = [known.setdefault(group, len(known) - 1) for group in groups]
    check_numbering(keys, keys.number(counts=True), codes)
    check_numbering(keys, keys.number(), codes)
    assert host(keys, keys.number(sorted=True).codes).tolist() == groups
    distinct = keys.distinct(keys.number())[0]
    assert isinstance(distinct, pd.Series)
    assert distinct.dtype == series.dtype
    firsts = [codes.index(code) for code in range(max(codes) + 1)]
    assert distinct.equals(series.take(firsts).reset_index(drop=True))


def test_nulls_of_two_sides():
    left = pd.Series([1, None, 3, None], dtype="Int64")
    right = pd.Series([None, 3, None], dtype="Int64")
    for extra in (0, 3):
        ours, theirs = ([each, *[pd.Series([2**62] * len(each))] * extra] for each in (left, right))
        for nulls, wanted, count in (("key", [-1, 0, 1, 0], 2), ("none", [-1, -1, 0, -1], 1)):
            sides = Keys.of(ours, nulls=nulls), Keys.of(theirs, nulls=nulls)
            codes, numbering = number_together(*sides)
            assert host(sides[0], codes).tolist() == wanted
            assert numbering.count == count


def test_frames():
    frame = pd.DataFrame({"a": [1, 1, 2, 1], "b": [0.5, 0.5, 0.5, np.nan], "c": pd.array([1, 1, None, 1], "Int8")})
    keys = Keys.of(frame)
    numbering = keys.number()
    check_numbering(keys, numbering, [0, 0, 1, 2])
    pd.testing.assert_frame_equal(keys.distinct(numbering), frame.iloc[[0, 2, 3]].reset_index(drop=True))
    index = Keys.of(pd.Index([4, 4, 5]))
    assert index.distinct(index.number()).equals(pd.Index([4, 5]))


def test_polars():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {
            "a": [1, None, 1, None],
            "day": [datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 1), None],
            "b": [True, False, True, False],
        }
    )
    keys = Keys.of(frame)
    numbering = keys.number()
    check_numbering(keys, numbering, [0, 1, 0, 1])
    assert keys.distinct(numbering).equals(frame[:2])
    series = Keys.of(frame["day"], nulls="none")
    check_numbering(series, series.number(), [0, -1, 0, -1])
    assert series.distinct(series.number()).equals(frame["day"][:1])


def test_arrow():
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1, None, 1, None], "t": pyarrow.array([5, 6, 5, 6], pyarrow.timestamp("us", "UTC"))})
    keys = Keys.of(table)
    numbering = keys.number()
    check_numbering(keys, numbering, [0, 1, 0, 1])
    assert keys.distinct(numbering).equals(table.take([0, 1]))
    array = Keys.of(pyarrow.array([3, None, 3, 4], pyarrow.duration("ms")), nulls="none")
    numbering = array.number()
    check_numbering(array, numbering, [0, -1, 0, 1])
    assert array.distinct(numbering).equals(pyarrow.array([3, 4], pyarrow.duration("ms")))


def test_numpy_times_and_masks():
    times = np.array(["2020-01-01", "NaT", "2020-01-01", "NaT"], "datetime64[s]")
    keys = Keys.of(times)
    numbering = keys.number(sorted=True)
    assert host(keys, numbering.codes).tolist() == [0, 1, 0, 1]
    assert keys.distinct(numbering).dtype == times.dtype
    assert keys.distinct(numbering).astype(str).tolist() == ["2020-01-01T00:00:00", "NaT"]
    masked = np.ma.MaskedArray([5, 1, 6, 2, 5], [False, True, False, True, False])
    keys = Keys.of(masked, nulls="none")
    check_numbering(keys, keys.number(), [0, -1, 1, -1, 0])
    keys = Keys.of(masked)
    distinct = keys.distinct(keys.number())
    assert distinct.tolist() == [5, None, 6]


def test_errors(native):
    a, b = native.array(np.arange(3)), native.array(np.arange(4))
    with pytest.raises(ValueError, match=r"different lengths: column 0 has 3 entries and column 1 4"):
        Keys.of([a, b])
    with pytest.raises(ValueError, match=r"column 'x' has 3 entries and column 'y' 4"):
        Keys.of({"x": a, "y": b})
    with pytest.raises(ValueError, match="no columns"):
        Keys.of({})
    with pytest.raises(TypeError, match="datetime64"):
        number_together(Keys.of(np.array([1, 2], "datetime64[s]")), Keys.of(np.array([1, 2])))
    with pytest.raises(TypeError, match="int64 meet keys of float64"):
        number_together(Keys.of(a), Keys.of(native.array(np.arange(3.0))))
    with pytest.raises(ValueError, match="1 key columns and the other 2"):
        number_together(Keys.of(a), Keys.of([a, a]))
    with pytest.raises(ValueError, match=r"shape \(\) on one side"):
        number_together(Keys.of(a), Keys.of(native.array(np.ones((3, 2), int))))


def test_columns_on_two_devices(torch_cuda):
    with pytest.raises(ValueError, match="different devices"):
        Keys.of([torch_cuda.arange(3, device="cuda"), np.arange(3)])


def test_frameworks_meet():
    torch = module("torch")
    if torch is None:
        pytest.skip("needs PyTorch")
    keys = Keys.of([torch.tensor([1, 1, 2]), np.array([3.5, 3.5, 3.5])])
    distinct = keys.distinct(keys.number())
    assert torch.is_tensor(distinct[0])
    assert isinstance(distinct[1], np.ndarray)


@pytest.mark.parametrize("extra", [0, 6], ids=["packed", "fingerprints"])
def test_memory_that_fails(device, extra):
    memory = counting_memory(device)
    platform, _, index = device.partition(":")
    context = _core.Context(platform, int(index or 0), memory)
    count = 500
    columns = [column("int64", count, seed, extra > 0) for seed in range(1 + extra)]
    lent = []
    for each in columns:
        buffer = _core.Buffer(make_context(device), "int64", (count,), 0)
        make_context(device).copy(buffer.array(), _core.borrow(each), 0)
        lent.append(buffer.array())
    codes = np.empty(count, np.int64)

    def run() -> None:
        rows = _core.KeyRows(context, [(array, 1, None, None) for array in lent], count, None, 0)
        packing = rows.find_packing()
        words = _core.Buffer(context, "uint64" if packing is None else packing.dtype, (count,), 0).array()
        if packing is None:
            rows.fingerprint(_core.random_seed(), False, 0, words)
        else:
            rows.pack(packing, words)
        out = _core.Buffer(context, "int64", (count,), 0).array()
        _core.Factorization(context, words, 1, True, False, 0).write(None, out, None, None, False)
        context.copy(_core.borrow(codes), out, 0)

    run()
    fail_each_allocation(memory, run)
    assert codes.tolist() == first_codes(list(zip(*(each.tolist() for each in columns), strict=True)))
    assert memory.nbytes == 0
    assert memory.mistakes == []


def test_take(native):
    rng = np.random.default_rng(0)
    batch = Keys.of(native.array(np.arange(2))).batch
    context, stream = batch.context, batch.stream
    index = rng.integers(-1, 50, 3000)
    for row in ((), (3,), (4,), (5,), (16,), (33,), (200,)):
        for dtype in ("int8", "int16", "int32", "int64"):
            data = rng.integers(-100, 100, (50, *row)).astype(dtype)
            fill = np.full(row, 7, dtype)
            for filled in (False, True):
                out = _core.Buffer(context, dtype, (3000, *row), stream).array()
                given = batch.lend(fill, dtype) if filled else None
                _core.take(context, [(batch.lend(data, dtype), given, out)], 50, batch.lend(index, "int64"), stream)
                wanted = data[index]
                wanted[index < 0] = fill if filled else 0
                same_bytes(batch.to_host(out), wanted)
    out = _core.Buffer(context, "int64", (2,), stream).array()
    context.copy(out, _core.borrow(np.array([8, 9])), stream)
    columns = [(batch.lend(np.arange(5), "int64"), None, out)]
    with pytest.raises(IndexError, match="index 5 is out of bounds for columns of 5 rows"):
        _core.take(context, columns, 5, batch.lend(np.array([0, 5]), "int64"), stream)
    assert batch.to_host(out).tolist() == [8, 9]


def test_strings_in_the_core(native):
    """Strings are bytes and offsets: as keys, in order, and taken."""
    words = [b"", b"a", b"a\0", b"ab", b"abcdefgh", b"abcdefghi", b"abcdefgh\0", b"z" * 40, b"z" * 41, b"\xff"]
    picks = np.random.default_rng(0).integers(0, len(words), 2000)
    strings = [words[pick] for pick in picks]
    batch = Keys.of(native.array(np.arange(2))).batch
    context, stream = batch.context, batch.stream
    offsets = batch.lend(np.concatenate([[0], np.cumsum([len(each) for each in strings])]), "int64")
    data = batch.lend(np.frombuffer(b"".join(strings), np.uint8), "uint8")
    keys = Keys.of(native.array(np.arange(2000)))
    keys.columns = [keys.columns[0]._replace(array=data, offsets=offsets)]
    keys.rows = _core.KeyRows(context, [keys.columns[0].part()], 2000, None, stream)
    with tuned(narrow_fingerprints=1):
        numbering = keys.number(counts=True)
    check_numbering(keys, numbering, first_codes(strings))
    ordered = sorted(words)
    assert host(keys, keys.number(sorted=True).codes).tolist() == [ordered.index(each) for each in strings]
    index = batch.lend(np.array([5, -1, 7, 5]), "int64")
    taken = _core.Buffer(context, "int64", (5,), stream).array()
    total = _core.take_offsets(context, offsets, index, taken, stream)
    out = _core.Buffer(context, "uint8", (total,), stream).array()
    _core.take_bytes(context, data, offsets, index, taken, out, stream)
    assert batch.to_host(out).tobytes() == strings[5] + strings[7] + strings[5]
    with pytest.raises(IndexError, match="index 2000"):
        _core.take_offsets(context, offsets, batch.lend(np.array([2000]), "int64"), index_of(context, 2), stream)


def index_of(context: _core.Context, count: int) -> _core.Array:
    return _core.Buffer(context, "int64", (count,), 0).array()


KINDS = {
    "int8": st.integers(-3, 3),
    "int64": st.sampled_from([-(2**63), 2**63 - 1, 0, 1]),
    "uint64": st.sampled_from([2**64 - 1, 0, 1]),
    "float64": st.sampled_from([0.0, -0.0, float("nan"), 1e-310, float("-inf")]),
    "bool": st.booleans(),
    "Int32": st.sampled_from([None, 1, 2, -(2**31)]),
    "boolean": st.sampled_from([None, True, False]),
}


@st.composite
def frames(draw):
    count = draw(st.integers(0, 30))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    columns = [pd.Series(draw(st.lists(KINDS[kind], min_size=count, max_size=count)), dtype=kind) for kind in kinds]
    return pd.DataFrame(dict(enumerate(columns)))


@given(frames(), st.sampled_from([0, 2]))
@settings(max_examples=200 if "--slow" in sys.argv else 60, deadline=None)
def test_mixed_columns_against_pandas(frame, narrow):
    with tuned(narrow_fingerprints=narrow):
        keys = Keys.of(frame)
        numbering = keys.number(counts=True)
        check_numbering(keys, numbering, first_codes([tuple(map(_comparable, row)) for row in frame.values.tolist()]))
        pd.testing.assert_frame_equal(
            keys.distinct(numbering), frame.take(host(keys, numbering.firsts)).reset_index(drop=True)
        )
        ordered = host(keys, keys.number(sorted=True).codes)
    if len(frame):
        wanted = frame.groupby(list(frame.columns), dropna=False).ngroup()
        if not any(
            frame[name].isna().any() for name in frame.columns[:-1]
        ):  # pandas: nulls of groupby are first or last
            assert ordered.tolist() == wanted.tolist()


def _comparable(item: Any) -> Any:
    return "null" if item is None or item is pd.NA else "nan" if item != item else item
