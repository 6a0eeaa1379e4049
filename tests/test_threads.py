"""Several threads on one table: calls that look keys up and change them, while others do."""

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
from support.samples import as_dict, items_of, random_keys, same_bytes

from gpuhash import HashSet, HashTable


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


KINDS: dict[str, dict[str, Any]] = {
    "scalar": {"value_dtype": "int64"},
    "rows": {"value_dtype": "int64", "value_shape": (3,)},
    "vectors": {"value_dtype": "int32", "key_shape": (2,)},
    "columns": {"value_dtype": {"v": ("int64", (2,)), "w": "int32"}},
}
COUNT = 5000

every_kind = pytest.mark.parametrize("kind", KINDS)
every_place = pytest.mark.parametrize("place", ["single", "sharded"])


class Sample:
    """A table, and keys whose values are all the same number."""

    def __init__(self, kind: str, device: str, place: str) -> None:
        where: Any = [device] * 3 if place == "sharded" else device
        self.table = HashTable("int64", device=where, **KINDS[kind])
        self.keys = random_keys("int64", self.table.key_shape, COUNT)
        self.has_columns = kind == "columns"

    def value(self, number: int) -> Any:
        return {"v": number, "w": number} if self.has_columns else number

    def numbers(self, values: Any) -> np.ndarray:
        """One for each key, which all elements of its value are."""
        parts = map(to_numpy, values.values() if self.has_columns else [values])
        rows = np.concatenate([part.reshape(len(part), part[:1].size or 1) for part in parts], axis=1, dtype=np.int64)
        assert (rows == rows[:, :1]).all()
        return rows[:, 0]

    def left(self) -> int:
        return int(self.numbers(self.table.values()).sum())


def in_threads(count: int, work: Callable[[], Any]) -> list[Any]:
    """What it gives in each of several threads, which begin at one time."""
    return side_by_side(*[work] * count)


def side_by_side(*works: Callable[[], Any]) -> list[Any]:
    """What each gives in a thread of its own, all of which begin at one time."""
    start = threading.Barrier(len(works))

    def begin(work: Callable[[], Any]) -> Any:
        start.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))


def succeeds(work: Callable[[], Any]) -> bool:
    try:
        work()
    except KeyError:
        return False
    return True


@every_kind
@every_place
def test_nothing_is_lost_between_lookup_and_erasure(device, kind, place):
    """What another thread adds is in one answer of ``pop``, or still there; and a batch is popped as a whole."""
    sample = Sample(kind, device, place)
    rounds = 150
    is_done = threading.Event()

    def add() -> int:
        for _ in range(rounds):
            sample.table.insert_or_apply(sample.keys, sample.value(1), "add")
        is_done.set()
        return 0

    def pop() -> int:
        total = 0
        while not is_done.is_set():
            popped = sample.numbers(sample.table.pop(sample.keys, sample.value(0)))
            assert (popped == popped[0]).all()
            total += int(popped.sum())
        return total

    popped = side_by_side(add, pop, pop)
    assert sum(popped) + sample.left() == rounds * COUNT


@every_kind
@every_place
def test_batches_are_popped_as_a_whole_or_not_at_all(device, kind, place):
    """Two that overlap are never both there; and what a thread does not get stays."""
    sample = Sample(kind, device, place)
    parts = [sample.keys[: COUNT // 3 * 2], sample.keys[COUNT // 3 :]]
    for number in range(1, 20):
        sample.table[sample.keys] = sample.value(number)
        got: list[Any] = [None, None]

        def pop(i: int, got: list[Any] = got) -> bool:
            def work() -> None:
                got[i] = sample.numbers(sample.table.pop(parts[i]))

            return succeeds(work)

        popped = side_by_side(lambda pop=pop: pop(0), lambda pop=pop: pop(1))
        assert sorted(popped) == [False, True]
        winner = popped.index(True)
        same_bytes(got[winner], np.full(len(parts[winner]), number))
        assert len(sample.table) == COUNT - len(parts[winner])
        assert not sample.table.contains(parts[winner]).any()


@every_place
@pytest.mark.parametrize("is_set", [False, True], ids=["del", "remove"])
def test_batches_are_erased_as_a_whole_or_not_at_all(device, is_set, place):
    where = [device] * 3 if place == "sharded" else device
    keys = random_keys("int64", (), COUNT)
    made: Any = HashSet("int64", device=where) if is_set else HashTable("int64", "int64", device=where)
    parts = [keys[: COUNT // 3 * 2], keys[COUNT // 3 :]]

    def erase(part: Any) -> bool:
        return succeeds(lambda: made.remove(part) if is_set else made.__delitem__(part))

    for _ in range(20):
        made.update(keys) if is_set else made.insert(keys, 1)
        erased = side_by_side(lambda: erase(parts[0]), lambda: erase(parts[1]))
        assert sorted(erased) == [False, True]
        assert len(made) == COUNT - len(parts[erased.index(True)])


@every_kind
@every_place
def test_setdefault_has_a_value_for_each_key(device, kind, place):
    """Also where others erase them: those of one call are erased before it or after it, and get one value."""
    sample = Sample(kind, device, place)
    is_done = threading.Event()

    def set_default(number: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(60):
                got = sample.numbers(sample.table.setdefault(sample.keys, sample.value(number)))
                assert got[0] in (1, 2)
                assert (got == got[0]).all()
            is_done.set()

        return work

    def erase() -> None:
        while not is_done.is_set():
            sample.table.erase(sample.keys)

    side_by_side(set_default(1), set_default(2), erase)


@every_kind
@every_place
def test_out_of_pop_stays_where_a_key_is_absent(device, kind, place):
    sample = Sample(kind, device, place)
    sample.table[sample.keys[1:]] = sample.value(5)
    if sample.has_columns:
        out: Any = {"v": np.full((COUNT, 2), 7), "w": np.full(COUNT, 7, np.int32)}
    else:
        out = np.full((COUNT, *sample.table.value_shape), 7, sample.table.value_dtype)
    with pytest.raises(KeyError, match=f"1 of {COUNT} keys are absent"):
        sample.table.pop(sample.keys, out=out)
    assert (sample.numbers(out) == 7).all()
    assert len(sample.table) == COUNT - 1
    sample.table[sample.keys[:1]] = sample.value(5)
    for popped in (sample.table.pop(sample.keys, out=out), out):
        assert (sample.numbers(popped) == 5).all()
    assert not sample.table


@every_place
def test_iteration_over_a_table_of_which_nothing_is_popped(device, place):
    """As with a dict: only what erases something ends it."""
    where = [device] * 3 if place == "sharded" else device
    table = HashTable.from_items({1: 2, 3: 4}, device=where)
    for _ in table:
        assert table.pop(5, None) is None
        with pytest.raises(KeyError, match="5"):
            table.pop(5)
        with pytest.raises(KeyError, match="5"):
            del table[5]
    keys = iter(table)
    next(keys)
    table.pop(1)
    with pytest.raises(RuntimeError, match="changed"):
        list(keys)


def test_popitem_takes_another_item(device):
    sample = Sample("scalar", device, "single")
    sample.table[sample.keys] = np.arange(COUNT)
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


def test_sets(device):
    made = HashSet.from_keys(np.arange(10), device=device)
    taken: list[int] = []

    def take(other: HashSet) -> None:
        taken.extend(to_numpy(other.keys())[:2].tolist())
        other.discard(taken)

    put_between(made, "export_items", take)
    key = made.pop()
    assert key not in taken
    assert set(made) | {key, *taken} == set(range(10))
    put_between(made, "export_items", lambda other: other.clear())
    with pytest.raises(KeyError, match="empty"):
        made.pop()


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
    """As they are in one turn, also where another thread changes the size after they have been counted."""
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
    # Where there was room for all that were left, they were not asked for again, and nothing came between.
    came = {5000: 7} if bool(to_numpy(table.contains([5000]))[0]) else {}
    assert dict(got) == {key: value for key, value in model.items() if key >= 10} | came
    assert came or way in {"pickle", "save"}
