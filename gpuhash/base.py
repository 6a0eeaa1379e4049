"""What HashTable and HashSet share: keys in every form, sizes, iteration, devices, copies and files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

from . import _core, serialization
from .arguments import as_keys, count_of, shape_of
from .arrays import Shape, default_stream
from .batch import place
from .calls import Calls
from .dtypes import ITEMSIZES, MAX_KEY_BYTES, MAX_VALUE_BYTES, key_dtype_name
from .memory import make_context

_ITERATION_CHUNK = 4096


class KeyedTable(Calls):
    """A core table and its keys; HashTable and HashSet derive from it."""

    __hash__ = None  # type: ignore[assignment]  # equal tables may change
    __reversed__ = None  # no order; without this Python would try table[len - 1]

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
        capacity = count_of(capacity, "capacity")
        max_capacity = None if max_capacity is None else count_of(max_capacity, "max_capacity")
        if not isinstance(max_load_factor, (int, float)):
            raise TypeError(f"max_load_factor={max_load_factor!r} was given, expected a number in (0, 1]")
        if (
            self._value_dtype is not None
            and math.prod(self._value_shape) * ITEMSIZES[self._value_dtype] > MAX_VALUE_BYTES
        ):
            raise ValueError(
                f"value_shape={self._value_shape} of {self._value_dtype} was given; a value has up to "
                f"{MAX_VALUE_BYTES} bytes"
            )
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
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name={name!r} was given; a table's name is a string of one character or more, or None")
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

    @_core.fast_path("contains")
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

        Raises
        ------
        TypeError, ValueError
            For arrays of other dtypes, or of shapes or devices that do not fit.
        OverflowError
            For a list with an integer that the key dtype cannot hold. A single key of that kind is absent, here and in
            all lookups.
        """
        batch = self._look_for(keys, out)
        if batch is None:
            return False
        found = self._mask(batch, out)
        self._core.find(batch.array, None, found.array, None, False, batch.stream)
        self._finish(batch)
        return found.result(batch)

    def __contains__(self, key: object) -> bool:
        """Is this one key in the table? Waits. TypeError for a batch of keys: that is ``contains(keys)``."""
        batch = self._look_for(key)
        if batch is None:
            return False
        if batch.shape != ():
            raise TypeError(
                f"`in` takes one key, and this is a batch of shape {batch.shape}: call contains(keys), which gives "
                "a mask"
            )
        return self._core.find(batch.array, None, None, None, True, batch.stream) == 0

    @_core.fast_path("erase")
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
        batch = self._look_for(keys, out)
        if batch is None:
            return False
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
        changes = self._change_count()
        for start in range(0, len(keys), _ITERATION_CHUNK):
            for key in as_keys(keys[start : start + _ITERATION_CHUNK], self._key_shape):
                if changes != (now := self._change_count()):
                    self._check_size(len(keys))
                    changes = now
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
        self._core.reserve(count_of(size, "size"), self._stream())

    def rehash(self, capacity: int = 0) -> None:
        """Rebuilds the table with ``capacity`` slots, or as many as its keys need if that is more; row numbers stay.
        Waits.
        """
        self._core.rehash(count_of(capacity, "capacity"), False, self._stream())

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
        """Whether of a key's duplicates in a batch the last stays (with ``insert`` the first), or any of them."""
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
