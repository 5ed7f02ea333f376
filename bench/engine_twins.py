"""The naive twins of the tests on the bench's loads: steps a second of the same schedulers in plain Python.

A twin takes the linear part of the deployment's step times: what a step lasts changes little of the work in it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from engines import twin_config, twin_requests
from naive.batches import Request as BatchRequest
from naive.disaggregated import Pools as PoolsTwin
from naive.lockstep import Group
from naive.orca import Orca
from naive.orca import Request as OrcaRequest
from naive.sglang import Sglang
from naive.speculative import Sampled
from naive.tgi import Tgi
from naive.trtllm import Trtllm
from naive.v0 import V0
from naive.v0 import Request as V0Request
from naive.vllm import Engine

from replay.admission import declared_tokens, judge
from replay.deployment import Deployment
from replay.disaggregation import make_pools
from replay.engine_families import CAPACITY_POLICIES
from replay.kernels.state import NEVER, Config, Requests
from replay.machine import Machine, make_machine, make_requests, take_requests
from replay.orders import ranks_of
from replay.workload import Workload

Cost = tuple[int, int, int, int, int]


def twin_steps_per_s(deployment: Deployment, load: Workload) -> float | None:
    """Steps a second of the naive twin; ``None`` where the bench has no twin of it."""
    run = _twin(deployment, load)
    if run is None:
        return None
    twin, arguments = run
    started = time.process_time()
    twin.run(*arguments)
    return _steps(twin) / (time.process_time() - started)


def _steps(twin: Any) -> int:
    if isinstance(twin, PoolsTwin):
        return sum(replica.steps for pool in (twin.prefill, twin.decode) for replica in pool.replicas)
    return sum(replica.steps for replica in twin.replicas) if isinstance(twin, Group) else int(twin.steps)


def _twin(deployment: Deployment, load: Workload) -> tuple[Any, tuple[Any, ...]] | None:
    spec = deployment.spec
    if load.follows is not None or load.closed_loop is not None or spec.failures or spec.client_timeout_s is not None:
        return None
    if deployment.layer_groups is not None:
        return None
    if deployment.decode is not None:
        return _pools(deployment, load), ()
    machine = make_machine(deployment, None if load.prefix is None else load.prefix.block_tokens)
    requests = _requests(machine, deployment, load)
    config, cost = machine.config, _cost(machine)
    if machine.scheduler == "vllm":
        settings = twin_config(config, cost)
        if config.speculative_tokens:
            settings.g = config.speculative_tokens
            settings.draft_step = (config.draft_step_ps, config.draft_step_share)
            settings.accept = Sampled(config.speculation_seed, machine.acceptance)
        return Engine(settings, twin_requests(config, requests)), ()
    if machine.scheduler == "lockstep":
        options = machine.options
        shared, idle = int(options.shared_ps[1]), options.idle_check_steps
        people = twin_requests(config, requests)
        return Group(
            twin_config(config, cost), people, config.replicas, "vllm_dp", options.graph_tokens, shared, idle
        ), ()
    columns = tuple(column.tolist() for column in requests[:3])
    if machine.scheduler.startswith("vllm-v0"):
        return _v0(machine, cost), ([V0Request(i, *row) for i, row in enumerate(zip(*columns, strict=True))],)
    columns += (requests.max_tokens.tolist(),)
    if machine.scheduler == "orca":
        slots, budget = config.max_num_seqs, config.max_num_batched_tokens
        orca = Orca(slots, budget, config.num_blocks, cost, config.max_model_len)
        return orca, ([OrcaRequest(*row) for row in zip(*columns, strict=True)],)
    batches = _batches(machine, deployment, cost)
    if batches is None:
        return None
    return batches, ([BatchRequest(i, *row) for i, row in enumerate(zip(*columns, strict=True))],)


def _requests(machine: Machine, deployment: Deployment, load: Workload) -> Requests:
    found = make_requests(
        load.arrival_ps, load.prompt_tokens, load.output_tokens, load.prefix if machine.caches_prefixes else None
    )
    declared = declared_tokens(load, deployment)
    if declared is not None:
        found = found._replace(max_tokens=declared)
    if machine.config.priority_policy:
        found = found._replace(priority=ranks_of(deployment.engine, load))
    return take_requests(found, np.flatnonzero(judge(load, deployment, declared) == 0))


def _cost(machine: Machine) -> Cost:
    """Floor, per token, context, pair, constant; the floor is a step of one token."""
    rest, law = machine.times.rest_ps, machine.times.law
    return int(rest[1]), 0, int(law[1]), int(law[2]), 0


def _pools(deployment: Deployment, load: Workload) -> PoolsTwin:
    pools = make_pools(deployment)
    sides = []
    for machine, router in ((pools.prefill, pools.prefill_router), (pools.decode, pools.decode_router)):
        config: Config = machine.config
        output = load.output_tokens if machine is pools.decode else load.output_tokens * 0 + 1
        people = twin_requests(config, make_requests(load.arrival_ps, load.prompt_tokens, output))
        sides.append((twin_config(config, _cost(machine)), people, config.replicas, router))
    return PoolsTwin(sides[0], sides[1], pools.options.block_ps, pools.options.latency_ps, True)


def _v0(machine: Machine, cost: Cost) -> V0:
    config, options = machine.config, machine.options
    return V0(
        S=config.max_num_seqs,
        B=config.max_num_batched_tokens,
        bs=config.block_size,
        blocks=config.num_blocks,
        watermark=config.watermark_blocks,
        cost=cost,
        swap=bool(options.swap),
        cpu_blocks=options.cpu_blocks,
        copy=options.block_copy_ps,
        max_model_len=config.max_model_len,
        chunked=machine.scheduler == "vllm-v0-chunked",
    )


def _batches(machine: Machine, deployment: Deployment, cost: Cost) -> Any:
    config, options, depth = machine.config, machine.options, machine.config.batches_in_flight
    shape = (config.max_num_seqs, config.max_num_batched_tokens, config.block_size, config.num_blocks, cost, depth)
    if machine.scheduler == "sglang":
        return Sglang(
            *shape,
            chunk_size=None if options.chunked_prefill_size == NEVER else options.chunked_prefill_size,
            max_prefill_tokens=options.max_prefill_tokens,
            ratio_first=options.ratio_first,
            ratio_least=options.ratio_least,
        )
    if machine.scheduler == "trtllm":
        policy = CAPACITY_POLICIES[options.policy]
        return Trtllm(*shape, policy=policy, chunked=bool(config.enable_chunked_prefill))
    if machine.scheduler.startswith("tgi"):
        return Tgi(
            *shape[:5],
            chunks=bool(options.chunks),
            prefill_tokens=options.max_batch_prefill_tokens,
            max_waiting_tokens=options.max_waiting_tokens,
            ratio=options.waiting_served_ratio,
            max_concurrent=config.max_num_seqs,
        )
    return None
