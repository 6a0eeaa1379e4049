"""Tables and sets whose keys are strings."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import random
import threading
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.frameworks import module, spread, to_numpy

import gpuhash
from gpuhash import HashMultiMap, HashSet, HashTable
from gpuhash.files import serialization
from gpuhash.keys import strings as string_keys
from gpuhash.keys.strings import StringKeys

WORDS = ["", "a", "b", "ab", "a\0", "\0", "a\0b", "äöü", "日本", "🦀", "red", "green" * 40]
dtypes = pytest.mark.parametrize("dtype", ["str", "bytes"])


@pytest.fixture
def device(device, shards):
    """What ``device=`` is given for a table here, a single one or one of shards."""
    return spread(device, shards)


def of_dtype(words: list[str], dtype: str) -> list:
    return words if dtype == "str" else [word.encode() for word in words]


def random_words(count: int, dtype: str = "str", seed: int = 0) -> list:
    """Different ones, of 0 to 30 characters."""
    draw = random.Random(seed)
    letters = "abcdefgh\0éß漢🦀"
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(draw.choices(letters, k=draw.randrange(31)))] = None
    return of_dtype(list(words), dtype)


@pytest.fixture
def colliding(monkeypatch):
    """All fingerprints are one of three."""

    def fingerprint(_: StringKeys, strings):
        return (np.diff(strings.offsets) % 3).astype(np.uint64) - np.uint64(1)  # 2^64 - 1 among them

    monkeypatch.setattr(StringKeys, "_fingerprint", fingerprint)


@pytest.fixture
def small_stores(monkeypatch):
    """Stores are looked through at once."""
    monkeypatch.setattr(string_keys, "_LEAST_COMPACTED", 64)


@dtypes
def test_calls_against_dict(device, dtype):
    words = of_dtype(WORDS, dtype)
    table = HashTable(dtype, "int64", device=device, deterministic=True)
    assert table.insert(words[:6] * 2, np.arange(12)).tolist() == [True] * 6 + [False] * 6
    model = dict(zip(words[:6], range(6), strict=True))
    assert table == model
    assert table.find(words, -1)[0].tolist() == [model.get(word, -1) for word in words]
    assert table.contains(words).tolist() == [word in model for word in words]
    assert table.get(words, -2).tolist() == [model.get(word, -2) for word in words]
    assert [table.get(word) for word in words] == [model.get(word) for word in words]
    assert [word in table for word in words] == [word in model for word in words]
    assert table.insert_or_assign(words[4:8], [10, 11, 12, 13]).tolist() == [False, False, True, True]
    model.update(zip(words[4:8], [10, 11, 12, 13], strict=True))
    table.insert_or_apply(words[:3] + words[:2] + words[9:], 5, "add")
    for word in words[:3] + words[:2]:
        model[word] += 5
    model.update(dict.fromkeys(words[9:], 5))
    assert table == model
    values, is_new = table.apply_and_find(words[8:10], 3, "add")
    assert values.tolist() == [3, 8]
    assert is_new.tolist() == [True, False]
    model[words[8]], model[words[9]] = 3, 8
    assert table.setdefault(words, 99).tolist() == [model.setdefault(word, 99) for word in words]
    assert table.pop(words[0]) == model.pop(words[0])
    assert table.pop(words[0], "none") == "none"
    assert table.pop(words[1:3]).tolist() == [model.pop(word) for word in words[1:3]]
    assert table.erase(words[:4]).tolist() == [False, False, False, True]
    del model[words[3]]
    del table[words[4]], model[words[4]]
    assert table == model
    assert dict(zip(list(table), to_numpy(table.values()).tolist(), strict=True)) == model
    table.update({words[0]: 7, words[5]: 8})
    model.update({words[0]: 7, words[5]: 8})
    assert table | {words[1]: 1} == model | {words[1]: 1}
    assert {words[0]: 1, words[1]: 1} | table == {words[0]: 1, words[1]: 1} | model
    assert dict(table) == model
    key, value = table.popitem()
    assert model.pop(key) == value
    assert sorted(table) == sorted(model)
    table.clear()
    assert len(table) == 0
    assert not table.contains(words).any()
    assert table.key_dtype == dtype
    assert repr(table).startswith(f"<HashTable {dtype} -> int64, size=0")


@dtypes
def test_absent_keys(device, dtype):
    red, blue, grey = of_dtype(["red", "blue", "grey"], dtype)
    table = HashTable(dtype, "int64", device=device)
    table[red] = 1
    with pytest.raises(KeyError, match=r"2 of 3 keys are absent: .*blue.*grey"):
        table[[red, blue, grey]]
    with pytest.raises(KeyError):
        table[blue]
    with pytest.raises(KeyError, match="1 of 2 keys are absent"):
        del table[[red, blue]]
    assert table == {red: 1}
    counts = HashTable(dtype, "int64", device=device, default=0)
    assert counts[blue] == 0
    assert counts[[blue, red]].tolist() == [0, 0]
    assert len(counts) == 0


SOURCES = {
    "list": list,
    "tuple": tuple,
    "U": lambda words: np.array(words),
    "StringDType": lambda words: np.array(words, np.dtypes.StringDType()),
    "objects": lambda words: np.array(words, object),
    "pandas": lambda words: pd.Series(words, dtype="str"),
    "pandas-objects": lambda words: pd.Series(words, dtype=object),
    "categories": lambda words: pd.Series(words, dtype="category"),
    "index": lambda words: pd.Index(words),
    "polars": lambda words: pytest.importorskip("polars").Series(words),
    "pyarrow": lambda words: module("pyarrow").array(words),
    "chunks": lambda words: module("pyarrow").chunked_array([words[:2], words[2:]]),
    "large": lambda words: module("pyarrow").array(words, "large_string"),
    "views": lambda words: module("pyarrow").array(words, "string_view"),
    "dictionary": lambda words: module("pyarrow").array(words).dictionary_encode(),
}
#: NumPy's strings of a fixed width end before their last zeros.
NO_ZEROS = ["red", "", "äöü", "red", "日本🦀", "blue"]


@pytest.mark.parametrize("source", SOURCES)
def test_sources_of_text(device, source):
    keys = SOURCES[source](NO_ZEROS)
    table = HashTable("str", "int64", device=device)
    table.insert_or_apply(keys, 1, "add")
    assert table == Counter(NO_ZEROS)
    assert table[keys].tolist() == [Counter(NO_ZEROS)[word] for word in NO_ZEROS]
    made = HashTable.from_items(SOURCES[source](NO_ZEROS[2:]), np.arange(4), device=device)
    assert made == {word: number for number, word in enumerate(NO_ZEROS[2:])}
    assert HashSet.from_keys(keys, device=device) == set(NO_ZEROS)


@pytest.mark.parametrize("make", [list, np.array, lambda words: module("pyarrow").array(words)])
def test_sources_of_bytes(device, make):
    words = [b"red", b"\xff\xfe", b"red", b"", b"b"]
    table = HashTable("bytes", "float32", device=device)
    table.insert_or_apply(make(words), 1, "add")
    assert table == Counter(words)


def test_batches_have_any_shape(device):
    words = np.array(random_words(24), np.dtypes.StringDType()).reshape(2, 3, 4)
    table = HashTable("str", ("float64"), value_shape=2, device=device)
    table[words] = np.arange(48.0).reshape(2, 3, 4, 2)
    assert table[words].tolist() == np.arange(48.0).reshape(2, 3, 4, 2).tolist()
    assert table[words[:, ::2, 1]].tolist() == np.arange(48.0).reshape(2, 3, 4, 2)[:, ::2, 1].tolist()
    rows, is_new = table.find_or_insert(words)
    assert not is_new.any()
    assert table.rows(words).tolist() == rows.tolist()


def test_empty_batches(device):
    table = HashTable("str", "int64", device=device)
    for empty in ([], (), np.empty(0, object), np.empty((0, 3), "U4"), pd.Series([], dtype="str")):
        assert table.insert(empty, 0).size == 0
        assert table.contains(empty).shape == np.shape(empty)
    assert len(table) == 0
    assert len(HashTable.from_items([], [], key_dtype="str", device=device)) == 0


@dtypes
def test_forms_of_keys(device, dtype):
    words = of_dtype(WORDS, dtype)
    table = HashTable.from_items(words, np.arange(len(words)), device=device)
    keys, values = table.items()
    assert keys.dtype == (np.dtypes.StringDType() if dtype == "str" else np.dtype(object))
    assert [words[value] for value in to_numpy(values).tolist()] == keys.tolist()
    assert table.keys().tolist() == keys.tolist()
    assert table.keys(like="torch").tolist() == keys.tolist()
    for like in ("list", "pandas", "polars", "pyarrow", ["a"], pd.Series(words[1:2]), keys[:1]):
        if isinstance(like, str) and module("pandas" if like == "list" else like) is None:
            continue
        given, others = table.items(like=like)
        assert list(given.to_pylist() if hasattr(given, "to_pylist") else given) == keys.tolist()
        assert to_numpy(others).tolist() == to_numpy(values).tolist()
    assert isinstance(table.keys(like="list"), list)
    with pytest.raises((TypeError, ValueError), match="nothing"):
        table.keys(like="nothing")
    with pytest.raises(TypeError, match="equal none of them"):
        table.keys(like=pd.Series([b"a" if dtype == "str" else "a"]))


def test_100_000_random_strings(device):
    words = random_words(100_000)
    table = HashTable("str", "int64", device=device)
    for start in range(0, len(words), 7919):  # grows
        assert table.insert(words[start : start + 7919], np.arange(start, min(start + 7919, len(words)))).all()
    order = np.random.default_rng(0).permutation(len(words))
    shuffled = [words[place] for place in order]
    assert (table[shuffled] == order).all()
    absent = [word + "x" for word in words]
    model = dict(zip(words, range(len(words)), strict=True))
    assert table.find(absent, -1)[0].tolist() == [model.get(word, -1) for word in absent]
    assert len(table) == len(words)
    assert set(table) == set(words)
    duplicates = random.Random(1).choices(words, k=300_000)
    counts = HashTable("str", "int64", device=device)
    assert counts.insert_or_apply(duplicates, 1, "add").sum() == len(set(duplicates))
    assert counts == Counter(duplicates)


@dtypes
def test_colliding_fingerprints(device, colliding, small_stores, dtype):
    words = random_words(300, dtype)
    table = HashTable(dtype, "int64", device=device, deterministic=True)
    assert table.insert(words + words, np.arange(600)).sum() == 300
    assert table[words[::-1]].tolist() == list(range(300))[::-1]
    assert table.erase(words[:200]).all()
    assert table.contains(words).tolist() == [False] * 200 + [True] * 100
    table[words[150:]] = np.arange(150, 300)
    assert table == dict(zip(words[150:], range(150, 300), strict=True))
    assert table.copy() == table


@pytest.mark.parametrize("collisions", [False, True], ids=["apart", "colliding"])
def test_state_machine(device, collisions, request, small_stores):
    if collisions:
        request.getfixturevalue("colliding")

    class TableAgainstDict(RuleBasedStateMachine):
        """Sends every batch to a table and to a dict; both must tell the same story."""

        words = st.sampled_from([f"{'w' * (number % 7)}{number}" for number in range(30)] + WORDS)
        batches = st.lists(words, max_size=12)

        def __init__(self):
            super().__init__()
            self.table = HashTable("str", "int64", device=device, deterministic=True)
            self.model = {}

        @rule(batch=batches, value=st.integers(-9, 9))
        def assign(self, batch, value):
            new = self.table.insert_or_assign(batch, value)
            assert new.sum() == len(set(batch) - self.model.keys())
            self.model.update(dict.fromkeys(batch, value))

        @rule(batch=batches)
        def count(self, batch):
            self.table.insert_or_apply(batch, 1, "add")
            for word in batch:
                self.model[word] = self.model.get(word, 0) + 1

        @rule(batch=batches)
        def erase(self, batch):
            assert self.table.erase(batch).sum() == len(set(batch) & self.model.keys())
            for word in batch:
                self.model.pop(word, None)

        @rule(batch=batches)
        def find(self, batch):
            assert self.table.find(batch, -99)[0].tolist() == [self.model.get(word, -99) for word in batch]

        @rule(word=words)
        def pop(self, word):
            assert self.table.pop(word, None) == self.model.pop(word, None)

        @rule()
        def clear(self):
            self.table.clear()
            self.model.clear()

        @rule(way=st.sampled_from(["copy", "pickle", "update", "compact"]))
        def replace(self, way):
            if way == "copy":
                old, self.table = self.table, self.table.copy()
                old[["another"]] = 1  # of no meaning for the copy
            elif way == "pickle":
                self.table = pickle.loads(pickle.dumps(self.table))
            elif way == "update":
                other = HashTable("str", "int64", device=device, deterministic=True)
                other.update(self.table)
                self.table = other
            else:
                self.table._string_keys.compact(self.table._numbers_of_keys)

        @rule()
        def fail(self):
            with pytest.raises((TypeError, ValueError)):
                self.table.insert(["failed", "w1"], np.zeros(7, np.float32))

        @invariant()
        def same_items(self):
            assert self.table == self.model
            keys, values = self.table.items()
            assert dict(zip(keys.tolist(), to_numpy(values).tolist(), strict=True)) == self.model

    TableAgainstDict.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    TableAgainstDict.TestCase("runTest").runTest()


def test_erased_strings_give_their_memory_back(device):
    table = HashTable("str", "int64", device=device)
    table["stays"] = -1
    most = 0
    for turn in range(30):
        words = [f"{turn} {number} {'x' * 100}" for number in range(2000)]
        table[words] = np.arange(2000)
        most = max(most, table._string_keys.nbytes)
        assert table.erase(words).all()
        assert table["stays"] == -1
    assert most < 10 * 2000 * 130  # of 30 turns' strings
    assert table.nbytes >= table._string_keys.nbytes
    table.clear()
    assert table._string_keys.count == 0


@pytest.mark.parametrize("shards", [3], indirect=True)
def test_shards_share_their_strings(device, small_stores):
    """A shard is a table of strings, too, and what is done to it lets go of no string of the others."""
    words = random_words(400)
    table = HashTable("str", "int64", device=device)
    table[words] = np.arange(400)
    model = dict(zip(words, range(400), strict=True))
    first = table.shards[0]
    own = list(first)
    assert first == {word: model[word] for word in own}
    assert 0 < len(own) < 400
    assert first.erase(words).sum() == len(own)
    first.clear()
    for word in own:
        del model[word]
    assert table == model
    assert not table.contains(own).any()
    for turn in range(5):
        table[[f"{turn} {number}" for number in range(500)]] = 1
        table.shards[1].erase([f"{turn} {number}" for number in range(500)])
        table.erase([f"{turn} {number}" for number in range(500)])
    assert table == model
    copied = table.shards[1].copy()
    table.clear()
    assert copied == {word: model[word] for word in copied}
    assert len(copied) > 0


@pytest.mark.parametrize("shards", [3], indirect=True)
def test_lists_of_batches(device, small_stores):
    """A list of arrays is a list of batches, as for other tables of several shards."""
    table = HashTable("str", "int64", device=device)
    batches = [np.array(["a", "b"]), pd.Series(["c", "a"], dtype="str"), np.array([], "U1")]
    new = table.insert_or_apply(batches, [np.array([1, 2]), np.array([3, 4]), 0], "add")
    assert sum(mask.sum() for mask in new) == 3
    assert table == {"a": 5, "b": 2, "c": 3}
    assert [values.tolist() for values in table.find(batches)[0]] == [[5, 2], [3, 5], []]
    assert [mask.tolist() for mask in table.erase([np.array(["b"]), np.array(["x", "c"])])] == [[True], [False, True]]
    assert table == {"a": 5}
    for turn in range(20):
        words = [np.array([f"{turn} {number}" for number in range(100)]) for _ in range(2)]
        table.insert(words, 1)
        table.erase(words)
    assert table._string_keys.count < 1000


def test_calls_that_fail_give_their_strings_back(device):
    table = HashTable("str", "int64", device=device, capacity=64, growth=False)
    table["stays"] = -1
    for turn in range(20):
        with pytest.raises(gpuhash.TableFullError):
            table[[f"{turn} {number} {'x' * 100}" for number in range(3000)]] = 0
        gc.collect()
    assert table == {"stays": -1}
    assert table._string_keys.nbytes < 8 * 3000 * 150


@dtypes
@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "save", "load", "update", "from_items", "to"])
def test_duplicates_of_a_table(device, tmp_path, dtype, way):
    words = random_words(500, dtype)
    table = HashTable(dtype, {"x": "float32", "y": ("int16", (2,))}, device=device, default={"x": -1})
    values = {"x": np.arange(500, dtype=np.float32), "y": np.arange(1000, dtype=np.int16).reshape(500, 2)}
    table[words] = values
    table.erase(words[:100])
    if way in ("save", "load"):
        table.save(tmp_path / "table")
        load = gpuhash.load if way == "load" else HashTable.load
        twin = load(tmp_path / "table", device=device)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(table))
    elif way == "update":
        twin = HashTable(dtype, table.columns, device=device, default={"x": -1})
        twin["other" if dtype == "str" else b"other"] = {"x": 1}
        twin.update(table)
        twin.erase(["other"] if dtype == "str" else [b"other"])
    elif way == "from_items":
        twin = HashTable.from_items(table, device=device, default={"x": -1})
    elif way == "to":
        twin = table.to("cpu").to(device)
    else:
        twin = table.copy() if way == "copy" else copy.deepcopy(table)
    assert twin.key_dtype == dtype
    assert twin == table
    assert twin[words]["x"].tolist() == [-1.0] * 100 + list(range(100, 400 + 100))
    assert twin[words[100:]]["y"].tolist() == values["y"][100:].tolist()
    twin[words[:50]] = {"x": 5}
    assert not table.contains(words[:50]).any() or way == "to"


@dtypes
def test_copies_go_apart(device, dtype):
    words = random_words(400, dtype)
    table = HashSet.from_keys(words[:200], device=device)
    twin = table.copy()
    table.add(words[200:300])
    twin.add(words[300:])
    assert set(table) == set(words[:300])
    assert set(twin) == set(words[:200] + words[300:])


@dtypes
def test_sets(device, dtype, tmp_path):
    words = of_dtype(WORDS, dtype)
    a, b = set(words[:8]), set(words[4:])
    first, second = HashSet.from_keys(a, device=device), HashSet(dtype, device=device)
    assert second.add(words[4:] * 2).sum() == len(b)
    assert first == a
    assert set(first | second) == a | b
    assert set(first & second) == a & b
    assert set(first - second) == a - b
    assert set(first ^ second) == a ^ b
    assert set(first & b) == a & b
    assert set(b - first) == b - a
    assert first >= {words[0]}
    assert not first <= second
    assert first.isdisjoint({words[10]})
    assert set(np.asarray(first).tolist()) == a
    assert words[0] in first
    first.remove(words[0])
    first.discard([words[0], words[1]])
    key = first.pop()
    assert key in a
    assert set(first) == a - {words[0], words[1], key}
    first.update(second, [words[0]])
    assert set(first) >= b | {words[0]}
    assert pickle.loads(pickle.dumps(first)) == first
    first.save(tmp_path / "set")
    assert gpuhash.load(tmp_path / "set", device=device) == first
    assert repr(first).startswith(f"<HashSet {dtype}, size=")
    other = HashSet("bytes" if dtype == "str" else "str", device=device)
    assert first != other
    with pytest.raises(TypeError, match="cannot take the items"):
        first.union(other)
    with pytest.raises(TypeError, match="cannot be combined"):
        first.intersection(other)


def test_threads(device):
    """Counts of several threads, beside lookups, erasures and compactions."""
    words = random_words(600)
    table = HashTable("str", "int64", device=device)
    others = [f"{word} passes" for word in words]
    errors: list[BaseException] = []
    done = threading.Event()

    def guarded(work):
        def run():
            try:
                work()
            except BaseException as error:
                errors.append(error)

        return threading.Thread(target=run)

    def count(seed):
        draw = random.Random(seed)
        for _ in range(40):
            table.insert_or_apply(draw.sample(words, 300), 1, "add")

    def pass_by():
        while not done.is_set():
            table[others] = 7
            assert set(table.find(others, 7)[0].tolist()) == {7}
            table.erase(others)
            table._string_keys.compact(table._numbers_of_keys)

    def look():
        known = set(words) | set(others)
        while not done.is_set():
            keys, values = table.items(like="numpy")
            assert known.issuperset(keys.tolist())
            assert values.min(initial=1) >= 1
            with contextlib.suppress(RuntimeError):  # "changed its size during iteration"
                assert known.issuperset(table)

    counters = [guarded(lambda seed=seed: count(seed)) for seed in range(3)]
    beside = [guarded(pass_by), guarded(look)]
    for thread in counters + beside:
        thread.start()
    for thread in counters:
        thread.join()
    done.set()
    for thread in beside:
        thread.join()
    assert not errors
    expected: Counter = Counter()
    for seed in range(3):
        draw = random.Random(seed)
        for _ in range(40):
            expected.update(draw.sample(words, 300))
    assert table == expected


def test_nulls_are_refused(device):
    table = HashTable("str", "int64", device=device)
    columns = [pd.Series(["a", None], dtype="str")]
    if (arrow := module("pyarrow")) is not None:
        columns.append(arrow.array(["a", None]))
    columns.append(np.ma.MaskedArray(["a", "b"], [False, True]))
    for column in columns:
        with pytest.raises(ValueError, match="the keys have nulls, in 1 of 2 entries"):
            table[column] = 1
        with pytest.raises(ValueError, match="nulls"):
            table.contains(column)
    with pytest.raises(TypeError, match="item 1 is None"):
        table.contains(["a", None])
    assert len(table) == 0


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (3, "given, 3, to a table whose keys are text: give strings"),
        ([1, 2], "a list of int"),
        (np.arange(3), "a ndarray of int64"),
        (pd.Series([1.5]), "a Series of float64"),
        (None, "given, None"),
        ([["a"]], "a list of list"),
        (b"a", "the keys are bytes, and those of the table text"),
        ([b"a"], "keys.decode"),
        (["a", 1], "their item 1 is 1"),
    ],
    ids=repr,
)
def test_what_is_no_text_is_refused(device, keys, text):
    table = HashTable("str", "int64", device=device)
    table["a"] = 1
    for call in (table.__getitem__, table.contains, table.erase, lambda keys: table.insert(keys, 1)):
        with pytest.raises(TypeError, match=text):
            call(keys)
    with pytest.raises(TypeError, match=text):
        keys in table  # noqa: B015
    assert table == {"a": 1}


def test_what_is_no_bytes_is_refused(device):
    table = HashTable("bytes", "int64", device=device)
    with pytest.raises(TypeError, match=r"keys\.encode\(\), or make the table with the key dtype 'str'"):
        table[["a"]] = 1
    with pytest.raises(ValueError, match="surrogate"):
        HashTable("str", "int64", device=device).contains(["\ud800"])


def test_strings_for_tables_of_integers_are_refused(device):
    table = HashTable("int64", "int64", device=device)
    for keys in ("a", ["a"], np.array(["a"]), pd.Series(["a"])):
        with pytest.raises(TypeError, match="strings"):
            table.contains(keys)


@pytest.mark.parametrize("dtype", [str, bytes, np.dtypes.StringDType(), np.dtypes.StringDType])
def test_dtypes_of_strings(dtype):
    assert HashSet(dtype).key_dtype == ("bytes" if dtype is bytes else "str")


def test_what_tables_of_strings_do_not_have(device):
    with pytest.raises(ValueError, match=r"key_shape=\(2,\)"):
        HashTable("str", "int64", key_shape=2)
    with pytest.raises(ValueError, match="strings, which belong to one object"):
        HashTable("str", "int64", name="strings")
    with pytest.raises(TypeError, match="keys of a HashMultiMap are integers"):
        HashMultiMap("str", "int64")
    with pytest.raises(TypeError, match="cannot take the items"):
        HashTable("str", "int64").update(HashTable("bytes", "int64"))
    assert HashTable("str", "int64") != HashTable("bytes", "int64")


def test_graphs_have_no_strings(device):
    table = HashTable("str", "int64", device=device)
    if module("torch") is not None:
        from gpuhash.torch import TableModule

        with pytest.raises(TypeError, match="graphs of PyTorch have no strings as keys"):
            TableModule(table)
    if module("jax") is not None:
        import gpuhash.jax

        with pytest.raises(TypeError, match="JAX has no strings as keys"):
            gpuhash.jax.from_table(table)


def file_of(offsets: list[int], data: bytes, dtype: str = "str") -> bytes:
    """What a set of these strings would be written as, with whatever offsets."""
    contents = HashSet(dtype)._contents()
    contents.strings.offsets = np.array(offsets, np.int64)
    contents.strings.data = np.frombuffer(data, np.uint8)
    return serialization.to_bytes(contents)


@pytest.mark.parametrize(
    ("offsets", "data", "text"),
    [
        ([0, 3, 2], b"abc", "ascending"),
        ([0, 2], b"abc", "from 0 to 3"),
        ([1, 3], b"abc", "from 0 to 3"),
        ([0, -1, 3], b"abc", "ascending"),
        ([0, 1 << 62], b"abc", "from 0 to 3"),
        ([], b"", "different lengths"),
        ([0, 2], b"\xff\xfe", "no text"),
        ([0, 1, 2], "ä".encode(), "within a character"),
        ([0, 1, 2], b"aa", "only 1 are distinct"),
        ([0, 0, 0], b"", "only 1 are distinct"),
    ],
)
def test_damaged_files_are_refused(device, offsets, data, text):
    def load(file):
        return HashSet._restore(serialization.from_bytes(file), device, None, None)

    assert load(file_of([0, 1, 1, 3], b"abc")) == {"a", "", "bc"}
    assert load(file_of([0, 1, 2], b"\xff\xfe", "bytes")) == {b"\xff", b"\xfe"}
    with pytest.raises(ValueError, match=text):
        load(file_of(offsets, data))


@pytest.mark.parametrize(
    "changed", [{"key_shape": "[2]"}, {"key_dtype": "text"}, {"key_columns": '[["a", "int8"]]'}, {"kind": "multimap"}]
)
def test_files_with_other_metadata_are_refused(changed):
    metadata = {**serialization.metadata_of(HashTable("str", "int64")._contents()), **changed}
    with pytest.raises(ValueError, match="key"):
        serialization.describe(metadata)
