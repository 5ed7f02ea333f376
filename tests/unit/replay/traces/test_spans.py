"""OpenTelemetry spans: only calls of models, each once, wherever its parents, copies and halves stand."""

import base64
import json
from typing import Any

import pytest

START = 1_795_942_800_000_000_000
NS = 10**9


def attribute(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    if isinstance(value, list):
        return {"key": key, "value": {"arrayValue": {"values": [{"stringValue": item} for item in value]}}}
    return {"key": key, "value": {"stringValue": value}}


CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "demo",
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.output_tokens": 10,
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.response.time_to_first_chunk": 0.5,
}


def span(
    name: int, attributes: dict[str, Any] | None = None, parent: int | None = None, **changes: Any
) -> dict[str, Any]:
    """A span ``name`` seconds in, one trace for all."""
    made = {
        "traceId": "12452b16b6999d35c6716c025324ad5d",
        "spanId": f"{name:016x}",
        "startTimeUnixNano": str(START + name * NS),
        "endTimeUnixNano": str(START + name * NS + 2 * NS),
        "attributes": [attribute(key, value) for key, value in (CALL if attributes is None else attributes).items()],
        "status": {},
    }
    if parent is not None:
        made["parentSpanId"] = f"{parent:016x}"
    return made | changes


def batch(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def lines(*batches: Any) -> str:
    return "\n".join(json.dumps(item) for item in batches) + "\n"


def test_calls_only_parents_in_any_batch(lab) -> None:
    agent = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.usage.input_tokens": 300,
        "gen_ai.usage.output_tokens": 30,
    }
    tool = {"gen_ai.operation.name": "execute_tool"}
    data = lines(
        batch(span(1, parent=9), span(2, tool, 9), span(12, parent=11)),
        batch(span(3, parent=10), span(9, agent), span(10, {"http.method": "POST"}, 11)),
        batch(span(11, CALL | {"gen_ai.usage.input_tokens": 200, "gen_ai.usage.output_tokens": 20}, 9)),
        {"resourceLogs": []},
    )
    report = lab.read(data)
    assert report.format == "otlp-genai"
    assert (report.requests, report.prompt_tokens, report.output_tokens) == (3, 300, 30)
    assert report.cleaning.not_requests == {
        "invoke_agent spans": 1, "execute_tool spans": 1, "other spans": 1, "model call spans around others": 1,
        "records without spans": 1,
    }  # fmt: skip
    assert lab.table["arrival_ns"].to_list() == [0, 2 * NS, 11 * NS]
    assert lab.table["source_ttft_ns"].to_list() == [NS // 2] * 3
    assert report.profile.start_utc == "2026-11-29T09:00:01.000+00:00"
    assert lab.read(json.dumps(batch(span(1), span(2)), indent=1)).requests == 2


def test_a_call_around_another_with_counts_of_its_own_counts(lab) -> None:
    inner = CALL | {"gen_ai.usage.input_tokens": 7}
    report = lab.read(lines(batch(span(1), span(2, inner, 1))))
    assert (report.requests, report.prompt_tokens) == (2, 107)
    assert any("other counts" in warning for warning in report.warnings)


def test_an_inner_span_without_counts_gives_way_to_the_outer(lab) -> None:
    inner = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "demo"}
    report = lab.read(lines(batch(span(1), span(2, inner, 1))))
    assert (report.requests, report.prompt_tokens) == (1, 100)


def test_copies_from_two_exporters(lab) -> None:
    empty = {"gen_ai.operation.name": "chat"}
    coded = span(3) | {
        "traceId": base64.b64encode(bytes.fromhex("12452b16b6999d35c6716c025324ad5d")).decode(),
        "spanId": base64.b64encode(bytes.fromhex(f"{3:016x}")).decode(),
    }
    upper = span(3) | {"traceId": "12452B16B6999D35C6716C025324AD5D"}
    report = lab.read(lines(batch(span(1, empty), span(3), coded, upper), batch(span(1), span(2), span(2))))
    assert (report.requests, report.prompt_tokens) == (3, 300)
    assert report.cleaning.not_requests == {"repeated spans": 4}


def test_two_traces_may_use_one_span_id(lab) -> None:
    assert lab.read(lines(batch(span(1), span(1) | {"traceId": "a" * 32}))).requests == 2


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (START, START + 2 * NS),
        (START // 10**6, START // 10**6 + 2_000),
        (str(START // 10**3), str(START // 10**3 + 2_000_000)),
        ("2026-11-29T09:00:00Z", "2026-11-29T09:00:02.000Z"),
    ],
)
def test_times_in_other_units(lab, start: Any, end: Any) -> None:
    report = lab.read(lines(batch(span(0, startTimeUnixNano=start, endTimeUnixNano=end))))
    assert report.profile.start_utc == "2026-11-29T09:00:00.000+00:00"
    assert lab.table["source_e2e_ns"].to_list() == [2 * NS]


def test_times_of_mixed_units_and_unknown_times_are_rejected(lab) -> None:
    good = [span(i) for i in range(60)]
    bad = [span(61, startTimeUnixNano=str(START // 10**6)), span(62, startTimeUnixNano="0")]
    report = lab.read(lines(batch(*good, *bad)))
    assert report.requests == 60
    assert report.cleaning.rejected_by_rule == {"not_a_time": 1, "other_time_unit": 1}


def test_status_and_sessions(lab) -> None:
    failed = {"gen_ai.operation.name": "chat", "error.type": "timeout"}
    left = {"gen_ai.operation.name": "chat", "error.type": "asyncio.CancelledError"}
    rows = [
        span(0, CALL | {"gen_ai.conversation.id": "c", "user.id": "u"}),
        span(1, failed, status={"code": 2}),
        span(2, left),
        span(3, status={"code": "STATUS_CODE_ERROR", "message": "boom"}),
    ]
    report = lab.read(lines(batch(*rows)))
    assert lab.table["status"].to_list() == ["ok", "failed", "aborted", "failed"]
    assert lab.table["session"].to_list()[0] == "c"
    assert report.prompt_tokens == 200


def test_old_names_other_conventions_and_plain_attributes(lab) -> None:
    old = {"gen_ai.system": "vllm", "gen_ai.response.model": "demo", "gen_ai.usage.prompt_tokens": 7,
           "gen_ai.usage.completion_tokens": 3, "gen_ai.latency.time_in_queue": 0.25}  # fmt: skip
    traceloop = {"llm.request.type": "chat", "gen_ai.usage.prompt_tokens": 9, "gen_ai.usage.completion_tokens": 1}
    workflow = {"traceloop.span.kind": "workflow", "gen_ai.usage.prompt_tokens": 9, "gen_ai.request.model": "demo"}
    pending = CALL | {"logfire.span_type": "pending_span"}
    plain = span(4) | {"attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": "11",
                                      "gen_ai.usage.output_tokens": 2, "gen_ai.request.model": "demo"}}  # fmt: skip
    report = lab.read(lines(batch(span(1, old), span(2, traceloop), span(3, workflow), plain, span(5, pending))))
    assert (report.requests, report.prompt_tokens, report.output_tokens) == (3, 27, 6)
    assert lab.table["source_queue_ns"].to_list()[0] == NS // 4
    stored = {"batches": batch(span(1), span(2))["resourceSpans"]}
    assert lab.read(json.dumps({"trace": batch(span(1))})).requests == 1
    assert lab.read(json.dumps(stored)).requests == 2
    snake = {"resource_spans": [{"scope_spans": [{"spans": [span(1)]}]}]}
    assert lab.read(lines(snake)).requests == 1


def test_openinference(lab) -> None:
    call = {
        "openinference.span.kind": "LLM", "llm.model_name": "demo", "llm.token_count.prompt": 100,
        "llm.token_count.completion": 10, "llm.token_count.total": 110, "session.id": "s",
        "llm.token_count.prompt_details.cache_read": 40, "llm.token_count.completion_details.reasoning": 4,
    }  # fmt: skip
    chain = {"openinference.span.kind": "CHAIN", "llm.token_count.prompt": 100}
    report = lab.read(
        lines(batch(span(1, chain), span(2, call, 1), span(3, call | {"openinference.span.kind": "RETRIEVER"})))
    )
    assert (report.format, report.requests, report.prompt_tokens) == ("otlp-openinference", 1, 100)
    row = lab.table.row(0, named=True)
    assert (row["cached_tokens"], row["reasoning_tokens"], row["session"], row["model"]) == (40, 4, "s", "demo")


def test_inputs_without_their_cached_part(lab) -> None:
    """The convention includes cached tokens; a provider's spans that show otherwise are summed up."""
    cached = {"gen_ai.provider.name": "anthropic", "gen_ai.usage.cache_read.input_tokens": 4000}
    rows = [span(0, CALL | cached), span(1, CALL | {"gen_ai.usage.cache_read.input_tokens": 40})]
    report = lab.read(lines(batch(*rows)))
    assert lab.table["prompt_tokens"].to_list() == [4100, 100]
    assert any("uncached rest" in warning for warning in report.warnings)


def test_a_file_without_model_calls_and_odd_shapes(lab) -> None:
    error = lab.refuse(lines(batch(span(1, {"http.method": "GET"}))))
    assert (error.code, "other spans" in error.detail) == ("trace.no_rows", True)
    odd = [
        {"resourceSpans": [None, {"scopeSpans": [None, {"spans": None}]}, {"scopeSpans": {}}]},
        {"resourceSpans": {}},
        batch(span(1) | {"attributes": [None, {"key": "x"}, {"value": 1}, 5]}),
        batch(span(2, status="ERROR", spanId=None, parentSpanId="", endTimeUnixNano=None)),
    ]
    report = lab.read(lines(*odd))
    assert (report.requests, lab.table["status"].to_list()) == (1, ["failed"])
    report = lab.read(lines(*(batch(span(i)) for i in range(30)), batch("a span?")))
    assert report.cleaning.rejected_by_rule == {"not_unpacked": 1}


def test_spans_of_anthropic_that_nothing_proves_are_warned_about(lab) -> None:
    """The convention counts cached tokens inside; older instruments of such providers do not."""
    call = CALL | {"gen_ai.provider.name": "anthropic", "gen_ai.usage.input_tokens": 100}
    call["gen_ai.usage.cache_read.input_tokens"] = 40
    text = lines(batch(*(span(i, call) for i in range(5))))
    report = lab.read(text)
    assert report.prompt_tokens == 500
    assert any("prompt_includes_cached=false" in warning for warning in report.warnings)
    report = lab.read(text, prompt_includes_cached=False)
    assert report.prompt_tokens == 700
    assert not any("as the convention says" in warning for warning in report.warnings)
