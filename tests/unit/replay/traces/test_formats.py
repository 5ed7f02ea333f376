"""Load generators, simulators and agents: each format from a small made-up file, and the rules that hold for all."""

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from trace_makers import (
    MAKERS,
    aiperf,
    baseten,
    blis,
    calls,
    copilot,
    dynamo,
    guidellm,
    inference_perf,
    jsonl,
    llmservingsim,
    mooncake_sessions,
    splitwise,
    tracelab,
    vllm_bench,
    weka,
)

MS = 10**6
CALLS = calls()
FIRST_MS = CALLS[0].at_ms


def edit(data: bytes, change: Callable[[list[dict[str, Any]]], Any]) -> bytes:
    """JSON lines with something done to the list of their objects."""
    rows = [json.loads(line) for line in data.decode().splitlines()]
    changed = change(rows)
    return jsonl(rows if changed is None else changed)


def by_arrival(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("arrival_ns").is_not_null())


@pytest.mark.parametrize("name", MAKERS)
def test_a_made_file_is_recognised_and_read_whole(lab, name: str) -> None:
    report = lab.read(MAKERS[name](CALLS))
    assert (report.format, report.requests, report.cleaning.rows_rejected) == (name, len(CALLS), 0)
    assert report.prompt_tokens == sum(call.prompt for call in CALLS)
    assert report.output_tokens == sum(call.output for call in CALLS)
    assert report.cleaning.rows_read == report.cleaning.rows_kept == len(CALLS)


# weka's sessions all start at 0, and later turns of two formats have no time of their own
TIMED = [name for name in MAKERS if name not in ("weka-agentic", "mooncake-sessions", "llmservingsim")]


@pytest.mark.parametrize("name", TIMED)
def test_arrivals_are_exact(lab, name: str) -> None:
    lab.read(MAKERS[name](CALLS))
    rows = lab.table.select("arrival_ns", "prompt_tokens", "output_tokens").rows()
    assert rows == [((call.at_ms - FIRST_MS) * MS, call.prompt, call.output) for call in CALLS]


@pytest.mark.parametrize("make", [copilot, weka, tracelab, dynamo, aiperf])
def test_a_turn_follows_the_one_before_in_its_session(lab, make) -> None:
    """``after_line`` names the turn that ended last before this one began, ``delay_ns`` the time between the two."""
    report = lab.read(make(CALLS))
    table = lab.table
    assert report.cleaning.closed_loop_requests == len(CALLS) - 4
    line_of = {row["prompt_tokens"]: row["source_line"] for row in table.iter_rows(named=True)}
    assert sorted(line_of.values()) == list(range(1, len(CALLS) + 1)), "numbers are those of requests"
    before: dict[str, Any] = {}
    for call in CALLS:
        row = table.row(by_predicate=pl.col("prompt_tokens") == call.prompt, named=True)
        last = before.get(call.session)
        expected = (
            (None, None) if last is None else (line_of[last.prompt], (call.at_ms - last.at_ms - last.took_ms) * MS)
        )
        assert (row["after_line"], row["delay_ns"]) == expected
        assert row["session"] == call.session
        before[call.session] = call


@pytest.mark.parametrize("make", [copilot, tracelab, dynamo, aiperf, blis, guidellm, inference_perf, baseten])
def test_what_the_source_measured_is_kept(lab, make) -> None:
    lab.read(make(CALLS))
    assert lab.table["source_e2e_ns"].unique().to_list() == [400 * MS]
    if make in (aiperf, guidellm):
        assert lab.table["source_ttft_ns"].unique().to_list() == [50_500_000]


def test_turns_that_overlap_are_not_linked(lab) -> None:
    """A turn that starts before the last has ended waited for an older one, or for none."""
    rows = [{"at": 0, "took": 500}, {"at": 200, "took": 100}, {"at": 350, "took": 10}]

    def change(found: list[dict[str, Any]]) -> None:
        for row, made in zip(rows, found[0]["turns"][0]["llm_calls"], strict=False):
            made["timestamp"] = f"2026-03-02T09:00:00.{row['at']:03d}Z"
            made["duration_ms"] = float(row["took"])
        del found[0]["turns"][0]["llm_calls"][3:], found[1:]

    lab.read(edit(copilot(CALLS), change))
    assert lab.table.select("arrival_ns", "after_line", "delay_ns").rows() == [
        (0, None, None),
        (200 * MS, None, None),
        (350 * MS, 2, 50 * MS),
    ]


def test_copilot_cancelled_and_failed_calls_stay(lab) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        made = found[0]["turns"][0]["llm_calls"]
        made[0]["result"] = "UserCancel"
        made[1] |= {"result": "Failed", "tokens": {"total": 0, "prompt": 0, "completion": 0, "cached": 0}}

    report = lab.read(edit(copilot(CALLS), change))
    assert report.cleaning.status_counts == {"aborted": 1, "failed": 1, "ok": len(CALLS) - 2}
    assert lab.table.filter(status="failed").select("prompt_tokens", "output_tokens").rows() == [(None, None)]
    assert report.cleaning.not_requests == {"tool batches": 4}


@pytest.mark.parametrize("make", [copilot, dynamo, aiperf, tracelab])
def test_a_request_that_is_there_twice_is_rejected_and_a_retry_is_kept(lab, make) -> None:
    data = make(CALLS)
    twice = lab.read(data + data, max_rejected_share=1.0)
    assert twice.cleaning.rejected_by_rule == {"duplicate_request": len(CALLS)}
    assert twice.requests == len(CALLS)
    assert lab.refuse_again(data + data).code == "trace.too_many_rejected"


def test_one_id_at_two_times_is_a_retry(lab) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        found[5]["metadata"]["x_request_id"] = found[4]["metadata"]["x_request_id"]

    report = lab.read(edit(aiperf(CALLS), change))
    assert report.requests == len(CALLS)
    assert any("retries" in warning for warning in report.warnings)


def test_aiperf_errors_cancels_and_warm_up(lab) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        found[0]["metadata"]["benchmark_phase"] = "warmup"
        found[1] |= {"metrics": None, "error": {"code": 503, "type": "x", "message": "queue full"}}
        found[2]["metadata"]["was_cancelled"] = True

    report = lab.read(edit(aiperf(CALLS), change))
    assert report.requests == len(CALLS) - 1
    assert report.cleaning.not_requests == {"warmup requests": 1}
    assert report.cleaning.status_counts == {"aborted": 1, "failed": 1, "ok": len(CALLS) - 3}


def test_dynamo_files_under_other_circumstances(lab) -> None:
    """Optional metrics missing: lengths from the replay part, arrival from the end; another block size is rejected."""

    def change(found: list[dict[str, Any]]) -> None:
        ends = [row["event"]["request"] for row in found if row["event"]["event_type"] == "request_end"]
        for name in ("input_tokens", "cached_tokens", "ttft_ms", "model"):
            del ends[0][name]
        del ends[1]["request_received_ms"]
        ends[2]["replay"]["trace_block_size"] = 32
        ends[3]["input_tokens"] += 1

    report = lab.read(edit(dynamo(CALLS), change), max_rejected_share=0.2)
    assert report.cleaning.rejected_by_rule == {"contradicts": 1, "other_block_size": 1}
    assert {rejection.column for rejection in report.cleaning.rejections} == {
        "event.request.replay.input_length",
        "event.request.replay.trace_block_size",
    }
    assert by_arrival(lab.table)["arrival_ns"].to_list()[:2] == [0, (CALLS[1].at_ms - FIRST_MS) * MS]
    assert report.profile.prefix is not None
    assert report.profile.prefix.block_size_tokens == 16
    assert "end less total_time_ms" in report.assumed["arrival"]


def test_a_dynamo_file_of_tool_events_alone_holds_no_requests(lab) -> None:
    error = lab.refuse(edit(dynamo(CALLS), lambda found: [r for r in found if "tool" in r["event"]]))
    assert error.code == "trace.no_rows"
    assert "24 tool_end events" in error.detail


def test_a_sub_agent_follows_its_parent_and_the_parent_its_sub_agents(lab) -> None:
    def event(at: int, took: int, session: str, parent: str | None = None) -> dict[str, Any]:
        context = {"session_id": session} | ({"parent_session_id": parent} if parent else {})
        request = {"request_id": f"{session}{at}", "input_tokens": 100 + at, "output_tokens": 5, "total_time_ms": took}
        return {
            "event": {
                "schema": "dynamo.request.trace.v1",
                "event_type": "request_end",
                "event_time_unix_ms": 1_800_000_000_000 + at + took,
                "agent_context": context,
                "request": request | {"request_received_ms": 1_800_000_000_000 + at, "replay": {}},
            }
        }

    rows = [
        event(0, 10, "p"),
        event(20, 10, "c1", "p"),
        event(20, 50, "c2", "p"),
        event(40, 5, "c1", "p"),
        event(80, 9, "p"),
    ]
    lab.read(jsonl(rows))
    table = lab.table.sort("source_line")
    assert table["after_line"].to_list() == [None, 1, 1, 2, 3], "the parent waits for the slower of its two sub-agents"
    assert table["delay_ns"].to_list() == [None, 10 * MS, 10 * MS, 10 * MS, 10 * MS]


def test_weka_ids_mean_nothing_in_another_session_and_count_whole_blocks(lab) -> None:
    report = lab.read(weka(CALLS))
    prefix = report.profile.prefix
    assert prefix is not None
    firsts = (
        lab.table.group_by("session").agg(pl.col("prefix_blocks").list.first().unique()).get_column("prefix_blocks")
    )
    assert len({tuple(ids) for ids in firsts.to_list()}) == 4, "no block is shared between sessions"
    assert prefix.blocks == sum(call.prompt // 64 for call in CALLS)
    assert any("all start at 0 s" in warning for warning in report.warnings)

    def one_more(found: list[dict[str, Any]]) -> None:
        found[0]["requests"][0]["hash_ids"].append(9)

    rejected = lab.read(edit(weka(CALLS), one_more)).cleaning
    assert rejected.rejected_by_rule == {"block_count": 1}


@pytest.mark.parametrize("clock", ["own", "session"])
def test_weka_sub_agents_are_read_on_either_clock(lab, clock: str) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        requests = found[0]["requests"]
        start = requests[1]["t"] + 0.5
        nested = {"t": 0.0 if clock == "own" else start, "type": "n", "model": "m", "in": 70, "out": 7, "hash_ids": [5]}
        agent = {"t": start, "type": "subagent", "agent_id": "a", "requests": [nested | {"api_time": 0.25}]}
        requests.insert(2, agent)

    report = lab.read(edit(weka(CALLS), change))
    assert report.requests == len(CALLS) + 1
    nested = lab.table.filter(prompt_tokens=70).row(0, named=True)
    own = [call for call in CALLS if call.session == "s0"]
    start_ns = (own[1].at_ms - own[0].at_ms + 500) * MS
    assert nested["arrival_ns"] == start_ns
    assert nested["delay_ns"] == 100 * MS, "it follows the request of its parent that took 0.4 s"
    following = lab.table.filter(after_line=nested["source_line"])
    assert following["prompt_tokens"].to_list() == [own[2].prompt], "the parent goes on when the sub-agent has ended"


def test_tracelab_rounds_that_contradict_themselves_are_rejected(lab) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        found[3]["prefix_tokens"] += 1
        found[4]["timing_events"] = found[4]["timing_events"][1:]

    cleaning = lab.read(edit(tracelab(CALLS), change), max_rejected_share=0.2).cleaning
    assert [(r.line, r.column, r.rule) for r in cleaning.rejections] == [
        (4, "input_tokens_total", "contradicts"),
        (5, "timing_events.timestamp", "missing_arrival"),
    ]


def test_the_turn_after_a_rejected_one_starts_at_its_own_time(lab) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        found[4]["output_tokens"] = -1

    report = lab.read(edit(tracelab(CALLS), change))
    assert report.cleaning.rejected_by_rule == {"negative": 1}
    row = lab.table.filter(prompt_tokens=CALLS[8].prompt).row(0, named=True)
    assert (row["after_line"], row["delay_ns"]) == (None, None)
    assert row["arrival_ns"] == (CALLS[8].at_ms - FIRST_MS) * MS
    assert any("followed one that was rejected" in warning for warning in report.warnings)


def test_a_chain_without_times_is_lost_with_its_first_turn(lab) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        found[0]["input_length"] = -1

    cleaning = lab.read(edit(mooncake_sessions(CALLS), change), max_rejected_share=0.5).cleaning
    assert cleaning.rejected_by_rule == {"missing_predecessor": 5, "negative": 1}


def test_mooncake_extensions(lab) -> None:
    fixed = {"output_length": 5}
    rows = [
        {"created_time": 100, "input_length": 10, "session_id": "a", "request_id": "r1", "priority": 3} | fixed,
        {"delay_ms": 50, "input_length": 11, "session_id": "a", "request_id": "r2"} | fixed,
        {"delay": 70, "input_length": 12, "session_id": "b", "wait_for": ["r1", "r2"]} | fixed,
        {"timestamp": 900, "text_input": "no count", "session_id": "c"} | fixed,
    ]
    report = lab.read(jsonl(rows))
    table = lab.table.sort("source_line")
    assert table["after_line"].to_list() == [None, 1, 2, None]
    assert table["delay_ns"].to_list() == [None, 50 * MS, 70 * MS, None]
    assert table["prompt_tokens"].to_list() == [10, 11, 12, None]
    assert table["priority"].to_list() == ["3", None, None, None]
    assert any("wait for several" in warning for warning in report.warnings)
    error = lab.refuse_again(jsonl([rows[0] | {"timestamp": 5}, *rows[1:]]))
    assert error.code == "trace.ambiguous_columns"


def test_sessions_in_a_json_array_on_one_line_are_linked(lab) -> None:
    rows = [json.loads(line) for line in mooncake_sessions(CALLS).decode().splitlines()]
    lab.read(json.dumps(rows))
    table = lab.table.sort("source_line")
    assert table["source_line"].to_list() == list(range(1, len(CALLS) + 1))
    assert table["after_line"].to_list() == [None] * 4 + list(range(1, len(CALLS) - 3))


def test_llmservingsim_sessions_follow_each_other(lab) -> None:
    lab.read(llmservingsim(CALLS))
    assert lab.table.select("session", "arrival_ns", "after_line", "delay_ns").rows()[-1] == ("a", None, 23, 5 * MS)


def test_vllm_bench_failures_closed_loops_and_files_without_detail(lab) -> None:
    document = json.loads(vllm_bench(CALLS))
    document["errors"][3], document["output_lens"][3], document["max_concurrency"] = "timeout", 0, 8
    report = lab.read(json.dumps(document))
    assert report.cleaning.status_counts == {"failed": 1, "ok": len(CALLS) - 1}
    assert any("at most 8 requests in flight" in warning for warning in report.warnings)
    assert lab.table["source_e2e_ns"][0] == 80 * MS
    for name, code in (("input_lens", "trace.no_requests"), ("start_times", "trace.no_arrivals")):
        less = {key: value for key, value in document.items() if key != name}
        assert lab.refuse_again(json.dumps(less)).code == code
    assert lab.refuse_again(json.dumps(document | {"start_times": [1.0]})).code == "trace.json"
    assert lab.refuse_again(json.dumps(document) + "\n" + json.dumps(document)).code == "trace.several_runs"


def test_guidellm_incomplete_requests_and_reports_without_requests(lab) -> None:
    assert lab.read(guidellm(CALLS)).cleaning.status_counts == {"aborted": 1, "ok": len(CALLS) - 1}
    assert lab.refuse_again(json.dumps({"benchmarks": [{"metrics": {}}]}, indent=1)).code == "trace.no_requests"


def test_inference_perf_takes_the_servers_counts(lab) -> None:
    rows = json.loads(inference_perf(CALLS))
    usage = {"prompt_tokens": 999, "completion_tokens": 77, "prompt_tokens_details": {"cached_tokens": 9}}
    rows[0]["info"]["response_metrics"] = {"output_tokens": 70, "server_usage": usage}
    lab.read(json.dumps(rows))
    assert lab.table.select("prompt_tokens", "output_tokens", "cached_tokens").row(0) == (999, 77, 9)


def test_a_batch_size_is_no_single_request(lab) -> None:
    data = splitwise(CALLS).replace(b",0,0.7", b",0,0.7").replace(b"3,2,0", b"3,2,0").decode().splitlines()
    data[4] = data[4].replace(",1,411,", ",8,411,")
    cleaning = lab.read("\n".join(data) + "\n").cleaning
    assert [(r.line, r.column, r.rule) for r in cleaning.rejections] == [(5, "batch_size", "contradicts")]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n5,6,11,0.8\n", "lengths without times"),
        ("0,1.5,0.7,Gamma,0.5,2.0\n600,0,0,,0,0\n", "rates by window"),
        ('{\n "0": {\n  "input_tokens": "{5: 1.0}",\n  "output_tokens": "{6: 1.0}"\n }\n}', "tables of lengths"),
        ('{"request_id": 0, "type": "text", "input_length": 5, "output_length": 6, "duration": 7}\n', "offline batch"),
        ("trace_version: 3\ntime_unit: us\n", "header of a BLIS"),
    ],
)
def test_files_without_requests_are_named(lab, data: str, part: str) -> None:
    error = lab.refuse(data)
    assert (error.code, part in error.detail) == ("trace.no_requests", True)
    assert error.errors[0].cure


def test_prompts_and_answers_never_reach_the_table(lab) -> None:
    for make in (vllm_bench, guidellm, inference_perf, baseten):
        lab.read(make(CALLS))
        assert b"text" not in lab.out.read_bytes().replace(b"plain_text", b"")
