"""MutableHashTable: TensorFlow's mutable table, made of gpuhash's."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util, handle_data_util

from gpuhash import HashTable, _core
from gpuhash.arguments import action_of, count_of

from .eager import wait_for_ops
from .library import ops

_numbers = itertools.count()
# Tables of which only their own Python object knows: TensorFlow wants a name for each, and gpuhash.open shall not
# find it.
_PRIVATE = "gpuhash.unnamed"
DEFAULT_BUCKETS = 131072


class MutableHashTable(tf.lookup.experimental.MutableHashTable):  # type: ignore[misc]
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
        ``()``, or ``(k,)`` for keys that are vectors of k integers, of up to 16 bytes in all.
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
    ``erase`` and, while there is room for all keys as if they were new, insertions do not wait for the device.

    Raises
    ------
    tf.errors.InvalidArgumentError, TypeError, ValueError
        For dtypes and shapes that do not fit, and a shared name of a table of another kind.
    tf.errors.ResourceExhaustedError
        Where there is no memory; the table is as it was.
    """

    _adopted_name = ""  # of the table that there is already, if this is to be one
    _has_initializer = False  # that table

    def __new__(cls, *args: Any, **options: Any) -> Any:
        value_dtype = args[1] if len(args) > 1 else options.get("value_dtype")
        if cls is MutableHashTable and isinstance(value_dtype, Mapping):
            from .columns_hash_table import ColumnsHashTable  # which is one of these

            return super().__new__(ColumnsHashTable)
        return super().__new__(cls)

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
        self._set_options(shared_name, experimental_is_anonymous, key_shape, total_buckets, deterministic)
        if checkpoint:
            name = saver_name(name)
        with tf.device(device):
            super().__init__(key_dtype, value_dtype, default, name, checkpoint, experimental_is_anonymous)
        self._resource_device = device or ""

    def _set_options(
        self, shared_name: str | None, is_anonymous: bool, key_shape: Any, total_buckets: int, deterministic: bool
    ) -> None:
        if shared_name == "":
            raise ValueError("shared_name='' was given; a name has one character or more, or is None")
        if shared_name is not None and is_anonymous:
            raise ValueError(
                f"an anonymous table has no name, and shared_name={shared_name!r} was given: give one of both"
            )
        self._key_shape = tf.TensorShape(key_shape)
        self._given_name = shared_name
        self._total_buckets = count_of(total_buckets, "total_buckets")
        self._deterministic = deterministic

    def _create_resource(self) -> Any:
        make_named, make_anonymous = self._make_ops()
        options = {
            "key_dtype": self._key_dtype,
            "key_shape": self._key_shape,
            "total_buckets": self._total_buckets,
            "deterministic": self._deterministic,
            "name": self._name,
            **self._value_options(),
        }
        if self._given_name is not None:
            handle = make_named(shared_name=self._given_name, **options)
        elif self._is_anonymous or tf.executing_eagerly():
            handle = make_anonymous(adopted_name=self._adopted_name, **options)
        elif self._shared_name is not None:  # of a SavedModel, whose graph makes the table
            handle = make_named(container=_PRIVATE, shared_name=self._shared_name, **options)
        else:
            handle = make_named(use_node_name_sharing=self._checkpoint, **options)
        if tf.executing_eagerly():
            self._table_name = None
            _tell_shapes(handle, self._key_shape, self._key_dtype, self._value_shape, self._value_dtype)
        else:
            self._table_name = handle.op.name.split("/")[-1]
        return handle

    def _make_ops(self) -> tuple[Any, Any]:
        return ops.cuda_mutable_hash_table_v2, ops.cuda_anonymous_mutable_hash_table

    def _value_options(self) -> dict[str, Any]:
        """The attributes of what makes a table, for its values."""
        return {"value_dtype": self._value_dtype, "value_shape": self._value_shape}

    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        """A copy on the CPU, for checkpoints that are written beside the work."""
        if self not in object_map:
            object_map[self] = MutableHashTable(
                self._key_dtype,
                self._value_dtype,
                self._default_value,
                self._name,
                self._checkpoint,
                self._is_anonymous,
                key_shape=self._key_shape,
                device="CPU:0",
                deterministic=self._deterministic,
            )
        object_map[self]._restore_from_tensors(self._serialize_to_tensors())

    def _keys(self, keys: Any) -> Any:
        return tf.convert_to_tensor(keys, dtype=self._key_dtype, name="keys")

    def _values(self, values: Any) -> Any:
        return tf.convert_to_tensor(values, dtype=self._value_dtype, name="values")

    def _for_each_key(self, keys: Any, values: Any) -> Any:
        """Values as a tensor, one for each key: one for all is repeated, where its rank says that it is one."""
        given = self._values(values)
        dims, key_dims, value_dims = keys.shape.rank, self._key_shape.rank, self._value_shape.rank
        if dims is None or dims == key_dims or given.shape.rank not in (0, value_dims):
            return given
        return tf.broadcast_to(given, tf.concat([tf.shape(keys)[: dims - key_dims], self._value_shape], 0))

    def _colocated(self) -> Any:
        return framework_ops.colocate_with(self.resource_handle)

    @property
    def resource_handle(self) -> Any:
        """The handle of the table, for ops and for tf.GradientTape.watch().

        Raises
        ------
        NotImplementedError
            In functions that XLA compiles.
        """
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise NotImplementedError(
                "XLA cannot compile the ops of a gpuhash table: take jit_compile=True off the tf.function, or look the "
                "keys up outside of it and hand the values in; with Keras, set self.supports_jit = False in the layer, "
                "or call compile(jit_compile=False)"
            )
        return super().resource_handle

    @property
    def value_shape(self) -> tf.TensorShape:
        """The shape of one value."""
        return self._value_shape

    @property
    def key_shape(self) -> tf.TensorShape:
        """The shape of one key: ``()``, or ``(k,)`` for vectors."""
        return self._key_shape

    def lookup(self, keys: Any, dynamic_default_values: Any = None, name: str | None = None) -> Any:
        """The values of keys, ``[*batch, *value_shape]``; absent keys have the default.

        Differentiable: the gradient with respect to ``resource_handle`` is a tf.IndexedSlices whose indices are keys.
        TensorFlow takes none through loops of a graph (``tf.while_loop``, a ``for`` over tensors, ``tf.map_fn``), where
        lookups count for nothing in it, nor through a ``tf.cond`` of which one branch alone looks up: there watch the
        values found, or look up before. Gradients of defaults are taken everywhere.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        dynamic_default_values
            Another default: one, of shape ``value_shape``, or one for each key, ``[*batch, *value_shape]``.
        name
            The name of the op.
        """
        return self.find(keys, dynamic_default_values, name)[0]

    def find(self, keys: Any, dynamic_default_values: Any = None, name: str | None = None) -> tuple[Any, Any]:
        """As ``lookup``, and which of the keys were found: bool ``[*batch]``."""
        default = self._default_value if dynamic_default_values is None else self._values(dynamic_default_values)
        with self._colocated():
            values, found = ops.gpuhash_lookup(self.resource_handle, self._keys(keys), default, name=name)
        return values, found

    def contains(self, keys: Any, name: str | None = None) -> Any:
        """Which of the keys are in the table: bool ``[*batch]``."""
        with self._colocated():
            return ops.gpuhash_contains(self.resource_handle, self._keys(keys), name=name)

    def get(self, keys: Any, default: Any = None) -> Any:
        """As ``lookup``, by the name that it has for other tables."""
        return self.lookup(keys, default)

    def insert_or_assign(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Assigns values to keys, new or not, as ``insert`` does, and tells which were new.

        Returns
        -------
        bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates.
        """
        return self.insert_or_apply(keys, values, "replace", name)

    def find_or_insert(self, keys: Any, values: Any = None, name: str | None = None) -> tuple[Any, Any]:
        """The numbers of the keys' rows, after those that are not there have been inserted.

        Parameters
        ----------
        keys, values
            As for ``insert_or_apply``. Without values new rows get what the initializer of the table that ``wrap`` was
            given says, or else the default.
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
        with self._colocated():
            keys = self._keys(keys)
            if values is None and not self._has_initializer:
                values = self._default_value
            given = [] if values is None else [self._for_each_key(keys, values)]
            return tuple(ops.gpuhash_find_or_insert(self.resource_handle, keys, given, name=name))

    def setdefault(self, keys: Any, default: Any = None, name: str | None = None) -> Any:
        """Inserts ``default`` for the keys that are absent, and gives the values of all, as ``lookup_or_insert``.

        None takes what ``find_or_insert`` takes without values.
        """
        if default is None and self._has_initializer:
            with tf.control_dependencies(self.find_or_insert(keys)):
                return self.lookup(keys, name=name)
        return self.lookup_or_insert(keys, self._default_value if default is None else default, name)[0]

    def lookup_or_insert(self, keys: Any, values: Any, name: str | None = None) -> tuple[Any, Any]:
        """The values of the keys that are there; the others are inserted with the values given.

        Parameters
        ----------
        keys, values
            ``[*batch, *key_shape]`` and ``[*batch, *value_shape]``.
        name
            The name of the op.

        Returns
        -------
        values, inserted
            ``[*batch, *value_shape]``, and bool ``[*batch]``: was the key new; true for exactly one of a new key's
            duplicates.
        """
        with self._colocated():
            keys = self._keys(keys)
            given = self._for_each_key(keys, values)
            return tuple(ops.gpuhash_lookup_or_insert(self.resource_handle, keys, given, name=name))

    def insert_or_apply(self, keys: Any, values: Any, op: str = "add", name: str | None = None) -> Any:
        """Inserts the keys that are not there, and combines the values of those that are with the new ones.

        Values are ``[*batch, *value_shape]``, or one for all keys: a scalar, or of shape ``value_shape``. All of a
        key's duplicates count. ``op``: "add", "multiply", "min", "max", "bit_and", "bit_or" or "bit_xor" (with hyphens
        as well), "keep" (the old value) or "replace" (by the new one).

        Returns
        -------
        bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates.

        Raises
        ------
        TypeError, ValueError
            For an operation that the value dtype does not have, or that is not known.
        """
        dtype = self._value_dtype.name
        action = action_of(op, dtype, f"the table has values of {dtype}")
        with self._colocated():
            keys = self._keys(keys)
            given = self._for_each_key(keys, values)
            return ops.gpuhash_insert_or_apply(self.resource_handle, keys, given, op=action, name=name)

    def erase(self, keys: Any, name: str | None = None) -> Any:
        """Erases keys, as ``remove`` does, and tells which were there.

        Returns
        -------
        bool ``[*batch]``: true for exactly one of an erased key's duplicates.
        """
        with self._colocated():
            return ops.gpuhash_erase(self.resource_handle, self._keys(keys), name=name)

    def rows(self, keys: Any, name: str | None = None) -> Any:
        """The numbers of the keys' rows in the row storage of the table, int64 ``[*batch]``; -1 for absent keys.

        Raises
        ------
        tf.errors.InvalidArgumentError
            Where values are scalars of up to 8 bytes, which have no rows.
        """
        with self._colocated():
            return ops.gpuhash_rows(self.resource_handle, self._keys(keys), name=name)


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
    wrapped._has_initializer = table.initializer is not None
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


def saver_name(name: str) -> str:
    """A name that no table in the graph has in checkpoints of ``tf.compat.v1.train.Saver``, which of two tables of one
    name would keep one. The same in a graph that is built alike.
    """
    if tf.executing_eagerly():
        return name
    taken = {each.name for each in tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)}
    numbered = (f"{name}_{number}" for number in itertools.count(1))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def _tell_shapes(
    handle: Any, key_shape: tf.TensorShape, key_dtype: tf.DType, value_shape: tf.TensorShape, value_dtype: tf.DType
) -> None:
    """Gives an eager handle what its op knows in a graph, so that lookups have static shapes in a tf.function."""
    data = handle_data_util.create_handle_data(key_shape, key_dtype)
    data.shape_and_type.extend(handle_data_util.create_handle_data(value_shape, value_dtype).shape_and_type)
    handle_data_util.set_handle_data(handle, data)
