"""Layers in several groups: the general loop against the naive twin on random runs, with and without prefix caching."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import grouped_case
from engines import law_of, run_general

from replay.kernels.state import FREE_BLOCKS, HIT_TOKENS, PREEMPTIONS, PREVIOUS_END, SCHEDULED_TOKENS, STEPS

CASES_HERE = 600


@pytest.mark.parametrize("caching", [False, True])
def test_general_loop_is_the_twin(caching: bool) -> None:
    rng = np.random.default_rng((17, caching))
    hits, preempted = 0, 0
    for case in range(CASES_HERE):
        c, r, cost, twin = grouped_case(rng, caching)
        outcome, meters = run_general(c, r, law_of(c, cost))
        twin.run()
        reg = meters.regs[0]
        ours = (outcome.first_ps, outcome.last_ps, outcome.admitted_ps, outcome.preemptions, outcome.hit_tokens)
        theirs = [[x.first, x.last, x.admitted, x.preemptions, x.hits] for x in twin.requests]
        assert np.column_stack(ours).tolist() == theirs, f"case {case}: {c}"
        assert (reg[STEPS], reg[SCHEDULED_TOKENS], reg[PREVIOUS_END]) == (twin.steps, twin.scheduled, twin.end)
        assert reg[HIT_TOKENS] == twin.hits
        assert reg[FREE_BLOCKS] == c.num_blocks == len(twin.pool.free)
        hits += twin.hits
        preempted += int(reg[PREEMPTIONS])
    assert preempted > 300
    assert not caching or hits > 300
