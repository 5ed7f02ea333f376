"""Which attention each layer of a Hugging Face config has, and the shape of its rotary tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from replay.hardware.hf_fields import config_error, find_bool, find_int, find_number, find_section

_FULL = {"full_attention", "attention", "global", "full"}
_WINDOW = {"sliding_attention", "local", "sliding", "sliding_window"}
_CHUNKED = {"chunked_attention"}
_LINEAR = {"linear_attention"}
_SPARSE = {"deepseek_sparse_attention"}
_UNSIZED_FIELDS = (
    "hybrid_override_pattern", "layers_block_type", "mamba_d_state", "mamba_num_heads", "ssm_cfg", "ssm_state_size",
    "state_size", "linear_attn_config", "attn_layer_period", "time_mix_extra_dim", "lru_width", "conv_L_cache",
    "layer_group_size", "compress_ratios", "hybrid_layer_pattern", "block_configs", "sparse_attention_config",
    "num_kv_shared_layers", "hidden_size_per_layer_input", "cross_attention_layers",
)  # fmt: skip
_CURE = "choose a model of full or windowed attention layers, or of gated-delta layers with their linear_* fields"
_GATED_DELTA_FIELDS = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")


@dataclass(frozen=True)
class LayerKinds:
    """Counts of layers by attention, with the window and its kind where there is one."""

    full: int
    window: int = 0
    linear: int = 0
    sliding_window: int | None = None
    window_kind: Literal["sliding", "chunked"] = "sliding"


@dataclass(frozen=True)
class Rotary:
    """Rotary width (``None``: whole head), rows of all tables, and the context length after scaling."""

    dim: int | None
    rows: int | None
    max_position: int


def layer_kinds(config: Mapping[str, Any], layers: int, max_position: int) -> LayerKinds:
    """Reads ``layer_types`` where the config has it, else the pattern that its architecture implies.

    Raises:
        SpecError: layers whose cache cannot be sized (Mamba, lightning attention and other state layers).
    """
    model_type = str(config.get("model_type") or "")
    for name in _UNSIZED_FIELDS:
        if config.get(name):
            raise config_error(name, f"describes layers of {model_type or 'this model'} that cannot be sized", _CURE)
    types = config.get("layer_types")
    if types is not None:
        return _from_types(config, types, layers, max_position)
    listed = config.get("attn_type_list")
    if isinstance(listed, list) and any(kind != 1 for kind in listed):
        raise config_error("attn_type_list", "has lightning-attention layers, which cannot be sized", _CURE)
    if config.get("linear_num_value_heads"):
        interval = find_int(config, ("full_attention_interval",), "layers") or 4
        return LayerKinds(full=layers // interval, linear=layers - layers // interval)
    if config.get("attention_chunk_size"):
        interval = find_int(config, ("no_rope_layer_interval",), "layers") or 4
        chunk = find_int(config, ("attention_chunk_size",), "tokens")
        return LayerKinds(layers // interval, layers - layers // interval, 0, chunk, "chunked")
    window = find_int(config, ("sliding_window", "sliding_window_size"), "tokens")
    if window is None or window >= max_position or not find_bool(config, "use_sliding_window", default=True):
        return LayerKinds(full=layers)
    every = _pattern(config, model_type)
    if every is None:
        return LayerKinds(0, layers, 0, window)
    return LayerKinds(layers // every, layers - layers // every, 0, window)


def _pattern(config: Mapping[str, Any], model_type: str) -> int | None:
    """Every how many layers one has full attention; ``None`` where all have the window."""
    stated = find_int(config, ("sliding_window_pattern", "_sliding_window_pattern"), "layers")
    if stated:
        return stated
    if model_type.startswith("gemma3"):
        return 6
    if model_type.startswith("cohere2"):
        return 4
    if model_type.startswith(("gemma2", "gpt_oss")):
        return 2
    return None


def _from_types(config: Mapping[str, Any], types: object, layers: int, max_position: int) -> LayerKinds:
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types):
        raise config_error("layer_types", "is not a list of names", "give one attention kind for each layer")
    if len(types) < layers:
        raise config_error("layer_types", f"has {len(types)} entries for {layers} layers", "give one for each layer")
    types = types[:layers]
    known = _FULL | _WINDOW | _CHUNKED | _LINEAR | (_SPARSE if config.get("index_head_dim") else set())
    unknown = sorted(set(types) - known)
    if unknown:
        raise config_error(
            "layer_types",
            f"has layers of kind {', '.join(unknown)}, whose cache cannot be sized",
            "choose a model of full, sliding, chunked or gated-delta layers",
        )
    linear = sum(kind in _LINEAR for kind in types)
    chunked = sum(kind in _CHUNKED for kind in types)
    sliding = sum(kind in _WINDOW for kind in types)
    if linear and not all(config.get(name) for name in _GATED_DELTA_FIELDS):
        missing = next(name for name in _GATED_DELTA_FIELDS if not config.get(name))
        raise config_error(missing, "is missing, and the state of linear_attention layers needs it", f"add {missing}")
    window = find_int(config, ("attention_chunk_size",) if chunked else ("sliding_window",), "tokens")
    if (sliding or chunked) and window is None:
        name = "attention_chunk_size" if chunked else "sliding_window"
        raise config_error(name, "is missing, but layer_types has windowed layers", f"add {name}")
    if window is not None and window >= max_position:
        sliding = chunked = 0
    full = layers - linear - chunked - sliding
    return LayerKinds(
        full, sliding + chunked, linear, window if sliding + chunked else None, "chunked" if chunked else "sliding"
    )


def rotary(config: Mapping[str, Any], head_dim: int, max_position: int) -> Rotary:
    """The rotary embedding's tables: linear and dynamic scaling lengthen them, some models keep two.

    ``max_position`` is the config's; YaRN multiplies the original length, linear and dynamic scaling the stated one, as
    vLLM derives the longest context.
    """
    model_type = str(config.get("model_type") or "")
    scaling = find_section(config, "rope_scaling") or find_section(config, "rope_parameters")
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    factor = find_number(scaling, "factor") or 1.0
    original = find_int(scaling, ("original_max_position_embeddings",), "tokens")
    share = find_number(config, "partial_rotary_factor") or find_number(scaling, "partial_rotary_factor")
    share = share or find_number(config, "rotary_pct")
    dim = round(head_dim * share) if share and share < 1 else None
    if config.get("alibi") is True or model_type in {"opt", "gpt2", "bloom", "mpt", "gpt_bigcode"}:
        return Rotary(0, None, max_position)
    length = max_position
    rows: int | None = None
    if model_type.startswith("gemma3"):
        rows = round(max_position * factor) + max_position if kind == "linear" else 2 * max_position
    elif kind in {"linear", "dynamic"}:
        length = rows = round(max_position * factor)
    elif kind == "yarn" and original:
        length = max(max_position, round(original * factor))
    elif kind in {"longrope", "su"}:
        rows = max_position + (original or find_int(config, ("original_max_position_embeddings",), "tokens") or 0)
    elif kind in {"mrope", "default"} and scaling.get("mrope_section"):
        rows = 4 * max_position
    return Rotary(dim, rows, length)
