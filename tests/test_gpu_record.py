"""The committed record of the last run on a GPU machine."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import pytest
from support.gpu_record import (
    FIELDS,
    NEW_FIELDS,
    RECORD,
    RUN_FIELDS,
    is_whole,
    missing_runs,
    part_of,
    sources_digest,
    updated,
)


def test_record_is_complete_and_has_no_failures(request):
    if request.config.getoption("--gpu-record"):
        pytest.skip("this run writes it")
    if not RECORD.exists():
        pytest.skip("no run on a GPU machine was recorded yet")
    record = json.loads(RECORD.read_text())
    assert set(record) >= FIELDS
    assert set(record["versions"]) >= {"python", "torch", "cupy", "jax", "tensorflow", "numpy"}
    assert record["failed"] == 0
    assert record["passed"] > 0
    assert "parts" not in record, "some were not run yet"
    assert record["gpu"]
    assert record["driver"]
    if record.keys() & NEW_FIELDS:  # older records lack them
        assert record.keys() >= NEW_FIELDS
        assert record["device"] == "cuda"
        assert record["gpus"] >= 1
        for run in record["runs"]:
            assert run.keys() == RUN_FIELDS
            # What failed may have been mended since, but not before it is run again.
            assert run["failed"] == 0 or record["sources_sha256"] != sources_digest()
            assert run["passed"] > 0
            assert run["sources_sha256"] == record["sources_sha256"]
        assert missing_runs(record) == []
    if record["sources_sha256"] != sources_digest():
        failed = sum(run["failed"] for run in record.get("runs", []))
        warnings.warn(
            f"the sources changed since tests/gpu_record.json was written, which has {failed} failures on other GPUs",
            stacklevel=1,
        )


def test_digest_follows_the_sources(tmp_path, monkeypatch):
    from support import gpu_record

    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    (tmp_path / "cpp" / "__pycache__").mkdir(parents=True)
    (tmp_path / "cpp" / "a.cpp").write_text("int a;")
    digest = sources_digest()
    (tmp_path / "cpp" / "notes.txt").write_text("no source")
    (tmp_path / "cpp" / "__pycache__" / "b.py").write_text("no source")
    assert sources_digest() == digest
    (tmp_path / "cpp" / "a.cpp").write_text("int b;")
    assert sources_digest() != digest


def test_runs_on_other_devices_stand_beside_the_one_on_cuda():
    def run(device, passed, sources="same"):
        fields = {**dict.fromkeys(FIELDS | NEW_FIELDS - {"runs"}, "x"), "device": device, "passed": passed}
        return {**fields, "sources_sha256": sources}

    with pytest.raises(ValueError, match="cuda:1"):
        updated(None, run("cuda:1", 1))
    record = updated(None, run("cuda", 10))
    assert record == {**run("cuda", 10), "runs": []}
    for device, passed in [("cuda:2", 3), ("cuda:1", 4), ("cuda:1", 5)]:
        record = updated(record, run(device, passed))
    assert {name: record[name] for name in run("cuda", 10)} == run("cuda", 10)
    assert [(each["device"], each["passed"]) for each in record["runs"]] == [("cuda:1", 5), ("cuda:2", 3)]
    assert all(each.keys() == RUN_FIELDS for each in record["runs"])
    again = updated(record, run("cuda", 11))
    assert again == {**run("cuda", 11), "runs": record["runs"]}
    assert updated(again, run("cuda", 12, "changed"))["runs"] == []
    older = {name: value for name, value in run("cuda", 1).items() if name not in NEW_FIELDS}
    assert [each["device"] for each in updated(older, run("cuda:1", 2))["runs"]] == ["cuda:1"]


def test_parts_of_a_run_add_up():
    def part(number, passed, of=2, sources="same"):
        fields = {**dict.fromkeys(FIELDS | NEW_FIELDS - {"runs"}, "x"), "device": "cuda", "sources_sha256": sources}
        return {**fields, "passed": passed, "failed": 1, "skipped": 2, "parts": {"of": of, "done": [number]}}

    first = updated(None, part(2, 10))
    assert first["parts"] == {"of": 2, "done": [2]}
    whole = updated(first, part(1, 5))
    assert (whole["passed"], whole["failed"], whole["skipped"]) == (15, 2, 4)
    assert "parts" not in whole
    for later in (part(2, 7), part(1, 7, of=3), part(1, 7, sources="changed")):  # a run anew, not another part
        assert updated(first, later)["passed"] == 7
    assert updated(whole, part(1, 3))["parts"] == {"of": 2, "done": [1]}
    assert part_of("2/3") == (2, 3)
    for text in ("0/2", "3/2", "x", "1"):
        with pytest.raises(ValueError, match=r"."):
            part_of(text)


def test_which_runs_are_missing():
    assert missing_runs({"device": "cuda"}) == []  # an older record
    assert missing_runs({"gpus": 1, "runs": []}) == []
    assert missing_runs({"gpus": 2, "runs": []}) == ["cuda:1"]
    assert missing_runs({"gpus": 2, "runs": [{"device": "cuda:2"}]}) == ["cuda:1"]
    assert missing_runs({"gpus": 4, "runs": [{"device": "cuda:1"}, {"device": "cuda:2"}]}) == []


def test_an_interrupted_run_is_no_record(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs us in the background\n"
        "def test(): os.kill(os.getpid(), signal.SIGINT)\n"
    )
    interrupted = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        check=False,
    )
    assert not is_whole(interrupted.returncode)
    assert is_whole(pytest.ExitCode.OK)
    assert is_whole(pytest.ExitCode.TESTS_FAILED)
