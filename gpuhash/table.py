"""HashTable: keys to values, in batches, used like a dict."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Mapping, MutableMapping, Sequence, Sized
from typing import Any, Self, cast

import numpy as np

from . import _core, batches, column_calls, consumers, named_columns, serialization
from .arguments import as_keys
from .arrays import framework_of, settle
from .batch import Batch, Read, Write, take_values
from .dtypes import comparable, dtype_name, storage_dtype
from .export import to_host
from .float_mode import in_default_float_mode
from .inference import infer, infer_columns
from .initializers import Initializer
from .keyed_table import KeyedTable
from .operations import Operations
from .options import Options
from .torch import dispatch as traced


class _NoDefault:
    def __repr__(self) -> str:
        return "<none>"


_NO_DEFAULT = _NoDefault()


class _Required:
    """Stands for an argument that has to be given, as others than Python are to say so."""

    def __repr__(self) -> str:
        return "<required>"


_REQUIRED = _Required()


class HashTable(Operations):
    """A hash table in GPU or host memory, used like a dict whose keys and values are whole arrays.

    Parameters
    ----------
    key_dtype
        An integer dtype: a name, a Python type, or a dtype of NumPy, PyTorch, CuPy, JAX or TensorFlow.
    value_dtype
        bool, an integer, float16, bfloat16, float32, float64, complex64 or complex128. Or a mapping of names to
        columns, each a dtype, a pair ``(dtype, shape)`` or a ``gpuhash.Column``: then a key has a value of each, side
        by side in one row, and values are mappings of names to arrays, in and out.
    key_shape
        ``()``, or ``(k,)`` for keys that are vectors of k integers, of up to 16 bytes in all.
    value_shape
        The shape of one value. Values that are no scalars of up to 8 bytes lie in row storage.
    device
        "cpu", "cuda", "cuda:1", a torch.device or anything whose ``str`` is one of these. A list of them, or
        "cuda:all", makes one table of several shards, each on its device, which takes keys on any of them; one of its
        calls may have a list of arrays, one batch for each GPU, and gives lists.
    capacity
        Slots to begin with; rounded up to whole buckets, as all numbers of slots are.
    max_load_factor
        Keys per slot that the table does not pass, in (0, 1]: it grows before. Where the table picks its capacity, keys
        take at most 0.95 of it even so, as the last keys of a full table look through most of it.
    growth
        False keeps the capacity: a batch for which it has no room is a TableFullError, and changes nothing.
    max_capacity
        Slots beyond which the table does not grow, rounded up likewise.
    default
        The value that ``table[keys]`` and ``find`` give for absent keys, a scalar or of shape ``value_shape``; with
        columns a mapping of names to such, zeros for those left out. Without it ``table[keys]`` raises KeyError. It
        belongs to this object; ``gpuhash.open`` gives one without.
    deterministic
        Of a key's duplicates in one batch the last stays (with ``insert`` the first), as in a loop over a dict.
        Otherwise one of them, whole.
    seed
        Of the hash function: a number from 0 to 2^64 - 1, or "random". None, the default, is the one of all tables that
        are given none, so that equal programs get their keys in equal orders on the host, where they have as many
        threads. Where keys were picked to collide, by somebody who knows it, the table takes a random one by itself and
        rebuilds. Copies and files keep it.
    initializer
        What ``find_or_insert`` and ``setdefault`` put into the rows of new keys that are given no values: an object of
        ``gpuhash.initializers``, such as ``Normal(std=0.02)``, ``TruncatedNormal()``, ``Uniform(-0.05, 0.05)`` or
        ``Constant(1)``. For tables with row storage; numbers are drawn for float16, bfloat16, float32 and float64. A
        key's row depends on the initializer, the key and nothing else: not on its place in a batch, nor on the device.
        Copies and files keep the initializer. Columns have their own, as ``gpuhash.Column(dtype, shape, initial)``.
    memory
        None for the device's own pool; "torch" for PyTorch's caching allocator (memory that was used on another stream
        than the one it was taken on goes back once the host has waited for that); or an object with ``allocate(nbytes,
        stream)`` and ``deallocate(ptr, nbytes, stream)``, such as the resources of rmm and cuda.core; for several
        shards "torch", or a list of one for each.
    name
        Makes ``gpuhash.open(name)`` find this table, until ``close()``.

    Notes
    -----
    Keys have the shape ``[*batch, *key_shape]``, with any number of batch dimensions, and values and masks ``[*batch,
    *value_shape]`` and ``[*batch]``. Arrays have exactly the table's dtypes; Python numbers and lists are converted. A
    Python number, or for vector keys a tuple, is one key, answered by Python numbers; one that the key dtype cannot
    hold is absent. Columns of pandas, polars, Arrow and whatever has its C interface may have no nulls. Outputs are of
    the keys' framework, on GPUs from its allocator, on its current stream; PyTorch's on the host may be such that
    ``resize_()`` cannot lengthen them. Lists are answered by NumPy arrays. Host arrays given to a GPU table are copied
    there, and answered on the host: then the host waits for the GPU, as it does where the table has to grow.

    Raises
    ------
    TypeError
        For keys that are no integers, and dtypes that tables do not take.
    ValueError
        For shapes, devices, capacities and load factors that cannot be, and a name that is taken.
    MemoryError, PlatformError
        Where there is no memory, or no such device.
    """

    def __init__(
        self,
        key_dtype: object = _REQUIRED,
        value_dtype: object = _REQUIRED,
        *,
        key_shape: int | Sequence[int] = (),
        value_shape: int | Sequence[int] = (),
        device: object = "cpu",
        capacity: int = 0,
        max_load_factor: float = 0.8,
        growth: bool = True,
        max_capacity: int | None = None,
        default: Any = None,
        deterministic: bool = False,
        seed: int | str | None = None,
        initializer: Initializer | None = None,
        memory: object = None,
        name: str | None = None,
    ) -> None:
        if value_dtype is _REQUIRED:
            raise TypeError(
                f"{type(self).__name__} is made with the dtypes of its keys and values, as in HashTable('int64', "
                "'float32'), and value_dtype was not given. Where TensorFlow made this call: it takes a table that is "
                "an argument of a tf.function, an element of a tf.data.Dataset, or in a structure of tf.nest, apart as "
                "it does any mapping, and cannot put it together again; let the function use the table from outside, "
                "as gpuhash.tensorflow.wrap(table)"
            )
        columns = named_columns.checked(value_dtype) if isinstance(value_dtype, Mapping) else None
        self._make(
            Options.checked(
                key_dtype,
                dtype_name(value_dtype) if columns is None else None,
                key_shape=key_shape,
                value_shape=value_shape,
                device=device,
                capacity=capacity,
                max_load_factor=max_load_factor,
                growth=growth,
                max_capacity=max_capacity,
                default=default,
                deterministic=deterministic,
                seed=seed,
                initializer=initializer,
                memory=memory,
                name=name,
                columns=columns,
            )
        )

    @classmethod
    def from_items(cls, keys: Any, values: Any = None, **options: Any) -> Self:
        """A table of these items; dtypes, shapes and device are those of the arrays.

        Parameters
        ----------
        keys
            An array or list of keys, or a mapping or another table alone. Two-dimensional keys ``[n, k]`` with values
            of length n are n vector keys, unless ``key_shape=`` says otherwise.
        values
            An array or list of values, or one value for all keys; or a mapping of names to such, for a table with
            columns.
        **options
            As for the constructor, with ``key_dtype`` and ``value_dtype``; those given are not inferred.

        Raises
        ------
        TypeError, OverflowError
            Where there is no dtype for the keys or values, such as for strings, or integers of more than 64 bits.
        ValueError
            Where there are more or fewer values than keys, unless ``value_shape=`` says that these are one value.
        """
        if values is None and isinstance(keys, HashTable):
            own: dict[str, Any] = {"key_shape": keys.key_shape}
            if keys._columns is None:
                own["value_shape"] = keys.value_shape
            else:
                own["value_dtype"] = keys._columns
            options = {**own, **options}
            keys, values = keys.items(like="buffer")
        elif values is None and isinstance(keys, Mapping):
            keys, values = list(keys.keys()), list(keys.values())
            if values and all(isinstance(value, Mapping) for value in values):
                values = named_columns.transposed(values)
        elif values is None:
            raise TypeError("from_items takes keys and values, or a mapping alone")
        else:
            keys = settle(keys)[0]
            if isinstance(values, Mapping):
                values = {name: settle(column)[0] for name, column in values.items()}
            else:
                values = settle(values)[0]
        table = cls(**(infer_columns if isinstance(values, Mapping) else infer)(keys, values, options))
        table._assign(keys, values)
        return table

    # Like a dict -----------------------------------------------------------------------------------------------------

    @traced.itself
    def __setitem__(self, keys: Any, values: Any) -> None:
        """Assigns values to keys, new or not.

        ``values`` has the shape ``[*batch, *value_shape]``; a scalar, or an array of shape ``value_shape``, goes to all
        keys. Of a key's duplicates one whole value stays, with ``deterministic=True`` the last. Does not wait for the
        GPU while the table has room for all keys as if they were new. In a table with columns it is a mapping of names
        to such; columns that it leaves out stay as they are, and have their initial values in new rows.

        Raises
        ------
        TypeError, ValueError
            For arrays of other dtypes, or of shapes or devices that do not fit.
        TableFullError, MemoryError
            Where there is no room; the table is as it was.
        """
        self._setitem(keys, values)

    @traced.itself
    def __getitem__(self, keys: Any, *_: None) -> Any:
        """The values of keys, ``[*batch, *value_shape]``, by name where there are columns. Waits, unless the table has
        a ``default=``.

        Raises
        ------
        KeyError
            With the number of absent keys and some of them, unless the table has a ``default=``.
        """
        # Python would call a function without *args at once, and pass over the fast path: see _core.set_subscripts().
        return self._getitem(keys)

    @traced.by(traced.setitem)
    @_core.fast_path("setitem")
    def _setitem(self, keys: Any, values: Any) -> None:
        self._assign(keys, values)

    @traced.by(traced.getitem)
    @_core.fast_path("getitem")
    def _getitem(self, keys: Any) -> Any:
        batch = self._look_for(keys)
        if batch is None:
            if self.default is None:
                raise KeyError(keys)
            return self.default
        if self._columns is not None:
            places = column_calls.places_of(self, None, None)
            outputs = places.outputs(batch, None, "out")
            fallbacks = self._column_fallbacks(None, batch, places)
            needed = fallbacks is None
            missing = column_calls.look_up(batch, places, outputs, None, fallbacks, count_missing=needed)
            if missing:
                raise self._absent(batch, keys, missing)
            batch.finish()
            return column_calls.results(outputs, batch)
        values = self._values(batch)
        fallback = self._fallback_for(None, batch)
        missing = batch.core.look_up([batch.lookup([(0, values.array, fallback)])], fallback is None)
        if missing:
            raise self._absent(batch, keys, missing)
        batch.finish()
        return values.result(batch)

    @traced.itself
    def __delitem__(self, keys: Any) -> None:
        """Erases keys. Waits. KeyError if any is absent: then nothing is erased."""
        self._erase_present(keys)

    def values(self, like: Any = None) -> Any:
        """All values, ``[len(table), *value_shape]``, in the order of ``keys()``; ``like`` as there. Waits.

        A mapping of names to arrays where there are columns.
        """
        if like is None and self._columns is not None and consumers.wants_pairs(self):
            return list(dict(self._pairs()).values())
        return self._named(self._export(like, keys=False))

    def items(self, like: Any = None) -> tuple[Any, Any]:
        """All keys and values, in the same order; ``like`` as for ``keys()``. Waits.

        These are two arrays and no pairs, unlike a dict's: ``zip(table, table.values().tolist())`` gives pairs. Where
        ``collections``, pandas or polars call it, which read any mapping's items as pairs, they get pairs.
        """
        if like is None and consumers.wants_pairs(self):
            return cast(tuple[Any, Any], self._pairs())
        keys, *values = self._export(like)
        return keys, self._named(values)

    def _pairs(self) -> ItemsView[Any, Any]:
        """The items as a dict has them, with Python's numbers, and NumPy's arrays for values that are no scalars."""
        keys, *values = self._host_items()
        dtypes = [self._value_dtype] if self._columns is None else [each.dtype for each in self._columns.values()]
        numbers = [comparable(array, dtype) for array, dtype in zip(values, dtypes, strict=True)]
        lists = [array.tolist() if array.ndim == 1 else list(array) for array in numbers]
        if self._columns is None:
            rows: Iterable[Any] = lists[0]
        else:
            rows = (dict(zip(self._columns, row, strict=True)) for row in zip(*lists, strict=True))
        return dict(zip(as_keys(keys, self._key_shape), rows, strict=True)).items()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """TypeError: a table is two arrays, of which NumPy would take the keys."""
        raise TypeError(f"a {type(self).__name__} is no array: {consumers.no_arrays[HashTable]}")

    def _named(self, values: list[Any]) -> Any:
        """The arrays of ``_export`` without the keys, as callers get them."""
        return values[0] if self._columns is None else dict(zip(self._columns, values, strict=True))

    @traced.by(traced.get)
    @_core.fast_path("get")
    def get(self, keys: Any, default: Any = None, out: Any = None) -> Any:
        """The values of keys, and a default for absent ones.

        A single key gives its value or ``default`` (else the table's, else None), and waits. A batch gives an array, of
        which absent keys get ``default``, a scalar or of shape ``value_shape`` or one for each key, ``[*batch,
        *value_shape]``, or else the table's; it does not wait. ``out`` is an array of shape ``[*batch, *value_shape]``
        to write into; it may be the keys' own memory. With it a single key is a batch of shape ``()``.

        Raises
        ------
        ValueError
            For a batch, where neither is given.
        """
        if self._columns is not None:
            return self._get_columns(keys, default, out)
        if self._shards and batches.are_batches(keys, out):
            return batches.find(self, keys, default, needs_default=True)[0]
        batch = self._look_for(keys, out)
        if batch is None:
            return self.default if default is None else default
        values = self._values(batch, out)
        if batch.scalar and out is None:
            missing = batch.core.look_up([batch.lookup([(0, values.array, None)])], True)
            if missing:
                return self.default if default is None else default
            return values.result(batch)
        fallback = self._fallback_for(default, batch)
        if fallback is None:
            raise ValueError(self._needs_default("get(keys)", batch, keys))
        batch.core.look_up([batch.lookup([(0, values.array, fallback)])])
        batch.finish()
        return values.result(batch)

    def _get_columns(self, keys: Any, default: Any, out: Any) -> Any:
        if self._shards and batches.are_batches(keys, out):
            return column_calls.find_batches(self, keys, default, None, needs_default=True)[0]
        places = column_calls.places_of(self, None, out)
        batch = self._look_for(keys, out)
        if batch is None:
            return self.default if default is None else default
        values = places.outputs(batch, out, "out")
        if batch.scalar and out is None:
            missing = column_calls.look_up(batch, places, values, None, None, count_missing=True)
            if missing:
                return self.default if default is None else default
            return column_calls.results(values, batch)
        fallbacks = self._column_fallbacks(default, batch, places)
        if fallbacks is None:
            raise ValueError(self._needs_default("get(keys)", batch, keys))
        column_calls.look_up(batch, places, values, None, fallbacks, count_missing=False)
        batch.finish()
        return column_calls.results(values, batch)

    def _needs_default(self, call: str, batch: Batch, keys: Any) -> str:
        hint = self._hint_of_single_key(batch, keys)
        return f"{call} of a batch needs a default for absent keys: give one here or to the table{hint}"

    def _hint_of_single_key(self, batch: Batch, keys: Any) -> str:
        """What to do where one key came as an array or a list, which are batches, or with ``out=``."""
        if batch.shape:
            return ""
        if batch.scalar:
            return ". A single key is a batch, too, where out= is given: to be answered by None, leave that out"
        single = f"a tuple, as {(0,) * self._key_shape[0]}" if self._key_shape else "a Python integer"
        return (
            f". A {type(keys).__name__} of one key is a batch, too: to be answered by None, give a single key, which "
            f"is {single}"
        )

    @traced.by(traced.setdefault)
    @_core.fast_path("setdefault")
    def setdefault(self, keys: Any, default: Any = None, out: Any = None) -> Any:
        """Inserts ``default`` for the keys that are absent, and gives the values of all.

        ``default`` is as the values of an insertion: one for each key or one for all; None takes what the table's
        initializer says, or else its default. ``out`` as for ``get``. Waits, and raises, as ``insert``; ValueError
        where there is neither. Columns that it leaves out, or all for None, get their initial values.
        """
        if self._columns is not None:
            return self._setdefault_columns(keys, default, out)
        initialised = default is None and self._initializer is not None
        if default is None and not initialised:
            if self._default is None:
                raise ValueError("setdefault needs a default for absent keys: give one here or to the table")
            default = self._default_value()
        batch = self._take(keys)
        values = self._values(batch, out)
        given: list[Write] = []
        if not initialised:
            given.append((0, *take_values(default, batch, self._value_dtype, self._value_shape, "default"), "keep"))
        fallback = None if initialised else given[0][1]
        self._insert_and_find(batch, given, [(0, values.array, fallback)])
        return values.result(batch)

    def _setdefault_columns(self, keys: Any, default: Any, out: Any) -> Any:
        places = column_calls.places_of(self, None, out)
        batch = self._take(keys)
        values = places.outputs(batch, out, "out")
        given = [] if default is None else column_calls.take_columns(self, batch, default, "keep", "default")
        fallbacks = {number: array for number, array, _, _ in given}
        wanted = [(number, array, fallbacks.get(number)) for number, array, _ in places.parts(values, None)]
        self._insert_and_find(batch, given, wanted)
        return column_calls.results(values, batch)

    def _insert_and_find(self, batch: Batch, given: list[Write], wanted: list[Read]) -> None:
        """Inserts what is given for absent keys, and reads the values of all."""
        self._changes += 1
        batch.core.change([batch.change(given, wanted)])
        batch.finish()

    @traced.by(traced.pop)
    @_core.fast_path("pop")
    def pop(self, keys: Any, default: Any = _NO_DEFAULT, out: Any = None) -> Any:
        """Erases keys, and gives their values. Waits, unless there is a default.

        Absent keys get ``default``, as for ``get``; without it they are a KeyError, also where the table has a default,
        and nothing is erased, nor written to ``out``. All of a key's duplicates get its value. ``out`` as for ``get``.
        Of several threads one gets the value of a key, and for the others it is absent.
        """
        needed = default is _NO_DEFAULT
        if self._columns is not None:
            return self._pop_columns(keys, default, needed, out)
        batch = self._look_for(keys, out)
        if batch is None:
            if needed:
                raise KeyError(keys)
            return default
        values = self._values(batch, out)
        is_single = batch.scalar and out is None
        fallback = None
        if not needed and not is_single:
            fallback = self._fallback_for(default, batch)
            if fallback is None:
                raise ValueError(
                    "pop(keys, None) of a batch: give a value as the default of absent keys"
                    + self._hint_of_single_key(batch, keys)
                )
        if needed:
            values.hold_back(batch)
        if not self._erase_popped(batch, keys, [(0, values.array, fallback)], needed=needed, is_single=is_single):
            return default
        popped = values.result(batch)
        batch.finish()
        return popped

    def _pop_columns(self, keys: Any, default: Any, needed: bool, out: Any) -> Any:
        places = column_calls.places_of(self, None, out)
        batch = self._look_for(keys, out)
        if batch is None:
            if needed:
                raise KeyError(keys)
            return default
        values = places.outputs(batch, out, "out")
        is_single = batch.scalar and out is None
        fallbacks = None
        if not needed and not is_single:
            fallbacks = self._column_fallbacks(default, batch, places)
            if fallbacks is None:
                raise ValueError(self._needs_default("pop(keys, None)", batch, keys))
        if needed:
            for output in values.values():
                output.hold_back(batch)
        wanted = places.parts(values, fallbacks)
        if not self._erase_popped(batch, keys, wanted, needed=needed, is_single=is_single):
            return default
        popped = column_calls.results(values, batch)
        batch.finish()
        return popped

    def _erase_popped(self, batch: Batch, keys: Any, wanted: list[Read], *, needed: bool, is_single: bool) -> bool:
        """Erases keys, and gives their values. False where a single one is absent; KeyError where one is needed."""
        missing = self._find_and_erase(batch, wanted, needed or is_single)
        if missing and needed:
            raise self._absent(batch, keys, missing)
        return not missing

    def popitem(self) -> tuple[Any, Any]:
        """Erases some key, and gives it and its value, which no other thread gets. Waits, and reads all keys: take
        ``items()`` to empty a table.
        """
        while len(keys := self._host_items(values=False)[0]):
            for row in range(len(keys)):
                key = as_keys(keys[row : row + 1], self._key_shape)[0]
                try:
                    return key, self.pop(key)
                except KeyError:  # another thread has erased it meanwhile
                    continue
        raise KeyError("popitem(): the table is empty")

    def update(self, other: Any, values: Any = _NO_DEFAULT, /) -> None:
        """Assigns all items of another.

        Parameters
        ----------
        other
            A mapping; a table of the same dtypes and shapes, on any device; an iterable of pairs, tuples or lists, of
            which the last of a key wins; or an array of keys and one of values, as two arguments or as a tuple or list
            of both, such as what ``items()`` gives. With columns each value is a mapping of names, the same for all
            keys, and so are values as arrays.

        Notes
        -----
        Waits where ``other`` is a table; else it waits, and in any case raises, as ``table[keys] = values``.

        Raises
        ------
        TypeError
            Where ``other`` is a single array: its rows might be pairs as well as keys and values.
        """
        if values is not _NO_DEFAULT:
            self._assign(other, values)
        elif isinstance(other, HashTable):
            self._merge(other)
        elif isinstance(other, KeyedTable):
            raise TypeError(f"a {type(other).__name__} has no values: give a table, a mapping, pairs or arrays")
        elif isinstance(other, Mapping) or hasattr(other, "keys"):
            keys = list(other.keys())
            self._assign_all(keys, [other[key] for key in keys])
        else:
            parts = _parts(other)
            is_named = self._columns is not None and len(parts) == 2 and isinstance(parts[1], Mapping)
            if is_named or (len(parts) == 2 and all(map(_is_array, parts))):
                self._assign(*parts)
            else:
                self._assign_all(*_columns(parts))

    def _assign_all(self, keys: list[Any], values: list[Any]) -> None:
        """Assigns the keys and values of a dict."""
        if keys:
            if self._columns is not None:
                values = cast(Any, named_columns.transposed(values, self._columns))
            self._assign([tuple(key) for key in keys] if self._key_shape else keys, values)

    @in_default_float_mode
    def __eq__(self, other: object) -> bool:
        """Has the other, a table on any device or a mapping, the same items? Waits.

        Tables of different dtypes or shapes are different. A table is equal to itself; otherwise NaN equals nothing.
        """
        if self is other:
            return True
        if isinstance(other, HashTable):
            return self._equals_table(other)
        if not isinstance(other, Mapping):
            return NotImplemented
        if len(self) != len(other):
            return False
        if self._columns is not None:
            keys, *columns = self._host_items()
            return all(
                key in other and self._same_columns([column[row] for column in columns], other[key])
                for row, key in enumerate(as_keys(keys, self._key_shape))
            )
        keys, values = self._host_items()
        values = comparable(values, self._value_dtype)
        mine = zip(as_keys(keys, self._key_shape), values if self._value_shape else values.tolist(), strict=True)
        if not self._value_shape:
            return dict(mine) == other
        return all(key in other and np.array_equal(value, other[key]) for key, value in mine)

    def _same_columns(self, values: list[Any], other: Any) -> bool:
        """Has a mapping these values of each column, as their dtypes' storage?"""
        assert self._columns is not None
        if not isinstance(other, Mapping) or other.keys() != self._columns.keys():
            return False
        return all(
            np.array_equal(comparable(value, column.dtype), other[name])
            for value, (name, column) in zip(values, self._columns.items(), strict=True)
        )

    def _equals_table(self, other: HashTable) -> bool:
        if self._kind_of_items() != other._kind_of_items() or len(self) != len(other):
            return False
        if self._columns is not None:
            return self._equals_columns(other)
        keys, values = self._host_items()
        batch = other._take(keys)
        shape = batch.shape + self._value_shape
        theirs = _core.Buffer(batch.context, self._value_dtype, shape, batch.stream).array()
        if batch.core.look_up([batch.lookup([(0, theirs, None)])], True):
            return False
        others = to_host(batch.context, theirs, batch.stream)
        return bool(np.array_equal(comparable(values, self._value_dtype), comparable(others, self._value_dtype)))

    def _equals_columns(self, other: HashTable) -> bool:
        assert self._columns is not None
        keys, *mine = self._host_items()
        batch = other._take(keys)
        theirs = [
            _core.Buffer(batch.context, column.dtype, batch.shape + column.shape, batch.stream).array()
            for column in self._columns.values()
        ]
        reads: list[Read] = [(number, array, None) for number, array in enumerate(theirs)]
        if batch.core.look_up([batch.lookup(reads)], True):
            return False
        return all(
            np.array_equal(
                comparable(ours, array.dtype), comparable(to_host(batch.context, array, batch.stream), array.dtype)
            )
            for ours, array in zip(mine, theirs, strict=True)
        )

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __or__(self, other: Any) -> Self:
        if not isinstance(other, (HashTable, Mapping)):
            return NotImplemented
        union = self.copy()
        union.update(other)
        return union

    def __ror__(self, other: Any) -> Self:
        if not isinstance(other, Mapping):
            return NotImplemented
        union = self.copy()
        union.update(other)
        union.update(self)  # of a key that both have the right one's value stays
        return union

    def __repr__(self) -> str:
        size = len(self)
        load = size / self.capacity if self.capacity else 0.0
        shapes = f", key_shape={self._key_shape}" if self._key_shape else ""
        shapes += f", value_shape={self._value_shape}" if self._value_shape else ""
        initializer = f", initializer={self._initializer}" if self._initializer is not None else ""
        name = f", name={name!r}" if (name := self.name) is not None else ""
        values = self._value_dtype
        if self._columns is not None:
            values = "{" + ", ".join(f"{each}: {column}" for each, column in self._columns.items()) + "}"
        return (
            f"<{type(self).__name__} {self._key_dtype} -> {values}{shapes}, size={size}, "
            f"capacity={self.capacity}, load={load:.3f}, device={self.device}{initializer}{name}>"
        )

    # Files --------------------------------------------------------------------------------------------

    def _contents(self) -> serialization.Contents:
        contents = super()._contents()
        contents.default = None if self._default is None else self._default.tobytes()
        if self._column_defaults is not None:
            contents.column_defaults = {name: storage.tobytes() for name, storage in self._column_defaults.items()}
        return contents

    @classmethod
    def _restore(cls, contents: serialization.Contents, device: object, memory: object, name: str | None) -> Self:
        if contents.is_set:
            raise ValueError("the file holds a set, not a table: load it with gpuhash.HashSet.load")
        table = cls._empty_for(contents, device, memory)
        if contents.column_defaults is not None and contents.columns is not None:
            table._column_defaults = named_columns.zeros(contents.columns)
            for column, storage in table._column_defaults.items():
                storage[...] = np.frombuffer(contents.column_defaults[column], storage.dtype).reshape(storage.shape)
        if contents.default is not None and contents.value_dtype is not None:
            flat = np.frombuffer(contents.default, storage_dtype(contents.value_dtype))
            table._set_default(flat.reshape(contents.value_shape).copy())
        table._fill(contents)
        table._register(name)
        return table


_core.set_subscripts(HashTable)
_core.set_membership(HashTable)

# Counter, pandas.Series and others ask for a mapping, and would take a table for a sequence of its keys. They read
# keys() and values(), or look keys up, or get pairs of items(). Not by inheritance: the views would be Python's.
MutableMapping.register(HashTable)

consumers.no_arrays[HashTable] = (
    "give its keys() or its values(), ask it with contains(keys), or, where any mapping will do, give dict(table)"
)


def _is_array(part: object) -> bool:
    """Is it an array of any framework? Python numbers and sequences, and what they may hold, are none."""
    try:
        framework = framework_of(part)
    except TypeError:
        return False
    return not framework.python


def _parts(other: Any) -> list[Any]:
    """What is in an iterable of pairs, or of an array of keys and one of values."""
    if _is_array(other):
        raise TypeError(
            f"update got a single {type(other).__name__}, whose rows might be pairs as well as keys and values: give "
            "update(keys, values)"
        )
    if isinstance(other, (str, bytes)) or not isinstance(other, Iterable):
        raise TypeError(f"a {type(other).__name__} has no items: give a table, a mapping, pairs or arrays")
    return list(other)


def _columns(pairs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Keys and values of pairs, the last one of a key."""
    items: dict[Any, Any] = {}
    for pair in pairs:
        # Not an array: where there are two of length 2, they may be keys and values as well.
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            length = f" of {len(pair)}" if isinstance(pair, Sized) else ""
            raise ValueError(
                f"update takes pairs, tuples or lists of a key and its value, and met a {type(pair).__name__}{length}: "
                "give keys and values apart, as in update(keys, values)"
            )
        items[_hashable(pair[0])] = pair[1]
    return list(items.keys()), list(items.values())


def _hashable(key: Any) -> Any:
    """A key as Python's own numbers: of arrays' hashes and equality every framework has another notion."""
    if isinstance(key, int):
        return key
    if _is_array(key) or isinstance(key, np.generic):
        key = key.tolist() if hasattr(key, "tolist") else np.asarray(key).tolist()
    return tuple(key) if isinstance(key, (list, tuple)) else key
