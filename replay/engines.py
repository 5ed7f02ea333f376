"""Engine presets and their knobs, under the engines' own names, with the engines' own defaults by GPU.

Defaults are those of the API server (``vllm serve``), read from the releases named in docs/engines.md. A preset may
carry any vLLM release (``vllm-0.19.0``); scheduling follows the nearest release whose scheduler was read, and the
result says so.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields
from typing import Any

from replay.errors import FieldError, SpecError
from replay.hardware.entries import GpuType, ModelSpec
from replay.specs import EngineSpec, Scalar

PRESETS = {
    "vllm-0.33": "vLLM 0.33: chunked prefill, full-prompt admission, asynchronous scheduling, recompute preemption",
    "vllm-0.11": "vLLM 0.11: chunked prefill, admission by chunk, synchronous scheduling, recompute preemption",
    "static": "static batching: a padded batch runs until its longest request is done; the baseline of articles",
}

_VLLM = re.compile(r"^vllm-(\d+)\.(\d+)(?:\.\d+)?(?:\.?(?:rc|post|dev)\d+)?(?:\+[\w.]*)?$")
_FIRST_V1 = (0, 8)
_ASYNC_SINCE = (0, 14)
_FULL_ISL_SINCE = (0, 33)
_UTILIZATION_092_SINCE = (0, 30)
_LATEST = (0, 33)


@dataclass(frozen=True)
class EngineConfig:
    """A preset with every knob resolved. Knob names are vLLM's where vLLM has the knob."""

    preset: str
    scheduler: str
    """Which scheduler runs: ``vllm`` or ``static``."""
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
    """Acts where the trace gives prompt block ids; without them no prompt is taken to share anything."""
    enforce_eager: bool = False
    num_gpu_blocks_override: int | None = None
    threshold_binds_lone_request: bool = False
    unchunked_looks_further: bool = False
    batch_timeout_s: float = -1.0
    """static: seconds after which a partial batch starts; -1 waits for a full one or the end of the trace."""
    pad_prefill: bool = True
    stream_finished: bool = False
    """static: release each row at its own last token instead of at the batch's end."""
    notes: tuple[str, ...] = ()

    def settings(self) -> dict[str, Scalar | None]:
        """The knobs that matter to this scheduler, for reports."""
        hidden = {"preset", "scheduler", "version", "notes", "threshold_binds_lone_request", "unchunked_looks_further"}
        hidden |= _STATIC_ONLY if self.scheduler == "vllm" else _VLLM_ONLY
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}


@dataclass(frozen=True)
class Knob:
    """What a knob accepts."""

    kind: type
    low: float = float("-inf")
    high: float = float("inf")


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
    "num_gpu_blocks_override": Knob(int, 2, 2**31 - 1),
    "batch_timeout_s": Knob(float, -1.0, 86400.0),
    "pad_prefill": Knob(bool),
    "stream_finished": Knob(bool),
}
_STATIC_ONLY = {"batch_timeout_s", "pad_prefill", "stream_finished"}
_VLLM_ONLY = {
    "enable_chunked_prefill",
    "async_scheduling",
    "scheduler_reserve_full_isl",
    "long_prefill_token_threshold",
    "watermark",
    "enable_prefix_caching",
}
_NOT_REPLAYED = {
    "scheduling_policy": "only first come first served is replayed yet",
    "pipeline_parallel_size": "pipeline parallelism is not replayed yet; use tp",
}


def _refuse(knob: str, detail: str, cure: str) -> SpecError:
    return SpecError("engine.knob", detail, [FieldError(detail, field=f"engine.overrides.{knob}", cure=cure)])


def parse_preset(preset: str) -> tuple[str, tuple[int, int]]:
    """``(scheduler, vLLM release)`` of a preset.

    Raises:
        SpecError: an unknown preset, with the nearest names; or a release whose scheduler has not been built.
    """
    name = preset.strip().lower()
    if name == "static":
        return "static", _LATEST
    match = _VLLM.match(name)
    if match is None:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.3)
        cure = f"use one of {', '.join(PRESETS)}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        raise SpecError(
            "engine.unknown_preset", f"unknown engine {preset!r}", [FieldError(cure, field="engine.preset", cure=cure)]
        )
    release = (int(match.group(1)), int(match.group(2)))
    if release < _FIRST_V1:
        cure = "use vllm-0.8 or newer"
        detail = f"{preset} runs the V0 scheduler, which is not built yet"
        raise SpecError("engine.unknown_preset", detail, [FieldError(detail, field="engine.preset", cure=cure)])
    return "vllm", release


def _vllm_defaults(gpu: GpuType, release: tuple[int, int]) -> dict[str, Any]:
    """Batch limits by GPU memory and release (engine semantics 1.1, column "API server")."""
    memory, is_a100 = gpu.memory_total_gib, "A100" in gpu.key.upper()
    if release >= (0, 33) and memory >= 160:
        tokens, seqs = 16384, 1024
    elif memory >= 70 and (not is_a100 or release <= (0, 8)) and "GB10" not in gpu.key.upper():
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    is_async = release >= _ASYNC_SINCE
    return {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "gpu_memory_utilization": 0.92 if release >= _UTILIZATION_092_SINCE else 0.9,
        "async_scheduling": is_async,
        "scheduler_reserve_full_isl": release >= _FULL_ISL_SINCE,
        "threshold_binds_lone_request": not is_async,
        "unchunked_looks_further": not is_async,
    }


def _read_knob(name: str, value: Scalar) -> Scalar:
    if name in _NOT_REPLAYED:
        raise _refuse(name, f"{name} cannot be set: {_NOT_REPLAYED[name]}", f"leave {name} out")
    if name not in KNOBS:
        near = difflib.get_close_matches(name, KNOBS, n=3, cutoff=0.5)
        cure = f"did you mean {' or '.join(near)}?" if near else f"known knobs: {', '.join(sorted(KNOBS))}"
        raise _refuse(name, f"unknown engine knob {name!r}", cure)
    knob = KNOBS[name]
    if isinstance(value, str):
        value = _parse_text(name, value, knob.kind)
    if knob.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not knob.kind:
        raise _refuse(
            name, f"{name} takes {_KIND_NAMES[knob.kind]}, not {value!r}", f"set {name} to {_KIND_NAMES[knob.kind]}"
        )
    if isinstance(value, int | float) and not knob.low <= value <= knob.high:
        bounds = f"between {knob.low:g} and {knob.high:g}"
        raise _refuse(name, f"{name} is {value}, which is out of range", f"set {name} {bounds}")
    return value


_KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false"}


def _parse_text(name: str, text: str, kind: type) -> Scalar:
    lowered = text.strip().lower()
    if kind is bool and lowered in ("true", "false", "on", "off", "1", "0"):
        return lowered in ("true", "on", "1")
    try:
        if kind is int:
            return int(lowered)
        if kind is float:
            return float(lowered)
    except ValueError:
        pass
    raise _refuse(name, f"{name} takes {_KIND_NAMES[kind]}, not {text!r}", f"set {name} to {_KIND_NAMES[kind]}")


def resolve_engine(spec: EngineSpec, gpu: GpuType, model: ModelSpec, max_model_len: int | None = None) -> EngineConfig:
    """The engine as it would start on ``gpu`` for ``model``.

    ``max_model_len``: the deployment's, else the override of that name, else the model's maximum position.

    Raises:
        SpecError: unknown preset or knob, value out of range, or knobs that contradict each other; names knob and cure.
    """
    scheduler, release = parse_preset(spec.preset)
    knobs: dict[str, Any] = _vllm_defaults(gpu, release)
    if scheduler == "static":
        knobs["max_num_seqs"] = 8
        knobs["async_scheduling"] = False
        knobs["enable_prefix_caching"] = False
    other = _VLLM_ONLY if scheduler == "static" else _STATIC_ONLY
    for name, value in spec.overrides.items():
        if name in other:
            raise _refuse(
                name, f"the {scheduler} scheduler has no knob {name}", f"leave {name} out or choose another preset"
            )
        knobs[name] = _read_knob(name, value)
    asked = knobs.pop("max_model_len", None)
    if asked is not None and max_model_len is not None and asked != max_model_len:
        raise _refuse("max_model_len", f"max_model_len is given twice: {asked} and {max_model_len}", "give it once")
    length = max_model_len or asked or model.max_position
    if length > model.max_position:
        cure = f"set max_model_len to {model.max_position} or less"
        raise _refuse("max_model_len", f"max_model_len {length} exceeds what {model.key} was made for", cure)
    if "max_num_batched_tokens" not in spec.overrides:
        if not knobs.get("enable_chunked_prefill", True):
            knobs["max_num_batched_tokens"] = max(knobs["max_num_batched_tokens"], length)
        knobs["max_num_batched_tokens"] = min(knobs["max_num_batched_tokens"], knobs["max_num_seqs"] * length)
    notes: tuple[str, ...] = ()
    if scheduler == "vllm" and release not in ((0, 11), (0, 33)):
        notes = (
            f"scheduler of vLLM {release[0]}.{release[1]}: its defaults, with the semantics read from 0.33 "
            f"({'asynchronous' if knobs['async_scheduling'] else 'synchronous'} scheduling)",
        )
    version = "static" if scheduler == "static" else f"vllm-{release[0]}.{release[1]}"
    config = EngineConfig(
        preset=spec.preset, scheduler=scheduler, version=version, max_model_len=length, notes=notes, **knobs
    )
    _check_together(config)
    return config


def _check_together(config: EngineConfig) -> None:
    tokens, seqs = config.max_num_batched_tokens, config.max_num_seqs
    if tokens < seqs:
        raise _refuse(
            "max_num_batched_tokens",
            f"max_num_batched_tokens ({tokens}) is below max_num_seqs ({seqs}): a full batch could not decode",
            f"raise max_num_batched_tokens to at least {seqs}, or lower max_num_seqs to {tokens}",
        )
    if config.scheduler == "static":
        return
    if not config.enable_chunked_prefill and tokens < config.max_model_len:
        raise _refuse(
            "max_num_batched_tokens",
            f"without chunked prefill max_num_batched_tokens ({tokens}) must hold a whole prompt of max_model_len "
            f"({config.max_model_len})",
            f"raise max_num_batched_tokens to {config.max_model_len}, lower max_model_len, or enable chunked prefill",
        )
    if 0 < config.long_prefill_token_threshold > config.max_model_len:
        raise _refuse(
            "long_prefill_token_threshold",
            f"long_prefill_token_threshold ({config.long_prefill_token_threshold}) exceeds max_model_len",
            f"set it to {config.max_model_len} or less",
        )
