"""GitHub Copilot coding agent sessions, 2026: one session a line, LLM calls in turns, tool batches between them.

Source: Azure/AzurePublicDataset, ``analysis/GitHubCopilotCodingAgents`` (schema and data card). Inside a session a call
starts when the one before has ended and its tools have run: ``delay`` is the time between the two.
"""

from __future__ import annotations

from typing import Any

from replay.traces.formats.links import Ends, iso_ns, scaled_ns
from replay.traces.formats.records import RecordFormat, RecordReading, Row, wants
from replay.traces.rows import JSON_CONTAINERS

_MS = 10**6


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    calls = [call for turn in record["turns"] for call in turn["llm_calls"] or ()]
    for turn in record["turns"]:
        reading.ledger.not_requests["tool batches"] += len(turn.get("tool_batches") or ())
    calls.sort(key=lambda call: iso_ns(call.get("timestamp")) or 0)
    ends = Ends()
    rows: list[Row] = []
    for number, call in enumerate(calls):
        tokens = call.get("tokens") or {}
        start, spent = iso_ns(call.get("timestamp")), scaled_ns(call.get("duration_ms"), _MS)
        row: Row = {
            "arrival": call.get("timestamp"),
            "prompt_tokens": tokens.get("prompt"),
            "output_tokens": tokens.get("completion"),
            "cached_tokens": tokens.get("cached"),
            "model": call.get("model"),
            "session": record["session_id"],
            "status": call.get("result"),
            "source_e2e_ns": spent,
            "request_id": call.get("message_id"),
        }
        if (before := ends.before(start)) is not None and start is not None:
            row["after_back"], row["delay_ns"] = number - before[1], start - before[0]
        ends.add(None if start is None or spent is None else start + spent, number)
        rows.append(row)
    return rows


FORMATS = (
    RecordFormat(
        name="ghcp-coding-agent-2026",
        title="GitHub Copilot coding agent sessions 2026",
        needs=("session_id", "turns[].llm_calls[]"),
        detector=wants(JSON_CONTAINERS, "session_id", "turns", "date", title="Copilot sessions:"),
        expand=_expand,
        columns={
            "arrival": "turns.llm_calls.timestamp",
            "prompt_tokens": "turns.llm_calls.tokens.prompt",
            "output_tokens": "turns.llm_calls.tokens.completion",
            "cached_tokens": "turns.llm_calls.tokens.cached",
            "model": "turns.llm_calls.model",
            "session": "session_id",
            "status": "turns.llm_calls.result",
            "request_id": "turns.llm_calls.message_id",
        },
        numbered=True,
    ),
)
