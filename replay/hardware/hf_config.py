"""A ``ModelSpec`` from a Hugging Face ``config.json``: dense, expert, MLA, windowed and gated-delta models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from replay.faults import plain_faults
from replay.hardware.entries import ModelSpec
from replay.hardware.hf_fields import config_error, find_bool, find_int, find_section, need_int, text_section
from replay.hardware.hf_layers import layer_kinds, rotary
from replay.hardware.hf_quant import published_format

_TIED_BY_DEFAULT = ("gemma", "cohere", "opt", "gpt2", "falcon", "bloom", "gpt_bigcode", "starcoder2", "mpt")
_UNGATED = ("opt", "gpt2", "falcon", "bloom", "gpt_bigcode", "starcoder2", "mpt", "phi", "gpt_neox", "nemotron")
_BIASED_QKV = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "gpt_oss", "opt", "gpt2", "starcoder2", "phi", "qwen")
_KNOWN = (
    "llama", "llama4", "mistral", "mistral3", "mixtral", "qwen2", "qwen3", "gemma", "phi", "phi3", "deepseek_v2",
    "deepseek_v3", "gpt_oss", "granite", "granitemoe", "olmo", "cohere", "falcon", "opt", "starcoder2", "glm", "exaone",
    "internlm", "minimax_m2", "kimi", "stablelm", "smollm", "nemotron", "ernie", "hunyuan", "seed_oss", "bloom", "gpt",
)  # fmt: skip
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num")
_WIDTH = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "intermediate_dim")
_LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "model_max_length",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k", "top_k_experts")


@dataclass(frozen=True)
class _Experts:
    count: int = 0
    top_k: int = 0
    shared: int = 0
    width: int = 0
    shared_width: int = 0
    layers: int = 0


def model_from_config(config: Mapping[str, Any], key: str, source: str) -> ModelSpec:
    """The architecture of a parsed ``config.json`` under the catalogue key ``key``.

    Of a multimodal config the language model is read, and the vision tower's size is estimated from its shape. An
    unfamiliar ``model_type`` with all fields it needs is accepted with a note.

    Raises:
        SpecError: ``model.config``, naming the field and the cure: missing or implausible values, layers whose cache
            cannot be sized (Mamba and other state models), quantisation methods that cannot be sized.
    """
    if not isinstance(config, Mapping):
        raise config_error("config", f"is {type(config).__name__}", "give the JSON object of a config.json")
    text = text_section(config)
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    layers = need_int(text, _LAYERS, "layers")
    hidden = need_int(text, _HIDDEN, "width")
    heads = need_int(text, _HEADS, "heads")
    kv_heads = _kv_heads(text, heads)
    mla = find_int(text, ("kv_lora_rank",), "width") is not None
    head_dim = _head_dim(text, hidden, heads, mla=mla)
    stated_length = need_int(text, _LENGTH, "tokens")
    tables = rotary({**text, "model_type": model_type}, head_dim, stated_length)
    kinds = layer_kinds({**text, "model_type": model_type}, layers, stated_length)
    experts = _experts(text, model_type, layers)
    fmt, unquantized = published_format({**config, **text})
    architectures = config.get("architectures") or [""]
    notes = _notes(config, model_type)
    vision = _vision_params_b(config)
    values: dict[str, Any] = {
        "key": key,
        "family": model_type,
        "architecture": str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        "num_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": _dense_width(text, model_type, hidden, experts, layers),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": need_int(text, ("vocab_size", "padded_vocab_size"), "tokens"),
        "tie_word_embeddings": _tied(config, text, model_type),
        "mlp_gated": not model_type.startswith(_UNGATED) or model_type.startswith(("phi3", "phi4")),
        "attention_bias": find_bool(text, "attention_bias", default=model_type.startswith(_BIASED_QKV))
        and not model_type.startswith(("qwen3", "phi3")),
        "attention_kind": _attention_kind(heads, kv_heads, mla=mla),
        "num_experts": experts.count,
        "experts_per_tok": experts.top_k,
        "shared_experts": experts.shared,
        "moe_intermediate_size": experts.width,
        "shared_expert_intermediate_size": experts.shared_width,
        "num_moe_layers": experts.layers,
        "sliding_window": kinds.sliding_window,
        "window_kind": kinds.window_kind,
        "num_full_attn_layers": kinds.full,
        "num_window_layers": kinds.window,
        "num_linear_layers": kinds.linear,
        "rotary_dim": tables.dim if not mla else None,
        "rotary_rows": tables.rows,
        "learned_positions": stated_length + 2 if tables.dim == 0 and model_type in {"opt", "gpt2"} else 0,
        "expert_bias": model_type == "gpt_oss",
        "vision_params_b": vision,
        "unquantized": unquantized,
        "weight_dtype": fmt,
        "max_position": tables.max_position,
        "source": source,
        "notes": "; ".join(notes),
    }
    values.update(_mla_fields(text) if mla else {})
    values.update(_linear_fields(text) if kinds.linear else {})
    values.update(_global_heads(text) if kinds.window else {})
    try:
        return ModelSpec.model_validate(values)
    except ValidationError as error:
        first = plain_faults(error.errors())[0]
        raise config_error(first.field or "config", first.detail, "correct this field") from error


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    kv_heads = find_int(text, _KV_HEADS, "heads")
    if kv_heads is None:
        kv_heads = 1 if text.get("multi_query") is True and not text.get("new_decoder_architecture") else heads
    if kv_heads > heads or heads % kv_heads:
        cure = f"give a divisor of the {heads} attention heads"
        raise config_error("num_key_value_heads", f"{kv_heads} does not divide {heads} heads", cure)
    return kv_heads


def _head_dim(text: Mapping[str, Any], hidden: int, heads: int, *, mla: bool) -> int:
    if mla:
        nope = need_int(text, ("qk_nope_head_dim",), "width")
        return nope + need_int(text, ("qk_rope_head_dim",), "width")
    stated = find_int(text, ("head_dim", "attention_head_dim", "kv_channels"), "width")
    if stated is not None:
        return stated
    if hidden % heads:
        raise config_error("head_dim", f"is missing and {hidden} does not divide by {heads} heads", "add head_dim")
    return hidden // heads


def _dense_width(text: Mapping[str, Any], model_type: str, hidden: int, experts: _Experts, layers: int) -> int:
    dense_layers = experts.layers < layers
    if model_type.startswith("llama4"):
        return find_int(text, ("intermediate_size_mlp", "intermediate_size"), "width") or 0
    width = find_int(text, ("dense_intermediate_size", *_WIDTH), "width")
    if width is not None:
        return width
    if model_type.startswith(("gpt2", "falcon", "bloom", "gpt_bigcode", "mpt")):
        return 4 * hidden
    return need_int(text, _WIDTH, "width") if dense_layers else 0


def _experts(text: Mapping[str, Any], model_type: str, layers: int) -> _Experts:
    count = find_int(text, _EXPERTS, "count", least=0)
    if not count or count == 1:
        return _Experts()
    top_k = need_int(text, _TOP_K, "count")
    if top_k > count:
        raise config_error("num_experts_per_tok", f"{top_k} of {count} experts", f"give a number up to {count}")
    width = need_int(text, ("moe_intermediate_size", "expert_intermediate_size", *_WIDTH), "width")
    shared = find_int(text, ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), "count", least=0) or 0
    shared_width = find_int(text, ("shared_expert_intermediate_size", "shared_intermediate_size"), "width", least=0)
    if shared_width is None:
        shared_width = shared * width
    if model_type.startswith("llama4"):
        shared, shared_width = 1, width
    if model_type.startswith("gemma4"):  # its dense MLP runs beside the experts in every layer
        shared, shared_width = 1, need_int(text, ("intermediate_size",), "width")
    shared = shared or (1 if shared_width else 0)
    return _Experts(count, top_k, shared, width, shared_width, _moe_layers(text, layers))


def _moe_layers(text: Mapping[str, Any], layers: int) -> int:
    """How many layers hold experts, by whichever of the patterns in use the config states."""
    listed = text.get("moe_layers")
    if isinstance(listed, list):
        return len(listed)
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list):
        return sum(1 for flag in frequency[:layers] if flag)
    first_dense = find_int(text, ("first_k_dense_replace", "moe_layer_start_index"), "layers", least=0) or 0
    step = find_int(
        text, ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "moe_every_n_layers"), "layers"
    )
    dense_only = text.get("mlp_only_layers")
    dense = set(dense_only) if isinstance(dense_only, list) else set()
    if step and text.get("first_k_dense_replace") is None:
        return sum(1 for layer in range(layers) if (layer + 1) % step == 0 and layer not in dense)
    return max(layers - first_dense - len(dense), 0)


def _tied(config: Mapping[str, Any], text: Mapping[str, Any], model_type: str) -> bool:
    default = model_type.startswith(_TIED_BY_DEFAULT)
    outer = find_bool(config, "tie_word_embeddings", default=default)
    return find_bool(text, "tie_word_embeddings", default=outer)


def _attention_kind(heads: int, kv_heads: int, *, mla: bool) -> Literal["MHA", "GQA", "MQA", "MLA"]:
    if mla:
        return "MLA"
    if kv_heads == heads:
        return "MHA"
    return "MQA" if kv_heads == 1 else "GQA"


def _mla_fields(text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "q_lora_rank": find_int(text, ("q_lora_rank",), "width"),
        "kv_lora_rank": need_int(text, ("kv_lora_rank",), "width"),
        "qk_nope_head_dim": need_int(text, ("qk_nope_head_dim",), "width"),
        "qk_rope_head_dim": need_int(text, ("qk_rope_head_dim",), "width"),
        "v_head_dim": need_int(text, ("v_head_dim",), "width"),
        "indexer_heads": find_int(text, ("index_n_heads",), "heads"),
        "indexer_head_dim": find_int(text, ("index_head_dim",), "width"),
    }


def _linear_fields(text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "linear_key_heads": need_int(text, ("linear_num_key_heads",), "heads"),
        "linear_value_heads": need_int(text, ("linear_num_value_heads",), "heads"),
        "linear_key_head_dim": need_int(text, ("linear_key_head_dim",), "width"),
        "linear_value_head_dim": need_int(text, ("linear_value_head_dim",), "width"),
        "linear_conv_kernel": find_int(text, ("linear_conv_kernel_dim",), "width") or 4,
        "attention_output_gate": find_bool(text, "attn_output_gate", default=True),
    }


def _global_heads(text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "full_attn_head_dim": find_int(text, ("global_head_dim",), "width"),
        "full_attn_key_value_heads": find_int(text, ("num_global_key_value_heads",), "heads"),
    }


def _vision_params_b(config: Mapping[str, Any]) -> float | None:
    """Parameters of a vision transformer from its shape: attention, MLP and patch embedding of each layer."""
    vision = find_section(config, "vision_config")
    layers = find_int(vision, ("num_hidden_layers", "depth", "num_layers"), "layers")
    hidden = find_int(vision, ("hidden_size", "embed_dim", "width"), "width")
    if layers is None or hidden is None:
        return None
    width = find_int(vision, ("intermediate_size",), "width") or 4 * hidden
    patch = find_int(vision, ("patch_size",), "width") or 14
    matrices = 3 if str(vision.get("hidden_act") or "") in {"silu", "swiglu"} else 2
    return round((layers * (4 * hidden**2 + matrices * hidden * width) + 3 * patch**2 * hidden) / 1e9, 4)


def _notes(config: Mapping[str, Any], model_type: str) -> list[str]:
    notes = []
    if not model_type.startswith(_KNOWN):
        notes.append(f"model_type {model_type or '(none)'} is not one that was checked: sized as a plain transformer")
    if config.get("vision_config"):
        notes.append("vision tower estimated from its shape, projector not counted")
    return notes
