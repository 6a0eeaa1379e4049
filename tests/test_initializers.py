"""Initializers: what find_or_insert and setdefault put into the rows of new keys, against an oracle in NumPy."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import statistics
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frameworks import GPU, capture, to_numpy
from support.samples import FLOATS, KEY_TYPES, numpy_dtype, random_keys, same_bytes, special_keys, type_name

import gpuhash
from gpuhash import HashSet, HashTable, initializers
from gpuhash.initializers import Constant, Normal, TruncatedNormal, Uniform

DRAWN = [Uniform(-0.25, 0.75, seed=5), Normal(1.0, 0.5, seed=6), TruncatedNormal(-2.0, 3.0, seed=1 << 63)]


def kind_name(initializer: object) -> str:
    return type(initializer).__name__


# The oracle ----------------------------------------------------------------------------------------------------------


def philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox4x32-10 of counters [..., 4] and keys [..., 2], by the paper."""
    words = [counter[..., i].astype(np.uint64) for i in range(4)]
    first, second = key[..., 0].astype(np.uint64), key[..., 1].astype(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        even, odd = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [(odd >> half) ^ words[1] ^ first, odd & low, (even >> half) ^ words[3] ^ second, even & low]
        first, second = (first + np.uint64(0x9E3779B9)) & low, (second + np.uint64(0xBB67AE85)) & low
    return np.stack(words, -1).astype(np.uint32)


def blocks_of(keys: np.ndarray, seed: int, count: int) -> np.ndarray:
    """The numbers of keys [n, *key_shape]: [n, count, 4], 32 bits each."""
    raw = np.ascontiguousarray(keys).reshape(len(keys), -1).view(np.uint8).reshape(len(keys), -1)
    padded = np.zeros((len(keys), 16), np.uint8)
    padded[:, : raw.shape[1]] = raw
    start = philox(padded.view("<u4"), np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32))
    counter = np.zeros((len(keys), count, 4), np.uint32)
    counter[..., 0] = np.arange(count)
    counter[..., 2:] = start[:, None, 2:]
    return philox(counter, np.broadcast_to(start[:, None, :2], (len(keys), count, 2)))


def uniform_numbers(keys: np.ndarray, seed: int, dtype: str, elements: int) -> np.ndarray:
    """In (0, 1): float64 [n, elements]."""
    per_block = 2 if dtype == "float64" else 4
    words = blocks_of(keys, seed, -(-elements // per_block)).reshape(len(keys), -1)
    if dtype == "float64":
        wide = words.astype(np.uint64)
        bits = wide[:, ::2] | wide[:, 1::2] << np.uint64(32)
        numbers = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    else:
        numbers = (words.astype(np.float64) + 0.5) * 2.0**-32
    return numbers[:, :elements]


def rounded(numbers: np.ndarray, dtype: str) -> np.ndarray:
    return numbers if dtype == "float64" else numbers.astype(np.float32).astype(numpy_dtype(dtype))


def expected_rows(initializer: Any, keys: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    elements = math.prod(shape)
    numbers = uniform_numbers(keys, initializer.seed, dtype, elements)
    if isinstance(initializer, Uniform):
        numbers = np.minimum(initializer.low + (initializer.high - initializer.low) * numbers, initializer.high)
    else:
        standard = statistics.NormalDist()
        if isinstance(initializer, TruncatedNormal):
            below = standard.cdf(-2)
            numbers = below + (1 - 2 * below) * numbers
        quantiles = np.vectorize(standard.inv_cdf, otypes=[np.float64])(numbers)
        numbers = initializer.mean + initializer.std * quantiles
    return rounded(numbers, dtype).reshape(len(keys), *shape)


def check_rows(got: Any, initializer: Any, keys: np.ndarray, dtype: str, shape: tuple[int, ...]) -> None:
    """Numbers of a uniform distribution to the bit, of others as near as two logarithms are."""
    rows, expected = to_numpy(got), expected_rows(initializer, keys, dtype, shape)
    assert rows.dtype == expected.dtype
    if isinstance(initializer, Uniform):
        same_bytes(rows, expected)
        return
    error = {"float64": 1e-14, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    rows, expected = rows.astype(np.float64), expected.astype(np.float64)
    scale = abs(initializer.mean) + initializer.std
    np.testing.assert_allclose(rows, expected, rtol=error, atol=error * scale if dtype == "float64" else 0)
    if dtype != "float64":
        assert (rows != expected).mean() < 1e-4, "they differ by a rounding, if at all, and hardly ever"


def test_the_oracle_is_philox():
    """The known answers of the authors' Random123."""
    for counter, key, expected in [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]:
        got = philox(np.array(counter, np.uint32), np.array(key, np.uint32))
        assert " ".join(f"{word:08x}" for word in got.tolist()) == expected


# Rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initializer", DRAWN, ids=kind_name)
@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers(place, initializer, dtype):
    for shape in [(64,), (1,), (3, 7)]:
        table = HashTable(
            "int64", dtype, value_shape=shape, device=place.table_device, initializer=initializer, default=3
        )
        keys = random_keys("int64", (), 500)
        rows, is_new = table.find_or_insert(place.array(keys))
        assert to_numpy(is_new).all()
        assert sorted(to_numpy(rows).tolist()) == list(range(500))
        check_rows(table[place.array(keys)], initializer, keys, dtype, shape)


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "in-order"])
def test_keys(native, key_type, deterministic):
    """Of all dtypes and shapes, those among them whose patterns mark empty slots."""
    dtype, shape = key_type
    options: dict[str, Any] = {"key_shape": shape, "value_shape": (6,), "device": native.table_device}
    table = HashTable(dtype, "float32", initializer=DRAWN[0], deterministic=deterministic, **options)
    keys = np.concatenate([special_keys(dtype, shape), random_keys(dtype, shape, 300)])
    table.find_or_insert(native.array(keys))
    check_rows(table[native.array(keys)], DRAWN[0], keys, dtype="float32", shape=(6,))


GOLDEN = {  # rows of the key (42, -1)
    ("Uniform", "float16"): "b22009ae2638b037df387639",
    ("Uniform", "bfloat16"): "163cc1bd053ff63e1c3f2f3f",
    ("Uniform", "float32"): "1f47163cec13c1bdd4cb043f68f5f53e33ef1b3f86ce2e3f",
    (
        "Uniform",
        "float64",
    ): "e8a6bd797d22b8bff632710dadbede3fe77d1bcfd0d9e53f94e37ea37ccdc43f654ff938de31e73ff09cbc64ea05ac3f",
    ("Normal", "float16"): "0b3ee93ca233f43e123e3a38",
    ("Normal", "bfloat16"): "c13f9d3f743edf3fc23f073f",
    ("Normal", "float32"): "3a63c13fdb229d3f8940743eab87de3fba3bc23f7341073f",
    (
        "Normal",
        "float64",
    ): "a9d9a7685ba4f33f30b2046bf5d0fb3f18ce455f2ee8e03fa23213bf29daea3fec0d8c982e9df53f15bf52173ec5f43f",
    ("TruncatedNormal", "float16"): "86414d3ca3c2fdc0f53eedc5",
    ("TruncatedNormal", "bfloat16"): "31408a3f54c020c0df3fbec0",
    ("TruncatedNormal", "float32"): "04b530403aa2893f4e5554c091971fc0c996de3f52aebdc0",
    (
        "TruncatedNormal",
        "float64",
    ): "528d40394734f13f67030c22f2f203c086b5344dcab517c05cf6b434538d02c02a742338e641f53fa40b0e7c381a0fc0",
}


@pytest.mark.parametrize("initializer", DRAWN, ids=kind_name)
@pytest.mark.parametrize("dtype", FLOATS)
def test_golden_bits(device, initializer, dtype):
    """The same in every version, on every device; those of large keys reach all words of the counter."""
    table = HashTable("int64", dtype, key_shape=(2,), value_shape=(6,), device=device, initializer=initializer)
    table.find_or_insert([[42, -1]])
    assert np.asarray(table[[[42, -1]]]).tobytes().hex() == GOLDEN[kind_name(initializer), dtype]


@pytest.mark.parametrize("initializer", DRAWN, ids=kind_name)
def test_same_bits_whatever_the_batch(native, initializer):
    """In any order, cut in any way, among duplicates and keys that are there, while the table grows, in shards."""
    keys = random_keys("int64", (), 3000)
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {"value_shape": (9,), "initializer": initializer}
    at_once = HashTable("int64", "float32", **options)
    at_once.find_or_insert(keys)
    expected = at_once[keys]
    for shards in (0, 1, 3):
        device = [native.table_device] * shards if shards else native.table_device
        for deterministic in (False, True):
            table = HashTable("int64", "float32", device=device, deterministic=deterministic, **options)
            seen = np.zeros(0, np.int64)
            for _ in range(6):
                batch = rng.choice(keys, 1500)
                _, is_new = table.find_or_insert(native.array(batch))
                new = batch[to_numpy(is_new)]
                assert sorted(new.tolist()) == sorted(set(batch.tolist()) - set(seen.tolist()))
                seen = np.union1d(seen, batch)
            table.find_or_insert(native.array(keys[::-1]))
            same_bytes(table[native.array(keys)], expected)


def test_threads(device):
    """On the host, batches that several threads share; and callers in several threads."""
    keys = np.random.default_rng(0).permutation(np.arange(300_000, dtype=np.int64))
    table = HashTable("int64", "float32", value_shape=(3,), device=device, initializer=DRAWN[1])
    table.find_or_insert(keys)
    alone = HashTable("int64", "float32", value_shape=(3,), initializer=DRAWN[1])
    for part in np.array_split(keys, 30):  # too small to be shared
        alone.find_or_insert(part)
    same_bytes(table[keys], alone[keys])
    shared = HashTable("int64", "float32", value_shape=(3,), device=device, initializer=DRAWN[1])
    threads = [
        threading.Thread(target=lambda part=part: [shared.find_or_insert(each) for each in np.array_split(part, 10)])
        for part in (keys[:5000], keys[2000:7000], keys[:5000][::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same_bytes(shared[keys[:7000]], table[keys[:7000]])


def test_rows_come_again(native):
    """Values that are given win, keys that are there keep theirs, and an erased key returns with the same row."""
    table = HashTable(
        "int64", "float32", value_shape=(4,), device=native.table_device, initializer=DRAWN[2], default=7.0
    )
    keys = np.arange(-50, 50)
    mine = native.array(keys)
    table.find_or_insert(native.array(keys[:10]), 3.0)
    own = np.arange(40, dtype=np.float32).reshape(10, 4)
    table.find_or_insert(native.array(keys[10:20]), native.array(own))
    table[native.array(keys[20:30])] = 5.0
    is_new = table.find_or_insert(mine)[1]
    assert to_numpy(is_new).tolist() == [False] * 30 + [True] * 70
    drawn = expected_rows(DRAWN[2], keys, "float32", (4,))
    got = to_numpy(table[mine])
    same_bytes(got[:10], np.full((10, 4), 3.0, np.float32))
    same_bytes(got[10:20], own)
    same_bytes(got[20:30], np.full((10, 4), 5.0, np.float32))
    np.testing.assert_allclose(got[30:], drawn[30:], rtol=1e-6)
    same_bytes(table.find(native.array(np.array([1000])))[0], np.full((1, 4), 7.0, np.float32))
    table.erase(native.array(keys[::2]))
    table.find_or_insert(native.array(keys[::-1].copy()))
    again = to_numpy(table[mine])
    same_bytes(again[1::2], got[1::2])
    same_bytes(again[30:], got[30:])
    np.testing.assert_allclose(again[:30:2], drawn[:30:2], rtol=1e-6)


def test_setdefault(native):
    table = HashTable("int64", "float64", value_shape=(3,), device=native.table_device, initializer=DRAWN[1])
    keys = np.array([5, 6, 5, 7])
    table[native.array(keys[:1])] = 1.5
    got = to_numpy(table.setdefault(native.array(keys)))
    check_rows(got[[1, 3]], DRAWN[1], keys[[1, 3]], "float64", (3,))
    same_bytes(got[[0, 2]], np.full((2, 3), 1.5))
    same_bytes(table[native.array(keys)], got)
    check_rows(table.setdefault(9)[None], DRAWN[1], np.array([9]), "float64", (3,))
    same_bytes(table.setdefault(native.array(np.array([8])), 2.0), np.full((1, 3), 2.0))


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [
        ("int32", (3,), -7),
        ("bool", (5,), True),
        ("uint8", (1,), 200),
        ("bfloat16", (2, 2), 1.5),
        ("float16", (3,), -0.0),
        ("float64", (4,), math.nan),
        ("complex64", (2,), 1 - 2j),
        ("complex128", (), 3j),
    ],
)
def test_constants(native, dtype, shape, value):
    """Of every dtype; they are no answer for absent keys."""
    table = HashTable("int64", dtype, value_shape=shape, device=native.table_device, initializer=Constant(value))
    keys = native.array(np.arange(100))
    with pytest.raises(KeyError):
        table[keys]
    table.find_or_insert(keys)
    same_bytes(table[keys], np.full((100, *shape), value, numpy_dtype(dtype)))
    assert repr(table.initializer) == repr(Constant(np.array(value, numpy_dtype(dtype)).item()))


def test_distributions(device):
    """Mean, spread, range, and evenly filled parts."""
    keys = np.arange(40_000)
    count = len(keys) * 10

    def draw(initializer: Any, dtype: str = "float32") -> np.ndarray:
        table = HashTable("int64", dtype, value_shape=(10,), device=device, initializer=initializer)
        table.find_or_insert(keys)
        return to_numpy(table[keys]).astype(np.float64)

    standard = statistics.NormalDist()
    inside = 1 - 2 * standard.cdf(-2)
    shares = {
        Uniform(0.0, 1.0): lambda x: x,
        Normal(): lambda x: np.vectorize(standard.cdf)(x),
        TruncatedNormal(): lambda x: (np.vectorize(standard.cdf)(x) - standard.cdf(-2)) / inside,
    }
    deviations = {"Uniform": math.sqrt(1 / 12), "Normal": 1.0, "TruncatedNormal": 0.8796256610342398}
    for initializer, share in shares.items():
        for dtype in ("float32", "float64"):
            numbers = draw(initializer, dtype)
            deviation = deviations[kind_name(initializer)]
            mean = 0.5 if isinstance(initializer, Uniform) else 0.0
            assert abs(numbers.mean() - mean) < 5 * deviation / math.sqrt(count)
            assert abs(numbers.std() / deviation - 1) < 5 / math.sqrt(count)
            per_part = np.histogram(share(numbers), 100, (0, 1))[0]
            assert per_part.sum() == count
            chi_squared = ((per_part - count / 100) ** 2 / (count / 100)).sum()
            assert abs(chi_squared - 99) < 6 * math.sqrt(2 * 99)
            columns = np.corrcoef(numbers.T) - np.eye(10)
            assert np.abs(columns).max() < 6 / math.sqrt(len(keys)), "a row's elements have to do with each other"
            after = np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]
            assert abs(after) < 6 / math.sqrt(len(keys)), "rows of neighbouring keys have to do with each other"
    assert np.abs(draw(TruncatedNormal())).max() <= 2
    shifted = draw(TruncatedNormal(10.0, 2.0))
    assert 6 <= shifted.min() < 6.01
    assert 13.99 < shifted.max() <= 14
    assert (draw(Uniform(0.5, 0.5)) == 0.5).all()
    assert (draw(Normal(0.25, 0.0)) == 0.25).all()
    assert (draw(Normal(seed=1)) != draw(Normal(seed=2))).mean() > 0.999


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Uniform(1, 0), ValueError, "low is not to exceed high"),
        (lambda: Uniform(0, math.inf), ValueError, "finite"),
        (lambda: Uniform(0, 10**400), ValueError, "high=10.* finite"),
        (lambda: Normal(-(10**400)), ValueError, "finite"),
        (lambda: Uniform(-1.5e308, 1.5e308), ValueError, "no double"),
        (lambda: Normal(0, -1), ValueError, "negative"),
        (lambda: Normal(math.nan, 1), ValueError, "finite"),
        (lambda: TruncatedNormal(std=-0.1), ValueError, "negative"),
        (lambda: Normal("0"), TypeError, "a number"),
        (lambda: Normal(std=True), TypeError, "a number"),
        (lambda: Normal(std=1j), TypeError, "a number"),
        (lambda: Normal(seed=-1), ValueError, "2\\^64"),
        (lambda: Normal(seed=1 << 64), ValueError, "2\\^64"),
        (lambda: Normal(seed=1.0), TypeError, "an integer"),
    ],
)
def test_parameters_that_cannot_be(make, error, says):
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"initializer": "normal"}, TypeError, "gpuhash.initializers"),
        ({"initializer": Normal}, TypeError, "gpuhash.initializers"),
        ({"initializer": Normal(), "value_shape": ()}, ValueError, "lie beside their keys"),
        ({"initializer": Constant(1), "value_shape": ()}, ValueError, "lie beside their keys"),
        ({"initializer": Normal(), "value_dtype": "int32"}, TypeError, "float16, bfloat16, float32, float64"),
        ({"initializer": Normal(), "value_dtype": "complex128"}, TypeError, "float16, bfloat16, float32, float64"),
        ({"initializer": Uniform(0, 1e5), "value_dtype": "float16"}, ValueError, "end before that"),
        ({"initializer": Normal(1e300)}, ValueError, "end before that"),
        ({"initializer": Constant(1.5), "value_dtype": "int32"}, TypeError, "not an integer"),
        ({"initializer": Constant([1, 2])}, TypeError, "one number"),
        ({"initializer": Constant("a")}, TypeError, "constants of an initializer"),
        ({"initializer": Constant(300), "value_dtype": "uint8"}, OverflowError, "out of range"),
        ({"initializer": Constant(10**400)}, OverflowError, "does not hold"),
    ],
)
def test_tables_that_cannot_be(device, options, error, says):
    options = {"key_dtype": "int64", "value_dtype": "float32", "value_shape": (2,), "device": device, **options}
    with pytest.raises(error, match=says):
        HashTable(**options)


@pytest.mark.parametrize("initializer", DRAWN, ids=kind_name)
def test_classes_derived_from_them(device, initializer):
    kind = type("Own", (type(initializer),), {})
    own = kind(*(getattr(initializer, field.name) for field in dataclasses.fields(initializer)))
    tables = [
        HashTable("int64", "float32", value_shape=(3,), device=device, initializer=each) for each in (initializer, own)
    ]
    for table in tables:
        table.find_or_insert(np.arange(100))
    assert tables[0] == tables[1]
    assert pickle.loads(pickle.dumps(tables[1])).initializer == initializer


@pytest.mark.parametrize("kind", [type(each) for each in DRAWN])
def test_seeds_that_are_not_given(device, kind):
    """Tables draw with 0 then, so that those of several processes agree; with_seed asks for one where there is none."""
    parameters = {"low": -1.0, "high": 1.0} if kind is Uniform else {"std": 0.5}
    bare, zero = kind(**parameters), kind(**parameters, seed=0)
    assert bare.seed is None
    tables = [HashTable("int64", "float32", value_shape=(3,), device=device, initializer=each) for each in (bare, zero)]
    columns = HashTable("int64", {"a": gpuhash.Column("float32", (3,), bare)}, device=device)
    for table in (*tables, columns):
        table.find_or_insert(np.arange(50))
    assert tables[0] == tables[1]
    assert tables[0].initializer == zero
    same_bytes(columns[np.arange(50)]["a"], tables[0][np.arange(50)])
    assert initializers.with_seed(bare, lambda: 7) == kind(**parameters, seed=7)
    for kept in (zero, Constant(1)):
        assert initializers.with_seed(kept, lambda: 7) is kept


def test_sets_have_none(device):
    with pytest.raises(TypeError):
        HashSet("int64", device=device, initializer=Normal())  # type: ignore[call-arg]
    assert HashTable("int64", "float32", value_shape=(2,), device=device).initializer is None


@pytest.mark.parametrize("initializer", [*DRAWN, Constant(0.1)], ids=kind_name)
def test_kept(device, initializer, tmp_path: Path):
    """By copies, other devices and shards, pickles, files, names; and shown."""
    table = HashTable("int64", "float64", value_shape=(3,), device=device, initializer=initializer, name="kept")
    try:
        assert table.initializer == initializer
        assert repr(initializer) in repr(table)
        table.find_or_insert([1, 2])
        table.save(tmp_path / "table")
        twins = {
            "copy": table.copy(),
            "deepcopy": copy.deepcopy(table),
            "union": table | {},
            "shards": table.to([device, device]),
            "back": table.to([device, device]).to([device]),
            "host": table.to("cpu"),
            "shard": table.to([device, device]).shards[1],
            "pickle": pickle.loads(pickle.dumps(table)),
            "file": HashTable.load(tmp_path / "table", device=device),
            "name": gpuhash.open("kept"),
            "from_items": HashTable.from_items(
                [1], np.ones((1, 3)), device=device, initializer=initializer, value_dtype="float64"
            ),
        }
        table.find_or_insert([3, 4])
        expected = to_numpy(table[[3, 4]])
        for name, twin in twins.items():
            assert twin.initializer == initializer, name
            twin.find_or_insert([3, 4])
            same_bytes(twin[[3, 4]], expected)
    finally:
        table.close()


def test_files_that_say_nonsense():
    """Files without one load; those with another entry than save writes do not."""
    table = HashTable("int64", "float32", value_shape=(3,), initializer=DRAWN[0])
    plain = HashTable("int64", "float32", value_shape=(3,))
    contents = gpuhash.files.serialization.metadata_of(table._contents())
    assert "initializer" not in gpuhash.files.serialization.metadata_of(plain._contents())
    assert gpuhash.files.serialization.describe(contents).initializer == DRAWN[0]
    good = '{"kind": "normal", "parameters": [0.0, 1.0], "seed": 1}'
    assert gpuhash.files.serialization.describe({**contents, "initializer": good}).initializer == Normal(seed=1)
    for text in [
        "",
        "[]",
        "{}",
        "nonsense",
        good.replace("normal", "cauchy"),
        good.replace('"normal"', "[]"),
        good.replace("1.0", "-1.0"),
        good.replace("1.0", "NaN"),
        good.replace("1.0", "1e39"),
        good.replace("1.0", '"1"'),
        good.replace("[0.0, 1.0]", "[0.0]"),
        good.replace('"seed": 1', '"seed": -1'),
        good.replace('"seed": 1', '"seed": null'),
        good.replace('"seed": 1', '"seed": 1, "more": 2'),
        '{"kind": "constant", "value": "00"}',
        '{"kind": "constant", "value": 3}',
        '{"kind": "constant", "value": "zz"}',
    ]:
        with pytest.raises(ValueError, match="initializer"):
            gpuhash.files.serialization.describe({**contents, "initializer": text})
    for name, other in [("value_shape", "[]"), ("value_dtype", "int32")]:
        with pytest.raises(ValueError, match="initializer"):
            gpuhash.files.serialization.describe({**contents, name: other})


def test_the_paths_agree(native):
    """What C++ serves alone, and the general path."""
    table = HashTable("int64", "float32", value_shape=(3,), device=native.table_device, initializer=DRAWN[1])
    other = table.copy()
    keys = random_keys("int64", (), 300)
    served = table._fast.changes
    table.contains(native.array(keys[:3]))
    table.find_or_insert(native.array(keys))
    assert table._fast.changes == served + 1
    out = np.zeros(300, np.int64), np.zeros(300, bool)
    other.find_or_insert(keys[:, None].tolist())  # a list of lists, which C++ leaves to the general path
    assert other._fast.changes == served
    same_bytes(table[native.array(keys)], to_numpy(other[native.array(keys)]))
    if native.name == "numpy":
        table.find_or_insert(keys, out=out)
        assert not out[1].any()
        same_bytes(out[0], table.rows(keys))


def test_batches_of_shards(device):
    """A list of batches; rows are those of a table without shards."""
    table = HashTable("int64", "float32", value_shape=(5,), device=[device] * 3, initializer=DRAWN[0])
    keys = random_keys("int64", (), 900)
    _, is_new = table.find_or_insert([keys[:600], keys[300:]])
    assert int(is_new[0].sum()) + int(is_new[1].sum()) == 900
    check_rows(table[keys], DRAWN[0], keys, "float32", (5,))


@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "in-order"])
def test_cuda_graph(torch_cuda, deterministic):
    """Each replay draws the rows of the keys that are in the array then."""
    torch = torch_cuda
    table = HashTable(
        "int64",
        "float32",
        value_shape=(10,),
        device=GPU,
        capacity=4096,
        deterministic=deterministic,
        initializer=DRAWN[1],
    )
    keys = torch.arange(500, device=GPU)
    out = torch.zeros(500, dtype=torch.int64, device=GPU), torch.zeros(500, dtype=torch.bool, device=GPU)
    table.find_or_insert(keys, out=out)
    assert len(table) == 500
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.find_or_insert(keys, out=out)
    alone = HashTable("int64", "float32", value_shape=(10,), initializer=DRAWN[1])
    for replay in range(1, 5):
        batch = np.random.default_rng(replay).integers(0, 500 + 500 * replay, 500)
        before = set(to_numpy(table.keys()).tolist())
        keys.copy_(torch.from_numpy(batch))
        graph.replay()
        rows, is_new = (to_numpy(answer) for answer in out)
        assert set(batch[is_new].tolist()) == set(batch.tolist()) - before
        assert len(table) == len(before) + is_new.sum()
        alone.find_or_insert(batch)
        same_bytes(table[keys], alone[batch])
        same_bytes(to_numpy(table.row_storage)[rows], alone[batch])


def test_cuda_graph_without_room(torch_cuda):
    """A key that a replay finds no row for gets none drawn, and no other row is touched."""
    torch = torch_cuda
    table = HashTable("int64", "float32", value_shape=(10,), device=GPU, capacity=512, initializer=DRAWN[0])
    room = int(table.capacity * table.max_load_factor)
    keys = torch.arange(200, device=GPU)
    out = torch.zeros(200, dtype=torch.int64, device=GPU), torch.zeros(200, dtype=torch.bool, device=GPU)
    table.find_or_insert(keys, out=out)
    assert len(table) == 200
    graph = torch.cuda.CUDAGraph()
    with capture(graph):
        table.find_or_insert(keys, out=out)
    alone = HashTable("int64", "float32", value_shape=(10,), initializer=DRAWN[0])
    alone.find_or_insert(np.arange(2000))
    for first in (200, 400):
        keys.copy_(torch.arange(first, first + 200))
        graph.replay()
    with pytest.raises(gpuhash.TableFullError, match="are lost"):
        len(table)
    assert len(table) == room
    assert (to_numpy(out[0]) < 0).sum() == 600 - room
    held = to_numpy(table.keys())
    same_bytes(table[torch.from_numpy(held).to(GPU)], alone[held])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("initializer", DRAWN, ids=kind_name)
def test_gpu_and_host_agree(torch_cuda, initializer, dtype):
    """On many numbers, tails among them."""
    torch = torch_cuda
    keys = np.arange(20_000)
    host = HashTable("int64", dtype, value_shape=(50,), initializer=initializer)
    gpu = HashTable("int64", dtype, value_shape=(50,), device=GPU, initializer=initializer)
    host.find_or_insert(keys)
    gpu.find_or_insert(torch.from_numpy(keys).to(GPU))
    same_bytes(gpu[keys], host[keys])
