"""Medians by the scoring rules: over the runs of a deployment, then over deployments; and the goals beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from replay.accuracy.regions import Region
from replay.accuracy.replayed import ScoredRun

Kind = Literal["dense", "experts"]

SCORED = (("e2e_s", "mean"), ("itl_s", "mean"), ("ttft_s", "mean"), ("ttft_s", "p99"))
"""Metric and statistic of the figures with a goal, in the order in which they are printed."""
RATE_ERROR = "rate_error"
_BELOW = {
    "H100": (0.03, 0.03, 0.06, 0.10),
    "A100": (0.05, 0.05, 0.10, 0.15),
    "L40S": (0.05, 0.05, 0.10, 0.15),
}
_NEAR = (0.05, 0.05, 0.12, None)
_EXPERTS = (None, 0.10, None, None)
_RATE_GOAL = 0.04
THROUGHPUT_GOAL = 0.10
"""Goals as shares: dense models below saturation by GPU family, dense models near it, and models of
experts; step-time factor near saturation; throughput of runs whose latency says nothing."""


@dataclass(frozen=True)
class Spread:
    """Errors of one figure over a group of runs, as shares."""

    name: str
    median: float
    """Of absolute errors: over a deployment's runs, then over deployments."""
    median_of_runs: float
    """Of absolute errors over all runs, each counted once."""
    signed: float
    """As ``median``, of signed errors."""
    worst: float
    """The signed error that is furthest from 0."""
    deployments: int
    runs: int
    goal: float | None
    within_goal: float | None
    """Share of runs within the goal."""

    @property
    def reached(self) -> bool | None:
        return None if self.goal is None else self.median <= self.goal


@dataclass(frozen=True)
class Group:
    """Runs that are summed up together."""

    gpu: str
    kind: Kind
    region: Region
    aggregates_only: bool
    spreads: tuple[Spread, ...]


def goal_of(gpu: str, kind: Kind, region: Region, index: int) -> float | None:
    """The goal of figure ``SCORED[index]`` as a share; ``None``: none is set."""
    if kind == "experts":
        return _EXPERTS[index]
    if region == "near":
        return _NEAR[index]
    return next((goals[index] for family, goals in _BELOW.items() if family in gpu), None)


def summarise(runs: Iterable[ScoredRun]) -> tuple[Group, ...]:
    """Groups by GPU type, kind of model, region, and whether only aggregates are public; those without a scored figure
    are left out."""
    groups: dict[tuple[str, Kind, Region, bool], list[ScoredRun]] = defaultdict(list)
    for run in runs:
        kind: Kind = "experts" if run.has_experts else "dense"
        groups[run.gpu, kind, run.region, run.aggregates_only].append(run)
    found = []
    for (gpu, kind, region, aggregates_only), members in sorted(groups.items()):
        spreads = []
        for i, (metric, statistic) in enumerate(SCORED):
            pairs = [(run, error) for run in members if (error := _error(run, metric, statistic)) is not None]
            if pairs:
                spreads.append(spread(f"{metric}.{statistic}", pairs, goal_of(gpu, kind, region, i)))
        rates = [(run, run.rate_error) for run in members if run.rate_error is not None]
        if rates:
            spreads.append(spread(RATE_ERROR, rates, _RATE_GOAL if kind == "dense" else None))
        if spreads:
            found.append(Group(gpu, kind, region, aggregates_only, tuple(spreads)))
    return tuple(found)


def _error(run: ScoredRun, metric: str, statistic: str) -> float | None:
    figure = run.figures[metric].get(statistic)
    return None if figure is None else figure.error


def spread(name: str, pairs: list[tuple[ScoredRun, float]], goal: float | None) -> Spread:
    """The errors ``pairs`` summed up; at least one."""
    by_deployment: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for run, error in pairs:
        by_deployment[run.deployment].append(error)
    errors = [error for _, error in pairs]
    return Spread(
        name=name,
        median=median(median(abs(e) for e in values) for values in by_deployment.values()),
        median_of_runs=median(abs(e) for e in errors),
        signed=median(median(values) for values in by_deployment.values()),
        worst=max(errors, key=abs),
        deployments=len(by_deployment),
        runs=len(errors),
        goal=goal,
        within_goal=None if goal is None else sum(abs(e) <= goal for e in errors) / len(errors),
    )


def judged(run: ScoredRun) -> bool | None:
    """Whether the saturation verdict is right: an overloaded run must be called saturated, and a sound run below
    saturation must not. ``None``: what the truth is, the measurement does not say."""
    if run.saturated_expected:
        return run.saturated
    if run.quality == "ok" and run.region == "below" and run.unscored is None:
        return not run.saturated
    return None


def worst_runs(runs: Iterable[ScoredRun], count: int = 10) -> list[tuple[ScoredRun, str, float]]:
    """The runs with the largest scored errors, each with the figure it is worst at; the worst first."""
    found = []
    for run in runs:
        errors = [
            (abs(error), f"{metric}.{statistic}", error)
            for metric, statistic in SCORED
            if (error := _error(run, metric, statistic)) is not None
        ]
        if errors:
            _, name, error = max(errors)
            found.append((run, name, error))
    return sorted(found, key=lambda one: -abs(one[2]))[:count]
