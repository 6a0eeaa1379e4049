"""Keras' initializers as those of gpuhash, which draw each row from its id alone."""

from __future__ import annotations

from typing import Any

import keras

from gpuhash.initializers import Constant, Initializer, Normal, TruncatedNormal, Uniform, with_seed

__all__ = ["seeded_initializer"]

_MOST_OF_KERAS = 10**9  # of its default seeds


def seeded_initializer(given: Any) -> Initializer:
    """The initializer that a layer has: for an object of ``gpuhash.initializers``, or Keras' name, object or config.

    Where no seed was given, one is drawn as Keras draws those of its own initializers: two layers that are made alike
    begin with other rows, and ``keras.utils.set_random_seed`` makes them the same in each run.

    Raises
    ------
    TypeError, ValueError
        For what is no initializer, and those of Keras that ask for the number of all rows, or for more than one row.
    """
    if not isinstance(given, Initializer):
        given = _of_keras(given)
    return with_seed(given, _draw)


def _draw() -> int:
    return _default_seed() * _MOST_OF_KERAS + _default_seed()


def _default_seed() -> int:
    return int(keras.initializers.RandomUniform().seed)


def _of_keras(given: Any) -> Initializer:
    try:
        found = keras.initializers.get(given)
    except (ValueError, TypeError) as error:
        raise TypeError(_refusal(given, "is none that Keras knows")) from error
    config = found.get_config() if isinstance(found, keras.initializers.Initializer) else {}
    seed = getattr(found, "_init_seed", None)
    if seed is not None and not isinstance(seed, int):
        raise TypeError(_refusal(given, "has a seed that changes with each call, where a row is drawn at any time"))
    if seed is not None:
        seed %= 1 << 64  # Keras takes negative ones
    kind = type(found)
    if kind is keras.initializers.Zeros:
        return Constant(0.0)
    if kind is keras.initializers.Ones:
        return Constant(1.0)
    if kind is keras.initializers.Constant:
        return Constant(float(config["value"]))
    if kind is keras.initializers.RandomUniform:
        return Uniform(config["minval"], config["maxval"], seed)
    if kind is keras.initializers.RandomNormal:
        return Normal(config["mean"], config["stddev"], seed)
    if kind is keras.initializers.TruncatedNormal:
        return TruncatedNormal(config["mean"], config["stddev"], seed)
    raise TypeError(_refusal(given, "needs to know all rows at once, and here rows appear one by one"))


def _refusal(given: Any, why: str) -> str:
    return (
        f"the initializer {given!r} {why}: expected Keras' 'uniform', 'normal', 'truncated_normal', 'zeros', 'ones' or "
        "an object of RandomUniform, RandomNormal, TruncatedNormal, Zeros, Ones or Constant; or one of "
        "gpuhash.initializers, such as Normal(std=0.02)"
    )
