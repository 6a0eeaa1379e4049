"""GroupBy: groups of keys that come in batches, of which the groups' states alone are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import flag_of
from gpuhash.arrays.batch import Batch, Output, to_device
from gpuhash.arrays.strings import Strings

from .answers import PICKS, answer, may_be_missing, missing_of
from .distinct_values import count_pairs, find_pairs
from .grouping import OPERATIONS, Request, check_operations, nulls_of, number_of
from .keys import Keys
from .kinds import Kind, Texts, stand_in_for
from .values import NO_COLUMN, Column, concatenate, need_alike, take_column

#: What is kept of a column for each operation, and what the core is asked for to get it. Rows are a column of no name.
_STATES = {
    "sum": ("sum",),
    "mean": ("total", "count"),
    "var": ("total", "count", "squares"),
    "std": ("total", "count", "squares"),
    "count": ("count",),
    "any": ("any",),
    "all": ("all",),
    "nunique": ("nunique",),
    **{op: (op, "count") for op in PICKS},
}

State = tuple[str, str | None]  # (operation, column)


class Aggregated(NamedTuple):
    """What ``GroupBy.result`` gives."""

    keys: Any
    aggregates: dict[str, Any]


class _DistinctValues(NamedTuple):
    """The state of nunique: the distinct pairs of a group and a value."""

    groups: Any  # int64 [p], numbers of groups; one may be -1, of none
    values: Any  # [p], an array or Strings


class _Part:
    """The distinct keys of some batches in order, and the states of their groups."""

    def __init__(self, keys: Any, count: int, states: dict[State, Any]) -> None:
        self.keys = keys  # [m], in the form in which the keys were given
        self.count = count
        self.states = states  # each an array [m], Strings or _DistinctValues; arrays are _core.Array or on the host
        pairs = [state.groups.shape[0] for state in states.values() if isinstance(state, _DistinctValues)]
        self.size: int = max(count, *pairs, 0)  # of its largest state


class GroupBy:
    """Groups of keys that come in batches, in order of first occurrence, without a bound on their number.

    Parameters
    ----------
    ddof, skipna, nulls
        As for ``Groups.agg`` and ``group_by``.
    **aggregates
        ``operation=name`` of a column, or a list or tuple of names; ``count=True`` counts rows. The operations are
        those of ``Groups.agg``.

    Notes
    -----
    Holds a state of some numbers or strings for each group, for ``nunique`` its distinct values, and no rows.
    Batches are merged as they come, those of like sizes first: ``k`` updates take time in ``O(n log k)`` for ``n`` rows
    at the worst. Can be pickled, if the keys can.
    Threads may share one; each batch counts once.

    Raises
    ------
    TypeError
        For operations that there are not, names that are not strings, or where no aggregate is given.
    ValueError
        For other ``nulls``.

    Examples
    --------
    >>> groups = gpuhash.GroupBy(sum="price", count=True)
    >>> groups.update(np.array([7, 5]), price=np.array([1.5, 2.0]))
    >>> groups.update(np.array([7]), price=np.array([3.0]))
    >>> keys, aggregates = groups.result()
    >>> keys, aggregates["sum"], aggregates["count"]
    (array([7, 5]), array([4.5, 2. ]), array([2, 1]))
    """

    def __init__(self, *, ddof: float = 1, skipna: bool = False, nulls: str = "key", **aggregates: Any) -> None:
        check_operations(aggregates, OPERATIONS)
        self._ddof = number_of(ddof)
        self._skipna = flag_of(skipna, "skipna")
        self._nulls = nulls_of(nulls)
        self._aggregates = {op: _names(op, given) for op, given in aggregates.items()}
        self._lock = threading.Lock()  # of what follows
        self._kinds: dict[str, Kind] = {}  # of the columns
        self._parts: list[_Part] = []  # in order of the rows; each more than twice as large as the next

    def update(self, keys: Any, **columns: Any) -> None:
        """Take up a batch, whose rows come after those of all batches before.

        Parameters
        ----------
        keys
            As for ``group_by``; in each batch in the same form, of one dtype and on one device.
        **columns
            The columns that the aggregates name, each as for ``Groups.agg`` and of one dtype in all batches. After
            others, a column of nulls alone may have no dtype.

        Raises
        ------
        TypeError
            For missing and unknown columns, and for another dtype than before.
        ValueError, MemoryError
            As ``group_by`` and ``Groups.agg``.

        Notes
        -----
        Where it raises, the batch is not taken up. Waits for the GPU.
        """
        wanted = dict.fromkeys(name for _, name in self._states() if name is not None)
        if columns.keys() != wanted.keys():
            raise TypeError(
                f"the columns {', '.join(columns) or 'of no name'} were given, expected "
                f"{', '.join(wanted) or 'none'}: give those that the aggregates name"
            )
        made = Keys.of(keys, "keys", nulls=self._nulls)
        batch = made.batch
        kinds, skipna, stand_in = self._kinds, self._skipna, stand_in_for(self._aggregates)
        taken = {
            name: take_column(column, batch, made.count, name, skipna=skipna, stand_in=stand_in, before=kinds.get(name))
            for name, column in columns.items()
        }
        for name, before in kinds.items():
            label = taken[name].kind.label
            if label != before.label:
                raise TypeError(f"{name} is {label}, and was {before.label} before: convert it to that")
        for op, column in self._operations():
            if column is not None:
                taken[column].kind.result_dtype(op, column)
        numbering = made.number()
        states: dict[State, Any] = {}
        requests: list[Request] = []
        for kind, column in self._states():
            of_column = NO_COLUMN if column is None else taken[column]
            if kind == "nunique":
                states[kind, column] = _distinct_values(batch, numbering.codes, of_column)
                continue
            dtype = of_column.kind.result_dtype(kind, kind, wide=True)
            out = states[kind, column] = batch.new(dtype, (numbering.count,))
            requests.append((kind, of_column.values, of_column.valid, out, 1.0, None, None))
        if requests:
            _core.aggregate(batch.context, numbering.codes, numbering.count, requests, batch.stream)
        for op, picked in states:
            if op in PICKS and picked is not None and isinstance(of_texts := taken[picked].kind, Texts):
                states[op, picked] = _picked(of_texts, states[op, picked], states["count", picked], batch)
        part = _Part(made.distinct(numbering), numbering.count, states)
        batch.context.synchronize(batch.stream)
        self._add([part], {name: column.kind.without_values() for name, column in taken.items()})

    def merge(self, other: GroupBy) -> None:
        """Take up all batches of another one, as if they came after this one's own.

        Parameters
        ----------
        other
            With the same aggregates; it stays as it is.

        Raises
        ------
        TypeError
            Where it is no GroupBy, or its keys or columns are of other dtypes.
        ValueError
            Where its aggregates are others.
        """
        if not isinstance(other, GroupBy):
            raise TypeError(f"a {type(other).__name__} was given, expected a GroupBy")
        if other._arguments() != self._arguments():
            raise ValueError("the other GroupBy has other aggregates: make both with the same arguments")
        for name in self._kinds.keys() & other._kinds.keys():
            if self._kinds[name].label != other._kinds[name].label:
                raise TypeError(f"{name} is {other._kinds[name].label} there and {self._kinds[name].label} here")
        self._add(other._parts, other._kinds)

    def __len__(self) -> int:
        """The number of groups."""
        return self._whole().count if self._parts else 0

    def result(self, *, sorted: bool = False) -> Aggregated:
        """The groups of all batches so far.

        Parameters
        ----------
        sorted
            Order them by their keys, ascending; else they come in order of their keys' first occurrence.

        Returns
        -------
        keys, aggregates
            The distinct keys, and a dict of aggregates as ``Groups.agg`` gives it, lists where lists of names were
            given. Waits for the GPU.

        Raises
        ------
        ValueError
            Where there has been no batch, and as ``Groups.agg``.
        """
        sorted = flag_of(sorted, "sorted")
        if not self._parts:
            raise ValueError("there has been no batch: call update() first")
        part = self._whole()
        made = Keys.of(part.keys, "keys")
        batch = made.batch
        keys = part.keys
        states = {state: _folded(_lend(held, batch), part.count, batch) for state, held in part.states.items()}
        if sorted:
            numbering = made.number(sorted=True)
            keys = made.distinct(numbering)
            states = {state: _take(array, numbering.firsts, batch) for state, array in states.items()}
        codes = _lend(np.arange(part.count), batch)
        requests: list[Request] = []
        answers = {
            op: [self._ask(op, name, states, made, requests) for name in names]
            for op, (names, _) in self._aggregates.items()
        }
        _core.aggregate(batch.context, codes, part.count, requests, batch.stream)
        batch.context.synchronize(batch.stream)  # the states may go back on another stream
        aggregates = {}
        for op, (_, form) in self._aggregates.items():
            results = [answered() for answered in answers[op]]
            aggregates[op] = results[0] if form is None else form(results)
        return Aggregated(keys, aggregates)

    def _ask(
        self,
        op: str,
        name: str | None,
        states: dict[State, Any],
        made: Keys,
        requests: list[Request],
    ) -> Any:
        batch, library = made.batch, made.library
        kind = NO_COLUMN.kind if name is None else self._kinds[name]
        if op in PICKS and isinstance(kind, Texts):
            return lambda: kind.give_strings(states[op, name], library)
        dtype = kind.result_dtype(op, op)
        out = Output(batch, dtype, (made.count,))
        if op in ("mean", "var", "std"):
            squares = None if op == "mean" else states["squares", name]
            request: Request = (op, states["total", name], None, out.array, self._ddof, states["count", name], squares)
        elif op in PICKS:
            request = (op, states[op, name], _valid(states["count", name], batch), out.array, 1.0, None, None)
        else:
            request = (_merged_by(op), states[op, name], None, out.array, 1.0, None, None)
        requests.append(request)
        what = f"{op}={name!r}"

        def answered() -> Any:
            missing = None
            if may_be_missing(op, dtype, library):
                missing = missing_of(op, batch.to_host(states["count", name]), self._ddof)
            if kind.gives(op):
                return kind.give(batch.to_host(out.array), missing, library)
            return answer(out.result(batch), missing, library, batch, what)

        return answered

    def _arguments(self) -> tuple[Any, ...]:
        return self._aggregates, self._ddof, self._skipna, self._nulls

    def _operations(self) -> Iterator[tuple[str, str | None]]:
        for op, (names, _) in self._aggregates.items():
            for name in names:
                yield op, name

    def _states(self) -> list[State]:
        """What is kept of the columns."""
        return list(dict.fromkeys((kind, name) for op, name in self._operations() for kind in _STATES[op]))

    def _add(self, parts: list[_Part], kinds: dict[str, Kind]) -> None:
        """Takes up parts behind the others, or raises and leaves all as it was."""
        with self._lock:
            stack = list(self._parts)
            for part in parts:
                filled = next((other for other in stack if other.count), part)
                if part.count:
                    need_alike(filled.keys, part.keys, "keys")
                stack.append(part)
                while len(stack) > 1 and stack[-2].size <= 2 * stack[-1].size:
                    stack[-2:] = [_combine(stack[-2:])]
            self._parts = stack
            before = self._kinds
            self._kinds = {name: before.get(name, kind).with_room_for(kind) for name, kind in kinds.items()} or before

    def _whole(self) -> _Part:
        """All parts as one."""
        with self._lock:
            if len(self._parts) > 1:
                self._parts = [_combine(self._parts)]
            return self._parts[0]

    def __getstate__(self) -> dict[str, Any]:
        """With the groups' states on the host."""
        state = {name: value for name, value in self.__dict__.items() if name != "_lock"}
        if self._parts:
            part = self._whole()
            batch = Keys.of(part.keys, "keys").batch
            host = {name: _on_host(_lend(held, batch), batch) for name, held in part.states.items()}
            state["_parts"] = [_Part(part.keys, part.count, host)]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


def _names(op: str, given: Any) -> tuple[tuple[str | None, ...], type | None]:
    """The names of columns that were given, and in what; None: one alone."""
    if op == "count" and given is True:
        return (None,), None
    names = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{op}={given!r} was given, expected the name of a column, or a list of names")
    return names, type(given) if isinstance(given, (list, tuple)) else None


def _merged_by(op: str) -> str:
    """The operation by which the states of an operation's parts become one."""
    return "sum" if op in ("count", "total", "nunique") else op


def _valid(counts: Any, batch: Batch) -> _core.Array:
    """Where there is a value: bool [m]."""
    valid = batch.new("bool", (counts.shape[0],))
    codes = _lend(np.arange(counts.shape[0]), batch)
    _core.aggregate(
        batch.context, codes, counts.shape[0], [("any", counts, None, valid, 1.0, None, None)], batch.stream
    )
    return valid


def _combine(parts: list[_Part]) -> _Part:
    """Several parts as one, of which the first has the first rows. Parts of no keys may have any form."""
    parts = [part for part in parts if part.count] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    made = Keys.of(concatenate([part.keys for part in parts], "keys"), "keys")
    batch = made.batch
    numbering = made.number()
    held = {state: [_lend(part.states[state], batch) for part in parts] for state in parts[0].states}
    folded = {state: _joined(of_parts, batch) for state, of_parts in held.items() if state[0] != "nunique"}
    texts: dict[State, Texts] = {}
    states: dict[State, Any] = {}
    requests: list[Request] = []
    for op, name in held:
        if op == "nunique":
            counts = [part.count for part in parts]
            states[op, name] = _combine_distinct(held[op, name], counts, numbering.codes, batch)
            continue
        values = folded[op, name]
        if isinstance(values, Strings):
            texts[op, name], codes = Texts.number(values, stand_in_for([op]), "values")
            values = _lend(codes, batch)
        out = states[op, name] = batch.new(values.dtype, (numbering.count,))
        if op == "squares":
            requests.append((op, folded["total", name], None, out, 1.0, folded["count", name], values))
        else:
            valid = _valid(folded["count", name], batch) if op in PICKS else None
            requests.append((_merged_by(op), values, valid, out, 1.0, None, None))
    _core.aggregate(batch.context, numbering.codes, numbering.count, requests, batch.stream)
    for (op, name), kind in texts.items():
        states[op, name] = _picked(kind, states[op, name], states["count", name], batch)
    combined = _Part(made.distinct(numbering), numbering.count, states)
    batch.context.synchronize(batch.stream)
    return combined


def _combine_distinct(
    parts: list[_DistinctValues], counts: list[int], codes: _core.Array, batch: Batch
) -> _DistinctValues:
    """``codes``: the new number of each group of each part, one part behind the other."""
    groups = []
    begin = 0
    for part, count in zip(parts, counts, strict=True):
        index = _lend(np.arange(begin, begin + count), batch)
        numbers = _take(codes, index, batch)
        groups.append(batch.new("int64", part.groups.shape))
        batch.context.copy(groups[-1], part.groups, batch.stream)
        _core.renumber(batch.context, groups[-1], numbers, batch.stream)
        begin += count
    values = _joined([part.values for part in parts], batch)
    if isinstance(values, Strings):
        kind, numbers = Texts.number(values, "identity", "values")
        column = Column(_lend(numbers, batch), None, kind)
    else:
        column = Column(values, None, Kind(values.dtype, values.dtype))
    return _distinct_values(batch, _joined(groups, batch), column)


def _distinct_values(batch: Batch, codes: _core.Array, column: Column) -> _DistinctValues:
    assert column.values is not None
    pairs = find_pairs(batch, codes, column.values, column.valid)
    values = _take(column.values, pairs.firsts, batch)
    if isinstance(column.kind, Texts):
        return _DistinctValues(pairs.groups, column.kind.take(batch.to_host(values), None))
    return _DistinctValues(pairs.groups, values)


def _picked(kind: Texts, numbers: _core.Array, counts: _core.Array, batch: Batch) -> Strings:
    """The strings that numbers of groups ``[m]`` stand for; null where a group has none."""
    return kind.take(batch.to_host(numbers), batch.to_host(counts) == 0)


def _folded(state: Any, count: int, batch: Batch) -> Any:
    """A state as one number or string for each of ``count`` groups."""
    if not isinstance(state, _DistinctValues):
        return state
    out = batch.new("int64", (count,))
    count_pairs(batch, state.groups, count, out)
    return out


def _joined(arrays: list[Any], batch: Batch) -> Any:
    """Arrays, or Strings, one behind the other."""
    if isinstance(arrays[0], Strings):
        return Strings.concatenate(arrays)
    joined = batch.new(arrays[0].dtype, (sum(array.shape[0] for array in arrays),))
    _core.concatenate(batch.context, arrays, joined, batch.stream)
    return joined


def _take(array: Any, index: _core.Array, batch: Batch) -> Any:
    """The entries of an array or Strings at positions ``[m]``."""
    if isinstance(array, Strings):
        return array.take(batch.to_host(index))
    taken = batch.new(array.dtype, index.shape)
    _core.take(batch.context, [(array, None, taken)], array.shape[0], index, batch.stream, trusted=True)
    return taken


def _on_host(state: Any, batch: Batch) -> Any:
    """A copy that keeps its dtype, which is two bytes of no kind for bfloat16."""
    if isinstance(state, _DistinctValues):
        return _DistinctValues(*(_on_host(array, batch) for array in state))
    if isinstance(state, Strings):
        return state
    host = batch.to_host(state)
    return host.view("V2") if state.dtype == "bfloat16" else host


def _lend(state: Any, batch: Batch) -> Any:
    """A state, wherever it lies, where the batch works."""
    if isinstance(state, _DistinctValues):
        return _DistinctValues(*(_lend(array, batch) for array in state))
    if isinstance(state, Strings):
        return state
    array = _core.borrow(state) if isinstance(state, np.ndarray) else state
    return to_device(array, batch.context, batch.stream, "states")[0]
