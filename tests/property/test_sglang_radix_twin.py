"""SGLang with its radix cache: the kernel against the naive twin on random small runs, and cases worked by hand."""

from __future__ import annotations

import engines
import numpy as np
import pytest
from naive.batches import Request
from naive.radix import RadixSglang

from replay.kernels.radix import EVICTABLE
from replay.kernels.sglang import SglangOptions, SglangState, advance_sglang, new_sglang
from replay.kernels.state import (
    FREE_BLOCKS,
    HIT_TOKENS,
    LOOKUPS,
    NEVER,
    PREVIOUS_END,
    SCHEDULED_TOKENS,
    STEPS,
    Config,
    Requests,
    State,
    StepTimes,
    new_state,
)
from replay.kernels.texts import link_texts
from replay.traces.sharing import previous_turns

CASES_HERE = 500
Text = tuple[object, ...]


def run(c: Config, o: SglangOptions, r: Requests, t: StepTimes, events: int = 1 << 20) -> tuple[State, SglangState]:
    state, own = new_state(c, len(r.arrival_ps)), new_sglang(c, o)
    while advance_sglang(c, o, r, t, state, own, events):
        pass
    return state, own


def with_texts(r: Requests, follows: np.ndarray) -> tuple[Requests, dict[int, Text]]:
    """Prompts that begin with the text of an earlier request, and every token of every text."""
    n, texts, shared = len(r.arrival_ps), dict[int, Text](), np.zeros(len(r.arrival_ps), np.int64)
    for k in range(n):
        prompt, output = int(r.prompt_tokens[k]), int(r.output_tokens[k])
        before = texts[int(follows[k])] if follows[k] >= 0 else ()
        shared[k] = min(len(before), prompt)
        own = range(int(shared[k]), prompt + output)
        texts[k] = (*before[: int(shared[k])], *((k, place) for place in own))
    linked = link_texts(follows, shared, np.arange(n))
    return r._replace(texts=linked, prefix_start=np.zeros(n + 1, np.int64)), texts


def draw(seed: int, lpm: bool) -> tuple[Config, SglangOptions, Requests, tuple[int, ...], RadixSglang, list[Request]]:
    rng = np.random.default_rng((seed, lpm, 4))
    n = int(rng.integers(1, 40))
    prompt = rng.integers(1, int(rng.choice([4, 20, 90])), n)
    output = rng.integers(1, int(rng.choice([2, 8, 50])), n)
    declared = output + rng.integers(0, int(rng.choice([1, 5, 30])), n)
    arrival = np.sort(rng.integers(0, int(rng.choice([1, 10, 3000])), n)) * int(rng.choice([1, 1000]))
    r = engines.requests(arrival.tolist(), prompt.tolist(), output.tolist())
    follows = np.array([int(rng.integers(-1, k)) if k else -1 for k in range(n)])
    if rng.random() < 0.4:
        follows = previous_turns(rng.integers(0, int(rng.integers(1, 5)), n))
    r, texts = with_texts(r._replace(max_tokens=declared.astype(np.int64)), follows)
    page, slots = int(rng.choice([1, 1, 1, 4])), int(rng.choice([1, 2, 4, 32]))
    longest = int((prompt + declared).max())
    blocks = -(-(longest + page + 1) // page) + int(rng.choice([0, 1, 5, 40, 1000]))
    chunk, limit = int(rng.choice([NEVER, page, 2 * page, 16, 64])), int(rng.choice([8, 64, 1000]))
    first, depth = float(rng.choice([0.01, 0.05, 0.3, 0.7])), int(rng.integers(1, 3))
    cost = tuple(int(x) for x in rng.choice([0, 0, 1, 5, 100, 1000], 5))
    table = max(slots * 90, 40 * 150)
    c = engines.config(
        max_num_seqs=slots,
        max_num_batched_tokens=table,
        block_size=page,
        num_blocks=blocks,
        batches_in_flight=depth,
        table_width=longest // page + 2,
    )
    options = SglangOptions(chunk, limit, first, 0.14 * first, radix=1, lpm=int(lpm))
    twin = RadixSglang(
        slots, table, page, blocks, cost, depth,
        chunk_size=None if chunk == NEVER else chunk, max_prefill_tokens=limit, ratio_first=first,
        ratio_least=0.14 * first, texts=texts, lpm=lpm,
    )  # fmt: skip
    rows = zip(arrival.tolist(), prompt.tolist(), output.tolist(), declared.tolist(), strict=True)
    return c, options, r, cost, twin, [Request(i, *row) for i, row in enumerate(rows)]


@pytest.mark.parametrize("lpm", [False, True])
def test_the_kernel_is_the_twin(lpm: bool) -> None:
    hits = retracted = evicted = 0
    for seed in range(CASES_HERE):
        c, options, r, cost, twin, people = draw(seed, lpm)
        state, own = run(c, options, r, engines.law_of(c, cost))
        twin.run(people)
        outcome, reg = state.outcome, state.meters.regs[0]
        ours = (outcome.first_ps, outcome.last_ps, outcome.admitted_ps, outcome.preemptions, outcome.hit_tokens)
        theirs = [[x.first, x.last, x.admitted, x.preemptions, x.hits] for x in people]
        assert np.column_stack(ours).tolist() == theirs, f"case {seed}: {c} {options}"
        assert (reg[STEPS], reg[SCHEDULED_TOKENS], reg[PREVIOUS_END]) == (twin.steps, twin.scheduled, twin.end)
        assert reg[FREE_BLOCKS] == c.num_blocks == twin.free
        assert own.radix.reg[0, EVICTABLE] == twin.evictable()
        assert (own.radix.locks == 0).all()
        hits += int(reg[HIT_TOKENS])
        retracted += sum(x.preemptions for x in people)
        evicted += reg[SCHEDULED_TOKENS] > 2 * c.num_blocks * c.block_size
    assert (hits > 300, retracted > 30, evicted > 30) == (True, True, True), (hits, retracted, evicted)


@pytest.mark.parametrize("lpm", [False, True])
def test_cutting_the_run_into_calls_changes_nothing(lpm: bool) -> None:
    for seed in range(20):
        c, options, r, cost, _, _ = draw(seed, lpm)
        law = engines.law_of(c, cost)
        whole, cut = (run(c, options, r, law, events)[0] for events in (1 << 20, 1))
        for one, other in zip(whole.outcome + whole.meters, cut.outcome + cut.meters, strict=True):
            assert (one == other).all()


def flat() -> StepTimes:
    return engines.linear_law(4096, constant=100)


def small(blocks: int) -> Config:
    return engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=1, num_blocks=blocks, table_width=100)


def of(arrival: list[int], prompt: list[int], output: list[int], follows: list[int]) -> Requests:
    r = engines.requests(arrival, prompt, output)
    return with_texts(r._replace(max_tokens=r.output_tokens), np.array(follows))[0]


def test_a_turn_finds_every_token_of_the_turn_before_but_the_last() -> None:
    """10 + 4 tokens, of which 13 have KV; the next prompt of 20 begins with them. A repeated prompt computes one."""
    r = of([0, 1000, 2000], [10, 20, 20], [4, 2, 2], [-1, 0, 1])
    state, _ = run(small(1000), SglangOptions(64, 1000, 0.7, 0.1, 1), r, flat())
    assert state.outcome.hit_tokens.tolist() == [0, 13, 19]
    off, _ = run(small(1000), SglangOptions(64, 1000, 0.7, 0.1, 0), r, flat())
    assert off.outcome.hit_tokens.tolist() == [0, 0, 0]


def test_the_least_recently_used_leaf_goes_first_and_whole() -> None:
    """Texts of 9 + 2 tokens leave 10 pages each in a cache of 33; the third prompt is the second's again. The fourth
    finds too few, so the first text goes, which was used least lately, and a prompt like it finds nothing."""
    r = of([0, 1000, 2000, 3000, 4000, 5000], [9, 9, 9, 12, 9, 9], [2, 2, 2, 2, 2, 2], [-1, -1, 1, -1, 1, 0])
    state, _ = run(small(33), SglangOptions(64, 1000, 0.0, 0.0, 1), r, flat())
    assert state.outcome.hit_tokens.tolist() == [0, 0, 8, 0, 8, 0]


def test_lpm_takes_the_longest_cached_prompt_first() -> None:
    """While request 1 runs alone (one slot) 2 and 3 wait; 3 extends the finished 0, so it passes 2."""
    c = small(1000)._replace(max_num_seqs=1)
    r = of([0, 1000, 1010, 1020], [9, 5, 30, 30], [2, 9, 2, 2], [-1, -1, -1, 0])
    for lpm, order in ((0, [0, 1, 2, 3]), (1, [0, 1, 3, 2])):
        state, _ = run(c, SglangOptions(64, 1000, 0.7, 0.1, 1, lpm), r, flat())
        assert np.argsort(state.outcome.admitted_ps, kind="stable").tolist() == order


@pytest.mark.parametrize("lpm", [0, 1])
def test_a_blocked_head_is_matched_again_only_when_a_request_leaves(lpm: int) -> None:
    """Request 1 runs 300 steps with the memory that 2 and 3, which extend the finished 0, lack."""
    r = of([0, 1000, 1010, 1010], [30, 50, 60, 60], [2, 300, 30, 30], [-1, -1, 0, 0])
    state, _ = run(small(400), SglangOptions(64, 1000, 1.0, 1.0, 1, lpm), r, flat())
    reg = state.meters.regs[0]
    assert state.outcome.hit_tokens[2] == 31
    assert state.outcome.admitted_ps[2] == state.outcome.last_ps[1]
    assert reg[STEPS] > 300
    assert reg[LOOKUPS] < 50
