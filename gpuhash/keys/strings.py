"""Keys that are strings: each distinct string has a number, and the numbers are the keys of the core.

The strings lie in the host's memory, one after the other, in the order of their numbers. An index, a table of the core,
finds them: their fingerprints to their numbers. A string whose fingerprint another one has taken lies under the next
number that is free, as in linear probing, and each answer is compared in full. So the numbers are exact.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arrow_c import StringChunk, opened, take_strings
from gpuhash.arrays.batch import Batch
from gpuhash.arrays.memory import make_context
from gpuhash.arrays.strings import Strings, is_empty_sequence

_Array = np.ndarray[Any, Any]

#: What a string takes beside its bytes: its entry in the index and its offset.
_BYTES_BESIDE = 32
#: Stores of fewer bytes are not looked through for strings that no key has.
_LEAST_COMPACTED = 1 << 16
_LOAD_FACTOR = 0.8
_ABSENT = np.array(-1)
_DTYPES: dict[object, str] = {"str": "str", str: "str", "bytes": "bytes", bytes: "bytes"}


def string_dtype(dtype: object) -> str | None:
    """ "str" or "bytes" for a key dtype of strings; None for any other."""
    if isinstance(dtype, np.dtypes.StringDType) or dtype is np.dtypes.StringDType:
        return "str"
    try:
        return _DTYPES.get(dtype) if isinstance(dtype, (str, type)) else None
    except TypeError:  # not hashable
        return None


def no_strings(dtype: str, who: str) -> str:
    """What to say of a table of strings where there can be none, such as of ``who="JAX has"``."""
    return (
        f"a table whose keys are {dtype!r} was given, and {who} no strings as keys: number them before, as by "
        "gpuhash.factorize, and give a table of the numbers"
    )


class StringBatch(Batch):
    """The keys of a call on a table of strings: their numbers, -1 for strings that no table has."""

    __slots__ = ("numbers", "strings")

    strings: Strings
    numbers: _Array  # int64 [n]


class _State(NamedTuple):
    """What lookups see: replaced as a whole, so that each sees all of it."""

    table: _core.Table  # the index, uint64 fingerprints to numbers
    first: int  # the number of the first string
    offsets: _Array  # int64 [count + 1]; strings that no key has any more may have length 0
    data: _Array  # uint8 [offsets[count]]


class StringKeys:
    """The strings of a table and their numbers, from 0 in the order in which they come.

    A number is published after its bytes, and means its string as long as a key of the table has it, or a call that
    holds it lives. No number is given twice.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype  # "str" or "bytes"
        self._context = make_context("cpu")
        self._seed = _core.random_seed()
        self._lock = threading.RLock()  # of whoever changes anything here
        #: The numbers that calls hold, by the addresses of the arrays.
        self._held: dict[int, weakref.ref[_Array]] = {}
        self._set(_State(self._new_index(), 0, np.zeros(1, np.int64), np.empty(0, np.uint8)), 0)

    def _set(self, state: _State, stored: int) -> None:
        """Another store, of which so many strings are in the index."""
        self._offsets_room, self._data_room = state.offsets, state.data
        self._stored = stored
        self._released = 0  # bytes of strings that no key has any more, or more than these
        self._look_when_released = max(_LEAST_COMPACTED, self._bytes_of(state)) // 2
        self._look_when_stored = 2 * max(_LEAST_COMPACTED, self._bytes_of(state))
        self._state = state

    def copy(self) -> StringKeys:
        """The same strings with the same numbers. Strings that are added to one of both are not in the other."""
        with self._lock:
            made = StringKeys(self.dtype)
            made._seed = self._seed
            made._set(self._state._replace(table=self._state.table.clone(self._context, 0)), self._stored)
        return made

    @property
    def is_text(self) -> bool:
        return self.dtype == "str"

    @property
    def lock(self) -> threading.RLock:
        """Who has it keeps numbers and strings as they are: none come, and none go."""
        return self._lock

    @property
    def count(self) -> int:
        """How many strings there are, those among them that no key has any more."""
        return self._stored

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._offsets_room.nbytes + self._data_room.nbytes + self._state.table.nbytes

    # Strings that are given ------------------------------------------------------------------------------------------

    def read(self, keys: Any) -> Strings:
        """Keys as a caller gives them.

        Raises
        ------
        TypeError
            For what is no strings, and text where keys are bytes, or the other way round.
        ValueError
            For nulls, and text that UTF-8 cannot encode.
        """
        keys = opened(keys)
        strings = Strings.read(keys)
        if strings is None and is_empty_sequence(keys):
            return Strings.empty(self.is_text, np.shape(keys))
        kind, example = ("text", "'a'") if self.is_text else ("bytes", "b'a'")
        if strings is None:
            raise TypeError(
                f"keys that are no strings were given, {_described(keys)}, to a table whose keys are {kind}: give "
                f"strings, as {example}, or a list or column of them, or make the table with the dtype of these keys"
            )
        if strings.text != self.is_text:
            given = "text" if strings.text else "bytes"
            call = "keys.encode()" if strings.text else "keys.decode()"
            raise TypeError(
                f"the keys are {given}, and those of the table {kind}, which equal none of them: convert them, as by "
                f"{call}, or make the table with the key dtype {'str' if strings.text else 'bytes'!r}"
            )
        strings.need_no_nulls("keys")
        return strings

    # Numbers ---------------------------------------------------------------------------------------------------------

    def find(self, strings: Strings) -> _Array:
        """The numbers of strings, int64 ``[n]``; -1 for those that have none."""
        return self._search(strings)[0]

    def intern(self, strings: Strings) -> _Array:
        """Likewise; strings that have no number get one. Held as long as the array lives.

        Raises
        ------
        MemoryError
            Where there is no room; the numbers are as they were.
        """
        while True:
            numbers, index = self._search(strings)
            with self._lock:
                if self._state.table is not index:  # a string that was found may be gone
                    continue
                absent = np.flatnonzero(numbers < 0)
                if len(absent) == len(numbers):
                    numbers = self._search(strings, add=True)[0]
                elif len(absent):
                    numbers[absent] = self._search(strings.take(absent), add=True)[0]
                self.hold(numbers)
                return numbers

    def hold(self, numbers: _Array) -> None:
        """The strings of these numbers stay as long as the array lives. To be called with the lock."""
        key = id(numbers)
        # Without the lock, which whoever frees the array may wait for.
        self._held[key] = weakref.ref(numbers, lambda _: self._held.pop(key, None))

    def strings_of(self, numbers: _Array) -> Strings:
        """The strings of numbers ``[n]`` that keys have, or that are held."""
        state = self._state
        chunk = take_strings(StringChunk(state.offsets, state.data, None), _positions(numbers, state))
        return Strings.of_chunk(chunk, self.is_text)

    def _search(self, strings: Strings, add: bool = False) -> tuple[_Array, _core.Table]:
        """The numbers of strings, and the index that had them. ``add`` needs the lock."""
        numbers = np.empty(strings.count, np.int64)
        index = self._state.table
        words = self._fingerprint(strings)
        places: _Array | None = None  # of these words; None: all
        while len(words):
            found = np.empty(len(words), np.int64)
            index.look_up(
                [(index, _core.borrow(words), [(0, _core.borrow(found), _core.borrow(_ABSENT))], None, None, 0)]
            )
            if add:
                self._add(strings, places, words, found)
            state = self._state  # after the lookup: it has all strings of which the index knew
            if state.table is not index:
                return self._search(strings, add)
            if places is None:
                numbers = found
            else:
                numbers[places] = found
            others = self._different(state, strings, places, found)
            places = others if places is None else places[others]
            words = words[others] + np.uint64(1)
        return numbers, index

    def _add(self, strings: Strings, places: _Array | None, words: _Array, found: _Array) -> None:
        """Adds the first string of each word that was not found, and sets what was found."""
        absent = np.flatnonzero(found < 0)
        if not len(absent):
            return
        work = _core.Factorization(self._context, _core.borrow(words[absent]), 1, True, False, 0)
        codes, firsts = np.empty(len(absent), np.int64), np.empty(work.count, np.int64)
        work.write(None, _core.borrow(codes), None, _core.borrow(firsts), False)
        firsts = absent[firsts]
        fresh = self._append(strings.take(firsts if places is None else places[firsts]))
        index = self._state.table
        writes = [(0, _core.borrow(fresh), False, "keep")]
        index.change([(index, _core.borrow(words[firsts]), writes, [], None, None, 0)])
        found[absent] = fresh[codes]

    def _different(self, state: _State, strings: Strings, places: _Array | None, found: _Array) -> _Array:
        """Where strings differ from those of the numbers that were found."""
        positions = _positions(found, state)
        given = strings if places is None else strings.take(places)
        store = self._rows(state.offsets, state.data)
        if self._rows(given.offsets, given.data).all_equal(store, _core.borrow(positions)):
            return np.empty(0, np.int64)
        present = np.flatnonzero(positions >= 0)
        mine = given.take(present)
        theirs = take_strings(StringChunk(state.offsets, state.data, None), positions[present])
        different = np.diff(mine.offsets) != np.diff(theirs.offsets)
        alike = np.flatnonzero(~different)
        mine = mine.take(alike)
        unlike = mine.data != take_strings(theirs, alike).data
        counts = np.concatenate([[0], np.cumsum(unlike)])[mine.offsets]
        different[alike] = np.diff(counts) != 0
        result: _Array = present[different]
        return result

    def _fingerprint(self, strings: Strings) -> _Array:
        words = np.empty(strings.count, np.uint64)
        self._rows(strings.offsets, strings.data).fingerprint(self._seed, False, 0, _core.borrow(words))
        return words

    def _rows(self, offsets: _Array, data: _Array) -> _core.KeyRows:
        return _core.KeyRows(
            self._context, [(_core.borrow(data), 1, None, _core.borrow(offsets))], len(offsets) - 1, None, 0
        )

    def _new_index(self) -> _core.Table:
        return _core.Table(
            [self._context], "uint64", (), "int64", (), 0, None, _LOAD_FACTOR, False, _core.random_seed(), None, False
        )

    # The store -------------------------------------------------------------------------------------------------------

    def _append(self, strings: Strings) -> _Array:
        """Puts strings after the others, and gives their numbers."""
        state = self._state
        count, size = len(state.offsets) - 1, len(state.data)
        end, whole = count + strings.count, size + len(strings.data)
        self._offsets_room = _with_room(self._offsets_room, count + 1, end + 1)
        self._data_room = _with_room(self._data_room, size, whole)
        np.add(strings.offsets[1:], size, out=self._offsets_room[count + 1 : end + 1])
        self._data_room[size:whole] = strings.data
        self._stored += strings.count
        self._state = state._replace(offsets=self._offsets_room[: end + 1], data=self._data_room[:whole])
        return np.arange(state.first + count, state.first + end)

    def _bytes_of(self, state: _State) -> int:
        return len(state.data) + _BYTES_BESIDE * self._stored

    @property
    def has_doubled(self) -> bool:
        """Are there twice as many bytes as when the store was last looked through?"""
        return self._bytes_of(self._state) > self._look_when_stored

    def put_off(self) -> None:
        """Almost all strings are of keys: the store is to be looked through when it has doubled once more."""
        with self._lock:
            self._look_when_stored = 2 * self._bytes_of(self._state)

    def release(self, numbers: _Array) -> bool:
        """Of keys that may have been erased, -1 among them. Is the store to be looked through?"""
        with self._lock:
            state = self._state
            positions = _positions(numbers, state)
            positions = positions[positions >= 0]
            lengths = state.offsets[positions + 1] - state.offsets[positions]
            self._released += int(lengths.sum()) + _BYTES_BESIDE * len(positions)
            return bool(self._released > self._look_when_released)

    def compact(self, live: Callable[[], _Array]) -> None:
        """Lets go of strings that no key has and no call holds, where they take more than half of the bytes.

        ``live`` gives the numbers of all keys.
        """
        with self._lock:
            # Calls end by putting their keys into the table: so these come first, and the keys after them.
            held = [numbers for each in list(self._held.values()) if (numbers := each()) is not None]
            state = self._state
            kept = np.zeros(len(state.offsets) - 1, bool)
            for numbers in (*held, live()):
                positions = _positions(numbers.reshape(-1), state)
                kept[positions[positions >= 0]] = True
            lengths = np.where(kept, np.diff(state.offsets), 0)
            whole = self._bytes_of(state)
            dead = whole - int(lengths.sum()) - _BYTES_BESIDE * int(np.count_nonzero(kept))
            if 2 * dead <= whole:
                self._released = dead
                self._look_when_released = max(whole // 2, dead + whole // 8)
                self._look_when_stored = 2 * max(_LEAST_COMPACTED, whole)
                return
            positions = np.flatnonzero(kept)
            first = int(positions[0]) if len(positions) else len(kept)
            chunk = take_strings(StringChunk(state.offsets, state.data, None), positions)
            offsets = np.concatenate([[0], np.cumsum(lengths[first:])])
            index = self._indexed(Strings.of_chunk(chunk, self.is_text), state.first + positions)
            self._set(_State(index, state.first + first, offsets, chunk.data), len(positions))

    def _indexed(self, strings: Strings, numbers: _Array) -> _core.Table:
        """An index of distinct strings."""
        index = self._new_index()
        index.reserve(len(numbers), 0)
        words = self._fingerprint(strings)
        while len(words):
            inserted = np.empty(len(words), bool)
            writes = [(0, _core.borrow(numbers), False, "keep")]
            index.change([(index, _core.borrow(words), writes, [], _core.borrow(inserted), None, 0)])
            words, numbers = words[~inserted] + np.uint64(1), numbers[~inserted]
        return index


def _positions(numbers: _Array, state: _State) -> _Array:
    """Where the strings of numbers lie; negative where they do not."""
    positions: _Array = numbers - state.first if state.first else numbers
    return positions


def _with_room(array: _Array, used: int, wanted: int) -> _Array:
    """The array, or a longer one that begins with the same entries. What is used of the old one stays as it is."""
    if wanted <= len(array):
        return array
    longer = np.empty(max(wanted, used + used // 2), array.dtype)
    longer[:used] = array[:used]
    return longer


def _described(keys: Any) -> str:
    """Keys that are no strings, for an error."""
    if keys is None or isinstance(keys, (int, float)):
        return repr(keys)
    if isinstance(keys, (list, tuple)) and keys:
        return f"a {type(keys).__name__} of {type(keys[0]).__name__}"
    dtype = getattr(keys, "dtype", getattr(keys, "type", None))
    return f"a {type(keys).__name__}" + ("" if dtype is None else f" of {dtype}")
