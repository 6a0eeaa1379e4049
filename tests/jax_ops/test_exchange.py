"""One table over the devices of a mesh axis: keys go to the device that owns them, and answers come back."""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import exchange
from support.frameworks import GPU_INDEX, gpu_count, module
from support.hashing import hash_key
from support.jit import in_new_process, need_jax
from support.samples import UFUNCS, random_keys, shape_name, type_name

import gpuhash

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "jax_sharded_count.py"
SECONDS = 240  # after which a check hangs: XLA lets the devices of an exchange wait for each other


class Workers:
    """A process of its own for each platform: on the host JAX has to be told of several devices before it starts.

    There LLVM leaves unoptimised what runs once, and took most of the time; XLA's own passes are as ever. The example
    and the program without 64-bit mode, below, are compiled as users' programs are.
    """

    ENVIRONMENTS = {  # noqa: RUF012
        "cpu": {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        "cuda": {"JAX_PLATFORMS": "cuda,cpu"},
    }

    def __init__(self):
        self._processes = {}

    def run(self, check, platform, *arguments, **options):
        """Runs a check of support.exchange, and raises what it raises."""
        if platform not in self._processes:
            self._processes[platform] = concurrent.futures.ProcessPoolExecutor(
                1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=exchange.set_environment,
                initargs=(self.ENVIRONMENTS[platform],),
            )
        return self._processes[platform].submit(check, platform, *arguments, **options).result(SECONDS)

    def close(self):
        for pool in self._processes.values():
            pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(scope="module")
def workers():
    workers = Workers()
    yield workers
    workers.close()


HOST, MORE, GPUS = ("cpu", 2), ("cpu", 4), ("cuda", 2)


@pytest.fixture(params=[HOST, MORE, GPUS], ids=lambda param: f"{param[0]}x{param[1]}")
def run(request, workers):
    """Runs a check on several devices of a platform."""
    platform, count = request.param
    if platform == "cuda":
        need_jax("cuda")
        if gpu_count() < count or GPU_INDEX != 0:
            pytest.skip(f"needs {count} GPUs")
    else:
        need_jax()

    def on_devices(check, **options):
        workers.run(check, platform, count, **options)

    on_devices.platform = platform

    return on_devices


on_two_devices = pytest.mark.parametrize("run", [HOST, GPUS], ids=["cpux2", "cudax2"], indirect=True)


SKEWS = ("uniform", "zipf", "equal", "one-owner")


@on_two_devices
@pytest.mark.parametrize(
    ("skews", "capacity"),
    [(SKEWS, None), (SKEWS, 13), (("uniform",), 1), pytest.param(("uniform",), 4000, marks=pytest.mark.slow)],
    ids=["None", "13", "1", "4000"],
)
def test_every_call_beside_a_dict(run, skews, capacity):
    """Also where one device owns all keys of all batches, and others none, in one round and in many."""
    run(exchange.every_call_beside_a_dict, skews=skews, batch=24 if capacity == 1 else 203, capacity=capacity)


@pytest.mark.parametrize("run", [MORE], ids=["cpux4"], indirect=True)
@pytest.mark.parametrize("capacity", [50, *(pytest.param(each, marks=pytest.mark.slow) for each in (None, 100))])
def test_more_devices(run, capacity):
    run(exchange.every_call_beside_a_dict, skews=["zipf", "one-owner"], batch=151, capacity=capacity)


@on_two_devices
def test_a_large_batch(run):
    """With the capacity that is the default: one round for uniform keys, two where one device owns all of them."""
    run(exchange.every_call_beside_a_dict, skews=["uniform", "one-owner"], batch=20_000, capacity=None)


@on_two_devices
def test_loops_and_memory(run):
    run(exchange.loops_and_memory)


@on_two_devices
def test_each_call_occurs_once(run):
    run(exchange.each_call_once)


@on_two_devices
def test_without_types_of_what_varies(run):
    run(exchange.every_call_beside_a_dict, skews=["zipf"], batch=100, capacity=30, typed=False)


KEYS = [
    ("int8", ()),
    ("uint16", ()),
    ("int32", ()),
    ("int8", (3,)),
    ("int64", (2,)),
    ("uint16", (5,)),
    ("uint8", (16,)),
]
VALUES = ("bool", "int8", "uint64", "float16", "complex128")
#: Each type of keys and each of values in one of them.
TYPES = [
    *((key_type, dtype, ()) for key_type, dtype in zip(KEYS, VALUES, strict=False)),
    *((key_type, "float32", (3,)) for key_type in KEYS[len(VALUES) :]),
    (("int32", (3,)), "bfloat16", (2, 3)),
]
MORE_TYPES = [
    *((key_type, "float32", (3,)) for key_type in KEYS[: len(VALUES)]),
    *((("int64", ()), dtype, ()) for dtype in VALUES),
]


@on_two_devices
@pytest.mark.parametrize(
    ("key_type", "value_dtype", "value_shape"),
    [*TYPES, *(pytest.param(*types, marks=pytest.mark.slow) for types in MORE_TYPES)],
    ids=[f"{type_name(key_type)}-{dtype}-{shape_name(shape)}" for key_type, dtype, shape in TYPES + MORE_TYPES],
)
def test_types(run, key_type, value_dtype, value_shape):
    run(exchange.key_and_value_types, key_type=key_type, value_dtype=value_dtype, value_shape=value_shape)


@on_two_devices
@pytest.mark.parametrize("capacity", [None, 9])
def test_named_columns(run, capacity):
    run(exchange.named_columns, capacity=capacity)


@on_two_devices
@pytest.mark.parametrize("capacity", [None, 9])
def test_rows_and_defaults(run, capacity):
    run(exchange.rows_and_defaults, capacity=capacity)


@on_two_devices
def test_sets(run):
    run(exchange.sets)


@on_two_devices
@pytest.mark.parametrize(
    ("op", "dtype", "value_shape"),
    [
        *(pytest.param(op, "int64", (), marks=[pytest.mark.slow] * (op not in ("add", "bit_xor"))) for op in UFUNCS),
        ("min", "float32", (3,)),
        ("add", "bool", ()),
        ("multiply", "complex64", ()),
    ],
)
def test_operations(run, op, dtype, value_shape):
    run(exchange.operations, op=op, dtype=dtype, value_shape=value_shape)


def test_one_value_for_all_keys(run):
    run(exchange.one_value_for_all_keys)


def test_scan(run):
    run(exchange.loops)


@on_two_devices
def test_vmap_is_one_exchange(run):
    run(exchange.lanes)


@on_two_devices
@pytest.mark.parametrize("capacity", [None, 5])
def test_gradients(run, capacity):
    run(exchange.gradients, capacity=capacity)


@on_two_devices
def test_distinct_keys_are_sent_once(run):
    """As docs/guide/jax.md says of keys that come very often."""
    run(exchange.distinct_keys_alone)


def test_deterministic_tables(run):
    run(exchange.the_same_each_time)


@on_two_devices
def test_calls_without_an_axis(run):
    run(exchange.calls_without_an_axis)


@pytest.mark.parametrize("axis_name", ["x", None])
@on_two_devices
def test_no_keys_and_eager_calls(run, axis_name):
    run(exchange.no_keys_and_eager, axis_name=axis_name)


def test_transfers_of_parts(run):
    run(exchange.ragged_transfers)


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_alone(run, workers):
    """In JAX 0.6, and on GPUs to be on the safe side, in a process of its own: there a program with a collective that
    failed fails all later ones.
    """
    if module("jax").__version_info__ >= (0, 7) and run.platform == "cpu":
        yield run
        return
    workers.close()
    workers._processes.clear()
    yield run
    workers.close()
    workers._processes.clear()


@pytest.mark.parametrize("capacity", [None, 30])
def test_a_full_table_fails_the_program_on_all_devices(run_alone, capacity):
    run_alone(exchange.only_one_is_full, capacity=capacity)


@pytest.mark.parametrize("call", ["find", "erase", "size"])
def test_a_freed_table(run_alone, call):
    run_alone(exchange.one_is_freed, call=call)


def test_a_state_that_was_used(run_alone):
    run_alone(exchange.a_state_that_was_used)


def test_bad_arguments(device):
    """Of a mesh of one device, in which nothing is exchanged."""
    programs = need_jax(device)
    jax, ours = programs.jax, programs.ours
    table = gpuhash.HashTable("int64", "int64", device=device)
    keys = programs.put(np.arange(4))
    for call, options, error, message in (
        (ours.contains, {"axis_name": "x"}, ValueError, r"contains was given axis_name='x', and no such axis is known"),
        (ours.contains, {"capacity": 4}, ValueError, r"capacity=4 and no axis_name"),
        (ours.find, {"axis_name": ("x", "y")}, TypeError, r"axis_name=\('x', 'y'\) was given, expected the name"),
        (ours.erase, {"axis_name": "x", "capacity": 0}, ValueError, r"capacity=0 was given, expected 1 or more"),
        (ours.erase, {"axis_name": "x", "capacity": 2.5}, TypeError, r"capacity=2.5"),
    ):
        state = ours.from_table(table)
        with pytest.raises(error, match=message):
            call(state, keys, **options)
        ours.contains(state, keys)  # the state is as good as before
    lane = functools.partial(ours.contains, axis_name="x")
    with pytest.raises(ValueError, match="no such axis is known"):
        jax.vmap(lane, in_axes=(None, 0), out_axes=(None, 0), axis_name="x")(ours.from_table(table), keys[None])
    mesh = jax.sharding.Mesh(np.array(jax.devices("cuda" if device != "cpu" else "cpu")[:1]), ("x",))
    for option in ("device", "name"):
        with pytest.raises(TypeError, match=f"make_tables was given {option}='a'"):
            ours.make_tables(mesh, "int64", **{option: "a"})
    for count in (0, 70_000):
        with pytest.raises(ValueError, match=f"devices={count} was given"):
            ours.owners(np.arange(3), count)
    with pytest.raises(ValueError, match="keys are vectors"):
        ours.owners(np.arange(3), 2, key_shape=(2,))
    assert len(table) == 0


# Owners --------------------------------------------------------------------------------------------------------------


def test_owners_are_what_they_were():
    """Files of one table per device are read by later versions."""
    ours = need_jax().ours
    keys = np.array([0, 1, 2, 3, -1, 2**40, -(2**62)], np.int64)
    vectors = np.arange(12, dtype=np.int32).reshape(4, 3)
    got = [
        np.asarray(ours.owners(keys, 8)).tolist(),
        np.asarray(ours.owners(keys, 1)).tolist(),
        np.asarray(ours.owners(keys.astype(np.int8), 65_536)).tolist(),
        np.asarray(ours.owners(vectors, 5, key_shape=3)).tolist(),
        np.asarray(ours.owners([[3, 4]], 1000, key_dtype="uint16")).tolist(),
    ]
    assert got == [
        [1, 5, 1, 6, 7, 1, 2],
        [0] * 7,
        [34911, 24932, 16438, 44297, 43490, 34911, 34911],
        [3, 2, 3, 1],
        [[675, 527]],
    ]


@pytest.mark.parametrize("devices", [2, 3, 8])
@pytest.mark.parametrize("pattern", ["in a row", "strided", "high bits", "random"])
def test_owners_spread_keys_evenly(pattern, devices):
    """Patterns of ids, too; and among one owner's keys the table's hash is as even as among all."""
    ours = need_jax().ours
    count = 30_000
    keys = {
        "in a row": np.arange(count),
        "strided": np.arange(count) * devices * 1024,
        "high bits": np.arange(count) << 44,
        "random": random_keys("int64", (), count),
    }[pattern]
    owners = np.asarray(ours.owners(keys, devices))
    assert (owners >= 0).all()
    check_even(owners, devices)
    hashes = hash_key(keys[owners == 1].view(np.uint64))
    for shift in (0, 20, 56):  # bits from the lower, the middle and the upper end
        check_even((hashes >> np.uint64(shift)) & np.uint64(63), 64)


def check_even(numbers, count):
    """Pearson's statistic, which random numbers pass by 1 in a million less than by this much."""
    expected = len(numbers) / count
    deviation = ((np.bincount(numbers.astype(np.int64), minlength=count) - expected) ** 2 / expected).sum()
    assert deviation < (count - 1) + 5 * np.sqrt(2 * (count - 1)) + 12


# Examples ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_example(device):
    """It compares itself with collections.Counter, and loads its files for another number of devices."""
    programs = need_jax(device)
    if not hasattr(programs.jax, "shard_map"):
        pytest.skip("the example is for JAX 0.7 and newer")
    count = 3 if device == "cpu" else gpu_count()
    done = subprocess.run(
        [sys.executable, "-P", str(EXAMPLE), "--device", device, "--count", str(count), "--words", "60000"],
        env={**os.environ, "JAX_PLATFORMS": "cpu" if device == "cpu" else "cuda,cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"on {count} devices of {'cpu' if device == 'cpu' else 'gpu'}" in done.stdout
    assert f"in {max(1, count - 1)} tables that were loaded" in done.stdout


# Without 64-bit mode -------------------------------------------------------------------------------------------------


def test_without_64_bit_mode():
    printed = in_new_process(
        """
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        import jax, numpy as np
        import gpuhash.jax as ours
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        tables = ours.make_tables(mesh, "int32", "float32")
        if hasattr(jax, "shard_map"):
            shard_map, options = jax.shard_map, {}
        else:
            from jax.experimental.shard_map import shard_map
            options = {"check_rep": False}
        P = jax.sharding.PartitionSpec

        def run(state, keys):
            state, new = ours.insert_or_apply(state, keys, 1.0, axis_name="x", capacity=64)
            state, (values, _) = ours.find(state, keys, axis_name="x")
            state, size = ours.size(state, axis_name="x")
            return state, new, values, size[None]

        run = jax.jit(shard_map(run, mesh=mesh, in_specs=P("x"), out_specs=P("x"), **options))
        _, new, values, size = run(ours.from_tables(tables, mesh), np.arange(200, dtype=np.int32) % 50)
        print(np.asarray(new).sum(), set(np.asarray(values).tolist()), size.dtype, size)
        """
    )
    assert printed == "50 {4.0} int32 [50 50]\n"
