"""HashTable: keys to values, in batches, used like a dict; its calls are made of gpuhash/call.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from . import _core
from .arrays.arguments import action_of, no_default, one_value
from .arrays.batch import Batch, join, take_values
from .arrays.dtypes import comparable, dtype_name, numpy_dtype, storage_dtype, to_python
from .arrays.frameworks import NUMPY, Framework, Shape, default_stream, framework_like, framework_of, settle
from .call import Call, actions_of
from .files import serialization
from .initializers import Initializer
from .keys.strings import StringKeys
from .tables import named_columns
from .tables.dict_methods import NO_DEFAULT, DictMethods
from .tables.options import Options, infer, infer_columns, settled_keys
from .tables.row_access import RowAccess
from .torch import dispatch as traced


class _Required:
    """Stands for an argument that has to be given, as others than Python are to say so."""

    def __repr__(self) -> str:
        return "<required>"


_REQUIRED = _Required()


class HashTable(DictMethods):
    """A hash table in GPU or host memory, used like a dict whose keys and values are whole arrays.

    Parameters
    ----------
    key_dtype
        An integer dtype: a name, a Python type, or a dtype of NumPy, PyTorch, CuPy, JAX or TensorFlow. Or a mapping of
        names to such: then a key is an integer of each of these *key columns*, and keys are mappings of all the names
        to arrays of equal shapes, or tuples of the arrays in that order; a list of tuples works as well. A single key
        is a tuple of integers, as iteration gives it, and ``keys()`` is a mapping. Rows of bytes, uint8 ``[*batch,
        bytes]``, in which the columns lie side by side, are taken as they are. Or "str", or "bytes": then keys are
        strings, as lists, arrays of NumPy or columns of pandas, polars and Arrow without nulls, equal where all their
        bytes are. They stay on the host, where each gets a number that is the key in the table: answers are NumPy
        arrays, and calls on a GPU copy the numbers there.
    value_dtype
        bool, an integer, float16, bfloat16, float32, float64, complex64 or complex128. Or a mapping of names to
        columns, each a dtype, a pair ``(dtype, shape)`` or a ``gpuhash.Column``: then a key has a value of each, side
        by side in one row, and values are mappings of names to arrays, in and out.
    key_shape
        ``()``, or the shape of keys that are several integers, such as ``(k,)``, of up to 1 MiB in all. Keys of more
        than 16 bytes lie in rows, and are found by a fingerprint and compared in full: they take two accesses instead
        of one, insertions wait for the GPU, and there are no shards of them.
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
        shards "torch", or a list of one for each. A block is free once what ``deallocate``'s stream has now is done; it
        may be another stream than ``allocate``'s.
    name
        Makes ``gpuhash.open(name)`` find this table, until ``close()``. Not with strings as keys.

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
        For keys that are no integers and no strings, and dtypes that tables do not take.
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
            An array or list of keys, a mapping of key columns, or a mapping or another table alone. Two-dimensional
            keys ``[n, k]`` with values of length n are n vector keys, unless ``key_shape=`` says otherwise.
        values
            An array or list of values, or one value for all keys; or a mapping of names to such, for a table with
            columns.
        **options
            As for the constructor, with ``key_dtype`` and ``value_dtype``; those given are not inferred.

        Raises
        ------
        TypeError, OverflowError
            Where there is no dtype for the keys or values, such as for values that are strings, or integers of more
            than 64 bits.
        ValueError
            Where there are more or fewer values than keys, unless ``value_shape=`` says that these are one value.
        """
        if values is None and isinstance(keys, HashTable):
            own: dict[str, Any] = {"key_shape": keys.key_shape}
            if keys._key_columns is not None:
                own = {"key_dtype": keys.key_columns}
            elif keys._string_keys is not None:
                own = keys._key_options
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
            keys = settled_keys(keys)
            if isinstance(values, Mapping):
                values = {name: settle(column)[0] for name, column in values.items()}
            else:
                values = settle(values)[0]
        table = cls(**(infer_columns if isinstance(values, Mapping) else infer)(keys, values, options))
        table._assign(keys, values)
        return table

    # Changes ---------------------------------------------------------------------------------------------------------

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

    @traced.by(traced.setitem)
    @_core.fast_path("setitem")
    def _setitem(self, keys: Any, values: Any) -> None:
        self._assign(keys, values)

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
        return self._insert(keys, values, self._actions_of(values, op), out)

    @traced.itself
    def apply_and_find(self, keys: Any, values: Any, op: Any, out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """As ``insert_or_apply``, and gives what the values come to.

        So ids are counted, and their counts known, in one call: ``counts, _ = table.apply_and_find(ids, 1, "add")``.

        Parameters
        ----------
        keys, values, op
            As for ``insert_or_apply``.
        out
            Arrays ``(values, is_new)`` to write into.

        Returns
        -------
        values, is_new
            ``[*batch, *value_shape]``: the value of each key once the whole batch has been applied, the same for all of
            its duplicates; with columns those that were given, by name. bool ``[*batch]``, as of ``insert_or_apply``.
            Another thread's call comes before or after both. Waits, and raises, as ``insert_or_apply``; should a GPU
            fail in the lookup afterwards, the values are applied.
        """
        return _apply_and_find(self, keys, values, op, out)

    def _actions_of(self, values: Any, op: Any) -> str | dict[str, str]:
        """What becomes of the values that are there; in a table with columns of each that is given, by its name."""
        if self._columns is not None:
            return actions_of(self._columns, values, op)
        return action_of(op, self._value_dtype, f"the table has values of {self._value_dtype}")

    def _insert(self, keys: Any, values: Any, actions: str | Mapping[str, str], out: Any) -> Any:
        call = Call.begin(self, keys, out)
        call.answer_mask(out)
        call.write(values, actions)
        call.change()
        return call.mask()

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
        out_rows, out_new = _pair_of(out, "(rows, is_new)")
        call = Call.begin(self, keys, out)
        call.answer_rows(out_rows, "out[0]")
        call.answer_mask(out_new, "out[1]")
        if values is None and self._initializer is None and self._default is not None:
            values = self._default_value()
        if values is not None:
            call.write(values, "keep")
        call.change()
        return call.rows(), call.mask()

    @traced.by(traced.setdefault)
    @_core.fast_path("setdefault")
    def setdefault(self, keys: Any, default: Any = None, out: Any = None) -> Any:
        """Inserts ``default`` for the keys that are absent, and gives the values of all.

        ``default`` is as the values of an insertion: one for each key or one for all; None takes what the table's
        initializer says, or else its default. ``out`` as for ``get``. Waits, and raises, as ``insert``; ValueError
        where there is neither. Columns that it leaves out, or all for None, get their initial values.
        """
        given = default
        if default is None and self._columns is None and self._initializer is None:
            if self._default is None:
                raise no_default("setdefault")
            given = self._default_value()
        call = Call(self, keys, inserts=True)
        call.answer_values(out=out)
        if given is not None:
            call.write(given, "keep", "default")
            call.fall_back_on_writes()
        call.change()
        return call.values()

    def _default_value(self) -> Any:
        """The table's default, which it has, as a caller would give it."""
        assert self._default is not None
        return self._default if self._value_dtype != "bfloat16" else comparable(self._default, "bfloat16").tolist()

    # Lookups ---------------------------------------------------------------------------------------------------------

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

    @traced.by(traced.getitem)
    @_core.fast_path("getitem")
    def _getitem(self, keys: Any) -> Any:
        call = Call.of_lookup(self, keys)
        if call is None:
            if self.default is None:
                raise KeyError(keys)
            return self.default
        call.answer_values()
        missing = call.look_up(count_missing=not call.fall_back(None))
        if missing:
            raise self._absent(call.batch, keys, missing)
        return call.values()

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
        if columns is not None and self._columns is None:
            raise named_columns.no_names(columns)
        out_values, out_found = _pair_of(out, "(values, found)")
        call = Call.begin_lookup(self, keys, out)
        if call is None:
            return self._absent_values(default, columns), False
        call.answer_values(columns, out_values, "out[0]")
        call.answer_mask(out_found, "out[1]")
        call.fall_back(default)
        call.look_up()
        return call.values(), call.mask()

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
        call = Call.begin_lookup(self, keys, out)
        if call is None:
            return self.default if default is None else default
        call.answer_values(out=out)
        if isinstance(call, Call) and call.batch.scalar and out is None:
            if call.look_up(count_missing=True):
                return self.default if default is None else default
            return call.values()
        if not call.fall_back(default):
            hint = self._hint_of_single_key(call.batch, keys) if isinstance(call, Call) else ""
            raise no_default("get(keys) of a batch", hint)
        call.look_up()
        return call.values()

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
        call = Call.begin_lookup(self, keys, out)
        if call is None:
            return -1
        call.answer_rows(out)
        call.look_up()
        return call.rows()

    # Erasures --------------------------------------------------------------------------------------------------------

    @traced.itself
    def __delitem__(self, keys: Any) -> None:
        """Erases keys. Waits. KeyError if any is absent: then nothing is erased."""
        self._erase_present(keys)

    @traced.by(traced.pop)
    @_core.fast_path("pop")
    def pop(self, keys: Any, default: Any = NO_DEFAULT, out: Any = None) -> Any:
        """Erases keys, and gives their values. Waits, unless there is a default.

        Absent keys get ``default``, as for ``get``; without it they are a KeyError, also where the table has a default,
        and nothing is erased, nor written to ``out``. All of a key's duplicates get its value. ``out`` as for ``get``.
        Of several threads one gets the value of a key, and for the others it is absent.
        """
        needed = default is NO_DEFAULT
        call = Call.of_lookup(self, keys, out)
        if call is None:
            if needed:
                raise KeyError(keys)
            return default
        call.answer_values(out=out)
        is_single = call.batch.scalar and out is None
        if needed:
            call.hold_back()
        elif not is_single and not call.fall_back(default):
            raise no_default("pop(keys, None) of a batch", self._hint_of_single_key(call.batch, keys))
        missing = call.erase(all_or_none=needed or is_single)
        if missing and needed:
            raise self._absent(call.batch, keys, missing)
        if missing:
            return default
        popped = call.values()
        call.batch.finish()
        return popped

    def popitem(self) -> tuple[Any, Any]:
        """Erases some key, and gives it and its value, which no other thread gets. Waits, and reads all keys: take
        ``items()`` to empty a table.
        """
        while len(keys := self._host_items(values=False)[0]):
            for row in range(len(keys)):
                key = self._as_keys(keys[row : row + 1])[0]
                try:
                    return key, self.pop(key)
                except KeyError:  # another thread has erased it meanwhile
                    continue
        raise KeyError("popitem(): the table is empty")

    # Defaults --------------------------------------------------------------------------------------------------------

    def _attach(
        self, core: _core.Table, key_shape: Shape, name: str | None = None, strings: StringKeys | None = None
    ) -> None:
        super()._attach(core, key_shape, name, strings)
        self._default: np.ndarray[Any, Any] | None = None  # on the host, as the value dtype's storage
        self._fallback: _core.Array | None = None  # the same in the table's memory
        self._default_tensor: Any = None  # the same for PyTorch's compiler
        self._column_defaults: dict[str, np.ndarray[Any, Any]] | None = None  # of a table with columns, instead

    _torch_default = property(_core.torch_default)

    def _make(self, options: Options) -> None:
        super()._make(options)
        if options.default is not None:
            self._set_default(options.default)
        self._column_defaults = options.column_defaults

    def _clone(self, context: _core.Context, memo: dict[int, Any] | None = None) -> Self:
        clone = super()._clone(context, memo)
        clone._take_defaults_of(self)
        return clone

    def _face(self, core: _core.Table, strings: StringKeys | None) -> Self:
        face = super()._face(core, strings)
        face._take_defaults_of(self)
        return face

    def _take_defaults_of(self, other: HashTable) -> None:
        self._set_default(other._default)
        self._column_defaults = other._column_defaults

    def _set_default(self, storage: np.ndarray[Any, Any] | None) -> None:
        self._default = storage
        self._fallback = None if storage is None else self._core.constant(_core.borrow(storage), self._stream())
        self._default_tensor = None
        self._fast.set_fallback(self._fallback)
        for view, fast in self._fast_views:
            stream = default_stream(view.context.device_index)
            fast.set_fallback(None if storage is None else view.constant(_core.borrow(storage), stream))

    def _own_defaults(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """By name, on the host."""
        if self._columns is not None:
            return self._column_defaults
        return None if self._default is None else {"": self._default}

    def _fallbacks_of(self, default: Any, batch: Batch, names: Iterable[str]) -> dict[str, _core.Array] | None:
        """What absent keys get, by name: one value, or one for each key; None where there is no default.

        Columns that a default leaves out get zeros.
        """
        if default is None and self._fallback is not None and (batch.context is self._context or self._views is None):
            return {"": self._fallback}
        own = self._own_defaults() if default is None else None
        if default is None and own is None:
            return None
        named: dict[str, Any] = {}
        if default is not None:
            named = (
                {"": default} if self._columns is None else named_columns.by_name(self._columns, default, "defaults")
            )
        fallbacks = {}
        for name in names:
            field = self._fields[name]
            if name in named:
                what = f"default of {name!r}" if name else "default"
                fallbacks[name] = self._fallback_of(named[name], batch, field.dtype, field.shape, what)
            else:
                storage = np.zeros(field.shape, storage_dtype(field.dtype)) if own is None else own[name]
                fallbacks[name] = batch.core.constant(_core.borrow(storage), batch.stream)  # on the batch's GPU
        return fallbacks

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

    def _absent_values(self, default: Any, columns: Any) -> Any:
        """What ``find`` gives for a single key that is absent."""
        if self._columns is None:
            if default is not None:
                return to_value(one_value(default, self._value_dtype, self._value_shape, "default"), self._value_dtype)
            own = self._own_defaults() or {"": np.zeros(self._value_shape, storage_dtype(self._value_dtype))}
            return to_value(own[""], self._value_dtype)
        names = named_columns.chosen(self._columns, columns)
        if default is not None:
            storages = named_columns.defaults_of(self._columns, default)
        else:
            storages = self._column_defaults or named_columns.zeros(self._columns)
        return {name: to_value(storages[name], self._columns[name].dtype) for name in names}

    def _hint_of_single_key(self, batch: Batch, keys: Any) -> str:
        """What to do where one key came as an array or a list, which are batches, or with ``out=``."""
        if batch.shape:
            return ""
        if batch.scalar:
            return ". A single key is a batch, too, where out= is given: to be answered by None, leave that out"
        single = f"a tuple of shape {self._key_shape}" if self._key_shape else "a Python integer"
        if self._string_keys is not None:
            single = f"a Python {self._string_keys.dtype}"
        return (
            f". A {type(keys).__name__} of one key is a batch, too: to be answered by None, give a single key, which "
            f"is {single}"
        )

    # Rows and values -------------------------------------------------------------------------------------------------

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
        stream = 0 if self._host else framework.stream(None, self._index)
        return framework.wrap(self._core.column_storage(0, False, stream))

    @property
    def row_access(self) -> RowAccess:
        """Rows by their numbers: what embeddings are made of. ValueError where the table has no row storage."""
        return RowAccess(self)

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
        return None if self._default is None else to_value(self._default, self._value_dtype)

    @property
    def initializer(self) -> Initializer | None:
        """What ``find_or_insert`` puts into the rows of new keys that are given no values; None: the default."""
        return self._initializer

    # Files -----------------------------------------------------------------------------------------------------------

    def _contents(self, *, items: bool = True) -> serialization.Contents:
        contents = super()._contents(items=items)
        contents.default = None if self._default is None else self._default.tobytes()
        if self._column_defaults is not None:
            contents.column_defaults = {name: storage.tobytes() for name, storage in self._column_defaults.items()}
        return contents

    @classmethod
    def _restore(cls, contents: serialization.Contents, device: object, memory: object, name: str | None) -> Self:
        contents.need_kind("table")
        table = cls._empty_for(contents, device, memory)
        defaults = contents.field_defaults()
        if defaults is not None and contents.columns is not None:
            table._column_defaults = defaults
        elif defaults is not None:
            table._set_default(defaults[""])
        table._fill(contents)
        table._register(name)
        return table


@traced.in_place_by(traced.apply_and_find)
def _apply_and_find(table: HashTable, keys: Any, values: Any, op: Any, out: Any) -> tuple[Any, Any]:
    out_values, out_new = _pair_of(out, "(values, is_new)")
    actions = table._actions_of(values, op)
    call = Call.begin(table, keys, out)
    call.answer_values(None if isinstance(actions, str) else list(actions), out_values, "out[0]")
    call.answer_mask(out_new, "out[1]")
    call.write(values, actions)
    call.fall_back_on_writes()
    call.change()
    return call.values(), call.mask()


def to_value(storage: np.ndarray[Any, Any], dtype: str) -> Any:
    """The number, or the NumPy array, that the storage of one value stands for."""
    return storage.view(numpy_dtype(dtype)).copy() if storage.ndim else to_python(storage, dtype)


def _pair_of(out: Any, what: str) -> tuple[Any, Any]:
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"out takes a tuple of two arrays, {what}")
    return out


_core.set_subscripts(HashTable)
_core.set_membership(HashTable)

# Counter, pandas.Series and others ask for a mapping, and would take a table for a sequence of its keys. They read
# keys() and values(), or look keys up, or get pairs of items(). Not by inheritance: the views would be Python's.
MutableMapping.register(HashTable)
