"""Prefill and decode pools: the kernel against the naive twin, any cut into calls, and what must hold whatever it
does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from engines import cases, config, law_of, linear_law, random_case, requests, twin_config, twin_requests
from naive.disaggregated import Pools as Twin

from replay.kernels.disaggregated import (
    SHORT,
    Handover,
    Pool,
    TransferOptions,
    advance_disaggregated,
    new_handover,
)
from replay.kernels.state import (
    FREE_BLOCKS,
    LEAST_KV_USAGE,
    LEAST_OUTSTANDING,
    LEAST_OUTSTANDING_TOKENS,
    LOOKUPS,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    PREEMPTIONS,
    ROUND_ROBIN,
    RUNNING,
    SCHEDULED_TOKENS,
    STEPS,
    VLLM_DP,
    WAITING,
    Config,
    Int64,
    Requests,
    StepTimes,
    bucket_count,
    new_state,
)

ROUTERS = {
    "round_robin": ROUND_ROBIN,
    "least_outstanding": LEAST_OUTSTANDING,
    "least_outstanding_tokens": LEAST_OUTSTANDING_TOKENS,
    "least_kv_usage": LEAST_KV_USAGE,
    "vllm_dp": VLLM_DP,
}
NOBODY = np.zeros(0, np.int32)
FREE = TransferOptions(block_ps=0, latency_ps=0, first_token_from_prefill=1, skips_prefill=0)


class Run(NamedTuple):
    prefill: Pool
    decode: Pool
    handover: Handover

    @property
    def first_ps(self) -> Int64:
        return self.prefill.state.outcome.first_ps


def pool(c: Config, r: Requests, t: StepTimes) -> Pool:
    state = new_state(c, len(r.arrival_ps))
    return Pool(c, r, t, state, NOBODY, bucket_count(c.num_blocks) - 1)


def run_pools(
    prefill: tuple[Config, StepTimes],
    decode: tuple[Config, StepTimes],
    r: Requests,
    options: TransferOptions = FREE,
    sizes: tuple[int, ...] = (1 << 20,),
    entries: int = 1 << 14,
) -> Run:
    """The kernel to its end, in calls of the given sizes over and over."""
    plain = r._replace(prefix_start=np.zeros(0, np.int64), prefix_ids=np.zeros(0, np.int64))
    pools = (
        pool(prefill[0], r._replace(output_tokens=np.ones_like(r.output_tokens)), prefill[1]),
        pool(decode[0], plain, decode[1]),
    )
    handover = new_handover(len(r.arrival_ps), prefill[0], decode[0], entries)
    call = 0
    while advance_disaggregated(options, *pools, handover, sizes[call % len(sizes)]):
        call += 1
    return Run(*pools, handover)


class Case(NamedTuple):
    prefill: Config
    decode: Config
    requests: Requests
    costs: tuple[tuple, tuple]
    options: TransferOptions
    routers: tuple[str, str]

    def run(self, sizes: tuple[int, ...] = (1 << 20,)) -> Run:
        laws = law_of(self.prefill, self.costs[0]), law_of(self.decode, self.costs[1])
        return run_pools((self.prefill, laws[0]), (self.decode, laws[1]), self.requests, self.options, sizes)

    def twin(self) -> Twin:
        one = self.requests._replace(output_tokens=np.ones_like(self.requests.output_tokens))
        twin = Twin(
            (
                twin_config(self.prefill, self.costs[0]),
                twin_requests(self.prefill, one),
                self.prefill.replicas,
                self.routers[0],
            ),
            (
                twin_config(self.decode, self.costs[1]),
                twin_requests(self.decode, self.requests),
                self.decode.replicas,
                self.routers[1],
            ),
            self.options.block_ps,
            self.options.latency_ps,
            bool(self.options.first_token_from_prefill),
        )
        twin.run()
        return twin


def with_prefixes(rng: np.random.Generator, c: Config, r: Requests) -> tuple[Config, Requests]:
    """The same with prompts that share leading blocks of three streams."""
    starts, ids = [0], list[int]()
    for prompt in r.prompt_tokens.tolist():
        stream, shared = int(rng.integers(3)), int(rng.integers(0, prompt // c.block_size + 1))
        ids += [stream * 1000 + i for i in range(shared)]
        starts.append(len(ids))
    longest = int((r.prompt_tokens + r.output_tokens).max())
    c = c._replace(prefix_caching=1, table_width=longest // c.block_size + 2, prefix_block_tokens=c.block_size)
    return c, r._replace(prefix_start=np.array(starts, np.int64), prefix_ids=np.array(ids, np.int64))


def random_pools(rng: np.random.Generator, caching: bool) -> Case:
    """A small run of pools that differ in everything: tiny memory, few slots, ties, slow and free transfers.

    Steps take time: a prompt that finds its memory kept for transfers is begun again and again until one has ended.
    """
    prefill, r, cost = random_case(rng, threshold=True)
    decode, _, other_cost = random_case(rng, threshold=True)
    cost = (*cost[:4], 100 + cost[4])
    other_cost = (*other_cost[:2], int(rng.choice([0, 1, 5])), *other_cost[3:])
    whole = int(np.max(-(-(r.prompt_tokens + r.output_tokens - 1) // decode.block_size)))
    routers = [str(rng.choice(list(ROUTERS))) for _ in range(2)]
    prefill = prefill._replace(
        replicas=int(rng.integers(1, 4)),
        router=ROUTERS[routers[0]],
        num_blocks=int(np.max(-(-r.prompt_tokens // prefill.block_size))) + int(rng.choice([0, 1, 3, 20, 1000])),
    )
    decode = decode._replace(
        replicas=int(rng.integers(1, 4)),
        router=ROUTERS[routers[1]],
        num_blocks=whole + int(rng.choice([0, 1, 3, 20, 1000])),
    )
    if caching:
        prefill, r = with_prefixes(rng, prefill, r)
    options = TransferOptions(
        block_ps=int(rng.choice([0, 1, 50, 1000])),
        latency_ps=int(rng.choice([0, 0, 7, 500])),
        first_token_from_prefill=int(rng.integers(2)),
        skips_prefill=0,
    )
    return Case(prefill, decode, r, (cost, other_cost), options, (routers[0], routers[1]))


@pytest.mark.parametrize("caching", [False, True], ids=["plain", "caching"])
def test_kernel_is_the_twin(caching: bool) -> None:
    rng = np.random.default_rng((11, caching))
    preempted, lost, waited, hits = 0, 0, 0, 0
    for number in range(cases(150)):
        case = random_pools(rng, caching)
        run, twin = case.run(), case.twin()
        where = f"case {number}: {case}"
        prompts, decodes = run.prefill.state.outcome, run.decode.state.outcome
        assert prompts.first_ps.tolist() == [r.first for r in twin.prompts], where
        assert prompts.admitted_ps.tolist() == [r.admitted for r in twin.prompts], where
        assert prompts.hit_tokens.tolist() == [r.hits for r in twin.prompts], where
        went_on = decodes.replica >= 0
        theirs = [r for r, on in zip(twin.decodes, went_on.tolist(), strict=True) if on]
        assert decodes.last_ps[went_on].tolist() == [r.last for r in theirs], where
        assert decodes.admitted_ps[went_on].tolist() == [r.admitted for r in theirs], where
        assert decodes.preemptions[went_on].tolist() == [r.preemptions for r in theirs], where
        kv = [twin.kv.get(r.index, -1) for r in theirs]
        assert run.handover.kv_ps[went_on].tolist() == kv, where
        assert np.flatnonzero(run.handover.held < 0).tolist() == sorted(twin.lost), where
        for one, cluster in ((run.prefill, twin.prefill), (run.decode, twin.decode)):
            regs = one.state.meters.regs
            assert regs[:, STEPS].tolist() == [replica.steps for replica in cluster.replicas], where
            assert regs[:, SCHEDULED_TOKENS].tolist() == [replica.scheduled for replica in cluster.replicas], where
            assert (regs[:, FREE_BLOCKS] == one.config.num_blocks).all(), where
            assert not regs[:, [RUNNING, OUTSTANDING, OUTSTANDING_TOKENS]].any(), where
        gaps = sum(len(replica.gaps) for replica in twin.decode.replicas)
        assert int(run.decode.state.meters.gaps.sum()) == gaps, where
        assert not run.prefill.state.meters.gaps.any(), where
        preempted += int(run.decode.state.meters.regs[:, PREEMPTIONS].sum())
        lost += len(twin.lost)
        waited += int((run.handover.kv_ps > prompts.first_ps).sum())
        hits += int(prompts.hit_tokens.sum())
    assert min(preempted, waited) > cases(100), "the cases must press on memory and links"
    assert lost > 0 or cases(150) < 150, "it takes all the cases to lose a request"
    assert hits > 0 or not caching


@pytest.mark.parametrize("caching", [False, True], ids=["plain", "caching"])
def test_cut_into_calls_changes_nothing(caching: bool) -> None:
    rng = np.random.default_rng((12, caching))
    for _ in range(cases(20)):
        case = random_pools(rng, caching)
        whole, cut = case.run(), case.run(sizes=(1, 3, 2))
        for one, same in zip((whole.prefill, whole.decode), (cut.prefill, cut.decode), strict=True):
            for name in ("admitted_ps", "first_ps", "last_ps", "replica", "preemptions", "hit_tokens"):
                assert np.array_equal(getattr(one.state.outcome, name), getattr(same.state.outcome, name)), name
            assert np.array_equal(one.state.meters.regs, same.state.meters.regs)
        assert np.array_equal(whole.handover.kv_ps, cut.handover.kv_ps)


PREFILL = config(max_num_seqs=8, max_num_batched_tokens=64, num_blocks=1000)
DECODE = config(max_num_seqs=64, max_num_batched_tokens=64, num_blocks=1000)
PROMPT_LAW = linear_law(64, per_token=100, constant=1000)
DECODE_LAW = linear_law(64, constant=500, context=1)


def test_one_request_by_hand() -> None:
    r = requests([0], [10], [3])
    options = TransferOptions(block_ps=70, latency_ps=30, first_token_from_prefill=1, skips_prefill=0)
    run = run_pools((PREFILL, PROMPT_LAW), (DECODE, DECODE_LAW), r, options)
    first = 1000 + 10 * 100
    kv = first + 3 * 70 + 30  # 10 tokens are 3 blocks of 4
    assert run.first_ps.tolist() == [first]
    assert run.handover.kv_ps.tolist() == [kv]
    assert run.decode.state.outcome.admitted_ps.tolist() == [kv]
    # Two more tokens: the first of them computes token 11 of the context, then 12.
    assert run.decode.state.outcome.last_ps.tolist() == [kv + (500 + 11) + (500 + 12)]


def test_the_decode_side_may_give_the_first_token() -> None:
    r = requests([0], [10], [3])
    options = TransferOptions(block_ps=70, latency_ps=30, first_token_from_prefill=0, skips_prefill=0)
    run = run_pools((PREFILL, PROMPT_LAW), (DECODE, DECODE_LAW), r, options)
    kv = 2000 + 3 * 70 + 30
    assert run.decode.state.outcome.first_ps.tolist() == [kv + 510]
    assert run.decode.state.outcome.last_ps.tolist() == [kv + 510 + 511 + 512]


def test_blocks_stay_with_the_prefill_replica_until_the_transfer_ends() -> None:
    """Its memory holds one prompt: the second waits for the first one's transfer, not for its prefill."""
    r = requests([0, 0], [16, 16], [2, 2])
    options = TransferOptions(block_ps=1000, latency_ps=0, first_token_from_prefill=1, skips_prefill=0)
    tight = PREFILL._replace(num_blocks=4)
    run = run_pools((tight, PROMPT_LAW), (DECODE, DECODE_LAW), r, options)
    prefill = 1000 + 16 * 100
    assert run.first_ps.tolist() == [prefill, prefill + 4000 + prefill]
    ample = run_pools((PREFILL, PROMPT_LAW), (DECODE, DECODE_LAW), r, options)
    assert ample.first_ps.tolist() == [1000 + 32 * 100] * 2


def test_transfers_share_links_in_turn() -> None:
    r = requests([0, 0], [16, 16], [2, 2])
    options = TransferOptions(block_ps=1000, latency_ps=5, first_token_from_prefill=1, skips_prefill=0)
    end = 1000 + 32 * 100
    one_receiver = run_pools((PREFILL, PROMPT_LAW), (DECODE, DECODE_LAW), r, options)
    assert one_receiver.handover.kv_ps.tolist() == [end + 4005, end + 8005]
    two_of_each = run_pools(
        (PREFILL._replace(replicas=2), PROMPT_LAW), (DECODE._replace(replicas=2), DECODE_LAW), r, options
    )
    assert two_of_each.handover.kv_ps.tolist() == [1000 + 16 * 100 + 4005] * 2


def test_free_transfers_leave_ttft_to_the_prefill_pool() -> None:
    """Invariant 28: TTFT is the prefill pool's alone, and no decode step holds a prompt."""
    rng = np.random.default_rng(28)
    for _ in range(20):
        n = 60
        r = requests(
            np.sort(rng.integers(0, 60_000, n)).tolist(), rng.integers(1, 60, n).tolist(), [2] * (n // 2) + [30] * 30
        )
        run = run_pools((PREFILL, PROMPT_LAW), (DECODE._replace(num_blocks=100_000), DECODE_LAW), r)
        alone = r._replace(output_tokens=np.ones_like(r.output_tokens))
        only = run_pools((PREFILL, PROMPT_LAW), (DECODE, DECODE_LAW), alone)
        assert np.array_equal(run.first_ps, only.first_ps)
        regs = run.decode.state.meters.regs
        assert int(regs[0, SCHEDULED_TOKENS]) == int((r.output_tokens - 1).sum()), "one token a request and step"
        assert int(regs[0, PREEMPTIONS]) == 0


def test_single_tokens_end_where_they_are_made() -> None:
    r = requests([0, 0], [8, 8], [1, 1])
    run = run_pools((PREFILL, PROMPT_LAW), (DECODE, DECODE_LAW), r)
    assert run.handover.kv_ps.tolist() == [-1, -1]
    assert run.decode.state.outcome.replica.tolist() == [-1, -1]
    assert int(run.prefill.state.meters.regs[0, FREE_BLOCKS]) == PREFILL.num_blocks


def test_a_run_with_too_few_entries_says_so() -> None:
    rng = np.random.default_rng(3)
    c, r = with_prefixes(rng, PREFILL, requests([0] * 8, [32] * 8, [3] * 8))
    run = run_pools((c, PROMPT_LAW), (DECODE, DECODE_LAW), r, entries=10)
    assert run.handover.scalars[SHORT] == 1


def test_the_decode_pool_alone_needs_no_prefill() -> None:
    r = requests([0, 0, 5], [10, 20, 30], [4, 4, 4])
    options = TransferOptions(block_ps=0, latency_ps=0, first_token_from_prefill=1, skips_prefill=1)
    run = run_pools((PREFILL, PROMPT_LAW), (DECODE, DECODE_LAW), r, options)
    assert run.first_ps.tolist() == [0, 0, 5]
    assert not run.prefill.state.meters.regs[:, STEPS].any()
    assert (run.decode.state.outcome.last_ps > run.first_ps).all()
    assert not run.decode.state.meters.regs[:, WAITING].any()


def test_a_prompt_that_waits_for_blocks_is_not_sought_from_its_start() -> None:
    """The last prompt begins like the first, and waits while the one between is prefilled in 125 chunks."""
    c = config(prefix_caching=1, table_width=600, num_blocks=610, prefix_block_tokens=4)
    r = requests([0, 20_000, 20_001], [400, 2000, 444], [2, 2, 2])
    start, ids = np.array([0, 100, 100, 200], np.int64), np.tile(np.arange(100, dtype=np.int64), 2)
    run = run_pools(
        (c, PROMPT_LAW), (DECODE._replace(num_blocks=1000), DECODE_LAW), r._replace(prefix_start=start, prefix_ids=ids)
    )
    outcome, reg = run.prefill.state.outcome, run.prefill.state.meters.regs[0]
    assert outcome.hit_tokens[2] > 0
    assert outcome.admitted_ps[2] >= outcome.last_ps[1]
    assert reg[STEPS] > 150
    assert reg[LOOKUPS] < 4 * 100 + reg[STEPS]
