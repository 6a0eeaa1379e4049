"""join, Join and get_indexer: which rows of two sides have equal keys, as indices of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import count_of
from gpuhash.arrays.batch import Output

from .keys import Keys, keys_of_sides, number_together, pair_few

How = Literal["inner", "left", "right", "outer", "semi", "anti"]
Validate = Literal["1:1", "1:m", "m:1", "m:m"]
Nulls = Literal["never", "equal"]

_HOWS = ("inner", "left", "right", "outer", "semi", "anti")
_VALIDATES = (None, "1:1", "1:m", "m:1", "m:m")
_NULLS = ("never", "equal")


class JoinIndices(NamedTuple):
    """Rows of the two sides that belong together; -1 where a side has none."""

    left: Any
    right: Any


class Join:
    """The pairs of a join, counted and not yet written: for outputs that may be larger than memory.

    Parameters
    ----------
    left_keys, right_keys, how, validate, nulls
        As for ``join``. They are looked at here, and not any more later on.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As ``join``.
    """

    def __init__(
        self,
        left_keys: Any,
        right_keys: Any,
        how: How = "inner",
        *,
        validate: Validate | None = None,
        nulls: Nulls = "never",
    ) -> None:
        _one_of("how", how, _HOWS)
        _one_of("validate", validate, _VALIDATES)
        _one_of("nulls", nulls, _NULLS)
        kind: Literal["key", "none"] = "key" if nulls == "equal" else "none"
        left, right = keys_of_sides(left_keys, right_keys, ("left_keys", "right_keys"), kind)
        self._batch = left.batch
        if validate is not None and validate.startswith("1"):
            _Groups(left).need_unique("left_keys", f"validate={validate!r}")
        self._swapped = how == "right"  # then the right rows are the first side, whose order counts
        self._single = how in ("semi", "anti")
        self._rest = None
        first, second = (right, left) if self._swapped else (left, right)
        needs_numbers = how == "outer" or (validate is not None and validate.endswith("1"))
        if not needs_numbers and (pairs := pair_few(first, second, _PAIRS[how])) is not None:
            self._pairs = pairs
            return
        codes, numbering = number_together(first, second)
        groups = _Groups(second, numbering)
        if validate is not None and validate.endswith("1"):
            (_Groups(right) if self._swapped else groups).need_unique("right_keys", f"validate={validate!r}")
        offsets, partners = (None, None) if self._single else groups.partners()
        self._pairs = _core.Pairs(left.batch.context, codes, offsets, partners, _PAIRS[how], left.batch.stream)
        if how == "outer":
            kept = left.batch.new("int64", (right.count,))
            _core.keep_common(left.batch.context, numbering.codes, codes, numbering.count, kept, left.batch.stream)
            self._rest = _core.Pairs(left.batch.context, kept, None, None, "anti", left.batch.stream)

    @property
    def count(self) -> int:
        """The number of pairs, or of rows with ``how="semi"`` and ``"anti"``; it may be beyond all memory."""
        return self._pairs.count + (0 if self._rest is None else self._rest.count)

    def indices(self) -> Any:
        """All of them, as ``join`` gives them. MemoryError where there is no room for them."""
        return self._write(0, self.count)

    def pieces(self, rows: int = 1 << 24) -> Iterator[Any]:
        """Likewise, in pieces of up to ``rows`` pairs, of which each is made when it is asked for.

        Raises
        ------
        TypeError, ValueError
            For ``rows`` that are no number of 1 or more.
        """
        rows = count_of(rows, "rows")
        if rows == 0:
            raise ValueError("rows=0 was given, expected a number of pairs of 1 or more")
        return (self._write(begin, min(begin + rows, self.count)) for begin in range(0, self.count, rows))

    def _write(self, begin: int, end: int) -> Any:
        batch = self._batch
        batch.resume()
        outputs = [Output(batch, "int64", (end - begin,)) for _ in range(1 if self._single else 2)]
        arrays = [output.array for output in outputs]
        if self._single:
            self._pairs.write(begin, end, arrays[0], None, 0)
        else:
            first, second = reversed(arrays) if self._swapped else arrays
            among = self._pairs.count
            paired = max(0, min(end, among) - begin)
            if paired:
                self._pairs.write(begin, begin + paired, first, second, 0)
            if self._rest is not None and end > among:
                self._rest.write(begin + paired - among, end - among, second, first, paired)
        batch.finish()
        results = [output.result(batch) for output in outputs]
        return results[0] if self._single else JoinIndices(*results)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} count={self.count}, device={self._batch.context.device}>"


_PAIRS = {"inner": "inner", "left": "left", "right": "left", "outer": "left", "semi": "semi", "anti": "anti"}


def join(
    left_keys: Any,
    right_keys: Any,
    how: How = "inner",
    *,
    validate: Validate | None = None,
    nulls: Nulls = "never",
) -> Any:
    """The rows of two sides whose keys are equal, as indices of both.

    Parameters
    ----------
    left_keys, right_keys
        The keys of each side: an array of one dimension, or of several, whose rows are keys. Of the dtypes and
        frameworks of ``unique``, by which keys are equal: -0.0 equals 0.0, and NaN equals NaN. Both on one device.
        Several columns, also those of frames and dicts, meet those of the other side by their places, whatever their
        names. Columns of no dtype, which are empty or nulls alone, meet all others.
    how
        * "inner": every left row with every right row of its key, in the order of the left rows, and of one left row in
          the order of the right ones;
        * "left": likewise, and left rows without a partner with -1;
        * "right": every right row with every left row of its key, or -1, in the order of the right rows, and of one
          right row in the order of the left ones;
        * "outer": as "left", and at the end the right rows without a partner, in their order, with -1;
        * "semi": the left rows that have a partner, in their order, once each;
        * "anti": the left rows that have none, in their order.
    validate
        "1:1", "1:m", "m:1" or "m:m": are the keys of the left side, of the right one, of both or of none to be unique?
        None is "m:m". The order of magnitude of what "1:..." costs is that of ``factorize``; of a right side that is
        unique the join learns by itself.
    nulls
        "never": nulls of columns match nothing, as in SQL and polars. "equal": a null matches every null, as in pandas.

    Returns
    -------
    JoinIndices
        A named tuple of ``left`` and ``right``, int64 ``[pairs]``; with "semi" and "anti" one array. Of the framework
        and device of ``left_keys``. Does not depend on timing. Waits for the GPU.

    Raises
    ------
    TypeError
        Where keys are no arrays of a dtype that ``unique`` takes, or those of the two sides cannot be compared.
    ValueError
        For an unknown ``how``, ``validate`` or ``nulls``, keys that ``validate`` does not allow, rows of different
        shapes, and arrays on different devices.
    MemoryError
        Where there is no room for the result or for temporary memory; ``Join(...).pieces()`` gives it in pieces.
    """
    return Join(left_keys, right_keys, how, validate=validate, nulls=nulls).indices()


def get_indexer(keys: Any, targets: Any) -> Any:
    """Where each target is among unique keys, as ``pandas.Index(keys).get_indexer(targets)`` says.

    Parameters
    ----------
    keys, targets
        As the keys of ``join``. A null equals a null, as in pandas.

    Returns
    -------
    int64 ``[len(targets)]``, positions in ``keys``, -1 for targets that are not among them; of the targets' framework
    and device. Waits for the GPU.

    Raises
    ------
    ValueError
        Where a key comes more than once, and as ``join``.
    TypeError, MemoryError
        As ``join``.
    """
    left, right = keys_of_sides(targets, keys, ("targets", "keys"), "key")
    batch = left.batch
    output = Output(batch, "int64", (left.count,))
    _, numbering = number_together(left, right, output.array)  # of unique keys in order: the positions
    _Groups(right, numbering).need_unique("keys", "get_indexer")
    batch.finish()
    return output.result(batch)


class _Groups:
    """The rows of each key of one side."""

    def __init__(self, keys: Keys, numbering: Any = None) -> None:
        self._batch = keys.batch
        self._rows = keys.count
        self._numbering = keys.number() if numbering is None else numbering
        batch, codes = self._batch, self._numbering.codes
        if self._numbering.count < self._rows:  # there are duplicates, or nulls that are no keys
            self._rows = _core.Pairs(batch.context, codes, None, None, "semi", batch.stream).count
        self.are_single = self._numbering.count == self._rows

    def partners(self) -> tuple[_core.Array | None, _core.Array | None]:
        """What ``_core.Pairs`` takes: offsets and rows; None for single rows, and for rows that are their numbers."""
        numbering, batch = self._numbering, self._batch
        if self.are_single:
            return None, None if numbering.codes.shape == (numbering.count,) else numbering.firsts
        offsets = batch.new("int64", (numbering.count + 1,))
        order = batch.new("int64", numbering.codes.shape)
        _core.group_positions(batch.context, numbering.codes, offsets, order, batch.stream)
        return offsets, order

    def need_unique(self, what: str, who: str) -> None:
        """ValueError where a key has several rows."""
        if self.are_single:
            return
        batch = self._batch
        codes, firsts = (batch.to_host(array) for array in (self._numbering.codes, self._numbering.firsts))
        again = np.flatnonzero((codes >= 0) & (firsts[codes] != np.arange(len(codes))))
        raise ValueError(
            f"{len(again)} of the {len(codes)} {what} repeat others, such as the one at position {again[0]} that at "
            f"position {firsts[codes[again[0]]]}, and {who} takes {what} that are unique: leave duplicates out, as "
            "unique(..., return_index=True) does" + ("" if who == "get_indexer" else ", or give another validate=")
        )


def _one_of(name: str, given: Any, known: tuple[str | None, ...]) -> None:
    if not (given is None or isinstance(given, str)) or given not in known:
        raise ValueError(f"{name}={given!r} was given, expected one of {', '.join(map(repr, known))}")
