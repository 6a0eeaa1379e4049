"""What a table shares with a dict: len, in, iteration, keys, values, items, copy, ==, |, repr."""

from __future__ import annotations

import collections
import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.frameworks import Framework, module, to_numpy
from support.samples import KEY_DTYPES, as_dict, items_of, random_keys, random_values, same_bytes

import gpuhash
from gpuhash import HashSet, HashTable

pl: Any = module("polars")  # None where it is not installed

MODEL = {5: 1.5, -7: 2.5, 0: -1.0, 2**62: 8.0}


def table_of(model, device="cpu", **options):
    table = HashTable("int64", "float64", device=device, **options)
    table.update(model)
    return table


def test_len_in_iter(device):
    table = table_of(MODEL, device)
    assert len(table) == 4
    assert 5 in table
    assert 6 not in table
    assert np.int64(-7) in table
    assert sorted(table) == sorted(MODEL)
    assert all(type(key) is int for key in table)
    assert bool(table)
    assert not HashTable("int64", "float64", device=device)
    assert list(HashTable("int64", "float64", device=device)) == []


def test_vector_keys_iterate_as_tuples(device):
    table = HashTable("int32", "int64", key_shape=(3,), device=device)
    table[[[1, 2, 3], [4, 5, 6]]] = [1, 2]
    assert sorted(table) == [(1, 2, 3), (4, 5, 6)]
    assert (1, 2, 3) in table
    assert (1, 2, 4) not in table


@pytest.mark.pairwise
@pytest.mark.parametrize("key_bytes", range(1, 17))
@pytest.mark.parametrize(
    "value", [("int8", ()), ("int16", ()), ("float32", ()), ("int64", ()), ("int16", (3,)), None], ids=str
)
def test_items_of_keys_of_any_width(device, key_bytes, value):
    """Slots that were erased and keys that look like empty ones among them."""
    rng = np.random.default_rng(key_bytes)
    count = min(3000, 1 << (8 * key_bytes - 2))
    keys = np.unique(rng.integers(0, 256, (count, key_bytes), dtype=np.uint8), axis=0)
    marks = np.full((2, key_bytes), 0xB7, np.uint8)
    marks[1, 0] ^= 1
    keys = rng.permutation(np.unique(np.concatenate([keys, marks]), axis=0))
    gone, kept = keys[: len(keys) // 3], keys[len(keys) // 3 :]
    if value is None:
        table = HashSet("uint8", key_shape=(key_bytes,), device=device)
        table.add(keys)
        assert table.erase(gone).all()
        expected = sorted(map(bytes, kept))
        assert sorted(map(bytes, to_numpy(table.keys()))) == expected
        return
    dtype, shape = value
    values = random_values(dtype, (len(keys), *shape))
    table = HashTable("uint8", dtype, key_shape=(key_bytes,), value_shape=shape, device=device)
    table[keys] = values
    assert table.erase(gone).all()
    got, found = table.find(keys)
    same_bytes(found, np.arange(len(keys)) >= len(gone))
    same_bytes(got[len(gone) :], values[len(gone) :])
    assert items_of(table) == as_dict(kept, values[len(gone) :])
    same_bytes(to_numpy(table.keys()), to_numpy(table.items()[0]))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 70_000])
def test_items_of_tables_of_any_size(device, size):
    """Nothing is written beyond them, and nothing of a slot that is not live."""
    keys, values = random_keys("int64", (), size), random_values("float64", (size,))
    table = HashTable("int64", "float64", device=device, capacity=2 * size)
    table[keys] = values
    assert items_of(table) == as_dict(keys, values)
    table.erase(keys[::2])
    assert items_of(table) == as_dict(keys[1::2], values[1::2])


def test_a_batch_in_table_is_a_type_error(place):
    table = HashTable("int64", "int64", device=place.table_device)
    with pytest.raises(TypeError, match="contains"):
        place.array(np.arange(3)) in table  # noqa: B015


def test_keys_that_cannot_be_are_not_in():
    table = table_of(MODEL)
    for key in ("5", None, 1.5, (1, 2)):
        with pytest.raises((TypeError, ValueError)):
            key in table  # noqa: B015


def test_size_changed_during_iteration(device):
    table = table_of(MODEL, device)
    keys = iter(table)
    table[next(keys) + 1] = 0
    with pytest.raises(RuntimeError, match="changed"):
        next(keys)


def test_keys_values_items_correspond(native):
    keys = random_keys("uint32", (), 5000)
    values = random_values("float32", (5000, 2))
    table = HashTable("uint32", "float32", value_shape=(2,), device=native.table_device)
    table[native.array(keys)] = native.array(values)
    got = as_dict(table.keys(), table.values())
    assert got == as_dict(keys, values)
    assert got == items_of(table)


def test_like_picks_the_framework(place):
    table = HashTable("int64", "float32", device=place.table_device)
    table[place.array(np.arange(10))] = 1
    if place.name == "numpy" and place.table_device != "cpu":
        pytest.skip("NumPy is no framework of the device")
    for like in (place.name, place.array(np.arange(1))):
        keys, values = table.items(like=like)
        assert place.owns(keys)
        assert place.owns(values)
        assert place.owns(table.keys(like=like))
        assert place.owns(table.values(like=like))
        assert sorted(to_numpy(keys).tolist()) == list(range(10))


def test_copies_are_independent(device):
    table = table_of(MODEL, device, max_load_factor=0.6)
    for made in (table.copy(), copy.copy(table), copy.deepcopy(table)):
        assert isinstance(made, HashTable)
        assert items_of(made) == items_of(table)
        assert made.max_load_factor == 0.6
        assert made.device == table.device
        made[1000] = 1
        del made[5]
        assert 1000 not in table
        assert 5 in table


def test_copy_of_rows_is_deep(native):
    table = HashTable("int64", "float32", value_shape=(4,), device=native.table_device)
    table[native.array(np.arange(100))] = 1
    made = table.copy()
    made[native.array(np.arange(100))] = 2
    same_bytes(table[native.array(np.arange(100))], np.ones((100, 4), np.float32))


def test_equality(device):
    table = table_of(MODEL, device)
    assert table == table_of(dict(reversed(MODEL.items())), device, capacity=10_000)
    assert table == table.copy()
    other = table.copy()
    other[5] = 9.0
    assert table != other
    other[5] = 1.5
    assert table == other
    other[6] = 0.0
    assert table != other
    assert table == MODEL
    assert table != {**MODEL, 5: 0.0}
    assert table != 5
    assert table_of({}, device) == table_of({}, device)
    with pytest.raises(TypeError):
        hash(table)


def test_equality_of_rows(device):
    values = random_values("float32", (200, 3))
    first, second = (HashTable("int64", "float32", value_shape=(3,), device=device) for _ in range(2))
    first[np.arange(200)] = values
    second[np.arange(200)[::-1].copy()] = values[::-1].copy()
    assert first == second
    second[7] = [0.125, 0, 0]
    assert first != second


def test_union(device):
    table = table_of(MODEL, device)
    other = table_of({5: -1.0, 77: 7.0}, device)
    both = table | other
    assert both == {**MODEL, 5: -1.0, 77: 7.0}
    assert table == MODEL
    same = table
    table |= other
    assert table is same
    assert table == both
    table |= {1: 1.0}
    assert table[1] == 1.0


def test_union_with_a_dict_on_the_left(device):
    """A table like the right one, whose values win, as in a union of two dicts."""
    table = table_of(MODEL, device, max_load_factor=0.6)
    both = {5: -1.0, 77: 7.0} | table
    assert isinstance(both, HashTable)
    assert both.max_load_factor == 0.6
    assert both == {5: -1.0, 77: 7.0} | MODEL
    assert table == MODEL
    model = {5: -1.0, 77: 7.0}
    model |= table.to("cpu")
    assert type(model) is dict
    assert model == {5: -1.0, 77: 7.0} | MODEL
    with pytest.raises(TypeError, match="unsupported operand"):
        [(1, 2.0)] | table


def test_max_load_factor_is_checked(device):
    table = table_of(MODEL, device)
    for factor, error in (("0.5", TypeError), (None, TypeError), (0, ValueError), (1.5, ValueError)):
        with pytest.raises(error, match=r"max_load_factor=.*expected a number in \(0, 1\]"):
            table.max_load_factor = factor
    table.max_load_factor = 0.5
    assert table.max_load_factor == 0.5


def test_repr(device):
    table = HashTable("int32", "float16", key_shape=(3,), value_shape=(8,), device=device, capacity=1000)
    table[[[1, 2, 3]]] = 1
    text = repr(table)
    for part in ("HashTable", "1", str(table.capacity), "int32", "float16", "3", "8", device):
        assert part in text
    assert "load" in text


def test_properties(device):
    table = HashTable("int32", "float16", key_shape=(3,), value_shape=(8,), device=device, capacity=1000)
    assert (table.key_dtype, table.value_dtype) == ("int32", "float16")
    assert (table.key_shape, table.value_shape) == ((3,), (8,))
    assert table.device == device
    assert table.capacity >= 1000
    assert table.load_factor == 0
    assert table.nbytes > 1000 * 16
    assert table.max_load_factor == 0.8
    assert table.default is None
    assert table.name is None
    assert table.max_capacity is None
    assert table.deterministic is False


def test_from_items(place):
    keys = random_keys("int32", (3,), 1000)
    values = random_values("float32", (1000, 2))
    table = HashTable.from_items(place.array(keys), place.array(values))
    assert (table.key_dtype, table.key_shape, table.value_dtype, table.value_shape) == ("int32", (3,), "float32", (2,))
    assert table.device.startswith(place.device)
    assert items_of(table) == as_dict(keys, values)


def test_from_items_of_python_objects():
    table = HashTable.from_items({1: 1.5, 2: 2.5})
    assert (table.key_dtype, table.value_dtype) == ("int64", "float64")
    assert table == {1: 1.5, 2: 2.5}
    table = HashTable.from_items([1, 2], [3, 4], max_load_factor=0.5)
    assert (table.key_dtype, table.value_dtype) == ("int64", "int64")
    assert table.max_load_factor == 0.5
    assert table[[2, 1]].tolist() == [4, 3]


def test_tables_of_the_gpu_are_read_on_the_host(cuda):
    """Host arrays given to a device table are answered on the host."""
    numpy = Framework("numpy", "cpu", "cuda")
    table = HashTable("int64", "float32", device=cuda)
    table[np.arange(10)] = np.arange(10, dtype=np.float32)
    got = table[np.array([3, 1])]
    assert numpy.owns(got)
    same_bytes(got, np.array([3, 1], np.float32))


def test_tables_have_no_order_to_reverse(device):
    with pytest.raises(TypeError):
        reversed(table_of(MODEL, device))


def test_a_table_is_a_mapping_for_those_who_ask(device):
    table = table_of(MODEL, device).to("cpu")  # PyTorch's tensors, which keys() of a GPU table are, hash by identity
    assert isinstance(table, Mapping)
    assert isinstance(table, MutableMapping)
    assert not isinstance(HashSet("int64"), Mapping)
    assert dict(table) == MODEL
    assert dict(collections.ChainMap(table, {1: 1.0})) == {1: 1.0, **MODEL}
    assert collections.Counter(table) == collections.Counter(MODEL)
    counter = collections.Counter()
    counter.update(table)
    assert counter[5] == MODEL[5]
    assert dict(collections.abc.ItemsView(table)) == MODEL


@pytest.mark.parametrize("value_dtype", ["int64", "float32", "bool", "uint8"])
@pytest.mark.parametrize("model", [{1: 1, 2: 0, 7: 1}, {1: 1, 2: 0}, {3: 1}, {}], ids=len)
def test_series_map(model, value_dtype):
    """Tables of two items are those whose items() could be taken for a pair."""
    table = HashTable("int64", value_dtype)
    table.update({key: bool(value) if value_dtype == "bool" else value for key, value in model.items()})
    keys = pd.Series([1, 2, 3], index=[10, 20, 30])
    mapped = keys.map(table)
    wanted = keys.map(dict(table))
    assert mapped.index.tolist() == [10, 20, 30]
    assert mapped.isna().tolist() == [key not in model for key in keys]
    assert mapped.dropna().tolist() == [model[key] for key in keys if key in model]
    assert wanted.isna().equals(mapped.isna())
    assert pd.Index([2, 1, 4]).map(table).isna().tolist() == [key not in model for key in (2, 1, 4)]
    assert pd.Series(table).to_dict() == model


def _counted(table, method):
    counter = collections.Counter({1: 5, 9: 7})
    getattr(counter, method)(table)
    return dict(counter)


def _rename(table):
    return pd.Series([0, 0, 0], index=[1, 2, 3]).rename(table).index.tolist()


#: What gives of a table what it gives of a dict.
AS_OF_A_DICT = {
    "replace": lambda table: pd.Series([1, 2, 3, 100]).replace(table).tolist(),
    "replace in a frame": lambda table: pd.DataFrame({"a": [1, 2], "b": [3, 100]}).replace(table).to_dict(),
    "Series": lambda table: pd.Series(table).to_dict(),
    "groupby": lambda table: pd.Series([5, 6, 7, 8]).groupby(table).sum().to_dict(),
    "isin": lambda table: pd.Series([1, 2, 100]).isin(table).tolist(),
    "Counter": lambda table: dict(collections.Counter(table)),
    "Counter.update": lambda table: _counted(table, "update"),
    "Counter.subtract": lambda table: _counted(table, "subtract"),
    "ChainMap": lambda table: dict(collections.ChainMap(table, {9: 9})),
    "UserDict": lambda table: dict(collections.UserDict(table)),
    "OrderedDict": lambda table: dict(collections.OrderedDict(table)),
    "defaultdict": lambda table: dict(collections.defaultdict(int, table)),
    "union": lambda table: dict({0: 0} | table),
    "polars replace": lambda table: pl.Series([1, 2, 3, 100]).replace(table).to_list(),
    "polars replace_strict": lambda table: pl.Series([1, 2, 3]).replace_strict(table, default=None).to_list(),
    "polars is_in": lambda table: pl.Series([1, 2, 3, 100]).is_in(list(table)).to_list(),
}
#: What refuses a table, and says what to give.
REFUSED = {
    "array": np.array,
    "array of two": lambda table: np.array([table, table]),
    "isin": lambda table: np.isin([1, 2], table),
    "frame": pd.DataFrame,
    "rename": _rename,
    "gpuhash.isin": lambda table: gpuhash.isin([1, 2], table),
    "keys": lambda table: table.contains(table),
}


@pytest.mark.parametrize("model", [{1: 100, 2: 200}, {1: 100}, {1: 100, 2: 200, 3: 300}, {2: 200, 100: 1}], ids=str)
@pytest.mark.parametrize("use", AS_OF_A_DICT)
def test_others_read_a_table_as_a_dict(use, model):
    """Also what reads pairs of items(): two arrays of two elements each would be taken for pairs."""
    if pl is None and use.startswith("polars"):
        pytest.skip("polars is not installed")
    assert AS_OF_A_DICT[use](HashTable.from_items(model)) == AS_OF_A_DICT[use](model)


@pytest.mark.parametrize("use", REFUSED)
def test_a_table_is_no_array(use, device):
    with pytest.raises(TypeError, match=r"a HashTable is no array: give its keys\(\)"):
        REFUSED[use](HashTable.from_items({1: 100, 2: 200}, device=device))


def test_pairs_of_every_kind_of_value(device):
    """As Counter, pandas and polars get them, of a table on any device."""
    code = compile("def pairs(mapping):\n    return list(mapping.items())", "collections", "exec")
    collected = {"__name__": "collections.abc"}
    exec(code, collected)
    pairs = collected["pairs"]

    assert pairs(HashTable("int64", "float32", device=device)) == []
    table = HashTable("int32", "bfloat16", key_shape=(2,), device=device)
    table[[[1, 2], [3, 4]]] = [1.5, -2.0]
    assert dict(pairs(table)) == {(1, 2): 1.5, (3, 4): -2.0}
    table = HashTable("uint64", "float32", value_shape=(2,), device=device)
    table[[2**64 - 1, 7]] = [[1, 2], [3, 4]]
    assert {key: value.tolist() for key, value in pairs(table)} == {2**64 - 1: [1, 2], 7: [3, 4]}
    table = HashTable("int64", {"a": "int32", "b": ("float32", (2,))}, device=device)
    table[[1, 2]] = {"a": [3, 4], "b": [[1, 2], [3, 4]]}
    read = {key: (row["a"], row["b"].tolist()) for key, row in pairs(table)}
    assert read == {1: (3, [1, 2]), 2: (4, [3, 4])}
    keys, rows = table.items(like="numpy")
    assert keys.shape == (2,), rows


def test_a_derived_class_is_read_as_pairs_too():
    class Derived(HashTable):
        def items(self, like=None):
            return super().items(like)

    table = Derived.from_items({1: 100, 2: 200})
    assert pd.Series([1, 2, 3]).replace(table).tolist() == [100, 200, 3]
    keys, values = table.items()
    assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == {1: 100, 2: 200}


def test_arrays_make_no_arithmetic_of_tables_and_sets():
    table, keyset = HashTable.from_items({1: 2, 2: 3}), HashSet.from_keys([1, 2])
    for thing in (table, keyset):
        assert (np.array([1, 2]) == thing) is False
        assert (np.array([1, 2]) != thing) is True
        with pytest.raises(TypeError):
            np.array([1, 2]) | thing
        with pytest.raises(TypeError, match="ufunc"):
            np.add([1, 2], thing)


def test_series_map_of_rows():
    table = HashTable("int64", "float32", value_shape=(2,))
    table[[1, 2]] = [[1, 2], [3, 4]]
    mapped = pd.Series([2, 3]).map(table)
    assert mapped[0].tolist() == [3, 4]
    assert np.isnan(mapped[1])


@pytest.mark.skipif(pl is None, reason="polars is not installed")
def test_series_of_polars_replaced():
    table = table_of({1: 1.5, 2: 2.5})
    assert pl.Series([2, 1]).replace_strict(table).to_list() == [2.5, 1.5]


def test_vector_keys_of_a_mapping_have_no_hash():
    table = HashTable("int32", "int64", key_shape=(2,))
    table[[[1, 2], [3, 4]]] = [5, 6]
    with pytest.raises(TypeError, match="unhashable"):
        dict(table)
    assert dict(zip(table, table.values().tolist(), strict=True)) == {(1, 2): 5, (3, 4): 6}


def test_from_items_of_a_table(device):
    for key_shape, value_shape in [((), ()), ((2,), ()), ((2,), (3,))]:
        table = HashTable("int16", "bfloat16", key_shape=key_shape, value_shape=value_shape, device=device)
        table[np.arange(20, dtype=np.int16).reshape(-1, *key_shape)] = 1.5
        made = HashTable.from_items(table, max_load_factor=0.5)
        assert made == table
        assert (made.key_shape, made.value_shape, made.device) == (key_shape, value_shape, table.device)
        assert made.max_load_factor == 0.5


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ([1, 2], [7, 8, 9]),
        ([1, 2, 3], [7, 8]),
        ([1, 2], [[7, 8, 9]]),
        (np.arange(100_000), np.arange(99_999)),
        (np.arange(6).reshape(3, 2), np.arange(2)),
        ([], [1]),
    ],
    ids=["one-more", "one-less", "rows", "many", "vectors", "none"],
)
def test_from_items_of_different_lengths(keys, values):
    with pytest.raises(ValueError, match=r"value_shape="):
        HashTable.from_items(keys, values)


def test_from_items_of_one_value_for_all(device):
    table = HashTable.from_items([1, 2], [7, 8, 9], value_shape=(3,), device=device)
    assert table.value_shape == (3,)
    assert table[[1, 2]].tolist() == [[7, 8, 9]] * 2
    assert HashTable.from_items([1, 2], 7, device=device) == {1: 7, 2: 7}


def test_from_items_keeps_integers(device):
    table = HashTable.from_items([1, 2], [2**63 + 1, 5], device=device)
    assert table.value_dtype == "uint64"
    assert table == {1: 2**63 + 1, 2: 5}
    assert HashTable.from_items({2**64 - 1: 1, 0: 2}, device=device) == {2**64 - 1: 1, 0: 2}
    with pytest.raises(OverflowError, match=r"-1|9223372036854775809"):
        HashTable.from_items([1, 2], [2**63 + 1, -1])
    table = HashTable.from_items([1, 2], [2**63 + 1, -1], value_dtype="float32", device=device)
    assert table == {1: 2.0**63, 2: -1.0}


UPDATES = {
    "mapping": (lambda: {1: 10, 2: 20}, {1: 10, 2: 20}),
    "pairs": (lambda: [(1, 10), (2, 20), (1, 30)], {1: 30, 2: 20}),
    "two-pairs": (lambda: [(1, 10), (2, 20)], {1: 10, 2: 20}),
    "two-lists": (lambda: [[1, 10], [2, 20]], {1: 10, 2: 20}),
    "two-tuples": (lambda: ((1, 10), (2, 20)), {1: 10, 2: 20}),
    "dict-items": (lambda: {1: 10, 2: 20}.items(), {1: 10, 2: 20}),
    "generator": (lambda: ((number, 10 * number) for number in (1, 2, 3)), {1: 10, 2: 20, 3: 30}),
    "numpy-numbers": (lambda: [(np.int64(1), np.int64(10)), (np.int64(1), np.int64(20))], {1: 20}),
    "arrays-of-one-number": (lambda: [(np.array(1), np.array(10)), (np.array(1), np.array(20))], {1: 20}),
    "series": (lambda: pd.Series([10, 20], index=[1, 2]), {1: 10, 2: 20}),
    "two-arrays": (lambda: (np.array([1, 2]), np.array([10, 20])), {1: 10, 2: 20}),
    "list-of-two-arrays": (lambda: [np.array([1, 2]), np.array([10, 20])], {1: 10, 2: 20}),
    "list-of-items": (lambda: list(table_of({1: 10, 2: 20}).items()), None),
    "two-columns": (lambda: [pd.Series([1, 2]), pd.Series([10, 20])], {1: 10, 2: 20}),
    "nothing": (list, {}),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_update(device, kind):
    make, model = UPDATES[kind]
    table = HashTable("int64", "float64" if model is None else "int64", device=device)
    table.update(make())
    assert table == ({1: 10, 2: 20} if model is None else model)


def test_update_with_the_items_of_tables_of_every_size(native):
    for size in (1, 2, 3):
        table = HashTable("int64", "int64", device=native.table_device)
        table[native.array(np.arange(size))] = native.array(np.arange(size) + 100)
        for items in (table.items(), list(table.items())):
            other = HashTable("int64", "int64", device=native.table_device)
            other.update(items)
            assert other == {number: number + 100 for number in range(size)}


def test_update_with_tensors_as_pairs():
    torch = pytest.importorskip("torch")
    table = HashTable("int64", "int64")
    table.update([(torch.tensor(1), torch.tensor(10)), (torch.tensor(1), torch.tensor(20))])
    assert table == {1: 20}


BAD_UPDATES = {
    "array": (lambda: np.array([[1, 10], [2, 20]]), TypeError, r"update\(keys, values\)"),
    "array-and-list": (lambda: [np.array([1, 2]), [10, 20]], ValueError, r"update\(keys, values\)"),
    "tuple-and-array": (lambda: [(1, 10), np.array([2, 20])], ValueError, r"update\(keys, values\)"),
    "many-arrays": (lambda: list(np.array([[1, 10], [2, 20], [3, 30]])), ValueError, r"update\(keys, values\)"),
    "triples": (lambda: [(1, 10, 5), (2, 20, 5)], ValueError, "tuple of 3"),
    "two-long-lists": (lambda: [[1, 2, 3], [10, 20, 30]], ValueError, "list of 3"),
    "numbers": (lambda: [1, 2], ValueError, "met a int"),
    "column": (lambda: [pd.Series([1, 2])], ValueError, "Series of 2"),
    "text": (lambda: "ab", TypeError, "no items"),
    "number": (lambda: 5, TypeError, "no items"),
    "set": (lambda: HashSet.from_keys([1]), TypeError, "no values"),
}


@pytest.mark.parametrize("kind", BAD_UPDATES)
def test_bad_updates(device, kind):
    make, error, hint = BAD_UPDATES[kind]
    table = HashTable("int64", "int64", device=device)
    table[1] = 5
    with pytest.raises(error, match=hint):
        table.update(make())
    assert table == {1: 5}


@pytest.mark.parametrize("dtype", KEY_DTYPES)
def test_a_key_that_the_dtype_cannot_hold_is_absent(device, dtype):
    info = np.iinfo(dtype)
    table = HashTable(dtype, "float32", device=device)
    model = {0: 1.5, int(info.max): 2.5}
    table.update(model)
    rows = HashTable(dtype, "float32", value_shape=(2,), device=device)
    rows[[0]] = [1, 2]
    for key in (2**64, -(2**64), int(info.max) + 1, int(info.min) - 1):
        assert (key in table) == (key in model)
        assert table.contains(key) is False
        assert table.get(key) is None
        assert table.get(key, 7) == 7
        assert table.find(key) == (0.0, False)
        assert table.find(key, 7) == (7.0, False)
        assert table.erase(key) is False
        assert table.pop(key, 7) == 7
        for call in (table.__getitem__, table.__delitem__, table.pop):
            with pytest.raises(KeyError, match=str(key)):
                call(key)
        for call in (table.insert, table.setdefault, table.__setitem__):
            with pytest.raises(OverflowError, match=str(key)):
                call(key, 1)
        for call in (table.contains, table.erase, table.__getitem__):
            with pytest.raises(OverflowError, match=str(key)):
                call([0, key])  # an array has one dtype
        with pytest.raises(OverflowError, match=str(key)):
            table.contains(key, out=np.zeros((), bool))
        assert rows.rows(key) == -1
        values, found = rows.find(key)
        same_bytes(values, np.zeros(2, np.float32))
        assert found is False
    assert table == model
    table = HashTable(dtype, "float32", device=device, default=3)
    assert table[2**64] == table[5] == 3
    assert table.find(2**64) == table.find(5) == (3.0, False)
    assert table.get(2**64) == 3


def test_vector_keys_that_the_dtype_cannot_hold_are_absent(device):
    table = HashTable("uint8", "int64", key_shape=(2,), device=device)
    table[(1, 2)] = 5
    for key in ((1, 256), (-1, 2), (2**64, 2**64)):
        assert key not in table
        assert table.get(key, 7) == 7
        with pytest.raises(KeyError, match=r"256|-1|18446744073709551616"):
            table[key]
    with pytest.raises(OverflowError):
        table[(1, 256)] = 1
    with pytest.raises(OverflowError):
        table.contains([(1, 256)])
    assert table == {(1, 2): 5}


def test_get_of_one_key_in_a_list_says_what_to_give(device):
    table = HashTable("int32", "int64", key_shape=(3,), device=device)
    table[(0, 0, 0)] = 5
    with pytest.raises(ValueError, match=r"A list of one key.*a tuple of shape \(3,\)"):
        table.get([0, 0, 0])
    assert table.get((0, 0, 0)) == 5
    assert table.get((0, 0, 1)) is None
    assert table.get([0, 0, 1], 7) == 7
    with pytest.raises(ValueError, match="A list of one key"):
        table.pop([0, 0, 0], None)
    with pytest.raises(ValueError, match="a Python integer"):
        HashTable("int64", "int64", device=device).get(np.array(5))
    assert table == {(0, 0, 0): 5}
