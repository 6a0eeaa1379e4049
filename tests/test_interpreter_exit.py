"""The program ends while daemon threads are in a call: they stay where they are, and the process ends as it should."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.frameworks import GPU, need_cuda

# A thread that gets the GIL back only once the interpreter ends is caught by luck in one end; where it hangs in calls
# of some ms, in each of some ends.
PROGRAM = """
import sys, threading, time
import numpy as np
import gpuhash
from gpuhash import HashTable

device, call, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
gpuhash.set_num_threads(threads)
n = 1 << 18
numbers = np.random.default_rng(0).integers(0, 1 << 40, n)


class Memory:
    # Memory in Python: of NumPy on the host, of gpuhash's own buffers on a GPU.
    def __init__(self):
        self.held = {}

    def allocate(self, nbytes, stream):
        if device == "cpu":
            held = np.empty(nbytes + 64, np.uint8)
            address = held.ctypes.data + -held.ctypes.data % 64
        else:
            held = gpuhash._core.Buffer(gpuhash._core.Context("cuda", 0), "uint8", (nbytes,), stream).array()
            address = held.data
        for _ in range(300):
            pass  # Python code, in which the thread may lose the GIL
        self.held[address] = held
        return address

    def deallocate(self, address, nbytes, stream):
        for _ in range(300):
            pass
        del self.held[address]


keys = numbers  # of NumPy on a GPU, too: PyTorch's own calls do not outlive the interpreter before Python 3.14
table = HashTable("int64", "int64", device=device)
if call == "named":
    table = HashTable("int64", "int64", device=device, name="shared")


def work():
    while True:
        if call in ("insert", "named"):
            table[keys] = keys
        elif call == "find":
            table.find(keys)
        elif call == "small":
            table.find(keys[:16])
        elif call == "unique":
            gpuhash.unique(keys)
        elif call == "columns":
            made = HashTable("int64", {"a": "float32"}, device=device)
            made.find_or_insert(keys)
        elif call == "memory":
            made = HashTable("int64", "int64", device=device, memory=Memory())
            made[keys] = keys
            made.clear()


for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(float(sys.argv[4]))
print("the end")
"""


@pytest.mark.long(7)  # programs, each of which imports and works for a while
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("call", ["insert", "find", "small", "unique", "columns", "memory", "named"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_daemon_threads_in_calls(device, call, threads):
    if device == "cuda":
        need_cuda()
        if threads != 1 or call == "unique":
            pytest.skip("threads, and arrays without a table, are the host's")
    place = GPU if device == "cuda" else device
    programs = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, str(place), call, str(threads), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seconds in (0.3, 0.317)
    ]
    for program in programs:
        out, err = program.communicate(timeout=60)
        assert (program.returncode, out, err) == (0, "the end\n", "")
