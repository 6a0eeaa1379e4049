"""Strings of every source: read, taken and given back, against Python's own lists of them."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.peers import peer

import gpuhash
from gpuhash import _core
from gpuhash.arrays.strings import Strings

pl = peer("polars")
pa = peer("pyarrow")

WORDS = ["a", "", "häß", "日本", "😀x" * 3, "abcdefghijklmnop", "a", "0123456789ab", "\x00", "x\x00y"]
NULLABLE = [*WORDS[:2], None, *WORDS[2:], None]
TRIMMED = [word.rstrip("\x00") for word in WORDS]  # as NumPy has them in a fixed width


def encoded(words):
    return [None if word is None else word.encode() for word in words]


NUMPY = {
    "U": (lambda: np.array(WORDS), TRIMMED),
    "U-swapped": (lambda: np.array(WORDS).astype(np.dtype("U16").newbyteorder()), TRIMMED),
    "U-strided": (lambda: np.array(WORDS).repeat(2)[::2], TRIMMED),
    "S": (lambda: np.array(encoded(WORDS)), encoded(TRIMMED)),
    "object": (lambda: np.array(WORDS, object), WORDS),
    "object-bytes": (lambda: np.array(encoded(WORDS), object), encoded(WORDS)),
}
if hasattr(np.dtypes, "StringDType"):  # of NumPy 2
    NUMPY["string"] = (lambda: np.array(WORDS, np.dtypes.StringDType()), WORDS)
    NUMPY["string-none"] = (lambda: np.array(NULLABLE, np.dtypes.StringDType(na_object=None)), NULLABLE)
PYTHON = {
    "list": (lambda: list(WORDS), WORDS),
    "tuple": (lambda: tuple(encoded(WORDS)), encoded(WORDS)),
    "dict-keys": (lambda: dict.fromkeys(WORDS).keys(), list(dict.fromkeys(WORDS))),
}
PANDAS = {
    "object": object,
    "string": "string",
    "string-python": "string[python]",
    "category": "category",
    "arrow": pd.ArrowDtype(pa.string()),
    "arrow-large": pd.ArrowDtype(pa.large_string()),
}
if pd.__version__ >= "3":
    PANDAS["str"] = "str"
ARROW = {
    "string": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "dictionary-large": pa.dictionary(pa.uint32(), pa.large_string()),
}
ARROW_BYTES = {"binary": pa.binary(), "large-binary": pa.large_binary(), "binary-view": pa.binary_view()}
POLARS = {"string": pl.String, "categorical": pl.Categorical, "enum": pl.Enum(sorted(set(WORDS)))}

SOURCES = {f"numpy-{name}": source for name, source in NUMPY.items()}
SOURCES |= {f"python-{name}": source for name, source in PYTHON.items()}
SOURCES |= {
    f"pandas-{name}": (lambda dtype=dtype: pd.Series(NULLABLE, dtype=dtype, name="words"), NULLABLE)
    for name, dtype in PANDAS.items()
}
SOURCES |= {
    f"pandas-index-{name}": (lambda dtype=dtype: pd.Index(NULLABLE, dtype=dtype, name="words"), NULLABLE)
    for name, dtype in PANDAS.items()
}
SOURCES |= {
    f"polars-{name}": (lambda dtype=dtype: pl.Series("words", NULLABLE, dtype=dtype), NULLABLE)
    for name, dtype in POLARS.items()
}
SOURCES["polars-binary"] = (lambda: pl.Series("words", encoded(NULLABLE)), encoded(NULLABLE))
SOURCES["polars-chunks"] = (
    lambda: pl.concat([pl.Series(NULLABLE[:3]), pl.Series(NULLABLE[3:])], rechunk=False),
    NULLABLE,
)
for _name, _type in {**ARROW, **ARROW_BYTES}.items():
    _words = NULLABLE if _name in ARROW else encoded(NULLABLE)
    SOURCES[f"arrow-{_name}"] = (lambda words=_words, kind=_type: pa.array(words, kind), _words)
    SOURCES[f"arrow-slice-{_name}"] = (
        lambda words=_words, kind=_type: pa.array([words[5], None, *words, None], kind).slice(2, len(words)),
        _words,
    )
    SOURCES[f"arrow-chunks-{_name}"] = (
        lambda words=_words, kind=_type: pa.chunked_array([words[:3], [], words[3:]], kind),
        _words,
    )


def as_list(given_back):
    if hasattr(given_back, "to_pylist"):
        return given_back.to_pylist()
    if hasattr(given_back, "to_list"):
        items = given_back.to_list()
        return [None if item is None or item is pd.NA or item != item else item for item in items]
    return given_back if isinstance(given_back, list) else given_back.tolist()


@pytest.mark.parametrize("name", SOURCES)
def test_read_take_give_back(name):
    make, words = SOURCES[name]
    try:
        column = make()
    except pa.ArrowTypeError as error:
        pytest.skip(f"this pyarrow makes no such column: {error}")
    strings = Strings.read(column)
    assert strings.count == len(words)
    assert strings.to_list() == words
    assert strings.text == isinstance(words[0], str)
    assert strings.source == {"arrow": "pyarrow"}.get(name.partition("-")[0], name.partition("-")[0])
    assert strings.offsets.dtype == np.int64
    assert strings.offsets[0] == 0
    assert strings.offsets[-1] == len(strings.data)
    assert (strings.valid is None) == (None not in words)
    positions = np.array([5, 0, 1, 1, 4, 3])
    taken = strings.take(positions)
    expected = [words[position] for position in positions]
    assert taken.to_list() == expected
    back = strings.give_back(taken)
    assert as_list(back) == expected
    if not name.startswith("python"):
        source = column.type if hasattr(column, "type") else column.dtype
        assert (back.type if hasattr(back, "type") else back.dtype) == source
    if name.startswith(("pandas", "polars")) and "chunks" not in name:
        assert back.name == "words"
        assert isinstance(back, pd.Index) == ("index" in name)
    if None in words:
        assert as_list(strings.give_back(strings.take(np.array([0, -1])))) == [words[0], None]


@pytest.mark.parametrize("name", ["U", "S", "object", "string"])
def test_arrays_of_several_axes(name):
    if name not in NUMPY:
        pytest.skip("this NumPy has no StringDType")
    make, words = NUMPY[name]
    strings = Strings.read(make().reshape(2, -1))
    assert strings.shape == (2, len(words) // 2)
    assert strings.to_list() == words


@pytest.mark.parametrize("word", ["", "häß", b"", b"\xff\x00"])
def test_a_single_string(word):
    strings = Strings.read(word)
    assert strings.shape == ()
    assert strings.to_list() == [word]


@pytest.mark.parametrize(
    "column",
    [
        [],
        (),
        [1, 2],
        range(3),
        np.arange(3),
        np.array([1, 2], object),
        np.array([], object),
        pd.Series([1, 2]),
        pd.Series([None, None], dtype=object),
        pd.Series([1, 2], dtype="category"),
        pd.Series([1, 2], dtype="int64[pyarrow]"),
        pd.Series([1.5], dtype="Float32"),
        pl.Series([1, 2]),
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        pa.table({"a": [1, 2], "b": [3, 4]}),
        bytearray(b"abc"),
        memoryview(b"abc"),
        5,
        None,
    ],
    ids=lambda column: type(column).__name__,
)
def test_what_holds_no_strings(column):
    assert Strings.read(column) is None


@pytest.mark.parametrize(
    ("make", "empty"),
    [
        (lambda: np.array([], "U3"), np.array([], "U3")),
        (lambda: np.array([], "S"), np.array([], "S1")),
        (lambda: np.zeros(3, "U0"), np.array(["", "", ""])),
        (lambda: pl.Series([], dtype=pl.String), []),
        (lambda: pa.array([], pa.string()), []),
        (lambda: pa.chunked_array([], pa.string_view()), []),
        (lambda: pa.array([], pa.dictionary(pa.int8(), pa.string())), []),
        (lambda: pd.Series([], dtype="string"), []),
        (lambda: pl.Series([None, None], dtype=pl.Categorical), [None, None]),
        (lambda: pa.array([None, None], pa.string_view()), [None, None]),
    ],
)
def test_empty_ones(make, empty):
    strings = Strings.read(make())
    assert strings.to_list() == list(empty)
    assert as_list(strings.give_back(strings)) == list(empty)


def test_one_column_of_a_table_is_a_column():
    assert Strings.read(pa.table({"a": NULLABLE})).to_list() == NULLABLE
    assert Strings.read(pa.record_batch({"a": NULLABLE}).slice(1)).to_list() == NULLABLE[1:]
    nested = pa.StructArray.from_arrays([pa.array(["x", "y", None])], ["a"], mask=pa.array([False, True, False]))
    assert Strings.read(nested).to_list() == ["x", None, None]
    with pytest.raises(TypeError, match="has 2 columns, and strings in one of them: give them as a list"):
        Strings.read(pa.table({"a": ["x"], "b": [1]}))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "pyarrow"])
def test_the_column_of_a_frame_is_given_back(frame):
    frame = frame({"a": ["x", "y", "x"]})
    distinct = gpuhash.unique(frame)
    assert as_list(distinct) == ["x", "y"]
    assert type(distinct) is type(frame["a"]) or isinstance(distinct, pa.Array)


@pytest.mark.parametrize(
    "make",
    [
        lambda words: pd.Series(words, dtype="string[python]"),
        lambda words: np.array(words, np.dtypes.StringDType(na_object=None)),
    ],
    ids=["pandas", "numpy"],
)
@pytest.mark.parametrize("count", [0, 2])
def test_columns_of_text_without_any(make, count):
    strings = Strings.read(make([None] * count))
    assert strings.text
    assert strings.to_list() == [None] * count
    back = strings.give_back(strings)
    assert back.dtype == make([]).dtype
    assert [item in (None, pd.NA) for item in back.tolist()] == [True] * count


@pytest.mark.parametrize("dtype", ["U", "S", object, np.dtypes.StringDType()], ids=["U", "S", "object", "T"])
def test_masked_entries_are_nulls(dtype):
    words = [b"a", b"hidden", b"b", b"a"] if dtype == "S" else ["a", "hidden", "b", "a"]
    masked = np.ma.MaskedArray(np.array(words, dtype), [False, True, False, False])
    strings = Strings.read(masked)
    assert strings.to_list() == [words[0], None, words[2], words[3]]
    back = strings.give_back(strings)
    assert np.ma.getmaskarray(back).tolist() == [False, True, False, False]
    assert back.compressed().tolist() == [words[0], words[2], words[3]]
    codes, distinct = gpuhash.factorize(masked)
    assert codes.tolist() == [0, -1, 1, 0]
    assert distinct.tolist() == [words[0], words[2]]
    for call in (gpuhash.unique, gpuhash.hash, lambda keys: gpuhash.isin(keys, keys)):
        with pytest.raises(ValueError, match="nulls, in 1 of 4 entries"):
            call(masked)
    if dtype is not object:
        assert Strings.read(np.ma.MaskedArray(np.array(words, dtype), True)).to_list() == [None] * 4


def test_what_a_mask_hides_may_be_no_string():
    masked = np.ma.MaskedArray(np.array([5, "a", None, "a"], object), [True, False, True, False])
    assert Strings.read(masked).to_list() == [None, "a", None, "a"]


def test_other_items_are_named():
    for mixed, item, kind in [
        (["a", b"b"], r"item 1 is b'b', a bytes: give text", "text"),
        ([b"a", b"", 5], "item 2 is 5, a int: give bytes", "bytes"),
        (np.array(["a", None], object), "item 1 is None, a NoneType: give text", "text"),
        (np.array(["a", float("nan")], object), "item 1 is nan, a float", "text"),
        (pd.Series(["a", None, 3.5], dtype=object), "item 2 is 3.5, a float", "text"),
    ]:
        with pytest.raises(TypeError, match=f"the ids are {kind}, and their {item}"):
            Strings.read(mixed, "ids")


def test_text_and_bytes_are_apart():
    text, data = Strings.read(["a"]), Strings.read([b"a"])
    text.need_same_kind(text, "keys", "others")
    with pytest.raises(TypeError, match="the keys are text and the others bytes"):
        text.need_same_kind(data, "keys", "others")
    with pytest.raises(TypeError, match="the keys are bytes and the others text"):
        data.need_same_kind(text, "keys", "others")


def test_nulls_are_counted():
    Strings.read(WORDS).need_no_nulls("keys")
    with pytest.raises(ValueError, match="the keys have nulls, in 2 of 12 entries"):
        Strings.read(pa.array(NULLABLE)).need_no_nulls("keys")
    for form in (np.array(WORDS), np.array(encoded(WORDS))):
        strings = Strings.read(form)
        with pytest.raises(ValueError, match="has none"):
            strings.give_back(strings.take(np.array([-1])))


@pytest.mark.parametrize(
    "make",
    [list, np.array, lambda words: np.array(words, object), lambda words: pd.Series(words, dtype=object)],
    ids=["list", "numpy", "object", "pandas"],
)
def test_halves_of_surrogate_pairs_are_refused(make):
    words = make(["fine", "\ud83d", "\udc00"])
    with pytest.raises(ValueError, match=r"the keys hold '\\ud83d' at 1.*surrogate"):
        Strings.read(words)


def test_characters_beyond_unicode_are_refused():
    words = np.array([0x61, 0x110000], np.uint32).view("U1")
    rows = words.view(np.uint32).reshape(2, 1)
    offsets = np.zeros(3, np.int64)
    assert _core.measure_rows(_core.borrow(rows), _core.borrow(offsets)) == 1
    with pytest.raises(ValueError, match="the keys hold '\N{REPLACEMENT CHARACTER}' at 1"):
        Strings.read(words)


@given(st.lists(st.text(max_size=40), min_size=1), st.data())
def test_any_text(words, data):
    fixed = np.array(words)
    assert Strings.read(fixed).to_list() == fixed.tolist()
    assert Strings.read(words).to_list() == words
    positions = np.array(data.draw(st.lists(st.integers(-1, len(words) - 1))), np.int64)
    expected = [None if position < 0 else words[position] for position in positions]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        strings = Strings.read(pa.array(words, kind))
        assert strings.to_list() == words
        assert strings.give_back(strings.take(positions)).to_pylist() == expected
    whole = Strings.read(fixed)
    assert whole.give_back(whole).tolist() == fixed.tolist()


@given(st.lists(st.binary(max_size=40), min_size=1))
def test_any_bytes(words):
    fixed = np.array(words)
    strings = Strings.read(fixed)
    assert strings.to_list() == fixed.tolist()
    assert strings.give_back(strings).tolist() == fixed.tolist()
    assert Strings.read(pa.array(words, pa.binary_view())).to_list() == words


def test_many():
    """Of as many that several threads share them out."""
    numbers = np.random.default_rng(0).integers(0, 1 << 40, 200_000)
    words = [format(number, "x" if number % 3 else "d") for number in numbers.tolist()]
    words[77_777] = "ünïcode"
    expected = pa.array(words)
    for column in (np.array(words), pa.array(words, pa.string_view()), pl.Series(words), words):
        strings = Strings.read(column)
        assert pa.array(strings.to_list()).equals(expected)
        taken = strings.take(np.argsort(numbers))
        assert taken.to_list() == [words[position] for position in np.argsort(numbers)]
    fixed = np.array(words)
    strings = Strings.read(fixed)
    assert (strings.give_back(strings) == fixed).all()


@pytest.mark.parametrize("kind", ["string", "large"])
def test_data_of_arrow_are_lent_and_kept(kind):
    column = pa.array(WORDS * 100, ARROW[kind])
    address = column.buffers()[2].address
    strings = Strings.read(column)
    assert strings.data.ctypes.data == address
    assert (strings.offsets.ctypes.data == column.buffers()[1].address) == (kind == "large")
    assert not strings.data.flags.writeable
    gc.collect()  # other tests' columns
    before = pa.total_allocated_bytes()
    del column
    gc.collect()
    assert pa.total_allocated_bytes() == before  # still held
    assert strings.to_list() == WORDS * 100
    del strings
    gc.collect()
    assert pa.total_allocated_bytes() < before


def test_chunks_are_kept_and_given_up():
    before = pa.total_allocated_bytes()
    column = pa.chunked_array([pa.array(WORDS * 100)])
    strings = Strings.read(column)
    assert strings.data.ctypes.data == column.chunk(0).buffers()[2].address
    held = weakref.ref(strings.data.base)
    del column
    gc.collect()
    assert strings.to_list() == WORDS * 100
    del strings
    gc.collect()
    assert held() is None
    assert pa.total_allocated_bytes() == before


def test_views_out_of_their_buffers_are_refused():
    views = np.zeros((2, 16), np.uint8)
    views[1, :4] = np.array([20], np.int32).view(np.uint8)
    offsets = np.zeros(3, np.int64)
    measured = _core.measure_views(_core.borrow(views.reshape(-1)), None, _core.borrow(offsets))
    assert measured == -1
    assert offsets.tolist() == [0, 0, 20]
    data = _core.borrow(np.zeros(20, np.uint8))
    bytes_of = np.arange(30, dtype=np.uint8)
    flat = _core.borrow(views.reshape(-1))
    assert not _core.pack_views(flat, [], _core.borrow(offsets), data)
    assert not _core.pack_views(flat, [(bytes_of.ctypes.data, 19)], _core.borrow(offsets), data)
    assert _core.pack_views(flat, [(bytes_of.ctypes.data, 30)], _core.borrow(offsets), data)
    views[1, 3] = 0x80
    assert _core.measure_views(flat, None, _core.borrow(offsets)) == 1


def test_positions_beyond_the_last_are_refused():
    with pytest.raises(IndexError, match="position 10 was given, of 10 strings"):
        Strings.read(WORDS).take(np.array([0, 10]))


def test_threads_agree(threads):
    assert Strings.read(np.array(WORDS * 20_000)).to_list() == TRIMMED * 20_000
