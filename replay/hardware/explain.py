"""Plain words for a memory plan: why it does not fit, what would, and what to know about the figures."""

from __future__ import annotations

from replay.hardware.entries import GpuType
from replay.hardware.plan import MemoryPlan, MemoryRequest
from replay.hardware.weights import GIB


def explain(request: MemoryRequest, plan: MemoryPlan, first_tp: tuple[int, int] | None, working_tp: int | None) -> str:
    """A sentence that says what is wrong and what would work.

    ``first_tp``: the smallest larger tensor parallelism that serves anything, and its longest context; ``working_tp``:
    the smallest that serves the context asked for.
    """
    model, gpu = request.model, request.gpu
    if request.max_model_len > model.max_position:
        return (
            f"max_model_len {request.max_model_len} exceeds what {model.key} was made for ({model.max_position}); "
            f"set max_model_len to {model.max_position} or less"
        )
    cure = _larger_tp(request, first_tp, working_tp)
    if plan.kv_gib <= 0:
        needed, allowed = _before_the_cache(request, plan)
        of = f"of {gpu.key}"
        if allowed != gpu.memory_total_gib:
            share = f"utilisation {request.gpu_memory_utilization:g}"
            of = f"that {share} allows on {gpu.key} ({gpu.memory_total_gib:.2f} GiB)"
        return (
            f"weights {plan.weights_gib:.2f}, activations {plan.activation_gib:.2f} and overheads need "
            f"{needed:.2f} GiB of the {allowed:.2f} GiB {of}; {cure}"
        )
    longest = plan.longest_context_tokens
    needed = plan.layout.blocks(request.max_model_len) * plan.layout.block_bytes / GIB
    used = plan.weights_gib + plan.activation_gib + plan.non_torch_gib
    shorter = f"set max_model_len to {longest} or less, or: {cure}" if longest else cure
    return (
        f"max_model_len {request.max_model_len} is too long: one such request needs {needed:.2f} GiB of KV cache and "
        f"{plan.kv_gib:.2f} GiB is left beside {used:.2f} GiB of weights and overheads; {shorter}"
    )


def _before_the_cache(request: MemoryRequest, plan: MemoryPlan) -> tuple[float, float]:
    """GiB that all but the KV cache needs, and that the engine allows for it. TensorRT-LLM's and TGI's shares are of
    what is left beside the rest, so that their shortfall is not the difference of the two."""
    family, total = request.engine.family, request.gpu.memory_total_gib
    needed = plan.weights_gib + plan.activation_gib + plan.non_torch_gib
    if family == "trtllm":
        return needed, total
    if family == "tgi":
        return needed, request.gpu_memory_utilization * total
    if family == "sglang":
        return needed, needed - plan.shortfall_gib
    allowed = request.gpu_memory_utilization * total
    return allowed + plan.shortfall_gib, allowed


def _larger_tp(request: MemoryRequest, first_tp: tuple[int, int] | None, working_tp: int | None) -> str:
    if first_tp is None:
        return "no tensor parallelism up to 64 fits; choose a GPU with more memory or fewer bits per weight"
    tp, longest = first_tp
    whole = f"tp {working_tp} fits with max_model_len {request.max_model_len}" if working_tp else ""
    if tp == working_tp:
        return whole
    return f"tp {tp} fits with max_model_len {longest}" + (f", {whole}" if whole else "")


def notes_for(request: MemoryRequest, *, graphs_gib: float, graphs_inside: bool, outside_gib: float) -> tuple[str, ...]:
    """Remarks on the figures. ``outside_gib``: what the budget leaves free, where graphs of older releases must fit."""
    engine, model, gpu = request.engine, request.model, request.gpu
    notes: list[str] = []
    if gpu.vendor.upper() != "NVIDIA":
        notes.append(
            f"the memory model was not checked on {gpu.vendor}: overheads and activations are those of NVIDIA builds"
        )
    if gpu.max_scaleup_gpus < request.tp:
        notes.append(
            f"{gpu.key} links {gpu.max_scaleup_gpus} GPU(s) by its fast interconnect; "
            f"tp {request.tp} spans PCIe or the network"
        )
    if graphs_gib and graphs_inside:
        notes.append("the CUDA-graph share is an estimate; engines have logged half to several times this size")
    elif graphs_gib > outside_gib:
        notes.append("CUDA graphs are captured outside the budget and may not fit what is left; lower the utilisation")
    if request.data_parallel.size > 1:
        notes.append(
            "memory of data-parallel ranks: experts are split over all of them, and their scratch is an upper bound; "
            "no start-up log of such a server was available"
        )
    if engine.family != "vllm":
        notes.append("no start-up logs of this engine were available: its figures are not checked")
    elif engine.at_least(0, 21) and (model.num_experts or model.num_linear_layers):
        notes.append("few start-up logs of this engine version and model class were available")
    elif not engine.at_least(0, 17) and request.sampler == "auto":
        notes.append("sized for the sort-based sampler; a server with FlashInfer installed has a larger KV cache")
    if not _has_bf16(gpu) and request.weight_dtype == "bf16":
        notes.append(f"{gpu.key} has no bf16: start the engine with dtype half; sizes are the same")
    if request.tp >= 8 and engine.family == "vllm":
        notes.append("non-torch memory at tp 8 and above is extrapolated from tp 4")
    return tuple(notes)


def _has_bf16(gpu: GpuType) -> bool:
    """False for NVIDIA GPUs before Ampere (compute capability below 8)."""
    capability = gpu.compute_capability or ""
    return gpu.vendor != "NVIDIA" or not capability[:1].isdigit() or float(capability) >= 8
