"""Tables that move between devices, and pickles."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.frameworks import GPU, capture, current_stream, delay, new_stream, on_stream, to_numpy
from support.samples import VALUE_DTYPES, as_dict, items_of, random_keys, random_values, same_bytes

import gpuhash
from gpuhash import HashSet, HashTable, _core
from gpuhash.arrays.dtypes import storage_dtype
from gpuhash.arrays.export import to_host
from gpuhash.arrays.memory import make_context, parse_device
from gpuhash.files import saved, serialization

KINDS = {
    "scalar": ("int64", (), "float32", ()),
    "rows": ("int64", (), "float32", (3,)),
    "vector-keys": ("int32", (3,), "int8", ()),
    "bfloat16-rows": ("uint16", (), "bfloat16", (2, 2)),
    "complex128": ("int64", (2,), "complex128", ()),
}


def table_of(kind, device):
    key_dtype, key_shape, value_dtype, value_shape = KINDS[kind]
    keys = random_keys(key_dtype, key_shape, 3000)
    values = random_values(value_dtype, (len(keys), *value_shape))
    table = HashTable(
        key_dtype, value_dtype, key_shape=key_shape, value_shape=value_shape, device=device, max_load_factor=0.7
    )
    table[keys] = values
    table.erase(keys[::3])
    rest = np.arange(len(keys)) % 3 != 0
    return table, as_dict(keys[rest], values[rest])


@pytest.mark.parametrize("kind", KINDS)
def test_to_and_back(cuda, kind):
    table, expected = table_of(kind, "cpu")
    moved = table.to(cuda)
    assert moved.device == cuda
    assert items_of(moved) == expected
    assert moved == table
    assert table == moved
    back = moved.to("cpu")
    assert back.device == "cpu"
    assert items_of(back) == expected
    assert moved.capacity == table.capacity == back.capacity
    if table.value_shape:
        keys = to_numpy(table.keys())
        assert np.array_equal(table.rows(keys), moved.rows(keys)), "row numbers stay"
    moved.clear()
    assert items_of(back) == expected
    assert items_of(table) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_to_the_same_device(device, kind):
    table, expected = table_of(kind, device)
    same = table.to(device)
    assert items_of(same) == expected
    assert same.max_load_factor == 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_pickle(device, kind):
    table, expected = table_of(kind, device)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(table, protocol))
        assert items_of(back) == expected
        assert back == table
        assert back.device == table.device
        assert back.max_load_factor == 0.7


def test_pickle_keeps_options(device):
    table = HashTable(
        "int64",
        "float32",
        device=device,
        capacity=100,
        growth=False,
        deterministic=True,
        default=2.5,
        max_load_factor=0.9,
    )
    table[1] = 4.0
    back = pickle.loads(pickle.dumps(table))
    assert back.max_capacity == table.max_capacity
    assert back.deterministic
    assert back.default == 2.5
    assert back[2] == 2.5
    assert back[1] == 4.0
    assert back.max_load_factor == 0.9


def test_pickle_of_sets(device):
    made = HashSet("int32", key_shape=(3,), device=device)
    made.add([[1, 2, 3], [4, 5, 6]])
    back = pickle.loads(pickle.dumps(made))
    assert isinstance(back, HashSet)
    assert back == made


def through_a_file(table, folder):
    table.save(folder / "table.safetensors")
    return gpuhash.load(folder / "table.safetensors", device=table.device)


WAYS = {
    **{
        f"pickle-{protocol}": lambda table, _, protocol=protocol: pickle.loads(pickle.dumps(table, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": lambda table, _: copy.copy(table),
    "deepcopy": lambda table, _: copy.deepcopy({"table": table})["table"],
    "to": lambda table, _: table.to(table.device, memory=None),
    "file": through_a_file,
}


@pytest.mark.parametrize("bounded", [False, True], ids=["growing", "bounded"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["any-stays", "last-stays"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_keeps_the_options(device, tmp_path, way, deterministic, bounded):
    options = {
        "device": device,
        "deterministic": deterministic,
        "max_load_factor": 0.6,
        "max_capacity": 4096 if bounded else None,
    }
    keys = random_keys("int64", (), 300)
    table = HashTable("int64", "float64", default=-0.125, name="has options", **options)
    table[keys] = 1.0
    a_set = HashSet("int64", name="a set that has options", **options)
    a_set.add(keys)
    for made in (table, a_set):
        back = WAYS[way](made, tmp_path)
        assert type(back) is type(made)
        assert back == made
        assert (back.deterministic, back.max_load_factor) == (deterministic, 0.6)
        assert back.max_capacity == made.max_capacity
        assert back.name == (made.name if back is made else None)
        made.close()
    back = WAYS[way](table, tmp_path)
    assert back.default == -0.125
    absent = np.setdiff1d(np.arange(100), keys)
    same_bytes(back[absent], np.full(len(absent), -0.125))
    # What a batch's duplicates leave is that of a loop, if it was so before.
    twice = np.repeat(absent, 500)
    values = np.arange(len(twice), dtype=np.float64)
    back[twice] = values
    if deterministic:
        same_bytes(back[absent], values[499::500])


@pytest.mark.pairwise
@pytest.mark.parametrize("way", ["pickle-2", "deepcopy", "file"])
@pytest.mark.parametrize("value_shape", [(), (2, 3)], ids=["scalar", "rows"])
@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_every_way_keeps_defaults_of_every_dtype(device, tmp_path, dtype, value_shape, way):
    default = random_values(dtype, value_shape, seed=4)
    table = HashTable("int64", dtype, value_shape=value_shape, device=device, default=default)
    back = WAYS[way](table, tmp_path)
    same_bytes(back[np.array([7, 8])], np.stack([default, default]))
    assert np.array_equal(back.default, table.default)
    assert WAYS[way](HashTable("int64", dtype, value_shape=value_shape, device=device), tmp_path).default is None


@pytest.mark.parametrize("way", ["copy", "deepcopy"])
def test_copies_keep_what_a_derived_class_adds(way, device):
    """Attributes of its objects go along; what the copy has of its own, the table and no name, does not change."""

    class Labelled(HashTable):
        label = "none"

    table = Labelled("int64", "int64", device=device, default=7, name="labelled")
    table.label = "mine"
    table[3] = 4
    made = getattr(copy, way)(table)
    assert type(made) is Labelled
    assert (made.label, made.name, made.default, made[3], made[5]) == ("mine", None, 7, 4, 7)
    made.label = "other"
    made[3] = 5
    assert (table.label, table.name, table[3]) == ("mine", "labelled", 4)
    table.close()


class OwnConstructor(HashTable):
    """With arguments of its own, and attributes with and without slots."""

    __slots__ = ("slot",)

    def __init__(self, tag: list[int], **options: Any) -> None:
        super().__init__("int64", "float32", **options)
        self.tag, self.slot = tag, [*tag, 0]


class OwnSet(HashSet):
    def __init__(self, tag: list[int], **options: Any) -> None:
        super().__init__("int64", **options)
        self.tag = tag


@pytest.mark.parametrize("kind", [OwnConstructor, OwnSet])
def test_files_and_pickles_of_classes_with_their_own_constructors(device, tmp_path, kind):
    """None is called, and what it has added is not kept."""
    made = kind([1], device=device)
    if kind is OwnSet:
        made.add([3, 4])
    else:
        made.update({3: 1.5, 4: 2.5})
    made.save(tmp_path / "table.safetensors")
    for back in (pickle.loads(pickle.dumps(made)), kind.load(tmp_path / "table.safetensors", device=device)):
        assert type(back) is kind
        assert back == made
        assert not hasattr(back, "tag")


def test_deep_copies_are_deep(device):
    """Attributes are copied as deeply, in slots as well, and lead back to the copy."""
    table = OwnConstructor([1], device=device)
    table.itself = {"table": table}
    flat, to, deep = copy.copy(table), table.to(["cpu"]) if device == "cpu" else table.to("cpu"), copy.deepcopy(table)
    for shallow in (flat, to):
        assert shallow.tag is table.tag
        assert shallow.slot is table.slot
        assert shallow.itself is table.itself
    assert (deep.tag, deep.slot) == ([1], [1, 0])
    assert deep.tag is not table.tag
    assert deep.slot is not table.slot
    assert deep.itself["table"] is deep
    pair = copy.deepcopy([table, table.tag])
    assert pair[0].tag is pair[1]


def test_pickles_name_what_is_public():
    """Nothing that a later version may move: neither module nor private name."""
    table, _ = table_of("rows", "cpu")
    a_set = HashSet("int64")
    for made in (table, a_set):
        names = pickle.dumps(made, 2)
        assert b"cgpuhash\nunpickle\n" in names
        assert b"cgpuhash\n" + type(made).__name__.encode() + b"\n" in names
        assert b"gpuhash.base" not in names
        assert b"gpuhash.tables.keyed_table" not in names
        assert b"gpuhash.table" not in names


def test_pickles_of_before_still_load():
    """They name the private function and the module that defines the class."""
    table, expected = table_of("scalar", "cpu")
    data = serialization.to_bytes(table._contents())
    # function, class, device and bytes, as then
    old = b"\x80\x03cgpuhash.base\n_unpickle\ncgpuhash.table\nHashTable\nX\x03\0\0\0cpuB" + len(data).to_bytes(
        4, "little"
    )
    back = pickle.loads(old + data + b"\x87R.")
    assert type(back) is HashTable
    assert items_of(back) == expected


def test_large_pickles_come_in_parts(monkeypatch):
    """Text of 4 GiB or more is beyond what torch.save pickles; here a part has 1000 bytes."""
    table, expected = table_of("rows", "cpu")
    monkeypatch.setattr(saved, "_PART_BYTES", 1000)
    parts = table.__reduce__()[1][2:]
    assert len(parts) > 10
    assert {len(part) for part in parts[:-1]} == {1000}
    assert items_of(pickle.loads(pickle.dumps(table, 2))) == expected


def test_what_a_pickle_says_is_checked():
    table, _ = table_of("scalar", "cpu")
    _, (kind, device, data) = table.__reduce__()
    assert gpuhash.unpickle(kind, device, data) == table
    for damaged in (data[:-1], data[:100], b"", data + b"x", data.replace(b"int64", b"int32", 1)):
        with pytest.raises(ValueError):
            gpuhash.unpickle(kind, device, damaged)
    with pytest.raises(ValueError, match="not a set"):
        gpuhash.unpickle(HashSet, device, data)
    for wrong in (dict, "HashTable", None, pickle.loads):
        with pytest.raises(TypeError, match="HashTable, HashSet or HashMultiMap"):
            gpuhash.unpickle(wrong, device, data)
    with pytest.raises(TypeError, match="device"):
        gpuhash.unpickle(kind, 0, data)
    with pytest.raises(TypeError, match="expected bytes"):
        gpuhash.unpickle(kind, device, data.decode("latin-1"))
    with pytest.raises(TypeError, match="sets the state"):
        HashTable.__new__(HashTable).__setstate__({"_core": table._core})


def test_updated_copies_of_moved_tables_grow(cuda):
    table, _ = table_of("rows", "cpu")
    moved = table.to(cuda)
    keys = np.random.default_rng(0).integers(-(1 << 60), 1 << 60, 50_000)
    moved[keys] = 1
    table[keys] = 1
    assert moved == table


@pytest.mark.parametrize("buckets", [1, 2047, 2048, 4095, 4097, 8191, 16383, 65535])
def test_copies_of_odd_sizes_find_every_key(on_device, buckets):
    """The number of buckets is rounded to whole regions; a copy has to come out with the same ones."""
    table = HashTable("int64", "int64", capacity=4 * buckets, growth=False, device=on_device.table_device)
    keys = random_keys("int64", (), int(0.97 * table.capacity))
    table[on_device.array(keys)] = on_device.array(np.arange(len(keys)))
    for twin in (table.copy(), table.to("cpu"), pickle.loads(pickle.dumps(table))):
        values, found = twin.find(keys)
        assert to_numpy(found).all()
        assert np.array_equal(to_numpy(values), np.arange(len(keys)))


@pytest.mark.parametrize("offset", [0, 1, 4, 8])
def test_copies_of_few_bytes(torch_cuda, offset):
    """Up to 31 whole words come by a kernel, all others by a copy; both when what was before them is done."""
    torch, context, stream = torch_cuda, make_context(GPU), new_stream()
    source = torch.zeros(1024, dtype=torch.uint8, device=GPU)
    torch.cuda.synchronize(GPU)
    for round_, count in enumerate([*range(1, 41), *range(48, 273, 8)]):
        numbers = (np.arange(1024) * 7 + round_).astype(np.uint8)
        with on_stream(stream):
            delay(1_000_000)
            source.copy_(torch.from_numpy(numbers).to(GPU))
        got = np.full(count + 2, 99, np.uint8)
        copied = source[offset : offset + count]
        context.copy(_core.borrow(got[1:-1]), _core.borrow(copied, stream.cuda_stream), stream.cuda_stream)
        same_bytes(got[1:-1], numbers[offset : offset + count])
        assert got[0] == got[-1] == 99


def test_copies_of_few_bytes_in_threads(torch_cuda):
    """None gets what another one's kernel has written."""
    torch, context = torch_cuda, make_context(GPU)
    sources = torch.arange(8 * 32, device=GPU).reshape(8, 32)
    torch.cuda.synchronize(GPU)

    def copy_often(row):
        stream = new_stream().cuda_stream
        for i in range(300):
            words = 1 + (i + row) % 31
            got = np.zeros(words, np.int64)
            context.copy(_core.borrow(got), _core.borrow(sources[row, :words], stream), stream)
            same_bytes(got, np.arange(32 * row, 32 * row + words))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(copy_often, range(8))) == [None] * 8


@pytest.mark.parametrize("dtype", ["int64", "bfloat16", "complex128"])
@pytest.mark.parametrize("shape", [(6,), (6, 2, 3), (0, 3)], ids=str)
def test_parts_and_shapes_of_an_array_are_its_memory(device, dtype, shape):
    """And a copy goes from the memory of one context to that of another."""
    context, other = make_context(device), _core.Context(*parse_device(device))
    numbers = random_values(dtype, shape)
    source, target = (_core.Buffer(each, dtype, shape, 0).array() for each in (context, other))
    context.copy(source, _core.borrow(np.ascontiguousarray(numbers)), 0)
    other.copy_from(target, context, source, 0)
    for begin, end in ((0, shape[0]), (shape[0] // 3, shape[0] // 2), (shape[0], shape[0])):
        part = target.part(begin, end)
        assert (part.dtype, part.shape) == (dtype, (end - begin, *shape[1:]))
        same_bytes(to_host(other, part, 0), numbers[begin:end].view(storage_dtype(dtype)))
    flat = target.reshape((numbers.size,))
    assert (flat.data, flat.shape) == (target.data, (numbers.size,))
    same_bytes(to_host(other, flat, 0), numbers.reshape(-1).view(storage_dtype(dtype)))
    for begin, end in ((-1, 0), (1, 0), (0, shape[0] + 1)):
        with pytest.raises(ValueError, match="of which the array has not all"):
            target.part(begin, end)
    with pytest.raises(ValueError, match="elements was given for"):
        target.reshape((numbers.size + 1,))
    if numbers.size:
        with pytest.raises(ValueError, match="sizes must match"):
            other.copy_from(target.part(1, 2), context, source, 0)
        with pytest.raises(ValueError, match="not contiguous"):
            _core.borrow(np.arange(8)[::2]).part(0, 1)


def test_a_copy_to_the_host_is_not_captured(torch_cuda):
    """As a graph would write there at each replay. What comes after it is not disturbed."""
    torch, context = torch_cuda, make_context(GPU)
    source = torch.arange(16, device=GPU)
    got = np.zeros(16, np.int64)
    with pytest.raises(RuntimeError), capture(torch.cuda.CUDAGraph()):
        context.copy(_core.borrow(got), _core.borrow(source), current_stream().cuda_stream)
    torch.cuda.synchronize(GPU)
    context.copy(_core.borrow(got), _core.borrow(source, 1), 1)  # of the legacy default stream
    same_bytes(got, np.arange(16))
