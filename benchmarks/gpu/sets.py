"""unique, isin and factorize, for which frameworks sort."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial

import torch

import gpuhash
from benchmarks.markdown import count
from benchmarks.report import DISTINCT
from benchmarks.suite import Group, NotHereError, Session
from benchmarks.timing import Action, Timing, expect

from .data import PAIRS_8_8, counter, permutation, timed, timed_by_clock

try:
    import cupy
except ImportError:
    cupy = None

OPERATIONS = ("unique", "unique with inverse", "unique with counts", "isin", "factorize")
OF_FEW = ("unique", "unique with counts", "isin")  # in the suite of small batches

#: How many of n keys are distinct, by name.
DISTRIBUTIONS: dict[str, Callable[[int], int]] = {
    "1/16 distinct": lambda n: n // 16,
    DISTINCT: lambda n: n,
    "1000 distinct": lambda _: 1000,
}


class SetBench:
    """Keys, and as test elements as many keys as there are distinct ones, half of them among the keys."""

    def __init__(self, distribution: str, n: int) -> None:
        torch.manual_seed(1)
        distinct = DISTRIBUTIONS[distribution](n)
        numbers = permutation(n) if distribution == DISTINCT else torch.randint(0, distinct, (n,), device="cuda")
        self.keys = PAIRS_8_8.keys(numbers)
        # From the middle of the keys' numbers to as far beyond.
        self.tests = PAIRS_8_8.keys(torch.randperm(distinct, device="cuda").add_(distinct // 2))
        self.sorted_unique = torch.unique(self.keys)

    def check_unique(self) -> None:
        unique = gpuhash.unique(self.keys)
        expect(torch.equal(torch.sort(unique)[0], self.sorted_unique), "unique keys")

    def check_inverse(self, function: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Keys in order of first occurrence, and each key's place there."""
        unique, inverse = function(self.keys)
        expect(torch.equal(torch.sort(unique)[0], self.sorted_unique), "unique keys")
        expect(torch.equal(unique[inverse], self.keys), "the place of each key")
        first = torch.full((len(unique),), len(self.keys), dtype=torch.int64, device="cuda")
        first.scatter_reduce_(0, inverse, counter(0, len(self.keys)), "amin")
        expect((first[1:] > first[:-1]).all(), "the order of first occurrence")

    def check_counts(self) -> None:
        unique, counts = gpuhash.unique(self.keys, return_counts=True)
        ordered, order = torch.sort(unique)
        expect(torch.equal(ordered, self.sorted_unique), "unique keys")
        expect(torch.equal(counts[order], torch.unique(self.keys, return_counts=True)[1]), "counts of unique keys")

    def check_isin(self) -> None:
        expect(torch.equal(gpuhash.isin(self.keys, self.tests), torch.isin(self.keys, self.tests)), "isin")


def _unique_with_inverse(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    unique, inverse = gpuhash.unique(keys, return_inverse=True)
    return unique, inverse


def _codes_last(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, unique = gpuhash.factorize(keys)
    return unique, codes


def _ours(bench: SetBench, operation: str) -> Action:
    """The call of gpuhash, checked."""
    name = operation.split()[0]
    if not hasattr(gpuhash, name):
        raise NotHereError(f"gpuhash {gpuhash.__version__} has no {name}")
    if operation == "unique":
        bench.check_unique()
        return lambda: gpuhash.unique(bench.keys)
    if operation == "unique with inverse":
        bench.check_inverse(_unique_with_inverse)
        return lambda: gpuhash.unique(bench.keys, return_inverse=True)
    if operation == "unique with counts":
        bench.check_counts()
        return lambda: gpuhash.unique(bench.keys, return_counts=True)
    if operation == "isin":
        bench.check_isin()
        return lambda: gpuhash.isin(bench.keys, bench.tests)
    bench.check_inverse(_codes_last)
    return lambda: gpuhash.factorize(bench.keys)


def _torch(bench: SetBench, operation: str) -> Action | None:
    actions: dict[str, Action] = {
        "unique": lambda: torch.unique(bench.keys),
        "unique with inverse": lambda: torch.unique(bench.keys, return_inverse=True),
        "unique with counts": lambda: torch.unique(bench.keys, return_counts=True),
        "isin": lambda: torch.isin(bench.keys, bench.tests),
        "factorize": lambda: torch.unique(bench.keys, return_inverse=True),
    }
    return actions[operation]


def _cupy(bench: SetBench, operation: str) -> Action | None:
    if cupy is None:
        raise NotHereError("CuPy is not installed")
    # On the legacy default stream, as PyTorch is.
    keys, tests = cupy.from_dlpack(bench.keys), cupy.from_dlpack(bench.tests)

    actions: dict[str, Action] = {
        "unique": lambda: cupy.unique(keys),
        "unique with inverse": lambda: cupy.unique(keys, return_inverse=True),
        "unique with counts": lambda: cupy.unique(keys, return_counts=True),
        "isin": lambda: cupy.isin(keys, tests),
    }
    return actions.get(operation)


def sets(session: Session) -> list[Group]:
    """Beside torch and cupy."""
    n = 1 << (18 if session.quick else 25)
    measure = partial(timed, runs=5)
    return [_group(session, "unique", distribution, n, OPERATIONS, measure) for distribution in DISTRIBUTIONS]


def small_sets(session: Session) -> list[Group]:
    """Of distinct keys, by the host's clock, from an idle device to an idle one: what a caller waits for."""
    measure = partial(timed_by_clock, runs=21, warm_up=3)
    sizes = (10, 12) if session.quick else (10, 14, 17, 20, 22)
    return [_group(session, "unique-small", DISTINCT, 1 << size, OF_FEW, measure) for size in sizes]


def _group(
    session: Session,
    suite: str,
    distribution: str,
    n: int,
    operations: Iterable[str],
    measure: Callable[[Action], Timing],
) -> Group:
    contenders = {"gpuhash": _ours, "torch": _torch, "cupy": _cupy}

    def case(who: str, operation: str, bench: SetBench) -> None:
        action = contenders[who](bench, operation)
        if action is not None:
            pairs = len(bench.sorted_unique)
            session.report.add(suite, operation, who, measure(action), pairs=pairs, batch=n, keys=distribution)

    cases = {
        f"{operation}, {who}": partial(case, who, operation)
        for operation in session.wanted(operations)
        for who in contenders
    }
    return Group(f"{count(n)} keys, {distribution}", partial(_make, distribution, n), cases)


def _make(distribution: str, n: int) -> nullcontext[SetBench]:
    return nullcontext(SetBench(distribution, n))
