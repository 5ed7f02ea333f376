"""Followers, queue limits, clients that give up and replicas that come and go: against the naive twin, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from engines import SEED, cases, config, law_of, linear_law, random_case, requests, twin_config, twin_requests
from naive.cluster_life import Life, LivingCluster

from replay.kernels.arrivals import prepare_arrivals
from replay.kernels.engine import advance
from replay.kernels.loglinear import bin_of
from replay.kernels.outages import prepare_changes
from replay.kernels.state import (
    BUSY,
    DEALT,
    DOWN,
    FAR,
    FREE_BLOCKS,
    FREE_SLOTS,
    GAP_BINS,
    GAP_BITS,
    GAVE_UP,
    GONE,
    HELD,
    LEAST_KV_USAGE,
    LEAST_OUTSTANDING,
    LEAST_OUTSTANDING_TOKENS,
    LOST_GAPS,
    LOST_GAPS_PS,
    NEVER,
    OUTSTANDING,
    OUTSTANDING_TOKENS,
    POWER_OF_TWO,
    PREFILLING_TOKENS,
    PREFIX_AWARE,
    PRIORITY,
    REFUSED,
    REFUSED_TOKENS,
    ROUND_ROBIN,
    RUNNING,
    SCHEDULED_TOKENS,
    SHORTEST,
    STEPS,
    VLLM_DP,
    WAITING,
    Config,
    Requests,
    State,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.routing import draw_pairs, prepare_routing

Down = list[tuple[int, int, int]]
ROUTERS = {
    "round_robin": ROUND_ROBIN,
    "dealt": DEALT,
    "least_outstanding": LEAST_OUTSTANDING,
    "least_outstanding_tokens": LEAST_OUTSTANDING_TOKENS,
    "least_kv_usage": LEAST_KV_USAGE,
    "power_of_two": POWER_OF_TWO,
    "vllm_dp": VLLM_DP,
    "prefix_aware": PREFIX_AWARE,
}
STATUS = {REFUSED: "refused", REFUSED_TOKENS: "refused_tokens", GAVE_UP: "gave_up", HELD: "held", NEVER: "open"}


def pairs_of(c: Config, n: int) -> np.ndarray:
    drawn = draw_pairs(n, c.replicas, SEED)
    return np.stack([drawn[:, 0], drawn[:, 0]], axis=1) if c.router == DEALT else drawn


def run_life(c: Config, r: Requests, t: StepTimes, down: Down = [], events: int = 1 << 20) -> State:  # noqa: B006
    n = len(r.arrival_ps)
    state = new_state(c, n)
    routing = prepare_routing(c, r, state.meters.regs, SEED)
    if c.router == DEALT:
        routing = routing._replace(pair=pairs_of(c, n))
    state = state._replace(
        routing=routing, arrivals=prepare_arrivals(c, r), changes=prepare_changes(down, state.meters.regs)
    )
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, events):
        pass
    return state


def run_twin(c: Config, r: Requests, cost: tuple, router: str, down: Down) -> LivingCluster:
    n = len(r.arrival_ps)
    changes = [(start, 1, k) for k, start, _ in down if start > 0] + [(end, 0, k) for k, _, end in down if end < FAR]
    blocks = None
    if c.prefix_caching:
        blocks = [r.prefix_ids[r.prefix_start[i] : r.prefix_start[i + 1]].tolist() for i in range(n)]
    life = Life(
        after=r.after.tolist() if len(r.after) else [-1] * n,
        delay=r.delay_ps.tolist() if len(r.after) else [0] * n,
        most_requests=c.max_num_queued_reqs,
        most_prompt_tokens=c.max_num_queued_tokens,
        patience=[NEVER if p == FAR else int(p) for p in r.patience_ps],
        changes=sorted(changes),
        down={k for k, start, _ in down if start == 0},
    )
    twin = LivingCluster(
        twin_config(c, cost),
        twin_requests(c, r),
        c.replicas,
        router,
        life,
        age=c.router_snapshot_ps,
        pairs=[(int(a), int(b)) for a, b in pairs_of(c, n)],
        blocks=blocks,
        block_tokens=c.prefix_block_tokens,
    )
    twin.run()
    return twin


def with_patience(c: Config, r: Requests, patience_ps: list[int] | np.ndarray) -> tuple[Config, Requests]:
    return c._replace(clients_leave=1), r._replace(patience_ps=np.array(patience_ps, np.int64))


def drawn_patience(rng: np.random.Generator, n: int) -> np.ndarray:
    """One for all, or one each, some endless: what all wait and what each waits, whichever ends first."""
    all_wait = int(rng.choice([1, 10, 300, 2000, 20_000, FAR]))
    each = rng.choice([1, 10, 50, 300, 301, 2000, 20_000, FAR], n) if rng.random() < 0.7 else np.full(n, all_wait)
    return np.minimum(each, all_wait)


def draw(rng: np.random.Generator, router: str, *, closed: bool, limits: bool, timeout: bool, failures: bool) -> tuple:
    """A small cluster under any of the four, with ties and free steps."""
    c, r, cost = random_case(rng, threshold=rng.random() < 0.3, order=SHORTEST if rng.random() < 0.2 else 0)
    n = len(r.arrival_ps)
    span = int(r.arrival_ps.max()) + int(max(cost)) * 20 + 10
    c = c._replace(
        replicas=int(rng.integers(1, 5)),
        router=ROUTERS[router],
        router_snapshot_ps=0 if router in ("round_robin", "dealt") else int(rng.choice([0, 0, 1, max(1, span // 7)])),
    )
    if router == "prefix_aware" or rng.random() < 0.3:
        longest = int((r.prompt_tokens + r.output_tokens).max())
        c = c._replace(prefix_caching=1, prefix_block_tokens=c.block_size, table_width=longest // c.block_size + 2)
        shared = np.minimum(rng.integers(0, 60, n), r.prompt_tokens) // c.block_size
        ids = [int(s) * 1000 + np.arange(k) for s, k in zip(rng.integers(0, 4, n), shared, strict=True)]
        start = np.concatenate([[0], np.cumsum(shared)]).astype(np.int64)
        r = r._replace(prefix_start=start, prefix_ids=np.concatenate(ids).astype(np.int64))
    if closed:
        after = [int(rng.integers(-1, i)) if i and rng.random() < 0.7 else -1 for i in range(n)]
        delay = rng.choice([0, 0, 1, 50, 1000], n)
        r = r._replace(after=np.array(after, np.int64), delay_ps=delay.astype(np.int64))
    if limits:
        c = c._replace(
            max_num_queued_reqs=int(rng.choice([NEVER, 0, 1, 3, 10])),
            max_num_queued_tokens=int(rng.choice([NEVER, NEVER, 0, 5, 60])),
        )
    if timeout:
        c, r = with_patience(c, r, drawn_patience(rng, n))
    down: Down = []
    if failures:
        c = c._replace(replicas_may_be_down=1)
        for k in range(c.replicas):
            at = 0
            for _ in range(int(rng.integers(0, 4))):
                start = at + int(rng.integers(0, max(2, span // 2))) * int(rng.integers(0, 2))
                end = FAR if rng.random() < 0.1 else start + int(rng.integers(1, max(2, span // 3)))
                if at and start == at:
                    start += 1
                down.append((k, start, max(end, start + 1)))
                at = end
                if end == FAR:
                    break
    return c, r, cost, down


def assert_twin_agrees(c: Config, r: Requests, state: State, twin: LivingCluster, case: object) -> list[str]:
    outcome, regs = state.outcome, state.meters.regs
    status = [STATUS.get(int(k), "finished") for k in outcome.replica]
    assert status == twin.status, case
    sent = state.arrivals.sent_ps if len(r.after) else r.arrival_ps
    assert sent.tolist() == [twin.sent.get(i, NEVER) for i in range(len(sent))], case
    served = [i for i, name in enumerate(status) if name == "finished"]
    for i in served:
        x = twin.requests[i]
        row = (outcome.replica[i], outcome.admitted_ps[i], outcome.first_ps[i], outcome.last_ps[i])
        assert row == (twin.at[i], x.admitted, x.first, x.last), case
        assert (outcome.preemptions[i], outcome.generated[i]) == (x.preemptions, x.gen), case
    replicas = [*twin.replicas, *twin.dead]
    assert regs[:, STEPS].sum() == sum(k.steps for k in replicas), case
    assert regs[:, SCHEDULED_TOKENS].sum() == sum(k.scheduled for k in replicas), case
    assert state.meters.meters[:, BUSY].sum() == sum(k.busy for k in replicas), case
    left = [OUTSTANDING, OUTSTANDING_TOKENS, WAITING, RUNNING, PREFILLING_TOKENS, GONE]
    assert not regs[:, left].any(), case
    assert (regs[:, FREE_BLOCKS] == c.num_blocks).all(), case
    assert (regs[:, FREE_SLOTS] == c.max_num_seqs).all(), case
    assert regs[:, DOWN].tolist() == [int(k in twin.down) for k in range(c.replicas)], case
    counted = np.zeros(GAP_BINS, np.int64)
    for gap in (gap for k in replicas for gap in k.gaps):
        counted[bin_of(gap, GAP_BITS)] += 1
    assert (state.meters.gaps == counted).all(), case
    # Gaps add up: those of the finished, of the given up, and of the answers that were broken off.
    told = outcome.first_ps >= 0
    assert counted.sum() == int((outcome.generated[told] - 1).sum()) + state.meters.cluster[LOST_GAPS], case
    whole = sum(gap for k in replicas for gap in k.gaps)
    assert whole == int((outcome.last_ps - outcome.first_ps)[told].sum()) + state.meters.cluster[LOST_GAPS_PS], case
    return status


KINDS = {
    "closed": {"closed": True, "limits": False, "timeout": False, "failures": False},
    "limits": {"closed": True, "limits": True, "timeout": False, "failures": False},
    "timeout": {"closed": True, "limits": False, "timeout": True, "failures": False},
    "failures": {"closed": False, "limits": False, "timeout": False, "failures": True},
    "patient": {"closed": True, "limits": True, "timeout": False, "failures": True},
    "all": {"closed": True, "limits": True, "timeout": True, "failures": True},
}
SEEN = {
    "closed": {"finished"},
    "limits": {"finished", "refused", "refused_tokens"},
    "timeout": {"finished", "gave_up"},
    "failures": {"finished", "held"},
    "patient": {"finished", "refused", "refused_tokens", "held", "open"},
    "all": {"finished", "refused", "refused_tokens", "gave_up", "held", "open"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_naive_twin_agrees(kind: str) -> None:
    rng = np.random.default_rng(31 + list(KINDS).index(kind))
    seen: set[str] = set()
    for i in range(cases(240)):
        router = list(ROUTERS)[i % len(ROUTERS)]
        c, r, cost, down = draw(rng, router, **KINDS[kind])
        state = run_life(c, r, law_of(c, cost), down)
        seen |= set(assert_twin_agrees(c, r, state, run_twin(c, r, cost, router, down), (kind, i)))
    assert seen == SEEN[kind]


def test_cutting_the_run_into_calls_changes_nothing() -> None:
    rng = np.random.default_rng(37)
    for i in range(40):
        c, r, cost, down = draw(rng, list(ROUTERS)[i % len(ROUTERS)], **KINDS["all"])
        whole, cut = (run_life(c, r, law_of(c, cost), down, events) for events in (1 << 20, 1))
        for one, other in zip(whole.outcome + whole.meters, cut.outcome + cut.meters, strict=True):
            assert (one == other).all()


# --- worked by hand: every step takes 100 ps ---


def flat() -> StepTimes:
    return linear_law(64, constant=100)


def following(r: Requests, after: list[int], delay: list[int]) -> Requests:
    return r._replace(after=np.array(after, np.int64), delay_ps=np.array(delay, np.int64))


def test_a_follower_starts_when_the_one_before_has_ended() -> None:
    """0 ends at 300; 1 arrives at 350 and ends at 450; 2 is open; 3 follows 0 at once, after 2 in the same instant."""
    r = following(requests([0, 0, 300, 0], [4] * 4, [3, 1, 1, 1]), [-1, 0, -1, 0], [0, 50, 0, 0])
    state = run_life(config(max_num_seqs=1), r, flat())
    assert state.arrivals.sent_ps.tolist() == [0, 350, 300, 300]
    assert state.outcome.admitted_ps.tolist() == [0, 500, 300, 400]
    assert state.outcome.last_ps.tolist() == [300, 600, 400, 500]


def test_a_faster_engine_shifts_later_arrivals() -> None:
    r = following(requests([0, 0], [4, 4], [3, 1]), [-1, 0], [0, 50])
    assert run_life(config(), r, linear_law(64, constant=50)).arrivals.sent_ps.tolist() == [0, 200]


def test_requests_over_the_limit_are_refused_and_their_followers_start() -> None:
    """Two may be in the system. 2 is refused at 10; 3 follows it at once and is refused as well; 4 follows that."""
    r = following(requests([0, 0, 10, 10, 10], [4] * 5, [1] * 5), [-1, -1, -1, 2, 3], [0, 0, 0, 0, 95])
    state = run_life(config(max_num_queued_reqs=2), r, flat())
    assert state.outcome.replica.tolist() == [0, 0, REFUSED, REFUSED, 0]
    assert state.arrivals.sent_ps.tolist() == [0, 0, 10, 10, 105]


def test_the_prompt_limit_counts_requests_without_a_first_token() -> None:
    """4 + 4 tokens of prompts wait until 100; then none do, though both requests still run."""
    r = requests([0, 0, 10, 100], [4] * 4, [9, 9, 1, 1])
    state = run_life(config(max_num_queued_tokens=8), r, flat())
    assert state.outcome.replica.tolist() == [0, 0, REFUSED_TOKENS, 0]


def test_whom_a_client_gives_up_frees_its_place_at_the_next_boundary() -> None:
    """One slot. 0 would run to 900 and is given up at 250: its slot is free at 300. 1, which waited, is admitted then
    and ends at its deadline of 400: in time. 2 is given up while it waits."""
    c, r = with_patience(config(max_num_seqs=1), requests([0, 150, 150], [4] * 3, [9, 1, 1]), [250] * 3)
    state = run_life(c, r, flat())
    assert state.outcome.replica.tolist() == [GAVE_UP, 0, GAVE_UP]
    assert state.outcome.generated.tolist() == [2, 1, 0]
    assert state.outcome.last_ps[1] == 400
    assert state.meters.regs[0, STEPS] == 4


def test_each_client_leaves_at_its_own_time() -> None:
    """One slot. 1 came last and leaves first, at 120; 0 leaves at 250, and its slot is free at 300; 2 stays to its
    end, and so would 3, whose client would have left just then."""
    c, r = with_patience(config(max_num_seqs=1), requests([0, 100, 0, 0], [4] * 4, [9, 1, 2, 1]), [250, 20, FAR, 600])
    state = run_life(c, r, flat())
    assert state.outcome.replica.tolist() == [GAVE_UP, GAVE_UP, 0, 0]
    assert state.outcome.generated.tolist() == [2, 0, 2, 1]
    assert state.outcome.last_ps[2:].tolist() == [500, 600]
    assert state.arrivals.leave_ps.tolist() == [250, 120, 0, 600]


def test_the_work_of_a_lost_replica_starts_anew_on_another() -> None:
    """0 and 1 run on replicas 0 and 1. Replica 0 is lost at 250, when 0 had two of its four tokens: it starts anew on
    replica 1 at 300, beside the last token of 1, and gets its first token at 400, measured from its arrival at 0."""
    c = config(replicas=2, replicas_may_be_down=1)
    state = run_life(c, requests([0, 0], [4, 4], [4, 4]), flat(), [(0, 250, FAR)])
    assert state.outcome.replica.tolist() == [1, 1]
    assert state.outcome.first_ps.tolist() == [400, 100]
    assert state.outcome.last_ps.tolist() == [700, 400]
    assert state.meters.meters[:, BUSY].tolist() == [250, 700]
    assert state.meters.cluster[[LOST_GAPS, LOST_GAPS_PS]].tolist() == [1, 100]


def test_while_all_are_down_requests_wait_at_the_gateway() -> None:
    """Both replicas start late, at 500 and 800. All three go to the first; the router had no choice."""
    c = config(replicas=2, replicas_may_be_down=1)
    state = run_life(c, requests([0, 10, 20], [4] * 3, [1] * 3), flat(), [(0, 0, 500), (1, 0, 800)])
    assert state.outcome.replica.tolist() == [0, 0, 0]
    assert state.outcome.admitted_ps.tolist() == [500] * 3


def test_a_replica_knows_nothing_of_what_a_lost_one_had_computed() -> None:
    """vLLM 0.11 takes a request that it preempts within a batch to keep the tokens that the batch computes of it: 0
    one, at 200. Its replica is lost at 250 and back at 300. Then 1, which comes first, leaves 4 tokens of the budget,
    not enough for the prompt of 0, and takes the blocks until 700."""
    c = config(priority_policy=PRIORITY, victims_stay=1, reserve_full_isl=0, num_blocks=5, replicas_may_be_down=1)
    state = run_life(c, requests([0, 100], [5, 12], [5, 4], [1, 0]), flat(), [(0, 250, 300)])
    assert state.outcome.first_ps.tolist() == [800, 400]
    assert state.outcome.last_ps.tolist() == [1200, 700]


def test_a_client_whose_time_to_leave_is_beyond_int64_stays() -> None:
    """Sent on the 80th day with 90 days of patience: their sum in ps is no int64."""
    day = 86_400 * 10**12
    c, r = with_patience(config(), requests([80 * day] * 2, [4] * 2, [3] * 2), [90 * day, 250])
    state = run_life(c, r, flat())
    assert state.outcome.replica.tolist() == [0, GAVE_UP]
    assert state.outcome.generated.tolist() == [3, 2]


def test_requests_that_no_replica_comes_back_for_stay_at_the_gateway() -> None:
    r = following(requests([0, 0], [4, 4], [9, 1]), [-1, 0], [0, 0])
    state = run_life(config(replicas_may_be_down=1), r, flat(), [(0, 250, FAR)])
    assert state.outcome.replica.tolist() == [HELD, NEVER]
    assert state.arrivals.sent_ps.tolist() == [0, NEVER]


def test_a_follower_cannot_come_first() -> None:
    r = following(requests([0, 0], [1, 1], [1, 1]), [1, -1], [0, 0])
    with pytest.raises(ValueError, match="after the one that it follows"):
        prepare_arrivals(config(), r)
