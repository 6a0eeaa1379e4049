"""Mutates saved files: each has to be refused by a ValueError, or to load as what its bytes say.

``python tests/fuzz_files.py --files 100000``. What the bytes say is read here by a parser of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from support.samples import random_values

import gpuhash
from gpuhash import HashSet, HashTable
from gpuhash.files import serialization

SECONDS_PER_FILE = 10
DTYPES = {  # of a file's tensors: elements, and how many of them the format has for one of ours
    **{f"{sign}{bits}": (f"{sign.lower()}{bits // 8}", 1) for sign in "IU" for bits in (8, 16, 32, 64)},
    "BOOL": ("u1", 1),
    "F16": ("f2", 1),
    "BF16": (ml_dtypes.bfloat16, 1),
    "F32": ("f4", 1),
    "F64": ("f8", 1),
    "C64": ("c8", 1),
}
KINDS: list[tuple[str, tuple[int, ...], str | None, tuple[int, ...]]] = [
    ("int64", (), "float32", ()),
    ("int64", (), "float32", (2,)),
    ("uint8", (3,), "bool", ()),
    ("int32", (), "complex128", (1, 2)),
    ("uint16", (), "bfloat16", ()),
    ("int64", (2,), "int8", (5,)),
    ("int64", (), None, ()),
    ("int32", (3,), None, ()),
]
NUMBERS = [0, 1, -1, 2, 7, 8, 50, 2**31, 2**32, 2**53 + 1, 2**62, 2**63, 2**64, -(2**63), 10**400]
NASTY: list[Any] = [
    *NUMBERS,
    0.5,
    1e-30,
    5e-324,
    1e308,
    math.nan,
    math.inf,
    None,
    True,
    "",
    "true",
    "false",
    "0",
    "-1",
    "1e-30",
    "1e-9",
    "5e-324",
    "0.05",
    "1.0",
    "1.0000001",
    "nan",
    "inf",
    "-0.0",
    "1_0",
    " 1",
    "\N{ARABIC-INDIC DIGIT THREE}",
    "999999999999999999",
    "00000000000000000000000001",
    "[]",
    "[0]",
    "[1]",
    "[2,3]",
    "[9223372036854775808]",
    "[268435456]",
    "[" * 3000,
    "int64",
    "uint64",
    "int32",
    "bool",
    "complex128",
    "float8",
    "I64",
    "U8",
    "F64",
    "C128",
    "table",
    "set",
    "2",
    "00",
    "zz",
    "\x00",
    [],
    {},
    [0],
    [1, 1],
    [2**62, 2**62],
    [0, 2**63],
    [0] * 100,
]


def samples() -> list[bytes]:
    """Files as ``save`` writes them, of several kinds and sizes."""
    rng = np.random.default_rng(0)
    files = []
    for key_dtype, key_shape, value_dtype, value_shape in KINDS:
        for count in (0, 1, 20):
            keys = rng.integers(0, 120, (count, *key_shape)).astype(key_dtype)
            options = {"key_shape": key_shape, "deterministic": bool(count % 2), "max_load_factor": 0.7}
            if count == 1:
                options["max_capacity"] = 100
            if value_dtype is None:
                table: HashTable | HashSet = HashSet(key_dtype, **options)
                table.add(keys)
            else:
                default = random_values(value_dtype, value_shape, seed=1) if count else None
                table = HashTable(key_dtype, value_dtype, value_shape=value_shape, default=default, **options)
                table[keys] = random_values(value_dtype, (count, *value_shape))
            files.append(serialization.to_bytes(table._contents()))
    return files


# Mutations -----------------------------------------------------------------------------------------------------------


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], (dict, list)):
            yield from places(tree[key])


def split(blob: bytes) -> tuple[Any, bytes]:
    length = int.from_bytes(blob[:8], "little")
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def join(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def flip_bits(blob: bytes, rng: np.random.Generator, _: list[bytes]) -> bytes:
    damaged = bytearray(blob)
    for _ in range(rng.integers(1, 4)):
        damaged[rng.integers(len(blob))] ^= 1 << rng.integers(8)
    return bytes(damaged)


def cut(blob: bytes, rng: np.random.Generator, _: list[bytes]) -> bytes:
    return blob[: rng.integers(len(blob))]


def splice(blob: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
    other = others[rng.integers(len(others))]
    return blob[: rng.integers(len(blob))] + other[rng.integers(len(other)) :]


def swap_data(blob: bytes, rng: np.random.Generator, others: list[bytes]) -> bytes:
    return join(split(blob)[0], split(others[rng.integers(len(others))])[1])


def copy_part(blob: bytes, rng: np.random.Generator, _: list[bytes]) -> bytes:
    """Keys twice, or values of a bool that are neither 0 nor 1."""
    header, data = split(blob)
    if not data:
        return blob + b"\0"
    damaged = bytearray(data)
    count = int(rng.integers(1, 17))
    source, target = rng.integers(len(data), size=2)
    damaged[target : target + count] = data[source : source + count][: len(data) - target]
    return join(header, bytes(damaged[: len(data)]))


def change_length(blob: bytes, rng: np.random.Generator, _: list[bytes]) -> bytes:
    length = int.from_bytes(blob[:8], "little")
    numbers = [0, 1, 2**31, 2**63, 2**64 - 1, length - 1, length + 1, length + 8, len(blob)]
    return struct.pack("<Q", numbers[rng.integers(len(numbers))]) + blob[8:]


def change_values(blob: bytes, rng: np.random.Generator, _: list[bytes]) -> bytes:
    """Some of the header's values, one after another, become nasty ones, or those of another place."""
    header, data = split(blob)
    for _ in range(1 + int(rng.integers(4) == 0)):
        spots = list(places(header))
        container, key = spots[rng.integers(len(spots))]
        way = rng.integers(8)
        if way == 0:
            other, place = spots[rng.integers(len(spots))]
            container[key] = json.loads(json.dumps(other[place]))
        elif way == 1:
            del container[key]
        elif way == 2 and isinstance(container[key], (int, str)):
            container[key] = container[key] + 1 if isinstance(container[key], int) else container[key] + "0"
        else:
            container[key] = copy.deepcopy(NASTY[rng.integers(len(NASTY))])
    return join(header, data)


def change_metadata(blob: bytes, rng: np.random.Generator, _: list[bytes]) -> bytes:
    header, data = split(blob)
    names = list(header["__metadata__"])
    texts = [value for value in NASTY if isinstance(value, str)]
    header["__metadata__"][names[rng.integers(len(names))]] = texts[rng.integers(len(texts))]
    return join(header, data)


def repeat_name(blob: bytes, rng: np.random.Generator, _: list[bytes]) -> bytes:
    header, data = split(blob)
    names = list(header)
    name = names[rng.integers(len(names))]
    text = json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    return join(text.encode(), data)


MUTATIONS: list[Callable[[bytes, np.random.Generator, list[bytes]], bytes]] = [
    flip_bits,
    cut,
    splice,
    swap_data,
    copy_part,
    change_length,
    change_values,
    change_values,
    change_values,
    change_metadata,
    change_metadata,
    repeat_name,
]


def mutated(number: int, files: list[bytes]) -> tuple[str, bytes]:
    """The mutation of that number, always the same."""
    rng = np.random.default_rng(number)
    mutation = MUTATIONS[rng.integers(len(MUTATIONS))]
    blob = mutation(files[rng.integers(len(files))], rng, files)
    return mutation.__name__, blob


# What the bytes say --------------------------------------------------------------------------------------------------


def tensor(entry: Any, data: bytes) -> np.ndarray[Any, Any]:
    begin, end = entry["data_offsets"]
    array = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]][0]).reshape(entry["shape"])
    return array.astype(bool) if entry["dtype"] == "BOOL" else array


def rows_of(array: np.ndarray[Any, Any]) -> list[bytes]:
    return [row.tobytes() for row in array]


def check(blob: bytes) -> str:
    """Loads the file: "refused", or "loaded" as what its bytes say. AssertionError otherwise."""
    try:
        contents = serialization.from_bytes(blob)
        kind = HashSet if contents.value_dtype is None else HashTable
        table = kind._restore(contents, "cpu", None, None)
    except gpuhash.TableFullError as error:
        raise AssertionError("a file is damaged, and not a table full") from error
    except ValueError:
        return "refused"
    except MemoryError:
        # Rows of up to 2^28 bytes are legal, and the file says how long they are.
        value = split(blob)[0]["__metadata__"]["value_shape"]
        assert math.prod(json.loads(value)) > 1 << 20
        return "refused for want of memory"
    header, data = split(blob)
    said = header["__metadata__"]
    names = {"keys"} if said["kind"] == "set" else {"keys", "values"}
    assert header.keys() - {"__metadata__"} == names
    assert sum(end - begin for begin, end in (header[name]["data_offsets"] for name in names)) == len(data)
    assert isinstance(table, HashSet) == (said["kind"] == "set")
    assert table.key_dtype == said["key_dtype"]
    assert list(table.key_shape) == json.loads(said["key_shape"])
    assert table.max_load_factor == float(said["max_load_factor"])
    assert table.deterministic == (said["deterministic"] == "true")
    assert (table.max_capacity is None) == (said.get("max_capacity", "") == "")
    if table.max_capacity is not None:
        assert table.max_capacity >= int(said["max_capacity"])  # whole buckets
    keys = rows_of(tensor(header["keys"], data))
    assert len(set(keys)) == len(keys) == len(table)
    if isinstance(table, HashSet):
        assert set(rows_of(table.keys())) == set(keys)
        return "loaded"
    assert table.value_dtype == said["value_dtype"]
    assert list(table.value_shape) == json.loads(said["value_shape"])
    default = bytes.fromhex(said.get("default", ""))
    if table.value_dtype == "bool":
        default = bytes(map(bool, default))
    assert (b"" if table.default is None else np.asarray(table._default).tobytes()) == default
    mine, values = table.items()
    assert dict(zip(rows_of(mine), rows_of(values), strict=True)) == dict(
        zip(keys, rows_of(tensor(header["values"], data)), strict=True)
    )
    return "loaded"


# The run -------------------------------------------------------------------------------------------------------------


class Watchdog(threading.Thread):
    """Ends the process where a file takes too long: a loop in C++ answers to nothing else."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.number = -1
        self.started = time.monotonic()

    def begin(self, number: int) -> None:
        self.number, self.started = number, time.monotonic()

    def run(self) -> None:
        while True:
            time.sleep(0.5)
            if time.monotonic() - self.started > SECONDS_PER_FILE:
                print(f"file {self.number} hangs: {mutated(self.number, samples())}", file=sys.stderr, flush=True)
                os._exit(3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    arguments = parser.parse_args()
    files = samples()
    for file in files:
        assert check(file) == "loaded"
    watchdog = Watchdog()
    watchdog.start()
    outcomes: Counter[str] = Counter()
    failures = 0
    for number in range(arguments.first, arguments.first + arguments.files):
        watchdog.begin(number)
        name, blob = mutated(number, files)
        try:
            outcomes[check(blob)] += 1
        except Exception as error:  # whatever it is, the file goes into the report
            failures += 1
            print(f"file {number} ({name}): {type(error).__name__}: {error}\n  {blob[:600]!r}", file=sys.stderr)
    print(f"{arguments.files} files: {dict(outcomes)}, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
