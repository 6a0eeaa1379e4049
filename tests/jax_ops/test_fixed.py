"""Tables that stay where they are, so that XLA may replay calls on them without asking."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from support.frameworks import current_gpu_kept
from support.jit import need_jax
from support.samples import as_dict, items_of, same_bytes

import gpuhash
from gpuhash import TableFullError, _core

RECORD_ALL = {"xla_gpu_graph_min_graph_size": 1}  # XLA's command buffers have 5 calls or more, unless told otherwise


@pytest.fixture
def programs(device):
    return need_jax(device)


def new_table(programs, value_shape=(), **options):
    return gpuhash.HashTable("int64", "float32", value_shape=value_shape, device=programs.device, **options)


def values_of(keys, value_shape):
    return np.broadcast_to(keys.reshape(-1, *(1,) * len(value_shape)), (len(keys), *value_shape)).astype(np.float32)


@pytest.mark.parametrize("value_shape", [(), (5,)])
def test_a_fixed_table_does_not_grow(programs, value_shape):
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, value_shape)
    first = np.arange(100)
    table[first] = values_of(first, value_shape)
    table.reserve(1000)
    capacity, nbytes = table.capacity, table.nbytes
    state = ours.from_table(table, fixed=True)
    insert = jax.jit(ours.insert)
    keys = np.arange(50, 1000)
    state, inserted = insert(state, programs.put(keys), programs.put(values_of(keys, value_shape)))
    same_bytes(inserted, keys >= 100)
    before = items_of(table)
    everyone = np.arange(1000)
    assert before == as_dict(everyone, values_of(everyone, value_shape))

    many = np.arange(1_000_000)
    programs.fails(
        lambda: insert(state, programs.put(many), programs.put(values_of(many, value_shape))),
        "RESOURCE_EXHAUSTED.*stays where it is",
    )
    for refused in (
        lambda: table.insert(many, values_of(many, value_shape)),
        lambda: table.insert_or_apply(many, values_of(many, value_shape), "add"),
        lambda: table.reserve(1_000_000),
    ):
        with pytest.raises(TableFullError, match=r"stays where it is.*use a copy"):
            refused()
    for refused in (lambda: table.rehash(1 << 20), table.rehash, table.shrink_to_fit):
        with pytest.raises(ValueError, match="rehash a copy"):
            refused()
    assert (table.capacity, table.nbytes) == (capacity, nbytes)
    assert items_of(table) == before

    copy = table.copy()
    copy[many] = values_of(many, value_shape)
    assert len(copy) == len(many)
    assert copy.max_capacity is None


def test_a_fixed_table_never_moves(programs):
    """Under what makes other tables rebuild themselves: it fills to the last row, and erases and inserts for long."""
    table = new_table(programs, (4,))
    table.reserve(500)
    programs.ours.from_table(table, fixed=True)
    table[7] = np.ones(4, np.float32)

    def address():
        rows = table.row_storage
        return rows.__array_interface__["data"][0] if programs.on_host else rows.__cuda_array_interface__["data"][0]

    first_address, capacity = address(), table.capacity
    generator = np.random.default_rng(1)
    model = {7: 1.0}
    for step in range(60):
        gone = np.array(list(model)[::2], np.int64)
        assert table.erase(gone).all()
        for key in gone.tolist():
            del model[key]
        new = generator.integers(-(2**62), 2**62, 500 - len(model))
        table[new] = np.full((len(new), 4), step, np.float32)
        model.update(dict.fromkeys(new.tolist(), float(step)))
    assert table.capacity == capacity
    assert address() == first_address
    table.clear()
    assert len(table) == 0
    table[np.arange(500)] = np.ones((500, 4), np.float32)
    assert table.capacity == capacity


def test_programs_hold_a_fixed_table(programs):
    """Nobody asks for the table when a program is replayed: it lives until the program goes."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    table[np.arange(10)] = np.arange(10, dtype=np.float32)
    handle = _core.handle_of(table._core)
    find = jax.jit(lambda state, keys: ours.find(state, keys))
    keys = programs.put(np.arange(20))
    state, _ = find(ours.from_table(table, fixed=True), keys)
    del table
    gc.collect()
    assert _core.table_of(handle) is not None
    state, (values, found) = find(state, keys)
    same_bytes(found, np.arange(20) < 10)
    same_bytes(values, np.where(np.arange(20) < 10, np.arange(20.0), 0).astype(np.float32))
    del state, find
    jax.clear_caches()
    gc.collect()
    if tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 10):  # caches of older versions outlive this
        assert _core.table_of(handle) is None


def test_a_fixed_state_means_its_table_alone(programs):
    """Not another one that gets its name later, which may move."""
    jax, ours = programs.jax, programs.ours
    name = f"fixed-{programs.device}"
    table = new_table(programs, name=name)
    table[np.arange(3)] = np.ones(3, np.float32)
    find = jax.jit(ours.find)
    keys = programs.put(np.arange(3))
    state, _ = find(ours.from_table(table, fixed=True), keys)
    table.close()
    other = new_table(programs, name=name)
    state, (values, found) = find(state, keys)
    assert np.asarray(found).all()
    same_bytes(values, np.ones(3, np.float32))
    state, _ = jax.jit(ours.erase)(state, keys)
    assert state.table is table
    assert (len(table), len(other)) == (0, 0)
    other.close()


def test_what_fails_fixes_nothing(programs):
    jax, ours = programs.jax, programs.ours
    table, another = new_table(programs), gpuhash.HashTable("int32", "float32", device=programs.device)
    # One device twice: it never gets as far as to use them.
    devices = np.array(jax.devices("cpu" if programs.on_host else "cuda")[:1] * 2)
    with pytest.raises(RuntimeError, match="make it outside"):
        jax.jit(lambda: ours.from_table(table, fixed=True))()
    with pytest.raises(TypeError, match=r"device='cpu' was given, expected one of jax\.devices"):
        ours.from_table(table, fixed=True, device="cpu")
    with pytest.raises(ValueError, match="several kinds"):
        ours.from_tables([table, another], jax.sharding.Mesh(devices, ("x",)), fixed=True)
    with pytest.raises(ValueError, match="one table for each"):
        ours.from_tables([table, another], jax.sharding.Mesh(devices[:1], ("x",)), fixed=True)
    table.rehash(1 << 12)
    assert table.capacity >= 1 << 12


def test_replays_do_not_ask(cuda):
    """XLA records a program of calls on a fixed table into a command buffer. When a state of the table was misused, a
    handler that runs says so; calls that are recorded or replayed go on, and do what a dict does."""
    programs = need_jax(cuda)
    jax, ours = programs.jax, programs.ours

    def step(state, keys):
        state, new = ours.insert(state, keys, keys)
        state, (before, _) = ours.find(state, keys)
        state, _ = ours.insert_or_assign(state, keys, before + 1)
        state, (values, found) = ours.find(state, keys + 1)
        state, erased = ours.erase(state, keys[:2])
        state, there = ours.contains(state, keys)
        return state, (new, values, found, erased, there)

    def model_step(model, keys):
        new = [key not in model for key in keys]
        model.update((key, model.get(key, key) + 1) for key in keys)
        values, found = [model.get(key + 1, 0) for key in keys], [key + 1 in model for key in keys]
        for key in keys[:2]:
            del model[key]
        return new, values, found, [True] * 2, [key in model for key in keys]

    def run_and_compare(run, state, keys, model):
        state, results = jax.block_until_ready(run(state, keys))
        for got, expected in zip(results, model_step(model, range(100, 200)), strict=True):
            assert np.asarray(got).tolist() == expected
        return state

    keys, other_keys = programs.put(np.arange(100, 200)), programs.put(np.arange(100, 200))
    insert = jax.jit(lambda state, keys: ours.insert(state, keys, keys))

    def misuse(table):
        state = ours.from_table(table)
        with current_gpu_kept():
            jax.block_until_ready((insert(state, keys[:1]), insert(state, keys[:1])))

    def replays_of(fixed):
        """How many of some runs after a misuse went on as if nobody had been asked."""
        table = gpuhash.HashTable("int64", "int64", device=cuda)
        table.reserve(10_000)
        run = jax.jit(lambda state, keys: step(state, keys), donate_argnums=0, compiler_options=RECORD_ALL)
        table.insert(np.array([100]), np.array([100]))
        model = {100: 100}
        count = 0
        for each in range(5):
            state = ours.from_table(table, fixed=fixed)
            for _ in range(4):
                state = run_and_compare(run, state, keys, model)
            misuse(table)
            model.setdefault(100, 100)
            message = ""
            try:  # keys elsewhere have the calls recorded anew
                state = run_and_compare(run, state, [keys, other_keys][each % 2], model)
            except programs.failures as error:
                message = str(error)
            if message == "":
                count += 1
                with pytest.raises(RuntimeError, match="had used already"):
                    _ = state.table
            else:
                assert "had used already" in message
        assert items_of(table) == as_dict(np.array(list(model)), np.array(list(model.values())))
        return count

    assert replays_of(fixed=False) == 0
    assert replays_of(fixed=True) == 5


def test_rows_in_replays(cuda):
    """Values in rows, new ones in each run, erased ones among them; against a dict."""
    programs = need_jax(cuda)
    jax, ours = programs.jax, programs.ours
    table = new_table(programs, (3,))
    table.reserve(2000)

    def step(state, keys, values):
        state, gone = ours.erase(state, keys[::2] - 100)
        state, new = ours.insert_or_assign(state, keys, values)
        state, numbers = ours.rows(state, keys)
        state, (found_values, found) = ours.find(state, keys - 100)
        return state, keys + 100, values + 1, (gone, new, numbers, found_values, found)

    run = jax.jit(step, donate_argnums=(0, 1, 2), compiler_options=RECORD_ALL)
    state = ours.from_table(table, fixed=True)
    keys, values = programs.put(np.arange(200)), programs.put(np.zeros((200, 3), np.float32))
    model: dict[int, float] = {}
    for count in range(8):
        batch = np.arange(200) + 100 * count
        erased = [model.pop(key, None) is not None for key in (batch[::2] - 100).tolist()]
        expected_new = [key not in model for key in batch.tolist()]
        model.update(dict.fromkeys(batch.tolist(), float(count)))
        before = (batch - 100).tolist()
        state, keys, values, (gone, new, numbers, found_values, found) = jax.block_until_ready(run(state, keys, values))
        assert np.asarray(gone).tolist() == erased
        assert np.asarray(new).tolist() == expected_new
        assert len(set(np.asarray(numbers).tolist())) == 200
        assert np.asarray(found).tolist() == [key in model for key in before]
        expected = np.array([model.get(key, 0.0) for key in before], np.float32)
        same_bytes(found_values, np.repeat(expected[:, None], 3, 1))
    assert items_of(table) == as_dict(
        np.array(list(model)), np.repeat(np.array(list(model.values()), np.float32)[:, None], 3, 1)
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_calls_that_cannot_be_recorded(cuda, deterministic):
    """They are made between command buffers, in order."""
    programs = need_jax(cuda)
    jax, ours = programs.jax, programs.ours
    table = gpuhash.HashTable("int64", "int64", device=cuda, deterministic=deterministic)
    table.reserve(1000)
    keys = programs.put(np.arange(100))

    def step(state, keys):
        state, (before, _) = ours.find(state, keys)
        state, _ = ours.insert(state, keys, keys)
        state, _ = ours.insert_or_apply(state, keys, 1, "add")
        state, (after, _) = ours.find(state, keys)
        state, size = ours.size(state)
        return state, (before, after, size)

    run = jax.jit(step, donate_argnums=0, compiler_options=RECORD_ALL)
    state = ours.from_table(table, fixed=True)
    for count in range(5):
        state, (before, after, size) = jax.block_until_ready(run(state, keys))
        same_bytes(before, np.arange(100) + count if count else np.zeros(100, np.int64))
        same_bytes(after, np.arange(100) + count + 1)
        assert int(size) == 100


def test_replays_count_what_they_lose(cuda):
    """A replay cannot raise: keys that it finds no room for are counted, and the next call that waits tells."""
    programs = need_jax(cuda)
    jax, ours = programs.jax, programs.ours
    table = gpuhash.HashTable("int64", "int64", device=cuda)
    table.reserve(1000)
    capacity = table.capacity
    state = ours.from_table(table, fixed=True)

    def step(state, keys):
        return ours.insert(state, keys, keys)[0], keys + 1000

    run = jax.jit(step, donate_argnums=(0, 1), compiler_options=RECORD_ALL)
    keys = programs.put(np.arange(1000))
    lost = None
    for _ in range(50):
        try:
            state, keys = jax.block_until_ready(run(state, keys))
        except programs.failures as error:  # XLA has asked the handler this time
            lost = str(error)
            break
        try:
            len(table)
        except TableFullError as error:
            lost = str(error)
            break
    assert lost is not None
    assert "are lost" in lost or "stays where it is" in lost
    assert len(table) == (capacity if "are lost" in lost else 1000)
