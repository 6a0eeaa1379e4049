"""Arrays of every framework: how each is borrowed, on which stream it works, and how its outputs are made.

A framework is found by the type of an array, once per type. None is ever imported from here unless its caller names it:
an array of a framework can only come from one that is imported already.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import KeysView, Sequence, ValuesView
from typing import Any

import numpy as np

from gpuhash import _core

from . import arrow_c, consumers, nulls
from .dtypes import ITEMSIZES, NUMBER_STRINGS, numpy_dtype

Shape = tuple[int, ...]


class Framework:
    """Objects with ``__dlpack__``; their outputs are `_core.Buffer`, which has it too. Base of the others."""

    name = "buffer"
    python = False  # Python numbers and sequences of them
    writable = False  # may be given as out=
    private_streams = False  # works on streams that it does not tell: the host has to wait for them and for ours

    def borrow(self, tensor: Any, stream: int | None) -> _core.Array:
        """The tensor's elements, dense; copied on its own device where they are not."""
        array = _core.borrow(tensor, stream)
        if not array.contiguous:
            array = _core.borrow(self.compact(tensor), stream)
            if not array.contiguous:
                raise ValueError(f"the {type(tensor).__name__} is not C-contiguous: give a contiguous copy of it")
        return array

    def compact(self, tensor: Any) -> Any:
        return tensor

    def stream(self, tensor: Any, index: int) -> int:
        """The stream on which the framework works now on GPU ``index``."""
        stream = _core.current_stream(tensor)
        return 0 if stream is None else stream

    def wait_until_ready(self, tensor: Any) -> None:
        """Waits until the tensor is there, where borrowing does not see to it."""

    def broadcast(self, tensor: Any, shape: Shape) -> Any:
        raise ValueError(f"the {type(tensor).__name__} of shape () cannot be broadcast to {shape}: give it that shape")

    def empty(
        self, like: Any, dtype: str, shape: Shape, context: _core.Context, stream: int
    ) -> tuple[Any, _core.Array]:
        """A new array on the device of ``like`` (of ``context`` where like is None), and the same array borrowed."""
        buffer = _core.Buffer(context, dtype, shape, stream)
        return buffer, buffer.array()

    def hand_over(self, native: Any, dtype: str) -> Any:
        """What ``empty`` made, filled, as the user gets it."""
        return native

    def note_write(self, tensor: Any) -> None:
        """Tells the framework that a table wrote into its tensor."""

    def wrap(self, buffer: _core.Buffer) -> Any:
        """A zero-copy view of a buffer."""
        return buffer


class BufferFramework(Framework):
    writable = True

    def borrow(self, tensor: Any, stream: int | None) -> _core.Array:
        array: _core.Array = tensor.array()
        if not array.contiguous:
            raise ValueError(
                "the Buffer is a column of a table's rows, which are longer: give a dense copy, as PyTorch, CuPy and "
                "NumPy make them of it"
            )
        return array

    def stream(self, tensor: Any, index: int) -> int:
        return default_stream(index)


class NumPyFramework(Framework):
    name = "numpy"
    writable = True

    def borrow(self, tensor: Any, stream: int | None) -> _core.Array:
        array = _core.borrow(tensor)
        return array if array.contiguous else _core.borrow(tensor.copy(order="C"))

    def stream(self, tensor: Any, index: int) -> int:
        return default_stream(index)

    def broadcast(self, tensor: Any, shape: Shape) -> Any:
        return np.broadcast_to(tensor, shape).copy()

    def empty(
        self, like: Any, dtype: str, shape: Shape, context: _core.Context, stream: int
    ) -> tuple[Any, _core.Array]:
        native = _core.empty_array(shape, np.dtype(numpy_dtype(dtype) if dtype == "bfloat16" else dtype))
        return native, _core.borrow(native)

    def wrap(self, buffer: _core.Buffer) -> Any:
        return np.asarray(buffer)


class PythonFramework(NumPyFramework):
    """Numbers and sequences; the table converts them, and answers in NumPy arrays or numbers."""

    name = "python"
    python = True
    writable = False


class ArrayLikeFramework(NumPyFramework):
    """Objects with ``__array__`` and no ``__dlpack__``; answered in NumPy arrays."""

    name = "array-like"
    writable = False

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """The object's numbers, of which none is converted."""
        return np.asarray(tensor)

    def borrow(self, tensor: Any, stream: int | None) -> _core.Array:
        return super().borrow(self.to_numpy(tensor), stream)

    def broadcast(self, tensor: Any, shape: Shape) -> Any:
        return super().broadcast(self.to_numpy(tensor), shape)


class ColumnFramework(ArrayLikeFramework):
    """Series, indexes and frames of pandas, polars and Arrow, and whatever else has Arrow's C interface, as DuckDB's
    relations have. They may hold nulls, and are answered in NumPy arrays.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        return nulls.to_numpy(tensor)


class TorchFramework(Framework):
    name = "torch"
    writable = True

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        _core.use_framework("torch", torch)
        self._raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._initialized = False
        self._empty = torch.empty
        self._dtypes = {name: getattr(torch, name) for name in ITEMSIZES if hasattr(torch, name)}

    def borrow(self, tensor: Any, stream: int | None) -> _core.Array:
        array = _core.borrow(tensor, stream)
        if array.contiguous:
            return array
        # Not contiguous(), which copies no dense tensor, however it is aligned.
        return _core.borrow(tensor.clone(memory_format=self.torch.contiguous_format), stream)

    def stream(self, tensor: Any, index: int) -> int:
        if not self._initialized:
            if self._raw_stream is None or not self.torch.cuda.is_initialized():
                return 0
            self._initialized = True
        stream: int = self._raw_stream(index)
        return stream

    def broadcast(self, tensor: Any, shape: Shape) -> Any:
        return tensor.expand(shape).contiguous()

    def empty(
        self, like: Any, dtype: str, shape: Shape, context: _core.Context, stream: int
    ) -> tuple[Any, _core.Array]:
        device = context.device if like is None else like.device
        native = self._empty(shape, dtype=self._dtypes[dtype], device=device)
        return native, _core.borrow(native, stream)

    def note_write(self, tensor: Any) -> None:
        self.torch.autograd.graph.increment_version(tensor)

    def wrap(self, buffer: _core.Buffer) -> Any:
        return self.torch.from_dlpack(buffer)


class CuPyFramework(Framework):
    name = "cupy"
    writable = True

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        _core.use_framework("cupy", cupy)

    def compact(self, tensor: Any) -> Any:
        with tensor.device:
            return tensor.copy(order="C")

    def stream(self, tensor: Any, index: int) -> int:
        stream: int = self.cupy.cuda.get_current_stream(index).ptr
        return stream

    def broadcast(self, tensor: Any, shape: Shape) -> Any:
        with tensor.device:
            return self.cupy.broadcast_to(tensor, shape).copy(order="C")

    def empty(
        self, like: Any, dtype: str, shape: Shape, context: _core.Context, stream: int
    ) -> tuple[Any, _core.Array]:
        with self.cupy.cuda.Device(context.device_index):
            native = self.cupy.empty(shape, numpy_dtype(dtype))
            return native, _core.borrow(native, stream)

    def wrap(self, buffer: _core.Buffer) -> Any:
        return self.cupy.from_dlpack(buffer)


class JaxFramework(Framework):
    """Reads in place, never writes; works on private streams, and may free an input as soon as it is given back."""

    name = "jax"
    private_streams = True

    def __init__(self, jax: Any) -> None:
        self.jax = jax

    def compact(self, tensor: Any) -> Any:
        return tensor.copy()

    def stream(self, tensor: Any, index: int) -> int:
        return default_stream(index)

    def broadcast(self, tensor: Any, shape: Shape) -> Any:
        return self.jax.numpy.broadcast_to(tensor, shape)

    def empty(
        self, like: Any, dtype: str, shape: Shape, context: _core.Context, stream: int
    ) -> tuple[Any, _core.Array]:
        self._check_width(dtype)
        return super().empty(like, dtype, shape, context, stream)

    def _check_width(self, dtype: str) -> None:
        if dtype in ("int64", "uint64", "float64", "complex128") and not self.jax.config.jax_enable_x64:
            raise TypeError(
                f"JAX would silently narrow the {dtype} output to half its bits: enable 64-bit types with "
                "jax.config.update('jax_enable_x64', True), or ask for another framework"
            )

    def hand_over(self, native: Any, dtype: str) -> Any:
        self._check_width(dtype)
        return self.jax.dlpack.from_dlpack(native)

    def wrap(self, buffer: _core.Buffer) -> Any:
        raise ValueError("JAX arrays never change, and this view of table memory would: ask for PyTorch, CuPy or NumPy")


class TensorFlowFramework(Framework):
    """Reads in place, never writes; its tensors tell no stream, so that the host waits for the GPU's."""

    name = "tensorflow"
    private_streams = True

    def __init__(self, tensorflow: Any) -> None:
        self.tensorflow = tensorflow

    def borrow(self, tensor: Any, stream: int | None) -> _core.Array:
        if not hasattr(tensor, "__dlpack__"):  # tf.Variable
            tensor = self.tensorflow.convert_to_tensor(tensor)
        if not hasattr(tensor, "numpy"):
            raise TypeError(
                f"{tensor!r} is a symbolic tensor of a TensorFlow graph, without contents yet: call the table outside "
                "tf.function, with eager tensors"
            )
        return _core.borrow(tensor, None)  # it refuses to be told a stream: wait_until_ready() was called before

    def stream(self, tensor: Any, index: int) -> int:
        return default_stream(index)

    def wait_until_ready(self, tensor: Any) -> None:
        self.tensorflow.test.experimental.sync_devices()

    def broadcast(self, tensor: Any, shape: Shape) -> Any:
        return self.tensorflow.broadcast_to(tensor, shape)

    def hand_over(self, native: Any, dtype: str) -> Any:
        # TensorFlow takes unversioned capsules alone.
        return self.tensorflow.experimental.dlpack.from_dlpack(native.__dlpack__())

    def wrap(self, buffer: _core.Buffer) -> Any:
        raise ValueError(
            "TensorFlow tensors never change, and this view of table memory would: ask for PyTorch, CuPy or NumPy"
        )


_core.use_framework("numpy", np)
PYTHON = PythonFramework()
NUMPY = NumPyFramework()
BUFFER = BufferFramework()
_ARRAY_LIKE = ArrayLikeFramework()
_GENERIC = Framework()
_HOST_DEVICES = (1, 3)  # of DLPack: host memory, and host memory that is pinned
_CUDA_DEVICES = (2, 13)  # GPU memory, and managed memory
_PYTHON_TYPES = (int, float, complex, np.generic, Sequence, KeysView, ValuesView)

_by_type: dict[type, Framework] = {}
_by_library: dict[str, ColumnFramework] = {}
_by_name: dict[str, Framework] = {"numpy": NUMPY, "python": NUMPY, "buffer": BUFFER}


def framework_of(tensor: Any) -> Framework:
    """The framework of an array, found by its type.

    Raises
    ------
    TypeError
        For objects that are not arrays, numbers or sequences of numbers.
    """
    kind = type(tensor)
    framework = _by_type.get(kind)
    if framework is None:
        framework = _by_type[kind] = _detect(kind)
    return framework


def framework_named(name: str) -> Framework:
    """The framework of that name, imported if need be."""
    framework = _by_name.get(name)
    if framework is None:
        makers = {
            "torch": TorchFramework,
            "cupy": CuPyFramework,
            "jax": JaxFramework,
            "tensorflow": TensorFlowFramework,
        }
        if name not in makers:
            raise ValueError(f"framework {name!r} is not known: give one of numpy, buffer, {', '.join(makers)}")
        framework = _by_name[name] = makers[name](importlib.import_module(name))
    return framework


def framework_like(like: object, host: bool) -> Framework:
    """The framework that `like` names or is an array of; without it the one that outputs without keys come in."""
    if like is None:
        if host:
            return NUMPY
        for name in ("torch", "cupy"):
            if name in sys.modules:
                return framework_named(name)
        return BUFFER
    if isinstance(like, str):
        return framework_named(like)
    framework = framework_of(like)
    return NUMPY if isinstance(framework, NumPyFramework) else framework


def _detect(kind: type) -> Framework:
    if issubclass(kind, np.ndarray):
        return NUMPY
    if issubclass(kind, (str, bytes, bytearray, memoryview)):
        advice = "" if issubclass(kind, memoryview) else f"; {NUMBER_STRINGS}"
        raise TypeError(f"{kind.__name__} objects are not arrays: give numbers, sequences of them or arrays{advice}")
    if issubclass(kind, _PYTHON_TYPES):
        return PYTHON
    if issubclass(kind, _core.Buffer):
        return BUFFER
    if (refusal := consumers.refuse_array(kind)) is not None:
        raise refusal
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "torch" in roots and issubclass(kind, sys.modules["torch"].Tensor):
        return framework_named("torch")
    if "cupy" in roots and issubclass(kind, sys.modules["cupy"].ndarray):
        return framework_named("cupy")
    if ("jax" in roots or "jaxlib" in roots) and "jax" in sys.modules:
        jax = sys.modules["jax"]
        if issubclass(kind, jax.core.Tracer):
            raise TypeError(
                f"a JAX {kind.__name__} has no contents inside jit: call the table outside, with JAX arrays"
            )
        if issubclass(kind, jax.Array):
            return framework_named("jax")
    if "tensorflow" in roots and issubclass(
        kind, (sys.modules["tensorflow"].Tensor, sys.modules["tensorflow"].Variable)
    ):
        return framework_named("tensorflow")
    for library in nulls.LIBRARIES:
        if library in roots and hasattr(kind, "__array__"):
            return _by_library.setdefault(library, ColumnFramework(library))
    if hasattr(kind, "__dlpack__"):
        return _GENERIC
    if arrow_c.is_arrow(kind):
        return _by_library.setdefault("arrow", ColumnFramework("arrow"))
    if hasattr(kind, "__array__"):
        return _ARRAY_LIKE
    raise TypeError(f"{kind.__name__} objects are not arrays: give numbers, sequences of them or arrays")


def settle(tensor: Any) -> tuple[Any, bool]:
    """A column as a NumPy array, and whether its entries are whole, such as UUIDs; anything else as it is.

    For calls that look at it twice: some can be read once, as streams.
    """
    if isinstance(framework_of(tensor), ColumnFramework):
        return nulls.settle(tensor)
    return tensor, False


def gpu_of(tensor: Any, framework: Framework) -> int | None:
    """The number of the GPU that the tensor lies on; None for the host."""
    if framework.name == "torch":  # whose own answer asks an operator about pinned memory, and so any mode that is on
        array = _core.borrow(tensor)
        return None if array.platform == "cpu" else array.device_index
    if hasattr(tensor, "__dlpack_device__"):
        kind, index = tensor.__dlpack_device__()
        if kind in _HOST_DEVICES:
            return None
        if kind in _CUDA_DEVICES:
            return int(index)
    array = framework.borrow(tensor, 0)  # which knows, or says what is wrong
    return None if array.platform == "cpu" else array.device_index


def default_stream(index: int) -> int:
    """The stream for work that no framework asked for: PyTorch's or CuPy's current one where they are in use."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        stream: int = torch._C._cuda_getCurrentRawStream(index)
        return stream
    cupy = sys.modules.get("cupy")
    if cupy is not None and hasattr(cupy, "cuda"):
        return int(cupy.cuda.get_current_stream(index).ptr)
    return 0
