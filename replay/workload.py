"""A workload: the arrays a replay reads. Made from a canonical trace by ``replay.traces.transforms``."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PrefixBlocks:
    """Chained block ids of prompts: request ``i`` has ``ids[start[i]:start[i + 1]]``, each for ``block_tokens``
    tokens of
    its prompt (the last may be partly filled). Equal leading ids are a shared prefix; ids are >= 0."""

    start: Int64Array
    ids: Int64Array
    block_tokens: int

    def take(self, index: Int64Array) -> PrefixBlocks:
        """The same for the requests ``index``, in that order."""
        counts = np.diff(self.start)[index]
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        offset = np.repeat(self.start[index] - start[:-1], counts)
        return PrefixBlocks(start, self.ids[offset + np.arange(start[-1])], self.block_tokens)


@dataclass(frozen=True)
class Workload:
    """Requests in arrival order; ties keep trace order.

    ``arrival_ps`` int64 picoseconds from the start of the window (>= 0, sorted); ``prompt_tokens`` >= 1 and
    ``output_tokens`` >= 1 int64. All three have shape (n,). ``excluded`` counts the trace's requests that are not here,
    by reason (``no_prompt_tokens``, ``no_output_tokens``, ``gateway_cache_hit``, ``outside_window``): never dropped in
    silence. ``span_s`` is the length of the window the arrivals come from: offered load is n / span_s.
    """

    arrival_ps: Int64Array
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    span_s: float
    prefix: PrefixBlocks | None = None
    """Where the trace gives block ids; without them nothing is shared."""
    excluded: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the transform did, in sentences for the report."""

    @property
    def n(self) -> int:
        return len(self.arrival_ps)
