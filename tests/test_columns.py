"""Columns of pandas, polars and Arrow: against the integers that they hold; nulls are refused or get the id -1."""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from support.peers import peer

import gpuhash
from gpuhash import HashSet, HashTable

pl = peer("polars")
pa = peer("pyarrow")

# Neighbours beyond 2^53, which float64 merges.
IDS = [2**53 + 1, 2**53, -(2**62) - 1, 7, 2**53 + 1, 2**63 - 1, 2**63 - 2, 7]

COLUMNS = {
    "pandas": lambda: pd.Series(IDS),
    "pandas-index-of-series": lambda: pd.Series(IDS, index=range(100, 100 + len(IDS))),
    "pandas-nullable": lambda: pd.Series(IDS, dtype="Int64"),
    "pandas-arrow": lambda: pd.Series(IDS, dtype="int64[pyarrow]"),
    "pandas-array": lambda: pd.array(IDS, dtype="Int64"),
    "pandas-index": lambda: pd.Index(IDS),
    "pandas-nullable-index": lambda: pd.Index(IDS, dtype="Int64"),
    "pandas-categorical": lambda: pd.Categorical(IDS),
    "pandas-categories": lambda: pd.Series(IDS, dtype="category"),
    "pandas-sparse": lambda: pd.arrays.SparseArray(IDS),
    "polars": lambda: pl.Series(IDS),
    "polars-chunks": lambda: pl.concat([pl.Series(IDS[:3]), pl.Series(IDS[3:])], rechunk=False),
    "arrow": lambda: pa.array(IDS),
    "arrow-slice": lambda: pa.array([1, *IDS, 1]).slice(1, len(IDS)),
    "arrow-chunks": lambda: pa.chunked_array([IDS[:3], IDS[3:]]),
    "arrow-dictionary": lambda: pa.array(IDS).dictionary_encode(),
}
WITH_NULLS = [*IDS[:3], None, *IDS[3:], None]
NULLABLE = {
    "pandas-nullable": lambda: pd.Series(WITH_NULLS, dtype="Int64"),
    "pandas-arrow": lambda: pd.Series(WITH_NULLS, dtype="int64[pyarrow]"),
    "pandas-array": lambda: pd.array(WITH_NULLS, dtype="Int64"),
    "pandas-index": lambda: pd.Index(WITH_NULLS, dtype="Int64"),
    "pandas-categorical": lambda: pd.Categorical.from_codes(
        [-1 if number is None else sorted(set(IDS)).index(number) for number in WITH_NULLS], sorted(set(IDS))
    ),
    "pandas-other-index": lambda: pd.Series(WITH_NULLS, dtype="Int64", index=[5] * len(WITH_NULLS)),
    "polars": lambda: pl.Series(WITH_NULLS),
    "polars-chunks": lambda: pl.concat([pl.Series(WITH_NULLS[:2]), pl.Series(WITH_NULLS[2:])], rechunk=False),
    "arrow": lambda: pa.array(WITH_NULLS),
    "arrow-chunks": lambda: pa.chunked_array([WITH_NULLS[:2], WITH_NULLS[2:]]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_unique_factorize_isin(kind):
    column = COLUMNS[kind]()
    values, counts = gpuhash.unique(column, return_counts=True)
    assert values.dtype == np.int64
    assert values.tolist() == list(dict.fromkeys(IDS))
    assert counts.tolist() == [IDS.count(number) for number in dict.fromkeys(IDS)]
    codes, uniques = gpuhash.factorize(column)
    assert uniques[codes].tolist() == IDS
    tests = [2**53, 2**63 - 2]
    assert gpuhash.isin(column, tests).tolist() == [number in tests for number in IDS]
    assert gpuhash.isin(np.array(tests), column).all()
    assert gpuhash.isin(tests, column).all()
    assert not gpuhash.isin([2**53 + 2, 2**63 - 3, 2**63], column).any()


@pytest.mark.parametrize("kind", COLUMNS)
def test_keys_and_values_of_tables(device, kind):
    column = COLUMNS[kind]()
    table = HashTable("int64", "int64", device=device, deterministic=True)
    table[column] = column
    model = dict(zip(IDS, IDS, strict=True))
    assert table == model
    assert table[column].tolist() == IDS
    assert table.get(column, 0).tolist() == IDS
    values, found = table.find(column, column)
    assert values.tolist() == IDS
    assert found.all()
    assert not table.contains(np.array(IDS) + 3).any()
    table.insert_or_apply(column, column, "max")
    assert table == model
    assert HashTable.from_items(column, column) == model
    made = HashSet.from_keys(column, device=device)
    assert made == set(IDS)
    made.update(column)
    assert made.issubset(column)
    assert table.erase(column).sum() == len(model)
    assert len(table) == 0


@pytest.mark.parametrize("kind", NULLABLE)
def test_nulls_are_refused_by_name(device, kind):
    column = NULLABLE[kind]()
    table = HashTable("int64", "int64", device=device)
    table[IDS] = 1
    before = dict(table.to("cpu"))
    calls = [
        lambda: gpuhash.unique(column),
        lambda: gpuhash.isin(column, [1]),
        lambda: gpuhash.isin(np.array([1]), column),
        lambda: table.contains(column),
        lambda: table.__setitem__(np.arange(len(WITH_NULLS)), column),
        lambda: HashTable.from_items(column, 1),
        lambda: HashSet.from_keys(column),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"nulls, in 2 of 10 entries.*(dropna|drop_nulls?)\(\)"):
            call()
    assert table == before


@pytest.mark.parametrize("kind", NULLABLE)
def test_factorize_gives_nulls_the_id_of_pandas(kind):
    codes, uniques = gpuhash.factorize(NULLABLE[kind]())
    pandas_codes, pandas_uniques = pd.factorize(pd.array(WITH_NULLS, dtype="Int64"))
    assert codes.dtype == np.int64
    assert codes.tolist() == pandas_codes.tolist()
    assert uniques.dtype == np.int64
    assert uniques.tolist() == pandas_uniques.tolist()


OTHER_DTYPES = {
    "bool-pandas": (lambda: pd.Series([True, False, True], dtype="boolean"), [True, False], "bool"),
    "bool-polars": (lambda: pl.Series([True, False, True]), [True, False], "bool"),
    "bool-arrow": (lambda: pa.array([True, False, True]), [True, False], "bool"),
    "uint8-arrow": (lambda: pa.array([3, 200, 3], pa.uint8()), [3, 200], "uint8"),
    "uint64-pandas": (lambda: pd.Series([2**64 - 1, 2**64 - 2], dtype="UInt64"), [2**64 - 1, 2**64 - 2], "uint64"),
    "uint64-polars": (lambda: pl.Series([2**64 - 1, 2**64 - 2], dtype=pl.UInt64), [2**64 - 1, 2**64 - 2], "uint64"),
    "float32-pandas": (lambda: pd.Series([1.5, 1.5], dtype="Float32"), [1.5], "float32"),
    "float64-polars": (lambda: pl.Series([0.1, 0.1]), [0.1], "float64"),
    "float32-arrow": (lambda: pa.array([1.5], pa.float32()), [1.5], "float32"),
}


@pytest.mark.parametrize("kind", OTHER_DTYPES)
def test_dtypes_stay(kind):
    make, expected, dtype = OTHER_DTYPES[kind]
    values = gpuhash.unique(make())
    assert values.tolist() == expected
    assert values.dtype.name == dtype


def test_frames_are_rows():
    rows = [[2**53 + 1, 1], [2**53, 1], [2**53 + 1, 1]]
    frames = [
        pd.DataFrame(rows, columns=["a", "b"]),
        pd.DataFrame(rows, columns=["a", "b"], dtype="Int64"),
        pl.DataFrame(rows, schema=["a", "b"], orient="row"),
        pa.table({"a": [row[0] for row in rows], "b": [row[1] for row in rows]}),
        pl.Series(rows, dtype=pl.Array(pl.Int64, 2)),
        pl.DataFrame(rows, schema=["a", "b"], orient="row").to_struct("s"),
    ]
    for frame in frames:
        assert gpuhash.unique(frame, axis=0).tolist() == rows[:2]
        made = HashSet.from_keys(frame)
        assert (made.key_shape, len(made)) == ((2,), 2)


def test_structs_lose_nothing():
    """Their fields are columns. polars itself makes float64 of fields of several dtypes, and of those with nulls."""
    wide = [2**62, 2**62 + 1]
    structs = pl.DataFrame({"a": wide, "b": [1, 1]}).to_struct("s")
    assert gpuhash.unique(structs, axis=0).tolist() == [[2**62, 1], [2**62 + 1, 1]]
    in_arrays = pl.Series([[{"a": 2**62}], [{"a": 2**62 + 1}]], dtype=pl.Array(pl.Struct({"a": pl.Int64}), 1))
    assert gpuhash.unique(in_arrays).tolist() == wide
    assert gpuhash.unique(in_arrays[:0], axis=0).shape == (0, 1, 1)
    rows = pl.Series([{"a": 2**62, "b": 1}, None, {"a": 2**62 + 1, "b": 1}])
    codes, uniques = gpuhash.factorize(rows, axis=0)
    assert codes.tolist() == [0, -1, 1]
    assert uniques.tolist() == [[2**62, 1], [2**62 + 1, 1]]


class Stream:
    """What any library may give: Arrow's C stream interface, and nothing else."""

    def __init__(self, column):
        self.column = column if hasattr(column, "__arrow_c_stream__") else pa.chunked_array([column])

    def __arrow_c_stream__(self, requested_schema=None):
        return self.column.__arrow_c_stream__()


class Once:
    """A stream that can be read once, as those of readers."""

    def __init__(self, column):
        self.stream = Stream(column)

    def __arrow_c_stream__(self, requested_schema=None):
        stream, self.stream = self.stream, None
        return stream.__arrow_c_stream__()


class Single:
    """Arrow's C interface for one array."""

    def __init__(self, column):
        self.column = column

    def __arrow_c_array__(self, requested_schema=None):
        return self.column.__arrow_c_array__()


class Broken:
    def __arrow_c_stream__(self, requested_schema=None):
        raise OSError("no data today")


def relation(selected):
    """Of DuckDB, where that is installed."""
    return pytest.importorskip("duckdb").sql(f"select {selected}")


WIDE = [2**62, 2**62 + 1, -1]
UUIDS = [uuid.UUID(int=2**127 + 5), uuid.UUID(int=2**127 + 6)]
#: Columns of Arrow whose entries are vectors, bytes or unscaled integers, and what these are.
VECTORS = {
    "lists": (lambda: pa.array([[each, 1] for each in WIDE], pa.list_(pa.int64(), 2)), [[each, 1] for each in WIDE]),
    "lists-sliced": (lambda: pa.array([[7, 8], *([each, 1] for each in WIDE)], pa.list_(pa.int64(), 2))[1:], None),
    "lists-chunked": (
        lambda: pa.chunked_array([[[WIDE[0], 1]], [[each, 1] for each in WIDE[1:]]], pa.list_(pa.int64(), 2)),
        None,
    ),
    "structs": (lambda: pa.array([{"a": each, "b": 1} for each in WIDE]), None),
    "structs-sliced": (lambda: pa.array([{"a": 0, "b": 0}, *({"a": each, "b": 1} for each in WIDE)])[1:], None),
    "pandas-structs": (
        lambda: pd.Series(
            [{"a": each, "b": 1} for each in WIDE],
            dtype=pd.ArrowDtype(pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        ),
        None,
    ),
    "binaries": (lambda: pa.array([b"abcd", b"abce"], pa.binary(4)), [list(b"abcd"), list(b"abce")]),
    "uuids": (lambda: pa.array([each.bytes for each in UUIDS], pa.uuid()), [list(each.bytes) for each in UUIDS]),
    "decimals-of-32": (lambda: pa.array([decimal.Decimal("-1.50")], pa.decimal32(9, 2)), [-150]),
    "decimals-of-64": (lambda: pa.array([decimal.Decimal(10**17)], pa.decimal64(18, 0)), [10**17]),
    "decimals-of-128": (
        lambda: pa.array([decimal.Decimal(2**100 + 3), decimal.Decimal(-2)], pa.decimal128(38, 0)),
        [[3, 2**36], [2**64 - 2, 2**64 - 1]],
    ),
    "polars-decimals": (
        lambda: pl.Series([decimal.Decimal(2**64 + 3), decimal.Decimal(-2)], dtype=pl.Decimal(38, 0)),
        [[3, 1], [2**64 - 2, 2**64 - 1]],
    ),
    "pandas-decimals": (
        lambda: pd.Series([decimal.Decimal(5)], dtype=pd.ArrowDtype(pa.decimal128(38, 0))),
        [[5, 0]],
    ),
}


@pytest.mark.parametrize("kind", VECTORS)
def test_entries_of_several_words_are_keys(kind):
    make, expected = VECTORS[kind]
    expected = [[each, 1] for each in WIDE] if expected is None else expected
    assert gpuhash.unique(make(), axis=0).tolist() == expected
    made = HashSet.from_keys(make())
    assert len(made) == len(expected)
    assert sorted(made.keys().tolist()) == sorted(expected)
    assert made.contains(make()).all()
    codes, _ = gpuhash.factorize(make(), axis=0)
    assert codes.tolist() == list(range(len(expected)))
    assert gpuhash.isin(make(), make(), axis=0).all()


@pytest.mark.parametrize("kind", ["binaries", "uuids", "decimals-of-128", "polars-decimals"])
def test_what_means_nothing_in_parts_is_a_key_as_a_whole(kind):
    """Without an axis, by which each number of an array is a key."""
    make, expected = VECTORS[kind]
    assert gpuhash.unique(make()).tolist() == expected
    assert gpuhash.factorize(make()).codes.tolist() == [0, 1]
    assert gpuhash.isin(make(), make()[:1]).tolist() == [True, False]
    assert gpuhash.isin(make(), [expected[1]]).tolist() == [False, True]


@pytest.mark.parametrize("wrap", [Stream, Once, Single, lambda column: pa.table({"a": column}).to_reader()])
def test_whatever_has_arrows_c_interface(wrap):
    def column(values=(2**62, 2**62 + 1, 2**62)):
        return wrap(pa.array(values, pa.int64()))

    shape = () if wrap in (Stream, Once, Single) else (1,)  # tables have rows
    distinct = gpuhash.unique(column(), axis=0)
    assert (distinct.dtype, distinct.shape) == (np.int64, (2, *shape))
    assert distinct.reshape(-1).tolist() == [2**62, 2**62 + 1]
    assert gpuhash.factorize(column(), axis=0).codes.tolist() == [0, 1, 0]
    assert gpuhash.isin(column(), column([2**62]), axis=0).tolist() == [True, False, True]
    made = HashSet.from_keys(column())
    assert sorted(made.keys().reshape(-1).tolist()) == [2**62, 2**62 + 1]
    table = HashTable.from_items(column([5, 6]), column([7, 8]), key_shape=shape, value_shape=shape)
    assert table[column([6, 5])].reshape(-1).tolist() == [8, 7]
    assert gpuhash.unique(wrap(pa.array([], pa.int64())), axis=0).shape == (0, *shape)


def test_nulls_of_a_stream_have_the_id_of_pandas():
    codes, _ = gpuhash.factorize(Once(pa.chunked_array([WITH_NULLS[:2], WITH_NULLS[2:]], pa.int64())))
    wanted, _ = pd.factorize(pd.array(WITH_NULLS, dtype="Int64"))
    assert codes.tolist() == wanted.tolist()
    codes, _ = gpuhash.factorize(Once(pa.array([b"ab", None, b"ac", b"ab"], pa.binary(2))))
    assert codes.tolist() == [0, -1, 1, 0]


@pytest.mark.parametrize("begin", [0, 1, 7, 8, 9])
def test_bits_of_streams_begin_anywhere(begin):
    """Bools and nulls are packed eight to a byte."""
    random = np.random.default_rng(begin)
    values = [None if random.random() < 0.2 else bool(random.random() < 0.5) for _ in range(40)]
    part = pa.array(values)[begin : begin + 19]
    codes, uniques = gpuhash.factorize(Single(part))
    known = {False: -2, True: -2, None: -1, **{value: row for row, value in enumerate(uniques.tolist())}}
    assert codes.tolist() == [known[value] for value in values[begin : begin + 19]]
    words = pa.array([each and 5 for each in [1, None, 3]]).dictionary_encode()
    assert gpuhash.factorize(Single(words)).codes.tolist() == [0, -1, 0]


def test_relations_of_duckdb_are_rows():
    rows = gpuhash.unique(relation("range::bigint a, (range * 2)::bigint b from range(5000)"), axis=0)
    assert rows.tolist() == [[each, 2 * each] for each in range(5000)]
    table = HashTable.from_items(relation("range::bigint from range(9)"), 1.5, key_shape=())
    assert len(table) == 9


REFUSED = {
    "struct-of-two-dtypes": (
        lambda: pl.DataFrame({"a": [2**62], "b": [0.5]}).to_struct("s"),
        TypeError,
        "int64 and float64: give them one",
    ),
    "struct-of-unlike-integers": (
        lambda: pl.DataFrame({"a": [1], "b": [1]}, schema={"a": pl.Int64, "b": pl.UInt64}).to_struct("s"),
        TypeError,
        "int64 and uint64: give them one",
    ),
    "nulls-in-structs": (lambda: pl.Series([{"a": 2**62}, {"a": None}]), ValueError, "nulls"),
    "null-structs": (lambda: pl.Series([{"a": 2**62}, None]), ValueError, "nulls"),
    "nulls-in-structs-in-arrays": (
        lambda: pl.Series([[{"a": 2**62}], [{"a": None}]], dtype=pl.Array(pl.Struct({"a": pl.Int64}), 1)),
        ValueError,
        "nulls",
    ),
    "numbers-beside-vectors": (
        lambda: pl.DataFrame({"a": [1], "b": [[1, 2]]}, schema={"a": pl.Int64, "b": pl.Array(pl.Int64, 2)}),
        TypeError,
        "give them apart",
    ),
    "frame-of-two-dtypes": (lambda: pd.DataFrame({"a": [2**53 + 1], "b": [0.5]}), TypeError, "int64 and float64"),
    "polars-frame-of-two-dtypes": (lambda: pl.DataFrame({"a": [2**53 + 1], "b": [0.5]}), TypeError, "one dtype"),
    "frame-with-nulls": (lambda: pl.DataFrame({"a": [2**53 + 1, None]}), ValueError, "nulls"),
    "arrow-table-with-nulls": (lambda: pa.table({"a": [2**53 + 1, None]}), ValueError, "nulls"),
    "nulls-in-arrays": (lambda: pl.Series([[2**53 + 1, None]], dtype=pl.Array(pl.Int64, 2)), ValueError, "nulls"),
    "nulls-of-floats": (lambda: pa.array([0.5, None]), ValueError, "nulls"),
    "nulls-alone": (lambda: pl.Series([None, None]), ValueError, "nulls"),
    "times": (lambda: pd.Series(pd.to_datetime(["2020-01-01"])), TypeError, r"astype\('int64'\)"),
    "times-of-a-zone": (lambda: pd.Series(pd.to_datetime(["2020-01-01"], utc=True)), TypeError, r"astype\('int64'\)"),
    "time-index": (lambda: pd.DatetimeIndex(["2020-01-01"]), TypeError, r"astype\('int64'\)"),
    "polars-dates": (lambda: pl.Series([18262]).cast(pl.Date), TypeError, "to_physical"),
    "arrow-times": (lambda: pa.array([1], pa.timestamp("s")), TypeError, r"cast\('int64'\)"),
    "objects": (lambda: pd.Series([1, 2], dtype=object), TypeError, "pandas Series of object.*convert"),
    "strings": (lambda: pd.Series(["a", "b"]), TypeError, "factorize"),
    "polars-strings": (lambda: pl.Series(["a", "b"]), TypeError, "polars Series of String.*factorize"),
    "arrow-strings": (lambda: pa.array(["a", "b"]), TypeError, "factorize"),
    "decimals-of-256-bits": (lambda: pa.array([1], pa.decimal256(50)), TypeError, "256 bits, and keys have up to 128"),
    "128-bits": (lambda: pl.Series([1]).cast(pl.Int128), TypeError, r"UInt64 meets Int64.*cast\(pl.UInt64\)"),
    "128-bits-of-a-sum": (
        lambda: pl.DataFrame({"a": [1], "b": [1]}, schema={"a": pl.UInt64, "b": pl.Int64}).select(
            pl.col("a") + pl.col("b")
        ),
        TypeError,
        r"UInt64 meets Int64.*cast\(pl.UInt64\)",
    ),
    "arrow-struct-of-two-dtypes": (lambda: pa.array([{"a": 1, "b": 0.5}]), TypeError, "int64 and float64: give them"),
    "nulls-in-arrow-structs": (lambda: pa.array([{"a": 2**62}, {"a": None}]), ValueError, "1 nulls within"),
    "nulls-in-arrow-lists": (lambda: pa.array([[2**62, None]], pa.list_(pa.int64(), 2)), ValueError, "1 nulls within"),
    "null-arrow-lists": (lambda: pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), ValueError, "in 1 of 2 entries"),
    "null-binaries": (lambda: pa.array([b"abcd", None], pa.binary(4)), ValueError, "in 1 of 2 entries"),
    "null-decimals": (lambda: pl.Series([decimal.Decimal(1), None]), ValueError, "in 1 of 2 entries"),
    "arrow-lists-of-any-length": (lambda: pa.array([[1, 2]]), TypeError, "no numbers"),
    "nulls-of-a-relation": (
        lambda: relation("null::bigint a union all select 1"),
        ValueError,
        "1 nulls within",
    ),
    "strings-of-a-relation": (lambda: relation("'x' a"), TypeError, "'u'.*factorize"),
    "times-of-a-stream": (lambda: Stream(pa.array([1], pa.timestamp("s"))), TypeError, "cast times to int64"),
    "lists-of-a-stream": (lambda: Stream(pa.array([[1]])), TypeError, "lists of a fixed size"),
    "nulls-of-a-stream": (lambda: Stream(pa.array([1, None])), ValueError, "in 1 of 2 entries"),
    "nulls-alone-of-a-stream": (lambda: Stream(pa.nulls(2)), ValueError, "nulls alone"),
    "a-stream-that-fails": (lambda: Broken(), TypeError, "cannot be had by Arrow's C interface: no data today"),
    "lists": (lambda: pl.Series([[1, 2]]), TypeError, "List"),
    "numpy-objects": (lambda: np.array([1, 2], object), TypeError, "astype"),
    "numpy-strings": (lambda: np.array(["a"]), TypeError, "factorize"),
    "numpy-times": (lambda: np.zeros(2, "M8[s]"), TypeError, "view"),
}


#: Which are keys to functions, though not to tables.
OF_FUNCTIONS = {
    kind for kind in REFUSED if "strings" in kind or ("time" in kind and "stream" not in kind) or "dates" in kind
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_holds_no_numbers_is_refused(kind):
    make, error, hint = REFUSED[kind]
    table = HashTable("int64", "int64")
    calls = [table.contains, lambda keys: table.__setitem__(keys, 1)]
    if "strings" not in kind:  # which are keys of sets
        calls.append(HashSet.from_keys)
    for call in calls if kind in OF_FUNCTIONS else [gpuhash.unique, *calls]:
        with pytest.raises(error, match=hint):
            call(make())
    if kind in OF_FUNCTIONS:
        assert len(gpuhash.unique(make())) in (1, 2)
    assert len(table) == 0


def test_empty_columns():
    for column in (pd.Series([], dtype="Int64"), pl.Series([], dtype=pl.Int64), pa.array([], pa.int64())):
        codes, uniques = gpuhash.factorize(column)
        assert (len(codes), len(uniques), uniques.dtype) == (0, 0, np.int64)
        assert gpuhash.isin(column, [1]).shape == (0,)


def test_nulls_among_entries_of_several_numbers():
    """Each entry is a key with axis=0; otherwise it is said."""
    lists = pa.array([[1, 2], None, [1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    with pytest.raises(TypeError, match=r"1 of 4 entries of several numbers are null.*axis=0"):
        gpuhash.factorize(lists)
    codes, uniques = gpuhash.factorize(lists, axis=0)
    assert codes.tolist() == [0, -1, 0, 1]
    assert uniques.tolist() == [[1, 2], [3, 4]]


def test_dictionaries_with_nulls_in_both_parts():
    """pandas.factorize is the oracle."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 2, 0], pa.int8()), pa.array([7, None, 8], pa.int64()))
    codes, uniques = gpuhash.factorize(column)
    expected, _ = pd.factorize(column.cast(pa.int64()).to_pandas())
    np.testing.assert_array_equal(codes, expected)
    assert uniques.tolist() == [7, 8]


def test_series_mapped_by_a_table_with_columns():
    """With as many keys as columns, their names were taken for the values."""
    table = HashTable("int64", {"a": "int64", "b": "float32"})
    table[np.array([1, 2])] = {"a": np.array([5, 6]), "b": np.array([1, 2], np.float32)}
    rows = [{"a": 5, "b": 1.0}, {"a": 6, "b": 2.0}]
    assert pd.Series([1, 2]).map(table).tolist() == rows
    assert pd.Series(table).tolist() == rows
    assert set(table.values()) == {"a", "b"}


def test_a_mapping_of_ones_own_around_a_table():
    """What its items() makes of the arrays is its own."""

    class Prices(Mapping):
        def __init__(self, table):
            self.table = table

        def __getitem__(self, key):
            return self.table[key].item()

        def __iter__(self):
            return iter(self.table)

        def __len__(self):
            return len(self.table)

        def items(self):
            keys, values = self.table.items()
            return zip(keys.tolist(), values.tolist(), strict=True)

    assert pd.Series([1, 2]).replace(Prices(HashTable.from_items([1, 2], [10, 20]))).tolist() == [10, 20]
