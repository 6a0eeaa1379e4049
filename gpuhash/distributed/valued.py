"""What distributed tables do with values: the calls of which the methods of HashTable are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from gpuhash.arrays.arguments import action_of, no_default
from gpuhash.call import actions_of

from .batch import Batch
from .call import Call, Prepared
from .duplicates import Distinct, choose, combine
from .group import Group
from .keyed import Keyed
from .rows import BOOL, Layout, RowFormat
from .values import TableValues, Values
from .words import where


class Found(NamedTuple):
    """What a lookup of values has found, inside of its call."""

    call: Call
    names: list[str]  # of the columns that were asked for, in that order
    layout: Layout  # of their rows
    values: Tensor  # rows, of what this rank has sent
    mask: Tensor
    fallback: Tensor | None  # rows of absent keys, one or one for each key of the batch; None: as the shards gave them


class Valued(Keyed):
    """Calls with keys and values; HashTable derives from it."""

    def _adopt(self, shard: Any, steps: Group, seed: int) -> None:
        super()._adopt(shard, steps, seed)
        self._values = TableValues(shard, steps.device)
        self._row_bytes += self._values.all.row.bytes

    # Changes ---------------------------------------------------------------------------------------------------------

    def _write(
        self,
        operation: str,
        items: Callable[[], tuple[Any, Any]],
        work: Callable[..., Any],
        formats: Sequence[RowFormat] = (),
        *,
        reduce: Callable[[Batch, Any], Distinct | None],
        what: str = "values",
    ) -> tuple[Call, list[Tensor]]:
        """One call that puts values into shards, by ``work(keys, values)``.

        Parameters
        ----------
        items
            Gives the keys, and their values or None, checked as far as they are not checked here.
        formats
            Of what ``work`` gives.
        reduce
            What is left of a batch and its values without duplicates, where these are many.
        """

        def prepare() -> Prepared:
            keys, values = items()
            batch = self._take(keys)
            given = None if values is None else self._values.take(values, batch, what)
            columns = () if given is None else self._values.some_of(given.layout)
            return Prepared(batch, reduce(batch, given), given, columns)

        def serve(call: Call) -> Any:
            return work(call.keys, None if call.values is None else self._values.plain(call.values))

        return self._change(operation, prepare, serve, formats)

    def _choose(
        self, batch: Batch, values: Values | None, *, last: bool = False, inverse: bool = False
    ) -> Distinct | None:
        """Each key with one of its values."""
        if not self._are_many(batch):
            return None
        distinct = choose(batch.keys, last=last, inverse=inverse)
        assert distinct.positions is not None
        distinct.values = None if values is None else values.at(distinct.positions)
        return distinct

    def _combine(self, actions: Any, batch: Batch, values: Values) -> Distinct | None:
        """Each key with what all of its values come to; or else hot keys become one while the batch is sorted."""
        if self._merges(values.layout.row):
            values.op = actions
            self._merged(batch)
        elif self._are_many(batch):
            return combine(batch.keys, values, actions, self._key, deterministic=self.deterministic)
        return None

    def _actions_of(self, values: Any, op: Any) -> Any:
        """ "keep", "assign", or the operation on all values; where columns differ, that of each by its name."""
        if self._values.columns is None:
            dtype = self._shard.value_dtype
            return action_of(op, dtype, f"the table has values of {dtype}")
        actions = actions_of(self._values.columns, values, op)
        if len(set(actions.values())) == 1:
            return next(iter(actions.values()))
        return {name: actions[name].replace("assign", "replace") for name in self._values.columns if name in actions}

    def _merges(self, row: RowFormat) -> bool:
        """Are such values of hot keys combined while a batch is sorted by owner?"""
        is_scalar = not row.shape and row.bytes in (4, 8)
        return is_scalar and self._can_merge() and not self.deterministic

    def _insert(self, operation: str, keys: Any, values: Any, *, assigns: bool) -> Any:
        call, (inserted,) = self._write(
            operation,
            lambda: (keys, values),
            lambda *given: [(self._shard.insert_or_assign if assigns else self._shard.insert)(*given)],
            [BOOL],
            reduce=functools.partial(self._choose, last=assigns),
        )
        return call.batch.answer(call.for_one(inserted), BOOL)

    def _assign(self, operation: str, items: Callable[[], tuple[Any, Any]]) -> None:
        reduce = functools.partial(self._choose, last=True)
        self._write(operation, items, lambda *given: self._shard.__setitem__(*given), reduce=reduce)

    def _assign_chunk(self, chunk: Callable[[], tuple[Any, Any]]) -> None:
        def items() -> tuple[Any, Any]:
            keys, named = chunk()
            return keys, self._values.plain(named)

        self._assign("load", items)

    # Lookups ---------------------------------------------------------------------------------------------------------

    def _find(
        self,
        keys: Any,
        default: Any = None,
        columns: Any = None,
        *,
        batches_need: str = "",
        settle: bool = True,
    ) -> Found:
        """Looks values up, inside of a call. ``batches_need``: the call's name, where there is no default and only a
        single key can do without.
        """
        names, layout, fallback = [""], self._values.all, None

        def prepare() -> Prepared:
            nonlocal names, layout, fallback
            names = self._values.chosen(columns)
            layout = self._values.layout(names)
            batch = self._look_for(keys)
            if batches_need and not batch.scalar:
                raise no_default(f"{batches_need} of a batch")
            prepared = self._lookup(batch)
            prepared.columns = self._values.some_of(layout)
            if default is not None:
                fallback = self._values.fallback(default, batch, layout)
            return prepared

        def find(keys: Tensor, out: list[Tensor]) -> None:
            rows, found = out
            if len(names) == 1:
                self._shard.find(keys, out=(self._values.plain(layout.unpack(rows)), found))
            else:
                layout.pack_into(rows, self._shard.find(keys, out=(None, found), columns=names)[0])

        call = self._ask(prepare)
        values, mask = call.look_up(find, [layout.row, BOOL], settle=settle)
        return Found(call, names, layout, values, mask, fallback)

    def _values_found(self, found: Found) -> Any:
        """The values for each key of the batch, with the default of the call, if it has one, for those not found."""
        call, layout = found.call, found.layout
        if call.batch.outside is not None:  # which no shard was asked for
            rows = self._values.own_default(layout) if found.fallback is None else found.fallback
        else:
            rows = call.for_all(found.values)
            if found.fallback is not None:
                mine, others = layout.row.words(rows), layout.row.words(found.fallback)
                rows = layout.row.of_words(where(call.for_all(found.mask), mine, others))
        answer = self._values.answer(call.batch, layout, rows)
        return answer if self._values.columns is None else {name: answer[name] for name in found.names}
