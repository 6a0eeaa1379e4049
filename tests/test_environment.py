"""The environment of the process, which others may change at any time."""

from __future__ import annotations

import os
import subprocess
import sys

# setenv() moves the array of all variables when it gets longer, under whoever reads it without the GIL. The batches are
# the smallest that are shared out among threads.
PROGRAM = """
import os, threading, time
import numpy as np
import gpuhash
from gpuhash import HashTable

keys = np.random.default_rng(0).integers(0, 1 << 12, 1 << 15)
end = time.monotonic() + 3
tables = [HashTable("int64", "int64") for _ in range(4)]
calls = [0] * len(tables)

def work(number):
    table = tables[number]
    while time.monotonic() < end:
        table.insert_or_assign(keys, keys)
        for _ in range(10):
            table.find(keys)
        gpuhash.unique(keys)
        calls[number] += 1

threads = [threading.Thread(target=work, args=(number,)) for number in range(len(tables))]
for thread in threads:
    thread.start()
while time.monotonic() < end:
    for number in range(2000):
        os.environ[f"GPUHASH_A_TEST_{number}"] = "x" * (number % 200)
    for number in range(2000):
        del os.environ[f"GPUHASH_A_TEST_{number}"]
for thread in threads:
    thread.join()
assert all(calls)
assert all(set(table) == set(keys.tolist()) for table in tables)
print("whole")
"""


def test_variables_change_while_large_batches_run():
    """Three processes at once, as not every one meets the moment."""
    command = [sys.executable, "-P", "-c", PROGRAM]
    environment = {name: value for name, value in os.environ.items() if name != "GPUHASH_NUM_THREADS"}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    for process in started:
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, f"exit code {process.returncode}: {err[-2000:]}"
        assert out == "whole\n"
