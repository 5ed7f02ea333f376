"""Wider random engine runs than ``engines``, a look at the general loop after every event, and what makes two runs
equal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from engines import FOREVER, config, law_of, random_case, requests, twin_config, twin_requests
from naive.groups import Group, GroupedEngine
from naive.vllm import Engine, Request

from replay.deployment import Deployment, resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.engine import advance
from replay.kernels.state import (
    FAR,
    FCFS,
    FREE_BLOCKS,
    MAX_USED_BLOCKS,
    NEXT_ARRIVAL,
    NEXT_EVENT,
    PREEMPTIONS,
    PREVIOUS_END,
    RUNNING,
    SCHEDULED_TOKENS,
    SHORTEST_REMAINING,
    STEPS,
    Config,
    Meters,
    Outcome,
    Requests,
    State,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.kernels.texts import link_texts
from replay.specs import DeploymentSpec
from replay.traces.sharing import previous_turns

SHARED = [STEPS, SCHEDULED_TOKENS, PREEMPTIONS, MAX_USED_BLOCKS, PREVIOUS_END, FREE_BLOCKS, RUNNING]
"""Registers that the fast and the general loop both keep."""


def assert_same_run(general: tuple[Outcome, Meters], fast: tuple[Outcome, Meters]) -> None:
    """Two runs of one replica agree in every integer and every float."""
    for name in ("admitted_ps", "first_ps", "last_ps", "preemptions"):
        assert np.array_equal(getattr(general[0], name), getattr(fast[0], name)), name
    assert np.array_equal(general[1].regs[0, SHARED], fast[1].regs[0, SHARED])
    assert np.array_equal(general[1].meters, fast[1].meters)
    assert np.array_equal(general[1].gaps, fast[1].gaps)
    assert np.array_equal(general[1].cluster[[0, 2, 3]], fast[1].cluster[[0, 2, 3]])


def with_tables(rng: np.random.Generator, law: StepTimes, unit: int = 1) -> StepTimes:
    """The law with random increasing attention tables and host terms on top, in steps of ``unit`` ps."""

    def table() -> np.ndarray:
        return np.cumsum(np.cumsum(rng.integers(0, 5, (4, 6)), 0), 1).astype(np.int64) * unit

    scalars = law.law.copy()
    scalars[0], scalars[3], scalars[4] = rng.integers(0, 3) * unit, rng.integers(0, 200) * unit, rng.integers(0, 4)
    scalars[5] = rng.integers(0, 50) * unit
    return law._replace(decode_table_ps=table(), prefill_table_ps=table(), law=scalars)


def one_of(rng: np.random.Generator, *values: int) -> int:
    """A value, all equally likely."""
    return values[int(rng.integers(len(values)))]


def arrivals(rng: np.random.Generator, n: int) -> np.ndarray:
    """Sorted arrival times: all at once, in a few bursts, dense, sparse (the engine idles between), or at the ends of
    steps that take a round time."""
    kind = int(rng.integers(5))
    if kind == 0:
        return np.zeros(n, np.int64)
    if kind == 1:
        return np.sort(rng.integers(0, 4, n)) * one_of(rng, 7, 500)
    if kind == 2:
        return np.sort(rng.integers(0, 3000, n))
    if kind == 3:
        return np.cumsum(rng.integers(0, 20_000, n))
    return np.sort(rng.integers(0, 40, n)) * 100


def costs(rng: np.random.Generator) -> tuple[int, int, int, int, int]:
    """(floor, per token, context, pair, constant): free, constant, or any mix."""
    kind = int(rng.integers(4))
    if kind == 0:
        return (0, 0, 0, 0, one_of(rng, 0, 100))
    if kind == 1:
        return (100, one_of(rng, 0, 25, 50), 0, 0, 0)
    return (
        one_of(rng, 0, 1, 100, 1000),
        one_of(rng, 0, 1, 5, 100),
        one_of(rng, 0, 0, 1, 5),
        one_of(rng, 0, 0, 1, 5),
        one_of(rng, 0, 1, 100, 1000),
    )


def wide_case(rng: np.random.Generator) -> tuple[Config, Requests, StepTimes]:
    """A small run that the fast loop may take: any block size, one slot, a budget of exactly the slots, memory for
    hardly more than one request, watermark, admission by chunk or by prompt, both kinds of scheduling, attention
    tables, ties, free steps, overload and idleness, units of 1 ps and of 1 us."""
    n = int(rng.integers(1, 28))
    block_size, slots = one_of(rng, 1, 2, 3, 4, 7, 16), one_of(rng, 1, 2, 3, 5, 8, 32)
    prompt = rng.integers(1, one_of(rng, 2, 10, 60), n)
    output = rng.integers(1, one_of(rng, 2, 8, 50, 90), n)
    total = prompt + output
    unit = one_of(rng, 1, 1, 1, 1_000_000)
    c = config(
        max_num_seqs=slots,
        max_num_batched_tokens=slots + one_of(rng, 0, 0, 1, 7, 30, 200),
        block_size=block_size,
        num_blocks=int(np.max(-(-(total - 1) // block_size))) + one_of(rng, 0, 0, 1, 3, 20, 1000),
        batches_in_flight=int(rng.integers(1, 3)),
        reserve_full_isl=int(rng.integers(0, 2)),
        watermark_blocks=one_of(rng, 0, 0, 1, 3),
        max_model_len=one_of(rng, FOREVER, int(total.max())),
    )
    r = requests((arrivals(rng, n) * unit).tolist(), prompt.tolist(), output.tolist())
    floor, per_token, context, pair, constant = (x * unit for x in costs(rng))
    law = law_of(c, (floor, per_token, context, pair, constant))
    return c, r, with_tables(rng, law, unit) if rng.random() < 0.3 else law


def caching_case(
    rng: np.random.Generator, kind: str
) -> tuple[Config, Requests, tuple[int, int, int, int, int], Engine]:
    """A small run with prefix caching and its twin, not run yet.

    Prompts are made of segments of some size (the trace's blocks), drawn so that many share a head. The kernel is given
    one chained id for each segment, the twin the segments themselves. ``kind``: see ``TWIN_KINDS``.
    """
    order = SHORTEST_REMAINING if kind == "srpt" else FCFS
    by_priority = kind in ("priority", "victims stay")
    c, r, cost = random_case(rng, threshold=kind == "threshold", priority=by_priority, order=order)
    n = len(r.arrival_ps)
    c = c._replace(prefix_caching=1, batches_in_flight=2 if kind in ("async", "past the end") else c.batches_in_flight)
    if kind == "past the end":
        c = c._replace(runs_past_end=1)
    elif kind == "victims stay":
        c = c._replace(victims_stay=1, batches_in_flight=1)
    longest = int((r.prompt_tokens + r.output_tokens).max())
    c = c._replace(table_width=-(-longest // c.block_size) + 2)
    if kind == "unchunked":
        further = int(rng.integers(0, 2))
        c = c._replace(enable_chunked_prefill=0, unchunked_looks_further=further)
        c = c._replace(max_num_batched_tokens=max(longest, c.max_num_seqs))
    c = c._replace(frees_in_order=int(kind == "in order"))
    if kind == "host":
        c = c._replace(host_blocks=one_of(rng, 1, 3, 10, 1000), host_latency_ps=one_of(rng, 0, 50))
        c = c._replace(host_block_ps=one_of(rng, 0, 1, 200))
    segment_tokens = one_of(rng, 1, 2, 3, 4, 5, 16, 64)
    rows: list[tuple[int, ...]] = []
    for prompt in r.prompt_tokens.tolist():
        known = -(-prompt // segment_tokens) if rng.random() < 0.5 else prompt // segment_tokens
        if rng.random() < 0.3:
            known = int(rng.integers(0, known + 1))
        rows.append(tuple((rng.random(known) < 0.1).astype(int).tolist()))
    chained: dict[tuple[int, ...], int] = {}
    ids = [chained.setdefault(row[: i + 1], len(chained)) for row in rows for i in range(len(row))]
    r = r._replace(prefix_start=np.cumsum([0, *map(len, rows)]).astype(np.int64), prefix_ids=np.array(ids, np.int64))
    c = c._replace(prefix_block_tokens=segment_tokens)
    priority = r.priority.tolist() if c.priority_policy else [0] * n
    columns = zip(r.arrival_ps.tolist(), r.prompt_tokens.tolist(), r.output_tokens.tolist(), priority, strict=True)
    people = [
        Request(i, *row, segments=segments, segment_tokens=segment_tokens)
        for i, (row, segments) in enumerate(zip(columns, rows, strict=True))
    ]
    return c, r, cost, Engine(twin_config(c, cost), people)


TWIN_KINDS = (
    "plain",
    "async",
    "threshold",
    "priority",
    "unchunked",
    "srpt",
    "in order",
    "past the end",
    "victims stay",
    "host",
)


def session_case(
    rng: np.random.Generator,
) -> tuple[Config, Requests, tuple[int, int, int, int, int], Engine]:
    """A small run in which prompts extend earlier ones, often cut, often with several turns at once; and its twin,
    which is given every token of every text."""
    c, r, cost = random_case(rng)
    n = len(r.arrival_ps)
    c = c._replace(prefix_caching=1, frees_in_order=int(rng.integers(0, 2)))
    c = c._replace(runs_past_end=int(c.batches_in_flight == 2 and rng.random() < 0.5))
    follows = np.array([int(rng.integers(-1, k)) if k and rng.random() < 0.8 else -1 for k in range(n)])
    if rng.random() < 0.7:  # true sessions: each turn follows the last of its session
        follows = previous_turns(rng.integers(-1, int(rng.integers(1, 6)), n))
    texts: list[tuple[object, ...]] = []
    shared = np.zeros(n, np.int64)
    prompt = r.prompt_tokens.copy()
    for k in range(n):
        before = texts[follows[k]] if follows[k] >= 0 else ()
        if before and rng.random() < 0.7:
            prompt[k] = len(before) + int(rng.integers(0, 20))
        if prompt[k] + r.output_tokens[k] - 1 > c.num_blocks * c.block_size:
            prompt[k] = r.prompt_tokens[k]
        shared[k] = min(len(before), prompt[k])
        own = range(int(shared[k]), int(prompt[k] + r.output_tokens[k]))
        texts.append((*before[: shared[k]], *((k, place) for place in own)))
    r = r._replace(prompt_tokens=prompt, prefix_start=np.zeros(n + 1, np.int64))
    r = r._replace(texts=link_texts(follows, shared, np.arange(n)))
    longest = int((prompt + r.output_tokens).max())
    c = c._replace(table_width=-(-longest // c.block_size) + 2)
    columns = zip(r.arrival_ps.tolist(), prompt.tolist(), r.output_tokens.tolist(), texts, strict=True)
    people = [Request(i, a, p, o, text=text) for i, (a, p, o, text) in enumerate(columns)]
    return c, r, cost, Engine(twin_config(c, cost), people)


def grouped_case(
    rng: np.random.Generator, caching: bool
) -> tuple[Config, Requests, tuple[int, int, int, int, int], GroupedEngine]:
    """A small run of a model with full, window and state groups in any number, and its twin, not run yet."""
    if caching:
        c, r, cost, plain = (
            session_case(rng) if rng.random() < 0.5 else caching_case(rng, one_of(rng, *TWIN_KINDS[:-1]))
        )
    else:
        c, r, cost = random_case(rng, threshold=rng.random() < 0.2, priority=rng.random() < 0.2)
        plain = Engine(twin_config(c, cost), twin_requests(c, r))
    full, windows = one_of(rng, (1, 1), (2, 1), (0, 1), (1, 3), (1, 0), (2, 0))
    c = c._replace(runs_past_end=0, victims_stay=0)  # the twin with groups knows neither
    state = 0 if caching or rng.random() < 0.5 else 3
    chunked = bool(rng.random() < 0.3)
    sizes = [c.block_size, c.block_size]
    if full and windows:  # else one kind: its blocks are the engine's
        sizes[int(rng.integers(2))] *= one_of(rng, 1, 1, 2)
    wide = sizes[1] * one_of(rng, 1, 1, 2, 4) if chunked else one_of(rng, 2, 3, 5, 9, 30)
    kept = wide + c.max_num_batched_tokens if chunked else wide - 1 + c.max_num_batched_tokens
    cap = ceil_div(kept, sizes[1]) + (not chunked)
    longest = int((r.prompt_tokens + r.output_tokens).max())
    most = full * ceil_div(longest, sizes[0]) + windows * min(ceil_div(longest, sizes[1]), cap) + state
    c = c._replace(
        num_blocks=most + one_of(rng, 0, 0, 1, 3, 20, 500),
        full_groups=full,
        full_block_size=sizes[0],
        window_groups=windows,
        window_block_size=sizes[1],
        window_tokens=wide,
        window_chunked=int(chunked),
        window_cap_blocks=cap,
        window_ring=cap + 1,
        state_blocks=state,
    )
    groups = [Group(c.full_block_size)] * full + [Group(c.window_block_size, wide, chunked, cap)] * windows
    return c, r, cost, GroupedEngine(twin_config(c, cost), plain.requests, groups, state)


def events(c: Config, r: Requests, law: StepTimes) -> Iterator[tuple[int, State]]:
    """The general loop, stopped after each event: the event's time and the state it left."""
    state = new_state(c, len(r.arrival_ps))
    regs, cluster = state.meters.regs, state.meters.cluster
    mask = bucket_count(c.num_blocks) - 1
    while True:
        arrived = int(cluster[NEXT_ARRIVAL])
        arrival = int(r.arrival_ps[arrived]) if arrived < len(r.arrival_ps) else FAR
        now = min(arrival, int(regs[:, NEXT_EVENT].min()))
        if not advance(c, r, law, state, mask, 1):
            return
        yield now, state


POLICIES = ("plain", "threshold", "priority", "both")
KINDS = (*POLICIES, "caching")


def rng_of(*key: int) -> np.random.Generator:
    """A generator of a test's own."""
    return np.random.default_rng((81, *key))


def case_of(rng: np.random.Generator, kind: str) -> tuple[Config, Requests, StepTimes]:
    """A random run of one policy."""
    if kind == "caching":
        c, r, cost, _ = caching_case(rng, TWIN_KINDS[int(rng.integers(len(TWIN_KINDS)))])
    else:
        c, r, cost = random_case(rng, threshold=kind in ("threshold", "both"), priority=kind in ("priority", "both"))
    return c, r, law_of(c, cost)


def in_steps(c: Config) -> Config:
    """Synchronous: each event schedules at most one batch."""
    return c._replace(batches_in_flight=1)


def running(state: State) -> list[int]:
    """Slots of the one replica's running list, in order."""
    return state.slots.order[: int(state.meters.regs[0, RUNNING])].tolist()


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def with_ids(r: Requests, rows: list[list[int]]) -> Requests:
    """Requests with chained block ids."""
    start = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return r._replace(prefix_start=start, prefix_ids=np.array([x for row in rows for x in row], np.int64))


def deployment(**knobs: object) -> Deployment:
    """Llama 3.1 8B on an H100 under vLLM 0.33, with knobs changed."""
    catalogue = shipped_catalogue()
    model, gpu = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"
    spec = DeploymentSpec.model_validate(
        {"model": model, "gpu": gpu, "engine": {"preset": "vllm-0.33", "overrides": knobs}}
    )
    return resolve_deployment(spec, catalogue.model(model), catalogue.gpu(gpu))
