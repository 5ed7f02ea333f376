"""Random small engine runs, for tests that hold loops and twins against each other."""

from __future__ import annotations

import numba
import numpy as np
from naive.routers import Cluster
from naive.vllm import Config as TwinConfig
from naive.vllm import Engine, Request

from replay.kernels.coupled import advance_coupled
from replay.kernels.engine import advance
from replay.kernels.fast import advance_fast, new_fast, new_fast_registers
from replay.kernels.state import (
    FCFS,
    PRIORITY,
    RANKS_A_TOKEN,
    SHORTEST,
    SHORTEST_REMAINING,
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
from replay.routing import draw_pairs, prepare_routing
from replay.steptime.record import no_table

EMPTY = np.zeros(0, np.int64)
FOREVER = 1 << 40
SEED = 5


def cases(n: int) -> int:
    """How many of ``n`` random cases to run: all, or a third in the runs that look for other faults than wrong
    results, as plain Python (NUMBA_DISABLE_JIT) or with bounds checks. The run of compiled kernels compares all."""
    return n // 3 if numba.config.DISABLE_JIT or numba.config.BOUNDSCHECK else n


def config(**changes: int) -> Config:
    """A small synchronous engine."""
    base = Config(
        replicas=1,
        router=0,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=4,
        num_blocks=100,
        batches_in_flight=1,
        long_prefill_token_threshold=0,
        threshold_binds_lone_request=0,
        enable_chunked_prefill=1,
        unchunked_looks_further=0,
        reserve_full_isl=1,
        watermark_blocks=0,
        max_model_len=FOREVER,
        priority_policy=0,
        prefix_caching=0,
        table_width=0,
        prefix_block_tokens=1,
    )
    return base._replace(**changes)


def requests(
    arrival_ps: list[int], prompt: list[int], output: list[int], priority: list[int] | None = None
) -> Requests:
    """Requests without block ids."""
    columns = [np.array(column, np.int64) for column in (arrival_ps, prompt, output)]
    return Requests(*columns, np.array(priority, np.int64) if priority else EMPTY, EMPTY, EMPTY)


def linear_law(
    tokens: int, floor: int = 0, per_token: int = 0, constant: int = 0, context: int = 0, pair: int = 0
) -> StepTimes:
    """``max(floor, per_token T) + context K + pair A2 + constant`` for up to ``tokens`` tokens."""
    rest = np.maximum(floor, per_token * np.arange(tokens + 1, dtype=np.int64)) + constant
    return StepTimes(rest, no_table(), no_table(), np.array([0, context, pair, 0, 0, 0], np.int64))


def run_general(c: Config, r: Requests, t: StepTimes, events_a_call: int = 1 << 20) -> tuple[Outcome, Meters]:
    """The general loop to its end."""
    state = new_state(c, len(r.arrival_ps))
    state = state._replace(routing=prepare_routing(c, r, state.meters.regs, SEED))
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, events_a_call):
        pass
    return state.outcome, state.meters


def run_fast(c: Config, r: Requests, t: StepTimes, steps_a_call: int = 1 << 20) -> tuple[Outcome, Meters]:
    """The fast loop to its end."""
    outcome, meters = new_outcome(c, len(r.arrival_ps)), new_meters(c, new_fast_registers(c))
    fast = new_fast(c, int(r.output_tokens.max()))
    routing = prepare_routing(c, r, meters.regs, SEED)
    if c.replicas > 1:
        while advance_coupled(c, r, t, outcome, meters, fast, routing, steps_a_call):
            pass
    else:
        while advance_fast(c, r, t, outcome, meters, fast, steps_a_call):
            pass
    return outcome, meters


def run_twin(c: Config, r: Requests, cost: tuple[int, int, int, int, int]) -> Engine:
    """The naive twin under the linear law ``cost`` = (floor, per token, context, pair, constant)."""
    twin = Engine(twin_config(c, cost), twin_requests(c, r))
    twin.run()
    return twin


def run_cluster_twin(c: Config, r: Requests, cost: tuple[int, int, int, int, int], router: str) -> Cluster:
    """The naive twin of replicas behind a router, with the draws of ``SEED``; block ids are ``stream * 1000 + i``."""
    blocks = None
    if c.prefix_caching:
        blocks = [r.prefix_ids[r.prefix_start[i] : r.prefix_start[i + 1]].tolist() for i in range(len(r.arrival_ps))]
    twin = Cluster(
        twin_config(c, cost),
        twin_requests(c, r),
        c.replicas,
        router,
        age=c.router_snapshot_ps,
        pairs=[(int(a), int(b)) for a, b in draw_pairs(len(r.arrival_ps), c.replicas, SEED)],
        blocks=blocks,
        block_tokens=c.prefix_block_tokens,
    )
    twin.run()
    return twin


def twin_config(c: Config, cost: tuple[int, int, int, int, int]) -> TwinConfig:
    """The twin's settings for ``c`` under the linear law ``cost`` = (floor, per token, context, pair, constant)."""
    return TwinConfig(
        S=c.max_num_seqs,
        B=c.max_num_batched_tokens,
        bs=c.block_size,
        blocks=c.num_blocks,
        cost=cost,
        thr=c.long_prefill_token_threshold,
        chunked=bool(c.enable_chunked_prefill),
        full_isl=bool(c.reserve_full_isl),
        watermark=(c.watermark_blocks + 0.5) / (c.num_blocks + 1),  # comes out as watermark_blocks when cut to a whole
        async_=c.batches_in_flight == 2,
        caching=bool(c.prefix_caching),
        policy=("fcfs", "priority", "sjf", "srpt")[c.priority_policy],
        thr_binds_lone_request=bool(c.threshold_binds_lone_request),
        unchunked_looks_further=bool(c.unchunked_looks_further),
        max_model_len=c.max_model_len,
        frees_in_order=bool(c.frees_in_order),
        victims_stay=bool(c.victims_stay),
        runs_past_end=bool(c.runs_past_end),
        host_blocks=c.host_blocks,
        host_cost=(c.host_latency_ps, c.host_block_ps),
    )


def twin_requests(c: Config, r: Requests) -> list[Request]:
    priority = r.priority.tolist() if c.priority_policy else [0] * len(r.arrival_ps)
    rows = zip(r.arrival_ps.tolist(), r.prompt_tokens.tolist(), r.output_tokens.tolist(), priority, strict=True)
    found = [Request(i, *row) for i, row in enumerate(rows)]
    if c.prefix_caching:
        for i, request in enumerate(found):
            ids = r.prefix_ids[r.prefix_start[i] : r.prefix_start[i + 1]]
            if len(ids):
                request.prefix = (int(ids[0]) // 1000, len(ids) * c.prefix_block_tokens)
    return found


def random_case(
    rng: np.random.Generator, *, threshold: bool = False, priority: bool = False, order: int = FCFS
) -> tuple[Config, Requests, tuple]:
    """A small run chosen to hit the corners: tiny memory, one slot, a budget of the slots, ties, free steps,
    overload."""
    n = int(rng.integers(1, 40))
    block_size, slots = int(rng.choice([1, 2, 4, 16])), int(rng.choice([1, 2, 4, 8, 32]))
    budget = slots + int(rng.choice([0, 1, 7, 30, 200]))
    prompt = rng.integers(1, int(rng.choice([2, 10, 60])), n)
    output = rng.integers(1, int(rng.choice([2, 8, 50])), n)
    largest = int(np.max(-(-(prompt + output - 1) // block_size)))
    blocks = largest + int(rng.choice([0, 1, 3, 20, 1000]))
    arrival = np.sort(rng.integers(0, int(rng.choice([1, 10, 3000])), n)) * int(rng.choice([1, 1000]))
    c = config(
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        block_size=block_size,
        num_blocks=blocks,
        batches_in_flight=int(rng.integers(1, 3)),
        reserve_full_isl=int(rng.integers(0, 2)),
        watermark_blocks=int(rng.choice([0, 0, 1, 3])),
        long_prefill_token_threshold=int(rng.choice([0, 1, 8])) if threshold else 0,
        threshold_binds_lone_request=int(rng.integers(0, 2)) if threshold else 0,
        priority_policy=PRIORITY if priority else order,
    )
    ranks = rng.integers(0, 3, n).tolist() if priority else None
    if order in (SHORTEST, SHORTEST_REMAINING):
        ranks = np.rint(output * rng.lognormal(0, rng.choice([0.0, 1.0]), n) * RANKS_A_TOKEN).astype(int).tolist()
    cost = tuple(int(x) for x in rng.choice([0, 0, 1, 5, 100, 1000], 5))
    return c, requests(arrival.tolist(), prompt.tolist(), output.tolist(), ranks), cost


def law_of(c: Config, cost: tuple[int, int, int, int, int]) -> StepTimes:
    """``cost`` = (floor, per token, context, pair, constant) as a step-time record."""
    floor, per_token, context, pair, constant = cost
    return linear_law(c.max_num_batched_tokens, floor, per_token, constant, context, pair)
