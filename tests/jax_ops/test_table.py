"""Every call of gpuhash.jax on tables, eager and compiled, beside dict."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import sees_gpu
from support.jit import in_new_process, need_jax
from support.memory_resources import counting_memory
from support.samples import (
    KEY_TYPES,
    UFUNCS,
    VALUE_DTYPES,
    as_bytes,
    as_dict,
    check_new_mask,
    has_operation,
    items_of,
    random_keys,
    random_values,
    same_bytes,
    shape_name,
    special_keys,
    type_name,
)

import gpuhash
from gpuhash.signatures import SIGNATURES


@pytest.fixture
def programs(device):
    return need_jax(device)


@pytest.fixture(params=["eager", "jit"])
def mode(request):
    return request.param


TYPES = [
    *((key_type, "float32", (3,)) for key_type in KEY_TYPES),
    *((("int64", ()), dtype, ()) for dtype in VALUE_DTYPES),
    (("int32", (3,)), "bfloat16", (2, 3)),
]


@pytest.mark.pairwise
@pytest.mark.parametrize(
    ("key_type", "value_dtype", "value_shape"),
    TYPES,
    ids=[f"{type_name(key_type)}-{dtype}-{shape_name(shape)}" for key_type, dtype, shape in TYPES],
)
def test_every_call_beside_dict(programs, mode, key_type, value_dtype, value_shape):
    """Duplicates, all special keys, absent keys and a table that grows, with what each call gives and leaves."""
    ours, (key_dtype, key_shape) = programs.ours, key_type
    keys = random_keys(key_dtype, key_shape, 300)
    rng = np.random.default_rng(1)
    first = keys[rng.integers(0, len(keys) // 2 + 1, 200)]
    second = keys[rng.integers(0, len(keys), 300)]
    old, new = (random_values(value_dtype, (len(batch), *value_shape), len(batch)) for batch in (first, second))
    default = random_values(value_dtype, value_shape, 3)
    table = gpuhash.HashTable(
        key_dtype,
        value_dtype,
        key_shape=key_shape,
        value_shape=value_shape,
        device=programs.device,
        deterministic=True,
    )

    def change(state, first, old, second, new):
        state, kept = ours.insert(state, first, old)
        state, assigned = ours.insert_or_assign(state, second, new)
        state, size = ours.size(state)
        return state, kept, assigned, size

    def look(state, keys, default):
        state, found = ours.find(state, keys, default)
        state, there = ours.contains(state, keys)
        return state, found, there

    state = ours.from_table(table)
    arrays = [programs.put(array) for array in (first, old, second, new)]
    state, kept, assigned, size = programs.compiled(change, mode)(state, *arrays)
    model = {}
    for key, value in zip(as_bytes(first).tolist(), as_bytes(old).tolist(), strict=True):
        model.setdefault(key, value)
    check_new_mask(kept, first, set(), in_order=programs.on_host)
    check_new_mask(assigned, second, set(model), in_order=programs.on_host)
    model.update(as_dict(second, new))
    assert int(size) == len(model)
    assert items_of(table) == model

    state, (values, found), there = programs.compiled(look, mode)(state, programs.put(keys), programs.put(default))
    present = np.array([key in model for key in as_bytes(keys).tolist()])
    expected = [model.get(key, default.tobytes()) for key in as_bytes(keys).tolist()]
    same_bytes(found, present)
    same_bytes(there, present)
    same_bytes(values, np.frombuffer(b"".join(expected), default.dtype).reshape(len(keys), *value_shape))

    gone = np.concatenate([keys[::3], keys[::5]])
    state, erased = programs.compiled(ours.erase, mode)(state, programs.put(gone))
    wanted = set(as_bytes(gone).tolist()) & set(model)
    assert sorted(as_bytes(gone[np.asarray(erased)]).tolist()) == sorted(wanted)
    for key in wanted:
        del model[key]
    assert items_of(table) == model
    state, size = programs.compiled(ours.size, mode)(state)
    assert int(size) == len(model)
    assert state.table is table


@pytest.mark.parametrize("columns", [False, True], ids=["single", "columns"])
def test_find_or_insert(programs, mode, columns):
    """Rows and new keys of a batch and of lanes, with values, with some columns, and with what initializers draw."""
    ours, jax = programs.ours, programs.jax
    normal = gpuhash.initializers.Normal(std=0.5, seed=3)
    if columns:
        kind = {"value_dtype": {"weight": gpuhash.Column("float32", (2,), normal), "step": "int32"}}
    else:
        kind = {"value_dtype": "float32", "value_shape": (2,), "initializer": normal}
    table, own = (gpuhash.HashTable("int64", **kind, device=programs.device) for _ in range(2))
    keys = np.array([[3, 1, 3], [2, 1, 4]])
    state = ours.from_table(table)
    find_or_insert = programs.compiled(ours.find_or_insert, mode)
    state, (rows, is_new) = find_or_insert(state, programs.put(keys))
    own.find_or_insert(keys)
    assert rows.tolist() == table.rows(keys).tolist()
    assert sorted(keys[np.asarray(is_new)].tolist()) == [1, 2, 3, 4]
    assert table == own
    given = np.arange(6, dtype=np.int32).reshape(2, 3) if columns else np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    values = {"step": programs.put(given)} if columns else programs.put(given)
    state, (rows, is_new) = find_or_insert(state, programs.put(keys + 2), values)
    own.find_or_insert(keys + 2, {"step": given} if columns else given)
    assert rows.tolist() == table.rows(keys + 2).tolist()
    assert sorted((keys + 2)[np.asarray(is_new)].tolist()) == [5, 6]
    assert sorted(table.keys().tolist()) == sorted(own.keys().tolist())

    def one_lane(state, keys):
        return ours.find_or_insert(state, keys)

    state, (rows, is_new) = jax.vmap(one_lane, in_axes=(None, 0), out_axes=(None, 0))(state, programs.put(keys + 10))
    assert rows.tolist() == table.rows(keys + 10).tolist()
    assert sorted((keys + 10)[np.asarray(is_new)].tolist()) == [11, 12, 13, 14]
    state, size = ours.size(state)
    assert int(size) == len(table) == 10


@pytest.mark.parametrize("columns", [False, True], ids=["single", "columns"])
def test_setdefault_and_pop(programs, mode, columns):
    """Of a batch and of lanes, with one default for all keys and with one for each, beside the table's own methods."""
    ours, jax = programs.ours, programs.jax
    value_dtype = {"weight": ("float32", (2,)), "step": "int32"} if columns else "int32"
    devices = (programs.device, "cpu")
    table, twin = (gpuhash.HashTable("int64", value_dtype, device=each, deterministic=True) for each in devices)
    keys = np.array([[3, 1, 3], [2, 1, 4]])
    each = np.arange(6, dtype=np.int32).reshape(2, 3)

    def given(value, put=lambda value: value):
        return {"step": put(value)} if columns else put(value)

    def same(got, expected):
        for name in expected if columns else ("",):
            mine, its = (got[name], expected[name]) if columns else (got, expected)
            same_bytes(np.asarray(mine), its)

    state = ours.from_table(table)
    setdefault, pop = (programs.compiled(call, mode) for call in (ours.setdefault, ours.pop))
    state, values = setdefault(state, programs.put(keys), given(each, programs.put))
    same(values, twin.setdefault(keys, given(each)))
    lanes = jax.vmap(ours.setdefault, in_axes=(None, 0, None), out_axes=(None, 0))
    state, values = lanes(state, programs.put(keys + 2), given(np.int32(7), programs.put))
    same(values, twin.setdefault(keys + 2, given(np.int32(7))))
    state, values = pop(state, programs.put(keys), given(each, programs.put))
    same(values, twin.pop(keys, given(each)))
    assert sorted(table.keys().tolist()) == sorted(twin.keys().tolist()) == [5, 6]
    of_lanes = np.int32([8, 9])
    lanes = jax.vmap(ours.pop, in_axes=(None, 0, 0), out_axes=(None, 0))
    state, values = lanes(state, programs.put(keys + 2), given(of_lanes, programs.put))
    same(values, twin.pop(keys + 2, given(np.repeat(of_lanes, 3).reshape(2, 3))))
    assert len(table) == len(twin) == 0


@pytest.mark.parametrize(
    "call",
    [name for name, each in SIGNATURES.items() if each.request != "whole" and not each.special and name != "add"],
)
def test_answers_are_those_of_the_manifest(call):
    """With the shapes and dtypes that it says, in its order, as a trace tells them and as a call gives them."""
    programs = need_jax()
    ours, signature = programs.ours, SIGNATURES[call]
    table = gpuhash.HashTable("int32", "float16", value_shape=(2,), default=1)
    keys = np.arange(6, dtype=np.int32).reshape(2, 3)
    values = [np.ones(2, np.float16)] if signature.takes else []
    given = getattr(ours, call)(ours.from_table(table), keys, *values)[1]
    traced = programs.jax.eval_shape(getattr(ours, call), ours.from_table(table), keys, *values)[1]
    kinds = {"values": ((2, 3, 2), "float16"), "rows": ((2, 3), "int64")}
    expected = [kinds.get(answer, ((2, 3), "bool")) for answer in signature.answers]
    for answers in (given, traced):
        each = answers if isinstance(answers, tuple) else (answers,)
        assert [(answer.shape, answer.dtype.name) for answer in each] == expected


def test_the_tables_default_is_that_of_setdefault_and_pop(programs):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "int32", default=-1, device=programs.device)
    table[np.array([1])] = np.int32([5])
    keys = programs.put(np.arange(3))
    state, popped = ours.pop(ours.from_table(table), keys)
    assert popped.tolist() == [-1, 5, -1]
    state, values = ours.setdefault(state, keys)
    assert values.tolist() == [-1, -1, -1]
    assert items_of(table) == as_dict(np.arange(3), np.int32([-1, -1, -1]))


@pytest.mark.pairwise
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "bool", "complex64"])
@pytest.mark.parametrize("op", UFUNCS)
def test_insert_or_apply(programs, op, dtype, value_shape):
    ours = programs.ours
    table = gpuhash.HashTable("int64", dtype, value_shape=value_shape, device=programs.device)
    keys = np.random.default_rng(2).integers(0, 40, 100)
    values = random_values(dtype, (100, *value_shape))
    if op == "multiply":  # signs alone, so that no order of float products rounds
        values = np.sign(values.real).astype(values.dtype) if dtype != "bool" else values
    call = programs.jax.jit(ours.insert_or_apply, static_argnames="op")
    state = ours.from_table(table)
    if not has_operation(op, dtype):
        with pytest.raises(TypeError, match=r"combines bits of integers|needs an order"):
            call(state, programs.put(keys), programs.put(values), op=op)
        assert len(table) == 0
        return
    state, inserted = call(state, programs.put(keys), programs.put(values), op=op)
    check_new_mask(inserted, keys, set(), in_order=False)
    for key in range(40):
        if (keys == key).any():
            expected = UFUNCS[op].reduce(values[keys == key], axis=0, dtype=values.dtype)
            np.testing.assert_array_equal(np.asarray(table[int(key)]), expected)


def test_replace_and_keep(programs):
    table = gpuhash.HashTable("int32", "int32", device=programs.device)
    state = programs.ours.from_table(table)
    for op, value in (("replace", 1), ("keep", 2)):
        state, _ = programs.ours.insert_or_apply(state, programs.put(np.int32([5])), value, op)
        assert state.table[5] == 1
    with pytest.raises(ValueError, match="op='divide' is not known"):
        programs.ours.insert_or_apply(state, programs.put(np.int32([5])), 3, "divide")


@pytest.mark.parametrize("key_type", [("int64", ()), ("int32", (3,)), ("int64", (2,))], ids=type_name)
def test_sets(programs, mode, key_type):
    ours = programs.ours
    keys = random_keys(*key_type, 100)
    table = gpuhash.HashSet(key_type[0], key_shape=key_type[1], device=programs.device)

    def both(state, some, all):
        state, inserted = ours.insert(state, some)
        state, found = ours.contains(state, all)
        return state, inserted, found

    state, inserted, found = programs.compiled(both, mode)(
        ours.from_table(table), programs.put(keys[:60]), programs.put(keys)
    )
    assert np.asarray(inserted).all()
    same_bytes(found, np.arange(100) < 60)
    assert state.table is table
    assert len(table) == 60
    for call in (lambda: ours.find(state, keys), lambda: ours.insert_or_assign(state, keys, 1)):
        with pytest.raises(TypeError, match="set"):
            call()


def test_rows_are_those_of_the_storage(programs, mode):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "float32", value_shape=(4,), device=programs.device)
    keys = random_keys("int64", (), 500)
    values = random_values("float32", (400, 4))
    state, _ = ours.insert(ours.from_table(table), programs.put(keys[:400]), programs.put(values))
    state, rows = programs.compiled(ours.rows, mode)(state, programs.put(keys))
    rows = np.asarray(rows)
    assert rows.dtype == np.int64
    assert (rows[400:] == -1).all()
    assert sorted(rows[:400]) == list(range(400))
    storage = table.to("cpu").row_storage if not programs.on_host else table.row_storage
    same_bytes(np.asarray(storage)[rows[:400]], values)
    if programs.on_host:
        shards = gpuhash.HashTable("int64", "float32", value_shape=(2,), device=["cpu"] * 3)
        shards[keys] = np.float32(1)
        numbers = programs.compiled(ours.rows, mode)(ours.from_table(shards), programs.put(keys))[1]
        same_bytes(np.asarray(numbers), shards.rows(keys))  # with the shard above the 40 lower bits
    with pytest.raises(ValueError, match="has no rows"):
        ours.rows(ours.from_table(gpuhash.HashTable("int64", "int64", device=programs.device)), keys)


def test_all_patterns_that_mark_slots(programs):
    """Keys that look like the marks of empty and erased slots, inserted, found and erased by one program."""
    ours = programs.ours
    for dtype, shape in KEY_TYPES:
        keys = special_keys(dtype, shape)
        table = gpuhash.HashSet(dtype, key_shape=shape, device=programs.device)

        @programs.jax.jit
        def run(state, keys):
            state, before = ours.contains(state, keys)
            state, inserted = ours.insert(state, keys)
            state, after = ours.contains(state, keys)
            state, erased = ours.erase(state, keys[::2])
            state, left = ours.contains(state, keys)
            return state, before, inserted, after, erased, left

        _, before, inserted, after, erased, left = run(ours.from_table(table), programs.put(keys))
        assert not np.asarray(before).any()
        assert np.asarray(inserted).all()
        assert np.asarray(after).all()
        assert np.asarray(erased).all()
        assert np.asarray(left).tolist() == [i % 2 == 1 for i in range(len(keys))]


def test_batches_of_any_shape_and_values_for_all_keys(programs, mode):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "float32", value_shape=(2,), device=programs.device, default=[7, 8])
    keys = programs.put(np.arange(6).reshape(2, 3))
    state = ours.from_table(table)
    state, inserted = programs.compiled(ours.insert, mode)(state, keys, programs.put(np.float32([1, 2])))
    assert inserted.shape == (2, 3)
    asked = programs.put(np.arange(4, 8).reshape(2, 1, 2))
    state, (values, found) = programs.compiled(ours.find, mode)(state, asked)
    same_bytes(values, np.float32([1, 2, 1, 2, 7, 8, 7, 8]).reshape(2, 1, 2, 2))  # the table's own default
    same_bytes(found, np.array([True, True, False, False]).reshape(2, 1, 2))
    per_key = np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)
    state, (values, _) = programs.compiled(ours.find, mode)(state, asked, programs.put(per_key))
    same_bytes(values, np.where(np.asarray(found)[..., None], np.float32([1, 2]), per_key))
    state, (value, found) = programs.compiled(ours.find, mode)(state, programs.put(np.int64(9)), -1.0)
    assert value.tolist() == [-1, -1]
    assert found.shape == ()
    state, (value, _) = ours.find(state, 5)  # Python numbers, and NumPy's arrays
    assert value.tolist() == [1, 2]
    state, inserted = ours.insert(state, [[10, 11]], [3, 4])
    assert inserted.tolist() == [[True, True]]
    state, (values, _) = ours.find(state, np.arange(10, 12))
    assert values.tolist() == [[3, 4], [3, 4]]
    plain = gpuhash.HashTable("int64", "int32", device=programs.device)
    _, (values, _) = ours.find(ours.from_table(plain), keys)
    assert not np.asarray(values).any()  # without any default, zeros


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=str)
def test_empty_batches(programs, mode, value_shape):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "float32", value_shape=value_shape, device=programs.device)
    keys, values = programs.put(np.zeros((2, 0), np.int64)), programs.put(np.zeros((2, 0, *value_shape), np.float32))

    def run(state, keys, values):
        state, inserted = ours.insert(state, keys, values)
        state, (found_values, found) = ours.find(state, keys, values)
        state, erased = ours.erase(state, keys)
        state, size = ours.size(state)
        return state, inserted, found_values, found, erased, size

    _, inserted, found_values, found, erased, size = programs.compiled(run, mode)(ours.from_table(table), keys, values)
    assert inserted.shape == found.shape == erased.shape == (2, 0)
    assert found_values.shape == (2, 0, *value_shape)
    assert int(size) == 0


def test_growth_inside_of_a_program(programs):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "int64", device=programs.device)
    assert table.capacity < 100
    keys = random_keys("int64", (), 100_000)

    @programs.jax.jit
    def run(state, keys):
        state, _ = ours.insert(state, keys[:50_000], keys[:50_000] * 3)
        state, _ = ours.insert(state, keys, keys * 5)
        return ours.find(state, keys)

    _, (values, found) = run(ours.from_table(table), programs.put(keys))
    assert np.asarray(found).all()
    same_bytes(values, np.where(np.arange(100_000) < 50_000, keys * 3, keys * 5))
    assert len(table) == 100_000


def test_a_full_table_fails_the_program_and_stays_as_it_was(programs):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "int64", capacity=64, growth=False, device=programs.device)
    table[np.arange(20)] = np.arange(20)
    insert = programs.jax.jit(ours.insert)
    state = ours.from_table(table)
    many = programs.put(np.arange(1000))
    programs.fails(lambda: insert(state, many, many), "RESOURCE_EXHAUSTED.*64 slots")
    assert items_of(table) == as_dict(np.arange(20), np.arange(20))
    few = programs.put(np.arange(18, 22))
    _, inserted = insert(ours.from_table(table), few, few)
    assert np.asarray(inserted).tolist() == [False, False, True, True]
    assert len(table) == 22


@pytest.mark.parametrize("call", ["insert", "insert_or_apply"])
def test_each_allocation_fails_once(programs, call):
    """Whatever memory is missing, the program says so and the table is as it was."""
    if not programs.on_host and not sees_gpu("torch"):
        pytest.skip("the memory resource of this test is PyTorch's")
    memory = counting_memory(programs.device)
    keys, more = np.arange(300), programs.put(np.arange(200, 3000))
    rows, new = np.full((300, 3), 2, np.float32), programs.put(np.ones((2800, 3), np.float32))
    run = programs.jax.jit(getattr(programs.ours, call))

    def no_memory(state):
        """What the program says of it, or None."""
        try:
            programs.jax.block_until_ready(run(state, more, new))
        except programs.failures as error:
            return str(error)
        return None

    failures = 0
    while True:
        table = gpuhash.HashTable("int64", "float32", value_shape=(3,), device=programs.device, memory=memory)
        table[keys] = rows
        state = programs.ours.from_table(table)
        memory.fail_after(failures)
        message = no_memory(state)
        memory.fail_after(None)
        if message is None:
            break
        assert "RESOURCE_EXHAUSTED" in message
        assert "bytes in this test" in message
        assert items_of(table) == as_dict(keys, rows)
        failures += 1
    assert failures >= 3
    assert len(table) == 3000
    assert not memory.mistakes


def test_one_program_for_all_tables_of_a_kind():
    """On the host, where a program reads the table's handle from its argument."""
    programs = need_jax()
    ours = programs.ours
    run = programs.jax.jit(lambda state, keys: ours.insert(state, keys, keys))
    for start in range(3):
        table = gpuhash.HashTable("int64", "int64")
        state, _ = run(ours.from_table(table), np.arange(start, start + 10))
        state, _ = run(state, np.arange(20, 30))
        assert sorted(table) == [*range(start, start + 10), *range(20, 30)]
        assert state.table is table
    assert run._cache_size() == 1
    table = gpuhash.HashTable("int64", "int64", default=3)
    run(ours.from_table(table), np.arange(10))
    assert run._cache_size() == 2  # another default is another kind


def test_a_states_table(programs):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "int64", device=programs.device, default=5)
    state = ours.from_table(table)
    assert state.table is table
    assert state.tables == [table]
    assert repr(state) == "<gpuhash.jax.State: keys int64[], values int64[]>"
    core = table._core  # the table lives on, without the object that it was made as
    del table
    other = state.table
    assert isinstance(other, gpuhash.HashTable)
    assert other._core is core
    assert other[[1]].tolist() == [5]
    names = gpuhash.HashSet("int32", device=programs.device, name=f"of a state on {programs.device}")
    state = ours.from_table(names)
    assert state.table is names
    names.close()
    with pytest.raises(RuntimeError, match="given up its name"):
        _ = state.table


# What bad input gets -------------------------------------------------------------------------------------------------


def test_bad_input(programs):
    ours = programs.ours
    table = gpuhash.HashTable("int64", "float32", value_shape=(2,), device=programs.device)
    vectors = gpuhash.HashTable("int32", "float32", key_shape=(3,), device=programs.device)
    keys = programs.put(np.arange(4))

    def one(call, error, message, of=table):
        for compiled in (call, programs.jax.jit(call)):
            with pytest.raises(error, match=message):
                compiled(ours.from_table(of))

    one(lambda state: ours.find(state, keys.astype("int32")), TypeError, r"keys are int32.*int64.*astype\('int64'\)")
    one(lambda state: ours.find(state, keys.astype("float32")), TypeError, "keys are float32")
    one(lambda state: ours.find(state, [1.5]), TypeError, "keys are int64")
    one(lambda state: ours.find(state, [2**64]), OverflowError, "out of range for keys of int64")
    one(lambda state: ours.find(state, ["a"]), TypeError, "strings")
    one(lambda state: ours.find(state, {1: 2}), TypeError, "dict objects are not arrays")
    one(lambda state: ours.find(state, keys, keys), TypeError, "default are int64")
    one(lambda state: ours.find(state, keys, np.zeros(3, np.float32)), ValueError, r"default have shape \(3,\)")
    one(lambda state: ours.insert(state, keys, np.zeros((3, 2), np.float32)), ValueError, r"values have shape \(3, 2\)")
    one(lambda state: ours.insert(state, keys), TypeError, "no values")
    one(lambda state: ours.pop(state, keys), ValueError, r"pop\(keys\) of a batch needs a default")
    one(lambda state: ours.setdefault(state, keys), ValueError, "setdefault needs a default")
    whole = ours.from_table(gpuhash.HashTable("int64", "int32", device=programs.device))
    with pytest.raises(TypeError, match="default are int64"):  # a Python integer that became an argument of a program
        programs.jax.jit(ours.find)(whole, keys, 3)
    one(lambda state: ours.find(state, keys.astype("int32")), ValueError, r"keys have shape \(4,\).*vectors", vectors)
    for nothing in (table, None, keys):
        with pytest.raises(TypeError, match=r"from_table\(table\)"):
            ours.find(nothing, keys)
    for nothing in (None, {}, keys):
        with pytest.raises(TypeError, match=r"expected a gpuhash\.HashTable"):
            ours.from_table(nothing)
    wrong = _Gpu() if programs.on_host else programs.jax.devices("cpu")[0]
    with pytest.raises(ValueError, match="give one that it is on"):
        ours.from_table(table, device=wrong)
    assert len(table) == 0


class _Gpu:
    platform = "gpu"


def test_another_framework_is_told(programs):
    torch = pytest.importorskip("torch")
    state = programs.ours.from_table(gpuhash.HashTable("int64", "int64", device=programs.device))
    with pytest.raises(TypeError, match="a Tensor, expected an array of JAX or NumPy"):
        programs.ours.find(state, torch.arange(3))


def test_a_table_on_a_gpu_that_jax_does_not_see():
    """In a process whose JAX has the CPU alone."""
    need_jax("cuda")
    printed = in_new_process(
        """
        import gpuhash, gpuhash.jax
        try:
            gpuhash.jax.from_table(gpuhash.HashTable("int32", "int32", device="cuda"))
        except ValueError as error:
            print(error)
        """
    )
    assert "and JAX has no GPU" in printed


def test_without_64_bit_mode():
    printed = in_new_process(
        """
        import jax, jax.numpy as jnp, numpy as np
        import gpuhash, gpuhash.jax as ours
        for key_dtype, value_dtype in (("int64", "int32"), ("uint64", "int32"), ("int32", "float64")):
            try:
                ours.insert(ours.from_table(gpuhash.HashTable(key_dtype, value_dtype)), [1], 2)
            except TypeError as error:
                print(error)
        table = gpuhash.HashTable("int32", "complex64", value_shape=(2,))

        @jax.jit
        def run(state, keys):
            state, inserted = ours.insert(state, keys, 1.0)
            state, rows = ours.rows(state, keys - 1)
            state, size = ours.size(state)
            return state, inserted, rows, size, ours.unique(keys, return_inverse=True, return_index=True, size=3)

        state, inserted, rows, size, distinct = run(ours.from_table(table), jnp.array([4, 5, 4, 6]))
        print(inserted.sum(), sorted(rows.tolist()), rows.dtype, size, size.dtype, len(table))
        print([part.tolist() for part in distinct], [str(part.dtype) for part in distinct])
        try:
            ours.unique(np.arange(3))
        except TypeError as error:
            print(error)
        shards = gpuhash.HashTable("int32", "float32", value_shape=(2,), device=["cpu"] * 3)
        shards[[4, 5]] = 1.0
        for rows in (ours.rows, jax.jit(ours.rows)):
            try:
                rows(ours.from_table(shards), jnp.array([4, 5]))
            except TypeError as error:
                print(error)
        """
    ).splitlines()
    for line, what in zip(printed[:3], ("keys of the table are int64", "keys.*uint64", "values.*float64"), strict=True):
        assert "jax.config.update('jax_enable_x64', True)" in line
        assert what.partition(".*")[0] in line
    assert printed[3] == "3 [-1, -1, 0, 1] int32 3 int32 3"
    assert printed[4] == "[[4, 5, 6], [0, 1, 3], [0, 1, 0, 2]] ['int32', 'int32', 'int32']"
    assert "narrows these to int32" in printed[5]
    assert len(printed) == 8
    for line in printed[6:]:
        assert "several shards have numbers of 64 bits" in line
        assert "jax.config.update('jax_enable_x64', True)" in line
