"""Models with a table, exported: run in this process, in another that has a table of the name, and without Python."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.torch_ops import need_torch_ops

import gpuhash
from gpuhash import HashSet, HashTable, _core
from gpuhash.building.compiled_ops import find_compiler

torch, ours = need_torch_ops()

NAME = "exported"
PACKAGE = Path(_core.__file__).resolve().parent


class Model(torch.nn.Module):
    """Looks up, changes, and looks up again."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = ours.TableModule(table)
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, keys: Any) -> Any:
        before, found = self.table.find(keys)
        self.table.insert_or_assign(keys, (before + 1).detach())
        self.table.erase(keys[:1])
        return self.table.find(keys, -1.0)[0] * self.scale, found


def run_model(model: dict[int, list[float]], keys: list[int]) -> tuple[list[list[float]], list[bool]]:
    """The same with a dict."""
    found = [key in model for key in keys]
    for key in keys:
        model[key] = [value + 1 for value in model.get(key, [0.0, 0.0])]
    model.pop(keys[0])
    return [[value * 2 for value in model.get(key, [-1.0, -1.0])] for key in keys], found


def filled(where: str, name: str | None = None) -> HashTable:
    table = HashTable("int64", "float32", value_shape=(2,), device=where, name=name)
    keys = torch.arange(3, device=where)
    table[keys] = torch.stack([keys * 10.0 + 10, keys * 10.0 + 11], 1)
    return table


MODEL = {0: [10.0, 11.0], 1: [20.0, 21.0], 2: [30.0, 31.0]}


def exported(table: HashTable) -> Any:
    keys = torch.arange(4, device=table.device)
    lengths = ({0: torch.export.Dim("n", min=2, max=1 << 20)},)
    return torch.export.export(Model(table).to(table.device), (keys,), dynamic_shapes=lengths)


@pytest.mark.parametrize("strict", [False, True])
def test_in_this_process(on_device, strict):
    where = on_device.table_device
    table = filled(where)
    keys = torch.arange(4, device=where)
    program = torch.export.export(Model(table).to(where), (keys,), strict=strict)
    assert len(table) == 3  # exporting runs nothing
    model = dict(MODEL)
    for _ in range(2):
        values, found = program.module()(keys)
        assert (values.tolist(), found.tolist()) == run_model(model, keys.tolist())
    assert dict(zip(*(part.tolist() for part in table.items("torch")), strict=True)) == model


def test_a_plain_table_that_is_only_read(on_device, request):
    """Dynamo traces the table's methods; without it, under fake tensors, they say what to do."""
    where = on_device.table_device
    table = filled(where, request.node.name)

    class Reader(torch.nn.Module):
        def forward(self, keys: Any) -> Any:
            return table.find(keys)[0] + table.contains(keys)[:, None]

    keys = torch.arange(2, 5, device=where)
    with pytest.raises(TypeError, match=r"fake tensor.*TableModule.*strict=True"):
        torch.export.export(Reader(), (keys,), strict=False)
    program = torch.export.export(Reader(), (keys,), strict=True)
    assert torch.equal(program.module()(keys), Reader()(keys))
    table.close()


def test_sets_sizes_and_unique(on_device):
    where = on_device.table_device
    made = HashSet("int64", device=where)

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = ours.TableModule(made)

        def forward(self, keys: Any) -> Any:
            values, counts = gpuhash.unique(keys, return_counts=True)
            new = self.seen.add(values)
            return values, counts, new, keys + self.seen.size()

    keys = torch.tensor([5, 3, 5, 7], device=where)
    values, counts, new, shifted = torch.export.export(Counter(), (keys,), strict=True).module()(keys)
    assert (values.tolist(), counts.tolist(), new.tolist()) == ([5, 3, 7], [2, 1, 1], [True] * 3)
    assert shifted.tolist() == [8, 6, 8, 10]
    assert sorted(made) == [3, 5, 7]


class OfColumns(torch.nn.Module):
    """Every op, with lists of several columns, and the table's defaults."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = ours.TableModule(table)

    def forward(self, keys: Any) -> Any:
        table = self.table
        before = table.setdefault(keys, {"weight": keys.float(), "z": torch.complex(keys.float(), keys.float())})
        table[keys[1:]] = {"count": keys[1:] + 10}
        table.insert_or_apply(keys, {"count": 1, "weight": 0.5}, {"weight": "max", "count": "add"})
        _, is_new = table.find_or_insert(keys + 1, {"count": keys})
        popped = table.pop(keys[:2], {"count": 3})
        absent = table.find(keys, columns=["count", "z"])[0]
        del table[keys[2:3]]
        return before["count"], before["z"], is_new, popped["weight"], popped["z"], absent["count"], absent["z"]


def columned(where: str, name: str | None = None) -> HashTable:
    columns = {"weight": "float32", "count": "int64", "z": "complex64"}
    table = HashTable("int64", columns, device=where, name=name, default={"count": 7, "z": 2j})
    table[torch.arange(2, device=where)] = {"count": 100}
    return table


def values_of(table: HashTable) -> dict[int, tuple[Any, ...]]:
    keys, columns = table.items("torch")
    columns = zip(*(column.tolist() for column in columns.values()), strict=True)
    return dict(zip(keys.tolist(), columns, strict=True))


@pytest.mark.parametrize("strict", [False, True])
def test_named_columns(on_device, strict):
    where = on_device.table_device
    table, plain = columned(where), columned(where)
    keys = torch.arange(4, device=where)
    program = torch.export.export(OfColumns(table), (keys,), strict=strict)
    assert values_of(table) == values_of(plain)  # exporting runs nothing
    for got, expected in zip(program.module()(keys), OfColumns(plain)(keys), strict=True):
        assert torch.equal(got, expected)
    assert values_of(table) == values_of(plain)


def crash_of(path: str, modules: str) -> str:
    """How a process with these modules dies that loads what AOTInductor has made; empty where it does not."""
    script = f"import sys, {modules}; torch._inductor.aoti_load_package(sys.argv[1])"
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", script, path]
    done = subprocess.run(command, check=False, timeout=300, capture_output=True, text=True)
    return f"signal {-done.returncode}\n{done.stderr}" if done.returncode < 0 else ""


def need_loading(where: str, package: str | Path, folder: Path) -> None:
    """Skips where the process would crash, as it does by a model of PyTorch's own operations alone."""
    crash = crash_of(str(package), "torch, gpuhash.torch.library")
    if crash:
        program = torch.export.export(torch.nn.Linear(2, 2).to(where), (torch.ones(1, 2, device=where),))
        plain = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "plain.pt2"))
        assert crash_of(plain, "torch"), f"a model of PyTorch's own operations is loaded, and this one is not: {crash}"
        pytest.skip("AOTInductor's models crash here when they are loaded, those of PyTorch's own operations as well")


@pytest.mark.long(60)
def test_named_columns_compiled_ahead(on_device, tmp_path):
    where = on_device.table_device
    table, plain = columned(where), columned(where)
    keys = torch.arange(4, device=where)
    program = torch.export.export(OfColumns(table), (keys,))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "columns.pt2"))
    need_loading(where, package, tmp_path)
    run = torch._inductor.aoti_load_package(package)
    for got, expected in zip(run(keys), OfColumns(plain)(keys), strict=True):
        assert torch.equal(got, expected)
    assert values_of(table) == values_of(plain)


PROGRAM = """
import sys
import torch, gpuhash, gpuhash.torch.library
device, path, compiled = sys.argv[1:]
def make():
    table = gpuhash.HashTable("int64", "float32", value_shape=(2,), device=device, name="exported")
    keys = torch.arange(3, device=device)
    table[keys] = torch.stack([keys * 10.0 + 10, keys * 10.0 + 11], 1)
    return table
keys = torch.arange(1, 5, device=device)
run = torch._inductor.aoti_load_package(path) if compiled == "True" else torch.export.load(path).module()
# What AOTInductor before PyTorch 2.13 makes does not look whether an op has failed, and goes on without its results.
sees_errors = compiled == "False" or torch.__version__ >= "2.13"
def need_error(what, message):
    try:
        run(keys)
    except (ValueError, RuntimeError) as error:
        assert compiled == "True" or message in str(error), error
    else:
        raise SystemExit("it ran with " + what)
if sees_errors:
    need_error("no table", "no table of this process has the handle")
table = make()
for _ in range(2):
    print(run(keys)[0].tolist(), len(table))
wrong = table.close() or gpuhash.HashTable("int32", "float32", name="exported", device=device)
if sees_errors:
    need_error("a table of another kind", "keys are int64, and the table has keys of int32")
"""


def expected_lines() -> list[str]:
    model, lines = dict(MODEL), []
    for _ in range(2):
        values, _ = run_model(model, [1, 2, 3, 4])
        lines.append(f"{values} {len(model)}")
    return lines


def run_elsewhere(where: str, path: Path, compiled: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", PROGRAM, where, str(path), str(compiled)]
    return subprocess.run(command, check=False, timeout=300, capture_output=True, text=True)


def test_in_another_process(on_device, tmp_path):
    where = on_device.table_device
    table = filled(where, NAME)
    torch.export.save(exported(table), tmp_path / "model.pt2")
    table.close()
    ran = run_elsewhere(where, tmp_path / "model.pt2", compiled=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == expected_lines()


@pytest.mark.long(250)
def test_compiled_ahead(on_device, tmp_path):
    """By AOTInductor: in another process with Python, and in a C++ program without."""
    where = on_device.table_device
    table = filled(where, NAME)
    package = tmp_path / "model.pt2"
    torch._inductor.aoti_compile_and_package(exported(table), package_path=str(package))
    table.close()
    need_loading(where, package, tmp_path)
    ran = run_elsewhere(where, package, compiled=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == expected_lines()
    if where != "cpu":
        return  # the program below makes a table on the host
    pytorch = Path(torch.__file__).parent
    program = tmp_path / "run_exported"
    build = [
        *(*find_compiler(), "-std=c++20", "-O0", str(Path(__file__).parent / "run_exported.cpp"), "-o", str(program)),
        *(f"-I{PACKAGE / 'include'}", "-isystem", str(pytorch / "include")),
        *(f"-L{PACKAGE}", "-l:libgpuhash.so", f"-L{pytorch / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"),
        *(f"-Wl,-rpath,{PACKAGE}:{pytorch / 'lib'}", "-pthread"),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(build)}\n{done.stderr}"
    ran = subprocess.run(
        [str(program), str(ours.library.path), str(package)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "LD_LIBRARY_PATH": ""},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    model, lines = dict(MODEL), ["no table"]
    for _ in range(2):
        values, _ = run_model(model, [1, 2, 3, 4])
        numbers = " ".join(f"{number:g}" for row in values for number in row)
        lines.append(f"{numbers} of {len(model)} keys")
    assert ran.stdout.splitlines() == lines
