"""Groups, joins and takes of the shapes for which cuDF publishes figures; beside PyTorch where it has a way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

import gpuhash
from benchmarks.markdown import count
from benchmarks.suite import Group, Session
from benchmarks.timing import Action, expect

from .data import PAIRS_8_8, counter, permutation, timed

OPERATIONS = ("group", "join", "take")
#: Numbers of groups, of 2 * 10^7 rows.
_GROUPS = (1, 4, 100, 10_000, 1_000_000, 10_000_000)
#: How often a key of the right side of 10^5 rows comes. Three tenths of the left side have one.
_MULTIPLICITIES = (1, 10, 100, 1000, 10_000, 50_000)

#: name of a contender -> its call, checked
Contenders = dict[str, Callable[[], Action]]


def frames(session: Session) -> list[Group]:
    """Milliseconds of whole calls, which wait for the device, from the first kernel to the last."""
    scale = 100 if session.quick else 1
    groups = []
    if session.wants("group"):
        rows = 20_000_000 // scale
        groups += [
            _group(session, f"{count(rows)} rows, {count(n)} groups", partial(_by_one, rows, n)) for n in _GROUPS
        ]
        groups += [
            _group(session, f"{count(rows)} rows by three int32, {count(n)} groups", partial(_by_three, rows, n))
            for n in _GROUPS
        ]
    if session.wants("join"):
        rows = 10_000_000 // scale
        groups.append(_group(session, f"join of {count(rows)} unique keys with as many", partial(_join_unique, rows)))
        groups += [
            _group(session, f"join of 100,000 with 100,000, each key {count(m)} times", partial(_join_many, m))
            for m in _MULTIPLICITIES[: 3 if session.quick else None]
        ]
    if session.wants("take"):
        groups.append(_group(session, f"take of 4 columns by {count(rows)} indices", partial(_take, rows)))
    return groups


def _group(session: Session, label: str, make: Callable[[], Contenders]) -> Group:
    def case(who: str, contenders: Contenders) -> None:
        action = contenders[who]() if who in contenders else None
        if action is not None:
            session.report.quantity("frames", f"{label}, {who}", timed(action, runs=7).median * 1e3, "ms")

    return Group(label, lambda: nullcontext(make()), {who: partial(case, who) for who in ("gpuhash", "torch")})


def _ranks(rows: int, groups: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(0, groups, (rows,), device="cuda")


def _same(ours: tuple[torch.Tensor, torch.Tensor], theirs: tuple[torch.Tensor, torch.Tensor], what: str) -> None:
    """Both have (keys, answers); those of theirs ascend by the key."""
    keys, order = torch.sort(ours[0])
    expect(torch.equal(keys, theirs[0]), f"keys of {what}")
    expect(torch.equal(ours[1][order], theirs[1]), what)


def _by_one(rows: int, groups: int) -> Contenders:
    """Sums of int64 by an int64 key."""
    ranks = _ranks(rows, groups)
    keys, values = PAIRS_8_8.keys(ranks.clone()), torch.arange(rows, device="cuda") % 1000

    def of_torch() -> tuple[torch.Tensor, torch.Tensor]:
        distinct, codes = torch.unique(keys, return_inverse=True)
        return distinct, torch.zeros(len(distinct), dtype=torch.int64, device="cuda").index_add_(0, codes, values)

    def of_gpuhash() -> tuple[torch.Tensor, torch.Tensor]:
        found = gpuhash.group_by(keys)
        sums = found.agg(sum=values)["sum"]
        return found.keys, sums

    def checked() -> Action:
        _same(of_gpuhash(), of_torch(), "sums by group")
        return of_gpuhash

    return {"gpuhash": checked, "torch": lambda: of_torch}


def _by_three(rows: int, groups: int) -> Contenders:
    """Maxima of int32 by three int32 keys."""
    ranks = _ranks(rows, groups)
    keys = [(ranks // 10_000).to(torch.int32), (ranks // 100 % 100).to(torch.int32), (ranks % 100).to(torch.int32)]
    values = torch.randint(0, 2**31 - 1, (rows,), dtype=torch.int32, device="cuda")

    def of_gpuhash() -> tuple[Any, torch.Tensor]:
        found = gpuhash.group_by(keys)
        return found.keys, found.agg(max=values)["max"]

    def checked() -> Action:
        (first, second, third), most = of_gpuhash()
        got = first.long() * 10_000 + second * 100 + third
        expected = torch.full((groups,), -1, dtype=torch.int32, device="cuda").scatter_reduce_(0, ranks, values, "amax")
        there = torch.nonzero(expected >= 0)[:, 0]
        _same((got, most), (there, expected[there]), "maxima by group")
        return of_gpuhash

    return {"gpuhash": checked}


def _join_unique(rows: int) -> Contenders:
    """All pairs of two sides with the same unique keys, in other orders."""
    bits = rows.bit_length()
    order = permutation(1 << bits)
    left = PAIRS_8_8.keys(counter(0, rows))
    right = PAIRS_8_8.keys(order[order < rows])

    def of_torch() -> tuple[torch.Tensor, torch.Tensor]:
        keys, places = torch.sort(right)
        at = torch.searchsorted(keys, left).clamp_(max=rows - 1)
        pairs = torch.nonzero(keys[at] == left)[:, 0]
        return pairs, places[at[pairs]]

    def checked() -> Action:
        pairs = gpuhash.join(left, right)
        expect(torch.equal(pairs.left, counter(0, rows)), "left indices")
        expect(torch.equal(right[pairs.right], left), "right indices")
        return lambda: gpuhash.join(left, right)

    return {"gpuhash": checked, "torch": lambda: of_torch}


def _join_many(multiplicity: int) -> Contenders:
    rows = 100_000
    distinct = rows // multiplicity
    right = PAIRS_8_8.keys(counter(0, rows) % distinct)
    ranks = torch.randint(0, distinct, (rows,), device="cuda")
    left = PAIRS_8_8.keys(torch.where(torch.arange(rows, device="cuda") % 10 < 3, ranks, ranks + distinct))

    def checked() -> Action:
        pairs = gpuhash.join(left, right)
        expect(len(pairs.left) == rows // 10 * 3 * multiplicity, "the number of pairs")
        part = slice(0, None, max(len(pairs.left) // rows, 1))
        expect(torch.equal(left[pairs.left[part]], right[pairs.right[part]]), "the pairs")
        return lambda: gpuhash.join(left, right)

    return {"gpuhash": checked}


def _take(rows: int) -> Contenders:
    """Columns of int64, int32, float32 and float64, by indices without order."""
    index = torch.randint(0, rows, (rows,), device="cuda")
    columns = [
        torch.arange(rows, device="cuda").to(getattr(torch, d)) for d in ("int64", "int32", "float32", "float64")
    ]

    def of_torch() -> list[torch.Tensor]:
        return [column[index] for column in columns]

    def checked() -> Action:
        for one, other in zip(gpuhash.take(columns, index), of_torch(), strict=True):
            expect(torch.equal(one, other), "taken entries")
        return lambda: gpuhash.take(columns, index)

    return {"gpuhash": checked, "torch": lambda: of_torch}
