"""Prefix caching: the general loop against the naive twin on random runs, and any cut into calls against one call."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from engine_cases import TWIN_KINDS, caching_case, session_case
from engines import law_of, run_general
from naive.vllm import Engine

from replay.kernels.engine import advance
from replay.kernels.state import (
    FREE_BLOCKS,
    GAP_MAX_PS,
    HIT_TOKENS,
    HOST_HIT_TOKENS,
    PREEMPTIONS,
    PREVIOUS_END,
    SCHEDULED_TOKENS,
    STEPS,
    Config,
    Requests,
    State,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.verify import case_config, case_requests, case_times, replay_case

CASES = Path(__file__).parents[1] / "data" / "vllm-0.33.0-scheduler-cases.json"
CASES_HERE = 250


KINDS = (*TWIN_KINDS, "sessions")


def case_of_kind(rng: np.random.Generator, kind: str) -> tuple[Config, Requests, tuple, Engine]:
    return session_case(rng) if kind == "sessions" else caching_case(rng, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_general_loop_is_the_twin(kind: str) -> None:
    rng = np.random.default_rng((7, KINDS.index(kind)))
    hits, evictions, preempted, on_host = 0, 0, 0, 0
    for case in range(CASES_HERE):
        c, r, cost, twin = case_of_kind(rng, kind)
        outcome, meters = run_general(c, r, law_of(c, cost))
        twin.run()
        reg = meters.regs[0]
        ours = (outcome.first_ps, outcome.last_ps, outcome.admitted_ps, outcome.preemptions, outcome.hit_tokens)
        theirs = [[x.first, x.last, x.admitted, x.preemptions, x.hits] for x in twin.requests]
        assert np.column_stack(ours).tolist() == theirs, f"case {case}: {c}"
        assert (reg[STEPS], reg[SCHEDULED_TOKENS], reg[PREVIOUS_END]) == (twin.steps, twin.scheduled, twin.end)
        assert reg[HIT_TOKENS] == twin.hits
        assert reg[HOST_HIT_TOKENS] == twin.host_hits
        on_host += twin.host_hits
        assert reg[FREE_BLOCKS] == c.num_blocks == len(twin.pool.free)
        assert int(meters.gaps.sum()) == len(twin.gaps)
        assert int(meters.cluster[GAP_MAX_PS]) == max(twin.gaps, default=0)
        hits += twin.hits
        preempted += int(reg[PREEMPTIONS])
        evictions += reg[SCHEDULED_TOKENS] > c.num_blocks * c.block_size
    assert min(hits, preempted) > 300, "the cases must hit and must press on memory"
    assert evictions > 50
    assert on_host > 300 or kind != "host"


def run_in_calls(c: Config, r: Requests, t: StepTimes, sizes: list[int]) -> State:
    """The general loop in calls of the given sizes, over and over."""
    state = new_state(c, len(r.arrival_ps))
    mask, i = bucket_count(c.num_blocks) - 1, 0
    while advance(c, r, t, state, mask, sizes[i % len(sizes)]):
        i += 1
    return state


def assert_same_state(one: State, other: State) -> None:
    """Every array, block identities and hash table included."""
    for part, same in zip(one, other, strict=True):
        for name, x, y in zip(part._fields, part, same, strict=True):
            for a, b in zip(x, y, strict=True) if isinstance(x, tuple) else [(x, y)]:
                assert np.array_equal(a, b), name


@pytest.mark.parametrize("sizes", [[1], [3, 1, 7]])
def test_recorded_cases_in_many_calls(sizes: list[int]) -> None:
    seen = 0
    for case in json.loads(CASES.read_text()):
        answer, whole = replay_case(case)
        state = run_in_calls(case_config(case), case_requests(case), case_times(case), sizes)
        assert_same_state(whole, state)
        assert state.outcome.last_ps.tolist() == case["last"] == answer["last"]
        seen += case["caching"] and case["async_"]
    assert seen == 15, "prefix caching with two batches in flight is among them"


@pytest.mark.parametrize("kind", KINDS)
def test_random_caching_runs_in_many_calls(kind: str) -> None:
    rng = np.random.default_rng((8, KINDS.index(kind)))
    for _ in range(40):
        c, r, cost, _ = case_of_kind(rng, kind)
        law = law_of(c, cost)
        assert_same_state(run_in_calls(c, r, law, [1 << 20]), run_in_calls(c, r, law, rng.integers(1, 9, 5).tolist()))
