"""One rank's part of a collective call: its keys as tensors where the table is, and how it is answered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash import _core
from gpuhash.arrays.arguments import KeyOutOfRangeError, batch_shape, encode_keys, wrong_device, wrong_dtype
from gpuhash.arrays.dtypes import to_python
from gpuhash.arrays.frameworks import NumPyFramework, Shape, framework_of, settle
from gpuhash.arrays.memory import make_context
from gpuhash.keys.columns import KeyColumns

from .rows import RowFormat
from .split import Split, stream_of
from .words import host_tensor, to_numpy


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


def look_for_keys(keys: Any, key: RowFormat, columns: KeyColumns | None, device: torch.device) -> Batch:
    """As ``take_keys``, of a lookup: no keys for a single one that the dtype cannot hold."""
    try:
        return take_keys(keys, key, columns, device)
    except KeyOutOfRangeError:
        return Batch(key.empty(0, device), (), None, scalar=True, outside=keys)


def take_keys(keys: Any, key: RowFormat, columns: KeyColumns | None, device: torch.device) -> Batch:
    """The keys of a call; of several columns rows of bytes, in which these lie side by side.

    Raises
    ------
    TypeError, ValueError, OverflowError
        As ``gpuhash.HashTable`` does; TypeError for arrays of other frameworks than PyTorch and NumPy.
    """
    if columns is None or (parts := columns.parts(keys)) is None:
        return _take_array(keys, key, device, "keys")
    taken = [
        _take_array(part, RowFormat(dtype, ()), device, f"keys of {name!r}")
        for part, (name, dtype) in zip(parts, columns.dtypes, strict=True)
    ]
    first = taken[0]
    for each, (name, _) in zip(taken, columns.dtypes, strict=True):
        if each.shape != first.shape:
            raise ValueError(
                f"the keys of {name!r} have shape {each.shape} and those of {columns.names[0]!r} {first.shape}: give "
                "one number of each for each key"
            )
        if each.device != first.device:
            raise ValueError("key columns lie on different devices: move them to one")
    rows = key.empty(len(first.keys), device)
    if len(rows):
        stream = stream_of(rows)
        packed = [_core.borrow(each.keys, stream) for each in taken]
        _core.pack_columns(make_context(device), packed, _core.borrow(rows, stream), stream or 0)
    return Batch(rows, first.shape, first.device, first.scalar)


def unpack_keys(rows: Tensor, columns: KeyColumns) -> dict[str, Tensor]:
    """The columns of keys, ``[n]`` each, by their names."""
    parts = {name: RowFormat(dtype, ()).empty(len(rows), rows.device) for name, dtype in columns.dtypes}
    if len(rows):
        stream = stream_of(rows)
        arrays = [_core.borrow(part, stream) for part in parts.values()]
        columns.unpack(make_context(rows.device), _core.borrow(rows, stream), arrays, stream or 0)
    return parts


def _take_array(keys: Any, key: RowFormat, device: torch.device, what: str) -> Batch:
    """Keys of one array, as ``take_keys``."""
    framework = framework_of(keys)
    scalar = False
    if framework.python:
        array, scalar = encode_keys(keys, key.dtype, key.shape, what)
        tensor = host_tensor(array, key.dtype)
    else:
        tensor = tensor_of(keys, key.dtype, what)
    shape = batch_shape(tuple(tensor.shape), key.shape)
    where = None if isinstance(framework, NumPyFramework) else tensor.device
    return Batch(bring(tensor, device, what).reshape(math.prod(shape), *key.shape), shape, where, scalar)


def tensor_of(array: Any, dtype: str, what: str) -> Tensor:
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


def bring(tensor: Tensor, device: torch.device, what: str) -> Tensor:
    """The tensor on the table's device. ValueError where it lies on a GPU that is not this one."""
    if tensor.device == device:
        return tensor
    if tensor.device.type != "cpu":
        raise wrong_device(what, str(tensor.device), str(device))
    return tensor.to(device)
