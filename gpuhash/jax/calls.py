"""Calls on tables, for JAX's compiled programs: each takes a state, and gives the next state and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuhash.arrays.frameworks import Shape
from gpuhash.signatures import SIGNATURES, Signature

from .arrays import ENABLE_WIDE, batch_shape, is_wide, to_array
from .columns import read_columns, written_columns
from .exchange import spread_over
from .request import Request, run
from .state import SINGLE, Kind, State, give, take


def _call(
    name: str,
    state: State,
    keys: Any = None,
    given: Any = None,
    *,
    op: Any = None,
    columns: Any = None,
    axis_name: str | None = None,
    capacity: int | None = None,
) -> tuple[State, Any]:
    """The call of that name in the manifest: the next state, and its answer, or a tuple of them.

    ``given``: values or defaults; ``columns``: the names of those that a lookup is to read.
    """
    token, kind = take(state, name)
    signature = SIGNATURES["add" if name == "insert" and kind.is_set and given is None else name]
    _need_kind(signature, kind)
    spread = spread_over(axis_name, capacity, kind.handles, name)
    array: Any = None
    batch: Shape = ()
    if signature.request != "whole":
        array = to_array(keys, kind.key_dtype, "keys")
        batch = batch_shape(array, kind.key_shape)
    if signature.request == "change":
        taken = written_columns(signature, kind, batch, given, op)
    else:
        taken = read_columns(signature, kind, batch, given, columns)
    request = Request(signature.name, kind, tuple(column for column, _ in taken), spread)
    token, answers = run(request, token, array, tuple(values for _, values in taken))
    if "values" in answers:
        named = dict(zip((column.name for column, _ in taken), answers["values"], strict=True))
        answers["values"] = named if kind.has_names else named[SINGLE]
    state = give(state, token, name if signature.request in ("change", "erasure") else None)
    first, *others = (answers[answer] for answer in signature.answers)
    return state, (first, *others) if others else first


def _need_kind(signature: Signature, kind: Kind) -> None:
    """TypeError or ValueError for a table that has no such call."""
    if signature.needs == "values" and kind.is_set:
        raise TypeError(
            f"gpuhash.jax.{signature.name} was given the state of a set, which has no values: ask "
            "contains(state, keys), or call insert(state, keys)"
        )
    if signature.needs != "rows":
        return
    if not kind.has_rows:
        raise ValueError("this table keeps its values beside their keys and has no rows; give it a value_shape")
    if kind.has_shards and not is_wide():
        raise TypeError(
            "the rows of a table of several shards have numbers of 64 bits, the shard above the 40 lower ones, and JAX "
            f"narrows these to 32 bits unless it is in 64-bit mode: {ENABLE_WIDE}, or ask table.rows outside of "
            "programs"
        )


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
    return _call("find", state, keys, default, columns=columns, axis_name=axis_name, capacity=capacity)


def get(
    state: State, keys: Any, default: Any = None, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """The values of keys, and a default for absent ones: the next state, and what ``find`` gives without its mask.

    Raises
    ------
    ValueError
        Where neither the call nor the table has a default. Otherwise as ``find``.
    """
    return _call("get", state, keys, default, axis_name=axis_name, capacity=capacity)


def contains(
    state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Which of the keys are in the table or set: the next state, and bool ``[*batch]``.

    Parameters, errors and waiting as for ``find``.
    """
    return _call("contains", state, keys, axis_name=axis_name, capacity=capacity)


def rows(state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None) -> tuple[State, Any]:
    """The numbers of the keys' rows in ``table.row_storage``, -1 for absent keys: the next state, and ``[*batch]``.

    They are int64, or int32 without 64-bit mode. With ``axis_name`` they are of rows of the owner's table, whose number
    ``owners`` tells. Integers have no derivative; rows that are gathered by them have. Parameters, errors and waiting
    as for ``find``.

    Raises
    ------
    TypeError
        Without 64-bit mode, for a table of several shards, whose numbers have the shard above the 40 lower bits.
    ValueError
        For a table whose values are scalars of up to 8 bytes, which lie beside their keys and have no rows.
    """
    return _call("rows", state, keys, axis_name=axis_name, capacity=capacity)


def find_or_insert(
    state: State, keys: Any, values: Any = None, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, tuple[Any, Any]]:
    """The numbers of the keys' rows, after those that are not there have been inserted.

    Parameters
    ----------
    state, keys, axis_name, capacity
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
    return _call("find_or_insert", state, keys, values, axis_name=axis_name, capacity=capacity)


def setdefault(
    state: State, keys: Any, default: Any = None, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Inserts ``default`` for the keys that are absent, and gives the values of all.

    Parameters
    ----------
    state, keys, axis_name, capacity
        As for ``find``.
    default
        What new keys get, as the values of ``insert``; None takes what the table's initializer says, or else its
        default. Of a table with columns those that are left out get their initial values. Not differentiable.

    Returns
    -------
    state
        The next state.
    values
        ``[*batch, *value_shape]``, as of ``find``; of a table with columns all of them. Grows, waits and raises as
        ``insert``.

    Raises
    ------
    ValueError
        Where neither the call nor a table without columns has a default or an initializer.
    """
    return _call("setdefault", state, keys, default, axis_name=axis_name, capacity=capacity)


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
    return _call("insert", state, keys, values, axis_name=axis_name, capacity=capacity)


def insert_or_assign(
    state: State, keys: Any, values: Any, *, axis_name: str | None = None, capacity: int | None = None
) -> tuple[State, Any]:
    """Inserts keys, and replaces the values of those that are there, or of the columns given. As ``insert``."""
    return _call("insert_or_assign", state, keys, values, axis_name=axis_name, capacity=capacity)


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
    return _call("insert_or_apply", state, keys, values, op=op, axis_name=axis_name, capacity=capacity)


def apply_and_find(
    state: State, keys: Any, values: Any, op: str | Mapping[str, str] = "add"
) -> tuple[State, tuple[Any, Any]]:
    """As ``insert_or_apply``, and gives what the values come to.

    Over the devices of a mesh axis apply the values, and then find them: both take ``axis_name``. Parameters, errors
    and waiting as for ``insert_or_apply``.

    Returns
    -------
    state
        The next state.
    values, is_new
        ``[*batch, *value_shape]``: the value of each key once the whole batch has been applied; of a table with columns
        those that were given, by name. bool ``[*batch]``, as of ``insert``.
    """
    return _call("apply_and_find", state, keys, values, op=op)


def erase(state: State, keys: Any, *, axis_name: str | None = None, capacity: int | None = None) -> tuple[State, Any]:
    """Erases keys: the next state, and bool ``[*batch]``, true for exactly one of an erased key's duplicates.

    Parameters, errors and waiting as for ``find``.
    """
    return _call("erase", state, keys, axis_name=axis_name, capacity=capacity)


def pop(state: State, keys: Any, default: Any = None) -> tuple[State, Any]:
    """Erases keys, and gives the values that they had: the next state, and ``[*batch, *value_shape]``, as of ``find``.

    All of a key's duplicates get its value. Over the devices of a mesh axis find the values, and then erase the keys:
    both take ``axis_name``.

    Parameters
    ----------
    state, keys
        As for ``find``.
    default
        The value of absent keys, as for ``find``; None takes the table's. A program cannot raise for what its arrays
        hold, so one of them is needed, where ``HashTable.pop`` without a default is a KeyError. Not differentiable.

    Raises
    ------
    ValueError
        Where neither the call nor the table has a default. Otherwise as ``find``.
    """
    return _call("pop", state, keys, default)


def size(state: State, *, axis_name: str | None = None) -> tuple[State, Any]:
    """The number of keys: the next state, and an integer of shape (), int64, or int32 without 64-bit mode.

    ``axis_name``: that of the tables of all devices of this mesh axis together, as for ``find``. Waits for the GPU,
    when the program runs.
    """
    return _call("size", state, axis_name=axis_name)
