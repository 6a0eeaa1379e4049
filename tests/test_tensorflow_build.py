"""How the op library is compiled, cached and found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from graphs import need_tensorflow

from gpuhash import _core

PROGRAM = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import gpuhash.tensorflow as ours
table = ours.MutableHashTable("int64", "int64", -1, device="CPU:0")
table.insert([1], [2])
print(ours.library.path, table.lookup([1, 2]).numpy().tolist())
"""


def start(cache, **environment):
    return subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "GPUHASH_CACHE": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module", autouse=True)
def _tensorflow():
    need_tensorflow()
    if (Path(_core.__file__).parent / "tensorflow" / need_build().prebuilt_name()).exists():
        pytest.skip("the library was compiled ahead")


def need_build():
    from gpuhash.tensorflow import build

    return build


def test_processes_that_start_at_once_compile_once(tmp_path):
    processes = [start(tmp_path) for _ in range(3)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    paths = {out.split()[0] for out, _ in outputs}
    assert len(paths) == 1
    assert all(out.split(maxsplit=1)[1].strip() == "[2, -1]" for out, _ in outputs)
    assert sum("compiling its ops" in err for _, err in outputs) == 1
    assert sum("compiled in" in err for _, err in outputs) == 1
    again = start(tmp_path)
    out, err = again.communicate()
    assert again.returncode == 0
    assert out.split()[0] in paths
    assert "compil" not in err
    # Without a compiler, what is there is as good.
    without = start(tmp_path, CXX="no-such-compiler")
    out, err = without.communicate()
    assert without.returncode == 0, err
    assert out.split()[0] in paths
    # Another compiler makes another library: one that fails leaves nothing behind, and says what it said.
    broken = tmp_path / "c++"
    broken.write_text(
        "#!/bin/sh\ncase \"$*\" in *--version*) echo broken 1.0;; *) echo 'I am broken' >&2; exit 3;; esac\n"
    )
    broken.chmod(0o755)
    failing = start(tmp_path, CXX=str(broken))
    _, err = failing.communicate()
    assert failing.returncode != 0
    assert "ImportError" in err
    assert "I am broken" in err
    assert {str(path) for path in tmp_path.glob("*.so")} == paths


def test_no_compiler_is_a_clear_error(tmp_path):
    process = start(tmp_path, CXX="no-such-compiler")
    _, err = process.communicate()
    assert process.returncode != 0
    assert "ImportError: CXX='no-such-compiler' names no compiler" in err
    assert "install g++" in err


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path):
    file = tmp_path / "a file"
    file.write_text("")
    process = start(file / "cache")
    _, err = process.communicate()
    assert process.returncode != 0
    assert "GPUHASH_CACHE" in err


def test_a_library_made_ahead_is_used(tmp_path):
    build = need_build()
    package = Path(_core.__file__).resolve().parent
    ahead = tmp_path / "tensorflow" / build.prebuilt_name()
    ahead.parent.mkdir()
    ahead.touch()
    assert build.find_or_compile(tmp_path) == ahead
    assert build.find_or_compile(package) != ahead
