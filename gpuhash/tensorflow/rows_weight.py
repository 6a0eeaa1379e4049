"""The Keras weight of a HashEmbedding: without elements in the eyes of optimizers, and all rows where it is copied."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

__all__ = ["RowsWeight"]

_MAGIC = b"gpuhash\x01"
_HEAD = struct.Struct("<8sQ")


class Holder(Protocol):
    """Whose rows they are."""

    name: str

    def rows_as_arrays(self) -> dict[str, np.ndarray]: ...

    def take_rows(self, state: Mapping[str, Any]) -> None: ...


class _AnyLength(tf.TensorShape):  # type: ignore[misc]
    """``(0,)``, and equal to every shape of one dimension: Keras compares shapes before it assigns what was copied."""

    def __eq__(self, other: object) -> bool:
        try:
            return len(tuple(other)) == 1  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tf.TensorShape.__hash__


class RowsWeight(keras.Variable):  # type: ignore[misc]
    """A trainable variable of shape ``(0,)``, whose value as an array are the bytes of all rows, uint8 ``[n]``.

    Keras copies weights as arrays where it knows nothing of a layer's files: ``get_weights`` and ``set_weights``, which
    ``EarlyStopping`` uses, and HDF5 files of whole models. So these keep the rows. What trains and reads the variable
    as a tensor gets no elements.
    """

    def __init__(self, holder: Holder) -> None:
        super().__init__("zeros", shape=(0,), dtype="float32", autocast=False, name="rows")
        self._holder = holder

    @property
    def shape(self) -> Any:
        return _AnyLength([0])

    @property
    def value(self) -> Any:
        """The tensor without elements.

        Raises
        ------
        NotImplementedError
            To ``get_state_tree`` of a model: a tree of these would lack the rows.
        """
        if sys._getframe(1).f_code.co_name == "_create_nested_dict":
            raise NotImplementedError(
                f"the rows of the layer {self._holder.name!r} are no tensor, which get_state_tree() was to give: take "
                "get_state_tree(value_format='numpy_array'), save_weights() or tf.train.Checkpoint"
            )
        return super().value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _packed(self._holder.rows_as_arrays()).astype(dtype or np.uint8, copy=False)

    def numpy(self) -> np.ndarray:
        """The bytes of all rows."""
        return np.asarray(self)

    def assign(self, value: Any) -> Any:
        """A tensor without elements, as optimizers assign it; or the bytes of rows, which come in place of all rows.

        Raises
        ------
        ValueError
            For arrays that are no rows, or those of another layer. All is as it was.
        """
        if isinstance(value, RowsWeight):
            if not tf.executing_eagerly():
                raise NotImplementedError(f"the rows of {self._holder.name!r} cannot be copied in a graph")
            value = value.numpy()
        if tf.is_tensor(value) and value.dtype != tf.uint8:
            return super().assign(value)
        try:
            state = _unpacked(np.asarray(value))
        except ValueError as error:
            raise ValueError(
                f"the weight of the layer {self._holder.name!r} was to be set to what holds no rows: {error}. Arrays "
                "and HDF5 files from before gpuhash kept rows in them have none; files of save_weights() do"
            ) from None
        self._holder.take_rows(state)
        return super().value


def _packed(state: Mapping[str, np.ndarray]) -> np.ndarray:
    """All arrays of a state in one, uint8 ``[n]``."""
    arrays = {name: np.asarray(array, order="C") for name, array in state.items()}
    described = json.dumps({name: [array.dtype.name, array.shape] for name, array in arrays.items()}).encode()
    parts = [np.frombuffer(_HEAD.pack(_MAGIC, len(described)) + described, np.uint8)]
    return np.concatenate([*parts, *(array.reshape(-1).view(np.uint8) for array in arrays.values())])


def _unpacked(given: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a state. ValueError for what is none."""
    if given.dtype != np.uint8 or given.ndim != 1:
        raise ValueError(f"it is {given.dtype} of shape {given.shape}, expected uint8 [n]")
    raw = given.tobytes()
    if len(raw) < _HEAD.size or not raw.startswith(_MAGIC):
        raise ValueError("it does not begin as rows of gpuhash do")
    end = _HEAD.size + _HEAD.unpack_from(raw)[1]
    state = {}
    try:
        described = json.loads(raw[_HEAD.size : end])
        for name, (dtype_name, shape) in described.items():
            dtype = np.dtype(tf.as_dtype(dtype_name).as_numpy_dtype)
            count = int(np.prod(shape))
            state[name] = np.frombuffer(raw, dtype, count, end).reshape(shape).copy()
            end += count * dtype.itemsize
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"it is cut off or damaged ({error})") from None
    if end != len(raw):
        raise ValueError(f"it has {len(raw)} bytes, expected {end}")
    return state
