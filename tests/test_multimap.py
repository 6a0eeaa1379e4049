"""HashMultiMap: against a dict of lists."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.frameworks import Framework, spread, to_numpy
from support.memory_resources import counting_memory, fail_each_allocation
from support.samples import KEY_VECTORS, random_keys, random_values, same_bytes, type_name
from support.tuning import tuned

import gpuhash
from gpuhash import HashMultiMap

FEW_KEYS = {
    ("int64", ()): [0, 1, -1, 2**63 - 1, -(2**63), *range(2, 30), -0x4848484848484849, -0x484848484848484A],
    ("uint8", ()): list(range(256)),
    ("int32", (3,)): [(0, 0, 0), (-1, -1, -1), (2**31 - 1, 0, -(2**31)), *((i, -i, i % 3) for i in range(30))],
}


def lists_of(offsets, values) -> list[list]:
    offsets, values = to_numpy(offsets), to_numpy(values)
    return [values[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]


class MultiMapAgainstLists(RuleBasedStateMachine):
    """Send every batch to a multimap and to a dict of lists; both must tell the same story."""

    place: Framework
    key_type: tuple[str, tuple[int, ...]]
    value_shape: tuple[int, ...]
    shards: int

    @initialize(capacity=st.sampled_from([0, 1, 64]))
    def start(self, capacity):
        self.pool = FEW_KEYS[self.key_type]
        self.model: dict = {}
        self.next = 0
        self.device_name = self.place.table_device
        self.map = HashMultiMap(
            self.key_type[0],
            "int64",
            self.value_shape,
            key_shape=self.key_type[1],
            device=spread(self.place.table_device, self.shards),
            capacity=capacity,
        )

    batches = st.lists(st.integers(0, 10**6), max_size=60)

    def keys_of(self, batch):
        keys = [self.pool[number % len(self.pool)] for number in batch]
        return keys, self.place.array(np.array(keys, self.key_type[0]).reshape(len(batch), *self.key_type[1]))

    def values_of(self, numbers):
        array = np.empty((len(numbers), *self.value_shape), np.int64)
        array[:] = np.array(numbers, np.int64).reshape(-1, *(1,) * len(self.value_shape))
        return array

    def told(self, answer):
        """Lists of numbers; all elements of a value are the same."""
        offsets, values = answer
        values = to_numpy(values)
        assert values.shape[1:] == self.value_shape
        flat = values.reshape(len(values), math.prod(self.value_shape))
        assert (flat == flat[:, :1]).all()
        return lists_of(offsets, flat[:, 0])

    @rule(batch=batches)
    def insert(self, batch):
        keys, array = self.keys_of(batch)
        numbers = list(range(self.next, self.next + len(keys)))
        self.next += len(keys)
        self.map.insert(array, self.place.array(self.values_of(numbers)))
        for key, number in zip(keys, numbers, strict=True):
            self.model.setdefault(key, []).append(number)

    @rule(batch=batches, value=st.integers(-9, 9))
    def insert_one_value(self, batch, value):
        keys, array = self.keys_of(batch)
        self.map.insert(array, value)
        for key in keys:
            self.model.setdefault(key, []).append(value)

    @rule(batch=batches)
    def find_all(self, batch):
        keys, array = self.keys_of(batch)
        assert self.told(self.map.find_all(array)) == [self.model.get(key, []) for key in keys]

    @rule(batch=batches)
    def count(self, batch):
        keys, array = self.keys_of(batch)
        assert to_numpy(self.map.count(array)).tolist() == [len(self.model.get(key, [])) for key in keys]
        assert to_numpy(self.map.contains(array)).tolist() == [key in self.model for key in keys]
        for key in keys[:2]:
            assert (key in self.map) == (key in self.model)
            assert self.map.count(key) == len(self.model.get(key, []))

    @rule(batch=batches)
    def erase(self, batch):
        keys, array = self.keys_of(batch)
        assert self.map.erase(array) == sum(len(self.model.pop(key, [])) for key in dict.fromkeys(keys))

    @rule()
    def clear(self):
        self.map.clear()
        self.model.clear()

    @rule()
    def copied(self):
        kept = self.map
        self.map = copy.copy(kept)
        kept.clear()

    @rule()
    def pickled(self):
        self.map = pickle.loads(pickle.dumps(self.map))
        assert self.map.device == ",".join([self.device_name] * max(1, self.shards))

    @rule()
    def items(self):
        keys, values = self.map.items()
        names = to_numpy(keys).tolist()
        names = [tuple(name) for name in names] if self.key_type[1] else names
        values = to_numpy(values).reshape(len(names), math.prod(self.value_shape))[:, 0].tolist()
        told: dict = {}
        for name, value in zip(names, values, strict=True):
            told.setdefault(name, []).append(value)
        assert told == self.model
        assert len(list(itertools.groupby(names))) == len(self.model)  # a key's values lie side by side
        in_order = to_numpy(self.map.keys()).tolist()
        in_order = [tuple(name) for name in in_order] if self.key_type[1] else in_order
        assert list(dict.fromkeys(names)) == in_order

    @invariant()
    def same_sizes(self):
        assert len(self.map) == sum(map(len, self.model.values()))
        assert self.map.num_keys == len(self.model)
        assert bool(self.map) == bool(self.model)


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("key_type", FEW_KEYS, ids=type_name)
def test_state_machine(on_device, key_type, value_shape, shards):
    kind = {"place": on_device, "key_type": key_type, "value_shape": value_shape, "shards": shards}
    machine = type("Machine", (MultiMapAgainstLists,), kind)
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=25))


def test_every_framework(place, shards):
    keys, values = np.array([3, 1, 3, 2, 3]), np.arange(5, dtype=np.float32)
    table = HashMultiMap("int64", "float32", device=spread(place.table_device, shards))
    table.insert(place.array(keys), place.array(values))
    table.insert(place.array(keys[:2]), place.array(values[:2] + 10))
    offsets, found = table.find_all(place.array(np.array([3, 9, 1])))
    assert place.owns(offsets)
    assert place.owns(found)
    assert lists_of(offsets, found) == [[0, 2, 4, 10], [], [1, 11]]
    counts = table.count(place.array(np.array([3, 9, 1])))
    assert place.owns(counts)
    assert to_numpy(counts).tolist() == [4, 0, 2]
    keys, values = table.items(like=place.array(np.zeros(1)))
    assert place.owns(keys)
    assert place.owns(values)
    assert sorted(zip(to_numpy(keys).tolist(), to_numpy(values).tolist(), strict=True)) == [
        (1, 1),
        (1, 11),
        (2, 3),
        (3, 0),
        (3, 2),
        (3, 4),
        (3, 10),
    ]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_values_of_every_dtype(on_device, dtype, shape, shards):
    values = random_values(dtype, (300, *shape))
    keys = np.arange(300) % 7
    table = HashMultiMap("int64", dtype, shape, device=spread(on_device.table_device, shards))
    table.insert(on_device.array(keys), on_device.array(values))
    table.insert(on_device.array(keys), on_device.array(values))
    _, found = table.find_all(on_device.array(np.arange(7)))
    twice = np.concatenate([np.concatenate([values[key::7]] * 2) for key in range(7)])
    same_bytes(found, twice)
    assert table.value_dtype == dtype
    assert table.value_shape == shape


@pytest.mark.parametrize("key_type", KEY_VECTORS, ids=type_name)
def test_vector_keys(on_device, key_type, shards):
    dtype, shape = key_type
    pool = random_keys(dtype, shape, 20, 1)
    draws = np.random.default_rng(2).integers(0, len(pool), 200)
    table = HashMultiMap(dtype, "int64", key_shape=shape, device=spread(on_device.table_device, shards))
    table.insert(on_device.array(pool[draws]), on_device.array(np.arange(200)))
    assert lists_of(*table.find_all(on_device.array(pool))) == [
        np.flatnonzero(draws == key).tolist() for key in range(len(pool))
    ]


def test_batches_of_several_dimensions(on_device, shards):
    table = HashMultiMap("int32", "int64", device=spread(on_device.table_device, shards))
    keys = np.arange(6, dtype=np.int32).reshape(2, 3)
    table.insert(on_device.array(keys), on_device.array(np.arange(6).reshape(2, 3)))
    offsets, values = table.find_all(on_device.array(keys[::-1]))
    assert to_numpy(offsets).tolist() == list(range(7))
    assert to_numpy(values).tolist() == [3, 4, 5, 0, 1, 2]
    assert to_numpy(table.count(on_device.array(keys))).shape == (2, 3)


def test_many_values_on_threads(on_device, threads, shards):
    """More than a thread's share: one key with most of them, and keys with few."""
    rng = np.random.default_rng(3)
    keys = np.where(rng.random(200_000) < 0.5, 7, rng.integers(0, 50_000, 200_000))
    table = HashMultiMap("int64", "int64", device=spread(on_device.table_device, shards))
    for part in np.array_split(np.arange(len(keys)), [10, 100_000]):
        table.insert(on_device.array(keys[part]), on_device.array(part))
    asked = np.arange(50_001)
    offsets, values = (to_numpy(array) for array in table.find_all(on_device.array(asked)))
    np.testing.assert_array_equal(np.diff(offsets), np.bincount(keys, minlength=50_001))
    np.testing.assert_array_equal(values, np.argsort(keys, kind="stable"))
    assert len(table) == 200_000


def test_small_batches_after_a_large_one_are_no_copies(on_device):
    """The log is written anew only once it has doubled, however often keys are found between insertions."""
    table = HashMultiMap("int64", "int64", device=on_device.table_device)
    keys = np.arange(1000)
    table.insert(on_device.array(keys), on_device.array(keys))
    logs = set()
    for number in range(300):
        table.insert(on_device.array(keys[:4]), number)
        assert lists_of(*table.find_all(on_device.array(keys[:1]))) == [[0, *range(number + 1)]]
        logs.add(id(table._logs))
    assert len(logs) <= 2


def test_dead_values_go(on_device, shards):
    table = HashMultiMap("int64", "int64", device=spread(on_device.table_device, shards))
    keys = np.arange(10_000)
    for _ in range(5):
        table.insert(on_device.array(keys), 1)
        assert table.erase(on_device.array(keys[:9_000])) == 9_000
        assert table._logs.length <= 2 * len(table)
    assert to_numpy(table.count(on_device.array(keys[[0, 9_500]]))).tolist() == [0, 5]


def test_files(on_device, shards, tmp_path):
    device = spread(on_device.table_device, shards)
    table = HashMultiMap("uint16", "bfloat16", 2, device=device, max_load_factor=0.5, seed=9)
    keys, values = np.array([5, 6, 5], np.uint16), random_values("bfloat16", (3, 2))
    table.insert(on_device.array(keys), on_device.array(values))
    table.save(tmp_path / "map")
    for load in (HashMultiMap.load, gpuhash.load):
        loaded = load(tmp_path / "map", device=device)
        assert type(loaded) is HashMultiMap
        assert repr(loaded) == repr(table)
        same_bytes(loaded.find_all(on_device.array(keys[:2]))[1], values[[0, 2, 1]])
    elsewhere = HashMultiMap.load(tmp_path / "map", device=["cpu"] * 2)
    same_bytes(elsewhere.find_all(keys[:2])[1], values[[0, 2, 1]])
    for kind in (gpuhash.HashTable, gpuhash.HashSet):
        with pytest.raises(ValueError, match=r"holds a multimap, not a (table|set): load it with gpuhash.HashMultiMap"):
            kind.load(tmp_path / "map")
    gpuhash.HashSet("int64").save(tmp_path / "set")
    with pytest.raises(ValueError, match=r"holds a set, not a multimap: load it with gpuhash.HashSet.load"):
        HashMultiMap.load(tmp_path / "set")
    with pytest.raises(ValueError, match="a HashMultiMap has no name"):
        HashMultiMap.load(tmp_path / "map", name="words")


@pytest.mark.parametrize("shape", [(3,), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("fingerprint_bits", [3, 63])
def test_keys_of_more_than_16_bytes(device, shape, fingerprint_bits, shards):
    rng = np.random.default_rng(len(shape))
    keys = np.zeros((40, 25, *shape), "int64")
    keys[..., -1] = rng.integers(0, 50, (40, 25, *shape[:-1]))
    with tuned(fingerprint_bits=fingerprint_bits):
        table = HashMultiMap("int64", "int32", key_shape=shape, device=spread(device, shards))
        numbers = np.arange(1000, dtype="int32").reshape(40, 25)
        table.insert(keys[:20], numbers[:20])
        table.insert(keys[20:].reshape(500, *shape), numbers[20:].reshape(500))
        table.insert(keys[0, 0], 7)
        flat = keys.reshape(1000, *shape)
        expected: dict[bytes, list[int]] = {}
        for number, key in enumerate(flat):
            expected.setdefault(key.tobytes(), []).append(number)
        expected[flat[0].tobytes()].append(7)
        assert (len(table), table.num_keys) == (1001, len(expected))
        for one in (table, table.copy(), pickle.loads(pickle.dumps(table))):
            assert lists_of(*one.find_all(flat)) == [expected[key.tobytes()] for key in flat]
        erased = sum(len(expected[key]) for key in {key.tobytes() for key in flat[:100]})
        assert table.erase(flat[:100]) == erased
        left = [key.tobytes() not in {gone.tobytes() for gone in flat[:100]} for key in flat]
        assert table.contains(flat).tolist() == left


@pytest.mark.parametrize("columns", [{"a": "int64", "b": "int32"}, {"a": "int64", "b": "int64", "c": "uint8"}], ids=len)
def test_key_columns(device, columns, shards, tmp_path):
    rng = np.random.default_rng(len(columns))
    keys = {name: rng.integers(0, 4, 500).astype(dtype) for name, dtype in columns.items()}
    table = HashMultiMap(columns, "int64", device=spread(device, shards))
    table.insert(keys, np.arange(500))
    expected: dict[tuple[int, ...], list[int]] = {}
    for number, key in enumerate(zip(*(column.tolist() for column in keys.values()), strict=True)):
        expected.setdefault(key, []).append(number)
    path = tmp_path / "map.safetensors"
    table.save(path)
    loaded = HashMultiMap.load(path, device=device)
    for one in (table, loaded, table.copy(), pickle.loads(pickle.dumps(table))):
        assert dict(one.key_columns) == columns
        found, values = one.items()
        assert {name: to_numpy(column).dtype.name for name, column in found.items()} == columns
        told: dict[tuple[int, ...], list[int]] = {}
        held = zip(*(to_numpy(column).tolist() for column in found.values()), strict=True)
        for key, value in zip(held, to_numpy(values).tolist(), strict=True):
            told.setdefault(key, []).append(value)
        assert told == expected
        assert (0,) * len(columns) in one
        assert one.count(keys).tolist() == [len(expected[key]) for key in zip(*keys.values(), strict=True)]
    said = ", ".join(f"{name}: {dtype}" for name, dtype in columns.items())
    assert f"HashMultiMap {{{said}}} -> int64, size" in repr(table)


def test_a_derived_class_stays_one():
    class Postings(HashMultiMap):
        def __init__(self, greeting):
            super().__init__("int64", "int64")

    table = Postings("hello")
    table.insert([1, 1], [2, 3])
    assert type(table.copy()) is Postings
    assert lists_of(*copy.deepcopy(table).find_all([1])) == [[2, 3]]


def test_single_keys_and_what_is_out_of_range():
    table = HashMultiMap("uint8", "int64")
    table.insert(3, 8)
    assert lists_of(*table.find_all(3)) == [[8]]
    assert lists_of(*table.find_all(300)) == [[]]
    assert table.count(300) == table.erase(-1) == 0
    assert 300 not in table
    with pytest.raises(OverflowError):
        table.insert(300, 1)
    with pytest.raises(TypeError, match="takes one key"):
        np.array([1, 2], np.uint8) in table  # noqa: B015


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("float32", "int64"), {}, TypeError, "float32"),
        (("int64", "text"), {}, TypeError, "text"),
        (("int64", "int64", (0,)), {}, ValueError, r"value_shape=\(0,\)"),
        (("int64", "int64"), {"device": []}, ValueError, "platform"),
        (("int64", "int64"), {"capacity": -1}, ValueError, "capacity=-1"),
    ],
)
def test_what_cannot_be_made(arguments, options, error, message):
    with pytest.raises(error, match=message):
        HashMultiMap(*arguments, **options)


def test_bad_batches_change_nothing(on_device):
    table = HashMultiMap("int64", "float32", 2, device=on_device.table_device)
    keys = on_device.array(np.array([1, 2]))
    for values, error in [
        (np.zeros((3, 2), np.float32), ValueError),
        (np.zeros((2, 2), np.float64), TypeError),
        (np.zeros((2, 3), np.float32), ValueError),
    ]:
        with pytest.raises(error):
            table.insert(keys, on_device.array(values))
    with pytest.raises(TypeError):
        table.find_all(on_device.array(np.zeros(2, np.float32)))
    assert len(table) == table.num_keys == 0


def test_it_is_no_array():
    with pytest.raises(TypeError, match="a HashMultiMap is no array: give its keys"):
        gpuhash.unique(HashMultiMap("int64", "int64"))


def test_each_allocation_fails_once(device, shards):
    memory = counting_memory(device)
    options = {"device": spread(device, shards), "memory": [memory] * shards if shards else memory}
    keys, values = np.array([1, 2, 1, 3]), np.arange(4)

    def run() -> None:
        table = HashMultiMap("int64", "int64", **options)
        model: dict = {}
        for number in range(6):
            before = len(table)
            try:
                table.insert(keys + number % 3, values)
            except MemoryError:
                memory.fail_at, at = None, memory.fail_at
                assert len(table) == before == sum(map(len, model.values()))
                assert lists_of(*table.find_all([1, 2, 3, 4, 5])) == [model.get(key, []) for key in range(1, 6)]
                memory.fail_at = at
                raise
            for key, value in zip((keys + number % 3).tolist(), values.tolist(), strict=True):
                model.setdefault(key, []).append(value)
            table.find_all(keys)
        table.erase(keys)
        assert lists_of(*table.find_all([4, 5])) == [model[4], model[5]]
        assert len(table.copy()) == len(table)

    fail_each_allocation(memory, run)
    assert not memory.mistakes
    assert memory.nbytes == 0


@pytest.mark.parametrize("key_shape", [(), (5,)], ids=["int64", "wide"])
@pytest.mark.parametrize("have", [0, 1, 400, 600, 999])
def test_what_some_shards_have_is_taken_back(device, key_shape, have, monkeypatch):
    """On GPUs a shard may find no memory when others have changed."""
    rng = np.random.default_rng(have)
    keys = rng.permutation(1000).reshape(-1, *[1] * len(key_shape)).repeat(max(1, math.prod(key_shape)), -1)
    keys = keys.reshape(-1, *key_shape)
    table = HashMultiMap("int64", "int64", key_shape=key_shape, device=[device] * 3)
    table.insert(keys[:500], np.arange(500))
    table.insert(keys[100:200], np.arange(100))
    before = lists_of(*table.find_all(keys))

    class Forgetful:
        """A table that changes the first of the keys, and then has no memory."""

        def __init__(self, core):
            self.core = core

        def __getattr__(self, name):
            return getattr(self.core, name)

        def look_up(self, requests):
            return self.core.look_up([(self.core, *rest) for _, *rest in requests])

        def erase(self, requests):
            return self.core.erase([(self.core, *rest) for _, *rest in requests])

        def change(self, requests):
            ((_, given, writes, *rest),) = requests
            if self.failed:
                return self.core.change([(self.core, given, writes, *rest)])
            self.failed = True
            some = [(c, array if every else array.part(0, have), every, action) for c, array, every, action in writes]
            self.core.change([(self.core, given.part(0, have), some, *rest)])
            raise MemoryError("in this test")

        failed = False

    take = gpuhash.HashTable._take

    def forgetful(*arguments):
        batch = take(*arguments)
        batch.core = Forgetful(batch.core)
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(gpuhash.HashTable, "_take", forgetful)
        with pytest.raises(MemoryError, match="in this test"):
            table.insert(np.concatenate([keys, keys[:50]]), np.arange(1050))
    assert (len(table), table.num_keys) == (600, 500)
    assert lists_of(*table.find_all(keys)) == before
    table.insert(keys, 7)
    assert lists_of(*table.find_all(keys)) == [[*values, 7] for values in before]
    assert (len(table), table.num_keys) == (1600, 1000)


def test_threads_take_turns():
    table = HashMultiMap("int64", "int64")

    def work(thread: int) -> None:
        for number in range(50):
            table.insert(np.arange(20), thread * 1000 + number)
            table.find_all(np.arange(20))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for values in lists_of(*table.find_all(np.arange(20))):
        assert len(values) == 200
        for thread in range(4):
            assert [value for value in values if value // 1000 == thread] == [thread * 1000 + n for n in range(50)]
