"""Invariants of engine semantics 8.1 about scheduling modes, replicas, trends and determinism; see
``test_engine_invariants``."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from engine_cases import (
    KINDS,
    assert_same_run,
    case_of,
    deployment,
    rng_of,
    wide_case,
    with_ids,
)
from engines import config, linear_law, requests, run_fast, run_general

from replay.kernels.engine import advance
from replay.kernels.state import (
    LAW_HOST,
    LEAST_OUTSTANDING,
    PREVIOUS_END,
    ROUTER_NEXT,
    SCHEDULED_TOKENS,
    Config,
    Outcome,
    Requests,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.simulate import simulate
from replay.workload import Workload


def with_host(law: StepTimes, host: int) -> StepTimes:
    scalars = law.law.copy()
    scalars[LAW_HOST] = host
    return law._replace(law=scalars)


def test_20_async_hides_the_host_and_costs_an_arrival_about_a_step() -> None:
    c = config(max_num_seqs=64, max_num_batched_tokens=256, num_blocks=1 << 20)
    lone = requests([5], [40], [20])
    for gpu, host in ((100, 0), (100, 30), (30, 100)):
        law = with_host(linear_law(256, constant=gpu), host)
        sync, _ = run_general(c, lone, law)
        hidden, _ = run_general(c._replace(batches_in_flight=2), lone, law)
        assert sync.last_ps[0] == 5 + 20 * (gpu + host)
        assert hidden.last_ps[0] == 5 + 20 * max(gpu, host)
    rng, step, n = rng_of(20), 100, 4000
    arrival = np.cumsum(rng.exponential(2.5 * step, n)).astype(np.int64)
    output = rng.integers(1, 40, n)
    r, law = requests(arrival.tolist(), [10] * n, output.tolist()), linear_law(256, constant=step)
    one, one_meters = run_general(c, r, law)
    two, two_meters = run_general(c._replace(batches_in_flight=2), r, law)
    later = two.first_ps - one.first_ps
    assert 0.5 * step < later.mean() <= step, "under load one more step passes before a prefill"
    assert later.min() >= -step
    assert later.max() <= 2 * step
    assert one.generated.sum() == two.generated.sum() == output.sum()
    assert one_meters.regs[0, SCHEDULED_TOKENS] == two_meters.regs[0, SCHEDULED_TOKENS]


def test_21_chunks_bound_the_longest_gap_by_the_budget_and_do_the_same_work() -> None:
    rng = rng_of(21)
    for _ in range(40):
        n = 30
        prompt, output = rng.integers(20, 200, n), rng.integers(5, 60, n)
        r = requests(np.sort(rng.integers(0, 30_000, n)).tolist(), prompt.tolist(), output.tolist())
        whole = config(max_num_seqs=32, max_num_batched_tokens=int(prompt.sum()), num_blocks=1 << 20)
        law = linear_law(int(prompt.sum()), floor=50, per_token=10)
        _, unchunked = run_general(whole._replace(enable_chunked_prefill=0), r, law)
        _, large = run_general(whole, r, law)
        assert np.array_equal(unchunked.regs, large.regs), "with a budget for everything there is nothing to chunk"
        small = whole._replace(max_num_batched_tokens=64)
        _, chunked = run_general(small, r, law)
        assert chunked.regs[0, SCHEDULED_TOKENS] == unchunked.regs[0, SCHEDULED_TOKENS]
        assert chunked.cluster[3] <= 10 * 64
        assert chunked.cluster[3] <= unchunked.cluster[3] <= 10 * int(prompt.sum())


def test_22_one_slot_and_one_token_a_step() -> None:
    rng = rng_of(22)
    for _ in range(200):
        c, r, law = wide_case(rng)
        c = c._replace(max_num_seqs=1, max_num_batched_tokens=1)
        assert_same_run(run_general(c, r, law), run_fast(c, r, law))


# --- replicas ------------------------------------------------------------------------------------------------------


def run_routed(c: Config, r: Requests, law: StepTimes, first_replica: int = 0) -> Outcome:
    """The general loop with the router's turn at ``first_replica``."""
    state = new_state(c, len(r.arrival_ps))
    state.meters.cluster[ROUTER_NEXT] = first_replica
    while advance(c, r, law, state, bucket_count(c.num_blocks) - 1, 1 << 20):
        pass
    return state.outcome


@pytest.mark.parametrize("kind", ["plain", "caching"])
def test_23_round_robin_replicas_are_runs_of_their_own(kind: str) -> None:
    rng = rng_of(23, KINDS.index(kind))
    for _ in range(40):
        c, r, law = case_of(rng, kind)
        n = len(r.arrival_ps)
        coupled = run_routed(c._replace(replicas=3), r, law)
        assert coupled.replica.tolist() == [i % 3 for i in range(n)]
        for k in range(min(3, n)):
            share = r._replace(**{name: getattr(r, name)[k::3].copy() for name in r._fields[:3]})
            if c.priority_policy:
                share = share._replace(priority=r.priority[k::3].copy())
            if c.prefix_caching:
                rows = [r.prefix_ids[r.prefix_start[i] : r.prefix_start[i + 1]].tolist() for i in range(k, n, 3)]
                share = with_ids(share, rows)
            alone = run_routed(c, share, law)
            for name in ("admitted_ps", "first_ps", "last_ps", "preemptions", "hit_tokens"):
                assert np.array_equal(getattr(alone, name), getattr(coupled, name)[k::3])


@pytest.mark.parametrize("router", [0, LEAST_OUTSTANDING])
def test_23_which_replica_is_first_changes_labels_only(router: int) -> None:
    rng = rng_of(23, 9, router)
    for _ in range(40):
        c, r, law = wide_case(rng)
        c = c._replace(replicas=3, router=router)
        one, other = run_routed(c, r, law), run_routed(c, r, law, first_replica=1)
        assert np.array_equal((one.replica + 1) % 3, other.replica)
        assert np.array_equal(one.last_ps, other.last_ps)


def busy_farm(router: int, seed: int) -> tuple[Outcome, np.ndarray]:
    """Three replicas with four slots each at high load; outcome and end-to-end times."""
    rng, n = rng_of(24, seed), 1500
    arrival = np.cumsum(rng.exponential(260.0, n)).astype(np.int64)
    r = requests(arrival.tolist(), [8] * n, rng.geometric(1 / 25, n).tolist())
    c = config(replicas=3, router=router, max_num_seqs=4, max_num_batched_tokens=64, num_blocks=1 << 20)
    outcome, _ = run_general(c, r, linear_law(64, constant=100))
    return outcome, outcome.last_ps - arrival


def test_24_least_outstanding_sends_to_no_busier_replica_and_has_the_shorter_tail() -> None:
    better = []
    for seed in range(8):
        outcome, shortest = busy_farm(LEAST_OUTSTANDING, seed)
        arrival = outcome.last_ps - shortest
        for i in range(len(arrival)):
            there = (np.arange(len(arrival)) < i) & (outcome.last_ps > arrival[i])
            load = np.bincount(outcome.replica[there], minlength=3)
            assert load[outcome.replica[i]] == load.min()
        better.append(np.percentile(busy_farm(0, seed)[1], 99) / np.percentile(shortest, 99))
    assert np.mean(better) > 1.05
    assert min(better) > 0.95


# --- trends and determinism ---


def load_of(n: int, gap: float, seed: int) -> Requests:
    rng = rng_of(32, seed)
    arrival = np.cumsum(rng.exponential(1.0, n)) * gap
    return requests(
        arrival.astype(np.int64).tolist(), rng.integers(1, 60, n).tolist(), rng.geometric(1 / 30, n).tolist()
    )


def test_32_more_load_waits_longer_and_more_slots_or_memory_serve_no_less() -> None:
    law = linear_law(256, floor=500, per_token=8, constant=50, context=1)
    c = config(max_num_seqs=16, max_num_batched_tokens=256, num_blocks=600)
    ttft = []
    for gap in (6000, 3000, 2000, 1600, 1300):
        r = load_of(4000, gap, 1)
        ttft.append((run_fast(c, r, law)[0].first_ps - r.arrival_ps).mean())
    assert ttft == sorted(ttft)
    burst = load_of(2000, 0, 2)

    def rate(**changes: int) -> float:
        return 1 / int(run_fast(c._replace(**changes), burst, law)[1].regs[0, PREVIOUS_END])

    for knob, values in (("max_num_seqs", (2, 4, 8, 16, 32, 64)), ("num_blocks", (120, 160, 240, 480, 960))):
        rates = [rate(**{knob: value}) for value in values]
        assert all(more > 0.97 * less for less, more in pairwise(rates)), (knob, rates)
        assert rates[-1] > 1.3 * rates[0]


def test_34_the_same_run_gives_the_same_bytes_on_any_number_of_threads() -> None:
    rng, n = rng_of(34), 600
    arrival = np.cumsum(rng.exponential(1e10, n)).astype(np.int64)
    load = Workload(arrival, rng.integers(1, 900, n), rng.integers(1, 200, n), float(arrival[-1] / 1e12))
    d = deployment().with_replicas(4)
    runs = [replace(simulate(load, d, threads=threads), kernel_s=0.0) for threads in (1, 1, 2, 4)]
    for other in runs[1:]:
        for field in fields(other.requests):
            one, two = getattr(runs[0].requests, field.name), getattr(other.requests, field.name)
            assert (one is None and two is None) or one.tobytes() == two.tobytes(), field.name
        assert runs[0].itl.weight.tobytes() == other.itl.weight.tobytes()
        assert runs[0].ttft_s.tobytes() == other.ttft_s.tobytes()
        for name in ("steps", "preemptions", "kv_usage_mean", "batch_mean", "busy_fraction", "sustainable_rps"):
            assert getattr(runs[0], name) == getattr(other, name), name
