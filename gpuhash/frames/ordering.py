"""Numbers of distinct keys that no word holds, in ascending order of the keys: column by column, as ranks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from gpuhash import _core

from .columns import Part

if TYPE_CHECKING:
    from .keys import Keys, Numbering


def sort(keys: Keys, numbering: Numbering) -> Numbering:
    """The numbering with numbers that ascend with the keys: the first column counts most, nulls are last. Waits."""
    if numbering.count < 2:
        return numbering
    context, stream = keys.batch.context, keys.batch.stream
    count, codes, firsts, counts = numbering
    ranks = _ranks(keys, numbering)
    _core.renumber(context, codes, ranks, stream)
    order = keys.batch.new("int64", (count,))  # where each rank's key is
    _core.Factorization(context, ranks, 1, False, False, stream).write(None, None, None, order, True)
    sources = [array for array in (firsts, counts) if array is not None]
    taken = [keys.batch.new("int64", (count,)) for _ in sources]
    pairs = [(source, None, out) for source, out in zip(sources, taken, strict=True)]
    _core.take(context, pairs, count, order, stream, trusted=True)
    return numbering._replace(firsts=taken[0], counts=taken[1] if counts is not None else None)


def _ranks(keys: Keys, numbering: Numbering) -> _core.Array:
    """How many distinct keys come before each one, int64 ``[m]``.

    The ranks of the parts that come first, with those of the next part, give the ranks of both. Different keys differ
    in one of the parts, so that there is an end.
    """
    rows = keys.gather(numbering.firsts)
    count = numbering.count
    ranks: _core.Array | None = None
    for number, column in enumerate(keys.columns):
        parts = itertools.count() if column.offsets is not None else range(column.elements)
        for part in parts:
            words = keys.batch.new("uint64", (count, 2))
            rows.order_words(number, part, words)
            of_part, _ = _sorted_numbers(keys, words, 2)
            both: list[Part] = [(of_part, 1, rows.valid(number), None)]
            if ranks is not None:
                both.insert(0, (ranks, 1, None, None))
            ranks, found = _numbers_of(keys, both, count)
            if found == count:
                return ranks
            if column.offsets is not None and _core.is_all_zero(keys.batch.context, words, keys.batch.stream):
                break
    raise AssertionError("distinct keys differ in one of their parts")


def _numbers_of(keys: Keys, columns: list[Part], count: int) -> tuple[_core.Array, int]:
    rows = _core.KeyRows(keys.batch.context, columns, count, None, keys.batch.stream)
    packing = rows.find_packing()
    if packing is None:
        raise OverflowError(f"{count} distinct keys are too many to be sorted: 2^32 is the most")
    words = keys.batch.new(packing.dtype, (count,))
    rows.pack(packing, words)
    return _sorted_numbers(keys, words, 1)


def _sorted_numbers(keys: Keys, words: _core.Array, elements: int) -> tuple[_core.Array, int]:
    work = _core.Factorization(keys.batch.context, words, elements, True, False, keys.batch.stream)
    codes = keys.batch.new("int64", (words.shape[0],))
    work.write(None, codes, None, None, True)
    return codes, work.count
