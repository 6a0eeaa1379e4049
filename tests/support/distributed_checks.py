"""What the ranks of a process group do and assert in the tests of gpuhash.distributed.

Each function is called on all ranks with (rank, count, device, ...). All ranks make the batches of all by the same
seeds, so that each of them knows what one table would say to all batches in a row.
"""

from __future__ import annotations

import collections
import copy
import itertools
import json
import os
import pickle
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
import torch.distributed as dist

import gpuhash
from gpuhash import TableFullError, _core, distributed
from gpuhash.distributed.group import Group
from gpuhash.distributed.split import ALIGNMENT, GAP, Split
from gpuhash.initializers import Normal
from support.frameworks import Framework, to_numpy
from support.ranks import join_group
from support.samples import (
    UFUNCS,
    as_bytes,
    check_new_mask,
    has_operation,
    items_of,
    numpy_dtype,
    random_keys,
    random_values,
    same_bytes,
)

OPERATIONS = ("insert", "insert_or_assign", "setitem", "apply", "erase", "pop", "setdefault", "delitem", "update")
HOT = 3 * _core.SAMPLE_KEYS  # keys of a batch in which duplicates are looked for


def place(device: str, rank: int) -> Framework:
    where = f"cuda:{rank}" if device == "cuda" else device
    return Framework("torch", where, where)


def gathered(item: Any) -> list[Any]:
    """An object of each rank, for all."""
    items: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items


def batches(pool: np.ndarray, sizes: list[int], seed: int, *, hot: bool) -> list[np.ndarray]:
    """Keys of each rank: few of the pool come often where they are hot, else any of it."""
    rng = np.random.default_rng([seed, len(pool)])
    drawn = [rng.zipf(1.3, size) - 1 if hot else rng.integers(0, len(pool), size) for size in sizes]
    return [pool[positions % len(pool)] for positions in drawn]


def whole(table: Any) -> dict[bytes, bytes]:
    """The items of all shards; no key is in two."""
    merged: dict[bytes, bytes] = {}
    shards = gathered(items_of(table.shard))
    for shard in shards:
        merged.update(shard)
    assert len(merged) == sum(map(len, shards))
    return merged


def concatenated(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts)


def answers_agree(rank: int, got: Any, expected: np.ndarray, parts: list[np.ndarray]) -> None:
    """What this rank got is its part of the answers to all."""
    start = sum(map(len, parts[:rank]))
    same_bytes(got, expected[start : start + len(parts[rank])])


def check_mask(mask: Any, parts: list[np.ndarray], known: Any, rank: int) -> None:
    """Over all ranks, true for exactly one of a new key's duplicates."""
    assert len(mask) == len(parts[rank])
    masks = gathered(to_numpy(mask))
    check_new_mask(np.concatenate(masks), concatenated(parts), known, in_order=False)


def operations_against_one_table(
    rank: int, count: int, device: str, key_type: Any, value_dtype: str, value_shape: tuple[int, ...]
) -> None:
    """Every operation, with batches of all kinds, says what one table says to all batches in a row."""
    key_dtype, key_shape = key_type
    here = place(device, rank)
    pool = random_keys(key_dtype, key_shape, 3000, seed=5)
    kind = {"key_shape": key_shape, "value_shape": value_shape, "deterministic": True}
    table = distributed.HashTable(key_dtype, value_dtype, device=here.device, **kind)
    one = gpuhash.HashTable(key_dtype, value_dtype, **kind)
    ops = [op for op in UFUNCS if has_operation(op, value_dtype) and op != "multiply"]
    if value_dtype in ("float16", "bfloat16"):
        ops.remove("add")  # which rounds in another order
    empties = [[0] * count, [0, *[40] * (count - 1)], [*[1] * (count - 1), 900]]
    hot_sizes = [HOT, *[0] * (count - 2), HOT + 1]
    for turn, sizes in enumerate([*empties, hot_sizes, [300] * count]):
        hot = sizes == hot_sizes
        for step, operation in enumerate(OPERATIONS):
            seed = 100 * turn + step
            parts = batches(pool, sizes, seed, hot=hot)
            keys = concatenated(parts)
            values = random_values(value_dtype, (len(keys), *value_shape), seed)
            start = sum(sizes[:rank])
            mine, theirs = here.array(parts[rank]), here.array(values[start : start + sizes[rank]])
            known = set(as_bytes(to_numpy(one.keys())).tolist())
            if operation in ("insert", "insert_or_assign"):
                mask = getattr(table, operation)(mine, theirs)
                check_mask(mask, parts, known, rank)
                getattr(one, operation)(keys, values)
            elif operation == "setitem":
                table[mine] = theirs
                one[keys] = values
            elif operation == "update":
                table.update(mine, theirs)
                one.update(keys, values)
            elif operation == "apply":
                op = ops[turn % len(ops)]
                check_mask(table.insert_or_apply(mine, theirs, op), parts, known, rank)
                one.insert_or_apply(keys, values, op)
            elif operation == "erase":
                gone = np.concatenate(gathered(to_numpy(table.erase(mine[::3])))) if sizes[rank] else None
                if gone is None:
                    gone = np.concatenate(gathered(to_numpy(table.erase(mine))))
                erased = concatenated([part[::3] for part in parts])
                marked = as_bytes(erased[gone]).tolist()
                assert len(marked) == len(set(marked))
                assert set(marked) == set(as_bytes(erased).tolist()) & known
                one.erase(erased)
            elif operation == "pop":
                few = [part[:7] for part in parts]
                fallback = np.asarray(random_values(value_dtype, value_shape, 3))
                popped = table.pop(here.array(few[rank]), here.array(fallback))
                answers_agree(rank, popped, one.pop(concatenated(few), fallback), few)
            elif operation == "setdefault":
                answers_agree(rank, table.setdefault(mine, theirs), one.setdefault(keys, values), parts)
            elif operation == "delitem":
                present = [part[one.contains(part)][:5] for part in parts]
                del table[here.array(present[rank])]
                del one[concatenated(present)]
            assert len(table) == len(one)
        parts = batches(pool, sizes, turn, hot=hot)
        keys = concatenated(parts)
        mine = here.array(parts[rank])
        (found_values, found), (expected, expected_found) = table.find(mine), one.find(keys)
        assert here.owns(found_values)
        answers_agree(rank, found_values, expected, parts)
        answers_agree(rank, found, expected_found, parts)
        answers_agree(rank, table.contains(mine), expected_found, parts)
        default = np.asarray(random_values(value_dtype, value_shape, 9))
        answers_agree(rank, table.get(mine, here.array(default)), one.get(keys, default), parts)
        each = random_values(value_dtype, (len(keys), *value_shape), 10)
        start = sum(sizes[:rank])
        got = table.find(mine, here.array(each[start : start + sizes[rank]]))[0]
        answers_agree(rank, got, one.find(keys, each)[0], parts)
        present = [part[one.contains(part)] for part in parts]
        answers_agree(rank, table[here.array(present[rank])], one[concatenated(present)], present)
        assert whole(table) == items_of(one)
    if one._core.has_rows:
        keys = concatenated(parts)
        ranks, rows = table.rows(mine)
        storages = gathered(to_numpy(table.shard.row_storage))
        for key, owner, row in zip(parts[rank], to_numpy(ranks), to_numpy(rows), strict=True):
            single = one.find(key[None])
            assert (row >= 0) == single[1][0]
            if row >= 0:
                same_bytes(storages[owner][row], single[0][0])
        find_or_insert(rank, table, one, here, pool)
    clone = table.copy()
    table.clear()
    assert len(table) == 0
    assert whole(clone) == items_of(one)


def find_or_insert(rank: int, table: Any, one: gpuhash.HashTable, here: Framework, pool: np.ndarray) -> None:
    """Rows are where ``rows`` says; new keys get the values, or the default; of duplicates one is told to be new."""
    count = table.world_size
    for turn, hot in enumerate([False, True, False]):
        table.erase(here.array(pool[rank :: 3 * count]))
        one.erase(np.concatenate([pool[other :: 3 * count] for other in range(count)]))
        sizes = [HOT if hot else 40 * other for other in range(count)]
        parts = batches(pool, sizes, turn, hot=hot)
        keys = concatenated(parts)
        values = random_values(one.value_dtype, (len(keys), *one.value_shape), turn)
        known = set(as_bytes(to_numpy(one.keys())).tolist())
        start = sum(sizes[:rank])
        mine = here.array(parts[rank])
        if turn < 2:
            got = table.find_or_insert(mine, here.array(values[start : start + sizes[rank]]))
            one.find_or_insert(keys, values)
        else:
            got = table.find_or_insert(mine)
            one.find_or_insert(keys)
        ranks, rows, is_new = got
        assert here.owns(rows)
        check_mask(is_new, parts, known, rank)
        for found, expected in zip((ranks, rows), table.rows(mine), strict=True):
            same_bytes(found, to_numpy(expected))
        assert whole(table) == items_of(one)


def initialised(rank: int, count: int, device: str) -> None:
    """Rows that are drawn are those of a table in one process; files keep the initializer."""
    here = place(device, rank)
    initializer = Normal(seed=4)
    table = distributed.HashTable("int64", "float32", value_shape=(6,), device=here.device, initializer=initializer)
    assert table.initializer == initializer
    one = gpuhash.HashTable("int64", "float32", value_shape=(6,), initializer=initializer)
    pool = random_keys("int64", (), 2000)
    for turn, hot in enumerate([False, True]):
        parts = batches(pool, [HOT if hot else 300] * count, turn, hot=hot)
        known = set(as_bytes(to_numpy(one.keys())).tolist())
        check_mask(table.find_or_insert(here.array(parts[rank]))[2], parts, known, rank)
        one.find_or_insert(concatenated(parts))
        assert whole(table) == items_of(one)
        fresh = random_keys("int64", (), 50, seed=100 + turn)
        asked = concatenated([parts[rank][:20], fresh, fresh[rank : rank + 9]])
        drawn = table.setdefault(here.array(asked))
        one.setdefault(fresh)
        same_bytes(to_numpy(drawn), one[asked])
        assert whole(table) == items_of(one)
        given = table.setdefault(here.array(fresh + 1), 7.0)  # the call's own default wins
        one.setdefault(fresh + 1, 7.0)
        same_bytes(to_numpy(given), one[fresh + 1])
        same_bytes(to_numpy(table.setdefault(here.array(fresh[:0]))), np.empty((0, 6), np.float32))
    with pytest.raises(RuntimeError, match=r"setdefault of the initializer; rank 1: .*, setdefault"):
        table.setdefault(here.array(fresh), None if rank == 0 else 1.0)
    with tempfile.TemporaryDirectory() as mine:
        folder = gathered(mine)[0]
        table.save(Path(folder, "table"))
        loaded = distributed.HashTable.load(Path(folder, "table"), device=here.device)
        assert loaded.initializer == initializer
        assert whole(loaded) == items_of(one)
        dist.barrier()  # before the first rank removes the folder
    with pytest.raises(ValueError, match="the ranks make different tables"):
        distributed.HashTable(
            "int64", "float32", value_shape=(2,), device=here.device, initializer=Normal(seed=min(rank, 1))
        )


def sums_of_floats(rank: int, count: int, device: str) -> None:
    """All values of hot keys count, up to rounding; each rank's batch is combined before it is sent."""
    here = place(device, rank)
    pool = random_keys("int64", (), 5000)
    table = distributed.HashTable("int64", "float32", device=here.device)
    parts = batches(pool, [HOT] * count, 7, hot=True)
    values = np.random.default_rng(8).random((count, HOT), np.float32)
    for _ in range(2):
        table.insert_or_apply(here.array(parts[rank]), here.array(values[rank]), "add")
    distinct, inverse = np.unique(concatenated(parts), return_inverse=True)
    expected = np.bincount(inverse, values.reshape(-1).astype(np.float64)) * 2
    assert len(table) == len(distinct)
    np.testing.assert_allclose(to_numpy(table[here.array(distinct)]), expected, rtol=1e-4)


def one_whole_value_stays(rank: int, count: int, device: str) -> None:
    """Of duplicates on several ranks, without an order: never a mix of two."""
    here = place(device, rank)
    table = distributed.HashTable("int32", "float32", value_shape=(4,), device=here.device)
    keys = np.random.default_rng(rank).integers(0, 500, HOT).astype(np.int32)
    values = np.repeat((np.arange(HOT) * count + rank).astype(np.float32)[:, None], 4, 1)
    table[here.array(keys)] = here.array(values)
    merged = table.gather()
    found, rows = map(to_numpy, merged)
    assert (rows == rows[:, :1]).all()
    everyone = gathered(keys)
    for key, row in zip(found.tolist(), rows[:, 0].astype(int).tolist(), strict=True):
        assert everyone[row % count][row // count] == key


def all_dtypes(rank: int, count: int, device: str, key_types: Any, value_types: Any) -> None:
    """Keys and values of every kind go there and back as they are."""
    here = place(device, rank)
    for key_dtype, key_shape in key_types:
        for value_dtype, value_shape in value_types:
            table = distributed.HashTable(
                key_dtype, value_dtype, key_shape=key_shape, value_shape=value_shape, device=here.device
            )
            pool = random_keys(key_dtype, key_shape, 200, seed=1)
            values = random_values(value_dtype, (len(pool), *value_shape))
            table[here.array(pool[rank::count])] = here.array(values[rank::count])
            mine = np.random.default_rng(rank).permutation(len(pool))
            same_bytes(table[here.array(pool[mine])], values[mine])
            found = table.find(pool[mine[:9]])  # a NumPy array, or a list
            assert isinstance(found[0], np.ndarray)
            same_bytes(found[0], values[mine[:9]])
            default = np.asarray(random_values(value_dtype, value_shape, 4))
            table.erase(here.array(pool))
            filled = table.get(here.array(pool[mine]), here.array(default))
            same_bytes(filled, np.broadcast_to(default, values.shape).copy())


def one_value_for_all_keys(rank: int, count: int, device: str) -> None:
    """A value that all keys of all ranks get is not sent with each; where ranks differ, all of them count."""
    here = place(device, rank)
    sent: list[int] = []
    exchange = Group.exchange

    def counted(self: Group, tensors: Any, *where: Any) -> Any:
        sent.append(len(tensors))
        return exchange(self, tensors, *where)

    kinds = [("int64", ()), ("int32", ()), ("bool", ()), ("bfloat16", ()), ("complex64", ()), ("float32", (2,))]
    Group.exchange = counted
    try:
        for dtype, shape in [*kinds, ("float32", (4,)), ("complex128", ())]:
            table = distributed.HashTable("int64", dtype, value_shape=shape, device=here.device)
            keys = np.arange(10 * rank, 10 * rank + 10)
            pool = np.arange(10 * count)
            values = random_values(dtype, (count, *shape), 1)
            for each, mine in [
                (values[[0] * count], here.array(keys)),
                (values[[0] * count], here.array(keys[: 10 if rank else 0])),
                (values, here.array(keys)),
            ]:
                sent.clear()
                table[mine] = np.asarray(each[rank])
                same = (each == each[0]).all() and (dtype, shape) in kinds
                assert sent[0] == (1 if same else 2)
                expected = np.repeat(each, 10, 0)
                same_bytes(table[here.array(pool)], expected)
                table.insert(mine, here.array(np.asarray(each[rank])))
            rows = random_values(dtype, (10, *shape), 2)
            table[here.array(keys)] = here.array(rows) if rank == 0 else np.asarray(values[0])
            same_bytes(table[here.array(pool[:20])], np.concatenate([rows, np.repeat(values[:1], 10, 0)]))
        counts = distributed.HashTable("int64", "int64", device=here.device)
        hot, cold = np.arange(HOT) % 7, np.arange(HOT) * 3
        for rank_is_hot in ([True] * count, [False] * count, [True, *[False] * (count - 1)]):
            counts.clear()
            counts.insert_or_apply(here.array(hot if rank_is_hot[rank] else cold), -1, "add")
            keys = np.concatenate([hot if is_hot else cold for is_hot in rank_is_hot])
            distinct, times = np.unique(keys, return_counts=True)
            same_bytes(counts[here.array(distinct)], -times)
    finally:
        Group.exchange = exchange


def python_objects(rank: int, count: int, device: str) -> None:
    """Numbers, lists and mappings are converted as for one table, and answered as there."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device, default=-1)
    table.update({rank: 10 * rank, 100 + rank: 7})
    assert len(table) == 2 * count
    assert table[rank] == 10 * rank
    assert table[[0, 100, 5000]].tolist() == [0, 7, -1]
    assert table.find(5000) == (-1, False)
    assert (rank in table) is True
    assert (-rank - 1 in table) is False
    assert table.pop(rank) == 10 * rank
    assert table.get(rank, 3) == 3
    table.update([(rank, 1), (rank, 2)])
    assert table.get([[rank]]).tolist() == [[2]]
    bare = distributed.HashTable("int64", "int64", device=here.device)
    assert bare.get(1) is None
    assert bare.pop(1, None) is None
    bare.update(table.shard)
    assert whole(bare) == whole(table)
    bare.update(gpuhash.HashTable.from_items([1000 + rank], [rank]))
    assert bare[1000 + (rank + 1) % count] == (rank + 1) % count
    vectors = distributed.HashTable("int32", "float32", key_shape=(2,), device=here.device)
    vectors.update({(rank, 1): 0.5})
    assert vectors[((rank + 1) % count, 1)] == 0.5
    on_host = table.find(torch.tensor([[100, 5000]]))  # asked there and answered there, wherever the shards are
    assert [answer.device.type for answer in on_host] == ["cpu", "cpu"]
    assert [answer.tolist() for answer in on_host] == [[[7, -1]], [[True, False]]]
    random = distributed.HashTable("int64", "int64", device=here.device, seed="random")
    random.update({1: 2} if rank == 0 else {})
    assert random[1] == 2
    assert len(set(gathered(random._seed))) == 1
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(table)
    with pytest.raises(TypeError, match="not iterable"):
        iter(table)
    assert repr(table).startswith(f"<gpuhash.distributed.HashTable, rank {rank} of {count}: <HashTable int64")


def keys_out_of_range(rank: int, count: int, device: str) -> None:
    """A single key that the dtype cannot hold is absent, as from one table, while other ranks ask for keys that are
    there; in a batch, or where it would be inserted, it is an error.
    """
    here = place(device, rank)
    kinds: list[tuple[str, tuple[int, ...], Any, Any]] = [
        ("int64", (), 1 << 64, 7 + rank),
        ("uint8", (), -1, 7 + rank),
        ("int32", (2,), (1 << 40, 1), (7 + rank, 1)),
    ]
    for (dtype, key_shape, outside, inside), value_shape in itertools.product(kinds, [(), (2,)]):
        key, held = (outside, False) if rank == 0 else (inside, True)
        for default in (None, 5):
            table = distributed.HashTable(
                dtype, "bfloat16", key_shape=key_shape, value_shape=value_shape, default=default, device=here.device
            )
            table[inside] = 3

            def check(got: Any, absent: Any, held: bool = held, shape: Any = value_shape) -> None:
                """This rank got the value of its key, or what absent ones get."""
                expected = 3 if held else absent
                assert (got is None) == (expected is None)
                if expected is not None:
                    assert np.shape(got) == shape
                    assert np.all(got == expected)

            assert (key in table) is held
            assert table.contains(key) is held
            check(table.get(key), default)
            check(table.get(key, 9), 9)
            refusals = [table.__delitem__, table.pop]
            if default is None:
                refusals.append(table.__getitem__)
            else:
                check(table[key], default)
            for refused in refusals:
                with pytest.raises(KeyError, match=f"rank 0: 1 of 1 keys are absent: {re.escape(str(outside))}"):
                    refused(key)
            for call_default in (None, 9):
                value, found = table.find(key, call_default)
                assert found is held
                check(value, next(each for each in (call_default, default, 0) if each is not None))
            if value_shape:
                owner, row = table.rows(key)
                assert (row >= 0) is held
                assert 0 <= owner < count
                if not held:
                    assert (owner, row) == (0, -1)
            for refused, given in (
                (table.find, [[key]]),
                (table.insert, [key, 1]),
                (table.setdefault, [key, 1]),
                (table.get, [[key], 1]),
            ):
                with pytest.raises(OverflowError, match=r"rank 0: .*out of range"):
                    refused(*given)
            assert len(table) == count
            check(table.pop(key, 9), 9)
            assert len(table) == 1
            table[inside] = 3
            check(table.pop(key, None), default)
            table[inside] = 3
            assert table.erase(key) is held
            assert len(table) == 1
    members = distributed.HashSet("int16", device=here.device)
    members.add(rank)
    assert ((1 << 15 if rank == 0 else rank) in members) is (rank > 0)
    members.discard(1 << 15 if rank == 0 else rank)
    assert len(members) == 1


def made_in_inference_mode(rank: int, count: int, device: str) -> None:
    """A table that was made in that mode works outside of it as well, and so does its copy."""
    here = place(device, rank)
    keys = here.array(np.arange(100))
    with torch.inference_mode():
        table = distributed.HashTable("int64", "int64", device=here.device)
        table[keys] = 1
        twin = table.copy()
    for made in (table, twin):
        assert to_numpy(made[keys]).tolist() == [1] * 100
        made[keys] = 2
        with torch.inference_mode():
            assert to_numpy(made.find(keys)[0]).tolist() == [2] * 100
        assert len(made) == 100


def other_default_device(rank: int, count: int, device: str) -> None:
    """What tables make for themselves does not go where PyTorch makes tensors by default: here, where nothing is."""
    here = place(device, rank)
    keys = here.array(np.arange(100))
    other = here.array(np.arange(100, dtype=np.int32))
    with tempfile.TemporaryDirectory() as mine, torch.device("meta"):
        table = distributed.HashTable("int64", "int64", device=here.device, default=0)
        assert [part.tolist() for part in table.find([])] == [[], []]
        table.update([], [])
        table[keys] = keys
        assert table[[1, 500]].tolist() == [1, 0]
        assert to_numpy(table.get(keys, 3)).tolist() == list(range(100))
        with pytest.raises(TypeError, match=f"rank {count - 1}: the keys are int32"):
            table.find(other if rank == count - 1 else keys)
        assert sorted(to_numpy(table.gather()[0]).tolist()) == list(range(100))
        table.clear()
        table[1] = 2  # in one shard: the other ranks have nothing to load
        folder = gathered(mine)[0]
        table.save(Path(folder, "table"))
        assert whole(distributed.HashTable.load(Path(folder, "table"), device=here.device)) == whole(table)
        assert len(table) == 1
        gathered(None)  # before the first rank removes the folder


def in_compiled_functions(rank: int, count: int, device: str) -> None:
    """torch.compile breaks its graphs there, and the calls run as without it; one rank shows it for all."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device)

    def tally(keys: Any) -> Any:
        table.insert_or_apply(keys, 1, "add")
        return table[keys] * 2

    compiled = torch.compile(tally, backend="eager") if rank == 0 else tally
    assert compiled(here.array(np.arange(4))).tolist() == [2 * count] * 4
    assert compiled(here.array(np.arange(3))).tolist() == [4 * count] * 3


COLUMNS = {
    "weight": ("float32", (3,)),  # whole numbers, whose sums are exact
    "count": "int64",
    "flag": "bool",
    "half": gpuhash.Column("bfloat16", (5,), 2),
}


def column_values(count: int, seed: int, names: Any = tuple(COLUMNS)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = {
        "weight": rng.integers(-9, 9, (count, 3)).astype(np.float32),
        "count": rng.integers(-99, 99, count),
        "flag": rng.random(count) < 0.5,
        "half": rng.integers(-9, 9, (count, 5)).astype(numpy_dtype("bfloat16")),
    }
    return {name: values[name] for name in names}


def column_items(table: Any) -> dict[int, dict[str, bytes]]:
    """The items of a table on the host or of a shard."""
    keys, values = table.items("torch")
    rows = {name: as_bytes(to_numpy(column)).tolist() for name, column in values.items()}
    return {key: {name: rows[name][row] for name in rows} for row, key in enumerate(keys.tolist())}


def named_columns(rank: int, count: int, device: str) -> None:
    """Every call of a table with columns says what one table says to all batches in a row, of some columns or all."""
    here = place(device, rank)
    table = distributed.HashTable("int64", COLUMNS, device=here.device, deterministic=True)
    one = gpuhash.HashTable("int64", COLUMNS, deterministic=True)
    assert dict(table.columns) == dict(one.columns)
    assert table.value_dtype is None
    pool = random_keys("int64", (), 3000, seed=5)

    def mine(values: dict[str, np.ndarray], sizes: list[int]) -> dict[str, Any]:
        start = sum(sizes[:rank])
        return {name: here.array(column[start : start + sizes[rank]]) for name, column in values.items()}

    def same_items() -> None:
        merged: dict[int, Any] = {}
        for shard in gathered(column_items(table.shard)):
            merged.update(shard)
        assert merged == column_items(one)

    def agree(got: dict[str, Any], expected: dict[str, np.ndarray], parts: list[np.ndarray]) -> None:
        assert list(got) == list(expected)
        for name, column in expected.items():
            answers_agree(rank, got[name], column, parts)

    mixed = {"weight": "add", "count": "min", "flag": "keep", "half": "replace"}
    for turn, fast in enumerate([False, True]):  # as between GPUs
        table._are_sent_fast = lambda fast=fast: fast
        for step, (call, names, op) in enumerate(
            [
                ("insert", ("count", "flag"), None),
                ("insert_or_assign", ("half", "weight"), None),
                ("setitem", tuple(COLUMNS), None),
                ("apply", ("weight", "count"), "add"),
                ("apply", tuple(mixed), mixed),
                ("apply", ("count",), {"count": "bit-xor"}),
                ("apply", ("half", "flag"), "keep"),
                ("find_or_insert", ("flag",), None),
                ("find_or_insert", (), None),
                ("setdefault", ("count", "half"), None),
                ("setdefault", (), None),
            ]
        ):
            hot = (turn + step) % 2 == 0
            sizes = [HOT, *[0] * (count - 2), HOT + 1] if hot else [40 * other for other in range(count)]
            parts = batches(pool, sizes, 100 * turn + step, hot=hot)
            keys = concatenated(parts)
            ours, values = here.array(parts[rank]), column_values(len(keys), step, names)
            known = set(as_bytes(to_numpy(one.keys())).tolist())
            if call == "setitem":
                table[ours] = mine(values, sizes)
                one[keys] = values
            elif call == "apply":
                check_mask(table.insert_or_apply(ours, mine(values, sizes), op), parts, known, rank)
                one.insert_or_apply(keys, values, op)
            elif call == "find_or_insert":
                ranks, rows, is_new = table.find_or_insert(ours, mine(values, sizes) if names else None)
                check_mask(is_new, parts, known, rank)
                one.find_or_insert(keys, values if names else None)
                for got, expected in zip((ranks, rows), table.rows(ours), strict=True):
                    same_bytes(got, to_numpy(expected))
            elif call == "setdefault":
                got = table.setdefault(ours, mine(values, sizes) if names else None)
                agree(got, one.setdefault(keys, values if names else None), parts)
            else:
                check_mask(getattr(table, call)(ours, mine(values, sizes)), parts, known, rank)
                getattr(one, call)(keys, values)
            same_items()
            fresh = [np.concatenate([part[:99], np.arange(7) + 1000 * rank]) for part in parts]
            asked = concatenated(fresh)
            for columns in (None, ["half"], ["flag", "weight"]):
                values, found = table.find(here.array(fresh[rank]), columns=columns)
                expected = one.find(asked, columns=columns)
                agree(values, expected[0], fresh)
                answers_agree(rank, found, expected[1], fresh)
            default = {"count": 7, "weight": column_values(len(asked), 3)["weight"]}
            start = sum(map(len, fresh[:rank]))
            given = {**default, "weight": here.array(default["weight"][start : start + len(fresh[rank])])}
            agree(table.get(here.array(fresh[rank]), given), one.get(asked, default), fresh)
            with pytest.raises(KeyError, match="keys are absent"):
                table[here.array(fresh[rank])]
            few = [part[::7] for part in parts]
            if step % 3 == 0:
                agree(table.pop(here.array(few[rank])), one.pop(concatenated(few)), few)
            else:
                agree(table[here.array(few[rank])], one[concatenated(few)], few)
        same_items()
    keys, values = map(to_host, table.gather())
    expected = one[keys]
    for name in COLUMNS:
        same_bytes(values[name], expected[name])
    assert table.gather(1) is None or rank == 1
    clone = table.copy()
    clone.clear()
    clone.update(table)
    clone.update(one)
    clone.update({rank: {"count": 1, "flag": True, "weight": 2, "half": np.ones(5)}})
    one.update({other: {"count": 1, "flag": True, "weight": 2, "half": np.ones(5)} for other in range(count)})
    clone.update({})
    table = clone
    same_items()
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(gathered(folder)[0], "table")
        table.save(shared)
        table = distributed.HashTable.load(shared, device=here.device)
        same_items()
        dist.barrier()  # before the first rank removes the folder
    single = distributed.HashTable("int64", "int32", device=here.device)
    with pytest.raises(TypeError, match="cannot take the items of"):
        single.update(one)


def to_host(arrays: Any) -> Any:
    """Tensors, and mappings of them, as NumPy's arrays."""
    return {name: to_numpy(each) for name, each in arrays.items()} if isinstance(arrays, dict) else to_numpy(arrays)


def columns_of_python(rank: int, count: int, device: str) -> None:
    """Numbers and lists, single keys, and defaults of the table, as one table takes and answers them."""
    here = place(device, rank)
    default = {"count": -1, "half": 4}
    table = distributed.HashTable("uint8", COLUMNS, device=here.device, default=default)
    one = gpuhash.HashTable("uint8", COLUMNS, default=default)
    for filled in (table, one):
        filled.insert([1, 2], {"count": [5, 6], "weight": 3.5})
        filled.update([(7, {"flag": True}), (8, {"flag": False})])
    outside = 256 if rank == 0 else 9
    for key in (1, 9, outside):
        for got, expected in (
            (table[key], one[key]),
            (table.get(key), one.get(key)),
            (table.find(key)[0], one.find(key)[0]),
        ):
            assert got.keys() == expected.keys()
            for name in expected:
                np.testing.assert_array_equal(np.asarray(got[name], float), np.asarray(expected[name], float))
                assert type(got[name]) is type(expected[name])
    assert table.find(outside, {"count": 3}, columns=["count"]) == ({"count": 3}, False)
    assert table.find([1, 9], columns=iter(["count"]))[0]["count"].tolist() == [5, -1]
    assert table.pop(1, None)["count"] == 5
    bare = distributed.HashTable("int64", {"only": "int64"}, device=here.device)
    assert bare.get(1) is None
    assert bare.pop(1, None) is None
    bare.insert_or_apply([1, 1], {"only": 2}, "add")
    assert bare[1] == {"only": 4 * count}
    with pytest.raises(ValueError, match=r"the ranks make different tables: rank 0: .*columns="):
        distributed.HashTable("int64", {"x": "int64" if rank else "int32"}, device=here.device)


def bad_columns(rank: int, count: int, device: str) -> None:
    """What one rank gets wrong all raise, and so where ranks give different columns; the table is as it was."""
    here = place(device, rank)
    table = distributed.HashTable("int64", COLUMNS, device=here.device)
    keys = here.array(np.arange(20 * rank, 20 * rank + 20))
    values = {name: here.array(column) for name, column in column_values(20, 1).items()}
    table[keys] = values
    before = column_items(table.shard)
    last = count - 1

    def refused(kind: type[Exception], text: str, call: Any) -> None:
        with pytest.raises(kind, match=text):
            call()
        assert column_items(table.shard) == before

    def mine(wrong: Any, right: Any) -> Any:
        return wrong if rank == last else right

    short = {**values, "count": values["count"][:3]}
    other = {**values, "count": values["weight"]}
    refused(ValueError, f"rank {last}: .*no column 'x'", lambda: table.insert(keys, mine({"x": 1}, values)))
    refused(TypeError, f"rank {last}: .*mapping of names", lambda: table.insert(keys, mine(1, values)))
    refused(ValueError, f"rank {last}: the values of 'count' have", lambda: table.insert(keys, mine(short, values)))
    refused(TypeError, f"rank {last}: the values of 'count' are", lambda: table.__setitem__(keys, mine(other, values)))
    refused(ValueError, f"rank {last}: .*no column 'x'", lambda: table.find(keys, columns=mine(["x"], ["count"])))
    refused(TypeError, f"rank {last}: the default of 'count' is|are", lambda: table.get(keys, mine(other, 0)))
    refused(
        ValueError,
        f"rank {last}: .*give both",
        lambda: table.insert_or_apply(keys, values, mine({"count": "add"}, "add")),
    )
    some = {"count": values["count"]}
    refused(
        RuntimeError,
        "rank 0: .*, insert; rank 1: .*, insert of count",
        lambda: table.insert(keys, some if rank else values),
    )
    refused(
        RuntimeError,
        "rank 0: .*, find of count; rank 1: .*, find of flag",
        lambda: table.find(keys, columns=["flag" if rank else "count"]),
    )
    assert len(table) == 20 * count


def key_columns(rank: int, count: int, device: str) -> None:
    """Several columns are one key, also of more than 16 bytes, in tables, sets and files."""
    here = place(device, rank)
    for dtypes in ({"shop": "int32", "day": "uint8"}, {"user": "int64", "item": "int64", "kind": "int16"}):
        rng = np.random.default_rng(8)
        parts = [{name: rng.integers(0, 5, 200).astype(dtype) for name, dtype in dtypes.items()} for _ in range(count)]
        table = distributed.HashTable(dtypes, "int64", device=here.device, deterministic=True)
        assert dict(table.key_columns) == dtypes
        one = gpuhash.HashTable(dtypes, "int64", deterministic=True)
        mine = {name: here.array(column) for name, column in parts[rank].items()}
        new = gathered(to_numpy(table.insert_or_apply(mine, here.array(np.full(200, rank + 1)), "add")))
        expected = [one.insert_or_apply(part, owner + 1, "add") for owner, part in enumerate(parts)]
        assert sum(mask.sum() for mask in new) == sum(mask.sum() for mask in expected)
        same_bytes(table[mine], one[parts[rank]])
        as_tuple = tuple(mine.values())
        same_bytes(table.find(as_tuple)[0], one[parts[rank]])
        listed = list(zip(*(column[:5].tolist() for column in parts[rank].values()), strict=True))
        assert table[listed].tolist() == one[listed].tolist()
        assert table[listed[0]] == one[listed[0]]
        assert listed[0] in table
        assert tuple(9 for _ in dtypes) not in table
        assert tuple(np.iinfo(dtype).max + 1 for dtype in dtypes.values()) not in table
        with pytest.raises(KeyError, match=re.escape(str((9,) * len(dtypes)))):
            table[[listed[0], (9,) * len(dtypes)]]
        keys, values = table.gather()
        assert {name: str(column.dtype).removeprefix("torch.") for name, column in keys.items()} == dtypes
        twin = gpuhash.HashTable(dtypes, "int64")
        twin.update({name: to_numpy(column) for name, column in keys.items()}, to_numpy(values))
        assert twin == one
        with tempfile.TemporaryDirectory() as made:
            folder = gathered(made)[0]
            table.save(folder)
            loaded = distributed.HashTable.load(folder, device=here.device)
            dist.barrier()
        assert dict(loaded.key_columns) == dtypes
        same_bytes(loaded[mine], one[parts[rank]])
        loaded.clear()
        loaded.update(one)
        assert len(loaded) == len(one)
        loaded.update({listed[0]: -1})
        assert loaded[gathered(listed[0])[0]] == -1
        erased = loaded.erase(mine)
        assert sum(mask.sum() for mask in gathered(to_numpy(erased))) == len(one)
        members = distributed.HashSet(dtypes, device=here.device)
        members.update(mine, set(listed), gpuhash.HashSet.from_keys(parts[rank]))
        assert len(members) == len(one)
        everything = {name: to_numpy(column) for name, column in members.gather().items()}
        assert gpuhash.HashSet.from_keys(everything) == set(one)
        assert members.pop() in set(one)
        wrong = {**mine, next(iter(dtypes)): here.array(np.zeros(3, next(iter(dtypes.values()))))}
        with pytest.raises(ValueError, match=r"rank 0: the keys of '.*' have shape"):
            table[wrong if rank == 0 else mine]
        with pytest.raises(ValueError, match=r"rank 0: keys of the columns a were given"):
            table.contains({"a": mine[next(iter(dtypes))]} if rank == 0 else mine)
        with pytest.raises(TypeError, match=r"rank 0: "):
            table.contains({name: here.array(np.zeros(2, "int8")) for name in dtypes} if rank == 0 else mine)
        assert len(table) == len(one)


def popitems(rank: int, count: int, device: str) -> None:
    """All ranks get the same item, and no other call gets it; in the end the table is empty on all."""
    here = place(device, rank)
    tables = [
        distributed.HashTable("int64", "bfloat16", value_shape=(2,), device=here.device),
        distributed.HashTable("int32", {"x": "int64", "y": ("float32", (2,))}, key_shape=(2,), device=here.device),
    ]
    for table, is_named in zip(tables, (False, True), strict=True):
        numbers = np.arange(10 * rank, 10 * rank + 10, dtype=table.key_dtype)
        keys = np.stack([numbers, numbers], 1) if is_named else numbers
        halves = here.array(np.stack([numbers, -numbers], 1).astype("float32" if is_named else numpy_dtype("bfloat16")))
        table[here.array(keys)] = {"x": here.array(numbers.astype("int64")), "y": halves} if is_named else halves
        popped = {}
        for _ in range(10 * count):
            key, value = table.popitem()
            number = key[0] if is_named else key
            assert number not in popped
            popped[number] = value["y"] if is_named else value
            assert np.asarray(popped[number], float).tolist() == [number, -number]
        assert sorted(popped) == list(range(10 * count))
        assert len({str(sorted(map(str, popped.items()))) for popped in gathered(popped)}) == 1
        with pytest.raises(KeyError, match=r"popitem\(\): the table is empty"):
            table.popitem()
        assert len(table) == 0


def sets(rank: int, count: int, device: str) -> None:
    here = place(device, rank)
    members = distributed.HashSet("uint64", device=here.device)
    pool = random_keys("uint64", (), 4000)
    known: set[bytes] = set()
    for turn, sizes in enumerate([[50] * count, [HOT, *[0] * (count - 1)], [0] * count]):
        parts = batches(pool, sizes, turn, hot=True)
        check_mask(members.add(here.array(parts[rank])), parts, known, rank)
        known |= set(as_bytes(concatenated(parts)).tolist())
        assert len(members) == len(known)
        assert set(as_bytes(to_numpy(members.gather())).tolist()) == known
    mine = here.array(pool[rank::count])
    expected = [key in known for key in as_bytes(pool[rank::count]).tolist()]
    assert to_numpy(members.contains(mine)).tolist() == expected
    absent = here.array(np.setdiff1d(np.arange(5, dtype=np.uint64), pool)[:1])
    with pytest.raises(KeyError, match=f"rank {count - 1}: 1 of 1 keys are absent"):
        members.remove(absent if rank == count - 1 else here.array(np.empty(0, np.uint64)))
    assert len(members) == len(known)
    members.remove(here.array(pool[rank::count][expected]))
    assert len(members) == 0
    members.discard(mine)
    other = gpuhash.HashSet.from_keys(np.array([100 + rank, 7], np.uint64))
    members.update({rank, 7}, np.array([50], np.uint64), other)
    members.update()
    assert sorted(to_numpy(members.gather()).tolist()) == sorted({7, 50, *range(count), *range(100, 100 + count)})
    twin = distributed.HashSet("uint64", device=here.device)
    twin.update(members)
    popped = [twin.pop() for _ in range(len(members))]
    assert sorted(popped) == sorted(to_numpy(members.gather()).tolist())
    assert gathered(popped) == [popped] * count
    with pytest.raises(KeyError, match=r"pop\(\): the set is empty"):
        twin.pop()


def bad_input(rank: int, count: int, device: str) -> None:
    """Whatever one rank gets wrong, all raise, with its number, and the table is as it was and goes on."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "float32", value_shape=(2,), device=here.device)
    good = here.array(np.arange(20 * rank, 20 * rank + 20))
    values = here.array(np.ones((20, 2), np.float32))
    table[good] = values
    before = items_of(table.shard)
    last = count - 1
    other = here.array(np.arange(20, dtype=np.int32))
    flat = here.array(np.ones(20, np.float32))

    def refused(kind: type[Exception], text: str, call: Any, ranks: tuple[int, ...] = (last,)) -> None:
        who = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
        with pytest.raises(kind, match=f"{who}: {text}") as caught:
            call()
        assert gathered(str(caught.value)) == [str(caught.value)] * count
        assert items_of(table.shard) == before

    def mine(wrong: Any, right: Any, ranks: tuple[int, ...] = (last,)) -> Any:
        return wrong if rank in ranks else right

    refused(TypeError, "the keys are int32", lambda: table.find(mine(other, good)))
    refused(TypeError, "the keys are int32", lambda: table.contains(mine(other, good)))
    refused(TypeError, "the keys are int32", lambda: table.erase(mine(other, good)))
    refused(TypeError, "`in` takes one key", lambda: mine(good[:1], int(good[0])) in table)
    refused(TypeError, "the keys are int32", lambda: table.__setitem__(mine(other, good), values))
    refused(TypeError, "the keys are int32", lambda: table.insert(mine(other, good, (0, last)), values), (0, last))
    refused(TypeError, "the values are float64", lambda: table.insert(good, mine(values.double(), values)))
    refused(ValueError, "the values have shape", lambda: table.insert(good, mine(flat, values)))
    refused(ValueError, "the values have shape", lambda: table.insert_or_apply(good, mine(flat, values), "add"))
    grads = torch.ones(20, 2, device=here.device, requires_grad=True)
    refused(TypeError, ".*grad", lambda: table.insert(good, mine(grads, values)))
    refused(TypeError, "str", lambda: table.find(mine("text", good)))
    refused(TypeError, "the keys are a set|set objects", lambda: table.find(mine({1}, good)))
    refused(OverflowError, ".*out of range", lambda: table.find(mine([1 << 70], good)))
    refused(ValueError, "get.keys. of a batch", lambda: table.get(good, mine(None, 0.0)))
    refused(ValueError, "op='nothing'", lambda: table.insert_or_apply(good, values, "nothing"), tuple(range(count)))
    refused(TypeError, "bit_and combines", lambda: table.insert_or_apply(good, values, "bit_and"), tuple(range(count)))
    refused(TypeError, "update got a single", lambda: table.update(mine(good, (good, values))))
    refused(TypeError, "the keys are int32", lambda: table.find_or_insert(mine(other, good)))
    refused(ValueError, "the values have shape", lambda: table.find_or_insert(good, mine(flat, values)))
    scalars = distributed.HashTable("int64", "float32", device=here.device)
    with pytest.raises(ValueError, match="row storage"):
        scalars.find_or_insert(good)
    absent = here.array(np.array([5000, 1, 6000]))
    text = "2 of 3 keys are absent: 5000, 6000"
    for call in (table.__getitem__, table.__delitem__, table.pop):
        refused(KeyError, text, lambda call=call: call(mine(absent, good)))
    with pytest.raises(ValueError, match="the ranks reserve different sizes"):
        table.reserve(100 + rank)
    with pytest.raises(RuntimeError, match=r"different operations.*rank 0: table \d+, find; rank 1: .*, contains"):
        (table.find if rank == 0 else table.contains)(good)
    with pytest.raises(TypeError, match="rank 0: the keys are int32"):  # which comes before the other difference
        table.find(other) if rank == 0 else table.contains(good)
    with pytest.raises(RuntimeError, match=r"find_or_insert; rank 1: .*, find_or_insert without values"):
        table.find_or_insert(good, 1 if rank == 0 else None)
    with pytest.raises(ValueError, match="the ranks make different tables: rank 0: "):
        distributed.HashTable("int64", "float32" if rank else "int32", device=here.device)
    for name, ours, theirs in (
        ("capacity of a shard", {"capacity": 1000 * count}, {}),
        ("growth", {"capacity": 1000, "growth": False}, {"capacity": 1000}),
        ("max_load_factor", {"max_load_factor": 0.5}, {}),
        ("seed", {"seed": 1}, {"seed": 2}),
        ("seed", {"seed": "random"}, {"seed": 2}),
        ("default", {"default": 1}, {}),
    ):
        with pytest.raises(ValueError, match=rf"different tables: rank 0: .*{name}=\S+; rank 1: .*{name}=.*the same"):
            distributed.HashTable("int64", "int64", device=here.device, **(ours if rank == 0 else theirs))
    with pytest.raises(ValueError, match="rank 0: growth=False"):
        distributed.HashTable("int64", "int64", device=here.device, growth=rank > 0)
    with pytest.raises(TypeError, match="rank 0: dtype 'text'"):
        distributed.HashTable("int64" if rank else "text", "int64", device=here.device)
    assert len(table) == 20 * count
    assert items_of(table.shard) == before


def making_meets_other_calls(rank: int, count: int, device: str) -> None:
    """One rank makes or loads a table, and the others call one that they have, or make another: all are told so."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device)
    keys = here.array(np.arange(100))
    table[keys] = 1

    def make() -> Any:
        return distributed.HashTable("int64", "int64", device=here.device)

    def load() -> Any:
        return distributed.HashTable.load("nowhere", device=here.device)

    for name, making in (("HashTable", make), ("HashTable.load", load)):
        calls = {"len": lambda: len(table), "find": lambda: table.find(keys), "clear": table.clear, "copy": table.copy}
        calls["HashSet.."] = lambda: distributed.HashSet("int64", device=here.device)
        if making is load:
            calls["HashTable.."] = make
        for call, operation in calls.items():
            text = rf"different operations or tables: rank 0: table 0, {name}\(\); rank 1: table \d+, {call}"
            with pytest.raises(RuntimeError, match=text):
                (making if rank == 0 else operation)()
            assert len(table) == 100


def outsiders(rank: int, count: int, device: str) -> None:
    """A process that is not in the group is told so, and its members make their table."""
    here = place(device, rank)
    group = dist.new_group([0])
    for make in (
        lambda: distributed.HashTable("int64", "int64", device=here.device, group=group),
        lambda: distributed.HashSet("int64", group=group),
    ):
        if rank == 0:
            assert len(make()) == 0
        else:
            with pytest.raises(ValueError, match="this process is not in the process group"):
                make()
    if rank == 0:
        dist.destroy_process_group(group)


def full_shards(rank: int, count: int, device: str) -> None:
    """A shard without room refuses the batch on all ranks, and none of it is put in anywhere."""
    here = place(device, rank)
    for shape in ((), (4,)):  # of one word, and of more than 16 bytes
        options = {"key_shape": shape, "device": here.device}
        table = distributed.HashTable("int64", "int64", **options, capacity=100 * count, growth=False)
        keys = np.arange(5000) if not shape else np.arange(5000).reshape(-1, 1).repeat(*shape, 1)
        owners = to_numpy(owner_of(table, here, keys))
        crowd, others = keys[owners == count - 1], keys[owners != count - 1]
        if rank == 0:
            table[here.array(crowd[:90])] = 1
        else:
            table[here.array(others[:0])] = 1
        table[here.array(crowd[:90])] = 2  # all present
        before = items_of(table.shard)
        batch = np.concatenate([others[:30], crowd[90:111]]) if rank == 0 else others[30:50]
        given = here.array(batch)
        for call in (
            lambda table=table, given=given: table.__setitem__(given, 5),
            lambda table=table, given=given: table.insert(given, 5),
            lambda table=table, given=given: table.insert_or_apply(given, 5, "add"),
            lambda table=table, given=given: table.setdefault(given, 5),
        ):
            with pytest.raises(TableFullError, match=f"rank {count - 1}: room for 111 keys"):
                call()
            assert items_of(table.shard) == before
        table[here.array(crowd[90:100] if rank == 0 else crowd[:0])] = 3  # to the last slot
        assert len(table) == 100
        with pytest.raises(TableFullError):
            table.reserve(1000 * count)
        members = distributed.HashSet("int64", **options, capacity=10 * count, max_capacity=10 * count)
        with pytest.raises(TableFullError):
            members.add(here.array(keys))
        assert len(members) == 0


class Failing:
    """A shard of which one method raises."""

    def __init__(self, shard: Any, method: str, error: Exception) -> None:
        self._real = shard
        self._method = method
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            raise self._error
        return getattr(self._real, name)

    def __len__(self) -> int:
        return len(self._real)

    def __setitem__(self, keys: Any, values: Any) -> None:
        raise self._error


def shards_that_fail(rank: int, count: int, device: str) -> None:
    """Whatever a shard raises at its work, all ranks raise, and go on in step."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device)
    keys = here.array(np.arange(1000))
    table[keys] = keys
    shard, before = table.shard, items_of(table.shard)

    def refused(kind: type[Exception], method: str, error: Exception, call: Any) -> None:
        if rank == count - 1:
            table._shard = Failing(shard, method, error)
        with pytest.raises(kind, match=f"rank {count - 1}: .*broken") as caught:
            call()
        assert (caught.value.__cause__ is error) == (rank == count - 1)
        table._shard = shard

    more = here.array(np.arange(100_000))
    refused(MemoryError, "reserve", MemoryError("broken"), lambda: table.insert(more, more))
    assert items_of(table.shard) == before
    refused(MemoryError, "reserve", MemoryError("broken"), lambda: table.reserve(1 << 20))
    refused(gpuhash.CudaError, "find", gpuhash.CudaError("broken"), lambda: table.find(keys))
    refused(RuntimeError, "contains", ArithmeticError("broken"), lambda: table.contains(keys))
    refused(MemoryError, "find", torch.OutOfMemoryError("broken"), lambda: table[keys])
    refused(MemoryError, "insert_or_apply", MemoryError("broken"), lambda: table.insert_or_apply(keys, keys, "min"))
    refused(MemoryError, "", MemoryError("broken"), lambda: table.__setitem__(keys, keys))
    refused(RuntimeError, "clear", RuntimeError("broken"), table.clear)
    held = items_of(shard)

    def break_down(*_: Any) -> None:
        raise gpuhash.CudaError("broken")

    # Counts that cannot be told, and keys that cannot be sorted when the counts have been.
    for name, broken in (("tell", break_down), ("keys", property(break_down))):
        whole_one = Split.__dict__[name]
        for call in (lambda: table.find(keys), lambda: table.insert(keys, 1)):
            if rank == count - 1:
                setattr(Split, name, broken)
            with pytest.raises(gpuhash.CudaError, match=f"rank {count - 1}: broken"):
                call()
            setattr(Split, name, whole_one)
            assert items_of(shard) == held
    with tempfile.TemporaryDirectory() as folder:
        refused(OSError, "_contents", OSError("broken"), lambda: table.save(folder))
        assert list(Path(folder).iterdir()) == []
    refused(MemoryError, "copy", MemoryError("broken"), table.copy)
    refused(MemoryError, "items", MemoryError("broken"), table.gather)
    table[keys] = 7
    assert to_numpy(table[keys]).tolist() == [7] * 1000


def hot_keys_are_sent_once(rank: int, count: int, device: str) -> None:
    """Whatever the keys' frequencies, no owner gets much more than the others, and each key comes once or few times."""
    here = place(device, rank)
    tables = [distributed.HashTable("int64", "int64", key_shape=shape, device=here.device) for shape in ((), (3,))]
    rows: list[int] = []
    exchange = Group.exchange

    def counted(self: Group, tensors: Any, send: Any, receive: Any, *into: Any) -> Any:
        assert send[rank] == receive[rank] == 0, "a rank's own keys stay where they are"
        rows.append(sum(receive))
        return exchange(self, tensors, send, receive, *into)

    drawn = np.random.default_rng(rank)
    hot = here.array((drawn.zipf(1.5, HOT) * 977).astype(np.int64))
    uniform = here.array(drawn.integers(0, 1 << 40, HOT))
    ones = torch.ones_like(hot)
    calls = {
        "apply": lambda table, keys: table.insert_or_apply(keys, ones, "add"),
        "insert": lambda table, keys: table.insert(keys, ones),
        "assign": lambda table, keys: table.__setitem__(keys, ones),
        "find": lambda table, keys: table.find(keys),
        "contains": lambda table, keys: table.contains(keys),
        "erase": lambda table, keys: table.erase(keys),
    }
    Group.exchange = counted
    try:
        for table, fast in itertools.product(tables, (False, True)):  # fast as between GPUs
            table._are_sent_fast = lambda fast=fast: fast
            is_wide = table is tables[1]  # then no keys are merged: two may have one hash
            for name, call in calls.items():
                for keys in (hot, uniform):
                    rows.clear()
                    call(table, torch.stack([keys] * 3, 1) if is_wide else keys)
                    received = gathered(rows[0])
                    distinct = sum(gathered(len(np.unique(to_numpy(keys)))))
                    # Where hot keys are merged, each comes once in a tile, or a thread's piece, of some thousand keys.
                    merges = fast and not is_wide and name in ("apply", "find", "contains") and keys is hot
                    merged = 256 * 11 * count if merges else 0
                    part = (count - 1) / count  # the others are of the ranks that asked
                    gaps = count * count * (GAP + ALIGNMENT - 1)
                    assert distinct * part - 6 * distinct**0.5 < sum(received)
                    assert sum(received) < (distinct + merged) * part + 6 * distinct**0.5 + gaps
                    assert max(received) < 1.5 * sum(received) / count
    finally:
        Group.exchange = exchange


def hot_keys_are_merged(rank: int, count: int, device: str) -> None:
    """Their values are combined while keys are sorted, as between GPUs: all count, and one is told that it is new."""
    here = place(device, rank)
    pool = random_keys("int64", (), 4000, seed=3)
    for dtype, op in (("int64", "add"), ("int32", "max"), ("float64", "min"), ("complex64", "add")):
        table = distributed.HashTable("int64", dtype, device=here.device)
        one = gpuhash.HashTable("int64", dtype)
        table._are_sent_fast = lambda: True
        assert table._merges(table._values.all.row)
        for turn in range(6):
            sizes = [HOT + turn, *[0] * (count - 2), HOT] if turn < 3 else [HOT] * count
            parts = batches(pool, sizes, turn, hot=True)
            if turn == 5:  # on one rank alone
                parts[1] = batches(pool, sizes, turn, hot=False)[1]
            values = [(np.arange(size) % 7 - 3).astype(dtype) for size in sizes]
            given = here.array(values[rank])
            if turn % 2:  # one value for all of a rank's keys: the same for all ranks, or not
                each = [2 if turn == 1 else 2 + other for other in range(count)]
                values = [np.full(size, value, dtype) for size, value in zip(sizes, each, strict=True)]
                given = each[rank]
            mask = table.insert_or_apply(here.array(parts[rank]), given, op)
            check_mask(mask, parts, set(items_of(one)), rank)
            one.insert_or_apply(concatenated(parts), np.concatenate(values), op)
            assert whole(table) == items_of(one)
    deterministic = distributed.HashTable("int64", "float32", device=here.device, deterministic=True)
    rows = distributed.HashTable("int64", "float32", value_shape=(2,), device=here.device)
    for other in (deterministic, rows):
        other._are_sent_fast = lambda: True
        assert not other._merges(other._values.all.row)


def hot_keys_are_looked_up_once(rank: int, count: int, device: str) -> None:
    """As between GPUs, where they are merged while keys are sorted: each of them gets its key's answer, or default."""
    here = place(device, rank)
    pool = random_keys("int64", (), 4000, seed=3)
    for dtype, shape in (("int64", ()), ("uint8", ()), ("float32", (3,))):
        table = distributed.HashTable("int64", dtype, value_shape=shape, device=here.device)
        table._are_sent_fast = lambda: True
        values = random_values(dtype, (len(pool), *shape), 5)
        absent = np.arange(len(pool)) % 5 == 1  # the hottest but one among them
        if rank == 0:
            table[here.array(pool[~absent])] = here.array(values[~absent])
        else:
            table[here.array(pool[:0])] = here.array(values[:0])
        for turn in range(3):
            codes = np.random.default_rng([turn, rank]).zipf(1.4, HOT if turn < 2 else HOT * (rank + 1)) % len(pool)
            if turn == 1 and rank == 1:
                codes = np.arange(len(pool))  # this rank has no hot keys
            keys, found = here.array(pool[codes]), ~absent[codes]
            own = random_values(dtype, (len(codes), *shape), turn)
            ours, mask = table.find(keys, here.array(own))
            expected = np.where(found.reshape(-1, *[1] * len(shape)), values[codes], own)
            same_bytes(to_numpy(ours), expected)
            np.testing.assert_array_equal(to_numpy(mask), found)
            np.testing.assert_array_equal(to_numpy(table.contains(keys)), found)
            if shape:
                ranks, rows = (to_numpy(part) for part in table.rows(keys))
                np.testing.assert_array_equal(rows >= 0, found)
                np.testing.assert_array_equal(ranks, to_numpy(owner_of(table, here, pool[codes])))
            with pytest.raises(KeyError, match=f"{np.sum(~found)} of {len(codes)} keys are absent"):
                table[keys]
            present = here.array(pool[codes[found]])
            same_bytes(to_numpy(table[present]), values[codes[found]])
        hottest = here.array(pool[codes[codes % 5 == 0]])
        same_bytes(to_numpy(table.pop(hottest)), values[codes[codes % 5 == 0]])
        assert not to_numpy(table.contains(hottest)).any()


def owner_of(table: Any, here: Framework, keys: np.ndarray) -> Any:
    """The rank that owns each key, as another table of the same ranks says."""
    kind = {"key_shape": keys.shape[1:], "value_shape": (1,)}
    rows = distributed.HashTable("int64", "int64", **kind, device=here.device)
    return rows.rows(here.array(keys))[0]


def room(rank: int, count: int, device: str) -> None:
    """reserve() is enough for that many keys; without it a table grows by doubling; capacity is that of all shards."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device)
    table.reserve(50_000)
    capacity = table.shard.capacity
    keys = random_keys("int64", (), 50_000, seed=2)
    for part in np.array_split(keys, 10):
        table[here.array(part[rank::count])] = 1
    assert table.shard.capacity == capacity
    assert sum(gathered(capacity)) < 100_000
    grown = distributed.HashTable("int64", "int64", device=here.device)
    capacities = set()
    for part in np.array_split(keys, 100):
        grown[here.array(part[rank::count])] = 1
        capacities.add(grown.shard.capacity)
    assert len(capacities) < 20
    few = distributed.HashTable("int64", "int64", device=here.device, capacity=1000 * count)
    assert few.shard.capacity < 1100
    capacity = few.shard.capacity
    for turn in range(20):  # many draws of few keys, which a sample does not tell from others
        drawn = np.random.default_rng([turn, rank]).integers(0, 500 * count, 3000)
        few[here.array(drawn)] = turn
    assert few.shard.capacity == capacity


def save(rank: int, count: int, device: str, folder: str, kinds: Any) -> None:
    here = place(device, rank)
    for name, (key_dtype, key_shape, value_dtype, value_shape) in kinds.items():
        keys = random_keys(key_dtype, key_shape, 3000, seed=3)
        if value_dtype is None:
            made: Any = distributed.HashSet(key_dtype, key_shape=key_shape, device=here.device, deterministic=True)
            made.add(here.array(keys[rank::count]))
        else:
            made = distributed.HashTable(
                key_dtype,
                value_dtype,
                key_shape=key_shape,
                value_shape=value_shape,
                device=here.device,
                default=random_values(value_dtype, value_shape, 1),
                max_load_factor=0.6,
                seed=5,
            )
            values = random_values(value_dtype, (len(keys), *value_shape), 4)
            made.save(Path(folder, name))  # an empty one, which the next replaces
            made[here.array(keys[rank::count])] = here.array(values[rank::count])
        others = ["shard-00000-of-00001-0123abcd.safetensors", "shard-00000-of-00002-notoken.safetensors", "notes"]
        if rank == 0:
            Path(folder, name).mkdir(exist_ok=True)
            for other in (*others, "shard-00000-of-00003-01234567.safetensors"):  # the last one of a killed save
                Path(folder, name, other).touch()
        dist.barrier()
        made.save(Path(folder, name))
        dist.barrier()
        if rank == 0:
            for other in others:
                Path(folder, name, other).unlink()
        dist.barrier()
        files = sorted(path.name for path in Path(folder, name).iterdir())
        index = json.loads(Path(folder, name, "index.json").read_text())
        assert files == ["index.json", *(entry["name"] for entry in index["files"])]
        assert [entry["keys"] for entry in index["files"]] == gathered(len(made.shard))
        tensors = (
            safetensors.numpy.load_file(Path(folder, name, files[1 + rank])) if value_dtype != "bfloat16" else None
        )
        if tensors is not None:
            assert tensors.keys() == ({"keys"} if value_dtype is None else {"keys", "values"})
            assert len(tensors["keys"]) == len(made.shard)


def load(rank: int, count: int, device: str, folder: str, kinds: Any, subset: int) -> None:
    """Another number of ranks: the first ``subset`` of them form a group of their own."""
    here = place(device, rank)
    group = dist.new_group(range(subset))
    if rank >= subset:
        return
    for name, (key_dtype, key_shape, value_dtype, value_shape) in kinds.items():
        keys = random_keys(key_dtype, key_shape, 3000, seed=3)
        if value_dtype is None:
            members = distributed.HashSet.load(Path(folder, name), device=here.device, group=group)
            assert len(members) == len(keys)
            assert to_numpy(members.contains(here.array(keys))).all()
            assert members.deterministic
            with pytest.raises(ValueError, match="holds a set"):
                distributed.HashTable.load(Path(folder, name), device=here.device, group=group)
            continue
        table = distributed.HashTable.load(Path(folder, name), device=here.device, group=group)
        values = random_values(value_dtype, (len(keys), *value_shape), 4)
        assert len(table) == len(keys)
        same_bytes(table[here.array(keys)], values)
        assert (table.max_load_factor, table.shard.seed, table.world_size) == (0.6, 5, subset)
        absent = to_numpy(table.get(here.array(np.flip(keys)[:1] ^ keys[:1]), None))
        known = set(as_bytes(keys).tolist())
        if as_bytes(np.flip(keys)[:1] ^ keys[:1]).tolist()[0] not in known:
            same_bytes(absent[0], random_values(value_dtype, value_shape, 1).reshape(value_shape))
        table.save(Path(folder, f"{name}-{subset}"))
    dist.destroy_process_group(group)


def saved_table(rank: int, device: str, folder: Path) -> tuple[Framework, Any]:
    """One of 1000 keys of each rank, which the folder holds as well."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device)
    table[here.array(np.arange(1000 * rank, 1000 * rank + 1000))] = 1
    table.save(folder)
    return here, table


def damaged_files(rank: int, count: int, device: str, folder: str) -> None:
    path = Path(folder, "damaged")
    here, table = saved_table(rank, device, path)
    index = path / "index.json"
    text = index.read_text()
    described = json.loads(text)
    dist.barrier()

    def refused(kind: type[Exception], match: str, change: Any) -> None:
        """Loading fails on all ranks after the first has changed something."""
        if rank == 0:
            change()
        dist.barrier()
        with pytest.raises(kind, match=match):
            distributed.HashTable.load(path, device=here.device)
        dist.barrier()
        if rank == 0:
            index.write_text(text)
        dist.barrier()

    def changed(**fields: Any) -> Any:
        return lambda: index.write_text(json.dumps({**described, **fields}))

    files = described["files"]
    refused(ValueError, "ranks 0, .*JSON", lambda: index.write_text("{"))
    refused(ValueError, "not a list of files", changed(files=[]))
    refused(ValueError, "not the name of a shard's file", changed(files=[{"name": "../../secret", "keys": 1}]))
    refused(ValueError, "is not a number of keys", changed(files=[{**files[0], "keys": -1}]))
    refused(
        ValueError, f"{files[1]['keys']} keys, and 1 by the index", changed(files=[files[0], {**files[1], "keys": 1}])
    )
    refused(ValueError, "only some are distinct", changed(files=[files[0], files[0]]))
    refused(ValueError, "key_dtype|key dtype", changed(metadata={**described["metadata"], "key_dtype": "float32"}))
    refused(ValueError, "is not of the table", changed(metadata={**described["metadata"], "key_dtype": "int32"}))
    assert len(distributed.HashTable.load(path, device=here.device)) == 1000 * count
    refused(OSError, "No such file", lambda: (path / files[-1]["name"]).unlink())
    refused(OSError, "No such file", index.unlink)
    locked = Path(folder, f"file-{rank}")
    locked.write_text("")  # where a folder is expected
    with pytest.raises(OSError, match="rank 0: "):
        table.save(locked)
    assert len(table) == 1000 * count


def folders_that_differ(rank: int, count: int, device: str, folder: str) -> None:
    """As relative paths may be, or a disk of each host: all ranks are told, and what was saved before stays."""
    shared = Path(folder, "shared")
    here, table = saved_table(rank, device, shared)
    files = sorted(shared.iterdir())
    for stray in (count - 1, 0):
        elsewhere = Path(folder, f"of-rank-{stray}")
        missing = stray or 1  # seen from the first rank
        text = f"rank 0: 'shard-0000{missing}-of-.*, which rank {missing} has written, is not in .*shared by all ranks"
        with pytest.raises(OSError, match=text):
            table.save(elsewhere if rank == stray else shared)
        dist.barrier()  # till all have taken back what they wrote
        assert sorted(shared.iterdir()) == files
        assert list(elsewhere.iterdir()) == []
        assert len(distributed.HashTable.load(shared, device=here.device)) == 1000 * count


def others_want_a_mapping(rank: int, count: int, device: str) -> None:
    """No library may take one rank's part for the whole, or wait for ranks that do not call it."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device)
    table[here.array(np.arange(2))] = 7
    keyset = distributed.HashSet("int64", device=here.device)
    series = pd.Series([0, 1])
    for use in (
        lambda: series.replace(table),
        lambda: series.map(table),
        lambda: collections.Counter({1: 1}).update(table),
        lambda: np.isin([0, 1], table),
        lambda: np.isin([0, 1], keyset),
        lambda: gpuhash.isin([0, 1], keyset),
        lambda: np.add([0, 1], keyset),
    ):
        with pytest.raises(TypeError):
            use()
    with pytest.raises(TypeError, match=r"a distributed HashSet is no array.*contains"):
        np.asarray(keyset)
    with pytest.raises(TypeError, match=r"a HashTable is no array: its items lie with several processes"):
        gpuhash.isin([0, 1], table)


def moved(rank: int, count: int, device: str) -> None:
    """Shards on the host, whose group is that of GPUs as well."""
    here = place(device, rank)
    table = distributed.HashTable("int64", "int64", device=here.device)
    table[here.array(np.arange(100))] = rank
    same = table.to(here.device)
    assert same is table
    twin = table.copy()
    twin[here.array(np.arange(100, 200))] = 1
    assert (len(table), len(twin)) == (100, 200)
    others = [copy.copy(table), copy.deepcopy({"inside": [table]})["inside"][0]]
    for other in others:
        assert type(other) is type(table)
        other[here.array(np.arange(1000, 1010))] = 2
        assert (len(table), len(other)) == (100, 110)
    assert table.gather(1) is None or rank == 1
    if rank == 1:
        assert set(to_numpy(twin.keys("torch")).tolist()) <= set(range(200))


def no_answer(rank: int, count: int, device: str) -> None:
    """A rank that does not come: the others get an error when the group's time is over."""
    here = place(device, rank)
    import datetime

    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    table = distributed.HashTable("int64", "int64", device=here.device, group=group)
    keys = here.array(np.arange(100))
    table[keys] = 1
    before = items_of(table.shard)
    start = time.monotonic()
    if rank == 0:
        dist.barrier()
    else:
        with pytest.raises(RuntimeError) as caught:
            table[keys] = 2
        assert time.monotonic() - start < 20
        assert any("left the collective call table[keys] = values" in note for note in caught.value.__notes__)
        assert items_of(table.shard) == before
        with pytest.raises(RuntimeError, match=r"find cannot be called: table.keys. = values broke off on rank"):
            table.find(keys)
        dist.barrier()


def die_in(rank: int, count: int, step: str, victim: int) -> list[bool]:
    """One rank is killed at a step of a change: all others get an error in time, and their shards are as they were."""
    table = distributed.HashTable("int64", "int64")
    keys = torch.arange(3000) + 1000 * rank
    table[keys] = keys
    other = distributed.HashTable("int64", "int64")
    before = items_of(table.shard)
    if rank == victim:
        setattr(Group, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    start = time.monotonic()
    with pytest.raises(RuntimeError):
        table.insert_or_apply(keys + 7, torch.ones(3000, dtype=torch.int64), "add")
    assert time.monotonic() - start < 30
    assert items_of(table.shard) == before
    with pytest.raises(RuntimeError, match=f"cannot be called: .* broke off on rank {dist.get_rank()} "):
        len(table)
    with pytest.raises(RuntimeError, match=r"find cannot be called: insert_or_apply.* broke off"):
        other.find(keys)  # of the same group
    survivors.append(table.shard)
    return [True]


survivors: list[Any] = []


def go_on(rank: int, count: int, store: str, ranks: list[int], seconds: float) -> int:
    """The ranks that are left form a group and a table of what their shards have."""
    dist.destroy_process_group()
    join_group(ranks.index(rank), len(ranks), "gloo", store, seconds)
    shard = survivors[-1]
    table = distributed.HashTable("int64", "int64")
    table.update(shard)
    total = sum(gathered(len(shard)))
    assert len(table) == total
    assert whole(table).items() >= items_of(shard).items()
    return total
