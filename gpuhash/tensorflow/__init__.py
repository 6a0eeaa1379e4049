"""The table inside TensorFlow: as ops of graphs on CPU and GPU, and as a drop-in for TensorFlow's mutable table.

``HashEmbedding`` is a layer of Keras whose rows are those of a table.

The ops are compiled against the TensorFlow that is installed when this package is imported for the first time, which
takes about 20 seconds and a C++ compiler, and then come from a cache. TensorFlow 2.19 to 2.21.

With PyTorch in the same process and GPUs, import PyTorch first: TensorFlow offers stand-ins for CUDA's functions to
every library that is loaded after it, and PyTorch then crashes.
"""

from gpuhash.optimizers import LAMB, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad

from . import gradients
from .calls import ColumnsHashTable, MutableHashTable, wrap
from .embedding import HashEmbedding
from .library import ops
from .tensors import delete_tensor, get_tensor, save_tensor

__all__ = [
    "LAMB",
    "SGD",
    "Adagrad",
    "Adam",
    "ColumnsHashTable",
    "HashEmbedding",
    "MutableHashTable",
    "Optimizer",
    "RowWiseAdagrad",
    "delete_tensor",
    "get_tensor",
    "gradients",
    "ops",
    "save_tensor",
    "wrap",
]
