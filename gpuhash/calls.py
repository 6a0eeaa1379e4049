"""How a call's keys reach the core table, and how its answers come back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _core
from .arguments import as_keys
from .arrays import NUMPY, Framework, Shape, default_stream, framework_like
from .batch import Batch, Output
from .dtypes import storage_dtype

_SHOWN_KEYS = 5


class Calls:
    """A core table, what the face has to know of it, and the steps that all calls are made of."""

    _value_dtype: str | None

    def _attach(self, core: _core.Table, key_shape: Shape, name: str | None = None) -> None:
        """Makes this object the face of a core table. All attributes are set here."""
        self._core = core
        self._fast = _core.FastPath(core, key_shape)
        self._context = core.context
        self._host = self._context.platform == "cpu"
        self._index = self._context.device_index
        self._key_dtype = core.key_dtype
        self._key_shape = key_shape
        self._value_dtype = core.value_dtype
        self._value_shape = core.value_shape
        self._name = name
        self._changes = 0

    def _change_count(self) -> int:
        """How many calls may have changed which keys there are, for iterators to look out for."""
        return self._changes + self._fast.changes

    def _stream(self) -> int:
        return 0 if self._host else default_stream(self._index)

    def _take(self, keys: Any) -> Batch:
        """The keys of a call, checked, in the table's memory."""
        return Batch.of_keys(keys, self._key_dtype, self._key_shape, self._core, self._context, self._host)

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
