"""Workload x Deployment -> ReplayResult: the one entry to the kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.deployment import Deployment
from replay.errors import FieldError, SpecError
from replay.kernels.loglinear import gap_bin_edges_ps
from replay.kernels.state import NEVER, Requests
from replay.machine import (
    Checkpoint,
    EngineRun,
    Int32Array,
    Int64Array,
    Machine,
    make_machine,
    make_requests,
    run_deployment,
    take_requests,
)
from replay.results import STATUSES, Histogram, ReplayResult, RequestTable
from replay.workload import Workload

BoolArray = npt.NDArray[np.bool_]

PS_PER_S = 1e12
LATEST_ARRIVAL_PS = 90 * 86_400 * 10**12
"""int64 picoseconds reach 106 days; the last arrivals need room to finish."""
_CAPACITY_REQUESTS = 8192
"""Requests of the back-to-back run that measures capacity: several times the largest batch."""


def _nothing() -> None:
    return None


def simulate(
    workload: Workload, deployment: Deployment, *, threads: int = 1, checkpoint: Checkpoint = _nothing
) -> ReplayResult:
    """Replays ``workload`` on ``deployment``.

    ``threads`` share the replicas of a round-robin deployment and change nothing in the result. ``checkpoint`` is
    called about once a second and may raise to stop. Requests that can never run there are counted by reason and take
    part in no latency figure.

    Raises:
        SpecError: an empty workload, one that is too long for int64 picoseconds, or a router the scheduler lacks.
    """
    _check(workload, deployment)
    status = _judge(workload, deployment)
    served = status == 0
    prefix = workload.prefix
    machine = make_machine(deployment, None if prefix is None else prefix.block_tokens)
    if prefix is not None and machine.config.prefix_caching and len(status) > served.sum():
        prefix = prefix.take(np.flatnonzero(served))
    requests = make_requests(
        workload.arrival_ps[served] + deployment.step_time.request_overhead_ps,
        workload.prompt_tokens[served],
        workload.output_tokens[served],
        prefix if machine.config.prefix_caching else None,
    )
    run = run_deployment(machine, requests, deployment.replicas, threads, checkpoint)
    if (run.last_ps == NEVER).any():
        raise RuntimeError("a request that fits was never finished: this is a defect of the engine")
    capacity_rps, capacity_kernel_s = _capacity_rps(machine.alone(), requests, checkpoint)
    return _result(workload, deployment, status, run, machine.loop, capacity_rps, run.kernel_s + capacity_kernel_s)


def _check(workload: Workload, deployment: Deployment) -> None:
    if workload.n == 0:
        cure = "widen the window, or upload a trace whose requests have prompt and output lengths"
        raise SpecError("workload.empty", "the workload holds no request", [FieldError(cure, "transform", cure=cure)])
    if int(workload.arrival_ps[-1]) > LATEST_ARRIVAL_PS:
        cure = "choose a window of 90 days or less"
        raise SpecError(
            "workload.too_long", "the workload is longer than 90 days", [FieldError(cure, "transform", cure=cure)]
        )
    if deployment.engine.scheduler == "static" and deployment.spec.router != "round_robin":
        cure = "use router round_robin, or another engine preset"
        detail = "static batching is replayed behind round robin only"
        raise SpecError("deployment.router", detail, [FieldError(detail, "router", cure=cure)])


def _judge(workload: Workload, deployment: Deployment) -> npt.NDArray[np.int64]:
    """Index into ``STATUSES`` by request: 0 where it can run."""
    engine = deployment.engine
    total = workload.prompt_tokens + workload.output_tokens
    status = np.zeros(workload.n, dtype=np.int64)
    blocks = (total - 1 + deployment.block_size - 1) // deployment.block_size
    status[blocks > deployment.usable_blocks] = STATUSES.index("too_large_for_kv")
    if not engine.enable_chunked_prefill:
        status[total > engine.max_num_batched_tokens] = STATUSES.index("prompt_over_batch_budget")
    status[total > engine.max_model_len] = STATUSES.index("too_long_for_model")
    return status


def _capacity_rps(machine: Machine, requests: Requests, checkpoint: Checkpoint) -> tuple[float, float]:
    """Requests per second that one replica sustains with a queue that never empties, on the workload's own mix, and the
    kernel seconds spent.

    The workload, thinned or repeated to a fixed count, is offered all at once. The rate is that of admissions after the
    first quarter, when the batch has filled; where everything is admitted at once, requests over the whole run. With
    prefix caching the head of the workload is taken as it is: repeats would hit and a thinned one would miss.
    """
    n = len(requests.arrival_ps)
    if n == 0:
        return 0.0, 0.0
    count = _CAPACITY_REQUESTS
    if machine.config.prefix_caching:
        count = min(n, count)
        chosen = np.arange(count, dtype=np.int64)
    else:
        chosen = np.arange(count, dtype=np.int64) % n if n < count else np.arange(count, dtype=np.int64) * n // count
    burst = take_requests(requests, chosen)._replace(arrival_ps=np.zeros(count, np.int64))
    run = machine.run(burst, checkpoint)
    admitted = np.sort(run.admitted_ps)
    quarter = count // 4
    window_ps = int(admitted[-1] - admitted[quarter])
    whole_ps = int(run.last_ps.max())
    if window_ps > whole_ps // 4:
        return (count - 1 - quarter) / (window_ps / PS_PER_S), run.kernel_s
    return count / (whole_ps / PS_PER_S), run.kernel_s


def _histogram(run: EngineRun) -> Histogram:
    """Pooled ITL: bins of at most 0.4 %, mean and maximum exact."""
    low, high = gap_bin_edges_ps()
    used = np.flatnonzero(run.gaps)
    gaps = int(run.gaps.sum())  # none where all tokens of a request come at once
    total_ps = (run.last_ps - run.first_ps).astype(np.float64).sum()
    return Histogram(
        value_s=(low[used] + high[used]) / 2 / PS_PER_S,
        weight=run.gaps[used],
        mean_s=float(total_ps / gaps / PS_PER_S) if gaps else None,
        max_s=run.gap_max_ps / PS_PER_S if gaps else None,
    )


def _scatter(values: Int64Array | Int32Array, served: BoolArray) -> Int64Array:
    whole = np.full(len(served), NEVER, dtype=np.int64)
    whole[served] = values
    return whole


def _load_notes(workload: Workload) -> tuple[str, ...]:
    if workload.n > 1 and workload.span_s <= 0:
        return ("all requests arrive at once: there is no offered rate, so saturation is not judged",)
    return ()


def _rejections(status: Int64Array) -> dict[str, int]:
    """Requests that could not run, by reason."""
    counts = np.bincount(status, minlength=len(STATUSES)).tolist()
    return {name: count for name, count in zip(STATUSES[1:], counts[1:], strict=True) if count}


def _result(
    workload: Workload,
    deployment: Deployment,
    status: Int64Array,
    run: EngineRun,
    loop: str,
    capacity_rps: float,
    kernel_s: float,
) -> ReplayResult:
    served = status == 0
    arrival, output = workload.arrival_ps[served], workload.output_tokens[served]
    finished = len(arrival)
    several = (output > 1) & (run.last_ps > run.first_ps)
    duration_ps = int(run.last_ps.max() - arrival[0]) if finished else 0
    sustainable = capacity_rps * deployment.replicas
    offered = finished / workload.span_s if workload.span_s > 0 else 0.0
    load_factor = offered / sustainable if sustainable > 0 else 0.0
    busy = max(run.busy_ps, 1.0)
    return ReplayResult(
        requests=RequestTable(
            arrival_ps=workload.arrival_ps,
            admitted_ps=_scatter(run.admitted_ps, served),
            first_token_ps=_scatter(run.first_ps, served),
            last_token_ps=_scatter(run.last_ps, served),
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            replica=_scatter(run.replica, served),
            preemptions=np.maximum(_scatter(run.preemptions_of, served), 0),
            hit_tokens=np.maximum(_scatter(run.hit_tokens, served), 0),
            status=status,
        ),
        itl=_histogram(run),
        ttft_s=(run.first_ps - arrival) / PS_PER_S,
        ttft_from_admission_s=(run.first_ps - run.admitted_ps) / PS_PER_S,
        tpot_s=(run.last_ps - run.first_ps)[several] / PS_PER_S / (output[several] - 1),
        e2e_s=(run.last_ps - arrival) / PS_PER_S,
        queue_s=(run.admitted_ps - arrival - deployment.step_time.request_overhead_ps) / PS_PER_S,
        finished=finished,
        rejected=_rejections(status),
        preemptions=run.preemptions,
        steps=run.steps,
        replicas=deployment.replicas,
        duration_s=duration_ps / PS_PER_S,
        output_tokens=int(output.sum()),
        prompt_tokens=int(workload.prompt_tokens[served].sum()),
        load_factor=load_factor,
        sustainable_rps=sustainable,
        saturated=load_factor >= 1.0,
        prefix_hit_rate=int(run.hit_tokens.sum()) / run.queried_tokens if run.queried_tokens else None,
        kv_usage_mean=run.used_block_ps / busy / deployment.usable_blocks,
        kv_usage_max=run.used_blocks_max / deployment.usable_blocks,
        batch_mean=run.running_ps / busy,
        busy_fraction=run.busy_ps / (max(duration_ps, 1) * deployment.replicas),
        loop=loop,
        kernel_s=kernel_s,
        notes=(*deployment.notes, *_load_notes(workload)),
    )
