"""One engine run: settings, step times and requests in, token times out. The only module that drives kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from replay.deployment import Deployment
from replay.engine_run import EngineRun, Int64Array, join_runs
from replay.errors import FieldError, SpecError
from replay.kernels.arrivals import prepare_arrivals
from replay.kernels.coupled import advance_coupled
from replay.kernels.engine import advance
from replay.kernels.fast import advance_fast, new_fast, new_fast_registers
from replay.kernels.outages import prepare_changes
from replay.kernels.sglang import SglangOptions
from replay.kernels.state import (
    BUSY,
    FAR,
    FCFS,
    GAP_MAX_PS,
    HOST_HIT_TOKENS,
    LOST_GAPS,
    LOST_GAPS_PS,
    MAX_USED_BLOCKS,
    NEVER,
    NO_TEXTS,
    PREEMPTIONS,
    PREVIOUS_END,
    PRIORITY,
    QUERIED_TOKENS,
    ROUND_ROBIN,
    RUNNING_REQUESTS,
    SCORED_END,
    SCORED_FIRST,
    SENT_AGAIN,
    SHORTEST,
    SHORTEST_REMAINING,
    STEPS,
    SWAP_SPACE_SHORT,
    USED_BLOCKS,
    Config,
    Meters,
    Outcome,
    Requests,
    StepTimes,
    Texts,
    bucket_count,
    new_meters,
    new_outcome,
    new_state,
)
from replay.kernels.v0 import V0Options
from replay.life import down_ps
from replay.own_loops import EVENTS_A_CALL, OWN_LOOPS, STEPS_A_CALL
from replay.routing import deal, prepare_routing, router_code, snapshot_ps
from replay.specs import Router, reads_state
from replay.speculation import Drafting, acceptance, drafting
from replay.vllm_releases import kernel_rules
from replay.workload import PrefixBlocks

Checkpoint = Callable[[], None]

_ORDERS = {"fcfs": FCFS, "priority": PRIORITY, "sjf": SHORTEST, "srpt": SHORTEST_REMAINING}


_NONE = np.zeros(0, np.int64)

Scored = tuple[int, int]
ALL_SCORED: Scored = (0, FAR)
"""First and end of the requests, in arrival order, that the ITL histogram counts."""


def make_requests(
    arrival_ps: Int64Array,
    prompt_tokens: Int64Array,
    output_tokens: Int64Array,
    prefix: PrefixBlocks | None = None,
    priority: Int64Array = _NONE,
    max_tokens: Int64Array = _NONE,
    after: Int64Array = _NONE,
    delay_ps: Int64Array = _NONE,
    texts: Texts = NO_TEXTS,
    patience_ps: Int64Array = _NONE,
) -> Requests:
    """The kernels' view of requests: contiguous int64."""
    no_ids = np.zeros(len(arrival_ps) + 1, np.int64) if len(texts.of_request) else _NONE
    return Requests(
        arrival_ps=np.ascontiguousarray(arrival_ps, dtype=np.int64),
        prompt_tokens=np.ascontiguousarray(prompt_tokens, dtype=np.int64),
        output_tokens=np.ascontiguousarray(output_tokens, dtype=np.int64),
        priority=np.ascontiguousarray(priority, dtype=np.int64),
        prefix_start=no_ids if prefix is None else prefix.start,
        prefix_ids=_NONE if prefix is None else prefix.ids,
        max_tokens=np.ascontiguousarray(max_tokens, dtype=np.int64),
        after=np.ascontiguousarray(after, dtype=np.int64),
        delay_ps=np.ascontiguousarray(delay_ps, dtype=np.int64),
        texts=texts,
        patience_ps=np.ascontiguousarray(patience_ps, dtype=np.int64),
    )


def take_requests(requests: Requests, index: Int64Array) -> Requests:
    """The requests ``index``, in that order, all of them open."""
    chosen = make_requests(
        requests.arrival_ps[index],
        requests.prompt_tokens[index],
        requests.output_tokens[index],
        priority=requests.priority[index] if len(requests.priority) else _NONE,
        max_tokens=requests.max_tokens[index] if len(requests.max_tokens) else _NONE,
        texts=requests.texts._replace(of_request=requests.texts.of_request[index])
        if len(requests.texts.of_request)
        else NO_TEXTS,
        patience_ps=requests.patience_ps[index] if len(requests.patience_ps) else _NONE,
    )
    if len(requests.prefix_start) == 0:
        return chosen
    prefix = PrefixBlocks(requests.prefix_start, requests.prefix_ids, 1).take(index)
    return chosen._replace(prefix_start=prefix.start, prefix_ids=prefix.ids)


@dataclass(frozen=True)
class Machine:
    """The replicas that must run together, ready to run: all where the router reads their state, where requests follow
    others, and where replicas come and go; else one."""

    config: Config
    times: StepTimes
    scheduler: str = "vllm"
    options: Any = None
    """What a loop of its own takes beyond ``config``."""
    router: Router = "round_robin"
    seed: int = 0
    """Of the routers that draw."""
    acceptance: tuple[int, ...] = ()
    """By place of a draft: probability in ``ONE`` that it is accepted once those before it were."""
    closed_loop: bool = False
    down: tuple[tuple[int, int, int], ...] = ()
    """(replica, down from ps, until ps or FAR) each."""

    @property
    def loop(self) -> str:
        """Which loop runs: the scheduler's own, ``fast`` where it gives the general loop's integers, or ``general``."""
        if self.scheduler in OWN_LOOPS:
            return self.scheduler
        config = self.config
        fast = (
            config.long_prefill_token_threshold == 0
            and config.enable_chunked_prefill == 1
            and config.priority_policy == FCFS
            and config.prefix_caching == 0
            and config.reserve_whole_life == 0
            and config.speculative_tokens == 0
            and config.max_num_queued_reqs == NEVER
            and config.max_num_queued_tokens == NEVER
            and config.clients_leave == 0
            and config.replicas_may_be_down == 0
            and config.runs_past_end == 0
            and not self.closed_loop
            and (config.full_groups, config.window_groups, config.state_blocks) == (1, 0, 0)
        )
        return "fast" if fast else "general"

    @property
    def ranks(self) -> int:
        """Engines that make up one replica: more than one where data-parallel ranks step together."""
        return self.config.replicas if self.scheduler == "lockstep" else 1

    @property
    def caches_prefixes(self) -> bool:
        """Whether it reuses what prompts share, and so reads their block ids or texts."""
        return self.config.prefix_caching == 1 or (isinstance(self.options, SglangOptions) and self.options.radix == 1)

    def alone(self) -> Machine:
        """One replica of it for measuring capacity: first come first served, since no order of the queue changes how
        much is served, and with host memory for all that is swapped out."""
        config = self.config._replace(
            priority_policy=FCFS,
            max_num_queued_reqs=NEVER,
            max_num_queued_tokens=NEVER,
            clients_leave=0,
            replicas_may_be_down=0,
        )
        if self.ranks == 1:
            config = config._replace(replicas=1, router=ROUND_ROBIN, router_snapshot_ps=0)
        options = self.options
        if isinstance(options, V0Options):
            options = options._replace(cpu_blocks=np.iinfo(np.int64).max)
        return replace(self, config=config, options=options, router="round_robin", closed_loop=False, down=())

    def run(
        self,
        requests: Requests,
        checkpoint: Checkpoint,
        scored: Scored = ALL_SCORED,
        session: Int64Array | None = None,
    ) -> EngineRun:
        """Runs ``requests`` to the end, calling ``checkpoint`` about once a second. ``session``: for a router that
        deals by it."""
        config, times = self.config, self.times
        if self.caches_prefixes:
            tokens = requests.prompt_tokens + requests.output_tokens
            longest = int(tokens.max(initial=1)) + config.speculative_tokens + config.lookahead_tokens
            config = config._replace(
                table_width=longest // config.block_size + 2,
                host_blocks=min(config.host_blocks, int(tokens.sum()) // config.block_size + 1),  # it never holds more
            )
        n = len(requests.arrival_ps)
        if self.loop == "fast":
            outcome, meters = new_outcome(config, n), new_meters(config, new_fast_registers(config))
            _score(meters, scored)
            fast = new_fast(config, int(requests.output_tokens.max(initial=1)))
            routing = prepare_routing(config, requests, meters.regs, self.seed)

            def advance_fast_by(limit: int) -> bool:
                if config.replicas > 1:
                    return advance_coupled(config, requests, times, outcome, meters, fast, routing, limit)
                return advance_fast(config, requests, times, outcome, meters, fast, limit)

            if config.replicas == 1:
                outcome.replica[:] = 0
            return drive(advance_fast_by, STEPS_A_CALL, checkpoint, outcome, meters, requests.arrival_ps)
        state = new_state(config, n)
        regs = state.meters.regs
        state = state._replace(
            routing=prepare_routing(config, requests, regs, self.seed, self.router, session),
            arrivals=prepare_arrivals(config, requests),
            changes=prepare_changes(self.down, regs),
        )
        state.speculation.acceptance[:] = self.acceptance
        _score(state.meters, scored)
        own, mask = OWN_LOOPS.get(self.scheduler), bucket_count(config.num_blocks) - 1

        memory = own.memory(config, self.options) if own is not None and own.memory is not None else None

        def advance_by(limit: int) -> bool:
            if own is not None and memory is not None:
                return own.advance(config, self.options, requests, times, state, memory, limit)
            if own is not None:
                return own.advance(config, self.options, requests, times, state, limit)
            return advance(config, requests, times, state, mask, limit)

        limit = EVENTS_A_CALL if own is None else own.limit
        sent_ps = state.arrivals.sent_ps if len(requests.after) else requests.arrival_ps
        run = drive(advance_by, limit, checkpoint, state.outcome, state.meters, sent_ps)
        if regs[:, SWAP_SPACE_SHORT].any():
            raise _swap_space_short()
        return run


def _swap_space_short() -> SpecError:
    cure = "raise swap_space_gib, or set preemption_mode to recompute"
    detail = "the engine ends here: a preempted request's KV does not fit into swap_space_gib of host memory; " + cure
    return SpecError("engine.swap_space", detail, [FieldError(detail, "engine.overrides.swap_space_gib", cure=cure)])


def _score(meters: Meters, scored: Scored) -> None:
    meters.regs[:, SCORED_FIRST], meters.regs[:, SCORED_END] = scored


def drive(
    advance_by: Callable[[int], bool],
    limit: int,
    checkpoint: Checkpoint,
    outcome: Outcome,
    meter: Meters,
    sent_ps: Int64Array,
) -> EngineRun:
    """Advances to the end, ``limit`` steps or events a call."""
    advance_by(0)  # compiles, or loads what was compiled before, outside the time that is reported
    kernel_s = 0.0
    more = True
    while more:
        started = time.thread_time()
        more = advance_by(limit)
        kernel_s += time.thread_time() - started
        checkpoint()
    regs, meters = meter.regs, meter.meters
    return EngineRun(
        admitted_ps=outcome.admitted_ps,
        first_ps=outcome.first_ps,
        last_ps=outcome.last_ps,
        replica=outcome.replica,
        preemptions_of=outcome.preemptions,
        hit_tokens=outcome.hit_tokens,
        gaps=meter.gaps,
        gap_max_ps=int(meter.cluster[GAP_MAX_PS]),
        steps=int(regs[:, STEPS].sum()),
        looked_up_hits=int(outcome.hit_tokens.sum()),
        queried_tokens=int(regs[:, QUERIED_TOKENS].sum()),
        host_hit_tokens=int(regs[:, HOST_HIT_TOKENS].sum()),
        preemptions=int(regs[:, PREEMPTIONS].sum()),
        busy_ps=float(meters[:, BUSY].sum()),
        used_block_ps=float(meters[:, USED_BLOCKS].sum()),
        running_ps=float(meters[:, RUNNING_REQUESTS].sum()),
        used_blocks_max=int(regs[:, MAX_USED_BLOCKS].max()),
        kernel_s=kernel_s,
        sent_ps=sent_ps,
        generated=outcome.generated,
        lost_gaps=int(meter.cluster[LOST_GAPS]),
        lost_gaps_ps=int(meter.cluster[LOST_GAPS_PS]),
        sent_again=int(meter.cluster[SENT_AGAIN]),
        end_ps=int(regs[:, PREVIOUS_END].max()),
    )


def make_machine(
    deployment: Deployment,
    prefix_block_tokens: int | None = None,
    seed: int = 0,
    closed_loop: bool = False,
    clients_leave: bool = False,
) -> Machine:
    """The machine of a deployment: all replicas where they meet (see ``Machine``), else a single one.

    ``prefix_block_tokens``: tokens of a prompt block where the workload has block ids; prefix caching then acts.
    ``seed``: of the routers that draw, and of the drafts that are accepted. ``closed_loop``: whether requests follow
    others. ``clients_leave``: whether ``Requests.patience_ps`` is given.
    """
    engine, record = deployment.engine, deployment.step_time
    router = deployment.spec.router
    blocks, ranks = deployment.usable_blocks, engine.data_parallel_size
    down = down_ps(deployment.spec)
    stays_apart = not (reads_state(router) or closed_loop or down)
    together = 1 if stays_apart else deployment.replicas
    spread: Router = router
    if ranks > 1:
        together, spread = ranks, "vllm_dp"
    coupled = ranks > 1 or not stays_apart
    speculates = engine.num_speculative_tokens > 0
    draft = drafting(engine, deployment.model.num_layers) if speculates else Drafting()
    caches = deployment.caches_prefixes and prefix_block_tokens is not None
    config = Config(
        replicas=together,
        router=router_code(spread, engine.version) if coupled else ROUND_ROBIN,
        router_snapshot_ps=snapshot_ps(deployment.spec.model_copy(update={"router": spread})) if coupled else 0,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=deployment.block_size,
        num_blocks=blocks,
        batches_in_flight=2 if engine.async_scheduling else 1,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        enable_chunked_prefill=int(engine.enable_chunked_prefill),
        reserve_full_isl=int(engine.scheduler_reserve_full_isl),
        watermark_blocks=int(engine.watermark * (blocks + engine.null_blocks)),
        max_model_len=engine.max_model_len,
        priority_policy=_ORDERS[engine.scheduling_policy],
        prefix_caching=int(caches and engine.scheduler == "vllm"),
        table_width=0,
        prefix_block_tokens=prefix_block_tokens or 1,
        reserve_whole_life=int(engine.scheduler == "orca"),
        speculative_tokens=engine.num_speculative_tokens,
        lookahead_tokens=engine.num_speculative_tokens,
        expected_acceptance=int(engine.acceptance_mode == "expected"),
        speculation_seed=seed,
        draft_step_ps=draft.step_ps,
        draft_step_share=draft.step_share,
        max_num_queued_reqs=_limit(engine.max_num_queued_reqs),
        max_num_queued_tokens=_limit(engine.max_num_queued_tokens),
        clients_leave=int(clients_leave),
        replicas_may_be_down=int(bool(down)),
        **kernel_rules(vars(engine), engine.scheduling_policy == "priority", engine.async_scheduling),
    )
    if config.prefix_caching and engine.kv_offload_gib > 0:
        block_bytes = deployment.memory.layout.block_bytes
        config = config._replace(
            host_blocks=int(engine.kv_offload_gib * 2**30) // block_bytes,
            host_block_ps=round(block_bytes / engine.kv_offload_gb_per_s * 1000),
            host_latency_ps=round(engine.kv_offload_latency_s * 1e12),
        )
    if deployment.layer_groups is not None:
        config = config._replace(**asdict(deployment.layer_groups))
    law = (
        record.decode_request_ps,
        record.decode_linear_ps,
        record.prefill_linear_ps,
        record.host_ps,
        record.host_per_request_ps,
        record.prefill_step_ps,
    )
    times = StepTimes(
        rest_ps=np.ascontiguousarray(record.rest_ps),
        decode_table_ps=np.ascontiguousarray(record.decode_table_ps),
        prefill_table_ps=np.ascontiguousarray(record.prefill_table_ps),
        law=np.array(law, dtype=np.int64),
    )
    chunked_v0 = engine.scheduler == "vllm-v0" and engine.enable_chunked_prefill
    scheduler = "vllm-v0-chunked" if chunked_v0 else engine.scheduler
    if ranks > 1:
        scheduler = "lockstep"
    own = OWN_LOOPS.get(scheduler)
    options = None if own is None else own.options(deployment)
    accepted = acceptance(engine) if speculates else ()
    if isinstance(options, SglangOptions):
        options = options._replace(radix=int(caches))
    return Machine(config, times, scheduler, options, router, seed, accepted, closed_loop, down)


def _limit(knob: int | None) -> int:
    return NEVER if knob is None else knob


def run_deployment(
    machine: Machine,
    requests: Requests,
    replicas: int,
    threads: int,
    checkpoint: Checkpoint,
    session: Int64Array | None = None,
    scored: Scored = ALL_SCORED,
) -> EngineRun:
    """Replays on all replicas. Where the router reads no state (it may read ``session``, one id a request), the
    replicas' shares run apart, on up to ``threads`` threads, with the same result."""
    if replicas == 1 or (machine.config.replicas > 1 and machine.ranks == 1):
        return machine.run(requests, checkpoint, scored, session)
    n = len(requests.arrival_ps)
    dealt = deal(machine.router, n, replicas, machine.seed, session)
    order = np.argsort(dealt, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(dealt, minlength=replicas))[:-1])

    def run_share(part: Int64Array) -> EngineRun:
        return machine.run(take_requests(requests, part), checkpoint, _share_of(scored, part))

    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            runs = list(pool.map(run_share, parts))
    else:
        runs = [run_share(part) for part in parts]
    return join_runs(runs, parts, dealt, machine.ranks)


def _share_of(scored: Scored, part: Int64Array) -> Scored:
    """The scored ones among the requests ``part``, counted within them."""
    if scored == ALL_SCORED:
        return scored
    first, end = np.searchsorted(part, scored).tolist()
    return first, end
