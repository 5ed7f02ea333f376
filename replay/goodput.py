"""Goodput: requests that meet every limit, per second (vLLM's definition, after DistServe), and attainment by limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.results import ReplayResult
from replay.specs import Objective

BoolArray = npt.NDArray[np.bool_]
_PS_PER_S = 1e12


@dataclass(frozen=True)
class Goodput:
    """``good`` of the ``scored`` requests are within all thresholds of ``objectives`` (those that bind requests);
    cancelled requests that break none are not among them.

    ``requests_per_s``: good requests over ``scored_duration_s``; ``None`` where that is zero."""

    objectives: tuple[str, ...]
    good: int
    scored: int
    requests_per_s: float | None


def attained(result: ReplayResult, objective: Objective) -> float | None:
    """Share of the scored requests at or below the threshold, those never served counting as misses, but for cancelled
    ones of which that is not known; ``None`` for ITL, which no single request has, and where nothing is scored."""
    if objective.metric == "itl":
        return None
    values = result.values_s(objective.metric)[~result.uncounted(objective)]
    return float((values <= objective.threshold_s).mean()) if len(values) else None


class Judged(NamedTuple):
    """Of the scored requests: which meet every objective that binds single requests, and which are ``counted``."""

    good: BoolArray
    counted: BoolArray


def judge_requests(result: ReplayResult, objectives: Sequence[Objective]) -> Judged | None:
    """Holds each request against every objective that binds single requests (TPOT of one token is 0); ``None`` where
    none does. One that was never served meets nothing; a cancelled one is counted where it breaks any."""
    binding = [objective for objective in objectives if objective.binds_requests]
    if not binding:
        return None
    good = np.ones(len(result.values_s("e2e")), dtype=np.bool_)
    counted = np.zeros_like(good)
    for objective in binding:
        good &= result.values_s(objective.metric) <= objective.threshold_s
        counted |= ~result.uncounted(objective)
    return Judged(good, counted)


def goodput(result: ReplayResult, objectives: Sequence[Objective]) -> Goodput | None:
    """Goodput of a replay under any set of objectives; ``None`` where none of them binds single requests."""
    judged = judge_requests(result, objectives)
    if judged is None:
        return None
    count, duration_s = int(judged.good.sum()), scored_duration_s(result)
    return Goodput(
        objectives=tuple(objective.name for objective in objectives if objective.binds_requests),
        good=count,
        scored=int(judged.counted.sum()),
        requests_per_s=count / duration_s if duration_s > 0 else None,
    )


def scored_duration_s(result: ReplayResult) -> float:
    """First arrival to last token of the scored requests that were served; 0 without any."""
    part = result.scored_part
    arrival, last = result.requests.arrival_ps[part], result.requests.last_token_ps[part]
    served = last >= 0
    if not served.any():
        return 0.0
    return float(last[served].max() - arrival[served].min()) / _PS_PER_S
