"""What is left when keys have been erased, whatever the face."""

from __future__ import annotations

import numpy as np
import pytest
from contract.faces import over, over_each
from contract.model import same, same_items
from contract.samples import ABSENT, ERASURES, KEYS, MIXED, filled, values_of

#: Two keys that are there, one of them twice.
SOME = np.array([5, -3, 5])


@over("erase", compiled=True)
def test_erase_passes_over_absent_keys(face):
    """The mask is true for one of an erased key's duplicates."""
    table, model = filled(face)
    mask = table.erase(MIXED)
    assert mask.sum() == model.erase(MIXED).sum() == 2
    assert sorted(MIXED[mask].tolist()) == [-3, 5]
    same_items(table, model)


@over("erase", "insert")
def test_erased_keys_are_new_again(face):
    table, model = filled(face)
    table.erase(KEYS)
    model.erase(KEYS)
    same_items(table, model)
    values = values_of(KEYS)
    assert table.insert(KEYS, values).all()
    model.insert(KEYS, values)
    same_items(table, model)


@over("erase")
def test_erase_of_no_keys(face):
    table, model = filled(face)
    assert table.erase(KEYS[:0]).tolist() == []
    same_items(table, model)


@over("delete")
def test_del_erases_keys_that_are_all_there(face):
    table, model = filled(face)
    table.delete(SOME)
    model.erase(SOME)
    same_items(table, model)


@over_each(("delete", "pop"), unless=lambda face: not face.raises_for_absent)
def test_an_absent_key_leaves_all_keys_where_they_are(face, call):
    table, model = filled(face)
    with pytest.raises(table.absent_error, match="absent"):
        getattr(table, call)(np.concatenate([KEYS, ABSENT]))
    same_items(table, model)


@over("pop")
def test_pop_gives_the_values_of_all_duplicates(face):
    table, model = filled(face)
    expected = model.find(SOME)[0]
    same(table.pop(SOME), expected)
    model.erase(SOME)
    same_items(table, model)


@over("pop")
def test_pop_with_a_default_takes_absent_keys(face):
    table, model = filled(face)
    expected = model.find(MIXED, np.int64(-4))[0]
    same(table.pop(MIXED, np.asarray(-4)), expected)
    model.erase(MIXED)
    same_items(table, model)


@over("popitem")
def test_popitem_takes_one_after_the_other(face):
    table, model = filled(face)
    popped = dict(table.popitem() for _ in range(len(KEYS)))
    assert popped == {key: int(row[""]) for key, row in model.items.items()}
    with pytest.raises(KeyError, match="empty"):
        table.popitem()


@over_each(ERASURES)
def test_erasures_from_a_large_table(face, call):
    """Every other key goes, and the others keep their values."""
    keys = np.arange(4000) * 31
    table, model = filled(face, keys)
    getattr(table, call)(keys[::2].copy())
    model.erase(keys[::2])
    same_items(table, model)
