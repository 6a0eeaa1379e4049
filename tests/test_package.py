"""The installed package."""

from __future__ import annotations

import ast
import graphlib
import importlib.machinery
import importlib.metadata
import importlib.resources
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpuhash


def python(*arguments: str, **environment: str) -> str:
    """Output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-P", *arguments],  # the installed package, not the sources in the working directory
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version_is_that_of_the_metadata():
    assert gpuhash.__version__ == importlib.metadata.version("gpuhash")


def test_the_module_describes_itself():
    text = python("-m", "gpuhash")
    assert gpuhash.__version__ in text
    assert "cpu" in text
    assert "cuda" in text


def test_types_are_shipped():
    files = importlib.resources.files("gpuhash")
    assert (files / "py.typed").is_file()
    assert (files / "_core.pyi").is_file()


def imports_of(source: str, module: str, *, is_package: bool) -> set[str]:
    """The modules of gpuhash that a module imports when it is imported itself."""
    package = module if is_package else module.rpartition(".")[0]
    found = set()
    for node in ast.parse(source).body:  # neither in functions nor under TYPE_CHECKING
        if isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, (base, node.module)))
            own = {name} - {package}  # which is there already
            found |= own | {f"{name}.{alias.name}" for alias in node.names}
    return found


def test_no_circle_of_imports():
    """Each module imports only what is below it. Packages are there before their modules."""
    root = Path(str(importlib.resources.files("gpuhash")))
    modules = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        modules[".".join(parts[:-1] if is_package else parts)] = (path, is_package)
    graph = {
        name: (imports_of(path.read_text(), name, is_package=is_package) & modules.keys()) - {name, "gpuhash"}
        for name, (path, is_package) in modules.items()
        if name != "gpuhash"
    }
    assert len(graph) > 60
    order = list(graphlib.TopologicalSorter(graph).static_order())  # CycleError where there is one
    assert order.index("gpuhash.arrays.batch") < order.index("gpuhash.call") < order.index("gpuhash.table")


def test_works_with_the_gpu_hidden():
    script = "import gpuhash; t = gpuhash.HashTable('int64', 'int64'); t[[1, 2]] = [3, 4]; print(t[2])"
    assert python("-c", script, CUDA_VISIBLE_DEVICES="").strip() == "4"


def test_a_hidden_gpu_is_explained():
    script = (
        "import gpuhash\n"
        "try:\n"
        "    gpuhash.HashTable('int64', 'int64', device='cuda')\n"
        "except gpuhash.PlatformError as error:\n"
        "    print(error)\n"
    )
    assert len(python("-c", script, CUDA_VISIBLE_DEVICES="").strip()) > 20


def test_importing_it_imports_no_framework():
    script = (
        "import sys, gpuhash; t = gpuhash.HashTable('int64', 'int64'); t[1] = 2; "
        "print([m for m in ('torch', 'tensorflow', 'jax', 'cupy') if m in sys.modules])"
    )
    assert python("-c", script).strip() == "[]"


def test_public_names():
    for name in ("HashTable", "HashSet", "open", "load", "TableFullError", "CudaError", "PlatformError"):
        assert name in gpuhash.__all__
        assert getattr(gpuhash, name).__doc__ or name.endswith("Error")


def test_public_methods_are_documented():
    missing = [
        f"{kind.__name__}.{name}"
        for kind in (gpuhash.HashTable, gpuhash.HashSet)
        for name in dir(kind)
        if not name.startswith("_") and not getattr(kind, name).__doc__
    ]
    assert missing == []


def test_tables_left_at_exit_do_not_crash():
    script = (
        "import gpuhash, numpy as np\n"
        "t = gpuhash.HashTable('int64', 'float32', value_shape=(3,), name='left')\n"
        "t[np.arange(1000)] = 1\n"
        "rows = t.row_storage\n"
        "keys = t.keys(like='buffer')\n"
        "print(len(t))\n"
    )
    assert python("-c", script).strip() == "1000"


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    """A folder with the package's Python files and no extension, as the checkout is."""
    package = Path(gpuhash.__path__[0])
    shutil.copytree(package, tmp_path / "gpuhash", ignore=shutil.ignore_patterns("*.so", "include", "__pycache__"))
    return tmp_path


def failure(folder: Path, *arguments: str, **environment: str) -> str:
    """The last line of what an interpreter in a folder says when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "", **environment},
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("arguments", [("-c", "import gpuhash"), ("-c", "import gpuhash.torch"), ("-m", "gpuhash")])
def test_the_source_folder_says_in_one_line_what_to_do(source_folder, arguments):
    installed = Path(gpuhash._core.__file__).resolve().parent
    message = failure(source_folder, *arguments, PYTHONPATH=str(installed.parent))
    assert f"{source_folder / 'gpuhash'} is gpuhash's source folder" in message
    assert f"hides the installed package, {installed}" in message
    assert "python -P" in message


def test_without_an_installed_package_the_source_folder_says_to_install(source_folder):
    message = failure(
        source_folder, "-I", "-S", "-c", f"import sys; sys.path[:0] = [{str(source_folder)!r}]; import gpuhash"
    )
    assert "source folder" in message
    assert "pip install ." in message
    assert "hides" not in message


def test_the_extension_of_another_python_is_named(source_folder):
    (source_folder / "gpuhash" / "_core.cpython-39-x86_64-linux-gnu.so").touch()
    message = failure(source_folder, "-c", "import gpuhash")
    assert "_core.cpython-39-x86_64-linux-gnu.so" in message
    assert f"this is Python {sys.version_info[0]}.{sys.version_info[1]}" in message


def test_an_extension_that_does_not_load_says_why(source_folder):
    """And not that it is missing."""
    (source_folder / "gpuhash" / f"_core{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    message = failure(source_folder, "-c", "import gpuhash")
    assert "source folder" not in message
    assert "_core" in message


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import sys
sys.path[:] = {path!r}
script = '''
try:
    import gpuhash
except ImportError as error:
    print(error, flush=True)
'''
{before}
number = interpreters.create("legacy") if sys.version_info >= (3, 13) else interpreters.create(isolated=False)
interpreters.run_string(number, "import sys; sys.path[:] = " + repr(sys.path) + script)
{after}
"""


@pytest.mark.parametrize("before", ["", "import gpuhash"], ids=["first", "after the main one"])
def test_a_subinterpreter_is_refused(before):
    """pybind11 waits there for a GIL that its own thread holds."""
    after = "import gpuhash; print(len(gpuhash.HashSet('int64')))"
    script = SUBINTERPRETER.format(path=sys.path, before=before, after=after)
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    refusal, size = done.stdout.splitlines()
    assert "subinterpreter" in refusal
    assert "WSGIApplicationGroup %{GLOBAL}" in refusal
    assert size == "0"
