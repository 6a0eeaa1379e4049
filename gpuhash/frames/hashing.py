"""hash: a public hash function, of each number, row or string of an array."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import axis_of, seed_of
from gpuhash.arrays.arrow_c import opened
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.frameworks import settle
from gpuhash.arrays.memory import make_context
from gpuhash.arrays.strings import Strings


def hash(keys: Any, *, bits: int = 64, seed: int = 0, axis: int | None = None) -> Any:
    """XXH3 of the bytes of each key: the hash of that name and width of the xxHash library, with the seed.

    The same key has the same hash on the host and on every GPU, in every version of gpuhash, and in all other programs
    that have XXH3. It is no cryptographic hash: who wants to can find keys that meet. Tables hash by another function.

    Numbers are hashed as their bytes in memory, little-endian, rows as those of their numbers one after the other, text
    as UTF-8, and bytes as they are. Keys that are equal for ``unique`` have equal hashes: -0.0 that of 0.0, every NaN
    that of ``numpy.nan``, and booleans that of 0 or 1. Numbers of another width are other bytes: 1 of int32 and 1 of
    int64 have different hashes.

    Parameters
    ----------
    keys
        An array of any framework, of any dtype that tables take as keys or values, or Python numbers. Used where it
        lies, on the host or on a GPU. Or strings: those of NumPy, lists of str or bytes, columns of pandas, polars and
        Arrow, or a single one. Columns may have no nulls.
    bits
        Of each hash, 64 (XXH3_64bits) or 128 (XXH3_128bits).
    seed
        0 to 2^64 - 1.
    axis
        None: each number is a key. 0: each entry along the first axis is a key, a row of any number of bytes. Of
        columns of UUIDs, binaries of a fixed size and decimals of 128 bits each entry is a key in any case.

    Returns
    -------
    uint64 array of the shape of ``keys``, ``[len(keys)]`` with ``axis=0``; of 128 bits of one more axis, ``[..., 2]``,
    with the lower half first. Of the keys' framework and device; a NumPy array for strings and columns. Does not wait
    for a GPU, but for arrays of JAX and TensorFlow.

    Raises
    ------
    TypeError
        Where ``keys`` is no array of a dtype that tables take and no strings, for arguments of another type, and for
        JAX without 64-bit types.
    ValueError
        For nulls, another number of bits or another axis, seeds out of range, and text that UTF-8 cannot encode.
    OverflowError
        For Python integers that no 64-bit dtype holds together.
    MemoryError
        Where there is no room for the results.
    """
    bits = _bits_of(bits)
    seed = _seed_of(seed)
    axis = axis_of(axis)
    keys = opened(keys)
    strings = Strings.read(keys)
    if strings is not None:
        return _hash_strings(strings, bits, seed, axis)
    keys, whole = settle(keys)
    batch = Batch.of_array(keys, 0 if whole else axis, "keys", empty_rows=True)
    hashes = Output(batch, "uint64", (*batch.shape, 2) if bits == 128 else batch.shape)
    count = math.prod(batch.shape)
    _core.hash_rows(batch.context, batch.array, count, bits, seed, hashes.array, batch.stream)
    batch.finish()
    return hashes.result(batch)


def _hash_strings(strings: Strings, bits: int, seed: int, axis: int | None) -> np.ndarray[Any, Any]:
    strings.need_no_nulls("keys")
    if axis == 0 and len(strings.shape) != 1:
        raise ValueError(
            f"the keys are strings of shape {strings.shape}, and a row of strings is no key: leave axis=0 out"
        )
    hashes = _core.empty_array((*strings.shape, 2) if bits == 128 else strings.shape, np.dtype(np.uint64))
    offsets, data, out = (_core.borrow(array) for array in (strings.offsets, strings.data, hashes))
    _core.hash_strings(make_context("cpu"), offsets, data, bits, seed, out, 0)
    return hashes


def _bits_of(bits: Any) -> int:
    expected = "expected 64 or 128"
    try:
        number = operator.index(bits)
    except TypeError:
        raise TypeError(f"bits={bits!r} was given, {expected}") from None
    if number not in (64, 128):
        raise ValueError(f"bits={bits!r} was given, {expected}")
    return number


def _seed_of(seed: Any) -> int:
    if seed is None or isinstance(seed, (str, bool)):
        raise TypeError(f"seed={seed!r} was given, expected an integer, as hashes are to be the same again")
    number = seed_of(seed)
    assert number is not None
    return number
