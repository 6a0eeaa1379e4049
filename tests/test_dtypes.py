"""Every key type with every value type: against a dict of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.samples import (
    INTEGERS,
    KEY_DTYPES,
    KEY_TYPES,
    VALUE_DTYPES,
    VALUE_SHAPES,
    as_bytes,
    as_dict,
    items_of,
    random_keys,
    random_values,
    same_bytes,
    shape_name,
    special_keys,
    type_name,
)

from gpuhash import HashSet, HashTable


def walk_through(place, key_type, value_dtype, value_shape, count=1500):
    """Insert, find, assign anew, erase a third, find again."""
    key_dtype, key_shape = key_type
    if not (place.takes(key_dtype) and place.takes(value_dtype)):
        pytest.skip(f"{place.name} lacks the dtype")
    keys = random_keys(key_dtype, key_shape, count)
    values = random_values(value_dtype, (len(keys), *value_shape), 1)
    table = HashTable(key_dtype, value_dtype, key_shape=key_shape, value_shape=value_shape, device=place.table_device)
    half = len(keys) // 2
    assert to_numpy(table.insert_or_assign(place.array(keys[:half]), place.array(values[:half]))).all()
    got, found = table.find(place.array(keys))
    same_bytes(found, np.arange(len(keys)) < half)
    expected = values.copy()
    expected[half:] = 0
    same_bytes(got, expected)
    table[place.array(keys)] = place.array(values)
    same_bytes(table[place.array(keys)], values)
    assert items_of(table) == as_dict(keys, values)
    same_bytes(table.erase(place.array(keys[::3])), np.ones(len(keys[::3]), bool))
    same_bytes(table.contains(place.array(keys)), np.arange(len(keys)) % 3 != 0)
    rest = np.arange(len(keys)) % 3 != 0
    assert items_of(table) == as_dict(keys[rest], values[rest])


@pytest.mark.pairwise
@pytest.mark.parametrize("value_dtype", ["int8", "int64", "float32", "complex128"])
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_key_types(native, key_type, value_dtype):
    walk_through(native, key_type, value_dtype, ())


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_key_types_in_other_frameworks(place, key_type):
    walk_through(place, key_type, "float32", (), 500)


@pytest.mark.pairwise
@pytest.mark.parametrize("key_type", [("int64", ()), ("int32", (3,))], ids=type_name)
@pytest.mark.parametrize("value_shape", VALUE_SHAPES, ids=shape_name)
@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
def test_value_types(native, value_dtype, value_shape, key_type):
    walk_through(native, key_type, value_dtype, value_shape)


@pytest.mark.parametrize("value_dtype", VALUE_DTYPES)
def test_value_types_in_other_frameworks(place, value_dtype):
    walk_through(place, ("int64", ()), value_dtype, (), 500)
    walk_through(place, ("int64", ()), value_dtype, (3,), 500)


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_special_keys_are_like_any_other(native, key_type, value_shape):
    """Also alone in the table, where a search has no neighbours to stop at."""
    key_dtype, key_shape = key_type
    keys = special_keys(key_dtype, key_shape)
    values = random_values("int64", (len(keys), *value_shape))
    together = HashTable(key_dtype, "int64", key_shape=key_shape, value_shape=value_shape, device=native.table_device)
    same_bytes(together.contains(native.array(keys)), np.zeros(len(keys), bool))
    together[native.array(keys)] = native.array(values)
    assert items_of(together) == as_dict(keys, values)
    for i in range(len(keys)):
        alone = HashTable(key_dtype, "int64", key_shape=key_shape, value_shape=value_shape, device=native.table_device)
        alone[native.array(keys[i : i + 1])] = native.array(values[i : i + 1])
        same_bytes(alone.contains(native.array(keys)), np.arange(len(keys)) == i)
        assert items_of(alone) == as_dict(keys[i : i + 1], values[i : i + 1])
        same_bytes(alone.erase(native.array(keys)), np.arange(len(keys)) == i)
        assert len(alone) == 0
        same_bytes(together.erase(native.array(keys[i : i + 1])), np.ones(1, bool))
        assert items_of(together) == as_dict(keys[i + 1 :], values[i + 1 :])


@pytest.mark.pairwise
@pytest.mark.parametrize("op", ["add", "max", "bit_xor"])
@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_special_keys_count(native, key_type, op):
    key_dtype, key_shape = key_type
    keys = special_keys(key_dtype, key_shape)
    draws = np.random.default_rng(0).integers(0, len(keys), 3000)
    table = HashTable(key_dtype, "int64", key_shape=key_shape, device=native.table_device)
    table.insert_or_apply(native.array(keys[draws]), native.array(draws + 1), op)
    count = np.bincount(draws, minlength=len(keys))
    number = np.arange(1, len(keys) + 1)
    expected = {"add": count * number, "max": number, "bit_xor": number * (count % 2)}[op]
    same_bytes(table[native.array(keys)], expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_all_256_keys_of_a_byte(native, dtype):
    keys = np.arange(256, dtype=np.uint8).view(dtype)
    table = HashTable(dtype, "float32", device=native.table_device)
    table[native.array(keys)] = native.array(np.arange(256, dtype=np.float32))
    assert len(table) == 256
    same_bytes(table[native.array(keys[::-1])], np.arange(256, dtype=np.float32)[::-1])


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_all_keys_of_two_bytes(native, dtype):
    keys = np.random.default_rng(0).permutation(np.arange(1 << 16, dtype=np.uint16)).view(dtype)
    table = HashTable(dtype, "uint16", device=native.table_device)
    table[native.array(keys)] = native.array(keys.view(np.uint16))
    assert len(table) == 1 << 16
    same_bytes(table[native.array(keys)], keys.view(np.uint16))
    everything = HashSet(dtype, device=native.table_device)
    everything.add(native.array(keys))
    assert len(everything) == 1 << 16


@pytest.mark.parametrize("dtype", KEY_DTYPES)
def test_python_keys_are_range_checked(device, dtype):
    table = HashTable(dtype, "int64", device=device)
    info = np.iinfo(dtype)
    for key in (info.min, info.max):
        table[int(key)] = 1
        assert int(key) in table
    assert sorted(table) == [info.min, info.max]
    for key in (int(info.min) - 1, int(info.max) + 1):
        with pytest.raises(OverflowError):
            table[key] = 1
        with pytest.raises(OverflowError):
            table[[0, key]] = 1
    assert sorted(table) == [info.min, info.max]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_python_values_are_range_checked(device, dtype):
    table = HashTable("int64", dtype, device=device)
    info = np.iinfo(dtype)
    for value in (int(info.min), int(info.max)):
        table[1] = value
        assert table[1] == value
    with pytest.raises(OverflowError):
        table[1] = int(info.max) + 1
    with pytest.raises(OverflowError):
        table[[1, 2]] = [0, int(info.min) - 1]
    assert table[1] == info.max
    assert len(table) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_integers_of_more_than_64_bits_become_floats(device, dtype):
    """Where the dtype holds them exactly."""
    table = HashTable("int64", dtype, device=device)
    table[1] = 5
    largest = {"float16": 0, "float64": 1000, "complex128": 1000}.get(dtype, 127)  # power of two
    for value in (2**64, -(2**64), 2**64 + 1, 2**65 - 2**13, 2**100, 2**127, 2**128, 2**1000, -(10**400)):
        mantissa = abs(value) // (value & -value)
        digits = {"float16": 11, "bfloat16": 8, "float32": 24, "complex64": 24}.get(dtype, 53)
        if mantissa.bit_length() <= digits and abs(value) <= 1 << largest:
            table[2] = value
            assert table[2] == value
            table[[3, 4]] = [value, 0.5]
            assert to_numpy(table[[3, 4]]).tolist() == [value, 0.5]
            assert HashTable("int64", dtype, default=value, device=device)[1] == value
        else:
            with pytest.raises(OverflowError, match=f"{dtype}, which does not hold"):
                table[1] = value
            with pytest.raises(OverflowError, match=f"{dtype}, which does not hold"):
                table[[5, 1]] = [0.5, value]
    assert table[1] == 5
    assert 5 not in table


def test_float_bits_survive(native):
    """NaN payloads, signed zeros, infinities and denormals are copied as bits."""
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0, 0x7F800000, 0xFF800000, 1, 0x7F800001], np.uint32)
    keys = np.arange(len(bits))
    table = HashTable("int64", "float32", device=native.table_device)
    table[native.array(keys)] = native.array(bits.view(np.float32))
    assert as_bytes(to_numpy(table[native.array(keys)])).tolist() == as_bytes(bits).tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "complex64", "bool"])
def test_keys_of_other_dtypes_say_what_to_do(dtype):
    with pytest.raises(TypeError, match="view"):
        HashTable(dtype, "int64")


@pytest.mark.parametrize("shape", [(0,), (3, 0), ((1 << 20) + 1,), (1 << 10, 1 << 11)], ids=str)
def test_key_shapes_that_do_not_fit(shape):
    with pytest.raises(ValueError, match="key_shape"):
        HashTable("int8", "int64", key_shape=shape)


@pytest.mark.parametrize("dtype", ["object", "datetime64[ns]", "U5", "nonsense", "float128"])
def test_values_of_other_dtypes_are_refused(dtype):
    with pytest.raises(TypeError):
        HashTable("int64", dtype)


def test_dtypes_of_any_framework_are_names():
    import torch

    for dtype in ("int32", np.int32, np.dtype("int32"), torch.int32):
        assert HashTable(dtype, dtype).key_dtype == "int32"
    assert HashTable("int64", torch.bfloat16).value_dtype == "bfloat16"
