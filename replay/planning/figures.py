"""From a replay's arrays to the figures of a report.

Floats are cut to nine significant digits: sums of float64 may differ in the last place between machines, results not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.goodput import attained, goodput
from replay.hardware.weights import GIB
from replay.planning.document import EngineInfo, LengthStats, Operating, StepTimeInfo, WorkloadSeries, WorkloadSummary
from replay.planning.parts import (
    CurvePoint,
    Goodput,
    MemoryBreakdown,
    MemoryPart,
    Metrics,
    MetricStats,
    ObjectiveOutcome,
)
from replay.results import Distribution, Float64Array, ReplayResult, distribution_of
from replay.specs import Objective, Scalar, default_snapshot_s
from replay.steptime.accuracy import error_sentence
from replay.steptime.choose import FAMILIES
from replay.workload import Int64Array, Workload

if TYPE_CHECKING:
    from replay.deployment import Deployment

_BIN_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
_MOST_BINS = 240
_LEAST_BINS = 10
_PS = 1e12


def figure(value: float) -> float:
    """``value`` to nine significant digits."""
    return float(f"{value:.9g}")


def optional_figure(value: float | None) -> float | None:
    """As ``figure``; ``None`` stays."""
    return None if value is None else figure(value)


def objective_outcomes(result: ReplayResult, objectives: Sequence[Objective]) -> tuple[ObjectiveOutcome, ...]:
    """The SLO table of a replay. A metric without samples meets nothing."""
    return tuple(outcome(one, result.value(one), attained(result, one)) for one in objectives)


def outcome(objective: Objective, value_s: float | None, share: float | None = None) -> ObjectiveOutcome:
    """One row of the SLO table; ``<=`` meets."""
    return ObjectiveOutcome(
        name=objective.name,
        metric=objective.metric,
        percentile=objective.percentile,
        threshold_s=objective.threshold_s,
        value_s=optional_figure(value_s),
        met=value_s is not None and value_s <= objective.threshold_s,
        margin=None if value_s is None else figure(1.0 - value_s / objective.threshold_s),
        attainment=objective.attainment,
        attained=optional_figure(share),
    )


def curve_point(
    result: ReplayResult,
    *,
    requests: int,
    replica_gpus: int,
    objectives: Sequence[Objective],
    usd_per_hour: float | None,
    spare: int = 0,
) -> CurvePoint:
    """One replayed replica count and whether it passes: no saturation, every request finished unless its client left
    when the trace says so, every objective met. ``spare`` replicas are bought beside them."""
    outcomes = objective_outcomes(result, objectives)
    served = result.finished + result.cancelled == requests and not any(result.rejected.values())
    pools = result.pools
    return CurvePoint(
        replicas=result.replicas,
        prefill_replicas=None if pools is None else pools.prefill.replicas,
        decode_replicas=None if pools is None else pools.decode.replicas,
        gpus=(result.replicas + spare) * replica_gpus,
        load_factor=optional_figure(result.load_factor),
        saturated=result.saturated,
        passed=served and not result.saturated and all(row.met for row in outcomes),
        objectives=outcomes,
        preemptions=result.preemptions,
        rejected=rejections(result),
        finished=result.finished,
        cancelled=result.cancelled,
        prefix_hit_rate=optional_figure(result.prefix_hit_rate),
        usd_per_hour=usd_per_hour,
    )


def rejections(result: ReplayResult) -> dict[str, int]:
    """Requests that were not served, by reason, without zeros, in a stable order."""
    return {reason: count for reason, count in sorted(result.rejected.items()) if count}


def operating(result: ReplayResult, workload: Workload, objectives: Sequence[Objective]) -> Operating:
    """Everything that a report says about one replay."""
    return Operating(
        metrics=Metrics(
            ttft_s=_stats(result.distribution("ttft")),
            ttft_from_admission_s=_stats(distribution_of(result.ttft_from_admission_s)),
            itl_s=_stats(result.distribution("itl")),
            tpot_s=_stats(result.distribution("tpot")),
            e2e_s=_stats(result.distribution("e2e")),
            queue_s=_stats(result.distribution("queue")),
        ),
        objectives=objective_outcomes(result, objectives),
        load_factor=optional_figure(result.load_factor),
        headroom=figure(1.0 / result.load_factor - 1.0) if result.load_factor else None,
        offered_rps=optional_figure(result.offered_rps),
        sustainable_rps=figure(result.sustainable_rps),
        saturated=result.saturated,
        requests=workload.n,
        finished=result.finished,
        rejected=rejections(result),
        cancelled=result.cancelled,
        preemptions=result.preemptions,
        prefix_hit_rate=optional_figure(result.prefix_hit_rate),
        kv_usage_mean=figure(result.kv_usage_mean),
        kv_usage_max=figure(result.kv_usage_max),
        batch_mean=figure(result.batch_mean),
        busy_fraction=figure(result.busy_fraction),
        steps=result.steps,
        duration_s=figure(result.duration_s),
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        output_tokens_per_s=figure(result.output_tokens / result.duration_s) if result.duration_s > 0 else None,
        loop=result.loop,
        notes=result.notes,
        scored=None if result.scored is None else result.scored[1] - result.scored[0],
        goodput=_goodput(result, objectives),
    )


def _goodput(result: ReplayResult, objectives: Sequence[Objective]) -> Goodput | None:
    found = goodput(result, objectives)
    if found is None:
        return None
    return Goodput(
        objectives=found.objectives,
        good=found.good,
        scored=found.scored,
        share=figure(found.good / found.scored) if found.scored else None,
        requests_per_s=optional_figure(found.requests_per_s),
    )


def metric_stats(samples: Float64Array) -> MetricStats:
    """Statistics of samples in seconds."""
    return _stats(distribution_of(samples))


def _stats(distribution: Distribution) -> MetricStats:
    at = distribution.percentiles
    return MetricStats(
        n=distribution.n,
        mean=optional_figure(distribution.mean),
        p50=optional_figure(at.get(50.0)),
        p90=optional_figure(at.get(90.0)),
        p95=optional_figure(at.get(95.0)),
        p99=optional_figure(at.get(99.0)),
        max=optional_figure(distribution.max),
    )


def memory_breakdown(deployment: Deployment) -> MemoryBreakdown:
    """The memory stack of one GPU, with the KV blocks that are replayed: an override beats the sizing."""
    memory, blocks = deployment.memory, deployment.usable_blocks
    notes: list[str] = []
    override, layout = deployment.engine.num_gpu_blocks_override, deployment.memory.layout
    kv_tokens, kv_gib, unused_gib, concurrency = (
        memory.kv_tokens, memory.kv_gib, memory.unused_gib, memory.max_concurrency
    )  # fmt: skip
    if override is not None:
        kv_gib = override * layout.block_bytes / GIB
        unused_gib += memory.kv_gib - kv_gib
        concurrency = override / memory.blocks_for(deployment.engine.max_model_len)
        notes.append(
            f"num_gpu_blocks_override {override} is replayed; by its memory the GPU would hold "
            f"{memory.kv_blocks} blocks"
        )
        if unused_gib < 0:
            kv_gib, unused_gib = memory.kv_gib, memory.unused_gib
            notes.append("this override is more than the GPU's memory holds: the engine would run out of memory")
    follows_groups = deployment.layer_groups is not None
    if override is not None and follows_groups:
        kv_tokens = int(concurrency * deployment.engine.max_model_len)
    elif override is not None or (layout.group_count > 1 and not follows_groups):
        kv_tokens = blocks * deployment.block_size
    if override is None and layout.group_count > 1 and not follows_groups:
        notes.append(
            f"{blocks} blocks of whole-context capacity are replayed; the engine counts {memory.kv_blocks} blocks over "
            f"{layout.group_count} groups of layers and prints {memory.kv_tokens} tokens"
        )
    if follows_groups and layout.group_count > 1:
        notes.append(
            f"{blocks} blocks are shared by {layout.group_count} groups of layers, and a request takes some in each: "
            "tokens are those of requests of max_model_len"
        )
    parts = (
        ("weights", memory.weights_gib),
        ("activations", memory.activation_gib),
        ("CUDA graphs", memory.cuda_graph_gib),
        ("runtime outside the framework", memory.non_torch_gib),
        ("KV cache", kv_gib),
        ("left unused", unused_gib),
    )
    return MemoryBreakdown(
        parts=tuple(MemoryPart(name=name, gib=figure(gib)) for name, gib in parts),
        total_gib=figure(memory.total_gib),
        kv_blocks=blocks,
        kv_tokens=kv_tokens,
        kv_bytes_per_token=figure(memory.kv_bytes_per_token),
        block_size=deployment.block_size,
        max_concurrency=figure(concurrency),
        notes=(*memory.notes, *notes),
    )


def engine_info(deployment: Deployment) -> EngineInfo:
    """Engine preset and resolved knobs of a deployment."""
    return EngineInfo(
        preset=deployment.engine.preset,
        version=deployment.engine.version,
        settings=deployment.engine.settings() | _router_settings(deployment),
        router=deployment.spec.router,
        weight_dtype=deployment.memory.weight_dtype,
        kv_dtype=deployment.memory.kv_dtype,
    )


def _router_settings(deployment: Deployment) -> dict[str, Scalar | None]:
    """How often the router sees the replicas' state, where that is not always."""
    spec = deployment.spec
    age_s = default_snapshot_s(spec.router) if spec.router_snapshot_s is None else spec.router_snapshot_s
    return {"router_snapshot_s": age_s} if age_s > 0 else {}


def step_time_info(deployment: Deployment) -> StepTimeInfo:
    """Calibration, provenance and stated error of a deployment's step times."""
    record = deployment.step_time
    family = FAMILIES.get(deployment.engine.scheduler, "vllm")
    error = error_sentence(record, deployment.model, deployment.gpu, deployment.memory.weight_dtype, family)
    return StepTimeInfo(
        calibration_id=record.calibration_id, provenance=record.provenance, stated_error=error, notes=record.notes
    )


def summarise_workload(workload: Workload) -> WorkloadSummary:
    """Rates, lengths and the load over time of a workload."""
    span = workload.span_s
    return WorkloadSummary(
        requests=workload.n,
        span_s=figure(span),
        mean_rps=figure(workload.n / span) if span > 0 else None,
        peak_rps_1s=_peak_rps(workload, 1),
        peak_rps_1min=_peak_rps(workload, 60),
        burstiness=_burstiness(workload),
        prompt_tokens=int(workload.prompt_tokens.sum()),
        output_tokens=int(workload.output_tokens.sum()),
        prompt_length=_lengths(workload.prompt_tokens),
        output_length=_lengths(workload.output_tokens),
        excluded=dict(sorted(workload.excluded.items())),
        undeclared_outputs=workload.n if workload.max_tokens is None else int((workload.max_tokens <= 0).sum()),
        notes=workload.notes,
        series=_series(workload),
    )


def _bins(workload: Workload, width_s: float) -> tuple[Int64Array, int]:
    index = workload.arrival_ps // round(width_s * _PS)
    last = int(index[-1]) if workload.n else 0
    return index, max(last + 1, int(np.ceil(workload.span_s / width_s)), 1)


def _peak_rps(workload: Workload, width_s: int) -> float | None:
    """Most arrivals in any window [t, t + width), over the width: windows that begin at an arrival are enough. ``None``
    where the workload is shorter."""
    if workload.n == 0 or workload.span_s < width_s:
        return None
    ends = np.searchsorted(workload.arrival_ps, workload.arrival_ps + width_s * 10**12, side="left")
    return figure(int((ends - np.arange(workload.n)).max()) / width_s)


def _burstiness(workload: Workload) -> float | None:
    """Variance over mean of the counts in whole seconds from the start; ``None`` under ten of them."""
    seconds = int(workload.span_s)
    if seconds < _LEAST_BINS:
        return None
    counts = np.bincount(workload.arrival_ps // 10**12, minlength=seconds)[:seconds]
    return figure(float(counts.var() / counts.mean())) if counts.any() else None


def _lengths(tokens: Int64Array) -> LengthStats | None:
    found = distribution_of(tokens)
    if found.mean is None:
        return None
    p50, p90, p99 = (figure(found.percentiles[q]) for q in (50.0, 90.0, 99.0))
    return LengthStats(mean=figure(found.mean), p50=p50, p90=p90, p99=p99, max=int(tokens.max()))


def _series(workload: Workload) -> WorkloadSeries:
    width = next((w for w in _BIN_WIDTHS_S if workload.extent_s / w <= _MOST_BINS), _BIN_WIDTHS_S[-1])
    index, bins = _bins(workload, width)
    requests = np.bincount(index, minlength=bins)
    prompts, outputs = np.zeros(bins, dtype=np.int64), np.zeros(bins, dtype=np.int64)
    np.add.at(prompts, index, workload.prompt_tokens)
    np.add.at(outputs, index, workload.output_tokens)
    return WorkloadSeries(
        bin_s=float(width),
        start_s=tuple(float(width * i) for i in range(bins)),
        requests=tuple(requests.tolist()),
        prompt_tokens=tuple(prompts.tolist()),
        output_tokens=tuple(outputs.tolist()),
    )
