"""The real and shaped traces of the reference folder: counts, sums, facts that their README states."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.errors import TraceError
from replay.specs import Transform
from replay.traces.ingest import ingest
from replay.traces.transforms import load_workload

pytestmark = pytest.mark.reference

# file, format, requests; the sums are computed here from the file itself, by other means than the readers
TRACES = [
    ("azure-2023/AzureLLMInferenceTrace_code.csv.gz", "azure-llm-2023", 8_819, 1, 2),
    ("azure-2023/AzureLLMInferenceTrace_conv.csv.gz", "azure-llm-2023", 19_366, 1, 2),
    ("servegen/deepseek-r1_0800-1200.csv.gz", "servegen-requests", 167_177, 2, 3),
    ("servegen/m-large_week1_scale0.005.csv.gz", "servegen-requests", 402_551, 2, 3),
    ("synthetic/burstgpt1_shaped.csv.gz", "burstgpt-v1", 67_990, 2, 3),
    ("synthetic/burstgpt3_shaped.csv.gz", "burstgpt-v3", 23_458, 4, 5),
    ("mooncake/conversation_trace.jsonl.gz", "mooncake", 12_031, "input_length", "output_length"),
    ("mooncake/synthetic_trace.jsonl.gz", "mooncake", 3_993, "input_length", "output_length"),
    ("synthetic/qwen_bailian_shaped_blksz_16.jsonl.gz", "qwen-bailian", 6_000, "input_length", "output_length"),
]


def sums(path: Path, prompt: int | str, output: int | str) -> tuple[int, int]:
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    if isinstance(prompt, int) and isinstance(output, int):
        cells = [line.split(",") for line in lines[1:]]
        return sum(int(row[prompt]) for row in cells), sum(int(row[output]) for row in cells)
    rows = [json.loads(line) for line in lines]
    return sum(row[prompt] for row in rows), sum(row[output] for row in rows)


@pytest.mark.parametrize(("name", "form", "requests", "prompt", "output"), TRACES)
def test_counts_and_sums(
    reference_dir: Path, tmp_path: Path, name: str, form: str, requests: int, prompt: int | str, output: int | str
) -> None:
    path = reference_dir / "traces" / name
    report = ingest(path, tmp_path / "out.parquet")
    assert (report.format, report.requests, report.cleaning.rows_rejected) == (form, requests, 0)
    assert (report.prompt_tokens, report.output_tokens) == sums(path, prompt, output)
    workload = load_workload(tmp_path / "out.parquet", Transform(), 0)
    assert workload.n + sum(workload.excluded.values()) == requests


def test_azure_code_has_its_silent_hole_and_its_burst(reference_dir: Path, tmp_path: Path) -> None:
    report = ingest(reference_dir / "traces/azure-2023/AzureLLMInferenceTrace_code.csv.gz", tmp_path / "out.parquet")
    assert report.cleaning.largest_gap_s == pytest.approx(217, abs=1)
    assert report.profile.peak_rps_1s is not None
    assert report.profile.mean_rps is not None
    assert report.profile.peak_rps_1s / report.profile.mean_rps == pytest.approx(26, abs=3)
    assert report.profile.start_utc == "2023-11-16T18:17:03.979+00:00"


def test_mooncake_conversation_shows_its_clock_and_its_shared_prefixes(reference_dir: Path, tmp_path: Path) -> None:
    path = reference_dir / "traces/mooncake/conversation_trace.jsonl.gz"
    report = ingest(path, tmp_path / "out.parquet")
    assert report.cleaning.tied_requests == 12_031 - 1_180
    assert report.cleaning.clock_resolution_s == pytest.approx(3, abs=0.01)
    assert any("artefacts of the clock" in warning for warning in report.warnings)
    seen: set[int] = set()
    reused = 0
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():  # file order is arrival order here
        ids = json.loads(line)["hash_ids"]
        reused += next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
    prefix = report.profile.prefix
    assert prefix is not None
    assert (prefix.reused_blocks, prefix.distinct_blocks, prefix.block_size_tokens) == (reused, len(seen), 512)


@pytest.mark.parametrize("spread", ["even", "uniform"])
def test_mooncake_ticks_are_spread(reference_dir: Path, tmp_path: Path, spread: str) -> None:
    ingest(reference_dir / "traces/mooncake/conversation_trace.jsonl.gz", tmp_path / "out.parquet")
    kept = load_workload(tmp_path / "out.parquet", Transform(), 0)
    workload = load_workload(tmp_path / "out.parquet", Transform.model_validate({"spread": spread}), 0)
    assert "The clock moves in steps of 2.997 s" in workload.notes[0]
    moved = workload.arrival_ps - kept.arrival_ps
    assert (moved >= 0).all()
    assert (moved < 3 * 10**12).all()
    assert workload.prompt_tokens.tolist() == kept.prompt_tokens.tolist()
    busiest = [int(np.bincount(one.arrival_ps // 10**12).max()) for one in (kept, workload)]
    assert busiest[1] < 0.75 * busiest[0], "most of the peak was the clock's"


def test_burstgpt_failures_stay_as_arrivals(reference_dir: Path, tmp_path: Path) -> None:
    path = reference_dir / "traces/synthetic/burstgpt1_shaped.csv.gz"
    report = ingest(path, tmp_path / "out.parquet")
    rows = [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines()[1:]]
    zero = sum(row[3] == "0" for row in rows)
    assert report.cleaning.zero_output_tokens == zero > 0
    assert report.cleaning.status_counts["failed"] == zero
    workload = load_workload(tmp_path / "out.parquet", Transform(), 0)
    assert workload.n == sum(row[3] != "0" and row[2] != "0" for row in rows)


def test_dynamo_requests_among_tool_events(reference_dir: Path, tmp_path: Path) -> None:
    """61 events: 17 requests, 44 of tools. Hashes exceed 2^63; a sub-agent's first request follows its parent's."""
    report = ingest(reference_dir / "traces/dynamo/pi_request_trace.jsonl.gz", tmp_path / "out.parquet")
    assert (report.format, report.requests, sum(report.cleaning.not_requests.values())) == (
        "dynamo-request-trace",
        17,
        44,
    )
    assert (report.profile.sessions, report.cleaning.closed_loop_requests) == (5, 15)
    assert report.profile.prefix is not None
    assert (report.profile.prefix.block_size_tokens, report.profile.prefix.blocks) == (16, 4_163)


def test_weka_sessions_with_their_sub_agent(reference_dir: Path, tmp_path: Path) -> None:
    """58 sessions of 3,202 requests and a sub-agent with two more."""
    path = reference_dir / "traces/weka-agentic/weka_dev_part0.jsonl.gz"
    report = ingest(path, tmp_path / "out.parquet")
    assert (report.format, report.requests, report.profile.sessions) == ("weka-agentic", 3_204, 58)
    assert report.cleaning.closed_loop_requests == 3_204 - 58
    prompt = output = blocks = 0

    def walk(entries: list[dict[str, Any]]) -> None:
        nonlocal prompt, output, blocks
        for entry in entries:
            if entry["type"] == "subagent":
                walk(entry["requests"])
            else:
                prompt, output = prompt + entry["in"], output + entry["out"]
                blocks += len(entry["hash_ids"])

    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        walk(json.loads(line)["requests"])
    assert (report.prompt_tokens, report.output_tokens) == (prompt, output)
    assert report.profile.prefix is not None
    assert report.profile.prefix.blocks == blocks


@pytest.mark.parametrize(
    "name",
    [
        "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv.gz",
        "sharegpt_8k_filtered_stats_llama2_tokenizer.csv.gz",
    ],
)
def test_lengths_without_times_are_named(reference_dir: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match="lengths without times"):
        ingest(reference_dir / "traces/lengths" / name, tmp_path / "out.parquet")


SAMPLES = {
    "aiperf-profile-export.jsonl": ("aiperf-profile-export", 25),
    "blis-tracev2.csv": ("blis-tracev2", 25),
    "dynamo-request-trace.jsonl": ("dynamo-request-trace", 27),
    "ghcp-coding-agent-2026.jsonl": ("ghcp-coding-agent-2026", 82),
    "llmservingsim.jsonl": ("llmservingsim", 38),
    "tracelab-rounds.jsonl": ("tracelab", 24),
    "weka-agentic.jsonl": ("weka-agentic", 83),
    "azure-llm-2023.csv": ("azure-llm-2023", 30),
    "azure-llm-2024.csv": ("azure-llm-2024", 30),
    "azure-lmm-2025.csv": ("azure-lmm-2025", 30),
    "burstgpt-v1.csv": ("burstgpt-v1", 40),
    "burstgpt-v3.csv": ("burstgpt-v3", 40),
    "mooncake.jsonl": ("mooncake", 30),
    "mooncake-sessions.jsonl": ("mooncake-sessions", 22),
    "qwen-bailian.jsonl": ("qwen-bailian", 30),
    "splitwise-sim.csv": ("splitwise-sim", 30),
    "vidur-trace.csv": ("vidur", 30),
}


def test_every_sample_is_read_or_refused_with_a_reason(reference_dir: Path, tmp_path: Path) -> None:
    read = {}
    refused = {}
    for path in sorted((reference_dir / "reference/trace-samples").iterdir()):
        try:
            report = ingest(path, tmp_path / "out.parquet")
        except TraceError as error:
            refused[path.name] = error
        else:
            assert report.cleaning.rows_read == report.cleaning.rows_kept + report.cleaning.rows_rejected
            read[path.name] = (report.format, report.requests)
    assert all(error.detail and error.errors for error in refused.values())
    assert read.items() >= SAMPLES.items()
    named = {name for name, error in refused.items() if error.code == "trace.no_requests"}
    assert named >= {
        "blis-tracev2.yaml",
        "servegen-client-dataset.json",
        "servegen-client-trace.csv",
        "servegen-offline-hash.jsonl",
        "servegen-offline-stat.jsonl",
        "vidur-lengths.csv",
    }
