"""The rows of a table by their numbers: read, summed, trained, restored; what embeddings are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuhash import _core
from gpuhash.arrays.arguments import count_of, wrong_dtype
from gpuhash.arrays.batch import Batch, Output, join, to_device
from gpuhash.arrays.frameworks import Shape, framework_of
from gpuhash.optimizers import Optimizer

from .named_columns import Column, need

if TYPE_CHECKING:
    from gpuhash.table import HashTable


class RowAccess:
    """The rows of a table, by the numbers that ``find_or_insert`` and ``rows`` give. ``table.row_access`` makes it.

    Arrays are of any framework, and have exactly the dtypes that are named; those on the host are copied to a table
    on a GPU. Answers are of the framework of the row numbers, and lie where these do. Nothing else waits for the GPU,
    but where it says so. A number for which the table has no memory, such as -1, reads the default, and is passed over
    by training. Numbers that were not handed out yet, or whose keys have been erased, read what lies there.
    """

    def __init__(self, table: HashTable) -> None:
        table._need_rows()
        if table._shards:
            raise ValueError("a table of several shards has its rows with its shards: take table.shards[i].row_access")
        self._table = table

    def read(self, rows: Any, column: str | None = None, *, default: Any = None, out: Any = None) -> Any:
        """The values in rows.

        Parameters
        ----------
        rows
            int64 ``[*batch]``; Python numbers as well.
        column
            In a table with columns the name of one.
        default
            What numbers that are no row's get: one value; None: zeros.
        out
            An array ``[*batch, *shape]`` to write into.

        Returns
        -------
        ``[*batch, *shape]`` of the column's dtype and shape.

        Raises
        ------
        TypeError, ValueError
            For arrays of other dtypes, shapes or devices, and an unknown column.
        """
        number, field = self._column(column)
        batch = self._rows(rows)
        output = Output(batch, field.dtype, batch.shape + field.shape, out)
        read = (number, output.array, self._default(default, field, batch))
        self._table._core.read_rows(batch.array, [read], batch.stream)
        batch.finish()
        return output.result(batch)

    def pool(
        self,
        rows: Any,
        offsets: Any,
        factors: Any = None,
        column: str | None = None,
        *,
        default: Any = None,
        out: Any = None,
        check: bool = True,
    ) -> Any:
        """Sums of rows by bags, as ``torch.nn.functional.embedding_bag`` has them.

        Parameters
        ----------
        rows
            int64 ``[n]``.
        offsets
            int64 ``[bags + 1]``, from 0 to n, none less than the one before: bag b has the positions ``offsets[b]`` up
            to ``offsets[b + 1]``.
        factors
            float32 ``[n]``, by which values are multiplied before; None: 1.
        column, default, out
            As for ``read``; ``out`` is ``[bags, *shape]``.
        check
            Whether the offsets are looked through, for which the host waits. Unchecked ones that are wrong read memory
            that is not the batch's: leave it out for those alone that you made yourself.

        Returns
        -------
        ``[bags, *shape]`` of the column's dtype, summed in float32. The column is of float32 or bfloat16.
        """
        number, field = self._column(column)
        batch = self._rows(rows)
        ends = self._given(offsets, batch, "int64", "offsets")
        if len(batch.shape) != 1 or len(ends.shape) != 1 or ends.shape[0] < 1:
            raise ValueError(
                f"the rows have shape {batch.shape} and the offsets {ends.shape}, expected (n,) and (bags + 1,)"
            )
        if check:
            _check_offsets(batch.to_host(ends), batch.shape[0])
        output = Output(batch, field.dtype, (ends.shape[0] - 1, *field.shape), out)
        ends = batch.apart(ends)
        scale = None if factors is None else self._given(factors, batch, "float32", "factors", batch.shape)
        read = (number, output.array, self._default(default, field, batch))
        self._table._core.pool_rows(batch.array, ends, scale, read, batch.stream)
        batch.finish()
        return output.result(batch)

    def train(
        self,
        rows: Any,
        gradients: Any,
        optimizer: Optimizer,
        step: int,
        *,
        items: Any = None,
        factors: Any = None,
        columns: Sequence[str] | None = None,
        check: bool = True,
    ) -> None:
        """One step of an optimizer on the rows of a batch; the gradients of a row that comes several times are added.

        Parameters
        ----------
        rows
            int64 ``[n]``.
        gradients
            Of position i: ``gradients[i]``, of the shape of the weights, times ``factors[i]``. float32, or of the
            weights' dtype.
        optimizer
            Of ``gpuhash.optimizers``, such as ``SGD(lr=0.1)``.
        step
            The number of the step, counted from 1.
        items
            int64 ``[n]``: position i has the gradient ``gradients[items[i]]``.
        factors
            float32 ``[n]``; None: 1.
        columns
            The weights, and what the optimizer keeps for them, in the order of ``optimizer.columns(embedding_dim)``.
            None: the table's columns, in their order.
        check
            Whether ``items`` are looked through, as of ``pool``.

        Raises
        ------
        TypeError, ValueError
            As ``read``, and for columns that are not those of the optimizer.
        """
        if not isinstance(optimizer, Optimizer):
            given = optimizer.__name__ if isinstance(optimizer, type) else repr(optimizer)
            raise TypeError(f"optimizer={given} was given, expected one of gpuhash.optimizers, such as SGD(lr=0.1)")
        steps = optimizer.step(count_of(step, "step"))
        table = self._table
        names = list(table._fields) if columns is None else _listed(columns)
        fields = [self._column(name or None) for name in names]
        weights = fields[0][1]
        kept = optimizer.columns(math.prod(weights.shape))
        optimizer.check_dim(math.prod(weights.shape))
        given = [(field.dtype, math.prod(field.shape)) for _, field in fields[1:]]
        if given != [(field.dtype, math.prod(field.shape)) for field in kept.values()]:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {', '.join(map(str, kept.values())) or 'nothing'} beside the "
                f"weights, and the columns {names[1:]} were given"
            )
        batch = self._rows(rows)
        framework = framework_of(gradients)
        if framework.python:
            raise TypeError(f"the gradients are a {type(gradients).__name__}, expected an array of float32")
        dtype = batch.borrow(gradients, framework).dtype
        if dtype not in ("float32", weights.dtype):
            raise wrong_dtype("gradients", framework, dtype, "float32")
        given_gradients = self._given(gradients, batch, dtype, "gradients")
        item_of = None if items is None else self._given(items, batch, "int64", "items", batch.shape)
        leading = given_gradients.shape[: len(given_gradients.shape) - len(weights.shape)]
        if given_gradients.shape != leading + weights.shape or (item_of is None and leading != batch.shape):
            raise ValueError(
                f"the gradients have shape {given_gradients.shape}, expected {batch.shape + weights.shape}"
            )
        if item_of is not None and check:
            _check_items(batch.to_host(item_of), math.prod(leading))
        scale = None if factors is None else self._given(factors, batch, "float32", "factors", batch.shape)
        numbers = [number for number, _ in fields]
        table._core.train(
            batch.apart_from_rows(batch.array),
            batch.apart_from_rows(given_gradients),
            None if item_of is None else batch.apart_from_rows(item_of),
            None if scale is None else batch.apart_from_rows(scale),
            numbers,
            steps,
            batch.stream,
        )
        batch.finish()

    def restore(self, keys: Any, rows: Any) -> None:
        """Makes an empty table one of these keys, each with the row of that number. Waits.

        What the rows hold is left to be written, as through ``row_storage`` or ``column``.

        Parameters
        ----------
        keys
            ``[n, *key_shape]``, no one twice.
        rows
            int64 ``[n]``, no number twice.

        Raises
        ------
        ValueError
            For a table that has keys, and numbers that are given twice or are below 0.
        MemoryError
            Where there is no room for the largest number; the table is as it was.
        """
        table = self._table
        batch = table._take(keys, inserts=True)
        numbers = self._given(rows, batch, "int64", "rows", batch.shape)
        table._changes += 1
        table._core.restore_rows(batch.array, numbers, batch.stream)

    def keep_in_place(self, column: str | None = None, like: Any = None) -> Any:
        """Keeps the table's memory where it is from now on, and gives a view of one column of all rows that there is
        memory for: ``[rows, *shape]``, with strides. The table does not grow any more.

        ``like`` as for ``HashTable.column``.
        """
        table = self._table
        number, _ = self._column(column)
        framework = table._framework_of_rows(like, "row_access")
        stream = 0 if table._host else framework.stream(None, table._index)
        table._core.fix_in_place(stream)
        return framework.wrap(table._core.column_storage(number, True, stream))

    def _column(self, name: str | None) -> tuple[int, Column]:
        table = self._table
        if table._columns is None:
            if name is not None:
                raise ValueError(f"the column {name!r} was asked for, and the table has a single value per key")
            return 0, table._fields[""]
        if name is None:
            raise ValueError(f"the table has the columns {', '.join(table._columns)}: name the one that is meant")
        field = need(table._columns, name)
        return table._numbers[name], field

    def _rows(self, rows: Any) -> Batch:
        table = self._table
        return Batch.of_keys(rows, "int64", (), table._core, table._context, None, "rows")

    def _given(self, array: Any, batch: Batch, dtype: str, what: str, shape: Shape | None = None) -> _core.Array:
        """An array of a call, checked, in the table's memory."""
        framework = framework_of(array)
        if framework.python:
            raise TypeError(f"the {what} are a {type(array).__name__}, expected an array of {dtype}")
        given = batch.borrow(array, framework)
        if given.dtype != dtype:
            raise wrong_dtype(what, framework, given.dtype, dtype)
        if shape is not None and given.shape != shape:
            raise ValueError(f"the {what} have shape {given.shape}, expected {shape}")
        given, staged = to_device(given, batch.context, batch.stream, what)
        if not staged and framework is not batch.framework:
            join(batch, framework, array)
        return batch.apart(given)

    def _default(self, default: Any, field: Column, batch: Batch) -> _core.Array | None:
        if default is None:
            return None
        framework = framework_of(default)
        if not framework.python:
            given = batch.borrow(default, framework)
            is_here = given.platform == batch.context.platform and given.device_index == batch.array.device_index
            if is_here and given.dtype == field.dtype and given.shape == field.shape:
                if framework is not batch.framework:
                    join(batch, framework, default)
                return batch.apart(given)
        return self._table._fallback_of(default, batch, field.dtype, field.shape, "default")


def _listed(columns: Any) -> list[str]:
    """The names of the columns of a step. ValueError for none, and for one that comes twice; TypeError for a text."""
    if isinstance(columns, str):
        raise TypeError(f"columns={columns!r} was given, expected a list of names, such as [{columns!r}]")
    names = list(columns)
    if not names:
        raise ValueError("columns=[] was given: name the weights, and then what the optimizer keeps for them")
    if len(set(names)) < len(names):
        raise ValueError(f"columns={names} was given, in which one comes twice")
    return names


def _check_offsets(offsets: np.ndarray[Any, Any], count: int) -> None:
    if offsets[0] != 0 or offsets[-1] != count or (np.diff(offsets) < 0).any():
        raise ValueError(f"the offsets go from {offsets[0]} to {offsets[-1]}, expected from 0 to {count}, ascending")


def _check_items(items: np.ndarray[Any, Any], count: int) -> None:
    if items.size and not (items.min() >= 0 and items.max() < count):
        raise ValueError(f"the items go from {items.min()} to {items.max()}, and there are {count} gradients")
