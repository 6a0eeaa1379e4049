"""Tables with named columns, whatever the face."""

from __future__ import annotations

import numpy as np
import pytest
from contract.faces import over
from contract.model import Model, check_mask, same, same_items
from contract.samples import KEYS, MIXED

COLUMNS = {"weight": ("float32", (2,)), "count": "int64"}


def values_of(keys, start=0, names=("weight", "count")):
    values = {
        "weight": (np.arange(2 * len(keys)) + start).reshape(-1, 2).astype(np.float32),
        "count": np.arange(len(keys)) + start,
    }
    return {name: values[name] for name in names}


def filled(face, **options):
    table, model = face("int64", COLUMNS, **options), Model(COLUMNS)
    table.put(KEYS, values_of(KEYS, 10))
    model.insert(KEYS, values_of(KEYS, 10))
    return table, model


@over("columns", "insert")
def test_insert(face):
    table, model = filled(face)
    known, values = set(model.items), values_of(MIXED, 50)
    mask = table.insert(MIXED, values)
    model.insert(MIXED, values)
    check_mask(mask, MIXED, model, known)
    same_items(table, model)


@over("columns", "insert_or_assign")
def test_columns_left_out_stay_as_they_are(face):
    """In new rows they are zeros."""
    table, model = filled(face)
    values = values_of(MIXED, 50, ["count"])
    mask = table.insert_or_assign(MIXED, values)
    known = set(model.items)
    model.insert_or_assign(MIXED, values)
    check_mask(mask, MIXED, model, known)
    same_items(table, model)


@over("columns", "setitem")
def test_setitem(face):
    table, model = filled(face)
    table.setitem(MIXED, values_of(MIXED, 50))
    model.insert_or_assign(MIXED, values_of(MIXED, 50))
    same_items(table, model)


@over("columns", "apply_and_find")
def test_what_the_columns_that_are_given_come_to(face):
    table, model = filled(face)
    values = {"count": values_of(MIXED)["count"]}
    got, _ = table.apply_and_find(MIXED, values, "add")
    model.insert_or_apply(MIXED, values, "add")
    same(got, {"count": model.find(MIXED)[0]["count"]})
    same_items(table, model)


@pytest.mark.parametrize("op", ["add", "keep", "replace", {"weight": "max", "count": "bit-xor"}], ids=str)
@over("columns", "insert_or_apply")
def test_operations_by_column(face, op):
    table, model = filled(face)
    known, values = set(model.items), values_of(MIXED, 3)
    mask = table.insert_or_apply(MIXED, values, op)
    model.insert_or_apply(MIXED, values, op)
    check_mask(mask, MIXED, model, known)
    same_items(table, model)


@over("columns", "insert_or_apply")
def test_unknown_operations(face):
    table, model = filled(face)
    for op in ("divide", None, {"weight": "add", "count": "divide"}):
        with pytest.raises(ValueError, match=r"op=.* is not known: give one of add, .*, keep, replace"):
            table.insert_or_apply(MIXED, values_of(MIXED), op)
    with pytest.raises(
        TypeError, match="bit_or combines bits of integers, and the column 'weight' has values of float32"
    ):
        table.insert_or_apply(MIXED, values_of(MIXED), "bit_or")
    same_items(table, model)


@over("columns", "find")
def test_find_some_columns(face):
    table, model = filled(face)
    values, found = table.find(MIXED, columns=["count"])
    expected, present = model.find(MIXED)
    same(values, {"count": expected["count"]})
    same(found, present)


@over("columns", "find")
def test_defaults_that_leave_columns_out(face):
    table, model = filled(face)
    default = {"count": np.array(-1)}
    same(table.find(MIXED, default)[0], model.find(MIXED, default)[0])


@over("columns", "get")
def test_get(face):
    table, model = filled(face)
    default = {"count": np.array(-1)}
    same(table.get(MIXED, default), model.find(MIXED, default)[0])


@over("columns", "get", unless=lambda face: face.always_has_default)
def test_get_needs_a_default(face):
    table, _ = filled(face)
    with pytest.raises(ValueError, match="needs a default for absent keys"):
        table.get(MIXED)


@over("columns", "getitem")
def test_getitem(face):
    table, model = filled(face)
    same(table.getitem(KEYS), model.find(KEYS)[0])


@over("columns", "find_or_insert", "rows")
def test_find_or_insert(face):
    table, model = filled(face)
    known, values = set(model.items), values_of(MIXED, 50, ["count"])
    rows, is_new = table.find_or_insert(MIXED, values)
    model.insert(MIXED, values)
    check_mask(is_new, MIXED, model, known)
    assert rows.tolist() == table.rows(MIXED).tolist()
    same_items(table, model)
    _, is_new = table.find_or_insert(MIXED + 1)
    check_mask(is_new, MIXED + 1, model, set(model.items))


@over("columns", "setdefault")
def test_setdefault(face):
    table, model = filled(face)
    values = values_of(MIXED, 50)
    got = table.setdefault(MIXED, values)
    model.insert(MIXED, values)
    same(got, model.find(MIXED)[0])


@over("columns", "erase")
def test_erase(face):
    table, model = filled(face)
    assert table.erase(MIXED).sum() == model.erase(MIXED).sum()
    same_items(table, model)


@over("columns", "pop")
def test_pop(face):
    table, model = filled(face)
    same(table.pop(KEYS), model.find(KEYS)[0])
    assert table.size() == 0


@over("columns", "items")
def test_items(face):
    table, model = filled(face)
    keys, values = table.items()
    same(values, model.find(keys)[0])


@over("columns", "insert")
def test_values_for_other_columns(face):
    table, model = filled(face)
    for name, values in {"unknown": {"weight": np.zeros(2, np.float32), "other": np.array(1)}, "none": {}}.items():
        with pytest.raises(ValueError, match=r"no column 'other'|empty mapping") as caught:
            table.insert(MIXED, values)
        assert ("other" in str(caught.value)) == (name == "unknown")
    with pytest.raises(TypeError, match="give a mapping of names"):
        table.insert(MIXED, np.zeros(len(MIXED)))
    same_items(table, model)


@over("columns", "find")
def test_lookups_of_other_columns(face):
    table, _ = filled(face)
    for columns, error in ((["other"], ValueError), (["count", "count"], ValueError), ("count", TypeError)):
        with pytest.raises(error):
            table.find(MIXED, columns=columns)


@over("columns", "insert")
def test_values_of_another_dtype_or_shape(face):
    table, model = filled(face)
    values = values_of(MIXED)
    with pytest.raises(table.dtype_error):
        table.insert(MIXED, {**values, "count": values["count"].astype(np.int32)})
    with pytest.raises(table.shape_error):
        table.insert(MIXED, {**values, "count": np.zeros(len(MIXED) + 1, np.int64)})
    same_items(table, model)


@over("find")
def test_columns_of_a_table_without(face):
    table = face()
    with pytest.raises(TypeError, match=r"columns=\['x'\] was given|unexpected keyword argument 'columns'"):
        table.find(MIXED, columns=["x"])
