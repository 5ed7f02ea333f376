"""Model specs from config.json files of the architectures in use, and refusals that name the field."""

from typing import Any

import pytest

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import ModelSpec
from replay.hardware.hf_config import model_from_config
from replay.hardware.memory import size_memory

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
QWEN_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "max_position_embeddings": 40960,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 201088, "max_position_embeddings": 131072,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "intermediate_size": 10240,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "max_position_embeddings": 131072, "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14},
}  # fmt: skip
QWEN_HYBRID: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 5120,
    "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 262144,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25,
}  # fmt: skip


def read(config: dict[str, Any], **changes: Any) -> ModelSpec:
    merged = {name: value for name, value in (config | changes).items() if value is not ...}
    return model_from_config(merged, "mine", "a test")


def same_shape(one: ModelSpec, other: ModelSpec) -> bool:
    described = {
        "key",
        "aliases",
        "family",
        "architecture",
        "source",
        "date",
        "notes",
        "total_params_b",
        "vision_peak_gib",
    }
    return one.model_dump(exclude=described) == other.model_dump(exclude=described)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (LLAMA, "meta-llama/Llama-3.1-8B"),
        (DEEPSEEK, "deepseek-ai/DeepSeek-V3"),
        (QWEN_MOE, "Qwen/Qwen3-30B-A3B"),
        (GPT_OSS, "openai/gpt-oss-20b"),
        (QWEN_HYBRID, "Qwen/Qwen3-Next-80B-A3B-Instruct"),
    ],
)
def test_a_config_reads_as_the_catalogue_has_it(config: dict[str, Any], key: str) -> None:
    spec, known = read(config), shipped_catalogue().models[key]
    assert spec.shared_experts == known.shared_experts
    assert same_shape(spec, known), {
        name: (getattr(spec, name), getattr(known, name))
        for name in ModelSpec.model_fields
        if getattr(spec, name) != getattr(known, name)
    }
    assert spec.key == "mine"
    assert spec.source == "a test"


def test_nested_text_configs_windows_and_vision_towers() -> None:
    spec = read(GEMMA3)
    known = shipped_catalogue().models["google/gemma-3-4b-it"]
    assert (spec.num_full_attn_layers, spec.num_window_layers, spec.sliding_window) == (5, 29, 1024)
    assert spec.tie_word_embeddings
    assert spec.rotary_rows == known.rotary_rows == 131072 * 9
    assert spec.max_position == 131072
    assert spec.vision_params_b == pytest.approx(0.41, abs=0.01)
    assert "vision" in spec.notes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "w8a16"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "int4"),
        ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4"),
        ({"torch_dtype": "float32"}, "bf16"),
        ({"torch_dtype": "float16"}, "bf16"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "w8a16"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": None}}}},
            "w8a16",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}}}},
            "int8",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}},
            "fp8",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}},
            "int4",
        ),
    ],
)  # fmt: skip
def test_weight_formats(changes: dict[str, Any], expected: str) -> None:
    assert read(LLAMA, **changes).weight_dtype == expected


def test_ignored_modules_stay_sixteen_bit() -> None:
    ignore = ["lm_head", "re:.*self_attn", "re:.*shared_expert.*"]
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}
    quantised = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore}
    assert read(DEEPSEEK, quantization_config=quantised).unquantized == ("attention", "shared_experts")
    norms = [f"model.layers.{i}.post_attention_layernorm" for i in range(61)]
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": norms}
    assert read(DEEPSEEK, quantization_config=block).unquantized == ()


@pytest.mark.parametrize(
    ("changes", "position", "rows"),
    [
        ({"rope_scaling": None}, 131072, None),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 524288, 524288),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072, None),
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 131072, 135168),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 131072, 524288),
    ],
)
def test_rotary_tables(changes: dict[str, Any], position: int, rows: int | None) -> None:
    spec = read(LLAMA, **changes)
    assert (spec.max_position, spec.rotary_rows) == (position, rows)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, (0, 32)),
        ({"model_type": "mistral", "sliding_window": None}, (32, 0)),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, (32, 0)),
        ({"model_type": "phi3", "sliding_window": 262144}, (32, 0)),
        ({"model_type": "gemma2", "sliding_window": 4096}, (16, 16)),
        ({"model_type": "cohere2", "sliding_window": 4096}, (8, 24)),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, (8, 24)),
    ],
)
def test_windows(changes: dict[str, Any], window: tuple[int, int]) -> None:
    spec = read(LLAMA, **changes)
    assert (spec.num_full_attn_layers, spec.num_window_layers) == window


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_hidden_layers": ...}, "num_hidden_layers"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"max_position_embeddings": ...}, "max_position_embeddings"),
        ({"intermediate_size": ...}, "intermediate_size"),
        ({"num_attention_heads": "32"}, "num_attention_heads"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"hidden_size": 4097}, "head_dim"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_key_value_heads": 64}, "num_key_value_heads"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window"),
        ({"layer_types": ["mamba"] * 32}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_num_key_heads"),
        ({"kv_lora_rank": 512}, "qk_nope_head_dim"),
        ({"quantization_config": {"quant_method": "exl2"}}, "quantization_config.quant_method"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "quantization_config"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"attn_type_list": [0, 1] * 16}, "attn_type_list"),
        ({"num_kv_shared_layers": 10}, "num_kv_shared_layers"),
    ],
)
def test_faults_name_the_field_and_the_cure(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(LLAMA, **changes)
    assert caught.value.code == "model.config"
    assert caught.value.errors[0].field == field
    assert caught.value.errors[0].cure


@pytest.mark.parametrize("config", [[], "text", 3, None])
def test_only_an_object_is_a_config(config: Any) -> None:
    with pytest.raises(SpecError):
        model_from_config(config, "mine", "a test")


def test_an_unfamiliar_architecture_with_all_fields_is_accepted_with_a_note() -> None:
    spec = read(LLAMA, model_type="brandnew", architectures=["BrandNewForCausalLM"])
    assert "brandnew" in spec.notes
    gpu = shipped_catalogue().gpu("H100")
    plan = size_memory(
        spec,
        gpu,
        tp=1,
        engine_version="vllm-0.33",
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.92,
        max_model_len=8192,
    )
    assert plan.fits
