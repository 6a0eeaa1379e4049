"""The installed package."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import os
import subprocess
import sys

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
