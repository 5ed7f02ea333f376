"""The metrics by tenant and by priority as parts of a replay's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from replay.goodput import scored_duration_s
from replay.planning.document import Split, SplitRow
from replay.results import ReplayResult
from replay.specs import Metric, Objective
from replay.splits import Group, split
from replay.workload import Labels

_LONGEST_NAME = 80


def split_parts(result: ReplayResult, objectives: Sequence[Objective]) -> tuple[Split, ...]:
    """One part for each of tenant and priority that the trace has."""
    known: tuple[tuple[Literal["tenant", "priority"], Labels | None], ...] = (
        ("tenant", result.requests.tenant),
        ("priority", result.requests.priority),
    )
    duration_s = scored_duration_s(result)
    return tuple(
        Split(by=by, rows=tuple(_row(group, duration_s) for group in split(result, labels, objectives)))
        for by, labels in known
        if labels is not None
    )


def _row(group: Group, duration_s: float) -> SplitRow:
    def at(metric: Metric, place: int) -> float | None:
        found = group.quantiles_s.get(metric)
        return None if found is None else float(f"{found[place]:.9g}")

    good = group.good
    return SplitRow(
        name=group.name if len(group.name) <= _LONGEST_NAME else group.name[: _LONGEST_NAME - 3] + "...",
        members=group.members,
        requests=group.requests,
        finished=group.finished,
        cancelled=group.cancelled,
        prompt_tokens=group.prompt_tokens,
        output_tokens=group.output_tokens,
        preemptions=group.preemptions,
        ttft_p50_s=at("ttft", 0),
        ttft_p99_s=at("ttft", 1),
        tpot_p50_s=at("tpot", 0),
        tpot_p99_s=at("tpot", 1),
        e2e_p50_s=at("e2e", 0),
        e2e_p99_s=at("e2e", 1),
        queue_p50_s=at("queue", 0),
        queue_p99_s=at("queue", 1),
        good_share=None if good is None or group.counted == 0 else float(f"{good / group.counted:.9g}"),
        goodput_rps=None if good is None or duration_s <= 0 else float(f"{good / duration_s:.9g}"),
    )
