"""Gateways and providers: counts by every shape of usage, failed and cached calls, halves, copies, other paths."""

import base64
import csv
import io
import json
from typing import Any

import pytest

NS = 10**9


def jsonl(*records: object) -> str:
    return "\n".join(json.dumps(record) for record in records) + "\n"


def spend(i: int, **changes: Any) -> dict[str, Any]:
    """A row of LiteLLM's spend logs, ``i`` seconds in, 100 + i and 10 + i tokens."""
    row = {
        "request_id": f"chatcmpl-{i}",
        "call_type": "acompletion",
        "api_key": "k1",
        "spend": 0.1,
        "total_tokens": 110 + 2 * i,
        "prompt_tokens": 100 + i,
        "completion_tokens": 10 + i,
        "startTime": f"2026-11-29 09:00:{i:02d}.250",
        "endTime": f"2026-11-29 09:00:{i + 2:02d}.250",
        "completionStartTime": f"2026-11-29 09:00:{i:02d}.750",
        "model": "hosted_vllm/demo",
        "model_group": "demo",
        "custom_llm_provider": "hosted_vllm",
        "metadata": {},
        "cache_hit": "False",
        "team_id": "team-1",
        "end_user": "",
        "session_id": "s",
        "status": "success",
        "messages": {"content": 'a "quoted", prompt\nof two lines'},
    }
    return row | changes


def litellm_csv(*rows: dict[str, Any]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow({key: json.dumps(v) if isinstance(v, dict) else v for key, v in row.items()})
    return out.getvalue()


def usage(cached: int, reasoning: int = 0, **more: int) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"usage_object": {**details, "completion_tokens_details": {"reasoning_tokens": reasoning}, **more}}


@pytest.mark.parametrize(
    "write", [litellm_csv, jsonl, lambda *rows: json.dumps(rows), lambda *r: json.dumps({"data": r})]
)
def test_litellm_in_every_container(lab, write) -> None:
    report = lab.read(write(spend(0, metadata=usage(40, 3)), spend(1), spend(2)))
    assert (report.format, report.requests) == ("litellm-spendlogs", 3)
    assert (report.prompt_tokens, report.output_tokens) == (303, 33)
    assert lab.table["arrival_ns"].to_list() == [0, NS, 2 * NS]
    assert report.profile.start_utc == "2026-11-29T09:00:00.250+00:00"
    assert lab.table["cached_tokens"].to_list() == [40, None, None]
    assert lab.table["reasoning_tokens"].to_list() == [3, None, None]
    assert lab.table["source_e2e_ns"].to_list() == [2 * NS] * 3
    assert lab.table["source_ttft_ns"].to_list() == [NS // 2] * 3
    assert set(lab.table["tenant"]) == {"team-1"}
    assert "prompt" not in "".join(map(str, lab.table.rows())), "no prompt may be stored"


def test_litellm_failures_cache_hits_and_other_calls(lab) -> None:
    failed = spend(
        1, prompt_tokens=0, completion_tokens=0, total_tokens=0, endTime="2026-11-29 09:00:01.250", status="failure",
        cache_hit="None", request_id="None", completionStartTime="2026-11-29 09:00:01.250",
    )  # fmt: skip
    rows = [
        spend(0),
        failed,
        {**failed, "startTime": "2026-11-29 09:00:01.300", "endTime": "2026-11-29 09:00:01.300"},
        spend(2, cache_hit="True"),
        spend(3, call_type="aimage_generation"),
        spend(4, call_type="aget_responses"),
        spend(5, prompt_tokens="0", completion_tokens="0", total_tokens=0),
        spend(6, status="failure", metadata={"error_information": {"error_class": "CancelledError"}}),
    ]
    report = lab.read(litellm_csv(*rows))
    assert report.cleaning.status_counts == {"aborted": 1, "cache_hit": 1, "failed": 2, "ok": 2}
    assert report.cleaning.not_requests == {"calls of type aimage_generation": 1, "calls of type aget_responses": 1}
    table = lab.table
    assert table.filter(table["status"] == "failed")["prompt_tokens"].to_list() == [None, None]
    assert table.filter(table["status"] == "failed")["source_e2e_ns"].to_list() == [None, None]
    assert report.cleaning.zero_output_tokens == 3


def test_litellm_copies_are_rejected_and_retries_kept(lab) -> None:
    rows = [spend(i) for i in range(40)]
    retry = spend(3, startTime="2026-11-29 09:00:45.000", endTime="2026-11-29 09:00:46.000")
    twin = spend(5, request_id="resp_5", call_type="aresponses")
    report = lab.read(litellm_csv(*rows, rows[7], retry, twin))
    assert (report.requests, report.cleaning.rejected_by_rule) == (41, {"duplicate_request": 2})
    assert any("retries" in warning for warning in report.warnings)


def test_litellm_prompts_without_their_cached_part(lab) -> None:
    """One row shows that a provider's prompts leave cached tokens out: then all of its rows are read so."""
    rows = [
        spend(0, metadata=usage(50), custom_llm_provider="anthropic"),
        spend(1, metadata=usage(4000), custom_llm_provider="anthropic"),
        spend(2, metadata=usage(50)),
    ]
    lab.read(litellm_csv(*rows))
    assert lab.table["prompt_tokens"].to_list() == [150, 4101, 102]


def test_litellm_one_odd_row_does_not_turn_a_provider(lab) -> None:
    rows = [spend(i, metadata=usage(50)) for i in range(40)]
    report = lab.read(litellm_csv(*rows, spend(41, metadata=usage(4000))))
    assert (report.prompt_tokens, report.cleaning.rejected_by_rule) == (
        100 * 40 + sum(range(40)),
        {"cached_above_prompt": 1},
    )


def test_litellm_offsets_of_hours_and_folded_names(lab) -> None:
    rows = [spend(i) | {"startTime": f"2026-11-29 10:00:{i:02d}.25+01"} for i in range(3)]
    report = lab.read(litellm_csv(*({name.lower(): value for name, value in row.items()} for row in rows)))
    assert (report.format, report.requests) == ("litellm-spendlogs", 3)
    assert report.profile.start_utc == "2026-11-29T09:00:00.250+00:00"


def test_litellm_says_what_it_mended(lab) -> None:
    rows = [spend(0, endTime="2026-11-29 08:00:00"), spend(1, total_tokens=162, metadata=usage(0, 50))]
    report = lab.read(litellm_csv(*rows))
    assert report.output_tokens == 10 + 11 + 50
    assert lab.table["source_e2e_ns"].to_list() == [None, 2 * NS]
    assert any("end before they start" in warning for warning in report.warnings)
    assert any("reasoning tokens stand beside" in warning for warning in report.warnings)


def test_litellm_mixed_zones_are_refused(lab) -> None:
    assert (
        lab.refuse(litellm_csv(spend(0), spend(1, startTime="2026-11-29T10:00:01+01:00"))).code == "trace.mixed_zones"
    )


def test_litellm_payload_of_callbacks(lab) -> None:
    row = {
        "id": "a", "trace_id": "t", "response_cost": 0.1, "response_time": 2.0, "status": "success", "total_tokens": 12,
        "prompt_tokens": 10, "completion_tokens": 2, "startTime": 1795942800.25, "endTime": 1795942802.25,
        "completionStartTime": 1795942800.5, "model": "demo", "model_group": "demo", "cache_hit": None,
        "metadata": {"user_api_key_team_id": "team-0", "usage_object": None}, "error_str": None,
    }  # fmt: skip
    failed = row | {"id": "b", "startTime": 1795942801.0, "status": "failure", "error_str": "litellm.Timeout"}
    report = lab.read(jsonl(row, failed))
    assert (report.format, report.requests) == ("litellm-standard-logging", 2)
    assert report.profile.start_utc == "2026-11-29T09:00:00.250+00:00"
    assert lab.table["status"].to_list() == ["ok", "failed"]
    assert lab.table["tenant"].to_list() == ["team-0", "team-0"]
    assert lab.table["arrival_ns"].to_list() == [0, 750_000_000]


def observation(i: int, usage_details: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    row = {
        "id": f"o{i}", "trace_id": f"t{i}", "type": "GENERATION", "parent_observation_id": None,
        "start_time": f"2026-11-29 09:00:{i:02d}.000001", "end_time": f"2026-11-29 09:00:{i + 3:02d}.000001",
        "completion_start_time": f"2026-11-29 09:00:{i + 1:02d}.000001", "level": "DEFAULT", "status_message": None,
        "provided_model_name": "demo", "usage_details": usage_details or {"input": 100, "output": 10, "total": 110},
        "user_id": "u", "session_id": "s",
    }  # fmt: skip
    return row | changes


@pytest.mark.parametrize(
    ("details", "prompt", "output", "cached"),
    [
        ({"input": 100, "output": 10}, 100, 10, None),
        ({"input": 60, "input_cached_tokens": 40, "output": 10, "total": 110}, 100, 10, 40),
        ({"input": 100, "input_cached_tokens": 40, "output": 10, "total": 110}, 100, 10, 40),
        ({"input": 3, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 97, "output": 10}, 1000, 10, 900),
        (
            {"input": 60, "cache_read_input_tokens": 30, "input_cache_creation": 10, "output": 10, "total": 80},
            70,
            10,
            30,
        ),
        ({"input": 100, "output": 7, "output_reasoning_tokens": 3, "total": 110}, 100, 10, None),
        ({"input": 100, "output": 10, "output_reasoning_tokens": 3, "total": 110}, 100, 10, None),
        ({"input": "100", "output": "10", "total": "110"}, 100, 10, None),
        (
            {"input": 60, "input_cached_tokens": 40, "output": 7, "output_reasoning_tokens": 3, "total": 110},
            100,
            10,
            40,
        ),
    ],
)
def test_langfuse_usage(lab, details: dict[str, Any], prompt: int, output: int, cached: int | None) -> None:
    report = lab.read(jsonl(observation(0, details), observation(1)))
    assert report.format == "langfuse-observations"
    first = lab.table.row(0, named=True)
    assert (first["prompt_tokens"], first["output_tokens"], first["cached_tokens"]) == (prompt, output, cached)


def test_langfuse_cached_in_doubt_is_asked_and_settled(lab) -> None:
    open_row = observation(0, {"input": 100, "input_cached_tokens": 40, "output": 10})
    error = lab.refuse(jsonl(open_row, observation(1)))
    assert error.code == "trace.ambiguous_cached"
    assert {item.cure for item in error.errors} == {"prompt_includes_cached=true", "prompt_includes_cached=false"}
    lab.read(jsonl(open_row, observation(1)), prompt_includes_cached=True)
    assert lab.table["prompt_tokens"].to_list() == [100, 100]
    lab.read(jsonl(open_row, observation(1)), prompt_includes_cached=False)
    assert lab.table["prompt_tokens"].to_list() == [140, 100]
    telling = observation(2, {"input": 3, "input_cached_tokens": 40, "output": 10})
    lab.read(jsonl(open_row, observation(1), telling))
    assert lab.table["prompt_tokens"].to_list() == [140, 100, 43]


def test_langfuse_total_that_fits_nothing_rejects_the_row(lab) -> None:
    rows = [observation(i) for i in range(30)]
    bad = observation(31, {"input": 100, "input_cached_tokens": 40, "output": 10, "total": 999})
    assert lab.read(jsonl(*rows, bad)).cleaning.rejected_by_rule == {"contradicts": 1}


def test_langfuse_counts_calls_only_and_each_once(lab) -> None:
    rows = [
        observation(0, {"input": 300, "output": 30, "total": 330}, type="AGENT", id="agent"),
        observation(1, {"input": 100, "output": 10}, id="outer", parent_observation_id="agent"),
        observation(1, {"input": 100, "output": 10}, id="inner", parent_observation_id="outer"),
        observation(2, parent_observation_id="tool"),
        observation(2, {}, id="tool", type="SPAN", parent_observation_id="agent"),
        observation(3, level="ERROR", status_message="boom"),
        observation(4, {"input": 50, "output": 0}, type="EMBEDDING", end_time=None),
    ]
    rows[4]["usage_details"] = {}
    report = lab.read(jsonl(*rows))
    assert (report.requests, report.prompt_tokens) == (4, 350)
    assert report.cleaning.not_requests == {
        "generations around others": 1, "observations of type AGENT": 1, "observations of type SPAN": 1,
    }  # fmt: skip
    assert lab.table["status"].to_list() == ["ok", "ok", "failed", "unknown"]


def test_langfuse_api_and_csv(lab) -> None:
    api = {
        "id": "a", "traceId": "t", "type": "GENERATION", "startTime": "2026-11-29T09:00:00.000Z", "level": "DEFAULT",
        "endTime": "2026-11-29T09:00:02.000Z", "completionStartTime": "2026-11-29T09:00:00.500Z", "model": "demo",
        "usageDetails": {"input": 5, "output": 2, "total": 7}, "parentObservationId": None,
    }  # fmt: skip
    report = lab.read(json.dumps({"data": [api, api | {"id": "b"}], "meta": {"page": 1}}, indent=1))
    assert (report.requests, report.prompt_tokens, report.output_tokens) == (2, 10, 4)
    assert lab.table["source_ttft_ns"].to_list() == [NS // 2] * 2
    out = io.StringIO()
    rows = [observation(i, {"input": 60, "input_cached_tokens": 40, "output": 10, "total": 110}) for i in range(3)]
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows({k: json.dumps(v) if isinstance(v, dict) else v for k, v in row.items()} for row in rows)
    report = lab.read(out.getvalue())
    assert (report.format, report.requests, report.prompt_tokens) == ("langfuse-observations", 3, 300)


def test_langfuse_characters_are_no_tokens(lab) -> None:
    row = observation(0, {"input": 4000, "output": 400, "unit": "CHARACTERS"})
    report = lab.read(jsonl(row, observation(1)))
    assert report.prompt_tokens == 100
    assert any("characters" in warning for warning in report.warnings)


def helicone(i: int, **changes: Any) -> dict[str, Any]:
    row = {
        "request_id": f"h{i}", "request_created_at": f"2026-11-29 09:00:{i:02d}.219", "response_status": 200,
        "response_created_at": "2026-11-29 09:00:59.000", "request_model": "demo", "provider": "CUSTOM",
        "request_user_id": "u", "request_properties": {"Helicone-Session-Id": "s"}, "delay_ms": 2220,
        "time_to_first_token": 320, "total_tokens": 110, "prompt_tokens": 100, "completion_tokens": 10,
        "prompt_cache_read_tokens": 40, "prompt_cache_write_tokens": 0,
    }  # fmt: skip
    return row | changes


def test_helicone(lab) -> None:
    assert lab.refuse(jsonl(helicone(0, total_tokens=None))).code == "trace.ambiguous_cached"
    none = {"total_tokens": None, "prompt_tokens": None, "completion_tokens": None, "prompt_cache_read_tokens": None}
    rows = [
        helicone(0),
        helicone(1, prompt_tokens=60),
        helicone(2, response_status=-3, **none),
        helicone(3, response_status=429, **none),
        helicone(4, cache_reference_id="d8a7dad9-3b35-464b-9ae8-55cc249eec12"),
        helicone(5, cache_reference_id="00000000-0000-0000-0000-000000000000", response_status="499"),
    ]
    report = lab.read(jsonl(*rows))
    assert report.format == "helicone-requests"
    assert lab.table["prompt_tokens"].to_list() == [100, 100, None, None, 100, 100]
    assert lab.table["status"].to_list() == ["ok", "ok", "aborted", "failed", "cache_hit", "aborted"]
    assert lab.table["session"].to_list() == ["s"] * 6
    assert lab.table["source_ttft_ns"].to_list()[:3] == [320_000_000, 320_000_000, None]


def envoy(i: int, **changes: Any) -> dict[str, Any]:
    row = {
        "gen_ai.request.model": "demo", "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.reasoning_tokens": None, "session.id": "s", "start_time": f"2026-11-29T09:00:{i:02d}.146Z",
        "method": "POST", "request.path": "/v1/chat/completions", "response_code": 200, "duration": 2220,
        "x-request-id": f"x{i}",
    }  # fmt: skip
    return row | changes


def test_envoy(lab) -> None:
    none = {"gen_ai.usage.input_tokens": "-", "gen_ai.usage.output_tokens": None}
    rows = [
        envoy(0),
        envoy(1, **{"gen_ai.usage.input_tokens": "200"}),
        envoy(2, response_code=0, **none),
        envoy(3, response_code=503, **none),
        envoy(4, response_flags="DC", **none),
        envoy(5, method="GET", **{"request.path": "/v1/models"}),
        envoy(6, **{"request.path": "/health"}),
    ]
    report = lab.read(jsonl(*reversed(rows)))
    assert (report.format, report.prompt_tokens) == ("envoy-ai-gateway", 300)
    assert lab.table["status"].to_list() == ["ok", "ok", "aborted", "failed", "aborted"]
    assert report.cleaning.not_requests == {"requests for other paths": 2}
    assert lab.table["source_e2e_ns"].to_list() == [2_220_000_000] * 5


def nginx(msec: str, **changes: str) -> dict[str, str]:
    row = {
        "time_iso8601": "2026-11-29T10:00:05+01:00", "msec": msec, "request_id": msec, "request_method": "POST",
        "request_uri": "/v1/chat/completions", "status": "200", "request_time": "2.220",
        "upstream_response_time": "2.200", "http_x_session_id": "s", "upstream_http_x_prompt_tokens": "100",
        "upstream_http_x_generated_tokens": "10",
    }  # fmt: skip
    return row | changes


def test_nginx_times_are_ends(lab) -> None:
    rows = [
        nginx("1795942800.146"),
        nginx("1795942800.820", request_time="7.500"),
        nginx("1795942805.000", status="499", upstream_http_x_prompt_tokens="", upstream_http_x_generated_tokens="-"),
        nginx("1795942806.000", upstream_response_time="0.1, 2.3", upstream_http_x_prompt_tokens="-, 90"),
        nginx("1795942807.000", request_uri="/metrics", request_method="GET"),
    ]
    report = lab.read(jsonl(*rows))
    assert (report.format, report.prompt_tokens, report.output_tokens) == ("nginx-json", 290, 30)
    assert lab.table["arrival_ns"].to_list() == [0, 4_606_000_000, 9_460_000_000, 10_460_000_000]
    assert lab.table["status"].to_list() == ["ok", "ok", "aborted", "ok"]
    assert report.profile.start_utc == "2026-11-29T08:59:53.320+00:00"
    assert any("tried on several" in warning for warning in report.warnings)
    only_iso = [{key: value for key, value in row.items() if key != "msec"} for row in rows[:1]]
    assert lab.read(jsonl(*only_iso)).profile.start_utc == "2026-11-29T09:00:02.780+00:00"


def test_nginx_units_and_zones_are_asked(lab) -> None:
    milli = nginx("1795942800.146", request_time="2220")
    error = lab.refuse(jsonl(milli))
    assert (error.code, error.errors[1].cure) == ("trace.ambiguous_unit", "time_unit=ms")
    naive = {key: value for key, value in nginx("").items() if key != "msec"} | {"time_iso8601": "2026-11-29T10:00:05"}
    assert lab.refuse(jsonl(naive)).code == "trace.ambiguous_zone"
    assert lab.refuse(jsonl(nginx("1795942800146"))).errors[0].rule == "time_out_of_range"
    assert lab.read(jsonl(milli), time_unit="ms").profile.start_utc == "2026-11-29T08:59:57.926+00:00"


def event(call: str, half: str, at: str, data: Any, **more: Any) -> dict[str, Any]:
    kind = f"org.kubeflow.serving.inference.{half}"
    return {"specversion": "1.0", "id": call, "type": kind, "time": at, "data": data, **more}


def answered(prompt: int, output: int) -> dict[str, Any]:
    return {"model": "demo", "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def test_kserve_joins_halves_in_any_order(lab) -> None:
    stream = (
        'data: {"model": "demo"}\n\ndata: {"usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\ndata: [DONE]\n'
    )
    coded = base64.b64encode(json.dumps(answered(9, 4)).encode()).decode()
    rows = [
        event("b", "response", "2026-11-29T09:00:03Z", json.dumps(answered(20, 2))),
        event("a", "request", "2026-11-29T09:00:00.5Z", {"model": "demo"}),
        event("b", "request", "2026-11-29T09:00:01Z", {"model": "demo"}),
        event("a", "response", "2026-11-29T09:00:04.5Z", answered(10, 1)),
        event("c", "request", "2026-11-29T09:00:02Z", "{}"),
        event("d", "request", "2026-11-29T09:00:03Z", "{}"),
        event("d", "response", "2026-11-29T09:00:05Z", stream),
        event("e", "request", "2026-11-29T09:00:04Z", "{}"),
        event("e", "response", "2026-11-29T09:00:05Z", None, data_base64=coded),
    ]
    report = lab.read(jsonl(*rows))
    assert (report.format, report.cleaning.rows_read, report.requests) == ("kserve-cloudevents", 5, 5)
    assert lab.table["prompt_tokens"].to_list() == [10, 20, None, 7, 9]
    assert lab.table["status"].to_list() == ["ok", "ok", "unknown", "ok", "ok"]
    assert lab.table["source_e2e_ns"].to_list()[:2] == [4 * NS, 2 * NS]


def test_kserve_answers_without_requests_have_no_arrival(lab) -> None:
    rows = [
        event(f"{i}", half, f"2026-11-29T09:00:{i:02d}Z", answered(20, 2))
        for i in range(30)
        for half in ("request", "response")
    ]
    report = lab.read(jsonl(*rows, event("x", "response", "2026-11-29T09:00:03Z", answered(20, 2))))
    assert (report.requests, report.cleaning.rejected_by_rule) == (30, {"missing_arrival": 1})


def bedrock(i: int, given: dict[str, Any], tokens: Any = 10, **changes: Any) -> dict[str, Any]:
    row = {
        "schemaType": "ModelInvocationLog", "timestamp": f"2026-11-29T09:00:{i:02d}Z", "requestId": f"b{i}",
        "modelId": "arn:aws:bedrock:us-east-1:1:inference-profile/demo.v1:0", "operation": "Converse",
        "identity": {"arn": "arn:demo"}, "input": given,
        "output": {"outputTokenCount": tokens, "outputBodyJson": {"metrics": {"latencyMs": 2220}}},
    }  # fmt: skip
    return row | changes


def test_bedrock_adds_cache_reads_and_writes(lab) -> None:
    rows = [
        bedrock(0, {"inputTokenCount": 100, "cacheReadInputTokenCount": 30, "cacheWriteInputTokenCount": 7}),
        bedrock(1, {"inputTokenCount": 5}),
        bedrock(2, {}, errorCode="ThrottlingException", output={}),
    ]
    report = lab.read(jsonl(*rows))
    assert lab.table["prompt_tokens"].to_list() == [137, 5, None]
    assert lab.table["status"].to_list() == ["ok", "ok", "failed"]
    assert report.profile.models == {"demo.v1:0": 3}


def test_sagemaker_bodies(lab) -> None:
    bodies = [
        (json.dumps(answered(10, 1)), "JSON"),
        (base64.b64encode(json.dumps(answered(20, 2)).encode()).decode(), "BASE64"),
        ('data: {"usage": null}\n\ndata: {"usage": {"prompt_tokens": 30, "completion_tokens": 3}}\n', "JSON"),
        ("no json at all", "CSV"),
    ]
    rows = [
        {
            "captureData": {"endpointOutput": {"data": data, "encoding": encoding, "mode": "OUTPUT"}},
            "eventMetadata": {"eventId": f"e{i}", "inferenceTime": f"2026-11-29T09:00:0{i}Z"},
        }
        for i, (data, encoding) in enumerate(bodies)
    ]
    report = lab.read(jsonl(*rows))
    assert report.format == "sagemaker-data-capture"
    assert lab.table["prompt_tokens"].to_list() == [10, 20, 30, None]
    assert lab.table["status"].to_list() == ["ok", "ok", "ok", "unknown"]


def logged(i: int, given: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-11-29T09:00:{i:02d}Z", "model": "demo", "usage": given, **more}


OPENAI = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
GEMINI = {"promptTokenCount": 100, "candidatesTokenCount": 6, "thoughtsTokenCount": 4, "totalTokenCount": 110}
ANTHROPIC = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 10}


@pytest.mark.parametrize(
    ("given", "prompt", "output", "cached", "reasoning"),
    [
        (OPENAI, 100, 10, None, None),
        (OPENAI | {"prompt_tokens_details": {"cached_tokens": 40}}, 100, 10, 40, None),
        (OPENAI | {"completion_tokens_details": {"reasoning_tokens": 4}}, 100, 10, None, 4),
        (OPENAI | {"total_tokens": 114, "completion_tokens_details": {"reasoning_tokens": 4}}, 100, 14, None, 4),
        (ANTHROPIC, 100, 10, 90, None),
        (ANTHROPIC | {"cache_read_input_tokens": None, "cache_creation_input_tokens": None}, 5, 10, None, None),
        ({"input_tokens": 100, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 40}}, 100, 10, 40, None),
        (GEMINI, 100, 10, None, 4),
        (OPENAI | {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, 100, 10, 64, None),
    ],
)  # fmt: skip
def test_usage_of_every_provider(
    lab, given: dict[str, Any], prompt: int, output: int, cached: int | None, reasoning: int | None
) -> None:
    lab.read(jsonl(logged(0, given), logged(1, OPENAI)))
    row = lab.table.row(0, named=True)
    found = (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"], row["reasoning_tokens"])
    assert found == (prompt, output, cached, reasoning)


def test_usage_names_the_shape_and_asks_where_a_total_contradicts_it(lab) -> None:
    odd = {"input_tokens": 100, "cache_read_input_tokens": 40, "output_tokens": 10, "total_tokens": 110}
    assert lab.refuse(jsonl(logged(0, odd))).code == "trace.ambiguous_cached"
    assert lab.read(jsonl(logged(0, OPENAI))).format == "openai-usage-log"
    assert lab.read(jsonl(logged(0, ANTHROPIC))).format == "anthropic-usage-log"
    lab.read(jsonl(logged(0, odd)), prompt_includes_cached=True)
    assert lab.table["prompt_tokens"].to_list() == [100]


def test_answers_as_they_came_batches_and_errors(lab) -> None:
    body = {"id": "c1", "object": "chat.completion", "created": 1795942800, "model": "demo", "usage": OPENAI}
    report = lab.read(jsonl(body, body | {"id": "c2", "created": 1795942803}))
    assert (report.requests, report.span_s) == (2, 3)
    assert any("created" in warning for warning in report.warnings)
    batch = {"custom_id": "x", "response": {"status_code": 200, "body": body}, "error": None}
    assert lab.read(jsonl(batch)).prompt_tokens == 100
    failed = {"timestamp": "2026-11-29T09:00:09Z", "usage": None, "error": {"code": "rate_limit"}, "model": "demo"}
    report = lab.read(jsonl(logged(0, OPENAI), failed))
    assert lab.table["status"].to_list() == ["ok", "failed"]


def test_chunks_of_streams_count_once(lab) -> None:
    def chunk(call: str, given: Any = None) -> dict[str, Any]:
        return {"id": call, "object": "chat.completion.chunk", "created": 1795942800, "choices": [], "usage": given}

    rows = [chunk("a"), chunk("b"), chunk("a", OPENAI | {"completion_tokens": 1}), chunk("a", OPENAI), chunk("b")]
    report = lab.read(jsonl(*rows))
    assert (report.requests, report.output_tokens) == (2, 10)
    assert report.cleaning.not_requests == {"chunks of streams": 5}


def test_events_of_streams(lab) -> None:
    answer = {"object": "response", "created_at": 1795942800, "status": "completed"}
    done = {"type": "response.completed", "response": answer | {"usage": {"input_tokens": 7, "output_tokens": 3}}}
    report = lab.read(jsonl({"type": "response.created", "response": answer | {"usage": None}}, done))
    assert (report.requests, report.prompt_tokens) == (1, 7)
    at = "2026-11-29T09:00:00Z"
    begun = {"type": "message_start", "timestamp": at, "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}}
    ended = {"type": "message_delta", "timestamp": at, "usage": {"output_tokens": 40}}
    lab.out.unlink()
    assert lab.refuse(jsonl(begun, ended)).code == "trace.stream_parts"


def test_a_total_that_fits_nothing_is_said(lab) -> None:
    report = lab.read(jsonl(logged(0, OPENAI | {"total_tokens": 500})))
    assert any("the total is not the sum" in warning for warning in report.warnings)


def test_coding_sessions_count_an_answer_once_from_its_question_on(lab) -> None:
    def line(kind: str, at: int, message: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "type": kind,
            "timestamp": f"2026-11-29T09:00:{at:02d}.000Z",
            "sessionId": "s",
            "message": message or {},
        }

    part = ANTHROPIC | {"output_tokens": 1}
    rows = [
        line("user", 0),
        line("assistant", 4, {"id": "m1", "model": "demo", "usage": part}),
        line("assistant", 6, {"id": "m1", "model": "demo", "usage": ANTHROPIC}),
        line("user", 8),
        line("assistant", 9, {"id": "m2", "model": "demo", "usage": ANTHROPIC}),
    ]
    report = lab.read(jsonl(*rows))
    assert (report.format, report.requests) == ("claude-code-session", 2)
    assert (report.prompt_tokens, report.output_tokens) == (200, 20)
    assert lab.table["arrival_ns"].to_list() == [0, 8 * NS]
    assert lab.table["source_e2e_ns"].to_list() == [6 * NS, NS]


def test_logs_without_requests_are_refused_with_a_reason(lab) -> None:
    azure = {
        "time": "2026-11-29T09:00:00Z", "resourceId": "/X/PROVIDERS/MICROSOFT.COGNITIVESERVICES/Y", "durationMs": 5,
        "operationName": "ChatCompletions_Create", "category": "RequestResponse", "properties": '{"responseLength": 9}',
    }  # fmt: skip
    error = lab.refuse(jsonl(azure))
    assert (error.code, "bytes" in error.detail) == ("trace.no_requests", True)
    assert lab.refuse(json.dumps({"records": [azure]})).code == "trace.no_requests"
    result = {"input_tokens": 9, "output_tokens": 9, "num_model_requests": 3}
    bucket = {"object": "bucket", "start_time": 1, "end_time": 2, "results": [result]}
    assert lab.refuse(json.dumps({"object": "page", "data": [bucket]}, indent=1)).code == "trace.no_requests"
    assert lab.refuse(jsonl(bucket)).code == "trace.no_requests"
    span = {"total_time": "1.2s", "inference_time": "1.1s", "time_per_token": "873.4µs"}
    tgi = {
        "timestamp": "2026-11-29T09:00:00Z",
        "message": "Success",
        "span": span,
        "target": "text_generation_router::server",
    }
    assert lab.refuse(jsonl(tgi)).code == "trace.no_requests"
    assert lab.refuse(f"2026-11-29T09:00:00Z  INFO starting\n{jsonl(tgi)}").code == "trace.no_requests"


@pytest.mark.parametrize("rows", [[spend(0)], [observation(0)], [helicone(0)], [envoy(0)], [bedrock(0, {})]])
def test_one_row_of_null_counts_is_no_light_load(lab, rows: list[dict[str, Any]]) -> None:
    """A format whose counts are all missing is refused, never replayed as nothing."""
    text = json.dumps(rows[0])
    for number in ("100", "110", "10", "40", "60"):
        text = text.replace(f": {number},", ": null,").replace(f": {number}}}", ": null}")
    assert lab.refuse(text + "\n").code == "trace.no_lengths"
