"""Calls on tables, for JAX's compiled programs: each takes a state, and gives the next state and its result."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpuhash.arguments import APPLY_OPS
from gpuhash.arrays import Shape
from gpuhash.dtypes import numpy_dtype, storage_dtype

from .arrays import batch_shape, need_dtype, not_differentiable, to_array
from .calls import Call, run
from .exchange import spread_over
from .state import Kind, State, give, take

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
    call = Call("find", kind, takes_values=True, single=single, spread=spread)
    token, (values, found) = run(call, token, array, defaults)
    return give(state, token), (values, found)


def contains(
    state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Which of the keys are in the table or set: the next state, and bool ``[*batch]``.

    Parameters, errors and waiting as for ``find``.
    """
    token, kind = take(state, "contains")
    spread = spread_over(axis_name, capacity, kind.handles, "contains")
    token, (found,) = run(Call("contains", kind, spread=spread), token, _keys(keys, kind)[0], None)
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
    token, (numbers,) = run(Call("rows", kind), token, _keys(keys, kind)[0], None)
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
    call = Call("insert", kind, how=how, takes_values=True, single=single, spread=spread, alike=alike)
    token, (inserted,) = run(call, token, array, given)
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
    token, (erased,) = run(Call("erase", kind, spread=spread), token, _keys(keys, kind)[0], None)
    return give(state, token, "erase"), erased


def size(state: State, *, axis_name: str | None = None) -> tuple[State, Any]:
    """The number of keys: the next state, and an integer of shape (), int64, or int32 without 64-bit mode.

    ``axis_name``: that of the tables of all devices of this mesh axis together, as for ``find``. Waits for the GPU,
    when the program runs.
    """
    token, kind = take(state, "size")
    spread = spread_over(axis_name, None, kind.handles, "size")
    token, (number,) = run(Call("size", kind, spread=spread), token, None, None)
    return give(state, token), number
