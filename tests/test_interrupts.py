"""Ctrl-C during long operations of the host: they end within a second, and the table is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# One program for all operations, as the table takes long to fill. With one thread each operation takes a second or
# more. The keys are the numbers 0, 1, ... times an odd factor, so that times its inverse they are the numbers again.
PROGRAM = """
import json, os, signal, threading, time
import numpy as np
import gpuhash
from gpuhash import HashTable

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background

FACTOR = 0x9E3779B97F4A7C15
STORED, NEW = 1 << 24, 1 << 40  # NEW: what is added to a number for the value that an operation assigns


def signed(number):
    return np.int64(number - (1 << 64) if number >> 63 else number)


def keys_of(numbers):
    return numbers * signed(FACTOR)


base = HashTable("int64", "int64", capacity=int(1.3 * STORED))
base.insert(keys_of(np.arange(STORED)), np.arange(STORED))
batch_numbers = np.random.default_rng(0).integers(0, 2 * STORED, 2 * STORED)  # half of them are stored
batch, batch_values = keys_of(batch_numbers), batch_numbers + NEW
stored = keys_of(np.arange(STORED))
values, mask = np.empty_like(batch), np.empty(len(batch), bool)

OPERATIONS = {
    "find": lambda table: table.find(batch, out=(values, mask)),
    "contains": lambda table: table.contains(batch, out=mask),
    "insert": lambda table: table.insert(batch, batch_values, out=mask),
    "insert_or_assign": lambda table: table.insert_or_assign(batch, batch_values, out=mask),
    "insert_or_apply": lambda table: table.insert_or_apply(batch, batch_values, "max", out=mask),
    "erase": lambda table: table.erase(batch, out=mask),
    "rehash": lambda table: table.rehash(3 * table.capacity),
    "items": lambda table: table.items(),
    "unique": lambda table: gpuhash.unique(batch),
    "factorize": lambda table: gpuhash.factorize(batch),
    "isin": lambda table: gpuhash.isin(batch, stored),
}


def seconds_until_interrupted(work):
    \"\"\"From Ctrl-C to the exception.\"\"\"
    pressed = []

    def press():
        time.sleep(0.15)
        pressed.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    try:
        thread.start()
        work()
        thread.join()
        time.sleep(5)
    except KeyboardInterrupt:
        return time.perf_counter() - pressed[0]


def fault_of(table, operation):
    \"\"\"What is wrong with the table, if anything.\"\"\"
    keys, held = table.items()
    if len(keys) != len(table):
        return f"{len(table)} keys are counted and {len(keys)} are there"
    numbers = keys * signed(pow(FACTOR, -1, 1 << 64))
    if len(numbers) and not (0 <= numbers.min() and numbers.max() < 2 * STORED):
        return "a key that nobody inserted"
    if np.bincount(numbers, minlength=1).max() > 1:
        return "a key is there twice"
    before = numbers < STORED
    if operation != "erase" and before.sum() != STORED:
        return f"{STORED - before.sum()} keys were lost"
    if operation in ("erase", "find", "contains", "rehash", "items") and not before.all():
        return "keys came out of nothing"
    old, new = held == numbers, held == numbers + NEW
    if operation in ("insert_or_assign", "insert_or_apply"):
        right = np.where(before, old | new, new)
    else:
        right = np.where(before, old, new)
    if not right.all():
        return f"{(~right).sum()} values are neither old nor new"
    got, found = table.find(keys[:100_000])
    if not (found.all() and (got == held[:100_000]).all()):
        return "keys that items() gives are not found"
    again = keys_of(np.arange(1000))
    table[again] = 7
    if not (table[again] == 7).all():
        return "it takes no keys any more"
    return ""


for operation, work in OPERATIONS.items():
    touches = operation not in ("unique", "factorize", "isin")
    table = base.copy() if touches else None
    seconds = seconds_until_interrupted(lambda: work(table))
    print(json.dumps([operation, seconds, fault_of(table, operation) if touches else ""]), flush=True)
"""
OPERATIONS = [
    "find",
    "contains",
    "insert",
    "insert_or_assign",
    "insert_or_apply",
    "erase",
    "rehash",
    "items",
    "unique",
    "factorize",
    "isin",
]


def on_one_thread(program: str) -> str:
    """What a process prints in which the host has one thread."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GPUHASH_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """Of each operation: the seconds from Ctrl-C to the exception, and what is wrong with the table."""
    return {operation: rest for operation, *rest in map(json.loads, on_one_thread(PROGRAM).splitlines())}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_ctrl_c_ends_a_long_operation_and_leaves_the_table_whole(outcomes, operation):
    seconds, fault = outcomes[operation]
    assert seconds is not None, "no KeyboardInterrupt"
    assert seconds < 1
    assert fault == ""


# A table of 2 GiB, as whoever presses Ctrl-C is heard after a tenth of a second. With one thread.
CLEARED = """
import os, signal, threading, time
import numpy as np
from gpuhash import HashTable

signal.signal(signal.SIGINT, signal.default_int_handler)
table = HashTable("int64", "int64", capacity=1 << 27)
keys = np.arange(1 << 16) * 7919
interrupted = 0
for delay in (0.0, 0.02, 0.05):
    table.insert(keys, keys)

    def press():
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    try:
        thread.start()
        table.clear()
        thread.join()
        time.sleep(1)
    except KeyboardInterrupt:
        interrupted += 1
    thread.join()
    there = int(table.contains(keys).sum())
    listed = len(table.keys())
    assert len(table) == there == listed, (len(table), there, listed)
    assert len(table) in (0, len(keys)), "a part of it"
assert interrupted == 3
"""


@pytest.mark.long(4)  # to clear so much takes long
def test_ctrl_c_during_clear():
    on_one_thread(CLEARED)


# The handler of SIGHUP sleeps for as many seconds as the signal's number is, one, in the thread that gets it: a thread
# that gets no processor for so long. Ctrl-C comes while the caller, whose own part is done, waits for that one.
LATE_WORKER = """
import ctypes, os, signal, sys, threading, time
import numpy as np
import gpuhash

libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.signal.restype = ctypes.c_void_p
libc.signal(signal.SIGHUP, ctypes.cast(libc.sleep, ctypes.c_void_p))
TGKILL = {"x86_64": 234, "aarch64": 131}[os.uname().machine]  # no function of its own in older C libraries
signal.signal(signal.SIGINT, signal.default_int_handler)

operation = sys.argv[1]
n = 1 << 23
keys = np.random.default_rng(0).permutation(n) * 0x9E3779B97F4A7


def threads():
    return {int(thread) for thread in os.listdir("/proc/self/task")}


before = threads()
gpuhash.unique(keys[: 1 << 18])
workers = threads() - before
assert workers, "no second thread"
table = gpuhash.HashTable("int64", "int64", capacity=2 * n)
if operation == "erase":
    table.insert(keys, keys)


def press():
    time.sleep(0.02)
    for worker in workers:
        libc.syscall(TGKILL, os.getpid(), worker, signal.SIGHUP)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


presser = threading.Thread(target=press)
interrupted = False
try:
    presser.start()
    if operation == "insert":
        table.insert(keys, keys)
    elif operation == "insert_or_apply":
        table.insert_or_apply(keys, keys, "add")
    else:
        table.erase(keys)
    presser.join()
    time.sleep(5)
except KeyboardInterrupt:
    interrupted = True
presser.join()
assert interrupted
there = table.contains(keys)
assert len(table) == there.sum(), (len(table), there.sum())
done = ~there if operation == "erase" else there
assert done[: done.sum()].all(), "what is done is no first part of the batch"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals to one thread")
@pytest.mark.parametrize("operation", ["insert", "insert_or_apply", "erase"])
@pytest.mark.parametrize("threads", [2, 4])
def test_ctrl_c_while_a_worker_gets_no_processor(operation, threads):
    done = subprocess.run(
        [sys.executable, "-P", "-c", LATE_WORKER, operation],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GPUHASH_NUM_THREADS": str(threads)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
