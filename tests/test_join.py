"""join, Join and get_indexer: against loops over a dict, pandas, polars and duckdb."""

from __future__ import annotations

import decimal
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frameworks import to_numpy
from support.peers import peer
from support.samples import random_keys

import gpuhash
from gpuhash import _core
from gpuhash.arrays.memory import make_context
from gpuhash.frames import keys as key_columns

pa = peer("pyarrow")
pl = peer("polars")
duckdb = peer("duckdb")

HOWS = ["inner", "left", "right", "outer"]
HALVES = ["semi", "anti"]
#: pandas before 3.1 gives the equal keys of the right side in another order where the left ones are few.
TURNED = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)


def loops(left: list, right: list, how: str) -> list[tuple[int, int]]:
    """The pairs in the order that join promises; of semi and anti the left rows, with -1."""
    if how == "right":
        return [(i, j) for j, i in loops(right, left, "left")]
    partners: dict = {}
    for j, key in enumerate(right):
        partners.setdefault(key, []).append(j)
    pairs = []
    for i, key in enumerate(left):
        found = partners.get(key, [])
        if how in HALVES:
            pairs += [(i, -1)] * ((how == "semi") == bool(found))
        elif found or how == "inner":
            pairs += [(i, j) for j in found]
        else:
            pairs.append((i, -1))
    if how == "outer":
        pairs += [(-1, j) for j, key in enumerate(right) if key not in left]
    return pairs


def as_pairs(result, how: str) -> list[tuple[int, int]]:
    if how in HALVES:
        return [(i, -1) for i in to_numpy(result).tolist()]
    return list(zip(to_numpy(result.left).tolist(), to_numpy(result.right).tolist(), strict=True))


def check(place, left: np.ndarray, right: np.ndarray, names: tuple[list, list] | None = None, **options) -> None:
    """Every kind of join of two sides; `names` are keys that a dict tells apart as join does."""
    lefts, rights = names or (left.tolist(), right.tolist())
    ours, theirs = place.array(left), place.array(right)
    for how in HOWS + HALVES:
        expected = loops(lefts, rights, how)
        result = gpuhash.join(ours, theirs, how, **options)
        assert as_pairs(result, how) == expected
        assert all(place.owns(array) for array in ([result] if how in HALVES else result))
        counted = gpuhash.Join(ours, theirs, how, **options)
        assert counted.count == len(expected)
        pieces = list(counted.pieces(7))
        assert [pair for piece in pieces for pair in as_pairs(piece, how)] == expected
        assert len(pieces) == -(-len(expected) // 7)


SIDES = {
    "both-empty": ([], []),
    "left-empty": ([], [1, 2, 2]),
    "right-empty": ([1, 2, 2], []),
    "one-row": ([5], [5]),
    "one-row-apart": ([5], [6]),
    "all-equal": ([3] * 20, [3] * 30),
    "distinct": (list(range(50)), list(range(49, -1, -1))),
    "no-match": (list(range(20)), list(range(20, 40))),
    "unique-right": ([4, 1, 9, 4, 4, 7], [9, 4, 1]),
    "unique-left": ([9, 4, 1], [4, 1, 9, 4, 4, 7]),
    "many-to-many": ([1, 2, 1, 3, 5], [1, 1, 4, 2, 1, 5, 5]),
}


@pytest.mark.parametrize("sides", SIDES.values(), ids=list(SIDES))
def test_edges(native, sides):
    check(native, *(np.array(side, np.int64) for side in sides))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64"])
def test_special_bit_patterns(native, dtype):
    rng = np.random.default_rng(5)
    pool = np.array([False, True]) if dtype == "bool" else random_keys(dtype, (), 40, 1)
    check(native, *(pool[rng.integers(0, len(pool), count)] for count in (90, 60)))


@pytest.mark.parametrize("columns", [2, 3])
def test_rows(native, columns):
    rng = np.random.default_rng(columns)
    left, right = (rng.integers(0, 4, (count, columns)).astype(np.int32) for count in (70, 50))
    check(native, left, right, tuple([tuple(row) for row in side.tolist()] for side in (left, right)))


def test_floats(native):
    """-0.0 is 0.0, and all NaNs are one key."""
    other_nan = np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0]
    left = np.array([0.0, np.nan, 1.5, -np.inf, -0.0, other_nan, 7.0])
    right = np.array([-0.0, 1.5, other_nan, np.inf, np.nan])
    names = tuple(["nan" if np.isnan(key) else key + 0.0 for key in side.tolist()] for side in (left, right))
    check(native, left, right, names)


def test_every_framework(place):
    rng = np.random.default_rng(8)
    check(place, rng.integers(0, 9, 40), rng.integers(0, 9, 30))
    check(place, rng.integers(0, 99, 40), rng.permutation(50))


def test_python_numbers():
    assert as_pairs(gpuhash.join([1, 2, 1], [2, 2, 3], "outer"), "outer") == loops([1, 2, 1], [2, 2, 3], "outer")


def test_strided_and_read_only():
    keys = np.repeat(np.arange(12), 3).reshape(12, 3)[:, 1]
    frozen = np.arange(6, 20)
    frozen.flags.writeable = False
    check_against = loops(keys[::2].tolist(), frozen.tolist(), "left")
    assert as_pairs(gpuhash.join(keys[::2], frozen, "left"), "left") == check_against


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("right", [[], [5], [3, 1, 2], [3, 1, 3, 2]], ids=len)
def test_right_keys_that_are_taken_for_unique(native, dtype, right, monkeypatch):
    """As a GPU takes many of them, whether they are or not."""
    monkeypatch.setattr(key_columns, "_LEAST_TRIED", 0)
    left = np.array([1, 5, 1, 9, 3], dtype)
    sides = native.array(left), native.array(np.array(right, dtype))
    for how in HOWS:
        expected = loops(left.tolist(), right, how)
        assert as_pairs(gpuhash.join(*sides, how), how) == expected
    assert to_numpy(gpuhash.join(*sides, "anti")).tolist() == [i for i, key in enumerate(left) if key not in right]


@pytest.mark.parametrize("least", [0, 1 << 20], ids=["numbered", "few"])
@pytest.mark.parametrize(("dtype", "row"), [("uint8", (3,)), ("int64", (2,)), ("float32", (1,)), ("float64", (3,))])
def test_right_keys_with_numbers_and_without(native, least, dtype, row, monkeypatch):
    """As a GPU joins many right keys, and few."""
    monkeypatch.setattr(key_columns, "_LEAST_TRIED", least)
    rng = np.random.default_rng(6)
    numbers = [rng.integers(0, 60, 90), np.append(rng.permutation(50), [3, 3])]
    for right in (numbers[1], numbers[1][:50], numbers[1][:0]):
        names = numbers[0].tolist(), right.tolist()
        sides = [np.tile(side.reshape(-1, 1), row).astype(dtype) for side in (numbers[0], right)]
        check(native, *sides, names)
        check(native, *sides, names, validate="m:m")


def test_keys_that_the_core_cannot_pair():
    context = make_context("cpu")
    left, right = _core.borrow(np.arange(6)), _core.borrow(np.arange(6, dtype=np.int32))
    with pytest.raises(ValueError, match="differ in dtype"):
        _core.Pairs.of_keys(context, left, right, 1, "inner", 0)
    with pytest.raises(ValueError, match="24 bytes per key, expected 1 to 16"):
        _core.Pairs.of_keys(context, left, left, 3, "inner", 0)
    assert _core.Pairs.of_keys(context, left, left, 1, "inner", 0) is None  # on the host keys get numbers first


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("dtype", ["int16", "int32", "uint64"])
def test_keys_by_a_list_of_positions(native, threads, dtype, repeated):
    """Unique keys, or all but one, in a list beyond the cache where it is long, of one column and of two."""
    rng = np.random.default_rng(3)
    pool = rng.permutation(30_000 if dtype == "int16" else 150_000).astype(dtype)
    right, left = pool[: len(pool) * 2 // 3].copy(), rng.choice(pool, 70_001)
    if repeated:
        right[-1] = right[0]
    rows = {key: [] for key in pool.tolist()}
    for row, key in enumerate(right.tolist()):
        rows[key].append(row)
    partners = [rows[key] for key in left.tolist()]
    expected = [pair for row, found in enumerate(partners) for pair in ((row, partner) for partner in found or [-1])]
    sides = [native.array(side) for side in (left, right)]
    halves = [[native.array(side // 7), native.array((side % 7).astype("float32"))] for side in (left, right)]
    for keys in (sides, halves):
        result = gpuhash.join(*keys, "left")
        np.testing.assert_array_equal(np.transpose([to_numpy(result.left), to_numpy(result.right)]), expected)
        assert gpuhash.Join(*keys).count == sum(map(len, partners))
    if not repeated:
        np.testing.assert_array_equal(to_numpy(gpuhash.get_indexer(sides[1], sides[0])), np.array(expected)[:, 1])


batches = st.lists(st.integers(0, 12), max_size=60)


@given(left=batches, right=batches, unique=st.booleans())
def test_against_pandas(left, right, unique):
    right = list(dict.fromkeys(right)) if unique else right
    frames = [
        pd.DataFrame({"key": np.array(side, np.int64), name: range(len(side))})
        for side, name in ((left, "i"), (right, "j"))
    ]
    for how in HOWS:
        merged = frames[0].merge(frames[1], on="key", how=how).reindex(columns=["i", "j"]).fillna(-1).astype(int)
        theirs = list(merged.itertuples(index=False, name=None))
        ours = as_pairs(gpuhash.join(np.array(left, np.int64), np.array(right, np.int64), how), how)
        if how == "outer" or TURNED:
            ours, theirs = sorted(ours), sorted(theirs)
        assert ours == theirs


nullable = st.lists(st.one_of(st.none(), st.integers(0, 6)), max_size=40)


@given(left=nullable, right=nullable)
def test_nulls_against_polars_and_duckdb(left, right):
    ours = [pl.Series(side, dtype=pl.Int64) for side in (left, right)]
    frames = [
        pl.DataFrame({"key": side, name: range(len(side))}, schema_overrides={name: pl.Int64})
        for side, name in zip(ours, "ij", strict=True)
    ]
    for how, nulls in itertools.product(HOWS + HALVES, ["never", "equal"]):
        their_how = "full" if how == "outer" else how
        joined = frames[0].join(frames[1], on="key", how=their_how, nulls_equal=nulls == "equal", coalesce=False)
        theirs = [
            tuple(-1 if number is None else number for number in row)
            for row in joined.select("i", "j" if how in HOWS else pl.lit(-1).alias("j")).rows()
        ]
        pairs = as_pairs(gpuhash.join(*ours, how, nulls=nulls), how)
        assert sorted(pairs) == sorted(theirs)
    connection = duckdb.connect()
    for name, frame in zip(("lefts", "rights"), frames, strict=True):
        connection.register(name, frame.to_arrow())
    rows = connection.sql("SELECT i, j FROM lefts FULL JOIN rights ON lefts.key = rights.key").fetchall()
    theirs = [tuple(-1 if number is None else number for number in row) for row in rows]
    assert sorted(as_pairs(gpuhash.join(*ours, "outer"), "outer")) == sorted(theirs)


def test_pandas_nulls():
    """pandas joins nulls with each other; gpuhash does so if it is told to."""
    left, right = pd.array([1, None, 2], "Int64"), pd.array([None, 2, None], "Int64")
    merged = pd.DataFrame({"key": left}).merge(pd.DataFrame({"key": right}), on="key")
    assert gpuhash.Join(left, right, nulls="equal").count == len(merged) == 3
    assert gpuhash.Join(left, right).count == 1


@pytest.mark.parametrize("count", [1 << 13, (1 << 13) + 1, 100_003])
def test_large_sides_on_threads(native, threads, count):
    """More than a thread's share and a block of rows, with groups of one step and of two."""
    rng = np.random.default_rng(count)
    for keys in (count // 3, 20, count * 4):
        left, right = rng.integers(0, keys, count), rng.integers(0, keys, 40_000 if keys > 20 else 50)
        result = gpuhash.join(native.array(left), native.array(right), "outer")
        lefts, rights = to_numpy(result.left), to_numpy(result.right)
        pairs = (lefts >= 0) & (rights >= 0)
        assert (left[lefts[pairs]] == right[rights[pairs]]).all()
        times, found = np.bincount(right, minlength=left.max() + 1), np.isin(left, right)
        assert pairs.sum() == times[left].sum()
        expected = np.repeat(np.arange(count), np.maximum(times[left], 1))
        rest = np.flatnonzero(~np.isin(right, left))
        np.testing.assert_array_equal(lefts, np.concatenate([expected, np.full(len(rest), -1)]))
        np.testing.assert_array_equal(rights[len(expected) :], rest)
        np.testing.assert_array_equal(rights[: len(expected)] < 0, ~found[expected])
        same_row = lefts[1 : len(expected)] == lefts[: len(expected) - 1]
        assert (np.diff(rights[: len(expected)])[same_row] > 0).all()


def test_group_positions(on_device):
    """Against a stable sort, of few groups and of many, with codes that are of none and groups that are empty."""
    for count, groups in [(0, 0), (0, 5), (1, 1), (1000, 7), (100_000, 16_384), (100_000, 16_385), (70_000, 3_000_000)]:
        codes = np.random.default_rng(groups).integers(-1, max(groups, 0), count)
        batch = gpuhash.arrays.batch.Batch.of_array(on_device.array(codes), 0, "codes")
        offsets, order = (
            _core.Buffer(batch.context, "int64", (length,), batch.stream).array() for length in (groups + 1, count)
        )
        _core.group_positions(batch.context, batch.array, offsets, order, batch.stream)
        got, positions = (gpuhash.arrays.export.to_host(batch.context, each, 0) for each in (offsets, order))
        expected = np.argsort(codes, kind="stable")[(codes < 0).sum() :]
        np.testing.assert_array_equal(positions[: len(expected)], expected)
        np.testing.assert_array_equal(got, np.searchsorted(np.sort(codes[codes >= 0]), np.arange(groups + 1)))


def test_counts_beyond_memory(native):
    """Counted, and had in pieces, where the whole has 2^50 bytes."""
    keys = native.array(np.zeros(1 << 23, np.int64))
    pairs = gpuhash.Join(keys, keys)
    assert pairs.count == 1 << 46
    piece = next(pairs.pieces(1000))
    assert to_numpy(piece.left).tolist() == [0] * 1000
    assert to_numpy(piece.right).tolist() == list(range(1000))
    last = pairs._write(pairs.count - 3, pairs.count)
    assert as_pairs(last, "inner") == [((1 << 23) - 1, (1 << 23) - number) for number in (3, 2, 1)]


@pytest.mark.parametrize("nulls", ["never", "equal"])
def test_validate(nulls):
    unique, twice = np.array([3, 1, 2]), np.array([1, 5, 1, 5, 5])
    sides = {"1": unique, "m": twice}
    for validate in ("1:1", "1:m", "m:1", "m:m"):
        for how in HOWS + HALVES:
            for left, right in itertools.product("1m", repeat=2):
                wrong = [
                    name
                    for name, side, asked in zip(
                        ("left_keys", "right_keys"), left + right, validate.split(":"), strict=True
                    )
                    if side == "m" and asked == "1"
                ]
                options = {"how": how, "validate": validate, "nulls": nulls}
                if not wrong:
                    gpuhash.join(sides[left], sides[right], **options)
                    continue
                with pytest.raises(ValueError, match=f"3 of the 5 {wrong[0]} repeat .* position 2 that at position 0"):
                    gpuhash.join(sides[left], sides[right], **options)


def test_validate_takes_nulls_for_keys_where_they_are_equal():
    column = pl.Series([1, None, None])
    assert gpuhash.Join(column, column, validate="1:1").count == 1
    with pytest.raises(ValueError, match="1 of the 3 left_keys repeat others, such as the one at position 2"):
        gpuhash.join(column, column, validate="1:1", nulls="equal")


@given(keys=st.sets(st.integers(-50, 50)), targets=st.lists(st.integers(-60, 60)))
def test_get_indexer_against_pandas(keys, targets):
    keys, targets = np.array(list(keys), np.int64), np.array(targets, np.int64)
    np.testing.assert_array_equal(gpuhash.get_indexer(keys, targets), pd.Index(keys).get_indexer(targets))


def test_get_indexer(place):
    keys, targets = np.array([7, -1, 2**40]), np.array([2**40, 3, 7, 7, -1])
    found = gpuhash.get_indexer(place.array(keys), place.array(targets))
    assert place.owns(found)
    assert to_numpy(found).tolist() == [2, -1, 0, 0, 1]


def test_get_indexer_of_nulls_and_duplicates():
    keys = pd.array([4, None, 9], "Int64")
    assert gpuhash.get_indexer(keys, pd.array([None, 9, 5], "Int64")).tolist() == [1, 2, -1]
    with pytest.raises(ValueError, match="1 of the 3 keys repeat others, such as the one at position 2 that at"):
        gpuhash.get_indexer([4, 5, 4], [4])


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([1], [2]), {"how": "cross"}, ValueError, "how='cross' was given, expected one of 'inner', 'left'"),
        (([1], [2]), {"how": None}, ValueError, "how=None was given"),
        (([1], [2]), {"validate": "one_to_one"}, ValueError, "validate='one_to_one' was given, expected one of None"),
        (([1], [2]), {"nulls": True}, ValueError, "nulls=True was given, expected one of 'never', 'equal'"),
        ((np.array(5), [2]), {}, ValueError, "left_keys have shape"),
        ((np.array([1]), np.array([[1, 2]])), {}, (TypeError, ValueError), "2"),
        ((np.array([1]), "abc"), {}, (TypeError, ValueError), "strings"),
    ],
)
def test_errors(arguments, options, error, message):
    with pytest.raises(error, match=message):
        gpuhash.join(*arguments, **options)


@pytest.mark.parametrize("rows", [0, -1])
def test_pieces_of_no_rows(rows):
    with pytest.raises(ValueError, match=f"rows={rows}"):
        gpuhash.Join([1], [1]).pieces(rows)


def test_repr():
    assert repr(gpuhash.Join([1, 1], [1, 1])) == "<Join count=4, device=cpu>"


def test_no_memory_for_the_result():
    keys = np.zeros(1 << 23, np.int64)
    with pytest.raises(MemoryError):
        gpuhash.join(keys, keys)


def test_each_failure_is_reported(on_device):
    """Of the host's scratch memory or of the GPU's launches: it raises, and the next one is right."""
    kind = "scratch" if on_device.device == "cpu" else "launch"
    rng = np.random.default_rng(1)
    left, right = rng.integers(0, 20_000, 50_000), rng.integers(0, 20_000, 40_000)
    ours, theirs = on_device.array(left), on_device.array(right)
    expected = as_pairs(gpuhash.join(ours, theirs, "outer"), "outer")
    failures, is_past_the_last = 0, False
    for place in range(1000):
        _core.inject_failure(kind, place)
        try:
            result = gpuhash.join(ours, theirs, "outer")
        except (MemoryError, gpuhash.CudaError):
            failures += 1
        else:
            assert as_pairs(result, "outer") == expected
        finally:
            is_past_the_last = _core.inject_failure(kind, -1)
        if is_past_the_last:
            break
    assert is_past_the_last
    assert failures > 4


@pytest.mark.parametrize("dtype", ["U2", "S2", object])
def test_masked_strings_are_nulls(dtype):
    left = np.ma.MaskedArray(np.array(["a", "b", "a", "c"], dtype), [False, False, True, True])
    right = np.ma.MaskedArray(np.array(["c", "a", "b"], dtype), [True, False, False])
    pairs = gpuhash.join(left, right)
    assert (pairs.left.tolist(), pairs.right.tolist()) == ([0, 1], [1, 2])
    pairs = gpuhash.join(left, right, nulls="equal")
    assert (pairs.left.tolist(), pairs.right.tolist()) == ([0, 1, 2, 3], [1, 2, 0, 0])


def test_decimals_of_different_scales_do_not_meet():
    """Their unscaled integers would."""

    def decimals(scale: int) -> pa.Array:
        return pa.array([decimal.Decimal("11"), decimal.Decimal("1.1")], pa.decimal128(10, scale))

    pairs = gpuhash.join(decimals(1), pl.Series(decimals(1)))
    assert pairs.right.tolist() == [0, 1]
    for other in (decimals(2), pd.Series(pd.array(decimals(3), pd.ArrowDtype(pa.decimal128(10, 3))))):
        with pytest.raises(TypeError, match=r"keys of decimals of 1 places meet keys of decimals of [23] places"):
            gpuhash.join(decimals(1), other)


TYPED = {
    "numbers": np.array([4, 5, 6]),
    "strings": np.array(["a", "b", "c"]),
    "nulls": pl.Series(["a", None, "c"]),
    "dates": np.array(["2020", "2021", "NaT"], "M8[D]"),
    "rows": np.ones((3, 2)),
    "decimals": pa.array([decimal.Decimal(5), None, None]),
}


@pytest.mark.parametrize("kind", TYPED)
def test_columns_of_no_dtype_meet_others(kind):
    """Empty ones, and those of nulls alone."""
    typed = TYPED[kind]
    nulls = {"nulls": [1], "dates": [2], "decimals": [1, 2]}.get(kind, [])
    for none in ([], pd.Series([], dtype=object), pl.Series([]), pa.array([])):
        pairs = gpuhash.join(typed, none, "left")
        assert (pairs.left.tolist(), pairs.right.tolist()) == ([0, 1, 2], [-1] * 3)
        assert gpuhash.join(none, typed, "outer").right.tolist() == [0, 1, 2]
    for none in (pd.Series([None, None], dtype=object), pl.Series([None, None]), pa.nulls(2)):
        assert gpuhash.join(typed, none, "semi").tolist() == []
        assert gpuhash.join(none, typed, "semi", nulls="equal").tolist() == ([0, 1] if nulls else [])
        assert gpuhash.join([typed, typed], [none, none], "semi", nulls="equal").tolist() == nulls
