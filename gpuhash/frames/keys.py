"""The keys of a call on whole arrays: what equal keys are, whatever they consist of, and their dense numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from gpuhash import _core
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.dtypes import MAX_ROW_BYTES, is_integer
from gpuhash.arrays.frameworks import framework_of
from gpuhash.arrays.nulls import library_of

from . import ordering
from .columns import Column, Part, check_columns, give_array, read_column, split_frame, take_foreign, take_rows

#: Words of keys that a list has room for, if it has as many numbers for each of the right side's keys, or these in all.
_LISTED_PER_KEY = 16
_LISTED = 1 << 17
#: So many rows of 9 to 16 bytes on the host are numbered by fingerprints, fewer as they are: 10^7 of 16 bytes take
#: 0.3 s by fingerprints where all are distinct, and 0.57 s as they are; 0.09 and 0.13 where 100 are (EPYC).
_LEAST_FINGERPRINTED = 1 << 16
#: Words of which a GPU makes a list, where there are no more than rows: it lies in the cache with their first rows.
_LISTED_ON_GPU = 1 << 21
_MINUS_ONE = np.array(-1)
#: Right keys of a join on a GPU that are taken for unique at first: 10^7 then take 1.3 ms and not 2.1 (H200), and those
#: that are not cost a table of them. That is too much for 10^5: 0.9 ms where there are 1000 distinct, and not 0.6.
_LEAST_TRIED = 1 << 20


class Numbering(NamedTuple):
    """Dense numbers of keys, from 0 in order of first occurrence or of the keys. In the memory of the keys' batch."""

    count: int  # type: ignore[assignment]  # distinct keys, m
    codes: _core.Array  # int64 [n], the number of each key; -1 for what is no key
    firsts: _core.Array  # int64 [m], where each distinct key occurs first
    counts: _core.Array | None  # int64 [m], how often


class Keys:
    """The keys of a call, ``[n]``: the entries of an array, its rows, or the rows of several columns."""

    def __init__(self, columns: Sequence[Column], form: Any, nulls: Literal["key", "none"]) -> None:
        self.columns = columns
        self.batch: Batch = columns[0].batch  # context, stream and framework of the call
        self.count: int = columns[0].length
        self._form = form  # what the keys were given as
        self.library: str | None = None  # pandas, polars or pyarrow, where the keys are columns of it
        self._taken: tuple[_core.Array, Output] | None = None  # distinct keys of the numbering with these firsts
        masks = [column.valid for column in columns if column.valid is not None]
        self.is_key: _core.Array | None = None  # bool [n]; None: all are keys
        if nulls == "none" and masks:
            self.columns = [column._replace(valid=None) for column in columns]
            self.is_key = masks[0]
            if len(masks) > 1:
                self.is_key = self.batch.new("bool", (self.count,))
                _core.combine_valid(self.batch.context, masks, self.is_key, self.batch.stream)

    @cached_property
    def rows(self) -> _core.KeyRows:
        """The keys as the core takes rows of columns."""
        parts = [column.part() for column in self.columns]
        return _core.KeyRows(self.batch.context, parts, self.count, self.is_key, self.batch.stream)

    @classmethod
    def of(cls, keys: Any, what: str = "keys", nulls: Literal["key", "none"] = "key") -> Self:
        """Keys as they are given.

        Parameters
        ----------
        keys
            An array of any framework and dtype, whose entries along the first axis are the keys: numbers, or rows of
            any width. A column of pandas, polars or Arrow, or a frame or table of these. A dict of columns by names, or
            a list or tuple of which one item or more is an array or a column: each row of all columns is a key. A list
            of Python numbers, or of lists of them, is one array.
        what
            What messages call the keys.
        nulls
            "key": nulls equal each other and nothing else. "none": a row with a null is no key, and its code is -1.
            Nulls are those of the libraries, masked entries, and NaT; NaN is a number.

        Notes
        -----
        Numbers are compared as by ``unique``. Dates, times and durations are compared as their integers, of columns of
        one dtype.

        Raises
        ------
        TypeError
            Where a column holds no numbers.
        ValueError
            Where there are no columns, or they differ in length or device; entries of no bytes.
        """
        made = cls(*_read_columns(keys, what), nulls)
        parts = keys.values() if isinstance(keys, dict) else keys if isinstance(keys, (list, tuple)) else [keys]
        libraries = {library_of(part) for part in parts}
        made.library = libraries.pop() if len(libraries) == 1 else None
        return made

    @classmethod
    def of_rows(cls, batch: Batch, array: _core.Array) -> Self:
        """The entries or rows of an array in a batch's memory, ``[n, *batch.key_shape]``."""
        return cls([Column(batch, array, batch.key_shape, None, None, give_array, array.dtype)], None, "key")

    def number(self, *, counts: bool = False, sorted: bool = False, codes: _core.Array | None = None) -> Numbering:
        """Finds the distinct keys. Waits.

        ``sorted``: numbers ascend with the keys, which are compared by their first column first; nulls and NaN last.
        ``codes``: where the codes go, int64 ``[n]``; None: an array of their own.
        """
        if codes is None:
            codes = self.batch.new("int64", (self.count,))
        batch = self.batch
        column = self.columns[0]
        if self.is_one_word:
            work = _core.Factorization(batch.context, column.array, column.elements, True, counts, batch.stream)
            return self._write(work, codes, counts, sorted)
        if (packing := self.packing) is not None:
            if not counts and packing.words <= self._most_listed:
                return self._number_listed(packing, codes, sorted)
            words = self.__dict__.pop("fold_words", None) or (self.pack(packing), 1)
            work = _core.Factorization(batch.context, words[0], 1, True, counts, batch.stream)
            return self._without_nulls(self._write(work, codes, counts, sorted))
        for tries in itertools.count():
            words = self.fingerprint(_core.random_seed(), tries)
            work = _core.Factorization(batch.context, words, 1, True, counts, batch.stream)
            numbering = self._write(work, codes, counts, False)
            if self._are_equal(numbering):
                numbering = self._without_nulls(numbering)
                return ordering.sort(self, numbering) if sorted else numbering
        raise AssertionError("there is always another try")

    @property
    def _is_plain(self) -> bool:
        """One array without nulls?"""
        return len(self.columns) == 1 and self.is_key is None and self.columns[0].is_plain

    @property
    def is_one_word(self) -> bool:
        """Is the core's factorization of one array all that it takes, and the fastest?"""
        column = self.columns[0]
        if not self._is_plain or column.nbytes > MAX_ROW_BYTES:
            return False
        return column.nbytes <= 8 or self.batch.context.platform != "cpu" or self.count < _LEAST_FINGERPRINTED

    @property
    def _most_listed(self) -> int:
        """The most words whose numbers are a list."""
        return _LISTED if self.batch.context.platform == "cpu" else min(_LISTED_ON_GPU, max(self.count, 1 << 12))

    @cached_property
    def packing(self) -> _core.Packing | None:
        """How a word tells the keys apart; None where none does. Waits."""
        return self.rows.find_packing()

    @cached_property
    def fold_words(self) -> tuple[_core.Array, int] | None:
        """Rows of up to 8 bytes that tell the keys apart, and how many numbers a row has; None where there are none."""
        column = self.columns[0]
        if self._is_plain and column.nbytes <= 8:
            return column.array, column.elements
        if self.is_key is None and (packing := self.packing) is not None:
            return self.pack(packing), 1
        return None

    def distinct(self, numbering: Numbering) -> Any:
        """The distinct keys ``[m]`` of a numbering of these keys, in the form in which keys were given.

        An array for an array, of its framework; a list, tuple or dict of columns for one of these; and for a column,
        frame or table of pandas, polars or pyarrow one of the same kind and dtypes, taken by the library. Other Arrow
        data gives NumPy arrays, masked ones where there are nulls. Each key is as it first occurs, bit for bit.
        """
        if split_frame(self._form) is not None:
            return take_foreign(self._form, self.batch.to_host(numbering.firsts))
        taken = [column.form(self.batch, column, numbering.firsts) for column in self.columns]
        if self._form is None:
            return taken[0]
        if isinstance(self._form, dict):
            return dict(zip(self._form, taken, strict=True))
        return tuple(taken) if isinstance(self._form, tuple) else taken

    def pack(self, packing: _core.Packing) -> _core.Array:
        """A word for each key, which tells it from others that are packed likewise; the last one for no keys."""
        words = self.batch.new(packing.dtype, (self.count,))
        self.rows.pack(packing, words)
        return words

    def fingerprint(self, seed: int, tries: int, by_value: bool = False) -> _core.Array:
        """A hash of each key. ``tries``: how many seeds have been in vain."""
        words = self.batch.new("uint64", (self.count,))
        self.rows.fingerprint(seed, by_value, tries, words)
        return words

    def gather(self, index: _core.Array) -> _core.KeyRows:
        """Rows of these keys, to be compared."""
        context, stream = self.batch.context, self.batch.stream
        count = index.shape[0]
        parts: list[Part] = []
        taken: list[tuple[_core.Array, _core.Array | None, _core.Array]] = []

        def take(array: _core.Array | None, shape: tuple[int, ...]) -> _core.Array | None:
            if array is None:
                return None
            out = self.batch.new(array.dtype, (count, *shape))
            taken.append((array, None, out))
            return out

        for column in self.columns:
            valid = take(column.valid, ())
            if column.offsets is None:
                array = take(column.array, column.shape)
                assert array is not None
                parts.append((array, column.elements, valid, None))
                continue
            offsets = self.batch.new("int64", (count + 1,))
            total = _core.take_offsets(context, column.offsets, index, offsets, stream)
            data = self.batch.new("uint8", (total,))
            _core.take_bytes(context, column.array, column.offsets, index, offsets, data, stream)
            parts.append((data, 1, valid, offsets))
        is_key = take(self.is_key, ())
        _core.take(context, taken, self.count, index, stream, trusted=True)
        return _core.KeyRows(context, parts, count, is_key, stream)

    def _write(self, work: _core.Factorization, codes: _core.Array, counts: bool, sorted: bool) -> Numbering:
        firsts = self.batch.new("int64", (work.count,))
        counted = self.batch.new("int64", (work.count,)) if counts else None
        work.write(None, codes, counted, firsts, sorted)
        return Numbering(work.count, codes, firsts, counted)

    def _number_listed(self, packing: _core.Packing, codes: _core.Array, sorted: bool) -> Numbering:
        """By a list of the numbers of all words, of which there are few. What is no key has none."""
        batch = self.batch
        first_rows = batch.new("int64", (packing.words,))
        count = self.rows.number_listed(packing, sorted, codes, first_rows)
        firsts = batch.new("int64", (count,))
        _core.copy_first(batch.context, first_rows, firsts, batch.stream)
        return Numbering(count, codes, firsts, None)

    def number_words(self, words: _core.Array) -> Numbering:
        """Numbers words ``[n]`` that stand for these keys, in order of first occurrence."""
        work = _core.Factorization(self.batch.context, words, 1, True, False, self.batch.stream)
        return self._write(work, self.batch.new("int64", (self.count,)), False, False)

    def _are_equal(self, numbering: Numbering) -> bool:
        """Is each key equal to the first one of its number?"""
        if numbering.count == self.count:
            return True
        if not self._is_plain:
            return self.rows.all_equal(self.gather(numbering.firsts), numbering.codes)
        column = self.columns[0]
        taken = take_rows(self.batch, column, numbering.firsts)
        parts = [(taken.array, column.elements, None, None)]
        rows = _core.KeyRows(self.batch.context, parts, numbering.count, None, self.batch.stream)
        self._taken = numbering.firsts, taken
        return self.rows.all_equal(rows, numbering.codes)

    def take_rows(self, numbering: Numbering) -> Output:
        """The distinct keys of a numbering of one array, while the work may still be under way."""
        taken, self._taken = self._taken, None
        if taken is not None and taken[0] is numbering.firsts:
            return taken[1]
        return take_rows(self.batch, self.columns[0], numbering.firsts)

    def _without_nulls(self, numbering: Numbering) -> Numbering:
        """The numbering of keys alone: -1 for what is none."""
        batch = self.batch
        if self.is_key is None:
            return numbering
        at = _core.find_invalid(batch.context, self.is_key, batch.stream)
        if at == self.count:
            return numbering
        count, codes, firsts, counts = numbering
        number = _core.leave_out(batch.context, codes, at, batch.stream)
        without = [None if array is None else self.batch.new("int64", (count - 1,)) for array in (firsts, counts)]
        for source, target in zip((firsts, counts), without, strict=True):
            if source is not None and target is not None:
                _core.copy_without(batch.context, source, number, target, batch.stream)
        assert without[0] is not None
        return Numbering(count - 1, codes, without[0], without[1])


def _read_columns(keys: Any, what: str) -> tuple[list[Column], Any]:
    """The columns of keys, and the form in which these are given back; None: that of the only column."""
    if (frame := split_frame(keys)) is not None:
        parts: list[Any] = list(frame.values())
        names: list[Any] = list(frame)
    elif isinstance(keys, dict):
        parts, names = list(keys.values()), list(keys)
    elif isinstance(keys, (list, tuple)) and any(map(_is_array, keys)):
        parts, names = list(keys), list(range(len(keys)))
    else:
        return [read_column(keys, what)], None
    if not parts:
        raise ValueError(f"the {what} have no columns: give one or more")
    columns = [read_column(part, f"{what} {name!r}") for name, part in zip(names, parts, strict=True)]
    check_columns(columns, names, what)
    return columns, keys


def keys_of_sides(left: Any, right: Any, names: tuple[str, str], nulls: Literal["key", "none"]) -> tuple[Keys, Keys]:
    """The keys of two sides as they are given, on the left one's stream.

    Columns that have no dtype get that of the other side's. ValueError where the sides are on different devices.
    """
    sides = [_read_columns(given, name)[0] for given, name in zip((left, right), names, strict=True)]
    devices = [side[0].batch.context.device for side in sides]
    if devices[0] != devices[1]:
        raise ValueError(
            f"the {names[0]} are on {devices[0]} and the {names[1]} on {devices[1]}: move one to the other"
        )
    for column in sides[1]:
        sides[0][0].batch.share_stream(column.batch)
    pairs = list(zip(*sides, strict=False))
    ours = [our if our.has_dtype or not their.has_dtype else our.like(their) for our, their in pairs]
    theirs = [their if their.has_dtype or not our.has_dtype else their.like(our) for our, their in pairs]
    first, second = (
        Keys([*columns, *side[len(pairs) :]], None, nulls) for columns, side in zip((ours, theirs), sides, strict=True)
    )
    return first, second


def number_together(left: Keys, right: Keys, codes: _core.Array | None = None) -> tuple[_core.Array, Numbering]:
    """The numbering of the right keys, and the number that each left key has in it, int64 ``[n]``; -1: none. Waits.

    ``codes``: where these numbers go; None: an array of their own. Both sides are on one device and one
    stream. Columns have one dtype on both sides, or integers of any two, which are compared by value.

    Raises
    ------
    TypeError, ValueError
        Where the two sides differ in their columns' number, dtypes or shapes.
    """
    by_value = _check_sides(left, right)
    if codes is None:
        codes = left.batch.new("int64", (left.count,))
    if (unique := _number_unique(left, right, codes)) is not None:
        return codes, unique
    batch = right.batch
    if (packing := right.packing) is not None:
        is_listed = packing.words <= max(_LISTED, _LISTED_PER_KEY * right.count)
        numbers = batch.new("int64", (packing.words if is_listed else 0,))
        if is_listed and (listed := _list_unique(right, packing, numbers)) is not None:
            left.rows.find_listed(packing, numbers, codes)
            return codes, listed
        words = right.pack(packing)
        numbering = right._without_nulls(right.number_words(words))
        if is_listed:
            right.rows.list_numbers(packing, numbering.codes, numbers)
            left.rows.find_listed(packing, numbers, codes)
        else:
            _look_up_words(left.pack(packing), right, words, numbering, codes)
        return codes, numbering
    for tries in itertools.count():
        seed = _core.random_seed()
        words = right.fingerprint(seed, tries, by_value)
        numbering = right.number_words(words)
        if not right._are_equal(numbering):
            continue
        numbering = right._without_nulls(numbering)
        _look_up_words(left.fingerprint(seed, tries, by_value), right, words, numbering, codes)
        if left.is_key is not None:
            _core.mask_codes(batch.context, codes, left.is_key, batch.stream)
        if left.rows.all_equal(right.gather(numbering.firsts), codes):
            return codes, numbering
    raise AssertionError("there is always another try")


def pair_few(left: Keys, right: Keys, kind: str) -> _core.Pairs | None:
    """On a GPU, where right keys are numbers and not too many: pairs by a table of these alone; else None. Waits."""
    batch, column, other = right.batch, right.columns[0], left.columns[0]
    if batch.context.platform == "cpu" or right.count >= _LEAST_TRIED or not (right._is_plain and left._is_plain):
        return None
    if column.kind != other.kind or column.shape != other.shape or column.nbytes > MAX_ROW_BYTES:
        return None
    return _core.Pairs.of_keys(batch.context, other.array, column.array, column.elements, kind, batch.stream)


def _number_unique(left: Keys, right: Keys, codes: _core.Array) -> Numbering | None:
    """On a GPU, where many right keys are unique integers: by a table of their positions alone; else None. Waits."""
    batch, column, other = right.batch, right.columns[0], left.columns[0]
    if batch.context.platform == "cpu" or right.count < _LEAST_TRIED or not (right._is_plain and left._is_plain):
        return None
    if column.kind != other.kind or column.shape or not is_integer(column.dtype):
        return None
    positions = batch.new("int64", (right.count,))
    _core.count_up(batch.context, positions, batch.stream)
    table = _table(batch, column.array, positions)
    if table.size(batch.stream) != right.count:
        return None
    _look_up(table, other.array, codes, batch)
    return Numbering(right.count, positions, positions, None)


def _list_unique(keys: Keys, packing: _core.Packing, numbers: _core.Array) -> Numbering | None:
    """On the host, where keys turn out to be unique: ``numbers`` of their words, which are their positions; else None.

    Fewer words than keys are not tried: many equal keys would write to few places by turns.
    """
    batch = keys.batch
    if batch.context.platform != "cpu" or keys.is_key is not None or packing.words < keys.count:
        return None
    positions = batch.new("int64", (keys.count,))
    _core.count_up(batch.context, positions, batch.stream)
    keys.rows.list_numbers(packing, positions, numbers)
    if _core.Pairs(batch.context, numbers, None, None, "semi", batch.stream).count != keys.count:
        return None
    return Numbering(keys.count, positions, positions, None)


def _table(batch: Batch, keys: _core.Array, numbers: _core.Array) -> _core.Table:
    """Numbers ``[m]`` by their keys ``[m]``."""
    size = max(1, 2 * keys.shape[0])
    table = _core.Table([batch.context], keys.dtype, (), "int64", (), size, None, 0.5, False, None, None, False)
    table.change([(table, keys, [(0, numbers, False, "assign")], [], None, None, batch.stream)])
    return table


def _look_up(table: _core.Table, words: _core.Array, codes: _core.Array, batch: Batch) -> None:
    """codes[i] becomes the number of words[i]; -1: there is none."""
    table.look_up([(table, words, [(0, codes, batch.lend(_MINUS_ONE, "int64"))], None, None, batch.stream)])


def _look_up_words(
    words: _core.Array, right: Keys, right_words: _core.Array, numbering: Numbering, codes: _core.Array
) -> None:
    """codes[i] becomes the number of the right side's key that has the word; -1: there is none."""
    batch = right.batch
    distinct, numbers = batch.new(words.dtype, (numbering.count,)), batch.new("int64", (numbering.count,))
    taken = [(right_words, None, distinct)]
    _core.take(batch.context, taken, right.count, numbering.firsts, batch.stream, trusted=True)
    _core.count_up(batch.context, numbers, batch.stream)
    _look_up(_table(batch, distinct, numbers), words, codes, batch)


def _check_sides(left: Keys, right: Keys) -> bool:
    """Do the sides differ in dtypes, so that integers have to be compared by value? Raises where they do not fit."""
    if len(left.columns) != len(right.columns):
        raise ValueError(f"one side has {len(left.columns)} key columns and the other {len(right.columns)}")
    by_value = False
    for ours, theirs in zip(left.columns, right.columns, strict=True):
        if (ours.offsets is None) != (theirs.offsets is None):
            raise TypeError("strings on one side meet numbers on the other")
        if ours.shape != theirs.shape:
            raise ValueError(f"rows of shape {ours.shape} on one side meet rows of {theirs.shape} on the other")
        if ours.kind != theirs.kind:
            if not (is_integer(ours.kind) and is_integer(theirs.kind)):
                raise TypeError(f"keys of {ours.kind} meet keys of {theirs.kind}: convert one to the other's dtype")
            by_value = True
    return by_value


def _is_array(item: Any) -> bool:
    try:
        return not framework_of(item).python
    except TypeError:
        return False
