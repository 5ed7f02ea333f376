"""Experiment folders for tests: small runs in the layouts of measured data, simulated rather than measured."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

from replay.accuracy.benchmark_rows import COLUMNS, OPTIONAL
from replay.accuracy.replayed import Figure, ScoredRun

SERVER: dict[str, Any] = {
    "id": "one",
    "group": "observe-per-request",
    "gpu": "H100-SXM-80GB",
    "model": "Qwen/Qwen3-14B",
    "tp": 1,
    "dp": 1,
    "replicas": 1,
    "router": None,
    "engine": "vllm",
    "engine_version": "0.23.0",
    "max_num_seqs": None,
    "max_num_batched_tokens": 8192,
    "max_model_len": 40960,
    "kv_block_size": 16,
    "kv_blocks_gpu": 18038,
    "prefix_caching": True,
    "chunked_prefill": True,
    "quality": "ok",
    "notes": [],
}
AGGREGATE = {"group": "infperf-aggregate", "engine_version": "0.15.1", "max_num_batched_tokens": 2048}


def rows(n: int = 20, **columns: Any) -> list[dict[str, Any]]:
    """``n`` requests a second apart: 100 prompt tokens, 11 output tokens, TTFT 0.1 s, 20 ms a token. ``columns`` are
    values, or functions of the request's number."""
    made = []
    for i in range(n):
        row: dict[str, Any] = {
            "request_id": i,
            "arrival_s": float(i),
            "prompt_tokens": 100,
            "output_tokens": 11,
            "ttft_s": 0.1,
            "e2e_s": 0.3,
            "itl_mean_s": 0.02,
            "status": "ok",
        }
        row.update({name: value(i) if callable(value) else value for name, value in columns.items()})
        made.append(row)
    return made


def write(
    root: Path,
    name: str = "one",
    requests: list[dict[str, Any]] | None = None,
    summary: dict[str, Any] | None = None,
    **server: Any,
) -> Path:
    """An experiment folder below ``root``. ``server`` overrides fields of ``SERVER``; a field set to ``...`` is left
    out."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    fields = {key: value for key, value in {**SERVER, "id": name, **server}.items() if value is not ...}
    (folder / "server.json").write_text(json.dumps(fields))
    (folder / "summary.json").write_text(json.dumps(summary or {"workload": {}, "measured": {}}))
    if requests is not None:
        with gzip.open(folder / "requests.csv.gz", "wt", newline="") as file:
            writer = csv.DictWriter(file, list(requests[0]))
            writer.writeheader()
            writer.writerows(requests)
    return folder


def aggregate_summary(e2e_s: float = 2.0, ttft_s: float = 0.05) -> dict[str, Any]:
    """Two stages of 2 and 4 requests a second, 200 output tokens."""
    figures = {"e2e_s": {"mean": e2e_s, "p99": 2 * e2e_s}, "ttft_s": {"mean": ttft_s, "p99": 2 * ttft_s},
               "itl_retokenised_s": {"mean": 1.0}}  # fmt: skip
    return {
        "workload": {
            "stages": [{"rate": 2, "duration": 100}, {"rate": 4, "duration": 100}],
            "max_tokens": 200,
            "prompt_tokens_target": 500,
            "system_prompt_len": 100,
            "workload_source": "INFERRED from the name",
        },
        "measured": {"all": figures, "stage0": figures, "stage1": figures},
    }


def scored_run(model: str, error: float, name: str = "run", **fields: Any) -> ScoredRun:
    """A run as scored, with the same error in every figure."""
    figure = Figure(1.0, 1.0 + error, True)
    return ScoredRun(
        **{
            "experiment": name,
            "gpu": "H100-SXM",
            "model": model,
            "tp": 1,
            "has_experts": False,
            "aggregates_only": False,
            "n": 1000,
            "region": "below",
            "unscored": None,
            "quality": "ok",
            "provenance": "analytic",
            "calibration_id": "none",
            "figures": {metric: {"mean": figure, "p99": figure} for metric in ("ttft_s", "itl_s", "e2e_s")},
            "throughput": None,
            "saturated": False,
            "load_factor": 0.5,
            **fields,
        }
    )


def benchmark_row(**fields: Any) -> dict[str, str]:
    """A row of a benchmark table, as text by column."""
    found = {
        **dict.fromkeys((*COLUMNS, *OPTIONAL), ""),
        "row_id": "r1",
        "engine": "vLLM",
        "engine_version": "v0.22",
        "model": "meta-llama/Llama-3.1-8B",
        "model_key": "meta-llama/Llama-3.1-8B",
        "weight_dtype": "bf16",
        "gpu": "H100-SXM",
        "num_gpus": "1",
        "tp": "1",
        "load_kind": "closed_loop",
        "concurrency": "16",
        "isl": "512",
        "osl": "128",
        "isl_kind": "exact",
        "num_prompts": "64",
        "output_tok_s_total": "1500",
        "quality": "A",
    }
    return found | {name: str(value) for name, value in fields.items()}
