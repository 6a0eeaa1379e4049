"""Checks of one table over several devices in JAX, which run in a process that has so many, see test_exchange.py."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from support.jit import check_calls
from support.samples import (
    UFUNCS,
    as_bytes,
    as_dict,
    check_new_mask,
    items_of,
    random_keys,
    random_values,
    same_bytes,
)


def set_environment(variables: dict[str, str]) -> None:
    """In a new process, before JAX is imported."""
    os.environ.update(variables)


class Devices:
    """Some devices of JAX in a row, and their tables."""

    def __init__(self, platform: str, count: int) -> None:
        import jax

        import gpuhash.jax

        jax.config.update("jax_enable_x64", True)
        devices = jax.devices(platform)
        assert len(devices) >= count
        self.jax, self.ours, self.count = jax, gpuhash.jax, count
        self.on_host = platform == "cpu"
        self.mesh = jax.sharding.Mesh(np.array(devices[:count]), ("x",))

    def tables(self, *args: Any, **options: Any) -> list[Any]:
        return self.ours.make_tables(self.mesh, *args, **options)

    def state(self, tables: list[Any], **options: Any) -> Any:
        return self.ours.from_tables(tables, self.mesh, **options)

    def spread(self, function: Callable[..., Any], *, replicated: int = 0, typed: bool = True) -> Any:
        """The function on each device's part of its arguments, but of the last few, which all devices get as they are.

        Not typed: without what JAX infers about arrays that are the same on all devices.
        """
        jax = self.jax
        if hasattr(jax, "shard_map"):
            shard_map = functools.partial(jax.shard_map, **({} if typed else {"check_vma": False}))
        else:
            from jax.experimental.shard_map import shard_map as experimental

            shard_map = functools.partial(experimental, check_rep=False)
        of_device, of_all = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()

        def with_specs(*arguments: Any) -> Any:
            specs = (of_device,) * (len(arguments) - replicated) + (of_all,) * replicated
            return shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=of_device)(*arguments)

        return with_specs

    def program(self, function: Callable[..., Any], **options: Any) -> Any:
        return self.jax.jit(self.spread(function, **options))

    def check_mask(self, mask: Any, keys: np.ndarray, known: Any) -> None:
        """Of new keys, as check_new_mask: on the host as of a loop over the batches of all devices."""
        check_new_mask(np.asarray(mask), keys, known, in_order=self.on_host)

    def check_owners(self, tables: list[Any]) -> None:
        """Each table has the keys that its device owns."""
        for number, table in enumerate(tables):
            keys = np.asarray(table.to("cpu").keys())
            assert (self.owners(keys, table.key_shape) == number).all()

    def owners(self, keys: np.ndarray, key_shape: tuple[int, ...] = ()) -> np.ndarray:
        """By a program for keys of many numbers, beside zeros: JAX compiles one for each length."""
        padded = np.zeros((1 << max(10, (len(keys) - 1).bit_length()), *keys.shape[1:]), keys.dtype)
        padded[: len(keys)] = keys
        return np.asarray(_owners_program(self.count, key_shape)(padded))[: len(keys)]


@functools.cache
def _owners_program(count: int, key_shape: tuple[int, ...]) -> Any:
    import jax

    import gpuhash.jax

    return jax.jit(functools.partial(gpuhash.jax.owners, devices=count, key_shape=key_shape))


def contents(tables: list[Any]) -> dict[bytes, bytes]:
    """What all tables hold; no key is in two of them."""
    items: dict[bytes, bytes] = {}
    for table in tables:
        mine = items_of(table)
        assert not set(mine) & set(items)
        items |= mine
    return items


def draw(skew: str, devices: Devices, count: int) -> np.ndarray:
    """int64 keys for all devices, `count` each, of some hundred."""
    rng = np.random.default_rng([count, devices.count])
    total = devices.count * count
    if skew == "uniform":
        return rng.integers(-500, 500, total)
    if skew == "zipf":
        return rng.zipf(1.5, total) % 1000
    if skew == "equal":
        return np.full(total, 7)
    # All keys are one device's, and the others are asked for none.
    keys = np.arange(10_000)
    return rng.choice(keys[devices.owners(keys) == devices.count - 1], total)


# The checks ----------------------------------------------------------------------------------------------------------


def every_call_beside_a_dict(
    platform: str, count: int, *, skews: Sequence[str], batch: int, capacity: int | None, typed: bool = True
) -> None:
    """Also beside a single table, which has the batches of all devices one after the other.

    New tables for each skew, and the same two programs: on the host these are compiled once.
    """
    devices = Devices(platform, count)
    ours = devices.ours
    over = {"axis_name": "x", "capacity": capacity}

    def change(state: Any, keys: Any, values: Any) -> Any:
        state, kept = ours.insert(state, keys, values, **over)
        state, assigned = ours.insert_or_assign(state, keys[::2] + 1, values[::2] * 2, **over)
        state, added = ours.insert_or_apply(state, keys + 2, values, **over)
        state, size = ours.size(state, axis_name="x")
        return state, kept, assigned, added, size[None]

    def look(state: Any, keys: Any) -> Any:
        state, found = ours.find(state, keys, **over)
        state, there = ours.contains(state, keys[None] + 1, **over)
        state, erased = ours.erase(state, keys[::3], **over)
        return state, found, there[0], erased

    programs = devices.program(change, typed=typed), devices.program(look, typed=typed)
    for skew in skews:
        try:
            _beside_a_dict(devices, *programs, draw(skew, devices, batch))
        except Exception as error:
            error.add_note(f"{skew=}")
            raise


def _beside_a_dict(devices: Devices, change: Any, look: Any, keys: np.ndarray) -> None:
    import gpuhash

    count = devices.count
    tables = devices.tables("int64", "int64", deterministic=True)
    single = gpuhash.HashTable("int64", "int64", deterministic=True)
    values = np.arange(1, len(keys) + 1)
    few, few_values = (array.reshape(count, -1)[:, ::2].reshape(-1) for array in (keys, values))
    state, kept, assigned, added, sizes = change(devices.state(tables), keys, values)

    devices.check_mask(kept, keys, set())
    single.insert(keys, values)
    devices.check_mask(assigned, few + 1, items_of(single))
    single.insert_or_assign(few + 1, few_values * 2)
    devices.check_mask(added, keys + 2, items_of(single))
    single.insert_or_apply(keys + 2, values, "add")
    assert contents(tables) == items_of(single)
    assert np.asarray(sizes).tolist() == [len(single)] * count
    devices.check_owners(tables)

    asked = keys - 3
    state, (given, found), there, erased = look(state, asked)
    wanted, known = single.find(asked, 0)
    same_bytes(np.asarray(given), wanted)
    same_bytes(np.asarray(found), known)
    same_bytes(np.asarray(there), single.contains(asked + 1))
    gone = asked.reshape(count, -1)[:, ::3].reshape(-1)
    devices.check_mask(erased, gone, set(as_bytes(gone).tolist()) - set(items_of(single)))
    single.erase(gone)
    assert contents(tables) == items_of(single)
    assert state.tables == tables


def key_and_value_types(platform: str, count: int, *, key_type: Any, value_dtype: str, value_shape: Any) -> None:
    devices = Devices(platform, count)
    ours, (key_dtype, key_shape) = devices.ours, key_type
    pool = random_keys(key_dtype, key_shape, 60)
    keys = pool[np.random.default_rng(2).integers(0, len(pool) // 2 + 1, 24 * count)]
    values = random_values(value_dtype, (len(keys), *value_shape))
    defaults = random_values(value_dtype, (len(pool), *value_shape), 5)
    asked, asked_defaults = (np.concatenate([array] * count) for array in (pool, defaults))
    tables = devices.tables(key_dtype, value_dtype, key_shape=key_shape, value_shape=value_shape, deterministic=True)

    def run(state: Any, keys: Any, values: Any, asked: Any, defaults: Any) -> Any:
        state, inserted = ours.insert_or_assign(state, keys, values, axis_name="x", capacity=20)
        state, found = ours.find(state, asked, defaults, axis_name="x", capacity=33)
        return state, inserted, found

    _, inserted, (given, found) = devices.program(run)(devices.state(tables), keys, values, asked, asked_defaults)
    model = as_dict(keys, values)
    devices.check_mask(inserted, keys, set())
    assert contents(tables) == model
    devices.check_owners(tables)
    names = as_bytes(asked).tolist()
    same_bytes(np.asarray(found), np.array([name in model for name in names]))
    expected = [model.get(name, value.tobytes()) for name, value in zip(names, asked_defaults, strict=True)]
    same_bytes(np.asarray(given), np.frombuffer(b"".join(expected), values.dtype).reshape(asked_defaults.shape))


def named_columns(platform: str, count: int, *, capacity: int | None) -> None:
    """Beside a single table, which is given the batches of all devices one after the other."""
    import gpuhash

    devices = Devices(platform, count)
    ours = devices.ours
    columns = {
        "weight": ("float32", (3,)),
        "step": gpuhash.Column("int32", (), 5),
        "half": "float16",
        "drawn": gpuhash.Column("float32", (2,), gpuhash.initializers.Normal()),
    }
    tables = devices.tables("int64", columns, deterministic=True)
    single = gpuhash.HashTable("int64", columns, deterministic=True)
    over = {"axis_name": "x", "capacity": capacity}
    keys = np.random.default_rng(2).integers(0, 60, 40 * count)
    weights = random_values("float32", (len(keys), 3))
    mine = np.arange(count, dtype=np.float16)  # one for all keys of a device
    ops = {"step": "add", "half": "max"}

    def run(state: Any, keys: Any, weights: Any, mine: Any) -> Any:
        state, assigned = ours.insert_or_assign(state, keys, {"weight": weights, "half": mine[0]}, **over)
        state, added = ours.insert_or_apply(state, keys + 30, {"step": 1, "half": mine[0]}, ops, **over)
        state, found = ours.find(state, keys + 40, {"weight": weights, "half": mine[0]}, **over)
        state, some = ours.find(state, keys, columns=["step"], **over)
        return state, assigned, added, found, some

    state, assigned, added, (found, known), (some, _) = devices.program(run)(devices.state(tables), keys, weights, mine)
    halves = np.repeat(mine, 40)
    devices.check_mask(assigned, keys, set())
    single.insert_or_assign(keys, {"weight": weights, "half": halves})
    devices.check_mask(added, keys + 30, set(as_bytes(keys).tolist()))
    single.insert_or_apply(keys + 30, {"step": np.ones(len(keys), np.int32), "half": halves}, ops)
    expected, mask = single.find(keys + 40, {"weight": weights, "half": halves})
    same_bytes(np.asarray(known), mask)
    assert sorted(found) == sorted(columns)
    for name, values in expected.items():
        same_bytes(np.asarray(found[name]), values)
    same_bytes(np.asarray(some["step"]), single.find(keys, columns=["step"])[0]["step"])
    assert sum(map(len, tables)) == len(single)
    devices.check_owners(tables)
    for table in tables:
        owned, values = table.to("cpu").items()
        for name, value in single[owned].items():
            same_bytes(values[name], value)
    assert state.tables == tables


def sets(platform: str, count: int) -> None:
    devices = Devices(platform, count)
    ours = devices.ours
    tables = devices.tables("int32", key_shape=(2,))
    keys = np.random.default_rng(4).integers(0, 9, (30 * count, 2), np.int32)

    def run(state: Any, keys: Any) -> Any:
        state, inserted = ours.insert(state, keys, axis_name="x")
        state, found = ours.contains(state, keys + 1, axis_name="x")
        return state, inserted, found

    _, inserted, found = devices.program(run)(devices.state(tables), keys)
    known = set(as_bytes(keys).tolist())
    devices.check_mask(inserted, keys, set())
    same_bytes(np.asarray(found), np.array([name in known for name in as_bytes(keys + 1).tolist()]))
    assert sum(map(len, tables)) == len(known)


def operations(platform: str, count: int, *, op: str, dtype: str, value_shape: Any) -> None:
    """All of a key's values count, whatever devices they come from, and nothing else does."""
    devices = Devices(platform, count)
    tables = devices.tables("int64", dtype, value_shape=value_shape)
    keys = np.random.default_rng(2).integers(0, 20, 50 * count)
    values = random_values(dtype, (len(keys), *value_shape))
    if op == "multiply" and dtype != "bool":  # signs alone, so that no order of products rounds
        values = np.sign(values.real).astype(values.dtype)

    def run(state: Any, keys: Any, values: Any) -> Any:
        return devices.ours.insert_or_apply(state, keys, values, op, axis_name="x", capacity=30)

    _, inserted = devices.program(run)(devices.state(tables), keys, values)
    check_new_mask(np.asarray(inserted), keys, set(), in_order=False)
    assert sum(map(len, tables)) == len(set(keys.tolist()))
    for table in tables:
        for key, value in zip(*map(np.asarray, table.to("cpu").items()), strict=True):
            np.testing.assert_array_equal(value, UFUNCS[op].reduce(values[keys == key], axis=0, dtype=values.dtype))


def one_value_for_all_keys(platform: str, count: int) -> None:
    """It is that of the device that asks, not that of the one that owns the key; a constant is everybody's."""
    devices = Devices(platform, count)
    ours = devices.ours
    tables = devices.tables("int64", "float32", value_shape=(2,))
    keys = np.arange(40 * count)
    mine = np.arange(2 * count, dtype=np.float32)

    def run(state: Any, keys: Any, mine: Any, everybodys: Any) -> Any:
        state, _ = ours.insert(state, keys, mine, axis_name="x")
        state, _ = ours.insert_or_apply(state, keys, everybodys, axis_name="x", capacity=7)
        state, _ = ours.insert_or_apply(state, keys, 0.5, axis_name="x")
        state, (values, _) = ours.find(state, keys, mine, axis_name="x")
        state, (defaults, _) = ours.find(state, keys + len(keys) * count, mine, axis_name="x")
        return state, values, defaults

    everybodys = np.float32([10, 20])
    run_all = devices.program(run, replicated=1)
    _, values, defaults = run_all(devices.state(tables), keys, mine, everybodys)
    same_bytes(np.asarray(defaults), np.repeat(mine.reshape(count, 2), 40, 0))
    same_bytes(np.asarray(values), np.repeat(mine.reshape(count, 2), 40, 0) + everybodys + np.float32(0.5))


def rows_and_defaults(platform: str, count: int, *, capacity: int | None) -> None:
    """Row numbers are those of the owners' tables, and new keys get what the first device gives that has them."""
    devices = Devices(platform, count)
    ours = devices.ours
    tables = devices.tables("int64", "float32", value_shape=(2,), deterministic=True)
    over = {"axis_name": "x", "capacity": capacity}
    keys = np.random.default_rng(4).integers(0, 60, 40 * count)
    values = np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2)

    def run(state: Any, keys: Any, values: Any) -> Any:
        state, inserted = ours.find_or_insert(state, keys, values, **over)
        state, rows = ours.rows(state, keys + 30, **over)
        state, kept = ours.setdefault(state, keys + 30, values[0], **over)
        return state, inserted, rows, kept

    _, (rows, is_new), rows_before, kept = devices.program(run)(devices.state(tables), keys, values)
    devices.check_owners(tables)
    devices.check_mask(is_new, keys, set())
    known = np.isin(keys + 30, keys)
    for got, wanted, present in ((rows, keys, keys == keys), (rows_before, keys + 30, known)):
        owners = devices.owners(wanted)
        for number, table in enumerate(tables):
            mine = owners == number
            expected = np.where(present, np.asarray(table.to("cpu").rows(wanted)), -1)
            assert np.asarray(got)[mine].tolist() == expected[mine].tolist()
    model: dict[int, np.ndarray] = {}
    for key, value in zip(keys.tolist(), values, strict=True):
        model.setdefault(key, value)
    for key, value in zip((keys + 30).tolist(), np.repeat(values[:: len(keys) // count], 40, 0), strict=True):
        model.setdefault(key, value)
    same_bytes(np.asarray(kept), np.stack([model[key] for key in (keys + 30).tolist()]))


def loops(platform: str, count: int) -> None:
    """Each step of a scan sees what the step before has left on all devices."""
    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours
    tables = devices.tables("int64", "int64")

    def step(state: Any, keys: Any) -> Any:
        state, inserted = ours.insert_or_apply(state, keys, 1, axis_name="x", capacity=9)
        state, (counts, _) = ours.find(state, keys, axis_name="x")
        state, erased = ours.erase(state, keys[:1], axis_name="x")
        return state, (inserted, counts, erased)

    def run(state: Any, batches: Any) -> Any:
        state, results = jax.lax.scan(step, state, batches[0])
        return state, jax.tree.map(lambda array: array[None], results)

    steps = 60
    batches = np.random.default_rng(3).integers(0, 90, (count, steps, 8))
    state, (inserted, counts, erased) = devices.program(run)(devices.state(tables), batches)
    inserted, counts, erased = map(np.asarray, (inserted, counts, erased))
    model: dict[int, int] = {}
    for i in range(steps):
        batch = batches[:, i].reshape(-1)
        known = set(as_bytes(np.array(list(model), np.int64)).tolist())
        check_new_mask(inserted[:, i].reshape(-1), batch, known, in_order=devices.on_host)
        for key in batch.tolist():
            model[key] = model.get(key, 0) + 1
        assert counts[:, i].reshape(-1).tolist() == [model[key] for key in batch.tolist()]
        gone = batches[:, i, 0]
        assert sorted(gone[erased[:, i, 0]].tolist()) == sorted(set(gone.tolist()))
        for key in set(gone.tolist()):
            del model[key]
    assert contents(tables) == as_dict(np.array(list(model)), np.array(list(model.values())))
    assert state.tables == tables


def lanes(platform: str, count: int) -> None:
    """Under vmap the keys of all lanes are one batch, and one exchange."""
    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours
    tables = devices.tables("int64", "int64")

    def run(state: Any, keys: Any) -> Any:
        def insert(state: Any, keys: Any) -> Any:
            return ours.insert(state, keys, keys * 2, axis_name="x")

        def find(state: Any, keys: Any, default: Any) -> Any:
            return ours.find(state, keys, default, axis_name="x")

        state, inserted = jax.vmap(insert, (None, 0), (None, 0))(state, keys)
        state, (values, _) = jax.vmap(find, (None, 0, 0), (None, 0))(state, keys + 3, -keys[:, 0])
        return state, inserted, values

    keys = np.random.default_rng(6).integers(0, 50, (3 * count, 10))
    run_all = devices.program(run)
    _, inserted, values = run_all(devices.state(tables), keys)
    check_new_mask(np.asarray(inserted).reshape(-1), keys.reshape(-1), set(), in_order=devices.on_host)
    known = set(keys.reshape(-1).tolist())
    expected = [[2 * (key + 3) if key + 3 in known else -row[0] for key in row] for row in keys.tolist()]
    assert np.asarray(values).tolist() == expected


def gradients(platform: str, count: int, *, capacity: int | None) -> None:
    """Those of jnp.where(found, values, default), in both modes, for one default and many."""
    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours
    tables = devices.tables("int64", "float32", value_shape=(2,))
    keys = np.arange(6 * count)
    stored = np.random.default_rng(1).random((len(keys), 2), np.float32)
    known = np.arange(len(keys)) % 3 != 0
    for table, mine in zip(tables, range(count), strict=True):
        owned = known & (devices.owners(keys) == mine)
        table[keys[owned]] = stored[owned]

    def loss(default: Any, state: Any, keys: Any) -> Any:
        state, (values, _) = ours.find(state, keys, default, axis_name="x", capacity=capacity)
        return (values**3).sum(), state

    def both_modes(state: Any, keys: Any, default: Any) -> Any:
        (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(default, state, keys)
        tangent = jax.numpy.ones_like(default)

        def of_default(default: Any) -> Any:
            return loss(default, state, keys)

        _, forward, state = jax.jvp(of_default, (default,), (tangent,), has_aux=True)
        return state, value[None], gradient, forward[None]

    program = devices.program(both_modes)
    for shape in ((2 * count,), (len(keys), 2)):
        default = np.random.default_rng(2).random(shape, np.float32)
        per_key = np.repeat(default.reshape(count, 2), 6, 0) if len(shape) == 1 else default
        state, value, gradient, forward = program(devices.state(tables), keys, default)
        cubes = (np.where(known[:, None], stored, per_key) ** 3).reshape(count, -1).sum(1)
        np.testing.assert_allclose(np.asarray(value), cubes, rtol=1e-5)
        slopes = np.where(known[:, None], 0, 3 * per_key**2)
        np.testing.assert_allclose(np.asarray(forward), slopes.reshape(count, -1).sum(1), rtol=1e-5)
        if len(shape) == 1:
            slopes = slopes.reshape(count, 6, 2).sum(1).reshape(-1)
        np.testing.assert_allclose(np.asarray(gradient), slopes, rtol=1e-5)
    del state


def distinct_keys_alone(platform: str, count: int) -> None:
    """Each device makes its keys distinct before it sends them; what is filled up comes to nothing."""
    devices = Devices(platform, count)
    ours = devices.ours
    tables = devices.tables("int64", "int64")
    keys = np.random.default_rng(5).zipf(1.3, 300 * count) % 100

    def run(state: Any, keys: Any) -> Any:
        mine = ours.unique(keys, return_inverse=True, return_counts=True)
        state, _ = ours.insert_or_apply(state, mine.values, mine.counts, "add", axis_name="x")
        state, (values, _) = ours.find(state, mine.values, axis_name="x")
        return state, values[mine.inverse]

    _, counts = devices.program(run)(devices.state(tables), keys)
    numbers = np.bincount(keys, minlength=100)
    assert np.asarray(counts).tolist() == numbers[keys].tolist()
    present = np.flatnonzero(numbers)
    assert contents(tables) == as_dict(present, numbers[present])


def the_same_each_time(platform: str, count: int) -> None:
    """Deterministic tables: what a loop over the batches gives, whatever the timing and the number of rounds."""
    devices = Devices(platform, count)
    ours = devices.ours
    keys = np.random.default_rng(9).zipf(1.3, 2000 * count) % 500
    values = np.arange(len(keys))
    for capacity in (None, 700, 2000 * count):
        tables = devices.tables("int64", "int64", deterministic=True)

        def run(state: Any, keys: Any, values: Any, capacity: Any = capacity) -> Any:
            return ours.insert_or_assign(state, keys, values, axis_name="x", capacity=capacity)

        _, inserted = devices.program(run)(devices.state(tables), keys, values)
        check_new_mask(np.asarray(inserted), keys, set(), in_order=devices.on_host)
        assert contents(tables) == as_dict(keys, values)


def loops_and_memory(platform: str, count: int) -> None:
    """What a device has room for is the capacity, and where that is enough for all keys there is no loop."""
    devices = Devices(platform, count)
    ours = devices.ours
    tables = devices.tables("int64", "int64")
    for batch, capacity, room in (
        (100, None, 100 * count),
        (100, 30, 30),
        (100, 10**6, 100 * count),
        (5000, None, 6250),
        (1000, None, min(1000 * count, 4096)),
    ):

        def find(state: Any, keys: Any, capacity: Any = capacity) -> Any:
            return ours.find(state, keys, axis_name="x", capacity=capacity)

        text = devices.program(find).lower(devices.state(tables), np.arange(batch * count)).as_text()
        (call,) = [line for line in text.splitlines() if "@gpuhash_jax_look_up_part" in line]
        assert f"tensor<{room}xi64>" in call
        assert ("stablehlo.while" in text) == (room < batch * count)


def each_call_once(platform: str, count: int) -> None:
    """In a loop over batches that are aligned to 128 bytes, a program has each call on a table once."""
    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours
    columns = {"weight": ("float32", (4,)), "count": "int32"}

    def step(state: Any, keys: Any) -> Any:
        state, inserted = ours.insert_or_apply(state, keys, 1, "add", axis_name="x")
        state, (values, _) = ours.find(state, keys, axis_name="x")
        state, there = ours.contains(state, keys, axis_name="x")
        state, size = ours.size(state, axis_name="x")
        state, erased = ours.erase(state, keys, axis_name="x")
        return state, (inserted, values, there, size[None], erased)

    def of_columns(state: Any, keys: Any) -> Any:
        given = {"weight": jax.numpy.ones((len(keys), 4), np.float32), "count": keys.astype("int32")}
        state, inserted = ours.insert_or_assign(state, keys, given, axis_name="x")
        state, (read, _) = ours.find(state, keys, axis_name="x")
        return state, (inserted, read)

    single = {"change_part": 1, "look_up_part": 2, "size_part": 1, "erase_part": 1}
    for value_dtype, work, calls in (
        ("int64", step, single),
        (columns, of_columns, {"change_part": 1, "look_up_part": 1}),
    ):

        def run(state: Any, keys: Any, work: Any = work) -> Any:
            return jax.lax.scan(work, state, keys.reshape(6, 512))

        state = devices.state(devices.tables("int64", value_dtype))
        lowered = devices.program(run).lower(state, np.arange(6 * 512 * count))
        check_calls(lowered, {**calls, "settle": sum(calls.values())})


def calls_without_an_axis(platform: str, count: int) -> None:
    """What calls give differs between devices, and is typed so: else loops refuse to carry it, and gradients to go."""
    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours
    tables = devices.tables("int64", "float32")

    def run(state: Any, keys: Any) -> Any:
        def numbered(_: Any, keys: Any) -> Any:
            codes, uniques = ours.factorize(keys)
            return jax.numpy.where(ours.isin(keys, uniques[:1]), -1, codes)

        def loss(default: Any, state: Any) -> Any:
            state, (values, _) = ours.find(state, keys, default)
            return values.sum(), state

        default = keys[0].astype("float32")
        (_, state), gradient = jax.value_and_grad(loss, has_aux=True)(default, state)
        return state, jax.lax.fori_loop(0, 1, numbered, keys), gradient[None]

    keys = np.arange(12 * count) // 3
    tables[0][np.arange(2)] = np.float32(1)
    _, codes, gradient = devices.program(run)(devices.state(tables), keys)
    assert np.asarray(codes).tolist() == [-1, -1, -1, 1, 1, 1, 2, 2, 2, 3, 3, 3] * count
    assert np.asarray(gradient).tolist() == [6] + [12] * (count - 1)


def no_keys_and_eager(platform: str, count: int, *, axis_name: str | None) -> None:
    devices = Devices(platform, count)
    ours = devices.ours
    over = {"axis_name": axis_name}

    def run(state: Any, keys: Any) -> Any:
        state, inserted = ours.insert(state, keys, keys, **over)
        state, (values, found) = ours.find(state, keys, **over)
        state, erased = ours.erase(state, keys[:0], **over)
        return state, inserted, values, found, erased

    for way in (devices.spread(run), devices.program(run)):
        tables = devices.tables("int64", "int64")
        state, *empty = way(devices.state(tables), np.empty(0, np.int64))
        assert [(len(array), array.dtype) for array in empty] == [(0, bool), (0, np.int64), (0, bool), (0, bool)]
        keys = np.arange(10 * count)
        state, inserted, values, found, _ = way(state, keys)
        assert np.asarray(inserted).all()
        assert np.asarray(found).all()
        same_bytes(np.asarray(values), keys)
        assert contents(tables) == as_dict(keys, keys)
        assert state.tables == tables


def only_one_is_full(platform: str, count: int, *, capacity: int | None) -> None:
    """The program fails, though all devices but one could go on, and they do not wait for ever."""
    import pytest

    import gpuhash

    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours
    where = [str(table.device) for table in devices.tables("int64", "int64")]
    sizes = [16] + [4096] * (count - 1)
    tables = [
        gpuhash.HashTable("int64", "int64", device=device, capacity=size, growth=False)
        for device, size in zip(where, sizes, strict=True)
    ]

    def run(state: Any, keys: Any) -> Any:
        state, first = ours.insert(state, keys, keys, axis_name="x", capacity=capacity)
        state, second = ours.insert(state, keys + 1, keys, axis_name="x", capacity=capacity)
        return state, first, second

    keys = np.arange(100 * count)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"room for .* keys was asked"):
        jax.block_until_ready(devices.program(run)(devices.state(tables), keys))
    others = {int(key) for table in tables[1:] for key in np.asarray(table.to("cpu").keys())}
    assert len(tables[0]) == 0
    assert others == set(keys[devices.owners(keys) != 0].tolist())


def one_is_freed(platform: str, count: int, *, call: str) -> None:
    import pytest

    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours

    def run(state: Any, keys: Any) -> Any:
        if call == "size":
            return ours.size(state, axis_name="x")[1][None]
        return getattr(ours, call)(state, keys, axis_name="x")[1]

    tables = devices.tables("int64", "int64")
    state = devices.state(tables)
    del tables[-1]
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="has been freed"):
        jax.block_until_ready(devices.program(run)(state, np.arange(8 * count)))


def a_state_that_was_used(platform: str, count: int) -> None:
    """All devices refuse it on the host; on GPUs, which tell later, all refuse the call that comes next."""
    import pytest

    devices = Devices(platform, count)
    jax, ours = devices.jax, devices.ours
    tables = devices.tables("int64", "int64")
    program = devices.program(lambda state, keys: ours.insert(state, keys, keys, axis_name="x"))
    state, keys = devices.state(tables), np.arange(8 * count)
    jax.block_until_ready(program(state, keys)[1])
    if not devices.on_host:
        state, inserted = program(state, keys)
        jax.block_until_ready(inserted)
    message = "was used before" if devices.on_host else "had used already"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(program(state, keys)[1])
    assert sum(map(len, tables)) == 8 * count


def ragged_transfers(platform: str, count: int) -> None:
    """What JAX documents of ragged_all_to_all, written out, beside what the exchange uses here."""
    devices = Devices(platform, count)
    jax = devices.jax
    from gpuhash.jax import exchange

    rng = np.random.default_rng(8)
    room, length = 20 * count, 25
    for shape, dtype in (((), "int64"), ((3,), "float32"), ((), "bool"), ((2, 2), "int16")):
        operands = random_values(dtype, (count, length, *shape), 1)
        outputs = random_values(dtype, (count, room, *shape), 2)
        sizes = rng.integers(0, 7, (count, count)).astype(np.int32)
        sizes[0] = 0
        inputs = np.cumsum(sizes, 1, dtype=np.int32) - sizes
        gaps = rng.integers(0, 4, (count, count)).astype(np.int32)
        places = np.cumsum(sizes + gaps, 0, dtype=np.int32) - sizes
        expected = outputs.copy()
        for source in range(count):
            for to in range(count):
                sent = operands[source, inputs[source, to] :][: sizes[source, to]]
                expected[to, places[source, to] :][: len(sent)] = sent

        def run(operand: Any, output: Any, *transfer: Any) -> Any:
            told = exchange._Transfer(*(array[0] for array in transfer))
            return exchange._transfer(operand[0], output[0], told, "x", devices.on_host)[None]

        got = devices.program(run)(operands, outputs, inputs, sizes, places, sizes.T.copy())
        same_bytes(np.asarray(jax.device_get(got)), expected)
