"""SGLang, TensorRT-LLM and TGI: the kernels against their naive twins, and cases worked by hand."""

from typing import Any

import engines
import numpy as np
import pytest
from naive.batches import Request, Twin
from naive.sglang import Sglang
from naive.tgi import Tgi
from naive.trtllm import Trtllm

from replay.kernels.arrivals import prepare_arrivals
from replay.kernels.loglinear import bin_of
from replay.kernels.sglang import SglangOptions, advance_sglang, new_sglang
from replay.kernels.state import (
    FREE_BLOCKS,
    GAP_BINS,
    GAP_BITS,
    NEVER,
    PREVIOUS_END,
    REFUSED,
    SCHEDULED_TOKENS,
    STEPS,
    Config,
    Requests,
    State,
    StepTimes,
    new_state,
)
from replay.kernels.tgi import TgiOptions, advance_tgi, new_tgi
from replay.kernels.trtllm import TrtllmOptions, advance_trtllm

POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
FOREVER = 1 << 40


def state_for(c: Config, r: Requests) -> State:
    return new_state(c, len(r.arrival_ps))._replace(arrivals=prepare_arrivals(c, r))


def run_sglang(c: Config, o: SglangOptions, r: Requests, t: StepTimes, events: int = 1 << 20) -> State:
    state, own = state_for(c, r), new_sglang(c, o)
    while advance_sglang(c, o, r, t, state, own, events):
        pass
    return state


def run_trtllm(c: Config, o: TrtllmOptions, r: Requests, t: StepTimes, events: int = 1 << 20) -> State:
    state = state_for(c, r)
    while advance_trtllm(c, o, r, t, state, events):
        pass
    return state


def run_tgi(c: Config, o: TgiOptions, r: Requests, t: StepTimes, events: int = 1 << 20) -> State:
    state, own = state_for(c, r), new_tgi(c)
    while advance_tgi(c, o, r, t, state, own, events):
        pass
    return state


def requests_of(arrival: Any, prompt: Any, output: Any, declared: Any) -> Requests:
    plain = engines.requests(list(arrival), list(prompt), list(output))
    return plain._replace(max_tokens=np.array(declared, np.int64))


def twins_of(r: Requests) -> list[Request]:
    columns = (r.arrival_ps, r.prompt_tokens, r.output_tokens, r.max_tokens)
    return [Request(i, *row) for i, row in enumerate(zip(*(c.tolist() for c in columns), strict=True))]


def draw_requests(rng: np.random.Generator) -> Requests:
    n = int(rng.integers(1, 40))
    prompt = rng.integers(1, int(rng.choice([2, 10, 60])), n)
    output = rng.integers(1, int(rng.choice([2, 8, 50])), n)
    declared = output + rng.integers(0, int(rng.choice([1, 5, 60])), n)
    arrival = np.sort(rng.integers(0, int(rng.choice([1, 10, 3000])), n)) * int(rng.choice([1, 1000]))
    return requests_of(arrival, prompt, output, declared)


def draw_cost(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(x) for x in rng.choice([0, 0, 1, 5, 100, 1000], 5))


def assert_equal(state: State, twin: Twin, requests: list[Request], c: Config, seed: int) -> None:
    outcome, reg = state.outcome, state.meters.regs[0]
    assert outcome.admitted_ps.tolist() == [r.admitted for r in requests], seed
    assert outcome.first_ps.tolist() == [r.first for r in requests], seed
    assert outcome.last_ps.tolist() == [r.last for r in requests], seed
    assert outcome.preemptions.tolist() == [r.preemptions for r in requests], seed
    assert (outcome.replica == REFUSED).tolist() == [r.refused for r in requests], seed
    assert outcome.generated.tolist() == [0 if r.refused else r.N for r in requests], seed
    assert (reg[STEPS], reg[PREVIOUS_END], reg[SCHEDULED_TOKENS]) == (twin.steps, twin.end, twin.scheduled), seed
    assert reg[FREE_BLOCKS] == c.num_blocks, seed
    counted = np.zeros(GAP_BINS, np.int64)
    for gap in twin.gaps:
        counted[bin_of(gap, GAP_BITS)] += 1
    assert (state.meters.gaps == counted).all(), seed


def longest(r: Requests) -> int:
    return int((r.prompt_tokens + r.max_tokens).max())


def sglang_case(seed: int) -> tuple[Config, SglangOptions, Requests, StepTimes, Sglang]:
    rng = np.random.default_rng(seed)
    r, cost = draw_requests(rng), draw_cost(rng)
    page = int(rng.choice([1, 1, 1, 4]))
    slots = int(rng.choice([1, 2, 4, 32]))
    blocks = -(-(longest(r) + page + 1) // page) + int(rng.choice([0, 1, 5, 40, 1000]))
    chunk = int(rng.choice([NEVER, page, 2 * page, 16, 64]))
    limit = int(rng.choice([8, 64, 1000]))
    first = float(rng.choice([0.05, 0.3, 0.7, 1.0]))
    depth = int(rng.integers(1, 3))
    table = max(slots * 60, 40 * 120)
    c = engines.config(
        max_num_seqs=slots,
        max_num_batched_tokens=table,
        block_size=page,
        num_blocks=blocks,
        batches_in_flight=depth,
    )
    options = SglangOptions(chunk, limit, first, 0.14 * first)
    twin = Sglang(
        slots, table, page, blocks, cost, depth,
        chunk_size=None if chunk == NEVER else chunk,
        max_prefill_tokens=limit, ratio_first=first, ratio_least=0.14 * first,
    )  # fmt: skip
    return c, options, r, engines.law_of(c, cost), twin


def trtllm_case(seed: int) -> tuple[Config, TrtllmOptions, Requests, StepTimes, Trtllm]:
    rng = np.random.default_rng(seed)
    r, cost = draw_requests(rng), draw_cost(rng)
    page, slots = int(rng.choice([1, 4, 16])), int(rng.choice([1, 2, 4, 32]))
    policy, chunked = int(rng.integers(3)), bool(rng.integers(2))
    blocks = -(-longest(r) // page) + int(rng.choice([0, 1, 3, 20, 1000]))
    least = page if chunked else int((r.prompt_tokens + r.output_tokens).max())
    budget = max(slots, least) + int(rng.choice([0, 1, 7, 40]))
    depth = int(rng.integers(1, 3))
    c = engines.config(
        max_num_seqs=slots,
        max_num_batched_tokens=budget,
        block_size=page,
        num_blocks=blocks,
        batches_in_flight=depth,
        enable_chunked_prefill=int(chunked),
    )
    twin = Trtllm(slots, budget, page, blocks, cost, depth, policy=POLICIES[policy], chunked=chunked)
    return c, TrtllmOptions(policy), r, engines.law_of(c, cost), twin


def tgi_case(seed: int) -> tuple[Config, TgiOptions, Requests, StepTimes, Tgi]:
    rng = np.random.default_rng(seed)
    r, cost = draw_requests(rng), draw_cost(rng)
    page, slots = int(rng.choice([1, 4, 16])), int(rng.choice([1, 2, 5, 40]))
    chunks = bool(rng.integers(2))
    blocks = -(-longest(r) // page) + int(rng.choice([0, 1, 3, 20, 1000]))
    least = 1 if chunks else int(r.prompt_tokens.max())
    prefill = max(least, int(rng.choice([1, 8, 50, 300])))
    max_waiting, ratio = int(rng.choice([0, 3, 20])), float(rng.choice([0.0, 0.3, 1.2]))
    table = prefill + page + slots * 60
    c = engines.config(
        max_num_seqs=slots,
        max_num_batched_tokens=table,
        block_size=page,
        num_blocks=blocks,
        max_num_queued_reqs=slots,
    )
    options = TgiOptions(int(chunks), prefill, max_waiting, ratio)
    twin = Tgi(
        slots, table, page, blocks, cost,
        chunks=chunks, prefill_tokens=prefill, max_waiting_tokens=max_waiting, ratio=ratio, max_concurrent=slots,
    )  # fmt: skip
    return c, options, r, engines.law_of(c, cost), twin


ENGINES = {"sglang": (sglang_case, run_sglang), "trtllm": (trtllm_case, run_trtllm), "tgi": (tgi_case, run_tgi)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("block", range(4))
def test_equals_its_naive_twin(engine: str, block: int) -> None:
    case, run = ENGINES[engine]
    preempted = refused = 0
    for seed in range(block * 250, block * 250 + engines.cases(250)):
        c, options, r, times, twin = case(seed)  # type: ignore[operator]
        twins = twins_of(r)
        twin.run(twins)
        state = run(c, options, r, times)  # type: ignore[operator]
        assert_equal(state, twin, twins, c, seed)
        preempted += sum(x.preemptions for x in twins)
        refused += sum(x.refused for x in twins)
    assert (refused > 0) if engine == "tgi" else (preempted > 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_equals_its_naive_twin_where_requests_follow_others(engine: str) -> None:
    case, run = ENGINES[engine]
    shifted = 0
    for seed in range(2000, 2000 + engines.cases(150)):
        c, options, r, times, twin = case(seed)  # type: ignore[operator]
        rng = np.random.default_rng(seed)
        n = len(r.arrival_ps)
        after = [int(rng.integers(-1, i)) if i and rng.random() < 0.7 else -1 for i in range(n)]
        delay = rng.choice([0, 0, 1, 50, 1000], n)
        r = r._replace(after=np.array(after, np.int64), delay_ps=delay.astype(np.int64))
        twins = twins_of(r)
        for x, before, wait in zip(twins, after, delay.tolist(), strict=True):
            x.after, x.delay = before, wait
        twin.run(twins)
        state = run(c, options, r, times)  # type: ignore[operator]
        assert_equal(state, twin, twins, c, seed)
        assert state.arrivals.sent_ps.tolist() == [x.arrival for x in twins], seed
        shifted += sum(x.arrival != a for x, a in zip(twins, r.arrival_ps.tolist(), strict=True))
    assert shifted > engines.cases(500)


@pytest.mark.parametrize("engine", ENGINES)
def test_cutting_the_run_into_calls_changes_nothing(engine: str) -> None:
    case, run = ENGINES[engine]
    for seed in range(engines.cases(40)):
        c, options, r, times, _ = case(seed)  # type: ignore[operator]
        whole, cut = (run(c, options, r, times, n) for n in (1 << 20, 1))  # type: ignore[operator]
        for one, other in zip(whole.outcome + whole.meters, cut.outcome + cut.meters, strict=True):
            assert (one == other).all()


# --- worked by hand: every step takes 100 ps, unless said otherwise ---


def flat(tokens: int = 4096) -> StepTimes:
    return engines.linear_law(tokens, floor=100)


def test_sglang_prefills_first_and_decodes_wait() -> None:
    """Request 0 decodes; 1 arrives and its prefill of two chunks stalls it for two steps."""
    c = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=1, num_blocks=1000)
    r = requests_of([0, 150], [10, 15], [4, 1], [4, 1])
    state = run_sglang(c, SglangOptions(10, 1000, 0.7, 0.1), r, flat())
    assert state.outcome.admitted_ps.tolist() == [0, 200]
    assert state.outcome.first_ps.tolist() == [100, 400]
    assert state.outcome.last_ps.tolist() == [600, 400]  # tokens at 100, 200, then 500 and 600


def test_sglang_overlap_makes_an_arrival_wait_for_the_queued_step() -> None:
    c = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=1, num_blocks=1000, batches_in_flight=2)
    r = requests_of([0, 150], [10, 5], [9, 1], [9, 1])
    state = run_sglang(c, SglangOptions(10, 1000, 0.7, 0.1), r, flat())
    assert state.outcome.admitted_ps.tolist() == [0, 200]
    assert state.outcome.first_ps.tolist() == [100, 400]  # the decode of 200..300 was queued before


def test_sglang_reserves_a_share_of_declared_outputs() -> None:
    """40 tokens of memory: request 0 holds 10, half of its 20 declared count; 10 + 9 and a page fit, 10 + 11 not."""
    c = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=1, num_blocks=40)
    for declared, together in ((9, True), (11, False)):
        r = requests_of([0, 50], [10, 10], [5, 5], [20, declared])
        state = run_sglang(c, SglangOptions(64, 1000, 0.5, 0.5), r, flat())
        # At 100 ps one token is out: 19 to come, 9.5 of them reserved, so 20.5 are left.
        assert (state.outcome.admitted_ps[1] == 100) == together


def test_sglang_retracts_the_longer_prompt_of_equals_and_it_starts_over_behind() -> None:
    """16 tokens of memory. At 500 both have four tokens out and 15 are held, so the next decode needs one too many;
    the one with the longer prompt goes. It comes back at 600, when the other is done, with 5 + 4 tokens to prefill."""
    c = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=1, num_blocks=16)
    r = requests_of([0, 50], [5, 4], [7, 5], [7, 5])
    state = run_sglang(c, SglangOptions(64, 1000, 0.0, 0.0), r, flat())
    assert state.outcome.admitted_ps.tolist() == [0, 100]
    assert state.outcome.preemptions.tolist() == [1, 0]
    assert state.outcome.last_ps.tolist() == [900, 600]


def test_trtllm_reserves_to_completion_or_pauses_the_last() -> None:
    """Four blocks of 4 tokens; each request is 4 + 5 tokens: three blocks to completion, one for its prompt."""
    c = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=4, num_blocks=4)
    r = requests_of([0, 0], [4, 4], [5, 5], [5, 5])
    no_evict = run_trtllm(c, TrtllmOptions(0), r, flat())
    assert no_evict.outcome.admitted_ps.tolist() == [0, 500]
    assert no_evict.outcome.last_ps.tolist() == [500, 1000]
    crowded = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=4, num_blocks=3)
    paused = run_trtllm(crowded, TrtllmOptions(1), r, flat())
    assert paused.outcome.admitted_ps.tolist() == [0, 0]
    assert paused.outcome.preemptions.tolist() == [0, 1]  # at 100 both need a second block and one is free
    assert paused.outcome.last_ps.tolist() == [500, 900]  # 1 resumes with 4 + 1 tokens, two blocks, at 500


def test_trtllm_static_batches_end_together() -> None:
    c = engines.config(max_num_seqs=2, max_num_batched_tokens=4096, block_size=4, num_blocks=100)
    r = requests_of([0, 0, 0], [4, 4, 4], [5, 1, 1], [5, 1, 1])
    state = run_trtllm(c, TrtllmOptions(2), r, flat())
    assert state.outcome.last_ps.tolist() == [500, 100, 600]


def test_trtllm_without_chunks_stops_at_the_context_that_does_not_fit() -> None:
    c = engines.config(
        max_num_seqs=8, max_num_batched_tokens=10, block_size=4, num_blocks=100, enable_chunked_prefill=0
    )
    r = requests_of([0, 0, 0], [6, 6, 2], [1, 1, 1], [1, 1, 1])
    state = run_trtllm(c, TrtllmOptions(0), r, flat())
    assert state.outcome.first_ps.tolist() == [100, 200, 200]  # the short one does not pass


def tgi(chunks: bool, prefill: int = 10, waiting: int = 20, ratio: float = 0.3) -> TgiOptions:
    return TgiOptions(int(chunks), prefill, waiting, ratio)


def test_tgi_v3_cuts_the_last_prompt_and_advances_decodes_beside_it() -> None:
    """Request 0 decodes (1 of the budget of 10); 1 gets 9 of its 15 tokens, then the last 6 in the decode call."""
    c = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=1, num_blocks=1000)
    r = requests_of([0, 50], [10, 15], [5, 1], [5, 1])
    state = run_tgi(c, tgi(True), r, flat())
    assert state.outcome.admitted_ps.tolist() == [0, 100]
    assert state.outcome.first_ps.tolist() == [100, 300]
    assert state.outcome.last_ps.tolist() == [500, 300]


def test_tgi_v2_prefills_alone_once_enough_wait_or_enough_decodes_passed() -> None:
    """Four decode, so two must wait (floor of 4 x 0.5) or three calls pass since the last prefill."""
    c = engines.config(max_num_seqs=8, max_num_batched_tokens=4096, block_size=1, num_blocks=1000)
    lone = requests_of([0, 0, 0, 0, 50], [2] * 5, [9] * 5, [9] * 5)
    state = run_tgi(c, tgi(False, waiting=3, ratio=0.5), lone, flat())
    assert state.outcome.admitted_ps.tolist() == [0, 0, 0, 0, 300]  # prefill, two decodes: three calls
    assert state.outcome.first_ps[4] == 400
    assert state.outcome.last_ps.tolist()[:4] == [1000] * 4  # 9 tokens in 9 calls, and one stalled
    pair = requests_of([0, 0, 0, 0, 50, 50], [2] * 6, [9] * 6, [9] * 6)
    state = run_tgi(c, tgi(False, prefill=20, waiting=3, ratio=0.5), pair, flat())
    assert state.outcome.admitted_ps.tolist() == [0, 0, 0, 0, 100, 100]


def test_tgi_reserves_the_whole_life_and_refuses_the_crowd() -> None:
    """Ten tokens: one request takes 4 + 5 - 1 = 8 for life. With two in the system the third is turned away."""
    c = engines.config(max_num_seqs=2, max_num_batched_tokens=4096, block_size=1, num_blocks=10, max_num_queued_reqs=2)
    r = requests_of([0, 0, 20], [4, 4, 4], [2, 1, 1], [5, 5, 5])
    state = run_tgi(c, tgi(True), r, flat())
    assert state.outcome.admitted_ps.tolist() == [0, 200, NEVER]
    assert state.outcome.replica.tolist() == [0, 0, REFUSED]
