"""Columns for others by Arrow's C interface: what pyarrow, polars and DuckDB read, and how long memory lives."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref

import numpy as np
import pandas as pd
import pytest
from support.frameworks import GPU_INDEX, PLACES, address_of, place_name
from support.peers import peer
from support.samples import numpy_dtype

import gpuhash
from gpuhash import RecordBatch
from gpuhash.arrays.arrow_out import ArrowArray

pl = peer("polars")
pa = peer("pyarrow")

NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
WORDS = ["häß", "", "0123456789abcdef", "x"]


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_numbers_are_not_copied(dtype, count):
    numbers = np.arange(count).astype(dtype)
    array = pa.array(ArrowArray(numbers))
    array.validate(full=True)
    assert array.type == pa.from_numpy_dtype(dtype)
    assert array.null_count == 0
    assert array.to_pylist() == numbers.tolist()
    assert count == 0 or array.buffers()[1].address == numbers.ctypes.data


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
def test_nulls(dtype, count):
    rng = np.random.default_rng(count)
    numbers = rng.integers(0, 2, count).astype(dtype)
    valid = rng.random(count) < 0.6
    array = pa.array(ArrowArray(numbers, valid))
    array.validate(full=True)
    assert array.to_pylist() == [item if known else None for item, known in zip(numbers.tolist(), valid, strict=True)]
    assert array.null_count == count - valid.sum()
    assert pa.array(ArrowArray(numbers, np.ones(count, bool))).buffers()[0] is None


def test_bools_are_bits():
    flags = np.random.default_rng(0).random(77) < 0.5
    assert pa.array(ArrowArray(flags)).to_pylist() == flags.tolist()
    other_bytes = np.array([0, 2, 255, 1], np.uint8).view(bool)
    assert pa.array(ArrowArray(other_bytes)).to_pylist() == [False, True, True, True]


UNITS = [(kind, unit) for kind in "Mm" for unit in ("W", "D", "h", "m", "s", "ms", "us", "ns", "10s", "25us")]


@pytest.mark.parametrize(("kind", "unit"), [("M", "Y"), ("M", "M"), *UNITS])
def test_dates_and_times(kind, unit):
    numbers = np.array([0, 1, -1, 1000, np.iinfo(np.int64).min]).view(f"{kind}8[{unit}]")
    array = pa.array(ArrowArray(numbers))
    array.validate(full=True)
    assert array.null_count == 1
    back = array.to_numpy(zero_copy_only=False)
    assert (back[:4] == numbers[:4]).all()
    assert np.isnat(back[4])
    if kind == "M" and unit in ("Y", "M", "W", "D"):
        assert array.type == pa.date32()
    assert pl.Series(ArrowArray(numbers)).null_count() == 1


def test_units_that_arrow_lacks():
    for dtype in ("M8[ps]", "m8[fs]", "M8", "m8[Y]"):
        with pytest.raises(TypeError, match="Arrow has no such unit: convert it"):
            ArrowArray(np.zeros(2, "i8").view(dtype))
    with pytest.raises(OverflowError, match="days beyond"):
        ArrowArray(np.array([1 << 31], "i8").view("M8[D]"))


def test_rows_are_lists_of_a_fixed_size():
    for dtype in ("int32", "bool"):
        rows = np.random.default_rng(0).integers(0, 2, (5, 3)).astype(dtype)
        array = pa.array(ArrowArray(rows))
        array.validate(full=True)
        assert array.type == pa.list_(pa.field("item", pa.from_numpy_dtype(dtype)), 3)
        assert array.to_pylist() == rows.tolist()
        nested = pa.array(ArrowArray(np.stack([rows, rows], axis=2)[:, :, ::-1], np.arange(5) != 2))
        nested.validate(full=True)
        assert nested.to_pylist() == [None if i == 2 else np.stack([rows[i]] * 2, 1).tolist() for i in range(5)]
    assert len(pa.array(ArrowArray(np.zeros((0, 4))))) == 0
    assert pa.array(ArrowArray(np.zeros((3, 0)))).to_pylist() == [[], [], []]


@pytest.mark.parametrize(
    "make",
    [
        list,
        np.array,
        pd.Series,
        pl.Series,
        pa.array,
        lambda words: pa.array(words, pa.string_view()),
        lambda words: [word.encode() for word in words],
    ],
)
def test_strings(make):
    words = make(WORDS)
    array = pa.array(ArrowArray(words))
    array.validate(full=True)
    expected = WORDS if array.type == pa.large_string() else [word.encode() for word in WORDS]
    assert array.type in (pa.large_string(), pa.large_binary())
    assert array.to_pylist() == expected
    masked = pa.array(ArrowArray(words, np.array([True, False, True, True])))
    assert masked.to_pylist() == [expected[0], None, *expected[2:]]
    assert pl.Series(ArrowArray(words)).to_list() == expected


def test_both_masks_of_strings_count():
    words = pa.array(["a", None, "b"])
    assert pa.array(ArrowArray(words)).to_pylist() == ["a", None, "b"]
    assert pa.array(ArrowArray(words, np.array([False, True, True]))).to_pylist() == [None, None, "b"]


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool", "M8[us]"])
def test_masked_entries_are_nulls(dtype):
    numbers = np.array([0, 1, 1, 0], dtype)
    masked = np.ma.MaskedArray(numbers, [False, True, False, True])
    given = masked.tolist()
    assert given[1] is None
    assert pa.array(ArrowArray(masked)).to_pylist() == given
    valid = np.array([False, True, True, True])
    assert pa.array(ArrowArray(masked, valid)).to_pylist() == [None, *given[1:]]
    rows = pa.array(ArrowArray(masked.reshape(2, 2), np.array([False, True])))
    rows.validate(full=True)
    assert rows.to_pylist() == [None, given[2:]]
    assert pa.array(ArrowArray(masked.reshape(2, 2))).to_pylist() == [given[:2], given[2:]]


def test_rows_of_times():
    times = np.array([["2020-01-01", "NaT"], ["NaT", "2021-01-01"]], "M8[s]")
    assert pa.array(ArrowArray(times)).to_pylist() == times.tolist()


def test_masked_sums_of_groups_are_nulls():
    groups = gpuhash.group_by(np.array([1, 2]))
    largest = groups.agg(max=np.ma.MaskedArray([5, 6], [True, False]))["max"]
    assert pa.table(RecordBatch({"max": largest})).to_pydict() == {"max": [None, 6]}


def batch_and_columns(count=100):
    rng = np.random.default_rng(1)
    columns = {
        "id": rng.integers(0, 1 << 60, count),
        "share": rng.random(count).astype(np.float32),
        "flag": rng.random(count) < 0.5,
        "when": np.arange(count).astype("M8[us]"),
        "word": np.array([f"word {i % 7}" for i in range(count)]),
    }
    valid = {"share": rng.random(count) < 0.9}
    return RecordBatch(columns, valid), columns, valid


def as_lists(columns, valid):
    lists = {name: values.tolist() for name, values in columns.items()}
    for name, mask in valid.items():
        lists[name] = [item if known else None for item, known in zip(lists[name], mask, strict=True)]
    return lists


@pytest.mark.parametrize("count", [0, 1, 100])
def test_a_batch_is_a_table_of_others(count):
    batch, columns, valid = batch_and_columns(count)
    expected = as_lists(columns, valid)
    assert len(batch) == batch.num_rows == count
    assert batch.column_names == tuple(columns)
    assert repr(batch) == f"RecordBatch({count} rows of id, share, flag, when, word)"
    for read in (pa.table, pa.record_batch, lambda made: pa.RecordBatchReader.from_stream(made).read_all()):
        table = read(batch)
        table.validate(full=True)
        assert table.to_pydict() == expected
    assert pa.schema(batch).names == list(columns)
    frame = pl.DataFrame(batch)
    assert frame.to_dict(as_series=False) == expected
    assert pa.table(batch)["id"].chunk(0).buffers()[1].address == columns["id"].ctypes.data or count == 0


def test_duckdb_reads_a_batch():
    duckdb = pytest.importorskip("duckdb")
    batch, columns, valid = batch_and_columns()
    connection = duckdb.connect()
    connection.register("batch", batch)
    read = connection.sql("select * from batch").fetchall()
    expected = as_lists(columns, valid)
    assert [list(column) for column in zip(*read, strict=True)] == list(expected.values())
    assert connection.sql("select count(*), sum(id::hugeint) from batch").fetchall() == [(100, sum(expected["id"]))]


def test_pandas_reads_a_batch():
    batch, columns, _ = batch_and_columns()
    if not hasattr(pd.DataFrame, "from_arrow"):
        pytest.skip("this pandas does not read Arrow's interface")
    assert (pd.DataFrame.from_arrow(batch)["id"] == columns["id"]).all()


def test_gpuhash_reads_its_own():
    numbers = np.array([5, 7, 5])
    assert gpuhash.unique(ArrowArray(numbers)).tolist() == [5, 7]
    assert gpuhash.hash(ArrowArray(["a", "b"])).tolist() == gpuhash.hash(["a", "b"]).tolist()
    assert gpuhash.unique(RecordBatch({"a": numbers, "b": numbers}), axis=0).tolist() == [[5, 5], [7, 7]]


def test_memory_lives_as_long_as_its_readers():
    numbers = np.arange(1000)
    held = weakref.ref(numbers)
    batch = RecordBatch({"a": numbers})
    table = pa.table(batch)
    unread = batch.__arrow_c_stream__()
    arrays = batch.__arrow_c_array__()
    del numbers, batch
    gc.collect()
    assert held() is not None
    del unread, arrays
    gc.collect()
    assert held() is not None
    assert table["a"].to_pylist() == list(range(1000))
    column = table["a"].chunk(0)
    del table
    gc.collect()
    assert column[999].as_py() == 999
    del column
    gc.collect()
    assert held() is None


def test_a_child_that_is_moved_out_lives_on_its_own():
    """A consumer may move a child out of a structure and release the parent first (Arrow's C data interface)."""
    numbers = np.arange(10)
    held = weakref.ref(numbers)
    batch = RecordBatch({"a": numbers, "b": np.arange(10)})
    array = pa.record_batch(batch).column("a")
    del batch, numbers
    gc.collect()
    assert array.to_pylist() == list(range(10))
    del array
    gc.collect()
    assert held() is None


def test_streams_end_after_their_batch():
    reader = pa.RecordBatchReader.from_stream(RecordBatch({"a": np.arange(3)}))
    assert reader.read_next_batch().num_rows == 3
    with pytest.raises(StopIteration):
        reader.read_next_batch()


def test_readers_may_outlive_python():
    program = """
import numpy as np, pyarrow as pa, polars as pl, builtins
from gpuhash import RecordBatch
builtins.kept = [pa.table(RecordBatch({"a": np.arange(1000)})), pl.DataFrame(RecordBatch({"a": np.arange(1000)}))]
builtins.capsule = RecordBatch({"a": np.arange(1000)}).__arrow_c_stream__()
builtins.loop = [builtins.kept]; builtins.loop.append(builtins.loop)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bad_columns():
    numbers = np.arange(3)
    for columns, valid, error, match in [
        ({"a": numbers, "b": np.arange(2)}, None, ValueError, r"different lengths.*a: 3, b: 2"),
        ({"a": numbers}, {"b": numbers > 1}, ValueError, "valid has masks of b, which are no columns"),
        ({"a": numbers}, {"a": numbers}, ValueError, r"mask of the column 'a' is int64 of shape \(3,\)"),
        ({"a": numbers}, {"a": np.ones(2, bool)}, ValueError, r"expected bool of \(3,\)"),
        ({"a": np.array(5)}, None, ValueError, "the column 'a' has shape ()"),
        ({"a": np.zeros(3, complex)}, None, TypeError, "the column 'a' holds complex128, which Arrow does not have"),
        ({"a": np.zeros(3, numpy_dtype("bfloat16"))}, None, TypeError, "holds bfloat16"),
        ({"a": np.array([1, None])}, None, TypeError, "object"),
        ({"a": np.array([["x", "y"]])}, None, ValueError, r"the column 'a' has strings of shape \(1, 2\)"),
        ({"a": "word"}, None, ValueError, r"the column 'a' has shape \(\)"),
        ({"a": ["x", None]}, None, TypeError, "the values of the column 'a' are text, and their item 1 is None"),
        ({"a": pa.array(["x", None, "y"])}, {"a": np.array([True])}, ValueError, r"expected bool of \(3,\)"),
        ({"a": pa.array(["x", None, "y"])}, {"a": numbers}, ValueError, r"mask of the column 'a' is int64"),
        ({"a": numbers.astype("M8[s]")}, {"a": np.array([True])}, ValueError, r"expected bool of \(3,\)"),
        ({1: numbers}, None, TypeError, "1, a int, was given as the name of a column"),
        ({"a\0b": numbers}, None, ValueError, "has a null character"),
        ({"\ud800": numbers}, None, ValueError, "half of a surrogate pair"),
        ({"a": np.array([1 << 62], "M8[h]")}, None, OverflowError, r"'a' is datetime64\[h\], and holds times"),
        ({"a": np.array([1 << 62], "m8[10s]")}, None, OverflowError, r"no 'm8\[s\]' does"),
    ]:
        with pytest.raises(error, match=match):
            RecordBatch(columns, valid)


@pytest.mark.parametrize(
    "place", [place for place in PLACES if place.table_device == "cpu"], ids=place_name, indirect=True
)
def test_tensors_on_the_host(place):
    numbers = np.arange(24, dtype=np.int32)
    for values in (numbers, numbers.reshape(8, 3), numbers % 3 == 0):
        assert pa.array(ArrowArray(place.array(values))).to_pylist() == values.tolist()


class DeviceArray(ctypes.Structure):
    """ArrowDeviceArray, with ArrowArray's fields in front."""

    _fields_ = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
    ]


def device_array(capsule):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return DeviceArray.from_address(pointer(capsule, b"arrow_device_array"))


def test_the_device_interface_on_the_host():
    numbers = np.arange(5)
    _, capsule = ArrowArray(numbers).__arrow_c_device_array__()
    made = device_array(capsule)
    assert (made.length, made.device_type, made.device_id, made.sync_event) == (5, 1, -1, None)
    assert made.buffers[1] == numbers.ctypes.data
    held = weakref.ref(numbers)
    del numbers, made, capsule
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("place", [place for place in PLACES if place.device != "cpu"], ids=place_name, indirect=True)
def test_the_device_interface_on_a_gpu(place):
    keys = place.array(np.arange(1000))
    batch = RecordBatch({"keys": keys})
    _, capsule = ArrowArray(keys).__arrow_c_device_array__()
    made = device_array(capsule)
    assert (made.length, made.device_type, made.device_id, made.sync_event) == (1000, 2, GPU_INDEX, None)
    assert made.buffers[1] == address_of(keys)
    for refused in (batch.__arrow_c_array__, batch.__arrow_c_stream__, ArrowArray(keys).__arrow_c_array__):
        with pytest.raises(ValueError, match="this reader asks for host memory"):
            refused()
    with pytest.raises(ValueError, match="where no masks are made"):
        ArrowArray(keys, np.ones(1000, bool))
    with pytest.raises(TypeError, match="convert them to uint8"):
        ArrowArray(keys > 5)
    with pytest.raises(ValueError, match="several devices"):
        RecordBatch({"keys": keys, "host": np.arange(1000)})
