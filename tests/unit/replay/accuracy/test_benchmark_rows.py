"""Benchmark tables: rows to deployments and loads, and rows that are not replayed and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from measured_runs import benchmark_row

from replay.accuracy.benchmark_rows import (
    LeftOutError,
    engine_preset,
    in_scope,
    parse_row,
    read_benchmarks,
    sample,
    workload_of,
)
from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue

CATALOGUE = shipped_catalogue()


def test_a_closed_loop_is_read_as_one_replicas_share() -> None:
    parsed = parse_row(
        benchmark_row(num_gpus=4, tp=2, concurrency=32, num_prompts=320, output_tok_s_total=3000), CATALOGUE
    )
    assert (parsed.in_flight, parsed.requests, parsed.output_tokens_per_s) == (16, 160, 1500.0)
    assert (parsed.spec.tp, parsed.spec.replicas, parsed.spec.engine.preset) == (2, 1, "vllm-0.22")


def test_a_burst_has_no_clients_and_is_bounded() -> None:
    parsed = parse_row(benchmark_row(load_kind="offline", concurrency="", num_prompts=30_000), CATALOGUE)
    assert parsed.in_flight is None
    assert parsed.requests == 4096


def test_nominal_lengths_are_drawn_up_to_them() -> None:
    parsed = parse_row(benchmark_row(isl_kind="nominal_max", isl=1000, osl=500, num_prompts=400), CATALOGUE)
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
        ({"isl_kind": "dataset_mean"}, "distribution"),
        ({"notes": "arrival rate not in the row - treat load_kind with care"}, "requests were sent"),
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
        parse_row(benchmark_row(**fields), CATALOGUE)


def test_engines_by_name_and_release() -> None:
    assert engine_preset("TensorRT-LLM", "0.17") == "trtllm"
    assert engine_preset("sglang", "anything") == "sglang"
    assert engine_preset("vLLM", "vLLM 0.5.2") == "vllm-0.5"
    assert engine_preset("vLLM", "2024 (see paper)") == "vllm-v0"


def test_published_formats_stay_as_published() -> None:
    assert (
        parse_row(
            benchmark_row(weight_dtype="fp8", model="deepseek-ai/DeepSeek-R1", tp=8, num_gpus=8), CATALOGUE
        ).spec.weight_dtype
        is None
    )
    assert parse_row(benchmark_row(weight_dtype="fp8"), CATALOGUE).spec.weight_dtype == "fp8"
    assert parse_row(benchmark_row(weight_dtype="fp16/bf16 (framework default)"), CATALOGUE).spec.weight_dtype == "bf16"


def test_scope_is_loops_and_bursts_of_good_quality() -> None:
    assert in_scope(benchmark_row())
    assert in_scope(benchmark_row(load_kind="offline", quality="B"))
    assert not in_scope(benchmark_row(load_kind="open_loop"))
    assert not in_scope(benchmark_row(quality="C"))


def test_a_sample_is_the_same_every_time() -> None:
    table = [benchmark_row(row_id=f"r{i}") for i in range(50)]
    assert sample(table, None) == table
    assert sample(table, 10) == sample(table, 10)
    assert len(sample(table, 10)) == 10


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pl.DataFrame([benchmark_row()]).drop("osl").write_csv(tmp_path / "t.csv")
    with pytest.raises(SpecError, match="osl"):
        read_benchmarks(tmp_path / "t.csv")
    pl.DataFrame([benchmark_row()]).write_csv(tmp_path / "t.csv")
    assert read_benchmarks(tmp_path / "t.csv") == [benchmark_row()]


def test_columns_of_medians_may_be_missing(tmp_path: Path) -> None:
    pl.DataFrame([benchmark_row()]).drop("ttft_p50_ms", "tpot_p50_ms", "notes").write_csv(tmp_path / "t.csv")
    assert read_benchmarks(tmp_path / "t.csv") == [benchmark_row()]


def test_tensorrt_llms_budget_holds_a_prompt_beside_all_decodes() -> None:
    fields = {"engine": "TensorRT-LLM", "engine_version": "1.0", "load_kind": "offline", "concurrency": ""}
    short, long = (parse_row(benchmark_row(**fields, isl=isl), CATALOGUE).spec.engine.overrides for isl in (2048, 8192))
    assert short == {}
    assert long == {"max_num_tokens": 8192 + 2048}
    clients = parse_row(benchmark_row(**fields | {"load_kind": "closed_loop", "concurrency": 64}, isl=8192), CATALOGUE)
    assert clients.spec.engine.overrides == {"max_num_tokens": 8192 + 64}


def test_tensorrt_llms_fp8_rows_have_an_fp8_cache() -> None:
    fields = {"engine": "TensorRT-LLM", "engine_version": "0.9.0"}
    assert parse_row(benchmark_row(**fields, weight_dtype="fp8"), CATALOGUE).spec.kv_dtype == "fp8"
    assert parse_row(benchmark_row(**fields, weight_dtype="fp16"), CATALOGUE).spec.kv_dtype is None
    assert parse_row(benchmark_row(weight_dtype="fp8"), CATALOGUE).spec.kv_dtype is None
