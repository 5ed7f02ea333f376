"""The made-up samples of the reference folder for gateways, observability and engines: counts and sums, computed here
from the files by other means than the readers."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from replay.errors import TraceError
from replay.traces.ingest import ingest
from replay.traces.report import IngestReport

pytestmark = pytest.mark.reference


@pytest.fixture
def samples(reference_dir: Path) -> Path:
    return reference_dir / "reference" / "trace-samples"


def read(path: Path, tmp_path: Path) -> IngestReport:
    report = ingest(path, tmp_path / "out.parquet")
    assert report.cleaning.rows_read == report.cleaning.rows_kept + report.cleaning.rows_rejected
    return report


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def at(row: Any, path: str) -> int:
    for key in path.split("/"):
        row = (row or {}).get(key)
    return int(row or 0)


FLAT = [
    ("litellm-spendlogs-api.jsonl", "litellm-spendlogs", 30, ["prompt_tokens"], "completion_tokens"),
    ("litellm-standard-logging.jsonl", "litellm-standard-logging", 20, ["prompt_tokens"], "completion_tokens"),
    ("helicone-requests.jsonl", "helicone-requests", 25, ["prompt_tokens"], "completion_tokens"),
    (
        "envoy-ai-gateway-access.jsonl",
        "envoy-ai-gateway",
        30,
        ["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens",
    ),
    (
        "nginx-json-access.jsonl",
        "nginx-json",
        30,
        ["upstream_http_x_prompt_tokens"],
        "upstream_http_x_generated_tokens",
    ),
    (
        "bedrock-invocation-log.jsonl",
        "bedrock-invocation-log",
        25,
        ["input/inputTokenCount", "input/cacheReadInputTokenCount", "input/cacheWriteInputTokenCount"],
        "output/outputTokenCount",
    ),
    (
        "kserve-cloudevents.jsonl",
        "kserve-cloudevents",
        15,
        ["data/usage/prompt_tokens"],
        "data/usage/completion_tokens",
    ),
    (
        "sglang-request-log.jsonl",
        "sglang-request-log",
        14,
        ["out/meta_info/prompt_tokens"],
        "out/meta_info/completion_tokens",
    ),
]


@pytest.mark.parametrize(("name", "form", "requests", "prompt", "output"), FLAT)
def test_counts_and_sums(
    samples: Path, tmp_path: Path, name: str, form: str, requests: int, prompt: list[str], output: str
) -> None:
    report = read(samples / name, tmp_path)
    assert (report.format, report.requests, report.cleaning.rows_rejected) == (form, requests, 0)
    found = rows(samples / name)
    assert report.prompt_tokens == sum(at(row, path) for row in found for path in prompt)
    assert report.output_tokens == sum(at(row, output) for row in found)


def test_litellm_csv_is_the_same_as_its_api(samples: Path, tmp_path: Path) -> None:
    with (samples / "litellm-spendlogs.csv").open(encoding="utf-8", newline="") as handle:
        found = list(csv.DictReader(handle))
    report = read(samples / "litellm-spendlogs.csv", tmp_path)
    assert (report.requests, report.prompt_tokens) == (len(found), sum(int(row["prompt_tokens"]) for row in found))
    api = read(samples / "litellm-spendlogs-api.jsonl", tmp_path)
    assert api.model_dump(exclude={"assumed", "why"}) == report.model_dump(exclude={"assumed", "why"})


def test_langfuse(samples: Path, tmp_path: Path) -> None:
    report = read(samples / "langfuse-observations-v2.jsonl", tmp_path)
    calls = [
        row["usage_details"] for row in rows(samples / "langfuse-observations-v2.jsonl") if row["type"] == "GENERATION"
    ]
    assert (report.requests, len(calls)) == (20, 20)
    assert report.prompt_tokens == sum(call["total"] - call["output"] for call in calls)
    assert report.output_tokens == sum(call["output"] for call in calls)


GENAI = ("gen_ai.operation.name", "chat", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
INFERENCE = ("openinference.span.kind", "LLM", "llm.token_count.prompt", "llm.token_count.completion")


@pytest.mark.parametrize(
    ("name", "form", "names"),
    [
        ("otlp-genai-spans.json", "otlp-genai", GENAI),
        ("otlp-genai-spans.jsonl", "otlp-genai", GENAI),
        ("otlp-openinference.jsonl", "otlp-openinference", INFERENCE),
    ],
)
def test_spans(samples: Path, tmp_path: Path, name: str, form: str, names: tuple[str, str, str, str]) -> None:
    kind, call, prompt, output = names
    text = (samples / name).read_text(encoding="utf-8")
    batches = [json.loads(text)] if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]
    spans = [
        {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}
        for batch in batches
        for resource in batch["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    calls = [span for span in spans if span[kind] == call]
    report = read(samples / name, tmp_path)
    assert (report.format, report.requests) == (form, len(calls))
    old = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens")  # some spans have the names of before
    assert report.prompt_tokens == sum(int(span.get(prompt, span.get(old[0], 0))) for span in calls)
    assert report.output_tokens == sum(int(span.get(output, span.get(old[1], 0))) for span in calls)


def test_sagemaker(samples: Path, tmp_path: Path) -> None:
    usages = [
        json.loads(row["captureData"]["endpointOutput"]["data"])["usage"]
        for row in rows(samples / "sagemaker-data-capture.jsonl")
    ]
    report = read(samples / "sagemaker-data-capture.jsonl", tmp_path)
    assert (report.requests, report.prompt_tokens) == (len(usages), sum(usage["prompt_tokens"] for usage in usages))


def test_vllm_has_arrivals_only(samples: Path, tmp_path: Path) -> None:
    """Every list of ids in it has the same length: cut, and so no length."""
    text = (samples / "vllm-request-log.txt").read_text(encoding="utf-8")
    report = read(samples / "vllm-request-log.txt", tmp_path)
    assert (report.requests, report.prompt_tokens) == (text.count("Received request"), 0)
    assert report.cleaning.status_counts == {"aborted": text.count(" aborted."), "ok": text.count("Generated response")}


@pytest.mark.parametrize(
    "name", ["azure-openai-diagnostics.jsonl", "tgi-router-log.jsonl", "openai-usage-completions.json"]
)
def test_logs_without_requests(samples: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError) as caught:
        ingest(samples / name, tmp_path / "out.parquet")
    assert caught.value.code == "trace.no_requests"
