"""Tables in PyTorch's checkpoints, which torch.load takes as safe, whatever was imported first."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from support.frameworks import module
from support.samples import as_dict, items_of, random_keys, random_values

import gpuhash
from gpuhash import HashSet, HashTable

IMPORTS = {
    "torch-first": "import torch, gpuhash",
    "gpuhash-first": "import gpuhash, torch",
    "torch.serialization-first": "import gpuhash, torch.serialization",
    "torch-by-another": "import gpuhash, torch.nn as nn; import torch",
    "torch-by-name": "import gpuhash, importlib; torch = importlib.import_module('torch')",
    "looked-for-before": "import gpuhash, importlib.util as u; u.find_spec('torch.serialization'); import torch",
}


@pytest.fixture
def torch():
    return module("torch") or pytest.skip("torch is not installed")


def run(program, *arguments):
    """Output of a fresh interpreter."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def checkpoint(torch, tmp_path):
    """All that people put tables into: a module's extra state, an optimizer's, and a dict beside tensors."""

    class Embedding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.ids = HashTable("int64", "float32", value_shape=(2,), default=0.5, deterministic=True)
            self.ids[[5, 6]] = [[1.0, 2.0], [3.0, 4.0]]

        def get_extra_state(self):
            return {"ids": self.ids, "seen": HashSet.from_keys(np.array([1, 2, 3]))}

        def set_extra_state(self, state):
            self.ids = state["ids"]

    embedding = Embedding()
    optimizer = torch.optim.Adam(embedding.parameters())
    optimizer.state[embedding.weight]["rows"] = HashTable.from_items(np.array([7]), np.array([8]))
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": embedding.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, path)
    loaded = Embedding()
    loaded.ids.clear()
    loaded.load_state_dict(torch.load(path)["model"])
    assert loaded.ids == embedding.ids
    return path


PROGRAM = """
import sys
state = torch.load(sys.argv[1], weights_only=True)
table = state["model"]["_extra_state"]["ids"]
print(type(table).__name__, sorted(table), table[[6, 1]].tolist(), table.deterministic)
print(sorted(state["model"]["_extra_state"]["seen"]), state["optimizer"]["state"][0]["rows"][7], state["step"])
"""


@pytest.mark.parametrize("imports", IMPORTS)
def test_any_order_of_imports(checkpoint, imports):
    lines = run(textwrap.dedent(IMPORTS[imports]) + PROGRAM, checkpoint).splitlines()
    assert lines == ["HashTable [5, 6] [[3.0, 4.0], [0.5, 0.5]] True", "[1, 2, 3] 8 3"]


def test_nothing_is_imported_and_the_hook_goes():
    program = """
        import sys
        import gpuhash
        from gpuhash.torch.import_hook import ImportHook

        def waiting():
            return [f for f in sys.meta_path if isinstance(f, ImportHook) and f.name == "torch.serialization"]

        print("torch" in sys.modules, len(waiting()))
        import torch
        print(waiting())
        print(type(torch.serialization.__spec__.loader).__name__, torch.serialization.__file__.endswith(".py"))
    """
    if module("torch") is None:
        pytest.skip("torch is not installed")
    lines = run(program).splitlines()
    assert lines[0] == "False 1"
    assert lines[1] == "[]"
    assert lines[2] == "SourceFileLoader True"


FAKE = """
import os
if "failing" not in os.environ:
    os.environ["failing"] = "no longer"
    raise ImportError("the first import fails")
names = []
"""


@pytest.mark.parametrize("old", [False, True], ids=["with-safe-globals", "without"])
def test_an_import_that_fails_at_first(tmp_path, old):
    """And a PyTorch of before version 2.4, which has no list of safe names: nothing is to do there."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("from . import serialization")
    (tmp_path / "torch" / "serialization.py").write_text(FAKE + ("" if old else "add_safe_globals = names.extend\n"))
    program = """
        import sys
        import gpuhash
        sys.path.insert(0, sys.argv[1])
        try:
            import torch
        except ImportError as error:
            print(error)
        import torch
        print(sorted(name.__name__ for name in torch.serialization.names))
        print([f for f in sys.meta_path if type(f).__name__ == "ImportHook" and f.name == "torch.serialization"])
    """
    names = [] if old else ["HashMultiMap", "HashSet", "HashTable", "unpickle"]
    assert run(program, tmp_path).splitlines() == ["the first import fails", str(names), "[]"]


def test_without_gpuhash_the_error_says_what_is_missing(checkpoint):
    program = """
        import sys, torch
        try:
            torch.load(sys.argv[1])
        except Exception as error:
            print(error)
    """
    text = run(program, checkpoint)
    assert "gpuhash.unpickle" in text or "gpuhash.HashTable" in text


@pytest.mark.parametrize("value_dtype", ["bool", "int8", "bfloat16", "float32", "complex128", None])
@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
def test_tables_and_sets_of_any_dtype(torch, device, tmp_path, value_dtype, new_format):
    keys = random_keys("int32", (3,), 1000)
    if value_dtype is None:
        table = HashSet("int32", key_shape=(3,), device=device)
        table.add(keys)
    else:
        values = random_values(value_dtype, (len(keys), 2))
        table = HashTable("int32", value_dtype, key_shape=(3,), value_shape=(2,), device=device)
        table[keys] = values
    torch.save([table, torch.arange(3)], tmp_path / "list.pt", _use_new_zipfile_serialization=new_format)
    back, tensor = torch.load(tmp_path / "list.pt", weights_only=True)
    assert type(back) is type(table)
    assert back == table
    assert back.device == table.device
    assert tensor.tolist() == [0, 1, 2]
    if value_dtype is not None:
        assert items_of(back) == as_dict(keys, values)


def globals_of(*names):
    """The opening of a pickle for torch.load: each name put on the stack."""
    return b"\x80\x02" + b"".join(b"c" + module.encode() + b"\n" + name.encode() + b"\n" for module, name in names)


HOSTILE = {
    "a state without a table": globals_of(("gpuhash", "HashTable")) + b")\x81}X\x05\0\0\0_coreK\x01sb.",
    "another class": globals_of(("gpuhash", "unpickle"), ("torch", "Tensor")) + b"X\x03\0\0\0cpu\x86R.",
    "a device that is no name": globals_of(("gpuhash", "unpickle"), ("gpuhash", "HashTable")) + b"K\x01\x86R.",
    "no bytes": globals_of(("gpuhash", "unpickle"), ("gpuhash", "HashTable")) + b"X\x03\0\0\0cpu\x86R.",
    "text": globals_of(("gpuhash", "unpickle"), ("gpuhash", "HashTable")) + b"X\x03\0\0\0cpuX\x03\0\0\0abc\x87R.",
    "another name": globals_of(("gpuhash", "open")) + b"X\x03\0\0\0abc\x85R.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_checkpoints_that_lie(torch, kind):
    from pickle import UnpicklingError

    from torch import _weights_only_unpickler as unpickler

    class OneFile:
        def __init__(self, data):
            self.data = memoryview(data)

        def read(self, count):
            part, self.data = bytes(self.data[:count]), self.data[count:]
            return part

        def readline(self):
            return self.read(bytes(self.data).index(b"\n") + 1)

    assert gpuhash.HashTable in torch.serialization.get_safe_globals()
    with pytest.raises((UnpicklingError, TypeError, ValueError)):
        unpickler.load(OneFile(HOSTILE[kind]))
