"""Tables in functions that torch.compile compiles: the results are those of a call without it, and what has an op stays
in the graph.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from support.frameworks import module
from support.samples import same_bytes

import gpuhash
from gpuhash import HashSet, HashTable

torch = module("torch")
pytestmark = pytest.mark.skipif(torch is None, reason="torch is not installed")


class Tables:
    """The same tables for every call."""

    def __init__(self, device: str) -> None:
        numbers = torch.arange(5, device=device)
        self.table = HashTable("int64", "float32", default=0.0, device=device)
        self.rows = HashTable("int64", "float32", value_shape=(3,), device=device)
        self.named = HashTable("int64", {"weight": ("float32", (2,)), "count": "int64"}, device=device)
        self.set = HashSet("int64", device=device)
        self.named[numbers] = {"weight": 1.0, "count": numbers}
        self.table[numbers] = numbers.to(torch.float32)
        self.rows[numbers] = 1.0
        self.set.add(numbers)

    def contents(self) -> tuple[dict[int, Any], ...]:
        keys, columns = self.named.items("torch")
        tables = [self.table.items("torch"), self.rows.items("torch")]
        tables += [(keys, values) for values in columns.values()] + [(self.set.keys("torch"),) * 2]
        return tuple(dict(zip(*(part.tolist() for part in parts), strict=True)) for parts in tables)


def into_out(t: Tables, x: Any) -> Any:
    values = torch.empty(5, device=x.device)
    found = torch.empty(5, dtype=torch.bool, device=x.device)
    t.table.find(x, out=(values, found))
    return values + found


def assigned(t: Tables, x: Any) -> Any:
    y = x * 2
    t.table[y] = y.to(torch.float32) + 1
    return t.table[y] + 1


def deleted(t: Tables, x: Any) -> Any:
    t.table[x + 1000] = 1.0
    del t.table[x + 1000]
    return x + len(t.table)


def erased_by_syntax(t: Tables, x: Any) -> Any:
    t.table[x + 1000] = 1.0
    del t.table[x + 1000]
    return x + 1


def removed(t: Tables, x: Any) -> Any:
    t.set.add(x + 1000)
    t.set.remove(x + 1000)
    return x + 1


def by_columns(t: Tables, x: Any) -> Any:
    t.named[x + 2] = {"count": x}
    count = t.named[x + 2]["count"]
    t.named.insert(x + 4, {"weight": 3.0, "count": x + 9})
    values, found = t.named.find(x + 3, {"count": -1})
    some = t.named.find(x, columns=["count"])[0]["count"] + t.named.get(x + 3, {"weight": 7.0})["count"]
    whole = t.named.setdefault(x + 5, {"weight": 2.0})["weight"] + t.named.pop(x + 6, {"weight": 5.0})["weight"]
    return values["weight"] + whole + (values["count"] + some + found + count)[:, None]


def operations_by_column(t: Tables, x: Any) -> Any:
    t.named.insert_or_apply(x + 2, {"count": 7, "weight": 0.5}, "add")
    t.named.insert_or_apply(x + 2, {"count": 5, "weight": 4.0}, {"weight": "max", "count": "bit-xor"})
    _, is_new = t.named.find_or_insert(x + 3, {"count": 1})
    return t.named.contains(x + 5) + is_new.long() + t.named.rows(x).sign()


def after(call: Any, x: Any) -> Any:
    """The call for its effect, between two operations of the graph."""
    y = x + 1
    call()
    return y * 2


USES = {
    "find": lambda t, x: t.table.find(x)[0] + 1,
    "find-by-name": lambda t, x: t.table.find(keys=x + 3, default=2.0)[0] + 1,
    "find-unbound": lambda t, x: HashTable.find(t.table, x)[0] + 1,
    "find-out": into_out,
    "get": lambda t, x: t.table.get(x + 2, 5.0) + 1,
    "getitem": lambda t, x: t.table[x + 2] + 1,
    "contains": lambda t, x: ~t.table.contains(x + 2),
    "insert": lambda t, x: ~t.table.insert(x + 2, x.to(torch.float32)),
    "insert_or_assign": lambda t, x: ~t.table.insert_or_assign(x + 2, x.to(torch.float32)),
    "insert_or_apply": lambda t, x: ~t.table.insert_or_apply(x + 2, x.to(torch.float32), "add"),
    "erase": lambda t, x: ~t.table.erase(x + 2),
    "setdefault": lambda t, x: t.table.setdefault(x + 2, 3.0) + 1,
    "pop": lambda t, x: t.table.pop(x + 2, 3.0) + 1,
    "setitem": assigned,
    "setitem-method": lambda t, x: after(lambda: t.table.__setitem__(x + 2, 2.0), x),
    "delitem": deleted,
    "update": lambda t, x: after(lambda: t.table.update(x + 2, x.to(torch.float32)), x),
    "clear": lambda t, x: after(t.table.clear, x),
    "reserve": lambda t, x: after(lambda: t.table.reserve(1000), x),
    "keys": lambda t, x: t.table.keys("torch").sort()[0] + x,
    "items": lambda t, x: t.table.items("torch")[1].sort()[0] + x,
    "len": lambda t, x: x + len(t.table),
    "bool": lambda t, x: x + 1 if t.table else x,
    "in": lambda t, x: x + 1 if 3 in t.table else x,
    "iterate": lambda t, x: x + sum(key for key in t.set),
    "equal": lambda t, x: x + 1 if t.table == t.table.copy() else x,
    "repr": lambda t, x: x + len(repr(t.table)),
    "copy": lambda t, x: t.table.copy()[x] + 1,
    "find_or_insert": lambda t, x: t.rows.find_or_insert(x + 2, 4.0)[1].long() + 1,
    "rows": lambda t, x: t.rows.rows(x).sort()[0] + 1,
    "row_storage": lambda t, x: t.rows.row_storage_as("torch") + 1,
    "new-table": lambda t, x: HashTable.from_items(x, x.to(torch.float32))[x] + 1,
    "add": lambda t, x: ~t.set.add(x + 2),
    "remove": removed,
    "del": erased_by_syntax,
    "columns": by_columns,
    "columns-op": operations_by_column,
    "discard": lambda t, x: after(lambda: t.set.discard(x + 2), x),
    "union": lambda t, x: x + len(t.set | HashSet.from_keys(x + 2)),
    "difference": lambda t, x: x + len(t.set.difference([1, 2, 77])),
    "popitem": lambda t, x: x + len(t.table.popitem()),
    "unique": lambda t, x: gpuhash.unique(x // 2) + 1,
    "factorize": lambda t, x: gpuhash.factorize(x // 2)[0] + 1,
    "isin": lambda t, x: ~gpuhash.isin(x // 2, x),
    "store": lambda t, x: (gpuhash.store.__setitem__("compiled", x), gpuhash.store["compiled"] + 1)[1],
}
ONE_GRAPH = {
    *("find", "find-by-name", "get", "getitem", "contains", "rows", "insert", "insert_or_assign", "insert_or_apply"),
    *("setitem", "setitem-method", "find_or_insert", "setdefault", "pop", "erase", "del", "remove", "add"),
    *("columns", "columns-op", "unique", "factorize", "isin"),
}
# Dynamo traces methods that are taken from the class without a table since 2.13.
NOT_ONE_GRAPH = [use for use in USES if use not in {*ONE_GRAPH, "find-unbound"}]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    if "compiled" in gpuhash.store:
        del gpuhash.store["compiled"]


@pytest.mark.filterwarnings("error:Dynamo does not know")
@pytest.mark.parametrize("use", USES)
def test_compiled_function_does_what_the_plain_one_does(on_device, use):
    """Twice: traced, and from the cache."""
    function = USES[use]
    plain, compiled = Tables(on_device.table_device), Tables(on_device.table_device)
    run = torch.compile(function, backend="eager")
    for start in (0, 1):
        x = torch.arange(start, start + 5, device=on_device.table_device)
        expected = function(plain, x)
        got = run(compiled, x)
        if use != "popitem":  # which takes whichever key
            same_bytes(got, expected.cpu().numpy())
            assert compiled.contents() == plain.contents()
        assert len(compiled.table) == len(plain.table)


@pytest.mark.parametrize("use", sorted(ONE_GRAPH))
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_calls_that_stay_in_the_graph(on_device, use, backend):
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    function = USES[use]
    plain, compiled = Tables(on_device.table_device), Tables(on_device.table_device)
    run = torch.compile(function, backend=count, fullgraph=True)
    for start in (0, 1):
        x = torch.arange(start, start + 5, device=on_device.table_device)
        same_bytes(run(compiled, x), function(plain, x).cpu().numpy())
        assert compiled.contents() == plain.contents()
    run(Tables(on_device.table_device), x)
    assert len(graphs) == 1  # also for other tables


@pytest.mark.parametrize("use", NOT_ONE_GRAPH)
def test_fullgraph_says_that_the_graph_breaks(use):
    tables, x = Tables("cpu"), torch.arange(5)
    with pytest.raises(torch._dynamo.exc.Unsupported) as error:
        torch.compile(USES[use], backend="eager", fullgraph=True)(tables, x)
    text = str(error.value)
    assert "gpuhash works outside of compiled graphs" in text or "HashTable" in text


def test_operations_around_a_call_are_compiled():
    """The break costs the graph at the call, not what stands before and behind it; and nothing of ours is compiled."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    table = HashTable("int64", "float32", default=0.0)
    table[torch.arange(5)] = 1.0

    out = torch.empty(5)

    def function(x: Any) -> Any:
        values = table.setdefault((x + 1) * 2, 3.0, out)
        return (values - 1) * 2

    x = torch.arange(5)
    same_bytes(torch.compile(function, backend=backend)(x), function(x).numpy())
    assert [len(graph) for graph in graphs] == [2, 2]
    for use in ("reserve", "copy", "len"):
        graphs.clear()
        torch._dynamo.reset()
        torch.compile(USES[use], backend=backend)(Tables("cpu"), x)
        assert len(graphs) <= 2


def test_inductor(on_device):
    table = HashTable("int64", "float32", default=0.0, device=on_device.table_device)
    keys = torch.arange(100, device=on_device.table_device)

    def function(x: Any) -> Any:
        table.insert_or_apply(x * 2, x.to(torch.float32) + 1, "add")
        return table.find(x)[0] * 2 + table.get(x + 1, -1.0)

    expected = function(keys)
    table.clear()
    try:
        got = torch.compile(function)(keys)
    except torch._dynamo.exc.BackendCompilerFailed as error:  # no compiler of its own
        pytest.skip(f"inductor does not work here: {error}")
    same_bytes(got, expected.cpu().numpy())


def test_table_in_a_module_and_a_method_on_its_own():
    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = HashTable("int64", "float32", default=0.0)
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: Any) -> Any:
            values, _ = self.table.find(x)
            return (values * self.weight).sum()

    embedding = Embedding()
    x = torch.arange(3)
    embedding.table[x] = torch.tensor([1.0, 2.0, 3.0])
    loss = torch.compile(embedding, backend="eager")(x)
    loss.backward()
    assert loss.item() == 6
    same_bytes(embedding.weight.grad, torch.tensor([1.0, 2.0, 3.0]).numpy())
    find = embedding.table.find
    for run in (lambda x: find(x)[0] + 1, lambda x: torch.compile(find, backend="eager", fullgraph=True)(x)[0] + 1):
        compiled = torch.compile(run, backend="eager", fullgraph=True)
        same_bytes(compiled(x), torch.tensor([2.0, 3.0, 4.0]).numpy())


def test_subclass_that_calls_super():
    class Doubled(HashTable):
        def get(self, keys: Any, default: Any = None, out: Any = None) -> Any:
            return super().get(keys, default, out) * 2

    table = Doubled("int64", "float32")
    table[torch.arange(3)] = 2.0
    function = torch.compile(lambda x: table.get(x, 1.0) + 1, backend="eager")
    same_bytes(function(torch.arange(4)), torch.tensor([5.0, 5.0, 5.0, 3.0]).numpy())


def test_properties_are_guarded():
    """They are traced, and what was compiled for another capacity is compiled anew."""
    table = HashTable("int64", "float32", capacity=8)
    function = torch.compile(lambda x: x + table.capacity + len(table.value_shape), backend="eager", fullgraph=True)
    x = torch.zeros(2, dtype=torch.int64)
    assert function(x).tolist() == [table.capacity] * 2
    table.reserve(10_000)
    assert function(x).tolist() == [table.capacity] * 2


def test_threads_that_compile_and_threads_that_do_not():
    table = HashTable("int64", "float32", default=0.0)
    table[torch.arange(1000)] = torch.arange(1000).to(torch.float32)
    function = torch.compile(lambda x: table.find(x)[0] + 1, backend="eager")
    failures = []

    def work(number: int) -> None:
        x = torch.arange(1000)
        for _ in range(20):
            got = function(x) if number % 2 else table.find(x)[0] + 1
            if not torch.equal(got, x + 1.0):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("first", ["gpuhash", "torch", "torch._dynamo"])
def test_in_any_order_of_imports(first):
    """And importing gpuhash imports no torch."""
    program = f"""
import importlib, sys
importlib.import_module({first!r})
import gpuhash
assert "torch" in sys.modules or {first!r} == "gpuhash"
import torch
table = gpuhash.HashTable("int64", "int64", default=0)
frames = []
def backend(graph, _):
    frames.append(graph)
    return graph.forward
out = torch.empty(3, dtype=torch.int64)
compiled = torch.compile(lambda x: table.setdefault(x, 7, out=out) + 1, backend=backend)
assert compiled(torch.arange(3)).tolist() == [8] * 3
assert len(frames) == 1, frames
assert not any(type(finder).__module__.startswith("gpuhash") for finder in sys.meta_path)
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)


# Transformed tensors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        *("find", "get", "getitem", "contains", "insert", "erase", "setdefault", "pop", "setitem", "add", "rows"),
        *("unique", "factorize", "isin", "store"),
    ],
)
def test_vmap_is_refused(use):
    tables = Tables("cpu")
    before = tables.contents()
    with pytest.raises(TypeError, match=r"torch\.func .*outside of the transformed function.*batch"):
        torch.func.vmap(lambda x: USES[use](tables, x))(torch.arange(10).reshape(2, 5))
    assert tables.contents() == before


@pytest.mark.parametrize("transform", ["grad", "jvp", "functionalize"])
def test_other_transforms_are_refused(transform):
    table = HashTable("int64", "float32")
    keys = torch.arange(5)

    def store(x: Any) -> Any:
        table.insert_or_assign(keys, x)
        return x.sum()

    x = torch.ones(5)
    transformed = {
        "grad": torch.func.grad(store),
        "jvp": lambda x: torch.func.jvp(store, (x,), (x,)),
        "functionalize": torch.func.functionalize(store),
    }[transform]
    with pytest.raises(TypeError, match="outside of the transformed function"):
        transformed(x)
    assert len(table) == 0
    same = HashTable("int64", "float32", default=2.0)  # what is not transformed goes in and out as ever
    gradient = torch.func.grad(lambda x: (same.find(keys)[0] * x).sum())(x)
    assert gradient.tolist() == [2.0] * 5


def test_out_of_a_transform_is_refused():
    table = HashTable("int64", "float32")
    keys = torch.arange(5)
    with pytest.raises(TypeError, match="outside of the transformed function"):
        torch.func.vmap(lambda out: table.get(keys, 1.0, out=out))(torch.zeros(3, 5))


def test_fake_tensors_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    tables = Tables("cpu")
    before = tables.contents()
    with FakeTensorMode():
        for use in ("find", "insert", "erase", "setdefault", "add", "rows", "unique", "isin"):
            with pytest.raises(TypeError, match="fake tensor"):
                USES[use](tables, torch.arange(5))
    assert tables.contents() == before


# The version counter -------------------------------------------------------------------------------------------------

INTO = {
    "find": lambda t, keys, out: t.find(keys, out=(out, torch.empty(3, dtype=torch.bool, device=keys.device))),
    "get": lambda t, keys, out: t.get(keys, 0.0, out=out),
    "setdefault": lambda t, keys, out: t.setdefault(keys, 0.0, out=out),
    "pop": lambda t, keys, out: t.pop(keys, 0.0, out=out),
    "general": lambda t, keys, out: t.get([0, 1, 2] if keys.device.type == "cpu" else keys, [0.0] * 3, out=out),
}


@pytest.mark.parametrize("method", INTO)
def test_backward_through_a_buffer_that_was_filled_again_raises(on_device, method):
    device = on_device.table_device
    table = HashTable("int64", "float32", device=device)
    keys = torch.arange(3, device=device)
    table[keys] = 5.0
    weight = torch.ones(3, requires_grad=True, device=device)
    buffer = torch.ones(3, device=device)
    loss = (weight * buffer).sum()  # saves the buffer
    INTO[method](table, keys, buffer)
    assert buffer.tolist() == [5.0] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("method", ["contains", "insert", "insert_or_assign", "insert_or_apply", "erase", "rows"])
def test_masks_and_row_numbers_count_as_changed(on_device, method):
    device = on_device.table_device
    table = HashTable("int64", "float32", value_shape=(2,), device=device)
    keys = torch.arange(3, device=device)
    table[keys] = 1.0
    out = torch.zeros(3, dtype=torch.int64 if method == "rows" else torch.bool, device=device)
    arguments = {"insert_or_apply": [1.0, "add"], "insert": [1.0], "insert_or_assign": [1.0]}.get(method, [])
    before = out._version
    for asked in (keys, keys.cpu().tolist() if device == "cpu" else keys):  # both paths
        getattr(table, method)(asked, *arguments, out=out)
    assert out._version >= before + 2
    assert keys._version == 0


def test_inference_tensors_have_no_counter(on_device):
    device = on_device.table_device
    table = HashTable("int64", "float32", default=1.0, device=device)
    with torch.inference_mode():
        keys, out = torch.arange(3, device=device), torch.zeros(3, device=device)
        assert table.get(keys, 2.0, out=out) is out
        assert table.get([0, 1, 2] if device == "cpu" else keys, [2.0] * 3, out=out) is out
    assert out.tolist() == [2.0] * 3


def test_version_of_a_view_is_that_of_its_base(on_device):
    device = on_device.table_device
    table = HashTable("int64", "float32", default=1.0, device=device)
    base = torch.zeros(10, device=device)
    table.get(torch.arange(3, device=device), 2.0, out=base[2:5])
    assert base._version == 1
