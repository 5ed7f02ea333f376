"""The order of recommendations: what has a range before what has none, then what has a price before what has none,
then the cheapest, then the fewest GPUs. Nobody should buy the first on step times that bound no count."""

from __future__ import annotations

from collections.abc import Iterable

from replay.planning.document import Recommendation


def rank(recommendations: Iterable[Recommendation]) -> tuple[Recommendation, ...]:
    """Ranked from 1. Ties fall to the GPU key, then to the smaller tensor-parallel size."""
    judged = (
        found.model_copy(update={"measure_first": found.certainty is not None and found.certainty.fewest is None})
        for found in recommendations
    )
    ordered = sorted(judged, key=_key)
    return tuple(
        found.model_copy(update={"rank": place, "may_be_cheapest": _may_be_cheapest(ordered[0], found)})
        for place, found in enumerate(ordered, start=1)
    )


def _may_be_cheapest(first: Recommendation, found: Recommendation) -> bool | None:
    """Whether the least that ``found`` may cost is within what the first may cost at most."""
    if found is first or first.certainty is None or found.certainty is None:
        return None
    low, high = found.certainty.fewest, first.certainty.most
    if low is None or low.usd_per_hour is None or first.certainty.fewest is None:
        return None
    if high is None:
        return True
    return None if high.usd_per_hour is None else low.usd_per_hour <= high.usd_per_hour


def _key(found: Recommendation) -> tuple[bool, bool, float, int, str, int]:
    return (found.measure_first, found.usd_per_hour is None, found.usd_per_hour or 0.0, found.gpus, found.gpu, found.tp)
