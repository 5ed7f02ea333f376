"""vLLM's V0 scheduler: against its naive twin, and cases worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import cases, config, linear_law, requests
from naive.v0 import V0, Request, SwapSpaceShort
from recorders.cases import digest

from replay.kernels.state import (
    FREE_BLOCKS,
    GAP_MAX_PS,
    PREEMPTIONS,
    PREVIOUS_END,
    SCHEDULED_TOKENS,
    STEPS,
    SWAP_SPACE_SHORT,
    Config,
    Requests,
    State,
    StepTimes,
    new_state,
)
from replay.kernels.v0 import V0Options, advance_v0
from replay.kernels.v0_chunked import advance_v0_chunked, new_v0_lists
from replay.verify import read_cases

PLENTY = 1 << 40
RECOMPUTE = V0Options(0, 0, 0)


def run(c: Config, r: Requests, law: StepTimes, options: V0Options = RECOMPUTE, events_a_call: int = 1 << 20) -> State:
    state = new_state(c, len(r.arrival_ps))
    if c.enable_chunked_prefill:
        lists = new_v0_lists(c)
        while advance_v0_chunked(c, options, r, law, state, lists, events_a_call):
            pass
        return state
    while advance_v0(c, options, r, law, state, events_a_call):
        pass
    return state


def random_run(rng: np.random.Generator) -> tuple[Config, V0Options, Requests, tuple[int, ...]]:
    """Small memory, watermarks, ties, bursts; every request fits alone."""
    n = int(rng.integers(1, 40))
    prompt = rng.integers(1, int(rng.choice([2, 10, 60])), n)
    output = rng.integers(1, int(rng.choice([2, 8, 50])), n)
    block_size, watermark = int(rng.choice([1, 2, 4, 16])), int(rng.choice([0, 0, 1, 3]))
    largest = int(np.max(-(-(prompt + output - 1) // block_size)))
    slots = int(rng.choice([1, 2, 4, 8, 32]))
    arrival = np.sort(rng.integers(0, int(rng.choice([1, 10, 3000])), n)) * int(rng.choice([1, 1000]))
    c = config(
        max_num_seqs=slots,
        max_num_batched_tokens=max(slots, int((prompt + output).max()) + int(rng.choice([0, 1, 50]))),
        block_size=block_size,
        num_blocks=largest + watermark + int(rng.choice([0, 1, 3, 20, 1000])),
        watermark_blocks=watermark,
        enable_chunked_prefill=0,
        max_model_len=int(rng.choice([PLENTY, prompt.max() + 5])),
    )
    options = V0Options(int(rng.integers(0, 2)), int(rng.choice([PLENTY, PLENTY, 5])), int(rng.choice([0, 1, 300])))
    cost = tuple(int(x) for x in rng.choice([0, 0, 1, 5, 100, 1000], 5))
    return c, options, requests(arrival.tolist(), prompt.tolist(), output.tolist()), cost


def twin_of(c: Config, options: V0Options, cost: tuple[int, ...]) -> V0:
    return V0(
        S=c.max_num_seqs,
        B=c.max_num_batched_tokens,
        bs=c.block_size,
        blocks=c.num_blocks,
        watermark=c.watermark_blocks,
        cost=cost,  # type: ignore[arg-type]
        swap=bool(options.swap),
        cpu_blocks=options.cpu_blocks,
        copy=options.block_copy_ps,
        max_model_len=c.max_model_len,
        chunked=bool(c.enable_chunked_prefill),
    )


def law_of(c: Config, cost: tuple[int, ...]) -> StepTimes:
    floor, per_token, context, pair, constant = cost
    return linear_law(c.max_num_batched_tokens, floor, per_token, constant, context, pair)


def with_chunks(rng: np.random.Generator, c: Config) -> Config:
    """The run with chunked prefill: a budget from hardly more than a decode of every slot on, and a block to spare."""
    budget = c.max_num_seqs + int(rng.choice([0, 0, 1, 7, 30]))
    return c._replace(enable_chunked_prefill=1, max_num_batched_tokens=budget, num_blocks=c.num_blocks + 1)


@pytest.mark.parametrize("chunked", [False, True])
def test_the_loop_is_the_twin(chunked: bool) -> None:
    rng = np.random.default_rng(20)
    preempted, aborted, swaps = 0, 0, 0
    for _ in range(cases(700)):
        c, options, r, cost = random_run(rng)
        if chunked:
            c, options = with_chunks(rng, c), RECOMPUTE
        twin = twin_of(c, options, cost)
        columns = (r.arrival_ps.tolist(), r.prompt_tokens.tolist(), r.output_tokens.tolist())
        rows = [Request(i, *row) for i, row in enumerate(zip(*columns, strict=True))]
        state = run(c, r, law_of(c, cost), options, int(rng.choice([1, 7, 1 << 20])))
        reg = state.meters.regs[0]
        try:
            twin.run(rows)
        except SwapSpaceShort:
            assert reg[SWAP_SPACE_SHORT]
            aborted += 1
            continue
        assert not reg[SWAP_SPACE_SHORT]
        outcome = state.outcome
        assert outcome.admitted_ps.tolist() == [x.admitted for x in rows]
        assert outcome.first_ps.tolist() == [x.tokens[0] for x in rows]
        assert outcome.last_ps.tolist() == [x.tokens[-1] for x in rows]
        assert outcome.preemptions.tolist() == [x.preemptions for x in rows]
        assert outcome.generated.tolist() == [x.gen for x in rows]
        assert (reg[STEPS], reg[SCHEDULED_TOKENS], reg[PREVIOUS_END]) == (twin.steps, twin.scheduled, twin.end)
        assert reg[FREE_BLOCKS] == c.num_blocks
        gaps = [b - a for x in rows for a, b in zip(x.tokens, x.tokens[1:], strict=False)]
        assert int(state.meters.gaps.sum()) == len(gaps)
        assert int(state.meters.cluster[GAP_MAX_PS]) == max(gaps, default=0)
        preempted += int(reg[PREEMPTIONS])
        swaps += options.swap * int(reg[PREEMPTIONS])
    assert preempted > cases(500), "the cases must press on memory"
    assert chunked or (swaps > cases(100) and aborted > cases(5))


def test_a_prefill_stalls_the_decodes() -> None:
    c = config(max_num_batched_tokens=64, enable_chunked_prefill=0)
    law = linear_law(64, constant=10, per_token=1)
    state = run(c, requests([0, 12], [20, 30], [4, 1]), law)
    # 0-30: prefill of 20 tokens. The second prompt, here since 12, runs alone 30-70; then three decodes of 11 each.
    assert state.outcome.first_ps.tolist() == [30, 70]
    assert state.outcome.last_ps.tolist() == [70 + 3 * 11, 70]
    assert int(state.meters.cluster[GAP_MAX_PS]) == 51, "the stall is one long gap"


def test_chunks_run_beside_decodes() -> None:
    c = config(max_num_batched_tokens=8, enable_chunked_prefill=1)
    state = run(c, requests([0, 1], [4, 20], [6, 1]), linear_law(8, constant=10))
    # 0-10: the first prompt. Then 7 tokens of the second beside each decode: 10-20, 20-30, and the last 6 30-40.
    assert state.outcome.first_ps.tolist() == [10, 40]
    assert state.outcome.last_ps.tolist() == [60, 40]
    assert int(state.meters.cluster[GAP_MAX_PS]) == 10, "no decode waits"


def test_whom_a_step_preempts_is_not_admitted_in_it_and_the_next_in_line_is() -> None:
    c = config(num_blocks=4, max_num_batched_tokens=40, enable_chunked_prefill=1)
    r = requests([0, 0, 5], [7, 8, 3], [3, 2, 1])
    outcome = run(c, r, linear_law(40, constant=10)).outcome
    # 10: no block is free for the first decode; the second request goes, and its two blocks take in the third.
    assert outcome.preemptions.tolist() == [0, 1, 0]
    assert outcome.admitted_ps.tolist() == [0, 0, 10]
    assert outcome.first_ps[2] == 20


def test_prompts_share_a_prefill_up_to_the_budget() -> None:
    c = config(max_num_batched_tokens=50, enable_chunked_prefill=0)
    state = run(c, requests([0, 0, 0], [20, 30, 1], [1, 1, 1]), linear_law(50, constant=10))
    assert state.outcome.first_ps.tolist() == [10, 10, 20]


def test_the_watermark_holds_back_admission_but_not_decodes() -> None:
    c = config(num_blocks=10, watermark_blocks=1, max_num_batched_tokens=40, enable_chunked_prefill=0)
    law = linear_law(40, constant=10)
    # 24 + 12 tokens take 6 + 3 blocks: nine of ten, which the watermark allows. 24 + 16 would take all ten.
    assert run(c, requests([0, 0], [24, 12], [2, 2]), law).outcome.first_ps.tolist() == [10, 10]
    assert run(c, requests([0, 0], [24, 16], [2, 2]), law).outcome.first_ps.tolist() == [10, 30]


def test_a_decode_needs_a_free_block_even_where_its_token_fits() -> None:
    c = config(num_blocks=4, max_num_batched_tokens=40, enable_chunked_prefill=0)
    state = run(c, requests([0, 0], [6, 7], [2, 2]), linear_law(40, constant=10))
    # Both prompts take two blocks with room for the next token, but no block is free: the second is preempted.
    assert state.outcome.preemptions.tolist() == [0, 1]
    # 0-10 prefill of both; 10-20 the first decodes and ends; 20-30 the second is prefilled anew, 8 tokens.
    assert state.outcome.last_ps.tolist() == [20, 30]
    assert state.meters.regs[0, SCHEDULED_TOKENS] == 13 + 1 + 8


def test_swapping_keeps_the_work_and_costs_two_copies() -> None:
    c = config(num_blocks=4, max_num_batched_tokens=40, enable_chunked_prefill=0)
    state = run(c, requests([0, 0], [6, 7], [2, 2]), linear_law(40, constant=10), V0Options(1, 10, 100))
    # 10-220: two blocks leave, the first decodes and ends. 220-430: they return, and the second decodes.
    assert state.outcome.last_ps.tolist() == [220, 430]
    assert state.meters.regs[0, SCHEDULED_TOKENS] == 13 + 1 + 1


def test_nothing_is_admitted_while_anything_is_swapped_out() -> None:
    c = config(num_blocks=5, watermark_blocks=0, max_num_batched_tokens=40, enable_chunked_prefill=0)
    r = requests([0, 0, 15], [8, 11, 1], [5, 3, 1])
    swap, recompute = (run(c, r, linear_law(40, constant=10), V0Options(mode, 10, 0)) for mode in (1, 0))
    for state in (swap, recompute):
        assert state.outcome.preemptions[1] == 1
    assert swap.outcome.first_ps[2] > recompute.outcome.first_ps[2] or swap.outcome.first_ps[2] >= 60


@pytest.mark.parametrize("replicas", [2, 3])
def test_round_robin_replicas_are_independent(replicas: int) -> None:
    rng = np.random.default_rng(21)
    for _ in range(cases(30)):
        c, _, r, cost = random_run(rng)
        coupled = run(c._replace(replicas=replicas), r, law_of(c, cost)).outcome
        for k in range(replicas):
            share = requests(*(getattr(r, f)[k::replicas].tolist() for f in r._fields[:3]))
            if len(share.arrival_ps):
                assert np.array_equal(run(c, share, law_of(c, cost)).outcome.last_ps, coupled.last_ps[k::replicas])


RECORDED = read_cases(Path(__file__).parents[3] / "data" / "vllm-v0-0.8.5-scheduler-cases.json")
"""Steps of the release's own scheduler, see ``tests/recorders/vllm_v0.py``."""


def recorded_run(case: dict[str, Any]) -> tuple[Config, V0Options, Requests, tuple[int, ...]]:
    """A recorded case as a run."""
    c = config(
        max_num_seqs=case["S"],
        max_num_batched_tokens=case["B"],
        block_size=case["bs"],
        num_blocks=case["blocks"],
        watermark_blocks=case["watermark_blocks"],
        enable_chunked_prefill=int(case["chunked"]),
        max_model_len=case.get("max_model_len", PLENTY),
    )
    options = V0Options(int(case["swap"]), case["cpu_blocks"], case["copy"])
    return c, options, requests(case["arrival"], case["P"], case["N"]), tuple(case["cost"])


@pytest.mark.parametrize("index", range(len(RECORDED)))
def test_every_recorded_case_matches(index: int) -> None:
    case = RECORDED[index]
    c, options, r, cost = recorded_run(case)
    floor, per_token, context, pair, constant = cost
    state = run(c, r, linear_law(c.max_num_batched_tokens, floor, per_token, constant, context, pair), options)
    reg, outcome = state.meters.regs[0], state.outcome
    expected = (case["steps"], case["end"], case["scheduled"])
    assert (reg[STEPS], reg[PREVIOUS_END], reg[SCHEDULED_TOKENS]) == expected
    assert outcome.first_ps.tolist() == case["first"]
    assert outcome.last_ps.tolist() == case["last"]
    assert outcome.preemptions.tolist() == case["preemptions"]


def test_the_twin_takes_every_recorded_step() -> None:
    for case in RECORDED:
        c, options, _, cost = recorded_run(case)
        twin = twin_of(c, options, cost)
        rows = zip(case["arrival"], case["P"], case["N"], strict=True)
        twin.run([Request(i, *row) for i, row in enumerate(rows)])
        assert digest(twin.log) == case["log"], case["mode"]
