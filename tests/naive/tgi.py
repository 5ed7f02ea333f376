"""Naive twin of TGI's router (engine semantics 1.5): the batching loop with its calls to the model server."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from naive.batches import Request, Twin, ceil_div


@dataclass
class Tgi(Twin):
    chunks: bool = True
    prefill_tokens: int = 4096
    max_waiting_tokens: int = 20
    ratio: float = 0.3
    max_concurrent: int = 128
    must_decode: bool = False
    waiting_tokens: int = 0
    rows_before: int = 0

    def arrive(self, r: Request) -> None:
        if len(self.waiting) + len(self.running) >= self.max_concurrent:
            r.refused = True
        else:
            self.waiting.append(r)

    def next_chunks(self) -> dict[Request, int]:
        """What each running request gets in the next call of the server."""
        left = self.prefill_tokens - max(self.rows_before - 1, 0)
        chunks = {}
        for r in self.running:
            chunks[r] = 1
            if r.todo > 1:
                chunks[r] = max(min(r.todo, left), 1)
                left -= chunks[r]
        return chunks

    def next_batch(self, prefill_budget: int, least: int) -> list[tuple[Request, int]]:
        if prefill_budget <= 0 or len(self.waiting) < least:
            return []
        budget = ceil_div(prefill_budget, self.bs) * self.bs
        chosen: list[tuple[Request, int]] = []
        free = self.free
        for r in self.waiting:
            need = ceil_div(r.P + r.M - 1, self.bs)
            if need > free or len(self.running) + len(chosen) == self.slots:
                break
            if budget < r.P:
                if self.chunks and budget > 0:
                    chosen.append((r, budget))
                break
            free -= need
            budget -= r.P
            chosen.append((r, r.P))
        return chosen if len(chosen) >= least else []

    def schedule(self, now: int) -> None:
        old = list(self.running)
        chunks = self.next_chunks()
        new: list[tuple[Request, int]] = []
        if not old:
            new = self.next_batch(self.prefill_tokens, 0)
        elif not self.must_decode and self.chunks:
            new = self.next_batch(self.prefill_tokens - sum(chunks.values()), 0)
        elif not self.must_decode:
            long_enough = self.waiting_tokens >= self.max_waiting_tokens
            new = self.next_batch(self.prefill_tokens, 0 if long_enough else floor(len(old) * self.ratio))
        if self.chunks or not new:
            for r in old:
                self.add(r, chunks[r])
        for r, tokens in new:
            self.admit(r, now)
            self.hold(r, r.P + r.M - 1)
            self.add(r, tokens)
        self.must_decode = bool(new and old)
        self.waiting_tokens = 1 if new else self.waiting_tokens + 1
        self.rows_before = len(self.running)
