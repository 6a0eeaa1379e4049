"""isin: against NumPy and PyTorch."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.factorized import check_every_way_to_members, make_batch, sampled_positions, spread
from support.frameworks import GPU, Framework, module, need_place, to_numpy
from support.hashing import keys_of_one_hash
from support.memory_resources import counting_memory, fail_each_allocation
from support.samples import (
    FLOATS,
    INTEGERS,
    KEY_DTYPES,
    KEY_VECTORS,
    as_bytes,
    numpy_dtype,
    random_keys,
    same_bytes,
    special_keys,
    type_name,
)

import gpuhash
from gpuhash import _core
from gpuhash.arrays.memory import make_context


def expected(elements: np.ndarray, tests: np.ndarray) -> np.ndarray:
    known = set(as_bytes(tests).tolist())
    return np.array([item in known for item in as_bytes(elements).tolist()], bool)


@pytest.mark.pairwise
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


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("key_type", [(dtype, ()) for dtype in INTEGERS] + KEY_VECTORS, ids=type_name)
def test_special_keys(native, key_type, invert):
    """One is a test element, among many elements or few: the others, some of which look like marks, are not."""
    dtype, shape = key_type
    specials = special_keys(dtype, shape)
    axis = 0 if shape else None
    for times in (1, 9):
        for number in range(len(specials)):
            is_test = np.arange(len(specials)) == number
            elements, tests = np.repeat(specials, times, axis=0), np.repeat(specials[is_test], 40 // times, axis=0)
            mask = gpuhash.isin(native.array(elements), native.array(tests), invert=invert, axis=axis)
            same_bytes(mask, np.repeat(is_test, times) != invert)
            tests = np.repeat(specials[~is_test], 10 // times, axis=0)
            mask = gpuhash.isin(native.array(elements), native.array(tests), invert=invert, axis=axis)
            same_bytes(mask, np.repeat(is_test, times) == invert)


def test_every_framework(place):
    keys = random_keys("int64", (), 5000)
    elements, members = keys[:4000], keys[2000:]
    mask = gpuhash.isin(place.array(elements), place.array(members))
    assert place.owns(mask)
    same_bytes(mask, expected(elements, members))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_numbers_close_together(native, dtype):
    """The host has a bit for each number of a span that holds all of one side: as many as that side's set takes."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(21)
    for numbers in (1, 2, 63, 64, 65, 32_767, 32_768, 32_769, 127_999, 128_000, 128_001):
        last = min(numbers - 1, int(limits.max) - int(limits.min))
        for least in {limits.min, limits.max - last, min(max(limits.min, -(last // 3)), limits.max - last)}:
            within = [int(least) + n for n in (0, last, *rng.integers(0, last + 1, 998).tolist())]
            beside = [int(least) + n for n in (-1, last + 1) if limits.min <= int(least) + n <= limits.max]
            anywhere = rng.integers(limits.min, limits.max, 50, dtype, endpoint=True)
            close = np.array(within, dtype)
            apart = np.concatenate([close[::2], np.array([*beside, limits.min, limits.max], dtype), anywhere])
            for elements, tests in ((apart, close), (close, apart), (apart[:30], close), (close[:30], apart)):
                mask = gpuhash.isin(native.array(elements), native.array(tests))
                same_bytes(mask, np.isin(elements, tests))


@pytest.mark.parametrize("count", [300, 90_000])
def test_two_sides_have_few_numbers_in_common(native, count):
    """Or none: what lies between both sides' least and largest numbers is all that counts."""
    low, high = -np.arange(1, count) * 2**40, np.arange(count) + 2**40
    common = np.arange(count)
    rng = np.random.default_rng(22)
    for first, second in ((low, high), (low, common), (np.concatenate([low, common]), np.concatenate([high, common]))):
        for elements, tests in ((first, second), (second, first), (first[::50], second)):
            elements, tests = rng.permutation(elements), rng.permutation(tests)[: count // 2]
            for invert in (False, True):
                mask = gpuhash.isin(native.array(elements), native.array(tests), invert=invert)
                same_bytes(mask, np.isin(elements, tests, invert=invert))


@pytest.mark.parametrize("close", [False, True], ids=["spread", "close-together"])
@pytest.mark.parametrize("count", [2000, 90_000])
def test_keys_that_change_meanwhile(count, close):
    """On the host: those that somebody else writes to may be found or not, and all others are right."""
    rng = np.random.default_rng(23)
    keys, members = rng.permutation(count), rng.permutation(20_000)
    changed = keys.copy()
    others = [np.where(np.arange(count) % 3 == 0, value, keys) for value in (-(2**62), 2**62, 5)]
    if not close:
        members = spread(members)
        keys, changed, *others = map(spread, (keys, changed, *others))
    wanted = np.isin(keys, members)
    unchanged = np.arange(count) % 3 != 0
    end = threading.Event()

    def change() -> None:
        while not end.is_set():
            for other in others:
                np.add(other, 0, out=changed)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            same_bytes(gpuhash.isin(changed, members)[unchanged], wanted[unchanged])
            gpuhash.isin(members, changed)
    finally:
        end.set()
        thread.join()


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


@pytest.mark.parametrize("rows", [False, True], ids=["numbers", "rows"])
@pytest.mark.parametrize("stored", ["tests", "elements"])
@pytest.mark.parametrize("kind", ["few", "one-in-16", "distinct", "deceiving"])
def test_more_than_l2_holds(on_device, kind, stored, rows):
    """A set of all keys does not fit L2, so their number is estimated; from the deceiving ones as 1."""
    n = (13 << (15 if on_device.table_device == "cpu" else 18) + (not rows)) + 5
    rng = np.random.default_rng(11)
    many = {
        "few": lambda: rng.integers(0, 1000, n) * 3,
        "one-in-16": lambda: rng.integers(0, n // 16, n) * 3,
        "distinct": lambda: rng.permutation(n) * 3,
        "deceiving": lambda: np.arange(n) * 3,
    }[kind]()
    if kind == "deceiving":
        many[sampled_positions(n)] = 6
    # The set is of the tests where they are at most twice as many as the elements.
    others = np.arange(n // 2 + 1 if stored == "tests" else 3 * n) * 2
    elements, tests = (others, many) if stored == "tests" else (many, others)
    mask = np.zeros(3 * n * 3, bool)
    mask[tests] = True
    arrays = [on_device.array(np.stack([keys, ~keys], axis=1) if rows else keys) for keys in (elements, tests)]
    same_bytes(gpuhash.isin(*arrays, axis=0), mask[elements])


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64", "float32", "float64"])
def test_every_choice_of_the_host(dtype):
    check_every_way_to_members(lambda kind, count: make_batch(kind, dtype, count))
    if dtype == "int32":
        check_every_way_to_members(lambda kind, count: spread(make_batch(kind, dtype, count)))


@pytest.mark.parametrize("close", [False, True], ids=["spread", "close-together"])
@pytest.mark.parametrize(("elements", "tests"), [(90_000, 5000), (50_000, 90_000), (5000, 90_000)])
def test_memory(on_device, elements, tests, close):
    """No more than the docstring says, and each allocation is made to fail once; everything is given back."""
    memory = counting_memory(on_device.table_device)
    context = make_context(on_device.table_device, memory)
    rng = np.random.default_rng(9)
    keys, members = rng.permutation(elements), rng.permutation(tests) * 2
    if not close:
        keys, members = spread(keys), spread(members)
    arrays = on_device.array(keys), on_device.array(members)
    mask = on_device.array(np.zeros(elements, bool))

    def run() -> None:
        _core.isin(context, *map(_core.borrow, arrays), 1, False, _core.borrow(mask), 0)
        context.synchronize(0)

    run()
    looks_per_insertion = 4 if on_device.table_device == "cpu" else 2
    assert memory.peak <= 100 + 36 * (tests if tests / looks_per_insertion <= elements else elements)
    fail_each_allocation(memory, run)
    same_bytes(mask, np.isin(keys, members))
    assert memory.nbytes == 0
    assert memory.mistakes == []


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
    assert not to_numpy(gpuhash.isin(keys, [1 << 40, -(1 << 80)])).any()


INTEGERS = {dtype: np.iinfo(dtype) for dtype in KEY_DTYPES}


def of_every_range(dtype: str) -> np.ndarray:
    """The limits of all integer dtypes and numbers beside them, as far as the dtype has them."""
    limits = {bound + step for info in INTEGERS.values() for bound in (info.min, info.max) for step in (-1, 0, 1)}
    numbers = sorted(number for number in {*limits, 2**53, 2**53 + 1} if number in range(*bounds_of(dtype)))
    return np.array(numbers, dtype)


def bounds_of(dtype: str) -> tuple[int, int]:
    return int(INTEGERS[dtype].min), int(INTEGERS[dtype].max) + 1


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", KEY_DTYPES)
@pytest.mark.parametrize("test_dtype", KEY_DTYPES)
def test_integers_of_two_dtypes_compare_by_value(native, dtype, test_dtype):
    elements, tests = of_every_range(dtype), of_every_range(test_dtype)[::2].copy()
    members = set(tests.tolist())
    wanted = [number in members for number in elements.tolist()]
    for invert in (False, True):
        mask = gpuhash.isin(native.array(elements), native.array(tests), invert=invert)
        assert native.owns(mask)
        assert to_numpy(mask).tolist() == [found != invert for found in wanted]
    rows, test_rows = np.stack([elements, elements[::-1]], axis=1), np.stack([tests, tests[::-1]], axis=1)
    if rows[0].nbytes <= 16:
        members = set(map(tuple, test_rows.tolist()))
        mask = gpuhash.isin(native.array(rows), native.array(test_rows), axis=0)
        assert to_numpy(mask).tolist() == [tuple(row) in members for row in rows.tolist()]


def test_host_tests_of_another_dtype_go_to_the_gpu(torch_cuda):
    elements = torch_cuda.arange(10, dtype=torch_cuda.int32, device="cuda")
    mask = gpuhash.isin(elements, np.array([3, 2**40]))
    assert mask.device.type == "cuda"
    assert to_numpy(mask).tolist() == [number == 3 for number in range(10)]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_lists_on_either_side(native, dtype):
    numbers = [-(2**64), -(2**63) - 1, -(2**63), -129, -128, -1, 0, 1, 127, 128, 255, 256, 2**63, 2**63 + 1, 2**64]
    array = of_every_range(dtype)
    held = set(array.tolist())
    for invert in (False, True):
        mask = gpuhash.isin(numbers, native.array(array), invert=invert)
        assert mask.tolist() == [(number in held) != invert for number in numbers]
        mask = gpuhash.isin(native.array(array), numbers, invert=invert)
        assert to_numpy(mask).tolist() == [(number in numbers) != invert for number in array.tolist()]
    if array.itemsize == 8:
        rows = [(number, 1) for number in numbers]
        array = np.stack([array, np.ones_like(array)], axis=1)
        mask = gpuhash.isin(rows, native.array(array), axis=0)
        assert mask.tolist() == [number in held for number in numbers]
        mask = gpuhash.isin(native.array(array), rows, axis=0)
        assert to_numpy(mask).tolist() == [number in numbers for number in array[:, 0].tolist()]
    assert gpuhash.isin([], native.array(array)).tolist() == []
    assert gpuhash.isin(5, native.array(array)).shape == ()


@pytest.mark.parametrize(
    ("elements", "tests"),
    [
        ([2**63 + 1, -1], [2**63]),
        ([2**63 + 1, -1], [2**63 + 1]),
        ([2**63 + 1, 2**63], [2**63, -1]),
        ([2**64, 5], [5, 2**64 + 1]),
        ([1, 2**63], [2**64, 2**63, -1]),
        ([1, 2, 3], [2**63, 3]),
        ([True, False], [1]),
        ([True, False], []),
        ([2, 3], [True, 3]),
        ([0.5, 2.0**53], [2**53 + 1, 0.5]),
        ([], [2**64]),
        ([2**63 + 1, -1], []),
    ],
    ids=str,
)
def test_two_lists_compare_as_in_python(elements, tests):
    for invert in (False, True, 1, np.bool_(True)):
        mask = gpuhash.isin(elements, tests, invert=invert)
        assert mask.dtype == bool
        assert mask.tolist() == [(element in tests) != invert for element in elements]
        rows, test_rows = [(element, 1) for element in elements], [(test, 1) for test in tests]
        mask = gpuhash.isin(rows, test_rows, axis=0, invert=invert)
        assert mask.dtype == bool
        assert mask.tolist() == [(row in test_rows) != invert for row in rows]
        mask = gpuhash.isin(elements, tests, axis=0, invert=invert)  # rows of one number each
        assert mask.tolist() == [(element in tests) != invert for element in elements]
        for element in elements:
            mask = gpuhash.isin(element, tests, invert=invert)
            assert isinstance(mask, np.ndarray)
            assert (mask.shape, mask.dtype) == ((), bool)
            assert mask.item() == ((element in tests) != invert)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float64", "bool"])
@pytest.mark.parametrize("count", [0, 3])
def test_an_empty_list_has_rows_of_any_length(native, dtype, count):
    rows = np.ones((count, 2), dtype)
    for tests in (native.array(rows), rows.tolist()):
        mask = gpuhash.isin([], tests, axis=0)
        assert isinstance(mask, np.ndarray)
        assert (mask.shape, mask.dtype) == ((0,), bool)
        assert gpuhash.isin((), tests, axis=0, invert=True).shape == (0,)
    same_bytes(gpuhash.isin(native.array(rows), [], axis=0), np.zeros(count, bool))
    with pytest.raises(ValueError, match="rows without numbers"):
        gpuhash.isin([], native.array(np.ones((3, 0), np.int8)), axis=0)


@pytest.mark.parametrize("elements", [[1, 2], [2**70, 1], np.array([1, 2]), np.zeros((0,), int)], ids=str)
@pytest.mark.parametrize("test", [1, np.array(1), np.array(1, np.uint8)], ids=repr)
def test_a_number_is_no_rows(elements, test):
    with pytest.raises(ValueError, match=r"the test_elements have shape \(\), expected \('m',\)"):
        gpuhash.isin(elements, test, axis=0)
    with pytest.raises(ValueError, match=r"shape \(\), which has no axis 0"):
        gpuhash.isin(2**70, elements, axis=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_integers_that_floats_would_round(native, dtype):
    """2^53 + 1 is in no array of floats, and what is rounded to is not found in its stead."""
    elements = np.array([2.0**60, 1.0, 0.5, 3.0], numpy_dtype(dtype) if dtype != "float16" else "float32")
    numbers = [2**60 + 1, 1, 3, 10**400]
    array = native.array(elements)
    assert to_numpy(gpuhash.isin(array, numbers)).tolist() == [False, True, False, True]
    assert gpuhash.isin(numbers, array).tolist() == [False, True, True, False]
    assert to_numpy(gpuhash.isin(array, [2**60, 0.5])).tolist() == [True, False, True, False]


def test_a_list_of_elements_against_the_gpu(torch_cuda):
    tests = torch_cuda.arange(3, device="cuda")
    mask = gpuhash.isin([2, 3, 2**70], tests)
    assert isinstance(mask, np.ndarray)
    assert mask.tolist() == [True, False, False]


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
    "dtypes": (lambda: (np.arange(3), np.arange(3.0)), TypeError, "int64 and the test_elements float64"),
    "floats": (lambda: (np.arange(3.0), np.arange(3, dtype=np.float32)), TypeError, "float64 and .* float32"),
    "bools": (lambda: (np.arange(3), np.ones(3, bool)), TypeError, "int64 and the test_elements bool"),
    "floats-beside-large-integers": (lambda: ([2**63 + 1, -1], [0.5]), TypeError, "0.5"),
    "axis-false": (lambda: (np.arange(3), np.arange(3), False), TypeError, "axis=False"),
    "axis-float": (lambda: (np.arange(3), np.arange(3), 0.0), TypeError, "axis=0.0"),
    "floats-among-integers": (lambda: (np.arange(3), [1.5]), TypeError, "without loss|not an integer"),
    "text": (lambda: (np.arange(3), "abc"), TypeError, None),
    "none": (lambda: (np.arange(3), None), TypeError, None),
}


@pytest.mark.parametrize("flag", ["no", [1], (False,)], ids=repr)
def test_a_flag_is_true_or_false(flag):
    with pytest.raises(TypeError, match=r"invert=.*expected True or False"):
        gpuhash.isin(np.arange(3), np.arange(3), invert=flag)


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind):
    make, error, hint = BAD[kind]
    elements, tests, *axis = make()
    with pytest.raises(error, match=hint):
        gpuhash.isin(elements, tests, axis=axis[0] if axis else None)


def test_rows_of_different_shapes():
    with pytest.raises(ValueError, match=r"\('m', 2\)"):
        gpuhash.isin(np.zeros((3, 2), int), np.zeros((3, 1), int), axis=0)
