"""How a call on a table gets into JAX's programs: as one custom call, or as an exchange between devices around some."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.custom_batching
import jax.ffi
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from gpuhash.arrays import Shape

from .arrays import batch_shape, no_results, read_wide, struct, vary, wide_struct
from .exchange import Spread, exchange
from .library import TOKEN_WORDS, target
from .state import Kind

# A custom call of XLA on a token. XLA is told that it has a side effect: it would make one of two equal calls that are
# given one state, and leave out a change whose state nobody uses. JAX is not told: a program that has an effect leaves
# its fast way of calling it, for 300 us more. The state says on which calls another one depends.
_call_p = Primitive("gpuhash_call")
_call_p.multiple_results = True


def _results_of(token: Any, *_arrays: Any, target: str, results: Any, attributes: Any, aliases: Any) -> Any:
    given = ((token.shape, token.dtype), *results)
    return [token.update(shape=shape, dtype=dtype, weak_type=False) for shape, dtype in given]


def _run_alone(*arrays: Any, target: str, results: Any, attributes: Any, aliases: Any) -> Any:
    """Where nothing is compiled: under ``jax.disable_jit``."""
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in ((arrays[0].shape, arrays[0].dtype), *results)]
    call = jax.ffi.ffi_call(target, structs, input_output_aliases=dict(aliases), vmap_method="sequential")
    return call(*arrays, **_as_arrays(attributes))


def _lower(context: Any, *operands: Any, target: str, results: Any, attributes: Any, aliases: Any) -> Any:
    rule = jax.ffi.ffi_lowering(target, operand_output_aliases=dict(aliases), has_side_effect=True)
    return rule(context, *operands, **_as_arrays(attributes))


_call_p.def_abstract_eval(_results_of)
_call_p.def_impl(_run_alone)
mlir.register_lowering(_call_p, _lower)


def _as_arrays(attributes: Any) -> dict[str, Any]:
    return {name: np.array(value, np.int64) if name == "handles" else value for name, value in attributes}


@dataclass(frozen=True)
class Call:
    """A handler, with all that is known of a call when it is traced, but for the shapes of its arrays."""

    name: str
    kind: Kind
    how: str | None = None  # of an insertion
    takes_values: bool = False
    single: bool = False  # one value for all keys
    spread: Spread | None = None  # where the keys go to the devices that own them
    alike: bool = False  # the single value is the same on all devices

    @property
    def is_same_each_time(self) -> bool:
        """Does a run launch the same kernels on the same memory as the one before, and nothing else?

        On a fixed table, where the call takes no scratch memory.
        """
        if not self.kind.held or self.name == "size":
            return False
        in_any_order = not any(table.deterministic for table in self.kind.held)
        return self.how is None or (self.how in ("keep", "assign") and in_any_order)

    def results(self, batch: Shape, token: Any) -> tuple[Any, ...]:
        """The shapes and dtypes of what it gives for a batch of keys."""
        if self.name == "find":
            values = struct(batch + self.kind.value_shape, self.kind.value_dtype or "", token)
            return values, struct(batch, "bool", token)
        if self.name in ("rows", "size"):
            return (wide_struct(batch, token),)
        return (struct(batch, "bool", token),)

    def __call__(self, token: Any, keys: Any, values: Any) -> tuple[Any, tuple[Any, ...]]:
        """The next token, and what the call gives. Arrays are None where the call takes none."""
        batch = () if keys is None else batch_shape(keys, self.kind.key_shape)
        if 0 in batch:  # nothing to do, and jaxlib 0.11 crashes when it compiles it in a shard_map
            return token, no_results(self.results(batch, token), token)
        if self.spread is not None and self.spread.devices != 1:
            return self._exchanged(self.spread, token, keys, values, batch)
        next_token, *results = _call_p.bind(
            token.reshape(TOKEN_WORDS),
            *self._operands(keys, values),
            target=target(self.name, fixed=self.is_same_each_time),
            results=tuple((each.shape, each.dtype) for each in self.results(batch, token)),
            attributes=self._attributes(None),
            aliases=((0, 0),),
        )
        return next_token.reshape(token.shape), tuple(results)

    def _operands(self, keys: Any, values: Any) -> list[Any]:
        arrays = [] if keys is None else [keys]
        if self.takes_values:
            arrays.append(jnp.zeros(0, np.uint8) if values is None else values)
        return arrays

    def _attributes(self, spread: Spread | None) -> tuple[tuple[str, Any], ...]:
        attributes: dict[str, Any] = {"handles": self.kind.handles}
        if self.name == "find" and spread is None:
            attributes["per_key"] = not self.single
        if self.name == "size" and spread is not None:
            attributes["tables"] = np.int64(spread.devices)
        if self.how is not None:
            attributes.update(how=self.how, broadcast=self.single)
        return tuple(attributes.items())

    def _exchanged(
        self, spread: Spread, token: Any, keys: Any, values: Any, batch: Shape
    ) -> tuple[Any, tuple[Any, ...]]:
        """The same with the tables of all devices of a mesh axis."""
        kind = self.kind
        shape, words = token.shape, token.reshape(TOKEN_WORDS)
        if keys is None:
            words, status = vary((words, jnp.zeros(1, np.uint32)), spread.axis_name)
            words, status, results = self._part(words, status, jnp.zeros(2, np.uint32), None, None)
            status = jax.lax.pmax(status, spread.axis_name)
        else:
            keys = keys.reshape(-1, *kind.key_shape)
            columns, singles = [], None
            if self.how is not None and values is not None and not self.single:
                columns = [values.reshape(-1, *kind.value_shape)]
            elif self.how is not None and values is not None and not self.alike:
                (singles,) = vary((values,), spread.axis_name)
                singles = jax.lax.all_gather(singles, spread.axis_name)

            def work(token: Any, status: Any, told: Any, sources: Any, came: Any) -> Any:
                keys, *rest = came
                if singles is not None:
                    return replace(self, single=False)._part(token, status, told, keys, singles[sources])
                return self._part(token, status, told, keys, rest[0] if rest else values if self.how else None)

            answers = [(each.shape[1:], each.dtype) for each in self.results((1,), token)]
            words, status, results = exchange(spread, words, keys, columns, answers, not kind.handles, work)
        token, *results = _call_p.bind(
            words,
            status,
            *results,
            target=target("settle"),
            results=tuple((each.shape, each.dtype) for each in results),
            attributes=(),
            aliases=((0, 0), *((2 + i, 1 + i) for i in range(len(results)))),
        )
        if self.name == "find" and values is not None:
            found = results[1].reshape(-1, *(1,) * len(kind.value_shape))
            defaults = values if self.single else values.reshape(-1, *kind.value_shape)
            results[0] = jnp.where(found, results[0], defaults)
        return token.reshape(shape), tuple(
            each if keys is None else each.reshape(*batch, *each.shape[1:]) for each in results
        )

    def _part(self, token: Any, status: Any, told: Any, keys: Any, values: Any) -> tuple[Any, Any, list[Any]]:
        """The call on a device's own table: the next token and status, and what it gives."""
        results = self.results(() if keys is None else keys.shape[:1], token)
        next_token, next_status, *given = _call_p.bind(
            token,
            status,
            told,
            *self._operands(keys, values),
            target=target(f"{self.name}_part"),
            results=((status.shape, status.dtype), *((each.shape, each.dtype) for each in results)),
            attributes=self._attributes(self.spread),
            aliases=((0, 0), (1, 1)),
        )
        return next_token, next_status, given

    def over_lanes(self) -> Any:
        """The same, which under vmap is one call for the keys of all lanes."""
        call = jax.custom_batching.custom_vmap(self.__call__)
        call.def_vmap(self._of_lanes)
        return call

    def _of_lanes(self, lanes: int, batched: Any, token: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        """The call of all lanes, and which of its results have one entry per lane: the next token only if it had."""
        token_batched, keys_batched, values_batched = (bool(each) for each in batched)
        if token_batched:  # each lane has a table of its own
            mapped = [each for each, of_lane in zip((token, keys, values), batched, strict=True) if of_lane]

            def one_lane(arrays: list[Any]) -> Any:
                rest = iter(arrays)
                mine = [
                    next(rest) if of_lane else shared
                    for shared, of_lane in zip((token, keys, values), batched, strict=True)
                ]
                return self.over_lanes()(*mine)

            result = jax.lax.map(one_lane, mapped)
            return result, jax.tree.map(lambda _: True, result)
        if not keys_batched:
            keys = jnp.broadcast_to(keys, (lanes, *keys.shape))
        call = self
        if values is not None and (values_batched or not self.single):
            shape = batch_shape(keys, self.kind.key_shape) + self.kind.value_shape
            if self.single:
                between = len(shape) - len(self.kind.value_shape) - 1
                values = values.reshape(lanes, *(1,) * between, *self.kind.value_shape)
            values = jnp.broadcast_to(values, shape)
            call = replace(self, single=False)
        next_token, results = call.over_lanes()(token, keys, values)
        return (next_token, results), (False, tuple(True for _ in results))


# Each is compiled once per kind of table and shape of keys; inside another compiled function it becomes a part of it.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def run(call: Call, token: Any, keys: Any, values: Any) -> Any:
    if call.name == "find" and values is not None and jnp.issubdtype(values.dtype, jnp.inexact):
        next_token, (given, found) = call.over_lanes()(token, keys, jax.lax.stop_gradient(values))
        return next_token, (_with_tangents(given, found, values), found)
    next_token, results = call.over_lanes()(token, keys, values)
    if call.name not in ("rows", "size"):
        return next_token, results
    numbers = tuple(map(read_wide, results))
    return next_token, numbers if call.spread is None else jax.lax.psum(numbers, call.spread.axis_name)


def _tangents_of(primals: Any, tangents: Any) -> Any:
    values, found, _ = primals
    known = found.reshape(found.shape + (1,) * (values.ndim - found.ndim))
    return values, jnp.where(known, jnp.zeros_like(values), jnp.broadcast_to(tangents[2], values.shape))


# Of values, which keys were found, and the default: the values as a lookup gave them, which are constants but for those
# of absent keys, which are the default.
_with_tangents = jax.custom_jvp(lambda values, found, default: values)
_with_tangents.defjvp(_tangents_of)
