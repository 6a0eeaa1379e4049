"""rows and row_storage: values that users compute on in place."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.samples import random_keys, random_values, same_bytes

from gpuhash import HashTable, TableFullError, _core


def embedding(place, count=1000, width=8, **options):
    keys = random_keys("int64", (), count)
    values = random_values("float32", (count, width))
    table = HashTable("int64", "float32", value_shape=(width,), device=place.table_device, **options)
    table[place.array(keys)] = place.array(values)
    return table, keys, values


def test_rows_lead_to_the_values(place):
    table, keys, values = embedding(place)
    rows = table.rows(place.array(keys))
    assert place.owns(rows)
    rows = to_numpy(rows)
    assert rows.dtype == np.int64
    assert rows.shape == keys.shape
    assert len(set(rows.tolist())) == len(keys)
    storage = to_numpy(table.row_storage)
    assert storage.shape[1:] == (8,)
    assert 0 <= rows.min() <= rows.max() < len(storage)
    same_bytes(storage[rows], values)


def test_rows_of_absent_keys_are_minus_one(native):
    table, keys, _ = embedding(native)
    strangers = np.setdiff1d(np.arange(5000, 6000), keys)
    same_bytes(table.rows(native.array(strangers)), np.full(len(strangers), -1))
    assert table.rows(int(strangers[0])) == -1
    assert isinstance(table.rows(int(keys[0])), int)
    out = native.array(np.zeros(len(keys), np.int64))
    assert table.rows(native.array(keys), out=out) is out
    assert (to_numpy(out) >= 0).all()


def test_scalar_values_have_no_rows(device):
    table = HashTable("int64", "float32", device=device)
    with pytest.raises(ValueError, match="row"):
        table.rows([1, 2])
    with pytest.raises(ValueError, match="row"):
        _ = table.row_storage


def test_storage_is_the_memory_itself(native):
    """Two views have one address; a write through one is a write to the table, and the other way round."""
    table, keys, _ = embedding(native)
    storage = table.row_storage_as(native.name)
    assert native.owns(storage)
    address = storage.data_ptr() if native.name == "torch" else storage.ctypes.data
    again = table.row_storage_as(native.name)
    assert address == (again.data_ptr() if native.name == "torch" else again.ctypes.data)
    row = int(table.rows(int(keys[3])))
    storage[row] = 4.5
    same_bytes(table[native.array(keys[3:4])], np.full((1, 8), 4.5, np.float32))
    table[native.array(keys[3:4])] = -1.5
    assert (to_numpy(storage)[row] == -1.5).all()


def test_rows_and_pointer_stay_while_nothing_grows(native):
    table, keys, values = embedding(native, capacity=8000)
    before = to_numpy(table.rows(native.array(keys))).copy()
    storage = table.row_storage_as(native.name)
    pointer = storage.data_ptr() if native.name == "torch" else storage.ctypes.data
    fresh = np.setdiff1d(np.arange(10_000, 13_000), keys)
    table[native.array(fresh)] = 1
    table[native.array(keys)] = native.array(values * 2)
    table.insert_or_apply(native.array(keys), native.array(values), "add")
    storage = table.row_storage_as(native.name)
    assert pointer == (storage.data_ptr() if native.name == "torch" else storage.ctypes.data)
    same_bytes(table.rows(native.array(keys)), before)
    same_bytes(table[native.array(keys)], values * 3)


def test_row_numbers_survive_growth(native):
    table, keys, values = embedding(native)
    before = to_numpy(table.rows(native.array(keys))).copy()
    fresh = np.setdiff1d(np.arange(10_000, 60_000), keys)
    table[native.array(fresh)] = 1
    same_bytes(table.rows(native.array(keys)), before)
    same_bytes(to_numpy(table.row_storage)[before], values)
    table.rehash(300_000)
    same_bytes(table.rows(native.array(keys)), before)


def test_erased_rows_are_used_again(native):
    table, keys, _ = embedding(native, 1000)
    handed_out = len(table.row_storage)
    for round_number in range(50):
        victims = keys[(np.arange(300) * 7 + round_number) % 1000]
        assert to_numpy(table.erase(native.array(victims))).all()
        table[native.array(victims)] = native.array(np.full((300, 8), round_number, np.float32))
        rows = to_numpy(table.rows(native.array(keys)))
        assert len(set(rows.tolist())) == 1000
        same_bytes(table[native.array(victims)], np.full((300, 8), round_number, np.float32))
    assert len(table.row_storage) <= handed_out + 300


def test_shrink_renumbers_densely(native):
    table, keys, values = embedding(native)
    table.erase(native.array(keys[::2]))
    table.shrink_to_fit()
    rows = to_numpy(table.rows(native.array(keys[1::2])))
    assert sorted(rows.tolist()) == list(range(500))
    assert len(table.row_storage) == 500
    same_bytes(to_numpy(table.row_storage)[rows], values[1::2])


def test_a_held_view_outlives_growth(native):
    """An old view stays valid memory, with the values of its time."""
    table, keys, values = embedding(native)
    rows = to_numpy(table.rows(native.array(keys)))
    storage = table.row_storage_as(native.name)
    table[native.array(np.arange(100_000, 200_000))] = 1
    del table
    same_bytes(to_numpy(storage)[rows], values)


def test_pytorch_trains_on_rows_in_place(native):
    """Gradient descent on an embedding: the same numbers as torch.nn.Embedding with SGD."""
    if native.name != "torch":
        pytest.skip("of PyTorch")
    import torch

    table, keys, values = embedding(native, 500, 4)
    reference = torch.nn.Embedding.from_pretrained(torch.from_numpy(values.copy()), freeze=False)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        chosen = rng.permutation(500)[:64]
        target = torch.from_numpy(rng.normal(size=(64, 4)).astype(np.float32))
        optimizer.zero_grad()
        ((reference(torch.from_numpy(chosen)) - target) ** 2).sum().backward()
        optimizer.step()

        rows = table.rows(native.array(keys[chosen]))
        batch = table.row_storage_as("torch")[rows].requires_grad_()
        ((batch - target.to(batch.device)) ** 2).sum().backward()
        table.row_storage_as("torch").index_add_(0, rows, batch.grad, alpha=-0.1)
    got = to_numpy(table[native.array(keys)])
    np.testing.assert_allclose(got, reference.weight.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex128", "bfloat16"])
def test_storage_dtypes(native, dtype):
    values = random_values(dtype, (100, 3))
    table = HashTable("int64", dtype, value_shape=(3,), device=native.table_device)
    table[native.array(np.arange(100))] = native.array(values)
    storage = to_numpy(table.row_storage_as(native.name))
    same_bytes(storage[to_numpy(table.rows(native.array(np.arange(100))))], values)


def test_storage_of_an_empty_table(device):
    table = HashTable("int64", "float32", value_shape=(2, 3), device=device)
    assert to_numpy(table.row_storage).shape == (0, 2, 3)


ROW_BYTES = [1, 3, 4, 5, 12, 16, 17, 36, 256, 512, 1040]


def array_at(place, host, offset):
    """The array in memory that begins `offset` bytes after a well-aligned address."""
    flat = np.concatenate([np.zeros(offset, np.uint8), host.reshape(-1)])
    return place.array(flat)[offset:].reshape(host.shape)


@pytest.mark.pairwise
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("width", ROW_BYTES)
def test_rows_of_any_width_and_alignment(native, width, offset):
    keys = random_keys("int64", (), 3001)
    known, fresh, absent = keys[:1000], keys[1000:2500], keys[2500:]
    table = HashTable("int64", "uint8", value_shape=(width,), device=native.table_device)
    values = random_values("uint8", (3001, width))
    table[native.array(known)] = array_at(native, values[1000:2000], offset)
    mask = table.insert_or_assign(native.array(keys[:2500]), array_at(native, values[:2500], offset))
    same_bytes(mask, np.arange(2500) >= 1000)
    kept = table.insert(native.array(keys[:2500]), array_at(native, values[500:3000], offset))
    assert not to_numpy(kept).any()

    out = array_at(native, np.full((3001, width), 0xEE, np.uint8), offset)
    found = native.array(np.zeros(3001, bool))
    table.find(native.array(keys), out=(out, found))
    same_bytes(found, np.arange(3001) < 2500)
    same_bytes(out[:2500], values[:2500])
    fallback = random_values("uint8", (width,), seed=1)
    got = to_numpy(table.get(native.array(np.concatenate([absent, fresh])), array_at(native, fallback, offset)))
    same_bytes(got[: len(absent)], np.broadcast_to(fallback, (len(absent), width)))
    same_bytes(got[len(absent) :], values[1000:2500])


@pytest.mark.parametrize("key_type", [("int64", ()), ("int32", (3,))], ids=["int64", "int32x3"])
@pytest.mark.parametrize("width", [1, 5, 8, 40])
def test_duplicates_of_new_and_present_keys_in_many_batches(native, width, key_type):
    """Each row is one of its key's rows of the batch, whole, while keys come, stay and go."""
    dtype, shape = key_type
    rng = np.random.default_rng(width)
    universe = random_keys(dtype, shape, 700)
    table = HashTable(dtype, "int64", key_shape=shape, value_shape=(width,), device=native.table_device)
    model = {}  # index into universe -> number in its row
    number = 0
    for round_number in range(60):
        chosen = rng.integers(0, len(universe), 1500) if round_number % 3 else rng.integers(0, 20, 1500)
        numbers = np.arange(number, number + len(chosen))
        number += len(chosen)
        rows = np.ascontiguousarray(np.broadcast_to(numbers[:, None], (len(chosen), width)))
        assign = round_number % 4 != 3
        method = table.insert_or_assign if assign else table.insert
        mask = to_numpy(method(native.array(universe[chosen]), native.array(rows)))
        new = set(chosen.tolist()) - set(model)
        assert sorted(chosen[mask].tolist()) == sorted(new)

        present = np.array(sorted(set(model) | new))
        got = to_numpy(table[native.array(universe[present])])
        assert (got == got[:, :1]).all(), "a row is a mix of two"
        of_batch = set(chosen.tolist())
        for index, held in zip(present.tolist(), got[:, 0].tolist(), strict=True):
            if index in of_batch and (assign or index in new):
                assert held >= numbers[0]
                assert chosen[held - numbers[0]] == index
                model[index] = held
            else:
                assert held == model[index]
        row_numbers = to_numpy(table.rows(native.array(universe[present])))
        assert len(set(row_numbers.tolist())) == len(present)

        victims = rng.permutation(present)[: len(present) // 3]
        assert to_numpy(table.erase(native.array(universe[victims]))).all()
        for index in victims.tolist():
            del model[index]
    assert len(table) == len(model)


def test_values_are_assigned_whatever_was_assigned_65536_insertions_ago(on_device):
    """The number of insertions after which the GPU has to clear the marks of its writers."""
    table = HashTable("int64", "float32", value_shape=(3,), device=on_device.table_device, capacity=1000)
    keys = np.arange(50)
    singles = [on_device.array(keys[k : k + 1]) for k in keys]
    before, after = (on_device.array(np.full((1, 3), value, np.float32)) for value in (1, 2))
    other = on_device.array(np.array([99]))
    for key in singles:
        table[key] = before
    for _ in range(65536 - len(singles)):
        table[other] = before
    for key in singles:
        table[key] = after
    same_bytes(table[on_device.array(keys)], np.full((50, 3), 2, np.float32))


def test_values_are_assigned_after_clear_copy_and_growth(native):
    keys = np.arange(400)
    table = HashTable("int64", "int32", value_shape=(5,), device=native.table_device)

    def assign(to, value):
        to[native.array(keys)] = native.array(np.full((400, 5), value, np.int32))
        same_bytes(to[native.array(keys)], np.full((400, 5), value, np.int32))

    for value in range(6):
        assign(table, value)
        table.clear()
    for value in range(6):
        assign(table, value)
        twin = table.copy()
        assign(twin, value + 100)
        same_bytes(table[native.array(keys)], np.full((400, 5), value, np.int32))
        table.rehash(2000 * (value + 1))
    table.max_load_factor = 0.1  # the copy's rows alone are fewer
    twin = table.copy()
    for value in range(6):
        assign(twin, value)
    table.shrink_to_fit()
    for value in range(6):
        assign(table, value)


@pytest.mark.parametrize("key_type", ["int64", "uint8", "pairs"])
def test_rows_that_are_restored(on_device, key_type):
    """Keys get the rows that they had, and new keys those between and behind them."""
    dtype, shape = {"int64": ("int64", ()), "uint8": ("uint8", ()), "pairs": ("int64", (2,))}[key_type]
    options = {"value_shape": (3,), "key_shape": shape, "device": on_device.table_device}
    table = HashTable(dtype, "float32", **options)
    keys = random_keys(dtype, shape, 150 if key_type == "uint8" else 3000)
    count = len(keys)
    table[on_device.array(keys)] = on_device.array(random_values("float32", (count, 3)))
    table.erase(on_device.array(keys[10:90]))
    kept, rest = np.delete(keys, np.s_[10:90], 0), keys[10:90]
    rows = to_numpy(table.rows(on_device.array(kept)))
    made = HashTable(dtype, "float32", **options)
    made[on_device.array(keys)] = 0.0  # numbers that are to be forgotten
    restore = lambda keys, rows: made._core.restore_rows(*borrowed(on_device, keys, rows), 0)  # noqa: E731
    with pytest.raises(ValueError, match="clear it before"):
        restore(kept, rows)
    assert len(made) == count
    made.clear()
    restore(kept, rows)
    assert len(made) == len(kept)
    same_bytes(made.rows(on_device.array(kept)), rows)
    same_bytes(made.rows(on_device.array(rest)), np.full(len(rest), -1))
    made.insert(on_device.array(rest), 1.0)
    everything = to_numpy(made.rows(on_device.array(keys)))
    assert sorted(everything) == list(range(count)), "no row is lost"
    made[on_device.array(keys)] = on_device.array(values := random_values("float32", (count, 3)))
    same_bytes(made[on_device.array(keys)], values)
    for wrong, match in [
        (np.where(rows == rows[5], rows[6], rows), "for two keys"),
        (np.where(rows == rows[5], -1, rows), "there is none"),
        (np.where(rows == rows[5], 2**63 - 1, rows), "9223372036854775807 was to be restored: there is none"),
        (np.full_like(rows, -(2**63)), "there is none"),
    ]:
        made.clear()
        with pytest.raises(ValueError, match=match):
            restore(kept, wrong)
        assert len(made) == 0
    twice = kept.copy()
    twice[7] = twice[8]
    with pytest.raises(ValueError, match="1 came twice"):
        restore(twice, rows)
    assert len(made) == 0
    made.insert(on_device.array(keys), 2.0)
    assert sorted(to_numpy(made.rows(on_device.array(keys)))) == list(range(count))
    small = HashTable(dtype, "float32", **options, capacity=8, max_capacity=8)
    with pytest.raises(TableFullError):
        small._core.restore_rows(*borrowed(on_device, kept, rows), 0)
    small._core.restore_rows(*borrowed(on_device, kept[:0], rows[:0]), 0)
    assert len(small) == 0


def borrowed(place, *arrays):
    """As the core takes them."""
    there = [place.array(np.ascontiguousarray(array)) for array in arrays]
    if place.table_device != "cpu":
        place.synchronize()
    return [_core.borrow(array, None) for array in there]
