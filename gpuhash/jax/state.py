"""The state of a table: what compiled programs hand from call to call, so that the calls stay in order."""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from gpuhash import _core
from gpuhash.arrays.dtypes import numpy_dtype, storage_dtype
from gpuhash.arrays.frameworks import Shape
from gpuhash.hash_set import HashSet
from gpuhash.keys.strings import no_strings
from gpuhash.table import HashTable
from gpuhash.tables.keyed_table import KeyedTable
from gpuhash.tables.named_columns import Column, Columns

from .library import TOKEN_WORDS, begin, check

_PREFIX = "gpuhash.jax."
SINGLE = ""  # the name of the column that a single value is


@dataclass(frozen=True)
class Kind:
    """What a program is compiled for: tables of one kind."""

    key_dtype: str
    key_shape: Shape
    columns: tuple[tuple[str, Column], ...]  # without their initial values, which the table knows; none of a set
    has_rows: bool
    has_initializer: bool  # of single values
    has_shards: bool  # whose rows' numbers have more than 32 bits
    defaults: tuple[bytes, ...] | None  # the values of absent keys, of each column, as their dtypes' storage
    handles: tuple[int, ...]  # of the tables, where they are on GPUs; on the host the token says it
    held: tuple[Any, ...] = ()  # the tables, where they stay in place: they live as long as the programs

    @functools.cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __hash__(self) -> int:
        """Made once, as JAX asks for it in each call."""
        return self._hash

    @property
    def is_set(self) -> bool:
        return not self.columns

    @functools.cached_property
    def named(self) -> Columns:
        """The columns by their names; a single value is the one named ``SINGLE``."""
        return dict(self.columns)

    @property
    def has_names(self) -> bool:
        """Do values come and go as mappings of names?"""
        return not self.is_set and SINGLE not in self.named

    @functools.cached_property
    def own_defaults(self) -> dict[str, np.ndarray[Any, Any]]:
        """The table's own defaults by column; none where it has none."""
        return {
            name: np.frombuffer(storage, numpy_dtype(column.dtype)).reshape(column.shape)
            for storage, (name, column) in zip(self.defaults or (), self.columns, strict=False)
        }


class _Consumed:
    """The tokens that calls have taken. By identity: a token that is handed on in another State is the same token."""

    def __init__(self) -> None:
        self._by_id: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, token: object) -> bool:
        known = self._by_id.get(id(token))
        return known is not None and known() is token

    def add(self, token: Any) -> None:
        number = id(token)

        def forget(gone: weakref.ref[Any]) -> None:
            if self._by_id.get(number) is gone:
                del self._by_id[number]

        self._by_id[number] = weakref.ref(token, forget)


_consumed = _Consumed()
_faces: weakref.WeakValueDictionary[int, KeyedTable] = weakref.WeakValueDictionary()


@jax.tree_util.register_pytree_node_class
class State:
    """One or more tables as a pytree, made by ``from_table`` or ``from_tables``.

    Each call of this package takes a state and gives the next one, and each state is taken once. As everywhere in JAX,
    a compiled function does what its results depend on: a change whose state it neither returns nor uses is left out,
    of which a RuntimeWarning tells, unless it is made in another compiled function within. A program that is compiled
    for a state on the host serves the tables of all states of the same dtypes, shapes and default; on GPUs, where
    memory cannot be read without waiting, it is compiled for its tables.
    """

    __slots__ = ("__weakref__", "_change", "_kind", "_token")

    def __init__(self, token: Any, kind: Kind, change: str | None = None) -> None:
        self._token = token  # uint32 [6], or [tables, 6]
        self._kind = kind
        self._change = change  # the call of a traced program that gave it, until somebody uses it

    def __del__(self) -> None:
        if self._change is not None:
            warnings.warn(
                f"the state that {_PREFIX}{self._change} returned was dropped in a function that is being traced: a "
                "program makes no change that its results do not depend on; return the state",
                RuntimeWarning,
                stacklevel=2,
            )

    def tree_flatten(self) -> tuple[tuple[Any], Kind]:
        """For JAX."""
        if self._token in _consumed:
            raise _already_used("a pytree of its arrays was asked for")
        self._change = None
        return (self._token,), self._kind

    @classmethod
    def tree_unflatten(cls, kind: Kind, leaves: Iterable[Any]) -> State:
        """For JAX."""
        (token,) = leaves
        return cls(token, kind)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a state is good in this process and once, and cannot be copied or pickled: do so with the table "
            "(state.table), and make a new state by gpuhash.jax.from_table(table)"
        )

    def __repr__(self) -> str:
        kind = self._kind
        values = "".join(f", values {column.dtype}{list(column.shape)}" for _, column in kind.columns)
        if kind.has_names:
            values = f", columns {{{', '.join(f'{name}: {column}' for name, column in kind.columns)}}}"
        used = ", used" if self._token in _consumed else ""
        return f"<gpuhash.jax.State: keys {kind.key_dtype}{list(kind.key_shape)}{values}{used}>"

    @property
    def table(self) -> HashTable | HashSet:
        """The table. Waits for the calls that gave this state.

        Raises
        ------
        RuntimeError
            Where it has been freed, or while a program is traced.
        ValueError
            Where there are several: ``tables``.
        """
        tables = self.tables
        if len(tables) != 1:
            raise ValueError(f"this state is of {len(tables)} tables: take one of state.tables")
        return tables[0]

    @property
    def tables(self) -> list[HashTable | HashSet]:
        """The tables, as ``table``."""
        if isinstance(self._token, jax.core.Tracer):
            raise RuntimeError("a program is being traced, and has no table yet: ask a state outside of it")
        words = np.array(self._token).reshape(-1, TOKEN_WORDS)
        handles = self._kind.handles or words[:, :2].copy().view(np.int64).ravel().tolist()
        for handle in self._kind.handles:
            check(handle)
        return [self._face(handle) for handle in handles]

    def _face(self, handle: int) -> Any:
        core = _core.table_of(handle)
        if core is None:
            raise RuntimeError(
                "the table of this state has been freed, or has given up its name: keep the table as long as its states"
            )
        face = _faces.get(handle)
        if face is not None and face._core is core:  # another table may have the name by now
            return face
        if core.value_dtype is None and not core.columns:
            return HashSet._open(core, None)
        table = HashTable._open(core, None)
        if self._kind.defaults is not None:
            storages = {
                name: np.frombuffer(storage, storage_dtype(column.dtype)).reshape(column.shape).copy()
                for storage, (name, column) in zip(self._kind.defaults, self._kind.columns, strict=True)
            }
            if table._columns is None:
                table._set_default(storages[SINGLE])
            else:
                table._column_defaults = storages
        return table


def take(state: Any, call: str) -> tuple[Any, Kind]:
    """The token and kind of a state that a call is about to use."""
    if not isinstance(state, State):
        raise TypeError(
            f"{_PREFIX}{call} was given a {type(state).__name__} as state: make one by gpuhash.jax.from_table(table)"
        )
    if state._token in _consumed:
        raise _already_used(f"{_PREFIX}{call} was given it")
    shape = np.shape(state._token)
    if math.prod(shape) != TOKEN_WORDS:
        raise ValueError(
            f"{_PREFIX}{call} was given the state of {math.prod(shape[:-1])} tables, expected that of one: "
            "call it in jax.shard_map, or in jax.vmap over the states"
        )
    return state._token, state._kind


def give(taken: State, token: Any, change: str | None = None) -> State:
    """The state after a call, which has used up the one before. ``change``: its name, if it may change the table."""
    _consumed.add(taken._token)
    taken._change = None
    return State(token, taken._kind, change if isinstance(token, jax.core.Tracer) else None)


def from_table(table: Any, *, device: Any = None, fixed: bool = False) -> State:
    """The state of a table, for the calls of this package.

    Several states of one table are each in order, and in no order with each other, as calls of several threads. So
    between two of them wait (``jax.block_until_ready``), or go on with the state that the last call has returned.

    Parameters
    ----------
    table
        A HashTable or HashSet. The state does not keep it: a program that meets a table that was freed raises.
    device
        The JAX device of the state, one of the table's platform; by default the GPU that the table is on, or the first
        CPU device.
    fixed
        The table stays where it is in memory from now on, so that XLA may put calls with this state into command
        buffers (CUDA graphs), which it replays without asking the host: lookups, ``erase``, and ``insert`` and
        ``insert_or_assign`` of tables that are not deterministic and have no columns. XLA records them again where an
        array has another address than in the run before, so donate the state. Such a table does not grow; ``reserve``
        before, as there is no way back but a copy. Where it would have to grow, ``TableFullError`` is raised,
        ``JaxRuntimeError`` in a program; keys that a replay finds no room for are lost and counted, and the next call
        that waits for the table's size raises ``TableFullError``. XLA may replay a program whose recording has failed
        with old addresses: call ``jax.clear_caches()`` before it runs again. Compiled programs keep the table's memory
        until they are dropped themselves (``jax.clear_caches``). Replays wait for nobody: between them and calls from
        elsewhere wait for the GPU, by ``jax.block_until_ready`` after a program, and by ``len(table)`` after other
        calls.

    Returns
    -------
    A pytree of one small uint32 array.

    Raises
    ------
    TypeError
        For anything but a table.
    ValueError
        For a device where the table is not, or none of JAX's.
    RuntimeError
        In a function that is being traced: make the state outside, and give it to the function.
    """
    kind, token = _begin(table, fixed)
    state = State(_put(token, _jax_device(table, device)), kind)
    if fixed:
        table._core.fix_in_place(table._stream())
    return state


def make_tables(mesh: Any, key_dtype: Any, value_dtype: Any = None, **options: Any) -> list[Any]:
    """New tables for ``from_tables``: one for each device of a mesh, where that device is.

    Parameters
    ----------
    mesh
        A ``jax.sharding.Mesh`` of CPU devices, or of GPUs.
    key_dtype, value_dtype, options
        As for ``gpuhash.HashTable``, of each table, so ``capacity`` is that of one; without a value dtype as for
        ``gpuhash.HashSet``. Neither ``device`` nor ``name``.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As ``gpuhash.HashTable``, and ValueError for devices that are neither.
    """
    for option in ("device", "name"):
        if option in options:
            raise TypeError(f"make_tables was given {option}={options[option]!r}: the tables differ in that")
    made: list[Any] = []
    for device in mesh.devices.flat:
        if device.platform not in ("cpu", "gpu"):
            raise ValueError(f"the mesh has {device}, expected CPU devices or GPUs: tables are on these")
        where = "cpu" if device.platform == "cpu" else f"cuda:{device.local_hardware_id}"
        if value_dtype is None:
            made.append(HashSet(key_dtype, device=where, **options))
        else:
            made.append(HashTable(key_dtype, value_dtype, device=where, **options))
    return made


def from_tables(tables: Sequence[Any], mesh: Any, *, fixed: bool = False) -> State:
    """The state of one table per device, for use in ``jax.shard_map``.

    Each is a table by itself, unless calls are given ``axis_name=``, to which they are one.

    Parameters
    ----------
    tables
        Tables of one kind: the same dtypes, shapes and default, one for each device of the mesh, in its order.
    mesh
        A ``jax.sharding.Mesh`` of one axis. The state is sharded over it: its ``PartitionSpec`` is that of the axis.
    fixed
        As for ``from_table``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As ``from_table``, and for tables that differ or that are not as many as the devices.
    """
    devices = list(mesh.devices.flat)
    if len(mesh.axis_names) != 1 or len(devices) != len(tables):
        raise ValueError(
            f"{len(tables)} tables were given for a mesh of {len(devices)} devices and {len(mesh.axis_names)} axes, "
            "expected a mesh of one axis, and one table for each of its devices"
        )
    begun = [_begin(table, fixed) for table in tables]
    kinds = {(replace(kind, handles=(), held=()), bool(kind.handles)) for kind, _ in begun}
    if len(kinds) != 1:
        raise ValueError("tables of several kinds were given, expected tables of the same dtypes, shapes and default")
    kind = replace(
        begun[0][0],
        handles=tuple(handle for each, _ in begun for handle in each.handles),
        held=tuple(table for each, _ in begun for table in each.held),
    )
    shards = [
        _put(token[None], _jax_device(table, device))
        for table, (_, token), device in zip(tables, begun, devices, strict=True)
    ]
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*mesh.axis_names))
    array = jax.make_array_from_single_device_arrays((len(tables), TOKEN_WORDS), sharding, shards)
    for table in tables if fixed else ():
        table._core.fix_in_place(table._stream())
    return State(array, kind)


def _begin(table: Any, fixed: bool) -> tuple[Kind, np.ndarray[Any, Any]]:
    if not isinstance(table, KeyedTable):
        raise TypeError(f"a {type(table).__name__} was given, expected a gpuhash.HashTable or gpuhash.HashSet")
    if table._string_keys is not None:
        raise TypeError(no_strings(table.key_dtype, "JAX has"))
    core = table._core
    # A name may get another table; the handle of one that stays where it is means that table alone.
    handle = _core.own_handle_of(core) if fixed else _core.handle_of(core)
    token = np.empty(TOKEN_WORDS, np.uint32)
    if not table._host:
        check(handle)
    begin(handle, token.ctypes.data)
    _faces[handle] = table
    kind = Kind(
        key_dtype=table._key_dtype,
        key_shape=table._key_shape,
        columns=tuple((name, Column(column.dtype, column.shape)) for name, column in _columns_of(table).items()),
        has_rows=core.has_rows,
        has_initializer=table._initializer is not None,
        has_shards=bool(table._shards),
        defaults=_defaults_of(table),
        handles=() if table._host else (handle,),
        held=(core,) if fixed else (),
    )
    return kind, token


def _columns_of(table: KeyedTable) -> Columns:
    if table._columns is not None:
        return table._columns
    return {} if table._value_dtype is None else {SINGLE: Column(table._value_dtype, table._value_shape)}


def _defaults_of(table: KeyedTable) -> tuple[bytes, ...] | None:
    if not isinstance(table, HashTable):
        return None
    if table._column_defaults is not None:
        return tuple(storage.tobytes() for storage in table._column_defaults.values())
    return None if table._default is None else (table._default.tobytes(),)


def _put(token: np.ndarray[Any, Any], device: Any) -> Any:
    array = jax.device_put(token, device)
    if isinstance(array, jax.core.Tracer):
        raise RuntimeError(
            "gpuhash.jax.from_table was called in a function that is being traced: the state would be a constant of "
            "the program, and used up by its first run; make it outside, and give it to the function as an argument"
        )
    return array


def _jax_device(table: KeyedTable, device: Any) -> Any:
    """The JAX device that a table is on: the one given, if it is there."""
    if not (device is None or hasattr(device, "platform")):
        raise TypeError(f"device={device!r} was given, expected one of jax.devices()")
    if table._host:
        found = jax.devices("cpu")[0] if device is None else device
        if found.platform == "cpu":
            return found
    else:
        try:
            gpus = jax.devices("cuda")
        except RuntimeError as error:
            raise ValueError(
                f"the table is on {table.device}, and JAX has no GPU: {error}; install jax[cuda], or move the table by "
                "table.to('cpu')"
            ) from None
        matching = [gpu for gpu in gpus if gpu.local_hardware_id == table._index]
        if device is None and matching:
            return matching[0]
        if device in matching:
            return device
        found = device if device is not None else "none of JAX's GPUs"
    raise ValueError(f"the table is on {table.device}, and the device of the state is {found}: give one that it is on")


def _already_used(what: str) -> RuntimeError:
    return RuntimeError(
        f"this state of a table was used before, by a call whose result is another state, and now {what}: use the "
        "state that each call returns, once, or make a new one by gpuhash.jax.from_table(table). Branches of "
        "jax.lax.cond and switch take it as an operand: what they close over is used up by the first one"
    )
