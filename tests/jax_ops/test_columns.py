"""Tables with named columns in gpuhash.jax, eager and compiled, beside the methods of HashTable."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.jit import in_new_process, need_jax
from support.memory_resources import counting_memory
from support.samples import numpy_dtype, random_values, same_bytes

import gpuhash
from gpuhash import Column, HashTable
from gpuhash.initializers import Normal

COLUMNS = {
    "weight": Column("float32", (4,), Normal(std=0.5)),
    "step": Column("int32", (), 5),
    "half": ("float16", (3,)),
    "short": "bfloat16",
    "flag": "bool",
}
DEFAULT = {"weight": -1.0, "short": 2.0}


@pytest.fixture
def programs(device):
    return need_jax(device)


@pytest.fixture(params=["eager", "jit"])
def mode(request):
    return request.param


def new_table(programs, columns=None, **options):
    columns = COLUMNS if columns is None else columns
    return HashTable("int64", columns, device=programs.device, deterministic=True, **options)


def with_twin(programs, **options):
    """A table, and one on the host whose methods are called in its place."""
    return new_table(programs, **options), HashTable("int64", COLUMNS, deterministic=True, **options)


def values_of(names, count):
    """Small integers, of which every sum is exact."""
    columns = gpuhash.tables.named_columns.checked(COLUMNS)
    rng = np.random.default_rng(count)
    made = {}
    for name in names:
        shape = (count, *columns[name].shape)
        numbers = rng.integers(-9, 9, shape)
        made[name] = numbers > 0 if name == "flag" else numbers.astype(numpy_dtype(columns[name].dtype))
    return made


def put(programs, arrays):
    return {name: programs.put(array) for name, array in arrays.items()}


def same_columns(got, expected):
    assert sorted(got) == sorted(expected)
    for name, value in expected.items():
        same_bytes(np.asarray(got[name]), np.asarray(value))


def same_tables(table, twin):
    host = table.to("cpu")
    assert len(host) == len(twin)
    keys = np.sort(twin.keys())
    assert np.sort(host.keys()).tolist() == keys.tolist()
    if len(keys):
        same_columns(host[keys], twin[keys])


# The calls -----------------------------------------------------------------------------------------------------------


def test_every_call_beside_the_methods(programs, mode):
    """Some columns, all of them, duplicates, absent keys and a table that grows on the way."""
    ours = programs.ours
    table, twin = with_twin(programs, default=DEFAULT)
    rng = np.random.default_rng(1)
    first, second, third = (rng.integers(0, 4000, count) for count in (300, 3000, 500))
    some, everything, steps = (
        values_of(["weight", "flag"], 300),
        values_of(COLUMNS, 3000),
        values_of(["step", "half", "short", "flag"], 500),
    )
    ops = {"step": "add", "half": "max", "short": "keep", "flag": "replace"}

    def change(state, first, some, second, everything, third, steps):
        state, assigned = ours.insert_or_assign(state, first, some)
        state, kept = ours.insert(state, second, everything)
        state, added = ours.insert_or_apply(state, third, steps, ops)
        state, size = ours.size(state)
        return state, assigned, kept, added, size

    def look(state, keys):
        state, everything = ours.find(state, keys)
        state, two = ours.find(state, keys, {"weight": 7.0}, columns=["step", "weight"])
        state, rows = ours.rows(state, keys)
        state, there = ours.contains(state, keys)
        state, erased = ours.erase(state, keys[:100])
        return state, everything, two, rows, there, erased

    state, assigned, kept, added, size = programs.compiled(change, mode)(
        ours.from_table(table),
        programs.put(first),
        put(programs, some),
        programs.put(second),
        put(programs, everything),
        programs.put(third),
        put(programs, steps),
    )
    news = [
        twin.insert_or_assign(first, some),
        twin.insert(second, everything),
        twin.insert_or_apply(third, steps, ops),
    ]
    for got, expected, keys in zip((assigned, kept, added), news, (first, second, third), strict=True):
        got = np.asarray(got)
        assert sorted(keys[got].tolist()) == sorted(keys[expected].tolist())
    assert int(size) == len(twin)
    same_tables(table, twin)

    keys = np.arange(3500, 4500)
    state, (values, found), (two, found_again), rows, there, erased = programs.compiled(look, mode)(
        state, programs.put(keys)
    )
    expected, mask = twin.find(keys)
    same_columns(values, expected)
    same_columns(two, twin.find(keys, {"weight": 7.0}, columns=["step", "weight"])[0])
    for got in (found, found_again, there, np.asarray(rows) >= 0):
        same_bytes(np.asarray(got), mask)
    view = table.to("cpu").column("step") if programs.on_host else None
    if view is not None:
        same_bytes(table.column("step")[np.asarray(rows)[mask]], expected["step"][mask])
    same_bytes(erased, twin.erase(keys[:100]))
    same_tables(table, twin)
    assert state.table is table


def test_defaults_and_shapes_of_batches(programs, mode):
    """One default, one for each key, the table's own, and none; keys of two dimensions and of none."""
    ours = programs.ours
    table, twin = with_twin(programs, default=DEFAULT)
    keys = np.arange(6).reshape(2, 3)
    values = {name: array.reshape(2, 3, *array.shape[1:]) for name, array in values_of(["weight", "half"], 6).items()}
    state = ours.from_table(table)
    state, new = programs.compiled(ours.insert, mode)(state, programs.put(keys), put(programs, values))
    same_bytes(new, twin.insert(keys, values))
    asked = np.arange(4, 8).reshape(2, 1, 2)
    own = random_values("float16", (2, 1, 2, 3), 4)
    for default in (None, {"step": np.int32(3)}, {"half": own, "flag": True}, {"weight": np.float32([1, 2, 3, 4])}):
        state, (got, found) = programs.compiled(ours.find, mode)(state, programs.put(asked), default)
        expected, mask = twin.find(asked, default)
        same_columns(got, expected)
        same_bytes(found, mask)
    state, (got, found) = ours.find(state, 3, columns=["weight"])
    same_bytes(got["weight"], values["weight"][1, 0])
    assert found.shape == ()
    for given in ({"weight": 2.5, "step": 7}, {"weight": [1.0, 2.0, 3.0, 4.0]}):  # for all keys alike
        state, _ = ours.insert_or_assign(state, [[10, 11]], given)
        twin[[[10, 11]]] = given
    same_tables(state.table, twin)
    plain = new_table(programs)
    _, (got, _) = ours.find(ours.from_table(plain), programs.put(asked))
    assert all(not np.asarray(each).any() for each in got.values())


def test_empty_batches(programs, mode):
    ours = programs.ours
    table = new_table(programs)
    values = {name: array.reshape(2, 0, *array.shape[1:]) for name, array in values_of(COLUMNS, 0).items()}

    def run(state, keys, values):
        state, new = ours.insert(state, keys, values)
        state, added = ours.insert_or_apply(state, keys, {"step": 1})
        state, (got, found) = ours.find(state, keys, columns=["half", "step"])
        state, rows = ours.rows(state, keys)
        return state, new, added, got, found, rows

    keys = programs.put(np.zeros((2, 0), np.int64))
    state, new, added, got, found, rows = programs.compiled(run, mode)(
        ours.from_table(table), keys, put(programs, values)
    )
    assert new.shape == added.shape == found.shape == rows.shape == (2, 0)
    assert {name: (each.shape, str(each.dtype)) for name, each in got.items()} == {
        "half": ((2, 0, 3), "float16"),
        "step": ((2, 0), "int32"),
    }
    assert len(state.table) == 0


BAD_CHANGES = {
    "unknown": ({"weight": 1.0, "other": 1}, "no column 'other'"),
    "no mapping": (1.0, "give a mapping"),
    "nothing": ({}, "empty mapping"),
    "none": (None, "give a mapping"),
    "dtype": ({"step": np.arange(3), "weight": 1.0}, "values of 'step' are int64"),
    "shape": ({"step": 1, "weight": np.zeros((3, 5), np.float32)}, r"values of 'weight' have shape \(3, 5\)"),
    "length": ({"half": np.zeros((2, 3), np.float16)}, r"values of 'half' have shape \(2, 3\)"),
}
BAD_OPS = {
    "unknown": ({"step": 1}, "divide", "op='divide' is not known"),
    "bits of floats": ({"step": 1, "weight": 1.0}, "bit_or", "the column 'weight' has values of float32"),
    "other columns": ({"step": 1}, {"half": "add"}, "give both"),
    "one too few": ({"step": 1, "half": 1.0}, {"step": "add"}, "give both"),
}
BAD_LOOKUPS = {
    "unknown": ({"columns": ["other"]}, "no column 'other'"),
    "twice": ({"columns": ["step", "step"]}, "comes twice"),
    "no list": ({"columns": "step"}, "a list of names"),
    "none": ({"columns": []}, "ask for one or more"),
    "unknown default": ({"default": {"other": 1}}, "no column 'other'"),
    "one default": ({"default": 1.0}, "give a mapping"),
    "shape of a default": ({"default": {"weight": np.zeros(3, np.float32)}}, "default of 'weight' ha"),
    "dtype of a default": ({"default": {"step": np.zeros(3, np.float32)}}, "default of 'step' are float32"),
}


def refused(ours, theirs, message):
    """Both refuse, with the same exception; ours says why."""
    with pytest.raises((TypeError, ValueError)) as expected:
        theirs()
    with pytest.raises(expected.type, match=message):
        ours()


def test_bad_input_is_refused_as_by_the_methods(programs):
    ours = programs.ours
    table, twin = with_twin(programs)
    keys = np.arange(3)
    state = ours.from_table(table)
    for values, message in BAD_CHANGES.values():
        for call in ("insert", "insert_or_assign", "insert_or_apply"):
            op = ("add",) if call == "insert_or_apply" else ()
            ours_call = functools.partial(getattr(ours, call), state, keys, values, *op)
            refused(ours_call, functools.partial(getattr(twin, call), keys, values, *op), message)
    for values, op, message in BAD_OPS.values():
        refused(
            functools.partial(ours.insert_or_apply, state, keys, values, op),
            functools.partial(twin.insert_or_apply, keys, values, op),
            message,
        )
    for options, message in BAD_LOOKUPS.values():
        refused(
            functools.partial(ours.find, state, keys, **options), functools.partial(twin.find, keys, **options), message
        )
    single = HashTable("int64", "float32", device=programs.device)
    refused(
        functools.partial(ours.find, ours.from_table(single), keys, columns=["weight"]),
        functools.partial(single.find, keys, columns=["weight"]),
        "a single value per key",
    )
    state, new = ours.insert(state, keys, {"step": 1})  # the state was never used up
    assert np.asarray(new).all()
    assert len(state.table) == 3


def test_without_64_bit_mode():
    """Columns that JAX cannot hold are refused where they are asked for, and nowhere else."""
    printed = in_new_process(
        """
        import numpy as np, gpuhash, gpuhash.jax as ours, jax
        table = gpuhash.HashTable("int32", {"count": "int64", "step": ("int16", (2,))}, default={"step": 4})
        table[np.arange(3, dtype=np.int32)] = {"count": 1 << 40, "step": 7}
        state = ours.from_table(table)
        state, new = jax.jit(ours.insert)(state, np.int32([2, 3]), {"step": np.int16([1, 2])})
        find = jax.jit(lambda state, keys: ours.find(state, keys, columns=["step"]))
        state, (values, found) = find(state, np.int32([2, 3, 9]))
        print(new.tolist(), values["step"].tolist(), found.tolist(), table.find(np.int32([3]))[0]["count"].tolist())
        for call in (lambda: ours.find(state, np.int32([1])), lambda: ours.insert(state, np.int32([1]), {"count": 1})):
            try:
                call()
            except TypeError as error:
                print(str(error)[:46])
        """
    )
    assert printed.splitlines() == [
        "[False, True] [[7, 7], [1, 2], [4, 4]] [True, True, False] [0]",
        "the values of 'count' of the table are int64, ",
        "the values of 'count' of the table are int64, ",
    ]


# States --------------------------------------------------------------------------------------------------------------


def test_states_of_columns(programs):
    ours = programs.ours
    table = new_table(programs, default=DEFAULT)
    state = ours.from_table(table)
    assert "columns {weight: float32 (4,), step: int32, " in repr(state)
    name = f"columns-{programs.device}"
    named = new_table(programs, name=name, default=DEFAULT)
    state = ours.from_table(named)
    del named
    (opened,) = state.tables
    assert list(opened.columns) == list(COLUMNS)
    assert opened.columns["step"].initial is not None
    assert opened.default["short"] == 2
    assert opened.default["weight"].tolist() == [-1] * 4
    opened.close()


def test_columns_are_found_by_name():
    """A program on the host that meets another table of the name: its columns may lie in another order."""
    programs = need_jax()
    ours = programs.ours
    find = programs.jax.jit(lambda state, keys: ours.find(state, keys, columns=["b", "a"]))
    insert = programs.jax.jit(lambda state, keys: ours.insert(state, keys, {"ü": 3, "b": 2}))
    table = HashTable("int64", {"a": "int32", "b": "int32", "ü": "int32"}, name="by name")
    table[1] = {"a": 10, "b": 20}
    state, (values, _) = find(ours.from_table(table), np.int64([1]))
    assert (int(values["a"][0]), int(values["b"][0])) == (10, 20)
    table.close()
    other = HashTable("int64", {"ü": "int32", "b": "int32", "c": "int32", "a": "int32"}, name="by name")
    other[1] = {"a": 11, "b": 21}
    state, (values, _) = find(ours.from_table(other), np.int64([1]))
    assert (int(values["a"][0]), int(values["b"][0])) == (11, 21)
    state, _ = insert(state, np.int64([2]))
    assert other[2] == {"ü": 3, "b": 2, "c": 0, "a": 0}
    other.close()
    without = HashTable("int64", {"a": "int32", "c": "int32"}, name="by name")
    programs.fails(lambda: find(state, np.int64([1])), 'no column "b"')
    without.close()


@pytest.mark.parametrize("call", ["insert", "insert_or_apply"])
def test_each_allocation_fails_once(programs, call):
    """Whatever memory is missing, the program says so and the table is as it was."""
    if not programs.on_host:
        pytest.skip("the host's, where every allocation of the call is the table's")
    memory = counting_memory(programs.device)
    run = programs.jax.jit(getattr(programs.ours, call))
    keys, more = np.arange(100), np.arange(50, 1500)
    values = {"weight": np.ones((1450, 4), np.float32), "step": np.full(1450, 2, np.int32)}

    def no_memory(state):
        """What the program says of it, or None."""
        try:
            programs.jax.block_until_ready(run(state, more, values))
        except programs.failures as error:
            return str(error)
        return None

    failures = 0
    while True:
        table = new_table(programs, memory=memory)
        table[keys] = {"weight": 3.0}
        before = table.copy()
        state = programs.ours.from_table(table)
        memory.fail_after(failures)
        message = no_memory(state)
        memory.fail_after(None)
        if message is None:
            break
        assert "RESOURCE_EXHAUSTED" in message
        same_tables(table, before)
        failures += 1
    assert failures >= 3
    assert len(table) == 1500
    assert not memory.mistakes


def test_fixed_tables(programs):
    """They take every call, and those that would make them grow fail and change nothing."""
    jax, ours = programs.jax, programs.ours
    table, twin = with_twin(programs)
    table.reserve(1000)
    capacity = table.capacity

    def step(state, keys):
        state, new = ours.insert_or_assign(state, keys, {"weight": 1.5})
        state, _ = ours.insert_or_apply(state, keys, {"step": 1})
        state, (values, _) = ours.find(state, keys + 10)
        return state, new, values

    # On a GPU lookups are recorded into a command buffer, and insertions are made between two of them.
    options = None if programs.on_host else {"xla_gpu_graph_min_graph_size": 1}
    run = jax.jit(step, donate_argnums=0, compiler_options=options)
    state = ours.from_table(table, fixed=True)
    for turn in range(6):
        keys = np.arange(50) + 40 * turn
        state, new, values = run(state, programs.put(keys))
        same_bytes(new, twin.insert_or_assign(keys, {"weight": 1.5}))
        twin.insert_or_apply(keys, {"step": 1}, "add")
        same_columns(values, twin.find(keys + 10)[0])
    same_tables(table, twin)
    many = programs.put(np.arange(100_000))
    programs.fails(lambda: run(state, many), "RESOURCE_EXHAUSTED.*stays where it is")
    same_tables(table, twin)
    assert table.capacity == capacity


# Transformations -----------------------------------------------------------------------------------------------------


def test_scan_and_cond(programs):
    jax, ours = programs.jax, programs.ours
    table, twin = with_twin(programs)

    def step(state, keys):
        state, new = jax.lax.cond(
            keys[0] % 2 == 0,
            lambda state: ours.insert_or_apply(state, keys, {"step": 1, "half": 0.5}),
            lambda state: ours.insert_or_assign(state, keys, {"flag": True}),
            state,
        )
        state, (values, _) = ours.find(state, keys, columns=["step", "half"])
        return state, (new, values)

    batches = np.random.default_rng(3).integers(0, 60, (40, 8))
    state, (_, values) = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches))(
        ours.from_table(table), programs.put(batches)
    )
    for turn, keys in enumerate(batches):
        if keys[0] % 2 == 0:
            twin.insert_or_apply(keys, {"step": 1, "half": 0.5}, "add")
        else:
            twin.insert_or_assign(keys, {"flag": True})
        same_columns({name: each[turn] for name, each in values.items()}, twin.find(keys, columns=["step", "half"])[0])
    same_tables(state.table, twin)


def test_vmap_over_keys_is_one_call(programs):
    jax, ours = programs.jax, programs.ours
    table, twin = with_twin(programs)
    keys = np.arange(24).reshape(4, 6) // 2
    weights = values_of(["weight"], 24)["weight"].reshape(4, 6, 4)
    steps = np.arange(4, dtype=np.int32)

    def lane(state, keys, weights, step):
        return ours.insert_or_assign(state, keys, {"weight": weights, "step": step, "flag": True})

    insert = jax.jit(jax.vmap(lane, in_axes=(None, 0, 0, 0), out_axes=(None, 0)))
    arguments = (programs.put(keys), programs.put(weights), programs.put(steps))
    state, new = insert(ours.from_table(table), *arguments)
    step_of_key = np.broadcast_to(steps[:, None], keys.shape)
    same_bytes(new, twin.insert_or_assign(keys, {"weight": weights, "step": step_of_key.copy(), "flag": True}))
    same_tables(table, twin)
    text = insert.lower(ours.from_table(table), *arguments).as_text()
    assert text.count("@gpuhash_jax_change") == 1
    find = jax.vmap(lambda state, keys, step: ours.find(state, keys, {"step": step}), (None, 0, 0), (None, 0))
    state, (values, _) = find(state, programs.put(keys + 6), programs.put(steps))
    same_columns(values, twin.find(keys + 6, {"step": step_of_key.copy()})[0])


def test_vmap_over_tables():
    programs = need_jax()
    jax, ours = programs.jax, programs.ours
    tables = [new_table(programs) for _ in range(3)]
    states = jax.tree.map(lambda *arrays: jax.numpy.stack(arrays), *map(ours.from_table, tables))
    keys = np.arange(12).reshape(3, 4)
    values = {"step": np.int32([7, 8, 9]), "flag": np.ones((3, 4), bool)}
    states, _ = jax.jit(jax.vmap(ours.insert))(states, keys, values)
    states, (found_values, _) = jax.vmap(lambda state: ours.find(state, np.arange(12), columns=["step"]))(states)
    for lane, table in enumerate(tables):
        twin = HashTable("int64", COLUMNS)
        twin.insert(keys[lane], {"step": int(values["step"][lane]), "flag": True})
        same_tables(table, twin)
        same_bytes(found_values["step"][lane], twin.find(np.arange(12))[0]["step"])
    assert states.tables == tables


def test_gradients(programs):
    """Defaults have those of where(found, values, default), each column its own; what goes into a table has none."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    table[np.arange(3)] = {"weight": 2.0, "half": 1.0}
    keys = programs.put(np.arange(5))

    def loss(defaults, state):
        state, (values, _) = ours.find(state, keys, {**defaults, "step": 3}, columns=["half", "step", "weight"])
        return (values["weight"] ** 2).sum() + values["half"].astype("float32").sum() * values["step"].sum(), state

    defaults = {
        "weight": programs.put(np.arange(20, dtype=np.float32).reshape(5, 4)),
        "half": programs.put(np.float16([1, 2, 3])),
    }
    gradients, state = jax.jit(jax.grad(loss, has_aux=True))(defaults, ours.from_table(table))
    absent = np.arange(5)[:, None] >= 3
    same_bytes(gradients["weight"], np.where(absent, 2 * np.arange(20).reshape(5, 4), 0).astype(np.float32))
    steps = 3 * 5 + 2 * 3  # those of the rows, and the default's
    assert np.asarray(gradients["half"]).tolist() == [2 * steps] * 3

    def put_in(scale, state):
        state, _ = ours.insert(state, keys, {"step": 1, "weight": scale * jax.numpy.ones(4, "float32")})
        return scale**2, state

    with pytest.raises(TypeError, match="a table keeps no derivatives"):
        jax.grad(put_in, has_aux=True)(jax.numpy.float32(1), state)
    assert len(to_numpy(table.keys())) == 3
