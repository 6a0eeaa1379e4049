"""How a call's keys reach the core table, and how its answers come back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _core
from .arguments import KeyOutOfRangeError, as_keys, wrong_dtype
from .arrays import NUMPY, Framework, Shape, default_stream, framework_like, framework_of
from .batch import Batch, Output, place
from .dtypes import encode, storage_dtype

_SHOWN_KEYS = 5


class Calls:
    """A core table, what the face has to know of it, and the steps that all calls are made of."""

    _name: str | None = None
    _value_dtype: str | None = None
    _value_shape: Shape = ()

    def _attach(self, core: _core.Table, key_shape: Shape) -> None:
        """Makes this object the face of a core table."""
        self._core = core
        self._fast = _core.FastPath(core, key_shape)
        self._context = core.context
        self._host = self._context.platform == "cpu"
        self._index = self._context.device_index
        self._key_dtype = core.key_dtype
        self._key_shape = key_shape
        bounds = np.iinfo(self._key_dtype)
        self._key_bounds = int(bounds.min), int(bounds.max)
        self._name = None
        self._changes = 0

    def _change_count(self) -> int:
        """How many calls may have changed which keys there are, for iterators to look out for."""
        return self._changes + self._fast.changes

    def _stream(self) -> int:
        return 0 if self._host else default_stream(self._index)

    def _take(self, keys: Any) -> Batch:
        """The keys of a call, checked, in the table's memory."""
        batch = Batch()
        batch.context = self._context
        framework = framework_of(keys)
        if framework.python:
            keys, batch.scalar = self._encode_keys(keys)
            framework = NUMPY
        else:
            batch.scalar = False
        batch.framework = framework
        batch.tensor = keys
        if self._host:
            stream = batch.stream = 0
            array = framework.borrow(keys, None)
        else:
            stream = batch.stream = framework.stream(keys, self._index)
            if framework.private_streams:
                framework.settle(keys)
            array = framework.borrow(keys, stream)
        if array.dtype != self._key_dtype:
            raise wrong_dtype("keys", framework, array.dtype, self._key_dtype)
        batch.shape = array.shape
        if self._key_shape:
            if batch.shape[-1:] != self._key_shape:
                raise ValueError(
                    f"the keys have shape {batch.shape}, expected one that ends with the key shape {self._key_shape}"
                )
            batch.shape = batch.shape[:-1]
        if self._host and array.platform == "cpu":
            batch.array = array
            batch.staged = batch.settle = False
            return batch
        batch.array, batch.staged = place(array, self._context, stream, "keys", keys)
        batch.settle = framework.private_streams and not batch.staged
        return batch

    def _look_for(self, keys: Any, out: Any = None) -> Batch | None:
        """The keys of a lookup, as ``_take``; None for a single key that the dtype cannot hold: no table has it."""
        try:
            return self._take(keys)
        except KeyOutOfRangeError:
            if out is None:
                return None
            raise

    def _encode_keys(self, keys: Any) -> tuple[np.ndarray[Any, Any], bool]:
        """Python numbers as an array, and whether they are a single key."""
        if type(keys) is int and not self._key_shape:
            low, high = self._key_bounds
            if low <= keys <= high:
                return np.array(keys, self._key_dtype), True
        try:
            array = encode(keys, self._key_dtype, "keys")
        except OverflowError as error:
            if np.shape(keys) == self._key_shape and (isinstance(keys, tuple) or not self._key_shape):
                raise KeyOutOfRangeError(str(error)) from None
            raise
        if not self._key_shape:
            return array, array.ndim == 0
        if array.shape == (0,):
            array = array.reshape(0, *self._key_shape)
        return array, array.ndim == 1 and isinstance(keys, tuple)

    def _finish(self, batch: Batch) -> None:
        if batch.settle:
            self._context.synchronize(batch.stream)

    def _mask(self, batch: Batch, out: Any) -> Output:
        return Output(batch, "bool", batch.shape, out)

    def _to_host(self, array: _core.Array, stream: int) -> np.ndarray[Any, Any]:
        """A copy of the array on the host, as its dtype's storage. Waits."""
        host = np.empty(array.shape, storage_dtype(array.dtype))
        self._context.copy(_core.borrow(host), array, stream)
        return host

    def _check_present(self, batch: Batch, keys: Any) -> None:
        """Waits. KeyError if any of the keys is absent."""
        missing = self._core.find(batch.array, None, None, None, True, batch.stream)
        if missing:
            raise self._absent(batch, keys, missing)

    def _absent(self, batch: Batch, keys: Any, missing: int) -> KeyError:
        if batch.scalar:
            return KeyError(keys)
        found = _core.Buffer(self._context, "bool", batch.shape, batch.stream).array()
        self._core.find(batch.array, None, found, None, False, batch.stream)
        absent = self._to_host(batch.array, batch.stream)[~self._to_host(found, batch.stream)]
        some: list[Any] = as_keys(absent[:_SHOWN_KEYS], self._key_shape)
        shown = ", ".join(map(str, some)) + (", ..." if missing > len(some) else "")
        return KeyError(f"{missing} of {math.prod(batch.shape)} keys are absent: {shown}")

    def _export(self, like: Any, keys: bool, values: bool) -> list[Any]:
        """Arrays of all keys, or values, or both. Waits."""
        framework = framework_like(like, self._host)
        arrays = [(self._key_dtype, self._key_shape)] if keys else []
        if values and self._value_dtype is not None:
            arrays.append((self._value_dtype, self._value_shape))
        stream = 0 if self._host else framework.stream(None, self._index)
        staged = framework is NUMPY and not self._host
        while True:
            size = self._core.size(stream)
            made = [
                Framework.empty(framework, None, dtype, (size, *shape), self._context, stream)
                if staged
                else framework.empty(None, dtype, (size, *shape), self._context, stream)
                for dtype, shape in arrays
            ]
            borrowed = [array for _, array in made]
            try:
                self._core.export_items(
                    borrowed[0] if keys else None, borrowed[-1] if len(arrays) > keys else None, None, stream
                )
                break
            except ValueError:
                if self._core.size(stream) == size:
                    raise
        if staged:
            results = []
            for (dtype, shape), source in zip(arrays, borrowed, strict=True):
                native, target = NUMPY.empty(None, dtype, (size, *shape), self._context, stream)
                self._context.copy(target, source, stream)
                results.append(native)
            return results
        if framework.private_streams and not self._host:
            self._context.synchronize(stream)
        return [framework.hand_over(native, dtype) for (native, _), (dtype, _) in zip(made, arrays, strict=True)]

    def _raw_items(self, *, values: bool = True) -> list[_core.Array]:
        """All keys, and values if there are any, in the table's memory."""
        return [buffer.array() for buffer in self._export("buffer", True, values)]

    def _host_items(self, *, values: bool = True) -> list[np.ndarray[Any, Any]]:
        """All keys, and values if there are any, on the host, as their dtypes' storage. Waits."""
        stream = self._stream()
        return [self._to_host(array, stream) for array in self._raw_items(values=values)]
