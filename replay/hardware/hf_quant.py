"""The weight format that a Hugging Face config declares, and which parts its quantisation leaves in 16 bit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from replay.hardware.hf_fields import config_error, find_section

_PARTS = (
    ("attention", re.compile(r"self_attn|attention|q_proj|qkv")),
    ("shared_experts", re.compile(r"shared_expert")),
    ("experts", re.compile(r"(?<!shared_)experts")),
    ("dense_mlp", re.compile(r"mlp\W+(?:gate_(?:up_)?proj|gate\||up_proj|down_proj)")),
)
_NOT_WEIGHTS = re.compile(r"vision|visual|norm|bias|indexer|gate$")
_CURE = "give a format of bf16, fp8, int8, int4 (AWQ, GPTQ, compressed-tensors), mxfp4 or nvfp4"


def published_format(config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The canonical weight format (see ``dtypes``) and the parts kept in 16 bit.

    Raises:
        SpecError: a quantisation method that cannot be sized.
    """
    quantisation = find_section(config, "quantization_config") or find_section(config, "compression_config")
    if not quantisation:
        return "bf16", ()  # engines load float32 checkpoints in 16 bit unless told otherwise (vLLM: dtype auto)
    method = str(quantisation.get("quant_method") or "").lower()
    ignored = quantisation.get("ignore") or quantisation.get("modules_to_not_convert") or ()
    return _format(method, quantisation), tuple(_kept(ignored))


def _format(method: str, quantisation: Mapping[str, Any]) -> str:
    if method in {"fp8", "fbgemm_fp8"}:
        return "fp8_block" if quantisation.get("weight_block_size") else "fp8"
    if method in {"awq", "gptq", "auto-round", "awq_marlin", "gptq_marlin"}:
        return _by_bits(quantisation.get("bits", 4), floating=False, weight_only=True)
    if method == "mxfp4":
        return "mxfp4"
    if method == "bitsandbytes":
        return "w8a16" if quantisation.get("load_in_8bit") else "int4"
    if method == "modelopt":
        return "fp8" if "fp8" in str(quantisation.get("quant_algo", "")).lower() else "nvfp4"
    if method == "compressed-tensors":
        return _compressed(quantisation)
    raise config_error("quantization_config.quant_method", f"{method!r} cannot be sized", _CURE)


def _compressed(quantisation: Mapping[str, Any]) -> str:
    for group in find_section(quantisation, "config_groups").values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            weight_only = not group.get("input_activations")
            if "nvfp4" in str(quantisation.get("format") or group.get("format") or ""):
                return "nvfp4a16" if weight_only else "nvfp4"
            if weights.get("type") == "float" and weights.get("strategy") == "block":
                return "fp8_block"
            return _by_bits(weights.get("num_bits"), floating=weights.get("type") == "float", weight_only=weight_only)
    raise config_error("quantization_config.config_groups", "has no weights entry", _CURE)


def _by_bits(bits: object, *, floating: bool, weight_only: bool) -> str:
    formats = {
        (8, True): "fp8",
        (8, False): "w8a16" if weight_only else "int8",
        (4, False): "int4",
        (4, True): "nvfp4a16" if weight_only else "nvfp4",
    }
    if not isinstance(bits, int) or (bits, floating) not in formats:
        raise config_error("quantization_config", f"has weights of {bits!r} bits", _CURE)
    return formats[bits, floating]


def _kept(ignored: object) -> Iterator[str]:
    """Parts named by the ignore list. Single layers named one by one count when a pattern covers many of them."""
    if not isinstance(ignored, list | tuple):
        return
    names = [str(name) for name in ignored]
    for part, pattern in _PARTS:
        hits = [name for name in names if pattern.search(name) and not _NOT_WEIGHTS.search(name)]
        if len(hits) >= 8 or any("*" in hit or hit.startswith("re:") for hit in hits):
            yield part
