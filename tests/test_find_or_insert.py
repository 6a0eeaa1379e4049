"""find_or_insert: the row of every key, new or not, and which were new; against a dict of rows."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from support.frameworks import GPU, capture, module, new_stream, on_stream, to_numpy
from support.samples import as_bytes, check_new_mask, items_of, random_keys, random_values, same_bytes

from gpuhash import HashSet, HashTable, TableFullError

KEY_TYPES = [("int64", ()), ("uint8", ()), ("int32", (3,)), ("int64", (2,))]


class Model:
    """What a loop over a dict knows: each key's row and value, as bytes."""

    def __init__(self) -> None:
        self.rows: dict[bytes, int] = {}
        self.values: dict[bytes, bytes] = {}

    def check(
        self, table: Any, place: Any, keys: np.ndarray, answers: Any, values: np.ndarray, *, ordered: bool
    ) -> None:
        """The answers to a call with these keys and a value for each, which it then knows."""
        rows, is_new = (to_numpy(answer) for answer in answers)
        assert rows.dtype == np.int64
        assert rows.shape == (len(keys),)
        check_new_mask(is_new, keys, self.rows, in_order=ordered)
        same_bytes(table.rows(place.array(keys)), rows)
        same_bytes(to_numpy(table.row_storage)[rows], to_numpy(table[place.array(keys)]))
        names, given = as_bytes(keys).tolist(), as_bytes(values).tolist()
        held = dict(zip(names, as_bytes(to_numpy(table[place.array(keys)])).tolist(), strict=True))
        candidates: dict[bytes, list[bytes]] = {}
        for name, value in zip(names, given, strict=True):
            candidates.setdefault(name, []).append(value)
        for name, row in zip(names, rows.tolist(), strict=True):
            if name in self.rows:
                assert row == self.rows[name], "a key keeps its row while it lives"
                assert held[name] == self.values[name]
            else:
                assert held[name] == candidates[name][0] if ordered else held[name] in candidates[name]
        self.rows.update(zip(names, rows.tolist(), strict=True))
        self.values.update(held)
        assert len(set(self.rows.values())) == len(self.rows), "no two keys share a row"

    def forget(self, keys: np.ndarray) -> None:
        for name in as_bytes(keys).tolist():
            self.rows.pop(name, None)
            self.values.pop(name, None)


@pytest.mark.pairwise
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=str)
@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "in-order"])
@pytest.mark.parametrize("with_values", [True, False], ids=["values", "zeros"])
def test_rows_are_those_of_a_dict(place, key_type, deterministic, with_values):
    """While keys come, come again, go, and the table grows in the middle of batches."""
    dtype, shape = key_type
    rng = np.random.default_rng(3)
    known = random_keys(dtype, shape, 900)
    table = HashTable(
        dtype, "float32", key_shape=shape, value_shape=(5,), device=place.table_device, deterministic=deterministic
    )
    model, ordered = Model(), deterministic or place.table_device == "cpu"

    def values_of(count: int, seed: int) -> tuple[np.ndarray, tuple[Any, ...]]:
        values = random_values("float32", (count, 5), seed) if with_values else np.zeros((count, 5), np.float32)
        return values, (place.array(values),) if with_values else ()

    for round_number in range(8):
        count = (1, 700, 900, 1500)[round_number % 4]
        keys = known[rng.integers(0, min(len(known), 100 + 200 * round_number), count)]
        values, given = values_of(count, round_number)
        answers = table.find_or_insert(place.array(keys), *given)
        assert all(place.owns(answer) for answer in answers)
        model.check(table, place, keys, answers, values, ordered=ordered)
        assert len(table) == len(model.rows)
        gone = known[rng.integers(0, len(known), 60)]
        table.erase(place.array(gone))
        model.forget(gone)
    keys = known[:1]
    hot = np.repeat(keys, 3000, 0)
    table.erase(place.array(keys))
    model.forget(keys)
    values, given = values_of(3000, 99)
    model.check(table, place, hot, table.find_or_insert(place.array(hot), *given), values, ordered=ordered)


def test_a_large_batch_of_known_and_new_keys(place):
    """Without values: new keys come several times each, some hot, among those that are there; also after erasures."""
    rng = np.random.default_rng(11)
    pool = np.unique(random_keys("int64", (), 700_000))
    table = HashTable("int64", "float32", value_shape=(2,), device=place.table_device)
    table[place.array(pool[: 1 << 17])] = 7
    there = np.arange(len(pool)) < 1 << 17
    for spread in (0, 1.2, 0):
        size = (1 << 19) + 77
        codes = rng.integers(0, len(pool), size) if not spread else rng.zipf(spread, size) * 3 % len(pool)
        keys = place.array(pool[codes])
        before = to_numpy(table.rows(keys))
        rows, is_new = (to_numpy(answer) for answer in table.find_or_insert(keys))
        np.testing.assert_array_equal(before >= 0, there[codes])
        np.testing.assert_array_equal(rows[there[codes]], before[there[codes]])
        told = np.bincount(codes[is_new], minlength=len(pool))
        comes = np.bincount(codes, minlength=len(pool)) > 0
        np.testing.assert_array_equal(told, comes & ~there)
        there |= comes
        same_bytes(table.rows(keys), rows)
        assert len(np.unique(rows)) == np.count_nonzero(comes), "no two keys share a row"
        assert len(table) == np.count_nonzero(there)
        same_bytes(table[place.array(pool[codes[is_new]])], np.zeros((np.count_nonzero(is_new), 2), np.float32))
        gone = rng.random(len(pool)) < 0.3
        table.erase(place.array(pool[gone]))
        there &= ~gone


@pytest.mark.parametrize(
    "value_type",
    [("float32", (64,)), ("int8", (3,)), ("complex128", ()), ("bfloat16", (2, 3)), ("bool", (5,))],
    ids=str,
)
def test_values_of_new_keys(native, value_type):
    """One for each, one for all, the table's default, or zeros."""
    dtype, shape = value_type
    number = bool if dtype == "bool" else int
    keys = np.arange(40)
    own = random_values(dtype, (40, *shape), 1)
    one = random_values(dtype, shape, 2)
    for default in (None, number(3)):
        table = HashTable("int64", dtype, value_shape=shape, device=native.table_device, default=default)
        filled = np.zeros((10, *shape), own.dtype) + np.asarray(default or 0).astype(own.dtype)
        for first, given, expected in [
            (0, (), filled),
            (10, (native.array(own[10:20]),), own[10:20]),
            (20, (native.array(np.asarray(one)),), np.broadcast_to(one, (10, *shape))),
            (30, (number(2),), np.zeros((10, *shape), own.dtype) + np.asarray(2).astype(own.dtype)),
        ]:
            mine = native.array(keys[first : first + 10])
            rows, is_new = table.find_or_insert(mine, *given)
            assert to_numpy(is_new).all()
            same_bytes(table[mine], np.ascontiguousarray(expected))
            again, is_new = table.find_or_insert(mine, number(1))
            same_bytes(again, to_numpy(rows))
            assert not to_numpy(is_new).any()
            same_bytes(table[mine], np.ascontiguousarray(expected))


def test_shapes_numbers_and_outputs(native):
    table = HashTable("int64", "float32", value_shape=(4,), device=native.table_device, default=0.5)
    keys = np.arange(12).reshape(3, 4)
    rows, is_new = native.array(np.zeros((3, 4), np.int64)), native.array(np.zeros((3, 4), bool))
    given = table.find_or_insert(native.array(keys), out=(rows, is_new))
    assert given[0] is rows
    assert given[1] is is_new
    assert sorted(to_numpy(rows).ravel().tolist()) == list(range(12))
    assert to_numpy(is_new).all()
    row, new = table.find_or_insert(5)
    assert (row, new) == (to_numpy(rows)[1, 1], False)
    row, new = table.find_or_insert(99)
    assert (row, new) == (12, True)
    keys_and_rows = native.array(keys)
    table.find_or_insert(keys_and_rows, out=(keys_and_rows, is_new))  # written where the keys were read
    same_bytes(keys_and_rows, to_numpy(rows))
    assert not to_numpy(is_new).any()
    empty = table.find_or_insert(native.array(keys[:0]), 1)
    assert [to_numpy(answer).shape for answer in empty] == [(0, 4), (0, 4)]
    view = table.row_storage_as(native.name)
    numbers, new = table.find_or_insert(native.array(np.arange(100, 103)), view[:3])  # rows of the table itself
    assert to_numpy(new).all()
    same_bytes(table[native.array(np.arange(100, 103))], np.full((3, 4), 0.5, np.float32))
    assert len(table) == 16
    assert to_numpy(numbers).min() == 13


def test_what_cannot_be(device):
    scalars = HashTable("int64", "float32", device=device)
    with pytest.raises(ValueError, match="no row storage"):
        scalars.find_or_insert([1, 2], 0)
    assert len(scalars) == 0
    assert not hasattr(HashSet("int64", device=device), "find_or_insert")
    table = HashTable("int64", "float32", value_shape=(2,), device=device)
    table.find_or_insert([1, 2], 7)
    before = items_of(table)
    for keys, values, error in [
        (np.array([1.5]), 0, TypeError),
        (np.array([1], np.int32), 0, TypeError),
        ([3], np.zeros((1, 2)), TypeError),
        ([3], np.zeros((2, 2), np.float32), ValueError),
        ([3], "x", TypeError),
    ]:
        with pytest.raises(error):
            table.find_or_insert(keys, values)
    with pytest.raises(TypeError, match=r"\(rows, is_new\)"):
        table.find_or_insert([3], 0, out=np.zeros(1, np.int64))
    assert items_of(table) == before
    full = HashTable("int64", "float32", value_shape=(2,), device=device, capacity=64, growth=False)
    full.find_or_insert(np.arange(full.capacity), 1)
    before = items_of(full)
    with pytest.raises(TableFullError):
        full.find_or_insert(np.arange(5, full.capacity + 5))
    assert items_of(full) == before
    assert not full.find_or_insert(np.arange(full.capacity))[1].any()


def test_the_paths_agree(native):
    """What C++ serves alone, and the general path."""
    fast, slow = (
        HashTable("int64", "float32", value_shape=(3,), device=native.table_device, deterministic=True, default=2)
        for _ in range(2)
    )
    fast.contains(native.array(np.arange(3)))
    keys = random_keys("int64", (), 300)
    for seed, (count, more) in enumerate([(100, ()), (200, (random_values("float32", (200, 3)),)), (300, ())]):
        mine = native.array(keys[:count])
        served = fast._fast.changes
        got = fast.find_or_insert(mine, *map(native.array, more))
        assert fast._fast.changes == served + 1, seed
        expected = slow.find_or_insert(mine if native.name == "numpy" else to_numpy(mine), *more)
        for one, other in zip(got, expected, strict=True):
            if native.table_device == "cpu":
                same_bytes(one, to_numpy(other))
        assert items_of(fast) == items_of(slow)


@pytest.mark.parametrize("shards", [1, 3])
def test_shards(device, shards):
    """Rows name the shard and the row in it, for one batch and for several."""
    table = HashTable("int64", "float32", value_shape=(2,), device=[device] * shards)
    keys = random_keys("int64", (), 1000)
    rows, is_new = table.find_or_insert(keys[:600], np.arange(1200, dtype=np.float32).reshape(600, 2))
    assert is_new.all()
    same_bytes(table.rows(keys[:600]), rows)
    assert len(set(rows.tolist())) == 600
    for key, row in zip(keys[:50], rows[:50].tolist(), strict=True):
        shard = table.shards[row >> 40]
        assert shard.rows(int(key)) == row & (1 << 40) - 1
    more, new = table.find_or_insert([keys[300:900], keys[600:]], 5)
    same_bytes(more[0][:300], rows[300:])
    same_bytes(more[0][300:], more[1][:300])
    assert not new[0][:300].any()
    assert (new[0][300:] ^ new[1][:300]).all()
    assert new[1][300:].all()
    assert len(table) == 1000
    same_bytes(table[keys[600:]], np.full((400, 2), 5, np.float32))
    with pytest.raises(ValueError, match="no row storage"):
        HashTable("int64", "float32", device=[device] * shards).find_or_insert([1], 1)


def test_threads_get_the_same_rows(device):
    table = HashTable("int64", "int64", value_shape=(2,), device=device)
    keys = random_keys("int64", (), 4000)
    answers: list[Any] = [None] * 4

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        mine = rng.permutation(len(keys))
        rows = np.empty(len(keys), np.int64)
        new = 0
        for part in np.array_split(mine, 20):
            numbers, is_new = table.find_or_insert(keys[part], number)
            rows[part] = numbers
            new += int(is_new.sum())
        answers[number] = (rows, new)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rows, _ in answers:
        same_bytes(rows, table.rows(keys))
    assert sum(new for _, new in answers) == len(keys) == len(table)


def test_streams(torch_cuda):
    """A call on another stream comes after the last one, and its answers after both."""
    torch = torch_cuda
    table = HashTable("int64", "float32", value_shape=(16,), device=GPU)
    keys = torch.arange(1 << 16, device=GPU)
    torch.cuda.synchronize(GPU)
    first, second = new_stream(), new_stream()
    with on_stream(first):
        rows, is_new = table.find_or_insert(keys, 1)
    with on_stream(second):
        again, old = table.find_or_insert(keys.flip(0), 2)
    torch.cuda.synchronize(GPU)
    assert torch.equal(rows, again.flip(0))
    assert is_new.all()
    assert not old.any()


@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "in-order"])
@pytest.mark.parametrize("with_values", [True, False], ids=["values", "zeros"])
def test_cuda_graph(torch_cuda, deterministic, with_values):
    """Each replay works on the keys that are in the arrays then; a key without room gets -1, and is told to be lost."""
    torch = torch_cuda
    table = HashTable("int64", "int64", value_shape=(3,), device=GPU, capacity=512, deterministic=deterministic)
    room = int(table.capacity * table.max_load_factor)
    keys, values = torch.arange(200, device=GPU), torch.zeros(200, 3, dtype=torch.int64, device=GPU)
    out = torch.zeros(200, dtype=torch.int64, device=GPU), torch.zeros(200, dtype=torch.bool, device=GPU)
    given = (values,) if with_values else ()
    table.find_or_insert(keys, *given, out=out)
    assert len(table) == 200
    held = dict(zip(range(200), to_numpy(out[0]).tolist(), strict=True))
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.find_or_insert(keys, *given, out=out)
    rng = np.random.default_rng(0)
    for replay in range(1, 6):
        batch = rng.integers(0, 200 + 100 * replay, 200)
        keys.copy_(torch.from_numpy(batch))
        values.copy_(torch.from_numpy(batch + 1000)[:, None])
        graph.replay()
        rows, is_new = (to_numpy(answer) for answer in out)
        assert (rows[np.isin(batch, list(held))] >= 0).all()
        for key, row in zip(batch.tolist(), rows.tolist(), strict=True):
            assert row == held.get(key, row)
            if row >= 0:
                held[key] = row
        assert len(held) <= room
        assert len(set(held.values())) == len(held)
        assert (rows[is_new] >= 0).all()
        is_lost = rows < 0
        if is_lost.any():
            assert len(held) == room
            with pytest.raises(TableFullError, match=f"{len(np.unique(batch[is_lost]))} are lost"):
                len(table)
        assert len(table) == len(held)
        got = to_numpy(table.row_storage)[rows[is_new]]
        expected = batch[is_new] + 1000 if with_values else np.zeros(is_new.sum())
        np.testing.assert_array_equal(got, np.broadcast_to(expected[:, None], got.shape))
        if is_lost.any():
            break
    assert is_lost.any()
    assert len(table) == room


def test_out_of_sight_of_the_compiler(native):
    """In a compiled function the call runs as it does outside."""
    torch = module("torch")
    if native.name != "torch":
        pytest.skip("PyTorch's compiler compiles functions of tensors")
    table = HashTable("int64", "float32", value_shape=(2,), device=native.table_device)

    def step(keys: Any) -> Any:
        rows, is_new = table.find_or_insert(keys * 2, 1)
        return rows + 1, is_new

    keys = native.array(np.arange(10))
    rows, is_new = torch.compile(step, backend="eager")(keys)
    assert is_new.all()
    assert torch.equal(rows, table.rows(keys * 2) + 1)
