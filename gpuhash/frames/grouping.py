"""group_by: what becomes of values whose keys are equal, of whole arrays at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import flag_of
from gpuhash.arrays.batch import Batch, Output
from gpuhash.arrays.dtypes import is_integer

from .columns import Column, is_column, new_array, take_column, to_host
from .keys import Keys

#: Of values; those that the core has.
_FOLDED = ("sum", "mean", "min", "max", "count", "first", "last", "any", "all", "var", "std")
OPERATIONS = (*_FOLDED, "nunique")
#: A group of which all values are null has no such one.
PICKS = ("min", "max", "first", "last")

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


def nulls_of(nulls: Any) -> str:
    """What ``Keys`` calls it."""
    if nulls not in ("key", "drop"):
        raise ValueError(f"nulls={nulls!r} was given, expected 'key' or 'drop'")
    return "key" if nulls == "key" else "none"


class Groups:
    """Groups of equal keys; ``group_by`` makes them."""

    def __init__(self, keys: Keys, sorted: bool) -> None:
        self._keys = keys
        self._numbering = keys.number(sorted=sorted)

    def __len__(self) -> int:
        """The number of groups, m."""
        return self._numbering.count

    def __repr__(self) -> str:
        return f"<gpuhash.Groups: {len(self)} groups of {self._keys.count} keys>"

    @cached_property
    def keys(self) -> Any:
        """The distinct keys, ``[m]`` or ``[m, *row]``, in the form in which the keys were given; on their device."""
        return self._keys.distinct(self._numbering)

    @cached_property
    def codes(self) -> Any:
        """int64 ``[n]``: the number of each key's group; -1 where it was dropped. Of the keys' framework and device."""
        batch = self._keys.batch
        codes = Output(batch, "int64", self._numbering.codes.shape)
        batch.context.copy(codes.array, self._numbering.codes, batch.stream)
        batch.finish()
        return codes.result(batch)

    @cached_property
    def counts(self) -> Any:
        """int64 ``[m]``: the number of each group's rows. Of the keys' framework and device."""
        return self.agg(count=True)["count"]

    def agg(self, *, ddof: float = 1, **aggregates: Any) -> dict[str, Any]:
        """Aggregates of columns, by group, all of them in one pass over the rows.

        Parameters
        ----------
        ddof
            ``var`` and ``std`` divide by the number of values less this.
        **aggregates
            ``operation=column``, or ``operation=`` a list, tuple or dict of columns. Operations are ``sum``, ``mean``,
            ``min``, ``max``, ``count``, ``nunique``, ``first``, ``last``, ``any``, ``all``, ``var`` and ``std``;
            ``count=True`` counts rows. A column has ``n`` numbers: an array of any framework, on the keys' device or on
            the host, a column of pandas, polars or Arrow, a masked array of NumPy, or Python numbers. Nulls and masked
            entries are passed over. A list of numbers is one column.

        Returns
        -------
        dict
            For each operation an array ``[m]``, or a list, tuple or dict of such, as the columns were given. Of the
            keys' framework and device. Sums of integers and booleans are int64, of uint64 uint64, and wrap; of floats
            they have the same dtype and are summed up in float64, as means, variances and deviations are, which are
            float64 for integers. Those of 16-bit floats come as float32. ``min``, ``max``, ``first`` and ``last`` keep
            the dtype; ``count`` and ``nunique`` are int64.

            A group without values has a count and sum of 0, ``any`` is False and ``all`` True. In the other aggregates
            it is NaN. Integers and booleans have none: there the result is a masked array.

        Notes
        -----
        NaN is a value like others: sums and means with it are NaN, and so are minima and maxima. -0.0 is less than 0.0.
        The last bits of sums of floats may depend on timing on a GPU, and on the host on the number of threads; nothing
        else does. ``var``, ``std`` and ``nunique`` take more than one pass. Waits for the GPU only where a framework
        works on streams of its own, for ``nunique``, and where integers have nulls.

        Raises
        ------
        TypeError
            For operations that there are not, columns of dtypes that tables do not take, or whose dtype the operation
            is not for: complex numbers have no order and no variance here. Where no aggregate is given.
        ValueError
            For columns of another length, on another device, and where a group of integers has no value and the keys
            are not of NumPy, pandas, polars or Arrow.
        MemoryError
            Where there is no room for the results or for temporary memory.
        """
        ddof = number_of(ddof)
        check_operations(aggregates, OPERATIONS)
        call = _Call(self._keys.batch, self._keys.count, len(self), self._numbering.codes, ddof)
        asked = {op: _ask(op, given, call, op) for op, given in aggregates.items()}
        call.run()
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
    if isinstance(given, dict):
        return {name: _ask_one(op, column, call, f"{what} of {name!r}") for name, column in given.items()}
    if is_column(given):
        return _ask_one(op, given, call, what)
    return type(given)([_ask_one(op, column, call, f"{what} number {i}") for i, column in enumerate(given)])


def _ask_one(op: str, given: Any, call: _Call, what: str) -> Answer:
    if op == "nunique":
        return call.ask_distinct(given, what)
    return call.ask(op, given, what)


def _mirror(answers: Any, visit: Callable[[Answer], Any]) -> Any:
    if isinstance(answers, dict):
        return {name: visit(answer) for name, answer in answers.items()}
    if isinstance(answers, (list, tuple)):
        return type(answers)([visit(answer) for answer in answers])
    return visit(answers)


class _Call:
    """All that one call of ``agg`` asks the core for."""

    def __init__(self, batch: Batch, count: int, groups: int, codes: _core.Array, ddof: float) -> None:
        self.batch = batch
        self.count = count
        self.groups = groups
        self.codes = codes
        self.ddof = ddof
        self.requests: list[Request] = []
        self.columns: dict[int, tuple[Any, Column]] = {}  # by the identity of what was given, which is kept

    def column(self, given: Any, what: str) -> Column:
        known = self.columns.get(id(given))
        if known is None:
            known = self.columns[id(given)] = (given, take_column(given, self.batch, self.count, f"values for {what}"))
        return known[1]

    def ask(self, op: str, given: Any, what: str) -> Answer:
        values, valid = (None, None) if given is None else self.column(given, what)
        dtype = aggregate_dtype(op, values, what)
        out = Output(self.batch, dtype, (self.groups,))
        self.requests.append((op, values, valid, out.array, self.ddof, None, None))
        if op not in PICKS or valid is None or not (is_integer(dtype) or dtype == "bool"):
            return lambda: out.result(self.batch)
        counts = new_array(self.batch, "int64", self.groups)
        self.requests.append(("count", values, valid, counts, self.ddof, None, None))
        return lambda: with_missing(out.result(self.batch), to_host(counts, self.batch) == 0, self.batch, what)

    def ask_distinct(self, given: Any, what: str) -> Answer:
        """The number of a group's distinct values: of the distinct pairs of group and value, those of the group."""
        batch = self.batch
        values, valid = self.column(given, what)
        kinds = _core.Factorization(batch.context, values, 1, True, False, batch.stream)
        codes = new_array(batch, "int64", self.count)
        kinds.write(None, codes, None, None, False)
        _core.pair_codes(batch.context, self.codes, codes, kinds.count, valid, codes, batch.stream)
        work = _core.Factorization(batch.context, codes, 1, False, False, batch.stream)
        pairs = new_array(batch, "int64", work.count)
        work.write(pairs, None, None, None, False)
        _core.split_pairs(batch.context, pairs, max(1, kinds.count), pairs, batch.stream)
        out = Output(batch, "int64", (self.groups,))
        request: Request = ("count", None, None, out.array, 1.0, None, None)
        _core.aggregate(batch.context, pairs, self.groups, [request], batch.stream)
        return lambda: out.result(batch)

    def run(self) -> None:
        batch = self.batch
        if self.requests:
            _core.aggregate(batch.context, self.codes, self.groups, self.requests, batch.stream)
        batch.finish()


def aggregate_dtype(op: str, values: _core.Array | None, what: str, *, wide: bool = False) -> str:
    """Of the results, or TypeError."""
    if values is None:
        return "int64"
    dtype = _core.aggregate_dtype(op, values.dtype, wide)
    if dtype is None:
        raise TypeError(f"the values for {what} are {values.dtype}, and complex numbers have no {op}: give their parts")
    return dtype


def with_missing(result: Any, missing: np.ndarray[Any, Any], batch: Batch, what: str) -> Any:
    """The results, without those of groups that have no value."""
    if not missing.any():
        return result
    if not isinstance(result, np.ndarray):
        raise ValueError(
            f"the values for {what} are integers, and {int(missing.sum())} of {len(missing)} groups have nulls alone, "
            f"for which {batch.framework.name} has no integer: give floats, or keys of NumPy, pandas, polars or Arrow"
        )
    return np.ma.MaskedArray(result, missing)
