"""One table over the devices of a mesh axis: each key goes to the device that owns it, and its answer comes back.

Inside ``jax.shard_map`` every device has a batch of its own and a table of its own. The keys that a device owns, from
all batches, are a queue: those of the first device first, each batch in its order. It is worked off in rounds of as
many keys as there is room for, whose number is the same everywhere, so that shapes are static and no key is left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gpuhash.arrays.arguments import count_of, shape_of
from gpuhash.arrays.dtypes import ITEMSIZES, key_dtype_name

from .arrays import batch_shape, to_array, vary

_LEAST_ROOM = 4096  # keys; below it one round is not worth sparing memory
_MOST_KEYS = 2**30  # of a call, over all devices: positions in a queue, and their sums, are int32
_MOST_DEVICES = 2**16
_RAGGED_FLAG = "xla_gpu_allow_ragged_all_to_all_nccl_send_recv_fallback"
# jaxlib 0.11 has kernels for ragged_all_to_all that did not take on any of these exchanges between two H200s, and
# refuses to do without them unless this flag is set. XLA reads its flags once, as this does.
_RAGGED_ON_GPUS = jax.__version_info__ < (0, 11) or f"{_RAGGED_FLAG}=true" in os.environ.get("XLA_FLAGS", "")

Work = Callable[[Any, Any, Any, Any, Sequence[Any]], tuple[Any, Any, Sequence[Any]]]


@dataclass(frozen=True)
class Spread:
    """A mesh axis over which a table is spread."""

    axis_name: Hashable
    devices: int
    capacity: int | None  # keys that a device takes in at a time

    def room(self, count: int) -> int:
        """The same for batches of ``count`` keys: by default a quarter more than a device gets of unlike keys."""
        most = count * self.devices
        asked = max(count + count // 4, _LEAST_ROOM) if self.capacity is None else self.capacity
        return min(asked, most)


def spread_over(axis_name: Hashable, capacity: Any, handles: Sequence[int], call: str) -> Spread | None:
    """The axis that a call was given; None without one. ``handles``: of the tables, where they are on GPUs."""
    if axis_name is None:
        if capacity is not None:
            raise ValueError(
                f"gpuhash.jax.{call} was given capacity={capacity!r} and no axis_name: the capacity is that of the "
                "exchange between the devices of a mesh axis, so name the axis"
            )
        return None
    if not isinstance(axis_name, str):
        raise TypeError(f"axis_name={axis_name!r} was given, expected the name of one mesh axis, a string")
    room = None if capacity is None else count_of(capacity, "capacity")
    if room == 0:
        raise ValueError("capacity=0 was given, expected 1 or more: the keys that a device takes in at a time")
    devices = _devices_along(axis_name)
    if devices is None:
        raise ValueError(
            f"gpuhash.jax.{call} was given axis_name={axis_name!r}, and no such axis is known here: call it in a "
            "function that runs under jax.shard_map over a mesh with this axis"
        )
    if handles and len(handles) != devices:
        raise ValueError(
            f"gpuhash.jax.{call} was given axis_name={axis_name!r}, an axis of {devices} devices, and the state of "
            f"{len(handles)} tables: make it of one table per device by gpuhash.jax.from_tables"
        )
    return Spread(axis_name, devices, room)


def _devices_along(axis_name: str) -> int | None:
    """None for an axis that is not there, or is one of vmap, along which there are no devices."""
    if axis_name not in jax.sharding.get_abstract_mesh().axis_names:
        return None
    try:
        return int(jax.lax.psum(1, axis_name))
    except NameError:  # shard_map leaves this axis of the mesh to XLA
        return None


def owners(keys: Any, devices: int, *, key_dtype: str | None = None, key_shape: int | Sequence[int] = ()) -> Any:
    """Which device of a mesh axis owns each key: where ``axis_name=`` sends it.

    So that tables can be filled, or keys be looked for, one table at a time. A key's owner depends on its bits and on
    the number of devices alone, neither on tables nor on their seeds. It is a hash of its own: among the keys of one
    owner, those that table's hashes are as unlike as ever.

    Parameters
    ----------
    keys
        ``[*batch, *key_shape]``, integers.
    devices
        How many there are, from 1 to 65,536.
    key_dtype
        The tables' key dtype; None: that of the array.
    key_shape
        The tables', ``()`` or ``(k,)``.

    Returns
    -------
    int32 ``[*batch]``, from 0 to ``devices - 1``: positions along the mesh axis, and in the list that ``from_tables``
    was given. Does not wait.

    Raises
    ------
    TypeError, ValueError
        For arrays of other dtypes or shapes, 64-bit keys without 64-bit mode, and numbers of devices beyond those.
    """
    number = count_of(devices, "devices")
    if not 1 <= number <= _MOST_DEVICES:
        raise ValueError(f"devices={devices} was given, expected 1 to {_MOST_DEVICES}")
    dtype = key_dtype_name(getattr(keys, "dtype", "int64") if key_dtype is None else key_dtype)
    shape = shape_of(key_shape, "key_shape")
    array = to_array(keys, dtype, "keys")
    batch = batch_shape(array, shape)
    return owners_of(array.reshape(-1, *shape), number).reshape(batch)


def owners_of(keys: Any, devices: int) -> Any:
    """The owners of keys ``[n, *key_shape]``: int32 ``[n]``.

    The 32-bit words of a key go one by one through the finalizer of MurmurHash3 (Austin Appleby, public domain), whose
    every input bit reaches every output bit. The tables' hash multiplies 64-bit words and has nothing of this.
    """
    mixed = jnp.full(len(keys), 0x9E3779B9, np.uint32)
    for word in _words_of(keys):
        mixed = (mixed ^ word) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
        mixed = mixed ^ (mixed >> 16)
    # The high half alone: 32-bit products are what there is without 64-bit mode.
    return (((mixed >> 16) * np.uint32(devices)) >> 16).astype(np.int32)


def _words_of(keys: Any) -> list[Any]:
    """The bits of keys ``[n, *key_shape]`` as columns of uint32, shorter integers with zeros above."""
    size = ITEMSIZES[keys.dtype.name]
    bits = jax.lax.bitcast_convert_type(keys, np.uint32 if size == 8 else np.dtype(f"uint{8 * size}"))
    columns = bits.astype(np.uint32).reshape(len(keys), math.prod(bits.shape[1:]))
    return [columns[:, column] for column in range(columns.shape[1])]


class _Transfer(NamedTuple):
    """What ``jax.lax.ragged_all_to_all`` is told; each ``[devices]``, int32."""

    input_offsets: Any
    send_sizes: Any
    output_offsets: Any
    recv_sizes: Any


class _Routes:
    """Who sends which keys to whom, and when."""

    def __init__(self, owner: Any, spread: Spread, room: int) -> None:
        self._room = room
        count, devices = len(owner), spread.devices
        # By owner, each owner's keys in their order. Owner and position have 32 bits between them, as _MOST_KEYS sees
        # to, and one column of numbers is sorted several times faster than keys with their positions.
        bits = (count - 1).bit_length()
        packed = jax.lax.sort((owner.astype(np.uint32) << bits) | jax.lax.iota(np.uint32, count))
        self.order = (packed & np.uint32((1 << bits) - 1)).astype(np.int32)  # [n]: positions in the batch
        mine = (owner == jnp.arange(devices, dtype=np.int32)[:, None]).sum(1, dtype=np.int32)
        self._me = jax.lax.axis_index(spread.axis_name)
        # Of each device's keys those of each owner, [devices, devices]; on all devices the same matrices.
        self._counts = jax.lax.all_gather(mine, spread.axis_name)
        self._before = jnp.cumsum(self._counts, 0, dtype=np.int32) - self._counts  # in the owner's queue
        self._lists = jnp.cumsum(self._counts, 1, dtype=np.int32) - self._counts  # in the device's ordered batch

    @property
    def rounds(self) -> Any:
        """How many there are until the longest queue has been worked off."""
        return -(-self._counts.sum(0, dtype=np.int32).max() // self._room)

    def of_round(self, number: Any) -> tuple[_Transfer, _Transfer]:
        """The way to the owners and the way back, in the round of this number."""
        low = number * self._room - self._before
        begin, end = (jnp.clip(bound, 0, self._counts) for bound in (low, low + self._room))
        sizes = end - begin
        inbox = jnp.where(sizes > 0, begin - low, 0)  # where in the owner's inbox
        lists = self._lists + begin  # where in the device's ordered batch
        sent, came = sizes[self._me], sizes[:, self._me]
        return (
            _Transfer(lists[self._me], sent, inbox[self._me], came),
            _Transfer(inbox[:, self._me], came, lists[:, self._me], sent),
        )


def exchange(
    spread: Spread, token: Any, keys: Any, columns: Sequence[Any], answers: Sequence[Any], on_host: bool, work: Work
) -> tuple[Any, Any, list[Any]]:
    """Has each key worked off by its owner.

    Parameters
    ----------
    token
        Of the device's own table.
    keys
        ``[n, *key_shape]``, n of at least 1.
    columns
        What goes along with the keys, each ``[n, ...]``.
    answers
        The shape and dtype of each answer to one key.
    on_host
        Are the devices the host's?
    work
        ``work(token, status, told, sources, [keys, *columns])`` for the keys that have come in a round, ``[room,
        ...]``: the next token and status, and the answers. ``told`` is how many keys are there, and the status;
        ``sources [room]`` the devices that they came from.

    Returns
    -------
    token, status, answers
        The next token; the status of all devices, uint32 ``[1]``: 0, or the number of a failure; and the answers ``[n,
        ...]``.
    """
    count, room, axis = len(keys), spread.room(len(keys)), spread.axis_name
    if count * spread.devices > _MOST_KEYS:
        raise ValueError(
            f"{count} keys on each of {spread.devices} devices were given, and one call takes up to {_MOST_KEYS} in "
            "all: make several calls of smaller batches"
        )
    token, keys, *columns = vary((token, keys, *columns), axis)
    routes = _Routes(owners_of(keys, spread.devices), spread, room)
    outgoing = [array.at[routes.order].get(mode="promise_in_bounds") for array in (keys, *columns)]
    status, *empty = vary(
        (jnp.zeros(1, np.uint32), *(jnp.zeros((count, *shape), dtype) for shape, dtype in answers)), axis, like=token
    )

    def one_round(number: Any, carried: Any) -> Any:
        token, status, collected = carried
        way, way_back = routes.of_round(number)
        arrived = [_transfer(array, _no_keys(array, room), way, axis, on_host) for array in outgoing]
        ends = jnp.cumsum(way.recv_sizes, dtype=np.int32)
        sources = (ends[:-1, None] <= jax.lax.iota(np.int32, room)).sum(0, dtype=np.int32)
        told = jnp.concatenate([ends[-1:].astype(np.uint32), status])
        token, status, results = work(token, status, told, sources, arrived)
        back = [
            _transfer(result, known, way_back, axis, on_host) for result, known in zip(results, collected, strict=True)
        ]
        return token, status, back

    carried = (token, status, empty)
    if room == count * spread.devices:  # there is room for all, whoever owns them
        carried = one_round(np.int32(0), carried)
    else:
        carried = jax.lax.fori_loop(0, routes.rounds, one_round, carried)
    token, status, collected = carried
    in_order = [
        array.at[routes.order].set(ordered, mode="promise_in_bounds", unique_indices=True)
        for array, ordered in zip(empty, collected, strict=True)
    ]
    return token, jax.lax.pmax(status, axis), in_order


def _no_keys(array: Any, room: int) -> Any:
    """An inbox for what is sent of such an array."""
    return jnp.broadcast_to(jnp.zeros_like(array[:1]), (room, *array.shape[1:]))


def _transfer(operand: Any, output: Any, transfer: _Transfer, axis_name: Hashable, on_host: bool) -> Any:
    """``jax.lax.ragged_all_to_all``, which XLA has for GPUs alone; elsewhere the same from whole operands."""
    if _RAGGED_ON_GPUS and not on_host:
        return jax.lax.ragged_all_to_all(operand, output, *transfer, axis_name=axis_name)
    me = jax.lax.axis_index(axis_name)
    everything = jax.lax.all_gather(operand, axis_name)
    input_offsets, output_offsets = (
        jax.lax.all_gather(offsets, axis_name)[:, me, None]
        for offsets in (transfer.input_offsets, transfer.output_offsets)
    )
    offset = jax.lax.iota(np.int32, len(output)) - output_offsets  # [devices, len(output)]: in what each device sends
    of_device = (offset >= 0) & (offset < transfer.recv_sizes[:, None])
    source = of_device.argmax(0)
    position = (input_offsets + offset)[source, jax.lax.iota(np.int32, len(output))].clip(0, len(operand) - 1)
    known = of_device.any(0).reshape(-1, *(1,) * (output.ndim - 1))
    received = everything.reshape(-1, *operand.shape[1:])[source * len(operand) + position]
    return jnp.where(known, received, output)
