"""Regions, counts, medians: the scoring rules one by one, and a planted error that is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import measured_runs as made
import numpy as np
import pytest

from replay.accuracy.field import beside_the_field
from replay.accuracy.regions import region_of, scored_rows
from replay.accuracy.replayed import ScoredRun, resolved, scaled, score_run
from replay.accuracy.runs import MeasuredRun, read_runs
from replay.accuracy.summary import judged, summarise, worst_runs
from replay.hardware.catalogue import shipped_catalogue
from replay.simulate import simulate

CATALOGUE = shipped_catalogue()


def run_of(root: Path, **fields: Any) -> MeasuredRun:
    made.write(root, **fields)
    (run,) = read_runs(root)
    assert isinstance(run, MeasuredRun), run
    return run


def region(root: Path, n: int = 400, seats: int = 256, quality: str = "ok", **columns: Any) -> str:
    later = {"e2e_s": lambda i: columns["ttft_s"](i) + 0.2} if "ttft_s" in columns else {}
    return region_of(run_of(root, requests=made.rows(n, **later, **columns), quality=quality), seats)


def test_steady_ttft_is_below(tmp_path: Path) -> None:
    assert region(tmp_path) == "below"


def test_ttft_that_grows_threefold_is_above(tmp_path: Path) -> None:
    assert region(tmp_path, ttft_s=lambda i: 0.1 + 0.002 * i) == "above"


def test_growth_is_judged_by_stages_where_the_rate_steps(tmp_path: Path) -> None:
    def ttft(i: int) -> float:
        return 0.4 if i >= 390 else 0.1

    assert region(tmp_path / "a", ttft_s=ttft, stage=lambda i: int(i >= 390)) == "above"
    assert region(tmp_path / "b", ttft_s=lambda i: 0.25 if i >= 390 else 0.1, stage=lambda i: int(i >= 390)) == "below"


def test_a_wide_spread_is_near(tmp_path: Path) -> None:
    assert region(tmp_path, ttft_s=lambda i: 0.5 if i % 20 == 0 else 0.1) == "near"


def test_taken_seats_are_near(tmp_path: Path) -> None:
    long = {"e2e_s": 20.1, "itl_mean_s": 2.0}
    assert region(tmp_path / "a", seats=15, **long) == "near"
    assert region(tmp_path / "b", seats=30, **long) == "below"


def test_an_overloaded_run_is_above_whatever_it_looks_like(tmp_path: Path) -> None:
    assert region(tmp_path, quality="overload") == "above"


def test_the_first_minute_of_a_long_run_is_not_scored(tmp_path: Path) -> None:
    long, short = (run_of(tmp_path / str(n), requests=made.rows(n)).rows for n in (301, 300))
    assert long is not None
    assert short is not None
    assert scored_rows(long).sum() == 241
    assert scored_rows(short).sum() == 300


def planted(root: Path, n: int, factor: float, **fields: Any) -> tuple[ScoredRun, MeasuredRun]:
    """A run whose measurements are a simulation with steps ``factor`` times as long."""
    run = run_of(root, requests=made.rows(n, arrival_s=lambda i: 0.1 * i), **fields)
    deployment = resolved(run, CATALOGUE)
    slower = replace(deployment, step_time=scaled(deployment.step_time, factor))
    table = simulate(run.workload, slower).requests
    assert run.rows is not None
    measured = replace(
        run.rows,
        ttft_s=(table.first_token_ps - table.arrival_ps) / 1e12,
        e2e_s=(table.last_token_ps - table.arrival_ps) / 1e12,
    )
    run = replace(run, rows=measured)
    return score_run(run, deployment), run


def test_the_very_same_law_scores_nothing(tmp_path: Path) -> None:
    scored, _ = planted(tmp_path, 600, 1.0)
    for figures in scored.figures.values():
        assert all(figure.error == pytest.approx(0.0, abs=1e-9) for figure in figures.values())
    assert scored.throughput is not None
    assert scored.throughput.relative == pytest.approx(0.0, abs=1e-9)


def test_a_planted_error_of_the_steps_is_found_with_its_sign(tmp_path: Path) -> None:
    scored, _ = planted(tmp_path, 600, 1.25)
    assert scored.figures["itl_s"]["mean"].error == pytest.approx(1 / 1.25 - 1, abs=0.02)


def test_near_saturation_the_step_time_factor_is_found(tmp_path: Path) -> None:
    _, run = planted(tmp_path, 150, 1.1)
    deployment = resolved(run, CATALOGUE)
    assert run.rows is not None
    spread = replace(run, rows=replace(run.rows, ttft_s=np.where(np.arange(150) < 3, 0.2, run.rows.ttft_s)))
    scored = score_run(spread, deployment)
    assert scored.region == "near"
    assert scored.rate_error == pytest.approx(1 / 1.1 - 1, abs=0.01)
    assert score_run(spread, deployment, rate_error=False).rate_error is None


def test_counts_say_what_is_scored(tmp_path: Path) -> None:
    few, _ = planted(tmp_path / "a", 90, 1.0)
    some, _ = planted(tmp_path / "b", 200, 1.0)
    many, _ = planted(tmp_path / "c", 500, 1.0)
    assert [run.figures["ttft_s"]["mean"].counts for run in (few, some, many)] == [False, True, True]
    assert [run.figures["ttft_s"]["p99"].counts for run in (few, some, many)] == [False, False, True]


def test_runs_of_other_quality_score_throughput_only(tmp_path: Path) -> None:
    scored, _ = planted(tmp_path, 600, 1.0, quality="suspect")
    assert not any(figure.counts for figures in scored.figures.values() for figure in figures.values())
    assert scored.throughput is not None
    assert scored.throughput.counts


def test_aggregates_score_means_and_no_p99(tmp_path: Path) -> None:
    run = run_of(tmp_path, summary=made.aggregate_summary(), **made.AGGREGATE)
    scored = score_run(run, resolved(run, CATALOGUE))
    assert scored.aggregates_only
    assert scored.figures["ttft_s"]["mean"].counts
    assert not scored.figures["ttft_s"]["p99"].counts
    assert scored.figures["ttft_s"]["p99"].measured == 0.1


def test_many_runs_of_one_server_do_not_outvote_others() -> None:
    runs = [made.scored_run("a", 0.20) for _ in range(13)] + [made.scored_run("b", -0.02), made.scored_run("c", 0.04)]
    (group,) = summarise(runs)
    e2e = next(one for one in group.spreads if one.name == "e2e_s.mean")
    assert e2e.median == pytest.approx(0.04)
    assert e2e.median_of_runs == pytest.approx(0.20)
    assert e2e.signed == pytest.approx(0.04)
    assert e2e.worst == pytest.approx(0.20)
    assert (e2e.deployments, e2e.runs) == (3, 15)
    assert e2e.within_goal == pytest.approx(1 / 15)
    assert e2e.reached is False


def test_groups_are_kept_apart_with_their_goals() -> None:
    runs = [
        made.scored_run("a", 0.01),
        made.scored_run("b", 0.01, aggregates_only=True),
        made.scored_run("c", 0.01, region="near", rate_error=0.02),
        made.scored_run("d", 0.01, has_experts=True),
        made.scored_run("e", 0.01, gpu="L40S"),
    ]
    groups = {(g.gpu, g.kind, g.region, g.aggregates_only): g for g in summarise(runs)}
    assert len(groups) == 5
    near = {one.name: one.goal for one in groups["H100-SXM", "dense", "near", False].spreads}
    assert near == {"e2e_s.mean": 0.05, "itl_s.mean": 0.05, "ttft_s.mean": 0.12, "ttft_s.p99": None, "rate_error": 0.04}
    experts = {one.name: one.goal for one in groups["H100-SXM", "experts", "below", False].spreads}
    assert experts == {"e2e_s.mean": None, "itl_s.mean": 0.10, "ttft_s.mean": None, "ttft_s.p99": None}
    assert groups["L40S", "dense", "below", False].spreads[3].goal == 0.15


def test_saturation_verdicts() -> None:
    assert judged(made.scored_run("a", 0.0)) is True
    assert judged(made.scored_run("a", 0.0, saturated=True)) is False
    assert judged(made.scored_run("a", 0.0, quality="overload", region="above", saturated=True)) is True
    assert judged(made.scored_run("a", 0.0, quality="overload", region="above")) is False
    assert judged(made.scored_run("a", 0.0, quality="client-limited", unscored="x", saturated=True)) is None


def test_the_worst_come_first() -> None:
    runs = [made.scored_run("a", error, name=str(error)) for error in (0.1, -0.5, 0.3)]
    assert [run.experiment for run, _, _ in worst_runs(runs, 2)] == ["-0.5", "0.3"]


def test_our_medians_stand_beside_published_ones() -> None:
    found = {(one["gpu"], one["figure"]): one for one in beside_the_field([made.scored_run("a", 0.02)])}
    ours = found["H100", "e2e_s.mean"]
    assert (ours["ours"], ours["runs"], ours["blis"]) == (pytest.approx(0.02), 1, 0.068)
    assert found["L40S", "ttft_s.p99"]["ours"] is None
