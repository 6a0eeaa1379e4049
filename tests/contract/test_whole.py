"""Sizes, exports, clear and reserve, whatever the face."""

from __future__ import annotations

import numpy as np
import pytest
from contract.faces import over
from contract.model import same, same_items
from contract.samples import KEYS, MIXED, filled, values_of


@over("size")
def test_size_counts_distinct_keys(face):
    table, _ = filled(face)
    assert table.size() == len(KEYS)
    table.put(MIXED, values_of(MIXED))
    assert table.size() == len({*KEYS.tolist(), *MIXED.tolist()})


@over("keys")
def test_keys_of_an_empty_table(face):
    keys = face("int32", key_shape=(2,)).keys()
    assert (keys.dtype, keys.shape) == (np.int32, (0, 2))


@over("keys", "values", "items")
def test_keys_and_values_are_in_one_order(face):
    table, model = filled(face, value_shape=(2,))
    keys, values = table.items()
    same(keys, table.keys())
    same(values, table.values())
    same(values, model.find(keys)[0])
    assert sorted(keys.tolist()) == sorted(KEYS.tolist())


@over("clear")
def test_clear_erases_all_keys(face):
    table, model = filled(face)
    table.clear()
    model.items.clear()
    same_items(table, model)
    table.put(MIXED, values_of(MIXED))
    assert table.size() == len(set(MIXED.tolist()))


@over("reserve")
def test_reserve_keeps_the_items(face):
    table, model = filled(face)
    table.reserve(10_000)
    same_items(table, model)


@over("reserve")
def test_reserve_takes_numbers_of_keys(face):
    table, model = filled(face)
    with pytest.raises(ValueError, match="size=-1 was given"):
        table.reserve(-1)
    same_items(table, model)


# A list of batches ---------------------------------------------------------------------------------------------------


@over("batches", "insert", "find", "contains", "erase")
def test_a_list_of_batches_is_answered_by_lists(face):
    """As the batches one after the other."""
    table, model = filled(face)
    batches = [MIXED, KEYS + 1000, KEYS]
    given = [values_of(batch, start=100 * number) for number, batch in enumerate(batches)]
    masks = table.insert(batches, given)
    expected = [model.insert(keys, values) for keys, values in zip(batches, given, strict=True)]
    assert [int(mask.sum()) for mask in masks] == [int(mask.sum()) for mask in expected]
    same_items(table, model)
    values, found = table.find(batches)
    for keys, value, mask in zip(batches, values, found, strict=True):
        same(value, model.find(keys)[0])
        assert mask.all()
    assert [mask.sum() for mask in table.erase([KEYS, KEYS])] == [len(KEYS), 0]
    model.erase(KEYS)
    assert [mask.tolist() for mask in table.contains([KEYS, MIXED[:1]])] == [[False] * len(KEYS), [False]]
    same_items(table, model)
