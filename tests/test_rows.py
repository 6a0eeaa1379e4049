"""rows and row_storage: values that users compute on in place."""

from __future__ import annotations

import numpy as np
import pytest
from frameworks import to_numpy
from samples import random_keys, random_values, same_bytes

from gpuhash import HashTable


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
