"""One collective call on one rank: its keys on the way to their owners, and the answers on the way back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, Kind, Values, value_of
from .duplicates import Distinct
from .group import Group
from .split import Split, compact, spans_of, spread
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
        self._group = group
        problem, sent, split, counts, values = None, [], None, None, None
        try:
            self.batch, self._distinct, values = prepare()
            keys = self.batch.keys
            if self._distinct is not None:
                keys, values = self._distinct.keys, self._distinct.values
            split = self.batch.split if self._distinct is None else None
            if split is None:
                self.batch.split = None  # the splitter is free
                split = Split(keys, group.size, seed, group.splitter)
            sent = [_words(split.keys, kinds[0])]
            if values is not None and values.bits is None:
                sent.append(split.scatter(_words(values.rows, kinds[1])))
            counts = split.counts
        except Exception as error:
            problem = error
        constant = None if values is None else values.bits
        opened = group.open(counts, problem, constant)
        assert split is not None
        self._split, self._kinds = split, kinds
        self._counts = opened.receive  # of the keys that came, rank by rank
        self._send, self._receive = spans_of(opened.send), spans_of(opened.receive)
        if len(kinds) > 1 and opened.constant is not None:
            del sent[1:]  # all ranks have the one value
        elif len(kinds) > 1 and len(sent) == 1:
            assert values is not None
            words = _words(values.rows, kinds[1])
            sent.append(words.expand(split.rows, *words.shape[1:]).contiguous())
        sent = [rows[: sum(self._send)] for rows in sent]
        self._sent_keys = sent[0]
        self._exchange = group.exchange(sent, self._send, self._receive)
        self._constant = opened.constant
        self._compact: dict[int, Tensor] = {}

    def receive(self) -> None:
        """Waits until the keys are there, on a GPU in the order of the current stream."""
        _ = self._arrived

    @functools.cached_property
    def _arrived(self) -> list[Tensor]:
        """Rows of keys and values that this rank serves, with gaps between the ranks': anything may be there."""
        return self._group.finish(*self._exchange)

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
            kind, rows = self._kinds[column], compact(self._arrived[column], self._counts)
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
            Of the answers; where there are none, nothing is brought back.

        Returns
        -------
        The answers to what this rank has sent, ``[n or distinct keys, *shape]``, in that order.
        """
        answers, problem = attempt(work)
        if not kinds:
            self._group.agree(problem)
            return []
        sent = []
        if problem is None:
            words = [_words(answer, kind) for answer, kind in zip(answers, kinds, strict=True)]
            sent = [spread(rows, self._counts) for rows in words]
        return self._bring_back(sent, kinds, problem)

    def look_up(self, work: Callable[[Tensor, list[Tensor]], Any], kinds: Sequence[Kind]) -> list[Tensor]:
        """As ``serve``, of what changes nothing: ``work(keys, answers)`` fills answers ``[k, *shape]`` to keys ``[k,
        *key_shape]``. This rank's own keys are looked up while those of the others are on their way.
        """
        rank, key = self._group.rank, self._kinds[0]
        begin, first = sum(self._receive[:rank]), sum(self._send[:rank])
        end = begin + self._receive[rank]
        answers: list[Tensor] = []

        def look(rows: Tensor, start: int) -> None:
            if len(rows):
                parts = [answer[start : start + len(rows)] for answer in answers]
                work(from_words(rows, key.dtype, key.shape), parts)

        def look_for_own() -> None:
            answers.extend(self._no_answers(torch.empty, kinds))
            look(self._sent_keys[first : first + end - begin], begin)

        def look_for_others() -> None:
            look(self._arrived[0][:begin], 0)
            look(self._arrived[0][end:], end)

        problem = attempt(look_for_own)[1]
        self.receive()
        if problem is None:
            problem = attempt(look_for_others)[1]
        sent = [] if problem else [_words(answer, kind) for answer, kind in zip(answers, kinds, strict=True)]
        return self._bring_back(sent, kinds, problem)

    def _no_answers(self, make: Callable[..., Tensor], kinds: Sequence[Kind]) -> list[Tensor]:
        """Tensors for answers to all keys that have come, with gaps."""
        count, device = sum(self._receive), self._group.device
        return [make(count, *kind.shape, dtype=torch_dtype(kind.dtype), device=device) for kind in kinds]

    def _bring_back(self, sent: list[Tensor], kinds: Sequence[Kind], problem: Exception | None) -> list[Tensor]:
        """Rows of answers, with gaps as the keys came, to those that asked."""
        if problem is not None:  # what is sent is of no use to anybody, and keeps the ranks in step
            nothing = self._no_answers(torch.zeros, kinds)
            sent = [_words(answer, kind) for answer, kind in zip(nothing, kinds, strict=True)]
        exchange = self._group.exchange(sent, self._receive, self._send)
        agreement = self._group.start_agreement(problem)
        in_order = [
            from_words(self._split.gather(rows), kind.dtype, kind.shape)
            for rows, kind in zip(self._group.finish(*exchange), kinds, strict=True)
        ]
        self._group.agree(problem, agreement)  # the host waits, when all that the GPU is to do has been enqueued
        return in_order

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


def _words(tensor: Tensor, kind: Kind) -> Tensor:
    return to_words(tensor, tensor.shape[0], row_bytes(kind.dtype, kind.shape))


def attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What the work gives, or raises, for all ranks to know before any goes on."""
    try:
        return work(), None
    except Exception as error:
        return None, error
