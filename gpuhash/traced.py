"""What Dynamo, PyTorch's compiler front, traces of the face; it does not look into the other modules."""

from __future__ import annotations

import functools
from typing import Any

from .untraced import call_untraced


def bind(method: Any, table: Any, owner: type | None = None) -> Any:
    """``table.find`` as Dynamo sees it: the ``__get__`` of methods with a fast path."""
    return method if table is None else functools.partial(call_untraced, method, table)
