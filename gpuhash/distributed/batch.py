"""One rank's part of a collective call: its keys and values as tensors where the table is, and how it is answered."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash import _core
from gpuhash.arguments import (
    KeyOutOfRangeError,
    encode_keys,
    encode_values,
    wrong_device,
    wrong_dtype,
    wrong_key_shape,
    wrong_value_shape,
)
from gpuhash.arrays import NumPyFramework, Shape, framework_of, settle
from gpuhash.dtypes import to_python

from .rows import Layout, RowFormat
from .split import Split, stream_of
from .words import host_tensor, take_rows, to_numpy

_WORD_BYTES = 8


@dataclass
class Batch:
    """Keys of one rank, checked, and how their answers are given."""

    keys: Tensor  # [n, *key_shape], dense, where the table is
    shape: Shape  # of the batch: n is its product
    device: torch.device | None  # of the answers; None: NumPy arrays
    scalar: bool  # a single key, answered by Python's numbers
    split: Split | None = None  # of the keys by owner, where that has been begun
    outside: Any = None  # a single key that the dtype cannot hold, so that no table has it: ``keys`` has none

    def answer(self, tensor: Tensor, row: RowFormat, absent: int = 0) -> Any:
        """What the caller gets for ``[n, *row.shape]`` in the order of the keys.

        ``absent``: for a single key that no table has.
        """
        if self.outside is not None and not len(tensor):
            tensor = tensor.new_full((1, *row.shape), absent)
        shaped = tensor.view((*self.shape, *row.shape))
        if self.device is not None:
            return shaped.to(self.device)
        array = to_numpy(shaped, row.dtype)
        if not self.scalar or row.shape:
            return array
        return to_python(array.view("uint16") if row.dtype == "bfloat16" else array, row.dtype)


def look_for_keys(keys: Any, key: RowFormat, device: torch.device) -> Batch:
    """As ``take_keys``, of a lookup: no keys for a single one that the dtype cannot hold."""
    try:
        return take_keys(keys, key, device)
    except KeyOutOfRangeError:
        return Batch(key.empty(0, device), (), None, scalar=True, outside=keys)


def take_keys(keys: Any, key: RowFormat, device: torch.device) -> Batch:
    """The keys of a call.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As ``gpuhash.HashTable`` does; TypeError for arrays of other frameworks than PyTorch and NumPy.
    """
    framework = framework_of(keys)
    scalar = False
    if framework.python:
        array, scalar = encode_keys(keys, key.dtype, key.shape)
        tensor = host_tensor(array, key.dtype)
    else:
        tensor = _tensor_of(keys, key.dtype, "keys")
    shape = tuple(tensor.shape)
    if key.shape:
        if shape[-1:] != key.shape:
            raise wrong_key_shape(shape, key.shape)
        shape = shape[:-1]
    where = None if isinstance(framework, NumPyFramework) else tensor.device
    return Batch(_bring(tensor, device, "keys").reshape(math.prod(shape), *key.shape), shape, where, scalar)


@dataclass
class Values:
    """Values of one rank's batch, where the table is."""

    layout: Layout
    rows: Tensor  # [n, *layout.row.shape], dense; [1, ...] where all keys get one
    bits: int | None = None  # of the one row, as an int64, where it came from the host and has up to 8 bytes
    op: str | None = None  # by which those of one key are combined, if they may be

    def at(self, positions: Tensor) -> Values:
        """Those at positions of the batch."""
        return self if self.bits is not None else Values(self.layout, take_rows(self.rows, positions))


def take_values(
    given: Mapping[str, Any], batch: Batch, layout: Layout, device: torch.device, what: str = "values"
) -> Values:
    """The values of a call by name, of each column one for each key or one for all. Raises as ``take_keys``."""
    tensors = {}
    for name, field in layout.fields.items():
        label = f"{what} of {name!r}" if name else what
        tensors[name] = tensor = _values_of(given[name], field, label)
        if tensor.shape not in ((), field.shape, (*batch.shape, *field.shape)):
            raise wrong_value_shape(label, tuple(tensor.shape), batch.shape, field.shape)
    alike = all(tensors[name].shape in ((), field.shape) for name, field in layout.fields.items())
    if alike and layout.row.bytes <= _WORD_BYTES and all(each.device.type == "cpu" for each in tensors.values()):
        ones = {name: each.expand(layout.fields[name].shape).unsqueeze(0) for name, each in tensors.items()}
        one = layout.pack({name: each.contiguous() for name, each in ones.items()})
        return Values(layout, _bring(one, device, what), _bits_of(one, layout.row))
    rows = {}
    for name, field in layout.fields.items():
        each = _bring(tensors[name], device, f"{what} of {name!r}" if name else what)
        expanded = each.expand((*batch.shape, *field.shape))
        rows[name] = expanded.reshape(len(batch.keys), *field.shape).contiguous()
    return Values(layout, layout.pack(rows))


def _bits_of(one: Tensor, row: RowFormat) -> int:
    raw = row.words(one).reshape(-1).view(torch.uint8).numpy().tobytes()
    return int.from_bytes(raw.ljust(_WORD_BYTES, b"\0"), sys.byteorder, signed=True)


def _values_of(values: Any, field: RowFormat, what: str) -> Tensor:
    if framework_of(values).python:
        return host_tensor(encode_values(values, field.dtype, field.shape, what), field.dtype)
    return _tensor_of(values, field.dtype, what)


def _tensor_of(array: Any, dtype: str, what: str) -> Tensor:
    """An array of PyTorch or NumPy, or a column, of exactly the dtype, as a tensor where it lies."""
    framework = framework_of(array)
    if framework.name == "torch":
        stream = stream_of(array) if array.device.type == "cuda" else None
        given = _core.borrow(array, stream).dtype  # which refuses what is no plain tensor
    elif isinstance(framework, NumPyFramework):
        array = np.asarray(settle(array)[0])
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
        raise wrong_device(what, str(tensor.device), str(device))
    return tensor.to(device)
