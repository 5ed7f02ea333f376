"""The order of recommendations: cheapest first, then fewest GPUs; what has no price comes after what has one."""

from __future__ import annotations

from collections.abc import Iterable

from replay.planning.document import Recommendation


def rank(recommendations: Iterable[Recommendation]) -> tuple[Recommendation, ...]:
    """Ranked from 1. Ties fall to the GPU key, then to the smaller tensor-parallel size."""
    ordered = sorted(recommendations, key=_key)
    return tuple(found.model_copy(update={"rank": place}) for place, found in enumerate(ordered, start=1))


def _key(found: Recommendation) -> tuple[bool, float, int, str, int]:
    return (found.usd_per_hour is None, found.usd_per_hour or 0.0, found.gpus, found.gpu, found.tp)
