"""Optimizers that ``HashEmbedding`` runs with the gradients: one pass over the rows that have one.

``gpuhash.torch`` and ``gpuhash.tensorflow`` both have these classes.

Each keeps its state in columns of the table beside the weights, so it grows, moves and is saved with them. Only rows
that have a gradient change, as with PyTorch's optimizers on sparse gradients: the running means of the others stay as
they are. All arithmetic is in float32.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeAlias
from weakref import WeakSet

from . import _core
from .arrays.arguments import flag_of
from .tables.named_columns import Column

__all__ = ["LAMB", "SGD", "Adagrad", "Adam", "Optimizer", "RowWiseAdagrad"]

_MOST_SEEDS = 1 << 64
_NUMBERS = ("lr", "weight_decay", "eps", "initial_accumulator_value")
_MOST_OF_ROW = 1024  # kMostOfRow of libgpuhash

#: A learning rate, or what gives it for the number of steps that have been made, 0 before the first one.
Rate: TypeAlias = float | Callable[[int], float]


class Watcher(Protocol):
    """Who wants to know of new numbers."""

    def optimizer_changed(self) -> None: ...


@dataclass
class Optimizer(ABC):
    """What all of them have.

    Parameters
    ----------
    lr
        The learning rate, 0 or more. May be set at any time, as by a schedule; the next step goes by it. Or a function
        that gives it for the number of steps that have been made, 0 before the first one.
    weight_decay
        By how much the weights of a row that has a gradient are drawn to zero: ``weight_decay * w`` is added to the
        gradient (an L2 penalty), as by the optimizers of ``torch.optim`` that have this name. Rows without a gradient
        do not decay.
    stochastic_rounding
        For weights of bfloat16: round to one of the two nearest numbers, to each as often as the exact result lies near
        it, so that steps that are smaller than what bfloat16 can hold count in the long run. Otherwise to the nearest.
    seed
        Of the random numbers for that. The same steps give the same weights.

    Notes
    -----
    Numbers may be those of NumPy, and tensors of one. Setting an attribute that there is not is an AttributeError, and
    so is setting ``initial_accumulator_value``, with which tables have been made.
    """

    lr: Rate
    weight_decay: float = field(default=0.0, kw_only=True)
    stochastic_rounding: bool = field(default=False, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    _name: ClassVar[str]
    _looks_at_whole_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.lr):
            self._check_rate(self.lr)
        self._check("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "a number that is 0 or more")
        self._check("seed", self.seed, 0 <= self.seed < _MOST_SEEDS, "an integer from 0 to 2^64 - 1")

    def _check(self, name: str, given: object, is_good: bool, expected: str) -> None:
        if not is_good:
            raise ValueError(f"{name}={given!r} was given to {type(self).__name__}, expected {expected}")

    def _check_rate(self, rate: float) -> None:
        self._check("lr", rate, 0 <= rate < math.inf, "a number that is 0 or more")

    @abstractmethod
    def columns(self, embedding_dim: int) -> dict[str, Column]:
        """What it keeps for each row."""

    def check_dim(self, embedding_dim: int) -> None:
        """ValueError where it cannot train rows of so many weights."""
        self._check(
            "embedding_dim",
            embedding_dim,
            not self._looks_at_whole_rows or embedding_dim <= _MOST_OF_ROW,
            f"up to {_MOST_OF_ROW}, as it looks at whole rows: take one that does not, such as Adagrad or Adam",
        )

    def rate(self, made: int) -> float:
        """The learning rate when so many steps have been made. Checked, where a function gives it."""
        if not callable(self.lr):
            return self.lr
        rate = self._number("lr(...)", self.lr(made))
        self._check_rate(rate)
        return rate

    def numbers(self, made: int | None = None) -> tuple[float, float, float, float, float]:
        """Learning rate when so many steps have been made, both betas, epsilon and weight decay; 0 for what it does not
        have. TypeError where the rate is a function, and nobody says how many.
        """
        if made is None and callable(self.lr):
            raise TypeError(
                f"lr={self.lr!r} of {type(self).__name__} is a function, and here only a number can be used"
            )
        beta1, beta2 = getattr(self, "betas", (0.0, 0.0))
        return self.rate(made or 0), beta1, beta2, getattr(self, "eps", 0.0), self.weight_decay

    def step(self, number: int) -> _core.OptimizerStep:
        """The step of that number, counted from 1."""
        return _core.OptimizerStep(self._name, *self.numbers(number - 1), number, self.stochastic_rounding, self.seed)

    # Graphs that have been traced do not ask Python for numbers, and have to be told them.

    def watch(self, watcher: Watcher) -> None:
        """Tells the watcher, for as long as it lives, when a number has been set."""
        self.__dict__.setdefault("_watchers", WeakSet()).add(watcher)

    def __setattr__(self, name: str, value: object) -> None:
        """Takes what it can take; where it raises nothing has changed."""
        kind, numbers = type(self).__name__, {each.name for each in fields(self)}
        if name not in numbers:
            raise AttributeError(
                f"{name}={value!r} was to be set of {kind}, which has no such number: it has "
                f"{', '.join(sorted(numbers))}"
            )
        is_made = numbers <= self.__dict__.keys()
        if is_made and name == "initial_accumulator_value":
            raise AttributeError(
                f"{name} of {kind} cannot be set, as tables have been made with it: make another one, and a new module"
            )
        value = self._plain(name, value)
        if is_made:
            replace(self, **{name: value})  # type: ignore[arg-type]  # raises where it cannot be
        super().__setattr__(name, value)
        for watcher in tuple(self.__dict__.get("_watchers", ())):
            watcher.optimizer_changed()

    def _plain(self, name: str, value: Any) -> Any:
        """A number of Python for what stands for one. TypeError."""
        if name == "stochastic_rounding":
            return flag_of(value, name)
        if name == "seed":
            return operator.index(value)
        if name == "betas":
            return tuple(self._number("betas", beta) for beta in value)
        if name == "lr" and callable(value) and not hasattr(value, "__float__"):
            return value
        return self._number(name, value) if name in _NUMBERS else value

    def _number(self, name: str, value: Any) -> float:
        if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
            raise TypeError(f"{name}={value!r} was given to {type(self).__name__}, expected a number")
        return float(value)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_watchers"}


@dataclass
class SGD(Optimizer):
    """``w -= lr * gradient``, as ``torch.optim.SGD`` on sparse gradients. Keeps nothing.

    Parameters as of ``Optimizer``.
    """

    _name = "sgd"

    def columns(self, embedding_dim: int) -> dict[str, Column]:
        return {}


@dataclass
class _Adaptive(Optimizer):
    """With a number beside the root that a step is divided by."""

    eps: float = field(default=1e-8, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        begin = getattr(self, "initial_accumulator_value", 0.0)
        for name, number in (("eps", self.eps), ("initial_accumulator_value", begin)):
            self._check(name, number, 0 <= number < math.inf, "a number that is 0 or more")


@dataclass
class Adagrad(_Adaptive):
    """As ``torch.optim.Adagrad`` on sparse gradients, without a decay of the rate.

    J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", JMLR
    12, 2011.

    Parameters
    ----------
    lr, weight_decay, stochastic_rounding, seed
        As of ``Optimizer``.
    eps
        Beside the root that a step is divided by.
    initial_accumulator_value
        What the sum of squares of a new row begins with.
    """

    initial_accumulator_value: float = field(default=0.0, kw_only=True)
    eps: float = field(default=1e-10, kw_only=True)
    _name = "adagrad"

    def columns(self, embedding_dim: int) -> dict[str, Column]:
        return {"sum": Column("float32", (embedding_dim,), self.initial_accumulator_value)}


@dataclass
class RowWiseAdagrad(_Adaptive):
    """Adagrad with one sum for each row, of its gradients' mean squares: 4 bytes of state per row.

    For rows of up to 1024 weights. Parameters as of ``Adagrad``.
    """

    initial_accumulator_value: float = field(default=0.0, kw_only=True)
    eps: float = field(default=1e-10, kw_only=True)
    _name = "row_wise_adagrad"
    _looks_at_whole_rows = True

    def columns(self, embedding_dim: int) -> dict[str, Column]:
        return {"sum": Column("float32", (), self.initial_accumulator_value)}


@dataclass
class _WithMeans(_Adaptive):
    """With the running means of a gradient and its square."""

    betas: tuple[float, float] = field(default=(0.9, 0.999), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        good = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        self._check("betas", self.betas, good, "two numbers in [0, 1)")

    def columns(self, embedding_dim: int) -> dict[str, Column]:
        return {name: Column("float32", (embedding_dim,)) for name in ("exp_avg", "exp_avg_sq")}


@dataclass
class Adam(_WithMeans):
    """As ``torch.optim.SparseAdam``: steps are counted for all rows together.

    D. P. Kingma, J. L. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.

    Parameters
    ----------
    lr, weight_decay, stochastic_rounding, seed
        As of ``Optimizer``.
    betas
        How much of the running means of the gradient and its square stays in each step.
    eps
        Beside the root that a step is divided by.
    """

    lr: Rate = 1e-3
    _name = "adam"


@dataclass
class LAMB(_WithMeans):
    """Adam whose step is scaled to the norm of the row's weights.

    Y. You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", ICLR 2020, algorithm 2, in
    which each row is a layer, and the norm is scaled by nothing. For rows of up to 1024 weights.

    Parameters
    ----------
    lr, stochastic_rounding, seed, betas, eps
        As of ``Adam``.
    weight_decay
        How much of the weights is added to a step before it is scaled.
    """

    lr: Rate = 1e-3
    eps: float = field(default=1e-6, kw_only=True)
    _name = "lamb"
    _looks_at_whole_rows = True
