"""Random operations from several threads and streams against a model, with delays that show where a wait is missing.

GPUHASH_STRESS_ROUNDS sets the number of rounds of each test; a failure names the seed of its round.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.frameworks import (
    GPU,
    Framework,
    capture,
    delay,
    module,
    need_place,
    new_stream,
    on_stream,
    sees_gpu,
    to_numpy,
)
from support.raw_streams import PER_THREAD, RawStreams, external_stream
from support.samples import as_dict, items_of
from support.tuning import partitioned

from gpuhash import HashTable

THREADS, STEPS = 4, 40  # of one round
IDS, BATCH, REPLAYED = 6000, 1500, 300  # keys that there are; at most in a batch; in a replayed one


class Model:
    """What the table should hold: for every id whether its key is there, and with which value."""

    def __init__(self) -> None:
        self.keys = np.arange(IDS) * 0x9E3779B97F4A7C1 - (1 << 62)
        self.present = np.zeros(IDS, bool)
        self.values = np.zeros(IDS, np.int64)

    def read(self, ids: np.ndarray, default: Any) -> np.ndarray:
        return np.where(self.present[ids], self.values[ids], default)

    def write(self, ids: np.ndarray, values: Any) -> None:
        self.present[ids] = True
        self.values[ids] = values


@dataclass
class Step:
    """One call: what goes in and where its answers go, all made before the round, and what they should be."""

    ids: np.ndarray
    numbers: np.ndarray
    keys: Any  # [n], on the device, as are the others
    values: Any  # [n, *value_shape]
    got: Any  # [n, *value_shape]
    mask: Any  # [n]
    name: str = "nothing"
    expected_values: np.ndarray | None = None  # [n]; all elements of a row are equal
    expected_mask: np.ndarray | None = None

    def fault(self) -> str:
        """What is wrong with the answers, if anything. Waits."""
        if self.expected_mask is not None and not np.array_equal(mask := to_numpy(self.mask), self.expected_mask):
            return f"{self.name}: {(mask != self.expected_mask).sum()} of {len(mask)} masks are wrong"
        if self.expected_values is not None:
            got = to_numpy(self.got).reshape(len(self.ids), -1)
            wrong = (got != self.expected_values[:, None]).any(axis=1)
            if wrong.any():
                return f"{self.name}: {wrong.sum()} of {len(wrong)} values are wrong"
        return ""


class HostStreams:
    """A host table's calls are done when they return."""

    @contextlib.contextmanager
    def on_some(self, rng: np.random.Generator) -> Iterator[None]:
        yield


class CudaStreams:
    """Streams of every kind, taken at random, some of them busy."""

    def __init__(self) -> None:
        self.raw = RawStreams()
        self.local = threading.local()
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def on_some(self, rng: np.random.Generator) -> Iterator[None]:
        """Some stream is the current one; one that is made here is destroyed while its work is still to come."""
        kind = rng.choice(["own", "remade", "per-thread", "default"], p=[0.3, 0.3, 0.3, 0.1])
        handle = None
        if kind == "own":
            if not hasattr(self.local, "stream"):
                self.local.stream = new_stream()
            stream = self.local.stream
        elif kind == "remade":
            with self.lock:
                handle = self.raw.make()
            stream = external_stream(handle)
        else:
            stream = external_stream(PER_THREAD) if kind == "per-thread" else module("torch").cuda.default_stream(GPU)
        with on_stream(stream):
            if rng.random() < 0.4:
                delay(int(10 ** rng.uniform(5, 7)))
            yield
        if handle is not None:
            with self.lock:
                self.raw.destroy(handle)


@dataclass
class Replays:
    """A captured graph that assigns and looks up, and its order among the calls, of which the library knows nothing."""

    table: HashTable
    place: Framework
    value_shape: tuple[int, ...]
    last: Any = None  # an event behind the last call or replay
    after_replay: Any = None  # an event behind a replay that no call has waited for yet
    graph: Any = field(init=False)

    def __post_init__(self) -> None:
        torch = module("torch")
        self.keys = torch.zeros(REPLAYED, dtype=torch.int64, device=GPU)
        self.values = torch.zeros(REPLAYED, *self.value_shape, dtype=torch.int64, device=GPU)
        self.got, self.new = torch.zeros_like(self.values), torch.zeros(REPLAYED, dtype=torch.bool, device=GPU)
        self.found = torch.zeros_like(self.new)
        self.call()  # loads the kernels, which no capture allows
        self.table.clear()
        assert len(self.table) == 0
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            self.call()

    def call(self) -> None:
        self.table.insert_or_assign(self.keys, self.values, out=self.new)
        self.table.find(self.keys, out=(self.got, self.found))

    def replay(self, step: Step) -> None:
        stream = module("torch").cuda.current_stream(GPU)
        if self.last is not None:
            stream.wait_event(self.last)
        self.keys.copy_(step.keys)
        self.values.copy_(step.values)
        self.graph.replay()
        step.got.copy_(self.got)
        step.mask.copy_(self.new)
        self.last = self.after_replay = stream.record_event()

    def before_call(self) -> None:
        if self.after_replay is not None:
            module("torch").cuda.current_stream(GPU).wait_event(self.after_replay)
            self.after_replay = None

    def after_call(self) -> None:
        self.last = module("torch").cuda.current_stream(GPU).record_event()


class Stress:
    """One table and its model. Shared: all threads use all keys, and the model's lock keeps the calls in order (the
    device's work overlaps all the same). Otherwise each thread has keys of its own, and nobody waits for anybody.
    """

    def __init__(self, place: Framework, value_shape: tuple[int, ...], shared: bool, replayed: bool) -> None:
        self.place, self.value_shape, self.shared = place, value_shape, shared
        self.table = HashTable("int64", "int64", value_shape=value_shape, device=place.table_device)
        self.model = Model()
        self.lock: Any = threading.Lock() if shared else contextlib.nullcontext()
        self.streams: Any = HostStreams() if place.table_device == "cpu" else CudaStreams()
        self.replays: Replays | None = None
        if replayed:
            self.table.reserve(4 * IDS)  # it must not grow as long as the graph is replayed
            self.replays = Replays(self.table, place, value_shape)

    # Operations: each enqueues a call, says what its answers should be and changes the model ------------------------

    def find(self, step: Step, number: int) -> None:
        self.table.find(step.keys, out=(step.got, step.mask))
        step.expected_values, step.expected_mask = self.model.read(step.ids, 0), self.model.present[step.ids]

    def find_with_default(self, step: Step, number: int) -> None:
        self.table.find(step.keys, number, out=(step.got, step.mask))
        step.expected_values, step.expected_mask = self.model.read(step.ids, number), self.model.present[step.ids]

    def find_with_defaults(self, step: Step, number: int) -> None:
        self.table.find(step.keys, step.values, out=(step.got, step.mask))
        step.expected_values = self.model.read(step.ids, step.numbers)
        step.expected_mask = self.model.present[step.ids]

    def get(self, step: Step, number: int) -> None:
        self.table.get(step.keys, number, out=step.got)
        step.expected_values = self.model.read(step.ids, number)

    def contains(self, step: Step, number: int) -> None:
        self.table.contains(step.keys, out=step.mask)
        step.expected_mask = self.model.present[step.ids]

    def insert(self, step: Step, number: int) -> None:
        self.table.insert(step.keys, step.values, out=step.mask)
        step.expected_mask = ~self.model.present[step.ids]
        self.model.write(step.ids, self.model.read(step.ids, step.numbers))

    def insert_or_assign(self, step: Step, number: int) -> None:
        self.table.insert_or_assign(step.keys, step.values, out=step.mask)
        step.expected_mask = ~self.model.present[step.ids]
        self.model.write(step.ids, step.numbers)

    def assign_number(self, step: Step, number: int) -> None:
        self.table[step.keys] = number
        self.model.write(step.ids, number)

    def add(self, step: Step, number: int) -> None:
        self.table.insert_or_apply(step.keys, step.values, "add", out=step.mask)
        step.expected_mask = ~self.model.present[step.ids]
        self.model.write(step.ids, self.model.read(step.ids, 0) + step.numbers)

    def setdefault(self, step: Step, number: int) -> None:
        self.table.setdefault(step.keys, number, out=step.got)
        step.expected_values = self.model.read(step.ids, number)
        self.model.write(step.ids, step.expected_values)

    def pop(self, step: Step, number: int) -> None:
        self.table.pop(step.keys, number, out=step.got)
        step.expected_values = self.model.read(step.ids, number)
        self.model.present[step.ids] = False

    def erase(self, step: Step, number: int) -> None:
        self.table.erase(step.keys, out=step.mask)
        step.expected_mask = self.model.present[step.ids]
        self.model.present[step.ids] = False

    def clear(self, step: Step, number: int) -> None:
        self.table.clear()
        self.model.present[:] = False

    def size(self, step: Step, number: int) -> None:
        assert len(self.table) == self.model.present.sum()

    def reserve(self, step: Step, number: int) -> None:
        self.table.reserve(2 * IDS)

    def rehash(self, step: Step, number: int) -> None:
        self.table.rehash(number)

    def shrink(self, step: Step, number: int) -> None:
        self.table.shrink_to_fit()

    def replay(self, step: Step, number: int) -> None:
        assert self.replays is not None
        self.replays.replay(step)
        step.expected_mask, step.expected_values = ~self.model.present[step.ids], step.numbers
        self.model.write(step.ids, step.numbers)

    def operations(self) -> list[Callable[[Step, int], None]]:
        """To choose from; common ones come more than once."""
        chosen = 2 * [self.find, self.find_with_default, self.contains, self.insert, self.insert_or_assign, self.erase]
        chosen += [self.find_with_defaults, self.get, self.assign_number, self.add, self.setdefault, self.pop]
        if self.shared:
            chosen += [self.clear, self.size]
        if self.replays is not None:
            return [*chosen, *[self.replay] * 8]
        return [*chosen, self.reserve, self.rehash, self.shrink]

    # Rounds ----------------------------------------------------------------------------------------------------------

    def make_steps(self, rng: np.random.Generator, ids: np.ndarray) -> list[Step]:
        """All arrays of a thread's round, so that nobody has to allocate, or wait for a copy, while it runs."""
        shape = (STEPS, BATCH, *self.value_shape)
        chosen = np.stack([rng.permutation(ids)[:BATCH] for _ in range(STEPS)])
        numbers = rng.integers(-(1 << 40), 1 << 40, (STEPS, BATCH))
        wide = np.broadcast_to(numbers.reshape(STEPS, BATCH, *[1] * len(self.value_shape)), shape)
        keys, values = self.place.array(self.model.keys[chosen]), self.place.array(wide)
        got, mask = self.place.array(np.full(shape, -9)), self.place.array(np.zeros((STEPS, BATCH), bool))
        counts = rng.integers(1, BATCH + 1, STEPS)
        return [
            Step(chosen[i, :n], numbers[i, :n], keys[i, :n], values[i, :n], got[i, :n], mask[i, :n])
            for i, n in enumerate(counts)
        ]

    def work(self, number: int, rng: np.random.Generator, steps: list[Step], start: threading.Barrier) -> None:
        operations = self.operations()
        start.wait()
        for step in steps:
            operation = operations[rng.integers(len(operations))]
            if operation == self.replay:
                for name in ("ids", "numbers", "keys", "values", "got", "mask"):
                    setattr(step, name, getattr(step, name)[:REPLAYED])
                if len(step.ids) < REPLAYED:
                    operation = self.find
            step.name = f"{operation.__name__} of {len(step.ids)} in thread {number}"
            with self.lock, self.streams.on_some(rng):
                if self.replays is not None and operation != self.replay:
                    self.replays.before_call()
                operation(step, int(rng.integers(1, 40)))
                if self.replays is not None and operation != self.replay:
                    self.replays.after_call()

    def round(self, seed: int) -> None:
        generators = [np.random.default_rng([seed, number]) for number in range(THREADS)]
        ids = [np.arange(IDS) if self.shared else np.arange(IDS)[number::THREADS] for number in range(THREADS)]
        steps = [self.make_steps(*each) for each in zip(generators, ids, strict=True)]
        self.place.synchronize()
        start = threading.Barrier(THREADS)
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(self.work, range(THREADS), generators, steps, [start] * THREADS))
        except BaseException as error:
            error.add_note(f"in the round of seed {seed}")
            raise
        self.place.synchronize()
        faults = [fault for each in steps for step in each if (fault := step.fault())]
        assert not faults, f"seed {seed}: {'; '.join(faults)}"
        present = self.model.present
        wide = self.model.values[present].reshape(-1, *[1] * len(self.value_shape))
        wide = np.broadcast_to(wide, (len(wide), *self.value_shape))
        assert items_of(self.table) == as_dict(self.model.keys[present], wide), f"seed {seed}: other items"


@pytest.mark.parametrize("value_shape", [(), (6,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("kind", ["shared", "partitioned", "replayed", "replayed-partitioned", "own-keys"])
def test_against_a_model(device, on_device, kind, value_shape):
    if device == "cpu" and kind not in ("shared", "own-keys"):
        pytest.skip("only GPUs have that")
    if device != "cpu" and not sees_gpu("cupy"):
        pytest.skip("needs CuPy to make streams")
    with partitioned("partitioned" in kind):
        for seed in range(int(os.environ.get("GPUHASH_STRESS_ROUNDS", "8" if device == "cpu" else "24"))):
            if seed % 4 == 0:
                stress = Stress(need_place(on_device), value_shape, kind != "own-keys", "replayed" in kind)
            stress.round(seed)
