"""Tables over the processes of a PyTorch process group, on one host or several: a shard in each, a key in one of them.

    torch.distributed.init_process_group()
    table = gpuhash.distributed.HashTable("int64", "float32")
    table[keys] = values  # on every rank, with keys and values of its own

Every operation is collective: all ranks call it, and each gets the answers to its own keys. Keys, values and answers go
through ``torch.distributed``, by NCCL between GPUs and by Gloo between hosts.
"""

import sys

from gpuhash.torch.dispatch import keep_dynamo_out

from .hash_set import HashSet
from .table import HashTable

__all__ = ["HashSet", "HashTable"]

for _public in (HashSet, HashTable):
    _public.__module__ = __name__
keep_dynamo_out([module for name, module in sys.modules.items() if name.startswith(__name__ + ".")])
