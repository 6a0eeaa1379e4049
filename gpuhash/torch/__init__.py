"""The table inside PyTorch's compilers: as ops of the graphs of ``torch.compile`` and ``torch.export``.

Functions that ``torch.compile`` takes need nothing of this: calls of tables in them become these ops by themselves.
``TableModule`` is for models that are exported. The first use of the ops compiles them, which takes about 6 seconds and
a C++ compiler, and later ones find them in a cache; ``GPUHASH_TORCH=ON`` compiles them when gpuhash is installed.
Embeddings need none of them: without a compiler they work, and ``ops`` and ``TableModule(...)`` raise an ImportError.
A program that runs exported models imports ``gpuhash.torch.library``. PyTorch 2.11 to 2.13.

gpuhash imports modules of this package, and no PyTorch. So each name here is imported at its first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuhash.optimizers import LAMB, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad

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

_MODULES = {
    **dict.fromkeys(("LAMB", "SGD", "Adagrad", "Adam", "Optimizer", "RowWiseAdagrad"), "gpuhash.optimizers"),
    **dict.fromkeys(("HashEmbedding", "HashEmbeddingBag"), ".embedding"),
    "AveragedModel": ".averages",
    "FusedOptimizer": ".schedules",
    "TableModule": ".module",
    "ops": ".library",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = getattr(importlib.import_module(_MODULES[name], __name__), name)
    return made


def __dir__() -> list[str]:
    # Without the ops as long as they may have to be compiled: help() and others import whatever is named here.
    return sorted({*globals(), *__all__} - ({"ops"} - globals().keys()))
