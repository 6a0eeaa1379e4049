"""isin: against NumPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import GPU, Framework, module, need_place, to_numpy
from support.hashing import keys_of_one_hash
from support.samples import FLOATS, KEY_DTYPES, KEY_VECTORS, as_bytes, numpy_dtype, random_keys, same_bytes, type_name

import gpuhash


def expected(elements: np.ndarray, tests: np.ndarray) -> np.ndarray:
    known = set(as_bytes(tests).tolist())
    return np.array([item in known for item in as_bytes(elements).tolist()], bool)


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize(
    ("count", "tests"), [(0, 0), (0, 5), (5, 0), (1, 1), (33, 1000), (4097, 33), (100_001, 50_000), (777, 100_000)]
)
@pytest.mark.parametrize("dtype", KEY_DTYPES)
def test_numbers(native, dtype, count, tests, invert):
    rng = np.random.default_rng([count, tests])
    keys = random_keys(dtype, (), max(1, count))
    elements = keys[rng.integers(0, len(keys), count)]
    members = keys[rng.integers(0, (len(keys) + 1) // 2, tests)]
    mask = gpuhash.isin(native.array(elements), native.array(members), invert=invert)
    assert native.owns(mask)
    same_bytes(mask, np.isin(elements, members, invert=invert))


@pytest.mark.parametrize("key_type", KEY_VECTORS, ids=type_name)
def test_rows(native, key_type):
    dtype, shape = key_type
    keys = random_keys(dtype, shape, 3000)
    half = len(keys) // 2
    mask = gpuhash.isin(native.array(keys), native.array(keys[:half]), axis=0)
    same_bytes(mask, np.arange(len(keys)) < half)
    mask = gpuhash.isin(native.array(keys[half:]), native.array(keys[:half]), axis=0, invert=True)
    assert to_numpy(mask).all()


def test_every_framework(place):
    keys = random_keys("int64", (), 5000)
    elements, members = keys[:4000], keys[2000:]
    mask = gpuhash.isin(place.array(elements), place.array(members))
    assert place.owns(mask)
    same_bytes(mask, expected(elements, members))


def test_against_torch(native):
    if native.name != "torch":
        pytest.skip("of PyTorch")
    torch = module("torch")
    rng = np.random.default_rng(0)
    elements = native.array(rng.integers(0, 5000, (300, 70)))
    members = native.array(rng.integers(0, 5000, 3000))
    for invert in (False, True):
        assert torch.equal(gpuhash.isin(elements, members, invert=invert), torch.isin(elements, members, invert=invert))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_compare_as_numbers(native, dtype):
    elements = np.array([0.0, -0.0, 1.5, np.nan, np.inf, -1.5], numpy_dtype(dtype))
    members = np.array([-0.0, -np.nan, np.inf, 2.5], numpy_dtype(dtype))
    mask = gpuhash.isin(native.array(elements), native.array(members))
    assert to_numpy(mask).tolist() == [True, True, False, True, True, False]


@pytest.mark.parametrize("kind", ["distinct", "one-in-16", "all-equal", "few-then-distinct"])
def test_large_batches(on_device, kind):
    """Large enough that the table is sized by a sample of the test elements."""
    n = (1 << 21) + 77
    rng = np.random.default_rng(8)
    members = {
        "distinct": lambda: rng.permutation(n) * 3,
        "one-in-16": lambda: rng.integers(0, n // 16, n) * 3,
        "all-equal": lambda: np.full(n, 12),
        "few-then-distinct": lambda: np.concatenate([np.zeros(n - n // 8, np.int64), np.arange(n // 8)]),
    }[kind]()
    for elements in (np.arange(100_000), np.arange(1 << 20) // 2):  # few and many in proportion to the members
        same_bytes(gpuhash.isin(on_device.array(elements), on_device.array(members)), np.isin(elements, members))
    rows = np.stack([members, members], axis=1)
    mask = gpuhash.isin(on_device.array(np.stack([elements] * 2, axis=1)), on_device.array(rows), axis=0)
    same_bytes(mask, np.isin(elements, members))


def test_keys_of_one_hash(native):
    keys = keys_of_one_hash(2000)
    mask = gpuhash.isin(native.array(keys), native.array(keys[::2]), axis=0)
    same_bytes(mask, np.arange(2000) % 2 == 0)


def test_python_numbers(native):
    keys = native.array(np.array([[3, 1], [4, 1]], np.int32))
    assert to_numpy(gpuhash.isin(keys, [1, 4])).tolist() == [[False, True], [True, True]]
    assert to_numpy(gpuhash.isin(keys, [], invert=True)).all()
    assert to_numpy(gpuhash.isin(keys, [(4, 1)], axis=0)).tolist() == [False, True]
    assert not to_numpy(gpuhash.isin(keys, [], axis=0)).any()
    assert gpuhash.isin([1, 2, 3], [2]).tolist() == [False, True, False]
    with pytest.raises(OverflowError, match="int32"):
        gpuhash.isin(keys, [1 << 40])


def test_host_test_elements_go_to_the_gpu(torch_cuda):
    keys = torch_cuda.arange(10, device=GPU)
    assert to_numpy(gpuhash.isin(keys, np.array([3, 4]))).sum() == 2
    assert to_numpy(gpuhash.isin(keys, torch_cuda.tensor([3, 4, 5]))).sum() == 3
    with pytest.raises(ValueError, match="move"):
        gpuhash.isin(np.arange(10), keys)


def test_two_frameworks():
    place = need_place(Framework("torch", "cpu", "cpu"))
    keys = np.arange(10)
    mask = gpuhash.isin(place.array(keys), keys[3:5])
    assert place.owns(mask)
    same_bytes(mask, np.isin(keys, [3, 4]))


def test_two_frameworks_on_the_gpu(torch_cuda):
    place = need_place(Framework("cupy", GPU, GPU))
    keys = np.arange(1000)
    mask = gpuhash.isin(torch_cuda.arange(1000, device=GPU), place.array(keys[::3]))
    same_bytes(mask, np.isin(keys, keys[::3]))


BAD = {
    "dtypes": (lambda: (np.arange(3), np.arange(3, dtype=np.int32)), TypeError, "int64 and the test_elements int32"),
    "floats-among-integers": (lambda: (np.arange(3), [1.5]), TypeError, "without loss|not an integer"),
    "text": (lambda: (np.arange(3), "abc"), TypeError, None),
    "none": (lambda: (np.arange(3), None), TypeError, None),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind):
    make, error, hint = BAD[kind]
    with pytest.raises(error, match=hint):
        gpuhash.isin(*make())


def test_rows_of_different_shapes():
    with pytest.raises(ValueError, match=r"\('m', 2\)"):
        gpuhash.isin(np.zeros((3, 2), int), np.zeros((3, 1), int), axis=0)
