"""find, contains, table[keys], get: against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import Framework, to_numpy
from support.samples import BATCH_SIZES, random_keys, random_values, same_bytes

from gpuhash import HashTable


def filled(place: Framework, count: int = 5000, **options) -> tuple[HashTable, np.ndarray, np.ndarray]:
    """A table of keys[0::2]; all keys; their values."""
    keys = random_keys("int64", (), 2 * count)
    values = np.arange(2 * count, dtype=np.float32)
    table = HashTable("int64", "float32", device=place.table_device, **options)
    table[place.array(keys[::2])] = place.array(values[::2])
    return table, keys, values


def test_find_tells_present_from_absent(place):
    table, keys, values = filled(place)
    got, found = table.find(place.array(keys))
    assert place.owns(got)
    assert place.owns(found)
    present = np.arange(len(keys)) % 2 == 0
    same_bytes(found, present)
    same_bytes(got, np.where(present, values, np.float32(0)))


@pytest.mark.parametrize("count", BATCH_SIZES)
def test_find_batches_of_any_size(native, count):
    keys = random_keys("int64", (), max(count, 1), seed=5)[:count]
    values = np.arange(count, dtype=np.int32)
    table = HashTable("int64", "int32", device=native.table_device)
    table[native.array(keys[::2])] = native.array(values[::2])
    order = np.random.default_rng(count).permutation(count)
    got, found = table.find(native.array(keys[order]), default=-1)
    present = order % 2 == 0
    same_bytes(found, present)
    same_bytes(got, np.where(present, values[order], np.int32(-1)))


def test_find_with_many_duplicates(native):
    table, keys, values = filled(native, 100)
    draws = np.random.default_rng(1).integers(0, len(keys), 20_000)
    got, found = table.find(native.array(keys[draws]), default=-5.0)
    same_bytes(found, draws % 2 == 0)
    same_bytes(got, np.where(draws % 2 == 0, values[draws], np.float32(-5)))


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 5), (4, 0)], ids=str)
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("key_shape", [(), (2,)], ids=["scalar-keys", "vector-keys"])
def test_results_have_the_batch_shape(place, shape, key_shape, value_shape):
    count = int(np.prod(shape))
    keys = random_keys("int32", key_shape, max(count, 1))[:count].reshape((*shape, *key_shape))
    values = np.arange(count * int(np.prod(value_shape)), dtype=np.float64).reshape((*shape, *value_shape))
    table = HashTable("int32", "float64", key_shape=key_shape, value_shape=value_shape, device=place.table_device)
    table[place.array(keys)] = place.array(values)
    got, found = table.find(place.array(keys))
    assert np.array_equal(to_numpy(got), values)
    assert to_numpy(got).shape == values.shape
    assert to_numpy(found).shape == shape
    assert to_numpy(found).all()
    assert to_numpy(table.contains(place.array(keys))).shape == shape
    assert to_numpy(table[place.array(keys)]).shape == values.shape


def test_find_in_an_empty_table(place):
    table = HashTable("int64", "float32", device=place.table_device)
    keys = np.array([0, -1, 5, np.iinfo(np.int64).min])
    got, found = table.find(place.array(keys), default=2.5)
    same_bytes(got, np.full(4, 2.5, np.float32))
    same_bytes(found, np.zeros(4, bool))
    same_bytes(table.contains(place.array(keys)), np.zeros(4, bool))


@pytest.mark.parametrize("value_shape", [(), (3,), (64,)], ids=["scalar", "row3", "row64"])
def test_default_of_find_and_table(native, value_shape):
    keys = np.array([1, 2, 3])
    values = np.ones((3, *value_shape), np.float32)
    table = HashTable("int64", "float32", value_shape=value_shape, default=7.0, device=native.table_device)
    table[native.array(keys)] = native.array(values)
    expected = values.copy()
    expected[1:] = 7
    same_bytes(table[native.array(np.array([1, 20, 30]))], expected)
    got, found = table.find(native.array(np.array([1, 20, 30])))
    same_bytes(got, expected)
    same_bytes(found, np.array([True, False, False]))
    expected[1:] = 9
    same_bytes(table.find(native.array(np.array([1, 20, 30])), default=9.0)[0], expected)
    same_bytes(table.get(native.array(np.array([1, 20, 30])), 9.0), expected)
    assert table.default is not None
    assert len(table) == 3


@pytest.mark.pairwise
@pytest.mark.parametrize("value_dtype", ["int8", "bfloat16", "float32", "int64", "complex128"])
@pytest.mark.parametrize("value_shape", [(), (3,), (64,)], ids=["scalar", "3", "64"])
def test_default_for_each_key(place, value_dtype, value_shape):
    if not place.takes(value_dtype):
        pytest.skip(f"{place.name} has no {value_dtype}")
    keys = random_keys("int64", (), 600)
    values = random_values(value_dtype, (600, *value_shape))
    defaults = random_values(value_dtype, (600, *value_shape), seed=9)
    table = HashTable("int64", value_dtype, value_shape=value_shape, device=place.table_device)
    table[place.array(keys[::2])] = place.array(values[::2])
    expected = np.where((np.arange(600) % 2 == 0).reshape(-1, *(1,) * len(value_shape)), values, defaults)
    shaped = (20, 30, *value_shape)
    asked, given = place.array(keys.reshape(20, 30)), place.array(defaults.reshape(shaped))
    same_bytes(table.get(asked, given), expected.reshape(shaped))
    got, found = table.find(asked, default=given)
    same_bytes(got, expected.reshape(shaped))
    same_bytes(found, (np.arange(600) % 2 == 0).reshape(20, 30))
    with pytest.raises(ValueError, match="default have shape"):
        table.get(asked, place.array(defaults[:7]))
    same_bytes(table.pop(asked, given), expected.reshape(shaped))
    assert len(table) == 0


def test_default_for_each_key_as_a_list(device):
    table = HashTable("int64", "float32", device=device)
    table[[1, 2]] = [1.5, 2.5]
    same_bytes(table.get([1, 3, 2], [7.0, 8.0, 9.0]), np.array([1.5, 8.0, 2.5], np.float32))
    same_bytes(table.get(np.empty(0, np.int64), np.empty(0, np.float32)), np.empty(0, np.float32))


def test_default_may_be_a_whole_row(native):
    row = np.array([1, 2, 3], np.float32)
    table = HashTable("int64", "float32", value_shape=(3,), default=row, device=native.table_device)
    same_bytes(table[native.array(np.array([4, 5]))], np.stack([row, row]))


def test_getitem_names_absent_keys(place):
    table, keys, _ = filled(place, 100)
    absent = np.setdiff1d(np.arange(1000, 1400), keys)[:9]
    with pytest.raises(KeyError) as error:
        table[place.array(np.concatenate([keys[::2], absent]))]
    text = str(error.value)
    assert "9" in text
    named = sum(str(key) in text for key in absent)
    assert 1 <= named <= 5


def test_keyerror_of_a_python_key():
    table = HashTable("int64", "int64")
    with pytest.raises(KeyError, match="41"):
        table[41]
    vectors = HashTable("int32", "int64", key_shape=(3,))
    with pytest.raises(KeyError, match="1, 2, 3"):
        vectors[(1, 2, 3)]


def test_python_scalars_come_back_as_python_scalars(device):
    table = HashTable("int64", "float32", device=device)
    table[5] = 1.5
    assert table[5] == 1.5
    assert type(table[5]) is float
    assert table.find(5) == (1.5, True)
    assert type(table.find(5)[1]) is bool
    assert table.find(6)[1] is False
    assert table.contains(5) is True
    assert table.contains(6) is False
    assert table.get(5) == 1.5
    assert table.get(6) is None
    assert table.get(6, "nothing") == "nothing"
    assert table.get(6, 3.0) == 3.0
    counts = HashTable("uint8", "int64", device=device)
    counts[255] = -(2**63)
    assert counts[255] == -(2**63)
    assert type(counts[255]) is int
    flags = HashTable("int16", "bool", device=device)
    flags[-3] = True
    assert flags[-3] is True
    points = HashTable("int32", "complex64", key_shape=(3,), device=device)
    points[(1, -2, 3)] = 2 - 1j
    assert points[(1, -2, 3)] == 2 - 1j
    assert type(points[(1, -2, 3)]) is complex
    assert points.contains((1, -2, 3)) is True
    assert points.get((0, 0, 0)) is None


def test_numpy_scalars_are_keys(device):
    table = HashTable("int64", "float32", device=device)
    table[np.int64(5)] = np.float32(1.5)
    assert table[np.int64(5)] == 1.5
    assert table[np.array(5)] == 1.5


def test_lists_come_back_as_numpy(device):
    table = HashTable("int64", "float32", device=device)
    table[[1, 2, 3]] = [10, 20, 30]
    got = table[[3, 1]]
    assert isinstance(got, np.ndarray)
    same_bytes(got, np.array([30, 10], np.float32))
    same_bytes(table[[]], np.empty(0, np.float32))
    same_bytes(table.contains([1, 9]), np.array([True, False]))
    same_bytes(table.get([1, 9], 0.5), np.array([10, 0.5], np.float32))
    same_bytes(table[range(1, 4)], np.array([10, 20, 30], np.float32))
    same_bytes(table[[[1, 2], [3, 1]]], np.array([[10, 20], [30, 10]], np.float32))


def test_get_of_a_batch_needs_some_default(native):
    table, keys, values = filled(native, 50)
    with pytest.raises(ValueError, match="default"):
        table.get(native.array(keys))
    present = np.arange(len(keys)) % 2 == 0
    same_bytes(table.get(native.array(keys), 4.0), np.where(present, values, np.float32(4)))


def test_find_into_out(native):
    table, keys, values = filled(native)
    present = np.arange(len(keys)) % 2 == 0
    got = native.array(np.full(len(keys), 99, np.float32))
    found = native.array(np.zeros(len(keys), bool))
    answer = table.find(native.array(keys), out=(got, found))
    assert answer[0] is got
    assert answer[1] is found
    same_bytes(got, np.where(present, values, np.float32(0)))
    same_bytes(found, present)
    mask = native.array(np.zeros(len(keys), bool))
    assert table.contains(native.array(keys), out=mask) is mask
    same_bytes(mask, present)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda n: (np.empty(n - 1, np.float32), np.empty(n, bool)), ValueError),
        (lambda n: (np.empty((n, 1), np.float32), np.empty(n, bool)), ValueError),
        (lambda n: (np.empty(n, np.float64), np.empty(n, bool)), TypeError),
        (lambda n: (np.empty(n, np.float32), np.empty(n, np.uint8)), TypeError),
    ],
    ids=["short", "shape", "value-dtype", "mask-dtype"],
)
def test_wrong_out_is_refused(native, make, error):
    table, keys, _ = filled(native, 20)
    with pytest.raises(error):
        table.find(native.array(keys), out=tuple(map(native.array, make(len(keys)))))


def test_read_only_out_is_refused():
    table = HashTable("int64", "float32")
    table[[1, 2]] = [1, 2]
    mask = np.zeros(2, bool)
    mask.flags.writeable = False
    with pytest.raises(ValueError, match=r"(?i)read-?only|writ"):
        table.contains(np.array([1, 2]), out=mask)
    assert not mask.any()


def test_strided_out_is_filled_or_refused():
    table = HashTable("int64", "float32")
    table[[1, 2]] = [1, 2]
    wide = np.zeros(4, bool)
    try:
        table.contains(np.array([1, 2]), out=wide[::2])
    except ValueError:
        assert not wide.any()
    else:
        assert wide.tolist() == [True, False, True, False]


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_out_of_immutable_frameworks_is_refused(framework):
    from support import frameworks

    if frameworks.module(framework) is None:
        pytest.skip(f"{framework} is not installed")
    place = Framework(framework, "cpu", "cpu")
    table = HashTable("int64", "float32")
    table[[1, 2]] = [1, 2]
    mask = place.array(np.zeros(2, bool))
    with pytest.raises((TypeError, ValueError)):
        table.contains(place.array(np.array([1, 2])), out=mask)
    assert not to_numpy(mask).any()


def test_out_of_get_setdefault_and_pop(native):
    table = HashTable("int64", "float32", value_shape=(2,), device=native.table_device)
    keys = native.array(np.array([1, 2, 3]))
    table[keys] = native.array(np.arange(6, dtype=np.float32).reshape(3, 2))
    asked = native.array(np.array([3, 9, 1]))
    for answer in (
        lambda out: table.get(asked, default=7, out=out),
        lambda out: table.setdefault(asked, 7, out=out),
        lambda out: table.pop(asked, 0, out=out),
    ):
        out = native.array(np.full((3, 2), -1, dtype=np.float32))
        assert answer(out) is out
        same_bytes(out, np.array([[4, 5], [7, 7], [0, 1]], dtype=np.float32))
    assert list(table) == [2]


@pytest.mark.parametrize("method", ["get", "pop"])
@pytest.mark.parametrize("kind", ["scalar", "rows", "columns"])
def test_out_of_one_key(native, method, kind):
    """With out= a single key is a batch of shape (): absent ones are answered there as well."""
    shape = (2,) if kind == "rows" else ()
    values = {"a": "float32", "b": "int32"} if kind == "columns" else "float32"
    table = HashTable("int64", values, value_shape=shape, device=native.table_device)
    named = (lambda given: {"a": given}) if kind == "columns" else (lambda given: given)
    table[3] = named(2.5)
    for key, default, expected in ((99, 7, 7), (3, 7, 2.5), (98, -1.5, -1.5)):
        array = native.array(np.zeros(shape, np.float32))
        out = named(array)
        answer = getattr(table, method)(key, named(default), out=out)
        assert (answer["a"] if kind == "columns" else answer) is array
        same_bytes(array, np.full(shape, expected, np.float32))
    assert (3 in table) == (method == "get")
    array = native.array(np.full(shape, 9, np.float32))
    with pytest.raises(ValueError, match="where out= is given"):
        getattr(table, method)(99, None, out=named(array))
    same_bytes(array, np.full(shape, 9, np.float32))


@pytest.mark.parametrize("method", ["get", "pop"])
def test_out_of_an_absent_key_counts_as_changed(method):
    torch = pytest.importorskip("torch")
    table = HashTable("int64", "float32")
    factor, out = torch.ones((), requires_grad=True), torch.ones(())
    product = factor * out
    getattr(table, method)(99, 3.0, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
