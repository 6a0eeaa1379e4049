"""HashTable: keys to values, in batches, used like a dict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np

from . import _core, serialization
from .arrays import NUMPY, Shape, framework_like, framework_of
from .base import KeyedTable, as_keys, shape_of, take_values, wrong_dtype
from .batch import Batch, Output
from .dtypes import comparable, dtype_name, encode, is_integer, numpy_dtype, storage_dtype, to_python
from .inference import infer

_OPS = ("add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor")
_MAX_FALLBACKS = 16


class _NoDefault:
    def __repr__(self) -> str:
        return "<none>"


_NO_DEFAULT = _NoDefault()


class HashTable(KeyedTable):
    """A hash table in GPU or host memory, used like a dict whose keys and values are whole arrays.

    Parameters
    ----------
    key_dtype
        An integer dtype: a name, a Python type, or a dtype of NumPy, PyTorch, CuPy, JAX or TensorFlow.
    value_dtype
        bool, an integer, float16, bfloat16, float32, float64, complex64 or complex128.
    key_shape
        ``()``, or ``(k,)`` for keys that are vectors of k integers, of up to 16 bytes in all.
    value_shape
        The shape of one value. Values that are no scalars of up to 8 bytes lie in row storage.
    device
        "cpu", "cuda", "cuda:1", a torch.device or anything whose ``str`` is one of these.
    capacity
        Slots to begin with.
    max_load_factor
        Keys per slot that the table does not pass, in (0, 1]: it grows before.
    growth
        False keeps the capacity: a batch for which it has no room is a TableFullError, and changes nothing.
    max_capacity
        Slots beyond which the table does not grow.
    default
        The value that ``table[keys]`` and ``find`` give for absent keys, a scalar or of shape ``value_shape``. Without
        it ``table[keys]`` raises KeyError. It belongs to this object; ``gpuhash.open`` gives one without.
    deterministic
        Of a key's duplicates in one batch the last stays (with ``insert`` the first), as in a loop over a dict.
        Otherwise one of them, whole.
    memory
        None for the device's own pool; "torch" for PyTorch's caching allocator; or an object with ``allocate(nbytes,
        stream)`` and ``deallocate(ptr, nbytes, stream)``, such as the resources of rmm and cuda.core.
    name
        Makes ``gpuhash.open(name)`` find this table, until ``close()``.

    Keys have the shape ``[*batch, *key_shape]``, with any number of batch dimensions, and values and masks ``[*batch,
    *value_shape]`` and ``[*batch]``. Arrays have exactly the table's dtypes; Python numbers and lists are converted. A
    Python number, or for vector keys a tuple, is one key, answered by Python numbers. Outputs are of the keys'
    framework, from its allocator, on its current stream; lists are answered by NumPy arrays. Host arrays given to a GPU
    table are copied there, and answered on the host: then the host waits for the GPU, as it does where the table has to
    grow.

    Raises
    ------
    TypeError
        For keys that are no integers, and dtypes that tables do not take.
    ValueError
        For shapes, devices, capacities and load factors that cannot be, and a name that is taken.
    MemoryError, PlatformError
        Where there is no memory, or no such device.
    """

    _value_dtype: str

    def __init__(
        self,
        key_dtype: object,
        value_dtype: object,
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
        memory: object = None,
        name: str | None = None,
    ) -> None:
        self._value_dtype = dtype_name(value_dtype)
        self._value_shape = shape_of(value_shape, "value_shape")
        storage = None if default is None else self._value_storage(default, "default")
        self._make(
            key_dtype,
            shape_of(key_shape, "key_shape"),
            device,
            capacity,
            max_load_factor,
            growth,
            max_capacity,
            deterministic,
            memory,
            name,
        )
        self._set_default(storage)

    def _attach(self, core: _core.Table, key_shape: Shape) -> None:
        super()._attach(core, key_shape)
        self._fallbacks: dict[bytes, _core.Array] = {}
        self._set_default(getattr(self, "_default", None))

    def _set_default(self, storage: np.ndarray[Any, Any] | None) -> None:
        self._default = storage
        self._fallback = None if storage is None else self._fallback_array(storage)

    @classmethod
    def _open(cls, core: _core.Table, name: str) -> Self:
        table = object.__new__(cls)
        table._value_dtype = cast(str, core.value_dtype)
        table._value_shape = core.value_shape
        table._attach(core, (core.key_elements,) if core.key_elements > 1 else ())
        table._name = name
        return table

    @classmethod
    def from_items(cls, keys: Any, values: Any = None, **options: Any) -> Self:
        """A table of these items; dtypes, shapes and device are those of the arrays.

        Parameters
        ----------
        keys
            An array or list of keys, or a mapping alone. Two-dimensional keys ``[n, k]`` with values of length n are n
            vector keys, unless ``key_shape=`` says otherwise.
        values
            An array or list of values, or one value for all keys.
        **options
            As for the constructor, with ``key_dtype`` and ``value_dtype``; those given are not inferred.
        """
        if values is None and isinstance(keys, Mapping):
            keys, values = list(keys.keys()), list(keys.values())
        elif values is None:
            raise TypeError("from_items takes keys and values, or a mapping alone")
        table = cls(**infer(keys, values, options))
        table._assign(keys, values)
        return table

    # Values ----------------------------------------------------------------------------------------------------------

    def _value_storage(self, value: Any, what: str) -> np.ndarray[Any, Any]:
        """One value on the host, of shape ``value_shape``, as its dtype's storage."""
        framework = framework_of(value)
        if framework.python:
            host = encode(value, self._value_dtype, what)
        else:
            array = framework.borrow(value, 0)
            if array.dtype != self._value_dtype:
                raise wrong_dtype(what, framework, array.dtype, self._value_dtype)
            host = np.empty(array.shape, storage_dtype(array.dtype))
            _core.Context(array.platform, array.device_index).copy(_core.borrow(host), array, 0)
        if host.shape not in ((), self._value_shape):
            raise ValueError(f"the {what} has shape {host.shape}, expected () or {self._value_shape}")
        return np.array(np.broadcast_to(host, self._value_shape), order="C")

    def _fallback_array(self, storage: np.ndarray[Any, Any]) -> _core.Array:
        """The value for absent keys in the table's memory."""
        array = _core.borrow(storage)
        if self._host:
            return array
        data = storage.tobytes()
        known = self._fallbacks.get(data)
        if known is None:
            if len(self._fallbacks) >= _MAX_FALLBACKS:
                self._fallbacks.clear()
            stream = self._stream()
            known = _core.Buffer(self._context, array.dtype, array.shape, stream).array()
            self._context.copy(known, array, stream)
            self._fallbacks[data] = known
        return known

    def _fallback_for(self, default: Any) -> _core.Array | None:
        if default is None:
            return self._fallback
        framework = framework_of(default)
        if not framework.python and not self._host:
            array = framework.borrow(default, self._stream())
            same_place = array.platform == self._context.platform and array.device_index == self._index
            if same_place and array.dtype == self._value_dtype and array.shape == self._value_shape:
                return (
                    array
                    if not framework.private_streams
                    else self._fallback_array(self._value_storage(default, "default"))
                )
        return self._fallback_array(self._value_storage(default, "default"))

    def _values(self, batch: Batch, out: Any = None, what: str = "out") -> Output:
        return Output(batch, self._value_dtype, batch.shape + self._value_shape, out, what)

    # Like a dict -----------------------------------------------------------------------------------------------------

    def __setitem__(self, keys: Any, values: Any) -> None:
        """Assigns values to keys, new or not.

        ``values`` has the shape ``[*batch, *value_shape]``; a scalar, or an array of shape ``value_shape``, goes to all
        keys. Of a key's duplicates one whole value stays, with ``deterministic=True`` the last. Does not wait for the
        GPU while the table has room for all keys as if they were new.

        Raises
        ------
        TypeError, ValueError
            For arrays of other dtypes, or of shapes or devices that do not fit.
        TableFullError, MemoryError
            Where there is no room; the table is as it was.
        """
        self._assign(keys, values)

    def _assign(self, keys: Any, values: Any) -> None:
        batch = self._take(keys)
        array, broadcast = take_values(self, values, batch)
        self._changes += 1
        self._core.insert(batch.array, array, broadcast, "assign", None, batch.stream)
        self._finish(batch)

    def __getitem__(self, keys: Any) -> Any:
        """The values of keys, ``[*batch, *value_shape]``. Waits, unless the table has a ``default=``.

        Raises
        ------
        KeyError
            With the number of absent keys and some of them, unless the table has a ``default=``.
        """
        batch = self._take(keys)
        values = self._values(batch)
        fallback = self._fallback
        missing = self._core.find(batch.array, values.array, None, fallback, fallback is None, batch.stream)
        if missing:
            raise self._absent(batch, keys, missing)
        self._finish(batch)
        return values.result(batch)

    def __delitem__(self, keys: Any) -> None:
        """Erases keys. Waits. KeyError if any is absent: then nothing is erased."""
        batch = self._take(keys)
        self._check_present(batch, keys)
        self._changes += 1
        self._core.erase(batch.array, None, batch.stream)
        self._finish(batch)

    def values(self, like: Any = None) -> Any:
        """All values, ``[len(table), *value_shape]``, in the order of ``keys()``; ``like`` as there. Waits."""
        return self._export(like, False, True)[0]

    def items(self, like: Any = None) -> tuple[Any, Any]:
        """All keys and values, in the same order; ``like`` as for ``keys()``. Waits."""
        keys, values = self._export(like, True, True)
        return keys, values

    def get(self, keys: Any, default: Any = None) -> Any:
        """The values of keys, and a default for absent ones.

        A single key gives its value or ``default`` (else the table's, else None), and waits. A batch gives an array, of
        which absent keys get ``default``, a scalar or of shape ``value_shape``, or else the table's; it does not wait.

        Raises
        ------
        ValueError
            For a batch, where neither is given.
        """
        batch = self._take(keys)
        values = self._values(batch)
        if batch.scalar:
            missing = self._core.find(batch.array, values.array, None, None, True, batch.stream)
            if missing:
                return self.default if default is None else default
            return values.result(batch)
        fallback = self._fallback_for(default)
        if fallback is None:
            raise ValueError("get(keys) of a batch needs a default for absent keys: give one here or to the table")
        self._core.find(batch.array, values.array, None, fallback, False, batch.stream)
        self._finish(batch)
        return values.result(batch)

    def setdefault(self, keys: Any, default: Any = None) -> Any:
        """Inserts ``default`` for the keys that are absent, and gives the values of all.

        ``default`` is as the values of an insertion: one for each key or one for all; None takes the table's default.
        """
        if default is None:
            if self._default is None:
                raise ValueError("setdefault needs a default for absent keys: give one here or to the table")
            default = (
                self._default if self._value_dtype != "bfloat16" else comparable(self._default, "bfloat16").tolist()
            )
        batch = self._take(keys)
        values = self._values(batch)
        array, broadcast = take_values(self, default, batch, "default")
        self._changes += 1
        self._core.insert(batch.array, array, broadcast, "keep", None, batch.stream)
        self._core.find(batch.array, values.array, None, None, False, batch.stream)
        self._finish(batch)
        return values.result(batch)

    def pop(self, keys: Any, default: Any = _NO_DEFAULT) -> Any:
        """Erases keys, and gives their values. Waits, unless there is a default.

        Absent keys get ``default``, as for ``get``; without it they are a KeyError, also where the table has a default,
        and nothing is erased.
        """
        batch = self._take(keys)
        values = self._values(batch)
        needed = default is _NO_DEFAULT
        if needed or batch.scalar:
            missing = self._core.find(batch.array, values.array, None, None, True, batch.stream)
            if missing and needed:
                raise self._absent(batch, keys, missing)
            if missing:
                return default
        else:
            fallback = self._fallback_for(default)
            if fallback is None:
                raise ValueError("pop(keys, None) of a batch: give a value as the default of absent keys")
            self._core.find(batch.array, values.array, None, fallback, False, batch.stream)
        popped = values.result(batch)
        self._changes += 1
        self._core.erase(batch.array, None, batch.stream)
        self._finish(batch)
        return popped

    def popitem(self) -> tuple[Any, Any]:
        """Erases some key, and gives it and its value. Waits, and reads all keys: take ``items()`` to empty a table."""
        keys = self._host_items(values=False)[0]
        if not len(keys):
            raise KeyError("popitem(): the table is empty")
        key = as_keys(keys[:1], self._key_shape)[0]
        return key, self.pop(key)

    def update(self, other: Any, values: Any = _NO_DEFAULT, /) -> None:
        """Assigns all items of another.

        Parameters
        ----------
        other
            A mapping; a table of the same dtypes and shapes, on any device; an iterable of pairs, of which the last
            of a key wins; or a tuple of an array of keys and one of values, which may be two arguments as well.
        """
        if values is not _NO_DEFAULT:
            self._assign(other, values)
        elif isinstance(other, HashTable):
            self._merge(other)
        elif isinstance(other, KeyedTable):
            raise TypeError(f"a {type(other).__name__} has no values: give a table, a mapping, pairs or arrays")
        elif isinstance(other, tuple) and len(other) == 2 and not any(framework_of(part).python for part in other):
            self._assign(*other)
        else:
            keys, items = _columns(other)
            if keys:
                self._assign(self._batch_of(keys), items)

    def _batch_of(self, keys: list[Any]) -> Any:
        """Keys of a dict as one batch."""
        return [tuple(key) for key in keys] if self._key_shape else keys

    def __eq__(self, other: object) -> bool:
        """Has the other, a table on any device or a mapping, the same items? Waits.

        Tables of different dtypes or shapes are different. A table is equal to itself; otherwise NaN equals nothing.
        """
        if self is other:
            return True
        if isinstance(other, HashTable):
            return self._equals_table(other)
        if not isinstance(other, Mapping):
            return NotImplemented
        if len(self) != len(other):
            return False
        keys, values = self._host_items()
        values = comparable(values, self._value_dtype)
        mine = zip(as_keys(keys, self._key_shape), values if self._value_shape else values.tolist(), strict=True)
        if not self._value_shape:
            return dict(mine) == other
        return all(key in other and np.array_equal(value, other[key]) for key, value in mine)

    def _equals_table(self, other: HashTable) -> bool:
        if (self._key_dtype, self._key_shape, self._value_dtype, self._value_shape) != (
            other._key_dtype,
            other._key_shape,
            other._value_dtype,
            other._value_shape,
        ) or len(self) != len(other):
            return False
        keys, values = self._host_items()
        batch = other._take(keys)
        found = _core.Buffer(other._context, "bool", batch.shape, batch.stream).array()
        shape = batch.shape + self._value_shape
        theirs = _core.Buffer(other._context, self._value_dtype, shape, batch.stream).array()
        if other._core.find(batch.array, theirs, found, None, True, batch.stream):
            return False
        others = other._to_host(theirs, batch.stream)
        return bool(np.array_equal(comparable(values, self._value_dtype), comparable(others, self._value_dtype)))

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __or__(self, other: Any) -> Self:
        if not isinstance(other, (HashTable, Mapping)):
            return NotImplemented
        union = self.copy()
        union.update(other)
        return union

    def __repr__(self) -> str:
        size = len(self)
        load = size / self.capacity if self.capacity else 0.0
        shapes = f", key_shape={self._key_shape}" if self._key_shape else ""
        shapes += f", value_shape={self._value_shape}" if self._value_shape else ""
        name = f", name={self._name!r}" if self._name is not None else ""
        return (
            f"<{type(self).__name__} {self._key_dtype} -> {self._value_dtype}{shapes}, size={size}, "
            f"capacity={self.capacity}, load={load:.3f}, device={self.device}{name}>"
        )

    # In the field's words --------------------------------------------------------------------------------------------

    def insert(self, keys: Any, values: Any, out: Any = None) -> Any:
        """Inserts the keys that are not there, and keeps the values of those that are.

        Parameters
        ----------
        keys, values, out
            As for ``insert_or_assign``.

        Returns
        -------
        bool array of shape ``batch``: was the key new; true for exactly one of a new key's duplicates. With
        ``deterministic=True`` the first of a new key's values stays.
        """
        return self._insert(keys, values, "keep", out)

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
        batch = self._take(keys)
        array, broadcast = take_values(self, values, batch)
        inserted = self._mask(batch, out)
        self._changes += 1
        self._core.insert(batch.array, array, broadcast, mode, inserted.array, batch.stream)
        self._finish(batch)
        return inserted.result(batch)

    def insert_or_apply(self, keys: Any, values: Any, op: str, out: Any = None) -> Any:
        """Inserts the keys that are not there, and combines the values of those that are with the new ones.

        All of a key's duplicates in a batch count; sums and products of floats depend on their order, which is not
        fixed. Integers wrap. Minima and maxima of floats pass NaN on.

        Parameters
        ----------
        keys, values, out
            As for ``insert_or_assign``.
        op
            "add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor" (with hyphens as well), "keep" (the old
            value) or "replace" (by the new one).

        Returns
        -------
        bool array of shape ``batch``: was the key new; true for exactly one of a new key's duplicates.

        Raises
        ------
        TypeError
            For operations that the value dtype does not have: bits of floats, minima of complex numbers.
        ValueError
            For an unknown operation.
        """
        name = op.replace("-", "_") if isinstance(op, str) else op
        if name == "keep":
            return self._insert(keys, values, "keep", out)
        if name == "replace":
            return self._insert(keys, values, "assign", out)
        if name not in _OPS:
            raise ValueError(f"op={op!r} is not known: give one of {', '.join(_OPS)}, keep, replace")
        dtype = self._value_dtype
        if name.startswith("bit_") and not (is_integer(dtype) or dtype == "bool"):
            raise TypeError(f"{op} combines bits of integers, and the table has values of {dtype}")
        if name in ("min", "max") and dtype.startswith("complex"):
            raise TypeError(f"{op} needs an order, and complex numbers have none: the table has values of {dtype}")
        batch = self._take(keys)
        array, broadcast = take_values(self, values, batch)
        inserted = self._mask(batch, out)
        self._changes += 1
        self._core.apply(batch.array, array, broadcast, cast(Any, name), inserted.array, batch.stream)
        self._finish(batch)
        return inserted.result(batch)

    def find(self, keys: Any, default: Any = None, out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """The values of keys, and which of them were found.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``.
        default
            The value of absent keys, a scalar or of shape ``value_shape``; None takes the table's, or else zero.
        out
            Arrays ``(values, found)`` to write into.

        Returns
        -------
        values, found
            ``[*batch, *value_shape]`` of the value dtype, and bool ``[*batch]``. Does not wait for the GPU, unless the
            answers are on the host.
        """
        fallback = self._fallback if default is None else self._fallback_for(default)
        out_values, out_found = out_pair(out)
        batch = self._take(keys)
        values = self._values(batch, out_values, "out[0]")
        found = Output(batch, "bool", batch.shape, out_found, "out[1]")
        self._core.find(batch.array, values.array, found.array, fallback, False, batch.stream)
        self._finish(batch)
        return values.result(batch), found.result(batch)

    def rows(self, keys: Any, out: Any = None) -> Any:
        """The numbers of the keys' rows in ``row_storage``.

        A row keeps its number until its key is erased or the table shrunk to fit.

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
        batch = self._take(keys)
        rows = Output(batch, "int64", batch.shape, out)
        self._core.rows(batch.array, rows.array, batch.stream)
        self._finish(batch)
        return rows.result(batch)

    @property
    def row_storage(self) -> Any:
        """All rows, without a copy: ``[rows handed out, *value_shape]``, erased ones among them.

        A NumPy array for host tables; of PyTorch or CuPy, whichever is imported, for GPU tables (see
        ``row_storage_as``). What is written there is the table's from then on, in the order of the stream. When the
        table grows its rows move: the view then is the memory of before, so take it anew after insertions.
        """
        return self.row_storage_as()

    def row_storage_as(self, like: Any = None) -> Any:
        """``row_storage`` as an array of a framework that can write: "torch", "cupy", "numpy" or "buffer"."""
        self._need_rows()
        framework = framework_like(like, self._host)
        if framework is NUMPY and not self._host:
            raise ValueError(f"the rows are on {self.device}, which NumPy cannot see: ask for PyTorch or CuPy")
        return framework.wrap(self._core.row_storage(0 if self._host else framework.stream(None, self._index)))

    def _need_rows(self) -> None:
        if not self._core.has_rows:
            raise ValueError(
                f"the table has no row storage: its values, scalars of {self._value_dtype}, lie beside their keys; "
                "only values of a value_shape, or of more than 8 bytes, have rows"
            )

    # Properties and files --------------------------------------------------------------------------------------------

    @property
    def value_dtype(self) -> str:
        """The name of the values' dtype."""
        return self._value_dtype

    @property
    def value_shape(self) -> Shape:
        """The shape of one value."""
        return self._value_shape

    @property
    def default(self) -> Any:
        """The value of absent keys: a number, a NumPy array where values have a shape, or None."""
        if self._default is None:
            return None
        if not self._value_shape:
            return to_python(self._default, self._value_dtype)
        return self._default.view(numpy_dtype(self._value_dtype)).copy()

    def _contents(self) -> serialization.Contents:
        contents = super()._contents()
        contents.default = None if self._default is None else self._default.tobytes()
        return contents

    @classmethod
    def _restore(cls, contents: serialization.Contents, device: object, memory: object, name: str | None) -> Self:
        if contents.value_dtype is None:
            raise ValueError("the file holds a set, not a table: load it with gpuhash.HashSet.load")
        table = cls(
            contents.key_dtype,
            contents.value_dtype,
            key_shape=contents.key_shape,
            value_shape=contents.value_shape,
            device=device,
            max_load_factor=contents.max_load_factor,
            max_capacity=contents.max_capacity,
            deterministic=contents.deterministic,
            memory=memory,
        )
        if contents.default is not None:
            flat = np.frombuffer(contents.default, storage_dtype(contents.value_dtype))
            table._set_default(flat.reshape(contents.value_shape).copy())
        table._fill(contents)
        table._register(name)
        return table


def _columns(other: Any) -> tuple[list[Any], list[Any]]:
    """Keys and values of a mapping or an iterable of pairs; the last pair of a key wins."""
    if isinstance(other, Mapping) or hasattr(other, "keys"):
        keys = list(other.keys())
        return keys, [other[key] for key in keys]
    if not isinstance(other, Iterable):
        raise TypeError(f"a {type(other).__name__} has no items: give a table, a mapping, pairs or arrays")
    pairs = list(other)
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("update takes pairs of a key and its value")
    try:
        items = dict(pairs)
    except TypeError:  # keys that are arrays or lists
        items = {tuple(key): value for key, value in pairs}
    return list(items.keys()), list(items.values())


def out_pair(out: Any) -> tuple[Any, Any]:
    if out is None:
        return None, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError("out takes a tuple of two arrays, (values, found)")
    return out
