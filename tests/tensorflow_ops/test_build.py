"""How the op library is compiled, cached and found."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.compiler import StandIn
from support.graphs import need_tensorflow

from gpuhash import _core

PACKAGE = Path(_core.__file__).resolve().parent
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
    if (PACKAGE / "tensorflow" / need_ops().prebuilt_name).exists():
        pytest.skip("the library was compiled ahead")


def need_ops():
    from gpuhash.tensorflow.build import op_library

    return op_library


def test_processes_that_start_at_once_compile_once(tmp_path):
    compiler = StandIn(tmp_path, need_ops().find_or_compile(PACKAGE))
    processes = [start(tmp_path, CXX=str(compiler.path)) for _ in range(3)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    paths = {out.split()[0] for out, _ in outputs}
    assert len(paths) == 1
    assert all(out.split(maxsplit=1)[1].strip() == "[2, -1]" for out, _ in outputs)
    assert sum("compiling its ops" in err for _, err in outputs) == 1
    assert sum("compiled in" in err for _, err in outputs) == 1
    assert compiler.times_linked() == 1
    again = start(tmp_path, CXX=str(compiler.path))
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
    ops = need_ops()
    ahead = tmp_path / "tensorflow" / ops.prebuilt_name
    ahead.parent.mkdir()
    ahead.touch()
    assert ops.find_or_compile(tmp_path) == ahead
    assert ops.find_or_compile(PACKAGE) != ahead


# Whom the cache trusts -----------------------------------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A cache with one library in it, made by a compiler that is quick about it."""
    ops = need_ops()
    monkeypatch.setenv("GPUHASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(type(ops), "compile", lambda _, output, *__: output.write_bytes(b"ops"))
    umask = os.umask(0o022)
    yield ops.find_or_compile(PACKAGE)
    os.umask(umask)


def test_a_cache_that_is_made_is_private(cached):
    assert stat.S_IMODE(cached.parent.stat().st_mode) == 0o700
    assert need_ops().find_or_compile(PACKAGE) == cached


def test_what_is_compiled_can_be_written_by_its_owner_alone(tmp_path, monkeypatch):
    """Whatever the umask: a cache must take the library that it made."""
    ops = need_ops()
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\numask 0\n: > "$2"\nchmod 777 "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    ops.compile(tmp_path / "made.so", PACKAGE / "include", PACKAGE, str(PACKAGE))
    assert stat.S_IMODE((tmp_path / "made.so").stat().st_mode) == 0o755


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702], ids=oct)
def test_a_folder_that_others_can_write_to_is_refused(cached, mode):
    cached.parent.chmod(mode)
    with pytest.raises(ImportError, match=r"can be written by other users.*chmod go-w.*GPUHASH_CACHE"):
        need_ops().find_or_compile(PACKAGE)


@pytest.mark.parametrize("mode", [0o770, 0o666, 0o702], ids=oct)
def test_a_library_that_others_can_write_to_is_refused(cached, mode):
    cached.chmod(mode)
    with pytest.raises(ImportError, match=r"can be written by other users.*remove it.*GPUHASH_CACHE"):
        need_ops().find_or_compile(PACKAGE)


@pytest.mark.parametrize("kind", ["folder", "library"])
def test_what_belongs_to_another_is_refused(cached, monkeypatch, kind):
    ops = need_ops()
    path = cached if kind == "library" else cached.parent
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    elif kind == "library":
        pytest.skip("only root can give one of both away")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ImportError, match=r"belongs to user \d+.*GPUHASH_CACHE"):
        ops.find_or_compile(PACKAGE)


def test_symbolic_links(cached, tmp_path, monkeypatch):
    """One to a folder is followed, and what it leads to is checked; one in the place of the library is refused."""
    ops = need_ops()
    link = tmp_path / "link"
    link.symlink_to(cached.parent)
    monkeypatch.setenv("GPUHASH_CACHE", str(link))
    assert ops.find_or_compile(PACKAGE) == cached
    cached.parent.chmod(0o777)
    with pytest.raises(ImportError, match="can be written by other users"):
        ops.find_or_compile(PACKAGE)
    cached.parent.chmod(0o700)
    cached.rename(tmp_path / "elsewhere.so")
    cached.symlink_to(tmp_path / "elsewhere.so")
    with pytest.raises(ImportError, match="is not a regular file"):
        ops.find_or_compile(PACKAGE)


def test_below_a_folder_that_all_may_write_to(cached, tmp_path, monkeypatch):
    """As in /tmp, where the sticky bit keeps others from renaming what is not theirs; without it they could."""
    ops = need_ops()
    everybodys = tmp_path / "everybody's"
    everybodys.mkdir()
    monkeypatch.setenv("GPUHASH_CACHE", str(everybodys / "cache"))
    everybodys.chmod(0o1777)
    made = ops.find_or_compile(PACKAGE)
    assert made == everybodys / "cache" / cached.name
    everybodys.chmod(0o777)
    with pytest.raises(ImportError, match=r"every user can rename.*chmod \+t.*GPUHASH_CACHE"):
        ops.find_or_compile(PACKAGE)


def test_an_import_from_a_cache_of_everybody_fails(tmp_path):
    tmp_path.chmod(0o777)
    process = start(tmp_path)
    _, err = process.communicate()
    assert process.returncode != 0
    assert "ImportError: gpuhash.tensorflow loads no compiled ops that others may have made" in err
    assert "compiling" not in err
