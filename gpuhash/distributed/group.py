"""Collective steps of one process group: counts, tensors and errors between all of its processes."""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gpuhash import _core
from gpuhash._core import CudaError, PlatformError, TableFullError
from gpuhash.arrays.memory import make_context, parse_device

from .split import Split

# What one process raises, all raise; other classes arrive as RuntimeError.
_ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TypeError,
        ValueError,
        OverflowError,
        KeyError,
        MemoryError,
        OSError,
        TableFullError,
        CudaError,
        PlatformError,
    )
}
_FINE, _FAILED = 0, 1
#: Why process groups are out of step: what one table has begun would meet the calls of all others.
_lost: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


class Opened(NamedTuple):
    """What all ranks have told each other at the beginning of a call."""

    send: list[int]  # rows that go to each rank
    receive: list[int]  # rows that come from each rank
    constant: int | None  # the bits of the one value that all keys of all ranks have, if there is one


class Opening(NamedTuple):
    """The first step of a call, under way."""

    problem: Exception | None
    signature: int


class Sent(NamedTuple):
    """Rows on their way."""

    work: Any
    there: Tensor  # what is being sent
    arrived: Tensor  # where rows arrive, in memory that the backend takes
    target: Tensor  # where they are wanted


class Group:
    """A process group of PyTorch, this process's place in it, and the collective steps of one table.

    A *call* of the table is a sequence of steps that all ranks take in the same order, inside of ``with
    group.call(name)``. What fails on one rank alone before its data are needed is carried to all by ``open`` and
    ``agree``, which raise it everywhere: the group stays in step. Whatever else leaves a call has left the others
    waiting. Then every later call in the process group is refused, as its messages would be taken for those of the
    broken one.

    Parameters
    ----------
    group
        The process group; None for the default one.
    device
        Where the table's tensors are. Those of a GPU go through the host where the group has no backend for GPUs.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        self.process_group = dist.group.WORLD if group is None else group  # another one may be the default later
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self.device = device
        self.wire = _wire_device(group, device)
        self.splitter = _core.Splitter(make_context(device))
        with torch.inference_mode(False):  # what is made in that mode cannot be written to outside of it
            told = torch.zeros((2, self.size, 6), dtype=torch.int64, device=self.wire)
            on_gpu = self.wire.type == "cuda"
            heard = torch.empty_like(told, device="cpu", pin_memory=True) if on_gpu else told
            self._worst = told.new_full((1,), _FINE)  # of all ranks' problems
            # A word of each other rank: has it a problem?
            self._failed = torch.zeros(8 * self.size, dtype=torch.uint8, device="cpu", pin_memory=on_gpu)
        self._told, self._heard = told, heard  # by all ranks to this one, and by this one; where the host can read it
        self._theirs, self._mine = told.unbind()
        self._arrival = torch.cuda.Event() if on_gpu else None  # of what others have told
        # On which that is exchanged: what else the call does until then need not wait for it.
        self._aside = torch.cuda.Stream(self.wire) if on_gpu else None
        self._being_read: list[Tensor] = []  # which nobody else is to have as long
        self.table = 0  # the number of the table among those of all groups, the same on all ranks
        self._call: str | None = None
        self._agreed: Exception | None = None

    def call(self, name: str) -> Group:
        """The context of one collective call.

        Raises
        ------
        RuntimeError
            Where an earlier call broke off between the ranks.
        """
        lost = _lost.get(self.process_group)
        if lost is not None:
            raise RuntimeError(
                f"{name} cannot be called: {lost}. What the shard holds is still there, as table.shard; make the "
                "process group anew without the lost ranks, and a table of these items in it"
            )
        self._call, self._agreed = name, None
        return self

    def __enter__(self) -> Group:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and error is not self._agreed:
            _lost[self.process_group] = (
                f"{self._call} broke off on rank {self.rank} ({type(error).__name__}), out of step with others"
            )
            error.add_note(f"gpuhash: rank {self.rank} of {self.size} left the collective call {self._call} by this")

    def split(self, keys: Tensor, seed: int, sample: _core.Sample | None = None) -> Split:
        """A batch by owner, this rank's own part last: it need not be sent. The next one after its ``counts``."""
        return Split(keys, self.size, seed, self.splitter, self.rank, sample)

    def open(self, counts: Sequence[int] | None, problem: Exception | None) -> Opened:
        """The first step of a call: tells each rank how many rows it gets. Waits, and raises, as ``finish_open``."""
        return self.finish_open(self.start_open(counts, problem))

    def start_open(
        self,
        counts: Split | Sequence[int] | None,
        problem: Exception | None,
        constant: int | None = None,
        columns: Sequence[str] = (),
    ) -> Opening:
        """Starts the first step of a call. Does not wait where the group is one of GPUs.

        Parameters
        ----------
        counts
            Rows for each rank; a split batch has as many as there are keys of each. None for none.
        problem
            What is wrong with this rank's arguments.
        constant
            The bits of the one value that all of this rank's keys have, if there is one.
        columns
            Those that the call is about, where they are named: part of its name, which is the same on all ranks.
        """
        if columns:
            self._call = f"{self._call} of {', '.join(columns)}"
        signature = zlib.crc32(f"{self.table} {self._call}".encode())
        has_constant = constant is not None
        given = [0] * self.size if counts is None or isinstance(counts, Split) else list(counts)
        told = None
        if isinstance(counts, Split) and problem is None:
            try:
                counts.tell([_FINE, signature, has_constant, constant or 0, counts.size], self._mine)
                told = self.mark()
                _ = counts.keys  # which a GPU sorts while the host launches what follows
            except Exception as error:
                problem = error
        if not isinstance(counts, Split) or problem is not None:
            status = _FINE if problem is None else _FAILED
            notes = [status, signature, has_constant, constant or 0, sum(given)]
            self._mine.copy_(torch.tensor([[count, *notes] for count in given], device="cpu"))
            told = self.mark()
        if self._aside is None or self._arrival is None:
            dist.all_to_all_single(self._theirs, self._mine, group=self.process_group)
        else:
            with torch.cuda.stream(self._aside):
                if told is not None:
                    told.wait()
                dist.all_to_all_single(self._theirs, self._mine, group=self.process_group)
                self._heard.copy_(self._told, non_blocking=True)
                self._arrival.record()
        return Opening(problem, signature)

    def finish_open(self, opening: Opening) -> Opened:
        """What all ranks have told. Waits, on a GPU for what was enqueued before ``start_open`` and not for more.

        Raises
        ------
        The problem of the first rank that has one, on all ranks; RuntimeError where the ranks have called different
        operations.
        """
        if self._arrival is not None:
            self._arrival.synchronize()
        theirs, mine = self._heard.tolist()
        receive, statuses, signatures, constants, bits, totals = zip(*theirs, strict=True)
        send = [row[0] for row in mine]
        if any(statuses):  # before the names: a rank with a problem may not know all of its call's
            self._raise_problems(opening.problem)
        if any(other != opening.signature for other in signatures):
            calls = self._gather_objects((self.table, self._call))
            raise self.on_all(
                RuntimeError(
                    "the ranks have called different operations or tables: "
                    + "; ".join(f"rank {rank}: table {table}, {call}" for rank, (table, call) in enumerate(calls))
                )
            )
        # Of ranks without keys the values are of no matter. All ranks know the same of all, and come to the same.
        values = {one if has else None for has, one, total in zip(constants, bits, totals, strict=True) if total}
        return Opened(send, list(receive), values.pop() if len(values) == 1 else None)

    def exchange(
        self,
        tensors: Sequence[Tensor],
        send: Sequence[int],
        receive: Sequence[int],
        into: Sequence[Tensor] | None = None,
    ) -> list[Sent]:
        """Starts to move rows: ``send[i]`` of each tensor, in order, to rank i, for ``receive[i]`` of its own.

        Returns
        -------
        What to ``finish``: a tensor for each, those of ``into`` if given, with the rows received, rank by rank.
        """
        sent = []
        for number, tensor in enumerate(tensors):
            there = tensor.to(self.wire)
            shape = (sum(receive), *tensor.shape[1:])
            target = torch.empty(shape, dtype=tensor.dtype, device=self.device) if into is None else into[number]
            arrived = target if target.device == self.wire else torch.empty_like(target, device=self.wire)
            work = dist.all_to_all_single(
                _for_wire(arrived),
                _for_wire(there),
                list(receive),
                list(send),
                group=self.process_group,
                async_op=True,
            )
            sent.append(Sent(work, there, arrived, target))
        return sent

    def finish(self, sent: Sequence[Sent]) -> list[Tensor]:
        """The tensors of ``exchange`` once they are there; on a GPU in the order of the current stream."""
        for each in sent:
            each.work.wait()
            if each.arrived is not each.target:
                each.target.copy_(each.arrived)
        return [each.target for each in sent]

    def agree(self, problem: Exception | None) -> None:
        """Goes on where no rank has a problem. Waits.

        Raises
        ------
        The problem of the first rank that has one, on all ranks.
        """
        worst = self._worst if problem is None else torch.full_like(self._worst, _FAILED)
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=self.process_group)
        if int(worst) != _FINE:
            self._worst.fill_(_FINE)
            self._raise_problems(problem)

    def start_reading(self, arrived: torch.cuda.Event | None, theirs: Sequence[Tensor]) -> None:
        """Starts to bring to the host what each other rank has told, a row each: other than zeros are problems.

        ``arrived``: when it is there; on a GPU, where nothing else that has been enqueued is waited for.
        """
        self._failed.fill_(0)
        if not theirs:
            return
        words = self._being_read = [row.reshape(-1)[:1] for row in theirs]
        if self._aside is None or self._arrival is None or arrived is None:
            self._read(words)
            return
        with torch.cuda.stream(self._aside):
            arrived.wait()
            self._read(words)
            self._arrival.record()

    def _read(self, words: Sequence[Tensor]) -> None:
        bits = (words[0] if len(words) == 1 else torch.cat(list(words))).view(torch.uint8)
        self._failed[: len(bits)].copy_(bits, non_blocking=self._aside is not None)

    def agree_on(self, problem: Exception | None) -> None:
        """As ``agree``, of what ``start_reading`` reads. Waits for it."""
        if self._arrival is not None:
            self._arrival.synchronize()
        self._being_read = []
        if problem is not None or any(self._failed.tolist()):
            self._raise_problems(problem)

    def mark(self) -> torch.cuda.Event | None:
        """What has been enqueued on the current stream; None on the host."""
        return torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None

    def tell_all(self, item: Any, problem: Exception | None = None) -> list[Any]:
        """A small Python object of each rank, in the order of ranks, for all of them. Waits; raises as ``agree``."""
        answers = self._gather_objects((item, problem is not None))
        if any(failed for _, failed in answers):
            self._raise_problems(problem)
        return [item for item, _ in answers]

    def _gather_objects(self, item: Any) -> list[Any]:
        items: list[Any] = [None] * self.size
        if self.wire.type == "cuda":
            with torch.cuda.device(self.wire):  # where PyTorch puts what it sends
                dist.all_gather_object(items, item, group=self.process_group)
        else:
            dist.all_gather_object(items, item, group=self.process_group)
        return items

    def _raise_problems(self, problem: Exception | None) -> None:
        mine = None if problem is None else (_kind_of(problem), _text_of(problem))
        told: dict[tuple[str, str], list[str]] = {}
        for rank, theirs in enumerate(self._gather_objects(mine)):
            if theirs is not None:
                told.setdefault(theirs, []).append(str(rank))
        kind = next(iter(told))[0]
        text = "; ".join(
            f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}: {'' if name == kind else name + ': '}{text}"
            for (name, text), ranks in told.items()
        )
        raise self.on_all(_ERRORS.get(kind, RuntimeError)(text)) from problem

    def on_all(self, error: Exception) -> Exception:
        """The error, which all ranks raise at this point, so that the group stays in step."""
        self._agreed = error
        return error


def _kind_of(problem: Exception) -> str:
    if isinstance(problem, torch.OutOfMemoryError):
        return "MemoryError"
    for kind in type(problem).__mro__:
        if kind.__name__ in _ERRORS:
            return kind.__name__
    return type(problem).__name__


def _text_of(problem: Exception) -> str:
    """The message; of a KeyError str() would be that in quotation marks."""
    return str(problem.args[0]) if isinstance(problem, KeyError) and problem.args else str(problem)


def _for_wire(tensor: Tensor) -> Tensor:
    """The same memory, of a dtype that all backends take."""
    if tensor.dtype != torch.int16:
        return tensor
    return tensor.view(torch.uint8).view(tensor.shape[0], 2 * math.prod(tensor.shape[1:]))


def check_member(group: Any) -> None:
    """ValueError where this process is not in the process group."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:  # what new_group gives to the others
        raise ValueError("this process is not in the process group: only its members make the table")


def backends_of(group: Any) -> dict[str, str]:
    """The backends of a process group by the type of device that they serve."""
    config = dist.get_backend_config(group)
    return dict(part.split(":") for part in config.split(",")) if ":" in config else {"cpu": config, "cuda": config}


def device_of(device: Any, group: Any) -> torch.device:
    """The device that a table is asked for, with its number; by default the group's.

    Raises
    ------
    ValueError, PlatformError
        For what is no device, is not there, or is out of the group's reach.
    """
    where = default_device(group) if device is None else torch.device(*parse_device(device))
    make_context(where)  # which knows the devices that are there
    if where.type == "cpu":
        where = torch.device("cpu")
    elif where.index >= torch.cuda.device_count():
        raise PlatformError(f"PyTorch has {torch.cuda.device_count()} GPUs here, and {where} is none of them")
    _wire_device(group, where)
    return where


def default_device(group: Any) -> torch.device:
    """PyTorch's current GPU where the group has NCCL, otherwise the host."""
    if backends_of(group).get("cuda") == "nccl" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def meeting_place(group: Any, device: torch.device) -> torch.device:
    """Where ranks hear from each other before they know each other's devices: on the host if the group has a backend
    for it, otherwise on this rank's own device.
    """
    return torch.device("cpu") if _serves_host(backends_of(group)) else device


def _serves_host(backends: dict[str, str]) -> bool:
    return "cpu" in backends and backends["cpu"] != "nccl"


def _wire_device(group: Any, device: torch.device) -> torch.device:
    """Where tensors are that the group's backends take."""
    backends = backends_of(group)
    if device.type == "cuda" and backends.get("cuda") != "gloo" and "cuda" in backends:
        return device
    if _serves_host(backends):
        return torch.device("cpu")
    raise ValueError(
        f"the table is on {device}, and the process group moves tensors of {' and '.join(backends)} alone, by "
        f"{' and '.join(sorted(set(backends.values())))}: make the table on a GPU, or the group with backend='gloo'"
    )
