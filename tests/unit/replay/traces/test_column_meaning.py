"""What names and numbers of columns say against the field that they are mapped to."""

import json

import pytest

N = 40


def csv(header: str, row: str, n: int = N) -> str:
    """``n`` rows of a template with irregular seconds ``t``, prompt ``p`` (``c`` of it cached), output ``o``."""
    lines = []
    for i in range(n):
        p, o = 300 + 37 * (i * 7 % n), 60 + i * 11 % 50
        at = i * 5 + i * 7 % 3 + 0.25
        lines.append(
            row.format(t=at, p=p, c=p * 2 // 3, u=p - p * 2 // 3, o=o, r=o * 2 // 3, v=o - o * 2 // 3, t2=p + o)
        )
    return f"{header}\n" + "\n".join(lines) + "\n"


def mapping(prompt: str, output: str, **more: str) -> dict[str, str]:
    return {"arrival": "t_s", "prompt_tokens": prompt, "output_tokens": output, **more}


WHOLE = sum(300 + 37 * (i * 7 % N) for i in range(N)), sum(60 + i * 11 % 50 for i in range(N))


@pytest.mark.parametrize(
    "column",
    ["inter_arrival_s", "delta_ms", "latency_ms", "elapsed_time_s", "requestDuration_s", "iat_s", "gap_s", "ttft_ms"],
)
def test_durations_are_no_arrivals(lab, column: str) -> None:
    text = csv(f"{column},p,o", "{t},{p},{o}")
    refusal = lab.refuse(text, mapping={"arrival": column, "prompt_tokens": "p", "output_tokens": "o"})
    assert (refusal.code, refusal.errors[0].column) == ("trace.not_times", column)
    cured = text.replace(column, "since_start_s")
    assert (
        lab.read(cured, mapping={"arrival": "since_start_s", "prompt_tokens": "p", "output_tokens": "o"}).requests == N
    )


@pytest.mark.parametrize(
    ("prompt", "cached"),
    [
        ("input_uncached_tokens", "input_cached_tokens"),
        ("prompt_cache_miss_tokens", "prompt_cache_hit_tokens"),
        ("newInputTokens", "cachedTokens"),
        ("prompt_n", "cache_n"),
        ("input", "input_cache_read"),
        ("input_tokens", "cache_read"),
    ],
)
def test_a_prompt_without_its_cached_tokens_is_asked_about(lab, prompt: str, cached: str) -> None:
    text = csv(f"t_s,{prompt},{cached},o", "{t},{u},{c},{o}")
    refusal = lab.refuse(text, mapping=mapping(prompt, "o"))
    assert refusal.code == "trace.ambiguous_cached"
    assert f"cached_tokens={cached}" in refusal.errors[0].cure
    report = lab.read(text, mapping=mapping(prompt, "o", cached_tokens=cached))
    assert (report.prompt_tokens, report.output_tokens) == WHOLE


@pytest.mark.parametrize("cached", ["tokens_cached", "cached_input_tokens", "prompt_cached"])
def test_more_cached_tokens_than_prompt_show_that_they_stand_beside(lab, cached: str) -> None:
    text = csv(f"t_s,p,{cached},o", "{t},{u},{c},{o}")
    assert lab.refuse(text, mapping=mapping("p", "o")).code == "trace.ambiguous_cached"
    options = {"mapping": mapping("p", "o", cached_tokens=cached), "prompt_includes_cached": False}
    assert lab.read(text, **options).prompt_tokens == WHOLE[0]


@pytest.mark.parametrize("beside", ["cached_tokens", "cache_hit", "cache_key_id", "cache_ttl_s", "kv_cache_tokens"])
def test_a_column_about_a_cache_that_is_no_part_of_the_load_is_left_alone(lab, beside: str) -> None:
    value = "{c}" if beside == "cached_tokens" else "987654321" if beside != "cache_hit" else "True"
    text = csv(f"t_s,p,{beside},o", f"{{t}},{{p}},{value},{{o}}")
    assert lab.read(text, mapping=mapping("p", "o")).prompt_tokens == WHOLE[0]


@pytest.mark.parametrize(
    ("output", "reasoning"),
    [
        ("candidates_token_count", "thoughts_token_count"),
        ("visible_tokens", "thinkingTokens"),
        ("o", "reasoning_tokens"),
    ],
)
def test_reasoning_beside_the_output_is_asked_for_and_added(lab, output: str, reasoning: str) -> None:
    text = csv(f"t_s,p,{output},{reasoning}", "{t},{p},{v},{r}")
    refusal = lab.refuse(text, mapping=mapping("p", output))
    assert (refusal.code, refusal.errors[0].column) == ("trace.reasoning_left_out", reasoning)
    report = lab.read(text, mapping=mapping("p", output, reasoning_tokens=reasoning))
    assert (report.prompt_tokens, report.output_tokens) == WHOLE


@pytest.mark.parametrize("beside", ["thinking_budget_tokens", "max_reasoning_tokens", "thinking_time_ms"])
def test_limits_and_times_of_reasoning_are_left_alone(lab, beside: str) -> None:
    assert lab.read(csv(f"t_s,p,o,{beside}", "{t},{p},{o},16000"), mapping=mapping("p", "o")).output_tokens == WHOLE[1]


def test_reasoning_inside_the_output_is_left_there(lab) -> None:
    text = csv("t_s,p,o,reasoning_tokens", "{t},{p},{o},{r}")
    assert lab.read(text, mapping=mapping("p", "o")).output_tokens == WHOLE[1]
    assert lab.read(text, mapping=mapping("p", "o", reasoning_tokens="reasoning_tokens")).output_tokens == WHOLE[1]


@pytest.mark.parametrize("total", ["total_token_count", "totalTokenCount", "total_tok", "num_total_tokens"])
def test_a_total_of_another_name_is_believed_too(lab, total: str) -> None:
    text = csv(f"t_s,p,o,{total}", "{t},{u},{v},{t2}")
    assert lab.refuse(text, mapping=mapping("p", "o")).code == "trace.contradicting_total"
    assert lab.refuse(text, mapping=mapping(total, "o")).code == "trace.not_tokens"


def test_sums_so_far_of_codex_are_no_lengths(lab) -> None:
    usage = {"input_tokens": 100, "output_tokens": 10}
    rows = []
    for i in range(12):
        so_far = {name: count * (i + 1) for name, count in usage.items()}
        info = {"total_token_usage": so_far, "last_token_usage": usage}
        rows.append({"ts": 1_700_000_000.5 + 3 * i, "info": info})
    text = "".join(json.dumps(row) + "\n" for row in rows)

    def of(which: str) -> dict[str, str]:
        return {"arrival": "ts", **{f"{k.replace('input', 'prompt')}": f"info.{which}.{k}" for k in usage}}

    assert lab.refuse(text, mapping=of("total_token_usage")).code == "trace.not_tokens"
    assert lab.read(text, mapping=of("last_token_usage")).prompt_tokens == 1200


def test_tokens_of_another_tokenizer_are_refused_where_the_models_own_stand_beside(lab) -> None:
    text = csv(
        "t_s,tokens_prompt,tokens_completion,native_tokens_prompt,native_tokens_completion", "{t},{u},{v},{p},{o}"
    )
    refusal = lab.refuse(text, mapping=mapping("tokens_prompt", "tokens_completion"))
    assert (refusal.code, "native_tokens_prompt" in refusal.errors[0].cure) == ("trace.not_tokens", True)
    report = lab.read(text, mapping=mapping("native_tokens_prompt", "native_tokens_completion"))
    assert (report.prompt_tokens, report.output_tokens) == WHOLE


def test_estimates_are_said(lab) -> None:
    text = csv("t_s,est_input_tokens,o", "{t},{p},{o}")
    report = lab.read(text, mapping=mapping("est_input_tokens", "o"))
    assert any("estimated" in warning for warning in report.warnings)


@pytest.mark.parametrize("column", ["request_time", "response_time_s", "time_taken"])
def test_a_time_that_is_a_duration_in_some_logs_is_told_by_its_numbers(lab, column: str) -> None:
    options = {"mapping": {"arrival": column, "prompt_tokens": "p", "output_tokens": "o"}, "time_unit": "s"}
    durations = csv(f"{column},p,o", "{c}.25,{p},{o}")
    assert lab.refuse(durations, **options).code == "trace.not_times"
    assert lab.read(csv(f"{column},p,o", "{t},{p},{o}"), **options).requests == N
    suggested = lab.refuse_again(durations.replace(column, "request_time")).errors[0]
    assert "no column's name suggests it" in suggested.detail


@pytest.mark.parametrize("rate", ["sample_rate", "_sampling_rate", "SamplingProbability"])
def test_a_sample_of_the_calls_is_said(lab, rate: str) -> None:
    for value, said in (("0.1", True), ("1.0", False)):
        report = lab.read(csv(f"t_s,p,o,{rate}", f"{{t}},{{p}},{{o}},{value}"), mapping=mapping("p", "o"))
        assert any("sample of the calls" in warning for warning in report.warnings) is said


def test_providers_that_count_in_different_ways_are_told_apart_by_the_total(lab) -> None:
    """Every other row counts cached tokens beside its prompt."""
    inside, outside = csv("t_s,p,c,o,total", "{t},{p},{c},{o},{t2}"), csv("x", "{t},{u},{c},{o},{t2}")
    pairs = zip(inside.splitlines()[1:], outside.splitlines()[1:], strict=True)
    rows = [pair[i % 2] for i, pair in enumerate(pairs)]
    text = "t_s,p,cached,o,total_tokens\n" + "\n".join(rows) + "\n"
    assert lab.read(text, mapping=mapping("p", "o", cached_tokens="cached")).prompt_tokens == WHOLE[0]
    assert "by row" in lab.read(text, mapping=mapping("p", "o", cached_tokens="cached")).assumed["cached_tokens"]
    without = "\n".join(row.rpartition(",")[0] for row in text.splitlines()) + "\n"
    refusal = lab.refuse_again(without, mapping=mapping("p", "o", cached_tokens="cached"))
    assert "upload each provider's by itself" in refusal.detail


@pytest.mark.parametrize(
    ("prompt", "other"),
    [("text_tokens", "audio_tokens"), ("user_tokens", "system_prompt_tokens"), ("textInputTokens", "imageInputTokens")],
)
def test_a_part_of_the_input_is_not_the_input(lab, prompt: str, other: str) -> None:
    text = csv(f"t_s,{prompt},{other},o", "{t},{u},{c},{o}")
    refusal = lab.refuse(text, mapping=mapping(prompt, "o"))
    assert (refusal.code, other in refusal.errors[0].cure) == ("trace.not_tokens", True)
    assert lab.read(text.replace(other, "z"), mapping=mapping(prompt, "o")).requests == N
    none = csv(f"t_s,{prompt},{other},o", "{t},{p},0,{o}")
    assert lab.read(none, mapping=mapping(prompt, "o")).prompt_tokens == WHOLE[0]


@pytest.mark.parametrize("column", ["prompt_tokens_bucket", "input_tokens_delta", "rounded_prompt_tokens"])
def test_buckets_and_differences_are_no_counts(lab, column: str) -> None:
    assert lab.refuse(csv(f"t_s,{column},o", "{t},{p},{o}"), mapping=mapping(column, "o")).code == "trace.not_tokens"


def test_a_prompt_that_is_the_total_is_refused(lab) -> None:
    text = csv("t_s,p,o,total_tokens", "{t},{t2},{o},{t2}")
    assert lab.refuse(text, mapping=mapping("p", "o")).code == "trace.contradicting_total"
    assert lab.read(text.replace("total_tokens", "z"), mapping=mapping("p", "o")).requests == N
