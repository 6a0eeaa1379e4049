"""Columns for others by the Arrow C data interface, which pyarrow, polars, pandas, DuckDB and cuDF read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuhash import _core

from . import arrow_c
from .frameworks import ArrayLikeFramework, Framework, NumPyFramework, framework_of, gpu_of
from .memory import make_context

if TYPE_CHECKING:
    from .strings import Strings

_Array = np.ndarray[Any, Any]

_FORMATS = {name: code for code, name in arrow_c.PRIMITIVE.items()}
_UNITS = {"s": "s", "ms": "m", "us": "u", "ns": "n"}
#: NumPy's units of times that Arrow does not have, and those that hold all of their times.
_COARSE = {"M": {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}, "m": {"W": "s", "D": "s", "h": "s", "m": "s"}}
_CUDA = 2  # ARROW_DEVICE_CUDA
_CPU = 1


class _Part(NamedTuple):
    """A column in Arrow's layout."""

    node: _core.ArrowNode
    held: list[object]  # whose memory it is
    length: int
    gpu: int | None


class ArrowArray:
    """One column, with Arrow's C interface (``__arrow_c_array__``), or its device interface for an array on a GPU.

    Parameters
    ----------
    values
        An array ``[n]`` of any framework, or ``[n, k]`` for lists of a fixed size; dates and times of NumPy, of which
        NaT is null; or strings. Numbers are not copied where they are dense; booleans become bits.
    valid
        bool ``[n]`` on the host, false for nulls; None where there are none.

    Raises
    ------
    TypeError
        For complex numbers, bfloat16, and units of time that Arrow does not have; for booleans on a GPU.
    ValueError
        For a mask of another shape, a mask of an array on a GPU, and arrays without an axis.
    """

    def __init__(self, values: Any, valid: _Array | None = None) -> None:
        self._part = _part_of(values, valid, "")

    def __len__(self) -> int:
        return self._part.length

    def __arrow_c_schema__(self) -> object:
        return self._part.node.schema()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return _array_capsules(self._part)

    def __arrow_c_device_array__(self, requested_schema: object = None, **_: object) -> tuple[object, object]:
        return _device_capsules(self._part)


class RecordBatch:
    """Named columns of one length, for ``pyarrow.table``, ``polars.DataFrame``, DuckDB and whoever reads Arrow.

    Numbers stay where they are: the others read the arrays' own memory, which must not be written meanwhile. On a GPU,
    ``__arrow_c_device_array__`` gives them, when the work that makes them is done.

    Parameters
    ----------
    columns
        Arrays by name, all on one device: ``[n]`` of any framework, or ``[n, k]`` for lists of a fixed size; dates and
        times of NumPy, of which NaT is null, and its masked arrays; strings of NumPy, lists of strings, and columns of
        strings of pandas, polars and Arrow.
    valid
        Masks by name, bool ``[n]`` on the host, false for nulls. Columns without one have none.

    Raises
    ------
    TypeError
        For complex numbers, bfloat16, and units of time that Arrow does not have; for booleans on a GPU.
    ValueError
        For columns of different lengths or devices, masks of other shapes or names or of an array on a GPU, arrays
        without an axis, and strings of several.
    OverflowError
        For times that the unit which Arrow has for theirs cannot hold.
    """

    def __init__(self, columns: Mapping[str, Any], valid: Mapping[str, _Array] | None = None) -> None:
        masks = valid or {}
        unknown = [name for name in masks if name not in columns]
        if unknown:
            raise ValueError(f"valid has masks of {', '.join(unknown)}, which are no columns")
        for name in columns:
            _check_name(name)
        parts = {name: _part_of(values, masks.get(name), name) for name, values in columns.items()}
        lengths = {part.length for part in parts.values()}
        if len(lengths) > 1:
            said = ", ".join(f"{name}: {part.length}" for name, part in parts.items())
            raise ValueError(f"columns of different lengths were given ({said}): give as many entries in each")
        gpus = {part.gpu for part in parts.values()}
        if len(gpus) > 1:
            raise ValueError("columns on several devices were given: move them to one")
        self._length = lengths.pop() if lengths else 0
        node = _core.ArrowNode("+s", "", self._length, 0, [0], [part.node for part in parts.values()])
        self._part = _Part(node, [part.held for part in parts.values()], self._length, gpus.pop() if gpus else None)
        self._names = tuple(parts)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return self._names

    @property
    def num_rows(self) -> int:
        """Entries of each column."""
        return self._length

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"RecordBatch({self._length} rows of {', '.join(self._names) or 'no columns'})"

    def __arrow_c_schema__(self) -> object:
        """The capsule of the schema."""
        return self._part.node.schema()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The capsules of schema and columns. No other schema is made, which a producer need not."""
        return _array_capsules(self._part)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The capsule of a stream of this one batch."""
        _need_host(self._part)
        return self._part.node.stream(self._part.held)

    def __arrow_c_device_array__(self, requested_schema: object = None, **_: object) -> tuple[object, object]:
        """The capsules of schema and columns, wherever these are."""
        return _device_capsules(self._part)


def _need_host(part: _Part) -> None:
    if part.gpu is not None:
        raise ValueError(
            f"the columns are on cuda:{part.gpu}, and this reader asks for host memory: move the arrays, or give them "
            "to one that knows __arrow_c_device_array__"
        )


def _array_capsules(part: _Part) -> tuple[object, object]:
    _need_host(part)
    return part.node.schema(), part.node.array(part.held)


def _device_capsules(part: _Part) -> tuple[object, object]:
    kind, index = (_CPU, -1) if part.gpu is None else (_CUDA, part.gpu)
    return part.node.schema(), part.node.device_array(part.held, kind, index)


def _part_of(values: Any, valid: _Array | None, name: str) -> _Part:
    from .strings import Strings  # which gives Arrow's columns back by this module

    what = f"column {name!r}" if name else "array"
    strings = values if isinstance(values, Strings) else Strings.read(values, f"values of the {what}")
    if strings is not None:
        return _part_of_strings(strings, valid, name, what)
    framework = framework_of(values)
    if isinstance(framework, NumPyFramework):
        host = framework.to_numpy(values) if isinstance(framework, ArrayLikeFramework) else np.asanyarray(values)
        return _part_of_host(host, valid, name, what)
    return _part_of_tensor(values, framework, valid, name, what)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{name!r}, a {type(name).__name__}, was given as the name of a column, expected a str")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in name):
        raise ValueError(
            f"the name {name!r} of a column has a null character or half of a surrogate pair: leave it out"
        )


def _both(valid: Any, known: _Array | None, length: int, what: str) -> _Array | None:
    """The mask that was given, checked, and what the column itself says of its entries, bool ``[n]``, as one."""
    if valid is None:
        return known
    mask = np.asarray(valid)
    if mask.dtype != bool or mask.shape != (length,):
        raise ValueError(f"the mask of the {what} is {mask.dtype} of shape {mask.shape}, expected bool of ({length},)")
    return mask if known is None else np.logical_and(mask, known)


def _bits_of(valid: _Array | None) -> tuple[int, int, object]:
    """How many nulls there are, the address of the bits that say which, and what keeps these."""
    if valid is None:
        return 0, 0, None
    mask = valid.reshape(-1)
    nulls = len(mask) - int(np.count_nonzero(mask))
    if nulls == 0:
        return 0, 0, None
    bits = np.packbits(mask, bitorder="little")
    return nulls, bits.ctypes.data, bits


def _part_of_strings(strings: Strings, valid: _Array | None, name: str, what: str) -> _Part:
    _need_axis(strings.shape, what)
    if len(strings.shape) > 1:
        raise ValueError(f"the {what} has strings of shape {strings.shape}: give them in one dimension")
    nulls, bits, held = _bits_of(_both(valid, strings.valid, strings.count, what))
    offsets, data = strings.offsets, strings.data
    buffers = [bits, offsets.ctypes.data, data.ctypes.data]
    node = _core.ArrowNode("U" if strings.text else "Z", name, strings.count, nulls, buffers, [])
    return _Part(node, [held, offsets, data], strings.count, None)


def _part_of_host(array: _Array, valid: _Array | None, name: str, what: str) -> _Part:
    fmt = known = None
    if isinstance(array, np.ma.MaskedArray):
        known = ~np.ma.getmaskarray(array)
        array = array.data
    if array.dtype.kind in "mM":
        array, fmt, is_time = _times(array, what)
        known = is_time if known is None else np.logical_and(known, is_time)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    _need_axis(array.shape, what)
    if array.dtype == bool:
        packed = np.packbits(array.view(np.uint8) != 0, bitorder="little")
        return _nested(array.shape, "b", packed.ctypes.data, packed, valid, name, what, None, known)
    dense = _core.borrow(np.ascontiguousarray(array))
    return _nested(dense.shape, fmt or _format_of(dense, what), dense.data, dense, valid, name, what, None, known)


def _part_of_tensor(tensor: Any, framework: Framework, valid: _Array | None, name: str, what: str) -> _Part:
    gpu = gpu_of(tensor, framework)
    if gpu is None:
        array = framework.borrow(tensor, None)
        if array.dtype == "bool":
            flat = np.asarray(arrow_c.Lender(array.data, "bool", math.prod(array.shape), array))
            return _part_of_host(flat.reshape(array.shape), valid, name, what)
    else:
        stream = framework.stream(tensor, gpu)
        if framework.private_streams:
            framework.wait_until_ready(tensor)
        array = framework.borrow(tensor, stream)
        make_context(f"cuda:{gpu}").synchronize(stream)
        if valid is not None:
            raise ValueError(f"the {what} is on cuda:{gpu}, where no masks are made: give it on the host, or no mask")
        if array.dtype == "bool":
            raise TypeError(f"the {what} is of booleans on cuda:{gpu}, which Arrow has as bits: convert them to uint8")
    _need_axis(array.shape, what)
    return _nested(array.shape, _format_of(array, what), array.data, array, valid, name, what, gpu)


def _format_of(array: _core.Array, what: str) -> str:
    if array.dtype not in _FORMATS:
        raise TypeError(
            f"the {what} holds {array.dtype}, which Arrow does not have: convert it to floats, or view it as integers"
        )
    return _FORMATS[array.dtype]


def _nested(
    shape: tuple[int, ...],
    fmt: str,
    address: int,
    memory: object,
    valid: _Array | None,
    name: str,
    what: str,
    gpu: int | None,
    known: _Array | None = None,
) -> _Part:
    """Of dense memory; entries of several numbers are lists of a fixed size. ``known``: bool, of which number it is."""
    length = shape[0]
    axes = len(shape)
    nulls, bits, held = _bits_of(_both(valid, known if axes == 1 else None, length, what))
    own = (name, nulls, bits)
    inner = ("item", 0, 0)
    named, missing, mask = own if axes == 1 else inner
    within = None
    if axes > 1 and known is not None:
        missing, mask, within = _bits_of(known)
    node = _core.ArrowNode(fmt, named, math.prod(shape), missing, [mask, address], [])
    for axis in range(axes - 1, 0, -1):
        named, missing, mask = own if axis == 1 else inner
        node = _core.ArrowNode(f"+w:{shape[axis]}", named, math.prod(shape[:axis]), missing, [mask], [node])
    return _Part(node, [held, within, memory], length, gpu)


def _need_axis(shape: tuple[int, ...], what: str) -> None:
    if not shape:
        raise ValueError(f"the {what} has shape (), and a column has one axis or more")


def _times(array: _Array, what: str) -> tuple[_Array, str, _Array]:
    """Dates and times as integers, their format, and which of them are some."""
    kind = array.dtype.kind
    unit, step = np.datetime_data(array.dtype)
    if unit == "generic" or (unit not in _UNITS and unit not in _COARSE[kind] and (kind, unit) != ("M", "D")):
        raise TypeError(f"the {what} is {array.dtype}, and Arrow has no such unit: convert it, as to '{kind}8[ns]'")
    target = _COARSE[kind].get(unit, unit)
    is_time = ~np.isnat(array)
    if step != 1 or target != unit or not array.dtype.isnative:
        given = array
        try:
            array = given.astype(f"{kind}8[{target}]")
            fits = not (is_time & (array.astype(given.dtype) != given)).any()
        except OverflowError:  # of NumPy 2.5 on
            fits = False
        if not fits:
            raise OverflowError(f"the {what} is {given.dtype}, and holds times that no '{kind}8[{target}]' does")
    numbers = np.ascontiguousarray(array).view(np.int64)
    if target == "D":
        days = np.where(is_time, numbers, 0)
        if days.size and not -(1 << 31) <= days.min() <= days.max() < 1 << 31:
            raise OverflowError(f"the {what} holds days beyond those of Arrow's dates, of 32 bits")
        return days.astype(np.int32), "tdD", is_time
    return numbers, f"ts{_UNITS[target]}:" if kind == "M" else f"tD{_UNITS[target]}", is_time
