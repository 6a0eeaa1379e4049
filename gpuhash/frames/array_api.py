"""The set functions of the Python array API standard, over ``unique``.

https://data-apis.org/array-api/latest/API_specification/set_functions.html
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuhash.torch import dispatch as traced

from .factorization import unique


class UniqueAllResult(NamedTuple):
    """What ``unique_all`` gives."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """What ``unique_counts`` gives."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """What ``unique_inverse`` gives."""

    values: Any
    inverse_indices: Any


@traced.itself
def unique_all(x: Any, /) -> UniqueAllResult:
    """The distinct elements of an array, where each occurs first, which one each element is, and how often it occurs.

    As the array API standard has it, with two differences that it speaks of: all NaNs are one element, as for
    ``unique``, where the standard has each apart; and elements come in order of their first occurrence.

    Parameters
    ----------
    x
        An array, as the keys of ``unique``. It is taken as flat.

    Returns
    -------
    values, indices, inverse_indices, counts
        The distinct elements ``[m]``, of the dtype of ``x``; int64 positions ``[m]`` in the flat array; int64 of the
        shape of ``x``, by which ``values[inverse_indices]`` equals ``x``; and int64 ``[m]``. A named tuple of arrays of
        the framework and device of ``x``. Waits for the GPU.

    Raises
    ------
    TypeError, ValueError, OverflowError, MemoryError
        As ``unique``.
    """
    found = unique(x, return_index=True, return_inverse=True, return_counts=True)
    return UniqueAllResult(found.values, found.indices, found.inverse, found.counts)


@traced.itself
def unique_counts(x: Any, /) -> UniqueCountsResult:
    """The distinct elements of an array, and how often each occurs.

    Parameters
    ----------
    x
        As for ``unique_all``; NaNs are one element, as there.

    Returns
    -------
    values, counts
        As of ``unique_all``. Waits for the GPU.

    Raises
    ------
    TypeError, ValueError, OverflowError, MemoryError
        As ``unique``.
    """
    found = unique(x, return_counts=True)
    return UniqueCountsResult(found.values, found.counts)


@traced.itself
def unique_inverse(x: Any, /) -> UniqueInverseResult:
    """The distinct elements of an array, and which one each element is.

    Parameters
    ----------
    x
        As for ``unique_all``; NaNs are one element, as there.

    Returns
    -------
    values, inverse_indices
        As of ``unique_all``. Waits for the GPU.

    Raises
    ------
    TypeError, ValueError, OverflowError, MemoryError
        As ``unique``.
    """
    found = unique(x, return_inverse=True)
    return UniqueInverseResult(found.values, found.inverse)


@traced.itself
def unique_values(x: Any, /) -> Any:
    """The distinct elements of an array, ``[m]``, of its framework, dtype and device. Waits for the GPU.

    Parameters
    ----------
    x
        As for ``unique_all``; NaNs are one element, as there.

    Raises
    ------
    TypeError, ValueError, OverflowError, MemoryError
        As ``unique``.
    """
    return unique(x)
