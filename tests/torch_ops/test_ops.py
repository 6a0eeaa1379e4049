"""The ops of gpuhash.torch against a dict and NumPy, their schemas and fake kernels, and what wrong arguments get."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import math
from typing import Any

import numpy as np
import pytest
from support.samples import same_bytes
from support.torch_ops import need_torch_ops

import gpuhash
from gpuhash import HashSet, HashTable
from gpuhash.signatures import SIGNATURES

torch, ours = need_torch_ops()
ops, TableModule = ours.ops, ours.TableModule

VALUE_DTYPES = ["bool", "uint8", "int16", "uint32", "int64", "uint64", "float16", "bfloat16", "float64", "complex128"]


@pytest.fixture
def where(on_device):
    """The device of tables and tensors."""
    return on_device.table_device


def numbers(dtype: str, shape: tuple[int, ...], where: str) -> Any:
    """1, 2, 3 and so on, as the dtype."""
    return torch.arange(1, 1 + math.prod(shape)).reshape(shape).to(getattr(torch, dtype)).to(where)


def filled(where: str, **options: Any) -> HashTable:
    """The keys 0 to 4, with ten times themselves as values."""
    table = HashTable("int64", "float32", device=where, **options)
    keys = torch.arange(5, device=where)
    table[keys] = (keys * 10.0).reshape(-1, *[1] * len(table.value_shape)).expand(5, *table.value_shape).contiguous()
    return table


# Against a dict ------------------------------------------------------------------------------------------------------


@pytest.mark.pairwise
@pytest.mark.parametrize("value_shape", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize("key_shape", [(), (2,)], ids=str)
def test_a_module_against_a_dict(where, dtype, value_shape, key_shape):
    table = HashTable("int32", dtype, key_shape=key_shape, value_shape=value_shape, device=where)
    module = TableModule(table)
    keys = torch.arange(24, dtype=torch.int32, device=where)[::2].reshape(-1, *key_shape)
    n, half = len(keys), len(keys) // 2
    names = [tuple(key) if key_shape else key for key in keys.tolist()]
    values = numbers(dtype, (n, *value_shape), where)
    assert module.insert(keys[:half], values[:half]).tolist() == [True] * half
    assert module.insert_or_assign(keys, values).tolist() == [False] * half + [True] * (n - half)
    model = dict(zip(names, values.tolist(), strict=True))
    for erased in (True, False):
        assert module.erase(keys[1:3]).tolist() == [erased] * 2
    for name in names[1:3]:
        del model[name]
    module[keys[:1]] = values[-1:]
    model[names[0]] = values.tolist()[-1]
    got, found = module.find(keys)
    zero = torch.zeros(value_shape, dtype=values.dtype).tolist()
    assert found.tolist() == module.contains(keys).tolist() == [name in model for name in names]
    assert got.tolist() == [model.get(name, zero) for name in names]
    assert (got.dtype, got.device) == (values.dtype, keys.device)
    assert module.get(keys, values[0]).tolist() == [model.get(name, values.tolist()[0]) for name in names]
    pairs = list(zip(names, values.tolist(), strict=True))
    assert module.get(keys, values).tolist() == [model.get(name, value) for name, value in pairs]
    assert module.size() == len(model) == len(table)
    assert module[torch.cat([keys[:1], keys[3:]])].tolist() == list(model.values())
    if value_shape or dtype == "complex128":
        assert module.rows(keys).tolist() == table.rows(keys).tolist()
    else:
        with pytest.raises(ValueError, match="no row storage"):
            module.rows(keys)


@pytest.mark.parametrize("op", ["add", "multiply", "min", "max", "bit-and", "bit_or", "bit_xor", "keep", "replace"])
def test_insert_or_apply(where, op):
    """As the table's own method, whose results test_insert_or_apply.py compares with NumPy's."""
    tables = [HashTable("int64", "int32", device=where, deterministic=True) for _ in range(2)]
    through_op = TableModule(tables[0])
    for start in (0, 5):
        keys = (torch.arange(start, start + 20, device=where)) % 7
        values = torch.arange(20, dtype=torch.int32, device=where) + start
        expected = tables[1].insert_or_apply(keys, values, op)
        assert through_op.insert_or_apply(keys, values, op).sum().item() == expected.sum().item()
    assert tables[0] == tables[1]


def test_sets(where):
    made = HashSet("int16", device=where)
    module = TableModule(made)
    keys = torch.tensor([3, 1, 3, 2], dtype=torch.int16, device=where)
    assert module.add(keys).sum().item() == 3
    assert sorted(made) == [1, 2, 3]
    assert module.contains(keys + 1).tolist() == [False, True, False, True]
    assert module.erase(keys[:1]).tolist() == [True]
    assert module.size() == 2
    for call in (lambda: module.find(keys), lambda: module.rows(keys), lambda: module.insert(keys, 1)):
        with pytest.raises(TypeError, match="no values"):
            call()
    with pytest.raises(TypeError, match="insert_or_assign"):
        TableModule(filled(where)).add(keys)


def test_numbers_as_values_and_defaults(where):
    module = TableModule(HashTable("int64", "int8", value_shape=(2,), device=where))
    keys = torch.arange(3, device=where)
    module.insert(keys, 5)
    module.insert_or_apply(keys[:1], 2, "add")
    assert module.get(keys + 1, -1).tolist() == [[5, 5], [5, 5], [-1, -1]]
    assert module[keys].tolist() == [[7, 7], [5, 5], [5, 5]]
    for number, error in ((128, OverflowError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error):
            module.insert(keys, number)
    assert module.size() == 3


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *(("float16", 65520.0), ("float16", 70000), ("bfloat16", 1.0039), ("complex64", 1e300), ("float64", 1 << 63)),
        *(("float32", -1e300), ("float32", (1 << 64) - 1), ("float32", (1 << 60) + 1)),
        *(("float32", 1 << 64), ("bfloat16", 255 << 80), ("float64", -((1 << 53) - 1) << 20), ("complex64", 1 << 100)),
    ],
)
def test_numbers_that_are_rounded(where, dtype, number):
    """As they are by the table's own methods: what is too large becomes infinite."""
    keys = torch.arange(2, device=where)
    plain, through_op = (HashTable("int64", dtype, device=where) for _ in range(2))
    plain[keys] = number
    TableModule(through_op)[keys] = number
    assert through_op == plain


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *(
            ("float64", (1 << 64) + 1),
            ("float64", -(1 << 63) - 1),
            ("float64", 10**400),
            ("float32", ((1 << 24) + 1) << 60),
        ),
        *(("float16", 1 << 64), ("bfloat16", 257 << 80), ("complex64", 1 << 128)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value % 1000003}",
)
def test_integers_that_no_dtype_has(where, dtype, number):
    table, keys = HashTable("int64", dtype, device=where), torch.arange(2, device=where)
    for face in (table, TableModule(table)):
        with pytest.raises(OverflowError, match="does not hold the integer"):
            face.insert(keys, number)


def test_defaults_of_the_table(where):
    table = filled(where, default=7.0)
    module = TableModule(table)
    keys = torch.arange(3, 8, device=where)
    assert module[keys].tolist() == module.get(keys).tolist() == [30.0, 40.0, 7.0, 7.0, 7.0]
    assert module.find(keys)[0].tolist() == table[keys].tolist()
    bits = HashTable("int64", "bfloat16", value_shape=(2,), default=[1.5, 2.5], device=where)
    assert TableModule(bits)[keys[:1]].tolist() == [[1.5, 2.5]]


@pytest.mark.parametrize("shape", [(0,), (), (2, 0, 3), (2, 3, 4)], ids=str)
def test_shapes_of_batches(where, shape):
    table = HashTable("int64", "float32", value_shape=(2,), device=where)
    module = TableModule(table)
    keys = torch.arange(math.prod(shape), device=where).reshape(shape)
    values = torch.ones(*shape, 2, device=where)
    assert module.insert(keys, values).shape == shape
    values, found = module.find(keys)
    assert values.shape == (*shape, 2)
    assert found.shape == module.contains(keys).shape == module.rows(keys).shape == module.erase(keys).shape == shape


def test_keys_and_values_that_are_not_dense(where):
    table = HashTable("int64", "float32", value_shape=(2,), device=where)
    module = TableModule(table)
    keys = torch.arange(24, device=where).reshape(4, 6)[:, ::2].t()
    values = torch.arange(24.0, device=where).reshape(2, 3, 4).permute(1, 2, 0)
    module.insert(keys, values)
    assert torch.equal(module[keys], values)
    assert torch.equal(table[keys.contiguous()], values)


def test_a_tables_own_rows_as_values(where):
    """They move and are written while the batch is read."""
    table = HashTable("int64", "float32", value_shape=(2,), device=where)
    keys = torch.arange(4, device=where)
    table[keys] = torch.arange(8.0, device=where).reshape(4, 2)
    rows = table.row_storage_as("torch")
    expected = rows.flip(0).tolist()
    shifted = table.rows(keys.flip(0))
    TableModule(table).insert_or_assign(keys[shifted], rows[:4])  # whatever the order, of the rows as they were
    assert sorted(table[keys].tolist()) == sorted(expected)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "bool", "complex64"])
@pytest.mark.parametrize("rows", [False, True])
def test_unique_and_isin(where, dtype, rows):
    generator = np.random.default_rng(5)
    host = generator.integers(0, 9, (50, 2) if dtype != "complex64" else (50, 1)).astype(dtype)
    keys = torch.from_numpy(host).to(where)
    axis = 0 if rows else None
    expected = gpuhash.unique(host, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    for got, wanted in zip(ops.unique(keys, rows, False, True, True, True), expected, strict=True):
        same_bytes(got, wanted)
    values, indices, inverse, counts = ops.unique(keys, rows, True, False, False, False)
    same_bytes(values, gpuhash.unique(host, sorted=True, axis=axis))
    assert indices.shape == inverse.shape == counts.shape == (0,)
    for invert in (False, True):
        same_bytes(
            ops.isin(torch.empty(0), keys, keys[:7], rows, invert),
            gpuhash.isin(host, host[:7], invert=invert, axis=axis),
        )


def test_columns_of_any_names(where):
    """Also of such as are written with an escape in the texts of columns."""
    names = ["a;int64 b", "a", "\\n", "\n", "a b[2]", "\\", "\\s", ";", "\r", "\0"]
    table = HashTable("int64", dict.fromkeys(names, ("int64", (2,))), device=where)
    module, keys = TableModule(table), torch.arange(3, device=where)
    given = {name: torch.arange(6, device=where).reshape(3, 2) + 10 * number for number, name in enumerate(names)}
    module[keys] = given
    assert module.rows(keys).tolist() == table.rows(keys).tolist()
    for name, values in module.find(keys, columns=names[::-1])[0].items():
        assert torch.equal(values, given[name])
        assert torch.equal(values, table[keys][name])
    assert torch.equal(torch.vmap(lambda key: module.find(key)[0]["\n"])(keys), given["\n"])


def test_texts_of_columns_have_one_line():
    """Inductor for GPUs copies them into comments of the code that it generates."""

    class Finder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = TableModule(HashTable("int64", dict.fromkeys(["a", "b\nc", "d\r", "e\0f"], "int64")))

        def forward(self, keys: Any) -> Any:
            return self.table.find(keys)[0]["a"]

    program = torch.export.export(Finder(), (torch.arange(3),))
    texts = [each for node in program.graph.nodes for each in node.args if isinstance(each, str)]
    assert len(texts) == 1
    assert texts[0].isprintable()


@pytest.mark.parametrize("name", [name for name, call in SIGNATURES.items() if call.request != "whole"])
def test_a_module_has_the_calls_of_the_manifest(name):
    call = SIGNATURES[name]
    parameters = inspect.signature(getattr(TableModule, call.method)).parameters
    assert list(parameters) == {
        "find": ["self", "keys", "default", "columns"],
        "has": ["self", "key"],
    }.get(name, ["self", "keys", *call.takes])
    assert all(
        (parameters[each].default is not inspect.Parameter.empty) == (each in call.optional) for each in call.takes
    )
    assert getattr(TableModule, call.method).__doc__


# Schemas and fake kernels --------------------------------------------------------------------------------------------


COLUMNS = {"weight": ("float32", (3,)), "z": "complex64"}


def calls(where: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of each op."""
    tables = {
        "plain": filled(where, value_shape=(3,)),
        "named": HashTable("int64", COLUMNS, device=where),
        "set": HashSet("int64", device=where),
    }
    plain, named, keys_alone = (table._torch_state for table in tables.values())
    KEPT.append(tables)
    keys = torch.arange(3, 9, device=where).reshape(2, 3)
    one, each = torch.ones(3, device=where), torch.ones(2, 3, 3, device=where)
    texts, parts = "float32[3] weight;complex64 z", torch.ones(2, device=where)
    outputs = [torch.empty(2, 3, 3, device=where), torch.empty(2, 3, 2, device=where)]
    return {
        "look_up": (plain, keys, 0, "float32[3]", [None], True, False, False),
        "look_up-default": (plain, keys, 0, "float32[3]", [one], True, True, False),
        "look_up-defaults": (plain, keys, 0, "float32[3]", [each], False, False, False),
        "look_up-required": (plain, keys[:1, :1], 0, "float32[3]", [None], False, False, True),
        "look_up-contains": (keys_alone, keys, 0, "", [None], True, False, False),
        "look_up-columns": (named, keys, 0, "complex64 z;float32[3] weight", [None, one], True, True, False),
        "size": (plain,),
        "change": ([plain], keys, 0, "float32[3]", [each], "add", True, False, ""),
        "change-set": ([keys_alone], keys, 0, "", [None], "", True, False, ""),
        "change-silent": ([plain], keys, 0, "float32[3]", [one], "assign", False, False, ""),
        "change-rows": ([plain], keys, 0, "", [None], "", True, True, ""),
        "change-columns": ([named, *outputs], keys, 0, texts, [each, parts], "keep,add", False, False, texts),
        "erase": ([plain], keys, 0, "", [None], True, False),
        "erase-required": ([plain], keys[0, :2], 0, "", [None], False, True),
        "erase-columns": ([named, *outputs], keys, 0, texts, [one, None], False, False),
        "unique": (keys // 2, False, False, True, True, True),
        "unique-rows": (keys[:, :2], True, True, False, True, False),
        "isin": (torch.empty(0), keys, keys[0], False, False),
    }


KEPT: list[Any] = []  # tables, as long as their states are used
OPS = [
    *(f"look_up{each}" for each in ("", "-default", "-defaults", "-required", "-contains", "-columns")),
    *("size", "change", "change-set", "change-silent", "change-rows", "change-columns"),
    *("erase", "erase-required", "erase-columns", "unique", "unique-rows", "isin"),
]


@pytest.mark.parametrize("op", OPS)
def test_opcheck(where, op):
    # What changes the table gives something else at the second call, so that only the schema can be checked.
    changes = op.partition("-")[0] in ("change", "erase")
    options = {"test_utils": ("test_schema", "test_faketensor")} if changes and op != "change-silent" else {}
    if op == "erase-required":  # a second call finds none of the keys
        options = {"test_utils": "test_schema"}
    torch.library.opcheck(getattr(ops, op.partition("-")[0]).default, calls(where)[op], **options)
    KEPT.clear()


def test_ops_stay_out_of_cuda_graphs():
    for name in {op.partition("-")[0] for op in OPS}:
        assert torch.Tag.cudagraph_unsafe in getattr(ops, name).default.tags


def test_ops_that_change_a_table_say_so():
    for name in ("change", "erase"):
        assert getattr(ops, name).default._schema.is_mutable
    for name in ("look_up", "size", "unique", "isin"):
        assert not getattr(ops, name).default._schema.is_mutable


# Errors --------------------------------------------------------------------------------------------------------------


def look_up(state: Any, keys: Any, *columns: str, key_dims: int = 0) -> Any:
    return ops.look_up(state, keys, key_dims, ";".join(columns), [None] * max(1, len(columns)), True, False, False)


def put(state: Any, keys: Any, values: Any, action: str = "assign", column: str = "float32[2]") -> Any:
    return ops.change([state], keys, 0, column, [values], action, True, False, "")


def test_a_freed_table_is_an_error(where):
    table = filled(where)
    state, module = table._torch_state, TableModule(filled(where))
    keys = torch.arange(3, device=where)
    del table
    gc.collect()
    for call in (
        lambda: look_up(state, keys, "float32"),
        lambda: ops.change([state], keys, 0, "", [None], "", True, False, ""),
        lambda: ops.erase([state], keys, 0, "", [None], True, False),
        lambda: ops.size(state),
    ):
        with pytest.raises(ValueError, match=r"no table of this process has the handle .* freed"):
            call()
    gc.collect()
    assert module.size() == 5  # which a module keeps


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda m, k: m.find(k.int()), TypeError, r"keys are int32.*keys of int64.*\.to\(torch\.int64\)"),
        (lambda m, k: m.insert(k, k), TypeError, r"values are int64.*values of float32.*\.to\(torch\.float32\)"),
        (lambda m, k: m.insert(k, k.float()), ValueError, r"values have shape \(3,\), expected \(3, 2\), or \(2,\)"),
        (lambda m, k: m.get(k, torch.ones(4, 2, device=k.device)), ValueError, r"defaults have shape \(4, 2\)"),
        (lambda m, k: m.get(k), ValueError, "needs a default"),
        (lambda m, k: m[k + 10], KeyError, "3 of 3 keys are absent"),
        (lambda m, k: m.pop(k + 10), KeyError, "3 of 3 keys are absent"),
        (lambda m, k: m.pop(k, None), ValueError, r"pop\(keys, None\) of a batch needs a default for absent keys"),
        (lambda m, k: m.find(k.tolist()), TypeError, r"keys are of type list, expected a tensor of torch\.int64"),
        (lambda m, k: m.contains(k.numpy(force=True)), TypeError, r"keys are of type ndarray, expected a tensor"),
        (lambda m, k: list(m), TypeError, r"keys are of type int, expected a tensor"),
        (lambda m, k: m.setdefault(k), ValueError, "needs a default"),
        (lambda m, k: m.insert(k, None), TypeError, "values are a NoneType"),
        (lambda m, k: m.find(k, columns=["x"]), TypeError, r"columns=\['x'\] was given"),
        (lambda m, k: m.insert_or_apply(k, 1.0, "bit_and"), TypeError, "bits of integers"),
        (lambda m, k: m.insert_or_apply(k, 1.0, "sub"), ValueError, "is not known"),
        (lambda m, k: m.insert(k, torch.ones(2, device=k.device, requires_grad=True)), TypeError, r"\.detach\(\)"),
    ],
)
def test_wrong_arguments(where, call, error, match):
    table = filled(where, value_shape=(2,))
    with pytest.raises(error, match=match):
        call(TableModule(table), torch.arange(3, device=where))
    assert len(table) == 5


def test_vector_keys_of_another_length(where):
    table = HashTable("int32", "float32", key_shape=(2,), device=where)
    keys = torch.zeros(4, 3, dtype=torch.int32, device=where)
    with pytest.raises(ValueError, match=r"keys have shape \(4, 3\).*key shape \(2,\)"):
        TableModule(table).find(keys)
    with pytest.raises(ValueError, match=r"keys have shape \(4, 3\).*key of the table has 2 numbers"):
        look_up(table._torch_state, keys, key_dims=1)


def test_ops_check_what_the_compiler_could_not(where):
    """The state may be that of another table than the one that a graph was made for."""
    table = filled(where, value_shape=(2,))
    state, keys = table._torch_state, torch.arange(3, device=where)
    with pytest.raises(ValueError, match=r"values of float32\[3\], and this table has values of float32\[2\]"):
        look_up(state, keys, "float32[3]")
    with pytest.raises(ValueError, match=r"values of float32\[2\] weight, and this table has values of float32\[2\]"):
        put(state, keys, torch.ones(2, device=where), column="float32[2] weight")
    with pytest.raises(ValueError, match="keys are int32"):
        look_up(state, keys.int())
    with pytest.raises(ValueError, match="for a set, and this table has values"):
        ops.change([state], keys, 0, "", [None], "", True, False, "")
    with pytest.raises(ValueError, match="values are missing"):
        put(state, keys, None)
    with pytest.raises(ValueError, match="state of a table is missing"):
        ops.change([], keys, 0, "", [None], "", True, False, "")
    with pytest.raises(ValueError, match=r"values have shape \(4, 2\)"):
        put(state, keys, torch.ones(4, 2, device=where))
    with pytest.raises(ValueError, match="expected one of keep"):
        put(state, keys, torch.ones(2, device=where), "sub")
    with pytest.raises(ValueError, match="1 defaults were given for 0 columns"):
        ops.look_up(state, keys, 0, "", [torch.ones(2, device=where)], True, False, False)
    with pytest.raises(ValueError, match="int64 tensor of one element"):
        look_up(torch.zeros(2, dtype=torch.int64), keys)
    for output in (torch.empty(2, device=where), torch.empty(2, 3, device=where).t()):
        with pytest.raises(ValueError, match="is not dense, or has no value for each key"):
            ops.erase([state, output], keys, 0, "float32[2]", [None], False, False)
    made = HashSet("int64", device=where)
    with pytest.raises(ValueError, match="it is a set"):
        put(made._torch_state, keys, torch.ones(3, device=where), column="float32")
    with pytest.raises(ValueError, match="it is a set"):
        look_up(made._torch_state, keys, "float32")
    with pytest.raises(ValueError, match="no row storage"):
        ops.look_up(made._torch_state, keys, 0, "", [None], False, True, False)
    assert len(table) == 5


def test_a_full_table(where):
    table = HashTable("int64", "float32", capacity=8, growth=False, device=where)
    module = TableModule(table)
    room = table.capacity
    module.insert(torch.arange(room // 2, device=where), 1.0)
    more = torch.arange(100, 100 + 2 * room, device=where)
    with pytest.raises(gpuhash.TableFullError, match=r"^(?!.*TableFullError).*(full|room)"):
        module.insert(more, 1.0)
    with pytest.raises(RuntimeError, match=r"TableFullError: .*(full|room)"):
        put(table._torch_state, more, torch.ones((), device=where), column="float32")
    assert module.size() == room // 2


def test_devices_that_differ(cuda):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    table, keys = filled(cuda), torch.arange(3)
    with pytest.raises(ValueError, match=r"keys are on cpu and the table is on cuda"):
        TableModule(table).find(keys)
    with pytest.raises(ValueError, match=r"keys are on cuda.* and the table is on cpu"):
        TableModule(filled("cpu")).find(keys.to(cuda))


# States and modules --------------------------------------------------------------------------------------------------


def test_faces_of_a_table_share_its_state(where, request):
    table = filled(where, name=request.node.name)
    again = gpuhash.open(request.node.name)
    assert again._torch_state is table._torch_state
    assert table.copy()._torch_state is not table._torch_state
    table.close()
    assert table._torch_state is again._torch_state
    other = HashTable("int64", "float32", device=where, name=request.node.name)
    assert TableModule(table).size() == TableModule(again).size() == 5
    assert TableModule(other).size() == 0
    other.close()


def test_a_name_that_comes_later(where, request):
    table = filled(where)
    state = table._torch_state
    own = state.item()
    gpuhash._core.register_table(request.node.name, table._core)
    assert TableModule(table)._torch_state is state
    assert state.item() == gpuhash._core.handle_of_name(request.node.name) != own
    assert TableModule(table).size() == 5
    gpuhash._core.unregister_table(request.node.name, None)
    assert table._torch_state.item() == own


def test_a_module_of_a_table_that_was_closed(where, request):
    """It stays with its table, whoever gets the name, and whatever is written into its buffers."""
    table = filled(where, name=request.node.name, default=2.0)
    module = TableModule(table)
    table.close()
    assert module._torch_state.item() == gpuhash._core.own_handle_of(table._core)
    keys = torch.arange(3, 6, device=where)
    assert module.get(keys).tolist() == [30.0, 40.0, 2.0]
    other = HashTable("int64", "float32", device=where, name=request.node.name)
    other[keys] = 9.0
    assert module.find(keys)[0].tolist() == [30.0, 40.0, 2.0]
    assert module.erase(keys[:1]).tolist() == [True]
    assert (module.size(), len(table), len(other)) == (4, 4, 3)
    module._torch_state.fill_(other._torch_state.item())  # as DistributedDataParallel broadcasts buffers
    module._torch_default.fill_(7.0)
    assert module.get(keys).tolist() == [2.0, 40.0, 2.0]
    assert module.contains(keys).tolist() == [False, True, False]
    assert table.get(keys).tolist() == torch.compile(table.get, backend="eager")(keys).tolist() == [2.0, 40.0, 2.0]
    other.close()


class Scaled(TableModule):
    def __init__(self, table: HashTable, scale: float, *, layer: Any) -> None:
        super().__init__(table)
        self.scale = scale
        self.layer = layer
        self.register_buffer("offset", torch.ones(1))


def test_copies_are_whole(where):
    """Of a subclass as well, whose constructor takes other arguments."""
    table = filled(where)
    module = Scaled(table, 3.0, layer=torch.nn.Linear(2, 2)).eval()
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded, copied = torch.load(file, weights_only=False), copy.deepcopy(module)
    for other in (loaded, copied):
        assert not other.training
        assert not other.layer.training
        assert (other.scale, other.offset.item(), other.size()) == (3.0, 1.0, 5)
        assert other.layer is not module.layer
        assert torch.equal(other.layer.weight, module.layer.weight)
        assert list(other.state_dict()) == list(module.state_dict())
    assert copied.table is table
    assert loaded.table == table
    assert loaded.table is not table


def test_modules_are_copied_and_moved_with_their_model(where):
    table = filled(where, default=3.0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), TableModule(table)).to(torch.float64)
    assert model[1]._torch_state.dtype == torch.int64
    assert model[1]._torch_default.dtype == torch.float32
    assert not any("torch" in name for name in model.state_dict())
    copied = copy.deepcopy(model)[1]
    assert copied.table is table
    assert copied._torch_state is table._torch_state
    assert "size=5" in repr(model)
    file = io.BytesIO()
    torch.save(model[1], file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.table == table
    assert loaded.table is not table
    loaded.erase(torch.arange(5, device=where))
    assert (loaded.size(), len(table)) == (0, 5)
    with pytest.raises(TypeError, match="expected a HashTable or HashSet"):
        TableModule({})
