"""The order of calls in compiled programs, and what becomes of states that are used twice or outlive their table."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import pickle
import warnings

import numpy as np
import pytest
from support.frameworks import GPU, current_gpu_kept, module, sees_gpu
from support.graphs import gpuhash_tensorflow
from support.jit import in_new_process, need_jax
from support.memory_resources import counting_memory
from support.samples import as_dict, items_of, same_bytes

import gpuhash


@pytest.fixture
def programs(device):
    return need_jax(device)


def new_table(programs, **options):
    return gpuhash.HashTable("int64", "int64", device=programs.device, **options)


# Order ---------------------------------------------------------------------------------------------------------------


def test_calls_of_one_program_are_in_order(programs):
    """Nothing but the state connects these calls. Without it they come out in any order, most often a wrong one."""
    ours = programs.ours
    table = new_table(programs)

    @programs.jax.jit
    def run(state, keys):
        state, before = ours.contains(state, keys)
        state, _ = ours.insert(state, keys, keys)
        state, (first, _) = ours.find(state, keys)
        state, _ = ours.insert_or_assign(state, keys, keys * 2)
        state, (second, _) = ours.find(state, keys)
        state, _ = ours.insert_or_apply(state, keys, keys, "add")
        state, (third, _) = ours.find(state, keys)
        state, size = ours.size(state)
        state, _ = ours.erase(state, keys)
        state, after = ours.contains(state, keys)
        return state, before, first, second, third, size, after

    state = ours.from_table(table)
    for start in range(100):
        keys = np.arange(start, start + 500)
        state, before, first, second, third, size, after = run(state, programs.put(keys))
        assert not np.asarray(before).any()
        same_bytes(first, keys)
        same_bytes(second, keys * 2)
        same_bytes(third, keys * 3)
        assert int(size) == 500
        assert not np.asarray(after).any()


def test_the_program_threads_the_state_through_every_call(programs):
    """In what XLA is given: each call's first operand is the first result of the call before, in the same memory."""
    ours = programs.ours

    def run(state, keys):
        state, _ = ours.insert(state, keys, keys)
        state, (values, _) = ours.find(state, keys)
        state, _ = ours.erase(state, keys)
        return state, values

    table = new_table(programs)
    text = programs.jax.jit(run).lower(ours.from_table(table), programs.put(np.arange(8))).as_text()
    calls = [line for line in text.splitlines() if "@gpuhash_jax_" in line]
    assert [line.partition("@gpuhash_jax_")[2].partition("(")[0] for line in calls] == ["change", "look_up", "erase"]
    result = None
    for line in calls:
        name, _, call = line.partition("=")
        operand = call.partition("(")[2].partition(",")[0].strip()
        assert "output_operand_alias" in line
        assert result is None or operand == f"{result}#0", text
        result = name.strip().partition(":")[0]


def test_a_change_whose_state_is_dropped(programs):
    """It is made if its result is used, and left out otherwise, as all that no result depends on; and JAX's user hears
    of it when the program is traced."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    keys = programs.put(np.arange(9))
    for call, what in ((ours.insert, "insert"), (ours.insert_or_apply, "insert_or_apply")):

        @jax.jit
        def run(state, keys, call=call):
            call(state, keys, keys)
            return keys.sum()

        with pytest.warns(RuntimeWarning, match=rf"gpuhash\.jax\.{what} returned was dropped.*return the state"):
            jax.block_until_ready(run(ours.from_table(table), keys))
    assert len(table) == 0
    with pytest.warns(RuntimeWarning, match="dropped"):
        inserted = jax.jit(lambda state, keys: ours.insert(state, keys, keys)[1])(ours.from_table(table), keys)
    assert np.asarray(inserted).all()
    assert len(table) == 9


def test_what_is_no_dropped_change_is_not_warned_of(programs):
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    keys = programs.put(np.arange(9))

    def step(state, keys):
        return ours.insert(state, keys, keys)

    def run(state, keys):
        state, _ = jax.jit(step)(state, keys)
        state, _ = jax.lax.scan(step, state, keys.reshape(3, 3) + 100)
        state, _ = jax.lax.cond(keys[0] > 0, step, step, state, keys)
        state, _ = ours.erase(state, keys[:1])
        return ours.find(state, keys)[1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            ours.insert(ours.from_table(table), keys, keys)  # not in a program: it is made
            _, found = jax.jit(run)(ours.from_table(table), keys)
            assert np.asarray(found).tolist() == [False] + [True] * 8


def test_calls_of_many_programs_are_in_order(programs):
    """Dispatched one behind the other, without waiting in between."""
    ours = programs.ours
    table = new_table(programs)
    add = programs.jax.jit(lambda state, keys: ours.insert_or_apply(state, keys, 1, "add"))
    assign = programs.jax.jit(lambda state, keys: ours.insert_or_assign(state, keys, 7))
    keys = programs.put(np.arange(2000))
    state = ours.from_table(table)
    for _ in range(30):
        state, _ = add(state, keys)
    state, _ = assign(state, keys)
    for _ in range(30):
        state, _ = add(state, keys)
    state, (values, _) = ours.find(state, keys)
    assert set(np.asarray(values).tolist()) == {37}


# States that were used -----------------------------------------------------------------------------------------------


def test_a_state_is_used_once(programs):
    ours = programs.ours
    table = new_table(programs)
    keys = programs.put(np.arange(4))
    state = ours.from_table(table)
    after, _ = ours.insert(state, keys, keys)
    twin = programs.jax.tree.unflatten(programs.jax.tree.structure(after), programs.jax.tree.leaves(after))
    for use in (
        lambda: ours.find(state, keys),
        lambda: ours.erase(state, keys),
        lambda: ours.size(state),
        lambda: programs.jax.jit(ours.contains)(state, keys),
        lambda: programs.jax.tree.leaves(state),
    ):
        with pytest.raises(RuntimeError, match=r"was used before.*use the state that each call returns"):
            use()
    assert repr(state).endswith(", used>")
    assert state.table is table  # one may still ask whose it was
    assert len(table) == 4
    last, _ = ours.find(after, keys)
    with pytest.raises(RuntimeError, match="was used before"):
        ours.find(twin, keys)  # a copy of the pytree is no new state
    ours.find(last, keys)


@pytest.mark.filterwarnings("ignore:the state that gpuhash.jax.insert returned was dropped")
def test_a_state_is_used_once_in_a_program(programs):
    ours = programs.ours
    table = new_table(programs)

    @programs.jax.jit
    def run(state, keys):
        state_after, _ = ours.insert(state, keys, keys)
        return state_after, ours.find(state, keys)

    with pytest.raises(RuntimeError, match="was used before"):
        run(ours.from_table(table), programs.put(np.arange(4)))
    assert len(table) == 0


@pytest.mark.filterwarnings("ignore:the state that gpuhash.jax.insert returned was dropped")
def test_old_states_that_no_trace_shows_fail_when_the_program_runs():
    """The host's handlers count the calls, whatever way a state has taken."""
    programs = need_jax()
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    keys = np.arange(4)
    insert = jax.jit(ours.insert)
    message = "FAILED_PRECONDITION.*was used before"

    state = ours.from_table(table)  # given to a program twice
    insert(state, keys, keys)
    programs.fails(lambda: insert(state, keys, keys), message)

    @jax.jit  # to two programs in one
    def twice(state):
        return insert(state, keys, keys), insert(state, keys + 10, keys)

    programs.fails(lambda: twice(ours.from_table(table)), message)

    state = ours.from_table(table)  # a constant of the program, which is used up by the first run

    @jax.jit
    def closed():
        return ours.insert(state, keys, keys)[1]

    with jax.default_device(jax.devices("cpu")[0]):  # nothing else says where it runs
        jax.block_until_ready(closed())
        programs.fails(closed, message)

    state = ours.from_table(table)  # copied
    copy = jax.tree.map(lambda array: array + 0, state)
    insert(state, keys, keys)
    programs.fails(lambda: insert(copy, keys, keys), message)
    state, inserted = insert(ours.from_table(table), keys + 20, keys)  # and the table is good
    assert inserted.tolist() == [True] * 4


@pytest.mark.parametrize("how", ["call", "scan"])
def test_equal_calls_on_one_state_are_not_made_one(how):
    """XLA would merge them, as two equal sums, and a change would be made once."""
    programs = need_jax()
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    keys = np.arange(4)
    add = jax.jit(lambda state, keys: ours.insert_or_apply(state, keys, 1, "add"))
    if how == "scan":
        once = add
        add = jax.jit(lambda state, keys: jax.lax.scan(lambda state, _: once(state, keys), state, None, length=3))

    @jax.jit
    def twice(state, keys):
        _, first = add(state, keys)
        state, second = add(state, keys)
        return state, first, second

    programs.fails(lambda: twice(ours.from_table(table), keys), "FAILED_PRECONDITION.*was used before")


def test_copies_of_states_are_refused(programs):
    state = programs.ours.from_table(new_table(programs))
    for work in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled.*state\.table"):
            work(state)


def test_without_jit(programs):
    table = new_table(programs)
    keys = programs.put(np.arange(5))
    with programs.jax.disable_jit():
        state, inserted = programs.ours.insert(programs.ours.from_table(table), keys, keys * 2)
        state, (values, found) = programs.ours.find(state, keys + 1)
    assert np.asarray(inserted).all()
    same_bytes(values, np.array([2, 4, 6, 8, 0]))
    assert np.asarray(found).tolist() == [True] * 4 + [False]


@pytest.mark.filterwarnings("ignore:the state that gpuhash.jax.insert returned was dropped")
def test_old_states_that_no_trace_shows_are_found_by_the_gpu(cuda):
    """Its own count of the calls, which the next call that the host hears of reads."""
    programs = need_jax(cuda)
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    keys = programs.put(np.arange(4))
    insert = jax.jit(ours.insert)
    twice = jax.jit(lambda state: (insert(state, keys, keys), insert(state, keys + 10, keys)))
    constant = ours.from_table(table)
    run_closed = jax.jit(lambda: ours.insert(constant, keys, keys)[1])

    def closed():
        with jax.default_device(next(iter(keys.devices()))):  # nothing else says where it runs
            return run_closed()

    jax.block_until_ready(closed())

    def given_twice():
        state = ours.from_table(table)
        return insert(state, keys, keys), insert(state, keys, keys)

    def copied():
        state = ours.from_table(table)
        copy = jax.tree.map(lambda array: array + 0, state)
        return insert(state, keys, keys), insert(copy, keys, keys)

    for misuse in (given_twice, lambda: twice(ours.from_table(table)), closed, copied):
        good = ours.from_table(table)
        with current_gpu_kept():
            jax.block_until_ready(misuse())
            with pytest.raises(RuntimeError, match=r"had used already.*use the state that each call returns"):
                ours.from_table(table)
            jax.block_until_ready(misuse())
            with pytest.raises(RuntimeError, match="had used already"):
                _ = good.table
            jax.block_until_ready(misuse())
        programs.fails(lambda good=good: insert(good, keys + 20, keys), "FAILED_PRECONDITION.*had used already")
        good, _ = insert(good, keys + 20, keys)  # told once; and a call that fails does not use up its state
        assert good.table is table
    other = new_table(programs)  # of another table nothing is said
    insert(ours.from_table(other), keys, keys)
    with current_gpu_kept():
        jax.block_until_ready(given_twice())
    assert len(ours.from_table(other).table) == 4


def test_a_call_that_fails_does_not_use_up_its_state():
    programs = need_jax()
    ours = programs.ours
    table = new_table(programs, capacity=64, growth=False)
    insert = programs.jax.jit(ours.insert)
    state = ours.from_table(table)
    programs.fails(lambda: insert(state, np.arange(1000), np.arange(1000)), "RESOURCE_EXHAUSTED")
    state, inserted = insert(state, np.arange(10), np.arange(10))
    assert inserted.all()
    assert len(table) == 10


def test_states_made_apart_do_not_disturb_each_other(programs):
    ours = programs.ours
    table = new_table(programs)
    keys = programs.put(np.arange(5))
    first, second = ours.from_table(table), ours.from_table(table)
    for _ in range(3):
        first, _ = programs.jax.block_until_ready(ours.insert_or_apply(first, keys, 1))
        second, _ = programs.jax.block_until_ready(ours.insert_or_apply(second, keys, 10))
    assert set(np.asarray(table.to("cpu").values()).tolist()) == {33}


def test_a_state_made_very_long_ago():
    """A table remembers thousands of chains of states; a state of an older one is refused, not misunderstood."""
    programs = need_jax()
    ours = programs.ours
    table = new_table(programs)
    old = ours.from_table(table)
    kept = ours.from_table(table)
    for _ in range(4096):
        kept, _ = ours.size(kept)
        ours.from_table(table)
    programs.fails(lambda: ours.size(old), "was used before")
    ours.size(kept)


def test_states_cannot_be_made_in_a_program(programs):
    table = new_table(programs)
    with pytest.raises(RuntimeError, match=r"make it outside"):
        programs.jax.jit(lambda: programs.ours.from_table(table))()


def test_donation(programs):
    """The state's memory is used again, and JAX itself refuses the old one."""
    jax, ours = programs.jax, programs.ours
    table = new_table(programs)
    insert = jax.jit(ours.insert, donate_argnums=0)
    keys = programs.put(np.arange(10))
    state = ours.from_table(table)
    after, inserted = insert(state, keys, keys)
    assert np.asarray(inserted).all()
    with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
        insert(state, keys, keys)
    after, _ = insert(after, keys + 10, keys)
    assert len(after.table) == 20


def test_a_program_follows_its_table(programs):
    """A table that grows, is rehashed or cleared between two runs lies elsewhere: no program keeps its address."""
    ours = programs.ours
    table = new_table(programs)
    keys = programs.put(np.arange(64))
    find = programs.jax.jit(ours.find)
    table[np.arange(64)] = np.arange(64)
    state = ours.from_table(table)
    for count in (1_000, 100_000, 300_000):
        table[np.arange(count)] = np.arange(count) * count
        table.rehash(4 * count)
        for _ in range(3):  # XLA captures what it may after some runs
            state, (values, found) = find(state, keys)
            assert np.asarray(found).all()
            same_bytes(values, np.arange(64) * count)
    table.clear()
    state, (_, found) = find(state, keys)
    assert not np.asarray(found).any()
    text = find.lower(state, keys).compile().as_text()
    assert text.count("gpuhash_jax_look_up") == 1
    assert "command_buffer" not in text


# Tables that are gone ------------------------------------------------------------------------------------------------


def test_a_dropped_table_gives_its_memory_back(programs):
    """A state knows it by its handle, and keeps none of its memory, before and after a program has run."""
    memory = counting_memory("cpu" if programs.on_host else GPU)
    table = gpuhash.HashTable("int64", "float32", value_shape=(64,), device=programs.device, memory=memory)
    table.reserve(5000)
    state = programs.ours.from_table(table)
    state, found = programs.compiled(programs.ours.contains, "jit")(state, programs.put(np.arange(3)))
    assert not np.asarray(found).any()
    assert state.table is table
    del table, state
    programs.jax.clear_caches()
    gc.collect()
    assert (memory.nbytes, memory.mistakes) == (0, [])


def test_a_freed_table_is_an_error(programs):
    ours = programs.ours
    table = new_table(programs)
    keys = programs.put(np.arange(5))
    find = programs.jax.jit(ours.find)
    state, _ = find(ours.from_table(table), keys)
    programs.jax.block_until_ready(state)
    del table
    gc.collect()
    for call in (find, ours.contains):
        programs.fails(lambda call=call: call(_again(programs, state), keys), "FAILED_PRECONDITION.*has been freed")
    with pytest.raises(RuntimeError, match="has been freed"):
        _ = state.table


def _again(programs, state):
    """A copy that no call has used."""
    return programs.jax.tree.map(lambda array: array + 0, state)


def test_a_table_made_where_another_was_is_not_taken_for_it(programs):
    ours = programs.ours
    keys = programs.put(np.arange(5))
    contains = programs.jax.jit(ours.contains)
    for _ in range(20):
        table = new_table(programs)
        state = ours.from_table(table)
        del table
        gc.collect()
        other = new_table(programs)
        other[np.arange(5)] = np.arange(5)
        programs.fails(lambda state=state: contains(state, keys), "has been freed")


def test_a_name_means_the_table_that_has_it(programs):
    """A state of a named table carries the name, and so does a program that is compiled for it on a GPU."""
    ours = programs.ours
    name = f"of programs on {programs.device}"
    keys = programs.put(np.arange(5))
    table = new_table(programs, name=name)
    contains = programs.jax.jit(ours.contains)
    state, _ = contains(ours.from_table(table), keys)
    programs.jax.block_until_ready(state)
    table.close()
    programs.fails(lambda: contains(_again(programs, state), keys), "given up its name")
    other = new_table(programs, name=name)
    other[np.arange(3)] = 1
    assert state.table._core is other._core  # not the one that the state was made of, which lives on
    _, found = contains(ours.from_table(other), keys)
    assert np.asarray(found).tolist() == [True] * 3 + [False] * 2
    other.close()
    wrong = gpuhash.HashTable("int32", "int64", device=programs.device, name=name)
    programs.fails(lambda: contains(_again(programs, state), keys), "tables of one kind")
    wrong.close()


# With others ---------------------------------------------------------------------------------------------------------


def test_one_table_in_pytorch_in_a_program_and_in_a_graph(programs):
    """The same memory, and what one writes the next one reads, without anybody waiting in between."""
    ours = programs.ours
    torch = module("torch")
    if torch is None or (not programs.on_host and not sees_gpu("torch")):
        pytest.skip("needs PyTorch there")
    table = gpuhash.HashTable("int64", "int64", device=programs.device, default=0)
    run = programs.jax.jit(lambda state, keys: ours.insert_or_apply(state, keys, keys, "add"))
    graph = None
    tensorflow = gpuhash_tensorflow() if programs.on_host or sees_gpu("tensorflow") else None
    if tensorflow is not None:
        tf = module("tensorflow")
        wrapped = tensorflow.wrap(table)
        graph = tf.function(lambda keys: wrapped.insert_or_apply(keys, keys))
    host = np.arange(3000)
    mine, theirs = programs.put(host), torch.from_numpy(host).to(programs.device)
    state = ours.from_table(table)
    expected = np.zeros_like(host)
    for _ in range(20):
        table[theirs] = table[theirs] * 2
        state, done = run(state, mine)
        programs.jax.block_until_ready(done)
        expected = expected * 2 + host
        if graph is not None:
            graph(tf.constant(host))
            expected += host
    same_bytes(table[theirs], expected)
    _, (values, _) = ours.find(state, mine)
    same_bytes(values, expected)


def test_keys_and_values_that_are_the_tables_own_rows():
    """An insertion reads its batch while it writes rows; what lies in them is copied before."""
    programs = need_jax()
    ours, jax = programs.ours, programs.jax
    table = gpuhash.HashTable("int64", "int64", value_shape=(4,), capacity=4096)
    keys = np.arange(1000)
    table[keys] = np.arange(4000).reshape(1000, 4)
    rows = jax.dlpack.from_dlpack(table.row_storage_as("numpy"), copy=False)
    before = np.array(rows)
    numbers = np.asarray(table.rows(keys))
    # each key gets the row of another
    state, _ = jax.jit(ours.insert_or_assign)(ours.from_table(table), programs.put(keys[::-1].copy()), rows)
    jax.block_until_ready(state)
    same_bytes(np.asarray(table[keys[::-1].copy()]), before)
    assert sorted(numbers.tolist()) == list(range(1000))


def test_many_threads(programs):
    """Each with states of its own, and with the table itself, on one table."""
    ours = programs.ours
    table = new_table(programs, default=0)
    batches = np.random.default_rng(6).integers(0, 2000, (32, 700))
    arrays = [programs.put(batch) for batch in batches]

    @programs.jax.jit
    def count(state, keys):
        state, _ = ours.insert_or_apply(state, keys, 1, "add")
        return ours.contains(state, keys)

    def work(number):
        if number % 4 == 3:
            table.insert_or_apply(batches[number], 1, "add")
            return True
        state = ours.from_table(table)
        state, found = count(state, arrays[number])
        state, again = ours.contains(state, arrays[number])
        return bool(np.asarray(found).all() and np.asarray(again).all())

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(len(batches))))
    assert items_of(table) == as_dict(*np.unique(batches, return_counts=True))


def test_the_end_of_a_process():
    """Whatever is freed first."""
    printed = in_new_process(
        """
        import jax, numpy as np
        jax.config.update("jax_enable_x64", True)
        import gpuhash, gpuhash.jax as ours
        table = gpuhash.HashTable("int64", "int64", name="to the end")
        run = jax.jit(lambda state, keys: ours.insert(state, keys, keys))
        state, _ = run(ours.from_table(table), np.arange(100_000))
        print(len(state.table))
        """
    )
    assert printed == "100000\n"
