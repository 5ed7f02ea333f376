"""The answer of a plan, or of one replay, in one sentence: what people read first, and many read alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replay.planning.document import Infeasible, Operating, Recommendation, Verdict
from replay.planning.wording import objective_text, quantity, recommended_text, rejected_sentence, whole_text
from replay.specs import Objective

if TYPE_CHECKING:
    from replay.deployment import Deployment

_NAMED = 2
"""Candidates that are named beside the first where the order is open; others are counted."""


def plan_verdict(
    objectives: Sequence[Objective],
    recommendations: Sequence[Recommendation],
    infeasible: Sequence[Infeasible],
    assumed: str | None = None,
) -> Verdict:
    """Of ranked recommendations. Where none has a range, the first is no advice yet: its step times come first.
    ``assumed``: a clause with what the replays stand on beside the trace (``assumed_outputs``)."""
    answer = _answer(objectives, recommendations, infeasible)
    was_replayed = bool(recommendations) or any(one.curve for one in infeasible)
    if assumed is None or not was_replayed:
        return answer
    return answer.model_copy(update={"sentence": f"{answer.sentence} This assumes {assumed}."})


def _answer(
    objectives: Sequence[Objective], recommendations: Sequence[Recommendation], infeasible: Sequence[Infeasible]
) -> Verdict:
    wanted = " and ".join(objective_text(objective) for objective in objectives)
    if not recommendations:
        return _no_answer(wanted, infeasible)
    best = recommendations[0]
    meets = f"{recommended_text(best)} {'meets' if best.gpus == 1 else 'meet'} {wanted}"
    known = recommendations if best.measure_first else [one for one in recommendations if not one.measure_first]
    unsure = len(recommendations) - len(known)
    ranged = f" with a range ({unsure} {'has' if unsure == 1 else 'have'} none)" if unsure else ""
    among = f"the cheapest of {len(known)} feasible candidates{ranged}"
    if len(known) == 1:
        among = f"the only feasible candidate{ranged}"
    sentence = f"{meets} at {best.usd_per_hour or 0.0:.2f} USD per hour, {among}."
    if best.usd_per_hour is None:
        sentence = f"{meets}; no price: {best.price_reason}."
    if best.measure_first and best.certainty is not None:
        text = f"{sentence} {best.certainty.sentence} Measure its step times before buying."
        return Verdict(status="measure_first", sentence=text)
    return Verdict(
        status="unpriced" if best.usd_per_hour is None else "recommended",
        sentence=f"{sentence}{_range_sentence(recommendations)}{_unsure_sentence(recommendations)}",
    )


def _no_answer(wanted: str, infeasible: Sequence[Infeasible]) -> Verdict:
    first = infeasible[0]
    who = "The candidate does not meet" if len(infeasible) == 1 else f"None of the {len(infeasible)} candidates meets"
    what = f"{who} {wanted} within the limits"
    if all(row.best is None for row in infeasible):
        is_one = len(infeasible) == 1
        what = "The candidate cannot be used" if is_one else f"None of the {len(infeasible)} candidates can be used"
    sentence = f"{what}; {first.gpu} at tp {first.tp}: {first.reason}."
    return Verdict(status="no_feasible_candidate", sentence=sentence)


def _range_sentence(recommendations: Sequence[Recommendation]) -> str:
    """What the error of the step times and the KV cache leaves open, of the count and of the order."""
    best = recommendations[0]
    found = best.certainty
    if found is None or found.fewest is None:
        return ""
    text = " The error of the simulation leaves the count as it is"
    if found.most != found.fewest:
        text = f" Within the error of the simulation: {found.gpus_text(best.gpus)} GPUs"
        text += f", {found.usd_text()} USD per hour" if best.usd_per_hour is not None else ""
    rivals = [(one, one.certainty) for one in recommendations if one.may_be_cheapest and one.certainty is not None]
    if not rivals:
        return text + "."
    return (
        f"{text}; {_listed([f'{one.gpu} at tp {one.tp} ({sure.usd_text()})' for one, sure in rivals])} may be as cheap."
    )


def _unsure_sentence(recommendations: Sequence[Recommendation]) -> str:
    """Which of the candidates without a range would be cheaper than the first, did their step times hold."""
    limit = recommendations[0].usd_per_hour
    cheaper = [
        f"{one.gpu} at tp {one.tp} ({one.gpus} GPU{'s' * (one.gpus > 1)}, {one.usd_per_hour:.2f})"
        for one in recommendations
        if one.measure_first and one.usd_per_hour is not None and (limit is None or one.usd_per_hour < limit)
    ]
    if not cheaper:
        return ""
    return f" Cheaper if step times hold whose error bounds no count, so measure first: {_listed(cheaper)}."


def _listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    named = [*names[:_NAMED], *[f"{len(names) - _NAMED} more"] * (len(names) > _NAMED)]
    return f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else named[0]


def replay_verdict(figures: Operating, deployment: Deployment) -> Verdict:
    """Of one deployment."""
    what = whole_text(deployment)
    load = figures.load_factor
    if figures.saturated and load is not None:
        return Verdict(
            status="saturated",
            sentence=f"{what}: cannot keep up: the load is {load:.2f} times the capacity of "
            f"{figures.sustainable_rps:.3g} requests per second; the latencies are no operating point.",
        )
    if figures.finished == 0 and not figures.rejected and not figures.cancelled:
        sentence = f"{what}: cannot keep up: the load takes too long to drain, so latencies were not computed."
        return Verdict(status="saturated", sentence=sentence)
    if figures.rejected:
        lost = rejected_sentence(figures.rejected, figures.requests, deployment)
        sentence = f"{what}: {lost}; they are in no latency figure."
        return Verdict(status="some_requests_rejected", sentence=sentence)
    ttft, itl = figures.metrics.ttft_s.p99, figures.metrics.itl_s.p99
    tail = f"; TTFT p99 {quantity(ttft)}" if ttft is not None else ""
    tail += f", ITL p99 {quantity(itl)}" if itl is not None else ""
    if figures.objectives:
        met = sum(row.met for row in figures.objectives)
        tail += f"; {met} of {len(figures.objectives)} objective{'s' if len(figures.objectives) > 1 else ''} met"
    share = f" at {load:.0%} of capacity" if load is not None else ", as one burst: no rate to set against capacity"
    who = f"all {figures.requests} requests served"
    if figures.cancelled:
        who = (
            f"{figures.finished} of {figures.requests} requests served, {figures.cancelled} cancelled by their clients"
        )
    return Verdict(status="served", sentence=f"{what}: {who}{share}{tail}.")
