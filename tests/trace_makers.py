"""Small made-up files in the formats of load generators, simulators and agents, from one list of requests.

Schemas follow each publisher's description; values are ours.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Call:
    """One request: milliseconds from the start, tokens, how long it took."""

    at_ms: int
    prompt: int
    output: int
    session: str = "s0"
    took_ms: int = 400

    @property
    def epoch_ms(self) -> int:
        return int(START.timestamp() * 1000) + self.at_ms

    @property
    def iso(self) -> str:
        return (START + timedelta(milliseconds=self.at_ms)).isoformat().replace("+00:00", "Z")


def calls(n: int = 24, sessions: int = 4) -> list[Call]:
    """Calls of interleaved sessions, one after the other in each."""
    return [Call(i * 700 + i * i % 97, 300 + 37 * i, 10 + i, f"s{i % sessions}") for i in range(n)]


def jsonl(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def csv(header: str, rows: Iterable[str]) -> bytes:
    return ("\n".join([header, *rows]) + "\n").encode()


def own_csv(found: list[Call]) -> bytes:
    return csv("arrival_ms,prompt_tokens,output_tokens", (f"{c.at_ms},{c.prompt},{c.output}" for c in found))


def own_jsonl(found: list[Call]) -> bytes:
    return jsonl({"arrival_ms": c.at_ms, "prompt_tokens": c.prompt, "output_tokens": c.output} for c in found)


def own_parquet(found: list[Call]) -> bytes:
    buffer = io.BytesIO()
    rows = [{"arrival_ms": c.at_ms, "prompt_tokens": c.prompt, "output_tokens": c.output} for c in found]
    pl.DataFrame(rows).write_parquet(buffer)
    return buffer.getvalue()


def azure_2024(found: list[Call]) -> bytes:
    rows = (f"{c.iso.replace('T', ' ').replace('Z', '+00:00')},{c.prompt},{c.output}" for c in found)
    return csv("TIMESTAMP,ContextTokens,GeneratedTokens", rows)


def azure_2023(found: list[Call]) -> bytes:
    rows = (f"{c.iso.replace('T', ' ').rstrip('Z')},{c.prompt},{c.output}" for c in found)
    return csv("TIMESTAMP,ContextTokens,GeneratedTokens", rows)


def azure_lmm(found: list[Call]) -> bytes:
    return csv("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens", (f"{c.iso},1,{c.prompt},{c.output}" for c in found))


def mooncake(found: list[Call]) -> bytes:
    return jsonl(
        {
            "timestamp": c.at_ms,
            "input_length": c.prompt,
            "output_length": c.output,
            "hash_ids": list(range(-(-c.prompt // 512))),
        }
        for c in found
    )


def mooncake_sessions(found: list[Call]) -> bytes:
    """Only a session's first turn has a time; the others a delay."""
    rows, seen = [], set()
    for c in found:
        row: dict[str, Any] = {"session_id": c.session, "input_length": c.prompt, "output_length": c.output}
        row |= {"delay": 250} if c.session in seen else {"timestamp": c.at_ms}
        seen.add(c.session)
        rows.append(row)
    return jsonl(rows)


def qwen(found: list[Call]) -> bytes:
    return jsonl(
        {
            "chat_id": i,
            "parent_chat_id": -1,
            "timestamp": c.at_ms / 1000,
            "input_length": c.prompt,
            "output_length": c.output,
            "type": "text",
            "turn": 1,
            "hash_ids": list(range(-(-c.prompt // 16))),
        }
        for i, c in enumerate(found)
    )


def copilot(found: list[Call]) -> bytes:
    """One session a line, a turn of all its calls, with the tools between them."""
    rows = []
    for session in dict.fromkeys(c.session for c in found):
        own = [c for c in found if c.session == session]
        made = [
            {
                "message_id": f"{session}-{i}",
                "timestamp": c.iso,
                "duration_ms": float(c.took_ms),
                "initiator_type": "agent",
                "model": "Model A",
                "result": "Success",
                "status_code": "OK",
                "tokens": {
                    "total": c.prompt + c.output,
                    "prompt": c.prompt,
                    "completion": c.output,
                    "cached": c.prompt // 2,
                    "cached_pct": 50.0,
                },
                "message_metadata": [],
            }
            for i, c in enumerate(own)
        ]
        tools = [{"timestamp": own[0].iso, "duration_ms": 5.0, "request_id": f"{session}-0", "function_calls": []}]
        turn = {"turn_id": f"{session}-t", "llm_calls": made, "tool_batches": tools}
        rows.append({"session_id": session, "date": "2026-03-02", "turns": [turn]})
    return jsonl(rows)


def weka(found: list[Call]) -> bytes:
    """Sessions with their own clock; blocks of 64 tokens, whole ones only."""
    rows = []
    for session in dict.fromkeys(c.session for c in found):
        own = [c for c in found if c.session == session]
        first = own[0].at_ms
        requests: list[dict[str, Any]] = []
        end = 0.0
        for i, c in enumerate(own):
            t = (c.at_ms - first) / 1000
            requests.append(
                {
                    "t": t,
                    "type": "n",
                    "model": "m",
                    "in": c.prompt,
                    "out": c.output,
                    "hash_ids": list(range(c.prompt // 64)),
                    "stop": "tool_use",
                    "api_time": c.took_ms / 1000,
                    "think_time": max(0.0, round(t - end, 3)) if i else None,
                }
            )
            end = t + c.took_ms / 1000
        rows.append(
            {
                "id": session,
                "models": ["m"],
                "block_size": 64,
                "hash_id_scope": "local",
                "tool_tokens": 10,
                "system_tokens": 10,
                "requests": requests,
            }
        )
    return jsonl(rows)


def tracelab(found: list[Call]) -> bytes:
    rounds: dict[str, int] = {}
    rows = []
    for c in found:
        index = rounds[c.session] = rounds.get(c.session, -1) + 1
        end = Call(c.at_ms + c.took_ms, 0, 0).iso
        rows.append(
            {
                "provider": "claude",
                "project": "p",
                "session_id": c.session,
                "round_index": index,
                "round_id": f"{c.session}-{index}",
                "model": "m",
                "input_tokens_total": c.prompt,
                "prefix_tokens": c.prompt // 3,
                "newly_append_tokens": c.prompt - c.prompt // 3,
                "output_tokens": c.output,
                "reasoning_output_tokens": None,
                "timing_events": [
                    {"event_type": "user_message", "timestamp": c.iso},
                    {"event_type": "text", "timestamp": end},
                ],
                "tools": [],
            }
        )
    return jsonl(rows)


def dynamo(found: list[Call]) -> bytes:
    """Events in the order of their ends, a tool call between two requests; hashes beyond 2^63."""
    rows: list[tuple[int, dict[str, Any]]] = []
    for i, c in enumerate(found):
        end = c.epoch_ms + c.took_ms
        context = {"session_id": c.session}
        request = {
            "request_id": f"r{i}",
            "model": "m",
            "input_tokens": c.prompt,
            "output_tokens": c.output,
            "cached_tokens": 0,
            "request_received_ms": c.epoch_ms,
            "ttft_ms": 50.5,
            "total_time_ms": float(c.took_ms),
            "replay": {
                "trace_block_size": 16,
                "input_length": c.prompt,
                "input_sequence_hashes": [2**64 - 1 - k for k in range(-(-c.prompt // 16))],
            },
        }
        event = {"schema": "dynamo.request.trace.v1", "event_time_unix_ms": end, "agent_context": context}
        rows.append((end, event | {"event_type": "request_end", "request": request}))
        rows.append((end + 1, event | {"event_type": "tool_end", "tool": {"tool_class": "ls"}}))
    rows.sort(key=lambda row: row[0])
    return jsonl({"timestamp": end - found[0].epoch_ms, "event": event} for end, event in rows)


def aiperf(found: list[Call]) -> bytes:
    rows = []
    turns: dict[str, int] = {}
    for i, c in enumerate(found):
        turn = turns[c.session] = turns.get(c.session, -1) + 1
        start = c.epoch_ms * 10**6
        meta = {
            "session_num": i,
            "x_request_id": f"r{i}",
            "x_correlation_id": c.session,
            "conversation_id": c.session,
            "turn_index": turn,
            "request_start_ns": start,
            "request_ack_ns": start,
            "request_end_ns": start + c.took_ms * 10**6,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        }
        metrics = {
            "input_sequence_length": {"value": c.prompt, "unit": "tokens"},
            "output_sequence_length": {"value": c.output, "unit": "tokens"},
            "time_to_first_token": {"value": 50.5, "unit": "ms"},
            "request_latency": {"value": float(c.took_ms), "unit": "ms"},
        }
        rows.append({"metadata": meta, "metrics": metrics, "error": None})
    return jsonl(rows)


def vllm_bench(found: list[Call]) -> bytes:
    """What ``vllm bench serve --save-result --save-detailed`` writes: one object, a list a figure."""
    document = {
        "date": "20260302-090000",
        "backend": "vllm",
        "label": None,
        "model_id": "m",
        "tokenizer_id": "m",
        "num_prompts": len(found),
        "request_rate": 1.5,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 30.0,
        "completed": len(found),
        "failed": 0,
        "total_input_tokens": sum(c.prompt for c in found),
        "total_output_tokens": sum(c.output for c in found),
        "input_lens": [c.prompt for c in found],
        "output_lens": [c.output for c in found],
        "ttfts": [0.05 for _ in found],
        "itls": [[0.01] * 3 for _ in found],
        "start_times": [5000.0 + c.at_ms / 1000 for c in found],
        "generated_texts": ["text" for _ in found],
        "errors": ["" for _ in found],
    }
    return json.dumps(document).encode()


def guidellm(found: list[Call]) -> bytes:
    made = [
        {
            "request_id": f"r{i}",
            "request_start_time": c.epoch_ms / 1000,
            "request_end_time": (c.epoch_ms + c.took_ms) / 1000,
            "request_latency": c.took_ms / 1000,
            "time_to_first_token_ms": 50.5,
            "prompt_tokens": c.prompt,
            "output_tokens": c.output,
            "request_args": "{}",
            "output": "text",
        }
        for i, c in enumerate(found)
    ]
    groups = {"successful": made[:-1], "incomplete": made[-1:], "errored": []}
    return json.dumps({"metadata": {"version": 1}, "benchmarks": [{"requests": groups}]}, indent=1).encode()


def inference_perf(found: list[Call]) -> bytes:
    return json.dumps(
        [
            {
                "start_time": 100.0 + c.at_ms / 1000,
                "end_time": 100.0 + (c.at_ms + c.took_ms) / 1000,
                "request": "text",
                "response": "text",
                "info": {"input_tokens": c.prompt, "output_tokens": c.output, "output_token_times": []},
                "error": None,
            }
            for c in found
        ]
    ).encode()


def llmservingsim(found: list[Call]) -> bytes:
    """Single requests and, last, a session of two steps."""
    rows: list[dict[str, Any]] = [
        {"input_toks": c.prompt, "output_toks": c.output, "arrival_time_ns": c.at_ms * 10**6} for c in found[:-2]
    ]
    first, second = found[-2:]
    steps = [
        {"input_toks": first.prompt, "output_toks": first.output, "tool_duration_ns": 5_000_000},
        {"input_toks": second.prompt, "output_toks": second.output, "tool_duration_ns": 0},
    ]
    return jsonl([*rows, {"session_id": "a", "arrival_time_ns": first.at_ms * 10**6, "sub_requests": steps}])


def blis(found: list[Call]) -> bytes:
    header = (
        "request_id,client_id,tenant_id,slo_class,session_id,round_index,input_tokens,output_tokens,model,"
        "arrival_time_us,send_time_us,first_chunk_time_us,last_chunk_time_us,status"
    )
    return csv(
        header,
        (
            f"{i},c,t,batch,{c.session},0,{c.prompt},{c.output},m,{c.at_ms * 1000},{c.epoch_ms * 1000},"
            f"{c.epoch_ms * 1000 + 50_000},{(c.epoch_ms + c.took_ms) * 1000},ok"
            for i, c in enumerate(found)
        ),
    )


def baseten(found: list[Call]) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame(
        {
            "timestamp_start_unix_ms": [c.epoch_ms for c in found],
            "prompt": ["text" for _ in found],
            "input_tokens": [c.prompt for c in found],
            "output_tokens": [c.output for c in found],
            "total_hashes": [list(range(c.prompt // 32)) for c in found],
            "block_size": [32 for _ in found],
            "provided_session_id": [c.session for c in found],
            "duration_e2e_ms": [float(c.took_ms) for c in found],
        }
    ).write_parquet(buffer)
    return buffer.getvalue()


def splitwise(found: list[Call]) -> bytes:
    header = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    return csv(header, (f"{i},2,0,{c.at_ms / 1000},1,{c.prompt},{c.output}" for i, c in enumerate(found)))


def vidur(found: list[Call]) -> bytes:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens"
    return csv(header, (f"{c.at_ms / 1000},{c.prompt},{c.output}" for c in found))


def burstgpt_v3(found: list[Call]) -> bytes:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    rows = []
    for c in found:
        tokens = f"{c.prompt},{c.output},{c.prompt + c.output}"
        rows.append(f"{c.at_ms / 1000},{c.session},{c.took_ms / 1000},ChatGPT,{tokens},API log")
    return csv(header, rows)


def servegen(found: list[Call]) -> bytes:
    return csv(
        "timestamp_s,client_id,input_tokens,output_tokens", (f"{c.at_ms / 1000},7,{c.prompt},{c.output}" for c in found)
    )


MAKERS: dict[str, Callable[[list[Call]], bytes]] = {
    "capreplay-csv": own_csv,
    "capreplay-json": own_jsonl,
    "capreplay-parquet": own_parquet,
    "azure-llm-2023": azure_2023,
    "azure-llm-2024": azure_2024,
    "azure-lmm-2025": azure_lmm,
    "burstgpt-v3": burstgpt_v3,
    "mooncake": mooncake,
    "mooncake-sessions": mooncake_sessions,
    "qwen-bailian": qwen,
    "servegen-requests": servegen,
    "vidur": vidur,
    "splitwise-sim": splitwise,
    "llmservingsim": llmservingsim,
    "blis-tracev2": blis,
    "ghcp-coding-agent-2026": copilot,
    "weka-agentic": weka,
    "tracelab": tracelab,
    "dynamo-request-trace": dynamo,
    "aiperf-profile-export": aiperf,
    "vllm-bench-serve": vllm_bench,
    "guidellm-report": guidellm,
    "inference-perf": inference_perf,
    "baseten": baseten,
}
"""Format to the maker of a file of it."""
