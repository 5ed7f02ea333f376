"""The largest rate that meets an SLO: measured beside simulated, on servers that were measured at several rates.

Runs of one server that differ in their rate alone are a series. For each scored figure of a series the limit is chosen
by rule, from measured figures only: half way, on a log scale, from the value at the lowest rate to that at the highest.
A limit outside what was measured would be met by all rates or by none, on both sides, and say nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log, sqrt

from replay.accuracy.regions import MEAN_NEEDS, P99_NEEDS
from replay.accuracy.replayed import ScoredRun

OBJECTIVES = (("ttft_s", "mean"), ("ttft_s", "p99"), ("itl_s", "mean"), ("itl_s", "p99"))
"""Metric and statistic of the limits."""
FEWEST_RATES = 3
RATES_DIFFER = 1.1
"""Two rates nearer than this ratio are the same rate, measured twice."""
VALUES_DIFFER = 1.2
"""A figure that changes less than this from the lowest rate to the highest has no limit to choose."""
_RATE = re.compile(r"\d+(\.\d+)?(?=\D*$)")


@dataclass(frozen=True)
class LargestRate:
    """One series under one limit. Rates in requests a second."""

    series: str
    """The name of its runs with ``N`` for the rate, which is the last number of each."""
    gpu: str
    model: str
    tp: int
    figure: str
    """``ttft_s.p99`` and the like."""
    limit_s: float
    rates: tuple[float, ...]
    """Those measured, rising."""
    measured_met: float | None
    """The largest of ``rates`` up to which all meet the limit; ``None``: the lowest does not."""
    simulated_met: float | None
    measured: float
    """Where the measured figure crosses the limit, by straight lines on log scales between ``rates``."""
    simulated: float | None
    """The same of the simulated one; ``None``: not within ``rates``."""

    @property
    def steps_off(self) -> int:
        """By how many of the measured rates the simulated answer is too high."""
        return self._met(self.simulated_met) - self._met(self.measured_met)

    def _met(self, rate: float | None) -> int:
        return 0 if rate is None else self.rates.index(rate) + 1

    @property
    def error(self) -> float | None:
        """Simulated / measured - 1 of the crossings."""
        return None if self.simulated is None else self.simulated / self.measured - 1.0


def largest_rates(runs: Iterable[ScoredRun]) -> list[LargestRate]:
    """Every series and figure for which a limit can be chosen, by name."""
    found: dict[tuple[str, str, str, int], list[ScoredRun]] = defaultdict(list)
    for run in runs:
        if run.rate_per_s is not None and run.unscored is None:
            found[_RATE.sub("N", run.experiment), run.gpu, run.model, run.tp].append(run)
    return [
        one
        for (series, *_), members in sorted(found.items())
        for metric, statistic in OBJECTIVES
        if (one := _of_series(series, members, metric, statistic)) is not None
    ]


def _of_series(name: str, runs: list[ScoredRun], metric: str, statistic: str) -> LargestRate | None:
    needed = P99_NEEDS if statistic == "p99" else MEAN_NEEDS
    points: list[tuple[float, float, float]] = []
    for run in sorted(runs, key=lambda run: run.rate_per_s or 0.0):
        figure = run.figures[metric].get(statistic)
        if figure is None or run.rate_per_s is None or run.n < needed:
            continue
        if points and run.rate_per_s < RATES_DIFFER * points[-1][0]:
            continue
        points.append((run.rate_per_s, figure.measured, figure.simulated))
    if len(points) < FEWEST_RATES or points[-1][1] < VALUES_DIFFER * points[0][1]:
        return None
    rates, measured, simulated = (tuple(column) for column in zip(*points, strict=True))
    limit = sqrt(measured[0] * measured[-1])
    crossing = _crossing(rates, measured, limit)
    if crossing is None:
        return None
    return LargestRate(
        series=name,
        gpu=runs[0].gpu,
        model=runs[0].model,
        tp=runs[0].tp,
        figure=f"{metric}.{statistic}",
        limit_s=limit,
        rates=rates,
        measured_met=_met(rates, measured, limit),
        simulated_met=_met(rates, simulated, limit),
        measured=crossing,
        simulated=_crossing(rates, simulated, limit),
    )


def _met(rates: tuple[float, ...], values: tuple[float, ...], limit: float) -> float | None:
    """The largest rate up to which no value is above the limit."""
    largest = None
    for rate, value in zip(rates, values, strict=True):
        if value > limit:
            break
        largest = rate
    return largest


def _crossing(rates: tuple[float, ...], values: tuple[float, ...], limit: float) -> float | None:
    """Where the values first rise above the limit; ``None``: above it from the start, or never."""
    for i in range(1, len(rates)):
        if values[i - 1] <= limit < values[i]:
            share = log(limit / values[i - 1]) / log(values[i] / values[i - 1])
            return exp(log(rates[i - 1]) + share * log(rates[i] / rates[i - 1]))
    return None
