"""The C++ extension: borrowed arrays, device contexts and tables with their dtypes erased.

The Python face (batch.py, options.py) checks shapes, dtypes and devices and chooses streams. Nothing here does it
again, but for `FastPath`, which does it all by itself, and for what would otherwise read or write beyond an array.
What works on tables or on memory releases the GIL meanwhile. `stream` is the address of a cudaStream_t as an integer
(0: the legacy default stream; ignored on the host).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Never, TypeAlias, TypeVar, final, type_check_only

import numpy as np

class TableFullError(RuntimeError): ...
class CudaError(RuntimeError): ...
class PlatformError(RuntimeError): ...

@type_check_only
class _Type(type):
    """pybind11's type of types."""

@final
class Array(metaclass=_Type):
    """A tensor of any framework, borrowed without a copy; keeps the tensor alive."""

    def __init__(self, /, *args: Never, **kwargs: Never) -> None:
        """TypeError: ``borrow`` and ``Buffer.array`` make arrays."""
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def platform(self) -> str:
        """ "cpu" or "cuda"; memory that both can reach counts as the platform that allocated it."""
    @property
    def device_index(self) -> int: ...
    @property
    def data(self) -> int:
        """Address of the first element."""
    @property
    def contiguous(self) -> bool:
        """C-contiguous and aligned to its element size."""
    @property
    def readonly(self) -> bool: ...
    def overlaps(self, other: Array) -> bool:
        """Have two contiguous arrays a byte of one device's memory in common?"""
    def part(self, begin: int, end: int) -> Array:
        """Rows ``[begin, end)`` of a contiguous array ``[n, ...]``; the same memory."""
    def reshape(self, shape: Sequence[int]) -> Array:
        """A contiguous array with another shape; the same memory."""

def borrow(tensor: object, stream: int | None = None) -> Array:
    """Borrow through DLPack's exchange API, NumPy's array interface or ``__dlpack__``, whichever is fastest.

    ``stream`` is the consumer's stream, for producers that have to make it wait. TypeError for objects that are no
    tensors, for tensors that require grad, are conjugated or negated views, or fake, and for dtypes that tables do not
    take.
    """

def empty_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """As ``numpy.empty``; but of what arrays of 64 KiB and more leave behind, 96 to 192 MiB are kept for others."""

def current_stream(tensor: object) -> int | None:
    """The framework's current stream for the tensor's device by the exchange API; None where it has none."""

@final
class Context(metaclass=_Type):
    """A device with a memory resource; tables and buffers are made in one."""

    def __init__(self, platform: str, index: int = 0, memory: object | None = None) -> None:
        """Choose a device; tables and buffers made here live on it.

        ``memory``: None for the platform's own pool, or an object with ``allocate(nbytes, stream) -> int`` and
        ``deallocate(ptr, nbytes, stream) -> None``.
        """
    @property
    def platform(self) -> str: ...
    @property
    def device_index(self) -> int: ...
    @property
    def device(self) -> str:
        """ "cpu", "cuda:0", ..."""
    def synchronize(self, stream: int) -> None: ...
    def copy(self, target: Array, source: Array, stream: int) -> None:
        """Copy all bytes, between any two of host and this device. Waits if the host is one of them."""
    def copy_from(self, target: Array, other: Context, source: Array, stream: int) -> None:
        """Copy all bytes out of another context's memory, whatever its device; nobody writes them any more. Waits."""

@final
class Buffer(metaclass=_Type):
    """An array on a context's device that exports itself by DLPack and ``__array__``.

    New ones, and views of a table's rows, are aligned to 64 bytes or more; those on a stored tensor as that is.
    """

    def __init__(self, context: Context, dtype: str, shape: Sequence[int], stream: int) -> None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> int: ...
    def array(self) -> Array: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The memory itself, unless another dtype or a copy is asked for; TypeError where it is not on the host."""

# Distribution, its two parameters, the seed, and the bytes of a constant element
_Initializer: TypeAlias = tuple[str, float, float, int, bytes]

# Name, dtype, shape, initializer
_Column: TypeAlias = tuple[str, str, tuple[int, ...], _Initializer | None]

# What a call asks of a table. A single value is column 0, and a set has none.

# Number of the column, values, fallback (one value, or one for each key)
_Read: TypeAlias = tuple[int, Array, Array | None]
# Number of the column, values, broadcast, and "keep", "assign" or an operation
_Write: TypeAlias = tuple[int, Array, bool, str]

# Table (``at`` of the arrays' device), keys, reads, found, rows, stream
_Lookup: TypeAlias = tuple[Table, Array, Sequence[_Read], Array | None, Array | None, int]
# Table, keys, writes, reads, inserted, rows, stream
_Change: TypeAlias = tuple[Table, Array, Sequence[_Write], Sequence[_Read], Array | None, Array | None, int]
# Table, keys, reads, erased, stream
_Erasure: TypeAlias = tuple[Table, Array, Sequence[_Read], Array | None, int]

@final
class Table(metaclass=_Type):
    def __init__(
        self,
        contexts: Sequence[Context],
        key_dtype: str,
        key_shape: tuple[int, ...],
        value_dtype: str | None,
        value_shape: Sequence[int],
        capacity: int,
        max_capacity: int | None,
        max_load_factor: float,
        deterministic: bool,
        seed: int | None,
        initializer: _Initializer | None,
        sharded: bool,
        columns: Sequence[_Column] = ...,
        key_columns: Sequence[tuple[str, str]] = ...,
    ) -> None:
        """One context: a table there. ``sharded``: a shard per context; calls' arrays lie on the first one's device."""
    @property
    def context(self) -> Context: ...
    @property
    def key_dtype(self) -> str: ...
    @property
    def key_shape(self) -> tuple[int, ...]: ...
    @property
    def key_columns(self) -> list[tuple[str, str]]: ...
    @property
    def value_dtype(self) -> str | None: ...
    @property
    def value_shape(self) -> tuple[int, ...]: ...
    @property
    def has_rows(self) -> bool: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def seed(self) -> int: ...
    @property
    def initializer(self) -> _Initializer | None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def max_capacity(self) -> int | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def max_load_factor(self) -> float: ...
    @max_load_factor.setter
    def max_load_factor(self, factor: float) -> None: ...
    def size(self, stream: int) -> int: ...
    def look_up(self, requests: Sequence[_Lookup], count_missing: bool = False) -> int:
        """Values, masks and row numbers of several batches, in one call. Returns how many keys are absent, if asked."""
    def change(self, requests: Sequence[_Change]) -> None:
        """Insert the keys, and change the columns that are given; then read.

        New rows get initial values in the columns that are not given: what the initializer says, or zeros.
        """
    def erase(self, requests: Sequence[_Erasure], all_or_none: bool = False) -> int:
        """Read, and then erase. ``all_or_none``: absent keys are counted, and nothing is erased if there are any."""
    def export_items(self, keys: Array | None, reads: Sequence[_Read], rows: Array | None, stream: int) -> int:
        """Fill arrays with the items, all in the same order; fallbacks are not looked at.

        Returns how many there are: if the arrays have room for as many, they are all there, and otherwise nothing is.
        """
    def restore_rows(self, keys: Array, rows: Array, stream: int) -> None:
        """Make an empty table one of these keys, each with the row of that number, int64 ``[n]``. Waits."""
    def clear(self, stream: int) -> None: ...
    def reserve(self, keys: int, stream: int) -> None: ...
    def rehash(self, slots: int, compact_rows: bool, stream: int) -> None: ...
    def fix_in_place(self, stream: int) -> None:
        """Keep the table's memory where it is from now on, for CUDA graphs that are captured without its knowing."""
    @property
    def columns(self) -> list[_Column]:
        """Empty where keys have a single value, or none."""
    def column_storage(self, column: int, all_rows: bool, stream: int) -> Buffer:
        """A zero-copy view of one column of the rows: ``[rows handed out, *shape]``, or those that there is memory for.

        A single value is column 0. With strides where the rows have other columns.
        """
    def read_rows(self, rows: Array, columns: Sequence[_Read], stream: int) -> None:
        """Values of rows by their numbers, int64 ``[n]``; -1, or one beyond the capacity, gets the fallback."""
    def pool_rows(self, rows: Array, offsets: Array, factors: Array | None, column: _Read, stream: int) -> None:
        """Sums of rows int64 ``[n]`` by bags: ``[offsets[b], offsets[b + 1])`` of ``offsets [bags + 1]``."""
    def train(
        self,
        rows: Array,
        gradients: Array,
        item_of: Array | None,
        factors: Array | None,
        columns: Sequence[int],
        step: OptimizerStep,
        stream: int,
    ) -> None:
        """A step on rows int64 ``[n]``; numbers that are no row's are passed over.

        Position i of the batch has the gradient ``gradients[item_of[i]] * factors[i]``; without these ``gradients[i]``.
        Columns: that of the weights, and the optimizer's. Nothing checks ``item_of``.
        """
    def overlaps_rows(self, array: Array) -> bool:
        """Is some of a contiguous array's memory the table's own rows, as they lie now?"""
    def constant(self, value: Array, stream: int) -> Array:
        """A value on the host, in the table's memory, for use on ``stream``.

        There it stays as long as the table, up to 256 values and 4 MiB in all; beyond that as long as the result. Waits
        where it is new. ValueError where it is new and the stream is being captured into a CUDA graph.
        """
    def clone(self, context: Context, stream: int) -> Table: ...
    @property
    def shards(self) -> list[Table]:
        """Empty for a single table."""
    @property
    def owner_seed(self) -> int:
        """Of the hash that picks each key's shard, as ``Split`` does. ValueError for a single table."""
    def at(self, context: Context) -> Table:
        """A table of several shards as seen from another of its devices. ValueError where it has no shard there."""

@final
class OptimizerStep(metaclass=_Type):
    """What an optimizer does, and with which numbers; ``number`` counts the steps from 1."""

    def __init__(
        self,
        optimizer: str,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        number: int,
        stochastic_rounding: bool,
        seed: int,
    ) -> None: ...

@final
class Factorization(metaclass=_Type):
    """A batch of keys whose distinct ones have been found; holds the keys and scratch memory."""

    def __init__(
        self,
        context: Context,
        keys: Array,
        elements: int,
        codes: bool,
        counts: bool,
        stream: int,
    ) -> None:
        """Find them. Waits.

        ``elements``: numbers per key, up to 16 bytes in all. ``codes``, ``counts``: they will be asked for.
        """
    @staticmethod
    def of_few(context: Context, keys: Array, elements: int, counts: bool, most_hashed: int) -> Factorization | None:
        """Find them, on the host, without codes.

        None where the keys do not come in ascending order, are more than ``most_hashed``, and a sample shows more than
        that to be distinct (of fewer than 2^13 keys no sample is taken, and all count as distinct).
        """
    @property
    def count(self) -> int:
        """Distinct keys."""
    @property
    def of_ascending_keys(self) -> bool:
        """Did the keys come in ascending order? Then ``sorted`` costs nothing. Not told of keys on a GPU."""
    def write(
        self, uniques: Array | None, codes: Array | None, counts: Array | None, firsts: Array | None, sorted: bool
    ) -> None:
        """Fill arrays of ``count`` keys, int64 ids of all keys, int64 counts and int64 first positions.

        On the stream of the constructor; does not wait.
        """

@final
class Packing(metaclass=_Type):
    """How rows become words that tell them apart, and have their order."""

    def __init__(self, /, *args: Never, **kwargs: Never) -> None:
        """TypeError: ``KeyRows.find_packing`` makes them."""
    @property
    def dtype(self) -> str:
        """Of the words, "uint32" or "uint64"."""
    @property
    def words(self) -> int:
        """How many there may be; the one after the last is that of rows that are no keys, or have other numbers."""

# A column of rows: data, numbers per entry, bool [n] that is False for nulls, int64 offsets [n + 1] of strings, whose
# data are uint8
_KeyColumn: TypeAlias = tuple[Array, int, Array | None, Array | None]

@final
class KeyRows(metaclass=_Type):
    """Rows of columns, each row a key, as ColumnKeys of key_columns.hpp has them; holds the columns."""

    def __init__(
        self, context: Context, columns: Sequence[_KeyColumn], count: int, is_key: Array | None, stream: int
    ) -> None:
        """``is_key``: bool ``[n]``, False for rows that are no keys, all of which are alike."""
    def find_packing(self) -> Packing | None:
        """None where no word of 64 bits tells the rows apart by their numbers. Waits."""
    def pack(self, packing: Packing, words: Array) -> None:
        """Fill words ``[n]``. The packing may be of other rows, with integer columns of other dtypes."""
    def number_listed(self, packing: Packing, sorted: bool, codes: Array, firsts: Array) -> int:
        """Number the words that occur, in order of first occurrence or of the keys; returns how many there are. Waits.

        Fill codes int64 ``[n]``, -1 for rows that are no keys, and firsts int64 ``[packing.words]`` with the first row
        of each number. For fewer than 2^32 words.
        """
    def list_numbers(self, packing: Packing, codes: Array, numbers: Array) -> None:
        """Fill int64 ``[packing.words]`` by words with the codes of the rows, and -1 where no row has the word."""
    def find_listed(self, packing: Packing, numbers: Array, codes: Array) -> None:
        """Fill codes ``[n]`` with what is listed for the rows' words; -1: nothing is."""
    def fingerprint(self, seed: int, by_value: bool, tries: int, words: Array) -> None:
        """Fill uint64 ``[n]`` with hashes of the rows.

        ``by_value``: integers are equal to those of other dtypes. ``tries``: how many seeds have been in vain.
        """
    def all_equal(self, other: KeyRows, numbers: Array) -> bool:
        """Is each row i equal to row ``numbers[i]`` of others, where that is not negative? Waits."""
    def valid(self, column: int) -> Array | None: ...
    def order_words(self, column: int, part: int, words: Array) -> None:
        """Fill uint64 ``[n, 2]`` with the order of one number of each entry, or of 8 bytes of strings."""

def combine_valid(context: Context, masks: Sequence[Array], is_key: Array, stream: int) -> None:
    """Fill a mask with which entries are True in all masks."""

def mark_numbers(context: Context, values: Array, valid: Array | None, mask: Array, stream: int) -> None:
    """Fill a mask with which floats or complex numbers are valid and not NaN, in each of their parts."""

def find_invalid(context: Context, mask: Array, stream: int) -> int:
    """Where the first False is; as many as there are entries where none is. Waits."""

def leave_out(context: Context, codes: Array, at: int, stream: int) -> int:
    """Make the number at that position -1, and those above it one less. Returns it. Waits."""

def copy_without(context: Context, source: Array, left_out: int, target: Array, stream: int) -> None:
    """Copy all int64 entries but one."""

def copy_first(context: Context, source: Array, target: Array, stream: int) -> None:
    """Copy as many int64 entries as the target has."""

def renumber(context: Context, codes: Array, numbers: Array, stream: int) -> None:
    """Put numbers[code] in place of each code that is not negative."""

def mask_codes(context: Context, codes: Array, is_key: Array, stream: int) -> None:
    """Put -1 in place of the codes of what is no key."""

def mark_found(context: Context, codes: Array, invert: bool, mask: Array, stream: int) -> None:
    """Fill a mask with which codes are not negative, or are if inverted."""

def is_all_zero(context: Context, words: Array, stream: int) -> bool:
    """Waits."""

def count_up(context: Context, out: Array, stream: int) -> None:
    """Fill an array with 0, 1, 2, ..."""

# A column, the entry of negative indices (None: zeros), and where the entries go
_Take: TypeAlias = tuple[Array, Array | None, Array]

def take(
    context: Context, columns: Sequence[_Take], rows: int, index: Array, stream: int, trusted: bool = False
) -> None:
    """Fill arrays with entries of columns by an index, int64 ``[m]``.

    IndexError for an index of ``rows`` or more: then nothing is written. Waits to see that. ``trusted``: the caller
    knows that there is none.
    """

def take_offsets(context: Context, offsets: Array, index: Array, out: Array, stream: int) -> int:
    """Fill int64 ``[m + 1]`` with the offsets of taken strings, and return the last. Those of negative ones are empty.

    Waits. IndexError as of ``take``.
    """

def take_bytes(
    context: Context, data: Array, offsets: Array, index: Array, out_offsets: Array, out: Array, stream: int
) -> None:
    """Fill uint8 with the bytes of strings, as ``take_offsets`` has placed them."""

def random_seed() -> int:
    """Another secret number of 64 bits each time."""

def aggregate(
    context: Context,
    codes: Array,
    groups: int,
    requests: Sequence[tuple[str, Array | None, Array | None, Array, float, Array | None, Array | None]],
    stream: int,
) -> None:
    """Aggregates by group, all in one pass over the rows; does not wait.

    ``codes``: int64 ``[n]``, each less than ``groups``, or -1. ``requests``: (operation, values, valid, out, ddof,
    counts of parts, squares of parts), where None stands for: rows are counted, all values are valid, values are no
    parts. Operations are those of ``Groups.agg`` but nunique, and "total", the sum in float64, and "squares".
    """

@final
class GroupFold(metaclass=_Type):
    """Keys whose groups were aggregated while they were found; holds the values."""

    def __init__(self, /, *args: Never, **kwargs: Never) -> None:
        """TypeError: ``make`` makes it."""
    @staticmethod
    def make(
        context: Context,
        keys: Array,
        elements: int,
        requests: Sequence[tuple[str, Array | None, Array | None]],
        stream: int,
    ) -> GroupFold | None:
        """Find the groups, and aggregate: (operation, values, valid), as for ``aggregate``.

        None where that is no faster than to number the keys first, or cannot be done: on a GPU, for keys of more than 8
        bytes, for variances, and where groups are many. ``elements``: numbers per key.
        """
    @property
    def count(self) -> int:
        """Groups, in order of first occurrence."""
    def write(self, firsts: Array, outs: Sequence[Array]) -> None:
        """Fill int64 first positions, and for each request its results."""

def aggregate_dtype(op: str, dtype: str, wide: bool = False) -> str | None:
    """The dtype of the results of values of a dtype; ``wide``: that of 64 bits per number, for sums of parts.

    None where there is no such aggregate of them. ValueError for unknown operations.
    """

def pair_codes(
    context: Context, codes: Array, others: Array, kinds: int, valid: Array | None, pairs: Array, stream: int
) -> None:
    """One code for two: codes * kinds + others, or -1 where one is negative or not valid. ``pairs`` may be either."""

def split_pairs(context: Context, pairs: Array, kinds: int, codes: Array, stream: int) -> None:
    """The codes of pairs. ``codes`` may be ``pairs``."""

def concatenate(context: Context, parts: Sequence[Array], out: Array, stream: int) -> None:
    """Copy arrays of one dtype, one behind the other."""

def write_order_words(context: Context, keys: Array, words: Array) -> None:
    """On the host: unsigned integers, as wide as the keys, that are equal where these are and have their order.

    ``words`` may be the keys' own memory. Not of complex numbers.
    """

def read_order_words(context: Context, words: Array, keys: Array) -> None:
    """Put the keys in place of distinct order words of theirs, which ascend: as they first stand among ``keys``."""

# Strings: int64 offsets [n + 1] from 0, and uint8 data [offsets[n]]. Where there is no context, they are on the host.

def hash_rows(context: Context, rows: Array, count: int, bits: int, seed: int, out: Array, stream: int) -> None:
    """XXH3 of each of so many rows, of 64 or 128 bits: uint64 ``[count]`` or ``[count, 2]``. Does not wait."""

def hash_strings(context: Context, offsets: Array, data: Array, bits: int, seed: int, out: Array, stream: int) -> None:
    """The same of strings, whose offsets and data lie in the context's memory."""

def measure_rows(rows: Array, offsets: Array) -> int:
    """Fill the offsets of NumPy's strings of fixed width, uint32 characters or uint8 bytes ``[n, width]``.

    The position of the first one that UTF-8 cannot encode, or -1.
    """

def pack_rows(rows: Array, offsets: Array, data: Array) -> None:
    """Fill the data of these, text as UTF-8."""

def unpack_rows(offsets: Array, data: Array, rows: Array) -> None:
    """Fill rows of fixed width with strings, as long as they fit."""

def measure_taken(offsets: Array, positions: Array, taken: Array) -> int:
    """Fill the offsets of the strings at int64 positions; negative ones are empty. The place of a wrong one, or -1."""

def take_strings(offsets: Array, data: Array, positions: Array, taken: Array, out: Array) -> None:
    """Fill the data of these."""

def measure_views(views: Array, valid: Array | None, offsets: Array) -> int:
    """Fill the offsets of Arrow's string views, uint8 ``[16 * n]``; those that are not valid are empty.

    The position of the first one of a negative length, or -1.
    """

def pack_views(views: Array, buffers: Sequence[tuple[int, int]], offsets: Array, data: Array) -> bool:
    """Fill the data of these out of buffers, of address and length. False where a view leads out of them."""

def measure_objects(
    items: list[Any], missing: tuple[object, ...], offsets: Array, valid: Array | None
) -> tuple[bool | None, int]:
    """Fill the offsets of Python's str or bytes; whether they are text, and where the first other item is, or -1.

    None where there are no strings. With ``valid``, which it fills, items that are one of ``missing`` or NaN are empty.
    """

def pack_objects(items: list[Any], offsets: Array, data: Array) -> None:
    """Fill the data of these."""

@final
class ArrowNode(metaclass=_Type):
    """A column in Arrow's layout, or a part of one."""

    def __init__(
        self,
        format: str,
        name: str,
        length: int,
        nulls: int,
        buffers: Sequence[int],
        children: Sequence[ArrowNode],
    ) -> None:
        """``buffers``: addresses, 0 for none."""
    def schema(self) -> object:
        """A capsule of Arrow's C interface."""
    def array(self, held: object) -> object:
        """Likewise; ``held`` keeps the memory, and is given up when the last who reads it is done."""
    def stream(self, held: object) -> object:
        """Likewise, of this one batch."""
    def device_array(self, held: object, device_type: int, device_id: int) -> object:
        """Likewise, of memory on a device whose work on it is done."""

@final
class Pairs(metaclass=_Type):
    """The pairs of a join, counted; holds the arrays that it was made of. Their numbers nobody checks."""

    def __init__(
        self, context: Context, codes: Array, offsets: Array | None, partners: Array | None, kind: str, stream: int
    ) -> None:
        """Count them. Waits.

        ``codes``: the group of each left row, int64 ``[n]``, negative for none. ``offsets [groups + 1]``: where each
        group begins among the ``partners``; None: each has one. ``partners``: the right rows by group; None: those of
        the numbers from 0. ``kind``: "inner", "left", "semi" or "anti".
        """
    @staticmethod
    def of_keys(context: Context, left: Array, right: Array, elements: int, kind: str, stream: int) -> Pairs | None:
        """The pairs of equal keys, which need no numbers: of ``elements`` numbers and up to 16 bytes each. Waits.

        Both sides have one dtype, and there are at most 2^32 - 2 right keys. None on the host.
        """
    @property
    def count(self) -> int: ...
    def write(self, begin: int, end: int, left: Array | None, right: Array | None, at: int) -> None:
        """Pairs ``[begin, end)``, in the order of the left rows, to int64 arrays from position ``at`` on.

        On the stream of the constructor; does not wait. Left rows without a partner have -1, and so have all of "semi"
        and "anti".
        """

def group_positions(context: Context, codes: Array, offsets: Array, order: Array, stream: int) -> None:
    """The positions of each group of codes int64 ``[n]``, ascending; negative codes are of none.

    Fills ``offsets [groups + 1]`` and ``order [n]``, which has those of group g at ``[offsets[g], offsets[g + 1])``.
    """

def keep_common(context: Context, codes: Array, others: Array, groups: int, kept: Array, stream: int) -> None:
    """Codes that are among others, int64 ``[n]``, with -1 in place of those that are not. All are below ``groups``."""

def append_runs(
    context: Context,
    begins: Array,
    nexts: Array,
    first: int,
    base: int,
    offsets: Array | None,
    tails: Array | None,
    ids: Array,
    stream: int,
) -> None:
    """Runs of a log's values from number ``first`` on, one for each of the ``ids``, which become their numbers.

    ``offsets``: of their values, beginning at log position ``base``; None: one each. ``tails``: the runs that they
    follow, or -1; None: none.
    """

def list_runs(context: Context, nexts: Array, heads: Array, offsets: Array, listed: Array, stream: int) -> None:
    """The chains of runs that begin with ``heads``, one after the other: chain i at ``offsets[i]:offsets[i + 1]``."""

def sum_up(context: Context, counts: Array, offsets: Array, stream: int) -> int:
    """``offsets [n + 1]`` become the sums of the counts before each, int64 ``[n]``. Returns that of all. Waits."""

def gather_rows(context: Context, rows: Array, positions: Array, out: Array, at: int, stream: int) -> None:
    """``rows[positions]``, to the rows of ``out`` from ``at`` on. Nobody checks the positions."""

def copy_rows(context: Context, rows: Array, count: int, out: Array, at: int, stream: int) -> None:
    """The first rows, to those of ``out`` from ``at`` on."""

MAX_PARTS: int
SAMPLE_KEYS: int

@final
class Splitter(metaclass=_Type):
    """Splits batches by owners, one after the other: the next one once the ``counts`` of the last are known."""

    def __init__(self, context: Context) -> None: ...

@final
class Sample(metaclass=_Type):
    """``SAMPLE_KEYS`` keys of a batch, by which it is judged how many duplicates there are, and which keys are hot."""

    def __init__(self, splitter: Splitter, keys: Array, seed: int, stream: int) -> None:
        """Of keys ``[n, ...]``. Does not wait. The seed is that of the split whose hot keys these are to be."""
    def repeats(self) -> tuple[int, int]:
        """How many of the keys repeat others, and how often one comes; two may be taken for one. Waits."""

@final
class Split(metaclass=_Type):
    """A batch of keys that is split by owners. All that it does is enqueued on one stream."""

    def __init__(
        self,
        splitter: Splitter,
        keys: Array,
        parts: int,
        last: int,
        alignment: int,
        gap: int,
        seed: int,
        stream: int,
        sample: Sample | None = None,
    ) -> None:
        """Count the keys ``[n, ...]`` of each of up to ``MAX_PARTS`` parts. Waits for the sample alone.

        In the order of the owners the parts come in that of their numbers, but for ``last``, and begin at multiples of
        ``alignment`` rows, ``gap`` or more rows after the part before. With a sample of these keys that has hot
        ones, several that are one hot key share a place.
        """
    @property
    def merges(self) -> bool:
        """Whether there are hot keys that do."""
    def positions(self) -> int:
        """How many rows the order of the owners has, at most: ``n + parts * (gap + alignment - 1)``."""
    def tell(self, notes: Sequence[int], told: Array) -> None:
        """Put the keys of each part, and beside them up to 7 notes, into int64 ``told [parts, 1 + notes]``. Does not
        wait.
        """
    def sort_keys(self, sorted: Array) -> None:
        """Put the keys in the order of their owners into ``sorted [positions, ...]``: once, before what follows."""
    def counts(self) -> list[int]:
        """Keys of each part. Waits until they are known, but not for the keys to be sorted."""
    def sort(self, rows: Array, out: Array) -> None:
        """Put rows ``[n, ...]`` of any dtype into the order of the owners, ``[positions, ...]``."""
    def combine(self, values: Array, op: str, out: Array) -> None:
        """Likewise values of 4 or 8 bytes, ``[n]`` or ``[1]`` for all; those of keys that share a place by ``op``."""
    def gather_mask(self, mask: Array, out: Array) -> None:
        """Put a mask in the order of the owners back: of keys that share a place, one gets it. After ``counts``."""
    def gather(self, rows: Array, out: Array, found: Array | None = None, found_out: Array | None = None) -> None:
        """Put rows in the order of the owners, up to the last part's, back; a mask, too. After ``counts``."""

def find_owners(context: Context, keys: Array, parts: int, seed: int, out: Array, stream: int) -> None:
    """Fill int32 ``out [n]`` with the owners of keys ``[n, ...]``, of any number of parts."""

def pack_columns(context: Context, columns: Sequence[Array], rows: Array, stream: int) -> None:
    """Fill ``rows [n, bytes]`` with the columns' items, ``[n]`` each, side by side. Does not wait."""

def unpack_columns(context: Context, columns: Sequence[Array], rows: Array, stream: int) -> None:
    """The reverse."""

def isin(
    context: Context, elements: Array, tests: Array, per_key: int, invert: bool, mask: Array, stream: int
) -> None: ...

@final
class FastPath(metaclass=_Type):
    """Serves the calls of one Python object of a table on plain arrays; declines all others, for the general path.

    Plain: of the class ``numpy.ndarray``, ``torch.Tensor`` or ``cupy.ndarray`` itself, C-contiguous, without gradients
    or lazy conjugation, not empty. The arrays of a call are of one framework, of the table's dtypes, on its device; the
    work goes to the framework's current stream. Values and defaults may be Python numbers as well, which lie on a GPU
    as by ``Table.constant``. For a table on the host, without shards, keys may be integers of Python or NumPy, tuples
    of integers for vector keys, or flat lists of integers, and values flat lists of numbers. Outputs that overlap
    inputs, or table rows, are left to the general path.
    """

    def __init__(self, table: Table, key_shape: Sequence[int]) -> None: ...
    def set_fallback(self, fallback: Array | None) -> None:
        """Choose the value of absent keys, in the table's memory."""
    def set_views(self, views: Sequence[FastPath]) -> None:
        """Choose what serves batches on the other devices of a table with shards, in calls with lists of batches."""
    @property
    def changes(self) -> int:
        """How many of the calls served may have changed which keys there are."""

_Method = TypeVar("_Method", bound=Callable[..., Any])

def fast_path(
    operation: Literal[
        "getitem",
        "get",
        "find",
        "contains",
        "contains_one",
        "rows",
        "setitem",
        "insert",
        "insert_or_assign",
        "insert_or_apply",
        "find_or_insert",
        "add",
        "erase",
        "erase_present",
        "discard",
        "pop",
        "setdefault",
    ],
) -> Callable[[_Method], _Method]:
    """Decorate a method: the object's ``_fast``, a FastPath, is asked first, the method where that declines."""

def set_traced(get: Callable[..., Any], call: Callable[..., Any]) -> None:
    """Give the type of methods with a fast path a ``__get__(method, object, owner)`` and a ``__call__(method, object,
    ...)`` that only Dynamo sees.
    """

def set_subscripts(table_class: type) -> None:
    """Have ``table[keys]``, ``table[keys] = values`` and ``del table[keys]`` call the class's ``_getitem``,
    ``_setitem`` and ``_erase_present``, in C.
    """

def set_membership(table_class: type) -> None:
    """Have ``key in table`` call the class's ``_contains_one``, in C."""

def torch_state(table: object) -> Any:
    """The table's state tensor, made at first use; None where the ops for PyTorch cannot be had."""

def torch_ops(_: object) -> bool:
    """Are the ops for PyTorch there? They are compiled and loaded at first use."""

def torch_default(table: object) -> Any:
    """The table's default as a tensor, made at first use; None where it has none."""

def use_framework(name: Literal["numpy", "torch", "cupy"], module: object) -> None:
    """Make a framework's arrays known to ``FastPath``, if they can be read cheaply."""

def register_table(name: str, table: Table) -> None: ...
def find_table(name: str) -> Table | None: ...
def unregister_table(name: str, table: Table | None) -> bool:
    """False where no table had the name, or another one than this. None: whatever table has it."""

def table_names() -> list[str]: ...
def handle_of(table: Table) -> int:
    """The number that stands for the table in compiled programs: that of its name, if it has one, or else its own."""

def own_handle_of(table: Table) -> int:
    """The number that means this table as long as it lives, whatever its name, and nothing after it."""

def handle_of_name(name: str) -> int:
    """The same in each process; it means whichever table has the name when it is looked up."""

def table_of(handle: int) -> Table | None:
    """None where the table has been freed, or none has the name."""

@final
class StoredTensor(metaclass=_Type):
    """The tensor that had a name in the store when it was looked up; keeps it alive."""

    def __init__(self, /, *args: Never, **kwargs: Never) -> None:
        """TypeError: ``find_tensor`` makes them."""
    @property
    def dtype(self) -> str | None:
        """None for a dtype that only its framework knows."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def platform(self) -> str: ...
    @property
    def device_index(self) -> int: ...
    @property
    def device(self) -> str:
        """ "cpu", "cuda:0", ..."""
    @property
    def data(self) -> int:
        """Address of the first element; 0 if there are none."""
    @property
    def framework(self) -> str:
        """Whose own object the store holds: "python", "tensorflow", or "" for memory alone."""
    @property
    def native(self) -> Any | None:
        """The object that Python saved, None where it was not Python."""
    @property
    def context(self) -> Context: ...
    def wait(self, stream: int) -> None:
        """Make ``stream`` wait for the work that filled the tensor."""
    def buffer(self, stream: int) -> Buffer:
        """The tensor's memory, for use on ``stream``, after ``wait(stream)``; TypeError where dtype is None.

        When the last array that was given the memory is gone, the stream of whoever saved it waits for ``stream``.
        """

def put_tensor(name: str, array: Array, native: object | None, stream: int, wait: bool) -> None:
    """Hold a contiguous array under the name, in the place of what had it before.

    ``native``: what ``StoredTensor.native`` gives back; None for the memory alone. ``stream``: whose work fills it.
    ``wait``: the host waits for the stream before it lets go of the array.
    """

def find_tensor(name: str) -> StoredTensor | None: ...
def remove_tensor(name: str) -> bool: ...
def tensor_names() -> list[str]:
    """In ascending order."""

def platform_names() -> list[str]: ...
def platform_devices(name: str) -> list[str]: ...
def platform_unavailable_reason(name: str) -> str: ...
def build_info() -> dict[str, str]:
    """Version, compiler, CUDA version and architectures of this build."""

def stray_keys(bytes_per_key: int) -> list[bytes]:
    """The keys whose bytes are those that mark empty and erased slots. For tests: they are keys like any other."""

def set_num_threads(threads: int) -> None: ...
def get_num_threads() -> int: ...
def set_default_float_mode() -> int:
    """The calling thread computes with floats as IEEE 754 says from now on; returns its mode of before."""

def restore_float_mode(mode: int) -> None: ...
def thresholds() -> dict[str, int]:
    """By which numbers the ways of working are chosen: of this process, as cpp/core/tuning.hpp says."""

def set_threshold(name: str, value: int) -> int:
    """Choose by another number from now on; the one of before. For tests and benchmarks, while no call is under way."""

def launched_kernels() -> int:
    """How many kernels this thread has launched so far, on any GPU. For tests."""

def set_reservation_limit(bytes: int) -> None:
    """Memory that grows where it lies has addresses for so many bytes, or as many as it begins with; 0: there is none
    of that kind, and rows are copied; -1: as many as there is memory. For tests.
    """

def inject_failure(kind: Literal["scratch", "launch", "mapping"], after: int) -> bool:
    """Make one step fail that hardly ever does: of its kind, the one after the next `after`; -1: none. For tests.

    "scratch": memory of the host's algorithms that is not the resource's, a MemoryError. "launch": the launch of a CUDA
    kernel, which then does not run, a CudaError. Returns whether the failure asked for before is still to come.
    """
