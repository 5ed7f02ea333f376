"""Weights of one rank: parameter counts, sharding, allocator rounding."""

import pytest

from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.versions import parse_engine_version
from replay.hardware.weights import GIB, MIB, allocated, size_weights

ENGINE = parse_engine_version("vllm-0.19")
MODELS = shipped_catalogue()


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 512),
        (512, 512),
        (513, 1024),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),  # a tail of exactly 1 MiB stays with the tensor
        (11 * MIB - 512, 11 * MIB - 512),  # a longer one is split off
        (9 * MIB + 512, 9 * MIB + 512),  # below 10 MiB segments are shared
    ],
)
def test_allocator_rounding(size: int, expected: int) -> None:
    assert allocated(size) == expected


@pytest.mark.parametrize(
    ("key", "billions"),
    [
        ("meta-llama/Llama-3.1-8B", 8.030),
        ("meta-llama/Llama-3.1-70B", 70.554),
        ("openai/gpt-oss-120b", 116.83),
        ("mistralai/Mixtral-8x7B-v0.1", 46.703),
        ("Qwen/Qwen3-235B-A22B", 235.094),
        ("google/gemma-3-27b-it", 27.009),
        ("facebook/opt-6.7b", 6.658),
    ],
)
def test_sixteen_bit_weights_hold_the_published_parameter_count(key: str, billions: float) -> None:
    weights = size_weights(MODELS.model(key), 1, "bf16", ENGINE)
    assert (weights.total - weights.rotary - weights.vision) / 2e9 == pytest.approx(billions, rel=2e-3)


def test_mla_keeps_absorbed_copies_beside_the_published_weights() -> None:
    weights = size_weights(MODELS.model("deepseek-ai/DeepSeek-V3"), 1, "bf16", ENGINE)
    absorbed = 61 * 128 * 512 * (128 + 128)
    assert (weights.total - weights.rotary) / 2e9 == pytest.approx(671.03 + absorbed / 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("key", "fmt", "tp", "gib"),
    [  # as public start-up logs print them
        ("Qwen/Qwen3-8B", "bf16", 1, 15.27),
        ("Qwen/Qwen2.5-7B-Instruct", "bf16", 1, 14.25),
        ("Qwen/Qwen2.5-7B-Instruct", "bf16", 4, 3.55),
        ("Qwen/Qwen3-30B-A3B", "bf16", 1, 56.88),
        ("google/gemma-3-12b-it", "bf16", 1, 23.31),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "bf16", 4, 53.12),
        ("meta-llama/Llama-3.3-70B-Instruct", "fp8", 2, 33.88),
        ("meta-llama/Llama-3.3-70B-Instruct", "int8", 4, 16.96),
        ("meta-llama/Llama-3.1-8B", "int8", 1, 8.49),
        ("Qwen/Qwen2.5-7B-Instruct", "int4", 1, 5.20),
    ],
)
def test_weights_match_start_up_logs(key: str, fmt: str, tp: int, gib: float) -> None:
    assert size_weights(MODELS.model(key), tp, fmt, ENGINE).total / GIB == pytest.approx(gib, abs=0.016)


def test_mxfp4_padding_follows_the_kernels_of_the_release() -> None:
    model = MODELS.model("openai/gpt-oss-120b")
    marlin = size_weights(model, 1, "mxfp4", parse_engine_version("vllm-0.10.1")).total / GIB
    triton = size_weights(model, 1, "mxfp4", parse_engine_version("vllm-0.14.1")).total / GIB
    assert marlin == pytest.approx(65.97, abs=0.05)
    assert triton == pytest.approx(64.38, abs=0.25)


def test_quantising_leaves_embeddings_alone_and_kv_heads_replicate() -> None:
    model = MODELS.model("Qwen/Qwen2.5-7B-Instruct")
    assert size_weights(model, 1, "int4", ENGINE).embeddings == size_weights(model, 1, "bf16", ENGINE).embeddings
    # 4 KV heads on 7 ranks would not split; on 28 heads tp 28 keeps one KV head a rank.
    one_head = size_weights(model, 28, "bf16", ENGINE).attention
    assert one_head > size_weights(model, 1, "bf16", ENGINE).attention / 28


def test_parts_left_at_sixteen_bit_stay_so() -> None:
    model = MODELS.model("openai/gpt-oss-20b")
    kept = size_weights(model, 1, "mxfp4", ENGINE).attention
    assert kept == size_weights(model, 1, "bf16", ENGINE).attention
    assert size_weights(model.model_copy(update={"unquantized": ()}), 1, "mxfp4", ENGINE).attention < kept / 3
