"""Figures are valid for Plotly and hold the document's numbers."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest
from report_documents import burst_plan_document, plan_document, replay_document, timeline, without_range

from api.reports import figures, render_timeline_csv
from api.reports.html import context
from api.reports.sections import Chart
from replay.planning.document import PlanReport, parse_report


def plan() -> PlanReport:
    report = parse_report(plan_document())
    assert isinstance(report, PlanReport)
    return report


def charts(document: dict[str, object]) -> list[Chart]:
    made = context(document)
    found = [made["load"], made["memory"], made["alternatives"]]
    for one in made["candidates"]:
        found.append(one.latency)
    found += [one.chart for one in made["curves"]]
    found += made["over_time"]
    return [chart for chart in found if chart is not None]


@pytest.mark.parametrize("document", [plan_document(), replay_document()], ids=["plan", "replay"])
def test_plotly_accepts_every_figure(document: dict[str, object]) -> None:
    drawn = [chart for chart in charts(document) if chart.figure is not None]
    assert len(drawn) >= 3
    for chart in drawn:
        assert len(go.Figure(chart.figure).data) == len(chart.figure["data"])


def test_workload_in_requests_per_second() -> None:
    series = plan().workload.series
    figure = figures.workload(series)
    assert figure["data"][0]["y"] == [n / 60 for n in series.requests]
    assert figure["data"][0]["x"][1] == pytest.approx(1.0)
    assert "minutes" in figure["layout"]["xaxis"]["title"]["text"]


def test_a_replay_over_time_in_four_charts_and_one_csv() -> None:
    document = replay_document()
    queue, tokens, ttft, use = context(document)["over_time"]
    assert [line["name"] for line in queue.figure["data"]] == ["running", "waiting"]
    assert queue.figure["data"][0]["x"][1] == pytest.approx(1.0)
    assert tokens.figure["data"][1]["y"] == document["timeline"]["output_tokens_per_s"]
    assert ttft.figure["data"][1]["y"][-1] is None, "no sample is a gap, not a zero"
    assert [line["name"] for line in use.figure["data"]] == ["batch", "KV cache, estimated"]
    lines = render_timeline_csv(document).splitlines()
    assert lines[0].startswith("start_s,arrived,admitted,finished,finished_per_s,running,waiting,")
    assert "kv_usage" in lines[0]
    assert "prefix_hit_rate" not in lines[0]
    assert len(lines) == 13
    assert lines[2].split(",")[:2] == ["60.0", str(document["timeline"]["arrived"][1])]
    cached = document | {"timeline": timeline(cache=True)}
    assert "prefix_hit_rate" in render_timeline_csv(cached).splitlines()[0]
    for without in (plan_document(), replay_document() | {"timeline": None}):
        with pytest.raises(ValueError, match="no timeline"):
            render_timeline_csv(without)


def test_capacity_in_shares_of_the_limit() -> None:
    curve = plan().recommendations[0].curve
    figure = figures.capacity(curve)
    ttft = figure["data"][0]
    assert ttft["x"] == [point.replicas for point in curve]
    assert ttft["y"][3] == pytest.approx(0.15 / 2.0)
    assert ttft["marker"]["symbol"] == ["circle" if point.passed else "x" for point in curve]
    assert figure["data"][-1]["y"] == [point.load_factor for point in curve]


def test_without_an_offered_rate_there_is_no_load_line() -> None:
    report = parse_report(burst_plan_document())
    assert isinstance(report, PlanReport)
    assert [line["name"] for line in figures.capacity(report.recommendations[0].curve)["data"]] == [
        "ttft_p99",
        "itl_p99",
    ]


def test_memory_adds_up_to_the_gpu() -> None:
    stack = plan().recommendations[0].memory
    figure = figures.memory([("a", stack)])
    assert sum(bar["x"][0] for bar in figure["data"]) == pytest.approx(stack.total_gib, abs=0.01)


def test_unpriced_candidates_are_not_drawn_as_free() -> None:
    figure = figures.alternatives(plan().recommendations)
    assert figure is not None
    assert figure["data"][0]["x"] == [10.0, 19.0]
    unpriced = [one for one in plan().recommendations if one.usd_per_hour is None]
    assert figures.alternatives(unpriced) is None


def test_a_candidate_without_a_range_looks_and_reads_different() -> None:
    document = plan_document()
    document["recommendations"][1] = without_range(document["recommendations"][1])
    report = parse_report(document)
    assert isinstance(report, PlanReport)
    figure = figures.alternatives(report.recommendations)
    assert figure is not None
    bar = figure["data"][0]
    assert bar["text"] == ["4 GPUs", "10 GPUs, measure first"]
    assert bar["marker"]["color"][0] != bar["marker"]["color"][1]
    assert bar["error_x"]["array"][1] == 0.0


@pytest.mark.parametrize(("span", "unit"), [(60, "seconds"), (3600, "minutes"), (86400, "hours"), (604800, "days")])
def test_time_axis_suits_the_span(span: float, unit: str) -> None:
    assert figures.time_unit(span)[1] == unit


def test_small_residuals_have_ticks_of_their_own() -> None:
    figure = figures.residuals({"decode": [(0.01, 0.01005), (0.01, 0.00995)]})
    assert figure["layout"]["yaxis"]["tickformat"] == "~%", "whole per cents would name -0.5 % and -1 % alike"
