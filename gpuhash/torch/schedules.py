"""The optimizers that train embeddings in ``backward()``, as PyTorch's learning-rate schedulers know optimizers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from gpuhash.optimizers import Optimizer

from .dispatch import keep_dynamo_out
from .embedding import _Rows

__all__ = ["FusedOptimizer"]

_NUMBERS = ("lr", "betas", "eps", "weight_decay")  # those that torch.optim has by the same names


class _Group(MutableMapping[str, Any]):
    """A group of parameters whose numbers are an optimizer's; what else a scheduler notes down is kept here."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.notes: dict[str, Any] = {"params": []}

    def _is_number(self, name: str) -> bool:
        return name in _NUMBERS and hasattr(self.optimizer, name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self.optimizer, name) if self._is_number(name) else self.notes[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if self._is_number(name):
            setattr(self.optimizer, name, value)
        else:
            self.notes[name] = value

    def __delitem__(self, name: str) -> None:
        del self.notes[name]

    def __iter__(self) -> Iterator[str]:
        yield from filter(self._is_number, _NUMBERS)
        yield from self.notes

    def __len__(self) -> int:
        return sum(1 for _ in self)


class FusedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """The optimizers of embeddings as one of ``torch.optim``: for ``torch.optim.lr_scheduler``.

    >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(FusedOptimizer(model), T_max=100)  # doctest: +SKIP

    It has a group for each optimizer, with its ``lr``, ``weight_decay``, ``eps`` and ``betas``; whoever sets one there,
    sets the optimizer's. The rows have trained in ``backward()`` already, so ``step()`` and ``zero_grad()`` do nothing.
    Schedulers ask for a ``step()`` before their own, as of any optimizer. ``state_dict()`` has the groups' numbers.

    Parameters
    ----------
    *parts
        Models, of which it takes the optimizers of all embeddings, or such optimizers.

    Raises
    ------
    TypeError
        For other objects.
    ValueError
        Where there is no optimizer, and for one whose ``lr`` is a function, which is a schedule already.
    """

    def __init__(self, *parts: torch.nn.Module | Optimizer) -> None:
        found: list[Optimizer] = []
        for part in parts:
            for optimizer in _optimizers_of(part):
                if all(optimizer is not each for each in found):
                    found.append(optimizer)
        if not found:
            raise ValueError(
                "there is no optimizer of embeddings in what was given: give models with a HashEmbedding or "
                "HashEmbeddingBag that has an optimizer of gpuhash.torch, or such optimizers"
            )
        for optimizer in found:
            if callable(optimizer.lr):
                raise ValueError(
                    f"lr={optimizer.lr!r} of {type(optimizer).__name__} is a schedule: give a number instead"
                )
        # PyTorch's constructor wants a parameter.
        self._is_made = False
        super().__init__([torch.nn.Parameter(torch.empty(0, dtype=torch.float32, device="cpu"))], {})
        self._is_made = True
        self.param_groups = [_Group(optimizer) for optimizer in found]
        self.defaults = {name: self.param_groups[0][name] for name in self.param_groups[0] if name in _NUMBERS}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: step() trains nothing."""
        if self.__dict__.get("_is_made", True):
            raise TypeError("a FusedOptimizer trains no parameters: give them to an optimizer of torch.optim")
        super().add_param_group(param_group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Nothing, but what the closure does: gives what that gives."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: rows have no gradients."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Sets the numbers of all groups. ValueError where there are not as many."""
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError(f"the state has {len(saved)} groups, and there are {len(self.param_groups)} optimizers")
        for group, given in zip(self.param_groups, saved, strict=True):
            group.update({name: value for name, value in given.items() if name != "params"})


def _optimizers_of(part: Any) -> list[Optimizer]:
    if isinstance(part, Optimizer):
        return [part]
    if isinstance(part, torch.nn.Module):
        modules = (module for module in part.modules() if isinstance(module, _Rows))
        return [module.optimizer for module in modules if module.optimizer is not None]
    raise TypeError(f"{part!r} was given, expected a model, or an optimizer of gpuhash.torch")


keep_dynamo_out([sys.modules[__name__]])
