"""Named tensors of this process: what one framework saves, any other reads, without a copy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

from gpuhash import _core
from gpuhash.arrays.arguments import is_unicode, need_unicode
from gpuhash.arrays.dtypes import ITEMSIZES, infer_numbers
from gpuhash.arrays.frameworks import NUMPY, ArrayLikeFramework, Framework, framework_like, framework_of, gpu_of

_HOST_ALIGNMENT = 64  # TensorFlow ends the process below it, and JAX copies


class TensorStore(MutableMapping[str, Any]):
    """The tensors of this process that have a name: a mapping from names to tensors, of which there is one.

    ``gpuhash.store`` is shared with every library that links to libgpuhash, such as the TensorFlow ops of
    ``gpuhash.tensorflow``: what a graph saves is read here, and the reverse. Tensors are of any shape, on the host or a
    GPU, of bool, integers of 8 to 64 bits, float16, bfloat16, float32, float64, complex64 and complex128; those of
    TensorFlow may be of its other dtypes, too.

    Nothing is copied, on the way in or out. Whoever writes into a tensor writes for all who read it; a saved array must
    not be given other memory (as by ``resize_`` or ``set_`` in PyTorch). The memory lives until neither the store nor
    any array that came out of it holds it.

    Work that is enqueued on a GPU after a tensor has been read sees it as the saving framework's stream left it when it
    was saved; the host does not wait, except for JAX and TensorFlow, whose streams cannot be told. Every method may be
    called from any thread.
    """

    __slots__ = ()

    def __setitem__(self, name: str, tensor: Any) -> None:
        """Saves a tensor under a name, in the place of what had it before. Does not wait for the GPU.

        Parameters
        ----------
        name
            Any string that is valid Unicode.
        tensor
            A C-contiguous array of any framework, which is held as it is; or numbers, or nested sequences of them,
            which become a NumPy array. Columns of pandas, polars and Arrow keep their dtype, and may have no nulls.

        Raises
        ------
        TypeError
            For a name that is no string, and for what is no tensor with contents: objects of other types, arrays of
            other dtypes, tensors that require grad or that a framework is tracing, variables.
        ValueError
            For arrays that are not C-contiguous, columns with nulls, and a name with half of a surrogate pair.
        OverflowError
            For Python integers that no 64-bit dtype holds together.
        """
        _check_name(name)
        need_unicode(name, "the name of a tensor")
        framework = framework_of(tensor)
        if framework.python:
            tensor, framework = infer_numbers(tensor, "numbers"), NUMPY
        elif isinstance(framework, ArrayLikeFramework):
            tensor, framework = framework.to_numpy(tensor), NUMPY
        if framework.name == "tensorflow" and _save_by_tensorflow(name, tensor):
            return
        index = gpu_of(tensor, framework)
        on_gpu = index is not None
        stream = 0 if index is None else framework.stream(tensor, index)
        if on_gpu and framework.private_streams:
            framework.wait_until_ready(tensor)
        if framework.name in ("buffer", "tensorflow"):
            array = framework.borrow(tensor, stream if on_gpu else None)
        else:  # borrow() of the others would copy where they are not dense
            array = _core.borrow(tensor, stream if on_gpu else None)
        if not array.contiguous:
            raise ValueError(
                f"the {type(tensor).__name__} of shape {array.shape} is not C-contiguous, or not aligned to its "
                "elements, and the store copies nothing: save a contiguous copy of it, as by numpy.ascontiguousarray() "
                "or .contiguous() in PyTorch"
            )
        _core.put_tensor(name, array, tensor, stream, on_gpu and framework.private_streams)

    def __getitem__(self, name: str) -> Any:
        """The tensor of that name: ``tensor(name)``."""
        return self.tensor(name)

    def tensor(self, name: str, like: Any = None) -> Any:
        """The tensor of that name, without a copy.

        Parameters
        ----------
        name
            The name that it was saved under.
        like
            The framework of the result, by name ("torch", "cupy", "jax", "tensorflow", "numpy", or "buffer" for a plain
            object with ``__dlpack__``) or by one of its arrays.

        Returns
        -------
        The very object that Python saved, if ``like`` is None or of its framework; otherwise an array on the same
        memory. Without ``like``, what a TensorFlow graph saved is a TensorFlow tensor where TensorFlow is imported, and
        what other libraries saved is an array of NumPy on the host and of PyTorch or CuPy, whichever is imported, on a
        GPU. A NumPy array on memory that its owner counts on nobody writing into is read-only; frameworks without
        read-only arrays do not keep you from it. Does not wait for the GPU, unless ``like`` is JAX or TensorFlow.

        Raises
        ------
        KeyError
            Where no tensor has the name.
        TypeError
            For a name that is no string; where the framework lacks the dtype, or cannot reach a GPU's memory.
        ValueError
            Where the framework takes the memory only by a copy: CuPy that of the host, JAX and TensorFlow that of the
            host whose address is not a multiple of 64.
        """
        found = _find(name)
        if found is None:
            raise _absent(name)
        if found.dtype is None:
            return _read_by_tensorflow(name, like)
        on_host = found.platform == "cpu"
        native = found.native
        if native is not None:
            framework = framework_of(native)
            if like is None or framework_like(like, on_host) is framework:
                if not on_host:
                    found.wait(framework.stream(native, found.device_index))
                return native
        if like is None and found.framework == "tensorflow" and "tensorflow" in sys.modules:
            like = "tensorflow"
        return _convert(found, name, framework_like(like, on_host))

    def __delitem__(self, name: str) -> None:
        """Takes the name away; arrays that came out of the store keep the memory. KeyError where there was none."""
        _check_name(name)
        if not (is_unicode(name) and _core.remove_tensor(name)):
            raise _absent(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _find(name) is not None

    def __iter__(self) -> Iterator[str]:
        """The names that there are now, in ascending order."""
        return iter(_core.tensor_names())

    def __len__(self) -> int:
        return len(_core.tensor_names())

    def clear(self) -> None:
        """Takes all names away."""
        for name in _core.tensor_names():
            _core.remove_tensor(name)

    # There is one store: comparing what it holds would compare tensors.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<gpuhash.store: {', '.join(map(_describe, self)) or 'empty'}>"


store = TensorStore()


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"names of tensors are strings, and this is a {type(name).__name__}: {name!r}")


def _find(name: str) -> _core.StoredTensor | None:
    _check_name(name)
    return _core.find_tensor(name) if is_unicode(name) else None


def _absent(name: str) -> KeyError:
    return KeyError(f"no tensor is named {name!r}; there are: {', '.join(_core.tensor_names()) or 'none'}")


def _describe(name: str) -> str:
    found = _core.find_tensor(name)
    if found is None:
        return f"{name!r} (deleted)"
    return f"{name!r} ({found.dtype or found.framework} {list(found.shape)} on {found.device})"


def _save_by_tensorflow(name: str, tensor: Any) -> bool:
    """Gives the tensor to TensorFlow's own op, if it is of a dtype that only TensorFlow knows and the op is there."""
    tensorflow = sys.modules["tensorflow"]
    if isinstance(tensor, tensorflow.Variable):
        raise TypeError(
            "a tf.Variable takes other memory when it is assigned to: save its value of now, variable.read_value()"
        )
    if not hasattr(tensor, "numpy"):
        raise TypeError(
            f"{tensor!r} is a symbolic tensor of a TensorFlow graph, without contents yet: inside of tf.function, call "
            "gpuhash.tensorflow.save_tensor(name, tensor)"
        )
    ops = sys.modules.get("gpuhash.tensorflow")
    if ops is None or tensor.dtype.name in ITEMSIZES:
        return False  # borrowing says what is wrong with the dtype, if anything
    ops.save_tensor(name, tensor)
    return True


def _read_by_tensorflow(name: str, like: Any) -> Any:
    """A tensor that TensorFlow saved, as TensorFlow's own op gives it."""
    if like is not None and framework_like(like, True).name != "tensorflow":
        raise TypeError(
            f"the tensor {name!r} is of a dtype that only TensorFlow has, such as strings: read it without like=, or "
            "with like='tensorflow'"
        )
    ops = sys.modules.get("gpuhash.tensorflow")
    if ops is None:
        raise TypeError(
            f"the tensor {name!r} is of a dtype that only TensorFlow has, such as strings: import gpuhash.tensorflow "
            "to read it"
        )
    return ops.get_tensor(name)


def _convert(found: _core.StoredTensor, name: str, framework: Framework) -> Any:
    """An array of the framework on the tensor's memory."""
    on_host = found.platform == "cpu"
    if on_host and framework.name == "cupy":
        raise ValueError(f"the tensor {name!r} is on the host, where CuPy has no arrays: ask for another framework")
    if on_host and framework.private_streams and 0 not in found.shape and found.data % _HOST_ALIGNMENT:
        if found.framework == framework.name and "gpuhash.tensorflow" in sys.modules:
            return _read_by_tensorflow(name, None)
        raise ValueError(
            f"the memory of the tensor {name!r} begins at {found.data:#x}, and {framework.name} takes host memory "
            f"without a copy only at multiples of {_HOST_ALIGNMENT}: save a tensor of PyTorch, TensorFlow or JAX, "
            "which begin there, or copy it, as by giving the NumPy array that like='numpy' gives to "
            f"{framework.name}"
        )
    stream = 0 if on_host else framework.stream(None, found.device_index)
    buffer = found.buffer(stream)
    if not framework.private_streams:
        return framework.wrap(buffer)
    if not on_host:
        found.context.synchronize(stream)
    return framework.hand_over(buffer, buffer.dtype)
