"""One collective call on one rank: its keys on the way to their owners, and the answers on the way back."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .batch import Batch
from .duplicates import Distinct
from .group import Group
from .rows import RowFormat
from .split import Split, join, spans_of
from .values import Values
from .words import take_rows


@dataclass
class Prepared:
    """One rank's arguments, checked."""

    batch: Batch
    distinct: Distinct | None = None  # what is left of the batch without duplicates; None: it goes as it is
    values: Values | None = None
    columns: Sequence[str] = ()  # that the call is about, where these are named: all ranks have to say the same


class Call:
    """One collective call on this rank: the keys that it serves as an owner, and its own batch's way back.

    Parameters
    ----------
    group
        The group, inside of its ``call``.
    seed
        Of the owners' hash.
    prepare
        Checks this rank's arguments. What it raises, all ranks raise.
    key
        What one key is.
    """

    def __init__(self, group: Group, seed: int, prepare: Callable[[], Prepared], key: RowFormat) -> None:
        self._group = group
        problem, split, room, values = None, None, None, None
        columns: Sequence[str] = ()
        try:
            prepared = prepare()
            self.batch, self._distinct = prepared.batch, prepared.distinct
            keys, values, columns = self.batch.keys, prepared.values, prepared.columns
            if self._distinct is not None:
                keys, values = self._distinct.keys, self._distinct.values
                self.batch.split = None  # the splitter is free
            split = group.split(keys, seed) if self.batch.split is None else self.batch.split
            if values is not None and (values.bits is None or split.merges):
                room = split.room_for(values.rows)
        except Exception as error:
            problem = error
        constant = None if values is None or room is not None else values.bits
        opening = group.start_open(split, problem, constant, columns)
        sent = []
        if opening.problem is None:
            assert split is not None
            sent.append(key.words(split.keys))  # while the ranks hear from each other
            if room is not None:
                assert values is not None
                sent.append(_in_order(split, values, room))
        opened = group.finish_open(opening)
        assert split is not None
        self._split = split
        self._layout = None if values is None else values.layout
        self._formats = [key] if values is None else [key, values.layout.row]
        self._constant = opened.constant if values is not None else None
        if self._constant is not None:
            del sent[1:]  # all ranks have the one value
        elif values is not None and len(sent) == 1:
            words = values.layout.row.words(values.rows)
            sent.append(words.expand(split.rows, *words.shape[1:]).contiguous())
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
    def values(self) -> dict[str, Tensor] | None:
        """Of ``keys`` by name, ``[m, *shape]``, or ``[*shape]``: the same for all. None where there are none."""
        if self._layout is None:
            return None
        if self._constant is None:
            return self._layout.unpack(self._without_gaps(1))
        ones = self._layout.unpack(self._layout.row.of_bits(self._constant, self._group.device))
        return {name: one[0] for name, one in ones.items()}

    def _without_gaps(self, column: int) -> Tensor:
        if column not in self._compact:
            spans = self._arrived[column].split(self._receive)
            parts = [part[:count] for part, count in zip(spans, self._counts, strict=True)]
            parts[self._group.rank] = self._own_rows[column]
            some = [part for part in parts if len(part)]
            words = some[0] if len(some) == 1 else torch.cat(parts)
            self._compact[column] = self._formats[column].of_words(words)
        return self._compact[column]

    @property
    def owners(self) -> Tensor:
        """The rank that owns each key of the batch, int64 ``[n]``."""
        owners = self._split.owners.to(torch.int64)
        if self._distinct is not None and self._distinct.inverse is not None:
            owners = owners.index_select(0, self._distinct.inverse)
        return owners

    def serve(self, work: Callable[[], Any], formats: Sequence[RowFormat] = ()) -> list[Tensor]:
        """Does this owner's work, and brings the answers back. After ``receive``.

        Parameters
        ----------
        work
            Gives the answers to ``keys``, ``[m, *shape]`` each. What it raises, all ranks raise.
        formats
            Of the answers: of one, or of one and a mask. Where there are none, nothing is brought back.

        Returns
        -------
        The answers to what this rank has sent, ``[n or distinct keys, *shape]``, in that order.
        """
        answers, problem = attempt(work)
        if not formats:
            self._group.agree(problem)
            return []
        sent, returned = [], self._room_for_answers(formats)
        if problem is None:
            sizes = list(self._counts)
            sizes[self._group.rank] = self._own
            for answer, row, target in zip(answers, formats, returned, strict=True):
                parts = list(row.words(answer).split(sizes))
                row.words(target)[self._others :] = parts[self._group.rank]
                parts[self._group.rank] = parts[self._group.rank][:0]
                sent.append(join(parts, self._receive))
        in_order = self._bring_back(sent, returned, formats, problem, once=self._split.merges)
        self.settle()
        return in_order

    def look_up(
        self, work: Callable[[Tensor, list[Tensor]], Any], formats: Sequence[RowFormat], *, settle: bool = True
    ) -> list[Tensor]:
        """As ``serve``, of what changes nothing: ``work(keys, answers)`` fills answers ``[k, *shape]`` to keys ``[k,
        *key_shape]``. This rank's own keys are looked up while those of the others are on their way. Without
        ``settle`` that is still to be called.
        """
        returned = self._room_for_answers(formats)

        def look(rows: Tensor, answers: list[Tensor]) -> list[Tensor]:
            if len(rows):
                work(self._formats[0].of_words(rows), answers)
            return answers

        problem = attempt(lambda: look(self._own_rows[0], [answers[self._others :] for answers in returned]))[1]
        self.receive()
        answers: list[Tensor] | None = None
        if problem is None:
            answers, problem = attempt(lambda: look(self._arrived[0], self._answers(formats)))
        sent = [] if answers is None else [row.words(rows) for rows, row in zip(answers, formats, strict=True)]
        in_order = self._bring_back(sent, returned, formats, problem)
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

    def _answers(self, formats: Sequence[RowFormat]) -> list[Tensor]:
        """Tensors for answers to the keys that have come, with gaps."""
        return [row.empty(sum(self._receive), self._group.device) for row in formats]

    def _room_for_answers(self, formats: Sequence[RowFormat]) -> list[Tensor]:
        """Tensors for those to this rank's keys, in the order of their owners: this rank's own ones are the last."""
        return [row.empty(self._others + self._own, self._group.device) for row in formats]

    def _bring_back(
        self,
        sent: list[Tensor],
        returned: list[Tensor],
        formats: Sequence[RowFormat],
        problem: Exception | None,
        *,
        once: bool = False,
    ) -> list[Tensor]:
        """Words of answers, with gaps as the keys came, to those that asked. ``once``: they are a mask, and of keys
        that were merged one gets what it says.
        """
        if problem is not None:  # what is sent is of no use to anybody, and keeps the ranks in step
            answers = [rows.zero_() for rows in self._answers(formats)]
            sent = [row.words(rows) for rows, row in zip(answers, formats, strict=True)]
        words = [row.words(answer) for answer, row in zip(returned, formats, strict=True)]
        # In the gap behind each part of the last answer the owner says whether it has a problem.
        for end in _ends(self._receive):
            sent[-1][end].fill_(problem is not None)  # assigning a number to the row would wait for the GPU
        exchange = self._group.exchange(sent, self._receive, self._send, [rows[: self._others] for rows in words])
        self._group.finish(exchange)
        arrived = self._group.mark()
        if once:
            in_order = [self._split.gather_mask(words[0])]
        else:
            mask = words[1] if len(words) > 1 else None
            in_order = [rows for rows in self._split.gather(words[0], mask) if rows is not None]
        self._problem = problem
        self._group.start_reading(arrived, [words[-1][end] for end in _ends(self._send)])
        return [row.of_words(rows) for rows, row in zip(in_order, formats, strict=True)]

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


def _in_order(split: Split, values: Values, room: Tensor) -> Tensor:
    """Words of values, or of what those of keys that share a row come to, in the order of the owners."""
    row = values.layout.row
    if not split.merges:
        return split.scatter(row.words(values.rows), row.words(room))
    assert isinstance(values.op, str)
    return row.words(split.combine(values.rows, values.op, room))


def _ends(spans: Sequence[int]) -> list[int]:
    """The last row of each part: it lies in the gap behind."""
    return [end - 1 for end, span in zip(itertools.accumulate(spans), spans, strict=True) if span]


def _without(counts: Sequence[int], rank: int) -> list[int]:
    """The counts of the other ranks, and none of this one."""
    return [0 if other == rank else count for other, count in enumerate(counts)]


def attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What the work gives, or raises, for all ranks to know before any goes on."""
    try:
        return work(), None
    except Exception as error:
        return None, error
