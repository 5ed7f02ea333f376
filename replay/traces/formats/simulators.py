"""Inputs of other simulators: Vidur (seconds), splitwise-sim (seconds), LLMServingSim (ns), BLIS TraceV2 (us).

Sources: microsoft/vidur trace request generator; Mutinifni/splitwise-sim trace files; casys-kaist/LLMServingSim dataset
loader; inference-sim (BLIS) trace files.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from replay.traces import casts
from replay.traces.formats.base import Match, Reading, TableFormat, add_rule
from replay.traces.formats.links import scaled_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.rows import JSON_CONTAINERS, Batch, Sample


def _splitwise(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    """A row with a batch size is so many requests, and is not taken for one."""
    if "batch_size" not in batch.frame.columns:
        return frame
    size, _ = casts.tokens(batch.frame["batch_size"], reading.options.limits)
    return add_rule(frame, pl.lit(size.fill_null(1) != 1), "contradicts", "batch_size")


def _blis(frame: pl.DataFrame, batch: Batch, reading: Reading) -> pl.DataFrame:
    """Latencies from the measured times, which may be epoch or relative: only their differences are used."""
    raw = batch.frame
    reading.ledger.assumed["prefix_group"] = "not used: the file does not say how prefixes fall into blocks"
    if "send_time_us" not in raw.columns:
        return frame
    sent = casts.decimal(raw["send_time_us"])
    made = {}
    for name, column in (("source_ttft_ns", "first_chunk_time_us"), ("source_e2e_ns", "last_chunk_time_us")):
        if column in raw.columns:
            spent = casts.scaled(casts.decimal(raw[column]) - sent, 1000).cast(pl.Int64, strict=False)
            seen = frame["output_tokens"] > 0
            made[name] = spent.set(((spent < 0) | ~seen).fill_null(value=False), None).alias(name)
    return frame.with_columns(made.values())


def _llmservingsim(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    """One request, or a session whose steps follow each other with the time of a tool between them."""
    steps = record.get("sub_requests")
    if steps is None:
        return [
            {
                "arrival": record["arrival_time_ns"],
                "prompt_tokens": record["input_toks"],
                "output_tokens": record["output_toks"],
            }
        ]
    rows: list[Row] = []
    for index, step in enumerate(steps):
        row: Row = {
            "prompt_tokens": step["input_toks"],
            "output_tokens": step["output_toks"],
            "session": record["session_id"],
        }
        if index == 0:
            row["arrival"] = record["arrival_time_ns"]
        else:
            row["after_back"], row["delay_ns"] = 1, scaled_ns(steps[index - 1].get("tool_duration_ns") or 0, 1)
            if row["delay_ns"] is None or row["delay_ns"] < 0:
                row["rule"], row["column"] = "negative_delay", "sub_requests.tool_duration_ns"
        rows.append(row)
    return rows


def _llmservingsim_detect(sample: Sample) -> Match | None:
    """Requests, sessions, or both kinds in one file."""
    if sample.container not in JSON_CONTAINERS or "arrival_time_ns" not in sample.columns:
        return None
    if not (sample.has("input_toks", "output_toks") or sample.has("session_id", "sub_requests")):
        return None
    return Match(f"{sample.container} with arrival_time_ns and input_toks or sub_requests", 3)


FORMATS = (
    TableFormat(
        name="vidur",
        title="Vidur request trace",
        columns={
            "arrival": "arrived_at",
            "prompt_tokens": "num_prefill_tokens",
            "output_tokens": "num_decode_tokens",
        },
        required=("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        time_unit="s",
    ),
    TableFormat(
        name="splitwise-sim",
        title="splitwise-sim request trace",
        columns={
            "arrival": "arrival_timestamp",
            "prompt_tokens": "prompt_size",
            "output_tokens": "token_size",
            "tenant": "application_id",
        },
        required=("request_id", "arrival_timestamp", "prompt_size", "token_size"),
        optional=("request_type", "application_id", "batch_size"),
        time_unit="s",
        extra=("batch_size",),
        hook=_splitwise,
    ),
    TableFormat(
        name="blis-tracev2",
        title="BLIS TraceV2",
        columns={
            "arrival": "arrival_time_us",
            "prompt_tokens": "input_tokens",
            "output_tokens": "output_tokens",
            "model": "model",
            "tenant": "tenant_id",
            "session": "session_id",
            "priority": "slo_class",
            "status": "status",
        },
        required=(
            "request_id",
            "client_id",
            "tenant_id",
            "slo_class",
            "input_tokens",
            "output_tokens",
            "arrival_time_us",
        ),
        optional=("session_id", "round_index", "send_time_us", "first_chunk_time_us", "last_chunk_time_us"),
        time_unit="us",
        extra=("send_time_us", "first_chunk_time_us", "last_chunk_time_us"),
        hook=_blis,
    ),
    RecordFormat(
        name="llmservingsim",
        title="LLMServingSim request trace",
        needs=("arrival_time_ns", "input_toks and output_toks, or sub_requests"),
        detector=_llmservingsim_detect,
        expand=_llmservingsim,
        columns={
            "arrival": "arrival_time_ns",
            "prompt_tokens": "input_toks",
            "output_tokens": "output_toks",
            "session": "session_id",
        },
        time_unit="ns",
        numbered=True,
        arrival_optional=True,
    ),
)
