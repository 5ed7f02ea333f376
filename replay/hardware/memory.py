"""From a GPU's memory to KV blocks: the breakdown of one GPU, whether the model fits, and why not.

``kv = utilisation * total - weights - activation - non_torch (- CUDA graphs from vLLM 0.21 on)``; docs/memory.md derives
each part and states its error. All ``_gib`` figures are GiB (2**30 bytes) on one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from replay.errors import FieldError, SpecError
from replay.hardware.activations import (
    Sampler,
    activation_gib,
    cuda_graph_gib,
    non_torch_gib,
)
from replay.hardware.dtypes import kv_format, weight_format
from replay.hardware.entries import Entry, GpuType, ModelSpec
from replay.hardware.feasibility import largest_model_len, parallelism_fault, valid_tp
from replay.hardware.kv import KvLayout, lay_out
from replay.hardware.versions import EngineVersion, parse_engine_version
from replay.hardware.weights import GIB, size_weights


class MemoryPlan(Entry):
    """What one GPU's memory holds. Where ``fits``, the ``_gib`` parts add up to ``total_gib``.

    ``kv_blocks``: blocks that requests can use (the engine's null block is taken off); ``kv_tokens``: what the engine's
    start-up line prints; ``max_concurrency``: requests of ``max_model_len`` tokens at once. With ``fits`` false
    ``reason`` says why and what would work, and ``shortfall_gib`` what is missing.
    """

    kv_blocks: int
    kv_tokens: int
    kv_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graph_gib: float
    unused_gib: float
    total_gib: float
    shortfall_gib: float = 0.0
    max_concurrency: float
    kv_bytes_per_token: int
    block_size: int
    layout: KvLayout
    tp: int
    engine_version: str
    weight_dtype: str
    kv_dtype: str
    fits: bool
    reason: str | None = None
    notes: tuple[str, ...] = ()

    def blocks_for(self, tokens: int) -> int:
        """Physical blocks that one request of ``tokens`` tokens holds."""
        return self.layout.blocks(tokens)


@dataclass(frozen=True)
class MemoryRequest:
    """The inputs of one sizing: model and GPU, sharding, precision, and the engine's knobs under its own names.

    ``tokens``: the profiled batch; ``sampler``: ``auto`` takes the version's default; ``cuda_graph_gib`` and
    ``non_torch_gib`` replace the estimates by a logged figure; ``enforce_eager`` means no CUDA graphs.
    """

    model: ModelSpec
    gpu: GpuType
    tp: int
    engine: EngineVersion
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    max_model_len: int
    block_size: int
    weight_dtype: str
    kv_dtype: str
    sampler: Sampler = "auto"
    enforce_eager: bool = False
    prefix_caching: bool = True
    cuda_graph_gib: float | None = None
    non_torch_gib: float | None = None


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
        return (
            self.budget - self.weights - self.activation - self.non_torch - (self.graphs if self.graphs_inside else 0)
        )


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
) -> MemoryPlan:
    """Sizes one GPU of a deployment. An infeasible one is an answer (``fits`` false, with the reason), not an error.

    ``weight_dtype`` and ``kv_dtype`` of ``None`` or ``auto`` mean as published and 16 bit. ``gpu_memory_utilization`` is the
    fraction the engine may use (for SGLang: ``mem_fraction_static``).

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
    )
    plan = _plan(request, engine_version)
    return plan if plan.fits else plan.model_copy(update={"reason": _explain(request, plan)})


def memory_answer(plan: MemoryPlan) -> dict[str, Any]:
    """The JSON object of ``capreplay memory``: the plan's figures under stable names, rounded for reading."""
    figures = ("kv_gib", "weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "unused_gib", "total_gib")
    answer: dict[str, Any] = {"kv_blocks": plan.kv_blocks, "kv_tokens": plan.kv_tokens}
    answer.update({name: round(getattr(plan, name), 4) for name in figures})
    answer.update(
        {
            "shortfall_gib": round(plan.shortfall_gib, 4),
            "max_concurrency": round(plan.max_concurrency, 2),
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
    )
    return answer


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
    pool = max(0, int(parts.available * GIB)) // layout.block_bytes
    needed = layout.blocks(request.max_model_len)
    concurrency = pool / needed
    kv_gib = max(parts.available, 0.0)
    outside = total - parts.weights - parts.activation - parts.non_torch - kv_gib
    graphs = min(parts.graphs, max(outside, 0.0))
    short = (needed - pool) * layout.block_bytes / GIB if parts.available > 0 else -parts.available
    usable = pool if request.engine.legacy or request.engine.family != "vllm" else max(pool - 1, 0)
    too_long = request.max_model_len > request.model.max_position
    fits = fault is None and needed <= pool and not too_long
    return MemoryPlan(
        kv_blocks=usable,
        kv_tokens=_logged_tokens(request, layout, pool, concurrency),
        kv_gib=kv_gib,
        weights_gib=parts.weights,
        activation_gib=parts.activation,
        non_torch_gib=parts.non_torch,
        cuda_graph_gib=graphs,
        unused_gib=max(outside - graphs, 0.0),
        total_gib=total,
        shortfall_gib=0.0 if fits else max(short, 0.0),
        max_concurrency=concurrency,
        kv_bytes_per_token=layout.bytes_per_token,
        block_size=layout.block_tokens,
        layout=layout,
        tp=request.tp,
        engine_version=engine_version,
        weight_dtype=request.weight_dtype,
        kv_dtype=request.kv_dtype,
        fits=fits,
        reason=fault,
        notes=_notes(request, parts, outside),
    )


def _parts(request: MemoryRequest) -> _Parts:
    model, engine, total = request.model, request.engine, request.gpu.memory_total_gib
    weights = size_weights(model, request.tp, request.weight_dtype, engine).total / GIB
    tokens = request.max_num_batched_tokens
    activation = activation_gib(
        model,
        tp=request.tp,
        fmt=request.weight_dtype,
        engine=engine,
        max_num_seqs=request.max_num_seqs,
        tokens=tokens,
        sampler=request.sampler,
    )
    outside = request.non_torch_gib
    if outside is None:
        outside = non_torch_gib(model, tp=request.tp, engine=engine, max_num_seqs=request.max_num_seqs)
    graphs = request.cuda_graph_gib
    if graphs is None:
        graphs = cuda_graph_gib(model)
    if request.enforce_eager:
        graphs = 0.0
    if engine.family == "sglang":
        # SGLang reserves (1 - fraction) of the memory free before loading for activations and graphs, and gives KV the rest.
        free = total - outside
        budget = request.gpu_memory_utilization * free + outside + activation
        return _Parts(weights, activation, outside, graphs, budget, graphs_inside=False)
    if engine.family == "trtllm":
        left = total - weights - activation - outside
        budget = total - left * (1 - request.gpu_memory_utilization)
        return _Parts(weights, activation, outside, graphs, budget, graphs_inside=False)
    budget = request.gpu_memory_utilization * total
    inside = engine.family != "vllm" or engine.at_least(0, 21)
    return _Parts(weights, activation, outside, graphs, budget, graphs_inside=inside)


def _logged_tokens(request: MemoryRequest, layout: KvLayout, pool: int, concurrency: float) -> int:
    """The start-up line's figure: blocks per group up to 0.19, concurrency times length in later releases."""
    if request.engine.at_least(0, 20) and not request.engine.legacy and layout.group_count > 1:
        return int(concurrency * request.max_model_len)
    return pool // layout.group_count * layout.block_tokens


def _notes(request: MemoryRequest, parts: _Parts, outside: float) -> tuple[str, ...]:
    notes: list[str] = []
    engine, model = request.engine, request.model
    if request.gpu.max_scaleup_gpus < request.tp:
        notes.append(
            f"{request.gpu.key} links {request.gpu.max_scaleup_gpus} GPU(s) by its fast interconnect; "
            f"tp {request.tp} spans PCIe or the network"
        )
    if parts.graphs and not parts.graphs_inside and outside < parts.graphs:
        notes.append(
            "CUDA graphs are captured outside the budget and may not fit into what is left; lower the utilisation"
        )
    if parts.graphs and parts.graphs_inside:
        notes.append("the CUDA-graph share is an estimate; engines have logged half to several times this size")
    if engine.family != "vllm":
        notes.append("no start-up logs of this engine were available: its figures are not checked")
    elif engine.at_least(0, 21) and (model.num_experts or model.num_linear_layers):
        notes.append("few start-up logs of this engine version and model class were available")
    if request.tp >= 8 and engine.family == "vllm":
        notes.append("non-torch memory at tp 8 and above is extrapolated from tp 4")
    return tuple(notes)


def _explain(request: MemoryRequest, plan: MemoryPlan) -> str:
    """A sentence that says what is wrong and what would work."""
    model, gpu = request.model, request.gpu
    if plan.reason is not None:
        return plan.reason
    if request.max_model_len > model.max_position:
        return (
            f"max_model_len {request.max_model_len} exceeds what {model.key} was made for ({model.max_position}); "
            f"set max_model_len to {model.max_position} or less"
        )
    cure = _tp_cure(request)
    used = plan.weights_gib + plan.activation_gib + plan.non_torch_gib
    budget = request.gpu_memory_utilization * gpu.memory_total_gib
    if plan.kv_gib <= 0:
        return (
            f"does not fit: weights {plan.weights_gib:.2f}, activations {plan.activation_gib:.2f} and overheads need "
            f"{budget + plan.shortfall_gib:.2f} GiB of the {budget:.2f} GiB that utilisation {request.gpu_memory_utilization:g} "
            f"allows on {gpu.key} ({gpu.memory_total_gib:.2f} GiB); {cure}"
        )
    longest = largest_model_len(plan.layout, plan.kv_blocks + 1, request.max_model_len)
    shorter = f"set max_model_len to {longest} or less, or {cure}" if longest else cure
    return (
        f"max_model_len {request.max_model_len} is too long: one such request needs "
        f"{plan.layout.blocks(request.max_model_len) * plan.layout.block_bytes / GIB:.2f} GiB of KV cache and "
        f"{plan.kv_gib:.2f} GiB is left beside {used:.2f} GiB of weights and overheads; {shorter}"
    )


def _tp_cure(request: MemoryRequest) -> str:
    """The smallest larger tensor parallelism that fits, or the plain statement that none does."""
    for tp in valid_tp(request.model, request.weight_dtype):
        if tp > request.tp and _plan(replace(request, tp=tp), "").fits:
            return f"the smallest tensor parallelism that fits is {tp}"
    return "no tensor parallelism up to 64 fits; choose a GPU with more memory or fewer bits per weight"


def _check_knobs(tp: int, seqs: int, tokens: int, utilisation: float, max_model_len: int, block_size: int) -> None:
    faults = []
    for name, value in (
        ("tp", tp),
        ("max_num_seqs", seqs),
        ("max_num_batched_tokens", tokens),
        ("max_model_len", max_model_len),
        ("block_size", block_size),
    ):
        if value < 1:
            faults.append(
                FieldError(f"{name} must be at least 1, not {value}", field=name, cure="use a positive whole number")
            )
    if not 0 < utilisation <= 1:
        cure = "use a fraction above 0 and at most 1, e.g. 0.9"
        faults.append(
            FieldError(f"gpu_memory_utilization is {utilisation:g}: {cure}", "gpu_memory_utilization", cure=cure)
        )
    if faults:
        raise SpecError("memory.knob", "; ".join(fault.detail for fault in faults), faults)
