"""gpuhash.hash: against the xxhash library, for all lengths, dtypes, sources and places."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from support.frameworks import GPU, capture, module, new_stream, on_stream, to_numpy
from support.peers import peer
from support.samples import COMPLEX, FLOATS, VALUE_DTYPES, numpy_dtype, random_values, same_bytes

import gpuhash
from gpuhash import _core
from gpuhash.arrays.memory import make_context

xxhash = peer("xxhash")
pl = peer("polars")
pa = peer("pyarrow")

SEEDS = [0, 1, 0x9E3779B185EBCA87, 2**64 - 1, 0xFFFFFFFF]
LENGTHS = range(1101)


def expected(keys, bits, seed=0):
    """Of bytes objects, by the library."""
    if bits == 64:
        return np.array([xxhash.xxh3_64_intdigest(key, seed) for key in keys], np.uint64)
    wide = [xxhash.xxh3_128_intdigest(key, seed) for key in keys]
    return np.array([[hash & (2**64 - 1), hash >> 64] for hash in wide], np.uint64).reshape(len(keys), 2)


def rows_as_bytes(rows):
    """Each row's bytes, of numbers as equal ones are hashed."""
    rows = np.ascontiguousarray(rows)
    if rows.dtype == bool:
        rows = rows.view(np.uint8) != 0
    elif rows.dtype.kind not in "iu":
        rows = rows.copy()
        parts = rows.view(rows.real.dtype) if rows.dtype.kind == "c" else rows
        parts[np.isnan(parts)] = np.nan
        parts[parts == 0] = 0
    return [row.tobytes() for row in rows]


def hash_on(device, offsets, data, bits, seed=0):
    """Of strings in a device's memory."""
    context = make_context(device)

    def lend(array):
        lent = _core.Buffer(context, array.dtype.name, array.shape, 0).array()
        context.copy(lent, _core.borrow(array), 0)
        return lent

    count = len(offsets) - 1
    out = _core.Buffer(context, "uint64", (count, 2) if bits == 128 else (count,), 0)
    _core.hash_strings(context, lend(offsets), lend(data), bits, seed, out.array(), 0)
    host = np.empty(out.shape, np.uint64)
    context.copy(_core.borrow(host), out.array(), 0)
    context.synchronize(0)
    return host


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("seed", SEEDS, ids=hex)
def test_strings_of_all_lengths(device, bits, seed):
    keys = [np.random.default_rng(length).bytes(length) for length in LENGTHS]
    offsets = np.cumsum([0, *LENGTHS])
    data = np.frombuffer(b"".join(keys), np.uint8)
    same_bytes(hash_on(device, offsets, data, bits, seed), expected(keys, bits, seed))


@pytest.mark.parametrize("bits", [64, 128])
def test_long_strings(device, bits):
    lengths = [1023, 1024, 1025, 2047, 2048, 2049, 5000, 1 << 16, (1 << 16) + 65, 1_000_003]
    keys = [np.random.default_rng(length).bytes(length) for length in lengths]
    data = np.frombuffer(b"".join(keys), np.uint8)
    same_bytes(hash_on(device, np.cumsum([0, *lengths]), data, bits, 7), expected(keys, bits, 7))


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_rows_of_all_lengths(native, dtype, bits):
    width = np.dtype(dtype).itemsize
    for length in (*range(66), 120, 128, 129, 136, 144, 239, 240, 241, 256, 512, 1023, 1024, 1025, 1100):
        if length % width:
            continue
        rows = np.random.default_rng(length).integers(0, 256, (5, length), np.uint8).view(dtype)
        hashes = gpuhash.hash(native.array(rows), bits=bits, seed=3, axis=0)
        assert native.owns(hashes)
        same_bytes(hashes, expected(rows_as_bytes(rows), bits, 3))


@pytest.mark.parametrize("bits", [64, 128])
def test_rows_anywhere_in_memory(native, bits):
    """On a GPU rows are read by whole words only where they lie at multiples of one."""
    for length in (3, 4, 8, 12, 16, 20, 24, 32, 40, 200, 300):
        for shift in (0, 1, 4, 8):
            flat = np.random.default_rng(length).integers(0, 256, 6 * length + shift, np.uint8)
            rows = native.array(flat)[shift:].reshape(6, length)
            same_bytes(gpuhash.hash(rows, bits=bits, axis=0), expected(rows_as_bytes(to_numpy(rows)), bits))


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_each_number_of_each_dtype(place, dtype, bits):
    keys = random_values(dtype, (1000, 3))
    with np.errstate(invalid="ignore"):
        hashes = gpuhash.hash(place.array(keys), bits=bits)
    assert place.owns(hashes)
    flat = keys.reshape(-1, 1)
    same_bytes(hashes, expected(rows_as_bytes(flat), bits).reshape(1000, 3, *([2] if bits == 128 else [])))


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("dtype", ["bool", *FLOATS, *COMPLEX])
def test_equal_keys_have_equal_hashes(native, dtype, bits):
    for columns in (1, 2, 3, 5, 17, 70):
        if dtype == "bool":
            keys = np.random.default_rng(columns).integers(0, 3, (50, columns), np.uint8).view(bool)
        else:
            parts = random_values(dtype, (50, columns))
            keys = parts.copy()
            floats = keys.view(keys.real.dtype) if keys.dtype.kind == "c" else keys
            floats[::3] = np.nan
            floats[1::3, ::2] = -0.0
            bits_of = floats.view(f"u{floats.dtype.itemsize}")
            bits_of[::6] |= np.array(1 << (8 * floats.dtype.itemsize - 1), bits_of.dtype)  # NaNs with a sign
            bits_of[3::6] |= np.array(1, bits_of.dtype)  # and with a payload
        hashes = gpuhash.hash(native.array(keys), bits=bits, axis=0)
        same_bytes(hashes, expected(rows_as_bytes(keys), bits))


def test_zeros_and_nans():
    for dtype in FLOATS:
        kind = numpy_dtype(dtype)
        zero, negative, nan = (np.array([number], kind) for number in (0.0, -0.0, np.nan))
        assert gpuhash.hash(zero) == gpuhash.hash(negative) == xxhash.xxh3_64_intdigest(zero.tobytes())
        assert gpuhash.hash(nan) == xxhash.xxh3_64_intdigest(nan.tobytes())


# Written down from the xxhash library 0.8.4, as they are to stay.
GOLDEN = [
    (b"", 0, 0x2D06800538D394C2, 0x99AA06D3014798D86001C324468D497F),
    (b"a", 0, 0xE6C632B61E964E1F, 0xA96FAF705AF16834E6C632B61E964E1F),
    (b"abc", 0, 0x78AF5F94892F3950, 0x06B05AB6733A618578AF5F94892F3950),
    (b"0123", 1, 0x09CCCBA75BFC4A35, 0xD2594B987C69831F4ADA1588CE9CC38F),
    (b"gpuhash: 12", 18446744073709551615, 0x362A8B0AA6F2C71B, 0x855477C6CDDF355E0D7F2AF433452761),
    (b"x" * 100, 7, 0xCB55C39477E4E803, 0x641AB7840DDE86F53F9AE713860E4BFA),
    (b"y" * 200, 42, 0x10FA679F19FC3A6A, 0x797BB06984EED1B3C968B33D22E58605),
    (b"z" * 1000, 0, 0xCD3A574700EDDF41, 0x66A9B2D587876CE7CD3A574700EDDF41),
    (b"w" * 5000, 9, 0x5F7A3742371FD839, 0x1A96139164372F395F7A3742371FD839),
]


@pytest.mark.parametrize(("key", "seed", "narrow", "wide"), GOLDEN, ids=lambda given: None)
def test_golden_values(device, key, seed, narrow, wide):
    offsets, data = np.array([0, len(key)]), np.frombuffer(key, np.uint8)
    assert hash_on(device, offsets, data, 64, seed).tolist() == [narrow]
    low, high = hash_on(device, offsets, data, 128, seed)[0].tolist()
    assert low | high << 64 == wide
    assert int(gpuhash.hash(key, seed=seed)) == narrow


TEXTS = ["", "a", "häß", "0123456789ab", "x" * 16, "日本" * 20, "z" * 200, "y" * 500]
SOURCES = {
    "list": lambda: TEXTS,
    "numpy": lambda: np.array(TEXTS),
    "object": lambda: np.array(TEXTS, object),
    "pandas": lambda: pd.Series(TEXTS),
    "polars": lambda: pl.Series(TEXTS),
    "categorical": lambda: pl.Series(TEXTS, dtype=pl.Categorical),
    "arrow": lambda: pa.array(TEXTS),
    "arrow-slice": lambda: pa.array(["q", *TEXTS])[1:],
    "arrow-view": lambda: pa.array(TEXTS, pa.string_view()),
    "arrow-chunks": lambda: pa.chunked_array([TEXTS[:3], TEXTS[3:]]),
    "bytes": lambda: [text.encode() for text in TEXTS],
}


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("source", SOURCES)
def test_strings_of_all_sources(source, bits):
    hashes = gpuhash.hash(SOURCES[source](), bits=bits, seed=5)
    same_bytes(hashes, expected([text.encode() for text in TEXTS], bits, 5))


def test_shapes():
    assert gpuhash.hash("a").shape == ()
    assert gpuhash.hash(5, bits=128).shape == (2,)
    assert gpuhash.hash([]).shape == (0,)
    assert gpuhash.hash(np.array([["a", "b"], ["c", "d"]])).shape == (2, 2)
    assert gpuhash.hash(np.zeros((3, 4)), axis=0, bits=128).shape == (3, 2)
    assert gpuhash.hash(np.zeros((3, 0)), axis=0).tolist() == [xxhash.xxh3_64_intdigest(b"")] * 3
    assert gpuhash.hash(np.zeros((0, 4)), axis=0, bits=128).shape == (0, 2)
    assert gpuhash.hash(np.array(["b", "a"])[:0]).shape == (0,)


def test_columns():
    numbers = [2**53 + 1, 7, -1]
    for column in (pd.Series(numbers), pl.Series(numbers), pa.array(numbers), pd.Series(numbers, dtype="Int64")):
        same_bytes(gpuhash.hash(column), expected(rows_as_bytes(np.array(numbers)), 64))
    digests = pa.array([b"0123456789", b"abcdefghij"], pa.binary(10))
    same_bytes(gpuhash.hash(digests), expected([b"0123456789", b"abcdefghij"], 64))
    for column in (pl.Series([1, None]), pl.Series(["a", None]), pa.array([b"a", None])):
        with pytest.raises(ValueError, match="nulls, in 1 of 2 entries"):
            gpuhash.hash(column)


class Once:
    """A column that gives its stream only once."""

    def __init__(self, column):
        self.streams = [column.__arrow_c_stream__()]

    def __arrow_c_stream__(self, requested_schema=None):
        return self.streams.pop()


def test_streams_that_are_read_once():
    for column in (pa.chunked_array([[1, 2], [3]]), pa.chunked_array([["a"], ["b", ""]])):
        same_bytes(gpuhash.hash(Once(column)), gpuhash.hash(column))
    table = pa.table({"word": TEXTS})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    same_bytes(gpuhash.hash(reader), gpuhash.hash(TEXTS))
    with pytest.raises(TypeError, match="Once has 2 columns"):
        gpuhash.hash(Once(pa.table({"a": ["x"], "b": [1]})))


def test_strided_arrays(native):
    keys = np.arange(240, dtype=np.int32).reshape(10, 24)
    same_bytes(gpuhash.hash(native.array(keys)[:, ::2], axis=0), expected(rows_as_bytes(keys[:, ::2]), 64))


@pytest.mark.parametrize("count", [1, 32_767, 32_768, 300_001])
def test_threads_agree(threads, count):
    keys = np.arange(count)
    hashes = gpuhash.hash(keys)
    for i in {0, count // 2, count - 1}:
        assert hashes[i] == xxhash.xxh3_64_intdigest(keys[i].tobytes())
    rows = np.lib.stride_tricks.sliding_window_view(np.arange(count + 6, dtype=np.uint8), 7)
    wide = gpuhash.hash(rows, bits=128, axis=0)
    same_bytes(wide, expected([row.tobytes() for row in rows[:1000]], 128) if count < 1000 else wide)
    same_bytes(wide[-1:], expected([rows[-1].tobytes()], 128))
    text = [str(number) for number in range(count)]
    assert gpuhash.hash(text)[-1] == xxhash.xxh3_64_intdigest(text[-1].encode())


@pytest.mark.parametrize("instructions", ["portable", "avx2", "avx512"])
def test_instruction_sets_agree(instructions):
    program = """
import numpy as np, gpuhash
for keys in (np.arange(1003), np.arange(1003, dtype=np.int32), np.linspace(-1, 1, 1003), np.zeros(1003, np.float32)):
    print(*gpuhash.hash(keys, seed=9).tolist())
"""
    environment = {**os.environ, "GPUHASH_SIMD": instructions}
    said = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    arrays = (np.arange(1003), np.arange(1003, dtype=np.int32), np.linspace(-1, 1, 1003), np.zeros(1003, np.float32))
    for keys, line in zip(arrays, said.stdout.splitlines(), strict=True):
        same_bytes(np.array(line.split(), np.uint64), expected(rows_as_bytes(keys.reshape(-1, 1)), 64, 9))


def test_bad_arguments():
    keys = np.arange(3)
    for arguments, error, match in [
        ({"bits": 32}, ValueError, "bits=32 was given, expected 64 or 128"),
        ({"bits": "64"}, TypeError, "bits='64' was given"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 2**64}, ValueError, "seed="),
        ({"seed": None}, TypeError, "seed=None was given, expected an integer"),
        ({"seed": "random"}, TypeError, "seed='random'"),
        ({"axis": 1}, ValueError, "axis=1"),
        ({"axis": "rows"}, TypeError, "axis='rows'"),
    ]:
        with pytest.raises(error, match=match):
            gpuhash.hash(keys, **arguments)
    with pytest.raises(TypeError, match="item 1 is 5"):
        gpuhash.hash(["a", 5])
    with pytest.raises(ValueError, match="a row of strings is no key"):
        gpuhash.hash(np.array([["a", "b"]]), axis=0)
    with pytest.raises(ValueError, match="no axis 0"):
        gpuhash.hash(5, axis=0)
    with pytest.raises(OverflowError):
        gpuhash.hash([-1, 2**63])


def test_jax_needs_64_bits():
    jax = module("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(TypeError, match="jax_enable_x64"):
            gpuhash.hash(jax.numpy.arange(3))
    finally:
        jax.config.update("jax_enable_x64", before)


def test_hashes_are_ready_on_the_callers_stream(torch_cuda):
    torch = torch_cuda
    stream = new_stream()
    with on_stream(stream):
        keys = torch.arange(1_000_000, device=GPU)
        doubled = gpuhash.hash(keys).view(torch.int64) * 2
    stream.synchronize()
    same_bytes(doubled, gpuhash.hash(np.arange(1_000_000)).view(np.int64) * 2)


def test_in_a_cuda_graph(torch_cuda):
    torch = torch_cuda
    keys = torch.arange(1000, device=GPU)
    gpuhash.hash(keys)
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        hashes = gpuhash.hash(keys)
    keys += 5
    graph.replay()
    torch.cuda.synchronize()
    same_bytes(hashes, gpuhash.hash(np.arange(5, 1005)))
