"""SGLang, TensorRT-LLM and TGI: the kernels against their naive twins, and cases worked by hand."""

from typing import Any

import engines
import numpy as np
import pytest
from naive.batches import Request, Twin
from naive.sglang import Sglang
from naive.tgi import Tgi
from naive.trtllm import Trtllm

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


def run_sglang(c: Config, o: SglangOptions, r: Requests, t: StepTimes, events: int = 1 << 20) -> State:
    state, own = new_state(c, len(r.arrival_ps)), new_sglang(c, o)
    while advance_sglang(c, o, r, t, state, own, events):
        pass
    return state


def run_trtllm(c: Config, o: TrtllmOptions, r: Requests, t: StepTimes, events: int = 1 << 20) -> State:
    state = new_state(c, len(r.arrival_ps))
    while advance_trtllm(c, o, r, t, state, events):
        pass
    return state


def run_tgi(c: Config, o: TgiOptions, r: Requests, t: StepTimes, events: int = 1 << 20) -> State:
    state, own = new_state(c, len(r.arrival_ps)), new_tgi(c)
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
    c = engines.config(max_num_seqs=slots, max_num_batched_tokens=table, block_size=page, num_blocks=blocks)
    options = TgiOptions(int(chunks), prefill, max_waiting, ratio, slots)
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
    for seed in range(block * 250, block * 250 + 250):
        c, options, r, times, twin = case(seed)  # type: ignore[operator]
        twins = twins_of(r)
        twin.run(twins)
        state = run(c, options, r, times)  # type: ignore[operator]
        assert_equal(state, twin, twins, c, seed)
        preempted += sum(x.preemptions for x in twins)
        refused += sum(x.refused for x in twins)
    assert (refused > 0) if engine == "tgi" else (preempted > 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_cutting_the_run_into_calls_changes_nothing(engine: str) -> None:
    case, run = ENGINES[engine]
    for seed in range(40):
        c, options, r, times, _ = case(seed)  # type: ignore[operator]
        whole, cut = (run(c, options, r, times, n) for n in (1 << 20, 1))  # type: ignore[operator]
        for one, other in zip(whole.outcome + whole.meters, cut.outcome + cut.meters, strict=True):
            assert (one == other).all()
