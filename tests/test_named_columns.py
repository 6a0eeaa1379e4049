"""Tables with several named values per key, against a dict of dicts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy learns bfloat16
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frameworks import GPU, Framework, module, nearest_framework, need_place, sees_gpu, to_numpy
from support.memory_resources import counting_memory
from support.samples import KEY_TYPES, UFUNCS, numpy_dtype, random_keys, random_values, same_bytes, type_name

import gpuhash
from gpuhash import Column, HashSet, HashTable, TableFullError
from gpuhash.initializers import Constant, Normal, TruncatedNormal, Uniform

USUAL = {"weight": ("float32", (64,)), "m": ("float16", (64,)), "step": "int32"}
ODD = {"flag": "bool", "bytes": ("int8", (3,)), "half": ("float16", (5,)), "wide": "complex128", "step": "int32"}
KINDS: dict[str, dict[str, Any]] = {
    "usual": USUAL,
    "odd": ODD,
    "one-byte": {"x": "int8"},
    "three-bytes": {"x": ("uint8", (3,))},
    "short": {"a": "int8", "b": "int16"},
    "scalar": {"x": "float64"},
    "bfloat16": {"b": ("bfloat16", (2, 3)), "n": "uint64"},
}


def kind_of(columns: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each column."""
    made = gpuhash.tables.named_columns.checked(columns)
    return {name: (column.dtype, column.shape) for name, column in made.items()}


def values_of(columns: dict[str, Any], count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random values of each column: [count, *shape]."""
    return {
        name: random_values(dtype, (count, *shape), seed * 100 + number)
        for number, (name, (dtype, shape)) in enumerate(kind_of(columns).items())
    }


def given_as(place: Framework, values: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: place.array(value) for name, value in values.items()}


class Model:
    """What a dict of dicts holds; rows begin with zeros."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.kinds = kind_of(columns)
        self.items: dict[Any, dict[str, np.ndarray]] = {}

    def zeros(self) -> dict[str, np.ndarray]:
        return {name: np.zeros(shape, numpy_dtype(dtype)) for name, (dtype, shape) in self.kinds.items()}

    def change(self, keys: np.ndarray, values: dict[str, np.ndarray], how: Callable[[Any, Any], Any]) -> np.ndarray:
        """how(old value, given one) is what a row that is there gets. The mask of new keys."""
        is_new = np.zeros(len(keys), bool)
        for i, key in enumerate(keys.tolist()):
            is_new[i] = key not in self.items
            row = self.items.setdefault(key, self.zeros())
            for name, value in values.items():
                row[name] = value[i] if is_new[i] else np.asarray(how(row[name], value[i])).astype(value.dtype)
        return is_new

    def read(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        rows = [self.items.get(key) or self.zeros() for key in keys.tolist()]
        return {
            name: np.array([row[name] for row in rows], numpy_dtype(dtype)).reshape(len(rows), *shape)
            for name, (dtype, shape) in self.kinds.items()
        }

    def check(self, table: HashTable, place: Framework) -> None:
        """Does the table hold the same?"""
        assert len(table) == len(self.items)
        known = np.array(list(self.items), table.key_dtype)
        if len(known):
            same_columns(table[place.array(known)], self.read(known))
        keys, values = table.items()
        keys = to_numpy(keys)
        assert sorted(keys.tolist()) == sorted(self.items)
        same_columns(values, self.read(keys))
        same_columns(table.values(), self.read(keys))


def same_columns(got: Any, expected: dict[str, np.ndarray]) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        same_bytes(got[name], value)


def keep(old: Any, _: Any) -> Any:
    return old


def assign(_: Any, new: Any) -> Any:
    return new


def make(place: Framework | str | list[str], columns: dict[str, Any], **options: Any) -> HashTable:
    device = place.table_device if isinstance(place, Framework) else place
    return HashTable("int64", columns, device=device, **options)


# Rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_columns_lie_side_by_side_in_rows(kind):
    """Each at a multiple of its element size, in rows of a multiple of every element size."""
    table = make("cpu", KINDS[kind])
    keys = np.arange(50)
    values = values_of(KINDS[kind], 50)
    table[keys] = values
    views = {name: table.column(name, like="numpy") for name in table.columns}
    total = sum(column.bytes for column in table.columns.values())
    (stride,) = {view.strides[0] for view in views.values()}
    widest = max(view.itemsize for view in views.values())
    unit = 16 if total >= 16 else widest
    assert stride == -(-total // unit) * unit
    first = min(view.ctypes.data for view in views.values())
    taken: set[int] = set()
    for name, view in views.items():
        assert view.shape == (50, *table.columns[name].shape)
        offset = view.ctypes.data - first
        assert offset % view.itemsize == 0
        own = set(range(offset, offset + table.columns[name].bytes))
        assert not taken & own
        assert max(own) < stride
        taken |= own
        same_bytes(view[table.rows(keys)].copy(), values[name])


def test_a_table_with_one_short_column_has_rows(device):
    table = make(device, {"x": "int32"})
    rows, is_new = table.find_or_insert(np.array([5, 7, 5]))
    assert to_numpy(rows)[0] == to_numpy(rows)[2]
    assert to_numpy(is_new).sum() == 2
    assert table[7] == {"x": 0}


def test_what_is_written_to_a_view_is_the_tables(native):
    table = make(native, USUAL)
    keys = native.array(np.arange(20))
    table[keys] = {"weight": 1.0, "step": 3}
    rows = table.rows(keys)
    for name in USUAL:
        view = table.column(name, like=None if native.device == "cpu" and native.name == "numpy" else native.name)
        view[rows] = 2
    native.synchronize()
    for value in table[keys].values():
        assert (to_numpy(value) == 2).all()
    table.insert_or_apply(keys, {"step": 1}, "add")
    assert (to_numpy(table.column("step", like=native.name))[to_numpy(rows)] == 3).all()


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_a_view_is_refused_to_arrays_that_never_change(name):
    if module(name) is None:
        pytest.skip(f"{name} is not installed")
    table = make("cpu", USUAL)
    table[1] = {"step": 1}
    with pytest.raises(ValueError, match="ask for PyTorch, CuPy or NumPy"):
        table.column("weight", like=name)


def test_views_of_large_rows_stay_when_the_table_grows(on_device):
    """Rows of 4 MiB and more grow where they lie; what the view shows is the table's."""
    columns = {"weight": ("float32", (2500,)), "step": "int32"}
    table = make(on_device, columns)
    table[on_device.array(np.arange(1000))] = {"weight": 1.0}
    view = table.column("weight")
    table[on_device.array(np.arange(1000, 9000))] = {"weight": 2.0}
    assert table.capacity >= 9000
    rows = table.rows(on_device.array(np.arange(1000)))
    view[rows] = 5
    on_device.synchronize()
    assert (to_numpy(table[on_device.array(np.arange(1000))]["weight"]) == 5).all()
    assert (to_numpy(table[on_device.array(np.arange(1000, 9000))]["weight"]) == 2).all()


def test_views_of_short_rows_keep_their_memory(device):
    table = make(device, {"x": "int32", "y": "float64"})
    table[np.arange(3)] = {"x": 7}
    view = table.column("x")
    table[np.arange(10_000)] = {"x": 8}
    assert (to_numpy(view) == 7).all()
    del table
    assert (to_numpy(view) == 7).all()


# Against the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True], ids=["any", "ordered"])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_in_turn(native, kind, deterministic):
    """Subsets of columns, growth in the middle of a batch, erased keys that come back."""
    columns = KINDS[kind]
    names = list(columns)
    table = make(native, columns, deterministic=deterministic)
    model = Model(columns)
    rng = np.random.default_rng(1)
    for turn, count in enumerate([1, 3, 40, 0, 700, 700, 33]):
        keys = rng.permutation(900)[:count] - 400
        values = values_of(columns, count, turn)
        some = {name: values[name] for name in names[turn % len(names) :]}
        asked = native.array(keys)
        if turn % 3 == 0:
            is_new = table.insert_or_assign(asked, given_as(native, some))
            expected = model.change(keys, some, assign)
        elif turn % 3 == 1:
            is_new = table.insert(asked, given_as(native, some))
            expected = model.change(keys, some, keep)
        else:
            table[asked] = given_as(native, values)
            is_new, expected = None, None
            model.change(keys, values, assign)
        if is_new is not None:
            same_bytes(is_new, expected)
        model.check(table, native)
        gone = keys[::3]
        table.erase(native.array(gone))
        for key in gone.tolist():
            model.items.pop(key)
        model.check(table, native)
        mixed = native.array(np.concatenate([keys, [5000, 6000]]))
        found, mask = table.find(mixed)
        same_columns(found, model.read(to_numpy(mixed)))
        assert to_numpy(mask).tolist() == [key in model.items for key in to_numpy(mixed).tolist()]
        rows, is_new = table.find_or_insert(
            native.array(gone), given_as(native, {name: v[::3] for name, v in some.items()})
        )
        model.change(gone, {name: v[::3] for name, v in some.items()}, keep)
        same_bytes(rows, to_numpy(table.rows(native.array(gone))))
        assert to_numpy(is_new).all()
    table.shrink_to_fit()
    model.check(table, native)
    model.check(table.copy(), native)


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_keys_of_all_kinds(native, key_type):
    dtype, shape = key_type
    table = HashTable(dtype, ODD, key_shape=shape, device=native.table_device)
    keys = random_keys(dtype, shape, 300)
    values = values_of(ODD, len(keys))
    assert to_numpy(table.insert_or_assign(native.array(keys), given_as(native, values))).all()
    same_columns(table[native.array(keys)], values)
    same_columns(table.copy()[native.array(keys[::2])], {name: value[::2] for name, value in values.items()})


@pytest.mark.parametrize("op", ["add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor"])
def test_an_operation_on_all_columns(native, op):
    columns = {"i": ("int32", (3,)), "b": "bool", "u": "uint8"}
    if not op.startswith("bit_"):
        columns |= {"h": ("float16", (5,)), "f": "float64", "w": ("bfloat16", (2,))}
    table, model = make(native, columns), Model(columns)
    for turn in range(2):
        keys = np.arange(50) + 25 * turn
        values = values_of(columns, 50, turn)
        is_new = table.insert_or_apply(native.array(keys), given_as(native, values), op)
        with np.errstate(over="ignore"):
            same_bytes(is_new, model.change(keys, values, UFUNCS[op]))
        model.check(table, native)


def test_an_operation_for_each_column(native):
    columns = {"sum": "int64", "last": "int32", "first": ("float32", (2,)), "largest": "float64", "own": "int16"}
    table = make(native, columns)
    keys = np.arange(30)
    ops = {"sum": "add", "last": "replace", "first": "keep", "largest": "max"}
    for turn in (1, 5, 3):
        values = {"sum": turn, "last": turn, "first": float(turn), "largest": float(turn)}
        is_new = table.insert_or_apply(native.array(keys), values, ops)
        assert to_numpy(is_new).tolist() == [turn == 1] * 30
    answer = {name: to_numpy(value) for name, value in table[native.array(keys)].items()}
    assert (answer["sum"] == 9).all()
    assert (answer["last"] == 3).all()
    assert (answer["first"] == 1).all()
    assert (answer["largest"] == 5).all()
    assert (answer["own"] == 0).all()


def test_every_duplicate_counts_in_an_operation(native):
    table = make(native, {"count": "int64", "sums": ("float32", (5,)), "half": "float16"})
    keys = np.random.default_rng(3).integers(0, 40, 20_000)
    added = table.insert_or_apply(
        native.array(keys), {"count": 1, "sums": native.array(np.ones((20_000, 5), np.float32))}, "add"
    )
    assert to_numpy(added).sum() == 40
    counts = np.bincount(keys)
    found = table[native.array(np.arange(40))]
    assert to_numpy(found["count"]).tolist() == counts.tolist()
    assert (to_numpy(found["sums"]) == counts[:, None]).all()
    assert not to_numpy(found["half"]).any()


@pytest.mark.parametrize("deterministic", [False, True], ids=["any", "ordered"])
@pytest.mark.parametrize("count", [2, 500, 60_000])
def test_of_duplicates_one_whole_row_stays(native, count, deterministic):
    """The values of all columns are those of one position: in order the last one, or where they are kept the first."""
    columns = {"weight": ("float32", (16,)), "half": ("uint16", (3,)), "at": "int64", "old": "int32"}
    in_order = deterministic or native.table_device == "cpu"
    rng = np.random.default_rng(count)
    keys = rng.integers(0, max(1, count // 20), count)
    table = make(native, columns, deterministic=deterministic)
    table[native.array(np.unique(keys)[::2])] = {"at": -1, "old": 9}

    def values(base: int) -> dict[str, Any]:
        at = np.arange(count) + base
        return given_as(
            native,
            {
                "weight": np.repeat(at.astype(np.float32)[:, None], 16, 1),
                "half": np.repeat((at % 60_000).astype(np.uint16)[:, None], 3, 1),
                "at": at,
            },
        )

    def check(positions: dict[int, int], base: int) -> None:
        asked = np.array(sorted(positions), np.int64)
        found = {name: to_numpy(value) for name, value in table[native.array(asked)].items()}
        at = found["at"] - base
        assert (keys[at] == asked).all()
        assert (found["weight"] == found["at"][:, None]).all()
        assert (found["half"] == found["at"][:, None] % 60_000).all()
        if in_order:
            assert at.tolist() == [positions[key] for key in asked.tolist()]

    old = set(np.unique(keys)[::2].tolist())
    first = {key: at for at, key in reversed(list(enumerate(keys.tolist())))}
    last = {key: at for at, key in enumerate(keys.tolist())}
    is_new = to_numpy(table.insert(native.array(keys), values(0)))
    assert sorted(keys[is_new].tolist()) == sorted(first.keys() - old)
    check({key: at for key, at in first.items() if key not in old}, 0)
    new_keys = keys[is_new]
    assert to_numpy(table[native.array(new_keys)]["at"]).tolist() == np.flatnonzero(is_new).tolist()
    for round_ in range(3):  # one insertion after the other: each has its own election
        base = 100_000 * (round_ + 1)
        if round_ == 1:
            table[native.array(keys)] = values(base)
        else:
            assert not to_numpy(table.insert_or_assign(native.array(keys), values(base))).any()
        check(last, base)
    stays = to_numpy(table[native.array(np.array(sorted(last), np.int64))]["old"])
    assert stays.tolist() == [9 if key in old else 0 for key in sorted(last)]


def test_batches_that_threads_share(native):
    """Large enough that on the host several threads insert, read and export."""
    count = 400_000
    columns = {"at": "int64", "pair": ("float32", (2,)), "kept": Column("int32", (), 5)}
    table = make(native, columns, deterministic=True)
    rng = np.random.default_rng(8)
    keys = rng.integers(0, 150_000, count)
    at = np.arange(count)
    pairs = np.repeat(at[:, None], 2, 1).astype(np.float32)
    asked = np.unique(keys)
    last = np.zeros(150_000, np.int64)
    last[keys] = at  # NumPy, too, assigns in order
    for _ in range(2):
        table[native.array(keys)] = given_as(native, {"at": at, "pair": pairs})
        found = {name: to_numpy(value) for name, value in table[native.array(asked)].items()}
        assert (found["at"] == last[asked]).all()
        assert (found["pair"] == last[asked][:, None]).all()
        assert (found["kept"] == 5).all()
    rows, is_new = table.find_or_insert(native.array(keys + 75_000), {"kept": 7})
    new = np.setdiff1d(keys + 75_000, asked)
    assert sorted((keys + 75_000)[to_numpy(is_new)].tolist()) == new.tolist()
    same_bytes(table.rows(native.array(keys + 75_000)), to_numpy(rows))
    found = table[native.array(new)]
    assert (to_numpy(found["kept"]) == 7).all()
    assert not to_numpy(found["at"]).any()
    table.insert_or_apply(native.array(keys), {"at": 1}, "add")
    counts = np.bincount(keys)[asked]
    assert (to_numpy(table[native.array(asked)]["at"]) == last[asked] + counts).all()
    exported, values = table.items()
    order = np.argsort(to_numpy(exported))
    everything = np.union1d(asked, new)
    assert (to_numpy(exported)[order] == everything).all()
    assert (to_numpy(values["kept"])[order] == np.where(np.isin(everything, new), 7, 5)).all()


def test_batches_of_all_shapes(native):
    table = make(native, ODD, default={"step": 7})
    keys = np.arange(12).reshape(3, 4)
    values = {name: value.reshape(3, 4, *value.shape[1:]) for name, value in values_of(ODD, 12).items()}
    table[native.array(keys)] = given_as(native, values)
    same_columns(table[native.array(keys)], values)
    found, mask = table.find(native.array(keys[:, :0]))
    assert to_numpy(mask).shape == (3, 0)
    assert to_numpy(found["half"]).shape == (3, 0, 5)
    found, mask = table.find(native.array(np.array(5)))
    assert to_numpy(mask).shape == ()
    same_bytes(found["bytes"], values["bytes"][1, 1])
    assert table[5]["step"] == values["step"][1, 1]
    assert isinstance(table[5]["step"], int)
    assert table[500]["step"] == 7
    assert table[2**70]["step"] == 7


def test_empty_batches(native):
    table = make(native, USUAL)
    none = native.array(np.empty(0, np.int64))
    values = {name: value[:0] for name, value in values_of(USUAL, 1).items()}
    table[none] = given_as(native, values)
    for answer in (
        table.insert(none, given_as(native, values)),
        table.insert_or_assign(none, {"step": 1}),
        table.insert_or_apply(none, given_as(native, values), "add"),
        *table.find_or_insert(none),
    ):
        assert to_numpy(answer).shape == (0,)
    same_columns(table[none], values)
    same_columns(table.values(), values)
    assert len(table) == 0


def test_answers_are_of_the_keys_framework(place):
    table = make(place, USUAL)
    keys = np.arange(100)
    values = values_of(USUAL, 100)
    is_new = table.insert_or_assign(place.array(keys), given_as(place, values))
    assert place.owns(is_new)
    found, mask = table.find(place.array(keys), columns=["step", "weight"])
    assert list(found) == ["step", "weight"]
    assert all(map(place.owns, (*found.values(), mask)))
    same_columns(found, {name: values[name] for name in ("step", "weight")})
    same_columns(table[place.array(keys)], values)
    table.insert_or_apply(place.array(keys), {"step": place.array(values["step"])}, "add")
    same_bytes(table[place.array(keys)]["step"], values["step"] + values["step"])
    popped = table.pop(place.array(keys[:10]))
    same_bytes(popped["weight"], values["weight"][:10])
    assert len(table) == 90


# What new rows get ---------------------------------------------------------------------------------------------------


def test_columns_that_are_not_given_get_their_initial_values(native):
    columns = {
        "a": Column("float32", (3,), 0.5),
        "b": Column("int16", (), initial=-4),
        "c": Column("complex64", (2,), Constant(1j)),
        "d": "bool",
        "e": Column("bool", initial=True),
        "f": Column("float16", (4,), Uniform(1, 2)),
    }
    table = make(native, columns)
    keys = native.array(np.arange(200))
    table[keys] = {"d": True}
    table[keys] = {"d": True, "b": 9}  # old rows: only what is given changes
    table.insert(native.array(np.arange(200, 300)), {"b": 9, "a": 1.5})
    table.insert_or_apply(native.array(np.arange(300, 400)), {"b": 9}, "multiply")
    table.find_or_insert(native.array(np.arange(400, 500)))
    found = {name: to_numpy(value) for name, value in table[native.array(np.arange(500))].items()}
    assert (found["a"] == np.repeat([0.5, 0.5, 1.5, 0.5, 0.5], 100)[:, None]).all()
    assert (found["b"] == np.repeat([9, 9, 9, 9, -4], 100)).all()
    assert (found["c"] == 1j).all()
    assert (found["d"] == np.repeat([True, True, False, False, False], 100)).all()
    assert found["e"].all()
    assert (found["f"] >= 1).all()
    assert (found["f"] <= 2).all()
    assert len(np.unique(found["f"])) > 100


DRAWN = [Normal(std=0.02), TruncatedNormal(seed=5), Uniform(-1, 1, seed=2**63)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("initializer", DRAWN, ids=lambda drawn: type(drawn).__name__)
def test_a_column_draws_what_a_table_of_its_own_would(native, initializer, dtype):
    """The first of those that draw with one seed; where it lies in the row, and what else is there, does not matter."""
    keys = random_keys("int64", (), 500)
    alone = HashTable("int64", dtype, value_shape=(6,), initializer=initializer, device=native.table_device)
    alone.find_or_insert(native.array(keys))
    drawing = Column(dtype, (6,), initializer)
    for columns in ({"x": drawing}, {"pad": ("int8", (3,)), "x": drawing, "wide": "complex128", "y": drawing}):
        table = make(native, columns)
        table.find_or_insert(native.array(keys[:100]))
        table[native.array(keys[100:])] = {"pad": 1} if "pad" in columns else {"x": 1.0}
        if "pad" not in columns:
            table.erase(native.array(keys[100:]))
            table.find_or_insert(native.array(keys))
        same_bytes(table[native.array(keys)]["x"], to_numpy(alone[native.array(keys)]))


def test_columns_of_one_seed_draw_apart(native):
    keys = native.array(np.arange(300))
    drawing = Column("float64", (8,), Normal(seed=7))
    table = make(native, {"a": drawing, "b": drawing, "c": drawing, "other": Column("float64", (8,), Normal(seed=8))})
    table.find_or_insert(keys)
    drawn = [to_numpy(value).ravel() for value in table[keys].values()]
    for i, first in enumerate(drawn):
        for second in drawn[:i]:
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    again = make("cpu", dict(table.columns))
    again.find_or_insert(np.arange(300))
    same_columns(again[np.arange(300)], {name: to_numpy(value) for name, value in table[keys].items()})


# Single keys, defaults, and all that a dict does ---------------------------------------------------------------------


def test_like_a_dict(device):
    table = make(device, {"x": "int32", "y": ("float32", (2,))})
    table[3] = {"x": 5, "y": [1, 2]}
    table[4] = {"x": 6}
    assert table[3]["x"] == 5
    assert table[3]["y"].tolist() == [1, 2]
    assert 3 in table
    assert sorted(table) == [3, 4]
    assert table.get(9) is None
    assert table.get(9, "nothing") == "nothing"
    assert table.get(4)["x"] == 6
    assert table.setdefault(9, {"x": 1})["x"] == 1
    assert table.setdefault(9, {"x": 2})["x"] == 1
    assert table.setdefault(10)["x"] == 0
    assert table.pop(9)["x"] == 1
    assert table.pop(9, None) is None
    with pytest.raises(KeyError):
        table.pop(9)
    with pytest.raises(KeyError):
        table[9]
    with pytest.raises(KeyError, match="1 of 3 keys are absent: 9"):
        table[[3, 9, 4]]
    with pytest.raises(KeyError):
        table[2**80]
    del table[10]
    table.update({7: {"x": 70, "y": 1.0}, 8: {"x": 80, "y": 2.0}})
    table.update([11, 12], {"x": [1, 2]})
    table.update(([13], {"x": 3}))
    table.update([(14, {"x": 4}), (15, {"x": 5})])
    assert {key: table[key]["x"] for key in table} == {3: 5, 4: 6, 7: 70, 8: 80, 11: 1, 12: 2, 13: 3, 14: 4, 15: 5}
    key, value = table.popitem()
    assert key not in table
    assert list(value) == ["x", "y"]
    union = table | {99: {"x": 1, "y": 0.0}}
    assert len(union) == len(table) + 1
    table |= union
    assert table == union
    assert table != make(device, {"x": "int32", "z": ("float32", (2,))})
    assert "x: int32, y: float32 (2,)" in repr(table)
    assert table.value_dtype is None
    assert dict(table.columns) == {"x": Column("int32"), "y": Column("float32", 2)}
    with pytest.raises(TypeError):
        table.columns["x"] = Column("int64")
    keys, values = table.items()
    as_dicts = {
        key: {"x": x, "y": y}
        for key, x, y in zip(*(to_numpy(array).tolist() for array in (keys, values["x"], values["y"])), strict=True)
    }
    assert table == as_dicts
    as_dicts[3] = {"x": 0, "y": [0, 0]}
    assert table != as_dicts
    table.clear()
    assert not table
    with pytest.raises(KeyError, match="empty"):
        table.popitem()


def test_defaults(native):
    table = make(native, {"x": "int32", "y": ("float32", (2,))}, default={"y": 2.5})
    table[native.array(np.array([1, 2]))] = {"x": 4, "y": 1.0}
    keys = native.array(np.array([1, 5, 2]))
    assert table.default["x"] == 0
    assert table.default["y"].tolist() == [2.5, 2.5]
    cases: list[tuple[Any, list[int], list[float]]] = [
        (None, [4, 0, 4], [1, 2.5, 1]),
        ({"x": 9}, [4, 9, 4], [1, 0, 1]),
        ({"y": native.array(np.array([7, 7], np.float32))}, [4, 0, 4], [1, 7, 1]),
        ({"x": native.array(np.array([1, 2, 3], np.int32)), "y": 1.0}, [4, 2, 4], [1, 1, 1]),
    ]
    for default, x, y in cases:
        for found in (table.find(keys, default)[0], table.get(keys, default)):
            assert to_numpy(found["x"]).tolist() == x
            assert to_numpy(found["y"]).tolist() == [[each, each] for each in y]
    assert table[5]["y"].tolist() == [2.5, 2.5]
    assert table.find(5)[0]["x"] == 0
    assert table.find(2**70, {"x": 3})[0]["x"] == 3
    assert table.copy()[5]["y"].tolist() == [2.5, 2.5]
    popped = table.pop(keys, {"x": 8})
    assert to_numpy(popped["x"]).tolist() == [4, 8, 4]
    assert len(table) == 0
    rows, _ = table.find_or_insert(keys)  # a default is for absent keys: rows begin with their initial values
    assert not to_numpy(table[keys]["y"]).any()
    assert len(set(to_numpy(rows).tolist())) == 3
    without = make(native, {"x": "int32"})
    for call in (lambda: without.get(keys), lambda: without.pop(keys, None)):
        with pytest.raises(ValueError, match="needs a default"):
            call()


def test_from_items(native):
    values = {"a": np.arange(5, dtype=np.float32).repeat(2).reshape(5, 2), "b": np.arange(5, dtype=np.int16)}
    keys = np.arange(5) + 3
    table = HashTable.from_items(native.array(keys), given_as(native, values))
    assert dict(table.columns) == {"a": Column("float32", (2,)), "b": Column("int16")}
    assert table.device == ("cpu" if native.device == "cpu" else GPU)
    same_columns(table[native.array(keys)], values)
    assert HashTable.from_items(table) == table
    assert HashTable.from_items(table).columns == table.columns
    pairs = HashTable.from_items({1: {"x": 1.5, "y": 2}, 3: {"x": 2.5, "y": 4}})
    assert dict(pairs.columns) == {"x": Column("float64"), "y": Column("int64")}
    assert pairs[3] == {"x": 2.5, "y": 4}
    vectors = HashTable.from_items(np.zeros((1, 2), np.int32), {"x": np.ones(1)})
    assert vectors.key_shape == (2,)
    given_dtypes = HashTable.from_items([1, 2], {"x": [1, 2]}, value_dtype={"x": "int8", "y": "bool"})
    assert given_dtypes[2] == {"x": 2, "y": False}
    with pytest.raises(ValueError, match="give one value for each key"):
        HashTable.from_items(np.arange(3), {"x": np.ones(4)})


# What comes in -------------------------------------------------------------------------------------------------------


def test_inputs_of_all_forms(native):
    columns = {"a": ("float32", (3,)), "b": "int16"}
    table = make(native, columns)
    keys = np.arange(6)
    wide = np.arange(60, dtype=np.float32).reshape(6, 10)
    cases: list[tuple[dict[str, Any], Any, Any]] = [
        ({"a": native.array(wide)[:, ::4], "b": 2}, wide[:, ::4], 2),
        ({"a": 1.0}, 1.0, 2),
        ({"a": native.array(np.array([1, 2, 3], np.float32)), "b": [1, 2, 3, 4, 5, 6]}, [1, 2, 3], [1, 2, 3, 4, 5, 6]),
        ({"a": [4.0, 5, 6]}, [4, 5, 6], [1, 2, 3, 4, 5, 6]),
        ({"b": native.array(np.array(7, np.int16))}, [4, 5, 6], 7),
    ]
    for values, a, b in cases:
        table[native.array(keys)] = values
        found = table[native.array(keys)]
        np.testing.assert_array_equal(to_numpy(found["a"]), np.broadcast_to(a, (6, 3)))
        np.testing.assert_array_equal(to_numpy(found["b"]), np.broadcast_to(b, 6))


def test_read_only_and_reversed_inputs():
    table = make("cpu", {"a": ("float32", (3,)), "b": "int16"})
    keys, values = np.arange(5), values_of({"a": ("float32", (3,)), "b": "int16"}, 5)
    for array in (keys, *values.values()):
        array.flags.writeable = False
    table[keys[::-1]] = {name: value[::-1] for name, value in values.items()}
    same_columns(table[keys], values)


def test_columns_of_the_rows_as_input(native):
    """A view of a column is strided, and written by the call that reads it."""
    table = make(native, {"a": ("float32", (3,)), "b": ("float32", (3,)), "at": "int64"})
    keys = native.array(np.arange(30))
    table[keys] = {"a": native.array(np.arange(90, dtype=np.float32).reshape(30, 3)), "at": keys}
    rows = to_numpy(table.rows(keys))
    like = native.name
    table[keys] = {"b": table.column("a", like=like), "a": table.column("b", like=like)}
    expected = np.arange(90, dtype=np.float32).reshape(30, 3)
    swapped = np.empty_like(expected)
    swapped[rows] = expected
    np.testing.assert_array_equal(to_numpy(table[keys]["b"]), swapped)
    assert not to_numpy(table[keys]["a"]).any()
    found = to_numpy(table[table.column("at", like=like)]["at"])  # as keys
    np.testing.assert_array_equal(found, to_numpy(table.column("at", like=like)))
    alone = make(native, {"x": "int64"})  # whose column is dense
    alone[keys] = {"x": native.array(np.arange(30)[::-1].copy())}
    view = alone.column("x", like=like)
    expected = dict(enumerate(to_numpy(view).tolist()))
    alone[view] = {"x": view}
    assert {key: alone[key]["x"] for key in range(30)} == {value: value for value in expected.values()}


def test_outputs_of_the_callers(native):
    table = make(native, ODD)
    keys = native.array(np.arange(40))
    values = values_of(ODD, 40)
    table[keys] = given_as(native, values)
    out = given_as(native, {name: np.zeros_like(value) for name, value in values.items()})
    found = native.array(np.zeros(40, bool))
    got, mask = table.find(keys, out=(out, found))
    assert mask is found
    assert all(got[name] is out[name] for name in ODD)
    same_columns(got, values)
    some = {name: out[name] for name in ("wide", "flag")}
    for each in some.values():
        each[...] = 0
    got, _ = table.find(keys, out=(some, found))
    assert list(got) == ["wide", "flag"]
    same_bytes(got["wide"], values["wide"])
    assert table.get(keys, {"step": 1}, out=out)["half"] is out["half"]
    assert table.setdefault(keys, out=out)["half"] is out["half"]
    assert table.pop(keys, out=out)["half"] is out["half"]
    same_columns(out, values)
    assert len(table) == 0


def test_overlapping_memory(native):
    """Outputs over the keys and the defaults are right; over each other, and over rows, they are refused."""
    table = make(native, {"x": "int64", "y": "int64"})
    keys = np.arange(50)
    table[native.array(keys)] = {"x": native.array(keys * 3), "y": native.array(keys * 5)}
    asked, other = native.array(keys), native.array(keys)
    table.get(asked, {"x": 1, "y": other}, out={"x": asked, "y": other})
    assert to_numpy(asked).tolist() == (keys * 3).tolist()
    assert to_numpy(other).tolist() == (keys * 5).tolist()
    with pytest.raises(ValueError, match="shares memory with the other output"):
        table.get(native.array(keys), {"x": 1}, out={"x": asked, "y": asked})
    view = table.column("x", like=native.name)
    with pytest.raises(ValueError, match="not C-contiguous"):
        table.get(native.array(keys), {"x": 1}, out={"x": view, "y": asked})
    alone = make(native, {"x": "int64"})
    alone[native.array(keys)] = {"x": 1}
    with pytest.raises(ValueError, match="memory of the table's own row_storage"):
        alone.get(native.array(keys), {"x": 1}, out={"x": alone.column("x", like=native.name)})


BAD_CALLS: dict[str, tuple[type[Exception], str, Callable[[HashTable, Any], Any]]] = {
    "no mapping": (TypeError, "named columns", lambda t, k: t.__setitem__(k, 5)),
    "none": (TypeError, "named columns", lambda t, k: t.insert(k, None)),
    "empty": (ValueError, "empty mapping", lambda t, k: t.insert(k, {})),
    "empty rows": (ValueError, "empty mapping", lambda t, k: t.find_or_insert(k, {})),
    "unknown": (ValueError, "no column 'z'; it has x, y", lambda t, k: t.__setitem__(k, {"x": 1, "z": 2})),
    "number": (ValueError, "no column 0", lambda t, k: t.__setitem__(k, {0: 1})),
    "dtype": (
        TypeError,
        "values of 'y' are float64",
        lambda t, k: t.__setitem__(k, {"x": 1, "y": np.zeros((len(k), 2))}),
    ),
    "shape": (
        ValueError,
        "values of 'y' have shape",
        lambda t, k: t.__setitem__(k, {"x": 1, "y": np.zeros((len(k), 3), "f4")}),
    ),
    "range": (OverflowError, "int32", lambda t, k: t.__setitem__(k, {"y": 0.0, "x": 2**40})),
    "kind": (TypeError, "int32", lambda t, k: t.insert(k, {"x": 1.5})),
    "unknown op": (ValueError, "is not known", lambda t, k: t.insert_or_apply(k, {"x": 1}, "divide")),
    "op of dtype": (TypeError, "bits of integers", lambda t, k: t.insert_or_apply(k, {"x": 1, "y": 1.0}, "bit_or")),
    "op missing": (
        ValueError,
        "operations for x",
        lambda t, k: t.insert_or_apply(k, {"x": 1, "y": 1.0}, {"x": "add"}),
    ),
    "op too many": (
        ValueError,
        "operations for x, y",
        lambda t, k: t.insert_or_apply(k, {"x": 1}, {"x": "add", "y": "add"}),
    ),
    "op of unknown": (ValueError, "no column", lambda t, k: t.insert_or_apply(k, {"x": 1}, {"z": "add"})),
    "columns twice": (ValueError, "comes twice", lambda t, k: t.find(k, columns=["x", "x"])),
    "columns unknown": (ValueError, "no column 'z'", lambda t, k: t.find(k, columns=["z"])),
    "columns text": (TypeError, "a list of names", lambda t, k: t.find(k, columns="x")),
    "columns none": (ValueError, "ask for one", lambda t, k: t.find(k, columns=[])),
    "default": (TypeError, "named columns", lambda t, k: t.find(k, 3)),
    "default unknown": (ValueError, "no column 'z'", lambda t, k: t.find(k, {"z": 3})),
    "default shape": (ValueError, "default of 'y'", lambda t, k: t.get(k, {"y": [1.0, 2, 3]})),
    "setdefault": (TypeError, "named columns", lambda t, k: t.setdefault(k, 3)),
    "pop": (TypeError, "named columns", lambda t, k: t.pop(k, 3)),
    "out": (TypeError, "named columns", lambda t, k: t.find(k, out=(np.zeros(len(k)), np.zeros(len(k), bool)))),
    "out lacks one": (
        ValueError,
        "were asked for",
        lambda t, k: t.find(k, out=({"x": np.zeros(len(k), "i4")}, np.zeros(len(k), bool)), columns=["x", "y"]),
    ),
    "out of get": (
        ValueError,
        "were asked for|expected",
        lambda t, k: t.get(k, {"x": 1}, out={"x": np.zeros(3, "i4")}),
    ),
    "update": (TypeError, "named columns", lambda t, k: t.update({1: 5})),
    "update unequal": (ValueError, "the same", lambda t, k: t.update({1: {"x": 1}, 2: {"y": 1.0}})),
    "update table": (TypeError, "cannot take the items", lambda t, k: t.update(HashTable("int64", "int32"))),
    "update columns": (TypeError, "cannot take", lambda t, k: t.update(HashTable("int64", {"x": "int32"}))),
    "column": (ValueError, "no column 'z'", lambda t, k: t.column("z")),
    "row_storage": (ValueError, "table.column", lambda t, k: t.row_storage),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_changes_nothing(device, name):
    error, match, call = BAD_CALLS[name]
    table = make(device, {"x": "int32", "y": ("float32", (2,))})
    keys = np.arange(10)
    table[keys] = {"x": np.arange(10, dtype=np.int32), "y": 0.5}
    before = table.copy()
    with pytest.raises(error, match=match):
        call(table, keys + 5)
    assert table == before
    assert len(table) == 10


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        ({}, ValueError, "no columns"),
        ({"": "int32"}, TypeError, "names are strings"),
        ({3: "int32"}, TypeError, "names are strings"),
        ({"a\ud800": "int32"}, ValueError, "surrogate"),
        ({"x": ("int32", (1,) * 64)}, ValueError, "64 axes"),
        ({"x": "text"}, TypeError, "not supported"),
        ({"x": ("int32", (2,), 5)}, TypeError, "a tuple of 3"),
        ({"x": ("int32", (0,))}, ValueError, "1 or more"),
        ({"x": ("int32", (-1,))}, ValueError, "not negative"),
        ({"x": ("int32", (1 << 27,))}, ValueError, "up to"),
        ({"x": ("int8", (1 << 27,)), "y": ("int8", (1 << 27,)), "z": "int8"}, ValueError, "bytes per key"),
    ],
    ids=str,
)
def test_columns_that_cannot_be(columns, error, match):
    with pytest.raises(error, match=match):
        HashTable("int64", columns)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (("int32", (), "text"), TypeError, "expected a number"),
        (("int32", (), 1.5), TypeError, "int32"),
        (("int8", (), 300), OverflowError, "int8"),
        (("int32", (), Normal()), TypeError, "numbers are drawn for"),
        (("float32", (2,), np.zeros(2)), TypeError, "one number for all elements"),
        (("float16", (2,), Uniform(0, 1e9)), ValueError, "end before"),
        (("float32", "x"), TypeError, "tuple of integers"),
    ],
    ids=str,
)
def test_a_column_that_cannot_be(arguments, error, match):
    with pytest.raises(error, match=match):
        Column(*arguments)


def test_options_of_single_values_are_refused():
    for options in ({"value_shape": 3}, {"initializer": Normal()}):
        with pytest.raises(ValueError, match=r"gpuhash\.Column"):
            HashTable("int64", USUAL, **options)
    with pytest.raises(TypeError, match="named columns"):
        HashTable("int64", USUAL, default=3)
    with pytest.raises(TypeError, match="single value"):
        HashTable("int64", "int32").find([1], columns=["x"])
    with pytest.raises(ValueError, match="without named columns"):
        HashTable("int64", "int32", value_shape=3).column("x")
    assert HashTable("int64", "int32").columns is None


def test_a_column_is_a_value():
    assert Column("float32", 3, 1) == Column(np.float32, (3,), Constant(1))
    assert hash(Column("int8")) == hash(Column("int8"))
    assert pickle.loads(pickle.dumps(Column("int8", (2,), 5))) == Column("int8", (2,), 5)
    with pytest.raises(AttributeError):
        Column("int8").dtype = "int16"
    assert Column.__module__ == "gpuhash"


def test_a_full_table_changes_nothing(native):
    table = make(native, USUAL, capacity=64, growth=False, max_load_factor=1.0)
    room = table.capacity
    table[native.array(np.arange(room))] = {"step": 1}
    before = table.copy()
    calls: list[Callable[[Any], Any]] = [
        lambda keys: table.__setitem__(keys, {"step": 2}),
        lambda keys: table.insert(keys, {"step": 2}),
        lambda keys: table.insert_or_apply(keys, {"step": 2}, "add"),
        lambda keys: table.find_or_insert(keys),
        lambda keys: table.setdefault(keys),
    ]
    for call in calls:
        with pytest.raises(TableFullError):
            call(native.array(np.arange(room - 3, room + 5)))
        assert table == before
    table[native.array(np.arange(room))] = {"step": 2}
    assert (to_numpy(table[native.array(np.arange(room))]["step"]) == 2).all()


# Copies, files, names ------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(device: str) -> HashTable:
    columns = {**ODD, "drawn": Column("float32", (4,), Normal(seed=3)), "b": Column("bfloat16", (), 1.5)}
    table = make(device, columns, default={"step": 5, "half": 0.5}, deterministic=True)
    keys = np.arange(1000)
    values = values_of(ODD, 1000)
    table[keys] = values
    table.erase(keys[::7])
    return table


def check_same(table: HashTable, other: HashTable) -> None:
    assert other == table
    assert other.columns == table.columns
    assert list(other.columns) == list(table.columns)
    assert other.deterministic == table.deterministic
    new = np.array([5000, 5001])
    assert np.array_equal(other.default["half"], table.default["half"])
    for each in (table, other):
        each.find_or_insert(new)
    assert other == table


def test_copies_and_files(filled, tmp_path):
    check_same(filled, filled.copy())
    check_same(filled, pickle.loads(pickle.dumps(filled)))
    path = tmp_path / "table.safetensors"
    filled.save(path)
    check_same(filled, HashTable.load(path, device=filled.device))
    filled.save(path)
    check_same(filled, gpuhash.load(path, device=filled.device))
    with pytest.raises(ValueError, match="holds a table"):
        HashSet.load(path)


def test_to_other_devices(filled):
    there = filled.to([filled.device.partition(",")[0]] * 2)
    check_same(filled, there)
    check_same(there, there.to(filled.device))
    if filled.device != "cpu":
        check_same(filled, filled.to("cpu"))


def test_the_file_is_in_the_format(filled, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "table.safetensors"
    columns = {"x": ("float32", (3,)), "y": "int64", "z": "int8"}
    table = make(filled.device, columns)
    values = values_of(columns, 20)
    table[np.arange(20)] = values
    table.save(path)
    tensors = safetensors.load_file(path)
    assert set(tensors) == {"keys", "values.x", "values.y", "values.z"}
    order = tensors["keys"]
    for name, value in values.items():
        same_bytes(tensors[f"values.{name}"], value[order])


def test_many_columns_of_any_names(device, tmp_path):
    names = ["keys", "values", "values.x", "Größe", "a b", '"', "\\", "\n", "__metadata__", *map(str, range(200))]
    dtypes = ["int8", "float64", "float16", "int32", "complex128"]
    columns = {name: (dtypes[i % 5], (i % 3 + 1,)) for i, name in enumerate(names)}
    table = make(device, columns)
    values = values_of(columns, 7)
    table[np.arange(7)] = values
    path = tmp_path / "table"
    table.save(path)
    for each in (table, HashTable.load(path, device=device), pickle.loads(pickle.dumps(table))):
        same_columns(each[np.arange(7)], values)
        found, _ = each.find(np.arange(7), columns=names[::-7])
        same_columns(found, {name: values[name] for name in names[::-7]})


def test_files_of_bools_of_any_byte(native, tmp_path):
    """All bytes but 0 are True: of values, defaults and initial values, also in files that have them."""
    said = np.array([0, 1, 2, 255], np.uint8).view(bool)
    columns = {"flag": "bool", "flags": ("bool", (4,)), "made": Column("bool", (2,), np.array([2], "u1").view(bool)[0])}
    default = {"flag": said[2:3].reshape(()), "flags": said}
    table = make(native.table_device, columns, default=default)
    keys = np.arange(4)
    table[native.array(keys)] = {"flag": native.array(said), "flags": native.array(np.stack([said] * 4))}
    path = tmp_path / "table"
    table.save(path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    told = json.loads(header["__metadata__"]["default"])
    assert told == {"flag": "01", "flags": "00010101", "made": "0000"}
    header["__metadata__"]["default"] = json.dumps({"flag": "02", "flags": "00010203", "made": "0000"})
    header["__metadata__"]["columns"] = header["__metadata__"]["columns"].replace('\\"01\\"', '\\"02\\"')
    text = json.dumps(header).encode()
    odd = tmp_path / "odd"
    body = bytearray(data[8 + length :])
    begin, end = header["values.flag"]["data_offsets"]
    body[begin:end] = bytes(2 * truth for truth in body[begin:end])
    odd.write_bytes(len(text).to_bytes(8, "little") + text + body)
    truth = said.view(np.uint8) != 0
    expected = {"flag": truth, "flags": np.stack([truth] * 4), "made": np.ones((4, 2), bool)}
    for back in (
        HashTable.load(path, device=native.table_device),
        HashTable.load(odd, device=native.table_device),
        pickle.loads(pickle.dumps(table)),
    ):
        assert back == table
        same_columns(back[keys], expected)
        assert back.default["flag"] is True
        same_bytes(back.default["flags"], truth)


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no json": lambda meta: meta.update(columns="["),
    "no list": lambda meta: meta.update(columns='{"x": 1}'),
    "empty": lambda meta: meta.update(columns="[]"),
    "no name": lambda meta: meta.update(columns='[{"dtype": "int32", "shape": []}]'),
    "name": lambda meta: meta.update(columns='[{"name": 5, "dtype": "int32", "shape": []}]'),
    "unhashable": lambda meta: meta.update(columns='[{"name": [], "dtype": "int32", "shape": []}]'),
    "dtype": lambda meta: meta.update(columns='[{"name": "x", "dtype": "int33", "shape": []}]'),
    "shape": lambda meta: meta.update(columns='[{"name": "x", "dtype": "int32", "shape": [0]}]'),
    "huge": lambda meta: meta.update(columns='[{"name": "x", "dtype": "int32", "shape": [99999999999]}]'),
    "another": lambda meta: meta.update(columns='[{"name": "y", "dtype": "int32", "shape": []}]'),
    "wider": lambda meta: meta.update(columns='[{"name": "x", "dtype": "int64", "shape": []}]'),
    "twice": lambda meta: meta.update(columns=json.dumps(2 * [{"name": "x", "dtype": "int32", "shape": []}])),
    "surrogate": lambda meta: meta.update(columns='[{"name": "\\ud800", "dtype": "int32", "shape": []}]'),
    "axes": lambda meta: meta.update(columns=json.dumps([{"name": "x", "dtype": "int32", "shape": [1] * 64}])),
    "initial": lambda meta: meta.update(columns='[{"name": "x", "dtype": "int32", "shape": [], "initial": "no"}]'),
    "no default": lambda meta: meta.pop("default"),
    "default": lambda meta: meta.update(default="00"),
    "default of none": lambda meta: meta.update(default="{}"),
    "default too long": lambda meta: meta.update(default='{"x": "0000000000"}'),
    "default no text": lambda meta: meta.update(default='{"x": 3}'),
    "no columns": lambda meta: meta.pop("columns"),
    "a set": lambda meta: meta.update(kind="set"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(tmp_path, damage):
    table = make("cpu", {"x": "int32"})
    table[[1, 2]] = {"x": 3}
    path = tmp_path / "table"
    table.save(path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    DAMAGES[damage](header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(ValueError, match=r"\S"):
        gpuhash.load(path)


def test_a_name_finds_the_columns(device):
    table = make(device, USUAL, name="named columns")
    try:
        table[5] = {"step": 3}
        found = gpuhash.open("named columns")
        assert isinstance(found, HashTable)
        assert found.columns == table.columns
        assert found[5]["step"] == 3
    finally:
        table.close()


# Several shards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [False, True], ids=["any", "ordered"])
def test_shards_are_one_table(on_device, deterministic):
    place = on_device
    columns = {"a": ("float32", (5,)), "b": Column("int8", (3,), 4), "n": "int64", "d": Column("float64", (), Normal())}
    options = {"deterministic": deterministic}
    table = make([place.table_device] * 3, columns, **options)
    alone = make(place.table_device, columns, **options)
    rng = np.random.default_rng(5)
    for turn in range(4):
        keys = rng.permutation(6000)[:2000]
        asked = place.array(keys)
        values = {"a": random_values("float32", (2000, 5), turn), "n": np.arange(2000) + turn}
        answers = []
        for each in (table, alone):
            given_values = given_as(place, values)
            mask = each.insert_or_assign(asked, given_values)
            rows, is_new = each.find_or_insert(place.array(keys + 100), {"b": 7})
            assert to_numpy(each.rows(place.array(keys + 100))).tolist() == to_numpy(rows).tolist()
            added = each.insert_or_apply(asked, {"n": 1, "b": 1}, {"n": "add", "b": "replace"})
            gone = each.erase(place.array(keys[::5]))
            found, there = each.find(place.array(np.arange(8000)), {"n": -1, "a": 0.25})
            answers.append([mask, is_new, added, gone, there, *found.values()])
        for one, other in zip(*answers, strict=True):
            same_bytes(one, to_numpy(other))
    assert table == alone
    assert table.copy() == alone
    assert sorted(to_numpy(table.keys()).tolist()) == sorted(to_numpy(alone.keys()).tolist())
    with pytest.raises(ValueError, match="shards"):
        table.column("a")
    assert sum(len(shard) for shard in table.shards) == len(table)
    assert table.shards[1].column("a").shape[1:] == (5,)


def test_lists_of_batches(on_device):
    place = on_device
    table = make([place.table_device] * 2, {"x": "int64", "y": ("float32", (2,))}, default={"x": -1})
    batches = [place.array(np.arange(500)), place.array(np.arange(500, 800)), place.array(np.empty(0, np.int64))]
    values = [{"x": batch * 2} for batch in batches]
    inserted = table.insert(batches, values)
    assert [to_numpy(mask).sum() for mask in inserted] == [500, 300, 0]
    table[batches] = {"y": 1.5}
    table.insert_or_apply(batches, {"x": 1}, "add")
    found, masks = table.find(batches)
    for batch, answer, mask in zip(batches, found, masks, strict=True):
        assert to_numpy(answer["x"]).tolist() == (to_numpy(batch) * 2 + 1).tolist()
        assert (to_numpy(answer["y"]) == 1.5).all()
        assert to_numpy(mask).all()
    rows, is_new = table.find_or_insert([batch + 100 for batch in batches])
    assert [to_numpy(each).sum() for each in is_new] == [0, 100, 0]
    assert to_numpy(rows[0]).tolist() == to_numpy(table.rows(batches[0] + 100)).tolist()
    got = table.get([batches[0] + 5000])
    assert (to_numpy(got[0]["x"]) == -1).all()
    for bad in (
        lambda: table.insert(batches, values[:2]),
        lambda: table.insert(batches, [{"x": 1}, {"y": 1.0}, {"x": 1}]),
        lambda: table.insert_or_apply(batches, [{"x": 1}, {"y": 1.0}, {"x": 1}], "add"),
        lambda: table.insert_or_apply(batches, [{"x": 1}, {"x": 1, "y": 1.0}, {"x": 1}], {"x": "add"}),
    ):
        with pytest.raises(ValueError, match="batches"):
            bad()
    assert len(table) == 900


def test_a_full_shard_changes_nothing(on_device):
    table = make([on_device.table_device] * 3, {"x": "int64"}, capacity=96, growth=False)
    table[on_device.array(np.arange(30))] = {"x": 1}
    before = table.copy()
    with pytest.raises(TableFullError):
        table[on_device.array(np.arange(1000))] = {"x": 2}
    assert table == before


# A model -------------------------------------------------------------------------------------------------------------

SMALL = st.integers(-3, 12)
NUMBERS = st.integers(-100, 100)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["assign", "insert", "add", "erase", "find_or_insert", "pop", "shrink"]),
        st.lists(st.tuples(SMALL, NUMBERS, NUMBERS), max_size=12),
        st.sampled_from([("x", "y"), ("x",), ("y",)]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("shards", [1, 2])
@given(steps=STEPS)
def test_against_a_dict(shards, steps):
    """On the host, where a batch has the effect of a loop over it, duplicates and all."""
    table = make(["cpu"] * shards if shards > 1 else "cpu", {"x": "int16", "y": Column("float32", (2,), 3)})
    model: dict[int, dict[str, int]] = {}
    for action, batch, names in steps:
        keys = np.array([key for key, _, _ in batch], np.int64)
        columns = {"x": np.array([x for _, x, _ in batch], np.int16), "y": np.array([y for *_, y in batch], np.float32)}
        values: dict[str, Any] = {name: columns[name] for name in names}
        if "y" in values:
            values["y"] = np.repeat(values["y"][:, None], 2, 1)
        if action == "assign":
            table[keys] = values
        elif action == "insert":
            table.insert(keys, values)
        elif action == "add":
            table.insert_or_apply(keys, values, "add")
        elif action == "find_or_insert":
            table.find_or_insert(keys, values)
        elif action == "erase":
            table.erase(keys)
        elif action == "pop":
            popped = table.pop(keys, {"x": -7, "y": -7.0})
            assert popped["x"].tolist() == [model.get(key, {"x": -7})["x"] for key in keys.tolist()]
        else:
            table.shrink_to_fit()
        for i, key in enumerate(keys.tolist() if action != "shrink" else []):
            if action in ("erase", "pop"):
                model.pop(key, None)
                continue
            is_new = key not in model
            row = model.setdefault(key, {"x": 0, "y": 3})
            for name in names:
                number = int(columns[name][i])
                if is_new or action == "assign":
                    row[name] = number
                elif action == "add":
                    row[name] += number
        assert len(table) == len(model)
        found = table.items()
        got = {
            key: {"x": x, "y": int(y[0])}
            for key, x, y in zip(found[0].tolist(), found[1]["x"].tolist(), found[1]["y"], strict=True)
        }
        assert got == model


# Elsewhere -----------------------------------------------------------------------------------------------------------


def test_the_core_checks_the_columns_of_requests():
    """Whatever comes by another way than the face."""
    array, values = gpuhash._core.borrow(np.arange(3)), gpuhash._core.borrow(np.zeros(3, np.int64))
    rows, mask = gpuhash._core.borrow(np.zeros(3, np.int64)), gpuhash._core.borrow(np.zeros(3, bool))
    named, single = make("cpu", {"x": "int64"})._core, HashTable("int64", "int64")._core
    a_set = HashSet("int64")._core

    def change(core, writes, reads=(), numbers=None):
        core.change([(core, array, writes, reads, mask, numbers, 0)])

    write, read = (0, values, False, "keep"), (0, values, None)
    with pytest.raises(TypeError, match="no rows"):
        change(single, [])
    with pytest.raises(TypeError, match="no rows"):
        change(single, [write], numbers=rows)
    with pytest.raises(ValueError, match="given twice"):
        change(single, [write, write])
    with pytest.raises(ValueError, match="given twice"):
        change(named, [write, (0, values, False, "add")])
    with pytest.raises(ValueError, match="given twice"):
        change(named, [write], [read, read])
    with pytest.raises(ValueError, match="column 1"):
        change(named, [(1, values, False, "keep")])
    with pytest.raises(ValueError, match="column 1"):
        single.erase([(single, array, [(1, values, None)], None, 0)])
    with pytest.raises(ValueError, match="given twice"):
        single.erase([(single, array, [read, read], None, 0)])
    with pytest.raises(ValueError, match="no values"):
        a_set.look_up([(a_set, array, [read], None, None, 0)])
    with pytest.raises(ValueError, match="another table"):
        named.look_up([(single, array, [], mask, None, 0)])
    with pytest.raises(ValueError, match="expected one of keep"):
        change(named, [(0, values, False, "divide")])
    assert named.size(0) == single.size(0) == a_set.size(0) == 0


def test_rows_that_are_gone_give_the_default(on_device):
    """Numbers of rows from before another thread's clear() and shrink_to_fit()."""
    memory = counting_memory(on_device.table_device)
    columns = {"w": Column("float32", (4,)), "n": "int64"}
    table = HashTable("int64", columns, device=on_device.table_device, memory=memory)
    keys = on_device.array(np.arange(3000))
    table[keys] = {"w": 1.0, "n": 2}
    rows = to_numpy(table.rows(keys))
    table.clear()
    table.shrink_to_fit()
    table[on_device.array(np.arange(4))] = {"w": 3.0, "n": 4}
    few = table._core.capacity
    assert few < 3000
    numbers = on_device.array(np.concatenate([rows[rows >= few], [few, 1 << 40, -1, np.iinfo(np.int64).max, 0]]))
    w, n = on_device.array(np.full((len(numbers), 4), 5, np.float32)), on_device.array(np.full(len(numbers), 5))
    default = on_device.array(np.full(4, 7, np.float32))
    borrowed = [gpuhash._core.borrow(array) for array in (numbers, w, default, n)]
    table._core.read_rows(borrowed[0], [(0, borrowed[1], borrowed[2]), (1, borrowed[3], None)], 0)
    w, n = to_numpy(w), to_numpy(n)
    assert (w[:-1] == 7).all()
    assert (n[:-1] == 0).all()
    assert (w[-1] == 3).all()
    assert n[-1] == 4


def test_under_torch_compile():
    """Calls do what they do without; tests/test_torch_compile.py sees to the graph."""
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed")
    table = make("cpu", {"x": "float32", "n": "int64"})

    def step(keys: Any, x: Any) -> Any:
        table[keys] = {"x": x * 2}
        table.insert_or_apply(keys, {"n": 1}, "add")
        return table[keys]["x"] + 1, table.find(keys, columns=["n"])[0]["n"]

    compiled = torch.compile(step, backend="eager")
    keys = torch.arange(10)
    x, n = compiled(keys, torch.ones(10))
    assert x.tolist() == [3.0] * 10
    assert n.tolist() == [1] * 10


def test_replays_of_a_captured_graph(torch_cuda):
    """Insertions and lookups of columns in a CUDA graph, replayed with other keys."""
    from support.frameworks import capture

    columns = {"w": ("float32", (8,)), "n": "int64", "d": Column("float32", (3,), Normal())}
    table = make(GPU, columns, capacity=20_000)
    table.reserve(10_000)
    keys = torch_cuda.arange(1000, device=GPU)
    values = torch_cuda.ones(1000, 8, device=GPU)

    def call() -> Any:
        table[keys] = {"w": values}
        table.insert_or_apply(keys, {"n": one}, "add")
        return table.find(keys)[0]

    one = torch_cuda.ones((), dtype=torch_cuda.int64, device=GPU)
    call()
    len(table)
    graph = torch_cuda.cuda.CUDAGraph()
    with capture(graph):
        found = call()
    for turn in range(3):
        keys += 300
        values += 1
        graph.replay()
        torch_cuda.cuda.synchronize(GPU)
        assert (found["w"] == turn + 2).all()
    expected = make("cpu", columns)
    expected.find_or_insert(np.arange(1900))
    np.testing.assert_array_equal(
        to_numpy(table[torch_cuda.arange(1900, device=GPU)]["d"]), expected[np.arange(1900)]["d"]
    )
    assert len(table) == 1900


def test_host_arrays_and_a_table_on_a_gpu(cuda):
    if not sees_gpu("torch"):
        pytest.skip("torch sees no GPU")
    table = make(GPU, ODD)
    values = values_of(ODD, 100)
    table[np.arange(100)] = values
    same_columns(table[np.arange(100)], values)
    gpu = need_place(nearest_framework(GPU))
    same_columns(table[gpu.array(np.arange(100))], values)
