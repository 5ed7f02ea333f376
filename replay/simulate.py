"""Workload x Deployment -> ReplayResult: the one entry to the kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.deployment import Deployment
from replay.errors import FieldError, SpecError
from replay.kernels.engine import advance
from replay.kernels.fast import advance_fast, new_fast, new_fast_registers
from replay.kernels.loglinear import gap_bin_edges_ps
from replay.kernels.state import (
    BUSY,
    GAP_MAX_PS,
    LEAST_OUTSTANDING,
    MAX_USED_BLOCKS,
    NEVER,
    PREEMPTIONS,
    ROUND_ROBIN,
    RUNNING_REQUESTS,
    STEPS,
    USED_BLOCKS,
    Config,
    Meters,
    Outcome,
    Requests,
    StepTimes,
    bucket_count,
    new_meters,
    new_outcome,
    new_state,
)
from replay.results import STATUSES, Histogram, ReplayResult, RequestTable
from replay.workload import Workload

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PS_PER_S = 1e12
LATEST_ARRIVAL_PS = 90 * 86_400 * 10**12
"""int64 picoseconds reach 106 days; the last arrivals need room to finish."""
_EVENTS_A_CALL = 1 << 16
_STEPS_A_CALL = 1 << 22
"""Batches in one call of the general and of the fast loop: a second of work at most."""
_CAPACITY_REQUESTS = 8192
"""Requests of the back-to-back run that measures capacity: several times the largest batch."""

_ROUTERS = {"round_robin": ROUND_ROBIN, "least_outstanding": LEAST_OUTSTANDING}
_NO_IDS = np.zeros(0, np.int64)

Checkpoint = Callable[[], None]


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class _Run:
    """Outcome of one engine run over some requests, in their order."""

    admitted_ps: Int64Array
    first_ps: Int64Array
    last_ps: Int64Array
    replica: Int64Array
    preemptions_of: Int64Array
    hit_tokens: Int64Array
    gaps: Int64Array
    gap_max_ps: int
    steps: int
    preemptions: int
    busy_ps: float
    used_block_ps: float
    running_ps: float
    used_blocks_max: int
    kernel_s: float


def simulate(
    workload: Workload, deployment: Deployment, *, threads: int = 1, checkpoint: Checkpoint = _nothing
) -> ReplayResult:
    """Replays ``workload`` on ``deployment``.

    ``threads`` share the replicas of a round-robin deployment and change nothing in the result. ``checkpoint`` is
    called about once a second and may raise to stop. Requests that can never run there are counted by reason and take
    part in no latency figure.

    Raises:
        SpecError: an empty workload, or one that is too long for int64 picoseconds.
    """
    _check(workload)
    status = _judge(workload, deployment)
    served = status == 0
    overhead = deployment.step_time.request_overhead_ps
    arrival = workload.arrival_ps[served]
    requests = _requests(arrival + overhead, workload.prompt_tokens[served], workload.output_tokens[served])
    run = _run_replicas(requests, deployment, threads, checkpoint)
    if len(arrival) and (run.last_ps == NEVER).any():
        raise RuntimeError("a request that fits was never finished: this is a defect of the engine")
    capacity_rps, capacity_kernel_s = _capacity_rps(requests, deployment, checkpoint)
    loop = "fast" if fast_loop_applies(_config(deployment, replicas_per_run(deployment), ROUND_ROBIN)) else "general"
    return _result(workload, deployment, status, run, capacity_rps, run.kernel_s + capacity_kernel_s, loop)


def _check(workload: Workload) -> None:
    if workload.n == 0:
        cure = "widen the window, or upload a trace whose requests have prompt and output lengths"
        raise SpecError("workload.empty", "the workload holds no request", [FieldError(cure, "transform", cure=cure)])
    if int(workload.arrival_ps[-1]) > LATEST_ARRIVAL_PS:
        cure = "choose a window of 90 days or less"
        raise SpecError(
            "workload.too_long", "the workload is longer than 90 days", [FieldError(cure, "transform", cure=cure)]
        )


def _judge(workload: Workload, deployment: Deployment) -> npt.NDArray[np.int64]:
    """Index into ``STATUSES`` by request: 0 where it can run."""
    engine = deployment.engine
    total = workload.prompt_tokens + workload.output_tokens
    status = np.zeros(workload.n, dtype=np.int64)
    blocks = (total - 1 + engine.block_size - 1) // engine.block_size
    status[blocks > deployment.usable_blocks] = STATUSES.index("too_large_for_kv")
    if not engine.enable_chunked_prefill:
        status[total > engine.max_num_batched_tokens] = STATUSES.index("prompt_over_batch_budget")
    status[total > engine.max_model_len] = STATUSES.index("too_long_for_model")
    return status


def _requests(arrival_ps: Int64Array, prompt_tokens: Int64Array, output_tokens: Int64Array) -> Requests:
    """The kernels' view: contiguous int64."""
    return Requests(
        arrival_ps=np.ascontiguousarray(arrival_ps, dtype=np.int64),
        prompt_tokens=np.ascontiguousarray(prompt_tokens, dtype=np.int64),
        output_tokens=np.ascontiguousarray(output_tokens, dtype=np.int64),
        priority=_NO_IDS,
        prefix_start=_NO_IDS,
        prefix_ids=_NO_IDS,
    )


def _config(deployment: Deployment, replicas: int, router: int) -> Config:
    engine = deployment.engine
    return Config(
        replicas=replicas,
        router=router,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.block_size,
        num_blocks=deployment.usable_blocks,
        batches_in_flight=2 if engine.async_scheduling else 1,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        threshold_binds_lone_request=int(engine.threshold_binds_lone_request),
        enable_chunked_prefill=int(engine.enable_chunked_prefill),
        unchunked_looks_further=int(engine.unchunked_looks_further),
        reserve_full_isl=int(engine.scheduler_reserve_full_isl),
        watermark_blocks=int(engine.watermark * (deployment.usable_blocks + 1)),
        max_model_len=engine.max_model_len,
        priority_policy=0,
        prefix_caching=0,
        table_width=0,
    )


def _times(deployment: Deployment) -> StepTimes:
    record = deployment.step_time
    law = (
        record.decode_request_ps,
        record.decode_linear_ps,
        record.prefill_linear_ps,
        record.host_ps,
        record.host_per_request_ps,
    )
    return StepTimes(
        rest_ps=np.ascontiguousarray(record.rest_ps),
        decode_table_ps=np.ascontiguousarray(record.decode_table_ps),
        prefill_table_ps=np.ascontiguousarray(record.prefill_table_ps),
        law=np.array(law, dtype=np.int64),
    )


def fast_loop_applies(config: Config) -> bool:
    """Whether the fast loop gives the general loop's integers for these settings."""
    return (
        config.replicas == 1
        and config.long_prefill_token_threshold == 0
        and config.enable_chunked_prefill == 1
        and config.priority_policy == 0
        and config.prefix_caching == 0
        and config.max_num_seqs <= config.max_num_batched_tokens
    )


def _run_general(requests: Requests, config: Config, times: StepTimes, checkpoint: Checkpoint) -> _Run:
    state = new_state(config, len(requests.arrival_ps))
    mask = bucket_count(config.num_blocks) - 1

    def step() -> bool:
        return advance(config, requests, times, state, mask, _EVENTS_A_CALL)

    return _collect(state.outcome, state.meters, _drive(step, checkpoint))


def _run_fast(requests: Requests, config: Config, times: StepTimes, checkpoint: Checkpoint) -> _Run:
    outcome, meters = new_outcome(config, len(requests.arrival_ps)), new_meters(config, new_fast_registers(config))
    fast = new_fast(config, int(requests.output_tokens.max(initial=1)))

    def step() -> bool:
        return advance_fast(config, requests, times, outcome, meters, fast, _STEPS_A_CALL)

    kernel_s = _drive(step, checkpoint)
    outcome.replica[:] = 0
    return _collect(outcome, meters, kernel_s)


def _drive(step: Callable[[], bool], checkpoint: Checkpoint) -> float:
    """Calls ``step`` until it is done; seconds inside it."""
    kernel_s = 0.0
    more = True
    while more:
        started = time.perf_counter()
        more = step()
        kernel_s += time.perf_counter() - started
        checkpoint()
    return kernel_s


def run_engine(requests: Requests, config: Config, times: StepTimes, checkpoint: Checkpoint = _nothing) -> _Run:
    """One run over all of ``requests``, by the fast loop where it applies."""
    if fast_loop_applies(config):
        return _run_fast(requests, config, times, checkpoint)
    return _run_general(requests, config, times, checkpoint)


def _collect(outcome: Outcome, meter: Meters, kernel_s: float) -> _Run:
    regs, meters = meter.regs, meter.meters
    return _Run(
        admitted_ps=outcome.admitted_ps,
        first_ps=outcome.first_ps,
        last_ps=outcome.last_ps,
        replica=outcome.replica.astype(np.int64),
        preemptions_of=outcome.preemptions.astype(np.int64),
        hit_tokens=outcome.hit_tokens.astype(np.int64),
        gaps=meter.gaps,
        gap_max_ps=int(meter.cluster[GAP_MAX_PS]),
        steps=int(regs[:, STEPS].sum()),
        preemptions=int(regs[:, PREEMPTIONS].sum()),
        busy_ps=float(meters[:, BUSY].sum()),
        used_block_ps=float(meters[:, USED_BLOCKS].sum()),
        running_ps=float(meters[:, RUNNING_REQUESTS].sum()),
        used_blocks_max=int(regs[:, MAX_USED_BLOCKS].max()),
        kernel_s=kernel_s,
    )


def replicas_per_run(deployment: Deployment) -> int:
    """Replicas that must be replayed together: one where the router ignores their state, all where it reads it."""
    return 1 if deployment.spec.router == "round_robin" else deployment.replicas


def _run_replicas(requests: Requests, deployment: Deployment, threads: int, checkpoint: Checkpoint) -> _Run:
    """All replicas: apart where the router ignores their state, coupled in one run where it does not."""
    times, replicas = _times(deployment), deployment.replicas
    if replicas_per_run(deployment) > 1:
        return run_engine(requests, _config(deployment, replicas, _ROUTERS[deployment.spec.router]), times, checkpoint)
    config = _config(deployment, 1, ROUND_ROBIN)
    if replicas == 1:
        return run_engine(requests, config, times, checkpoint)
    shares = [_requests(*(column[k::replicas] for column in requests[:3])) for k in range(replicas)]

    def run(share: Requests) -> _Run:
        return run_engine(share, config, times, checkpoint)

    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            runs = list(pool.map(run, shares))
    else:
        runs = [run(share) for share in shares]
    return _interleave(runs, len(requests.arrival_ps))


def _interleave(runs: list[_Run], n: int) -> _Run:
    """Puts the shares of a round-robin split back into one outcome."""
    replicas = len(runs)

    def column(name: str) -> Int64Array:
        whole = np.empty(n, dtype=np.int64)
        for k, run in enumerate(runs):
            whole[k::replicas] = getattr(run, name)
        return whole

    return _Run(
        admitted_ps=column("admitted_ps"),
        first_ps=column("first_ps"),
        last_ps=column("last_ps"),
        replica=np.arange(n, dtype=np.int64) % replicas,
        preemptions_of=column("preemptions_of"),
        hit_tokens=column("hit_tokens"),
        gaps=np.sum([run.gaps for run in runs], axis=0),
        gap_max_ps=max(run.gap_max_ps for run in runs),
        steps=sum(run.steps for run in runs),
        preemptions=sum(run.preemptions for run in runs),
        busy_ps=sum(run.busy_ps for run in runs),
        used_block_ps=sum(run.used_block_ps for run in runs),
        running_ps=sum(run.running_ps for run in runs),
        used_blocks_max=max(run.used_blocks_max for run in runs),
        kernel_s=sum(run.kernel_s for run in runs),
    )


def _capacity_rps(requests: Requests, deployment: Deployment, checkpoint: Checkpoint) -> tuple[float, float]:
    """Requests per second that one replica sustains with a queue that never empties, on the workload's own mix, and the
    kernel seconds spent.

    The workload, thinned or repeated to a fixed count, is offered all at once. The rate is that of admissions after the
    first quarter, when the batch has filled; where everything is admitted at once, requests over the whole run.
    """
    n = len(requests.arrival_ps)
    if n == 0:
        return 0.0, 0.0
    count = _CAPACITY_REQUESTS
    chosen = np.arange(count, dtype=np.int64) % n if n < count else np.arange(count, dtype=np.int64) * n // count
    burst = _requests(np.zeros(count, np.int64), requests.prompt_tokens[chosen], requests.output_tokens[chosen])
    run = run_engine(burst, _config(deployment, 1, ROUND_ROBIN), _times(deployment), checkpoint)
    admitted = np.sort(run.admitted_ps)
    quarter = count // 4
    window_ps = int(admitted[-1] - admitted[quarter])
    whole_ps = int(run.last_ps.max())
    if window_ps > whole_ps // 4:
        return (count - 1 - quarter) / (window_ps / PS_PER_S), run.kernel_s
    return count / (whole_ps / PS_PER_S), run.kernel_s


def _histogram(run: _Run, output_tokens: Int64Array) -> Histogram:
    """Pooled ITL: bins of at most 0.4 %, mean and maximum exact."""
    low, high = gap_bin_edges_ps()
    used = np.flatnonzero(run.gaps)
    gaps = int((output_tokens - 1).sum())
    total_ps = (run.last_ps - run.first_ps).astype(np.float64).sum()
    return Histogram(
        value_s=(low[used] + high[used]) / 2 / PS_PER_S,
        weight=run.gaps[used],
        mean_s=float(total_ps / gaps / PS_PER_S) if gaps else None,
        max_s=run.gap_max_ps / PS_PER_S if gaps else None,
    )


def _scatter(values: Int64Array, served: BoolArray) -> Int64Array:
    whole = np.full(len(served), NEVER, dtype=np.int64)
    whole[served] = values
    return whole


def _rejections(status: Int64Array) -> dict[str, int]:
    """Requests that could not run, by reason."""
    counts = np.bincount(status, minlength=len(STATUSES)).tolist()
    return {name: count for name, count in zip(STATUSES[1:], counts[1:], strict=True) if count}


def _result(
    workload: Workload,
    deployment: Deployment,
    status: Int64Array,
    run: _Run,
    capacity_rps: float,
    kernel_s: float,
    loop: str,
) -> ReplayResult:
    served = status == 0
    arrival, output = workload.arrival_ps[served], workload.output_tokens[served]
    finished = len(arrival)
    several = output > 1
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
        itl=_histogram(run, output),
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
        kv_usage_mean=run.used_block_ps / busy / deployment.usable_blocks,
        kv_usage_max=run.used_blocks_max / deployment.usable_blocks,
        batch_mean=run.running_ps / busy,
        busy_fraction=run.busy_ps / (max(duration_ps, 1) * deployment.replicas),
        loop=loop,
        kernel_s=kernel_s,
        notes=deployment.notes,
    )
