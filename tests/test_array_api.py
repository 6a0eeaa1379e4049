"""The array API's set functions: against NumPy's, which the standard was written after."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import to_numpy
from support.samples import same_bytes

import gpuhash


def arrays():
    rng = np.random.default_rng(0)
    yield rng.integers(0, 50, 1000)
    yield rng.integers(0, 5, (20, 3, 4)).astype(np.uint8)
    yield rng.integers(0, 9, (7, 5)).astype(np.float32)
    yield np.array([], np.int32)
    yield rng.random(100) < 0.5


ARRAYS = list(arrays())


def in_order(values):
    """By which the distinct elements ascend, as NumPy's do."""
    return np.argsort(values, kind="stable")


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_all(place, number):
    x = ARRAYS[number]
    found = gpuhash.unique_all(place.array(x))
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    assert all(place.owns(each) for each in found)
    values, indices, inverse, counts = map(to_numpy, found)
    ascending, firsts, times = np.unique(x, return_index=True, return_counts=True)
    order = in_order(values)
    same_bytes(values[order], ascending)
    same_bytes(indices[order], firsts.astype(np.int64))
    same_bytes(counts[order], times.astype(np.int64))
    assert inverse.shape == x.shape
    same_bytes(values[inverse.reshape(-1)].reshape(x.shape), x)
    assert (np.diff(indices) > 0).all()


@pytest.mark.parametrize("number", range(len(ARRAYS)))
def test_the_others_say_the_same(place, number):
    x = place.array(ARRAYS[number])
    all_ = gpuhash.unique_all(x)
    counted, inverted = gpuhash.unique_counts(x), gpuhash.unique_inverse(x)
    assert counted._fields == ("values", "counts")
    assert inverted._fields == ("values", "inverse_indices")
    for got, expected in [
        (counted.values, all_.values),
        (counted.counts, all_.counts),
        (inverted.values, all_.values),
        (inverted.inverse_indices, all_.inverse_indices),
        (gpuhash.unique_values(x), all_.values),
    ]:
        same_bytes(got, to_numpy(expected))
        assert place.owns(got)


def test_nan_is_one_element_and_zeros_are_one():
    found = gpuhash.unique_all(np.array([np.nan, 0.0, np.nan, -0.0]))
    assert np.isnan(found.values[0])
    assert found.values[1:].tolist() == [0.0]
    assert found.indices.tolist() == [0, 1]
    assert found.inverse_indices.tolist() == [0, 1, 0, 1]
    assert found.counts.tolist() == [2, 2]


@pytest.mark.parametrize(
    "function", [gpuhash.unique_all, gpuhash.unique_counts, gpuhash.unique_inverse, gpuhash.unique_values]
)
def test_arguments_are_positional(function):
    with pytest.raises(TypeError):
        function(x=np.arange(3))
    with pytest.raises(TypeError):
        function(object())
