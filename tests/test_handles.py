"""Handles: the numbers that stand for tables in compiled programs."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.memory_resources import counting_memory

import gpuhash
from gpuhash import HashSet, HashTable, _core

# Two strings with one 64-bit FNV-1a hash.
CLASHING = ("8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ")


@pytest.fixture
def name(request):
    return request.node.name


def fnv1a(data: bytes) -> int:
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) % 2**64
    return state


def test_own_handles_find_their_tables(device):
    tables = [HashTable("int64", "float32", device=device) for _ in range(5)] + [HashSet("int32", device=device)]
    handles = [_core.own_handle_of(table._core) for table in tables]
    assert len(set(handles)) == len(tables)
    assert all(0 < handle < 2**62 for handle in handles)
    for table, handle in zip(tables, handles, strict=True):
        assert _core.table_of(handle) is table._core
        assert _core.own_handle_of(table._core) == _core.handle_of(table._core) == handle


def test_a_freed_table_has_no_handle_and_leaves_it_to_nobody(device):
    seen = set()
    for _ in range(300):  # new tables lie where freed ones lay; and stale handles are swept meanwhile
        table = HashTable("int64", "float32", device=device)
        handle = _core.own_handle_of(table._core)
        assert handle not in seen
        assert _core.table_of(handle) is table._core
        seen.add(handle)
        del table
        gc.collect(0)
        assert _core.table_of(handle) is None
    assert not any(_core.table_of(handle) for handle in seen)


def used_by_handle(table):
    """As programs use a table: its handle is asked for, and the table looked up by it."""
    handle = _core.own_handle_of(table._core)
    assert _core.handle_of(table._core) == handle
    assert _core.table_of(handle) is table._core


KINDS_OF_TABLES = {
    "rows": lambda **options: HashTable("int64", "float32", value_shape=(8,), **options),
    "scalars": lambda **options: HashTable("int64", "int64", **options),
    "columns": lambda **options: HashTable("int64", {"a": ("float32", (3,))}, **options),
}


@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
def test_a_handle_keeps_no_memory(device, kind):
    """It is weak: with the last owner of a table its memory goes, however few handles there are."""
    memory = counting_memory(device)
    for _ in range(3):
        table = KINDS_OF_TABLES[kind](device=device, memory=memory)
        table.reserve(1000)
        used_by_handle(table)
        clone, second = table.copy(), table.copy()
        used_by_handle(clone)
        assert memory.nbytes > 0
        del table, clone, second
        gc.collect()
        assert (memory.nbytes, memory.mistakes) == (0, [])


def test_a_handle_keeps_no_memory_of_shards_sets_and_names(name):
    memory = counting_memory("cpu")
    shards = HashTable("int64", "float32", device=["cpu"] * 3, memory=[memory] * 3)
    keyset = HashSet("int64", memory=memory)
    named = HashTable("int64", "float32", memory=memory, name=name)
    for table in (shards, keyset, *shards.shards):
        used_by_handle(table)
    assert _core.table_of(_core.handle_of(named._core)) is named._core
    part = shards.shards[0]
    own = _core.own_handle_of(named._core)
    named.close()
    del table, shards, keyset, named
    gc.collect()
    assert _core.table_of(own) is None
    assert memory.nbytes > 0  # a shard's face keeps the shard
    del part
    gc.collect()
    assert (memory.nbytes, memory.mistakes) == (0, [])


def test_handles_that_nobody_made():
    for handle in (0, 1, -1, 2**62, 2**63 - 1, -(2**63)):
        assert _core.table_of(handle) is None


def test_a_name_has_one_handle_everywhere(name):
    for text in ("", "users", "Zürich", name):
        assert _core.handle_of_name(text) == (fnv1a(text.encode()) >> 2) + 2**62
    table = HashTable("int64", "float32", name=name)
    handle = _core.handle_of(table._core)
    assert handle == _core.handle_of_name(name)
    assert _core.own_handle_of(table._core) < 2**62
    assert _core.table_of(handle) is table._core
    program = f"""
import gpuhash
from gpuhash import _core
assert _core.table_of({handle}) is None
table = gpuhash.HashTable("int64", "float32", name={name!r})
assert _core.table_of({handle}) is table._core
assert _core.table_of({_core.own_handle_of(table._core)}) is None
"""
    table.close()
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)


def test_the_handle_of_a_name_follows_the_name(name):
    """And the table's own one the table."""
    first = HashTable("int64", "float32", name=name)
    own, named = _core.own_handle_of(first._core), _core.handle_of(first._core)
    first.close()
    assert _core.table_of(named) is None
    assert _core.handle_of(first._core) == own
    second = HashTable("int64", "float32", name=name)
    assert _core.handle_of(second._core) == named
    assert _core.table_of(named) is second._core
    assert _core.table_of(own) is first._core
    second.close()


def test_named_tables_live_on_without_a_face(name):
    handle = _core.handle_of(HashTable("int64", "float32", name=name)._core)
    gc.collect()
    core = _core.table_of(handle)
    table = gpuhash.open(name)
    assert table._core is core
    table.close()
    del table, core
    gc.collect()
    assert _core.table_of(handle) is None


def test_names_of_one_hash_are_refused():
    first, second = CLASHING
    assert fnv1a(first.encode()) == fnv1a(second.encode())
    table = HashTable("int64", "float32", name=first)
    with pytest.raises(ValueError, match=f"{second}.*same 62-bit hash.*{first}.*another name"):
        HashTable("int64", "float32", name=second)
    with pytest.raises(KeyError):
        gpuhash.open(second)
    assert gpuhash.open(first)._core is table._core
    table.close()
    HashTable("int64", "float32", name=second).close()


def test_copies_have_handles_of_their_own(device):
    table = HashTable("int64", "float32", device=device)
    assert _core.own_handle_of(table.copy()._core) != _core.own_handle_of(table._core)


def test_from_many_threads():
    table = HashTable("int64", "int64")
    table[np.arange(10)] = 1
    own = _core.own_handle_of(table._core)
    wrong = []

    def work() -> None:
        try:
            for _ in range(2000):
                mine = HashTable("int64", "int64")
                handle = _core.own_handle_of(mine._core)
                assert _core.table_of(handle) is mine._core
                assert _core.table_of(own) is table._core
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
