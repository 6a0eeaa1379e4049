"""How a call on a table gets into JAX's programs: as one custom call, or as an exchange between devices around some."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.custom_batching
import jax.ffi
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from gpuhash.arrays import Shape

from .arrays import batch_shape, no_results, read_wide, struct, vary, wide_struct
from .exchange import Spread, Work, exchange
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


def _lower(context: Any, token: Any, *operands: Any, target: str, results: Any, attributes: Any, aliases: Any) -> Any:
    """Behind barriers, each array alone.

    XLA for GPUs fuses custom calls with slices of their operands and results, and in some versions keeps the first call
    beside the fusion if it has a side effect: the table would be changed twice. A barrier is no slice, and is free.
    """
    rule = jax.ffi.ffi_lowering(target, operand_output_aliases=dict(aliases), has_side_effect=True)
    next_token, *given = rule(context, token, *map(_barrier, operands), **_as_arrays(attributes))
    return [next_token, *map(_barrier, given)]


def _barrier(array: Any) -> Any:
    return stablehlo.OptimizationBarrierOp([array]).results[0]


_call_p.def_abstract_eval(_results_of)
_call_p.def_impl(_run_alone)
mlir.register_lowering(_call_p, _lower)


def _as_arrays(attributes: Any) -> dict[str, Any]:
    return {name: np.array(value, np.int64) if isinstance(value, tuple) else value for name, value in attributes}


class Given(NamedTuple):
    """An array of values, or None in its place: zeros for absent keys, or what a set is given."""

    shape: Shape = ()  # of one value
    single: bool = False  # one value for all keys
    alike: bool = False  # the single value is the same on all devices
    how: str | None = None  # of an insertion


@dataclass(frozen=True)
class Call:
    """A handler, with all that is known of a call when it is traced, but for the shapes of its arrays."""

    name: str
    kind: Kind
    given: tuple[Given, ...] = ()  # defaults of a lookup, or the values of an insertion, one for each column
    columns: tuple[str, ...] = ()  # those that are read or given, of a table with named columns
    spread: Spread | None = None  # where the keys go to the devices that own them

    @property
    def handler(self) -> str:
        return f"{self.name}_columns" if self.columns and self.name in ("find", "insert") else self.name

    @property
    def is_same_each_time(self) -> bool:
        """Does a run launch the same kernels on the same memory as the one before, and nothing else?

        On a fixed table, where the call takes no scratch memory.
        """
        if not self.kind.held or self.name in ("size", "find_or_insert"):
            return False
        if self.name != "insert":
            return True
        in_any_order = not any(table.deterministic for table in self.kind.held)
        return in_any_order and not self.columns and self.given[0].how in ("keep", "assign")

    def results(self, batch: Shape, token: Any) -> tuple[Any, ...]:
        """The shapes and dtypes of what it gives for a batch of keys; of a lookup the mask first."""
        if self.name in ("rows", "size"):
            return (wide_struct(batch, token),)
        mask = struct(batch, "bool", token)
        if self.name == "find_or_insert":
            return wide_struct(batch, token), mask
        if self.name != "find":
            return (mask,)
        named = self.kind.named
        read = [named[name] for name in self.columns] or [self.kind.value]
        return mask, *(struct(batch + value.shape, value.dtype, token) for value in read)

    def _scratch(self, batch: Shape, token: Any) -> tuple[Any, ...]:
        """What the handler needs memory for, as results that come first: the numbers of the rows to read."""
        return (wide_struct(batch, token),) if self.handler == "find_columns" else ()

    def __call__(self, token: Any, keys: Any, values: Any) -> tuple[Any, tuple[Any, ...]]:
        """The next token, and what the call gives. ``keys`` is None where the call takes none."""
        batch = () if keys is None else batch_shape(keys, self.kind.key_shape)
        if 0 in batch:  # nothing to do, and jaxlib 0.11 crashes when it compiles it in a shard_map
            return token, no_results(self.results(batch, token), token)
        if self.spread is not None and self.spread.devices != 1:
            return self._exchanged(self.spread, token, keys, values, batch)
        scratch = self._scratch(batch, token)
        next_token, *results = _call_p.bind(
            token.reshape(TOKEN_WORDS),
            *self._operands(keys, values),
            target=target(self.handler, fixed=self.is_same_each_time),
            results=tuple((each.shape, each.dtype) for each in (*scratch, *self.results(batch, token))),
            attributes=self._attributes(None),
            aliases=((0, 0),),
        )
        return next_token.reshape(token.shape), tuple(results[len(scratch) :])

    def _operands(self, keys: Any, values: Any) -> list[Any]:
        arrays = [] if keys is None else [keys]
        return arrays + [jnp.zeros(0, np.uint8) if array is None else array for array in values]

    def _attributes(self, spread: Spread | None) -> tuple[tuple[str, Any], ...]:
        """Tuples are of numbers."""
        attributes: dict[str, Any] = {"handles": self.kind.handles}
        if self.columns or self.name == "find_or_insert":
            names = [name.encode() for name in self.columns]
            attributes.update(names="".join(self.columns), lengths=tuple(map(len, names)))
        singles = tuple(each.single for each in self.given)
        if self.name == "find" and (self.columns or spread is None):
            per_key = tuple(not single for single in singles)
            attributes["per_key"] = per_key if self.columns else per_key[0]
        if self.name == "size" and spread is not None:
            attributes["tables"] = np.int64(spread.devices)
        if self.name == "find_or_insert":
            attributes["broadcast"] = singles
        if self.name == "insert":
            attributes["how"] = ",".join(str(each.how) for each in self.given)
            attributes["broadcast"] = singles if self.columns else singles[0]
        return tuple(attributes.items())

    def _exchanged(
        self, spread: Spread, token: Any, keys: Any, values: Any, batch: Shape
    ) -> tuple[Any, tuple[Any, ...]]:
        """The same with the tables of all devices of a mesh axis."""
        kind = self.kind
        shape, words = token.shape, token.reshape(TOKEN_WORDS)
        if keys is None:
            words, status = vary((words, jnp.zeros(1, np.uint32)), spread.axis_name)
            words, status, results = self._part(words, status, jnp.zeros(2, np.uint32), None, ())
            status = jax.lax.pmax(status, spread.axis_name)
        else:
            keys = keys.reshape(-1, *kind.key_shape)
            sent, work = self._to_owners(spread, values)
            answers = [(each.shape[1:], each.dtype) for each in self.results((1,), token)]
            words, status, results = exchange(spread, words, keys, sent, answers, not kind.handles, work)
        token, *results = _call_p.bind(
            words,
            status,
            *results,
            target=target("settle"),
            results=tuple((each.shape, each.dtype) for each in results),
            attributes=(),
            aliases=((0, 0), *((2 + i, 1 + i) for i in range(len(results)))),
        )
        if self.name == "find":
            found, *read = results
            results = [found, *map(functools.partial(_or_default, found), read, self.given, values)]
        return token.reshape(shape), tuple(
            each if keys is None else each.reshape(*batch, *each.shape[1:]) for each in results
        )

    def _to_owners(self, spread: Spread, values: Any) -> tuple[list[Any], Work]:
        """What goes along with the keys of an exchange, and what their owners do. Defaults stay where they are."""
        none = tuple(None for _ in self.given)
        alone = replace(self, given=tuple(each._replace(single=True) for each in self.given))
        if self.name != "insert":
            return [], lambda token, status, told, _, came: alone._part(token, status, told, came[0], none)
        sent = [
            array.reshape(-1, *each.shape)
            for array, each in zip(values, self.given, strict=True)
            if array is not None and not each.single
        ]

        def from_all(array: Any) -> Any:
            (mine,) = vary((array,), spread.axis_name)
            return jax.lax.all_gather(mine, spread.axis_name)

        of_devices = [
            from_all(array) if array is not None and each.single and not each.alike else None
            for array, each in zip(values, self.given, strict=True)
        ]
        there = replace(
            self,
            given=tuple(
                each if singles is None else each._replace(single=False)
                for each, singles in zip(self.given, of_devices, strict=True)
            ),
        )

        def work(token: Any, status: Any, told: Any, sources: Any, came: Any) -> Any:
            keys, *rest = came
            arrived = iter(rest)
            arrays = tuple(
                singles[sources] if singles is not None else array if each.single or array is None else next(arrived)
                for array, each, singles in zip(values, self.given, of_devices, strict=True)
            )
            return there._part(token, status, told, keys, arrays)

        return sent, work

    def _part(self, token: Any, status: Any, told: Any, keys: Any, values: Any) -> tuple[Any, Any, list[Any]]:
        """The call on a device's own table: the next token and status, and what it gives."""
        batch = () if keys is None else keys.shape[:1]
        scratch = self._scratch(batch, token)
        results = (*scratch, *self.results(batch, token))
        next_token, next_status, *given = _call_p.bind(
            token,
            status,
            told,
            *self._operands(keys, values),
            target=target(f"{self.handler}_part"),
            results=((status.shape, status.dtype), *((each.shape, each.dtype) for each in results)),
            attributes=self._attributes(self.spread),
            aliases=((0, 0), (1, 1)),
        )
        return next_token, next_status, given[len(scratch) :]

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
            for array, each, of_lane in zip(values, self.given, of_lanes[2:], strict=True)
        ]
        call = replace(self, given=tuple(given for _, given in each_lanes))
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


# Each is compiled once per kind of table and shape of keys; inside another compiled function it becomes a part of it.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def run(call: Call, token: Any, keys: Any, values: Any) -> Any:
    if call.name == "find":
        constants = tuple(jax.lax.stop_gradient(each) if _is_inexact(each) else each for each in values)
        next_token, (found, *read) = call.over_lanes()(token, keys, constants)
        for number, default in enumerate(values):
            if _is_inexact(default):
                read[number] = _with_tangents(read[number], found, default)
        return next_token, (found, *read)
    next_token, results = call.over_lanes()(token, keys, values)
    if call.name == "find_or_insert":
        rows, is_new = results
        return next_token, (read_wide(rows), is_new)
    if call.name not in ("rows", "size"):
        return next_token, results
    numbers = tuple(map(read_wide, results))
    return next_token, numbers if call.spread is None else jax.lax.psum(numbers, call.spread.axis_name)


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
