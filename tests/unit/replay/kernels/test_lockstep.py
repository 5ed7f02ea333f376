"""Data-parallel ranks in lockstep: the kernel against the naive twin, any cut into calls, and cases by hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from engines import cases, config, law_of, linear_law, random_case, requests, run_general, twin_config, twin_requests
from naive.lockstep import Group

from replay.kernels.lockstep import (
    DUMMY_STEPS,
    LockstepOptions,
    LockstepState,
    advance_lockstep,
    new_lockstep,
)
from replay.kernels.state import (
    FREE_BLOCKS,
    LEAST_OUTSTANDING,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREEMPTIONS,
    ROUND_ROBIN,
    RUNNING,
    SCHEDULED_TOKENS,
    STEPS,
    VLLM_DP,
    Config,
    Requests,
    State,
    StepTimes,
    new_state,
)

ROUTERS = {"round_robin": ROUND_ROBIN, "least_outstanding": LEAST_OUTSTANDING, "vllm_dp": VLLM_DP}


class Run(NamedTuple):
    state: State
    own: LockstepState


def run_group(
    c: Config, r: Requests, t: StepTimes, options: LockstepOptions, sizes: tuple[int, ...] = (1 << 20,)
) -> Run:
    """The kernel to its end, in calls of the given sizes over and over."""
    state, own = new_state(c, len(r.arrival_ps)), new_lockstep(c)
    call = 0
    while advance_lockstep(c, options, r, t, state, own, sizes[call % len(sizes)]):
        call += 1
    return Run(state, own)


def random_group(rng: np.random.Generator, kind: str) -> tuple[Config, Requests, tuple, LockstepOptions, str]:
    """A small group of ranks: ties, tiny memory, free steps, sleeping and waking."""
    c, r, cost = random_case(rng, threshold=kind == "threshold", priority=kind == "priority")
    router = str(rng.choice(list(ROUTERS)))
    c = c._replace(replicas=int(rng.integers(1, 5)), router=ROUTERS[router])
    if kind == "caching":
        starts, ids = [0], list[int]()
        for prompt in r.prompt_tokens.tolist():
            stream, shared = int(rng.integers(3)), int(rng.integers(0, prompt // c.block_size + 1))
            ids += [stream * 1000 + i for i in range(shared)]
            starts.append(len(ids))
        longest = int((r.prompt_tokens + r.output_tokens).max())
        c = c._replace(prefix_caching=1, table_width=longest // c.block_size + 2, prefix_block_tokens=c.block_size)
        r = r._replace(prefix_start=np.array(starts, np.int64), prefix_ids=np.array(ids, np.int64))
    shared = np.arange(c.max_num_batched_tokens + 1, dtype=np.int64) * int(rng.integers(0, max(cost[1], 1)))
    graph_tokens, check = int(rng.choice([0, 4, 1000])), int(rng.choice([1, 2, 5, 32]))
    return c, r, cost, LockstepOptions(graph_tokens, check, shared), router


@pytest.mark.parametrize("kind", ["plain", "threshold", "priority", "caching"])
def test_kernel_is_the_twin(kind: str) -> None:
    rng = np.random.default_rng((21, len(kind)))
    preempted, dummies = 0, 0
    for number in range(cases(200)):
        c, r, cost, options, router = random_group(rng, kind)
        state, own = run_group(c, r, law_of(c, cost), options)
        twin = Group(
            twin_config(c, cost),
            twin_requests(c, r),
            c.replicas,
            router,
            options.graph_tokens,
            int(options.shared_ps[1]),
            options.idle_check_steps,
        )
        twin.run()
        where = f"case {number}: {c} {options}"
        outcome, regs = state.outcome, state.meters.regs
        ours = (outcome.first_ps, outcome.last_ps, outcome.admitted_ps, outcome.preemptions, outcome.hit_tokens)
        theirs = [[x.first, x.last, x.admitted, x.preemptions, x.hits] for x in twin.requests]
        assert np.column_stack(ours).tolist() == theirs, where
        assert outcome.replica.tolist() == twin.chosen, where
        assert regs[:, STEPS].tolist() == [rank.steps for rank in twin.replicas], where
        assert regs[:, SCHEDULED_TOKENS].tolist() == [rank.scheduled for rank in twin.replicas], where
        assert own.group[DUMMY_STEPS] == twin.dummies, where
        assert (regs[:, FREE_BLOCKS] == c.num_blocks).all(), where
        assert not regs[:, [RUNNING, OUTSTANDING, OUTSTANDING_TOKENS]].any(), where
        assert int(state.meters.gaps.sum()) == sum(len(rank.gaps) for rank in twin.replicas), where
        preempted += int(regs[:, PREEMPTIONS].sum())
        dummies += twin.dummies
    assert min(preempted, dummies) > cases(100), "the cases must press on memory and leave ranks idle"


def test_cut_into_calls_changes_nothing() -> None:
    rng = np.random.default_rng(22)
    for _ in range(10):
        c, r, cost, options, _ = random_group(rng, "plain")
        whole, cut = (run_group(c, r, law_of(c, cost), options, sizes) for sizes in ((1 << 20,), (1, 3, 2)))
        for name in ("admitted_ps", "first_ps", "last_ps", "replica", "preemptions"):
            assert np.array_equal(getattr(whole.state.outcome, name), getattr(cut.state.outcome, name)), name
        assert np.array_equal(whole.state.meters.regs, cut.state.meters.regs)
        assert np.array_equal(whole.own.group, cut.own.group)


LAW = linear_law(64, per_token=100, constant=1000, context=1)
NOTHING = np.zeros(0, np.int64)
PADS = LockstepOptions(graph_tokens=64, idle_check_steps=32, shared_ps=NOTHING)


def test_one_rank_is_an_engine() -> None:
    """Where the group checks for idleness at every step, a single rank is an engine alone."""
    rng = np.random.default_rng(23)
    for _ in range(20):
        c, r, cost = random_case(rng)
        c = c._replace(batches_in_flight=1)
        group = run_group(c, r, law_of(c, cost), LockstepOptions(1000, 1, NOTHING))
        outcome, meters = run_general(c, r, law_of(c, cost))
        assert np.array_equal(group.state.outcome.last_ps, outcome.last_ps)
        assert np.array_equal(group.state.meters.meters, meters.meters)


def test_every_rank_steps_as_long_as_the_slowest() -> None:
    """A rank that decodes waits for the one that prefills beside it."""
    c = config(replicas=2, router=ROUND_ROBIN, max_num_seqs=4, max_num_batched_tokens=64, num_blocks=1000)
    r = requests([0, 0, 1], [10, 10, 40], [3, 3, 1])
    group = run_group(c, r, LAW, PADS)
    first = 1000 + 10 * 100
    # Request 2 goes to rank 0, where request 0 decodes: 41 tokens there, and rank 1 decodes as if it had as many.
    second = first + 1000 + 41 * 100 + 11
    assert group.state.outcome.first_ps.tolist() == [first, first, second]
    assert group.state.outcome.last_ps.tolist()[1] == second + 1000 + 100 + 12


def test_above_the_graphs_only_the_experts_are_shared() -> None:
    """50 of each token's 100 are the experts', which both ranks compute together: 41 and 1 tokens are 21 a rank."""
    c = config(replicas=2, router=ROUND_ROBIN, max_num_seqs=4, max_num_batched_tokens=64, num_blocks=1000)
    r = requests([0, 0, 1], [10, 10, 40], [3, 3, 1])
    shared = np.arange(65, dtype=np.int64) * 50
    group = run_group(c, r, LAW, LockstepOptions(16, 32, shared))
    first = 1000 + 10 * 100
    assert group.state.outcome.first_ps.tolist()[2] == first + 1000 + 41 * 50 + 21 * 50 + 11


def test_idle_ranks_go_on_until_they_agree() -> None:
    """Who comes after the last token, and before the ranks have agreed that all are idle, waits for a dummy step."""
    c = config(replicas=2, router=ROUND_ROBIN, max_num_batched_tokens=64, num_blocks=1000)
    dummy = 1000 + 100
    end = 1000 + 10 * 100
    r = requests([0, end + 5 * dummy + 1], [10, 10], [1, 1])
    assert run_group(c, r, LAW, PADS).state.outcome.admitted_ps.tolist() == [0, end + 6 * dummy]
    late = requests([0, end + 40 * dummy + 1], [10, 10], [1, 1])
    assert run_group(c, late, LAW, PADS).state.outcome.admitted_ps.tolist() == [0, end + 40 * dummy + 1]
