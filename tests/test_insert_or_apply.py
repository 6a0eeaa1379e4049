"""insert_or_apply: against NumPy's ufunc.at."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.applied import applied
from support.frameworks import to_numpy
from support.items import Items
from support.memory_resources import counting_memory
from support.samples import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    UFUNCS,
    VALUE_DTYPES,
    as_dict,
    check_new_mask,
    has_operation,
    items_of,
    numpy_dtype,
    same_bytes,
)

from gpuhash import HashTable

OPS = [*UFUNCS, "keep", "replace"]
CASES = [(op, dtype) for op in OPS for dtype in VALUE_DTYPES]
DEFINED = [case for case in CASES if has_operation(*case)]
NOT_DEFINED = [case for case in CASES if not has_operation(*case)]


def operands(op: str, dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Values whose results are exact in any order: integers wrap, float sums stay small, float products are +-1."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    units = np.array([-1, 1]) if op == "multiply" else np.arange(-2, 3)
    numbers = rng.choice(units, shape)
    if dtype in COMPLEX:
        return (numbers * rng.choice([1, 1j], shape)).astype(dtype)
    return numbers.astype(numpy_dtype(dtype))


def reduced(keys: np.ndarray, values: np.ndarray, op: str) -> tuple[np.ndarray, np.ndarray]:
    """Distinct keys, and the values of each reduced one after the other."""
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    wide = values.astype(np.float32) if values.dtype == ml_dtypes.bfloat16 else values
    result = wide[first].copy()
    if op in UFUNCS:
        rest = np.ones(len(keys), bool)
        rest[first] = False
        UFUNCS[op].at(result, inverse[rest], wide[rest])
    elif op == "replace":
        result[inverse] = wide  # the last write wins
    return distinct, result.astype(values.dtype)


@pytest.mark.pairwise
@pytest.mark.parametrize("value_shape", [(), (3,), (2, 3)], ids=["scalar", "row3", "row2x3"])
@pytest.mark.parametrize(("op", "dtype"), DEFINED, ids=lambda p: p)
def test_against_ufunc_at(native, op, dtype, value_shape):
    rng = np.random.default_rng(3)
    known = np.arange(-30, 0)
    keys = rng.integers(-30, 30, 1500)
    before = operands(op, dtype, (30, *value_shape), 1)
    values = operands(op, dtype, (1500, *value_shape), 2)
    table = HashTable(
        "int64", dtype, value_shape=value_shape, device=native.table_device, deterministic=op in ("keep", "replace")
    )
    table[native.array(known)] = native.array(before)
    mask = table.insert_or_apply(native.array(keys), native.array(values), op)
    assert native.owns(mask)
    check_new_mask(mask, keys, as_dict(known, before), in_order=native.table_device == "cpu")
    expected_keys, expected = reduced(np.concatenate([known, keys]), np.concatenate([before, values]), op)
    if dtype in FLOATS + COMPLEX:
        got = to_numpy(table[native.array(expected_keys)])
        np.testing.assert_array_equal(got, expected)  # 0 and -0 are one
    else:
        same_bytes(table[native.array(expected_keys)], expected)
    assert len(table) == len(expected_keys)


@pytest.mark.parametrize(("op", "dtype"), NOT_DEFINED, ids=lambda p: p)
def test_undefined_operations_are_type_errors(device, op, dtype):
    table = HashTable("int64", dtype, device=device)
    table[[1, 2]] = [1, 0]
    before = items_of(table)
    with pytest.raises(TypeError, match=op):
        table.insert_or_apply([1, 2, 3], [1, 1, 1], op)
    assert items_of(table) == before


@pytest.mark.parametrize("op", ["divide", np.array(["add"]), np.array("min"), 5, None], ids=repr)
def test_unknown_operation_names_the_known_ones(device, op):
    table = HashTable("int64", "int64", device=device)
    with pytest.raises(ValueError, match="replace"):
        table.insert_or_apply([1], [1], op)
    assert len(table) == 0


def test_other_frameworks_add(place):
    keys = np.random.default_rng(4).integers(0, 100, 10_000)
    values = np.random.default_rng(5).integers(-9, 9, 10_000).astype(np.float32)
    table = HashTable("int64", "float32", device=place.table_device)
    assert place.owns(table.insert_or_apply(place.array(keys), place.array(values), "add"))
    expected_keys, expected = reduced(keys, values, "add")
    same_bytes(table[place.array(expected_keys)], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum_pass_nan_on(native, op, dtype):
    values = np.array([1, np.nan, 2, np.nan, 3, 5, 4, -np.inf, np.inf], numpy_dtype(dtype))
    keys = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3])
    table = HashTable("int64", dtype, device=native.table_device)
    table.insert_or_apply(native.array(keys), native.array(values), op)
    got = to_numpy(table[native.array(np.arange(4))]).astype(np.float64)
    np.testing.assert_array_equal(got, [np.nan, np.nan, *((4, -np.inf) if op == "min" else (5, np.inf))])


@pytest.mark.parametrize("shape", [(), (3,)], ids=["scalar", "row3"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_minimum_and_maximum_tell_zeros_apart(native, op, dtype, shape):
    """As IEEE 754-2019: -0 is less than +0, in whatever order they come."""
    orders = [[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0], [0.0, 0.0], [0.0, -0.0, 0.0, -0.0]]
    smallest, largest = [-0.0, -0.0, -0.0, 0.0, -0.0], [0.0, 0.0, -0.0, 0.0, 0.0]

    def rows(numbers):
        column = np.array(numbers, numpy_dtype(dtype))
        return native.array(np.broadcast_to(column.reshape(-1, *[1] * len(shape)), (len(column), *shape)).copy())

    table = HashTable("int64", dtype, value_shape=shape, device=native.table_device)
    for known in (False, True):
        for key, order in enumerate(orders):
            each = native.array(np.full(1, key + 10 * known))
            if known:  # one batch after the other
                for number in order:
                    table.insert_or_apply(each, rows([number]), op)
            else:
                table.insert_or_apply(native.array(np.full(len(order), key)), rows(order), op)
    keys = np.concatenate([np.arange(5), np.arange(10, 15)])
    got = np.signbit(to_numpy(table[native.array(keys)]).astype(np.float64)).reshape(10, -1)
    expected = np.signbit(smallest if op == "min" else largest)
    assert (got == np.concatenate([expected, expected])[:, None]).all()


def small_numbers(dtype: str) -> np.ndarray:
    """Zeros, subnormal numbers, and those up to where adding one of them changes nothing, of both signs."""
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    least, tiny = float(info.smallest_subnormal), float(info.smallest_normal)
    powers = [tiny * 2.0**e for e in (*range(5), info.nmant, info.nmant + 1, info.nmant + 2, info.nmant + 3)]
    numbers = [0.0, least, 3 * least, tiny / 8, tiny - least, 1.0, *powers]
    numbers += [power * (1 - float(info.epsneg)) for power in powers[4:]] + [power * 1.25 for power in powers]
    each = np.array(numbers, np.float64).astype(numpy_dtype(dtype))
    return np.concatenate([each, -each])


@pytest.mark.parametrize("shape", [(), (3,)], ids=["scalar", "row3"])
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_subnormal_numbers_are_added(native, dtype, shape):
    """Every sum of two small numbers, and every one of them as the value of a new key, to the bit."""
    part = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    numbers = small_numbers(part)
    first, second = (each.reshape(-1) for each in np.meshgrid(numbers, numbers))
    sums = first + second
    if dtype in COMPLEX:
        first, second, sums = (np.stack([a, a[::-1]], -1).view(dtype)[:, 0] for a in (first, second, sums))

    def rows(values):
        return np.repeat(values[:, None], 3, 1) if shape else values

    keys = native.array(np.arange(len(sums)))
    table = HashTable("int64", dtype, value_shape=shape, device=native.table_device)
    table.insert_or_apply(keys, native.array(rows(first)), "add")
    same_bytes(table[keys], rows(first))
    table.insert_or_apply(keys, native.array(rows(second)), "add")
    same_bytes(table[keys], rows(sums))


@pytest.mark.parametrize("key_dtype", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_subnormal_numbers_of_one_key_add_up(native, dtype, key_dtype):
    """As integers do, in whatever order and however they are combined on the way: multiples of the least one."""
    rng = np.random.default_rng(6)
    keys = np.minimum(rng.zipf(1.2, 100_000), 5000).astype(key_dtype)
    counts = rng.integers(-3, 4, (100_000, 2 if dtype == "complex64" else 1))
    values = (counts * 2.0**-149).astype(np.float32).view(dtype)[:, 0]
    distinct, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros((len(distinct), counts.shape[1]), np.int64)
    np.add.at(sums, inverse, counts)
    table = HashTable(key_dtype, dtype, device=native.table_device)
    table.insert_or_apply(native.array(keys), native.array(values), "add")
    got = to_numpy(table[native.array(distinct)])
    np.testing.assert_array_equal(got, (sums * 2.0**-149).astype(np.float32).view(dtype)[:, 0])
    assert (sums != 0).any()


@pytest.mark.parametrize("shape", [(), (2,)], ids=["scalar", "row2"])
@pytest.mark.parametrize("dtype", COMPLEX)
def test_a_new_key_gets_the_factor_itself(native, dtype, shape):
    """Nothing is multiplied by it: 1 + 0i times an infinite number is NaN in a part."""
    parts = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan], dtype=numpy_dtype(dtype).char.lower())
    values = np.stack(np.meshgrid(parts, parts), -1).view(dtype)[..., 0].reshape(-1)
    values = np.repeat(values[:, None], 2, 1) if shape else values
    keys = native.array(np.arange(len(values)))
    table = HashTable("int64", dtype, value_shape=shape, device=native.table_device)
    table.insert_or_apply(keys, native.array(values), "multiply")
    got = to_numpy(table[keys])
    for a, b in ((got.real, values.real), (got.imag, values.imag)):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a[~np.isnan(b)]), np.signbit(b[~np.isnan(b)]))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_products_are_rounded_part_by_part(native, dtype):
    """The same bits on the host and on a GPU: no fused operation."""
    rng = np.random.default_rng(7)
    part = numpy_dtype(dtype).char.lower()
    a, b = (rng.standard_normal((2, 20_000)).astype(part) for _ in range(2))
    expected = np.stack([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]], -1).view(dtype)[:, 0]
    keys = native.array(np.arange(20_000))
    table = HashTable("int64", dtype, device=native.table_device)
    table[keys] = native.array(np.stack(a, -1).view(dtype)[:, 0])
    table.insert_or_apply(keys, native.array(np.stack(b, -1).view(dtype)[:, 0]), "multiply")
    same_bytes(table[keys], expected)


SHORT = ["float16", "bfloat16"]


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize(
    "options",
    [{}, {"deterministic": True}, {"value_shape": 3}, {"value_shape": 70}, {"shards": 3}, {"key_shape": 2}],
    ids=["scalars", "deterministic", "rows", "long-rows", "sharded", "wide-keys"],
)
def test_sums_of_short_floats_go_on_within_a_batch(on_device, options, dtype):
    """5000 ones came to 256 in bfloat16 and to 2048 in float16."""
    options = dict(options)
    device = [on_device.table_device] * options.pop("shards", 1)
    table = HashTable("int64", dtype, device=device if len(device) > 1 else device[0], **options)
    shape = [options["value_shape"]] if "value_shape" in options else []
    ones = on_device.array(np.ones((5000, *shape), numpy_dtype(dtype)))
    keys = on_device.array(np.zeros((5000, *[2] * ("key_shape" in options)), np.int64))
    was_new = to_numpy(table.insert_or_apply(keys, ones, "add"))
    assert was_new.sum() == 1
    assert was_new[0] or on_device.table_device != "cpu"
    same_bytes(table[keys[:1]], np.full((1, *shape), 5000, numpy_dtype(dtype)))
    table.insert_or_apply(keys, 1, "add")  # one value for all
    same_bytes(table[keys[:1]], np.full((1, *shape), 10_000, numpy_dtype(dtype)))


def short_operands(op: str, dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """What a batch has for a key is exact in float32, in any order, and mostly is not in 16 bits."""
    if op == "add":
        return (rng.integers(64, 128, shape) / 64).astype(numpy_dtype(dtype))
    return rng.choice(np.array([0.5, 1, 1.5, 2]), shape, p=[0.3, 0.2, 0.3, 0.2]).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("op", ["add", "multiply"])
@pytest.mark.parametrize("count", [1, 2, 17, 33, 3000, 1 << 18])
@pytest.mark.parametrize("kind", ["scalar", "row", "column"])
def test_short_floats_are_rounded_once_for_each_key(on_device, kind, count, op, dtype):
    """Against float32 in NumPy; the batch meets what the batch before has left."""
    rng = np.random.default_rng(count)
    short = numpy_dtype(dtype)
    number = {"scalar": (), "row": (5,), "column": (2,)}[kind]
    kinds = max(1, count // 9)
    what = {"a": (dtype, number), "n": "int64"} if kind == "column" else dtype
    options = {"value_shape": number} if kind == "row" else {}
    table = HashTable("int64", what, device=on_device.table_device, **options)
    expected = np.zeros((kinds, *number), short)
    seen = np.zeros(kinds, bool)
    for _ in range(2):
        codes = rng.integers(0, kinds, count)
        if op == "add":
            codes[: count // 7] = 0  # one that comes in many chunks
        values = short_operands(op, dtype, (count, *number), rng)
        keys, given = on_device.array(codes * 7919), on_device.array(values)
        if kind == "column":
            table.insert_or_apply(keys, {"a": given, "n": on_device.array(codes)}, {"a": op, "n": "replace"})
        else:
            table.insert_or_apply(keys, given, op)
        distinct, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        combined = values[first].astype(np.float32)
        rest = np.ones(count, bool)
        rest[first] = False
        UFUNCS[op].at(combined, inverse[rest], values[rest].astype(np.float32))
        old = expected[distinct].astype(np.float32)
        both = UFUNCS[op](old, combined)
        was = seen[distinct].reshape(-1, *[1] * len(number))
        expected[distinct] = np.where(was, both, combined).astype(short)
        seen[distinct] = True
    got = table[on_device.array(np.flatnonzero(seen) * 7919)]
    if kind == "column":
        same_bytes(got["n"], np.flatnonzero(seen))
        got = got["a"]
    same_bytes(got, expected[seen])


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "row"])
def test_short_floats_without_memory(on_device, value_shape):
    """The memory in which they are combined is there before anything changes."""
    codes = np.arange(4000) % 50
    keys = on_device.array(codes)
    ones = on_device.array(np.ones((4000, *value_shape), np.float16))
    outcomes = set()
    for failing in range(30):
        memory = counting_memory(on_device.table_device)
        table = HashTable("int64", "float16", value_shape=value_shape, device=on_device.table_device, memory=memory)
        table.insert_or_apply(keys[:25], ones[:25], "add")
        memory.fail_after(failing)
        try:
            table.insert_or_apply(keys, ones, "add")
        except MemoryError:
            memory.fail_after(None)
            expected_keys, expected = np.arange(25), np.ones((25, *value_shape), np.float16)
            outcomes.add("failed")
        else:
            memory.fail_after(None)
            expected_keys = np.arange(50)
            expected = np.repeat(np.where(expected_keys < 25, 81, 80), int(np.prod(value_shape))).astype(np.float16)
            expected = expected.reshape(50, *value_shape)
            outcomes.add("done")
        assert len(table) == len(expected_keys)
        same_bytes(table[on_device.array(expected_keys)], expected)
    assert "done" in outcomes
    assert on_device.table_device == "cpu" or "failed" in outcomes


def test_scalar_operand_counts(place):
    keys = np.random.default_rng(0).integers(0, 50, 20_000)
    table = HashTable("int64", "int64", device=place.table_device)
    table.insert_or_apply(place.array(keys), 1, "add")
    expected_keys, expected = np.unique(keys, return_counts=True)
    same_bytes(table[place.array(expected_keys)], expected)


def test_counts_are_those_of_torch_unique(native):
    import torch

    keys = np.random.default_rng(0).zipf(1.3, 200_000) % (1 << 40)
    table = HashTable("int64", "int64", device=native.table_device)
    table.insert_or_apply(native.array(keys), 1, "add")
    expected_keys, expected = torch.unique(torch.from_numpy(keys), return_counts=True)
    same_bytes(table[native.array(expected_keys.numpy())], expected.numpy())
    assert len(table) == len(expected_keys)


@pytest.mark.parametrize("value_shape", [(), (4,)], ids=["scalar", "rows"])
def test_histogram_of_few_keys(on_device, value_shape):
    """Very many draws of ten keys."""
    on_gpu = on_device.table_device != "cpu"
    draws = (100_000_000 if on_gpu else 1_000_000) // (8 if value_shape else 1)
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 10, draws, np.int64)
    table = HashTable("int64", "int64", value_shape=value_shape, device=on_device.table_device)
    batch = on_device.array(keys)
    ones = 1 if not value_shape else on_device.array(np.ones(value_shape, np.int64))
    table.insert_or_apply(batch, ones, "add")
    got = to_numpy(table[on_device.array(np.arange(10))])
    counts = np.bincount(keys, minlength=10).reshape(10, *(1,) * len(value_shape))
    same_bytes(got, np.broadcast_to(counts, got.shape).astype(np.int64))
    assert len(table) == 10


def test_new_vector_rows_start_from_the_first_value(native):
    table = HashTable("int64", "float32", value_shape=(8,), device=native.table_device)
    keys = np.repeat(np.arange(1000), 3)
    values = np.repeat(np.arange(3000, dtype=np.float32)[:, None], 8, axis=1)
    table.insert_or_apply(native.array(keys), native.array(values), "add")
    expected = values.reshape(1000, 3, 8).sum(axis=1)
    same_bytes(table[native.array(np.arange(1000))], expected)
    table.insert_or_apply(native.array(np.arange(1000)), native.array(expected), "max")
    same_bytes(table[native.array(np.arange(1000))], expected)


@pytest.mark.pairwise
@pytest.mark.parametrize("per_key", [False, True], ids=["one value", "values"])
@pytest.mark.parametrize("op", ["add", "max", "multiply"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_hardly_any_key_comes_twice(threads, dtype, op, per_key):
    """So that a sample shows none that does: in a batch into a new table, and in one of which half is known."""
    count, twice = (1 << 17) + 77, 30
    rng = np.random.default_rng(threads)
    keys = rng.permutation(2 * count).astype(dtype) * 8191
    table = HashTable(dtype, "int64", device="cpu")
    expected, present = np.zeros(2 * count, np.int64), np.zeros(2 * count, bool)
    for begin in (0, count // 2):
        distinct = np.arange(begin, begin + count)
        draws = rng.permutation(np.concatenate([distinct, rng.choice(distinct, twice, replace=False)]))
        values = rng.integers(1, 9, len(draws)) if per_key else np.int64(3)
        inserted = table.insert_or_apply(keys[draws], values, op)
        expected, new = applied(expected, present, draws, np.broadcast_to(values, len(draws)), op)
        same_bytes(inserted, new)
        present[draws] = True
    assert Items(*table.items()) == Items(keys[present], expected[present])


DRAWS = {
    "one key": lambda rng, n: np.zeros(n, np.int64),
    "few": lambda rng, n: rng.integers(0, 1000, n),
    "a sixteenth": lambda rng, n: rng.integers(0, n // 16, n),
    "a third": lambda rng, n: rng.integers(0, n // 2, n),
    "half of them one": lambda rng, n: np.where(rng.random(n) < 0.5, 0, rng.permutation(n)),
    "zipf, 3 in 5 distinct": lambda rng, n: rng.zipf(1.05, n) % (1 << 40),
    "zipf, 1 in 6 distinct": lambda rng, n: rng.zipf(1.2, n) % (1 << 40),
    "ascending": lambda rng, n: np.sort(rng.integers(0, n // 2, n)),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("per_key", [False, True], ids=["one value", "values"])
@pytest.mark.parametrize("count", [1 << 14, (1 << 16) + 1, (1 << 18) + 5])
@pytest.mark.parametrize("kind", DRAWS)
def test_keys_of_every_frequency(threads, kind, count, per_key):
    """Whether they are counted first, merged or taken as they come: into a new table, and into one that has room."""
    rng = np.random.default_rng(count + threads)
    dtype = rng.choice(["int32", "int64", "uint64"])
    draws = DRAWS[kind](rng, 2 * count)
    pool, ids = np.unique(draws, return_inverse=True)
    keys = np.cumsum(rng.integers(1, 3, len(pool))).astype(dtype)
    table = HashTable(dtype, "int64", device="cpu")
    sums, is_known = np.zeros(len(pool), np.int64), np.zeros(len(pool), bool)
    for half in (ids[:count], ids[count:]):
        values = rng.integers(-9, 9, count) if per_key else np.int64(3)
        inserted = table.insert_or_apply(keys[half], values, "add")
        sums, new = applied(sums, is_known, half, np.broadcast_to(values, count), "add")
        same_bytes(inserted, new)
        is_known[half] = True
        assert len(table) == is_known.sum()
        table.reserve(len(pool))
    assert Items(*table.items()) == Items(keys[is_known], sums[is_known])
