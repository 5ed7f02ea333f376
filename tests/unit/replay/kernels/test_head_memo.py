"""What is kept of a blocked head's lookup: it costs one name a step, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import TWIN_KINDS, caching_case, one_of, session_case, with_ids
from engines import SEED, cases, config, law_of, linear_law, requests

from replay.kernels.engine import advance
from replay.kernels.outages import prepare_changes
from replay.kernels.state import (
    FAR,
    HEAD_FREE_HITS,
    HEAD_HITS,
    HEAD_REQUEST,
    LOOKUPS,
    NEVER,
    STEPS,
    Config,
    Requests,
    State,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.routing import prepare_routing

MEMO = [HEAD_REQUEST, HEAD_HITS, HEAD_FREE_HITS, LOOKUPS]
KINDS = (*TWIN_KINDS, "sessions", "names that repeat", "replicas")


def start(c: Config, r: Requests) -> State:
    state = new_state(c, len(r.arrival_ps))
    return state._replace(routing=prepare_routing(c, r, state.meters.regs, SEED))


def run(c: Config, r: Requests, t: StepTimes, state: State) -> State:
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, 1 << 20):
        pass
    return state


def assert_memo_holds(c: Config, state: State) -> None:
    """What was found is in the cache, and as many of it lie free as were counted."""
    blocks = state.blocks
    for replica, reg in enumerate(state.meters.regs):
        row = replica * c.table_width
        found = blocks.found[row : row + reg[HEAD_HITS]]
        assert np.all(blocks.hash[found] != NEVER)
        assert np.all(blocks.twin_previous[found] == NEVER)
        assert np.sum(blocks.references[found] == 0) == reg[HEAD_FREE_HITS]


def run_forgetfully(c: Config, r: Requests, t: StepTimes, state: State) -> State:
    """The same run in which every event seeks from the first block."""
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, 1):
        assert_memo_holds(c, state)
        state.meters.regs[:, HEAD_REQUEST] = NEVER
        state.meters.regs[:, HEAD_HITS] = state.meters.regs[:, HEAD_FREE_HITS] = 0
    return state


def run_watched(c: Config, r: Requests, t: StepTimes, state: State) -> State:
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, 1):
        assert_memo_holds(c, state)
    return state


def assert_same_but_for_the_memo(one: State, other: State) -> None:
    """Every array, the order of the free list and the hash table included."""
    for part, same in zip(one, other, strict=True):
        for name, x, y in zip(part._fields, part, same, strict=True):
            if name in ("found", "found_at", "host"):
                continue
            if name in ("regs", "seen"):
                x, y = np.delete(x, MEMO, 1), np.delete(y, MEMO, 1)
            assert np.array_equal(x, y), name


def tight_case(rng: np.random.Generator, kind: str) -> tuple[Config, Requests, StepTimes]:
    """A small run in hardly more memory than its longest request takes."""
    if kind == "sessions":
        c, r, cost, _ = session_case(rng)
    else:
        c, r, cost, _ = caching_case(rng, kind if kind in TWIN_KINDS else "plain")
    if kind == "names that repeat":
        counts = np.diff(r.prefix_start).tolist()
        r = with_ids(r, [rng.integers(0, 3, count).tolist() for count in counts])
    if kind == "replicas":
        c = c._replace(replicas=2)
    longest = int((r.prompt_tokens + r.output_tokens).max())
    c = c._replace(num_blocks=-(-longest // c.block_size) + one_of(rng, 0, 1, 3))
    return c, r, law_of(c, cost)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_lookup_is_a_fresh_one(kind: str) -> None:
    rng = np.random.default_rng((9, KINDS.index(kind)))
    kept, fresh = 0, 0
    for _ in range(cases(80)):
        c, r, law = tight_case(rng, kind)
        watched = run_watched(c, r, law, start(c, r))
        forgetful = run_forgetfully(c, r, law, start(c, r))
        assert_same_but_for_the_memo(watched, forgetful)
        kept += int(watched.meters.regs[:, LOOKUPS].sum())
        fresh += int(forgetful.meters.regs[:, LOOKUPS].sum())
    assert kept < fresh


def test_a_lost_replica_has_found_nothing() -> None:
    rng = np.random.default_rng(10)
    for _ in range(cases(80)):
        c, r, law = tight_case(rng, "replicas")
        end = int(run(c, r, law, start(c, r)).outcome.last_ps.max())
        lost = int(rng.integers(0, end + 1))
        c = c._replace(replicas_may_be_down=1)
        down = [(int(rng.integers(0, 2)), lost, one_of(rng, FAR, lost + 1 + end // 3))]
        runs = []
        for how in (run_watched, run_forgetfully):
            state = start(c, r)
            runs.append(how(c, r, law, state._replace(changes=prepare_changes(down, state.meters.regs))))
        assert_same_but_for_the_memo(*runs)


def test_a_blocked_head_costs_one_name_a_step() -> None:
    """The second prompt begins like the first and has no room beside it until that ends, 200 steps later."""
    c = config(prefix_caching=1, prefix_block_tokens=4, table_width=200, num_blocks=170, max_num_batched_tokens=1000)
    r = requests([0, 1], [400, 668], [200, 5])
    r = with_ids(r, [list(range(96)), list(range(96))])
    state = run(c, r, linear_law(1000, constant=100), start(c, r))
    reg = state.meters.regs[0]
    assert state.outcome.hit_tokens.tolist() == [0, 4 * 96]
    assert state.outcome.admitted_ps[1] == state.outcome.last_ps[0]
    assert reg[STEPS] == 200 + 5
    first, second, blocked = 1, 96 + 1, 199
    assert first + second <= reg[LOOKUPS] <= first + second + blocked
