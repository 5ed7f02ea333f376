"""The static policy: its naive twin, the article's rows, and how it relates to the general loop."""

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from engines import cases
from naive import seed_article
from naive.static import Law, Request, Static, gaps

from replay.kernels.engine import advance
from replay.kernels.loglinear import KNOT_BITS, bin_of, floor_of, interpolate
from replay.kernels.state import (
    BUSY,
    FINISHED,
    GAP_BINS,
    GAP_BITS,
    GAP_MAX_PS,
    LAW_DECODE_REQUEST,
    LAW_DECODE_TOKEN,
    LAW_HOST,
    LAW_HOST_REQUEST,
    LAW_PREFILL_PAIR,
    LAW_PREFILL_STEP,
    LAWS,
    MAX_USED_BLOCKS,
    NEVER,
    PREVIOUS_END,
    ROUND_ROBIN,
    RUNNING_REQUESTS,
    SCHEDULED_TOKENS,
    STEPS,
    USED_BLOCKS,
    Config,
    Requests,
    State,
    StepTimes,
    bucket_count,
    new_state,
)
from replay.kernels.static import StaticOptions, advance_static
from replay.steptime.record import no_table

Int64 = npt.NDArray[np.int64]
PS_PER_MS = 10**9
UNLIMITED_TOKENS = 1 << 40


def engine(max_num_seqs: int, max_num_batched_tokens: int, **changes: int) -> Config:
    settings: dict[str, int] = {
        "replicas": 1,
        "router": ROUND_ROBIN,
        "block_size": 1,
        "num_blocks": UNLIMITED_TOKENS,
        "batches_in_flight": 1,
        "long_prefill_token_threshold": 0,
        "threshold_binds_lone_request": 0,
        "enable_chunked_prefill": 1,
        "unchunked_looks_further": 0,
        "reserve_full_isl": 1,
        "watermark_blocks": 0,
        "max_model_len": 1 << 40,
        "priority_policy": 0,
        "prefix_caching": 0,
        "table_width": 0,
        "prefix_block_tokens": 1,
    }
    return Config(
        **settings | {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens} | changes
    )


def requests_of(arrival_ps: Any, prompt_tokens: Any, output_tokens: Any) -> Requests:
    none = np.zeros(0, np.int64)
    columns = (np.array(column, dtype=np.int64) for column in (arrival_ps, prompt_tokens, output_tokens))
    return Requests(*columns, priority=none, prefix_start=none, prefix_ids=none)


def times_of(law: Law, tokens: int, decode_table: Int64 | None = None, prefill_table: Int64 | None = None) -> StepTimes:
    scalars = np.zeros(LAWS, np.int64)
    scalars[LAW_DECODE_REQUEST], scalars[LAW_DECODE_TOKEN], scalars[LAW_PREFILL_PAIR] = law.per_decode, law.b, law.e2
    scalars[LAW_HOST], scalars[LAW_HOST_REQUEST] = law.host, law.host_per_row
    scalars[LAW_PREFILL_STEP] = law.prefill_step
    return StepTimes(
        rest_ps=np.maximum(law.w, law.a * np.arange(tokens + 1, dtype=np.int64)),
        decode_table_ps=no_table() if decode_table is None else decode_table,
        prefill_table_ps=no_table() if prefill_table is None else prefill_table,
        law=scalars,
    )


def run_static(
    config: Config, options: StaticOptions, requests: Requests, times: StepTimes, steps_a_call: int = 1 << 20
) -> State:
    state = new_state(config, len(requests.arrival_ps))
    while advance_static(config, options, requests, times, state, steps_a_call):
        pass
    return state


def run_continuous(config: Config, requests: Requests, times: StepTimes) -> State:
    state = new_state(config, len(requests.arrival_ps))
    while advance(config, requests, times, state, bucket_count(1) - 1, 1 << 20):
        pass
    return state


def options_of(
    *, pad: bool = True, stream: bool = False, timeout_ps: int = NEVER, prefill_emits: bool = True
) -> StaticOptions:
    return StaticOptions(int(pad), int(stream), timeout_ps, int(prefill_emits))


def histogram(values: list[int]) -> Int64:
    counted = np.zeros(GAP_BINS, np.int64)
    for value in values:
        counted[bin_of(value, GAP_BITS)] += 1
    return counted


def random_table(draw: random.Random) -> Int64:
    """A table that grows along both axes, as measured ones do."""
    steps = np.array([[draw.randrange(0, 50) for _ in range(14)] for _ in range(6)], np.int64)
    return np.cumsum(np.cumsum(steps, axis=0), axis=1)


def random_case(seed: int) -> tuple[Config, StaticOptions, Requests, StepTimes, Static, list[Request]]:
    draw = random.Random(seed)
    budget = draw.choice([1, 3, 8, 17, 64, 400])
    slots = draw.randint(1, min(budget, 9))
    law = Law(
        w=draw.choice([0, 5, 900]),
        a=draw.choice([0, 1, 13]),
        per_decode=draw.choice([0, 3]),
        b=draw.choice([0, 0, 2]),
        e2=draw.choice([0, 1]),
        host=draw.choice([0, 40, 1000]),
        host_per_row=draw.choice([0, 7]),
        hide_host=draw.random() < 0.4,
        prefill_step=draw.choice([0, 60]),
    )
    decode_table = random_table(draw) if draw.random() < 0.4 else None
    prefill_table = random_table(draw) if draw.random() < 0.4 else None
    if decode_table is not None:
        law.decode_table = lambda rows, mean: int(interpolate(decode_table, rows, mean))
    if prefill_table is not None:
        law.prefill_table = lambda tokens, computed: int(interpolate(prefill_table, tokens, computed))
    arrival, pause = 0, draw.choice([0, 10, 3000, 60_000])
    twins = []
    for i in range(draw.randint(1, 40)):
        arrival += draw.randint(0, pause)
        twins.append(Request(i, arrival, draw.randint(1, 40), draw.choice([1, 2, draw.randint(1, 30)])))
    kv_tokens = draw.choice([UNLIMITED_TOKENS, draw.randint(70, 400)])
    timeout = draw.choice([NEVER, 0, draw.randint(1, 20_000)])
    pad, stream, emits = draw.random() < 0.5, draw.random() < 0.6, draw.random() < 0.7
    twin = Static(slots, budget, law, kv_tokens, pad, stream, timeout, emits)
    config = engine(slots, budget, num_blocks=kv_tokens, batches_in_flight=2 if law.hide_host else 1)
    options = options_of(pad=pad, stream=stream, timeout_ps=timeout, prefill_emits=emits)
    requests = requests_of([r.arrival for r in twins], [r.P for r in twins], [r.N for r in twins])
    return config, options, requests, times_of(law, budget, decode_table, prefill_table), twin, twins


@pytest.mark.parametrize("block", range(8))
def test_equals_its_naive_twin(block: int) -> None:
    for seed in range(block * 50, block * 50 + cases(50)):
        config, options, requests, times, twin, twins = random_case(seed)
        state = run_static(config, options, requests, times)
        twin.run(twins)
        outcome, reg, meters = state.outcome, state.meters.regs[0], state.meters.meters[0]
        assert outcome.admitted_ps.tolist() == [r.admitted for r in twins], seed
        assert outcome.first_ps.tolist() == [r.tokens[0] for r in twins], seed
        assert outcome.last_ps.tolist() == [r.tokens[-1] for r in twins], seed
        assert outcome.generated.tolist() == [r.N for r in twins], seed
        assert (reg[STEPS], reg[SCHEDULED_TOKENS]) == (twin.steps, twin.scheduled), seed
        assert meters[BUSY] == twin.busy, seed
        between = gaps(twins) if twin.stream else []
        assert (state.meters.gaps == histogram(between)).all(), seed
        assert state.meters.cluster[GAP_MAX_PS] == max(between, default=0), seed
        assert state.meters.cluster[FINISHED] == len(twins), seed


def test_wide_batches_equal_the_twin() -> None:
    """Hundreds of rows with many distinct lengths, so that finishing order matters."""
    draw = random.Random(11)
    twins = [Request(i, 10 * i, draw.randint(1, 9), draw.randint(1, 400)) for i in range(700)]
    law, config = Law(w=100, a=3, b=1), engine(300, 512)
    requests = requests_of([r.arrival for r in twins], [r.P for r in twins], [r.N for r in twins])
    state = run_static(config, options_of(stream=True), requests, times_of(law, 512))
    Static(300, 512, law, stream=True).run(twins)
    assert state.outcome.last_ps.tolist() == [r.tokens[-1] for r in twins]
    assert (state.meters.gaps == histogram(gaps(twins))).all()


def test_cutting_the_run_into_calls_changes_nothing() -> None:
    for seed in range(cases(20)):
        config, options, requests, times, _, _ = random_case(seed)
        whole, cut = (run_static(config, options, requests, times, n) for n in (1 << 20, 1))
        for one, other in zip(whole.outcome + whole.meters, cut.outcome + cut.meters, strict=True):
            assert (one == other).all()


def test_no_request_is_no_batch() -> None:
    config, times = engine(8, 64), times_of(Law(w=1, a=1), 64)
    state = new_state(config, 0)
    assert not advance_static(config, options_of(), requests_of([], [], []), times, state, 5)
    assert state.meters.regs[0, STEPS] == 0


# --- worked by hand ---


def test_a_batch_worked_by_hand() -> None:
    """Padded prefill of 2 x 30 tokens in steps of 40 and 20, then 4 decode steps of 2 rows over 2 (30 + j) tokens."""
    law = Law(w=100, a=10, b=1, host=3)
    requests = requests_of([0, 50], [30, 20], [5, 2])
    state = run_static(engine(2, 40), options_of(stream=True), requests, times_of(law, 40))
    prefill_end = 50 + (400 + 3) + (200 + 3)
    decode = [100 + 2 * (30 + j) + 3 for j in (1, 2, 3, 4)]
    assert state.outcome.admitted_ps.tolist() == [50, 50]
    assert state.outcome.first_ps.tolist() == [prefill_end, prefill_end]
    assert state.outcome.last_ps.tolist() == [prefill_end + sum(decode), prefill_end + decode[0]]
    assert (state.meters.gaps == histogram([decode[0], decode[0], *decode[1:]])).all()
    busy = 606 + sum(decode)
    assert state.meters.meters[0, [BUSY, RUNNING_REQUESTS]].tolist() == [busy, 2 * busy]
    assert state.meters.meters[0, USED_BLOCKS] == 2 * (30 + 5) * busy
    assert state.meters.regs[0, [STEPS, SCHEDULED_TOKENS, MAX_USED_BLOCKS]].tolist() == [6, 60 + 4 * 2, 70]


def test_without_streaming_everything_comes_at_the_batchs_end_and_no_gap_is_seen() -> None:
    law, requests = Law(w=100, a=0), requests_of([0, 0], [9, 9], [5, 2])
    state = run_static(engine(2, 40), options_of(), requests, times_of(law, 40))
    assert state.outcome.first_ps.tolist() == state.outcome.last_ps.tolist() == [500, 500]
    assert state.meters.gaps.sum() == 0


@pytest.mark.parametrize(
    ("timeout_ps", "admitted"),
    [
        (NEVER, [1000, 1000, 1000, 9000, 9000]),  # the rest waits for the end of the trace
        (0, [0, 120, 1000, 5000, 9000]),
        (150, [150, 150, 1150, 5150, 9150]),
    ],
)
def test_when_a_batch_starts(timeout_ps: int, admitted: list[int]) -> None:
    """Three slots, one step a request of 100 ps."""
    requests = requests_of([0, 120, 1000, 5000, 9000], [1] * 5, [1] * 5)
    state = run_static(engine(3, 8), options_of(timeout_ps=timeout_ps), requests, times_of(Law(w=100, a=0), 8))
    assert state.outcome.admitted_ps.tolist() == admitted


def test_memory_closes_a_batch_once_the_request_that_does_not_fit_has_come() -> None:
    """Two rows of 10 + 10 take 40 tokens; the third would make it 60. Longer rows widen all."""
    requests = requests_of([0, 10, 70, 80], [10, 10, 10, 25], [10, 10, 10, 10])
    state = run_static(engine(8, 64, num_blocks=50), options_of(), requests, times_of(Law(w=0, a=0), 64))
    assert state.outcome.admitted_ps.tolist() == [70, 70, 80, 80]
    alone = requests_of([0, 10], [10, 10], [10, 41])
    state = run_static(engine(8, 64, num_blocks=50), options_of(), alone, times_of(Law(w=0, a=0), 64))
    assert state.meters.regs[0, MAX_USED_BLOCKS] == 50  # the caller judged that the long one can run, so it runs alone


def test_outputs_are_cut_at_the_models_length() -> None:
    requests = requests_of([0, 0], [10, 4], [50, 3])
    state = run_static(engine(2, 64, max_model_len=16), options_of(), requests, times_of(Law(w=10, a=0), 64))
    assert state.outcome.generated.tolist() == [6, 3]
    assert state.outcome.last_ps.tolist() == [60, 60]


# --- the article ---


def article_times() -> StepTimes:
    """8 ms for a step of up to 8 tokens (only decoding has those), else 0.02 ms a token. Prefill takes one step."""
    tokens = np.arange(8 * 1024 + 1, dtype=np.int64)
    rest_ps = np.where(tokens <= 8, 8 * PS_PER_MS, tokens * (PS_PER_MS // 50))
    return StepTimes(rest_ps, no_table(), no_table(), np.zeros(LAWS, np.int64))


def article_report(state: State, arrival_ps: Int64, outputs: Int64) -> tuple[float, ...]:
    """The article's figures from the product's arrays, in its own percentile rule."""
    latency = np.sort(state.outcome.last_ps - arrival_ps) / PS_PER_MS
    queue = np.sort(state.outcome.admitted_ps - arrival_ps) / PS_PER_MS
    n, total_ms, tokens = len(latency), state.outcome.last_ps.max() / PS_PER_MS, int(outputs.sum())
    figures = (
        total_ms,
        tokens,
        tokens / total_ms * 1000,
        latency[n // 2],
        latency[int(0.99 * n)],
        queue[n // 2],
        latency.mean(),
    )
    return tuple(round(float(value), 3) for value in figures)


@pytest.mark.parametrize("first_token", ["from a decode step", "from the prefill, one more token asked"])
@pytest.mark.parametrize(
    ("ms_per_unit", "recorded"),
    [
        (1, (94_200.037, 52_084, 552.908, 48_798.532, 94_182.151, 44_601.572, 48_725.214)),
        (1000, (94_876.731, 52_084, 548.965, 39_819.749, 76_990.434, 35_622.789, 39_868.370)),
    ],
)
def test_gives_the_articles_static_rows(ms_per_unit: int, recorded: tuple[float, ...], first_token: str) -> None:
    jobs = seed_article.trace()
    emits = first_token != "from a decode step"
    outputs = np.array([job.output for job in jobs], np.int64)
    arrival_ps = np.array([round(job.arrival * ms_per_unit * PS_PER_MS) for job in jobs], np.int64)
    requests = requests_of(arrival_ps, [job.prompt for job in jobs], outputs + emits)
    state = run_static(engine(8, 8 * 1024), options_of(prefill_emits=emits), requests, article_times())
    assert article_report(state, arrival_ps, outputs) == recorded


# --- static against continuous ---


def test_one_slot_is_the_general_loop() -> None:
    """A batch of one is one request at a time: the same steps, priced the same, tables included."""
    for seed in range(100, 100 + cases(60)):
        config, _, requests, times, _, _ = random_case(seed)
        config = config._replace(max_num_seqs=1, batches_in_flight=1, num_blocks=1 << 20)
        static = run_static(config, options_of(stream=True, timeout_ps=0), requests, times)
        general = run_continuous(config, requests, times)
        for name in ("admitted_ps", "first_ps", "last_ps", "generated"):
            assert (getattr(static.outcome, name) == getattr(general.outcome, name)).all(), (seed, name)
        assert (static.meters.gaps == general.meters.gaps).all()
        assert static.meters.regs[0, STEPS] == general.meters.regs[0, STEPS]
        assert static.meters.meters[0, BUSY] == general.meters.meters[0, BUSY]


def makespans(outputs: list[int], prompt: int, law: Law, slots: int = 8) -> tuple[int, int]:
    """(static, continuous) time to serve all requests, all there at the start."""
    n, budget = len(outputs), slots * prompt
    requests, times = requests_of([0] * n, [prompt] * n, outputs), times_of(law, budget)
    # A slot's worth of blocks each, so that memory never decides.
    config = engine(slots, budget, num_blocks=1 << 20)
    static = run_static(config, options_of(stream=True), requests, times)
    continuous = run_continuous(config, requests, times)
    return int(static.meters.regs[0, PREVIOUS_END]), int(continuous.meters.regs[0, PREVIOUS_END])


def test_equal_lengths_all_at_once_make_the_policies_equal() -> None:
    static, continuous = makespans([264] * 200, 100, Law(w=1000, a=3, b=1, e2=1))
    assert static == continuous


def test_the_gain_grows_with_the_variance_of_output_lengths_towards_max_over_mean() -> None:
    """Decode steps of equal length, prefill nearly free: the ratio of makespans against E[max of 8] / E[N]."""
    draw = random.Random(7)
    slots, n = 8, 1200
    previous = 0.99
    for spread in (0, 100, 248):
        outputs = [draw.randint(264 - spread, 264 + spread) for _ in range(n)]
        static, continuous = makespans(outputs, 1, Law(w=1000, a=0))
        longest = sum(max(outputs[i : i + slots]) for i in range(0, n, slots)) / (n / slots)
        limit = longest / (sum(outputs) / n)
        gain = static / continuous
        assert gain > previous
        assert gain == pytest.approx(limit, rel=0.01)
        previous = gain
    assert previous == pytest.approx(457 / 264, rel=0.02)  # uniform 16..512, batches of 8


def test_floor_of_is_where_bins_start() -> None:
    """The random tables above rest on this: a knot's value is the table's own entry."""
    table = np.arange(84, dtype=np.int64).reshape(6, 14)
    assert interpolate(table, floor_of(3, KNOT_BITS), floor_of(9, KNOT_BITS)) == table[3, 9]
