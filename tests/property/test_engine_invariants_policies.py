"""Invariants of engine semantics 8.1 about what a policy knows: stale routers (25), predicted lengths (26), drafts
(29); see ``test_engine_invariants``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import deployment, one_of, rng_of, wide_case
from engines import SEED, config, linear_law, requests, run_fast, run_general

from replay.kernels.engine import advance
from replay.kernels.state import (
    FCFS,
    LEAST_KV_USAGE,
    LEAST_OUTSTANDING,
    LEAST_OUTSTANDING_TOKENS,
    NEVER,
    POWER_OF_TWO,
    PREEMPTIONS,
    SCHEDULED_TOKENS,
    SHORTEST,
    STEPS,
    VLLM_DP,
    VLLM_DP_OLD,
    Config,
    Meters,
    Outcome,
    Requests,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.orders import ranks_of
from replay.routing import draw_pairs
from replay.simulate import simulate
from replay.workload import Workload

FOREVER_PS = 1 << 60


def at_distinct_times(r: Requests) -> Requests:
    """The requests with no two arrivals at one instant: a snapshot, however young, shows no request of its instant."""
    turn = np.arange(len(r.arrival_ps))
    return r._replace(arrival_ps=np.maximum.accumulate(r.arrival_ps - turn) + turn)


@pytest.mark.parametrize(
    "router", [LEAST_OUTSTANDING, LEAST_OUTSTANDING_TOKENS, LEAST_KV_USAGE, POWER_OF_TWO, VLLM_DP, VLLM_DP_OLD]
)
def test_25_a_snapshot_without_age_is_the_state_and_one_that_never_renews_is_none(router: int) -> None:
    rng, differs = rng_of(25, router), 0
    for _ in range(60):
        c, r, law = wide_case(rng)
        r = at_distinct_times(r)
        c = c._replace(replicas=int(rng.integers(2, 5)), router=router)
        exact, _ = run_general(c, r, law)
        young, _ = run_general(c._replace(router_snapshot_ps=1), r, law)
        assert exact.replica.tolist() == young.replica.tolist()
        assert exact.last_ps.tolist() == young.last_ps.tolist()
        stale, _ = run_general(c._replace(router_snapshot_ps=FOREVER_PS), r, law)
        n = len(r.arrival_ps)
        blind = draw_pairs(n, c.replicas, SEED)[:, 0] if router == POWER_OF_TWO else np.arange(n) % c.replicas
        assert stale.replica.tolist() == blind.tolist(), "it chooses by chance or in turn"
        differs += exact.replica.tolist() != stale.replica.tolist()
    assert differs > 5


def mean_wait(output: np.ndarray, order: int, ranks: list[int]) -> float:
    """Mean wait of requests that are all there at the start, one at a time."""
    c = config(priority_policy=order, max_num_seqs=1, num_blocks=10_000)
    r = requests([0] * len(output), [4] * len(output), output.tolist(), ranks)
    outcome, _ = run_general(c, r, linear_law(c.max_num_batched_tokens, constant=10))
    return float(outcome.admitted_ps.mean())


def test_26_shortest_first_waits_least_with_an_oracle_and_like_chance_without_foresight() -> None:
    rng = rng_of(26)
    by_sigma: dict[float, list[float]] = {0.0: [], 1.0: [], 5.0: []}
    for seed in range(30):
        n = 60
        output = np.ceil(rng.lognormal(3, 0.5, n)).astype(np.int64)
        load = Workload(np.zeros(n, np.int64), np.full(n, 4), output, 1.0, seed=seed)
        in_turn = mean_wait(output, FCFS, [0] * n)
        chance = np.mean([mean_wait(rng.permutation(output), FCFS, [0] * n) for _ in range(5)])
        for sigma, waits in by_sigma.items():
            engine = deployment(scheduling_policy="sjf", output_length_sigma=sigma).engine
            wait = mean_wait(output, SHORTEST, ranks_of(engine, load).tolist())
            waits.append(wait / float(chance))
            assert sigma > 0 or wait <= in_turn
    oracle, fair, blind = (float(np.mean(waits)) for waits in by_sigma.values())
    assert oracle < 0.85
    assert oracle < fair < blind
    assert blind == pytest.approx(1.0, abs=0.06), "what is left of the foresight is lost in the error"


def speculate(c: Config, r: Requests, law: StepTimes, acceptance: tuple[int, ...]) -> tuple[Outcome, Meters]:
    state = new_state(c, len(r.arrival_ps))
    state.speculation.acceptance[:] = acceptance
    while advance(c, r, law, state, bucket_count(c.num_blocks) - 1, 1 << 20):
        pass
    return state.outcome, state.meters


def test_29_drafts_that_are_never_accepted_take_the_same_steps_and_cost_more() -> None:
    rng, cases = rng_of(29), 0
    for _ in range(150):
        c, r, law = wide_case(rng)
        g = one_of(rng, 1, 2, 5)
        c = c._replace(batches_in_flight=1, num_blocks=1 << 20, watermark_blocks=0, max_model_len=1 << 40)
        c = c._replace(max_num_batched_tokens=c.max_num_seqs * (1 + g) + int(r.prompt_tokens.sum()))  # cuts nothing
        law = linear_law(c.max_num_batched_tokens, constant=one_of(rng, 0, 10, 1000))
        plain, plain_meters = run_fast(c, r, law)
        c = c._replace(speculative_tokens=g, lookahead_tokens=g)
        drafted, drafted_meters = speculate(c, r, law, (0,) * g)
        assert plain_meters.regs[0, STEPS] == drafted_meters.regs[0, STEPS]
        assert plain.last_ps.tolist() == drafted.last_ps.tolist(), "where drafts are free nothing changes"
        decodes = int((r.output_tokens - 1).sum())
        spent = drafted_meters.regs[0, SCHEDULED_TOKENS] - plain_meters.regs[0, SCHEDULED_TOKENS]
        assert spent == g * decodes
        dear, dear_meters = speculate(
            c._replace(draft_step_ps=7), r._replace(arrival_ps=r.arrival_ps * 0), law, (0,) * g
        )
        cheap, cheap_meters = speculate(c, r._replace(arrival_ps=r.arrival_ps * 0), law, (0,) * g)
        assert dear_meters.regs[0, [STEPS, PREEMPTIONS]].tolist() == [cheap_meters.regs[0, STEPS], 0]
        assert (dear.last_ps >= cheap.last_ps).all()
        assert (dear.last_ps > cheap.last_ps)[r.output_tokens > 1].all()
        assert (dear.last_ps != NEVER).all()
        cases += decodes > 0
    assert cases > 100


def test_29_the_mean_accepted_length_over_many_requests_is_the_closed_form() -> None:
    d = deployment(num_speculative_tokens=3, acceptance_rate=0.6, max_num_seqs=1)
    load = Workload(np.zeros(40, np.int64), np.full(40, 16), np.full(40, 401), 1.0)
    verifying = [simulate(replace(load, seed=seed), d).steps - 40 for seed in (1, 2)]
    expected = 40 * 400 / ((1 - 0.6**4) / (1 - 0.6))
    assert verifying == pytest.approx([expected] * 2, rel=0.03)
