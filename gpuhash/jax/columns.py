"""The columns of a call: which it reads or writes, and what it is given for each, checked when a program is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gpuhash.arrays.arguments import action_of
from gpuhash.arrays.frameworks import Shape
from gpuhash.call import actions_of
from gpuhash.signatures import Signature
from gpuhash.tables.named_columns import by_name, chosen

from .arrays import need_dtype, not_differentiable, to_array
from .state import SINGLE, Kind

_not_written = not_differentiable(
    "values that are put into a table were to be differentiated, and a table keeps no derivatives: give "
    "jax.lax.stop_gradient(values); to train what a table holds, find the values, differentiate with respect to them, "
    "and add the steps by insert_or_apply"
)
_not_erased = not_differentiable(
    "the default of gpuhash.jax.pop was to be differentiated: find the values with this default, and erase the keys"
)


class Given(NamedTuple):
    """A column of a request. With it goes an array of values, or None in its place: nothing is given."""

    name: str
    dtype: str
    shape: Shape  # of one value
    single: bool = False  # one value for all keys
    alike: bool = False  # the single value is the same on all devices
    action: str = "keep"  # of a change


def read_columns(signature: Signature, kind: Kind, batch: Shape, default: Any, columns: Any) -> list[tuple[Given, Any]]:
    """The columns that a lookup or an erasure reads, with the values of absent keys; None: zeros."""
    if "values" not in signature.answers:
        return []
    if columns is not None and not kind.has_names:
        raise TypeError(f"columns={columns!r} was given, and the table has a single value per key, without a name")
    if default is None and kind.defaults is None and signature.absent != "default":
        raise ValueError(
            f"{signature.name}(keys) of a batch needs a default for absent keys: give one here or to the table"
        )
    defaults = kind.own_defaults if default is None else _by_column(kind, default, "defaults")
    read = []
    for name in chosen(kind.named, columns):
        column = kind.named[name]
        given, array = Given(name, column.dtype, column.shape, single=True), None
        need_dtype(column.dtype, _named("values", name))
        if name in defaults:
            given, array = _taken(given, defaults[name], batch, "default")
            if signature.request == "erasure":
                array = _constant(array, _not_erased)
        read.append((given, array))
    return read


def written_columns(signature: Signature, kind: Kind, batch: Shape, values: Any, op: Any) -> list[tuple[Given, Any]]:
    """The columns that a change writes, with their values, and with None those that it only reads."""
    if not signature.takes:
        return []
    what = signature.takes[0]
    if values is None and not kind.has_names:
        values = _initial_value(signature, kind)
    named = {} if values is None and _may_be_initial(signature) else _by_column(kind, values, what)
    actions = _actions(signature, kind, named, op)
    written = []
    for name in kind.named if signature.reads_all else named:
        column = kind.named[name]
        given, array = Given(name, column.dtype, column.shape), None
        need_dtype(column.dtype, _named("values", name))
        if name in named:
            given, array = _taken(given, named[name], batch, what)
            array = _constant(array, _not_written)
            is_constant = not isinstance(named[name], jax.core.Tracer)  # of the program
            given = given._replace(action=actions[name], alike=given.single and is_constant)
        written.append((given, array))
    return written


def _may_be_initial(signature: Signature) -> bool:
    """May a change leave it to the table what new keys get?"""
    return signature.needs == "rows" or "default" in signature.takes


def _initial_value(signature: Signature, kind: Kind) -> Any:
    """The single value of new keys in a change that is given none. None: the table's initial one."""
    if not _may_be_initial(signature):
        raise TypeError(
            f"gpuhash.jax.{signature.name} was given no values, and the table has values of {kind.named[SINGLE].dtype}"
        )
    if kind.has_initializer:
        return None
    if "default" in signature.takes and kind.defaults is None:
        raise ValueError(f"{signature.name} needs a default for absent keys: give one here or to the table")
    return kind.own_defaults.get(SINGLE)


def _actions(signature: Signature, kind: Kind, named: Mapping[str, Any], op: Any) -> dict[str, str]:
    """What becomes of the values of each column that is given, where keys are there."""
    if signature.action is not None:
        return dict.fromkeys(named, signature.action)
    if kind.has_names:
        return actions_of(kind.named, named, op)
    dtype = kind.named[SINGLE].dtype
    return {SINGLE: action_of(op, dtype, f"the table has values of {dtype}")}


def _by_column(kind: Kind, given: Any, what: str) -> dict[str, Any]:
    return by_name(kind.named, given, what) if kind.has_names else {SINGLE: given}


def _named(what: str, name: str) -> str:
    return f"{what} of {name!r}" if name else what


def _taken(given: Given, values: Any, batch: Shape, what: str) -> tuple[Given, Any]:
    """What is given for a column, for each key or one for all, as an array of JAX."""
    shape = given.shape
    array = to_array(values, given.dtype, _named(what, given.name))
    if array.ndim == 0:
        array = jnp.broadcast_to(array, shape)
    if array.shape not in (batch + shape, shape):
        raise ValueError(
            f"the {_named(what, given.name)} have shape {array.shape}, expected {batch + shape}, or {shape} for all "
            "keys alike"
        )
    return given._replace(single=array.shape != batch + shape), array


def _constant(array: Any, refuse: Any) -> Any:
    """The array, which has no derivatives."""
    return jax.lax.stop_gradient(refuse(array)) if jnp.issubdtype(array.dtype, jnp.inexact) else array
