import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from planning_doubles import make_plan, make_result, make_workload

from replay.deployment import Deployment, resolve_deployment
from replay.planning.figures import curve_point, figure, operating, summarise_workload
from replay.planning.idle import idle_value_s
from replay.planning.parts import CurvePoint, ObjectiveOutcome
from replay.planning.wording import objective_text, quantity, unmet_sentence
from replay.specs import Objective, parse_objective
from replay.workload import Workload


def deployment() -> Deployment:
    plan = make_plan()
    return resolve_deployment(plan.deployment(plan.candidates()[0]), plan.model, plan.gpus[0])


def test_summary_of_a_known_workload() -> None:
    second = 10**12
    arrival = np.array([0, 0, 0, 1, 70, 119], dtype=np.int64) * second
    workload = Workload(arrival, np.arange(1, 7), np.full(6, 10), 120.0, {"outside_window": 4}, ("as sent",))
    summary = summarise_workload(workload)
    assert summary.mean_rps == 0.05
    assert summary.peak_rps_1s == 3.0
    assert summary.peak_rps_1min == figure(4 / 60)
    counts = np.array([3, 1] + [0] * 68 + [1] + [0] * 48 + [1])
    assert summary.burstiness == figure(counts.var() / counts.mean())
    assert (summary.prompt_tokens, summary.output_tokens) == (21, 60)
    assert summary.prompt_length is not None
    assert summary.prompt_length.p50 == 3.5
    assert summary.excluded == {"outside_window": 4}
    series = summary.series
    assert series.bin_s == 1.0
    assert len(series.start_s) == 120
    assert (sum(series.requests), sum(series.prompt_tokens), sum(series.output_tokens)) == (6, 21, 60)


def test_peaks_are_of_any_window_and_none_where_the_trace_is_shorter() -> None:
    second = 10**12
    arrival = np.array([0, 90, 91, 92, 93, 94, 95, 96, 97, 98, 99], dtype=np.int64) * (second // 100)
    late = Workload(arrival + second // 2, np.full(11, 5), np.full(11, 5), 20.0)
    summary = summarise_workload(late)
    assert summary.peak_rps_1s == 11.0, "across the whole second between 0.5 s and 1.5 s"
    assert summary.peak_rps_1min is None, "20 s have no minute"
    assert summarise_workload(dataclasses.replace(late, span_s=60.0)).peak_rps_1min == figure(11 / 60)
    assert summarise_workload(dataclasses.replace(late, span_s=9.5)).burstiness is None


def test_burstiness_leaves_out_the_last_part_of_a_second() -> None:
    even = make_workload(41, span_s=10.25)
    assert summarise_workload(even).burstiness == 0.0


def test_series_stays_short_for_long_traces() -> None:
    week = summarise_workload(make_workload(1000, span_s=7 * 86400.0))
    assert 100 <= len(week.series.requests) <= 241
    assert sum(week.series.requests) == 1000


def test_empty_workload_has_no_rates_and_no_nan() -> None:
    summary = summarise_workload(make_workload(0, span_s=0.0))
    assert summary.mean_rps is None
    assert summary.peak_rps_1s is None
    assert summary.prompt_length is None


def test_an_unfinished_request_fails_the_point() -> None:
    workload = make_workload()
    good = make_result(workload, 1, load_factor=0.5, ttft_s=0.1)
    objectives = (parse_objective("ttft_p99=1s"),)
    assert curve_point(good, requests=workload.n, replica_gpus=2, objectives=objectives, usd_per_hour=None).passed
    short = dataclasses.replace(good, finished=workload.n - 1)
    point = curve_point(short, requests=workload.n, replica_gpus=2, objectives=objectives, usd_per_hour=None)
    assert not point.passed
    assert point.gpus == 2


def test_operating_point_of_one_idle_deployment() -> None:
    workload = make_workload()
    point = operating(make_result(workload, 1, load_factor=0.25, ttft_s=0.1), workload, ())
    assert point.headroom == 3.0
    assert point.offered_rps == 2.0
    assert point.sustainable_rps == 8.0
    assert point.metrics.e2e_s.mean == 1.1


def test_idle_bound_by_hand() -> None:
    found = deployment()
    chunk = found.engine.max_num_batched_tokens
    rest = 10**9 + 10**7 * np.arange(chunk + 1, dtype=np.int64)
    rest[1] = 5 * 10**9  # one token alone is slower than eight, as some timed kernels are
    record = replace(found.step_time, rest_ps=rest, decode_linear_ps=40_000, prefill_linear_ps=30, prefill_step_ps=7)
    alone = replace(found, step_time=record)
    prompt, output = chunk + 100, 3
    workload = make_workload(4, prompt=prompt, output=output)
    prefill = record.request_overhead_ps + prompt * rest[chunk] / chunk + 7
    prefill += 30 * prompt * (prompt + 1)
    ttft = idle_value_s(parse_objective("ttft_p50=1s"), workload, alone)
    assert ttft == pytest.approx(prefill / 1e12)
    decode = 2 * (rest[2] + record.decode_request_ps) + 40_000 * ((prompt + 1) + (prompt + 2))
    short = idle_value_s(parse_objective("ttft_p50=1s"), make_workload(4, prompt=50, output=2), alone)
    assert short == pytest.approx((record.request_overhead_ps + rest[50] + 7 + 30 * 50 * 51) / 1e12)
    e2e = idle_value_s(parse_objective("e2e_mean=1s"), workload, alone)
    assert e2e == pytest.approx((prefill + decode) / 1e12)
    assert idle_value_s(parse_objective("itl_p99=1s"), workload, alone) == 0.0


def test_words() -> None:
    assert quantity(0.0384) == "38.4 ms"
    assert quantity(2.0) == "2 s"
    assert quantity(12345.6) == "12346 s"


def test_a_value_just_over_its_limit_is_told_from_it() -> None:
    row = ObjectiveOutcome(
        name="ttft_p99", metric="ttft", percentile=99, threshold_s=1.0, value_s=1.0004, met=False, margin=-0.0004
    )
    point = CurvePoint(
        replicas=1, gpus=1, load_factor=0.5, saturated=False, passed=False, objectives=(row,), finished=9
    )
    assert unmet_sentence(point) == "ttft_p99 is 1.0004 s against 1 s"
    assert objective_text(Objective(metric="itl", percentile=None, threshold_s=0.05)) == "itl_mean <= 50 ms"
