"""Runs every kernel once or more on small tables, against dict; made to be run under compute-sanitizer.

    PYTHONPATH=tests compute-sanitizer --tool memcheck --error-exitcode 1 python -P tests/exercise_kernels.py

Only NumPy arrays go in and out, so that no other library's kernels are watched.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from support.gpu_record import part_of
from support.tuning import WIDE_POSITIONS, partitioned, tuned

import gpuhash
from gpuhash import Column, _core
from gpuhash.initializers import Constant, Normal, TruncatedNormal, Uniform

DEVICE = "cpu" if "--cpu" in sys.argv else "cuda"
KEYS = [("int8", ()), ("int32", ()), ("int64", ()), ("int32", (3,)), ("int64", (2,))]
WIDE_KEYS = [("int32", (7,)), ("int8", (33,)), ("int64", (2, 2))]
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
    if value_dtype == "float32":
        exercise_initializers(random_keys(rng, 500, key_dtype, key_shape), key_dtype, value_shape, options)
    model: dict = {}
    for count in (1000, 333):
        keys = random_keys(rng, count, key_dtype, key_shape)
        items = as_items(keys)
        if value_shape:
            rows, is_new = table.find_or_insert(keys[::2], 1)
            assert rows.tolist() == table.rows(keys[::2]).tolist()
            assert is_new.sum() == len(set(items[::2]) - set(model))
            table.erase(keys[::2][is_new])
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


def exercise_initializers(keys: np.ndarray, key_dtype: str, value_shape: tuple[int, ...], options: dict) -> None:
    """Of each element type and distribution; rows are those of a table on the host."""
    for value_dtype in ("float16", "bfloat16", "float32", "float64"):
        for initializer in (Uniform(-1, 2), Normal(0.5, 2), TruncatedNormal(), Constant(3)):
            gpu, host = (
                gpuhash.HashTable(
                    key_dtype,
                    value_dtype,
                    value_shape=value_shape,
                    initializer=initializer,
                    **{**options, "device": device},
                )
                for device in (DEVICE, "cpu")
            )
            for part in (keys[:300], keys):
                gpu.find_or_insert(part)
                host.find_or_insert(part)
                assert np.asarray(gpu[part]).tobytes() == np.asarray(host[part]).tobytes()


def exercise_columns(key_dtype: str, key_shape: tuple[int, ...], ordered: bool) -> None:
    """Rows of 16-byte, 4-byte and single-byte words, on the device as on the host."""
    whole = "--whole-words" in sys.argv
    narrow = {} if whole else {"bytes": ("uint8", (3,)), "flag": "bool"}
    halves = 6 if whole else 5  # 6: nothing is left of a row, which nobody writes and copies of whole rows read
    columns = {
        "long": ("float32", (64,)),
        "step": "int64",
        "short": Column("float16", (halves,), Normal(seed=3)),
        "drawn": Column("float32", (3,), Uniform(0, 1, seed=3)),
        **narrow,
    }
    rng = np.random.default_rng(6)
    options = {"key_shape": key_shape, "deterministic": ordered}
    gpu, host = (gpuhash.HashTable(key_dtype, columns, device=device, **options) for device in (DEVICE, "cpu"))

    def check(keys: np.ndarray) -> None:
        for table in (gpu, host):
            table.find_or_insert(keys[:3])
        ours, mask = gpu.find(keys, {"step": -1})
        theirs, there = host.find(keys, {"step": -1})
        assert mask.tolist() == there.tolist()
        for name in columns:
            assert ours[name].tobytes() == theirs[name].tobytes(), name

    for count in (1000, 333):
        keys = random_keys(rng, count, key_dtype, key_shape)
        numbers = {item: number for number, item in enumerate(dict.fromkeys(as_items(keys)))}
        one_each = np.array([numbers[item] for item in as_items(keys)])  # so that any of the duplicates may win
        values = {"step": one_each, "long": np.repeat(one_each[:, None], 64, 1).astype(np.float32)}
        short = np.repeat(one_each[:, None] % 99, halves, 1).astype(np.float16)
        bytes_of = {name: np.uint8(7) if name == "bytes" else True for name in narrow}
        for table in (gpu, host):
            table.insert(keys[::4], {"short": short[::4], "drawn": 0.5})
            table[keys] = values
            table.insert_or_assign(keys[::2], {name: value[::2] for name, value in values.items()} | bytes_of)
            ops = {"step": "add", "drawn": "max"} | dict.fromkeys(narrow, "max")
            table.insert_or_apply(keys, {"short": np.float16(0.75)}, "add")
            table.insert_or_apply(keys, {"step": 1, "drawn": 0.75} | bytes_of, ops)
            table.erase(keys[::3])
            table.insert_or_apply(keys, {"long": values["long"]}, "min")
        check(keys)
        gpu.shrink_to_fit()
        check(random_keys(rng, 100, key_dtype, key_shape))
    assert gpu.to("cpu") == host
    if not ordered:
        return
    shards = gpuhash.HashTable(key_dtype, columns, device=[DEVICE] * 2, **options)
    shards[keys] = values
    assert shards.find(keys, columns=["step"])[0]["step"].tolist() == one_each.tolist()


def exercise_wide_keys(key_dtype: str, key_shape: tuple[int, ...], bits: int) -> None:
    """Keys in rows; with few bits some share a fingerprint."""
    with tuned(fingerprint_bits=bits):
        exercise(key_dtype, key_shape, "int64", (), True)
        exercise(key_dtype, key_shape, "float32", (3,), False)
        exercise(key_dtype, key_shape, None, (), False)
        exercise_columns(key_dtype, key_shape, False)


def exercise_key_columns() -> None:
    columns = {"a": "int64", "b": "int16", "c": "uint8", "d": "int32", "e": "int32"}
    rng = np.random.default_rng(8)
    keys = {name: rng.integers(0, 3, 1000).astype(dtype) for name, dtype in columns.items()}
    for some in (columns, dict(list(columns.items())[:3])):
        table = gpuhash.HashTable(some, "int64", device=DEVICE)
        given = {name: keys[name] for name in some}
        table.insert_or_apply(given, 1, "add")
        rows = np.stack([column.astype(np.int64) for column in given.values()], axis=1)
        distinct, counts = np.unique(rows, axis=0, return_counts=True)
        assert table == dict(zip(map(tuple, distinct.tolist()), counts.tolist(), strict=True))
        back = table.keys("numpy")
        assert {name: column.dtype.name for name, column in back.items()} == some


def to_device(host: np.ndarray) -> object:
    """Where ``unique``, ``factorize`` and ``isin`` shall work: they take arrays where they lie."""
    if DEVICE == "cpu":
        return host
    context = _core.Context(DEVICE)
    buffer = _core.Buffer(context, host.dtype.name, host.shape, 0)
    context.copy(buffer.array(), _core.borrow(host), 0)
    return buffer


def exercise_factorization(dtype: str, shape: tuple[int, ...], count: int, distinct: int, wide: bool) -> None:
    rng = np.random.default_rng(2)
    axis = 0 if shape else None
    keys = rng.integers(0, distinct, (count, *shape)).astype(dtype)
    items = as_items(keys)
    ids: dict = {}
    codes = [(ids.setdefault(item, len(ids)),) for item in items]
    array = to_device(keys)
    got = gpuhash.factorize(array, axis=axis)
    assert as_items(got.codes) == codes
    assert as_items(got.uniques) == list(ids)
    options = {"return_inverse": True, "return_counts": True, "return_index": True, "axis": axis}
    ordered = gpuhash.unique(array, sorted=True, **options)
    assert as_items(ordered.values) == sorted(ids)
    assert [items[first] for (first,) in as_items(ordered.indices)] == sorted(ids)
    assert sum(number for (number,) in as_items(ordered.counts)) == count
    counted = gpuhash.unique(array, return_counts=True, axis=axis)
    assert [number for (number,) in as_items(counted.counts)] == np.bincount(np.array(codes)[:, 0]).tolist()
    known = set(items[::50])
    mask = gpuhash.isin(array, to_device(np.ascontiguousarray(keys[::50])), axis=axis)
    assert [found for (found,) in as_items(mask)] == [item in known for item in items]
    mask = gpuhash.isin(to_device(keys[:100]), array, axis=axis, invert=True)
    assert not np.any(as_items(mask))
    if wide:
        context = _core.Context(DEVICE)
        with tuned(**WIDE_POSITIONS):
            work = _core.Factorization(context, _core.borrow(array), keys[0].size, True, True, 0)
        wide_codes = to_device(np.zeros(count, np.int64))
        work.write(None, _core.borrow(wide_codes), None, None, False)
        context.synchronize(0)
        assert as_items(wide_codes) == codes


def exercise_hashes(dtype: str) -> None:
    """Rows of each way in which a kernel reads them, and strings, as the host hashes them."""
    rng = np.random.default_rng(3)
    width = np.dtype(dtype).itemsize
    for length, bits in itertools.product((1, 2, 4, 8, 12, 16, 24, 32, 40, 200, 248, 1100), (64, 128)):
        if length % width:
            continue
        for count in (1, 257):
            rows = rng.integers(0, 256, (count, length), np.uint8).view(dtype)
            hashes = on_host(gpuhash.hash(to_device(rows), bits=bits, seed=5, axis=0))
            assert hashes.tolist() == gpuhash.hash(rows, bits=bits, seed=5, axis=0).tolist()


def exercise_hashes_of_strings() -> None:
    words = [np.random.default_rng(length).bytes(length) for length in (*range(300), 1030)]
    offsets = np.cumsum([0, *map(len, words)])
    data = np.frombuffer(b"".join(words), np.uint8)
    for bits in (64, 128):
        out = zeros(len(words), "uint64", (bits // 64,))
        lent = [_core.borrow(to_device(array)) for array in (offsets, data)]
        _core.hash_strings(_core.Context(DEVICE), *lent, bits, 5, _core.borrow(out), 0)
        assert on_host(out).reshape(-1).tolist() == gpuhash.hash(words, bits=bits, seed=5).reshape(-1).tolist()


def exercise_joins(left_count: int, right_count: int, distinct: int, dtype: str, row: tuple[int, ...]) -> None:
    """Of keys that get numbers first, and of those that do not."""
    rng = np.random.default_rng(3)
    left, right = rng.integers(0, distinct, left_count), rng.integers(0, distinct, right_count)
    if right_count == distinct:
        right = rng.permutation(distinct)
    partners: dict = {}
    for j, key in enumerate(right.tolist()):
        partners.setdefault(key, []).append(j)
    pairs = [(i, j) for i, key in enumerate(left.tolist()) for j in partners.get(key, [-1])]
    rest = sorted(set(range(right_count)) - {j for _, j in pairs})
    inner = [(i, j) for i, j in pairs if j >= 0]
    ours, theirs = (
        to_device(np.broadcast_to(side.reshape(-1, *[1] * len(row)), (len(side), *row)).astype(dtype))
        for side in (left, right)
    )
    for how, expected in {"inner": inner, "left": pairs, "outer": pairs + [(-1, j) for j in rest]}.items():
        joined = gpuhash.Join(ours, theirs, how)
        assert joined.count == len(expected)
        got = [pair for piece in joined.pieces(1000) for pair in zip(*map(as_items, piece), strict=True)]
        assert [(i, j) for (i,), (j,) in got] == expected
    assert as_items(gpuhash.join(ours, theirs, "semi")) == [(i,) for i in sorted({i for i, j in pairs if j >= 0})]
    assert as_items(gpuhash.join(ours, theirs, "anti")) == [(i,) for i, j in pairs if j < 0]


def exercise_groups(count: int, distinct: int, dtype: str) -> None:
    """Every aggregate, of few groups and of many, as the host gives it."""
    rng = np.random.default_rng(7)
    keys, values = rng.integers(0, distinct, count), rng.integers(0, 50, count).astype(dtype)
    operations = ("sum", "mean", "min", "max", "first", "last", "any", "all", "var", "std", "nunique", "count")
    ours = gpuhash.group_by(to_device(keys)).agg(**dict.fromkeys(operations, to_device(values)))
    theirs = gpuhash.group_by(keys).agg(**dict.fromkeys(operations, values))
    for operation in operations:
        assert np.allclose(on_host(ours[operation]), theirs[operation], equal_nan=True), operation
    if values.dtype.kind == "f":
        values[::3] = np.nan
        ours = gpuhash.group_by(to_device(keys)).agg(sum=to_device(values), count=to_device(values), skipna=True)
        theirs = gpuhash.group_by(keys).agg(sum=values, count=values, skipna=True)
        assert all(np.allclose(on_host(ours[operation]), theirs[operation]) for operation in theirs)


def exercise_keys_of_columns(count: int, width: int, least: int, most: int) -> None:
    """Several columns as one key: by words where their ranges are small, else by fingerprints."""
    rng = np.random.default_rng(8)
    columns = [
        rng.integers(least, most, count),
        rng.integers(0, 3, (count, width), np.uint8),
        rng.integers(0, 3, count).astype("float32"),
    ]
    given = [to_device(column) for column in columns]
    for sorted_keys in (False, True):
        ours, theirs = (gpuhash.group_by(keys, sorted=sorted_keys) for keys in (given, columns))
        assert on_host(ours.codes).tolist() == theirs.codes.tolist()
        assert all(as_items(one) == as_items(other) for one, other in zip(ours.keys, theirs.keys, strict=True))
    half = count // 2
    pairs = gpuhash.join([to_device(column[:half]) for column in columns], given)
    expected = gpuhash.join([column[:half] for column in columns], columns)
    assert all(on_host(one).tolist() == other.tolist() for one, other in zip(pairs, expected, strict=True))
    index = rng.integers(-1, count, 1000)
    taken = gpuhash.take(given, to_device(index), fill=1)
    for one, other in zip(taken, gpuhash.take(columns, index, fill=1), strict=True):
        assert as_items(one) == as_items(other)
    rows = to_device(columns[1])
    values, inverse, counts = gpuhash.unique(rows, axis=0, return_inverse=True, return_counts=True)
    expected = gpuhash.unique(columns[1], axis=0, return_inverse=True, return_counts=True)
    for one, other in zip((values, inverse, counts), expected, strict=True):
        assert as_items(one) == as_items(other)
    tests = columns[1][::7].copy()
    mask = on_host(gpuhash.isin(rows, to_device(tests), axis=0))
    assert mask[::7].all()
    assert mask.tolist() == gpuhash.isin(columns[1], tests, axis=0).tolist()


def exercise_integer_columns(count: int, dtypes: tuple[str, ...], most: int) -> None:
    """Integers of one width and of several, whose words have a list or a table; descending ones come late."""
    rng = np.random.default_rng(9)
    for late in (False, True):
        columns = [rng.integers(0, most, count).astype(dtype) for dtype in dtypes]
        columns[0] = -np.sort(columns[0]) if late else columns[0] - columns[0].dtype.type(most // 2)
        given = [to_device(column) for column in columns]
        for sorted_keys in (False, True):
            ours, theirs = (gpuhash.group_by(keys, sorted=sorted_keys) for keys in (given, columns))
            assert on_host(ours.codes).tolist() == theirs.codes.tolist()
            assert all(as_items(one) == as_items(other) for one, other in zip(ours.keys, theirs.keys, strict=True))


def exercise_multimap(value_dtype: str, value_shape: tuple[int, ...], device: object) -> None:
    rng = np.random.default_rng(4)
    table = gpuhash.HashMultiMap("int64", value_dtype, value_shape, device=device)
    model: dict = {}
    for count in (700, 1, 2000, 90):
        keys = rng.integers(0, 300, count)
        values = rng.integers(0, 99, (count, *value_shape)).astype(value_dtype)
        table.insert(keys, values)
        for key, value in zip(keys.tolist(), as_items(values), strict=True):
            model.setdefault(key, []).append(value)
        asked = np.arange(310)
        offsets, found = table.find_all(asked)
        assert as_items(found) == [value for key in asked.tolist() for value in model.get(key, [])]
        assert np.diff(offsets).tolist() == [len(model.get(key, [])) for key in asked.tolist()]
    assert table.erase(np.arange(200)) == sum(len(model.pop(key, [])) for key in range(200))
    keys, values = map(on_host, table.items())
    assert as_items(values) == [value for key in dict.fromkeys(keys.tolist()) for value in model[key]]


def exercise_rehash() -> None:
    """Enough regions that a rehash goes from region to region."""
    keys = np.random.default_rng(2).permutation(1 << 19)[: 1 << 18].astype(np.int64)
    table = gpuhash.HashTable("int64", "int64", capacity=1 << 19, device=DEVICE)
    assert table.insert(keys, keys).all()
    table.rehash(1 << 20)
    assert len(table) == len(keys)
    assert table.contains(keys).all()
    assert table.erase(keys[::2]).all()
    assert table.contains(keys).tolist() == [i % 2 == 1 for i in range(len(keys))]


def exercise_full_table(key_dtype: str, key_shape: tuple[int, ...]) -> None:
    """In which the last keys lie behind many full buckets; searched as if it did not lie in L2."""
    table = gpuhash.HashTable(
        key_dtype, "int64", key_shape=key_shape, capacity=6000, max_load_factor=1.0, growth=False, device=DEVICE
    )
    words = int(np.prod(key_shape))
    keys = np.arange((table.capacity + 1000) * words).astype(key_dtype).reshape(-1, *key_shape)
    count = table.capacity
    table[keys[:count]] = np.arange(count)
    values, found = table.find(keys)
    assert found.tolist() == [i < count for i in range(len(keys))]
    assert values[:count].tolist() == list(range(count))


def exercise_growing_rows() -> None:
    """Rows that grow where they lie, through several pieces of memory, and move when the table shrinks."""
    rng = np.random.default_rng(4)
    values = rng.integers(0, 100, (20_000, 129)).astype(np.float32)  # no row ends where a piece does
    keys = rng.permutation(len(values))
    table = gpuhash.HashTable("int64", "float32", value_shape=(129,), capacity=10_000, device=DEVICE)
    for end in range(4000, len(keys) + 1, 4000):
        table[keys[:end]] = values[:end]
        assert (table[keys[:end]] == values[:end]).all()
    assert table.erase(keys[::2]).all()
    table.shrink_to_fit()
    assert (table[keys[1::2]] == values[1::2]).all()
    assert (table.copy()[keys[1::2]] == values[1::2]).all()


def zeros(count: int, dtype: str, shape: tuple[int, ...] = ()) -> object:
    return to_device(np.zeros((count, *shape), dtype))


def on_host(array: object) -> np.ndarray:
    if isinstance(array, np.ndarray):
        return array
    host = np.empty(array.shape, array.dtype)
    _core.Context(DEVICE).copy(_core.borrow(host), array.array(), 0)
    return host


def exercise_split(key_dtype: str, key_shape: tuple[int, ...], value_dtype: str, parts: int, *, merged: bool) -> None:
    """Keys by owner and back, with hot keys apart or merged."""
    rng = np.random.default_rng(parts)
    count, seed = 6001, 5
    numbers = rng.zipf(1.4, count) % 100
    keys = np.zeros((count, *key_shape), key_dtype)
    keys[...] = numbers.reshape(-1, *[1] * len(key_shape))
    splitter, context = _core.Splitter(_core.Context(DEVICE)), _core.Context(DEVICE)
    given = to_device(keys)
    sample = None
    if keys[0].nbytes <= 16:
        sample = _core.Sample(splitter, _core.borrow(given), seed, 0)
        assert sample.repeats()[1] > 1000
    split = _core.Split(splitter, _core.borrow(given), parts, parts - 1, 16, 1, seed, 0, sample if merged else None)
    told = zeros(parts, "int64", (3,))
    split.tell([7, 9], _core.borrow(told))
    rows = split.positions()
    sorted_keys = zeros(rows, key_dtype, key_shape)
    split.sort_keys(_core.borrow(sorted_keys))
    counts = split.counts()
    assert on_host(told).tolist() == [[part, 7, 9] for part in counts]
    assert (sum(counts) < count) is merged
    values = rng.integers(0, 9, count).astype(value_dtype)
    combined = zeros(rows, value_dtype)
    split.combine(_core.borrow(to_device(values)), "add", _core.borrow(combined))
    assert on_host(combined)[on_host(sorted_keys).reshape(rows, -1)[:, 0] == 1].sum() == values[numbers == 1].sum()
    mask, told_once = to_device(np.ones(rows, bool)), zeros(count, "bool")
    split.gather_mask(_core.borrow(mask), _core.borrow(told_once))
    assert on_host(told_once).sum() == sum(counts)
    owners = zeros(count, "int32")
    _core.find_owners(context, _core.borrow(given), parts, seed, _core.borrow(owners), 0)
    host_owners = on_host(owners)
    assert merged or np.bincount(host_owners, minlength=parts).tolist() == counts
    back = zeros(count, key_dtype, key_shape)
    split.gather(_core.borrow(sorted_keys), _core.borrow(back))
    assert (on_host(back) == keys).all()
    found = zeros(count, "bool")
    split.gather(_core.borrow(sorted_keys), _core.borrow(back), _core.borrow(mask), _core.borrow(found))
    assert on_host(found).all()
    if not merged:
        long_rows = rng.integers(0, 99, (count, 5)).astype(np.float32)
        scattered, returned = zeros(rows, "float32", (5,)), zeros(count, "float32", (5,))
        split.sort(_core.borrow(to_device(long_rows)), _core.borrow(scattered))
        split.gather(_core.borrow(scattered), _core.borrow(returned))
        assert (on_host(returned) == long_rows).all()


OPTIMIZERS = {"sgd": [], "adagrad": [True], "row_wise_adagrad": [False], "adam": [True, True], "lamb": [True, True]}


def exercise_training(optimizer: str, elements: int, dtype: str) -> None:
    """Rows that train, one of them in many chunks of positions, and sums of rows by bags."""
    states = {f"s{i}": Column("float32", (elements,) if whole else ()) for i, whole in enumerate(OPTIMIZERS[optimizer])}
    columns = {"weight": Column(dtype, (elements,), 1), **states}
    table = gpuhash.HashTable("int64", columns, device=DEVICE)
    rng = np.random.default_rng(elements)
    count = 5003
    keys = np.where(rng.random(count) < 0.6, 7, rng.integers(0, 300, count))
    rows = table.find_or_insert(keys)[0]
    rows[keys == 5] = -1
    gradients = rng.integers(-2, 3, (count // 3, elements)).astype(np.float32)
    items, factors = rng.integers(0, len(gradients), count), np.full(count, 0.5, np.float32)
    step = _core.OptimizerStep(optimizer, 1 / 64, 0.9, 0.99, 1e-6, 1 / 8, 1, True, 3)
    given = [_core.borrow(to_device(array)) for array in (rows, gradients, items, factors)]
    table._core.train(*given, list(range(len(columns))), step, 0)
    if dtype != "float32":
        return  # that the kernels run is all that is looked at here
    read = zeros(count, "float32", (elements,))
    table._core.read_rows(given[0], [(0, _core.borrow(read), None)], 0)
    weights = on_host(read)
    assert np.isfinite(weights).all()
    assert not weights[keys == 5].any(), "those of no row"
    if optimizer == "sgd":
        sums = np.zeros((300, elements), np.float32)
        np.add.at(sums, keys, gradients[items] / 2)
        assert (weights == np.where((keys == 5)[:, None], 0, 1 - (sums[keys] + 1 / 8) / 64)).all()
    ends = np.arange(0, count + 1, 41)
    pooled = zeros(len(ends) - 1, "float32", (elements,))
    offsets = _core.borrow(to_device(ends))
    table._core.pool_rows(given[0], offsets, given[3], (0, _core.borrow(pooled), None), 0)
    expected = np.add.reduceat(weights / 2, ends[:-1], 0)
    expected[-1] = weights[ends[-2] : ends[-1]].sum(0) / 2
    assert np.allclose(on_host(pooled), expected, atol=1e-3)


def exercise_short_floats(dtype: str, value_shape: tuple[int, ...]) -> None:
    """Sums in float: of one key in many chunks of positions, and of others in one."""
    table = gpuhash.HashTable("int64", dtype, value_shape=value_shape, device=DEVICE)
    keys = np.arange(5003) % 700
    keys[1000:2500] = 7
    ones = np.ones((len(keys), *value_shape), np.float16) if dtype == "float16" else 1
    for _ in range(2):
        table.insert_or_apply(keys, ones, "add")
    expected = (2 * np.bincount(keys)).astype(np.float16).astype(np.float32)
    got = on_host(table[np.arange(700)]).astype(np.float32).reshape(700, -1)
    assert (np.abs(got - expected[:, None]) <= expected[:, None] / (1024 if dtype == "float16" else 128)).all()


def exercise_shards(width: int) -> None:
    """Three on one device, whose keys are split. Rows of wide keys have no gaps (see `calls`)."""
    keys = np.arange(9000).reshape(-1, 1).repeat(width, 1)
    table = gpuhash.HashTable("int64", "float32", key_shape=width, value_shape=(4,), device=[DEVICE] * 3)
    table[keys] = 2
    rows, is_new = table.find_or_insert(keys + 5, 3)
    assert is_new.sum() == 5
    assert rows.tolist() == table.rows(keys + 5).tolist()
    assert table.find(keys + 9000)[1].sum() == 5
    assert table.items()[0].shape == (9005, width)


def exercise_trials(key_dtype: str, key_shape: tuple[int, ...], size: int) -> None:
    """Batches for which nobody knows beforehand whether they fit: of known keys, and then of some that are new."""
    rng = np.random.default_rng(2)
    keys = np.arange(2 * size * int(np.prod(key_shape))).astype(key_dtype).reshape(-1, *key_shape)
    table = gpuhash.HashTable(key_dtype, "int64", key_shape=key_shape, device=DEVICE)
    for _ in range(4):
        table[keys[:size]] = 1
    for new in (0, 5, size // 2):
        batch = rng.permutation(np.arange(new, size + new))
        before = len(table)
        assert table.insert_or_assign(keys[batch], 2).sum() == len(table) - before == max(0, size + new - before)
        table.insert_or_apply(keys[batch], 3, "add")
        assert (table[keys[batch]] == 5).all()
        table[keys[:size]] = 2
    names = gpuhash.HashSet(key_dtype, key_shape=key_shape, device=DEVICE)
    for new in (0, 0, 0, 0, size // 2):
        names.add(keys[new : size + new])
    assert len(names) == size + size // 2


def calls(whole_words: bool) -> Iterator[Callable[[], None]]:
    """Each of them exercises some kernels."""
    values = [kind for kind in VALUES if kind != ODD_ROWS or not whole_words]
    for all_batches in (False, True):
        for key, value, ordered in itertools.product(KEYS, values, (False, True)):
            yield partial(in_partitions, all_batches, exercise, *key, *value, ordered)
        yield partial(in_partitions, all_batches, exercise_rehash)
        for key in KEYS[1:]:
            yield partial(in_partitions, all_batches, exercise_full_table, *key)
    for key, ordered in itertools.product(KEYS, (False, True)):
        yield partial(exercise_columns, *key, ordered)
    # Rows of these keys have gaps, which nobody writes and copies of whole rows read.
    for key, bits in itertools.product([] if whole_words else WIDE_KEYS, (12, 63)):
        yield partial(exercise_wide_keys, *key, bits)
    yield exercise_key_columns
    yield exercise_growing_rows
    for key, value_dtype, parts, merged in itertools.product(
        [*KEYS, ("uint8", ())], ["int64", "float32"], [2, 7, 64], [False, True]
    ):
        yield partial(exercise_split, *key, value_dtype, parts, merged=merged)
    for key, parts in itertools.product([("int32", (6,)), ("uint8", (17,))], [2, 7, 64]):  # by their hashes
        yield partial(exercise_split, *key, "int64", parts, merged=False)
    for width in (1, 4):
        yield partial(exercise_shards, width)
    for dtype, value_shape in itertools.product(["float16", "bfloat16"], [(), (5,), (70,)]):
        yield partial(exercise_short_floats, dtype, value_shape)
    for key in KEYS[1:]:
        yield partial(exercise_trials, *key, 3000)
    yield partial(exercise_trials, "int64", (), 1 << 19)  # whose blocks take slots for all of their threads at once
    for trained in itertools.product(OPTIMIZERS, [3, 64, 200, 516], ["float32", "bfloat16"]):
        yield partial(exercise_training, *trained)
    for dtype in ("uint8", "int32", "int64", "bool", "float16", "float32", "float64", "complex128"):
        yield partial(exercise_hashes, dtype)
    yield exercise_hashes_of_strings
    for sizes in ((3000, 500, 500), (3000, 700, 200), (0, 5, 3), (5, 0, 3), (70_001, 40_000, 30_000), (900, 500, 2)):
        for dtype, row in (("int32", ()), ("float64", ()), ("int64", (2,)), ("uint16", (3,))):
            yield partial(exercise_joins, *sizes, dtype, row)
    for count, distinct in ((0, 1), (1, 1), (5000, 3), (70_001, 2000), (70_001, 60_000)):
        for dtype in ("bool", "int8", "uint64", "float16", "float32", "float64"):
            yield partial(exercise_groups, count, distinct, dtype)
    for width, least, most in ((1, 0, 9), (3, -5, 1000), (20, -(2**63), 2**63 - 1), (33, 0, 5)):
        yield partial(exercise_keys_of_columns, 9000, width, least, most)
    many = [(70_001, most) for most in (1, 10, 75, 300)]  # 75: a list that no block has a copy of
    for count, most in ((0, 1), (1, 1), (5, 3), *many, (9000, 100_000)):
        for dtypes in (("int32", "uint32"), ("int64", "uint64"), ("int32", "int64"), ("uint16", "int32")):
            if most <= 2**16 or "uint16" not in dtypes:
                yield partial(exercise_integer_columns, count, dtypes, most)
    for value_dtype, value_shape in (("int64", ()), ("float32", (4,)), ("uint8", (3,)), ("float32", (3,))):
        for device in (DEVICE, [DEVICE] * 3):
            yield partial(exercise_multimap, value_dtype, value_shape, device)
    kinds = [*KEYS, ("float32", ())]
    batches = [(dtype, shape, count, 100, True) for dtype, shape in kinds for count in (3333, 4099)]  # one block, more
    batches.append(("int64", (), 70_001, 100, True))  # few kinds, which blocks count by themselves
    batches.append(("int64", (), (1 << 20) + 5, 30_000, False))
    batches.append(("int64", (2,), (1 << 20) + 5, 300, False))  # with a threshold sized by a sample
    for batch in batches:
        yield partial(exercise_factorization, *batch)
    for batch in [*batches, ("int64", (), (1 << 20) + 70_005, 1 << 20, False)]:  # the last one in two passes
        yield partial(in_partitions, True, exercise_factorization, *batch)


def said_of(call: Callable[[], None]) -> str:
    if not isinstance(call, partial):
        return call.__name__
    arguments = [getattr(argument, "__name__", str(argument)) for argument in (*call.args, *call.keywords.values())]
    return f"{call.func.__name__}({', '.join(arguments)})"


def in_partitions(all_batches: bool, exercise: Callable[..., None], *arguments: Any) -> None:
    with partitioned(all_batches):
        exercise(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="on the host: tries the script itself")
    parser.add_argument("--whole-words", action="store_true", help="without rows that end within a word: for initcheck")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N", help="only each N-th, from the K-th on")
    parser.add_argument("--times", action="store_true", help="say of each call how many seconds it took")
    given = parser.parse_args()
    part, parts = given.part
    mine = list(calls(given.whole_words))[part - 1 :: parts]
    for call in mine:
        start = time.perf_counter()
        call()
        if given.times:
            print(f"{time.perf_counter() - start:8.2f} s  {said_of(call)}", file=sys.stderr, flush=True)
    print(f"{len(mine)} passed, 0 failed", file=sys.stderr)


if __name__ == "__main__":
    main()
