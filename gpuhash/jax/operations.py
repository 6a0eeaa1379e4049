"""Calls on tables, for JAX's compiled programs: each takes a state, and gives the next state and its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gpuhash.arguments import action_of
from gpuhash.arrays import Shape
from gpuhash.call import actions_of
from gpuhash.named_columns import Column, by_name, chosen

from .arrays import ENABLE_WIDE, batch_shape, is_wide, need_dtype, not_differentiable, to_array
from .calls import Call, Given, run
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


def _given(values: Any, batch: Shape, value: Column, what: str) -> tuple[Any, Given]:
    """The values of a call, for each key or one for all."""
    array = to_array(values, value.dtype, what)
    if array.ndim == 0:
        array = jnp.broadcast_to(array, value.shape)
    if array.shape == batch + value.shape:
        return array, Given(value.shape)
    if array.shape == value.shape:
        return array, Given(value.shape, single=True)
    raise ValueError(
        f"the {what} have shape {array.shape}, expected {batch + value.shape}, or {value.shape} for all keys alike"
    )


def _values_read(kind: Kind, columns: Any) -> dict[str, Column]:
    """What a lookup reads, by name; "" is that of a table without named columns."""
    if kind.is_set:
        raise TypeError("gpuhash.jax.find was given the state of a set, which has no values: ask contains")
    if kind.columns:
        read = {name: kind.named[name] for name in chosen(kind.named, columns)}
    elif columns is not None:
        raise TypeError(f"columns={columns!r} was given, and the table has a single value per key, without a name")
    else:
        read = {"": kind.value}
    for name, value in read.items():
        need_dtype(value.dtype, f"values of {name!r}" if name else "values")
    return read


def _defaults(kind: Kind, default: Any) -> dict[str, Any]:
    """The values of absent keys, by name; those that are not there are zeros."""
    if default is None:
        return kind.own_defaults
    return by_name(kind.named, default, "defaults") if kind.columns else {"": default}


def find(
    state: State,
    keys: Any,
    default: Any = None,
    *,
    columns: Any = None,
    axis_name: str | None = None,
    capacity: int | None = None,
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
        *value_shape]``. None: the table's own default, or else zeros. Of a table with columns a mapping of names to
        such; columns that it leaves out are zeros.
    columns
        Of a table with columns: a list of the names of those that are wanted; None for all.
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
        ``[*batch, *value_shape]``, and bool ``[*batch]``; of a table with columns ``values`` is a dict of names to
        arrays. Does not wait for the GPU, without ``axis_name``.

    Raises
    ------
    TypeError, ValueError
        When it is traced: for arrays of other dtypes or shapes, 64-bit dtypes without 64-bit mode, sets, unknown
        columns, and an axis that is not there or has more or fewer devices than the state has tables.
    RuntimeError
        For a state that was used before; in a compiled function, when it runs, ``jax.errors.JaxRuntimeError`` (from
        some versions of jaxlib a ValueError), also for a table that was freed.
    """
    token, kind = take(state, "find")
    read, defaults = _values_read(kind, columns), _defaults(kind, default)
    array, batch = _keys(keys, kind)
    arrays, given = [], []
    for name, value in read.items():
        one, each = None, Given(value.shape, single=True)
        if name in defaults:
            one, each = _given(defaults[name], batch, value, f"default of {name!r}" if name else "default")
        arrays.append(one)
        given.append(each)
    spread = spread_over(axis_name, capacity, kind.handles, "find")
    call = Call("find", kind, given=tuple(given), columns=tuple(read) if kind.columns else (), spread=spread)
    token, (found, *values) = run(call, token, array, tuple(arrays))
    return give(state, token), (dict(zip(read, values, strict=True)) if kind.columns else values[0], found)


def get(
    state: State, keys: Any, default: Any = None, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """The values of keys, and a default for absent ones: the next state, and what ``find`` gives without its mask.

    Raises
    ------
    ValueError
        Where neither the call nor the table has a default. Otherwise as ``find``.
    """
    _, kind = take(state, "get")
    if default is None and kind.defaults is None and not kind.is_set:
        raise ValueError("get(keys) of a batch needs a default for absent keys: give one here or to the table")
    state, (values, _) = find(state, keys, default, axis_name=axis_name, capacity=capacity)
    return state, values


def contains(
    state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Which of the keys are in the table or set: the next state, and bool ``[*batch]``.

    Parameters, errors and waiting as for ``find``.
    """
    token, kind = take(state, "contains")
    spread = spread_over(axis_name, capacity, kind.handles, "contains")
    token, (found,) = run(Call("contains", kind, spread=spread), token, _keys(keys, kind)[0], ())
    return give(state, token), found


def rows(state: State, keys: Any) -> tuple[State, Any]:
    """The numbers of the keys' rows in ``table.row_storage``, -1 for absent keys: the next state, and ``[*batch]``.

    They are int64, or int32 without 64-bit mode. Integers have no derivative; rows that are gathered by them have.
    Parameters, errors and waiting as for ``find``.

    Raises
    ------
    TypeError
        Without 64-bit mode, for a table of several shards, whose numbers have the shard above the 40 lower bits.
    ValueError
        For a table whose values are scalars of up to 8 bytes, which lie beside their keys and have no rows.
    """
    token, kind = take(state, "rows")
    _need_rows(kind)
    token, (numbers,) = run(Call("rows", kind), token, _keys(keys, kind)[0], ())
    return give(state, token), numbers


def _need_rows(kind: Kind) -> None:
    if not kind.has_rows:
        raise ValueError("this table keeps its values beside their keys and has no rows; give it a value_shape")
    if kind.has_shards and not is_wide():
        raise TypeError(
            "the rows of a table of several shards have numbers of 64 bits, the shard above the 40 lower ones, and JAX "
            f"narrows these to 32 bits unless it is in 64-bit mode: {ENABLE_WIDE}, or ask table.rows outside of "
            "programs"
        )


def find_or_insert(state: State, keys: Any, values: Any = None) -> tuple[State, tuple[Any, Any]]:
    """The numbers of the keys' rows, after those that are not there have been inserted.

    Parameters
    ----------
    state, keys
        As for ``find``.
    values
        What new keys get, as the values of ``insert``; None takes what the table's initializer says, or else its
        default, or else zeros. Of a table with columns those that are left out get their initial values.

    Returns
    -------
    state
        The next state.
    rows, is_new
        ``[*batch]``, as of ``rows``; and bool ``[*batch]``: was the key new; true for exactly one of a new key's
        duplicates. Grows, waits and raises as ``insert``; ValueError and TypeError as ``rows``.
    """
    token, kind = take(state, "find_or_insert")
    _need_rows(kind)
    array, batch = _keys(keys, kind)
    if values is None and not kind.columns and not kind.has_initializer:
        values = kind.own_defaults.get("")
    given: dict[str, Any] = {}
    if values is not None:
        given = by_name(kind.named, values, "values") if kind.columns else {"": values}
    changes = [
        _change(
            each, batch, kind.named[name] if name else kind.value, f"values of {name!r}" if name else "values", "keep"
        )
        for name, each in given.items()
    ]
    arrays, how = zip(*changes, strict=True) if changes else ((), ())
    call = Call("find_or_insert", kind, given=how, columns=tuple(given) if kind.columns else ())
    token, (numbers, is_new) = run(call, token, array, arrays)
    return give(state, token, "find_or_insert"), (numbers, is_new)


def insert(
    state: State, keys: Any, values: Any = None, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Inserts the keys that are not there, and keeps the values of those that are.

    Parameters
    ----------
    state, keys, axis_name, capacity
        As for ``find``.
    values
        ``[*batch, *value_shape]``, or one value for all keys. None for a set. Not differentiable. Of a table with
        columns a mapping of names to such: columns that it leaves out get their initial values in new rows.

    Returns
    -------
    state
        The next state.
    inserted
        bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates, of those on all devices with
        ``axis_name``.

    Notes
    -----
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
    """Inserts keys, and replaces the values of those that are there, or of the columns given. As ``insert``."""
    return _insert(state, keys, values, "insert_or_assign", "replace", axis_name, capacity)


def insert_or_apply(
    state: State,
    keys: Any,
    values: Any,
    op: str | Mapping[str, str] = "add",
    *,
    axis_name: str | None = None,
    capacity: int | None = None,
) -> tuple[State, Any]:
    """Inserts the keys that are not there, and combines the values of those that are with the new ones.

    All of a key's duplicates count. ``op``: "add", "multiply", "min", "max", "bit_and", "bit_or" or "bit_xor" (with
    hyphens as well); "keep" is ``insert`` and "replace" ``insert_or_assign``. Of a table with columns also a mapping of
    the columns given to such. Otherwise as ``insert``.
    """
    return _insert(state, keys, values, "insert_or_apply", op, axis_name, capacity)


def _insert(
    state: State, keys: Any, values: Any, name: str, op: Any, axis_name: str | None, capacity: int | None
) -> tuple[State, Any]:
    token, kind = take(state, name)
    spread = spread_over(axis_name, capacity, kind.handles, name)
    array, batch = _keys(keys, kind)
    names: tuple[str, ...] = ()
    if kind.columns:
        actions = actions_of(kind.named, values, op)
        names = tuple(actions)
        changes = [
            _change(values[column], batch, kind.named[column], f"values of {column!r}", how)
            for column, how in actions.items()
        ]
    else:
        if kind.is_set:
            if op != "keep" or values is not None:
                raise TypeError(
                    f"gpuhash.jax.{name} was given a set's state, which has no values: call insert(state, keys)"
                )
            changes = [(None, Given(how="keep"))]
        elif values is None:
            raise TypeError(f"gpuhash.jax.{name} was given no values, and the table has values of {kind.value_dtype}")
        else:
            how = action_of(op, kind.value.dtype, f"the table has values of {kind.value.dtype}")
            changes = [_change(values, batch, kind.value, "values", how)]
    arrays, given = zip(*changes, strict=True)
    call = Call("insert", kind, given=given, columns=names, spread=spread)
    token, (inserted,) = run(call, token, array, arrays)
    return give(state, token, name), inserted


def _change(values: Any, batch: Shape, value: Column, what: str, how: str) -> tuple[Any, Given]:
    """The values of an insertion, which have no derivatives."""
    array, given = _given(values, batch, value, what)
    if jnp.issubdtype(array.dtype, jnp.inexact):
        array = jax.lax.stop_gradient(_not_differentiated(array))
    is_constant = not isinstance(values, jax.core.Tracer)  # of the program
    return array, given._replace(how=how, alike=given.single and is_constant)


def erase(state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None) -> tuple[State, Any]:
    """Erases keys: the next state, and bool ``[*batch]``, true for exactly one of an erased key's duplicates.

    Parameters, errors and waiting as for ``find``.
    """
    token, kind = take(state, "erase")
    spread = spread_over(axis_name, capacity, kind.handles, "erase")
    token, (erased,) = run(Call("erase", kind, spread=spread), token, _keys(keys, kind)[0], ())
    return give(state, token, "erase"), erased


def size(state: State, *, axis_name: str | None = None) -> tuple[State, Any]:
    """The number of keys: the next state, and an integer of shape (), int64, or int32 without 64-bit mode.

    ``axis_name``: that of the tables of all devices of this mesh axis together, as for ``find``. Waits for the GPU,
    when the program runs.
    """
    token, kind = take(state, "size")
    spread = spread_over(axis_name, None, kind.handles, "size")
    token, (number,) = run(Call("size", kind, spread=spread), token, None, ())
    return give(state, token), number
