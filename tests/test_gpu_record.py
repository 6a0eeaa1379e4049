"""The committed record of the last run on a GPU machine."""

from __future__ import annotations

import json
import warnings

import pytest
from gpu_record import FIELDS, RECORD, sources_digest


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
    assert record["gpu"]
    assert record["driver"]
    if record["sources_sha256"] != sources_digest():
        warnings.warn("the sources changed since tests/gpu_record.json was written", stacklevel=1)


def test_digest_follows_the_sources(tmp_path, monkeypatch):
    import gpu_record

    monkeypatch.setattr(gpu_record, "ROOT", tmp_path)
    (tmp_path / "cpp" / "__pycache__").mkdir(parents=True)
    (tmp_path / "cpp" / "a.cpp").write_text("int a;")
    digest = sources_digest()
    (tmp_path / "cpp" / "notes.txt").write_text("no source")
    (tmp_path / "cpp" / "__pycache__" / "b.py").write_text("no source")
    assert sources_digest() == digest
    (tmp_path / "cpp" / "a.cpp").write_text("int b;")
    assert sources_digest() != digest
