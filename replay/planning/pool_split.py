"""Which of N replicas prefill and which decode: a few splits of each count are replayed.

More prefill replicas never make a prefill wait longer, and fewer decode replicas never make a decode step faster. So
the worst objective falls and then rises as prefill replicas grow, and halving the splits by comparing neighbours finds
the best of them. Splits in which one part cannot carry the load are saturated whatever else happens, and left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from replay.planning.parts import CurvePoint
from replay.results import ReplayResult

MOST_SPLITS = 16
"""Replayed of one count: two for each halving, so that of 255 splits in question the best is found."""


class PoolLoads(NamedTuple):
    """How many replicas the offered load fills. For a burst, which has no rate, only their ratio says something."""

    prefill: float
    decode: float
    links: float
    """As many pairs of replicas that the transfers keep busy."""
    is_bound: bool
    """Whether a pool of no more replicas than its load is saturated for sure."""

    def least(self) -> tuple[int, int]:
        """The fewest replicas of each pool that are not saturated for sure."""
        if not self.is_bound:
            return 1, 1
        links = _above(self.links)
        return max(1, _above(self.prefill), links), max(1, _above(self.decode), links)

    def fits_at(self) -> int:
        """Replicas of both pools together that hold the work; as far as that is known."""
        if self.is_bound:
            return sum(self.least())
        return sum(max(1, math.ceil(load), math.ceil(self.links)) for load in (self.prefill, self.decode))

    def balanced(self, replicas: int) -> float:
        """Prefill replicas that would be as loaded as the decode replicas beside them."""
        whole = self.prefill + self.decode
        return replicas * (self.prefill / whole if whole > 0 else 0.5)


UNKNOWN_LOADS = PoolLoads(0.0, 0.0, 0.0, is_bound=False)


def _above(load: float) -> int:
    """The smallest count above ``load``, up to rounding."""
    return math.floor(load * (1.0 - 1e-9)) + 1


def loads_of(result: ReplayResult, *, per_replica: bool) -> PoolLoads:
    """From the replay of any split. ``per_replica``: each replica sustains as much however many there are, so with no
    prefix cache."""
    if result.pools is None:
        raise RuntimeError("the loads of pools come from a replay of pools")
    pools, rate = result.pools, result.offered_rps or 0.0
    prefill = pools.prefill.replicas / pools.prefill.sustainable_rps
    decode = pools.decode.replicas / pools.decode.sustainable_rps
    links = min(pools.prefill.replicas, pools.decode.replicas) / pools.transfer_rps
    if result.offered_rps is None:
        return PoolLoads(prefill / (prefill + decode), decode / (prefill + decode), 0.0, is_bound=False)
    return PoolLoads(rate * prefill, rate * decode, rate * links, is_bound=per_replica)


def replay_splits(
    replicas: int,
    loads: PoolLoads,
    replay: Callable[[int, int], CurvePoint],
    affordable: Callable[[int, int], bool],
) -> CurvePoint:
    """The first split of ``replicas`` that passes, else the one that comes nearest; ``replay`` takes prefill and decode
    replicas. One split at least is ``affordable``."""
    every = [split for split in range(1, replicas) if affordable(split, replicas - split)]
    least_prefill, least_decode = loads.least()
    places = [split for split in every if least_prefill <= split <= replicas - least_decode]
    places = places or [_nearest(every, loads.balanced(replicas))]  # saturated: one says by how much
    tried: dict[int, CurvePoint] = {}

    def look(place: int) -> CurvePoint:
        split = places[place]
        if split not in tried:
            tried[split] = replay(split, replicas - split)
        return tried[split]

    low, high = 0, len(places) - 1
    middle = places.index(_nearest(places, loads.balanced(replicas)))
    while low <= high and len(tried) <= MOST_SPLITS - 2:
        here = look(middle)
        beyond = look(middle + 1) if middle < high and not here.passed else here
        if here.passed or beyond.passed:
            break
        if beyond.distance < here.distance:
            low = middle + 2
        else:
            high = middle - 1
        middle = (low + high) // 2
    best = min(tried, key=lambda split: (not tried[split].passed, tried[split].distance, split))
    return tried[best].model_copy(update={"splits_replayed": len(tried)})


def _nearest(splits: list[int], wanted: float) -> int:
    return min(splits, key=lambda split: (abs(split - wanted), split))
