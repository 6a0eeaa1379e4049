"""Batches that are partitioned by the hash of their keys before they are factorized, as large ones are on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.factorized import BATCHES, check_factorized, make_batch
from support.frameworks import Framework
from support.memory_resources import counting_memory
from support.samples import same_bytes
from support.tuning import partitioned

import gpuhash
from gpuhash import _core
from gpuhash.arrays.memory import make_context

TILE = 4096  # keys among which duplicates are dropped
TWO_PASSES = (1 << 20) + 70_003  # keys of more than 512 parts


@pytest.fixture(autouse=True)
def partition_all() -> Iterator[None]:
    """Every batch is partitioned, whatever its size."""
    with partitioned():
        yield


def overfull_batch(tiles: int) -> np.ndarray:
    """Half of each tile are keys that come in every tile, once, and half are others: some lists have no room for that.

    In one pass over 256 tiles, a list of 3028 has 1024 of the others and 256 of each hot key, four of which are in its
    part on average, but eight or more in one part of twenty.
    """
    rng = np.random.default_rng(tiles)
    hot = np.tile(np.arange(TILE // 2), (tiles, 1))
    others = TILE + np.arange(tiles * TILE // 2).reshape(tiles, -1)
    return rng.permuted(np.concatenate([hot, others], axis=1), axis=1).reshape(-1)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("kind", BATCHES)
def test_every_kind_of_batch(on_device, kind, dtype):
    for count in (1, 33, 4097, 60_007):
        check_factorized(make_batch(kind, dtype, count), on_device)


@pytest.mark.parametrize("kind", ["few", "distinct", "half-distinct", "one-large-part"])
def test_two_passes(on_device, kind):
    check_factorized(make_batch(kind, "int64", TWO_PASSES), on_device)


def test_lists_without_room(on_device):
    keys = overfull_batch(256)
    check_factorized(keys, on_device)
    elements = keys[::3].copy()
    members = np.unique(keys)[::2]
    for invert in (False, True):
        mask = gpuhash.isin(on_device.array(keys), on_device.array(members), invert=invert)
        same_bytes(mask, np.isin(keys, members, invert=invert))
        mask = gpuhash.isin(on_device.array(elements), on_device.array(keys[::2].copy()), invert=invert)
        same_bytes(mask, np.isin(elements, keys[::2], invert=invert))


def test_rows_of_eight_bytes(on_device):
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 100, (50_001, 2)).astype(np.int32)
    numbers = rows.astype(np.int64) @ [1000, 1]
    values, firsts, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    got = gpuhash.unique(on_device.array(rows), return_inverse=True, return_index=True, axis=0)
    same_bytes(got.values, rows[np.sort(firsts)])
    same_bytes(got.indices, np.sort(firsts))
    same_bytes(got.inverse, np.argsort(order)[inverse])
    mask = gpuhash.isin(on_device.array(rows), on_device.array(rows[:70].copy()), axis=0)
    same_bytes(mask, np.isin(numbers, numbers[:70]))
    assert len(values) > 5000


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_compare_as_numbers(on_device, dtype):
    """-0.0 equals 0.0, all NaNs are one key, and the first occurrence is given back as it stands."""
    keys = np.tile(np.array([-0.0, 1.5, np.nan, 0.0, -1.5, -np.nan], dtype), 3000)
    codes, uniques = gpuhash.factorize(on_device.array(keys))
    same_bytes(codes, np.tile([0, 1, 2, 0, 3, 2], 3000))
    same_bytes(uniques, keys[[0, 1, 2, 4]])
    mask = gpuhash.isin(on_device.array(keys), on_device.array(np.array([0.0, np.nan] * 3000, dtype)))
    same_bytes(mask, np.tile([True, False, True, True, False, True], 3000))


@pytest.mark.parametrize("offset", [0, 1])
def test_every_alignment(on_device, offset):
    """Keys that do not begin at a multiple of their size are read byte by byte."""
    keys = np.random.default_rng(offset).integers(0, 3000, 20_000)
    raw = on_device.array(np.concatenate([np.zeros(offset, np.uint8), keys.view(np.uint8)]))
    rows = raw[offset:].reshape(-1, 8)  # uint8 [n, 8], whose first byte may lie anywhere
    got = gpuhash.unique(rows, axis=0, return_inverse=True)
    values, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    same_bytes(got.values, values[order].view(np.uint8).reshape(-1, 8))
    same_bytes(got.inverse, np.argsort(order)[inverse])


@pytest.mark.pairwise
@pytest.mark.parametrize("tests", ["few", "distinct", "hot-and-others", "one-large-part"])
@pytest.mark.parametrize("elements", ["few", "distinct", "hot-and-others", "one-large-part"])
@pytest.mark.parametrize(("count", "test_count"), [(1, 1), (33, 100), (70_001, 20), (50_003, 130_001), (900, 130_001)])
def test_isin(on_device, elements, tests, count, test_count):
    for dtype in ("int16", "int32", "uint64"):
        keys = make_batch(elements, dtype, count)
        members = make_batch(tests, dtype, test_count)[: max(1, test_count * 2 // 3)].copy()
        for invert in (False, True):
            mask = gpuhash.isin(on_device.array(keys), on_device.array(members), invert=invert)
            same_bytes(mask, np.isin(keys, members, invert=invert))


@pytest.mark.parametrize("kind", ["distinct", "hot-and-others"])
def test_isin_in_two_passes(on_device, kind):
    keys = make_batch(kind, "int64", TWO_PASSES)
    members = make_batch(kind, "int64", TWO_PASSES + 1)[::-1].copy()
    members[::2] ^= 1  # half of them are not keys
    same_bytes(gpuhash.isin(on_device.array(keys), on_device.array(members)), np.isin(keys, members))


def test_answers_do_not_depend_on_timing(on_device):
    keys = np.random.default_rng(4).zipf(1.1, 1 << 18)
    array = on_device.array(keys)
    values, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    for _ in range(20):
        got = gpuhash.factorize(array)
        same_bytes(got.codes, np.argsort(order)[inverse])
        same_bytes(got.uniques, values[order])


def test_memory_runs_out(on_device):
    """Where there is no memory for lists, a table in memory does it; where there is none for that, it is an error."""
    memory = counting_memory(on_device.table_device)
    context = make_context(on_device.table_device, memory)
    batch = make_batch("half-distinct", "int64", 150_000)
    keys = on_device.array(batch)
    values, firsts, inverse = np.unique(batch, return_index=True, return_inverse=True)
    order = np.argsort(firsts)

    def run() -> None:
        uniques, codes = (on_device.array(np.zeros(length, np.int64)) for length in (len(values), len(batch)))
        work = _core.Factorization(context, _core.borrow(keys), 1, True, True, 0)
        work.write(_core.borrow(uniques), _core.borrow(codes), None, None, False)
        context.synchronize(0)
        same_bytes(uniques, values[order])
        same_bytes(codes, np.argsort(order)[inverse])

    run()
    fewest = memory.calls
    failed = 0
    for number in range(fewest):
        memory.fail_after(number)
        try:
            run()
        except MemoryError as error:
            assert "in this test" in str(error)  # noqa: PT017
            failed += 1
        memory.fail_after(None)
        assert memory.nbytes == 0
    assert failed > 0
    if on_device.table_device != "cpu":
        assert failed < fewest
    assert memory.mistakes == []


def test_too_little_memory(cuda):
    """Neither the lists nor the table get their memory."""
    memory = counting_memory(cuda)
    context = make_context(cuda, memory)
    keys = Framework("torch", cuda, cuda).array(make_batch("distinct", "int64", 150_000))
    allocate = memory.allocate

    def refuse(nbytes: int, stream: object = None) -> int:
        if nbytes > 1_000_000:
            raise MemoryError(f"no {nbytes} bytes in this test")
        return allocate(nbytes, stream)

    memory.allocate = refuse
    with pytest.raises(MemoryError, match="in this test"):
        _core.Factorization(context, _core.borrow(keys), 1, True, True, 0)
    assert memory.nbytes == 0
    del memory.allocate
    assert _core.Factorization(context, _core.borrow(keys), 1, True, True, 0).count == 150_000
