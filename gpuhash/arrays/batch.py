"""One call's arrays: its keys and values in the table's memory, and the outputs for its caller."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from gpuhash import _core

from .arguments import batch_shape, encode_keys, encode_values, wrong_device, wrong_dtype, wrong_value_shape
from .dtypes import ITEMSIZES, encode_held, infer_numbers, storage_dtype, to_python
from .export import to_host
from .frameworks import NUMPY, Framework, NumPyFramework, Shape, framework_of, gpu_of
from .memory import make_context

Views = dict[int, _core.Table]

#: A column that is read: its number (0 in a table without named ones), where its values go, and the fallback of absent
#: keys, one or one for each.
Read = tuple[int, _core.Array, _core.Array | None]
#: A column that is written: its number, values, whether these are one for all keys, and what becomes of the old ones.
Write = tuple[int, _core.Array, bool, str]
#: What the core is asked for one batch.
Lookup = tuple[_core.Table, _core.Array, Sequence[Read], _core.Array | None, _core.Array | None, int]
Change = tuple[_core.Table, _core.Array, Sequence[Write], Sequence[Read], _core.Array | None, _core.Array | None, int]
Erasure = tuple[_core.Table, _core.Array, Sequence[Read], _core.Array | None, int]


class Batch:
    """The keys of one call, in the memory where the call works, and what its outputs have to be."""

    __slots__ = (
        "array",
        "context",
        "core",
        "framework",
        "key_shape",
        "must_wait",
        "outputs",
        "scalar",
        "shape",
        "staged",
        "stream",
        "tensor",
    )

    # No __init__ with a dozen parameters: it would take a tenth of a small call's time.
    array: _core.Array  # [*shape, *key_shape], on the context's device
    key_shape: Shape
    shape: Shape
    framework: Framework
    tensor: Any  # the keys as they were given; an array where they were Python numbers
    context: _core.Context
    stream: int
    core: _core.Table  # the table, as seen from the context's device; not set where the call is not one of a table
    scalar: bool  # a Python number (or a tuple for a vector key): so are the answers
    staged: bool  # the keys are on the host and the table is not: so are the answers
    must_wait: bool  # the host waits for the work before it gives the arrays back
    outputs: tuple[_core.Array, ...]  # those that are the caller's own

    @classmethod
    def of_keys(
        cls,
        keys: Any,
        key_dtype: str,
        key_shape: Shape,
        core: _core.Table,
        context: _core.Context,
        views: Views | None,
        what: str = "keys",
    ) -> Self:
        """The keys of a table's call, in its memory. ``views``: of a table on several GPUs, which takes them on each.

        Raises
        ------
        TypeError, ValueError
            For keys of another dtype, or of shapes or devices that do not fit.
        """
        batch = cls()
        framework = framework_of(keys)
        if framework.python:
            keys, batch.scalar = encode_keys(keys, key_dtype, key_shape, what)
            framework = NUMPY
        else:
            batch.scalar = False
        host = context.platform == "cpu"
        if views is not None and not isinstance(framework, NumPyFramework):
            index = gpu_of(keys, framework)
            if index is not None and index != context.device_index and index in views:
                core, context = views[index], views[index].context
        if host:
            stream = 0
            array = framework.borrow(keys, None)
        else:
            stream = framework.stream(keys, context.device_index)
            if framework.private_streams:
                framework.wait_until_ready(keys)
            array = framework.borrow(keys, stream)
        if array.dtype != key_dtype:
            raise wrong_dtype(what, framework, array.dtype, key_dtype)
        shape = batch_shape(array.shape, key_shape)
        if host and array.platform == "cpu":
            batch.staged = batch.must_wait = False
        else:
            array, batch.staged = to_device(array, context, stream, what)
            batch.must_wait = framework.private_streams and not batch.staged
        batch.array, batch.key_shape, batch.shape = array, key_shape, shape
        batch.framework, batch.tensor = framework, keys
        batch.context, batch.stream, batch.core = context, stream, core
        batch.outputs = ()
        return batch

    @classmethod
    def of_key_columns(
        cls, parts: Sequence[Any], dtypes: Sequence[tuple[str, str]], core: _core.Table, views: Views | None
    ) -> Self:
        """As ``of_keys``, of keys that are given as a column each: rows of bytes, in which they lie side by side.

        Raises
        ------
        TypeError, ValueError
            Likewise, and ValueError for columns of different shapes, or on different devices.
        """
        columns = [
            cls.of_keys(part, dtype, (), core, core.context, views, f"keys of {name!r}")
            for part, (name, dtype) in zip(parts, dtypes, strict=True)
        ]
        batch = columns[0]
        for column, (name, _) in zip(columns, dtypes, strict=True):
            if column.shape != batch.shape:
                raise ValueError(
                    f"the keys of {name!r} have shape {column.shape} and those of {dtypes[0][0]!r} {batch.shape}: give "
                    "one number of each for each key"
                )
            if column.staged != batch.staged or column.context is not batch.context:
                raise ValueError("key columns lie on different devices: move them to one")
            if column.framework is not batch.framework:
                join(batch, column.framework, column.tensor)
        bytes_per_key = sum(ITEMSIZES[dtype] for _, dtype in dtypes)
        rows = _core.Buffer(batch.context, "uint8", (*batch.shape, bytes_per_key), batch.stream).array()
        _core.pack_columns(batch.context, [column.array for column in columns], rows, batch.stream)
        batch.array, batch.key_shape = rows, (bytes_per_key,)
        return batch

    @classmethod
    def of_array(cls, keys: Any, axis: int | None, what: str, empty_rows: bool = False) -> Self:
        """The keys of a call without a table: each number of an array (``axis=None``), or each row (0), where it lies.

        ``empty_rows``: rows without numbers are keys, too.

        Raises
        ------
        TypeError, ValueError, OverflowError
            For what is not an array of one of the dtypes, numbers that no dtype holds, or rows without numbers.
        """
        batch = cls()
        batch.outputs = ()
        batch.scalar = batch.staged = batch.must_wait = False
        framework = framework_of(keys)
        if framework.python:
            keys = infer_numbers(keys, what)
            framework = NUMPY
        batch.framework, batch.tensor = framework, keys
        batch.context, batch.stream = _where(keys, framework)
        if batch.context.platform == "cpu":
            array = framework.borrow(keys, None)
        else:
            batch.must_wait = framework.private_streams
            if batch.must_wait:
                framework.wait_until_ready(keys)
            array = framework.borrow(keys, batch.stream)
        batch._split(array, axis, what, empty_rows)
        return batch

    @classmethod
    def of_numbers(cls, numbers: Any, axis: int | None, what: str, like: Any) -> tuple[Self, np.ndarray[Any, Any]]:
        """As ``of_array``, of Python numbers as those of an array's dtype, in its memory; and which of the keys that
        dtype holds.
        """
        framework = framework_of(like)
        batch = cls()
        batch.outputs = ()
        batch.scalar = batch.must_wait = False
        batch.context, batch.stream = _where(like, framework)
        batch.staged = batch.context.platform != "cpu"
        dtype = framework.borrow(like, batch.stream if batch.staged else None).dtype
        host, held = encode_held(numbers, dtype, what)
        batch.framework, batch.tensor = NUMPY, host
        batch._split(batch.lend(host, dtype), axis, what)
        return batch, held

    def _split(self, array: _core.Array, axis: int | None, what: str, empty_rows: bool = False) -> None:
        """Sets the array, and the shapes of the batch and of one key."""
        self.array, self.key_shape, self.shape = array, (), array.shape
        if axis is None:
            return
        shape = array.shape
        if not shape:
            raise ValueError(f"the {what} have shape (), which has no axis 0: give an array of one or more dimensions")
        self.shape, self.key_shape = shape[:1], shape[1:]
        if not empty_rows and math.prod(self.key_shape) == 0:
            raise ValueError(f"the {what} have shape {shape}: rows without numbers, expected one or more in each")

    def lend(self, host: np.ndarray[Any, Any], dtype: str) -> _core.Array:
        """An array of the dtype's storage, in the batch's memory and of that dtype."""
        array = _core.borrow(host)
        if self.context.platform == "cpu" and array.dtype == dtype:
            return array
        lent = _core.Buffer(self.context, dtype, host.shape, self.stream).array()
        self.context.copy(lent, array, self.stream)
        return lent

    def lookup(
        self,
        reads: Sequence[Read] = (),
        found: _core.Array | None = None,
        rows: _core.Array | None = None,
    ) -> Lookup:
        """A request of these keys."""
        return self.core, self.array, reads, found, rows, self.stream

    def change(
        self,
        writes: Sequence[Write] = (),
        reads: Sequence[Read] = (),
        inserted: _core.Array | None = None,
        rows: _core.Array | None = None,
    ) -> Change:
        """A request of these keys; without values, new rows get their initial ones."""
        return self.core, self.array, writes, reads, inserted, rows, self.stream

    def erasure(self, reads: Sequence[Read] = (), erased: _core.Array | None = None) -> Erasure:
        """A request of these keys."""
        return self.core, self.array, reads, erased, self.stream

    def borrow(self, array: Any, framework: Framework) -> _core.Array:
        """Another array of the call, where it lies."""
        if self.context.platform == "cpu":
            return framework.borrow(array, None)
        if framework.private_streams:
            framework.wait_until_ready(array)
        return framework.borrow(array, self.stream)

    def share_stream(self, other: Batch) -> None:
        """Makes another batch of the call, on the same device, work on this one's stream.

        What is under way on the other's own stream comes before, and the host waits at the end.
        """
        if self.context.platform == "cpu":
            return
        if other.stream != self.stream:
            join(self, other.framework, other.tensor)
            other.stream = self.stream
        self.must_wait = other.must_wait = self.must_wait or other.must_wait

    def resume(self) -> None:
        """Begins a later call of the same batch: on its stream, after what the framework's current one has by now."""
        join(self, self.framework, self.tensor)

    def finish(self) -> None:
        """Waits for the call's work, where the arrays cannot be given back before."""
        if self.must_wait:
            self.context.synchronize(self.stream)

    def overlaps_rows(self, array: _core.Array) -> bool:
        """Is some of the array's memory the table's own rows?"""
        return hasattr(self, "core") and self.core.overlaps_rows(array)

    def apart(self, array: _core.Array) -> _core.Array:
        """The array, or a copy of it where the call writes into its memory while it reads it.

        What lies in the table's own rows the core keeps apart.
        """
        return self._copy(array) if any(map(array.overlaps, self.outputs)) else array

    def apart_from_rows(self, array: _core.Array) -> _core.Array:
        """The array, or a copy of it where it is memory of the table's own rows, for a call that the core leaves so."""
        return self._copy(array) if self.overlaps_rows(array) else array

    def new(self, dtype: str, shape: Shape) -> _core.Array:
        """Memory of the call's own."""
        return _core.Buffer(self.context, dtype, shape, self.stream).array()

    def to_host(self, array: _core.Array) -> np.ndarray[Any, Any]:
        """A copy of an array in the call's memory, as its dtype's storage. Waits."""
        return to_host(self.context, array, self.stream)

    def _copy(self, array: _core.Array) -> _core.Array:
        """A copy in the call's memory, made in the order of the batch's stream."""
        copy = self.new(array.dtype, array.shape)
        self.context.copy(copy, array, self.stream)
        return copy


def _where(tensor: Any, framework: Framework) -> tuple[_core.Context, int]:
    """The context of the memory that an array lies in, and the stream on which its framework works there."""
    index = None if isinstance(framework, NumPyFramework) else gpu_of(tensor, framework)
    if index is None:
        return make_context("cpu"), 0
    return make_context(f"cuda:{index}"), framework.stream(tensor, index)


def to_device(array: _core.Array, context: _core.Context, stream: int, what: str) -> tuple[_core.Array, bool]:
    """The array in the context's memory, copied there from the host if need be, and whether it was."""
    platform = array.platform
    if platform == context.platform and (platform == "cpu" or array.device_index == context.device_index):
        return array, False
    if platform == "cpu":
        buffer = _core.Buffer(context, array.dtype, array.shape, stream)
        target = buffer.array()
        context.copy(target, array, stream)
        return target, True
    raise wrong_device(what, f"{platform}:{array.device_index}", context.device)


class Output:
    """An array that a call fills: new, of the keys' framework, or the caller's own.

    To be made after the batch's keys and before its values and defaults, which then keep apart from it.
    """

    __slots__ = ("array", "dtype", "framework", "given", "host", "native")

    def __init__(self, batch: Batch, dtype: str, shape: Shape, out: Any = None, what: str = "out") -> None:
        self.dtype = dtype
        self.host: _core.Array | None = None
        self.given = out is not None
        if out is not None:
            self._take(batch, out, shape, what)
            return
        framework = self.framework = batch.framework
        if batch.scalar and not shape:  # answered as a Python number, of which NumPy need not know the dtype
            self.native = np.empty((), storage_dtype(dtype))
            self.array = _core.borrow(self.native)
        elif batch.staged:
            context = make_context("cpu")
            self.native, self.array = framework.empty(batch.tensor, dtype, shape, context, 0)
        else:
            self.native, self.array = framework.empty(batch.tensor, dtype, shape, batch.context, batch.stream)
        if batch.staged:
            self._stage(batch, shape)

    def _stage(self, batch: Batch, shape: Shape) -> None:
        self.host = self.array
        self.array = _core.Buffer(batch.context, self.array.dtype, shape, batch.stream).array()

    def hold_back(self, batch: Batch) -> None:
        """What the call writes does not reach an array of the caller's until ``result``."""
        if self.given and self.host is None:
            self._stage(batch, self.array.shape)

    def _take(self, batch: Batch, out: Any, shape: Shape, what: str) -> None:
        framework = self.framework = framework_of(out)
        if not framework.writable:
            raise TypeError(
                f"{what} is a {type(out).__name__}, and tables write only into arrays of NumPy, PyTorch and CuPy and "
                "into gpuhash buffers"
            )
        self.native = out
        array = out.array() if framework.name == "buffer" else _core.borrow(out, batch.stream)
        if not array.contiguous:
            raise ValueError(f"{what} is not C-contiguous: give a dense array")
        if array.readonly:
            raise ValueError(f"{what} is read-only: give a writable array")
        if array.dtype != self.dtype:
            raise TypeError(f"{what} has dtype {array.dtype}, expected {self.dtype}")
        if array.shape != shape:
            raise ValueError(f"{what} has shape {array.shape}, expected {shape}")
        context = batch.context
        self.array = array
        if array.platform != context.platform and array.platform == "cpu":
            self._stage(batch, shape)
        elif array.platform != context.platform or array.device_index != context.device_index:
            raise ValueError(f"{what} is on {array.platform}:{array.device_index} and the table on {context.device}")
        elif framework is not batch.framework:
            join(batch, framework, out)
        if any(map(array.overlaps, batch.outputs)):
            raise ValueError(f"{what} shares memory with the other output: give arrays that do not overlap")
        if batch.overlaps_rows(array):
            raise ValueError(f"{what} is memory of the table's own row_storage: give another array, and copy from it")
        batch.outputs = (*batch.outputs, array)
        batch.array = batch.apart(batch.array)

    def result(self, batch: Batch) -> Any:
        """The filled array as the caller gets it. Waits if it lies on the host and the table does not."""
        if self.host is not None:
            batch.context.copy(self.host, self.array, batch.stream)
        if self.given:
            self.framework.note_write(self.native)
            return self.native
        if batch.scalar and self.native.ndim == 0:
            return to_python(self.native, self.dtype)
        return self.framework.hand_over(self.native, self.dtype)


def join(batch: Batch, framework: Framework, tensor: Any) -> None:
    """Makes another framework's array ready for the batch's stream, by waiting, where that works on its own stream."""
    if batch.context.platform == "cpu":
        return
    if framework.private_streams:
        framework.wait_until_ready(tensor)
        batch.must_wait = True
        return
    stream = framework.stream(tensor, batch.context.device_index)
    if stream != batch.stream:
        batch.context.synchronize(stream)
        batch.must_wait = True


def take_values(values: Any, batch: Batch, dtype: str, shape: Shape, what: str = "values") -> tuple[_core.Array, bool]:
    """The values of a call, checked, in the table's memory, and whether they are one for all keys."""
    host = batch.context.platform == "cpu"
    framework = framework_of(values)
    if framework.python:
        values = encode_values(values, dtype, shape, what)
        if values.ndim == 0 and shape:
            values = np.full(shape, values)
        array = _core.borrow(values)
    else:
        array = batch.borrow(values, framework)
        if array.dtype != dtype:
            raise wrong_dtype(what, framework, array.dtype, dtype)
        if shape and array.shape == ():
            array = framework.borrow(framework.broadcast(values, shape), None if host else batch.stream)
    given = array.shape
    if given == batch.shape + shape:
        broadcast = False
    elif given == shape:
        broadcast = True
    else:
        raise wrong_value_shape(what, given, batch.shape, shape)
    if not host:
        array, staged = to_device(array, batch.context, batch.stream, what)
        if not staged and framework is not batch.framework:
            join(batch, framework, values)
    elif array.platform != "cpu":
        to_device(array, batch.context, 0, what)
    return batch.apart(array), broadcast
