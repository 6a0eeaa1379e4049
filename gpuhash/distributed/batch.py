"""One rank's part of a collective call: its keys and values as tensors where the table is, and how it is answered."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash import _core, columns
from gpuhash.arguments import KeyOutOfRangeError, encode_keys, wrong_dtype
from gpuhash.arrays import ColumnFramework, Framework, NumPyFramework, Shape, framework_of
from gpuhash.dtypes import encode, to_python

from .split import Split
from .words import host_tensor, row_bytes, take_rows, to_numpy, to_words, torch_dtype

_WORD_BYTES = 8


@dataclass(frozen=True)
class Kind:
    """What one key or value is."""

    dtype: str
    shape: Shape


@dataclass
class Batch:
    """Keys of one rank, checked, and how their answers are given."""

    keys: Tensor  # [n, *key_shape], dense, where the table is
    shape: Shape  # of the batch: n is its product
    device: torch.device | None  # of the answers; None: NumPy arrays
    scalar: bool  # a single key, answered by Python's numbers
    split: Split | None = None  # of the keys by owner, where that has been begun
    outside: Any = None  # a single key that the dtype cannot hold, so that no table has it: ``keys`` has none

    def answer(self, tensor: Tensor, kind: Kind, absent: int = 0) -> Any:
        """What the caller gets for ``[n, *kind.shape]`` in the order of the keys.

        ``absent``: for a single key that no table has.
        """
        if self.outside is not None and not len(tensor):
            tensor = tensor.new_full((1, *kind.shape), absent)
        shaped = tensor.view((*self.shape, *kind.shape))
        if self.device is not None:
            return shaped.to(self.device)
        array = to_numpy(shaped, kind.dtype)
        if not self.scalar or kind.shape:
            return array
        return to_python(array.view("uint16") if kind.dtype == "bfloat16" else array, kind.dtype)


def look_for_keys(keys: Any, kind: Kind, device: torch.device) -> Batch:
    """As ``take_keys``, of a lookup: no keys for a single one that the dtype cannot hold."""
    try:
        return take_keys(keys, kind, device)
    except KeyOutOfRangeError:
        nothing = torch.empty((0, *kind.shape), dtype=torch_dtype(kind.dtype), device=device)
        return Batch(nothing, (), None, scalar=True, outside=keys)


def take_keys(keys: Any, kind: Kind, device: torch.device) -> Batch:
    """The keys of a call.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As ``gpuhash.HashTable`` does; TypeError for arrays of other frameworks than PyTorch and NumPy.
    """
    framework = framework_of(keys)
    scalar = False
    if framework.python:
        keys, scalar = encode_keys(keys, kind.dtype, kind.shape)
        tensor = host_tensor(keys, kind.dtype)
    else:
        tensor = _tensor_of(keys, framework, kind.dtype, "keys")
    shape = tuple(tensor.shape)
    if kind.shape:
        if shape[-1:] != kind.shape:
            raise ValueError(f"the keys have shape {shape}, expected one that ends with the key shape {kind.shape}")
        shape = shape[:-1]
    where = None if isinstance(framework, NumPyFramework) else tensor.device
    flat = _bring(tensor, device, "keys").reshape(math.prod(shape), *kind.shape)
    return Batch(flat, shape, where, scalar)


@dataclass
class Values:
    """Values of one rank's batch, where the table is."""

    rows: Tensor  # [n, *value_shape], dense; [1, *value_shape] where all keys get one
    bits: int | None = None  # of the one value, as an int64, where it came from the host and has up to 8 bytes
    op: str | None = None  # by which those of one key are combined, if they may be

    def at(self, positions: Tensor) -> Values:
        """Those at positions of the batch."""
        return self if self.bits is not None else Values(take_rows(self.rows, positions))


def take_values(values: Any, batch: Batch, kind: Kind, device: torch.device, what: str = "values") -> Values:
    """The values of a call, one for each key or one for all. Raises as ``take_keys``."""
    tensor = _values_of(values, kind, what)
    expected = (*batch.shape, *kind.shape)
    if tensor.shape in ((), kind.shape):
        size = row_bytes(kind.dtype, kind.shape)
        if tensor.device.type == "cpu" and size <= _WORD_BYTES:
            one = tensor.expand(kind.shape).contiguous()
            return Values(_bring(one.unsqueeze(0), device, what), _bits_of(one, size))
        tensor = _bring(tensor, device, what).expand(expected)
    elif tensor.shape != expected:
        raise ValueError(
            f"the {what} have shape {tuple(tensor.shape)}, expected {expected}, or {kind.shape} for all keys alike"
        )
    return Values(_bring(tensor, device, what).reshape(len(batch.keys), *kind.shape).contiguous())


def _bits_of(value: Tensor, size: int) -> int:
    raw = to_words(value, 1, size).reshape(-1).view(torch.uint8).numpy().tobytes()
    return int.from_bytes(raw.ljust(_WORD_BYTES, b"\0"), sys.byteorder, signed=True)


def value_of(bits: int, kind: Kind, device: torch.device) -> Tensor:
    """The value of these bits, ``[*kind.shape]``, without a copy from the host."""
    word = torch.full((1,), bits, dtype=torch.int64, device=device)
    return word.view(torch.uint8)[: row_bytes(kind.dtype, kind.shape)].view(torch_dtype(kind.dtype)).view(kind.shape)


def _values_of(values: Any, kind: Kind, what: str) -> Tensor:
    framework = framework_of(values)
    if not framework.python:
        return _tensor_of(values, framework, kind.dtype, what)
    array = encode(values, kind.dtype, what)
    if array.shape == (0,):
        array = array.reshape(0, *kind.shape)
    return host_tensor(array, kind.dtype)


def _tensor_of(array: Any, framework: Framework, dtype: str, what: str) -> Tensor:
    """An array of PyTorch or NumPy, or a column, of exactly the dtype, as a tensor where it lies."""
    if framework.name == "torch":
        stream = framework.stream(array, array.device.index) if array.device.type == "cuda" else None
        given = _core.borrow(array, stream).dtype  # which refuses what is no plain tensor
    elif isinstance(framework, NumPyFramework):
        array = columns.to_numpy(array) if isinstance(framework, ColumnFramework) else np.asarray(array)
        given = _core.borrow(array).dtype
    else:
        raise TypeError(
            f"the {what} are a {type(array).__name__}, and distributed tables take PyTorch's tensors, NumPy arrays and "
            "lists: convert it to one of these"
        )
    if given != dtype:
        raise wrong_dtype(what, framework, given, dtype)
    if framework.name == "torch":
        tensor: Tensor = array.contiguous()
        return tensor
    return host_tensor(array, dtype)


def _bring(tensor: Tensor, device: torch.device, what: str) -> Tensor:
    if tensor.device == device:
        return tensor
    if tensor.device.type != "cpu":
        raise ValueError(f"the {what} are on {tensor.device} and the table is on {device}: move one to the other")
    return tensor.to(device)
