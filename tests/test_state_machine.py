"""All operations in any order, against a dict."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.frameworks import Framework, gpu_count, spread, to_numpy
from support.samples import type_name
from support.tuning import partitioned, tuned

from gpuhash import HashTable

FEW_KEYS = {  # few, so that keys return after they were erased; special ones among them
    ("int64", ()): [0, 1, -1, 2**63 - 1, -(2**63), *range(2, 60), -0x4848484848484849, -0x484848484848484A],
    ("uint8", ()): list(range(256)),
    ("int32", (3,)): [(0, 0, 0), (-1, -1, -1), (2**31 - 1, 0, -(2**31)), *((i, -i, i % 3) for i in range(60))],
}
#: Of more than 16 bytes: they lie in rows.
WIDE_KEYS = {
    ("uint8", (17,)): [(0,) * 17, (255,) * 17, *((i, *range(15), i % 3) for i in range(60))],
    ("int32", (6,)): [(0,) * 6, (-1,) * 6, *((i, -i, i % 3, 0, 2**31 - 1, i // 8) for i in range(60))],
}
FOLDS = {"add": lambda a, b: a + b, "min": min, "max": max, "keep": lambda a, b: a, "replace": lambda a, b: b}


class TableAgainstDict(RuleBasedStateMachine):
    """Send every batch to a table and to a dict; both must tell the same story."""

    place: Framework
    key_type: tuple[str, tuple[int, ...]]
    value_type: tuple[str, tuple[int, ...]]
    device: object = None  # of the table; None: that of the place
    deterministic = True  # otherwise batches have no duplicates: any of them might win

    @initialize(data=st.data())
    def start(self, data):
        self.pool = {**FEW_KEYS, **WIDE_KEYS}[self.key_type]
        self.model = {}
        self.table = HashTable(
            self.key_type[0],
            self.value_type[0],
            key_shape=self.key_type[1],
            value_shape=self.value_type[1],
            device=self.device or self.place.table_device,
            deterministic=self.deterministic,
            capacity=data.draw(st.sampled_from([0, 1, 64, 1000])),
            max_load_factor=data.draw(st.sampled_from([0.3, 0.8, 1.0])),
        )

    batches = st.lists(st.tuples(st.integers(0, 10**6), st.integers(-9, 9)), max_size=70)

    def allowed(self, batch):
        if self.deterministic:
            return batch
        return list({self.pool[number % len(self.pool)]: (number, value) for number, value in batch}.values())

    def keys_of(self, batch):
        """Keys as the dict has them, and as an array."""
        batch = self.allowed(batch)
        keys = [self.pool[number % len(self.pool)] for number, _ in batch]
        return keys, self.place.array(np.array(keys, self.key_type[0]).reshape(len(batch), *self.key_type[1]))

    def values_of(self, batch):
        batch = self.allowed(batch)
        numbers = [number for _, number in batch]
        array = np.empty((len(batch), *self.value_type[1]), self.value_type[0])
        array[:] = np.array(numbers).reshape(-1, *(1,) * len(self.value_type[1]))
        return numbers, self.place.array(array)

    def numbers(self, array):
        """Values as the dict has them; all elements of a row are the same."""
        array = to_numpy(array)
        flat = array.reshape(len(array), int(np.prod(array.shape[1:])))
        assert (flat == flat[:, :1]).all()
        return flat[:, 0].tolist()

    def is_new(self, keys):
        seen = set(self.model)
        return [not (key in seen or seen.add(key)) for key in keys]

    @rule(batch=batches)
    def setitem(self, batch):
        (keys, array), (numbers, values) = self.keys_of(batch), self.values_of(batch)
        self.table[array] = values
        self.model.update(zip(keys, numbers, strict=True))

    @rule(batch=batches)
    def insert_or_assign(self, batch):
        (keys, array), (numbers, values) = self.keys_of(batch), self.values_of(batch)
        assert to_numpy(self.table.insert_or_assign(array, values)).tolist() == self.is_new(keys)
        self.model.update(zip(keys, numbers, strict=True))

    @rule(batch=batches)
    def insert(self, batch):
        (keys, array), (numbers, values) = self.keys_of(batch), self.values_of(batch)
        assert to_numpy(self.table.insert(array, values)).tolist() == self.is_new(keys)
        for key, number in zip(keys, numbers, strict=True):
            self.model.setdefault(key, number)

    @rule(batch=batches, op=st.sampled_from(sorted(FOLDS)))
    def insert_or_apply(self, batch, op):
        (keys, array), (numbers, values) = self.keys_of(batch), self.values_of(batch)
        self.same_new_keys(keys, self.table.insert_or_apply(array, values, op))
        self.apply_to_model(keys, numbers, op)

    @rule(batch=batches, op=st.sampled_from(sorted(FOLDS)))
    def apply_and_find(self, batch, op):
        (keys, array), (numbers, values) = self.keys_of(batch), self.values_of(batch)
        found, is_new = self.table.apply_and_find(array, values, op)
        self.same_new_keys(keys, is_new)
        self.apply_to_model(keys, numbers, op)
        assert self.numbers(found) == [self.model[key] for key in keys]

    def same_new_keys(self, keys, is_new):
        """One of each new key's duplicates is told to be new: on a GPU, of values that are combined, any one."""
        told = [key for key, new in zip(keys, to_numpy(is_new).tolist(), strict=True) if new]
        assert sorted(told) == sorted({*keys} - {*self.model})

    def apply_to_model(self, keys, numbers, op):
        for key, number in zip(keys, numbers, strict=True):
            self.model[key] = FOLDS[op](self.model[key], number) if key in self.model else number

    @rule(batch=batches)
    def setdefault(self, batch):
        (keys, array), (numbers, values) = self.keys_of(batch), self.values_of(batch)
        got = self.numbers(self.table.setdefault(array, values))
        assert got == [self.model.setdefault(key, number) for key, number in zip(keys, numbers, strict=True)]

    @rule(batch=batches)
    def erase(self, batch):
        keys, array = self.keys_of(batch)
        expected = [self.model.pop(key, None) is not None for key in keys]
        assert to_numpy(self.table.erase(array)).tolist() == expected

    @rule(batch=batches)
    def delete(self, batch):
        keys, array = self.keys_of(batch)
        if all(key in self.model for key in keys):
            del self.table[array]
            for key in set(keys):
                del self.model[key]
        else:
            with pytest.raises(KeyError):
                del self.table[array]

    @rule(batch=batches)
    def pop(self, batch):
        keys, array = self.keys_of(batch)
        got = self.numbers(self.table.pop(array, -99))
        assert got == [self.model.get(key, -99) for key in keys]
        for key in keys:
            self.model.pop(key, None)

    @rule(batch=batches)
    def find(self, batch):
        keys, array = self.keys_of(batch)
        values, found = self.table.find(array, default=-77)
        assert self.numbers(values) == [self.model.get(key, -77) for key in keys]
        assert to_numpy(found).tolist() == [key in self.model for key in keys]
        assert to_numpy(self.table.contains(array)).tolist() == [key in self.model for key in keys]

    @rule(batch=batches)
    def getitem(self, batch):
        keys, array = self.keys_of(batch)
        if all(key in self.model for key in keys):
            assert self.numbers(self.table[array]) == [self.model[key] for key in keys]
        else:
            with pytest.raises(KeyError):
                self.table[array]

    @rule(batch=batches)
    def get(self, batch):
        keys, array = self.keys_of(batch)
        assert self.numbers(self.table.get(array, -55)) == [self.model.get(key, -55) for key in keys]

    @rule(batch=batches)
    def update_with_pairs(self, batch):
        keys, numbers = self.keys_of(batch)[0], self.values_of(batch)[0]
        values = [np.full(self.value_type[1], number).tolist() for number in numbers]
        self.table.update(list(zip(keys, values, strict=True)))
        self.model.update(zip(keys, numbers, strict=True))

    @rule()
    def iterate(self):
        assert sorted(self.table) == sorted(self.model)

    @rule(number=st.integers(0, 10**6))
    def one_key(self, number):
        key = self.pool[number % len(self.pool)]
        assert (key in self.table) == (key in self.model)

    @precondition(lambda self: self.model)
    @rule()
    def popitem(self):
        key, value = self.table.popitem()
        assert self.numbers(np.asarray(value)[None]) == [self.model.pop(key)]

    @rule(batch=batches)
    def union_with_another_table(self, batch):
        other = HashTable(
            self.key_type[0], self.value_type[0], key_shape=self.key_type[1], value_shape=self.value_type[1]
        )
        if batch:
            keys, numbers = self.keys_of(batch)[0], self.values_of(batch)[0]
            other.update(to_numpy(self.keys_of(batch)[1]), to_numpy(self.values_of(batch)[1]))
            self.model.update(zip(keys, numbers, strict=True))
        self.table |= other

    @rule()
    def clear(self):
        self.table.clear()
        self.model.clear()

    @rule(slots=st.sampled_from([0, 1, 100, 3000]))
    def rehash(self, slots):
        self.table.rehash(slots)
        assert self.table.capacity >= slots

    @rule(size=st.sampled_from([0, 10, 2000]))
    def reserve(self, size):
        self.table.reserve(size)

    @rule()
    def shrink_to_fit(self):
        self.table.shrink_to_fit()

    @rule(factor=st.sampled_from([0.3, 0.8, 1.0]))
    def max_load_factor(self, factor):
        self.table.max_load_factor = factor

    @rule(way=st.sampled_from(["copy", "deepcopy", "pickle", "to"]))
    def duplicate(self, way):
        old = self.table
        if way == "copy":
            self.table = old.copy()
        elif way == "deepcopy":
            self.table = copy.deepcopy(old)
        elif way == "pickle":
            self.table = pickle.loads(pickle.dumps(old))
        else:
            self.table = old.to("cpu").to(self.device or self.place.table_device)
        assert self.table == old

    @invariant()
    def same_items(self):
        if not hasattr(self, "table"):
            return
        keys, values = self.table.items()
        keys = to_numpy(keys).tolist()
        keys = list(map(tuple, keys)) if self.key_type[1] else keys
        assert len(keys) == len(self.model) == len(self.table)
        assert dict(zip(keys, self.numbers(values), strict=True)) == self.model
        assert len(self.table) <= self.table.capacity


@pytest.mark.parametrize("value_type", [("int64", ()), ("float32", (2,))], ids=type_name)
@pytest.mark.parametrize("key_type", FEW_KEYS, ids=type_name)
def test_any_order_of_operations(on_device, key_type, value_type):
    class Machine(TableAgainstDict):
        pass

    Machine.place, Machine.key_type, Machine.value_type = on_device, key_type, value_type
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=30, stateful_step_count=40, derandomize=True, deadline=None)
    )


@pytest.mark.parametrize("bits", [0, 3, 63])
@pytest.mark.parametrize("value_type", [("int64", ()), ("float32", (2,))], ids=type_name)
@pytest.mark.parametrize("key_type", WIDE_KEYS, ids=type_name)
def test_any_order_of_operations_with_wide_keys(on_device, key_type, value_type, bits, shards):
    class Machine(TableAgainstDict):
        pass

    Machine.place, Machine.key_type, Machine.value_type = on_device, key_type, value_type
    Machine.device = spread(on_device.table_device, shards)
    with tuned(fingerprint_bits=bits):
        run_state_machine_as_test(
            Machine, settings=settings(max_examples=20, stateful_step_count=40, derandomize=True, deadline=None)
        )


@pytest.mark.parametrize("key_type", FEW_KEYS, ids=type_name)
def test_any_order_of_operations_on_partitioned_batches(on_device, key_type):
    class Machine(TableAgainstDict):
        pass

    Machine.place, Machine.key_type, Machine.value_type = on_device, key_type, ("int64", ())
    Machine.deterministic = False
    with partitioned():
        run_state_machine_as_test(
            Machine, settings=settings(max_examples=15, stateful_step_count=40, derandomize=True, deadline=None)
        )


@pytest.mark.parametrize("value_type", [("int64", ()), ("float32", (2,))], ids=type_name)
@pytest.mark.parametrize("key_type", FEW_KEYS, ids=type_name)
def test_any_order_of_operations_on_shards(on_device, key_type, value_type):
    class Machine(TableAgainstDict):
        pass

    Machine.place, Machine.key_type, Machine.value_type = on_device, key_type, value_type
    others = {"cpu"} if on_device.table_device == "cpu" else {f"cuda:{index}" for index in range(gpu_count())}
    Machine.device = [on_device.table_device, *sorted(others), on_device.table_device]
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=15, stateful_step_count=40, derandomize=True, deadline=None)
    )
