"""Several columns of integers as one key."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from support.frameworks import Framework, spread, to_numpy

import gpuhash
from gpuhash import HashSet, HashTable
from gpuhash.files import serialization

NARROW = {"shop": "int32", "day": "int16", "kind": "uint8"}
WIDE = {"user": "int64", "item": "int64", "day": "int32", "flag": "int8"}
SMALL = {"a": "int8", "b": "int8"}
kinds = pytest.mark.parametrize("dtypes", [NARROW, WIDE, SMALL], ids=["narrow", "wide", "bytes"])


@pytest.fixture
def device(device, shards):
    """What ``device=`` is given for a table here, a single one or one of shards."""
    return spread(device, shards)


def columns_of(dtypes: dict[str, str], count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Few numbers of each column, the least and the most among them."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name, dtype in dtypes.items():
        info = np.iinfo(dtype)
        pool = np.array([info.min, info.max, 0, 1, *rng.integers(info.min, info.max, 6, dtype)], dtype)
        columns[name] = pool[rng.integers(0, len(pool), count)]
    return columns


def tuples(columns: dict[str, np.ndarray]) -> list[tuple[int, ...]]:
    return list(zip(*(to_numpy(column).tolist() for column in columns.values()), strict=True))


def given(place: Framework, columns: dict[str, np.ndarray]) -> dict[str, object]:
    return {name: place.array(column) for name, column in columns.items()}


@kinds
def test_keys_are_mappings_in_and_out(place: Framework, dtypes, shards):
    columns = columns_of(dtypes, 500)
    table = HashTable(dtypes, "int64", device=spread(place.table_device, shards), deterministic=True)
    inserted = to_numpy(table.insert(given(place, columns), place.array(np.arange(500))))
    model: dict[tuple[int, ...], int] = {}
    assert inserted.tolist() == [model.setdefault(key, i) == i for i, key in enumerate(tuples(columns))]
    assert to_numpy(table[given(place, columns)]).tolist() == [model[key] for key in tuples(columns)]
    keys, values = table.items()
    assert {name: str(to_numpy(column).dtype) for name, column in keys.items()} == dtypes
    assert dict(zip(tuples(keys), to_numpy(values).tolist(), strict=True)) == model
    others = columns_of(dtypes, 500, seed=1)
    found = to_numpy(table.contains(tuple(given(place, others).values())))
    assert found.tolist() == [key in model for key in tuples(others)]
    assert table == model
    assert table.key_columns == dtypes


@kinds
def test_single_keys_and_lists_are_tuples(device, dtypes):
    table = HashTable(dtypes, "int64", device=device)
    least = tuple(np.iinfo(dtype).min for dtype in dtypes.values())
    ones = (1,) * len(dtypes)
    table[least] = 5
    table[dict(zip(dtypes, ones, strict=True))] = 6
    assert table[least] == 5
    assert table[[ones, least]].tolist() == [6, 5]
    assert set(table) == {least, ones}
    beyond = tuple(np.iinfo(dtype).max + 1 for dtype in dtypes.values())
    assert beyond not in table
    assert table.get(beyond, -1) == -1
    with pytest.raises(OverflowError):
        table[beyond] = 1
    with pytest.raises(KeyError, match="1 of 2 keys are absent"):
        table[[ones, (0,) * len(dtypes)]]
    table.update({least: 7, (2,) * len(dtypes): 8})
    assert table.pop(least) == 7
    assert len(table) == 2
    assert table.popitem()[0] in {ones, (2,) * len(dtypes)}
    assert len(table[[]]) == 0


@kinds
@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "save", "update", "from_items", "open"])
def test_duplicates_of_a_table(device, tmp_path, dtypes, way):
    columns = columns_of(dtypes, 300)
    table = HashTable(dtypes, {"x": "float32"}, device=device, name="key columns" if way == "open" else None)
    table[columns] = {"x": np.arange(300, dtype=np.float32)}
    if way == "save":
        table.save(tmp_path / "table")
        twin = HashTable.load(tmp_path / "table", device=device)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(table))
    elif way == "update":
        twin = HashTable(dtypes, {"x": "float32"}, device=device)
        twin.update(*table.items())
    elif way == "open":
        twin = gpuhash.open("key columns")
    elif way == "from_items":
        twin = HashTable.from_items(table, device=device)
    else:
        twin = table.copy() if way == "copy" else copy.deepcopy(table)
    assert twin.key_columns == dtypes
    assert len(twin) == len(set(tuples(columns)))
    assert twin == table
    assert twin[columns]["x"].tolist() == table[columns]["x"].tolist()
    table.close()


@kinds
def test_sets(device, dtypes):
    some, others = columns_of(dtypes, 60), columns_of(dtypes, 60, seed=2)
    first = HashSet(dtypes, device=device)
    assert first.add(some).sum() == len(set(tuples(some)))
    second = HashSet.from_keys(others, device=device)
    assert second.key_columns == dtypes
    a, b = set(tuples(some)), set(tuples(others))
    assert set(first) == a
    assert set(first | second) == a | b
    assert set(first & second) == a & b
    assert set(first - second) == a - b
    assert set(first ^ second) == a ^ b
    assert first == a
    assert first >= {next(iter(a))}
    assert first.isdisjoint({tuple(np.iinfo(dtype).max + 1 for dtype in dtypes.values())})
    first.update(others)
    assert set(first) == a | b
    array = np.asarray(first)
    assert array.dtype.names == tuple(dtypes)
    assert set(map(tuple, array.tolist())) == a | b
    assert pickle.loads(pickle.dumps(first)) == first
    assert repr(first).startswith("<HashSet {")


def test_columns_of_frames(device):
    frame = pd.DataFrame({"shop": [1, 1, 2], "day": [3, 3, 4]}).astype({"shop": "int32", "day": "int64"})
    counts = HashTable({"shop": "int32", "day": "int64"}, "int64", device=device)
    counts.insert_or_apply(dict(frame), 1, "add")
    assert counts == {(1, 3): 2, (2, 4): 1}
    polars = pytest.importorskip("polars")
    counts.insert_or_apply(polars.from_pandas(frame).to_dict(), 1, "add")
    assert counts[(1, 3)] == 4


def test_structured_arrays_and_rows_of_bytes(device):
    columns = columns_of(WIDE, 50)
    records = np.zeros(50, list(WIDE.items()))
    for name, column in columns.items():
        records[name] = column
    table = HashTable(WIDE, "int64", device=device)
    table[records] = np.arange(50)
    assert table[columns].tolist() == table[records].tolist()
    assert table[records.view(np.uint8).reshape(50, 21)].tolist() == table[records].tolist()


def test_batches_have_any_shape(device):
    columns = {name: column.reshape(4, 5, 3) for name, column in columns_of(NARROW, 60).items()}
    table = HashTable.from_items(columns, np.arange(60).reshape(4, 5, 3), device=device)
    assert table.key_columns == NARROW
    assert table[columns].shape == (4, 5, 3)
    strided = {name: column[::2, :, 1] for name, column in columns.items()}
    assert table[strided].tolist() == table[columns][::2, :, 1].tolist()


def test_what_is_wrong_with_key_columns_is_said(device):
    table = HashTable(NARROW, "int64", device=device)
    columns = columns_of(NARROW, 4)
    with pytest.raises(ValueError, match="keys of the columns shop, day were given, expected shop, day, kind"):
        table[{"shop": columns["shop"], "day": columns["day"]}]
    with pytest.raises(ValueError, match="a key has 2 columns, expected 3: one each of shop, day, kind"):
        table[(1, 2)]
    with pytest.raises(TypeError, match="the keys of 'day' are int64, and the table has keys of 'day' of int16"):
        table[{**columns, "day": columns["day"].astype("int64")}]
    with pytest.raises(ValueError, match=r"the keys of 'kind' have shape \(3,\) and those of 'shop' \(4,\)"):
        table[{**columns, "kind": columns["kind"][:3]}]
    with pytest.raises(TypeError, match="expected a mapping of the key columns shop, day, kind"):
        table["shop"]
    with pytest.raises(TypeError, match="keys are integers, not float32"):
        HashTable({"a": "float32"}, "int64")
    with pytest.raises(ValueError, match="key_shape=\\(2,\\) was given for keys of several columns"):
        HashTable(NARROW, "int64", key_shape=(2,))
    with pytest.raises(ValueError, match="no key columns"):
        HashSet({})
    with pytest.raises(TypeError, match="a key column is named 3"):
        HashSet({3: "int8"})
    other = HashTable({"a": "int32", "b": "int16", "c": "uint8"}, "int64", device=device)
    with pytest.raises(TypeError, match="cannot take the items"):
        table.update(other)
    assert other != table


@pytest.mark.parametrize(
    "text", ["{", "[]", '[["a", "float32"]]', '[["a", "int8"], ["a", "int8"]]', '[["a"]]', '[["", "int8"]]', "3"]
)
def test_files_with_other_key_columns_are_refused(text):
    table = HashTable(SMALL, "int64")
    contents = table._contents()
    metadata = {**serialization.metadata_of(contents), "key_columns": text}
    with pytest.raises(ValueError, match="key"):
        serialization.describe(metadata)
