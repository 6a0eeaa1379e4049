"""unique, factorize and isin: questions about whole arrays, for which frameworks sort, answered by hashing."""

from __future__ import annotations

import itertools
import math
from collections import namedtuple
from collections.abc import Sized
from typing import Any, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import axis_of, flag_of
from gpuhash.arrays.batch import Batch, Output, join, to_device
from gpuhash.arrays.dtypes import (
    ITEMSIZES,
    MAX_ROW_BYTES,
    encode_held,
    infer_numbers,
    is_integer,
    is_python_integer,
    read_numbers,
    read_objects,
)
from gpuhash.arrays.frameworks import ColumnFramework, Shape, framework_of, settle
from gpuhash.arrays.nulls import split_nulls
from gpuhash.torch import dispatch as traced

from . import host_keys, sorting
from .keys import Keys, Numbering, number_together

_EXTRAS = ("indices", "inverse", "counts")
#: What ``unique`` gives, by what is asked for in addition to the values.
RESULT_TYPES: dict[tuple[str, ...], Any] = {
    names: namedtuple("UniqueResult", ("values", *names))
    for length in range(1, len(_EXTRAS) + 1)
    for names in itertools.combinations(_EXTRAS, length)
}


class Factorized(NamedTuple):
    """What ``factorize`` gives."""

    codes: Any
    uniques: Any


@traced.in_place_by(traced.unique)
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
    are one key; the key that is given back is the first occurrence, bit for bit. Complex numbers are equal where both
    parts are, so that of those with NaN there are many. Of booleans all bytes but 0 are True.

    Parameters
    ----------
    keys
        An array of any framework, of any dtype that tables take as keys or values, or Python numbers. Used where it
        lies, on the host or on a GPU. Columns of pandas, polars and Arrow, and of what has Arrow's C interface, keep
        their dtype, and may have no nulls. Or strings, lists of them among these, and dates, times and durations: on
        the host, and of them no rows.
    return_inverse
        Give also, for each key, the index of its distinct key.
    return_counts
        Give also the number of times that each distinct key occurs.
    return_index
        Give also the position of each distinct key's first occurrence.
    sorted
        Order the distinct keys ascending, as ``numpy.unique`` does: rows by their first number first, complex numbers
        by their real part first, NaN last; of complex numbers with NaN those with a real part first, by that, then
        those with an imaginary part, by that. Costs a sort of the distinct keys. On the host, values alone or with
        counts may come from NumPy's sort, where that is found to be faster; Ctrl-C then waits for its end.
    axis
        None: each number is a key, and the array is taken as flat. 0: each entry along the first axis is a key, a row
        of any width. Of columns of UUIDs, binaries of a fixed size and decimals of 128 bits each entry is a key
        in any case.

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
        keys. Takes up to 33 bytes of temporary memory per key (on the host 22 and some MiB per thread, or 61 for rows
        of more than 8 bytes), more with ``sorted``, and less where many are equal (on a GPU from 4 million keys on).

    Raises
    ------
    TypeError
        Where ``keys`` is no array of a dtype that tables take, ``axis`` no integer, or another argument no flag.
    ValueError
        For rows without numbers, rows of strings or times, another axis, nulls, or within the capture of a CUDA graph.
    OverflowError
        For Python integers that no 64-bit dtype holds together.
    MemoryError
        Where there is no room for the results or for temporary memory.
    """
    return_index = flag_of(return_index, "return_index")
    return_inverse = flag_of(return_inverse, "return_inverse")
    return_counts = flag_of(return_counts, "return_counts")
    sorted = flag_of(sorted, "sorted")
    axis = axis_of(axis)
    keys, on_host = host_keys.read(keys, "keys", axis)
    if on_host is not None:
        distinct, answers = host_keys.unique(on_host, sorted)
        asked = (return_index, return_inverse, return_counts)
        extras = {name: answers[name] for name, is_asked in zip(_EXTRAS, asked, strict=True) if is_asked}
        return RESULT_TYPES[tuple(extras)](distinct, **extras) if extras else distinct
    keys, whole = settle(keys)
    batch = Batch.of_array(keys, 0 if whole else axis, "keys")
    indices = inverse = None
    if sorted and not (return_index or return_inverse) and sorting.takes(batch):
        values, counts = sorting.unique(batch, return_counts)
    elif _is_of_rows(batch):
        inverse = Output(batch, "int64", batch.shape) if return_inverse else None
        numbering, rows = _number_rows(batch, inverse, return_counts, sorted)
        values = rows
        indices = _copied(batch, numbering.firsts) if return_index else None
        counts = None if numbering.counts is None else _copied(batch, numbering.counts)
    else:
        work = _factorize(batch, return_inverse, return_counts)
        found = work.count
        values = Output(batch, batch.array.dtype, (found, *batch.key_shape))
        indices = Output(batch, "int64", (found,)) if return_index else None
        inverse = Output(batch, "int64", batch.shape) if return_inverse else None
        counts = Output(batch, "int64", (found,)) if return_counts else None
        work.write(values.array, _array(inverse), _array(counts), _array(indices), sorted)
    batch.finish()
    outputs = zip(_EXTRAS, (indices, inverse, counts), strict=True)
    extras = {name: output.result(batch) for name, output in outputs if output is not None}
    result = values.result(batch)
    return RESULT_TYPES[tuple(extras)](result, **extras) if extras else result


@traced.in_place_by(traced.factorize)
def factorize(keys: Any, *, axis: int | None = None) -> Factorized:
    """Dense ids for keys: equal keys get equal ids, numbered from 0 in order of first occurrence.

    Like ``pandas.factorize`` with ``use_na_sentinel=False``: NaN is a key like others, and not -1. But nulls of columns
    of pandas, polars and Arrow have the id -1 and are no key. Keys are compared as ``unique`` compares them.

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
    TypeError, ValueError, OverflowError, MemoryError
        As ``unique``.
    """
    axis = axis_of(axis)
    keys, on_host = host_keys.read(keys, "keys", axis)
    if on_host is not None:
        return Factorized(*host_keys.factorize(on_host))
    if isinstance(framework_of(keys), ColumnFramework):
        keys, nulls, whole = split_nulls(keys)
        axis = 0 if whole else axis
        if nulls is not None:
            if axis is None and keys.ndim > 1:
                raise TypeError(
                    f"{int(nulls.sum())} of {len(nulls)} entries of several numbers are null, and each number was to "
                    "get an id: give axis=0, by which each entry is a key, or leave the nulls out"
                )
            codes = np.full(nulls.shape, -1, np.int64)
            codes[~nulls], uniques = _factorize_keys(keys, axis)
            return Factorized(codes, uniques)
    return _factorize_keys(keys, axis)


def _factorize_keys(keys: Any, axis: int | None) -> Factorized:
    batch = Batch.of_array(keys, axis, "keys")
    codes = Output(batch, "int64", batch.shape)
    if _is_of_rows(batch):
        _, rows = _number_rows(batch, codes, False, False)
        batch.finish()
        return Factorized(codes.result(batch), rows.result(batch))
    work = _factorize(batch, codes=True, counts=False)
    uniques = Output(batch, batch.array.dtype, (work.count, *batch.key_shape))
    work.write(uniques.array, codes.array, None, None, False)
    batch.finish()
    return Factorized(codes.result(batch), uniques.result(batch))


@traced.in_place_by(traced.isin)
def isin(elements: Any, test_elements: Any, *, invert: bool = False, axis: int | None = None) -> Any:
    """Which elements are among the test elements.

    Parameters
    ----------
    elements
        As the keys of ``unique``.
    test_elements
        An array of the same dtype, or where the elements are integers of any integer dtype, on the same device or on
        the host, or Python numbers. Those of another dtype are converted on the host, for which it waits.
    invert
        Tell which are not.
    axis
        None: each number is an element. 0: each entry along the first axis is one, a row of any width, in both
        arrays.

    Returns
    -------
    bool array of the shape of ``elements`` (``[len(elements)]`` with ``axis=0``), of their framework and device; a
    NumPy array for Python numbers. Numbers are compared as by ``unique``, so that NaN is in an array that has NaN, and
    integers by value: Python's, and those of other dtypes, that the other side's dtype cannot hold are in none of its
    arrays. Floats in a list take the other side's dtype.

    Notes
    -----
    Waits for the GPU where both arrays have many keys, from about three million of 16 bytes, six of 8 or twelve of 4
    on: then the distinct ones are estimated first. Takes up to 36 bytes of temporary memory per test element, or per
    element where these are much fewer; for rows of more than 8 bytes 44 on the host and 68 on a GPU. Where both come to
    millions, a GPU partitions them, which takes 20 bytes per test element and 33 per element, if there is room.

    Raises
    ------
    TypeError
        Where one of the arguments is no array of a dtype that tables take, or their dtypes differ and are not both
        integers.
    ValueError
        For rows of different shapes, arrays on different devices, and as ``unique``.
    MemoryError
        Where there is no room for the result or for temporary memory.
    """
    axis = axis_of(axis)
    invert = flag_of(invert, "invert")
    elements, on_host = host_keys.read(elements, "elements", axis)
    test_elements, tests_on_host = host_keys.read(test_elements, "test_elements", axis)
    if tests_on_host is not None and host_keys.is_of_none(elements):
        return np.empty(0, bool)
    if on_host is not None and host_keys.is_of_none(test_elements):
        on_host.need_no_nulls("elements")
        return np.full(on_host.shape, invert)
    if on_host is not None or tests_on_host is not None:
        return host_keys.isin(*host_keys.need_both(on_host, tests_on_host), invert)
    elements, whole = settle(elements)
    test_elements, also = settle(test_elements)
    axis = 0 if whole or also else axis
    held = None
    others = framework_of(test_elements)
    if not framework_of(elements).python:
        batch = Batch.of_array(elements, axis, "elements")
    elif not others.python:
        if axis == 0 and isinstance(elements, Sized) and not len(elements):  # an empty list, of no rows of any shape
            elements = np.empty((0, *others.borrow(test_elements, 0).shape[1:]))
        batch, held = Batch.of_numbers(elements, axis, "elements", test_elements)
    else:  # converted like elements of an array, if they are of one dtype
        try:
            elements = infer_numbers(elements, "elements")
        except OverflowError:
            return _isin_of_integers(elements, test_elements, invert, axis)
        if elements.dtype.name == "bool" and read_numbers(test_elements, "test_elements").dtype.kind != "b":
            elements = elements.astype("int64")
        if axis == 0 and elements.shape == (0,):
            rows = read_numbers(test_elements, "test_elements")
            elements = np.empty((0, *rows.shape[1:]), rows.dtype if rows.dtype.name in ITEMSIZES else elements.dtype)
        batch = Batch.of_array(elements, axis, "elements")
    tests = _take_tests(test_elements, batch, axis)
    mask = Output(batch, "bool", batch.shape)
    if _row_bytes(batch) > MAX_ROW_BYTES:
        codes, _ = number_together(Keys.of_rows(batch, batch.array), Keys.of_rows(batch, tests))
        _core.mark_found(batch.context, codes, invert, mask.array, batch.stream)
    else:
        _core.isin(batch.context, batch.array, tests, math.prod(batch.key_shape), invert, mask.array, batch.stream)
    batch.finish()
    result = mask.result(batch)
    if held is not None:
        result[~(held if axis is None else _held_rows(held))] = invert
    return result


def _row_bytes(batch: Batch) -> int:
    return math.prod(batch.key_shape) * ITEMSIZES[batch.array.dtype]


def _is_of_rows(batch: Batch) -> bool:
    """Are the keys rows for which the core's factorization is not the way, or not the fastest?"""
    return _row_bytes(batch) > 8 and not Keys.of_rows(batch, batch.array).is_one_word


def _number_rows(batch: Batch, codes: Output | None, counts: bool, sorted: bool) -> tuple[Numbering, Output]:
    """The numbering of rows, and the distinct ones."""
    keys = Keys.of_rows(batch, batch.array)
    numbering = keys.number(counts=counts, sorted=sorted, codes=_array(codes))
    return numbering, keys.take_rows(numbering)


def _copied(batch: Batch, array: _core.Array) -> Output:
    output = Output(batch, array.dtype, array.shape)
    batch.context.copy(output.array, array, batch.stream)
    return output


def _array(output: Output | None) -> _core.Array | None:
    return None if output is None else output.array


def _take_tests(tests: Any, batch: Batch, axis: int | None) -> _core.Array:
    """The test elements in the batch's memory, as numbers of its dtype; those that it cannot hold are left out."""
    what = "test_elements"
    row = batch.key_shape
    dtype = batch.array.dtype
    framework = framework_of(tests)
    if framework.python:
        host, held = encode_held(tests, dtype, what)
        if axis == 0 and host.shape == (0,):
            host, held = host.reshape(0, *row), held.reshape(0, *row)
        _check_rows(host.shape, row, axis)
        return batch.lend(_leave_out(host, held, axis), dtype)
    on_host = batch.context.platform == "cpu"
    if framework.private_streams and not on_host:
        framework.wait_until_ready(tests)
    array = framework.borrow(tests, None if on_host else batch.stream)
    _check_rows(array.shape, row, axis)
    if array.platform != "cpu" and (on_host or array.device_index != batch.context.device_index):
        raise ValueError(
            f"the elements are on {batch.context.device} and the {what} on {array.platform}:{array.device_index}: move "
            "one to the other"
        )
    if array.dtype != dtype and not (is_integer(dtype) and is_integer(array.dtype)):
        raise TypeError(f"the elements are {dtype} and the {what} {array.dtype}: convert one to the other's dtype")
    if array.platform != "cpu" and framework is not batch.framework:
        join(batch, framework, tests)
    if array.dtype != dtype:
        host = np.empty(array.shape, array.dtype)
        batch.context.copy(_core.borrow(host), array, batch.stream)
        return batch.lend(_as_integers(host, dtype, axis), dtype)
    return to_device(array, batch.context, batch.stream, what)[0]


def _check_rows(shape: Shape, row: Shape, axis: int | None) -> None:
    if axis == 0 and (not shape or shape[1:] != row):
        raise ValueError(
            f"the test_elements have shape {shape}, expected {('m', *row)}, rows like those of the elements"
        )


def _as_integers(numbers: np.ndarray[Any, Any], dtype: str, axis: int | None) -> np.ndarray[Any, Any]:
    """Integers as those of another dtype, without those that it cannot hold."""
    theirs, ours = np.iinfo(numbers.dtype), np.iinfo(dtype)
    held = np.logical_and(numbers >= max(theirs.min, ours.min), numbers <= min(theirs.max, ours.max))
    return _leave_out(numbers, held, axis).astype(dtype, order="C")


def _leave_out(numbers: np.ndarray[Any, Any], held: np.ndarray[Any, Any], axis: int | None) -> np.ndarray[Any, Any]:
    """The numbers that are held, ``[m]``, or with ``axis=0`` the rows of such alone, ``[m, *row]``."""
    kept: np.ndarray[Any, Any] = numbers[held if axis is None else _held_rows(held)]
    return kept


def _held_rows(held: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(held.reshape(len(held), math.prod(held.shape[1:])).all(axis=1))


def _isin_of_integers(elements: Any, tests: Any, invert: bool, axis: int | None) -> np.ndarray[Any, Any]:
    """As isin, of Python integers that no dtype holds together, by Python's own sets."""
    numbers, others = read_objects(elements), read_objects(tests)
    for what, array in (("elements", numbers), ("test_elements", others)):
        for item in array.flat:
            if not is_python_integer(item):
                raise TypeError(
                    f"the {what} hold {item!r}, and the elements integers beyond 64 bits: give integers alone"
                )
    if axis is None:
        members = {int(item) for item in others.flat}
        found = [(int(item) in members) != invert for item in numbers.flat]
        return np.array(found, bool).reshape(numbers.shape)
    if not numbers.shape:
        raise ValueError("the elements have shape (), which has no axis 0: give an array of one or more dimensions")
    row = numbers.shape[1:]
    if others.shape == (0,):
        others = others.reshape(0, *row)
    _check_rows(others.shape, row, axis)
    known = {tuple(items) for items in others.reshape(len(others), math.prod(row))}
    found = [(tuple(items) in known) != invert for items in numbers.reshape(len(numbers), math.prod(row))]
    return np.array(found, bool)


def _factorize(batch: Batch, codes: bool, counts: bool) -> _core.Factorization:
    elements = math.prod(batch.key_shape)
    return _core.Factorization(batch.context, batch.array, elements, codes, counts, batch.stream)
