"""Mooncake traces: JSON lines with milliseconds and one prefix block id per 512 tokens, and their session extension.

Source: kvcache-ai/Mooncake, FAST25-release/traces. Ids are global and chained: equal leading ids are a shared prefix.
AIPerf's extension gives later turns of a session a ``delay`` (ms after the turn before ends) in place of a time.
"""

from __future__ import annotations

import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces import casts
from replay.traces.formats.base import Reading, TableFormat, add_rule, block_lists
from replay.traces.options import MappedField
from replay.traces.rows import JSON_CONTAINERS, Batch
from replay.traces.times import UNIT_NS

_BLOCK = 512
_USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
_COLUMNS: dict[MappedField, str] = {
    "arrival": "timestamp",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "prefix_blocks": "hash_ids",
    "session": "session_id",
}


def _fits(frame: pl.DataFrame, size: int) -> float:
    """Share of the rows with ids whose number is ceil(prompt / size)."""
    count = pl.col("prefix_blocks").list.len().cast(pl.Int64)
    rows = frame.filter(count > 0, pl.col("rule").is_null())
    if rows.height == 0:
        return 1.0
    return float(rows.select((count == (pl.col("prompt_tokens") + size - 1) // size).mean()).item())


def check_block_counts(frame: pl.DataFrame, reading: Reading) -> pl.DataFrame:
    """Rejects rows whose ids do not cover the prompt; refuses a file made with another block size.

    Raises:
        TraceError: ``trace.block_size``, naming the size that fits.
    """
    frame = block_lists(frame, reading, "hash_ids")
    if "prefix_blocks" not in frame.columns:
        return frame
    size = reading.block_size or _BLOCK  # every format that calls this has a default
    if not reading.block_size_checked:
        reading.block_size_checked = True
        reading.ledger.assumed["block_size"] = f"{size} tokens, " + (
            "as asked (block_size)" if reading.options.block_size else "the format's own; checked against the prompts"
        )
        if _fits(frame, size) < 0.5:
            fitting = [other for other in _USUAL_BLOCKS if other != size and _fits(frame, other) > 0.95]
            hint = f"block_size={fitting[0]} fits" if len(fitting) == 1 else "none of the usual sizes fits"
            cure = f"give the parameter block_size; {hint}"
            raise TraceError(
                "trace.block_size",
                f"the number of hash_ids does not match prompts in blocks of {size} tokens: {hint}",
                [FieldError(cure, field="block_size", column="hash_ids", rule="block_count", cure=cure)],
            )
    count = pl.col("prefix_blocks").list.len().cast(pl.Int64)
    return add_rule(
        frame, (count > 0) & (count != (pl.col("prompt_tokens") + size - 1) // size), "block_count", "hash_ids"
    )


def _check_unit(batch: Batch, reading: Reading) -> None:
    """Mooncake times are whole ms. Fractions suggest seconds: a thousandfold error, so it is asked, not guessed."""
    series = batch.frame["timestamp"] if "timestamp" in batch.frame.columns else None
    if series is None or not isinstance(series.dtype, pl.String) or reading.options.time_unit is not None:
        return
    if casts.has_fractions(casts.decimal(series)):
        cure = "give time_unit=ms or time_unit=s"
        raise TraceError(
            "trace.ambiguous_unit",
            "column 'timestamp' has fractions; Mooncake times are whole milliseconds, so these may be seconds. "
            "Say which by the parameter time_unit",
            [FieldError(cure, field="time_unit", column="timestamp", rule="ambiguous_time_unit", cure=cure)],
        )


def _plain(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    _check_unit(batch, reading)
    return check_block_counts(frame, reading)


def _sessions(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    """Turns without a time start ``delay`` after the turn before of their session has ended."""
    frame = _plain(frame, batch, reading)
    delay = casts.duration_ns(_numbers(batch.frame["delay"]), UNIT_NS["ms"])
    raw = casts.decimal(_numbers(batch.frame["delay"]))
    last = reading.last_line
    after: list[int | None] = []
    for line, session, arrival, rule in frame.select("source_line", "session", "arrival_ns", "rule").iter_rows():
        after.append(last.get(session) if arrival is None and session is not None else None)
        if rule is None and session is not None and (arrival is not None or after[-1] is not None):
            last[session] = line
    frame = frame.with_columns(
        pl.Series("after_line", after, dtype=pl.Int64),
        delay.alias("delay_ns"),
        (raw < 0).fill_null(value=False).alias("__negative"),
        raw.is_not_null().alias("__has_delay"),
    )
    closed = pl.col("arrival_ns").is_null()
    frame = add_rule(frame, closed & ~pl.col("__has_delay"), "missing_arrival", "timestamp")
    frame = add_rule(frame, closed & pl.col("__negative"), "negative_delay", "delay")
    frame = add_rule(frame, closed & pl.col("after_line").is_null(), "missing_predecessor", "session_id")
    return frame.with_columns(
        pl.when(closed).then(pl.col("delay_ns")).alias("delay_ns"),
    ).drop("__negative", "__has_delay")


def _numbers(series: pl.Series) -> pl.Series:
    return casts.clean_text(series) if isinstance(series.dtype, pl.String) else series


FORMATS = (
    TableFormat(
        name="mooncake",
        title="Mooncake trace",
        columns=_COLUMNS,
        required=("timestamp", "input_length", "output_length"),
        optional=("hash_ids",),
        absent=("delay", "chat_id", "parent_chat_id", "turn", "type"),
        containers=JSON_CONTAINERS,
        time_unit="ms",
        blocks=_BLOCK,
        hook=_plain,
    ),
    TableFormat(
        name="mooncake-sessions",
        title="Mooncake trace with sessions",
        columns=_COLUMNS,
        required=("timestamp", "input_length", "output_length", "session_id", "delay"),
        optional=("hash_ids",),
        containers=JSON_CONTAINERS,
        time_unit="ms",
        extra=("delay",),
        blocks=_BLOCK,
        arrival_optional=True,
        hook=_sessions,
    ),
)
