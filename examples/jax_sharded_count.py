"""Count words in one table over several devices, inside a compiled JAX program (JAX 0.7 or newer).

    python examples/jax_sharded_count.py [--device cpu|cuda] [--count DEVICES] [--words N]

Each device reads its part of the words of Python's own standard library. In each step it gives a batch of them: keys go
to the devices that own them, are counted there, and the counts so far come back. Then the tables are saved, one file
per device, and loaded as if there were one device less, each key into the table that owns it then. What both hold is
compared with collections.Counter.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from jax.sharding import Mesh

WORD = re.compile(rb"\w+|[^\w\s]")
BATCH = 4096  # words per device and step


def read_words(count: int) -> list[bytes]:
    """The first words and signs of the source of Python's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    words: list[bytes] = []
    for path in sorted(folder.rglob("*.py")):
        if not {"site-packages", "dist-packages", "test"}.intersection(path.relative_to(folder).parts):
            words += WORD.findall(path.read_bytes())
        if len(words) >= count:
            return words[:count]
    raise RuntimeError(f"{folder} has {len(words)} words, expected {count}: ask for fewer --words")


def count_words(tables: list[Any], mesh: Mesh, batches: npt.NDArray[np.int32]) -> int:
    """Counts the keys of ``batches``, ``[devices, steps, BATCH]``, and returns the largest count that came back."""
    import jax

    import gpuhash.jax

    def step(state: Any, keys: Any) -> tuple[Any, Any]:
        state, _ = gpuhash.jax.insert_or_apply(state, keys, 1, "add", axis_name="devices")
        state, (counts, _) = gpuhash.jax.find(state, keys, axis_name="devices")
        return state, counts.max()

    def count(state: Any, batches: Any) -> tuple[Any, Any]:
        state, largest = jax.lax.scan(step, state, batches[0])
        return state, largest

    each = jax.sharding.PartitionSpec("devices")
    program = jax.jit(jax.shard_map(count, mesh=mesh, in_specs=each, out_specs=each))
    _, largest = program(gpuhash.jax.from_tables(tables, mesh), batches)
    return int(largest.max())


def items_of(tables: list[Any]) -> dict[int, int]:
    """What the tables hold, which have no key in common."""
    return {int(key): int(count) for table in tables for key, count in zip(*table.to("cpu").items(), strict=True)}


def load_among(paths: list[Path], tables: list[Any]) -> None:
    """Loads files of one table per device into tables for another number of devices."""
    import gpuhash.jax

    for path in paths:
        saved = gpuhash.HashTable.load(path, device="cpu")
        keys, counts = saved.keys(), saved.values()
        owners = np.asarray(gpuhash.jax.owners(keys, len(tables)))
        for number, table in enumerate(tables):
            mine = owners == number
            table.insert(keys[mine], counts[mine])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count words in one table over several devices.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--count", type=int, default=4, help="devices; the host is as many as you like (default: 4)")
    parser.add_argument("--words", type=int, default=1_000_000, help="words to count (default: 1,000,000)")
    options = parser.parse_args(arguments)
    if options.device == "cpu":  # before JAX is imported
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.count}"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    import jax

    import gpuhash.jax

    devices = jax.devices(options.device)[: options.count]
    mesh = jax.sharding.Mesh(np.array(devices), ("devices",))
    steps = options.words // (len(devices) * BATCH)
    words = read_words(steps * len(devices) * BATCH)
    numbers = {word: number for number, word in enumerate(sorted(set(words)))}
    keys = np.array([numbers[word] for word in words], np.int32)

    tables = gpuhash.jax.make_tables(mesh, "int32", "int32")
    largest = count_words(tables, mesh, keys.reshape(len(devices), steps, BATCH))
    expected = Counter(keys.tolist())
    print(f"{len(words):,} words on {len(devices)} devices of {devices[0].platform}, {len(expected):,} distinct")
    print(f"words per table: {', '.join(f'{len(table):,}' for table in tables)}")
    assert items_of(tables) == expected, "the counts differ from those of collections.Counter"
    assert largest == expected.most_common(1)[0][1], "the counts that came back differ"

    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"counts-{number}.safetensors" for number in range(len(tables))]
        for table, path in zip(tables, paths, strict=True):
            table.save(path)
        others = [gpuhash.HashTable("int32", "int32") for _ in range(max(1, len(tables) - 1))]
        load_among(paths, others)
    assert items_of(others) == expected, "the counts that were loaded differ"
    print(f"and in {len(others)} tables that were loaded: {', '.join(f'{len(table):,}' for table in others)}")


if __name__ == "__main__":
    main(sys.argv[1:])
