"""Cache layouts: bytes per token, groups of layers, blocks per request."""

import pytest

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.kv import KvLayout, attention_token_bytes, group_size, lay_out
from replay.hardware.versions import parse_engine_version

MODELS = shipped_catalogue()


def layout(
    key: str, tp: int = 1, kv: str = "bf16", engine: str = "vllm-0.19", tokens: int = 8192, prefix: bool = True
) -> KvLayout:
    return lay_out(
        MODELS.model(key),
        tp=tp,
        kv_dtype=kv,
        block_size=16,
        engine=parse_engine_version(engine),
        max_num_batched_tokens=tokens,
        prefix_caching=prefix,
    )


@pytest.mark.parametrize(
    ("key", "tp", "kv", "per_token"),
    [
        ("meta-llama/Llama-3.1-8B", 1, "bf16", 131072),
        ("meta-llama/Llama-3.1-70B", 1, "bf16", 327680),
        ("meta-llama/Llama-3.1-70B", 4, "bf16", 81920),
        ("meta-llama/Llama-3.1-70B", 8, "bf16", 40960),
        ("meta-llama/Llama-3.1-70B", 16, "bf16", 40960),  # eight KV heads: replicated, not split further
        ("meta-llama/Llama-3.1-70B", 8, "fp8", 20480),
        ("deepseek-ai/DeepSeek-V3", 1, "bf16", 61 * 1152),
        ("deepseek-ai/DeepSeek-V3", 8, "bf16", 61 * 1152),  # MLA is replicated on every rank
        ("moonshotai/Kimi-VL-A3B-Instruct", 2, "bf16", 31104),
        ("facebook/opt-6.7b", 1, "bf16", 32 * 2 * 4096 * 2),
        ("tiiuae/falcon-7b", 1, "bf16", 32 * 2 * 64 * 2),
    ],
)
def test_bytes_per_token(key: str, tp: int, kv: str, per_token: int) -> None:
    plain = layout(key, tp, kv)
    assert plain.bytes_per_token == per_token
    assert plain.block_bytes == 16 * per_token
    assert plain.group_count == 1
    assert plain.blocks(17) == 2


def test_sparse_attention_keeps_index_keys_and_has_its_own_fp8_layout() -> None:
    model = MODELS.model("deepseek-ai/DeepSeek-V3.2")
    assert attention_token_bytes(model, 8, "bf16") == 1152 + 132
    assert attention_token_bytes(model, 8, "fp8") == 656 + 132


@pytest.mark.parametrize(
    ("first", "second", "size"), [(13, 13, 13), (5, 29, 5), (10, 52, 10), (12, 36, 12), (10, 14, 14)]
)
def test_group_size(first: int, second: int, size: int) -> None:
    assert group_size(first, second) == size


@pytest.mark.parametrize(
    ("key", "groups"),
    [
        ("google/gemma-2-2b-it", 2),
        ("google/gemma-3-4b-it", 7),
        ("google/gemma-3-27b-it", 7),
        ("openai/gpt-oss-120b", 2),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 4),
    ],
)
def test_mixed_models_are_cut_into_groups(key: str, groups: int) -> None:
    assert layout(key).group_count == groups


def test_window_groups_stop_growing() -> None:
    # gpt-oss at 131072: 8192 blocks in full, and ceil((127 + batch) / 16) + 1 in the window group.
    assert layout("openai/gpt-oss-120b", engine="vllm-0.11").blocks(131072) == 8192 + 521
    assert layout("openai/gpt-oss-120b", engine="vllm-0.33").blocks(131072) == 8192 + 1033
    # Chunked-local attention keeps no spare block.
    llama4 = layout("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert llama4.blocks(100_000) == 6250 + 3 * 1024


def test_windows_save_nothing_where_the_release_stores_them_in_full() -> None:
    assert layout("openai/gpt-oss-120b", engine="vllm-0.8").group_count == 1
    assert layout("meta-llama/Llama-4-Scout-17B-16E-Instruct", engine="vllm-0.15").group_count == 1
    whole = layout("mistralai/Mistral-7B-v0.1")
    assert whole.group_count == 1
    assert whole.blocks(32768) == (4095 + 8192 + 15) // 16 + 1


@pytest.mark.parametrize(
    ("key", "tp", "kv", "engine", "block", "needed", "tokens"),
    [  # block size, blocks of one request of that length; as start-up logs show them
        ("Qwen/Qwen3.5-27B", 1, "bf16", "vllm-0.19", 784, 45, 32768),
        ("Qwen/Qwen3.6-35B-A3B", 1, "fp8", "vllm-0.24", 2096, 69, 131072),
        ("Qwen/Qwen3.8-27B", 2, "fp8", "vllm-0.24", 1568, 90, 131072),
    ],
)
def test_state_layers_enlarge_the_attention_block(
    key: str, tp: int, kv: str, engine: str, block: int, needed: int, tokens: int
) -> None:
    hybrid = layout(key, tp, kv, engine)
    assert hybrid.block_tokens == block
    assert hybrid.blocks(tokens) == needed


def test_layers_of_different_width_share_pages() -> None:
    # Gemma-4 31B: full layers of 4 x 512 take 32-token blocks beside windows of 16 x 256.
    mixed = layout("google/gemma-4-31b-it", engine="vllm-0.24")
    assert [group.block_tokens for group in mixed.groups] == [32, 16]
    pool = int(64.68 * 2**30) // mixed.block_bytes
    assert pool / mixed.blocks(262144) * 262144 == pytest.approx(626949, rel=1e-4)


def test_unknown_state_is_refused() -> None:
    model = MODELS.model("Qwen/Qwen3.5-27B").model_copy(update={"linear_value_heads": None})
    with pytest.raises(SpecError, match="recurrent state") as caught:
        lay_out(
            model,
            tp=1,
            kv_dtype="bf16",
            block_size=16,
            engine=parse_engine_version("vllm-0.33"),
            max_num_batched_tokens=8192,
            prefix_caching=True,
        )
    assert caught.value.code == "memory.layout"
