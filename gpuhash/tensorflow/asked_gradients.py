"""Which gradients a tape was asked for, as the gradient function of an op sees it.

TensorFlow's tape calls the gradient functions of all ops that the target depends on, whatever the sources are. A
function with a side effect, such as a step of an optimizer, has to know whether anybody wants what it gives. TensorFlow
does not tell it; but the call that asks is further up on the same stack.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import imperative_grad
from tensorflow.python.ops import gradients_impl

__all__ = ["is_asked_for"]

# The functions that ask, and their names for what the gradients are with respect to. All that tapes do ends in the
# first; the others are tf.gradients.
_ASKING = {
    imperative_grad.imperative_grad.__code__: "sources",
    gradients_impl.gradients.__code__: "xs",
    gradients_impl.gradients_v2.__code__: "xs",
}
# Where the gradient of a tf.function is built, for all tapes around its calls.
_OF_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.concrete_function"
_BUILDING = ("_build_functions_for_outputs", "_construct_forward_backward")


def is_asked_for(variable: Any) -> bool | None:
    """Whether the gradient with respect to a tf.Variable is asked for, now that a gradient function runs.

    Where gradients nest, as under ``tf.recompute_grad``, all around have to ask for it. None where nobody can tell, as
    the gradient of a whole tf.function is built for tapes outside of it.
    """
    handle = variable.handle
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _ASKING.get(frame.f_code)
        if name is not None:
            sources = tf.nest.flatten(frame.f_locals[name])
            if not any(getattr(source, "handle", source) is handle for source in sources):
                return False
        elif frame.f_code.co_name in _BUILDING and frame.f_globals.get("__name__") == _OF_FUNCTIONS:
            return None
        frame = frame.f_back
    return True
