"""``make demo``: columns that are named reach the service."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "demo.py"


def test_a_mapping_goes_with_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("demo", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    asked = []

    def call(method: str, url: str, *_: Any) -> dict[str, Any]:
        asked.append(f"{method} {url}")
        return {"id": "trc_1", "ingest_job_id": "job_1"}

    monkeypatch.setattr(demo, "call", call)
    monkeypatch.setattr(demo, "wait_for_job", lambda *_: {"report_id": "rep_1"})
    trace = tmp_path / "own log.csv"
    trace.write_text("ts,in,out\n")
    words = ["arrival=ts", "prompt_tokens=in"]
    demo.run("http://x", argparse.Namespace(trace=trace, map=words, model="m", gpu="g", tp="1"))
    method, url = asked[0].split(" ")
    assert method == "PUT"
    assert parse_qs(urlsplit(url).query) == {"name": ["own log.csv"], "map": words}
