"""The metrics of a replay by tenant or by priority: the largest groups, and the rest together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.goodput import Judged, judge_requests
from replay.results import CANCELLED, STATUSES, ReplayResult
from replay.specs import Metric, Objective
from replay.workload import Int64Array, Labels

TOP = 20
QUANTILES = (50.0, 99.0)
METRICS: tuple[Metric, ...] = ("ttft", "tpot", "e2e", "queue")


@dataclass(frozen=True)
class Group:
    """The scored requests of one label. ``quantiles_s`` has the 50th and 99th percentile (numpy-linear) of each metric
    over the finished ones, TPOT over those with two output tokens or more; a metric without samples is left out.
    ``good``: of ``counted`` requests those that meet every limit (see ``goodput.judge_requests``), ``None`` without
    limits."""

    name: str
    members: int
    """Labels in this row: 1, or as many as the rest has."""
    requests: int
    finished: int
    cancelled: int
    prompt_tokens: int
    output_tokens: int
    """Of finished requests, as ``prompt_tokens``."""
    preemptions: int
    quantiles_s: dict[Metric, tuple[float, float]]
    good: int | None
    counted: int


def split(result: ReplayResult, labels: Labels, objectives: Sequence[Objective] = (), top: int = TOP) -> list[Group]:
    """One group a label, most requests first (ties by name); all beyond the ``top`` ones in one last group. Labels
    without a scored request have none."""
    code = labels.code[result.scored_part]
    counts = np.bincount(code, minlength=len(labels.names))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    place = np.full(len(labels.names), min(top, len(order)), dtype=np.int64)
    place[order[:top]] = np.arange(min(top, len(order)))
    members = place[code]
    rows = np.argsort(members, kind="stable")
    shown = min(top, len(order)) + (len(order) > top)
    edges = np.searchsorted(members[rows], np.arange(shown + 1))
    judged = judge_requests(result, objectives)
    values = {metric: result.values_s(metric) for metric in METRICS}
    groups = []
    for i in range(shown):
        rest = len(order) - top if i == top else 0
        name = f"({rest} others)" if rest > 1 else labels.names[int(order[i])]
        groups.append(_group(result, name, max(rest, 1), rows[edges[i] : edges[i + 1]], values, judged))
    return groups


def _group(
    result: ReplayResult,
    name: str,
    members: int,
    rows: Int64Array,
    values: dict[Metric, npt.NDArray[np.float64]],
    judged: Judged | None,
) -> Group:
    table, part = result.requests, result.scored_part
    finished = rows[table.last_token_ps[part][rows] >= 0]
    output = table.output_tokens[part][finished]
    span_ps = (table.last_token_ps[part] - table.first_token_ps[part])[finished]
    quantiles: dict[Metric, tuple[float, float]] = {}
    for metric in METRICS:
        of = finished[(output > 1) & (span_ps > 0)] if metric == "tpot" else finished
        if len(of):
            low, high = np.percentile(values[metric][of], QUANTILES)
            quantiles[metric] = (float(low), float(high))
    return Group(
        name=name,
        members=members,
        requests=len(rows),
        finished=len(finished),
        cancelled=int((table.status[part][rows] == STATUSES.index(CANCELLED)).sum()),
        prompt_tokens=int(table.prompt_tokens[part][finished].sum()),
        output_tokens=int(output.sum()),
        preemptions=int(table.preemptions[part][rows].sum()),
        quantiles_s=quantiles,
        good=None if judged is None else int(judged.good[rows].sum()),
        counted=len(rows) if judged is None else int(judged.counted[rows].sum()),
    )
