"""Memory that the engine's start-up profiling finds beside the weights: activations, non-torch memory, CUDA graphs.

The constants were fitted to public vLLM start-up logs; docs/memory.md gives shapes, evidence and error by engine version.
All results are GiB on one GPU.
"""

from __future__ import annotations

from typing import Literal

from replay.hardware.entries import ModelSpec
from replay.hardware.versions import EngineVersion
from replay.hardware.weights import GIB

Sampler = Literal["auto", "sort", "flashinfer"]

_SORT_BUFFERS = 9.5
"""fp32 [max_num_seqs, vocabulary] buffers alive at once in the sort-based top-k/top-p sampler."""
_FUSED_BUFFERS = 3.625
"""The same with the FlashInfer or Triton sampler."""
_PEAK_FLOOR_GIB = 0.034
_FORWARD_HIDDEN = 3.66
_VISION_PEAK_GIB = 0.10


def sampler_kind(sampler: Sampler, engine: EngineVersion) -> Literal["sort", "flashinfer"]:
    """``auto``: the sort-based sampler before vLLM 0.17, the fused one from 0.17 on."""
    if sampler != "auto":
        return sampler
    return "flashinfer" if engine.at_least(0, 17) and not engine.legacy else "sort"


def logits_gib(model: ModelSpec, max_num_seqs: int) -> float:
    """One fp32 [max_num_seqs, vocabulary] buffer."""
    return max_num_seqs * model.vocab_size * 4 / GIB


def activation_gib(
    model: ModelSpec, *, tp: int, fmt: str, engine: EngineVersion, max_num_seqs: int, tokens: int, sampler: Sampler
) -> float:
    """Peak of the profiling run: the larger of the sampler's and the forward pass's, plus the vision encoder's.

    ``tokens`` is the profiled batch (``max_num_batched_tokens``). The sampler's part does not shrink with ``tp``.
    """
    hidden_bytes = model.hidden_size * 2
    workspace = _expert_workspace_gib(model, tp, fmt, tokens)
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


def _expert_workspace_gib(model: ModelSpec, tp: int, fmt: str, tokens: int) -> float:
    """Scratch of the Triton expert kernels; the MXFP4 kernels seen need none."""
    if not model.num_experts or fmt == "mxfp4":
        return 0.0
    width = model.moe_intermediate_size / tp
    hidden = model.hidden_size
    return tokens * model.experts_per_tok * 2 * (max(2 * width, hidden) + max(width, hidden)) / GIB


def non_torch_gib(model: ModelSpec, *, tp: int, engine: EngineVersion, max_num_seqs: int) -> float:
    """CUDA context beyond the baseline, NCCL and custom all-reduce buffers, by engine version and ``tp``.

    Sizes at tp 8 and above are extrapolated; from 0.31 on the model runner keeps an int32 [max_num_seqs, vocabulary]
    counter and a bit mask outside the profiled peak.
    """
    if not engine.at_least(0, 18):
        single, pair, many = 0.13, 0.55, 0.60
    else:
        single, pair, many = 0.25, 2.07, 2.17
    if engine.at_least(0, 31):
        persistent = 1.03 * logits_gib(model, max_num_seqs)
        return (0.13 if tp == 1 else pair if tp == 2 else many) + persistent
    if tp == 1:
        return single
    if tp == 2:
        return pair
    return many if tp <= 4 else many + 0.13


def cuda_graph_gib(model: ModelSpec) -> float:
    """CUDA graphs as measured on vLLM 0.19: ``0.68 + 0.158 * layers * hidden / 1e5``, and 0.49 more for MoE.

    From 0.21 on the engine subtracts its own estimate, which public threads show at half to many times this size.
    """
    return 0.68 + 0.158 * model.num_layers * model.hidden_size / 1e5 + (0.49 if model.num_experts else 0.0)
