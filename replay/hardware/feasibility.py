"""Whether a model can be sharded as asked, which shardings work, and the longest context that a pool holds."""

from __future__ import annotations

from replay.errors import FieldError, SpecError
from replay.hardware.entries import GpuType, ModelSpec
from replay.hardware.kv import KvLayout
from replay.hardware.weights import layer_counts

_MAX_TP = 64
_FP8_BLOCK = 128


def parallelism_fault(model: ModelSpec, tp: int, fmt: str) -> str | None:
    """Why ``tp`` ranks cannot share the model, with the numbers that work; ``None`` where they can."""
    why = _fault(model, tp, fmt)
    if why is None:
        return None
    good = ", ".join(str(n) for n in valid_tp(model, fmt))
    return f"tensor parallelism {tp} is impossible for {model.key}: {why}; choose one of {good}"


def valid_tp(model: ModelSpec, fmt: str) -> tuple[int, ...]:
    """All tensor-parallel sizes up to 64 that divide the model, in ascending order."""
    return tuple(tp for tp in range(1, _MAX_TP + 1) if _fault(model, tp, fmt) is None)


def largest_model_len(layout: KvLayout, blocks: int, below: int) -> int:
    """The largest ``max_model_len`` under ``below`` whose one request fits into ``blocks``; 0 where none does."""
    low, high = 0, below
    while low < high:
        middle = (low + high + 1) // 2
        if layout.blocks(middle) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def _fault(model: ModelSpec, tp: int, fmt: str) -> str | None:
    heads, kv = model.num_attention_heads, model.num_key_value_heads
    if heads % tp:
        return f"its {heads} attention heads do not divide by {tp}"
    if not model.kv_lora_rank and kv % tp and tp % kv:
        return f"its {kv} KV heads can be neither split nor replicated over {tp} ranks"
    for name, width in _widths(model):
        if width % tp:
            return f"its {name} of {width} does not divide by {tp}"
        if fmt == "fp8_block" and tp > 1 and (width // tp) % _FP8_BLOCK:
            return f"its {name} of {width} split {tp} ways is no multiple of the {_FP8_BLOCK}-wide fp8 blocks"
    if layer_counts(model)[2]:
        for name, count in (
            ("linear key heads", model.linear_key_heads),
            ("linear value heads", model.linear_value_heads),
        ):
            if count and count % tp:
                return f"its {count} {name} do not divide by {tp}"
    return None


def _widths(model: ModelSpec) -> list[tuple[str, int]]:
    widths = []
    if model.num_moe_layers < model.num_layers and model.intermediate_size:
        widths.append(("MLP width", model.intermediate_size))
    if model.num_experts:
        widths.append(("expert width", model.moe_intermediate_size))
        if model.shared_expert_intermediate_size:
            widths.append(("shared-expert width", model.shared_expert_intermediate_size))
    return widths


HOST_GPUS = 8
"""Cards in one host, where they are plugged in."""


def largest_tensor_parallel(gpu: GpuType) -> int:
    """GPUs that one tensor-parallel group can span: the fast domain, or a host's PCIe where cards are plugged in."""
    plugged = "PCIe" in gpu.interconnect or "bridge" in gpu.interconnect
    return max(gpu.max_scaleup_gpus, HOST_GPUS if plugged else 1)


def check_parallelism(model: ModelSpec, gpu: GpuType, tp: int, fmt: str) -> None:
    """Refuses a tensor-parallel size that this GPU type cannot link, or that does not divide this model.

    Raises:
        SpecError: ``parallelism.scale_up``, ``deployment.infeasible``; with the sizes that work.
    """
    largest = largest_tensor_parallel(gpu)
    if tp > largest:
        detail = f"tensor parallelism {tp} spans more GPUs than one interconnect domain of {gpu.key} ({largest})"
        cure = f"use tp {largest} or less, or another GPU type"
        raise SpecError("parallelism.scale_up", detail, [FieldError(detail, field="deployment.tp", cure=cure)])
    fault = parallelism_fault(model, tp, fmt)
    if fault is not None:
        works = ", ".join(str(size) for size in valid_tp(model, fmt) if size <= largest)
        cure = f"use tp {works}"
        raise SpecError("deployment.infeasible", fault, [FieldError(fault, field="deployment.tp", cure=cure)])
