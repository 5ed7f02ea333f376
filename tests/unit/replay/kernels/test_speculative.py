"""Speculative decoding in the general loop: against the naive twin, closed forms, and the draws."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import TWIN_KINDS, caching_case, ceil_div, one_of
from engines import cases, config, law_of, linear_law, random_case, requests, twin_config
from naive.speculative import Expected, Sampled
from naive.vllm import Config as TwinConfig
from naive.vllm import Engine, Request

from replay.kernels.engine import advance
from replay.kernels.loglinear import bin_of
from replay.kernels.state import (
    FREE_BLOCKS,
    GAP_BINS,
    GAP_BITS,
    ONE,
    PREEMPTIONS,
    SCHEDULED_TOKENS,
    STEPS,
    Config,
    Meters,
    Outcome,
    Requests,
    StepTimes,
    bucket_count,
    new_state,
)

SEED = 7


def run(
    c: Config, r: Requests, law: StepTimes, acceptance: tuple[int, ...], events_a_call: int = 1 << 20
) -> tuple[Outcome, Meters]:
    """The general loop to its end."""
    state = new_state(c, len(r.arrival_ps))
    state.speculation.acceptance[:] = acceptance
    while advance(c, r, law, state, bucket_count(c.num_blocks) - 1, events_a_call):
        pass
    return state.outcome, state.meters


def speculating(rng: np.random.Generator, c: Config, r: Requests) -> tuple[Config, tuple[int, ...]]:
    """``c`` with some speculation, and memory in which the longest request still fits with its drafts."""
    g = one_of(rng, 1, 2, 3, 5)
    total = r.prompt_tokens + r.output_tokens
    largest = int(np.max(-(-(total - 1 + 2 * g) // c.block_size)))
    c = c._replace(
        batches_in_flight=1,
        num_blocks=max(c.num_blocks, largest),
        max_model_len=one_of(rng, c.max_model_len, int(total.max())),
        speculative_tokens=g,
        lookahead_tokens=g,
        expected_acceptance=one_of(rng, 0, 1),
        speculation_seed=one_of(rng, 0, SEED, 2**31 - 1),
        draft_step_ps=one_of(rng, 0, 13),
        draft_step_share=one_of(rng, 0, 300_000),
    )
    longest = int(total.max()) + 2 * g
    shares = tuple(int(x) for x in rng.choice([0, ONE // 3, ONE * 9 // 10, ONE], g))
    return c._replace(table_width=ceil_div(longest, c.block_size) + 2), shares


def with_drafts(twin: TwinConfig, c: Config, acceptance: tuple[int, ...]) -> TwinConfig:
    """The twin's settings with the same speculation."""
    twin.g = c.speculative_tokens
    twin.draft_step = (c.draft_step_ps, c.draft_step_share)
    twin.accept = Expected(acceptance) if c.expected_acceptance else Sampled(c.speculation_seed, acceptance)
    return twin


def people(r: Requests, c: Config) -> list[Request]:
    priority = r.priority.tolist() if c.priority_policy else [0] * len(r.arrival_ps)
    rows = zip(r.arrival_ps.tolist(), r.prompt_tokens.tolist(), r.output_tokens.tolist(), priority, strict=True)
    return [Request(i, *row) for i, row in enumerate(rows)]


def assert_same(kernel: tuple[Outcome, Meters], twin: Engine, c: Config) -> None:
    outcome, meters = kernel
    for name, attribute in (("first_ps", "first"), ("last_ps", "last"), ("admitted_ps", "admitted")):
        assert getattr(outcome, name).tolist() == [getattr(r, attribute) for r in twin.requests], name
    assert outcome.preemptions.tolist() == [r.preemptions for r in twin.requests]
    assert outcome.generated.tolist() == [r.gen for r in twin.requests]
    assert meters.regs[0, [STEPS, SCHEDULED_TOKENS]].tolist() == [twin.steps, twin.scheduled]
    assert meters.regs[0, FREE_BLOCKS] == len(twin.pool.free) == c.num_blocks
    gaps = np.bincount([bin_of(gap, GAP_BITS) for gap in twin.gaps], minlength=GAP_BINS)
    assert np.array_equal(meters.gaps, gaps)


@pytest.mark.parametrize("kind", ["plain", "threshold", "priority", "both"])
def test_twin(kind: str) -> None:
    rng = np.random.default_rng((29, len(kind)))
    preempted = saved = 0
    for case in range(cases(250)):
        c, r, cost = random_case(rng, threshold=kind in ("threshold", "both"), priority=kind in ("priority", "both"))
        c, acceptance = speculating(rng, c, r)
        twin = Engine(with_drafts(twin_config(c, cost), c, acceptance), people(r, c))
        twin.run()
        cut = 1 if case % 20 == 0 else 1 << 20
        assert_same(run(c, r, law_of(c, cost), acceptance, cut), twin, c)
        preempted += sum(x.preemptions for x in twin.requests)
        saved += twin.gaps.count(0) if cost != (0, 0, 0, 0, 0) else 0
    assert preempted > cases(100), "the cases must press on memory"
    assert saved > cases(1000), "drafts must be accepted"


@pytest.mark.parametrize("kind", [kind for kind in TWIN_KINDS if kind not in ("async", "past the end", "victims stay")])
def test_twin_with_prefix_caching(kind: str) -> None:
    rng = np.random.default_rng((30, len(kind)))
    hits = 0
    for _ in range(cases(80)):
        c, r, cost, twin = caching_case(rng, kind)
        c, acceptance = speculating(rng, c, r)
        twin = Engine(with_drafts(twin_config(c, cost), c, acceptance), twin.requests)
        twin.run()
        kernel = run(c, r, law_of(c, cost), acceptance)
        assert_same(kernel, twin, c)
        assert kernel[0].hit_tokens.tolist() == [x.hits for x in twin.requests]
        hits += twin.hits
    assert hits > cases(1000)


def alone(g: int, acceptance: int, output: int, expected: int = 0, **changes: int) -> tuple[Outcome, Meters]:
    """One request of 10 prompt tokens; a step takes 100 ps and each drafted token's row none."""
    c = config(
        max_num_batched_tokens=64, speculative_tokens=g, lookahead_tokens=g, expected_acceptance=expected, **changes
    )
    return run(c, requests([0], [10], [output]), linear_law(64, constant=100), (acceptance,) * g)


@pytest.mark.parametrize("g", [1, 2, 4])
def test_29_no_acceptance_takes_the_steps_of_plain_decoding_and_full_acceptance_its_share(g: int) -> None:
    for expected in (0, 1):
        for output in (1, 2, 3, g + 1, g + 2, 40, 41):
            assert alone(g, 0, output, expected)[1].regs[0, STEPS] == output
            outcome, meters = alone(g, ONE, output, expected)
            assert meters.regs[0, STEPS] == 1 + ceil_div(output - 1, g + 1)
            assert outcome.generated[0] == output
            assert outcome.last_ps[0] == 100 * (1 + ceil_div(output - 1, g + 1))
            assert meters.gaps.sum() == output - 1, "tokens of one step count each, at a gap of 0"


@pytest.mark.parametrize("expected", [0, 1])
def test_the_mean_of_accepted_tokens_is_the_closed_form(expected: int) -> None:
    g, alpha, output = 3, 0.7, 6000
    _, meters = alone(g, round(alpha * ONE), output, expected, num_blocks=10_000)
    tokens_a_step = (output - 1) / (int(meters.regs[0, STEPS]) - 1)
    assert tokens_a_step == pytest.approx((1 - alpha ** (g + 1)) / (1 - alpha), rel=0.03 if expected == 0 else 0.001)


def test_a_draft_pass_costs_its_time_and_its_share_of_a_decode() -> None:
    plain = alone(2, 0, 5)[0].last_ps[0]
    assert alone(2, 0, 5, draft_step_ps=7)[0].last_ps[0] == plain + 4 * 2 * 7
    c = config(max_num_batched_tokens=64, speculative_tokens=2, lookahead_tokens=2, draft_step_share=250_000)
    outcome, _ = run(c, requests([0], [10], [5]), linear_law(64, constant=100_000), (0, 0))
    assert outcome.last_ps[0] == 5 * 100_000 + 4 * 2 * 25_000


def test_blocks_of_rejected_drafts_stay() -> None:
    _, meters = alone(3, 0, 2, block_size=1)
    assert meters.regs[0, SCHEDULED_TOKENS] == 10 + 1 + 3
    assert meters.regs[0, PREEMPTIONS] == 0
    assert meters.regs[0, FREE_BLOCKS] == 100
    used = int(meters.meters[0, 1] / 100) - 10  # in the two steps of 100 ps each: 10 blocks, then 10 + 4 + 3 ahead
    assert used == 10 + 1 + 3 + 3
