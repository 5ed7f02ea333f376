"""TraceLab: rounds of coding agents, one LLM round a line, times of its events with their zone.

Source: uw-syfi/TraceLab (CC-BY 4.0). A round arrives with its first input event (a user's message or a tool's result)
and ends with its last event. How much of a prompt the round before had is known as a length only.
"""

from __future__ import annotations

from typing import Any

from replay.traces.formats.links import Ends, iso_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row, wants
from replay.traces.rows import JSON_CONTAINERS

_INPUTS = ("user_message", "tool_result")


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    events = record["timing_events"] or []
    stamps = [event["timestamp"] for event in events if event["event_type"] in _INPUTS]
    stamps.sort(key=lambda stamp: iso_ns(stamp) or 0)
    arrival = stamps[0] if stamps else None
    start = iso_ns(arrival)
    outputs = [at for event in events if event["event_type"] not in _INPUTS if (at := iso_ns(event["timestamp"]))]
    end = max(outputs, default=None)
    spent = end - start if end is not None and start is not None and end >= start else None
    session = record["session_id"]
    row: Row = {
        "arrival": arrival,
        "prompt_tokens": record["input_tokens_total"],
        "output_tokens": record["output_tokens"],
        "cached_tokens": record.get("prefix_tokens"),
        "reasoning_tokens": record.get("reasoning_output_tokens"),
        "model": record.get("model"),
        "tenant": record.get("project"),
        "session": session,
        "source_e2e_ns": spent,
        "request_id": f"{session} {record.get('round_id') or record.get('round_index')}",
    }
    old, new, total = record.get("prefix_tokens"), record.get("newly_append_tokens"), record["input_tokens_total"]
    if isinstance(old, int) and isinstance(new, int) and isinstance(total, int) and old + new != total:
        row["rule"], row["column"] = "contradicts", "input_tokens_total"
    sessions: dict[str, Ends] = reading.state.setdefault("sessions", {})
    ends = sessions.setdefault(str(session), Ends())
    number = reading.expanded
    if (before := ends.before(start)) is not None and start is not None:
        row["after_back"], row["delay_ns"] = number - before[1], start - before[0]
    if spent is not None:
        ends.add(end, number)
    return [row]


FORMATS = (
    RecordFormat(
        name="tracelab",
        title="TraceLab agent rounds",
        needs=("session_id", "round_index", "input_tokens_total", "output_tokens", "timing_events"),
        detector=wants(
            JSON_CONTAINERS, "session_id", "round_index", "input_tokens_total", "output_tokens", "timing_events"
        ),
        expand=_expand,
        columns={
            "arrival": "timing_events.timestamp",
            "prompt_tokens": "input_tokens_total",
            "output_tokens": "output_tokens",
            "cached_tokens": "prefix_tokens",
            "reasoning_tokens": "reasoning_output_tokens",
            "model": "model",
            "tenant": "project",
            "session": "session_id",
            "request_id": "round_id",
        },
        numbered=True,
    ),
)
