"""Processes that fork while other threads are inside of calls, as those of data loaders do."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A thread that is always inside of some call on the table; every value is its key.
BUSY = """
import multiprocessing, os, signal, threading, time, warnings
import numpy as np
import gpuhash
from gpuhash import HashTable

warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
table = HashTable("int64", "int64", value_shape=VALUE_SHAPE)
keys = np.arange(200_000)
values = np.broadcast_to(keys.reshape(-1, *[1] * len(VALUE_SHAPE)), (len(keys), *VALUE_SHAPE)).copy()
table[keys] = values
stopping = False

def hammer():
    while not stopping:
        table.insert_or_assign(keys, values)
        table.find(keys)
        len(table)

def is_whole():
    got, found = table.find(keys)
    return len(table) == len(keys) and bool(found.all()) and bool((got == values).all())

threads = [threading.Thread(target=hammer, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
"""

FORK = """
finished = 0
for round_number in range(6):
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # seconds; ends a child that waits for a lock, too
        whole = is_whole()
        more = keys + len(keys)
        table[more] = values
        whole = whole and len(table) == 2 * len(keys) and bool((table[more] == values).all())
        whole = whole and len(gpuhash.unique(keys)) == len(keys)
        os._exit(0 if whole else 1)
    if os.waitpid(child, 0)[1] != 0:
        break
    finished += 1
stopping = True
for thread in threads:
    thread.join()
assert is_whole()
print(f"{finished} of 6 finished", flush=True)
"""

LOADER = """
def load(batch):
    signal.alarm(20)
    got = table[keys[batch :: 16]]
    return bool((got == values[batch :: 16]).all())

fork = multiprocessing.get_context("fork")
answers = []
for _ in range(3):
    with fork.Pool(2) as pool:
        answers += pool.map_async(load, range(16)).get(timeout=10)
stopping = True
for thread in threads:
    thread.join()
print(f"{sum(answers)} of 48 right", flush=True)
"""


def run(program, value_shape):
    """The program's last words, and what it has to say for itself."""
    command = [sys.executable, "-P", "-c", f"VALUE_SHAPE = {value_shape}\n{BUSY}\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("value_shape", [(), (4,)], ids=["scalar", "rows"])
def test_fork_while_other_threads_are_inside_of_calls(value_shape):
    out, err = run(FORK, value_shape)
    assert out == "6 of 6 finished\n", err


def test_workers_of_a_data_loader():
    out, err = run(LOADER, ())
    assert out == "48 of 48 right\n", err


FIRST_CALLS = """
import sys
import numpy as np
import gpuhash

before = set(sys.modules)
keys = np.arange(1 << 17) * 7919
words = ["a", "b", "a"]
gpuhash.unique(keys, return_inverse=True, return_counts=True)
gpuhash.unique(keys, sorted=True)
gpuhash.factorize(words)
gpuhash.isin(keys, keys[:5])
gpuhash.group_by([keys, keys]).agg(mean=keys, count=True)
gpuhash.take([keys], gpuhash.join(keys, keys[::2]).right)
gpuhash.hash(keys)
table = gpuhash.HashTable("int64", "float32", value_shape=(3,))
table[keys] = np.ones((len(keys), 3), "float32")
table[keys]
table.insert_or_apply(keys, 1, "add")
del table[keys[:5]]
list(table)
gpuhash.HashTable("str", "int64")["a"] = 5
gpuhash.HashMultiMap("int64", "int64").insert(keys, keys)
print(sorted(set(sys.modules) - before))
"""


def test_first_calls_import_nothing():
    """A fork in another thread would leave the child with the module's lock, which nobody gives back."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIRST_CALLS], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
