"""Scoring, goodput, attainment, splits and ITL percentiles against naive definitions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from planning_doubles import make_result, make_workload

from replay.deployment import Deployment, resolve_deployment
from replay.errors import SpecError
from replay.goodput import attained, goodput
from replay.hardware.catalogue import shipped_catalogue
from replay.kernels.loglinear import bin_of, gap_bin_edges_ps
from replay.kernels.state import GAP_BINS, GAP_BITS
from replay.planning.idle import idle_value_s
from replay.results import Histogram, ReplayResult, RequestTable
from replay.simulate import simulate
from replay.specs import DeploymentSpec, Objective, Transform, parse_objective
from replay.splits import split
from replay.workload import Labels, Workload

PS = 10**12
MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "H100-SXM"


def deployment(
    preset: str = "vllm-0.33", replicas: int = 1, router: str = "round_robin", **knobs: object
) -> Deployment:
    catalogue = shipped_catalogue()
    engine = {"preset": preset, "overrides": knobs}
    body = {"model": MODEL, "gpu": GPU, "replicas": replicas, "router": router, "engine": engine}
    return resolve_deployment(DeploymentSpec.model_validate(body), catalogue.model(MODEL), catalogue.gpu(GPU))


def workload(n: int = 300, rate_rps: float = 20.0, seed: int = 3) -> Workload:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, n))
    return Workload(
        (arrival_s * PS).astype(np.int64),
        rng.integers(1, 1200, n),
        rng.choice([1, 2, 60, 200], n),
        float(arrival_s[-1]),
    )


# ITL percentiles


def histogram(gaps_ps: np.ndarray) -> Histogram:
    low, high = gap_bin_edges_ps()
    weight = np.bincount([bin_of(int(gap), GAP_BITS) for gap in gaps_ps], minlength=GAP_BINS)
    used = np.flatnonzero(weight)
    value = (low[used] + high[used]) / 2 / 1e12
    return Histogram(value, weight[used], float(gaps_ps.mean() / 1e12), float(gaps_ps.max() / 1e12))


@pytest.mark.parametrize("seed", range(8))
def test_itl_percentiles_are_numpys_to_a_fifth_of_a_percent(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1, 2, 3, 10, 500]))
    gaps = np.rint(10 ** rng.uniform(9, 12.5, n)).astype(np.int64)
    made = histogram(gaps)
    for q in (0, 1, 50, 90, 95, 99, 99.9, 100):
        assert made.percentile(q) == pytest.approx(np.percentile(gaps / 1e12, q), rel=0.002)
    assert made.percentile(100) == gaps.max() / 1e12


def test_itl_percentiles_of_two_far_samples_lie_between_them() -> None:
    made = histogram(np.array([10**10, 10**12]))
    assert made.percentile(50) == pytest.approx(0.505, rel=0.002)
    assert histogram(np.full(5, 10**10)).percentile(99) == pytest.approx(0.01, rel=0.002)
    assert Histogram(np.zeros(0), np.zeros(0, np.int64), None, None).percentile(50) is None


# Warm-up and cool-down


@pytest.mark.parametrize(
    "d",
    [
        deployment(),
        deployment(long_prefill_token_threshold=10_000),
        deployment(num_gpu_blocks_override=150, max_num_seqs=64),
        deployment(replicas=3),
        deployment(replicas=2, router="least_outstanding"),
        deployment("static", stream_finished=True, max_num_seqs=8),
        deployment("vllm-v0", max_num_seqs=16),
    ],
    ids=["fast", "general", "preempting", "round robin", "router", "static", "v0"],
)
def test_scored_requests_are_a_part_of_the_same_replay(d: Deployment) -> None:
    load = workload()
    whole = simulate(load, d)
    first, end = 61, 240
    part = simulate(replace(load, scored=(first, end)), d, threads=2)
    head = simulate(replace(load, scored=(0, first)), d)
    tail = simulate(replace(load, scored=(end, load.n)), d)
    for name in ("admitted_ps", "first_token_ps", "last_token_ps", "preemptions"):
        assert np.array_equal(getattr(part.requests, name), getattr(whole.requests, name))
    assert (part.steps, part.load_factor, part.finished) == (whole.steps, whole.load_factor, whole.finished)
    assert np.array_equal(part.ttft_s, whole.ttft_s[first:end])
    assert np.array_equal(part.e2e_s, whole.e2e_s[first:end])
    table = part.requests
    span = (table.last_token_ps - table.first_token_ps)[first:end]
    gaps = (table.output_tokens - 1)[first:end].sum()
    assert part.itl.weight.sum() == gaps, "every gap of a scored request, and no other"
    assert part.itl.mean_s == pytest.approx(span.sum() / PS / gaps)
    pooled: defaultdict[float, int] = defaultdict(int)
    for one in (head, part, tail):
        for value, weight in zip(one.itl.value_s.tolist(), one.itl.weight.tolist(), strict=True):
            pooled[value] += weight
    assert pooled == dict(zip(whole.itl.value_s.tolist(), whole.itl.weight.tolist(), strict=True))
    assert max(one.itl.max_s or 0 for one in (head, part, tail)) == whole.itl.max_s
    assert part.itl.max_s == pytest.approx(max(part.itl.value_s), rel=0.004)
    assert part.scored_part == slice(first, end)


def test_scored_requests_among_some_that_cannot_run() -> None:
    load = workload(n=100)
    prompt = load.prompt_tokens.copy()
    prompt[[0, 5, 40, 41, 90]] = 5000
    d = deployment(max_model_len=2000)
    whole = simulate(replace(load, prompt_tokens=prompt), d)
    part = simulate(replace(load, prompt_tokens=prompt, scored=(10, 50)), d)
    assert len(part.ttft_s) == 38
    assert np.array_equal(part.ttft_s, whole.ttft_s[8:46])
    assert np.isinf(part.values_s("ttft")).sum() == 2
    assert part.rejected == {"too_long_for_model": 5}


def test_a_trim_that_leaves_nothing_of_the_window_is_refused() -> None:
    with pytest.raises(ValueError, match="leave nothing of the window"):
        Transform(window_start_s=10, window_end_s=20, warmup_s=5, cooldown_s=5)
    assert Transform(window_end_s=20, warmup_s=5, cooldown_s=5).warmup_s == 5


def test_the_idle_bound_is_of_the_scored_requests() -> None:
    n = 100
    prompt = np.where(np.arange(n) < 50, 8000, 10)
    load = Workload(np.arange(n) * PS, prompt, np.full(n, 2), float(n))
    objective, d = parse_objective("ttft_p99=1s"), deployment()
    assert idle_value_s(objective, replace(load, scored=(50, n)), d) < 0.1 * idle_value_s(objective, load, d)
    half = parse_objective("ttft<=1s@50%")
    assert idle_value_s(half, load, d) < 0.1 * idle_value_s(parse_objective("ttft<=1s@51%"), load, d)


# Goodput and attainment


def naive_good(result: ReplayResult, objectives: list[Objective]) -> tuple[int, float]:
    """Good scored requests and their rate, one request at a time."""
    table, part = result.requests, result.scored_part
    good, begin, finish = 0, None, 0.0
    for i in range(part.start, part.stop):
        arrival, first, last = (int(x[i]) for x in (table.arrival_ps, table.first_token_ps, table.last_token_ps))
        if last < 0:
            continue
        begin = arrival if begin is None else begin
        finish = max(finish, last)
        tokens = int(table.output_tokens[i])
        value = {
            "ttft": (first - arrival) / PS,
            "e2e": (last - arrival) / PS,
            "tpot": 0.0 if tokens == 1 else (last - first) / PS / (tokens - 1),
            "queue": (int(table.admitted_ps[i]) - arrival) / PS,
        }
        good += all(
            value[one.metric] <= one.threshold_s
            for one in objectives
            if one.metric != "itl" and (one.attainment is not None or one.percentile is not None)
        )
    return good, good / ((finish - (begin or 0)) / PS)


SETS = (
    ("ttft_p99=60ms",),
    ("ttft<=45ms@90%", "tpot_p95=12ms"),
    ("e2e_p90=1s", "queue_p50=5ms", "itl_p99=1ms", "e2e_mean=1ms"),
    ("tpot<=1us@10%",),
)


@pytest.mark.parametrize("texts", SETS)
@pytest.mark.parametrize("scored", [None, (40, 200)])
def test_goodput_is_requests_that_meet_every_limit_per_second(
    texts: tuple[str, ...], scored: tuple[int, int] | None
) -> None:
    load = workload(n=250)
    prompt = load.prompt_tokens.copy()
    prompt[[3, 77]] = 9000
    result = simulate(replace(load, prompt_tokens=prompt, scored=scored), deployment(max_model_len=4000))
    objectives = [parse_objective(text) for text in texts]
    found = goodput(result, objectives)
    assert found is not None
    good, rate = naive_good(result, objectives)
    assert (found.good, found.scored) == (good, 250 if scored is None else 160)
    assert found.requests_per_s == pytest.approx(rate)
    if texts == ("tpot<=1us@10%",):
        single = (result.requests.output_tokens == 1)[result.scored_part].sum()
        assert single - 2 <= good <= single, "only requests without a TPOT are that fast"
    assert set(found.objectives) == {one.name for one in objectives if one.metric != "itl" and "mean" not in one.name}


def test_no_goodput_without_a_limit_on_requests() -> None:
    result = simulate(workload(n=20), deployment())
    assert goodput(result, []) is None
    assert goodput(result, [parse_objective("itl_p99=50ms"), parse_objective("e2e_mean=9s")]) is None
    assert attained(result, parse_objective("itl_p99=50ms")) is None


@pytest.mark.parametrize("share", [1, 10, 50, 90, 99, 99.9, 100])
def test_an_attainment_is_met_exactly_where_the_share_is_reached(share: float) -> None:
    rng = np.random.default_rng(int(share))
    result = simulate(workload(n=int(rng.integers(1, 200))), deployment())
    ttft = np.sort(result.ttft_s)
    for limit in (ttft[0], ttft[-1], *rng.choice(ttft, 5), *(rng.choice(ttft, 5) * 0.999999)):
        objective = Objective(metric="ttft", threshold_s=float(limit), attainment=share / 100)
        value = result.value(objective)
        assert value is not None
        assert value == pytest.approx(np.percentile(ttft, share, method="inverted_cdf"))
        reached = (ttft <= limit).sum() / len(ttft)
        assert attained(result, objective) == pytest.approx(reached)
        assert (value <= limit) == (reached >= share / 100 - 1e-12)


def test_requests_that_are_never_served_miss_an_attainment() -> None:
    load = Workload(np.arange(4) * PS, np.array([10, 10, 10, 9000]), np.full(4, 3), 4.0)
    result = simulate(load, deployment(max_model_len=1000))
    assert result.value(parse_objective("ttft<=2s@75%")) is not None
    assert result.value(parse_objective("ttft<=2s@76%")) is None
    assert attained(result, parse_objective("ttft<=2s@76%")) == 0.75
    assert result.value(parse_objective("ttft_p99=2s")) is not None


def test_objectives_with_an_attainment_are_read_and_named() -> None:
    one = parse_objective("ttft<=2s@99%")
    assert (one.metric, one.threshold_s, one.attainment, one.name) == ("ttft", 2.0, 0.99, "ttft_attain99")
    assert parse_objective(" tpot = 50ms @ 99.9 % ").name == "tpot_attain99.9"
    assert parse_objective("ttft_p99=2s").attainment is None
    for text, what in (
        ("ttft<=2s", "cannot read"),
        ("ttft_p99=2s@99%", "cannot read"),
        ("ttft<=2s@0%", "give a number above 0"),
        ("ttft<=2s@101%", "give at most 1"),
        ("itl<=20ms@99%", "use tpot"),
        ("ttft<=2parsec@99%", "unknown unit"),
    ):
        with pytest.raises(SpecError, match=what):
            parse_objective(text)


# Splits


def labelled(result: ReplayResult, code: np.ndarray, names: tuple[str, ...]) -> Labels:
    assert len(code) == len(result.requests.arrival_ps)
    return Labels(code.astype(np.int32), names)


@pytest.mark.parametrize("count", [1, 3, 20, 21, 22, 60])
@pytest.mark.parametrize("scored", [None, (30, 250)])
def test_splits_are_the_metrics_of_each_group(count: int, scored: tuple[int, int] | None) -> None:
    rng = np.random.default_rng(count)
    load = workload()
    prompt = load.prompt_tokens.copy()
    prompt[::50] = 9000
    result = simulate(replace(load, prompt_tokens=prompt, scored=scored), deployment(max_model_len=4000))
    names = tuple(f"tenant {i:02d}" for i in range(count))
    code = np.minimum(rng.geometric(0.15, load.n) - 1, count - 1)
    objectives = [parse_objective("ttft_p99=45ms")]
    groups = split(result, labelled(result, code, names), objectives)
    part, table = result.scored_part, result.requests
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for i in range(part.start, part.stop):
        rows[names[code[i]]].append(i)
    ranked = sorted(rows, key=lambda name: (-len(rows[name]), name))
    assert [one.name for one in groups[:20]] == ranked[:20]
    expected = [rows[name] for name in ranked[:20]]
    if len(ranked) > 20:
        expected.append(sorted(i for name in ranked[20:] for i in rows[name]))
        assert groups[20].members == len(ranked) - 20
        assert groups[20].name == (ranked[20] if len(ranked) == 21 else f"({len(ranked) - 20} others)")
    assert len(groups) == len(expected)
    for group, members in zip(groups, expected, strict=True):
        done = [i for i in members if table.last_token_ps[i] >= 0]
        assert (group.requests, group.finished) == (len(members), len(done))
        assert group.output_tokens == sum(table.output_tokens[i] for i in done)
        ttft = [(table.first_token_ps[i] - table.arrival_ps[i]) / PS for i in done]
        if done:
            assert group.quantiles_s["ttft"] == pytest.approx(tuple(np.percentile(ttft, (50, 99))))
        tpot = [
            (table.last_token_ps[i] - table.first_token_ps[i]) / PS / (table.output_tokens[i] - 1)
            for i in done
            if table.output_tokens[i] > 1
        ]
        if tpot:
            assert group.quantiles_s["tpot"] == pytest.approx(tuple(np.percentile(tpot, (50, 99))))
        assert group.good == sum(value <= 0.045 for value in ttft)
    total = goodput(result, objectives)
    assert total is not None
    assert sum(one.good or 0 for one in groups) == total.good
    assert sum(one.requests for one in groups) == part.stop - part.start


def test_a_split_of_nobody_finished_has_no_latency() -> None:
    result = make_result(make_workload(3), 1, load_factor=0.5, ttft_s=0.1)
    never = np.full(3, -1, np.int64)
    zero = np.zeros(3, np.int64)
    table = RequestTable(zero, never, never, never, zero, zero, never, zero, zero, zero + 1)
    (group,) = split(replace(result, requests=table), Labels(np.zeros(3, np.int32), ("a",)))
    assert (group.requests, group.finished, group.quantiles_s, group.good) == (3, 0, {}, None)
