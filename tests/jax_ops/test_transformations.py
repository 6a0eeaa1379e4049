"""Loops, vmap, shard_map and gradients around calls on tables."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.frameworks import GPU_INDEX, gpu_count
from support.jit import check_calls, in_new_process, need_jax
from support.samples import as_dict, items_of, same_bytes

import gpuhash


@pytest.fixture
def programs(device):
    return need_jax(device)


def new_table(programs, value_dtype="int64", **options):
    return gpuhash.HashTable("int64", value_dtype, device=programs.device, **options)


# Loops ---------------------------------------------------------------------------------------------------------------


def test_a_scan_of_a_thousand_steps(programs):
    """Each step sees what the step before has left; the table grows on the way."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)

    def step(state, keys):
        state, inserted = ours.insert_or_apply(state, keys, 1, "add")
        state, (counts, _) = ours.find(state, keys)
        state, erased = ours.erase(state, keys[:1])
        return state, (inserted, counts, erased)

    batches = np.random.default_rng(3).integers(0, 500, (1000, 8))
    state, (inserted, counts, erased) = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))(
        ours.from_table(table), programs.put(batches)
    )
    model: dict[int, int] = {}
    inserted, counts, erased = map(np.asarray, (inserted, counts, erased))
    for batch, new, count, gone in zip(batches.tolist(), inserted, counts, erased, strict=True):
        fresh = set(batch) - set(model)
        assert sorted(np.array(batch)[new].tolist()) == sorted(fresh)
        for key in batch:
            model[key] = model.get(key, 0) + 1
        assert count.tolist() == [model[key] for key in batch]
        assert gone.tolist() == [True]
        del model[batch[0]]
    assert {int(key): int(value) for key, value in zip(*map(np.asarray, table.to("cpu").items()), strict=True)} == model
    assert state.table is table


ALIGNED = (6, 4096)  # batches whose keys, values and results begin at multiples of 128 bytes


def test_a_scan_over_aligned_batches(programs):
    """Each call is made once. XLA for GPUs fuses other custom calls with slices that are aligned, as these are."""
    jax, ours = programs.jax, programs.ours
    table = gpuhash.HashTable("int32", "int32", device=programs.device)

    def step(state, keys):
        state, inserted = ours.insert_or_apply(state, keys, 1, "add")
        state, (counts, found) = ours.find(state, keys)
        state, erased = ours.erase(state, keys[:256])
        return state, (inserted, counts, found, erased)

    batches = np.random.default_rng(5).integers(0, 3000, ALIGNED, dtype=np.int32)
    run = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))
    check_calls(run.lower(ours.from_table(table), programs.put(batches)), {"change": 1, "look_up": 1, "erase": 1})
    state, results = run(ours.from_table(table), programs.put(batches))
    model: dict[int, int] = {}
    for batch, new, counts, found, gone in zip(batches, *map(np.asarray, results), strict=True):
        assert sorted(batch[new].tolist()) == sorted(set(batch.tolist()) - set(model))
        for key in batch.tolist():
            model[key] = model.get(key, 0) + 1
        assert counts.tolist() == [model[key] for key in batch.tolist()]
        assert found.all()
        assert sorted(batch[:256][gone].tolist()) == sorted(set(batch[:256].tolist()))
        for key in set(batch[:256].tolist()):
            del model[key]
    assert items_of(state.table) == as_dict(np.int32(list(model)), np.int32(list(model.values())))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_scan_over_aligned_batches_has_each_call_once(programs, fixed):
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, "float32", value_shape=(4,))

    def step(state, batch):
        keys, values = batch
        state, inserted = ours.insert(state, keys, values)
        state, (read, _) = ours.find(state, keys)
        state, there = ours.contains(state, keys)
        state, rows = ours.rows(state, keys)
        state, size = ours.size(state)
        state, erased = ours.erase(state, keys)
        return state, (inserted, read, there, rows, size, erased)

    run = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))
    batches = programs.put(np.zeros(ALIGNED, np.int64)), programs.put(np.zeros((*ALIGNED, 4), np.float32))
    ending = "_fixed" if fixed else ""
    expected = {f"change{ending}": 1, f"look_up{ending}": 3, f"erase{ending}": 1, "size": 1}
    check_calls(run.lower(ours.from_table(table, fixed=fixed), batches), expected)


def test_a_scan_over_aligned_batches_of_columns_has_each_call_once(programs):
    jax, ours = programs.jax, programs.ours
    columns = {"weight": ("float32", (4,)), "count": "int32"}
    table = gpuhash.HashTable("int64", columns, device=programs.device)

    def step(state, batch):
        keys, weights, counts = batch
        state, inserted = ours.insert_or_assign(state, keys, {"weight": weights, "count": counts})
        state, (read, _) = ours.find(state, keys)
        return state, (inserted, read)

    run = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))
    shapes = ((np.int64, ()), (np.float32, (4,)), (np.int32, ()))
    batches = [programs.put(np.zeros((*ALIGNED, *shape), dtype)) for dtype, shape in shapes]
    check_calls(run.lower(ours.from_table(table), batches), {"change": 1, "look_up": 1})


def test_while_loops_and_branches(programs):
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)

    def body(carry):
        state, size, step = carry
        keys = step * 10 + jax.numpy.arange(10)
        state = jax.lax.cond(
            step % 2 == 0,
            lambda state: ours.insert(state, keys, keys)[0],
            lambda state: ours.insert(state, keys[:1], keys[:1] * 2)[0],
            state,
        )
        state, size = ours.size(state)
        return state, size, step + 1

    def run(state):
        zero = jax.numpy.int64(0)
        return jax.lax.while_loop(lambda carry: carry[1] < 30, body, (state, zero, zero))

    _, size, steps = jax.jit(run)(ours.from_table(table))
    assert (int(size), int(steps)) == (32, 5)
    keys = np.concatenate([np.arange(10), [10], np.arange(20, 30), [30], np.arange(40, 50)])
    values = np.where((keys == 10) | (keys == 30), keys * 2, keys)
    assert items_of(table) == as_dict(keys, values)


# vmap ----------------------------------------------------------------------------------------------------------------


def test_vmap_over_keys_is_one_call(programs):
    """The lanes' keys are one batch of one table, and the state comes out as one."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, "float32", value_shape=(2,), deterministic=True)
    keys = np.arange(24).reshape(2, 3, 4) // 2
    values = np.arange(48, dtype=np.float32).reshape(2, 3, 4, 2)

    def lanes(function, **options):
        return jax.jit(jax.vmap(jax.vmap(function, **options), **options))

    insert = lanes(ours.insert_or_assign, in_axes=(None, 0, 0), out_axes=(None, 0))
    state, inserted = insert(ours.from_table(table), programs.put(keys), programs.put(values))
    assert np.asarray(inserted).shape == (2, 3, 4)
    assert np.asarray(inserted).sum() == 12
    assert items_of(table) == as_dict(keys.reshape(-1), values.reshape(-1, 2))
    defaults = np.arange(4, dtype=np.float32).reshape(2, 2)
    find = jax.vmap(ours.find, in_axes=(None, 0, 0), out_axes=(None, 0))
    asked = np.arange(8, 16).reshape(2, 4)
    state, (found_values, found) = find(state, programs.put(asked), programs.put(defaults))
    same_bytes(found, asked < 12)
    stored = np.asarray(table.to("cpu").find(asked, 0)[0])
    same_bytes(found_values, np.where((asked < 12)[..., None], stored, defaults[:, None]).astype(np.float32))
    # the same keys in each lane, other values: one of a key's duplicates, the last one
    assign = jax.vmap(lambda state, values: ours.insert_or_assign(state, np.int64([100]), values), (None, 0), (None, 0))
    state, _ = assign(state, programs.put(np.float32([[[1, 1]], [[2, 2]], [[3, 3]]])))
    assert np.asarray(state.table.to("cpu")[100]).tolist() == [3, 3]
    hlo = insert.lower(ours.from_table(table), programs.put(keys), programs.put(values)).as_text()
    assert hlo.count("@gpuhash_jax_change") == 1
    assert "stablehlo.while" not in hlo


def test_vmap_over_tables():
    """Each lane has a table of its own, and they take turns. On the host, where states of many tables are alike."""
    programs = need_jax()
    jax, ours = programs.jax, programs.ours
    tables = [new_table(programs) for _ in range(3)]
    states = jax.tree.map(lambda *arrays: jax.numpy.stack(arrays), *map(ours.from_table, tables))
    keys = np.arange(12).reshape(3, 4)
    states, inserted = jax.jit(jax.vmap(lambda state, keys: ours.insert(state, keys, keys * 2)))(states, keys)
    assert inserted.all()
    states, (values, found) = jax.vmap(ours.find, in_axes=(0, None))(states, np.arange(12))
    for lane, table in enumerate(tables):
        assert items_of(table) == as_dict(keys[lane], keys[lane] * 2)
        same_bytes(found[lane], np.arange(12) // 4 == lane)
        same_bytes(values[lane], np.where(np.arange(12) // 4 == lane, np.arange(12) * 2, 0))
    states, sizes = jax.vmap(ours.size)(states)
    assert sizes.tolist() == [4, 4, 4]
    assert states.tables == tables
    with pytest.raises(ValueError, match="is of 3 tables"):
        _ = states.table
    with pytest.raises(ValueError, match="state of 3 tables, expected that of one"):
        ours.size(states)


# Several devices -----------------------------------------------------------------------------------------------------


SHARDED = """
    import jax, numpy as np
    jax.config.update("jax_enable_x64", True)
    import gpuhash, gpuhash.jax as ours
    from jax.sharding import Mesh, PartitionSpec as P
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    tables = [gpuhash.HashTable("int64", "int64", device=device) for device in DEVICES]
    for table in tables:
        table.reserve(100)
    state = ours.from_tables(tables, mesh, fixed=FIXED)
    if hasattr(jax, "shard_map"):
        shard_map, options = jax.shard_map, {}
    else:
        from jax.experimental.shard_map import shard_map
        options = {"check_rep": False}

    def step(state, keys):
        state, inserted = ours.insert(state, keys, keys * 2)
        state, (values, found) = ours.find(state, keys)
        state, _ = jax.lax.scan(lambda state, i: ours.insert_or_apply(state, keys, i, "add"), state, np.arange(4))
        state, size = ours.size(state)
        everywhere = jax.lax.psum(size, "x")
        state, mine = ours.contains(state, np.arange(10, 20))
        return state, inserted, values, size[None], everywhere[None], mine

    run = jax.jit(shard_map(step, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"), **options))
    for _ in range(2):
        state, inserted, values, sizes, everywhere, mine = run(state, np.arange(20))
        print(np.asarray(inserted).sum(), np.asarray(values).tolist(), sizes, everywhere, mine)
    for table in tables:
        host = table.to("cpu")
        print(sorted(zip(*(array.tolist() for array in host.items()))))
    print([one is other for one, other in zip(state.tables, tables)])
    for wrong in (tables[:1], [tables[0], gpuhash.HashTable("int32", "int64", device=DEVICES[1])]):
        try:
            ours.from_tables(wrong, mesh)
        except ValueError as error:
            print(str(error)[:30])
"""


def check_sharded(printed):
    lines = printed.splitlines()
    double = list(range(0, 40, 2))
    plus = [value + 6 for value in double]
    mine = "[False False False False False False False False False False  True  True"
    assert lines[0].startswith(f"20 {double} [10 10] [20 20] {mine}")
    second = next(line for line in lines[1:] if line.startswith("0 "))
    assert second.startswith(f"0 {plus} [10 10] [20 20] {mine}")
    contents = [line for line in lines if line.startswith("[(")]
    assert contents == [str([(key, key * 2 + 12) for key in half]) for half in (range(10), range(10, 20))]
    assert lines[-3:] == ["[True, True]", "1 tables were given for a mesh", "tables of several kinds were g"]


@pytest.mark.parametrize("fixed", [False, True])
def test_shard_map_with_one_table_per_host_device(fixed):
    setup = f"FIXED = {fixed}\nDEVICES = ['cpu', 'cpu']\n"
    setup += "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"
    check_sharded(in_new_process(setup + _dedented(SHARDED)))


@pytest.mark.parametrize("fixed", [False, True])
def test_shard_map_with_one_table_per_gpu(cuda, fixed):
    need_jax(cuda)
    if gpu_count() < 2 or GPU_INDEX != 0:
        pytest.skip("needs two GPUs")
    setup = f"FIXED = {fixed}\nDEVICES = ['cuda:0', 'cuda:1']\nos.environ['JAX_PLATFORMS'] = 'cuda,cpu'\n"
    check_sharded(in_new_process(setup + _dedented(SHARDED)))


def _dedented(program):
    return "\n".join(line[4:] for line in program.splitlines())


# Gradients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_defaults_have_gradients(programs, compiled):
    """As those of jnp.where(found, values, default), in both modes and for one default and many."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, "float32", value_shape=(2,))
    table[np.arange(3)] = np.arange(6, dtype=np.float32).reshape(3, 2)
    keys = programs.put(np.arange(5))
    stored = np.zeros((5, 2), np.float32)
    stored[:3] = np.arange(6).reshape(3, 2)
    known = (np.arange(5) < 3)[:, None]

    def loss(default, state):
        state, (values, _) = ours.find(state, keys, default)
        return (values**3).sum(), state

    def reference(default):
        return (jax.numpy.where(known, stored, default) ** 3).sum()

    maybe_jit = jax.jit if compiled else (lambda function: function)
    for shape in ((2,), (5, 2)):
        default = programs.put(np.random.default_rng(1).random(shape, np.float32))
        state = ours.from_table(table)
        (value, state), gradient = maybe_jit(jax.value_and_grad(loss, has_aux=True))(default, state)
        wanted = jax.value_and_grad(reference)(default)
        np.testing.assert_allclose(value, wanted[0], rtol=1e-6)
        np.testing.assert_allclose(gradient, wanted[1], rtol=1e-6)
        tangent = programs.put(np.ones(shape, np.float32))
        _, forward, _ = jax.jvp(functools.partial(loss, state=state), (default,), (tangent,), has_aux=True)
        np.testing.assert_allclose(forward, wanted[1].sum(), rtol=1e-6)


@pytest.mark.long(10)  # JAX compiles each derivative
@pytest.mark.parametrize(("per_key", "named"), [(False, False), (True, True)], ids=["one default", "columns per key"])
def test_second_and_third_derivatives_of_defaults(programs, per_key, named):
    """By forward and reverse mode in any order: against the same function without a table."""
    jax, ours = programs.jax, programs.ours
    jnp = jax.numpy
    kinds = {"v": ("float32", (2,))} if named else "float32"
    table = gpuhash.HashTable("int64", kinds, value_shape=() if named else (2,), device=programs.device)
    stored = np.array([[5.0, 6.0]], np.float32)
    table[np.array([1])] = {"v": stored} if named else stored
    keys = programs.put(np.array([3, 1, 3]))
    default = programs.put(np.linspace(0.1, 0.6, 6, dtype=np.float32).reshape(3, 2)[: 3 if per_key else 1])
    default = default if per_key else default[0]
    direction = jnp.ones_like(default) * 0.5

    def through_table(default, state=None):
        state = ours.from_table(table) if state is None else state
        found = ours.find(state, keys, {"v": default} if named else default)[1][0]
        return jnp.tanh(found["v"] if named else found).sum() ** 2

    def without(default):
        return jnp.tanh(jnp.where((keys == 1)[:, None], stored[0], default)).sum() ** 2

    def along(function):
        return lambda at: jax.jvp(function, (at,), (direction,))[1]

    for derive in (
        jax.hessian,
        lambda f: jax.jacrev(jax.jacrev(f)),
        lambda f: along(along(along(f))),
        lambda f: jax.grad(along(along(f))),
    ):
        np.testing.assert_allclose(derive(through_table)(default), derive(without)(default), rtol=1e-4, atol=1e-5)

    @jax.jit
    def hessian(default, state):
        return jax.hessian(functools.partial(through_table, state=state))(default)

    compiled = hessian(default, ours.from_table(table))
    np.testing.assert_allclose(compiled, jax.hessian(without)(default), rtol=1e-4, atol=1e-5)


def test_a_set_is_an_array_of_its_keys(programs):
    jax = programs.jax
    keyset = gpuhash.HashSet.from_keys(np.array([1, 2], np.int32), device="cpu").to(programs.device)
    assert sorted(jax.numpy.asarray(keyset).tolist()) == [1, 2]
    with pytest.raises(TypeError, match="no array"):
        jax.numpy.asarray(gpuhash.HashTable.from_items([1, 2], [3, 4]))
    assert [type(leaf) for leaf in jax.tree.leaves([keyset])] == [gpuhash.HashSet]
    # Its keys of now would be a constant of the program.
    with pytest.raises(TypeError, match="is used as an array in a function that JAX traces"):
        jax.jit(lambda x: jax.numpy.isin(x, keyset))(jax.numpy.arange(3, dtype=np.int32))


def test_gradients_through_a_loop_that_fills_the_table(programs):
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, "float32")

    def loss(default, state):
        def step(carry, start):
            state, total = carry
            state, _ = ours.insert(state, start + jax.numpy.arange(3), jax.numpy.float32(1))
            state, (values, _) = ours.find(state, start + jax.numpy.arange(4), default)
            return (state, total + values.sum()), None

        (state, total), _ = jax.lax.scan(step, (state, jax.numpy.float32(0)), jax.numpy.arange(10))
        return total, state

    (value, state), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        programs.put(np.float32(2)), ours.from_table(table)
    )
    assert (float(value), float(gradient)) == (50, 10)
    assert len(state.table) == 12


def test_rows_are_trained_by_what_was_looked_up(programs):
    """As docs/guide/jax.md: differentiate with respect to the values found, and add them to the table."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, "float32", value_shape=(3,))
    keys = programs.put(np.array([4, 5, 4, 9]))
    state, _ = ours.insert(ours.from_table(table), keys, np.float32(1))

    @jax.jit
    def train(state, keys):
        state, (rows, _) = ours.find(state, keys)
        gradient = jax.grad(lambda rows: (rows**2).sum() / 2)(rows)
        return ours.insert_or_apply(state, keys, -0.25 * gradient, "add")

    state, _ = train(state, keys)
    found = np.asarray(state.table.to("cpu")[np.array([4, 5, 9])])
    same_bytes(found, np.float32([[0.5] * 3, [0.75] * 3, [0.75] * 3]))


def test_what_has_no_gradient_says_so(programs):
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, "float32")
    keys = programs.put(np.arange(3))

    def loss(scale, state, *, call):
        state, _ = call(state, keys, scale * jax.numpy.ones(3, "float32"))
        return scale**2, state

    into_tables = dict.fromkeys(
        (ours.insert, ours.insert_or_assign, ours.insert_or_apply, ours.setdefault),
        r"a table keeps no derivatives.*stop_gradient",
    )
    for call, message in {**into_tables, ours.pop: "the default of gpuhash.jax.pop was to be differentiated"}.items():
        for transform in (lambda function: function, jax.jit):
            with pytest.raises(TypeError, match=message):
                transform(jax.grad(functools.partial(loss, call=call), has_aux=True))(
                    jax.numpy.float32(1), ours.from_table(table)
                )
    assert len(table) == 0

    def stopped(scale, state):
        state, _ = ours.insert(state, keys, jax.lax.stop_gradient(scale * jax.numpy.ones(3, "float32")))
        state, (values, _) = ours.find(state, keys)
        return (values * scale).sum(), state

    gradient, state = jax.jit(jax.grad(stopped, has_aux=True))(jax.numpy.float32(2), ours.from_table(table))
    assert float(gradient) == 6
    assert len(state.table) == 3
