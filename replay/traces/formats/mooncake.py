"""Mooncake traces: JSON lines with milliseconds and one prefix block id per 512 tokens, and their session extension.

Source: kvcache-ai/Mooncake, FAST25-release/traces. Ids are global and chained: equal leading ids are a shared prefix.
AIPerf's extension gives later turns of a session a ``delay`` (ms after the turn before ends) in place of a time.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from replay.errors import FieldError, TraceError
from replay.traces import casts
from replay.traces.formats.base import Match, Reading, TableFormat, add_rule, block_lists, check_size
from replay.traces.formats.links import scaled_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.turnlengths import settle_lengths
from replay.traces.options import MappedField
from replay.traces.rows import JSON_CONTAINERS, Batch, Sample
from replay.traces.times import UNIT_NS

_BLOCK = 512
_COLUMNS: dict[MappedField, str] = {
    "arrival": "timestamp",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "prefix_blocks": "hash_ids",
}


def check_block_counts(frame: pl.DataFrame, reading: Reading) -> pl.DataFrame:
    """Rejects rows whose ids do not cover the prompt; refuses a file made with another block size.

    Raises:
        TraceError: ``trace.block_size``, naming the size that fits.
    """
    frame = block_lists(frame, reading, "hash_ids")
    if "prefix_blocks" not in frame.columns:
        return frame
    size = reading.block_size or _BLOCK  # every format that calls this has a default
    check_size(frame, reading, size, "hash_ids")
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
        raise _fractions("timestamp")


def _fractions(column: str) -> TraceError:
    cure = "give time_unit=ms or time_unit=s"
    return TraceError(
        "trace.ambiguous_unit",
        f"column {column!r} has fractions; Mooncake times are whole milliseconds, so these may be seconds. "
        "Say which by the parameter time_unit",
        [FieldError(cure, field="time_unit", column=column, rule="ambiguous_time_unit", cure=cure)],
    )


def _plain(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    reading.ledger.doubtful_unit = "timestamp"
    _check_unit(batch, reading)
    return check_block_counts(frame, reading)


def _sessions(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    """A turn with its own time, or one that starts ``delay`` after a turn has ended."""
    number = reading.expanded
    _check_names(record, line)
    last: dict[str, int] = reading.state.setdefault("last", {})
    stamp = record.get("timestamp", record.get("created_time"))
    reading.ledger.doubtful_unit = "timestamp"
    session = record.get("session_id")
    row: Row = {
        "arrival": stamp,
        "prompt_tokens": record.get("input_length"),
        "output_tokens": record.get("output_length"),
        "prefix_blocks": record.get("hash_ids"),
        "session": session,
        "priority": record.get("priority"),
        "request_id": record.get("request_id"),
    }
    delay = record.get("delay", record.get("delay_ms", record.get("tool_wait_ms")))
    for column, value in (("timestamp", stamp), ("delay", delay)):
        asked = reading.options.time_unit is None and isinstance(value, str)
        if asked and casts.has_fractions(casts.decimal(pl.Series([value]))):
            raise _fractions(column)
    before = last.get(str(session)) if session is not None else None
    waits = record.get("wait_for")
    if waits:
        names = waits if isinstance(waits, list) else [waits]
        known = [
            reading.state["named"][str(name)] for name in names if str(name) in reading.state.setdefault("named", {})
        ]
        before = max(known, default=None)
        if len(names) > 1:
            reading.ledger.warn(
                "wait_for", "some requests wait for several others; they are linked to the one that is last in the file"
            )
    delay_ns = scaled_ns(delay, UNIT_NS[reading.options.time_unit or "ms"])
    if stamp is None or (delay_ns is not None and before is not None):
        _close(row, before, delay_ns, number)
    if session is not None:
        settle_lengths(row, str(session), reading, reading.block_size or _BLOCK)
        last[str(session)] = number
    if record.get("request_id") is not None:
        reading.state.setdefault("named", {})[str(record["request_id"])] = number
    return [row]


def _close(row: Row, before: int | None, delay_ns: int | None, number: int) -> None:
    """A turn after its predecessor, plus the delay; or the rule that it breaks."""
    if delay_ns is None:
        row["rule"], row["column"] = "missing_arrival", "timestamp"
    elif delay_ns < 0:
        row["rule"], row["column"] = "negative_delay", "delay"
    elif before is None:
        row["rule"], row["column"] = "missing_predecessor", "session_id"
    else:
        row["after_back"], row["delay_ns"] = number - before, delay_ns


def _check_names(record: dict[str, Any], line: int) -> None:
    for names in (("timestamp", "created_time"), ("delay", "delay_ms")):
        given = [name for name in names if record.get(name) is not None]
        if len(given) > 1:
            cure = f"give one of {' and '.join(names)}"
            raise TraceError(
                "trace.ambiguous_columns",
                f"line {line:,} has both {' and '.join(given)}, two names of one thing: {cure}",
                [FieldError(cure, field="file", line=line, column=given[0], rule="ambiguous_columns", cure=cure)],
            )


def _sessions_detect(sample: Sample) -> Match | None:
    """Mooncake's lengths with any of the extensions' names."""
    telling = [
        name for name in ("session_id", "delay", "delay_ms", "created_time", "wait_for") if name in sample.columns
    ]
    foreign = ("chat_id", "parent_chat_id", "duration", "img_ids")
    if sample.container not in JSON_CONTAINERS or "input_length" not in sample.columns or not telling:
        return None
    if any(name in sample.columns for name in foreign) or not (
        sample.has("output_length") or sample.has("hash_ids") or sample.has("delay")
    ):
        return None
    known = ("timestamp", "input_length", "output_length", "hash_ids", *telling)
    found = [name for name in known if name in sample.columns]
    return Match(f"{sample.container} with the keys {', '.join(found)}", len(found))


FORMATS = (
    TableFormat(
        name="mooncake",
        title="Mooncake trace",
        columns=_COLUMNS,
        required=("timestamp", "input_length", "output_length"),
        optional=("hash_ids",),
        absent=(
            "session_id",
            "delay",
            "delay_ms",
            "created_time",
            "wait_for",
            "chat_id",
            "parent_chat_id",
            "turn",
            "type",
        ),
        containers=JSON_CONTAINERS,
        time_unit="ms",
        blocks=_BLOCK,
        hook=_plain,
    ),
    RecordFormat(
        name="mooncake-sessions",
        title="Mooncake trace with sessions",
        needs=("input_length", "output_length", "session_id", "timestamp or delay"),
        detector=_sessions_detect,
        expand=_sessions,
        columns={
            "arrival": "timestamp",
            "prompt_tokens": "input_length",
            "output_tokens": "output_length",
            "session": "session_id",
            "prefix_blocks": "hash_ids",
            "request_id": "request_id",
        },
        time_unit="ms",
        blocks=_BLOCK,
        numbered=True,
        arrival_optional=True,
    ),
)
