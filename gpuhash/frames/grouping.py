"""group_by: what becomes of values whose keys are equal, of whole arrays at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import flag_of
from gpuhash.arrays.batch import Output

from .answers import PICKS, SPREADS, answer, may_be_missing, missing_of
from .distinct_values import count_pairs, find_pairs
from .keys import Keys, Numbering
from .kinds import StandIn, stand_in_for
from .values import NO_COLUMN, Column, is_column, take_column

#: Of values; those that the core has.
_FOLDED = ("sum", "mean", "min", "max", "count", "first", "last", "any", "all", "var", "std")
OPERATIONS = (*_FOLDED, "nunique")

#: What the core is asked: (operation, values, valid, out, ddof, counts of parts, squares of parts).
Request = tuple[str, Any, Any, _core.Array, float, Any, Any]


def group_by(keys: Any, *, sorted: bool = False, nulls: str = "key") -> Groups:
    """Groups of equal keys, for aggregates of the values beside them.

    Parameters
    ----------
    keys
        As for ``unique`` with ``axis=0``: an array of any framework whose entries or rows are the keys, on the host or
        on a GPU, or a column of pandas, polars or Arrow. Keys are compared as ``unique`` compares them.
    sorted
        Order the groups by their keys, ascending; else they come in order of their keys' first occurrence.
    nulls
        What keys that are null are: ``"key"``, a key of their own, or ``"drop"``, left out with their rows.

    Returns
    -------
    Groups
        Holds the keys, which must not change as long as it is used. Waits for the GPU, because the number of groups
        has to be known.

    Notes
    -----
    On the host, groups of keys of up to 8 bytes are found when the first aggregates are asked for, in the same pass.

    Raises
    ------
    TypeError, ValueError, OverflowError, MemoryError
        As ``unique``, and for other ``nulls``.

    Examples
    --------
    >>> groups = gpuhash.group_by(np.array([7, 5, 7]))
    >>> groups.keys, groups.agg(sum=np.array([1.5, 2.0, 3.0]))["sum"]
    (array([7, 5]), array([4.5, 2. ]))
    """
    return Groups(Keys.of(keys, "keys", nulls=nulls_of(nulls)), flag_of(sorted, "sorted"))


def nulls_of(nulls: Any) -> Literal["key", "none"]:
    """What ``Keys`` calls it."""
    if nulls not in ("key", "drop"):
        raise ValueError(f"nulls={nulls!r} was given, expected 'key' or 'drop'")
    return "key" if nulls == "key" else "none"


class Groups:
    """Groups of equal keys; ``group_by`` makes them."""

    def __init__(self, keys: Keys, sorted: bool) -> None:
        self._keys = keys
        self._sorted = sorted
        self._found: Numbering | None = None
        self._folded: Numbering | None = None  # without codes
        if sorted or keys.batch.context.platform != "cpu" or keys.fold_words is None:
            self._number()

    def _number(self) -> Numbering:
        """Finds the groups, if that has not been done yet."""
        if self._found is None:
            self._found = self._keys.number(sorted=self._sorted)
        return self._found

    def __len__(self) -> int:
        """The number of groups, m."""
        return (self._folded or self._number()).count

    def __repr__(self) -> str:
        return f"<gpuhash.Groups: {len(self)} groups of {self._keys.count} keys>"

    @cached_property
    def keys(self) -> Any:
        """The distinct keys, ``[m]`` or ``[m, *row]``, in the form in which the keys were given; on their device."""
        return self._keys.distinct(self._folded or self._number())

    @cached_property
    def codes(self) -> Any:
        """int64 ``[n]``: the number of each key's group; -1 where it was dropped. Of the keys' framework and device."""
        batch = self._keys.batch
        batch.resume()
        numbered = self._number().codes
        codes = Output(batch, "int64", numbered.shape)
        batch.context.copy(codes.array, numbered, batch.stream)
        batch.finish()
        return codes.result(batch)

    @cached_property
    def counts(self) -> Any:
        """int64 ``[m]``: the number of each group's rows. Of the keys' framework and device."""
        return self.agg(count=True)["count"]

    def agg(self, *, ddof: float = 1, skipna: bool = False, **aggregates: Any) -> dict[str, Any]:
        """Aggregates of columns, by group, all of them in one pass over the rows.

        Parameters
        ----------
        ddof
            ``var`` and ``std`` divide by the number of values less this.
        skipna
            Pass NaN over as nulls are passed over, in all aggregates of floats and complex numbers.
        **aggregates
            ``operation=column``, or ``operation=`` a list, tuple or dict of columns. Operations are ``sum``, ``mean``,
            ``min``, ``max``, ``count``, ``nunique``, ``first``, ``last``, ``any``, ``all``, ``var`` and ``std``;
            ``count=True`` counts rows. A column has ``n`` numbers: an array of any framework, on the keys' device or on
            the host, a column of pandas, polars or Arrow, a masked array of NumPy, or Python numbers. Or, on the host,
            ``n`` dates, times or durations of NumPy, pandas, polars or pyarrow, or strings of any source, as keys may
            be. Nulls, NaT and masked entries are passed over. A list of numbers or strings is one column.

        Returns
        -------
        dict
            For each operation an array ``[m]``, or a list, tuple or dict of such, as the columns were given. Of the
            keys' framework and device; columns of pandas, polars or pyarrow where the keys are such. Sums of integers
            and booleans are int64, of unsigned integers uint64, and wrap; of floats they have the same dtype and are
            summed up in float64, as means, variances and deviations are, which are float64 for integers. Those of
            16-bit floats come as float32. ``min``, ``max``, ``first`` and ``last`` keep the dtype; ``count`` and
            ``nunique`` are int64.

            Of dates, times, durations and strings there are ``min``, ``max``, ``first``, ``last``, ``count`` and
            ``nunique``, and of durations ``sum``. Strings are compared by their bytes, text so by its code points. What
            is one of the values comes on the host, in a column of the keys' library, or where they have none in the
            form in which the values were given.

            A group without values has a count and sum of 0, ``any`` is False and ``all`` True. In the other aggregates
            it is null in a library's columns, and NaN in arrays. Integers and booleans have none: there the result is a
            masked array. Groups of ``ddof`` values or fewer have no variance and deviation.

        Notes
        -----
        Without ``skipna``, NaN is a value like others: sums and means with it are NaN, and so are minima and maxima. A
        group of NaN alone is with it a group without values. -0.0 is less than 0.0.
        The last bits of sums of floats may depend on timing on a GPU, and on the host on the number of threads; nothing
        else does. ``var``, ``std`` and ``nunique`` take more than one pass. Waits for the GPU only where a framework
        works on streams of its own, for ``nunique``, for what is no number, and where integers have nulls.

        Raises
        ------
        TypeError
            For operations that there are not, columns of dtypes that tables do not take, or whose dtype the operation
            is not for: complex numbers have no order and no variance here, dates and text no sum, and categories that
            are ordered no minimum. Where no aggregate is given.
        ValueError
            For columns of another length, on another device, and where a group of integers has no value and the keys
            are not of NumPy, pandas, polars or Arrow.
        MemoryError
            Where there is no room for the results or for temporary memory.
        """
        ddof = number_of(ddof)
        skipna = flag_of(skipna, "skipna")
        check_operations(aggregates, OPERATIONS)
        self._keys.batch.resume()
        call = _Call(self._keys, ddof, skipna, stand_in_for(aggregates))
        asked = {op: _ask(op, given, call, op) for op, given in aggregates.items()}
        if self._found is None and (folded := call.fold()) is not None:
            self._folded = folded
        else:
            call.run(self._number())
        return {op: _mirror(answers, lambda answer: answer()) for op, answers in asked.items()}


def number_of(ddof: Any) -> float:
    if not isinstance(ddof, Real):
        raise TypeError(f"ddof={ddof!r} was given, expected a number")
    return float(ddof)


def check_operations(aggregates: dict[str, Any], known: tuple[str, ...]) -> None:
    if not aggregates:
        raise TypeError(f"no aggregate was given: give operation=column, with one of {', '.join(known)}")
    for op in aggregates:
        if op not in known:
            raise TypeError(f"there is no aggregate {op!r}: give one of {', '.join(known)}")


Answer = Callable[[], Any]


def _ask(op: str, given: Any, call: _Call, what: str) -> Any:
    """Asks for an operation of a column, or of each in a collection; what it gives has the collection's form."""
    if op == "count" and given is True:
        return call.ask(op, None, what)
    if given is None or isinstance(given, (bool, np.bool_)):
        raise TypeError(f"{what}={given!r} was given, expected a column" + (" or True" if op == "count" else ""))
    if isinstance(given, dict):
        return {name: call.ask(op, column, f"{what} of {name!r}") for name, column in given.items()}
    if is_column(given):
        return call.ask(op, given, what)
    return _like(given, [call.ask(op, column, f"{what} number {i}") for i, column in enumerate(given)])


def _mirror(answers: Any, visit: Callable[[Answer], Any]) -> Any:
    if isinstance(answers, dict):
        return {name: visit(answer) for name, answer in answers.items()}
    if isinstance(answers, (list, tuple)):
        return _like(answers, [visit(answer) for answer in answers])
    return visit(answers)


def _like(given: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A list, a tuple, or a named one."""
    make = getattr(given, "_make", type(given))
    return make(items)


class _Asked(NamedTuple):
    """What is asked for one column."""

    op: str
    column: Column
    dtype: str
    results: list[Output]  # one, when there is one


class _Call:
    """All that one call of ``agg`` asks the core for."""

    def __init__(self, keys: Keys, ddof: float, skipna: bool, stand_in: StandIn) -> None:
        self.keys = keys
        self.batch = keys.batch
        self.ddof = ddof
        self.skipna = skipna
        self.stand_in: StandIn = stand_in
        self.asked: list[_Asked] = []
        self.columns: dict[int, tuple[Any, Column]] = {}  # by the identity of what was given, which is kept

    def column(self, given: Any, what: str) -> Column:
        if given is None:
            return NO_COLUMN
        known = self.columns.get(id(given))
        if known is None:
            label = f"values for {what}"
            column = take_column(given, self.batch, self.keys.count, label, skipna=self.skipna, stand_in=self.stand_in)
            known = self.columns[id(given)] = (given, column)
        return known[1]

    def ask(self, op: str, given: Any, what: str) -> Answer:
        column = self.column(given, what)
        kind = column.kind
        dtype = kind.result_dtype(op, what)
        results = self._ask(op, column, dtype)
        library = self.keys.library
        if kind.gives(op):
            known = self._ask("count", column, "int64") if column.valid is not None and op in PICKS else None

            def given_back() -> Any:
                missing = None if known is None else self.batch.to_host(known[0].array) == 0
                return kind.give(self.batch.to_host(results[0].array), missing, library)

            return given_back
        if (column.valid is None and op not in SPREADS) or not may_be_missing(op, dtype, library):
            return lambda: answer(results[0].result(self.batch), None, library, self.batch, what)
        counts = self._ask("count", column, "int64")

        def answered() -> Any:
            missing = missing_of(op, self.batch.to_host(counts[0].array), self.ddof)
            return answer(results[0].result(self.batch), missing, library, self.batch, what)

        return answered

    def _ask(self, op: str, column: Column, dtype: str) -> list[Output]:
        results: list[Output] = []
        self.asked.append(_Asked(op, column, dtype, results))
        return results

    def fold(self) -> Numbering | None:
        """Finds the groups as well, where that is faster; without their codes."""
        batch = self.batch
        words = self.keys.fold_words
        if words is None or any(asked.op == "nunique" for asked in self.asked):
            return None
        requests = [(asked.op, asked.column.values, asked.column.valid) for asked in self.asked]
        groups = _core.GroupFold.make(batch.context, *words, requests, batch.stream)
        if groups is None:
            return None
        firsts = batch.new("int64", (groups.count,))
        groups.write(firsts, [output.array for output in self._outputs(groups.count)])
        return Numbering(groups.count, batch.new("int64", (0,)), firsts, None)

    def run(self, numbering: Numbering) -> None:
        batch = self.batch
        requests: list[Request] = []
        for asked, out in zip(self.asked, self._outputs(numbering.count), strict=True):
            if asked.op == "nunique":
                self._count_distinct(numbering, asked.column, out)
            else:
                values, valid, _ = asked.column
                requests.append((asked.op, values, valid, out.array, self.ddof, None, None))
        if requests:
            _core.aggregate(batch.context, numbering.codes, numbering.count, requests, batch.stream)
        batch.finish()

    def _outputs(self, count: int) -> list[Output]:
        outputs = []
        for asked in self.asked:
            outputs.append(Output(self.batch, asked.dtype, (count,)))
            asked.results.append(outputs[-1])
        return outputs

    def _count_distinct(self, numbering: Numbering, column: Column, out: Output) -> None:
        assert column.values is not None
        pairs = find_pairs(self.batch, numbering.codes, column.values, column.valid)
        count_pairs(self.batch, pairs.groups, numbering.count, out.array)
