"""The table inside PyTorch's compilers: as ops of the graphs of ``torch.compile`` and ``torch.export``.

Functions that ``torch.compile`` takes need nothing of this: calls of tables in them become these ops by themselves.
``TableModule`` is for models that are exported. The ops are compiled at first use, which takes about 6 seconds and a
C++ compiler, and then come from a cache. PyTorch 2.11 to 2.13.
"""

from gpuhash.optimizers import LAMB, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from gpuhash.untraced import keep_dynamo_out

from . import averages, embedding, schedules
from .averages import AveragedModel
from .embedding import HashEmbedding, HashEmbeddingBag
from .library import ops
from .module import TableModule
from .schedules import FusedOptimizer

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
