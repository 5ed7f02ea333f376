"""Workload x Deployment -> ReplayResult: the one entry to the kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.admission import declared_tokens, judge
from replay.capacity import lifetime_s, measure_capacity, measure_capacity_as_dealt, offered_rps
from replay.closed_loop import unroll
from replay.deployment import Deployment
from replay.disaggregation import PoolCapacity, Pools, PoolsRun, make_pools
from replay.engine_run import EngineRun, Int32Array, Int64Array
from replay.errors import FieldError, SpecError
from replay.kernels.loglinear import gap_bin_edges_ps
from replay.kernels.state import FAR, NEVER, NO_TEXTS, Requests
from replay.kernels.texts import link_texts
from replay.life import Left, cancels, check_life, endings, has_left, patience_ps, when_sent
from replay.life import notes as life_notes
from replay.machine import (
    ALL_SCORED,
    Checkpoint,
    Machine,
    Scored,
    make_machine,
    make_requests,
    run_deployment,
    take_requests,
)
from replay.orders import ranks_of
from replay.results import CANCELLED, STATUSES, Histogram, PoolsOutcome, ReplayResult, RequestTable
from replay.routing import check_router
from replay.workload import MAX_SPAN_S, Workload

BoolArray = npt.NDArray[np.bool_]

PS_PER_S = 1e12
LATEST_ARRIVAL_PS = MAX_SPAN_S * 10**12
LONGEST_DRAIN_S = 100.0 * 86_400
"""int64 picoseconds reach 106 days: the last arrivals need room to finish, and what drains later is not run at all."""


_NOTHING = np.zeros(0, np.int64)


def _nothing() -> None:
    return None


def simulate(
    workload: Workload,
    deployment: Deployment,
    *,
    threads: int = 1,
    checkpoint: Checkpoint = _nothing,
    judge_load: bool = True,
) -> ReplayResult:
    """Replays ``workload`` on ``deployment``.

    ``threads`` share the replicas behind a router that reads no state and change nothing in the result.
    ``checkpoint`` is called about once a second and may raise to stop. Requests that can never run there are counted by
    reason and take part in no latency figure. Without ``judge_load`` what the deployment could sustain is not measured:
    for workloads that are a measurement of it themselves.

    Raises:
        SpecError: an empty workload, one that is too long for int64 picoseconds, or a router without what it needs.
    """
    _check(workload, deployment)
    declared = declared_tokens(workload, deployment)
    status = judge(workload, deployment, declared)
    fits = status == 0
    prefix, loop = workload.prefix, workload.closed_loop
    if loop is not None:
        loop = loop.only(fits, workload.arrival_ps)
    block_tokens = prefix.block_tokens if prefix is not None else 1 if workload.shares_prompts else None
    patience = patience_ps(deployment, workload)
    machine: Machine | Pools
    if deployment.decode is None:
        machine = make_machine(deployment, block_tokens, workload.seed, loop is not None, patience is not None)
    else:
        machine = make_pools(deployment, block_tokens, workload.seed)
    overhead_ps = deployment.step_time.request_overhead_ps
    if prefix is not None and machine.caches_prefixes and not fits.all():
        prefix = prefix.take(np.flatnonzero(fits))
    texts = NO_TEXTS
    if workload.follows is not None and machine.caches_prefixes:
        texts = link_texts(workload.follows, workload.shared_tokens, np.flatnonzero(fits))
    requests = make_requests(
        workload.arrival_ps[fits] + overhead_ps,
        workload.prompt_tokens[fits],
        workload.output_tokens[fits],
        prefix if machine.caches_prefixes else None,
        priority=ranks_of(deployment.engine, workload)[fits] if machine.config.priority_policy else _NOTHING,
        max_tokens=_NOTHING if declared is None else declared[fits],
        after=_NOTHING if loop is None else loop.after,
        delay_ps=_NOTHING if loop is None else loop.delay_ps + overhead_ps,
        texts=texts,
        patience_ps=_NOTHING if patience is None else np.where(patience < FAR, patience - overhead_ps, FAR)[fits],
    )
    session = None if workload.session is None else workload.session[fits]
    load = _load(machine, requests, workload.span_s, deployment, checkpoint, session) if judge_load else _NOT_JUDGED
    served = fits
    if not load.is_replayed:
        served, requests = np.zeros_like(fits), take_requests(requests, np.zeros(0, np.int64))
        session = None if session is None else session[:0]
    scored = _scored(workload, served)
    if isinstance(machine, Pools):
        run: EngineRun = machine.run(requests, checkpoint, scored, session)
    else:
        run = run_deployment(machine, requests, deployment.replicas, threads, checkpoint, session, scored)
    if judge_load and load.is_replayed:
        load = _as_dealt(load, machine, requests, deployment, checkpoint, run)
    ended = endings(run.replica, deployment.engine.scheduler, cancels(deployment, workload)[served])
    sent_ps = workload.arrival_ps
    if load.is_replayed:
        came_ps = run.sent_ps - overhead_ps
        sent_ps = when_sent(workload, served, came_ps, run.last_ps, ended, patience, overhead_ps)
    broken = _broken_off(run, ended, scored)
    notes = life_notes(deployment, workload, run.sent_again, _left(run, ended))
    whole, came = run, np.flatnonzero(served)
    if ended.any():
        status[came] = ended
        served = served & (status == 0)
        run = run.only(ended == 0)
    if (run.last_ps == NEVER).any():
        raise RuntimeError("a request that fits was never finished: this is a defect of the engine")
    result = _result(workload, deployment, status, served, run, load, machine.loop, sent_ps, broken, notes)
    if patience is None:
        return result
    gone = has_left(ended)
    rows = came[gone]
    left_ps = np.full(workload.n, NEVER, np.int64)
    left_ps[rows] = sent_ps[rows] + patience[rows]
    result.requests.admitted_ps[rows] = whole.admitted_ps[gone]
    result.requests.first_token_ps[rows] = whole.first_ps[gone]
    return replace(result, requests=replace(result.requests, left_ps=left_ps))


def _left(run: EngineRun, ended: Int64Array) -> Left:
    cancelled, gave_up = (ended == STATUSES.index(name) for name in (CANCELLED, "client_timeout"))
    return Left(
        cancelled=int(cancelled.sum()),
        unanswered=int((run.first_ps[cancelled] == NEVER).sum()),
        cancelled_tokens=int(run.generated[cancelled].sum()),
        gave_up_tokens=int(run.generated[gave_up].sum()),
    )


class _Broken(NamedTuple):
    """Gaps of answers that were not finished, in the ITL histogram, and the sum of them."""

    gaps: int
    gaps_ps: int


def _broken_off(run: EngineRun, ended: Int64Array, scored: Scored) -> _Broken:
    """Of clients that left, and of answers that a lost replica broke off."""
    rows = np.flatnonzero((ended > 0) & (run.first_ps != NEVER))
    rows = rows[(rows >= scored[0]) & (rows < scored[1])]
    gaps = int((run.generated[rows].astype(np.int64) - 1).sum())
    gaps_ps = int((run.last_ps[rows] - run.first_ps[rows]).sum())
    return _Broken(gaps + run.lost_gaps, gaps_ps + run.lost_gaps_ps)


@dataclass(frozen=True)
class _Load:
    """Offered load against capacity. ``offered_rps`` is ``None`` for a burst."""

    offered_rps: float | None
    sustainable_rps: float
    drain_s: float
    kernel_s: float
    closed: bool = False
    pools: PoolCapacity | None = None

    @property
    def is_replayed(self) -> bool:
        return self.drain_s <= LONGEST_DRAIN_S

    @property
    def factor(self) -> float | None:
        if self.offered_rps is None:
            return None
        return self.offered_rps / self.sustainable_rps if self.sustainable_rps > 0 else 0.0

    def notes(self) -> tuple[str, ...]:
        notes = []
        if self.offered_rps is None and self.closed:
            notes.append(
                "the sessions start within a few times what one of them takes, and they wait for their answers: the "
                "load follows the deployment, there is no offered rate, so saturation is not judged"
            )
        elif self.offered_rps is None:
            notes.append(
                "the requests come as one burst, within a few times what one of them takes: there is no offered rate, "
                "so saturation is not judged"
            )
        if not self.is_replayed:
            days = self.drain_s / 86_400
            notes.append(f"the load would take {days:,.0f} days to drain: latencies were not computed")
        return tuple(notes)


_NOT_JUDGED = _Load(None, 0.0, 0.0, 0.0)


def _load(
    machine: Machine | Pools,
    requests: Requests,
    span_s: float,
    deployment: Deployment,
    checkpoint: Checkpoint,
    session: Int64Array | None,
) -> _Load:
    pools = None
    if isinstance(machine, Pools):
        pools = machine.capacity(requests, checkpoint, session)
        sustainable, kernel_s = pools.sustainable_rps, pools.kernel_s
    else:
        per_replica, kernel_s = measure_capacity(machine, requests, deployment, checkpoint, session)
        sustainable = per_replica * deployment.replicas
    n, closed = len(requests.arrival_ps), len(requests.after) > 0
    drain_s = n / sustainable if sustainable > 0 else 0.0
    if closed and n > 0:
        # One answer after the other, however many replicas there are.
        longest = int(unroll(requests.after, requests.delay_ps).depth.max()) + 1
        drain_s = max(drain_s, float(requests.arrival_ps[-1]) / PS_PER_S + longest * lifetime_s(requests, deployment))
    return _Load(offered_rps(requests, span_s, deployment), sustainable, drain_s, kernel_s, closed, pools)


def _as_dealt(
    load: _Load,
    machine: Machine | Pools,
    requests: Requests,
    deployment: Deployment,
    checkpoint: Checkpoint,
    run: EngineRun,
) -> _Load:
    """The same where the router's load guard kept nothing apart that belongs together; else with what the replicas
    sustain on the requests as they were dealt."""
    if isinstance(machine, Pools) and load.pools is not None:
        pools = machine.capacity_as_dealt(load.pools, requests, checkpoint, run.replica)
        kernel_s = load.kernel_s + pools.kernel_s - load.pools.kernel_s
        return replace(load, pools=pools, sustainable_rps=pools.sustainable_rps, kernel_s=kernel_s)
    if isinstance(machine, Machine):
        found = measure_capacity_as_dealt(machine, requests, deployment, checkpoint, run.replica)
        if found is not None:
            per_replica, kernel_s = found
            rate = per_replica * deployment.replicas
            return replace(load, sustainable_rps=rate, kernel_s=load.kernel_s + kernel_s)
    return load


def _scored(workload: Workload, served: BoolArray) -> Scored:
    """First and end of the scored requests among those that are served."""
    if workload.scored is None:
        return ALL_SCORED
    first, end = workload.scored
    return int(served[:first].sum()), int(served[:end].sum())


def _check(workload: Workload, deployment: Deployment) -> None:
    if workload.n == 0:
        cure = "widen the window, or upload a trace whose requests have prompt and output lengths"
        raise SpecError("workload.empty", "the workload holds no request", [FieldError(cure, "transform", cure=cure)])
    if int(workload.arrival_ps[-1]) > LATEST_ARRIVAL_PS:
        cure = "choose a window of 90 days or less"
        raise SpecError(
            "workload.too_long", "the workload is longer than 90 days", [FieldError(cure, "transform", cure=cure)]
        )
    for pool, spec in zip((deployment, deployment.decode), deployment.spec.pools(), strict=False):
        if pool is not None:
            check_router(spec, pool.engine.scheduler, pool.caches_prefixes, workload)
    check_life(deployment, workload)


def _histogram(run: EngineRun, scored: slice, tokens: Int64Array, broken: _Broken) -> Histogram:
    """Pooled ITL of the scored requests, with ``tokens`` output tokens, and of the answers that were broken off: bins
    of at most 0.4 %, mean and maximum exact."""
    low, high = gap_bin_edges_ps()
    used = np.flatnonzero(run.gaps)
    gaps = int(run.gaps.sum())  # none where all tokens of a request come at once
    if gaps > int((tokens - 1).sum()) + broken.gaps:
        raise RuntimeError("gaps of requests that are not scored were counted: this is a defect of the engine loop")
    total_ps = (run.last_ps - run.first_ps)[scored].astype(np.float64).sum() + broken.gaps_ps
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


def _rejections(status: Int64Array) -> dict[str, int]:
    """Requests that were not served, by reason."""
    counts = np.bincount(status, minlength=len(STATUSES)).tolist()
    found = {name: count for name, count in zip(STATUSES, counts, strict=True) if count}
    return {name: count for name, count in found.items() if name not in ("finished", CANCELLED)}


def _host_notes(run: EngineRun) -> tuple[str, ...]:
    if run.host_hit_tokens == 0:
        return ()
    return (
        f"of {run.looked_up_hits:,} prompt tokens found in the prefix cache {run.host_hit_tokens:,} were copied "
        "back from host memory (kv_offload_gib)",
    )


def _result(
    workload: Workload,
    deployment: Deployment,
    status: Int64Array,
    served: BoolArray,
    run: EngineRun,
    load: _Load,
    loop: str,
    sent_ps: Int64Array,
    broken: _Broken,
    notes: tuple[str, ...],
) -> ReplayResult:
    arrival, output = sent_ps[served], workload.output_tokens[served]
    finished = len(arrival)
    duration_ps = int(run.last_ps.max() - arrival.min()) if finished else 0
    factor = load.factor
    busy = max(run.busy_ps, 1.0)
    measured = deployment.decode or deployment
    first_scored, end_scored = _scored(workload, served)
    part = slice(first_scored, min(end_scored, finished))
    first, last, admitted = run.first_ps[part], run.last_ps[part], run.admitted_ps[part]
    sent, tokens = arrival[part], output[part]
    several = (tokens > 1) & (last > first)
    return ReplayResult(
        requests=RequestTable(
            arrival_ps=sent_ps,
            admitted_ps=_scatter(run.admitted_ps, served),
            first_token_ps=_scatter(run.first_ps, served),
            last_token_ps=_scatter(run.last_ps, served),
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            replica=_scatter(run.replica, served),
            preemptions=np.maximum(_scatter(run.preemptions_of, served), 0),
            hit_tokens=np.maximum(_scatter(run.hit_tokens, served), 0),
            status=status,
            tenant=workload.tenant,
            priority=workload.priority_class,
            decode_replica=_scatter(run.decode_replica, served) if isinstance(run, PoolsRun) else None,
            kv_arrived_ps=_scatter(run.kv_ps, served) if isinstance(run, PoolsRun) else None,
        ),
        itl=_histogram(run, part, tokens, broken),
        ttft_s=(first - sent) / PS_PER_S,
        ttft_from_admission_s=(first - admitted) / PS_PER_S,
        tpot_s=(last - first)[several] / PS_PER_S / (tokens[several] - 1),
        e2e_s=(last - sent) / PS_PER_S,
        queue_s=(admitted - sent) / PS_PER_S,
        finished=finished,
        rejected=_rejections(status),
        preemptions=run.preemptions,
        steps=run.steps,
        replicas=deployment.replicas,
        duration_s=duration_ps / PS_PER_S,
        output_tokens=int(output.sum()),
        prompt_tokens=int(workload.prompt_tokens[served].sum()),
        offered_rps=load.offered_rps,
        load_factor=factor,
        sustainable_rps=load.sustainable_rps,
        saturated=factor is not None and factor >= 1.0,
        prefix_hit_rate=run.looked_up_hits / run.queried_tokens if run.queried_tokens else None,
        host_hit_tokens=run.host_hit_tokens,
        kv_usage_mean=run.used_block_ps / busy / measured.usable_blocks,
        kv_usage_max=run.used_blocks_max / measured.usable_blocks,
        batch_mean=run.running_ps / busy,
        busy_fraction=_busy_fraction(run, measured.engines, sent_ps, duration_ps),
        loop=loop,
        kernel_s=run.kernel_s + load.kernel_s,
        notes=(*deployment.notes, *load.notes(), *_host_notes(run), *notes),
        scored=workload.scored,
        pools=_pools(run, load, part),
    )


def _busy_fraction(run: EngineRun, engines: int, sent_ps: Int64Array, duration_ps: int) -> float:
    """Share of the time from the first arrival to the last step, or to the loss of a replica within its step: steps
    count also where nobody waits for their tokens any more."""
    steps_ps = run.end_ps - int(sent_ps[sent_ps >= 0].min(initial=run.end_ps))
    return run.busy_ps / max(duration_ps * engines, steps_ps * engines, run.busy_ps, 1)


def _pools(run: EngineRun, load: _Load, scored: slice) -> PoolsOutcome | None:
    if not isinstance(run, PoolsRun) or load.pools is None:
        return None
    prefill, decode = run.use
    transfers = run.kv_transfer_ps[scored]
    return PoolsOutcome(
        prefill=replace(prefill, sustainable_rps=load.pools.prefill),
        decode=replace(decode, sustainable_rps=load.pools.decode),
        binding=load.pools.binding,
        transfer_rps=load.pools.transfer,
        kv_transfer_s=transfers[transfers >= 0] / PS_PER_S,
    )
