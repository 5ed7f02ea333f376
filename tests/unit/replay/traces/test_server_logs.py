"""vLLM and SGLang logs as they really look: colours, prefixes, rotation, prompts that look like logs, odd clocks."""

import json

import pytest

from replay.errors import TraceError
from replay.specs import Transform
from replay.traces.transforms import load_workload

NS = 10**9
PARAMS = "params: SamplingParams(n=1, temperature=0.7, max_tokens=512)"


def received(
    rid: str, at: str, prompt: int | None = 3, text: str = "None", head: str = "INFO {at} [logger.py:39]"
) -> str:
    ids = "None" if prompt is None else f"[{', '.join('7' for _ in range(prompt))}]"
    return (
        f"{head.format(at=at)} Received request {rid}: prompt: {text}, {PARAMS}, prompt_token_ids: {ids}, "
        "prompt_embeds shape: None, lora_request: None."
    )


def added(rid: str, at: str) -> str:
    return f"INFO {at} [async_llm.py:269] Added request {rid}."


def generated(rid: str, at: str, output: int, reason: str = "stop", text: str = "'hi'") -> str:
    ids = ", ".join("9" for _ in range(output))
    return (
        f"INFO {at} [logger.py:71] Generated response {rid} (streaming complete): output: {text}, "
        f"output_token_ids: [{ids}], finish_reason: {reason}"
    )


def vllm(*lines: str) -> str:
    """A log with three requests of different lengths, then the given lines."""
    base = []
    for i in range(3):
        at = f"11-29 10:00:0{i}"
        base += [received(f"r{i}", at, 5 + i), added(f"r{i}", at), generated(f"r{i}", f"11-29 10:00:1{i}", 2 + i)]
    return "\n".join([*base, *lines]) + "\n"


def test_vllm_joins_the_lines_of_a_request(lab) -> None:
    report = lab.read(vllm('INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK'))
    assert (report.format, report.cleaning.rows_read, report.requests) == ("vllm-request-log", 3, 3)
    assert (report.prompt_tokens, report.output_tokens) == (5 + 6 + 7, 2 + 3 + 4)
    assert lab.table["arrival_ns"].to_list() == [0, NS, 2 * NS]
    assert lab.table["source_e2e_ns"].to_list() == [10 * NS] * 3
    assert report.profile.start_utc is None, "without a year and a zone no calendar time may be invented"
    assert any("zone and year" in warning for warning in report.warnings)
    assert report.cleaning.not_requests == {"other log lines": 4}


def test_vllm_on_the_calendar_with_year_and_zone(lab) -> None:
    report = lab.read(vllm(), year=2026, time_zone="Europe/Berlin")
    assert report.profile.start_utc == "2026-11-29T09:00:00.000+00:00"


def test_vllm_colours_process_prefixes_and_suffixed_ids(lab) -> None:
    """Newer engines put eight hex digits behind the id that they add: that is no second request."""
    pid = "\x1b[1;36m(APIServer pid=4711)\x1b[0;0m "
    lines = [
        f"{pid}{received('chatcmpl-a', '11-29 10:00:00', None)}",
        f"{pid}{added('chatcmpl-a-a8a65d16', '11-29 10:00:00')}",
        "(EngineCore_0 pid=4712) INFO 11-29 10:00:01 [core.py:1] busy",
        f"{pid}INFO 11-29 10:00:05 [async_llm.py:431] Request chatcmpl-a-a8a65d16 aborted.",
    ]
    report = lab.read("\n".join(lines))
    assert (report.requests, report.cleaning.status_counts) == (1, {"aborted": 1})


def test_vllm_old_style_heads(lab) -> None:
    old = "INFO {at} async_llm_engine.py:436]"
    lines = [received(f"cmpl-{i}-0", f"02-01 06:36:1{i}", 4 + i, "'x'", old) for i in range(3)]
    lines.append("INFO 02-01 06:36:20 async_llm_engine.py:111] Finished request cmpl-0-0.")
    lines[1] = lines[1].replace(", params:", ", prefix_pos: None,sampling_params:")
    report = lab.read("\n".join(lines))
    assert (report.requests, report.prompt_tokens) == (3, 4 + 5 + 6)
    assert report.cleaning.status_counts == {"ok": 1, "unknown": 2}


def test_a_prompt_that_shows_a_log_is_one_request(lab) -> None:
    """The ids of the real end count, not those of the pasted line."""
    fake = received("chatcmpl-fake", "11-28 01:00:00", 99, "'x'")
    text = f"'why?\n{fake}\nINFO 11-28 01:00:01 [a.py:1] Generated response r0 (streaming complete): output: 'no'\nbye'"
    report = lab.read(vllm(received("real", "11-29 10:00:30", 11, text), added("real", "11-29 10:00:30")))
    assert report.requests == 4
    assert report.prompt_tokens == 5 + 6 + 7 + 11
    assert report.span_s == 30


def test_a_prompt_that_shows_ids_in_one_line(lab) -> None:
    text = "'say params: SamplingParams(n=1), prompt_token_ids: [1, 2, 3, 4], and go'"
    report = lab.read(vllm(received("real", "11-29 10:00:30", 11, text)))
    assert report.prompt_tokens == 5 + 6 + 7 + 11


def test_a_prompt_without_an_end_does_not_swallow_the_rest(lab) -> None:
    cut = "INFO 11-29 10:00:30 [logger.py:39] Received request cut: prompt: 'half of"
    after = [
        line
        for i in range(3)
        for line in (received(f"s{i}", f"11-29 10:00:4{i}", 20 + i), added(f"s{i}", f"11-29 10:00:4{i}"))
    ]
    report = lab.read(vllm(cut, *after))
    assert report.requests == 3 + 1 + 3
    assert report.prompt_tokens == 5 + 6 + 7 + 20 + 21 + 22


def test_a_rotated_log_counts_ends_without_starts(lab) -> None:
    lines = ["ids: [1, 2], lora_request: None.", generated("gone", "11-29 09:59:59", 9), vllm()]
    report = lab.read("\n".join(lines))
    assert (report.requests, report.output_tokens) == (3, 9)
    assert report.cleaning.not_requests["ends of requests that began before the log, or that ended twice"] == 1


def test_over_new_year(lab) -> None:
    lines = [received("a", "12-31 23:59:59", 3), received("b", "01-01 00:00:01", 4), received("c", "12-31 23:59:59", 5)]
    report = lab.read("\n".join(lines))
    assert report.span_s == 2
    lab.read("\n".join(lines), year=2026, time_zone="UTC")
    assert lab.table["arrival_ns"].to_list() == [0, 0, 2 * NS]


def test_a_clock_set_back_is_refused_and_settled(lab) -> None:
    lines = [received("a", "10-25 02:30:00", 3), received("b", "10-25 02:59:59", 4), received("c", "10-25 02:00:01", 5)]
    error = lab.refuse("\n".join(lines))
    assert (error.code, error.errors[0].line) == ("trace.clock_set_back", 3)
    lab.read("\n".join(lines), year=2026, time_zone="Europe/Berlin", repeated_hour="order")
    assert lab.table["arrival_ns"].to_list() == [0, 1_799 * NS, 1_801 * NS]


def test_kubernetes_stamps_are_whole_times(lab) -> None:
    whole = received("b", "11-29 10:00:01", 40)
    lines = [
        f"2026-11-29T09:00:00.250000000Z stdout F {received('a', '11-29 10:00:00', 3)}",
        f"2026-11-29T09:00:01.500000000Z stdout P {whole[:150]}",
        f"2026-11-29T09:00:01.500000001Z stdout F {whole[150:]}",
    ]
    report = lab.read("\n".join(lines))
    assert (report.requests, report.prompt_tokens) == (2, 43)
    assert report.profile.start_utc == "2026-11-29T09:00:00.250+00:00"


def test_docker_and_system_logs_wrap_lines(lab) -> None:
    whole = received("b", "11-29 10:00:01", 40)
    rows = [
        {"log": received("a", "11-29 10:00:00", 3) + "\n", "stream": "stderr", "time": "2026-11-29T09:00:00.25Z"},
        {"log": whole[:150], "stream": "stderr", "time": "2026-11-29T09:00:01.5Z"},
        {"log": whole[150:] + "\n", "stream": "stderr", "time": "2026-11-29T09:00:01.5Z"},
    ]
    report = lab.read(jsonl(*rows))
    assert (report.format, report.requests, report.prompt_tokens) == ("vllm-request-log", 2, 43)
    assert report.profile.start_utc == "2026-11-29T09:00:00.250+00:00"
    lines = [f"Nov 29 10:00:00 host vllm[12]: {line}" for line in vllm().splitlines()]
    assert lab.read("\n".join(lines)).prompt_tokens == 5 + 6 + 7
    lines = [f"vllm-1  | {line}" for line in vllm().splitlines()]
    assert lab.read("\n".join(lines)).prompt_tokens == 5 + 6 + 7


def test_newest_line_first_and_copies(lab) -> None:
    assert lab.refuse(vllm() + vllm()).errors[0].rule == "duplicate_request"
    report = lab.read("\n".join(reversed(vllm().splitlines())))
    assert (report.requests, report.prompt_tokens) == (3, 5 + 6 + 7)
    assert lab.table["arrival_ns"].to_list() == [0, NS, 2 * NS]


def test_lists_cut_by_the_server_are_unknown_lengths(lab) -> None:
    lines = [received(f"r{i}", f"11-29 10:00:0{i}", 100) for i in range(5)] + [received("s", "11-29 10:00:09", 7)]
    report = lab.read("\n".join(lines))
    assert (report.requests, report.prompt_tokens) == (6, 7)
    assert any("--max-log-len" in warning for warning in report.warnings)


def test_arrivals_without_lengths_are_kept_but_cannot_be_replayed(lab) -> None:
    line = (
        "INFO 11-29 10:00:0{i} [logger.py:49] Received request r{i}: params: SamplingParams(n=1), lora_request: None."
    )
    report = lab.read("\n".join(line.format(i=i) for i in range(4)))
    assert (report.requests, report.prompt_tokens) == (4, 0)
    assert lab.table["prompt_tokens"].null_count() == 4
    assert any("arrivals only" in warning for warning in report.warnings)
    with pytest.raises(TraceError, match="can be replayed"):
        load_workload(lab.out, Transform(), 0)


def test_a_server_log_without_requests_is_refused(lab) -> None:
    error = lab.refuse("\n".join(f"INFO 11-29 10:00:0{i} [a.py:1] Loading weights" for i in range(6)))
    assert error.code == "trace.no_rows"
    assert "other log lines" in error.detail


def finished(rid: str, at: str, prompt: int, output: int, reason: object = None, e2e: float = 2.0) -> dict:
    meta = {
        "id": rid,
        "finish_reason": reason or {"type": "stop"},
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "cached_tokens": 1,
        "reasoning_tokens": 2,
        "e2e_latency": e2e,
    }
    return {"timestamp": at, "event": "request.finished", "rid": rid, "obj": {}, "out": {"meta_info": meta}}


def start(rid: str | None, at: str, event: str = "request.received") -> dict:
    return {"timestamp": at, "event": event, "rid": rid, "obj": {"rid": rid}}


def jsonl(*records: object) -> str:
    return "\n".join(record if isinstance(record, str) else json.dumps(record) for record in records) + "\n"


def test_sglang_joins_by_rid(lab) -> None:
    data = jsonl(
        start("a", "2026-11-29T10:00:00.100000"),
        start("b", "2026-11-29T10:00:01"),
        finished("b", "2026-11-29T10:00:03", 10, 5, {"type": "abort", "message": "left"}),
        finished("a", "2026-11-29T10:00:09", 100, 50),
        start("c", "2026-11-29T10:00:10"),
    )
    report = lab.read(data)
    assert (report.format, report.cleaning.rows_read, report.requests) == ("sglang-request-log", 3, 3)
    assert (report.prompt_tokens, report.output_tokens) == (110, 55)
    assert lab.table["status"].to_list() == ["ok", "aborted", "unknown"]
    assert lab.table["arrival_ns"].to_list() == [0, 900_000_000, 9_900_000_000]
    assert lab.table["cached_tokens"].to_list() == [1, 1, None]
    assert report.profile.start_utc is None
    lab.read(data, time_zone="Europe/Berlin")
    assert lab.table["arrival_ns"].to_list() == [0, 900_000_000, 9_900_000_000]


def test_sglang_front_end_lines_retries_and_batches(lab) -> None:
    data = jsonl(
        start("a", "2026-11-29T10:00:00", "request.received.openai"),
        start("a", "2026-11-29T10:00:00.001"),
        start(None, "2026-11-29T10:00:00.5", "request.received.openai"),
        start("b", "2026-11-29T10:00:01"),
        start("b", "2026-11-29T10:00:02"),
        finished("a", "2026-11-29T10:00:03", 10, 5),
        finished("b", "2026-11-29T10:00:04", 20, 6),
        start(["c", "d"], "2026-11-29T10:00:05"),
        {
            **start(["c", "d"], "2026-11-29T10:00:07", "request.finished"),
            "out": [finished(rid, "", n, 1)["out"] for rid, n in (("c", 30), ("d", 40))],
        },
    )
    report = lab.read(data)
    assert (report.requests, report.prompt_tokens) == (5, 100)
    assert report.cleaning.status_counts == {"ok": 4, "unknown": 1}


def test_sglang_only_ends_are_a_biased_sample(lab) -> None:
    report = lab.read(jsonl(*(finished(f"r{i}", f"2026-11-29T10:00:1{i}", 10, 5, e2e=9.5) for i in range(4))))
    assert lab.table["arrival_ns"].to_list() == [0, NS, 2 * NS, 3 * NS]
    assert any("biased" in warning for warning in report.warnings)


def test_sglang_text_log_with_lies_in_the_prompt(lab) -> None:
    lie = "rid='no', 'meta_info': {'id': 'no', 'prompt_tokens': 9999, 'completion_tokens': 9999}"
    meta = {"id": "a", "finish_reason": {"type": "length", "length": 5}, "prompt_tokens": 63, "completion_tokens": 5}
    request = f"GenerateReqInput(text={lie!r}, input_ids=[1, 2], sampling_params={{'n': 1}}, rid='a', stream=True)"
    data = jsonl(
        "[2026-11-29 10:00:00] server_args=ServerArgs(model_path='demo')",
        f"\x1b[32m[2026-11-29 10:00:04]\x1b[0m Receive: obj={request}",
        "[2026-11-29 10:00:04 TP0] Prefill batch. #new-seq: 1, #new-token: 63",
        f"[2026-11-29 10:00:06] Finish: obj={request}, out={{'text': {lie!r}, 'meta_info': {meta!r}}}",
        "[2026-11-29 10:00:07 DP0 TP0] Receive: obj=GenerateReqInput(rid='b', text=\"rid='c'\")",
    )
    report = lab.read(data)
    assert (report.requests, report.prompt_tokens, report.output_tokens) == (2, 63, 5)
    assert report.cleaning.status_counts == {"ok": 1, "unknown": 1}
    assert report.span_s == 3


def test_sglang_json_among_other_lines_and_cut_at_the_front(lab) -> None:
    rows = [start("a", "2026-11-29T10:00:00"), finished("a", "2026-11-29T10:00:01", 10, 5)]
    report = lab.read(jsonl("[2026-11-29 09:59:00] server_args=ServerArgs()", *rows))
    assert (report.requests, report.prompt_tokens) == (1, 10)
    many = [row for i in range(20) for row in (start(f"{i}", f"2026-11-29T10:00:{i:02d}"),)]
    ends = [finished(f"{i}", f"2026-11-29T10:01:{i:02d}", 10, 5) for i in range(20)]
    report = lab.read(jsonl('", "rid": "z"}}', *many, *ends))
    assert (report.requests, report.cleaning.rows_rejected) == (20, 0)


def test_sglang_clock_set_back_is_refused(lab) -> None:
    rows = [start("a", "2026-10-25T02:59:00"), start("b", "2026-10-25T02:00:01")]
    assert lab.refuse(jsonl(*rows)).code == "trace.clock_set_back"


@pytest.mark.parametrize("bad", ["12.5", -3, True, "many"])
def test_counts_that_are_no_counts_are_rejected(lab, bad: object) -> None:
    good = [finished(f"r{i}", f"2026-11-29T10:00:{i:02d}", 10, 5) for i in range(30)]
    row = finished("bad", "2026-11-29T10:00:40", 10, 5)
    row["out"]["meta_info"]["prompt_tokens"] = bad
    report = lab.read(jsonl(*good, row))
    assert (report.requests, report.cleaning.rows_rejected) == (30, 1)
    assert report.cleaning.rejections[0].column == "out.meta_info.prompt_tokens"


def test_sglangs_requests_to_itself_are_no_load(lab) -> None:
    rows = []
    for i, name in enumerate(["r1", "HEALTH_CHECK_1793696400.5", "r2"]):
        begun = {"timestamp": f"2026-11-03T09:00:{i:02d}.000000", "event": "request.received", "rid": name, "obj": {}}
        meta = {"id": name, "prompt_tokens": 10, "completion_tokens": 5, "finish_reason": {"type": "stop"}}
        rows += [begun, begun | {"event": "request.finished", "out": {"meta_info": meta}}]
    report = lab.read("".join(json.dumps(row) + "\n" for row in rows), time_zone="UTC")
    assert (report.requests, report.cleaning.not_requests) == (2, {"health checks": 2})


def test_limits_in_headers_are_no_counts(lab) -> None:
    row = {
        "msec": "1793696405.5", "request_time": "2.000", "status": "200", "request": "POST /v1/completions HTTP/1.1",
        "http_x_max_prompt_tokens": "8192", "upstream_http_x_generated_tokens": "10",
    }  # fmt: skip
    assert lab.refuse(json.dumps(row) + "\n").code == "trace.unknown_columns"
    lab.read(json.dumps(row | {"upstream_http_x_prompt_tokens": "100"}) + "\n")
    assert lab.table["prompt_tokens"].to_list() == [100]
