"""unique, factorize and isin of what is in the host's memory alone: strings, and dates, times and durations."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from gpuhash.arrays.arrow_c import opened
from gpuhash.arrays.strings import Strings

from .columns import Column, column_of_strings, read_times
from .keys import Keys, number_together

_Array = np.ndarray[Any, Any]


class HostKeys(NamedTuple):
    """Keys and the shape that they had."""

    column: Column
    shape: tuple[int, ...]
    strings: Strings | None

    def need_no_nulls(self, what: str) -> None:
        """ValueError for strings with nulls; NaT is a key like others."""
        if self.strings is not None:
            self.strings.need_no_nulls(what)

    def keys(self, nulls: Literal["key", "none"]) -> Keys:
        return Keys([self.column], None, nulls)


def read(keys: Any, what: str, axis: int | None) -> tuple[Any, HostKeys | None]:
    """The keys, which can be looked at once more, and what they are here; None for numbers.

    ValueError for rows of several of them, of which no key is made.
    """
    keys, found = _read(keys, what)
    if found is not None and axis == 0 and len(found.shape) != 1:
        raise ValueError(
            f"the {what} are {found.column.kind} of shape {found.shape}, and their rows are no keys: leave axis=0 out, "
            "or give the columns to gpuhash.group_by"
        )
    return keys, found


def _read(keys: Any, what: str) -> tuple[Any, HostKeys | None]:
    if isinstance(keys, (str, bytes)):  # no array of strings
        return keys, None
    keys = opened(keys)
    if (strings := Strings.read(keys, what)) is not None:
        return keys, HostKeys(column_of_strings(strings, what), strings.shape, strings)
    flat = keys.reshape(-1) if isinstance(keys, np.ndarray) and keys.dtype.kind in "mM" else keys
    if (times := read_times(flat, what)) is not None:
        return keys, HostKeys(times, np.shape(keys) if flat is not keys else (times.length,), None)
    return keys, None


def unique(given: HostKeys, sorted: bool) -> tuple[Any, dict[str, _Array]]:
    """The distinct keys, in the form of the others, and their indices, inverse and counts. ValueError for nulls."""
    given.need_no_nulls("keys")
    keys = given.keys("key")
    numbering = keys.number(counts=True, sorted=sorted)
    assert numbering.counts is not None
    extras = {
        "indices": keys.batch.to_host(numbering.firsts),
        "inverse": keys.batch.to_host(numbering.codes).reshape(given.shape),
        "counts": keys.batch.to_host(numbering.counts),
    }
    return keys.distinct(numbering), extras


def factorize(given: HostKeys) -> tuple[_Array, Any]:
    """Codes, -1 for nulls and NaT, and the distinct keys in the form of the others."""
    keys = given.keys("none")
    numbering = keys.number()
    return keys.batch.to_host(numbering.codes).reshape(given.shape), keys.distinct(numbering)


def is_of_none(keys: Any) -> bool:
    """Is it an empty list or the like, which does not say of what?"""
    return isinstance(keys, (list, tuple, range)) and not keys


def need_both(elements: HostKeys | None, tests: HostKeys | None) -> tuple[HostKeys, HostKeys]:
    """TypeError where one side is None, of numbers."""
    if elements is not None and tests is not None:
        return elements, tests
    kinds = ["numbers" if keys is None else keys.column.kind for keys in (elements, tests)]
    raise TypeError(f"the elements are {kinds[0]} and the test_elements {kinds[1]}: convert one to the other's kind")


def isin(elements: HostKeys, tests: HostKeys, invert: bool) -> _Array:
    """Which elements are among the tests. ValueError for nulls, TypeError for keys of different kinds."""
    if elements.strings is not None and tests.strings is not None:
        elements.strings.need_same_kind(tests.strings, "elements", "test_elements")
    elements.need_no_nulls("elements")
    tests.need_no_nulls("test_elements")
    ours = elements.keys("key")
    codes, _ = number_together(ours, tests.keys("key"))
    found = ours.batch.to_host(codes) >= 0
    return np.asarray(found != invert).reshape(elements.shape)
