"""Several threads on one table: calls that look a key up and then change it, with other calls in between."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.samples import as_dict, items_of, random_keys, random_values, same_bytes

from gpuhash import HashSet, HashTable
from gpuhash.initializers import Normal


class Between:
    """A core table after whose calls of one method something else happens, as if another thread had been faster."""

    def __init__(self, core: Any, method: str, actions: list[Callable[[], object]]) -> None:
        self._core, self._method, self._actions = core, method, actions

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._core, name)
        if name != self._method:
            return method

        def call(*arguments: Any) -> Any:
            result = method(*arguments)
            if self._actions:
                self._actions.pop(0)()
            return result

        return call


def put_between(table: Any, method: str, *actions: Callable[[Any], object]) -> Any:
    """After each of the next calls of a core method, each action gets the table as another thread has it."""
    other = type(table)._open(table._core, None)
    table._core = Between(table._core, method, [lambda action=action: action(other) for action in actions])
    return other


KINDS: dict[str, tuple[dict[str, Any], str, str]] = {  # options, and what inserts and what looks up
    "scalar": ({"value_dtype": "int64"}, "insert", "find"),
    "bfloat16": ({"value_dtype": "bfloat16"}, "insert", "find"),
    "rows": ({"value_dtype": "float32", "value_shape": (3,)}, "insert", "find"),
    "vectors": ({"value_dtype": "int16", "key_shape": (2,)}, "insert", "find"),
    "columns": ({"value_dtype": {"v": ("float32", (2,)), "w": "int8"}}, "change_columns", "find_columns"),
}
COUNT = 100


class Sample:
    """Keys, and values as a table of the kind gives them."""

    def __init__(self, kind: str, device: str) -> None:
        options, self.insertion, self.lookup = KINDS[kind]
        self.table = HashTable("int64", device=device, **options)
        self.keys = random_keys("int64", self.table.key_shape, COUNT)
        self.kind, self.shape = kind, self.table.value_shape
        self.first, self.second = self.values(0), self.values(1)
        self.table[self.keys] = self.first

    def values(self, seed: int, count: int = COUNT) -> Any:
        if self.kind == "columns":
            return {
                "v": random_values("float32", (count, 2), seed),
                "w": random_values("int8", (count,), seed),
            }
        return random_values(self.table.value_dtype, (count, *self.shape), seed)

    def some(self, values: Any, chosen: Any) -> Any:
        return {name: part[chosen] for name, part in values.items()} if self.kind == "columns" else values[chosen]

    def mixed(self, chosen: np.ndarray, values: Any, others: Any) -> Any:
        """The values where a mask is true, else the others."""
        if self.kind == "columns":
            return {name: mixed(chosen, values[name], others[name]) for name in values}
        return mixed(chosen, values, others)

    def same(self, got: Any, expected: Any) -> None:
        if self.kind == "columns":
            assert got.keys() == expected.keys()
            for name in got:
                same_bytes(got[name], expected[name])
        else:
            same_bytes(got, expected)

    def key(self, i: int) -> Any:
        return tuple(self.keys[i].tolist()) if self.keys.ndim > 1 else self.keys[i].item()


def mixed(chosen: np.ndarray, values: np.ndarray, others: np.ndarray) -> np.ndarray:
    result = others.copy()
    result[chosen] = values[chosen]
    return result


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("repeats", [1, 3])
def test_setdefault_inserts_again_what_others_erase(device, kind, repeats):
    """Half of the keys are erased after each of its insertions; those get the default, and are there."""
    sample = Sample(kind, device)
    gone = np.arange(COUNT) % 2 == 0
    other = put_between(sample.table, sample.insertion, *[lambda table: table.erase(sample.keys[gone])] * repeats)
    expected = sample.mixed(gone, sample.second, sample.first)
    sample.same(sample.table.setdefault(sample.keys, sample.second), expected)
    sample.same(other[sample.keys], expected)
    assert len(other) == COUNT


@every_kind
def test_setdefault_of_one_key(device, kind):
    sample = Sample(kind, device)
    key, default = sample.key(5), sample.some(sample.second, 5)
    other = put_between(sample.table, sample.insertion, *[lambda table: table.erase(key)] * 2)
    got = sample.table.setdefault(key, default)
    parts = zip(got.values(), other[key].values(), strict=True) if kind == "columns" else [(got, other[key])]
    assert all(np.array_equal(part, stored) for part, stored in parts)
    sample.same(other[sample.keys[5:6]], sample.some(sample.second, slice(5, 6)))


def test_setdefault_draws_rows_again(device):
    options = {"value_shape": (4,), "device": device, "initializer": Normal(seed=3)}
    keys = random_keys("int64", (), COUNT)
    table, twin = (HashTable("int64", "float32", **options) for _ in range(2))
    twin.find_or_insert(keys)
    table[keys[:10]] = 5
    put_between(table, "find_or_insert", lambda table: table.erase(keys[5:50]))
    expected = to_numpy(twin[keys])
    expected[:5] = 5
    same_bytes(table.setdefault(keys), expected)


def test_setdefault_writes_into_out(device):
    sample = Sample("rows", device)
    put_between(sample.table, "insert", lambda table: table.clear())
    out = np.zeros((COUNT, 3), np.float32)
    assert sample.table.setdefault(sample.keys, 7, out=out) is out
    same_bytes(out, np.full((COUNT, 3), 7, np.float32))


@every_kind
@pytest.mark.parametrize("one_default", [False, True], ids=["defaults", "one-default"])
def test_pop_gives_the_default_for_what_others_erase(device, kind, one_default):
    """Duplicates of a key all fare like it."""
    sample = Sample(kind, device)
    order = np.random.default_rng(0).integers(0, COUNT, 3 * COUNT)
    lost = order % 3 == 0
    defaults = sample.values(2, 3 * COUNT)
    if one_default:
        default = sample.some(defaults, 7)
        defaults = sample.some(defaults, np.full(3 * COUNT, 7))
    else:
        default = defaults
    put_between(sample.table, sample.lookup, lambda table: table.erase(sample.keys[::3]))
    got = sample.table.pop(sample.keys[order], default)
    sample.same(got, sample.mixed(~lost, sample.some(sample.first, order), defaults))
    assert not sample.table.contains(sample.keys[order]).any()


@every_kind
def test_pop_of_one_key(device, kind):
    sample = Sample(kind, device)
    key = sample.key(8)
    for default in ("gone", None):
        put_between(sample.table, sample.lookup, lambda table: table.erase(key))
        assert sample.table.pop(key, default) is default
        sample.table[sample.keys] = sample.first
    other = put_between(sample.table, sample.lookup, lambda table: table.erase(key))
    with pytest.raises(KeyError, match=str(key).replace("(", r"\(").replace(")", r"\)")):
        sample.table.pop(key)
    assert len(other) == COUNT - 1


@every_kind
def test_pop_inserts_the_others_again(device, kind):
    """Without a default nothing is erased where a key is absent, be it since a moment ago."""
    sample = Sample(kind, device)
    other = put_between(sample.table, sample.lookup, lambda table: table.erase(sample.keys[:2]))
    with pytest.raises(KeyError, match=r"2 of 200 keys are absent.*another thread"):
        sample.table.pop(np.concatenate([sample.keys, sample.keys[2:], sample.keys[2:4]]))
    assert len(other) == COUNT - 2
    sample.same(other[sample.keys[2:]], sample.some(sample.first, slice(2, None)))


def test_pop_of_some_columns_inserts_all_of_them_again(device):
    sample = Sample("columns", device)
    other = put_between(sample.table, "find_columns", lambda table: table.erase(sample.keys[:2]))
    with pytest.raises(KeyError, match="2 of 100"):
        sample.table.pop(sample.keys, out={"w": np.zeros(COUNT, np.int8)})
    assert len(other) == COUNT - 2
    sample.same(other[sample.keys[2:]], sample.some(sample.first, slice(2, None)))


def test_pop_into_out(device):
    sample = Sample("scalar", device)
    put_between(sample.table, "find", lambda table: table.erase(sample.keys[::2]))
    out = np.zeros(COUNT, np.int64)
    assert sample.table.pop(sample.keys, -1, out=out) is out
    same_bytes(out, np.where(np.arange(COUNT) % 2 == 0, -1, sample.first))
    one = np.zeros((), np.int64)
    sample.table[3] = 4
    put_between(sample.table, "find", lambda table: table.erase(3))
    assert sample.table.pop(3, -1, out=one) is one
    assert one == -1


def test_popitem_takes_another_item(device):
    sample = Sample("scalar", device)
    expected = items_of(sample.table)
    stolen: dict[bytes, bytes] = {}

    def steal(table: HashTable) -> None:
        keys = to_numpy(table.keys())[:3]
        stolen.update(as_dict(keys, table[keys]))
        table.erase(keys)

    put_between(sample.table, "export_items", steal)
    key, value = sample.table.popitem()
    popped = as_dict(np.array([key]), np.array([value]))
    left = items_of(sample.table)
    assert len(left) == COUNT - 4
    assert left | stolen | popped == expected


def test_popitem_of_a_table_that_others_empty(device):
    table = HashTable("int64", "int64", device=device)
    table[[1, 2, 3]] = 5
    put_between(table, "export_items", lambda table: table.clear())
    with pytest.raises(KeyError, match="empty"):
        table.popitem()
    table[[1, 2, 3]] = 5

    def replace(table: HashTable) -> None:
        table.clear()
        table[9] = 7

    put_between(table, "export_items", replace)
    assert table.popitem() == (9, 7)
    assert not table


def test_del_of_a_key_that_others_erase(device):
    sample = Sample("rows", device)
    key = sample.key(0)
    put_between(sample.table, "find", lambda table: table.erase(key))
    with pytest.raises(KeyError, match=str(key)):
        del sample.table[key]
    other = put_between(sample.table, "find", lambda table: table.erase(sample.keys[1]))
    with pytest.raises(KeyError, match=r"1 of 5 keys are absent: .*the others"):
        del sample.table[sample.keys[[1, 2, 3, 2, 3]]]
    assert len(other) == COUNT - 4
    del sample.table[sample.keys[[4, 5, 5, 4]]]
    assert len(other) == COUNT - 6


def test_sets(device):
    made = HashSet.from_keys(np.arange(10), device=device)
    put_between(made, "find", lambda other: other.discard(3))
    with pytest.raises(KeyError, match="3"):
        made.remove(3)
    other = put_between(made, "find", lambda other: other.discard([4, 5]))
    with pytest.raises(KeyError, match="2 of 4 keys are absent: 4, 5: another thread"):
        made.remove([4, 5, 6, 6])
    assert set(other) == {0, 1, 2, 7, 8, 9}
    taken: list[int] = []

    def take(other: HashSet) -> None:
        taken.extend(to_numpy(other.keys())[:2].tolist())
        other.discard(taken)

    put_between(made, "export_items", take)
    key = made.pop()
    assert key not in taken
    assert set(made) | {key, *taken} == {0, 1, 2, 7, 8, 9}
    put_between(made, "export_items", lambda other: other.clear())
    with pytest.raises(KeyError, match="empty"):
        made.pop()


def in_threads(count: int, work: Callable[[], Any]) -> list[Any]:
    """What it gives in each of several threads, which begin at one time."""
    start = threading.Barrier(count)

    def begin(_: int) -> Any:
        start.wait()
        return work()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def until_empty(pop: Callable[[], Any]) -> list[Any]:
    popped = []
    while True:
        try:
            popped.append(pop())
        except KeyError:
            return popped


@pytest.mark.parametrize("kind", ["single", "sharded"])
def test_each_item_goes_to_one_thread(device, kind):
    where = [device] * 3 if kind == "sharded" else device
    model = {key: 2 * key for key in range(300)}
    table = HashTable.from_items(model, device=where)
    items = [item for part in in_threads(3, lambda: until_empty(table.popitem)) for item in part]
    assert sorted(items) == sorted(model.items())
    made = HashSet.from_keys(list(model), device=where)
    keys = [key for part in in_threads(3, lambda: until_empty(made.pop)) for key in part]
    assert sorted(keys) == sorted(model)


def test_each_value_is_popped_once(device):
    table = HashTable("int64", "int64", device=device)
    keys = np.arange(50)
    for _ in range(30):
        table[keys] = keys + 1
        one, other = in_threads(2, lambda: table.pop(keys, 0))
        same_bytes(one + other, keys + 1)
        table[1] = 5
        assert sorted(in_threads(2, lambda: table.pop(1, 0))) == [0, 5]


def through_a_file(table: HashTable, path: Path) -> HashTable:
    table.save(path)
    return HashTable.load(path)


EXPORTS: dict[str, Callable[[HashTable, Path], Any]] = {
    "items": lambda table, _: table.items(),
    "iteration": lambda table, _: (keys := np.array(list(table)), table[keys]),
    "pickle": lambda table, _: pickle.loads(pickle.dumps(table)).items(),
    "save": lambda table, path: through_a_file(table, path).items(),
}


@pytest.mark.parametrize("way", EXPORTS)
@pytest.mark.parametrize("has_columns", [False, True], ids=["plain", "columns"])
def test_all_items_of_a_table_whose_size_changes(device, tmp_path, way, has_columns):
    """They are read once more where another thread changes the size after they have been counted."""
    model = {key: 3 * key for key in range(1000)}
    table = HashTable("int64", {"v": "int64"} if has_columns else "int64", device=device)

    def assign(table: HashTable, items: dict[int, int]) -> None:
        values = list(items.values())
        table[list(items)] = {"v": values} if has_columns else values

    assign(table, model)
    first = list(range(10))
    put_between(table, "size", lambda table: table.erase(first), lambda table: assign(table, {5000: 7}))
    keys, values = EXPORTS[way](table, tmp_path / "table.safetensors")
    got = zip(to_numpy(keys).tolist(), to_numpy(values["v"] if has_columns else values).tolist(), strict=True)
    assert dict(got) == {key: value for key, value in model.items() if key >= 10} | {5000: 7}
