"""Invocation logs of cloud services: Amazon Bedrock, SageMaker data capture, and KServe's logger.

Sources: AWS documentation of Bedrock's model invocation logging; the capture files of SageMaker endpoints;
kserve/kserve, pkg/logger/worker.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replay.traces.formats.base import Match
from replay.traces.formats.bodies import answer, decoded, usage_in
from replay.traces.formats.records import RecordFormat, RecordReading, Row
from replay.traces.formats.usage import Parts, cached_rule, parts_from, parts_of
from replay.traces.formats.values import duration_ns, elapsed_ns, first, known, obj, text
from replay.traces.rows import Sample

_REQUEST, _RESPONSE = "inference.request", "inference.response"


def _bedrock_parts(record: dict[str, Any]) -> Parts:
    given, made = obj(record.get("input")), obj(record.get("output"))
    raw = {
        "prompt_tokens": given.get("inputTokenCount"),
        "output_tokens": made.get("outputTokenCount"),
        "cached_tokens": given.get("cacheReadInputTokenCount"),
        "created": given.get("cacheWriteInputTokenCount"),
    }
    return parts_from(raw, "excluded")


def _bedrock_grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    yield "", _bedrock_parts(record)


def _bedrock(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    if text(record.get("schemaType")) != "ModelInvocationLog":
        reading.not_request("records of another schema")
        return []
    if text(record.get("operation")) == "CountTokens":
        reading.not_request("calls that count tokens")
        return []
    row: Row = cached_rule(reading, _bedrock_grouped, "input.inputTokenCount").row("", _bedrock_parts(record))
    body = obj(obj(record.get("output")).get("outputBodyJson"))
    error = text(record.get("errorCode"))
    return [
        row
        | {
            "arrival": record.get("timestamp"),
            "status": "ok" if error is None else "failed",
            "model": (text(record.get("modelId")) or "").rsplit("/", 1)[-1] or None,
            "tenant": text(first(obj(record.get("identity")).get("arn"), record.get("accountId"))),
            "source_e2e_ns": duration_ns(obj(body.get("metrics")).get("latencyMs"), "ms"),
            "request_id": text(record.get("requestId")),
        }
    ]


def _bedrock_detect(sample: Sample) -> Match | None:
    names = ("schemaType", "timestamp", "modelId", "requestId")
    if not sample.has(*names) or not any(row.get("schemaType") == "ModelInvocationLog" for row in sample.rows):
        return None
    return Match(f"{sample.container} with schemaType ModelInvocationLog", len(names) + 6)


def _sagemaker_body(record: dict[str, Any]) -> Any:
    made = obj(obj(record.get("captureData")).get("endpointOutput"))
    return decoded(made.get("data"), made.get("encoding"))


def _sagemaker_grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    yield "", parts_of(usage_in(_sagemaker_body(record)))


def _sagemaker(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    body = _sagemaker_body(record)
    event = obj(record.get("eventMetadata"))
    found = answer(body)
    return [
        cached_rule(reading, _sagemaker_grouped, "usage").row("", parts_of(usage_in(body)))
        | {
            "arrival": event.get("inferenceTime"),
            "status": "failed" if known(found.get("error")) else "ok" if found else "unknown",
            "model": text(found.get("model")),
            "request_id": text(event.get("eventId")),
        }
    ]


def _sagemaker_detect(sample: Sample) -> Match | None:
    names = ("captureData", "eventMetadata", "eventMetadata.inferenceTime")
    return Match(f"{sample.container} with {', '.join(names)}", len(names) + 3) if sample.has(*names) else None


def _kserve_body(record: dict[str, Any]) -> Any:
    coded = record.get("data_base64")
    return decoded(coded, "BASE64") if known(coded) else record.get("data")


def _kserve_grouped(record: dict[str, Any]) -> Iterator[tuple[str, Parts]]:
    if str(record.get("type")).endswith(_RESPONSE):
        yield "", parts_of(usage_in(_kserve_body(record)))


def _kserve(record: dict[str, Any], line: int, reading: RecordReading) -> list[Row]:
    """Joins the two events of a call by id, whichever comes first."""
    kind, call = str(record.get("type")), text(record.get("id"))
    if not kind.endswith((_REQUEST, _RESPONSE)) or call is None:
        reading.not_request(f"events of type {kind[-40:]}")
        return []
    waiting: dict[str, dict[str, Any]] = reading.state.setdefault("waiting", {})
    rows = []
    half = "request" if kind.endswith(_REQUEST) else "response"
    entry = waiting.setdefault(call, {"line": line, "id": call})
    if half in entry:  # the same half again: the call before is given up
        rows.append(_kserve_row(waiting.pop(call), reading))
        entry = waiting.setdefault(call, {"line": line, "id": call})
    entry[half] = record.get("time")
    if half == "request":
        entry |= {"line": line, "model": text(obj(_kserve_body(record)).get("model"))}
        entry["service"] = text(record.get("inferenceservicename"))
    else:
        body = _kserve_body(record)
        found = answer(body)
        entry["failed"] = known(found.get("error"))
        entry["counts"] = cached_rule(reading, _kserve_grouped, "usage").row("", parts_of(usage_in(body)))
        entry["model"] = first(entry.get("model"), text(found.get("model")))
    if "request" in entry and "response" in entry:
        rows.append(_kserve_row(waiting.pop(call), reading))
    return rows


def _kserve_row(entry: dict[str, Any], reading: RecordReading) -> Row:
    if "response" not in entry:
        reading.ledger.warn(
            "halves", "some requests have no answer in the log (the logger drops events when busy): lengths unknown"
        )
    status = "unknown" if "response" not in entry else "failed" if entry.get("failed") else "ok"
    return {
        **entry.get("counts", {}),
        "line": entry["line"],
        "request_id": entry["id"],
        "arrival": entry.get("request"),
        "status": status,
        "model": first(entry.get("model"), entry.get("service")),
        "source_e2e_ns": elapsed_ns(entry.get("request"), entry.get("response")),
    }


def _kserve_finish(reading: RecordReading) -> list[Row]:
    return [_kserve_row(entry, reading) for entry in reading.state.get("waiting", {}).values()]


def _kserve_detect(sample: Sample) -> Match | None:
    names = ("specversion", "id", "type", "time")
    types = {str(row.get("type")) for row in sample.rows}
    if not sample.has(*names) or not any(kind.endswith((_REQUEST, _RESPONSE)) for kind in types):
        return None
    return Match(f"{sample.container} of CloudEvents {_REQUEST} and {_RESPONSE}", len(names) + 4)


FORMATS = (
    RecordFormat(
        name="bedrock-invocation-log",
        title="Amazon Bedrock model invocation log",
        needs=("schemaType ModelInvocationLog", "timestamp", "modelId", "requestId"),
        detector=_bedrock_detect,
        expand=_bedrock,
        columns={
            "arrival": "timestamp",
            "prompt_tokens": "input.inputTokenCount + cacheRead + cacheWrite",
            "output_tokens": "output.outputTokenCount",
            "cached_tokens": "input.cacheReadInputTokenCount",
            "model": "modelId",
            "tenant": "identity.arn",
            "request_id": "requestId",
        },
        naive_zone=("UTC", "AWS writes times in UTC"),
        settles_cached=True,
    ),
    RecordFormat(
        name="sagemaker-data-capture",
        title="Amazon SageMaker data capture",
        needs=("captureData", "eventMetadata.inferenceTime"),
        detector=_sagemaker_detect,
        expand=_sagemaker,
        columns={
            "arrival": "eventMetadata.inferenceTime",
            "prompt_tokens": "usage of endpointOutput.data",
            "output_tokens": "usage of endpointOutput.data",
            "request_id": "eventMetadata.eventId",
        },
        naive_zone=("UTC", "AWS writes times in UTC"),
        settles_cached=True,
    ),
    RecordFormat(
        name="kserve-cloudevents",
        title="KServe logger events",
        needs=("specversion", "type", "id", "time"),
        detector=_kserve_detect,
        expand=_kserve,
        finish=_kserve_finish,
        columns={
            "arrival": "time of the request",
            "prompt_tokens": "data.usage of the response",
            "output_tokens": "data.usage of the response",
            "model": "data.model",
            "request_id": "id",
        },
        settles_cached=True,
    ),
)
