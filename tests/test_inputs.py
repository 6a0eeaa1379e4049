"""What callers may hand in, and what they hear when it does not fit; the table is then as before."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import GPU, Framework, module, to_numpy
from support.samples import as_dict, items_of, random_keys, random_values, same_bytes

import gpuhash
from gpuhash import HashSet, HashTable, _core


def views_of(keys: np.ndarray):
    """The same keys in memory of every kind: name -> array."""
    count = len(keys)
    wide = np.empty((count, 3, *keys.shape[1:]), keys.dtype)
    wide[:, 1] = keys
    unaligned = np.empty(keys.nbytes + 1, np.uint8)[1:].view(keys.dtype).reshape(keys.shape)
    unaligned[...] = keys
    read_only = keys.copy()
    read_only.flags.writeable = False
    views = {
        "strided": wide[:, 1],
        "reversed": keys[::-1].copy()[::-1],
        "unaligned": unaligned,
        "read-only": read_only,
        "fortran": np.asfortranarray(keys),
    }
    if keys.ndim == 2:
        views["transposed"] = np.ascontiguousarray(keys.T).T
    return views


@pytest.mark.parametrize("kind", ["strided", "reversed", "unaligned", "read-only", "fortran", "transposed"])
@pytest.mark.parametrize("key_shape", [(), (3,)], ids=["scalar", "vector"])
def test_numpy_views(device, kind, key_shape):
    keys = random_keys("int32", key_shape, 1000)
    values = random_values("float32", (1000, 3))
    view = views_of(keys).get(kind)
    if view is None:
        pytest.skip("scalar keys are not transposed")
    table = HashTable("int32", "float32", key_shape=key_shape, value_shape=(3,), device=device)
    value_view = views_of(values)[kind]
    table[view] = value_view
    assert items_of(table) == as_dict(keys, values)
    same_bytes(table[view], values)
    assert table.contains(view).all()
    assert table.erase(view[:500]).all()
    assert items_of(table) == as_dict(keys[500:], values[500:])


def test_broadcast_view_with_zero_stride(device):
    table = HashTable("int64", "int64", device=device)
    assert table.insert(np.broadcast_to(np.int64(7), (100,)), np.arange(100)).sum() == 1
    assert list(table) == [7]


def test_torch_views(native):
    if native.name != "torch":
        pytest.skip("of PyTorch")
    keys = random_keys("int64", (2,), 1000)
    table = HashTable("int64", "float32", key_shape=(2,), device=native.table_device)
    tensor = native.array(keys)
    table[tensor.T.contiguous().T] = 1
    assert table.contains(tensor[::3]).all()
    assert table.contains(tensor.flip(0)).all()
    assert table.contains(tensor.reshape(10, 100, 2).transpose(0, 1)).shape == (100, 10)
    assert len(table) == len(keys)


def test_unaligned_torch_tensors(device):
    """They are dense, so that contiguous() would not copy them."""
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed")
    memory = np.zeros(41, np.uint8)
    memory[1:] = np.arange(7, 12).view(np.uint8)
    keys = torch.frombuffer(memory, dtype=torch.int64, offset=1, count=5)
    assert keys.data_ptr() % 8
    table = HashTable("int64", "int64", device=device)
    table[keys] = keys
    assert items_of(table) == as_dict(np.arange(7, 12), np.arange(7, 12))
    same_bytes(table[keys], np.arange(7, 12))
    assert gpuhash.unique(keys).tolist() == [7, 8, 9, 10, 11]
    assert gpuhash.isin(keys, keys[:2]).tolist() == [True, True, False, False, False]


def test_lists_of_tensors_that_require_grad(device):
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed")
    table = HashTable("int64", "float32", device=device)
    tensor = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(TypeError, match=r"the values hold .*grad"):
        table[[1]] = [tensor]
    assert len(table) == 0
    with pytest.raises(TypeError, match=r"the keys hold .*grad"):
        gpuhash.unique([tensor])
    table[[1]] = [tensor.detach()]
    assert table == {1: 1.0}


def test_unsigned_negated_and_big_endian_numpy(device):
    table = HashTable("int64", "int64", device=device)
    with pytest.raises(TypeError):
        table[np.arange(3).astype(">i8")] = 1
    assert len(table) == 0


@pytest.mark.parametrize("what", ["requires_grad", "conj", "neg", "sparse", "meta"])
def test_torch_tensors_that_are_no_plain_memory(native, what):
    if native.name != "torch":
        pytest.skip("of PyTorch")
    torch = module("torch")
    dtype = "complex64" if what in ("conj", "neg") else "float32"
    table = HashTable("int64", dtype, device=native.table_device)
    keys = native.array(np.arange(3))
    table[keys] = 1
    before = items_of(table)
    plain = native.array(random_values(dtype, (3,)))
    if what == "requires_grad":
        values, hint = plain.requires_grad_(), "detach|grad"
    elif what == "conj":
        values, hint = plain.conj(), "(?i)conj|resolve"
    elif what == "neg":
        table = HashTable("int64", "float32", device=native.table_device)
        table[keys] = 1
        before = items_of(table)
        values, hint = plain.conj().imag, "(?i)neg|resolve"
    elif what == "sparse":
        values, hint = plain.to_sparse(), None
    else:
        values, hint = torch.empty(3, device="meta"), None
    with pytest.raises((TypeError, ValueError) if what in ("sparse", "meta") else TypeError, match=hint):
        table[keys] = values
    assert items_of(table) == before


BAD_KEYS = {
    "int32-keys": (lambda: np.arange(3, dtype=np.int32), TypeError, "int64"),
    "uint64-keys": (lambda: np.arange(3, dtype=np.uint64), TypeError, "int64"),
    "float64-keys": (lambda: np.arange(3.0), TypeError, "view"),
    "bool-keys": (lambda: np.ones(3, bool), TypeError, "int64"),
    "object-keys": (lambda: np.array([1, 2, 3], object), TypeError, None),
    "text-keys": (lambda: "abc", TypeError, None),
    "none": (lambda: None, TypeError, None),
    "float-list": (lambda: [1.5, 2.5], TypeError, None),
    "ragged-list": (lambda: [[1, 2], [3]], (TypeError, ValueError), None),
    "slice": (lambda: slice(0, 3), TypeError, None),
    "string": (lambda: "a", TypeError, "number|hash"),
    "bytes": (lambda: b"a", TypeError, "number strings"),
    "list-of-strings": (lambda: ["a", "b", "c"], TypeError, "number strings"),
    "array-of-strings": (lambda: np.array(["a", "b", "c"]), TypeError, "factorize"),
}


@pytest.mark.parametrize("operation", ["getitem", "setitem", "delitem", "find", "contains", "erase", "apply", "pop"])
@pytest.mark.parametrize("kind", BAD_KEYS)
def test_bad_keys(device, kind, operation):
    make, error, text = BAD_KEYS[kind]
    table = HashTable("int64", "float32", device=device)
    table[[0, 1, 2]] = [1, 2, 3]
    before = items_of(table)
    keys = make()
    call = {
        "getitem": lambda: table[keys],
        "setitem": lambda: table.__setitem__(keys, 1),
        "delitem": lambda: table.__delitem__(keys),
        "find": lambda: table.find(keys),
        "contains": lambda: table.contains(keys),
        "erase": lambda: table.erase(keys),
        "apply": lambda: table.insert_or_apply(keys, 1, "add"),
        "pop": lambda: table.pop(keys),
    }[operation]
    with pytest.raises(error, match=text):
        call()
    assert items_of(table) == before


BAD_VALUES = {
    "float64": (lambda: np.zeros((3, 2)), TypeError),
    "int32": (lambda: np.zeros((3, 2), np.int32), TypeError),
    "too-few": (lambda: np.zeros((2, 2), np.float32), ValueError),
    "too-many": (lambda: np.zeros((4, 2), np.float32), ValueError),
    "wide-row": (lambda: np.zeros((3, 3), np.float32), ValueError),
    "flat": (lambda: np.zeros(3, np.float32), ValueError),
    "deep": (lambda: np.zeros((3, 2, 1), np.float32), ValueError),
    "text": (lambda: "abc", TypeError),
    "none": (lambda: None, TypeError),
    "complex": (lambda: 1j, TypeError),
}


@pytest.mark.parametrize("operation", ["setitem", "insert", "insert_or_assign", "apply", "setdefault"])
@pytest.mark.parametrize("kind", BAD_VALUES)
def test_bad_values(device, kind, operation):
    make, error = BAD_VALUES[kind]
    table = HashTable("int64", "float32", value_shape=(2,), device=device)
    table[[0, 1]] = np.ones((2, 2), np.float32)
    before = items_of(table)
    keys, values = np.arange(3), make()
    call = {
        "setitem": lambda: table.__setitem__(keys, values),
        "insert": lambda: table.insert(keys, values),
        "insert_or_assign": lambda: table.insert_or_assign(keys, values),
        "apply": lambda: table.insert_or_apply(keys, values, "add"),
        "setdefault": lambda: table.setdefault(keys, values),
    }[operation]
    if operation == "setdefault" and kind == "none":
        error = (TypeError, ValueError)  # no default at all
    with pytest.raises(error):
        call()
    assert items_of(table) == before


def test_wrong_key_shape_says_both(device):
    table = HashTable("int32", "int64", key_shape=(3,), device=device)
    table[[[1, 2, 3]]] = 1
    for shape in [(5,), (5, 2), (5, 4), (3, 1)]:
        with pytest.raises(ValueError, match=r"3"):
            table.find(np.zeros(shape, np.int32))
    with pytest.raises((TypeError, ValueError)):
        table[5]
    with pytest.raises((TypeError, ValueError)):
        table[(1, 2)]
    assert len(table) == 1


def test_a_device_array_for_a_host_table_says_what_to_call(torch_cuda):
    table = HashTable("int64", "float32")
    keys = torch_cuda.arange(3, device=GPU)
    with pytest.raises(ValueError, match=r"cpu\(\)|to\("):
        table[keys] = 1
    assert len(table) == 0


@pytest.mark.parametrize("name", ["jax", "tensorflow", "torch"])
def test_inputs_are_never_written(name):
    if module(name) is None:
        pytest.skip(f"{name} is not installed")
    place = Framework(name, "cpu", "cpu")
    host = random_keys("int64", (), 1000)
    keys, values = place.array(host), place.array(host.astype(np.float32))
    table = HashTable("int64", "float32")
    table[keys] = values
    table.insert_or_apply(keys, values, "add")
    table.erase(keys)
    same_bytes(keys, host)
    same_bytes(values, host.astype(np.float32))


BAD_OPTIONS = {
    "capacity": ({"capacity": -1}, ValueError),
    "deterministic-no": ({"deterministic": "no"}, TypeError),
    "deterministic-list": ({"deterministic": [True]}, TypeError),
    "growth-no": ({"growth": "no", "capacity": 8}, TypeError),
    "load-0": ({"max_load_factor": 0.0}, ValueError),
    "load-1.5": ({"max_load_factor": 1.5}, ValueError),
    "load-nan": ({"max_load_factor": float("nan")}, ValueError),
    "load-huge": ({"max_load_factor": 10**400}, ValueError),
    "load-text": ({"max_load_factor": "0.5"}, TypeError),
    "load-complex": ({"max_load_factor": 1j}, TypeError),
    "axes": ({"value_shape": (1,) * 64}, ValueError),
    "value-shape-float": ({"value_shape": 2.5}, TypeError),
    "value-shape-bool": ({"value_shape": np.bool_(True)}, TypeError),
    "surrogate": ({"name": "a\ud800"}, ValueError),
    "empty-name": ({"name": ""}, TypeError),
    "wide-device-number": ({"device": "cuda:99999999999"}, gpuhash.PlatformError),
    "device-number-of-32-bits": ({"device": "cuda:2147483648"}, gpuhash.PlatformError),
    "endless-device-number": ({"device": "cuda:" + "9" * 5000}, gpuhash.PlatformError),
    "negative-value-shape": ({"value_shape": (-1,)}, ValueError),
    "empty-value-shape": ({"value_shape": (0,)}, ValueError),
    "overflowing-value-shape": ({"value_shape": (1 << 40, 1 << 40)}, (MemoryError, ValueError)),
    "overflowing-rows": (
        {"value_shape": (1 << 41,), "capacity": 1 << 21, "growth": False},  # 2^64 bytes
        (MemoryError, ValueError),
    ),
    "unknown-device": ({"device": "tpu"}, ValueError),
    "device-number": ({"device": "cuda:99"}, (ValueError, RuntimeError)),
    "max-capacity": ({"max_capacity": -5}, ValueError),
    "max-below-capacity": ({"capacity": 1000, "max_capacity": 10}, ValueError),
    "unknown-memory": ({"memory": "nonsense"}, ValueError),
    "no-memory-resource": ({"memory": object()}, TypeError),
    "huge-capacity": ({"capacity": 1 << 62}, (MemoryError, ValueError, OverflowError)),
    "text-default": ({"default": "text"}, TypeError),
    "fixed-without-capacity": ({"growth": False}, ValueError),
}


@pytest.mark.parametrize(("options", "error"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options(options, error):
    with pytest.raises(error) as raised:
        HashTable("int64", "float32", **options)
    assert "incompatible" not in str(raised.value)  # pybind's words


@pytest.mark.parametrize("number", [np.int64(2), np.uint8(2), np.array(2)], ids=lambda number: type(number).__name__)
def test_numpys_integers_are_shapes(device, number):
    table = HashTable("int64", "float32", key_shape=number, value_shape=number, device=device)
    assert (table.key_shape, table.value_shape) == ((2,), (2,))
    assert HashSet("int64", key_shape=number, device=device).key_shape == (2,)
    assert gpuhash.Column("int64", number).shape == (2,)
    assert all(type(length) is int for length in table.value_shape + gpuhash.Column("int64", number).shape)
    assert repr(gpuhash.Column("int64", (True, number)).shape) == "(1, 2)"


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numpys_floats_are_load_factors(device, kind):
    assert HashTable("int64", "float32", max_load_factor=kind(0.5), device=device).max_load_factor == 0.5
    assert HashSet("int64", max_load_factor=np.int8(1), device=device).max_load_factor == 1.0


@pytest.mark.parametrize("shape", ["key_shape", "value_shape"])
def test_options_that_equal_others_are_looked_at(shape):
    """Plain ones are checked once, and remembered."""
    for _ in range(2):
        tables = [HashTable("int64", "float32", capacity=1000, max_load_factor=0.5) for _ in range(2)]
        tables[0][[3]] = 4.0
        assert [len(table) for table in tables] == [1, 0]
        assert HashTable("int64", "float32", capacity=np.int64(1000)).capacity >= 1000
        assert getattr(HashTable("int64", "float32", **{shape: (2,)}), shape) == (2,)
        assert getattr(HashTable("int64", "float32", **{shape: [2]}), shape) == (2,)
        with pytest.raises(TypeError, match=shape):
            HashTable("int64", "float32", **{shape: (2.0,)})
        with pytest.raises(TypeError, match="capacity"):
            HashTable("int64", "float32", capacity=1000.0)
        with pytest.raises(TypeError, match="keys are integers"):
            HashTable("float32", "float32", capacity=1000, max_load_factor=0.5)
        with pytest.raises(TypeError, match="max_capacity"):
            HashTable("int64", "float32", max_capacity=[])


def test_a_number_may_be_another_one_later():
    class Number:
        value = 10

        def __index__(self) -> int:
            return self.value

    number = Number()
    assert HashTable("int64", "float32", capacity=number).capacity < 1000
    number.value = 1000
    assert HashTable("int64", "float32", capacity=number).capacity >= 1000


BAD_DTYPES = {
    "tuple": (("int32", "int64"), r"\('int32', 'int64'\).*key_shape"),
    "list": (["int32", "int32"], "key_shape"),
    "structure": ([("a", "int32")], "key_shape"),
    "strings": ("U8", "number strings"),
    "object": (object, "is not supported"),
    "numpy-number": (np.int32(7), "is not supported"),
    "number": (7, "is not supported"),  # after NumPy's, which equals it
    "numpy-one": (np.float32(1), "is not supported"),
    "one": (1, "is not supported"),
    "true": (True, "is not supported"),
    "float": (1.0, "is not supported"),
}


@pytest.mark.parametrize("kind", BAD_DTYPES)
def test_dtypes_that_are_none(kind):
    dtype, hint = BAD_DTYPES[kind]
    with pytest.raises(TypeError, match=hint):
        HashTable(dtype, "float32")
    with pytest.raises(TypeError, match=hint):
        HashTable("int64", dtype)


def test_numbers_that_equal_dtypes_are_none():
    """TensorFlow's float32 is equal to 1, and has its hash."""
    tensorflow = module("tensorflow")
    if tensorflow is None:
        pytest.skip("tensorflow is not installed")
    assert tensorflow.float32 == 1
    assert HashTable("int64", tensorflow.float32).value_dtype == "float32"
    with pytest.raises(TypeError, match="dtype 1 is not supported"):
        HashTable("int64", 1)


def test_values_that_are_strings_are_refused():
    for values in (["a"], np.array(["a"])):
        with pytest.raises(TypeError, match="factorize"):
            HashTable.from_items([1], values)
    with pytest.raises(TypeError, match="number strings"):
        HashTable("int64", str)


def test_views_of_a_dict_are_sequences(device):
    table = HashTable("int64", "int64", device=device)
    model = {1: 10, 2: 20}
    table[model.keys()] = model.values()
    assert table == model
    assert table.contains(model.keys()).all()


def test_sets_refuse_bad_keys_too(device):
    made = HashSet("int64", device=device)
    made.add([1, 2])
    with pytest.raises(TypeError, match="view"):
        made.add(np.arange(3.0))
    with pytest.raises(TypeError):
        made.contains(np.arange(3, dtype=np.int8))
    with pytest.raises(OverflowError):
        made.add(1 << 63)
    assert sorted(made) == [1, 2]


def test_a_cpu_only_machine_says_why_there_is_no_cuda():
    names = _core.platform_names()
    if "cuda" in names and _core.platform_devices("cuda"):
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match=r"(?i)cuda"):
        HashTable("int64", "float32", device="cuda")


@pytest.mark.parametrize("size", [-1, 1 << 62, 1 << 63, 1 << 70, 1.5, "many"], ids=str)
@pytest.mark.parametrize("operation", ["reserve", "rehash"])
def test_sizes_that_cannot_be(device, operation, size):
    table = HashTable("int64", "float32", device=device)
    table[5] = 2
    with pytest.raises((TypeError, ValueError, OverflowError, MemoryError)) as error:
        getattr(table, operation)(size)
    assert "incompatible function arguments" not in str(error.value)  # pybind's words
    assert table == {5: 2.0}


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalars", "rows"])
def test_calls_without_keys(place, value_shape):
    """They check what they are given, and do nothing: some frameworks' arrays without elements have no address."""
    table = HashTable("int64", "float32", value_shape=value_shape, device=place.table_device)
    none, values = place.array(np.empty(0, np.int64)), place.array(np.empty((0, *value_shape), np.float32))
    for size in (0, 3):
        table[place.array(np.arange(size))] = 1
        for default in (values, 1):
            for answer in (table.setdefault(none, default), table.pop(none, default), table.get(none, default)):
                assert to_numpy(answer).shape == (0, *value_shape)
            table[none] = default
            for mask in (table.insert(none, default), table.insert_or_apply(none, default, "add"), table.erase(none)):
                assert to_numpy(mask).shape == (0,)
        assert to_numpy(table.pop(none)).shape == to_numpy(table[none]).shape == (0, *value_shape)
        del table[none]
        assert len(table) == size
