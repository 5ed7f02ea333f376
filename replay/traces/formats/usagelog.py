"""Logs that people write themselves around the APIs of OpenAI and Anthropic: a time and the answer's ``usage``.

Also answers as they came (``created``), results of batch files, chunks of streams, and session files of Claude Code,
where several lines of one answer repeat its usage. What ``usage`` counts is in ``usage.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.bodies import first_usage
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.usage import Parts, cached_rule, parts_of
from replay.traces.formats.values import counts_only, duration_ns, elapsed_ns, first, http_status, known, obj, text
from replay.traces.rows import Sample
from replay.traces.source import refusal

_JSON = ("jsonl", "json-array", "json")
_HOLDERS: tuple[tuple[str, ...], ...] = (
    (),
    ("response",),
    ("response", "body"),
    ("body",),
    ("message",),
    ("result", "message"),
)
_STARTS = (
    "start_time", "startTime", "started_at", "start", "request_time", "request_start_time", "request_timestamp",
    "requested_at", "received_at", "arrival_time", "arrival", "timestamp", "@timestamp", "time", "ts", "datetime",
    "created_at", "createdAt", "created",
)  # fmt: skip
_ENDS = ("end_time", "endTime", "ended_at", "completed_at", "finished_at")
_ANTHROPIC = ("cache_read_input_tokens", "cache_creation_input_tokens")
_STREAM_PART = "chat.completion.chunk"
_STREAM_ENDS = ("response.completed", "response.incomplete", "response.failed")
_ANTHROPIC_PARTS = ("message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta")
_CACHE_HITS = ("cache_hit", "cacheHit", "from_cache", "cache_status")
_PATHS = ("path", "url", "endpoint", "route", "uri", "request_path")
_PROBE = re.compile(r"(?:^|/)(?:health[a-z]*|ready[a-z]*|live[a-z]*|ping|metrics|version|models)/?$", re.IGNORECASE)


def _holder(record: dict[str, Any]) -> dict[str, Any]:
    """The object that has the usage: the record or an answer inside it; empty where none has."""
    for path in _HOLDERS:
        at: Any = record
        for key in path:
            at = obj(at.get(key))
        if at and first_usage(at):
            return obj(at)
    return {}


def _grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    holder = _holder(record)
    if holder:
        yield text(first(holder.get("model"), record.get("model"))) or "", parts_of(first_usage(holder))


def _time(record: dict[str, Any], holder: dict[str, Any]) -> tuple[str | None, Any]:
    """The name and the value of the start: the record's own before the answer's."""
    for source in (record, holder, obj(record.get("response"))):
        for name in _STARTS:
            if known(source.get(name)) and not isinstance(source[name], (dict, list)):
                return name, source[name]
    return None, None


def _status(record: dict[str, Any], holder: dict[str, Any]) -> str:
    if any(str(record.get(name)).lower() in ("true", "hit") for name in _CACHE_HITS):
        return "cache_hit"
    if known(record.get("error")) or known(holder.get("error")):
        return "failed"
    code = first(record.get("status_code"), obj(record.get("response")).get("status_code"), record.get("http_status"))
    if known(code):
        return http_status(code)
    word = (text(first(holder.get("status"), record.get("status"))) or "").lower()
    if word in ("failed", "failure", "error", "timeout"):
        return "failed"
    if word in ("cancelled", "canceled", "aborted", "incomplete"):
        return "ok" if word == "incomplete" else "aborted"
    return "ok" if holder else "unknown"


def _path(record: dict[str, Any]) -> str:
    return text(first(*(source.get(name) for source in (record, obj(record.get("request"))) for name in _PATHS))) or ""


def _is_probe(record: dict[str, Any]) -> bool:
    """Whether a row asked for health, metrics or the list of models. Other paths may be a gateway's own."""
    where, request = _path(record), obj(record.get("request"))
    verb = text(first(record.get("method"), record.get("http_method"), request.get("method"))) or ""
    return verb.upper() in ("GET", "HEAD", "OPTIONS") or _PROBE.search(where.split("?", 1)[0]) is not None


def _row(record: dict[str, Any], reading: RecordReading) -> Row:
    holder = _holder(record)
    usage = first_usage(holder) if holder else {}
    group = text(first(holder.get("model"), record.get("model"))) or ""
    name, start = _time(record, holder)
    if name in ("created", "created_at", "createdAt"):
        reading.ledger.warn(
            "created",
            f"{name} is when the answer was begun, to the second where it is a number: it was taken as the arrival",
        )
    elif name not in (None, *_STARTS[:11]):
        reading.ledger.warn(
            "start_or_end",
            f"{name} was taken as the start of a request; if your log writes it at the end, rename it, or add a "
            "start_time",
        )
    ends = first(*(record.get(end) for end in _ENDS))
    choices = holder.get("choices")
    if isinstance(choices, list) and len(choices) > 1:
        reading.ledger.warn(
            "choices",
            "some answers have several choices, generated side by side: each is read as one request with all tokens",
        )
    milli = duration_ns(first(record.get("latency_ms"), record.get("duration_ms")), "ms")
    return cached_rule(reading, _grouped, "the input of usage").row(group, parts_of(usage)) | {
        "arrival": start,
        "status": _status(record, holder),
        "model": text(first(record.get("model"), holder.get("model"), obj(record.get("request")).get("model"))),
        "tenant": text(first(record.get("tenant"), record.get("team_id"), record.get("user"), record.get("user_id"))),
        "session": text(first(record.get("session_id"), record.get("sessionId"), record.get("conversation_id"))),
        "source_e2e_ns": elapsed_ns(start, ends) if milli is None else milli,
        "source_ttft_ns": duration_ns(first(record.get("ttft_ms"), record.get("time_to_first_token_ms")), "ms"),
        "request_id": text(
            first(
                record.get("request_id"),
                record.get("id"),
                holder.get("id"),
                holder.get("responseId"),
                record.get("custom_id"),
            )
        ),
    }


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    for body in (record, obj(record.get("response")), obj(record.get("chunk"))):
        if body.get("object") == _STREAM_PART:
            return _part(record, body, line, reading)
    kind = text(record.get("type")) or ""
    if kind in _ANTHROPIC_PARTS:
        cure = "log one row an answer, with the usage of its message_start and its last message_delta"
        raise refusal(
            "stream_parts",
            f"line {line:,} is a part of a streamed answer ({kind}), and such parts have no id to join them by",
            "stream_parts",
            cure,
            line,
        )
    if kind.startswith("response.") and kind not in _STREAM_ENDS:
        reading.not_request("events of streams")
        return []
    if counts_only(_path(record)) or (not _holder(record) and _is_probe(record)):
        reading.not_request("requests for other paths")
        return []
    row = _row(record, reading)
    if not known(row["arrival"]) and not _holder(record):
        reading.not_request("records without time and usage")
        return []
    return [row]


def _part(record: dict[str, Any], body: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    """A chunk of a stream: the first tells the start, the last one with usage the counts."""
    parts: dict[str, dict[str, Any]] = reading.state.setdefault("parts", {})
    key = text(body.get("id")) or f"line {line}"
    start = _time(record, body)[1]
    seen = parts.setdefault(key, {"line": line, "record": {"id": key, "model": body.get("model"), "start_time": start}})
    usage = first_usage(body)
    if usage:
        seen["record"]["usage"] = usage
    reading.not_request("chunks of streams")
    return []


def _finish(reading: RecordReading) -> list[Row]:
    rows = []
    for seen in reading.state.get("parts", {}).values():
        row = _row(seen["record"], reading) | {"line": seen["line"]}
        if "usage" not in seen["record"]:
            row["status"] = "unknown"
            reading.ledger.warn(
                "no_usage", "some streams have no chunk with usage: cut off, or sent without include_usage"
            )
        rows.append(row)
    return rows


def _columns_with_usage(sample: Sample) -> list[str]:
    prefixes = {".".join(path) + "." if path else "" for path in _HOLDERS}
    names = {f"{prefix}{name}" for prefix in prefixes for name in ("usage", "usageMetadata", "usage_metadata")}
    return [name for name in sample.columns if name in names]


def _is_session(sample: Sample) -> bool:
    return sample.has("sessionId", "timestamp", "type", "message.usage")


def _match(sample: Sample, *, anthropic: bool) -> Match | None:
    if sample.container not in _JSON or _is_session(sample) or not _columns_with_usage(sample):
        return None
    rows = [row for row in sample.rows if _holder(row)]
    if not rows or not any(known(_time(row, _holder(row))[1]) for row in rows):
        return None
    usage = first_usage(_holder(rows[0]))
    is_anthropic = any(name in usage for name in _ANTHROPIC) and "prompt_tokens" not in usage
    if is_anthropic != anthropic:
        return None
    return Match(f"{sample.container} with {', '.join(_columns_with_usage(sample))} and a time", 3)


def _session(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    """A line of a Claude Code session: an answer begins when the user's line before it came; its last line counts."""
    state: dict[str, Any] = reading.state.setdefault("session", {"asked": {}, "answers": {}})
    thread = (text(record.get("sessionId")), bool(record.get("isSidechain")))
    message = obj(record.get("message"))
    if record.get("type") != "assistant" or not first_usage(message):
        if record.get("type") == "user":
            state["asked"][thread] = record.get("timestamp")
        reading.not_request(f"{(text(record.get('type')) or 'other')[:30]} lines")
        return []
    if record.get("isApiErrorMessage") or message.get("model") == "<synthetic>":
        reading.not_request("messages of the tool itself")
        return []
    key = text(first(message.get("id"), record.get("requestId"), record.get("uuid"))) or f"line {line}"
    answer = state["answers"].setdefault(
        key,
        {
            "line": line,
            "start_time": first(state["asked"].get(thread), record.get("timestamp")),
            "sessionId": record.get("sessionId"),
            "model": message.get("model"),
        },
    )
    if "usage" in answer:
        reading.not_request("repeated lines of answers")
    answer["usage"], answer["end_time"] = first_usage(message), record.get("timestamp")
    return []


def _session_finish(reading: RecordReading) -> list[Row]:
    answers = reading.state.get("session", {}).get("answers", {})
    return [_row(answer, reading) | {"line": answer["line"]} for answer in answers.values()]


def _session_detect(sample: Sample) -> Match | None:
    if sample.container != "jsonl" or not _is_session(sample):
        return None
    return Match("jsonl with sessionId, timestamp, type, message.usage", 6)


_COLUMNS = {
    "arrival": "start_time, timestamp or created",
    "prompt_tokens": "usage",
    "output_tokens": "usage",
    "cached_tokens": "usage",
    "reasoning_tokens": "usage",
    "model": "model",
    "request_id": "id",
}

FORMATS = (
    RecordFormat(
        name="openai-usage-log",
        title="Log of answers with OpenAI's usage",
        needs=("a time", "usage of prompt_tokens and completion_tokens, or input_tokens and output_tokens"),
        detector=lambda sample: _match(sample, anthropic=False),
        expand=_expand,
        finish=_finish,
        columns=_COLUMNS,
        settles_cached=True,
    ),
    RecordFormat(
        name="anthropic-usage-log",
        title="Log of answers with Anthropic's usage",
        needs=("a time", "usage of input_tokens, output_tokens, cache_read_input_tokens"),
        detector=lambda sample: _match(sample, anthropic=True),
        expand=_expand,
        finish=_finish,
        columns=_COLUMNS,
        settles_cached=True,
    ),
    RecordFormat(
        name="claude-code-session",
        title="Claude Code session file",
        needs=("sessionId", "timestamp", "type", "message.usage"),
        detector=_session_detect,
        expand=_session,
        finish=_session_finish,
        columns={**_COLUMNS, "session": "sessionId", "arrival": "timestamp of the line before the answer"},
        settles_cached=True,
    ),
)
