"""Orca in the general loop: against its naive twin, and what reserving a whole life means."""

from __future__ import annotations

import numpy as np
from engines import cases, config, law_of, linear_law, requests, run_general
from naive.orca import Orca, Request

from replay.kernels.state import MAX_USED_BLOCKS, PREEMPTIONS, PREVIOUS_END, SCHEDULED_TOKENS, STEPS, Config, Requests


def orca(slots: int, **changes: int) -> Config:
    return config(
        block_size=1,
        num_blocks=slots,
        enable_chunked_prefill=0,
        reserve_full_isl=0,
        reserve_whole_life=1,
        **changes,
    )


def declared(r: Requests, max_tokens: list[int]) -> Requests:
    return r._replace(max_tokens=np.array(max_tokens, np.int64))


def test_the_loop_is_the_twin() -> None:
    rng = np.random.default_rng(30)
    for _ in range(cases(400)):
        n = int(rng.integers(1, 40))
        prompt = rng.integers(1, int(rng.choice([2, 10, 60])), n)
        output = rng.integers(1, int(rng.choice([2, 8, 50])), n)
        limit = np.maximum(output, int(rng.choice([1, 20, 60])))
        arrival = np.sort(rng.integers(0, int(rng.choice([1, 10, 3000])), n)) * int(rng.choice([1, 1000]))
        seqs, length = int(rng.choice([1, 2, 4, 32])), int(rng.choice([1 << 40, prompt.max() + 4]))
        c = orca(
            int(np.minimum(prompt + limit, length).max() + rng.choice([0, 5, 100, 4000])),
            max_num_seqs=seqs,
            max_num_batched_tokens=int(prompt.max() + seqs + rng.choice([0, 30])),
            max_model_len=length,
        )
        cost = tuple(int(x) for x in rng.choice([0, 1, 5, 100, 1000], 5))
        r = declared(requests(arrival.tolist(), prompt.tolist(), output.tolist()), limit.tolist())
        outcome, meters = run_general(c, r, law_of(c, cost))
        twin = Orca(seqs, c.max_num_batched_tokens, c.num_blocks, cost, length)
        rows = [Request(*row) for row in zip(*(x.tolist() for x in (arrival, prompt, output, limit)), strict=True)]
        twin.run(rows)
        reg = meters.regs[0]
        assert outcome.admitted_ps.tolist() == [x.admitted for x in rows]
        assert outcome.first_ps.tolist() == [x.first for x in rows]
        assert outcome.last_ps.tolist() == [x.last for x in rows]
        assert (reg[STEPS], reg[SCHEDULED_TOKENS], reg[PREVIOUS_END]) == (twin.steps, twin.tokens, twin.end)
        assert (reg[PREEMPTIONS], reg[MAX_USED_BLOCKS]) == (0, twin.most_used)


def test_the_declared_limit_not_the_output_decides_who_runs() -> None:
    r = requests([0, 0], [10, 10], [2, 2])
    law = linear_law(64, constant=10)
    together, _ = run_general(orca(24, max_num_batched_tokens=64), declared(r, [2, 2]), law)
    assert together.last_ps.tolist() == [20, 20]
    in_turn, _ = run_general(orca(24, max_num_batched_tokens=64), declared(r, [14, 2]), law)
    assert in_turn.last_ps.tolist() == [20, 40]


def test_a_prompt_waits_for_the_budget_and_is_never_split() -> None:
    c = orca(200, max_num_batched_tokens=16)
    outcome, meters = run_general(c, declared(requests([0, 5], [10, 16], [3, 1]), [3, 1]), linear_law(16, constant=10))
    assert outcome.first_ps.tolist() == [10, 40], "16 tokens do not fit beside a decode"
    assert meters.regs[0, STEPS] == 4


def test_reserving_admits_fewer_than_paging() -> None:
    """Declared 60, true 6: ten requests fit by their declared limit, all fifty by what they use."""
    r = declared(requests([0] * 50, [20] * 50, [6] * 50), [60] * 50)
    law = linear_law(2000, constant=10)
    base = {"max_num_seqs": 64, "max_num_batched_tokens": 2000}
    reserved, _ = run_general(orca(800, **base), r, law)
    assert (reserved.admitted_ps == 0).sum() == 10
    paged, _ = run_general(config(block_size=16, num_blocks=100, **base), r, law)
    assert (paged.admitted_ps == 0).sum() == 50
