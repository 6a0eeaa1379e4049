"""Distinct keys in ascending order on the host, where NumPy's sort takes part in it.

NumPy sorts numbers with AVX-512 and AVX2, on some processors as fast as keys are hashed, and on others twenty times as
slowly. So how fast it is here is measured, and what is faster is done. The answers do not depend on that.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from typing import Any

import numpy as np
import numpy.random  # here, as numpy.ma in gpuhash/arrays/strings.py

from gpuhash import _core
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.dtypes import ITEMSIZES
from gpuhash.threads import get_num_threads

#: Of one byte there are too few distinct ones to sort, and NumPy does not know the order of complex numbers' words.
_DTYPES = {name for name in ITEMSIZES if ITEMSIZES[name] > 1 and not name.startswith("complex")}
#: Smaller batches take as long for the calls around them.
_MIN_KEYS = 1 << 12

# What a key costs on one thread, in ns, measured on a 2-core AMD EPYC of the fifth generation.
_HASHED_NEAR = 2.7  # in batches that are one part (cpp/host/factorize/part_firsts.hpp)
_HASHED = ((1 << 8, 1.0), (1 << 10, 1.5), (1 << 12, 2.7), (1 << 14, 4.7))  # of others, with up to as many distinct ones
_PARTITIONED = 4.2  # with more of them
_MADE_WORDS = 0.3
_RUNS_TAKEN = 1.0
_MOST_NEAR = 1 << 16
_KEYS_PER_THREAD = 1 << 14

_MEASURED_KEYS = 1 << 13
_ESTIMATED_MORE = 1024  # keys that the core's estimate adds, to be safe


def takes(batch: Batch) -> bool:
    """May `unique` be called for the batch?"""
    return (
        batch.context.platform == "cpu"
        and batch.array.dtype in _DTYPES
        and math.prod(batch.key_shape) == 1
        and math.prod(batch.shape) >= _MIN_KEYS
    )


def unique(batch: Batch, with_counts: bool) -> tuple[Output, Output | None]:
    """The distinct keys of a batch in ascending order, and the counts of each."""
    context, keys = batch.context, batch.array
    count = math.prod(batch.shape)
    work = _core.Factorization.of_few(context, keys, 1, with_counts, most_hashed(count, keys.dtype, with_counts))
    if work is not None and with_counts and not work.of_ascending_keys and deceived(count, work.count, keys.dtype):
        work = None  # to begin again costs less than to sort so many with their ids
    hashed = work is not None
    if work is None:
        words = _core.Buffer(context, f"uint{8 * ITEMSIZES[keys.dtype]}", (count,), 0).array()
        _core.write_order_words(context, keys, words)
        _as_words(words).sort()
        work = _core.Factorization(context, words, 1, False, with_counts, 0)
    found = work.count
    values = Output(batch, keys.dtype, (found, *batch.key_shape))
    counts = Output(batch, "int64", (found,)) if with_counts else None
    counted = None if counts is None else counts.array
    if not hashed:
        distinct = _core.borrow(_as_words(values.array))
        work.write(distinct, None, counted, None, True)
        _core.read_order_words(context, distinct, keys)
    elif counts is None and not work.of_ascending_keys and sorts_distinct(found, keys.dtype):
        work.write(values.array, None, None, None, False)
        sorted_words = _as_words(values.array)
        distinct = _core.borrow(sorted_words)
        _core.write_order_words(context, values.array, distinct)
        sorted_words.sort()
        _core.read_order_words(context, distinct, keys)
    else:
        work.write(values.array, None, counted, None, True)
    return values, counts


def most_hashed(count: int, dtype: str, with_counts: bool) -> int:
    """Batches of `count` keys are hashed where at most as many seem distinct, and sorted first where more do."""
    return _most_hashed(count.bit_length() - 1, ITEMSIZES[dtype], with_counts, get_num_threads())


@functools.cache
def _most_hashed(bits: int, itemsize: int, with_counts: bool, threads: int) -> int:
    count = 1 << bits
    threads = _threads_for(count, threads)
    in_runs = _in_runs_ns(itemsize, count, threads)
    most = 0
    for distinct in (1 << power for power in range(bits + 1)):
        if count <= _MOST_NEAR:
            hashed = _HASHED_NEAR
        else:
            hashed = next((ns for limit, ns in _HASHED if distinct <= limit), _PARTITIONED) / threads
        ordered = _own_sort_ns(distinct, with_counts) / threads
        if not with_counts:
            ordered = min(ordered, _sort_ns(itemsize, distinct))
        if hashed + ordered * distinct / count > in_runs:
            return most + most // 2 + _ESTIMATED_MORE if most else 0
        most = distinct
    return sys.maxsize


def deceived(count: int, found: int, dtype: str) -> bool:
    """Is it faster to sort `count` keys first than to sort the `found` distinct ones with their ids?"""
    if found < _MIN_KEYS:
        return False
    threads = _threads_for(count, get_num_threads())
    own_sort = _own_sort_ns(found, with_ids=True) / threads
    return own_sort * found / count > _in_runs_ns(ITEMSIZES[dtype], count, threads)


def _in_runs_ns(itemsize: int, count: int, threads: int) -> float:
    """What a key takes that is sorted first."""
    return _sort_ns(itemsize, count) + (_MADE_WORDS + _RUNS_TAKEN) / threads


def sorts_distinct(count: int, dtype: str) -> bool:
    """Does NumPy sort as many distinct keys faster than cpp/host/factorize/radix_sort.hpp?"""
    if count < _MIN_KEYS:
        return False
    own_sort = _own_sort_ns(count, with_ids=False) / _threads_for(count, get_num_threads())
    return _sort_ns(ITEMSIZES[dtype], count) + _MADE_WORDS < own_sort


def _threads_for(count: int, threads: int) -> int:
    return max(1, min(threads, count // _KEYS_PER_THREAD))


def _own_sort_ns(count: int, with_ids: bool) -> float:
    """What the core's radix sort takes for a key of `count` on one thread, in ns, as measured from 2^14 to 2^22."""
    further = max(0, count.bit_length() - 15)
    return 9.0 + 2.0 * further if with_ids else 6.0 + 0.5 * further


def _sort_ns(itemsize: int, count: int) -> float:
    """What NumPy's sort takes for a key of `count`, in ns."""
    growth = 0.15 * (count.bit_length() - _MEASURED_KEYS.bit_length())  # as measured from 2^13 to 2^22
    return _measured_sort_ns(itemsize) * max(0.5, 1 + growth)


@functools.cache
def _measured_sort_ns(itemsize: int) -> float:
    """Of `_MEASURED_KEYS` keys. Takes 0.1 ms where it is fast, and 1 ms where it is slow."""
    dtype = np.dtype(f"u{itemsize}")
    keys = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, _MEASURED_KEYS, dtype, endpoint=True)
    least = sys.maxsize  # of several: other programs may come between
    for _ in range(4):
        words = keys.copy()
        start = time.perf_counter_ns()
        words.sort()
        least = min(least, time.perf_counter_ns() - start)
    return least / _MEASURED_KEYS


class _Lender:
    """Lends an array's memory to NumPy, and keeps it alive."""

    def __init__(self, array: _core.Array) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(f"u{ITEMSIZES[array.dtype]}").str,
            "shape": (math.prod(array.shape),),
            "data": (array.data, array.readonly),
        }


def _as_words(array: _core.Array) -> np.ndarray[Any, Any]:
    """The bits of a contiguous array on the host as unsigned integers, ``[n]``, without a copy."""
    return np.asarray(_Lender(array))
