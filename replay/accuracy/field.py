"""Another simulator's published errors beside ours, over the runs of the same campaigns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from replay.accuracy.replayed import ScoredRun
from replay.accuracy.summary import SCORED, spread

BLIS: dict[str, tuple[float, float, float, float]] = {
    "H100": (0.068, 0.063, 0.178, 0.267),
    "A100": (0.134, 0.157, 0.157, 1.18),
    "L40S": (0.121, 0.135, 0.50, 0.60),
}
"""Median absolute errors that BLIS (inference-sim) published with its runs, by GPU family, in the order of ``SCORED``:
E2E mean, ITL mean, TTFT mean, TTFT p99."""


def beside_the_field(runs: Iterable[ScoredRun]) -> list[dict[str, Any]]:
    """By GPU family and figure: our median over deployments, of all models and regions that count, and BLIS's."""
    members = list(runs)
    found = []
    for family, published in BLIS.items():
        for (metric, statistic), theirs in zip(SCORED, published, strict=True):
            name = f"{metric}.{statistic}"
            pairs = [
                (run, figure.error)
                for run in members
                if family in run.gpu
                and (figure := run.figures[metric].get(statistic)) is not None
                and figure.error is not None
            ]
            ours = spread(name, pairs, theirs) if pairs else None
            found.append(
                {
                    "gpu": family,
                    "figure": name,
                    "ours": None if ours is None else ours.median,
                    "ours_of_runs": None if ours is None else ours.median_of_runs,
                    "runs": 0 if ours is None else ours.runs,
                    "deployments": 0 if ours is None else ours.deployments,
                    "blis": theirs,
                }
            )
    return found
