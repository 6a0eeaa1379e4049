"""Arrays of several frameworks in one call, each on its framework's own stream; and calls on other streams later on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.frameworks import (
    GPU,
    Framework,
    delay,
    module,
    need_place,
    new_stream,
    on_cupy_stream,
    on_stream,
    to_numpy,
)

import gpuhash
from gpuhash.arrays.batch import Batch
from gpuhash.frames import columns as frame_columns

COUNT = 1 << 16
CYCLES = 100_000_000  # some 50 ms, in which a read that does not wait finds zeros


def multimap_of(keys, values):
    table = gpuhash.HashMultiMap("int64", "int64", device=GPU)
    table.insert(keys, values)
    return table.find_all(keys)[1]


def streamed(keys, values):
    groups = gpuhash.GroupBy(sum="values")
    groups.update([keys, values], values=values)
    return groups.result().aggregates["sum"]


#: What becomes of two arrays of a permutation each: the call, and the same of NumPy.
CALLS = {
    "join": (lambda a, b: gpuhash.join(a, b, "left").right, lambda a, b: np.argsort(b)[a]),
    "right join": (lambda a, b: gpuhash.join(a, b, "right").left, lambda a, b: np.argsort(a)[b]),
    "get_indexer": (lambda a, b: gpuhash.get_indexer(b, a), lambda a, b: np.argsort(b)[a]),
    "columns of two sides": (lambda a, b: gpuhash.join([a, b], [b, a], "semi"), lambda a, b: common(a, b)),
    "isin": (lambda a, b: gpuhash.isin(a, b[:1000]), lambda a, b: np.isin(a, b[:1000])),
    "keys of two columns": (lambda a, b: gpuhash.group_by([a, b]).keys[1], lambda a, b: b),
    "values": (lambda a, b: gpuhash.group_by(a).agg(sum=b)["sum"], lambda a, b: b),
    "batches": (streamed, lambda a, b: b),
    "take": (lambda a, b: gpuhash.take([a, b], b)[1], lambda a, b: b[b]),
    "multimap": (multimap_of, lambda a, b: b),
}


def common(a, b):
    """Where the pairs (a, b) are among the pairs (b, a)."""
    return np.flatnonzero(np.isin(a * COUNT + b, b * COUNT + a))


@pytest.mark.parametrize("late", ["torch", "cupy"])
@pytest.mark.parametrize("first", ["torch", "cupy"])
@pytest.mark.parametrize("call", CALLS)
def test_frameworks_on_streams_of_their_own(torch_cuda, call, first, late):
    """One array is still to be written when the call begins, and the result is read on the stream of its framework."""
    torch, cupy = torch_cuda, module("cupy")
    place = need_place(Framework("cupy", GPU, GPU))
    rng = np.random.default_rng(0)
    ours, theirs = rng.permutation(COUNT), rng.permutation(COUNT)
    ask, expect = CALLS[call]
    streams = {"torch": new_stream(), "cupy": new_stream()}
    arrays = {
        "torch": torch.zeros(COUNT, dtype=torch.int64, device=GPU),
        "cupy": place.array(np.zeros(COUNT, np.int64)),
    }
    written = dict(zip((first, "cupy" if first == "torch" else "torch"), (ours, theirs), strict=True))
    sources = {"torch": torch.from_numpy(written["torch"]).to(GPU), "cupy": place.array(written["cupy"])}
    with on_stream(streams["torch"]), on_cupy_stream(streams["cupy"]):
        ask(torch.arange(10, device=GPU), cupy.arange(10))  # what first calls wait for
        torch.cuda.synchronize(GPU)
        with on_stream(streams[late]):
            delay(CYCLES)
        arrays["torch"].copy_(sources["torch"])
        cupy.copyto(arrays["cupy"], sources["cupy"])
        sides = list(arrays.values()) if first == "torch" else list(arrays.values())[::-1]
        result = to_numpy(ask(*sides))
    np.testing.assert_array_equal(result, expect(ours, theirs))


@pytest.mark.parametrize("later", ["agg", "keys", "codes", "pieces"])
def test_later_calls_on_another_stream(torch_cuda, later):
    """What a later call reads and gives is of the stream that is then the current one."""
    torch = torch_cuda
    host = np.random.default_rng(0).permutation(COUNT)
    keys, values = torch.from_numpy(host).to(GPU), torch.zeros(COUNT, device=GPU, dtype=torch.int64)
    groups, pairs = gpuhash.group_by(keys), gpuhash.Join(keys, keys)
    source = keys.clone()
    torch.cuda.synchronize(GPU)
    delay(CYCLES)  # on the stream of before
    groups.agg(sum=values)
    other = new_stream()
    with on_stream(other):
        delay(CYCLES)
        values.copy_(source)
        if later == "agg":
            result = groups.agg(sum=values)["sum"]
        elif later == "pieces":
            result = torch.cat([piece.left for piece in pairs.pieces(COUNT // 3)])
        else:
            result = getattr(groups, later)
        result = to_numpy(result.clone())
    np.testing.assert_array_equal(result, host if later in ("agg", "keys") else np.arange(COUNT))


def fake_batch(context, stream: int, framework) -> Batch:
    batch = Batch()
    batch.context, batch.stream, batch.framework, batch.tensor = context, stream, framework, object()
    batch.must_wait = framework.private_streams
    return batch


@pytest.mark.parametrize(
    ("streams", "private", "waited", "must_wait"),
    [
        ((7, 7), False, [], False),
        ((7, 9), False, [9], True),
        ((7, 7), True, [], True),
        ((7, 9), True, ["ready"], True),
    ],
)
def test_batches_of_one_stream(streams, private, waited, must_wait):
    """The first one's stream comes after the other's, on which nothing of the call goes on."""
    seen: list = []
    context = SimpleNamespace(platform="cuda", device_index=0, synchronize=seen.append)
    ours, theirs = (
        SimpleNamespace(
            private_streams=is_private,
            stream=lambda tensor, index, stream=stream: stream,
            wait_until_ready=lambda tensor: seen.append("ready"),
        )
        for stream, is_private in zip(streams, (False, private), strict=True)
    )
    first, other = fake_batch(context, streams[0], ours), fake_batch(context, streams[1], theirs)
    first.share_stream(other)
    assert seen == waited
    assert (other.stream, first.stream) == (7, 7)
    assert first.must_wait == other.must_wait == must_wait


@pytest.mark.parametrize("call", ["join", "get_indexer", "keys of two columns", "columns of two sides", "take"])
def test_all_columns_of_a_call_share_one_stream(monkeypatch, call):
    """Each column that is read comes to work on the stream of the first one."""
    read, shared = [], []
    read_column, share_stream = frame_columns.read_column, Batch.share_stream

    def reading(column, what):
        read.append(read_column(column, what))
        return read[-1]

    def sharing(batch, other):
        shared.append((id(batch), id(other)))
        share_stream(batch, other)

    for name in ("columns", "keys", "taking"):
        monkeypatch.setattr(f"gpuhash.frames.{name}.read_column", reading)
    monkeypatch.setattr(Batch, "share_stream", sharing)
    ask, expect = CALLS[call]
    ours, theirs = np.array([2, 0, 1]), np.array([1, 0, 2])
    np.testing.assert_array_equal(ask(ours, theirs), expect(ours, theirs))
    root = {id(column.batch): id(column.batch) for column in read}
    for batch, other in shared:
        root[other] = root[batch]
    assert len(root) >= 2
    assert set(root.values()) == {id(read[0].batch)}
