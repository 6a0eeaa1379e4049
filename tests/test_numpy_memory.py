"""Memory of the NumPy arrays that calls return: kept for the next ones, and otherwise like that of all arrays."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.kept_memory import MIB, memory_of_container, most_kept
from support.samples import same_bytes

import gpuhash
from gpuhash import HashTable, _core

try:
    from numpy._core.multiarray import get_handler_name
except ImportError:  # NumPy 1
    from numpy.core.multiarray import get_handler_name

MOST = most_kept(memory_of_container())
LEAST, LARGEST = 1 << 16, MOST // 2 // 4096 * 4096  # bytes of arrays whose memory is kept


def empty(nbytes: int, dtype: str = "uint8") -> np.ndarray:
    return _core.empty_array((nbytes // np.dtype(dtype).itemsize,), np.dtype(dtype))


def results(n: int) -> dict[str, np.ndarray]:
    """Arrays of n elements from calls of all kinds, the fast path's among them."""
    keys = np.arange(n) * 7919
    table = HashTable("int64", "int64", default=-1)
    table[keys] = keys
    unique = gpuhash.unique(keys, return_counts=True, return_index=True, return_inverse=True)
    codes, uniques = gpuhash.factorize(keys)
    values, found = table.find(keys)
    answers = {**unique._asdict(), "codes": codes, "uniques": uniques, "find": values, "found": found}
    return answers | {"table[keys]": table[keys], "isin": gpuhash.isin(keys, keys), "contains": table.contains(keys)}


@pytest.mark.parametrize("n", [100, 1 << 18])
def test_results_own_their_memory(n):
    for name, array in results(n).items():
        assert array.shape == (n,), name
        assert array.flags.owndata, name
        assert array.flags.c_contiguous, name
        assert array.flags.writeable, name
        assert array.base is None, name
        kept = array.nbytes >= LEAST
        assert get_handler_name(array) == ("gpuhash" if kept else "default_allocator"), name
    assert get_handler_name() == "default_allocator"


@pytest.mark.parametrize("nbytes", [LEAST, 100_000, 1 << 20, 3_000_000, LARGEST])
def test_memory_of_the_last_array_is_that_of_the_next_one(nbytes):
    array = empty(nbytes)
    place = array.ctypes.data
    array.fill(1)
    del array
    again = empty(nbytes)
    assert again.ctypes.data == place
    assert empty(nbytes).ctypes.data != place


@pytest.mark.parametrize("nbytes", [0, 8, LEAST - 8, LARGEST + 4096])
def test_memory_of_others_is_numpys(nbytes):
    array = empty(nbytes, "int64")
    assert array.nbytes == nbytes
    assert get_handler_name(array) == "default_allocator"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (70_000,), (300, 400), (2, 3, 50_000)])
@pytest.mark.parametrize("dtype", ["bool", "int16", "float64", "complex128"])
def test_arrays_are_as_numpys(shape, dtype):
    array, wanted = _core.empty_array(shape, np.dtype(dtype)), np.empty(shape, dtype)
    assert (array.shape, array.strides, array.dtype) == (wanted.shape, wanted.strides, wanted.dtype)
    assert str(array.flags) == str(wanted.flags)


@pytest.mark.parametrize("shape", [(1 << 62, 4), (-1,), (1 << 40, 1 << 40), (3, 1 << 61, 0, 1 << 61)])
def test_shapes_that_no_array_has(shape):
    with pytest.raises(ValueError, match=r"too big|negative|maximum"):
        np.empty(shape, "int64")
    with pytest.raises(ValueError, match=r"too big|negative|maximum"):
        _core.empty_array(shape, np.dtype("int64"))
    assert get_handler_name() == "default_allocator"


def test_arrays_change_their_size():
    """By resize(), which gives them other memory, again and again, beyond what is kept and back."""
    rng = np.random.default_rng(5)
    array = empty(LEAST)
    array[:] = rng.integers(0, 256, LEAST)
    wanted = array.copy()
    for size in [LEAST // 2, 3 * LEAST, 1, LARGEST + 1000, LEAST, 5_000_000, 0, 77_777, *rng.integers(1, 1 << 20, 40)]:
        array.resize(size, refcheck=False)
        wanted.resize(size, refcheck=False)
        same_bytes(array, wanted)
        array[:] = rng.integers(0, 256, size)
        wanted[:] = array


def test_memory_of_an_array_that_was_changed_is_as_large_as_it_was():
    """What NumPy says of its size when it frees it is that of the array by then."""
    for nbytes in (LEAST, 3_000_000):
        array = empty(nbytes)
        array.resize(10, refcheck=False)
        del array
        array = empty(nbytes)
        array.dtype = np.dtype("int32")
        array.shape = (2, -1)
        array.resize((5, 7), refcheck=False)
        del array
        arrays = [empty(nbytes) for _ in range(4)]
        for number, array in enumerate(arrays):
            array.fill(number)
        assert [int(array.min()) for array in arrays] == [int(array.max()) for array in arrays] == list(range(4))


def test_arrays_of_several_threads():
    """None has memory of another one that is there."""

    def work(number):
        rng = np.random.default_rng(number)
        held: list[tuple[int, np.ndarray]] = []
        for step in range(300):
            size = int(rng.choice([LEAST, 100_000, 400_000, 2 << 20]))
            array = empty(size)
            mark = (number * 31 + step) % 256
            array.fill(mark)
            held.append((mark, array))
            if len(held) > 4:
                expected, oldest = held.pop(int(rng.integers(len(held))))
                assert oldest.min() == oldest.max() == expected
        return number

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == list(range(6))


def test_arrays_die_on_other_threads():
    """And their memory is there for this one."""
    places = set()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(50):
            arrays = [empty(200_000) for _ in range(3)]
            places.add(frozenset(array.ctypes.data for array in arrays))
            pool.submit(arrays.clear).result()
    assert len(places) == 1


def test_memory_is_traced():
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        array = empty(5_000_000)
        assert tracemalloc.get_traced_memory()[0] - before >= 5_000_000
        del array
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_more_than_that_is_kept():
    """The last ones that are freed; the one after them would have been too much."""
    assert run(
        "import numpy as np\n"
        "from gpuhash import _core\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20\n"
        "before = resident()\n"
        "arrays = [_core.empty_array((n << 20,), np.dtype('uint8')) for n in [48, 32, 24, 16, 8] * 4]\n"
        "for array in arrays: array.fill(1)\n"
        "full = resident() - before\n"
        "del arrays, array\n"
        f"print(full >= 500, {MOST // MIB - 48} < resident() - before < {MOST // MIB + 16})\n"
    ).split() == ["True", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_there_is_no_memory():
    """MemoryError as from NumPy, and then all goes on."""
    assert run(
        "import resource, numpy as np, gpuhash\n"
        "from gpuhash import _core\n"
        "gpuhash.set_num_threads(2)\n"  # what many threads leave for the next call is more than is asked for
        "keys = np.arange(1 << 20) * 7919\n"
        "table = gpuhash.HashTable('int64', 'int64')\n"
        "table[keys] = keys\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), resource.RLIM_INFINITY))\n"
        "for ask in (lambda: _core.empty_array((30 << 20,), np.dtype('uint8')), lambda: table[keys]):\n"
        "    try: ask()\n"
        "    except MemoryError: print('none')\n"
        "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "print((table[keys] == keys).all(), np.empty(5).shape)\n"
    ).splitlines() == ["none", "none", "True (5,)"]


@pytest.mark.skipif(sys.platform == "win32", reason="of systems that fork")
def test_forks_while_threads_make_arrays():
    """A child has the blocks that are kept, and no lock that another thread held."""
    assert (
        run(
            "import os, threading, warnings, numpy as np, gpuhash\n"
            "from gpuhash import _core\n"
            "warnings.simplefilter('ignore')\n"
            "keys, done = np.arange(1 << 17) * 7919, False\n"
            "def make():\n"
            "    while not done: gpuhash.unique(keys)\n"
            "threads = [threading.Thread(target=make) for _ in range(3)]\n"
            "for thread in threads: thread.start()\n"
            "ends = []\n"
            "for _ in range(20):\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        arrays = [_core.empty_array((1 << 20,), np.dtype('uint8')) for _ in range(5)]\n"
            "        for array in arrays: array.fill(7)\n"
            "        os._exit(0 if len(gpuhash.unique(keys)) == 1 << 17 and all(a.max() == 7 for a in arrays) else 1)\n"
            "    ends.append(os.waitpid(child, 0)[1])\n"
            "done = True\n"
            "for thread in threads: thread.join()\n"
            "print(set(ends))\n"
        ).strip()
        == "{0}"
    )
