"""A request of a table in JAX's programs: one custom call, or an exchange between devices around some."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np

from gpuhash.arrays.frameworks import Shape
from gpuhash.signatures import SIGNATURES, Answer, Signature

from .arrays import batch_shape, no_results, read_wide, struct, vary, wide_struct
from .columns import Given
from .custom_call import custom_call
from .exchange import Spread, Work, exchange
from .library import TOKEN_WORDS, target
from .state import Kind

_WIDE = ("rows", "size")  # the answers that are integers of 64 bits
_HANDLERS = {"lookup": "look_up", "change": "change", "erasure": "erase", "whole": "size"}


@dataclass(frozen=True)
class Request:
    """All that is known of a call when it is traced, but for the shapes of its arrays."""

    name: str  # in the manifest
    kind: Kind
    columns: tuple[Given, ...] = ()  # that are read or written
    spread: Spread | None = None  # where the keys go to the devices that own them

    @property
    def signature(self) -> Signature:
        return SIGNATURES[self.name]

    @property
    def reads_values(self) -> bool:
        """Is it a lookup of values? Then it asks for the mask, too, which says where defaults are."""
        return self.signature.request == "lookup" and "values" in self.signature.answers

    @property
    def answers(self) -> tuple[Answer, ...]:
        """What the handler is asked for, in the order of its results: of ``reads_values`` the mask comes last."""
        return ("values", "found") if self.reads_values else self.signature.answers

    @property
    def is_same_each_time(self) -> bool:
        """Does a run launch the same kernels on the same memory as the one before, and nothing else?

        On a fixed table, where the call takes no scratch memory.
        """
        request, answers = self.signature.request, self.signature.answers
        if not self.kind.held or request == "whole":
            return False
        if request == "lookup":
            return True
        if request == "erasure":
            return "values" not in answers
        in_any_order = not any(table.deterministic for table in self.kind.held)
        return (
            in_any_order
            and not self.kind.has_names
            and answers == ("is_new",)
            and all(each.action in ("keep", "assign") for each in self.columns)
        )

    def results(self, batch: Shape, token: Any) -> tuple[Any, ...]:
        """The shapes and dtypes of the answers for a batch of keys; values are one array for each column."""
        return tuple(each for answer in self.answers for each in self._structs(answer, batch, token))

    def _structs(self, answer: Answer, batch: Shape, token: Any) -> list[Any]:
        if answer == "values":
            return [struct(batch + each.shape, each.dtype, token) for each in self.columns]
        if answer in _WIDE:
            return [wide_struct(batch, token)]
        return [struct(batch, "bool", token)]

    def by_answer(self, results: Any) -> dict[Answer, Any]:
        """The results by the names of the answers; values are a list."""
        rest = iter(results)
        return {
            answer: [next(rest) for _ in self.columns] if answer == "values" else next(rest) for answer in self.answers
        }

    def __call__(self, token: Any, keys: Any, values: Any) -> tuple[Any, tuple[Any, ...]]:
        """The next token, and the results. ``keys`` is None where the call takes none."""
        batch = () if keys is None else batch_shape(keys, self.kind.key_shape)
        if 0 in batch:  # nothing to do, and jaxlib 0.11 crashes when it compiles it in a shard_map
            return token, no_results(self.results(batch, token), token)
        if self.spread is not None and self.spread.devices != 1:
            return self._exchanged(self.spread, token, keys, values, batch)
        handler = target(_HANDLERS[self.signature.request], fixed=self.is_same_each_time)
        (next_token,), results = self._bind(handler, [token.reshape(TOKEN_WORDS)], keys, values, batch)
        return next_token.reshape(token.shape), tuple(results)

    def _bind(
        self, handler: str, states: list[Any], keys: Any, values: Any, batch: Shape, told: tuple[Any, ...] = ()
    ) -> tuple[list[Any], list[Any]]:
        """Calls the handler: the states as it gives them back, and the results. ``told``: what it is told besides."""
        scratch = self._scratch(batch, states[0])
        given = custom_call(
            handler,
            [*states, *told, *(array for array in (keys, *values) if array is not None)],
            [*states[1:], *scratch, *self.results(batch, states[0])],
            self._attributes(values, bool(scratch)),
            aliases=tuple((place, place) for place in range(len(states))),
        )
        return given[: len(states)], given[len(states) + len(scratch) :]

    def _scratch(self, batch: Shape, token: Any) -> tuple[Any, ...]:
        """What a lookup needs memory for, as a result that comes first: the numbers of the rows with named columns."""
        return (wide_struct(batch, token),) if self.reads_values and self.kind.has_names else ()

    def _attributes(self, values: Any, has_scratch: bool) -> dict[str, Any]:
        """``Asked`` in native/table_ops.h."""
        names = [each.name.encode() for each in self.columns]
        return {
            "handles": self.kind.handles,
            "answers": ",".join(("scratch", *self.answers) if has_scratch else self.answers),
            "names": "".join(each.name for each in self.columns),
            "lengths": tuple(map(len, names)),
            "given": tuple(
                0 if array is None else 1 if each.single else 2
                for each, array in zip(self.columns, values, strict=True)
            ),
            "actions": ",".join(each.action for each in self.columns if self.signature.request == "change"),
            "tables": np.int64(1 if self.spread is None else self.spread.devices),
        }

    def _exchanged(
        self, spread: Spread, token: Any, keys: Any, values: Any, batch: Shape
    ) -> tuple[Any, tuple[Any, ...]]:
        """The same with the tables of all devices of a mesh axis."""
        shape, words = token.shape, token.reshape(TOKEN_WORDS)
        if keys is None:
            words, status = vary((words, jnp.zeros(1, np.uint32)), spread.axis_name)
            words, status, results = self._part(words, status, jnp.zeros(2, np.uint32), None, ())
            status = jax.lax.pmax(status, spread.axis_name)
        else:
            keys = keys.reshape(-1, *self.kind.key_shape)
            sent, work = self._to_owners(spread, values)
            answers = [(each.shape[1:], each.dtype) for each in self.results((1,), token)]
            words, status, results = exchange(spread, words, keys, sent, answers, not self.kind.handles, work)
        token, *results = custom_call(
            target("settle"),
            [words, status, *results],
            results,
            {},
            aliases=((0, 0), *((2 + place, 1 + place) for place in range(len(results)))),
        )
        if self.reads_values:
            *read, found = results
            results = [*map(functools.partial(_or_default, found), read, self.columns, values), found]
        return token.reshape(shape), tuple(
            each if keys is None else each.reshape(*batch, *each.shape[1:]) for each in results
        )

    def _to_owners(self, spread: Spread, values: Any) -> tuple[list[Any], Work]:
        """What goes along with the keys of an exchange, and what their owners do. Defaults stay where they are."""
        if self.signature.request != "change":
            none = tuple(None for _ in self.columns)
            return [], lambda token, status, told, _, came: self._part(token, status, told, came[0], none)
        sent = [
            array.reshape(-1, *each.shape)
            for array, each in zip(values, self.columns, strict=True)
            if array is not None and not each.single
        ]

        def from_all(array: Any) -> Any:
            (mine,) = vary((array,), spread.axis_name)
            return jax.lax.all_gather(mine, spread.axis_name)

        of_devices = [
            from_all(array) if array is not None and each.single and not each.alike else None
            for array, each in zip(values, self.columns, strict=True)
        ]
        there = replace(
            self,
            columns=tuple(
                each if singles is None else each._replace(single=False)
                for each, singles in zip(self.columns, of_devices, strict=True)
            ),
        )

        def work(token: Any, status: Any, told: Any, sources: Any, came: Any) -> Any:
            keys, *rest = came
            arrived = iter(rest)
            arrays = tuple(
                singles[sources] if singles is not None else array if each.single or array is None else next(arrived)
                for array, each, singles in zip(values, self.columns, of_devices, strict=True)
            )
            return there._part(token, status, told, keys, arrays)

        return sent, work

    def _part(self, token: Any, status: Any, told: Any, keys: Any, values: Any) -> tuple[Any, Any, list[Any]]:
        """The call on a device's own table: the next token and status, and the results."""
        handler = target(f"{_HANDLERS[self.signature.request]}_part")
        batch = () if keys is None else keys.shape[:1]
        (token, status), results = self._bind(handler, [token, status], keys, values, batch, told=(told,))
        return token, status, results

    def over_lanes(self) -> Any:
        """The same, which under vmap is one call for the keys of all lanes."""
        call = jax.custom_batching.custom_vmap(self.__call__)
        call.def_vmap(self._of_lanes)
        return call

    def _of_lanes(self, lanes: int, batched: Any, token: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        """The call of all lanes, and which of its results have one entry per lane: the next token only if it had."""
        arrays = (token, keys, *values)
        of_lanes = [bool(each) for each in (*batched[:2], *batched[2])]
        if of_lanes[0]:  # each lane has a table of its own
            mapped = [each for each, of_lane in zip(arrays, of_lanes, strict=True) if of_lane]

            def one_lane(mine: list[Any]) -> Any:
                rest = iter(mine)
                token, keys, *values = (
                    next(rest) if of_lane else shared for shared, of_lane in zip(arrays, of_lanes, strict=True)
                )
                return self.over_lanes()(token, keys, tuple(values))

            result = jax.lax.map(one_lane, mapped)
            return result, jax.tree.map(lambda _: True, result)
        if not of_lanes[1]:
            keys = jnp.broadcast_to(keys, (lanes, *keys.shape))
        batch = batch_shape(keys, self.kind.key_shape)
        each_lanes = [
            _of_all_lanes(array, each, of_lane, batch)
            for array, each, of_lane in zip(values, self.columns, of_lanes[2:], strict=True)
        ]
        call = replace(self, columns=tuple(column for _, column in each_lanes))
        next_token, results = call.over_lanes()(token, keys, tuple(array for array, _ in each_lanes))
        return (next_token, results), (False, tuple(True for _ in results))


def _of_all_lanes(array: Any, given: Given, of_lane: bool, batch: Shape) -> tuple[Any, Given]:
    """The values of a batch whose first axis is the lanes'."""
    if array is None or (given.single and not of_lane):
        return array, given
    if given.single:
        array = array.reshape(batch[0], *(1,) * (len(batch) - 1), *given.shape)
    return jnp.broadcast_to(array, batch + given.shape), given._replace(single=False)


def _or_default(found: Any, values: Any, given: Given, default: Any) -> Any:
    """Values ``[n, *shape]``, or the default where the keys were not found."""
    if default is None:
        return values
    known = found.reshape(-1, *(1,) * len(given.shape))
    return jnp.where(known, values, default if given.single else default.reshape(-1, *given.shape))


# Compiled once per kind of table and shape of keys; inside another compiled function it becomes a part of it.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def run(request: Request, token: Any, keys: Any, values: Any) -> tuple[Any, dict[Answer, Any]]:
    """The next token, and the answers; what is not asked for, too."""
    constants = values
    if request.reads_values:
        constants = tuple(jax.lax.stop_gradient(each) if _is_inexact(each) else each for each in values)
    next_token, results = request.over_lanes()(token, keys, constants)
    if request.reads_values:
        *read, found = results
        results = [
            *(
                _with_tangents(each, found, default) if _is_inexact(default) else each
                for each, default in zip(read, values, strict=True)
            ),
            found,
        ]
    answers = request.by_answer(results)
    for answer in answers:
        if answer in _WIDE:
            answers[answer] = read_wide(answers[answer])
        if answer == "size" and request.spread is not None:
            answers[answer] = jax.lax.psum(answers[answer], request.spread.axis_name)
    return next_token, answers


def _is_inexact(array: Any) -> bool:
    return array is not None and bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _tangents_of(primals: Any, tangents: Any) -> Any:
    values, found, default = primals
    known = found.reshape(found.shape + (1,) * (values.ndim - found.ndim))
    tangent = jnp.where(known, jnp.zeros_like(values), jnp.broadcast_to(tangents[2], values.shape))
    # Not the bare values, which are constants: this rule is differentiated for second derivatives.
    return _with_tangents(values, found, default), tangent


# Of values, which keys were found, and the default: the values as a lookup gave them, which are constants but for those
# of absent keys, which are the default.
_with_tangents = jax.custom_jvp(lambda values, found, default: values)
_with_tangents.defjvp(_tangents_of)
