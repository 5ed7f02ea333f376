"""Sentences about figures, in plain words with units that fit."""

from __future__ import annotations

from collections.abc import Mapping

from replay.deployment import Deployment, asks_for_length
from replay.planning.document import Recommendation
from replay.planning.parts import CurvePoint
from replay.results import RELIEVED_BY_REPLICAS
from replay.specs import Objective

REJECTIONS = {
    "too_long_for_model": "longer than max_model_len",
    "too_large_for_kv": "larger than the KV cache of one replica",
    "prompt_over_batch_budget": "longer than a batch may be without chunked prefill",
    "reservation_over_kv": "declared with more output tokens than the KV cache of one replica can be reserved for",
    "over_max_concurrent_requests": "turned away because max_concurrent_requests others were in the system",
    "over_max_num_queued_reqs": "turned away (HTTP 503) because max_num_queued_reqs others were on their replica",
    "over_max_num_queued_tokens": "turned away (HTTP 503) because their replica had max_num_queued_tokens to prefill",
    "client_timeout": "given up by their clients",
    "no_replica": "left without a replica, as all are down and none comes back",
}

_CHANCE = RELIEVED_BY_REPLICAS | {"no_replica"}
"""Reasons that depend on when a request came."""


HOW_SURE = {
    "measured": "Measured: the step times were timed on this deployment.",
    "transported": (
        "Transported: the step times are put together from kernels timed on this GPU type; nobody measured this "
        "deployment."
    ),
    "analytic": "Analytic: the step times are estimated from the GPU's data sheet, not measured.",
    "recorded": "Recorded: the step times are those of a recorded scheduler case.",
}
"""How sure step times are, by provenance."""


def quantity(seconds: float, digits: int = 3) -> str:
    """``38.4 ms`` or ``2.35 s``: three significant digits."""
    if seconds < 1.0:
        return f"{seconds * 1e3:.{digits}g} ms"
    return f"{seconds:.{digits}g} s" if seconds < 1000 else f"{seconds:.0f} s"


def deployment_text(gpu: str, tp: int, replicas: int, ranks: int = 1) -> str:
    """``5 x L40S (5 replicas of tp 1)``, or ``8 x H200 (1 replica of 8 data-parallel ranks of tp 1)``."""
    each = f"{ranks} data-parallel ranks of tp {tp}" if ranks > 1 else f"tp {tp}"
    return f"{tp * ranks * replicas} x {gpu} ({replicas} replica{'' if replicas == 1 else 's'} of {each})"


def whole_text(deployment: Deployment) -> str:
    """As ``deployment_text`` of a deployment at its replica count; both pools where it has two."""
    if deployment.decode is None:
        ranks = deployment.engine.data_parallel_size
        return deployment_text(deployment.gpu.key, deployment.spec.tp, deployment.replicas, ranks)
    return _pools_text(deployment.gpu.key, *deployment.tensor_parallel_groups)


def recommended_text(found: Recommendation) -> str:
    """The same of a recommendation."""
    pools = found.pools
    if pools is None:
        return deployment_text(found.gpu, found.tp, found.replicas, found.data_parallel_size)
    prefill, decode = ((pool.replicas, pool.tp) for pool in (pools.prefill, pools.decode))
    return _pools_text(found.gpu, prefill, decode)


def _pools_text(gpu: str, prefill: tuple[int, int], decode: tuple[int, int]) -> str:
    """From the replicas of each pool and their tensor-parallel size."""
    each = (
        f"{count} {name} replica{'' if count == 1 else 's'} of tp {tp}"
        for name, (count, tp) in (("prefill", prefill), ("decode", decode))
    )
    gpus = sum(count * tp for count, tp in (prefill, decode))
    return f"{gpus} x {gpu} ({', '.join(each)})"


def objective_text(objective: Objective) -> str:
    """``ttft_p99 <= 2 s``, or ``ttft <= 2 s for 99 % of requests``."""
    if objective.attainment is not None:
        limit = quantity(objective.threshold_s)
        return f"{objective.metric} <= {limit} for {100 * objective.attainment:.12g} % of requests"
    return f"{objective.name} <= {quantity(objective.threshold_s)}"


def rejected_sentence(rejected: Mapping[str, int], requests: int, deployment: Deployment) -> str:
    """Which requests this deployment does not serve, or never can; where its memory is why, that, and what would serve
    them."""
    parts = ", ".join(f"{count} {REJECTIONS.get(reason, reason)}" for reason, count in rejected.items())
    limit = deployment.engine.max_model_len
    parts = parts.replace("max_model_len", f"max_model_len {limit}")
    never = "can never be" if not rejected.keys() & _CHANCE else "are not"
    sentence = f"{sum(rejected.values())} of {requests} requests {never} served: {parts}"
    is_lowered = limit < deployment.model.max_position and not asks_for_length(deployment.spec)
    if "too_large_for_kv" in rejected or is_lowered:
        sentence += (
            f", all that the memory beside the weights holds on {deployment.gpu.key} at tp {deployment.spec.tp}: "
            "use a larger tp, or fp8 weights or KV cache"
        )
        return sentence
    cures = [cure for reason in rejected if (cure := _cure(reason, deployment))]
    return f"{sentence}: {'; '.join(cures)}" if cures else sentence


def _cure(reason: str, deployment: Deployment) -> str:
    """What would let the requests run that are rejected for ``reason``; empty where its name says it."""
    if reason == "prompt_over_batch_budget":
        budget = "max_num_tokens" if "max_num_tokens" in deployment.engine.settings() else "max_num_batched_tokens"
        return f"turn on enable_chunked_prefill, or raise {budget} to the longest prompt"
    if reason == "reservation_over_kv":
        return "set max_tokens_default to what clients send, or use a larger tp"
    if reason == "too_long_for_model":
        most = deployment.model.max_position
        raised = f"raise it, {deployment.model.key} takes {most}" if deployment.engine.max_model_len < most else ""
        return raised or "use a model with a longer context, or cap them with prompt_cap_tokens"
    return ""


def _apart(value_s: float, threshold_s: float) -> str:
    """The value, with as many digits as tell it from the threshold."""
    texts = (quantity(value_s, digits) for digits in range(3, 10))
    return next((text for text in texts if text != quantity(threshold_s)), quantity(value_s))


def unmet_sentence(point: CurvePoint) -> str:
    """Why a replayed count fails."""
    if point.saturated and point.load_factor is not None:
        return f"the load is {point.load_factor:.2f} times the capacity (saturated)"
    if point.finished == 0 and not point.rejected and not point.cancelled:
        return "the load takes too long to drain, so latencies were not computed"
    missed = [
        f"{row.name} is {_apart(row.value_s, row.threshold_s)} against {quantity(row.threshold_s)}"
        for row in point.objectives
        if not row.met and row.value_s is not None
    ]
    if point.rejected:
        missed.append(f"{sum(point.rejected.values())} requests are not served")
    return " and ".join(missed) if missed else "not every request finished"
