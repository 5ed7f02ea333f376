"""What is kept of a waiting request's lookup: it costs a name or two a step, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import pytest
from engine_cases import TWIN_KINDS, caching_case, grouped_case, one_of, session_case, with_ids
from engines import SEED, cases, config, law_of, linear_law, requests

from replay.kernels.engine import advance
from replay.kernels.group_layout import is_grouped, place_in_table
from replay.kernels.outages import prepare_changes
from replay.kernels.state import (
    FAR,
    FREE_FULL,
    FREE_RUN,
    FULL_COUNTED,
    FULL_FOUND,
    HEAD_FREE_HITS,
    HEAD_HITS,
    HEAD_REQUEST,
    HOST_END,
    HOST_FIRST,
    HOST_REQUEST,
    LOOKUPS,
    NEVER,
    ONE,
    PRIORITY,
    RUN_COUNTED,
    RUN_END,
    RUN_FIRST,
    STALE,
    STEPS,
    Config,
    Requests,
    State,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.routing import prepare_routing

P = ParamSpec("P")
R = TypeVar("R")

MEMO = [HEAD_REQUEST, HEAD_HITS, HEAD_FREE_HITS, LOOKUPS]
KINDS = (*TWIN_KINDS, "sessions", "names that repeat", "replicas", "groups", "groups, names that repeat")


def start(c: Config, r: Requests) -> State:
    state = new_state(c, len(r.arrival_ps))
    return state._replace(routing=prepare_routing(c, r, state.meters.regs, SEED))


def run(c: Config, r: Requests, t: StepTimes, state: State) -> State:
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, 1 << 20):
        pass
    return state


def as_python(function: Callable[P, R]) -> Callable[P, R]:
    """What a kernel's helper was before it was compiled, if it was (NUMBA_DISABLE_JIT)."""
    plain: Callable[P, R] = getattr(function, "py_func", function)
    return plain


def assert_memo_holds(c: Config, state: State) -> None:
    """What was found is in the cache, and as many of it lie free as were counted."""
    blocks = state.blocks
    for replica, reg in enumerate(state.meters.regs):
        if reg[HEAD_REQUEST] == NEVER:
            continue
        if as_python(is_grouped)(c):
            assert_groups_hold(c, state, replica)
            continue
        row = replica * c.table_width
        found = blocks.found[row : row + reg[HEAD_HITS]]
        assert np.all(blocks.hash[found] != NEVER)
        assert np.all(blocks.twin_previous[found] == NEVER)
        assert np.sum(blocks.references[found] == 0) == reg[HEAD_FREE_HITS]


def assert_groups_hold(c: Config, state: State, replica: int) -> None:
    blocks, memo = state.blocks, state.blocks.memo.reg[replica]

    def found(group: int, first: int, end: int) -> np.ndarray:
        return blocks.found[[as_python(place_in_table)(c, replica, group, i) for i in range(first, end)]]

    full, everyone = range(c.full_groups), range(c.full_groups, c.full_groups + c.window_groups)
    if memo[STALE]:
        everyone = range(0)
    kept = [found(group, 0, memo[FULL_FOUND]) for group in full]
    kept += [found(group, memo[RUN_FIRST], memo[RUN_END]) for group in everyone]
    assert all(np.all(blocks.hash[row] != NEVER) for row in kept)
    counted = [found(group, 0, memo[FULL_COUNTED]) for group in full]
    assert sum(np.sum(blocks.references[row] == 0) for row in counted) == memo[FREE_FULL]
    counted = [found(group, memo[RUN_FIRST], memo[RUN_COUNTED]) for group in everyone]
    assert memo[STALE] or sum(np.sum(blocks.references[row] == 0) for row in counted) == memo[FREE_RUN]


def forget(state: State) -> None:
    """The next step seeks from the first block."""
    state.meters.regs[:, HEAD_REQUEST] = NEVER
    state.meters.regs[:, HEAD_HITS] = state.meters.regs[:, HEAD_FREE_HITS] = 0
    state.blocks.host.reg[:, [HOST_FIRST, HOST_END]] = 0
    state.outcome.absent[:] = 0


def run_forgetfully(c: Config, r: Requests, t: StepTimes, state: State) -> State:
    """The same run in which every event seeks from the first block."""
    forget(state)
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, 1):
        assert_memo_holds(c, state)
        forget(state)
    return state


def run_watched(c: Config, r: Requests, t: StepTimes, state: State) -> State:
    while advance(c, r, t, state, bucket_count(c.num_blocks) - 1, 1):
        assert_memo_holds(c, state)
    return state


def assert_same_but_for_the_memo(one: State, other: State) -> None:
    """Every array, the order of the free list, the hash table and the host's blocks included."""
    parts = [*zip(one, other, strict=True), (one.blocks.host, other.blocks.host)]
    for part, same in parts:
        for name, x, y in zip(part._fields, part, same, strict=True):
            if name in ("found", "found_at", "host", "memo", "absent"):
                continue
            if name in ("regs", "seen"):
                x, y = np.delete(x, MEMO, 1), np.delete(y, MEMO, 1)
            if part is one.blocks.host and name == "reg":
                x, y = (np.delete(z, [HOST_REQUEST, HOST_FIRST, HOST_END], 1) for z in (x, y))
            assert np.array_equal(x, y), name


def tight_case(rng: np.random.Generator, kind: str) -> tuple[Config, Requests, StepTimes]:
    """A small run in hardly more memory than its longest request takes."""
    if kind.startswith("groups"):
        c, r, cost, _ = grouped_case(rng, True)
    elif kind == "sessions":
        c, r, cost, _ = session_case(rng)
    else:
        c, r, cost, _ = caching_case(rng, kind if kind in TWIN_KINDS else "plain")
    if "names that repeat" in kind:
        counts = np.diff(r.prefix_start).tolist()
        r = with_ids(r, [rng.integers(0, 3, count).tolist() for count in counts])
    if kind == "replicas":
        c = c._replace(replicas=2)
    if not kind.startswith("groups"):
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


WINDOW = {"window_groups": 1, "window_block_size": 4, "window_tokens": 32, "window_cap_blocks": 34, "window_ring": 35}
MODES: dict[str, dict[str, int]] = {
    "one full group": {},
    "two batches in flight": {"batches_in_flight": 2},
    "by priority": {"priority_policy": PRIORITY},
    "unchunked": {"enable_chunked_prefill": 0, "max_num_batched_tokens": 444},
    "speculation": {"speculative_tokens": 2, "lookahead_tokens": 2},
    "host tier": {"host_blocks": 500},
    "small host tier": {"host_blocks": 20},
    "two full groups": {"full_groups": 2, "full_block_size": 4},
    "sliding window": {"full_groups": 1, "full_block_size": 4, **WINDOW},
    "blocks of two sizes": {"full_groups": 1, "full_block_size": 8, **WINDOW},
    "windows alone": {"full_groups": 0, **WINDOW},
    "chunked attention": {"full_groups": 1, "full_block_size": 4, **WINDOW, "window_chunked": 1},
}


@pytest.mark.parametrize("mode", MODES)
def test_a_blocked_head_costs_a_name_or_two_a_step(mode: str) -> None:
    """The last prompt begins like the first, whose 100 blocks are cached; the one between runs 300 steps, has the
    memory that the last one lacks, and evicts ever more of what the first left."""
    c = config(prefix_caching=1, prefix_block_tokens=4, table_width=120, max_num_batched_tokens=100)._replace(
        **MODES[mode]
    )
    groups = c.full_groups + c.window_groups
    full_blocks = 111 * 4 // c.full_block_size if as_python(is_grouped)(c) else 111
    c = c._replace(num_blocks=c.full_groups * full_blocks + c.window_groups * 34 + 1)
    r = requests([0, 0, 1], [400, 100, 444], [1, 300, 1], [0, 0, 0])
    shared = list(range(100))
    r = with_ids(r, [shared, [], shared])
    law = linear_law(1000, constant=100)
    state, forgetful = (how(c, r, law, with_drafts(c, start(c, r))) for how in (run, run_forgetfully))
    assert_same_but_for_the_memo(state, forgetful)
    assert state.outcome.admitted_ps[2] == state.outcome.last_ps[1], "it is blocked for as long as the second runs"
    assert state.outcome.preemptions.sum() == 0
    reg = state.meters.regs[0]
    assert reg[STEPS] > 170
    tiers = 2 if c.host_blocks else 1
    assert reg[LOOKUPS] <= 300 * groups + tiers * reg[STEPS], "names at admission and eviction, and one a step"
    assert forgetful.meters.regs[0, LOOKUPS] > 3 * reg[LOOKUPS]


def with_drafts(c: Config, state: State) -> State:
    """Every other draft is accepted."""
    state.speculation.acceptance[:] = ONE // 2
    return state


@pytest.mark.parametrize("mode", ["one full group", "host tier", "two full groups"])
def test_a_prompt_passed_over_costs_a_name_a_kind_a_step(mode: str) -> None:
    """Five prompts of which 100 blocks are cached wait for more of the budget than 50 decodes leave them."""
    c = config(
        max_num_seqs=64,
        max_num_batched_tokens=550,
        num_blocks=10_000,
        enable_chunked_prefill=0,
        unchunked_looks_further=1,
        prefix_caching=1,
        prefix_block_tokens=4,
        table_width=240,
    )._replace(**MODES[mode])
    known = list(range(100))
    r = requests([0] + [1] * 50 + [101] * 5, [400] + [1] * 50 + [902] * 5, [1] + [300] * 50 + [1] * 5)
    r = with_ids(r, [known] + [[]] * 50 + [known] * 5)
    law = linear_law(1000, constant=100)
    state, forgetful = (how(c, r, law, start(c, r)) for how in (run, run_forgetfully))
    assert_same_but_for_the_memo(state, forgetful)
    assert state.outcome.hit_tokens[51:].tolist()[0] == 400
    assert state.outcome.admitted_ps[51] >= state.outcome.last_ps[50]
    reg, kinds = state.meters.regs[0], 2 if c.host_blocks else 1
    assert reg[LOOKUPS] <= 5 * (kinds * reg[STEPS] + 2 * 226 * c.full_groups)
    assert forgetful.meters.regs[0, LOOKUPS] > 20 * reg[LOOKUPS]
