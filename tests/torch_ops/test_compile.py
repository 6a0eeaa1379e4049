"""Compiled functions that use tables: calls keep their order, and nothing is lost, wherever the table comes from."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.compiler import StandIn
from support.frameworks import GPU, gpu_count
from support.memory_resources import counting_memory
from support.samples import same_bytes
from support.torch_ops import need_torch_ops

import gpuhash
from gpuhash import HashSet, HashTable, _core

torch, ours = need_torch_ops()
TableModule = ours.TableModule


@pytest.fixture
def where(on_device):
    """The device of tables and tensors."""
    return on_device.table_device


@pytest.fixture(params=["aot_eager", "inductor"])
def backend(request):
    return request.param


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Any, backend: str = "aot_eager", **options: Any) -> Any:
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def new_table(where: str, **options: Any) -> HashTable:
    return HashTable("int64", "float32", device=where, **options)


def items(table: HashTable) -> dict[int, Any]:
    keys, values = table.items("torch")
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


# Order ---------------------------------------------------------------------------------------------------------------


def changes_and_lookups(table: Any, keys: Any) -> Any:
    """Each lookup sees what was changed before it, and nothing of what is changed after."""
    results = [table.find(keys)[0]]
    table.insert_or_assign(keys, keys.float())
    results.append(table.find(keys)[0])
    table[keys[1:]] = -1.0
    results.append(table.get(keys, 9.0))
    table.erase(keys[:2])
    results.append(table.get(keys, 9.0))
    table.insert_or_apply(keys, 3.0, "add")
    results.append(table.find(keys)[0])
    return results


def test_order(where, backend):
    plain, traced = new_table(where), new_table(where)
    run = compiled(changes_and_lookups, backend)
    for start in (0, 2):
        keys = torch.arange(start, start + 4, device=where)
        for got, expected in zip(run(traced, keys), changes_and_lookups(plain, keys), strict=True):
            same_bytes(got, expected.cpu().numpy())
    assert items(traced) == items(plain)


def test_changes_whose_results_nobody_uses(where, backend):
    table, keys = new_table(where), torch.arange(4, device=where)

    def function(keys: Any) -> None:
        table.insert(keys, 1.0)
        table.insert_or_assign(keys[:2], 2.0)
        table[keys[3:]] = 3.0
        table.insert_or_apply(keys, 10.0, "add")
        table.erase(keys[2:3])

    compiled(function, backend)(keys)
    assert items(table) == {0: 12.0, 1: 12.0, 3: 13.0}


def test_what_an_applied_batch_comes_to(where, backend):
    plain, traced = new_table(where), new_table(where)
    keys = torch.tensor([1, 2, 1], device=where)
    run = compiled(lambda table, keys: table.apply_and_find(keys, 2.0, op="add"), backend)
    for new in (2, 0):
        values, is_new = run(traced, keys)
        expected, _ = plain.apply_and_find(keys, 2.0, "add")
        same_bytes(values, expected.cpu().numpy())
        assert is_new.sum().item() == new
    assert items(traced) == items(plain)


def test_the_same_lookup_twice_around_a_change(where, backend):
    """Compilers merge equal calls, unless something between them changes what they read."""
    table, keys = new_table(where), torch.arange(3, device=where)

    def function(keys: Any) -> Any:
        before = table.contains(keys)
        table.insert(keys, 1.0)
        return before, table.contains(keys)

    before, after = compiled(function, backend)(keys)
    assert before.tolist() == [False] * 3
    assert after.tolist() == [True] * 3


def test_two_faces_of_one_table(where, backend, request):
    first = new_table(where, name=request.node.name)
    second = gpuhash.open(request.node.name)
    module = TableModule(second)
    keys = torch.arange(3, device=where)

    def function(a: Any, b: Any, keys: Any) -> Any:
        a[keys] = 1.0
        one = b.find(keys)[0]
        b.insert_or_apply(keys, 1.0, "add")
        two = module.find(keys)[0]
        module.erase(keys[:1])
        return one, two, a.contains(keys)

    one, two, there = compiled(function, backend)(first, second, keys)
    first.close()
    assert (one.tolist(), two.tolist(), there.tolist()) == ([1.0] * 3, [2.0] * 3, [False, True, True])


def test_loops(where, backend):
    table, keys = new_table(where), torch.arange(3, device=where)

    def function(keys: Any) -> Any:
        sums = []
        for step in range(5):
            table.insert_or_apply(keys, float(step), "add")
            sums.append(table.find(keys)[0].sum())
        return torch.stack(sums)

    assert compiled(function, backend)(keys).tolist() == [0.0, 3.0, 9.0, 18.0, 30.0]


# Where tables come from ----------------------------------------------------------------------------------------------

GLOBAL: dict[str, Any] = {}


class Model(torch.nn.Module):
    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, keys: Any) -> Any:
        return self.table.find(keys)[0] * self.weight


def test_arguments_attributes_globals_and_cells(where):
    tables = [new_table(where) for _ in range(4)]
    keys = torch.arange(3, device=where)
    for number, table in enumerate(tables):
        table[keys] = 10.0**number
    GLOBAL["table"] = tables[1]
    model = Model(tables[2]).to(where)

    def function(table: Any, keys: Any) -> Any:
        found = [each.find(keys)[0] for each in (table, GLOBAL["table"], tables[3])]
        return sum(found) + model(keys)

    assert compiled(function)(tables[0], keys).tolist() == [1111.0] * 3
    GLOBAL.clear()


def test_one_graph_for_all_tables_of_a_kind(where):
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    keys = torch.arange(3, device=where)

    def function(table: Any, keys: Any) -> Any:
        table.insert(keys, 5.0)
        return table[keys]

    run = torch.compile(function, backend=backend, fullgraph=True)
    for number in range(20):
        table = new_table(where, default=float(number), capacity=10 * number)
        table[keys[:1]] = number
        assert run(table, keys).tolist() == [number, 5.0, 5.0]
    assert len(graphs) == 1
    run(HashTable("int64", "float32", value_shape=(2,), device=where), keys)
    assert len(graphs) == 2


def test_tables_of_many_shapes(where):
    """Lengths are constants of a graph, however many there have been."""
    keys = torch.arange(3, device=where)
    run = compiled(lambda table, keys: table.setdefault(keys, 2.0) + table.find(keys)[0])
    for length in (2, 3, 4, 5):
        table = new_table(where, value_shape=(length,))
        table[keys[:1]] = 7.0
        assert run(table, keys).tolist() == [[14.0] * length] + [[4.0] * length] * 2


def test_models_with_tables_of_their_own(where):
    """Attributes of modules are no inputs of a graph, unless they are tensors."""
    keys = torch.arange(3, device=where)
    models = [Model(new_table(where)).to(where) for _ in range(12)]
    for number, model in enumerate(models):
        model.table[keys] = number
    run = compiled(lambda model, keys: model(keys))
    assert [run(model, keys).tolist() for model in models] == [[float(number)] * 3 for number in range(len(models))]


def test_batches_of_any_length(where):
    lengths = []

    def backend(graph: Any, inputs: Any) -> Any:
        lengths.append(graph)
        return graph.forward

    table = new_table(where)
    run = torch.compile(lambda keys: table.insert(keys, keys.float()), backend=backend, fullgraph=True, dynamic=True)
    for length in (3, 5, 100, 2):
        assert run(torch.arange(length, device=where)).shape == (length,)
    assert items(table) == {key: float(key) for key in range(100)}
    assert len(lengths) == 1


def test_keys_of_a_length_that_only_the_data_tell(where, backend):
    table = HashTable("int64", "int64", device=where)

    def count(x: Any) -> Any:
        values, counts = gpuhash.unique(x, return_counts=True)
        table.insert_or_apply(values, counts, "add")
        return table[values], gpuhash.isin(x, values)

    run = compiled(count, backend)
    for start in (0, 1):
        x = torch.arange(start, start + 8, device=where) // 3
        found, mask = run(x)
        assert mask.all()
        assert len(found) == len(set(x.tolist()))
    assert dict(zip(*(part.tolist() for part in table.items("torch")), strict=True)) == {0: 5, 1: 6, 2: 5}


def test_sizes(where, backend):
    table = new_table(where)
    module = TableModule(table)

    def function(keys: Any) -> Any:
        module.insert(keys, 1.0)
        before = module.size()
        module.erase(keys[:2])
        return keys + before * 100 + module.size()

    assert compiled(function, backend)(torch.arange(5, device=where)).tolist() == [503 + key for key in range(5)]


def test_several_tables_and_sets(where, backend):
    ids, rows, seen = (
        HashTable("int64", "int64", device=where),
        HashTable("int64", "float32", value_shape=(2,), device=where),
        HashSet("int64", device=where),
    )

    def function(keys: Any) -> Any:
        new = seen.add(keys)
        ids.insert(keys, keys * 2)
        rows[ids[keys]] = keys.float()[:, None].expand(-1, 2)
        return new, rows.find(keys * 2)[0], seen.contains(keys + 1)

    new, values, after = compiled(function, backend)(torch.arange(3, device=where))
    assert (new.tolist(), after.tolist()) == ([True] * 3, [True, True, False])
    assert values.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert (len(ids), len(rows), len(seen)) == (3, 3, 3)


DTYPES = ["bool", "uint8", "int16", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128"])
def test_values_of_every_dtype_by_inductor(where, dtype):
    table = HashTable("int64", dtype, value_shape=(2,), device=where)
    keys = torch.arange(3, device=where)
    values = (torch.arange(6).reshape(3, 2) % 5).to(getattr(torch, dtype)).to(where)
    if values.is_complex():
        values *= 2 - 1j

    def function(keys: Any, values: Any) -> Any:
        table[keys + 9] = values[0]
        inserted = table.insert(keys, values)
        assigned = table.insert_or_assign(keys + 1, values)
        applied = table.insert_or_apply(keys + 2, values, "add" if dtype != "bool" else "bit_or")
        return inserted, assigned, applied, table.find(keys, values[0])

    inserted, assigned, applied, (found, _) = compiled(function, "inductor")(keys, values)
    for mask, expected in ((inserted, [True] * 3), (assigned, [False, False, True]), (applied, [False, False, True])):
        assert mask.tolist() == expected
    first, second, third = values.cpu()
    add = torch.logical_or if dtype == "bool" else lambda a, b: torch.from_numpy(a.numpy() + b.numpy())
    if dtype == "bfloat16":
        add = torch.add
    model = {0: first, 1: first, 2: add(second, first), 3: add(third, second), 4: third, 9: first, 10: first, 11: first}
    assert items(table) == {key: value.tolist() for key, value in model.items()}
    assert torch.equal(found.cpu(), torch.stack([model[key] for key in range(3)]))


def test_complex_values(where):
    """Inductor cannot take them into ops that write: they go as pairs of real numbers."""
    for value_shape in ((), (2,)):
        plain, traced, mapped = (
            HashTable("int64", "complex64", value_shape=value_shape, device=where) for _ in range(3)
        )
        keys = torch.arange(4, device=where)
        values = torch.arange(1.0, 1 + 4 * max(1, len(value_shape) * 2), device=where).reshape(4, *value_shape) * (
            1 + 2j
        )

        def function(table: Any, keys: Any, values: Any) -> Any:
            table[keys] = values
            table[keys[2:]] = values[0]
            table.insert_or_apply(keys[1:], 2.0, "multiply")

        function(plain, keys, values)
        compiled(function, "inductor")(traced, keys, values)
        assert traced == plain
        insert = TableModule(mapped).insert
        pairs, one_each = keys.reshape(2, 2), values[:2]
        assert torch.vmap(insert)(pairs, values.reshape(2, 2, *value_shape)).all()
        assert torch.equal(mapped[keys], values)
        assert torch.vmap(insert)(pairs + 4, one_each).all()
        assert torch.equal(mapped[keys + 4], one_each.repeat_interleave(2, 0))
        module = TableModule(mapped)
        module[keys] = values.conj()
        assert torch.equal(mapped[keys], values.conj().resolve_conj())
        with pytest.raises(ValueError, match="the values have shape"):
            module.insert(keys, values[:3])


# Gradients, control flow, modes --------------------------------------------------------------------------------------


def test_training(where, backend):
    """Lookups before and after a gradient; changes in forward and in backward, in order."""
    table = new_table(where, default=0.0)
    keys = torch.arange(3, device=where)

    class Stored(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, keys: Any) -> Any:
            ctx.save_for_backward(keys)
            return x * table[keys]

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (keys,) = ctx.saved_tensors
            table.insert_or_apply(keys, gradient, "add")
            return gradient, None

    def function(weight: Any, keys: Any) -> Any:
        table[keys] = 2.0
        loss = Stored.apply(weight, keys).sum()
        table.insert_or_apply(keys, 1.0, "add")
        return loss

    weight = torch.ones(3, device=where, requires_grad=True)
    loss = compiled(function, backend)(weight, keys)
    assert loss.item() == 6.0
    assert items(table) == dict.fromkeys(range(3), 3.0)
    loss.backward()
    assert items(table) == dict.fromkeys(range(3), 4.0)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(where, guard):
    table, keys = new_table(where), torch.arange(3, device=where)
    run = compiled(changes_and_lookups)
    with guard():
        run(table, keys)
    plain = new_table(where)
    changes_and_lookups(plain, keys)
    assert items(table) == items(plain)
    run(table, keys)


def test_defaults_get_the_gradient_of_absent_keys(where):
    table = HashTable("int64", "float32", value_shape=(2,), device=where)
    keys = torch.arange(4, device=where)
    table[keys[:2]] = 5.0
    module = TableModule(table)
    for shape in ((2,), (4, 2)):
        for run in (module.get, compiled(table.get)):
            default = torch.ones(shape, device=where, requires_grad=True)
            got = run(keys, default)
            assert got.tolist() == [[5.0, 5.0]] * 2 + [[1.0, 1.0]] * 2
            (got * torch.arange(1.0, 9.0, device=where).reshape(4, 2)).sum().backward()
            expected = [[0.0, 0.0], [0.0, 0.0], [5.0, 6.0], [7.0, 8.0]] if shape == (4, 2) else [12.0, 14.0]
            assert default.grad.tolist() == expected


def test_lookups_in_control_flow(where):
    table, keys = new_table(where, default=-1.0), torch.arange(4, device=where)
    table[keys] = keys.float()

    def function(keys: Any) -> Any:
        there = torch.cond(keys.sum() > 4, lambda k: table[k] * 2, lambda k: table[k], (keys,))
        table[keys] = 100.0
        return there, table[keys]

    run = compiled(function)
    for k, expected in ((keys, [0.0, 2.0, 4.0, 6.0]), (keys[:1], [100.0])):
        there, after = run(k)
        assert there.tolist() == expected
        assert after.tolist() == [100.0] * len(k)

    chain = HashTable("int64", "int64", device=where)
    chain[keys] = keys + 1
    step = compiled(
        lambda key: torch._higher_order_ops.while_loop(lambda k: (k < 4).all(), lambda k: (chain.find(k)[0],), (key,))
    )
    assert step(torch.tensor([1], device=where))[0].tolist() == [4]


def test_changes_in_control_flow_are_refused(where):
    """By PyTorch, for any op that writes to its arguments; and the table is as it was."""
    table, keys = new_table(where), torch.arange(4, device=where)
    run = compiled(lambda keys: torch.cond(keys.sum() > 4, lambda k: table.insert(k, 1.0), table.contains, (keys,)))
    with pytest.raises(Exception, match=r"gpuhash::change|mutat|modifying|executing %cond"):
        run(keys)
    assert len(table) == 0


def test_reduce_overhead(where):
    """Calls are no part of CUDA graphs: each runs, and the table may grow."""
    table, plain = new_table(where, capacity=8), new_table(where)
    run = compiled(changes_and_lookups, "inductor", mode="reduce-overhead")
    for start in range(6):
        keys = torch.arange(4 * start, 4 * start + 40, device=where)[:40]
        torch.compiler.cudagraph_mark_step_begin()
        for got, expected in zip(run(table, keys), changes_and_lookups(plain, keys), strict=True):
            same_bytes(got, expected.cpu().numpy())
    assert items(table) == items(plain)
    other = new_table(where)
    other[keys] = 7.0
    torch.compiler.cudagraph_mark_step_begin()
    assert run(other, keys)[0].tolist() == [7.0] * 40  # another table is never mistaken for the one of before


def test_reduce_overhead_of_set_routines(where):
    def function(x: Any) -> Any:
        values, inverse = gpuhash.unique(x * 2, return_inverse=True)
        return values[inverse], gpuhash.isin(x, x[:3] + 1)

    run = compiled(function, "inductor", mode="reduce-overhead")
    for start in range(5):
        x = torch.arange(start, start + 8, device=where) % 6
        torch.compiler.cudagraph_mark_step_begin()
        doubled, mask = run(x)
        assert torch.equal(doubled, x * 2)
        assert torch.equal(mask, torch.isin(x, x[:3] + 1))


def test_side_streams(torch_cuda):
    table, keys = new_table(GPU), torch.arange(1000, device=GPU)
    run = compiled(changes_and_lookups)
    plain = new_table(GPU)
    expected = changes_and_lookups(plain, keys)
    stream = torch_cuda.cuda.Stream(GPU)
    stream.wait_stream(torch_cuda.cuda.current_stream(GPU))
    with torch_cuda.cuda.stream(stream):
        got = run(table, keys)
    torch_cuda.cuda.current_stream(GPU).wait_stream(stream)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


def test_two_devices_in_one_graph():
    if gpu_count() < 2 or torch.cuda.device_count() < 2:
        pytest.skip("there are not two GPUs")
    tables = [new_table(f"cuda:{index}") for index in (0, 1)]

    def function(keys: Any) -> Any:
        for table, mine in zip(tables, keys, strict=True):
            table[mine] = mine.float()
        return [table[mine] for table, mine in zip(tables, keys, strict=True)]

    keys = [torch.arange(5, device=table.device) for table in tables]
    for index, got in enumerate(compiled(function)(keys)):
        assert got.device == torch.device("cuda", index)
        assert got.tolist() == list(range(5))


def test_host_and_gpu_in_one_graph(torch_cuda):
    host, gpu = new_table("cpu"), new_table(GPU)

    def function(keys: Any) -> Any:
        host[keys] = 1.0
        gpu[keys.to(GPU)] = host[keys].to(GPU) + 1
        return gpu[keys.to(GPU)]

    assert compiled(function)(torch.arange(3)).tolist() == [2.0] * 3


def test_host_keys_for_a_gpu_table_break_the_graph(torch_cuda):
    table = new_table(GPU, default=2.0)
    assert torch.compile(lambda keys: table[keys] + 1, backend="eager")(torch.arange(3)).tolist() == [3.0] * 3


# Transforms ----------------------------------------------------------------------------------------------------------


def test_vmap_is_one_call_with_all_keys(where):
    table = HashTable("int64", "float32", value_shape=(2,), device=where)
    module = TableModule(table)
    keys = torch.arange(12, device=where).reshape(3, 4)
    values = torch.arange(24.0, device=where).reshape(3, 4, 2)
    assert torch.vmap(module.insert)(keys, values).all()
    assert torch.equal(table[keys], values)
    for dims in (0, 1):
        found = torch.vmap(lambda k: module.find(k + 2)[0], in_dims=dims, out_dims=dims)(keys)
        assert torch.equal(found, table.find(keys + 2)[0])
    one_each = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=where)
    got = torch.vmap(module.get)(keys + 100, one_each)
    assert torch.equal(got, one_each[:, None].expand(3, 4, 2))
    assert torch.equal(torch.vmap(module.get, in_dims=(0, None))(keys + 100, one_each[0]), one_each[0].expand(3, 4, 2))
    per_key = torch.vmap(module.get, in_dims=(None, 0))(keys[0] + 100, one_each)
    assert torch.equal(per_key, one_each[:, None].expand(3, 4, 2))
    nested = torch.vmap(torch.vmap(module.contains))(keys)
    assert nested.all()
    assert nested.shape == (3, 4)
    torch.vmap(module.__setitem__, in_dims=(0, None), out_dims=None)(keys, torch.zeros(2, device=where))
    assert table[keys].sum() == 0
    torch.vmap(module.insert_or_apply, in_dims=(0, 0, None))(keys, one_each, "add")
    assert torch.equal(table[keys], one_each[:, None].expand(3, 4, 2))
    assert torch.vmap(module.erase)(keys).all()
    assert len(table) == 0


def test_vmap_inside_of_a_compiled_function(where):
    table, keys = new_table(where), torch.arange(6, device=where).reshape(2, 3)
    table[keys] = keys.float()
    run = compiled(lambda keys: torch.vmap(lambda k: table.find(k)[0].sum())(keys))
    assert run(keys).tolist() == [3.0, 12.0]


def test_what_vmap_cannot(where):
    x = torch.arange(6, device=where).reshape(2, 3)
    with pytest.raises(ValueError, match=r"unique .* outside of vmap"):
        torch.vmap(lambda k: ours.ops.unique(k, False, False, False, False, False)[0])(x)
    states = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="one table for all items"):
        torch.vmap(lambda s, k: ours.ops.look_up(s, k, 0, "", [None], True, False, False)[0])(states, x)
    assert torch.vmap(lambda k: ours.ops.isin(torch.empty(0), k, x[0], False, False))(x).tolist() == [
        [True] * 3,
        [False] * 3,
    ]


def test_vmap_of_calls_that_change_and_read(where):
    """Their values are written into tensors that the calls make, of which each item has a part."""
    table = HashTable("int64", {"weight": ("float32", (2,)), "z": "complex64"}, device=where)
    module = TableModule(table)
    keys = torch.arange(12, device=where).reshape(3, 4)
    z, weight = torch.arange(3, device=where) * (1 + 2j), torch.ones(2, device=where)
    got = torch.vmap(lambda k, z: module.setdefault(k, {"weight": weight, "z": z}))(keys, z)
    assert torch.equal(got["z"], z[:, None].expand(3, 4))
    assert torch.equal(got["weight"], torch.ones(3, 4, 2, device=where))
    nested = torch.vmap(torch.vmap(lambda k: module.find(k, columns=["z"])[0]["z"]), in_dims=1)(keys)
    assert torch.equal(nested, got["z"].t())
    popped = torch.vmap(torch.vmap(lambda k: module.pop(k, {"z": 1j * torch.ones_like(z[0])})), in_dims=1)(keys)
    assert torch.equal(popped["z"], got["z"].t())
    assert len(table) == 0
    with pytest.raises(ValueError, match="call it outside of vmap, or give each item keys"):
        torch.vmap(lambda z: module.setdefault(keys, {"z": z}))(z)


def test_gradients_around_lookups(where):
    table = new_table(where, default=2.0)
    module = TableModule(table)
    keys = torch.arange(3, device=where)
    gradient = torch.func.grad(lambda x: (module[keys] * x).sum())(torch.ones(3, device=where))
    assert gradient.tolist() == [2.0] * 3


def test_tables_that_a_transform_uses_first(where):
    """What is made at first use outlives the transform, and is of no use if it is the transform's."""
    keys = torch.arange(3, device=where)
    weight = torch.ones(3, device=where)
    for first in ("state", "default", "module"):
        torch._dynamo.reset()
        table = new_table(where, default=2.0)
        if first == "default":
            assert table._torch_state is not None
        if first == "module":
            got = torch.func.grad(lambda w, table=table: (w * TableModule(table)[keys]).sum())(weight)
        else:
            got = compiled(lambda w, table=table: torch.func.grad(lambda v: (v * table[keys]).sum())(w))(weight)
        assert got.tolist() == [2.0] * 3
        for kept in (table._torch_state, table._torch_default):
            assert not torch._C._functorch.is_functorch_wrapped_tensor(kept)
        assert compiled(lambda k, table=table: table[k])(keys).tolist() == [2.0] * 3


def forward_mode(function: Any, primal: Any) -> Any:
    """The derivative in the direction of ones, by PyTorch's dual tensors."""
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(primal, torch.ones_like(primal))
        return torch.autograd.forward_ad.unpack_dual(function(dual)).tangent


def along(function: Any, x: Any) -> Any:
    return torch.func.jvp(function, (x,), (torch.ones_like(x),))[1]


DERIVATIVES = {
    "grad": lambda function, x: torch.func.grad(lambda y: function(y).sum())(x),
    "jvp": along,
    "jacrev": lambda function, x: torch.func.jacrev(function)(x).sum(1),
    "jacfwd": lambda function, x: torch.func.jacfwd(function)(x).sum(1),
    "forward-mode": forward_mode,
    "grad-of-grad": lambda function, x: torch.func.grad(
        lambda y: torch.func.grad(lambda z: function(y * z).sum())(torch.ones_like(x)).sum()
    )(x),
    "vmap-of-grad": lambda function, x: torch.vmap(torch.func.grad(lambda y: function(y).sum()))(x.expand(1, -1))[0],
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("through", ["module", "aot_eager"])
def test_derivatives_of_defaults(where, derivative, through):
    """Those of torch.where: a default is the value of absent keys alone."""
    table, keys = new_table(where), torch.arange(4, device=where)
    table[keys[:2]] = 5.0
    there = table.contains(keys)
    face = TableModule(table) if through == "module" else table
    apply = DERIVATIVES[derivative]

    def function(x: Any) -> Any:
        return apply(lambda default: face.find(keys, default * default)[0], x)

    x = torch.arange(1.0, 5.0, device=where)
    got = (function if through == "module" else compiled(function))(x)
    expected = apply(lambda default: torch.where(there, 5.0, default * default), x)
    assert expected.count_nonzero() == 2
    assert torch.equal(got, expected)


def test_derivatives_of_defaults_by_inductor(where):
    table, keys = new_table(where), torch.arange(4, device=where)
    table[keys[:2]] = 5.0
    run = compiled(lambda x: torch.func.grad(lambda default: table.find(keys, default)[0].sum())(x), "inductor")
    assert run(torch.ones(4, device=where)).tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("derivative", ["grad", "jvp", "forward-mode", "grad-of-grad", "vmap-of-grad"])
@pytest.mark.parametrize("through", ["module", "aot_eager"])
def test_values_with_derivatives_are_refused(where, derivative, through):
    table, keys = new_table(where), torch.arange(4, device=where)
    face = TableModule(table) if through == "module" else table
    apply = DERIVATIVES[derivative]
    x = torch.arange(1.0, 5.0, device=where)

    def put(values: Any, detached: bool) -> Any:
        face.insert_or_assign(keys, values.detach() if detached else values)
        face.insert_or_apply(keys, 1.0, "add")
        return values * values

    for detached in (False, True):
        torch._dynamo.reset()

        def function(x: Any, detached: bool = detached) -> Any:
            return apply(lambda values: put(values, detached), x)

        run = function if through == "module" else compiled(function)
        if not detached:
            with pytest.raises((TypeError, RuntimeError), match=r"values require grad.*\.detach\(\)"):
                run(x)
            assert len(table) == 0
        else:
            assert torch.equal(run(x), apply(lambda values: values * values, x))
            assert len(table) == 4


@pytest.mark.parametrize("routine", [gpuhash.unique, lambda x: gpuhash.factorize(x)[1]], ids=["unique", "factorize"])
def test_set_routines_have_no_derivatives(where, routine):
    x = torch.tensor([1.0, 2.0, 1.0], device=where)
    with pytest.raises((TypeError, RuntimeError), match=r"keys require grad.*\.detach\(\)"):
        compiled(lambda x: torch.func.grad(lambda keys: routine(keys).sum())(x))(x)
    run = compiled(lambda x: torch.func.grad(lambda y: (y * gpuhash.isin(y.detach(), y.detach()[:1])).sum())(x))
    assert run(x).tolist() == [1.0, 0.0, 1.0]


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "error", "match"),
    [
        (lambda t, k: t.find(k.int()), TypeError, "keys are int32"),
        (lambda t, k: t.insert(k, k), TypeError, "values are int64"),
        (lambda t, k: t.insert(k, k.float()), ValueError, "the values have shape"),
        (lambda t, k: t.get(k), ValueError, "needs a default"),
        (lambda t, k: t.insert_or_apply(k, 1.0, "bit_and"), TypeError, "bits of integers"),
        (lambda t, k: t.insert_or_apply(k, 1.0, "sub"), ValueError, "is not known"),
        (lambda t, k: t.insert(k, torch.ones(2, device=k.device).requires_grad_()), TypeError, "detach"),
    ],
)
def test_wrong_arguments_while_compiling(where, use, error, match):
    """The error is that of the call without the compiler; fullgraph=True says the same."""
    table = HashTable("int64", "float32", value_shape=(2,), device=where)
    keys = torch.arange(3, device=where)
    with pytest.raises(error, match=match):
        torch.compile(use, backend="eager")(table, keys)
    torch._dynamo.reset()
    with pytest.raises((error, torch._dynamo.exc.Unsupported), match=match):
        compiled(use)(table, keys)
    assert len(table) == 0


def test_numbers_that_differ_from_call_to_call(where):
    table = HashTable("int64", "int8", default=-1, device=where)
    keys = torch.arange(3, device=where)
    run = compiled(lambda keys, n: (table.insert_or_apply(keys, n, "replace"), table[keys], table.get(keys + 9, n))[1:])
    for number in (1, 2, 3, 100, -128):
        assert [part.tolist() for part in run(keys, number)] == [[number] * 3] * 2
    for number in (128, -129):
        with pytest.raises((OverflowError, torch._dynamo.exc.Unsupported), match="out of range"):
            run(keys, number)
    assert table[keys].tolist() == [-128] * 3
    floats = new_table(where)
    run = compiled(lambda keys, x: (floats.insert_or_assign(keys, x), floats[keys])[1])
    for number in (0.5, 1.5, 2.5, 3):
        assert run(keys, number).tolist() == [number] * 3


def test_numbers_beyond_the_largest_are_infinite(where, backend):
    table, half = new_table(where), HashTable("int64", "float16", device=where)
    keys = torch.arange(3, device=where)

    def function(keys: Any) -> Any:
        table[keys] = 1e300
        half[keys] = -70000
        return table.get(keys + 1, -1e300), half[keys]

    single, halved = compiled(function, backend)(keys)
    assert single.tolist() == [math.inf, math.inf, -math.inf]
    assert halved.tolist() == [-math.inf] * 3


def test_absent_keys_and_other_lengths_when_it_runs(where):
    table, keys = new_table(where), torch.arange(3, device=where)
    with pytest.raises(LookupError, match="3 of 3 keys are absent"):
        compiled(lambda keys: table[keys])(keys)
    run = compiled(lambda keys, values: table.insert(keys, values), dynamic=True)
    run(keys, keys.float())
    with pytest.raises(ValueError, match=r"values have shape \(4,\), expected \(3,\)"):
        run(keys, torch.ones(4, device=where))
    assert len(table) == 3


def test_a_freed_table(where):
    """A graph that outlives its table is an error, no crash; the state comes in by hand here, as it would by export."""
    table, keys = new_table(where), torch.arange(3, device=where)
    state = table._torch_state
    run = compiled(lambda state, keys: ours.ops.look_up(state, keys, 0, "", [None], True, False, False)[0])
    run(state, keys)
    del table
    gc.collect()
    with pytest.raises(ValueError, match="it was freed"):
        run(state, keys)


def test_a_dropped_table_gives_its_memory_back(where):
    """Also where a compiled function or a module has used it, which know it by its handle."""
    memory = counting_memory(where)

    def new():
        table = HashTable("int64", "float32", value_shape=(64,), device=where, memory=memory)
        table.reserve(5000)
        return table

    keys = torch.arange(3, device=where)
    lookup = torch.compile(lambda table, keys: table.find(keys)[0].sum(), backend="eager")
    for use in (lambda table: lookup(table, keys), lambda table: TableModule(table).find(keys)):
        table = new()
        use(table)
        assert memory.nbytes > 0
        del table
        torch._dynamo.reset()
        gc.collect()
        assert (memory.nbytes, memory.mistakes) == (0, [])


def test_threads(where):
    table = new_table(where)
    run = compiled(lambda keys: table.insert_or_apply(keys, 1.0, "add"))
    keys = torch.arange(100, device=where)
    run(keys)
    failures = []

    def work() -> None:
        try:
            for _ in range(50):
                run(keys)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert items(table) == dict.fromkeys(range(100), 201.0)


def test_without_a_compiler_the_graph_breaks():
    """And a warning says so."""
    program = """
import sys, warnings
import torch, gpuhash
table = gpuhash.HashTable("int64", "float32", default=2.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    got = torch.compile(lambda x: table[x + 1] + 1, backend="eager")(torch.arange(3))
    assert torch.compile(lambda x: gpuhash.unique(x), backend="eager")(torch.arange(3)).tolist() == [0, 1, 2]
assert got.tolist() == [3.0] * 3
assert any("names no compiler" in str(each.message) for each in caught), caught
"""
    environment = {**os.environ, "CXX": "/nonexistent", "GPUHASH_CACHE": "/nonexistent"}
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300, env=environment)


def test_without_a_compiler_embeddings_work_and_ops_say_why():
    """Slim images that serve models have none."""
    program = """
import pydoc, warnings
import torch, gpuhash
warnings.filterwarnings("error", ".*gpuhash")
from gpuhash.torch import SGD, HashEmbedding, HashEmbeddingBag, TableModule
for module in (HashEmbedding(4, optimizer=SGD(1.0)), HashEmbeddingBag(4, "sum", optimizer=SGD(1.0))):
    ids = torch.tensor([[1], [5]])
    before = module(ids).detach().clone()
    module(ids).sum().backward()
    assert torch.equal(module(ids).detach(), before - 1)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    compiled(ids).sum().backward()
    assert torch.equal(compiled(ids).detach(), before - 1 - 1)
for use in (lambda: gpuhash.torch.ops, lambda: TableModule(gpuhash.HashSet("int64"))):
    try:
        use()
    except ImportError as error:
        assert "names no compiler" in str(error), error
    else:
        raise AssertionError("there are ops")
assert not hasattr(gpuhash.torch, "nothing")
assert "HashEmbeddingBag" in pydoc.render_doc(gpuhash.torch)
"""
    environment = {**os.environ, "CXX": "/nonexistent", "GPUHASH_CACHE": "/nonexistent"}
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300, env=environment)


def test_ops_are_compiled_ahead_once(tmp_path, monkeypatch):
    """As GPUHASH_TORCH=ON does when gpuhash is installed, and again where nothing has changed."""
    from gpuhash.torch.build import op_library

    package = Path(_core.__file__).resolve().parent
    compiler = StandIn(tmp_path, op_library.find_or_compile(package))
    script = Path(__file__).resolve().parents[2] / "cmake" / "compile_ops.py"
    arguments = ["--include", package / "include", "--library", package, "--output", tmp_path / "torch"]
    old = tmp_path / "torch" / "libgpuhash_torch-2.0.0.so"
    old.parent.mkdir()
    old.touch()
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-P", script, "torch", *arguments],
            check=True,
            timeout=300,
            env={**os.environ, "CXX": str(compiler.path)},
        )
    assert compiler.times_linked() == 1
    assert not old.exists()
    monkeypatch.setenv("CXX", "/nonexistent")
    assert op_library.find_or_compile(tmp_path) == tmp_path / "torch" / op_library.prebuilt_name


@pytest.mark.parametrize(
    "trouble",
    [
        {"CXX": "c++ 'without an end"},
        {"CXX": "/bin/false"},
        {"CXX": " "},
        {"HOME": "", "GPUHASH_CACHE": "", "XDG_CACHE_HOME": ""},
    ],
    ids=["quotes", "compiler-fails", "nothing", "no-home"],
)
def test_whatever_keeps_ops_from_being_compiled_is_an_import_error(trouble, monkeypatch, tmp_path):
    """For which graphs are broken; other exceptions would end the compilation."""
    from gpuhash.torch.build import op_library

    monkeypatch.setenv("GPUHASH_CACHE", str(tmp_path))
    for name, value in trouble.items():
        monkeypatch.setenv(name, value)
    if "HOME" in trouble:  # of a user whom the system does not know, either
        monkeypatch.setattr(Path, "home", lambda: Path("~").expanduser())
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ImportError, match="CXX"):
        op_library.find_or_compile(tmp_path)


def test_freezing_takes_no_lookup_for_a_constant():
    """Inductor's freezing computes ahead what constants give, and a table is none, though its keys be."""
    program = """
import torch, gpuhash, gpuhash.torch
table = gpuhash.HashTable("int64", "float32", value_shape=(2,), default=0.0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = gpuhash.torch.TableModule(table)
        self.rows = gpuhash.torch.HashEmbedding(2, optimizer=gpuhash.torch.SGD(0.1))
        self.bags = gpuhash.torch.HashEmbeddingBag(2, "sum", optimizer=gpuhash.torch.SGD(0.1))
        self.register_buffer("keys", torch.arange(4).view(2, 2))
    def forward(self, x):
        t, keys = self.table, self.keys
        looked_up = t[keys], *t.find(keys), t.contains(keys), t.rows(keys)
        return [each + x for each in (*looked_up, self.rows(keys), self.bags(keys))]
model = Model().eval()
run = torch.compile(model, fullgraph=True)
with torch.no_grad():
    before = [each.tolist() for each in run(torch.zeros(1))]
    table[model.keys] = 5.0
    for each in (model.rows, model.bags):
        each.table[torch.arange(4)] = {"weight": 7.0}
    assert all(now.tolist() != then for now, then in zip(run(torch.zeros(1)), before))
    for now, plain in zip(run(torch.zeros(1)), model(torch.zeros(1))):
        assert torch.equal(now, plain), (now, plain)
"""
    environment = {**os.environ, "TORCHINDUCTOR_FREEZING": "1"}
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300, env=environment)


def test_the_benchmark(device):
    """It checks all results before it measures."""
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.torch_programs", "--device", device.partition(":")[0], "--quick"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in ("| find |", "| insert_or_assign |", "| keys + 1, compiled |", "| table.contains(keys), compiled |"):
        assert line in done.stdout


def test_importing_gpuhash_imports_no_torch():
    program = """
import sys, gpuhash, gpuhash.torch
assert gpuhash.torch.SGD(0.1).lr == 0.1
assert set(gpuhash.torch.__all__) - {"ops"} < set(dir(gpuhash.torch))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=300)
