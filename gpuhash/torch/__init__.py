"""The table inside PyTorch's compilers: as ops of the graphs of ``torch.compile`` and ``torch.export``.

Functions that ``torch.compile`` takes need nothing of this: calls of tables in them become these ops by themselves.
``TableModule`` is for models that are exported. The first import compiles the ops, which takes about 6 seconds and a
C++ compiler, and later ones find them in a cache; ``GPUHASH_TORCH=ON`` compiles them when gpuhash is installed.
Embeddings need none of them: without a compiler they work, and ``ops`` and ``TableModule(...)`` raise an ImportError.
PyTorch 2.11 to 2.13.
"""

import contextlib
from typing import Any

from gpuhash.optimizers import LAMB, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from gpuhash.untraced import keep_dynamo_out

from . import averages, embedding, schedules
from .averages import AveragedModel
from .embedding import HashEmbedding, HashEmbeddingBag
from .module import TableModule
from .schedules import FusedOptimizer

with contextlib.suppress(ImportError):  # asked for, ``ops`` raises it
    from .library import ops

__all__ = [
    "LAMB",
    "SGD",
    "Adagrad",
    "Adam",
    "AveragedModel",
    "FusedOptimizer",
    "HashEmbedding",
    "HashEmbeddingBag",
    "Optimizer",
    "RowWiseAdagrad",
    "TableModule",
    "ops",
]

keep_dynamo_out([averages, embedding, schedules])


def __getattr__(name: str) -> Any:
    """Of ``ops``, where they could not be loaded."""
    if name != "ops":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .library import ops

    return ops
