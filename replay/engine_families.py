"""SGLang, TensorRT-LLM and TGI: their presets, their knobs under their own names, and their defaults by GPU.

These presets come from reading the engines' source and arguments (engine semantics 1.3 to 1.5); none was compared with
a recording of the engine itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replay.hardware.entries import GpuType
from replay.knobs import Knob, read_knob, refuse
from replay.specs import Scalar

FAMILY_PRESETS = {
    "sglang": "SGLang 0.5: prefill batches first, admission by a learnt share of declared outputs, retraction",
    "trtllm": "TensorRT-LLM: whole-life reservation (or MAX_UTILIZATION, STATIC_BATCH), decodes before contexts",
    "tgi-v3": "TGI 3: whole-life reservation, chunked prefill beside decodes, no preemption",
    "tgi-v2": "TGI 2: whole-life reservation, prefill batches of their own, no preemption",
}

SGLANG_RATIO_FIRST, SGLANG_RATIO_LEAST = 0.7, 0.14
"""``new_token_ratio`` at schedule_conservativeness 1, and its least value as a share of that."""
CAPACITY_POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
_BLOCK_BY_ATTENTION = {"flashinfer": 1, "flashdecoding": 256, "paged": 16}
_NOT_COMPARED = "from reading the engine's source only: not compared with recordings of the engine"
_SGLANG_COMPARED = (
    "gives the recorded steps of SGLang 0.5.23's scheduler with pages of one token; not compared: larger pages, and "
    "its unified radix tree"
)
_NO_REUSE = "reuse of shared prompt prefixes is not replayed for this engine: every prompt is computed in full"

_TOKENS, _LENGTH = Knob(int, 1, 262_144), Knob(int, 1, 16_777_216)
_MAX_TOKENS_DEFAULT = Knob(int, 0, 16_777_216)


@dataclass(frozen=True)
class _Family:
    knobs: dict[str, Knob]
    defaults: dict[str, Scalar | None]
    length: str
    """Its name for ``max_model_len``."""
    not_replayed: dict[str, str] = field(default_factory=dict)


_DRAFTS = "speculative decoding is replayed for vLLM only"
_SGLANG = _Family(
    knobs={
        "chunked_prefill_size": Knob(int, -1, 262_144),
        "max_prefill_tokens": _TOKENS,
        "max_running_requests": Knob(int, 1, 65_536),
        "page_size": Knob(int, 1, 2048),
        "mem_fraction_static": Knob(float, 0.01, 1.0),
        "context_length": _LENGTH,
        "schedule_conservativeness": Knob(float, 0.01, 100.0),
        "schedule_policy": Knob(str, choices=("fcfs", "lpm")),
        "disable_radix_cache": Knob(bool),
        "disable_overlap_schedule": Knob(bool),
        "disable_cuda_graph": Knob(bool),
        "max_tokens_default": _MAX_TOKENS_DEFAULT,
    },
    defaults={
        "max_prefill_tokens": 16_384,
        "max_running_requests": None,
        "page_size": 1,
        "schedule_conservativeness": 1.0,
        "schedule_policy": "fcfs",
        "disable_radix_cache": False,
        "disable_overlap_schedule": False,
        "disable_cuda_graph": False,
        "max_tokens_default": 0,
    },
    length="context_length",
    not_replayed={
        "enable_mixed_chunk": "decodes in prefill batches are not replayed",
        **dict.fromkeys(("speculative_algorithm", "speculative_num_draft_tokens", "speculative_num_steps"), _DRAFTS),
    },
)
_TRTLLM = _Family(
    knobs={
        "max_batch_size": Knob(int, 1, 65_536),
        "max_num_tokens": _TOKENS,
        "max_seq_len": _LENGTH,
        "tokens_per_block": Knob(int, 1, 2048),
        "free_gpu_memory_fraction": Knob(float, 0.01, 1.0),
        "enable_chunked_prefill": Knob(bool),
        "capacity_scheduler_policy": Knob(str, choices=CAPACITY_POLICIES),
        "disable_overlap_scheduler": Knob(bool),
        "max_tokens_default": _MAX_TOKENS_DEFAULT,
    },
    defaults={
        "max_batch_size": 2048,
        "max_num_tokens": 8192,
        "tokens_per_block": 32,
        "free_gpu_memory_fraction": 0.9,
        "enable_chunked_prefill": False,
        "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        "disable_overlap_scheduler": False,
        "max_tokens_default": 0,
    },
    length="max_seq_len",
    not_replayed={
        "enable_block_reuse": "block reuse is not replayed, as if it were off",
        **dict.fromkeys(("speculative_config", "max_draft_len"), _DRAFTS),
    },
)
_TGI_V3 = _Family(
    knobs={
        "max_concurrent_requests": Knob(int, 1, 65_536),
        "max_batch_prefill_tokens": _TOKENS,
        "max_total_tokens": _LENGTH,
        "attention": Knob(str, choices=tuple(_BLOCK_BY_ATTENTION)),
        "cuda_memory_fraction": Knob(float, 0.01, 1.0),
        "max_tokens_default": _MAX_TOKENS_DEFAULT,
    },
    defaults={
        "max_concurrent_requests": 128,
        "max_batch_prefill_tokens": 4096,
        "attention": "flashinfer",
        "cuda_memory_fraction": 1.0,
        "max_tokens_default": 0,
    },
    length="max_total_tokens",
    not_replayed={
        "waiting_served_ratio": "tgi-v3 ignores it (tgi-v2 follows it)",
        "max_waiting_tokens": "tgi-v3 ignores it (tgi-v2 follows it)",
        "max_batch_total_tokens": "it follows from the memory model, as in the engine's warm-up",
    },
)
_TGI_V2 = _Family(
    knobs=_TGI_V3.knobs
    | {"waiting_served_ratio": Knob(float, 0.0, 1000.0), "max_waiting_tokens": Knob(int, 0, 1_000_000)},
    defaults=_TGI_V3.defaults | {"attention": "paged", "waiting_served_ratio": 0.3, "max_waiting_tokens": 20},
    length="max_total_tokens",
    not_replayed={"max_batch_total_tokens": "it follows from the memory model, as in the engine's warm-up"},
)
_FAMILIES = {"sglang": _SGLANG, "trtllm": _TRTLLM, "tgi-v3": _TGI_V3, "tgi-v2": _TGI_V2}

FAMILY_KNOBS = {name: knob for family in _FAMILIES.values() for name, knob in family.knobs.items()}


@dataclass(frozen=True)
class FamilySettings:
    """A preset resolved: what the engine-neutral configuration takes, and every knob under the engine's own name."""

    fields: dict[str, Any]
    own: dict[str, Scalar | None]


def resolve_family(
    preset: str, overrides: Mapping[str, Scalar], gpu: GpuType, longest: int, asked_len: int | None, tp: int
) -> FamilySettings:
    """Knobs and defaults of ``preset`` on ``gpu``; ``longest``: the model's maximum position; ``asked_len``: the
    deployment's ``max_model_len``.

    Raises:
        SpecError: an unknown knob, a value out of range, or knobs that contradict each other.
    """
    family = _FAMILIES[preset]
    own = dict(family.defaults)
    for name, value in overrides.items():
        own[name] = read_knob(name, value, family.knobs, family.not_replayed)
    given = own.pop(family.length, None)
    if given is not None and asked_len is not None and given != asked_len:
        raise refuse(family.length, f"{family.length} is given twice: {given} and {asked_len}", "give it once")
    length = int(asked_len or given or longest)
    if length > longest:
        cure = f"set {family.length} to {longest} or less"
        raise refuse(family.length, f"{family.length} {length} exceeds what the model was made for", cure)
    own[family.length] = length
    resolve = {"sglang": _sglang, "trtllm": _trtllm}.get(preset, _tgi)
    fields = resolve(own, gpu, length, tp)
    caching = preset == "sglang" and not own["disable_radix_cache"]
    if own.get("schedule_policy") == "lpm" and not caching:
        detail = "schedule_policy lpm orders by cached prefixes, and disable_radix_cache turns the cache off"
        raise refuse("schedule_policy", detail, "leave disable_radix_cache out, or set schedule_policy to fcfs")
    notes = _notes(own, family.length, preset == "sglang")
    fields |= {"max_model_len": length, "enable_prefix_caching": caching, "notes": notes}
    return FamilySettings(fields, own)


def _notes(own: Mapping[str, Scalar | None], length: str, replays_reuse: bool) -> tuple[str, ...]:
    declared = own["max_tokens_default"]
    amount = (
        f"the rest of {length}, as the engine's own server does: set max_tokens_default to what clients ask for"
        if declared == 0
        else f"{declared} output tokens (max_tokens_default), or their real output where that is longer"
    )
    compared = (_SGLANG_COMPARED,) if replays_reuse else (_NOT_COMPARED, _NO_REUSE)
    return (*compared, f"a request without a declared max_tokens counts as asking for {amount}")


def _sglang(own: dict[str, Scalar | None], gpu: GpuType, length: int, tp: int) -> dict[str, Any]:
    memory = gpu.memory_total_gib
    if "chunked_prefill_size" not in own:
        own["chunked_prefill_size"] = next(
            (size for limit, size in ((20, 2048), (60, 4096), (160, 8192)) if memory < limit), 16_384
        )
    chunk, page = int(own["chunked_prefill_size"] or 0), int(own["page_size"] or 1)
    if 0 <= chunk < page:
        cure = f"raise chunked_prefill_size to at least {page}, or set it to -1 to prefill prompts whole"
        raise refuse("chunked_prefill_size", f"chunked_prefill_size ({chunk}) is below page_size ({page})", cure)
    if "mem_fraction_static" not in own:
        # Megabytes kept for activations and graphs (engine semantics 3.4).
        reserved = 512 + 1.5 * max(chunk, 2048) + tp / 8 * 1024 + 2 * (256 if tp < 4 else 512)
        if memory > 60:
            reserved = max(reserved, 10 * 1024)
        own["mem_fraction_static"] = round(max(1 - reserved / (memory * 1024), 0.05), 3)
    prefill = chunk if chunk > 0 else max(int(own["max_prefill_tokens"] or 0), length)
    seqs = int(own["max_running_requests"] or 2048)
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(prefill, seqs),
        "block_size": page,
        "gpu_memory_utilization": own["mem_fraction_static"],
        "enable_chunked_prefill": True,
        "async_scheduling": not own["disable_overlap_schedule"],
        "enforce_eager": own["disable_cuda_graph"],
    }


def sglang_running_requests(own: Mapping[str, Scalar | None], kv_tokens: int) -> int:
    """``max_running_requests``: as set, else by the engine's rule from the tokens that the KV cache holds."""
    asked = own["max_running_requests"]
    if asked is not None:
        return int(asked)
    length = int(own["context_length"] or 1)
    return max(1, min(max(int(kv_tokens / length * 512), 2048), 4096, kv_tokens // 2))


def _trtllm(own: dict[str, Scalar | None], gpu: GpuType, length: int, tp: int) -> dict[str, Any]:
    seqs, tokens, block = (int(own[name] or 1) for name in ("max_batch_size", "max_num_tokens", "tokens_per_block"))
    if tokens < seqs:
        detail = f"max_num_tokens ({tokens}) is below max_batch_size ({seqs}): a full batch could not decode"
        cure = f"raise max_num_tokens to at least {seqs}, or lower max_batch_size to {tokens}"
        raise refuse("max_num_tokens", detail, cure)
    if own["enable_chunked_prefill"] and tokens < block:
        detail = f"max_num_tokens ({tokens}) is below tokens_per_block ({block}): a context could not be cut"
        raise refuse("max_num_tokens", detail, f"raise max_num_tokens to at least {block}")
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "block_size": block,
        "gpu_memory_utilization": own["free_gpu_memory_fraction"],
        "enable_chunked_prefill": own["enable_chunked_prefill"],
        "async_scheduling": not own["disable_overlap_scheduler"],
    }


def _tgi(own: dict[str, Scalar | None], gpu: GpuType, length: int, tp: int) -> dict[str, Any]:
    seqs, prefill = int(own["max_concurrent_requests"] or 1), int(own["max_batch_prefill_tokens"] or 1)
    block = _BLOCK_BY_ATTENTION[str(own["attention"])]
    return {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": prefill + block + seqs,  # a call: prompts up to the padded budget, and decodes
        "block_size": block,
        "gpu_memory_utilization": own["cuda_memory_fraction"],
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "max_num_queued_reqs": seqs,
    }
