"""A table as a resource of TensorFlow: what makes it, its handle, and its checkpoints."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util, handle_data_util, lookup_ops
from tensorflow.python.training import saver

from gpuhash.arrays.arguments import count_of
from gpuhash.tables.named_columns import Column, Columns

from .library import ops

DEFAULT_BUCKETS = 131072
# Tables of which only their own Python object knows: TensorFlow wants a name for each, and gpuhash.open shall not
# find it.
_PRIVATE = "gpuhash.unnamed"


class TableState(tf.lookup.experimental.MutableHashTable):  # type: ignore[misc]
    """What the tables of single values and those of named columns have in common, besides their calls."""

    _adopted_name = ""  # of the table that there is already, if this is to be one
    _columns: Columns  # a single value is the column ""
    _defaults: dict[str, Any]  # of each column, as tensors

    def _make(
        self,
        key_dtype: Any,
        columns: Columns,
        defaults: dict[str, Any],
        name: str,
        checkpoint: bool,
        is_anonymous: bool,
        *,
        key_shape: Sequence[int],
        shared_name: str | None,
        device: str | None,
        total_buckets: int,
        deterministic: bool,
    ) -> None:
        if shared_name == "":
            raise ValueError("shared_name='' was given; a name has one character or more, or is None")
        if shared_name is not None and is_anonymous:
            raise ValueError(
                f"an anonymous table has no name, and shared_name={shared_name!r} was given: give one of both"
            )
        eager = tf.executing_eagerly()
        self._columns = columns
        self._defaults = defaults
        self._key_shape = tf.TensorShape(key_shape)
        self._given_name = shared_name
        self._total_buckets = count_of(total_buckets, "total_buckets")
        self._deterministic = deterministic
        self._checkpoint = checkpoint
        self._name = _saver_name(name) if checkpoint else name
        self._is_anonymous = is_anonymous
        self._shared_name = f"gpuhash_{framework_ops.uid()}" if eager else None
        # What a handle tells of named columns is nothing that an op of single values would take.
        single = columns.get("")
        self._default_value = defaults[""] if single else defaults
        self._value_shape = tf.TensorShape(single.shape if single else ())
        with tf.device(device):
            # TensorFlow's own constructor is passed over: it takes one tensor as the default.
            lookup_ops.LookupInterface.__init__(self, key_dtype, tf.as_dtype(single.dtype) if single else tf.variant)
            self._resource_handle = self._create_resource()
            if checkpoint and not eager:
                tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS, _Saveable(self, self._name))
        self._resource_device = device or ""

    def _create_resource(self) -> Any:
        if "" in self._columns:
            make_named, make_anonymous = ops.cuda_mutable_hash_table_v2, ops.cuda_anonymous_mutable_hash_table
            values = {"value_dtype": self._value_dtype, "value_shape": self._value_shape}
        else:
            make_named, make_anonymous = ops.gpuhash_columns_table, ops.gpuhash_anonymous_columns_table
            values = _column_options(self._columns)
        options = {
            "key_dtype": self._key_dtype,
            "key_shape": self._key_shape,
            "total_buckets": self._total_buckets,
            "deterministic": self._deterministic,
            "name": self._name,
            **values,
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

    def _colocated(self) -> Any:
        return framework_ops.colocate_with(self.resource_handle)

    def _attributes(self, names: Iterable[str]) -> dict[str, Any]:
        """What an op is told of the columns that it means, besides dtypes, and of the keys."""
        return {"key_shape": self._key_shape, "names": list(names), "shapes": self._shapes(names)}

    def _shapes(self, names: Iterable[str]) -> list[Any]:
        return [self._columns[name].shape for name in names]

    def _dtypes(self, names: Iterable[str]) -> dict[str, tf.DType]:
        return {name: tf.as_dtype(self._columns[name].dtype) for name in names}

    def _export(self, names: Sequence[str], name: str | None = None) -> tuple[Any, list[Any]]:
        """All keys, and their values in some columns."""
        with self._colocated():
            return tuple(
                ops.gpuhash_export(
                    self.resource_handle,
                    Tkeys=self._key_dtype,
                    dtypes=list(self._dtypes(names).values()),
                    name=name,
                    **self._attributes(names),
                )
            )

    def _serialize_to_tensors(self) -> dict[str, Any]:
        keys, values = self._export(list(self._columns))
        return {"-keys": keys, **dict(zip(map(_in_checkpoints, self._columns), values, strict=True))}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> Any:
        """In the place of all keys that are there."""
        keys = restored_tensors["-keys"]
        values = [restored_tensors[_in_checkpoints(name)] for name in self._columns]
        with self._colocated():
            # What may fail comes first: the old keys are gone only when the new ones have room.
            reserved = ops.gpuhash_reserve(self.resource_handle, tf.shape(keys, tf.int64)[0])
            with tf.control_dependencies([reserved]):
                cleared = ops.gpuhash_clear(self.resource_handle)
            with tf.control_dependencies([cleared]):
                actions = ["assign"] * len(values)
                columns = self._attributes(self._columns)
                inserted = ops.gpuhash_change(self.resource_handle, keys, values, actions=actions, **columns).inserted
        return None if tf.executing_eagerly() else inserted.op


class _Saveable(saver.BaseSaverBuilder.SaveableObject):  # type: ignore[misc]
    """Keys and columns in checkpoints of ``tf.compat.v1.train.Saver``."""

    def __init__(self, table: TableState, name: str) -> None:
        tensors = table._serialize_to_tensors()
        self._keys = list(tensors)
        specs = [saver.BaseSaverBuilder.SaveSpec(tensor, "", name + key) for key, tensor in tensors.items()]
        super().__init__(table, specs, name)

    def restore(self, restored_tensors: Any, _: Any) -> Any:
        return self.op._restore_from_tensors(dict(zip(self._keys, restored_tensors, strict=True)))


def _in_checkpoints(column: str) -> str:
    """What the name of a column's tensor ends in. That of a single value is TensorFlow's own."""
    return f"-values-{column}" if column else "-values"


def _saver_name(name: str) -> str:
    """A name that no table in the graph has in checkpoints of ``tf.compat.v1.train.Saver``, which of two tables of one
    name would keep one. The same in a graph that is built alike.
    """
    if tf.executing_eagerly():
        return name
    taken = {each.name for each in tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SAVEABLE_OBJECTS)}
    numbered = (f"{name}_{number}" for number in itertools.count(1))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def _column_options(columns: Columns) -> dict[str, Any]:
    """What the ops that make a table are told of its columns."""
    initials, bits = zip(*map(_initial, columns.values()), strict=True)
    return {
        "names": list(columns),
        "dtypes": [tf.as_dtype(column.dtype) for column in columns.values()],
        "shapes": [column.shape for column in columns.values()],
        "initials": list(initials),
        "initial_bits": [number for each in bits for number in each],
    }


def _initial(column: Column) -> tuple[str, tuple[int, ...]]:
    """What new rows of a column are filled with, as the ops that make tables are told it; see native/ops.cc."""
    kind, first, second, seed, element = column.core_initial() or ("", 0.0, 0.0, 0, b"")
    return kind, struct.unpack("=5q", struct.pack("=ddQ16s", first, second, seed, element))


def _tell_shapes(
    handle: Any, key_shape: tf.TensorShape, key_dtype: tf.DType, value_shape: tf.TensorShape, value_dtype: tf.DType
) -> None:
    """Gives an eager handle what its op knows in a graph, so that TensorFlow's lookups have static shapes in a
    tf.function, and keys of another dtype are refused there.
    """
    data = handle_data_util.create_handle_data(key_shape, key_dtype)
    data.shape_and_type.extend(handle_data_util.create_handle_data(value_shape, value_dtype).shape_and_type)
    handle_data_util.set_handle_data(handle, data)
