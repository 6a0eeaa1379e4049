"""One collective call on one rank: its keys on the way to their owners, and the answers on the way back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, Kind, Values, value_of
from .duplicates import Distinct
from .group import Group
from .split import Split, join, spans_of
from .words import from_words, row_bytes, take_rows, to_words, torch_dtype

BOOL = Kind("bool", ())
INT64 = Kind("int64", ())

#: A batch, what is left of it without duplicates (None: it goes as it is), and values.
Prepared = tuple[Batch, Distinct | None, Values | None]


class Call:
    """One collective call on this rank: the keys that it serves as an owner, and its own batch's way back.

    Parameters
    ----------
    group
        The group, inside of its ``call``.
    seed
        Of the owners' hash.
    prepare
        Checks this rank's arguments, and gives the batch, what is left of it without duplicates (or None), and values
        (or None). What it raises, all ranks raise.
    kinds
        Of keys and, where there are some, values.
    """

    def __init__(
        self,
        group: Group,
        seed: int,
        prepare: Callable[[], Prepared],
        kinds: Sequence[Kind],
    ) -> None:
        self._group, self._kinds = group, kinds
        problem, split, room, values = None, None, None, None
        try:
            self.batch, self._distinct, values = prepare()
            keys = self.batch.keys
            if self._distinct is not None:
                keys, values = self._distinct.keys, self._distinct.values
                self.batch.split = None  # the splitter is free
            split = group.split(keys, seed) if self.batch.split is None else self.batch.split
            if values is not None and (values.bits is None or split.merges):
                room = split.room_for(values.rows)
        except Exception as error:
            problem = error
        constant = None if values is None or room is not None else values.bits
        opening = group.start_open(split, problem, constant)
        sent = []
        if opening.problem is None:
            assert split is not None
            sent.append(_words(split.keys, kinds[0]))  # while the ranks hear from each other
            if room is not None:
                assert values is not None
                sent.append(_in_order(split, values, kinds[1], room))
        opened = group.finish_open(opening)
        assert split is not None
        self._split = split
        if len(kinds) > 1 and opened.constant is not None:
            del sent[1:]  # all ranks have the one value
        elif len(kinds) > 1 and len(sent) == 1:
            assert values is not None
            words = _words(values.rows, kinds[1])
            sent.append(words.expand(split.rows, *words.shape[1:]).contiguous())
        self._constant = opened.constant
        # This rank's own part stays here: it comes last in what is sorted, and is none of what ranks send each other.
        self._own = opened.send[group.rank]
        self._send, self._receive = self._spans(opened.send), self._spans(opened.receive)
        self._others = sum(self._send)
        self._exchange = group.exchange([rows[: self._others] for rows in sent], self._send, self._receive)
        self._own_rows = [rows[self._others : self._others + self._own] for rows in sent]
        self._counts = _without(opened.receive, group.rank)  # of the keys that come, rank by rank
        self._compact: dict[int, Tensor] = {}

    def receive(self) -> None:
        """Waits until the keys are there, on a GPU in the order of the current stream."""
        _ = self._arrived

    @functools.cached_property
    def _arrived(self) -> list[Tensor]:
        """Rows of keys and values that the other ranks sent, with gaps between the ranks': anything may be there."""
        return self._group.finish(self._exchange)

    @property
    def keys(self) -> Tensor:
        """The keys that this rank serves, ``[m, *key_shape]``: rank by rank, each in the order of its batch."""
        return self._without_gaps(0)

    @property
    def values(self) -> Tensor:
        """Of ``keys``, ``[m, *value_shape]``, or ``[*value_shape]``: the same for all."""
        if self._constant is not None:
            return value_of(self._constant, self._kinds[1], self._group.device)
        return self._without_gaps(1)

    def _without_gaps(self, column: int) -> Tensor:
        if column not in self._compact:
            spans = self._arrived[column].split(self._receive)
            parts = [part[:count] for part, count in zip(spans, self._counts, strict=True)]
            parts[self._group.rank] = self._own_rows[column]
            kind, some = self._kinds[column], [part for part in parts if len(part)]
            rows = some[0] if len(some) == 1 else torch.cat(parts)
            self._compact[column] = from_words(rows, kind.dtype, kind.shape)
        return self._compact[column]

    @property
    def owners(self) -> Tensor:
        """The rank that owns each key of the batch, int64 ``[n]``."""
        owners = self._split.owners.to(torch.int64)
        if self._distinct is not None and self._distinct.inverse is not None:
            owners = owners.index_select(0, self._distinct.inverse)
        return owners

    def serve(self, work: Callable[[], Any], kinds: Sequence[Kind] = ()) -> list[Tensor]:
        """Does this owner's work, and brings the answers back. After ``receive``.

        Parameters
        ----------
        work
            Gives the answers to ``keys``, ``[m, *shape]`` each. What it raises, all ranks raise.
        kinds
            Of the answers: of one kind, or of any kind and a mask. Where there are none, nothing is brought back.

        Returns
        -------
        The answers to what this rank has sent, ``[n or distinct keys, *shape]``, in that order.
        """
        answers, problem = attempt(work)
        if not kinds:
            self._group.agree(problem)
            return []
        sent, returned = [], self._room_for_answers(kinds)
        if problem is None:
            sizes = list(self._counts)
            sizes[self._group.rank] = self._own
            for answer, kind, target in zip(answers, kinds, returned, strict=True):
                parts = list(_words(answer, kind).split(sizes))
                _words(target, kind)[self._others :] = parts[self._group.rank]
                parts[self._group.rank] = parts[self._group.rank][:0]
                sent.append(join(parts, self._receive))
        in_order = self._bring_back(sent, returned, kinds, problem, once=self._split.merges)
        self.settle()
        return in_order

    def look_up(
        self, work: Callable[[Tensor, list[Tensor]], Any], kinds: Sequence[Kind], *, settle: bool = True
    ) -> list[Tensor]:
        """As ``serve``, of what changes nothing: ``work(keys, answers)`` fills answers ``[k, *shape]`` to keys ``[k,
        *key_shape]``. This rank's own keys are looked up while those of the others are on their way. Without
        ``settle`` that is still to be called.
        """
        returned = self._room_for_answers(kinds)

        def look(rows: Tensor, answers: list[Tensor]) -> list[Tensor]:
            if len(rows):
                work(from_words(rows, self._kinds[0].dtype, self._kinds[0].shape), answers)
            return answers

        problem = attempt(lambda: look(self._own_rows[0], [answers[self._others :] for answers in returned]))[1]
        self.receive()
        answers: list[Tensor] | None = None
        if problem is None:
            answers, problem = attempt(lambda: look(self._arrived[0], self._answers(torch.empty, kinds)))
        sent = [] if answers is None else [_words(rows, kind) for rows, kind in zip(answers, kinds, strict=True)]
        in_order = self._bring_back(sent, returned, kinds, problem)
        if settle:
            self.settle()
        return in_order

    def settle(self) -> None:
        """Waits until all ranks have their answers. What one could not do, all raise: till then they are anything."""
        self._group.agree_on(self._problem)

    def _spans(self, counts: Sequence[int]) -> list[int]:
        """Rows from where each rank's part begins to where the next one's does. This rank's own is none of them."""
        spans = spans_of(counts)
        spans[self._group.rank] = 0
        return spans

    def _answers(self, make: Callable[..., Tensor], kinds: Sequence[Kind]) -> list[Tensor]:
        """Tensors for answers to the keys that have come, with gaps."""
        return [_tensor(make, sum(self._receive), kind, self._group.device) for kind in kinds]

    def _room_for_answers(self, kinds: Sequence[Kind]) -> list[Tensor]:
        """Tensors for those to this rank's keys, in the order of their owners: this rank's own ones are the last."""
        return [_tensor(torch.empty, self._others + self._own, kind, self._group.device) for kind in kinds]

    def _bring_back(
        self,
        sent: list[Tensor],
        returned: list[Tensor],
        kinds: Sequence[Kind],
        problem: Exception | None,
        *,
        once: bool = False,
    ) -> list[Tensor]:
        """Words of answers, with gaps as the keys came, to those that asked. ``once``: they are a mask, and of keys
        that were merged one gets what it says.
        """
        if problem is not None:  # what is sent is of no use to anybody, and keeps the ranks in step
            sent = [_words(answer, kind) for answer, kind in zip(self._answers(torch.zeros, kinds), kinds, strict=True)]
        words = [_words(answer, kind) for answer, kind in zip(returned, kinds, strict=True)]
        # In the gap behind each part of the last kind the owner says whether it has a problem.
        for row in _ends(self._receive):
            sent[-1][row].fill_(problem is not None)  # assigning a number to the row would wait for the GPU
        exchange = self._group.exchange(sent, self._receive, self._send, [rows[: self._others] for rows in words])
        self._group.finish(exchange)
        arrived = self._group.mark()
        if once:
            in_order = [self._split.gather_mask(words[0])]
        else:
            mask = words[1] if len(words) > 1 else None
            in_order = [rows for rows in self._split.gather(words[0], mask) if rows is not None]
        self._problem = problem
        self._group.start_reading(arrived, [words[-1][row] for row in _ends(self._send)])
        return [from_words(rows, kind.dtype, kind.shape) for rows, kind in zip(in_order, kinds, strict=True)]

    def for_all(self, answers: Tensor) -> Tensor:
        """Answers for each key of the batch, where duplicates get what their key got."""
        if self._distinct is None or self._distinct.inverse is None:
            return answers
        return take_rows(answers, self._distinct.inverse)

    def for_one(self, mask: Tensor) -> Tensor:
        """A mask for each key of the batch, where one of a key's duplicates gets what the key got, the others False."""
        if self._distinct is None or self._distinct.positions is None:
            return mask
        spread = torch.zeros(len(self.batch.keys), dtype=torch.bool, device=mask.device)
        return spread.index_copy_(0, self._distinct.positions, mask)


def _in_order(split: Split, values: Values, kind: Kind, room: Tensor) -> Tensor:
    """Words of values, or of what those of keys that share a row come to, in the order of the owners."""
    if not split.merges:
        return split.scatter(_words(values.rows, kind), _words(room, kind))
    assert values.op is not None
    return _words(split.combine(values.rows, values.op, room), kind)


def _ends(spans: Sequence[int]) -> list[int]:
    """The last row of each part: it lies in the gap behind."""
    return [end - 1 for end, span in zip(itertools.accumulate(spans), spans, strict=True) if span]


def _words(tensor: Tensor, kind: Kind) -> Tensor:
    return to_words(tensor, tensor.shape[0], row_bytes(kind.dtype, kind.shape))


def _tensor(make: Callable[..., Tensor], count: int, kind: Kind, device: torch.device) -> Tensor:
    return make(count, *kind.shape, dtype=torch_dtype(kind.dtype), device=device)


def _without(counts: Sequence[int], rank: int) -> list[int]:
    """The counts of the other ranks, and none of this one."""
    return [0 if other == rank else count for other, count in enumerate(counts)]


def attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What the work gives, or raises, for all ranks to know before any goes on."""
    try:
        return work(), None
    except Exception as error:
        return None, error
