"""Naive twin of the TensorRT-LLM scheduler (engine semantics 1.4): two stages, each written out."""

from __future__ import annotations

from dataclasses import dataclass

from naive.batches import Request, Twin, ceil_div


@dataclass
class Trtllm(Twin):
    policy: str = "GUARANTEED_NO_EVICT"
    chunked: bool = False

    def life(self, r: Request) -> int:
        return ceil_div(r.P + r.M, self.bs)

    def pause_last(self) -> Request:
        victim = self.running.pop()
        self.let_go(victim)
        victim.comp = 0
        victim.preemptions += 1
        self.waiting.insert(0, victim)
        self.preempted = True
        return victim

    def schedule(self, now: int) -> None:
        """Capacity first: who may run. Then tokens: generation, contexts under way, new contexts."""
        paused = False
        generating: list[Request] = []
        for r in list(self.running):
            if r not in self.running or r.complete or r.todo > 1:
                continue
            while r.comp + 1 > r.blocks * self.bs and self.free == 0:
                assert self.policy == "MAX_UTILIZATION", "a reservation was broken"
                paused = True
                if self.pause_last() is r:
                    break
            if r in self.running:
                self.hold(r, r.comp + 1)
                generating.append(r)
        static_busy = self.policy == "STATIC_BATCH" and bool(self.running)
        budget = self.budget
        for r in generating:
            self.add(r, 1)
            budget -= 1
        for r in self.running:
            if r.todo > 1 and r not in generating and not r.complete:
                budget -= self.add_context(r, budget)
        if paused or static_busy:
            return
        while self.waiting and len(self.running) < self.slots:
            r = self.waiting[0]
            if self.policy == "MAX_UTILIZATION":
                fits = ceil_div(r.P + r.gen, self.bs) <= self.free
            else:
                fits = sum(map(self.life, self.running)) + self.life(r) <= self.blocks
            if not fits or self.chunk(r.todo, budget) == 0:
                return
            self.admit(r, now)
            self.hold(r, r.P + r.gen)
            budget -= self.add_context(r, budget)

    def chunk(self, todo: int, budget: int) -> int:
        if todo <= budget:
            return todo
        return budget // self.bs * self.bs if self.chunked else 0

    def add_context(self, r: Request, budget: int) -> int:
        tokens = self.chunk(r.todo, budget)
        if tokens:
            self.add(r, tokens)
        return tokens
