"""HashSet: keys without values, in batches, used like a set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Self

import numpy as np

from . import _core
from .arrays import consumers
from .arrays.batch import Batch
from .arrays.dtypes import INTEGER_BOUNDS, is_python_integer, read_objects
from .arrays.frameworks import framework_of
from .call import Call
from .files import serialization
from .tables.keyed_table import KeyedTable
from .tables.options import Options, infer_set, settled_keys
from .torch import dispatch as traced


class HashSet(KeyedTable):
    """A set of keys in GPU or host memory, used like a Python set, with whole arrays of keys.

    Parameters
    ----------
    key_dtype, key_shape, device, capacity, max_load_factor, growth, max_capacity, deterministic, seed, memory, name
        As for ``HashTable``.

    Notes
    -----
    Keys have the shape ``[*batch, *key_shape]`` and masks ``[*batch]``; both as for ``HashTable``. The operators take
    other HashSets of the same key dtype and shape, on any device, and Python sets on either side; they wait, and give a
    set like this one. A single ``str`` or ``bytes`` is one key where keys are strings.
    """

    def __init__(
        self,
        key_dtype: object,
        *,
        key_shape: int | Sequence[int] = (),
        device: object = "cpu",
        capacity: int = 0,
        max_load_factor: float = 0.8,
        growth: bool = True,
        max_capacity: int | None = None,
        deterministic: bool = False,
        seed: int | str | None = None,
        memory: object = None,
        name: str | None = None,
    ) -> None:
        self._make(
            Options.checked(
                key_dtype,
                None,
                key_shape=key_shape,
                device=device,
                capacity=capacity,
                max_load_factor=max_load_factor,
                growth=growth,
                max_capacity=max_capacity,
                deterministic=deterministic,
                seed=seed,
                memory=memory,
                name=name,
            )
        )

    @classmethod
    def from_keys(cls, keys: Any, **options: Any) -> Self:
        """A set of these keys, an array, a list or a Python set; dtype, key shape and device are the array's.

        Two-dimensional keys ``[n, k]`` are n vector keys, unless ``key_shape=`` says otherwise. Options are as for the
        constructor, with ``key_dtype``; those given are not inferred.
        """
        if isinstance(keys, AbstractSet):
            keys = list(keys)
        keys = settled_keys(keys)
        made = cls(**infer_set(keys, options))
        made._put(keys)
        return made

    # Keys ------------------------------------------------------------------------------------------------------------

    @traced.by(traced.add)
    @_core.fast_path("add")
    def add(self, keys: Any, out: Any = None) -> Any:
        """Adds keys.

        Parameters
        ----------
        keys
            Keys of shape ``[*batch, *key_shape]``: an array of any framework, a list, or a single key.
        out
            A bool array of shape ``batch`` to write into.

        Returns
        -------
        bool array of shape ``batch``: was the key new; true for exactly one of a new key's duplicates. Does not wait
        for the GPU while the set has room for all keys as if they were new.

        Raises
        ------
        TypeError, ValueError
            For arrays of other dtypes, or of shapes or devices that do not fit.
        TableFullError, MemoryError
            Where there is no room; the set is as it was.
        """
        call = Call.begin(self, keys, out)
        call.answer_mask(out)
        call.change()
        return call.mask()

    insert = add

    def _put(self, keys: Any) -> None:
        """Adds keys, without a mask."""
        self._put_batch(self._take(keys, inserts=True))

    def _put_batch(self, batch: Batch) -> None:
        self._changes += 1
        batch.core.change([batch.change()])
        batch.finish()

    @traced.by(traced.nothing)
    @_core.fast_path("discard")
    def discard(self, keys: Any) -> None:
        """Removes keys; absent ones are passed over. Does not wait for the GPU."""
        call = Call.of_lookup(self, keys)
        if call is not None:
            call.erase()

    @traced.itself
    def remove(self, keys: Any) -> None:
        """Removes keys. Waits. KeyError if any is absent: then nothing is removed."""
        self._erase_present(keys)

    def pop(self) -> Any:
        """Removes and returns some key, which no other thread gets. Waits, and reads all keys: take ``keys()`` to empty
        a set.
        """
        while len(keys := self._host_items(values=False)[0]):
            for row in range(len(keys)):
                key = self._as_keys(keys[row : row + 1])[0]
                if self.erase(key):  # otherwise another thread has removed it meanwhile
                    return key
        raise KeyError("pop(): the set is empty")

    # Like a set ------------------------------------------------------------------------------------------------------

    def update(self, *others: Any) -> None:
        """Adds the keys of others: HashSets on any device, arrays, lists or Python sets.

        All of them are checked before any key is added. Where there is no room for one, those before it have been.
        """
        parts = [
            other if isinstance(other, HashSet) else self._take(self._batch_of(other), inserts=True) for other in others
        ]
        for part in parts:
            if isinstance(part, HashSet):
                self._check_kind_of(part)
        for part in parts:
            if isinstance(part, HashSet):
                self._merge(part)
            else:
                self._put_batch(part)

    def union(self, *others: Any) -> Self:
        """A new set of the keys of this one and of the others."""
        made = self.copy()
        made.update(*others)
        return made

    def intersection(self, *others: Any) -> Self:
        """A new set of the keys that are in this one and in all others."""
        made = self.copy()
        made.intersection_update(*others)
        return made

    def intersection_update(self, *others: Any) -> None:
        """Removes the keys that are not in all others, which are checked before any key is removed."""
        for other in self._all_like_self(others):
            keys = self._host_keys()
            self._drop(keys[~other._holds(keys)])

    def difference(self, *others: Any) -> Self:
        """A new set of the keys of this one that are in none of the others."""
        made = self.copy()
        made.difference_update(*others)
        return made

    def difference_update(self, *others: Any) -> None:
        """Removes the keys of the others, which are checked before any key is removed."""
        for other in self._all_like_self(others):
            if other is self:
                self.clear()
            else:
                self._drop(other._host_keys())

    def symmetric_difference(self, other: Any) -> Self:
        """A new set of the keys that are in one of both, not in both."""
        made = self.copy()
        made.symmetric_difference_update(other)
        return made

    def symmetric_difference_update(self, other: Any) -> None:
        """Removes the keys that are in both, and adds those that are in the other alone.

        A set of keys of more than 16 bytes for which there is no memory in the middle of it has lost the former.
        """
        theirs = self._like_self(other)._host_keys()
        both = self._holds(theirs)
        common, others = self._take(theirs[both], inserts=True), self._take(theirs[~both], inserts=True)
        self._changes += 1
        common.core.erase([common.erasure()])
        try:
            others.core.change([others.change()])
        except BaseException:
            common.core.change([common.change()])  # where they were: needs no memory
            raise
        self._release(common)

    def isdisjoint(self, other: Any) -> bool:
        """Have both no key in common? Waits."""
        return not self._holds(self._like_self(self._held_keys(other)[0])._host_keys()).any()

    def issubset(self, other: Any) -> bool:
        """Are all keys of this set in the other? Waits."""
        return bool(self._like_self(self._held_keys(other)[0])._holds(self._host_keys()).all())

    def issuperset(self, other: Any) -> bool:
        """Are all keys of the other in this set? Waits."""
        held, complete = self._held_keys(other)
        return complete and bool(self._holds(self._like_self(held)._host_keys()).all())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The keys as an array on the host, ``[len(self), *key_shape]``, so that ``numpy.isin(array, keys)`` is right.

        Of key columns it is a structured array. Without it NumPy would take the set for one object, and find it
        nowhere. Waits.
        """
        keys = self._host_keys()
        if self._key_columns is not None:
            keys = keys.view(self._key_columns.structure()).reshape(len(keys))
        return consumers.as_array(keys, dtype, copy)

    def __jax_array__(self) -> Any:
        """The keys as an array of JAX; TypeError where JAX would narrow them, or keep them as a program's constant."""
        import jax

        if isinstance(jax.device_put(np.zeros(0, np.int8)), jax.core.Tracer):
            raise TypeError(
                "a HashSet is used as an array in a function that JAX traces, where the keys of now would be constants "
                "of the program: give it keys(like='jax') as an argument, or take gpuhash.jax.contains"
            )
        return self.keys(like="jax")

    def _host_keys(self) -> np.ndarray[Any, Any]:
        keys = self._host_items(values=False)[0]
        if self._string_keys is None:
            return keys
        strings: np.ndarray[Any, Any] = self._string_keys.strings_of(keys).to_form(None)
        return strings

    def _holds(self, keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        mask: np.ndarray[Any, Any] = self.contains(keys)
        return mask

    def _drop(self, keys: np.ndarray[Any, Any]) -> None:
        self.discard(keys)

    def _batch_of(self, keys: Any) -> Any:
        """A batch of keys, where they come as a Python set or another iterable."""
        if self._key_columns is not None:
            is_batch = isinstance(keys, (Mapping, tuple, list)) or not isinstance(keys, Iterable)
            return keys if is_batch or hasattr(keys, "shape") else list(keys)
        if not isinstance(keys, (AbstractSet, Iterable)) or isinstance(keys, (Sequence, str, bytes)):
            return list(keys) if isinstance(keys, tuple) else keys
        try:
            return list(keys) if framework_of(keys).python else keys
        except TypeError:
            return list(keys)

    def _held_keys(self, other: Any) -> tuple[Any, bool]:
        """The keys of the other that this set can have, and whether these are all: Python's integers know no dtype."""
        if isinstance(other, HashSet):
            return other, True
        keys = self._batch_of(other)
        if self._key_columns is not None:
            held = self._key_columns.held(keys) if isinstance(keys, list) else keys
            return held, len(held) == len(keys)
        if self._string_keys is not None or not framework_of(keys).python:
            return keys, True
        parts = read_objects(keys)
        if parts.shape[parts.ndim - len(self._key_shape) :] != self._key_shape:
            return keys, True  # whoever takes them says what is wrong
        low, high = INTEGER_BOUNDS[self._key_dtype]
        rows = parts.reshape(-1, math.prod(self._key_shape))
        held = [all(not is_python_integer(part) or low <= part <= high for part in row) for row in rows]
        return parts.reshape(-1, *self._key_shape)[held].tolist(), all(held)

    def _like_self(self, other: Any) -> HashSet:
        """The other as a HashSet with keys like these."""
        if not isinstance(other, HashSet):
            made = HashSet(**self._key_options)
            made.update(other)
            return made
        if not self._same_keys(other):
            raise TypeError(
                f"a set of {self._key_columns or self.key_dtype} keys of shape {self._key_shape} cannot be combined "
                f"with one of {other._key_columns or other.key_dtype} keys of shape {other._key_shape}"
            )
        return other

    def _all_like_self(self, others: tuple[Any, ...]) -> list[HashSet]:
        """Of each of the others the keys that this set can have, as a HashSet."""
        return [self._like_self(self._held_keys(other)[0]) for other in others]

    def _same_keys(self, other: HashSet) -> bool:
        return self._kind_of_items() == other._kind_of_items()

    def __or__(self, other: object) -> Self:
        return self.union(other) if isinstance(other, (HashSet, AbstractSet)) else NotImplemented

    def __and__(self, other: object) -> Self:
        return self.intersection(other) if isinstance(other, (HashSet, AbstractSet)) else NotImplemented

    def __sub__(self, other: object) -> Self:
        return self.difference(other) if isinstance(other, (HashSet, AbstractSet)) else NotImplemented

    def __xor__(self, other: object) -> Self:
        return self.symmetric_difference(other) if isinstance(other, (HashSet, AbstractSet)) else NotImplemented

    __ror__ = __or__
    __rand__ = __and__
    __rxor__ = __xor__

    def __rsub__(self, other: object) -> Self:
        if not isinstance(other, AbstractSet):
            return NotImplemented
        made = self.copy()
        made.clear()
        made.update(other)
        made.difference_update(self)
        return made

    def __ior__(self, other: object) -> Self:
        if not isinstance(other, (HashSet, AbstractSet)):
            return NotImplemented
        self.update(other)
        return self

    def __iand__(self, other: object) -> Self:
        if not isinstance(other, (HashSet, AbstractSet)):
            return NotImplemented
        self.intersection_update(other)
        return self

    def __isub__(self, other: object) -> Self:
        if not isinstance(other, (HashSet, AbstractSet)):
            return NotImplemented
        self.difference_update(other)
        return self

    def __ixor__(self, other: object) -> Self:
        if not isinstance(other, (HashSet, AbstractSet)):
            return NotImplemented
        self.symmetric_difference_update(other)
        return self

    def __eq__(self, other: object) -> bool:
        """Has the other, a HashSet on any device or a Python set, the same keys? Waits.

        HashSets of different key dtypes or shapes are different.
        """
        if isinstance(other, HashSet):
            if not self._same_keys(other):
                return False
            return self is other or (len(self) == len(other) and self.issubset(other))
        if isinstance(other, AbstractSet):
            return len(self) == len(other) and set(self) == other
        return NotImplemented

    def __le__(self, other: object) -> bool:
        return self.issubset(other) if isinstance(other, (HashSet, AbstractSet)) else NotImplemented

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, (HashSet, AbstractSet)):
            return NotImplemented
        return len(self) < len(other) and self.issubset(other)

    def __ge__(self, other: object) -> bool:
        return self.issuperset(other) if isinstance(other, (HashSet, AbstractSet)) else NotImplemented

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, (HashSet, AbstractSet)):
            return NotImplemented
        return len(self) > len(other) and self.issuperset(other)

    def __repr__(self) -> str:
        size = len(self)
        load = size / self.capacity if self.capacity else 0.0
        shape = f", key_shape={self._key_shape}" if self._key_shape and self._key_columns is None else ""
        name = f", name={name!r}" if (name := self.name) is not None else ""
        return (
            f"<{type(self).__name__} {self._key_columns or self.key_dtype}{shape}, size={size}, "
            f"capacity={self.capacity}, load={load:.3f}, device={self.device}{name}>"
        )

    @classmethod
    def _restore(cls, contents: serialization.Contents, device: object, memory: object, name: str | None) -> Self:
        contents.need_kind("set")
        made = cls._empty_for(contents, device, memory)
        made._fill(contents)
        made._register(name)
        return made


consumers.no_arrays[HashSet] = "give its keys(), or ask it with contains(keys)"
_core.set_membership(HashSet)
