"""save and load: safetensors that anyone reads; damaged and hostile files are ValueErrors, never a crash."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import pickle
import signal
import stat
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.frameworks import GPU, module, to_numpy
from support.samples import (
    KEY_TYPES,
    VALUE_DTYPES,
    as_bytes,
    as_dict,
    items_of,
    random_keys,
    random_values,
    same_bytes,
    type_name,
)

import gpuhash
from gpuhash import HashSet, HashTable
from gpuhash.arrays.export import export_apart
from gpuhash.files import whole_file


def sample(device="cpu", count=50, value_shape=(2,)):
    keys, values = random_keys("int64", (), count), random_values("float32", (count, *value_shape))
    table = HashTable("int64", "float32", value_shape=value_shape, device=device)
    table[keys] = values
    return table, keys, values


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=type_name)
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_round_trip_of_keys(device, tmp_path, key_type, value_shape):
    dtype, shape = key_type
    keys = random_keys(dtype, shape, 1000)
    values = random_values("float32", (len(keys), *value_shape))
    table = HashTable(dtype, "float32", key_shape=shape, value_shape=value_shape, device=device, max_load_factor=0.7)
    table[keys] = values
    table.save(tmp_path / "table.safetensors")
    back = HashTable.load(tmp_path / "table.safetensors", device=device)
    assert items_of(back) == as_dict(keys, values)
    assert back == table
    assert back.device == table.device
    assert (back.key_shape, back.value_shape) == (shape, value_shape)
    assert back.max_load_factor == 0.7


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_round_trip_of_values(device, tmp_path, dtype, value_shape):
    keys, values = random_keys("int64", (), 300), random_values(dtype, (300, *value_shape))
    table = HashTable("int64", dtype, value_shape=value_shape, device=device)
    table[keys] = values
    table.save(tmp_path / "table.safetensors")
    back = HashTable.load(str(tmp_path / "table.safetensors"), device=device)
    assert back.value_dtype == dtype
    assert items_of(back) == as_dict(keys, values)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "bfloat16", "float32", "float64"])
def test_the_safetensors_package_reads_it(tmp_path, dtype):
    load_file = pytest.importorskip("safetensors.torch").load_file
    keys, values = random_keys("int32", (3,), 300), random_values(dtype, (300, 2))
    table = HashTable("int32", dtype, key_shape=(3,), value_shape=(2,))
    table[keys] = values
    table.save(tmp_path / "table.safetensors")
    tensors = load_file(tmp_path / "table.safetensors")
    assert as_dict(to_numpy(tensors["keys"]), to_numpy(tensors["values"])) == as_dict(keys, values)


def test_options_are_saved(tmp_path):
    table = HashTable("int64", "float32", capacity=100, growth=False, deterministic=True, default=2.5)
    table[1] = 4.0
    table.save(tmp_path / "table.safetensors")
    back = HashTable.load(tmp_path / "table.safetensors")
    assert back.deterministic
    assert back.max_capacity == table.max_capacity
    assert back.default == 2.5


def test_empty_tables_and_sets(device, tmp_path):
    HashTable("int64", "float32", value_shape=(3,), device=device).save(tmp_path / "empty.safetensors")
    back = gpuhash.load(tmp_path / "empty.safetensors", device=device)
    assert isinstance(back, HashTable)
    assert len(back) == 0
    assert back.value_shape == (3,)
    made = HashSet("int32", key_shape=(2,), device=device)
    made.add([[1, 2], [3, 4]])
    made.save(tmp_path / "set.safetensors")
    back = gpuhash.load(tmp_path / "set.safetensors", device=device)
    assert isinstance(back, HashSet)
    assert back == made
    with pytest.raises(ValueError, match=r"(?i)set"):
        HashTable.load(tmp_path / "set.safetensors")
    with pytest.raises(ValueError, match=r"(?i)table"):
        HashSet.load(tmp_path / "empty.safetensors")


def test_saved_on_one_device_loads_on_the_other(cuda, tmp_path):
    table, keys, values = sample(cuda, 5000)
    table.save(tmp_path / "table.safetensors")
    assert items_of(HashTable.load(tmp_path / "table.safetensors")) == as_dict(keys, values)
    HashTable.load(tmp_path / "table.safetensors").save(tmp_path / "again.safetensors")
    assert items_of(HashTable.load(tmp_path / "again.safetensors", device=GPU)) == as_dict(keys, values)


def test_loading_with_a_name(tmp_path):
    table, _, _ = sample()
    table.save(tmp_path / "table.safetensors")
    named = HashTable.load(tmp_path / "table.safetensors", name="loaded")
    assert gpuhash.open("loaded") == table
    named.close()


ODD_BOOLS = np.array([0, 1, 2, 255, 0, 128], np.uint8).view(bool)  # all bytes but 0 are True


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_bools_of_any_byte(native, tmp_path, value_shape):
    keys = np.arange(6)
    values = np.stack([ODD_BOOLS] * 3, axis=1) if value_shape else ODD_BOOLS
    table = HashTable("int64", "bool", value_shape=value_shape, device=native.table_device)
    table[native.array(keys)] = native.array(values)
    for back in saved_and_back(table, tmp_path):
        assert back == table
        same_bytes(back[keys], values.view(np.uint8) != 0)


def test_bools_of_any_byte_in_the_rows(on_device, tmp_path):
    keys, values = np.arange(20), random_values("bool", (20, 3))
    table = HashTable("int64", "bool", value_shape=(3,), device=on_device.table_device)
    table[keys] = values
    rows = table.row_storage
    rows.view(np.uint8 if on_device.name == "numpy" else module("torch").uint8)[...] *= 2
    for back in saved_and_back(table, tmp_path):
        same_bytes(back[keys], values)


@pytest.mark.parametrize("shape", [(), (6,)], ids=["scalar", "rows"])
def test_defaults_of_any_bool(native, tmp_path, shape):
    default = native.array(ODD_BOOLS if shape else ODD_BOOLS[2:3].reshape(()))
    table = HashTable("int64", "bool", value_shape=shape, device=native.table_device, default=default)
    for back in saved_and_back(table, tmp_path):
        same_bytes(np.array(back.default), ODD_BOOLS.view(np.uint8) != 0 if shape else np.array(True))


def saved_and_back(table, tmp_path):
    """By a file, which holds 0 and 1 alone, so that any reader sees the same; and by a pickle."""
    path = tmp_path / "table.safetensors"
    table.save(path)
    header, data = split(path)
    for name, entry in header.items():
        if entry.get("dtype") == "BOOL":
            assert set(data[slice(*entry["data_offsets"])]) <= {0, 1}, name
    return [gpuhash.load(path, device=table.device), pickle.loads(pickle.dumps(table))]


@pytest.mark.parametrize("value_shape", [(), (3,)], ids=["scalar", "rows"])
def test_files_with_bools_of_any_byte(device, tmp_path, value_shape):
    """As they were written once, when they were refused."""
    path = tmp_path / "table.safetensors"
    keys = np.arange(6)
    table = HashTable("int64", "bool", value_shape=value_shape, default=True)
    table[keys] = np.ones((6, *value_shape), bool)
    table.save(path)
    header, data = split(path)
    begin, end = header["values"]["data_offsets"]
    said = np.resize(ODD_BOOLS, (6, *value_shape))
    data = data[:begin] + said.tobytes() + data[end:]
    header["__metadata__"]["default"] = "02" * int(np.prod(value_shape))
    path.write_bytes(join(header, data))
    back = HashTable.load(path, device=device)
    mine, values = back.items()
    order = np.frombuffer(data[slice(*header["keys"]["data_offsets"])], np.int64)
    assert items_of(back) == as_dict(order, said.view(np.uint8) != 0)
    same_bytes(np.array(back.default), np.ones(value_shape, bool))
    assert len(mine) == len(values) == 6


@pytest.mark.parametrize("length", [1, 237, 238, 255])
def test_file_names_of_any_length(tmp_path, length):
    """A temporary file is written first, beside it."""
    table, _, _ = sample()
    path = tmp_path / ("t" * length)
    table.save(path)
    assert HashTable.load(path) == table
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("dtype", ["float32", "complex128", "bool"])
def test_values_of_as_many_axes_as_numpy_has(device, tmp_path, dtype):
    shape = (1,) * 61 + (2, 1)
    keys, values = np.arange(3), random_values(dtype, (3, *shape))
    table = HashTable("int64", dtype, value_shape=shape, device=device)
    table[keys] = values
    same_bytes(table[keys], values)
    path = tmp_path / "table.safetensors"
    table.save(path)
    assert HashTable.load(path, device=device) == table
    assert pickle.loads(pickle.dumps(table)) == table
    header, data = split(path)
    header["__metadata__"]["value_shape"] = json.dumps((*shape, 1))
    path.write_bytes(join(header, data))
    with pytest.raises(ValueError, match="not supported"):
        HashTable.load(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        HashTable.load(tmp_path / "nothing.safetensors")


def test_a_failed_save_keeps_the_old_file(tmp_path):
    table, _, _ = sample()
    table.save(tmp_path / "table.safetensors")
    with pytest.raises(OSError):
        table.save(tmp_path / "no folder" / "table.safetensors")
    assert HashTable.load(tmp_path / "table.safetensors") == table


@pytest.fixture(params=["nameless", "named"])
def temporary(request, monkeypatch):
    """Both ways to write a file that appears whole: file systems differ."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE")


def test_a_missing_folder_is_named_as_it_was_given(tmp_path, temporary, monkeypatch):
    table, _, _ = sample()
    monkeypatch.chdir(tmp_path)
    for path in ("nowhere/table.safetensors", tmp_path / "nowhere" / "table.safetensors"):
        with pytest.raises(FileNotFoundError) as caught:
            table.save(path)
        assert caught.value.filename == str(path)
        assert ".tmp" not in str(caught.value)
    with pytest.raises(IsADirectoryError):
        table.save(tmp_path)
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        table.save("round")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["round"]


def test_a_link_stays_and_leads_to_what_is_saved(tmp_path, temporary):
    table, _, _ = sample()
    (tmp_path / "folder").mkdir()
    for there in (False, True):  # the second time the link does not dangle
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("middle")
        (tmp_path / "middle").unlink(missing_ok=True)
        (tmp_path / "middle").symlink_to("folder/table.safetensors")
        assert (tmp_path / "link").exists() == there
        table.save(tmp_path / "link")
        assert (tmp_path / "link").readlink() == Path("middle")
        assert HashTable.load(tmp_path / "folder" / "table.safetensors") == table
        table[[123]] = 7.0
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["folder", "link", "middle", "table.safetensors"]


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o664, 0o4755], ids=oct)
def test_a_file_that_is_replaced_keeps_its_mode_and_owner(tmp_path, temporary, mode):
    table, _, _ = sample()
    path = tmp_path / "table.safetensors"
    path.write_bytes(b"old")
    owner = (12345, 23456) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(path, *owner)
    path.chmod(mode)
    table.save(path)
    now = path.stat()
    assert oct(stat.S_IMODE(now.st_mode)) == oct(mode)
    assert (now.st_uid, now.st_gid) == owner
    assert HashTable.load(path) == table


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)], ids=oct)
def test_a_new_file_has_the_mode_of_the_umask(tmp_path, temporary, umask, mode):
    table, _, _ = sample()
    before = os.umask(umask)
    try:
        table.save(tmp_path / "table.safetensors")
    finally:
        os.umask(before)
    assert oct(stat.S_IMODE((tmp_path / "table.safetensors").stat().st_mode)) == oct(mode)


def test_a_pipe_is_written_into(tmp_path):
    table, _, _ = sample()
    os.mkfifo(tmp_path / "pipe")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_bytes)
        table.save(tmp_path / "pipe")
        (tmp_path / "table.safetensors").write_bytes(read.result(timeout=60))
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert HashTable.load(tmp_path / "table.safetensors") == table


KILLED = """
import os, signal, sys
if sys.argv[2] == "named":
    del os.O_TMPFILE
from gpuhash.files import whole_file

def write(file):
    file.write(b"x" * 100_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

whole_file.write_whole(sys.argv[1], write)
"""


@pytest.mark.parametrize("way", ["nameless", "named"])
def test_a_killed_save_leaves_nothing_for_good(tmp_path, way):
    table, _, _ = sample()
    path = tmp_path / "table.safetensors"
    path.write_bytes(b"old")
    ended = subprocess.run([sys.executable, "-P", "-c", KILLED, str(path), way], check=False)
    assert ended.returncode == -signal.SIGKILL
    left = [each.name for each in tmp_path.iterdir() if each != path]
    assert len(left) == (way == "named")
    assert path.read_bytes() == b"old"
    table.save(path)
    assert list(tmp_path.iterdir()) == [path]
    assert HashTable.load(path) == table


def test_files_that_others_write_are_no_leftovers(tmp_path, temporary):
    """Two threads save into one folder: what the other one has not finished stays."""
    table, _, _ = sample()
    others = [".gpuhash.0123456789ab.tmp.safetensors", ".gpuhash.mine.tmp", "x.gpuhash.0123456789ab.tmp"]
    for name in others:
        (tmp_path / name).write_bytes(b"kept")
    (tmp_path / ".gpuhash.0123456789ab.tmp").write_bytes(b"left behind")

    def write(file):
        file.write(b"first half, ")
        file.flush()
        table.save(tmp_path / "table.safetensors")
        file.write(b"second half")

    whole_file.write_whole(tmp_path / "slow", write)
    assert (tmp_path / "slow").read_bytes() == b"first half, second half"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, "slow", "table.safetensors"])


def test_errors_while_writing_leave_nothing(tmp_path, temporary):
    (tmp_path / "table").write_bytes(b"old")

    def fail(file):
        file.write(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        whole_file.write_whole(tmp_path / "table", fail)
    assert caught.value.filename == str(tmp_path / "table")
    assert [each.name for each in tmp_path.iterdir()] == ["table"]
    assert (tmp_path / "table").read_bytes() == b"old"


def split(path):
    """Header as a dict, and the data bytes."""
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def join(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def saved(tmp_path):
    table, _, _ = sample()
    path = tmp_path / "table.safetensors"
    table.save(path)
    return path


def test_truncated_anywhere(saved):
    blob = saved.read_bytes()
    for length in {*range(0, len(blob) - 1, 3), *range(20), len(blob) - 1}:
        saved.write_bytes(blob[:length])
        with pytest.raises(ValueError):
            HashTable.load(saved)


def test_bytes_after_the_end(saved):
    saved.write_bytes(saved.read_bytes() + b"more")
    with pytest.raises(ValueError):
        HashTable.load(saved)


def test_bit_flips_in_the_header(saved):
    blob = saved.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    refused = 0
    for position in range(8 + length):
        for bit in (0, 3, 6):
            damaged = bytearray(blob)
            damaged[position] ^= 1 << bit
            saved.write_bytes(damaged)
            try:
                loaded = HashTable.load(saved)
            except ValueError:
                refused += 1
            else:  # the flip hit what has another legal meaning, such as the load factor
                assert len(items_of(loaded)) == len(loaded)
    assert refused > 8 + length


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 100_000_001])
def test_hostile_header_lengths(saved, length):
    saved.write_bytes(struct.pack("<Q", length) + saved.read_bytes()[8:])
    with pytest.raises(ValueError):
        HashTable.load(saved)


HEADERS = {
    "not-json": b"{{{{",
    "not-utf8": b"\xff\xfe{}",
    "a-list": b"[]",
    "a-number": b"17",
    "null": b"null",
    "empty": b"{}",
    "deeply-nested": b"[" * 50_000 + b"]" * 50_000,
    "nan": b'{"keys": NaN}',
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_that_are_none(saved, kind):
    saved.write_bytes(join(HEADERS[kind], b"\0" * 64))
    with pytest.raises(ValueError):
        HashTable.load(saved)


def edit(header, tensor, field, value):
    header[tensor][field] = value


EDITS = {
    "keys-missing": lambda h: h.pop("keys"),
    "values-missing": lambda h: h.pop("values"),
    "metadata-missing": lambda h: h.pop("__metadata__"),
    "overlapping": lambda h: edit(h, "values", "data_offsets", h["keys"]["data_offsets"]),
    "swapped-offsets": lambda h: edit(h, "keys", "data_offsets", h["keys"]["data_offsets"][::-1]),
    "negative-offset": lambda h: edit(h, "keys", "data_offsets", [-8, 392]),
    "huge-offset": lambda h: edit(h, "keys", "data_offsets", [0, 1 << 62]),
    "offset-of-64-bits": lambda h: edit(h, "keys", "data_offsets", [0, 1 << 64]),
    "float-offset": lambda h: edit(h, "keys", "data_offsets", [0.5, 400]),
    "text-offset": lambda h: edit(h, "keys", "data_offsets", ["0", "400"]),
    "one-offset": lambda h: edit(h, "keys", "data_offsets", [0]),
    "no-offset": lambda h: h["keys"].pop("data_offsets"),
    "wrong-shape": lambda h: edit(h, "keys", "shape", [49]),
    "negative-shape": lambda h: edit(h, "keys", "shape", [-50]),
    "huge-shape": lambda h: edit(h, "keys", "shape", [1 << 62]),
    "overflowing-shape": lambda h: edit(h, "keys", "shape", [50, 1 << 32, 1 << 32]),
    "text-shape": lambda h: edit(h, "keys", "shape", "50"),
    "shape-of-text": lambda h: edit(h, "keys", "shape", "[50]"),
    "bool-shape": lambda h: edit(h, "keys", "shape", [True]),
    "no-shape": lambda h: h["keys"].pop("shape"),
    "scalar-keys": lambda h: edit(h, "keys", "shape", []),
    "float-keys": lambda h: edit(h, "keys", "dtype", "F64"),
    "narrow-keys": lambda h: edit(h, "keys", "dtype", "I32"),
    "unknown-dtype": lambda h: edit(h, "keys", "dtype", "I128"),
    "dtype-number": lambda h: edit(h, "keys", "dtype", 5),
    "fewer-values": lambda h: edit(h, "values", "shape", [49, 2]),
    "values-a-list": lambda h: h.__setitem__("values", []),
    "metadata-a-list": lambda h: h.__setitem__("__metadata__", []),
    "metadata-number": lambda h: h.__setitem__("__metadata__", 5),
}


@pytest.mark.parametrize("kind", EDITS)
def test_damaged_headers(saved, kind):
    header, data = split(saved)
    EDITS[kind](header)
    saved.write_bytes(join(header, data))
    with pytest.raises(ValueError):
        HashTable.load(saved)


@pytest.mark.parametrize("junk", ["", "nonsense", "-1", "1e999", "nan", "[" * 2000, "99999999999999999999999999"])
def test_damaged_metadata(saved, junk):
    """Each entry of the metadata replaced by junk: an error, or an entry that the table can live with."""
    header, data = split(saved)
    for entry in header.get("__metadata__", {}):
        metadata = {**header["__metadata__"], entry: junk}
        saved.write_bytes(join({**header, "__metadata__": metadata}, data))
        try:
            loaded = HashTable.load(saved)
        except ValueError:
            continue
        assert len(items_of(loaded)) == len(loaded)


@pytest.mark.parametrize("entry", ["deterministic", "max_capacity", "max_load_factor", "default"])
def test_options_that_are_missing_or_misspelt(saved, entry):
    """The table would load without them, and be another one."""
    header, data = split(saved)
    said = header["__metadata__"].pop(entry)
    saved.write_bytes(join(header, data))
    with pytest.raises(ValueError, match=entry):
        HashTable.load(saved)
    header["__metadata__"][entry.swapcase()] = said
    saved.write_bytes(join(header, data))
    with pytest.raises(ValueError, match=entry):
        HashTable.load(saved)


@pytest.mark.parametrize("text", ["True", "1", "tru", "", "yes"])
def test_a_flag_is_true_or_false(saved, text):
    header, data = split(saved)
    header["__metadata__"]["deterministic"] = text
    saved.write_bytes(join(header, data))
    with pytest.raises(ValueError, match="expected 'true' or 'false'"):
        HashTable.load(saved)


@pytest.mark.parametrize("factor", ["0", "-0.5", "1.0000001", "nan", "inf", "-inf", "1e999", "", "a half"])
def test_load_factors_that_cannot_be(saved, factor):
    header, data = split(saved)
    header["__metadata__"]["max_load_factor"] = factor
    saved.write_bytes(join(header, data))
    with pytest.raises(ValueError, match=r"max_load_factor.*expected a number in \(0, 1\]"):
        HashTable.load(saved)


@pytest.mark.parametrize("factor", ["1e-9", "1e-30", "5e-324"])
def test_tiny_load_factors_take_no_memory(saved, factor):
    """Fifty keys at 1e-9 would have a terabyte; in a process of its own, since it would not come back."""
    header, data = split(saved)
    header["__metadata__"]["max_load_factor"] = factor
    saved.write_bytes(join(header, data))
    program = "import sys, gpuhash; t = gpuhash.load(sys.argv[1]); print(len(t), t.nbytes < 10**6, t.max_load_factor)"
    command = [sys.executable, "-P", "-c", program, str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["50", "True", repr(float(factor))], done.stderr


def test_more_keys_than_max_capacity(saved):
    header, data = split(saved)
    header["__metadata__"]["max_capacity"] = "7"
    saved.write_bytes(join(header, data))
    with pytest.raises(ValueError, match="max_capacity"):
        HashTable.load(saved)


def test_two_thousand_mutations():
    """Each is refused, or loads as what its bytes say; see there for a run of more."""
    program = Path(__file__).with_name("fuzz_files.py")
    command = [sys.executable, str(program), "--files", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 failures" in done.stdout
    assert "loaded" in done.stdout


def test_a_file_with_the_same_key_twice(saved):
    header, data = split(saved)
    start, end = header["keys"]["data_offsets"]
    data = data[:start] + data[start : start + 8] * ((end - start) // 8) + data[end:]
    saved.write_bytes(join(header, data))
    with pytest.raises(ValueError, match=r"(?i)twice|duplicate|distinct"):
        HashTable.load(saved)


def test_a_foreign_safetensors_file(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file({"weight": np.zeros((3, 3), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"(?i)gpuhash|keys"):
        HashTable.load(tmp_path / "model.safetensors")


def test_other_files(tmp_path):
    for contents in (b"", b"PK\x03\x04" * 50, b"\x80\x04" * 100, np.random.default_rng(0).bytes(1000)):
        (tmp_path / "file").write_bytes(contents)
        with pytest.raises(ValueError):
            gpuhash.load(tmp_path / "file")


def test_loaded_tables_work_on(saved):
    table = HashTable.load(saved)
    keys = np.setdiff1d(np.arange(10_000, 15_000), to_numpy(table.keys()))
    table[keys] = 1
    same_bytes(table[keys], np.ones((len(keys), 2), np.float32))
    assert len(as_bytes(to_numpy(table.keys()))) == 50 + len(keys)


def test_a_file_is_written_once(tmp_path):
    """The nameless file gets its name, on file systems that have such files; else a named one is written instead."""
    written = []
    whole_file.write_whole(tmp_path / "once", lambda file: written.append(file.write(b"all")))
    assert (tmp_path / "once").read_bytes() == b"all"
    flags = os.O_RDWR | os.O_TMPFILE
    try:
        os.close(os.open(tmp_path, flags))
    except OSError:
        pytest.skip("this file system has no nameless files")
    assert written == [3]


def test_files_behind_a_descriptor_are_written_into():
    """Such as /dev/stdout where that is a pipe, which has no path of its own."""
    reading, writing = os.pipe()
    whole_file.write_whole(f"/dev/fd/{writing}", lambda file: file.write(b"all"))
    os.close(writing)
    assert os.read(reading, 10) == b"all"
    os.close(reading)


@pytest.mark.parametrize("device", ["cpu", ["cpu"] * 3], ids=["one", "shards"])
def test_a_table_that_grows_meanwhile_is_exported_in_a_few_turns(device):
    """Others insert at each turn: room is made for more than there was, so that this comes to an end."""
    table = HashTable("int64", "int64", device=device)
    turns = []

    def fill(arrays, stream):
        turns.append(len(table))
        keys = np.arange(len(table), len(table) + 100)
        table[keys] = keys  # another thread's, between the size and the turn
        return table._core.export_items(arrays[0], [(0, arrays[1], None)], None, stream)

    keys, values = export_apart(table._core, [("int64", ()), ("int64", ())], fill)
    assert len(turns) <= 6
    np.testing.assert_array_equal(np.sort(keys), np.arange(len(table)))
    np.testing.assert_array_equal(keys, values)
