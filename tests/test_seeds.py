"""Seeds of the hash function: where keys lie, what keeps them, and keys that were picked to meet."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.hashing import hash_of, keys_of_first_part, keys_of_one_hash
from support.memory_resources import NumPyMemory
from support.samples import as_dict, items_of, random_values, same_bytes

import gpuhash
from gpuhash import HashSet, HashTable

KEYS = np.arange(0, 5000 * 977, 977)
SEED = 0xFEDCBA9876543210


@pytest.mark.parametrize("seed", [0, 1, SEED, (1 << 64) - 1])
@pytest.mark.parametrize("key_shape", [(), (2,)], ids=["int64", "int64x2"])
def test_keys_lie_in_the_order_of_their_hashes(on_device, key_shape, seed):
    """Few keys in many buckets: nearly all at home, and homes follow the high halves of the hashes."""
    keys = np.arange(500 * max(1, 2 * len(key_shape))).reshape(500, *key_shape) * 3
    table = HashSet("int64", key_shape=key_shape, device=on_device.table_device, capacity=1 << 20, seed=seed)
    table.add(on_device.array(keys))
    assert table.seed == seed
    homes = hash_of(to_numpy(table.keys()), seed) >> np.uint64(32)
    assert (np.diff(homes.astype(np.int64)) >= 0).mean() > 0.98
    others = hash_of(to_numpy(table.keys()), seed ^ 1) >> np.uint64(32)
    assert (np.diff(others.astype(np.int64)) >= 0).mean() < 0.6


def test_order_is_reproducible_unless_asked_otherwise(on_device):
    """In all on the host; within a bucket of the GPU's, lanes take slots as they come."""

    def order(**options):
        table = HashTable("int64", "int64", device=on_device.table_device, capacity=1 << 16, **options)
        table[on_device.array(KEYS)] = on_device.array(KEYS)
        return to_numpy(table.keys())

    def alike(a, b):
        return (a == b).all() if on_device.table_device == "cpu" else (a == b).mean() > 0.7

    assert alike(order(), order())
    assert alike(order(), order(seed=0))
    assert alike(order(seed=SEED), order(seed=SEED))
    assert (order(seed=SEED) == order()).mean() < 0.1
    assert (order(seed="random") == order(seed="random")).mean() < 0.1
    assert sorted(order(seed="random").tolist()) == KEYS.tolist()


@pytest.mark.parametrize("made", ["copy", "copy.copy", "deepcopy", "pickle", "file", "there and back"])
@pytest.mark.parametrize("kind", ["table", "set"])
def test_what_keeps_the_seed(device, tmp_path, kind, made):
    if kind == "table":
        table = HashTable("int64", "float32", device=device, seed="random")
        table[KEYS] = 1.5
    else:
        table = HashSet("int64", device=device, seed="random")
        table.add(KEYS)
    assert table.seed != 0

    def from_file():
        table.save(tmp_path / "table.safetensors")
        return type(table).load(tmp_path / "table.safetensors", device=device)

    other = {
        "copy": table.copy,
        "copy.copy": lambda: copy.copy(table),
        "deepcopy": lambda: copy.deepcopy(table),
        "pickle": lambda: pickle.loads(pickle.dumps(table)),
        "file": from_file,
        "there and back": lambda: table.to("cpu").to(device),
    }[made]()
    assert other.seed == table.seed
    assert other == table
    table.rehash(100_000)
    table.shrink_to_fit()
    assert other.seed == table.seed
    assert other == table


def test_a_name_leads_to_the_seed(device):
    table = HashTable("int64", "int64", device=device, seed=SEED, name="seeded")
    assert gpuhash.open("seeded").seed == SEED
    table.close()


@pytest.mark.parametrize(
    ("seed", "error"),
    [(-1, ValueError), (1 << 64, ValueError), ("fixed", TypeError), (1.0, TypeError), (b"random", TypeError)],
)
@pytest.mark.parametrize("kind", [HashSet, HashTable])
def test_seeds_that_are_none(kind, seed, error):
    with pytest.raises(error, match="seed"):
        kind("int64", *["int64"][: kind is HashTable], seed=seed)


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_a_flooded_table_takes_another_seed(native, value_shape):
    """Its items, its row numbers and all that is asked of it stay as they are."""
    keys = keys_of_one_hash(6000)
    values = random_values("int64", (len(keys), *value_shape))
    table = HashTable("int64", "int64", key_shape=(2,), value_shape=value_shape, device=native.table_device)
    assert table.seed == 0
    half = len(keys) // 2
    assert to_numpy(table.insert(native.array(keys[:half]), native.array(values[:half]))).all()
    before = to_numpy(table.rows(native.array(keys[:half]))) if value_shape else None
    assert len(table) == half
    table.insert_or_assign(native.array(keys), native.array(values))
    assert len(table) == len(keys)
    table[native.array(keys[:1])] = native.array(values[:1])
    assert table.seed != 0
    assert items_of(table) == as_dict(keys, values)
    same_bytes(table[native.array(keys)], values)
    if value_shape:
        same_bytes(table.rows(native.array(keys[:half])), before)
    assert to_numpy(table.erase(native.array(keys[::2]))).all()
    same_bytes(table.contains(native.array(keys)), np.arange(len(keys)) % 2 == 1)
    assert table.copy().seed == table.seed


def test_one_key_after_the_other_is_a_flood_as_well():
    keys = keys_of_one_hash(3000)
    table = HashTable("int64", "int64", key_shape=(2,))
    for number, key in enumerate(keys.tolist()):
        table[tuple(key)] = number
    assert table.seed != 0
    same_bytes(table[keys], np.arange(len(keys)))


def test_full_tables_are_not_taken_for_flooded(native):
    """Where all slots are taken, keys lie far from home by chance; so do they after long churn."""
    table = HashTable("int64", "int64", device=native.table_device, capacity=20_000, growth=False)
    rng = np.random.default_rng(0)
    keys = rng.permutation(1 << 22)[: table.capacity]
    table[native.array(keys)] = 1
    for _ in range(5):
        gone = rng.choice(keys, 4000, replace=False)
        assert to_numpy(table.erase(native.array(gone))).all()
        assert to_numpy(table.insert(native.array(gone), 1)).all()
        assert len(table) == table.capacity
    assert table.seed == 0
    grown = HashTable("int64", "int64", device=native.table_device, max_load_factor=0.9)
    for batch in np.split(np.arange(1 << 18) * 7, 64):
        grown[native.array(batch)] = 1
        assert len(grown) > 0
    assert grown.seed == 0


@pytest.fixture(params=[1, 3])
def threads(request):
    before = gpuhash.get_num_threads()
    gpuhash.set_num_threads(request.param)
    yield request.param
    gpuhash.set_num_threads(before)


@pytest.mark.parametrize("kind", ["scalars", "set", "rows", "columns"])
@pytest.mark.parametrize("when", ["at once", "in the middle", "at the end"])
def test_a_flood_is_noticed_in_the_middle_of_a_batch(threads, when, kind):
    """The table takes another seed, and nothing is lost. How long it takes: ``python -m benchmarks.gates``."""
    count = 1 << 18 if threads > 1 else 1 << 16
    before = {"at once": 0, "in the middle": count // 2, "at the end": count - 2000}[when]
    rng = np.random.default_rng(0)
    others = rng.integers(0, 1 << 62, (count, 2))
    keys = np.concatenate([others[:before], keys_of_one_hash(count - before)])
    keys[count - 100 :] = keys[:100]  # some come twice
    values = np.arange(count)

    if kind == "set":
        table = HashSet("int64", key_shape=(2,))
        was_new = table.add(keys)
    elif kind == "columns":
        table = HashTable("int64", {"a": "int64"}, key_shape=(2,))
        was_new = table.insert_or_apply(keys, {"a": values}, "add")
    else:
        table = HashTable("int64", "int64", key_shape=(2,), value_shape=(1,) if kind == "rows" else ())
        was_new = table.insert_or_apply(keys, values.reshape(-1, *table.value_shape), "add")
    assert table.seed != 0
    assert len(table) == count - 100
    np.testing.assert_array_equal(was_new, np.arange(count) < count - 100)
    expected = values.copy()
    expected[:100] += values[count - 100 :]
    expected[count - 100 :] = expected[:100]
    if kind == "set":
        assert table.contains(keys).all()
    else:
        got = table[keys]["a"] if kind == "columns" else table[keys]
        np.testing.assert_array_equal(got.ravel(), expected)


@pytest.mark.parametrize("values", ["one", "each"])
def test_a_flood_is_noticed_beside_a_hot_key(threads, values):
    """Keys that come often are combined before the others are inserted."""
    rng = np.random.default_rng(0)
    picked = keys_of_one_hash(20_000)
    others = rng.integers(0, 1 << 62, picked.shape)
    order = rng.permutation(4 * len(picked))

    keys = np.concatenate([np.tile(others[:1], (3 * len(picked), 1)), picked])[order]
    table = HashTable("int64", "int64", key_shape=(2,))
    table.insert_or_apply(keys, 1 if values == "one" else np.ones(len(keys), np.int64), "add")
    assert table.seed != 0
    assert len(table) == len(picked) + 1
    assert table[others[:1]][0] == 3 * len(picked)
    assert (table[picked] == 1).all()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the table is good without the seed
@pytest.mark.parametrize("kind", [MemoryError, ValueError, KeyboardInterrupt])
def test_memory_that_cannot_be_had_for_another_seed(kind):
    """Whatever a resource raises while the table is rebuilt in the middle of a batch, the batch is whole or not in."""

    class Failing(NumPyMemory):
        def allocate(self, nbytes, stream=None):
            self.left -= 1
            if self.left == -1:
                raise kind("no memory")
            return super().allocate(nbytes, stream)

    keys = keys_of_one_hash(4000)
    for failing in range(12):
        memory = Failing()
        memory.left = 1 << 30
        table = HashTable("int64", "int64", key_shape=(2,), memory=memory, seed=0)
        table.reserve(2 * len(keys))
        memory.left = failing
        try:
            table.insert(keys, 1)
        except kind:
            assert len(table) == 0
        else:
            assert len(table) == len(keys)
            assert table.contains(keys).all()


@pytest.mark.parametrize("routine", ["unique", "factorize", "isin"])
def test_factorization_of_picked_keys(on_device, routine):
    """Keys that lie close together by the hash of tables without a seed. Their time: ``python -m benchmarks.gates``."""
    picked = keys_of_first_part(np.arange(1 << 23), 60_000)
    keys = on_device.array(picked)
    if routine == "isin":
        assert to_numpy(gpuhash.isin(keys, keys)).all()
    elif routine == "unique":
        same_bytes(gpuhash.unique(keys), picked)
    else:
        same_bytes(gpuhash.factorize(keys).codes, np.arange(len(picked)))
