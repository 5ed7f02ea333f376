"""A naive twin of static batching: a queue, a clock that hops from event to event, every step as a list of chunks.

Written from the specification (engine semantics 1.6), for reading rather than for speed. The kernel must give the same
integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby, pairwise

Chunk = tuple[int, int]
"""(tokens computed before, tokens of this step) of one row."""


@dataclass
class Law:
    """``max(w, a T) + per_decode R + b K + e2 A2`` and optional tables, plus host work."""

    w: int
    a: int
    per_decode: int = 0
    b: int = 0
    e2: int = 0
    host: int = 0
    host_per_row: int = 0
    hide_host: bool = False
    decode_table: Callable[[int, int], int] | None = None
    prefill_table: Callable[[int, int], int] | None = None
    prefill_step: int = 0

    def duration(self, step: list[Chunk]) -> int:
        single = [computed + 1 for computed, tokens in step if tokens == 1]
        longer = [(computed, tokens) for computed, tokens in step if tokens > 1]
        gpu = max(self.w, self.a * sum(tokens for _, tokens in step)) + self.b * sum(single)
        gpu += self.per_decode * len(single)
        chunks = sum(self.e2 * tokens * (2 * computed + tokens + 1) for computed, tokens in longer)
        if self.prefill_table is not None:
            chunks += sum(self.prefill_table(tokens, computed) for computed, tokens in longer)
        gpu += chunks + (self.prefill_step if chunks > 0 else 0)
        if self.decode_table is not None and single:
            gpu += self.decode_table(len(single), sum(single) // len(single))
        host = self.host + self.host_per_row * len(step)
        return max(gpu, host) if self.hide_host else gpu + host


@dataclass
class Request:
    index: int
    arrival: int
    P: int
    N: int
    admitted: int = -1
    tokens: list[int] = field(default_factory=list)


@dataclass
class Static:
    S: int
    B: int
    law: Law
    kv_tokens: int = 1 << 50
    pad: bool = True
    stream: bool = False
    timeout: int = -1
    prefill_emits: bool = True
    steps: int = 0
    scheduled: int = 0
    busy: int = 0

    def takes(self, queue: list[Request]) -> list[Request]:
        """Who would be in a batch that starts now."""
        batch = queue[:1]
        for r in queue[1 : self.S]:
            wider = [*batch, r]
            if len(wider) * (max(x.P for x in wider) + max(x.N for x in wider)) > self.kv_tokens:
                break
            batch = wider
        return batch

    def starts(self, queue: list[Request], future: list[Request], now: int) -> bool:
        if not queue:
            return False
        batch = self.takes(queue)
        if len(batch) == self.S or len(batch) < len(queue):
            return True
        return not future if self.timeout < 0 else now >= queue[0].arrival + self.timeout

    def run(self, requests: list[Request]) -> None:
        now, queue, future = 0, list[Request](), list(requests)
        while queue or future:
            while future and future[0].arrival <= now:
                queue.append(future.pop(0))
            if self.starts(queue, future, now):
                batch = self.takes(queue)
                queue = queue[len(batch) :]
                end = self.run_batch(batch, now)
                self.busy += end - now
                now = end
                continue
            events = [r.arrival for r in future[:1]]
            if queue and self.timeout >= 0:
                events.append(queue[0].arrival + self.timeout)
            now = min(events)

    def step(self, chunks: list[Chunk]) -> int:
        self.steps += 1
        self.scheduled += sum(tokens for _, tokens in chunks)
        return self.law.duration(chunks)

    def run_batch(self, batch: list[Request], now: int) -> int:
        lengths = [max(r.P for r in batch) if self.pad else r.P for r in batch]
        for r in batch:
            r.admitted = now
        grid = [(row, position) for row, length in enumerate(lengths) for position in range(length)]
        for at in range(0, len(grid), self.B):
            rows = [list(cells) for _, cells in groupby(grid[at : at + self.B], key=lambda cell: cell[0])]
            now += self.step([(cells[0][1], len(cells)) for cells in rows])
        if self.prefill_emits:
            for r in batch:
                r.tokens.append(now)
        computed = 0
        while any(len(r.tokens) < r.N for r in batch):
            now += self.step([(length + computed, 1) for length in lengths])
            computed += 1
            for r in batch:
                if len(r.tokens) < r.N:
                    r.tokens.append(now)
        if not self.stream:
            for r in batch:
                r.tokens = [now] * r.N
        return now


def gaps(requests: list[Request]) -> list[int]:
    """All gaps between tokens of a request, pooled, in ascending order."""
    return sorted(later - earlier for r in requests for earlier, later in pairwise(r.tokens))
