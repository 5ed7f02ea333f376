"""Invariants of engine semantics 8.1 about KV memory and prefix caching; see ``test_engine_invariants``."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import (
    KINDS,
    POLICIES,
    case_of,
    ceil_div,
    deployment,
    events,
    in_steps,
    rng_of,
    running,
    wide_case,
    with_ids,
)
from engines import config, linear_law, requests, run_general

from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.kv import attention_token_bytes
from replay.hardware.memory import size_memory
from replay.kernels.state import (
    FREE_BLOCKS,
    HIT_TOKENS,
    MAX_USED_BLOCKS,
    PREEMPTIONS,
    PRIORITY,
    QUERIED_TOKENS,
    SCHEDULED_TOKENS,
    Config,
)
from replay.simulate import simulate
from replay.workload import PrefixBlocks, Workload


@pytest.mark.parametrize("kind", POLICIES)
def test_12_memory_for_everything_is_never_felt(kind: str) -> None:
    rng = rng_of(12, POLICIES.index(kind))
    for _ in range(60):
        c, r, law = case_of(rng, kind)
        enough = int((-(-(r.prompt_tokens + r.output_tokens) // c.block_size)).sum()) + c.watermark_blocks
        outcome, meters = run_general(c._replace(num_blocks=enough), r, law)
        assert meters.regs[0, PREEMPTIONS] == 0
        more, _ = run_general(c._replace(num_blocks=1 << 40), r, law)
        for one, other in zip(outcome, more, strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_16_preemption_takes_the_last_and_admits_nobody(kind: str) -> None:
    rng, seen = rng_of(16, KINDS.index(kind)), 0
    for _ in range(80):
        c, r, law = case_of(rng, kind)
        c = in_steps(c)
        order: list[int] = []
        progress: dict[int, int] = {}
        preempted = np.zeros(len(r.arrival_ps), np.int64)
        for _, state in events(c, r, law):
            slots = state.slots
            now = [int(slots.request[s]) for s in running(state)]
            done = {int(slots.request[s]): int(slots.computed[s]) for s in running(state)}
            victims = set(np.flatnonzero(state.outcome.preemptions > preempted).tolist())
            if victims:
                seen += 1
                unfinished = [x for x in order if x in now or x in victims]
                assert set(now) <= set(order), "nobody is admitted"
                if c.priority_policy == PRIORITY:
                    key = [(int(r.priority[x]), x) for x in range(len(r.arrival_ps))]
                    assert max((key[x] for x in now), default=(-1, -1)) < min(key[x] for x in victims)
                else:
                    assert now == unfinished[: len(now)], "the last of the running list go"
                    assert done[now[0]] > progress[now[0]], "the head goes on"
            order, progress, preempted = now, done, state.outcome.preemptions.copy()
        assert np.array_equal(state.outcome.generated, r.output_tokens), "no token is lost or given twice"
    assert seen > 100


def test_16_who_resumes_prefills_its_prompt_and_all_it_generated() -> None:
    c = config(max_num_seqs=2, max_num_batched_tokens=100, block_size=1, num_blocks=12)
    r, law = requests([0, 1], [4, 4], [6, 6]), linear_law(100, constant=10)
    again = []
    for _, state in events(c, r, law):
        if state.outcome.preemptions[1] and state.outcome.generated[1] < 6:
            again += [int(state.slots.computed[s]) for s in running(state) if state.slots.request[s] == 1]
    generated_then = int(again[0]) - 4
    assert generated_then > 0
    assert state.outcome.preemptions.tolist() == [0, 1]
    assert state.meters.regs[0, SCHEDULED_TOKENS] == 2 * 9 + 4 + generated_then - 1


def test_17_a_pool_of_just_its_blocks_serves_a_request() -> None:
    rng = rng_of(17)
    for _ in range(60):
        c, r, law = wide_case(rng)
        alone = r._replace(**{name: getattr(r, name)[:1].copy() for name in r._fields[:3]})
        blocks = ceil_div(int(alone.prompt_tokens[0] + alone.output_tokens[0] - 1), c.block_size)
        outcome, meters = run_general(c._replace(num_blocks=blocks), alone, law)
        assert outcome.generated[0] == alone.output_tokens[0]
        assert meters.regs[0, PREEMPTIONS] == 0
        assert meters.regs[0, MAX_USED_BLOCKS] == blocks


def test_17_what_can_never_fit_is_rejected_and_the_rest_is_served() -> None:
    d = deployment(num_gpu_blocks_override=65)  # 64 usable blocks of 16 tokens
    load = Workload(np.arange(4), np.array([1000, 1000, 5000, 10]), np.array([25, 26, 1, 10]), 1.0)
    result = simulate(load, d)
    assert result.rejected == {"too_large_for_kv": 2}
    assert result.requests.status.tolist() == [0, 2, 2, 0]
    assert result.finished == 2


# --- prefix caching ------------------------------------------------------------------------------------------------


def caching(block_size: int, num_blocks: int, longest: int, **changes: int) -> Config:
    return config(
        prefix_caching=1,
        block_size=block_size,
        prefix_block_tokens=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=longest,
        table_width=longest // block_size + 2,
        **changes,
    )


def test_18_a_repeated_prompt_hits_all_full_blocks_but_leaves_a_token_to_compute() -> None:
    for block_size in (1, 4, 16):
        for prompt in (1, 15, 16, 17, 32, 47):
            ids = list(range(ceil_div(prompt, block_size)))
            r = with_ids(requests([0, 10**6], [prompt] * 2, [1] * 2), [ids, ids])
            outcome, _ = run_general(caching(block_size, 100, 64), r, linear_law(64, constant=10))
            assert outcome.hit_tokens.tolist() == [0, (prompt - 1) // block_size * block_size]


def test_18_the_tail_of_a_prompt_is_evicted_before_its_head() -> None:
    # Eight blocks. The first request fills five and starts a sixth; the second takes that one, two never used, and the
    # last two full ones; the third finds the first three.
    own, other = [0, 1, 2, 3, 4], [10, 11, 12, 13, 14]
    r = with_ids(requests([0, 1000, 2000], [21, 20, 21], [1, 1, 1]), [own, other, own])
    outcome, _ = run_general(caching(4, 8, 64), r, linear_law(64, constant=10))
    assert outcome.hit_tokens.tolist() == [0, 0, 12]


def test_18_an_endless_pool_reaches_the_ideal_hit_rate() -> None:
    rng = rng_of(18)
    for _ in range(40):
        n, block_size = int(rng.integers(2, 30)), int(rng.choice([1, 4, 16]))
        prompt = rng.integers(1, 100, n)
        chained: dict[tuple[int, ...], int] = {}
        rows = []
        for length in (prompt // block_size).tolist():  # full blocks: a part of one is never cached
            text = tuple((rng.random(length) < 0.2).astype(int).tolist())
            rows.append([chained.setdefault(text[: i + 1], len(chained)) for i in range(length)])
        r = with_ids(requests((np.arange(n) * 10**6).tolist(), prompt.tolist(), rng.integers(1, 9, n).tolist()), rows)
        outcome, meters = run_general(caching(block_size, 10_000, 110), r, linear_law(110, constant=10))
        ideal = PrefixBlocks(r.prefix_start, r.prefix_ids, block_size).reusable_tokens
        expected = np.minimum(ideal, (prompt - 1) // block_size * block_size)
        assert outcome.hit_tokens.tolist() == expected.tolist()
        assert meters.regs[0, QUERIED_TOKENS] == prompt.sum()


def test_18_hits_stay_below_what_was_looked_up_and_cached_blocks_count_as_free() -> None:
    rng = rng_of(18, 1)
    for _ in range(100):
        c, r, law = case_of(rng, "caching")
        _, meters = run_general(c, r, law)
        assert 0 <= meters.regs[0, HIT_TOKENS] < meters.regs[0, QUERIED_TOKENS]
        assert meters.regs[0, FREE_BLOCKS] == c.num_blocks


def test_19_caching_without_pressure_saves_exactly_its_hits_and_nothing_where_all_is_distinct() -> None:
    rng = rng_of(19)
    for _ in range(80):
        c, r, law = case_of(rng, "caching")
        c = c._replace(num_blocks=4000)
        cached, with_cache = run_general(c, r, law)
        plain, without = run_general(c._replace(prefix_caching=0), r, law)
        assert with_cache.regs[0, PREEMPTIONS] == 0
        assert with_cache.regs[0, SCHEDULED_TOKENS] == without.regs[0, SCHEDULED_TOKENS] - cached.hit_tokens.sum()
        apart = r._replace(prefix_ids=np.arange(len(r.prefix_ids)))
        distinct, _ = run_general(c, apart, law)
        for name in ("admitted_ps", "first_ps", "last_ps"):
            assert np.array_equal(getattr(distinct, name), getattr(plain, name))


# --- memory model ---


def test_31_tensor_parallelism_halves_the_cache_until_its_heads_run_out() -> None:
    catalogue = shipped_catalogue()
    llama = catalogue.model("meta-llama/Llama-3.1-70B")
    per_rank = [attention_token_bytes(llama, tp, "bf16") for tp in (1, 2, 4, 8, 16, 32)]
    assert llama.num_key_value_heads == 8
    assert [per_rank[0] // x for x in per_rank] == [1, 2, 4, 8, 8, 8]
    deepseek = catalogue.model("deepseek-ai/DeepSeek-V3")
    assert {attention_token_bytes(deepseek, tp, "bf16") for tp in (1, 2, 4, 8, 16)} == {1152}


def test_31_heavier_weights_never_leave_more_blocks() -> None:
    catalogue = shipped_catalogue()
    for key in ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-14B", "google/gemma-3-12b-it"):
        plans = [
            size_memory(
                catalogue.model(key), catalogue.gpu("H100-SXM"), tp=1, engine_version="vllm-0.33", max_num_seqs=256,
                max_num_batched_tokens=2048, gpu_memory_utilization=0.9, max_model_len=4096, weight_dtype=dtype,
            )
            for dtype in ("int4", "fp8", "bf16")
        ]  # fmt: skip
        weights, blocks = [p.weights_gib for p in plans], [p.kv_blocks for p in plans]
        assert weights == sorted(weights)
        assert blocks == sorted(blocks, reverse=True)
        assert blocks[0] > blocks[-1]
