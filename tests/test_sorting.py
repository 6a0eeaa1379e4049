"""unique(sorted=True) on the host: the same answers, whether keys are hashed or sorted first, and by whose sort."""

from __future__ import annotations

import itertools
import sys
import threading

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.samples import FLOATS, INTEGERS, numpy_dtype, same_bytes

import gpuhash
from gpuhash import _core
from gpuhash.arrays.memory import make_context
from gpuhash.frames import sorting

DTYPES = ["bool", *INTEGERS, *FLOATS]
#: How many distinct keys are hashed at most, whether NumPy sorts those that were, and whether they were too many.
WAYS = {
    "hashed": (sys.maxsize, False, False),
    "hashed-then-numpy": (sys.maxsize, True, False),
    "hashed-in-vain": (sys.maxsize, False, True),
    "sorted-first": (0, True, True),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    most_hashed, by_numpy, deceived = WAYS[request.param]
    monkeypatch.setattr(sorting, "_MIN_KEYS", 1)
    monkeypatch.setattr(sorting, "most_hashed", lambda *_: most_hashed)
    monkeypatch.setattr(sorting, "sorts_distinct", lambda *_: by_numpy)
    monkeypatch.setattr(sorting, "deceived", lambda *_: deceived)


@pytest.fixture(params=[1, 2, 3], ids="{}-threads".format)
def threads(request):
    before = gpuhash.get_num_threads()
    gpuhash.set_num_threads(request.param)
    yield
    gpuhash.set_num_threads(before)


def expected(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys in ascending order, each in the form that comes first, and their counts."""
    numbers = keys.view(np.uint8) != 0 if keys.dtype == bool else keys
    # As float64, since np.sort of float16 with AVX-512 is not to be relied on.
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = numbers.astype(np.float64) if str(keys.dtype) in FLOATS else numbers
    _, firsts, counts = np.unique(wide, return_index=True, return_counts=True)
    return numbers[firsts], counts


def check(keys: np.ndarray) -> None:
    values, counts = expected(keys.reshape(-1))
    same_bytes(gpuhash.unique(keys, sorted=True), values)
    got = gpuhash.unique(keys, return_counts=True, sorted=True)
    same_bytes(got.values, values)
    same_bytes(got.counts, counts)


def make(dtype: str, count: int, distinct: int) -> np.ndarray:
    """`count` keys of any bits of up to `distinct` different ones."""
    rng = np.random.default_rng([count, distinct])
    kind = numpy_dtype(dtype)
    bits = rng.integers(0, 256, (distinct, kind.itemsize), np.uint8)
    return bits[rng.integers(0, distinct, count)].reshape(-1).view(kind)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bits(way, threads, dtype):
    for count in (1, 2, 33, 1025, 70_001):
        for distinct in (1, 7, 3000, count):
            check(make(dtype, count, distinct))


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["int16", "int32", "uint64", "float32", "float64"])
@pytest.mark.parametrize("part", [1, 2, 16, 1000])
def test_large_batches(way, dtype, part):
    count = 300_007
    check(make(dtype, count, count // part))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_at_the_ends(way, dtype):
    info = np.iinfo(dtype)
    ends = np.array([info.min, info.min + 1, info.max // 2, info.max // 2 + 1, info.max - 1, info.max], dtype)
    check(np.random.default_rng(0).permutation(np.tile(ends, 999)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_forms_of_zero_and_nan(way, dtype):
    """The first one is given back bit for bit, however far behind the others, which differ from it in their bits."""
    kind = numpy_dtype(dtype)
    bits = f"u{kind.itemsize}"
    sign = 1 << (8 * kind.itemsize - 1)
    quiet = int(np.array(np.nan, kind).view(bits)) & ~sign
    infinity = int(np.array(np.inf, kind).view(bits))
    nans = [quiet, quiet | sign, quiet | 1, infinity | 1, infinity | sign | 3, sign - 1, 2 * sign - 1]
    tiny = [1, 2, sign | 1, sign | 2]  # subnormal numbers, which are no zeros
    others = make(dtype, 2000, 500)
    others = others[(others != 0) & ~np.isnan(others)].view(bits)
    for zero, nan, place in itertools.product([0, sign], nans, [0, 1500, 5000]):
        special = np.array([zero, nan, 0, sign, *nans, *tiny, infinity, infinity | sign], bits)
        keys = np.concatenate([np.resize(others, place), special, others]).view(kind)
        check(keys)
    check(np.array([sign, 0, sign, 0] * 50, bits).view(kind))
    check(np.array(nans * 50, bits).view(kind))
    check(np.concatenate([others, np.array(nans, bits)]).view(kind))


def test_subnormal_numbers_where_the_processor_takes_them_for_zeros(way):
    torch = pytest.importorskip("torch")
    keys = np.random.default_rng(0).permutation(np.arange(1, 3000, dtype=np.uint64)).view(np.float64)
    if not torch.set_flush_denormal(True):
        pytest.skip("not on this processor")
    try:
        got = gpuhash.unique(keys, return_counts=True, sorted=True)
    finally:
        torch.set_flush_denormal(False)
    same_bytes(got.values, np.arange(1, 3000, dtype=np.uint64).view(np.float64))
    assert (to_numpy(got.counts) == 1).all()


def test_booleans_of_any_byte(way):
    check(np.arange(256, dtype=np.uint8).view(bool))
    check(np.full(99, 7, np.uint8).view(bool))


def test_keys_as_they_lie(way):
    wide = np.random.default_rng(1).integers(-500, 500, (3000, 3))
    for keys in (wide, wide.T, wide[:, 1], wide[::-2, 0], wide.astype(np.float32)[:, 1:]):
        check(keys)
    odd = np.zeros(8 * 3000 + 1, np.uint8)[1:].view(np.int64)
    odd[...] = wide[:, 0]
    odd.flags.writeable = False
    before = odd.copy()
    check(odd)
    same_bytes(odd, before)
    check(np.sort(wide[:, 0]))
    check(np.sort(wide[:, 0])[::-1])


def test_rows_of_one_number(way):
    keys = np.random.default_rng(1).integers(-500, 500, (3000, 1))
    got = gpuhash.unique(keys, return_counts=True, sorted=True, axis=0)
    values, counts = np.unique(keys, return_counts=True)
    same_bytes(got.values, values.reshape(-1, 1))
    same_bytes(got.counts, counts)


def test_every_framework(way, place):
    keys = np.random.default_rng(2).integers(-500, 500, 5000)
    for array in (keys, keys.astype(np.float32) / 8):
        values, counts = expected(array)
        alone = gpuhash.unique(place.array(array), sorted=True)
        assert place.owns(alone)
        same_bytes(alone, values)
        got = gpuhash.unique(place.array(array), return_counts=True, sorted=True)
        assert place.owns(got.values)
        same_bytes(got.values, values)
        same_bytes(got.counts, counts)


def test_keys_that_another_thread_changes(monkeypatch):
    """The words are read once, and what is sorted and counted is nobody else's."""
    monkeypatch.setattr(sorting, "most_hashed", lambda *_: 0)
    keys = make("float64", 100_000, 50_000)
    done = threading.Event()

    def change() -> None:
        rng = np.random.default_rng(0)
        while not done.is_set():
            keys[rng.integers(0, len(keys), 1000)] = rng.choice([0.0, -0.0, np.nan, 1.5], 1000)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(30):
            values, counts = gpuhash.unique(keys, return_counts=True, sorted=True)
            assert counts.sum() == len(keys)
            assert (values[:-2] < values[1:-1]).all()  # the last one may be NaN
            gpuhash.unique(keys, sorted=True)
    finally:
        done.set()
        thread.join()
    check(keys)


@pytest.mark.parametrize("sort_ns", [0.5, 2.0, 10.0, 60.0])
def test_the_choice(monkeypatch, sort_ns):
    """Fewer keys are sorted first the slower NumPy's sort is, and the more threads there are."""
    monkeypatch.setattr(sorting, "_measured_sort_ns", lambda itemsize: sort_ns)
    sorting._most_hashed.cache_clear()
    try:
        for with_counts in (False, True):
            for bits in range(12, 30):
                most = [sorting._most_hashed(bits, 8, with_counts, threads) for threads in (1, 2, 4, 8, 64)]
                if bits > 16:  # others are hashed on one thread
                    assert most == sorted(most)
                if sort_ns < 1:
                    assert most[0] < 1 << 16
                if sort_ns > 50:
                    assert most[0] == sys.maxsize
    finally:
        sorting._most_hashed.cache_clear()


def test_numpys_sort_is_measured():
    for itemsize in (2, 4, 8):
        assert 0.05 < sorting._measured_sort_ns(itemsize) < 10_000


def test_where_the_choice_is_left_to_the_machine():
    for dtype in DTYPES:
        for count, distinct in ((4095, 4095), (4096, 4096), (70_000, 70_000), (70_000, 100), (300_000, 20_000)):
            check(make(dtype, count, distinct))


def test_batches_that_are_not_to_be_hashed():
    context = make_context("cpu")

    def of_few(keys: np.ndarray, most_hashed: int) -> _core.Factorization | None:
        return _core.Factorization.of_few(context, _core.borrow(keys), 1, True, most_hashed)

    for count in (1000, 70_000, 600_000):
        distinct = np.random.default_rng(0).permutation(count)
        assert of_few(distinct, count // 2) is None
        assert of_few(distinct, count).count == count
        assert not of_few(distinct, count).of_ascending_keys
        ascending = of_few(np.arange(count), 0)
        assert ascending.of_ascending_keys
        assert ascending.count == count
    assert of_few(np.arange(70_000) * 7 % 100, 5000).count == 100
    assert of_few(np.random.default_rng(0).permutation(600_000) % 60_000, 5000) is None
    assert of_few(np.arange(1000) * 7 % 100, 500) is None  # too small for a sample


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_order_words(threads, dtype):
    context = make_context("cpu")
    keys = make(dtype, 40_001, 20_000)
    words = np.empty(len(keys), f"u{keys.dtype.itemsize}")
    _core.write_order_words(context, _core.borrow(keys), _core.borrow(words))
    in_place = keys.copy()
    _core.write_order_words(context, _core.borrow(in_place), _core.borrow(in_place.view(words.dtype)))
    same_bytes(in_place.view(words.dtype), words)
    values, counts = expected(keys)
    distinct, word_counts = np.unique(words, return_counts=True)
    same_bytes(word_counts, counts)
    _core.read_order_words(context, _core.borrow(distinct), _core.borrow(keys))
    same_bytes(distinct.view(keys.dtype), values)


def test_order_words_of_what_they_are_not_of():
    context = make_context("cpu")
    words = np.zeros(8, np.uint64)
    for keys, array, hint in (
        (np.zeros(8, np.complex64), words, "complex"),
        (np.zeros(8, np.int64), words[:7].copy(), "expected 8"),
        (np.zeros(8, np.int32), words, "uint32"),
        (np.zeros(8, np.int64), words.astype(np.int64), "uint64"),
    ):
        with pytest.raises(ValueError, match=hint):
            _core.write_order_words(context, _core.borrow(keys), _core.borrow(array))
    words.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _core.write_order_words(context, _core.borrow(np.zeros(8, np.int64)), _core.borrow(words))


def test_no_memory_for_the_words(monkeypatch):
    def no_room(*_args: object) -> np.ndarray:
        raise MemoryError("in this test")

    keys = make("int64", 5000, 5000)
    monkeypatch.setattr(sorting, "most_hashed", lambda *_: 0)
    with monkeypatch.context() as patch:
        patch.setattr(_core, "empty_array", no_room)
        with pytest.raises(MemoryError, match="in this test"):
            gpuhash.unique(keys, sorted=True)
    check(keys)
