"""Memory that the engine's start-up profiling finds beside the weights: activations, non-torch memory, CUDA graphs.

The constants were fitted to public vLLM start-up logs; docs/memory.md gives shapes, evidence and error by version.
All results are GiB on one GPU.
"""

from __future__ import annotations

from typing import Literal

from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.versions import EngineVersion
from replay.hardware.weights import GIB, ONE_RANK, DataParallel

Sampler = Literal["auto", "sort", "flashinfer"]

_SORT_BUFFERS = 9.5
"""fp32 [max_num_seqs, vocabulary] buffers alive at once in the sort-based top-k/top-p sampler."""
_FUSED_BUFFERS = 3.625
"""The same with the FlashInfer or Triton sampler."""
_COUNTER_BUFFERS = 1.03
_PEAK_FLOOR_GIB = 0.034
_FORWARD_HIDDEN = 3.66
_VISION_PEAK_GIB = 0.10
_NVLINK_BUFFERS = ((2.045, 0.0008), (2.087, 0.00155), (2.13, 0.0023))
"""GiB at tp 2, tp 4 and beyond since 0.18: a constant and a share per layer."""


def sampler_kind(sampler: Sampler, engine: EngineVersion) -> Literal["sort", "flashinfer"]:
    """``auto``: the sort-based sampler before vLLM 0.17, the fused one from 0.17 on."""
    if sampler != "auto":
        return sampler
    return "flashinfer" if engine.at_least(0, 17) and not engine.legacy else "sort"


def logits_gib(model: ModelSpec, max_num_seqs: int) -> float:
    """One fp32 [max_num_seqs, vocabulary] buffer."""
    return max_num_seqs * model.vocab_size * 4 / GIB


def activation_gib(
    model: ModelSpec,
    *,
    tp: int,
    fmt: str,
    engine: EngineVersion,
    max_num_seqs: int,
    tokens: int,
    sampler: Sampler,
    data_parallel: DataParallel = ONE_RANK,
) -> float:
    """Peak of the profiling run: the larger of the sampler's and the forward pass's, plus the vision encoder's.

    ``tokens`` is the profiled batch (``max_num_batched_tokens``). The sampler's part does not shrink with ``tp``.
    """
    hidden_bytes = model.hidden_size * 2
    workspace = _expert_workspace_gib(model, tp, fmt, tokens, data_parallel)
    buffers = _SORT_BUFFERS if sampler_kind(sampler, engine) == "sort" else _FUSED_BUFFERS
    sampling = (
        buffers * logits_gib(model, max_num_seqs) + (tokens + 2 * max_num_seqs) * hidden_bytes / GIB + _PEAK_FLOOR_GIB
    )
    if engine.at_least(0, 17):
        sampling += workspace
    forward = tokens * (3 * _widest_mlp(model) / tp * 2 + _FORWARD_HIDDEN * hidden_bytes) / GIB
    forward += _PEAK_FLOOR_GIB + workspace
    peak = max(sampling, forward)
    if model.vision_params_b:
        extra = _VISION_PEAK_GIB if model.vision_peak_gib is None else model.vision_peak_gib
        peak += tokens * hidden_bytes / GIB + extra
    return peak


def _widest_mlp(model: ModelSpec) -> int:
    if model.num_experts and model.num_moe_layers >= model.num_layers:
        return model.shared_expert_intermediate_size
    return model.intermediate_size


def _expert_workspace_gib(model: ModelSpec, tp: int, fmt: str, tokens: int, data_parallel: DataParallel) -> float:
    """Scratch of the Triton expert kernels; the MXFP4 kernels seen need none. Data-parallel ranks gather the tokens of
    all of them: an upper bound, since no start-up log of such a server was seen."""
    if not model.num_experts or fmt == "mxfp4":
        return 0.0
    width = model.moe_intermediate_size / (1 if data_parallel.expert_parallel else tp * data_parallel.size)
    hidden, tokens = model.hidden_size, tokens * data_parallel.size
    return tokens * model.experts_per_tok * 2 * (max(2 * width, hidden) + max(width, hidden)) / GIB


def non_torch_estimate_gib(
    model: ModelSpec, gpu: GpuType, *, tp: int, engine: EngineVersion, max_num_seqs: int
) -> float:
    """Memory outside PyTorch's allocator: communication buffers, workspaces and kernels, by engine version and ``tp``.

    Between GPUs without a fast interconnect the buffers are small. From 0.31 on the model runner keeps an int32
    [max_num_seqs, vocabulary] counter and a bit mask outside the profiled peak. Figures at ``tp`` 8 are extrapolated.
    """
    recent = engine.at_least(0, 18)
    persistent = _COUNTER_BUFFERS * logits_gib(model, max_num_seqs) if engine.at_least(0, 31) else 0.0
    if tp == 1:
        return (0.25 if recent and not persistent else 0.13) + persistent
    step = 0 if tp == 2 else 1 if tp <= 4 else 2
    if gpu.max_scaleup_gpus == 1:
        return (0.42, 0.47, 0.52)[step] + persistent if recent else (0.30, 0.35, 0.40)[step]
    if not recent:
        return (0.55, 0.60, 0.65)[step]
    base, per_layer = _NVLINK_BUFFERS[step]
    return base + per_layer * model.num_layers + persistent


def cuda_graph_estimate_gib(model: ModelSpec) -> float:
    """CUDA graphs as measured on vLLM 0.19: ``0.68 + 0.158 * layers * hidden / 1e5``, and 0.49 more for MoE.

    From 0.21 on the engine subtracts its own estimate, which public threads show at half to many times this size.
    """
    return 0.68 + 0.158 * model.num_layers * model.hidden_size / 1e5 + (0.49 if model.num_experts else 0.0)


def kv_uncertainty_gib(
    model: ModelSpec, *, tp: int, engine: EngineVersion, graphs_gib: float, total_gib: float
) -> float:
    """Half width of a 90 % interval around the KV cache's size, from the errors on start-up logs (docs/memory.md 5).

    Best known are vLLM 0.17 to 0.20 on Hopper; from 0.21 on the engine's own CUDA-graph estimate dominates; the V0
    engine and other engines have hardly any logs.
    """
    if engine.family != "vllm":
        return 0.05 * total_gib
    if engine.legacy:
        return 0.03 * total_gib
    special = bool(model.num_experts or model.num_linear_layers or model.num_window_layers)
    width = 0.25 + (0.15 if special else 0.0) + (0.3 if tp >= 8 else 0.1 if tp > 1 else 0.0)
    if engine.at_least(0, 21):
        width += graphs_gib * (1.0 if special else 0.5)
    return width
