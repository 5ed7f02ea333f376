"""OpenTelemetry spans of generative AI as OTLP JSON: one document, or one batch a line (the collector's file exporter).

Source: OpenTelemetry semantic conventions for generative AI (``gen_ai.*``, with the older names) and OpenInference
(``llm.*``). Input tokens hold the cached ones by both conventions; spans that show otherwise are summed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.doubled import doubled
from replay.traces.formats.nesting import Tokens, lookout
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.usage import Parts, cached_rule, parts_from
from replay.traces.formats.values import (
    BadCountError,
    count,
    duration_ns,
    first,
    known,
    naive_ns,
    pick_key,
    spent_ns,
    text,
)
from replay.traces.rows import Sample

_OPERATIONS = ("chat", "text_completion", "generate_content", "embeddings", "completion", "responses")
_INPUT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
)
_OUTPUT = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
    "llm.usage.completion_tokens",
)  # fmt: skip
_READ = (
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read", "gen_ai.usage.cached_tokens", "gen_ai.usage.input_cached_tokens",
    "gen_ai.usage.cache_read_tokens", "gen_ai.usage.details.cache_read_tokens", "gen_ai.usage.details.cached_tokens",
)  # fmt: skip
_CREATED = (
    "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write", "gen_ai.usage.cache_write_tokens",
    "gen_ai.usage.cache_creation_tokens", "gen_ai.usage.details.cache_write_tokens",
)  # fmt: skip
_REASONING = (
    "gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning",
)  # fmt: skip
_TOTAL = ("llm.token_count.total", "llm.usage.total_tokens", "gen_ai.usage.total_tokens")
_MODEL = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
_SESSION = ("gen_ai.conversation.id", "session.id")
_TENANT = ("user.id", "enduser.id", "llm.user")
_TTFT = (
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.latency.time_to_first_token",
    "gen_ai.server.time_to_first_token",
)
_NAMES = {
    "prompt_tokens": _INPUT,
    "output_tokens": _OUTPUT,
    "cached_tokens": _READ,
    "created": _CREATED,
    "reasoning_tokens": _REASONING,
    "total": _TOTAL,
    "model": _MODEL,
    "session": _SESSION,
    "tenant": _TENANT,
    "ttft": _TTFT,
}
_REQUEST_ID = ("gen_ai.request.id",)
"""What vLLM's own spans have: no operation and, in newer versions, no model."""
_HOLDERS = ("resourceSpans", "resource_spans", "batches", "trace")
_VALUES = (
    "stringValue", "intValue", "doubleValue", "boolValue", "string_value", "int_value", "double_value", "bool_value",
)  # fmt: skip


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(item: dict[str, Any], camel: str, snake: str) -> Any:
    return item.get(camel) if camel in item else item.get(snake)


def _resources(record: dict[str, Any]) -> Any:
    """The list of resources: OTLP's, or as trace stores hand it out (``{"trace": ...}``, ``{"batches": ...}``)."""
    holder = record.get("trace")
    record = holder if isinstance(holder, dict) else record
    return first(_get(record, "resourceSpans", "resource_spans"), record.get("batches"))


def spans_of(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All spans of a batch. An element that is no object is handed on, for the caller to count."""
    for resource in _list(_resources(record)):
        if not isinstance(resource, dict):
            continue
        scopes = first(_get(resource, "scopeSpans", "scope_spans"), resource.get("instrumentationLibrarySpans"))
        for scope in _list(scopes):
            yield from _list(scope.get("spans")) if isinstance(scope, dict) else ()


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    """Attributes by name; a list of key and value as OTLP has it, or a plain object. Arrays become lists of texts."""
    given = span.get("attributes")
    if isinstance(given, dict):
        return given
    try:
        return {item["key"]: _value(item["value"]) for item in given or ()}
    except (KeyError, TypeError):  # odd ones among them
        return {
            str(item["key"]): _value(item.get("value"))
            for item in _list(given)
            if isinstance(item, dict) and "key" in item
        }


def _value(value: Any) -> Any:
    if type(value) is not dict:
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name in _VALUES:
            return inner
    for name in _VALUES:
        if name in value:
            return value[name]
    array = value.get("arrayValue", value.get("array_value"))
    return [_value(item) for item in _list(array.get("values"))] if isinstance(array, dict) else None


def _id(value: Any, size_bytes: int) -> str | None:
    """An id as lower hex, whether written in hex or, as generic protobuf tools do, in base64."""
    written = value if type(value) is str and len(value) == 2 * size_bytes else text(value)
    if written is None or len(written) == 2 * size_bytes:
        return written.lower() if written else None
    try:
        raw = base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError):
        return written
    return raw.hex() if len(raw) == size_bytes else written


def _key(span: dict[str, Any], name: str, other: str) -> str | None:
    own = _id(_get(span, name, other), 8)
    if own is None or set(own) == {"0"}:
        return None
    return f"{_id(_get(span, 'traceId', 'trace_id'), 16)}/{own}"


def _is_call(attributes: dict[str, Any]) -> bool:
    """A call of a language model: by its operation, else by OpenInference's kind, else by model and usage."""
    kind = text(attributes.get("openinference.span.kind"))
    operation = text(attributes.get("gen_ai.operation.name"))
    if attributes.get("logfire.span_type") == "pending_span":
        return False  # written when a span begins; the whole one follows
    if operation is not None:
        return operation.lower() in _OPERATIONS and (kind is None or kind.upper() in ("LLM", "EMBEDDING"))
    if kind is not None:
        return kind.upper() in ("LLM", "EMBEDDING")
    if text(attributes.get("traceloop.span.kind")) is not None:
        return False
    request = text(attributes.get("llm.request.type"))
    if request is not None:
        return request.lower() in ("chat", "completion", "embedding")
    return known(pick_key(attributes, *_MODEL, *_REQUEST_ID)) and known(pick_key(attributes, *_INPUT, *_OUTPUT))


@lru_cache(maxsize=4096)
def _present(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Of the names of each field those that a span with these attributes has, in the order of preference."""
    return {field: tuple(name for name in known_as if name in names) for field, known_as in _NAMES.items()}


def _picked(attributes: dict[str, Any]) -> dict[str, Any]:
    """Each field of ``_NAMES`` under the first name that says anything."""
    return {
        field: pick_key(attributes, *names) if names else None for field, names in _present(tuple(attributes)).items()
    }


def _parts(attributes: dict[str, Any]) -> Parts:
    return parts_from(_picked(attributes), "included")


def _group(attributes: dict[str, Any]) -> str:
    return text(pick_key(attributes, "gen_ai.provider.name", "gen_ai.system", "llm.provider", *_MODEL)) or ""


def _grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    for span in spans_of(record):
        if isinstance(span, dict) and _is_call(attributes := _attributes(span)):
            yield _group(attributes), _parts(attributes)


def _safe(value: Any) -> int | None:
    try:
        return count(value)
    except BadCountError:
        return None


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    if _resources(record) is None:
        reading.not_request("records without spans")
        return []
    seen: set[int] = reading.state.setdefault("spans", set())
    around = lookout(reading)
    rows: list[Row] = []
    for span in spans_of(record):
        if not isinstance(span, dict):
            rows.append({"rule": "not_unpacked", "column": "spans"})
            continue
        attributes = _attributes(span)
        key, parent = _key(span, "spanId", "span_id"), _key(span, "parentSpanId", "parent_span_id")
        if not _is_call(attributes):
            if key is not None:
                around.note(key, parent, None)
            operation = first(attributes.get("gen_ai.operation.name"), attributes.get("openinference.span.kind"))
            reading.not_request(f"{(text(operation) or 'other')[:30]} spans")
            continue
        said = _picked(attributes)
        if key is not None:
            cached = (_safe(said["cached_tokens"]) or 0) + (_safe(said["created"]) or 0)
            tokens = Tokens(_safe(said["prompt_tokens"]), _safe(said["output_tokens"]), cached)
            around.note(key, parent, tokens)
            if hash(key) in seen or (around.has_fuller(key) and tokens.unknown):
                reading.not_request("repeated spans")
                continue
            seen.add(hash(key))
            if around.repeats(key):
                reading.not_request("model call spans around others")
                continue
        row = _row(span, attributes, said, reading)
        trace = text(_get(span, "traceId", "trace_id"))
        start, end = row["arrival"], first(_get(span, "endTimeUnixNano", "end_time_unix_nano"), span.get("endTime"))
        doubled(reading).note(trace, _safe(said["prompt_tokens"]), _safe(said["output_tokens"]), start, end)
        rows.append(row)
    return rows


def _row(span: dict[str, Any], attributes: dict[str, Any], said: dict[str, Any], reading: RecordReading) -> Row:
    row: Row = cached_rule(reading, _grouped, "input tokens").row(_group(attributes), parts_from(said, "included"))
    start, end = (
        _get(span, "startTimeUnixNano", "start_time_unix_nano"),
        _get(span, "endTimeUnixNano", "end_time_unix_nano"),
    )
    start, end = first(start, span.get("startTime"), span.get("start_time")), first(end, span.get("endTime"))
    reading.ledger.warn(
        "sampling",
        "tracing often keeps a sample of the calls only, and this file cannot show it: if yours does, the load is "
        "larger by that factor (a workload's growth makes up for it)",
    )
    return row | {
        "arrival": start,
        "status": _status(span, attributes),
        "model": text(said["model"]),
        "tenant": text(said["tenant"]),
        "session": text(said["session"]),
        "source_ttft_ns": duration_ns(said["ttft"], "s"),
        "source_e2e_ns": spent_ns(reading.ledger, start, end) or None,
        "source_queue_ns": duration_ns(attributes.get("gen_ai.latency.time_in_queue"), "s"),
        **({"rule": "not_a_time", "column": "startTimeUnixNano"} if _no_time(start) else {}),
    }


def _no_time(start: Any) -> bool:
    """A start of 0 is what an exporter writes that does not know it."""
    return str(start).strip() == "0" or (isinstance(start, str) and start[:1].isalpha() and naive_ns(start) is None)


def _status(span: dict[str, Any], attributes: dict[str, Any]) -> str:
    status = span.get("status")
    code = status.get("code") if isinstance(status, dict) else status
    error = text(attributes.get("error.type"))
    if error is None and str(code) not in ("2", "STATUS_CODE_ERROR", "ERROR"):
        return "ok"
    message = text(status.get("message")) if isinstance(status, dict) else None
    words = f"{error or ''} {message or ''}".lower()
    return "aborted" if any(word in words for word in ("cancel", "abort", "disconnect")) else "failed"


def _detector(inference: bool) -> Callable[[Sample], Match | None]:
    def detect(sample: Sample) -> Match | None:
        holders = [{name: row[name] for name in _HOLDERS if row.get(name)} for row in sample.rows]
        if not any(_resources(holder) for holder in holders):
            return None
        spans = [span for holder in holders for span in spans_of(holder) if isinstance(span, dict)]
        names = {name for span in spans[:2000] for name in _attributes(span)}
        if not spans and not any("resource" in name for name in sample.columns):
            return None
        is_inference = "openinference.span.kind" in names and not any(name.startswith("gen_ai.usage") for name in names)
        if is_inference != inference:
            return None
        return Match(f"{sample.container} with resourceSpans", 20)

    return detect


_COLUMNS = {
    "arrival": "startTimeUnixNano",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "model": "gen_ai.request.model",
    "tenant": "user.id",
    "session": "gen_ai.conversation.id",
}

FORMATS = (
    RecordFormat(
        name="otlp-genai",
        title="OpenTelemetry GenAI spans (OTLP JSON)",
        needs=("resourceSpans", "gen_ai.* attributes"),
        detector=_detector(inference=False),
        expand=_expand,
        columns=_COLUMNS,
        numbered=True,
        settles_cached=True,
    ),
    RecordFormat(
        name="otlp-openinference",
        title="OpenInference spans (OTLP JSON)",
        needs=("resourceSpans", "openinference.span.kind"),
        detector=_detector(inference=True),
        expand=_expand,
        columns={
            **_COLUMNS,
            "prompt_tokens": "llm.token_count.prompt",
            "output_tokens": "llm.token_count.completion",
            "cached_tokens": "llm.token_count.prompt_details.cache_read",
            "reasoning_tokens": "llm.token_count.completion_details.reasoning",
            "model": "llm.model_name",
            "session": "session.id",
        },
        numbered=True,
        settles_cached=True,
    ),
)
