"""unique, factorize and isin of strings, in the host's memory: text or bytes of any length, compared in full."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arrow_c import opened
from gpuhash.arrays.strings import Strings

from .columns import column_of_strings, to_host
from .keys import Keys, Numbering, number_together

_Array = np.ndarray[Any, Any]


def read(keys: Any, what: str) -> tuple[Any, Strings | None]:
    """The keys, which can be looked at once more, and their strings; None where they are none."""
    keys = opened(keys)
    return keys, Strings.read(keys, what)


def unique(strings: Strings, sorted: bool) -> tuple[Any, dict[str, _Array]]:
    """The distinct strings, in the form of the others, and their indices, inverse and counts. ValueError for nulls."""
    strings.need_no_nulls("keys")
    keys = _keys(strings, "keys", "key")
    numbering = keys.number(counts=True, sorted=sorted)
    indices = _on_host(keys, numbering.firsts)
    inverse = _on_host(keys, numbering.codes).reshape(strings.shape)
    assert numbering.counts is not None
    extras = {"indices": indices, "inverse": inverse, "counts": _on_host(keys, numbering.counts)}
    return strings.give_back(strings.take(indices)), extras


def factorize(strings: Strings) -> tuple[_Array, Any]:
    """Codes, -1 for nulls, and the distinct strings in the form of the others."""
    keys = _keys(strings, "keys", "none")
    numbering: Numbering = keys.number()
    codes = _on_host(keys, numbering.codes).reshape(strings.shape)
    return codes, strings.give_back(strings.take(_on_host(keys, numbering.firsts)))


def isin(elements: Strings, tests: Strings, invert: bool) -> _Array:
    """Which elements are among the tests. ValueError for nulls, TypeError for text among bytes."""
    elements.need_same_kind(tests, "elements", "test_elements")
    for strings, what in ((elements, "elements"), (tests, "test_elements")):
        strings.need_no_nulls(what)
    ours = _keys(elements, "elements", "key")
    codes, _ = number_together(ours, _keys(tests, "test_elements", "key"))
    found = _on_host(ours, codes) >= 0
    return np.asarray(found != invert).reshape(elements.shape)


def _keys(strings: Strings, what: str, nulls: Literal["key", "none"]) -> Keys:
    return Keys([column_of_strings(strings, what)], None, nulls)


def _on_host(keys: Keys, array: _core.Array) -> _Array:
    return to_host(keys.batch, array)
