"""What bad input gets, whatever the face: an error, and a table that is as it was."""

from __future__ import annotations

import numpy as np
import pytest
from contract.faces import over, over_each, without_values
from contract.model import same_items
from contract.samples import CHANGES, KEYS, MIXED, change, filled, options_for, values_of

ALL = (*CHANGES, "find", "get", "contains", "rows", "erase", "delete", "pop")


def make_call(table, call, keys, values):
    if call in CHANGES:
        change(table, call, keys, values)
    elif call == "get":
        table.get(keys, np.asarray(0))
    else:
        getattr(table, call)(keys)


@over_each(ALL)
def test_keys_of_another_dtype(face, call):
    table, model = filled(face, **options_for(call))
    keys = MIXED.astype(np.int32)
    with pytest.raises(table.dtype_error, match="int32"):
        make_call(table, call, keys, values_of(keys, table.value_shape))
    same_items(table, model)


@over_each(CHANGES, unless=without_values)
def test_values_of_another_dtype(face, call):
    table, model = filled(face, **options_for(call))
    with pytest.raises(table.dtype_error, match=r"float32|float\b"):
        make_call(table, call, MIXED, values_of(MIXED, table.value_shape, dtype="float32"))
    same_items(table, model)


@over_each(CHANGES, unless=without_values)
def test_values_of_another_shape(face, call):
    table, model = filled(face, **options_for(call))
    with pytest.raises(table.shape_error, match="shape"):
        make_call(table, call, MIXED, values_of(np.append(MIXED, 1), table.value_shape))
    same_items(table, model)


@over("find")
def test_defaults_of_another_dtype(face):
    table, _ = filled(face)
    with pytest.raises(table.dtype_error, match=r"float32|float\b"):
        table.find(MIXED, values_of(MIXED, dtype="float32"))


@over("find")
def test_defaults_of_another_shape(face):
    table, _ = filled(face)
    with pytest.raises(table.shape_error, match="shape"):
        table.find(MIXED, values_of(KEYS))


@over_each(("contains", "insert", "erase"))
def test_vector_keys_of_another_length(face, call):
    table = face("int32", key_shape=(3,))
    with pytest.raises(table.shape_error, match="shape"):
        make_call(table, call, np.zeros((4, 2), np.int32), values_of(np.zeros(4)))
    assert table.size() == 0


# Operations ----------------------------------------------------------------------------------------------------------

KNOWN = "give one of add, multiply, min, max, bit_and, bit_or, bit_xor, keep, replace"


@pytest.mark.parametrize("op", ["divide", "", "Add", None, 3], ids=repr)
@over("insert_or_apply")
def test_unknown_operations(face, op):
    """One error and one text, wherever it is asked for."""
    table, model = filled(face)
    with pytest.raises(ValueError) as caught:
        table.insert_or_apply(MIXED, values_of(MIXED), op)
    assert f"op={op!r} is not known: {KNOWN}" in str(caught.value)
    same_items(table, model)


@pytest.mark.parametrize(
    ("op", "dtype", "reason"),
    [
        *(("bit_and", "float32", "combines bits of integers"), ("bit-xor", "float64", "combines bits of integers")),
        *(("min", "complex64", "needs an order"), ("max", "complex128", "needs an order")),
    ],
)
@over("insert_or_apply")
def test_operations_that_a_dtype_does_not_have(face, op, dtype, reason):
    table = face("int64", dtype)
    with pytest.raises(TypeError, match=f"{op} {reason}.*the table has values of {dtype}"):
        table.insert_or_apply(MIXED, np.ones(len(MIXED), dtype), op)
    assert table.size() == 0


# No room -------------------------------------------------------------------------------------------------------------


@over_each(("insert", "insert_or_assign", "setitem", "insert_or_apply", "setdefault"))
def test_a_full_table_is_as_it_was(face, call):
    """A batch for which there is no room changes nothing: neither its known keys nor those that would fit."""
    table, model = filled(face, growth=False, capacity=64)
    keys = np.concatenate([KEYS, np.arange(1000, 2000)])
    with pytest.raises(table.full_error):
        make_call(table, call, keys, values_of(keys))
    same_items(table, model)
