"""What becomes of keys and values that are put into a table, whatever its face."""

from __future__ import annotations

import numpy as np
import pytest
from contract.faces import over, over_each, without_values
from contract.model import Model, check_mask, same, same_items
from contract.samples import CHANGES, KEYS, MIXED, change, change_model, filled, options_for, values_of
from support.samples import UFUNCS, special_keys


@over_each(CHANGES, compiled=True)
def test_known_and_new_keys(face, call):
    """Some of them twice: the last value stays where values are assigned, else the first."""
    table, model = filled(face, **options_for(call))
    known, values = set(model.items), values_of(MIXED, table.value_shape)
    mask = change(table, call, MIXED, values)
    change_model(model, call, MIXED, values)
    if mask is not None:
        check_mask(mask, MIXED, model, known)
    same_items(table, model)


@over_each(CHANGES)
def test_a_batch_without_keys_changes_nothing(face, call):
    table, model = filled(face, **options_for(call))
    mask = change(table, call, KEYS[:0], values_of(KEYS[:0], table.value_shape))
    assert mask is None or mask.shape == (0,)
    same_items(table, model)


@over_each(CHANGES)
def test_a_batch_of_one_key(face, call):
    table, model = filled(face, **options_for(call))
    keys = np.array([99])
    values = values_of(keys, table.value_shape)
    mask = change(table, call, keys, values)
    change_model(model, call, keys, values)
    assert mask is None or mask.tolist() == [True]
    same_items(table, model)


@over_each(CHANGES)
def test_batches_of_two_dimensions(face, call):
    table, model = filled(face, **options_for(call))
    known, keys = set(model.items), MIXED.reshape(2, 4)
    values = values_of(keys, table.value_shape)
    mask = change(table, call, keys, values)
    change_model(model, call, keys, values)
    if mask is not None:
        check_mask(mask, keys, model, known)
    same_items(table, model)


@over_each(CHANGES, unless=without_values)
def test_one_value_for_all_keys(face, call):
    table, model = filled(face, **options_for(call))
    value = values_of(0, table.value_shape)
    change(table, call, MIXED, value)
    change_model(model, call, MIXED, value)
    same_items(table, model)


@over_each(("insert", "insert_or_assign", "setitem", "insert_or_apply", "setdefault"))
def test_growth_within_a_batch(face, call):
    """From no slots at all, by keys of which each comes twice."""
    table, model = face(capacity=0), Model()
    keys = np.random.default_rng(0).permutation(np.repeat(np.arange(5000) * 7919, 2))
    values = values_of(keys)
    mask = change(table, call, keys, values)
    change_model(model, call, keys, values)
    if mask is not None:
        check_mask(mask, keys, model, ())
    same_items(table, model)


@pytest.mark.parametrize("key_dtype", ["int64", "uint8", "int32"])
@over("insert", "contains")
def test_all_bit_patterns_are_keys(face, key_dtype):
    keys = special_keys(key_dtype)
    table = face(key_dtype)
    absent = keys + np.array(1, key_dtype)
    absent = np.setdiff1d(absent, keys)
    assert table.insert(keys, values_of(keys)).all()
    assert table.contains(keys).all()
    assert not table.contains(absent).any()
    assert sorted(table.keys().tolist()) == sorted(keys.tolist())


@over("insert", "contains", "erase")
def test_keys_that_are_vectors(face):
    table, model = face("int32", key_shape=(3,)), Model(key_shape=(3,))
    keys = np.array([[1, 2, 3], [3, 2, 1], [1, 2, 3], [-1, 0, 2**31 - 1]], np.int32)
    mask = table.insert(keys, values_of(keys[:, 0]))
    model.insert(keys, values_of(keys[:, 0]))
    check_mask(mask, keys, model, ())
    assert table.contains(np.concatenate([keys, keys + 1])).tolist() == [True] * 4 + [False] * 4
    same_items(table, model)
    check_mask(table.erase(keys[:3]), keys[:3], model, ())
    assert table.size() == 1


@over("insert_or_assign", "find")
def test_bits_of_floats_stay(face):
    """NaN with any payload, both zeros, infinities and subnormal numbers."""
    bits = np.array([0x7FC00000, 0x7FC12345, 0xFFC00001, 0x80000000, 0, 0x7F800000, 0x00000001, 0x807FFFFF], np.uint32)
    table = face("int64", "float32")
    keys, values = np.arange(len(bits)), bits.view(np.float32)
    table.insert_or_assign(keys, values)
    same(table.find(keys)[0].view(np.uint32), bits)


@over_each(("insert", "insert_or_assign", "setitem"))
def test_arrays_that_are_strided_or_read_only(face, call):
    table, model = filled(face)
    wide = np.repeat(MIXED, 3)
    keys, values = wide[::3], values_of(wide)[::-3]
    keys.flags.writeable = values.flags.writeable = False
    change(table, call, keys, values)
    change_model(model, call, keys, values)
    same_items(table, model)


# Operations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [*UFUNCS, "bit-and", "bit-or", "bit-xor", "keep", "replace"])
@over("insert_or_apply")
def test_operations_take_all_duplicates(face, op):
    table, model = filled(face)
    known, values = set(model.items), values_of(MIXED, start=3)
    mask = table.insert_or_apply(MIXED, values, op)
    model.insert_or_apply(MIXED, values, op)
    check_mask(mask, MIXED, model, known)
    same_items(table, model)


@pytest.mark.parametrize("op", ["add", "max", "keep", "replace"])
@over("apply_and_find")
def test_what_values_come_to(face, op):
    """All of a key's duplicates get the value that it has once the whole batch has been applied."""
    table, model = filled(face)
    known, values = set(model.items), values_of(MIXED, start=3)
    got, is_new = table.apply_and_find(MIXED, values, op)
    model.insert_or_apply(MIXED, values, op)
    same(got, model.find(MIXED)[0])
    check_mask(is_new, MIXED, model, known)
    same_items(table, model)


@over("apply_and_find")
def test_what_one_value_for_all_comes_to(face):
    table, model = face(value_shape=(2,)), Model(value_shape=(2,))
    for _ in range(2):
        got, _ = table.apply_and_find(MIXED, np.array([1, 10]), "add")
        model.insert_or_apply(MIXED, np.array([1, 10]), "add")
        same(got, model.find(MIXED)[0])


@over("insert_or_apply")
def test_integers_wrap(face):
    table, model = face("int64", "int8"), Model("int8")
    keys, values = np.array([1, 1, 1, 2]), np.array([100, 100, 100, 5], np.int8)
    table.insert_or_apply(keys, values, "add")
    with np.errstate(over="ignore"):
        model.insert_or_apply(keys, values, "add")
    same_items(table, model)


# Python's own numbers ------------------------------------------------------------------------------------------------


def _takes_no_python(face):
    return not face.takes_python


@over("insert", unless=_takes_no_python)
def test_a_single_key_is_answered_by_a_bool(face):
    table, _ = filled(face)
    assert table.insert(99, 1) is True
    assert table.insert(99, 2) is False
    assert table.size() == len(KEYS) + 1


@over("insert", unless=_takes_no_python)
def test_lists_are_batches(face):
    table, model = filled(face)
    known = set(model.items)
    check_mask(table.insert(MIXED.tolist(), values_of(MIXED).tolist()), MIXED, Model(), known)
    model.insert(MIXED, values_of(MIXED))
    same_items(table, model)


# Row numbers ---------------------------------------------------------------------------------------------------------


@over("find_or_insert", "rows")
def test_find_or_insert_gives_rows_and_which_are_new(face):
    table, model = filled(face, value_shape=(2,))
    known = set(model.items)
    before = table.rows(KEYS)
    rows, is_new = table.find_or_insert(MIXED, values_of(MIXED, (2,)))
    check_mask(is_new, MIXED, model, known)
    assert rows.dtype == np.int64
    assert rows.tolist() == table.rows(MIXED).tolist()
    assert (rows >= 0).all()
    assert len(set(rows.tolist())) == len(set(MIXED.tolist()))
    assert table.rows(KEYS).tolist() == before.tolist()


@over("find_or_insert", "find")
def test_find_or_insert_without_values_gives_new_rows_zeros(face):
    table, model = filled(face, value_shape=(2,))
    _, is_new = table.find_or_insert(MIXED)
    check_mask(is_new, MIXED, model, set(model.items))
    model.insert(MIXED, np.zeros(2, np.int64))
    same_items(table, model)


@over("find_or_insert")
def test_find_or_insert_needs_rows(face):
    table, model = filled(face)
    with pytest.raises(table.shape_error, match="row"):
        table.find_or_insert(MIXED, values_of(MIXED))
    same_items(table, model)


@over("setdefault")
def test_setdefault_gives_the_values_of_all(face):
    table, model = filled(face)
    values = values_of(MIXED)
    got = table.setdefault(MIXED, values)
    model.insert(MIXED, values)
    same(got, model.find(MIXED)[0])
    same_items(table, model)


@over("setdefault", unless=lambda face: face.always_has_default)
def test_setdefault_without_a_default_is_an_error(face):
    table, model = filled(face)
    with pytest.raises(ValueError, match="setdefault needs a default"):
        table.setdefault(MIXED)
    same_items(table, model)
