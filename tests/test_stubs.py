"""The types of the extension as gpuhash/_core.pyi tells them, against the extension itself."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpuhash
from gpuhash import _core

STUB = Path(gpuhash.__file__).with_name("_core.pyi")


def functions(tree, owner=_core, prefix=""):
    """Functions and methods of a stub, by name, with what stands for them in the extension."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and hasattr(owner, node.name):
            yield from functions(node, getattr(owner, node.name), f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
            yield prefix + node.name, node, getattr(owner, node.name)


def parameters(node):
    """Names in order, which of them only keywords give, and how many have defaults."""
    arguments = node.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args) if argument.arg != "self"]
    keywords = [argument.arg for argument in arguments.kwonlyargs]
    return positional, keywords, len(arguments.defaults), [default is not None for default in arguments.kw_defaults]


SIGNATURES = {name: (node, made) for name, node, made in functions(ast.parse(STUB.read_text()))}


def test_there_are_signatures_to_compare():
    assert {"borrow", "Table.change", "Buffer.__dlpack__", "Context.__init__"} <= SIGNATURES.keys()


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_are_those_of_the_extension(name):
    """pybind11 writes the signature into the docstring, where stubtest does not look."""
    node, made = SIGNATURES[name]
    if node.args.vararg is not None:
        with pytest.raises(TypeError, match="No constructor defined"):
            getattr(_core, name.partition(".")[0])()
        return
    signature = made.__doc__.strip().splitlines()[0]
    assert parameters(node) == parameters(ast.parse(f"def {signature}: ...").body[0])


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy, which the extra `test` installs")
def test_stubtest(tmp_path):
    """Every name of the extension is in the stub, as what it is, and the reverse."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "gpuhash._core"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MYPY_CACHE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
