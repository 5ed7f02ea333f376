"""Usage objects of providers: Gemini's thoughts and tools, Anthropic's breakdown, totals that say more, caches."""

import json
from typing import Any

import pytest

N = 12


def log(*usages: dict[str, Any], name: str = "usage", **more: Any) -> str:
    rows = [{"start_time": 1_700_000_000.5 + 3 * i, "model": "m", name: usage} | more for i, usage in enumerate(usages)]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("usage", "prompt", "output"),
    [
        ({"promptTokenCount": 100, "candidatesTokenCount": 30, "thoughtsTokenCount": 20}, 100, 50),
        (
            {"promptTokenCount": 100, "candidatesTokenCount": 30, "thoughtsTokenCount": 20, "totalTokenCount": 150},
            100,
            50,
        ),
        (
            {"promptTokenCount": 100, "candidatesTokenCount": 50, "thoughtsTokenCount": 20, "totalTokenCount": 150},
            100,
            50,
        ),
        ({"promptTokenCount": 100, "thoughtsTokenCount": 20, "totalTokenCount": 120}, 100, 20),
        (
            {"promptTokenCount": 100, "candidatesTokenCount": 30, "thoughtsTokenCount": 20, "totalTokenCount": 190}
            | {"toolUsePromptTokenCount": 40},
            140,
            50,
        ),
        ({"prompt_token_count": 100, "candidates_token_count": 30, "thoughts_token_count": 20}, 100, 50),
        ({"input_tokens": 10, "output_tokens": 5, "cache_creation": {"ephemeral_5m_input_tokens": 90}}, 100, 5),
    ],
)
def test_the_parts_of_a_call(lab, usage: dict[str, int], prompt: int, output: int) -> None:
    lab.read(log(*[usage] * N, name="usage_metadata" if "prompt_token_count" in usage else "usage"))
    assert lab.table["prompt_tokens"].to_list() == [prompt] * N
    assert lab.table["output_tokens"].to_list() == [output] * N


def test_a_total_that_is_more_in_most_rows_is_refused(lab) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 150}
    whole = usage | {"total_tokens": 110}
    assert lab.refuse(log(*[usage] * N)).code == "trace.contradicting_total"
    report = lab.read(log(*[usage] * 5, *[whole] * 7))
    assert any("total is not the sum" in warning for warning in report.warnings)


@pytest.mark.parametrize("hit", [{"cache_hit": True}, {"cache_hit": "True"}, {"cache_status": "HIT"}])
def test_hits_of_a_cache_are_no_load(lab, hit: dict[str, Any]) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    report = lab.read(log(*[usage] * N, **hit) + log(*[usage] * N, cache_hit=False))
    assert report.cleaning.status_counts == {"cache_hit": N, "ok": N}


def test_several_choices_of_one_answer_are_said(lab) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 40}
    report = lab.read(log(*[usage] * N, choices=[{"index": 0}, {"index": 1}]))
    assert any("several choices" in warning for warning in report.warnings)


@pytest.mark.parametrize("total", [{}, {"total": 150}])
def test_langfuse_sums_up_all_parts_of_the_output(lab, total: dict[str, int]) -> None:
    details = {"input": 100, "output": 30, "output_reasoning_tokens": 15, "output_audio": 5} | total
    rows = [
        {
            "id": f"o{i}", "trace_id": f"t{i}", "type": "GENERATION", "level": "DEFAULT", "usage_details": details,
            "start_time": f"2026-11-03 09:00:{i:02d}.000000", "end_time": f"2026-11-03 09:01:{i:02d}.000000",
        }
        for i in range(N)
    ]  # fmt: skip
    lab.read("".join(json.dumps(row) + "\n" for row in rows))
    assert lab.table["output_tokens"].to_list() == [50] * N


def test_keys_with_dots_inside_nested_objects_are_found(lab) -> None:
    """Spans in ClickHouse: a map of attributes whose names have dots."""
    attributes = {"gen_ai.usage.input_tokens": "100", "gen_ai.usage.output_tokens": "10"}
    rows = [{"Timestamp": f"2026-11-03T09:00:{i:02d}.5Z", "SpanAttributes": attributes} for i in range(N)]
    mapping = {
        "arrival": "Timestamp",
        "prompt_tokens": "SpanAttributes.gen_ai.usage.input_tokens",
        "output_tokens": "SpanAttributes.gen_ai.usage.output_tokens",
    }
    assert lab.read("".join(json.dumps(row) + "\n" for row in rows), mapping=mapping).prompt_tokens == 100 * N


@pytest.mark.parametrize("name", ["cached_input_tokens", "cachedInputTokens"])
@pytest.mark.parametrize(("given", "cached"), [(100, 60), (40, 60)])
def test_cached_input_tokens_are_inside_unless_they_are_more(lab, name: str, given: int, cached: int) -> None:
    lab.read(log(*[{"input_tokens": given, "output_tokens": 10, name: cached}] * N))
    assert lab.table["prompt_tokens"].to_list() == [100] * N


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/tokenize", "/v1beta/models/m:countTokens?key=1"])
def test_calls_that_only_count_tokens_are_no_requests(lab, path: str) -> None:
    calls = log(*[{"prompt_tokens": 100, "completion_tokens": 10}] * N, path="/v1/messages")
    counted = log(*[{"input_tokens": 100, "output_tokens": 0}] * N, path=path)
    report = lab.read(calls + counted)
    assert (report.requests, report.cleaning.not_requests) == (N, {"requests for other paths": N})


def test_an_envoy_log_leaves_calls_that_count_tokens_out(lab) -> None:
    row = {
        "start_time": "2026-11-03T09:00:00.5Z", "duration": 900, "response_code": 200, "method": "POST",
        "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 10,
    }  # fmt: skip
    paths = ("/v1/messages", "/v1/messages/count_tokens")
    report = lab.read("".join(json.dumps(row | {"path": path, "x-request-id": path}) + "\n" for path in paths))
    assert report.requests == 1


def test_bedrock_calls_that_count_tokens_are_no_requests(lab) -> None:
    rows = [
        {
            "schemaType": "ModelInvocationLog", "schemaVersion": "1.0", "timestamp": f"2026-11-03T09:00:{i:02d}Z",
            "requestId": f"r{i}", "operation": ("Converse", "CountTokens")[i % 2], "modelId": "m",
            "input": {"inputTokenCount": 100}, "output": {"outputTokenCount": 10},
        }
        for i in range(N)
    ]  # fmt: skip
    assert lab.read("".join(json.dumps(row) + "\n" for row in rows)).requests == N // 2
