"""The calls of tables in TensorFlow: MutableHashTable, and ColumnsHashTable, whose values are dicts of tensors.

One op looks keys up, one changes them, one erases them and one exports them. Each takes a list of columns, and a single
value is the column "". What the two kinds of tables take and give is in four small methods.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops

from gpuhash import HashTable, _core
from gpuhash.arrays.arguments import KeyOutOfRangeError, action_of, as_keys, count_of, encode_keys, not_one_key
from gpuhash.arrays.frameworks import Shape
from gpuhash.call import actions_of
from gpuhash.keys.strings import no_strings
from gpuhash.tables import named_columns
from gpuhash.tables.dict_methods import NO_DEFAULT
from gpuhash.tables.named_columns import Column

from .eager import wait_for_ops
from .library import ops
from .state import DEFAULT_BUCKETS, TableState

_numbers = itertools.count()
_ABSENT = re.compile(r"\d+ of \d+ keys are absent; none was erased")  # as native/call_kernels.cc says it


class MutableHashTable(TableState):
    """A drop-in for ``tf.lookup.experimental.MutableHashTable``, on CPU and GPU, and with what that lacks.

    Works in eager mode, tf.function, tf.data, Keras and SavedModels, with TensorFlow's own lookup ops
    (``tf.raw_ops.LookupTableFindV2`` and its kin take ``resource_handle``). Its checkpoints are those of TensorFlow's
    table: either loads into the other.

    Parameters
    ----------
    key_dtype
        tf.int32, tf.int64 or another integer dtype. TensorFlow's table takes strings, this one does not.
    value_dtype
        bool, an integer, half, bfloat16, float or complex dtype. Or a mapping of names to columns, as
        ``gpuhash.HashTable`` takes it: then this makes a ``ColumnsHashTable``.
    default_value
        The value of absent keys: a scalar, or of shape ``value_shape``.
    name
        The name of the op, and of the table's tensors in checkpoints made by ``tf.compat.v1.train.Saver``; where a
        table of the graph has it already, with a number behind it, as variables get it.
    checkpoint
        Whether checkpoints hold the keys and values.
    experimental_is_anonymous
        The table lives as long as its handles, and has no name. So it is anyway in eager mode without ``shared_name``.
    value_shape
        The shape of one value, any rank; by default that of ``default_value``.
    key_shape
        ``()``, or ``(k,)`` for keys that are vectors of k integers.
    shared_name
        ``gpuhash.open(shared_name)`` is this table, and where there is one of that name already, this is it. The name
        is the process's, whatever the device; the table lives on in TensorFlow's resource manager, without this object.
    device
        Where the table lives, "GPU:0" for instance; by default where TensorFlow places the op, on a GPU if there is
        one. TensorFlow runs tf.data on the CPU: tables that are used there have to live there.
    total_buckets
        Slots to begin with. The table grows.
    deterministic
        Of a key's duplicates in one batch the last stays, as in TensorFlow's table; otherwise any of them, which is
        faster on a GPU.

    Notes
    -----
    Keys have the shape ``[*batch, *key_shape]`` and values ``[*batch, *value_shape]``. On a GPU, memory comes from
    TensorFlow's allocator and work goes to its stream; ``lookup``, ``find``, ``contains``, ``rows``, ``remove``,
    ``erase``, ``clear``, ``pop`` with a default and, while there is room for all keys as if they were new, insertions
    do not wait for the device.

    Raises
    ------
    tf.errors.InvalidArgumentError, TypeError, ValueError
        For dtypes and shapes that do not fit, and a shared name of a table of another kind.
    tf.errors.ResourceExhaustedError
        Where there is no memory; the table is as it was.
    """

    _has_initializer = False  # of the rows of new keys

    __iter__ = None  # without this Python would ask for the keys 0, 1, 2 and so on, and find a value for each

    def __new__(cls, *args: Any, **options: Any) -> Any:
        value_dtype = args[1] if len(args) > 1 else options.get("value_dtype")
        is_named = cls is MutableHashTable and isinstance(value_dtype, Mapping)
        return super().__new__(ColumnsHashTable if is_named else cls)

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
        *,
        value_shape: Sequence[int] | None = None,
        key_shape: Sequence[int] = (),
        shared_name: str | None = None,
        device: str | None = None,
        total_buckets: int = DEFAULT_BUCKETS,
        deterministic: bool = True,
    ) -> None:
        default = tf.convert_to_tensor(default_value, dtype=value_dtype)
        if value_shape is not None:
            default = tf.broadcast_to(default, value_shape)
        self._make(
            key_dtype,
            {"": Column(default.dtype.name, default.shape.as_list())},
            {"": default},
            name,
            checkpoint,
            experimental_is_anonymous,
            key_shape=key_shape,
            shared_name=shared_name,
            device=device,
            total_buckets=total_buckets,
            deterministic=deterministic,
        )

    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        """A copy on the CPU, for checkpoints that are written beside the work."""
        if self not in object_map:
            object_map[self] = MutableHashTable(
                self._key_dtype,
                self._value_dtype if "" in self._columns else self._columns,
                self._default_value,
                self._name,
                self._checkpoint,
                self._is_anonymous,
                key_shape=self._key_shape,
                device="CPU:0",
                deterministic=self._deterministic,
            )
        object_map[self]._restore_from_tensors(self._serialize_to_tensors())

    # What the table takes and gives, by the names of columns

    def _by_name(self, given: Any, what: str) -> Mapping[str, Any]:
        """What a caller gives for each key."""
        return {"": given}

    def _answer(self, values: dict[str, Any]) -> Any:
        """What a caller gets for each key."""
        return values[""]

    def _chosen(self, columns: Any) -> list[str]:
        """The columns that a caller asks for."""
        if columns is not None:
            raise TypeError(f"columns={columns!r} was given, and the table has a single value per key, without a name")
        return [""]

    def _actions(self, values: Any, op: Any) -> dict[str, str]:
        """What becomes of each column that is given."""
        dtype = self._columns[""].dtype
        return {"": action_of(op, dtype, f"the table has values of {dtype}")}

    def _keys(self, keys: Any) -> Any:
        return tf.convert_to_tensor(keys, dtype=self._key_dtype, name="keys")

    def _tensors(self, named: Mapping[str, Any]) -> list[Any]:
        """One tensor for each column."""
        tensors = []
        for name, given in named.items():
            column = self._columns[name]
            value = tf.convert_to_tensor(given, dtype=tf.as_dtype(column.dtype), name="values")
            tensors.append(_for_column(value, column.shape))
        return tensors

    def _defaults_of(self, given: Any) -> dict[str, Any]:
        """The values of absent keys in every column: zeros in those that a mapping leaves out, in all for None."""
        named = {} if given is None else self._by_name(given, "defaults")
        left_out = [name for name in self._columns if name not in named]
        full = {**named, **{name: tf.zeros((), dtype) for name, dtype in self._dtypes(left_out).items()}}
        return dict(zip(self._columns, self._tensors({name: full[name] for name in self._columns}), strict=True))

    # The calls

    @property
    def value_shape(self) -> Any:
        """The shape of one value; of named columns a dict of names to shapes."""
        return self._answer({name: tf.TensorShape(column.shape) for name, column in self._columns.items()})

    @property
    def key_shape(self) -> tf.TensorShape:
        """The shape of one key: ``()``, or ``(k,)`` for vectors."""
        return self._key_shape

    def lookup(
        self, keys: Any, dynamic_default_values: Any = None, name: str | None = None, *, columns: Any = None
    ) -> Any:
        """The values of keys, ``[*batch, *value_shape]``; absent keys have the default.

        Differentiable: the gradient with respect to ``resource_handle`` is a tf.IndexedSlices whose indices are keys.
        TensorFlow takes none through loops of a graph (``tf.while_loop``, a ``for`` over tensors, ``tf.map_fn``), where
        lookups count for nothing in it, nor through a ``tf.cond`` of which one branch alone looks up: there watch the
        values found, or look up before. Named columns have no such gradient, as one tensor cannot say which column it
        is of: watch the values found (``tape.watch``), and put the steps into the table by ``insert_or_apply``.
        Gradients of defaults are taken everywhere.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        dynamic_default_values
            Another default: one, of shape ``value_shape``, or one for each key, ``[*batch, *value_shape]``. Of named
            columns a mapping of names to such; columns that it leaves out are zeros.
        name
            The name of the op.
        columns
            Of named columns a list of the names of those that are wanted; None for all.
        """
        return self.find(keys, dynamic_default_values, name, columns=columns)[0]

    def find(
        self, keys: Any, dynamic_default_values: Any = None, name: str | None = None, *, columns: Any = None
    ) -> tuple[Any, Any]:
        """As ``lookup``, and which of the keys were found: bool ``[*batch]``."""
        wanted = self._chosen(columns)
        defaults = self._defaults if dynamic_default_values is None else self._defaults_of(dynamic_default_values)
        answer = self._look_up(keys, {each: defaults[each] for each in wanted}, name)
        return self._answer(dict(zip(wanted, answer.values, strict=True))), answer.found

    def contains(self, keys: Any, name: str | None = None) -> Any:
        """Which of the keys are in the table: bool ``[*batch]``."""
        return self._look_up(keys, {}, name).found

    def rows(self, keys: Any, name: str | None = None) -> Any:
        """The numbers of the keys' rows in the row storage of the table, int64 ``[*batch]``; -1 for absent keys.

        Raises
        ------
        tf.errors.InvalidArgumentError
            Where values are scalars of up to 8 bytes, which have no rows.
        """
        return self._look_up(keys, {}, name, with_rows=1).rows[0]

    def __contains__(self, key: Any) -> bool:
        """Is this one key in the table? In eager mode. TypeError for a batch of keys: that is ``contains(keys)``."""
        _need_eager("`in`", "contains(keys)")
        if isinstance(key, (int, tuple)):
            try:
                key, _ = encode_keys(key, self._key_dtype.name, tuple(self._key_shape))
            except KeyOutOfRangeError:  # no table has it
                return False
        one = self._keys(key)
        if one.shape != self._key_shape:
            raise not_one_key(tuple(one.shape))
        return bool(self.contains(one))

    def get(self, keys: Any, default: Any = None) -> Any:
        """As ``lookup``, by the name that it has for other tables."""
        return self.lookup(keys, default)

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Assigns values to keys, new or not.

        Columns that a mapping of values leaves out stay as they are, and have their initial values in new rows.

        Returns
        -------
        None in eager mode, the operation in a graph.
        """
        is_new = self.insert_or_assign(keys, values, name)
        return None if tf.executing_eagerly() else is_new.op

    def insert_or_assign(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Assigns values to keys, new or not, as ``insert`` does, and tells which were new.

        Returns
        -------
        bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates.
        """
        return self.insert_or_apply(keys, values, "replace", name)

    def insert_or_apply(self, keys: Any, values: Any, op: Any = "add", name: str | None = None) -> Any:
        """Inserts the keys that are not there, and combines the values of those that are with the new ones.

        Values are ``[*batch, *value_shape]``, or one for all keys: a scalar, or of shape ``value_shape``; of named
        columns a mapping of names to such. All of a key's duplicates count. ``op``: "add", "multiply", "min", "max",
        "bit_and", "bit_or" or "bit_xor" (with hyphens as well), "keep" (the old value) or "replace" (by the new one);
        or a mapping of the columns that are given to such.

        Returns
        -------
        bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates.

        Raises
        ------
        TypeError, ValueError
            For an operation that the value dtype does not have, or that is not known.
        """
        return self._change(keys, self._by_name(values, "values"), self._actions(values, op), name).inserted

    def apply_and_find(self, keys: Any, values: Any, op: Any = "add", name: str | None = None) -> tuple[Any, Any]:
        """As ``insert_or_apply``, and gives what the values come to.

        Returns
        -------
        values, is_new
            ``[*batch, *value_shape]``: the value of each key once the whole batch has been applied; of named columns
            those that were given, by name. bool ``[*batch]``, as of ``insert_or_apply``.
        """
        given = self._by_name(values, "values")
        answer = self._change(keys, given, self._actions(values, op), name, read=list(given))
        return self._answer(dict(zip(given, answer.read_values, strict=True))), answer.inserted

    def find_or_insert(self, keys: Any, values: Any = None, name: str | None = None) -> tuple[Any, Any]:
        """The numbers of the keys' rows, after those that are not there have been inserted.

        Parameters
        ----------
        keys, values
            As for ``insert_or_apply``. New rows that are given no value get what the initializer of a column, or of the
            table that ``wrap`` was given, says; without one zeros in a column, or else the default.
        name
            The name of the op.

        Returns
        -------
        rows, is_new
            int64 ``[*batch]``, as of ``rows``; and bool ``[*batch]``: was the key new; true for exactly one of a new
            key's duplicates.

        Raises
        ------
        tf.errors.InvalidArgumentError
            Where values are scalars of up to 8 bytes, which have no rows.
        """
        answer = self._keep(keys, values, name, with_rows=1)
        return answer.rows[0], answer.inserted

    def lookup_or_insert(self, keys: Any, values: Any = None, name: str | None = None) -> tuple[Any, Any]:
        """The values of the keys that are there; the others are inserted with the values given.

        Parameters
        ----------
        keys, values
            As for ``find_or_insert``.
        name
            The name of the op.

        Returns
        -------
        values, inserted
            ``[*batch, *value_shape]``, of named columns those of all by name; and bool ``[*batch]``: was the key new;
            true for exactly one of a new key's duplicates.
        """
        answer = self._keep(keys, values, name, read=list(self._columns))
        return self._answer(dict(zip(self._columns, answer.read_values, strict=True))), answer.inserted

    def setdefault(self, keys: Any, default: Any = None, name: str | None = None) -> Any:
        """The first of what ``lookup_or_insert`` gives."""
        return self.lookup_or_insert(keys, default, name)[0]

    def erase(self, keys: Any, name: str | None = None) -> Any:
        """Erases keys, as ``remove`` does, and tells which were there.

        Returns
        -------
        bool ``[*batch]``: true for exactly one of an erased key's duplicates.
        """
        return self._erase(keys, {}, name).erased

    def __delitem__(self, keys: Any) -> None:
        """Erases keys that are all there. Waits.

        Raises
        ------
        KeyError
            Where keys are absent; then none is erased. In a graph it is a tf.errors.NotFoundError.
        """
        self._erase(keys, {}, None, all_or_none=True)

    def pop(self, keys: Any, default: Any = NO_DEFAULT, name: str | None = None) -> Any:
        """Erases keys, and gives their values. Waits, unless there is a default.

        All of a key's duplicates get its value.

        Parameters
        ----------
        keys
            ``[*batch, *key_shape]``.
        default
            The values of absent keys, as for ``lookup``: None is the table's default. Without a default absent keys are
            an error, as for ``del``, and none is erased.
        name
            The name of the op.
        """
        needed = default is NO_DEFAULT
        defaults = self._defaults if needed or default is None else self._defaults_of(default)
        answer = self._erase(keys, defaults, name, all_or_none=needed)
        return self._answer(dict(zip(self._columns, answer.values, strict=True)))

    def popitem(self) -> tuple[Any, Any]:
        """Erases some key, and gives it, as a number or a tuple of them, and its value. In eager mode.

        Waits, and reads all keys: take ``items()`` to empty a table. KeyError where the table is empty.
        """
        _need_eager("popitem()", "items() and erase(keys)")
        while len(keys := self.keys().numpy()):
            for row in range(len(keys)):
                try:
                    value = self.pop(keys[row])
                except KeyError:  # another thread has erased it meanwhile
                    continue
                return as_keys(keys[row : row + 1], tuple(self._key_shape))[0], value
        raise KeyError("popitem(): the table is empty")

    def clear(self, name: str | None = None) -> Any:
        """Erases all keys. None in eager mode, the operation in a graph."""
        with self._colocated():
            return ops.gpuhash_clear(self.resource_handle, name=name)

    def reserve(self, size: Any, name: str | None = None) -> Any:
        """Makes room for ``size`` keys in all, so that no insertion up to there grows the table. Waits.

        None in eager mode, the operation in a graph, where ``size`` may be a scalar tensor.
        """
        if not tf.is_tensor(size):
            size = count_of(size, "size")
        elif not size.dtype.is_integer:
            raise TypeError(f"size is a tensor of {size.dtype.name}, expected one of an integer dtype")
        with self._colocated():
            return ops.gpuhash_reserve(self.resource_handle, tf.cast(size, tf.int64), name=name)

    def export(self, name: str | None = None) -> tuple[Any, Any]:
        """All keys ``[n, *key_shape]``, and their values ``[n, *value_shape]``, in one order. Waits."""
        keys, values = self._export(list(self._columns), name)
        return keys, self._answer(dict(zip(self._columns, values, strict=True)))

    def keys(self) -> Any:
        """All keys, ``[n, *key_shape]``. Waits."""
        return self._export([])[0]

    def values(self) -> Any:
        """The values of all keys, ``[n, *value_shape]``, in the order of ``keys()``. Waits."""
        return self.export()[1]

    def items(self) -> tuple[Any, Any]:
        """As ``export``, by the name that it has for other tables."""
        return self.export()

    # The ops

    def _call(self, op: Any, keys: Any, tensors: list[Any], names: Iterable[str], **options: Any) -> Any:
        """Calls an op of a batch of keys and a tensor for each column."""
        handle = self.resource_handle
        with framework_ops.colocate_with(handle):
            return op(handle, self._keys(keys), tensors, **self._attributes(names), **options)

    def _look_up(self, keys: Any, defaults: Mapping[str, Any], name: str | None, *, with_rows: int = 0) -> Any:
        return self._call(ops.gpuhash_lookup, keys, list(defaults.values()), defaults, with_rows=with_rows, name=name)

    def _change(
        self,
        keys: Any,
        values: Mapping[str, Any],
        actions: Mapping[str, str],
        name: str | None,
        *,
        read: Sequence[str] = (),
        with_rows: int = 0,
    ) -> Any:
        return self._call(
            ops.gpuhash_change,
            keys,
            self._tensors(values),
            values,
            actions=[actions[each] for each in values],
            read_names=read,
            read_dtypes=list(self._dtypes(read).values()),
            read_shapes=self._shapes(read),
            with_rows=with_rows,
            name=name,
        )

    def _keep(self, keys: Any, values: Any, name: str | None, **answers: Any) -> Any:
        """Inserts the keys that are not there. New rows that are given no value have their initial ones."""
        if values is None and not self._has_initializer:
            values = self._default_value
        if values is None:
            return self._change(keys, {}, {}, name, **answers)
        return self._change(keys, self._by_name(values, "values"), self._actions(values, "keep"), name, **answers)

    def _erase(self, keys: Any, defaults: Mapping[str, Any], name: str | None, *, all_or_none: bool = False) -> Any:
        given = list(defaults.values())
        try:
            return self._call(ops.gpuhash_erasure, keys, given, defaults, all_or_none=all_or_none, name=name)
        except tf.errors.NotFoundError as error:
            absent = _ABSENT.search(error.message)
            if absent is None:
                raise
            raise KeyError(absent[0]) from None


class ColumnsHashTable(MutableHashTable):
    """A ``MutableHashTable`` with named columns: several values for each key, in and out as dicts of names to tensors.

    It is what ``MutableHashTable`` and ``wrap`` make of columns, and works where these do: in eager mode, tf.function,
    tf.data, Keras, SavedModels and checkpoints, which have a tensor ``-values-NAME`` for each column. TensorFlow's own
    lookup ops know a single value per key: of these ``size`` and ``remove`` serve it, and the others refuse it.

    Parameters
    ----------
    key_dtype
        tf.int32, tf.int64 or another integer dtype.
    value_dtype
        A mapping of names to columns, each a dtype, a pair ``(dtype, shape)`` or a ``gpuhash.Column``, whose initial
        value is what new rows get that are given no value of the column.
    default_value
        A mapping of names to the values of absent keys, each a scalar or of the column's shape; zeros for those left
        out, and for all where it is None.
    name, checkpoint, experimental_is_anonymous, key_shape, shared_name, device, total_buckets, deterministic
        As for ``MutableHashTable``.

    Notes
    -----
    Values of a column have its dtype and the shape ``[*batch, *shape]``; a scalar, or a tensor of the column's shape,
    is one value for all keys. Of a key's duplicates the values of one position stay in all columns.

    Raises
    ------
    TypeError, ValueError
        For columns that cannot be, as ``gpuhash.HashTable``; in calls for unknown columns and what is no mapping.
    tf.errors.InvalidArgumentError
        For dtypes and shapes that do not fit, and a shared name of a table of another kind.
    tf.errors.ResourceExhaustedError
        Where there is no memory; the table is as it was.
    """

    _has_initializer = True  # the columns say what new rows get

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Mapping[str, Any],
        default_value: Mapping[str, Any] | None = None,
        name: str = "ColumnsHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
        *,
        key_shape: Sequence[int] = (),
        shared_name: str | None = None,
        device: str | None = None,
        total_buckets: int = DEFAULT_BUCKETS,
        deterministic: bool = True,
    ) -> None:
        self._columns = named_columns.checked(value_dtype)
        self._make(
            key_dtype,
            self._columns,
            self._defaults_of(default_value),
            name,
            checkpoint,
            experimental_is_anonymous,
            key_shape=key_shape,
            shared_name=shared_name,
            device=device,
            total_buckets=total_buckets,
            deterministic=deterministic,
        )

    def _by_name(self, given: Any, what: str) -> Mapping[str, Any]:
        return named_columns.by_name(self._columns, given, what)

    def _answer(self, values: dict[str, Any]) -> Any:
        return values

    def _chosen(self, columns: Any) -> list[str]:
        return named_columns.chosen(self._columns, columns)

    def _actions(self, values: Any, op: Any) -> dict[str, str]:
        return actions_of(self._columns, values, op)

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by their names, in their order."""
        return dict(self._columns)

    @property
    def value_dtype(self) -> dict[str, Any]:
        """The dtype of each column."""
        return self._dtypes(self._columns)


def _for_column(value: Any, shape: Shape) -> Any:
    """A scalar as one value of a column, also where its rank is known only when the graph runs."""
    if not shape or (value.shape.rank is not None and value.shape.rank != 0):
        return value
    if value.shape.rank == 0:
        return tf.fill(shape, value)
    return tf.cond(tf.equal(tf.rank(value), 0), lambda: tf.fill(shape, tf.reshape(value, [])), lambda: value)


def _need_eager(call: str, instead: str) -> None:
    if not tf.executing_eagerly():
        raise NotImplementedError(f"{call} gives Python an answer, and a graph is being built: call {instead}")


def wrap(table: HashTable, default_value: Any = None, *, device: str | None = None) -> MutableHashTable:
    """A handle for a table that exists already in Python: the same memory, for TensorFlow's graphs.

    Called in eager mode; the handle then serves any tf.function.

    Parameters
    ----------
    table
        The table. It lives on, as long as either of both does.
    default_value
        The value of absent keys; by default the table's own, or else zero. With columns a mapping of names to such.
    device
        TensorFlow's name for the table's device; by default "CPU:0", or the GPU of the same number.

    Returns
    -------
    For a table with named columns a ``ColumnsHashTable``.

    Raises
    ------
    TypeError
        For a set, which has no values to look up.
    """
    if not isinstance(table, HashTable):
        raise TypeError(f"a {type(table).__name__} was given, expected a gpuhash.HashTable: a lookup needs values")
    if table._string_keys is not None:
        raise TypeError(no_strings(table.key_dtype, "these tables of TensorFlow have"))
    if not tf.executing_eagerly():
        raise RuntimeError("wrap() was called while a graph is built: call it before, and use what it returns there")
    values: dict[str, Any] = {
        "value_dtype": table._columns,
        "default_value": table.default if default_value is None else default_value,
    }
    if table._columns is None:
        dtype = tf.as_dtype(table.value_dtype)
        if default_value is not None:
            default = tf.cast(default_value, dtype)
        else:
            default = tf.constant(0 if table.default is None else table.default, dtype)
        values = {"value_dtype": dtype, "default_value": default, "value_shape": table.value_shape}
    index = table._context.device.partition(":")[2]
    name = f"gpuhash.tensorflow.wrap/{os.getpid()}/{next(_numbers)}"
    _core.register_table(name, table._core)  # for as long as it takes to find it
    wrapped: MutableHashTable = MutableHashTable.__new__(MutableHashTable, **values)
    wrapped._adopted_name = name
    wrapped._has_initializer = table._columns is not None or table.initializer is not None
    try:
        wrapped.__init__(  # type: ignore[misc]
            tf.as_dtype(table.key_dtype),
            key_shape=table.key_shape,
            device=device or (f"GPU:{index}" if index else "CPU:0"),
            deterministic=table.deterministic,
            **values,
        )
    finally:
        wait_for_ops()  # the one that looks for the name
        _core.unregister_table(name, table._core)
    return wrapped
