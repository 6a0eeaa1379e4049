"""The operations on tables with values, in the words of the field: insert, find, rows and their kin."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np

from . import _core, batches, column_calls, named_columns
from .arguments import action_of, one_value
from .arrays import NUMPY, Framework, Shape, default_stream, framework_like, framework_of
from .batch import Batch, Output, Write, join, take_values
from .dtypes import comparable, numpy_dtype, storage_dtype, to_python
from .initializers import Initializer
from .keyed_table import KeyedTable
from .options import Options
from .torch import dispatch as traced


class Operations(KeyedTable):
    """A table with values; HashTable adds what makes it like a dict."""

    _value_dtype: str  # None for a table with columns, which comes here by _columns alone

    _torch_default = property(_core.torch_default)

    def _attach(self, core: _core.Table, key_shape: Shape, name: str | None = None) -> None:
        super()._attach(core, key_shape, name)
        self._default: np.ndarray[Any, Any] | None = None  # on the host, as the value dtype's storage
        self._fallback: _core.Array | None = None  # the same in the table's memory
        self._default_tensor: Any = None  # the same for PyTorch's compiler
        self._column_defaults: dict[str, np.ndarray[Any, Any]] | None = None  # of a table with columns, instead

    def _make(self, options: Options) -> None:
        super()._make(options)
        if options.default is not None:
            self._set_default(options.default)
        self._column_defaults = options.column_defaults

    def _clone(self, context: _core.Context, memo: dict[int, Any] | None = None) -> Self:
        clone = super()._clone(context, memo)
        clone._set_default(self._default)
        clone._column_defaults = self._column_defaults
        return clone

    def _set_default(self, storage: np.ndarray[Any, Any] | None) -> None:
        self._default = storage
        self._fallback = None if storage is None else self._core.constant(_core.borrow(storage), self._stream())
        self._default_tensor = None
        self._fast.set_fallback(self._fallback)
        for view, fast in self._fast_views:
            stream = default_stream(view.context.device_index)
            fast.set_fallback(None if storage is None else view.constant(_core.borrow(storage), stream))

    def _fallback_for(self, default: Any, batch: Batch) -> _core.Array | None:
        """What absent keys get: one value, or one for each key of the batch; None where there is no default."""
        if default is None:
            if self._default is None or batch.context is self._context or self._views is None:
                return self._fallback
            return batch.core.constant(_core.borrow(self._default), batch.stream)  # on the batch's GPU
        return self._fallback_of(default, batch, self._value_dtype, self._value_shape, "default")

    def _fallback_of(self, default: Any, batch: Batch, dtype: str, value_shape: Shape, what: str) -> _core.Array:
        """The default of a call, in the table's memory: one value, or one for each key."""
        shape = default.shape if hasattr(default, "shape") else np.shape(default)
        if len(shape) > len(value_shape) and batch.shape:
            return take_values(default, batch, dtype, value_shape, what)[0]
        framework = framework_of(default)
        if not (self._host or framework.python or framework.private_streams):
            array = framework.borrow(default, batch.stream)
            context = batch.context
            same_device = array.platform == context.platform and array.device_index == context.device_index
            if same_device and array.dtype == dtype and array.shape == value_shape:
                if framework is not batch.framework:
                    join(batch, framework, default)
                return batch.apart(array)
        return batch.core.constant(_core.borrow(one_value(default, dtype, value_shape, what)), batch.stream)

    def _column_fallbacks(
        self, default: Any, batch: Batch, places: column_calls.Places
    ) -> dict[str, _core.Array] | None:
        """What absent keys get in each column: as ``_fallback_for``. Columns that a default leaves out get zeros."""
        assert self._columns is not None
        if default is None and self._column_defaults is None:
            return None
        named = {} if default is None else named_columns.by_name(self._columns, default, "defaults")
        own = self._column_defaults if default is None else None
        fallbacks = {}
        for name, (_, column) in places.columns.items():
            if name in named:
                what = f"default of {name!r}"
                fallbacks[name] = self._fallback_of(named[name], batch, column.dtype, column.shape, what)
            else:
                storage = np.zeros(column.shape, storage_dtype(column.dtype)) if own is None else own[name]
                fallbacks[name] = batch.core.constant(_core.borrow(storage), batch.stream)
        return fallbacks

    def _values(self, batch: Batch, out: Any = None, what: str = "out") -> Output:
        return Output(batch, self._value_dtype, batch.shape + self._value_shape, out, what)

    def _face(self, core: _core.Table) -> Self:
        face = super()._face(core)
        face._set_default(self._default)
        face._column_defaults = self._column_defaults
        return face

    def _assign(self, keys: Any, values: Any) -> None:
        if self._columns is not None:
            column_calls.change(self, keys, values, "assign", mask=False)
            return
        if self._shards and batches.are_batches(keys):
            batches.change(self, keys, values, "assign", mask=False)
            return
        batch = self._take(keys)
        array, broadcast = take_values(values, batch, self._value_dtype, self._value_shape)
        self._changes += 1
        batch.core.change([batch.change([(0, array, broadcast, "assign")])])
        batch.finish()

    @traced.by(traced.insert)
    @_core.fast_path("insert")
    def insert(self, keys: Any, values: Any, out: Any = None) -> Any:
        """Inserts the keys that are not there, and keeps the values of those that are.

        Parameters
        ----------
        keys, values, out
            As for ``insert_or_assign``.

        Returns
        -------
        bool array of shape ``batch``: was the key new; true for exactly one of a new key's duplicates. With
        ``deterministic=True`` the first of a new key's values stays. Waits, and raises, as ``insert_or_assign``.
        """
        return self._insert(keys, values, "keep", out)

    @traced.by(traced.insert_or_assign)
    @_core.fast_path("insert_or_assign")
    def insert_or_assign(self, keys: Any, values: Any, out: Any = None) -> Any:
        """Assigns values to keys, new or not, and tells which were new.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        values
            Values of shape ``[*batch, *value_shape]``; a scalar, or an array of shape ``value_shape``, goes to all.
        out
            A bool array of shape ``batch`` to write into.

        Returns
        -------
        bool array of shape ``batch``: was the key new; true for exactly one of a new key's duplicates. Does not wait
        for the GPU while the table has room for all keys as if they were new. ``table[keys] = values`` does without the
        mask, and is faster.

        Raises
        ------
        TypeError, ValueError
            For arrays of other dtypes, or of shapes or devices that do not fit.
        TableFullError, MemoryError
            Where there is no room; the table is as it was.
        """
        return self._insert(keys, values, "assign", out)

    def _insert(self, keys: Any, values: Any, mode: Any, out: Any) -> Any:
        if self._columns is not None:
            return column_calls.change(self, keys, values, mode, out)
        if self._shards and batches.are_batches(keys, out):
            return batches.change(self, keys, values, mode)
        batch = self._take(keys)
        inserted = self._mask(batch, out)
        array, broadcast = take_values(values, batch, self._value_dtype, self._value_shape)
        self._changes += 1
        batch.core.change([batch.change([(0, array, broadcast, mode)], inserted=inserted.array)])
        batch.finish()
        return inserted.result(batch)

    @traced.by(traced.find_or_insert)
    @_core.fast_path("find_or_insert")
    def find_or_insert(self, keys: Any, values: Any = None, out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """The rows of keys in ``row_storage``, after those that are not there have been inserted.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        values
            What new keys get: values of shape ``[*batch, *value_shape]``, or a scalar or an array of shape
            ``value_shape`` for all; None takes what the table's ``initializer`` says, or else its default, or else
            zeros.
        out
            Arrays ``(rows, is_new)`` to write into, int64 and bool of shape ``batch``.

        Returns
        -------
        rows, is_new
            int64 ``batch``: the number of each key's row, the same for all of its duplicates, as ``rows`` would give
            it; numbers stay when the table grows. bool ``batch``: was the key new; true for exactly one of a new key's
            duplicates. Waits as ``insert``; a replayed CUDA graph that finds no room for a key gives -1.

        Raises
        ------
        ValueError
            Where the table has no row storage: its values are scalars of up to 8 bytes.
        TypeError, ValueError, TableFullError, MemoryError
            As ``insert_or_assign``.
        """
        self._need_rows()
        if self._columns is not None:
            pair = None if out is None else out_pair(out, "(rows, is_new)")
            answers: tuple[Any, Any] = column_calls.change(self, keys, values, "keep", pair, rows=True)
            return answers
        if values is None and self._initializer is None and self._default is not None:
            values = self._default_value()
        if self._shards and batches.are_batches(keys, out):
            return cast(tuple[Any, Any], batches.change(self, keys, values, "keep", rows=True))
        out_rows, out_new = out_pair(out, "(rows, is_new)")
        batch = self._take(keys)
        rows = Output(batch, "int64", batch.shape, out_rows, "out[0]")
        inserted = Output(batch, "bool", batch.shape, out_new, "out[1]")
        writes: list[Write] = []
        if values is not None:
            array, broadcast = take_values(values, batch, self._value_dtype, self._value_shape)
            writes.append((0, array, broadcast, "keep"))
        self._changes += 1
        batch.core.change([batch.change(writes, inserted=inserted.array, rows=rows.array)])
        batch.finish()
        return rows.result(batch), inserted.result(batch)

    def _default_value(self) -> Any:
        """The table's default, which it has, as a caller would give it."""
        assert self._default is not None
        return self._default if self._value_dtype != "bfloat16" else comparable(self._default, "bfloat16").tolist()

    @traced.by(traced.insert_or_apply)
    @_core.fast_path("insert_or_apply")
    def insert_or_apply(self, keys: Any, values: Any, op: Any, out: Any = None) -> Any:
        """Inserts the keys that are not there, and combines the values of those that are with the new ones.

        All of a key's duplicates in a batch count; sums and products of floats depend on their order, which is that of
        the batch on the host, and not fixed on a GPU or with several shards. Integers wrap. Minima and maxima of floats
        are those of IEEE 754-2019: they pass NaN on, and -0.0 is less than 0.0. Subnormal numbers count everywhere.

        Parameters
        ----------
        keys, values, out
            As for ``insert_or_assign``.
        op
            "add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor" (with hyphens as well), "keep" (the old
            value) or "replace" (by the new one); of a table with columns also a mapping of columns to such, one for
            each that is given.

        Returns
        -------
        bool array of shape ``batch``: was the key new; true for exactly one of a new key's duplicates. Waits as
        ``insert_or_assign``.

        Raises
        ------
        TypeError
            For operations that the value dtype does not have: bits of floats, minima of complex numbers.
        ValueError
            For an unknown operation.
        TypeError, ValueError, TableFullError, MemoryError
            As ``insert_or_assign``.
        """
        if self._columns is not None:
            return column_calls.change(self, keys, values, column_calls.actions_of(self._columns, values, op), out)
        name = action_of(op, self._value_dtype, f"the table has values of {self._value_dtype}")
        return self._insert(keys, values, name, out)

    @traced.by(traced.find)
    @_core.fast_path("find")
    def find(
        self, keys: Any, default: Any = None, out: tuple[Any, Any] | None = None, *, columns: Any = None
    ) -> tuple[Any, Any]:
        """The values of keys, and which of them were found.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        default
            The value of absent keys, a scalar or of shape ``value_shape``, or one for each key, ``[*batch,
            *value_shape]``; None takes the table's, or else zero.
        out
            Arrays ``(values, found)`` to write into. They may overlap the keys and the default, not each other.
        columns
            Of a table with columns: a list of the names of those that are wanted; None for all.

        Returns
        -------
        values, found
            ``[*batch, *value_shape]`` of the value dtype, and bool ``[*batch]``. Does not wait for the GPU, unless the
            answers are on the host. In a table with columns ``values`` is a mapping of names to arrays, here, in
            ``out`` and as the default, which may leave columns out: they are zeros.
        """
        if self._columns is not None:
            return self._find_columns(keys, default, out, columns)
        if columns is not None:
            raise TypeError(f"columns={columns!r} was given, and the table has a single value per key, without a name")
        if self._shards and batches.are_batches(keys, out):
            return batches.find(self, keys, default)
        out_values, out_found = out_pair(out)
        batch = self._look_for(keys, out)
        if batch is None:
            return self._absent_value(default), False
        values = self._values(batch, out_values, "out[0]")
        found = Output(batch, "bool", batch.shape, out_found, "out[1]")
        fallback = self._fallback_for(default, batch)
        batch.core.look_up([batch.lookup([(0, values.array, fallback)], found.array)])
        batch.finish()
        return values.result(batch), found.result(batch)

    def _find_columns(self, keys: Any, default: Any, out: Any, columns: Any) -> tuple[Any, Any]:
        if self._shards and batches.are_batches(keys, out):
            return column_calls.find_batches(self, keys, default, columns)
        out_values, out_found = out_pair(out)
        places = column_calls.places_of(self, columns, out_values, "out[0]")
        batch = self._look_for(keys, out)
        if batch is None:
            return self._absent_columns(default, places), False
        values = places.outputs(batch, out_values, "out[0]")
        found = Output(batch, "bool", batch.shape, out_found, "out[1]")
        fallbacks = self._column_fallbacks(default, batch, places)
        column_calls.look_up(batch, places, values, found, fallbacks, count_missing=False)
        batch.finish()
        return column_calls.results(values, batch), found.result(batch)

    def _absent_columns(self, default: Any, places: column_calls.Places) -> dict[str, Any]:
        """What ``find`` gives for a single key that is absent."""
        assert self._columns is not None
        if default is not None:
            storages = named_columns.defaults_of(self._columns, default)
        elif self._column_defaults is not None:
            storages = self._column_defaults
        else:
            storages = named_columns.zeros(self._columns)
        return {name: to_value(storages[name], column.dtype) for name, (_, column) in places.columns.items()}

    @traced.by(traced.rows)
    @_core.fast_path("rows")
    def rows(self, keys: Any, out: Any = None) -> Any:
        """The numbers of the keys' rows in ``row_storage``.

        A row keeps its number until its key is erased or the table shrunk to fit. In a table of several shards,
        ``number >> 40`` is the shard, and the 40 lower bits are the row in its ``row_storage``.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        out
            An int64 array of shape ``batch`` to write into.

        Returns
        -------
        int64 array of shape ``batch``, -1 for absent keys. Does not wait for the GPU, unless the answer is on the host.

        Raises
        ------
        ValueError
            Where the table has no row storage: its values are scalars of up to 8 bytes.
        """
        self._need_rows()
        if self._shards and batches.are_batches(keys, out):
            return batches.rows(self, keys)
        batch = self._look_for(keys, out)
        if batch is None:
            return -1
        rows = Output(batch, "int64", batch.shape, out)
        batch.core.look_up([batch.lookup(rows=rows.array)])
        batch.finish()
        return rows.result(batch)

    @property
    def row_storage(self) -> Any:
        """All rows, without a copy: ``[rows handed out, *value_shape]``, erased ones among them.

        A NumPy array for host tables; of PyTorch or CuPy, whichever is imported, for GPU tables (see
        ``row_storage_as``). What is written there is the table's from then on, in the order of the stream.

        Rows of 4 MiB and more in gpuhash's own memory stay where they are when the table grows, and so the view goes on
        being the table's rows, as many as it has. Where they move all the same (smaller ones and those in ``memory=``
        with growth, all of them in a table that gets smaller) it is the memory of before: take it anew then.
        """
        return self.row_storage_as()

    def row_storage_as(self, like: Any = None) -> Any:
        """``row_storage`` as an array of a framework that can write: "torch", "cupy", "numpy" or "buffer"."""
        self._need_rows()
        if self._columns is not None:
            raise ValueError(
                f"the rows of the table have columns: ask for one, as table.column({next(iter(self._columns))!r})"
            )
        framework = self._framework_of_rows(like, "row_storage")
        return framework.wrap(self._core.row_storage(0 if self._host else framework.stream(None, self._index)))

    def column(self, name: str, like: Any = None) -> Any:
        """One column of all rows, without a copy: ``[rows handed out, *shape]``, erased ones among them.

        It is to a table with columns what ``row_storage`` is to others, whose words on writing and growth hold here as
        well. From one row to the next there are the other columns, so that it is a strided array.

        Parameters
        ----------
        name
            That of the column.
        like
            "torch", "cupy", "numpy" or "buffer", or an array of one of these; by default NumPy for host tables, and
            PyTorch or CuPy, whichever is imported, for GPU tables.

        Raises
        ------
        ValueError
            Where the table has no such column, or several shards, each of which has rows of its own; and for
            frameworks whose arrays never change or cannot see the device.
        """
        if self._columns is None:
            raise ValueError(f"column({name!r}) was asked of a table without named columns: see row_storage")
        named_columns.need(self._columns, name)
        framework = self._framework_of_rows(like, f"column({name!r})")
        stream = 0 if self._host else framework.stream(None, self._index)
        return framework.wrap(self._core.column_storage(list(self._columns).index(name), False, stream))

    def _framework_of_rows(self, like: Any, what: str) -> Framework:
        """The framework of a view of all rows. ValueError where there can be none."""
        if self._shards:
            raise ValueError(
                "a table of several shards has no single row storage: its rows lie with its shards, as "
                f"table.shards[i].{what}"
            )
        framework = framework_like(like, self._host)
        if framework is NUMPY and not self._host:
            raise ValueError(f"the rows are on {self.device}, which NumPy cannot see: ask for PyTorch or CuPy")
        return framework

    def _need_rows(self) -> None:
        if not self._core.has_rows:
            raise ValueError(
                f"the table has no row storage: its values, scalars of {self._value_dtype}, lie beside their keys; "
                "only values of a value_shape, or of more than 8 bytes, have rows"
            )

    @property
    def columns(self) -> Mapping[str, named_columns.Column] | None:
        """The named columns, in their order; None for a table with a single value per key."""
        return None if self._columns is None else MappingProxyType(self._columns)

    @property
    def value_dtype(self) -> str | None:
        """The name of the values' dtype; None for a table with columns."""
        return self._value_dtype

    @property
    def value_shape(self) -> Shape:
        """The shape of one value."""
        return self._value_shape

    @property
    def default(self) -> Any:
        """The value of absent keys: a number, a NumPy array where values have a shape, or None.

        Where there are columns, a mapping of their names to such, or None.
        """
        if self._columns is not None and self._column_defaults is not None:
            return {name: to_value(self._column_defaults[name], column.dtype) for name, column in self._columns.items()}
        return None if self._default is None else self._to_value(self._default)

    @property
    def initializer(self) -> Initializer | None:
        """What ``find_or_insert`` puts into the rows of new keys that are given no values; None: the default."""
        return self._initializer

    def _to_value(self, storage: np.ndarray[Any, Any]) -> Any:
        """The number or NumPy array that a value's storage stands for."""
        return to_value(storage, self._value_dtype)

    def _absent_value(self, default: Any) -> Any:
        """What ``find`` gives for a single key that is absent."""
        storage = self._default
        if default is not None:
            storage = one_value(default, self._value_dtype, self._value_shape, "default")
        if storage is None:
            storage = np.zeros(self._value_shape, storage_dtype(self._value_dtype))
        return self._to_value(storage)


def to_value(storage: np.ndarray[Any, Any], dtype: str) -> Any:
    """The number, or the NumPy array, that the storage of one value stands for."""
    return storage.view(numpy_dtype(dtype)).copy() if storage.ndim else to_python(storage, dtype)


def out_pair(out: Any, what: str = "(values, found)") -> tuple[Any, Any]:
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"out takes a tuple of two arrays, {what}")
    return out
