"""Every allocation and every launch that can fail fails once, with every kind of exception, in every operation.

Then the exception is the caller's, and the table is what it was; or the call went another way, and did what it should.
"""

from __future__ import annotations

import copy
import gc
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import Framework, address_of, to_numpy
from support.hidden_keys import hidden_numbers, key_of, number_of
from support.items import Items
from support.memory_resources import counting_memory
from support.samples import random_keys, random_values
from support.threads import at_most_threads
from support.tuning import partitioned

import gpuhash
from gpuhash import CudaError, HashSet, HashTable, _core
from gpuhash.initializers import Normal


class Interruption(BaseException):
    """A program's own; no Exception, as KeyboardInterrupt is none."""


OTHER_ERRORS = [ValueError, RuntimeError, KeyboardInterrupt, SystemExit, Interruption]
ERRORS = [MemoryError, *OTHER_ERRORS]

MOST_PLACES = 300  # more than any operation has


class RaisingMemory:
    """Passes everything on to a counting resource, but for one allocation, or that and all after it."""

    def __init__(self, device: str) -> None:
        self.counting = counting_memory(device)
        self.fail(None)

    def fail(self, error: BaseException | None, after: int = 0, *, for_ever: bool = False) -> None:
        """Let `after` allocations pass and raise `error` at the next one, or at all from there on; None: at none."""
        self.error, self.passes, self.for_ever, self.raised = error, after, for_ever, False

    def allocate(self, nbytes: int, stream: Any = None) -> int:
        if self.error is not None and (self.for_ever or not self.raised):
            if self.passes == 0:
                self.raised = True
                raise self.error
            self.passes -= 1
        return self.counting.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: Any = None) -> None:
        self.counting.deallocate(ptr, nbytes, stream)

    def check_empty(self) -> None:
        if self.counting.blocks:
            gc.collect()
        assert not self.counting.mistakes
        assert not self.counting.blocks, "not all memory was given back"


@pytest.fixture
def memory(on_device: Framework) -> Iterator[RaisingMemory]:
    made = RaisingMemory(on_device.table_device)
    yield made
    made.check_empty()


# Tables, and what is done to them ------------------------------------------------------------------------------------

COLUMNS = {"a": ("float32", (3,)), "b": ("float32", (2,))}  # as an array [n, 5] they are side by side
KINDS: dict[str, dict[str, Any]] = {
    "scalars": {},
    "narrow": {"key_dtype": "int32"},
    "rows": {"value_shape": (5,)},
    "vector-keys": {"key_shape": (2,)},
    "wide-keys": {"key_shape": (3,)},
    "wide-keys-rows": {"key_shape": (5,), "value_shape": (5,)},
    "deterministic": {"deterministic": True},
    "deterministic-rows": {"deterministic": True, "value_shape": (5,)},
    "no-growth": {"growth": False, "capacity": 4000},
    "max-capacity": {"max_capacity": 4000},
    "columns": {"value_dtype": COLUMNS},
    "deterministic-columns": {"value_dtype": COLUMNS, "deterministic": True},
}
COLUMN_KINDS = [kind for kind, options in KINDS.items() if "value_dtype" in options]
LARGE_ROWS = {"value_shape": (2500,)}  # 4 MiB with 420 keys: rows that grow where they lie
SET_KINDS = [kind for kind, options in KINDS.items() if "value_shape" not in options and kind not in COLUMN_KINDS]


class Case:
    """Makes tables of the same `count` items, for batches of keys of which a third is in them."""

    def __init__(self, kind: str, is_set: bool, place: Framework, folder: Path, count: int, memory: Any = None) -> None:
        self.place, self.memory, self.is_set = place, memory, is_set
        options = LARGE_ROWS if kind == "large-rows" else KINDS[kind]
        self.options = {"key_dtype": "int64", **options, "device": place.table_device}
        if not is_set:
            self.options.setdefault("value_dtype", "float32")
        self.columns = kind in COLUMN_KINDS
        self.rows = "value_shape" in self.options or self.columns
        value_shape = (5,) if self.columns else self.options.get("value_shape", ())
        keys = random_keys(self.options["key_dtype"], self.options.get("key_shape", ()), 2 * count + count // 2)
        values = random_values("float32", (len(keys), *value_shape))
        self.first, self.first_values = keys[:count], values[:count]
        begin = count - count // 3
        self.keys, self.values = keys[begin : begin + count], values[::-1][:count]
        self.before = self.items(self.first, self.first_values)
        self.batch_items = self.items(self.keys, self.values)
        self.other = self.make(self.keys, self.values)
        self.path = folder / "table"
        self.other.save(self.path)

    def items(self, keys: np.ndarray, values: np.ndarray) -> Items:
        return Items(keys, None if self.is_set else values)

    def make(self, keys: np.ndarray, values: np.ndarray, **options: Any) -> Any:
        table = (HashSet if self.is_set else HashTable)(**self.options, **options)
        self.put(table, keys, values)
        return table

    def put(self, table: Any, keys: np.ndarray, values: np.ndarray) -> None:
        if self.is_set:
            table.add(self.place.array(keys))
        else:
            table[self.place.array(keys)] = self.given(values)

    def given(self, values: np.ndarray) -> Any:
        """As the table takes them: with columns a mapping."""
        if not self.columns:
            return self.place.array(values)
        return {"a": self.place.array(values[:, :3]), "b": self.place.array(values[:, 3:])}

    @property
    def batch(self) -> Any:
        return self.place.array(self.keys)

    @property
    def batch_values(self) -> Any:
        return self.given(self.values)

    @property
    def present(self) -> Any:
        return self.place.array(self.first[:100])

    @property
    def single(self) -> Any:
        return tuple(self.first[0].tolist()) if self.first.ndim > 1 else self.first[0].item()

    def mask(self) -> Any:
        return self.place.array(np.zeros(len(self.keys), bool))

    def contents(self, table: Any) -> Items:
        keys, values = (table.keys(), None) if self.is_set else table.items()
        if self.columns:
            values = np.concatenate([to_numpy(values[name]) for name in COLUMNS], axis=1)
        assert len(keys) == len(table)
        return Items(keys, values)


def unchanged(before: Items, batch: Items) -> Items:
    return before


def assigned(before: Items, batch: Items) -> Items:
    return before | batch


def kept(before: Items, batch: Items) -> Items:
    return batch | before


def added(before: Items, batch: Items) -> Items:
    both = before & batch
    both.values = both.values + batch.values_of(both)
    return before | batch | both


def erased(before: Items, batch: Items) -> Items:
    return before - batch


def common(before: Items, batch: Items) -> Items:
    return before & batch


def in_one(before: Items, batch: Items) -> Items:
    return (before - batch) | (batch - before)


def nothing(before: Items, batch: Items) -> Items:
    return before[:0]


@dataclass(frozen=True)
class Operation:
    """A call on a table, and what it makes of the table's items."""

    call: Callable[[Case, Any], Any]
    effect: Callable[[Items, Items], Items] = unchanged
    count: int = 0  # items that go besides, whichever they are

    @property
    def inserts(self) -> bool:
        return self.effect in (assigned, kept, added, in_one)


def erase_present(case: Case, table: Any) -> None:
    del table[case.present]


def twin(case: Case, made: Any, of: Any) -> None:
    """Made in a call that has succeeded."""
    assert case.contents(made) == case.contents(of)


COMMON = {
    "construct": Operation(lambda c, t: c.make(c.keys, c.values, memory=c.memory)),
    "contains": Operation(lambda c, t: t.contains(c.batch)),
    "contains-out": Operation(lambda c, t: t.contains(c.batch, out=c.mask())),
    "in": Operation(lambda c, t: c.single in t),
    "erase": Operation(lambda c, t: t.erase(c.batch), erased),
    "keys": Operation(lambda c, t: t.keys()),
    "iterate": Operation(lambda c, t: list(t)),
    "len": Operation(lambda c, t: len(t)),
    "repr": Operation(lambda c, t: repr(t)),
    "clear": Operation(lambda c, t: t.clear(), nothing),
    "rehash": Operation(lambda c, t: t.rehash(3900)),
    "reserve": Operation(lambda c, t: t.reserve(3000)),
    "shrink_to_fit": Operation(lambda c, t: t.shrink_to_fit()),
    "copy": Operation(lambda c, t: twin(c, t.copy(), t)),
    "deepcopy": Operation(lambda c, t: twin(c, copy.deepcopy(t), t)),
    "to": Operation(lambda c, t: twin(c, t.to(t.device, memory=c.memory), t) if c.memory is not None else None),
    "pickle": Operation(lambda c, t: twin(c, pickle.loads(pickle.dumps(t)), t)),
    "save": Operation(lambda c, t: t.save(c.path.with_name("saved"))),
    "load": Operation(lambda c, t: twin(c, type(t).load(c.path, device=t.device, memory=c.memory), c.other)),
    "equal": Operation(lambda c, t: t == t.copy()),
    "update-table": Operation(lambda c, t: t.update(c.other), assigned),
}
TABLE_OPERATIONS = {
    **COMMON,
    "setitem": Operation(lambda c, t: t.__setitem__(c.batch, c.batch_values), assigned),
    "getitem": Operation(lambda c, t: t[c.present]),
    "insert": Operation(lambda c, t: t.insert(c.batch, c.batch_values), kept),
    "insert_or_assign": Operation(lambda c, t: t.insert_or_assign(c.batch, c.batch_values, out=c.mask()), assigned),
    "insert_or_apply": Operation(lambda c, t: t.insert_or_apply(c.batch, c.batch_values, "add"), added),
    "apply_and_find": Operation(lambda c, t: t.apply_and_find(c.batch, c.batch_values, "add"), added),
    "find_or_insert": Operation(
        lambda c, t: t.find_or_insert(c.batch, c.batch_values) if c.rows else t.insert(c.batch, c.batch_values), kept
    ),
    "setdefault": Operation(lambda c, t: t.setdefault(c.batch, c.batch_values), kept),
    "find": Operation(lambda c, t: t.find(c.batch, default=3)),
    "get": Operation(lambda c, t: t.get(c.batch, c.batch_values)),
    "get-single": Operation(lambda c, t: t.get(c.single)),
    "pop": Operation(lambda c, t: t.pop(c.batch, 0), erased),
    "popitem": Operation(lambda c, t: t.popitem(), count=1),
    "del": Operation(erase_present, lambda before, batch: before[100:]),
    "items": Operation(lambda c, t: t.items()),
    "values": Operation(lambda c, t: t.values()),
    "update-arrays": Operation(lambda c, t: t.update(c.batch, c.batch_values), assigned),
    "update-mapping": Operation(
        lambda c, t: t.update(dict(zip(map(tuple_or_int, c.keys), c.values.tolist(), strict=True))), assigned
    ),
    "union": Operation(lambda c, t: t | c.other),
    "row_storage": Operation(lambda c, t: t.row_storage if c.rows else None),
    "rows": Operation(lambda c, t: t.rows(c.batch) if c.rows else None),
}
COLUMN_OPERATIONS = {
    **TABLE_OPERATIONS,
    "insert_or_apply": Operation(
        lambda c, t: t.insert_or_apply(c.batch, c.batch_values, {"a": "add", "b": "add"}), added
    ),
    "apply_and_find": Operation(
        lambda c, t: t.apply_and_find(c.batch, c.batch_values, {"a": "add", "b": "add"}), added
    ),
    "find": Operation(lambda c, t: t.find(c.batch, {"b": 3}, columns=["b", "a"])),
    "pop": Operation(lambda c, t: t.pop(c.batch, {"a": 0.0}), erased),
    "update-mapping": Operation(
        lambda c, t: t.update(
            {key.item(): {"a": a, "b": b} for key, a, b in zip(c.keys, c.values[:, :3], c.values[:, 3:], strict=True)}
        ),
        assigned,
    ),
    "row_storage": Operation(lambda c, t: (t.column("a"), t.column("b"))),
}
SET_OPERATIONS = {
    **COMMON,
    "add": Operation(lambda c, t: t.add(c.batch), assigned),
    "discard": Operation(lambda c, t: t.discard(c.batch), erased),
    "remove": Operation(lambda c, t: t.remove(c.present), lambda before, batch: before[100:]),
    "pop": Operation(lambda c, t: t.pop(), count=1),
    "update-keys": Operation(lambda c, t: t.update(c.batch), assigned),
    "intersection_update": Operation(lambda c, t: t.intersection_update(c.other), common),
    "difference_update": Operation(lambda c, t: t.difference_update(c.other), erased),
    "symmetric_difference_update": Operation(lambda c, t: t.symmetric_difference_update(c.other), in_one),
    "union": Operation(lambda c, t: t | c.other),
    "isdisjoint": Operation(lambda c, t: t.isdisjoint(c.other)),
}


def tuple_or_int(key: np.ndarray) -> Any:
    return tuple(key.tolist()) if key.ndim else key.item()


def operations(is_set: bool, kind: str) -> dict[str, Operation]:
    return SET_OPERATIONS if is_set else COLUMN_OPERATIONS if kind in COLUMN_KINDS else TABLE_OPERATIONS


OF_TABLES = [(kind, False, name) for kind in KINDS for name in operations(False, kind)]
OF_SETS = [
    (kind, True, name)
    for kind in SET_KINDS
    for name in SET_OPERATIONS
    if (kind, name) != ("wide-keys", "symmetric_difference_update")  # its docstring says what may be lost
]


def case_name(value: Any) -> str:
    kind, is_set, name = value
    return f"{'set' if is_set else 'table'}-{kind}-{name}"


def check_after(case: Case, operation: Operation, table: Any, error: BaseException | None, capacity: int) -> None:
    """The table is as before where the call raised, and as the operation makes it where not; and it still works."""
    if error is None:
        contents = case.contents(table)
        if operation.count:
            assert contents == case.before & contents
            assert len(contents) == len(case.before) - operation.count
        else:
            assert contents == operation.effect(case.before, case.batch_items)
        return
    assert case.contents(table) == case.before
    assert table.capacity == capacity or (operation.inserts and table.capacity > capacity)
    case.put(table, case.keys, case.values)
    assert case.contents(table) == assigned(case.before, case.batch_items)
    table.erase(case.place.array(case.first))
    assert case.contents(table) == erased(case.batch_items, case.before)


def call(operation: Operation, case: Case, table: Any) -> BaseException | None:
    """What it raised."""
    try:
        operation.call(case, table)
    except BaseException as error:
        return error.with_traceback(None)  # whose frames would keep tables alive
    return None


# Memory of the resource ----------------------------------------------------------------------------------------------


def each_allocation_raises(
    case: Case,
    operation: Operation,
    make: Callable[[], Any],
    slow: bool,
    turn: int,
    unraisable: list[Any] | None = None,
) -> None:
    """Once; for want of memory also with all allocations after it.

    `slow`: each of the other exceptions at every place; without, they take turns from place to place, `turn` being the
    first one's number. `unraisable`: what sys.unraisablehook hears of is appended to it; None: it has nothing to hear.
    """
    others = [[error_type] for error_type in OTHER_ERRORS] if slow else [OTHER_ERRORS]
    for kinds, for_ever in [([MemoryError], False), ([MemoryError], True), *((kinds, False) for kinds in others)]:
        for place in range(MOST_PLACES):
            error_type = kinds[(turn + place) % len(kinds)]
            table = make()
            capacity = table.capacity
            injected = error_type("of this test")
            case.memory.fail(injected, place, for_ever=for_ever)
            error = call(operation, case, table)
            injected.__traceback__ = None  # whose frames would keep the table alive
            raised = case.memory.raised
            case.memory.fail(None)
            assert type(error) in (type(None), error_type), error
            if error_type is not MemoryError and raised:  # nobody goes another way for these
                heard = error if error is not None or unraisable is None else unraisable.pop()
                assert heard is injected or heard is error_type
            check_after(case, operation, table, error, capacity)
            del table
            case.memory.check_empty()
            if not raised:
                break
        else:
            pytest.fail(f"{MOST_PLACES} places were not enough")


@pytest.mark.parametrize("which", OF_TABLES + OF_SETS, ids=case_name)
def test_each_allocation_raises_once(
    on_device: Framework, memory: RaisingMemory, tmp_path: Path, slow: bool, which: Any
) -> None:
    kind, is_set, name = which
    operation = operations(is_set, kind)[name]
    case = Case(kind, is_set, on_device, tmp_path, 600, memory)
    turn = (OF_TABLES + OF_SETS).index(which)
    each_allocation_raises(case, operation, lambda: case.make(case.first, case.first_values, memory=memory), slow, turn)


INSERTIONS = [
    (kind, is_set, name)
    for kind, is_set, name in OF_TABLES + OF_SETS
    if kind in ("scalars", "narrow", "vector-keys", "deterministic") and operations(is_set, kind)[name].inserts
    if name not in ("update-table", "update-mapping", "symmetric_difference_update")
]


@pytest.mark.parametrize("which", INSERTIONS, ids=case_name)
def test_growth_after_an_insertion_raises(
    on_device: Framework,
    memory: RaisingMemory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slow: bool,
    which: Any,
) -> None:
    """A batch that fits under a load of 0.92 is let in as it is, and the table grows afterwards: that may fail, too.

    The keys are in by then, so that nothing is raised any more.
    """
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    kind, is_set, name = which
    operation = operations(is_set, kind)[name]
    case = Case(kind, is_set, on_device, tmp_path, 2000, memory)
    case.keys, case.values = case.keys[700:], case.values[700:]  # the new ones alone
    case.batch_items = case.items(case.keys, case.values)
    slots = int((len(case.first) + len(case.keys)) / 0.9)

    def make() -> Any:
        table = case.make(case.first, case.first_values, memory=memory)
        table.rehash(slots)
        assert 0.8 * table.capacity < len(case.first) + len(case.keys) < 0.92 * table.capacity
        return table

    each_allocation_raises(case, operation, make, slow, INSERTIONS.index(which), told)
    assert not told


def test_maintenance_raises(on_device: Framework, memory: RaisingMemory) -> None:
    """A worn table is rebuilt by an insertion, whose memory may fail."""
    keys = np.arange(100_000)
    for error_type in ERRORS:
        table = HashSet("int64", device=on_device.table_device, memory=memory)
        table.add(on_device.array(keys[:1000]))
        table.rehash(1250)
        allocations = memory.counting.calls
        memory.fail(error_type("of this test"))
        first, error = 0, None
        while not memory.raised:
            assert first < 90_000, "no maintenance came"
            table.erase(on_device.array(keys[first : first + 100]))
            first += 100
            before = set(keys[first : first + 900].tolist())
            batch = keys[first + 900 : first + 1000]
            error = call(Operation(lambda c, t, batch=batch: t.add(on_device.array(batch))), None, table)
        assert memory.counting.calls == allocations
        memory.fail(None)
        assert isinstance(error, error_type) or (error is None and error_type is MemoryError)
        after = before if error is not None else before | set(batch.tolist())
        assert set(to_numpy(table.keys()).tolist()) == after
        table.add(on_device.array(batch))
        assert set(to_numpy(table.keys()).tolist()) == before | set(batch.tolist())
        del table
        memory.check_empty()


@pytest.mark.parametrize("error_type", ERRORS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_deallocate_raises(
    on_device: Framework, memory: RaisingMemory, error_type: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can take such an exception: sys.unraisablehook hears of it, and the operation goes on."""
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    deallocate = memory.deallocate

    def raise_after(ptr: int, nbytes: int, stream: Any = None) -> None:
        deallocate(ptr, nbytes, stream)
        raise error_type("of this test")

    monkeypatch.setattr(memory, "deallocate", raise_after)
    keys, values = random_keys("int64", (), 3000), random_values("float32", (3000, 5))
    table = HashTable("int64", "float32", value_shape=(5,), device=on_device.table_device, memory=memory)
    table[on_device.array(keys[:500])] = on_device.array(values[:500])
    table[on_device.array(keys)] = on_device.array(values)  # grows
    assert told
    assert set(told) == {error_type}
    assert Items(*table.items()) == Items(keys, values)
    table.shrink_to_fit()
    assert Items(*table.copy().items()) == Items(keys, values)
    told.clear()
    del table
    memory.check_empty()
    assert set(told) == {error_type}


# Scratch memory of the host, memory that grows where it lies, launches on the GPU ------------------------------------


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    """Each thread more has places of its own, and a machine may have a hundred of them."""
    with at_most_threads(2):
        yield


def each_place_fails(
    kind: str,
    make: Callable[[], Any],
    attempt: Callable[[Any], BaseException | None],
    check: Callable[[Any, BaseException | None], None],
) -> int:
    """Lets place 0, 1, 2, ... of attempt(make()) fail until it has no more, and checks each; their number."""
    for place in range(MOST_PLACES):
        made = make()
        _core.inject_failure(kind, place)
        try:
            error = attempt(made)
        finally:
            is_past_the_last = _core.inject_failure(kind, -1)
        check(made, error)
        if is_past_the_last:
            assert error is None
            return place
    pytest.fail(f"{MOST_PLACES} places were not enough")


# Those with a loop of their own.
SHARED = ["setitem", "insert", "insert_or_apply", "erase", "find", "items", "rehash", "shrink_to_fit"]
SHARED_OF_SETS = ["add", "discard", "symmetric_difference_update"]


@pytest.mark.parametrize(
    "which",
    [
        *((kind, False, name) for kind in ("scalars", "rows") for name in SHARED),
        *(("scalars", True, name) for name in SHARED_OF_SETS),
    ],
    ids=case_name,
)
def test_scratch_memory_fails(tmp_path: Path, which: Any) -> None:
    """In batches that several threads share."""
    if _core.platform_devices("cpu") == ["host memory, 1 thread"]:
        pytest.skip("one thread needs no scratch memory")
    kind, is_set, name = which
    operation = operations(is_set, kind)[name]
    size = 300_000 if name == "symmetric_difference_update" else 150_000  # of which it inserts half
    case = Case(kind, is_set, Framework("numpy", "cpu", "cpu"), tmp_path, size)
    original = case.make(case.first, case.first_values)
    expected_after = operation.effect(case.before, case.batch_items)
    sizes = [len(items | case.batch_items) for items in (case.before, expected_after)]

    def check(table: Any, error: BaseException | None) -> None:
        assert type(error) in (type(None), MemoryError), error
        expected = case.before if error is not None else expected_after
        assert case.contents(table) == expected
        assert table.capacity == original.capacity or error is None or operation.inserts
        case.put(table, case.keys, case.values)
        assert len(table) == sizes[error is None]

    places = each_place_fails("scratch", original.copy, lambda table: call(operation, case, table), check)
    if operation.inserts or operation.effect is erased:
        assert places >= 3  # lists, keys put aside, tallies


MAPS = {  # operations on a table of 600 large rows, and how often they ask for memory behind their addresses
    "construct": 1,
    "setitem": 1,
    "insert": 1,
    "insert_or_assign": 1,
    "insert_or_apply": 1,
    "apply_and_find": 1,
    "find_or_insert": 1,
    "setdefault": 1,
    "update-arrays": 1,
    "update-table": 1,
    "reserve": 1,
    "rehash": 1,
    "shrink_to_fit": 1,
    "copy": 1,
    "deepcopy": 1,
    "erase": 0,
    "clear": 0,
    "find": 0,
    "row_storage": 0,
}


@pytest.mark.parametrize("name", MAPS)
def test_memory_that_grows_fails(on_device: Framework, tmp_path: Path, name: str) -> None:
    operation = TABLE_OPERATIONS[name]
    case = Case("large-rows", False, on_device, tmp_path, 600)
    original = case.make(case.first, case.first_values)
    addresses = []

    def attempt(table: Any) -> BaseException | None:
        addresses[:] = [table.row_storage]
        return call(operation, case, table)

    def check(table: Any, error: BaseException | None) -> None:
        assert type(error) in (type(None), MemoryError), error
        if error is not None:
            assert address_of(table.row_storage) == address_of(addresses[0])
        check_after(case, operation, table, error, original.capacity)

    places = each_place_fails("mapping", original.copy, attempt, check)
    assert places >= MAPS[name]


def test_scratch_memory_fails_when_rows_have_grown(tmp_path: Path) -> None:
    """What comes after the rows in a rebuild: the table has more memory then, and does not use it."""
    if _core.platform_devices("cpu") == ["host memory, 1 thread"]:
        pytest.skip("one thread needs no scratch memory")
    keys = np.arange(150_000)
    values = random_values("float32", (len(keys), 12))
    original = HashTable("int64", "float32", value_shape=(12,), capacity=2 * len(keys))
    original[keys] = values

    def check(table: Any, error: BaseException | None) -> None:
        assert type(error) in (type(None), MemoryError), error
        assert (table.capacity == original.capacity) == (error is not None)
        assert Items(*table.items()) == Items(keys, values)
        view = table.row_storage
        table.reserve(5 * len(keys))
        assert address_of(table.row_storage) == address_of(view)
        assert Items(*table.items()) == Items(keys, values)

    def reserve(table: Any) -> BaseException | None:
        return call(Operation(lambda c, t: t.reserve(4 * len(keys))), None, table)

    assert each_place_fails("scratch", original.copy, reserve, check) >= 1


KNOWN, NEW = 600_000, 250_000
HIDDEN = hidden_numbers(KNOWN, NEW, 1 << 19)


def known_keys(memory: Any = None) -> HashTable:
    table = HashTable("int64", "int64", capacity=800_000, memory=memory)
    table.insert(key_of(np.arange(KNOWN)), 0)
    return table


def count_hidden(table: HashTable) -> BaseException | None:
    """Makes the table grow within the batch."""
    try:
        table.insert_or_apply(key_of(HIDDEN), 1, "add")
    except BaseException as error:
        return error
    return None


def check_hidden(table: HashTable, error: BaseException | None) -> None:
    keys, counts = table.items()
    assert len(keys) == len(table)
    expected = np.zeros(KNOWN, np.int64) if error is not None else np.bincount(HIDDEN)
    assert len(keys) == len(expected)
    numbers = number_of(keys)
    assert ((numbers >= 0) & (numbers < len(expected))).all()
    assert (np.bincount(numbers, minlength=len(expected)) == 1).all()
    np.testing.assert_array_equal(counts, expected[numbers])


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_allocations_of_growth_within_a_batch_fail(error: type[BaseException]) -> None:
    """Before the batch: all of it is in, or nothing."""
    memory = RaisingMemory("cpu")
    for place in range(MOST_PLACES):
        table = known_keys(memory)
        memory.fail(error(), place)
        raised = count_hidden(table)
        is_past_the_last = not memory.raised
        memory.fail(None)
        assert type(raised) in (type(None), error)
        check_hidden(table, raised)
        if is_past_the_last:
            break
    assert place >= 4  # a sample, slots, filters, counters
    del table, raised  # whose traceback holds the table
    memory.check_empty()


@pytest.mark.parametrize("for_ever", [False, True], ids=["one", "all-after-it"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_allocations_of_growth_ahead_fail(error: type[BaseException], for_ever: bool) -> None:
    """Room for the batches after this one is no promise: without, the table grows by what this one needs."""
    memory = RaisingMemory("cpu")
    keys = key_of(np.arange(1 << 18))
    half = len(keys) // 2
    for place in range(MOST_PLACES):
        table = HashTable("int64", "int64", memory=memory)
        table.insert(keys[:half], 1)
        memory.fail(error(), place, for_ever=for_ever)
        raised: BaseException | None = None
        try:
            table.insert(keys[half:], 2)
        except BaseException as caught:
            raised = caught
        is_past_the_last = not memory.raised
        memory.fail(None)
        assert type(raised) in (type(None), error)
        if raised is not None:
            assert len(table) == half
            assert not table.contains(keys[half:]).any()
            table.insert(keys[half:], 2)
        assert len(table) == len(keys)
        np.testing.assert_array_equal(table[keys], np.repeat([1, 2], half))
        if is_past_the_last:
            break
    assert place >= 2  # a sample and the table
    del table, raised  # whose traceback holds the table
    memory.check_empty()


def test_no_memory_to_grow_within_a_batch() -> None:
    """From some allocation on there is none: neither for growth nor for counting the new keys."""
    memory = RaisingMemory("cpu")
    for place in range(6):
        table = known_keys(memory)
        memory.fail(MemoryError(), place, for_ever=True)
        raised = count_hidden(table)
        memory.fail(None)
        check_hidden(table, raised)
        if raised is not None:
            assert count_hidden(table) is None
            check_hidden(table, None)
    del table, raised  # whose traceback holds the table
    memory.check_empty()


def test_scratch_memory_of_growth_within_a_batch_fails() -> None:
    """One thread goes on without it: what has begun is done."""
    original = known_keys()

    def check(table: Any, error: BaseException | None) -> None:
        assert error is None
        check_hidden(table, None)

    assert each_place_fails("scratch", original.copy, count_hidden, check) >= 3


def test_scratch_memory_of_factorization_fails() -> None:
    if _core.platform_devices("cpu") == ["host memory, 1 thread"]:
        pytest.skip("one thread needs no scratch memory")
    keys = np.random.default_rng(5).integers(0, 1 << 21, 1 << 21)  # many words of bits, for several threads
    expected = np.unique(keys, return_inverse=True, return_counts=True)
    check_set_routine("scratch", keys, expected, MemoryError)


def check_set_routine(kind: str, keys: Any, expected: Any, error_type: type[Exception]) -> None:
    answers: list[Any] = []

    def attempt(_: None) -> BaseException | None:
        answers.clear()
        try:
            answers.append(gpuhash.unique(keys, sorted=True, return_inverse=True, return_counts=True))
            answers.append(gpuhash.isin(keys, keys[:100_000]))
        except Exception as error:
            return error
        return None

    def check(_: None, error: BaseException | None) -> None:
        assert type(error) in (type(None), error_type), error
        if answers:
            np.testing.assert_array_equal(to_numpy(answers[0].values), expected[0])
            np.testing.assert_array_equal(to_numpy(answers[0].inverse), expected[1])
            np.testing.assert_array_equal(to_numpy(answers[0].counts), expected[2])

    assert each_place_fails(kind, lambda: None, attempt, check) >= 3


@pytest.mark.parametrize("way", ["one-block", "batch-table", "by-part"])
def test_launches_of_factorization_fail(cuda: str, way: str) -> None:
    keys = np.random.default_rng(5).integers(0, 1 << 17, 1 << (10 if way == "one-block" else 18))
    expected = np.unique(keys, return_inverse=True, return_counts=True)
    with partitioned(way == "by-part"):
        check_set_routine("launch", Framework("torch", cuda, cuda).array(keys), expected, CudaError)


def test_kinds_of_failures() -> None:
    with pytest.raises(ValueError, match="no failures of kind 'disk'; expected 'scratch', 'launch' or 'mapping'"):
        _core.inject_failure("disk", 1)
    assert not _core.inject_failure("scratch", 5)
    assert _core.inject_failure("scratch", -1)
    assert not _core.inject_failure("scratch", -1)


LAUNCHES = [
    *((kind, False, name) for kind in KINDS for name in operations(False, kind)),
    *((kind, True, name) for kind in SET_KINDS for name in SET_OPERATIONS),
]


#: Calls that change the table and then read what came of it, or copy the answer to the host: should the GPU fail there,
#: the change stays.
READ_AFTERWARDS = {"setdefault", "apply_and_find", "popitem", "pop"}


@pytest.mark.parametrize("planned", [False, True], ids=["direct", "planned"])
@pytest.mark.parametrize("which", LAUNCHES, ids=case_name)
def test_launches_fail(cuda: str, tmp_path: Path, which: Any, planned: bool) -> None:
    """The table is as it was, or, where a change was broken off between two kernels, says so until clear()."""
    kind, is_set, name = which
    operation = operations(is_set, kind)[name]
    case = Case(kind, is_set, Framework("torch", cuda, cuda), tmp_path, 600)

    def attempt(table: Any) -> BaseException | None:
        with partitioned(planned):
            return call(operation, case, table)

    def check(table: Any, error: BaseException | None) -> None:
        assert type(error) in (type(None), CudaError), error
        if error is None or not is_broken(table):
            if error is None or name not in READ_AFTERWARDS or case.contents(table) == case.before:
                check_after(case, operation, table, error, capacity)
            elif name == "setdefault":  # the lookup that came after the insertion has failed
                assert case.contents(table) == kept(case.before, case.batch_items)
            else:  # the copy of the answer, after the erasure
                check_after(case, operation, table, None, capacity)
            return
        assert operation.effect is not unchanged or operation.count
        uses: list[Callable[[Any], Any]] = [len, repr, copy.copy, lambda t: t.contains(case.batch)]
        for use in [*uses, lambda t: case.put(t, case.keys, case.values)]:
            with pytest.raises(CudaError, match=re.escape("clear() it and insert again")):
                use(table)
        table.clear()
        assert len(case.contents(table)) == 0
        case.put(table, case.keys, case.values)
        assert case.contents(table) == case.batch_items

    capacity = case.make(case.first, case.first_values).capacity
    each_place_fails("launch", lambda: case.make(case.first, case.first_values), attempt, check)


FIRST_CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "setitem": lambda table, keys, values: table.__setitem__(keys, values),
    "insert": lambda table, keys, values: table.insert(keys, values),
    "insert_or_apply": lambda table, keys, values: table.insert_or_apply(keys, values, "add"),
}


@pytest.mark.parametrize("failing", ["launch", "memory"])
@pytest.mark.parametrize("method", FIRST_CALLS)
def test_first_batch_of_an_empty_table_fails(cuda: str, method: str, failing: str) -> None:
    """It goes into new memory that nobody has cleared; should it fail, the table is empty, as it was, or says that it
    is broken.
    """
    keys = random_keys("int64", (), 20_000)
    place = Framework("torch", cuda, cuda)
    given, values = place.array(keys), place.array(np.arange(20_000))
    expected = Items(keys, np.arange(20_000))
    memory = RaisingMemory(cuda)

    def attempt(table: HashTable) -> BaseException | None:
        try:
            with partitioned():
                FIRST_CALLS[method](table, given, values)
        except Exception as error:
            return error.with_traceback(None)
        return None

    def check(table: HashTable, error: BaseException | None) -> None:
        if error is None:
            assert Items(*table.items()) == expected
            return
        assert type(error) is (CudaError if failing == "launch" else MemoryError)
        if is_broken(table):
            assert failing == "launch"
            table.clear()
        assert len(table) == 0
        assert not to_numpy(table.contains(given)).any()
        table[given] = values
        assert Items(*table.items()) == expected

    if failing == "launch":
        assert each_place_fails("launch", lambda: HashTable("int64", "int64", device=cuda), attempt, check) >= 4
        return
    for failures in range(MOST_PLACES):
        table = HashTable("int64", "int64", device=cuda, memory=memory)
        memory.fail(MemoryError("of this test"), failures)
        error = attempt(table)
        raised = memory.raised
        memory.fail(None)
        check(table, error)
        if not raised:
            assert error is None
            break
    else:
        pytest.fail(f"{MOST_PLACES} places were not enough")
    assert failures >= 4
    del table
    memory.check_empty()


@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "in-order"])
def test_launches_of_initializers_fail(cuda: str, deterministic: bool) -> None:
    """Nobody sees a row that was not drawn: either no key was inserted, or the table says that it is broken."""
    place = Framework("torch", cuda, cuda)
    options = {"value_shape": (5,), "device": cuda, "deterministic": deterministic, "initializer": Normal(seed=3)}
    keys = random_keys("int64", (), 600)
    expected = HashTable("int64", "float32", **{**options, "device": "cpu"})
    expected.find_or_insert(keys)

    def make() -> HashTable:
        table = HashTable("int64", "float32", **options)
        table.find_or_insert(place.array(keys[:100]))
        return table

    def attempt(table: HashTable) -> BaseException | None:
        try:
            table.find_or_insert(place.array(keys))
        except Exception as error:
            return error
        return None

    def check(table: HashTable, error: BaseException | None) -> None:
        assert type(error) in (type(None), CudaError), error
        if is_broken(table):
            with pytest.raises(CudaError, match=re.escape("clear() it and insert again")):
                table.contains(place.array(keys))
            table.clear()
            table.find_or_insert(place.array(keys))
        present = keys if error is None or len(table) == len(keys) else keys[:100]
        assert len(table) == len(present)
        assert Items(*table.items()) == Items(present, expected[present])

    assert each_place_fails("launch", make, attempt, check) >= 4


@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "in-order"])
def test_allocations_of_initializers_fail(on_device: Framework, memory: RaisingMemory, deterministic: bool) -> None:
    """In a batch for which the table has to grow."""
    keys = random_keys("int64", (), 600)
    table = HashTable(
        "int64",
        "float32",
        value_shape=(5,),
        device=on_device.table_device,
        deterministic=deterministic,
        initializer=Normal(seed=3),
        memory=memory,
    )
    table.find_or_insert(on_device.array(keys[:100]))
    before = Items(*table.items())
    for place in range(MOST_PLACES):
        memory.fail(MemoryError("of this test"), place)
        try:
            table.find_or_insert(on_device.array(keys))
        except MemoryError:
            memory.fail(None)
            assert Items(*table.items()) == before
        else:
            memory.fail(None)
            break
    assert place > 0
    alone = HashTable("int64", "float32", value_shape=(5,), initializer=Normal(seed=3))
    alone.find_or_insert(keys)
    assert Items(*table.items()) == Items(keys, alone[keys])


def is_broken(table: Any) -> bool:
    try:
        len(table)
    except CudaError:
        return True
    return False
