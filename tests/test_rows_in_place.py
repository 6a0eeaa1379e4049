"""Rows that grow where they lie: addresses stay, views stay good; and where rows move all the same."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from support.frameworks import GPU, address_of, to_numpy
from support.memory_resources import counting_memory
from support.samples import as_dict, items_of, random_values, same_bytes

from gpuhash import HashTable, _core

WIDE = 256  # float32: rows of 1 KiB
FEW, MANY = 8000, 70_000  # such rows: 8 MiB, and more than three doublings of a table of 10,000 slots


@pytest.fixture
def reserve_at_most():
    """Sets how many bytes of addresses rows have."""
    yield _core.set_reservation_limit
    _core.set_reservation_limit(-1)


def storage_of(table, place):
    return table.row_storage_as(place.name)


def wide_table(place, count=FEW, **options):
    """Its rows are large enough from the start, and it has no more of them than it needs."""
    options = {"capacity": 10_000, "value_shape": (WIDE,)} | options
    keys = np.arange(MANY) * 7 - 1000
    values = random_values("float32", (MANY, *options["value_shape"]))
    table = HashTable("int64", "float32", device=place.table_device, **options)
    table[place.array(keys[:count])] = place.array(values[:count])
    return table, keys, values


@pytest.mark.parametrize("shape", [(WIDE,), (3, 61), (1021,)], ids=["1-KiB", "732-bytes", "4084-bytes"])
def test_large_rows_stay_where_they_are(native, shape):
    count = 20_000
    table, keys, values = wide_table(native, FEW, value_shape=shape)
    view = storage_of(table, native)
    address, capacities = address_of(view), {table.capacity}
    numbers = to_numpy(table.rows(native.array(keys[:FEW]))).copy()
    for end in range(FEW, count + 1, 3000):
        table[native.array(keys[:end])] = native.array(values[:end])
        capacities.add(table.capacity)
        assert address_of(storage_of(table, native)) == address
        same_bytes(table[native.array(keys[:end])], values[:end])
    table.reserve(3 * count)
    capacities.add(table.capacity)
    assert address_of(storage_of(table, native)) == address
    assert len(capacities) >= 3, "the table has hardly grown"
    same_bytes(table.rows(native.array(keys[:FEW])), numbers)
    same_bytes(to_numpy(view)[numbers], values[:FEW])
    assert items_of(table) == as_dict(keys[:end], values[:end])


def test_a_view_of_before_is_the_tables_after_growth(native):
    table, keys, values = wide_table(native)
    view = storage_of(table, native)
    numbers = to_numpy(table.rows(native.array(keys[:FEW])))
    table[native.array(keys)] = native.array(values)
    table[native.array(keys[:100])] = 5
    same_bytes(to_numpy(view)[numbers[:100]], np.full((100, WIDE), 5, np.float32))
    same_bytes(to_numpy(view)[numbers[100:]], values[100:FEW])
    view[int(numbers[200])] = -3
    same_bytes(table[native.array(keys[200:201])], np.full((1, WIDE), -3, np.float32))
    with pytest.raises(ValueError, match="row_storage"):  # it is memory of the rows, though an old view
        table.find(native.array(keys[:FEW]), out=(view, native.array(np.zeros(FEW, bool))))
    del table
    gc.collect()
    same_bytes(to_numpy(view)[numbers[201:]], values[201:FEW])


def test_rows_go_into_the_table_from_a_view_of_before(native):
    """Values that lie in the rows, given to an insertion that grows them."""
    table, keys, values = wide_table(native)
    view = storage_of(table, native)
    numbers = to_numpy(table.rows(native.array(keys[:FEW])))
    expected = to_numpy(view).copy()
    table[native.array(keys[FEW : 2 * FEW])] = view
    same_bytes(table[native.array(keys[FEW : 2 * FEW])], expected)
    same_bytes(table[native.array(keys[:FEW])], values[:FEW])
    same_bytes(expected[numbers], values[:FEW])


def test_erased_rows_of_a_table_that_grows_are_used_again(native):
    table, keys, values = wide_table(native, 0)
    model = {}
    rng = np.random.default_rng(3)
    most = 0
    for end in range(4000, 40_000, 4000):
        chosen = rng.permutation(end)[:5000]
        picked = values[rng.integers(0, MANY, len(chosen))]
        table[native.array(keys[chosen])] = native.array(picked)
        model.update(zip(chosen.tolist(), picked, strict=True))
        most = max(most, len(model))
        gone = rng.permutation(list(model))[: len(model) // 3]
        assert to_numpy(table.erase(native.array(keys[gone]))).all()
        for index in gone.tolist():
            del model[index]
        present = np.array(list(model))
        same_bytes(table[native.array(keys[present])], np.stack([model[index] for index in present.tolist()]))
        numbers = to_numpy(table.rows(native.array(keys[present])))
        assert len(set(numbers.tolist())) == len(present)
        assert len(table) == len(model)
    assert len(table.row_storage) <= most


def test_large_rows_of_a_table_that_shrinks(native):
    """They move, and give memory back; views of before keep what they have."""
    table, keys, values = wide_table(native, 30_000)
    view = storage_of(table, native)
    before = to_numpy(view).copy()
    large = table.nbytes
    table.erase(native.array(keys[:20_000]))
    table.rehash(20_000)
    assert table.nbytes < large
    same_bytes(table[native.array(keys[20_000:30_000])], values[20_000:30_000])
    table.shrink_to_fit()
    assert table.nbytes < large / 2
    assert len(table.row_storage) == 10_000
    assert address_of(storage_of(table, native)) != address_of(view)
    same_bytes(table[native.array(keys[20_000:30_000])], values[20_000:30_000])
    table[native.array(keys[20_000:30_000])] = 0
    same_bytes(view, before)
    address = address_of(storage_of(table, native))
    table[native.array(keys)] = native.array(values)  # and what is new grows in its turn
    assert address_of(storage_of(table, native)) == address
    assert items_of(table) == as_dict(keys, values)


def test_large_rows_after_clear(native):
    table, keys, values = wide_table(native, 20_000)
    view = storage_of(table, native)
    for end in (10_000, 50_000):
        table.clear()
        assert len(table) == 0
        table[native.array(keys[:end])] = native.array(values[-end:])
        assert address_of(storage_of(table, native)) == address_of(view)
        assert items_of(table) == as_dict(keys[:end], values[-end:])


def test_large_rows_stay_with_a_lower_load_factor(native):
    """Where fewer keys fit into more slots."""
    table, keys, values = wide_table(native, capacity=MANY)
    address = address_of(storage_of(table, native))
    table.max_load_factor = 0.1
    table[native.array(keys[:20_000])] = native.array(values[:20_000])
    assert table.capacity >= 200_000
    assert address_of(storage_of(table, native)) == address
    assert items_of(table) == as_dict(keys[:20_000], values[:20_000])


@pytest.mark.parametrize("twin_of", [HashTable.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_twins_have_large_rows_of_their_own(native, twin_of):
    table, keys, values = wide_table(native)
    twin = twin_of(table)
    addresses = address_of(storage_of(table, native)), address_of(storage_of(twin, native))
    twin[native.array(keys)] = native.array(-values)
    table[native.array(keys[FEW : 3 * FEW])] = 2
    assert addresses == (address_of(storage_of(table, native)), address_of(storage_of(twin, native)))
    assert addresses[0] != addresses[1]
    expected = np.concatenate([values[:FEW], np.full((2 * FEW, WIDE), 2, np.float32)])
    assert items_of(table) == as_dict(keys[: 3 * FEW], expected)
    assert items_of(twin) == as_dict(keys, -values)


def test_rows_that_outgrow_their_addresses(native, reserve_at_most):
    """They move then, and only then."""
    reserve_at_most(32 << 20)
    table, keys, values = wide_table(native)
    views, addresses = [], []
    for end in range(FEW, MANY, 6000):
        table[native.array(keys[:end])] = native.array(values[:end])
        view = storage_of(table, native)
        if address_of(view) not in addresses:
            views.append((view, end))
            addresses.append(address_of(view))
        same_bytes(table[native.array(keys[:end])], values[:end])
    # Of 8, 16, 32 and 64 MiB the first three have one address.
    assert 2 <= len(addresses) <= 3
    assert items_of(table) == as_dict(keys[:end], values[:end])
    numbers = to_numpy(table.rows(native.array(keys[:FEW])))
    for view, _ in views:  # those of before as well
        same_bytes(to_numpy(view)[numbers], values[:FEW])


def test_rows_are_copied_where_no_addresses_are_reserved(native, reserve_at_most):
    reserve_at_most(0)
    table, keys, values = wide_table(native)
    view = storage_of(table, native)
    numbers = to_numpy(table.rows(native.array(keys[:FEW])))
    table[native.array(keys)] = native.array(values)
    assert address_of(storage_of(table, native)) != address_of(view)
    table[native.array(keys[:FEW])] = 0
    same_bytes(to_numpy(view)[numbers], values[:FEW])
    assert items_of(table) == as_dict(keys, np.concatenate([np.zeros((FEW, WIDE), np.float32), values[FEW:]]))


def test_rows_in_memory_of_ones_own_are_copied(native):
    memory = counting_memory(native.table_device)
    table, keys, values = wide_table(native, memory=memory)
    view = storage_of(table, native)
    numbers = to_numpy(table.rows(native.array(keys[:FEW])))
    assert address_of(view) in memory.blocks
    before = table.nbytes
    table.reserve(2 * FEW)
    assert address_of(storage_of(table, native)) != address_of(view)
    assert address_of(storage_of(table, native)) in memory.blocks
    assert memory.peak >= before + table.nbytes
    table[native.array(keys[:FEW])] = 0
    same_bytes(to_numpy(view)[numbers], values[:FEW])
    del table, view
    gc.collect()
    assert not memory.blocks
    assert not memory.mistakes


def test_small_rows_become_large(native):
    """From a few rows on, through the size from which they stay."""
    table, keys, values = wide_table(native, 10, capacity=16)
    addresses = []
    end = 10
    while end < 40_000:
        end *= 2
        table[native.array(keys[:end])] = native.array(values[:end])
        addresses.append(address_of(storage_of(table, native)))
        same_bytes(table[native.array(keys[:end])], values[:end])
    assert len(set(addresses[-3:])) == 1, "rows of 10 MiB and more moved"
    assert items_of(table) == as_dict(keys[:end], values[:end])


PEAK = """
import re
import numpy as np
from gpuhash import HashTable, _core

def peak():
    # Not ru_maxrss, which is at least that of the process that has started this one.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10

_core.set_reservation_limit({limit})
table = HashTable("int64", "float32", value_shape=(1024,), capacity=50_000)
for first in range(0, 40_000, 1000):
    table[np.arange(first, first + 1000)] = np.float32(3)
before = peak()
table.reserve(80_000)
print(peak() - before)
assert table.row_storage[::999].min() == table.row_storage[::999].max() == 3
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read in Linux's words")
def test_growth_takes_no_memory_for_a_second_copy():
    """Of 160 MB of rows on the host; copied ones show what the test would see."""

    def peak(limit):
        done = subprocess.run(
            [sys.executable, "-P", "-c", PEAK.format(limit=limit)], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert peak(-1) < 40_000_000
    assert peak(0) > 100_000_000


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="fills the GPU, where other tests run beside this one")
@pytest.mark.parametrize("limit", [-1, 0], ids=["in-place", "copied"])
def test_growth_on_a_gpu_takes_no_memory_for_a_second_copy(torch_cuda, reserve_at_most, limit):
    """1 GiB of rows, which become 2, where 1.75 are left."""
    torch = torch_cuda
    reserve_at_most(limit)
    keys = torch.arange(1 << 20, device=GPU)
    table = HashTable("int64", "float32", value_shape=(256,), device=GPU)
    table.reserve(len(keys))
    table[keys] = 3
    with pytest.raises(MemoryError):  # before which the pool gives back what it keeps
        HashTable("int64", "float32", value_shape=(1 << 26,), capacity=1024, device=GPU)
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(GPU)
    if free < 4 << 30:
        pytest.skip(f"needs 4 GiB of free GPU memory, there are {free >> 20} MiB")
    held = torch.empty(free - (1792 << 20), dtype=torch.uint8, device=GPU)
    capacity = table.capacity
    if limit == 0:
        with pytest.raises(MemoryError):
            table.reserve(2 * len(keys))
        assert table.capacity == capacity
    else:
        table.reserve(2 * len(keys))
        assert table.capacity >= 2 * capacity
    del held
    torch.cuda.empty_cache()
    assert bool((table[keys] == 3).all())
    assert len(table) == len(keys)


@pytest.mark.skipif(sys.platform != "linux", reason="what is used is read in Linux's words")
def test_where_addresses_are_rationed_rows_are_copied():
    """Under `ulimit -v`, of which reserved addresses would take all."""
    program = """
import resource
import numpy as np
from gpuhash import HashTable

def addresses():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

before = addresses()
resource.setrlimit(resource.RLIMIT_AS, (before + (4 << 30),) * 2)
table = HashTable("int64", "float32", value_shape=(256,))
for end in (10_000, 20_000, 40_000):
    table[np.arange(end)] = np.arange(end, dtype=np.float32)[:, None].repeat(256, 1)
    assert (table[np.arange(end)][:, 7] == np.arange(end)).all()
print(addresses() - before < 1 << 30)
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_no_memory_for_large_rows_to_grow(device):
    """Far more than there is: the table stays as it is, and so do its rows."""
    table = HashTable("int64", "float32", value_shape=(1 << 18,), device=device)
    table[[1, 2, 3]] = 4
    table.reserve(8)
    storage = table.row_storage
    with pytest.raises(MemoryError):
        table.reserve(1 << 28)  # 2^48 bytes of rows: more than there are addresses
    assert sorted(table) == [1, 2, 3]
    assert address_of(table.row_storage) == address_of(storage)
    table[[1, 5]] = 6
    assert (to_numpy(table[[1, 2, 3, 5]]) == np.array([6, 4, 4, 6], np.float32)[:, None]).all()
