"""Count every 8-byte n-gram of real files in one hash table over several processes.

    torchrun --nproc-per-node 2 examples/distributed_count.py [PATHS]

Each process reads its share of the files and calls ``table.insert_or_apply(ngrams, 1, "add")`` on its own n-grams; the
table sends each of them to the process that owns it. Without PATHS the files are the source of Python's own standard
library. The shards are on GPUs if there is one for each process (then NCCL connects them), else on the host (Gloo). In
the end the first process counts all files again, alone, and checks that the counts are the same. count_ngrams.py does
all this in one process, and says more about n-grams.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from count_ngrams import (
    NGRAM_BYTES,
    batches,
    choose_device,
    count,
    find_files,
    items,
    most_frequent,
    ngram_count,
    read,
    report,
    standard_library,
)

import gpuhash.distributed


def choose_devices() -> str:
    """Name the devices: "cuda" if each process of this host can have a GPU of its own, else "cpu"."""
    enough = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    return choose_device() if enough else "cpu"


def largest(number: int, device: str) -> int:
    """The largest of all processes' numbers."""
    tensor = torch.tensor([number], device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor)


def count_together(texts: Sequence[bytes], device: str) -> tuple[gpuhash.distributed.HashTable, float]:
    """The table of all processes' counts, and the seconds of counting."""
    table = gpuhash.distributed.HashTable("int64", "int64", device=device)
    mine = list(batches(texts))
    nothing = np.empty(0, np.int64)
    start = time.perf_counter()
    # All processes make as many calls as the one with the most batches: those that are done bring none.
    for turn in range(largest(len(mine), device)):
        ngrams = torch.from_numpy(mine[turn] if turn < len(mine) else nothing).to(device)
        table.insert_or_apply(ngrams, 1, "add")
    return table, time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count every 8-byte n-gram of files in one table over processes.")
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders (default: Python's standard library)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: GPUs if there is one for each process")
    parser.add_argument("--limit-bytes", type=int, help="read at most so many bytes")
    options = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        parser.error("start the processes with torchrun --nproc-per-node 2")

    device = options.device or choose_devices()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    texts = read(find_files(options.paths) if options.paths else standard_library(), options.limit_bytes)
    total = sum(map(ngram_count, texts))
    if total == 0:
        parser.error(f"no file of at least {NGRAM_BYTES} bytes")

    count_together(texts[rank : rank + 1], device)  # starts threads or loads kernels, once per process
    table, seconds = count_together(texts[rank::size], device)
    report(f"process {rank}: {sum(map(ngram_count, texts[rank::size])):,} n-grams, {len(table.shard):,} in its shard")
    distinct = len(table)
    together = table.gather(0)
    if rank == 0 and together is not None:
        order = torch.argsort(together[0])
        ngrams, counts = (tensor[order].cpu().numpy() for tensor in together)
        print(f"{len(texts):,} files, {sum(map(len, texts)):,} bytes, {total:,} n-grams, {distinct:,} distinct")
        print("most frequent:")
        for text, times in most_frequent(ngrams, counts, 10):
            print(f"{times:12,}  {text!r}")
        print(f"{size} processes on {device}: {total / seconds / 1e6:.1f} M n-grams/s")
        expected, expected_counts = items(count(texts, device)[0])
        assert np.array_equal(ngrams, expected), "the n-grams are not those that one process finds"
        assert np.array_equal(counts, expected_counts), "the counts are not those of one process"
        print("the same counts as one process")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
