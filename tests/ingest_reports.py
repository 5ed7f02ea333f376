"""The report of a small trace that was read for real, for rows of traces that no job has made."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trace_makers import calls, own_csv

from replay.traces.ingest import ingest


@cache
def ingest_report() -> dict[str, Any]:
    """JSON as a ready trace has it; not to be changed."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "trace"
        source.write_bytes(own_csv(calls()))
        return ingest(source, Path(folder) / "out").model_dump(mode="json")
