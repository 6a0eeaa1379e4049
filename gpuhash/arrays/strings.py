"""Strings of every source as dense bytes and the offsets at which they begin, and back in the form that they had."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable, KeysView, Sequence, ValuesView
from typing import Any, Self

import numpy as np
import numpy.ma  # here: the first call would do it, under a lock that a fork in another thread leaves taken

from gpuhash import _core

from . import arrow_c, arrow_out
from .arrow_c import StringChunk
from .nulls import LIBRARIES, describe

_Array = np.ndarray[Any, Any]
_Form = Callable[["Strings"], Any]

#: Of polars' dtypes, by the names of their classes.
_POLARS = ("String", "Binary", "Categorical", "Enum")


class Strings:
    """Strings one after the other in host memory: text as UTF-8, or bytes.

    Equal strings have equal bytes. What lies in the bytes of nulls is not said.
    """

    __slots__ = ("_form", "data", "offsets", "shape", "source", "text", "valid")

    def __init__(self, chunk: StringChunk, text: bool, source: str, form: _Form, shape: tuple[int, ...] | None = None):
        self.offsets = chunk.offsets  # int64 [n + 1], from 0
        self.data = chunk.data  # uint8 [offsets[n]], maybe read-only memory of the source
        self.valid = chunk.valid  # bool [n], false for nulls; None where there are none
        self.text = text  # or bytes
        self.source = source  # "numpy", "python", "pandas", "polars", "pyarrow" or "arrow"
        self.shape = (self.count,) if shape is None else shape  # of the source; () for a single Python string
        self._form = form

    @property
    def count(self) -> int:
        """How many strings there are, n."""
        return len(self.offsets) - 1

    @classmethod
    def read(cls, column: Any, what: str = "keys") -> Self | None:
        """The strings of a column, an array or a sequence; None where it is none of strings.

        A sequence of no items, or of nulls alone, does not say what it holds, and is none of strings. Memory of Arrow's
        ``string`` and ``large_string`` is lent where it is one chunk, and that of NumPy's bytes where all fill their
        width; all else is copied. A column that gives its stream only once has to be opened before (arrow_c.opened),
        if others are to read it where it holds no strings.

        Raises
        ------
        TypeError
            For other items beside strings, text beside bytes, and tables of several columns, strings among them.
        ValueError
            For text that UTF-8 cannot encode.
        """
        kind = type(column)
        if issubclass(kind, np.ndarray):
            return cls._read_numpy(column, what)
        if issubclass(kind, (str, bytes)):
            packed = _pack_objects([column], (), what)
            return None if packed is None else cls(*packed, "python", _form_list, ())
        if issubclass(kind, (Sequence, KeysView, ValuesView)) and not issubclass(kind, (range, memoryview, bytearray)):
            return cls._read_sequence(column, what)
        library = kind.__module__.partition(".")[0]
        if library in LIBRARIES and len(getattr(column, "columns", ())) == 1:
            return cls.read(_only_column(column, library), what)
        if library == "pandas" and hasattr(column, "dtype"):
            return cls._read_pandas(column, what)
        if library == "polars" and hasattr(column, "dtype") and type(column.dtype).__name__ not in _POLARS:
            return None
        if arrow_c.is_arrow(kind):
            return cls._read_arrow(column, library if library in LIBRARIES else "arrow", what)
        return None

    @classmethod
    def of_chunk(cls, chunk: StringChunk, text: bool) -> Self:
        """Strings that have no source; the form in which they are given back is an array."""
        return cls(chunk, text, "numpy", functools.partial(_form_array, _array_dtype(text), ()))

    @classmethod
    def empty(cls, text: bool, shape: tuple[int, ...]) -> Self:
        """No strings, of a shape with a length of 0."""
        made = cls.of_chunk(StringChunk(np.zeros(1, np.int64), np.empty(0, np.uint8), None), text)
        made.shape = shape
        return made

    def take(self, positions: _Array) -> Self:
        """The strings at positions, int64 ``[m]``; nulls at negative ones. IndexError for one beyond the last."""
        return type(self)(arrow_c.take_strings(self._chunk, positions), self.text, self.source, self._form)

    @classmethod
    def concatenate(cls, parts: Sequence[Strings]) -> Self:
        """Strings one behind the other, in the form of the first."""
        first = parts[0]
        return cls(_joined([part._chunk for part in parts]), first.text, first.source, first._form)

    def give_back(self, taken: Strings) -> Any:
        """Strings that came of these, such as by ``take``, in the form that these had: an array, a list or a column.

        Raises
        ------
        ValueError
            For nulls, where that form has none.
        """
        return self._form(taken)

    def without_form(self) -> Strings:
        """The strings alone, which others give back; they keep nothing of a column alive that was not lent."""
        return Strings.of_chunk(self._chunk, self.text)

    def form_alone(self) -> Self:
        """No strings, of the same form, which keeps nothing of a column alive."""
        none = self.take(np.empty(0, np.int64))
        if isinstance(self._form, functools.partial) and self._form.func in (_form_pandas, _form_polars, _form_pyarrow):
            none._form = functools.partial(self._form.func, self.give_back(none))
        return none

    def with_room_for(self, other: Strings) -> Self:
        """These, in a form that has what others' needs as well: nulls, and the width of NumPy's strings."""
        return type(self)(self._chunk, self.text, self.source, _common_form(self._form, other._form), self.shape)

    def to_form(self, like: Any) -> Any:
        """The strings in a form by its name, or in that of a column of strings: see ``is_string_form``.

        Anything else gives NumPy's: text as StringDType, bytes as objects. TypeError for a column of bytes where these
        are text, or the other way round.
        """
        if isinstance(like, str):
            return _NAMED_FORMS[like](self) if like in _NAMED_FORMS else self._form(self)
        if isinstance(like, list):
            return self.to_list()
        column = None if like is None else Strings.read(like, "strings of like=")
        if column is None:
            return self._form(self)
        self.need_same_kind(column, "keys", "strings of like=")
        return column.give_back(self)

    def need_same_kind(self, other: Strings, what: str, others: str) -> None:
        """TypeError where one is text and the other bytes, which are never equal."""
        if self.text != other.text:
            kinds = ("text", "bytes") if self.text else ("bytes", "text")
            raise TypeError(
                f"the {what} are {kinds[0]} and the {others} {kinds[1]}, which equal none of them: encode the text, as "
                "by text.encode(), or decode the bytes"
            )

    def need_no_nulls(self, what: str) -> None:
        """ValueError where there are nulls."""
        if self.valid is not None:
            nulls = self.count - int(np.count_nonzero(self.valid))
            raise ValueError(
                f"the {what} have nulls, in {nulls} of {self.count} entries, and a null is no string: leave them out, "
                "or put strings in their place"
            )

    def to_list(self) -> list[Any]:
        """As Python's str or bytes, and None for nulls."""
        data = self.data.tobytes()
        ends = self.offsets.tolist()
        if not self.text:
            items: list[Any] = [data[begin:end] for begin, end in itertools.pairwise(ends)]
        elif data.isascii():
            text = data.decode()
            items = [text[begin:end] for begin, end in itertools.pairwise(ends)]
        else:
            items = [data[begin:end].decode() for begin, end in itertools.pairwise(ends)]
        if self.valid is not None:
            for position in np.flatnonzero(~self.valid).tolist():
                items[position] = None
        return items

    @property
    def _chunk(self) -> StringChunk:
        return StringChunk(self.offsets, self.data, self.valid)

    @classmethod
    def _read_numpy(cls, array: _Array, what: str) -> Self | None:
        if isinstance(array, np.ma.MaskedArray):
            return cls._read_masked(array, what)
        if array.dtype.kind in "US":
            return cls(_pack_rows(array, what), array.dtype.kind == "U", "numpy", _fixed_form(array), array.shape)
        if array.dtype.kind == "T":
            missing = (array.dtype.na_object,) if hasattr(array.dtype, "na_object") else ()
            words = _pack_objects(array.reshape(-1).tolist(), missing, what) or (_nulls_alone(array.size), True)
            return cls(*words, "numpy", functools.partial(_form_array, array.dtype, missing), array.shape)
        if array.dtype.kind == "O":
            packed = _pack_objects(array.reshape(-1).tolist(), (), what)
            form = functools.partial(_form_array, array.dtype, (None,))
            return None if packed is None else cls(*packed, "numpy", form, array.shape)
        return None

    @classmethod
    def _read_masked(cls, array: np.ma.MaskedArray[Any, Any], what: str) -> Self | None:
        """Masked entries are nulls, whatever lies there."""
        if array.dtype.kind not in "USTO":
            return None
        known = ~np.ma.getmaskarray(array)
        plain = array.data
        if not known.all():
            plain = plain.copy()
            plain[~known] = plain[known][0] if known.any() else {"T": "", "O": None}.get(array.dtype.kind, 0)
        found = cls._read_numpy(plain, what)
        if found is None:
            return None
        valid = known.reshape(-1) if found.valid is None else np.logical_and(known.reshape(-1), found.valid)
        chunk = StringChunk(found.offsets, found.data, None if valid.all() else valid)
        return cls(chunk, found.text, "numpy", functools.partial(_form_masked, found._form), array.shape)

    @classmethod
    def _read_sequence(cls, sequence: Any, what: str) -> Self | None:
        first = next(iter(sequence), None)
        if not isinstance(first, (str, bytes)):
            return None
        packed = _pack_objects(list(sequence), (), what)
        return None if packed is None else cls(*packed, "python", _form_list)

    @classmethod
    def _read_pandas(cls, column: Any, what: str) -> Self | None:
        dtype = column.dtype
        form = functools.partial(_form_pandas, column)
        if hasattr(dtype, "categories"):
            categories = cls.read(dtype.categories, what)
            if categories is None:
                return None
            codes = getattr(column, "cat", column).codes
            taken = categories.take(np.asarray(codes).astype(np.int64))
            return cls(taken._chunk, categories.text, "pandas", form)
        storage = getattr(dtype, "storage", None)
        if storage == "pyarrow" or hasattr(dtype, "pyarrow_dtype"):
            found = cls._read_arrow(getattr(column, "array", column).__arrow_array__(), "pandas", what)
            return None if found is None else cls(found._chunk, found.text, "pandas", form)
        if storage != "python" and getattr(dtype, "numpy_dtype", dtype) != np.dtype(object):
            return None
        pandas = importlib.import_module("pandas")
        missing = (None, pandas.NA, pandas.NaT)
        packed = _pack_objects(np.asarray(column, object).tolist(), missing, what)
        if packed is None and storage == "python":
            packed = _nulls_alone(len(column)), True
        return None if packed is None else cls(*packed, "pandas", form)

    @classmethod
    def _read_arrow(cls, column: Any, source: str, what: str) -> Self | None:
        named = describe(column)
        text = arrow_c.string_kind(column, named)
        if text is None:
            return None
        chunks = arrow_c.read_strings(column, named)
        form = {"polars": _form_polars, "pyarrow": _form_pyarrow}.get(source)
        made: _Form = _form_arrow if form is None else functools.partial(form, column)
        return cls(_joined(chunks), text, source, made)


def _only_column(frame: Any, library: str) -> Any:
    if library == "pandas":
        return frame.iloc[:, 0]
    return frame.get_columns()[0] if library == "polars" else frame.columns[0]


def is_empty_sequence(column: Any) -> bool:
    """Is it a sequence, or an array or column of objects, without items? It may stand for no strings."""
    if isinstance(column, (Sequence, KeysView, ValuesView)):
        return len(column) == 0 and not isinstance(column, (str, bytes))
    return getattr(column, "dtype", None) == np.dtype(object) and 0 in getattr(column, "shape", ())


def _array_dtype(text: bool) -> np.dtype[Any]:
    """Of NumPy's arrays of any strings."""
    return np.dtypes.StringDType() if text else np.dtype(object)


def _joined(chunks: list[StringChunk]) -> StringChunk:
    """Chunks as one."""
    chunks = [chunk for chunk in chunks if len(chunk.offsets) > 1]
    if not chunks:
        return StringChunk(np.zeros(1, np.int64), np.empty(0, np.uint8), None)
    if len(chunks) == 1:
        return chunks[0]
    bases = np.cumsum([0, *(len(chunk.data) for chunk in chunks)])
    offsets = [chunk.offsets[:-1] + base for chunk, base in zip(chunks, bases, strict=False)]
    masks = [np.ones(len(chunk.offsets) - 1, bool) if chunk.valid is None else chunk.valid for chunk in chunks]
    valid = np.concatenate(masks)
    return StringChunk(
        np.concatenate([*offsets, bases[-1:]]),
        np.concatenate([chunk.data for chunk in chunks]),
        None if valid.all() else valid,
    )


def _pack_rows(array: _Array, what: str) -> StringChunk:
    """NumPy's strings of fixed width, without the zeros that fill them up."""
    text = array.dtype.kind == "U"
    width = array.dtype.itemsize // (4 if text else 1)
    if width == 0:
        return StringChunk(np.zeros(array.size + 1, np.int64), np.empty(0, np.uint8), None)
    offsets = arrow_c.empty(array.size + 1, "int64")
    dense = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    rows = _core.borrow(dense.view(np.uint32 if text else np.uint8).reshape(array.size, width))
    refused = _core.measure_rows(rows, _core.borrow(offsets))
    if refused >= 0:
        points = dense[refused : refused + 1].view(np.uint32).tolist()
        shown = "".join(chr(point) if point < 0x110000 else "\N{REPLACEMENT CHARACTER}" for point in points)
        raise _no_utf8(shown.rstrip("\0"), refused, what)
    if not text and offsets[-1] == array.size * width:  # they lie one after the other
        return StringChunk(offsets, dense.view(np.uint8), None)
    data = arrow_c.empty(int(offsets[-1]), "uint8")
    _core.pack_rows(rows, _core.borrow(offsets), _core.borrow(data))
    return StringChunk(offsets, data, None)


def _pack_objects(items: list[Any], missing: tuple[object, ...], what: str) -> tuple[StringChunk, bool] | None:
    """Python's strings, and whether they are text; None where there are none, or the first item is another thing.

    ``missing``: what stands for nulls, and NaN with it; nothing: there are none.
    """
    offsets = arrow_c.empty(len(items) + 1, "int64")
    valid = np.empty(len(items), bool) if missing else None
    places = _core.borrow(offsets)
    text, refused = _core.measure_objects(items, missing, places, None if valid is None else _core.borrow(valid))
    if text is None:
        return None
    if refused >= 0:
        item = items[refused]
        if isinstance(item, str) and text:
            raise _no_utf8(item, refused, what)
        kind = "text" if text else "bytes"
        raise TypeError(
            f"the {what} are {kind}, and their item {refused} is {item!r}, a {type(item).__name__}: give {kind} alone"
        )
    data = arrow_c.empty(int(offsets[-1]), "uint8")
    _core.pack_objects(items, places, _core.borrow(data))
    return StringChunk(offsets, data, None if valid is None or valid.all() else valid), text


def _nulls_alone(count: int) -> StringChunk:
    return StringChunk(np.zeros(count + 1, np.int64), np.empty(0, np.uint8), np.zeros(count, bool) if count else None)


def _no_utf8(text: str, position: int, what: str) -> ValueError:
    return ValueError(
        f"the {what} hold {text!r} at {position}, with half of a surrogate pair or no character at all, which UTF-8 "
        "cannot encode: take it out, as by text.encode(errors='replace').decode()"
    )


def _common_form(first: Any, other: Any) -> _Form:
    """The first form, with room for what the other one has."""
    plain = [form.args[0] if _is_of(form, _form_masked) else form for form in (first, other)]
    form: Any = plain[0]
    if all(_is_of(each, _form_fixed) for each in plain):
        form = functools.partial(_form_fixed, max((each.args[0] for each in plain), key=lambda dtype: dtype.itemsize))
    is_masked = _is_of(first, _form_masked) or _is_of(other, _form_masked)
    return functools.partial(_form_masked, form) if is_masked else form


def _is_of(form: Any, function: Callable[..., Any]) -> bool:
    return isinstance(form, functools.partial) and form.func is function


def _form_masked(form: _Form, taken: Strings) -> np.ma.MaskedArray[Any, Any]:
    """As an array without a mask, and the nulls masked."""
    known = Strings(StringChunk(taken.offsets, taken.data, None), taken.text, taken.source, form)
    return np.ma.MaskedArray(form(known), np.ma.nomask if taken.valid is None else ~taken.valid)


def _form_list(taken: Strings) -> list[Any]:
    return taken.to_list()


def _form_array(dtype: np.dtype[Any], missing: tuple[object, ...], taken: Strings) -> _Array:
    """NumPy's objects, or strings of any length."""
    items = taken.to_list()
    if taken.valid is not None:
        if not missing:
            raise ValueError(f"the answer has nulls, and {dtype} has none: give keys as objects or as a column")
        items = [missing[0] if item is None else item for item in items]
    array = np.empty(len(items), dtype)
    array[:] = items
    return array


def _fixed_form(like: _Array) -> _Form:
    return functools.partial(_form_fixed, like.dtype)


def _form_fixed(dtype: np.dtype[Any], taken: Strings) -> _Array:
    """NumPy's strings of fixed width, of which none is longer than that."""
    if taken.valid is not None:
        raise ValueError(f"the answer has nulls, and {dtype} has none: give keys as objects or as a column")
    native = dtype.newbyteorder("=")
    array = np.zeros(taken.count, native)
    text = dtype.kind == "U"
    width = dtype.itemsize // (4 if text else 1)
    if width and taken.count:
        rows = array.view(np.uint32 if text else np.uint8).reshape(taken.count, width)
        _core.unpack_rows(_core.borrow(taken.offsets), _core.borrow(taken.data), _core.borrow(rows))
    return array if dtype.isnative else array.astype(dtype)


def _form_pandas(column: Any, taken: Strings) -> Any:
    """A Series or an Index, of the column's dtype and name."""
    pandas = importlib.import_module("pandas")
    dtype = column.dtype
    if hasattr(dtype, "__from_arrow__") and getattr(dtype, "storage", "pyarrow") == "pyarrow":
        pyarrow = importlib.import_module("pyarrow")
        stored = getattr(dtype, "pyarrow_dtype", None)
        values = dtype.__from_arrow__(_as_type(pyarrow, arrow_out.ArrowArray(taken), stored))
    else:
        values = pandas.array(np.array([*taken.to_list(), None], object)[:-1], dtype)
    kind = pandas.Index if isinstance(column, pandas.Index) else pandas.Series
    return kind(values, dtype=dtype, name=getattr(column, "name", None))


def _form_polars(column: Any, taken: Strings) -> Any:
    polars = importlib.import_module("polars")
    return polars.Series(column.name, polars.Series(arrow_out.ArrowArray(taken)), dtype=column.dtype)


def _form_pyarrow(column: Any, taken: Strings) -> Any:
    pyarrow = importlib.import_module("pyarrow")
    return _as_type(pyarrow, arrow_out.ArrowArray(taken), getattr(column, "type", None))


def _as_type(pyarrow: Any, array: arrow_out.ArrowArray, kind: Any) -> Any:
    made = pyarrow.array(array)
    if kind is None or made.type == kind:
        return made
    if not isinstance(kind, pyarrow.DictionaryType):
        return made.cast(kind)
    encoded = made.cast(kind.value_type).dictionary_encode()
    return pyarrow.DictionaryArray.from_arrays(
        encoded.indices.cast(kind.index_type), encoded.dictionary, ordered=kind.ordered
    )


def _form_arrow(taken: Strings) -> arrow_out.ArrowArray:
    return arrow_out.ArrowArray(taken)


def _new_pandas(taken: Strings) -> Any:
    pandas = importlib.import_module("pandas")
    return _form_pandas(pandas.Series([], dtype="str" if taken.text else object), taken)


def _new_polars(taken: Strings) -> Any:
    return importlib.import_module("polars").Series(arrow_out.ArrowArray(taken))


def _new_pyarrow(taken: Strings) -> Any:
    return importlib.import_module("pyarrow").array(arrow_out.ArrowArray(taken))


_NAMED_FORMS: dict[str, _Form] = {
    "list": _form_list,
    "pandas": _new_pandas,
    "polars": _new_polars,
    "pyarrow": _new_pyarrow,
    "arrow": _form_arrow,
}


def is_string_form(like: Any) -> bool:
    """Is it the name of a form of strings, which is none of numbers, or a column of strings?"""
    if isinstance(like, str):
        return like in _NAMED_FORMS
    return like is not None and (isinstance(like, list) or Strings.read(like) is not None)
