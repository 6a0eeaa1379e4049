"""Keys as PyTorch tensors, uniform or skewed, of which each has a number that a table can be checked by."""

from __future__ import annotations

import torch
from torch import Tensor

ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # makes keys of numbers, one to one, that have no pattern


def numbers(spread: float | None, count: int, universe: int, device: torch.device, seed: int) -> Tensor:
    """Random numbers below ``universe``, int64 ``[count]``: uniform, or by Zipf's law with this exponent."""
    generator = torch.Generator(device).manual_seed(seed)
    if spread is None:
        return torch.randint(universe, (count,), device=device, generator=generator)
    drawn = torch.rand(count, device=device, generator=generator, dtype=torch.float64)
    power = 1 - spread
    ranks = ((universe**power - 1) * drawn + 1) ** (1 / power)
    return (ranks.to(torch.int64) - 1).clamp(0, universe - 1)


def keys_of(drawn: Tensor) -> Tensor:
    return drawn * ODD
