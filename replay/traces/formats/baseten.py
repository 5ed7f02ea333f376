"""Baseten request logs in Parquet: epoch ms, token counts, hashes of prefix blocks.

Source: the columns that AIPerf's loader reads. The prompt's text is never read.
"""

from __future__ import annotations

import polars as pl

from replay.traces.formats.base import Reading, TableFormat, add_rule, block_lists, duration_column
from replay.traces.rows import Batch
from replay.traces.source import refusal


def _hook(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    spent = duration_column(batch, "duration_e2e_ms", "ms")
    if spent is not None:
        frame = frame.with_columns(spent.alias("source_e2e_ns"))
    if "poor_man_session_id" in batch.frame.columns:
        guessed = batch.frame["poor_man_session_id"].cast(pl.String)
        own = frame["session"] if "session" in frame.columns else pl.Series("session", [None] * frame.height, pl.String)
        frame = frame.with_columns(own.fill_null(guessed).alias("session"))
    frame = block_lists(frame, reading, "total_hashes")
    if "prefix_blocks" not in frame.columns or frame["prefix_blocks"].null_count() == frame.height:
        return frame
    sizes = batch.frame["block_size"].cast(pl.Int64, strict=False) if "block_size" in batch.frame.columns else None
    size = reading.options.block_size or reading.ledger.block_size
    if size is None and sizes is not None and sizes.drop_nulls().len():
        size = reading.ledger.block_size = int(sizes.drop_nulls()[0])
        reading.ledger.assumed["block_size"] = f"{size} tokens, as the file says"
    if size is None:
        raise refusal(
            "block_size",
            "the file has block hashes, but not how many tokens a block holds",
            "block_size",
            "give the parameter block_size (tokens of a block)",
        )
    if sizes is not None:
        frame = add_rule(
            frame.with_columns(sizes.alias("__size")), pl.col("__size") != size, "other_block_size", "block_size"
        )
        frame = frame.drop("__size")
    count = pl.col("prefix_blocks").list.len().cast(pl.Int64)
    full, whole = pl.col("prompt_tokens") // size, (pl.col("prompt_tokens") + size - 1) // size
    return add_rule(frame, (count > 0) & (count != full) & (count != whole), "block_count", "total_hashes")


FORMATS = (
    TableFormat(
        name="baseten",
        title="Baseten request log",
        columns={
            "arrival": "timestamp_start_unix_ms",
            "prompt_tokens": "input_tokens",
            "output_tokens": "output_tokens",
            "session": "provided_session_id",
            "prefix_blocks": "total_hashes",
        },
        required=("timestamp_start_unix_ms", "input_tokens", "output_tokens"),
        optional=("total_hashes", "block_size", "provided_session_id", "poor_man_session_id", "duration_e2e_ms"),
        containers=("parquet",),
        time_unit="ms",
        epoch_only=True,
        extra=("duration_e2e_ms", "poor_man_session_id", "block_size"),
        hook=_hook,
    ),
)
