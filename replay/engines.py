"""Engine presets and their knobs, under the engines' own names, with the engines' own defaults by GPU.

Defaults are those of the API server (``vllm serve``), read from the releases named in docs/engines.md. A preset may
carry any vLLM release (``vllm-0.19.0``); scheduling follows the nearest release whose scheduler was read, and the
result says so.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from replay.engine_families import FAMILY_PRESETS, resolve_family, sglang_running_requests
from replay.errors import FieldError, SpecError
from replay.hardware.entries import GpuType, ModelSpec
from replay.knobs import Knob, read_knob, refuse
from replay.specs import EngineSpec, Scalar
from replay.speculation import KNOBS as SPECULATION_KNOBS
from replay.speculation import check_speculation, speculation_notes
from replay.vllm_releases import V1_SINCE, check_release, scheduling_defaults

PRESETS = {
    "vllm-0.33": "vLLM 0.33: chunked prefill, full-prompt admission, asynchronous scheduling, recompute preemption",
    "vllm-0.11": "vLLM 0.11: chunked prefill, admission by chunk, synchronous scheduling, recompute preemption",
    "vllm-v0": "vLLM before 0.8: whole prompts first and alone, or in chunks; 1 % watermark, recompute or swap",
    "sarathi": "Sarathi-Serve: chunked prefill in a budget of 512 tokens, decodes first",
    "orca": "Orca: whole prompts beside decodes, KV reserved for prompt and declared output, no preemption",
    "static": "static batching: a padded batch runs until its longest request is done; the baseline of articles",
    **FAMILY_PRESETS,
}

_VLLM = re.compile(r"^vllm-(\d+)\.(\d+)(?:\.\d+)?(?:\.?(?:rc|post|dev)\d+)?(?:\+[\w.]*)?$")
_V0_READ = (0, 7)
"""The last release that ran V0 by default; its scheduler was read in 0.8.5, which holds both."""
_LATEST = (0, 33)


@dataclass(frozen=True)
class EngineConfig:
    """A preset with every knob resolved. Knob names are vLLM's where vLLM has the knob."""

    preset: str
    scheduler: str
    """Which scheduler runs: ``vllm``, ``vllm-v0``, ``orca``, ``static``, or a preset of
    ``replay.engine_families`` by its own name."""
    version: str
    """For memory sizing: ``vllm-0.33`` or the release asked for."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int = 16
    gpu_memory_utilization: float = 0.92
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    enable_prefix_caching: bool = True
    """Acts where block ids or sessions say which prompts begin alike; else no prompt is taken to share anything."""
    enforce_eager: bool = False
    data_parallel_size: int = 1
    """Ranks of a mixture-of-experts model that share the experts and step together; each is an engine of ``tp``
    GPUs."""
    enable_expert_parallel: bool = False
    """With data-parallel ranks: whole experts a GPU, instead of a slice of each."""
    num_gpu_blocks_override: int | None = None
    threshold_binds_lone_request: bool = False
    unchunked_looks_further: bool = False
    frees_in_order: bool = False
    """Prefix caching: a freed block without a hash is reused last, not first."""
    victims_stay: bool = False
    """priority: whom a step preempts after it was scheduled stays in the batch."""
    runs_past_end: bool = False
    """Asynchronous scheduling: a request whose last token is in flight is scheduled once more."""
    scheduling_policy: str = "fcfs"
    """Order of the waiting queue: ``fcfs``, ``priority``, ``sjf`` or ``srpt``."""
    output_length_sigma: float = 0.0
    """sjf, srpt: the predicted output length is the true one times lognormal(0, sigma); 0 is an oracle."""
    ageing_per_s: float = 0.0
    """sjf, srpt: predicted tokens that a second of waiting takes off a request's rank."""
    num_speculative_tokens: int = 0
    """Drafts that each decode checks; 0: no speculative decoding."""
    speculative_method: str = "eagle"
    """``eagle``, ``mtp``, ``draft_model`` or ``ngram``: sets what a draft pass takes unless ``draft_step_s`` does."""
    acceptance_rate: str = ""
    """Probability that a draft is accepted once those before it were; or shares by position, separated by commas."""
    acceptance_mode: str = "sampled"
    """``sampled`` (seeded by request and position) or ``expected`` (as the expectation adds up)."""
    draft_step_s: float = -1.0
    """One pass of the draft model; -1: by the method."""
    max_num_queued_reqs: int | None = None
    """Unfinished requests of a replica; more are refused on arrival with HTTP 503. ``None``: no limit."""
    max_num_queued_tokens: int | None = None
    """Prompt tokens of a replica's requests without a first token; once there, arrivals are refused with HTTP 503."""
    max_tokens_default: int = 2048
    """orca: declared output limit of a request."""
    kv_offload_gib: float = 0.0
    """Host memory per GPU for KV blocks evicted from the prefix cache; 0: none."""
    kv_offload_gb_per_s: float = 25.0
    """Effective rate of copying them back."""
    kv_offload_latency_s: float = 0.0
    """Added once to each step that copies any back."""
    preemption_mode: str = "recompute"
    """vllm-v0: ``recompute`` or ``swap``."""
    swap_space_gib: float = 4.0
    """vllm-v0: host memory for swapped KV, per GPU."""
    pcie_gb_per_s: float = 25.0
    """vllm-v0: effective rate of swapping, one way."""
    batch_timeout_s: float = -1.0
    """static: seconds after which a partial batch starts; -1 waits for a full one or the end of the trace."""
    pad_prefill: bool = True
    stream_finished: bool = False
    """static: release each row at its own last token instead of at the batch's end."""
    own: Mapping[str, Scalar | None] = field(default_factory=dict)
    """SGLang, TensorRT-LLM, TGI: every knob under the engine's own name; the fields above follow from them."""
    notes: tuple[str, ...] = ()

    @property
    def reserved_blocks(self) -> int:
        """KV blocks that no request can have: TGI 3 keeps block 0 for itself."""
        return 1 if self.scheduler == "tgi-v3" else 0

    @property
    def profiled_tokens(self) -> int:
        """Tokens of the largest prefill, which activations are sized for."""
        if "max_batch_prefill_tokens" in self.own:
            return int(self.number("max_batch_prefill_tokens"))
        return self.max_num_batched_tokens

    def number(self, knob: str) -> float:
        """A numeric knob under the engine's own name."""
        value = self.own[knob]
        if not isinstance(value, int | float):
            raise TypeError(f"{knob} is no number")
        return value

    def with_memory(self, kv_tokens: int) -> EngineConfig:
        """The same where the engine sets a knob once it knows how many tokens its KV cache holds."""
        if self.scheduler != "sglang":
            return self
        seqs = sglang_running_requests(self.own, kv_tokens)
        own = {**self.own, "max_running_requests": seqs}
        return replace(self, own=own, max_num_seqs=seqs, max_num_batched_tokens=max(self.max_num_batched_tokens, seqs))

    def settings(self) -> dict[str, Scalar | None]:
        """The knobs that matter to this scheduler, for reports."""
        if self.own:
            return dict(self.own)
        shown = {*_COMMON, *KNOBS_OF[self.scheduler]}
        if self.data_parallel_size == 1:
            shown -= {"data_parallel_size", "enable_expert_parallel"}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in shown}

    @property
    def null_blocks(self) -> int:
        """Blocks of the pool that no request gets: V1 keeps one."""
        return int(self.scheduler in ("vllm", "static") and self.preset != "sarathi")


KNOBS = {
    "max_num_seqs": Knob(int, 1, 65536),
    "max_num_batched_tokens": Knob(int, 1, 262144),
    "max_model_len": Knob(int, 1, 16_777_216),
    "block_size": Knob(int, 1, 2048),
    "gpu_memory_utilization": Knob(float, 0.01, 1.0),
    "enable_chunked_prefill": Knob(bool),
    "async_scheduling": Knob(bool),
    "scheduler_reserve_full_isl": Knob(bool),
    "long_prefill_token_threshold": Knob(int, 0, 16_777_216),
    "watermark": Knob(float, 0.0, 0.5),
    "enable_prefix_caching": Knob(bool),
    "enforce_eager": Knob(bool),
    "data_parallel_size": Knob(int, 1, 64),
    "enable_expert_parallel": Knob(bool),
    "num_gpu_blocks_override": Knob(int, 2, 2**31 - 1),
    "scheduling_policy": Knob(str, choices=("fcfs", "priority", "sjf", "srpt")),
    "output_length_sigma": Knob(float, 0.0, 5.0),
    "ageing_per_s": Knob(float, 0.0, 10_000.0),
    "max_num_queued_reqs": Knob(int, 0, 2**31 - 1),
    "max_num_queued_tokens": Knob(int, 0, 2**53),
    "max_tokens_default": Knob(int, 1, 16_777_216),
    "kv_offload_gib": Knob(float, 0.0, 65536.0),
    "kv_offload_gb_per_s": Knob(float, 0.1, 10_000.0),
    "kv_offload_latency_s": Knob(float, 0.0, 10.0),
    "preemption_mode": Knob(str, choices=("recompute", "swap")),
    "swap_space_gib": Knob(float, 0.0, 65536.0),
    "pcie_gb_per_s": Knob(float, 0.1, 10_000.0),
    "batch_timeout_s": Knob(float, -1.0, 86400.0),
    "pad_prefill": Knob(bool),
    "stream_finished": Knob(bool),
    **SPECULATION_KNOBS,
}
KNOBS_OF: dict[str, tuple[str, ...]] = {
    "vllm": (
        "enable_chunked_prefill",
        "async_scheduling",
        "scheduler_reserve_full_isl",
        "long_prefill_token_threshold",
        "watermark",
        "enable_prefix_caching",
        "scheduling_policy",
        "output_length_sigma",
        "ageing_per_s",
        *SPECULATION_KNOBS,
        "data_parallel_size",
        "enable_expert_parallel",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "kv_offload_gib",
        "kv_offload_gb_per_s",
        "kv_offload_latency_s",
    ),
    "vllm-v0": ("enable_chunked_prefill", "watermark", "preemption_mode", "swap_space_gib", "pcie_gb_per_s"),
    "orca": ("max_tokens_default",),
    "static": ("batch_timeout_s", "pad_prefill", "stream_finished"),
}
"""Knobs of each scheduler beside those that all have."""
_COMMON = KNOBS.keys() - {name for names in KNOBS_OF.values() for name in names}
_NOT_REPLAYED = {
    "pipeline_parallel_size": "pipeline parallelism is not replayed yet; use tp",
    "speculative_config": "give num_speculative_tokens, speculative_method and acceptance_rate instead",
}


def parse_preset(preset: str) -> tuple[str, tuple[int, int]]:
    """``(scheduler, vLLM release)`` of a preset.

    Raises:
        SpecError: an unknown preset, with the nearest names; or a release whose scheduler has not been built.
    """
    name = preset.strip().lower()
    if name in ("static", "orca") or name in FAMILY_PRESETS:
        return name, _LATEST
    if name == "sarathi":
        return "vllm", _LATEST
    if name == "vllm-v0":
        return "vllm-v0", _V0_READ
    match = _VLLM.match(name)
    if match is None:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.3)
        cure = f"use one of {', '.join(PRESETS)}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        raise SpecError(
            "engine.unknown_preset", f"unknown engine {preset!r}", [FieldError(cure, field="engine.preset", cure=cure)]
        )
    release = (int(match.group(1)), int(match.group(2)))
    return "vllm" if release >= V1_SINCE else "vllm-v0", release


def _vllm_defaults(gpu: GpuType, release: tuple[int, int]) -> dict[str, Any]:
    """Batch limits by GPU memory and release (engine semantics 1.1, column "API server")."""
    memory, is_a100 = gpu.memory_total_gib, "A100" in gpu.key.upper()
    if release >= (0, 33) and memory >= 160:
        tokens, seqs = 16384, 1024
    elif memory >= 70 and (not is_a100 or release <= (0, 8)) and "GB10" not in gpu.key.upper():
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    return {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "kv_offload_gb_per_s": _copy_rate(gpu),
        **scheduling_defaults(release),
    }


def _other_defaults(preset: str, scheduler: str, gpu: GpuType) -> dict[str, Any]:
    """What presets besides vLLM V1 set differently (engine semantics 1.2, 1.6 and 5)."""
    plain: dict[str, Any] = {"async_scheduling": False, "enable_prefix_caching": False}
    whole_prompts = {"enable_chunked_prefill": False, "unchunked_looks_further": False}
    if preset == "sarathi":
        return plain | {"max_num_batched_tokens": 512, "max_num_seqs": 128, "watermark": 0.01}
    if scheduler == "static":
        return plain | {"max_num_seqs": 8}
    if scheduler == "orca":
        return plain | whole_prompts | {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "block_size": 1}
    if scheduler == "vllm-v0":
        v0 = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.9, "watermark": 0.01}
        return plain | whole_prompts | v0 | {"pcie_gb_per_s": _copy_rate(gpu)}
    return {}


def _copy_rate(gpu: GpuType) -> float:
    """Effective GB/s between a GPU and host memory, one way."""
    return _PCIE_SHARE * gpu.pcie_gb_per_s_per_dir if gpu.pcie_gb_per_s_per_dir else _PCIE_UNKNOWN_GB_PER_S


_UNNUMBERED = ("static", "orca", "sarathi", "vllm-v0")
_V0_CHUNKS_ABOVE = 32_768
_PCIE_SHARE = 0.78
"""Of the data sheet's rate that copies reach: 25 of 32 GB/s, 50 of 64."""
_PCIE_UNKNOWN_GB_PER_S = 25.0


def resolve_engine(
    spec: EngineSpec, gpu: GpuType, model: ModelSpec, max_model_len: int | None = None, tp: int = 1
) -> EngineConfig:
    """The engine as it would start on ``gpu`` for ``model``; ``tp`` matters to SGLang's default memory share only.

    ``max_model_len``: the deployment's, else the override of that name, else the model's maximum position.

    Raises:
        SpecError: unknown preset or knob, value out of range, or knobs that contradict each other; names knob and cure.
    """
    scheduler, release = parse_preset(spec.preset)
    preset = spec.preset.strip().lower()
    if scheduler in FAMILY_PRESETS:
        family = resolve_family(scheduler, spec.overrides, gpu, model.max_position, max_model_len, tp)
        return EngineConfig(preset=preset, scheduler=scheduler, version=scheduler, own=family.own, **family.fields)
    knobs: dict[str, Any] = _vllm_defaults(gpu, release) | _other_defaults(preset, scheduler, gpu)
    for name, value in spec.overrides.items():
        if name in KNOBS and name not in _COMMON and name not in KNOBS_OF[scheduler]:
            having = ", ".join(other for other, names in KNOBS_OF.items() if name in names)
            raise refuse(
                name, f"the {scheduler} scheduler has no knob {name}", f"leave {name} out; it belongs to {having}"
            )
        knobs[name] = read_knob(name, value, KNOBS, _NOT_REPLAYED)
    asked = knobs.pop("max_model_len", None)
    if asked is not None and max_model_len is not None and asked != max_model_len:
        raise refuse("max_model_len", f"max_model_len is given twice: {asked} and {max_model_len}", "give it once")
    length = max_model_len or asked or model.max_position
    if length > model.max_position:
        cure = f"set max_model_len to {model.max_position} or less"
        raise refuse("max_model_len", f"max_model_len {length} exceeds what {model.key} was made for", cure)
    if scheduler == "vllm-v0" and length > _V0_CHUNKS_ABOVE and "enable_chunked_prefill" not in spec.overrides:
        knobs["enable_chunked_prefill"] = True
    if knobs.get("num_speculative_tokens") and "async_scheduling" not in spec.overrides:
        knobs["async_scheduling"] = False
    if "max_num_batched_tokens" not in spec.overrides:
        if not knobs.get("enable_chunked_prefill", True):
            knobs["max_num_batched_tokens"] = max(knobs["max_num_batched_tokens"], length)
        knobs["max_num_batched_tokens"] = min(knobs["max_num_batched_tokens"], knobs["max_num_seqs"] * length)
    notes: tuple[str, ...] = ()
    if scheduler == "vllm" and preset != "sarathi":
        notes = check_release(release, str(knobs.get("scheduling_policy")), bool(knobs["async_scheduling"]))
    if knobs.get("kv_offload_gib", 0.0) > 0:
        notes += (
            "KV offload, an estimate: blocks evicted from the prefix cache go to host memory at no cost, and come back "
            "within the step that admits their request, which takes that much longer",
        )
    if scheduler == "vllm-v0":
        notes = ("V0 scheduler as read in vLLM 0.8.5, without prefix caching or multi-step decoding",)
        if length > _V0_CHUNKS_ABOVE and "enable_chunked_prefill" not in spec.overrides:
            notes += (f"chunked prefill is on, as V0 turns it on where max_model_len exceeds {_V0_CHUNKS_ABOVE}",)
    version = preset if preset in _UNNUMBERED else f"vllm-{release[0]}.{release[1]}"
    config = EngineConfig(
        preset=preset, scheduler=scheduler, version=version, max_model_len=length, notes=notes, **knobs
    )
    _check_together(config, spec.overrides.keys())
    check_speculation(config)
    _check_ranks(config, model)
    return replace(config, notes=(*notes, *speculation_notes(config)))


def data_parallel_size(spec: EngineSpec) -> int:
    """Data-parallel ranks of a replica, as asked for; 1 where the value is none (``resolve_engine`` refuses it)."""
    try:
        return max(1, int(spec.overrides.get("data_parallel_size", 1)))
    except ValueError:
        return 1


def _check_ranks(config: EngineConfig, model: ModelSpec) -> None:
    """Data-parallel ranks share experts: without any there is nothing that makes them one engine."""
    if config.data_parallel_size > 1 and not model.num_experts:
        detail = (
            f"data_parallel_size is for models with experts, and {model.key} has none: its ranks would be independent"
        )
        cure = f"set replicas to {config.data_parallel_size} with the router vllm_dp, and leave data_parallel_size out"
        raise refuse("data_parallel_size", f"{detail}; {cure}", cure)
    if config.data_parallel_size > 1:
        _check_lockstep(config)
    if config.enable_expert_parallel and config.data_parallel_size == 1:
        detail = "enable_expert_parallel is replayed with data_parallel_size above 1 only"
        raise refuse("enable_expert_parallel", detail, "set data_parallel_size, or leave enable_expert_parallel out")


def _check_lockstep(config: EngineConfig) -> None:
    """What ranks that step together are not replayed with."""
    limits = ("max_num_queued_reqs", "max_num_queued_tokens")
    asked = {
        "num_speculative_tokens": ("speculative decoding", config.num_speculative_tokens > 0),
        "kv_offload_gib": ("KV offload to host memory", config.kv_offload_gib > 0),
        **{name: ("limits on the queue", getattr(config, name) is not None) for name in limits},
    }
    for name, (what, is_on) in asked.items():
        if is_on:
            detail = f"data-parallel ranks that step together are not replayed with {what}"
            raise refuse(name, detail, f"leave {name} out, or data_parallel_size")


def _check_offload(config: EngineConfig, given: Collection[str]) -> None:
    if config.kv_offload_gib > 0 and not config.enable_prefix_caching:
        detail = "kv_offload_gib keeps blocks of the prefix cache, and enable_prefix_caching is off"
        raise refuse("kv_offload_gib", detail, "turn on enable_prefix_caching, or leave kv_offload_gib out")
    for name in ("kv_offload_gb_per_s", "kv_offload_latency_s"):
        if name in given and config.kv_offload_gib == 0:
            detail = f"{name} acts on KV offload, and kv_offload_gib gives it no memory"
            raise refuse(name, detail, f"set kv_offload_gib, or leave {name} out")


def _check_together(config: EngineConfig, given: Collection[str]) -> None:
    tokens, seqs = config.max_num_batched_tokens, config.max_num_seqs
    if tokens < seqs:
        raise refuse(
            "max_num_batched_tokens",
            f"max_num_batched_tokens ({tokens}) is below max_num_seqs ({seqs}): a full batch could not decode",
            f"raise max_num_batched_tokens to at least {seqs}, or lower max_num_seqs to {tokens}",
        )
    if config.scheduler == "static":
        return
    if not config.enable_chunked_prefill and tokens < config.max_model_len:
        raise refuse(
            "max_num_batched_tokens",
            f"without chunked prefill max_num_batched_tokens ({tokens}) must hold a whole prompt of max_model_len "
            f"({config.max_model_len})",
            f"raise max_num_batched_tokens to {config.max_model_len}, lower max_model_len, or enable chunked prefill",
        )
    if config.scheduler == "vllm-v0" and config.enable_chunked_prefill and config.preemption_mode == "swap":
        detail = "swapping beside chunked prefill is not replayed"
        cure = "set preemption_mode to recompute, or enable_chunked_prefill to false"
        raise refuse("preemption_mode", detail, cure)
    _check_offload(config, given)
    if config.scheduling_policy not in ("sjf", "srpt"):
        for name in ("output_length_sigma", "ageing_per_s"):
            if getattr(config, name) != 0:
                detail = f"{name} acts on the orders by predicted length, but scheduling_policy is "
                cure = f"set scheduling_policy to sjf or srpt, or leave {name} out"
                raise refuse(name, detail + config.scheduling_policy, cure)
    if 0 < config.long_prefill_token_threshold > config.max_model_len:
        raise refuse(
            "long_prefill_token_threshold",
            f"long_prefill_token_threshold ({config.long_prefill_token_threshold}) exceeds max_model_len",
            f"set it to {config.max_model_len} or less",
        )
