"""HashSet: against set."""

from __future__ import annotations

import copy
import operator

import numpy as np
import pandas as pd
import pytest
from support.frameworks import to_numpy
from support.samples import KEY_TYPES, as_bytes, check_new_mask, random_keys, same_bytes, type_name

from gpuhash import HashSet


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_add_contains_erase(native, key_type):
    dtype, shape = key_type
    keys = random_keys(dtype, shape, 2000)
    half = len(keys) // 2
    made = HashSet(dtype, key_shape=shape, device=native.table_device)
    mask = made.add(native.array(keys[:half]))
    assert native.owns(mask)
    same_bytes(mask, np.ones(half, bool))
    same_bytes(made.contains(native.array(keys)), np.arange(len(keys)) < half)
    same_bytes(made.add(native.array(keys)), np.arange(len(keys)) >= half)
    assert len(made) == len(keys)
    assert set(as_bytes(to_numpy(made.keys())).tolist()) == set(as_bytes(keys).tolist())
    same_bytes(made.erase(native.array(keys[::2])), np.ones(len(keys[::2]), bool))
    same_bytes(made.contains(native.array(keys)), np.arange(len(keys)) % 2 == 1)


def test_every_framework(place):
    made = HashSet("int64", device=place.table_device)
    keys = np.random.default_rng(0).integers(0, 500, 2000)
    mask = made.add(place.array(keys))
    assert place.owns(mask)
    check_new_mask(mask, keys, set(), in_order=place.table_device == "cpu")
    assert place.owns(made.contains(place.array(keys)))
    assert sorted(made) == np.unique(keys).tolist()


def test_out(native):
    made = HashSet("int64", device=native.table_device)
    keys, mask = native.array(np.array([1, 2, 1])), native.array(np.zeros(3, bool))
    assert made.add(keys, out=mask) is mask
    assert to_numpy(mask).sum() == 2
    assert made.contains(keys, out=mask) is mask
    assert to_numpy(mask).all()
    assert made.erase(keys, out=mask) is mask
    assert to_numpy(mask).sum() == 2


def test_python_keys(device):
    made = HashSet("int64", device=device)
    assert made.add(3) is True
    assert made.add(3) is False
    assert 3 in made
    assert 4 not in made
    assert made.contains(3) is True
    made.discard(4)
    made.discard([3, 4])
    assert 3 not in made
    with pytest.raises(KeyError, match="3"):
        made.remove(3)
    made.add([5, 6])
    with pytest.raises(KeyError):
        made.remove([5, 7])
    assert sorted(made) == [5, 6], "remove erased some although one was absent"
    made.remove([5, 6])
    assert not made
    made.add(9)
    assert made.pop() == 9
    with pytest.raises(KeyError):
        made.pop()


A, B = {1, 2, 3, 50, -7}, {3, 4, 50, 60}


@pytest.mark.parametrize("operator", ["or", "and", "sub", "xor"])
def test_algebra(device, operator):
    def sets():
        return HashSet.from_keys(sorted(A), device=device), HashSet.from_keys(sorted(B), device=device)

    expected = getattr(A, f"__{operator}__")(B)
    a, b = sets()
    result = getattr(a, f"__{operator}__")(b)
    assert isinstance(result, HashSet)
    assert set(result) == expected
    assert set(a) == A
    assert set(b) == B
    same = getattr(a, f"__i{operator}__")(b)
    assert same is a
    assert set(a) == expected
    assert set(b) == B
    a, _ = sets()
    assert set(getattr(a, f"__{operator}__")(a)) == getattr(A, f"__{operator}__")(A)


@pytest.mark.parametrize("operator", [operator.or_, operator.and_, operator.sub, operator.xor])
@pytest.mark.parametrize("kind", [set, frozenset])
def test_python_sets_on_the_left(device, operator, kind):
    """The result is a HashSet like the one on the right."""
    right = HashSet.from_keys(sorted(B), device=device, max_load_factor=0.6)
    result = operator(kind(A), right)
    assert isinstance(result, HashSet)
    assert (result.device, result.max_load_factor) == (right.device, 0.6)
    assert set(result) == operator(A, B)
    assert set(right) == B
    assert set(operator(right, kind(A))) == operator(B, A)
    with pytest.raises(TypeError, match="unsupported operand"):
        operator([1, 2], right)


def test_a_python_set_that_takes_a_set_in_becomes_one(device):
    mine: object = set(A)
    mine |= HashSet.from_keys(sorted(B), device=device)
    assert isinstance(mine, HashSet)
    assert set(mine) == A | B


@pytest.mark.parametrize("method", ["update", "intersection_update", "difference_update"])
@pytest.mark.parametrize(
    "wrong", [["a"], np.array([1.5]), [2.5], HashSet("int32")], ids=["text", "floats", "float", "other"]
)
def test_wrong_arguments_are_noticed_before_any_change(device, method, wrong):
    made = HashSet.from_keys([5, 6, 7], device=device)
    other = HashSet.from_keys([6, 9], device=device)
    with pytest.raises(TypeError):
        getattr(made, method)([1, 6], other, wrong)
    assert made == {5, 6, 7}
    getattr(made, method)([1, 6], other, {6, 2})
    model = {5, 6, 7}
    getattr(model, method)([1, 6], {6, 9}, {6, 2})
    assert made == model


def test_comparisons(device):
    a = HashSet.from_keys([1, 2, 3], device=device)
    b = HashSet.from_keys([3, 2, 1, 1], device=device, capacity=1000)
    c = HashSet.from_keys([1, 2, 3, 4], device=device)
    assert a == b
    assert a != c
    assert a == {1, 2, 3}
    assert a <= b
    assert a <= c
    assert a < c
    assert not c <= a
    assert c >= a
    assert a.isdisjoint(HashSet.from_keys([9], device=device))
    assert not a.isdisjoint(c)
    with pytest.raises(TypeError):
        hash(a)


def test_integers_that_the_dtype_cannot_hold_are_in_no_set(device):
    model = {0, 5, 255}
    made = HashSet.from_keys(np.array(sorted(model), np.uint8), device=device)
    for other in ({5, 256, -1, 2**64}, {0, 5, 255, 256}, {2**64}, {5}, set()):
        assert (made & other) == (model & other)
        assert (made - other) == (model - other)
        assert (made <= other) == (model <= other)
        assert (made >= other) == (model >= other)
        assert (made == other) == (model == other)
        assert made.isdisjoint(other) == model.isdisjoint(other)
        assert made.issuperset(list(other)) == model.issuperset(other)
    for key in (256, -1, 2**64):
        assert key not in made
        made.discard(key)
        with pytest.raises(KeyError, match=str(key)):
            made.remove(key)
        for call in (made.add, made.update):
            with pytest.raises(OverflowError, match=str(key)):
                call(key if call == made.add else {key})
        with pytest.raises(OverflowError, match=str(key)):
            made ^= {5, key}
    assert made == model
    assert made.issuperset([[0, 5], [255, 0]])
    assert not made.issuperset([[0, 5], [255, 256]])
    assert made.difference([[0, 256], [7, 7]]) == {5, 255}
    assert made.issuperset([])
    pairs = HashSet.from_keys([(1, 2), (3, 4)], device=device)
    assert not pairs >= {(1, 2), (1, 2**64)}
    assert pairs & {(1, 2), (1, 2**64)} == {(1, 2)}


def test_update_copy_clear(device):
    made = HashSet.from_keys([1, 2], device=device)
    made.update([3], np.array([4, 5]), HashSet.from_keys([6]), {7})
    assert sorted(made) == [1, 2, 3, 4, 5, 6, 7]
    for twin in (made.copy(), copy.copy(made), copy.deepcopy(made)):
        twin.add(100)
        assert 100 not in made
    made.clear()
    assert len(made) == 0
    assert list(made) == []


def test_from_keys_infers(place):
    keys = random_keys("int16", (3,), 500)
    made = HashSet.from_keys(place.array(keys))
    assert (made.key_dtype, made.key_shape) == ("int16", (3,))
    assert made.device.startswith(place.device)
    assert len(made) == 500
    numbers = HashSet.from_keys(place.array(keys), key_shape=())
    assert numbers.key_shape == ()
    assert sorted(numbers) == np.unique(keys).tolist()


def test_repr(device):
    text = repr(HashSet.from_keys([1, 2], device=device))
    for part in ("HashSet", "2", "int64", device):
        assert part in text


def test_dedup_is_that_of_numpy_and_torch(native):
    import torch

    keys = np.random.default_rng(0).integers(0, 30_000, 300_000)
    made = HashSet("int64", device=native.table_device)
    first = to_numpy(made.add(native.array(keys)))
    assert sorted(keys[first].tolist()) == torch.unique(torch.from_numpy(keys)).tolist()
    if native.table_device == "cpu":
        assert np.flatnonzero(first).tolist() == np.sort(np.unique(keys, return_index=True)[1]).tolist()


def test_resize(native):
    made = HashSet("int64", device=native.table_device)
    made.reserve(10_000)
    capacity = made.capacity
    keys = random_keys("int64", (), 10_000)
    made.add(native.array(keys))
    assert made.capacity == capacity
    made.erase(native.array(keys[10:]))
    made.shrink_to_fit()
    assert made.capacity < 100
    made.rehash(500)
    assert made.capacity >= 500
    assert to_numpy(made.contains(native.array(keys[:10]))).all()
    assert made.load_factor == 10 / made.capacity
    assert made.nbytes >= 8 * made.capacity


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
def test_the_array_of_a_set_is_its_keys(device, key_type):
    dtype, shape = key_type
    keys = random_keys(dtype, shape, 50)
    made = HashSet.from_keys(keys, key_shape=shape, device="cpu").to(device)
    array = np.asarray(made)
    assert array.shape == keys.shape
    assert array.dtype == keys.dtype
    assert set(as_bytes(array).tolist()) == set(as_bytes(keys).tolist())


def test_numpy_and_pandas_take_a_set_for_its_keys(device):
    made = HashSet.from_keys(np.array([1, 2, 2**62 + 1]), device="cpu").to(device)
    asked = np.array([2, 3, 2**62 + 1, 2**62])
    assert np.isin(asked, made).tolist() == [True, False, True, False]
    assert np.isin(asked, made, invert=True).tolist() == [False, True, False, True]
    assert np.setdiff1d(asked, made).tolist() == [3, 2**62]
    assert np.union1d([7], made).tolist() == [1, 2, 7, 2**62 + 1]
    assert sorted(pd.Series(made).tolist()) == [1, 2, 2**62 + 1]
    assert np.asarray(made, dtype=np.float64).dtype == np.float64
    assert np.asarray(HashSet("int32", device=device)).shape == (0,)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(made, copy=False)
    with pytest.raises(TypeError, match=r"a HashSet is no array.*contains"):
        made.contains(made)
