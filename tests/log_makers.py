"""Small made-up files in the formats of gateways, observability tools and engines, from one list of requests.

Schemas follow each publisher's description; values are ours.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from trace_makers import Call, jsonl

NS = 10**9


def end_ms(call: Call) -> int:
    return call.epoch_ms + call.took_ms


def iso(epoch_ms: int, *, mark: str = "Z", gap: str = "T") -> str:
    return f"{datetime.fromtimestamp(epoch_ms // 1000, UTC):%Y-%m-%d{gap}%H:%M:%S}.{epoch_ms % 1000:03d}{mark}"


def usage(call: Call) -> dict[str, Any]:
    cached = {"cached_tokens": call.prompt // 3}
    total = call.prompt + call.output
    counts = {"prompt_tokens": call.prompt, "completion_tokens": call.output, "total_tokens": total}
    return {**counts, "prompt_tokens_details": cached}


def anthropic(call: Call) -> dict[str, Any]:
    read, written = call.prompt // 2, call.prompt // 5
    return {
        "input_tokens": call.prompt - read - written,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": call.output,
    }


def litellm(found: list[Call]) -> bytes:
    out = io.StringIO()
    names = ["request_id", "call_type", "api_key", "spend", "total_tokens", "prompt_tokens", "completion_tokens"]
    names += ["startTime", "endTime", "model_group", "metadata", "cache_hit", "team_id", "session_id", "status"]
    writer = csv.writer(out)
    writer.writerow(names)
    for i, c in enumerate(found):
        start, end = iso(c.epoch_ms, mark="", gap=" "), iso(end_ms(c), mark="", gap=" ")
        metadata = json.dumps({"usage_object": usage(c)})
        total = c.prompt + c.output
        head = [f"chatcmpl-{i}", "acompletion", "k", 0.1, total, c.prompt, c.output, start, end, "demo", metadata]
        writer.writerow([*head, "False", "team", c.session, "success"])
    return out.getvalue().encode()


def litellm_payload(found: list[Call]) -> bytes:
    return jsonl(
        {
            "id": f"c{i}", "trace_id": f"t{i}", "response_cost": 0.1, "response_time": c.took_ms / 1000,
            "status": "success", "total_tokens": c.prompt + c.output, "prompt_tokens": c.prompt, "model": "demo",
            "completion_tokens": c.output, "startTime": c.epoch_ms / 1000, "endTime": end_ms(c) / 1000,
            "metadata": {"usage_object": usage(c)}, "error_str": None, "session_id": c.session,
        }
        for i, c in enumerate(found)
    )  # fmt: skip


def langfuse(found: list[Call]) -> bytes:
    rows: list[dict[str, Any]] = []
    for i, c in enumerate(found):
        cached = c.prompt // 3
        details = {
            "input": c.prompt - cached,
            "input_cached_tokens": cached,
            "output": c.output,
            "total": c.prompt + c.output,
        }
        common = {"trace_id": f"t{i}", "start_time": iso(c.epoch_ms, mark="", gap=" ")}
        common |= {"end_time": iso(end_ms(c), mark="", gap=" "), "level": "DEFAULT", "session_id": c.session}
        rows.append({"id": f"a{i}", "type": "AGENT", "parent_observation_id": None, "usage_details": details, **common})
        rows.append(
            {"id": f"g{i}", "type": "GENERATION", "parent_observation_id": f"a{i}", "usage_details": details, **common}
        )
    return jsonl(rows)


def helicone(found: list[Call]) -> bytes:
    return jsonl(
        {
            "request_id": f"h{i}", "request_created_at": iso(c.epoch_ms, mark="", gap=" "), "response_status": 200,
            "delay_ms": c.took_ms, "request_model": "demo", "total_tokens": c.prompt + c.output,
            "prompt_tokens": c.prompt, "completion_tokens": c.output, "prompt_cache_read_tokens": c.prompt // 3,
            "request_properties": {"Helicone-Session-Id": c.session},
        }
        for i, c in enumerate(found)
    )  # fmt: skip


def _attribute(key: str, value: str | int) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}


def _span(i: int, call: Call, parent: int | None, attributes: dict[str, str | int]) -> dict[str, Any]:
    above = {} if parent is None else {"parentSpanId": f"{parent:016x}"}
    return {
        "traceId": "ab" * 16, "spanId": f"{i:016x}", **above, "startTimeUnixNano": str(call.epoch_ms * 10**6),
        "endTimeUnixNano": str(end_ms(call) * 10**6), "status": {},
        "attributes": [_attribute(key, value) for key, value in attributes.items()],
    }  # fmt: skip


def _batches(spans: list[dict[str, Any]]) -> bytes:
    parts = [spans[i : i + 5] for i in range(0, len(spans), 5)]
    return jsonl({"resourceSpans": [{"scopeSpans": [{"spans": part}]}]} for part in parts)


def otlp(found: list[Call]) -> bytes:
    spans = []
    for i, c in enumerate(found, 1):
        tokens = {"gen_ai.usage.input_tokens": c.prompt, "gen_ai.usage.output_tokens": c.output}
        spans.append(_span(1000 + i, c, None, {"gen_ai.operation.name": "invoke_agent", **tokens}))
        spans.append(_span(i, c, 1000 + i, {"gen_ai.operation.name": "chat", "gen_ai.request.model": "demo", **tokens}))
    return _batches(spans)


def openinference(found: list[Call]) -> bytes:
    spans = []
    for i, c in enumerate(found, 1):
        tokens = {"llm.token_count.prompt": c.prompt, "llm.token_count.completion": c.output}
        spans.append(_span(i, c, None, {"openinference.span.kind": "LLM", "llm.model_name": "demo", **tokens}))
    return _batches(spans)


def usage_log(found: list[Call]) -> bytes:
    return jsonl({"start_time": c.iso, "id": f"u{i}", "model": "demo", "usage": usage(c)} for i, c in enumerate(found))


def anthropic_log(found: list[Call]) -> bytes:
    return jsonl({"timestamp": c.iso, "id": f"m{i}", "usage": anthropic(c)} for i, c in enumerate(found))


def claude_code(found: list[Call]) -> bytes:
    """A session a call: the question, and the answer on two lines, of which the last has the counts."""
    rows: list[dict[str, Any]] = []
    for i, c in enumerate(found):
        answer = {"id": f"msg{i}", "model": "demo"}
        common = {"sessionId": f"s{i}", "message": {}}
        rows.append(common | {"type": "user", "timestamp": iso(c.epoch_ms)})
        for counts in (anthropic(c) | {"output_tokens": 1}, anthropic(c)):
            said = {"type": "assistant", "timestamp": iso(end_ms(c)), "message": answer | {"usage": counts}}
            rows.append(common | said)
    return jsonl(rows)


def envoy(found: list[Call]) -> bytes:
    return jsonl(
        {
            "start_time": iso(c.epoch_ms), "duration": c.took_ms, "response_code": 200, "method": "POST",
            "request.path": "/v1/chat/completions", "gen_ai.usage.input_tokens": c.prompt,
            "gen_ai.usage.output_tokens": str(c.output), "session.id": c.session, "x-request-id": f"x{i}",
        }
        for i, c in enumerate(sorted(found, key=end_ms))
    )  # fmt: skip


def nginx(found: list[Call]) -> bytes:
    return jsonl(
        {
            "msec": f"{end_ms(c) // 1000}.{end_ms(c) % 1000:03d}", "request_time": f"{c.took_ms / 1000:.3f}",
            "status": "200", "request_method": "POST", "request_uri": "/v1/chat/completions", "request_id": f"n{i}",
            "upstream_http_x_prompt_tokens": str(c.prompt), "upstream_http_x_generated_tokens": str(c.output),
        }
        for i, c in enumerate(sorted(found, key=end_ms))
    )  # fmt: skip


def bedrock(found: list[Call]) -> bytes:
    return jsonl(
        {
            "schemaType": "ModelInvocationLog", "timestamp": f"{c.iso[:19]}Z", "requestId": f"b{i}", "modelId": "demo",
            "input": {
                "inputTokenCount": c.prompt - c.prompt // 2,
                "cacheReadInputTokenCount": c.prompt // 2,
                "cacheWriteInputTokenCount": 0,
            },
            "output": {"outputTokenCount": c.output},
        }
        for i, c in enumerate(found)
    )  # fmt: skip


def sagemaker(found: list[Call]) -> bytes:
    return jsonl(
        {
            "captureData": {"endpointOutput": {"data": json.dumps({"usage": usage(c)}), "encoding": "JSON"}},
            "eventMetadata": {"eventId": f"e{i}", "inferenceTime": f"{c.iso[:19]}Z"},
        }
        for i, c in enumerate(found)
    )


def _events(found: list[Call]) -> list[tuple[int, int, int, Call]]:
    """Starts (0) and ends (1) in the order of time, with the number of the call."""
    made = [(c.epoch_ms, 0, i, c) for i, c in enumerate(found)] + [(end_ms(c), 1, i, c) for i, c in enumerate(found)]
    return sorted(made, key=lambda event: event[:3])


def kserve(found: list[Call]) -> bytes:
    return jsonl(
        {
            "specversion": "1.0", "id": f"k{i}", "time": iso(at),
            "type": f"org.kubeflow.serving.inference.{'response' if ended else 'request'}",
            "data": {"usage": usage(c)} if ended else {"model": "demo"},
        }
        for at, ended, i, c in _events(found)
    )  # fmt: skip


def sglang(found: list[Call]) -> bytes:
    return jsonl(
        {
            "timestamp": iso(at, mark=""), "event": f"request.{'finished' if ended else 'received'}", "rid": f"s{i}",
            "out": {"meta_info": {"prompt_tokens": c.prompt, "completion_tokens": c.output, "finish_reason": None}}
            if ended
            else None,
        }
        for at, ended, i, c in _events(found)
    )  # fmt: skip


def vllm(found: list[Call]) -> bytes:
    lines = []
    for at, ended, i, c in _events(found):
        head = f"INFO {iso(at)[5:10]} {iso(at)[11:19]} [logger.py:39]"
        ids = ", ".join("1" for _ in range(c.output if ended else c.prompt))
        if ended:
            said = f"Generated response v{i} (streaming complete): output: 'x', output_token_ids: [{ids}], finish: stop"
        else:
            said = f"Received request v{i}: prompt: None, params: SamplingParams(n=1), prompt_token_ids: [{ids}]."
        lines.append(f"{head} {said}")
    return ("\n".join(lines) + "\n").encode()


MAKERS: dict[str, Callable[[list[Call]], bytes]] = {
    "litellm-spendlogs": litellm,
    "litellm-standard-logging": litellm_payload,
    "langfuse-observations": langfuse,
    "helicone-requests": helicone,
    "otlp-genai": otlp,
    "otlp-openinference": openinference,
    "openai-usage-log": usage_log,
    "anthropic-usage-log": anthropic_log,
    "claude-code-session": claude_code,
    "envoy-ai-gateway": envoy,
    "nginx-json": nginx,
    "bedrock-invocation-log": bedrock,
    "sagemaker-data-capture": sagemaker,
    "kserve-cloudevents": kserve,
    "sglang-request-log": sglang,
    "vllm-request-log": vllm,
}
"""Format to the maker of a file of it."""
WHOLE_SECONDS = ("bedrock-invocation-log", "sagemaker-data-capture", "vllm-request-log")
"""Formats whose clock has no fractions."""
