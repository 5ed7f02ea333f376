"""From a GPU's memory to KV blocks: the breakdown of one GPU, whether the model fits, and why not.

``kv = utilisation * total - weights - activation - non_torch (- CUDA graphs from vLLM 0.21 on)``; docs/memory.md
derives each part and states its error. All ``_gib`` figures are GiB (2**30 bytes) on one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from replay.errors import FieldError, SpecError
from replay.hardware.activations import (
    Sampler,
    activation_gib,
    cuda_graph_estimate_gib,
    kv_uncertainty_gib,
    non_torch_estimate_gib,
)
from replay.hardware.dtypes import kv_format, weight_format
from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.explain import explain, notes_for
from replay.hardware.feasibility import largest_model_len, parallelism_fault, valid_tp
from replay.hardware.kv import KvLayout, lay_out
from replay.hardware.plan import MemoryPlan, MemoryRequest
from replay.hardware.versions import parse_engine_version
from replay.hardware.weights import GIB, ONE_RANK, DataParallel, size_weights

__all__ = ["MemoryPlan", "MemoryRequest", "memory_answer", "size_memory"]

_TGI_WIGGLE_ROOM = 0.95
"""Share of the memory left after TGI's warm-up that becomes KV cache: the server's own constant on NVIDIA GPUs."""


@dataclass(frozen=True)
class _Parts:
    weights: float
    activation: float
    non_torch: float
    graphs: float
    budget: float
    graphs_inside: bool

    @property
    def available(self) -> float:
        """GiB left for the KV cache; negative when the rest alone does not fit."""
        inside = self.graphs if self.graphs_inside else 0.0
        return self.budget - self.weights - self.activation - self.non_torch - inside


def size_memory(
    model: ModelSpec,
    gpu: GpuType,
    *,
    tp: int,
    engine_version: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    gpu_memory_utilization: float,
    max_model_len: int,
    block_size: int = 16,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    sampler: Sampler = "auto",
    enforce_eager: bool = False,
    prefix_caching: bool = True,
    cuda_graph_gib: float | None = None,
    non_torch_gib: float | None = None,
    data_parallel: DataParallel = ONE_RANK,
) -> MemoryPlan:
    """Sizes one GPU of a deployment. An infeasible one is an answer (``fits`` false, with the reason), not an error.

    ``weight_dtype`` and ``kv_dtype`` of ``None`` or ``auto`` mean as published and 16 bit. ``gpu_memory_utilization``
    is what the engine may use (SGLang: ``mem_fraction_static``; TensorRT-LLM: ``free_gpu_memory_fraction``).

    Raises:
        SpecError: a knob out of range, an unknown format or engine, or a model whose cache cannot be sized.
    """
    _check_knobs(tp, max_num_seqs, max_num_batched_tokens, gpu_memory_utilization, max_model_len, block_size)
    request = MemoryRequest(
        model=model,
        gpu=gpu,
        tp=tp,
        engine=parse_engine_version(engine_version),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        gpu_memory_utilization=gpu_memory_utilization,
        max_model_len=max_model_len,
        block_size=block_size,
        weight_dtype=weight_format(weight_dtype, model.weight_dtype),
        kv_dtype=kv_format(kv_dtype),
        sampler=sampler,
        enforce_eager=enforce_eager,
        prefix_caching=prefix_caching,
        cuda_graph_gib=cuda_graph_gib,
        non_torch_gib=non_torch_gib,
        data_parallel=data_parallel,
    )
    plan = _plan(request, engine_version)
    if plan.fits or plan.reason is not None:
        return plan
    return plan.model_copy(update={"reason": explain(request, plan, *_working_tp(request))})


def memory_answer(plan: MemoryPlan) -> dict[str, Any]:
    """The JSON object of ``capreplay memory``: the plan's figures under stable names, rounded for reading."""
    figures = (
        "kv_gib", "weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "unused_gib", "total_gib",
        "shortfall_gib", "kv_uncertainty_gib",
    )  # fmt: skip
    return {
        "kv_blocks": plan.kv_blocks,
        "kv_tokens": plan.kv_tokens,
        **{name: round(getattr(plan, name), 4) for name in figures},
        "max_concurrency": round(plan.max_concurrency, 2),
        "longest_context_tokens": plan.longest_context_tokens,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "block_size": plan.block_size,
        "weight_dtype": plan.weight_dtype,
        "kv_dtype": plan.kv_dtype,
        "engine": plan.engine_version,
        "tp": plan.tp,
        "fits": plan.fits,
        "reason": plan.reason,
        "notes": list(plan.notes),
    }


def _plan(request: MemoryRequest, engine_version: str) -> MemoryPlan:
    fault = parallelism_fault(request.model, request.tp, request.weight_dtype)
    layout = lay_out(
        request.model,
        tp=request.tp,
        kv_dtype=request.kv_dtype,
        block_size=request.block_size,
        engine=request.engine,
        max_num_batched_tokens=request.max_num_batched_tokens,
        prefix_caching=request.prefix_caching,
    )
    parts = _parts(request)
    total = request.gpu.memory_total_gib
    pool = 0 if fault else max(0, int(parts.available * GIB)) // layout.block_bytes
    needed = layout.blocks(request.max_model_len)
    concurrency = pool / needed
    kv_gib = max(parts.available, 0.0)
    outside = max(total - parts.weights - parts.activation - parts.non_torch - kv_gib, 0.0)
    if parts.available < 0:
        outside = max(total - parts.budget, 0.0) + (parts.graphs if parts.graphs_inside else 0.0)
    graphs = min(parts.graphs, outside)
    short = (needed - pool) * layout.block_bytes / GIB if parts.available > 0 else -parts.available
    null_block = request.engine.family == "vllm" and not request.engine.legacy
    usable = max(pool - 1, 0) if null_block else pool
    fits = fault is None and needed <= pool and request.max_model_len <= request.model.max_position
    return MemoryPlan(
        kv_blocks=usable,
        kv_tokens=_logged_tokens(request, layout, pool, concurrency),
        kv_gib=kv_gib,
        weights_gib=parts.weights,
        activation_gib=parts.activation,
        non_torch_gib=parts.non_torch,
        cuda_graph_gib=graphs,
        unused_gib=outside - graphs,
        total_gib=total,
        shortfall_gib=0.0 if fits or fault else max(short, 0.0),
        kv_uncertainty_gib=kv_uncertainty_gib(
            request.model, tp=request.tp, engine=request.engine, graphs_gib=parts.graphs, total_gib=total
        ),
        max_concurrency=concurrency,
        longest_context_tokens=largest_model_len(
            layout, usable, min(request.max_model_len, request.model.max_position)
        ),
        kv_bytes_per_token=layout.bytes_per_token,
        block_size=layout.block_tokens,
        layout=layout,
        tp=request.tp,
        engine_version=engine_version,
        weight_dtype=request.weight_dtype,
        kv_dtype=request.kv_dtype,
        fits=fits,
        reason=fault,
        notes=notes_for(request, graphs_gib=parts.graphs, graphs_inside=parts.graphs_inside, outside_gib=outside),
    )


def _parts(request: MemoryRequest) -> _Parts:
    model, engine, total = request.model, request.engine, request.gpu.memory_total_gib
    weights = size_weights(model, request.tp, request.weight_dtype, engine, request.data_parallel).total / GIB
    activation = activation_gib(
        model,
        tp=request.tp,
        fmt=request.weight_dtype,
        engine=engine,
        max_num_seqs=request.max_num_seqs,
        tokens=request.max_num_batched_tokens,
        sampler=request.sampler,
        data_parallel=request.data_parallel,
    )
    outside = request.non_torch_gib
    if outside is None:
        outside = non_torch_estimate_gib(
            model, request.gpu, tp=request.tp, engine=engine, max_num_seqs=request.max_num_seqs
        )
    graphs = cuda_graph_estimate_gib(model) if request.cuda_graph_gib is None else request.cuda_graph_gib
    if request.enforce_eager:
        graphs = 0.0
    if engine.family == "sglang":
        # SGLang keeps (1 - fraction) of what was free before loading for activations and graphs; KV gets the rest.
        budget = request.gpu_memory_utilization * (total - outside) + outside + activation
        return _Parts(weights, activation, outside, graphs, budget, graphs_inside=False)
    if engine.family == "trtllm":
        left = total - weights - activation - outside
        budget = total - left * (1 - request.gpu_memory_utilization)
        return _Parts(weights, activation, outside, graphs, budget, graphs_inside=False)
    if engine.family == "tgi":
        left = request.gpu_memory_utilization * total - weights - activation - outside
        budget = request.gpu_memory_utilization * total - left * (1 - _TGI_WIGGLE_ROOM)
        return _Parts(weights, activation, outside, graphs, budget, graphs_inside=False)
    budget = request.gpu_memory_utilization * total
    return _Parts(weights, activation, outside, graphs, budget, graphs_inside=engine.at_least(0, 21))


def _logged_tokens(request: MemoryRequest, layout: KvLayout, pool: int, concurrency: float) -> int:
    """The start-up line's figure: blocks per group up to 0.19, concurrency times length in later releases."""
    if request.engine.at_least(0, 20) and layout.group_count > 1:
        return int(concurrency * request.max_model_len)
    return pool // layout.group_count * layout.block_tokens


def _working_tp(request: MemoryRequest) -> tuple[tuple[int, int] | None, int | None]:
    """The smallest larger tensor parallelism that serves anything, with its longest context, and the smallest that
    serves the context asked for; ``None`` where none up to 64 does."""
    first = None
    for tp in valid_tp(request.model, request.weight_dtype):
        if tp <= request.tp:
            continue
        plan = _plan(replace(request, tp=tp), "")
        if plan.fits:
            return first or (tp, request.max_model_len), tp
        longest = plan.longest_context_tokens
        if first is None and longest > 0:
            first = (tp, longest)
    return first, None


def _check_knobs(tp: int, seqs: int, tokens: int, utilisation: float, max_model_len: int, block_size: int) -> None:
    names = ("tp", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
    cure = "use a positive whole number"
    faults = [
        FieldError(f"{name} must be at least 1, not {value}", field=name, cure=cure)
        for name, value in zip(names, (tp, seqs, tokens, max_model_len, block_size), strict=True)
        if value < 1
    ]
    if not 0 < utilisation <= 1:
        cure = "use a fraction above 0 and at most 1, e.g. 0.9"
        detail = f"gpu_memory_utilization is {utilisation:g}: {cure}"
        faults.append(FieldError(detail, "gpu_memory_utilization", cure=cure))
    if faults:
        raise SpecError("memory.knob", "; ".join(fault.detail for fault in faults), faults)
