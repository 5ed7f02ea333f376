"""What articles claim of serving engines, tested as claims: chunked prefill and the ITL tail, preemption against
rejection, paged against contiguous KV memory. (Continuous against static batching: ``kernels/test_static`` of the unit
tests, and invariant 14.)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from engine_cases import ceil_div, deployment, events, running
from engines import config, linear_law, requests, run_general, twin_config
from naive.vllm import Engine, Request

from replay.kernels.state import (
    BUSY,
    FINISHED,
    FREE_BLOCKS,
    PREEMPTIONS,
    RUNNING_REQUESTS,
    SCHEDULED_TOKENS,
    Config,
    Requests,
)
from replay.results import ReplayResult
from replay.simulate import simulate
from replay.workload import Workload

PS_PER_MS = 10**9


# --- chunked prefill -----------------------------------------------------------------------------------------------


def chats_among_long_prompts() -> Workload:
    """A minute of chats with a prompt of 16,000 tokens every two seconds."""
    rng = np.random.default_rng(31)
    chats = np.sort(rng.integers(0, 60_000, 180)) * PS_PER_MS
    long = (np.arange(30) * 2000 + 300) * PS_PER_MS
    arrival = np.concatenate([chats, long])
    order = np.argsort(arrival, kind="stable")
    prompt = np.concatenate([rng.integers(50, 400, 180), np.full(30, 16_000)])
    output = np.concatenate([rng.integers(100, 400, 180), np.full(30, 20)])
    return Workload(arrival[order], prompt[order], output[order], 60.0)


def chat_run(**knobs: object) -> ReplayResult:
    d = deployment(max_model_len=20_000, max_num_seqs=256, async_scheduling=False, **knobs)
    return simulate(chats_among_long_prompts(), d)


def test_chunked_prefill_cuts_the_tail_of_itl_and_pays_in_ttft_of_long_prompts() -> None:
    whole = chat_run(enable_chunked_prefill=False)
    chunked = chat_run(max_num_batched_tokens=512)
    for result in (whole, chunked):
        assert result.finished == 210
        assert result.preemptions == 0
    tails = [result.itl.percentile(99.5) for result in (whole, chunked)]
    longest = [result.itl.max_s for result in (whole, chunked)]
    assert tails[0] is not None
    assert tails[1] is not None
    assert longest[0] is not None
    assert longest[1] is not None
    assert tails[0] > 10 * tails[1], "decodes no longer wait for whole prompts"
    assert longest[0] > 10 * longest[1]
    median = [result.itl.percentile(50) for result in (whole, chunked)]
    assert median[0] == pytest.approx(median[1], rel=0.15), "a typical gap is the same"
    long = chats_among_long_prompts().prompt_tokens == 16_000
    assert chunked.ttft_s[long].mean() > 1.2 * whole.ttft_s[long].mean(), "and the long prompt pays"


def test_the_smaller_the_chunk_the_shorter_the_longest_gap() -> None:
    longest = [chat_run(max_num_batched_tokens=budget).itl.max_s for budget in (512, 1024, 2048, 4096, 8192)]
    assert longest == sorted(longest, key=lambda gap: gap or 0.0)


# --- preemption against rejection ----------------------------------------------------------------------------------


class Rejecting(Engine):
    """The naive engine with the other answer to full memory: who finds none is dropped, with all its work."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type] # the parent's own
        self.rejected: list[Request] = []

    def preempt(self, r: Request) -> None:
        super().preempt(r)
        self.waiting.remove(r)
        self.rejected.append(r)

    def arrivals(self, now: int) -> None:
        super().arrivals(now)
        for r in [r for r in self.waiting if ceil_div(r.P, self.c.bs) > len(self.pool.free)]:
            self.waiting.remove(r)
            self.rejected.append(r)


def test_preemption_serves_everyone_where_rejection_turns_requests_away() -> None:
    rng, n = np.random.default_rng(32), 150
    c = config(max_num_seqs=32, max_num_batched_tokens=256, block_size=16, num_blocks=60)
    arrival = np.cumsum(rng.exponential(1000, n)).astype(int).tolist()
    prompt, output = rng.integers(10, 120, n).tolist(), rng.integers(10, 150, n).tolist()
    cost = (100, 1, 0, 0, 20)
    rows = list(zip(range(n), arrival, prompt, output, strict=True))
    outcome, meters = run_general(c, requests(arrival, prompt, output), linear_law(256, 100, 1, 20))
    rejecting = Rejecting(twin_config(c, cost), [Request(*row) for row in rows])
    rejecting.run()
    preemptions = int(meters.regs[0, PREEMPTIONS])
    assert preemptions > 20, "memory must be short"
    assert (outcome.generated == output).all(), "preempted, but served in full"
    turned_away = {r.index for r in rejecting.rejected}
    assert 0.1 * n < len(turned_away) < 0.9 * n
    assert sum(r.gen for r in rejecting.rejected) > 0, "and some after they had begun to stream"
    served = np.array([i not in turned_away for i in range(n)])
    kept = np.array([r.last for r in rejecting.requests])
    # The price of serving all: those whom rejection would have kept wait longer.
    assert (outcome.last_ps - arrival)[served].mean() > (kept - arrival)[served].mean()
    # And what is computed again after preemptions is no small matter, but less than half of the work.
    needed = sum(prompt) + sum(output) - n
    assert int(meters.regs[0, SCHEDULED_TOKENS]) - needed < 0.5 * needed


# --- paged against contiguous KV memory ----------------------------------------------------------------------------

MAX_MODEL_LEN = 2048
POOL_TOKENS = 64 * MAX_MODEL_LEN


@dataclass
class Memory:
    """Time-weighted figures of a run. ``waste``: the share of reserved KV memory that holds no token."""

    waste: float
    batch: float
    tokens_per_s: float


def crowd(n: int = 1200) -> Requests:
    """More chats than any memory takes at once: prompt and output vary as in conversations, up to 2048 tokens."""
    rng = np.random.default_rng(33)
    prompt = np.clip(rng.lognormal(5.6, 0.8, n), 8, 1024).astype(int)
    output = np.clip(rng.lognormal(5.4, 0.8, n), 8, 1024).astype(int)
    return requests([0] * n, prompt.tolist(), output.tolist())


def memory_under(block_size: int) -> Memory:
    """A pool of 64 full-length requests in blocks of ``block_size`` tokens, always short of memory.

    Blocks of ``MAX_MODEL_LEN`` tokens are the contiguous policy: a request reserves its longest possible length at
    admission, whole, and keeps it to its end.
    """
    c: Config = config(
        max_num_seqs=1024,
        max_num_batched_tokens=2048,
        block_size=block_size,
        num_blocks=POOL_TOKENS // block_size,
        max_model_len=MAX_MODEL_LEN,
    )
    r, stored, reserved = crowd(), 0.0, 0.0
    law = linear_law(2048, floor=8000, per_token=20, constant=1000)
    tokens, blocks, until, full = 0, 0, 0, True
    for now, state in events(c, r, law):
        reg = state.meters.regs[0]
        if full:
            stored += tokens * (now - until)
            reserved += blocks * block_size * (now - until)
        tokens = int(state.slots.computed[running(state)].sum())
        blocks = c.num_blocks - int(reg[FREE_BLOCKS])
        until = now
        full = int(state.meters.cluster[FINISHED]) < len(r.arrival_ps) // 2  # while the queue presses
    busy = float(state.meters.meters[0, BUSY])
    return Memory(
        waste=1 - stored / reserved,
        batch=float(state.meters.meters[0, RUNNING_REQUESTS]) / busy,
        tokens_per_s=float(r.output_tokens.sum()) / busy * 1e12,
    )


def test_paging_turns_most_of_the_waste_into_a_larger_batch() -> None:
    contiguous, paged = memory_under(MAX_MODEL_LEN), memory_under(16)
    assert 0.65 < contiguous.waste < 0.85, "articles say about 70 %"
    assert paged.waste < 0.04
    assert contiguous.batch <= 64
    assert paged.batch > 2.5 * contiguous.batch
    assert paged.tokens_per_s > 1.5 * contiguous.tokens_per_s


def test_waste_falls_with_the_block_size() -> None:
    waste = [memory_under(block_size).waste for block_size in (16, 64, 256, 2048)]
    assert waste == sorted(waste)
    assert waste[0] < waste[-1] / 10
