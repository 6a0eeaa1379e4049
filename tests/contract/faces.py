"""Every face of a table behind one vocabulary of calls: NumPy's arrays in, NumPy's arrays out.

A face is a class; an object of it is a new table. Its methods are the calls of ``CALLS``, whatever the face's own call
is named. ``lacks`` says which calls a face has not, and what the face itself answers to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from support.frameworks import GPU, Framework, module, need_place, to_numpy
from support.graphs import need_tensorflow
from support.jit import need_jax
from support.ranks import Ranks

import gpuhash
from gpuhash.signatures import SIGNATURES

#: The vocabulary, in the order of the table of calls. A set's ``add`` is its ``insert``.
CALLS = (*(call for call in SIGNATURES if call != "add"), "columns", "batches")


@dataclass(frozen=True)
class Lack:
    """Why a face has not got a call. ``error``: what the face raises; None where it has nothing of that name.

    ``hole``: the call is to come, which test_calls.py expects to fail until then.
    """

    why: str
    error: type[Exception] | None = None
    text: str = ""
    hole: bool = False


ABSENT = Lack("no such call", hole=True)
_NO_VALUES = Lack("a set has no values")
_OF_ONE_DEVICE = Lack("its table has one shard: one batch a call")
_OUTSIDE = "by the table itself, outside of programs"


class Face:
    """A table on the host, with NumPy's arrays: what other faces differ from."""

    name = "host"
    #: The calls that have another name here.
    names: ClassVar[dict[str, str]] = {}
    lacks: ClassVar[dict[str, Lack]] = {"batches": _OF_ONE_DEVICE}
    has_values = True
    takes_python = True  # Python's numbers and lists as keys
    always_has_default = False  # so that no lookup fails for want of one
    raises_for_absent = True  # in pop() without a default
    device: Any = "cpu"

    #: What is raised, by its cause.
    dtype_error: Any = TypeError
    shape_error: Any = ValueError
    absent_error: Any = KeyError
    full_error: Any = gpuhash.TableFullError

    @classmethod
    def need(cls) -> None:
        """Skips where the face cannot be had here."""

    def __init__(self, key_dtype: str = "int64", value_dtype: Any = "int64", **options: Any) -> None:
        options = {"deterministic": True, "device": self.device, **options}
        self.value_shape: tuple[int, ...] = options.get("value_shape", ())
        self.table = self.make(key_dtype, value_dtype, options)

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        return gpuhash.HashTable(key_dtype, value_dtype, **options)

    @property
    def subject(self) -> Any:
        """What the face's calls are attributes of."""
        return self.table

    @classmethod
    def own_name(cls, call: str) -> str:
        return cls.names.get(call) or (SIGNATURES[call].method if call in SIGNATURES else call)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """The face's own call, with its own arrays."""
        function: Any = self.subject
        for part in self.own_name(name).split("."):
            function = getattr(function, part)
        given = {key: self.give(value) for key, value in options.items() if value is not None}
        return self.take(function(*map(self.give, args), **given))

    def give(self, argument: Any) -> Any:
        """NumPy's arrays as the face's; what else there is as it is."""
        if isinstance(argument, np.ndarray):
            return self.array(argument)
        if isinstance(argument, Mapping):
            return {name: self.give(each) for name, each in argument.items()}
        if isinstance(argument, list) and argument and isinstance(argument[0], (np.ndarray, Mapping)):
            return [self.give(each) for each in argument]
        return argument

    def array(self, host: np.ndarray) -> Any:
        return host

    def take(self, answer: Any) -> Any:
        """The face's arrays as NumPy's."""
        if isinstance(answer, (tuple, list)):
            return type(answer)(map(self.take, answer)) if type(answer) in (tuple, list) else tuple(answer)
        if isinstance(answer, Mapping):
            return {name: self.take(each) for name, each in answer.items()}
        return to_numpy(answer) if hasattr(answer, "shape") else answer

    # Changes

    def insert(self, keys: Any, values: Any = None) -> Any:
        return self.call("insert", keys, values)

    def insert_or_assign(self, keys: Any, values: Any) -> Any:
        return self.call("insert_or_assign", keys, values)

    def setitem(self, keys: Any, values: Any) -> None:
        self.call("setitem", keys, values)

    def insert_or_apply(self, keys: Any, values: Any, op: Any) -> Any:
        return self.call("insert_or_apply", keys, values, op)

    def apply_and_find(self, keys: Any, values: Any, op: Any) -> Any:
        return self.call("apply_and_find", keys, values, op)

    def find_or_insert(self, keys: Any, values: Any = None) -> Any:
        return self.call("find_or_insert", keys, values)

    def setdefault(self, keys: Any, default: Any = None) -> Any:
        return self.call("setdefault", keys, default)

    def put(self, keys: Any, values: Any) -> None:
        """Fills a new table, by the call that every face has."""
        self.insert(keys, values)

    # Lookups

    def find(self, keys: Any, default: Any = None, columns: Any = None) -> Any:
        return self.call("find", keys, default, columns=columns)

    def get(self, keys: Any, default: Any = None) -> Any:
        return self.call("get", keys, default)

    def getitem(self, keys: Any) -> Any:
        return self.call("getitem", keys)

    def contains(self, keys: Any) -> Any:
        return self.call("contains", keys)

    def has(self, key: Any) -> bool:
        return key in self.table

    def rows(self, keys: Any) -> Any:
        return self.call("rows", keys)

    # Erasures

    def erase(self, keys: Any) -> Any:
        return self.call("erase", keys)

    def delete(self, keys: Any) -> None:
        self.call("delete", keys)

    def pop(self, keys: Any, *default: Any) -> Any:
        return self.call("pop", keys, *default)

    def popitem(self) -> Any:
        return self.call("popitem")

    # The whole table

    def size(self) -> int:
        return int(self.call("size"))

    def keys(self) -> np.ndarray:
        return self.call("keys")

    def values(self) -> Any:
        return self.call("values")

    def items(self) -> Any:
        return self.call("items")

    def clear(self) -> None:
        self.call("clear")

    def reserve(self, size: int) -> None:
        self.call("reserve", size)

    def refuse(self, call: str) -> None:
        """Makes a call that the face refuses."""
        keys, values = np.arange(3), np.arange(3)
        if call == "columns":
            type(self)("int64", {"x": "int64"})
        elif call in ("insert", "insert_or_assign", "setitem", "find_or_insert", "setdefault"):
            getattr(self, call)(keys, values)
        elif call in ("insert_or_apply", "apply_and_find"):
            getattr(self, call)(keys, values, "add")
        elif call in ("keys", "values", "items", "clear", "popitem", "size"):
            getattr(self, call)()
        elif call == "reserve":
            self.reserve(100)
        elif call == "has":
            self.has(1)
        else:
            getattr(self, call)(keys)


class OnGpu(Face):
    """The same on a GPU, with PyTorch's tensors."""

    name = "gpu"
    device = GPU

    @classmethod
    def need(cls) -> None:
        need_place(Framework("torch", GPU, GPU))

    def array(self, host: np.ndarray) -> Any:
        return Framework("torch", GPU, GPU).array(host)


class Sharded(Face):
    """Two shards on the host."""

    name = "shards"
    device = ("cpu", "cpu")
    lacks: ClassVar[dict[str, Lack]] = {}

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        return gpuhash.HashTable(key_dtype, value_dtype, **{**options, "device": list(options["device"])})


class OfWideKeys(Face):
    """A table on the host whose keys have numbers behind them that are always the same, and so more than 16 bytes."""

    name = "wide-keys"
    takes_python = False

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        self.key_shape = options.pop("key_shape", ())
        self.behind = np.arange(1, 17 // np.dtype(key_dtype).itemsize + 2, dtype=key_dtype)
        length = int(np.prod(self.key_shape, dtype=int)) + len(self.behind)
        return gpuhash.HashTable(key_dtype, value_dtype, key_shape=length, **options)

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        if args and name not in ("size", "reserve"):
            args = (self.widened(args[0]), *args[1:])
        answer = super().call(name, *args, **options)
        if name == "keys":
            return self.narrowed(answer)
        if name == "items":
            return self.narrowed(answer[0]), answer[1]
        if name == "popitem":
            key = answer[0][: -len(self.behind)]
            return (key if self.key_shape else key[0]), answer[1]
        return answer

    def has(self, key: Any) -> bool:
        return self.widened(key) in self.table

    def widened(self, keys: Any) -> Any:
        if not isinstance(keys, np.ndarray):
            return (*(keys if isinstance(keys, tuple) else (keys,)), *self.behind.tolist())
        keys = keys if self.key_shape else keys[..., None]
        behind = np.broadcast_to(self.behind, (*keys.shape[:-1], len(self.behind)))
        return np.concatenate([keys, behind.astype(keys.dtype)], axis=-1)

    def narrowed(self, keys: np.ndarray) -> np.ndarray:
        assert (keys[..., -len(self.behind) :] == self.behind).all()
        keys = keys[..., : -len(self.behind)]
        return keys if self.key_shape else keys[..., 0]


class OfWideKeysOverShards(OfWideKeys):
    """The same over two shards."""

    name = "wide-keys-shards"
    device = ("cpu", "cpu")


class OfKeys(Face):
    """A set: the same calls without values."""

    name = "set"
    has_values = False
    names: ClassVar[dict[str, str]] = {"delete": "remove"}
    lacks: ClassVar[dict[str, Lack]] = {
        **dict.fromkeys(
            (
                "insert_or_assign",
                "setitem",
                "insert_or_apply",
                "apply_and_find",
                "find_or_insert",
                "setdefault",
                "find",
                "get",
            ),
            _NO_VALUES,
        ),
        **dict.fromkeys(("getitem", "rows", "popitem", "values", "items"), _NO_VALUES),
        "columns": _NO_VALUES,
        "pop": Lack("a set's pop() takes no keys: it is what popitem() is for tables"),
        "batches": _OF_ONE_DEVICE,
    }

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        for name in ("value_shape", "default", "initializer"):
            options.pop(name, None)
        return gpuhash.HashSet(key_dtype, **options)

    def insert(self, keys: Any, values: Any = None) -> Any:
        return self.call("insert", keys)


# Several processes ---------------------------------------------------------------------------------------------------

_numbers = itertools.count()
_tables: dict[int, Any] = {}  # of a rank, by their numbers


def make_on_rank(_rank: int, _count: int, number: int, kind: str, args: tuple[Any, ...], options: Any) -> Any:
    from gpuhash import distributed

    try:
        _tables[number] = getattr(distributed, kind)(*args, **options)
    except Exception as error:
        return error
    return None


def call_on_rank(
    rank: int, _count: int, number: int, name: str, args: list[tuple[Any, ...]], options: dict[str, Any]
) -> Any:
    """What a method gives on this rank, or the error that it raises."""
    try:
        return _host(getattr(_tables[number], name)(*args[rank], **options))
    except Exception as error:
        return error


def _host(answer: Any) -> Any:
    """Tensors as NumPy's arrays, which can be sent between processes."""
    if isinstance(answer, tuple):
        return tuple(map(_host, answer))
    if isinstance(answer, Mapping):
        return {name: _host(each) for name, each in answer.items()}
    return to_numpy(answer) if hasattr(answer, "shape") else answer


def has_on_rank(_rank: int, _count: int, number: int, name: str) -> bool:
    return hasattr(_tables[number], name)


def forget_on_rank(_rank: int, _count: int, number: int) -> None:
    del _tables[number]


class _Remote:
    """Stands for the table of all ranks: it has the attributes that the table has on the ranks."""

    def __init__(self, face: Distributed) -> None:
        self.__dict__["_face"] = face

    def __getattr__(self, name: str) -> Any:
        face = self._face
        if not all(face.group.run(has_on_rank, face.number, name)):
            raise AttributeError(name)
        return lambda *args, **options: face.on_ranks(name, args, options)


class Distributed(Face):
    """Two processes, each of which gives a part of each batch, in order."""

    name = "distributed"
    kind = "HashTable"
    group: ClassVar[Ranks]  # set by the fixture
    lacks: ClassVar[dict[str, Lack]] = {
        "batches": Lack("each rank gives a batch of its own"),
    }

    @classmethod
    def need(cls) -> None:
        torch = module("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            pytest.skip("PyTorch with Gloo is not installed")

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        self.number = next(_numbers)
        self.key_dims = len(options.get("key_shape", ()))
        self.key_dtype = key_dtype
        #: How many axes one value has, of each column by its name.
        self.value_dims = {"": len(self.value_shape)}
        if isinstance(value_dtype, Mapping):
            self.value_dims = {
                name: len(each[1]) if isinstance(each, tuple) else 0 for name, each in value_dtype.items()
            }
        self._settle(self.group.run(make_on_rank, self.number, self.kind, *self._arguments(value_dtype, options)))
        return None

    def _arguments(self, value_dtype: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        return (self.key_dtype, value_dtype), options

    @property
    def subject(self) -> Any:
        return _Remote(self)

    def close(self) -> None:
        self.group.run(forget_on_rank, self.number)

    def on_ranks(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if not args or not self._is_batch(args[0]):
            mine = theirs = args
            if name in ("insert", "insert_or_assign", "__setitem__", "insert_or_apply", "erase", "add"):  # once
                none = np.empty((0, *(np.shape(args[0]) if self.key_dims else ())), self.key_dtype)
                theirs = (none, *args[1:])
            return self._settle(self.group.run(call_on_rank, self.number, name, [mine, theirs], options))[0]
        count = len(args[0])
        parts = [
            (args[0][span], *(self._part(arg, span) for arg in args[1:]))
            for span in (slice(0, count // 2), slice(count // 2, None))
        ]
        return _joined(self._settle(self.group.run(call_on_rank, self.number, name, parts, options)))

    def _is_batch(self, keys: Any) -> bool:
        return (isinstance(keys, np.ndarray) and keys.ndim > 0) or isinstance(keys, list)

    def _part(self, arg: Any, span: slice, column: str = "") -> Any:
        """A rank's part of what is given for the keys: one for each, or one for all."""
        if isinstance(arg, Mapping):
            return {name: self._part(each, span, name) for name, each in arg.items()}
        has_each = isinstance(arg, (np.ndarray, list)) and np.ndim(arg) > self.value_dims.get(column, 0)
        return arg[span] if has_each else arg

    def _settle(self, answers: list[Any]) -> list[Any]:
        """The answers; raises what the ranks raise, all of them alike."""
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if errors:
            assert len(errors) == len(answers), f"some ranks raise alone: {answers}"
            assert len({type(error) for error in errors}) == 1, f"the ranks raise different errors: {errors}"
            raise errors[0]
        return answers

    def has(self, key: Any) -> bool:
        return bool(self.call("has", key))

    def rows(self, keys: Any) -> Any:
        ranks, rows = self.call("rows", keys)
        return np.where(rows < 0, rows, (ranks << 40) + rows)

    def find_or_insert(self, keys: Any, values: Any = None) -> Any:
        ranks, rows, is_new = self.call("find_or_insert", keys, *([] if values is None else [values]))
        return (ranks << 40) + rows, is_new

    def keys(self) -> np.ndarray:
        return self.items()[0]

    def values(self) -> np.ndarray:
        return self.items()[1]

    def items(self) -> Any:
        return self.on_ranks("gather", (), {})


def _joined(parts: list[Any]) -> Any:
    """The ranks' answers to their parts of a batch, as the answer to all of it."""
    if isinstance(parts[0], tuple):
        return tuple(map(_joined, zip(*parts, strict=True)))
    if isinstance(parts[0], Mapping):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return None if parts[0] is None else np.concatenate(parts)


class DistributedSet(Distributed):
    name = "distributed-set"
    kind = "HashSet"
    has_values = False
    names: ClassVar[dict[str, str]] = OfKeys.names
    lacks: ClassVar[dict[str, Lack]] = {
        **OfKeys.lacks,
        "batches": Distributed.lacks["batches"],
    }

    def _arguments(self, value_dtype: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        mine = {name: value for name, value in options.items() if name not in ("value_shape", "default", "initializer")}
        return (self.key_dtype,), mine

    def insert(self, keys: Any, values: Any = None) -> Any:
        return self.call("insert", keys)

    def keys(self) -> np.ndarray:
        return self.on_ranks("gather", (), {})


# PyTorch -------------------------------------------------------------------------------------------------------------


class TorchModule(Face):
    """A TableModule, whose calls are PyTorch's ops."""

    name = "torch-module"
    names: ClassVar[dict[str, str]] = {
        "size": "size",
        **{call: f"table.{call}" for call in ("keys", "values", "items", "clear", "reserve")},
    }
    lacks: ClassVar[dict[str, Lack]] = {"batches": _OF_ONE_DEVICE}
    takes_python = False

    @classmethod
    def need(cls) -> None:
        from gpuhash.building.compiled_ops import find_compiler

        if module("torch") is None:
            pytest.skip("torch is not installed")
        if find_compiler() is None:
            pytest.skip("no C++ compiler is installed")

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        from gpuhash.torch import TableModule

        return TableModule(super().make(key_dtype, value_dtype, options))

    def array(self, host: np.ndarray) -> Any:
        if not host.flags.writeable or any(stride < 0 for stride in host.strides):
            host = host.copy()  # which tensors cannot be
        return module("torch").from_numpy(host)


class TorchSet(TorchModule):
    name = "torch-set"
    has_values = False
    names: ClassVar[dict[str, str]] = {**TorchModule.names, "insert": "add", **OfKeys.names}
    lacks: ClassVar[dict[str, Lack]] = {
        **{
            call: Lack("a set has no values", TypeError, "no values")
            for call in (
                *("insert_or_assign", "setitem", "insert_or_apply", "apply_and_find", "find_or_insert"),
                *("find", "get", "getitem", "rows", "setdefault", "popitem"),
            )
        },
        "columns": _NO_VALUES,
        **{call: Lack("a set has no values", AttributeError, call) for call in ("values", "items")},
        "pop": Lack(OfKeys.lacks["pop"].why, TypeError, "no values"),
        "batches": _OF_ONE_DEVICE,
    }

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        from gpuhash.torch import TableModule

        return TableModule(OfKeys.make(self, key_dtype, value_dtype, options))

    def insert(self, keys: Any, values: Any = None) -> Any:
        return self.call("insert", keys)


class TorchCompiled(Face):
    """Calls of a table in functions that PyTorch compiles."""

    name = "torch-compile"
    lacks: ClassVar[dict[str, Lack]] = {
        "batches": _OF_ONE_DEVICE,
    }
    takes_python = False

    need = TorchModule.need
    array = TorchModule.array

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        torch, table = module("torch"), self.table
        own = self.own_name(name)
        given = tuple(map(self.give, args))

        def function(*tensors: Any) -> Any:
            if own == "__getitem__":
                return table[tensors[0]]
            if own == "__setitem__":
                table[tensors[0]] = tensors[1]
                return None
            if own == "__delitem__":
                del table[tensors[0]]
                return None
            return getattr(table, own)(*tensors, **options)

        if name not in _IN_GRAPHS:
            return self.take(function(*given))
        torch._dynamo.reset()
        return self.take(torch.compile(function, backend="aot_eager", fullgraph=True)(*given))


_IN_GRAPHS = frozenset(name for name, call in SIGNATURES.items() if call.request != "whole" and name != "has")


# JAX -----------------------------------------------------------------------------------------------------------------


class Jax(Face):
    """Calls that take a state and give the next one."""

    name = "jax"
    names: ClassVar[dict[str, str]] = {
        "size": "size",
        **{call: f"table.{call}" for call in ("popitem", "keys", "values", "items", "clear", "reserve")},
    }
    lacks: ClassVar[dict[str, Lack]] = {
        **dict.fromkeys(("setitem", "getitem", "has", "delete"), Lack("a call gives the next state: no syntax does")),
        "batches": Lack("with axis_name= each device gives a batch of its own"),
    }
    takes_python = False
    raises_for_absent = False
    programs: Any

    @classmethod
    def need(cls) -> None:
        cls.programs = need_jax()

    @property
    def full_error(self) -> Any:
        return self.programs.failures

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        table = self.make_table(key_dtype, value_dtype, options)
        self.state = self.programs.ours.from_table(table)
        return table

    make_table = Face.make

    @property
    def subject(self) -> Any:
        return self.programs.ours

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        own = self.own_name(name)
        if own.startswith("table."):
            self.programs.jax.block_until_ready(self.state)
            return self.take(getattr(self.table, own.removeprefix("table."))(*args))
        given = {key: self.give(value) for key, value in options.items() if value is not None}
        try:
            self.state, answer = getattr(self.subject, own)(self.state, *map(self.give, args), **given)
            self.programs.jax.block_until_ready((self.state, answer))
        except Exception:
            self.state = self.programs.ours.from_table(self.table)
            raise
        return self.take(answer)

    def array(self, host: np.ndarray) -> Any:
        return self.programs.jax.numpy.asarray(host)

    def pop(self, keys: Any, *default: Any) -> Any:
        """With a default, which programs need."""
        zeros = 0 if self.table.columns is None else dict.fromkeys(self.table.columns, 0)
        return self.call("pop", keys, *(default or [zeros]))


class JaxSet(Jax):
    name = "jax-set"
    has_values = False
    lacks: ClassVar[dict[str, Lack]] = {
        **{
            call: Lack("a set has no values", TypeError, "no values")
            for call in ("insert_or_assign", "insert_or_apply", "apply_and_find", "setdefault", "find", "get")
        },
        **{call: Lack("a set has no values", ValueError, "no rows") for call in ("rows", "find_or_insert")},
        **dict.fromkeys(("popitem", "columns"), _NO_VALUES),
        **{call: Lack("a set has no values", AttributeError, call) for call in ("values", "items")},
        "pop": OfKeys.lacks["pop"],
        **{call: Jax.lacks[call] for call in ("setitem", "getitem", "has", "delete", "batches")},
    }
    make_table = OfKeys.make

    def insert(self, keys: Any, values: Any = None) -> Any:
        return self.call("insert", keys)


# TensorFlow ----------------------------------------------------------------------------------------------------------


class TensorFlow(Face):
    """MutableHashTable in eager mode; with named columns it is a ColumnsHashTable."""

    name = "tensorflow"
    names: ClassVar[dict[str, str]] = {
        "insert": 'insert_or_apply(..., "keep")',  # TensorFlow's own insert() assigns
        "setitem": "insert",
        "size": "size",
    }
    lacks: ClassVar[dict[str, Lack]] = {"batches": _OF_ONE_DEVICE}
    takes_python = False
    always_has_default = True
    dtype_error: Any
    full_error: Any
    tf: Any
    ours: Any

    @classmethod
    def need(cls) -> None:
        cls.tf, cls.ours, _ = need_tensorflow()
        cls.dtype_error = (ValueError, cls.tf.errors.InvalidArgumentError)
        cls.shape_error = (ValueError, cls.tf.errors.InvalidArgumentError)
        cls.full_error = cls.tf.errors.ResourceExhaustedError

    def make(self, key_dtype: str, value_dtype: Any, options: dict[str, Any]) -> Any:
        self.local = super().make(key_dtype, value_dtype, options)
        return self.ours.wrap(self.local)

    def array(self, host: np.ndarray) -> Any:
        return self.tf.constant(host)

    def insert(self, keys: Any, values: Any = None) -> Any:
        return self.insert_or_apply(keys, values, "keep")


FACES: dict[str, type[Face]] = {
    face.name: face
    for face in (
        *(Face, OnGpu, Sharded, OfWideKeys, OfWideKeysOverShards, OfKeys, Distributed, DistributedSet),
        *(TorchModule, TorchSet, TorchCompiled, Jax, JaxSet, TensorFlow),
    )
}


def over(*calls: str, compiled: bool = False, unless: Callable[[type[Face]], bool] | None = None) -> Any:
    """Runs a test over the faces that have all of these calls, as the fixture ``face``.

    ``compiled``: also in functions that PyTorch compiles, of which each takes its time. ``unless``: not over these.
    """
    return pytest.mark.parametrize("face", [case(name) for name in _names_over(calls, compiled, unless)], indirect=True)


def over_each(
    calls: tuple[str, ...], *others: str, compiled: bool = False, unless: Callable[[type[Face]], bool] | None = None
) -> Any:
    """The same for each of several calls, as the parameter ``call``."""
    pairs = [case(name, call) for call in calls for name in _names_over((call, *others), compiled, unless)]
    return pytest.mark.parametrize(("face", "call"), pairs, indirect=["face"])


def case(face: str, *others: Any) -> Any:
    """The parameters of a case over a face."""
    return pytest.param(face, *others, marks=[pytest.mark.gpu] if FACES[face].device == GPU else [])


def _names_over(calls: tuple[str, ...], compiled: bool, unless: Callable[[type[Face]], bool] | None) -> list[str]:
    return [
        name
        for name, face in FACES.items()
        if not any(call in face.lacks for call in calls)
        and (compiled or face is not TorchCompiled)
        and not (unless and unless(face))
    ]


def without_values(face: type[Face]) -> bool:
    return not face.has_values
