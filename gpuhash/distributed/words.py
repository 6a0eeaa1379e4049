"""Tensors as rows of integer words: what is moved between processes is moved as bits, whatever its dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpuhash.arrays.dtypes import numpy_dtype
from gpuhash.arrays.frameworks import Shape

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of PyTorch of that name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def word_dtype(width: int) -> str:
    """The name of the dtype of words of so many bytes."""
    return str(_WORDS[width]).removeprefix("torch.")


def to_words(tensor: Tensor, rows: int, row_bytes: int, width: int | None = None) -> Tensor:
    """A dense tensor's bits as ``rows`` rows of words of ``width`` bytes, or else the widest that divide them:
    ``[rows]`` where a row is one word, otherwise ``[rows, words]``. The same memory, but for tensors that do not lie at
    a multiple of a word.
    """
    width = math.gcd(8, row_bytes) if width is None else width
    dtype = _WORDS[width]
    if tensor.dtype == dtype and tensor.dim() == 1 and tensor.stride(0) == 1:
        return tensor
    if not rows:  # PyTorch gives empty tensors strides that cannot be viewed
        return tensor.new_empty((0,) if width == row_bytes else (0, row_bytes // width), dtype=dtype)
    bits = tensor.reshape(-1)
    bits = bits.as_strided((bits.numel(),), (1,))  # a tensor of one element is dense with any stride
    if bits.data_ptr() % width or bits.storage_offset() * bits.element_size() % width:
        bits = bits.clone()
    words = bits.view(torch.uint8).view(dtype)
    return words if width == row_bytes else words.view(rows, row_bytes // width)


def from_words(words: Tensor, dtype: str, shape: Shape) -> Tensor:
    """The keys or values whose bits the dense words are, ``[rows, *shape]``; the same memory."""
    if not shape and words.dim() == 1 and words.dtype == torch_dtype(dtype):
        return words
    if not words.shape[0]:
        return words.new_empty((0, *shape), dtype=torch_dtype(dtype))
    return words.reshape(-1).view(torch.uint8).view(torch_dtype(dtype)).view((words.shape[0], *shape))


def take_rows(tensor: Tensor, positions: Tensor) -> Tensor:
    """The rows ``tensor[positions]``, whatever the dtype: PyTorch has no indexing of some."""
    return _by_words(tensor, lambda words: words.index_select(0, positions))


def put_rows(tensor: Tensor, positions: Tensor, out: Tensor) -> None:
    """``out[positions] = tensor``, whatever the dtype; ``out`` is dense."""
    width = math.prod(tensor.shape[1:]) * tensor.element_size()
    to_words(out, len(out), width).index_copy_(0, positions, to_words(tensor, len(tensor), width))


def reverse(tensor: Tensor) -> Tensor:
    """The rows from the last to the first."""
    return _by_words(tensor, lambda words: words.flip(0))


def _by_words(tensor: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    shape = tuple(tensor.shape[1:])
    words = to_words(tensor, tensor.shape[0], math.prod(shape) * tensor.element_size())
    return from_words(function(words), str(tensor.dtype).removeprefix("torch."), shape)


def where(mask: Tensor, words: Tensor, others: Tensor) -> Tensor:
    """Rows of the one where the mask is true, of the other, one row or as many, elsewhere."""
    return torch.where(mask if words.dim() == 1 else mask.unsqueeze(1), words, others)


def host_tensor(array: Any, dtype: str) -> Tensor:
    """A NumPy array of the dtype's storage, or of the dtype itself, as a tensor of the host; the same memory where that
    is dense and writable.
    """
    dense = np.require(array, requirements=["C", "W"])
    if not dense.size:
        return torch.empty(dense.shape, dtype=torch_dtype(dtype), device="cpu")
    return torch.from_numpy(dense.reshape(-1).view(np.uint8)).view(torch_dtype(dtype)).view(tuple(dense.shape))


def to_numpy(tensor: Tensor, dtype: str) -> Any:
    """A tensor as a NumPy array of the dtype, bfloat16 as ml_dtypes has it. Waits for a GPU."""
    host = tensor.cpu().contiguous()
    if not host.numel():
        return np.empty(tuple(host.shape), numpy_dtype(dtype))
    return host.reshape(-1).view(torch.uint8).numpy().view(numpy_dtype(dtype)).reshape(tuple(host.shape))
