"""Prefill and decode pools: from two machines to one run, and what each pool and the links between sustain."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from replay.capacity import admission_rate, at_once, measure_capacity, measure_capacity_as_dealt, shuffled
from replay.deployment import Deployment
from replay.engine_run import EngineRun, Int32Array, Int64Array
from replay.kernels.arrivals import prepare_arrivals
from replay.kernels.disaggregated import (
    SHORT,
    Handover,
    Pool,
    TransferOptions,
    advance_disaggregated,
    new_handover,
)
from replay.kernels.state import (
    BUSY,
    MAX_USED_BLOCKS,
    NO_TEXTS,
    PREEMPTIONS,
    QUERIED_TOKENS,
    RUNNING_REQUESTS,
    SCORED_END,
    SCORED_FIRST,
    STEPS,
    USED_BLOCKS,
    Config,
    Requests,
    bucket_count,
    new_state,
)
from replay.machine import (
    ALL_SCORED,
    Checkpoint,
    Machine,
    Scored,
    drive,
    make_machine,
    take_requests,
)
from replay.own_loops import EVENTS_A_CALL
from replay.results import PoolUse
from replay.routing import deal, prepare_routing
from replay.specs import DisaggregationSpec, Router

_PS_PER_S = 1e12
_NONE = np.zeros(0, np.int64)
_NOBODY = np.zeros(0, np.int32)
_ENTRIES_A_BLOCK = 8
"""Requests waiting for their transfer that share a prefill block, on average; a run that needs more is run again."""


@dataclass(frozen=True, kw_only=True)
class PoolsRun(EngineRun):
    """Outcome of a run over two pools. Use of memory and batch is the decode pool's; counts are of both."""

    decode_replica: Int32Array
    """-1: the first token was the last one."""
    prefilled_ps: Int64Array
    kv_ps: Int64Array
    """When the KV had come to the decode replica; -1 where nothing was sent."""
    use: tuple[PoolUse, PoolUse]

    @property
    def kv_transfer_ps(self) -> Int64Array:
        """From the end of the prefill until the KV is there, waiting included; -1 where nothing was sent."""
        return np.where(self.kv_ps < 0, -1, self.kv_ps - self.prefilled_ps)


@dataclass(frozen=True)
class PoolCapacity:
    """Requests per second that each part sustains, same mix; ``transfer`` is infinite where transfers take no time."""

    prefill: float
    decode: float
    transfer: float
    kernel_s: float

    @property
    def binding(self) -> str:
        """Which part sustains least: ``prefill``, ``decode`` or ``transfer``."""
        return min(("prefill", "decode", "transfer"), key=lambda part: (float(getattr(self, part)), part))

    @property
    def sustainable_rps(self) -> float:
        return min(self.prefill, self.decode, self.transfer)


@dataclass(frozen=True)
class Pools:
    """Both pools, ready to run."""

    prefill: Machine
    decode: Machine
    prefill_router: Router
    decode_router: Router
    options: TransferOptions
    deployment: Deployment
    seed: int

    loop = "disaggregated"

    @property
    def config(self) -> Config:
        """Settings of the prefill pool, which the requests arrive at."""
        return self.prefill.config

    @property
    def caches_prefixes(self) -> bool:
        """Whether the prefill pool reuses what prompts share."""
        return self.prefill.caches_prefixes

    def run(
        self, requests: Requests, checkpoint: Checkpoint, scored: Scored = ALL_SCORED, session: Int64Array | None = None
    ) -> PoolsRun:
        """Runs ``requests`` to the end, calling ``checkpoint`` about once a second."""
        entries = _ENTRIES_A_BLOCK * self.config.num_blocks if self.config.prefix_caching else 0
        while True:
            run = self._run(requests, checkpoint, scored, session, entries)
            if run is not None:
                return run
            entries *= 4

    def _run(
        self, requests: Requests, checkpoint: Checkpoint, scored: Scored, session: Int64Array | None, entries: int
    ) -> PoolsRun | None:
        n = len(requests.arrival_ps)
        config = self.prefill.config
        if config.prefix_caching:
            longest = int(requests.prompt_tokens.max(initial=1)) + 1
            config = config._replace(table_width=longest // config.block_size + 2)
        prompts = requests._replace(output_tokens=np.ones_like(requests.output_tokens))
        plain = requests._replace(prefix_start=_NONE, prefix_ids=_NONE, texts=NO_TEXTS)
        prefill = _pool(config, prompts, self.prefill, self.prefill_router, self.seed, session)
        decode = _pool(self.decode.config, plain, self.decode, self.decode_router, self.seed + 1, session)
        decode.state.meters.regs[:, SCORED_FIRST], decode.state.meters.regs[:, SCORED_END] = scored
        handover = new_handover(n, config, self.decode.config, entries)

        def advance_by(limit: int) -> bool:
            return advance_disaggregated(self.options, prefill, decode, handover, limit)

        run = drive(
            advance_by, EVENTS_A_CALL, checkpoint, decode.state.outcome, decode.state.meters, requests.arrival_ps
        )
        if handover.scalars[SHORT]:
            return None
        return self._joined(run, prefill, decode, handover)

    def _joined(self, run: EngineRun, prefill: Pool, decode: Pool, handover: Handover) -> PoolsRun:
        prompts, decodes = prefill.state.outcome, decode.state.outcome
        regs = prefill.state.meters.regs
        went_on = decodes.replica >= 0
        from_prefill = bool(self.options.first_token_from_prefill)
        fields = {name: getattr(run, name) for name in run.__dataclass_fields__}
        fields |= {
            "admitted_ps": decodes.admitted_ps if self.options.skips_prefill else prompts.admitted_ps,
            "first_ps": prompts.first_ps if from_prefill else decodes.first_ps,
            "last_ps": np.where(went_on, decodes.last_ps, prompts.last_ps),
            "replica": prompts.replica,
            "preemptions_of": prompts.preemptions + decodes.preemptions,
            "hit_tokens": prompts.hit_tokens,
            "queried_tokens": int(regs[:, QUERIED_TOKENS].sum()),
            "looked_up_hits": int(prompts.hit_tokens.sum()),
            "steps": run.steps + int(regs[:, STEPS].sum()),
            "preemptions": run.preemptions + int(regs[:, PREEMPTIONS].sum()),
        }
        return PoolsRun(
            **fields,
            decode_replica=decodes.replica,
            prefilled_ps=prompts.first_ps,
            kv_ps=handover.kv_ps,
            use=(_use("prefill", prefill, self.deployment.memory.tp), _use("decode", decode, self._decode.memory.tp)),
        )

    @property
    def _decode(self) -> Deployment:
        if self.deployment.decode is None:
            raise RuntimeError("pools are made of a deployment that has a decode pool")
        return self.deployment.decode

    def capacity(self, requests: Requests, checkpoint: Checkpoint, session: Int64Array | None = None) -> PoolCapacity:
        """What each pool and the links sustain. A pool is measured alone: the prefill pool on requests of one token, a
        decode replica on requests whose KV is there when they come."""
        n = len(requests.arrival_ps)
        if n == 0:
            return PoolCapacity(0.0, 0.0, 0.0, 0.0)
        prompts = requests._replace(output_tokens=np.ones_like(requests.output_tokens))
        one, prefill_s = measure_capacity(self.prefill, prompts, self.deployment, checkpoint, session)
        goes_on = np.flatnonzero(requests.output_tokens > self.options.first_token_from_prefill)
        share, decode_rps, decode_s, transfer_rps = len(goes_on) / n, np.inf, 0.0, np.inf
        if share > 0:
            decodes = take_requests(requests, goes_on)
            single = self.decode.config._replace(replicas=1)
            alone = replace(
                self,
                prefill=replace(self.prefill, config=self.config._replace(replicas=1, prefix_caching=0)),
                decode=replace(self.decode, config=single),
                prefill_router="round_robin",
                decode_router="round_robin",
                options=self.options._replace(block_ps=0, latency_ps=0, skips_prefill=1),
            )
            burst = at_once(shuffled(decodes, self.deployment))
            rate, decode_s = admission_rate(alone.run(burst, checkpoint))
            decode_rps = rate * self.decode.config.replicas / share
            blocks = -(-decodes.prompt_tokens // single.block_size)
            seconds = float(blocks.mean()) * self.options.block_ps / _PS_PER_S * share
            links = min(self.config.replicas, self.decode.config.replicas)
            transfer_rps = links / seconds if seconds > 0 else np.inf
        return PoolCapacity(one * self.config.replicas, decode_rps, transfer_rps, prefill_s + decode_s)

    def capacity_as_dealt(
        self, before: PoolCapacity, requests: Requests, checkpoint: Checkpoint, replica: Int32Array
    ) -> PoolCapacity:
        """``before``, with the prefill pool on what its router dealt (``measure_capacity_as_dealt``)."""
        prompts = requests._replace(output_tokens=np.ones_like(requests.output_tokens))
        found = measure_capacity_as_dealt(self.prefill, prompts, self.deployment, checkpoint, replica)
        if found is None:
            return before
        return replace(before, prefill=found[0] * self.config.replicas, kernel_s=before.kernel_s + found[1])


def _pool(
    config: Config, requests: Requests, machine: Machine, router: Router, seed: int, session: Int64Array | None
) -> Pool:
    n = len(requests.arrival_ps)
    state = new_state(config, n)
    state = state._replace(
        routing=prepare_routing(config, requests, state.meters.regs, seed), arrivals=prepare_arrivals(config, requests)
    )
    dealt = _NOBODY
    if router in ("random", "session_affinity"):
        dealt = deal(router, n, config.replicas, seed, session)
    return Pool(config, requests, machine.times, state, dealt, bucket_count(config.num_blocks) - 1)


def _use(name: str, pool: Pool, tp: int) -> PoolUse:
    """What the pool's meters say; loads are filled in once capacity is known."""
    regs, meters = pool.state.meters.regs, pool.state.meters.meters
    busy = max(float(meters[:, BUSY].sum()), 1.0)
    return PoolUse(
        name=name,
        replicas=pool.config.replicas,
        tp=tp,
        steps=int(regs[:, STEPS].sum()),
        preemptions=int(regs[:, PREEMPTIONS].sum()),
        kv_usage_mean=float(meters[:, USED_BLOCKS].sum()) / busy / pool.config.num_blocks,
        kv_usage_max=int(regs[:, MAX_USED_BLOCKS].max()) / pool.config.num_blocks,
        batch_mean=float(meters[:, RUNNING_REQUESTS].sum()) / busy,
        busy_s=float(meters[:, BUSY].sum()) / _PS_PER_S,
        sustainable_rps=0.0,
    )


def make_pools(deployment: Deployment, prefix_block_tokens: int | None = None, seed: int = 0) -> Pools:
    """The pools of a deployment with a decode pool; arguments as of ``make_machine``."""
    spec, decode = deployment.spec, deployment.decode
    apart = spec.disaggregation
    if decode is None or apart is None:
        raise RuntimeError("pools are made of a deployment that has a decode pool")
    prefill_spec, decode_spec = spec.pools()
    prefill = make_machine(replace(deployment, spec=prefill_spec, decode=None), prefix_block_tokens, seed)
    return Pools(
        prefill=_with_all(prefill, apart.prefill_replicas),
        decode=_with_all(make_machine(decode, None, seed), apart.decode_replicas),
        prefill_router=prefill_spec.router,
        decode_router=decode_spec.router,
        options=_transfer(apart, decode),
        deployment=replace(deployment, spec=prefill_spec),
        seed=seed,
    )


def _with_all(machine: Machine, replicas: int) -> Machine:
    """All replicas together, also behind a router that reads no state: they meet at the transfers."""
    return replace(machine, config=machine.config._replace(replicas=replicas))


def _transfer(apart: DisaggregationSpec, decode: Deployment) -> TransferOptions:
    """A block of the scheduler is one physical block in each group of layers, on each rank of the receiver."""
    layout = decode.memory.layout
    block_bytes = layout.block_bytes * layout.group_count * decode.memory.tp
    return TransferOptions(
        block_ps=round(block_bytes / (apart.kv_transfer_gb_per_s * 1e9) * _PS_PER_S),
        latency_ps=round(apart.kv_transfer_latency_s * _PS_PER_S),
        first_token_from_prefill=int(apart.first_token_from == "prefill"),  # noqa: S105 - a token of text
        skips_prefill=0,
    )
