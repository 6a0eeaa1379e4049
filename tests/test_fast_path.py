"""Calls on plain arrays, which C++ serves alone, against the same calls by the general path, and against a dict."""

from __future__ import annotations

import enum
import gc
import inspect
import operator
import pickle
import pydoc
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import (
    GPU,
    GPU_INDEX,
    PLACES,
    Framework,
    capture,
    delay,
    event_now,
    module,
    need_place,
    place_name,
    to_numpy,
)
from support.samples import (
    VALUE_DTYPES,
    as_bytes,
    as_dict,
    items_of,
    random_keys,
    random_values,
    same_bytes,
    shape_name,
    type_name,
)

from gpuhash import HashSet, HashTable, TableFullError

SERVED = [place for place in PLACES if place.name in ("numpy", "torch", "cupy") and place.device == place.table_device]
KEY_TYPES = [("int64", ()), ("uint8", ()), ("int32", (3,)), ("int64", (1,)), ("int64", (2,))]
SHAPES = [(16,), (), (1,), (3, 4), (2, 1, 3)]


@pytest.fixture(params=SERVED, ids=place_name)
def plain(request: pytest.FixtureRequest) -> Framework:
    """A framework whose arrays are plain, on the table's device."""
    return need_place(request.param)


class Declines:
    """In place of a fast path: serves nothing."""

    changes = 0


def general(table: Any) -> Any:
    """The table, all of whose calls take the general path from now on."""
    table._fast = Declines()
    return table


def both(make: Any, place: Framework, **options: Any) -> tuple[Any, Any]:
    return make(device=place.table_device, **options), general(make(device=place.table_device, **options))


def is_same(place: Framework, got: Any, expected: Any) -> None:
    """Two answers of the same type, shape and bits."""
    if isinstance(expected, tuple | list):
        assert type(got) is type(expected)
        for one, other in zip(got, expected, strict=True):
            is_same(place, one, other)
        return
    assert type(got) is type(expected)
    if expected is None:
        return
    assert place.owns(got)
    same_bytes(got, to_numpy(expected))


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("default", [None, 7], ids=["no-default", "default"])
def test_lists_of_batches_give_what_the_general_path_gives(plain, value_shape, default):
    """In a table of several shards; the fast path's own counter tells that it has served a change. Of CuPy's arrays it
    makes new ones on CuPy's current device alone.
    """
    makes_arrays = plain.name != "cupy" or module("cupy").cuda.runtime.getDevice() == GPU_INDEX
    options = {"value_shape": value_shape, "default": default, "deterministic": True}
    shards = [plain.table_device] * 3
    fast = HashTable("int64", "float32", device=shards, **options)
    slow = general(HashTable("int64", "float32", device=shards, **options))
    known = random_keys("int64", (), 60)
    batches = [plain.array(part) for part in (known[:20], known[10:50].reshape(2, 20), known[40:41])]
    rows = [
        plain.array(random_values("float32", (*part.shape, *value_shape), seed)) for seed, part in enumerate(batches)
    ]
    others = [plain.array(known), plain.array(known[:7])]
    fast.contains(batches[0])  # the first call that a framework's arrays come in makes it known to the fast path
    numbers_are_served = not value_shape
    changes: list[tuple[bool, Any]] = [
        (makes_arrays, lambda table: table.insert(batches[:2], rows[:2])),
        (makes_arrays and numbers_are_served, lambda table: table.insert_or_assign(batches, 2.5)),
        (True, lambda table: table.__setitem__(batches, rows)),
        (makes_arrays, lambda table: table.insert_or_apply(batches, rows, "add")),
        (makes_arrays and numbers_are_served, lambda table: table.insert_or_apply(batches, 3, "max")),
        (makes_arrays, lambda table: table.erase(batches[1:])),
        (makes_arrays, lambda table: table.insert_or_assign([batches[0]], [rows[0]])),
    ]
    for is_served, change in changes:
        served = fast._fast.changes
        is_same(plain, change(fast), change(slow))
        assert fast._fast.changes - served == is_served
        assert items_of(fast) == items_of(slow)
        for given in (others, batches):
            is_same(plain, fast.find(given), slow.find(given))
            is_same(plain, fast.find(given, 4), slow.find(given, 4))
            is_same(plain, fast.contains(given), slow.contains(given))
            is_same(plain, fast.get(given, 5), slow.get(given, 5))
    keys, other = HashSet("int64", device=shards), general(HashSet("int64", device=shards))
    is_same(plain, keys.add(batches), other.add(batches))
    is_same(plain, keys.contains(others), other.contains(others))
    assert keys == other
    assert keys._fast.changes == makes_arrays
    # What is declined is answered, or refused, by the general path, and changes nothing before.
    before = items_of(fast)
    for given in ([batches[0], plain.array(known.astype(np.int32))], [batches[0], None], [batches[0], [1, 2]]):
        for table in (fast, slow):
            with pytest.raises((TypeError, ValueError)):
                table.insert(given, 1)
    for values in (rows[:2], [rows[0], rows[1], rows[0]], [1, 2]):
        for table in (fast, slow):
            with pytest.raises((TypeError, ValueError)):
                table.insert(batches, values)
    assert items_of(fast) == before
    is_same(plain, fast.find([batches[0], batches[1][:, ::2]]), slow.find([batches[0], batches[1][:, ::2]]))
    empty = [batches[0], plain.array(known[:0])]
    is_same(plain, fast.erase(empty), slow.erase(empty))
    assert items_of(fast) == items_of(slow)


def batch_of(keys: np.ndarray, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Keys of that batch shape, duplicates among them: [*shape, *key_shape]."""
    count = int(np.prod(shape))
    return keys[np.random.default_rng(seed).integers(0, len(keys), count)].reshape((*shape, *keys.shape[1:]))


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
@pytest.mark.parametrize("default", [None, 7], ids=["no-default", "default"])
def test_every_call_gives_what_the_general_path_gives(plain, key_type, value_shape, shape, default):
    dtype, key_shape = key_type
    options = {"key_shape": key_shape, "value_shape": value_shape, "default": default, "deterministic": True}
    fast, slow = both(lambda **more: HashTable(dtype, "float32", **options, **more), plain)
    known = random_keys(dtype, key_shape, 40)
    numbers = iter(range(1000))

    def answers(call):
        """The call's answers by both paths; what they share of arguments is made once."""
        got, expected = call(fast), call(slow)
        is_same(plain, got, expected)
        assert items_of(fast) == items_of(slow)
        return got

    model: dict[bytes, bytes] = {}
    for seed in range(3):
        host = batch_of(known, shape, seed)
        flat = as_bytes(host.reshape(-1, *key_shape)).tolist()
        keys = plain.array(host)
        values = np.asarray(random_values("float32", (*shape, *value_shape), next(numbers)))
        given = plain.array(values)
        one = np.asarray(random_values("float32", value_shape, next(numbers)))

        fast[keys] = given
        slow[keys] = given
        model.update(zip(flat, as_bytes(values.reshape(-1, *value_shape)).tolist(), strict=True))
        assert items_of(fast) == items_of(slow) == model

        got = answers(lambda table, keys=keys: table[keys])
        assert as_bytes(to_numpy(got).reshape(-1, *value_shape)).tolist() == [model[key] for key in flat]
        answers(lambda table, keys=keys: table.find(keys))
        assert to_numpy(answers(lambda table, keys=keys: table.contains(keys))).all()

        others = plain.array(batch_of(known, shape, seed + 10))
        answers(lambda table, others=others: table.find(others))
        answers(lambda table, others=others: table.contains(others))
        answers(lambda table, others=others, given=given: table.insert(others, given))
        if value_shape != shape:
            answers(lambda table, others=others, one=one: table.insert_or_assign(others, plain.array(one)))
        erased, expected = to_numpy(fast.erase(keys)), to_numpy(slow.erase(keys))
        assert erased.shape == expected.shape == shape
        assert erased.sum() == expected.sum() == len(set(flat))  # which of the duplicates is left to timing
        assert not to_numpy(answers(lambda table, keys=keys: table.contains(keys))).any()
        model = items_of(slow)


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_every_value_dtype(plain, dtype):
    if not plain.takes(dtype):
        pytest.skip(f"{plain.name} has no {dtype}")
    fast, slow = both(lambda **more: HashTable("int32", dtype, default=dtype == "bool" or 1, **more), plain)
    keys, values = random_keys("int32", (), 100), random_values(dtype, (100,))
    for table in (fast, slow):
        table[plain.array(keys[:60])] = plain.array(values[:60])
    assert items_of(fast) == items_of(slow) == as_dict(keys[:60], values[:60])
    is_same(plain, fast[plain.array(keys)], slow[plain.array(keys)])
    is_same(plain, fast.find(plain.array(keys)), slow.find(plain.array(keys)))


def test_sets(plain):
    fast, slow = both(lambda **more: HashSet("int64", **more), plain)
    seen: set[int] = set()
    for seed in range(10):
        host = np.random.default_rng(seed).integers(0, 30, 16)
        keys = plain.array(host)
        new = fast.add(keys)
        assert to_numpy(new).sum() == to_numpy(slow.add(keys)).sum() == len(set(host.tolist()) - seen)
        seen |= set(host.tolist())
        gone = np.arange(seed, 30, 7)
        erased = fast.erase(plain.array(gone))
        is_same(plain, erased, slow.erase(plain.array(gone)))
        same_bytes(erased, np.array([key in seen for key in gone.tolist()]))
        seen -= set(gone.tolist())
        is_same(plain, fast.contains(keys), slow.contains(keys))
        assert set(fast) == set(slow) == seen


def test_plain_arrays_are_served_directly(plain):
    """Or the comparisons here would compare the general path with itself."""
    table = HashTable("int64", "float32", device=plain.table_device, default=0.0)
    keys, values = plain.array(np.arange(16)), plain.array(np.ones(16, np.float32))
    mask = plain.array(np.zeros(16, bool))
    general(table)[keys] = values  # makes the framework known
    if plain.name == "torch" and not hasattr(module("torch").Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch offers no functions in C")
    if plain.name == "cupy" and GPU_INDEX != 0:
        pytest.skip("CuPy makes arrays on its current GPU, so that answers on another one take the general path")
    table = HashTable("int64", "float32", device=plain.table_device, default=0.0)

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the general path was taken")

    table._take = refuse
    table[keys] = values
    table[keys]
    table.find(keys)
    table.find(keys, None, (values, mask))
    table.find(keys=keys, out=(None, mask))
    table.get(keys)
    table.get(keys, out=values)
    table.contains(keys)
    table.contains(keys, out=mask)
    table.insert(keys, values)
    table.insert(keys, values=values, out=mask)
    table.insert_or_assign(keys, values)
    table.insert_or_assign(keys, values, mask)
    table.insert_or_apply(keys, values, "add")
    table.insert_or_apply(keys, op="min", values=values, out=mask)
    table.erase(keys)
    table.erase(keys, mask)
    with pytest.raises(AssertionError):
        table.contains(plain.array(np.arange(16))[::2])
    made = HashSet("int64", device=plain.table_device)
    made._take = refuse
    made.add(keys)
    made.insert(keys, out=mask)
    made.contains(keys)
    made.erase(keys)


NUMBERS = [0, 1, -1, 127, 128, 255, 256, -129, 1 << 31, -(1 << 31) - 1, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, 1 << 64]
NUMBERS += [0.5, -0.0, 1e30, 1e300, float("inf"), 16777217.0, 0.1, True, 1j]  # type: ignore[list-item]


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_python_numbers_are_converted_as_on_the_general_path(plain, dtype):
    place = plain
    if not place.takes(dtype):
        pytest.skip(f"{place.name} has no {dtype}")
    keys, others = place.array(np.arange(16)), place.array(np.arange(8, 24))
    calls = {
        "setitem": lambda table, number: table.__setitem__(keys, number),
        "insert": lambda table, number: table.insert(keys, number),
        "insert_or_assign": lambda table, number: table.insert_or_assign(keys, number),
        "add": lambda table, number: table.insert_or_apply(keys, number, "add"),
        "find": lambda table, number: table.find(others, default=number),
        "get": lambda table, number: table.get(others, number),
    }
    for number in NUMBERS:
        for name, call in calls.items():
            fast, slow = both(lambda **more: HashTable("int64", dtype, **more), place)
            for table in (fast, slow):
                table[keys] = place.array(random_values(dtype, (16,)))
            got, expected = outcome(lambda: call(fast, number)), outcome(lambda: call(slow, number))  # noqa: B023
            assert got == expected, (number, name)
            assert items_of(fast) == items_of(slow), (number, name)


class Answer(enum.IntEnum):
    SEVEN = 7


class Integer(int):
    """An integer of a class of its own."""


class Index:
    """What Python takes for an integer, and is none."""

    def __index__(self) -> int:
        return 7


SINGLE_KEYS: list[Any] = [
    0,
    1,
    -1,
    7,
    127,
    128,
    255,
    256,
    -128,
    -129,
    1 << 31,
    -(1 << 31) - 1,
    (1 << 63) - 1,
    -(1 << 63),
]
SINGLE_KEYS += [1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63) - 1, True, False, 7.0, float("nan"), 1j, None, "7", b"7"]
SINGLE_KEYS += [np.int8(7), np.uint8(200), np.int16(-3), np.int32(7), np.int64(7), np.int64(-(1 << 63)), np.uint32(7)]
SINGLE_KEYS += [np.uint64(1 << 63), np.longlong(7), np.bool_(True), np.float32(7), np.float64(7), np.datetime64(7, "s")]
SINGLE_KEYS += [Answer.SEVEN, Integer(7), Index(), np.array(7), np.array([7])]
KEY_LISTS: list[Any] = [[], [7], [7, 7], [1, 2, 3], [0, -1], [1, 2.0], [1.0, 2.0], [1, True], [True, False], [1, None]]
KEY_LISTS += [
    [1, 300],
    [1, 1 << 63],
    [-1, 1 << 63],
    [1, 1 << 64],
    [np.int64(1), 2],
    [np.int64(1), np.int64(2)],
    [[1, 2]],
]
KEY_LISTS += [[Answer.SEVEN, 1], [Integer(7)], ["7"], [[1], [2, 3]], range(3), range(0), (1, 2), (7,), (), ([1, 2, 3],)]
KEY_LISTS += [(1, 2, 3), (1, 2.0, 3), (1, True, 3), (1, 2, 1 << 40), (1, 2, 3, 4), [(1, 2, 3), (4, 5, 6)], [1, 2, 3]]
KEY_LISTS += [(np.int64(1), 2, 3), ((1, 2, 3), (4, 5, 6)), list(range(1, 200))]
ONE_TABLE_CALLS = {
    "getitem": lambda table, keys: table[keys],
    "setitem": lambda table, keys: table.__setitem__(keys, 9),
    "subscript": lambda table, keys: operator.setitem(table, keys, 9),
    "delitem": lambda table, keys: operator.delitem(table, keys),
    "in": lambda table, keys: keys in table,
    "contains": lambda table, keys: table.contains(keys),
    "get": lambda table, keys: table.get(keys),
    "get-default": lambda table, keys: table.get(keys, 5),
    "get-object": lambda table, keys: table.get(keys, "absent"),
    "find": lambda table, keys: table.find(keys),
    "find-default": lambda table, keys: table.find(keys, 5),
    "insert": lambda table, keys: table.insert(keys, 9),
    "insert_or_assign": lambda table, keys: table.insert_or_assign(keys, 9),
    "add": lambda table, keys: table.insert_or_apply(keys, 9, "add"),
    "erase": lambda table, keys: table.erase(keys),
    "pop": lambda table, keys: table.pop(keys),
    "pop-default": lambda table, keys: table.pop(keys, 5),
    "pop-none": lambda table, keys: table.pop(keys, None),
    "setdefault": lambda table, keys: table.setdefault(keys, 9),
    "setdefault-none": lambda table, keys: table.setdefault(keys),
}
ONE_SET_CALLS = {
    "in": lambda table, keys: keys in table,
    "contains": lambda table, keys: table.contains(keys),
    "add": lambda table, keys: table.add(keys),
    "erase": lambda table, keys: table.erase(keys),
    "discard": lambda table, keys: table.discard(keys),
    "remove": lambda table, keys: table.remove(keys),
}


def exactly(call: Any) -> Any:
    """What a call answered, with the types of all of its parts, or what it raised and said."""

    def told(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(told, part))
        if isinstance(part, np.ndarray):
            return type(part), part.dtype, part.shape, part.tobytes()
        return type(part), repr(part)

    try:
        return told(call())
    except Exception as error:
        return type(error), str(error)


def contents(table: Any) -> Any:
    if isinstance(table, HashSet):
        return set(table)
    if table.columns is None:
        return items_of(table)
    keys, values = table.items()
    return dict(zip(keys.tolist(), zip(*(column.tolist() for column in values.values()), strict=True), strict=True))


def fare_alike(make: Any, calls: dict[str, Any], given: list[Any]) -> None:
    """Each call on each of the given, by both paths, on tables that hold the same."""
    for name, call in calls.items():
        fast, slow = make(), general(make())
        for each in given:
            got, expected = exactly(lambda: call(fast, each)), exactly(lambda: call(slow, each))  # noqa: B023
            assert got == expected, (name, each)
            assert len(fast) == len(slow), (name, each)
        assert contents(fast) == contents(slow), name


@pytest.mark.parametrize("value_shape", [(), (2,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("default", [None, 3], ids=["no-default", "default"])
@pytest.mark.parametrize(
    "key_type",
    [("int64", ()), ("int8", ()), ("uint64", ()), ("uint16", ()), ("int32", (3,)), ("int64", (1,))],
    ids=type_name,
)
def test_python_keys_fare_as_on_the_general_path(key_type, default, value_shape):
    dtype, key_shape = key_type

    def table() -> HashTable:
        made = HashTable(dtype, "float32", key_shape=key_shape, value_shape=value_shape, default=default)
        known = np.array([0, 1, 2, 3, 7, 126, 127], dtype)
        made[known[:, None].repeat(key_shape[0], 1) if key_shape else known] = np.float32(2)
        if key_shape == (3,):
            made[(1, 2, 3)] = 4.0
        return made

    def keys() -> HashSet:
        made = HashSet(dtype, key_shape=key_shape)
        made.add(np.array([[1] * 3, [1, 2, 3]] if key_shape == (3,) else [[1], [7]], dtype).reshape(-1, *key_shape))
        return made

    fare_alike(table, ONE_TABLE_CALLS, SINGLE_KEYS + KEY_LISTS)
    fare_alike(keys, ONE_SET_CALLS, SINGLE_KEYS + KEY_LISTS)


def test_python_keys_in_tables_with_columns_and_shards():
    columns = {"a": "float32", "b": ("int32", (2,))}
    calls = {
        name: ONE_TABLE_CALLS[name] for name in ("getitem", "delitem", "in", "contains", "get", "find", "erase", "pop")
    }
    for make in (
        lambda: HashTable("int64", columns),
        lambda: HashTable("int64", "float32", device=["cpu", "cpu"]),
    ):

        def filled(make: Any = make) -> HashTable:
            table = make()
            table[np.arange(10)] = {"a": 1.0, "b": 2} if table.columns else 1.0
            return table

        fare_alike(filled, calls, SINGLE_KEYS + KEY_LISTS)


ODD_VALUES: list[Any] = [
    *NUMBERS,
    np.float32(0.1),
    np.float64(0.1),
    np.float32("nan"),
    np.array(0x7F800001, "u4").view("f4")[()],
]
ODD_VALUES += [
    np.float64("inf"),
    np.float16(0.1),
    np.int8(-7),
    np.uint8(7),
    np.int64((1 << 53) + 1),
    np.uint64(1 << 63),
]
ODD_VALUES += [
    np.bool_(True),
    np.complex64(1j),
    Answer.SEVEN,
    Integer(7),
    Index(),
    [7],
    [7, 8],
    [True, False],
    [0.5, 7],
]
ODD_VALUES += [
    [0.5, 0.1],
    [(1 << 53) + 1, 7],
    [(1 << 53) + 1, 0.5],
    [1 << 63, 7],
    [300, 7],
    [7, 8, 9],
    [[7, 8]],
    [None, 7],
]
ODD_VALUES += [(7, 8), [np.float32(1), np.float32(2)], [], None, "7", np.array([7, 8]), np.array(7.0)]


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_python_values_fare_as_on_the_general_path(dtype):
    """And all elements come back as the same Python numbers."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    calls = {
        "setitem": lambda table, value: operator.setitem(table, 5, value),
        "setitem-list": lambda table, value: operator.setitem(table, [5, 6], value),
        "setitem-array": lambda table, value: operator.setitem(table, np.array([5, 6]), value),
        "getitem": lambda table, _: table[5],
        "insert": lambda table, value: table.insert([8, 9], value),
        "find": lambda table, value: table.find(1000, value),
        "get": lambda table, value: table.get(1000, value),
        "setdefault": lambda table, value: table.setdefault([5, 1000], value),
        "apply": lambda table, value: table.insert_or_apply([5, 6], value, "multiply"),
    }
    for value in ODD_VALUES:
        fast, slow = HashTable("int64", dtype), general(HashTable("int64", dtype))
        for name, call in calls.items():
            got, expected = exactly(lambda: call(fast, value)), exactly(lambda: call(slow, value))  # noqa: B023
            assert got == expected, (name, value)
        assert items_of(fast) == items_of(slow), value
    table, values = HashTable("int64", dtype), random_values(dtype, (300,))
    keys = np.arange(300)
    table[keys] = values
    slow = general(table.copy())
    for key in range(300):
        assert exactly(lambda: table[key]) == exactly(lambda: slow[key])  # noqa: B023


def test_python_keys_are_served_directly():
    """Or the comparisons would compare the general path with itself."""
    table, keys = HashTable("int64", "float32", default=0.0), HashSet("int64")
    vectors = HashTable("int32", "int64", key_shape=(3,))
    vectors[(1, 2, 3)] = 7

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the general path was taken")

    table._take = keys._take = vectors._take = refuse
    for key in (5, np.int64(5), np.int32(5), np.uint8(5), [5, 6], list(range(2000))):
        table[key] = 7
        assert np.all(table[key] == 7)
        table[key] = np.float32(8)
        assert np.all(table.get(key) == 8)
        assert np.all(table.get(key, 5) == 8)
        assert np.all(table.find(key)[0] == 8)
        assert np.all(table.contains(key))
        assert not np.any(table.insert(key, 1))
        table.insert_or_assign(key, True if isinstance(key, str) else 1.5)
        table.insert_or_apply(key, 1, "add")
        assert np.all(table.setdefault(key, 3) == 2.5)
        assert np.all(table.erase(key))
        assert np.all(table[key] == 0)
        table[key] = 1.0
        del table[key]
        keys.add(key)
        assert np.all(keys.contains(key))
        keys.discard(key)
        keys.add(key)
        keys.remove(key)
    table[[1, 2]] = [1.5, 2.5]
    assert 1 in table
    assert 3 not in table
    assert table.pop(1) == 1.5
    assert table.pop(1, 9) == 9
    assert table.get(1) == 0
    assert len(keys) == 0
    assert vectors[1, 2, 3] == 7
    assert (1, 2, 4) not in vectors
    assert vectors.get((1, 2, 4)) is None


def test_membership_of_derived_classes():
    class Even(HashTable):
        def __contains__(self, key):
            return key % 2 == 0 and super().__contains__(key)

    table = Even("int64", "int64")
    table[[1, 2]] = 7
    assert 2 in table
    assert 1 not in table
    assert 4 not in table

    class Plain(HashSet):
        pass

    keys = Plain("int64")
    keys.add(1)
    assert 1 in keys
    assert 2 not in keys
    assert not HashSet.__contains__(keys, 2)
    for given in ([1, 2], np.arange(3)):
        with pytest.raises(TypeError, match="`in` takes one key"):
            given in keys  # noqa: B015


@pytest.mark.pairwise
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float32", "complex64"])
@pytest.mark.parametrize(
    "op", ["add", "multiply", "min", "max", "bit_and", "bit-or", "bit_xor", "keep", "replace", "sum", 5, "\ud800"]
)
def test_insert_or_apply(plain, op, dtype, value_shape):
    fast, slow = both(lambda **more: HashTable("int32", dtype, value_shape=value_shape, **more), plain)
    keys, values = random_keys("int32", (), 60), random_values(dtype, (60, *value_shape))
    for first, last in ((0, 40), (20, 60)):  # distinct keys: the order of sums is not fixed
        given = plain.array(keys[first:last]), plain.array(values[first:last])
        got = outcome(lambda: fast.insert_or_apply(*given, op))  # noqa: B023
        assert got == outcome(lambda: slow.insert_or_apply(*given, op))  # noqa: B023
        assert items_of(fast) == items_of(slow)


def test_subscripts_run_no_python_function():
    """The functions `__getitem__` and `__setitem__` are for compilers and derived classes alone."""
    table = HashTable("int64", "int64", default=0)
    keys = np.arange(16)
    called = []

    def note(frame, event, _):
        if event == "call":
            called.append(frame.f_code.co_name)

    def loop():
        for number in range(100):  # long enough for the interpreter to specialize
            table[keys] = number
            assert table[keys][0] == number

    sys.setprofile(note)
    try:
        loop()
    finally:
        sys.setprofile(None)
    assert called == ["loop"]

    class Derived(HashTable):
        pass

    derived = Derived("int64", "int64", default=7)
    derived[keys[:2]] = 3
    del derived[keys[:1]]
    assert derived[keys[:3]].tolist() == derived.__getitem__(keys[:3]).tolist() == [7, 3, 7]
    with pytest.raises(TypeError):
        HashTable.__setitem__(table, keys)
    del table[keys[:1]]
    assert table[keys[:2]].tolist() == [0, 99]


def test_methods_look_like_functions():
    table = HashTable("int64", "int64")
    for name in ("find", "get", "contains", "insert", "insert_or_assign", "insert_or_apply", "erase", "rows"):
        method = getattr(HashTable, name)
        assert method.__name__ == name
        assert method.__qualname__.endswith(f".{name}")
        assert method.__doc__ == method.__wrapped__.__doc__
        assert inspect.isroutine(method)
        assert list(inspect.signature(method).parameters)[:2] == ["self", "keys"]
        assert next(iter(inspect.signature(getattr(table, name)).parameters)) == "keys"
        assert pickle.loads(pickle.dumps(method)) is method
        assert repr(method) == repr(method.__wrapped__)
    assert "insert_or_apply(self, keys: 'Any'" in pydoc.render_doc(HashTable, renderer=pydoc.plaintext)
    assert table.find.__self__ is table
    assert HashSet.insert is HashSet.add


WRONG_ARGUMENTS = [
    ((), {}),
    ((1, 2, 3, 4), {}),
    (([1],), {"keys": [1]}),
    (([1],), {"unknown": 5}),
    ((), {"default": 5}),
]


@pytest.mark.parametrize(("positional", "named"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_explained_by_python(positional, named):
    table = HashTable("int64", "int64")
    with pytest.raises(TypeError, match=r"find\(\)"):
        table.find(*positional, **named)
    with pytest.raises(AttributeError):
        HashTable.find(5, np.arange(3))


def test_overridden_methods_reach_those_below():
    class Logged(HashTable):
        log: list[str]

        def find(self, keys, default=None, out=None):
            self.log.append("find")
            return super().find(keys, default, out=out)

        def __getitem__(self, keys):
            self.log.append("getitem")
            return super().__getitem__(keys)

    table = Logged("int64", "int64")
    table.log = []
    keys = np.arange(16)
    table[keys] = keys
    same_bytes(table[keys], keys)
    same_bytes(table.find(keys)[0], keys)
    assert table.log == ["getitem", "find"]


def test_outputs_are_the_callers(plain):
    table = HashTable("int64", "float32", device=plain.table_device)
    host = np.arange(12).reshape(3, 4)
    keys, given = plain.array(host), plain.array(host.astype(np.float32))
    mask = plain.array(np.zeros((3, 4), bool))
    values = plain.array(np.zeros((3, 4), np.float32))
    assert table.insert(keys, given, out=mask) is mask
    assert to_numpy(mask).all()
    assert table.insert_or_assign(keys, given, out=mask) is mask
    assert not to_numpy(mask).any()
    answer = table.find(keys, out=(values, mask))
    assert answer[0] is values
    assert answer[1] is mask
    same_bytes(values, host.astype(np.float32))
    assert to_numpy(mask).all()
    values, other = table.find(keys, out=(None, mask))
    assert other is mask
    same_bytes(values, host.astype(np.float32))
    assert table.erase(keys, out=mask) is mask
    assert to_numpy(mask).all()
    assert table.contains(keys, out=mask) is mask
    assert not to_numpy(mask).any()


def outcome(call: Any) -> tuple[Any, ...]:
    """What a call answered, or what it raised and said."""
    try:
        answer = call()
    except Exception as error:
        return type(error), str(error)
    parts = answer if isinstance(answer, tuple) else (answer,)
    hosts = [part if part is None else to_numpy(part) for part in parts]
    return tuple((str(host.dtype), host.shape, host.tobytes()) if host is not None else None for host in hosts)


class Subclass(np.ndarray):
    """An array of a class that NumPy does not know."""


def odd_numpy() -> dict[str, Any]:
    keys = np.arange(16)
    read_only = keys.copy()
    read_only.flags.writeable = False
    unaligned = np.empty(keys.nbytes + 1, np.uint8)[1:].view(keys.dtype)
    unaligned[:] = keys
    return {
        "strided": np.arange(32)[::2],
        "fortran": np.asfortranarray(keys.reshape(4, 4)),
        "read-only": read_only,
        "unaligned": unaligned,
        "0-d": np.array(5),
        "number": np.int64(5),
        "integer": 5,
        "list": [1, 2, 3],
        "empty": keys[:0],
        "empty-2d": np.empty((3, 0), np.int64),
        "int32": keys.astype(np.int32),
        "uint64": keys.astype(np.uint64),
        "float": keys.astype(np.float64),
        "bool": keys > 3,
        "object": keys.astype(object),
        "big-endian": keys.astype(">i8"),
        "long-long": keys.astype(np.longlong),
        "subclass": keys.view(Subclass),
        "masked": np.ma.masked_array(keys),
        "many-dimensions": keys.reshape(2, 2, 2, 2, 1, 1, 1, 1, 1),
        "absent": keys + 100,
        "none": None,
        "text": "abc",
    }


def odd_torch() -> dict[str, Any]:
    torch = module("torch")

    class TensorSubclass(torch.Tensor):
        pass

    keys = torch.arange(16)
    return {
        "strided": torch.arange(32)[::2],
        "transposed": keys.reshape(4, 4).T,
        "expanded": torch.tensor([3]).expand(5),
        "0-d": torch.tensor(5),
        "empty": keys[:0],
        "int32": keys.int(),
        "float": keys.double(),
        "bool": keys > 3,
        "negated": torch._neg_view(keys),
        "subclass": keys.as_subclass(TensorSubclass),
        "parameter": torch.nn.Parameter(keys, requires_grad=False),
        "meta": keys.to("meta"),
        "sparse": keys.to_sparse(),
        "many-dimensions": keys.reshape(2, 2, 2, 2, 1, 1, 1, 1, 1),
        "absent": keys + 100,
    }


def odd_values_torch() -> dict[str, Any]:
    torch = module("torch")
    values = torch.ones(16, dtype=torch.complex64)
    return {
        "requires-grad": torch.ones(16, dtype=torch.complex64, requires_grad=True),
        "conjugated": values.conj(),
        "negated": torch._neg_view(values),
        "float": values.real,
        "one": values[0],
        "one-in-a-row": values[:1],
        "too-few": values[:15],
        "number": 3,
        "numpy": values.numpy(),
        "none": None,
    }


CALLS = {
    "getitem": lambda table, keys: table[keys],
    "find": lambda table, keys: table.find(keys),
    "contains": lambda table, keys: table.contains(keys),
    "erase": lambda table, keys: table.erase(keys),
    "setitem": lambda table, keys: table.__setitem__(keys, 5.0),
    "insert": lambda table, keys: table.insert(keys, np.float32(5)),
}


@pytest.mark.parametrize("default", [None, 7], ids=["no-default", "default"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_odd_keys_fare_as_on_the_general_path(framework, call, default):
    if module(framework) is None:
        pytest.skip(f"{framework} is not installed")
    kinds = (odd_numpy if framework == "numpy" else odd_torch)()
    for kind, keys in kinds.items():
        fast = HashTable("int64", "float32", default=default)
        slow = general(HashTable("int64", "float32", default=default))
        for table in (fast, slow):
            table[np.arange(16)] = np.arange(16, dtype=np.float32)
        got, expected = outcome(lambda: CALLS[call](fast, keys)), outcome(lambda: CALLS[call](slow, keys))  # noqa: B023
        assert got == expected, kind
        assert items_of(fast) == items_of(slow), kind


@pytest.mark.parametrize("call", ["setitem", "insert", "insert_or_assign"])
def test_odd_values_fare_as_on_the_general_path(call):
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed")
    keys = torch.arange(16)
    calls = {
        "setitem": lambda table, values: table.__setitem__(keys, values),
        "insert": lambda table, values: table.insert(keys, values),
        "insert_or_assign": lambda table, values: table.insert_or_assign(keys, values),
    }
    for kind, values in odd_values_torch().items():
        fast = HashTable("int64", "complex64")
        slow = general(HashTable("int64", "complex64"))
        got, expected = outcome(lambda: calls[call](fast, values)), outcome(lambda: calls[call](slow, values))  # noqa: B023
        assert got == expected, kind
        assert items_of(fast) == items_of(slow), kind


@pytest.mark.parametrize("what", ["dtype", "shape", "strided", "read-only", "framework", "list", "one-of-two"])
def test_odd_outputs_fare_as_on_the_general_path(what):
    values, mask = np.zeros(16, np.float32), np.zeros(16, bool)
    read_only = mask.copy()
    read_only.flags.writeable = False
    out = {
        "dtype": (values, mask.astype(np.int8)),
        "shape": (values, mask.reshape(4, 4)),
        "strided": (values, np.zeros(32, bool)[::2]),
        "read-only": (values, read_only),
        "framework": (values, module("torch").zeros(16, dtype=module("torch").bool) if module("torch") else None),
        "list": [values, mask],
        "one-of-two": (None, mask),
    }[what]
    fast, slow = both(lambda **more: HashTable("int64", "float32", **more), Framework("numpy", "cpu", "cpu"))
    keys = np.arange(16)
    for table in (fast, slow):
        table[keys[::2]] = 3.0
    assert outcome(lambda: fast.find(keys, out=out)) == outcome(lambda: slow.find(keys, out=out))
    if isinstance(out, tuple):
        masks = [outcome(lambda table=table: table.contains(keys, out=out[1])) for table in (fast, slow)]
        assert masks[0] == masks[1]


def test_absent_keys_are_named(plain):
    table = HashTable("int64", "float32", device=plain.table_device)
    table[plain.array(np.arange(8))] = plain.array(np.zeros(8, np.float32))
    with pytest.raises(KeyError, match="2 of 4 keys are absent: 8, 9"):
        table[plain.array(np.arange(6, 10))]


def test_a_full_table_is_as_it_was(plain):
    table = HashTable("int64", "float32", device=plain.table_device, capacity=64, growth=False)
    capacity = table.capacity
    values = plain.array(np.ones(capacity, np.float32))
    table[plain.array(np.arange(capacity))] = values
    before = items_of(table)
    for call in (table.insert, table.insert_or_assign, table.__setitem__):
        with pytest.raises(TableFullError):
            call(plain.array(np.arange(capacity) + 5), values)
        assert items_of(table) == before


def test_tables_grow(plain):
    table = HashTable("int64", "float32", device=plain.table_device)
    for first in range(0, 10_000, 100):
        host = np.arange(first, first + 100)
        assert to_numpy(table.insert(plain.array(host), plain.array(host.astype(np.float32)))).all()
    host = np.arange(10_000)
    same_bytes(table[plain.array(host)], host.astype(np.float32))


def test_subclasses_copies_and_pickles_are_served(plain):
    class Counts(HashTable):
        pass

    keys, values = plain.array(np.arange(16)), plain.array(np.arange(16, dtype=np.float32))
    table = Counts("int64", "float32", device=plain.table_device, default=-1)
    table[keys] = values
    copied = table.copy()
    copied[keys] = plain.array(np.full(16, 9, np.float32))
    copied.erase(plain.array(np.arange(8)))
    assert type(copied) is Counts
    same_bytes(copied[keys], np.repeat(np.float32([-1, 9]), 8))
    same_bytes(table[keys], np.arange(16, dtype=np.float32))
    moved = table.to("cpu")
    same_bytes(moved[np.arange(20)], np.r_[np.arange(16), [-1] * 4].astype(np.float32))


def test_iteration_notices_changes(plain):
    table = HashTable("int64", "float32", device=plain.table_device)
    table[plain.array(np.arange(100))] = plain.array(np.zeros(100, np.float32))
    keys = iter(table)
    next(keys)
    table.erase(plain.array(np.arange(50)))
    with pytest.raises(RuntimeError, match="changed its size"):
        next(keys)


def test_threads(plain):
    """All threads read and write the same keys, each value being the key times a round's number."""
    table = HashTable("int64", "int64", device=plain.table_device)
    host = np.arange(1, 65)
    table[plain.array(host)] = plain.array(host)
    start = threading.Barrier(4)

    def work(number: int) -> None:
        keys = plain.array(host)
        start.wait()
        for round_number in range(1, 300):
            table[keys] = plain.array(host * round_number)
            values, found = map(to_numpy, table.find(keys))
            assert found.all()
            assert len(set((values // host).tolist())) == 1
            assert not (values % host).any()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_nothing_leaks(plain):
    table = HashTable("int64", "float32", device=plain.table_device, default=0)
    keys, values = plain.array(np.arange(16)), plain.array(np.ones(16, np.float32))
    mask = plain.array(np.zeros(16, bool))

    def calls(count: int) -> None:
        for _ in range(count):
            table[keys] = values
            table[keys]
            table.find(keys)
            table.find(keys, out=(values, mask))
            table.contains(keys)
            table.insert(keys, values, out=mask)
            table.erase(keys)
            table.insert_or_apply(keys, values, "max")
            table.get(keys)
            table[5] = table[np.int64(5)]
            table[[5, 6]] = [1.5, 2.5]
            table.setdefault(7, 2.5)
            table.pop(7)
            table.get(1000, mask)
            del table[[5, 6]]
            assert 5 not in table

    calls(2000)
    plain.synchronize()
    gc.collect()  # or what other tests have left would be collected meanwhile, and its references with it
    counted = (keys, values, mask, table._fast, type(keys), NotImplemented, None, True, False)
    references = [sys.getrefcount(each) for each in counted]
    resident = resident_bytes()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    calls(300)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    calls(12_000)
    plain.synchronize()
    assert grown < 20_000
    assert all(abs(sys.getrefcount(each) - old) < 100 for each, old in zip(counted, references, strict=True))
    assert resident_bytes() - resident < 8 << 20


def test_gpu_answers_are_ordinary_tensors(torch_cuda):
    """Which record_stream notices, as their memory would otherwise be used again while a second stream reads it."""
    torch = torch_cuda
    table = HashTable("int64", "float32", device=GPU, default=0)
    keys = torch.arange(16, device=GPU)
    for tensor in (table[keys], *table.find(keys), table.contains(keys)):
        assert tensor.untyped_storage().resizable()


def test_numbers_on_the_gpu_are_copied_there_once(torch_cuda):
    """And then nobody waits, nor does a graph's capture mind."""
    torch = torch_cuda
    table = HashTable("int64", "int64", device=GPU)
    table.reserve(100_000)
    keys = torch.arange(1000, device=GPU)
    table[keys] = 7
    new = table.insert_or_apply(keys, 1, "add")
    assert not new.any()
    table.get(keys + 1000, 7)  # CUDA loads each kernel when it is first launched, and may wait for the device then
    torch.cuda.synchronize(GPU)
    delay(2_000_000_000)  # about a second
    for _ in range(5):
        table.insert_or_apply(keys, 1, "add")
    got = table.get(keys, 7)
    table[keys + 1000] = 7
    done = event_now()
    assert not done.query(), "a call waited for the device"
    same_bytes(got, np.full(1000, 13))
    len(table)  # makes the bound of the size exact
    graph = torch.cuda.CUDAGraph()
    out = torch.zeros(1000, dtype=torch.bool, device=GPU)
    with capture(graph):
        table.insert_or_apply(keys, 1, "add", out=out)
    for _ in range(3):
        graph.replay()
    same_bytes(table[keys], np.full(1000, 16))
    for number in range(200):  # more than are kept
        table[keys] = number
        same_bytes(table[keys[:5]], np.full(5, number))


def test_cupy_streams(cuda):
    cupy = module("cupy")
    if cupy is None:
        pytest.skip("cupy is not installed")
    table = HashTable("int64", "int64", device=GPU, default=-1)
    table.reserve(3_000_000)
    for round_number in range(5):
        with cupy.cuda.Device(GPU_INDEX), cupy.cuda.Stream(non_blocking=True) as stream:
            keys = cupy.arange(1_000_000) + round_number * 10
            table[keys] = keys * 2
            assert bool((table[keys] == keys * 2).all())
            stream.synchronize()
    assert len(table) == 1_000_040
