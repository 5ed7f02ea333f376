"""Puts a plan's candidates, or one replay, into the report document. Equal input gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from replay.planning.assumed import assumed_limit, assumed_outputs
from replay.planning.cost import Pricing, cost_of
from replay.planning.document import (
    CalibrationRef,
    CandidateResult,
    EngineInfo,
    PlanReport,
    ProvenanceInfo,
    Recommendation,
    ReplayReport,
    StepTimeInfo,
    WorkloadInfo,
    WorkloadSummary,
    dump_report,
)
from replay.planning.figures import engine_info, memory_breakdown, operating, step_time_info, summarise_workload
from replay.planning.over_time import timeline_part
from replay.planning.pool_split import MOST_SPLITS
from replay.planning.pools import pools_part
from replay.planning.rank import rank
from replay.planning.resolve import ResolvedPlan, ResolvedReplay
from replay.planning.split_table import split_parts
from replay.planning.verdict import plan_verdict, replay_verdict
from replay.planning.wording import objective_text
from replay.results import ReplayResult
from replay.specs import PriceFilter, Transform
from replay.workload import Workload

if TYPE_CHECKING:
    from replay.deployment import Deployment

METHOD = (
    "Every figure comes from replaying the workload's own arrivals and lengths through the engine's scheduler, "
    "step by step; arrivals are never re-drawn.",
    "A step's duration comes from the step-time record named under provenance; "
    "KV capacity from the GPU's usable memory.",
    "TTFT and E2E count from the request's arrival, queueing included; percentiles are numpy-linear over finished "
    "requests; ITL is pooled over tokens, with percentiles to 0.2 %.",
    "Load factor is offered requests per second over what the replicas sustain with a queue that never empties, "
    "on the same mix.",
)
PLAN_METHOD = (
    "A candidate's replica count is the smallest that passes: no saturation, every request served, every objective "
    "met. The count below it was replayed too and fails.",
    "Costs are whole instances of the cheapest matching offer, without tax; a month is 730 hours; cost per token "
    "divides what is paid by the tokens that the workload brings.",
)
POOLS_METHOD = (
    "Replicas are those of both pools. A count passes with the first of its splits into prefill and decode that does; "
    f"up to {MOST_SPLITS} splits of each count are replayed.",
)
LIMITS = (
    "Network time between client and server, other tenants and the roll-out of replicas are not included; failures and "
    "late starts of replicas only where they are asked for.",
    "Prices are those of the named source at the named date, not a quote.",
)
UNCACHED_LIMIT = "Prompts are computed in full: hits in a prefix cache would lower TTFT and load."
CACHED_LIMIT = (
    "Prefix-cache hits are those of the prefixes that the trace names; what the cache held before the trace began is "
    "not known, so it starts empty."
)
RANGE_LIMIT = (
    "The range beside a count covers the stated error of step times and KV cache, as if all steps were off alike; not "
    "a workload that differs from the trace. Measure one low-load run of the deployment before buying."
)
ESTIMATED_LIMITS = {
    "analytic": "Step times are estimates from data sheets, not measurements",
    "transported": (
        "Step times are put together from single kernels timed on the GPU type, not measurements of this deployment"
    ),
}
"""What a report says of step times that nobody measured on the deployment, by provenance."""
LONGER_STEPS = (
    "a step time that is x % longer raises the load factor by x %, and latencies near saturation by several times x %. "
    "Measure one low-load run of the deployment before buying."
)


def build_plan_report(
    plan: ResolvedPlan,
    results: Sequence[CandidateResult],
    *,
    workload: WorkloadSummary,
    ingest: Mapping[str, JsonValue],
    kernel_version: str,
) -> dict[str, JsonValue]:
    """The document of a plan. ``results`` in any order, one a candidate; ``ingest`` is the ingest job's report.

    Raises:
        ValueError: where a candidate's result is missing or given twice.
    """
    by_candidate = {(result.gpu, result.tp): result for result in results}
    wanted = [(candidate.gpu_key, candidate.tp) for candidate in plan.candidates()]
    if len(results) != len(wanted) or set(by_candidate) != set(wanted):
        raise ValueError(f"results for {sorted(by_candidate)} do not match the candidates {sorted(wanted)}")
    ordered = [by_candidate[key] for key in wanted]
    recommendations = rank(r.recommendation for r in ordered if r.recommendation is not None)
    infeasible = tuple(r.infeasible for r in ordered if r.infeasible is not None)
    spec = plan.spec
    calibrations = _calibrations(used for one in ordered for used in _step_times(one))
    engine = next((result.engine for result in ordered if result.engine is not None), None)
    assumed = assumed_outputs(workload, engine)
    limits = (*_limits(calibrations, cached=_prefixes_were_cached(ordered), ending="."), RANGE_LIMIT)
    report = PlanReport(
        name=spec.name,
        verdict=plan_verdict(plan.spec.objectives, recommendations, infeasible, assumed),
        model=plan.model.key,
        workload=_workload_info(workload, plan.trace.name, spec.transform, ingest),
        provenance=_provenance(
            plan,
            calibrations,
            engine,
            spec.engine.preset,
            spec.seed,
            kernel_version,
        ),
        method=METHOD + PLAN_METHOD + (() if spec.disaggregation is None else POOLS_METHOD),
        limits=assumed_limit(assumed) + limits,
        warnings=_warnings(workload, ingest, calibrations) + _price_warnings(recommendations),
        objectives=tuple(objective_text(objective) for objective in spec.objectives),
        constraints={
            "max_gpus": spec.max_gpus,
            "max_usd_per_hour": spec.max_usd_per_hour,
            "provider": spec.price.provider,
            "region": spec.price.region,
            "term": spec.price.term,
        },
        recommendations=recommendations,
        infeasible=infeasible,
    )
    return dump_report(report)


def build_replay_report(
    replay: ResolvedReplay,
    deployment: Deployment,
    result: ReplayResult,
    workload: Workload,
    *,
    ingest: Mapping[str, JsonValue],
    kernel_version: str,
) -> dict[str, JsonValue]:
    """The document of a replay of one deployment."""
    objectives = replay.spec.objectives
    figures = operating(result, workload, objectives)
    step_time, engine = step_time_info(deployment), engine_info(deployment)
    spec, tp, replicas = replay.spec, deployment.memory.tp, result.replicas
    summary = summarise_workload(workload)
    calibrations = _calibrations(
        (replay.gpu.key, step_time_info(pool)) for pool in (deployment, deployment.decode) if pool is not None
    )
    pricing = Pricing(replay.gpu.key, tp, PriceFilter(), replay.prices)
    report = ReplayReport(
        verdict=replay_verdict(figures, deployment),
        model=replay.model.key,
        workload=_workload_info(summary, replay.trace.name, spec.transform, ingest),
        provenance=_provenance(replay, calibrations, engine, spec.deployment.engine.preset, spec.seed, kernel_version),
        method=METHOD,
        limits=assumed_limit(assumed_outputs(summary, engine))
        + _limits(calibrations, cached=figures.prefix_hit_rate is not None, ending=f": {LONGER_STEPS}"),
        warnings=_warnings(summary, ingest, calibrations),
        gpu=replay.gpu.key,
        tp=tp,
        replicas=replicas,
        gpus=deployment.gpus,
        operating=figures,
        cost=cost_of(
            pricing,
            replicas,
            prompt_tokens=result.prompt_tokens,
            output_tokens=result.output_tokens,
            span_s=workload.span_s,
            saturated=result.saturated,
            burst=result.offered_rps is None,
            groups=deployment.tensor_parallel_groups,
        ),
        memory=memory_breakdown(deployment),
        engine=engine,
        step_time=step_time,
        objectives=tuple(objective_text(objective) for objective in objectives),
        timeline=timeline_part(result, deployment, spec.timeline_bin_s),
        splits=split_parts(result, objectives),
        pools=pools_part(result, deployment),
    )
    return dump_report(report)


def _workload_info(
    summary: WorkloadSummary, trace_name: str, transform: Transform, ingest: Mapping[str, JsonValue]
) -> WorkloadInfo:
    fields = {name: getattr(summary, name) for name in type(summary).model_fields}
    return WorkloadInfo(**fields, trace_name=trace_name, transform=transform, ingest=dict(ingest))


def _step_times(found: CandidateResult) -> list[tuple[str, StepTimeInfo]]:
    """GPU type and step times of a candidate, of both its pools where it has two."""
    pools = None if found.recommendation is None else found.recommendation.pools
    used = (found.step_time, None if pools is None else pools.decode.step_time)
    return [(found.gpu, one) for one in used if one is not None]


def _calibrations(used: Iterable[tuple[str, StepTimeInfo]]) -> tuple[CalibrationRef, ...]:
    """Each calibration once, from the GPU type and the step times of every deployment or pool."""
    found = {
        (gpu, step_time.calibration_id): CalibrationRef(
            gpu=gpu,
            calibration_id=step_time.calibration_id,
            provenance=step_time.provenance,
            stated_error=step_time.stated_error,
        )
        for gpu, step_time in used
    }
    return tuple(found.values())


def _provenance(
    resolved: ResolvedPlan | ResolvedReplay,
    calibrations: tuple[CalibrationRef, ...],
    engine: EngineInfo | None,
    preset: str,
    seed: int,
    kernel_version: str,
) -> ProvenanceInfo:
    return ProvenanceInfo(
        trace_sha256=resolved.trace.sha256,
        catalogue_version=resolved.catalogue_version,
        kernel_version=kernel_version,
        engine_preset=preset,
        engine_version=engine.version if engine is not None else preset,
        seed=seed,
        input_hash=resolved.input_hash(),
        calibrations=calibrations,
    )


def _prefixes_were_cached(results: Sequence[CandidateResult]) -> bool:
    answers = [result.recommendation or result.infeasible for result in results]
    return any(point.prefix_hit_rate is not None for answer in answers if answer for point in answer.curve)


def _limits(calibrations: tuple[CalibrationRef, ...], *, cached: bool, ending: str) -> tuple[str, ...]:
    limits = (*LIMITS, CACHED_LIMIT if cached else UNCACHED_LIMIT)
    found = {calibration.provenance for calibration in calibrations}
    return (*limits, *(text + ending for provenance, text in ESTIMATED_LIMITS.items() if provenance in found))


def _warnings(
    workload: WorkloadSummary, ingest: Mapping[str, JsonValue], calibrations: tuple[CalibrationRef, ...]
) -> tuple[str, ...]:
    said = ingest.get("warnings")
    warnings = [text for text in said if isinstance(text, str)] if isinstance(said, list) else []
    if workload.excluded:
        parts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in workload.excluded.items())
        warnings.append(f"{sum(workload.excluded.values())} requests of the trace are not in the workload: {parts}.")
    analytic = sorted({c.gpu for c in calibrations if c.provenance == "analytic"})
    if analytic:
        warnings.append(f"Step times of {', '.join(analytic)} are analytic: estimated from data sheets, not measured.")
    return tuple(warnings)


def _price_warnings(recommendations: tuple[Recommendation, ...]) -> tuple[str, ...]:
    reasons = sorted({found.price_reason for found in recommendations if found.price_reason is not None})
    return tuple(f"No price: {reason}." for reason in reasons)
