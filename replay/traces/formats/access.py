"""Access logs of gateways in JSON: Envoy AI Gateway, whose times are starts, and nginx, whose times are ends.

Sources: envoyproxy/ai-gateway, examples/access-log; nginx, ngx_http_log_module. Field names are the operator's choice:
what is read here are the names of the examples and of common header names; others need a column mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from replay.errors import FieldError, TraceError
from replay.traces.formats.base import Match
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.usage import Parts, cached_rule, parts_from
from replay.traces.formats.values import (
    counts_only,
    duration_ns,
    first,
    http_status,
    iso,
    naive_ns,
    number,
    pick_key,
    text,
)
from replay.traces.options import TimeUnit
from replay.traces.rows import Sample
from replay.traces.times import EPOCH_2000_NS, EPOCH_2100_NS

_JSON = ("jsonl", "json-array", "json")
_ENVOY_INPUT = ("gen_ai.usage.input_tokens", "llm_input_token", "llm_input_tokens", "gen_ai.usage.prompt_tokens")
_ENVOY_OUTPUT = (
    "gen_ai.usage.output_tokens",
    "llm_output_token",
    "llm_output_tokens",
    "gen_ai.usage.completion_tokens",
)
_ENVOY_CACHED = (
    "gen_ai.usage.cached_input_tokens", "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens",
    "llm_cached_input_token", "llm_cached_input_tokens",
)  # fmt: skip
_ENVOY_CREATED = ("gen_ai.usage.cache_creation_input_tokens", "gen_ai.usage.cache_creation.input_tokens")
_ENVOY_REASONING = ("gen_ai.usage.reasoning_tokens", "llm_reasoning_token", "llm_reasoning_tokens")
_ENVOY_TOTAL = ("gen_ai.usage.total_tokens", "llm_total_token", "llm_total_tokens")
_GENERATES = re.compile(r"completions?|responses|messages|generate|invoke|converse|embeddings|/chat", re.IGNORECASE)
_PROMPT_HEADER = re.compile(r"(?:prompt|input)[_-]?tokens?$", re.IGNORECASE)
_OUTPUT_HEADER = re.compile(r"(?:generated|completion|output)[_-]?tokens?$", re.IGNORECASE)
_NO_COUNT_HEADER = re.compile(r"max|limit|remaining|budget|uncached", re.IGNORECASE)
_LONG_S = 60
_CACHED_HEADER = re.compile(r"cached?[_-](?:(?:prompt|input|read)[_-])*tokens?$", re.IGNORECASE)


def _is_other(method: Any, path: Any) -> bool:
    """Whether the request asked for something else than generated text: health, metrics, the list of models."""
    verb, where = text(method), text(path)
    if verb is not None and verb.upper() in ("GET", "HEAD", "OPTIONS"):
        return True
    return where is not None and (counts_only(where) or _GENERATES.search(where.split("?", 1)[0]) is None)


def _envoy_parts(record: dict[str, Any]) -> Parts:
    raw = {
        "prompt_tokens": pick_key(record, *_ENVOY_INPUT),
        "output_tokens": pick_key(record, *_ENVOY_OUTPUT),
        "cached_tokens": pick_key(record, *_ENVOY_CACHED),
        "created": pick_key(record, *_ENVOY_CREATED),
        "reasoning_tokens": pick_key(record, *_ENVOY_REASONING),
        "total": pick_key(record, *_ENVOY_TOTAL),
    }
    return parts_from(raw, "included")


def _envoy_grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    yield text(pick_key(record, "gen_ai.provider.name", "gen_ai.request.model")) or "", _envoy_parts(record)


def _envoy(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    path = pick_key(record, "x-envoy-origin-path", "request.path", "path")
    if _is_other(record.get("method"), path):
        reading.not_request("requests for other paths")
        return []
    group, parts = next(_envoy_grouped(record))
    row: Row = cached_rule(reading, _envoy_grouped, _ENVOY_INPUT[0]).row(group, parts)
    status = http_status(record.get("response_code"))
    if "DC" in str(record.get("response_flags") or "").split(","):
        status = "aborted"  # downstream connection termination: the client left
    return [
        row
        | {
            "arrival": record.get("start_time"),
            "status": status,
            "model": text(pick_key(record, "gen_ai.request.model", "gen_ai.response.model")),
            "tenant": text(pick_key(record, "x-tenant-id", "x-user-id")),
            "session": text(pick_key(record, "session.id", "x-session-id")),
            "source_e2e_ns": duration_ns(record.get("duration"), "ms"),
            "request_id": text(record.get("x-request-id")),
        }
    ]


def _envoy_detect(sample: Sample) -> Match | None:
    tokens = [name for name in (*_ENVOY_INPUT, *_ENVOY_OUTPUT) if name in sample.columns]
    if sample.container not in _JSON or not sample.has("start_time", "response_code", "duration") or len(tokens) < 2:
        return None
    return Match(f"{sample.container} with start_time, response_code, duration, {', '.join(tokens)}", 3 + len(tokens))


def _column(names: Any, pattern: re.Pattern[str]) -> str | None:
    """The first name that fits and is no limit on tokens."""
    return next((name for name in names if pattern.search(str(name)) and not _NO_COUNT_HEADER.search(str(name))), None)


def _nginx_parts(record: dict[str, Any]) -> Parts:
    cached = _column(record, _CACHED_HEADER)
    rest = [name for name in record if name != cached]
    prompt, output = _column(rest, _PROMPT_HEADER), _column(rest, _OUTPUT_HEADER)
    raw = {
        "prompt_tokens": _last_try(record.get(prompt or "")),
        "output_tokens": _last_try(record.get(output or "")),
        "cached_tokens": _last_try(record.get(cached or "")),
    }
    return parts_from(raw, "included" if cached else None)


def _last_try(value: Any) -> Any:
    """The value of the last of several upstream servers that were tried: ``0.1, 2.3`` or, redirected, ``a : b``."""
    written = text(value)
    return re.split(r"\s*(?:,|\s:\s)\s*", written)[-1] if written is not None else None


def _nginx(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    request = (text(record.get("request")) or "").split(" ")
    method = first(record.get("request_method"), record.get("method"), request[0] or None)
    path = first(record.get("request_uri"), record.get("uri"), request[1] if len(request) > 1 else None)
    if _is_other(method, path):
        reading.not_request("requests for other paths")
        return []
    if re.search(r",|\s:\s", text(record.get("upstream_response_time")) or ""):
        reading.ledger.warn(
            "tries", "some requests were tried on several upstream servers: each try was load, one is counted here"
        )
    spent = duration_ns(record.get("request_time"), _unit_of_spent(record, reading))
    parts = _nginx_parts(record)
    return [
        parts.row(parts.side)
        | {
            **_start(record, spent),
            "status": http_status(record.get("status")),
            "model": text(_header(record, "model")),
            "tenant": text(first(_header(record, "tenant_id"), _header(record, "user_id"), record.get("remote_user"))),
            "session": text(_header(record, "session_id")),
            "source_e2e_ns": spent,
            "request_id": text(record.get("request_id")),
        }
    ]


def _header(record: dict[str, Any], name: str) -> Any:
    return first(*(record.get(f"{where}_x_{name}") for where in ("http", "upstream_http", "sent_http")))


def _unit_of_spent(record: dict[str, Any], reading: RecordReading) -> TimeUnit:
    """nginx writes ``request_time`` in seconds with three digits. A whole minute or more without any is no such number.

    Raises:
        TraceError: ``trace.ambiguous_unit``, until the parameter time_unit says which unit it is.
    """
    if reading.options.time_unit is not None:
        return reading.options.time_unit
    spent = number(record.get("request_time"))
    if spent is not None and spent >= _LONG_S and "." not in str(record.get("request_time")):
        raise TraceError(
            "trace.ambiguous_unit",
            f"request_time is {spent:,}, without the three digits that nginx writes: seconds or milliseconds? Say "
            "which by the parameter time_unit (s or ms)",
            [
                FieldError(
                    f"it is in {unit}: then give time_unit={unit}",
                    field="time_unit",
                    column="request_time",
                    rule="ambiguous_time_unit",
                    cure=f"time_unit={unit}",
                )
                for unit in ("s", "ms")
            ],
        )
    return "s"


def _start(record: dict[str, Any], spent_ns: int | None) -> Row:
    """The end that nginx writes less the time it took; without a zone where the end has none."""
    ended, zoned = number(record.get("msec")), True
    if ended is not None:
        end_ns = int(ended * Decimal(10**9))
        if not EPOCH_2000_NS <= end_ns < EPOCH_2100_NS:
            return {"arrival": None, "rule": "time_out_of_range", "column": "msec"}
    else:
        found = naive_ns(record.get("time_iso8601"))
        if found is None:
            return {"arrival": None}
        end_ns, zoned = found
    if spent_ns is None or end_ns < spent_ns:
        return {"arrival": None}
    return {"arrival": iso(end_ns - spent_ns).removesuffix("" if zoned else "Z")}


def _nginx_detect(sample: Sample) -> Match | None:
    times = [name for name in ("msec", "time_iso8601") if name in sample.columns]
    tokens = [_column(sample.columns, pattern) for pattern in (_PROMPT_HEADER, _OUTPUT_HEADER)]
    if sample.container not in _JSON or not times or not sample.has("request_time", "status"):
        return None
    if not all(tokens):
        return None
    return Match(f"{sample.container} with {', '.join(times)}, request_time, status, {tokens[0]}, {tokens[1]}", 6)


FORMATS = (
    RecordFormat(
        name="envoy-ai-gateway",
        title="Envoy AI Gateway access log",
        needs=("start_time", "duration", "response_code", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
        detector=_envoy_detect,
        expand=_envoy,
        columns={
            "arrival": "start_time",
            "prompt_tokens": "gen_ai.usage.input_tokens",
            "output_tokens": "gen_ai.usage.output_tokens",
            "cached_tokens": "gen_ai.usage.cached_input_tokens",
            "reasoning_tokens": "gen_ai.usage.reasoning_tokens",
            "model": "gen_ai.request.model",
            "session": "session.id",
            "request_id": "x-request-id",
        },
        settles_cached=True,
    ),
    RecordFormat(
        name="nginx-json",
        title="nginx access log in JSON",
        needs=("msec or time_iso8601", "request_time", "status", "headers with prompt and generated tokens"),
        detector=_nginx_detect,
        expand=_nginx,
        columns={
            "arrival": "msec - request_time",
            "prompt_tokens": "upstream_http_x_prompt_tokens",
            "output_tokens": "upstream_http_x_generated_tokens",
            "session": "http_x_session_id",
            "request_id": "request_id",
        },
        computes_times=True,
        settles_cached=True,
    ),
)
