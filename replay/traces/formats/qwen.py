"""Qwen-Bailian traces: JSON lines with seconds, a block id per 16 tokens, and the chat that a turn follows.

Source: alibaba-edu/qwen-bailian-usagetraces-anon README. A session is the chain of parents; a parent may lie before the
cut of the file, and then gives the session its id.
"""

from __future__ import annotations

import polars as pl

from replay.traces.formats.base import Reading, TableFormat
from replay.traces.formats.mooncake import check_block_counts
from replay.traces.rows import JSON_CONTAINERS, Batch

_BLOCK = 16


def _hook(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    frame = check_block_counts(frame, reading)
    roots = reading.root_of_chat
    sessions: list[str] = []
    pairs = batch.frame.select(pl.col("chat_id", "parent_chat_id").cast(pl.String)).rows()
    for chat, parent in pairs:
        root = chat if parent in (None, "-1") else roots.get(parent, parent)
        roots[chat] = root
        sessions.append(root)
    return frame.with_columns(pl.Series("session", sessions, dtype=pl.String))


FORMATS = (
    TableFormat(
        name="qwen-bailian",
        title="Qwen-Bailian usage trace",
        columns={
            "arrival": "timestamp",
            "prompt_tokens": "input_length",
            "output_tokens": "output_length",
            "prefix_blocks": "hash_ids",
        },
        required=("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
        optional=("hash_ids", "type", "turn"),
        containers=JSON_CONTAINERS,
        time_unit="s",
        extra=("chat_id", "parent_chat_id"),
        blocks=_BLOCK,
        hook=_hook,
    ),
)
