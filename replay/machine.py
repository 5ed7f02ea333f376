"""One engine run: settings, step times and requests in, token times out. The only module that drives kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from replay.deployment import Deployment
from replay.kernels.engine import advance
from replay.kernels.fast import advance_fast, new_fast, new_fast_registers
from replay.kernels.state import (
    BUSY,
    GAP_MAX_PS,
    LEAST_OUTSTANDING,
    MAX_USED_BLOCKS,
    PREEMPTIONS,
    QUERIED_TOKENS,
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
from replay.kernels.static import StaticOptions, advance_static
from replay.workload import PrefixBlocks

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
IntT = TypeVar("IntT", bound=np.signedinteger)
Checkpoint = Callable[[], None]

_EVENTS_A_CALL = 1 << 16
_STEPS_A_CALL = 1 << 22
"""Batches in one call of the general and of the fast loop: a second of work at most."""

_ROUTERS = {"round_robin": ROUND_ROBIN, "least_outstanding": LEAST_OUTSTANDING}
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class EngineRun:
    """Outcome of one run over some requests, in their order. Times in ps, -1 where it never happened."""

    admitted_ps: Int64Array
    first_ps: Int64Array
    last_ps: Int64Array
    replica: Int32Array
    preemptions_of: Int32Array
    hit_tokens: Int32Array
    gaps: Int64Array
    """ITL histogram: tokens by log-linear bin of ps."""
    gap_max_ps: int
    steps: int
    queried_tokens: int
    """Prompt tokens looked up in the prefix cache, re-admissions included; 0 without caching."""
    preemptions: int
    busy_ps: float
    used_block_ps: float
    running_ps: float
    used_blocks_max: int
    kernel_s: float


def make_requests(
    arrival_ps: Int64Array, prompt_tokens: Int64Array, output_tokens: Int64Array, prefix: PrefixBlocks | None = None
) -> Requests:
    """The kernels' view of requests: contiguous int64."""
    return Requests(
        arrival_ps=np.ascontiguousarray(arrival_ps, dtype=np.int64),
        prompt_tokens=np.ascontiguousarray(prompt_tokens, dtype=np.int64),
        output_tokens=np.ascontiguousarray(output_tokens, dtype=np.int64),
        priority=_NONE,
        prefix_start=_NONE if prefix is None else prefix.start,
        prefix_ids=_NONE if prefix is None else prefix.ids,
    )


def take_requests(requests: Requests, index: Int64Array) -> Requests:
    """The requests ``index``, in that order."""
    chosen = make_requests(requests.arrival_ps[index], requests.prompt_tokens[index], requests.output_tokens[index])
    if len(requests.prefix_start) == 0:
        return chosen
    prefix = PrefixBlocks(requests.prefix_start, requests.prefix_ids, 1).take(index)
    return chosen._replace(prefix_start=prefix.start, prefix_ids=prefix.ids)


@dataclass(frozen=True)
class Machine:
    """The replicas that must run together, ready to run: one where the router ignores their state, else all."""

    config: Config
    times: StepTimes
    static: StaticOptions | None = None

    @property
    def loop(self) -> str:
        """Which loop runs: ``static``, ``fast`` where it gives the general loop's integers, else ``general``."""
        if self.static is not None:
            return "static"
        config = self.config
        fast = (
            config.replicas == 1
            and config.long_prefill_token_threshold == 0
            and config.enable_chunked_prefill == 1
            and config.priority_policy == 0
            and config.prefix_caching == 0
        )
        return "fast" if fast else "general"

    def alone(self) -> Machine:
        """One replica of it."""
        return Machine(self.config._replace(replicas=1, router=ROUND_ROBIN), self.times, self.static)

    def run(self, requests: Requests, checkpoint: Checkpoint) -> EngineRun:
        """Runs ``requests`` to the end, calling ``checkpoint`` about once a second."""
        config, times = self.config, self.times
        if config.prefix_caching:
            longest = int((requests.prompt_tokens + requests.output_tokens).max(initial=1))
            config = config._replace(table_width=longest // config.block_size + 2)
        n = len(requests.arrival_ps)
        if self.loop == "fast":
            outcome, meters = new_outcome(config, n), new_meters(config, new_fast_registers(config))
            outcome.replica[:] = 0
            fast = new_fast(config, int(requests.output_tokens.max(initial=1)))
            return _drive(
                lambda limit: advance_fast(config, requests, times, outcome, meters, fast, limit),
                _STEPS_A_CALL,
                checkpoint,
                outcome,
                meters,
            )
        state = new_state(config, n)
        options, mask = self.static, bucket_count(config.num_blocks) - 1

        def advance_by(limit: int) -> bool:
            if options is not None:
                return advance_static(config, options, requests, times, state, limit)
            return advance(config, requests, times, state, mask, limit)

        limit = _EVENTS_A_CALL if options is None else _STEPS_A_CALL
        return _drive(advance_by, limit, checkpoint, state.outcome, state.meters)


def _drive(
    advance_by: Callable[[int], bool], limit: int, checkpoint: Checkpoint, outcome: Outcome, meter: Meters
) -> EngineRun:
    """Advances to the end, ``limit`` steps or events a call."""
    advance_by(0)  # compiles, or loads what was compiled before, outside the time that is reported
    kernel_s = 0.0
    more = True
    while more:
        started = time.perf_counter()
        more = advance_by(limit)
        kernel_s += time.perf_counter() - started
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
        queried_tokens=int(regs[:, QUERIED_TOKENS].sum()),
        preemptions=int(regs[:, PREEMPTIONS].sum()),
        busy_ps=float(meters[:, BUSY].sum()),
        used_block_ps=float(meters[:, USED_BLOCKS].sum()),
        running_ps=float(meters[:, RUNNING_REQUESTS].sum()),
        used_blocks_max=int(regs[:, MAX_USED_BLOCKS].max()),
        kernel_s=kernel_s,
    )


def make_machine(deployment: Deployment, prefix_block_tokens: int | None = None) -> Machine:
    """The machine of a deployment: a single replica under round robin, all replicas under a router that reads state.

    ``prefix_block_tokens``: tokens of a prompt block where the workload has block ids; prefix caching then acts.
    """
    engine, record = deployment.engine, deployment.step_time
    coupled = deployment.spec.router != "round_robin"
    blocks = deployment.usable_blocks
    config = Config(
        replicas=deployment.replicas if coupled else 1,
        router=_ROUTERS[deployment.spec.router],
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=deployment.block_size,
        num_blocks=blocks,
        batches_in_flight=2 if engine.async_scheduling else 1,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        threshold_binds_lone_request=int(engine.threshold_binds_lone_request),
        enable_chunked_prefill=int(engine.enable_chunked_prefill),
        unchunked_looks_further=int(engine.unchunked_looks_further),
        reserve_full_isl=int(engine.scheduler_reserve_full_isl),
        watermark_blocks=int(engine.watermark * (blocks + 1)),
        max_model_len=engine.max_model_len,
        priority_policy=0,
        prefix_caching=int(engine.enable_prefix_caching and prefix_block_tokens is not None),
        table_width=0,
        prefix_block_tokens=prefix_block_tokens or 1,
    )
    law = (
        record.decode_request_ps,
        record.decode_linear_ps,
        record.prefill_linear_ps,
        record.host_ps,
        record.host_per_request_ps,
    )
    times = StepTimes(
        rest_ps=np.ascontiguousarray(record.rest_ps),
        decode_table_ps=np.ascontiguousarray(record.decode_table_ps),
        prefill_table_ps=np.ascontiguousarray(record.prefill_table_ps),
        law=np.array(law, dtype=np.int64),
    )
    static = None
    if engine.scheduler == "static":
        timeout = round(engine.batch_timeout_s * 1e12) if engine.batch_timeout_s >= 0 else -1
        static = StaticOptions(int(engine.pad_prefill), int(engine.stream_finished), timeout, 1)
    return Machine(config, times, static)


def run_deployment(
    machine: Machine, requests: Requests, replicas: int, threads: int, checkpoint: Checkpoint
) -> EngineRun:
    """Replays on all replicas; round-robin shares run apart, on up to ``threads`` threads, with the same result."""
    if machine.config.replicas > 1 or replicas == 1:
        return machine.run(requests, checkpoint)
    n = len(requests.arrival_ps)
    shares = [take_requests(requests, np.arange(k, n, replicas)) for k in range(replicas)]
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            runs = list(pool.map(lambda share: machine.run(share, checkpoint), shares))
    else:
        runs = [machine.run(share, checkpoint) for share in shares]
    return _interleave(runs, n)


def _interleave(runs: list[EngineRun], n: int) -> EngineRun:
    """Puts the shares of a round-robin split back into one outcome."""
    replicas = len(runs)

    def column(shares: list[npt.NDArray[IntT]]) -> npt.NDArray[IntT]:
        whole = np.empty(n, dtype=shares[0].dtype)
        for k, share in enumerate(shares):
            whole[k::replicas] = share
        return whole

    return EngineRun(
        admitted_ps=column([run.admitted_ps for run in runs]),
        first_ps=column([run.first_ps for run in runs]),
        last_ps=column([run.last_ps for run in runs]),
        replica=(np.arange(n) % replicas).astype(np.int32),
        preemptions_of=column([run.preemptions_of for run in runs]),
        hit_tokens=column([run.hit_tokens for run in runs]),
        gaps=np.sum([run.gaps for run in runs], axis=0),
        gap_max_ps=max(run.gap_max_ps for run in runs),
        steps=sum(run.steps for run in runs),
        queried_tokens=sum(run.queried_tokens for run in runs),
        preemptions=sum(run.preemptions for run in runs),
        busy_ps=sum(run.busy_ps for run in runs),
        used_block_ps=sum(run.used_block_ps for run in runs),
        running_ps=sum(run.running_ps for run in runs),
        used_blocks_max=max(run.used_blocks_max for run in runs),
        kernel_s=sum(run.kernel_s for run in runs),
    )
