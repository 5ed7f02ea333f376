"""The timeline against a definition that walks over time in small steps, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from planning_doubles import make_result, make_workload

from replay.deployment import resolve_deployment
from replay.hardware.catalogue import shipped_catalogue
from replay.results import ReplayResult, RequestTable
from replay.simulate import simulate
from replay.specs import DeploymentSpec
from replay.timeline import MOST_BINS, KvCapacity, bin_width_s, build_timeline
from replay.workload import Workload

PS = 10**12


def result_of(
    rows: list[tuple[float, float, float, float, int, int]], hits: list[int] | None = None, **changes: object
) -> ReplayResult:
    """A result with rows of arrival, admitted, first, last (s; -1: never), prompt and output tokens."""
    times = [np.array([round(row[i] * PS) if row[i] >= 0 else -1 for row in rows], np.int64) for i in range(4)]
    prompt, output = (np.array([row[i] for row in rows], np.int64) for i in (4, 5))
    zero = np.zeros(len(rows), np.int64)
    status = np.where(times[3] < 0, 1, 0)
    hit = zero if hits is None else np.array(hits, np.int64)
    base = make_result(make_workload(len(rows)), 1, load_factor=0.5, ttft_s=0.1)
    return replace(base, requests=RequestTable(*times, prompt, output, zero, zero, hit, status), **changes)


def test_one_request_by_hand() -> None:
    timeline = build_timeline(result_of([(0.5, 1.5, 2.5, 4.5, 100, 5)]), 1.0)
    assert timeline.start_s.tolist() == [0, 1, 2, 3, 4]
    assert timeline.waiting == pytest.approx([0.5, 0.5, 0, 0, 0])
    assert timeline.running == pytest.approx([0, 0.5, 1, 1, 0.5])
    assert timeline.prompt_tokens == pytest.approx([0, 50, 50, 0, 0])
    assert timeline.output_tokens == pytest.approx([0, 0, 1 + 1, 2, 1])
    assert (timeline.arrived.tolist(), timeline.finished.tolist()) == ([1, 0, 0, 0, 0], [0, 0, 0, 0, 1])
    assert timeline.ttft_p50_s[0] == timeline.ttft_p99_s[0] == 2.0
    assert np.isnan(timeline.ttft_p50_s[1:]).all()
    assert timeline.prefix_hit_rate is None


def random_rows(rng: np.random.Generator, n: int) -> list[tuple[float, float, float, float, int, int]]:
    rows = []
    for _ in range(n):
        arrival = float(rng.uniform(0, 20))
        if rng.random() < 0.1:
            rows.append((arrival, -1.0, -1.0, -1.0, 50, 5))
            continue
        admitted = arrival + float(rng.choice([0.0, rng.exponential(2.0)]))
        first = admitted + float(rng.choice([0.01, rng.exponential(1.0)]))
        output = int(rng.choice([1, 2, 40]))
        last = first if output == 1 else first + float(rng.exponential(4.0))
        rows.append((arrival, admitted, first, last, int(rng.integers(1, 200)), output))
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_against_walking_over_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, 40)
    result = result_of(rows, loop="general")
    capacity = KvCapacity(blocks=1000, block_size=4)
    timeline = build_timeline(result, 0.5, capacity)
    served = [row for row in rows if row[3] >= 0]
    dt = 0.5 / 500
    for b, start in enumerate(timeline.start_s):
        waiting = running = kv = 0.0
        for t in start + dt * (np.arange(500) + 0.5):
            for arrival, admitted, first, last, prompt, output in served:
                waiting += arrival <= t < admitted
                if admitted <= t < last:
                    running += 1
                    done = (t - admitted) / (first - admitted) * prompt if t < first else float(prompt)
                    done += (t - first) / (last - first) * (output - 1) if t >= first else 0.0
                    kv += (done + 1.5) / 4
        assert timeline.waiting[b] == pytest.approx(waiting / 500, abs=0.05)
        assert timeline.running[b] == pytest.approx(running / 500, abs=0.05)
        assert timeline.kv_usage is not None
        assert timeline.kv_usage[b] == pytest.approx(kv / 500 / 1000, abs=0.005)
        here = [first - arrival for arrival, _, first, *_ in served if start <= arrival < start + 0.5]
        if here:
            assert timeline.ttft_p99_s[b] == pytest.approx(np.percentile(here, 99))
    assert timeline.arrived.sum() == len(rows)
    assert timeline.admitted.sum() == timeline.finished.sum() == len(served)
    assert timeline.prompt_tokens.sum() == pytest.approx(sum(row[4] for row in served))
    assert timeline.output_tokens.sum() == pytest.approx(sum(row[5] for row in served))


def test_output_tokens_are_spread_evenly_between_first_and_last() -> None:
    rng = np.random.default_rng(9)
    rows = [row for row in random_rows(rng, 60) if row[3] >= 0]
    timeline = build_timeline(result_of(rows), 0.25)
    expected = np.zeros(len(timeline.start_s))
    for _, _, first, last, _, output in rows:
        expected[int(first // 0.25)] += 1
        for b, start in enumerate(timeline.start_s):
            if last > first:
                overlap = max(0.0, min(last, start + 0.25) - max(first, start))
                expected[b] += (output - 1) * overlap / (last - first)
    assert timeline.output_tokens == pytest.approx(expected, abs=1e-6)


def test_hits_are_not_computed_and_give_the_rate_of_the_admission_bin() -> None:
    rows = [(0.0, 0.0, 0.5, 0.9, 100, 2), (1.0, 1.0, 1.5, 1.9, 100, 2), (1.1, 1.2, 1.5, 1.9, 300, 2)]
    timeline = build_timeline(result_of(rows, hits=[0, 50, 50], prefix_hit_rate=0.2), 1.0, KvCapacity(10, 16))
    assert timeline.prompt_tokens == pytest.approx([100, 300])
    assert timeline.prefix_hit_rate == pytest.approx([0, 0.25])
    assert timeline.kv_usage is None, "shared blocks cannot be told from the table"


def test_preemptions_are_spread_over_the_time_in_the_engine() -> None:
    result = result_of([(0.0, 0.5, 1.0, 2.5, 10, 5)])
    table = replace(result.requests, preemptions=np.array([4]))
    assert build_timeline(replace(result, requests=table), 1.0).preemptions == pytest.approx([1, 2, 1])


@pytest.mark.parametrize("end_s", [0.0, 0.4, 7.0, 59.9, 600.0, 3600.0, 86400.0, 7.7e6, 1e9])
@pytest.mark.parametrize("asked", [None, 0.001, 1.0, 60.0])
def test_never_more_than_the_most_bins(end_s: float, asked: float | None) -> None:
    width = bin_width_s(end_s, asked)
    assert int(end_s // width) + 1 <= MOST_BINS
    if asked is not None and end_s < asked * MOST_BINS:
        assert width == asked
    elif asked is not None:
        assert width > asked


def test_long_spans_leave_no_trace_in_empty_bins() -> None:
    rng = np.random.default_rng(2)
    start = np.sort(rng.uniform(0, 1e5, 50_000))
    times = [np.rint((start + d) * PS).astype(np.int64) for d in (0, 0.001, 0.003, 9.0)]
    n = len(start)
    zero, prompt, output = np.zeros(n, np.int64), np.full(n, 8000), np.full(n, 300)
    late = [np.append(column, round(2e6 * PS)) for column in times]
    grow = [np.append(column, column[:1]) for column in (prompt, output, zero, zero, zero, zero)]
    base = make_result(make_workload(4), 1, load_factor=0.5, ttft_s=0.1)
    result = replace(base, requests=RequestTable(*late, *grow), loop="fast")
    timeline = build_timeline(result, None, KvCapacity(100_000, 16))
    empty = (timeline.start_s > 1.1e5) & (timeline.start_s < 1.9e6)
    assert timeline.kv_usage is not None
    for column in (timeline.running, timeline.waiting, timeline.prompt_tokens, timeline.output_tokens):
        assert np.abs(column[empty]).max() < 1e-3
    assert timeline.kv_usage[empty].max() < 1e-6
    assert timeline.output_tokens.sum() == pytest.approx((n + 1) * 300)


@pytest.mark.parametrize("preset", ["vllm-0.33", "vllm-0.8"])
def test_the_timeline_agrees_with_what_the_kernels_measured(preset: str) -> None:
    """Means over the replay: running requests exactly (as the scheduler has them longer by its pipeline, to 5 %), KV
    use to 10 %."""
    catalogue = shipped_catalogue()
    spec = DeploymentSpec.model_validate(
        {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100-SXM", "engine": {"preset": preset}}
    )
    deployment = resolve_deployment(spec, catalogue.model(spec.model), catalogue.gpu(spec.gpu))
    rng = np.random.default_rng(4)
    n = 1200
    arrival = np.sort(rng.integers(0, 100 * PS, n))
    load = Workload(arrival, rng.integers(100, 2000, n), rng.integers(50, 300, n), 100.0)
    result = simulate(load, deployment)
    assert result.preemptions == 0
    timeline = build_timeline(result, 1.0, KvCapacity(deployment.usable_blocks, deployment.block_size))
    assert timeline.kv_usage is not None
    busy_s = result.busy_fraction * result.duration_s
    assert timeline.running.sum() / busy_s == pytest.approx(result.batch_mean, rel=0.05)
    assert timeline.kv_usage.sum() / busy_s == pytest.approx(result.kv_usage_mean, rel=0.1)
    assert timeline.output_tokens.sum() == pytest.approx(result.output_tokens)
