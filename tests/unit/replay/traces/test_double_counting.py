"""Load that would be counted twice, or in part only: two instruments, wrappers, gateways' own totals, samples."""

import json
from typing import Any

import pytest

from tests.unit.replay.traces.test_gateways import helicone, jsonl, litellm_csv, spend
from tests.unit.replay.traces.test_spans import CALL, START, batch, lines, span

NS = 10**9
_BESIDE = {"prompt_tokens": 100, "completion_tokens": 10, "cache_read_input_tokens": 40}


def _pairs(n: int, **changes: Any) -> list[dict[str, Any]]:
    """Calls, and for each a second span without a link in the same trace, that starts 3 ms later."""
    made = []
    for i in range(n):
        trace = {"traceId": f"{i:032x}"}
        call = span(i, CALL | {"gen_ai.usage.input_tokens": 100 + i}, **trace)
        made += [call, call | {"spanId": f"{1000 + i:016x}", "startTimeUnixNano": str(START + i * NS + 3_000_000)}]
        made[-1] |= changes
    return made


def test_two_instruments_side_by_side_are_asked_about(lab) -> None:
    refusal = lab.refuse(lines(batch(*_pairs(30))))
    assert (refusal.code, refusal.errors[0].field) == ("trace.duplicates", "keep_duplicates")
    assert "60 of 60 model calls" in refusal.detail
    assert lab.read(lines(batch(*_pairs(30))), keep_duplicates=True).requests == 60


def test_a_few_calls_recorded_twice_are_said(lab) -> None:
    report = lab.read(lines(batch(*_pairs(4), *(span(i, traceId=f"{i:032x}") for i in range(100, 160)))))
    assert report.requests == 68
    assert any("8 of 68 model calls come in pairs" in warning for warning in report.warnings)


@pytest.mark.parametrize("changes", [{"traceId": "f" * 32}, {"endTimeUnixNano": str(START + 999 * NS)}])
def test_calls_of_other_traces_or_times_are_no_pairs(lab, changes: dict[str, Any]) -> None:
    """A twin of another trace, or one that ends after the first."""
    made = _pairs(30, **changes)
    if "endTimeUnixNano" in changes:
        made = [made[0], *made[2::2]]
    assert lab.read(lines(batch(*made))).requests == len(made)


def test_langfuse_generations_recorded_twice_are_asked_about(lab) -> None:
    rows = [
        {
            "id": f"{i}-{copy}", "trace_id": f"t{i}", "type": "GENERATION", "level": "DEFAULT",
            "start_time": f"2026-11-29 09:00:{i:02d}.{copy}00000", "end_time": f"2026-11-29 09:01:{i:02d}.500000",
            "usage_details": {"input": 100 + i, "output": 10, "total": 110 + i},
        }
        for i in range(30) for copy in (1, 2)
    ]  # fmt: skip
    assert lab.refuse(jsonl(*rows)).code == "trace.duplicates"


def test_a_wrapper_that_sums_up_whole_prompts_is_counted_once(lab) -> None:
    """The wrapper's input holds what its calls count as cached tokens beside theirs."""
    base = {"trace_id": "t", "type": "GENERATION", "level": "DEFAULT", "end_time": "2026-11-29 09:00:20.000000"}
    inner = {"input": 60, "input_cached_tokens": 40, "output": 10, "total": 110}
    rows = [
        base | {"id": "w", "start_time": "2026-11-29 09:00:00.000000", "usage_details": {"input": 200, "output": 20}},
        *(
            base
            | {
                "id": f"c{i}", "parent_observation_id": "w", "start_time": f"2026-11-29 09:00:0{i}.000000",
                "usage_details": inner,
            }
            for i in range(2)
        ),
    ]  # fmt: skip
    report = lab.read(jsonl(*rows))
    assert (report.requests, report.prompt_tokens, report.output_tokens) == (2, 200, 20)
    assert report.cleaning.not_requests == {"generations around others": 1}


def test_spans_of_vllm_itself_are_requests(lab) -> None:
    """vLLM names neither an operation nor, in newer versions, the model."""
    own = {
        "gen_ai.request.id": "cmpl-1", "gen_ai.usage.prompt_tokens": 100, "gen_ai.usage.completion_tokens": 10,
        "gen_ai.latency.time_in_queue": 0.25,
    }  # fmt: skip
    report = lab.read(lines(batch(*(span(i, own) for i in range(3)))))
    assert (report.requests, report.prompt_tokens) == (3, 300)


@pytest.mark.parametrize("named", [{"provider": "ANTHROPIC"}, {"request_model": "anthropic/claude-sonnet"}])
def test_helicones_own_total_says_nothing_about_cached_tokens(lab, named: dict[str, str]) -> None:
    rows = jsonl(*(helicone(i, **named) for i in range(3)))
    assert lab.refuse(rows).code == "trace.ambiguous_cached"
    assert lab.read(rows, prompt_includes_cached=False).prompt_tokens == 420
    whole = jsonl(*(helicone(i, total_tokens=150, **named) for i in range(3)))
    assert lab.read(whole).prompt_tokens == 420


@pytest.mark.parametrize("place", ["usage_object", "additional_usage_values"])
def test_litellm_tokens_under_a_providers_names_are_asked_about(lab, place: str) -> None:
    """Older versions left them out of the prompt; its total is LiteLLM's own sum."""
    rows = litellm_csv(*(spend(i, metadata={place: _BESIDE}, custom_llm_provider="anthropic") for i in range(3)))
    assert lab.refuse(rows).code == "trace.ambiguous_cached"
    assert lab.read(rows, prompt_includes_cached=True).prompt_tokens == 100 + 101 + 102
    assert lab.read(rows, prompt_includes_cached=False).prompt_tokens == 140 + 141 + 142


@pytest.mark.parametrize(("given", "prompt"), [(100, 140), (60, 100)])
def test_litellm_beside_anthropics_own_usage(lab, given: int, prompt: int) -> None:
    """LiteLLM's column is the uncached rest where it repeats the provider's, and the whole where it is the sum."""
    used = {"input_tokens": given, "output_tokens": 10, "cache_read_input_tokens": 40}
    lab.read(litellm_csv(spend(0, metadata={"usage_object": used}, custom_llm_provider="anthropic")))
    assert lab.table["prompt_tokens"].to_list() == [prompt]


def test_aiperf_without_a_length_adds_reasoning_to_the_visible_output(lab) -> None:
    record = {
        "metadata": {"request_start_ns": START, "request_end_ns": START + NS, "benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": {"value": 100, "unit": "tokens"},
            "output_token_count": {"value": 10, "unit": "tokens"},
            "reasoning_token_count": {"value": 5, "unit": "tokens"},
        },
        "error": None,
    }
    lab.read(json.dumps(record) + "\n")
    assert lab.table["output_tokens"].to_list() == [15]


@pytest.mark.parametrize("totals", [{"request_totals": {"total": 90}}, {"run_stats": {"requests_made": {"total": 90}}}])
def test_guidellm_reports_of_a_sample_are_said(lab, totals: dict[str, Any]) -> None:
    requests = [{"request_start_time": 1.8e9 + i, "prompt_tokens": 100, "output_tokens": 10} for i in range(30)]
    bench = {"requests": {"successful": requests}} | totals
    report = lab.read(json.dumps({"benchmarks": [bench]}))
    assert any("30 of the 90 requests" in warning for warning in report.warnings)


def test_langfuse_versions_of_a_generation_are_one_request(lab) -> None:
    """Langfuse stores a row when a call begins and another when it has ended; an export may hold both."""
    rows = []
    for i in range(30):
        begun = {
            "id": f"o{i}", "trace_id": f"t{i}", "type": "GENERATION", "level": "DEFAULT",
            "start_time": f"2026-11-29 09:00:{i:02d}.000000", "end_time": None, "usage_details": {},
        }  # fmt: skip
        done = {"end_time": f"2026-11-29 09:01:{i:02d}.000000", "usage_details": {"input": 100, "output": 10}}
        rows += [begun, begun | done]
    report = lab.read(jsonl(*rows))
    assert (report.requests, report.prompt_tokens, report.cleaning.rows_rejected) == (30, 3000, 0)
    assert report.cleaning.status_counts == {"ok": 30}
    assert report.cleaning.not_requests == {"earlier versions of generations": 30}
