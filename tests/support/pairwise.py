"""Chooses a few combinations of a test's parameters: every two values that meet in some case meet in a chosen one.

A fault that shows with one value, or with two together, shows in the few as well; one that needs three may not. So the
whole product runs with ``--slow``.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest

from support.frameworks import Framework
from support.gpu_cases import needs_gpu

Pair = tuple[tuple[str, str], tuple[str, str]]


def values_of(item: pytest.Function) -> dict[str, str]:
    """The parameters of a case by their names; several frameworks that are one parameter are several values."""
    values: dict[str, str] = {}
    for name, value in item.callspec.params.items():
        is_several = isinstance(value, tuple) and all(isinstance(part, Framework) for part in value)
        values |= {f"{name} {i}": repr(part) for i, part in enumerate(value if is_several else [value])}
    return values


def pairs_of(values: dict[str, str]) -> set[Pair]:
    """A case of one parameter pairs it with itself."""
    named = sorted(values.items())
    return set(itertools.combinations(named, 2)) or {(each, each) for each in named}


def covering(cases: Sequence[set[Pair]]) -> list[int]:
    """Positions of the chosen cases, ascending. The one with the most pairs that are still missing is taken next."""
    missing = set().union(*cases)
    heap = [(-len(pairs), position) for position, pairs in enumerate(cases)]
    heapq.heapify(heap)
    chosen = []
    while missing:
        known, position = heap[0]
        gain = -len(cases[position] & missing)
        if gain != known:  # it had more when it was counted last
            heapq.heapreplace(heap, (gain, position))
            continue
        heapq.heappop(heap)
        chosen.append(position)
        missing -= cases[position]
    return sorted(chosen)


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Those items of tests with the mark ``pairwise`` that are not chosen; with and without a GPU by themselves."""
    groups: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("pairwise"):
            on_gpu = tuple((name, repr(value)) for name, value in item.callspec.params.items() if needs_gpu(value))
            groups[item.path, item.cls, item.originalname, on_gpu].append(item)
    unused: set[pytest.Item] = set()
    for group in groups.values():
        cases = [pairs_of(values_of(item)) for item in group]
        chosen = set(covering(cases))
        unused.update(item for position, item in enumerate(group) if position not in chosen)
    return unused
