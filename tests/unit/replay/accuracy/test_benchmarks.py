"""Benchmark tables: rows to deployments and loads, rows that are not replayed and why, and a planted throughput."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from replay.accuracy.benchmarks import (
    COLUMNS,
    Deployments,
    LeftOutError,
    benchmarks_document,
    engine_preset,
    in_scope,
    parse_row,
    read_benchmarks,
    sample,
    score_row,
    score_rows,
    workload_of,
)
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue

CATALOGUE = shipped_catalogue()


def row(**fields: Any) -> dict[str, str]:
    found = {
        **dict.fromkeys(COLUMNS, ""),
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


def test_a_closed_loop_is_read_as_one_replicas_share() -> None:
    parsed = parse_row(row(num_gpus=4, tp=2, concurrency=32, num_prompts=320, output_tok_s_total=3000), CATALOGUE)
    assert (parsed.in_flight, parsed.requests, parsed.output_tokens_per_s) == (16, 160, 1500.0)
    assert (parsed.spec.tp, parsed.spec.replicas, parsed.spec.engine.preset) == (2, 1, "vllm-0.22")


def test_a_burst_has_no_clients_and_is_bounded() -> None:
    parsed = parse_row(row(load_kind="offline", concurrency="", num_prompts=30_000), CATALOGUE)
    assert parsed.in_flight is None
    assert parsed.requests == 4096


def test_nominal_lengths_are_drawn_up_to_them() -> None:
    parsed = parse_row(row(isl_kind="nominal_max", isl=1000, osl=500, num_prompts=400), CATALOGUE)
    load = workload_of(parsed)
    assert 800 <= load.prompt_tokens.min() <= 810
    assert 990 <= load.prompt_tokens.max() <= 1000
    assert load.output_tokens.mean() == pytest.approx(450, rel=0.02)
    assert load.max_tokens is not None
    assert set(load.max_tokens) == {500}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"disagg": "true"}, "different GPUs"),
        ({"spec_decode": "mtp"}, "speculative"),
        ({"pp": 2}, "pipeline"),
        ({"dp_or_ep": "ep4+dp-attn"}, "data parallelism"),
        ({"tp": ""}, "tp is not stated"),
        ({"tp": 2, "num_gpus": 3}, "no multiple"),
        ({"tp": 1, "num_gpus": 3}, "shared out"),
        ({"gpu": "SN40L"}, "SN40L"),
        ({"model": "none/such", "model_key": "none/such"}, "not in the catalogue"),
        ({"engine": "sambaflow"}, "no preset"),
        ({"engine_version": "2025-08"}, "release"),
        ({"weight_dtype": "unstated"}, "weight_dtype"),
        ({"weight_dtype": "int3"}, "int3"),
        ({"kv_dtype": "int8"}, "KV"),
        ({"isl": ""}, "isl is not stated"),
        ({"output_tok_s_total": "-5"}, "output_tok_s_total"),
        ({"osl": "many"}, "osl is no number"),
        ({"concurrency": "", "num_prompts": "", "load_kind": "offline"}, "num_prompts"),
    ],
)
def test_rows_that_are_not_replayed_say_why(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(LeftOutError, match=reason):
        parse_row(row(**fields), CATALOGUE)


def test_engines_by_name_and_release() -> None:
    assert engine_preset("TensorRT-LLM", "0.17") == "trtllm"
    assert engine_preset("sglang", "anything") == "sglang"
    assert engine_preset("vLLM", "vLLM 0.5.2") == "vllm-0.5"
    assert engine_preset("vLLM", "2024 (see paper)") == "vllm-v0"


def test_published_formats_stay_as_published() -> None:
    assert (
        parse_row(
            row(weight_dtype="fp8", model="deepseek-ai/DeepSeek-R1", tp=8, num_gpus=8), CATALOGUE
        ).spec.weight_dtype
        is None
    )
    assert parse_row(row(weight_dtype="fp8"), CATALOGUE).spec.weight_dtype == "fp8"
    assert parse_row(row(weight_dtype="fp16/bf16 (framework default)"), CATALOGUE).spec.weight_dtype == "bf16"


def test_scope_is_loops_and_bursts_of_good_quality() -> None:
    assert in_scope(row())
    assert in_scope(row(load_kind="offline", quality="B"))
    assert not in_scope(row(load_kind="open_loop"))
    assert not in_scope(row(quality="C"))


def test_figures_follow_from_each_other() -> None:
    """Little's law, and what a planted throughput does to the error."""
    parsed = parse_row(row(ttft_mean_ms=50, tpot_mean_ms=8), CATALOGUE)
    scored = score_row(parsed, Deployments(CATALOGUE).of(parsed.spec), "vLLM")
    throughput, ttft, tpot = (scored.figures[name][1] for name in ("throughput", "ttft", "tpot"))
    assert throughput / 128 * (ttft + 127 * tpot) == pytest.approx(16, rel=0.1)
    assert scored.errors["throughput"] == pytest.approx(throughput / 1500 - 1)
    exact = parse_row(row(output_tok_s_total=throughput), CATALOGUE)
    assert score_row(exact, Deployments(CATALOGUE).of(exact.spec), "vLLM").errors["throughput"] == pytest.approx(
        0, abs=1e-9
    )


def test_benchmarks_decode_greedily() -> None:
    """5 us a decode, nothing for the vocabulary."""
    parsed = parse_row(row(gpu="A100-SXM-80GB"), CATALOGUE)
    assert Deployments(CATALOGUE).of(parsed.spec).step_time.decode_request_ps == 5_000_000


def test_the_document_counts_every_row() -> None:
    table = [row(), row(row_id="r2", engine="atom"), row(row_id="r3", gpu="T4")]
    document = benchmarks_document(*score_rows(table, CATALOGUE))
    assert [one["row_id"] for one in document["rows"]] == ["r1"]
    assert sum(one["rows"] for one in document["not_replayed"]) == 2
    assert document["overall"]["rows"] == 1
    assert document["by"][0]["throughput"]["n"] == 1
    assert "output_tokens_per_s" in document["rows"][0]


def test_a_sample_is_the_same_every_time() -> None:
    table = [row(row_id=f"r{i}") for i in range(50)]
    assert sample(table, None) == table
    assert sample(table, 10) == sample(table, 10)
    assert len(sample(table, 10)) == 10


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pl.DataFrame([row()]).drop("osl").write_csv(tmp_path / "t.csv")
    with pytest.raises(SpecError, match="osl"):
        read_benchmarks(tmp_path / "t.csv")
    pl.DataFrame([row()]).write_csv(tmp_path / "t.csv")
    assert read_benchmarks(tmp_path / "t.csv") == [row()]
