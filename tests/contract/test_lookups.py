"""What lookups say of keys that are there and of those that are not, whatever the face."""

from __future__ import annotations

import numpy as np
import pytest
from contract.faces import over, over_each
from contract.model import Model, same, same_items
from contract.samples import ABSENT, KEYS, LOOKUPS, MIXED, filled, look_up, options_for, values_of


def _always_has_a_default(face):
    return face.always_has_default


@over("find", compiled=True)
def test_find_gives_values_and_which_are_found(face):
    table, model = filled(face)
    values, found = table.find(MIXED)
    expected, present = model.find(MIXED)
    same(values, expected)
    same(found, present)


@over("contains", compiled=True)
def test_contains_gives_which_are_there(face):
    table, model = filled(face)
    same(table.contains(MIXED), np.array([key in model.items for key in MIXED.tolist()]))


@over("getitem", compiled=True)
def test_getitem_gives_the_values(face):
    table, model = filled(face)
    same(table.getitem(KEYS[::-1].copy()), model.find(KEYS[::-1])[0])


@over("getitem", unless=_always_has_a_default)
def test_getitem_of_absent_keys_is_an_error(face):
    table, _ = filled(face)
    with pytest.raises(table.absent_error, match="keys are absent"):
        table.getitem(MIXED)


@over_each(("find", "getitem", "get"), compiled=True)
def test_absent_keys_have_the_default_of_the_table(face, call):
    table, model = filled(face, default=7)
    answer = getattr(table, call)(MIXED)
    same(answer[0] if call == "find" else answer, model.find(MIXED, np.int64(7))[0])


@pytest.mark.parametrize("default", ["one", "each"])
@over_each(("find", "get"))
def test_absent_keys_have_the_default_of_the_call(face, call, default):
    """One for all keys, or one for each, whatever default the table has."""
    table, model = filled(face, default=7)
    given = np.int64(-9) if default == "one" else values_of(MIXED)
    answer = getattr(table, call)(MIXED, np.asarray(given))
    same(answer[0] if call == "find" else answer, model.find(MIXED, given)[0])


@over("get", unless=_always_has_a_default)
def test_get_of_a_batch_needs_a_default(face):
    table, _ = filled(face)
    with pytest.raises(ValueError, match=r"get\(keys\) of (a batch|batches) needs a default for absent keys"):
        table.get(MIXED)


@over_each(LOOKUPS)
def test_lookups_of_no_keys(face, call):
    table, model = filled(face, **options_for(call))
    answers = look_up(table, call, KEYS[:0])
    for answer in answers if isinstance(answers, tuple) else (answers,):
        assert len(answer) == 0
    same_items(table, model)


@over_each(LOOKUPS)
def test_lookups_in_an_empty_table(face, call):
    options = options_for(call)
    table = face(**options)
    model = Model("int64", table.value_shape)
    answer = look_up(table, call, MIXED)
    expected = {
        "find": lambda: model.find(MIXED),
        "get": lambda: model.find(MIXED, np.int64(-5))[0],
        "contains": lambda: model.find(MIXED)[1],
        "rows": lambda: np.full(len(MIXED), -1),
    }[call]()
    for got, wanted in zip(*[each if isinstance(each, tuple) else (each,) for each in (answer, expected)], strict=True):
        same(got, wanted)


@over_each(LOOKUPS)
def test_batches_of_any_dimensions(face, call):
    """A batch of shape () is one key."""
    table, _ = filled(face, **options_for(call))
    flat = look_up(table, call, MIXED)
    for shape in ((2, 4), (2, 1, 4)):
        shaped = look_up(table, call, MIXED.reshape(shape))
        for one, other in zip(*[each if isinstance(each, tuple) else (each,) for each in (flat, shaped)], strict=True):
            same(other, one.reshape(shape + one.shape[1:]))


@over_each(("find", "contains"))
def test_keys_that_are_strided_or_read_only(face, call):
    table, _ = filled(face)
    wide = np.repeat(MIXED, 2)
    wide.flags.writeable = False
    answers = [look_up(table, call, keys) for keys in (MIXED, wide[::2])]
    for one, other in zip(*[each if isinstance(each, tuple) else (each,) for each in answers], strict=True):
        same(one, other)


@over("rows")
def test_rows_are_numbers_of_their_own(face):
    table, _ = filled(face, value_shape=(2,))
    rows = table.rows(MIXED)
    assert rows.dtype == np.int64
    assert (rows >= 0).tolist() == table.contains(MIXED).tolist()
    assert len(set(table.rows(KEYS).tolist())) == len(KEYS)
    assert table.rows(ABSENT).tolist() == [-1] * len(ABSENT)


@over("rows")
def test_scalars_of_up_to_8_bytes_have_no_rows(face):
    table, _ = filled(face)
    with pytest.raises(table.shape_error, match="row"):
        table.rows(KEYS)


# Python's own numbers ------------------------------------------------------------------------------------------------


def _takes_no_python(face):
    return not face.takes_python


@over("has", unless=_takes_no_python)
def test_in_asks_for_one_key(face):
    table, _ = filled(face)
    assert table.has(5)
    assert not table.has(6)
    assert not table.has(2**63), "a key that the dtype cannot hold is absent"


@over("get", unless=_takes_no_python)
def test_a_single_key_is_answered_by_a_number_or_none(face):
    table, _ = filled(face)
    assert table.get(5) == 10
    assert table.get(6) is None
    assert table.get(6, 1) == 1


@over("getitem", unless=_takes_no_python)
def test_a_single_absent_key_is_an_error(face):
    table, _ = filled(face)
    assert table.getitem(5) == 10
    with pytest.raises(KeyError, match="6"):
        table.getitem(6)


@over("contains", unless=_takes_no_python)
def test_a_list_with_a_number_that_no_key_can_be_is_an_error(face):
    table, _ = filled(face)
    assert table.contains([5, 6]).tolist() == [True, False]
    with pytest.raises(OverflowError):
        table.contains([5, 2**63])
