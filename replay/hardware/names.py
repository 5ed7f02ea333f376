"""Spellings: how logs, clouds and hubs write GPU and model names, reduced to forms the catalogue can look up."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VENDOR_WORDS = {"nvidia", "amd", "intel", "google", "aws", "geforce", "tesla", "instinct", "gpu"}
_SIBLING_WORDS = {"instruct", "it", "pt", "chat", "base", "hf", "meta"}
"""Words that distinguish a tuned model from its base, which share an architecture."""
_QUANTISED = (
    (re.compile(r"[-.](?:quantized[.-])?w8a8(?:[-.].*)?$"), "int8"),
    (re.compile(r"[-.](?:quantized[.-])?w8a16(?:[-.].*)?$"), "w8a16"),
    (re.compile(r"[-.](?:quantized[.-])?w4a(?:16|8)(?:[-.].*)?$"), "int4"),
    (re.compile(r"-gptq-int8$"), "w8a16"),
    (re.compile(r"-(?:awq|gptq)(?:-(?:int4|4bit|marlin))*$"), "int4"),
    (re.compile(r"-(?:unsloth-)?bnb-4bit$|-(?:int4|4bit)(?:-awq|-gptq)?$"), "int4"),
    (re.compile(r"-int8$"), "int8"),
    (re.compile(r"-fp8-block$"), "fp8_block"),
    (re.compile(r"-fp8(?:[-_](?:dynamic|static|kv|tensor|per-?tensor|tensorwise))*$"), "fp8"),
    (re.compile(r"-nvfp4a16$"), "nvfp4a16"),
    (re.compile(r"-(?:nv)?fp4$"), "nvfp4"),
    (re.compile(r"-mxfp4$"), "mxfp4"),
)
_BLOCK_FP8_PUBLISHERS = {"qwen", "deepseek-ai", "zai-org", "minimaxai"}
"""Publishers whose own ``-FP8`` repacks are quantised by 128 x 128 blocks."""


@dataclass(frozen=True)
class ModelName:
    """Spellings to try in order (those with ``~`` match any sibling), and the weight format that the name implies."""

    spellings: tuple[str, ...]
    weight_dtype: str | None


def normal(name: str) -> str:
    """Lower case, with every run of spaces, underscores and hyphens as one hyphen."""
    return re.sub(r"[\s_-]+", "-", name.strip().lower()).strip("-")


def gpu_candidates(name: str) -> tuple[str, ...]:
    """Spellings of a GPU to look up: as written, then without count, remarks in brackets and vendor words."""
    plain = normal(name)
    bare = normal(re.sub(r"\(.*?\)", " ", name))
    bare = re.sub(r"^\d+\s*x-?(?=[a-z])", "", bare)
    words = [word for word in bare.split("-") if word not in _VENDOR_WORDS]
    return tuple(dict.fromkeys((plain, bare, "-".join(words))))


def sibling_form(name: str) -> str:
    """``~`` and the name without organisation and without words such as Instruct, Chat, Base or hf."""
    words = normal(name.rsplit("/", 1)[-1]).split("-")
    return "~" + "-".join(word for word in words if word not in _SIBLING_WORDS)


def model_forms(name: str) -> tuple[str, ...]:
    """The spellings under which a catalogue entry is found: its id, the id without organisation, its sibling form."""
    return normal(name), normal(name.rsplit("/", 1)[-1]), sibling_form(name)


def parse_model_name(name: str) -> ModelName:
    """Reads a model's id as people write it, peeling off a quantisation suffix."""
    full, tail, sibling = model_forms(name)
    spellings = [full, tail, sibling]
    fmt = None
    for pattern, candidate in _QUANTISED:
        short = pattern.sub("", tail)
        if short != tail and short:
            fmt = candidate
            spellings += [short, sibling_form(short)]
            break
    if fmt == "fp8" and full.split("/")[0] in _BLOCK_FP8_PUBLISHERS:
        fmt = "fp8_block"
    return ModelName(tuple(dict.fromkeys(spellings)), fmt)
