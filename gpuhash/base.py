"""What HashTable and HashSet share: keys in every form, sizes, iteration, devices, copies and files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from . import _core, serialization
from .arrays import NUMPY, Framework, Shape, default_stream, framework_like, framework_of
from .batch import Batch, Output, join, place
from .dtypes import ITEMSIZES, MAX_KEY_BYTES, encode, key_dtype_name, storage_dtype
from .memory import make_context

_ITERATION_CHUNK = 4096
_SHOWN_KEYS = 5


class KeyedTable:
    """A core table and its keys; HashTable and HashSet derive from it."""

    _name: str | None = None
    _value_dtype: str | None = None
    _value_shape: Shape = ()

    __hash__ = None  # type: ignore[assignment]  # equal tables may change

    def _make(
        self,
        key_dtype: object,
        key_shape: Sequence[int],
        device: object,
        capacity: int,
        max_load_factor: float,
        growth: bool,
        max_capacity: int | None,
        deterministic: bool,
        memory: object,
        name: str | None,
    ) -> None:
        dtype = key_dtype_name(key_dtype)
        shape = shape_of(key_shape, "key_shape")
        if len(shape) > 1 or math.prod(shape) * ITEMSIZES[dtype] > MAX_KEY_BYTES or 0 in shape:
            raise ValueError(
                f"key_shape={shape} of {dtype} was given; a key is one integer, (), or a vector, (k,), of up to "
                f"{MAX_KEY_BYTES} bytes in all"
            )
        if not growth:
            if max_capacity is not None and max_capacity != capacity:
                raise ValueError(f"growth=False keeps capacity={capacity}, and max_capacity={max_capacity} differs")
            if capacity < 1:
                raise ValueError(f"growth=False keeps capacity={capacity}: give the number of slots that it shall have")
            max_capacity = capacity
        core = _core.Table(
            make_context(device, memory),
            dtype,
            math.prod(shape),
            self._value_dtype,
            self._value_shape,
            capacity,
            max_capacity,
            max_load_factor,
            bool(deterministic),
        )
        self._attach(core, shape)
        self._register(name)

    def _register(self, name: str | None) -> None:
        if name is not None:
            _core.register_table(name, self._core)
        self._name = name

    def _attach(self, core: _core.Table, key_shape: Shape) -> None:
        """Makes this object the face of a core table."""
        self._core = core
        self._context = core.context
        self._host = self._context.platform == "cpu"
        self._index = self._context.device_index
        self._key_dtype = core.key_dtype
        self._key_shape = key_shape
        bounds = np.iinfo(self._key_dtype)
        self._key_bounds = int(bounds.min), int(bounds.max)
        self._name = None
        self._changes = 0  # counts the calls that may change which keys there are, for iterators to look out for

    # Arguments and answers -------------------------------------------------------------------------------------------

    def _stream(self) -> int:
        return 0 if self._host else default_stream(self._index)

    def _take(self, keys: Any) -> Batch:
        """The keys of a call, checked, in the table's memory."""
        batch = Batch()
        batch.context = self._context
        framework = framework_of(keys)
        if framework.python:
            keys, batch.scalar = self._encode_keys(keys)
            framework = NUMPY
        else:
            batch.scalar = False
        batch.framework = framework
        batch.tensor = keys
        if self._host:
            stream = batch.stream = 0
            array = framework.borrow(keys, None)
        else:
            stream = batch.stream = framework.stream(keys, self._index)
            if framework.private_streams:
                framework.settle(keys)
            array = framework.borrow(keys, stream)
        if array.dtype != self._key_dtype:
            raise wrong_dtype("keys", framework, array.dtype, self._key_dtype)
        batch.shape = array.shape
        if self._key_shape:
            if batch.shape[-1:] != self._key_shape:
                raise ValueError(
                    f"the keys have shape {batch.shape}, expected one that ends with the key shape {self._key_shape}"
                )
            batch.shape = batch.shape[:-1]
        if self._host and array.platform == "cpu":
            batch.array = array
            batch.staged = batch.settle = False
            return batch
        batch.array, batch.staged = place(array, self._context, stream, "keys", keys)
        batch.settle = framework.private_streams and not batch.staged
        return batch

    def _encode_keys(self, keys: Any) -> tuple[np.ndarray[Any, Any], bool]:
        """Python numbers as an array, and whether they are a single key."""
        if type(keys) is int and not self._key_shape:
            low, high = self._key_bounds
            if low <= keys <= high:
                return np.array(keys, self._key_dtype), True
        array = encode(keys, self._key_dtype, "keys")
        if not self._key_shape:
            return array, array.ndim == 0
        if array.shape == (0,):
            array = array.reshape(0, *self._key_shape)
        return array, array.ndim == 1 and isinstance(keys, tuple)

    def _finish(self, batch: Batch) -> None:
        if batch.settle:
            self._context.synchronize(batch.stream)

    def _mask(self, batch: Batch, out: Any) -> Output:
        return Output(batch, "bool", batch.shape, out)

    def _to_host(self, array: _core.Array, stream: int) -> np.ndarray[Any, Any]:
        """A copy of the array on the host, as its dtype's storage. Waits."""
        host = np.empty(array.shape, storage_dtype(array.dtype))
        self._context.copy(_core.borrow(host), array, stream)
        return host

    def _check_present(self, batch: Batch, keys: Any) -> None:
        """Waits. KeyError if any of the keys is absent."""
        missing = self._core.find(batch.array, None, None, None, True, batch.stream)
        if missing:
            raise self._absent(batch, keys, missing)

    def _absent(self, batch: Batch, keys: Any, missing: int) -> KeyError:
        if batch.scalar:
            return KeyError(keys)
        found = _core.Buffer(self._context, "bool", batch.shape, batch.stream).array()
        self._core.find(batch.array, None, found, None, False, batch.stream)
        absent = self._to_host(batch.array, batch.stream)[~self._to_host(found, batch.stream)]
        some: list[Any] = as_keys(absent[:_SHOWN_KEYS], self._key_shape)
        shown = ", ".join(map(str, some)) + (", ..." if missing > len(some) else "")
        return KeyError(f"{missing} of {math.prod(batch.shape)} keys are absent: {shown}")

    def _export(self, like: Any, keys: bool, values: bool) -> list[Any]:
        """Arrays of all keys, or values, or both. Waits."""
        framework = framework_like(like, self._host)
        arrays = [(self._key_dtype, self._key_shape)] if keys else []
        if values and self._value_dtype is not None:
            arrays.append((self._value_dtype, self._value_shape))
        stream = 0 if self._host else framework.stream(None, self._index)
        staged = framework is NUMPY and not self._host
        while True:
            size = self._core.size(stream)
            made = [
                Framework.empty(framework, None, dtype, (size, *shape), self._context, stream)
                if staged
                else framework.empty(None, dtype, (size, *shape), self._context, stream)
                for dtype, shape in arrays
            ]
            borrowed = [array for _, array in made]
            try:
                self._core.export_items(
                    borrowed[0] if keys else None, borrowed[-1] if len(arrays) > keys else None, None, stream
                )
                break
            except ValueError:
                if self._core.size(stream) == size:
                    raise
        if staged:
            results = []
            for (dtype, shape), source in zip(arrays, borrowed, strict=True):
                native, target = NUMPY.empty(None, dtype, (size, *shape), self._context, stream)
                self._context.copy(target, source, stream)
                results.append(native)
            return results
        if framework.private_streams and not self._host:
            self._context.synchronize(stream)
        return [framework.hand_over(native, dtype) for (native, _), (dtype, _) in zip(made, arrays, strict=True)]

    def _raw_items(self, *, values: bool = True) -> list[_core.Array]:
        """All keys, and values if there are any, in the table's memory."""
        return [buffer.array() for buffer in self._export("buffer", True, values)]

    def _host_items(self, *, values: bool = True) -> list[np.ndarray[Any, Any]]:
        """All keys, and values if there are any, on the host, as their dtypes' storage. Waits."""
        stream = self._stream()
        return [self._to_host(array, stream) for array in self._raw_items(values=values)]

    def _merge(self, other: KeyedTable) -> None:
        """Takes over all items of a table of the same dtypes and shapes, on any device. Waits."""
        mine = (self._key_dtype, self._key_shape, self._value_dtype, self._value_shape)
        theirs = (other._key_dtype, other._key_shape, other._value_dtype, other._value_shape)
        if mine != theirs:
            raise TypeError(f"tables with {mine} cannot take the items of one with {theirs}")
        if other is self:
            return
        stream = self._stream()
        if other.device == self.device:
            arrays = other._raw_items()
        else:
            hosts = other._host_items()
            arrays = [place(_core.borrow(host), self._context, stream, "items", host)[0] for host in hosts]
        self._changes += 1
        self._core.insert(arrays[0], arrays[1] if len(arrays) > 1 else None, False, "assign", None, stream)

    # Keys ------------------------------------------------------------------------------------------------------------

    def contains(self, keys: Any, out: Any = None) -> Any:
        """Which of the keys are in the table.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``: an array of any framework, a list, or a single key.
        out
            A bool array of shape ``batch`` to write into.

        Returns
        -------
        bool array of shape ``batch``, of the keys' framework; a bool for a single key. Does not wait for the GPU,
        unless the answer is on the host.
        """
        batch = self._take(keys)
        found = self._mask(batch, out)
        self._core.find(batch.array, None, found.array, None, False, batch.stream)
        self._finish(batch)
        return found.result(batch)

    def __contains__(self, key: object) -> bool:
        """Is this one key in the table? Waits. TypeError for a batch of keys: that is ``contains(keys)``."""
        batch = self._take(key)
        if batch.shape != ():
            raise TypeError(
                f"`in` takes one key, and this is a batch of shape {batch.shape}: call contains(keys), which gives "
                "a mask"
            )
        return self._core.find(batch.array, None, None, None, True, batch.stream) == 0

    def erase(self, keys: Any, out: Any = None) -> Any:
        """Erases keys; absent ones are passed over.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        out
            A bool array of shape ``batch`` to write into.

        Returns
        -------
        bool array of shape ``batch``: true for exactly one of an erased key's duplicates. Does not wait for the GPU,
        unless the answer is on the host.
        """
        batch = self._take(keys)
        erased = self._mask(batch, out)
        self._changes += 1
        self._core.erase(batch.array, erased.array, batch.stream)
        self._finish(batch)
        return erased.result(batch)

    def __len__(self) -> int:
        """The number of keys. Waits."""
        return self._core.size(self._stream())

    def __bool__(self) -> bool:
        return len(self) != 0

    def __iter__(self) -> Iterator[Any]:
        """Over the keys, as integers or tuples, in the order of ``keys()``. Waits once.

        Raises
        ------
        RuntimeError
            Where the number of keys has changed since.
        """
        keys = self._host_items(values=False)[0]
        changes = self._changes
        for start in range(0, len(keys), _ITERATION_CHUNK):
            for key in as_keys(keys[start : start + _ITERATION_CHUNK], self._key_shape):
                if changes != self._changes:
                    self._check_size(len(keys))
                    changes = self._changes
                yield key
            self._check_size(len(keys))

    def _check_size(self, size: int) -> None:
        if len(self) != size:
            raise RuntimeError(f"the {type(self).__name__} changed its size during iteration")

    def keys(self, like: Any = None) -> Any:
        """All keys. Waits.

        Parameters
        ----------
        like
            The framework of the result: its name ("numpy", "torch", "cupy", "jax", "tensorflow", "buffer") or one of
            its arrays. By default NumPy for host tables, and PyTorch or CuPy, whichever is imported, for GPU tables
            (without both a buffer with ``__dlpack__``). Arrays other than NumPy's are on the table's device.

        Returns
        -------
        Array of shape ``[len(table), *key_shape]``, in the order of the slots: the same as that of ``values()`` as long
        as the table does not change.
        """
        return self._export(like, True, False)[0]

    def clear(self) -> None:
        """Erases all keys; the capacity stays. Does not wait for the GPU."""
        self._changes += 1
        self._core.clear(self._stream())

    # Size and place --------------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> None:
        """Makes room for ``size`` keys in all, so that no insertion up to there grows the table. Waits."""
        if size < 0:
            raise ValueError(f"reserve({size}): give the number of keys, 0 or more")
        self._core.reserve(size, self._stream())

    def rehash(self, capacity: int = 0) -> None:
        """Rebuilds the table with ``capacity`` slots or as many as its keys need; row numbers stay. Waits."""
        if capacity < 0:
            raise ValueError(f"rehash({capacity}): give the number of slots, 0 or more")
        self._core.rehash(capacity, False, self._stream())

    def shrink_to_fit(self) -> None:
        """Rebuilds the table with as few slots as its keys need, and numbers the rows anew from 0. Waits."""
        self._core.rehash(0, True, self._stream())

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self._core.capacity

    @property
    def max_capacity(self) -> int | None:
        """The number of slots beyond which the table never grows; None where nothing bounds it."""
        return self._core.max_capacity

    @property
    def load_factor(self) -> float:
        """Keys per slot. Waits."""
        return len(self) / self.capacity if self.capacity else 0.0

    @property
    def max_load_factor(self) -> float:
        """Keys per slot that the table does not pass: it grows before. Settable, in (0, 1]."""
        return self._core.max_load_factor

    @max_load_factor.setter
    def max_load_factor(self, factor: float) -> None:
        self._core.max_load_factor = factor

    @property
    def nbytes(self) -> int:
        """Bytes of table memory."""
        return self._core.nbytes

    @property
    def device(self) -> str:
        """The name of the device: "cpu", or "cuda:" and a number."""
        return self._context.device

    @property
    def key_dtype(self) -> str:
        """The name of the keys' dtype."""
        return self._key_dtype

    @property
    def key_shape(self) -> Shape:
        """The shape of one key: ``()``, or ``(k,)`` for vectors."""
        return self._key_shape

    @property
    def deterministic(self) -> bool:
        """Is the value that stays of a key's duplicates in a batch always the last?"""
        return self._core.deterministic

    @property
    def name(self) -> str | None:
        """The name by which ``gpuhash.open`` finds the table."""
        return self._name

    def close(self) -> None:
        """Gives up the table's name: ``gpuhash.open`` no longer finds it. The table itself lives on."""
        if self._name is not None:
            _core.unregister_table(self._name)
            self._name = None

    def to(self, device: object, *, memory: object = None) -> Self:
        """The table on another device, slot for slot; itself where it is there already. Waits.

        Parameters
        ----------
        device
            "cpu", "cuda", "cuda:1", a torch.device or anything whose ``str`` is one of these.
        memory
            As for the constructor; None for the device's own pool.
        """
        context = make_context(device, memory)
        if memory is None and context.device == self.device:
            return self
        return self._clone(context)

    def copy(self) -> Self:
        """An independent copy on the same device, from the same memory resource, without a name. Waits."""
        return self._clone(self._context)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def _clone(self, context: _core.Context) -> Self:
        device = self._context if not self._host else context
        stream = 0 if device.platform == "cpu" else default_stream(device.device_index)
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone._attach(self._core.clone(context, stream), self._key_shape)
        return clone

    # Files -----------------------------------------------------------------------------------------------------------

    def _contents(self) -> serialization.Contents:
        items = self._host_items()
        return serialization.Contents(
            key_dtype=self._key_dtype,
            key_shape=self._key_shape,
            value_dtype=self._value_dtype,
            value_shape=self._value_shape,
            max_load_factor=self.max_load_factor,
            max_capacity=self.max_capacity,
            deterministic=self.deterministic,
            default=None,
            keys=items[0],
            values=items[1] if len(items) > 1 else None,
        )

    @classmethod
    def _restore(cls, contents: serialization.Contents, device: object, memory: object, name: str | None) -> Self:
        raise NotImplementedError

    def _fill(self, contents: serialization.Contents) -> None:
        """Puts a file's items into this new table."""
        stream = self._stream()
        arrays = [
            place(_core.borrow(array), self._context, stream, "items", array)[0]
            for array in (contents.keys, contents.values)
            if array is not None
        ]
        self._core.reserve(len(contents.keys), stream)
        self._core.insert(arrays[0], arrays[1] if len(arrays) > 1 else None, False, "assign", None, stream)
        if len(self) != len(contents.keys):
            raise ValueError(
                f"the file has {len(contents.keys)} keys, of which only {len(self)} are distinct: it is damaged"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table to a file in safetensors format, with the tensors "keys" and "values". Waits.

        The file appears whole or not at all: a temporary one beside it takes its place at the end. The name and the
        memory resource are not saved, and the rows are numbered anew.
        """
        serialization.write_file(path, self._contents())

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, device: object = "cpu", memory: object = None, name: str | None = None
    ) -> Self:
        """The table that ``save`` wrote, on any device.

        Raises
        ------
        ValueError
            Where the file is damaged, or holds no table of this class.
        """
        return cls._restore(serialization.read_file(path), device, memory, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self), self.device, serialization.to_bytes(self._contents()))


def _unpickle(cls: type[KeyedTable], device: str, data: bytes) -> KeyedTable:
    return cls._restore(serialization.from_bytes(data), device, None, None)


def as_keys(keys: np.ndarray[Any, Any], key_shape: Shape) -> list[Any]:
    """The keys as Python objects: integers, or tuples of them."""
    return [tuple(key) for key in keys.tolist()] if key_shape else keys.tolist()


def shape_of(shape: int | Sequence[int], what: str) -> Shape:
    """A shape given as integers."""
    try:
        lengths = tuple(int(length.__index__()) for length in ((shape,) if isinstance(shape, int) else shape))
    except (TypeError, AttributeError):
        raise TypeError(f"{what}={shape!r} was given; a shape is a tuple of integers") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"{what}={lengths} was given; lengths are not negative")
    return lengths


def wrong_dtype(what: str, framework: Framework, given: str, expected: str) -> TypeError:
    """The error for an array of another dtype than the table's."""
    call = {
        "torch": f".to(torch.{expected})",
        "tensorflow": f"tf.cast(..., tf.{expected})",
    }.get(framework.name, f".astype('{expected}')")
    text = f"the {what} are {given}, and the table has {what} of {expected}: convert them with {call}"
    if framework.name == "jax" and ITEMSIZES[given] < ITEMSIZES[expected]:
        text += "; JAX has 64-bit types only after jax.config.update('jax_enable_x64', True)"
    if what == "keys" and "int" not in given:
        text += "; or view them as integers of the same width, and make the table for these"
    return TypeError(text)


def take_values(table: KeyedTable, values: Any, batch: Batch, what: str = "values") -> tuple[_core.Array, bool]:
    """The values of a call, checked, in the table's memory, and whether they are one for all keys."""
    dtype, shape = table._value_dtype, table._value_shape
    assert dtype is not None
    framework = framework_of(values)
    stream = None if table._host else batch.stream
    if framework.python:
        values = encode(values, dtype, what)
        if values.ndim == 0 and shape:
            values = np.full(shape, values)
        if values.size == 0 and values.shape == (0,):
            values = values.reshape(0, *shape)
        array = _core.borrow(values)
    else:
        if framework.private_streams and not table._host:
            framework.settle(values)
        array = framework.borrow(values, stream)
        if array.dtype != dtype:
            raise wrong_dtype(what, framework, array.dtype, dtype)
        if shape and array.shape == ():
            array = framework.borrow(framework.broadcast(values, shape), stream)
    given = array.shape
    if given == batch.shape + shape:
        broadcast = False
    elif given == shape:
        broadcast = True
    else:
        raise ValueError(
            f"the {what} have shape {given}, expected {batch.shape + shape}, or {shape} for all keys alike"
        )
    if not table._host:
        array, staged = place(array, table._context, batch.stream, what, values)
        if not staged and framework is not batch.framework:
            join(batch, framework, values)
    elif array.platform != "cpu":
        place(array, table._context, 0, what, values)
    return array, broadcast
