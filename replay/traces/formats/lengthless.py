"""Logs without requests that one could replay: no token counts, or sums over many requests. Refused with the reason."""

from __future__ import annotations

import re

from replay.traces.formats.refused import RefusedFormat
from replay.traces.rows import Sample

_TGI_LINE = re.compile(r'"target":\s*"text_generation_router')
_USAGE_BUCKET = re.compile(r"^(?:bucket|organization\.(?:usage|costs)\.\w+\.?\w*)$")


def _azure_openai(sample: Sample) -> bool:
    return sample.has("time", "operationName", "durationMs") and any(
        "COGNITIVESERVICES" in str(row.get("resourceId", "")).upper()
        or (row.get("category") == "RequestResponse" and "responseLength" in str(row.get("properties", "")))
        for row in sample.rows
    )


def _openai_usage(sample: Sample) -> bool:
    if sample.has("num_model_requests", "input_tokens", "output_tokens"):
        return True
    return sample.has("start_time", "end_time", "results") and any(
        _USAGE_BUCKET.match(str(row.get("object", ""))) for row in sample.rows
    )


def _anthropic_usage(sample: Sample) -> bool:
    return sample.has("starting_at", "ending_at", "results")


def _tgi(sample: Sample) -> bool:
    if sample.container == "text":
        return any(_TGI_LINE.search(str(row.get("line"))) for row in sample.rows)
    return sample.has("timestamp", "message", "span.total_time", "span.inference_time")


FORMATS = (
    RefusedFormat(
        name="azure-openai-diagnostics",
        title="a diagnostics log of Azure OpenAI",
        needs=("time", "operationName", "durationMs", "properties.requestLength"),
        known=_azure_openai,
        reason="it states the bytes of requests and answers, not their tokens, and bytes over four would be a guess",
        cure="upload a log with token counts: of the gateway in front, or of API Management with token metrics",
    ),
    RefusedFormat(
        name="openai-usage-completions",
        title="OpenAI's usage report",
        needs=("start_time", "end_time", "results of num_model_requests, input_tokens, output_tokens"),
        known=_openai_usage,
        reason="it holds sums over minutes, hours or days: no arrivals and no lengths of single requests",
        cure="upload a log with one row a request; the sums can check one (requests, tokens) or set a growth",
    ),
    RefusedFormat(
        name="anthropic-usage-report",
        title="Anthropic's usage report",
        needs=("starting_at", "ending_at", "results"),
        known=_anthropic_usage,
        reason="it holds sums over minutes, hours or days: no arrivals and no lengths of single requests",
        cure="upload a log with one row a request; the sums can check one (requests, tokens) or set a growth",
    ),
    RefusedFormat(
        name="tgi-router-log",
        title="the log of a TGI router",
        needs=("timestamp", "message", "span.total_time", "span.inference_time"),
        known=_tgi,
        reason="it states times and no token counts: the prompt's length is not in it at all, and inference_time over "
        "time_per_token is a rounded guess of the output's",
        cure="log the response headers x-prompt-tokens and x-generated-tokens at a gateway and upload that log",
    ),
)
