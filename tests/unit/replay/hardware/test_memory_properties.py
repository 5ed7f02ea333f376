"""What holds for any plausible transformer: verdict, reason, breakdown and cures agree with each other."""

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import ModelSpec
from replay.hardware.hf_config import model_from_config
from replay.hardware.memory import MemoryPlan, size_memory

CATALOGUE = shipped_catalogue()
GPUS = st.sampled_from(sorted(CATALOGUE.gpus))
ENGINES = st.sampled_from(
    ["vllm-v0", "vllm-0.8", "vllm-0.15", "vllm-0.19", "vllm-0.24", "vllm-0.33", "sglang", "trtllm"]
)
FORMATS = st.sampled_from(["bf16", "fp8", "fp8_block", "int8", "int4", "mxfp4", "nvfp4"])


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Dense, expert and windowed models from 10 million to some hundred billion parameters."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 8, 10]))
    head_dim = draw(st.sampled_from([64, 96, 128, 256]))
    heads = kv_heads * draw(st.integers(1, 8))
    layers = draw(st.integers(2, 100))
    config: dict[str, Any] = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": draw(st.integers(4, 128)) * 128,
        "intermediate_size": draw(st.integers(4, 240)) * 128,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": draw(st.integers(1000, 260_000)),
        "max_position_embeddings": draw(st.sampled_from([2048, 8192, 40960, 131072])),
    }
    if draw(st.booleans()):
        config |= {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
    if draw(st.booleans()):
        pattern = draw(st.integers(1, 6))
        kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
        config |= {"sliding_window": 1024, "layer_types": kinds}
    return model_from_config(config, "drawn", "hypothesis")


def size(
    model: ModelSpec, gpu: str, engine: str, tp: int, fmt: str, length: int, utilisation: float = 0.9
) -> MemoryPlan:
    return size_memory(
        model,
        CATALOGUE.gpu(gpu),
        tp=tp,
        engine_version=engine,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=utilisation,
        max_model_len=min(length, model.max_position),
        weight_dtype=fmt,
    )


@settings(max_examples=150, deadline=None)
@given(models(), GPUS, ENGINES, st.sampled_from([1, 2, 4, 8]), FORMATS, st.integers(1, 131072))
def test_verdict_reason_and_breakdown_agree(
    model: ModelSpec, gpu: str, engine: str, tp: int, fmt: str, length: int
) -> None:
    plan = size(model, gpu, engine, tp, fmt, length)
    assert plan.fits == (plan.reason is None)
    assert plan.kv_tokens >= 0
    assert plan.kv_blocks >= 0
    if not plan.fits:
        return
    parts = (
        plan.kv_gib, plan.weights_gib, plan.activation_gib, plan.non_torch_gib, plan.cuda_graph_gib, plan.unused_gib
    )  # fmt: skip
    assert min(parts) >= 0
    assert abs(sum(parts) - plan.total_gib) < 1e-9
    assert plan.max_concurrency >= 1
    assert plan.shortfall_gib == 0
    assert plan.kv_blocks * plan.layout.block_bytes <= plan.kv_gib * 2**30 + 1


@settings(max_examples=60, deadline=None)
@given(models(), GPUS, st.sampled_from([1, 2, 4, 8]), FORMATS)
def test_cures_work(model: ModelSpec, gpu: str, tp: int, fmt: str) -> None:
    plan = size(model, gpu, "vllm-0.33", tp, fmt, model.max_position)
    if plan.reason is None:
        return
    for works, length in re.findall(r"tp (\d+) fits with max_model_len (\d+)", plan.reason):
        assert size(model, gpu, "vllm-0.33", int(works), fmt, int(length)).fits
    if "set max_model_len to " in plan.reason:
        longest = int(plan.reason.split("set max_model_len to ")[1].split(" ")[0])
        assert size(model, gpu, "vllm-0.33", tp, fmt, longest).fits
        assert not size(model, gpu, "vllm-0.33", tp, fmt, longest + 1 + plan.block_size).fits
    if "choose one of " in plan.reason:
        for good in plan.reason.rsplit("choose one of ", 1)[1].split(", "):
            answer = size(model, gpu, "vllm-0.33", int(good), fmt, 16)
            assert "impossible" not in (answer.reason or "")


@settings(max_examples=60, deadline=None)
@given(models(), FORMATS, st.floats(0.5, 0.9), st.floats(0.01, 0.1))
def test_more_budget_never_holds_less(model: ModelSpec, fmt: str, utilisation: float, more: float) -> None:
    small = size(model, "H200", "vllm-0.33", 1, fmt, 4096, utilisation)
    large = size(model, "H200", "vllm-0.33", 1, fmt, 4096, utilisation + more)
    assert large.kv_tokens >= small.kv_tokens
    assert large.fits or not small.fits
