"""A naive twin of vLLM's V0 scheduler, without and with chunked prefill: queues, and blocks counted one by one.

Written from the specification (engine semantics 1.2, 2.3 and 2.5), for reading rather than for speed. The kernel must
give the same integers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Request:
    index: int
    arrival: int
    P: int
    N: int
    gen: int = 0
    blocks: int = 0
    comp: int = 0
    """chunked: tokens in the KV cache"""
    table: int = 0
    """chunked: tokens that had blocks at admission; the prefill computes them"""
    admitted: int = -1
    preemptions: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return self.P + self.gen


class SwapSpaceShort(Exception):
    """The engine aborts."""


@dataclass
class V0:
    S: int
    B: int
    bs: int
    blocks: int
    watermark: int
    cost: tuple[int, int, int, int, int]
    swap: bool = False
    cpu_blocks: int = 0
    copy: int = 0
    max_model_len: int = 1 << 40
    chunked: bool = False
    waiting: deque[Request] = field(default_factory=deque)
    running: deque[Request] = field(default_factory=deque)
    swapped: deque[Request] = field(default_factory=deque)
    steps: int = 0
    scheduled: int = 0
    end: int = 0
    log: list[list[object]] = field(default_factory=list)
    """Each step's free blocks and [request, tokens]."""

    @property
    def free(self) -> int:
        return self.blocks - sum(r.blocks for r in self.running)

    def need(self, tokens: int) -> int:
        return -(-tokens // self.bs)

    def prefills(self, now: int) -> list[Request]:
        admitted = list[Request]()
        while self.waiting and len(self.running) < self.S:
            r = self.waiting[0]
            if sum(x.length for x in admitted) + r.length > self.B:
                break
            if self.free - self.need(r.length) < self.watermark:
                break
            self.waiting.popleft()
            r.blocks = self.need(r.length)
            self.running.append(r)
            admitted.append(r)
            if r.admitted < 0:
                r.admitted = now
        return admitted

    def decodes(self) -> tuple[list[Request], list[Request]]:
        """(who decodes, who was preempted, in order)."""
        todo, done, out = self.running, deque[Request](), list[Request]()
        while todo:
            r = todo.popleft()
            stays = True
            while self.blocks - sum(x.blocks for x in [*done, r, *todo]) < 1:
                victim = todo.pop() if todo else r
                victim.preemptions += 1
                out.append(victim)
                if not self.swap:
                    victim.blocks = 0
                else:
                    on_cpu = sum(x.blocks for x in self.swapped) + sum(x.blocks for x in out[:-1])
                    full_and_next = (victim.length - 1) // self.bs + 1
                    if on_cpu + full_and_next > self.cpu_blocks:
                        raise SwapSpaceShort
                if victim is r:
                    stays = False
                    break
            if stays:
                r.blocks = self.need(r.length)
                done.append(r)
        self.running = done
        return list(done), out

    def chunked_step(self, now: int) -> tuple[list[Request], int] | None:
        """(who gets a token, duration) with chunked prefill, or None where nothing was executed."""
        budget, todo, out = self.B, deque(self.running), list[Request]()
        decodes, ending, under_way, new = list[Request](), list[Request](), list[Request](), list[Request]()
        chunks, emitting = list[tuple[int, int]](), list[Request]()
        served = list[tuple[Request, int]]()

        def free() -> int:
            return self.blocks - sum(r.blocks for r in [*todo, *decodes, *ending, *under_way, *new])

        def run(r: Request, q: int) -> None:
            nonlocal budget
            budget -= q
            chunks.append((q, r.comp))
            served.append((r, q))
            r.comp += q
            if r.comp == r.length:
                emitting.append(r)

        while todo and budget > 0:
            r = todo.popleft()
            prefill = r.comp < r.table
            q = min(r.length - r.comp, budget)
            asked = int(r.length % self.bs > 0) if prefill else 1
            while free() - r.blocks < asked and r not in out:
                victim = todo.pop() if todo else r
                victim.preemptions += 1
                victim.blocks = victim.comp = victim.table = 0
                out.append(victim)
            if r in out:
                break
            r.blocks = self.need(r.length)
            run(r, q)
            (decodes if not prefill else ending if r.comp == r.length else under_way).append(r)
        left_over = list(todo)
        while self.waiting and budget > 0 and len(left_over + decodes + ending + under_way + new) < self.S:
            r = self.waiting[0]
            if free() - self.need(r.length) < self.watermark:
                break
            self.waiting.popleft()
            r.blocks, r.table = self.need(r.length), r.length
            if r.admitted < 0:
                r.admitted = now
            new.append(r)
            run(r, min(r.length, budget))
        self.running = deque([*left_over, *decodes, *ending, *under_way, *new])
        self.waiting.extendleft(out)
        if not chunks:
            return None
        self.count(served)
        return emitting, self.duration(chunks)

    def step(self, now: int) -> tuple[list[Request], int] | None:
        """(who gets a token, duration), or None where nothing was executed."""
        if self.chunked:
            return self.chunked_step(now)
        batch, chunks, moved = list[Request](), list[tuple[int, int]](), 0
        if not self.swapped:
            batch = self.prefills(now)
            chunks = [(r.length, 0) for r in batch]
        if not batch:
            batch, out = self.decodes()
            if self.swap:
                moved = sum(r.blocks for r in out)
                self.swapped.extend(out)
            else:
                self.waiting.extendleft(out)
            while not out and self.swapped and len(self.running) < self.S:
                r = self.swapped[0]
                held = self.need(r.length - 1)
                touched = (r.length - 1) // self.bs + 1
                if self.free - touched < self.watermark:
                    break
                self.swapped.popleft()
                r.blocks = touched
                self.running.append(r)
                batch.append(r)
                moved += held
            chunks = [(1, r.length - 1) for r in batch]
        if not batch and not moved:
            return None
        self.count([(r, q) for r, (q, _) in zip(batch, chunks, strict=True)])
        return batch, moved * self.copy + (self.duration(chunks) if batch else 0)

    def count(self, served: list[tuple[Request, int]]) -> None:
        self.steps += 1
        self.scheduled += sum(q for _, q in served)
        self.log.append([self.free, sorted([r.index, q] for r, q in served)])

    def duration(self, chunks: list[tuple[int, int]]) -> int:
        w, a, b, e2, o = self.cost
        T = sum(q for q, _ in chunks)
        K = sum(c + 1 for q, c in chunks if q == 1)
        A2 = sum(q * (2 * c + q + 1) for q, c in chunks if q > 1)
        return max(w, a * T) + b * K + e2 * A2 + o

    def run(self, requests: list[Request]) -> None:
        now, future = 0, deque(requests)
        while future or self.waiting or self.running or self.swapped:
            while future and future[0].arrival <= now:
                self.waiting.append(future.popleft())
            if not (self.waiting or self.running or self.swapped):
                now = future[0].arrival
                continue
            step = self.step(now)
            if step is None:
                continue
            batch, duration = step
            now += duration
            self.end = now
            for r in batch:
                r.gen += 1
                r.tokens.append(now)
                if r.gen == r.N or r.length >= self.max_model_len:
                    self.running.remove(r)
                    r.blocks = 0
