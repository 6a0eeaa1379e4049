"""Calls on tables, for JAX's compiled programs: each takes a state, and gives the next state and its result."""

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
from gpuhash.dtypes import numpy_dtype, storage_dtype
from gpuhash.operations import APPLY_OPS

from .arrays import batch_shape, need_dtype, not_differentiable, read_wide, struct, to_array, vary, wide_struct
from .exchange import Spread, exchange, spread_over
from .library import TOKEN_WORDS, target
from .state import Kind, State, give, take

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
class _Call:
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
        if self.spread is not None:
            return self._exchanged(self.spread, token, keys, values)
        batch = () if keys is None else batch_shape(keys, self.kind.key_shape)
        next_token, *results = _call_p.bind(
            token.reshape(TOKEN_WORDS),
            *self._operands(keys, values),
            target=target(self.name, fixed=self.is_same_each_time),
            results=tuple((each.shape, each.dtype) for each in self.results(batch, token)),
            attributes=self._attributes(),
            aliases=((0, 0),),
        )
        return next_token.reshape(token.shape), tuple(results)

    def _operands(self, keys: Any, values: Any) -> list[Any]:
        arrays = [] if keys is None else [keys]
        if self.takes_values:
            arrays.append(jnp.zeros(0, np.uint8) if values is None else values)
        return arrays

    def _attributes(self) -> tuple[tuple[str, Any], ...]:
        attributes: dict[str, Any] = {"handles": self.kind.handles}
        if self.name == "find" and self.spread is None:
            attributes["per_key"] = not self.single
        if self.name == "size" and self.spread is not None:
            attributes["tables"] = np.int64(self.spread.devices)
        if self.how is not None:
            attributes.update(how=self.how, broadcast=self.single)
        return tuple(attributes.items())

    def _exchanged(self, spread: Spread, token: Any, keys: Any, values: Any) -> tuple[Any, tuple[Any, ...]]:
        """The same with the tables of all devices of a mesh axis."""
        kind = self.kind
        batch = () if keys is None else batch_shape(keys, kind.key_shape)
        if spread.devices == 1 or 0 in batch:
            return replace(self, spread=None)(token, keys, values)
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
            attributes=self._attributes(),
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
def _run(call: _Call, token: Any, keys: Any, values: Any) -> Any:
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


_not_differentiated = not_differentiable(
    "values that are put into a table were to be differentiated, and a table keeps no derivatives: give "
    "jax.lax.stop_gradient(values); to train what a table holds, find the values, differentiate with respect to them, "
    "and add the steps by insert_or_apply"
)


def _keys(keys: Any, kind: Kind) -> tuple[Any, Shape]:
    array = to_array(keys, kind.key_dtype, "keys")
    return array, batch_shape(array, kind.key_shape)


def _values(values: Any, batch: Shape, kind: Kind, what: str) -> tuple[Any, bool]:
    """The values of a call, and whether they are one for all keys."""
    if kind.value_dtype is None:
        raise TypeError(f"{what} were given, and the table is a set, which has none")
    array = to_array(values, kind.value_dtype, what)
    if array.ndim == 0:
        array = jnp.broadcast_to(array, kind.value_shape)
    if array.shape == batch + kind.value_shape:
        return array, False
    if array.shape == kind.value_shape:
        return array, True
    raise ValueError(
        f"the {what} have shape {array.shape}, expected {batch + kind.value_shape}, or {kind.value_shape} for all keys "
        "alike"
    )


def _need_values(kind: Kind, call: str) -> None:
    if kind.value_dtype is None:
        raise TypeError(f"gpuhash.jax.{call} was given the state of a set, which has no values: ask contains")
    need_dtype(kind.value_dtype, "values")


def find(
    state: State, keys: Any, default: Any = None, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, tuple[Any, Any]]:
    """The values of keys, and which of them were found.

    Differentiable in ``default``, by forward and reverse mode: where a key is absent its value is the default. The
    values that the table holds are constants; to train them, differentiate with respect to ``values``.

    Parameters
    ----------
    state
        The state of a table.
    keys
        ``[*batch, *key_shape]``, of the table's key dtype.
    default
        The value of absent keys: one, of shape ``value_shape`` or a number, or one for each key, ``[*batch,
        *value_shape]``. None: the table's own default, or else zeros.
    axis_name
        The table is spread over this mesh axis: in a function under ``jax.shard_map`` each device gives a batch of its
        own, as long as those of the others, and each key goes to the device that owns it, whose table is one of
        ``from_tables``. All devices have to make the call, as any collective one. Results are those of one table that
        is given the batches one after the other; where a device's table fails, the program fails on all, and the other
        tables have done their part. Then the program waits for the GPU in each call.
    capacity
        With ``axis_name``: how many keys a device takes in at a time, for which it has memory (for keys, and what goes
        with them and comes back). Where it owns more of the keys, all devices go on in further rounds until nobody has
        keys left; none is lost. None: ``n + n / 4``, of n keys per device, and at least 4096, so that keys that are
        unlike each other take one round. ``n`` times the number of devices is enough for all, and leaves out the loop.

    Returns
    -------
    state
        The next state.
    values, found
        ``[*batch, *value_shape]``, and bool ``[*batch]``. Does not wait for the GPU, without ``axis_name``.

    Raises
    ------
    TypeError, ValueError
        When it is traced: for arrays of other dtypes or shapes, 64-bit dtypes without 64-bit mode, sets, and an axis
        that is not there or has more or fewer devices than the state has tables.
    RuntimeError
        For a state that was used before; in a compiled function, when it runs, ``jax.errors.JaxRuntimeError`` (from
        some versions of jaxlib a ValueError), also for a table that was freed.
    """
    token, kind = take(state, "find")
    _need_values(kind, "find")
    array, batch = _keys(keys, kind)
    if default is None and kind.default is not None:
        storage = np.frombuffer(kind.default, storage_dtype(kind.value_dtype or ""))
        default = storage.view(numpy_dtype(kind.value_dtype or "")).reshape(kind.value_shape)
    defaults, single = (None, True) if default is None else _values(default, batch, kind, "default")
    spread = spread_over(axis_name, capacity, kind.handles, "find")
    call = _Call("find", kind, takes_values=True, single=single, spread=spread)
    token, (values, found) = _run(call, token, array, defaults)
    return give(state, token), (values, found)


def contains(
    state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Which of the keys are in the table or set: the next state, and bool ``[*batch]``.

    Parameters, errors and waiting as for ``find``.
    """
    token, kind = take(state, "contains")
    spread = spread_over(axis_name, capacity, kind.handles, "contains")
    token, (found,) = _run(_Call("contains", kind, spread=spread), token, _keys(keys, kind)[0], None)
    return give(state, token), found


def rows(state: State, keys: Any) -> tuple[State, Any]:
    """The numbers of the keys' rows in ``table.row_storage``, -1 for absent keys: the next state, and ``[*batch]``.

    They are int64, or int32 without 64-bit mode. Integers have no derivative; rows that are gathered by them have.
    Parameters, errors and waiting as for ``find``.

    Raises
    ------
    ValueError
        For a table whose values are scalars of up to 8 bytes, which lie beside their keys and have no rows.
    """
    token, kind = take(state, "rows")
    if not kind.has_rows:
        raise ValueError("this table keeps its values beside their keys and has no rows; give it a value_shape")
    token, (numbers,) = _run(_Call("rows", kind), token, _keys(keys, kind)[0], None)
    return give(state, token), numbers


def insert(
    state: State, keys: Any, values: Any = None, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Inserts the keys that are not there, and keeps the values of those that are.

    Parameters
    ----------
    state, keys, axis_name, capacity
        As for ``find``.
    values
        ``[*batch, *value_shape]``, or one value for all keys. None for a set. Not differentiable.

    Returns
    -------
    state
        The next state.
    inserted
        bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates, of those on all devices with
        ``axis_name``.

    Grows the table where it has to, for which the program waits for the GPU.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As ``find``, and TypeError for values that are differentiated. A table that may not grow and is full raises
        ``jax.errors.JaxRuntimeError`` (RESOURCE_EXHAUSTED) when the program runs, and is as it was before the call.
    """
    return _insert(state, keys, values, "insert", "keep", axis_name, capacity)


def insert_or_assign(
    state: State, keys: Any, values: Any, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Inserts keys, and replaces the values of those that are there. As ``insert``."""
    return _insert(state, keys, values, "insert_or_assign", "assign", axis_name, capacity)


def insert_or_apply(
    state: State,
    keys: Any,
    values: Any,
    op: str = "add",
    *,
    axis_name: str | None = None,
    capacity: int | None = None,
) -> tuple[State, Any]:
    """Inserts the keys that are not there, and combines the values of those that are with the new ones.

    All of a key's duplicates count. ``op``: "add", "multiply", "min", "max", "bit_and", "bit_or" or "bit_xor"; "keep"
    is ``insert`` and "replace" ``insert_or_assign``. Otherwise as ``insert``.
    """
    how = {"keep": "keep", "replace": "assign"}.get(op, op)
    if how not in ("keep", "assign", *APPLY_OPS):
        raise ValueError(f"op={op!r} was given, expected one of {', '.join((*APPLY_OPS, 'keep', 'replace'))}")
    return _insert(state, keys, values, "insert_or_apply", how, axis_name, capacity)


def _insert(
    state: State, keys: Any, values: Any, name: str, how: str, axis_name: str | None, capacity: int | None
) -> tuple[State, Any]:
    token, kind = take(state, name)
    spread = spread_over(axis_name, capacity, kind.handles, name)
    array, batch = _keys(keys, kind)
    given, single = None, False
    if kind.value_dtype is None:
        if how != "keep" or values is not None:
            raise TypeError(
                f"gpuhash.jax.{name} was given a set's state, which has no values: call insert(state, keys)"
            )
    elif values is None:
        raise TypeError(f"gpuhash.jax.{name} was given no values, and the table has values of {kind.value_dtype}")
    else:
        given, single = _values(values, batch, kind, "values")
        _check_operation(how, given.dtype)
        if jnp.issubdtype(given.dtype, jnp.inexact):
            given = jax.lax.stop_gradient(_not_differentiated(given))
    alike = single and not isinstance(values, jax.core.Tracer)  # a constant of the program
    call = _Call("insert", kind, how=how, takes_values=True, single=single, spread=spread, alike=alike)
    token, (inserted,) = _run(call, token, array, given)
    return give(state, token, name), inserted


def _check_operation(op: str, dtype: Any) -> None:
    """TypeError where values of this dtype have no such operation."""
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    if (op.startswith("bit_") and inexact) or (op in ("min", "max") and jnp.issubdtype(dtype, jnp.complexfloating)):
        raise TypeError(
            f"values of {dtype} have no operation '{op}': bit operations are of integers and bool, and complex numbers "
            "have no order"
        )


def erase(state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None) -> tuple[State, Any]:
    """Erases keys: the next state, and bool ``[*batch]``, true for exactly one of an erased key's duplicates.

    Parameters, errors and waiting as for ``find``.
    """
    token, kind = take(state, "erase")
    spread = spread_over(axis_name, capacity, kind.handles, "erase")
    token, (erased,) = _run(_Call("erase", kind, spread=spread), token, _keys(keys, kind)[0], None)
    return give(state, token, "erase"), erased


def size(state: State, *, axis_name: str | None = None) -> tuple[State, Any]:
    """The number of keys: the next state, and an integer of shape (), int64, or int32 without 64-bit mode.

    ``axis_name``: that of the tables of all devices of this mesh axis together, as for ``find``. Waits for the GPU,
    when the program runs.
    """
    token, kind = take(state, "size")
    spread = spread_over(axis_name, None, kind.handles, "size")
    token, (number,) = _run(_Call("size", kind, spread=spread), token, None, None)
    return give(state, token), number
