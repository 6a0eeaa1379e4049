"""Beyond 2^31 slots and beyond 4 GiB of rows; on a GPU with the memory for it."""

from __future__ import annotations

import gc

import pytest
from support.frameworks import GPU

from gpuhash import HashSet, HashTable


def need_gib(torch, gib):
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(GPU)
    if free < gib * (1 << 30):
        pytest.skip(f"needs {gib} GiB of free GPU memory, there are {free / (1 << 30):.0f}")


def test_more_than_2_to_31_slots(torch_cuda):
    torch = torch_cuda
    need_gib(torch, 60)
    slots = (1 << 31) + (1 << 20)
    table = HashTable("int64", "int64", device=GPU, capacity=slots)
    assert table.capacity >= slots
    step = 1 << 26
    for start in range(0, 1 << 28, step):
        keys = torch.arange(start, start + step, device=GPU) * 0x9E3779B97F4A7C1
        assert bool(table.insert(keys, keys ^ 5).all())
    assert len(table) == 1 << 28
    for start in range(0, 1 << 28, step):
        keys = torch.arange(start, start + step, device=GPU) * 0x9E3779B97F4A7C1
        values, found = table.find(keys)
        assert bool(found.all())
        assert torch.equal(values, keys ^ 5)
        assert not bool(table.contains(keys + 1).any())
    keys = torch.arange(0, step, device=GPU) * 0x9E3779B97F4A7C1
    assert bool(table.erase(keys).all())
    assert len(table) == (1 << 28) - step
    del table


def test_more_than_2_to_31_keys_in_a_set(torch_cuda):
    torch = torch_cuda
    need_gib(torch, 70)
    made = HashSet("int32", device=GPU, capacity=3 << 30)
    step = 1 << 27
    for start in range(-(1 << 31), (1 << 31) - (1 << 30) - (1 << 29), step):
        keys = torch.arange(start, start + step, dtype=torch.int32, device=GPU)
        made.add(keys)
    assert len(made) == (1 << 32) - (1 << 30) - (1 << 29)
    assert bool(made.contains(torch.tensor([-(1 << 31), 0, 5], dtype=torch.int32, device=GPU)).all())
    assert not bool(made.contains(torch.tensor([(1 << 31) - 1], dtype=torch.int32, device=GPU)).any())
    del made


def test_more_than_4_gib_of_rows(torch_cuda):
    torch = torch_cuda
    need_gib(torch, 40)
    table = HashTable("int64", "float32", value_shape=(256,), device=GPU, capacity=9 << 20)
    step = 1 << 20
    for start in range(0, 6 * step, step):
        keys = torch.arange(start, start + step, device=GPU)
        table[keys] = keys[:, None].to(torch.float32).expand(-1, 256)
    assert len(table) == 6 * step
    storage = table.row_storage_as("torch")
    assert storage.numel() * 4 > 4 << 30
    for start in range(0, 6 * step, step):
        keys = torch.arange(start, start + step, device=GPU)
        assert bool((table[keys] == keys[:, None]).all())
        rows = table.rows(keys)
        assert bool((storage[rows, 255] == keys).all())
    del storage, table
