"""Runs every kernel once or more on small tables, against dict; made to be run under compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python -P tests/exercise_kernels.py

With --whole-words for initcheck; --cpu tries the script itself.

Only NumPy arrays go in and out, so that no other library's kernels are watched.
"""

import itertools
import sys

import numpy as np

import gpuhash
from gpuhash import _core

DEVICE = "cpu" if "--cpu" in sys.argv else "cuda"
KEYS = [("int8", ()), ("int32", ()), ("int64", ()), ("int32", (3,)), ("int64", (2,))]
# Rows that end within a word: their last bytes are swapped by way of a word whose other bytes nobody may have written
# yet, which is right, and which initcheck reports.
ODD_ROWS = ("uint8", (3,))
VALUES = [(None, ()), ("int16", ()), ("int64", ()), ("float32", (5,)), ("complex128", ()), ODD_ROWS]


def as_items(array: object) -> list:
    """Keys or values as tuples; a _core.Buffer of the GPU is copied to the host."""
    if isinstance(array, _core.Buffer):
        host = np.empty(array.shape, array.dtype)
        _core.Context("cuda").copy(_core.borrow(host), array.array(), 0)
        array = host
    return [tuple(np.ravel(item).tolist()) for item in array]


def random_keys(rng: np.random.Generator, count: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    top = min(np.iinfo(dtype).max, 700)
    keys = rng.integers(0, top, (count, *shape)).astype(dtype)
    keys[0], keys[1], keys[2] = 0, -1, np.iinfo(dtype).min
    return keys


def exercise(
    key_dtype: str, key_shape: tuple[int, ...], value_dtype: str | None, value_shape: tuple[int, ...], ordered: bool
) -> None:
    rng = np.random.default_rng(1)
    options = {"key_shape": key_shape, "device": DEVICE, "deterministic": ordered}
    if value_dtype is None:
        table = gpuhash.HashSet(key_dtype, **options)
    else:
        table = gpuhash.HashTable(key_dtype, value_dtype, value_shape=value_shape, **options)
    model: dict = {}
    for count in (1000, 333):
        keys = random_keys(rng, count, key_dtype, key_shape)
        items = as_items(keys)
        if value_dtype is None:
            inserted = table.insert(keys)
            values = np.zeros(count)
        else:
            # One value per key, so that any of a batch's duplicates may win.
            numbers = {item: number for number, item in enumerate(dict.fromkeys(items))}
            column = np.array([numbers[item] % 100 for item in items]).reshape(-1, *(1,) * len(value_shape))
            values = np.broadcast_to(column, (count, *value_shape)).astype(value_dtype)
            inserted = table.insert_or_assign(keys, values)
        assert inserted.sum() == len(set(items) - set(model))
        model.update(zip(items, as_items(values), strict=True))
        gone = keys[::3]
        assert table.erase(gone).sum() == len(set(as_items(gone)))
        for item in as_items(gone):
            model.pop(item, None)
        assert len(table) == len(model)
        assert table.contains(keys).tolist() == [item in model for item in items]
    if value_dtype is None:
        assert set(as_items(table.keys())) == set(model)
        return
    assert dict(zip(*map(as_items, table.items()), strict=True)) == model
    if value_shape or value_dtype == "complex128":
        table.shrink_to_fit()
        assert dict(zip(*map(as_items, table.items()), strict=True)) == model
    table.insert(keys, values)
    table.insert_or_apply(keys, values, "add")
    table.insert_or_apply(keys, values, "multiply")
    found, mask = table.find(keys)
    assert mask.all()
    assert len(found) == len(keys)


def main() -> None:
    values = [kind for kind in VALUES if kind != ODD_ROWS or "--whole-words" not in sys.argv]
    cases = list(itertools.product(KEYS, values, (False, True)))
    for (key_dtype, key_shape), (value_dtype, value_shape), ordered in cases:
        exercise(key_dtype, key_shape, value_dtype, value_shape, ordered)
    print(f"{len(cases)} passed, 0 failed", file=sys.stderr)


if __name__ == "__main__":
    main()
