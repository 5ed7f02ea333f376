"""What must hold for any workload on any engine: one test for each numbered invariant of engine semantics 8.1.

Here: closed forms and what holds in every step (1-11, 13-15). Memory and prefix caching (12, 16-19, 31):
``test_engine_invariants_memory``. Scheduling modes, replicas, trends, determinism (20-24, 32, 34):
``test_engine_invariants_modes``. What a policy knows (25, 26, 29): ``test_engine_invariants_policies``. The table in
docs/validation.md names the test of each number.

22 speaks of leaps, which do not exist: the fast loop stands for them. 24 compares with round robin instead of a random
router.
"""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import (
    KINDS,
    POLICIES,
    case_of,
    ceil_div,
    events,
    in_steps,
    rng_of,
    running,
    wide_case,
)
from engines import config, law_of, linear_law, random_case, requests, run_general, run_twin

from replay.kernels.loglinear import bin_of
from replay.kernels.state import (
    BUSY,
    FREE_BLOCKS,
    GAP_BINS,
    GAP_BITS,
    HIT_TOKENS,
    MAX_USED_BLOCKS,
    NEVER,
    OUTSTANDING,
    PREVIOUS_END,
    RUNNING,
    SCHEDULED_TOKENS,
    STEPS,
    TOKENS,
    WAITING,
    Config,
    Outcome,
    Requests,
    State,
    StepTimes,
    new_state,
)
from replay.kernels.static import StaticOptions, advance_static

# --- closed forms --------------------------------------------------------------------------------------------------


def test_01_a_lone_request_takes_its_prefill_and_its_decodes() -> None:
    rng = rng_of(1)
    for _ in range(100):
        prompt, output, start = (int(x) for x in rng.integers(1, 60, 3))
        floor, per_token, constant, context, pair = (int(x) for x in rng.integers(0, 90, 5))
        c = config(max_num_batched_tokens=64)
        law = linear_law(64, floor, per_token, constant, context, pair)
        outcome, _ = run_general(c, requests([start], [prompt], [output]), law)
        attention = context if prompt == 1 else pair * prompt * (prompt + 1)
        prefill = max(floor, per_token * prompt) + constant + attention
        decodes = sum(max(floor, per_token) + constant + context * (prompt + j) for j in range(1, output))
        assert outcome.admitted_ps[0] == start
        assert outcome.first_ps[0] == start + prefill
        assert outcome.last_ps[0] == start + prefill + decodes


@pytest.mark.parametrize("budget", [4, 5, 16, 63])
def test_02_any_chunking_computes_the_same_tokens_and_pairs(budget: int) -> None:
    c = config(max_num_batched_tokens=budget)
    for prompt in (1, budget, budget + 2, 2 * budget, 3 * budget + 2):  # no last chunk of one token, priced as a decode
        outcome, meters = run_general(c, requests([0], [prompt], [1]), linear_law(budget, pair=1, constant=7))
        chunks = ceil_div(prompt, budget)
        assert meters.regs[0, STEPS] == chunks
        assert meters.regs[0, SCHEDULED_TOKENS] == prompt
        pairs = 0 if prompt == 1 else prompt * (prompt + 1)
        assert outcome.first_ps[0] == chunks * 7 + pairs


def test_03_a_block_is_taken_only_when_the_last_is_full_and_all_come_back() -> None:
    rng = rng_of(3)
    for _ in range(60):
        prompt, output = (int(x) for x in rng.integers(1, 40, 2))
        block_size = int(rng.choice([1, 3, 4, 16]))
        c = config(block_size=block_size, max_num_batched_tokens=40)
        seen = []
        for _, state in events(c, requests([0], [prompt], [output]), linear_law(40, constant=1)):
            if slots := running(state):
                assert state.slots.held[slots[0]] == ceil_div(int(state.slots.computed[slots[0]]), block_size)
                seen.append(int(state.slots.held[slots[0]]))
        assert seen[-1] == ceil_div(prompt + output - 1, block_size) == state.meters.regs[0, MAX_USED_BLOCKS]
        assert state.meters.regs[0, FREE_BLOCKS] == c.num_blocks


@pytest.mark.parametrize("kind", KINDS)
def test_03_nothing_leaks(kind: str) -> None:
    rng = rng_of(3, KINDS.index(kind))
    for _ in range(60):
        c, r, law = case_of(rng, kind)
        *_, (_, state) = events(c, r, law)
        assert state.meters.regs[0, FREE_BLOCKS] == c.num_blocks
        assert (state.blocks.references == 0).all()
        hashed = int((state.blocks.hash != NEVER).sum())
        twins = int((state.blocks.twin_previous[state.blocks.hash != NEVER] != NEVER).sum())
        assert int((state.blocks.bucket_block != NEVER).sum()) == hashed - twins, "the table holds live hashes only"
        assert sorted(state.slots.free.tolist()) == list(range(c.max_num_seqs))


def test_13_all_at_once_is_one_prefill_and_a_staircase() -> None:
    rng = rng_of(13)
    for _ in range(40):
        n = int(rng.integers(1, 30))
        prompt, output = rng.integers(2, 40, n), rng.integers(1, 40, n)
        floor, per_token, constant, context, pair = (int(x) for x in rng.integers(0, 50, 5))
        budget = int(prompt.sum())
        c = config(max_num_seqs=n, max_num_batched_tokens=budget, num_blocks=1 << 20)
        outcome, meters = run_general(
            c, requests([0] * n, prompt.tolist(), output.tolist()),
            linear_law(budget, floor, per_token, constant, context, pair),
        )  # fmt: skip
        now = max(floor, per_token * budget) + constant + pair * int((prompt * (prompt + 1)).sum())
        last = np.full(n, now)
        assert (outcome.first_ps == now).all()
        for j in range(1, int(output.max())):
            still = output > j
            now += max(floor, per_token * int(still.sum())) + constant + context * int((prompt[still] + j).sum())
            last[still] = now
        assert outcome.last_ps.tolist() == last.tolist()
        assert meters.regs[0, STEPS] == output.max()


def run_static(c: Config, r: Requests, law: StepTimes) -> int:
    """When static batching without padding is done."""
    state = new_state(c, len(r.arrival_ps))
    while advance_static(c, StaticOptions(0, 1, NEVER, 1), r, law, state, 1 << 20):
        pass
    return int(state.meters.regs[0, PREVIOUS_END])


def test_14_static_is_continuous_for_equal_lengths_and_loses_with_their_spread() -> None:
    slots, rounds = 8, 100
    c = config(max_num_seqs=slots, max_num_batched_tokens=64, num_blocks=1 << 20)
    law = linear_law(64, constant=1000)
    rng, gains = rng_of(14), []
    for spread in (0, 60, 90):
        output = rng.integers(100 - spread, 100 + spread + 1, slots * rounds)
        r = requests([0] * len(output), [4] * len(output), output.tolist())
        gains.append(run_static(c, r, law) / int(run_general(c, r, law)[1].regs[0, PREVIOUS_END]))
        longest = output.reshape(rounds, slots).max(1).mean()
        assert gains[-1] == pytest.approx(longest / output.mean(), rel=0.02)
    assert gains[0] == pytest.approx(1.0, abs=1e-9)
    assert gains[0] < gains[1] < gains[2]


def test_15_a_full_queue_is_served_at_the_rate_of_a_full_batch() -> None:
    slots, output = 16, 800
    c = config(max_num_seqs=slots, max_num_batched_tokens=64, num_blocks=1 << 20)
    r = requests([0] * slots * 6, [1] * slots * 6, [output] * slots * 6)
    law = linear_law(64, floor=500, per_token=40, constant=60)
    _, meters = run_general(c, r, law)
    rate = slots * 6 * output / int(meters.regs[0, PREVIOUS_END])
    assert rate == pytest.approx(slots / (40 * slots + 60), rel=0.005)


# --- in every step -------------------------------------------------------------------------------------------------


def distinct_held(c: Config, state: State) -> int:
    """Blocks that some slot holds, shared ones once."""
    slots = [s for s in range(c.max_num_seqs) if state.slots.held[s] > 0]
    if not c.prefix_caching:
        return int(state.slots.held[slots].sum())
    tables = state.blocks.table.reshape(c.max_num_seqs, -1)
    return len({int(block) for s in slots for block in tables[s, : state.slots.held[s]]})


@pytest.mark.parametrize("kind", KINDS)
def test_04_held_and_free_blocks_are_the_pool_at_every_step(kind: str) -> None:
    rng = rng_of(4, KINDS.index(kind))
    for _ in range(50):
        c, r, law = case_of(rng, kind)
        for _, state in events(c, r, law):
            free = int(state.meters.regs[0, FREE_BLOCKS])
            assert free >= 0
            assert distinct_held(c, state) + free == c.num_blocks


@pytest.mark.parametrize("kind", KINDS)
def test_05_budget_and_slots_hold_and_every_decode_advances_by_one(kind: str) -> None:
    rng, decodes = rng_of(5, KINDS.index(kind)), 0
    for _ in range(50):
        c, r, law = case_of(rng, kind)
        c = in_steps(c)
        before: dict[int, int] = {}  # of decoding requests: tokens computed
        was = np.zeros(len(r.arrival_ps), np.int32)
        steps = 0
        for _, state in events(c, r, law):
            slots, reg = state.slots, state.meters.regs[0]
            assert len(running(state)) <= c.max_num_seqs
            if reg[STEPS] == steps:
                continue
            steps = int(reg[STEPS])
            assert 0 < state.meters.sums[TOKENS] <= c.max_num_batched_tokens
            now = {int(slots.request[s]): int(slots.computed[s]) for s in running(state)}
            gone = state.outcome.preemptions
            if kind in ("plain", "caching") and c.long_prefill_token_threshold == 0:
                for request, computed in before.items():
                    if request in now and gone[request] == was[request]:
                        assert now[request] == computed + 1
                        decodes += 1
            was = gone.copy()
            before = {
                int(slots.request[s]): int(slots.computed[s])
                for s in running(state)
                if slots.computed[s] >= r.prompt_tokens[slots.request[s]] and slots.todo[s] == 1
            }
    assert decodes > 1000 or kind not in ("plain", "caching")


def time_with_requests(r: Requests, outcome: Outcome) -> int:
    """How long at least one request was in the system."""
    total, until = 0, -1
    for arrival, last in sorted(zip(r.arrival_ps.tolist(), outcome.last_ps.tolist(), strict=True)):
        total += max(0, last - max(arrival, until))
        until = max(until, last)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_06_the_engine_works_whenever_a_request_is_there(kind: str) -> None:
    rng = rng_of(6, KINDS.index(kind))
    for _ in range(100):
        c, r, law = case_of(rng, kind)
        outcome, meters = run_general(c, r, law)
        busy, present = meters.meters[0, BUSY], time_with_requests(r, outcome)
        assert busy >= present if c.runs_past_end else busy == present  # a batch past the end has no request any more


@pytest.mark.parametrize("kind", KINDS)
def test_07_every_token_is_computed_once_but_for_preemptions_and_hits(kind: str) -> None:
    rng, lost_anywhere = rng_of(7, KINDS.index(kind)), 0
    for _ in range(60):
        c, r, law = case_of(rng, kind)
        c = in_steps(c)
        lost = 0
        computed: dict[int, int] = {}
        preempted = np.zeros(len(r.arrival_ps), np.int64)
        for _, state in events(c, r, law):
            for request in np.flatnonzero(state.outcome.preemptions > preempted):
                lost += computed[int(request)]
            preempted = state.outcome.preemptions.copy()
            computed = {int(state.slots.request[s]): int(state.slots.computed[s]) for s in running(state)}
        reg = state.meters.regs[0]
        needed = int((r.prompt_tokens + r.output_tokens - 1).sum())
        assert reg[SCHEDULED_TOKENS] == needed + lost - reg[HIT_TOKENS]
        assert state.outcome.generated.sum() == r.output_tokens.sum()
        lost_anywhere += lost
    assert lost_anywhere > 1000


def test_08_first_come_first_served() -> None:
    rng, seen = rng_of(8), 0
    for _ in range(150):
        c, r, law = wide_case(rng)
        outcome, _ = run_general(c, r, law)
        seen += outcome.preemptions.sum() == 0
        # Who was preempted keeps the time of the first admission, so this holds with preemptions too.
        assert (np.diff(outcome.admitted_ps) >= 0).all()
    assert seen > 30


@pytest.mark.parametrize("kind", POLICIES)
def test_09_times_are_in_order_and_gaps_add_up(kind: str) -> None:
    rng = rng_of(9, POLICIES.index(kind))
    for _ in range(60):
        c, r, cost = random_case(rng, threshold=kind in ("threshold", "both"), priority=kind in ("priority", "both"))
        cost = (*cost[:4], max(1, cost[4]))
        outcome, meters = run_general(c, r, law_of(c, cost))
        assert (r.arrival_ps <= outcome.admitted_ps).all()
        assert (outcome.admitted_ps < outcome.first_ps).all()
        assert ((outcome.first_ps < outcome.last_ps) == (r.output_tokens > 1)).all()
        gaps = run_twin(c, r, cost).gaps
        assert min(gaps, default=1) > 0
        assert sum(gaps) == int((outcome.last_ps - outcome.first_ps).sum()), "E2E is TTFT and all ITL"
        histogram = np.bincount([bin_of(gap, GAP_BITS) for gap in gaps] or [0], minlength=GAP_BINS)
        assert np.array_equal(meters.gaps, histogram if gaps else np.zeros(GAP_BINS))


@pytest.mark.parametrize("kind", KINDS)
def test_10_littles_law_is_exact_from_empty_to_empty(kind: str) -> None:
    rng = rng_of(10, KINDS.index(kind))
    for _ in range(60):
        c, r, law = case_of(rng, kind)
        area, present, since = 0, 0, 0
        for now, state in events(c, r, law):
            area += present * (now - since)
            present, since = int(state.meters.regs[0, OUTSTANDING]), now
        assert present == 0
        assert area == int((state.outcome.last_ps - r.arrival_ps).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_11_the_unit_of_time_changes_no_decision(kind: str) -> None:
    rng = rng_of(11, KINDS.index(kind))
    for _ in range(40):
        c, r, law = case_of(rng, kind)
        factor = int(rng.choice([2, 3, 10**6]))
        once, one = run_general(c, r, law)
        scaled = law._replace(rest_ps=law.rest_ps * factor, law=law.law * factor)
        copying = {name: factor * getattr(c, name) for name in ("host_block_ps", "host_latency_ps")}
        many, other = run_general(c._replace(**copying), r._replace(arrival_ps=r.arrival_ps * factor), scaled)
        for name in ("admitted_ps", "first_ps", "last_ps"):
            assert np.array_equal(factor * getattr(once, name), getattr(many, name))
        for name in ("preemptions", "hit_tokens", "generated"):
            assert np.array_equal(getattr(once, name), getattr(many, name))
        assert np.array_equal(one.regs[0, [STEPS, SCHEDULED_TOKENS]], other.regs[0, [STEPS, SCHEDULED_TOKENS]])


def test_waiting_is_empty_at_the_end() -> None:
    rng = rng_of(99)
    for kind in KINDS:
        c, r, law = case_of(rng, kind)
        _, meters = run_general(c, r, law)
        assert meters.regs[0, [RUNNING, WAITING, OUTSTANDING]].tolist() == [0, 0, 0]
