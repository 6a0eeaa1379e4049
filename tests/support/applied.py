"""What a loop over a batch makes of a table's values, by NumPy: keys are numbers from 0 on, their values an array."""

from __future__ import annotations

import numpy as np

from support.first_seen import is_first
from support.samples import UFUNCS


def applied(
    before: np.ndarray, present: np.ndarray, draws: np.ndarray, values: np.ndarray, op: str
) -> tuple[np.ndarray, np.ndarray]:
    """What a loop in the order of the batch makes of the values of all keys, and its mask."""
    after = before.copy()
    mask = is_first(draws, len(before)) & ~present[draws]
    after[draws[mask]] = values[mask]
    if op in {"min", "max"} and after.dtype.kind == "f":  # -0.0 is less than 0.0, which NumPy takes for equal
        UFUNCS[op].at(ordered := in_order_of_bits(after), draws[~mask], in_order_of_bits(values[~mask]))
        return in_order_of_bits(ordered).view(after.dtype), mask
    UFUNCS[op].at(after, draws[~mask], values[~mask])
    return after, mask


def in_order_of_bits(numbers: np.ndarray) -> np.ndarray:
    """float32 as integers in the floats' order (IEEE 754's totalOrder), and these as the bits of the floats."""
    bits = numbers.view(np.int32).copy()
    bits[bits < 0] ^= np.int32(0x7FFFFFFF)
    return bits
