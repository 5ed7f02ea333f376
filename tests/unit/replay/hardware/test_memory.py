"""Sizing one GPU: worked examples, breakdown, verdicts and their reasons."""

import re
from typing import Any

import pytest

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.memory import MemoryPlan, memory_answer, size_memory

CATALOGUE = shipped_catalogue()
HOPPER = {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
LONG = {"max_model_len": 131072}
FULL = {"gpu_memory_utilization": 0.92}
AMPERE = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}


def size(model: str, gpu: str, engine: str, **options: Any) -> MemoryPlan:
    defaults: dict[str, Any] = {"tp": 1, "max_model_len": 8192, "gpu_memory_utilization": 0.9}
    defaults |= AMPERE if gpu in {"A100-SXM-80GB", "L40S"} else HOPPER
    return size_memory(CATALOGUE.model(model), CATALOGUE.gpu(gpu), engine_version=engine, **(defaults | options))


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "options", "tokens", "tolerance"),
    [
        ("Qwen/Qwen3-8B", "H100", "vllm-0.19", {"gpu_memory_utilization": 0.95}, 418_704, 1e-3),
        ("Qwen/Qwen3-30B-A3B", "H100", "vllm-0.19", {"gpu_memory_utilization": 0.95}, 168_496, 2e-3),
        ("meta-llama/Llama-3.1-8B", "H100", "vllm-0.11", LONG, 420_992, 1e-3),
        ("meta-llama/Llama-3.1-8B", "H100", "vllm-0.19", LONG, 443_536, 1e-3),
        ("meta-llama/Llama-3.1-70B", "H100", "vllm-0.11", LONG | {"tp": 4, "sampler": "flashinfer"}, 469_440, 1e-3),
        ("meta-llama/Llama-3.1-70B", "H100", "vllm-0.19", LONG | {"tp": 4}, 448_832, 2e-3),
        ("meta-llama/Llama-3.1-70B", "A100-SXM-80GB", "vllm-0.19", LONG | {"tp": 8}, 1_361_920, 3e-3),
        ("meta-llama/Llama-3.1-8B", "A100-SXM-80GB", "vllm-0.31", LONG | FULL, 460_992, 3e-3),
        ("Qwen/Qwen3-14B", "H100", "vllm-0.26", AMPERE | FULL | {"max_model_len": 32768}, 285_808, 5e-3),
    ],
)
def test_worked_examples(
    model: str, gpu: str, engine: str, options: dict[str, Any], tokens: int, tolerance: float
) -> None:
    plan = size(model, gpu, engine, **options)
    assert plan.fits, plan.reason
    assert plan.kv_tokens == pytest.approx(tokens, rel=tolerance)
    assert plan.kv_blocks == plan.kv_tokens // 16 - 1
    assert plan.max_concurrency == pytest.approx(plan.kv_tokens / options.get("max_model_len", 8192))


@pytest.mark.parametrize(
    ("engine", "activation", "non_torch", "kv"),
    [("vllm-0.16", 5.64, 0.13, 41.94), ("vllm-0.17", 2.23, 0.13, 45.35), ("vllm-0.18", 2.23, 0.25, 45.23)],
)
def test_overheads_change_with_the_release(engine: str, activation: float, non_torch: float, kv: float) -> None:
    plan = size("Qwen/Qwen3-14B", "H100", engine, gpu_memory_utilization=0.95)
    assert plan.activation_gib == pytest.approx(activation, abs=0.01)
    assert plan.non_torch_gib == pytest.approx(non_torch, abs=0.001)
    assert plan.kv_gib == pytest.approx(kv, abs=0.01)


@pytest.mark.parametrize(
    "engine", ["vllm-v0", "vllm-0.11", "vllm-0.19", "vllm-0.33", "sglang", "trtllm", "tgi-v3", "static"]
)
@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3-8B", "mistralai/Mixtral-8x7B-v0.1", "google/gemma-3-12b-it", "Qwen/Qwen3.5-27B"]
)
def test_parts_add_up_to_the_gpu(engine: str, model: str) -> None:
    plan = size(model, "H200", engine)
    parts = (
        plan.kv_gib
        + plan.weights_gib
        + plan.activation_gib
        + plan.non_torch_gib
        + plan.cuda_graph_gib
        + plan.unused_gib
    )
    assert plan.fits, plan.reason
    assert parts == pytest.approx(plan.total_gib)
    assert plan.total_gib == 139.8
    assert min(plan.kv_gib, plan.unused_gib, plan.cuda_graph_gib) >= 0
    assert 0 < plan.kv_uncertainty_gib < 8


def test_graphs_are_inside_the_budget_from_0_21_on() -> None:
    before = size("Qwen/Qwen3-8B", "H100", "vllm-0.20")
    after = size("Qwen/Qwen3-8B", "H100", "vllm-0.21")
    assert before.kv_gib - after.kv_gib == pytest.approx(after.cuda_graph_gib)
    eager = size("Qwen/Qwen3-8B", "H100", "vllm-0.21", enforce_eager=True)
    assert eager.cuda_graph_gib == 0
    assert eager.kv_gib == pytest.approx(before.kv_gib)


def test_logged_figures_replace_estimates() -> None:
    plan = size("Qwen/Qwen3-8B", "H100", "vllm-0.33", cuda_graph_gib=3.5, non_torch_gib=1.25)
    assert plan.cuda_graph_gib == 3.5
    assert plan.non_torch_gib == 1.25


def test_four_bit_weights_keep_a_sixteen_bit_cache() -> None:
    full = size("meta-llama/Llama-3.1-8B", "H100", "vllm-0.33")
    small = size("meta-llama/Llama-3.1-8B", "H100", "vllm-0.33", weight_dtype="int4")
    assert small.kv_bytes_per_token == full.kv_bytes_per_token == 131072
    assert small.weights_gib < 0.4 * full.weights_gib
    halved = size("meta-llama/Llama-3.1-8B", "H100", "vllm-0.33", kv_dtype="fp8")
    assert halved.kv_bytes_per_token == 65536
    assert halved.kv_tokens == pytest.approx(2 * full.kv_tokens, abs=16)


def test_hybrid_token_line_follows_the_release() -> None:
    old = size("google/gemma-3-27b-it", "H100", "vllm-0.19", gpu_memory_utilization=0.95)
    assert old.kv_tokens == pytest.approx(36_560, rel=5e-3)
    assert old.max_concurrency == pytest.approx(4.46, abs=0.02)
    new = size("google/gemma-3-27b-it", "H100", "vllm-0.24", gpu_memory_utilization=0.95)
    assert new.kv_tokens == int(new.max_concurrency * 8192)


def test_too_big_a_model_names_the_need_and_the_smallest_tp() -> None:
    plan = size("meta-llama/Llama-3.1-70B", "H100", "vllm-0.33")
    assert not plan.fits
    assert plan.kv_blocks == plan.kv_tokens == 0
    assert plan.shortfall_gib > 50
    assert plan.reason is not None
    assert "weights 131." in plan.reason
    assert "fits with max_model_len" in plan.reason
    works = int(plan.reason.rsplit("tp ", 1)[1].split()[0])
    assert size("meta-llama/Llama-3.1-70B", "H100", "vllm-0.33", tp=works).fits
    assert not size("meta-llama/Llama-3.1-70B", "H100", "vllm-0.33", tp=works // 2).fits


def test_too_long_a_context_names_the_longest_that_starts() -> None:
    plan = size("Qwen/Qwen3-32B", "H100", "vllm-0.11", max_model_len=32000)
    assert not plan.fits
    assert plan.reason is not None
    assert plan.reason.startswith("max_model_len 32000 is too long")
    longest = int(plan.reason.split("set max_model_len to ")[1].split(" ")[0])
    assert size("Qwen/Qwen3-32B", "H100", "vllm-0.11", max_model_len=longest).fits
    assert not size("Qwen/Qwen3-32B", "H100", "vllm-0.11", max_model_len=longest + 17).fits, "and the null block"
    assert size("Qwen/Qwen3-32B", "H100", "vllm-0.11", max_model_len=16000).fits


def test_a_context_beyond_the_model_is_refused() -> None:
    plan = size("Qwen/Qwen3-8B", "H100", "vllm-0.33", max_model_len=50_000)
    assert not plan.fits
    assert plan.reason is not None
    assert "40960" in plan.reason


@pytest.mark.parametrize(
    ("model", "tp", "fmt", "why"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 8, None, "28 attention heads"),
        ("microsoft/phi-4", 4, None, "10 KV heads"),
        ("Qwen/Qwen3-30B-A3B", 4, "fp8_block", "128-wide fp8 blocks"),
    ],
)
def test_impossible_sharding_names_the_sizes_that_work(model: str, tp: int, fmt: str | None, why: str) -> None:
    plan = size(model, "H100", "vllm-0.33", tp=tp, weight_dtype=fmt)
    assert not plan.fits
    assert plan.kv_blocks == 0
    assert plan.reason is not None
    assert why in plan.reason
    assert "choose one of 1, " in plan.reason


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "options"),
    [  # public reports of servers that would not start
        (
            "Qwen/Qwen2.5-7B-Instruct-AWQ",
            "RTX 4060",
            "vllm-0.7",
            {"max_num_seqs": 256, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.7, "max_model_len": 4096},
        ),
        ("openai/gpt-oss-120b", "H100", "vllm-0.10.1", LONG),
        ("openai/gpt-oss-120b", "H100", "vllm-0.11.0", LONG | {"gpu_memory_utilization": 0.95}),
        ("openai/gpt-oss-120b", "H100", "vllm-0.14.1", LONG),
        (
            "Qwen/Qwen2.5-VL-72B-Instruct",
            "A100-40GB",
            "vllm-0.8.3",
            {"tp": 4, "max_model_len": 128000, "gpu_memory_utilization": 0.95},
        ),
        ("Qwen/Qwen3-32B", "H100", "vllm-0.11", {"max_model_len": 32000}),
    ],
)
def test_servers_that_fail_to_start_do_not_fit(model: str, gpu: str, engine: str, options: dict[str, Any]) -> None:
    plan = size(model, gpu, engine, **options)
    assert not plan.fits
    assert plan.reason


def test_more_memory_and_more_ranks_never_hold_less() -> None:
    small = size("Qwen/Qwen3-32B", "H100", "vllm-0.33", tp=2)
    assert size("Qwen/Qwen3-32B", "H200", "vllm-0.33", tp=2).kv_tokens > small.kv_tokens
    assert size("Qwen/Qwen3-32B", "H100", "vllm-0.33", tp=4).kv_tokens > small.kv_tokens
    assert size("Qwen/Qwen3-32B", "H100", "vllm-0.33", tp=2, gpu_memory_utilization=0.95).kv_tokens > small.kv_tokens


def test_sglang_keeps_its_reserve_and_trtllm_takes_a_share_of_what_is_left() -> None:
    sglang = size("Qwen/Qwen3-8B", "H100", "sglang", gpu_memory_utilization=0.85)
    free = sglang.total_gib - sglang.non_torch_gib
    assert sglang.kv_gib == pytest.approx(0.85 * free - sglang.weights_gib)
    trt = size("Qwen/Qwen3-8B", "H100", "trtllm", gpu_memory_utilization=0.9)
    left = trt.total_gib - trt.weights_gib - trt.activation_gib - trt.non_torch_gib
    assert trt.kv_gib == pytest.approx(0.9 * left)
    assert any("not checked" in note for note in trt.notes)
    tgi = size("Qwen/Qwen3-8B", "H100", "tgi-v3", gpu_memory_utilization=1.0)
    assert tgi.kv_gib == pytest.approx(
        0.95 * (tgi.total_gib - tgi.weights_gib - tgi.activation_gib - tgi.non_torch_gib)
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tp", 0),
        ("max_num_seqs", 0),
        ("max_model_len", -1),
        ("block_size", 0),
        ("gpu_memory_utilization", 1.2),
        ("gpu_memory_utilization", 0.0),
    ],
)
def test_knobs_out_of_range_name_themselves(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=name) as caught:
        size("Qwen/Qwen3-8B", "H100", "vllm-0.33", **{name: value})
    assert caught.value.errors[0].field == name


def test_answer_has_the_stable_names() -> None:
    answer = memory_answer(size("Qwen/Qwen3-8B", "H100", "vllm-0.33"))
    stable = {
        "kv_blocks", "kv_tokens", "kv_gib", "weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib",
        "total_gib", "max_concurrency", "fits", "reason",
    }  # fmt: skip
    assert stable <= answer.keys()
    assert answer["fits"] is True
    assert answer["reason"] is None
    assert answer["total_gib"] == 79.19


def test_old_cards_are_told_to_use_half() -> None:
    plan = size("Qwen/Qwen3-0.6B", "T4", "vllm-0.33", **AMPERE)
    assert plan.fits
    assert any("no bf16" in note for note in plan.notes)


@pytest.mark.parametrize("gpu", ["TPU-v6e", "Gaudi3", "Trainium2", "MI300X"])
def test_other_makers_are_said_to_be_unchecked(gpu: str) -> None:
    vendor = CATALOGUE.gpu(gpu).vendor
    notes = size("meta-llama/Llama-3.1-8B", gpu, "vllm-0.33").notes
    assert any(f"not checked on {vendor}" in note for note in notes)
    assert not any("not checked on" in note for note in size("meta-llama/Llama-3.1-8B", "L4", "vllm-0.33").notes)


@pytest.mark.parametrize("engine", ["vllm-0.33", "vllm-0.11", "sglang-0.5.20", "trtllm-1.3.0", "tgi-3.3"])
def test_what_is_said_to_be_needed_is_the_sum_of_its_parts_and_too_much(engine: str) -> None:
    plan = size("meta-llama/Llama-3.1-70B", "H100", engine)
    said = re.search(
        r"weights (\S+), activations (\S+) and overheads need (\S+) GiB of the (\S+) GiB", plan.reason or ""
    )
    assert said is not None, plan.reason
    weights, activations, needed, allowed = map(float, said.groups())
    assert weights + activations < needed
    assert allowed < needed
    assert allowed <= plan.total_gib + 0.01
