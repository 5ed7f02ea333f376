"""LiteLLM: rows of ``LiteLLM_SpendLogs`` (CSV or JSON) and the payload that its callbacks write.

Source: BerriAI/litellm, ``litellm/proxy/schema.prisma`` and ``litellm/types/utils.py`` (StandardLoggingPayload).
The table's times are UTC and have no zone in SQL exports. A failed call has 0 tokens and start = end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.usage import Parts, cached_rule, own_total_dropped, parts_from, parts_of, without_side
from replay.traces.formats.values import (
    duration_ns,
    elapsed_ns,
    first,
    moment_ns,
    number,
    obj,
    spent_ns,
    text,
)
from replay.traces.rows import Sample

_SPEND = (
    "request_id", "call_type", "api_key", "spend", "model_group", "completionStartTime", "cache_hit", "team_id",
    "litellm_call_id", "request_tags", "custom_llm_provider", "total_tokens",
)  # fmt: skip
_PAYLOAD = (
    "id",
    "trace_id",
    "response_cost",
    "response_time",
    "error_str",
    "model_parameters",
    "status_fields",
    "status",
)
_TOKENS = ("startTime", "prompt_tokens", "completion_tokens")
_NO_GENERATION = (
    "image", "transcription", "speech", "moderation", "rerank", "mcp", "vector_store", "health", "ocr", "search",
    "file", "batch", "container", "count_tokens", "video", "realtime_client_secret", "get_", "delete_", "list_",
    "cancel_", "retrieve",
)  # fmt: skip
"""Parts of a ``call_type`` that generates no text on a language model."""
_BRIDGE_NS = 10**9
_MAX_SEEN = 100_000
_FOLDED = {name.lower(): name for name in ("startTime", "endTime", "completionStartTime")}


def _usage(record: dict[str, Any]) -> dict[str, Any]:
    """The usage object that LiteLLM keeps beside its own columns; older rows have only what its columns lack."""
    metadata = obj(record.get("metadata"))
    return obj(metadata.get("usage_object")) or obj(metadata.get("additional_usage_values"))


def _parts(record: dict[str, Any]) -> Parts:
    usage = parts_of(_usage(record))
    raw = {
        "prompt_tokens": record.get("prompt_tokens"),
        "output_tokens": record.get("completion_tokens"),
        "total": record.get("total_tokens"),
        "cached_tokens": usage.read,
        "created": usage.created,
        "reasoning_tokens": usage.reasoning,
    }
    parts = parts_from(raw, "included")
    if usage.extra == 0 or usage.side == "included" or parts.bad is not None:
        return parts
    if usage.side == "excluded" and parts.given in (usage.given, (usage.given or 0) + usage.extra):
        return parts._replace(side="excluded" if parts.given == usage.given else "included", total=None)
    return own_total_dropped(without_side(parts))  # a provider's names: older versions left these tokens out


def _grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    record = _cased(record)
    yield _group(record), _parts(record)


def _group(record: dict[str, Any]) -> str:
    return text(first(record.get("custom_llm_provider"), record.get("model"))) or ""


def _status(record: dict[str, Any], metadata: dict[str, Any]) -> str:
    if str(record.get("cache_hit")).strip().lower() == "true":
        return "cache_hit"
    said = (text(first(record.get("status"), metadata.get("status"))) or "").lower()
    if said == "success":
        return "ok"
    if said in ("failure", "failed", "error"):
        error = str(first(obj(metadata.get("error_information")).get("error_class"), record.get("error_str")) or "")
        return "aborted" if "cancel" in error.lower() or "disconnect" in error.lower() else "failed"
    return "unknown"


def _cased(record: dict[str, Any]) -> dict[str, Any]:
    """The record under the table's own names, where a database folded them to lower case."""
    if "starttime" not in record:
        return record
    return {_FOLDED.get(name, name): value for name, value in record.items()}


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    record = _cased(record)
    call_type = (text(record.get("call_type")) or "").lower()
    if any(word in call_type for word in _NO_GENERATION):
        reading.not_request(f"calls of type {call_type[:40]}")
        return []
    metadata = obj(record.get("metadata"))
    if record.get("metadata") and not metadata and text(record.get("metadata")) not in (None, "{}"):
        reading.ledger.warn("metadata", "in some rows metadata is no JSON object: their cached tokens are unknown")
    status = _status(record, metadata)
    parts = _parts(record)
    row: Row = cached_rule(reading, _grouped, "prompt_tokens").row(_group(record), parts)
    start, end, token = record.get("startTime"), record.get("endTime"), record.get("completionStartTime")
    e2e = spent_ns(reading.ledger, start, end)
    ttft = elapsed_ns(start, token)
    if e2e == 0 and status != "cache_hit":
        e2e = None  # a failed call's end is set to its start
    if ttft is not None and (e2e is None or ttft >= e2e or ttft == 0):
        ttft = None  # not streamed: the first token's time is set to the end
    if "embedding" in call_type:
        reading.ledger.warn("embeddings", "calls for embeddings are kept as arrivals; they generate nothing")
    if (number(metadata.get("attempted_retries")) or 0) > 0 or (number(metadata.get("attempted_fallbacks")) or 0) > 0:
        reading.ledger.warn(
            "attempts",
            "some calls were retried or fell back to another model: attempts that failed are load only as far as the "
            "file has rows for them",
        )
    row |= {
        "arrival": start,
        "status": status,
        "model": text(first(record.get("model_group"), record.get("model"))),
        "tenant": text(
            first(
                record.get("team_id"),
                metadata.get("user_api_key_team_id"),
                record.get("api_key"),
                metadata.get("user_api_key_hash"),
                record.get("end_user"),
            )
        ),
        "session": text(record.get("session_id")),
        "source_ttft_ns": ttft,
        "source_e2e_ns": e2e if e2e is not None else _nonzero(duration_ns(record.get("request_duration_ms"), "ms")),
        "request_id": text(first(record.get("request_id"), record.get("id"), record.get("litellm_call_id"))),
    }
    if _logged_twice(record, call_type, row, end, reading):
        return [{"arrival": start, "rule": "duplicate_request", "column": "call_type"}]
    return [row]


def _nonzero(value: int | None) -> int | None:
    return value or None


def _logged_twice(record: dict[str, Any], call_type: str, row: Row, end: Any, reading: RecordReading) -> bool:
    """Whether a bridge (the Responses or Messages API over a chat completion) logged this call already.

    Both rows have the same counts and nearly the same start and end; their types differ, and often their ids.
    """
    counts = (row["prompt_tokens"], row["output_tokens"])
    if not all(counts):
        return False
    seen: dict[tuple[Any, ...], tuple[str, Any, Any]] = reading.state.setdefault("calls", {})
    before = seen.get(counts)
    if len(seen) > _MAX_SEEN:
        seen.clear()  # both rows of a call are written at the same time, and so stand close to each other
    seen[counts] = (call_type, row["arrival"], end)
    if before is None or before[0] == call_type or not any("completion" in kind for kind in (before[0], call_type)):
        return False
    apart = (_apart_ns(before[1], row["arrival"]), _apart_ns(before[2], end))
    return all(ns is not None and ns < _BRIDGE_NS for ns in apart)


def _apart_ns(one: Any, other: Any) -> int | None:
    first_ns, second_ns = moment_ns(one), moment_ns(other)
    return None if first_ns is None or second_ns is None else abs(first_ns - second_ns)


def _has(sample: Sample, helpful: tuple[str, ...], at_least: int) -> Match | None:
    columns = {_FOLDED.get(name, name) for name in sample.columns}
    if not columns.issuperset(_TOKENS):
        return None
    found = [name for name in helpful if name in columns]
    if len(found) < at_least:
        return None
    return Match(f"{sample.container} with {', '.join((*_TOKENS, *found))}", len(_TOKENS) + len(found))


def _spend(sample: Sample) -> Match | None:
    return None if "response_cost" in sample.columns else _has(sample, _SPEND, 3)


def _payload(sample: Sample) -> Match | None:
    if (
        "spend" in sample.columns
        or "request_id" in sample.columns
        or sample.container not in ("jsonl", "json-array", "json")
    ):
        return None
    return _has(sample, _PAYLOAD, 3)


_COLUMNS = {
    "arrival": "startTime",
    "prompt_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cached_tokens": "metadata.usage_object",
    "reasoning_tokens": "metadata.usage_object.completion_tokens_details",
    "model": "model_group",
    "tenant": "team_id",
    "session": "session_id",
}

FORMATS = (
    RecordFormat(
        name="litellm-spendlogs",
        title="LiteLLM spend logs",
        needs=_TOKENS,
        detector=_spend,
        expand=_expand,
        columns={**_COLUMNS, "request_id": "request_id"},
        naive_zone=("UTC", "LiteLLM writes its spend logs in UTC"),
        settles_cached=True,
    ),
    RecordFormat(
        name="litellm-standard-logging",
        title="LiteLLM standard logging payload",
        needs=_TOKENS,
        detector=_payload,
        expand=_expand,
        columns={**_COLUMNS, "request_id": "id", "tenant": "metadata.user_api_key_team_id"},
        naive_zone=("UTC", "LiteLLM writes its logs in UTC"),
        settles_cached=True,
    ),
)
