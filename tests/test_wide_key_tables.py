"""Keys of more than 16 bytes: they lie in rows, and are found by fingerprints that a table may have twice."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import threading

import numpy as np
import pytest
from support.frameworks import Framework, spread, to_numpy
from support.items import Items
from support.samples import as_bytes, random_keys, random_values, type_name
from support.tuning import tuned

import gpuhash
from gpuhash import HashSet, HashTable
from gpuhash.initializers import Constant, Normal

KEY_TYPES = [
    ("uint8", (17,)),
    ("int32", (5,)),
    ("int64", (3,)),
    ("int16", (3, 4)),
    ("uint8", (32,)),
    ("uint8", (33,)),
    ("uint64", (2, 2, 2)),
    ("int32", (25,)),
    ("uint8", (1000,)),
]
key_types = pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
#: Of fingerprints: as they are, and so few that most keys share one.
few_bits = pytest.mark.parametrize("bits", [2, 63])


@pytest.fixture
def device(device, shards):
    """What ``device=`` is given for a table here, a single one or one of shards."""
    return spread(device, shards)


@pytest.fixture
def native(native, shards):
    return dataclasses.replace(native, table_device=spread(native.table_device, shards))


def sample(key_type: tuple[str, tuple[int, ...]], count: int, seed: int = 0) -> np.ndarray:
    return random_keys(*key_type, count, seed)


def alike(count: int, width: int = 24) -> np.ndarray:
    """Keys that differ in few bytes each: [count, width], uint8."""
    keys = np.zeros((count, width), np.uint8)
    for byte in range(3):
        keys[:, (7 * byte + 3) % width] = np.arange(count) >> (4 * byte) & 15
    return keys


# Operations ----------------------------------------------------------------------------------------------------------


@key_types
def test_keys_of_any_width_are_found(native: Framework, key_type):
    keys = sample(key_type, 3000)
    values = random_values("float32", (len(keys),))
    table = HashTable(key_type[0], "float32", key_shape=key_type[1], device=native.table_device)
    held = len(keys) // 2
    inserted = table.insert_or_assign(native.array(keys[:held]), native.array(values[:held]))
    assert to_numpy(inserted).all()
    found, mask = table.find(native.array(keys), default=-1)
    assert to_numpy(mask).tolist() == [True] * held + [False] * (len(keys) - held)
    np.testing.assert_array_equal(to_numpy(found), np.where(to_numpy(mask), values, -1))
    assert Items.held_by(table) == Items(keys[:held], values[:held])
    assert table.key_shape == key_type[1]


@key_types
def test_one_bit_makes_another_key(device, key_type):
    dtype, shape = key_type
    zeros = np.zeros((1, *shape), dtype)
    bits = 8 * zeros.nbytes
    others = np.zeros((bits, zeros.nbytes), np.uint8)
    others[np.arange(bits), np.arange(bits) // 8] = 1 << np.arange(bits) % 8
    keys = np.concatenate([zeros, others.view(dtype).reshape(bits, *shape)])
    table = HashTable(dtype, "int64", key_shape=shape, device=device)
    table[keys] = np.arange(len(keys))
    assert len(table) == len(keys)
    assert table[keys].tolist() == list(range(len(keys)))
    table.erase(keys[::2])
    assert table.contains(keys).tolist() == [i % 2 == 1 for i in range(len(keys))]


@few_bits
def test_duplicates_and_growth_in_a_batch(native: Framework, bits):
    rng = np.random.default_rng(bits)
    pool = alike(60 if bits == 2 else 4000)
    with tuned(fingerprint_bits=bits):
        table = HashTable("uint8", "int64", key_shape=(24,), device=native.table_device, deterministic=True)
    model: dict[bytes, int] = {}
    for _ in range(4):
        picked = rng.integers(0, len(pool), 3 * len(pool))
        keys, values = pool[picked], rng.integers(0, 1000, len(picked))
        seen = set(model)
        new = [not (key in seen or seen.add(key)) for key in as_bytes(keys).tolist()]
        assert to_numpy(table.insert_or_assign(native.array(keys), native.array(values))).tolist() == new
        model.update(zip(as_bytes(keys).tolist(), values.tolist(), strict=True))
        sums = rng.integers(-5, 5, len(picked))
        table.insert_or_apply(native.array(keys), native.array(sums), "add")
        for key, number in zip(as_bytes(keys).tolist(), sums.tolist(), strict=True):
            model[key] += number
        got = dict(zip(as_bytes(to_numpy(table.keys())).tolist(), to_numpy(table.values()).tolist(), strict=True))
        assert got == model


@few_bits
def test_erasures_hide_no_key_that_shares_the_fingerprint(device, bits):
    keys = alike(40)
    with tuned(fingerprint_bits=bits):
        table = HashTable("uint8", "int64", key_shape=(24,), device=device)
    table[keys] = np.arange(40)
    order = np.random.default_rng(1).permutation(40)
    for gone in range(40):
        assert table.erase(keys[order[gone] : order[gone] + 1]).all()
        left = np.sort(order[gone + 1 :])
        assert table[keys[left]].tolist() == left.tolist()
        assert not table.contains(keys[order[: gone + 1]]).any()
        if gone == 20:  # those that come back take free fingerprints, and nobody gets two
            table[keys[order[:10]]] = order[:10]
            table[keys[left]] = left
            assert len(table) == 29
            assert table.erase(keys[order[:10]]).all()
    assert len(table) == 0


@few_bits
def test_absent_keys_erase_nobody(device, bits):
    keys = alike(30)
    with tuned(fingerprint_bits=bits):
        table = HashTable("uint8", "int64", key_shape=(24,), device=device)
    table[keys[:15]] = np.arange(15)
    assert not table.erase(keys[15:]).any()
    with pytest.raises(KeyError, match="15 of 30 keys are absent"):
        del table[keys]
    assert len(table) == 15
    assert table.pop(keys, default=-1).tolist() == [*range(15), *[-1] * 15]


@few_bits
@pytest.mark.parametrize("value_shape", [(), (3,)])
def test_values_of_all_kinds_of_calls(native: Framework, value_shape, bits):
    keys = alike(50)
    values = random_values("float32", (50, *value_shape))
    with tuned(fingerprint_bits=bits):
        table = HashTable("uint8", "float32", key_shape=(24,), value_shape=value_shape, device=native.table_device)
    give = native.array
    assert to_numpy(table.insert(give(keys[:30]), give(values[:30]))).all()
    assert to_numpy(table.insert(give(keys), give(-values))).tolist() == [False] * 30 + [True] * 20
    expected = np.concatenate([values[:30], -values[30:]])
    np.testing.assert_array_equal(to_numpy(table[give(keys)]), expected)
    both, inserted = table.apply_and_find(give(keys), give(values), "add")
    np.testing.assert_array_equal(to_numpy(both), expected + values)
    assert not to_numpy(inserted).any()
    table[give(keys[:5])] = 7.0
    np.testing.assert_array_equal(to_numpy(table.get(give(keys[:5]), 0)), np.full((5, *value_shape), 7, np.float32))
    np.testing.assert_array_equal(
        to_numpy(table.setdefault(give(keys[5:10]), give(values[:5]))), (expected + values)[5:10]
    )


@few_bits
def test_named_columns(device, bits):
    keys = alike(200)
    columns = {"weight": ("float32", (3,)), "count": "int64", "flag": "bool"}
    with tuned(fingerprint_bits=bits if bits == 63 else 5):
        table = HashTable("uint8", columns, key_shape=(24,), device=device)
    weights = random_values("float32", (200, 3))
    table[keys] = {"weight": weights, "count": np.arange(200)}
    table.insert_or_apply(
        keys[:100], {"count": np.ones(100, np.int64), "flag": np.ones(100, bool)}, {"count": "add", "flag": "replace"}
    )
    got = table[keys]
    np.testing.assert_array_equal(got["weight"], weights)
    assert got["count"].tolist() == [*range(1, 101), *range(100, 200)]
    assert got["flag"].tolist() == [True] * 100 + [False] * 100
    held, named = table.items(like="numpy")
    order = np.argsort(as_bytes(held).view("S24"))
    assert as_bytes(held)[order].tolist() == sorted(as_bytes(keys).tolist())
    assert sorted(named["count"].tolist()) == sorted(got["count"].tolist())


@pytest.mark.parametrize("shards", [0], indirect=True)
def test_rows_of_values_are_written_where_they_lie_and_keys_are_not_among_them(native: Framework):
    keys = alike(100, 33)
    table = HashTable("uint8", {"a": ("float32", (2,)), "b": "uint8"}, key_shape=(33,), device=native.table_device)
    rows, _ = table.find_or_insert(native.array(keys))
    column = table.column("a")
    assert tuple(column.shape[1:]) == (2,)
    column[rows] = column[rows] + 5
    table.column("b")[rows] = 9
    got = table[native.array(keys)]
    assert (to_numpy(got["a"]) == 5).all()
    assert (to_numpy(got["b"]) == 9).all()
    assert to_numpy(table.contains(native.array(keys))).all()


def test_initial_rows_depend_on_the_key_and_the_initializer_alone(device):
    keys = sample(("int32", (6,)), 500)
    first = HashTable("int32", "float32", key_shape=(6,), value_shape=(4,), initializer=Normal(seed=3), device=device)
    second = HashTable(
        "int32", {"x": gpuhash.Column("float32", (4,), Normal(seed=3)), "n": gpuhash.Column("int32", (), Constant(2))},
        key_shape=(6,), seed="random", device="cpu",
    )  # fmt: skip
    first.find_or_insert(keys)
    second.find_or_insert(keys[::-1].copy())
    drawn, others = first[keys], second[keys[::-1].copy()]
    np.testing.assert_array_equal(drawn, others["x"][::-1])
    assert (others["n"] == 2).all()
    assert abs(drawn.mean()) < 0.2
    assert len(np.unique(drawn)) > 1900


def test_what_initial_rows_are_drawn_from_stays_for_ever():
    table = HashTable("uint8", "float32", key_shape=(20,), value_shape=(2,), initializer=Normal(seed=1))
    keys = np.arange(40, dtype=np.uint8).reshape(2, 20)
    table.find_or_insert(keys)
    assert table[keys].view(np.uint32).tolist() == [[1066043051, 3196508031], [1053328428, 3208149844]]


@few_bits
def test_sets(device, bits):
    keys = alike(60)
    with tuned(fingerprint_bits=bits):
        some, others = (HashSet("uint8", key_shape=(24,), device=device) for _ in range(2))
        assert some.add(np.concatenate([keys[:40], keys[:40]])).sum() == 40
        others.update(keys[20:])
        union, both, rest, either = some | others, some & others, some - others, some ^ others
    assert len(union) == 60
    assert set(both) == {tuple(key) for key in keys[20:40].tolist()}
    assert set(rest) == {tuple(key) for key in keys[:20].tolist()}
    assert set(either) == set(union) - set(both)
    assert tuple(keys[0].tolist()) in some
    some.discard(keys[:39])
    assert some.pop() == tuple(keys[39].tolist())
    assert not some


def test_single_keys_are_tuples(device):
    table = HashTable("int32", "float64", key_shape=(3, 2), device=device)
    one = ((1, 2), (3, 4), (5, 6))
    table[one] = 2.5
    assert table[one] == 2.5
    assert one in table
    assert list(table) == [one]
    assert ((1, 2), (3, 4), (5, 7)) not in table
    assert table == {one: 2.5}
    with pytest.raises(KeyError, match=re.escape(str(((0, 0), (0, 0), (0, 0))))):
        table[((0, 0), (0, 0), (0, 0))]
    with pytest.raises(ValueError, match=r"expected one that ends with the key shape \(3, 2\)"):
        table[np.zeros((4, 6), np.int32)]
    assert table.popitem() == (one, 2.5)


def test_batches_have_any_number_of_axes(device):
    keys = sample(("int64", (3,)), 24).reshape(2, 3, 4, 3)
    table = HashTable("int64", "int32", key_shape=(3,), device=device)
    table[keys] = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    assert table[keys[:, ::2]].tolist() == np.arange(24).reshape(2, 3, 4)[:, ::2].tolist()
    assert table.contains(np.empty((0, 5, 3), np.int64)).shape == (0, 5)


# Copies and files ----------------------------------------------------------------------------------------------------


@few_bits
@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "save", "to", "update"])
def test_duplicates_of_a_table(device, tmp_path, way, bits):
    keys = alike(100).reshape(100, 2, 12)
    with tuned(fingerprint_bits=bits if bits == 63 else 4):
        table = HashTable("uint8", "int64", key_shape=(2, 12), device=device, default=-3)
        table[keys] = np.arange(100)
        table.erase(keys[::3])
        if way == "save":
            table.save(tmp_path / "table")
            twin = HashTable.load(tmp_path / "table", device=device)
        elif way == "pickle":
            twin = pickle.loads(pickle.dumps(table))
        elif way == "update":
            twin = HashTable("uint8", "int64", key_shape=(2, 12), device=device)
            twin.update(table)
        elif way == "to":
            twin = table.copy().to("cpu").to(device)
        else:
            twin = table.copy() if way == "copy" else copy.deepcopy(table)
    assert twin == table
    assert twin.key_shape == (2, 12)
    twin[keys[:3]] = -1  # found, or put where no other key is
    assert table[keys[1:3]].tolist() == [1, 2]
    assert len(twin) == len(table) + 1
    assert Items.held_by(twin) != Items.held_by(table)


def test_a_table_opened_by_its_name_has_the_key_shape(device):
    table = HashTable("int16", "int64", key_shape=(3, 4), device=device, name="wide")
    opened = gpuhash.open("wide")
    assert opened.key_shape == (3, 4)
    opened[np.ones((2, 3, 4), np.int16)] = 5
    assert len(table) == 1
    table.close()


def test_reserve_rehash_shrink_and_clear(device):
    keys = sample(("int64", (3,)), 2000)
    table = HashTable("int64", "int64", key_shape=(3,), device=device)
    table.reserve(2000)
    capacity = table.capacity
    table[keys] = np.arange(2000)
    assert table.capacity == capacity
    table.erase(keys[100:])
    table.shrink_to_fit()
    assert table.capacity < capacity
    assert table[keys[:100]].tolist() == list(range(100))
    table.rehash(5000)
    assert table[keys[:100]].tolist() == list(range(100))
    table.clear()
    assert len(table) == 0
    assert not table.contains(keys).any()


def test_a_table_that_is_full_stays_as_it_was(device):
    keys = sample(("int64", (3,)), 300)
    table = HashTable("int64", "int64", key_shape=(3,), device=device, capacity=64, growth=False)
    capacity = table.capacity
    table[keys[:50]] = np.arange(50)
    before = Items.held_by(table)
    with pytest.raises(gpuhash.TableFullError):
        table[keys] = np.arange(300)
    assert Items.held_by(table) == before
    assert table.capacity == capacity


@pytest.mark.parametrize("shards", [0], indirect=True)
def test_keys_in_the_tables_own_rows_are_read_before_they_are_written(native: Framework):
    keys = sample(("int32", (6,)), 50)
    table = HashTable("int32", "int32", key_shape=(6,), value_shape=(6,), device=native.table_device)
    table[native.array(keys)] = native.array(keys[::-1].copy())
    rows = table.row_storage
    assert to_numpy(table.contains(rows)).all()  # the values are keys of the table
    table[rows] = native.array(np.zeros(6, np.int32))
    assert (to_numpy(table[native.array(keys)]) == 0).all()


# Several threads, GPUs, and what cannot be ---------------------------------------------------------------------------


def test_threads_take_turns(device):
    keys = alike(900)
    with tuned(fingerprint_bits=8):
        table = HashTable("uint8", "int64", key_shape=(24,), device=device)
    errors = []

    def work(part: int) -> None:
        try:
            for _ in range(10):
                table.insert_or_apply(keys, np.ones(len(keys), np.int64), "add")
                assert table.contains(keys[part::4]).all()
                table.rehash(0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert table[keys].tolist() == [40] * len(keys)


def test_captured_lookups_find_keys_that_came_later(torch_cuda):
    torch = torch_cuda
    keys = torch.as_tensor(alike(64), device="cuda")
    table = HashTable("uint8", "int64", key_shape=(24,), device="cuda")
    table.reserve(len(keys))
    table[keys[:32]] = torch.arange(32, device="cuda")
    table.find(keys, default=-1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, found = table.find(keys, default=-1)
        with pytest.raises(ValueError, match="insert before the capture"):
            table[keys] = torch.zeros(64, dtype=torch.int64, device="cuda")
    table[keys] = torch.arange(64, device="cuda")
    graph.replay()
    assert values.tolist() == list(range(64))
    assert found.all()


def test_what_has_no_wide_keys_says_so(device):
    with pytest.raises(ValueError, match=r"a key is one integer, .* of 1 to 1048576 bytes"):
        HashSet("uint8", key_shape=((1 << 20) + 1,), device=device)
    with pytest.raises(ValueError, match="of 1 to 1048576 bytes"):
        HashSet("uint8", key_shape=(4, 0), device=device)
    for table in HashTable("int64", "int64", key_shape=(3,), device=device).shards:
        with pytest.raises(ValueError, match=r"call it without fixed=True"):
            table._core.fix_in_place(0)


# As others use such keys ---------------------------------------------------------------------------------------------


def test_points_of_voxels_with_the_block_that_they_are_in(device):
    """Block and voxel coordinates together are one key of six numbers, and each voxel has the mean of its points."""
    rng = np.random.default_rng(4)
    points = rng.normal(0, 3, (20_000, 3))
    voxels = np.floor(points / 0.5).astype(np.int32)
    keys = np.concatenate([voxels >> 3, voxels & 7], 1)
    table = HashTable("int32", {"sum": ("float64", (3,)), "count": "int64"}, key_shape=(6,), device=device)
    table.insert_or_apply(keys, {"sum": points, "count": np.ones(len(keys), np.int64)}, "add")
    distinct, inverse, counts = np.unique(voxels, axis=0, return_inverse=True, return_counts=True)
    assert len(table) == len(distinct)
    got = table[np.concatenate([distinct >> 3, distinct & 7], 1)]
    assert got["count"].tolist() == counts.tolist()
    sums = np.zeros(distinct.shape)
    np.add.at(sums, inverse.reshape(-1), points)
    np.testing.assert_allclose(got["sum"], sums, rtol=1e-9, atol=1e-9)


def test_rows_of_a_structure_as_keys(device):
    """A structured array is a table's keys by its bytes."""
    kind = np.dtype([("name", "S12"), ("id", "<i8"), ("kind", "u1")])
    rows = np.zeros(500, kind)
    rows["name"] = [f"name {i % 50}" for i in range(500)]
    rows["id"] = np.arange(500) // 2
    rows["kind"] = np.arange(500) % 2
    keys = rows.view(np.uint8).reshape(500, kind.itemsize)
    table = HashTable("uint8", "int64", key_shape=(kind.itemsize,), device=device)
    numbers = table.setdefault(keys, np.arange(500))
    model: dict[bytes, int] = {}
    assert numbers.tolist() == [model.setdefault(row.tobytes(), i) for i, row in enumerate(rows)]
    back = np.ascontiguousarray(to_numpy(table.keys())).view(kind).reshape(-1)
    assert sorted(back.tolist()) == sorted(set(rows.tolist()))


def test_arrays_of_states_are_met_once(device):
    """As games and solvers keep the boards that they have seen."""
    rng = np.random.default_rng(5)
    boards = rng.integers(0, 2, (3000, 5, 5), np.int8)
    table = HashTable("int8", "int64", key_shape=(5, 5), device=device)
    seen: dict[bytes, int] = {}
    for begin in range(0, 3000, 500):
        batch = np.concatenate([boards[begin : begin + 500], boards[: begin // 2]])
        before = len(seen)
        for board in batch:
            seen.setdefault(board.tobytes(), len(seen))
        assert to_numpy(table.insert(batch, np.arange(len(batch)))).sum() == len(seen) - before
        assert len(table) == len(seen)
    assert table.contains(boards).all()
