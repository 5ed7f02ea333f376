"""Routers that read state: against the naive twin, by hand, and the coupled fast loop against the general loop."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from engines import (
    SEED,
    cases,
    config,
    law_of,
    linear_law,
    random_case,
    requests,
    run_cluster_twin,
    run_fast,
    run_general,
)

from replay.kernels.state import (
    FINISHED,
    FREE_BLOCKS,
    GAP_MAX_PS,
    LEAST_KV_USAGE,
    LEAST_OUTSTANDING,
    LEAST_OUTSTANDING_TOKENS,
    MAX_USED_BLOCKS,
    NEXT_ARRIVAL,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    POWER_OF_TWO,
    PREEMPTIONS,
    PREFIX_AWARE,
    PREVIOUS_END,
    ROUND_ROBIN,
    ROUTER_NEXT,
    RUNNING,
    SCHEDULED_TOKENS,
    STEPS,
    VLLM_DP,
    VLLM_DP_OLD,
    WAITING,
    Config,
    Requests,
)
from replay.routing import deal, draw_pairs

ROUTERS = {
    "round_robin": ROUND_ROBIN,
    "least_outstanding": LEAST_OUTSTANDING,
    "least_outstanding_tokens": LEAST_OUTSTANDING_TOKENS,
    "least_kv_usage": LEAST_KV_USAGE,
    "power_of_two": POWER_OF_TWO,
    "vllm_dp": VLLM_DP,
    "vllm_dp_old": VLLM_DP_OLD,
}
SHARED = [STEPS, SCHEDULED_TOKENS, PREEMPTIONS, MAX_USED_BLOCKS, PREVIOUS_END, FREE_BLOCKS, RUNNING]
SHARED += [OUTSTANDING, OUTSTANDING_TOKENS]
COUPLED_CASES = 60 if numba.config.DISABLE_JIT else 3000
FOREVER_PS = 1 << 60


def random_cluster(rng: np.random.Generator, router: str) -> tuple[Config, Requests, tuple]:
    """A small run behind ``router``, with state read fresh or from a snapshot, arrivals and ticks at equal times."""
    c, r, cost = random_case(rng)
    span = int(r.arrival_ps.max()) + 1
    c = c._replace(
        replicas=int(rng.integers(2, 6)),
        router=ROUTERS[router],
        router_snapshot_ps=int(rng.choice([0, 0, 1, max(1, span // 7), 1000, FOREVER_PS])),
    )
    if rng.random() < 0.3:
        r = r._replace(arrival_ps=r.arrival_ps // 1000 * 1000)
    return c, r, cost


@pytest.mark.parametrize("router", ROUTERS)
def test_the_naive_twin_agrees(router: str) -> None:
    rng = np.random.default_rng(21)
    for _ in range(cases(60)):
        c, r, cost = random_cluster(rng, router)
        outcome, meters = run_general(c, r, law_of(c, cost))
        twin = run_cluster_twin(c, r, cost, router)
        assert outcome.replica.tolist() == twin.chosen
        assert outcome.last_ps.tolist() == [x.last for x in twin.requests]
        assert outcome.preemptions.tolist() == [x.preemptions for x in twin.requests]
        assert not meters.regs[:, [OUTSTANDING, OUTSTANDING_TOKENS, WAITING, RUNNING]].any()


def test_prefix_aware_agrees_with_the_naive_twin() -> None:
    rng = np.random.default_rng(22)
    hits = 0
    for _ in range(cases(80)):
        c, r, cost = random_cluster(rng, "least_outstanding")
        n = len(r.arrival_ps)
        longest = int((r.prompt_tokens + r.output_tokens).max())
        c = c._replace(
            router=PREFIX_AWARE,
            replicas=int(rng.choice([2, 3, 70])),
            prefix_caching=1,
            prefix_block_tokens=c.block_size,
            table_width=longest // c.block_size + 2,
        )
        stream = rng.integers(0, 4, n)
        shared = np.minimum(rng.integers(0, 60, n), r.prompt_tokens) // c.block_size
        ids = [s * 1000 + np.arange(k) for s, k in zip(stream, shared, strict=True)]
        start = np.concatenate([[0], np.cumsum(shared)]).astype(np.int64)
        r = r._replace(prefix_start=start, prefix_ids=np.concatenate(ids).astype(np.int64))
        outcome, _ = run_general(c, r, law_of(c, cost))
        twin = run_cluster_twin(c, r, cost, "prefix_aware")
        assert outcome.replica.tolist() == twin.chosen
        assert outcome.last_ps.tolist() == [x.last for x in twin.requests]
        hits += int(outcome.hit_tokens.sum())
    assert hits > cases(1000)


def test_the_fast_loop_of_coupled_replicas_is_the_general_loop_in_any_number_of_calls() -> None:
    rng = np.random.default_rng(2027)
    preempted = 0
    for _ in range(COUPLED_CASES):
        c, r, cost = random_cluster(rng, str(rng.choice(list(ROUTERS))))
        law = law_of(c, cost)
        general, meters = run_general(c, r, law)
        fast, fast_meters = run_fast(c, r, law, steps_a_call=int(rng.choice([1, 7, 1 << 20])))
        for name in ("replica", "admitted_ps", "first_ps", "last_ps", "preemptions"):
            assert np.array_equal(getattr(general, name), getattr(fast, name)), name
        assert np.array_equal(meters.regs[:, SHARED], fast_meters.regs[:, SHARED])
        assert np.array_equal(meters.meters, fast_meters.meters)
        assert np.array_equal(meters.gaps, fast_meters.gaps)
        same = [NEXT_ARRIVAL, ROUTER_NEXT, FINISHED, GAP_MAX_PS]  # not the next look: the loops take other ones last
        assert np.array_equal(meters.cluster[same], fast_meters.cluster[same])
        preempted += int(meters.regs[:, PREEMPTIONS].sum())
    assert preempted > COUPLED_CASES, "the cases must press on memory"


@pytest.mark.parametrize("router", ["least_outstanding", "least_outstanding_tokens", "least_kv_usage", "vllm_dp"])
def test_a_router_that_never_looks_deals_in_turn(router: str) -> None:
    rng = np.random.default_rng(23)
    c, r, cost = random_cluster(rng, router)
    outcome, _ = run_general(c._replace(replicas=3, router_snapshot_ps=FOREVER_PS), r, law_of(c, cost))
    assert outcome.replica.tolist() == [i % 3 for i in range(len(r.arrival_ps))]


def test_tokens_and_requests_are_weighed_apart() -> None:
    # Replica 0 gets one long request, replica 1 two short ones; the fourth arrives while all run.
    r = requests([0, 1, 2, 3], [40, 2, 2, 5], [50, 9, 9, 5])
    law = linear_law(64, constant=1000)
    c = config(replicas=2, max_num_batched_tokens=64, router=LEAST_OUTSTANDING_TOKENS)
    assert run_fast(c, r, law)[0].replica.tolist() == [0, 1, 1, 1]
    c = c._replace(router=LEAST_OUTSTANDING)
    assert run_fast(c, r, law)[0].replica.tolist() == [0, 1, 0, 1]


def test_kv_usage_counts_what_is_admitted_only() -> None:
    # Each replica runs one request: 11 blocks on replica 0, 2 on replica 1. What waits behind it holds no block.
    r = requests([0, 1, 2, 3], [40, 4, 30, 30], [50, 50, 5, 5])
    c = config(replicas=2, max_num_batched_tokens=64, max_num_seqs=1, router=LEAST_KV_USAGE)
    assert run_fast(c, r, linear_law(64, constant=1000))[0].replica.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(("router", "placed"), [(VLLM_DP, [0, 1, 0, 1, 1, 1]), (VLLM_DP_OLD, [0, 1, 0, 1, 0, 1])])
def test_vllm_scores_by_hand(router: int, placed: list[int]) -> None:
    # Blocks of 4 tokens, 10 a replica. 0.33: request 2 meets 1 and 1 and takes its turn. Then replica 0 runs one
    # request in 8 blocks with one waiting: 2 + 6 * (0.8 - 0.5) = 3.8, above the 3 that request 5 finds on the other.
    # 0.11: request 4 meets 4 + 1 on both and takes its turn; request 5 meets 4 * 2 + 1 and 4 + 1.
    r = requests([0, 1, 1, 3, 3, 5], [32, 4, 4, 32, 4, 4], [2, 9, 9, 2, 9, 1])
    c = config(replicas=2, max_num_batched_tokens=64, num_blocks=10, router=router)
    assert run_fast(c, r, linear_law(64, constant=1000))[0].replica.tolist() == placed


def test_two_choices_that_never_look_are_chance() -> None:
    c, r, cost = random_cluster(np.random.default_rng(25), "power_of_two")
    outcome, _ = run_general(c._replace(replicas=3, router_snapshot_ps=FOREVER_PS), r, law_of(c, cost))
    assert np.array_equal(outcome.replica, draw_pairs(len(r.arrival_ps), 3, SEED)[:, 0])


def test_between_two_looks_a_router_sees_nothing_of_what_it_sends() -> None:
    # Each request runs long. The look at 0 shows nothing: the first three take turns. That at 25 shows one on each of
    # the replicas 0 and 1: all that arrive before 50 go to replica 2. That at 50 shows 1, 1, 3: turns on 0 and 1.
    r = requests([0, 10, 30, 31, 32, 60, 61, 62], [4] * 8, [50] * 8)
    c = config(replicas=3, max_num_seqs=8, max_num_batched_tokens=64, router=LEAST_OUTSTANDING, router_snapshot_ps=25)
    law = linear_law(64, constant=1000)
    assert run_fast(c, r, law)[0].replica.tolist() == [0, 1, 2, 2, 2, 0, 1, 0]
    # vLLM adds what it sends to what it saw.
    c = c._replace(router=VLLM_DP)
    assert run_fast(c, r, law)[0].replica.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_the_shortest_queue_beats_two_choices_beats_chance() -> None:
    rng = np.random.default_rng(24)
    n = 4000
    arrival = np.cumsum(rng.exponential(1 / (0.9 * 4), n))
    tokens = np.ceil(rng.exponential(20, n)).astype(np.int64)
    service = 50 * tokens
    r = requests((arrival * 1000).astype(int).tolist(), [1] * n, tokens.tolist())
    # One request at a time, 50 ps a token: an M/M/1 queue a replica at 0.9 of its capacity.
    c = config(replicas=4, max_num_seqs=1, num_blocks=10**6)
    law = linear_law(16, constant=50)

    def p99(router: int) -> float:
        outcome, _ = run_fast(c._replace(router=router), r, law)
        return float(np.percentile(outcome.last_ps - r.arrival_ps, 99))

    chance = deal("random", n, 4, 0, None)
    waits = np.zeros(n)
    for k in range(4):
        free = 0.0
        for i in np.flatnonzero(chance == k):
            free = max(free, r.arrival_ps[i]) + service[i]
            waits[i] = free - r.arrival_ps[i]
    assert p99(LEAST_OUTSTANDING) < p99(POWER_OF_TWO) < np.percentile(waits, 99)
