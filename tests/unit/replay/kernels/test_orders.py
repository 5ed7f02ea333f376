"""Orders of the waiting queue in the general loop: against the naive twin, and what each order promises."""

from __future__ import annotations

import numpy as np
import pytest
from engines import cases, config, law_of, linear_law, random_case, requests, run_general, run_twin

from replay.kernels.state import (
    FCFS,
    GAP_MAX_PS,
    PREEMPTIONS,
    PREVIOUS_END,
    PRIORITY,
    RANKS_A_TOKEN,
    SCHEDULED_TOKENS,
    SHORTEST,
    SHORTEST_REMAINING,
    STEPS,
    Outcome,
)


def serve(order: int, prompt: list[int], output: list[int], ranks: list[int], **changes: int) -> Outcome:
    c = config(priority_policy=order, max_num_seqs=1, **changes)
    r = requests([0] * len(prompt), prompt, output, ranks)
    return run_general(c, r, linear_law(c.max_num_batched_tokens, constant=10))[0]


@pytest.mark.parametrize("order", [PRIORITY, SHORTEST, SHORTEST_REMAINING])
def test_general_loop_is_the_twin(order: int) -> None:
    rng = np.random.default_rng(40 + order)
    preempted = 0
    for _ in range(cases(250)):
        c, r, cost = random_case(rng, threshold=bool(rng.integers(0, 2)), priority=order == PRIORITY, order=order)
        outcome, meters = run_general(c, r, law_of(c, cost), int(rng.choice([1, 9, 1 << 20])))
        twin = run_twin(c, r, cost)
        reg = meters.regs[0]
        assert outcome.admitted_ps.tolist() == [x.admitted for x in twin.requests]
        assert outcome.first_ps.tolist() == [x.first for x in twin.requests]
        assert outcome.last_ps.tolist() == [x.last for x in twin.requests]
        assert outcome.preemptions.tolist() == [x.preemptions for x in twin.requests]
        assert (reg[STEPS], reg[SCHEDULED_TOKENS], reg[PREVIOUS_END]) == (twin.steps, twin.scheduled, twin.end)
        assert int(meters.cluster[GAP_MAX_PS]) == max(twin.gaps, default=0)
        preempted += int(reg[PREEMPTIONS])
    assert preempted > cases(200)


def test_shortest_first_serves_by_length_with_ties_by_arrival() -> None:
    output = [5, 1, 3, 1]
    outcome = serve(SHORTEST, [4] * 4, output, [n * RANKS_A_TOKEN for n in output])
    assert np.argsort(outcome.admitted_ps).tolist() == [1, 3, 2, 0]
    assert outcome.admitted_ps.tolist() == [50, 0, 20, 10]


def test_an_oracle_waits_no_longer_than_first_come_first_served() -> None:
    rng = np.random.default_rng(41)
    for _ in range(cases(40)):
        n = int(rng.integers(2, 30))
        prompt, output = [4] * n, rng.integers(1, 40, n).tolist()
        by_length = serve(SHORTEST, prompt, output, [k * RANKS_A_TOKEN for k in output])
        in_turn = serve(FCFS, prompt, output, [0] * n)
        assert by_length.admitted_ps.mean() <= in_turn.admitted_ps.mean()
        assert by_length.last_ps.max() == in_turn.last_ps.max()


def test_remaining_length_counts_after_a_preemption() -> None:
    """At 30 memory (14 tokens) is full: the first request goes on, the second, with 3 of its 6 tokens, is preempted."""
    c = config(max_num_seqs=2, max_num_batched_tokens=32, block_size=1, num_blocks=14)
    r = requests([0, 0, 1], [5, 5, 5], [9, 6, 5], [0, 6 * RANKS_A_TOKEN, 5 * RANKS_A_TOKEN])
    law = linear_law(32, constant=10)
    shortest, _ = run_general(c._replace(priority_policy=SHORTEST), r, law)
    # Ranks 5 and 6: the third comes first. Its 5 tokens fit at once beside the first's 9.
    assert shortest.admitted_ps.tolist() == [0, 0, 40]
    assert shortest.preemptions.tolist() == [0, 2, 1]
    remaining, _ = run_general(c._replace(priority_policy=SHORTEST_REMAINING), r, law)
    # 3 tokens remain of the second, 5 of the third: it comes first, needs 8 blocks, and waits for the first to end.
    # 90-100 both are prefilled; at 100 the third is preempted in turn, and runs 120-160.
    assert remaining.admitted_ps.tolist() == [0, 0, 90]
    assert remaining.last_ps.tolist() == [90, 120, 160]


def test_victims_are_the_last_admitted_whatever_their_length() -> None:
    c = config(priority_policy=SHORTEST, max_num_seqs=2, max_num_batched_tokens=32, block_size=1, num_blocks=12)
    r = requests([0, 5], [5, 5], [6, 2], [6 * RANKS_A_TOKEN, 2 * RANKS_A_TOKEN])
    outcome, _ = run_general(c, r, linear_law(32, constant=10))
    assert outcome.preemptions[0] == 0
