"""SGLang's request log: JSON lines, the text form, or either of them among a server's other lines.

Source: sgl-project/sglang, ``request_logger.py`` (0.5.23). A request is received in one line and finished in another,
with one ``rid``. Times are the server's local time without a zone.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.logline import LineReader
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.serverclock import clock_of
from replay.traces.formats.usage import parts_from
from replay.traces.formats.values import duration_ns, first, iso, known, naive_ns, obj, text
from replay.traces.rows import Sample

_TEXT = re.compile(
    r"^\[(\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?)[^\]]*\]\s*(Receive|Finish):\s*(?:\w+=)?(.*)$"
)
_HEALTH_CHECK = "HEALTH_CHECK"
"""How the ids of the server's own requests to itself begin."""
_RID = re.compile(r"\brid=(?:'([^']*)'|\"([^\"]*)\"|(\[[^\]]*\]))")
_JSON_EVENT = re.compile(r'"event":\s*"request\.')
_META = "'meta_info': "
_FEW_FINISHED = 0.8


def _event(record: dict[str, Any], lines: LineReader) -> dict[str, Any] | None:
    """A record in the shape of the JSON form: ``timestamp, event, rid, obj, out``; ``None`` for any other line."""
    if "event" in record:
        return record if str(record.get("event")).startswith("request.") else None
    bare = lines.bare(record.get("line") or "")
    if bare is None:
        return None
    line, stamp = bare
    at = line.find('{"')
    if at >= 0 and _JSON_EVENT.search(line):
        found = obj(line[at:])
        return found if str(found.get("event")).startswith("request.") else None
    match = _TEXT.match(line)
    if match is None:
        return None
    when, verb, rest = match.groups()
    meta = _meta(rest) if verb == "Finish" else {}
    name = _rid(rest)
    return {
        "timestamp": stamp or when,
        "event": "request.received" if verb == "Receive" else "request.finished",
        "rid": first(meta.get("id"), name),
        "out": {"meta_info": meta},
    }


def _rid(rest: str) -> Any:
    """The id in a repr: its first field, or the last one of that name, as prompts before it may hold anything."""
    found = list(_RID.finditer(rest.partition(", out=")[0] if _META not in rest else rest))
    if not found:
        return None
    match = found[0] if re.match(r"\w+\(rid=", rest) else found[-1]
    name = next((part for part in match.groups() if part is not None), None)
    return _literal(name) if name is not None and name.startswith("[") else name


def _meta(rest: str) -> dict[str, Any]:
    """The dictionary after the last ``'meta_info': `` of a repr; an answer's text before it may hold anything."""
    at = rest.rfind(_META)
    if at < 0:
        return {}
    start = at + len(_META)
    depth = 0
    for end in range(start, len(rest)):
        depth += {"{": 1, "}": -1}.get(rest[end], 0)
        if depth == 0:
            found = _literal(rest[start : end + 1])
            return found if isinstance(found, dict) else {}
    return {}


def _literal(written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _expand(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    event = _event(record, reading.state.setdefault("lines", LineReader()))
    if event is None:
        reading.not_request("other log lines" if "line" in record else "other events")
        return []
    rows: list[Row] = []
    for rid, out in _members(event):
        if rid is not None and rid.startswith(_HEALTH_CHECK):
            reading.not_request("health checks")
            continue
        if str(event["event"]).startswith("request.received"):
            rows.extend(_received(rid, event, line, reading))
        elif event["event"] == "request.finished":
            rows.append(_finished(rid, obj(out), event, line, reading))
    return rows


def _members(event: dict[str, Any]) -> list[tuple[str | None, Any]]:
    """Id and outcome of each request of an event; a batch has lists."""
    rid, out = first(event.get("rid"), obj(event.get("obj")).get("rid")), event.get("out")
    if isinstance(rid, list):
        outs = out if isinstance(out, list) else [out] * len(rid)
        return [(text(name), outs[i] if i < len(outs) else None) for i, name in enumerate(rid)]
    if isinstance(out, list):
        return [(text(obj(obj(item).get("meta_info")).get("id")) or text(rid), item) for item in out]
    return [(text(first(rid, obj(obj(out).get("meta_info")).get("id"))), out)]


def _received(rid: str | None, event: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    """A start. The OpenAI front end logs a request once more, before the engine does: that is no second one."""
    front = str(event["event"]) != "request.received"
    counts = reading.state.setdefault("counts", Counter())
    waiting: dict[str, Row] = reading.state.setdefault("waiting", {})
    row: Row = {
        "line": line,
        "arrival": _arrival(event, 0, line, reading),
        "status": "unknown",
        "request_id": rid,
        "model": text(obj(event.get("obj")).get("model")),
    }
    if rid is None:
        if front:
            reading.not_request("front end lines")
            return []
        counts["received"] += 1
        return [row]
    fronts: set[str] = reading.state.setdefault("fronts", set())
    before = waiting.get(rid)
    if before is not None and (front or rid in fronts):
        fronts.discard(rid)
        reading.not_request("front end lines")
        return []
    if front:
        fronts.add(rid)
    counts["received"] += 1
    waiting[rid] = row
    return [before] if before is not None else []  # the id again, and no end between: a retry


def _finished(rid: str | None, out: dict[str, Any], event: dict[str, Any], line: int, reading: RecordReading) -> Row:
    counts = reading.state.setdefault("counts", Counter())
    counts["finished"] += 1
    meta = obj(out.get("meta_info"))
    e2e = duration_ns(meta.get("e2e_latency"), "s")
    row: Row | None = reading.state.setdefault("waiting", {}).pop(rid, None) if rid is not None else None
    if row is None:
        counts["unreceived"] += 1
        arrival = _arrival(event, e2e, line, reading) if e2e is not None else None
        row = {"line": line, "arrival": arrival, "request_id": rid}
    parts = parts_from(
        {
            "prompt_tokens": meta.get("prompt_tokens"),
            "output_tokens": meta.get("completion_tokens"),
            "cached_tokens": meta.get("cached_tokens"),
            "reasoning_tokens": meta.get("reasoning_tokens"),
        },
        "included",
    )
    return row | parts.row("included") | {"status": _status(meta), "source_e2e_ns": e2e}


def _status(meta: dict[str, Any]) -> str:
    reason = meta.get("finish_reason")
    kind = text(obj(reason).get("type")) or text(reason)
    if kind is None:
        return "ok" if known(meta.get("completion_tokens")) else "unknown"
    return "aborted" if kind.lower() == "abort" else "ok"


def _arrival(event: dict[str, Any], less_ns: int, line: int, reading: RecordReading) -> str | None:
    found = naive_ns(event.get("timestamp"))
    if found is None:
        return text(event.get("timestamp"))
    ns, zoned = found
    if zoned:
        whole = ns - less_ns
        return iso(whole)
    clock = clock_of(reading, has_year=True)
    clock.arrival(ns, line)  # the line's own time keeps the clock; a start before it is no step back
    return clock.arrival(ns - less_ns, line) if less_ns else clock.arrival(ns, line)


def _finish(reading: RecordReading) -> list[Row]:
    counts = reading.state.get("counts", Counter())
    received, finished = counts["received"], counts["finished"]
    if counts["unreceived"]:
        reading.ledger.warn(
            "unreceived",
            f"{counts['unreceived']:,} requests have no line when they came: their start is the end less e2e_latency",
        )
    if finished and (received == 0 or finished < _FEW_FINISHED * received):
        reading.ledger.warn(
            "biased",
            f"{finished:,} lines of an end for {received:,} of a start: where SGLANG_LOG_REQUEST_EXCEEDED_MS is set "
            "only slow requests are written, and lengths and latencies are those of a biased sample",
        )
    rows: list[Row] = list(reading.state.get("waiting", {}).values())
    return rows


def _detect(sample: Sample) -> Match | None:
    events = sum(_event(row, LineReader()) is not None for row in sample.rows)
    if sample.container == "text":
        return Match(f"log text with {events} SGLang request lines", 4) if events else None
    if not sample.has("timestamp", "event") or not events:
        return None
    return Match(f"{sample.container} with timestamp, event request.received and request.finished, rid", 8)


FORMATS = (
    RecordFormat(
        name="sglang-request-log",
        title="SGLang request log",
        needs=("timestamp", "event", "rid", "out.meta_info"),
        detector=_detect,
        expand=_expand,
        finish=_finish,
        columns={
            "arrival": "timestamp",
            "prompt_tokens": "out.meta_info.prompt_tokens",
            "output_tokens": "out.meta_info.completion_tokens",
            "cached_tokens": "out.meta_info.cached_tokens",
            "reasoning_tokens": "out.meta_info.reasoning_tokens",
            "request_id": "rid",
        },
        time_unit="s",
        computes_times=True,
        settles_cached=True,
    ),
)
