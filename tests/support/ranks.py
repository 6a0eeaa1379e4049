"""Processes that form a process group of PyTorch, for tests of what they do together."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 60  # that the ranks wait for each other


class Ranks:
    """Processes of one group, started once, that make the same calls.

    What they call has to be importable, as ``support.distributed_checks`` is.
    """

    def __init__(self, count: int, backend: str, *, on_gpus: bool, seconds: float) -> None:
        self.count = count
        self._folder = tempfile.TemporaryDirectory()
        if on_gpus:
            context: Any = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        else:  # a server imports what takes seconds once, and forks the ranks
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["torch", "gpuhash.distributed", "pytest", "safetensors.numpy"])
        self._pipes, self._processes = [], []
        for rank in range(count):
            mine, theirs = context.Pipe()
            store = Path(self._folder.name, "store").as_uri()
            process = context.Process(target=_serve, args=(theirs, rank, count, backend, store, seconds), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, lost: Collection[int] = ()) -> list[Any]:
        """What the function gives on each rank, called there with (rank, ranks, *args); None on those that are lost.

        AssertionError, with all tracebacks, where it raises on one, and where another rank has died.
        """
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send((function, args))
        results, failures = [], []
        deadline = time.monotonic() + 5 * SECONDS
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                failures.append(f"rank {rank} does not answer")
                continue
            try:
                result, failure = pipe.recv()
            except (EOFError, ConnectionResetError):
                result, failure = None, None if rank in lost else "the process has died"
                self._processes[rank].join(SECONDS)
            results.append(result)
            if failure is not None:
                failures.append(f"rank {rank}:\n{failure}")
        if failures:
            raise AssertionError("\n".join(failures))
        return results

    def alive(self) -> list[bool]:
        return [process.is_alive() for process in self._processes]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


@contextlib.contextmanager
def started(count: int, backend: str, *, on_gpus: bool = False, seconds: float = SECONDS) -> Iterator[Ranks]:
    """Ranks for the time of a with statement; ``seconds`` is the group's time-out."""
    ranks = Ranks(count, backend, on_gpus=on_gpus, seconds=seconds)
    try:
        yield ranks
    finally:
        ranks.close()


def _serve(pipe: Connection, rank: int, count: int, backend: str, store: str, seconds: float) -> None:
    import torch

    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    join_group(rank, count, backend, store, seconds)
    with contextlib.suppress(EOFError, ConnectionResetError):
        while True:
            function, args = pipe.recv()
            try:
                pipe.send((function(rank, count, *args), None))
            except BaseException:  # pytest's own, as where nothing was raised, are no Exception
                pipe.send((None, traceback.format_exc()))
    torch.distributed.destroy_process_group()


def join_group(rank: int, count: int, backend: str, store: str, seconds: float) -> None:
    """Makes the default process group, whose members find each other by a file."""
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=count, timeout=timeout)
