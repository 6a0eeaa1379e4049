"""Devices by name, and the adapters that let a table take its memory from other libraries' resources."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol

from gpuhash import _core

_contexts: dict[tuple[str, int], _core.Context] = {}


class MemoryResource(Protocol):
    """What a table needs of a memory resource: memory in stream order, by address."""

    def allocate(self, nbytes: int, stream: int) -> int: ...

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None: ...


class StreamHandle(int):
    """The address of a cudaStream_t, which also speaks the protocol that libraries take each other's streams by.

    https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html
    """

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self)


class PlainResource:
    """Any object with ``allocate(nbytes, stream)`` and ``deallocate(ptr, nbytes, stream)``.

    ``allocate`` may return an address or an object with a ``handle``; such an object is held until the memory is given
    back, and then closed where it can be, otherwise ``deallocate`` is called.
    """

    def __init__(self, resource: Any) -> None:
        self.resource = resource
        self._held: dict[int, Any] = {}

    def stream(self, stream: int) -> Any:
        return StreamHandle(stream)

    def allocate(self, nbytes: int, stream: int) -> int:
        memory = self.take(nbytes, self.stream(stream))
        if hasattr(memory, "handle"):
            address = int(memory.handle)
            self._held[address] = memory
            return address
        return int(memory)

    def take(self, nbytes: int, stream: Any) -> Any:
        return self.resource.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        memory = self._held.pop(ptr, None)
        if memory is not None and hasattr(memory, "close"):
            memory.close(self.stream(stream))
        else:
            self.resource.deallocate(ptr, nbytes, self.stream(stream))


class RmmResource(PlainResource):
    """A resource of rmm, which takes only its own streams."""

    def __init__(self, resource: Any) -> None:
        super().__init__(resource)
        self._make_stream = importlib.import_module("rmm.pylibrmm.stream").Stream
        self._streams: dict[int, Any] = {}

    def stream(self, stream: int) -> Any:
        known = self._streams.get(stream)
        if known is None:
            # Without an argument it is the legacy default stream.
            known = self._streams[stream] = self._make_stream(StreamHandle(stream)) if stream else self._make_stream()
        return known


class CudaCoreResource(PlainResource):
    """A resource of cuda.core, whose buffers free their memory when they are closed."""

    def __init__(self, resource: Any) -> None:
        super().__init__(resource)
        experimental = any(base.__module__.startswith("cuda.core.experimental") for base in type(resource).__mro__)
        self._make_stream = importlib.import_module("cuda.core.experimental" if experimental else "cuda.core").Stream
        self._streams: dict[int, Any] = {}

    def stream(self, stream: int) -> Any:
        known = self._streams.get(stream)
        if known is None:
            # 1 is cudaStreamLegacy, the default stream by its own handle.
            known = self._streams[stream] = self._make_stream.from_handle(stream or 1)
        return known

    def take(self, nbytes: int, stream: Any) -> Any:
        return self.resource.allocate(nbytes, stream=stream)


class TorchResource:
    """PyTorch's caching allocator on one GPU."""

    def __init__(self, index: int) -> None:
        self._cuda = importlib.import_module("torch").cuda
        self._index = index
        self._made_on: dict[int, int] = {}

    def allocate(self, nbytes: int, stream: int) -> int:
        try:
            ptr: int = self._cuda.caching_allocator_alloc(nbytes, self._index, stream)
        except self._cuda.OutOfMemoryError as error:
            raise MemoryError(f"PyTorch's caching allocator has no {nbytes} bytes: {error}") from None
        self._made_on[ptr] = stream
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        made_on = self._made_on.pop(ptr, stream)
        try:
            # The allocator hands the block out again in the order of the stream that it was made on. That may have been
            # destroyed since, or be captured now, and is then not to be told to wait: the host does.
            if made_on != stream:
                make_context(f"cuda:{self._index}").synchronize(stream)
        finally:
            self._cuda.caching_allocator_delete(ptr)


def parse_device(device: object) -> tuple[str, int]:
    """Platform and index of "cpu", "cuda", "cuda:1", a torch.device or anything whose ``str`` is one of these.

    "cuda" without a number is PyTorch's current GPU where PyTorch uses one, otherwise the first.
    """
    platform, colon, number = str(device).partition(":")
    if platform not in ("cpu", "cuda") or (colon and not (number.isascii() and number.isdigit())):
        raise ValueError(f"device {device!r} is not known: give 'cpu', 'cuda' or 'cuda:<number>'")
    if platform == "cpu":
        return "cpu", 0
    if number:
        if len(number.lstrip("0")) > 9:  # more than the core's number of a GPU has
            raise _core.PlatformError(f"there is no device {device!r}: GPUs are numbered from 'cuda:0' on")
        return platform, int(number)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return platform, int(torch.cuda.current_device())
    return platform, 0


def devices_of(device: object) -> list[object]:
    """The devices of a table's ``device=``: those of a list, or of "cuda:0,cuda:1", and all GPUs for "cuda:all".

    A list of one device is a table of one shard; a single device is no list.
    """
    if isinstance(device, (list, tuple)):
        return [each for given in device for each in devices_of(given)]
    name = str(device)
    if name == "cuda:all":
        gpus = len(_core.platform_devices("cuda"))
        return [f"cuda:{index}" for index in range(max(gpus, 1))]  # without one, making the context says why
    return list(name.split(",")) if "," in name else [device]


def is_sharded(device: object) -> bool:
    """Does ``device=`` ask for a table of several shards?"""
    return isinstance(device, (list, tuple)) or str(device) == "cuda:all" or "," in str(device)


def make_contexts(device: object, memory: object = None) -> tuple[_core.Context, ...]:
    """The contexts of ``device=``, one per shard.

    Raises
    ------
    ValueError
        For no devices, devices that are not known, and devices of several platforms.
    PlatformError
        For devices that are not there.
    """
    if not is_sharded(device):
        return (make_context(device, memory),)
    devices = devices_of(device)
    platforms = {parse_device(each)[0] for each in devices}
    if len(platforms) != 1:
        raise ValueError(f"device={device!r} was given: a table's shards lie on one or more devices of one platform")
    memories = memory if isinstance(memory, (list, tuple)) else [memory] * len(devices)
    if len(memories) != len(devices) or (memory is not None and not isinstance(memory, (str, list, tuple))):
        raise ValueError(
            f"memory={memory!r} was given for {len(devices)} shards: give 'torch', or a list with a resource for each"
        )
    return tuple(make_context(each, resource) for each, resource in zip(devices, memories, strict=True))


def make_context(device: object, memory: object = None) -> _core.Context:
    """The context of a device, shared between all who leave the memory resource to it."""
    platform, index = parse_device(device)
    if memory is not None:
        return _core.Context(platform, index, _adapt(memory, platform, index))
    context = _contexts.get((platform, index))
    if context is None:
        context = _contexts[platform, index] = _core.Context(platform, index)
    return context


def _adapt(memory: Any, platform: str, index: int) -> MemoryResource:
    if isinstance(memory, str):
        if memory != "torch":
            raise ValueError(f"memory={memory!r} is not known: give 'torch' or an object with allocate and deallocate")
        if platform != "cuda":
            raise ValueError("memory='torch' is PyTorch's caching allocator of GPU memory: make the table on 'cuda'")
        return TorchResource(index)
    if not (callable(getattr(memory, "allocate", None)) and callable(getattr(memory, "deallocate", None))):
        raise TypeError(
            f"memory is a {type(memory).__name__} without allocate(nbytes, stream) and deallocate(ptr, nbytes, stream)"
        )
    modules = [base.__module__ for base in type(memory).__mro__]
    if any(module.partition(".")[0] == "rmm" for module in modules):
        return RmmResource(memory)
    if any(module.startswith("cuda.core") for module in modules):
        return CudaCoreResource(memory)
    return PlainResource(memory)
