"""A trace that ``capreplay ingest --out`` kept, read again: the same, or refused where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from replay.errors import TraceError
from replay.traces import canonical
from replay.traces.ingest import ingest

PLAIN = ("arrival_ns", "prompt_tokens", "output_tokens", "tenant", "session")
TURNS = (
    '{"session_id": "a", "timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1]}',
    '{"session_id": "a", "delay": 500, "input_length": 30, "output_length": 5, "hash_ids": [1]}',
    '{"session_id": "b", "timestamp": 900, "input_length": 40, "output_length": 5, "hash_ids": [2]}',
)


def test_a_kept_trace_without_block_ids_needs_no_block_size(tmp_path: Path) -> None:
    source, kept, again = (tmp_path / name for name in ("log.csv", "kept.parquet", "again.parquet"))
    rows = [f"{number}.25,{number + 10},{number + 5},t{number % 3},s{number % 7}" for number in range(50)]
    source.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,tenant,session", *rows]) + "\n")
    ingest(source, kept)
    ingest(kept, again)
    assert canonical.scan(again).select(PLAIN).collect().equals(canonical.scan(kept).select(PLAIN).collect())


def test_a_kept_trace_with_block_ids_keeps_their_size(tmp_path: Path) -> None:
    source, kept, again = (tmp_path / name for name in ("log.jsonl", "kept.parquet", "again.parquet"))
    rows = [{"timestamp": 1000 * n, "input_length": 600, "output_length": 3, "hash_ids": [0, n + 1]} for n in range(20)]
    source.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    ingest(source, kept)
    ingest(kept, again)
    assert pl.read_parquet(again)["prefix_blocks"].equals(pl.read_parquet(kept)["prefix_blocks"])


def test_a_kept_trace_whose_requests_wait_for_others_is_refused(tmp_path: Path) -> None:
    source, kept = tmp_path / "log.jsonl", tmp_path / "kept.parquet"
    source.write_text("\n".join(TURNS) + "\n")
    ingest(source, kept)
    with pytest.raises(TraceError, match="requests wait for others") as refusal:
        ingest(kept, tmp_path / "again.parquet")
    assert refusal.value.code == "trace.closed_loop_lost"
    assert "the file that it was made from" in str(refusal.value.errors[0].cure)
