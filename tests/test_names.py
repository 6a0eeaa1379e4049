"""Named tables: one table for all who know its name."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuhash
from gpuhash import HashSet, HashTable


@pytest.fixture
def name(request):
    return request.node.name


def test_open_finds_the_same_table(device, name):
    table = HashTable("int32", "float32", key_shape=(3,), value_shape=(2,), device=device, name=name)
    table[[[1, 2, 3]]] = 5
    again = gpuhash.open(name)
    assert isinstance(again, HashTable)
    assert again.name == table.name == name
    assert (again.key_dtype, again.key_shape, again.value_dtype, again.value_shape) == ("int32", (3,), "float32", (2,))
    assert again.device == table.device
    again[[[4, 5, 6]]] = 7
    assert len(table) == 2
    assert (4, 5, 6) in table
    assert (table.row_storage_as("buffer").data) == again.row_storage_as("buffer").data
    table.close()


def test_names_are_unique(device, name):
    table = HashTable("int64", "float32", device=device, name=name)
    with pytest.raises(ValueError, match=name[:20].replace("[", r"\[")):
        HashTable("int64", "float32", device=device, name=name)
    table.close()
    HashTable("int64", "float32", device=device, name=name).close()


def test_close_unregisters_and_the_table_lives_on(device, name):
    table = HashTable("int64", "float32", device=device, name=name)
    table[1] = 2.0
    table.close()
    with pytest.raises(KeyError):
        gpuhash.open(name)
    assert table[1] == 2.0
    table.close()  # twice is no error


def test_open_of_an_unknown_name():
    with pytest.raises(KeyError, match="nobody"):
        gpuhash.open("nobody")
    with pytest.raises(KeyError, match="no table is named"):
        gpuhash.open("\ud800")  # half of a surrogate pair, which no table can be named


def test_names_keep_tables_alive(device, name):
    table = HashTable("int64", "float32", device=device, name=name)
    table[np.arange(10)] = 1
    del table
    gc.collect()
    again = gpuhash.open(name)
    assert len(again) == 10
    again.close()


def test_named_sets(device, name):
    made = HashSet("int64", device=device, name=name)
    made.add([1, 2])
    again = gpuhash.open(name)
    assert isinstance(again, HashSet)
    assert sorted(again) == [1, 2]
    made.close()


def test_copies_have_no_name(device, name):
    table = HashTable("int64", "float32", device=device, name=name)
    assert table.copy().name is None
    table.close()


def test_a_table_that_fails_to_be_made_leaves_no_name(name):
    with pytest.raises((TypeError, ValueError)):
        HashTable("int64", "float32", max_load_factor=7, name=name)
    HashTable("int64", "float32", name=name).close()


def test_half_of_a_surrogate_pair_is_no_name(device):
    with pytest.raises(ValueError, match=r"a table's name.*surrogate"):
        HashTable("int64", "int64", device=device, name="a\ud800")


@pytest.mark.parametrize("name", [5, "", b"users"])
def test_names_are_strings(name, tmp_path):
    path = tmp_path / "table.safetensors"
    HashTable("int64", "int64").save(path)
    for make in (
        lambda: HashTable("int64", "int64", name=name),
        lambda: HashTable.load(path, name=name),
        lambda: gpuhash.load(path, name=name),
    ):
        with pytest.raises(TypeError, match="name="):
            make()
    with pytest.raises(KeyError if name == "" else TypeError, match=r"no table is named ''|expected a table's name"):
        gpuhash.open(name)


def test_names_of_several_objects_of_a_table(device):
    """One of them gives the name up: the others do not have it, nor take it from who has it then."""
    first = HashTable("int64", "float32", device=device, name="of several")
    second = gpuhash.open("of several")
    assert first.name == second.name == "of several"
    second.close()
    assert first.name is second.name is None
    made = HashSet("int32", device=device, name="of several")
    try:
        assert first.name is None
        assert "of several" not in repr(first)
        first.close()
        found = gpuhash.open("of several")
        assert isinstance(found, HashSet)
        assert found._core is made._core
        assert made.name == "of several"
    finally:
        made.close()
