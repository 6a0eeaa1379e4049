"""Lookups inside tf.function beside the table's own: one table, which PyTorch and TensorFlow share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch  # before TensorFlow, as its symbols are in the way of PyTorch's

import gpuhash
from benchmarks.markdown import count
from benchmarks.suite import Group, NotHereError, Session, need_module
from benchmarks.timing import Action, Timing, expect

from .data import PAIRS_8_8, DataCache
from .tables import LAST, TableBench

OPERATIONS = ("find present", "find absent")
OWN = "table.find, PyTorch"
LOOKUPS = 16  # in one call of the traced function
LOAD = 0.5
_DEFAULT = -1


def import_tensorflow(device: str) -> Any:
    """TensorFlow with gpuhash's ops, which leaves the device's memory to others as long as it does not need it.

    Parameters
    ----------
    device
        "GPU:0", or "CPU:0".

    Raises
    ------
    NotHereError
        Where TensorFlow is not installed, or sees no such device, or its ops cannot be built.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tf = need_module("tensorflow")
    kind, _, index = device.partition(":")
    physical = tf.config.list_physical_devices(kind)
    if len(physical) <= int(index):
        raise NotHereError(f"TensorFlow {tf.__version__} sees no {device}")
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    try:
        import gpuhash.tensorflow  # noqa: F401
    except ImportError as error:  # no compiler, for instance
        raise NotHereError(str(error)) from error
    return tf


class GraphBench:
    """A filled table that is looked up in both ways, with the same batches of keys in turn.

    TensorFlow has no events that Python could record on its stream. So lookups follow each other without waiting, and
    the host's clock is read before the first and when an element of what came last has been read: the device is then
    done with all of them, as they are on one stream. The host enqueues while the device works, and the quotient is the
    device's time for one lookup, unless the host needs longer than the device; then it is the host's, which is what the
    lookup costs inside of a tf.function. What remains of the first one's way to the device and of the last one's way
    back is shared by hundreds of lookups. The table's own lookups are timed likewise.

    A call of the traced function looks up all batches, which it has captured, as passing a tensor takes the host longer
    than enqueueing a lookup. It returns all that was found: nothing is left for TensorFlow to prune, and no other
    kernel runs.

    Parameters
    ----------
    tf
        TensorFlow, as ``import_tensorflow`` gives it.
    table
        Of int64 keys and int64 values.
    batches
        By operation, the keys of each lookup: int64 ``[n]`` on the table's device, all n the same.
    device
        The table's, in TensorFlow's words.
    synchronize
        Waits for PyTorch's work.
    """

    def __init__(
        self,
        tf: Any,
        table: gpuhash.HashTable,
        batches: Mapping[str, Sequence[torch.Tensor]],
        device: str,
        synchronize: Action,
    ) -> None:
        self.table, self.device, self._synchronize = table, device, synchronize
        self._batches = batches
        some = next(iter(batches.values()))[0]
        self._out = torch.empty_like(some), torch.empty(some.shape, dtype=torch.bool, device=some.device)
        self._synchronize()  # TensorFlow's stream does not wait for PyTorch's
        wrapped = gpuhash.tensorflow.wrap(table, _DEFAULT, device=device)

        def traced(keys: Sequence[torch.Tensor]) -> Any:
            with tf.device(device):
                tensors = [tf.constant(each.cpu().numpy()) for each in keys]
            function = tf.function(lambda: [wrapped.lookup(each) for each in tensors], autograph=False)

            def call() -> Any:
                with tf.device(device):  # where TensorFlow puts what a function returns
                    return function()

            return call

        self._traced = {operation: traced(keys) for operation, keys in batches.items()}

    def check(self, operation: str, expected: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        """Every batch finds what ``expected`` gives for its keys, or the default if that is None."""
        for keys, values in zip(self._batches[operation], self._traced[operation](), strict=True):
            expect(self.device in values.device, f"tf.function looks up on {self.device}, not on {values.device}")
            wanted = torch.full_like(keys, _DEFAULT) if expected is None else expected(keys)
            expect(torch.equal(torch.from_numpy(values.numpy()), wanted.cpu()), f"tf.function: {operation}")
            self.table.find(keys, out=self._out)
            expect((self._out[1] == (expected is not None)).all(), f"table.find: {operation}")
            expect(expected is None or torch.equal(self._out[0], wanted), f"values of table.find: {operation}")

    def measure(self, operation: str, *, runs: int, calls: int) -> dict[str, Timing]:
        """Seconds of one lookup, by turns: inside of tf.function as "gpuhash", and of the table's own as ``OWN``.

        In each run all batches are looked up ``calls`` times; a run before the first one warms up.
        """
        batches, look_up = self._batches[operation], self._traced[operation]

        def graph() -> None:
            for _ in range(calls):
                found = look_up()
            found[-1][0].numpy()

        def own() -> None:
            for _ in range(calls):
                for keys in batches:
                    self.table.find(keys, out=self._out)
            self._synchronize()

        seconds: dict[str, list[float]] = {"gpuhash": [], OWN: []}
        for run in range(1 + runs):
            for who, action in (("gpuhash", graph), (OWN, own)):
                start = time.perf_counter()
                action()
                elapsed = time.perf_counter() - start
                if run:
                    seconds[who].append(elapsed / (calls * len(batches)))
        return {who: Timing.of(taken) for who, taken in seconds.items()}


def in_graphs(session: Session, cache: DataCache) -> list[Group]:
    """Batches of 2^20 keys on a large table."""
    pairs, batch = (1 << 20, 1 << 14) if session.quick else (1 << 27, LAST)
    report = session.report

    def make() -> nullcontext[tuple[GraphBench, float]]:
        tf = import_tensorflow("GPU:0")
        data = cache.get(PAIRS_8_8, pairs)
        filled = TableBench(data, LOAD, report)
        keys = {"find present": data.lookups, "find absent": data.absent}
        batches = {operation: all_keys[: LOOKUPS * batch].split(batch) for operation, all_keys in keys.items()}
        bench = GraphBench(tf, filled.table, batches, "GPU:0", torch.cuda.synchronize)
        bench.check("find present", data.layout.values)
        bench.check("find absent", None)
        return nullcontext((bench, filled.load))

    def case(operation: str, made: tuple[GraphBench, float]) -> None:
        bench, load = made
        timings = bench.measure(operation, runs=2 if session.quick else 7, calls=64)
        limit = report.limit("L64")
        report.add("graph", operation, "gpuhash", timings["gpuhash"], pairs=pairs, batch=batch, load=load, limit=limit)
        report.add("graph", operation, OWN, timings[OWN], pairs=pairs, batch=batch)

    cases = {operation: partial(case, operation) for operation in session.wanted(OPERATIONS)}
    return [Group(f"{count(pairs)} pairs at load {LOAD}, batch {count(batch)}", make, cases)]
