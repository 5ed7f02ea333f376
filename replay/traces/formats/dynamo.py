"""Dynamo request traces: events of a recorder, one a line; a request is written when it ends.

Source: ai-dynamo/dynamo, ``dynamo.request.trace.v1``. Metrics are optional, the replay part is sure. Hashes are
unsigned 64-bit and rolling: each covers the whole prompt up to its block. The service writes no rows for several
choices (n > 1), images or embeddings.
"""

from __future__ import annotations

from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.links import Ends, scaled_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.rows import JSON_CONTAINERS, Sample

_MS = 10**6
_SCHEMA = "dynamo.request.trace"


def _detect(sample: Sample) -> Match | None:
    if sample.container not in JSON_CONTAINERS:
        return None
    for prefix in ("event.", ""):
        named = sample.first(f"{prefix}schema")
        if isinstance(named, str) and named.startswith(_SCHEMA) and sample.has(f"{prefix}event_type"):
            return Match(f"{sample.container} with events of {named}", 20)
    return None


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    event = record.get("event", record)
    kind = event["event_type"]
    if kind != "request_end":
        reading.not_request(f"{kind} events")
        return []
    request = event["request"]
    replay = request.get("replay") or {}
    context = event.get("agent_context") or {}
    received, spent = request.get("request_received_ms"), scaled_ns(request.get("total_time_ms"), _MS)
    start, end = scaled_ns(received, _MS), scaled_ns(event.get("event_time_unix_ms"), _MS)
    if start is None and end is not None and spent is not None:
        start = end - spent
        received = f"{start // _MS}.{start % _MS:06d}"
        reading.ledger.assumed["arrival"] = (
            "where request_received_ms is missing: the time of the end less total_time_ms"
        )
    prompt = request.get("input_tokens")
    row: Row = {
        "arrival": received,
        "prompt_tokens": replay.get("input_length") if prompt is None else prompt,
        "output_tokens": request.get("output_tokens"),
        "cached_tokens": request.get("cached_tokens"),
        "model": request.get("model"),
        "session": context.get("session_id"),
        "prefix_blocks": replay.get("input_sequence_hashes"),
        "source_ttft_ns": scaled_ns(request.get("ttft_ms"), _MS),
        "source_e2e_ns": spent,
        "source_queue_ns": scaled_ns(request.get("prefill_wait_time_ms"), _MS),
        "request_id": request.get("request_id"),
    }
    size = replay.get("trace_block_size")
    if isinstance(size, int) and reading.ledger.block_size is None:
        reading.ledger.block_size = size
        reading.ledger.assumed["block_size"] = f"{size} tokens, as the file says"
    if row["prefix_blocks"] and size != reading.ledger.block_size:
        row["rule"], row["column"] = "other_block_size", "event.request.replay.trace_block_size"
    if prompt is not None and replay.get("input_length") not in (None, prompt):
        row["rule"], row["column"] = "contradicts", "event.request.replay.input_length"
    _follow(row, context, start, None if start is None or spent is None else start + spent, reading)
    return [row]


def _follow(row: Row, context: dict[str, Any], start: int | None, end: int | None, reading: RecordReading) -> None:
    """Links to the last request of the session, or of its sub-agents, that ended before; a sub-agent's first request
    follows its parent's."""
    session, parent = context.get("session_id"), context.get("parent_session_id")
    if not isinstance(session, str) or not session:
        return
    sessions: dict[str, Ends] = reading.state.setdefault("sessions", {})
    number = reading.expanded
    own = sessions.setdefault(session, Ends())
    before = own.before(start)
    if before is None and isinstance(parent, str) and parent in sessions:
        before = sessions[parent].before(start)
    if before is not None and start is not None:
        row["after_back"], row["delay_ns"] = number - before[1], start - before[0]
    own.add(end, number)
    if isinstance(parent, str):
        sessions.setdefault(parent, Ends()).add(end, number)


FORMATS = (
    RecordFormat(
        name="dynamo-request-trace",
        title="Dynamo request trace",
        needs=("event.schema", "event.event_type", "event.request"),
        detector=_detect,
        expand=_expand,
        columns={
            "arrival": "event.request.request_received_ms",
            "prompt_tokens": "event.request.input_tokens",
            "output_tokens": "event.request.output_tokens",
            "cached_tokens": "event.request.cached_tokens",
            "model": "event.request.model",
            "session": "event.agent_context.session_id",
            "prefix_blocks": "event.request.replay.input_sequence_hashes",
            "request_id": "event.request.request_id",
        },
        time_unit="ms",
        epoch_only=True,
        numbered=True,
    ),
)
