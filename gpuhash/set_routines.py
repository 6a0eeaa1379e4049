"""unique, factorize and isin: questions about whole arrays, for which frameworks sort, answered by hashing."""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from typing import Any, NamedTuple

from . import _core
from .arrays import framework_of
from .batch import Batch, Output, join, to_device
from .dtypes import encode


class Factorized(NamedTuple):
    """What ``factorize`` gives."""

    codes: Any
    uniques: Any


def unique(
    keys: Any,
    *,
    return_inverse: bool = False,
    return_counts: bool = False,
    return_index: bool = False,
    sorted: bool = False,
    axis: int | None = None,
) -> Any:
    """The distinct keys of an array, in order of their first occurrence.

    Integers, booleans and complex numbers' parts are compared by value. So are floats: -0.0 equals 0.0, and all NaNs
    are one key; the key that is given back is the first occurrence, bit for bit.

    Parameters
    ----------
    keys
        An array of any framework, of any dtype that tables take as keys or values, or Python numbers. Used where it
        lies, on the host or on a GPU.
    return_inverse
        Give also, for each key, the index of its distinct key.
    return_counts
        Give also the number of times that each distinct key occurs.
    return_index
        Give also the position of each distinct key's first occurrence.
    sorted
        Order the distinct keys ascending, as ``numpy.unique`` does: rows by their first number first, complex numbers
        by their real part first, NaN last. Costs a sort of the distinct keys.
    axis
        None: each number is a key, and the array is taken as flat. 0: each entry along the first axis is a key, a row
        of up to 16 bytes.

    Returns
    -------
    values
        The distinct keys, of shape ``[m]``, or ``[m, *keys.shape[1:]]`` with ``axis=0``; of the keys' framework, dtype
        and device. Where more is asked for, a named tuple of ``values`` and, in this order and as far as asked for,

        * ``indices``, int64 ``[m]``,
        * ``inverse``, int64 of the shape of ``keys``, ``[len(keys)]`` with ``axis=0``: ``values[inverse]`` equals the
          keys,
        * ``counts``, int64 ``[m]``.

        Does not depend on timing. Waits for the GPU, because the results have as many entries as there are distinct
        keys. Takes up to 33 bytes of temporary memory per key (61 on the host for rows of more than 8 bytes), more
        with ``sorted``, and less where many are equal.

    Raises
    ------
    TypeError
        Where ``keys`` is no array of a dtype that tables take.
    ValueError
        For rows of no or more than 16 bytes, another axis, or within the capture of a CUDA graph.
    MemoryError
        Where there is no room for the results or for temporary memory.
    """
    batch = Batch.of_array(keys, axis, "keys")
    work = _factorize(batch, return_inverse or return_counts)
    found = work.count
    values = Output(batch, batch.array.dtype, (found, *batch.key_shape))
    indices = Output(batch, "int64", (found,)) if return_index else None
    inverse = Output(batch, "int64", batch.shape) if return_inverse else None
    counts = Output(batch, "int64", (found,)) if return_counts else None
    work.write(values.array, _array(inverse), _array(counts), _array(indices), sorted)
    batch.finish()
    outputs = {"values": values, "indices": indices, "inverse": inverse, "counts": counts}
    results = {name: output.result(batch) for name, output in outputs.items() if output is not None}
    return results["values"] if len(results) == 1 else _result_type(*results)(**results)


def factorize(keys: Any, *, axis: int | None = None) -> Factorized:
    """Dense ids for keys: equal keys get equal ids, numbered from 0 in order of first occurrence.

    Like ``pandas.factorize`` with ``use_na_sentinel=False``: NaN is a key like others. Keys are compared as ``unique``
    compares them.

    Parameters
    ----------
    keys, axis
        As for ``unique``.

    Returns
    -------
    codes, uniques
        int64 ids of the shape of ``keys`` (``[len(keys)]`` with ``axis=0``), and the distinct keys: ``uniques[codes]``
        equals the keys. Of the keys' framework and device. Does not depend on timing. Waits for the GPU.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As ``unique``.
    """
    batch = Batch.of_array(keys, axis, "keys")
    work = _factorize(batch, groups=True)
    codes = Output(batch, "int64", batch.shape)
    uniques = Output(batch, batch.array.dtype, (work.count, *batch.key_shape))
    work.write(uniques.array, codes.array, None, None, False)
    batch.finish()
    return Factorized(codes.result(batch), uniques.result(batch))


def isin(elements: Any, test_elements: Any, *, invert: bool = False, axis: int | None = None) -> Any:
    """Which elements are among the test elements.

    Parameters
    ----------
    elements
        As the keys of ``unique``.
    test_elements
        An array of the same dtype, on the same device or on the host, or Python numbers.
    invert
        Tell which are not.
    axis
        None: each number is an element. 0: each entry along the first axis is one, a row of up to 16 bytes, in both
        arrays.

    Returns
    -------
    bool array of the shape of ``elements`` (``[len(elements)]`` with ``axis=0``), of their framework and device.
    Numbers are compared as by ``unique``, so that NaN is in an array that has NaN. Waits for the GPU where
    the arrays have about a million keys or more, of which the distinct ones are estimated first.

    Raises
    ------
    TypeError
        Where one of the arguments is no array of a dtype that tables take, or their dtypes differ.
    ValueError
        For rows of different shapes, arrays on different devices, and as ``unique``.
    MemoryError
        Where there is no room for the result or for temporary memory.
    """
    batch = Batch.of_array(elements, axis, "elements")
    tests = _take_tests(test_elements, batch, axis)
    mask = Output(batch, "bool", batch.shape)
    _core.isin(batch.context, batch.array, tests, math.prod(batch.key_shape), invert, mask.array, batch.stream)
    batch.finish()
    return mask.result(batch)


@functools.cache
def _result_type(*names: str) -> Any:
    return namedtuple("UniqueResult", names)


def _array(output: Output | None) -> _core.Array | None:
    return None if output is None else output.array


def _take_tests(tests: Any, batch: Batch, axis: int | None) -> _core.Array:
    """The test elements in the batch's memory."""
    what = "test_elements"
    row = batch.key_shape
    dtype = batch.array.dtype
    host = batch.context.platform == "cpu"
    framework = framework_of(tests)
    if framework.python:
        tests = encode(tests, dtype, what)
        if axis == 0 and tests.shape == (0,):
            tests = tests.reshape(0, *row)
        array = _core.borrow(tests)
    else:
        if framework.private_streams and not host:
            framework.wait_until_ready(tests)
        array = framework.borrow(tests, None if host else batch.stream)
        if array.dtype != dtype:
            raise TypeError(f"the elements are {dtype} and the {what} {array.dtype}: convert one to the other's dtype")
    if axis == 0 and array.shape[1:] != row:
        raise ValueError(
            f"the {what} have shape {array.shape}, expected {('m', *row)}, rows like those of the elements"
        )
    if array.platform != "cpu" and (host or array.device_index != batch.context.device_index):
        raise ValueError(
            f"the elements are on {batch.context.device} and the {what} on {array.platform}:{array.device_index}: move "
            "one to the other"
        )
    array, staged = to_device(array, batch.context, batch.stream, what)
    if not staged and not host and framework is not batch.framework:
        join(batch, framework, tests)
    return array


def _factorize(batch: Batch, groups: bool) -> _core.Factorization:
    elements = math.prod(batch.key_shape)
    return _core.Factorization(batch.context, batch.array, elements, groups, False, batch.stream)
