"""What HashTable and HashSet share: keys in every form, sizes, iteration, devices, copies and files."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np

from gpuhash import _core, initializers
from gpuhash.arrays.arguments import (
    SHOWN_KEYS,
    absent_keys,
    as_keys,
    checked_load_factor,
    count_of,
    not_one_key,
)
from gpuhash.arrays.batch import Batch, Read, Views, Write, to_device
from gpuhash.arrays.dtypes import storage_dtype
from gpuhash.arrays.export import export, export_apart, to_host
from gpuhash.arrays.frameworks import Shape, default_stream, framework_like
from gpuhash.arrays.memory import is_sharded, make_context
from gpuhash.arrays.strings import Strings, is_string_form
from gpuhash.call import Call
from gpuhash.files import serialization
from gpuhash.files.saved import Saved
from gpuhash.keys.columns import KeyColumns
from gpuhash.keys.strings import StringBatch, StringKeys
from gpuhash.torch import dispatch as traced

from . import named_columns
from .named_columns import Column
from .options import Options

_ITERATION_CHUNK = 4096
#: At which a file's items are inserted.
LEAST_LOAD_FACTOR = 1 / 16
#: As no array has it: keys of several columns, and strings, are for the general path.
_NO_KEY_SHAPE = (-1, -1)


class KeyedTable(Saved):
    """A core table and its keys; HashTable and HashSet derive from it."""

    _value_dtype: str | None  # None: a set, or a table with columns

    __hash__ = None  # type: ignore[assignment]  # equal tables may change
    #: What stands for the table in PyTorch's graphs.
    _torch_state = property(_core.torch_state)

    #: No arithmetic of NumPy: ``array == table`` would compare with the keys, one by one, in whichever order they lie.
    __array_ufunc__ = None

    __reversed__ = None  # no order; without this Python would try table[len - 1]

    def _attach(
        self, core: _core.Table, key_shape: Shape, name: str | None = None, strings: StringKeys | None = None
    ) -> None:
        """Makes this object the face of a core table. All attributes are set here."""
        self._core = core
        self._key_columns = KeyColumns.of_core(core.key_columns)
        self._string_keys = strings  # then the keys of the core are their numbers
        self._whole: KeyedTable | None = None  # of a shard whose keys are strings: the table, which has all of them
        plain_shape = key_shape if self._key_columns is None and strings is None else _NO_KEY_SHAPE
        self._fast = _core.FastPath(core, plain_shape)
        self._context = core.context
        self._shards = core.shards
        self._host = self._context.platform == "cpu"
        self._index = self._context.device_index
        self._views = views_of(core, self._shards)
        self._fast_views: list[tuple[_core.Table, _core.FastPath]] = []  # of the other GPUs
        if self._views is not None:
            others = [view for view in self._views.values() if view is not core]
            self._fast_views += [(view, _core.FastPath(view, plain_shape)) for view in others]
            self._fast.set_views([fast for _, fast in self._fast_views])
        self._key_dtype = core.key_dtype
        self._key_shape = key_shape
        self._value_dtype = core.value_dtype
        self._value_shape = core.value_shape
        self._columns = named_columns.of_core(core.columns)
        #: What there is for each key, by name: of a single value the name is empty; nothing in a set.
        self._fields = self._columns or (
            {} if core.value_dtype is None else {"": Column(core.value_dtype, core.value_shape)}
        )
        self._numbers = {name: number for number, name in enumerate(self._fields)}  # of the core
        self._initializer = initializers.of_core(core.initializer, core.value_dtype)
        self._name = name
        self._changes = 0
        self._state: Any = None  # see gpuhash/torch/state.py; False where it cannot be had
        self._state_address = 0

    def _make(self, options: Options) -> None:
        """Makes this object the face of a new core table."""
        strings = None if options.strings is None else StringKeys(options.strings)
        self._attach(options.make_core(), options.key_shape, strings=strings)
        self._register(options.name)

    @classmethod
    def _open(cls, core: _core.Table, name: str | None) -> Self:
        """Another face of a core table, with the name that it has, if any."""
        made = object.__new__(cls)
        made._attach(core, core.key_shape, name)
        return made

    def _register(self, name: str | None) -> None:
        if name is not None and self._string_keys is not None:
            raise ValueError(
                f"name={name!r} was given to a table whose keys are strings, which belong to one object: hand the "
                "table itself on"
            )
        if name is not None:
            _core.register_table(name, self._core)
        self._name = name

    def _change_count(self) -> int:
        """How many calls may have changed which keys there are, for iterators to look out for."""
        return self._changes + self._fast.changes

    def _stream(self) -> int:
        return 0 if self._host else default_stream(self._index)

    def _take(self, keys: Any, *, inserts: bool = False) -> Batch:
        """The keys of a call, checked, in the table's memory. ``inserts``: strings that are new get numbers."""
        if self._string_keys is not None:
            return self._take_strings(self._string_keys, self._string_keys.read(keys), inserts)
        if self._key_columns is not None and (parts := self._key_columns.parts(keys)) is not None:
            return Batch.of_key_columns(parts, self._key_columns.dtypes, self._core, self._views)
        return Batch.of_keys(keys, self._key_dtype, self._key_shape, self._core, self._context, self._views)

    def _take_strings(self, known: StringKeys, strings: Strings, inserts: bool) -> StringBatch:
        """The numbers of strings, in the table's memory."""
        if inserts:
            if known.has_doubled:
                if 4 * len(self if self._whole is None else self._whole) < 3 * known.count:
                    known.compact(self._numbers_of_keys)
                else:
                    known.put_off()
            numbers = known.intern(strings)
        else:
            numbers = known.find(strings)
        keys = numbers.reshape(strings.shape)
        batch = StringBatch.of_keys(keys, self._key_dtype, (), self._core, self._context, self._views)
        batch.scalar = strings.source == "python" and strings.shape == ()
        batch.strings, batch.numbers = strings, numbers
        return batch

    def _numbers_of_keys(self) -> np.ndarray[Any, Any]:
        """Of a table of strings. Waits."""
        whole = self if self._whole is None else self._whole
        return to_host(whole._context, whole._raw_items(values=False)[0], whole._stream())

    def _release(self, batch: Batch) -> None:
        """Some keys of a batch have been erased: the memory of strings may be too large for the others."""
        known = self._string_keys
        if known is not None and isinstance(batch, StringBatch) and known.release(batch.numbers):
            known.compact(self._numbers_of_keys)

    def _absent(self, batch: Batch, keys: Any, missing: int) -> KeyError:
        if batch.scalar:
            return KeyError(keys)
        found = _core.Buffer(batch.context, "bool", batch.shape, batch.stream).array()
        batch.core.look_up([batch.lookup(found=found)])
        absent = ~batch.to_host(found).reshape(-1)
        if isinstance(batch, StringBatch):
            shown = batch.strings.take(np.flatnonzero(absent)[:SHOWN_KEYS]).to_list()
        else:
            shown = self._as_keys(self._host_batch(batch)[absent][:SHOWN_KEYS])
        return KeyError(absent_keys(shown, missing, math.prod(batch.shape)))

    def _as_keys(self, keys: np.ndarray[Any, Any]) -> list[Any]:
        """Keys ``[n, *key_shape]`` as Python objects: integers, or tuples of them; strings for their numbers."""
        if self._string_keys is not None:
            return self._string_keys.strings_of(keys).to_list()
        return as_keys(keys, self._key_shape) if self._key_columns is None else self._key_columns.to_python(keys)

    @property
    def _key_options(self) -> dict[str, Any]:
        """What the constructor is given for keys like these."""
        if self._key_columns is not None:
            return {"key_dtype": self._key_columns, "key_shape": ()}
        if self._string_keys is not None:
            return {"key_dtype": self._string_keys.dtype, "key_shape": ()}
        return {"key_dtype": self._key_dtype, "key_shape": self._key_shape}

    def _host_batch(self, batch: Batch) -> np.ndarray[Any, Any]:
        """The keys of a batch on the host, ``[n, *key_shape]``. Waits."""
        return batch.to_host(batch.array).reshape(-1, *self._key_shape)

    @traced.by(traced.delete)
    @_core.fast_path("erase_present")
    def _erase_present(self, keys: Any) -> None:
        """Erases keys. KeyError if any is absent."""
        call = Call.of_lookup(self, keys)
        if call is None:
            raise KeyError(keys)
        missing = call.erase(all_or_none=True)
        if missing:
            raise self._absent(call.batch, keys, missing)

    def _export(self, like: Any, *, keys: bool = True, values: bool = True) -> list[Any]:
        """Arrays of all keys, or of all values where there are any, of each column in order, or of both. Waits."""
        if self._string_keys is not None:
            return self._export_strings(self._string_keys, like, keys, values)
        if not keys or self._key_columns is None:
            wanted, fill = self._export_of(keys, values)
            return export(self._core, self._context, self._host, like, wanted, fill)
        wanted, fill = self._export_of_columns(self._key_columns, values)
        arrays = export(self._core, self._context, self._host, like, wanted, fill)
        names = self._key_columns.names
        return [dict(zip(names, arrays, strict=False)), *arrays[len(names) :]]

    def _export_strings(self, known: StringKeys, like: Any, keys: bool, values: bool) -> list[Any]:
        """As ``_export``, of a table of strings. ``like`` may be a form of strings: then values are as by default."""
        framework = None if is_string_form(like) else like
        framework_like(framework, self._host)  # errors, of sets as well
        if not keys:
            return export(self._core, self._context, self._host, framework, *self._export_of(False, True))
        if not values or not self._fields:
            return [known.strings_of(self._host_items(values=False)[0]).to_form(like)]
        numbers = np.empty(0, np.int64)
        wanted, fill_both = self._export_of(True, values)

        def fill(arrays: list[_core.Array], stream: int) -> int:
            nonlocal numbers
            rows = _core.Buffer(self._context, self._key_dtype, arrays[0].shape[:1], stream).array()
            size = fill_both([rows, *arrays], stream)
            numbers = to_host(self._context, rows, stream)
            return size

        with known.lock:
            arrays = export(self._core, self._context, self._host, framework, wanted[1:], fill)
            known.hold(numbers)
        return [known.strings_of(numbers).to_form(like), *arrays]

    def _export_of_columns(
        self, columns: KeyColumns, values: bool
    ) -> tuple[list[tuple[str, Shape]], Callable[[list[_core.Array], int], int]]:
        """As ``_export_of``, with an array for each key column."""
        count = len(columns.names)
        wanted: list[tuple[str, Shape]] = [(dtype, ()) for _, dtype in columns.dtypes]
        packed, fill_packed = self._export_of(True, values)

        def fill(arrays: list[_core.Array], stream: int) -> int:
            rows = _core.Buffer(self._context, "uint8", (*arrays[0].shape, columns.bytes), stream).array()
            size = fill_packed([rows, *arrays[count:]], stream)
            columns.unpack(self._context, rows, arrays[:count], stream)
            return size

        return wanted + packed[1:], fill

    def _export_of(
        self, keys: bool, values: bool
    ) -> tuple[list[tuple[str, Shape]], Callable[[list[_core.Array], int], int]]:
        """What ``export`` needs to know: the arrays that are wanted, and what fills them."""
        wanted = [(self._key_dtype, self._key_shape)] if keys else []
        if values:
            wanted += [(field.dtype, field.shape) for field in self._fields.values()]

        def fill(arrays: list[_core.Array], stream: int) -> int:
            reads: list[Read] = [(number, array, None) for number, array in enumerate(arrays[1:] if keys else arrays)]
            return self._core.export_items(arrays[0] if keys else None, reads, None, stream)

        return wanted, fill

    def _raw_items(self, *, values: bool = True) -> list[_core.Array]:
        """All keys, as rows of bytes where they have columns, and values if there are any, in the table's memory."""
        wanted, fill = self._export_of(True, values)
        buffers = export(self._core, self._context, self._host, "buffer", wanted, fill)
        return [buffer.array() for buffer in buffers]

    def _host_items(self, *, values: bool = True) -> list[np.ndarray[Any, Any]]:
        """All keys, and values if there are any, on the host, as their dtypes' storage. Waits.

        Strings are held, as long as the array of their numbers lives.
        """
        stream = self._stream()
        with self._string_lock:
            items = [to_host(self._context, array, stream) for array in self._raw_items(values=values)]
            if self._string_keys is not None:
                self._string_keys.hold(items[0])
        return items

    @property
    def _string_lock(self) -> AbstractContextManager[Any]:
        """In it no strings come or go."""
        return contextlib.nullcontext() if self._string_keys is None else self._string_keys.lock

    def _check_kind_of(self, other: KeyedTable) -> None:
        """TypeError where the table cannot take over the items of another."""
        mine, theirs = self._kind_of_items(), other._kind_of_items()
        if mine != theirs:
            raise TypeError(
                f"a table of key dtype, key shape, value dtype and value shape {mine} cannot take the items of one of "
                f"{theirs}"
            )

    def _merge(self, other: KeyedTable) -> None:
        """Takes over all items of a table of the same dtypes and shapes, on any device. Waits."""
        self._check_kind_of(other)
        if other is self:
            return
        stream = self._stream()
        if self._string_keys is not None and other._string_keys is not None:
            numbers, *values = other._host_items()
            batch = self._take_strings(self._string_keys, other._string_keys.strings_of(numbers), True)
            arrays = [batch.array]
            arrays += [to_device(_core.borrow(host), self._context, stream, "items")[0] for host in values]
        elif other.device == self.device:
            arrays = other._raw_items()
        else:
            hosts = other._host_items()
            arrays = [to_device(_core.borrow(host), self._context, stream, "items")[0] for host in hosts]
        self._changes += 1
        self._assign_items(arrays, stream)

    def _kind_of_items(self) -> tuple[Any, ...]:
        """Dtype and shape of keys and of values; with columns these of each by its name, in their order."""
        key = (self.key_dtype, self._key_shape) if self._key_columns is None else (str(self._key_columns), ())
        if self._columns is None:
            return (*key, self._value_dtype, self._value_shape)
        return (*key, *((name, column.dtype, column.shape) for name, column in self._columns.items()))

    def _assign_items(self, arrays: list[_core.Array], stream: int) -> None:
        """Assigns what ``_raw_items`` gives."""
        writes: list[Write] = [(number, array, False, "assign") for number, array in enumerate(arrays[1:])]
        self._core.change([(self._core, arrays[0], writes, [], None, None, stream)])

    # Keys ------------------------------------------------------------------------------------------------------------

    @traced.by(traced.contains)
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
        call = Call.begin_lookup(self, keys, out)
        if call is None:
            return False
        call.answer_mask(out)
        call.look_up()
        return call.mask()

    def __contains__(self, key: object) -> bool:
        """Is this one key in the table? Waits. TypeError for a batch of keys: that is ``contains(keys)``."""
        answer: bool = self._contains_one(key)
        return answer

    @traced.by(traced.nothing)
    @_core.fast_path("contains_one")
    def _contains_one(self, key: object) -> bool:
        call = Call.of_lookup(self, key)
        if call is None:
            return False
        if call.batch.shape != ():
            raise not_one_key(call.batch.shape)
        return call.look_up(count_missing=True) == 0

    @traced.by(traced.erase)
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
        call = Call.begin_lookup(self, keys, out)
        if call is None:
            return False
        call.answer_mask(out)
        call.erase()
        return call.mask()

    def __len__(self) -> int:
        """The number of keys. Waits."""
        return self._core.size(self._stream())

    def __bool__(self) -> bool:
        return len(self) != 0

    def __iter__(self) -> Iterator[Any]:
        """Over the keys, as integers or tuples, of key columns as well, in the order of ``keys()``. Waits once.

        Raises
        ------
        RuntimeError
            Where the number of keys has changed since.
        """
        keys = self._host_items(values=False)[0]
        changes = self._change_count()
        for start in range(0, len(keys), _ITERATION_CHUNK):
            for key in self._as_keys(keys[start : start + _ITERATION_CHUNK]):
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
        as the table does not change. With key columns a mapping of their names to arrays ``[len(table)]``. Text is an
        array of NumPy's StringDType, and bytes one of objects, whatever the framework; ``like`` may also be "list",
        "pandas", "polars", "pyarrow" or "arrow", or a column of strings of these.
        """
        return self._export(like, values=False)[0]

    def clear(self) -> None:
        """Erases all keys; the capacity stays. Does not wait for the GPU, unless keys are strings."""
        self._changes += 1
        self._core.clear(self._stream())
        if self._string_keys is not None:
            self._string_keys.compact(self._numbers_of_keys)

    # Size and device -------------------------------------------------------------------------------------------------

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
        self._core.max_load_factor = checked_load_factor(factor)

    @property
    def nbytes(self) -> int:
        """Bytes of table memory, with that of strings on the host."""
        return self._core.nbytes + (0 if self._string_keys is None else self._string_keys.nbytes)

    @property
    def device(self) -> str:
        """The name of the device: "cpu", or "cuda:" and a number; of several shards, theirs with commas between."""
        return ",".join(shard.context.device for shard in self._shards) or self._context.device

    @property
    def shards(self) -> tuple[Self, ...]:
        """The tables of which this one is made, each on its device, without a copy; of a single table, itself.

        Each key belongs to one of them, by its hash. What is done to a shard is done to the table: a key that is
        inserted into a shard it does not belong to is never found in the table.
        """
        faces = tuple(self._face(shard, self._string_keys) for shard in self._shards)
        for face in faces:
            face._whole = self
        return faces or (self,)

    def _face(self, core: _core.Table, strings: StringKeys | None) -> Self:
        """An object of another core table of this kind, that does with absent keys what this one does."""
        face = object.__new__(type(self))
        face._attach(core, self._key_shape, strings=strings)
        return face

    @property
    def key_dtype(self) -> str:
        """The name of the keys' dtype: an integer's, "str" or "bytes". With key columns "uint8": rows of bytes."""
        return self._key_dtype if self._string_keys is None else self._string_keys.dtype

    @property
    def key_shape(self) -> Shape:
        """The shape of one key: ``()`` for integers; with key columns ``(bytes,)``."""
        return self._key_shape

    @property
    def key_columns(self) -> Mapping[str, str] | None:
        """The dtypes of the key columns by their names, in order; None where keys are one array."""
        return None if self._key_columns is None else dict(self._key_columns.dtypes)

    @property
    def deterministic(self) -> bool:
        """Whether of a key's duplicates in a batch the last stays (with ``insert`` the first), or any of them."""
        return self._core.deterministic

    @property
    def seed(self) -> int:
        """The seed of the hash function: 0 unless one was given, or the table has met keys picked to collide."""
        return self._core.seed

    @property
    def name(self) -> str | None:
        """The name by which ``gpuhash.open`` finds the table; None where it has none, or none any more."""
        name = self._name
        if name is None or _core.find_table(name) is not self._core:  # another object of the table may have closed it
            return None
        return name

    def close(self) -> None:
        """Gives up the table's name: ``gpuhash.open`` no longer finds it. The table itself lives on."""
        if self._name is not None:
            _core.unregister_table(self._name, self._core)
            self._name = None
            if self._state is not None:
                _core.torch_state(self)  # from now on it stands for this table, and for the name no more

    def to(self, device: object, *, memory: object = None) -> Self:
        """The table on another device, slot for slot; itself where it is there already. Waits.

        Parameters
        ----------
        device
            "cpu", "cuda", "cuda:1", a torch.device or anything whose ``str`` is one of these.
        memory
            As for the constructor; None for the device's own pool.
        """
        if is_sharded(device) or self._shards:
            strings = None if self._string_keys is None else StringKeys(self._string_keys.dtype)
            made = self._face(self._options(device, memory).make_core(), strings)
            if memory is None and made.device == self.device and bool(made._shards) == bool(self._shards):
                return self
            made.reserve(len(self))
            made._merge(self)
            self._copy_attributes(made)
            return made
        context = make_context(device, memory)
        if memory is None and context.device == self.device:
            return self
        return self._clone(context)

    def _options(self, device: object, memory: object) -> Options:
        """What a table like this one is made with, on other devices."""
        return Options.checked(
            value_dtype=self._value_dtype,
            **self._key_options,
            value_shape=self._value_shape,
            device=device,
            capacity=0,
            max_load_factor=self.max_load_factor,
            growth=True,
            max_capacity=self.max_capacity,
            deterministic=self.deterministic,
            seed=self.seed or None,
            initializer=self._initializer,
            memory=memory,
            name=None,
            columns=self._columns,
        )

    def copy(self) -> Self:
        """An independent copy on the same device, from the same memory resource, without a name. Waits."""
        return self._clone(self._context)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._clone(self._context, memo)

    def _clone(self, context: _core.Context, memo: dict[int, Any] | None = None) -> Self:
        """A copy in a context; a deep one of what a derived class has added, where ``deepcopy`` gives its memo."""
        device = self._context if not self._host else context
        stream = 0 if device.platform == "cpu" else default_stream(device.device_index)
        clone = object.__new__(type(self))
        with self._string_lock:
            strings = None if self._string_keys is None else self._string_keys.copy()
            clone._attach(self._core.clone(context, stream), self._key_shape, strings=strings)
        if memo is not None:
            memo[id(self)] = clone  # attributes may lead back to the table
        self._copy_attributes(clone, memo)
        return clone

    def _copy_attributes(self, clone: Self, memo: dict[int, Any] | None = None) -> None:
        """Those that a derived class has added, in ``__slots__`` or without."""
        state = object.__getstate__(self)
        named, slots = state if isinstance(state, tuple) else (state, {})
        for attribute, value in {**named, **slots}.items():
            if attribute not in vars(clone):
                setattr(clone, attribute, value if memo is None else copy.deepcopy(value, memo))

    # Files -----------------------------------------------------------------------------------------------------------

    def _items_of_file(self) -> list[np.ndarray[Any, Any]]:
        """As ``_host_items``, while other threads wait for as short a time as it can be."""
        wanted, fill = self._export_of(keys=True, values=True)
        if not self._host or any(dtype == "bfloat16" for dtype, _ in wanted):
            return self._host_items()
        with self._string_lock:
            items = export_apart(self._core, wanted, fill)
            if self._string_keys is not None:
                self._string_keys.hold(items[0])
        return items

    def _no_items(self) -> list[np.ndarray[Any, Any]]:
        """What ``_host_items`` gives of an empty table."""
        wanted, _ = self._export_of(keys=True, values=True)
        return [np.empty((0, *shape), storage_dtype(dtype)) for dtype, shape in wanted]

    def _contents(self, *, items: bool = True) -> serialization.Contents:
        """What a file says of the table. Without ``items``: of one with these options, and no keys."""
        arrays = self._items_of_file() if items else self._no_items()
        strings = None if self._string_keys is None else self._string_keys.strings_of(arrays[0])
        return serialization.Contents(
            key_dtype=self.key_dtype,
            key_shape=self._key_shape,
            key_columns=self._key_columns,
            value_dtype=self._value_dtype,
            value_shape=self._value_shape,
            max_load_factor=self.max_load_factor,
            max_capacity=self.max_capacity,
            deterministic=self.deterministic,
            seed=self.seed or None,
            initializer=self._initializer,
            default=None,
            keys=arrays[0],
            strings=strings,
            values=arrays[1] if self._value_dtype is not None else None,
            columns=self._columns,
            column_values=None if self._columns is None else dict(zip(self._columns, arrays[1:], strict=True)),
        )

    @classmethod
    def _empty_for(cls, contents: serialization.Contents, device: object, memory: object) -> Self:
        """What a file's items go into. No constructor makes it: that of a derived class may take other arguments."""
        made = object.__new__(cls)
        made._make(
            Options.checked(
                contents.key_columns or contents.key_dtype,
                contents.value_dtype,
                key_shape=() if contents.key_columns else contents.key_shape,
                value_shape=contents.value_shape,
                device=device,
                capacity=0,
                max_load_factor=contents.max_load_factor,
                growth=True,
                max_capacity=contents.max_capacity,
                deterministic=contents.deterministic,
                seed=contents.seed,
                initializer=contents.initializer,
                memory=memory,
                name=None,
                columns=contents.columns,
            )
        )
        return made

    def _fill(self, contents: serialization.Contents) -> None:
        """Puts a file's items into this new table."""
        stream = self._stream()
        keys = contents.keys
        if self._string_keys is not None and contents.strings is not None:
            keys = self._string_keys.intern(contents.strings)
        arrays = [
            to_device(_core.borrow(array), self._context, stream, "items")[0]
            for array in (keys, *contents.field_values.values())
        ]
        # A file of a few bytes may say that its keys need all memory that there is, at a load factor of 1e-9. Then they
        # lie denser, until the table grows.
        factor = self.max_load_factor
        self.max_load_factor = max(factor, LEAST_LOAD_FACTOR)
        try:
            self._core.reserve(len(keys), stream)
            self._assign_items(arrays, stream)
        except _core.TableFullError as error:
            raise ValueError(f"the file's keys do not fit into its max_capacity: {error}") from None
        self.max_load_factor = factor
        if len(self) != len(keys):
            raise ValueError(f"the file has {len(keys)} keys, of which only {len(self)} are distinct: it is damaged")


def views_of(core: _core.Table, shards: list[_core.Table]) -> Views | None:
    """A table of several shards as seen from each of its GPUs, by their numbers; None for one on the host."""
    if not shards or core.context.platform == "cpu":
        return None
    views: Views = {core.context.device_index: core}
    for shard in shards:
        if shard.context.device_index not in views:
            views[shard.context.device_index] = core.at(shard.context)
    return views
