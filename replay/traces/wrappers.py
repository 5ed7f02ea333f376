"""What log systems put around the lines of a log: an envelope with their own time, host and labels. The line inside is
what a format knows, so it is taken out.

Sources: AWS CloudWatch Logs API (FilterLogEvents, subscriptions) and Logs Insights; Grafana Loki HTTP API, logcli and
Explore; Elasticsearch and OpenSearch search answers; Datadog Logs API and archives; Google Cloud LogEntry; systemd's
journal export in JSON; Splunk's JSON export; Docker's json-file driver, Fluentd, Fluent Bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from replay.traces.formats.values import iso, moment_ns
from replay.traces.rows import Sample

Entry = tuple[str | dict[str, Any] | None, object]
"""A message, as text or already parsed, and the time that the log system gave it."""


@dataclass(frozen=True)
class Wrapper:
    """One envelope. ``entries`` takes a record apart."""

    name: str
    found_in: Callable[[Sample], bool]
    entries: Callable[[dict[str, Any]], Iterator[Entry]]
    alone: str
    """A command that writes the messages alone, one a line."""


def wrapper_of(sample: Sample) -> Wrapper | None:
    """The envelope around the records of a sample."""
    return next((one for one in WRAPPERS if sample.rows and one.found_in(sample)), None)


def stamp(at: object) -> str | None:
    """The log system's time as ISO text in UTC; ``None`` where it gives none. Its times without a zone are UTC."""
    ns = moment_ns(at)
    return None if ns is None else iso(ns)


def _any(sample: Sample, *names: str) -> bool:
    return any(name in sample.columns for name in names)


def _lists(name: str, *keys: str) -> Callable[[Sample], bool]:
    """Whether every record has a list of objects with these keys under ``name``."""

    def found(sample: Sample) -> bool:
        lists = [row.get(name) for row in sample.rows]
        return all(
            isinstance(items, list) and all(isinstance(item, dict) and set(keys) <= set(item) for item in items)
            for items in lists
        ) and any(lists)

    return found


def _at(record: dict[str, Any], *names: str) -> object:
    return next((record[name] for name in names if record.get(name) is not None), None)


def _inside(record: dict[str, Any], *names: str) -> str | dict[str, Any] | None:
    """The first of these that holds JSON, else the first text."""
    texts = [record[name] for name in names if isinstance(record.get(name), str)]
    return next((text for text in texts if text.lstrip().startswith("{")), texts[0] if texts else None)


def _container(record: dict[str, Any]) -> Iterator[Entry]:
    yield _inside(record, "log"), _at(record, "time", "@timestamp", "timestamp")


def _cloudwatch(record: dict[str, Any]) -> Iterator[Entry]:
    for event in record.get("events", record.get("logEvents", [record])):
        yield _inside(event, "message", "@message"), _at(event, "timestamp", "@timestamp")


def _loki(record: dict[str, Any]) -> Iterator[Entry]:
    data = record.get("data")
    if isinstance(data, dict):
        for stream in data.get("result") or []:
            for value in stream.get("values") or []:
                yield value[1], value[0]
        return
    yield _inside(record, "line", "Line"), _at(record, "timestamp", "tsNs", "date")


def _elastic(record: dict[str, Any]) -> Iterator[Entry]:
    hits = record.get("hits")
    for hit in hits.get("hits") or [] if isinstance(hits, dict) else [record]:
        source = hit.get("_source") or {}
        message = _inside(source, "message", "log")
        alone = isinstance(message, str) and (message.lstrip().startswith("{") or _is_line(source))
        yield message if alone else source, _at(source, "@timestamp", "timestamp")


_LINE_KEYS = {"message", "log", "@timestamp", "timestamp", "@version", "stream", "kubernetes", "host", "agent", "ecs"}
_LINE_KEYS |= {"input", "log.file.path", "container", "event", "tags", "level", "severity", "docker", "time", "offset"}


def _is_line(source: dict[str, Any]) -> bool:
    """Whether there is nothing but a line and what a collector adds to it."""
    return set(source) <= _LINE_KEYS


def _datadog(record: dict[str, Any]) -> Iterator[Entry]:
    log = record.get("attributes") or {}
    if not ("attributes" in log or "message" in log):  # an archive has the message beside the attributes
        log = record
    message = _inside(log, "message")
    own = log.get("attributes")
    parsed = isinstance(own, dict) and own and not (isinstance(message, str) and message.lstrip().startswith("{"))
    yield own if parsed else message, _at(log, "timestamp", "date") or _at(record, "date", "timestamp")


def _google(record: dict[str, Any]) -> Iterator[Entry]:
    payload = record.get("jsonPayload")
    message = _inside(payload, "message", "log") if isinstance(payload, dict) else None
    inner = isinstance(message, str) and (message.lstrip().startswith("{") or set(payload or {}) <= _LINE_KEYS)
    yield message if inner else payload or record.get("textPayload"), _at(record, "timestamp", "receiveTimestamp")


def _journal(record: dict[str, Any]) -> Iterator[Entry]:
    message = record.get("MESSAGE")
    if isinstance(message, list):  # bytes that are no plain text, such as colours
        message = bytes(one for one in message if isinstance(one, int) and 0 <= one < 256).decode("utf-8", "replace")
    yield message if isinstance(message, str) else None, record.get("__REALTIME_TIMESTAMP")


def _splunk(record: dict[str, Any]) -> Iterator[Entry]:
    result = record.get("result") or {}
    yield _inside(result, "_raw"), None


WRAPPERS = (
    Wrapper(
        "an answer of CloudWatch Logs",
        lambda sample: _lists("events", "message", "timestamp")(sample) or _lists("logEvents", "message")(sample),
        _cloudwatch,
        "jq -r '(.events // .logEvents)[].message'",
    ),
    Wrapper(
        "events of CloudWatch Logs",
        lambda sample: (
            sample.has("@message")
            or (sample.has("message", "timestamp") and _any(sample, "ingestionTime", "logStreamName", "eventId"))
        ),
        _cloudwatch,
        "jq -r .message",
    ),
    Wrapper(
        "an answer of Grafana Loki",
        lambda sample: sample.has("data.resultType", "data.result"),
        _loki,
        "jq -r '.data.result[].values[][1]'",
    ),
    Wrapper(
        "lines of Grafana Loki",
        lambda sample: (
            (sample.has("line", "timestamp") and _any(sample, "labels", "fields", "date", "id"))
            or sample.has("Line", "tsNs")
        ),
        _loki,
        "jq -r .line",
    ),
    Wrapper(
        "an answer of Elasticsearch or OpenSearch",
        lambda sample: sample.has("hits.hits"),
        _elastic,
        "jq -c '.hits.hits[]._source'",
    ),
    Wrapper(
        "documents of Elasticsearch or OpenSearch",
        lambda sample: sample.has("_source", "_index"),
        _elastic,
        "jq -c ._source",
    ),
    Wrapper(
        "logs of Datadog",
        lambda sample: (
            sample.has("attributes.message", "type", "id")
            or (sample.has("attributes", "message", "date") and _any(sample, "service", "_id", "host"))
        ),
        _datadog,
        "jq -r .attributes.message",
    ),
    Wrapper(
        "entries of Google Cloud Logging",
        lambda sample: _any(sample, "logName", "insertId") and _any(sample, "jsonPayload", "textPayload"),
        _google,
        "jq -c '.jsonPayload // .textPayload'",
    ),
    Wrapper(
        "systemd's journal",
        lambda sample: sample.has("MESSAGE", "__REALTIME_TIMESTAMP"),
        _journal,
        "journalctl -o cat",
    ),
    Wrapper("results of Splunk", lambda sample: sample.has("result._raw"), _splunk, "jq -r .result._raw"),
    Wrapper(
        "a container's log",
        lambda sample: (
            sample.has("log")
            and (
                _any(sample, "stream", "container_name", "container_id", "kubernetes", "docker")
                or {"log", "time", "@timestamp"} >= set(sample.columns)
            )
        ),
        _container,
        "jq -r .log",
    ),
)
