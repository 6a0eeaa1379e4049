"""Outputs in the memory of a call's own keys, values and defaults, and of the table's rows: against calls on copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.frameworks import Framework, module, to_numpy
from support.samples import same_bytes

from gpuhash import Column, HashSet, HashTable, initializers

COUNTS = [1, 500, 100_000]


def carve(native: Framework, nbytes: int) -> Any:
    """Bytes of the framework, from which views of any dtype are cut: [nbytes], uint8."""
    return native.array(np.zeros(nbytes + 64, np.uint8))


def view(memory: Any, start: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """The array of that dtype which begins at byte `start` of the memory."""
    length = int(np.prod(shape)) * np.dtype(dtype).itemsize
    part = memory[start : start + length]
    name = dtype if isinstance(memory, np.ndarray) else getattr(module("torch"), dtype)
    return part.view(name).reshape(shape)


def fill(target: Any, host: np.ndarray) -> None:
    if isinstance(target, np.ndarray):
        target[...] = host
    else:
        target.copy_(module("torch").from_numpy(host.copy()))


def ids(count: int) -> np.ndarray:
    return np.random.default_rng(count).permutation(2 * count)[:count].astype(np.int64)


def translation(native: Framework, count: int, **options: Any) -> tuple[HashTable, np.ndarray, np.ndarray]:
    """A table of half of the ids; the ids; what each is translated into, -5 where it is absent."""
    keys = ids(count)
    table = HashTable("int64", "int64", device=native.table_device, **options)
    table[native.array(keys[::2])] = native.array(keys[::2] * 3 + 1)
    expected = np.where(np.arange(count) % 2 == 0, keys * 3 + 1, -5)
    return table, keys, expected


def found_like(keys: Any) -> Any:
    if isinstance(keys, np.ndarray):
        return np.zeros(keys.shape, bool)
    return module("torch").zeros(keys.shape, dtype=module("torch").bool, device=keys.device)


LOOKUPS = {
    "get": lambda table, keys, out: table.get(keys, -5, out=out),
    "find": lambda table, keys, out: table.find(keys, -5, out=(out, found_like(keys)))[0],
    "setdefault": lambda table, keys, out: table.setdefault(keys, -5, out=out),
    "pop": lambda table, keys, out: table.pop(keys, -5, out=out),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("shift", [0, 8, -8, 16, -24], ids=lambda shift: f"shift{shift}")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("method", LOOKUPS)
def test_ids_are_translated_in_place(native, method, count, shift):
    """The values are written where the keys are, or some bytes before or behind."""
    table, keys, expected = translation(native, count)
    memory = carve(native, 8 * count + 64)
    asked = view(memory, 64, "int64", (count,))
    out = view(memory, 64 + shift, "int64", (count,))
    fill(asked, keys)
    answer = LOOKUPS[method](table, asked, out)
    assert answer is out
    same_bytes(out, expected)
    left = set(keys[::2].tolist())
    if method == "pop":
        assert len(table) == 0
    elif method == "setdefault":
        same_bytes(table[native.array(keys)], expected)
    else:
        assert set(table) == left


@pytest.mark.parametrize("method", LOOKUPS)
def test_a_million_ids_are_translated_in_place(native, method):
    table, keys, expected = translation(native, 1_000_000)
    asked = native.array(keys)
    same_bytes(LOOKUPS[method](table, asked, asked), expected)
    same_bytes(asked, expected)


@pytest.mark.parametrize("start", [0, 3, 100, 3999])
@pytest.mark.parametrize("method", ["contains", "erase", "find"])
def test_mask_within_the_bytes_of_the_keys(native, method, start):
    count = 500
    table, keys, expected = translation(native, count)
    present = np.arange(count) % 2 == 0
    memory = carve(native, 8 * count + 512)
    asked = view(memory, 0, "int64", (count,))
    mask = view(memory, start, "bool", (count,))
    fill(asked, keys)
    if method == "find":
        values = native.array(np.zeros(count, np.int64))
        table.find(asked, -5, out=(values, mask))
        same_bytes(values, expected)
    else:
        getattr(table, method)(asked, out=mask)
    same_bytes(mask, present)
    assert len(table) == (0 if method == "erase" else present.sum())


@pytest.mark.parametrize("method", ["insert", "insert_or_assign", "insert_or_apply"])
@pytest.mark.parametrize("over", ["keys", "values"])
@pytest.mark.parametrize("count", COUNTS)
def test_mask_of_an_insertion_within_its_input(native, method, over, count):
    table, keys, _ = translation(native, count)
    known = np.arange(count) % 2 == 0
    values = np.arange(count, dtype=np.int64) + 10
    memories = {name: carve(native, 8 * count) for name in ("keys", "values")}
    given = {name: view(memory, 0, "int64", (count,)) for name, memory in memories.items()}
    fill(given["keys"], keys)
    fill(given["values"], values)
    mask = view(memories[over], count // 2, "bool", (count,))
    extra = ["add"] if method == "insert_or_apply" else []
    getattr(table, method)(given["keys"], given["values"], *extra, out=mask)
    same_bytes(mask, ~known)
    old = keys * 3 + 1
    after = {"insert": old, "insert_or_assign": values, "insert_or_apply": old + values}[method]
    same_bytes(table[native.array(keys)], np.where(known, after, values))


def test_mask_of_a_set_within_its_keys(native):
    keys = ids(1000)
    table = HashSet("int64", device=native.table_device)
    table.add(native.array(keys[::2]))
    memory = carve(native, 8000)
    asked = view(memory, 0, "int64", (1000,))
    fill(asked, keys)
    same_bytes(table.add(asked, out=view(memory, 999, "bool", (1000,))), np.arange(1000) % 2 == 1)
    assert set(table) == set(keys.tolist())


@pytest.mark.parametrize("method", ["get", "find", "pop"])
def test_out_over_the_defaults_of_the_keys(native, method):
    """Defaults that are written over one place further on."""
    table, keys, _ = translation(native, 1000)
    defaults = np.arange(1000, dtype=np.int64) - 5000
    memory = carve(native, 8100)
    given, out = view(memory, 0, "int64", (1000,)), view(memory, 8, "int64", (1000,))
    fill(given, defaults)
    asked = native.array(keys)
    if method == "find":
        table.find(asked, given, out=(out, native.array(np.zeros(1000, bool))))
    else:
        getattr(table, method)(asked, given, out=out)
    same_bytes(out, np.where(np.arange(1000) % 2 == 0, keys * 3 + 1, defaults))


def test_out_over_the_one_default(native):
    """The default lies in the middle of the output."""
    table, keys, expected = translation(native, 1000)
    memory = carve(native, 8000)
    out = view(memory, 0, "int64", (1000,))
    default = view(memory, 4000, "int64", ())
    fill(default, np.array(-5))
    same_bytes(table.get(native.array(keys), default, out=out), expected)


def test_wide_rows_over_their_keys(native):
    """Values of 24 bytes, written over keys of 16."""
    keys = np.stack([ids(2000), ids(2000) * 7], axis=1)
    table = HashTable("int64", "int64", key_shape=(2,), value_shape=(3,), device=native.table_device)
    values = np.arange(6000, dtype=np.int64).reshape(2000, 3)
    table[native.array(keys)] = native.array(values)
    memory = carve(native, 24 * 2000)
    asked, out = view(memory, 16_000, "int64", (2000, 2)), view(memory, 0, "int64", (2000, 3))
    fill(asked, keys)
    same_bytes(table.get(asked, 0, out=out), values)
    numbers = view(memory, 16_008, "int64", (2000,))
    fill(asked, keys)
    same_bytes(table.get(asked, 0), values)
    table.rows(asked, out=numbers)
    same_bytes(native_rows(table)[to_numpy(numbers)], values)


def native_rows(table: HashTable) -> np.ndarray:
    return to_numpy(table.row_storage_as("numpy" if table.device == "cpu" else "torch"))


def test_memory_of_another_framework():
    """A NumPy view of a PyTorch tensor: the general path borrows both."""
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed")
    place = Framework("numpy", "cpu", "cpu")
    for count in COUNTS:
        table, keys, expected = translation(place, count)
        asked = torch.from_numpy(keys.copy())
        table.get(asked, -5, out=asked.numpy())
        same_bytes(asked, expected)
        asked = torch.from_numpy(keys.copy())
        table.get(asked.numpy(), -5, out=asked)
        same_bytes(asked, expected)


def test_keys_on_the_host_of_a_table_on_the_gpu(torch_cuda, cuda):
    for place in (Framework("numpy", "cpu", "cuda"), Framework("torch", "cpu", "cuda")):
        table, keys, expected = translation(place, 1000)
        asked = place.array(keys)
        same_bytes(table.get(asked, -5, out=asked), expected)
        memory = carve(place, 8000)
        with pytest.raises(ValueError, match="other output"):
            table.find(
                place.array(keys),
                out=(view(memory, 0, "int64", (1000,)), view(memory, 7000, "bool", (1000,))),
            )


def test_in_several_threads_at_once(native):
    table, keys, expected = translation(native, 100_000)

    def work(_: int) -> None:
        for _ in range(10):
            asked = native.array(keys)
            same_bytes(table.get(asked, -5, out=asked), expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize("start", [0, 7, 4000, 7500])
def test_outputs_that_overlap_each_other_are_refused(native, start):
    table, keys, _ = translation(native, 1000)
    memory = carve(native, 8600)
    values, found = view(memory, 0, "int64", (1000,)), view(memory, start, "bool", (1000,))
    with pytest.raises(ValueError, match=r"out\[1\] shares memory"):
        table.find(native.array(keys), out=(values, found))
    assert not to_numpy(memory).any()
    found = view(memory, 8000, "bool", (500,))  # side by side is apart
    table.find(native.array(keys[:500]), out=(values[:500], found))
    same_bytes(found, np.arange(500) % 2 == 0)


def rows_of(native: Framework, count: int = 1000) -> tuple[HashTable, np.ndarray, np.ndarray]:
    keys = ids(count)
    values = np.arange(2 * count, dtype=np.int64).reshape(count, 2)
    table = HashTable("int64", "int64", value_shape=(2,), device=native.table_device)
    table[native.array(keys)] = native.array(values)
    return table, keys, values


def lent_rows(native: Framework, table: HashTable) -> Any:
    return table.row_storage_as(native.name)


@pytest.mark.parametrize("method", ["get", "find", "setdefault", "pop", "contains", "insert", "erase", "rows"])
def test_out_within_the_rows_is_refused(native, method):
    """Before anything changes: no row, no key, and no other output."""
    table, keys, values = rows_of(native)
    rows = lent_rows(native, table)
    out = rows[100:110]
    flat = rows.reshape(-1)
    asked = native.array(np.concatenate([keys[:5], keys[:5] + 10_000]))
    mask = native.array(np.zeros(10, bool))
    before = native_rows(table).copy()
    calls = {
        "get": lambda: table.get(asked, 0, out=out),
        "find": lambda: table.find(asked, 0, out=(out, mask)),
        "setdefault": lambda: table.setdefault(asked, 0, out=out),
        "pop": lambda: table.pop(asked, 0, out=out),
        "contains": lambda: table.contains(asked, out=narrow_mask(flat)),
        "insert": lambda: table.insert(asked, 0, out=narrow_mask(flat)),
        "erase": lambda: table.erase(asked, out=narrow_mask(flat)),
        "rows": lambda: table.rows(asked, out=flat[200:210]),
    }
    with pytest.raises(ValueError, match="row_storage"):
        calls[method]()
    same_bytes(native_rows(table), before)
    assert not to_numpy(mask).any()
    assert len(table) == 1000
    same_bytes(table[native.array(keys)], values)


def narrow_mask(flat: Any) -> Any:
    """Ten booleans in the bytes of the rows."""
    return flat.view(bool if isinstance(flat, np.ndarray) else module("torch").bool)[:10]


@pytest.mark.parametrize("count", [1000, 200_000])
@pytest.mark.parametrize("method", ["setitem", "insert_or_assign", "insert_or_apply"])
def test_values_that_are_the_tables_own_rows(native, method, count):
    """Each key gets the row that stands one place further on, all at once."""
    table, keys, _ = rows_of(native, count)
    numbers = to_numpy(table.rows(native.array(keys)))
    stored = native_rows(table).copy()
    order = np.argsort(numbers)
    asked, given = native.array(keys[order][:-1]), lent_rows(native, table)[1:count]
    expected = stored.copy()
    if method == "setitem":
        table[asked] = given
        expected[: count - 1] = stored[1:]
    elif method == "insert_or_assign":
        table.insert_or_assign(asked, given)
        expected[: count - 1] = stored[1:]
    else:
        table.insert_or_apply(asked, given, "add")
        expected[: count - 1] += stored[1:]
    same_bytes(table[native.array(keys[order])], expected)


@pytest.mark.parametrize("method", ["setitem", "insert_or_apply"])
def test_keys_that_are_the_tables_own_rows(native, method):
    """The rows hold the numbers of the keys; storing others changes the memory that the keys are read from."""
    count = 100_000
    keys = np.arange(count, dtype=np.int64)
    targets = np.stack([np.roll(keys, 1), np.roll(keys, 7)], axis=1)
    table = HashTable("int64", "int64", value_shape=(2,), device=native.table_device, deterministic=True)
    table[native.array(keys)] = native.array(targets)
    flat = lent_rows(native, table).reshape(-1)[:count]
    asked = to_numpy(flat).copy()
    values = np.stack([np.arange(count), np.arange(count) * 5], axis=1) + 10**6
    if method == "setitem":
        table[flat] = native.array(values)
        expected = targets.copy()
        for key, value in zip(asked.tolist(), values, strict=True):
            expected[key] = value
    else:
        table.insert_or_apply(flat, native.array(values), "add")
        expected = targets.copy()
        np.add.at(expected, asked, values)
    same_bytes(table[native.array(keys)], expected)


def test_pop_of_an_absent_key_leaves_the_keys_in_place(native):
    table, keys, _ = translation(native, 100)
    asked = native.array(keys)
    with pytest.raises(KeyError, match="50 of 100 keys are absent"):
        table.pop(asked, out=asked)
    same_bytes(asked, keys)
    assert len(table) == 50


@pytest.mark.parametrize("count", [1000, 100_000])
@pytest.mark.parametrize("method", ["find_or_insert", "setdefault"])
@pytest.mark.parametrize("columns", [False, True], ids=["values", "columns"])
def test_keys_that_are_rows_which_new_keys_get(native, method, count, columns):
    """The rows are those of keys that were erased, and they hold the keys that come."""
    place = native.table_device
    drawn = initializers.Uniform(1.0, 2.0, seed=5)
    if columns:
        table = HashTable("int64", {"a": Column("float64", (4,), drawn)}, device=place)
    else:
        table = HashTable("int64", "float64", value_shape=(4,), device=place, initializer=drawn)
    other = HashTable("int64", "float64", value_shape=(4,), device=place, initializer=drawn)
    table.reserve(8 * count)
    numbers = native.array(np.arange(count))
    rows = native.array((np.random.default_rng(0).permutation(4 * count) + 10**9).view(np.float64).reshape(count, 4))
    table[numbers] = {"a": rows} if columns else rows
    memory = table.column("a", native.name) if columns else lent_rows(native, table)
    keys = memory.view(np.int64 if isinstance(memory, np.ndarray) else module("torch").int64).reshape(-1)[: 4 * count]
    asked = to_numpy(keys).copy()
    assert (np.sort(asked) == np.arange(4 * count) + 10**9).all()
    table.erase(numbers)
    getattr(table, method)(keys)
    other.find_or_insert(native.array(asked))
    assert len(table) == 4 * count
    got = table[native.array(asked)]
    same_bytes(got["a"] if columns else got, to_numpy(other[native.array(asked)]))
