"""A custom call of XLA on the state of a table, as a primitive of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.ffi
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

# Its first operand and result are a token. XLA is told that it has a side effect: it would make one of two equal calls
# that are given one state, and leave out a change whose state nobody uses. JAX is not told: a program with an effect
# leaves its fast way of calling it, for 300 us more. The state says on which calls another one depends.
_call_p = Primitive("gpuhash_call")
_call_p.multiple_results = True


def _results_of(token: Any, *_arrays: Any, target: str, results: Any, attributes: Any, aliases: Any) -> Any:
    given = ((token.shape, token.dtype), *results)
    return [token.update(shape=shape, dtype=dtype, weak_type=False) for shape, dtype in given]


def _run_alone(*arrays: Any, target: str, results: Any, attributes: Any, aliases: Any) -> Any:
    """Where nothing is compiled: under ``jax.disable_jit``."""
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in ((arrays[0].shape, arrays[0].dtype), *results)]
    call = jax.ffi.ffi_call(target, structs, input_output_aliases=dict(aliases), vmap_method="sequential")
    return call(*arrays, **_as_arrays(attributes))


def _lower(context: Any, token: Any, *operands: Any, target: str, results: Any, attributes: Any, aliases: Any) -> Any:
    """Behind barriers, each array alone.

    XLA for GPUs fuses custom calls with slices of their operands and results, and in some versions keeps the first call
    beside the fusion if it has a side effect: the table would be changed twice. A barrier is no slice, and is free.
    """
    rule = jax.ffi.ffi_lowering(target, operand_output_aliases=dict(aliases), has_side_effect=True)
    next_token, *given = rule(context, token, *map(_barrier, operands), **_as_arrays(attributes))
    return [next_token, *map(_barrier, given)]


def _barrier(array: Any) -> Any:
    return stablehlo.OptimizationBarrierOp([array]).results[0]


_call_p.def_abstract_eval(_results_of)
_call_p.def_impl(_run_alone)
mlir.register_lowering(_call_p, _lower)


def custom_call(
    target: str,
    operands: Sequence[Any],
    results: Sequence[Any],
    attributes: dict[str, Any],
    aliases: tuple[tuple[int, int], ...] = ((0, 0),),
) -> list[Any]:
    """Calls a handler.

    Parameters
    ----------
    target
        XLA's name for it.
    operands
        The token first.
    results
        The shapes and dtypes of what it gives, the token left out.
    attributes
        Tuples are of numbers.
    aliases
        The numbers of an operand and of the result that is in its memory.
    """
    given: list[Any] = _call_p.bind(
        *operands,
        target=target,
        results=tuple((each.shape, each.dtype) for each in results),
        attributes=tuple(attributes.items()),
        aliases=aliases,
    )
    return given


def _as_arrays(attributes: Any) -> dict[str, Any]:
    return {name: np.array(value, np.int64) if isinstance(value, tuple) else value for name, value in attributes}
