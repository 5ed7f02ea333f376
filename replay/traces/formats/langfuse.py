"""Langfuse observations: the blob storage export and the API, JSON lines, JSON or CSV.

Source: Langfuse's documentation of the export fields and of ``usage_details``. Input and output are the parts that no
other key counts, but some SDKs write the sums there; ``total`` tells. Times are UTC without a mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.doubled import doubled
from replay.traces.formats.nesting import Tokens, lookout
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.usage import Parts, cached_rule, parts_from, without_side
from replay.traces.formats.values import (
    BadCountError,
    count,
    duration_ns,
    elapsed_ns,
    first,
    known,
    obj,
    pick_key,
    spent_ns,
    text,
)
from replay.traces.rows import Sample

_CALLS = ("GENERATION", "EMBEDDING")
_INPUT = ("input", "input_tokens", "prompt_tokens", "promptTokens")
_OUTPUT = ("output", "output_tokens", "completion_tokens", "completionTokens")
_READ = ("cache", "cached")
_CREATED = ("creation", "write")
_WAYS = (("type", "start_time"), ("type", "startTime"))


def _get(record: dict[str, Any], snake: str) -> Any:
    """A field in the export's spelling or in the API's."""
    head, *rest = snake.split("_")
    return first(record.get(snake), record.get(head + "".join(word.capitalize() for word in rest)))


def _details(record: dict[str, Any]) -> dict[str, Any]:
    """The usage map; in old exports ``usage`` or fields of the row."""
    for name in ("usage_details", "usageDetails", "usage"):
        if found := obj(record.get(name)):
            return found
    return {
        name: record[name] for name in (*_INPUT, *_OUTPUT, "total_tokens", "totalTokens") if known(record.get(name))
    }


def _parts(record: dict[str, Any]) -> Parts:
    """Parts of a usage map with open keys: every further key with ``input`` or ``output`` in it is a part of one."""
    details = _details(record)
    if _unit(record) != "TOKENS":
        return Parts()
    raw: dict[str, Any] = {
        "prompt_tokens": pick_key(details, *_INPUT),
        "output_tokens": pick_key(details, *_OUTPUT),
        "total": pick_key(details, "total", "total_tokens", "totalTokens"),
    }
    read = created = reasoning = beside = outputs = 0
    seen = {"cached_tokens": False, "reasoning_tokens": False}
    try:
        for key, value in details.items():
            if key in (*_INPUT, *_OUTPUT) or (number := count(value) if _is_part(key) else None) is None:
                continue
            if "output" in key or "completion" in key or "reasoning" in key:
                outputs += number
                if "reasoning" in key:
                    reasoning, seen["reasoning_tokens"] = reasoning + number, True
                continue
            if any(word in key for word in _CREATED):
                created += number
            elif any(word in key for word in _READ):
                read, seen["cached_tokens"] = read + number, True
            else:
                beside += number
    except BadCountError as error:
        raw["prompt_tokens"] = str(error.value)
    raw["cached_tokens"] = read if seen["cached_tokens"] else None
    raw["reasoning_tokens"] = reasoning if seen["reasoning_tokens"] else None
    raw["created"] = created + beside  # audio and other parts of the input count like those written to a cache
    return without_side(_with_outputs(parts_from(raw, None), outputs))


def _unit(record: dict[str, Any]) -> str:
    """What the counts are of, in older versions beside the usage."""
    return str(first(_details(record).get("unit"), record.get("unit"), "TOKENS")).upper()


def _is_part(key: str) -> bool:
    return any(word in key for word in ("input", "output", "cache", "reasoning", "completion", "prompt"))


def _with_outputs(parts: Parts, more: int) -> Parts:
    """Further parts of the output (reasoning, audio) added to it, unless the total shows that they are inside: without
    a total, Langfuse sums all parts up."""
    if parts.bad or not more or parts.given is None or parts.output is None:
        return parts
    whole = parts.output + more
    if parts.total in (None, parts.given + whole, parts.given + parts.extra + whole):
        return parts._replace(output=whole)
    return parts


def _grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    if str(record.get("type")).upper() in _CALLS:
        yield "", _parts(record)


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    kind = (text(record.get("type")) or "none").upper()
    key, parent = text(record.get("id")), text(_get(record, "parent_observation_id"))
    known_spans = lookout(reading)
    if kind not in _CALLS:
        if key is not None:
            known_spans.note(key, parent, None)
        reading.not_request(f"observations of type {kind[:20]}")
        return []
    parts = _parts(record)
    if key is not None:
        tokens = Tokens(parts.given, parts.output, parts.extra)
        known_spans.note(key, parent, tokens)
        if tokens.unknown and known_spans.has_fuller(key):
            reading.not_request("earlier versions of generations")
            return []
    if key is not None and known_spans.repeats(key):
        reading.not_request("generations around others")
        return []
    unit = _unit(record)
    if unit != "TOKENS":
        reading.ledger.warn("unit", f"some rows count {unit[:20].lower()}, not tokens: their lengths are unknown")
    start, end = _get(record, "start_time"), _get(record, "end_time")
    row: Row = cached_rule(reading, _grouped, "usage_details.input").row("", parts)
    doubled(reading).note(text(_get(record, "trace_id")), parts.given, parts.output, start, end)
    token = elapsed_ns(start, _get(record, "completion_start_time"))
    return [
        row
        | {
            "arrival": start,
            "status": _status(record, end),
            "model": text(first(_get(record, "provided_model_name"), record.get("model"))),
            "tenant": text(_get(record, "user_id")),
            "session": text(_get(record, "session_id")),
            "source_ttft_ns": token if token is not None else duration_ns(_get(record, "time_to_first_token"), "s"),
            "source_e2e_ns": spent_ns(reading.ledger, start, end)
            if known(end)
            else duration_ns(record.get("latency"), "s"),
            "request_id": key,
        }
    ]


def _status(record: dict[str, Any], end: Any) -> str:
    if (text(record.get("level")) or "").upper() == "ERROR":
        words = (text(_get(record, "status_message")) or "").lower()
        return "aborted" if "cancel" in words or "abort" in words or "disconnect" in words else "failed"
    return "ok" if known(end) else "unknown"


def _detect(sample: Sample) -> Match | None:
    ids = sample.has("id") and ("trace_id" in sample.columns or "traceId" in sample.columns)
    usage = any(name in sample.columns for name in ("usage_details", "usageDetails", "usage", "promptTokens"))
    for way in _WAYS:
        if sample.has(*way) and ids and usage:
            return Match(f"{sample.container} with id, trace_id, usage and {', '.join(way)}", 6)
    return None


FORMATS = (
    RecordFormat(
        name="langfuse-observations",
        title="Langfuse observations",
        needs=("id", "trace_id", "type", "start_time", "usage_details"),
        detector=_detect,
        expand=_expand,
        columns={
            "arrival": "start_time",
            "prompt_tokens": "usage_details.input",
            "output_tokens": "usage_details.output",
            "cached_tokens": "usage_details.input_cached_tokens",
            "reasoning_tokens": "usage_details.output_reasoning_tokens",
            "model": "provided_model_name",
            "tenant": "user_id",
            "session": "session_id",
            "request_id": "id",
        },
        naive_zone=("UTC", "Langfuse exports times in UTC"),
        settles_cached=True,
    ),
)
