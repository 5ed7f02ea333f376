"""A workload: the arrays a replay reads. Made from a canonical trace by ``replay.traces.transforms``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay.closed_loop import ClosedLoop
from replay.traces.labels import NO_LABEL as NO_LABEL

Int64Array = npt.NDArray[np.int64]

STAYS = 2**63 - 1
MAX_SPAN_S = 90 * 86_400
"""2^63 ps are 106.75 days; the rest is room to run past the last arrival."""


@dataclass(frozen=True)
class PrefixBlocks:
    """Chained block ids of prompts: request ``i`` has ``ids[start[i]:start[i + 1]]``, each for ``block_tokens``
    tokens of
    its prompt (the last may be partly filled). Equal leading ids are a shared prefix; ids are >= 0."""

    start: Int64Array
    ids: Int64Array
    block_tokens: int

    @cached_property
    def reusable_tokens(self) -> Int64Array:
        """Leading prompt tokens of each request that an endless cache would have seen in earlier ones, shape (n,)."""
        counts = np.diff(self.start)
        owner = np.repeat(np.arange(len(counts)), counts)
        first = np.unique(self.ids, return_index=True)
        new = owner[first[1]][np.searchsorted(first[0], self.ids)] == owner
        place = np.arange(len(self.ids)) - self.start[owner]
        reusable = counts.copy()
        np.minimum.at(reusable, owner[new], place[new])
        return reusable * self.block_tokens

    def take(self, index: Int64Array) -> PrefixBlocks:
        """The same for the requests ``index``, in that order."""
        counts = np.diff(self.start)[index]
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        offset = np.repeat(self.start[index] - start[:-1], counts)
        return PrefixBlocks(start, self.ids[offset + np.arange(start[-1])], self.block_tokens)


@dataclass(frozen=True)
class Labels:
    """A text column as codes: request ``i`` has ``names[code[i]]``. Names ascend; ``NO_LABEL`` stands for none."""

    code: npt.NDArray[np.int32]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Leaves:
    """When clients leave that do not stay to the end of their answers, shape (n,) each.

    ``after_ps``: from sending; ``STAYS``: never. ``cancelled``: whether the trace says that this client did leave then
    (its stream was aborted); else it would have, had the answer taken so long.
    """

    after_ps: Int64Array
    cancelled: npt.NDArray[np.bool_]

    def take(self, index: Int64Array) -> Leaves:
        """The same for the requests ``index``, in that order."""
        return Leaves(self.after_ps[index], self.cancelled[index])


@dataclass(frozen=True)
class Workload:
    """Requests in arrival order; ties keep trace order.

    ``arrival_ps`` int64 picoseconds from the start of the window (>= 0, sorted); ``prompt_tokens`` >= 1 and
    ``output_tokens`` >= 1 int64. All three have shape (n,). ``excluded`` counts the trace's requests that are not here,
    by reason (``no_prompt_tokens``, ``no_output_tokens``, ``gateway_cache_hit``, ``outside_window``,
    ``predecessor_missing``): never dropped in silence. ``span_s`` is the length of the window the arrivals come from:
    offered load is n / span_s.
    """

    arrival_ps: Int64Array
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    span_s: float
    excluded: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the transform did, in sentences for the report."""
    prefix: PrefixBlocks | None = None
    """Where the trace gives block ids; without them, and without ``follows``, nothing is shared."""
    follows: Int64Array | None = None
    """The earlier request whose prompt and output each prompt begins with, as the turns of a session do; -1: none;
    shape (n,). ``None``: not asked for."""
    priority: Int64Array | None = None
    """Lower runs first, as in vLLM; 0 where a request has none. ``None``: the trace has no whole-number priorities."""
    max_tokens: Int64Array | None = None
    """Declared limit of each output, shape (n,), 0 where unknown; engines that reserve memory by it read it."""
    session: Int64Array | None = None
    """A number for each session, -1 for a request without one; ``None`` where the trace has no sessions."""
    seed: int = 0
    """Of all that a replay draws for this workload: the errors of predicted output lengths, a router's choices."""
    tenant: Labels | None = None
    """Whose each request is, where the trace says so."""
    priority_class: Labels | None = None
    """The priority that the trace gave each request, as text; it orders nothing here."""
    scored: tuple[int, int] | None = None
    """First and end of the requests whose latencies count (warm-up and cool-down trimmed); ``None``: all of them."""

    closed_loop: ClosedLoop | None = None
    """Which requests start only when another has ended; ``None``: none. Their ``arrival_ps`` is then the earliest."""
    leaves: Leaves | None = None
    """``None``: no client leaves at a time of its own."""

    @property
    def n(self) -> int:
        return len(self.arrival_ps)

    @property
    def extent_s(self) -> float:
        """From the window's start to its end, or to the last arrival where followers come later."""
        return max(self.span_s, float(self.arrival_ps[-1]) / 1e12) if self.n else self.span_s

    @property
    def shares_prompts(self) -> bool:
        """Whether it is known which prompts begin alike, so that a prefix cache can act."""
        return self.prefix is not None or self.follows is not None

    @cached_property
    def shared_tokens(self) -> Int64Array:
        """Leading prompt tokens that each request has from the one it follows, shape (n,); 0 where it follows none."""
        if self.follows is None:
            return np.zeros(self.n, np.int64)
        before = np.maximum(self.follows, 0)
        text = self.prompt_tokens[before] + self.output_tokens[before]
        return np.where(self.follows < 0, 0, np.minimum(text, self.prompt_tokens))

    @cached_property
    def reusable_tokens(self) -> Int64Array:
        """Leading prompt tokens of each request that an endless cache would have seen in earlier ones, shape (n,)."""
        return self.shared_tokens if self.prefix is None else self.prefix.reusable_tokens

    @property
    def scored_part(self) -> slice:
        """The requests whose latencies count."""
        return slice(0, self.n) if self.scored is None else slice(*self.scored)
