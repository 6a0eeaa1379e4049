"""ColumnsHashTable: a table with named columns in TensorFlow, whose values are dicts of names to tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import lookup_ops
from tensorflow.python.training import saver

from gpuhash import named_columns
from gpuhash.arrays import Shape
from gpuhash.call import actions_of
from gpuhash.named_columns import Column, Columns, by_name, chosen

from .library import ops
from .mutable_hash_table import DEFAULT_BUCKETS, MutableHashTable, saver_name


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
        self._columns: Columns = named_columns.checked(value_dtype)
        self._default_value = self._defaults(default_value)
        self._set_options(shared_name, experimental_is_anonymous, key_shape, total_buckets, deterministic)
        self._checkpoint = checkpoint
        self._name = name = saver_name(name) if checkpoint else name
        self._is_anonymous = experimental_is_anonymous
        # TensorFlow's own class is passed over: it takes one tensor as the default.
        eager = tf.executing_eagerly()
        self._shared_name = f"gpuhash_columns_{framework_ops.uid()}" if eager else None
        with tf.device(device):
            # What a handle says of the values: nothing that an op of single values would take.
            lookup_ops.LookupInterface.__init__(self, key_dtype, tf.variant)
            self._value_shape = tf.TensorShape(())
            self._resource_handle = self._create_resource()
            if checkpoint and not eager:
                tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, _Saveable(self, name))
        self._resource_device = device or ""

    def _make_ops(self) -> tuple[Any, Any]:
        return ops.gpuhash_columns_table, ops.gpuhash_anonymous_columns_table

    def _value_options(self) -> dict[str, Any]:
        initials, bits = zip(*map(_initial, self._columns.values()), strict=True)
        return {
            **self._named(self._columns),
            "dtypes": [tf.as_dtype(column.dtype) for column in self._columns.values()],
            "initials": list(initials),
            "initial_bits": [number for each in bits for number in each],
        }

    def _named(self, names: Any, prefix: str = "") -> dict[str, Any]:
        """What ops are told of columns, besides dtypes."""
        return {f"{prefix}names": list(names), f"{prefix}shapes": [self._columns[name].shape for name in names]}

    def _column_values(self, named: Mapping[str, Any]) -> list[Any]:
        """One tensor for each column that is given."""
        values = []
        for name, given in named.items():
            column = self._columns[name]
            value = tf.convert_to_tensor(given, dtype=tf.as_dtype(column.dtype), name="values")
            values.append(_for_column(value, column.shape))
        return values

    def _defaults(self, given: Any) -> dict[str, Any]:
        """The value of absent keys in every column: of those that are not given zeros."""
        named = {name: tf.zeros((), column.dtype) for name, column in self._columns.items()}
        if given is not None:
            named.update(by_name(self._columns, given, "defaults"))
        return dict(zip(named, self._column_values(named), strict=True))

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by their names, in their order."""
        return dict(self._columns)

    @property
    def value_dtype(self) -> dict[str, Any]:
        """The dtype of each column."""
        return {name: tf.as_dtype(column.dtype) for name, column in self._columns.items()}

    @property
    def value_shape(self) -> dict[str, tf.TensorShape]:
        """The shape of one value of each column."""
        return {name: tf.TensorShape(column.shape) for name, column in self._columns.items()}

    def lookup(
        self, keys: Any, dynamic_default_values: Any = None, name: str | None = None, *, columns: Any = None
    ) -> dict[str, Any]:
        """The values of keys, by name ``[*batch, *shape]``; absent keys have the defaults.

        Differentiable with respect to defaults. To train rows, watch the values found (``tape.watch``), and put the
        steps into the table by ``insert_or_apply``.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        dynamic_default_values
            Other defaults: a mapping of names to one value, of the column's shape, or one for each key, ``[*batch,
            *shape]``. Columns that it leaves out are zeros.
        name
            The name of the op.
        columns
            A list of the names of those that are wanted; None for all.
        """
        return self.find(keys, dynamic_default_values, name, columns=columns)[0]

    def find(
        self, keys: Any, dynamic_default_values: Any = None, name: str | None = None, *, columns: Any = None
    ) -> tuple[dict[str, Any], Any]:
        """As ``lookup``, and which of the keys were found: bool ``[*batch]``."""
        wanted = chosen(self._columns, columns)
        given = self._default_value if dynamic_default_values is None else self._defaults(dynamic_default_values)
        with self._colocated():
            found, values = ops.gpuhash_find_columns(
                self.resource_handle,
                self._keys(keys),
                [given[each] for each in wanted],
                key_shape=self._key_shape,
                name=name,
                **self._named(wanted),
            )
        return dict(zip(wanted, values, strict=True)), found

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Any:
        """Assigns values to keys, new or not.

        ``values``: a mapping of names to tensors. Columns that it leaves out stay as they are, and have their initial
        values in new rows.

        Returns
        -------
        None in eager mode, the operation in a graph.
        """
        inserted, _ = self._change(keys, values, "replace", name)
        return None if tf.executing_eagerly() else inserted.op

    def find_or_insert(self, keys: Any, values: Any = None, name: str | None = None) -> tuple[Any, Any]:
        """The numbers of the keys' rows, after those that are not there have been inserted.

        ``values`` as for ``lookup_or_insert``.

        Returns
        -------
        rows, is_new
            int64 ``[*batch]``, as of ``rows``; and bool ``[*batch]``: was the key new; true for exactly one of a new
            key's duplicates.
        """
        named = {} if values is None else by_name(self._columns, values, "values")
        given = self._column_values(named)
        with self._colocated():
            return tuple(
                ops.gpuhash_find_or_insert_columns(
                    self.resource_handle,
                    self._keys(keys),
                    given,
                    key_shape=self._key_shape,
                    name=name,
                    **self._named(named),
                )
            )

    def lookup_or_insert(self, keys: Any, values: Any = None, name: str | None = None) -> tuple[dict[str, Any], Any]:
        """The values of the keys that are there; the others are inserted with the values given.

        Parameters
        ----------
        keys
            ``[*batch, *key_shape]``.
        values
            A mapping of names to tensors. Columns that it leaves out, all of them where it is None, have their initial
            values in new rows.
        name
            The name of the op.

        Returns
        -------
        values, inserted
            Of all columns ``[*batch, *shape]``, by name; and bool ``[*batch]``: was the key new; true for exactly one
            of a new key's duplicates.
        """
        inserted, read = self._change(keys, values, "keep", name, read=list(self._columns))
        return dict(zip(self._columns, read, strict=True)), inserted

    def setdefault(self, keys: Any, default: Any = None, name: str | None = None) -> dict[str, Any]:
        """The first of what ``lookup_or_insert`` gives."""
        return self.lookup_or_insert(keys, default, name)[0]

    def insert_or_apply(self, keys: Any, values: Any, op: Any = "add", name: str | None = None) -> Any:
        """Inserts the keys that are not there, and combines the columns given of those that are with the new values.

        All of a key's duplicates count. ``op``: "add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor" (with
        hyphens as well), "keep" or "replace"; or a mapping of the columns that are given to such.

        Returns
        -------
        bool ``[*batch]``: was the key new; true for exactly one of a new key's duplicates.

        Raises
        ------
        TypeError, ValueError
            For an operation that a column's dtype does not have, or that is not known.
        """
        return self._change(keys, values, op, name)[0]

    def _change(
        self, keys: Any, values: Any, op: Any, name: str | None, read: Sequence[str] = ()
    ) -> tuple[Any, list[Any]]:
        """The mask of new keys, and the values of the columns to read."""
        actions = {} if values is None and read else actions_of(self._columns, values, op)
        given = self._column_values({each: values[each] for each in actions})
        with self._colocated():
            inserted, read_values = ops.gpuhash_change_columns(
                self.resource_handle,
                self._keys(keys),
                given,
                key_shape=self._key_shape,
                actions=list(actions.values()),
                read_dtypes=[tf.as_dtype(self._columns[each].dtype) for each in read],
                name=name,
                **self._named(actions),
                **self._named(read, "read_"),
            )
        return inserted, read_values

    def export(self, name: str | None = None) -> tuple[Any, dict[str, Any]]:
        """All keys ``[n, *key_shape]``, and by name the values of all columns ``[n, *shape]``, in one order. Waits."""
        with self._colocated():
            keys, values = ops.gpuhash_export_columns(
                self.resource_handle,
                Tkeys=self._key_dtype,
                dtypes=list(self.value_dtype.values()),
                key_shape=self._key_shape,
                name=name,
                **self._named(self._columns),
            )
        return keys, dict(zip(self._columns, values, strict=True))

    def _serialize_to_tensors(self) -> dict[str, Any]:
        keys, values = self.export()
        return {"-keys": keys, **{f"-values-{name}": value for name, value in values.items()}}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> Any:
        with self._colocated():
            return ops.gpuhash_import_columns(
                self.resource_handle,
                restored_tensors["-keys"],
                [restored_tensors[f"-values-{name}"] for name in self._columns],
                key_shape=self._key_shape,
                **self._named(self._columns),
            )

    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        """A copy on the CPU, for checkpoints that are written beside the work."""
        if self not in object_map:
            object_map[self] = ColumnsHashTable(
                self._key_dtype,
                self._columns,
                self._default_value,
                self._name,
                self._checkpoint,
                self._is_anonymous,
                key_shape=self._key_shape,
                device="CPU:0",
                deterministic=self._deterministic,
            )
        object_map[self]._restore_from_tensors(self._serialize_to_tensors())


def _for_column(value: Any, shape: Shape) -> Any:
    """A scalar as one value of a column, also where its rank is known only when the graph runs."""
    if not shape or (value.shape.rank is not None and value.shape.rank != 0):
        return value
    if value.shape.rank == 0:
        return tf.fill(shape, value)
    return tf.cond(tf.equal(tf.rank(value), 0), lambda: tf.fill(shape, tf.reshape(value, [])), lambda: value)


def _initial(column: Column) -> tuple[str, tuple[int, ...]]:
    """What new rows of a column are filled with, as the ops that make tables are told it; see column_ops.cc."""
    kind, first, second, seed, element = column.core_initial() or ("", 0.0, 0.0, 0, b"")
    return kind, struct.unpack("=5q", struct.pack("=ddQ16s", first, second, seed, element))


class _Saveable(saver.BaseSaverBuilder.SaveableObject):  # type: ignore[misc]
    """Keys and columns in checkpoints of ``tf.compat.v1.train.Saver``."""

    def __init__(self, table: ColumnsHashTable, name: str) -> None:
        tensors = table._serialize_to_tensors()
        self._keys = list(tensors)
        specs = [saver.BaseSaverBuilder.SaveSpec(tensor, "", name + key) for key, tensor in tensors.items()]
        super().__init__(table, specs, name)

    def restore(self, restored_tensors: Any, _: Any) -> Any:
        return self.op._restore_from_tensors(dict(zip(self._keys, restored_tensors, strict=True)))
