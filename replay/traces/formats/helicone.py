"""Helicone requests, as its query API and exports give them.

Source: Helicone's JSON schema of ``HeliconeRequest``. Negative states are Helicone's own (cancelled, pending).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.usage import Parts, cached_rule, own_total_dropped, parts_of, without_side
from replay.traces.formats.values import (
    duration_ns,
    first,
    http_status,
    number,
    obj,
    spent_ns,
    text,
)
from replay.traces.rows import Sample

_NO_ID = "00000000-0000-0000-0000-000000000000"
_CANCELLED, _BLOCKED = -3, -4
_COUNT_APART = ("anthropic", "claude", "bedrock", "aws")
"""Providers and models whose input leaves cached tokens out. Helicone adds up the total itself."""
_NEEDS = ("request_created_at", "response_status", "prompt_tokens", "completion_tokens")


def _parts(record: dict[str, Any]) -> Parts:
    parts = without_side(parts_of(record))
    provider, model = (text(record.get(name)) or "" for name in ("provider", "request_model"))
    apart = any(word in f"{provider} {model}".lower() for word in _COUNT_APART)
    return own_total_dropped(parts) if apart else parts


def _grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    yield text(record.get("provider")) or "", _parts(record)


def _status(record: dict[str, Any]) -> str:
    cached_as = text(record.get("cache_reference_id"))
    if cached_as not in (None, _NO_ID) or str(record.get("cache_hit")).lower() == "true":
        return "cache_hit"
    code = number(record.get("response_status"))
    if code is not None and code <= 0:
        return {_CANCELLED: "aborted", _BLOCKED: "failed"}.get(int(code), "unknown")
    return http_status(code if code is None else int(code))


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    group, parts = next(_grouped(record))
    row: Row = cached_rule(reading, _grouped, "prompt_tokens").row(group, parts)
    status = _status(record)
    start, end = record.get("request_created_at"), record.get("response_created_at")
    delay = duration_ns(record.get("delay_ms"), "ms")
    properties = {str(key).lower(): value for key, value in obj(record.get("request_properties")).items()}
    return [
        row
        | {
            "arrival": start,
            "status": status,
            "model": text(
                first(record.get("request_model"), record.get("model_override"), record.get("response_model"))
            ),
            "tenant": text(first(record.get("request_user_id"), record.get("helicone_user"))),
            "session": text(properties.get("helicone-session-id")),
            "source_ttft_ns": duration_ns(record.get("time_to_first_token"), "ms") if status == "ok" else None,
            "source_e2e_ns": delay if delay is not None else spent_ns(reading.ledger, start, end),
            "request_id": text(record.get("request_id")),
        }
    ]


def _detect(sample: Sample) -> Match | None:
    return Match(f"{sample.container} with {', '.join(_NEEDS)}", len(_NEEDS) + 1) if sample.has(*_NEEDS) else None


FORMATS = (
    RecordFormat(
        name="helicone-requests",
        title="Helicone requests",
        needs=_NEEDS,
        detector=_detect,
        expand=_expand,
        columns={
            "arrival": "request_created_at",
            "prompt_tokens": "prompt_tokens",
            "output_tokens": "completion_tokens",
            "cached_tokens": "prompt_cache_read_tokens",
            "model": "request_model",
            "tenant": "request_user_id",
            "session": "request_properties.Helicone-Session-Id",
            "request_id": "request_id",
        },
        naive_zone=("UTC", "Helicone stores times in UTC"),
        settles_cached=True,
    ),
)
