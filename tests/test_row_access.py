"""row_access: rows by their numbers, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.samples import random_keys, same_bytes

from gpuhash import HashSet, HashTable
from gpuhash.optimizers import SGD, Adagrad, Adam

WIDTH = 6


def filled(place, count=500, dtype="float32", **columns):
    """A table, its row numbers of ``count`` keys, and the first column's rows by number."""
    values = {"weight": (dtype, (WIDTH,)), **columns} if columns else dtype
    options = {} if columns else {"value_shape": (WIDTH,)}
    table = HashTable("int64", values, device=place.table_device, **options)
    keys = random_keys("int64", (), count)
    weights = np.random.default_rng(1).integers(-9, 9, (count, WIDTH)).astype(np.float32)
    given = place.array(weights)
    table[place.array(keys)] = {"weight": given} if columns else given
    rows = to_numpy(table.rows(place.array(keys)))
    by_row = np.zeros((rows.max() + 1, WIDTH), np.float32)
    by_row[rows] = weights
    return table, rows, by_row


@pytest.mark.parametrize("batch", [(), (0,), (1,), (20, 7)], ids=str)
def test_reading(place, batch):
    table, rows, by_row = filled(place)
    numbers = np.random.default_rng(2).choice(rows, batch).astype(np.int64)
    read = table.row_access.read(place.array(numbers))
    assert place.owns(read)
    same_bytes(read, by_row[numbers])


def test_numbers_that_are_no_rows_read_the_default(native):
    table, rows, by_row = filled(native)
    wrong = [-1, table.capacity, 2**62, -(2**63)]
    numbers = native.array(np.concatenate([rows[:5], wrong]))
    default = np.arange(WIDTH, dtype=np.float32)
    for given, expected in [(None, 0), (native.array(default), default), (7, 7)]:
        read = to_numpy(table.row_access.read(numbers, default=given))
        same_bytes(read[:5], by_row[rows[:5]])
        assert (read[5:] == expected).all()


def test_reading_into_an_array_of_ones_own(native):
    table, rows, by_row = filled(native)
    out = native.array(np.zeros((len(rows), WIDTH), np.float32))
    assert table.row_access.read(native.array(rows), out=out) is out
    same_bytes(out, by_row[rows])
    with pytest.raises(ValueError, match="own row_storage"):
        table.row_access.read(native.array(rows[:4]), out=table.row_storage_as(native.name)[:4])


@pytest.mark.parametrize("scaled", [False, True])
def test_sums_by_bags(native, scaled):
    table, rows, by_row = filled(native)
    offsets = np.array([0, 0, 1, 40, 40, len(rows)])
    factors = np.random.default_rng(3).integers(-2, 3, len(rows)).astype(np.float32) if scaled else None
    given = None if factors is None else native.array(factors)
    sums = table.row_access.pool(native.array(rows), native.array(offsets), given)
    weights = by_row[rows] * (1 if factors is None else factors[:, None])
    assert (to_numpy(sums) == [weights[begin:end].sum(0) for begin, end in itertools.pairwise(offsets)]).all()


@pytest.mark.parametrize("offsets", [[1, 500], [0, 499], [0, 600], [0, 9, 3, 500], [], [[0, 500]]], ids=str)
def test_offsets_that_lead_out_of_the_batch(on_device, offsets):
    table, rows, _ = filled(on_device)
    with pytest.raises(ValueError, match="offsets"):
        table.row_access.pool(on_device.array(rows), on_device.array(np.array(offsets, np.int64)))


def test_sums_that_are_written_over_the_offsets(native):
    table, rows, by_row = filled(native)
    memory = np.zeros(1000 * WIDTH, np.int64)
    memory[: len(rows) + 1] = np.arange(len(rows) + 1)
    given = native.array(memory)
    out = given.view(native.array(by_row).dtype)[: len(rows) * WIDTH].reshape(len(rows), WIDTH)
    table.row_access.pool(native.array(rows), given[: len(rows) + 1], out=out)
    same_bytes(out, by_row[rows])


def test_row_numbers_in_a_list(native):
    table, rows, by_row = filled(native)
    same_bytes(table.row_access.read(rows[:3].tolist()), by_row[rows[:3]])
    assert table.row_access.read([]).shape == (0, WIDTH)
    with pytest.raises(TypeError, match=r"rows are int64, and 1.5 is not an integer"):
        table.row_access.read([1.5])


@pytest.mark.parametrize("shared", [False, True], ids=["each", "items"])
def test_a_step_adds_the_gradients_of_a_row(native, shared):
    table, rows, by_row = filled(native)
    rng = np.random.default_rng(4)
    numbers = np.append(rng.choice(rows, 900), [-1, 2**62])
    gradients = rng.integers(-3, 4, (40 if shared else len(numbers), WIDTH)).astype(np.float32)
    items = rng.integers(0, 40, len(numbers)) if shared else np.arange(len(numbers))
    factors = rng.choice([0.5, 2.0], len(numbers)).astype(np.float32)
    given = {"items": native.array(items)} if shared else {}
    table.row_access.train(
        native.array(numbers), native.array(gradients), SGD(lr=0.25), 1, factors=native.array(factors), **given
    )
    sums = np.zeros_like(by_row)
    np.add.at(sums, numbers[:-2], (gradients[items] * factors[:, None])[:-2])
    same_bytes(table.row_access.read(native.array(rows)), (by_row - sums / 4)[rows])


def test_the_rows_are_their_own_gradients(native):
    table, rows, by_row = filled(native)
    numbers, items = np.concatenate([rows, rows[::-1]]), np.concatenate([rows[::-1], rows])
    storage = table.row_storage_as(native.name)
    table.row_access.train(native.array(numbers), storage, SGD(lr=0.5), 1, items=native.array(items))
    expected = by_row.copy()
    np.subtract.at(expected, numbers, by_row[items] / 2)
    same_bytes(table.row_access.read(native.array(rows)), expected[rows])


def test_an_optimizer_keeps_its_state_in_columns(native):
    table, rows, by_row = filled(native, sum=("float32", (WIDTH,)), visits="int64")
    access = table.row_access
    gradients = np.ones((len(rows), WIDTH), np.float32)
    for step in (1, 2):
        access.train(
            native.array(rows), native.array(gradients), Adagrad(lr=1.0, eps=0.0), step, columns=["weight", "sum"]
        )
    same_bytes(access.read(native.array(rows), "sum"), np.full((len(rows), WIDTH), 2, np.float32))
    np.testing.assert_allclose(
        to_numpy(access.read(native.array(rows), "weight")), by_row[rows] - 1 - 1 / np.sqrt(2), rtol=1e-6
    )
    with pytest.raises(ValueError, match=r"Adam keeps .*, and the columns \['sum'\] were given"):
        access.train(native.array(rows), native.array(gradients), Adam(), 3, columns=["weight", "sum"])
    for columns, error, match in [
        ([], ValueError, r"columns=\[\] was given: name the weights"),
        ("weight", TypeError, r"expected a list of names, such as \['weight'\]"),
        (["weight", "weight"], ValueError, "in which one comes twice"),
    ]:
        with pytest.raises(error, match=match):
            access.train(native.array(rows), native.array(gradients), Adagrad(lr=1.0), 3, columns=columns)
    with pytest.raises(ValueError, match="name the one that is meant"):
        access.read(native.array(rows))
    with pytest.raises(ValueError, match="no column 'weights'"):
        access.read(native.array(rows), "weights")


def test_what_training_refuses(on_device):
    table, rows, by_row = filled(on_device)
    access, numbers = table.row_access, on_device.array(rows)
    gradients = on_device.array(np.ones((len(rows), WIDTH), np.float32))
    for change, error, match in [
        ({"gradients": on_device.array(np.ones((3, WIDTH), np.float32))}, ValueError, "gradients have shape"),
        ({"gradients": on_device.array(np.ones((len(rows), WIDTH)))}, TypeError, "float32"),
        ({"items": on_device.array(np.full(len(rows), len(rows)))}, ValueError, "items go from 500 to 500"),
        ({"items": on_device.array(np.full(len(rows), -1))}, ValueError, "items go from -1 to -1"),
        ({"items": on_device.array(np.zeros(3, np.int64))}, ValueError, "items have shape"),
        ({"factors": on_device.array(np.ones(3, np.float32))}, ValueError, "factors have shape"),
        ({"rows": on_device.array(rows.astype(np.int32))}, TypeError, "int32"),
        ({"gradients": [1.0] * len(rows)}, TypeError, "gradients are a list, expected an array of float32"),
        ({"optimizer": SGD}, TypeError, "optimizer=SGD was given, expected one of gpuhash.optimizers"),
        ({"optimizer": "sgd"}, TypeError, "optimizer='sgd' was given"),
        ({"step": 1.5}, TypeError, "step=1.5 was given, expected an integer"),
        ({"step": 2**70}, ValueError, "step=.* was given, expected a number"),
        ({"step": 0}, ValueError, "counted from 1"),
    ]:
        given = {"rows": numbers, "gradients": gradients, "optimizer": SGD(lr=1.0), "step": 1, **change}
        with pytest.raises(error, match=match):
            access.train(**given)
    same_bytes(access.read(numbers), by_row[rows])


def test_rows_are_restored_and_stay_in_place(native):
    table, _, by_row = filled(native)
    keys = to_numpy(table.keys(like=native.name))
    made = HashTable("int64", "float32", value_shape=(WIDTH,), device=native.table_device)
    numbers = table.rows(native.array(keys))
    made.row_access.restore(native.array(keys), numbers)
    view = made.row_access.keep_in_place(like=native.name)
    assert len(view) >= len(by_row)
    view[: len(by_row)] = native.array(by_row)
    same_bytes(made.rows(native.array(keys)), to_numpy(numbers))
    same_bytes(made[native.array(keys)], to_numpy(table[native.array(keys)]))
    with pytest.raises(ValueError, match="clear it before"):
        made.row_access.restore(native.array(keys), numbers)


def test_tables_without_rows(device):
    with pytest.raises(ValueError, match="no row storage"):
        _ = HashTable("int64", "float32", device=device).row_access
    assert not hasattr(HashSet("int64", device=device), "row_access")
    with pytest.raises(ValueError, match="shards"):
        _ = HashTable("int64", "float32", value_shape=(3,), device=[device, device]).row_access
